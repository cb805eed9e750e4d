//! [`Attach`]: the order to attach a sink, and its terms.

use alloc::sync::Arc;
use core::fmt;

use super::Overflow;
use crate::lease::{Claim, Lease};

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

impl Terms {
    /// These terms, and the defaults of the demux for what was not set.
    pub(crate) fn or(self, defaults: Self) -> Self {
        Self {
            buffer: self.buffer.or(defaults.buffer),
            overflow: self.overflow.or(defaults.overflow),
            stall_timeout: self.stall_timeout.or(defaults.stall_timeout),
            idle_timeout: self.idle_timeout.or(defaults.idle_timeout),
            ..self
        }
    }
}

impl<K, S> Attach<K, S> {
    /// Creates an order to attach `sink` under `key`, on the default terms of the demux.
    ///
    /// * The sink is closed or dropped when the attachment ends; it is not returned.
    /// * If it is a bounded channel, read the receiver while the demux runs. A full channel that is
    ///   not read blocks the input, unless [`overflow`](Self::overflow) says otherwise.
    /// * A channel whose receiver is dropped is noticed with the next item for it. To end the
    ///   attachment at once, use a [lease](Self::leased).
    /// * Clones of a sender that are attached at the same time send to one channel: their items
    ///   interleave.
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

    /// Sets a number that hooks get as [`Recipient::tag`](crate::Recipient::tag); the default is 0.
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
    /// The default is set by [`Demux::buffer`](crate::Demux::buffer); without that, it is 0 under
    /// [`Wait`](Overflow::Wait), 1 under [`Conflate`](Overflow::Conflate), and 64 under the other
    /// policies. The largest number is `u32::MAX`. Under [`DropNewest`](Overflow::DropNewest),
    /// [`DropOldest`](Overflow::DropOldest) and `Conflate`, 0 means 1: a sink that is not ready may
    /// have reserved space for the item that it was polled for, and gets an item.
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
    /// // 1 is in the channel, 2 and 3 in the buffer. The receiver takes 1, so there is room for 4.
    /// assert_eq!(received, [1, 2, 3, 4]);
    /// assert_eq!(totals.discarded, 1);
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
    /// assert_eq!(received, [1, 2, 4, 5]); // 1 is read before the sink is found to be full
    /// assert_eq!(totals.discarded, 1);
    /// ```
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.terms.overflow = Some(overflow);
        self
    }

    /// Ends the attachment after `items` items have been accepted, that is sent or queued.
    ///
    /// Items that wait [beyond the buffer](crate::guide::contract#when-a-policy-acts) do not count
    /// yet. The key then becomes free, the sink is sent what is queued, and is closed. The default
    /// is no limit. With `limit(0)` the attachment does not take the key and is closed at once.
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

    /// Evicts this attachment if its sink makes no progress for this many
    /// [ticks](crate::Order::Tick) while an item, a flush or a close is pending.
    ///
    /// The attachment ends with
    /// [`Detached::Stalled`](crate::Detached::Stalled), and its queue is discarded with
    /// [`Discarded::Evicted`](crate::Discarded::Evicted). The default is set by
    /// [`Demux::stall_timeout`](crate::Demux::stall_timeout); 0 means no time-out. The time-out
    /// also applies while the attachment is leaving, so that a graceful leave ends. Nothing expires
    /// unless you send ticks, as under [Time](crate::guide::contract#time).
    ///
    /// A tick counts while an operation of the sink is pending and its waker has not fired, or has
    /// fired only while the sink was polled. The count starts anew when an operation completes, but
    /// not when another operation becomes pending: if a sink is not ready, then is replaced, and
    /// its close is pending, too, all these ticks count. `n` ticks take between `n - 1` and `n`
    /// units of time, so 1 may be no time at all: use 2 or more.
    ///
    /// Under [`Overflow::Wait`], the time-outs of several stuck sinks add up: while the input waits
    /// for the first one, no item for the others is read, so nothing is pending at them.
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

    /// Detaches this attachment gracefully after this many [ticks](crate::Order::Tick) without an
    /// item.
    ///
    /// The attachment ends with [`Detached::Idle`](crate::Detached::Idle). The default is set by
    /// [`Demux::idle_timeout`](crate::Demux::idle_timeout); 0 means no time-out. Nothing expires
    /// unless you send ticks, as under [Time](crate::guide::contract#time).
    ///
    /// A tick counts if no item is queued or unflushed for this attachment, and if, since the
    /// previous tick, its sink took no item and completed no flush, and the input did not wait for
    /// any sink. The first tick after attaching may not count. An item or a completed flush starts
    /// the count anew.
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
