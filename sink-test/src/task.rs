//! An executor of one task, which polls only after a wake. The test calls each poll.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::coop::PollGuard;
use crate::wakes::WakeCounter;

/// Maximal number of polls of `run`: far more than a test needs, and still fast.
const LIMIT: usize = 10_000;

/// A future and its waker.
///
/// Nothing happens between the calls of the test: [`run`](Self::run) polls while the waker has
/// fired, then returns. A missing wake leaves the task parked; superfluous wakes are visible in
/// [`wakes`](Self::wakes) or [`polls`](Self::polls).
///
/// # Examples
///
/// ```
/// use futures::StreamExt;
/// use sink_test::{Task, scripted_stream};
/// use std::task::Poll;
///
/// let (mut stream, handle) = scripted_stream("input");
/// let mut task = Task::new(stream.next());
/// assert!(task.run().is_pending());
///
/// handle.push(1);
/// assert!(task.woken());
/// assert_eq!(task.run(), Poll::Ready(Some(1)));
/// assert_eq!(task.polls(), 2);
/// ```
pub struct Task<F> {
    future: Option<Pin<Box<F>>>,
    wakes: Arc<WakeCounter>,
    /// The count of `wakes` when the last poll began.
    seen: usize,
    /// The count of `wakes` when the last poll ended.
    returned: usize,
    /// Set while the future has not been polled with this waker.
    fresh: bool,
    /// Former wakers, and the count of each when it was replaced.
    former: Vec<(Arc<WakeCounter>, usize)>,
    polls: usize,
}

/// Polls.
impl<F: Future> Task<F> {
    /// Creates a task. The first [`run`](Self::run) polls it.
    pub fn new(future: F) -> Self {
        Self {
            future: Some(Box::pin(future)),
            wakes: Arc::default(),
            seen: 0,
            returned: 0,
            fresh: true,
            former: Vec::new(),
            polls: 0,
        }
    }

    /// Polls once, whether the task was woken or not. Refills each
    /// [`CoopBudget`](crate::CoopBudget), unless the task was woken from outside and the budget has
    /// [leftovers](crate::CoopBudget::leave).
    ///
    /// # Panics
    ///
    /// Panics if the future was dropped, or if the future panics.
    #[track_caller]
    pub fn poll(&mut self) -> Poll<F::Output> {
        let woke_itself = self.returned > self.seen;
        let continues = !self.fresh && !woke_itself && self.woken();
        self.polls += 1;
        self.fresh = false;
        self.seen = self.wakes.count();
        let waker = self.waker();
        let poll = PollGuard::begin(continues);
        let output = self.get_pin_mut().poll(&mut Context::from_waker(&waker));
        drop(poll);
        self.returned = self.wakes.count();
        output
    }

    /// Polls like an executor: first because the waker is new, then while the waker has fired.
    /// `Pending` means that the task is parked.
    ///
    /// # Panics
    ///
    /// Panics if the task is still awake after 10,000 polls.
    #[track_caller]
    pub fn run(&mut self) -> Poll<F::Output> {
        self.run_within(LIMIT)
    }

    /// Like [`run`](Self::run), with a limit of `limit` polls.
    ///
    /// # Panics
    ///
    /// Panics if the task is still awake after `limit` polls.
    #[track_caller]
    pub fn run_within(&mut self, limit: usize) -> Poll<F::Output> {
        let output = self.turns(limit);
        assert!(output.is_ready() || !self.is_due(), "still awake after {limit} polls");
        output
    }

    /// Like [`run`](Self::run), but returns `Pending` after `limit` polls, for futures that always
    /// have work.
    #[track_caller]
    pub fn turns(&mut self, limit: usize) -> Poll<F::Output> {
        for _ in 0..limit {
            if !self.is_due() {
                break;
            }
            if let Poll::Ready(output) = self.poll() {
                return Poll::Ready(output);
            }
        }
        Poll::Pending
    }

    /// Uses another waker from now on, as if the future had moved to another task.
    ///
    /// Wakes of former wakers count only in [`stale_wakes`](Self::stale_wakes).
    ///
    /// # Examples
    ///
    /// A future has to keep the waker of its last poll:
    ///
    /// ```
    /// use futures::StreamExt;
    /// use sink_test::{Task, scripted_stream};
    ///
    /// let (mut stream, handle) = scripted_stream("input");
    /// let mut task = Task::new(stream.next());
    /// assert!(task.run().is_pending());
    /// task.renew_waker();
    /// assert!(task.run().is_pending());
    ///
    /// handle.push(1);
    /// assert_eq!((task.wakes(), task.stale_wakes()), (1, 0));
    /// ```
    pub fn renew_waker(&mut self) {
        let former = std::mem::take(&mut self.wakes);
        let count = former.count();
        self.former.push((former, count));
        (self.seen, self.returned) = (0, 0);
        self.fresh = true;
    }

    /// Returns the future, for its getters.
    ///
    /// # Panics
    ///
    /// Panics if the future was dropped.
    #[track_caller]
    pub fn get_ref(&self) -> &F {
        self.future.as_ref().expect("the future was dropped")
    }

    /// Returns the future, to be polled or changed.
    ///
    /// # Panics
    ///
    /// Panics if the future was dropped.
    #[track_caller]
    pub fn get_pin_mut(&mut self) -> Pin<&mut F> {
        self.future.as_mut().expect("the future was dropped").as_mut()
    }

    /// Returns the future, to be moved into another task.
    ///
    /// # Panics
    ///
    /// Panics if the future was dropped.
    #[track_caller]
    pub fn into_inner(self) -> Pin<Box<F>> {
        self.future.expect("the future was dropped")
    }

    fn is_due(&self) -> bool {
        self.fresh || self.woken()
    }
}

/// Observations.
impl<F> Task<F> {
    /// Drops the future only, so that its wakers can still be observed.
    pub fn drop_future(&mut self) {
        self.future = None;
    }

    /// Returns `true` if the waker has fired since the last poll began.
    pub fn woken(&self) -> bool {
        self.wakes() > 0
    }

    /// Returns how often the waker fired since the last poll began.
    pub fn wakes(&self) -> usize {
        self.wakes.count() - self.seen
    }

    /// Returns how often wakers fired while they were in use.
    pub fn total_wakes(&self) -> usize {
        let former: usize = self.former.iter().map(|(_, count)| count).sum();
        former + self.wakes.count()
    }

    /// Returns how often wakers fired after [`renew_waker`](Self::renew_waker) had replaced them.
    pub fn stale_wakes(&self) -> usize {
        let late = |(wakes, count): &(Arc<WakeCounter>, usize)| wakes.count() - count;
        self.former.iter().map(late).sum()
    }

    /// Returns how often the future was polled.
    pub fn polls(&self) -> usize {
        self.polls
    }

    /// Returns a clone of the waker that the next poll will use.
    pub fn waker(&self) -> Waker {
        self.wakes.waker()
    }

    /// Returns the number of clones of all wakers that still exist: 0 after the future was dropped,
    /// unless it has leaked one.
    pub fn wakers_kept(&self) -> usize {
        let former = self.former.iter().map(|(wakes, _)| wakes);
        former.chain([&self.wakes]).map(|wakes| Arc::strong_count(wakes) - 1).sum()
    }
}

impl<F> fmt::Debug for Task<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("dropped", &self.future.is_none())
            .field("polls", &self.polls)
            .field("wakes", &self.wakes())
            .finish_non_exhaustive()
    }
}
