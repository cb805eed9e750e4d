//! [`write_sink`]: a sink that writes encoded items to a socket or file.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_sink::Sink;
use pin_project_lite::pin_project;
use tokio::io::AsyncWrite;

/// Creates a sink that encodes items into one buffer, and writes the buffer once per flush.
///
/// `encode` appends an item to the buffer, for example with [`writeln!`] or
/// `serde_json::to_writer`. If it fails, the sink fails with its error.
///
/// `limit` is the number of bytes at which the sink is no longer ready: it then writes before it
/// takes another item. The buffer holds at most `limit` bytes and one item. It is allocated with
/// the first item; when it is empty, it keeps room for twice the limit at most. 8 KiB is a good
/// limit for a socket that gets many small items.
///
/// A demux flushes when its input pauses, so all items of a burst share a system call. Set
/// `TCP_NODELAY` on sockets, because the sink already does what Nagle's algorithm is for.
///
/// `poll_close` writes the rest and shuts the writer down. A sink that is dropped drops the writer
/// with what is in the buffer.
///
/// # Errors
///
/// The sink fails with the errors of the writer and of `encode`. If the writer accepts no more
/// bytes, the error is [`WriteZero`](io::ErrorKind::WriteZero).
///
/// # Examples
///
/// ```
/// use std::io::Write;
///
/// use futures::stream;
/// use stream_demux::DemuxStreamExt;
/// use stream_demux_hub::write_sink;
/// use tokio::io::AsyncReadExt;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (client, mut server) = tokio::io::duplex(1024); // usually a `TcpStream`
/// let sink = write_sink(client, 8 * 1024, |line: &str, buffer| writeln!(buffer, "{line}"));
///
/// let lines = stream::iter(["one", "two"]);
/// lines.demux_by(|_| "key", stream::iter([("key", sink)])).await;
///
/// let mut received = String::new();
/// server.read_to_string(&mut received).await.unwrap();
/// assert_eq!(received, "one\ntwo\n");
/// # }
/// ```
pub fn write_sink<T, W, E>(io: W, limit: usize, encode: E) -> WriteSink<W, E>
where
    W: AsyncWrite,
    E: FnMut(T, &mut Vec<u8>) -> io::Result<()>,
{
    WriteSink { io, encode, limit: limit.max(1), buffer: Vec::new(), written: 0 }
}

pin_project! {
    /// A sink that writes encoded items. [`write_sink`] creates it.
    pub struct WriteSink<W, E> {
        #[pin]
        io: W,
        encode: E,
        limit: usize,
        buffer: Vec<u8>,
        // How many bytes of the buffer are written.
        written: usize,
    }
}

impl<W: AsyncWrite, E> WriteSink<W, E> {
    /// Writes the buffer until at most `rest` bytes are left.
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, rest: usize) -> Poll<io::Result<()>> {
        let mut this = self.project();
        while this.buffer.len() - *this.written > rest {
            let bytes = &this.buffer[*this.written..];
            match ready!(this.io.as_mut().poll_write(cx, bytes))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => *this.written += n,
            }
        }
        if *this.written == this.buffer.len() {
            this.buffer.clear();
            // An item that was much longer than the limit does not keep its room.
            if this.buffer.capacity() / 2 > *this.limit {
                this.buffer.shrink_to(*this.limit);
            }
        } else {
            this.buffer.drain(..*this.written);
        }
        *this.written = 0;
        Poll::Ready(Ok(()))
    }
}

impl<T, W, E> Sink<T> for WriteSink<W, E>
where
    W: AsyncWrite,
    E: FnMut(T, &mut Vec<u8>) -> io::Result<()>,
{
    type Error = io::Error;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.buffer.len() < self.limit {
            return Poll::Ready(Ok(()));
        }
        let rest = self.limit - 1;
        self.poll_write(cx, rest)
    }

    fn start_send(self: Pin<&mut Self>, item: T) -> io::Result<()> {
        let this = self.project();
        (this.encode)(item, this.buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_write(cx, 0))?;
        self.project().io.poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_write(cx, 0))?;
        self.project().io.poll_shutdown(cx)
    }
}

impl<W, E> fmt::Debug for WriteSink<W, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { io: _, encode: _, limit, buffer, written } = self;
        f.debug_struct("WriteSink")
            .field("limit", limit)
            .field("waiting", &(buffer.len() - written))
            .finish_non_exhaustive()
    }
}
