//! `src/ready.rs` as steps: each atomic operation is one, with the line of code it stands for.
//!
//! Two wakers run what a sink's waker (`Act::Wake`), a lease's (`End`) or the orders' (`Ring`)
//! does; the owner takes turns as `src/demux/poll.rs` has them. `atomic-waker` is modelled by its
//! steps too. What the owner does between two atomic operations belongs to the step before.

use std::fmt;

use crate::memory::Order::{AcqRel, Acquire, Release};
use crate::memory::{
    BITS, ENDED, ENDED_HEAD, HEAD, LOCATIONS, Memory, NEXT, NEXT_ENDED, NOTE, Order, SIGNALS,
};
use crate::steps::Stepping;

pub const END: u8 = 9;
pub const LISTED: u8 = 1;
pub const BY_SINK: u8 = 2;
/// In `Thread::why`: the node goes to the list of ended leases.
pub const BY_LEASE: u8 = 4;
/// In the signals.
pub const ORDERS_RAISED: u8 = 1;
pub const LEASES_RAISED: u8 = 2;
/// Alone, the owner comes to rest in so many turns, or never.
const RESTLESS: u8 = 5;

/// The orderings of `ready.rs`, each of which can be weakened, and what else can be done wrong.
#[derive(Clone, Copy)]
pub struct Protocol {
    /// wake: `bits.fetch_or`; lease: `ended.swap(true)`
    pub claim: Order,
    /// wake and lease: `head.compare_exchange_weak`
    pub link: Order,
    /// wake and lease: `signals.fetch_or`
    pub ring: Order,
    /// `take`, `pop_ended`: `head.swap`
    pub take: Order,
    /// `pop`: `bits.swap(0)`; `pop_ended`: `ended.swap(false)`
    pub clear: Order,
    /// `take_fired`: `bits.fetch_and`
    pub hear: Order,
    /// `lower_orders`, `pop_ended`: `signals.fetch_and`
    pub hush: Order,
    /// `any`: `head.load`
    pub any: Order,
    /// `signals`: `signals.load`
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
    /// The signals are stored, not updated.
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
    /// The orders are polled, then their signal is lowered.
    HushAfterPoll,
    /// The end of a lease raises the signal, then lists the node.
    RaiseBeforeList,
    /// The list of ended leases is taken, then the signal is lowered.
    LowerAfterTake,
    /// The flag is cleared, then the link to the next ended lease is read.
    ClearEndedBeforeNext,
    /// What the lease wants is read, then the flag is cleared.
    ClearEndedAfterWish,
    /// An order that was read is applied with no look at the leases in between.
    ApplyAtOnce,
    /// The waker is registered after the looking, not before: there is no look after it.
    RegisterAfterLook,
    /// After the waker was registered, only the signals are looked at.
    LookAtSignalsOnly,
    /// After the waker was registered, only the list is looked at.
    LookAtHeadOnly,
}

