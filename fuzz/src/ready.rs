//! Target `ready`: the list of woken slots, alone.
//!
//! A script makes calls to `src/ready.rs`, as the demux and as the wakers of sinks, leases and
//! orders do, and lets one call be interrupted by another between any two of its atomic operations.
//! The model keeps a clock, and knows of each call when it began and when it was over. It asserts:
//!
//! 1. No wake is lost: a slot is listed after a wake until a `pop` that was not over when the wake
//!    began, and in the end all that is listed is popped.
//! 2. None comes twice: a slot is popped only if something listed it since it was popped last, and
//!    only once in one chain; what was listed after the chain was taken is not in it.
//! 3. `by_sink`, and `take_fired`, tell of the sink's own waker alone, once, and never fail to.
//! 4. The orders' signal stands until it is lowered, and is not lowered by a call that was over
//!    before.
//! 5. Once a lease has ended, `has_ended` is true until `pop_ended` has come to its slot; and it is
//!    true only if a lease has ended since `pop_ended` found no slot.
//! 6. A task that sleeps is woken if there is something to do, once; one that is awake is not
//!    woken.
//! 7. A new seat has nothing to do; what was cleared or dropped wakes no task, and keeps none.

use alloc::rc::Rc;
use alloc::sync::Arc;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::task::{Wake, Waker};

use crate::id::SlotId;
use crate::interleave::during;
use crate::script::Script;

#[path = "../../src/ready.rs"]
mod list;

use list::{ORDERS, Ready};

const SLOTS: usize = 6;

fn id(slot: usize) -> SlotId {
    SlotId::from_index(slot)
}
const MAX_CALLS: usize = 2_000;

/// Plays a script.
///
/// # Panics
///
/// If the list breaks one of its promises.
pub fn run(script: &[u8]) {
    let mut script = Script::new(script);
    let world = Rc::new(RefCell::new(World::new()));
    for _ in 0..MAX_CALLS {
        let Some(letter) = script.letter(LETTERS) else { break };
        if letter == b'!' {
            let steps = script.below(8);
            let call = Call::read(&mut script, &world);
            let other = Call::read(&mut script, &world);
            if call.is_owners() && other.is_owners() {
                call.make(&world); // the owner does not interrupt itself
                other.make(&world);
            } else {
                let theirs = Rc::clone(&world);
                during(steps, move || other.make(&theirs), || call.make(&world));
            }
        } else {
            Call::of(letter, &mut script, &world).make(&world);
        }
        world.borrow_mut().check();
    }
    let world = Rc::into_inner(world).expect("whoever interrupted is gone").into_inner();
    world.end();
}

/// `!` has a number and two calls: the second happens before that atomic operation of the first.
const LETTERS: &[u8] = b"wnlthpdazrqs!ww!pdef";

/// One call of the owner or of a waker.
#[derive(Clone)]
enum Call {
    /// A sink's waker fires: `w` and a slot.
    Wake(usize, Waker),
    /// A lease's: `n` and a slot.
    EndLease(usize, Waker),
    /// The orders': `r`.
    Ring(Waker),
    /// The owner lists a slot: `l` and a slot.
    List(usize),
    /// The owner fires the waker of a slot's sink: `f` and a slot.
    Fire(usize),
    /// `h` and a slot.
    TakeFired(usize),
    /// `e`.
    PopEnded,
    /// `t`.
    Take,
    /// `p`.
    Pop,
    /// `d`: takes, and pops to the end.
    Drain,
    /// `a`.
    Awake,
    /// `z`.
    Sleep,
    /// `q`.
    Lower,
    /// `s`: one more slot.
    Seat,
}

impl Call {
    fn read(script: &mut Script<'_>, world: &RefCell<World>) -> Self {
        let letter = script.letter(b"wnlthpdazrqsef").unwrap_or(b'd');
        Self::of(letter, script, world)
    }

