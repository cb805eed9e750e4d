//! [`HubSink`]: the sinks that are attached to the demux of a hub.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_sink::Sink;
use pin_project_lite::pin_project;

use super::message::Message;
use super::watch::{Operation, Watch};
use crate::inbox::InboxSink;
use crate::oneshot::OneshotSink;

/// The error of any sink.
pub type SinkError = Box<dyn Error + Send + Sync>;

pub(super) type AnySink<V> = Pin<Box<dyn Sink<V, Error = SinkError> + Send>>;

/// A sink of the demux. It unwraps the items.
pub(super) enum HubSink<V> {
    Inbox(InboxSink<V>),
    /// An inbox that has a limit or is waited for. Boxed, so that the inbox above is the only large
    /// variant and has room for the tag.
    Watched(Box<WatchedInbox<V>>),
    Next(OneshotSink<V>),
    Any(AnySink<V>, Arc<Watch>),
}

pub(super) struct WatchedInbox<V> {
    sink: InboxSink<V>,
    watch: Arc<Watch>,
}

impl<V> HubSink<V> {
    pub(super) fn watched(sink: InboxSink<V>, watch: Arc<Watch>) -> Self {
        Self::Watched(Box::new(WatchedInbox { sink, watch }))
    }

    #[inline(never)]
    fn poll_any_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SinkError>> {
        match self {
            Self::Inbox(inbox) => Pin::new(inbox).poll_ready(cx).map_err(SinkError::from),
            Self::Watched(inbox) => {
                let answer = Pin::new(&mut inbox.sink).poll_ready(cx).map_err(SinkError::from);
                inbox.watch.note(Operation::Ready, answer)
            }
            Self::Next(next) => Pin::new(next).poll_ready(cx).map_err(SinkError::from),
            Self::Any(sink, watch) => watch.note(Operation::Ready, sink.as_mut().poll_ready(cx)),
        }
    }

    #[inline(never)]
    fn send(&mut self, item: V) -> Result<(), SinkError> {
        match self {
            Self::Inbox(inbox) => Pin::new(inbox).start_send(item).map_err(SinkError::from),
            Self::Watched(inbox) => {
                inbox.watch.count_item();
                Pin::new(&mut inbox.sink).start_send(item).map_err(SinkError::from)
            }
            Self::Next(next) => Pin::new(next).start_send(item).map_err(SinkError::from),
            Self::Any(sink, _) => sink.as_mut().start_send(item),
        }
    }
}

/// An inbox that holds items back is the common case in a burst. The demux inlines what it takes,
/// and calls a function for everything else.
impl<K, V> Sink<Message<K, V>> for HubSink<V> {
    type Error = SinkError;

    #[inline]
    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SinkError>> {
        match &*self {
            Self::Inbox(inbox) if inbox.is_ready_to_hold() => Poll::Ready(Ok(())),
            _ => self.poll_any_ready(cx),
        }
    }

    #[inline]
    fn start_send(mut self: Pin<&mut Self>, message: Message<K, V>) -> Result<(), SinkError> {
        let (_, item) = message.into_parts();
        match &mut *self {
            Self::Inbox(inbox) if inbox.is_holding() => {
                inbox.hold(item);
                Ok(())
            }
            other => other.send(item),
        }
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SinkError>> {
        match &mut *self {
            Self::Inbox(inbox) => Pin::new(inbox).poll_flush(cx).map_err(SinkError::from),
            Self::Watched(inbox) => {
                Pin::new(&mut inbox.sink).poll_flush(cx).map_err(SinkError::from)
            }
            Self::Next(next) => Pin::new(next).poll_flush(cx).map_err(SinkError::from),
            Self::Any(sink, watch) => watch.note(Operation::Flush, sink.as_mut().poll_flush(cx)),
        }
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SinkError>> {
        match &mut *self {
            Self::Inbox(inbox) => Pin::new(inbox).poll_close(cx).map_err(SinkError::from),
            Self::Watched(inbox) => {
                Pin::new(&mut inbox.sink).poll_close(cx).map_err(SinkError::from)
            }
            Self::Next(next) => Pin::new(next).poll_close(cx).map_err(SinkError::from),
            Self::Any(sink, watch) => watch.note(Operation::Flush, sink.as_mut().poll_close(cx)),
        }
    }
}

pin_project! {
    /// A sink whose error is boxed.
    pub(super) struct Erased<S> {
        #[pin]
        sink: S,
    }
}

impl<S> Erased<S> {
    pub(super) fn boxed<V>(sink: S) -> AnySink<V>
    where
        S: Sink<V, Error: Into<SinkError>> + Send + 'static,
        V: 'static,
    {
        Box::pin(Self { sink })
    }
}

impl<V, S: Sink<V, Error: Into<SinkError>>> Sink<V> for Erased<S> {
    type Error = SinkError;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SinkError>> {
        self.project().sink.poll_ready(cx).map_err(Into::into)
    }

    fn start_send(self: Pin<&mut Self>, item: V) -> Result<(), SinkError> {
        self.project().sink.start_send(item).map_err(Into::into)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SinkError>> {
        self.project().sink.poll_flush(cx).map_err(Into::into)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SinkError>> {
        self.project().sink.poll_close(cx).map_err(Into::into)
    }
}

impl<V> fmt::Debug for HubSink<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inbox(_) => "Inbox",
            Self::Watched(..) => "Watched",
            Self::Next(_) => "Next",
            Self::Any(..) => "Any",
        })
    }
}
