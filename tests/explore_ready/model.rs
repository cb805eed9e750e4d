//! `src/ready.rs` as steps: each atomic operation is one, with the line of code it stands for.
//!
//! Two wakers run what a sink's waker (`Act::Wake`), a lease's (`Nudge`) or the orders' (`Ring`) does;
//! the owner takes turns as `src/poll.rs` has them. `atomic-waker` is modelled by its steps too. What
//! the owner does between two atomic operations belongs to the step before.

use std::fmt;

use crate::memory::Order::{AcqRel, Acquire, Release};
use crate::memory::{BITS, HEAD, LOCATIONS, Memory, NEXT, NOTE, Order};
use crate::steps::Stepping;

pub const END: u8 = 9;
pub const LISTED: u8 = 1;
pub const BY_SINK: u8 = 2;
/// Alone, the owner comes to rest in so many turns, or never.
const RESTLESS: u8 = 5;

/// The orderings of `ready.rs`, each of which can be weakened, and what else can be done wrong.
#[derive(Clone, Copy)]
pub struct Protocol {
    /// wake: `bits.fetch_or`
    pub claim: Order,
    /// wake: `head.compare_exchange_weak`
    pub link: Order,
    /// wake: `bell.swap(true)`
    pub ring: Order,
    /// `take`: `head.swap`
    pub take: Order,
    /// `pop`: `bits.swap(0)`
    pub clear: Order,
    /// `hear`: `bits.fetch_and`
    pub hear: Order,
    /// `hush`: `bell.swap(false)`
    pub hush: Order,
    /// `any`: `head.load`
    pub any: Order,
    /// `rung`: `bell.load`
    pub rung: Order,
    /// `AtomicWaker`: what all but its unlocking says, which is `Release`.
    pub task: Order,
    pub flaw: Option<Flaw>,
}

/// As it is in `src/ready.rs`.
pub const AS_IT_IS: Protocol = Protocol {
    claim: AcqRel,
    link: Release,
    ring: Release,
    take: Acquire,
    clear: AcqRel,
    hear: AcqRel,
    hush: Acquire,
    any: Acquire,
    rung: Acquire,
    task: AcqRel,
    flaw: None,
};

/// Ways to get it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The bits are loaded, then stored, instead of one read-modify-write.
    ClaimByLoad,
    /// A wake that finds the node listed leaves without having said that the sink it was.
    ClaimWithoutReason,
    /// The top of the stack is stored, not exchanged.
    LinkByStore,
    /// The task is woken before the node is listed.
    WakeBeforeList,
    /// The bell is stored, not swapped.
    RingByStore,
    /// The list is taken though the last one is not finished.
    TakeOverTaken,
    /// The task sleeps though the last list is not finished.
    SleepOnTaken,
    /// The bits are cleared, then `next` is read.
    ClearBeforeNext,
    /// The sink is polled, then the bits are cleared.
    ClearAfterPoll,
    /// The sink is polled, then its wake is taken for heard.
    HearAfterPoll,
    /// The orders are polled, then the bell is hushed.
    HushAfterPoll,
    /// The waker is registered after the looking, not before: there is no look after it.
    RegisterAfterLook,
    /// After the waker was registered, only the bell is looked at.
    LookAtBellOnly,
    /// After the waker was registered, only the list is looked at.
    LookAtHeadOnly,
}

/// What a waker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The sink in this slot has news, and wakes.
    Wake(u8),
    /// A lease of this slot has a wish, and wakes.
    Nudge(u8),
    /// The orders have an order, and ring.
    Ring,
    /// A sink that was in this slot wakes, after it is gone.
    Stale(u8),
}

/// What the owner does besides, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    Nothing,
    /// Asks slot 0 something before its turn has come, in the first two turns: `hear`, then poll.
    Hear,
    /// Looks after slot 0 unless it is listed, in the first two turns: `attend`.
    Attend,
    /// Leaves something undone when slot 0 was popped first, and lists it: `drain`.
    Relist,
    /// The sink in slot 0 wakes itself when it is polled first.
    WakesItself,
    /// The first order replaces the tenant of slot 0; what the second waker does, it does for the new
    /// one, and not before.
    Replace,
}

#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub acts: [&'static [Act]; 2],
    /// Slots looked after in a turn.
    pub budget: u8,
    pub extra: Extra,
}

/// What a sink that wakes itself has to tell.
pub const OWN_NEWS: u8 = 1 << 7;

impl Scenario {
    pub fn act(&self, thread: usize, act: u8) -> Option<Act> {
        self.acts[thread].get(usize::from(act)).copied()
    }

    /// One bit for each act.
    pub fn bit(thread: usize, act: u8) -> u8 {
        1 << (thread * 3 + usize::from(act))
    }

    /// What must have been seen once all have come to rest.
    fn all_news(&self) -> Seen {
        let mut all = Seen::default();
        for thread in 0..2 {
            for act in 0..=2 {
                let bit = Self::bit(thread, act);
                match self.act(thread, act) {
                    Some(Act::Wake(slot)) => all.news[usize::from(slot)] |= bit,
                    Some(Act::Nudge(_)) => all.wishes |= bit,
                    Some(Act::Ring) => all.orders |= bit,
                    Some(Act::Stale(_)) | None => {}
                }
            }
        }
        if self.extra == Extra::WakesItself && all.news[0] != 0 {
            all.news[0] |= OWN_NEWS;
        }
        all
    }
}

