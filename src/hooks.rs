//! Callbacks of a demux: the trait [`Hooks`], or up to four closures in [`Callbacks`].

mod callbacks;
mod reasons;

use alloc::boxed::Box;

pub use callbacks::Callbacks;
pub use reasons::{Detached, Discarded, Recipient};

/// Callbacks that a [`Demux`](crate::Demux) calls while it runs.
///
/// `K` is the type of the keys, `V` of the items and `E` of the errors of the sinks. Every method
/// has a default: [`admit`](Self::admit) and [`supersedes`](Self::supersedes) return `true`, and
/// the others do nothing.
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
    /// Not called for an attachment that joins or replaces another one, nor for one that takes no
    /// key, because it was refused, came after the end, has a limit of 0 or a lease that has ended.
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
    /// Called after [`unblocked`](Self::unblocked) and before [`detached`](Self::detached). Not
    /// called for an attachment that is replaced. Dropping the demux calls no hook. See
    /// [`key_attached`](Self::key_attached) for an example.
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
    /// let mut demux = demux.buffer(1).overflow(Overflow::DropNewest).hooks(&mut discards);
    ///
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert!((&mut demux).now_or_never().is_none()); // still not ready: the sink is full
    /// drop(demux);
    /// assert_eq!(discards.0, [(3, Discarded::Overflowed)]);
    /// ```
    #[inline]
    fn discarded(&mut self, to: Recipient<'_, K>, item: V, why: Discarded) {}

    /// Returns `true` if `new` replaces `waiting`, an item in the queue of this attachment.
    ///
    /// Called only under [`Overflow::Conflate`](crate::Overflow::Conflate), for the items that
    /// wait, from the oldest to the newest, until the answer is `true`. That one is discarded
    /// ([`Discarded::Conflated`]), and `new` takes its place. By default every item supersedes
    /// every other, so that only the latest one waits.
    ///
    /// The time for an item grows with the number of items that wait, which the
    /// [`buffer`](crate::Attach::buffer) bounds. Comparisons count towards the
    /// [`budget`](crate::Demux::budget), so that turns stay short, but the input is read more
    /// slowly in the meantime: keep the buffers of attachments that conflate short.
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

    /// Called when the input starts to wait for this sink: once per wait, at the end of the turn.
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
    /// If the sink leaves, this is called before [`detached`](Self::detached). See
    /// [`blocked`](Self::blocked) for an example.
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
