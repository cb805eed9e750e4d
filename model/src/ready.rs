//! Target `ready`: the list of woken slots by itself.
//!
//! A script makes the calls to `src/slots/ready.rs` that the demux and the wakers of sinks, leases and
//! orders make. One call may interrupt another between any two of its atomic operations. The model
//! counts time and records when each call began and ended. It asserts:
//!
//! 1. No wake is lost: after a wake, a slot is listed until a `pop` that ended after the wake
//!    began. At the end, every slot that is listed is popped.
//! 2. No wake is reported twice: a slot is popped only if it was listed since its last `pop`, and
//!    at most once per chain. A slot that was listed after a chain was taken is not in that chain.
//! 3. `by_sink` and `take_fired` report each wake by the sink's own waker exactly once, and no
//!    other wake.
//! 4. The orders' signal stays raised until it is lowered by a call that ended after it was raised.
//! 5. After a lease has ended, `has_ended` returns `true` until `pop_ended` returns its slot. It
//!    returns `true` only if a lease has ended since `pop_ended` last returned `None`.
//! 6. A sleeping task is woken exactly once if there is something to do. A task that is awake is
//!    not woken.
//! 7. A new slot has nothing to do. Wakers that were freed, or whose owner was dropped, neither
//!    wake the task nor keep its waker alive.

use alloc::rc::Rc;
use alloc::sync::Arc;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::task::{Wake, Waker};

use core::during;

use crate::letters::Script;
use crate::slots::id::SlotId;
use crate::slots::ready::{ORDERS, Ready};

const SLOTS: usize = 6;

fn id(slot: usize) -> SlotId {
    SlotId::from_index(slot)
}
const MAX_CALLS: usize = 2_000;

/// Plays a script.
///
/// # Panics
///
/// Panics if one of these assertions fails.
pub fn run(script: &[u8]) {
    let mut script = Script::new(script);
    let model = Rc::new(RefCell::new(Model::new()));
    for _ in 0..MAX_CALLS {
        let Some(letter) = script.letter(LETTERS) else { break };
        if letter == b'!' {
            let steps = script.below(8);
            let call = Call::read(&mut script, &model);
            let other = Call::read(&mut script, &model);
            if call.is_by_owner() && other.is_by_owner() {
                call.make(&model); // the owner cannot interrupt itself
                other.make(&model);
            } else {
                let other_model = Rc::clone(&model);
                during(steps, move || other.make(&other_model), || call.make(&model));
            }
        } else {
            Call::of(letter, &mut script, &model).make(&model);
        }
        model.borrow_mut().check();
    }
    let model = Rc::into_inner(model).expect("every interrupting call has returned").into_inner();
    model.end();
}

/// `!` is followed by a number and two calls: the second call is made before the atomic operation
/// with that number of the first.
const LETTERS: &[u8] = b"wnlthpdazrqs!ww!pdef";

/// One call of the owner or of a waker.
#[derive(Clone)]
enum Call {
    /// `w` and a slot: a sink's waker fires.
    Wake(usize, Waker),
    /// `n` and a slot: a lease's waker fires.
    EndLease(usize, Waker),
    /// `r`: the orders' waker fires.
    WakeOrders(Waker),
    /// `l` and a slot: the owner lists a slot.
    List(usize),
    /// `f` and a slot: the owner fires the waker of a slot's sink.
    Fire(usize),
    /// `h` and a slot.
    TakeFired(usize),
    /// `e`.
    PopEnded,
    /// `t`.
    Take,
    /// `p`.
    Pop,
    /// `d`: takes the list and pops all of it.
    Drain,
    /// `a`.
    Awake,
    /// `z`.
    Sleep,
    /// `q`.
    Lower,
    /// `s`: registers one more slot.
    Register,
}

impl Call {
    fn read(script: &mut Script<'_>, model: &RefCell<Model>) -> Self {
        let letter = script.letter(b"wnlthpdazrqsef").unwrap_or(b'd');
        Self::of(letter, script, model)
    }

