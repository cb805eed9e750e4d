//! [`WritersSink`]: the end of a log that takes and encodes items.

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_sink::Sink;
use stream_demux::Overflow;

use super::log::{Garbage, Limits, Room};
use super::segment::Segment;
use super::shared::{Shared, SinkEnd};
use super::{Writers, WritersError};
use crate::life::{Life, Phase};

/// A segment has at most this many items. They share three allocations.
const SEGMENT_ITEMS: u64 = 256;

/// A segment has at most this many bytes, or one item. A writer in the middle of an item keeps the
/// segment alive, so it is small beside the buffers of a socket.
const SEGMENT_BYTES: u64 = 16 * 1024;

/// How often the sink returns `Pending` for the slowest writers before they lose items.
///
/// On one thread the first turn is enough: writers that were woken run before the sink is polled
/// again. On several, a writer may be queued on a thread that is busy. More turns would hold up all
/// others for a writer that hangs.
const TURNS: u32 = 4;

/// The sink of a log that sockets are written from. [`writers`](super::writers) creates it.
///
/// * `start_send` encodes the item. It is not encoded if there is no writer.
/// * `poll_flush` makes what was sent available to the writers, and wakes those that wait. It
///   completes at once: it does not wait for sockets. Writers that do not wait may get items
///   earlier, and all do when half of the capacity has come.
/// * Before a writer loses an item although its socket takes bytes, `poll_ready` returns `Pending` a
///   few times and wakes its task at once, so that the writer can run. Under
///   [`Wait`](Overflow::Wait) it returns `Pending` until the slowest writer has made room.
/// * `poll_close` completes at once, and the writers still write what was sent. A sink that is
///   dropped without being closed ends the writers as [`Aborted`](super::WriterEnd::Aborted).
///
/// # Errors
///
/// The sink fails if an item cannot be encoded, and ends its writers then: the items before are
/// still written. It also fails when there is no writer and no handle with which one can join, and
/// after it was closed. It is not woken when the last writer leaves: attach it with a
/// [`Lease`](stream_demux::Lease) if its key is to be free at once.
pub struct WritersSink<E> {
    shared: Arc<Shared>,
    encode: E,
    limits: Limits,
    /// The item that is being encoded.
    item: Vec<u8>,
    /// Items that are not in the log yet.
    open: Segment,
    /// The room that the next segment is likely to need.
    usual: (usize, usize),
    /// What could be sent before an awaited writer lost something, when the log was asked last. It
    /// never shrinks otherwise, because writers only move on.
    room: Room,
    /// The place of the writers that were last given turns, and how many.
    turns_for: u64,
    turns: u32,
    /// The items and bytes that came since the writers were woken.
    unflushed: (u64, u64),
    is_ended: bool,
    /// The hub that it is attached to.
    hub: Option<Arc<Life>>,
    /// Empty between two calls. Kept for its room.
    garbage: Garbage,
}

impl<E> WritersSink<E> {
    pub(super) fn new(
        shared: Arc<Shared>,
        limits: Limits,
        encode: E,
        hub: Option<Arc<Life>>,
    ) -> Self {
        Self {
            shared,
            encode,
            limits,
            item: Vec::new(),
            open: Segment::default(),
            usual: (0, 0),
            room: Room::NONE,
            turns_for: 0,
            turns: 0,
            unflushed: (0, 0),
            is_ended: false,
            hub,
            garbage: Vec::new(),
        }
    }

