//! The model of `src/ready.rs`, with one step per atomic operation.
//!
//! Two wakers run what a sink's waker (`Act::Wake`), a lease's (`End`) or the orders' (`SendOrder`)
//! does. The owner runs turns as in `src/demux/poll.rs`. The steps of `atomic-waker` are modelled,
//! too. Work of the owner between two atomic operations belongs to the earlier step.

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
/// If the wakers are done, the owner must park within this number of turns.
const MAX_TURNS: u8 = 5;

/// The orderings of `ready.rs`, each of which can be weakened, and a planted flaw.
#[derive(Clone, Copy)]
pub struct Protocol {
    /// wake: `bits.fetch_or`; lease: `ended.swap(true)`
    pub claim: Order,
    /// wake and lease: `head.compare_exchange_weak`
    pub link: Order,
    /// wake and lease: `signals.fetch_or`
    pub raise: Order,
    /// `take`, `pop_ended`: `head.swap`
    pub take: Order,
    /// `pop`: `bits.swap(0)`; `pop_ended`: `ended.swap(false)`
    pub clear: Order,
    /// `take_fired`: `bits.fetch_and`
    pub take_fired: Order,
    /// `lower_orders`, `pop_ended`: `signals.fetch_and`
    pub lower: Order,
    /// `any`: `head.load`
    pub any: Order,
    /// `signals`: `signals.load`
    pub signals: Order,
    /// `AtomicWaker`: all operations except unlocking, which is `Release`.
    pub task: Order,
    pub flaw: Option<Flaw>,
}

/// The protocol of `src/ready.rs`.
pub const CURRENT: Protocol = Protocol {
    claim: AcqRel,
    link: Release,
    raise: Release,
    take: Acquire,
    clear: AcqRel,
    take_fired: AcqRel,
    lower: Acquire,
    any: Acquire,
    signals: Acquire,
    task: AcqRel,
    flaw: None,
};

/// Flaws, each of which must be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The bits are loaded, then stored, instead of one read-modify-write.
    ClaimByLoad,
    /// A wake that finds the node listed does not set `BY_SINK`.
    ClaimWithoutReason,
    /// The top of the stack is stored, not exchanged.
    LinkByStore,
    /// The task is woken before the node is listed.
    WakeBeforeList,
    /// The signals are stored, not updated.
    RaiseByStore,
    /// The list is taken although the last one is not finished.
    TakeOverTaken,
    /// The task parks although the last list is not finished.
    SleepOnTaken,
    /// The bits are cleared, then `next` is read.
    ClearBeforeNext,
    /// The sink is polled, then the bits are cleared.
    ClearAfterPoll,
    /// The sink is polled, then its fired bit is cleared.
    ClearFiredAfterPoll,
    /// The orders are polled, then their signal is lowered.
    LowerAfterPoll,
    /// The end of a lease raises the signal, then lists the node.
    RaiseBeforeList,
    /// The list of ended leases is taken, then the signal is lowered.
    LowerAfterTake,
    /// The flag is cleared, then the link to the next ended lease is read.
    ClearEndedBeforeNext,
    /// The request of the lease is read, then the flag is cleared.
    ClearEndedAfterRead,
    /// An order that was read is applied without checking the leases first.
    ApplyAtOnce,
    /// The waker is registered after the check, not before it.
    RegisterAfterCheck,
    /// After the waker is registered, only the signals are checked.
    CheckSignalsOnly,
    /// After the waker is registered, only the list is checked.
    CheckHeadOnly,
}

/// An action of a waker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The sink in this slot writes data and wakes.
    Wake(u8),
    /// A lease of this slot ends, and wakes.
    End(u8),
    /// An order is sent, and wakes.
    SendOrder,
    /// A waker of an earlier sink of this slot fires.
    Stale(u8),
}

/// An additional action of the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    Nothing,
    /// In the first two turns, polls slot 0 before it is popped: `take_fired`, then the poll.
    TakeFired,
    /// In the first two turns, polls slot 0 unless it is listed: `is_listed`.
    PollUnlessListed,
    /// When slot 0 is popped for the first time, work is left, and the owner lists it: `list`.
    Relist,
    /// The sink in slot 0 wakes itself in its first poll.
    WakesItself,
    /// The first order replaces the attachment in slot 0. The second waker belongs to the new one
    /// and acts only afterwards.
    Replace,
}

#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub acts: [&'static [Act]; 2],
    /// Slots popped in a turn.
    pub budget: u8,
    pub extra: Extra,
}

/// The data of a sink that wakes itself.
pub const OWN_DATA: u8 = 1 << 7;

impl Scenario {
    pub fn act(&self, thread: usize, act: u8) -> Option<Act> {
        self.acts[thread].get(usize::from(act)).copied()
    }

    /// One bit for each act.
    pub fn bit(thread: usize, act: u8) -> u8 {
        1 << (thread * 3 + usize::from(act))
    }

