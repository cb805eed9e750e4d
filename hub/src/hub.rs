//! [`Hub`]: publish and subscribe.
//!
//! ```text
//! hub             the handle
//! ├── builder       the settings, and what starts the task
//! ├── terms         what a subscriber may leave unread, and what happens then
//! ├── stats         what a hub tells about itself
//! ├── shared        what the handles, the subscriptions and the task share
//! ├── list          what many tasks hand to one: items, and commands
//! ├── message       an item on its way
//! ├── task          runs the demux, answers questions, and tells everyone when it ends
//! ├── streams       what the demux reads: items, and the orders among the commands
//! ├── sink          what the demux writes to
//! ├── watch         what a sink tells of itself meanwhile, and the list of these
//! ├── hooks         the closures of the user, called by the demux
//! ├── history       the last items of keys, for replays
//! ├── subscription  what a subscriber reads
//! ├── split         its halves, after a split
//! ├── source        the topic or the inbox that it reads
//! ├── keys          what it is subscribed to
//! ├── topics        the topics that subscriptions on the default terms share
//! ├── next          a single item
//! └── panics        what panics in the middle of a duty
//! ```

mod builder;
mod history;
mod hooks;
mod keys;
mod list;
mod message;
mod next;
mod panics;
mod shared;
mod sink;
mod source;
mod split;
mod stats;
mod streams;
mod subscription;
mod task;
mod terms;
mod topics;
mod watch;

use std::any::TypeId;
use std::error::Error;
use std::fmt;
use std::hash::Hash;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use stream_demux::{Attach, Lease, Overflow};
use tokio::io::AsyncWrite;
use tokio::sync::{TryAcquireError, oneshot};
use tokio::time::timeout;

pub use builder::{Builder, NoInput};
use message::Message;
pub use next::Next;
use shared::Shared;
pub use sink::SinkError;
use sink::{Erased, HubSink};
pub use split::{SubscriptionKeys, SubscriptionReader};
pub use stats::{Member, Report, Stats};
pub use subscription::Subscription;
pub use terms::Terms;
pub(crate) use terms::ticks;

use crate::bounds::{AttachableSink, HubItem};
use crate::life::Phase;
use crate::oneshot::OneshotSink;
use crate::writers::{Groups, Kind, Limits, MAX_BYTES, Writer, writers_of_hub};

/// Publish/subscribe by key, in one task.
///
/// A hub is a handle to a spawned task, which runs a [`Demux`](stream_demux::Demux). Clones are
/// handles to the same task. When the last handle is dropped, the hub ends: everything that was
/// published is delivered first, and the subscriptions end then. Subscriptions do not keep a hub
/// alive.
///
/// Keys are cheap: a key exists while it has a subscriber. Items for keys without one go to
/// [`on_unmatched`](Builder::on_unmatched).
///
/// If the task ends otherwise, because a `Hash`, `Eq`, `Clone` or `Drop` of yours, a closure or an
/// attached sink panics in it, or because the runtime shuts down, the subscriptions end with
/// [`End::Aborted`](crate::End::Aborted), and publishing fails.
///
/// # Examples
///
/// ```
/// use stream_demux_hub::Hub;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let hub = Hub::new();
/// let mut tea = hub.subscribe("tea");
/// hub.publish("tea", "hello").await.unwrap();
/// hub.publish("coffee", "is anyone there?").await.unwrap();
/// assert_eq!(tea.recv().await, Some(Ok("hello")));
///
/// drop(hub);
/// assert_eq!(tea.recv().await, None);
/// # }
/// ```
pub struct Hub<K, V>(Arc<Handle<K, V>>);

/// Closes the hub when the last one is dropped.
struct Handle<K, V> {
    shared: Arc<Shared<K, V>>,
    /// What [`Hub::attach_writer`] has attached.
    writers: Groups<K>,
}

impl<K, V> Drop for Handle<K, V> {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl<K, V> Hub<K, V> {
    fn from_shared(shared: Arc<Shared<K, V>>) -> Self {
        Self(Arc::new(Handle { shared, writers: Groups::new() }))
    }

    fn shared(&self) -> &Arc<Shared<K, V>> {
        &self.0.shared
    }

    /// Returns the default settings of a hub.
    pub fn builder() -> Builder<K, V> {
        Builder::new()
    }
}

impl<K, V> Hub<K, V>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
{
    /// Starts a hub with the default settings, on the current runtime.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    #[expect(clippy::new_without_default, reason = "it spawns a task")]
    pub fn new() -> Self
    where
        V: HubItem,
    {
        Self::builder().spawn()
    }

