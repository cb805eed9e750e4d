//! [`Keys`]: what a subscription is subscribed to.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use stream_demux::{Attach, Lease, Overflow};

use super::shared::{Command, Replay, Shared, Start};
use super::sink::{Begin, HubSink};
use super::source::Source;
use super::terms::Terms;
use super::topics::OverTopic;
use super::watch::Watch;
use crate::inbox::{Bell, Inbox, InboxSink, inbox_of_hub};
use crate::topic::{CloneSome, Handover, Left};

/// The table of keys keeps room for this many.
const KEYS_KEPT: usize = 16;

/// The keys of a subscription that reads a topic, or an inbox.
pub(super) struct Keys<K, V> {
    shared: Arc<Shared<K, V>>,
    terms: Terms,
    /// The only key, if the subscription reads a topic.
    topic: Option<K>,
    /// The keys of an inbox.
    table: HashMap<K, Hold<V>>,
    inbox: Option<Bell<V>>,
    /// The key of the topic that the subscription has read before its inbox.
    former_topic: Option<K>,
    /// Its number among the subscriptions without keys.
    keyless: Option<u64>,
    is_over: bool,
}

/// A key of an inbox.
struct Hold<V> {
    lease: Lease,
    /// If the terms ask for one.
    watch: Option<Arc<Watch>>,
    /// The reader comes from the topic of the key.
    handover: Option<Arc<Handover<V>>>,
}

impl<V> Hold<V> {
    /// Returns `true` if the limit of the key is not reached.
    fn is_live(&self) -> bool {
        self.watch.as_ref().is_none_or(|watch| !watch.is_used_up())
    }

    /// Lets a key go that has reached its limit: its sink is about to be closed, and is not torn off
    /// before.
    fn let_go(&mut self) {
        std::mem::take(&mut self.lease).disarm();
    }
}

/// What a change of the keys leaves behind. Dropped after locks are released: that wakes readers, and
/// runs what a user does when a key or an item is dropped.
pub(super) struct Leftovers<K, V> {
    /// What the reader has left in its topic.
    left: Option<Left<V>>,
    /// The sink that kept the inbox open while there were no keys.
    keyless: Option<InboxSink<V>>,
    /// A hub that has ended refuses to attach sinks, and to keep one open. What reads from them ends.
    refused: Vec<Command<K, V>>,
    refused_keyless: Option<InboxSink<V>>,
    topic: Option<OverTopic<K, V>>,
    removed: Option<(K, Hold<V>)>,
    /// Keys that had reached their limits.
    used_up: Vec<(K, Hold<V>)>,
    /// Keys that were refused, and clones.
    keys: Vec<K>,
}

impl<K, V> Leftovers<K, V> {
    pub(super) fn nothing() -> Self {
        Self {
            left: None,
            keyless: None,
            refused: Vec::new(),
            refused_keyless: None,
            topic: None,
            removed: None,
            used_up: Vec::new(),
            keys: Vec::new(),
        }
    }
}

/// Goes on with the fields, in their order.
impl<K, V> Drop for Leftovers<K, V> {
    fn drop(&mut self) {
        if let Some(left) = self.left.take() {
            left.wake_reader();
        }
        if let Some(sink) = self.keyless.take() {
            sink.retire();
        }
    }
}

impl<K: Hash + Eq + Clone, V> Keys<K, V> {
    /// Subscribes to keys. Returns what comes from them, too.
    pub(super) fn new(
        shared: &Arc<Shared<K, V>>,
        keys: impl IntoIterator<Item = K>,
        terms: Terms,
        clone: CloneSome<V>,
    ) -> (Self, Source<V>) {
        let mut new = Self {
            shared: Arc::clone(shared),
            terms,
            topic: None,
            table: HashMap::new(),
            inbox: None,
            former_topic: None,
            keyless: None,
            is_over: false,
        };
        let mut keys = keys.into_iter();
        if shared.shares(&terms) {
            if let Some(first) = keys.next() {
                let Some(other) = keys.find(|key| *key != first) else {
                    let cursor = shared.join_topic(&first);
                    new.topic = Some(first);
                    return (new, Source::of_topic(cursor, clone));
                };
                let source = new.open_inbox([first, other].into_iter().chain(keys));
                return (new, source);
            }
        }
        let source = new.open_inbox(keys);
        (new, source)
    }

