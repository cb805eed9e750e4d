//! The state machine of a sink: what it is waiting for, and how it is polled.
//!
//! The contract of `Sink` is kept here:
//!
//! 1. `start_send` follows a `poll_ready` that answered `Ready(Ok)`, one for one: an answer is used
//!    at once, so none has to be remembered.
//! 2. An operation that answered `Pending` is not repeated before the sink's waker fired: `PARKED`,
//!    `FLUSHING` and `CLOSING` stand for the three that wait. There are two exceptions: a flush may
//!    be repeated when the sink took another item, and `poll_ready` once while the sink is in
//!    doubt.
//! 3. An error is returned to the caller, who removes the slot: the sink is not touched again.
//! 4. After `poll_close` was called there is nothing in the queue, and nothing will be.

use core::pin::Pin;
use core::task::{Context, Poll};

use futures_sink::Sink;

use super::word::{
    CLOSING, FLUSH_AGAIN, FLUSH_QUEUED, FLUSHING, FULL, MOVED, PARKED, QUEUED, SLOW, SLOW_IN_GROUP,
    TIMED, UNFLUSHED,
};
use super::{Slot, SlotMut};
use crate::slots::flush::Handled;

/// What the sink is waiting for, and what is due to it.
impl<K, S> Slot<K, S> {
    /// Returns `true` if an item for this slot can be sent once `poll_ready` succeeds.
    #[inline]
    pub(crate) fn is_fast(&self) -> bool {
        !self.has(SLOW)
    }

    /// Returns `true` if an item for its group can be sent once `poll_ready` succeeds.
    #[inline]
    pub(crate) fn is_fast_in_group(&self) -> bool {
        !self.has(SLOW_IN_GROUP)
    }

    /// Returns `true` if `poll_ready` answered `Pending` and the demux has not noticed a wake
    /// since.
    pub(crate) fn is_parked(&self) -> bool {
        self.has(PARKED)
    }

    /// Returns `true` if it has a time-out.
    #[inline]
    pub(in crate::slots) fn is_timed(&self) -> bool {
        self.has(TIMED)
    }

    /// Returns `true` if its sink was not ready when a turn began with polling it, and its waker
    /// has not fired since.
    pub(crate) fn is_full(&self) -> bool {
        self.has(FULL)
    }

    pub(crate) fn set_full(&mut self) {
        self.set(FULL, true);
    }

    /// `poll_ready` may be repeated.
    pub(crate) fn unpark(&mut self) {
        self.set(PARKED | FULL, false);
    }

    /// The sink's waker has fired: operations that answered `Pending` may be repeated.
    pub(crate) fn wake(&mut self) {
        let flush_again = self.has(FLUSHING);
        self.set(PARKED | FULL | FLUSHING | CLOSING, false);
        if flush_again {
            self.set(FLUSH_AGAIN, true);
        }
    }

    /// Returns `true` if it is being closed: its sink is polled for nothing else.
    fn is_past_sending(&self) -> bool {
        !self.receives() && !self.has(QUEUED)
    }

    /// Returns `true` if `poll_close` is to be called.
    pub(crate) fn is_closable(&self) -> bool {
        self.is_past_sending() && !self.has(CLOSING)
    }

    /// Returns `true` if a flush was pending and the sink's waker has fired.
    pub(crate) fn is_flushable(&self) -> bool {
        self.has(FLUSH_AGAIN) && !self.is_past_sending()
    }

    #[inline]
    pub(in crate::slots) fn is_flush_queued(&self) -> bool {
        self.has(FLUSH_QUEUED)
    }

    pub(in crate::slots) fn set_flush_queued(&mut self, is_queued: bool) {
        self.set(FLUSH_QUEUED, is_queued);
    }

    /// Returns `true` if its sink is to be flushed when its turn in the flush list comes. A sink
    /// that is being closed is not, because closing flushes.
    #[inline]
    pub(in crate::slots) fn needs_flush(&self) -> bool {
        self.has(UNFLUSHED) && !self.is_past_sending()
    }
}

/// Polling, with the slot's own waker.
impl<K, S, V> SlotMut<'_, K, S, V>
where
    S: Sink<V> + Unpin,
{
    #[inline]
    pub(crate) fn poll_ready(&mut self) -> Poll<Result<(), S::Error>> {
        let waker = self.ready.waker(self.id);
        Pin::new(&mut self.slot.sink).poll_ready(&mut Context::from_waker(waker))
    }

    /// Sends an item to a sink that is ready. `now` is what has been handled by now. See
    /// [`Flushes::push`](crate::slots::flush::Flushes::push) for `BRANCHLESS`.
    #[inline]
    pub(crate) fn send<const BRANCHLESS: bool>(
        &mut self,
        item: V,
        now: &Handled,
    ) -> Result<(), S::Error> {
        Pin::new(&mut self.slot.sink).start_send(item)?;
        let is_new = !self.is_flush_queued();
        self.set(UNFLUSHED | FLUSH_QUEUED | MOVED, true);
        self.flushes.push::<BRANCHLESS>(self.slot.id, now, is_new);
        Ok(())
    }

    pub(crate) fn poll_flush(&mut self) -> Poll<Result<(), S::Error>> {
        self.set(UNFLUSHED | FLUSHING | FLUSH_AGAIN, false);
        let waker = self.ready.waker(self.id);
        let flushed = Pin::new(&mut self.slot.sink).poll_flush(&mut Context::from_waker(waker));
        if flushed.is_pending() {
            self.set(FLUSHING, true);
            self.note_pending();
        } else {
            self.set(MOVED, true);
        }
        flushed
    }

    pub(crate) fn poll_close(&mut self) -> Poll<Result<(), S::Error>> {
        let waker = self.ready.waker(self.id);
        let closed = Pin::new(&mut self.slot.sink).poll_close(&mut Context::from_waker(waker));
        self.set(CLOSING, closed.is_pending());
        if closed.is_pending() {
            self.note_pending();
        }
        closed
    }
}

impl<K, S, V> SlotMut<'_, K, S, V> {
    /// Returns `true` if its sink was not ready when a turn began with polling it, and was not
    /// woken since.
    pub(crate) fn is_known_full(&self) -> bool {
        self.is_full() && !self.has_fired()
    }

    /// Returns `true` if the sink's waker has fired and the slot was not advanced since.
    pub(in crate::slots) fn has_fired(&self) -> bool {
        self.ready.has_fired(self.id)
    }

    /// The sink has answered `Pending` when it was polled for an item.
    pub(crate) fn park(&mut self) {
        self.set(PARKED, true);
        self.note_pending();
    }

    #[inline]
    fn note_pending(&mut self) {
        if self.is_timed() {
            let has_fired = self.has_fired();
            self.set_self_woken(has_fired);
        }
    }
}