    /// Sets how many bytes a writer may leave unwritten, and how many an item may have; the default
    /// is 1 MiB.
    ///
    /// A larger item is not stored: all writers lose it, under every policy, and are told so in its
    /// place.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, SinkExt};
    /// use stream_demux_hub::writers;
    ///
    /// let (sink, writers) = writers(1_024, |item: &[u8], bytes: &mut Vec<u8>| {
    ///     bytes.extend_from_slice(item);
    ///     Ok(())
    /// });
    /// let mut sink = sink.max_bytes(5);
    /// let mut written = Vec::new();
    /// let writer = writers.join(&mut written).on_lost(|lost, bytes| {
    ///     bytes.extend_from_slice(format!("({lost} lost)").as_bytes());
    /// });
    /// for item in [&b"a"[..], b"too large", b"b"] {
    ///     sink.feed(item).now_or_never().unwrap().unwrap();
    /// }
    /// sink.close().now_or_never().unwrap().unwrap();
    /// let end = writer.now_or_never().unwrap();
    /// assert_eq!((end.items, end.lost), (2, 1));
    /// assert_eq!(written, b"a(1 lost)b");
    /// ```
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.limits.bytes = (bytes as u64).max(1);
        self.shared.lock().log.set_limits(self.limits);
        self
    }

    /// Sets what happens when a writer has left as much unwritten as the limits allow; the default
    /// is [`DropOldest`](Overflow::DropOldest).
    ///
    /// | `full` | |
    /// | --- | --- |
    /// | [`DropOldest`](Overflow::DropOldest) | the writer loses the oldest items |
    /// | [`Conflate`](Overflow::Conflate) | the same, with a capacity of 1 |
    /// | [`Evict`](Overflow::Evict) | the writer ends as [`Overflowed`](super::WriterEnd::Overflowed) |
    /// | [`Wait`](Overflow::Wait) | the sink is not ready until the slowest writer has made room. Give the writers a [`stall_timeout`](super::Writer::stall_timeout) |
    ///
    /// # Panics
    ///
    /// Panics if `full` is [`DropNewest`](Overflow::DropNewest): all writers read the same items, so
    /// one of them cannot refuse an item. Panics if it is a policy that was added to the crate
    /// later.
    #[track_caller]
    pub fn overflow(mut self, full: Overflow) -> Self {
        let items = usize::try_from(self.limits.items).unwrap_or(usize::MAX);
        self.limits = Limits::new(items, self.limits.bytes, full);
        self.shared.lock().log.set_limits(self.limits);
        self
    }

    /// Creates a handle with which writers can join.
    pub fn writers(&self) -> Writers {
        Writers::new(&self.shared)
    }

    /// Returns `true` if the items that are not in the log yet are a segment.
    fn is_open_full(&self) -> bool {
        let Limits { items, bytes, .. } = self.limits;
        // So that a quarter more than the limits is kept at most.
        self.open.len() as u64 >= (items / 4).clamp(1, SEGMENT_ITEMS)
            || self.open.size() as u64 >= (bytes / 4).clamp(1, SEGMENT_BYTES)
    }

    /// Puts what was sent into the log.
    fn publish(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let mut open = std::mem::take(&mut self.open);
        self.usual = (open.size(), open.len());
        open.shrink();
        self.append(open);
    }

    fn append(&mut self, segment: Segment) {
        let items = segment.len() as u64;
        let bytes = segment.size() as u64;
        let mut state = self.shared.lock();
        state.log.append(segment, &mut self.garbage);
        let has_writers = state.log.writers() > 0;
        drop(state);
        self.garbage.clear();
        self.room.items = self.room.items.saturating_sub(items);
        self.room.bytes = self.room.bytes.saturating_sub(bytes);
        if !has_writers {
            // So that `poll_ready` finds out whether there can be any.
            self.room = Room::NONE;
        }
        self.unflushed.0 += items;
        self.unflushed.1 += bytes;
        let half = |limit: u64| limit.div_ceil(2);
        if self.unflushed.0 >= half(self.limits.items)
            || self.unflushed.1 >= half(self.limits.bytes)
        {
            self.wake();
        }
    }

    /// Wakes the writers that wait, if something has come.
    fn wake(&mut self) {
        if std::mem::take(&mut self.unflushed) != (0, 0) {
            self.shared.come.notify_waiters();
        }
    }

    /// The room that was known is used up.
    #[cold]
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WritersError>> {
        self.publish();
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        loop {
            if self.is_ended || state.is_unused() {
                return Poll::Ready(Err(WritersError::Closed));
            }
            self.room = state.log.room();
            if !self.room.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if self.limits.is_lossless() {
                let replaced = state.sink.replace(cx.waker().clone());
                drop(state);
                drop(replaced);
                self.wake();
                return Poll::Pending;
            }
            let slowest = self.room.slowest;
            if self.turns_for != slowest {
                self.turns_for = slowest;
                self.turns = 0;
            }
            if !self.limits.conflates() && self.turns < TURNS {
                self.turns += 1;
                drop(state);
                self.wake();
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            state.log.give_up_slowest();
        }
    }

    /// The encoded item goes to the others, or is refused.
    fn take_item(&mut self) {
        if self.item.len() as u64 > self.limits.bytes {
            self.item = Vec::new();
            self.publish();
            self.append(Segment::refused());
            return;
        }
        if self.item.len() as u64 >= SEGMENT_BYTES {
            self.publish();
            self.open.set_first(std::mem::take(&mut self.item));
        } else {
            if self.open.is_empty() {
                self.open = Segment::with_capacity(self.usual.0, self.usual.1);
            }
            self.open.push(&self.item);
            self.item.clear();
        }
        if self.is_open_full() {
            self.publish();
        }
    }

    /// No more items will come, for this reason.
    fn end(&mut self, why: SinkEnd) {
        if self.is_ended {
            return;
        }
        self.publish();
        self.is_ended = true;
        self.item = Vec::new();
        self.room = Room::NONE;
        self.unflushed = (0, 0);
        self.shared.lock().end = Some(why);
        self.shared.come.notify_waiters();
    }
}

