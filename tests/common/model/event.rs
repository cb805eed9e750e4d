//! What can happen in a script, and the tape on which it is written down.

use std::sync::{Arc, Mutex};

use stream_demux::{Discarded, Overflow, Totals};

use super::super::{Op, lock};

/// An attachment, by the number of its sink, which is also its tag.
pub(super) type Id = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) key: u8,
    pub(super) buffer: Option<usize>,
    pub(super) overflow: Option<Overflow>,
    pub(super) limit: Option<u64>,
    pub(super) keep_existing: bool,
    pub(super) catch_all: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) enum Request {
    Stay,
    Detach,
    Evict,
}

/// What an order says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OrderKind {
    Attach(Id),
    Detach(u8),
    Evict(u8),
    Finish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cue {
    Park,
    Open,
    Allow(usize),
    Hold(Op),
    Release(Op),
    Fail(Op),
    FailQuietly(Op),
    Stutter(Op, usize),
    Wake,
}

/// What the outside world does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Command {
    Items { key: u8, count: u8 },
    Attach { terms: Terms, leases: [Option<usize>; 2], cue: Option<Cue> },
    Order(OrderKind),
    EndOrders,
    EndInput,
    StutterOrders,
    StutterInput,
    WakeOrders,
    WakeInput,
    Lease(usize, Option<Request>),
    Cue(usize, Cue),
    Nothing,
}

/// Inside what something is to happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Input,
    Orders,
    Hook,
    Sink(usize, Op),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Do(Command),
    Inside(Place, Command),
    RenewWaker,
    Poll,
    PollUnasked,
    Run,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    Pending,
    /// Pending, and it woke itself.
    Stutters,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReason {
    Left(u8),
    Evicted,
    Overflowed,
    Failed(&'static str),
    Unknown,
}

/// What is on the tape.
#[derive(Clone, Debug)]
pub(super) enum Event {
    // the script, and what came of it outside
    Step(Step),
    Do(Command),
    Born(Id, Terms),
    Sent(OrderKind),
    /// The waker of the orders fired.
    OrdersWoken,
    LeaseEnded(Vec<Id>, Request),
    Woken(Id),
    /// A waker of a sink that is gone was fired.
    Stale,
    // polls
    Turn,
    Rest {
        asleep: bool,
        totals: Totals,
    },
    Completed,
    // streams
    Read(u32, u8),
    InputPending,
    InputEnd,
    Order(OrderKind),
    AskOrders,
    OrdersPending {
        stutters: bool,
    },
    OrdersEnd,
    // sinks
    Ask(Id, Op),
    Ready(Id, Outcome),
    Send(Id, u32, Outcome),
    Flush(Id, Outcome),
    Close(Id, Outcome),
    Drop(Id),
    Clone(u32),
    // hooks
    Admit(Id, u32, bool),
    Attached(Id),
    Detached(Id, EndReason),
    Unmatched(u32),
    Discarded(Id, u32, Discarded),
    Blocked(Id),
    Unblocked(Id),
    /// A hook named an attachment with another's key.
    Misnamed(Id, u8),
}

impl Event {
    pub(super) fn is_outside(&self) -> bool {
        use Event::{
            Born, Completed, Do, LeaseEnded, OrdersWoken, Rest, Sent, Stale, Step, Turn, Woken,
        };
        matches!(
            self,
            Step(_)
                | Do(_)
                | Born(..)
                | Sent(_)
                | OrdersWoken
                | LeaseEnded(..)
                | Woken(_)
                | Stale
                | Turn
                | Rest { .. }
                | Completed
        )
    }
}

#[derive(Clone, Default)]
pub(super) struct Tape(pub(super) Arc<Mutex<Vec<Event>>>);

impl Tape {
    pub(super) fn push(&self, event: Event) {
        let mut tape = lock(&self.0);
        assert!(tape.len() < 2_000_000, "there is no end to what happens");
        tape.push(event);
    }
}