    /// Publishes an item under a key, for the subscribers that the key has when the item is routed.
    ///
    /// A subscription that was made before this call, in the same task or in one that has
    /// synchronised with it, gets the item. Waits while as many items as the hub has
    /// [room](Builder::capacity) for are not routed yet: because the hub is busy, or because a
    /// subscriber that asked for [`Wait`](crate::Overflow::Wait) has no room. Other subscribers
    /// never make a publisher wait.
    ///
    /// # Errors
    ///
    /// Returns the item if the hub is shut down or has ended.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it completes, the item is not published. A future that has waited
    /// for room, and is neither polled nor dropped, keeps the room that it has been given, as with the
    /// channels of tokio.
    pub async fn publish(&self, key: K, item: V) -> Result<(), PublishError<K, V>> {
        let shared = self.shared();
        match shared.room.try_acquire() {
            Ok(permit) => permit.forget(),
            Err(TryAcquireError::Closed) => return Err(PublishError { key, item }),
            Err(TryAcquireError::NoPermits) => match shared.room.acquire().await {
                Ok(permit) => permit.forget(),
                Err(_) => return Err(PublishError { key, item }),
            },
        }
        shared.items.push(Message::new(key, item)).map_err(PublishError::new)
    }

    /// Publishes an item under a key, if that is possible without waiting.
    ///
    /// # Errors
    ///
    /// Returns the item if there is no room at present, or if the hub is shut down or has ended.
    pub fn try_publish(&self, key: K, item: V) -> Result<(), TryPublishError<K, V>> {
        let shared = self.shared();
        match shared.room.try_acquire() {
            Ok(permit) => permit.forget(),
            Err(TryAcquireError::Closed) => {
                return Err(TryPublishError::Closed(PublishError { key, item }));
            }
            Err(TryAcquireError::NoPermits) => {
                return Err(TryPublishError::Full(PublishError { key, item }));
            }
        }
        let pushed = shared.items.push(Message::new(key, item));
        pushed.map_err(|message| TryPublishError::Closed(PublishError::new(message)))
    }

    /// Subscribes to a key, on the default [`Terms`].
    ///
    /// What is published after this call is received. So are items that were published shortly
    /// before and are not routed yet. If the hub has ended, so has the subscription.
    ///
    /// All subscriptions of this kind to a key share one [topic](crate::topic()): the hub stores an item
    /// once for all of them. To begin with items that were published before, set
    /// [`Terms::replay`].
    pub fn subscribe(&self, key: K) -> Subscription<K, V>
    where
        V: HubItem,
    {
        self.subscribe_with([key], Terms::new())
    }

    /// Subscribes to several keys, or to none at first, on these terms.
    ///
    /// All keys are subscribed at once: no item comes between. They share one buffer, and a loss is
    /// told for all of them together. An item does not tell its key: publish it with the item if
    /// the reader has to know.
    ///
    /// # Examples
    ///
    /// ```
    /// use stream_demux_hub::{Hub, Lagged, Overflow, Terms};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let hub = Hub::new();
    /// let terms = Terms::new().buffer(2).overflow(Overflow::DropOldest);
    /// let mut drinks = hub.subscribe_with(["tea", "coffee"], terms);
    /// for n in 1..=10 {
    ///     hub.publish("tea", n).await.unwrap();
    /// }
    /// hub.publish("coffee", 11).await.unwrap();
    /// drop(hub);
    /// # while drinks.end().is_none() { tokio::task::yield_now().await; }
    /// // Nothing was read in the meantime.
    /// assert_eq!(drinks.recv().await, Some(Err(Lagged(9))));
    /// assert_eq!(drinks.recv().await, Some(Ok(10)));
    /// assert_eq!(drinks.recv().await, Some(Ok(11)));
    /// # }
    /// ```
    pub fn subscribe_with(
        &self,
        keys: impl IntoIterator<Item = K>,
        terms: Terms,
    ) -> Subscription<K, V>
    where
        V: HubItem,
    {
        Subscription::new(self.shared(), keys, terms)
    }

