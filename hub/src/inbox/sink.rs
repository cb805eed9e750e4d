//! [`InboxSink`]: the end of an inbox that takes items.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use futures_sink::Sink;

use super::InboxError;
use super::shared::{Full, Shared, wake_all};
use crate::read::End;

/// A sink that puts items into an [`Inbox`](super::Inbox).
///
/// [`inbox`](super::inbox) and [`Inbox::sink`](super::Inbox::sink) create it. A clone is another sink
/// of the same inbox: attach one under each key that the reader wants.
///
/// * A reader that waits is woken by `poll_flush`, or earlier if the inbox is half full, and can
///   read the items then. A reader that does not wait can read an item as soon as it is sent.
///   `poll_flush` completes at once.
/// * If the inbox is full, `poll_ready` returns `Pending` at least once for each time that the
///   reader takes items, so a reader that runs on the same thread gets its turn before anything is
///   dropped. Under [`Wait`](stream_demux::Overflow::Wait) it stays pending until there is room.
///   Otherwise it wakes its task at once, and the policy is applied to what comes after that.
/// * Items of several sinks come in the order in which they were sent. So while a sink has items
///   that its inbox is still to get by a flush, the others are not ready. A demux flushes before it
///   waits; if you use sinks by hand, flush one before you wait for another.
/// * `poll_close` completes at once: items that are not read by then stay in the inbox.
///
/// # Errors
///
/// A sink returns an [`InboxError`] when the reader is gone, has called
/// [`close`](super::Inbox::close), or was too slow under [`Evict`](stream_demux::Overflow::Evict).
/// A flush or a close fails only if items that this sink held back were refused: the reader is gone,
/// or it closed the inbox at the same time in another thread.
pub struct InboxSink<T> {
    shared: Arc<Shared<T>>,
    /// Items that the reader gets when it is woken.
    held: Vec<T>,
    /// How many items wait before the reader is woken without a flush.
    hold_limit: u32,
    /// The number of reads when this sink last gave the reader a turn.
    turn_given: u32,
    /// Distinguishes the sinks of the inbox.
    id: u32,
    /// Items are held back until the next flush, because the reader sleeps.
    is_holding: bool,
    /// The reader was asleep when an item was put in, and is woken by the next flush.
    owes_wake: bool,
    is_closed: bool,
}

/// How a sink leaves its inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    Closed,
    /// Without being closed before.
    Dropped,
}

impl<T> InboxSink<T> {
    pub(super) fn new(shared: &Arc<Shared<T>>) -> Self {
        Self {
            shared: Arc::clone(shared),
            held: Vec::new(),
            hold_limit: u32::try_from(shared.capacity.div_ceil(2)).unwrap_or(u32::MAX),
            turn_given: u32::MAX,
            id: shared.add_sink(),
            is_holding: false,
            owes_wake: false,
            is_closed: false,
        }
    }

    /// Puts an item in when the reader is awake, or others do so, too.
    #[inline(never)]
    fn put(&mut self, item: T) -> Result<(), InboxError> {
        let shared = &*self.shared;
        let mut state = shared.lock();
        if self.is_closed || state.refusal.is_some() {
            return Err(state.refusal.map_or(InboxError::Closed, InboxError::from));
        }
        let dropped = shared.put(&mut state, item, self.id);
        shared.set_load(&state);
        let is_half_full = state.batch.len() >= self.hold_limit as usize;
        self.owes_wake = Shared::is_asleep(&state) && !is_half_full;
        let reader = if is_half_full { shared.rouse(&mut state) } else { None };
        drop(state);
        wake_all(reader);
        drop(dropped);
        Ok(())
    }

    /// Distinguishes the sinks of an inbox.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Returns `true` if this sink holds items back.
    #[inline]
    pub(crate) fn is_holding(&self) -> bool {
        self.is_holding
    }

    /// Returns `true` if this sink holds items back, and is ready for another one.
    #[inline]
    pub(crate) fn is_ready_to_hold(&self) -> bool {
        self.is_holding && !self.shared.is_closed()
    }

    /// Holds an item back until the next flush.
    #[inline]
    pub(crate) fn hold(&mut self, item: T) {
        debug_assert!(self.is_holding);
        self.held.push(item);
        if self.held.len() >= self.hold_limit as usize {
            // If the inbox is closed by now, the next call fails.
            let _ = self.release();
        }
    }

