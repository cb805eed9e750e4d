//! [`Topics`]: the topics of the keys that have subscriptions on the default terms.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;

use stream_demux::{Attach, Lease};

use super::shared::{Command, Shared, lock};
use super::sink::HubSink;
use super::terms::Terms;
use crate::topic::{Cursor, Topic};

/// The table keeps room for this many keys.
const KEYS_KEPT: usize = 64;

/// A topic that is over, and its key.
pub(super) type OverTopic<K, V> = (K, Topic<V>);

/// `Hash`, `Eq` and `Clone` of keys run under its lock, and nothing else of a user.
pub(super) struct Topics<K, V> {
    table: Mutex<HashMap<K, Topic<V>>>,
    /// A subscription can be dropped where nothing is known of its key.
    forget: fn(&Self, &K) -> Option<OverTopic<K, V>>,
}

impl<K: Hash + Eq, V> Topics<K, V> {
    pub(super) fn new() -> Self {
        Self { table: Mutex::new(HashMap::new()), forget: Self::forget_now }
    }

    fn forget_now(&self, key: &K) -> Option<OverTopic<K, V>> {
        let mut table = lock(&self.table);
        if table.get(key).is_none_or(|topic| topic.subscribers().is_some()) {
            return None;
        }
        let over = table.remove_entry(key);
        // Twice the room that is needed, so that shrinking costs little for each that goes.
        if table.capacity() / 8 > table.len().max(KEYS_KEPT) {
            let room = table.len() * 2;
            table.shrink_to(room);
        }
        over
    }

    /// How many subscribers the topic of a key has beside its sink, which is an attachment.
    pub(super) fn further_subscribers(&self, key: &K) -> isize {
        let table = lock(&self.table);
        let subscribers = table.get(key).and_then(Topic::subscribers);
        subscribers.map_or(0, |subscribers| isize::try_from(subscribers).unwrap_or(isize::MAX) - 1)
    }
}

impl<K, V> Topics<K, V> {
    /// Forgets the topic of a key, if it is over. Returns what is no longer needed.
    #[must_use = "it is dropped after locks are released"]
    pub(super) fn forget(&self, key: &K) -> Option<OverTopic<K, V>> {
        (self.forget)(self, key)
    }
}

impl<K: Hash + Eq + Clone, V> Shared<K, V> {
    /// Adds a reader to the topic of a key. The first one attaches the topic.
    ///
    /// The order to attach it is given before another reader can join: what that one publishes
    /// afterwards is routed to the topic.
    pub(super) fn join_topic(&self, key: &K) -> Cursor<V> {
        let mut table = lock(&self.topics.table);
        let known = table.get(key);
        if let Some(cursor) = known.and_then(Topic::join) {
            return cursor;
        }
        // The old key, too: `insert` would drop the new one under the lock.
        let over = if known.is_some() { table.remove_entry(key) } else { None };
        let terms = Terms::new();
        let (topic, sink, cursor) = Topic::new(terms.buffer, &self.life);
        let mut lease = Lease::new();
        let attach = Attach::new(key.clone(), HubSink::Topic(Box::new(sink))).leased(&mut lease);
        topic.hold(lease);
        table.insert(key.clone(), topic);
        let order = terms.apply(attach, self.tick).into();
        // If the hub has ended, the sink is dropped, and the topic is over.
        let refused = self.commands.push(Command::Order(order));
        drop(table);
        drop(refused);
        drop(over);
        cursor
    }

    /// Returns `true` if subscriptions on these terms share the topic of their key.
    pub(super) fn shares(&self, terms: &Terms) -> bool {
        let replays = terms.replay > 0 && self.history.is_some();
        self.shares_topics && !replays && terms.replay(0) == Terms::new()
    }
}
