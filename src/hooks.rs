//! Callbacks of a demux: the trait [`Hooks`], or up to four closures in [`Callbacks`].

use alloc::boxed::Box;
use core::fmt;

/// The attachment that a hook is called for, identified by its key and its tag.
#[derive(Debug)]
#[non_exhaustive]
pub struct Recipient<'a, K> {
    /// The key that the sink is attached under.
    pub key: &'a K,
    /// The number set with [`Attach::tag`](crate::Attach::tag); 0 by default.
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
    /// The input ended or [`Order::Finish`](crate::Order::Finish) was applied. Its queue was sent
    /// and its sink closed.
    Finished,
    /// An order or [`Lease::detach`](crate::Lease::detach) detached it. Its queue was sent and its
    /// sink closed.
    Requested,
    /// Another attachment took its key and its queue. Its sink was closed.
    Replaced,
    /// It reached its [limit](crate::Attach::limit). Its queue was sent and its sink closed.
    Limited,
    /// An order or a dropped lease evicted it. Its sink was dropped.
    Evicted,
    /// Its queue overflowed under [`Overflow::Evict`](crate::Overflow::Evict). Its sink was
    /// dropped.
    Overflowed,
    /// Its key was taken and [`keep_existing`](crate::Attach::keep_existing) was set. Its sink was
    /// closed.
    Refused,
    /// Something waited for its sink for as many ticks as its [stall
    /// time-out](crate::Attach::stall_timeout) allows, and nothing moved: its sink was dropped.
    Stalled,
    /// No item came for as many ticks as its [idle time-out](crate::Attach::idle_timeout) allows:
    /// its sink was closed.
    Idle,
    /// Its sink failed with this error and was dropped.
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

/// Why an item was not sent to an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Discarded {
    /// [`Hooks::admit`] returned `false`.
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

