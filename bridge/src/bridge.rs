//! [`Bridge`]: the handle, and its [`Builder`].

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use stream_demux_hub::{Hub, Report, Stats, Terms};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::engine::{Engine, Subscriber};
use crate::event::{Event, Key, What};
use crate::link::{self, Purpose};
#[cfg(feature = "nats")]
use crate::nats::Nats;
use crate::publisher::{Publish, Publisher};
#[cfg(feature = "redis")]
use crate::redis::Redis;
use crate::settings::{LONGEST_TIME, Settings};
use crate::shared::{Input, Shared};
use crate::status::{self, Role, Status};
use crate::subscription::Subscription;
#[cfg(any(feature = "nats", feature = "redis"))]
use crate::url::UrlError;

/// Publish/subscribe by key over several processes.
///
/// A bridge is a handle: clones are for the same connections and the same [`Hub`]. When the last
/// handle is dropped, the subscriptions end after what the hub has read by then. Subscriptions do
/// not keep a bridge alive.
///
/// Items are bytes, and keys are the channels or subjects of the engine. A key is subscribed there
/// while it has a subscriber in this process, once for all of them.
///
/// # Examples
///
/// ```
/// use stream_demux_bridge::{Bridge, Received};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let rooms = Bridge::local(); // or Bridge::redis("redis://127.0.0.1/")?
/// let mut tea = rooms.subscribe("tea").await?;
/// rooms.publish("tea", "hello").await?;
/// match tea.recv().await {
///     Some(Received::Item { item, .. }) => assert_eq!(item, "hello"),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Bridge(Arc<Inner>);

struct Inner {
    hub: Arc<Hub<Key, Event>>,
    shared: Arc<Shared>,
    /// `None` without an engine.
    publisher: Option<Box<dyn Publish>>,
    /// Aborted when the last handle is dropped.
    _links: JoinSet<()>,
}

impl Bridge {
    /// Returns the default settings.
    pub fn builder() -> Builder {
        Builder { settings: Settings::default(), capacity: None }
    }

    /// Starts a bridge to a Redis server, with the default settings. See [`Builder::redis`].
    ///
    /// # Errors
    ///
    /// Returns an error if the URL cannot be used. Whether the server is there is another matter:
    /// see [`status`](Self::status).
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    #[cfg(feature = "redis")]
    pub fn redis(url: &str) -> Result<Self, UrlError> {
        Self::builder().redis(url)
    }

    /// Starts a bridge to a NATS server, with the default settings. See [`Builder::nats`].
    ///
    /// # Errors
    ///
    /// Returns an error if the URL cannot be used. Whether the server is there is another matter:
    /// see [`status`](Self::status).
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    #[cfg(feature = "nats")]
    pub fn nats(url: &str) -> Result<Self, UrlError> {
        Self::builder().nats(url)
    }

    /// Starts a bridge without an engine: one process, in which nothing can break.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub fn local() -> Self {
        Self::builder().local()
    }

    /// Publishes an item under a key, for the subscribers that the key has in all processes.
    ///
    /// Completes when the engine has accepted the item, which takes a round trip: items that
    /// several tasks publish share it. Items that one task publishes one after the other keep
    /// their order.
    ///
    /// # Errors
    ///
    /// The error tells whether the item is certainly not published. The call takes no longer than
    /// the [time-out](Builder::publish_timeout): if the engine is away for a moment, the item waits
    /// for it that long.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it completes, the item may have been published. One that is
    /// neither polled nor dropped keeps its place in the [window](Builder::publish_window).
    pub async fn publish(&self, key: &str, item: impl Into<Bytes>) -> Result<(), PublishError> {
        let Inner { hub, shared, publisher, .. } = &*self.0;
        if hub.is_closed() {
            return Err(PublishError::Closed);
        }
        let deadline = Instant::now() + shared.settings.publish_timeout;
        if let Some(publisher) = publisher {
            return publisher.publish(key, item.into(), deadline).await;
        }
        let key = Key::from(key);
        let event = Event { key: Arc::clone(&key), epoch: 0, what: What::Item(item.into()) };
        match timeout_at(deadline, hub.publish(key, event)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(PublishError::Closed),
            Err(_) => Err(PublishError::NotSent("a subscriber makes the hub wait".into())),
        }
    }

    /// Subscribes to a key on the default [`Terms`], and waits until the engine has confirmed it.
    ///
    /// What any process publishes after that is received, or the subscription is told that items
    /// are missing. While the engine is away, this waits: put a time-out around it, or add the key
    /// to a [`subscription`](Self::subscription), which does not wait.
    ///
    /// # Errors
    ///
    /// Returns an error if the engine refuses the subscription, or if the bridge has ended.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it completes, nothing is subscribed.
    pub async fn subscribe(&self, key: &str) -> Result<Subscription, SubscribeError> {
        self.subscribe_with([key], Terms::new()).await
    }

    /// Subscribes to several keys on these terms, and waits until the engine has confirmed all.
    ///
    /// # Errors
    ///
    /// Returns an error if the engine refuses one of the keys, or if the bridge has ended.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it completes, nothing is subscribed.
    pub async fn subscribe_with<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        terms: Terms,
    ) -> Result<Subscription, SubscribeError> {
        let mut subscription = self.subscription(terms);
        subscription.join(keys.into_iter().map(Into::into).collect()).await?;
        Ok(subscription)
    }

    /// Returns a subscription without keys. Its [`keys`](Subscription::keys) can be changed by one
    /// task while another reads it.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub fn subscription(&self, terms: Terms) -> Subscription {
        Subscription::new(&self.0.hub, Arc::clone(&self.0.shared), terms)
    }

    /// Returns how the bridge is connected, and follows it.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.0.shared.status.subscribe()
    }

    /// Returns the counts of the hub.
    pub async fn stats(&self) -> Stats {
        self.0.hub.stats().await
    }

    /// Ends the bridge: delivers what the hub has read, ends the subscriptions, and gives up what is
    /// not done after `patience`. What still comes from the engine is not read. See
    /// [`Hub::shutdown`].
    pub async fn shutdown(&self, patience: Duration) -> Report<Key> {
        self.0.hub.shutdown(patience).await
    }
}

