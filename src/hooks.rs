//! Being told: [`Hooks`], or four closures in [`Callbacks`].

use alloc::boxed::Box;
use core::fmt;

/// Whom a hook speaks of: one attachment, by its key and the tag it was given.
#[derive(Debug)]
#[non_exhaustive]
pub struct Recipient<'a, K> {
    /// The key it is attached under.
    pub key: &'a K,
    /// What [`Attach::tag`](crate::Attach::tag) said; 0 unless set.
    pub tag: u64,
}

// Not derived: a derived impl would ask for `K: Copy`.
impl<K> Clone for Recipient<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Recipient<'_, K> {}

/// Why an attachment ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Detached<E> {
    /// The input ended, or [`Order::Finish`](crate::Order::Finish) came: its queue was sent, its sink
    /// closed.
    Finished,
    /// It was detached, by order or by [`Lease::detach`](crate::Lease::detach): its queue was sent,
    /// its sink closed.
    Requested,
    /// Another sink took its key, and its queue; its sink was closed.
    Replaced,
    /// It accepted as many items as it was [limited](crate::Attach::limit) to; its queue was sent, its
    /// sink closed.
    Limited,
    /// It was evicted, by order or because its lease was dropped: its sink was dropped.
    Evicted,
    /// Its queue overflowed under [`Overflow::Evict`](crate::Overflow::Evict): its sink was dropped.
    Overflowed,
    /// Its key was taken and it was to [keep what exists](crate::Attach::keep_existing): its sink was
    /// closed.
    Refused,
    /// Its sink failed, and was dropped.
    Failed(E),
}

/// Why an attachment did not get an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Discarded {
    /// [`Hooks::admit`] said no.
    NotAdmitted,
    /// The queue was full; see [`Overflow`](crate::Overflow).
    Overflowed,
    /// The attachment was evicted while the item waited for it.
    Evicted,
    /// The sink failed while the item waited for it.
    Failed,
}

/// What a [`Demux`](crate::Demux) tells, and asks, while it runs. Every method has a default.
///
/// `K` is the key, `V` the item, `E` the error of the sinks. Hooks are called from within
/// [`poll`](core::future::Future::poll), between two steps of the demux and never while it touches a
/// sink: they must not block, and may send orders or drop leases. After a panic in a hook the demux
/// can only be dropped.
///
/// Each attachment is announced by one [`attached`](Self::attached) and ends with one
/// [`detached`](Self::detached), also one that was refused or came after the end.
///
/// # Examples
///
/// ```
/// use futures::{channel::mpsc, executor::block_on, stream};
/// use stream_demux::{DemuxStreamExt, Detached, Hooks, Recipient};
///
/// #[derive(Default)]
/// struct Log(Vec<String>);
///
/// impl<V, E: std::fmt::Debug> Hooks<u32, V, E> for Log {
///     fn attached(&mut self, to: Recipient<'_, u32>) {
///         self.0.push(format!("{} attached", to.key));
///     }
///     fn detached(&mut self, to: Recipient<'_, u32>, why: Detached<E>) {
///         self.0.push(format!("{} {why:?}", to.key));
///     }
/// }
///
/// let mut log = Log::default();
/// let (sink, _received) = mpsc::unbounded();
/// let orders = stream::iter([(1, sink)]);
/// block_on(stream::iter([1, 1]).demux_by(|&n| n, orders).hooks(&mut log));
/// assert_eq!(log.0, ["1 attached", "1 Finished"]);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `Hooks` for this demux",
    label = "must implement `Hooks<K, V, E>` with key `{K}`, item `{V}` and sink error `{E}`",
    note = "closures are given to `on_error`, `on_unmatched`, `on_discarded` and `admit`"
)]
#[expect(unused_variables, reason = "their names tell what they are")]
pub trait Hooks<K, V, E> {
    /// May this attachment have this item? If not, it is discarded ([`Discarded::NotAdmitted`]).
    ///
    /// Asked once for each item and recipient, before queue and readiness are looked at: an item that
    /// exceeds a rate limit never waits for a sink.
    #[inline]
    fn admit(&mut self, to: Recipient<'_, K>, item: &V) -> bool {
        true
    }

