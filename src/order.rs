//! The items of an orders stream: [`Order`], [`Attach`] and its terms; and what can be attached.

use alloc::sync::Arc;
use core::fmt;

use futures_sink::Sink;

use crate::lease::{Claim, Lease};

/// An order to a running [`Demux`](crate::Demux): one item of its orders stream.
///
/// Orders are applied in the order in which they are read. An order that was ready before the
/// input returned an item is applied before that item is routed.
///
/// # Examples
///
/// ```
/// use futures::{channel::mpsc, executor::block_on, sink, stream};
/// use stream_demux::{Attach, DemuxStreamExt, Order};
///
/// let (orders, orders_in) = mpsc::unbounded();
/// orders.unbounded_send(Order::from(("a", sink::drain()))).unwrap();
/// orders.unbounded_send(Attach::new("b", sink::drain()).buffer(16).into()).unwrap();
/// orders.unbounded_send(Order::Detach("a")).unwrap();
///
/// let totals = block_on(stream::iter(["a", "b"]).demux_by(|&key| key, orders_in));
/// assert_eq!((totals.unmatched, totals.delivered), (1, 1));
/// ```
#[non_exhaustive]
pub enum Order<K, S> {
    /// Attaches a sink under a key, so that it gets the items with this key.
    Attach(Attach<K, S>),
    /// Detaches the sinks of this key gracefully.
    ///
    /// The sinks get no new items, are sent the items that wait for them, and are closed. Sinks
    /// that are already leaving are not affected. Does nothing if the key is unknown.
    Detach(K),
    /// Drops the sinks of this key at once.
    ///
    /// Waiting items are discarded. The sinks are dropped without being flushed or closed,
    /// including sinks of this key that are still draining or closing. Does nothing if the key is
    /// unknown.
    Evict(K),
    /// One unit of time has passed, for attachments that have a
    /// [`stall_timeout`](Attach::stall_timeout) or an [`idle_timeout`](Attach::idle_timeout), and
    /// for [`linger`](crate::Demux::linger). The unit is yours: merge a ticker into the orders. See
    /// [Time](crate#time).
    ///
    /// Ticks that are read in one turn count as one. A tick comes to the attachments one by one,
    /// each costs one of the budget, and orders and items go on meanwhile; another tick that is
    /// read before the last of them had its own comes to them all after that, together with those
    /// that follow.
    Tick,
    /// Stops reading the input, as if it had ended.
    ///
    /// The queues drain, the sinks are closed, and the future completes. An item that was already
    /// read keeps its place.
    Finish,
}

/// Clones the order; an [`Attach`] without its lease.
impl<K: Clone, S: Clone> Clone for Order<K, S> {
    fn clone(&self) -> Self {
        match self {
            Self::Attach(attach) => Self::Attach(attach.clone()),
            Self::Detach(key) => Self::Detach(key.clone()),
            Self::Evict(key) => Self::Evict(key.clone()),
            Self::Tick => Self::Tick,
            Self::Finish => Self::Finish,
        }
    }
}

impl<K, S> From<Attach<K, S>> for Order<K, S> {
    fn from(attach: Attach<K, S>) -> Self {
        Self::Attach(attach)
    }
}

impl<K, S> From<(K, S)> for Order<K, S> {
    fn from((key, sink): (K, S)) -> Self {
        Self::Attach(Attach::new(key, sink))
    }
}

impl<K: fmt::Debug, S> fmt::Debug for Order<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attach(attach) => attach.fmt(f),
            Self::Detach(key) => f.debug_tuple("Detach").field(key).finish(),
            Self::Evict(key) => f.debug_tuple("Evict").field(key).finish(),
            Self::Tick => f.write_str("Tick"),
            Self::Finish => f.write_str("Finish"),
        }
    }
}

