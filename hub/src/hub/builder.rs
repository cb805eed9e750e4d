//! [`Builder`]: the settings of a hub.

use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::time::Duration;

use futures_core::Stream;
use stream_demux::{DemuxStreamExt, Detached, Discarded, Recipient};

use super::Hub;
use super::history::History;
use super::hooks::Events;
use super::message::Message;
use super::shared::Shared;
use super::sink::SinkError;
use super::streams::{Items, Orders};
use super::task::Task;
use crate::bounds::{HubItem, InputStream};

/// The settings of a [`Hub`]. [`Hub::builder`] creates it, and [`spawn`](Self::spawn) starts the
/// hub.
///
/// # Examples
///
/// ```
/// use stream_demux_hub::Hub;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let hub = Hub::builder()
///     .capacity(256)
///     .on_unmatched(|key: String, item: u64| println!("{key} has no subscriber: {item}"))
///     .spawn();
/// hub.publish("tea".to_owned(), 1).await.unwrap();
/// # }
/// ```
#[must_use = "does nothing until it is spawned"]
pub struct Builder<K, V, St = NoInput<(K, V)>, B = RandomState> {
    capacity: usize,
    budget: Option<usize>,
    flush_every: Option<usize>,
    tick: Duration,
    replay: usize,
    replay_keys: usize,
    events: Events<K, V>,
    input: Option<St>,
    hasher: B,
}

impl<K, V> Builder<K, V> {
    pub(super) fn new() -> Self {
        Self {
            // An item for a quiet key waits for those before it. Beside a topic with 500 readers that
            // is published in a tight loop, that took 9 ms with 1,024, and 0.7 ms with 512, while a
            // delivery took the same. `neighbour` in the benchmarks measures such delays.
            capacity: 512,
            budget: None,
            flush_every: None,
            tick: Duration::from_millis(100),
            replay: 0,
            replay_keys: 1_024,
            events: Events::default(),
            input: None,
            hasher: RandomState::new(),
        }
    }
}

impl<K, V, St, B> Builder<K, V, St, B> {
    /// Sets how many items may be published and not yet be read by the hub, before publishers wait;
    /// the default is 512.
    ///
    /// An item gives its place back when the hub routes it.
    pub fn capacity(mut self, items: usize) -> Self {
        self.capacity = items;
        self
    }

    /// Sets the [budget](stream_demux::Demux::budget) of the demux: how much it does before it lets
    /// other tasks run. The default is that of the demux.
    ///
    /// # Panics
    ///
    /// Panics if it is 0.
    #[track_caller]
    pub fn budget(mut self, items: usize) -> Self {
        assert!(items > 0, "`budget` must be at least 1 item");
        self.budget = Some(items);
        self
    }

    /// Sets after how many further items and copies a subscriber is woken and an attached sink is
    /// flushed at the latest, while the hub is busy; the default is that of the demux, 16,384.
    ///
    /// This is the upper bound of [`Demux::flush_every`](stream_demux::Demux::flush_every). The hub
    /// flushes earlier when enough was delivered to pay for it, and at once when it has nothing to
    /// do. A small number shortens the time that a quiet key waits beside many busy ones, and wakes
    /// more often.
    ///
    /// # Panics
    ///
    /// Panics if it is 0.
    #[track_caller]
    pub fn flush_every(mut self, items: usize) -> Self {
        assert!(items > 0, "`flush_every` must be at least 1 item");
        self.flush_every = Some(items);
        self
    }

    /// Sets how exact time-outs are; the default is 100 ms.
    ///
    /// A hub without time-outs has no timer. With them, each tick looks at every attachment that
    /// has one.
    ///
    /// # Panics
    ///
    /// Panics if it is zero.
    #[track_caller]
    pub fn tick(mut self, tick: Duration) -> Self {
        assert!(!tick.is_zero(), "`tick` must be longer than zero");
        self.tick = tick;
        self
    }

