//! What the orders stream says: [`Order`], [`Attach`] and its terms; what can be attached.

use alloc::sync::Arc;
use core::fmt;

use futures_sink::Sink;

use crate::lease::{Claim, Lease};

/// An order to a running [`Demux`](crate::Demux): one item of its orders stream.
///
/// Orders come into force in the order in which they are read, and one that was ready before the
/// input returned an item is applied before that item is routed.
///
/// # Examples
///
/// ```
/// use futures::sink;
/// use stream_demux::{Attach, Order};
///
/// # type Sink = futures::sink::Drain<u32>;
/// let plain: Order<&str, Sink> = ("key", sink::drain()).into();
/// let with_terms: Order<&str, Sink> = Attach::new("key", sink::drain()).buffer(16).into();
/// let no_longer: Order<&str, Sink> = Order::Detach("key");
/// ```
#[non_exhaustive]
pub enum Order<K, S> {
    /// From now on items with this key go to this sink, on these terms.
    Attach(Attach<K, S>),
    /// The key is no longer wanted. Graceful: its sinks get no new items, are sent what is queued for
    /// them, and are closed. Does nothing for an unknown key, nor to sinks that are leaving already.
    Detach(K),
    /// The key is no longer wanted, now: what is queued is discarded, the sinks are dropped without
    /// being flushed or closed, also those of this key that were still draining or closing. Does
    /// nothing for an unknown key.
    Evict(K),
    /// One unit of time has passed, for attachments that have a
    /// [`stall_timeout`](Attach::stall_timeout) or an [`idle_timeout`](Attach::idle_timeout), and for
    /// [`linger`](crate::Demux::linger). The unit is yours: merge a ticker into the orders. See
    /// [Time](crate#time).
    ///
    /// Ticks that are read in one turn count as one. A tick comes to the attachments one by one, each
    /// costs one of the budget, and orders and items go on meanwhile; another tick that is read before
    /// the last of them had its own comes to them all after that, together with those that follow.
    Tick,
    /// Reads no more of the input, as if it had ended: queues drain, sinks are closed, the future
    /// completes. An item that was read already keeps its place.
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

/// What an orders stream may yield: `(key, sink)`, [`Attach`] or [`Order`].
///
/// Implement it for a type of your own to spare a `map` on the orders stream.
///
/// # Examples
///
/// ```
/// use stream_demux::{IntoOrder, Order};
///
/// /// A subscriber goes by its name.
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
    /// The key of the items that the order speaks of.
    type Key;
    /// The sink that it may attach.
    type Sink;
    /// The order itself.
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

/// A sink that items `V` can be sent to: any `Sink<V> + Unpin`.
///
/// Implemented for all of them; it exists so that the compiler says something useful about the others.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be attached to a stream of `{V}`",
    label = "a sink must implement `Sink<{V}>` and `Unpin`",
    note = "a sink that is not `Unpin` is attached as `Box::pin(sink)`",
    note = "a `tokio::sync::mpsc::Sender` is no `Sink`: attach `tokio_util::sync::PollSender::new(sender)`"
)]
pub trait Attachable<V>: Sink<V> + Unpin {}

// Without this rustc speaks of the bound that is not met, in words that fill a screen.
#[diagnostic::do_not_recommend]
impl<V, S: Sink<V> + Unpin + ?Sized> Attachable<V> for S {}

/// What happens to an item whose sink is not ready and whose queue is full.
///
/// # Examples
///
/// ```
/// # use futures::sink::drain;
/// use stream_demux::{Attach, Overflow};
///
/// # let sink = drain::<u32>();
/// // A slow viewer sees the latest 32 items, with gaps, and delays nobody.
/// let viewer = Attach::new("prices", sink).buffer(32).overflow(Overflow::DropOldest);
/// # let _ = viewer;
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overflow {
    /// The item is held and the input is not read on until the sink takes something, leaves or fails.
    /// Nothing is lost, and one slow sink holds back the items of all others: backpressure.
    #[default]
    Wait,
    /// This item is discarded. The queue has at least one place, also with
    /// [`buffer`](Attach::buffer)`(0)`.
    DropNewest,
    /// The head of the queue is discarded, and this item queued. The queue has at least one place, also
    /// with [`buffer`](Attach::buffer)`(0)`: with one place the sink gets the latest value.
    DropOldest,
    /// The attachment is ended: its queue and this item are discarded, its sink is dropped.
    Evict,
    /// This item takes the place of the first waiting one that it
    /// [supersedes](crate::Hooks::supersedes), which is discarded
    /// ([`Discarded::Conflated`](crate::Discarded::Conflated)): the latest value instead of the oldest.
    ///
    /// It does so whenever it would join a queue that is not empty, full or not. By default an item
    /// supersedes any other, so that one item waits at most. An item that supersedes none is queued, and
    /// if the queue is full, the head is discarded as under `DropOldest`. The queue has at least one place,
    /// also with [`buffer`](Attach::buffer)`(0)`. An item that takes the place of another does not count
    /// towards a [`limit`](Attach::limit), and is sent before items that came before it, if those wait
    /// behind that place.
    Conflate,
}