/// Where a thread is: the step it takes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Pc {
    // Wakers
    Start,
    News,
    RingBell,
    NextAct,
    Done,
    // Node::list
    Claim,
    ClaimStore,
    LoadHead,
    StoreNext,
    Link,
    // AtomicWaker::wake
    TaskLock,
    TaskUnlock,
    TaskFire,
    // The owner
    Asleep,
    AwakeLock,
    AwakeUnlock,
    Take,
    PollOrders,
    Hush,
    ReadOrders,
    Besides,
    HearClear,
    HearPoll,
    Pop,
    PopBits,
    ReadWish,
    ReadNews,
    RestBell,
    RestHead,
    Register,
    Registered,
    RegisterLate,
    RegisterFire,
    LookHead,
    LookBell,
}

impl Pc {
    /// The operation, as the code has it.
    fn text(self) -> &'static str {
        match self {
            Self::Start | Self::NextAct | Self::Done => "-",
            Self::News => "has news, and begins to wake; the news before were",
            Self::RingBell => "ring: bell.swap(true)",
            Self::Claim => "list: bits.fetch_or",
            Self::ClaimStore => "list: bits.store",
            Self::LoadHead => "list: head.load",
            Self::StoreNext => "list: next.store",
            Self::Link => "list: head.compare_exchange",
            Self::TaskLock => "task.wake: state.fetch_or(WAKING)",
            Self::TaskUnlock => "task.wake: takes the waker; state.fetch_and(!WAKING)",
            Self::TaskFire => "task.wake: wakes the task",
            Self::Asleep => "is polled",
            Self::AwakeLock => "awake: state.fetch_or(WAKING)",
            Self::AwakeUnlock => "awake: takes the waker; state.fetch_and(!WAKING)",
            Self::Take => "take: head.swap(END)",
            Self::PollOrders => "rung: bell.load",
            Self::Hush => "hush: bell.swap(false)",
            Self::ReadOrders => "polls the orders, which have",
            Self::Besides => "hear or is_listed: bits.load",
            Self::HearClear => "hear: bits.fetch_and(!BY_SINK)",
            Self::HearPoll => "asks the sink, which has",
            Self::Pop => "pop: next.load",
            Self::PopBits => "pop: bits.swap(0)",
            Self::ReadWish => "looks for a wish",
            Self::ReadNews => "polls the sink, which has",
            Self::RestBell => "rest: bell.load",
            Self::RestHead => "rest: head.load",
            Self::Register => "register: state.compare_exchange(WAITING, REGISTERING)",
            Self::Registered => "register: state.compare_exchange(REGISTERING, WAITING)",
            Self::RegisterLate => "register: takes the waker; state.swap(WAITING)",
            Self::RegisterFire => "wakes its task itself",
            Self::LookHead => "sleep: head.load",
            Self::LookBell => "sleep: bell.load",
        }
    }
}

#[derive(Clone, Copy)]
pub struct Thread {
    pub pc: Pc,
    /// Where it goes on after `list`, and after `wake`.
    pub listed: Pc,
    pub woke: Pc,
    pub act: u8,
    pub slot: u8,
    pub why: u8,
    /// Its own copy of the top of the stack.
    pub head: u8,
}

/// What the owner has found out.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    pub news: [u8; 2],
    pub wishes: u8,
    pub orders: u8,
}

#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Owner {
    pub taken: u8,
    pub left: u8,
    pub by_sink: bool,
    /// Slots popped in this turn.
    pub popped: u8,
    /// Slot 0 is to be looked after once more.
    pub owed: bool,
    /// The second tenant of slot 0 is there.
    pub replaced: bool,
    /// With a flaw: the bits of the slot to be popped are cleared already.
    pub cleared: bool,
    pub extras: u8,
    /// Turns since the wakers were done. (While one is at it, the owner may look again and again:
    /// `AtomicWaker` has it wait so.)
    pub alone: u8,
    pub seen: Seen,
}

#[derive(Clone)]
pub struct State {
    pub memory: Memory,
    pub threads: [Thread; 3],
    pub owner: Owner,
}

/// A step, for who reads what went wrong.
#[derive(Clone, Copy)]
pub struct Label {
    pub thread: u8,
    pub pc: Pc,
    pub slot: u8,
    pub value: u8,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = ["A", "B", "owner"][usize::from(self.thread)];
        write!(f, "{who:>6}  {}", self.pc.text())?;
        match self.pc {
            Pc::Claim
            | Pc::ClaimStore
            | Pc::StoreNext
            | Pc::Link
            | Pc::Besides
            | Pc::HearClear
            | Pc::HearPoll
            | Pc::Pop
            | Pc::PopBits
            | Pc::ReadNews => write!(f, " [slot {}]", self.slot)?,
            _ => {}
        }
        if self.value == END { f.write_str(" -> END") } else { write!(f, " -> {}", self.value) }
    }
}

