//! [`Roster`]: the workers that are alive, and what is known of them.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::Summary;
use crate::inbox::Bell;

pub(super) type OnPanic<K> = Arc<dyn Fn(&K, &str) + Send + Sync>;

pub(super) struct Roster<K, T> {
    max: usize,
    /// Items that were read from the input.
    received: AtomicU64,
    is_stopping: AtomicBool,
    /// An item was returned by the demux, because there is no worker for its key and none may be
    /// made.
    has_returned: AtomicBool,
    /// Workers that have nothing to do are to end. Set when the input waits for one, which rings
    /// all bells, and cleared when no more than half of the workers are left: so at most two bells
    /// are rung for each that ends.
    is_shut: AtomicBool,
    on_panic: Option<OnPanic<K>>,
    state: Mutex<State<K, T>>,
}

struct State<K, T> {
    alive: HashMap<u64, Alive<K, T>>,
    /// The worker of a key that was made last: its number, and when it is gone.
    latest: HashMap<K, (u64, oneshot::Receiver<()>)>,
    made: u64,
    /// Items that were taken by workers that are gone.
    taken: u64,
    panics: u64,
    returned: Option<T>,
    is_aborted: bool,
    /// The task of the demux, if the input or the gate waits.
    gate: Option<Waker>,
    /// The task that waits for the end.
    owner: Option<Waker>,
}

struct Alive<K, T> {
    key: K,
    bell: Bell<T>,
    taken: Arc<AtomicU64>,
    task: Option<AbortHandle>,
}

/// A worker that was entered.
pub(super) struct Entered<K: Hash + Eq, T> {
    pub(super) departure: Departure<K, T>,
    /// Resolves when the worker that the key had before is gone.
    pub(super) predecessor: Option<oneshot::Receiver<()>>,
    pub(super) taken: Arc<AtomicU64>,
}

impl<K: Hash + Eq, T> Roster<K, T> {
    pub(super) fn new(max: usize, on_panic: Option<OnPanic<K>>) -> Arc<Self> {
        let state = State {
            alive: HashMap::new(),
            latest: HashMap::new(),
            made: 0,
            taken: 0,
            panics: 0,
            returned: None,
            is_aborted: false,
            gate: None,
            owner: None,
        };
        Arc::new(Self {
            max: max.max(1),
            received: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            has_returned: AtomicBool::new(false),
            is_shut: AtomicBool::new(false),
            on_panic,
            state: Mutex::new(state),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<K, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a worker, unless there are too many.
    pub(super) fn enter(self: &Arc<Self>, key: &K, bell: Bell<T>) -> Option<Entered<K, T>>
    where
        K: Clone,
    {
        let mut state = self.lock();
        if state.alive.len() >= self.max {
            return None;
        }
        let (id, taken) = (state.made, Arc::default());
        state.made += 1;
        let (done, gone) = oneshot::channel();
        let predecessor = state.latest.insert(key.clone(), (id, gone)).map(|(_, gone)| gone);
        let worker = Alive { key: key.clone(), bell, taken: Arc::clone(&taken), task: None };
        state.alive.insert(id, worker);
        drop(state);
        let departure = Departure { roster: Arc::clone(self), id, _done: done };
        Some(Entered { departure, predecessor, taken })
    }

    /// Notes the task of a worker, which may be gone by now.
    pub(super) fn set_task(&self, id: u64, task: AbortHandle) {
        let mut state = self.lock();
        if state.is_aborted {
            drop(state);
            task.abort();
        } else if let Some(worker) = state.alive.get_mut(&id) {
            worker.task = Some(task);
        }
    }

    /// Counts an item that was read from the input. Only the task of the demux does so.
    #[inline]
    pub(super) fn count_received(&self) {
        self.received.store(self.received.load(Relaxed) + 1, Relaxed);
    }

    /// Reads no more from the input.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Release);
        let gate = self.lock().gate.take();
        gate.into_iter().for_each(Waker::wake);
    }

    #[inline]
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Acquire)
    }

    /// Registers the task of the demux. Returns `true` if the input is still to be waited for.
    pub(super) fn wait_for_input(&self, cx: &Context<'_>) -> bool {
        let replaced = self.lock().gate.replace(cx.waker().clone());
        drop(replaced);
        !self.is_stopping()
    }

