//! Topics of a hub. A subscription to one key on the default terms reads a topic that it shares with
//! others, and leaves it for an inbox when it wants more than that.
//!
//! A reader that moves to an inbox must get each item once and in its place. Its inbox is attached
//! under the key, and only the task of the hub knows when that happens: it notes the number of the
//! item that it has read last. The topic has had all items before that one, and gets that one if it
//! is for the key, because the task reads no further item before each sink has taken the present
//! one. So the topic cuts the reader off before it gets a later item, and the sink of the inbox drops
//! what is not later.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};

use stream_demux::Lease;

use super::TopicSink;
use super::cursor::{Cursor, Left, Unflushed, Unused};
use super::segment::CloneSome;
use super::shared::Shared;
use super::taken::Taken;
use crate::life::Life;
use crate::read::{End, Lagged};

/// Refers to the topic of a key.
#[derive(Debug)]
pub(crate) struct Topic<T>(Arc<Shared<T>>);

impl<T> Topic<T> {
    /// Creates a topic with its sink and its first reader.
    pub(crate) fn new(capacity: usize, hub: &Arc<Life>) -> (Self, TopicSink<T>, Cursor<T>) {
        let shared = Shared::new(capacity, Some(Arc::clone(hub)));
        let cursor = Cursor::new(&shared);
        (Self(Arc::clone(&shared)), TopicSink::new(shared), cursor)
    }

    /// Sets the lease of the sink, which the last reader drops.
    pub(crate) fn hold(&self, lease: Lease) {
        self.0.lock().lease = Some(lease);
    }

    /// Adds a reader, unless the topic is over.
    pub(crate) fn join(&self) -> Option<Cursor<T>> {
        let mut state = self.0.lock();
        state.subscribers()?;
        let position = state.log.join();
        self.0.count(&mut state);
        if let Some(hub) = &self.0.hub {
            hub.counts.joined.fetch_add(1, Relaxed);
        }
        drop(state);
        Some(Cursor::at(&self.0, position))
    }

    /// How many readers are there to stay, unless the topic is over: its last reader has left, or
    /// its sink is gone.
    pub(crate) fn subscribers(&self) -> Option<usize> {
        self.0.lock().subscribers()
    }
}

/// A reader of the topic of a key.
#[derive(Debug)]
pub(crate) struct Reading<T> {
    taken: Taken<T>,
    tail: Tail<T>,
    clone: CloneSome<T>,
}

/// Where what comes next is found.
#[derive(Debug)]
enum Tail<T> {
    Topic(Cursor<T>),
    Moving(Arc<Handover<T>>),
}

impl<T> Reading<T> {
    pub(crate) fn new(cursor: Cursor<T>, clone: CloneSome<T>) -> Self {
        Self { taken: Taken::new(), tail: Tail::Topic(cursor), clone }
    }

    pub(crate) fn has_taken(&self) -> bool {
        !self.taken.is_empty()
    }

    #[inline]
    pub(crate) fn pop_ready(&mut self) -> Option<T> {
        self.taken.pop_ready()
    }

    pub(crate) fn next_taken(&mut self) -> Option<Result<T, Lagged>> {
        self.taken.next(self.clone)
    }

    /// Takes what has come. Completes when there is something, or nothing will ever be. With a
    /// waker, the reader sleeps otherwise.
    pub(crate) fn take(&mut self, waker: Option<&Waker>) -> Poll<()> {
        let mut unused = Unused::nothing();
        match &mut self.tail {
            Tail::Topic(cursor) => {
                cursor.take(&mut self.taken, waker, Unflushed::Left, &mut unused)
            }
            Tail::Moving(handover) => handover.take(&mut self.taken, waker, &mut unused),
        }
    }

    /// Begins to move to an inbox.
    pub(crate) fn begin_move(&mut self) -> Arc<Handover<T>> {
        let handover = match std::mem::replace(&mut self.tail, Tail::Moving(Handover::over())) {
            Tail::Topic(cursor) => Handover::begin(cursor),
            Tail::Moving(handover) => handover,
        };
        self.tail = Tail::Moving(Arc::clone(&handover));
        handover
    }

    /// Returns `true` if nothing will come from the topic.
    pub(crate) fn is_over(&self) -> bool {
        self.end().is_some()
    }

    /// Returns `true` if the reader was cut off and has returned everything.
    pub(crate) fn is_done(&self) -> bool {
        match &self.tail {
            Tail::Topic(_) => false,
            Tail::Moving(handover) => !self.has_taken() && handover.is_empty(),
        }
    }