pub type Step = Result<(Label, State), (Label, &'static str)>;

impl State {
    pub fn new(scenario: &Scenario, weak: bool) -> Self {
        let memory = Memory::new(weak, |location| match location {
            NOTE => 1, // the first poll needs no wake
            _ if location == HEAD || NEXT.contains(&location) => END,
            _ => 0,
        });
        let (pc, listed, woke) = (Pc::Start, Pc::TaskLock, Pc::NextAct);
        let waker = Thread { pc, listed, woke, act: 0, slot: 0, why: 0, head: END };
        let threads = [waker, waker, Thread { pc: Pc::Asleep, ..waker }];
        let extras = match scenario.extra {
            Extra::Hear | Extra::Attend => 2,
            Extra::Relist | Extra::WakesItself => 1,
            Extra::Nothing | Extra::Replace => 0,
        };
        let owner = Owner {
            taken: END,
            left: 0,
            by_sink: false,
            popped: 0,
            owed: false,
            replaced: false,
            cleared: false,
            extras,
            alone: 0,
            seen: Seen::default(),
        };
        let mut state = Self { memory, threads, owner };
        (0..2).for_each(|thread| state.next_act(scenario, thread, 0));
        state
    }

    pub fn encode(&self) -> Box<[u8]> {
        let mut to = Vec::with_capacity(LOCATIONS * 30);
        self.memory.encode(&mut to);
        for &Thread { pc, listed, woke, act, slot, why, head } in &self.threads {
            to.extend_from_slice(&[pc as u8, listed as u8, woke as u8, act, slot, why, head]);
        }
        let Owner { taken, left, by_sink, popped, owed, replaced, cleared, extras, alone, seen } =
            self.owner;
        let [news_0, news_1] = seen.news;
        to.extend_from_slice(&[taken, left, popped, extras, alone, news_0, news_1]);
        to.extend_from_slice(&[seen.wishes, seen.orders]);
        to.extend_from_slice(&[by_sink, owed, replaced, cleared].map(u8::from));
        to.into_boxed_slice()
    }

    pub fn next_act(&mut self, scenario: &Scenario, thread: usize, act: u8) {
        let own = &mut self.threads[thread];
        own.act = act;
        own.pc = if scenario.act(thread, act).is_some() { Pc::News } else { Pc::Done };
    }

    /// May it take a step?
    fn is_enabled(&self, scenario: &Scenario, thread: usize) -> bool {
        match self.threads[thread].pc {
            Pc::Done => false,
            Pc::Asleep => self.memory.last(NOTE) == 1,
            _ => thread != 1 || scenario.extra != Extra::Replace || self.owner.replaced,
        }
    }

    /// All that can come next.
    pub fn steps(&self, protocol: &Protocol, scenario: &Scenario) -> Vec<Step> {
        let mut steps = Vec::new();
        for thread in 0..3 {
            if self.is_enabled(scenario, thread) {
                let from = steps.len();
                let mut stepping = Stepping { protocol, scenario, thread, steps: &mut steps };
                stepping.step(self);
                for (_, after) in steps[from..].iter_mut().filter_map(|step| step.as_mut().ok()) {
                    let alive = after.threads.map(|thread| thread.pc != Pc::Done);
                    if alive[0] || alive[1] {
                        after.owner.alone = 0;
                    }
                    after.memory.forget(alive);
                }
            }
        }
        steps
    }

    /// What is wrong with it. `at_rest`: nobody can take a step.
    pub fn fault(&self, protocol: &Protocol, scenario: &Scenario, at_rest: bool) -> Option<String> {
        if self.owner.alone > RESTLESS {
            return Some("it never sleeps".to_owned());
        }
        let mut listed = 0;
        for mut at in [self.memory.last(HEAD), self.owner.taken] {
            while at != END {
                if listed & 1 << at != 0 {
                    return Some(format!("slot {at} is listed twice"));
                }
                listed |= 1 << at;
                let next = self.memory.last(NEXT[usize::from(at)]);
                let bits = self.memory.last(BITS[usize::from(at)]);
                // Flaws that break this rule have worse to show.
                if bits & LISTED == 0 && protocol.flaw.is_none() {
                    return Some(format!("slot {at} is in a list, and its bit says no"));
                }
                at = next;
            }
        }
        if !at_rest {
            return None;
        }
        let (seen, all) = (self.owner.seen, scenario.all_news());
        for (slot, at) in BITS.into_iter().enumerate() {
            if seen.news[slot] != all.news[slot] {
                return Some(format!("it sleeps, and has not seen the news of slot {slot}"));
            }
            if self.memory.last(at) != 0 {
                return Some(format!("it sleeps, and slot {slot} says for ever that it is listed"));
            }
        }
        if seen.wishes != all.wishes {
            return Some("it sleeps, and has not seen a wish".to_owned());
        }
        if seen.orders != all.orders {
            return Some("it sleeps, and has not seen an order".to_owned());
        }
        if self.owner.owed {
            return Some("it sleeps, and slot 0 is still to be looked after".to_owned());
        }
        None
    }
}
