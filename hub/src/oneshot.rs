//! [`OneshotSink`]: a sink for a single item.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_sink::Sink;
use tokio::sync::oneshot::Sender;

/// A sink for a single item: the sender of a oneshot channel of tokio, for example for the reply to
/// a request.
///
/// Attach it with [`limit(1)`](stream_demux::Attach::limit), so that its key is free after the
/// item.
///
/// # Errors
///
/// `poll_ready` fails when the receiver is closed or dropped, and after the item. An item that is
/// sent while the receiver is dropped is lost.
///
/// # Examples
///
/// ```
/// use futures::stream;
/// use stream_demux::{Attach, DemuxStreamExt};
/// use stream_demux_hub::OneshotSink;
/// use tokio::sync::oneshot;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (sender, reply) = oneshot::channel();
/// let orders = stream::iter([Attach::new(7, OneshotSink::new(sender)).limit(1)]);
/// let replies = stream::iter([(7, "done"), (7, "done twice")]);
/// let totals = replies.demux_by(|reply| reply.0, orders).await;
///
/// assert_eq!(reply.await, Ok((7, "done")));
/// assert_eq!(totals.unmatched, 1);
/// # }
/// ```
pub struct OneshotSink<T>(Option<Sender<T>>);

impl<T> OneshotSink<T> {
    /// Creates a sink that sends to this channel.
    pub fn new(sender: Sender<T>) -> Self {
        Self(Some(sender))
    }
}

impl<T> From<Sender<T>> for OneshotSink<T> {
    fn from(sender: Sender<T>) -> Self {
        Self::new(sender)
    }
}

impl<T> Sink<T> for OneshotSink<T> {
    type Error = OneshotClosed;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), OneshotClosed>> {
        let is_open = self.0.as_ref().is_some_and(|sender| !sender.is_closed());
        Poll::Ready(if is_open { Ok(()) } else { Err(OneshotClosed) })
    }

    fn start_send(mut self: Pin<&mut Self>, item: T) -> Result<(), OneshotClosed> {
        let sender = self.0.take().ok_or(OneshotClosed)?;
        sender.send(item).map_err(|_| OneshotClosed)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), OneshotClosed>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Result<(), OneshotClosed>> {
        self.0 = None;
        Poll::Ready(Ok(()))
    }
}

impl<T> Unpin for OneshotSink<T> {}

impl<T> fmt::Debug for OneshotSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneshotSink").field("is_used", &self.0.is_none()).finish()
    }
}

/// The receiver of a [`OneshotSink`] is gone, or has its item already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OneshotClosed;

impl fmt::Display for OneshotClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the receiver of a single item is gone, or has one already")
    }
}

impl std::error::Error for OneshotClosed {}
