//! Target `shares`: no source of work starves the others.
//!
//! The input may be endless, the orders stream may yield endless orders (for a key that is not
//! attached), and sinks may wake themselves whenever they are polled. Beside these there are sinks
//! whose readiness or flush is pending until the script wakes them, and orders that attach sinks.
//! Time is counted in turns. All work has to be done within a bound that grows only with the number
//! of sinks divided by the budget. The target asserts, within that bound:
//!
//! 1. A sink whose waker fired is polled again for what it waits for, also for a pending flush.
//! 2. An order is applied. An item is read, unless orders are endless.
//! 3. A sink that took an item is flushed, at the latest when the flush window has passed.
//! 4. After the input has ended, each sink is closed, while others wake themselves endlessly, and
//!    then the demux completes.
//! 5. A sink is not polled again in the turn in which it woke itself, nor before its waker fired.
//!    The exception is a sink in doubt: it is polled once more, at the start of a turn.
//! 6. No kind of work is done more often in a turn than its allowance permits, and the task does not
//!    sleep while work is due.

use alloc::rc::Rc;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures::{Sink, Stream};
use stream_demux::{Attach, DemuxStreamExt, Order, Overflow};

use crate::common::Task;
use crate::script::Script;

const MAX_SINKS: usize = 24;
const MAX_STEPS: usize = 80;
const MAX_TURNS: u64 = 1_500;
const MAX_ITEMS: u64 = 6_000;

/// Plays a script. It begins with the budget, the flush window, the number of sinks that are
/// attached first and, for each, its behaviour.
///
/// # Panics
///
/// Panics if one of these assertions fails.
pub fn run(script: &[u8]) {
    let mut script = Script::new(script);
    let budget = [1, 2, 3, 4, 8, 128][script.below(6)];
    let window = [1, 16, 16_384][script.below(3)];
    let world = Rc::new(World::new(budget, window));
    for _ in 0..=script.below(MAX_SINKS) {
        World::attach(&world, Behaviour::read(&mut script));
    }
    let (input, orders) = (Input(Rc::clone(&world)), Orders(Rc::clone(&world)));
    let demux = input.demux_by(|item| *item, orders).budget(budget).flush_every(window);
    let mut task = Task::new(demux);
    let mut turns = |limit: u64| {
        for _ in 0..limit {
            let polls = task.polls();
            world.begin_turn();
            let poll = task.turns(1);
            if task.polls() == polls {
                world.check_asleep();
                return false;
            }
            if poll.is_ready() {
                return true;
            }
            world.check(task.woken());
        }
        false
    };

    for _ in 0..MAX_STEPS {
        let Some(letter) = script.letter(b"pprrRwwwwioaa").filter(|_| !world.is_past_limits())
        else {
            break;
        };
        let completed = match letter {
            b'p' => turns(1),
            b'r' => turns(16),
            b'R' => turns(world.bound() + 2),
            b'w' => world.wake(script.below(MAX_SINKS)),
            b'i' => world.toggle_pause(),
            b'o' => world.toggle_endless_orders(),
            _ => World::attach(&world, Behaviour::read(&mut script)),
        };
        assert!(!completed, "completed before the input ended");
    }
    world.end();
    let sinks = world.sinks.borrow().len() as u64;
    assert!(
        turns(4 * world.bound() + 8 * sinks),
        "the demux does not close all sinks and complete"
    );
}

/// How a sink behaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    /// `p`: always ready.
    AlwaysReady,
    /// `s`: never ready, and wakes itself whenever it is polled, until all other sinks are dropped.
    SelfWaking,
    /// `f`: its flush is pending until the script wakes it.
    SlowFlush,
    /// `r`: ready once for each time that the script wakes it.
    SlowReady,
}

impl Behaviour {
    fn read(script: &mut Script<'_>) -> Self {
        match script.letter(b"psfrsfr").unwrap_or(b'p') {
            b's' => Self::SelfWaking,
            b'f' => Self::SlowFlush,
            b'r' => Self::SlowReady,
            _ => Self::AlwaysReady,
        }
    }
}

