//! A cooperative budget, such as tokio gives a task for each of its polls, and the count of operations
//! in the poll that runs.
//!
//! Scripted sinks and streams that share a [`CoopBudget`] answer `Pending` once it is spent, as tokio's
//! channels and sockets do. [`Task::poll`](super::Task::poll) marks where a poll begins: budgets are full
//! again then, and the count starts at 0.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use super::lock;

thread_local! {
    static RUNNING: Cell<PollCount> = const { Cell::new(PollCount { poll: 0, operations: 0 }) };
}

/// A poll of a `Task`, and how many operations were made in it so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollCount {
    /// Unique in the process, and increasing; 0 outside the polls of tasks.
    pub poll: u64,
    /// Items that streams returned, items that sinks took, flushes and closes that completed.
    pub operations: usize,
}

impl PollCount {
    /// The poll that runs on this thread.
    pub fn now() -> Self {
        RUNNING.get()
    }

    /// Counts one operation.
    pub(super) fn count_one() {
        let PollCount { poll, operations } = RUNNING.get();
        RUNNING.set(PollCount { poll, operations: operations + 1 });
    }
}

/// Marks a poll, from here to the drop of this guard. Polls may be nested.
pub(super) struct PollGuard {
    outer: PollCount,
}

impl PollGuard {
    pub(super) fn begin() -> Self {
        static POLLS: AtomicU64 = AtomicU64::new(0);
        let poll = POLLS.fetch_add(1, Relaxed) + 1;
        Self { outer: RUNNING.replace(PollCount { poll, operations: 0 }) }
    }
}

impl Drop for PollGuard {
    fn drop(&mut self) {
        RUNNING.set(self.outer);
    }
}

/// How many operations the sinks and streams that share it complete in one poll of a task.
///
/// Each operation that does not answer `Pending` by itself takes one; `start_send`, which has no
/// `Pending`, takes none. With none left, each answers `Pending`, and its waker fires at once, or, if
/// the budget is [deferred](Self::deferred), when [`fire_deferred`](Self::fire_deferred) is called.
#[derive(Clone, Debug)]
pub struct CoopBudget(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// `None`: no bound.
    size: Option<usize>,
    left: usize,
    /// The poll for which `left` is meant.
    poll: u64,
    denied: usize,
    defers: bool,
    deferred: Vec<Waker>,
    /// How often deferred wakers were fired.
    fired: u64,
}

impl CoopBudget {
    /// A budget of `operations`; what is denied wakes itself inside the call, as tokio's resources do in
    /// `block_on`.
    pub fn new(operations: usize) -> Self {
        Self::with(operations, false)
    }

    /// A budget of `operations`; what is denied is woken later, between two polls, as tokio's resources
    /// do in spawned tasks.
    pub fn deferred(operations: usize) -> Self {
        Self::with(operations, true)
    }

    fn with(operations: usize, defers: bool) -> Self {
        Self(Arc::new(Mutex::new(State {
            size: Some(operations),
            left: operations,
            poll: PollCount::now().poll,
            denied: 0,
            defers,
            deferred: Vec::new(),
            fired: 0,
        })))
    }

    /// Fills it up. Only needed where no `Task` polls.
    pub fn refill(&self) {
        self.look(|state| state.left = state.size.unwrap_or(usize::MAX));
    }

    /// Bounds nothing any more, and fires what is deferred.
    pub fn lift(&self) {
        self.look(|state| state.size = None);
        self.refill();
        self.fire_deferred();
    }

    /// Fires the wakers of all that was denied, and returns how many there were.
    pub fn fire_deferred(&self) -> usize {
        let wakers = self.look(|state| {
            state.fired += 1;
            std::mem::take(&mut state.deferred)
        });
        let fired = wakers.len();
        wakers.into_iter().for_each(Waker::wake);
        fired
    }

    /// How many operations are left in this poll.
    pub fn left(&self) -> usize {
        self.look(|state| state.left)
    }

    /// How many operations were ever denied.
    pub fn denied(&self) -> usize {
        self.look(|state| state.denied)
    }

    /// How many wakers are deferred.
    pub fn deferred_wakers(&self) -> usize {
        self.look(|state| state.deferred.len())
    }

    /// Asks for one operation, which `waker` waits for if there is none left.
    pub(super) fn ask(&self, waker: &Waker) -> Grant {
        let waker = waker.clone();
        let (grant, unused) = self.look(|state| {
            if state.left > 0 {
                return (Grant::Given, Some(waker));
            }
            state.denied += 1;
            if !state.defers {
                return (Grant::DeniedAndWoken, Some(waker));
            }
            state.deferred.push(waker);
            (Grant::Deferred(Deferred { budget: self.clone(), fired: state.fired }), None)
        });
        drop(unused);
        grant
    }

    /// Takes the operation that `ask` has granted, which turned out not to be `Pending`.
    pub(super) fn take(&self) {
        self.look(|state| state.left = state.left.saturating_sub(1));
    }

    fn look<R>(&self, at: impl FnOnce(&mut State) -> R) -> R {
        let mut state = lock(&self.0);
        let poll = PollCount::now().poll;
        if poll != 0 && poll != state.poll {
            state.poll = poll;
            state.left = state.size.unwrap_or(usize::MAX);
        }
        at(&mut state)
    }
}

/// The answer to the question for one operation.
pub(super) enum Grant {
    Given,
    /// The caller has to wake itself, inside the call.
    DeniedAndWoken,
    /// The budget will fire the waker.
    Deferred(Deferred),
}

/// The waker of a Pending answer.
pub(super) struct Waiting {
    pub(super) waker: Waker,
    /// A cooperative budget has it, too, and fires it.
    pub(super) deferred: Option<Deferred>,
}

impl Waiting {
    /// Returns `true` if a budget has fired it.
    pub(super) fn has_fired(&self) -> bool {
        self.deferred.as_ref().is_some_and(Deferred::has_fired)
    }
}

/// A waker that a budget has kept.
#[derive(Clone, Debug)]
pub(super) struct Deferred {
    budget: CoopBudget,
    /// How often the budget had fired wakers by then.
    fired: u64,
}

impl Deferred {
    /// Returns `true` if the budget has fired the waker.
    pub(super) fn has_fired(&self) -> bool {
        self.budget.look(|state| state.fired > self.fired)
    }
}