/// What a waker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The sink in this slot has news, and wakes.
    Wake(u8),
    /// A lease of this slot ends, and wakes.
    End(u8),
    /// The orders have an order, and wake.
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
    /// The first order replaces the attachment in slot 0; what the second waker does, it does for
    /// the new one, and not before.
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

    /// The ends of leases that must have been seen before these orders are applied: each that the
    /// thread that sent the order had waited for. If another thread ends a lease of the same slot
    /// meanwhile, it may be the one that lists the node, and be late.
    pub fn wishes_before(&self, orders: u8) -> u8 {
        let mut before = 0;
        for thread in 0..2 {
            for act in (0..=2).filter(|&act| orders & Self::bit(thread, act) != 0) {
                for earlier in 0..act {
                    let end = self.act(thread, earlier).filter(|end| matches!(end, Act::End(_)));
                    if end.is_some_and(|end| !self.acts[1 - thread].contains(&end)) {
                        before |= Self::bit(thread, earlier);
                    }
                }
            }
        }
        before
    }

    /// The ends of the leases of a slot.
    pub fn ends_of(&self, slot: u8) -> u8 {
        let bits = (0..2).flat_map(|thread| (0..=2).map(move |act| (thread, act)));
        let ends = bits.filter(|&(thread, act)| self.act(thread, act) == Some(Act::End(slot)));
        ends.fold(0, |ends, (thread, act)| ends | Self::bit(thread, act))
    }

    pub fn has_leases(&self) -> bool {
        self.acts.iter().any(|acts| acts.iter().any(|act| matches!(act, Act::End(_))))
    }

    /// What must have been seen once all have come to rest.
    fn all_news(&self) -> Seen {
        let mut all = Seen::default();
        for thread in 0..2 {
            for act in 0..=2 {
                let bit = Self::bit(thread, act);
                match self.act(thread, act) {
                    Some(Act::Wake(slot)) => all.news[usize::from(slot)] |= bit,
                    Some(Act::End(_)) => all.wishes |= bit,
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
    Raise,
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
    PollLeases,
    LowerLeases,
    TakeEnded,
    PopEnded,
    ClearEnded,
    ReadWish,
    PollOrders,
    Hush,
    ReadOrders,
    Besides,
    HearClear,
    HearPoll,
    Pop,
    PopBits,
    ReadNews,
    RestSignals,
    RestHead,
    Register,
    Registered,
    RegisterLate,
    RegisterFire,
    LookHead,
    LookSignals,
}

impl Pc {
    /// The operation, as the code has it.
    fn text(self) -> &'static str {
        match self {
            Self::Start | Self::NextAct | Self::Done => "-",
            Self::News => "has news, and begins to wake; the news before were",
            Self::Raise => "signals.fetch_or",
            Self::Claim => "list: bits.fetch_or, or ended.swap(true)",
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
            Self::PollLeases => "has_ended: signals.load",
            Self::LowerLeases => "pop_ended: signals.fetch_and(!LEASES)",
            Self::TakeEnded => "pop_ended: ended.swap(END)",
            Self::PopEnded => "pop_ended: next_ended.load",
            Self::ClearEnded => "pop_ended: ended.swap(false)",
            Self::ReadWish => "reads what the lease wants",
            Self::PollOrders => "signals.load",
            Self::Hush => "lower_orders: signals.fetch_and(!ORDERS)",
            Self::ReadOrders => "polls the orders, which have",
            Self::Besides => "take_fired or is_listed: bits.load",
            Self::HearClear => "take_fired: bits.fetch_and(!BY_SINK)",
            Self::HearPoll => "asks the sink, which has",
            Self::Pop => "pop: next.load",
            Self::PopBits => "pop: bits.swap(0)",
            Self::ReadNews => "polls the sink, which has",
            Self::RestSignals => "before sleep: signals.load",
            Self::RestHead => "before sleep: head.load",
            Self::Register => "register: state.compare_exchange(WAITING, REGISTERING)",
            Self::Registered => "register: state.compare_exchange(REGISTERING, WAITING)",
            Self::RegisterLate => "register: takes the waker; state.swap(WAITING)",
            Self::RegisterFire => "wakes its task itself",
            Self::LookHead => "sleep: head.load",
            Self::LookSignals => "sleep: signals.load",
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
    /// What is left of the list of ended leases.
    pub ended: u8,
    /// Orders that were read, and are not applied.
    pub kept: u8,
    pub left: u8,
    pub by_sink: bool,
    /// Slots popped in this turn.
    pub popped: u8,
    /// Slot 0 is to be looked after once more.
    pub owed: bool,
    /// The second attachment in slot 0 is there.
    pub replaced: bool,
    /// With a flaw: the bits of the slot to be popped are cleared already.
    pub cleared: bool,
    pub cleared_ended: bool,
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
            | Pc::PopEnded
            | Pc::ClearEnded
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
            HEAD | ENDED_HEAD => END,
            _ if NEXT.contains(&location) || NEXT_ENDED.contains(&location) => END,
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
            ended: END,
            kept: 0,
            left: 0,
            by_sink: false,
            popped: 0,
            owed: false,
            replaced: false,
            cleared: false,
            cleared_ended: false,
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
        let Owner { taken, ended, kept, left, by_sink, popped, .. } = self.owner;
        let Owner { owed, replaced, cleared, cleared_ended, extras, alone, seen, .. } = self.owner;
        let [news_0, news_1] = seen.news;
        to.extend_from_slice(&[taken, ended, kept, left, popped, extras, alone, news_0, news_1]);
        to.extend_from_slice(&[seen.wishes, seen.orders]);
        to.extend_from_slice(&[by_sink, owed, replaced, cleared, cleared_ended].map(u8::from));
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

    /// Returns what is wrong with the state. `at_rest` is whether no thread can take a step.
    pub fn fault(&self, protocol: &Protocol, scenario: &Scenario, at_rest: bool) -> Option<String> {
        if self.owner.alone > RESTLESS {
            return Some("it never sleeps".to_owned());
        }
        let woken = ([self.memory.last(HEAD), self.owner.taken], NEXT, BITS);
        let ended = ([self.memory.last(ENDED_HEAD), self.owner.ended], NEXT_ENDED, ENDED);
        for (tops, links, flags) in [woken, ended] {
            let mut listed = 0;
            for mut at in tops {
                while at != END {
                    if listed & 1 << at != 0 {
                        return Some(format!("slot {at} is listed twice"));
                    }
                    listed |= 1 << at;
                    let next = self.memory.last(links[usize::from(at)]);
                    let flag = self.memory.last(flags[usize::from(at)]);
                    // Flaws that break this rule have worse to show.
                    if flag & LISTED == 0 && protocol.flaw.is_none() {
                        return Some(format!("slot {at} is in a list, and its flag says no"));
                    }
                    at = next;
                }
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
            if self.memory.last(ENDED[slot]) != 0 {
                return Some(format!("it sleeps, and has not seen that the lease of {slot} ended"));
            }
        }
        if self.memory.last(SIGNALS) != 0 {
            return Some("it sleeps, and has not seen a signal".to_owned());
        }
        if seen.wishes != all.wishes {
            return Some("it sleeps, and has not seen the end of a lease".to_owned());
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
