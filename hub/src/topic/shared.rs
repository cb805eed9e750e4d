//! What the sink and the readers of a topic share.
//!
//! Everything is behind one lock. Under it, items are moved, segments are cloned and wakers are kept.
//! Items are cloned and dropped, and tasks are woken, after it is released.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::log::Log;
use super::sleepers::Sleepers;
use crate::inbox::End;

#[derive(Debug)]
pub(super) struct Shared<T> {
    pub(super) capacity: usize,
    state: Mutex<State<T>>,
}

#[derive(Debug)]
pub(super) struct State<T> {
    pub(super) log: Log<T>,
    /// The readers that wait for the next flush. Each has taken all that came before it slept.
    pub(super) sleepers: Sleepers,
    /// How many items have come since the sleepers were woken.
    pub(super) unflushed: usize,
    /// Why no more items will come, if the sink is gone.
    pub(super) end: Option<End>,
}

impl<T> Shared<T> {
    pub(super) fn new(capacity: usize) -> Arc<Self> {
        let capacity = capacity.max(1);
        let state = State {
            log: Log::new(capacity),
            sleepers: Sleepers::default(),
            unflushed: 0,
            end: None,
        };
        Arc::new(Self { capacity, state: Mutex::new(state) })
    }

    /// Nothing that can panic runs under the lock but the `clone` of a waker, before anything is
    /// changed. So a poisoned lock is used on.
    pub(super) fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
