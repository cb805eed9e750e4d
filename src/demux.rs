//! [`Demux`]: its parts. `settings` and `closures` prepare one, `poll` runs it, and `inspect` looks
//! at it.

mod closures;
mod ext;
mod inspect;
mod poll;
mod settings;

pub use ext::DemuxStreamExt;

use core::fmt;

use futures_core::{FusedFuture, Stream};
use futures_sink::Sink;
use pin_project_lite::pin_project;

use crate::hooks::Callbacks;
use crate::key::DefaultHashBuilder;
use crate::order::{IntoOrder, Order, Orders};
use crate::router::Router;
use crate::router::budget::Budget;

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
    /// describes what it does. It completes with the [`Totals`](crate::Totals) when every sink is
    /// closed after the input has ended or [`Order::Finish`](crate::Order::Finish) was applied.
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
    /// * if an earlier poll has panicked, because a key function, a hook, a sink, a stream, a trait
    ///   of a key or an item, or the waker of the task did: the future can then only be dropped.
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
            .field("totals", &router.totals())
            .finish_non_exhaustive()
    }
}
