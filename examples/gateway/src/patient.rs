//! A socket with a deadline for what is written to it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// With a client that does not read, for each [`PIECE`] of an answer. It bounds how long one that reads a
/// byte now and then can keep its place, and a phone on a bad network is still quicker.
const PATIENCE: Duration = Duration::from_secs(10);
const PIECE: usize = 64 * 1024;

/// Fails to write if the client does not read. A WebSocket has rules of its own for that.
pub struct Patient {
    socket: TcpStream,
    is_upgraded: Arc<AtomicBool>,
    /// While the socket does not take all that there is: when it has to have taken another piece, and how
    /// much of that it has.
    deadline: Option<Pin<Box<Sleep>>>,
    written: usize,
}

impl Patient {
    pub fn new(socket: TcpStream, is_upgraded: Arc<AtomicBool>) -> Self {
        Self { socket, is_upgraded, deadline: None, written: 0 }
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

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.watch(cx, bytes.len(), written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bytes);
        self.watch(cx, bytes.iter().map(|piece| piece.len()).sum(), written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buffer)
    }
}
