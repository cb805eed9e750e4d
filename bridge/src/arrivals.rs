//! [`Arrivals`]: what has come from the engine and is not routed yet, in the order in which it came.
//!
//! The client library reads a socket as fast as it can, and hands on what it reads. The memory for
//! that is bounded at the socket: a [`Gate`] around it reads nothing while the queue is full. Then
//! the engine has to keep what it cannot send, up to its own limit.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::lock::lock;

/// Something that the engine has said about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Arrival {
    Item(Bytes),
    Subscribed,
    Unsubscribed,
    /// It does not subscribe to the key, for this reason.
    Refused(Arc<str>),
}

/// An [`Arrival`] with its key, and the number of the connection that it came by.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) key: Vec<u8>,
    pub(crate) epoch: u64,
    pub(crate) arrival: Arrival,
}

/// An arrival takes about this many bytes beside its key and its item.
const OVERHEAD: usize = 96;

/// An empty queue keeps room for this many arrivals, so that a burst does not keep its memory.
const ROOM_KEPT: usize = 256;

impl Arrived {
    fn size(&self) -> usize {
        let item = match &self.arrival {
            Arrival::Item(item) => item.len(),
            _ => 0,
        };
        OVERHEAD + self.key.len() + item
    }
}

/// A queue from connections, one after the other, to the hub.
#[derive(Debug)]
pub(crate) struct Arrivals {
    queue: Mutex<Queue>,
    /// The queue is full at this many bytes.
    limit: usize,
}

#[derive(Debug, Default)]
struct Queue {
    arrived: VecDeque<Arrived>,
    bytes: usize,
    /// The connection that may append.
    epoch: u64,
    is_closed: bool,
    hub: Option<Waker>,
    gate: Option<Waker>,
}

impl Arrivals {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { queue: Mutex::default(), limit })
    }

    /// Begins a connection: what an earlier one still says is ignored from now on.
    pub(crate) fn begin(&self) -> u64 {
        let mut queue = lock(&self.queue);
        queue.epoch += 1;
        queue.epoch
    }

    /// Appends something, unless the connection has been replaced.
    pub(crate) fn push(&self, epoch: u64, key: Vec<u8>, arrival: Arrival) {
        let mut queue = lock(&self.queue);
        if queue.epoch != epoch || queue.is_closed {
            return;
        }
        let arrived = Arrived { key, epoch, arrival };
        queue.bytes += arrived.size();
        queue.arrived.push_back(arrived);
        let hub = queue.hub.take();
        drop(queue);
        if let Some(hub) = hub {
            hub.wake();
        }
    }

    /// Appends nothing more. The reader gets `None` when it has taken the rest.
    pub(crate) fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.is_closed = true;
        let wakers = [queue.hub.take(), queue.gate.take()];
        drop(queue);
        for waker in wakers.into_iter().flatten() {
            waker.wake();
        }
    }

    pub(crate) fn poll_pop(&self, cx: &mut Context<'_>) -> Poll<Option<Arrived>> {
        let mut queue = lock(&self.queue);
        let Some(arrived) = queue.arrived.pop_front() else {
            if queue.is_closed {
                return Poll::Ready(None);
            }
            let replaced = queue.hub.replace(cx.waker().clone());
            if queue.arrived.capacity() > ROOM_KEPT {
                queue.arrived.shrink_to(ROOM_KEPT);
            }
            drop(queue);
            drop(replaced);
            return Poll::Pending;
        };
        queue.bytes -= arrived.size();
        // Half of it, so that the socket is not read for each arrival that is taken.
        let gate = if queue.bytes <= self.limit / 2 { queue.gate.take() } else { None };
        drop(queue);
        if let Some(gate) = gate {
            gate.wake();
        }
        Poll::Ready(Some(arrived))
    }

    pub(crate) fn is_full(&self) -> bool {
        lock(&self.queue).bytes >= self.limit
    }

    /// Waits until the queue has room.
    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut queue = lock(&self.queue);
        if queue.bytes < self.limit || queue.is_closed {
            return Poll::Ready(());
        }
        let replaced = queue.gate.replace(cx.waker().clone());
        drop(queue);
        drop(replaced);
        Poll::Pending
    }
}

/// The socket of a connection. It counts what is read, and does not read while arrivals wait.
#[derive(Debug)]
pub(crate) struct Gate<S> {
    socket: S,
    /// `None` for a connection by which nothing is subscribed.
    arrivals: Option<Arc<Arrivals>>,
    reads: Arc<AtomicU64>,
}

impl<S> Gate<S> {
    pub(crate) fn new(socket: S, arrivals: Option<Arc<Arrivals>>) -> Self {
        Self { socket, arrivals, reads: Arc::default() }
    }

    /// The number of reads so far, which shows that the engine lives.
    pub(crate) fn reads(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.reads)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gate<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(arrivals) = &self.arrivals {
            ready!(arrivals.poll_room(cx));
        }
        ready!(Pin::new(&mut self.socket).poll_read(cx, buffer))?;
        self.reads.fetch_add(1, Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gate<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// What can be taken without waiting.
    fn pop(arrivals: &Arrivals) -> Option<Arrived> {
        poll_fn(|cx| arrivals.poll_pop(cx)).now_or_never().flatten()
    }

    fn has_ended(arrivals: &Arrivals) -> bool {
        matches!(poll_fn(|cx| arrivals.poll_pop(cx)).now_or_never(), Some(None))
    }

    #[test]
    fn connection_that_was_replaced_appends_nothing() {
        let arrivals = Arrivals::new(1_000);
        let old = arrivals.begin();
        arrivals.push(old, b"tea".to_vec(), Arrival::Subscribed);
        let new = arrivals.begin();
        arrivals.push(old, b"tea".to_vec(), Arrival::Item("late".into()));
        arrivals.push(new, b"tea".to_vec(), Arrival::Item("in time".into()));
        arrivals.close();
        arrivals.push(new, b"tea".to_vec(), Arrival::Item("after the end".into()));

        let first = pop(&arrivals).unwrap();
        assert_eq!((first.epoch, first.arrival), (old, Arrival::Subscribed));
        let second = pop(&arrivals).unwrap();
        assert_eq!((second.epoch, second.arrival), (new, Arrival::Item("in time".into())));
        assert!(has_ended(&arrivals));
    }

    #[tokio::test]
    async fn socket_is_not_read_while_arrivals_wait() {
        let arrivals = Arrivals::new(1_000);
        let epoch = arrivals.begin();
        let (mut engine, socket) = duplex(64);
        let mut gate = Gate::new(socket, Some(Arc::clone(&arrivals)));
        engine.write_all(b"0123456789").await.unwrap();
        let mut byte = [0];
        gate.read_exact(&mut byte).await.unwrap();

        for _ in 0..10 {
            arrivals.push(epoch, b"tea".to_vec(), Arrival::Item(vec![0; 100].into()));
        }
        assert!(arrivals.is_full());
        let reading = tokio::spawn(async move {
            gate.read_exact(&mut byte).await.unwrap();
            gate.reads().load(Relaxed)
        });
        tokio::task::yield_now().await;
        assert!(!reading.is_finished());
        // Woken when half of the queue is free, not by the first that is taken.
        for _ in 0..5 {
            assert!(!reading.is_finished());
            pop(&arrivals).unwrap();
            tokio::task::yield_now().await;
        }
        while pop(&arrivals).is_some() {}
        assert_eq!(reading.await.unwrap(), 2);
    }
}
