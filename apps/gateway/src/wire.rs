//! A tokio runtime for lapin whose connections are [rewritten](Rewriter) before lapin reads them.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures::{AsyncRead, AsyncWrite, Stream};
use tokio::io::ReadBuf;
use tokio::net::TcpStream;

use crate::rewriter::{CHUNK, Rewriter, Rules};

/// Returns the runtime for lapin.
pub fn runtime(rules: Rules) -> Runtime<RuntimeParts<Tokio, Rewriting>> {
    let tokio = Tokio::current();
    Runtime::new(RuntimeParts::new(tokio.clone(), Rewriting { tokio, rules }))
}

#[derive(Debug, Clone)]
pub struct Rewriting {
    tokio: Tokio,
    rules: Rules,
}

impl Reactor for Rewriting {
    type TcpStream = Wire<TcpStream>;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.tokio.register(socket)
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.tokio.sleep(duration)
    }

    fn interval(&self, period: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.tokio.interval(period)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let (connecting, rules) = (self.tokio.tcp_connect_addr(address), self.rules.clone());
        async move { Ok(Wire::new(connecting.await?.into_inner(), rules)) }
    }
}

/// A connection whose incoming bytes are rewritten.
///
/// It holds a socket of tokio, not async-rs's wrapper around one (`async_compat::Compat`). lapin drops
/// its connections in a thread of its own, where the first drop of a wrapper starts a second runtime.
/// If there is no descriptor for it at that moment, this drop and all later ones panic.
pub struct Wire<S> {
    socket: S,
    rewriter: Rewriter,
    chunk: Box<[u8]>,
    /// Rewritten bytes; lapin has read those up to `taken`.
    out: Vec<u8>,
    taken: usize,
}

impl<S> Wire<S> {
    fn new(socket: S, rules: Rules) -> Self {
        let chunk = vec![0; CHUNK].into_boxed_slice();
        Self { socket, rewriter: Rewriter::new(rules), chunk, out: Vec::new(), taken: 0 }
    }
}

impl<S: tokio::io::AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        while this.taken == this.out.len() {
            let mut chunk = ReadBuf::new(&mut this.chunk);
            ready!(Pin::new(&mut this.socket).poll_read(cx, &mut chunk))?;
            let count = chunk.filled().len();
            if count == 0 {
                return Poll::Ready(Ok(0));
            }
            this.out.clear();
            this.taken = 0;
            this.rewriter.rewrite(&this.chunk[..count], &mut this.out);
        }
        let count = buffer.len().min(this.out.len() - this.taken);
        buffer[..count].copy_from_slice(&this.out[this.taken..][..count]);
        this.taken += count;
        Poll::Ready(Ok(count))
    }
}

impl<S: tokio::io::AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
