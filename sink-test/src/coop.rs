//! A cooperative budget, like tokio's for each poll of a task, and the count of operations in the
//! current poll.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use crate::lock;

thread_local! {
    static RUNNING: Cell<PollCount> =
        const { Cell::new(PollCount { poll: 0, operations: 0, continues: false }) };
}

/// A poll of a `Task`, and the number of operations that completed in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PollCount {
    /// Unique in the process, and increasing; 0 outside the polls of tasks.
    pub(crate) poll: u64,
    /// Items that streams returned, items that sinks took, flushes and closes that completed.
    pub(crate) operations: usize,
    /// Whether something outside the task woke it, so that it may run on what its waker left.
    pub(crate) continues: bool,
}

impl PollCount {
    /// Returns the current poll of this thread.
    pub(crate) fn now() -> Self {
        RUNNING.get()
    }

    /// Counts one operation.
    pub(crate) fn count_one() {
        let count = RUNNING.get();
        RUNNING.set(PollCount { operations: count.operations + 1, ..count });
    }
}

/// Marks a poll until this guard is dropped. Polls may be nested.
pub(crate) struct PollGuard {
    outer: PollCount,
}

impl PollGuard {
    pub(crate) fn begin(continues: bool) -> Self {
        static POLLS: AtomicU64 = AtomicU64::new(0);
        let poll = POLLS.fetch_add(1, Relaxed) + 1;
        Self { outer: RUNNING.replace(PollCount { poll, operations: 0, continues }) }
    }
}

impl Drop for PollGuard {
    fn drop(&mut self) {
        RUNNING.set(self.outer);
    }
}

/// A bound on what sinks and streams do in one poll of a task, such as tokio's cooperative budget.
///
/// Each operation of a scripted sink or stream that shares the budget takes one unit, unless it is
/// pending for another reason. `start_send` takes none. With none left, operations return
/// `Pending`. Their wakers fire inside the call or, if the budget is [deferred](Self::deferred), in
/// [`fire_deferred`](Self::fire_deferred). [`Task::poll`](crate::Task::poll) refills the budget.
/// Clones share it.
///
/// # Examples
///
/// ```
/// use futures::{SinkExt, StreamExt};
/// use sink_test::{CoopBudget, Task, scripted_sink, scripted_stream};
///
/// let budget = CoopBudget::new(4);
/// let (stream, input) = scripted_stream("input");
/// let (sink, output) = scripted_sink("output");
/// input.share(&budget);
/// output.share(&budget);
/// input.extend([1, 2, 3]);
///
/// let mut task = Task::new(stream.map(Ok).forward(sink));
/// assert!(task.poll().is_pending());
/// assert!(task.woken(), "there is more to do");
/// assert_eq!(output.items(), [1, 2]);
/// ```
#[derive(Clone, Debug)]
pub struct CoopBudget(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// `None` if there is no bound.
    size: Option<usize>,
    left: usize,
    /// What is left for a poll of a task that was woken from outside; `None` if all of it is.
    leftover: Option<usize>,
    /// Whether deferred wakers were fired since the last poll, which gives the next a whole budget.
    renewed: bool,
    /// The poll that `left` is about.
    poll: u64,
    denied: usize,
    defers: bool,
    deferred: Vec<Waker>,
    /// The number of other polls after which deferred wakers fire, and of those since the first.
    delay: Option<usize>,
    passed: usize,
    /// How often deferred wakers were fired.
    fired: u64,
}

impl CoopBudget {
    /// A budget of `operations` units. With none left, wakers fire inside the call, as in tokio's
    /// `Runtime::block_on`.
    pub fn new(operations: usize) -> Self {
        Self::with(operations, false)
    }

    /// A budget of `operations` units. With none left, wakers fire later, between two polls, as in
    /// tasks that tokio has spawned.
    pub fn deferred(operations: usize) -> Self {
        Self::with(operations, true)
    }

    fn with(operations: usize, defers: bool) -> Self {
        Self(Arc::new(Mutex::new(State {
            size: Some(operations),
            left: operations,
            leftover: None,
            renewed: false,
            poll: PollCount::now().poll,
            denied: 0,
            defers,
            deferred: Vec::new(),
            delay: None,
            passed: 0,
            fired: 0,
        })))
    }

    /// Makes a poll start with `units` units if something outside the [`Task`](crate::Task) has
    /// woken it.
    ///
    /// Tokio's multi-threaded runtime polls the task that was woken last next (the LIFO slot), with
    /// what is left of the budget of the task that woke it. A task that woke itself while it was
    /// polled goes to the back of the queue, and starts with a whole budget. So does one that was
    /// woken by a deferred waker, which the runtime fires.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{SinkExt, StreamExt};
    /// use sink_test::{CoopBudget, Task, scripted_sink, scripted_stream};
    ///
    /// let budget = CoopBudget::new(100);
    /// budget.leave(2);
    /// let (stream, input) = scripted_stream("input");
    /// let (sink, output) = scripted_sink("output");
    /// output.share(&budget);
    /// let mut task = Task::new(stream.map(Ok).forward(sink));
    /// assert!(task.run().is_pending());
    ///
    /// input.extend([1, 2, 3]);
    /// assert!(task.poll().is_pending());
    /// assert_eq!((output.items(), task.woken()), (vec![1, 2], true));
    /// assert!(task.poll().is_pending());
    /// assert_eq!((output.items(), output.flushed()), (vec![1, 2, 3], 3));
    /// ```
    pub fn leave(&self, units: usize) {
        self.look(|state| state.leftover = Some(units));
    }