    fn of(letter: u8, script: &mut Script<'_>, world: &RefCell<World>) -> Self {
        let mut world = world.borrow_mut();
        if world.slots.is_empty() {
            world.seat();
        }
        let mut slot = || script.below(world.slots.len());
        let ready = &world.ready;
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
            b'r' => Self::Ring(ready.orders_waker().clone()),
            b'q' => Self::Lower,
            _ => Self::Seat,
        }
    }

    fn is_owners(&self) -> bool {
        !matches!(self, Self::Wake(..) | Self::EndLease(..) | Self::Ring(_))
    }

    fn make(self, world: &RefCell<World>) {
        match self {
            Self::Wake(slot, waker) => {
                world.borrow_mut().begin_wake(slot, true);
                waker.wake();
                world.borrow_mut().end_wake(slot);
            }
            Self::EndLease(slot, waker) => {
                world.borrow_mut().begin_end(slot);
                waker.wake();
                world.borrow_mut().end_end(slot);
            }
            Self::Ring(waker) => {
                world.borrow_mut().begin_ring();
                waker.wake();
                world.borrow_mut().end_ring();
            }
            owners => Self::owner(owners, world),
        }
    }

    /// The owner's calls: it is taken out, so that wakers can be told of meanwhile.
    fn owner(self, world: &RefCell<World>) {
        let mut ready = std::mem::replace(&mut world.borrow_mut().ready, Ready::new());
        if world.borrow().asleep {
            // Whatever it does, it gets up first.
            ready.awake();
            world.borrow_mut().woke_up();
        }
        match self {
            Self::List(slot) => {
                world.borrow_mut().begin_wake(slot, false);
                ready.list(id(slot));
                world.borrow_mut().end_wake(slot);
            }
            Self::Fire(slot) => {
                world.borrow_mut().begin_wake(slot, true);
                ready.fire(id(slot));
                world.borrow_mut().end_wake(slot);
            }
            Self::TakeFired(slot) => {
                let began = world.borrow_mut().tick();
                let fired = ready.take_fired(id(slot));
                world.borrow_mut().took_fired(slot, began, fired);
            }
            Self::PopEnded => {
                let began = world.borrow_mut().tick();
                let popped = ready.pop_ended();
                world.borrow_mut().popped_ended(popped.map(SlotId::index), began);
            }
            Self::Take => Self::take(&mut ready, world),
            Self::Pop => drop(Self::pop(&mut ready, world)),
            Self::Drain => {
                Self::take(&mut ready, world);
                for pops in 0.. {
                    assert!(pops <= SLOTS, "the chain has no end");
                    if !Self::pop(&mut ready, world) {
                        break;
                    }
                }
                assert!(ready.is_last(), "nothing was popped, and there is more");
            }
            Self::Awake => {
                ready.awake();
                world.borrow_mut().woke_up();
            }
            Self::Sleep => {
                let (bell, task) = world.borrow_mut().fall_asleep();
                ready.sleep(&task);
                drop((bell, task));
            }
            Self::Lower => {
                let began = world.borrow_mut().tick();
                ready.lower_orders();
                let mut world = world.borrow_mut();
                (world.hush_began, world.hush_ended) = (began, world.tick());
            }
            Self::Wake(..) | Self::EndLease(..) | Self::Ring(_) => {}
            Self::Seat => {
                let mut world = world.borrow_mut();
                if world.slots.len() < SLOTS {
                    ready.register(id(world.slots.len()));
                    world.slots.push(Slot::default());
                }
            }
        }
        world.borrow_mut().ready = ready;
    }

    fn take(ready: &mut Ready, world: &RefCell<World>) {
        let fresh = ready.is_last();
        ready.take();
        if fresh {
            let mut world = world.borrow_mut();
            world.taken = world.tick();
            for slot in &mut world.slots {
                slot.popped = false;
            }
        }
    }

    fn pop(ready: &mut Ready, world: &RefCell<World>) -> bool {
        let began = world.borrow_mut().tick();
        let popped = ready.pop();
        if let Some(woken) = popped {
            world.borrow_mut().popped(woken.id.index(), began, woken.by_sink);
        }
        popped.is_some()
    }
}

/// What is known of a slot: when what began and ended last, 0 if it never did.
#[derive(Clone, Copy, Default)]
struct Slot {
    wake_began: u64,
    wake_ended: u64,
    sink_began: u64,
    sink_ended: u64,
    pop_began: u64,
    pop_ended: u64,
    /// The last `pop` or `take_fired` that told of the sink's waker.
    told_began: u64,
    told_ended: u64,
    /// The first wake that no pop has come after.
    pending: Option<u64>,
    /// How many wakes are not over.
    in_flight: u32,
    /// A wake and a pop were at it at once: either is right.
    unsure: bool,
    /// From the chain that was taken last.
    popped: bool,
    /// The end of its lease, and the last `pop_ended` that came to it.
    end_began: u64,
    end_ended: u64,
    ends_in_flight: u32,
    pop_ended_began: u64,
    pop_ended_ended: u64,
}