    fn open_inbox(&mut self, keys: impl IntoIterator<Item = K>) -> Source<V> {
        let (sink, inbox) = self.make_inbox();
        self.attach(keys, &mut Leftovers::nothing());
        sink.retire(); // there are others by now
        Source::of_inbox(inbox)
    }

    fn make_inbox(&mut self) -> (InboxSink<V>, Inbox<V>) {
        let Terms { buffer, overflow, .. } = self.terms;
        let (sink, inbox) = inbox_of_hub(buffer, overflow, &self.shared.life);
        self.inbox = Some(inbox.bell());
        (sink, inbox)
    }

    /// Leaves the topic for an inbox, if this is a subscription to a topic.
    pub(super) fn move_to_inbox(&mut self, source: &mut Source<V>) {
        let Some(key) = self.topic.take() else { return };
        let (sink, inbox) = self.make_inbox();
        let handover = source.move_to(inbox);
        self.former_topic = Some(key.clone());
        let mut leftovers = Leftovers::nothing();
        let command = self.hold(key, handover, &mut leftovers);
        drop(self.shared.attach(&self.terms, command));
        sink.retire();
    }

    /// Subscribes to one more key. Returns `false` if it is subscribed already.
    pub(super) fn add(&mut self, key: K, leftovers: &mut Leftovers<K, V>) -> bool {
        if self.is_over || self.table.get(&key).is_some_and(Hold::is_live) {
            leftovers.keys.push(key);
            return false;
        }
        self.attach([key], leftovers);
        true
    }

