//! A socket with a deadline for what is written to it, which collects answers.
//!
//! A client that sends many requests at once gets many answers at once: HTTP flushes each of them, and
//! each would be a system call. What is flushed is held here instead, up to [`HELD`] bytes, until the
//! connection has been polled: [`Patient::run`] writes it out at the end of every poll, whatever the
//! connection is waiting for then. So nothing is held while the task is parked. Once that much is held,
//! no more is taken until the socket has it, and no further request is read.

use std::error::Error;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::{FutureExt, future};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// With a client that does not read, for each [`PIECE`] of an answer. It bounds how long one that reads a
/// byte now and then can keep its place, and a phone on a bad network is still quicker.
const PATIENCE: Duration = Duration::from_secs(10);
const PIECE: usize = 64 * 1024;
/// Some dozens of answers to a publisher. HTTP yields after 16 requests, and all is written out then.
const HELD: usize = 8 * 1024;

type BoxError = Box<dyn Error + Send + Sync>;

/// Fails to write if the client does not read. A WebSocket has rules of its own for that.
pub struct Patient<S>(Arc<Mutex<Writer<S>>>);

struct Writer<S> {
    socket: S,
    is_upgraded: Arc<AtomicBool>,
    held: Vec<u8>,
    /// While the socket does not take all that there is: when it has to have taken another piece, and how
    /// much of that it has.
    deadline: Option<Pin<Box<Sleep>>>,
    written: usize,
}

impl<S: AsyncWrite + Unpin> Patient<S> {
    pub fn new(socket: S, is_upgraded: Arc<AtomicBool>) -> Self {
        let (held, deadline) = (Vec::new(), None);
        Self(Arc::new(Mutex::new(Writer { socket, is_upgraded, held, deadline, written: 0 })))
    }

    /// The same socket.
    pub fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    fn lock(&self) -> MutexGuard<'_, Writer<S>> {
        self.0.lock().unwrap()
    }

    /// Runs a connection on this socket, and writes out what it has flushed each time it was polled. It
    /// ends with the connection, once all is written, or with the first error.
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
            [all] => socket.poll_write(cx, all), // the kernel does less for one piece
            _ => socket.poll_write_vectored(cx, bytes),
        };
        self.watch(cx, length, written)
    }

    /// Writes out what is held.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            let written = Pin::new(&mut self.socket).poll_write(cx, &self.held);
            match ready!(self.watch(cx, self.held.len(), written)) {
                Ok(count @ 1..) => drop(self.held.drain(..count)),
                failed => return Poll::Ready(failed.and(Err(io::ErrorKind::WriteZero.into()))),
            }
        }
        if self.is_upgraded.load(Relaxed) {
            self.held = Vec::new(); // an idle WebSocket keeps no memory for it
        }
        Poll::Ready(Ok(()))
    }

    fn watch(
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
            Box::pin(sleep(PATIENCE))
        });
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
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

    /// What is held may stay so: the end of this poll is the flush.
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

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().unwrap().socket).poll_read(cx, buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn patient(room: usize, is_upgraded: bool) -> (Patient<DuplexStream>, DuplexStream) {
        let (near, far) = duplex(room);
        (Patient::new(near, Arc::new(AtomicBool::new(is_upgraded))), far)
    }

    /// What has arrived.
    fn arrived(far: &mut DuplexStream) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(10 * HELD);
        while far.read_buf(&mut bytes).now_or_never().is_some() {}
        bytes
    }

    #[tokio::test]
    async fn what_is_flushed_goes_out_at_the_end_of_the_poll() {
        let (mut patient, mut far) = patient(10 * HELD, false);
        let shared = patient.share();
        let running = shared.run(async {
            for answer in [b"a", b"b"] {
                patient.write_all(answer).await.unwrap();
                patient.flush().await.unwrap();
            }
            assert_eq!(arrived(&mut far), b"", "both go out at once");
            future::pending::<Result<(), Infallible>>().await
        });
        assert!(running.now_or_never().is_none());
        assert_eq!(arrived(&mut far), b"ab");
    }

    #[tokio::test]
    async fn no_more_is_held_than_the_bound_and_none_of_it_is_lost() {
        let (mut patient, mut far) = patient(1, false);
        let shared = patient.share();
        let sent: Vec<u8> = (0..20_000_u32).flat_map(u32::to_be_bytes).collect();
        let mut taken = 0;
        let mut running = pin!(shared.run(async {
            for answer in sent.chunks(100) {
                patient.write_all(answer).await?;
                patient.flush().await?;
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
        let (mut patient, _far) = patient(1, false);
        let mut taken = 0;
        while patient.write_all(&[b'x'; 100]).now_or_never().is_some() {
            taken += 100;
        }
        assert!((HELD - 100..=HELD).contains(&taken), "{taken}");
        assert!(patient.shutdown().now_or_never().is_none(), "not before all is written");
    }

    #[tokio::test]
    async fn a_websocket_writes_for_itself_and_after_what_was_held() {
        let (mut patient, mut far) = patient(10 * HELD, false);
        patient.write_all(b"held ").await.unwrap();
        patient.lock().is_upgraded.store(true, Relaxed);
        patient.write_all(b"101").await.unwrap();
        assert_eq!(arrived(&mut far), b"held 101");
    }
}