/// An item of an orders stream: `(key, sink)`, [`Attach`] or [`Order`].
///
/// Implement this trait for your own type if you do not want to `map` the orders stream.
///
/// # Examples
///
/// ```
/// use stream_demux::{IntoOrder, Order};
///
/// /// A subscriber is attached under its name.
/// struct Subscriber<S> { name: String, sink: S }
///
/// impl<S> IntoOrder for Subscriber<S> {
///     type Key = String;
///     type Sink = S;
///     fn into_order(self) -> Order<String, S> {
///         (self.name, self.sink).into()
///     }
/// }
/// # let _ = Subscriber { name: "ann".into(), sink: () }.into_order();
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no order",
    label = "this orders stream yields `{Self}`",
    note = "the orders stream must yield `(key, sink)`, `Attach<K, S>` or `Order<K, S>`",
    note = "if it yields `Result`s, filter them first, for example with `filter_map`"
)]
pub trait IntoOrder {
    /// The key that the order applies to.
    type Key;
    /// The sink that the order may attach.
    type Sink;
    /// Converts this value into an order.
    fn into_order(self) -> Order<Self::Key, Self::Sink>;
}

impl<K, S> IntoOrder for (K, S) {
    type Key = K;
    type Sink = S;
    fn into_order(self) -> Order<K, S> {
        self.into()
    }
}

impl<K, S> IntoOrder for Attach<K, S> {
    type Key = K;
    type Sink = S;
    fn into_order(self) -> Order<K, S> {
        self.into()
    }
}

impl<K, S> IntoOrder for Order<K, S> {
    type Key = K;
    type Sink = S;
    fn into_order(self) -> Self {
        self
    }
}

/// A sink for items of type `V`: any `Sink<V> + Unpin`.
///
/// Implemented for all such types. The trait exists so that the compiler can explain why another
/// type cannot be attached.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be attached to a stream of `{V}`",
    label = "a sink must implement `Sink<{V}>` and `Unpin`",
    note = "a sink that is not `Unpin` is attached as `Box::pin(sink)`",
    note = "a `tokio::sync::mpsc::Sender` is not a `Sink`: attach `PollSender` of `tokio-util`"
)]
pub trait Attachable<V>: Sink<V> + Unpin {}

// Without this attribute rustc reports the unmet bound of this impl, which fills a screen.
#[diagnostic::do_not_recommend]
impl<V, S: Sink<V> + Unpin + ?Sized> Attachable<V> for S {}

/// What happens to an item when its sink is not ready and the queue of that sink is full.
///
/// # Examples
///
/// ```
/// # use futures::sink::drain;
/// use stream_demux::{Attach, Overflow};
///
/// # let sink = drain::<u32>();
/// // A slow viewer sees the latest 32 items, with gaps, and does not delay other sinks.
/// let viewer = Attach::new("prices", sink).buffer(32).overflow(Overflow::DropOldest);
/// # let _ = viewer;
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overflow {
    /// Holds the item and stops reading the input until the sink takes an item, leaves or fails.
    ///
    /// This is backpressure: nothing is lost, but one slow sink holds back the items of all
    /// others.
    #[default]
    Wait,
    /// Discards the item.
    ///
    /// The queue has room for at least one item, even with [`buffer`](Attach::buffer)`(0)`.
    DropNewest,
    /// Discards the oldest queued item and queues this one.
    ///
    /// The queue has room for at least one item, even with [`buffer`](Attach::buffer)`(0)`. With
    /// room for one, the sink gets the latest item.
    DropOldest,
    /// Ends the attachment: its queue and this item are discarded, and its sink is dropped.
    Evict,
    /// This item takes the place of the first waiting one that it
    /// [supersedes](crate::Hooks::supersedes), which is discarded
    /// ([`Discarded::Conflated`](crate::Discarded::Conflated)): the latest value instead of the
    /// oldest.
    ///
    /// It does so whenever it would join a queue that is not empty, full or not. By default an item
    /// supersedes any other, so that one item waits at most. An item that supersedes none is
    /// queued, and if the queue is full, the head is discarded as under `DropOldest`. The queue has
    /// at least one place, also with [`buffer`](Attach::buffer)`(0)`. An item that takes the place
    /// of another does not count towards a [`limit`](Attach::limit), and is sent before items that
    /// came before it, if those wait behind that place.
    Conflate,
}