    /// Keeps the last items of each key, at most this number, for subscriptions that ask for a
    /// [replay](crate::Terms::replay); the default is 0.
    ///
    /// The items are kept while the hub runs, whether the key has subscribers or not, of at most as
    /// many keys as [`replay_keys`](Self::replay_keys) says. [`Stats`](crate::Stats) tell how
    /// much there is. An item costs one more clone.
    ///
    /// # Examples
    ///
    /// ```
    /// use stream_demux_hub::{Hub, Terms};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let hub = Hub::builder().replay(1).spawn();
    /// for n in 1..=3 {
    ///     hub.publish("tea", n).await.unwrap();
    /// }
    /// # hub.stats().await;
    /// let mut late = hub.subscribe_with(["tea"], Terms::new().replay(1));
    /// hub.publish("tea", 4).await.unwrap();
    /// assert_eq!(late.recv().await, Some(Ok(3)));
    /// assert_eq!(late.recv().await, Some(Ok(4)));
    /// # }
    /// ```
    pub fn replay(mut self, items: usize) -> Self {
        self.replay = items;
        self
    }

    /// Sets of how many keys the hub keeps items, if it [keeps](Self::replay) any; the default is
    /// 1,024. When there are more, it forgets the key that got no item for longest.
    ///
    /// # Panics
    ///
    /// Panics if it is 0.
    #[track_caller]
    pub fn replay_keys(mut self, keys: usize) -> Self {
        assert!(keys > 0, "`replay_keys` must be at least 1 key");
        self.replay_keys = keys;
        self
    }

    /// Sets a closure that is called with each item that has no subscriber, and its key.
    ///
    /// It runs in the task of the hub and must not block.
    pub fn on_unmatched(mut self, call: impl FnMut(K, V) + Send + 'static) -> Self {
        self.events.unmatched = Some(Box::new(call));
        self
    }

