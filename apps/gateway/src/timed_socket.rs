//! A socket with a write timeout, which coalesces responses.
//!
//! A client that pipelines requests gets many responses at once. HTTP flushes each of them, and
//! each flush would be a system call. Flushed bytes are buffered here instead, up to [`HELD`], and
//! [`TimedSocket::run`] writes them at the end of each poll of the connection. So no byte
//! stays buffered while the task is parked, unless the socket is not writable. While the buffer is
//! full, writes are pending and no further request is read.

use std::error::Error;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::{FutureExt, future};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::lock::Lock;

/// Timeout for the client to read each [`PIECE`] of a response. It bounds how long a client that
/// reads a byte now and then keeps its connection; a phone on a bad network is still faster.
const TIMEOUT: Duration = Duration::from_secs(10);
const PIECE: usize = 64 * 1024;
/// Room for some dozens of responses to posts. HTTP yields after 16 requests, and everything is
/// written then.
const HELD: usize = 8 * 1024;

type BoxError = Box<dyn Error + Send + Sync>;

/// A socket on which a write fails if the client does not read in time. A WebSocket has its own
/// timeout.
pub struct TimedSocket<S>(Arc<Lock<Writer<S>>>);

/// Knows whether the client has closed its connection, also while bytes that it sent before are not
/// read. Does not keep the socket open.
#[derive(Clone)]
pub struct Peer(Weak<Lock<Writer<TcpStream>>>);

impl Peer {
    /// Returns `true` if the client sends nothing more, or the connection is broken or closed.
    pub fn has_closed(&self) -> bool {
        self.0.upgrade().is_none_or(|socket| {
            let socket = socket.lock();
            let ready = socket.socket.ready(Interest::READABLE).now_or_never();
            ready.is_some_and(|ready| ready.map_or(true, Ready::is_read_closed))
        })
    }
}

struct Writer<S> {
    socket: S,
    is_upgraded: Arc<AtomicBool>,
    held: Vec<u8>,
    /// While the socket is not writable: when the next piece must be written, and how much of it
    /// is.
    deadline: Option<Pin<Box<Sleep>>>,
    written: usize,
}

impl<S: AsyncWrite + Unpin> TimedSocket<S> {
    pub fn new(socket: S, is_upgraded: Arc<AtomicBool>) -> Self {
        let (held, deadline) = (Vec::new(), None);
        Self(Arc::new(Lock::new(Writer { socket, is_upgraded, held, deadline, written: 0 })))
    }

