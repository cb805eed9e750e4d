//! An executor of one task, which polls only what was woken; each poll is a call of the test.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use super::coop::PollGuard;

/// Polls that `run` makes before it gives up.
const LIMIT: usize = 10_000;

/// Counts how often it was fired. It holds no future, so that one which keeps its waker is no cycle.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Bell {
    fn rings(&self) -> usize {
        self.0.load(SeqCst)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A future and the waker it is polled with.
pub struct Task<F> {
    future: Option<Pin<Box<F>>>,
    bell: Arc<Bell>,
    /// How often `bell` had fired when the last poll began.
    heard: usize,
    /// The future has not been polled with this bell yet.
    fresh: bool,
    /// Former bells, and how often each had fired when it was replaced.
    former: Vec<(Arc<Bell>, usize)>,
    polls: usize,
}

impl<F: Future> Task<F> {
    pub fn new(future: F) -> Self {
        Self {
            future: Some(Box::pin(future)),
            bell: Arc::default(),
            heard: 0,
            fresh: true,
            former: Vec::new(),
            polls: 0,
        }
    }

    /// Polls once, woken or not. Cooperative budgets are full again.
    #[track_caller]
    pub fn poll(&mut self) -> Poll<F::Output> {
        self.polls += 1;
        self.fresh = false;
        self.heard = self.bell.rings();
        let waker = self.waker();
        let _poll = PollGuard::begin();
        self.get_pin_mut().poll(&mut Context::from_waker(&waker))
    }

    /// Polls as an executor would: first because the future is new to this waker, then as long as the
    /// waker has fired. Pending means that it sleeps.
    ///
    /// # Panics
    ///
    /// If it is still awake after 10,000 polls.
    #[track_caller]
    pub fn run(&mut self) -> Poll<F::Output> {
        self.run_within(LIMIT)
    }

    /// As `run`, with another limit.
    #[track_caller]
    pub fn run_within(&mut self, limit: usize) -> Poll<F::Output> {
        let output = self.turns(limit);
        assert!(output.is_ready() || !self.is_due(), "still awake after {limit} polls");
        output
    }

    /// As `run`, but returns after `limit` polls: for futures with endless work.
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

    /// Polls the future with another waker from now on, as if it had moved to another task. Wakes of the
    /// former wakers count in `stale_wakes` only, and do not make `woken` true.
    pub fn renew_waker(&mut self) {
        let former = std::mem::take(&mut self.bell);
        let rings = former.rings();
        self.former.push((former, rings));
        self.heard = 0;
        self.fresh = true;
    }

    /// The future, for its getters.
    #[track_caller]
    pub fn get_ref(&self) -> &F {
        self.future.as_ref().expect("the future was dropped")
    }

    #[track_caller]
    pub fn get_pin_mut(&mut self) -> Pin<&mut F> {
        self.future.as_mut().expect("the future was dropped").as_mut()
    }

    /// Returns the future, to be moved into another task as it is.
    #[track_caller]
    pub fn into_inner(self) -> Pin<Box<F>> {
        self.future.expect("the future was dropped")
    }

    fn is_due(&self) -> bool {
        self.fresh || self.woken()
    }
}

impl<F> Task<F> {
    /// Drops the future only, so that its wakers can still be observed.
    pub fn drop_future(&mut self) {
        self.future = None;
    }

    /// Returns `true` if the waker has fired since the last poll began.
    pub fn woken(&self) -> bool {
        self.wakes() > 0
    }

    /// How often the waker fired since the last poll began.
    pub fn wakes(&self) -> usize {
        self.bell.rings() - self.heard
    }

    /// How often a waker fired while it was the present one.
    pub fn total_wakes(&self) -> usize {
        let former: usize = self.former.iter().map(|(_, rings)| rings).sum();
        former + self.bell.rings()
    }

    /// How often wakers fired after they were replaced by `renew_waker`.
    pub fn stale_wakes(&self) -> usize {
        let late = |(bell, rings): &(Arc<Bell>, usize)| bell.rings() - rings;
        self.former.iter().map(late).sum()
    }

    pub fn polls(&self) -> usize {
        self.polls
    }

    /// A clone of the waker the next poll will use.
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.bell))
    }

    /// How many clones of all the wakers are still kept somewhere: none, once the future is gone.
    pub fn wakers_kept(&self) -> usize {
        let former = self.former.iter().map(|(bell, _)| bell);
        former.chain([&self.bell]).map(|bell| Arc::strong_count(bell) - 1).sum()
    }
}
