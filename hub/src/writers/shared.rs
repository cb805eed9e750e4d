//! What the sink, the handles and the writers of a log share.
//!
//! Everything is behind one lock. Under it, segments are cloned and counts are changed. Items are
//! encoded and written, and tasks are woken, without it.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use tokio::sync::Notify;

use super::log::{Cursor, Garbage, Limits, Log};

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// The number of writers, changed under the lock.
    writers: AtomicUsize,
    /// Wakes the writers that wait for items.
    pub(super) come: Arc<Notify>,
    /// The number of items that writers have lost, which the hub counts.
    pub(super) lost: Arc<AtomicU64>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) log: Log,
    /// The number of handles, with which writers can join.
    pub(super) handles: usize,
    /// The task of the sink, if it waits for the slowest writer.
    pub(super) sink: Option<Waker>,
    /// Why no more items will come, if the sink is gone.
    pub(super) end: Option<SinkEnd>,
}

/// How the sink has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SinkEnd {
    Closed,
    /// It was dropped before.
    Aborted,
    /// An item could not be encoded.
    Unencoded,
}

impl Shared {
    /// There is one handle.
    pub(super) fn new(limits: Limits, lost: Arc<AtomicU64>) -> Arc<Self> {
        let state = State { log: Log::new(limits), handles: 1, sink: None, end: None };
        Arc::new(Self {
            state: Mutex::new(state),
            writers: AtomicUsize::new(0),
            come: Arc::default(),
            lost,
        })
    }

    pub(super) fn join(&self) -> Cursor {
        let mut state = self.lock();
        self.writers.fetch_add(1, Relaxed);
        state.log.join()
    }

    pub(super) fn leave(&self, state: &mut State, cursor: &Cursor, garbage: &mut Garbage) {
        self.writers.fetch_sub(1, Relaxed);
        state.log.leave(cursor, garbage);
    }

    /// Returns `true` if there is a writer. Does not wait for the lock: a writer that joins at the
    /// same time may begin with a later item.
    pub(super) fn has_writers(&self) -> bool {
        self.writers.load(Relaxed) > 0
    }

    /// Nothing that can panic runs under the lock but the `clone` of a waker, before anything is
    /// changed. So a poisoned lock is used on.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count_lost(&self, items: u64) {
        if items > 0 {
            self.lost.fetch_add(items, Relaxed);
        }
    }
}

impl State {
    /// Returns `true` if nothing that is sent will ever be written.
    pub(super) fn is_unused(&self) -> bool {
        self.handles == 0 && self.log.writers() == 0
    }

    /// Takes the waker of the sink, if it waits and can go on. Wake it after the lock is released.
    #[must_use = "the sink would sleep on"]
    pub(super) fn wake_sink(&mut self) -> Option<Waker> {
        let waits = self.sink.is_some();
        if waits && (self.is_unused() || !self.log.room().is_empty()) {
            return self.sink.take();
        }
        None
    }
}
