//! The poll loop.
//!
//! Read [`Future::poll`] as a table of contents: orders, sinks, items, and the flushes that are due
//! before the task may sleep. The [`Router`](crate::router::Router) has the details.

use core::hash::{BuildHasher, Hash};
use core::pin::Pin;
use core::task::{Context, Poll};

use futures_core::Stream;

use super::{Demux, ErrorOf, KeyOf, OrdersState, SinkOf, State, Unapplied};
use crate::hooks::Hooks;
use crate::key::sealed::{AttachOnDemand, FindByKey};
use crate::order::{Attachable, IntoOrder, Order, Orders};
use crate::router::budget::Budget;
use crate::router::{IfUnknown, SlowPath, Unrouted};
use crate::slots::ready::ORDERS;
use crate::totals::Totals;

impl<St, F, O, H, B> Future for Demux<St, F, O, H, B>
where
    St: Stream,
    O: Orders,
    O::Order: IntoOrder<Key: Hash + Eq, Sink: Attachable<St::Item>>,
    F: FindByKey<St::Item, KeyOf<O>> + AttachOnDemand<St::Item, KeyOf<O>, SinkOf<O>>,
    H: Hooks<KeyOf<O>, St::Item, ErrorOf<O, St::Item>>,
    B: BuildHasher,
{
    type Output = Totals;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Totals> {
        let mut turn = self.as_mut().begin();
        self.as_mut().go_on(&mut turn);
        self.as_mut().poll_orders(&mut turn);
        self.as_mut().poll_sinks();
        self.as_mut().poll_input(&mut turn, cx);
        self.as_mut().flush_before_sleep(&turn);
        if let Some(totals) = self.as_mut().complete(&mut turn) {
            return Poll::Ready(totals);
        }
        self.sleep(&turn, cx);
        Poll::Pending
    }
}

/// The state of one call of `poll`.
struct Turn {
    /// No sink is in doubt after those that were have been polled, so items may be read.
    doubts_settled: bool,
    /// No order or ended lease that is known comes before the next item.
    orders_read: bool,
    /// The input has nothing ready.
    is_dry: bool,
    /// How many items and copies had been handled when it began.
    handled: u64,
}

/// What may be read next.
enum Next {
    /// An order, if there is one.
    Order,
    /// An item: no order is left that may have been ready before it.
    Item,
    /// Nothing before the next turn.
    Turn,
}

/// How reading the input ended.
enum Read {
    /// Some items were read; there may be more.
    Some,
    /// An order was ready before the last item, which waits.
    Overtaken,
    /// No more items are to be read in this turn.
    Enough,
    Pending,
    Ended,
}