/// The state of a sink, and what is due to it.
#[allow(clippy::struct_excessive_bools, reason = "the flags are independent")]
struct SinkState {
    behaviour: Behaviour,
    applied: bool,
    dropped: bool,
    /// It may take an item, or complete a flush.
    permit: bool,
    waker: Option<Waker>,
    /// `poll_ready`, `poll_flush`: it returned `Pending` and was not called since.
    pending: [bool; 2],
    /// The last turn in which it woke itself.
    self_woken_in: u64,
    /// `poll_ready`, `poll_flush`: the turn since which a call is due.
    due: [Option<u64>; 2],
    /// It was woken while it was not parked. If the demux handles the wake only after the sink is
    /// parked, it polls the sink once more than necessary.
    woken_while_not_parked: bool,
    /// It returned `Pending` after a wake: from this turn on it may be polled once more.
    retry: Option<u64>,
    /// Its first unflushed item: the item's number, and the turn in which it was sent.
    unflushed: Option<(u64, u64)>,
}

struct World {
    budget: usize,
    window: usize,
    turn: Cell<u64>,
    /// How often each kind of work was done in this turn.
    cost: [Cell<usize>; 4],
    sinks: RefCell<Vec<SinkState>>,
    orders: RefCell<VecDeque<(u64, Order<usize, TestSink>)>>,
    orders_waker: Cell<Option<Waker>>,
    endless_orders: Cell<bool>,
    paused: Cell<bool>,
    ended: Cell<bool>,
    /// The last turn in which an item was read, or the script changed the input or endless orders.
    progress: Cell<u64>,
    items_read: Cell<u64>,
    /// No unflushed item has a lower number.
    oldest: Cell<u64>,
    input_waker: Cell<Option<Waker>>,
}

const READY: usize = 0;
const FLUSH: usize = 1;

/// The kinds of work that a turn has an allowance for, as far as this target sees them.
#[derive(Clone, Copy)]
enum Kind {
    Orders,
    Items,
    Flushes,
    Closes,
}

impl World {
    fn new(budget: usize, window: usize) -> Self {
        Self {
            budget,
            window,
            turn: Cell::new(0),
            cost: Default::default(),
            sinks: RefCell::default(),
            orders: RefCell::default(),
            orders_waker: Cell::default(),
            endless_orders: Cell::new(false),
            paused: Cell::new(false),
            ended: Cell::new(false),
            progress: Cell::new(0),
            items_read: Cell::new(0),
            oldest: Cell::new(0),
            input_waker: Cell::default(),
        }
    }

    fn now(&self) -> u64 {
        self.turn.get()
    }

    fn is_past_limits(&self) -> bool {
        self.now() > MAX_TURNS || self.items_read.get() > MAX_ITEMS
    }

    /// The number of turns within which due work must be done. With more than 16 sinks to flush, 64
    /// turns may pass before the demux stops waiting for the input.
    fn bound(&self) -> u64 {
        110 + 40 * self.sinks.borrow().len().div_ceil(self.budget) as u64
    }

    // -- actions of the script; they return `false`: the demux has not completed --

    fn attach(this: &Rc<Self>, behaviour: Behaviour) -> bool {
        let mut sinks = this.sinks.borrow_mut();
        let index = sinks.len();
        if index < MAX_SINKS {
            sinks.push(SinkState {
                behaviour,
                applied: false,
                dropped: false,
                permit: false,
                waker: None,
                pending: [false; 2],
                self_woken_in: 0,
                due: [None; 2],
                woken_while_not_parked: false,
                retry: None,
                unflushed: None,
            });
            let attach = Attach::new(index, TestSink { index, world: Rc::clone(this) });
            let attach = attach.buffer(4).overflow(Overflow::DropOldest);
            this.orders.borrow_mut().push_back((this.now(), attach.into()));
            this.wake_orders();
        }
        false
    }

    fn wake_orders(&self) {
        self.orders_waker.take().into_iter().for_each(Waker::wake);
    }

    fn wake(&self, nth: usize) -> bool {
        let mut sinks = self.sinks.borrow_mut();
        let count = sinks.len();
        let sink = &mut sinks[nth % count];
        if sink.dropped || !matches!(sink.behaviour, Behaviour::SlowFlush | Behaviour::SlowReady) {
            return false;
        }
        sink.permit = true;
        sink.woken_while_not_parked |= !sink.pending[READY];
        for (due, pending) in sink.due.iter_mut().zip(sink.pending) {
            if pending {
                due.get_or_insert(self.turn.get());
            }
        }
        let waker = sink.waker.clone();
        drop(sinks);
        waker.into_iter().for_each(Waker::wake);
        false
    }