    /// An order to attach was applied.
    #[inline]
    fn attached(&mut self, to: Recipient<'_, K>) {}

    /// An attachment has ended: its sink is gone, closed or not. Nothing more is said of it.
    #[inline]
    fn detached(&mut self, to: Recipient<'_, K>, why: Detached<E>) {}

    /// Nobody wants this item.
    #[inline]
    fn unmatched(&mut self, item: V) {}

    /// An attachment does not get this item.
    #[inline]
    fn discarded(&mut self, to: Recipient<'_, K>, item: V, why: Discarded) {}

    /// The input starts to wait for this sink: once for each wait, not for each poll.
    #[inline]
    fn blocked(&mut self, on: Recipient<'_, K>) {}

    /// The input no longer waits for this sink: once for each [`blocked`](Self::blocked), and before
    /// [`detached`](Self::detached) if the sink leaves.
    #[inline]
    fn unblocked(&mut self, on: Recipient<'_, K>) {}
}

/// Hears nothing, admits everything.
impl<K, V, E> Hooks<K, V, E> for () {}

impl<K, V, E, H: Hooks<K, V, E> + ?Sized> Hooks<K, V, E> for &mut H {
    #[inline]
    fn admit(&mut self, to: Recipient<'_, K>, item: &V) -> bool {
        (**self).admit(to, item)
    }
    fn attached(&mut self, to: Recipient<'_, K>) {
        (**self).attached(to);
    }
    fn detached(&mut self, to: Recipient<'_, K>, why: Detached<E>) {
        (**self).detached(to, why);
    }
    fn unmatched(&mut self, item: V) {
        (**self).unmatched(item);
    }
    fn discarded(&mut self, to: Recipient<'_, K>, item: V, why: Discarded) {
        (**self).discarded(to, item, why);
    }
    fn blocked(&mut self, on: Recipient<'_, K>) {
        (**self).blocked(on);
    }
    fn unblocked(&mut self, on: Recipient<'_, K>) {
        (**self).unblocked(on);
    }
}

impl<K, V, E, H: Hooks<K, V, E> + ?Sized> Hooks<K, V, E> for Box<H> {
    #[inline]
    fn admit(&mut self, to: Recipient<'_, K>, item: &V) -> bool {
        (**self).admit(to, item)
    }
    fn attached(&mut self, to: Recipient<'_, K>) {
        (**self).attached(to);
    }
    fn detached(&mut self, to: Recipient<'_, K>, why: Detached<E>) {
        (**self).detached(to, why);
    }
    fn unmatched(&mut self, item: V) {
        (**self).unmatched(item);
    }
    fn discarded(&mut self, to: Recipient<'_, K>, item: V, why: Discarded) {
        (**self).discarded(to, item, why);
    }
    fn blocked(&mut self, on: Recipient<'_, K>) {
        (**self).blocked(on);
    }
    fn unblocked(&mut self, on: Recipient<'_, K>) {
        (**self).unblocked(on);
    }
}

/// The closures given to a [`Demux`](crate::Demux) by `on_error`, `on_unmatched`, `on_discarded` and
/// `admit`; `()` stands for one that was not given. Implements [`Hooks`].
#[derive(Clone, Copy, Default)]
pub struct Callbacks<E = (), U = (), D = (), A = ()> {
    on_error: E,
    on_unmatched: U,
    on_discarded: D,
    admit: A,
}

impl<E, U, D, A> Callbacks<E, U, D, A> {
    pub(crate) fn with_on_error<C>(self, on_error: C) -> Callbacks<C, U, D, A> {
        let Self { on_error: _, on_unmatched, on_discarded, admit } = self;
        Callbacks { on_error, on_unmatched, on_discarded, admit }
    }

    pub(crate) fn with_on_unmatched<C>(self, on_unmatched: C) -> Callbacks<E, C, D, A> {
        let Self { on_error, on_unmatched: _, on_discarded, admit } = self;
        Callbacks { on_error, on_unmatched, on_discarded, admit }
    }

    pub(crate) fn with_on_discarded<C>(self, on_discarded: C) -> Callbacks<E, U, C, A> {
        let Self { on_error, on_unmatched, on_discarded: _, admit } = self;
        Callbacks { on_error, on_unmatched, on_discarded, admit }
    }

    pub(crate) fn with_admit<C>(self, admit: C) -> Callbacks<E, U, D, C> {
        let Self { on_error, on_unmatched, on_discarded, admit: _ } = self;
        Callbacks { on_error, on_unmatched, on_discarded, admit }
    }
}

impl<E, U, D, A> fmt::Debug for Callbacks<E, U, D, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").finish_non_exhaustive()
    }
}

impl<K, V, X, E, U, D, A> Hooks<K, V, X> for Callbacks<E, U, D, A>
where
    E: closure::OnError<K, X>,
    U: closure::OnUnmatched<V>,
    D: closure::OnDiscarded<K, V>,
    A: closure::Admit<K, V>,
{
    #[inline]
    fn admit(&mut self, to: Recipient<'_, K>, item: &V) -> bool {
        self.admit.ask(to, item)
    }
    #[inline]
    fn detached(&mut self, to: Recipient<'_, K>, why: Detached<X>) {
        if let Detached::Failed(error) = why {
            self.on_error.tell(to, error);
        }
    }
    #[inline]
    fn unmatched(&mut self, item: V) {
        self.on_unmatched.tell(item);
    }
    #[inline]
    fn discarded(&mut self, to: Recipient<'_, K>, item: V, why: Discarded) {
        self.on_discarded.tell(to, item, why);
    }
}

/// A closure or none, for each of the four: sealed, because they exist only so that one [`Callbacks`]
/// serves every combination.
mod closure {
    use super::{Discarded, Recipient};

    pub trait OnError<K, E> {
        fn tell(&mut self, to: Recipient<'_, K>, error: E);
    }
    impl<K, E> OnError<K, E> for () {
        fn tell(&mut self, _: Recipient<'_, K>, _: E) {}
    }
    impl<K, E, F: FnMut(Recipient<'_, K>, E)> OnError<K, E> for F {
        fn tell(&mut self, to: Recipient<'_, K>, error: E) {
            self(to, error);
        }
    }

    pub trait OnUnmatched<V> {
        fn tell(&mut self, item: V);
    }
    impl<V> OnUnmatched<V> for () {
        #[inline]
        fn tell(&mut self, _: V) {}
    }
    impl<V, F: FnMut(V)> OnUnmatched<V> for F {
        #[inline]
        fn tell(&mut self, item: V) {
            self(item);
        }
    }

    pub trait OnDiscarded<K, V> {
        fn tell(&mut self, to: Recipient<'_, K>, item: V, why: Discarded);
    }
    impl<K, V> OnDiscarded<K, V> for () {
        #[inline]
        fn tell(&mut self, _: Recipient<'_, K>, _: V, _: Discarded) {}
    }
    impl<K, V, F: FnMut(Recipient<'_, K>, V, Discarded)> OnDiscarded<K, V> for F {
        #[inline]
        fn tell(&mut self, to: Recipient<'_, K>, item: V, why: Discarded) {
            self(to, item, why);
        }
    }

    pub trait Admit<K, V> {
        fn ask(&mut self, to: Recipient<'_, K>, item: &V) -> bool;
    }
    impl<K, V> Admit<K, V> for () {
        #[inline]
        fn ask(&mut self, _: Recipient<'_, K>, _: &V) -> bool {
            true
        }
    }
    impl<K, V, F: FnMut(Recipient<'_, K>, &V) -> bool> Admit<K, V> for F {
        #[inline]
        fn ask(&mut self, to: Recipient<'_, K>, item: &V) -> bool {
            self(to, item)
        }
    }
}