    /// Sets a closure that is called when a subscriber has left a key or an attached sink is gone,
    /// with the reason.
    ///
    /// So that each departure is told, subscriptions on the default terms do not share their items
    /// in this hub: an item is copied for each of them, and a delivery costs about twice as much.
    ///
    /// It runs in the task of the hub and must not block.
    pub fn on_detached(
        mut self,
        call: impl FnMut(Recipient<'_, K>, Detached<SinkError>) + Send + 'static,
    ) -> Self {
        self.events.detached = Some(Box::new(call));
        self
    }

    /// Sets a closure that is called with each item that is discarded: it has no room at an
    /// [attached](Hub::attach) sink, or its member leaves, fails or is given up while it waits.
    ///
    /// What the full inbox of a subscription drops is not passed to it: the subscriber is told of
    /// that. It runs in the task of the hub and must not block.
    pub fn on_discarded(
        mut self,
        call: impl FnMut(Recipient<'_, K>, V, Discarded) + Send + 'static,
    ) -> Self {
        self.events.discarded = Some(Box::new(call));
        self
    }

    /// Sets a closure that is called with `true` after a key has got its first subscriber, and with
    /// `false` after it has lost its last: to subscribe upstream only while needed.
    ///
    /// It is called later, by the task of the hub, not by `subscribe`, `add`, `remove` or the drop of
    /// a subscription. If a key gets a subscriber and loses it before the hub has noticed the first,
    /// it is not called for either. For each key, calls with `true` and `false` alternate.
    ///
    /// To wait for it, await [`Hub::subscribers`]: when that returns, the closure has been called for
    /// everything that the same task has subscribed and dropped before.
    ///
    /// It must not block: send the key to a task that subscribes.
    ///
    /// # Examples
    ///
    /// ```
    /// use stream_demux_hub::Hub;
    /// use tokio::sync::mpsc;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let (sender, mut changes) = mpsc::unbounded_channel();
    /// let hub = Hub::<_, u64>::builder()
    ///     .on_interest(move |key: &&str, is_wanted| sender.send((*key, is_wanted)).unwrap())
    ///     .spawn();
    /// let tea = hub.subscribe("tea");
    /// assert!(changes.is_empty()); // it comes later
    ///
    /// hub.subscribers(&"tea").await;
    /// assert_eq!(changes.try_recv(), Ok(("tea", true)));
    ///
    /// drop(tea);
    /// drop(hub.subscribe("coffee")); // comes and goes before the hub has noticed it
    /// hub.subscribers(&"tea").await;
    /// assert_eq!(changes.try_recv(), Ok(("tea", false)));
    /// assert!(changes.is_empty());
    /// # }
    /// ```
    pub fn on_interest(mut self, call: impl FnMut(&K, bool) + Send + 'static) -> Self {
        self.events.interest = Some(Box::new(call));
        self
    }

    /// Publishes the items of a stream, too. When the stream ends, the hub shuts down as if the
    /// last handle had been dropped.
    ///
    /// The task of the hub reads the stream itself, so an item takes no detour through another
    /// task: use this for what comes in on a connection. Items that the stream still has when the
    /// hub is shut down are not read.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::stream;
    /// use stream_demux_hub::Hub;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let hub = Hub::builder().input(stream::iter([("tea", 1), ("tea", 2)])).spawn();
    /// let mut tea = hub.subscribe("tea");
    /// assert_eq!(tea.recv().await, Some(Ok(1)));
    /// assert_eq!(tea.recv().await, Some(Ok(2)));
    /// assert_eq!(tea.recv().await, None);
    /// # }
    /// ```
    pub fn input<St2>(self, input: St2) -> Builder<K, V, St2, B>
    where
        St2: InputStream<Input = (K, V)>,
    {
        let Self { capacity, budget, flush_every, tick, replay, replay_keys, events, .. } = self;
        let input = Some(input);
        let hasher = self.hasher;
        Builder { capacity, budget, flush_every, tick, replay, replay_keys, events, input, hasher }
    }

    /// Sets the hasher for looking up keys. The default withstands keys that were chosen to
    /// collide; [`DefaultHashBuilder`](stream_demux::DefaultHashBuilder) does not, and is faster.
    pub fn with_hasher<B2: BuildHasher>(self, hasher: B2) -> Builder<K, V, St, B2> {
        let Self { capacity, budget, flush_every, tick, replay, replay_keys, events, .. } = self;
        let input = self.input;
        Builder { capacity, budget, flush_every, tick, replay, replay_keys, events, input, hasher }
    }

    /// Starts the hub in a task of its own, on the current runtime.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime. The task panics at the first time-out if the time driver
    /// of the runtime is not enabled.
    pub fn spawn(self) -> Hub<K, V>
    where
        K: Hash + Eq + Clone + Send + 'static,
        V: HubItem,
        St: Stream<Item = (K, V)> + Send + 'static,
        B: BuildHasher + Send + 'static,
    {
        let Self { capacity, budget, flush_every, tick, events, input, hasher, .. } = self;
        let history = (self.replay > 0).then(|| History::new(self.replay, self.replay_keys));
        let shared = Shared::new(capacity, tick, events.detached.is_none(), history);
        let demux = Items::new(shared.clone(), input)
            .demux_by_ref(Message::<K, V>::key, Orders::new(shared.clone()))
            .with_hasher(hasher)
            .multicast()
            .hooks(events);
        let demux = match budget {
            Some(budget) => demux.budget(budget),
            None => demux,
        };
        let demux = match flush_every {
            Some(items) => demux.flush_every(items),
            None => demux,
        };
        tokio::spawn(Task::new(demux, shared.clone()));
        Hub::from_shared(shared)
    }
}

impl<K, V, St, B> fmt::Debug for Builder<K, V, St, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, budget, flush_every, tick, replay, replay_keys, events, .. } = self;
        f.debug_struct("Builder")
            .field("capacity", capacity)
            .field("budget", budget)
            .field("flush_every", flush_every)
            .field("tick", tick)
            .field("replay", replay)
            .field("replay_keys", replay_keys)
            .field("events", events)
            .field("has_input", &self.input.is_some())
            .finish_non_exhaustive()
    }
}

/// The type of an input that is not there.
#[derive(Debug)]
pub struct NoInput<T>(std::convert::Infallible, std::marker::PhantomData<fn() -> T>);

impl<T> Stream for NoInput<T> {
    type Item = T;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<T>> {
        match self.0 {}
    }
}