    fn toggle_pause(&self) -> bool {
        self.progress.set(self.now());
        self.paused.set(!self.paused.get());
        self.input_waker.take().into_iter().for_each(Waker::wake);
        false
    }

    fn toggle_endless_orders(&self) -> bool {
        self.progress.set(self.now());
        self.endless_orders.set(!self.endless_orders.get());
        self.wake_orders();
        false
    }

    fn end(&self) {
        self.ended.set(true);
        self.endless_orders.set(false);
        self.input_waker.take().into_iter().for_each(Waker::wake);
        self.wake_orders();
        let sinks = self.sinks.borrow().len();
        for index in 0..sinks {
            self.wake(index);
        }
    }

    // -- checks --

    fn begin_turn(&self) {
        self.turn.set(self.now() + 1);
        self.cost.iter().for_each(|cost| cost.set(0));
    }

    /// Counts a unit of the turn's budget.
    fn spend(&self, kind: Kind) {
        let cost = &self.cost[kind as usize];
        cost.set(cost.get() + 1);
    }

    /// Returns `true` if an item or an order was read in this turn.
    fn has_read(&self) -> bool {
        self.cost[Kind::Orders as usize].get() + self.cost[Kind::Items as usize].get() > 0
    }

    fn check(&self, awake: bool) {
        let (now, bound) = (self.now(), self.bound());
        // A sink is also flushed or closed when it was woken.
        for (cost, allowances) in self.cost.iter().zip([1, 1, 2, 2]) {
            assert!(cost.get() <= allowances * self.budget, "a turn spent {:?}", self.cost);
        }
        let late = |since: u64| now - since > bound;
        for (index, sink) in self.sinks.borrow().iter().enumerate() {
            if sink.dropped {
                continue;
            }
            for (due, kind) in sink.due.iter().zip(["ready", "flush"]) {
                assert!(!due.is_some_and(late), "sink {index} was woken and is not polled: {kind}");
                assert!(
                    awake || due.is_none(),
                    "the task sleeps although sink {index} was woken: {kind}"
                );
            }
            let Some((item, since)) = sink.unflushed.filter(|_| !self.ended.get()) else {
                continue;
            };
            assert!(awake, "the task sleeps although sink {index} is not flushed");
            let passed = self.items_read.get() - item >= self.window as u64;
            let idle = late(self.progress.get().max(since));
            assert!(!passed && !idle || !late(since), "sink {index} is not flushed");
        }
        let first = self.orders.borrow().front().map(|(since, _)| *since);
        // The stream yields these orders before the endless ones.
        assert!(!first.is_some_and(late), "an order is not applied");
        let input_ready = !self.paused.get() && !self.endless_orders.get() && !self.ended.get();
        assert!(!input_ready || !late(self.progress.get()), "no item is read");
    }

    fn check_asleep(&self) {
        let input_ready = !self.paused.get() && !self.ended.get();
        assert!(
            !input_ready && !self.endless_orders.get(),
            "the task sleeps although items or orders are ready"
        );
        assert!(
            self.orders.borrow().is_empty(),
            "the task sleeps although an order is not applied"
        );
        for (index, sink) in self.sinks.borrow().iter().enumerate() {
            let due = sink.due != [None; 2] || sink.unflushed.is_some();
            assert!(sink.dropped || !due, "the task sleeps although sink {index} is due");
        }
    }

    /// Returns `true` if only sinks that wake themselves are left.
    fn only_self_waking_left(&self) -> bool {
        let sinks = self.sinks.borrow();
        sinks.iter().all(|sink| sink.dropped || sink.behaviour == Behaviour::SelfWaking)
    }
}

struct Input(Rc<World>);

