//! [`InboxSink`]: the end of an inbox that takes items.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_sink::Sink;

use super::shared::{Full, Shared, wake_all};
use super::{End, InboxError};

/// A sink that puts items into an [`Inbox`](super::Inbox).
///
/// [`inbox`](super::inbox) and [`Inbox::sink`](super::Inbox::sink) create it. A clone is another sink
/// of the same inbox: attach one under each key that the reader wants.
///
/// * Items can be read as soon as they are sent. `poll_flush` only wakes the reader, and completes at
///   once; a sink whose inbox is half full wakes it earlier.
/// * If the inbox is full, `poll_ready` returns `Pending` at least once for each time that the reader
///   takes items, so a reader that runs on the same thread gets its turn before anything is dropped.
///   Under [`Wait`](stream_demux::Overflow::Wait) it stays pending until there is room. Otherwise it
///   wakes its task at once, and the policy is applied to what comes after that.
/// * `poll_close` completes at once: items that are not read by then stay in the inbox.
///
/// # Errors
///
/// A sink returns an [`InboxError`] when the reader is gone, has called
/// [`close`](super::Inbox::close), or was too slow under [`Evict`](stream_demux::Overflow::Evict).
pub struct InboxSink<T> {
    shared: Arc<Shared<T>>,
    /// Distinguishes the sinks that wait.
    id: u64,
    /// The number of reads when this sink last gave the reader a turn.
    turn_given: Option<u64>,
    /// The reader was waiting when an item was sent, and is woken by the next flush.
    owes_wake: bool,
    is_closed: bool,
}

impl<T> InboxSink<T> {
    pub(super) fn new(shared: &Arc<Shared<T>>) -> Self {
        let mut state = shared.lock();
        state.sinks += 1;
        state.sinks_made += 1;
        let id = state.sinks_made;
        drop(state);
        Self {
            shared: Arc::clone(shared),
            id,
            turn_given: None,
            owes_wake: false,
            is_closed: false,
        }
    }

    /// Sends an item. Returns `true` if the inbox was full, so that an item was dropped.
    pub(crate) fn put(&mut self, item: T) -> Result<bool, InboxError> {
        let shared = &*self.shared;
        let mut state = shared.lock();
        if self.is_closed || state.refusal.is_some() {
            return Err(state.refusal.map_or(InboxError::Closed, InboxError::from));
        }
        let is_full = state.batch.len() >= shared.capacity;
        let dropped = match shared.full {
            Full::DropNewest if is_full => {
                state.batch.lose_newest();
                Some(item)
            }
            Full::DropOldest | Full::Conflate if is_full => {
                let dropped = state.batch.lose_oldest();
                state.batch.push(item);
                dropped
            }
            // Another sink of the inbox may have sent an item since this one was ready.
            _ => {
                state.batch.push(item);
                None
            }
        };
        state.lost += u64::from(dropped.is_some());
        shared.set_load(&state);
        let is_half_full = state.batch.len() >= shared.capacity.div_ceil(2);
        self.owes_wake = state.reader.is_some() && !is_half_full;
        let reader = if is_half_full { state.reader.take() } else { None };
        drop(state);
        wake_all(reader);
        Ok(dropped.is_some())
    }

    /// Refuses items of all sinks from now on, and tells the reader why.
    pub(crate) fn end(&self, why: End) {
        self.shared.refuse(why);
    }

    /// There is no room, or the inbox takes no more items.
    #[cold]
    fn poll_full(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), InboxError>> {
        let mut state = self.shared.lock();
        if self.is_closed || state.refusal.is_some() {
            return Poll::Ready(Err(state.refusal.map_or(InboxError::Closed, InboxError::from)));
        }
        if state.batch.len() < self.shared.capacity {
            return Poll::Ready(Ok(()));
        }
        let had_turn = self.turn_given.replace(state.reads) == Some(state.reads);
        let waits = self.shared.full == Full::Wait;
        let replaced = if waits { state.writers.set(self.id, cx.waker()) } else { None };
        drop(state);
        drop(replaced);
        // The reader is awake: it waits only for an empty inbox, and a half full one has woken it.
        match self.shared.full {
            Full::Wait => Poll::Pending,
            Full::Conflate => Poll::Ready(Ok(())),
            _ if !had_turn => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Full::DropNewest | Full::DropOldest => Poll::Ready(Ok(())),
            Full::Evict => {
                self.shared.refuse(End::Overflowed);
                Poll::Ready(Err(InboxError::Overflowed))
            }
        }
    }

    /// Wakes the reader if it waits for an item of this sink.
    fn wake_reader(&mut self) {
        if std::mem::take(&mut self.owes_wake) {
            let reader = self.shared.lock().reader.take();
            wake_all(reader);
        }
    }

    /// This sink sends no more items.
    fn leave(&mut self, gracefully: bool) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        let mut state = self.shared.lock();
        state.sinks -= 1;
        state.is_torn = !gracefully;
        let waker = state.writers.remove(self.id);
        let reader = if self.owes_wake || state.sinks == 0 { state.reader.take() } else { None };
        drop(state);
        drop(waker);
        wake_all(reader);
    }
}

impl<T> Sink<T> for InboxSink<T> {
    type Error = InboxError;

    #[inline]
    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), InboxError>> {
        if self.shared.has_room() && !self.is_closed {
            return Poll::Ready(Ok(()));
        }
        self.poll_full(cx)
    }

    #[inline]
    fn start_send(mut self: Pin<&mut Self>, item: T) -> Result<(), InboxError> {
        self.put(item).map(drop)
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), InboxError>> {
        self.wake_reader();
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), InboxError>> {
        self.leave(true);
        Poll::Ready(Ok(()))
    }
}

impl<T> Unpin for InboxSink<T> {}

/// Another sink of the same inbox.
impl<T> Clone for InboxSink<T> {
    fn clone(&self) -> Self {
        Self::new(&self.shared)
    }
}

impl<T> Drop for InboxSink<T> {
    fn drop(&mut self) {
        self.leave(false);
    }
}

impl<T> fmt::Debug for InboxSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxSink").field("is_closed", &self.is_closed).finish_non_exhaustive()
    }
}