    /// Waits for the next item of a key, for example for the reply to a request.
    ///
    /// The key is subscribed by this call, not when the future is polled first.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use stream_demux_hub::Hub;
    /// use tokio::time::timeout;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let hub = Hub::new();
    /// let reply = hub.next(7);
    /// hub.publish(7, "done").await.unwrap();
    /// assert_eq!(timeout(Duration::from_secs(1), reply).await, Ok(Some("done")));
    /// # }
    /// ```
    pub fn next(&self, key: K) -> Next<V> {
        let (sender, receiver) = oneshot::channel();
        let mut lease = Lease::new();
        let attach = Attach::new(key, HubSink::Next(OneshotSink::new(sender))).leased(&mut lease);
        let terms = Terms::new().limit(1);
        // If the hub has ended, the sender is dropped.
        drop(self.shared().attach(&terms, [self.shared().attaching(&terms, attach, None)]));
        Next::new(receiver, lease)
    }

    /// Attaches a sink under a key, for example a file behind [`write_sink`](crate::write_sink). For
    /// sockets, [`attach_writer`](Self::attach_writer) takes less time.
    ///
    /// The sink gets the items of the key as they are routed, without a task in between. The queue
    /// for it has the size and the policy that the terms set; what does not fit is discarded: the
    /// sink is not told, [`on_discarded`](Builder::on_discarded) is. Keep the lease: dropping it
    /// drops the sink. [`on_detached`](Builder::on_detached) is called when the sink is gone, with
    /// its error if it failed.
    ///
    /// A sink that takes no more items, such as a socket whose peer does not read, stays attached
    /// until something fails: set a [`stall_timeout`](Terms::stall_timeout).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::io::Write;
    /// use stream_demux_hub::{Hub, Terms, write_sink};
    /// use tokio::io::AsyncReadExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let hub = Hub::new();
    /// let (server, mut client) = tokio::io::duplex(1024); // usually a `TcpStream`
    /// let sink = write_sink(server, 8 * 1024, |line: &str, buffer| writeln!(buffer, "{line}"));
    /// let lease = hub.attach("tea", sink, Terms::new());
    /// hub.publish("tea", "hello").await.unwrap();
    ///
    /// let mut line = [0; 6];
    /// client.read_exact(&mut line).await.unwrap();
    /// assert_eq!(&line, b"hello\n");
    /// # drop(lease);
    /// # }
    /// ```
    pub fn attach<S>(&self, key: K, sink: S, terms: Terms) -> Lease
    where
        S: AttachableSink<V> + Send + 'static,
    {
        let (lease, attached) = self.attach_sink(key, sink, terms);
        // If the hub has ended, the sink is dropped.
        drop(attached);
        lease
    }

    /// Returns what the hub has refused, too.
    fn attach_sink<S>(
        &self,
        key: K,
        sink: S,
        terms: Terms,
    ) -> (Lease, Result<(), impl Sized + use<K, V, S>>)
    where
        S: AttachableSink<V> + Send + 'static,
    {
        let mut lease = Lease::new();
        let watch = self.shared().watch(&key, &terms, None);
        let attach = Attach::new(key, HubSink::Any(Erased::boxed(sink), watch))
            .buffer(terms.buffer)
            .overflow(terms.overflow)
            .leased(&mut lease);
        let command = self.shared().attaching(&terms, attach, None);
        (lease, self.shared().attach(&terms, [command]))
    }

