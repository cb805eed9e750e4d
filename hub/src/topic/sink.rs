//! [`TopicSink`]: the end of a topic that takes items.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};

use futures_sink::Sink;

use super::cursor::Cursor;
use super::log::Garbage;
use super::of_hub::cut_before;
use super::shared::{Shared, State};
use super::{TopicClosed, TopicReader};
use crate::read::End;

/// How often the sink returns `Pending` for the slowest readers before they lose items.
///
/// On one thread the first turn is enough: readers that were woken run before the sink is polled
/// again. On several, a reader may be queued on a thread that is busy. More turns would hold up all
/// others for a reader that hangs.
const TURNS: u32 = 4;

/// The room for wakers is given up if it is for more than this many, and for as many times more than
/// there were. A reader takes 16 bytes.
const WAKERS_KEPT: usize = 64;
const WAKERS_UNUSED: usize = 4;

/// The sink of a topic. [`topic`](super::topic) creates it.
///
/// * A reader that waits is woken by `poll_flush`, or earlier if half of the capacity has come since
///   it waits, and can read the items then. A reader that does not wait can read an item as soon as
///   it is sent. `poll_flush` completes at once.
/// * Before a reader loses an item, `poll_ready` returns `Pending` a few times and wakes its task at
///   once, so that the reader can take what there is. A reader that does not is not waited for
///   again until it has read.
/// * `poll_close` completes at once, and readers can still read what was sent. A sink that is
///   dropped without being closed ends the topic as [`Aborted`](End::Aborted).
///
/// # Errors
///
/// A sink fails while there is no reader, and after it was closed. It is not woken when the last
/// reader goes: attach it with a [`Lease`](stream_demux::Lease) if its key is to be free at once.
pub struct TopicSink<T> {
    shared: Arc<Shared<T>>,
    /// This number of items can be sent before a reader that is not given up loses one. It never
    /// shrinks otherwise, because readers only move on.
    room: u64,
    /// The cursor of the readers that were last given turns, and how many.
    turns_for: u64,
    turns: u32,
    /// Items were sent while a reader slept, and are not flushed.
    owes_wake: bool,
    is_closed: bool,
    /// Empty between two calls. Kept for its room.
    garbage: Garbage<T>,
    woken: Vec<Option<Waker>>,
}

impl<T> TopicSink<T> {
    pub(super) fn new(shared: Arc<Shared<T>>) -> Self {
        Self {
            shared,
            room: 0,
            turns_for: 0,
            turns: 0,
            owes_wake: false,
            is_closed: false,
            garbage: Vec::new(),
            woken: Vec::new(),
        }
    }

    /// Adds a reader, which begins with the next item that is sent.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, SinkExt};
    /// use stream_demux_hub::{TopicClosed, topic};
    ///
    /// let (mut sink, reader) = topic(16);
    /// drop(reader);
    /// assert_eq!(sink.send(1).now_or_never(), Some(Err(TopicClosed)));
    ///
    /// let mut reader = sink.subscribe();
    /// assert_eq!(sink.send(2).now_or_never(), Some(Ok(())));
    /// assert_eq!(reader.try_recv(), Some(Ok(2)));
    /// ```
    pub fn subscribe(&self) -> TopicReader<T> {
        TopicReader::new(Cursor::new(&self.shared))
    }

    /// Returns the number of readers.
    pub fn readers(&self) -> usize {
        self.shared.lock().log.readers()
    }

    /// Returns `true` if an item can be sent at once, as far as is known without the lock.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.room > 0
    }

    /// The room that was known is used up.
    #[cold]
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TopicClosed>> {
        let mut state = self.shared.lock();
        if self.is_closed || self.shared.hub.is_none() && state.log.readers() == 0 {
            return Poll::Ready(Err(TopicClosed));
        }
        let (room, slowest) = state.log.room();
        drop(state);
        if room > 0 {
            self.room = room;
            return Poll::Ready(Ok(()));
        }
        if self.turns_for != slowest {
            self.turns_for = slowest;
            self.turns = 0;
        }
        if self.turns == TURNS {
            self.room = 1;
            return Poll::Ready(Ok(()));
        }
        self.turns += 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Wakes the readers that sleep.
    fn flush(&mut self) {
        if std::mem::take(&mut self.owes_wake) {
            let mut state = self.shared.lock();
            rouse(&mut state, &mut self.woken);
            drop(state);
            self.wake();
        }
    }

    fn wake(&mut self) {
        let sleepers = self.woken.len();
        for waker in self.woken.drain(..).flatten() {
            waker.wake();
        }
        // The log gets this room with the next flush.
        if self.woken.capacity() / WAKERS_UNUSED > sleepers.max(WAKERS_KEPT) {
            self.woken = Vec::new();
        }
    }

    /// No more items will come, for this reason.
    fn end(&mut self, why: End) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        self.owes_wake = false;
        self.room = 0;
        let mut state = self.shared.lock();
        state.end = Some(why);
        self.shared.count(&mut state);
        rouse(&mut state, &mut self.woken);
        drop(state);
        self.wake();
    }
}

fn rouse<T>(state: &mut State<T>, into: &mut Vec<Option<Waker>>) {
    state.unflushed = 0;
    state.sleepers.rouse(into);
}

impl<T> Sink<T> for TopicSink<T> {
    type Error = TopicClosed;

    #[inline]
    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TopicClosed>> {
        if self.has_room() { Poll::Ready(Ok(())) } else { self.poll_room(cx) }
    }

    fn start_send(mut self: Pin<&mut Self>, item: T) -> Result<(), TopicClosed> {
        let this = &mut *self;
        let mut state = this.shared.lock();
        if let Some(hub) = this.shared.hub.as_ref().filter(|_| !state.handovers.is_empty()) {
            drop(state);
            cut_before(&this.shared, hub.item.load(Relaxed));
            state = this.shared.lock();
        }
        let appended =
            if this.is_closed { Err(item) } else { state.log.append(item, &mut this.garbage) };
        let losing = match appended {
            Ok(losing) => losing,
            Err(item) => {
                drop(state);
                this.room = 0;
                drop(item);
                // The last reader has left, and the hub is about to drop this sink.
                let is_left = this.shared.hub.is_some() && !this.is_closed;
                return if is_left { Ok(()) } else { Err(TopicClosed) };
            }
        };
        if let Some(hub) = &this.shared.hub {
            hub.counts.deliver(state.log.readers(), losing);
        }
        this.room = this.room.saturating_sub(1);
        if !state.sleepers.is_empty() {
            state.unflushed += 1;
            this.owes_wake = true;
            if state.unflushed >= this.shared.capacity.div_ceil(2) {
                this.owes_wake = false;
                rouse(&mut state, &mut this.woken);
            }
        }
        drop(state);
        if !this.woken.is_empty() {
            this.wake();
        }
        // Last, because the drop of an item may panic.
        this.garbage.clear();
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TopicClosed>> {
        self.flush();
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TopicClosed>> {
        self.end(End::Closed);
        Poll::Ready(Ok(()))
    }
}

impl<T> Unpin for TopicSink<T> {}

impl<T> Drop for TopicSink<T> {
    fn drop(&mut self) {
        let hub = self.shared.hub.as_ref();
        self.end(hub.map_or(End::Aborted, |hub| hub.end_of_dropped_sink()));
    }
}

impl<T> fmt::Debug for TopicSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopicSink")
            .field("readers", &self.readers())
            .field("is_closed", &self.is_closed)
            .finish_non_exhaustive()
    }
}
