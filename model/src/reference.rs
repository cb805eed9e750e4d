//! The reference: the contract as a second, naive implementation.
//!
//! There is one list of attachments, which is searched. A comment that ends with `(open)` names
//! what the contract leaves open: the reference does it as the crate does.
//!
//! * `items`: where an item goes, and where it waits;
//! * `groups`: several attachments with one key;
//! * `orders`: orders, leases and the end of the input;
//! * `sinks`: what a sink takes, and how an attachment leaves;
//! * `flushes`: when sinks are flushed (guarantee 6);
//! * `time`: ticks;
//! * `signals`: wakers, and what they have told.

mod flushes;
mod groups;
mod items;
mod orders;
mod signals;
mod sinks;
mod time;

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::ops::{Index, IndexMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use sink_test::{Broken, Op};
use stream_demux::{Overflow, Totals};

use crate::event::{Event, Id, OrderKind, Request, Seen};
use crate::script::Settings;
use crate::subject::Look;
use crate::watched::{Item, Made, Offer, Recorder, SentOrder, WatchedSink, WatchedStream};
use orders::Inbox;
pub use signals::Signals;

/// An attachment, named by its slot id: an index of `Reference::slots`.
#[derive(Default)]
pub struct Slot {
    id: Id,
    key: u16,
    sink: Option<WatchedSink>,
    buffer: usize,
    overflow: Overflow,
    limit: Option<u64>,
    stall_timeout: u32,
    idle_timeout: u32,
    /// When it joined its key or, if it leaves, began to leave.
    since: i64,
    /// The reason for which it leaves. Without one, it receives.
    leaving: Option<&'static str>,
    /// With `balance`, the queue of a key is that of its head.
    queue: VecDeque<Item>,
    /// How many of the last items of the queue are beyond the buffer.
    beyond: usize,
    /// The number of items that count towards the limit.
    accepted: u64,
    parked: bool,
    /// Its policy was applied. With `balance`, that of the head.
    full: bool,
    /// Took an item since the last call of `poll_flush`.
    unflushed: bool,
    flushing: bool,
    /// Was woken: its pending flush may be polled again.
    flush_woken: bool,
    closing: bool,
    /// With `balance`: its place in the line, and since when it is parked; whether it was polled in
    /// doubt, and not ready, since it was last woken.
    place: i64,
    parked_since: i64,
    confirmed: bool,
    /// The operation that is pending woke itself.
    woke_itself: bool,
    /// Since the last tick: an operation has completed; it took an item or completed a flush.
    moved: bool,
    busy: bool,
    stalled: u32,
    idle: u32,
    last_tick: u64,
}

/// What is left of the allowances of this turn.
#[derive(Clone, Copy, Default)]
struct Allowances {
    orders: usize,
    sinks: usize,
    flushes: usize,
    ticks: usize,
    closes: usize,
    items: usize,
}

#[derive(Default)]
pub struct Reference {
    settings: Settings,
    hooks: Recorder,
    input: Option<WatchedStream<Item>>,
    orders: Option<WatchedStream<SentOrder>>,
    signals: Arc<Signals>,
    completed: bool,
    totals: Totals,
    turn: u64,
    left: Allowances,
    /// The last number that was given to an event, to tell its time.
    clock: i64,
    /// The time that pays for flushes.
    elapsed: Duration,
    slots: Vec<Option<Slot>>,
    /// The ids that are free. The last is used first.
    free: Vec<usize>,
    catch_all: Option<usize>,
    /// The slots that are served in this turn, and maybe in the next. The last is served first.
    listed: Vec<usize>,
    /// An item that was read and that orders have overtaken.
    overtaken: Option<Item>,
    walk: Option<groups::Walk>,
    /// The slots that keep the gate closed.
    gate: Vec<usize>,
    /// The one that `blocked` was called for.
    named: Option<(usize, Id)>,
    /// The slots in doubt.
    doubts: Vec<usize>,
    /// The slot ids that were polled in this turn because they were in doubt.
    asked: Vec<usize>,
    /// Some were still in doubt after that.
    doubted: bool,
    /// How often an item was compared with one that waits.
    comparisons: u64,
    /// In this turn: the input has returned `Pending`; the items that were read and the copies.
    dry: bool,
    handled: usize,
    /// An attachment is made on demand, and pays from the allowance of the items.
    on_demand: bool,
    inbox: Inbox,
    /// The orders stream was polled after the last item was read.
    is_asked: bool,
    /// An order that was read and is not completely applied.
    order: Option<orders::Unapplied>,
    /// The slots whose leases have ended. The last one ends first.
    ended: Vec<usize>,
    /// Whether orders and ended leases were handled, so that items may be.
    caught_up: bool,
    /// The input has ended, `Finish` or `Abort` was applied.
    over: bool,
    aborted: bool,
    /// The number of slot ids that closing has come to.
    closed: usize,
    /// The flush list: slots, and how many items were read, and items and copies handled, before the
    /// entry was made. The first `owed` entries are due.
    entries: VecDeque<(usize, u64, u64)>,
    owed: usize,
    patience: flushes::Patience,
    /// The number of ticks since flushes began to linger.
    lingering: Option<u32>,
    timers: Vec<usize>,
    sweep: Option<time::Sweep>,
    kept_tick: Option<(u64, bool)>,
    /// The number of ticks that were read, and the turn of the last.
    ticks: (u64, u64),
    /// Whether a turn has ended with the gate closed since the last tick that was applied.
    waited: bool,
}

impl Index<usize> for Reference {
    type Output = Slot;
    fn index(&self, n: usize) -> &Slot {
        self.slots[n].as_ref().expect("the slot is in use")
    }
}

impl IndexMut<usize> for Reference {
    fn index_mut(&mut self, n: usize) -> &mut Slot {
        self.slots[n].as_mut().expect("the slot is in use")
    }
}

impl Reference {
    pub fn new(
        settings: Settings,
        input: WatchedStream<Item>,
        orders: WatchedStream<SentOrder>,
        hooks: Recorder,
        signals: Arc<Signals>,
    ) -> Self {
        let (input, orders) = (Some(input), Some(orders));
        Self { settings, hooks, input, orders, signals, ..Self::default() }
    }

    fn say(&self, event: Event) {
        self.hooks.hear(event);
    }

    fn now(&mut self) -> i64 {
        self.clock += 1;
        self.clock
    }

    /// Returns the attachments of a key that receive, or those that leave, in order.
    fn of_key(&self, key: u16, receive: bool) -> Vec<usize> {
        let of_key = |slot: &Slot| slot.key == key && slot.leaving.is_none() == receive;
        let all = 0..self.slots.len();
        let mut found: Vec<_> =
            all.filter(|&n| self.slots[n].as_ref().is_some_and(of_key)).collect();
        found.sort_by_key(|&n| self[n].since);
        found
    }

    /// A turn. Returns whether the future completes.
    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        let all = self.settings.budget;
        self.left = Allowances {
            orders: all,
            sinks: all,
            flushes: all,
            ticks: all,
            closes: all,
            items: all,
        };
        self.turn += 1;
        (self.dry, self.handled) = (false, 0);
        self.asked.clear();
        if self.listed.is_empty() {
            self.listed = mem::take(&mut self.signals.look().listed);
        }
        self.begin_orders();
        if !self.aborted {
            self.poll_doubts();
            self.go_on_walk();
        }
        self.apply_orders();
        if !self.aborted {
            self.serve_listed();
            self.flush_due();
            self.go_on_sweep();
        }
        self.close_some();
        self.read_items(cx);
        self.close_some();
        // If closing may not begin yet, flushes are decided. (open)
        if !(self.may_close() && self.closed < self.slots.len()) {
            self.decide_flushes();
            self.flush_due();
            self.name_blocked();
        }
        if self.is_vacant() {
            self.apply_orders();
        }
        let is_done = self.is_vacant() && self.order.is_none();
        if !is_done && self.is_work_left() {
            cx.waker().wake_by_ref();
        }
        is_done
    }

    /// 9. Items.
    fn read_items(&mut self, cx: &mut Context<'_>) {
        while self.caught_up && !self.doubted && self.may_read() {
            if let Some(item) = self.overtaken.take() {
                let is_known = !self.of_key(item.key, true).is_empty();
                let is_certain = self.is_asked && self.inbox != Inbox::Doubted;
                if is_known || is_certain || self.orders.is_none() {
                    self.route(item);
                    continue;
                }
                self.overtaken = Some(item);
                if self.inbox == Inbox::Doubted {
                    return; // until the next turn
                }
                self.ask();
                continue;
            }
            // A flush that fails may close the gate, with `balance`.
            if self.left.items == 0 || !self.flush_before_read() || !self.may_read() {
                return;
            }
            let input = self.input.as_mut().expect("the input is kept");
            match Pin::new(input).poll_next(cx) {
                Poll::Pending => {
                    self.dry = true;
                    return;
                }
                Poll::Ready(None) => self.end_input(),
                Poll::Ready(Some(item)) => {
                    self.left.items -= 1;
                    self.totals.received += 1;
                    self.handled += 1;
                    self.overtaken = Some(item);
                    self.is_asked = false;
                    if self.has_signalled() {
                        self.ask();
                    }
                }
            }
        }
    }

    fn may_read(&self) -> bool {
        self.gate.is_empty() && self.walk.is_none() && !self.over
    }

    /// 12. Returns whether work is left that no waker announces.
    fn is_work_left(&self) -> bool {
        let (signals, is_flush_due) = (self.signals.look(), self.is_due(0));
        !self.listed.is_empty()
            || !signals.listed.is_empty()
            || !self.doubts.is_empty()
            || self.walk.is_some()
            || self.order.is_some()
            || self.inbox == Inbox::Unread
            || signals.orders && self.orders.is_some()
            || !self.ended.is_empty()
            || !signals.ended.is_empty()
            || self.over && self.closed < self.slots.len()
            || self.sweep.is_some()
            || !self.entries.is_empty() && (is_flush_due || !self.lingers())
            || self.may_read() && !self.dry
    }

    /// Returns whether the input is over and no slot is left.
    fn is_vacant(&self) -> bool {
        self.over && self.slots.iter().all(Option::is_none)
    }

    /// 7. Totals.
    fn totals(&self) -> Totals {
        let queues: usize = self.slots.iter().flatten().map(|slot| slot.queue.len()).sum();
        let beside = usize::from(self.overtaken.is_some()) + usize::from(self.walk.is_some());
        let mut totals = self.totals;
        totals.queued = (queues + beside) as u64;
        totals
    }
}

