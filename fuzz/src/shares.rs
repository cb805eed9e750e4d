//! Target `shares`: does everybody get something, when somebody always wants more?
//!
//! The input may have items without end, the orders stream orders without end (that speak of
//! nobody), and sinks may wake themselves whenever they are asked. Beside these there are sinks
//! whose readiness or flush is pending until the script wakes them, and now and then an order to
//! attach one more. Time is counted in turns, and whoever is due has a bound that grows with sinks
//! over budget, and with nothing else. It asserts, within that bound:
//!
//! 1. a sink whose waker fired is asked again for what it waits for, a pending flush too;
//! 2. an order is applied; an item is read, unless orders have no end;
//! 3. a sink that took an item is flushed, at the latest when the window has passed;
//! 4. at the end each sink is told, while others wake themselves without end, and then it
//!    completes;
//! 5. nobody is asked again in the turn in which it woke itself, nor before its waker fired, but
//!    for one that answered after 64 operations of a turn, and then once;
//! 6. a turn does no more than its budget allows, and who is due does not let the task sleep.

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

/// Plays a script. It begins with budget, window, the number of sinks that are there from the start
/// and, for each, its nature.
///
/// # Panics
///
/// If somebody has to wait for longer than is fair.
pub fn run(script: &[u8]) {
    let mut script = Script::new(script);
    let budget = [1, 2, 3, 4, 8, 128][script.below(6)];
    let window = [1, 16, 16_384][script.below(3)];
    let world = Rc::new(World::new(budget, window));
    for _ in 0..=script.below(MAX_SINKS) {
        World::attach(&world, Nature::read(&mut script));
    }
    let (input, orders) = (Input(Rc::clone(&world)), Orders(Rc::clone(&world)));
    let demux = input.demux_by(|item| *item, orders).budget(budget).flush_every(window);
    let mut task = Task::new(demux);
    let mut turns = |limit: u64| {
        for _ in 0..limit {
            let polls = task.polls();
            world.begin();
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
        let Some(letter) = script.letter(b"pprrRwwwwioaa").filter(|_| !world.is_old()) else {
            break;
        };
        let completed = match letter {
            b'p' => turns(1),
            b'r' => turns(16),
            b'R' => turns(world.bound() + 2),
            b'w' => world.wake(script.below(MAX_SINKS)),
            b'i' => world.pause(),
            b'o' => world.flood(),
            _ => World::attach(&world, Nature::read(&mut script)),
        };
        assert!(!completed, "completed, and the input goes on");
    }
    world.end();
    let sinks = world.sinks.borrow().len() as u64;
    assert!(turns(4 * world.bound() + 8 * sinks), "not everybody was told the end, and closed");
}

/// What a sink is like.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nature {
    /// `p`: always ready.
    Plain,
    /// `s`: never ready, and wakes itself whenever it is asked; until all others are gone.
    Stutters,
    /// `f`: its flush is pending until it is woken.
    Flushes,
    /// `r`: ready once for each time it is woken.
    Waits,
}

impl Nature {
    fn read(script: &mut Script<'_>) -> Self {
        match script.letter(b"psfrsfr").unwrap_or(b'p') {
            b's' => Self::Stutters,
            b'f' => Self::Flushes,
            b'r' => Self::Waits,
            _ => Self::Plain,
        }
    }
}

/// A sink and what is due to it.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Seen {
    nature: Nature,
    applied: bool,
    dropped: bool,
    /// It may take an item, or end a flush.
    allowed: bool,
    waker: Option<Waker>,
    /// What said `Pending` and was not asked since: ready, flush.
    waits: [bool; 2],
    /// In which turn it woke itself.
    stuttered: u64,
    /// Since when it is due to be asked again: ready, flush.
    due: [Option<u64>; 2],
    /// It was woken while it was not parked. If that comes to the demux only after it is parked, it
    /// is asked once too often.
    was_woken: bool,
    /// It answered late in a turn that it is not ready: from this turn on it may be asked once
    /// more.
    retry: Option<u64>,
    /// Which item, and when, it took first of those that are not flushed.
    unflushed: Option<(u64, u64)>,
}

struct World {
    budget: usize,
    window: usize,
    turn: Cell<u64>,
    cost: Cell<usize>,
    /// Items and orders read, items sent, flushes and closes completed in this turn.
    operations: Cell<u64>,
    sinks: RefCell<Vec<Seen>>,
    orders: RefCell<VecDeque<(u64, Order<usize, Port>)>>,
    orders_waker: Cell<Option<Waker>>,
    flooded: Cell<bool>,
    paused: Cell<bool>,
    over: Cell<bool>,
    /// When the input or the flood was changed, or an item was read.
    progress: Cell<u64>,
    given: Cell<u64>,
    /// No item that is not flushed is older.
    oldest: Cell<u64>,
    input_waker: Cell<Option<Waker>>,
}

const READY: usize = 0;
const FLUSH: usize = 1;