    /// Takes back an item that has no worker.
    pub(super) fn take_back(&self, item: T) {
        self.lock().returned = Some(item);
        self.has_returned.store(true, Relaxed);
    }

    #[inline]
    pub(super) fn has_returned(&self) -> bool {
        self.has_returned.load(Relaxed)
    }

    /// Gives the item out again as soon as there may be another worker.
    pub(super) fn poll_returned(&self, cx: &Context<'_>) -> Poll<Option<T>> {
        let mut state = self.lock();
        if state.alive.len() < self.max {
            self.has_returned.store(false, Relaxed);
            return Poll::Ready(state.returned.take());
        }
        let replaced = state.gate.replace(cx.waker().clone());
        let was_shut = self.is_shut.swap(true, AcqRel);
        // Workers that wait find out that they are to end. Others do so when they wait next.
        let bells = state.alive.values().filter(|_| !was_shut).map(|worker| worker.bell.clone());
        let bells = bells.collect::<Vec<_>>();
        drop(state);
        drop(replaced);
        bells.iter().for_each(Bell::ring);
        Poll::Pending
    }

    /// Returns `true` if a worker that has nothing to do is to make room for another.
    #[inline]
    pub(super) fn wants_room(&self) -> bool {
        self.is_shut.load(Acquire)
    }

    pub(super) fn panicked(&self, key: &K, message: &str) {
        self.lock().panics += 1;
        if let Some(call) = &self.on_panic {
            call(key, message);
        }
    }

    /// Waits until no worker is alive.
    pub(super) fn poll_over(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.alive.is_empty() {
            return Poll::Ready(());
        }
        let replaced = state.owner.replace(cx.waker().clone());
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    /// Ends all workers at their next `await`, and those that are made from now on.
    pub(super) fn abort(&self) {
        let mut state = self.lock();
        state.is_aborted = true;
        let tasks = state.alive.values_mut().filter_map(|worker| worker.task.take());
        let tasks = tasks.collect::<Vec<_>>();
        drop(state);
        tasks.iter().for_each(AbortHandle::abort);
    }

    pub(super) fn len(&self) -> usize {
        self.lock().alive.len()
    }

    /// The keys that have a worker.
    pub(super) fn keys(&self) -> Vec<K>
    where
        K: Clone,
    {
        self.lock().latest.keys().cloned().collect()
    }

    pub(super) fn summary(&self, hung: Vec<K>) -> Summary<K> {
        let state = self.lock();
        let taken = state.alive.values().map(|worker| worker.taken.load(Relaxed)).sum::<u64>();
        Summary {
            received: self.received.load(Relaxed),
            taken: state.taken + taken,
            workers: state.made,
            panics: state.panics,
            hung,
        }
    }
}

impl<K, T> fmt::Debug for Roster<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Roster")
            .field("alive", &state.alive.len())
            .field("made", &state.made)
            .field("received", &self.received.load(Relaxed))
            .field("panics", &state.panics)
            .field("is_stopping", &self.is_stopping.load(Relaxed))
            .field("is_shut", &self.is_shut.load(Relaxed))
            .finish_non_exhaustive()
    }
}

/// Removes a worker when it is dropped, whatever has ended it.
pub(super) struct Departure<K: Hash + Eq, T> {
    roster: Arc<Roster<K, T>>,
    pub(super) id: u64,
    /// Dropped last: then the next worker of the key begins.
    _done: oneshot::Sender<()>,
}

impl<K: Hash + Eq, T> Drop for Departure<K, T> {
    fn drop(&mut self) {
        let mut state = self.roster.lock();
        let Some(worker) = state.alive.remove(&self.id) else { return };
        state.taken += worker.taken.load(Relaxed);
        if state.latest.get(&worker.key).is_some_and(|&(id, _)| id == self.id) {
            state.latest.remove(&worker.key);
        }
        if state.alive.len() <= self.roster.max / 2 {
            self.roster.is_shut.store(false, Release);
        }
        let gate = if self.roster.has_returned() { state.gate.take() } else { None };
        let owner = if state.alive.is_empty() { state.owner.take() } else { None };
        drop(state);
        gate.into_iter().chain(owner).for_each(Waker::wake);
    }
}