/// An order to attach a sink under a key, with the terms of the attachment.
///
/// If the key is taken, the new attachment replaces the old one: the items that wait for the old
/// sink move to the new sink, in order, and the old sink is flushed and closed in the background.
/// With [`multicast`](crate::Demux::multicast), the new attachment joins the old one instead.
///
/// # Examples
///
/// ```
/// # use futures::sink::drain;
/// use stream_demux::{Attach, Lease, Overflow};
///
/// # let sink = drain::<u32>();
/// let mut lease = Lease::new();
/// let attach = Attach::new("temperature", sink)
///     .buffer(64)
///     .overflow(Overflow::DropOldest)
///     .tag(42)
///     .leased(&mut lease);
/// # let _ = attach;
/// ```
#[must_use = "does nothing until the orders stream yields it"]
pub struct Attach<K, S> {
    pub(crate) key: K,
    pub(crate) sink: S,
    pub(crate) terms: Terms,
    pub(crate) claim: Option<Arc<Claim>>,
}

/// The terms of an attachment, as far as they were set.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Terms {
    pub(crate) tag: u64,
    pub(crate) buffer: Option<usize>,
    pub(crate) overflow: Option<Overflow>,
    pub(crate) limit: Option<u64>,
    /// In ticks; 0 for none.
    pub(crate) stall_timeout: Option<u32>,
    pub(crate) idle_timeout: Option<u32>,
    pub(crate) keep_existing: bool,
    pub(crate) catch_all: bool,
}

impl<K, S> Attach<K, S> {
    /// Creates an order to attach `sink` under `key`, on the default terms of the demux.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, channel::mpsc, executor::block_on, stream};
    /// use stream_demux::{Attach, DemuxStreamExt};
    ///
    /// let (sink, received) = mpsc::unbounded();
    /// let orders = stream::iter([Attach::new("a", sink)]);
    ///
    /// block_on(stream::iter(1..=3).demux_by(|_| "a", orders));
    /// assert_eq!(block_on(received.collect::<Vec<_>>()), [1, 2, 3]);
    /// ```
    pub fn new(key: K, sink: S) -> Self {
        Self { key, sink, terms: Terms::default(), claim: None }
    }

    /// Sets a number that every hook gets together with the key; the default is 0.
    ///
    /// Use it to distinguish attachments that have the same key. The demux does not interpret it.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{executor::block_on, sink, stream};
    /// use stream_demux::{Attach, DemuxStreamExt};
    ///
    /// let mut tags = Vec::new();
    /// let orders = stream::iter([Attach::new("a", sink::drain()).tag(7)]);
    /// let demux = stream::iter([1]).demux_by(|_| "a", orders).admit(|to, _| {
    ///     tags.push(to.tag);
    ///     true
    /// });
    /// block_on(demux);
    /// assert_eq!(tags, [7]);
    /// ```
    pub fn tag(mut self, tag: u64) -> Self {
        self.terms.tag = tag;
        self
    }

    /// Sets the number of items that may be queued for this sink while it is not ready.
    ///
    /// The default is set by [`Demux::buffer`](crate::Demux::buffer). At most `u32::MAX` items are
    /// queued. Under [`DropNewest`](Overflow::DropNewest) and
    /// [`DropOldest`](Overflow::DropOldest), 0 means 1: a sink that is not ready may have reserved
    /// space for the item that it was polled for, and gets that item.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, channel::mpsc, executor::block_on, future, stream};
    /// use stream_demux::{Attach, DemuxStreamExt, Overflow};
    ///
    /// let (sink, received) = mpsc::channel(0); // takes one item before it is read
    /// let attach = Attach::new("a", sink).buffer(2).overflow(Overflow::DropNewest);
    /// let demux = stream::iter(1..=5).demux_by(|_| "a", stream::iter([attach]));
    ///
    /// let (totals, received) = block_on(future::join(demux, received.collect::<Vec<_>>()));
    /// assert_eq!(received, [1, 2, 3]);
    /// assert_eq!(totals.discarded, 2);
    /// ```
    pub fn buffer(mut self, items: usize) -> Self {
        self.terms.buffer = Some(items);
        self
    }

