//! The poll loop.
//!
//! Read [`Future::poll`] as a table of contents: orders, then sinks, then items, then what is owed
//! before the task may sleep. `apply`, `drive` and `route` have the details of the first three.

use core::hash::{BuildHasher, Hash};
use core::pin::Pin;
use core::task::{Context, Poll};

use futures_core::Stream;

use crate::demux::{Demux, ErrorOf, Inbox, KeyOf, State, Unapplied};
use crate::held::Held;
use crate::hooks::Hooks;
use crate::hub::Hub;
use crate::key::sealed::FindByKey;
use crate::order::{Attachable, IntoOrder};
use crate::ready::{LEASES, ORDERS};
use crate::totals::Totals;

impl<St, F, O, H, B> Future for Demux<St, F, O, H, B>
where
    St: Stream,
    O: Stream,
    O::Item: IntoOrder<Key: Hash + Eq, Sink: Attachable<St::Item>>,
    F: FindByKey<St::Item, KeyOf<O>>,
    H: Hooks<KeyOf<O>, St::Item, ErrorOf<O, St::Item>>,
    B: BuildHasher,
{
    type Output = Totals;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Totals> {
        let mut turn = self.as_mut().begin();
        self.as_mut().poll_orders(&mut turn);
        self.as_mut().poll_slots(&mut turn);
        self.as_mut().poll_input(&mut turn, cx);
        self.as_mut().settle_up(&mut turn);
        if self.as_mut().is_over(&mut turn) {
            return Poll::Ready(self.complete());
        }
        self.rest(&turn, cx);
        Poll::Pending
    }
}

