//! The poll loop.
//!
//! Read [`Future::poll`] as a table of contents: orders, then sinks, then items, then what is owed
//! before the task may sleep. `apply`, `drive` and `route` have the details of the first three.

use core::hash::{BuildHasher, Hash};
use core::pin::Pin;
use core::task::{Context, Poll};

use futures_core::Stream;

use crate::demux::{Demux, ErrorOf, Inbox, KeyOf, State};
use crate::hooks::Hooks;
use crate::hub::{Held, Hub};
use crate::key::sealed::FindByKey;
use crate::order::{Attachable, IntoOrder};
use crate::route::Routed;
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
        this.hub.ready.awake();
        this.hub.ready.take();
        *this.turns = this.turns.wrapping_add(1);
        Turn {
            left: *this.budget,
            number: *this.turns,
            budget: *this.budget,
            orders_read: false,
            orders_deaf: false,
            input: Input::Unasked,
            received: this.hub.totals.received,
        }
    }

    /// Applies the orders that are ready, up to a share that leaves sinks theirs.
    ///
    /// Afterwards `orders_read` says whether items may be routed: not while the stream may have an
    /// order that was ready before them.
    fn poll_orders(self: Pin<&mut Self>, turn: &mut Turn) {
        let mut this = self.project();
        turn.orders_read = false;
        while *this.inbox == Inbox::Unread || (this.hub.ready.rung() && !turn.orders_deaf) {
            let Some(orders) = this.orders.as_mut().as_pin_mut() else {
                // A waker that outlived them rang.
                this.hub.ready.hush();
                break;
            };
            if turn.left == 0 || turn.left <= turn.quarter(0) && this.hub.is_busy(turn) {
                return;
            }
            this.hub.ready.hush();
            match orders.poll_next(&mut Context::from_waker(this.hub.ready.orders_waker())) {
                Poll::Ready(Some(order)) => {
                    *this.inbox = Inbox::Unread;
                    turn.left -= 1;
                    // What an order sets free to be sent or closed may not cost the sinks their share.
                    let purse = turn.left.saturating_sub(turn.quarter(0));
                    let mut left = purse;
                    this.hub.apply(this.key, order.into_order(), &mut left);
                    turn.left -= purse - left;
                }
                Poll::Ready(None) => {
                    this.orders.set(None);
                    *this.inbox = Inbox::Quiet;
                }
                Poll::Pending if !this.hub.ready.rung() => *this.inbox = Inbox::Quiet,
                // It woke itself. If that was to let others run, it may have an order still, and items
                // wait for another turn; if it does nothing else, they do not.
                Poll::Pending => {
                    turn.orders_deaf = true;
                    if *this.inbox != Inbox::Yielded {
                        *this.inbox = Inbox::Yielded;
                        return;
                    }
                }
            }
        }
        turn.orders_read = true;
    }

    /// Looks after the sinks that were woken, those whose flush is due and, at the end, those that do
    /// not know of it yet. Each of the three has its share, and items theirs.
    fn poll_slots(self: Pin<&mut Self>, turn: &mut Turn) {
        let hub = self.project().hub;
        let items = if turn.orders_read && hub.is_reading() { turn.quarter(2) } else { 0 };
        let share = turn.left.saturating_sub(items).max(turn.left.min(turn.quarter(0)));
        let horizon = hub.totals.received.saturating_add(turn.budget as u64);

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

    /// Routes the item that was held, if it can be. Whether the next one may be read.
    fn let_go(self: Pin<&mut Self>, turn: &mut Turn) -> bool {
        let this = self.project();
        if !turn.orders_read {
            return false;
        }
        let routed = match this.hub.take_overtaken() {
            Some(item) => this.hub.route_late(this.key, item),
            None => this.hub.let_go(),
        };
        turn.spend(routed)
    }

    /// Reads and routes as many items as may be read before a flush is due.
    fn read(mut self: Pin<&mut Self>, turn: &mut Turn, cx: &mut Context<'_>) -> Read {
        let this = self.as_mut().project();
        let due = this.hub.flushes.due_in(this.hub.totals.received, this.hub.totals.delivered);
        let run = usize::try_from(due).map_or(turn.left, |due| due.min(turn.left));
        if run == 0 {
            // What would fall due later in this turn is flushed with it: otherwise each of many sinks
            // would interrupt the reading at its own time.
            let horizon = this.hub.totals.received.saturating_add(turn.left as u64);
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
        let (mut count, mut further) = (0, Routed::Done);
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
            #[expect(clippy::needless_bitwise_bool, reason = "`&&` would be a branch more")]
            if this.hub.ready.rung() & !turn.orders_deaf {
                this.hub.overtake(item);
                break Read::Overtaken;
            }
            if let Err(odd) = this.hub.route::<MANY, _>(this.key, item) {
                further = this.hub.route_odd(odd);
                if further != Routed::Done {
                    break Read::Some;
                }
            }
        };
        turn.left -= count;
        turn.spend(further);
        read
    }

    /// Before the task may sleep: tells the end, and flushes unless there is more to read.
    fn settle_up(self: Pin<&mut Self>, turn: &mut Turn) {
        let hub = self.project().hub;
        hub.tell(&mut turn.left);
        if hub.is_telling() {
            return; // closing flushes
        }
        let unread = hub.totals.received == turn.received || !hub.can_read(Input::Flowing);
        if unread || turn.input == Input::Pending && hub.flushes.len() <= FLUSHED_AT_ONCE {
            hub.flushes.owe_all(hub.totals.received, hub.totals.delivered);
        }
        hub.flush(hub.totals.received, &mut turn.left);
    }

    /// Is everything done? Orders that came with the last close get what is left of their share, and
    /// are dropped unread after that.
    fn is_over(mut self: Pin<&mut Self>, turn: &mut Turn) -> bool {
        if self.hub.is_over() {
            self.as_mut().poll_orders(turn);
        }
        self.hub.is_over()
    }

    fn complete(self: Pin<&mut Self>) -> Totals {
        let mut this = self.project();
        this.orders.set(None);
        this.hub.clear();
        *this.state = State::Completed;
        this.hub.totals
    }

    /// Sleeps, or asks to be polled again if there is more to do.
    fn rest(self: Pin<&mut Self>, turn: &Turn, cx: &Context<'_>) {
        let this = self.project();
        *this.state = State::Waiting;
        let orders =
            this.orders.is_some() && (*this.inbox == Inbox::Unread || this.hub.ready.rung());
        if orders || this.hub.has_more(turn.input) {
            cx.waker().wake_by_ref();
        } else {
            this.hub.ready.sleep(cx.waker());
        }
    }
}

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
    /// The orders woke themselves: they are not to be asked again in this turn.
    orders_deaf: bool,
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

    /// Pays for what routing an item came to beyond the item itself. False if it is held.
    fn spend(&mut self, routed: Routed) -> bool {
        if let Routed::Spread(further) = routed {
            self.left = self.left.saturating_sub(further);
        }
        routed != Routed::Held
    }
}

/// What the hub has to do, as far as a turn needs to know.
impl<K, S, V, H, B> Hub<K, S, V, H, B> {
    /// Have sinks something to do in this turn?
    fn is_busy(&self, turn: &Turn) -> bool {
        let horizon = self.totals.received.saturating_add(turn.budget as u64);
        self.ready.any() || self.flushes.is_due(horizon) || self.is_telling()
    }

    /// Could an item be read or let go of, as far as the slots are concerned?
    fn is_reading(&self) -> bool {
        self.told.is_none() && !self.is_blocked()
    }

    /// Is there an item to be read or let go of, or may there be one?
    fn can_read(&self, input: Input) -> bool {
        match self.held {
            None => self.told.is_none() && input != Input::Pending,
            Some(Held::Overtaken(_)) => true,
            Some(Held::Blocked { .. }) => !self.is_blocked(),
        }
    }

    /// Is there anything to do that nobody's waker will tell?
    fn has_more(&self, input: Input) -> bool {
        self.ready.any() || self.flushes.len() > 0 || self.is_telling() || self.can_read(input)
    }
}
