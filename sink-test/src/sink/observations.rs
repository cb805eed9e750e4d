//! Getters of the handle of a scripted sink.

use super::state::Stage;
use super::{Call, Op, SinkHandle};

/// Observations.
impl<V> SinkHandle<V> {
    /// Returns the items that the sink took, without those that were removed since.
    pub fn items(&self) -> Vec<V>
    where
        V: Clone,
    {
        self.look(|state| state.items.clone())
    }

    /// Removes and returns the first item.
    pub fn take_item(&self) -> Option<V> {
        self.look(|state| (!state.items.is_empty()).then(|| state.items.remove(0)))
    }

    /// Removes and returns all items.
    pub fn take_items(&self) -> Vec<V> {
        self.look(|state| std::mem::take(&mut state.items))
    }

    /// Returns how many items the sink took. The item of a failing `start_send` is not taken.
    pub fn taken(&self) -> usize {
        self.look(|state| state.taken)
    }

    /// Returns how many items the sink had taken when a flush or close last completed.
    pub fn flushed(&self) -> usize {
        self.look(|state| state.flushed)
    }

    /// Returns how many items the sink had taken when a flush or close was last called, completed
    /// or not.
    pub fn flush_asked(&self) -> usize {
        self.look(|state| state.flush_asked)
    }

    /// Returns all calls since the last [`take_calls`](Self::take_calls).
    pub fn calls(&self) -> Vec<Call> {
        self.look(|state| state.calls.clone())
    }

    /// Removes and returns all calls.
    pub fn take_calls(&self) -> Vec<Call> {
        self.look(|state| std::mem::take(&mut state.calls))
    }

    /// Returns how often `op` was called.
    pub fn count(&self, op: Op) -> usize {
        self.look(|state| state.script(op).calls)
    }

    /// Returns the messages of all panics of the sink, for panics that were caught before they
    /// reached the test.
    pub fn breaches(&self) -> Vec<String> {
        self.look(|state| state.breaches.clone())
    }

    /// Returns `true` if the sink is parked: `poll_ready` would return `Pending`.
    pub fn is_parked(&self) -> bool {
        self.look(|state| state.permits == Some(0) && !state.promised)
    }

    /// Returns `true` if `op` last returned `Pending`, and its waker has not fired since.
    pub fn is_waiting(&self, op: Op) -> bool {
        self.look(|state| state.script(op).waiting.is_some())
    }

    /// Returns how many wakers of the sink are held by cooperative budgets.
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

    /// Returns `true` if the sink was dropped.
    pub fn is_dropped(&self) -> bool {
        self.look(|state| state.dropped)
    }
}