/// Callbacks that a [`Demux`](crate::Demux) calls while it runs.
///
/// `K` is the type of the keys, `V` of the items and `E` of the errors of the sinks. Every method
/// has a default: [`admit`](Self::admit) returns `true`, and the others do nothing.
///
/// Hooks are called from within [`poll`](core::future::Future::poll), between two steps of the
/// demux and never during a call to a sink. They must not block. They may send orders and drop
/// leases. After a panic in a hook the demux can only be dropped.
///
/// Each attachment causes one call of [`attached`](Self::attached) and later one call of
/// [`detached`](Self::detached), even if it was refused or arrived after the end.
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
    /// Returns `true` if this attachment may get this item.
    ///
    /// Called once per item and recipient, before the queue and the readiness of the sink are
    /// checked: an item that exceeds a rate limit never waits for a sink. If it returns `false`,
    /// the item is discarded ([`Discarded::NotAdmitted`]).
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{executor::block_on, sink, stream};
    /// use stream_demux::{DemuxStreamExt, Hooks, Recipient};
    ///
    /// struct Even;
    ///
    /// impl<K, E> Hooks<K, u32, E> for Even {
    ///     fn admit(&mut self, _: Recipient<'_, K>, item: &u32) -> bool {
    ///         item % 2 == 0
    ///     }
    /// }
    ///
    /// let orders = stream::iter([("a", sink::drain())]);
    /// let totals = block_on(stream::iter(0..10).demux_by(|_| "a", orders).hooks(Even));
    /// assert_eq!((totals.delivered, totals.discarded), (5, 5));
    /// ```
    #[inline]
    fn admit(&mut self, to: Recipient<'_, K>, item: &V) -> bool {
        true
    }

    /// Called when an order to attach a sink was applied.
    ///
    /// See [`Hooks`] for an example.
    #[inline]
    fn attached(&mut self, to: Recipient<'_, K>) {}

    /// Called when a key has its first receiving attachment: after [`attached`](Self::attached),
    /// and before any item is routed to it.
    ///
    /// For each key, calls of `key_attached` and [`key_detached`](Self::key_detached) alternate
    /// strictly, and agree with [`Demux::contains_key`](crate::Demux::contains_key). Subscribe
    /// upstream here.
    ///
    /// An attachment that joins or replaces another one does not cause it. Neither does one that
    /// takes no key: because it was refused, came after the end, has a limit of 0 or a lease that
    /// has ended.
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

    /// Called when the last receiving attachment of a key has stopped receiving: it leaves, failed
    /// or was evicted. Unsubscribe upstream here.
    ///
    /// Called after [`unblocked`](Self::unblocked) and before [`detached`](Self::detached). An
    /// attachment that is replaced does not cause it. Dropping the demux calls no hook.
    #[inline]
    fn key_detached(&mut self, key: &K) {}

    /// Called when an attachment has ended and its sink is gone, closed or not.
    ///
    /// No hook is called for this attachment afterwards. See [`Hooks`] for an example.
    #[inline]
    fn detached(&mut self, to: Recipient<'_, K>, why: Detached<E>) {}

    /// Called with an item whose key is not attached.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{executor::block_on, sink, stream};
    /// use stream_demux::{DemuxStreamExt, Hooks};
    ///
    /// struct Unmatched(Vec<u32>);
    ///
    /// impl<K, E> Hooks<K, u32, E> for Unmatched {
    ///     fn unmatched(&mut self, item: u32) {
    ///         self.0.push(item);
    ///     }
    /// }
    ///
    /// let mut unmatched = Unmatched(Vec::new());
    /// let orders = stream::iter([(1, sink::drain())]);
    /// block_on(stream::iter([1, 2, 3]).demux_by(|&n| n, orders).hooks(&mut unmatched));
    /// assert_eq!(unmatched.0, [2, 3]);
    /// ```
    #[inline]
    fn unmatched(&mut self, item: V) {}

    /// Called with an item that is not sent to its recipient, and the reason.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, channel::mpsc, stream};
    /// use stream_demux::{DemuxStreamExt, Discarded, Hooks, Overflow, Recipient};
    ///
    /// struct Discards(Vec<(u32, Discarded)>);
    ///
    /// impl<K, E> Hooks<K, u32, E> for Discards {
    ///     fn discarded(&mut self, _: Recipient<'_, K>, item: u32, why: Discarded) {
    ///         self.0.push((item, why));
    ///     }
    /// }
    ///
    /// let mut discards = Discards(Vec::new());
    /// let (sink, _received) = mpsc::channel(0); // takes one item before it is read
    /// let demux = stream::iter(1..=3).demux_by(|_| "a", stream::iter([("a", sink)]));
    /// let demux = demux.overflow(Overflow::DropNewest).hooks(&mut discards);
    ///
    /// assert!(demux.now_or_never().is_none());
    /// assert_eq!(discards.0, [(3, Discarded::Overflowed)]);
    /// ```
    #[inline]
    fn discarded(&mut self, to: Recipient<'_, K>, item: V, why: Discarded) {}

    /// Returns `true` if `new` makes `waiting` obsolete, which waits in the queue of this
    /// attachment.
    ///
    /// Called only under [`Overflow::Conflate`](crate::Overflow::Conflate), for the items that
    /// wait, from the oldest to the newest, until the answer is `true`. That one is discarded
    /// ([`Discarded::Conflated`]), and `new` takes its place. By default every item supersedes
    /// every other, so that only the latest one waits.
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

    /// Called when the input starts to wait for this sink: once per wait, not once per poll.
    ///
    /// To bound the wait, start a timer here and drop the [`Lease`](crate::Lease) of the
    /// attachment when the timer fires.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, channel::mpsc, stream};
    /// use stream_demux::{DemuxStreamExt, Hooks, Recipient};
    ///
    /// struct Blocked(Vec<&'static str>);
    ///
    /// impl<V, E> Hooks<&'static str, V, E> for Blocked {
    ///     fn blocked(&mut self, on: Recipient<'_, &'static str>) {
    ///         self.0.push(on.key);
    ///     }
    /// }
    ///
    /// let mut blocked = Blocked(Vec::new());
    /// let (sink, _received) = mpsc::channel(0); // takes one item before it is read
    /// let demux = stream::iter([1, 2]).demux_by(|_| "a", stream::iter([("a", sink)]));
    ///
    /// assert!(demux.hooks(&mut blocked).now_or_never().is_none());
    /// assert_eq!(blocked.0, ["a"]);
    /// ```
    #[inline]
    fn blocked(&mut self, on: Recipient<'_, K>) {}

    /// Called when the input no longer waits for this sink: once per [`blocked`](Self::blocked).
    ///
    /// If the sink leaves, this is called before [`detached`](Self::detached).
    #[inline]
    fn unblocked(&mut self, on: Recipient<'_, K>) {}
}

/// Does nothing and admits every item.
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

/// The closures that were set with `on_error`, `on_unmatched`, `on_discarded` and `admit`.
///
/// `()` stands for a closure that was not set. The methods of [`Demux`](crate::Demux) create this
/// type; it implements [`Hooks`].
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

/// A closure or none, for each of the four: sealed, because they exist only so that one
/// [`Callbacks`] serves every combination.
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