/// An order to attach a sink under a key, and its terms.
///
/// On a taken key it replaces the attachment that is there: what was queued for the old sink goes to
/// the new one, in order, and the old sink is flushed and closed in the background. With
/// [`multicast`](crate::Demux::multicast) it joins instead.
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
    /// Attaches `sink` under `key`, on the default terms of the demux.
    pub fn new(key: K, sink: S) -> Self {
        Self { key, sink, terms: Terms::default(), claim: None }
    }

    /// A number of yours, 0 unless set, that every hook gets with the key: it tells the recipients of
    /// one key apart.
    pub fn tag(mut self, tag: u64) -> Self {
        self.terms.tag = tag;
        self
    }

    /// How many items may wait for this sink, instead of the
    /// [default of the demux](crate::Demux::buffer). At most `u32::MAX` are queued.
    ///
    /// 0 means 1 under [`DropNewest`](Overflow::DropNewest) and [`DropOldest`](Overflow::DropOldest): a sink
    /// that is not ready may have reserved something for the item that it was polled for, and gets that
    /// item.
    pub fn buffer(mut self, items: usize) -> Self {
        self.terms.buffer = Some(items);
        self
    }

    /// What happens when the queue is full, instead of the
    /// [default of the demux](crate::Demux::overflow).
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.terms.overflow = Some(overflow);
        self
    }

    /// Accepts `items` items, sent or queued; then the key is free, and the sink is sent what is
    /// queued and closed.
    ///
    /// `limit(1)` is the request/response case: an answer goes to whoever waits for it, and a late
    /// second one is unmatched, never somebody else's. With `limit(0)` the attachment takes no key and
    /// is closed at once.
    pub fn limit(mut self, items: u64) -> Self {
        self.terms.limit = Some(items);
        self
    }

    /// Evicts this attachment ([`Detached::Stalled`](crate::Detached::Stalled)) at the `ticks`th
    /// [tick](Order::Tick) at which something waits for its sink (an item, a flush or a close) and
    /// nothing has moved since the wait began, instead of the
    /// [default of the demux](crate::Demux::stall_timeout). 0 means no time-out.
    ///
    /// It also applies while the attachment leaves: a graceful leave with a deadline. What was queued is
    /// discarded as [`Discarded::Evicted`](crate::Discarded::Evicted).
    ///
    /// The sink has stalled while the operation that it answered with `Pending` has not completed and its
    /// waker has not fired. A sink that only wakes itself has stalled too; one that waits for its turn in
    /// the demux has not. `ticks` take between `ticks - 1` and `ticks` units of time, so 1 may be no
    /// time at all: use 2 or more.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, channel::mpsc, executor::block_on, stream};
    /// use stream_demux::{Attach, DemuxStreamExt, Order};
    ///
    /// let (sink, _not_read) = mpsc::channel(0); // takes one item
    /// let attach = Attach::new(1, sink).stall_timeout(2);
    /// let (orders, orders_in) = mpsc::unbounded();
    /// orders.unbounded_send(Order::from(attach)).unwrap();
    ///
    /// let mut demux = stream::iter([1, 1, 1]).demux_by(|&n| n, orders_in);
    /// # use core::{future::poll_fn, task::Poll};
    /// # use futures::FutureExt;
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

    /// Detaches this attachment gracefully ([`Detached::Idle`](crate::Detached::Idle)) at the `ticks`th
    /// [tick](Order::Tick) without an item, instead of the
    /// [default of the demux](crate::Demux::idle_timeout). 0 means no time-out.
    ///
    /// A tick counts if no item was accepted for this attachment since the tick before, nothing waits
    /// for it (queued, held or unflushed), and the input did not have to wait for a sink.
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

    /// On a taken key, closes this sink ([`Detached::Refused`](crate::Detached::Refused)) instead of
    /// replacing, or joining, what is there.
    pub fn keep_existing(mut self) -> Self {
        self.terms.keep_existing = true;
        self
    }

    /// This attachment also receives the items that match no key, on its own terms.
    ///
    /// Such items are delivered, not unmatched. The last attachment with this term counts; when it
    /// leaves, unmatched items are unmatched again: an earlier one does not come back.
    pub fn catch_all(mut self) -> Self {
        self.terms.catch_all = true;
        self
    }

    /// Lets `lease` hold this attachment: when the lease is dropped, the attachment is evicted. An
    /// attachment may be leased more than once.
    ///
    /// Keep the lease: `leased(&mut Lease::new())` drops it at once, and the attachment never receives.
    pub fn leased(mut self, lease: &mut Lease) -> Self {
        lease.hold(&mut self.claim);
        self
    }
}

/// Clones the key, the sink and the terms. The clone has no lease, even if that of the original has ended.
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
