//! [`Cursor`]: the place of a reader in a topic.

use std::sync::Arc;
use std::task::{Poll, Waker};

use stream_demux::Lease;

use super::log::Garbage;
use super::shared::{Shared, State};
use super::sleepers::Place;
use super::taken::Taken;
use crate::read::End;

/// A topic keeps room for this many readers that read at the same time. More of them allocate.
const ROOMS: usize = 4;

#[derive(Debug)]
pub(crate) struct Cursor<T> {
    pub(super) shared: Arc<Shared<T>>,
    /// The position of the first item that was not taken.
    position: u64,
    /// Where the reader slept last.
    place: Option<Place>,
    /// How many items were missing in all that was taken.
    lost: u64,
    /// An inbox gets what comes next: the reader does not count as a subscriber.
    is_moving: bool,
    has_left: bool,
}

/// What a reader that sleeps does with items that are not flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unflushed {
    /// It sleeps on.
    Left,
    Taken,
}

/// What a reader that takes something has no use for: to be dropped after locks are released.
pub(crate) struct Unused<T>(Garbage<T>, Option<Waker>);

impl<T> Unused<T> {
    pub(crate) fn nothing() -> Self {
        Self(Vec::new(), None)
    }
}

/// What a reader leaves behind: to be dropped after locks are released. The lease first, because the
/// drop of an item may panic.
#[derive(Debug)]
pub(crate) struct Left<T> {
    lease: Option<Lease>,
    /// Of the reader, if it sleeps: the topic does not wake it any more.
    waker: Option<Waker>,
    garbage: Garbage<T>,
}

impl<T> Left<T> {
    pub(crate) fn nothing() -> Self {
        Self { lease: None, waker: None, garbage: Vec::new() }
    }

    /// Wakes the reader, which reads on elsewhere, and drops the rest.
    pub(crate) fn wake_reader(mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl<T> Cursor<T> {
    /// Adds a reader, which begins with the next item.
    pub(super) fn new(shared: &Arc<Shared<T>>) -> Self {
        let position = shared.lock().log.join();
        Self::at(shared, position)
    }

    /// The place of a reader that has joined.
    pub(super) fn at(shared: &Arc<Shared<T>>, position: u64) -> Self {
        Self {
            shared: Arc::clone(shared),
            position,
            place: None,
            lost: 0,
            is_moving: false,
            has_left: false,
        }
    }

    pub(crate) fn end(&self) -> Option<End> {
        self.shared.lock().end
    }

    /// How many items have come that the reader may take.
    pub(crate) fn len(&self) -> usize {
        let state = self.shared.lock();
        if self.is_asleep(&state) { 0 } else { self.come(&state) }
    }

    /// The same, although the reader sleeps.
    pub(crate) fn len_awake(&self) -> usize {
        self.come(&self.shared.lock())
    }

    /// Another reader gets what comes next: this one no longer counts as a subscriber.
    pub(super) fn set_moving(&mut self) {
        self.is_moving = true;
        self.shared.lock().moving += 1;
    }

    fn come(&self, state: &State<T>) -> usize {
        let come = state.log.end() - self.position - state.log.lost_from(self.position);
        usize::try_from(come).unwrap_or(usize::MAX)
    }

    /// How many items the reader has lost.
    pub(crate) fn lost(&self) -> u64 {
        self.lost + self.shared.lock().log.lost_from(self.position)
    }

    /// The same of a reader that has left: nothing comes after what it has taken.
    pub(crate) fn lost_in_all(&self) -> u64 {
        debug_assert!(self.has_left);
        self.lost
    }

    /// Returns `true` if the reader waits for a flush.
    fn is_asleep(&self, state: &State<T>) -> bool {
        self.place.is_some_and(|place| state.sleepers.holds(place))
    }

    /// Takes everything that has come. Completes when there is something, or nothing will ever be.
    /// With a waker, the reader sleeps otherwise.
    pub(crate) fn take(
        &mut self,
        taken: &mut Taken<T>,
        waker: Option<&Waker>,
        unflushed: Unflushed,
        unused: &mut Unused<T>,
    ) -> Poll<()> {
        let mut state = self.shared.lock();
        let is_asleep = self.is_asleep(&state);
        let may_take = !is_asleep || unflushed == Unflushed::Taken;
        if may_take && state.log.end() > self.position {
            if let Some(room) = state.rooms.pop() {
                taken.set_room(room);
            }
            let taking = state.log.take(&mut self.position, taken.segments(), &mut unused.0);
            drop(state);
            self.lost += taking.lost;
            taken.set(taking);
            return Poll::Ready(());
        }
        if state.end.is_some() {
            return Poll::Ready(());
        }
        if let Some(waker) = waker {
            let room = taken.take_room();
            if room.is_useful() && state.rooms.len() < ROOMS {
                state.rooms.push(room);
            }
            match self.place.filter(|_| is_asleep) {
                Some(place) => unused.1 = state.sleepers.renew(place, waker),
                None => self.place = Some(state.sleepers.add(waker.clone())),
            }
        }
        Poll::Pending
    }

    /// Takes what has come, into `rest` which is empty, and leaves.
    pub(super) fn finish(&mut self, rest: &mut Taken<T>, left: &mut Left<T>) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        if state.log.end() > self.position {
            let taking = state.log.take(&mut self.position, rest.segments(), &mut left.garbage);
            self.lost += taking.lost;
            rest.set(taking);
        }
        self.leave_with(&mut state, left);
    }

    /// Leaves the topic. The last reader takes the lease of the sink with it.
    pub(crate) fn leave(&mut self, left: &mut Left<T>) {
        let shared = Arc::clone(&self.shared);
        self.leave_with(&mut shared.lock(), left);
    }

    fn leave_with(&mut self, state: &mut State<T>, left: &mut Left<T>) {
        if std::mem::replace(&mut self.has_left, true) {
            return;
        }
        state.log.leave(self.position, &mut left.garbage);
        state.moving -= usize::from(self.is_moving);
        left.waker = self.place.and_then(|place| state.sleepers.remove(place));
        if state.log.readers() == 0 {
            left.lease = state.lease.take();
        }
        self.shared.count(state);
    }
}

/// The reader leaves. What only it has not read is dropped.
impl<T> Drop for Cursor<T> {
    fn drop(&mut self) {
        self.leave(&mut Left::nothing());
    }
}