    /// Remembers whether an item of this sink waits for room. The hub of the inbox reads no further
    /// item meanwhile.
    pub(crate) fn set_waiting(&self, waits: bool) {
        let Some(hub) = self.shared.hub.as_ref().filter(|_| self.shared.full == Full::Wait) else {
            return;
        };
        self.shared.is_waited_for.store(waits, Relaxed);
        if waits {
            hub.waiting_sinks.fetch_add(1, Relaxed);
        } else {
            hub.waiting_sinks.fetch_sub(1, Relaxed);
        }
    }

    /// Refuses items of all sinks from now on, and tells the reader why.
    pub(crate) fn end(&self, why: End) {
        self.shared.refuse(why);
    }

    /// Goes, and the inbox goes on.
    pub(crate) fn retire(mut self) {
        // Its inbox belongs to a hub: an end that came first is known to the reader.
        let _ = self.leave(Leaving::Closed);
    }

    /// There is no room, another sink holds items back, or the inbox takes no more items.
    #[cold]
    fn poll_unready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), InboxError>> {
        let mut state = self.shared.lock();
        if self.is_closed || state.refusal.is_some() {
            return Poll::Ready(Err(state.refusal.map_or(InboxError::Closed, InboxError::from)));
        }
        if self.shared.is_held() {
            let replaced = state.writers.set(self.id, cx.waker());
            drop(state);
            drop(replaced);
            return Poll::Pending;
        }
        if state.batch.len() < self.shared.capacity {
            return Poll::Ready(Ok(()));
        }
        let had_turn = mem::replace(&mut self.turn_given, state.reads) == state.reads;
        let waits = self.shared.full == Full::Wait;
        let replaced = if waits { state.writers.set(self.id, cx.waker()) } else { None };
        drop(state);
        drop(replaced);
        // The reader is awake: it sleeps only if the inbox is empty, and a half full one has woken
        // it.
        match self.shared.full {
            Full::Wait => Poll::Pending,
            Full::Conflate | Full::ConflateEach => Poll::Ready(Ok(())),
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

    /// Wakes the reader if it sleeps and has something to read.
    #[inline]
    fn flush(&mut self) -> Result<(), InboxError> {
        if self.is_holding || self.owes_wake { self.release() } else { Ok(()) }
    }

    /// Puts in what is held back, and wakes the reader.
    #[inline(never)]
    fn release(&mut self) -> Result<(), InboxError> {
        self.owes_wake = false;
        if mem::replace(&mut self.is_holding, false) {
            return self.shared.end_hold(&mut self.held, self.id);
        }
        self.shared.wake_reader();
        Ok(())
    }

    /// This sink sends no more items. Fails if the last ones were refused.
    fn leave(&mut self, how: Leaving) -> Result<(), InboxError> {
        if mem::replace(&mut self.is_closed, true) {
            return Ok(());
        }
        let flushed = self.flush();
        let mut state = self.shared.lock();
        state.sinks -= 1;
        state.is_torn = how == Leaving::Dropped;
        let waker = state.writers.remove(self.id);
        state.forget(self.id);
        let reader = if state.sinks == 0 { self.shared.rouse(&mut state) } else { None };
        drop(state);
        drop(waker);
        wake_all(reader);
        flushed
    }
}

impl<T> Sink<T> for InboxSink<T> {
    type Error = InboxError;

    #[inline]
    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), InboxError>> {
        if self.is_ready_to_hold() || self.shared.is_ready() && !self.is_closed {
            return Poll::Ready(Ok(()));
        }
        self.poll_unready(cx)
    }

    #[inline]
    fn start_send(mut self: Pin<&mut Self>, item: T) -> Result<(), InboxError> {
        if !self.is_holding {
            if !self.shared.may_hold() {
                return self.put(item);
            }
            self.is_holding = true;
            self.shared.begin_hold();
        }
        self.hold(item);
        Ok(())
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), InboxError>> {
        Poll::Ready(self.flush())
    }

    fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), InboxError>> {
        Poll::Ready(self.leave(Leaving::Closed))
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
        let hub = self.shared.hub.as_ref().filter(|_| !self.is_closed);
        // The subscription ends, whatever other keys it has. First, because an inbox whose last sink
        // was dropped would end for another reason.
        if let Some(hub) = hub {
            self.shared.refuse(hub.end_of_dropped_sink());
        }
        // Items that are refused are dropped with the sink.
        let _ = self.leave(Leaving::Dropped);
    }
}

impl<T> fmt::Debug for InboxSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxSink").field("is_closed", &self.is_closed).finish_non_exhaustive()
    }
}
