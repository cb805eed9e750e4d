//! The handle of a scripted sink: it sets what the sink answers, and records the calls.

use std::sync::{Arc, Mutex};
use std::task::Waker;

use super::super::{CoopBudget, Log, lock};
use super::state::{AskedAgain, Stage, State};
use super::{Call, Op};

/// Controls and observes one sink. It outlives the sink, and then still holds its wakers.
///
/// A new sink is open: all four operations answer `Ready(Ok)`. For each operation a stutter comes
/// before a failure, and a failure before a hold.
pub struct SinkHandle<V>(Arc<Mutex<State<V>>>);

impl<V> Clone for SinkHandle<V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// What the sink answers.
impl<V> SinkHandle<V> {
    pub(super) fn new(state: Arc<Mutex<State<V>>>) -> Self {
        Self(state)
    }

    /// Shuts the gate: `poll_ready` answers Pending, unless it has promised the next send already.
    pub fn park(&self) {
        self.look(|state| state.permits = Some(0));
    }

    /// Opens the gate without bound, and fires the waker that waits at it.
    pub fn open(&self) {
        self.look(|state| state.permits = None);
        self.wake_waiting(Op::Ready);
    }

    /// Opens the gate for `sends` more, after which it is shut again, and fires the waker that waits at it.
    pub fn allow(&self, sends: usize) {
        self.look(|state| state.permits = Some(state.permits.unwrap_or(0) + sends));
        self.wake_waiting(Op::Ready);
    }

    /// Makes `op` answer Pending until it is released; `hold(Op::Ready)` is `park()`.
    #[track_caller]
    pub fn hold(&self, op: Op) {
        match op {
            Op::Ready => self.park(),
            Op::Send => panic!("start_send cannot be held: it has no Pending"),
            Op::Flush | Op::Close => self.look(|state| state.script(op).held = true),
        }
    }

    /// Ends a hold, and fires the waker that waits for it; `release(Op::Ready)` is `open()`.
    pub fn release(&self, op: Op) {
        self.look(|state| state.script(op).held = false);
        match op {
            Op::Ready => self.open(),
            Op::Send | Op::Flush | Op::Close => self.wake_waiting(op),
        }
    }

    /// Makes `op` answer `Err(Broken(op.name()))` from now on, and fires the waker that waits for it.
    pub fn fail(&self, op: Op) {
        self.fail_quietly(op);
        self.wake_waiting(op);
    }

    /// As `fail`, but fires no waker: the next call of the operation fails.
    pub fn fail_quietly(&self, op: Op) {
        self.look(|state| state.script(op).fails = true);
    }

    /// Makes the next `calls` calls of `op` answer Pending and wake their own waker inside the call,
    /// as tokio's resources do when their cooperative budget is spent.
    #[track_caller]
    pub fn stutter(&self, op: Op, calls: usize) {
        assert_ne!(op, Op::Send, "start_send cannot stutter: it has no Pending");
        self.look(|state| state.script(op).stutters = calls);
    }

    /// Makes the sink answer Pending once `budget` is spent.
    pub fn share(&self, budget: &CoopBudget) {
        let replaced = self.look(|state| state.budget.replace(budget.clone()));
        drop(replaced);
    }

    /// Runs `action` inside the next call of `op`, before it is checked and answered. It may use
    /// the handle.
    pub fn during(&self, op: Op, action: impl FnOnce() + Send + 'static) {
        let replaced = self.look(|state| state.script(op).action.replace(Box::new(action)));
        drop(replaced);
    }

    /// Fires the last waker the sink has seen, for no reason. Returns `false` if it has seen none.
    pub fn wake(&self) -> bool {
        let waker = self.look(|state| {
            state.wakes += 1;
            state.last_waker.clone()
        });
        waker.inspect(Waker::wake_by_ref).is_some()
    }

    /// The last waker the sink has seen. The sink does not learn of its use: see `excuse`.
    pub fn waker(&self) -> Option<Waker> {
        self.look(|state| state.last_waker.clone())
    }

