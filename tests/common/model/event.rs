//! What can happen in a script, and the tape that records it.

use std::sync::{Arc, Mutex};

use stream_demux::{Discarded, Overflow, Totals};

use super::super::{Op, lock};

/// An attachment, by the number of its sink, which is also its tag.
pub(super) type Id = usize;

/// The terms of an attachment; `None` is the default of the demux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) key: u8,
    pub(super) buffer: Option<usize>,
    pub(super) overflow: Option<Overflow>,
    pub(super) limit: Option<u64>,
    pub(super) keep_existing: bool,
    pub(super) catch_all: bool,
    pub(super) stall_timeout: Option<u32>,
    pub(super) idle_timeout: Option<u32>,
}

impl Terms {
    /// The default terms.
    pub(super) fn of(key: u8) -> Self {
        Self {
            key,
            buffer: None,
            overflow: None,
            limit: None,
            keep_existing: false,
            catch_all: false,
            stall_timeout: None,
            idle_timeout: None,
        }
    }
}

/// What the end of a lease asks of its attachments. The strongest request wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd)]
pub(super) enum Request {
    Stay,
    Detach,
    Evict,
}

/// What an order says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum OrderKind {
    Attach(Id),
    Detach(u8),
    Evict(u8),
    Finish,
    Tick,
}

/// What a sink is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cue {
    Park,
    Open,
    Allow(usize),
    Hold(Op),
    Release(Op),
    Fail(Op),
    FailQuietly(Op),
    /// So many calls answer Pending and wake themselves.
    Yield(Op, usize),
    /// It gets a cooperative budget of its own: so many operations in each poll.
    Budget {
        operations: usize,
        defers: bool,
    },
    Wake,
}

/// What the outside world does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Command {
    Items {
        key: u8,
        count: u8,
    },
    Attach {
        terms: Terms,
        leases: [Option<usize>; 2],
        cue: Option<Cue>,
    },
    Order(OrderKind),
    EndOrders,
    EndInput,
    YieldOrders,
    YieldInput,
    WakeOrders,
    WakeInput,
    /// Ends a lease; `None` disarms it.
    Lease(usize, Option<Request>),
    /// Ends a lease, and attaches a new sink, with a lease, under the key of one that the old lease
    /// held.
    Reconnect(usize, Option<Request>),
    Cue(usize, Cue),
    Nothing,
}

/// The call inside which something is to happen.
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

/// What an operation of a sink answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    Pending,
    /// Pending, and it woke itself.
    Yields,
    Failed,
}

/// Why an attachment ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum EndReason {
    /// Its sink was closed. As expected by the model, any of these [`reasons`].
    Left(u8),
    Evicted,
    Stalled,
    Overflowed,
    Failed(&'static str),
    Unknown,
}

/// Reasons to leave, as bits: an attachment can have several.
pub(super) mod reasons {
    pub(in super::super) const FINISHED: u8 = 1;
    pub(in super::super) const REQUESTED: u8 = 2;
    pub(in super::super) const REPLACED: u8 = 4;
    pub(in super::super) const LIMITED: u8 = 8;
    pub(in super::super) const REFUSED: u8 = 16;
    pub(in super::super) const IDLE: u8 = 32;
}

/// An entry of the tape.
#[derive(Clone, Debug)]
pub(super) enum Event {
    // what the script does, and what comes of it outside the demux
    Step(Step),
    Do(Command),
    Born(Id, Terms),
    Sent(OrderKind),
    /// The waker of the orders fired.
    OrdersWoken,
    /// A lease of these has ended.
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
        yields: bool,
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
    /// No key matched the item: what is attached for it, if anything.
    OnDemand(u32, Option<Id>),
    /// The first waits for the sink, the second is new: whether it supersedes the first.
    Supersedes(Id, u32, u32, bool),
    KeyAttached(u8),
    KeyDetached(u8),
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
    /// Returns `true` if the outside world caused it, not the demux.
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