impl World {
    fn new(budget: usize, window: usize) -> Self {
        Self {
            budget,
            window,
            turn: Cell::new(0),
            cost: Cell::new(0),
            operations: Cell::new(0),
            sinks: RefCell::default(),
            orders: RefCell::default(),
            orders_waker: Cell::default(),
            flooded: Cell::new(false),
            paused: Cell::new(false),
            over: Cell::new(false),
            progress: Cell::new(0),
            given: Cell::new(0),
            oldest: Cell::new(0),
            input_waker: Cell::default(),
        }
    }

    fn now(&self) -> u64 {
        self.turn.get()
    }

    fn is_old(&self) -> bool {
        self.now() > MAX_TURNS || self.given.get() > MAX_ITEMS
    }

    /// How many turns are fair.
    fn bound(&self) -> u64 {
        40 + 40 * self.sinks.borrow().len().div_ceil(self.budget) as u64
    }

    // -- what the script does; false, as nothing completes by it --

    fn attach(this: &Rc<Self>, nature: Nature) -> bool {
        let mut sinks = this.sinks.borrow_mut();
        let at = sinks.len();
        if at < MAX_SINKS {
            sinks.push(Seen {
                nature,
                applied: false,
                dropped: false,
                allowed: false,
                waker: None,
                waits: [false; 2],
                stuttered: 0,
                due: [None; 2],
                was_woken: false,
                retry: None,
                unflushed: None,
            });
            let attach = Attach::new(at, Port { at, world: Rc::clone(this) });
            let attach = attach.buffer(4).overflow(Overflow::DropOldest);
            this.orders.borrow_mut().push_back((this.now(), attach.into()));
            this.ring();
        }
        false
    }

    fn ring(&self) {
        self.orders_waker.take().into_iter().for_each(Waker::wake);
    }

    fn wake(&self, nth: usize) -> bool {
        let mut sinks = self.sinks.borrow_mut();
        let count = sinks.len();
        let sink = &mut sinks[nth % count];
        if sink.dropped || !matches!(sink.nature, Nature::Flushes | Nature::Waits) {
            return false;
        }
        sink.allowed = true;
        sink.was_woken |= !sink.waits[READY];
        for (due, waits) in sink.due.iter_mut().zip(sink.waits) {
            if waits {
                due.get_or_insert(self.turn.get());
            }
        }
        let waker = sink.waker.clone();
        drop(sinks);
        waker.into_iter().for_each(Waker::wake);
        false
    }

    fn pause(&self) -> bool {
        self.progress.set(self.now());
        self.paused.set(!self.paused.get());
        self.input_waker.take().into_iter().for_each(Waker::wake);
        false
    }

    fn flood(&self) -> bool {
        self.progress.set(self.now());
        self.flooded.set(!self.flooded.get());
        self.ring();
        false
    }

    fn end(&self) {
        self.over.set(true);
        self.flooded.set(false);
        self.input_waker.take().into_iter().for_each(Waker::wake);
        self.ring();
        let sinks = self.sinks.borrow().len();
        for at in 0..sinks {
            self.wake(at);
        }
    }

    // -- what is fair --

    fn begin(&self) {
        self.turn.set(self.now() + 1);
        self.cost.set(0);
        self.operations.set(0);
    }

    fn operated(&self) {
        self.operations.set(self.operations.get() + 1);
    }

    /// Something was done that costs one.
    fn spend(&self) {
        self.cost.set(self.cost.get() + 1);
    }

    fn check(&self, awake: bool) {
        let (now, bound) = (self.now(), self.bound());
        assert!(self.cost.get() <= self.budget + 1, "a turn did {}", self.cost.get());
        let late = |since: u64| now - since > bound;
        for (at, sink) in self.sinks.borrow().iter().enumerate() {
            if sink.dropped {
                continue;
            }
            for (due, what) in sink.due.iter().zip(["ready", "flush"]) {
                assert!(!due.is_some_and(late), "{at} was woken, and is not asked: {what}");
                assert!(awake || due.is_none(), "it sleeps, and {at} was woken: {what}");
            }
            let Some((item, since)) = sink.unflushed.filter(|_| !self.over.get()) else { continue };
            assert!(awake, "it sleeps, and {at} is not flushed");
            let passed = self.given.get() - item >= self.window as u64;
            let idle = late(self.progress.get().max(since));
            assert!(!passed && !idle || !late(since), "{at} is not flushed");
        }
        let first = self.orders.borrow().front().map(|(since, _)| *since);
        // With a flood before it, it is the flood's fault; there is none, as these come first.
        assert!(!first.is_some_and(late), "an order is not applied");
        let flows = !self.paused.get() && !self.flooded.get() && !self.over.get();
        assert!(!flows || !late(self.progress.get()), "no item is read");
    }

