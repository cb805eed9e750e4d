//! [`Demux`]: its parts, and the methods that inspect it. `settings` prepares one, `poll` runs it.

mod ext;
mod poll;
mod settings;

pub use ext::DemuxStreamExt;

use core::borrow::Borrow;
use core::fmt;
use core::hash::{BuildHasher, Hash};
use core::pin::Pin;

use futures_core::{FusedFuture, Stream};
use futures_sink::Sink;
use pin_project_lite::pin_project;

use crate::hooks::{Callbacks, Recipient};
use crate::key::DefaultHashBuilder;
use crate::order::{IntoOrder, Order, Orders};
use crate::router::Router;
use crate::router::budget::Budget;
use crate::totals::Totals;

type KeyOf<O> = <<O as Orders>::Order as IntoOrder>::Key;
type SinkOf<O> = <<O as Orders>::Order as IntoOrder>::Sink;
type ErrorOf<O, V> = <SinkOf<O> as Sink<V>>::Error;

/// How much of each kind of work one turn may do, unless [`Demux::budget`] says otherwise.
///
/// It bounds how long other tasks of the thread wait: 1,024 items take 10 to 50 µs if sinks only
/// store them. Tokio's authors recommend 10 to 100 µs between two points at which a task yields
/// ([What is blocking?][blocking]). A short turn costs more than its own few hundred instructions:
/// with a hundred readers, a turn of 128 items wakes each of them for one item. An item to one of
/// 100 bounded channels with live readers takes 68 ns with 128, 52 ns with 512, 44 ns with 1,024
/// and 42 ns with 4,096, and 41 ns in a loop that feeds the channels. Sinks of tokio end a turn
/// earlier: its cooperative budget is 128.
///
/// [blocking]: https://ryhl.io/blog/async-what-is-blocking/
const BUDGET: usize = 1_024;

pin_project! {
    /// A future that splits a stream into many sinks by key.
    ///
    /// [`demux_by`](crate::DemuxStreamExt::demux_by) and
    /// [`demux_by_ref`](crate::DemuxStreamExt::demux_by_ref) create it; [the crate page](crate)
    /// describes what it does. It completes with the [`Totals`] when every sink is closed after
    /// the input has ended or [`Order::Finish`](crate::Order::Finish) was applied.
    ///
    /// # Tasks
    ///
    /// Give a demux a task of its own, for example `tokio::spawn(demux)`. Tokio's channels and
    /// sockets limit how much one poll of a task may do with them; futures that are joined with the
    /// demux in one task use up the same limit. See
    /// [Practical notes](crate::guide::contract#practical-notes).
    ///
    /// To name the type in a struct, see [the guide](crate::guide::production).
    ///
    /// # Cancel safety
    ///
    /// No state is lost between two polls: you can poll `&mut demux` inside a timeout or a
    /// `select!` and poll it again later. You can also move it to another task, if it is `Unpin`
    /// or boxed.
    ///
    /// A demux is `Unpin` if its input and its orders are. If one of them is not, such as a stream
    /// made with an `async` block, rustc says of `&mut demux` that a type "cannot be unpinned". Pin
    /// the demux before, with `let mut demux = std::pin::pin!(demux)`, or with `Box::pin`.
    ///
    /// Dropping the future drops the input, the orders, the sinks and the waiting items. The sinks
    /// are neither flushed nor closed, and no hook is called. To end a demux without losing items
    /// that were read, send [`Order::Finish`](crate::Order::Finish) and let it complete;
    /// [the guide](crate::guide::ending) shows how, with a deadline.
    ///
    /// # Panics
    ///
    /// `poll` panics
    ///
    /// * if the future has completed;
    /// * if a panic in a key function, a hook, a sink or a stream has unwound through an earlier
    ///   poll: the future can then only be dropped.
    ///
    /// If the `Hash` or `Eq` of a key is inconsistent, items may not find their sink, but nothing
    /// panics or is leaked.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{channel::mpsc, executor::block_on, future, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let (items, input) = mpsc::unbounded();
    /// let mut demux = input.demux_by(|&key| key, stream::iter([("a", sink::drain())]));
    /// items.unbounded_send("a").unwrap();
    ///
    /// // The other future completes first. The demux is polled once and not dropped.
    /// block_on(future::select(&mut demux, future::ready(())));
    ///
    /// drop(items);
    /// assert_eq!(block_on(demux).delivered, 1);
    /// ```
    #[must_use = "futures do nothing unless polled"]
    pub struct Demux<St, F, O, H = Callbacks, B = DefaultHashBuilder>
    where
        St: Stream,
        O: Orders,
        O::Order: IntoOrder,
    {
        router: Router<KeyOf<O>, SinkOf<O>, St::Item, H, B>,
        #[pin]
        input: St,
        // `None` once they have ended.
        #[pin]
        orders: Option<O>,
        // An order that was read and is not applied to the end.
        order: Option<Unapplied<KeyOf<O>, SinkOf<O>>>,
        key: F,
        budget: Budget,
        orders_state: OrdersState,
        state: State,
    }
}

