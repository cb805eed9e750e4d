//! What the sinks and the reader of an inbox share.
//!
//! Everything is behind one lock, which is held only to move items and wakers: items are dropped
//! and tasks are woken after it is released. Three atomics save the lock. The first two are written
//! under it, so a thread that takes the lock sees the truth.
//!
//! * `load` is the number of items. A sink that reads an old value either takes the lock and looks
//!   again, or adds one item beyond the capacity.
//! * `may_hold` is set while the reader sleeps and there is one sink. The reader sees nothing
//!   before that sink wakes it, so the sink may hold items back until then: a burst costs one lock,
//!   and most of its items touch nothing but the sink. A sleeping reader has taken everything, so
//!   what is held is all there is, and at most half of the capacity.
//! * `is_held` is set while that sink holds items back: by the sink, without the lock, and it is
//!   cleared under the lock. A sink that is added in the meantime is not ready until the items are
//!   put in, because its items come later. Nor does the inbox end before: what is held when it is
//!   closed can still be read. A hold that begins while it is closed may be seen too late. The inbox
//!   has ended then, and what is held is refused.
//!
//! Beside these, the task of a hub keeps a note of its own in `is_waited_for`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use stream_demux::Overflow;

use super::InboxError;
use super::batch::Batch;
use crate::life::Life;
use crate::read::End;

/// The table of the last items keeps room for this many sinks.
const LATEST_KEPT: usize = 16;

/// The load of an inbox that takes no more items.
const CLOSED: usize = usize::MAX;

#[derive(Debug)]
pub(super) struct Shared<T> {
    load: AtomicUsize,
    may_hold: AtomicBool,
    is_held: AtomicBool,
    /// An item waits for room, in the sink of a hub. Only the task of the hub uses it.
    pub(super) is_waited_for: AtomicBool,
    pub(super) capacity: usize,
    pub(super) full: Full,
    state: Mutex<State<T>>,
    /// The hub that the inbox belongs to.
    pub(super) hub: Option<Arc<Life>>,
}

/// What happens when an inbox is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    Wait,
    DropNewest,
    DropOldest,
    /// Room for one item, which newer ones replace. The reader is not waited for.
    Conflate,
    /// The same for each sink, in the order in which their items came first. If there are more sinks
    /// than the capacity, the oldest item is dropped.
    ConflateEach,
    Evict,
}

impl Full {
    /// In an inbox of a hub, each key has a sink.
    fn of_hub(overflow: Overflow) -> Self {
        match Self::new(overflow) {
            Self::Conflate => Self::ConflateEach,
            other => other,
        }
    }

    fn new(overflow: Overflow) -> Self {
        match overflow {
            Overflow::Wait => Self::Wait,
            Overflow::DropNewest => Self::DropNewest,
            Overflow::DropOldest => Self::DropOldest,
            Overflow::Conflate => Self::Conflate,
            Overflow::Evict => Self::Evict,
            other => panic!("an inbox does not know the policy {other:?}"),
        }
    }
}

#[derive(Debug)]
pub(super) struct State<T> {
    pub(super) batch: Batch<T>,
    /// The reader, if it sleeps. The batch is empty then, unless a sink has yet to wake it.
    reader: Option<Waker>,
    /// The sinks that wait for room.
    pub(super) writers: Writers,
    /// How often the reader has taken what there was.
    pub(super) reads: u32,
    /// How many sinks there are.
    pub(super) sinks: usize,
    /// How many were ever made.
    sinks_made: u32,
    /// The sink that left last was dropped without being closed.
    pub(super) is_torn: bool,
    /// No more items are taken, for this reason.
    pub(super) refusal: Option<End>,
    /// A sink held items back when the refusal came. They are the last.
    awaits_held: bool,
    /// How many items were dropped because the inbox was full.
    pub(super) lost: u64,
    /// The position in `batch` of the last item of each sink, under `ConflateEach`.
    latest: HashMap<u32, u64>,
}

