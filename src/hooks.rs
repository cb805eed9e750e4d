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
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
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
    /// Something waited for its sink for as many ticks as its
    /// [stall time-out](crate::Attach::stall_timeout) allows, and nothing moved: its sink was dropped.
    Stalled,
    /// No item came for as many ticks as its [idle time-out](crate::Attach::idle_timeout) allows: its sink
    /// was closed.
    Idle,
    /// Its sink failed, and was dropped.
    Failed(E),
}

impl<E> Detached<E> {
    /// Returns the name of the reason in snake case, for labels of metrics and fields of logs.
    ///
    /// # Examples
    ///
    /// ```
    /// use stream_demux::Detached;
    ///
    /// assert_eq!(Detached::<()>::Requested.as_str(), "requested");
    /// assert_eq!(Detached::Failed("broken pipe").as_str(), "failed");
    /// ```
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Requested => "requested",
            Self::Replaced => "replaced",
            Self::Limited => "limited",
            Self::Evicted => "evicted",
            Self::Overflowed => "overflowed",
            Self::Refused => "refused",
            Self::Stalled => "stalled",
            Self::Idle => "idle",
            Self::Failed(_) => "failed",
        }
    }
}

/// The same as [`as_str`](Detached::as_str). The error of a sink is not shown.
impl<E> fmt::Display for Detached<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
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
    /// A newer item took its place in the queue; see
    /// [`Overflow::Conflate`](crate::Overflow::Conflate).
    Conflated,
}

impl Discarded {
    /// Returns the name of the reason in snake case, for labels of metrics and fields of logs.
    ///
    /// # Examples
    ///
    /// ```
    /// use stream_demux::Discarded;
    ///
    /// assert_eq!(Discarded::NotAdmitted.as_str(), "not_admitted");
    /// assert_eq!(Discarded::NotAdmitted.to_string(), "not_admitted");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotAdmitted => "not_admitted",
            Self::Overflowed => "overflowed",
            Self::Evicted => "evicted",
            Self::Failed => "failed",
            Self::Conflated => "conflated",
        }
    }
}

/// The same as [`as_str`](Discarded::as_str).
impl fmt::Display for Discarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
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

    /// Called when a key has its first receiving attachment: after [`attached`](Self::attached), and
    /// before any item is routed to it.
    ///
    /// For each key, calls of `key_attached` and [`key_detached`](Self::key_detached) alternate strictly,
    /// and agree with [`Demux::contains_key`](crate::Demux::contains_key). Subscribe upstream here.
    ///
    /// An attachment that joins or replaces another one does not cause it. Neither does one that takes
    /// no key: because it was refused, came after the end, has a limit of 0 or a lease that has ended.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{channel::mpsc, executor::block_on, stream};
    /// use stream_demux::{DemuxStreamExt, Hooks, Order};
    ///
    /// #[derive(Default)]
    /// struct Upstream(Vec<String>);
    ///
    /// impl<V, E> Hooks<&str, V, E> for Upstream {
    ///     fn key_attached(&mut self, key: &&str) {
    ///         self.0.push(format!("subscribe {key}"));
    ///     }
    ///     fn key_detached(&mut self, key: &&str) {
    ///         self.0.push(format!("unsubscribe {key}"));
    ///     }
    /// }
    ///
    /// let (sink, _received) = mpsc::unbounded();
    /// let orders = stream::iter([
    ///     Order::from(("news", sink.clone())),
    ///     Order::from(("news", sink)), // joins
    ///     Order::Detach("news"),
    /// ]);
    /// let mut upstream = Upstream::default();
    /// let input = stream::empty::<u32>();
    /// block_on(input.demux_by(|_| "news", orders).multicast().hooks(&mut upstream));
    /// assert_eq!(upstream.0, ["subscribe news", "unsubscribe news"]);
    /// ```
    #[inline]
    fn key_attached(&mut self, key: &K) {}

    /// Called when the last receiving attachment of a key has stopped receiving: it leaves, failed or
    /// was evicted. Unsubscribe upstream here.
    ///
    /// Called after [`unblocked`](Self::unblocked) and before [`detached`](Self::detached). An attachment
    /// that is replaced does not cause it. Dropping the demux calls no hook.
    #[inline]
    fn key_detached(&mut self, key: &K) {}

    /// An attachment has ended: its sink is gone, closed or not. Nothing more is said of it.
    #[inline]
    fn detached(&mut self, to: Recipient<'_, K>, why: Detached<E>) {}

    /// Nobody wants this item.
    #[inline]
    fn unmatched(&mut self, item: V) {}

    /// An attachment does not get this item.
    #[inline]
    fn discarded(&mut self, to: Recipient<'_, K>, item: V, why: Discarded) {}

    /// Returns `true` if `new` makes `waiting` obsolete, which waits in the queue of this attachment.
    ///
    /// Called only under [`Overflow::Conflate`](crate::Overflow::Conflate), for the items that wait, from
    /// the oldest to the newest, until the answer is `true`. That one is discarded
    /// ([`Discarded::Conflated`]), and `new` takes its place. By default every item supersedes every other,
    /// so that only the latest one waits.
    ///
    /// # Examples
    ///
    /// A client that follows many prices on one connection gets the latest of each:
    ///
    /// ```
    /// use stream_demux::{Hooks, Recipient};
    ///
    /// struct Price { symbol: String, cents: u64 }
    /// struct LatestOfEach;
    ///
    /// impl<E> Hooks<u32, Price, E> for LatestOfEach {
    ///     fn supersedes(&mut self, _: Recipient<'_, u32>, waiting: &Price, new: &Price) -> bool {
    ///         waiting.symbol == new.symbol
    ///     }
    /// }
    /// # let price = |cents| Price { symbol: "A".into(), cents };
    /// # assert_eq!(price(1).cents, 1);
    /// ```
    #[inline]
    fn supersedes(&mut self, to: Recipient<'_, K>, waiting: &V, new: &V) -> bool {
        true
    }

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
    fn key_attached(&mut self, key: &K) {
        (**self).key_attached(key);
    }
    fn key_detached(&mut self, key: &K) {
        (**self).key_detached(key);
    }
    fn supersedes(&mut self, to: Recipient<'_, K>, waiting: &V, new: &V) -> bool {
        (**self).supersedes(to, waiting, new)
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
    fn key_attached(&mut self, key: &K) {
        (**self).key_attached(key);
    }
    fn key_detached(&mut self, key: &K) {
        (**self).key_detached(key);
    }
    fn supersedes(&mut self, to: Recipient<'_, K>, waiting: &V, new: &V) -> bool {
        (**self).supersedes(to, waiting, new)
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