    /// Attaches a socket or file under a key, for writing. All of a key share one sink: an item is
    /// encoded once, and its bytes are stored once.
    ///
    /// Returns a future that writes while it is polled, and leaves if it is dropped: spawn it, or poll
    /// it together with what reads from the same socket. What is published after this call is written.
    /// It completes when the hub has ended and everything is written, or when the socket fails.
    ///
    /// `encode` appends an item to a buffer. Writers of a key share a sink if their encoders have the
    /// same type and their terms the same [buffer](Terms::buffer) and [policy](Terms::overflow). The
    /// encoder of the first of them is used for all of them then, so it must not depend on the client.
    /// Each function and each closure has a type of its own. But all `fn` pointers of one signature
    /// have the same type, whatever they point to, and so have all boxes of closures.
    ///
    /// If the encoder fails or panics, these writers end as
    /// [`Unencoded`](crate::WriterEnd::Unencoded), and the hub goes on.
    ///
    /// The terms apply to each writer: a socket that takes no more bytes may leave as many items
    /// unwritten as the buffer has room for, or 1 MiB, before it loses the oldest ones, and
    /// [`Stats::lost`] counts these. The tag is that of the sink, so the first writer sets it.
    /// [`Writer::on_lost`] writes a notice in the place of lost items. For another limit of bytes,
    /// [`attach`](Self::attach) what [`writers`](crate::writers()) creates.
    ///
    /// Under [`Wait`](Overflow::Wait) the hub waits for the slowest writer. Set a
    /// [`stall_timeout`](Terms::stall_timeout), too, which ends that writer and not the others.
    ///
    /// # Panics
    ///
    /// Panics if the policy is [`DropNewest`](Overflow::DropNewest): writers that share items cannot
    /// refuse one of them.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::io::Write;
    /// use stream_demux_hub::{Hub, Terms};
    /// use tokio::io::AsyncReadExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let hub = Hub::new();
    /// let (server, mut client) = tokio::io::duplex(1024); // usually a `TcpStream`
    /// let encode = |line: &str, bytes: &mut Vec<u8>| writeln!(bytes, "{line}");
    /// let writer = hub.attach_writer("tea", server, encode, Terms::new());
    /// let writer = tokio::spawn(writer.on_lost(|lost, bytes| {
    ///     bytes.extend_from_slice(format!("({lost} lines are missing)\n").as_bytes());
    /// }));
    /// hub.publish("tea", "hello").await.unwrap();
    /// drop(hub);
    ///
    /// let mut received = String::new();
    /// client.read_to_string(&mut received).await.unwrap();
    /// assert_eq!(received, "hello\n");
    /// assert_eq!(writer.await.unwrap().items, 1);
    /// # }
    /// ```
    #[track_caller]
    pub fn attach_writer<W, E>(&self, key: K, io: W, encode: E, terms: Terms) -> Writer<W>
    where
        W: AsyncWrite,
        E: FnMut(V, &mut Vec<u8>) -> io::Result<()> + Send + 'static,
    {
        let limits = Limits::new(terms.buffer, MAX_BYTES, terms.overflow);
        let kind = Kind { encoder: TypeId::of::<E>(), limits };
        let writer = self.0.writers.join(key, kind, io, |key| {
            let (sink, writers) = writers_of_hub(limits, encode, &self.shared().life);
            // Nothing waits before the sink: what a writer may leave is in the log.
            let before = Terms::new().buffer(0).overflow(Overflow::Wait).tag(terms.tag);
            let (lease, attached) = self.attach_sink(key, sink, before);
            (writers, lease, attached)
        });
        writer.on_terms(terms.stall_timeout, terms.limit)
    }

    /// Returns the counts so far. After the end of the hub, returns the last ones.
    ///
    /// The task of the hub answers at the end of a turn.
    pub async fn stats(&self) -> Stats {
        self.shared().ask().await.stats
    }

    /// Returns how many subscribers a key has: subscriptions, futures of [`next`](Self::next) and
    /// attached sinks. After the end of the hub, returns 0.
    ///
    /// What this task has subscribed before this call counts, what it has dropped does not. The task
    /// of the hub answers at the end of a turn, in constant time. To follow keys as they come and
    /// go, use [`on_interest`](Builder::on_interest).
    ///
    /// # Examples
    ///
    /// ```
    /// use stream_demux_hub::Hub;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let hub = Hub::<_, String>::new();
    /// let ann = hub.subscribe("tea");
    /// let ben = hub.subscribe("tea");
    /// assert_eq!(hub.subscribers(&"tea").await, 2);
    /// assert_eq!(hub.subscribers(&"coffee").await, 0);
    ///
    /// drop(ann);
    /// assert_eq!(hub.subscribers(&"tea").await, 1);
    /// # drop(ben);
    /// # }
    /// ```
    pub async fn subscribers(&self, key: &K) -> usize {
        self.shared().subscribers(key.clone()).await
    }

    /// Returns the members that receive no more items and have not taken what waits for them.
    pub async fn leaving(&self) -> Vec<Member<K>> {
        self.shared().ask().await.leaving
    }

    /// Returns the member that the publishers wait for, if there is one: it asked for
    /// [`Wait`](crate::Overflow::Wait) and has no room.
    pub async fn blocked_on(&self) -> Option<Member<K>> {
        self.shared().ask().await.blocked_on
    }

