//! [`HubSink`]: the sinks that are attached to the demux of a hub.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use futures_sink::Sink;
use pin_project_lite::pin_project;

use super::message::Message;
use super::watch::{Operation, Watch};
use crate::inbox::InboxSink;
use crate::life::Life;
use crate::oneshot::OneshotSink;
use crate::topic::TopicSink;

/// The error of any sink.
pub type SinkError = Box<dyn Error + Send + Sync>;

pub(super) type AnySink<V> = Pin<Box<dyn Sink<V, Error = SinkError> + Send>>;

/// A sink of the demux. It unwraps the items.
pub(super) enum HubSink<V> {
    /// For all subscriptions to a key on the default terms. Boxed, so that the inbox below is the
    /// only large variant and has room for the tag.
    Topic(Box<TopicSink<V>>),
    Inbox(InboxSink<V>),
    /// An inbox that has a limit or is waited for.
    Watched(Box<WatchedInbox<V>>),
    /// One of these that has not yet taken an item.
    Starting(Box<Starting<V>>),
    Next(OneshotSink<V>),
    Any(AnySink<V>, Arc<Watch>),
}

pub(super) struct WatchedInbox<V> {
    sink: InboxSink<V>,
    watch: Arc<Watch>,
    /// An item waits for room.
    is_waiting: bool,
}

impl<V> WatchedInbox<V> {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SinkError>> {
        let answer = Pin::new(&mut self.sink).poll_ready(cx).map_err(SinkError::from);
        self.set_waiting(answer.is_pending());
        self.watch.note(Operation::Ready, answer)
    }

    /// The demux waits for a sink that is not ready, as long as it receives. If its key was removed,
    /// the hub has to: otherwise what is published later would overtake the item, and a client that
    /// does not read could let one item more wait with each key that it adds and removes.
    fn set_waiting(&mut self, waits: bool) {
        if self.is_waiting != waits {
            self.is_waiting = waits;
            self.sink.set_waiting(waits);
        }
    }
}

impl<V> Drop for WatchedInbox<V> {
    fn drop(&mut self) {
        self.set_waiting(false);
    }
}

/// A sink of an inbox whose reader may have the first item from elsewhere.
pub(super) struct Starting<V> {
    /// There until it takes an item.
    sink: Option<HubSink<V>>,
    begin: Begin,
    hub: Arc<Life>,
}

/// What the reader of an inbox has had before, up to the item with a number.
pub(super) struct Begin {
    pub(super) through: Arc<AtomicU64>,
    /// From a topic, which has counted it. Otherwise it was replayed.
    pub(super) from_topic: bool,
}

impl<V> Starting<V> {
    /// Returns `true` if the reader has the item with this number already.
    fn has_item(&self, number: u64) -> bool {
        if number > self.begin.through.load(Relaxed) {
            return false;
        }
        if self.begin.from_topic {
            self.hub.counts.take_back_copy();
        }
        // The demux counts it towards the limit.
        if let Some(HubSink::Watched(inbox)) = &self.sink {
            inbox.watch.count_item();
        }
        true
    }
}

impl<V> HubSink<V> {
    pub(super) fn watched(sink: InboxSink<V>, watch: Arc<Watch>) -> Self {
        Self::Watched(Box::new(WatchedInbox { sink, watch, is_waiting: false }))
    }

    pub(super) fn starting(sink: Self, begin: Begin, hub: &Arc<Life>) -> Self {
        Self::Starting(Box::new(Starting { sink: Some(sink), begin, hub: Arc::clone(hub) }))
    }

    #[inline(never)]
    fn poll_any_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SinkError>> {
        match self {
            Self::Topic(topic) => Pin::new(&mut **topic).poll_ready(cx).map_err(SinkError::from),
            Self::Inbox(inbox) => Pin::new(inbox).poll_ready(cx).map_err(SinkError::from),
            Self::Watched(inbox) => inbox.poll_ready(cx),
            Self::Starting(starting) => match &mut starting.sink {
                Some(sink) => sink.poll_any_ready(cx),
                None => Poll::Ready(Ok(())),
            },
            Self::Next(next) => Pin::new(next).poll_ready(cx).map_err(SinkError::from),
            Self::Any(sink, watch) => watch.note(Operation::Ready, sink.as_mut().poll_ready(cx)),
        }
    }

