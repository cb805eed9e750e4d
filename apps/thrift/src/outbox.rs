//! Requests that wait to be written.
//!
//! 1. They take bounded memory ([`ROOM`]). While there is no room, requests wait in line, and only
//!    the first of the line is encoded.
//! 2. The request of a call that has ended is removed at once. A one-way call has ended when its
//!    request is here; the request stays until it is written or the connection ends.
//! 3. The lock guards the queue only. Wakers are woken and frames are dropped after it is released.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use futures::Sink;
use futures::task::AtomicWaker;
use tokio::io::AsyncWrite;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::bytes::Bytes;

use crate::client::Connection;
use crate::error::Error;
use crate::transport::{Frame, Outgoing};

/// Bytes of requests that may wait to be written on a connection. A longer request waits alone.
/// It is as much as the buffer of a socket grows to, so a connection does not pause between two
/// requests, and a hundred connections to servers that hang take less than half a GiB.
const ROOM: u32 = 4 << 20;

/// What each request counts in addition to its bytes, so that the number of short ones is bounded,
/// too: about 4,000, more than the places of a server in a pool.
const EACH: usize = 1 << 10;

fn charge(frame: &Bytes) -> u32 {
    u32::try_from(frame.len().saturating_add(EACH)).unwrap_or(ROOM).min(ROOM)
}

/// The requests of a connection.
#[derive(Debug)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    room: Semaphore,
    /// The first in line has the permit.
    line: Semaphore,
    in_line: AtomicUsize,
    /// The connection, which waits for a request.
    writer: AtomicWaker,
    /// Waits until nothing is unwritten.
    written: AtomicWaker,
    /// Changes when something is written.
    progress: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    /// By their ids, which ascend.
    requests: BTreeMap<i32, Bytes>,
    /// Something was taken from the queue and not flushed yet.
    is_writing: bool,
    end: End,
}

#[derive(Debug, Default, PartialEq)]
enum End {
    #[default]
    Open,
    /// There are no further requests.
    Closed,
    /// Nothing is written any more.
    Gone,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            queue: Mutex::default(),
            room: Semaphore::new(ROOM as usize),
            line: Semaphore::new(1),
            in_line: AtomicUsize::new(0),
            writer: AtomicWaker::new(),
            written: AtomicWaker::new(),
            progress: AtomicU64::new(0),
        }
    }
}

/// Counts a request that waits in line.
struct InLine<'a>(&'a AtomicUsize);

impl<'a> InLine<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// An encoded request that has room. Dropping it releases the room.
pub(crate) struct Admitted<'a> {
    frame: Bytes,
    room: SemaphorePermit<'a>,
}

/// A request in the queue. Dropping this removes it, unless it was written.
pub(crate) struct Queued<'a> {
    outbox: &'a Outbox,
    id: i32,
}

impl Queued<'_> {
    /// Returns `true` if the request was still in the queue, and was removed.
    pub(crate) fn remove(&self) -> bool {
        let removed = self.outbox.lock().requests.remove(&self.id);
        if let Some(frame) = &removed {
            self.outbox.release(frame);
        }
        removed.is_some()
    }

    /// Leaves the request in the queue.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.remove();
    }
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Encodes a request and waits until there is room for it. Returns `None` if the connection has
    /// ended. May encode it twice.
    ///
    /// Cancel safe.
    pub(crate) async fn admit(
        &self,
        encode: impl Fn() -> Result<Bytes, Error>,
    ) -> Result<Option<Admitted<'_>>, Error> {
        if self.in_line.load(Relaxed) == 0 {
            let frame = encode()?;
            if let Ok(room) = self.room.try_acquire_many(charge(&frame)) {
                return Ok(Some(Admitted { frame, room }));
            }
        }
        let _in_line = InLine::new(&self.in_line);
        let Ok(_first) = self.line.acquire().await else { return Ok(None) };
        let frame = encode()?;
        let room = self.room.acquire_many(charge(&frame)).await;
        Ok(room.ok().map(|room| Admitted { frame, room }))
    }

    /// Adds a request. It is removed when the returned value is dropped. Returns `None` if the
    /// connection has ended.
    pub(crate) fn push(&self, id: i32, admitted: Admitted<'_>) -> Option<Queued<'_>> {
        let Admitted { frame, room } = admitted;
        let mut queue = self.lock();
        if queue.end == End::Gone {
            return None;
        }
        room.forget(); // `release` returns it
        queue.requests.insert(id, frame);
        drop(queue);
        self.writer.wake();
        Some(Queued { outbox: self, id })
    }

    fn release(&self, frame: &Bytes) {
        self.room.add_permits(charge(frame) as usize);
    }

    /// Announces that there are no further requests.
    pub(crate) fn close(&self) {
        let mut queue = self.lock();
        if queue.end == End::Open {
            queue.end = End::Closed;
        }
        drop(queue);
        self.writer.wake();
    }

    /// Drops all requests, and takes no more.
    pub(crate) fn end(&self) {
        let mut queue = self.lock();
        queue.end = End::Gone;
        let requests = std::mem::take(&mut queue.requests);
        drop(queue);
        drop(requests);
        self.room.close();
        self.line.close();
    }

    /// Returns the next request to write, and `None` after the last.
    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.writer.register(cx.waker()); // register first, look second
        let mut queue = self.lock();
        let Some((_, frame)) = queue.requests.pop_first() else {
            return if queue.end == End::Open { Poll::Pending } else { Poll::Ready(None) };
        };
        queue.is_writing = true;
        drop(queue);
        self.release(&frame);
        self.note_progress();
        Poll::Ready(Some(frame))
    }

    fn note_progress(&self) {
        self.progress.fetch_add(1, Relaxed);
    }

    /// Returns a number that changes when something is written.
    pub(crate) fn progress(&self) -> u64 {
        self.progress.load(Relaxed)
    }

    /// Returns `true` if something waits to be written.
    pub(crate) fn is_waiting(&self) -> bool {
        let queue = self.lock();
        queue.is_writing || !queue.requests.is_empty()
    }

    /// Waits until nothing waits to be written.
    pub(crate) fn poll_written(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.written.register(cx.waker()); // register first, look second
        if self.is_waiting() { Poll::Pending } else { Poll::Ready(()) }
    }

    fn flushed(&self) {
        self.lock().is_writing = false;
        self.note_progress();
        self.written.wake();
    }
}

/// Notes when all that was written is flushed.
pub(crate) struct Flushed {
    pub(crate) to: Outgoing,
    pub(crate) connection: Arc<Connection>,
}

impl Sink<Frame> for Flushed {
    type Error = io::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.to.as_mut().poll_ready(cx)
    }
    fn start_send(mut self: Pin<&mut Self>, frame: Frame) -> io::Result<()> {
        self.to.as_mut().start_send(frame)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.to.as_mut().poll_flush(cx))?;
        self.connection.outbox.flushed();
        Poll::Ready(Ok(()))
    }
    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.to.as_mut().poll_close(cx)
    }
}

/// Notes that bytes were written.
pub(crate) struct Written<W> {
    pub(crate) to: W,
    pub(crate) connection: Arc<Connection>,
}

impl<W: AsyncWrite + Unpin> Written<W> {
    fn note(&self, written: io::Result<usize>) -> Poll<io::Result<usize>> {
        if written.as_ref().is_ok_and(|&count| count > 0) {
            self.connection.outbox.note_progress();
        }
        Poll::Ready(written)
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Written<W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.to).poll_write(cx, bytes));
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.to).poll_write_vectored(cx, parts));
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.to.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.to).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.to).poll_shutdown(cx)
    }
}
