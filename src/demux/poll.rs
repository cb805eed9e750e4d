//! The poll loop.
//!
//! Read [`Future::poll`] as a table of contents: orders, sinks, items, and the flushes that are due
//! before the task may sleep. The [`Router`](crate::router::Router) has the details.

use core::hash::{BuildHasher, Hash};
use core::pin::Pin;
use core::task::{Context, Poll};

use futures_core::Stream;

use super::{Demux, ErrorOf, Inbox, KeyOf, SinkOf, State, Unapplied};
use crate::hooks::Hooks;
use crate::key::sealed::{AttachOnDemand, FindByKey};
use crate::order::{Attachable, IntoOrder, Order, Orders};
use crate::ready::{LEASES, ORDERS};
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
        self.as_mut().poll_orders(&mut turn);
        self.as_mut().poll_sinks(&turn);
        self.as_mut().poll_input(&mut turn, cx);
        self.as_mut().flush_before_sleep(&turn);
        if self.as_mut().finish(&mut turn) {
            return Poll::Ready(self.complete());
        }
        self.sleep(&turn, cx);
        Poll::Pending
    }
}

/// The state of one call of `poll`.
struct Turn {
    /// No order or ended lease that is known comes before the next item.
    orders_read: bool,
    /// The signals that hold back the next item. Orders that woke themselves are not polled again
    /// in this turn.
    signals: u8,
    input: Input,
    /// How many items had been received when it began.
    received: u64,
    /// An item that was read in an earlier turn was offered to further members of its group.
    has_served: bool,
}

/// What the input answered in this turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Input {
    /// It was not polled, or had items.
    Flowing,
    Pending,
}

/// How reading the input ended.
enum Read {
    /// Some items were read; there may be more.
    Some,
    /// An order was ready before the last item, which is held.
    Overtaken,
    Pending,
    Ended,
}