    /// Fires deferred wakers once the runtime has polled `polls` tasks since the first of them was
    /// deferred. [`count_poll`](Self::count_poll) counts these polls.
    pub fn fire_after(&self, polls: usize) {
        self.look(|state| state.delay = Some(polls));
    }

    /// Records that the runtime has polled a task. Returns the number of wakers that this fires.
    ///
    /// Tokio fires deferred wakers when its run queue is empty, for which there is
    /// [`fire_deferred`](Self::fire_deferred), or after 61 polls.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::SinkExt;
    /// use sink_test::{CoopBudget, Task, scripted_sink};
    ///
    /// let budget = CoopBudget::deferred(0);
    /// budget.fire_after(2);
    /// let (mut sink, handle) = scripted_sink("a");
    /// handle.share(&budget);
    /// let mut task = Task::new(sink.send(1));
    /// assert!(task.poll().is_pending());
    /// assert_eq!((budget.count_poll(), task.woken()), (0, false));
    /// assert_eq!((budget.count_poll(), task.woken()), (1, true));
    /// ```
    pub fn count_poll(&self) -> usize {
        let due = self.look(|state| {
            state.passed = if state.deferred.is_empty() { 0 } else { state.passed + 1 };
            state.delay.is_some_and(|delay| state.passed >= delay)
        });
        if due { self.fire_deferred() } else { 0 }
    }

    /// Refills the budget. Needed only without a [`Task`](crate::Task).
    pub fn refill(&self) {
        self.look(|state| state.left = state.size.unwrap_or(usize::MAX));
    }

    /// Removes the bound, and fires all deferred wakers.
    pub fn lift(&self) {
        self.look(|state| state.size = None);
        self.refill();
        self.fire_deferred();
    }

    /// Fires all deferred wakers, and returns how many there were.
    pub fn fire_deferred(&self) -> usize {
        let wakers = self.look(|state| {
            state.fired += 1;
            state.passed = 0;
            state.renewed |= !state.deferred.is_empty();
            std::mem::take(&mut state.deferred)
        });
        let fired = wakers.len();
        wakers.into_iter().for_each(Waker::wake);
        fired
    }

    /// Returns the number of units left in this poll.
    pub fn left(&self) -> usize {
        self.look(|state| state.left)
    }

    /// Returns the number of operations that found the budget spent.
    pub fn denied(&self) -> usize {
        self.look(|state| state.denied)
    }

    /// Returns the number of wakers that have not yet fired.
    pub fn deferred_wakers(&self) -> usize {
        self.look(|state| state.deferred.len())
    }

    /// Requests a unit. If none is left, `waker` is fired later.
    pub(crate) fn ask(&self, waker: &Waker) -> Grant {
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

    /// Takes the unit that `ask` has granted, for an operation that was not pending.
    pub(crate) fn take(&self) {
        self.look(|state| state.left = state.left.saturating_sub(1));
    }

    fn look<R>(&self, at: impl FnOnce(&mut State) -> R) -> R {
        let mut state = lock(&self.0);
        let PollCount { poll, continues, .. } = PollCount::now();
        if poll != 0 && poll != state.poll {
            state.poll = poll;
            let whole = state.size.unwrap_or(usize::MAX);
            let renewed = std::mem::take(&mut state.renewed);
            let leftover = state.leftover.filter(|_| continues && !renewed && state.size.is_some());
            state.left = whole.min(leftover.unwrap_or(whole));
        }
        at(&mut state)
    }
}

/// What [`CoopBudget::ask`] returns.
pub(crate) enum Grant {
    Given,
    /// The operation has to fire its waker inside the call.
    DeniedAndWoken,
    /// The budget fires the waker later.
    Deferred(Deferred),
}

/// The waker of an operation that returned `Pending`.
pub(crate) struct Waiting {
    pub(crate) waker: Waker,
    /// Set if a cooperative budget also holds the waker and will fire it.
    pub(crate) deferred: Option<Deferred>,
}

impl Waiting {
    /// Returns `true` if a budget has fired it.
    pub(crate) fn has_fired(&self) -> bool {
        self.deferred.as_ref().is_some_and(Deferred::has_fired)
    }
}

/// A waker held by a budget.
#[derive(Clone, Debug)]
pub(crate) struct Deferred {
    budget: CoopBudget,
    /// How often the budget had fired wakers when it got this one.
    fired: u64,
}

impl Deferred {
    /// Returns `true` if the budget has fired the waker.
    pub(crate) fn has_fired(&self) -> bool {
        self.budget.look(|state| state.fired > self.fired)
    }
}

#[cfg(test)]
mod tests {
    use super::{CoopBudget, PollCount};
    use crate::{Task, scripted_sink};
    use futures::{SinkExt, future};
    use std::task::Poll;

    #[test]
    fn nested_polls_count_for_themselves() {
        let budget = CoopBudget::new(1);
        let (mut sink, handle) = scripted_sink::<u32>("a");
        handle.share(&budget);
        let mut inner = Task::new(future::poll_fn(|cx| sink.poll_flush_unpin(cx)));
        let mut outer = Task::new(future::poll_fn(|_| {
            assert!(inner.poll().is_ready());
            Poll::Ready(PollCount::now().operations)
        }));
        assert_eq!(outer.poll(), Poll::Ready(0), "the flush was made in the other poll");
        assert_eq!(PollCount::now(), PollCount::default());
    }
}