impl<T> Shared<T> {
    pub(super) fn new(capacity: usize, overflow: Overflow, hub: Option<Arc<Life>>) -> Arc<Self> {
        let full = if hub.is_some() { Full::of_hub(overflow) } else { Full::new(overflow) };
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
            awaits_held: false,
            lost: 0,
            latest: HashMap::new(),
        };
        Arc::new(Self {
            load: AtomicUsize::new(0),
            may_hold: AtomicBool::new(false),
            is_held: AtomicBool::new(false),
            is_waited_for: AtomicBool::new(false),
            capacity,
            full,
            state: Mutex::new(state),
            hub,
        })
    }

    /// Returns `true` if there is room for an item and no sink holds any back, as far as is known
    /// without the lock.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.load.load(Relaxed) < self.capacity && !self.is_held()
    }

    /// Returns `true` if the only sink may hold items back.
    #[inline]
    pub(super) fn may_hold(&self) -> bool {
        self.may_hold.load(Relaxed)
    }

    /// Returns `true` if no more items are taken, as far as is known without the lock.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.load.load(Relaxed) == CLOSED
    }

    /// Returns `true` if there is no room, and the reader can still make some.
    pub(super) fn is_full(&self) -> bool {
        let state = self.lock();
        state.refusal.is_none() && state.batch.len() >= self.capacity
    }

    /// A sink begins to hold items back.
    #[inline]
    pub(super) fn begin_hold(&self) {
        self.is_held.store(true, Relaxed);
    }

    /// Returns `true` if a sink holds items back.
    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.is_held.load(Relaxed)
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

    /// Counts a sink that was made, and returns its number.
    pub(super) fn add_sink(&self) -> u32 {
        let mut state = self.lock();
        state.sinks += 1;
        state.sinks_made = state.sinks_made.wrapping_add(1);
        // Items of several sinks are put in as they come, in their order.
        self.may_hold.store(false, Relaxed);
        state.sinks_made
    }

    /// Returns `true` if the reader sleeps.
    pub(super) fn is_asleep(state: &State<T>) -> bool {
        state.reader.is_some()
    }

    /// The reader goes to sleep. Returns the waker that this one replaces.
    #[must_use = "a waker is dropped after the lock is released"]
    pub(super) fn sleep(&self, state: &mut State<T>, waker: &Waker) -> Option<Waker> {
        // What is held back is put in as it is, and not conflated.
        let may_hold = state.sinks == 1 && state.refusal.is_none() && !self.conflates_each();
        self.may_hold.store(may_hold, Relaxed);
        let is_known = state.reader.as_ref().is_some_and(|reader| reader.will_wake(waker));
        if is_known { None } else { state.reader.replace(waker.clone()) }
    }

    /// Takes the reader, if it sleeps, to wake it.
    #[must_use = "a waker that is taken must be woken"]
    pub(super) fn rouse(&self, state: &mut State<T>) -> Option<Waker> {
        self.may_hold.store(false, Relaxed);
        state.reader.take()
    }

    fn conflates_each(&self) -> bool {
        self.full == Full::ConflateEach
    }

    /// Puts an item of a sink in, or applies the policy. Returns the item that is dropped.
    #[inline]
    pub(super) fn put(&self, state: &mut State<T>, item: T, sink: u32) -> Option<T> {
        if self.conflates_each() {
            return self.put_latest(state, item, sink);
        }
        // Without room, another sink of the inbox has put an item in since this one was ready.
        if state.batch.len() < self.capacity || matches!(self.full, Full::Wait | Full::Evict) {
            state.batch.push(item);
            return None;
        }
        self.count_lost(state);
        if self.full == Full::DropNewest {
            state.batch.lose_newest();
            return Some(item);
        }
        let oldest = state.batch.lose_oldest();
        state.batch.push(item);
        oldest
    }

    /// Puts an item in the place of the one that waits of the same sink, or behind all others.
    fn put_latest(&self, state: &mut State<T>, item: T, sink: u32) -> Option<T> {
        let position = state.latest.get(&sink).copied();
        let item = match state.batch.replace(position, item) {
            Ok(old) => {
                self.count_lost(state);
                return Some(old);
            }
            Err(item) => item,
        };
        let mut oldest = None;
        if state.batch.len() >= self.capacity {
            self.count_lost(state);
            oldest = state.batch.lose_oldest();
        }
        let position = state.batch.push_replaceable(item);
        state.latest.insert(sink, position);
        oldest
    }

    fn count_lost(&self, state: &mut State<T>) {
        state.lost += 1;
        if let Some(hub) = &self.hub {
            hub.counts.lost.fetch_add(1, Relaxed);
        }
    }

    /// Wakes the reader if it sleeps.
    pub(super) fn wake_reader(&self) {
        let mut state = self.lock();
        let reader = self.rouse(&mut state);
        drop(state);
        wake_all(reader);
    }

    /// Puts in what a sink has held back, wakes the reader, and lets other sinks send items.
    ///
    /// Fails if the inbox had ended before the hold was noticed. The items are dropped then.
    pub(super) fn end_hold(&self, held: &mut Vec<T>, sink: u32) -> Result<(), InboxError> {
        let mut dropped = Vec::new();
        let mut state = self.lock();
        let refusal = state.refusal.filter(|_| !state.awaits_held && !held.is_empty());
        if refusal.is_some() {
            std::mem::swap(&mut dropped, held);
        } else if !state.batch.fill(held) {
            for item in held.drain(..) {
                dropped.extend(self.put(&mut state, item, sink));
            }
        }
        state.awaits_held = false;
        self.is_held.store(false, Relaxed);
        let writers = state.writers.take();
        self.set_load(&state);
        let reader = self.rouse(&mut state);
        drop(state);
        // First, because a drop may panic.
        wake_all(reader.into_iter().chain(writers));
        drop(dropped);
        refusal.map_or(Ok(()), |why| Err(why.into()))
    }

    /// Puts items in before a sink sends its first, and wakes the reader. If the policy drops nothing,
    /// only the last items are put in for which there is room: as many for each sink as the capacity,
    /// so that a reader that asks for them again and again, and reads nothing, gets no more.
    pub(super) fn put_some(&self, mut items: Vec<T>, sink: u32) {
        // Dropped after the lock is released.
        let mut dropped = Vec::new();
        let mut state = self.lock();
        if matches!(self.full, Full::Wait | Full::Evict) {
            let most = self.capacity.saturating_mul(state.sinks);
            let room = most.saturating_sub(state.batch.len());
            dropped.extend(items.drain(..items.len().saturating_sub(room)));
        }
        for item in items {
            if state.refusal.is_some() {
                dropped.push(item);
            } else {
                dropped.extend(self.put(&mut state, item, sink));
            }
        }
        self.set_load(&state);
        let reader = self.rouse(&mut state);
        drop(state);
        wake_all(reader);
        drop(dropped);
    }

    /// Refuses items from now on. Wakes the sinks that wait, and the reader.
    pub(super) fn refuse(&self, why: End) {
        let mut state = self.lock();
        if state.refusal.is_none() {
            state.refusal = Some(why);
            state.awaits_held = self.is_held();
        }
        self.wake_to_refusal(state);
    }

    /// Refuses items from now on, also those that a sink holds back: the reader is gone.
    pub(super) fn desert(&self) {
        let mut state = self.lock();
        state.refusal.get_or_insert(End::Closed);
        state.awaits_held = false;
        self.wake_to_refusal(state);
    }

    fn wake_to_refusal(&self, mut state: MutexGuard<'_, State<T>>) {
        self.set_load(&state);
        let reader = self.rouse(&mut state);
        let writers = state.writers.take();
        drop(state);
        wake_all(reader.into_iter().chain(writers));
    }
}

