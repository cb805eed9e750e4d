//! The options of a socket, and the two halves of an accepted connection.
//!
//! The halves are like tokio's `OwnedReadHalf` and `OwnedWriteHalf`, but of an `Arc`: the server
//! keeps a reference to the socket to detect a reset while it does not read.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::connection::Activity;

/// Interval of TCP keep-alive probes. After a few unanswered probes, the connection counts as gone.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Has the system probe whether the peer is still there while nothing is sent.
pub(crate) fn keep_alive(socket: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    let _ = SockRef::from(socket).set_tcp_keepalive(&keepalive);
}

/// How much the system may keep of what was written but not sent yet.
///
/// By default, it keeps up to 4 MiB and takes more only when a third of that is free. Thus a client
/// that reads slowly seems to read nothing for a long time, and then much. With 128 KiB, which is
/// enough for two writes, more is taken as soon as the client's system accepts some. What is sent
/// and not acknowledged is not limited, so neither is the throughput.
#[cfg(any(target_os = "android", target_os = "linux"))]
const UNSENT: u32 = 128 * 1024;

/// Has writes make progress as soon as the peer reads.
pub(crate) fn limit_unsent(socket: &TcpStream) {
    #[cfg(any(target_os = "android", target_os = "linux"))]
    let _ = SockRef::from(socket).set_tcp_notsent_lowat(UNSENT);
    #[cfg(not(any(target_os = "android", target_os = "linux")))]
    let _ = socket; // there is no such option
}

/// The half that is read.
#[derive(Debug)]
pub struct Reading {
    socket: Arc<TcpStream>,
    activity: Activity,
}

impl Reading {
    /// Notes in `activity` when something was received.
    pub(crate) fn new(socket: Arc<TcpStream>, activity: Activity) -> Self {
        Self { socket, activity }
    }
}

/// The half that is written. Dropping it shuts down the write direction.
#[derive(Debug)]
pub struct Writing(pub(crate) Arc<TcpStream>);

impl AsyncRead for Reading {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_read_ready(cx))?;
            match self.socket.try_read(into.initialize_unfilled()) {
                Ok(bytes) => {
                    if bytes > 0 {
                        self.activity.note_received();
                    }
                    into.advance(bytes);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Writing {
    fn poll_try(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match write(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncWrite for Writing {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_try(cx, |socket| socket.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_try(cx, |socket| socket.try_write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shutdown(&self.0))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let _ = shutdown(&self.0);
    }
}

/// Used because tokio's `shutdown` needs `&mut TcpStream`.
fn shutdown(socket: &TcpStream) -> io::Result<()> {
    match SockRef::from(socket).shutdown(Shutdown::Write) {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()), // closed by the peer
        done => done,
    }
}
