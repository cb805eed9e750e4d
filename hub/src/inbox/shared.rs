//! What the sinks and the reader of an inbox share.
//!
//! Everything is behind one lock, which is held only to move items and wakers: items are dropped and
//! tasks are woken after it is released. `load` is a copy of the number of items, so that a sink finds
//! out whether there is room without the lock. It is written under the lock; a sink that reads an old
//! value either takes the lock and sees the right one, or adds an item beyond the capacity.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use stream_demux::Overflow;

use super::End;
use super::batch::Batch;

/// The load of an inbox that takes no more items.
const CLOSED: usize = usize::MAX;

#[derive(Debug)]
pub(super) struct Shared<T> {
    load: AtomicUsize,
    pub(super) capacity: usize,
    pub(super) full: Full,
    state: Mutex<State<T>>,
}

/// What happens when an inbox is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    Wait,
    DropNewest,
    DropOldest,
    /// Room for one item, which newer ones replace. The reader is not waited for.
    Conflate,
    Evict,
}

impl Full {
    pub(super) fn new(overflow: Overflow) -> Self {
        match overflow {
            Overflow::Wait => Self::Wait,
            Overflow::DropNewest => Self::DropNewest,
            Overflow::DropOldest => Self::DropOldest,
            Overflow::Conflate => Self::Conflate,
            Overflow::Evict => Self::Evict,
            other => unimplemented!("an inbox with the policy {other:?}"),
        }
    }
}

#[derive(Debug)]
pub(super) struct State<T> {
    pub(super) batch: Batch<T>,
    /// The reader, if it is waiting.
    pub(super) reader: Option<Waker>,
    /// The sinks that wait for room.
    pub(super) writers: Writers,
    /// How often the reader has taken what there was.
    pub(super) reads: u64,
    /// How many sinks there are.
    pub(super) sinks: usize,
    /// How many were ever made.
    pub(super) sinks_made: u64,
    /// The sink that left last was dropped without being closed.
    pub(super) is_torn: bool,
    /// No more items are taken, for this reason.
    pub(super) refusal: Option<End>,
    /// How many items were dropped because the inbox was full.
    pub(super) lost: u64,
}

impl<T> Shared<T> {
    pub(super) fn new(capacity: usize, overflow: Overflow) -> Arc<Self> {
        let full = Full::new(overflow);
        let capacity = if full == Full::Conflate { 1 } else { capacity.clamp(1, CLOSED - 1) };
        let state = State {
            batch: Batch::new(),
            reader: None,
            writers: Writers::default(),
            reads: 0,
            sinks: 0,
            sinks_made: 0,
            is_torn: false,
            refusal: None,
            lost: 0,
        };
        Arc::new(Self { load: AtomicUsize::new(0), capacity, full, state: Mutex::new(state) })
    }

    /// Returns `true` if there is room for an item, as far as is known without the lock.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.load.load(Relaxed) < self.capacity
    }

    /// No panic can leave the state inconsistent, so a poisoned lock is used on.
    pub(super) fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the number of items, after it has changed.
    #[inline]
    pub(super) fn set_load(&self, state: &State<T>) {
        let load = if state.refusal.is_some() { CLOSED } else { state.batch.len() };
        self.load.store(load, Relaxed);
    }

    /// Refuses items from now on. Wakes the sinks that wait, and the reader.
    pub(super) fn refuse(&self, why: End) {
        let mut state = self.lock();
        state.refusal.get_or_insert(why);
        self.set_load(&state);
        let (reader, writers) = (state.reader.take(), state.writers.take());
        drop(state);
        wake_all(reader.into_iter().chain(writers));
    }
}

impl<T> State<T> {
    /// Why no more items will come, if that is known.
    pub(super) fn end(&self) -> Option<End> {
        match self.refusal {
            None if self.sinks > 0 => None,
            None if self.is_torn => Some(End::Aborted),
            None => Some(End::Closed),
            refusal => refusal,
        }
    }
}

/// The wakers of the sinks that wait for room, at most one for each sink.
#[derive(Debug, Default)]
pub(super) struct Writers(Vec<(u64, Waker)>);

impl Writers {
    /// Sets the waker of a sink. Returns the one that it replaces.
    #[must_use = "a waker is dropped after the lock is released"]
    pub(super) fn set(&mut self, sink: u64, waker: &Waker) -> Option<Waker> {
        let found = self.0.iter_mut().find(|(id, _)| *id == sink);
        let Some((_, old)) = found else {
            self.0.push((sink, waker.clone()));
            return None;
        };
        if old.will_wake(waker) { None } else { Some(std::mem::replace(old, waker.clone())) }
    }

    pub(super) fn remove(&mut self, sink: u64) -> Option<Waker> {
        let index = self.0.iter().position(|(id, _)| *id == sink)?;
        Some(self.0.swap_remove(index).1)
    }

    #[must_use = "wakers that are taken must be woken"]
    pub(super) fn take(&mut self) -> impl Iterator<Item = Waker> + use<> {
        std::mem::take(&mut self.0).into_iter().map(|(_, waker)| waker)
    }
}

pub(super) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}