    #[inline(never)]
    fn send(&mut self, item: V, number: u64) -> Result<(), SinkError> {
        match self {
            Self::Topic(topic) => Pin::new(&mut **topic).start_send(item).map_err(SinkError::from),
            Self::Inbox(inbox) => Pin::new(inbox).start_send(item).map_err(SinkError::from),
            Self::Watched(inbox) => {
                inbox.watch.count_item();
                Pin::new(&mut inbox.sink).start_send(item).map_err(SinkError::from)
            }
            Self::Starting(starting) => {
                if starting.has_item(number) {
                    return Ok(());
                }
                match starting.sink.take() {
                    Some(sink) => {
                        *self = sink;
                        self.send(item, number)
                    }
                    None => Ok(()),
                }
            }
            Self::Next(next) => Pin::new(next).start_send(item).map_err(SinkError::from),
            Self::Any(sink, _) => sink.as_mut().start_send(item),
        }
    }

    #[inline(never)]
    fn poll_any_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SinkError>> {
        match self {
            Self::Topic(topic) => Pin::new(&mut **topic).poll_flush(cx).map_err(SinkError::from),
            Self::Inbox(inbox) => Pin::new(inbox).poll_flush(cx).map_err(SinkError::from),
            Self::Watched(inbox) => {
                Pin::new(&mut inbox.sink).poll_flush(cx).map_err(SinkError::from)
            }
            // It has taken nothing.
            Self::Starting(_) => Poll::Ready(Ok(())),
            Self::Next(next) => Pin::new(next).poll_flush(cx).map_err(SinkError::from),
            Self::Any(sink, watch) => watch.note(Operation::Flush, sink.as_mut().poll_flush(cx)),
        }
    }

    fn poll_any_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SinkError>> {
        match self {
            Self::Topic(topic) => Pin::new(&mut **topic).poll_close(cx).map_err(SinkError::from),
            Self::Inbox(inbox) => Pin::new(inbox).poll_close(cx).map_err(SinkError::from),
            Self::Watched(inbox) => {
                Pin::new(&mut inbox.sink).poll_close(cx).map_err(SinkError::from)
            }
            Self::Starting(starting) => match &mut starting.sink {
                Some(sink) => sink.poll_any_close(cx),
                None => Poll::Ready(Ok(())),
            },
            Self::Next(next) => Pin::new(next).poll_close(cx).map_err(SinkError::from),
            Self::Any(sink, watch) => watch.note(Operation::Flush, sink.as_mut().poll_close(cx)),
        }
    }
}

/// A topic, and an inbox that holds items back, are the common cases in a burst. The demux inlines
/// what they take, and calls a function for everything else.
impl<K, V> Sink<Message<K, V>> for HubSink<V> {
    type Error = SinkError;

    #[inline]
    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SinkError>> {
        match &*self {
            Self::Topic(topic) if topic.has_room() => Poll::Ready(Ok(())),
            Self::Inbox(inbox) if inbox.is_ready_to_hold() => Poll::Ready(Ok(())),
            _ => self.poll_any_ready(cx),
        }
    }

    #[inline]
    fn start_send(mut self: Pin<&mut Self>, message: Message<K, V>) -> Result<(), SinkError> {
        let number = message.number;
        let (_, item) = message.into_parts();
        match &mut *self {
            Self::Inbox(inbox) if inbox.is_holding() => {
                inbox.hold(item);
                Ok(())
            }
            other => other.send(item, number),
        }
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SinkError>> {
        self.poll_any_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SinkError>> {
        self.poll_any_close(cx)
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
            Self::Topic(_) => "Topic",
            Self::Inbox(_) => "Inbox",
            Self::Watched(_) => "Watched",
            Self::Starting(_) => "Starting",
            Self::Next(_) => "Next",
            Self::Any(..) => "Any",
        })
    }
}