    /// Leaves a key. Returns `false` if it is not subscribed.
    pub(super) fn remove<Q>(&mut self, key: &Q, leftovers: &mut Leftovers<K, V>) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Some((key, mut hold)) = self.table.remove_entry(key) else { return false };
        let is_live = hold.is_live();
        if is_live {
            if let Some(handover) = &hold.handover {
                leftovers.left = Some(handover.cut());
                // The reader has left its topic.
                if let Some(key) = self.former_topic.take() {
                    leftovers.topic = self.shared.topics.forget(&key);
                    leftovers.keys.push(key);
                }
            }
            if self.keys().next().is_none() {
                self.stay_open(leftovers);
            }
            std::mem::take(&mut hold.lease).detach();
        } else {
            hold.let_go();
        }
        leftovers.removed = Some((key, hold));
        if self.table.capacity() / 8 > self.table.len().max(KEYS_KEPT) {
            self.table.shrink_to(self.table.len() * 2);
        }
        is_live
    }

    fn attach(&mut self, keys: impl IntoIterator<Item = K>, leftovers: &mut Leftovers<K, V>) {
        let mut commands = Vec::new();
        for key in keys {
            match self.table.get(&key).map(Hold::is_live) {
                Some(true) => {
                    leftovers.keys.push(key);
                    continue;
                }
                Some(false) => self.forget(&key, leftovers),
                None => {}
            }
            commands.extend(self.hold(key, None, leftovers));
        }
        if let Err(refused) = self.shared.attach(&self.terms, commands) {
            leftovers.refused = refused;
        }
        if self.table.is_empty() {
            self.stay_open(leftovers);
        } else if let Some(id) = self.keyless.take() {
            leftovers.keyless = self.shared.forget_keyless(id);
        }
    }

    /// Enters a key that is not in the table, and makes its sink: with a watch, if the terms ask for
    /// one. Returns the command to attach it, unless the reader is gone. With a handover, the reader
    /// comes from the topic of the key.
    fn hold(
        &mut self,
        key: K,
        handover: Option<Arc<Handover<V>>>,
        leftovers: &mut Leftovers<K, V>,
    ) -> Option<Command<K, V>> {
        self.forget_used_up(leftovers);
        let Some(sink) = self.inbox.as_ref().and_then(Bell::sink) else {
            leftovers.keys.push(key);
            return None;
        };
        let id = sink.id();
        let needs_watch = self.terms.limit.is_some() || self.terms.overflow == Overflow::Wait;
        let watch = needs_watch.then(|| self.shared.watch(&key, &self.terms, self.inbox.clone()));
        let mut sink = match &watch {
            Some(watch) => HubSink::watched(sink, Arc::clone(watch)),
            None => HubSink::Inbox(sink),
        };
        let start = match &handover {
            Some(handover) => Some(Start { through: handover.through(), replay: None }),
            None => self.replay(&key, id),
        };
        if let Some(start) = &start {
            let through = Arc::clone(&start.through);
            let begin = Begin { through, from_topic: handover.is_some() };
            sink = HubSink::starting(sink, begin, &self.shared.life);
        }
        let mut lease = Lease::new();
        let attach = Attach::new(key.clone(), sink).leased(&mut lease);
        self.table.insert(key, Hold { lease, watch, handover });
        Some(self.shared.attaching(&self.terms, attach, start))
    }

    /// What the subscription to a key begins with, if the terms ask for something.
    fn replay(&self, key: &K, sink: u32) -> Option<Start<K, V>> {
        self.shared.history.as_ref()?;
        let most = if self.terms.overflow == Overflow::Conflate { 1 } else { self.terms.buffer };
        let items = self.terms.replay.min(most);
        let inbox = self.inbox.clone().filter(|_| items > 0)?;
        let replay = Some(Replay { key: key.clone(), items, inbox, sink });
        Some(Start { through: Arc::default(), replay })
    }

    /// Without keys, the inbox stays open until the hub ends.
    fn stay_open(&mut self, leftovers: &mut Leftovers<K, V>) {
        if self.keyless.is_some() {
            return;
        }
        let Some(sink) = self.inbox.as_ref().and_then(Bell::sink) else { return };
        match self.shared.keep_open(sink) {
            Ok(id) => self.keyless = Some(id),
            Err(refused) => leftovers.refused_keyless = Some(refused),
        }
    }

    /// Forgets a key that has reached its limit.
    fn forget(&mut self, key: &K, leftovers: &mut Leftovers<K, V>) {
        if let Some((key, mut hold)) = self.table.remove_entry(key) {
            hold.let_go();
            leftovers.used_up.push((key, hold));
        }
    }

    /// Forgets the keys that have reached their limits, if the table is full. As much room again is
    /// left then, so that looking through the table costs little for each key that is added.
    fn forget_used_up(&mut self, leftovers: &mut Leftovers<K, V>) {
        if self.terms.limit.is_none() || self.table.len() < self.table.capacity() {
            return;
        }
        let used_up = self.table.iter().filter(|(_, hold)| !hold.is_live());
        let used_up = used_up.map(|(key, _)| key.clone()).collect::<Vec<_>>();
        for key in used_up {
            self.forget(&key, leftovers);
            leftovers.keys.push(key);
        }
        self.table.reserve(self.table.len().max(KEYS_KEPT));
        self.table.shrink_to(4 * self.table.len().max(KEYS_KEPT));
    }
}

impl<K, V> Keys<K, V> {
    /// The only key, if the subscription reads a topic.
    pub(super) fn topic(&self) -> Option<&K> {
        self.topic.as_ref()
    }

    /// The keys that are subscribed, in no particular order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        let live = self.table.iter().filter(|(_, hold)| hold.is_live());
        self.topic.iter().chain(live.map(|(key, _)| key))
    }

    /// The reader is gone, and has left its topic: leaves all keys. What it returns is to be dropped
    /// after locks are released.
    pub(super) fn end(&mut self) -> impl Sized + use<K, V> {
        self.is_over = true;
        let keyless = self.keyless.take().and_then(|id| self.shared.forget_keyless(id));
        // It has one of these at most.
        let topic_key = self.topic.take().or_else(|| self.former_topic.take());
        let topic = topic_key.as_ref().and_then(|key| self.shared.topics.forget(key));
        (keyless, topic_key, topic, std::mem::take(&mut self.table))
    }
}

/// Dropped after the [`Source`] that belongs to it.
impl<K, V> Drop for Keys<K, V> {
    fn drop(&mut self) {
        drop(self.end());
    }
}

/// Prints the keys that are subscribed.
impl<K: fmt::Debug, V> fmt::Debug for Keys<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys()).finish()
    }
}
