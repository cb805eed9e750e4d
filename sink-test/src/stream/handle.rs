//! The handle of a scripted stream: controls what the stream returns, and counts its polls.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use super::{Polled, State, Step};
use crate::{CoopBudget, lock};

/// Controls and observes a stream; created by [`scripted_stream`](crate::scripted_stream).
///
/// It may outlive the stream, and then still holds its waker. Queued steps are returned in order;
/// queueing fires the waiting waker.
pub struct StreamHandle<T>(Arc<Mutex<State<T>>>);

impl<T> Clone for StreamHandle<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for StreamHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.look(|state| {
            f.debug_struct("StreamHandle")
                .field("name", &state.name)
                .field("polls", &state.polls)
                .field("taken", &state.taken)
                .field("ended", &state.ended)
                .finish_non_exhaustive()
        })
    }
}

/// Behaviour of the stream.
impl<T> StreamHandle<T> {
    pub(super) fn new(state: Arc<Mutex<State<T>>>) -> Self {
        Self(state)
    }

    /// Queues an item.
    pub fn push(&self, item: T) {
        self.script([Step::Item(item)]);
    }

    /// Queues several items, with one wake.
    pub fn extend(&self, items: impl IntoIterator<Item = T>) {
        self.script(items.into_iter().map(Step::Item));
    }

    /// Queues the end, also of an [endless](Self::endless) stream.
    pub fn end(&self) {
        self.script([Step::End]);
    }

    /// Queues a `Pending` that fires its waker inside the poll, as if the task should yield.
    pub fn stutter(&self) {
        self.script([Step::Stutter]);
    }

    /// Makes the stream return `Pending` while `budget` is spent.
    pub fn share(&self, budget: &CoopBudget) {
        let replaced = self.look(|state| state.budget.replace(budget.clone()));
        drop(replaced);
    }

    /// Queues a call of `action` inside a poll, right before the next step. `action` may use the
    /// handle.
    pub fn action(&self, action: impl FnOnce() + Send + 'static) {
        self.script([Step::Action(Box::new(action))]);
    }

    /// Makes the stream endless: while nothing is queued, `make` creates the next item, from 0, 1,
    /// 2 and so on.
    pub fn endless(&self, make: impl FnMut(u64) -> T + Send + 'static) {
        let replaced = self.look(|state| state.endless.replace(Box::new(make)));
        drop(replaced);
        self.script([]);
    }

    /// Makes every further poll panic.
    pub fn forbid_polls(&self) {
        self.look(|state| state.polled = Polled::Never);
    }

    /// Undoes [`forbid_polls`](Self::forbid_polls) and [`strict`](Self::strict).
    pub fn permit_polls(&self) {
        self.look(|state| state.polled = Polled::Freely);
    }

    /// Makes the stream panic if it is polled again after `Pending` before it has fired its waker.
    pub fn strict(&self) {
        self.look(|state| state.polled = Polled::WhenAwake);
    }

    /// Fires the last waker that the stream was polled with. Returns `false` if there is none.
    pub fn wake(&self) -> bool {
        let waker = self.look(|state| {
            state.awake = true;
            state.last_waker.clone()
        });
        waker.inspect(Waker::wake_by_ref).is_some()
    }

    /// Returns the last waker that the stream was polled with.
    pub fn waker(&self) -> Option<Waker> {
        self.look(|state| state.last_waker.clone())
    }
}

/// Observations.
impl<T> StreamHandle<T> {
    /// Returns how often the stream was polled.
    pub fn polls(&self) -> usize {
        self.look(|state| state.polls)
    }

    /// Returns how many items were taken out of the stream.
    pub fn taken(&self) -> usize {
        self.look(|state| state.taken)
    }

    /// Returns how many items are queued.
    pub fn left(&self) -> usize {
        let is_item = |step: &&Step<T>| matches!(step, Step::Item(_));
        self.look(|state| state.steps.iter().filter(is_item).count())
    }

    /// Returns `true` if the stream last returned `Pending`, not for a stutter, and nothing was
    /// queued since.
    pub fn is_waiting(&self) -> bool {
        self.look(|state| state.waiting.is_some())
    }

    /// Returns how many wakers of the stream are held by a cooperative budget.
    pub fn deferred_wakers(&self) -> usize {
        self.look(|state| state.deferred.len())
    }

    /// Returns `true` if the stream has returned `None`.
    pub fn is_ended(&self) -> bool {
        self.look(|state| state.ended)
    }

    /// Returns `true` if the stream was dropped.
    pub fn is_dropped(&self) -> bool {
        self.look(|state| state.dropped)
    }

    fn script(&self, steps: impl IntoIterator<Item = Step<T>>) {
        let steps: Vec<_> = steps.into_iter().collect(); // foreign code, so before the lock
        let waiting = self.look(|state| {
            state.steps.extend(steps);
            state.awake |= state.waiting.is_some();
            state.waiting.take()
        });
        if let Some(waiting) = waiting {
            waiting.waker.wake();
        }
    }

    fn look<R>(&self, at: impl FnOnce(&mut State<T>) -> R) -> R {
        let mut state = lock(&self.0);
        state.hear_deferred();
        at(&mut state)
    }
}