impl<T> State<T> {
    /// A sink sends no more items.
    pub(super) fn forget(&mut self, sink: u32) {
        self.latest.remove(&sink);
        // Twice the room that is needed, so that shrinking costs little for each that goes.
        if self.latest.capacity() / 8 > self.latest.len().max(LATEST_KEPT) {
            self.latest.shrink_to(self.latest.len() * 2);
        }
    }

    /// Why no more items will come, if that is known.
    pub(super) fn end(&self) -> Option<End> {
        if let Some(why) = self.refusal {
            return if self.awaits_held { None } else { Some(why) };
        }
        if self.sinks > 0 {
            None
        } else if self.is_torn {
            Some(End::Aborted)
        } else {
            Some(End::Closed)
        }
    }
}

/// The wakers of the sinks that wait for room, at most one for each sink.
#[derive(Debug, Default)]
pub(super) struct Writers(Vec<(u32, Waker)>);

impl Writers {
    /// Sets the waker of a sink. Returns the one that it replaces.
    #[must_use = "a waker is dropped after the lock is released"]
    pub(super) fn set(&mut self, sink: u32, waker: &Waker) -> Option<Waker> {
        let found = self.0.iter_mut().find(|(id, _)| *id == sink);
        let Some((_, old)) = found else {
            self.0.push((sink, waker.clone()));
            return None;
        };
        if old.will_wake(waker) { None } else { Some(std::mem::replace(old, waker.clone())) }
    }

    pub(super) fn remove(&mut self, sink: u32) -> Option<Waker> {
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
