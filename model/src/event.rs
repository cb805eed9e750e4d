//! What a script can do, and the tape, which records what happens.

use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use stream_demux::{Overflow, Totals};

use sink_test::Op;

use crate::lock;

/// An attachment, identified by the number of its sink, which is also its tag.
pub type Id = usize;

/// The terms of an attachment. `None` stands for the default of the demux.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    pub key: u16,
    pub buffer: Option<usize>,
    pub overflow: Option<Overflow>,
    pub limit: Option<u64>,
    pub keep_existing: bool,
    pub catch_all: bool,
    pub stall_timeout: Option<u32>,
    pub idle_timeout: Option<u32>,
}

/// What the end of a lease requests for its attachments. The strongest request wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub enum Request {
    #[default]
    Stay,
    Detach,
    Evict,
}

/// An order, as plain data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OrderKind {
    Attach(Id),
    Detach(u16),
    Evict(u16),
    Tick,
    Finish,
    Abort,
}

/// A command to a scripted sink.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cue {
    Park,
    Open,
    Allow(usize),
    Hold(Op),
    Release(Op),
    Fail(Op),
    FailQuietly(Op),
    /// Makes this number of calls return `Pending` and fire their waker.
    Yield(Op, usize),
    /// Gives the sink a cooperative budget of its own, whose wakers are deferred or not.
    Budget(usize, bool),
    Wake,
}

/// What can be done to the input or the orders stream, other than to add an item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Knob {
    End,
    Yield,
    Wake,
}

/// An action of the outside world.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Command {
    /// Sends `count` items. Their keys are `stride` apart.
    Items {
        key: u16,
        count: u16,
        stride: u16,
    },
    /// Attaches `count` sinks, whose keys are `stride` apart. If `pooled`, they need places in the
    /// channel that such sinks share.
    Attach {
        terms: Terms,
        count: u16,
        stride: u16,
        leases: [Option<usize>; 2],
        pooled: bool,
    },
    Order(OrderKind),
    Input(Knob),
    Orders(Knob),
    /// Ends a lease. If `true`, then attaches a sink, with a lease, under a key of the old lease.
    Lease(usize, Request, bool),
    /// A cue for a sink, counted from the newest.
    Cue(usize, Cue),
    /// Reads this number of items from the channel that pooled sinks share.
    Receive(usize),
    /// Sets what the tasks that wake the demux leave of the cooperative budget.
    Leave(usize),
}

/// The call inside which a command is executed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    Input,
    Orders,
    Hook,
    Sink(usize, Op),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    Do(Command),
    Inside(Place, Command),
    RenewWaker,
    /// So many nanoseconds pass.
    Elapse(u64),
    Poll,
    /// Polls although the task was not woken.
    PollUnasked,
    /// Polls until the task sleeps.
    Run,
}

/// What an operation of a sink returned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    Done,
    Pending,
    /// `Pending`, and the sink woke itself.
    Yields,
    Failed,
}

/// What is visible of a demux between two polls. The lists are sorted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    pub asleep: bool,
    pub completed: bool,
    pub totals: Totals,
    pub len: usize,
    pub draining: usize,
    pub recipients: Vec<Id>,
    pub leaving: Vec<Id>,
    /// The keys that are attached, how many attachments receive under each, and how many items wait
    /// for them.
    pub keys: Vec<(u16, usize, usize)>,
    pub blocked_on: Option<Id>,
    pub terminated: bool,
    /// The number of items that exist outside and inside the demux.
    pub live: usize,
}

/// An entry of the tape.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    // Steps of the script and their effects, wakers that fired, and polls.
    Step(Step),
    Do(Command),
    Born(Id, Terms),
    Sent(OrderKind),
    /// A lease ended that held these attachments.
    LeaseEnded(Vec<Id>, Request),
    Woken(Id),
    OrdersWoken,
    Turn,
    Rest(Seen),
    // Streams and sinks.
    Read(u32, u16),
    InputPending,
    InputEnd,
    Order(OrderKind),
    OrdersPending,
    OrdersEnd,
    Polled(Id, Op, Outcome),
    Send(Id, u32, Outcome),
    Drop(Id),
    Clone(u32),
    // Hooks, with their answers.
    Admit(Id, u32, bool),
    OnDemand(u32, Option<Id>),
    /// Whether the second item supersedes the first, which waits.
    Supersedes(Id, u32, u32, bool),
    KeyAttached(u16),
    KeyDetached(u16),
    Attached(Id),
    /// An attachment ended for this reason, or because this operation failed.
    Detached(Id, &'static str),
    Unmatched(u32),
    Discarded(Id, u32, &'static str),
    Blocked(Id),
    Unblocked(Id),
}

/// The record of a run.
#[derive(Clone, Default)]
pub struct Tape(pub Arc<Mutex<Vec<Event>>>);

impl Tape {
    pub fn push(&self, event: Event) {
        lock(&self.0).push(event);
    }

    pub fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// Returns a waker that records `event` before it fires `waker`.
    pub fn record(&self, event: Event, waker: &Waker) -> Waker {
        Waker::from(Arc::new(Recorded(self.clone(), event, waker.clone())))
    }
}

struct Recorded(Tape, Event, Waker);

impl Wake for Recorded {
    fn wake(self: Arc<Self>) {
        self.0.push(self.1.clone());
        self.2.wake_by_ref();
    }
}