impl fmt::Debug for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bridge")
            .field("hub", &self.0.hub)
            .field("status", &*self.0.shared.status.borrow())
            .finish_non_exhaustive()
    }
}

/// The settings of a [`Bridge`]. [`Bridge::builder`] creates it.
#[derive(Debug, Clone)]
#[must_use = "does nothing until `redis`, `nats` or `local` starts the bridge"]
pub struct Builder {
    settings: Settings,
    capacity: Option<usize>,
}

impl Builder {
    /// Sets how long [`publish`](Bridge::publish) may take; the default is 5 seconds.
    pub fn publish_timeout(mut self, time: Duration) -> Self {
        self.settings.publish_timeout = time.min(LONGEST_TIME);
        self
    }

    /// Sets how many publishers may wait for an answer of the engine at once, before they wait for
    /// each other; the default is 1,024.
    ///
    /// A publisher that gives up makes room for another one. Its item may still be on its way.
    ///
    /// # Panics
    ///
    /// Panics if it is 0.
    #[track_caller]
    pub fn publish_window(mut self, items: usize) -> Self {
        assert!(items > 0, "`publish_window` must be at least 1 item");
        self.settings.window = items;
        self
    }

    /// Sets how often the engine is asked whether it lives; the default is 2 seconds.
    ///
    /// A connection by which nothing has come for four of them is replaced. While the hub does not
    /// read, because of a subscriber under [`Wait`](stream_demux_hub::Overflow::Wait), the time
    /// does not run.
    ///
    /// # Panics
    ///
    /// Panics if it is zero.
    #[track_caller]
    pub fn heartbeat(mut self, time: Duration) -> Self {
        assert!(!time.is_zero(), "`heartbeat` must be longer than zero");
        self.settings.heartbeat = time.min(LONGEST_TIME);
        self
    }