    /// Returns the ends of leases that must have been seen before these orders are applied: those
    /// that the sending thread had completed. If another thread ends a lease of the same slot at
    /// the same time, that thread may list the node, and may be late.
    pub fn requests_before(&self, orders: u8) -> u8 {
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

    /// All data that must have been seen when no thread can take a step.
    fn all_data(&self) -> Seen {
        let mut all = Seen::default();
        for thread in 0..2 {
            for act in 0..=2 {
                let bit = Self::bit(thread, act);
                match self.act(thread, act) {
                    Some(Act::Wake(slot)) => all.data[usize::from(slot)] |= bit,
                    Some(Act::End(_)) => all.requests |= bit,
                    Some(Act::SendOrder) => all.orders |= bit,
                    Some(Act::Stale(_)) | None => {}
                }
            }
        }
        if self.extra == Extra::WakesItself && all.data[0] != 0 {
            all.data[0] |= OWN_DATA;
        }
        all
    }
}

/// The next step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Pc {
    // Wakers
    Start,
    Publish,
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
    Parked,
    AwakeLock,
    AwakeUnlock,
    Take,
    PollLeases,
    LowerLeases,
    TakeEnded,
    PopEnded,
    ClearEnded,
    ReadRequest,
    PollOrders,
    LowerOrders,
    ReadOrders,
    EarlyPoll,
    EarlyClear,
    EarlyRead,
    Pop,
    PopBits,
    ReadData,
    SleepSignals,
    SleepHead,
    Register,
    Registered,
    RegisterLate,
    RegisterFire,
    CheckHead,
    CheckSignals,
}

impl Pc {
    /// The operation in the code.
    fn text(self) -> &'static str {
        match self {
            Self::Start | Self::NextAct | Self::Done => "-",
            Self::Publish => "writes data before a wake; the data before were",
            Self::Raise => "signals.fetch_or",
            Self::Claim => "list: bits.fetch_or, or ended.swap(true)",
            Self::ClaimStore => "list: bits.store",
            Self::LoadHead => "list: head.load",
            Self::StoreNext => "list: next.store",
            Self::Link => "list: head.compare_exchange",
            Self::TaskLock => "task.wake: state.fetch_or(WAKING)",
            Self::TaskUnlock => "task.wake: takes the waker; state.fetch_and(!WAKING)",
            Self::TaskFire => "task.wake: wakes the task",
            Self::Parked => "is polled",
            Self::AwakeLock => "awake: state.fetch_or(WAKING)",
            Self::AwakeUnlock => "awake: takes the waker; state.fetch_and(!WAKING)",
            Self::Take => "take: head.swap(END)",
            Self::PollLeases => "has_ended: signals.load",
            Self::LowerLeases => "pop_ended: signals.fetch_and(!LEASES)",
            Self::TakeEnded => "pop_ended: ended.swap(END)",
            Self::PopEnded => "pop_ended: next_ended.load",
            Self::ClearEnded => "pop_ended: ended.swap(false)",
            Self::ReadRequest => "reads the request of the lease",
            Self::PollOrders => "signals.load",
            Self::LowerOrders => "lower_orders: signals.fetch_and(!ORDERS)",
            Self::ReadOrders => "polls the orders, and reads",
            Self::EarlyPoll => "take_fired or is_listed: bits.load",
            Self::EarlyClear => "take_fired: bits.fetch_and(!BY_SINK)",
            Self::EarlyRead => "polls the sink before it is popped, and reads",
            Self::Pop => "pop: next.load",
            Self::PopBits => "pop: bits.swap(0)",
            Self::ReadData => "polls the sink, and reads",
            Self::SleepSignals => "before sleep: signals.load",
            Self::SleepHead => "before sleep: head.load",
            Self::Register => "register: state.compare_exchange(WAITING, REGISTERING)",
            Self::Registered => "register: state.compare_exchange(REGISTERING, WAITING)",
            Self::RegisterLate => "register: takes the waker; state.swap(WAITING)",
            Self::RegisterFire => "wakes its task itself",
            Self::CheckHead => "sleep: head.load",
            Self::CheckSignals => "sleep: signals.load",
        }
    }
}

#[derive(Clone, Copy)]
pub struct Thread {
    pub pc: Pc,
    /// The steps after `list` and after `wake`.
    pub listed: Pc,
    pub woke: Pc,
    pub act: u8,
    pub slot: u8,
    pub why: u8,
    /// The top of the stack that it has read.
    pub head: u8,
}

/// The data that the owner has seen.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    pub data: [u8; 2],
    pub requests: u8,
    pub orders: u8,
}