    fn of(letter: u8, script: &mut Script<'_>, model: &RefCell<Model>) -> Self {
        let mut model = model.borrow_mut();
        if model.slots.is_empty() {
            model.register_first();
        }
        let mut slot = || script.below(model.slots.len());
        let ready = &model.ready;
        match letter {
            b'w' => {
                let slot = slot();
                Self::Wake(slot, ready.waker(id(slot)).clone())
            }
            b'n' => {
                let slot = slot();
                Self::EndLease(slot, ready.lease_waker(id(slot)))
            }
            b'l' => Self::List(slot()),
            b'f' => Self::Fire(slot()),
            b'h' => Self::TakeFired(slot()),
            b'e' => Self::PopEnded,
            b't' => Self::Take,
            b'p' => Self::Pop,
            b'd' => Self::Drain,
            b'a' => Self::Awake,
            b'z' => Self::Sleep,
            b'r' => Self::WakeOrders(ready.orders_waker().clone()),
            b'q' => Self::Lower,
            _ => Self::Register,
        }
    }

    fn is_by_owner(&self) -> bool {
        !matches!(self, Self::Wake(..) | Self::EndLease(..) | Self::WakeOrders(_))
    }

    fn make(self, model: &RefCell<Model>) {
        match self {
            Self::Wake(slot, waker) => {
                model.borrow_mut().begin_wake(slot, true);
                waker.wake();
                model.borrow_mut().end_wake(slot);
            }
            Self::EndLease(slot, waker) => {
                model.borrow_mut().begin_lease_end(slot);
                waker.wake();
                model.borrow_mut().end_lease_end(slot);
            }
            Self::WakeOrders(waker) => {
                model.borrow_mut().begin_orders_wake();
                waker.wake();
                model.borrow_mut().end_orders_wake();
            }
            call => Self::make_by_owner(call, model),
        }
    }

    /// Makes a call of the owner. The list is moved out of the model, so that interrupting calls
    /// can borrow the model.
    fn make_by_owner(self, model: &RefCell<Model>) {
        let mut ready = std::mem::replace(&mut model.borrow_mut().ready, Ready::new());
        if model.borrow().asleep {
            // The owner acts only while it is awake.
            ready.awake();
            model.borrow_mut().set_awake();
        }
        match self {
            Self::List(slot) => {
                model.borrow_mut().begin_wake(slot, false);
                ready.list(id(slot));
                model.borrow_mut().end_wake(slot);
            }
            Self::Fire(slot) => {
                model.borrow_mut().begin_wake(slot, true);
                ready.fire(id(slot));
                model.borrow_mut().end_wake(slot);
            }
            Self::TakeFired(slot) => {
                let began = model.borrow_mut().tick();
                let fired = ready.take_fired(id(slot));
                model.borrow_mut().took_fired(slot, began, fired);
            }
            Self::PopEnded => {
                let began = model.borrow_mut().tick();
                let popped = ready.pop_ended();
                model.borrow_mut().popped_ended(popped.map(SlotId::index), began);
            }
            Self::Take => Self::take(&mut ready, model),
            Self::Pop => drop(Self::pop(&mut ready, model)),
            Self::Drain => {
                Self::take(&mut ready, model);
                for pops in 0.. {
                    assert!(pops <= SLOTS, "the chain does not end");
                    if !Self::pop(&mut ready, model) {
                        break;
                    }
                }
                assert!(ready.is_last(), "`pop` returned `None` before the chain ended");
            }
            Self::Awake => {
                ready.awake();
                model.borrow_mut().set_awake();
            }
            Self::Sleep => {
                let (task_waker, task) = model.borrow_mut().set_asleep();
                ready.sleep(&task);
                drop((task_waker, task));
            }
            Self::Lower => {
                let began = model.borrow_mut().tick();
                ready.lower_orders();
                let mut model = model.borrow_mut();
                (model.lower_began, model.lower_ended) = (began, model.tick());
            }
            Self::Wake(..) | Self::EndLease(..) | Self::WakeOrders(_) => {}
            Self::Register => {
                let mut model = model.borrow_mut();
                if model.slots.len() < SLOTS {
                    ready.register(id(model.slots.len()));
                    model.slots.push(Slot::default());
                }
            }
        }
        model.borrow_mut().ready = ready;
    }