struct Bell(AtomicU32);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

struct World {
    ready: Ready,
    slots: Vec<Slot>,
    clock: u64,
    /// When the chain in hand was taken.
    taken: u64,
    ring_began: u64,
    ring_ended: u64,
    rings_in_flight: u32,
    hush_began: u64,
    hush_ended: u64,
    /// The last `pop_ended` that found no slot.
    none_ended_began: u64,
    bell: Arc<Bell>,
    /// Bells fired up to the last time it fell asleep, and whether it has not got up since.
    fired: u32,
    asleep: bool,
    /// A waker was under way as it got up or lay down: it may find it either way.
    blurred: bool,
}

impl World {
    fn new() -> Self {
        let mut ready = Ready::new();
        ready.reserve(SLOTS);
        Self {
            ready,
            slots: Vec::new(),
            clock: 2,
            taken: 0,
            // The first poll looks at the orders unasked.
            ring_began: 1,
            ring_ended: 2,
            rings_in_flight: 0,
            hush_began: 0,
            hush_ended: 0,
            none_ended_began: 0,
            bell: Arc::new(Bell(AtomicU32::new(0))),
            fired: 0,
            asleep: false,
            blurred: false,
        }
    }

    fn seat(&mut self) {
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

    fn begin_end(&mut self, slot: usize) {
        let now = self.tick();
        let slot = &mut self.slots[slot];
        slot.end_began = now;
        slot.end_ended = u64::MAX;
        slot.ends_in_flight += 1;
    }

    fn end_end(&mut self, slot: usize) {
        let now = self.tick();
        let slot = &mut self.slots[slot];
        slot.ends_in_flight -= 1;
        if slot.ends_in_flight == 0 {
            slot.end_ended = now;
        }
    }

    fn popped_ended(&mut self, popped: Option<usize>, began: u64) {
        let ended = self.tick();
        let Some(at) = popped else {
            for (at, slot) in self.slots.iter().enumerate() {
                let left = slot.has_ended() && slot.end_ended < began;
                assert!(!left, "the lease of {at} has ended, and nothing was popped");
            }
            self.none_ended_began = began;
            return;
        };
        let slot = self.slots.get_mut(at).expect("a slot that there is not");
        assert!(slot.end_ended > slot.pop_ended_began, "the lease of {at} has not ended");
        (slot.pop_ended_began, slot.pop_ended_ended) = (began, ended);
    }

    fn begin_ring(&mut self) {
        self.ring_began = self.tick();
        self.ring_ended = u64::MAX;
        self.rings_in_flight += 1;
    }

    fn end_ring(&mut self) {
        let now = self.tick();
        self.rings_in_flight -= 1;
        if self.rings_in_flight == 0 {
            self.ring_ended = now;
        }
    }

    fn took_fired(&mut self, at: usize, began: u64, fired: bool) {
        let ended = self.tick();
        let slot = &mut self.slots[at];
        slot.tell(at, began, ended, fired);
    }

    fn popped(&mut self, at: usize, began: u64, by_sink: bool) {
        let ended = self.tick();
        let taken = self.taken;
        let slot = self.slots.get_mut(at).expect("a slot that there is not");
        assert!(slot.wake_ended > slot.pop_began, "{at} was popped, and nothing listed it");
        assert!(!slot.popped, "{at} was popped twice from one chain");
        let since = slot.pending.unwrap_or(slot.wake_began);
        assert!(since < taken, "{at} was popped from a chain that was taken before it was listed");
        slot.popped = true;
        // A wake that began after this may have been merged, or have listed it anew.
        slot.unsure = slot.wake_began > began || slot.in_flight > 0;
        slot.pending = slot.unsure.then_some(slot.wake_began);
        (slot.pop_began, slot.pop_ended) = (began, ended);
        slot.tell(at, began, ended, by_sink);
    }

    fn woke_up(&mut self) {
        self.asleep = false;
        self.fired = self.bell.0.load(SeqCst);
        self.blurred = self.under_way();
    }

    fn fall_asleep(&mut self) -> (Arc<Bell>, Waker) {
        // Twice in a row is no more than once.
        self.fired = self.bell.0.load(SeqCst);
        self.asleep = true;
        self.blurred = false;
        (Arc::clone(&self.bell), Waker::from(Arc::clone(&self.bell)))
    }

    fn under_way(&self) -> bool {
        self.rings_in_flight > 0
            || self.slots.iter().any(|slot| slot.in_flight > 0 || slot.ends_in_flight > 0)
    }

    /// What must hold while nobody is in the middle of something.
    fn check(&mut self) {
        let mut any = false;
        for (at, slot) in self.slots.iter_mut().enumerate() {
            let listed = self.ready.is_listed(id(at));
            if std::mem::take(&mut slot.unsure) && !listed {
                slot.pending = None;
            }
            assert_eq!(listed, slot.pending.is_some(), "is {at} listed?");
            any |= listed;
        }
        assert_eq!(self.ready.any(), any, "is anything listed?");
        assert_eq!(self.slots.len(), self.slots.len());
        let has_ended = self.ready.has_ended();
        if has_ended {
            // A signal may outlast the chain: it is lowered when the next one is taken.
            let may = |slot: &Slot| slot.end_ended > self.none_ended_began;
            assert!(self.slots.iter().any(may), "no lease has ended");
        } else {
            let must = |slot: &Slot| slot.has_ended() && slot.ends_in_flight == 0;
            assert!(!self.slots.iter().any(must), "a lease has ended, and nothing tells");
        }
        let rung = self.ready.signals() & ORDERS != 0;
        if rung {
            assert!(self.ring_ended > self.hush_began, "it rings, and nobody rang");
        } else {
            assert!(self.ring_began < self.hush_ended, "it was rung, and is silent");
        }
        let fired = self.bell.0.load(SeqCst) - self.fired;
        if self.asleep {
            assert!(fired <= 1, "woken {fired} times");
            assert!(
                fired == 1 || !any && !rung && !has_ended,
                "it sleeps, and there is something to do"
            );
        } else if !self.blurred {
            assert_eq!(fired, 0, "woken while awake");
        }
    }

    /// What is left is popped; what outlives the owner does nothing.
    fn end(mut self) {
        let slots = self.slots.len();
        let world = RefCell::new(self);
        Call::Drain.make(&world);
        Call::Drain.make(&world);
        for _ in 0..=2 * slots {
            Call::PopEnded.make(&world);
        }
        self = world.into_inner();
        self.check();
        assert!(!self.ready.any(), "it was drained, and there is more");
        assert!(self.slots.iter().all(|slot| slot.pending.is_none()));
        assert!(!self.ready.has_ended(), "leases have ended, and are not popped");
        assert!(!self.slots.iter().any(Slot::has_ended), "the end of a lease was lost");
        assert!(!self.slots.iter().any(Slot::is_untold), "a sink's waker was never told of");

        let sinks = (0..slots).map(|slot| self.ready.waker(id(slot)).clone());
        let mut wakers: Vec<_> = sinks.collect();
        wakers.extend((0..slots).map(|slot| self.ready.lease_waker(id(slot))));
        wakers.push(self.ready.orders_waker().clone());
        let fired = self.bell.0.load(SeqCst);
        if slots % 2 == 0 {
            self.ready.awake();
            while !self.ready.free_wakers(1) {}
            wakers.iter().for_each(Waker::wake_by_ref);
            self.ready.take();
            assert_eq!(self.ready.pop(), None, "popped from what was cleared");
        } else {
            let task = Waker::from(Arc::clone(&self.bell));
            self.ready.lower_orders();
            self.ready.sleep(&task);
        }
        let Self { ready, bell, .. } = self;
        drop(ready);
        wakers.iter().for_each(Waker::wake_by_ref);
        assert_eq!(bell.0.load(SeqCst), fired, "woken after the owner was dropped");
        assert_eq!(Arc::strong_count(&bell), 1, "the task is kept by a waker");
    }
}

impl Slot {
    /// Its lease has ended, or ends now, and `pop_ended` has not come to it since.
    fn has_ended(&self) -> bool {
        self.end_began > self.pop_ended_ended
    }

    /// The owner was told whether the sink's waker has fired since it was told last.
    fn tell(&mut self, at: usize, began: u64, ended: u64, fired: bool) {
        if fired {
            assert!(self.sink_ended > self.told_began, "the sink's waker of {at} has not fired");
            (self.told_began, self.told_ended) = (began, ended);
        } else {
            let lost = self.is_untold() && self.sink_ended < began;
            assert!(!lost, "the sink's waker of {at} has fired");
        }
    }

    /// The sink's waker has fired, or fires now, and the owner was not told since.
    fn is_untold(&self) -> bool {
        self.sink_began > self.told_ended
    }
}
