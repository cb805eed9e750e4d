//! The items of an orders stream: [`Order`] and [`Attach`]; and what can be attached.

mod attach;

use core::fmt;

use futures_core::Stream;
use futures_sink::Sink;

pub use attach::Attach;
pub(crate) use attach::Terms;

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
    /// Detaches all sinks of this key gracefully. To detach a single attachment, and never its
    /// successor, use [`Lease::detach`](crate::Lease::detach).
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
    /// Says that one unit of time has passed.
    ///
    /// Ticks are counted by [`stall_timeout`](Attach::stall_timeout),
    /// [`idle_timeout`](Attach::idle_timeout) and [`linger`](crate::Demux::linger). The length of
    /// the unit is up to you: merge a ticker into the orders, as under
    /// [Time](crate::guide::contract#time).
    ///
    /// Ticks that are read in one turn count as one. A tick is applied to the attachments that have
    /// time-outs one after the other, each for one unit of the budget; orders and items go on
    /// meanwhile. Ticks that are read before the last one was applied to all of them count as one,
    /// which is applied afterwards.
    Tick,
    /// Stops reading the input, as if it had ended.
    ///
    /// The queues drain, the sinks are closed, and the future completes. An item that was already
    /// read is still routed.
    Finish,
    /// Ends everything at once.
    ///
    /// The input is not read again. Items that wait are discarded
    /// ([`Discarded::Evicted`](crate::Discarded::Evicted)), all sinks are dropped without being
    /// flushed or closed ([`Detached::Evicted`](crate::Detached::Evicted)), all hooks are called,
    /// and the future completes with its totals. An item that was read and not yet routed is
    /// unmatched; of one on its way through a group, the members that it has not reached get no
    /// copy. Orders and leases that come later close nothing: what they attach or detach is
    /// evicted. Send this after [`Finish`](Self::Finish), or after the end of the input, if a
    /// sink does not close in time; [`Demux::leaving`](crate::Demux::leaving) tells which.
    Abort,
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
            Self::Abort => Self::Abort,
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
            Self::Abort => f.write_str("Abort"),
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
    message = "`{Self}` is not an order",
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

/// A stream of orders: any `Stream`.
///
/// Implemented for every stream. The trait exists so that the compiler can explain what to do with
/// a type that is not a stream.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a stream of orders",
    label = "orders must come from a `Stream`",
    note = "a tokio `Receiver` is wrapped: `tokio_stream::wrappers::ReceiverStream::new(receiver)`",
    note = "a `Vec` or an iterator becomes a stream by `futures::stream::iter(orders)`"
)]
pub trait Orders: Stream<Item = Self::Order> {
    /// What the stream yields: something that [becomes an order](IntoOrder).
    type Order;
}

// Without this rustc lists types that implement `Stream`, none of which is meant.
#[diagnostic::do_not_recommend]
impl<O: Stream + ?Sized> Orders for O {
    type Order = O::Item;
}

/// A sink for items of type `V`: any `Sink<V> + Unpin`.
///
/// Implemented for all such types. The trait exists so that the compiler can explain why another
/// type cannot be attached.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be attached to a stream of `{V}`",
    label = "a sink must implement `Sink<{V}>` and `Unpin`",
    note = "the items must have the type that the sink takes; use `SinkExt::with` to convert them",
    note = "a sink that is not `Unpin` is attached as `Box::pin(sink)`",
    note = "sinks of several types are attached as `Pin<Box<dyn Sink<{V}, Error = E>>>`",
    note = "a `tokio::sync::mpsc::Sender` is not a `Sink`: attach `PollSender` of `tokio-util`"
)]
pub trait Attachable<V>: Sink<V> + Unpin {}

// Without this attribute rustc reports the unmet bound of this impl, which fills a screen.
#[diagnostic::do_not_recommend]
impl<V, S: Sink<V> + Unpin + ?Sized> Attachable<V> for S {}

/// What happens to an item when its sink is not ready and the queue of that sink is full.
///
/// A policy that discards is applied in the turn after that, if the sink is still not ready: see
/// [When a policy acts](crate::guide::contract#when-a-policy-acts).
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
    /// Stops reading the input until the sink takes an item, leaves or fails.
    ///
    /// This is backpressure: nothing is lost, but one slow sink holds back the items of all
    /// others, and a sink that is never read holds them back for good. A
    /// [`buffer`](Attach::buffer) only delays that; see
    /// [Head-of-line blocking](crate#head-of-line-blocking).
    #[default]
    Wait,
    /// Discards the item.
    ///
    /// The queue has room for 64 items by default, and for at least one, even with
    /// [`buffer`](Attach::buffer)`(0)`.
    DropNewest,
    /// Discards the oldest queued item and keeps this one.
    ///
    /// The queue has room for 64 items by default, and for at least one, even with
    /// [`buffer`](Attach::buffer)`(0)`. With room for one, the sink gets the latest item.
    DropOldest,
    /// Ends the attachment: its queue and this item are discarded, and its sink is dropped.
    ///
    /// The queue has room for 64 items by default. A reader that is away for a moment, because it
    /// runs on another thread, looks like one that is stuck: give the sink a buffer for what comes
    /// in that time, or use [`stall_timeout`](Attach::stall_timeout) instead.
    Evict,
    /// Discards the oldest queued item that this one [supersedes](crate::Hooks::supersedes)
    /// ([`Discarded::Conflated`](crate::Discarded::Conflated)), and queues this one in its place.
    ///
    /// This applies whenever the item would join a queue that is not empty, even if there is room.
    /// By default an item supersedes any other, so that at most one item waits. An item that
    /// supersedes none is queued; if the queue is full, the oldest item is discarded, as under
    /// `DropOldest`. The queue has room for at least one item, even with
    /// [`buffer`](Attach::buffer)`(0)`. An item that takes the place of another does not count
    /// towards a [`limit`](Attach::limit). It may be sent before older items that are queued behind
    /// that place.
    Conflate,
}

impl Overflow {
    /// How many items may be queued if no number is set.
    ///
    /// With none, a healthy sink would lose items: a reader on another thread is away for a time
    /// slice now and then, and a channel of 16 is full in less than a microsecond. 64 items cover
    /// what one turn of tokio's cooperative budget sends, and take little memory if they ever wait.
    pub(crate) fn default_buffer(self) -> usize {
        match self {
            Self::Wait => 0,
            Self::Conflate => 1,
            Self::DropNewest | Self::DropOldest | Self::Evict => 64,
        }
    }

    /// How many items may be queued at least. A policy that drops items needs room for one: the
    /// sink may have reserved something when it was polled for an item, and must get an item.
    pub(crate) fn least_buffer(self) -> usize {
        usize::from(!matches!(self, Self::Wait | Self::Evict))
    }
}