    fn take(ready: &mut Ready, model: &RefCell<Model>) {
        let fresh = ready.is_last();
        ready.take();
        if fresh {
            let mut model = model.borrow_mut();
            model.chain_taken = model.tick();
            for slot in &mut model.slots {
                slot.popped = false;
            }
        }
    }

    fn pop(ready: &mut Ready, model: &RefCell<Model>) -> bool {
        let began = model.borrow_mut().tick();
        let popped = ready.pop();
        if let Some(woken) = popped {
            model.borrow_mut().popped(woken.id.index(), began, woken.by_sink);
        }
        popped.is_some()
    }
}

/// The model of a slot: when calls for it last began and ended; 0 if never, `u64::MAX` if they have
/// not ended.
#[derive(Clone, Copy, Default)]
struct Slot {
    wake_began: u64,
    wake_ended: u64,
    sink_began: u64,
    sink_ended: u64,
    pop_began: u64,
    pop_ended: u64,
    /// The last `pop` or `take_fired` that reported the sink's waker.
    report_began: u64,
    report_ended: u64,
    /// The first wake since the last `pop`.
    pending: Option<u64>,
    /// The number of wakes in progress.
    in_flight: u32,
    /// A wake overlapped with a `pop`: the slot may be listed or not.
    ambiguous: bool,
    /// The slot was popped from the chain that was taken last.
    popped: bool,
    /// The end of its lease, and the last `pop_ended` that returned it.
    lease_end_began: u64,
    lease_end_ended: u64,
    lease_ends_in_flight: u32,
    pop_ended_began: u64,
    pop_ended_ended: u64,
}

struct CountingWaker(AtomicU32);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

struct Model {
    ready: Ready,
    slots: Vec<Slot>,
    clock: u64,
    /// When the current chain was taken.
    chain_taken: u64,
    orders_wake_began: u64,
    orders_wake_ended: u64,
    orders_wakes_in_flight: u32,
    lower_began: u64,
    lower_ended: u64,
    /// The last `pop_ended` that returned `None`.
    empty_pop_ended_began: u64,
    task_waker: Arc<CountingWaker>,
    /// The number of times that the task had been woken when it last fell asleep or became awake.
    wakes: u32,
    asleep: bool,
    /// A wake was in progress when the task became awake. It may wake the task or not.
    wake_raced: bool,
}

impl Model {
    fn new() -> Self {
        let mut ready = Ready::new();
        ready.reserve(SLOTS);
        Self {
            ready,
            slots: Vec::new(),
            clock: 2,
            chain_taken: 0,
            // The signal is raised at first: the first poll polls the orders.
            orders_wake_began: 1,
            orders_wake_ended: 2,
            orders_wakes_in_flight: 0,
            lower_began: 0,
            lower_ended: 0,
            empty_pop_ended_began: 0,
            task_waker: Arc::new(CountingWaker(AtomicU32::new(0))),
            wakes: 0,
            asleep: false,
            wake_raced: false,
        }
    }