    /// Why nothing more will come from the topic. A reader that was cut off was
    /// [`Closed`](End::Closed).
    pub(crate) fn end(&self) -> Option<End> {
        match &self.tail {
            Tail::Topic(cursor) => cursor.end(),
            Tail::Moving(handover) => handover.end(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        let come = match &self.tail {
            Tail::Topic(cursor) => cursor.len(),
            Tail::Moving(handover) => handover.len(),
        };
        self.taken.len() + come
    }

    pub(crate) fn lost(&self) -> u64 {
        match &self.tail {
            Tail::Topic(cursor) => cursor.lost(),
            Tail::Moving(handover) => handover.lost(),
        }
    }
}

/// Leaves the topic at once, whatever the sink of an inbox still refers to.
impl<T> Drop for Reading<T> {
    fn drop(&mut self) {
        if let Tail::Moving(handover) = &self.tail {
            // The reader that could be woken is gone.
            drop(handover.cut());
            drop(handover.take_rest());
        }
    }
}

/// A reader that moves from a topic to an inbox.
#[derive(Debug)]
pub(crate) struct Handover<T> {
    /// The number of the last item of the hub that the topic may have for the reader, once that is
    /// known.
    through: Arc<AtomicU64>,
    part: Mutex<Part<T>>,
}

/// The last item is not known yet.
const UNKNOWN: u64 = u64::MAX;

#[derive(Debug)]
enum Part<T> {
    Open(Cursor<T>),
    /// The reader has left the topic.
    Cut {
        /// What it had not taken.
        rest: Option<Taken<T>>,
        lost: u64,
    },
}

impl<T> Handover<T> {
    fn begin(mut cursor: Cursor<T>) -> Arc<Self> {
        let shared = Arc::clone(&cursor.shared);
        cursor.set_moving();
        let handover = Self::of(Part::Open(cursor));
        let mut state = shared.lock();
        // As much room again, so that looking through the list costs little for each addition.
        if state.handovers.len() == state.handovers.capacity() {
            state.handovers.retain(|handover| handover.strong_count() > 0);
            let room = state.handovers.len().max(4);
            state.handovers.reserve(room);
        }
        state.handovers.push(Arc::downgrade(&handover));
        shared.count(&mut state);
        drop(state);
        handover
    }

    /// Of a reader that has nothing to read.
    fn over() -> Arc<Self> {
        Self::of(Part::Cut { rest: None, lost: 0 })
    }

    fn of(part: Part<T>) -> Arc<Self> {
        Arc::new(Self { through: Arc::new(AtomicU64::new(UNKNOWN)), part: Mutex::new(part) })
    }

    /// Where the task notes which item it has read last when it attaches the inbox.
    pub(crate) fn through(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.through)
    }

    /// Only segments are moved under the lock, so it is never left inconsistent.
    fn lock(&self) -> MutexGuard<'_, Part<T>> {
        self.part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the topic has for the reader, which leaves the topic.
    ///
    /// If the reader sleeps, what was not flushed is no reason for the topic to wake it any more.
    #[must_use = "the reader is to be woken after locks are released"]
    pub(crate) fn cut(&self) -> Left<T> {
        let mut left = Left::nothing();
        let mut part = self.lock();
        if let Part::Open(cursor) = &mut *part {
            let mut rest = Taken::new();
            cursor.finish(&mut rest, &mut left);
            // The cursor has left, so dropping it does nothing.
            *part = Part::Cut { rest: Some(rest), lost: cursor.lost_in_all() };
        }
        left
    }

    fn take_rest(&self) -> Option<Taken<T>> {
        match &mut *self.lock() {
            Part::Open(_) => None,
            Part::Cut { rest, .. } => rest.take(),
        }
    }

    fn take(
        &self,
        taken: &mut Taken<T>,
        waker: Option<&Waker>,
        unused: &mut Unused<T>,
    ) -> Poll<()> {
        let rest = match &mut *self.lock() {
            // The reader may have been woken for its inbox. What came to the topic before that is to
            // be read before it, although it was not flushed.
            Part::Open(cursor) => return cursor.take(taken, waker, Unflushed::Taken, unused),
            Part::Cut { rest, .. } => rest.take(),
        };
        if let Some(rest) = rest {
            *taken = rest;
        }
        Poll::Ready(())
    }

    fn is_empty(&self) -> bool {
        matches!(&*self.lock(), Part::Cut { rest: None, .. })
    }

    fn end(&self) -> Option<End> {
        match &*self.lock() {
            Part::Open(cursor) => cursor.end(),
            Part::Cut { .. } => Some(End::Closed),
        }
    }

    fn len(&self) -> usize {
        match &*self.lock() {
            Part::Open(cursor) => cursor.len_awake(),
            Part::Cut { rest, .. } => rest.as_ref().map_or(0, Taken::len),
        }
    }

    fn lost(&self) -> u64 {
        match &*self.lock() {
            Part::Open(cursor) => cursor.lost(),
            Part::Cut { lost, .. } => *lost,
        }
    }
}

/// Before a topic gets an item: cuts off the readers that get it from their inboxes.
#[cold]
pub(super) fn cut_before<T>(shared: &Shared<T>, item: u64) {
    let mut due = Vec::new();
    let mut others = Vec::new();
    let handovers = std::mem::take(&mut shared.lock().handovers);
    // A reader takes the lock of its handover first, so they are looked at without that of the topic.
    for handover in handovers.iter().filter_map(Weak::upgrade) {
        if handover.through.load(Relaxed) < item {
            due.push(handover);
        } else {
            others.push(Arc::downgrade(&handover));
        }
    }
    for handover in due {
        handover.cut().wake_reader();
    }
    shared.lock().handovers.append(&mut others);
}
