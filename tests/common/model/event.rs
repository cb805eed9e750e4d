//! What a script can do, and the tape, which records the events.

use std::sync::{Arc, Mutex};

use stream_demux::{Discarded, Overflow, Totals};

use super::super::{Op, lock};

/// An attachment, identified by the number of its sink, which is also its tag.
pub(super) type Id = usize;

/// The terms of an attachment. `None` stands for the default of the demux.
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
    /// Returns the default terms.
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

/// What the end of a lease requests for its attachments. The strongest request wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd)]
pub(super) enum Request {
    Stay,
    Detach,
    Evict,
}

/// The kind of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum OrderKind {
    Attach(Id),
    Detach(u8),
    Evict(u8),
    Finish,
    Tick,
}

/// A command to a scripted sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cue {
    Park,
    Open,
    Allow(usize),
    Hold(Op),
    Release(Op),
    Fail(Op),
    FailQuietly(Op),
    /// Makes this number of calls return `Pending` and fire their waker.
    Yield(Op, usize),
    /// Gives the sink a cooperative budget of its own, of `operations` in each poll.
    Budget {
        operations: usize,
        defers: bool,
    },
    Wake,
}

/// An action of the outside world.
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
    /// Ends a lease with this request. `None` disarms it.
    Lease(usize, Option<Request>),
    /// Ends a lease. Then attaches a new sink, with a lease, under the key of an attachment that
    /// the old lease held.
    Reconnect(usize, Option<Request>),
    Cue(usize, Cue),
    Nothing,
}

/// The call inside which a command is executed.
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

/// What an operation of a sink returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    Pending,
    /// `Pending`, and the sink woke itself.
    Yields,
    Failed,
}

/// The reason why an attachment ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum EndReason {
    /// Its sink was closed for these [`reasons`]. If the model expects several, any one of them is
    /// right.
    Left(u8),
    Evicted,
    Stalled,
    Overflowed,
    Failed(&'static str),
    Unknown,
}

/// Reasons to leave, as bits. An attachment can have several.
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
    // Steps of the script, and their effects outside the demux.
    Step(Step),
    Do(Command),
    Born(Id, Terms),
    Sent(OrderKind),
    /// The waker of the orders stream fired.
    OrdersWoken,
    /// A lease ended. These are the attachments that it held.
    LeaseEnded(Vec<Id>, Request),
    Woken(Id),
    /// The waker of a sink that was dropped fired.
    Stale,
    // Polls.
    Turn,
    Rest {
        asleep: bool,
        totals: Totals,
    },
    Completed,
    // Streams.
    Read(u32, u8),
    InputPending,
    InputEnd,
    Order(OrderKind),
    AskOrders,
    OrdersPending {
        yields: bool,
    },
    OrdersEnd,
    // Sinks.
    Ask(Id, Op),
    Ready(Id, Outcome),
    Send(Id, u32, Outcome),
    Flush(Id, Outcome),
    Close(Id, Outcome),
    Drop(Id),
    Clone(u32),
    // Hooks.
    Admit(Id, u32, bool),
    /// No key matched the item. This attachment is made for it, if any.
    OnDemand(u32, Option<Id>),
    /// The hook `supersedes` was called for an item that waits for the sink and for a new item, and
    /// returned this value.
    Supersedes(Id, u32, u32, bool),
    KeyAttached(u8),
    KeyDetached(u8),
    Attached(Id),
    Detached(Id, EndReason),
    Unmatched(u32),
    Discarded(Id, u32, Discarded),
    Blocked(Id),
    Unblocked(Id),
    /// A hook named an attachment with the key of another one.
    Misnamed(Id, u8),
}

impl Event {
    /// Returns `true` if the outside world caused the event, and not the demux.
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
        assert!(tape.len() < 2_000_000, "there are too many events on the tape");
        tape.push(event);
    }
}