    fn check_asleep(&self) {
        let flows = !self.paused.get() && !self.over.get();
        assert!(!flows && !self.flooded.get(), "it sleeps, and there are items, or orders");
        assert!(self.orders.borrow().is_empty(), "it sleeps, and an order is not applied");
        for (at, sink) in self.sinks.borrow().iter().enumerate() {
            let due = sink.due != [None; 2] || sink.unflushed.is_some();
            assert!(sink.dropped || !due, "it sleeps, and {at} is due");
        }
    }

    /// Those who wake themselves have nobody left to hinder.
    fn are_alone(&self) -> bool {
        let sinks = self.sinks.borrow();
        sinks.iter().all(|sink| sink.dropped || sink.nature == Nature::Stutters)
    }
}

struct Input(Rc<World>);

impl Stream for Input {
    type Item = usize;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        let world = &self.0;
        if world.over.get() {
            return Poll::Ready(None);
        }
        if world.paused.get() {
            world.input_waker.set(Some(cx.waker().clone()));
            return Poll::Pending;
        }
        let given = world.given.get();
        let window = world.window as u64;
        let sinks = world.sinks.borrow();
        if given > world.oldest.get() + window {
            let present = sinks.iter().filter(|sink| !sink.dropped);
            let unflushed = present.filter_map(|sink| Some(sink.unflushed?.0));
            let oldest = unflushed.min().unwrap_or(given);
            assert!(given - oldest <= window, "a window has passed, and somebody was not flushed");
            world.oldest.set(oldest);
        }
        world.spend();
        world.operated();
        world.progress.set(world.now());
        world.given.set(given + 1);
        // Some are rare, some frequent.
        let mixed = usize::try_from(given.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48).unwrap_or(0);
        Poll::Ready(Some(mixed % (sinks.len() + 1)))
    }
}

struct Orders(Rc<World>);

impl Stream for Orders {
    type Item = Order<usize, Port>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let world = &self.0;
        let order = world.orders.borrow_mut().pop_front();
        if let Some((_, order)) = order {
            let mut sinks = world.sinks.borrow_mut();
            if let Some(sink) = sinks.iter_mut().find(|sink| !sink.applied) {
                sink.applied = true;
            }
            world.spend();
            world.operated();
            return Poll::Ready(Some(order));
        }
        if world.flooded.get() {
            world.spend();
            world.operated();
            return Poll::Ready(Some(Order::Evict(usize::MAX)));
        }
        world.orders_waker.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

struct Port {
    at: usize,
    world: Rc<World>,
}

impl Port {
    /// It is asked: is that so soon?
    fn enter(&self, what: usize) -> std::cell::RefMut<'_, Seen> {
        let sinks = self.world.sinks.borrow_mut();
        let mut sink = std::cell::RefMut::map(sinks, |sinks| &mut sinks[self.at]);
        let now = self.world.now();
        assert!(sink.stuttered < now, "{} is asked again in the turn it woke itself", self.at);
        // A flush may be asked again with every item.
        let early = sink.waits[what] && sink.due[what].is_none() && what == READY;
        let retried = early && sink.retry.take_if(|from| *from <= now).is_some();
        let excused = retried || early && std::mem::take(&mut sink.was_woken);
        let may = excused || sink.nature == Nature::Stutters;
        assert!(!early || may, "{} is asked too early", self.at);
        (sink.waits[what], sink.due[what]) = (false, None);
        sink
    }

    fn wait(
        mut sink: std::cell::RefMut<'_, Seen>,
        what: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), &'static str>> {
        sink.waits[what] = true;
        sink.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Sink<usize> for Port {
    type Error = &'static str;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let alone = self.world.are_alone();
        let mut sink = self.enter(READY);
        let (nature, over) = (sink.nature, self.world.over.get());
        match nature {
            Nature::Stutters if !alone || !over => {
                sink.stuttered = self.world.now();
                sink.waits[READY] = true;
                drop(sink);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Nature::Waits if !std::mem::take(&mut sink.allowed) && !over => {
                let late = self.world.operations.get() >= 64;
                sink.retry = late.then(|| self.world.now() + 1);
                Self::wait(sink, READY, cx)
            }
            _ => Poll::Ready(Ok(())),
        }
    }

    fn start_send(self: Pin<&mut Self>, _: usize) -> Result<(), Self::Error> {
        let (now, given) = (self.world.now(), self.world.given.get());
        let mut sinks = self.world.sinks.borrow_mut();
        sinks[self.at].unflushed.get_or_insert((given, now));
        self.world.operated();
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let mut sink = self.enter(FLUSH);
        let owed = sink.unflushed.take().is_some();
        if owed {
            self.world.spend();
        }
        let goes_on = std::mem::take(&mut sink.allowed) || self.world.over.get();
        if sink.nature == Nature::Flushes && !goes_on {
            return Self::wait(sink, FLUSH, cx);
        }
        self.world.operated();
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.world.spend();
        self.world.operated();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.world.sinks.borrow_mut()[self.at].dropped = true;
    }
}
