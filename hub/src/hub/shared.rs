//! [`Shared`]: what the handles, the subscriptions and the task of a hub share.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stream_demux::{Attach, Order, Overflow};
use tokio::sync::{Notify, Semaphore, oneshot};

use super::history::History;
use super::list::List;
use super::message::Message;
use super::panics::Panics;
use super::sink::HubSink;
use super::stats::{Member, Snapshot, Stats};
use super::terms::Terms;
use super::topics::Topics;
use super::watch::{Watch, Watchlist};
use crate::inbox::{Bell, InboxSink};
use crate::life::{Life, Phase};

/// A table of subscriptions without keys has room for at least this many without shrinking.
const KEYLESS_KEPT: usize = 64;

/// What is told to the task of a hub.
pub(super) enum Command<K, V> {
    Order(Order<K, HubSink<V>>),
    /// Attaches a sink that begins behind what its reader gets from elsewhere.
    Start(Start<K, V>, Order<K, HubSink<V>>),
    Ask(Question<K>),
}

/// What the reader of a sink that is to be attached gets from elsewhere.
pub(super) struct Start<K, V> {
    /// The task sets this to the number of the last item that it has read.
    pub(super) through: Arc<AtomicU64>,
    pub(super) replay: Option<Replay<K, V>>,
}

/// The last items of a key are to be put into an inbox.
pub(super) struct Replay<K, V> {
    pub(super) key: K,
    pub(super) items: usize,
    pub(super) inbox: Bell<V>,
    /// The number of the sink in its inbox.
    pub(super) sink: u32,
}

/// A question to the task of a hub.
pub(super) enum Question<K> {
    /// What the task knows.
    Snapshot(oneshot::Sender<Snapshot<K>>),
    /// The same, and all that the hub would have to wait for. The hub is closed.
    WhoHangs(oneshot::Sender<Snapshot<K>>),
    /// How many attachments receive the items of a key.
    Subscribers(K, oneshot::Sender<usize>),
}

pub(super) struct Shared<K, V> {
    pub(super) life: Arc<Life>,
    /// What was published and is not yet read by the task.
    pub(super) items: List<Message<K, V>>,
    /// A permit for each item that may be appended to `items`.
    pub(super) room: Semaphore,
    pub(super) commands: List<Command<K, V>>,
    /// Questions that were read. The task answers them at the end of its turn.
    pub(super) asked: Mutex<Vec<Question<K>>>,
    pub(super) is_asked: AtomicBool,
    /// The unit of time of the demux.
    pub(super) tick: Duration,
    pub(super) watchlist: Watchlist<K, V>,
    pub(super) topics: Topics<K, V>,
    /// Subscriptions on the default terms share topics.
    pub(super) shares_topics: bool,
    /// The last items of keys, if they are kept.
    pub(super) history: Option<History<K, V>>,
    /// Subscriptions without keys. Nothing else tells them that the hub has ended.
    keyless: Mutex<HashMap<u64, InboxSink<V>>>,
    next_keyless: AtomicU64,
    /// Set at the end.
    last: Mutex<Option<Snapshot<K>>>,
    /// The members that were given up at a deadline.
    hung: Mutex<Vec<Member<K>>>,
    over: Notify,
}

impl<K: Hash + Eq, V> Shared<K, V> {
    pub(super) fn new(
        capacity: usize,
        tick: Duration,
        shares_topics: bool,
        history: Option<History<K, V>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            life: Arc::new(Life::new()),
            items: List::new(),
            room: Semaphore::new(capacity.clamp(1, Semaphore::MAX_PERMITS)),
            commands: List::of_orders(),
            asked: Mutex::new(Vec::new()),
            is_asked: AtomicBool::new(false),
            tick,
            watchlist: Watchlist::new(),
            topics: Topics::new(),
            shares_topics,
            history,
            keyless: Mutex::new(HashMap::new()),
            next_keyless: AtomicU64::new(0),
            last: Mutex::new(None),
            hung: Mutex::new(Vec::new()),
            over: Notify::new(),
        })
    }
}

impl<K, V> Shared<K, V> {
    /// Accepts no more items. Those that were accepted are routed, then the hub ends.
    pub(super) fn close(&self) {
        self.life.advance(Phase::Closing);
        self.room.close();
        self.items.close();
    }

    /// The command to attach a sink on these terms.
    pub(super) fn attaching(
        &self,
        terms: &Terms,
        attach: Attach<K, HubSink<V>>,
        start: Option<Start<K, V>>,
    ) -> Command<K, V> {
        let order = terms.apply(attach, self.tick).into();
        match start {
            Some(start) => Command::Start(start, order),
            None => Command::Order(order),
        }
    }

    /// Attaches sinks on these terms, with no other order between them. If the hub has ended, returns
    /// the commands: the sinks are dropped with them, and what reads from these ends.
    pub(super) fn attach<I>(&self, terms: &Terms, commands: I) -> Result<(), I>
    where
        I: IntoIterator<Item = Command<K, V>>,
    {
        if terms.stall_timeout.is_some() {
            self.life.needs_ticks.store(true, Relaxed);
        }
        self.commands.extend(commands)
    }

    /// Keeps the inbox of a subscription without keys open until the hub ends. If it has ended,
    /// returns the sink, with which the inbox ends.
    pub(super) fn keep_open(&self, sink: InboxSink<V>) -> Result<u64, InboxSink<V>> {
        let mut keyless = lock(&self.keyless);
        // The end takes all sinks after it has set this.
        if self.life.phase() >= Phase::Finished {
            return Err(sink);
        }
        let id = self.next_keyless.fetch_add(1, Relaxed);
        keyless.insert(id, sink);
        Ok(id)
    }