impl<T, E> Sink<T> for WritersSink<E>
where
    E: FnMut(T, &mut Vec<u8>) -> io::Result<()>,
{
    type Error = WritersError;

    #[inline]
    fn poll_ready(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), WritersError>> {
        let this = &mut *self;
        let has_room = (this.open.len() as u64) < this.room.items
            && (this.open.size() as u64) < this.room.bytes;
        if has_room { Poll::Ready(Ok(())) } else { this.poll_room(cx) }
    }

    fn start_send(mut self: Pin<&mut Self>, item: T) -> Result<(), WritersError> {
        let this = &mut *self;
        if this.is_ended {
            return Err(WritersError::Closed);
        }
        if !this.shared.has_writers() {
            this.room = Room::NONE;
            return Ok(());
        }
        // The item goes to many writers and the encoder may belong to a hub: a panic ends the former
        // only. Nothing of it is looked at again.
        let encode = AssertUnwindSafe(|| (this.encode)(item, &mut this.item));
        let error = match catch_unwind(encode) {
            Ok(Ok(())) => {
                this.take_item();
                return Ok(());
            }
            Ok(Err(error)) => WritersError::Encode(error),
            Err(panic) => WritersError::EncodePanicked(message(panic)),
        };
        this.end(SinkEnd::Unencoded);
        Err(error)
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), WritersError>> {
        self.publish();
        self.wake();
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), WritersError>> {
        self.end(SinkEnd::Closed);
        Poll::Ready(Ok(()))
    }
}

/// The encoder is not pinned.
impl<E> Unpin for WritersSink<E> {}

impl<E> Drop for WritersSink<E> {
    fn drop(&mut self) {
        // A hub that has ended drops what is attached later.
        let hub_is_finished = self.hub.as_ref().is_some_and(|hub| hub.phase() == Phase::Finished);
        self.end(if hub_is_finished { SinkEnd::Closed } else { SinkEnd::Aborted });
    }
}

impl<E> fmt::Debug for WritersSink<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("WritersSink")
            .field("writers", &state.log.writers())
            .field("open", &self.open.len())
            .field("limits", &self.limits)
            .field("end", &state.end)
            .finish_non_exhaustive()
    }
}

/// What a panic says.
fn message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("no message").to_owned();
    // Dropping what the encoder panicked with may panic, too.
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(second);
    }
    text
}