/// What is known of the orders stream.
///
/// `Pending` does not always mean that no order was sent. A channel with many senders may fire its
/// waker late, so the stream is polled once more before an item that matches no key is given up. A
/// channel of tokio also returns `Pending` when the cooperative budget of the task is used up, and
/// wakes the task late: such an item then waits for the next turn, which polls the stream first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OrdersState {
    /// It is to be polled. If it returns `Pending`, it has no order.
    Unpolled,
    /// It returned an order when it was polled last, and may have more.
    Unread,
    /// It returned `Pending` in this turn, and may have an order.
    Doubted,
    /// It woke itself and returned `Pending` in the last turn. It may have an order.
    Yielded,
    /// It had nothing when it was polled last, and its waker has not fired since.
    Quiet,
}

impl OrdersState {
    /// An item that may match no key was read since the stream was polled last.
    fn suspect(&mut self) {
        if *self == Self::Quiet {
            *self = Self::Unpolled;
        }
    }
}

/// An order that waits for the budget of another turn.
struct Unapplied<K, S> {
    order: Order<K, S>,
    /// No part of it was applied yet. Reading it has paid for the first part.
    fresh: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// In `poll`. If `poll` finds this, an earlier one has panicked.
    Polling,
    Completed,
}

/// [`DemuxStreamExt`] creates a demux.
impl<St, F, O> Demux<St, F, O>
where
    St: Stream,
    O: Orders,
    O::Order: IntoOrder,
{
    pub(crate) fn new(input: St, key: F, orders: O) -> Self {
        Self {
            router: Router::new(Callbacks::default(), DefaultHashBuilder::default()),
            input,
            orders: Some(orders),
            order: None,
            key,
            budget: Budget::new(BUDGET),
            orders_state: OrdersState::Unpolled,
            state: State::Waiting,
        }
    }
}

