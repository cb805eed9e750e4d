//! Between a socket and a demux: frames, and the stages they pass.
//!
//! A stage is an adapter: of bytes below the frames (zlib), or of frames (a tee). Any of them goes on
//! either side of a demux: a client's `incoming` is the input of one, a server's `outgoing` is attached
//! to one.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_compression::tokio::bufread::ZlibDecoder;
use async_compression::tokio::write::ZlibEncoder;
use futures::{Sink, SinkExt, Stream, StreamExt, future};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio_util::bytes::Bytes;
use tokio_util::codec::{FramedRead, FramedWrite};

use crate::frame::Frames;
use crate::message::Limits;

/// How much is written at once: frames gather up to here, or until a flush.
const BATCH: usize = 64 * 1024;

/// Frames that come.
pub type Incoming = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// Where frames go.
pub type Outgoing = Pin<Box<dyn Sink<Bytes, Error = io::Error> + Send>>;

/// Which way a frame went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// It came.
    In,
    /// It was sent.
    Out,
}

/// Both directions of a connection.
#[allow(missing_debug_implementations, reason = "nothing in it can be shown")]
pub struct Transport {
    /// Frames that come.
    pub incoming: Incoming,
    /// Where frames go.
    pub outgoing: Outgoing,
}

/// Inflated bytes. `TZlibTransport` closes the socket without an end of its zlib stream: taken for one, as
/// whether a frame is whole is seen by its length.
struct Unfinished<R>(Pin<Box<R>>);

impl<R: AsyncRead> AsyncRead for Unfinished<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match ready!(self.0.as_mut().poll_read(cx, into)) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            done => Poll::Ready(done),
        }
    }
}

impl Transport {
    /// Frames over bytes, as Apache Thrift's `TFramedTransport`.
    pub fn framed<R, W>(from: R, to: W, limits: &Limits) -> Self
    where
        R: AsyncRead + Send + 'static,
        W: AsyncWrite + Send + 'static,
    {
        let frames = Frames { longest: limits.frame };
        let mut outgoing = FramedWrite::new(to, frames);
        outgoing.set_backpressure_boundary(BATCH);
        Self { incoming: FramedRead::new(from, frames).boxed(), outgoing: Box::pin(outgoing) }
    }

    /// Frames over one zlib stream in each direction, as `TFramedTransport` over `TZlibTransport`. What is
    /// flushed can be read by the peer at once. A frame's limit is that of its plain bytes, so that little
    /// that inflates to much is an error in time.
    pub fn zlib<R, W>(from: R, to: W, limits: &Limits) -> Self
    where
        R: AsyncRead + Send + 'static,
        W: AsyncWrite + Send + 'static,
    {
        let inflated = Unfinished(Box::pin(ZlibDecoder::new(BufReader::new(from))));
        Self::framed(inflated, ZlibEncoder::new(to), limits)
    }

    /// A wire tap: shows every frame to `log`, and changes nothing.
    #[must_use]
    pub fn tee(self, log: impl Fn(Way, &Bytes) + Send + Sync + 'static) -> Self {
        let log = Arc::new(log);
        let incoming = self.incoming.inspect({
            let log = Arc::clone(&log);
            move |frame| {
                if let Ok(frame) = frame {
                    log(Way::In, frame);
                }
            }
        });
        let outgoing = self.outgoing.with(move |frame| {
            log(Way::Out, &frame);
            future::ready(Ok(frame))
        });
        Self { incoming: incoming.boxed(), outgoing: Box::pin(outgoing) }
    }
}