impl Stream for Input {
    type Item = usize;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        let world = &self.0;
        if world.ended.get() {
            return Poll::Ready(None);
        }
        if world.paused.get() {
            world.input_waker.set(Some(cx.waker().clone()));
            return Poll::Pending;
        }
        let items_read = world.items_read.get();
        let window = world.window as u64;
        let sinks = world.sinks.borrow();
        if items_read > world.oldest.get() + window {
            let present = sinks.iter().filter(|sink| !sink.dropped);
            let unflushed = present.filter_map(|sink| Some(sink.unflushed?.0));
            let oldest = unflushed.min().unwrap_or(items_read);
            assert!(
                items_read - oldest <= window,
                "the flush window has passed, but a sink was not flushed"
            );
            world.oldest.set(oldest);
        }
        world.spend(Kind::Items);
        world.progress.set(world.now());
        world.items_read.set(items_read + 1);
        // A multiplicative hash, so that all keys occur. The last of them is not attached.
        let key =
            usize::try_from(items_read.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48).unwrap_or(0);
        Poll::Ready(Some(key % (sinks.len() + 1)))
    }
}

struct Orders(Rc<World>);

impl Stream for Orders {
    type Item = Order<usize, TestSink>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let world = &self.0;
        let order = world.orders.borrow_mut().pop_front();
        if let Some((_, order)) = order {
            let mut sinks = world.sinks.borrow_mut();
            if let Some(sink) = sinks.iter_mut().find(|sink| !sink.applied) {
                sink.applied = true;
            }
            world.spend(Kind::Orders);
            return Poll::Ready(Some(order));
        }
        if world.endless_orders.get() {
            world.spend(Kind::Orders);
            return Poll::Ready(Some(Order::Evict(usize::MAX)));
        }
        world.orders_waker.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

struct TestSink {
    index: usize,
    world: Rc<World>,
}

impl TestSink {
    /// Records a call, and checks that it is not too early.
    fn begin_poll(&self, kind: usize) -> std::cell::RefMut<'_, SinkState> {
        let sinks = self.world.sinks.borrow_mut();
        let mut sink = std::cell::RefMut::map(sinks, |sinks| &mut sinks[self.index]);
        let (now, at_start) = (self.world.now(), !self.world.has_read());
        assert!(
            sink.self_woken_in < now,
            "sink {} is polled again in the turn in which it woke itself",
            self.index
        );
        // A flush may be polled again with every item.
        let early = sink.pending[kind] && sink.due[kind].is_none() && kind == READY;
        let retried = early && at_start && sink.retry.is_some_and(|from| from <= now);
        sink.retry = (!retried).then_some(now + 1);
        let allowed_early = retried || early && std::mem::take(&mut sink.woken_while_not_parked);
        let permitted = allowed_early || sink.behaviour == Behaviour::SelfWaking;
        assert!(!early || permitted, "sink {} is polled too early", self.index);
        (sink.pending[kind], sink.due[kind]) = (false, None);
        sink
    }

    fn wait(
        mut sink: std::cell::RefMut<'_, SinkState>,
        kind: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), &'static str>> {
        sink.pending[kind] = true;
        sink.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Sink<usize> for TestSink {
    type Error = &'static str;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let only_self_waking_left = self.world.only_self_waking_left();
        let mut sink = self.begin_poll(READY);
        let (behaviour, ended) = (sink.behaviour, self.world.ended.get());
        match behaviour {
            Behaviour::SelfWaking if !only_self_waking_left || !ended => {
                sink.self_woken_in = self.world.now();
                sink.pending[READY] = true;
                drop(sink);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Behaviour::SlowReady if !std::mem::take(&mut sink.permit) && !ended => {
                Self::wait(sink, READY, cx)
            }
            _ => Poll::Ready(Ok(())),
        }
    }

    fn start_send(self: Pin<&mut Self>, _: usize) -> Result<(), Self::Error> {
        let (now, items_read) = (self.world.now(), self.world.items_read.get());
        let mut sinks = self.world.sinks.borrow_mut();
        sinks[self.index].unflushed.get_or_insert((items_read, now));
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let mut sink = self.begin_poll(FLUSH);
        let had_items = sink.unflushed.take().is_some();
        if had_items {
            self.world.spend(Kind::Flushes);
        }
        let completes = std::mem::take(&mut sink.permit) || self.world.ended.get();
        if sink.behaviour == Behaviour::SlowFlush && !completes {
            return Self::wait(sink, FLUSH, cx);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.world.spend(Kind::Closes);
        Poll::Ready(Ok(()))
    }
}

impl Drop for TestSink {
    fn drop(&mut self) {
        self.world.sinks.borrow_mut()[self.index].dropped = true;
    }
}