/// The phases of a turn, in the order in which they come.
impl<St, F, O, H, B> Demux<St, F, O, H, B>
where
    St: Stream,
    O: Stream,
    O::Item: IntoOrder<Key: Hash + Eq, Sink: Attachable<St::Item>>,
    F: FindByKey<St::Item, KeyOf<O>>,
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
        this.hub.begin();
        *this.turns = this.turns.wrapping_add(1);
        Turn {
            left: *this.budget,
            number: *this.turns,
            budget: *this.budget,
            orders_read: false,
            signals: ORDERS | LEASES,
            input: Input::Unasked,
            received: this.hub.totals.received,
        }
    }

    /// Ends the attachments whose leases have ended and applies the orders that are ready, up to a share
    /// that leaves sinks theirs.
    ///
    /// Leases are looked at after an order was read and before it is applied: one that had ended before
    /// the order was sent has its effect first. Afterwards `orders_read` says whether items may be
    /// routed: not while a lease, or an order that may have been ready before them, is left.
    fn poll_orders(self: Pin<&mut Self>, turn: &mut Turn) {
        let mut this = self.project();
        turn.orders_read = false;
        loop {
            if this.hub.ready.has_ended() {
                let mut share = this.hub.share_of_orders(turn);
                turn.left -= share;
                let all = this.hub.end_leases(&mut share);
                turn.left += share;
                if !all {
                    return;
                }
            } else if let Some(Unapplied { order, fresh }) = this.order.take() {
                // What an order sets free to be sent or closed may not cost the sinks their share.
                let purse = turn.left.saturating_sub(turn.quarter(0));
                let mut left = purse;
                let rest = this.hub.apply(this.key, order, fresh, &mut left);
                turn.left -= purse - left;
                if let Some(order) = rest {
                    *this.order = Some(Unapplied { order, fresh: false });
                    return;
                }
            } else if *this.inbox == Inbox::Unread
                || this.hub.ready.signals() & turn.signals & ORDERS != 0
            {
                let Some(orders) = this.orders.as_mut().as_pin_mut() else {
                    // A waker that outlived them fired.
                    this.hub.ready.lower_orders();
                    continue;
                };
                if this.hub.share_of_orders(turn) == 0 {
                    return;
                }
                this.hub.ready.lower_orders();
                match orders.poll_next(&mut Context::from_waker(this.hub.ready.orders_waker())) {
                    Poll::Ready(Some(order)) => {
                        *this.inbox = Inbox::Unread;
                        turn.left -= 1;
                        this.hub.others += 1;
                        *this.order = Some(Unapplied { order: order.into_order(), fresh: true });
                    }
                    Poll::Ready(None) => {
                        this.orders.set(None);
                        *this.inbox = Inbox::Quiet;
                    }
                    Poll::Pending if !this.hub.ready.has_orders() => *this.inbox = Inbox::Quiet,
                    // It woke itself. If that was to let others run, it may have an order still, and
                    // items wait for another turn; if it does nothing else, they do not.
                    Poll::Pending => {
                        turn.signals = LEASES;
                        if *this.inbox != Inbox::Yielded {
                            *this.inbox = Inbox::Yielded;
                            return;
                        }
                    }
                }
            } else {
                break;
            }
        }
        turn.orders_read = true;
    }

    /// Looks after the sinks that were woken, those whose flush is due and, at the end, those that do
    /// not know of it yet. Each of the three has its share, and items theirs.
    fn poll_slots(self: Pin<&mut Self>, turn: &mut Turn) {
        let hub = self.project().hub;
        hub.retry_yielded();
        let items = if hub.has_items(turn.orders_read) { turn.quarter(2) } else { 0 };
        let share = turn.left.saturating_sub(items).max(turn.left.min(turn.quarter(0)));
        let horizon = hub.horizon(turn.budget);

        let telling = if hub.is_telling() { turn.half(share, 0) } else { 0 };
        let flushing = if hub.flushes.is_due(horizon) { turn.half(share - telling, 1) } else { 0 };
        let mut left = share - telling - flushing;
        hub.serve(&mut left);
        left += flushing;
        hub.flush(horizon, &mut left);
        left += telling;
        hub.tell(&mut left);
        turn.left -= share - left;
    }

    /// Reads the input and routes its items, until it has none, one has to wait, or the turn is spent.
    fn poll_input(mut self: Pin<&mut Self>, turn: &mut Turn, cx: &mut Context<'_>) {
        while self.as_mut().let_go(turn) && turn.left > 0 && self.hub.told.is_none() {
            match self.as_mut().read(turn, cx) {
                Read::Some => {}
                Read::Overtaken => self.as_mut().poll_orders(turn),
                Read::Pending => {
                    turn.input = Input::Pending;
                    return;
                }
                Read::Ended => self.as_mut().project().hub.finish(),
            }
        }
    }

    /// Routes the item that is held, if it can be. Returns `true` if the next one may be read.
    fn let_go(self: Pin<&mut Self>, turn: &mut Turn) -> bool {
        let this = self.project();
        match &this.hub.held {
            Some(Held::Overtaken(_)) if turn.orders_read => {
                if let Some(item) = this.hub.take_overtaken() {
                    this.hub.route_late(this.key, item, &mut turn.left);
                }
            }
            None | Some(Held::Overtaken(_)) => {}
            Some(Held::One { .. } | Held::Group(_)) => this.hub.release(&mut turn.left),
        }
        turn.orders_read && this.hub.held.is_none()
    }

    /// Reads and routes as many items as may be read before a flush is due.
    fn read(mut self: Pin<&mut Self>, turn: &mut Turn, cx: &mut Context<'_>) -> Read {
        let this = self.as_mut().project();
        let due = this.hub.flushes.due_in(this.hub.totals.received, this.hub.totals.delivered);
        let run = usize::try_from(due).map_or(turn.left, |due| due.min(turn.left));
        if run == 0 {
            // What would fall due later in this turn is flushed with it.
            let horizon = this.hub.horizon(turn.left);
            this.hub.flush(horizon, &mut turn.left);
            return Read::Some;
        }
        turn.input = Input::Flowing;
        if this.hub.flushes.has_many() {
            self.route::<true>(run, turn, cx)
        } else {
            self.route::<false>(run, turn, cx)
        }
    }

    /// Reads and routes up to `run` items: the loop that all speed depends on, in a function of its own
    /// so that it has the registers to itself.
    #[inline(never)]
    fn route<const MANY: bool>(
        self: Pin<&mut Self>,
        run: usize,
        turn: &mut Turn,
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
            this.hub.totals.received += 1;
            // After the read, not before: an order may have come with the item.
            if this.hub.ready.signals() & signals != 0 {
                this.hub.overtake(item);
                break Read::Overtaken;
            }
            if let Err(odd) = this.hub.route::<MANY, _>(this.key, item) {
                let left = turn.left - count;
                let mut share = left;
                this.hub.route_odd(odd, &mut share);
                turn.left -= left - share;
                if this.hub.held.is_some() || share < left {
                    break Read::Some;
                }
            }
        };
        turn.left -= count;
        read
    }

    /// Before the task may sleep: tells the end, and flushes unless there is more to read.
    fn settle_up(self: Pin<&mut Self>, turn: &mut Turn) {
        let hub = self.project().hub;
        hub.tell(&mut turn.left);
        if hub.is_telling() {
            return; // closing flushes
        }
        // An item that is on its way through a group is as good as one that was read.
        let read = hub.totals.received != turn.received || hub.can_release();
        let dry = turn.input == Input::Pending || !hub.can_read(Input::Flowing);
        let at_once = hub.told.is_some() || hub.flushes.len() <= FLUSHED_AT_ONCE;
        if !read || dry && (at_once || hub.flushes.dry_turn()) {
            hub.flushes.owe_all(hub.totals.received, hub.totals.delivered);
        }
        hub.flush(hub.totals.received, &mut turn.left);
        hub.name_blocked(); // a flush that failed may have been that of the one that was named
    }

    /// Returns `true` if everything is done. Orders that came with the last close get what is left of
    /// their share, and are dropped unread after that.
    fn is_over(mut self: Pin<&mut Self>, turn: &mut Turn) -> bool {
        if self.hub.is_over() {
            self.as_mut().poll_orders(turn);
        }
        if !self.hub.is_over() || self.order.is_some() {
            return false;
        }
        let mut this = self.project();
        this.orders.set(None);
        this.hub.ready.release(RELEASED)
    }

    fn complete(self: Pin<&mut Self>) -> Totals {
        let this = self.project();
        this.hub.clear();
        *this.state = State::Completed;
        this.hub.totals
    }

    /// Sleeps, or asks to be polled again if there is more to do.
    fn rest(self: Pin<&mut Self>, turn: &Turn, cx: &Context<'_>) {
        let this = self.project();
        let orders = this.order.is_some()
            || this.hub.ready.has_ended()
            || this.orders.is_some()
                && (*this.inbox == Inbox::Unread || this.hub.ready.has_orders());
        if orders || this.hub.has_more(turn.input) {
            cx.waker().wake_by_ref();
        } else {
            this.hub.ready.sleep(cx.waker());
        }
        // Last: a waker whose `clone` panics must not leave a future that waits and is never woken.
        *this.state = State::Waiting;
    }
}