    /// Sets how long an attempt to connect may take; the default is 5 seconds.
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.settings.connect_timeout = time.min(LONGEST_TIME);
        self
    }

    /// Sets how long the bridge waits before it connects again; the default is 100 ms, doubled with
    /// each attempt up to 2 seconds.
    ///
    /// There are two connections, one that listens and one that publishes, and each is made again by
    /// itself. If the longest delay is as long as the [time-out](Self::publish_timeout) of `publish`,
    /// an item may be given up although the engine has come back.
    ///
    /// Each delay is a random part of that, half of it at least. A connection that has lasted for
    /// twice the longest delay begins anew with the shortest.
    pub fn reconnect_delay(mut self, shortest: Duration, longest: Duration) -> Self {
        self.settings.shortest_delay = shortest.min(LONGEST_TIME);
        self.settings.longest_delay = longest.min(LONGEST_TIME);
        self
    }

    /// Sets how many bytes from the engine may wait for the hub, before the bridge stops reading;
    /// the default is 256 KiB.
    ///
    /// They wait only if a subscriber under [`Wait`](stream_demux_hub::Overflow::Wait) has no room,
    /// or if more comes than one processor can route. The engine keeps the rest, and closes the
    /// connection when that is too much for it.
    pub fn arrivals(mut self, bytes: usize) -> Self {
        self.settings.arrivals = bytes.max(1);
        self
    }

    /// Sets the [capacity](stream_demux_hub::Builder::capacity) of the hub, which matters without
    /// an engine.
    pub fn capacity(mut self, items: usize) -> Self {
        self.capacity = Some(items);
        self
    }

    /// Starts a bridge to a Redis server, which is connected to in the background.
    ///
    /// The URL is `redis://[user][:password@]host[:port]` or `unix:///path`. The server has to know
    /// RESP3: Redis 6 or Valkey. Without TLS.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL cannot be used.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    #[cfg(feature = "redis")]
    pub fn redis(self, url: &str) -> Result<Bridge, UrlError> {
        Ok(self.start(Redis::new(url)?))
    }

    /// Starts a bridge to a NATS server, which is connected to in the background.
    ///
    /// The URL is `nats://[user:password@]host[:port]`, or `nats://token@host`. Without TLS, and
    /// without the keys and tokens that sign a challenge (`NKey`, JWT).
    ///
    /// One server: in a cluster of NATS, a server learns a moment later what was subscribed at
    /// another, so a join would be true before items that were published there are received.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL cannot be used.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    #[cfg(feature = "nats")]
    pub fn nats(self, url: &str) -> Result<Bridge, UrlError> {
        Ok(self.start(Nats::new(url)?))
    }

    /// Starts a bridge without an engine.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub fn local(self) -> Bridge {
        let shared = Shared::new(self.settings, true);
        for role in [Role::Receiving, Role::Publishing] {
            status::connected(&shared.status, role);
        }
        let hub = spawn_hub(&shared, self.capacity);
        Bridge(Arc::new(Inner { hub, shared, publisher: None, _links: JoinSet::new() }))
    }

    pub(crate) fn start<E: Engine>(self, engine: E) -> Bridge {
        let shared = Shared::new(self.settings, false);
        let hub = spawn_hub(&shared, self.capacity);
        let engine = Arc::new(engine);
        let (line, connected) = watch::channel(None);
        let publisher = Publisher::new(connected, &shared);
        let arrivals = Arc::clone(&shared.arrivals);
        let receiving = Purpose::Receiving(Subscriber { arrivals, epoch: 0 });
        let publishing = Purpose::Publishing(Arc::new(line));
        let mut links = JoinSet::new();
        links.spawn(link::keep(Arc::clone(&engine), Arc::clone(&shared), receiving));
        links.spawn(link::keep(engine, Arc::clone(&shared), publishing));
        let publisher = Some(Box::new(publisher) as Box<dyn Publish>);
        Bridge(Arc::new(Inner { hub, shared, publisher, _links: links }))
    }
}

fn spawn_hub(shared: &Arc<Shared>, capacity: Option<usize>) -> Arc<Hub<Key, Event>> {
    let interest = Arc::clone(shared);
    let builder = Hub::builder()
        .on_interest(move |key, is_wanted| interest.table.interest(key, is_wanted))
        .input(Input(Arc::clone(shared)));
    let builder = match capacity {
        Some(items) => builder.capacity(items),
        None => builder,
    };
    Arc::new(builder.spawn())
}

/// Why an item was not published, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublishError {
    /// The item was not sent: the engine was away for the whole time. It is certainly not
    /// published.
    NotSent(Arc<str>),
    /// The item was sent, and the engine has not answered: it may have been published.
    ///
    /// With Redis, what was handed to the client library counts as sent.
    InDoubt(Arc<str>),
    /// The engine has answered with an error. The item is not published.
    Refused(Arc<str>),
    /// The bridge has ended. The item is not published.
    Closed,
}

impl PublishError {
    /// Returns `true` if the item may have been published all the same.
    pub fn is_in_doubt(&self) -> bool {
        matches!(self, Self::InDoubt(_))
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent(reason) => write!(f, "the item was not sent: {reason}"),
            Self::InDoubt(reason) => {
                write!(f, "the item was sent and may have been published: {reason}")
            }
            Self::Refused(reason) => write!(f, "the engine refused the item: {reason}"),
            Self::Closed => f.write_str("the bridge has ended"),
        }
    }
}

impl Error for PublishError {}

/// Why a key could not be subscribed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The engine has answered with an error.
    Refused {
        /// The key.
        key: Key,
        /// What it has answered.
        reason: Arc<str>,
    },
    /// The bridge has ended.
    Closed,
}

impl fmt::Display for SubscribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { key, reason } => {
                write!(f, "the engine refused to subscribe to {key:?}: {reason}")
            }
            Self::Closed => f.write_str("the bridge has ended"),
        }
    }
}

impl Error for SubscribeError {}
