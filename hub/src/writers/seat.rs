//! [`Seat`]: the place of a writer in the log, which it leaves when it is dropped.

use std::sync::Arc;
use std::sync::MutexGuard;

use tokio::sync::futures::OwnedNotified;

use super::log::{Cursor, Garbage};
use super::outbox::Outbox;
use super::shared::{Shared, SinkEnd, State};

/// The place of a writer in the log.
#[derive(Debug)]
pub(super) struct Seat {
    shared: Arc<Shared>,
    /// `None` after it has left.
    cursor: Option<Cursor>,
    /// Empty between two calls. Kept for its room.
    garbage: Garbage,
}

/// What a writer does next.
#[derive(Debug)]
pub(super) enum Next {
    /// There is something to write, or to tell. This number of items is missing before it.
    Write(u64),
    /// The writer ends, because it has lost this number of items.
    Evicted(u64),
    /// There is nothing. The writer waits for this.
    Sleep(OwnedNotified),
    /// There will be nothing more.
    End(SinkEnd),
}

/// What a writer leaves behind, of the items before the limit at which it ends.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// How many items it was too slow for.
    pub(super) lost: u64,
    pub(super) unwritten: u64,
}

impl Seat {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        let cursor = shared.join();
        Self { shared: Arc::clone(shared), cursor: Some(cursor), garbage: Vec::new() }
    }

    pub(super) fn position(&self) -> u64 {
        self.cursor.as_ref().expect("it has not left").position()
    }

    /// The writer has taken everything before its place in the outbox. Appends what follows, up to
    /// the position `until`, to the pieces there. If it has left, nothing follows.
    pub(super) fn look(&mut self, outbox: &mut Outbox, until: u64) -> Next {
        let Some(cursor) = &mut self.cursor else { return Next::Write(0) };
        let mut state = self.shared.lock();
        state.log.advance(cursor, outbox.taken(), &mut self.garbage);
        let missing = state.log.look(cursor, until, outbox.pieces(), &mut self.garbage);
        outbox.pass_to(cursor.position());
        let lost = missing.lagged + missing.refused;
        let next = if missing.lagged > 0 && state.log.limits().evicts() {
            Next::Evicted(lost)
        } else if lost > 0 || !outbox.is_empty() {
            Next::Write(lost)
        } else if let Some(end) = state.end {
            Next::End(end)
        } else {
            // Made under the lock: the sink wakes those that it finds after it has appended.
            state.log.wait_for(cursor);
            Next::Sleep(Arc::clone(&self.shared.come).notified_owned())
        };
        release(state, &mut self.garbage);
        self.shared.count_lost(lost);
        next
    }

    /// The writer has taken everything before a position, and cannot write what follows now.
    pub(super) fn stop(&mut self, taken: u64) -> Stop {
        let Some(cursor) = &mut self.cursor else { return Stop::UntilWritable };
        let mut state = self.shared.lock();
        state.log.advance(cursor, taken, &mut self.garbage);
        state.log.stop_waiting_for(cursor);
        let stop = if !state.log.limits().evicts() {
            Stop::UntilWritable
        } else if state.log.is_behind(cursor) {
            Stop::Behind
        } else {
            // Made under the lock: the sink wakes those that it finds after it has appended.
            Stop::UntilEvicted(Arc::clone(&self.shared.come).notified_owned())
        };
        release(state, &mut self.garbage);
        stop
    }

    /// Leaves. The writer has taken everything before a position.
    pub(super) fn leave(&mut self, taken: u64, until: u64) -> Rest {
        let Some(cursor) = self.cursor.take() else { return Rest::default() };
        let mut state = self.shared.lock();
        self.shared.leave(&mut state, &cursor, &mut self.garbage);
        let end = state.log.end().min(until).max(taken);
        // Items may have been lost since the writer looked last.
        let kept = state.log.floor().clamp(taken, end);
        release(state, &mut self.garbage);
        let rest = Rest { lost: kept - taken, unwritten: end - kept };
        self.shared.count_lost(rest.lost);
        rest
    }
}

/// What a writer waits for whose I/O object takes no more bytes.
#[derive(Debug)]
pub(super) enum Stop {
    UntilWritable,
    /// Also for items, because these may evict it.
    UntilEvicted(OwnedNotified),
    /// It has lost items, and is to look again.
    Behind,
}

/// Releases the lock. Then wakes the sink if it can go on, and frees what is not needed.
fn release(mut state: MutexGuard<'_, State>, garbage: &mut Garbage) {
    let sink = state.wake_sink();
    drop(state);
    garbage.clear();
    if let Some(sink) = sink {
        sink.wake();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave(0, 0);
    }
}