    /// Returns another handle to the same socket.
    pub fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    fn lock(&self) -> MutexGuard<'_, Writer<S>> {
        self.0.lock()
    }

    /// Runs a connection on this socket, and writes what it has flushed after each poll. Completes
    /// when the connection has ended and all is written, or with the first error.
    pub async fn run<E: Into<BoxError>>(
        self,
        connection: impl Future<Output = Result<(), E>>,
    ) -> Result<(), BoxError> {
        let mut connection = pin!(connection.fuse());
        let mut done = None;
        future::poll_fn(|cx| {
            if let Poll::Ready(output) = connection.as_mut().poll(cx) {
                done = Some(output);
            }
            match (self.lock().poll_held(cx)?, done.take()) {
                (Poll::Ready(()), Some(output)) => Poll::Ready(output.map_err(Into::into)),
                (_, waits) => {
                    done = waits;
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl TimedSocket<TcpStream> {
    pub fn peer(&self) -> Peer {
        Peer(Arc::downgrade(&self.0))
    }
}

impl<S: AsyncWrite + Unpin> Writer<S> {
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = bytes.iter().map(|piece| piece.len()).sum();
        let is_direct = self.is_upgraded.load(Relaxed) || length > HELD;
        if is_direct || self.held.len() + length > HELD {
            ready!(self.poll_held(cx))?;
        }
        if !is_direct {
            for piece in bytes {
                self.held.extend_from_slice(piece);
            }
            return Poll::Ready(Ok(length));
        }
        let socket = Pin::new(&mut self.socket);
        let written = match bytes {
            [all] => socket.poll_write(cx, all), // cheaper for the kernel than a vector
            _ => socket.poll_write_vectored(cx, bytes),
        };
        self.check_deadline(cx, length, written)
    }

    /// Writes the buffered bytes.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            let written = Pin::new(&mut self.socket).poll_write(cx, &self.held);
            match ready!(self.check_deadline(cx, self.held.len(), written)) {
                Ok(count @ 1..) => drop(self.held.drain(..count)),
                failed => return Poll::Ready(failed.and(Err(io::ErrorKind::WriteZero.into()))),
            }
        }
        if self.is_upgraded.load(Relaxed) {
            self.held = Vec::new(); // free the memory of an idle WebSocket
        }
        Poll::Ready(Ok(()))
    }

    fn check_deadline(
        &mut self,
        cx: &mut Context<'_>,
        length: usize,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = written {
            self.written += count;
            if self.written >= PIECE || count == length {
                self.deadline = None;
            }
        }
        if written.is_ready() || self.is_upgraded.load(Relaxed) {
            return written;
        }
        let Self { deadline, written, .. } = self;
        let deadline = deadline.get_or_insert_with(|| {
            *written = 0;
            Box::pin(sleep(TIMEOUT))
        });
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedSocket<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.lock().poll_write(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.lock().poll_write(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.lock().socket.is_write_vectored()
    }

    /// Leaves buffered bytes to the end of this poll, except on a WebSocket.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.lock();
        if this.is_upgraded.load(Relaxed) {
            ready!(this.poll_held(cx))?;
        }
        Pin::new(&mut this.socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.lock();
        ready!(this.poll_held(cx))?;
        Pin::new(&mut this.socket).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedSocket<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().socket).poll_read(cx, buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    fn socket(room: usize, is_upgraded: bool) -> (TimedSocket<DuplexStream>, DuplexStream) {
        let (near, far) = duplex(room);
        (TimedSocket::new(near, Arc::new(AtomicBool::new(is_upgraded))), far)
    }

    /// Returns what has arrived.
    fn arrived(far: &mut DuplexStream) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(10 * HELD);
        while far.read_buf(&mut bytes).now_or_never().is_some() {}
        bytes
    }

    #[tokio::test]
    async fn flushed_bytes_are_written_at_the_end_of_the_poll() {
        let (mut socket, mut far) = socket(10 * HELD, false);
        let shared = socket.share();
        let running = shared.run(async {
            for answer in [b"a", b"b"] {
                socket.write_all(answer).await.unwrap();
                socket.flush().await.unwrap();
            }
            assert_eq!(arrived(&mut far), b"", "both are written together");
            future::pending::<Result<(), Infallible>>().await
        });
        assert!(running.now_or_never().is_none());
        assert_eq!(arrived(&mut far), b"ab");
    }

    #[tokio::test]
    async fn no_more_is_held_than_the_bound_and_none_of_it_is_lost() {
        let (mut socket, mut far) = socket(1, false);
        let shared = socket.share();
        let sent: Vec<u8> = (0..20_000_u32).flat_map(u32::to_be_bytes).collect();
        let mut taken = 0;
        let mut running = pin!(shared.run(async {
            for answer in sent.chunks(100) {
                socket.write_all(answer).await?;
                socket.flush().await?;
                taken += answer.len();
            }
            Ok::<_, io::Error>(())
        }));
        assert!(running.as_mut().now_or_never().is_none());
        let mut got = vec![0; sent.len()];
        let (ended, _) = future::join(running, far.read_exact(&mut got)).await;
        ended.unwrap();
        assert!(got == sent);
    }

    #[tokio::test]
    async fn a_socket_that_takes_nothing_stops_the_connection_at_the_bound() {
        let (mut socket, _far) = socket(1, false);
        let mut taken = 0;
        while socket.write_all(&[b'x'; 100]).now_or_never().is_some() {
            taken += 100;
        }
        assert!((HELD - 100..=HELD).contains(&taken), "{taken}");
        assert!(
            socket.shutdown().now_or_never().is_none(),
            "the shutdown waits for the buffered bytes"
        );
    }

    #[tokio::test]
    async fn a_closed_connection_is_known_while_bytes_are_unread() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        for is_reset in [false, true] {
            let connecting = TcpStream::connect(listener.local_addr().unwrap());
            let (far, near) = future::join(connecting, listener.accept()).await;
            let (mut far, (near, _)) = (far.unwrap(), near.unwrap());
            let mut socket = TimedSocket::new(near, Arc::default());
            let peer = socket.peer();
            far.write_all(b"unread").await.unwrap();
            assert!(!peer.has_closed());
            if is_reset {
                socket.write_all(b"unread").await.unwrap();
                socket.shutdown().await.unwrap(); // which writes what is held
                far.readable().await.unwrap();
            }
            drop(far); // with unread bytes, it is reset
            let closed = async {
                while !peer.has_closed() {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(TIMEOUT, closed).await.expect("it is closed");
            let mut bytes = [0; 6];
            socket.read_exact(&mut bytes).await.unwrap();
            assert_eq!(&bytes, b"unread");
            drop(socket);
            assert!(peer.has_closed());
        }
    }

    #[tokio::test]
    async fn a_websocket_writes_directly_after_the_buffered_bytes() {
        let (mut socket, mut far) = socket(10 * HELD, false);
        socket.write_all(b"held ").await.unwrap();
        socket.lock().is_upgraded.store(true, Relaxed);
        socket.write_all(b"101").await.unwrap();
        assert_eq!(arrived(&mut far), b"held 101");
    }
}