    /// Allows one call of an operation that is Pending, as if the sink had fired its waker: for a sink that
    /// is polled because of another waker, such as that of the sink that was in the slot before.
    pub fn excuse(&self) {
        self.look(|state| state.wakes += 1);
    }

    /// Allows calls of what is Pending at any time from now on.
    pub fn lenient(&self) {
        self.look(|state| state.asked_again = AskedAgain::Always);
    }

    /// The sink is attached with `Overflow::Wait`: then `poll_ready` must not be called after a Pending without a
    /// wake, however many operations came before it.
    pub fn waits(&self) {
        self.look(|state| state.asked_again = AskedAgain::Never);
    }

    /// Logs what happens to the sink from now on, but not each call:
    /// `a sent 1`, `a flushed`, `a closed`, `a failed in poll_ready`, `a dropped`.
    pub fn log_to(&self, log: &Log) {
        self.look(|state| state.log = Some(log.clone()));
    }

    /// Fires the waker of the last Pending answer of `op`, once.
    fn wake_waiting(&self, op: Op) {
        let waiting = self.look(|state| {
            let waiting = state.script(op).waiting.take();
            // Counted before it fires: who is woken may be asking already, on another thread.
            state.wakes += usize::from(waiting.is_some());
            waiting
        });
        if let Some(waiting) = waiting {
            waiting.waker.wake();
        }
    }

    fn look<R>(&self, at: impl FnOnce(&mut State<V>) -> R) -> R {
        let mut state = lock(&self.0);
        state.hear_deferred();
        at(&mut state)
    }
}

/// Observations.
impl<V> SinkHandle<V> {
    /// The items taken and not yet removed by `take_items`.
    pub fn items(&self) -> Vec<V>
    where
        V: Clone,
    {
        self.look(|state| state.items.clone())
    }

    pub fn take_items(&self) -> Vec<V> {
        self.look(|state| std::mem::take(&mut state.items))
    }

    /// How many items were ever taken; the item of a failing `start_send` is not.
    pub fn taken(&self) -> usize {
        self.look(|state| state.taken)
    }

    /// How many items had been taken when a flush or close last completed.
    pub fn flushed(&self) -> usize {
        self.look(|state| state.flushed)
    }

    /// How many items had been taken when a flush or close was last called, whatever the answer.
    pub fn flush_asked(&self) -> usize {
        self.look(|state| state.flush_asked)
    }

    /// Every call since the start, or since `take_calls`.
    pub fn calls(&self) -> Vec<Call> {
        self.look(|state| state.calls.clone())
    }

    pub fn take_calls(&self) -> Vec<Call> {
        self.look(|state| std::mem::take(&mut state.calls))
    }

    /// How often `op` was ever called.
    pub fn count(&self, op: Op) -> usize {
        self.look(|state| state.script(op).calls)
    }

    /// The breaches it panicked with, for panics that got lost on the way.
    pub fn breaches(&self) -> Vec<String> {
        self.look(|state| state.breaches.clone())
    }

    /// Returns `true` if the gate is shut: `poll_ready` would answer Pending.
    pub fn is_parked(&self) -> bool {
        self.look(|state| state.permits == Some(0) && !state.promised)
    }

    /// Returns `true` if `op` last answered Pending, and was not released since.
    pub fn is_waiting(&self, op: Op) -> bool {
        self.look(|state| state.script(op).waiting.is_some())
    }

    /// How many of its wakers cooperative budgets have yet to fire.
    pub fn deferred_wakers(&self) -> usize {
        self.look(|state| state.deferred.len())
    }

    /// Returns `true` if `poll_close` was called, and has neither completed nor failed.
    pub fn is_closing(&self) -> bool {
        self.look(|state| state.stage == Stage::Closing)
    }

    /// Returns `true` if `poll_close` completed.
    pub fn is_closed(&self) -> bool {
        self.look(|state| state.stage == Stage::Closed)
    }

    /// Returns `true` if an operation failed.
    pub fn is_failed(&self) -> bool {
        self.look(|state| state.stage == Stage::Failed)
    }

    pub fn is_dropped(&self) -> bool {
        self.look(|state| state.dropped)
    }
}