/// How many wakers are freed in a turn when every sink is gone: work of half a millisecond. The wakers of a
/// million sinks would take thirty at once.
const RELEASED: usize = 16_384;

/// So many sinks are flushed as soon as the input has nothing ready. For more, the task first wakes
/// itself and lets the others run once: if one of them feeds the input, there is more to read.
///
/// A producer on the same runtime fills a bounded channel and stops; the demux empties it and would
/// flush each of a hundred sinks for the one line it got: 2 µs each over TCP, where a turn more costs
/// a tenth of that. Up to 16 flushes cost no more than a turn of a busy runtime does, and are not
/// worth the delay.
const FLUSHED_AT_ONCE: usize = 16;

/// One call of `poll`: what is left of its budget, and what it has seen.
struct Turn {
    left: usize,
    /// With a budget under four a quarter is less than one: a whole turn in four stands for it.
    number: u8,
    budget: usize,
    /// Items may be routed: no order that is known of comes before them.
    orders_read: bool,
    /// The signals that hold back the next item. Orders that woke themselves are not polled again in
    /// this turn.
    signals: u8,
    input: Input,
    /// What `received` was when it began.
    received: u64,
}

/// What the input said in this turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Input {
    Unasked,
    Flowing,
    Pending,
}

/// What came of reading the input for a while.
enum Read {
    /// Some items; there may be more.
    Some,
    /// An order was ready before the last item, which is held.
    Overtaken,
    Pending,
    Ended,
}

impl Turn {
    /// A quarter of the budget, for those whose turn it is in `phase`.
    fn quarter(&self, phase: u8) -> usize {
        if self.budget < 4 && self.number % 4 == phase { self.budget } else { self.budget / 4 }
    }

    /// Half of a share; what is left over from an odd one goes to either half in turn, at a pace of
    /// its own for each `bit`, so that two who share what two have left get something too.
    fn half(&self, share: usize, bit: u8) -> usize {
        let round = if self.budget < 4 { self.number >> 2 } else { self.number };
        share / 2 + share % 2 * usize::from(round >> bit & 1)
    }
}

/// What the hub has to do, as far as a turn needs to know.
impl<K, S, V, H, B> Hub<K, S, V, H, B> {
    /// What is due by this count of received items is flushed now.
    fn horizon(&self, budget: usize) -> u64 {
        self.totals.received.saturating_add(self.flushes.look_ahead(budget))
    }

    /// What may be spent on orders now: a quarter of the budget is for sinks, if they need it.
    fn share_of_orders(&self, turn: &Turn) -> usize {
        let reserved = if self.is_busy(turn) { turn.quarter(0) } else { 0 };
        turn.left.saturating_sub(reserved)
    }

    /// Have sinks something to do in this turn?
    fn is_busy(&self, turn: &Turn) -> bool {
        self.ready.any() || self.flushes.is_due(self.horizon(turn.budget)) || self.is_telling()
    }

    /// Returns `true` if an item can be read or routed further, as far as the slots are concerned. If
    /// orders are left to be read, none can but one whose key was looked up already.
    fn has_items(&self, orders_read: bool) -> bool {
        match self.held {
            None => orders_read && self.told.is_none(),
            Some(Held::Overtaken(_)) => orders_read,
            Some(_) => self.can_release(),
        }
    }

    /// Is there an item to be read or let go of, or may there be one?
    fn can_read(&self, input: Input) -> bool {
        match self.held {
            None => self.told.is_none() && input != Input::Pending,
            Some(_) => self.can_release(),
        }
    }

    /// Is there anything to do that nobody's waker will tell?
    fn has_more(&self, input: Input) -> bool {
        self.ready.any()
            || self.flushes.len() > 0
            || self.is_telling()
            || self.can_read(input)
            || self.is_over() // and not released
    }
}
