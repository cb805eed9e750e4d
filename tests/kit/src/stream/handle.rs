//! The handle of a scripted stream: it says what the stream returns, and shows how often it was
//! polled.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use super::{Polled, State, Step};
use crate::{CoopBudget, lock};

/// Controls and observes one stream; made by [`scripted_stream`](crate::scripted_stream).
///
/// It outlives the stream, and then still holds its waker. What is queued is returned in order;
/// queueing fires the waker that waits.
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

/// What the stream returns.
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

    /// Queues a call of `action` inside a poll, right before the next step of that poll. It may use
    /// the handle.
    pub fn action(&self, action: impl FnOnce() + Send + 'static) {
        self.script([Step::Action(Box::new(action))]);
    }

    /// Whenever nothing is queued, `invent` makes the next item, from 0, 1, 2 and so on.
    pub fn endless(&self, invent: impl FnMut(u64) -> T + Send + 'static) {
        let replaced = self.look(|state| state.endless.replace(Box::new(invent)));
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

    /// Fires the last waker that the stream was polled with, for no reason. Returns `false` if
    /// there is none.
    pub fn wake(&self) -> bool {
        let waker = self.look(|state| {
            state.awake = true;
            state.last_waker.clone()
        });
        waker.inspect(Waker::wake_by_ref).is_some()
    }

    /// The last waker that the stream was polled with.
    pub fn waker(&self) -> Option<Waker> {
        self.look(|state| state.last_waker.clone())
    }
}

/// What was done to the stream.
impl<T> StreamHandle<T> {
    /// How often the stream was polled.
    pub fn polls(&self) -> usize {
        self.look(|state| state.polls)
    }

    /// How many items were taken out of the stream.
    pub fn taken(&self) -> usize {
        self.look(|state| state.taken)
    }

    /// How many items are queued and not yet taken.
    pub fn left(&self) -> usize {
        let is_item = |step: &&Step<T>| matches!(step, Step::Item(_));
        self.look(|state| state.steps.iter().filter(is_item).count())
    }

    /// Returns `true` if the stream last returned `Pending`, not for a stutter, and nothing was
    /// queued since.
    pub fn is_waiting(&self) -> bool {
        self.look(|state| state.waiting.is_some())
    }

    /// How many wakers of the stream a cooperative budget has yet to fire.
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
