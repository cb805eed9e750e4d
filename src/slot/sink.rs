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

use super::flags::{
    BEYOND, CLOSING, FLUSH_AGAIN, FLUSH_QUEUED, FLUSHING, FULL, MOVED, PARKED, QUEUED, SLOW,
    SLOW_IN_GROUP, TIMED, UNFLUSHED,
};
use super::{Slot, Stage};

/// What the sink is waiting for, and what is due to it.
impl<K, S> Slot<K, S> {
    /// Returns `true` if an item for this slot can be sent once `poll_ready` succeeds.
    #[inline]
    pub(crate) fn is_fast(&self) -> bool {
        !self.has(SLOW)
    }

    /// The same for an item that is for its group.
    #[inline]
    pub(crate) fn is_fast_in_group(&self) -> bool {
        !self.has(SLOW_IN_GROUP)
    }

    #[inline]
    pub(crate) fn is_queued(&self) -> bool {
        self.has(QUEUED)
    }

    /// Returns `true` if items in its queue are beyond the buffer.
    #[inline]
    pub(crate) fn is_beyond(&self) -> bool {
        self.has(BEYOND)
    }

    /// Returns `true` if `poll_ready` answered `Pending` and the demux has not noticed a wake
    /// since.
    pub(crate) fn is_parked(&self) -> bool {
        self.has(PARKED)
    }

    pub(crate) fn park(&mut self) {
        self.set(PARKED, true);
    }

    /// Returns `true` if it has a time-out.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
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
        self.stage != Stage::Receiving && !self.has(QUEUED)
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
    pub(crate) fn is_flush_queued(&self) -> bool {
        self.has(FLUSH_QUEUED)
    }

    pub(crate) fn set_flush_queued(&mut self) {
        self.set(FLUSH_QUEUED, true);
    }

    /// The slot was taken from the flush list. Returns `true` if its sink is to be flushed. A sink
    /// that is being closed is not, because closing flushes.
    #[inline]
    pub(crate) fn unqueue_flush(&mut self) -> bool {
        self.set(FLUSH_QUEUED, false);
        self.needs_flush()
    }

    /// Returns `true` if its sink is to be flushed when its turn in the flush list comes.
    #[inline]
    pub(crate) fn needs_flush(&self) -> bool {
        self.has(UNFLUSHED) && !self.is_past_sending()
    }
}

/// Polling.
impl<K, S> Slot<K, S> {
    #[inline]
    pub(crate) fn poll_ready<V>(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>>
    where
        S: Sink<V> + Unpin,
    {
        Pin::new(&mut self.sink).poll_ready(cx)
    }

    /// Sends an item to a sink that is ready. Returns `true` if the slot has to join the flush
    /// list.
    #[inline]
    pub(crate) fn start_send<V>(&mut self, item: V) -> Result<bool, S::Error>
    where
        S: Sink<V> + Unpin,
    {
        Pin::new(&mut self.sink).start_send(item)?;
        let was_queued = self.is_flush_queued();
        self.flags |= UNFLUSHED | FLUSH_QUEUED | MOVED;
        Ok(!was_queued)
    }

    pub(crate) fn poll_flush<V>(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>>
    where
        S: Sink<V> + Unpin,
    {
        self.set(UNFLUSHED | FLUSHING | FLUSH_AGAIN, false);
        let flushed = Pin::new(&mut self.sink).poll_flush(cx);
        self.set(if flushed.is_pending() { FLUSHING } else { MOVED }, true);
        flushed
    }

    pub(crate) fn poll_close<V>(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>>
    where
        S: Sink<V> + Unpin,
    {
        let closed = Pin::new(&mut self.sink).poll_close(cx);
        self.set(CLOSING, closed.is_pending());
        closed
    }
}