impl Future for Reference {
    type Output = Totals;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Totals> {
        // A signal wakes the task between two turns only. Within a turn it is work. (open)
        self.signals.look().task = None;
        if !self.turn(cx) {
            self.signals.look().task = Some(cx.waker().clone());
            return Poll::Pending;
        }
        self.completed = true;
        self.orders = None;
        Poll::Ready(self.totals())
    }
}

impl Look for Reference {
    fn look(&self, keys: u16) -> Seen {
        let mut seen = Seen { totals: self.totals(), ..Seen::default() };
        let mut of_keys: BTreeMap<u16, (usize, usize)> = BTreeMap::new();
        for slot in self.slots.iter().flatten() {
            let is_leaving = slot.leaving.is_some();
            if is_leaving {
                seen.draining += 1;
            } else {
                seen.len += 1;
            }
            if keys == 0 {
                continue;
            }
            if is_leaving {
                seen.leaving.push(slot.id);
                continue;
            }
            seen.recipients.push(slot.id);
            let (receivers, waiting) = of_keys.entry(slot.key).or_default();
            *receivers += 1;
            *waiting += slot.queue.len();
        }
        for (key, (receivers, waiting)) in of_keys {
            seen.keys.push((key, receivers, waiting));
        }
        seen.blocked_on = self.named.map(|(_, id)| id);
        seen.terminated = self.completed;
        seen
    }

    fn elapse(self: Pin<&mut Self>, time: Duration) {
        let this = self.get_mut();
        if this.settings.linger == 0 {
            this.elapsed += time;
        }
    }
}