    /// Shuts the hub down: accepts no more items, delivers those that were accepted, closes all
    /// sinks and ends all subscriptions. What is not done after `patience` is given up.
    ///
    /// Subscribers can still read what is in their inboxes; the hub does not wait for that. It
    /// waits for subscribers that asked for [`Wait`](crate::Overflow::Wait) and have no room, and
    /// for attached sinks. [`Report::hung`] names all that it would still have to wait for, also
    /// those that others kept it from coming to. What waited for them is lost, and counted in
    /// [`Report::stats`]: as [`waiting`](Stats::waiting) if it was not routed yet, and as
    /// `discarded` if it waited at an attached sink.
    ///
    /// Several calls, of any handle, wait for the same end, and the earliest deadline counts. After
    /// the end, it returns at once.
    ///
    /// # Cancel safety
    ///
    /// The hub is closed by the first poll. If the future is dropped then, the hub still ends as
    /// soon as everything is delivered, but nothing is given up. You can call `shutdown` again.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use stream_demux_hub::{Hub, Overflow, Terms};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let hub = Hub::new();
    /// let terms = Terms::new().buffer(1).overflow(Overflow::Wait).tag(42);
    /// let never_read = hub.subscribe_with(["tea"], terms);
    /// for n in 1..=3 {
    ///     hub.publish("tea", n).await.unwrap();
    /// }
    /// let report = hub.shutdown(Duration::from_millis(10)).await;
    /// assert_eq!((report.hung[0].key, report.hung[0].tag), ("tea", 42));
    /// assert_eq!(report.stats.totals.delivered, 1);
    /// # drop(never_read);
    /// # }
    /// ```
    ///
    /// Subscribers on other terms still have something to read then. Wait for their tasks, but not for
    /// one that hangs:
    ///
    /// ```
    /// use std::time::Duration;
    /// use stream_demux_hub::Hub;
    /// use tokio::task::JoinSet;
    /// use tokio::time::timeout;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let (hub, mut clients) = (Hub::new(), JoinSet::new());
    /// let mut lines = hub.subscribe("tea");
    /// clients.spawn(async move {
    ///     while let Some(Ok(line)) = lines.recv().await {
    ///         println!("{line}"); // or a socket that may be slow
    ///     }
    /// });
    /// hub.publish("tea", "hello").await.unwrap();
    ///
    /// hub.shutdown(Duration::from_secs(5)).await;
    /// if timeout(Duration::from_secs(5), clients.join_all()).await.is_err() {
    ///     println!("some clients have not read everything");
    /// }
    /// # }
    /// ```
    pub async fn shutdown(&self, patience: Duration) -> Report<K> {
        let shared = self.shared();
        shared.close();
        // Without a timer after the end, as there may be no runtime any more.
        if !shared.has_ended() && timeout(patience, shared.ended()).await.is_err() {
            shared.give_up().await;
        }
        let stats = shared.ended().await.stats;
        Report { stats, hung: shared.hung() }
    }

    /// Returns `true` if the hub accepts no more items.
    pub fn is_closed(&self) -> bool {
        self.shared().life.phase() > Phase::Open
    }
}

impl<K, V> Clone for Hub<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K, V> fmt::Debug for Hub<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = self.shared();
        f.debug_struct("Hub")
            .field("phase", &shared.life.phase())
            .field("waiting", &shared.items.len())
            .field("lost", &shared.life.counts.lost.load(Relaxed))
            .finish_non_exhaustive()
    }
}

/// An item that was not published, because the hub is shut down or has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublishError<K, V> {
    /// The key.
    pub key: K,
    /// The item.
    pub item: V,
}

impl<K, V> PublishError<K, V> {
    fn new(message: Message<K, V>) -> Self {
        let (key, item) = message.into_parts();
        Self { key: key.expect("an original was refused"), item }
    }
}

impl<K, V> fmt::Display for PublishError<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the hub accepts no more items")
    }
}

impl<K: fmt::Debug, V: fmt::Debug> Error for PublishError<K, V> {}

/// Why an item was not published by [`Hub::try_publish`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TryPublishError<K, V> {
    /// There is no room at present.
    Full(PublishError<K, V>),
    /// The hub is shut down or has ended.
    Closed(PublishError<K, V>),
}

impl<K, V> fmt::Display for TryPublishError<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(_) => f.write_str("the hub has no room at present"),
            Self::Closed(error) => error.fmt(f),
        }
    }
}

impl<K: fmt::Debug, V: fmt::Debug> Error for TryPublishError<K, V> {}