    fn register_first(&mut self) {
        self.ready.register(id(0));
        self.slots.push(Slot::default());
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn begin_wake(&mut self, slot: usize, by_sink: bool) {
        let now = self.tick();
        let slot = &mut self.slots[slot];
        slot.wake_began = now;
        if by_sink {
            slot.sink_began = now;
            slot.sink_ended = u64::MAX;
        }
        slot.wake_ended = u64::MAX;
        slot.pending.get_or_insert(now);
        slot.in_flight += 1;
    }

    fn end_wake(&mut self, slot: usize) {
        let now = self.tick();
        let slot = &mut self.slots[slot];
        slot.in_flight -= 1;
        if slot.in_flight == 0 {
            slot.wake_ended = now;
            slot.sink_ended = slot.sink_ended.min(now);
        }
    }

    fn begin_lease_end(&mut self, slot: usize) {
        let now = self.tick();
        let slot = &mut self.slots[slot];
        slot.lease_end_began = now;
        slot.lease_end_ended = u64::MAX;
        slot.lease_ends_in_flight += 1;
    }

    fn end_lease_end(&mut self, slot: usize) {
        let now = self.tick();
        let slot = &mut self.slots[slot];
        slot.lease_ends_in_flight -= 1;
        if slot.lease_ends_in_flight == 0 {
            slot.lease_end_ended = now;
        }
    }

    fn popped_ended(&mut self, popped: Option<usize>, began: u64) {
        let ended = self.tick();
        let Some(index) = popped else {
            for (index, slot) in self.slots.iter().enumerate() {
                let missed = slot.has_ended_lease() && slot.lease_end_ended < began;
                assert!(
                    !missed,
                    "the lease of slot {index} has ended, but `pop_ended` returned `None`"
                );
            }
            self.empty_pop_ended_began = began;
            return;
        };
        let slot = self.slots.get_mut(index).expect("the slot is registered");
        assert!(
            slot.lease_end_ended > slot.pop_ended_began,
            "the lease of slot {index} has not ended"
        );
        (slot.pop_ended_began, slot.pop_ended_ended) = (began, ended);
    }

    fn begin_orders_wake(&mut self) {
        self.orders_wake_began = self.tick();
        self.orders_wake_ended = u64::MAX;
        self.orders_wakes_in_flight += 1;
    }

    fn end_orders_wake(&mut self) {
        let now = self.tick();
        self.orders_wakes_in_flight -= 1;
        if self.orders_wakes_in_flight == 0 {
            self.orders_wake_ended = now;
        }
    }

    fn took_fired(&mut self, index: usize, began: u64, fired: bool) {
        let ended = self.tick();
        let slot = &mut self.slots[index];
        slot.report(index, began, ended, fired);
    }

    fn popped(&mut self, index: usize, began: u64, by_sink: bool) {
        let ended = self.tick();
        let chain_taken = self.chain_taken;
        let slot = self.slots.get_mut(index).expect("the slot is registered");
        assert!(slot.wake_ended > slot.pop_began, "slot {index} was popped, but it was not listed");
        assert!(!slot.popped, "slot {index} was popped twice from one chain");
        let since = slot.pending.unwrap_or(slot.wake_began);
        assert!(since < chain_taken, "slot {index} was listed after its chain was taken");
        slot.popped = true;
        // A wake that overlaps with this `pop` may have been merged with it, or have listed the
        // slot again.
        slot.ambiguous = slot.wake_began > began || slot.in_flight > 0;
        slot.pending = slot.ambiguous.then_some(slot.wake_began);
        (slot.pop_began, slot.pop_ended) = (began, ended);
        slot.report(index, began, ended, by_sink);
    }

    fn set_awake(&mut self) {
        self.asleep = false;
        self.wakes = self.task_waker.0.load(SeqCst);
        self.wake_raced = self.is_wake_in_flight();
    }

    fn set_asleep(&mut self) -> (Arc<CountingWaker>, Waker) {
        // A second `sleep` in a row counts from now on.
        self.wakes = self.task_waker.0.load(SeqCst);
        self.asleep = true;
        self.wake_raced = false;
        (Arc::clone(&self.task_waker), Waker::from(Arc::clone(&self.task_waker)))
    }

    fn is_wake_in_flight(&self) -> bool {
        self.orders_wakes_in_flight > 0
            || self.slots.iter().any(|slot| slot.in_flight > 0 || slot.lease_ends_in_flight > 0)
    }

    /// Checks what must hold when no call is in progress.
    fn check(&mut self) {
        let mut any = false;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let listed = self.ready.is_listed(id(index));
            if std::mem::take(&mut slot.ambiguous) && !listed {
                slot.pending = None;
            }
            assert_eq!(listed, slot.pending.is_some(), "slot {index} is listed");
            any |= listed;
        }
        assert_eq!(self.ready.any(), any, "a slot is listed");
        let has_ended = self.ready.has_ended();
        if has_ended {
            // The signal may stay raised after the chain was popped, until the next one is taken.
            let may = |slot: &Slot| slot.lease_end_ended > self.empty_pop_ended_began;
            assert!(self.slots.iter().any(may), "no lease has ended");
        } else {
            let must = |slot: &Slot| slot.has_ended_lease() && slot.lease_ends_in_flight == 0;
            assert!(
                !self.slots.iter().any(must),
                "a lease has ended, but `has_ended` returns `false`"
            );
        }
        let raised = self.ready.signals() & ORDERS != 0;
        if raised {
            assert!(
                self.orders_wake_ended > self.lower_began,
                "the orders' signal is raised without a wake"
            );
        } else {
            assert!(
                self.orders_wake_began < self.lower_ended,
                "the orders' waker has fired, but the signal is not raised"
            );
        }
        let wakes = self.task_waker.0.load(SeqCst) - self.wakes;
        if self.asleep {
            assert!(wakes <= 1, "woken {wakes} times");
            assert!(
                wakes == 1 || !any && !raised && !has_ended,
                "the task sleeps although there is something to do"
            );
        } else if !self.wake_raced {
            assert_eq!(wakes, 0, "woken while awake");
        }
    }

