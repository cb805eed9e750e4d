//! [`MpscSink`]: the sender of a bounded channel of tokio as a sink.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_sink::Sink;
use tokio::sync::mpsc::error::{SendError, TrySendError};
use tokio::sync::mpsc::{OwnedPermit, Sender};

/// A sink for the sender of a bounded channel of tokio.
///
/// It does what `PollSender` of `tokio-util` does, and costs less: while the channel has room, it
/// reserves a place without a future. It allocates only when the channel is full.
///
/// `poll_flush` and `poll_close` complete at once: an item has arrived when it is sent. Closing
/// drops the sender.
///
/// # Errors
///
/// `poll_ready` fails when the receiver is closed or dropped; the error has no item. A receiver
/// that is closed between `poll_ready` and `start_send` is not noticed: that item is lost.
///
/// # Examples
///
/// ```
/// use futures::stream;
/// use stream_demux::DemuxStreamExt;
/// use stream_demux_hub::MpscSink;
/// use tokio::sync::mpsc;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (sender, mut receiver) = mpsc::channel(16);
/// let orders = stream::iter([("key", MpscSink::new(sender))]);
/// tokio::spawn(stream::iter([1, 2]).demux_by(|_| "key", orders));
///
/// assert_eq!(receiver.recv().await, Some(1));
/// assert_eq!(receiver.recv().await, Some(2));
/// assert_eq!(receiver.recv().await, None);
/// # }
/// ```
pub struct MpscSink<T>(State<T>);

enum State<T> {
    Idle(Sender<T>),
    /// The channel is full.
    Waiting(Reservation<T>),
    /// A place is reserved.
    Ready(OwnedPermit<T>),
    /// Closed, or the receiver is gone.
    Closed,
}

type Reservation<T> =
    Pin<Box<dyn Future<Output = Result<OwnedPermit<T>, SendError<()>>> + Send + Sync>>;

impl<T> MpscSink<T> {
    /// Creates a sink that sends to this channel.
    pub fn new(sender: Sender<T>) -> Self {
        Self(State::Idle(sender))
    }

    /// Reserves a place, unless one is reserved already.
    fn poll_reserve(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError<()>>>
    where
        T: Send + 'static,
    {
        if let State::Ready(_) = self.0 {
            return Poll::Ready(Ok(()));
        }
        let mut waiting = match std::mem::replace(&mut self.0, State::Closed) {
            State::Waiting(waiting) => waiting,
            State::Idle(sender) => match sender.try_reserve_owned() {
                Ok(permit) => {
                    self.0 = State::Ready(permit);
                    return Poll::Ready(Ok(()));
                }
                Err(TrySendError::Full(sender)) => Box::pin(sender.reserve_owned()),
                Err(TrySendError::Closed(_)) => return Poll::Ready(Err(SendError(()))),
            },
            State::Ready(_) | State::Closed => return Poll::Ready(Err(SendError(()))),
        };
        match waiting.as_mut().poll(cx) {
            Poll::Ready(permit) => {
                self.0 = State::Ready(permit?);
                Poll::Ready(Ok(()))
            }
            Poll::Pending => {
                self.0 = State::Waiting(waiting);
                Poll::Pending
            }
        }
    }
}

impl<T> From<Sender<T>> for MpscSink<T> {
    fn from(sender: Sender<T>) -> Self {
        Self::new(sender)
    }
}

impl<T: Send + 'static> Sink<T> for MpscSink<T> {
    type Error = SendError<()>;

    #[inline]
    fn poll_ready(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError<()>>> {
        ready!(self.poll_reserve(cx))?;
        Poll::Ready(Ok(()))
    }

    /// # Panics
    ///
    /// Panics if `poll_ready` has not returned `Ready(Ok(()))` before.
    #[inline]
    fn start_send(mut self: Pin<&mut Self>, item: T) -> Result<(), SendError<()>> {
        let State::Ready(permit) = std::mem::replace(&mut self.0, State::Closed) else {
            panic!("`start_send` without a place that `poll_ready` has reserved")
        };
        self.0 = State::Idle(permit.send(item));
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), SendError<()>>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Result<(), SendError<()>>> {
        self.0 = State::Closed;
        Poll::Ready(Ok(()))
    }
}

impl<T> Unpin for MpscSink<T> {}

impl<T> fmt::Debug for MpscSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.0 {
            State::Idle(_) => "idle",
            State::Waiting(_) => "waiting",
            State::Ready(_) => "ready",
            State::Closed => "closed",
        };
        f.debug_struct("MpscSink").field("state", &state).finish()
    }
}