/// The phases of a turn, in their order.
impl<St, F, O, H, B> Demux<St, F, O, H, B>
where
    St: Stream,
    O: Orders,
    O::Order: IntoOrder<Key: Hash + Eq, Sink: Attachable<St::Item>>,
    F: FindByKey<St::Item, KeyOf<O>> + AttachOnDemand<St::Item, KeyOf<O>, SinkOf<O>>,
    H: Hooks<KeyOf<O>, St::Item, ErrorOf<O, St::Item>>,
    B: BuildHasher,
{
    fn begin(self: Pin<&mut Self>) -> Turn {
        let this = self.project();
        match *this.state {
            State::Waiting => *this.state = State::Polling,
            State::Polling => {
                panic!("`Demux` polled after a panic in a key function, hook, sink or stream")
            }
            State::Completed => panic!("`Demux` polled after completion"),
        }
        if *this.orders_state == OrdersState::Doubted {
            let item_waits = this.router.has_overtaken();
            *this.orders_state =
                if item_waits { OrdersState::Unpolled } else { OrdersState::Quiet };
        }
        this.router.begin_turn();
        this.budget.begin_turn();
        Turn {
            doubts_settled: false,
            orders_read: false,
            is_dry: false,
            handled: this.router.count_handled(),
        }
    }

    /// Goes on with what the turn before has left: polls the sinks in doubt, then offers the item
    /// on its way through a group to the next members.
    fn go_on(self: Pin<&mut Self>, turn: &mut Turn) {
        let this = self.project();
        if !this.router.is_aborted() {
            this.router.settle_doubts(this.budget.limit(), &mut this.budget.items);
            turn.doubts_settled = !this.router.is_in_doubt();
            this.router.continue_walk(&mut this.budget.items);
        }
    }

    /// Ends the attachments whose leases have ended, and applies the orders that are ready.
    ///
    /// Leases are looked at after an order was read and before it is applied, so that a lease that
    /// ended before the order was sent has its effect first. Sets `orders_read` if no ended lease
    /// is left, and no order that may have been ready before the next item.
    fn poll_orders(mut self: Pin<&mut Self>, turn: &mut Turn) {
        turn.orders_read = false;
        loop {
            let this = self.as_mut().project();
            let next = if this.router.ready().has_ended() {
                if this.router.end_leases(this.budget) { Next::Order } else { Next::Turn }
            } else if let Some(Unapplied { order, fresh }) = this.order.take() {
                let rest = this.router.apply(this.key, order, fresh, this.budget);
                *this.order = rest.map(|order| Unapplied { order, fresh: false });
                if this.order.is_none() { Next::Order } else { Next::Turn }
            } else if matches!(this.orders_state, OrdersState::Unpolled | OrdersState::Unread)
                || this.router.ready().signals() & ORDERS != 0
            {
                self.as_mut().read_order()
            } else {
                Next::Item
            };
            match next {
                Next::Order => {}
                Next::Item => {
                    turn.orders_read = true;
                    return;
                }
                Next::Turn => return,
            }
        }
    }

    /// Reads an order, if there is one.
    fn read_order(self: Pin<&mut Self>) -> Next {
        let mut this = self.project();
        let Some(orders) = this.orders.as_mut().as_pin_mut() else {
            // A waker that outlived the stream fired, or an item came.
            this.router.ready().lower_orders();
            *this.orders_state = OrdersState::Quiet;
            return Next::Order;
        };
        if this.budget.orders.is_spent() {
            return Next::Turn;
        }
        let ready = this.router.ready();
        ready.lower_orders();
        match orders.poll_next(&mut Context::from_waker(ready.orders_waker())) {
            Poll::Ready(Some(order)) => {
                *this.orders_state = OrdersState::Unread;
                this.budget.orders.spend();
                let order = order.into_order();
                if !matches!(order, Order::Tick) || this.budget.tick_orders.spend() {
                    *this.order = Some(Unapplied { order, fresh: true });
                }
            }
            Poll::Ready(None) => {
                this.orders.set(None);
                *this.orders_state = OrdersState::Quiet;
            }
            Poll::Pending if ready.signals() & ORDERS == 0 => {
                let is_certain = *this.orders_state == OrdersState::Unpolled;
                *this.orders_state =
                    if is_certain { OrdersState::Quiet } else { OrdersState::Doubted };
            }
            // The stream woke itself, or another thread has just sent an order. It may have yielded
            // although it has one, so items wait for a turn. If it does the same in that turn, they
            // wait no longer. The signal stays up: the next item is read, then the stream polled
            // once more, and an order that was sent before the item is found.
            Poll::Pending => {
                let before = core::mem::replace(this.orders_state, OrdersState::Yielded);
                return if before == OrdersState::Yielded { Next::Item } else { Next::Turn };
            }
        }
        Next::Order
    }

    /// Advances the sinks that were woken, flushes those whose flush is due, applies a tick to the
    /// next time-outs and, after the end of the input, starts to close the next sinks.
    fn poll_sinks(self: Pin<&mut Self>) {
        let this = self.project();
        let router = this.router;
        let limit = this.budget.limit();
        let Budget { sinks, flushes, ticks, closes, .. } = this.budget;
        if !router.is_aborted() {
            router.poll_woken(limit, sinks);
            router.flush_due(limit, flushes);
            router.sweep(ticks, sinks);
        }
        router.close_some(closes, sinks);
    }

    /// Reads the input and routes its items until the input has none, an item has to wait, or the
    /// allowance is spent.
    fn poll_input(mut self: Pin<&mut Self>, turn: &mut Turn, cx: &mut Context<'_>) {
        while turn.doubts_settled && self.as_mut().may_read(turn) {
            match self.as_mut().read(cx) {
                Read::Some => {}
                Read::Overtaken => self.as_mut().poll_orders(turn),
                Read::Enough => return,
                Read::Pending => {
                    turn.is_dry = true;
                    return;
                }
                Read::Ended => {
                    self.project().router.end_input();
                    return;
                }
            }
        }
    }

    /// Routes the item that orders have overtaken, if there is one and items may be routed. Returns
    /// `true` if the next one may be read.
    fn may_read(self: Pin<&mut Self>, turn: &Turn) -> bool {
        let this = self.project();
        if !turn.orders_read || !this.router.may_route() {
            return false;
        }
        if this.router.has_overtaken() {
            let if_unknown = match *this.orders_state {
                OrdersState::Doubted => IfUnknown::Wait,
                _ => IfUnknown::Route,
            };
            this.router.route_overtaken(this.key, if_unknown, &mut this.budget.items);
        }
        this.router.may_route() && !this.router.has_overtaken() && !this.budget.items.is_spent()
    }

    /// Reads and routes as many items as may be read before a flush is due.
    fn read(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Read {
        let this = self.as_mut().project();
        let left = this.budget.items.left();
        let run =
            usize::try_from(this.router.items_before_flush()).map_or(left, |due| due.min(left));
        if run == 0 {
            let limit = this.budget.limit();
            this.router.flush_due(limit, &mut this.budget.flushes);
            return if this.router.must_flush() { Read::Enough } else { Read::Some };
        }
        if this.router.prefers_branchless() {
            self.route::<true>(run, cx)
        } else {
            self.route::<false>(run, cx)
        }
    }

    /// Reads and routes up to `run` items. This is the hot loop. It is a function of its own so
    /// that the compiler keeps its variables in registers.
    #[inline(never)]
    fn route<const BRANCHLESS: bool>(
        mut self: Pin<&mut Self>,
        mut run: usize,
        cx: &mut Context<'_>,
    ) -> Read {
        let mut this = self.as_mut().project();
        let mut count = 0;
        let read = loop {
            if count == run {
                break Read::Some;
            }
            let item = match this.input.as_mut().poll_next(cx) {
                Poll::Ready(Some(item)) => item,
                Poll::Ready(None) => break Read::Ended,
                Poll::Pending => break Read::Pending,
            };
            count += 1;
            this.router.received();
            // After the read, not before: an order may have come with the item.
            let signals = this.router.ready().signals();
            if signals != 0 {
                this.router.overtake(Unrouted::new(item));
                if signals & ORDERS == 0 {
                    this.orders_state.suspect();
                }
                break Read::Overtaken;
            }
            if let Err(path) = this.router.route::<BRANCHLESS, _>(this.key, item) {
                this.budget.items.spend_up_to(count);
                run -= core::mem::take(&mut count);
                if let Some(read) = self.as_mut().route_slow(path) {
                    break read;
                }
                this = self.as_mut().project();
            }
        };
        self.project().budget.items.spend_up_to(count);
        read
    }

    /// Routes an item that the hot loop could not. Returns how the loop ends, if it does.
    #[cold]
    #[inline(never)]
    fn route_slow(
        mut self: Pin<&mut Self>,
        path: SlowPath<KeyOf<O>, St::Item, ErrorOf<O, St::Item>>,
    ) -> Option<Read> {
        let this = self.as_mut().project();
        let items = &mut this.budget.items;
        let left = items.left();
        let if_unknown = if this.orders.is_none() { IfUnknown::Route } else { IfUnknown::Wait };
        this.router.route_slow(this.key, path, if_unknown, items);
        if this.router.has_overtaken() {
            if let Some(read) = self.as_mut().route_unknown() {
                return Some(read);
            }
        }
        let is_interrupted = !self.router.may_route() || self.budget.items.left() != left;
        if is_interrupted { Some(Read::Some) } else { None }
    }

    /// Polls the orders stream, and routes the item that matches no key if there is no order.
    ///
    /// The waker of a channel with many senders may fire later than the item comes. Of two threads
    /// that send at once, one takes the waker; if it is preempted before it fires it, the other one
    /// has sent its order and fires none.
    fn route_unknown(mut self: Pin<&mut Self>) -> Option<Read> {
        self.as_mut().project().orders_state.suspect();
        if self.orders_state == OrdersState::Unpolled {
            if let Next::Turn = self.as_mut().read_order() {
                return Some(Read::Enough);
            }
        }
        let this = self.project();
        if *this.orders_state != OrdersState::Quiet || this.router.ready().signals() != 0 {
            return Some(Read::Overtaken);
        }
        this.router.route_overtaken(this.key, IfUnknown::Route, &mut this.budget.items);
        None
    }

    /// Goes on to close sinks, if the input has ended in this turn. Then flushes all sinks that
    /// took an item if this turn is a lull, and those whose flush is due.
    fn flush_before_sleep(self: Pin<&mut Self>, turn: &Turn) {
        let this = self.project();
        let router = this.router;
        let limit = this.budget.limit();
        let Budget { sinks, flushes, closes, .. } = this.budget;
        router.close_some(closes, sinks);
        if router.is_closing() {
            return; // closing flushes
        }
        let handled = router.count_handled() - turn.handled;
        router.end_turn(handled, turn.is_dry, this.orders.is_some());
        router.flush_due(limit, flushes);
        router.name_blocked(); // a failed flush may have ended the wait for another sink
    }

    /// Completes if everything is done. Orders that arrived with the last close are applied within
    /// what is left of the budget; any further ones are dropped unread.
    fn complete(mut self: Pin<&mut Self>, turn: &mut Turn) -> Option<Totals> {
        if self.router.is_done() {
            self.as_mut().poll_orders(turn);
        }
        if !self.router.is_done() || self.order.is_some() {
            return None;
        }
        let mut this = self.project();
        this.orders.set(None);
        if !this.router.free() {
            return None;
        }
        *this.state = State::Completed;
        Some(this.router.totals())
    }

    /// Registers the waker of the task, or wakes the task at once if there is more to do.
    fn sleep(self: Pin<&mut Self>, turn: &Turn, cx: &Context<'_>) {
        let this = self.project();
        let router = this.router;
        let may_have_order =
            *this.orders_state == OrdersState::Unread || router.ready().signals() & ORDERS != 0;
        if this.orders.is_some() && may_have_order
            || this.order.is_some()
            || router.has_work()
            || router.may_route() && !turn.is_dry
        {
            cx.waker().wake_by_ref();
        } else {
            router.ready().sleep(cx.waker());
        }
        // Last: a waker whose `clone` panics must not leave a future that waits and is never woken.
        *this.state = State::Waiting;
    }
}