/// Methods that inspect a demux, at any time between two polls.
impl<St, F, O, H, B> Demux<St, F, O, H, B>
where
    St: Stream,
    O: Orders,
    O::Order: IntoOrder,
{
    /// Returns the counts of what the demux has done so far.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, channel::mpsc, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let (items, input) = mpsc::unbounded();
    /// let mut demux = input.demux_by(|&key| key, stream::iter([("a", sink::drain())]));
    /// items.unbounded_send("a").unwrap();
    /// items.unbounded_send("b").unwrap();
    ///
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert_eq!((demux.totals().delivered, demux.totals().unmatched), (1, 1));
    /// ```
    pub fn totals(&self) -> Totals {
        self.router.ledger().totals()
    }

    /// Returns the number of attachments that are receiving.
    ///
    /// Attachments that are draining or closing do not count. Orders that the demux has not read
    /// do not count either.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let orders = stream::iter([("a", sink::drain()), ("b", sink::drain())]);
    /// let mut demux = stream::pending::<&str>().demux_by(|&key| key, orders);
    /// assert_eq!(demux.len(), 0);
    ///
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert_eq!(demux.len(), 2);
    /// ```
    pub fn len(&self) -> usize {
        self.router.slots().len()
    }

    /// Returns `true` if no attachment is receiving.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let orders = stream::iter([("a", sink::drain())]);
    /// let mut demux = stream::pending::<&str>().demux_by(|&key| key, orders);
    /// assert!(demux.is_empty());
    ///
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert!(!demux.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of attachments that no longer receive and are not closed yet: they are
    /// being drained, flushed or closed.
    ///
    /// # Examples
    ///
    /// Ends a rolling restart when the last old connection is closed:
    ///
    /// ```
    /// use core::future::poll_fn;
    /// use core::task::Poll;
    /// use futures::{FutureExt, channel::mpsc, executor::block_on, stream};
    /// use stream_demux::{DemuxStreamExt, Order};
    ///
    /// let (orders, orders_in) = mpsc::unbounded::<Order<u32, mpsc::Sender<u32>>>();
    /// let (sink, received) = mpsc::channel(1);
    /// let mut demux = stream::pending().demux_by(|&n| n, orders_in);
    ///
    /// orders.unbounded_send((1, sink).into()).unwrap();
    /// orders.unbounded_send(Order::Detach(1)).unwrap();
    /// block_on(poll_fn(|cx| {
    ///     let _ = demux.poll_unpin(cx);
    ///     if demux.draining() == 0 { Poll::Ready(()) } else { Poll::Pending }
    /// }));
    /// assert_eq!((demux.len(), demux.totals().detached), (0, 1));
    /// # drop(received);
    /// ```
    pub fn draining(&self) -> usize {
        self.router.slots().leaving()
    }

    /// Returns the attachments that receive items now, in no particular order.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, StreamExt, channel::mpsc, stream};
    /// use stream_demux::{Attach, DemuxStreamExt};
    ///
    /// let (sink, _received) = mpsc::channel::<u32>(1);
    /// let orders = stream::iter([Attach::new(7, sink).tag(42)]).chain(stream::pending());
    /// let mut demux = stream::pending().demux_by(|&n| n, orders);
    /// assert!((&mut demux).now_or_never().is_none());
    ///
    /// let recipients: Vec<_> = demux.recipients().map(|to| (*to.key, to.tag)).collect();
    /// assert_eq!(recipients, [(7, 42)]);
    /// ```
    pub fn recipients(&self) -> impl Iterator<Item = Recipient<'_, KeyOf<O>>> {
        self.router.slots().recipients(true)
    }

    /// Returns the attachments that no longer receive items and are not closed yet, in no
    /// particular order. Their number is [`draining`](Self::draining).
    ///
    /// If the future does not complete after the end of the input, these are the sinks that it
    /// waits for.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, channel::mpsc, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let (sink, _not_read) = mpsc::channel(0); // takes one item
    /// let mut demux = stream::iter([1, 1]).demux_by(|&n| n, stream::iter([(1, sink)])).buffer(8);
    /// while (&mut demux).now_or_never().is_none() && demux.len() > 0 {}
    ///
    /// let hangs: Vec<_> = demux.leaving().map(|to| *to.key).collect();
    /// assert_eq!(hangs, [1]);
    /// ```
    pub fn leaving(&self) -> impl Iterator<Item = Recipient<'_, KeyOf<O>>> {
        self.router.slots().recipients(false)
    }

    /// Returns the number of items that are queued for the receiving attachments of a key.
    ///
    /// Use it to pause a source before its queue is full. Items that a sink has taken do not count.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, StreamExt, channel::mpsc, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let (sink, _not_read) = mpsc::channel(0); // takes one item
    /// let input = stream::iter([1, 1, 1]).chain(stream::pending());
    /// let mut demux = input.demux_by(|&n| n, stream::iter([(1, sink)])).buffer(8);
    ///
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert_eq!((demux.queue_len(&1), demux.queue_len(&2)), (2, 0));
    /// ```
    pub fn queue_len<Q>(&self, key: &Q) -> usize
    where
        KeyOf<O>: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        B: BuildHasher,
    {
        self.router.slots().queued_under(key)
    }

    /// Returns a reference to the hooks. See [`hooks_mut`](Self::hooks_mut) for an example.
    pub fn hooks_ref(&self) -> &H {
        self.router.ledger().hooks()
    }

    /// Returns a mutable reference to the hooks.
    ///
    /// # Examples
    ///
    /// Reads what the hooks have counted between two polls, and starts anew:
    ///
    /// ```
    /// use futures::{FutureExt, StreamExt, channel::mpsc, stream};
    /// use stream_demux::{DemuxStreamExt, Hooks};
    ///
    /// #[derive(Default)]
    /// struct Unmatched(u64);
    ///
    /// impl<K, V, E> Hooks<K, V, E> for Unmatched {
    ///     fn unmatched(&mut self, _item: V) {
    ///         self.0 += 1;
    ///     }
    /// }
    ///
    /// let orders = stream::pending::<(u32, mpsc::Sender<u32>)>();
    /// let input = stream::iter([1, 2, 3]).chain(stream::pending());
    /// let mut demux = input.demux_by(|&n| n, orders).hooks(Unmatched::default());
    /// assert!((&mut demux).now_or_never().is_none());
    ///
    /// assert_eq!(demux.hooks_ref().0, 3);
    /// assert_eq!(std::mem::take(&mut demux.hooks_mut().0), 3);
    /// ```
    pub fn hooks_mut(&mut self) -> &mut H {
        self.router.hooks_mut()
    }

    /// Returns `true` if an attachment with this key is receiving.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let orders = stream::iter([("a", sink::drain())]);
    /// let mut demux = stream::pending::<&str>().demux_by(|&key| key, orders);
    ///
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert!(demux.contains_key("a"));
    /// assert!(!demux.contains_key("b"));
    /// ```
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        KeyOf<O>: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        B: BuildHasher,
    {
        self.router.slots().receiver(key).is_some()
    }

    /// Returns the recipient that the input waits for, if it is blocked.
    ///
    /// This is the attachment that was last passed to [`Hooks::blocked`](crate::Hooks::blocked),
    /// unless [`Hooks::unblocked`](crate::Hooks::unblocked) was called since.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, channel::mpsc, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let (sink, _received) = mpsc::channel(0); // takes one item before it is read
    /// let mut demux = stream::iter([1, 2]).demux_by(|_| "a", stream::iter([("a", sink)]));
    ///
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert_eq!(demux.blocked_on().map(|to| *to.key), Some("a"));
    /// ```
    pub fn blocked_on(&self) -> Option<Recipient<'_, KeyOf<O>>> {
        self.router.blocked_on()
    }

    /// Returns a reference to the input.
    ///
    /// The demux keeps the input until the future is dropped, even after the input has ended.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{Stream, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let orders = stream::iter([("a", sink::drain())]);
    /// let demux = stream::iter([1, 2, 3]).demux_by(|_| "a", orders);
    /// assert_eq!(demux.get_ref().size_hint(), (3, Some(3)));
    /// ```
    pub fn get_ref(&self) -> &St {
        &self.input
    }

    /// Returns a mutable reference to the input.
    ///
    /// Items taken here are neither routed nor counted. If you poll the input here, poll the demux
    /// afterwards; otherwise the next item may not wake it.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{channel::mpsc, executor::block_on, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let (items, input) = mpsc::unbounded();
    /// let mut demux = input.demux_by(|&key| key, stream::iter([("a", sink::drain())]));
    /// items.unbounded_send("a").unwrap();
    ///
    /// demux.get_mut().close(); // what was sent is still routed
    /// assert_eq!(block_on(demux).delivered, 1);
    /// ```
    pub fn get_mut(&mut self) -> &mut St {
        &mut self.input
    }

    /// Returns a pinned mutable reference to the input.
    ///
    /// Items taken here are neither routed nor counted. If you poll the input here, poll the demux
    /// afterwards; otherwise the next item may not wake it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::pin::pin;
    ///
    /// use futures::{StreamExt, executor::block_on, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let orders = stream::iter([("a", sink::drain())]);
    /// let mut demux = pin!(stream::iter([1, 2, 3]).demux_by(|_| "a", orders));
    ///
    /// block_on(demux.as_mut().get_pin_mut().next()); // skips an item
    /// assert_eq!(block_on(demux).received, 2);
    /// ```
    pub fn get_pin_mut(self: Pin<&mut Self>) -> Pin<&mut St> {
        self.project().input
    }
}

impl<St, F, O, H, B> FusedFuture for Demux<St, F, O, H, B>
where
    Self: Future,
    St: Stream,
    O: Orders,
    O::Order: IntoOrder,
{
    fn is_terminated(&self) -> bool {
        self.state == State::Completed
    }
}

impl<St, F, O, H, B> fmt::Debug for Demux<St, F, O, H, B>
where
    St: Stream,
    O: Orders,
    O::Order: IntoOrder,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { router, input: _, orders, order: _, key: _, budget, orders_state, state } = self;
        f.debug_struct("Demux")
            .field("state", state)
            .field("input_is_over", &router.is_finished())
            .field("orders", &orders.as_ref().map(|_| orders_state))
            .field("receiving", &router.slots().len())
            .field("leaving", &router.slots().leaving())
            .field("is_blocked", &router.blocked_on().is_some())
            .field("budget", &budget.limit())
            .field("totals", &router.ledger().totals())
            .finish_non_exhaustive()
    }
}