#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
pub struct Owner {
    pub taken: u8,
    /// The rest of the list of ended leases.
    pub ended: u8,
    /// Orders that were read and not yet applied.
    pub kept: u8,
    pub left: u8,
    pub by_sink: bool,
    /// Slots popped in this turn.
    pub popped: u8,
    /// Slot 0 must be polled again.
    pub pending: bool,
    /// Slot 0 has its second attachment.
    pub replaced: bool,
    /// With a flaw: the bits of the slot to be popped have been cleared.
    pub cleared: bool,
    pub cleared_ended: bool,
    pub extras: u8,
    /// Turns since the wakers were done. (While a waker is in `AtomicWaker::wake`, the owner may
    /// poll any number of times.)
    pub alone: u8,
    pub seen: Seen,
}

#[derive(Clone)]
pub struct State {
    pub memory: Memory,
    pub threads: [Thread; 3],
    pub owner: Owner,
}

/// A step, to print a path.
#[derive(Clone, Copy)]
pub struct Label {
    pub thread: u8,
    pub pc: Pc,
    pub slot: u8,
    pub value: u8,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let thread = ["A", "B", "owner"][usize::from(self.thread)];
        write!(f, "{thread:>6}  {}", self.pc.text())?;
        match self.pc {
            Pc::Claim
            | Pc::ClaimStore
            | Pc::StoreNext
            | Pc::Link
            | Pc::EarlyPoll
            | Pc::EarlyClear
            | Pc::EarlyRead
            | Pc::Pop
            | Pc::PopBits
            | Pc::PopEnded
            | Pc::ClearEnded
            | Pc::ReadData => write!(f, " [slot {}]", self.slot)?,
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
        let threads = [waker, waker, Thread { pc: Pc::Parked, ..waker }];
        let extras = match scenario.extra {
            Extra::TakeFired | Extra::PollUnlessListed => 2,
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
            pending: false,
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
        let Owner { pending, replaced, cleared, cleared_ended, extras, alone, seen, .. } =
            self.owner;
        let [data_0, data_1] = seen.data;
        to.extend_from_slice(&[taken, ended, kept, left, popped, extras, alone, data_0, data_1]);
        to.extend_from_slice(&[seen.requests, seen.orders]);
        to.extend_from_slice(&[by_sink, pending, replaced, cleared, cleared_ended].map(u8::from));
        to.into_boxed_slice()
    }

    pub fn next_act(&mut self, scenario: &Scenario, thread: usize, act: u8) {
        let own = &mut self.threads[thread];
        own.act = act;
        own.pc = if scenario.act(thread, act).is_some() { Pc::Publish } else { Pc::Done };
    }

    /// Returns `true` if the thread can take a step.
    fn is_enabled(&self, scenario: &Scenario, thread: usize) -> bool {
        match self.threads[thread].pc {
            Pc::Done => false,
            Pc::Parked => self.memory.last(NOTE) == 1,
            _ => thread != 1 || scenario.extra != Extra::Replace || self.owner.replaced,
        }
    }

    /// Returns all possible next steps.
    pub fn steps(&self, protocol: &Protocol, scenario: &Scenario) -> Vec<Step> {
        let mut steps = Vec::new();
        for thread in 0..3 {
            if self.is_enabled(scenario, thread) {
                let from = steps.len();
                let mut stepping = Stepping { protocol, scenario, thread, steps: &mut steps };
                stepping.step(self);
                for (_, after) in steps[from..].iter_mut().filter_map(|step| step.as_mut().ok()) {
                    let running = after.threads.map(|thread| thread.pc != Pc::Done);
                    if running[0] || running[1] {
                        after.owner.alone = 0;
                    }
                    after.memory.prune(running);
                }
            }
        }
        steps
    }

    /// Returns what is wrong with the state. `at_rest` is whether no thread can take a step.
    pub fn fault(&self, protocol: &Protocol, scenario: &Scenario, at_rest: bool) -> Option<String> {
        if self.owner.alone > MAX_TURNS {
            return Some("the task never parks".to_owned());
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
                    // Flaws that break this rule have worse effects.
                    if flag & LISTED == 0 && protocol.flaw.is_none() {
                        return Some(format!("slot {at} is in a list, but its flag is clear"));
                    }
                    at = next;
                }
            }
        }
        if !at_rest {
            return None;
        }
        let (seen, all) = (self.owner.seen, scenario.all_data());
        for (slot, at) in BITS.into_iter().enumerate() {
            if seen.data[slot] != all.data[slot] {
                return Some(format!("the task parked without seeing the data of slot {slot}"));
            }
            if self.memory.last(at) != 0 {
                return Some(format!("the task parked while slot {slot} is marked as listed"));
            }
            if self.memory.last(ENDED[slot]) != 0 {
                return Some(format!(
                    "the task parked without seeing that the lease of slot {slot} ended"
                ));
            }
        }
        if self.memory.last(SIGNALS) != 0 {
            return Some("the task parked without seeing a signal".to_owned());
        }
        if seen.requests != all.requests {
            return Some("the task parked without seeing the end of a lease".to_owned());
        }
        if seen.orders != all.orders {
            return Some("the task parked without seeing an order".to_owned());
        }
        if self.owner.pending {
            return Some("the task parked without polling slot 0 again".to_owned());
        }
        None
    }
}