/// Up to this many sinks are flushed as soon as the input has nothing ready. If there are more, the
/// task first wakes itself and lets other tasks run once: one of them may feed the input.
///
/// A producer on the same runtime fills a bounded channel and waits. The demux empties the channel,
/// and would flush each of a hundred sinks for one line. Over TCP a flush takes about 2 µs, and a
/// further turn a tenth of that. Up to 16 flushes cost no more than a turn of a busy runtime, and
/// are not worth the delay.
const FLUSHED_AT_ONCE: usize = 16;

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
        this.router.begin_turn();
        this.budget.begin_turn();
        Turn {
            orders_read: false,
            signals: ORDERS | LEASES,
            input: Input::Flowing,
            received: this.router.totals().received,
            has_served: false,
        }
    }

    /// Ends the attachments whose leases have ended, and applies the orders that are ready. Leaves
    /// the sinks their part of the budget.
    ///
    /// Leases are looked at after an order was read and before it is applied, so that a lease that
    /// ended before the order was sent has its effect first. Sets `orders_read` if no ended lease
    /// is left, and no order that may have been ready before the next item.
    fn poll_orders(mut self: Pin<&mut Self>, turn: &mut Turn) {
        turn.orders_read = false;
        loop {
            let this = self.as_mut().project();
            let goes_on = if this.router.has_ended_leases() {
                let sinks_wait = this.router.has_sinks(this.budget.limit());
                let mut share = this.budget.take_for_orders(sinks_wait);
                let goes_on = this.router.end_leases(&mut share);
                this.budget.give_back(share);
                goes_on
            } else if let Some(order) = this.order.take() {
                let Unapplied { order, fresh } = order;
                let mut share = this.budget.take_for_effects();
                let rest = this.router.apply(this.key, order, fresh, &mut share);
                this.budget.give_back(share);
                *this.order = rest.map(|order| Unapplied { order, fresh: false });
                this.order.is_none()
            } else if *this.inbox == Inbox::Unread
                || this.router.signals() & turn.signals & ORDERS != 0
            {
                self.as_mut().read_order(turn)
            } else {
                break;
            };
            if !goes_on {
                return;
            }
        }
        turn.orders_read = true;
    }

    /// Reads an order, if there is one. Returns `false` if orders have to wait for the next turn,
    /// and items with them.
    fn read_order(self: Pin<&mut Self>, turn: &mut Turn) -> bool {
        let mut this = self.project();
        let Some(orders) = this.orders.as_mut().as_pin_mut() else {
            // A waker that outlived the stream fired.
            this.router.lower_orders();
            return true;
        };
        let sinks_wait = this.router.has_sinks(this.budget.limit());
        let share = this.budget.take_for_orders(sinks_wait);
        let is_spent = share.is_spent();
        this.budget.give_back(share);
        if is_spent {
            return false;
        }
        this.router.lower_orders();
        match orders.poll_next(&mut Context::from_waker(this.router.orders_waker())) {
            Poll::Ready(Some(order)) => {
                *this.inbox = Inbox::Unread;
                this.budget.spend(1);
                this.router.order_read();
                let order = order.into_order();
                if !matches!(order, Order::Tick) || this.router.tick_read() {
                    *this.order = Some(Unapplied { order, fresh: true });
                }
            }
            Poll::Ready(None) => {
                this.orders.set(None);
                *this.inbox = Inbox::Quiet;
            }
            Poll::Pending if !this.router.has_orders() => *this.inbox = Inbox::Quiet,
            // The stream woke itself. It may have yielded although it has an order, so items wait
            // for a turn. If it does the same in that turn, they wait no longer.
            Poll::Pending => {
                turn.signals = LEASES;
                let before = core::mem::replace(this.inbox, Inbox::Yielded);
                return before == Inbox::Yielded;
            }
        }
        true
    }

    /// Advances the sinks that were woken, flushes those whose flush is due, applies a tick to the
    /// next time-outs and, after the end of the input, starts to close the next sinks.
    fn poll_sinks(self: Pin<&mut Self>, turn: &Turn) {
        let this = self.project();
        this.router.retry_yielded();
        let ahead = this.budget.limit();
        let mut share = this.budget.take_for_sinks(this.router.has_items(turn.orders_read));
        let closes = this.budget.split_for_closes(&mut share, this.router.is_closing());
        let ticks = this.budget.split_for_ticks(&mut share, this.router.is_sweeping());
        let flushes = this.budget.split_for_flushes(&mut share, this.router.has_due_flushes(ahead));
        this.router.poll_woken(&mut share);
        share.add(flushes);
        this.router.flush_due(ahead, &mut share);
        share.add(ticks);
        this.router.sweep(&mut share);
        share.add(closes);
        this.router.close_some(&mut share);
        this.budget.give_back(share);
    }

    /// Reads the input and routes its items until the input has none, an item has to wait, or the
    /// budget is spent.
    fn poll_input(mut self: Pin<&mut Self>, turn: &mut Turn, cx: &mut Context<'_>) {
        while self.as_mut().release_held(turn) && self.budget.left() > 0 {
            match self.as_mut().read(turn, cx) {
                Read::Some => {}
                Read::Overtaken => self.as_mut().poll_orders(turn),
                Read::Pending => {
                    turn.input = Input::Pending;
                    return;
                }
                Read::Ended => {
                    self.project().router.finish();
                    return;
                }
            }
        }
    }

    /// Routes the item that is held, if that is possible. Returns `true` if the next item may be
    /// read.
    fn release_held(self: Pin<&mut Self>, turn: &mut Turn) -> bool {
        let this = self.project();
        turn.has_served |= this.router.is_serving_group();
        let mut share = this.budget.take();
        let released = this.router.release_held(this.key, turn.orders_read, &mut share);
        this.budget.give_back(share);
        released && turn.orders_read && !this.router.is_finished()
    }

    /// Reads and routes as many items as may be read before a flush is due.
    fn read(mut self: Pin<&mut Self>, turn: &Turn, cx: &mut Context<'_>) -> Read {
        let this = self.as_mut().project();
        let (left, due) = (this.budget.left(), this.router.items_before_flush());
        let run = usize::try_from(due).map_or(left, |due| due.min(left));
        if run == 0 {
            let mut share = this.budget.take();
            this.router.flush_due(left, &mut share);
            this.budget.give_back(share);
            return Read::Some;
        }
        if this.router.prefers_branchless() {
            self.route::<true>(run, turn, cx)
        } else {
            self.route::<false>(run, turn, cx)
        }
    }

    /// Reads and routes up to `run` items. This is the hot loop. It is a function of its own so
    /// that the compiler keeps its variables in registers.
    #[inline(never)]
    fn route<const BRANCHLESS: bool>(
        self: Pin<&mut Self>,
        mut run: usize,
        turn: &Turn,
        cx: &mut Context<'_>,
    ) -> Read {
        let mut this = self.project();
        let (signals, mut count) = (turn.signals, 0);
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
            if this.router.signals() & signals != 0 {
                this.router.overtake(item);
                break Read::Overtaken;
            }
            if let Err(path) = this.router.route::<BRANCHLESS, _>(this.key, item) {
                this.budget.spend(count);
                run -= count;
                count = 0;
                let mut share = this.budget.take();
                let left = share.left();
                let is_free = this.router.route_slow(this.key, path, &mut share);
                let is_paid = share.left() == left;
                this.budget.give_back(share);
                if !is_free || !is_paid {
                    break Read::Some;
                }
            }
        };
        this.budget.spend(count);
        read
    }

    /// Closes sinks after the end of the input. Marks all flushes as due if no more can be read,
    /// and flushes.
    fn flush_before_sleep(self: Pin<&mut Self>, turn: &Turn) {
        let this = self.project();
        let (router, mut share) = (this.router, this.budget.take());
        router.close_some(&mut share);
        if router.is_closing() {
            return this.budget.give_back(share); // closing flushes
        }
        // An item that is being served to a group counts like an item that was read.
        let has_read = router.totals().received != turn.received;
        let is_busy = has_read || turn.has_served || router.is_serving_group();
        let is_dry = turn.input == Input::Pending || !router.can_read();
        let at_once = router.is_finished() || router.count_unflushed() <= FLUSHED_AT_ONCE;
        if this.orders.is_some() && router.lingers() {
            if turn.input == Input::Pending {
                router.start_linger();
            }
        } else {
            router.stop_linger();
            if !is_busy || is_dry && (at_once || router.count_dry_turn()) {
                router.mark_all_due();
            }
        }
        router.flush_due(0, &mut share);
        router.name_blocked(); // a failed flush may have removed the recipient that was blocked on
        this.budget.give_back(share);
    }

    /// Returns `true` if everything is done. Orders that arrived with the last close are applied
    /// within what is left of the budget; any further ones are dropped unread.
    fn finish(mut self: Pin<&mut Self>, turn: &mut Turn) -> bool {
        if self.router.is_done() {
            self.as_mut().poll_orders(turn);
        }
        if !self.router.is_done() || self.order.is_some() {
            return false;
        }
        let mut this = self.project();
        this.orders.set(None);
        this.router.free()
    }

    fn complete(self: Pin<&mut Self>) -> Totals {
        let this = self.project();
        *this.state = State::Completed;
        this.router.totals()
    }

    /// Registers the waker of the task, or wakes the task at once if there is more to do.
    fn sleep(self: Pin<&mut Self>, turn: &Turn, cx: &Context<'_>) {
        let this = self.project();
        let has_orders =
            this.orders.is_some() && (*this.inbox == Inbox::Unread || this.router.has_orders());
        let has_orders = has_orders || this.order.is_some();
        if has_orders || this.router.has_work(turn.input == Input::Pending) {
            cx.waker().wake_by_ref();
        } else {
            this.router.sleep(cx.waker());
        }
        // Last: a waker whose `clone` panics must not leave a future that waits and is never woken.
        *this.state = State::Waiting;
    }
}