    /// Returns the sink, for which there are others now, or whose reader is gone.
    pub(super) fn forget_keyless(&self, id: u64) -> Option<InboxSink<V>> {
        let mut keyless = lock(&self.keyless);
        let sink = keyless.remove(&id);
        // Twice the room that is needed, so that shrinking costs little for each that goes.
        if keyless.capacity() / 8 > keyless.len().max(KEYLESS_KEPT) {
            let room = keyless.len() * 2;
            keyless.shrink_to(room);
        }
        sink
    }

    fn end_keyless(&self) {
        let keyless = std::mem::take(&mut *lock(&self.keyless));
        let end = self.life.end_of_dropped_sink();
        let mut panics = Panics::default();
        for sink in keyless.into_values() {
            panics.catch(|| sink.end(end));
        }
        panics.resume();
    }

    /// Creates the watch of a new sink. `inbox` is the inbox that it fills, if it is one.
    pub(super) fn watch(&self, key: &K, terms: &Terms, inbox: Option<Bell<V>>) -> Arc<Watch>
    where
        K: Clone,
    {
        let watch = Watch::new(terms.limit);
        // The hub waits for sinks, and for inboxes under one of the policies.
        if inbox.is_none() || terms.overflow == Overflow::Wait {
            self.watchlist.add(key, terms.tag, inbox, watch)
        } else {
            Arc::new(watch)
        }
    }

    /// Asks the task for what it knows. After the end, returns what it knew last.
    pub(super) async fn ask(&self) -> Snapshot<K>
    where
        K: Clone,
    {
        match self.answer(Question::Snapshot).await {
            Some(snapshot) => snapshot,
            None => self.ended().await,
        }
    }

    /// Asks the task how many attachments receive the items of a key. After the end, none do.
    pub(super) async fn subscribers(&self, key: K) -> usize {
        let subscribers = self.answer(|answer| Question::Subscribers(key, answer)).await;
        subscribers.unwrap_or(0)
    }

    /// Asks the task. Returns `None` if it has ended.
    async fn answer<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Question<K>,
    ) -> Option<T> {
        let (sender, answer) = oneshot::channel();
        self.commands.push(Command::Ask(question(sender))).ok()?;
        answer.await.ok()
    }

    pub(super) fn has_ended(&self) -> bool {
        lock(&self.last).is_some()
    }

    /// Waits until the hub has ended. Returns what it knew last.
    pub(super) async fn ended(&self) -> Snapshot<K>
    where
        K: Clone,
    {
        loop {
            let over = self.over.notified();
            let last = lock(&self.last).clone();
            if let Some(last) = last {
                return last;
            }
            over.await;
        }
    }

    /// Discards what waits. Remembers first for whom it waits.
    pub(super) async fn give_up(&self)
    where
        K: Clone,
    {
        if let Some(snapshot) = self.answer(Question::WhoHangs).await {
            let mut hung = lock(&self.hung);
            if hung.is_empty() {
                *hung = snapshot.hung;
            }
        }
        self.life.advance(Phase::Aborting);
        // If the hub has ended by now, there is nothing to discard.
        let _ = self.commands.push(Command::Order(Order::Abort));
    }

    /// The members that were given up.
    pub(super) fn hung(&self) -> Vec<Member<K>>
    where
        K: Clone,
    {
        lock(&self.hung).clone()
    }

    /// Tells everyone that the task is gone. Its demux was dropped before.
    pub(super) fn end(&self, last: Snapshot<K>, panics: &mut Panics) {
        self.close();
        // One by one: a second panic in one drop would abort the process.
        for item in self.items.end() {
            panics.catch(|| drop(item));
        }
        for command in self.commands.end() {
            panics.catch(|| drop(command));
        }
        if let Some(history) = &self.history {
            let (keys, items) = history.clear();
            for key in keys {
                panics.catch(|| drop(key));
            }
            for item in items {
                panics.catch(|| drop(item));
            }
        }
        for member in self.watchlist.end() {
            panics.catch(|| drop(member));
        }
        let asked = std::mem::take(&mut *lock(&self.asked));
        for question in asked {
            panics.catch(|| drop(question));
        }
        panics.catch(|| self.end_keyless());
        *lock(&self.last) = Some(last);
        self.over.notify_waiters();
    }

    /// Completes the counts of the demux.
    pub(super) fn count(&self, stats: &mut Stats) {
        let counts = &self.life.counts;
        stats.lost = counts.lost.load(Relaxed);
        stats.waiting += self.items.len() as u64;
        if let Some(history) = &self.history {
            (stats.replay_items, stats.replay_keys) = history.len();
        }
        // For the demux, a topic is one attachment.
        let copies = counts.copies.load(Relaxed);
        let joined = counts.joined.load(Relaxed);
        let members = counts.members.load(Relaxed);
        let totals = &mut stats.totals;
        totals.copies = totals.copies.wrapping_add(copies);
        totals.delivered = totals.delivered.wrapping_add(copies);
        totals.attached += joined;
        totals.detached = (totals.detached + joined).saturating_add_signed(-members);
        let members = isize::try_from(members).unwrap_or(isize::MAX);
        stats.receiving = stats.receiving.saturating_add_signed(members);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