    /// Pops what is left, and checks that wakers have no effect after the owner was dropped.
    fn end(mut self) {
        let slots = self.slots.len();
        let model = RefCell::new(self);
        Call::Drain.make(&model);
        Call::Drain.make(&model);
        for _ in 0..=2 * slots {
            Call::PopEnded.make(&model);
        }
        self = model.into_inner();
        self.check();
        assert!(!self.ready.any(), "a slot is listed after draining");
        assert!(self.slots.iter().all(|slot| slot.pending.is_none()));
        assert!(!self.ready.has_ended(), "an ended lease was not popped");
        assert!(!self.slots.iter().any(Slot::has_ended_lease), "the end of a lease was lost");
        assert!(
            !self.slots.iter().any(Slot::has_unreported_wake),
            "a wake by a sink was never reported"
        );

        let sinks = (0..slots).map(|slot| self.ready.waker(id(slot)).clone());
        let mut wakers: Vec<_> = sinks.collect();
        wakers.extend((0..slots).map(|slot| self.ready.lease_waker(id(slot))));
        wakers.push(self.ready.orders_waker().clone());
        let woken_before = self.task_waker.0.load(SeqCst);
        if slots % 2 == 0 {
            self.ready.awake();
            while !self.ready.free_wakers(1) {}
            wakers.iter().for_each(Waker::wake_by_ref);
            self.ready.take();
            assert_eq!(self.ready.pop(), None, "a slot was popped after its waker was freed");
        } else {
            let task = Waker::from(Arc::clone(&self.task_waker));
            self.ready.lower_orders();
            self.ready.sleep(&task);
        }
        let Self { ready, task_waker, .. } = self;
        drop(ready);
        wakers.iter().for_each(Waker::wake_by_ref);
        assert_eq!(task_waker.0.load(SeqCst), woken_before, "woken after the owner was dropped");
        assert_eq!(Arc::strong_count(&task_waker), 1, "a waker keeps the task alive");
    }
}

impl Slot {
    /// Returns `true` if its lease has ended, or is ending, and `pop_ended` has not returned it
    /// since.
    fn has_ended_lease(&self) -> bool {
        self.lease_end_began > self.pop_ended_ended
    }

    /// Records what a call reported about the sink's waker.
    fn report(&mut self, index: usize, began: u64, ended: u64, fired: bool) {
        if fired {
            assert!(
                self.sink_ended > self.report_began,
                "the sink's waker of slot {index} has not fired"
            );
            (self.report_began, self.report_ended) = (began, ended);
        } else {
            let lost = self.has_unreported_wake() && self.sink_ended < began;
            assert!(!lost, "a wake by the sink of slot {index} was not reported");
        }
    }

    /// Returns `true` if the sink's waker has fired, or is firing, and no call has reported it
    /// since.
    fn has_unreported_wake(&self) -> bool {
        self.sink_began > self.report_ended
    }
}