    /// Sets what happens to an item when the queue of this sink is full.
    ///
    /// The default is set by [`Demux::overflow`](crate::Demux::overflow).
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, channel::mpsc, executor::block_on, future, stream};
    /// use stream_demux::{Attach, DemuxStreamExt, Overflow};
    ///
    /// let (sink, received) = mpsc::channel(0); // takes one item before it is read
    /// let attach = Attach::new("a", sink).buffer(2).overflow(Overflow::DropOldest);
    /// let demux = stream::iter(1..=5).demux_by(|_| "a", stream::iter([attach]));
    ///
    /// let (totals, received) = block_on(future::join(demux, received.collect::<Vec<_>>()));
    /// assert_eq!(received, [1, 4, 5]);
    /// assert_eq!(totals.discarded, 2);
    /// ```
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.terms.overflow = Some(overflow);
        self
    }

    /// Ends the attachment after `items` items have been accepted, that is sent or queued.
    ///
    /// The key then becomes free, the sink is sent what is queued, and is closed. The default is
    /// no limit. With `limit(0)` the attachment does not take the key and is closed at once.
    ///
    /// `limit(1)` fits request and response: the response goes to the sink that waits for it, and
    /// a late second response is unmatched instead of reaching another recipient.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, channel::mpsc, executor::block_on, stream};
    /// use stream_demux::{Attach, DemuxStreamExt};
    ///
    /// let (sink, response) = mpsc::unbounded();
    /// let orders = stream::iter([Attach::new(17, sink).limit(1)]);
    /// let input = stream::iter([(17, "response"), (17, "late")]);
    ///
    /// let totals = block_on(input.demux_by(|response| response.0, orders));
    /// assert_eq!(block_on(response.collect::<Vec<_>>()), [(17, "response")]);
    /// assert_eq!(totals.unmatched, 1);
    /// ```
    pub fn limit(mut self, items: u64) -> Self {
        self.terms.limit = Some(items);
        self
    }

    /// Evicts this attachment ([`Detached::Stalled`](crate::Detached::Stalled)) at the `ticks`th
    /// [tick](Order::Tick) at which something waits for its sink (an item, a flush or a close) and
    /// nothing has moved since the wait began, instead of the
    /// [default of the demux](crate::Demux::stall_timeout). 0 means no time-out.
    ///
    /// It also applies while the attachment leaves: a graceful leave with a deadline. What was
    /// queued is discarded as [`Discarded::Evicted`](crate::Discarded::Evicted).
    ///
    /// The sink has stalled while the operation that it answered with `Pending` has not completed
    /// and its waker has not fired. A sink that only wakes itself has stalled too; one that waits
    /// for its turn in the demux has not. `ticks` take between `ticks - 1` and `ticks` units of
    /// time, so 1 may be no time at all: use 2 or more.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, channel::mpsc, executor::block_on, stream};
    /// use stream_demux::{Attach, DemuxStreamExt, Order};
    ///
    /// let (sink, _not_read) = mpsc::channel(0); // takes one item
    /// let attach = Attach::new(1, sink).stall_timeout(2);
    /// let (orders, orders_in) = mpsc::unbounded();
    /// orders.unbounded_send(Order::from(attach)).unwrap();
    ///
    /// let mut demux = stream::iter([1, 1, 1]).demux_by(|&n| n, orders_in);
    /// for _second in 0..2 {
    ///     assert!((&mut demux).now_or_never().is_none()); // the second item waits
    ///     orders.unbounded_send(Order::Tick).unwrap();
    /// }
    /// let totals = block_on(demux);
    /// assert_eq!((totals.delivered, totals.discarded, totals.unmatched), (1, 1, 1));
    /// ```
    pub fn stall_timeout(mut self, ticks: u32) -> Self {
        self.terms.stall_timeout = Some(ticks);
        self
    }

    /// Detaches this attachment gracefully ([`Detached::Idle`](crate::Detached::Idle)) at the
    /// `ticks`th [tick](Order::Tick) without an item, instead of the [default of the
    /// demux](crate::Demux::idle_timeout). 0 means no time-out.
    ///
    /// A tick counts if no item was accepted for this attachment since the tick before, nothing
    /// waits for it (queued, held or unflushed), and the input did not have to wait for a sink.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, channel::mpsc, stream};
    /// use stream_demux::{Attach, DemuxStreamExt, Order};
    ///
    /// let (sink, _received) = mpsc::channel::<u32>(1);
    /// let (orders, orders_in) = mpsc::unbounded();
    /// orders.unbounded_send(Attach::new(1, sink).idle_timeout(2).into()).unwrap();
    ///
    /// let mut demux = stream::pending().demux_by(|&n| n, orders_in);
    /// for left in [1, 0] {
    ///     orders.unbounded_send(Order::Tick).unwrap();
    ///     assert!((&mut demux).now_or_never().is_none());
    ///     assert_eq!(demux.len(), left);
    /// }
    /// ```
    pub fn idle_timeout(mut self, ticks: u32) -> Self {
        self.terms.idle_timeout = Some(ticks);
        self
    }

    /// Closes this sink if the key is taken, instead of replacing or joining the attachment there.
    ///
    /// The attachment then ends with [`Detached::Refused`](crate::Detached::Refused).
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, channel::mpsc, executor::block_on, stream};
    /// use stream_demux::{Attach, DemuxStreamExt};
    ///
    /// let (first, firsts) = mpsc::unbounded();
    /// let (second, seconds) = mpsc::unbounded();
    /// let orders =
    ///     stream::iter([Attach::new("a", first), Attach::new("a", second).keep_existing()]);
    ///
    /// block_on(stream::iter([1, 2]).demux_by(|_| "a", orders));
    /// assert_eq!(block_on(firsts.collect::<Vec<_>>()), [1, 2]);
    /// assert_eq!(block_on(seconds.collect::<Vec<_>>()), []);
    /// ```
    pub fn keep_existing(mut self) -> Self {
        self.terms.keep_existing = true;
        self
    }

    /// Also sends this sink the items whose key is not attached, on the terms of this attachment.
    ///
    /// Such items do not count as unmatched. Only the last attachment with this term gets them.
    /// When it leaves, they are unmatched again: an earlier attachment does not take its place.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, channel::mpsc, executor::block_on, stream};
    /// use stream_demux::{Attach, DemuxStreamExt};
    ///
    /// let (sink, received) = mpsc::unbounded();
    /// let orders = stream::iter([Attach::new(1, sink).catch_all()]);
    ///
    /// let totals = block_on(stream::iter(1..=3).demux_by(|&n| n, orders));
    /// assert_eq!(block_on(received.collect::<Vec<_>>()), [1, 2, 3]);
    /// assert_eq!(totals.unmatched, 0);
    /// ```
    pub fn catch_all(mut self) -> Self {
        self.terms.catch_all = true;
        self
    }

    /// Ties this attachment to `lease`: when the lease is dropped, the attachment is evicted.
    ///
    /// An attachment may have several leases. Keep the lease: `leased(&mut Lease::new())` drops it
    /// at once, and the attachment never receives anything.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{executor::block_on, sink, stream};
    /// use stream_demux::{Attach, DemuxStreamExt, Lease};
    ///
    /// let mut lease = Lease::new();
    /// let orders = stream::iter([Attach::new("a", sink::drain()).leased(&mut lease)]);
    /// drop(lease); // before the order is applied, so the attachment never takes its key
    ///
    /// let totals = block_on(stream::iter([1]).demux_by(|_| "a", orders));
    /// assert_eq!((totals.unmatched, totals.detached), (1, 1));
    /// ```
    pub fn leased(mut self, lease: &mut Lease) -> Self {
        lease.hold(&mut self.claim);
        self
    }
}

/// Clones the key, the sink and the terms. The clone has no lease, even if that of the original has
/// ended.
impl<K: Clone, S: Clone> Clone for Attach<K, S> {
    fn clone(&self) -> Self {
        let Self { key, sink, terms, claim: _ } = self;
        Self { key: key.clone(), sink: sink.clone(), terms: *terms, claim: None }
    }
}

impl<K: fmt::Debug, S> fmt::Debug for Attach<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, sink: _, terms, claim } = self;
        f.debug_struct("Attach")
            .field("key", key)
            .field("terms", terms)
            .field("leased", &claim.is_some())
            .finish_non_exhaustive()
    }
}
