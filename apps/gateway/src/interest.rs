//! The keys that clients subscribe to, the bindings of the queue to them, and what is known of
//! both.
//!
//! A client is told of a gap before it hears a later message, unless its key is known to have been
//! bound without interruption. So a key is bound only when the broker says so, and this remains
//! known until
//!
//! 1. its binding is about to be removed, because the key has lost its last subscription;
//! 2. the queue or the exchange was lost ([`interrupt_all`](Interest::interrupt_all)). A session
//!    compares both with those of the last session, so a lost connection is not an interruption;
//! 3. a message that the gateway published afterwards was not routed
//!    ([`interrupt`](Interest::interrupt)).
//!
//! No earlier session changes a binding later: see the lock of [`crate::amqp`].
//!
//! The other way round, a binding that no client wants is not forgotten: a change that was not
//! confirmed when a session ended is remembered, and the next session removes the binding. If there
//! is one nevertheless, it is removed when a message comes for which there is no subscription.
//!
//! When a key is bound again, the history skips a position: clients that return are told of the gap
//! by their position ([`crate::history`]). Clients that rely on the key and are still there are
//! told directly ([`Interruption`]). In case 2, the session ends, and the next one binds all wanted
//! keys and tells the clients before it consumes. So no client hears a later message first, and one
//! that then loads its state misses nothing. In case 3, the session goes on for the sake of the other
//! keys: the clients of the key are told before it is bound again, and told again afterwards.
//!
//! A headers exchange compares each message with every binding. If more than [`MANY`] keys are wanted
//! there, the queue is bound to [`ALL`] messages instead, and those that no client wants are
//! unmatched. In either direction, the new bindings are made before the old ones are removed.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Duration, Instant};

use crate::board::Board;
use crate::config::BrokerConfig;
use crate::history::History;
use crate::lock::Lock;
use crate::message::Key;
use crate::pending::Pending;
use crate::subscription::Terms;

/// Keys whose bindings are changed at once, at most.
pub const BATCH: usize = 64;
/// How many keys that are known to be unbound are kept.
const UNBOUND: usize = 10_000;
/// How many keys may wait for their bindings to be removed when one more is rechecked. If the queue
/// is bound to a pattern by somebody else, each message may have a new key, and they come faster
/// than the broker answers: it takes some seconds for as many.
const RECHECKED: usize = 1_000;
/// The key that stands for all: its binding matches every message of a headers exchange. No client can
/// subscribe to it, and it is the key of messages without the header.
pub const ALL: &str = "";
/// On a headers exchange, the queue is bound to [`ALL`] if more than so many keys are wanted.
///
/// RabbitMQ 3.10 takes 1.6 us longer for each message and binding, on one core of two: 0.2 ms for a
/// message are 0.3 with 128 bindings, 0.9 with 512 and 7 with 4,096. That the queue gets a message which
/// no client wants, and the gateway acknowledges it, takes about as long as 128 bindings do.
const MANY: usize = 128;
/// The queue is bound to single keys again when fewer are wanted. So a client that comes and goes
/// changes nothing, unless it has as many keys itself.
const FEW: usize = MANY / 2;
/// A message that was published before a binding has changed arrives within this time.
const CERTAIN: Duration = Duration::from_secs(5);

/// Tracks wanted and bound keys. The demux reports each subscription that is attached, and each
/// that has ended, also if it never received. Only the current state is kept, and the bindings are
/// changed to match it.
pub struct Interest {
    /// Bindings are changed.
    pub follows: bool,
    /// The exchange compares each message with every binding.
    compares_all: bool,
    keys: Lock<Keys>,
    changed: Notify,
    board: Arc<Board>,
    interruptions: mpsc::UnboundedSender<Interruption>,
}

/// What is to be done for the clients of some keys. Handled by the demux task.
pub struct Interruption {
    pub keys: Interrupted,
    pub cause: Cause,
}

#[derive(Debug)]
pub enum Cause {
    /// Messages may be missing. Clients that rely on the key since the interruption of this number
    /// know of it. Answered when the clients are told.
    Gap { number: u64, told: oneshot::Sender<()> },
    /// The keys must not be read any more: their subscriptions end.
    Forbidden,
}

/// The keys of an [`Interruption`].
#[derive(Debug, PartialEq)]
pub enum Interrupted {
    All,
    Some(HashSet<Key>),
}

impl Interrupted {
    pub fn contains(&self, key: &Key) -> bool {
        match self {
            Self::All => true,
            Self::Some(keys) => keys.contains(key),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Binding {
    /// A change is not confirmed.
    Unknown,
    Bound {
        since: Instant,
    },
    Unbound {
        since: Instant,
    },
}

struct Keys {
    /// `true` while a session updates the bindings.
    is_followed: bool,
    /// The keys of subscriptions, and how many each has.
    wanted: HashMap<Key, usize>,
    /// The queue is to be bound to [`ALL`], and to no single key.
    wants_all: bool,
    /// Subscriptions to notify once the queue is bound to their key.
    waiting: HashMap<Key, Vec<Arc<Terms>>>,
    /// Of other keys, nothing is known.
    bindings: HashMap<Key, Binding>,
    /// Keys whose bindings may not match.
    unsure: Pending,
    /// Keys whose clients are not told yet.
    interrupted: Interrupted,
    /// The number of the last interruption, counted from 1.
    number: u64,
}

/// A key, whether the queue is to be bound to it, and whether its binding must be changed.
pub type Change = (Key, bool, bool);

impl Keys {
    /// Returns the time since when the queue is known to be bound to this key alone.
    fn bound_since(&self, key: &str) -> Option<Instant> {
        match self.bindings.get(key) {
            Some(Binding::Bound { since }) => Some(*since),
            _ => None,
        }
    }

    /// Returns `true` if the queue is known to be bound to all keys.
    fn has_all(&self) -> bool {
        self.bound_since(ALL).is_some()
    }

    /// Returns `true` if the queue is known to be bound to this key, alone or with all.
    fn is_bound(&self, key: &str) -> bool {
        self.bound_since(key).is_some() || self.has_all()
    }

    /// Returns `true` if the queue is known to be bound to each wanted key alone.
    fn has_each(&self) -> bool {
        self.wanted.keys().all(|key| self.bound_since(key).is_some())
    }

    /// Returns `true` if the queue is to be bound to this key.
    fn needs(&self, key: &str) -> bool {
        if key == ALL {
            self.wants_all || self.has_all() && !self.has_each()
        } else {
            self.wanted.contains_key(key) && !(self.wants_all && self.has_all())
        }
    }

    /// Returns the keys that the queue is to be bound to in the end.
    fn needed(&self) -> Vec<Key> {
        if self.wants_all { vec![ALL.into()] } else { self.wanted.keys().cloned().collect() }
    }
}

impl Interest {
    pub fn new(
        config: &BrokerConfig,
        board: Arc<Board>,
        interruptions: mpsc::UnboundedSender<Interruption>,
    ) -> Self {
        let keys = Keys {
            is_followed: false,
            wanted: HashMap::new(),
            wants_all: false,
            waiting: HashMap::new(),
            bindings: HashMap::new(),
            unsure: Pending::new(),
            interrupted: Interrupted::All, // nothing is known of the time before
            number: 1,
        };
        Self {
            follows: config.binding.is_empty(),
            compares_all: config.key_header.is_some(),
            keys: Lock::new(keys),
            changed: Notify::new(),
            board,
            interruptions,
        }
    }

    /// Called when a subscription is attached, before its history is read: from now on, the binding
    /// is not removed. Returns the number of the last interruption.
    pub fn want(&self, key: &Key) -> u64 {
        let keys = &mut *self.keys.lock();
        *keys.wanted.entry(Key::clone(key)).or_default() += 1;
        if self.compares_all && !keys.wants_all && keys.wanted.len() > MANY {
            keys.wants_all = true;
            self.mark_unsure(keys, ALL.into(), None);
        }
        keys.number
    }

    /// Called when a subscription has ended whose key was [wanted](Self::want).
    pub fn unwant(&self, key: &Key) {
        let keys = &mut *self.keys.lock();
        let Some(count) = keys.wanted.get_mut(key) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        keys.wanted.remove(key);
        if let Some(history) = self.history().filter(|_| keys.has_all()) {
            history.uncover(key); // or it would keep an entry for each key that was ever wanted
        }
        if keys.wants_all && keys.wanted.len() < FEW {
            keys.wants_all = false;
            for key in keys.needed() {
                self.mark_unsure(keys, key, None);
            }
            self.mark_unsure(keys, ALL.into(), None);
        }
        if matches!(keys.bindings.get(key), Some(Binding::Bound { .. } | Binding::Unknown)) {
            self.mark_unsure(keys, Key::clone(key), None);
        } else {
            // The key was never bound: drop its entry.
            keys.unsure.remove(key);
        }
    }

    /// Notifies a subscription when the queue is bound to its key: at once, if this is known, so
    /// that it does not wait for the bindings of others.
    pub fn notify_when_bound(&self, terms: Arc<Terms>) {
        let mut keys = self.keys.lock();
        let (key, client) = (Key::clone(&terms.key), terms.client);
        if keys.is_followed && keys.is_bound(&key) {
            let at = self.cover(&key);
            if !keys.wants_all && keys.bound_since(&key).is_none() {
                self.mark_unsure(&mut keys, key, Some(client)); // before `ALL` is unbound
            }
            let number = keys.number;
            drop(keys); // as this calls foreign wakers
            terms.subscribed(at, number);
            return;
        }
        keys.waiting.entry(Key::clone(&key)).or_default().push(terms);
        self.mark_unsure(&mut keys, key, Some(client));
    }

    /// Removes a subscription that has ended.
    pub fn remove(&self, terms: &Terms) {
        let keys = &mut *self.keys.lock();
        let Some(waiting) = keys.waiting.get_mut(&terms.key) else { return };
        waiting.retain(|other| other.id != terms.id);
        if waiting.iter().all(|other| other.client != terms.client) {
            keys.unsure.leave(&terms.key, terms.client);
        }
        if waiting.is_empty() {
            keys.waiting.remove(&terms.key);
        }
    }

    /// Called for a message without a subscription: the queue may still be bound to its key since
    /// an earlier run, or again. Does nothing while [many](RECHECKED) keys wait: the next message
    /// asks again.
    pub fn recheck(&self, key: &str) {
        let keys = &mut *self.keys.lock();
        if !self.follows || keys.has_all() || keys.unsure.len_unasked() >= RECHECKED {
            return;
        }
        self.recheck_one(keys, key);
        if self.compares_all {
            self.recheck_one(keys, ALL);
        }
    }

    fn recheck_one(&self, keys: &mut Keys, key: &str) {
        match keys.bindings.get_mut(key) {
            Some(Binding::Unbound { since }) if since.elapsed() <= CERTAIN => return,
            Some(binding @ Binding::Unbound { .. }) => *binding = Binding::Unknown,
            _ => {}
        }
        self.mark_unsure(keys, key.into(), None);
    }

    /// The history, if it depends on the bindings.
    fn history(&self) -> Option<&History> {
        self.board.history.as_ref().filter(|_| self.follows)
    }

    /// Called when the queue is bound to the key, alone or with all. Returns the position since when,
    /// unless it was before.
    fn cover(&self, key: &Key) -> Option<u64> {
        self.history()?.cover(key)
    }

    /// Has all bindings to single keys removed.
    fn unbind_single(&self, keys: &mut Keys) {
        keys.unsure.clear();
        let bindings = keys.bindings.iter();
        let bound = bindings.filter(|(_, binding)| !matches!(binding, Binding::Unbound { .. }));
        for (key, _) in bound.filter(|(key, _)| ***key != *ALL) {
            keys.unsure.insert(Key::clone(key), None);
        }
        self.changed.notify_one();
    }

    /// `client` waits for the binding of the key.
    fn mark_unsure(&self, keys: &mut Keys, key: Key, client: Option<SocketAddr>) {
        if keys.is_followed {
            keys.unsure.insert(key, client);
            self.changed.notify_one();
        }
    }

    /// Starts a session. Returns the keys to bind at first.
    pub fn follow(&self) -> Vec<Key> {
        let keys = &mut *self.keys.lock();
        keys.is_followed = true;
        let bindings = keys.bindings.keys();
        let unneeded: Vec<_> = bindings.filter(|key| !keys.needs(key)).cloned().collect();
        for key in unneeded {
            keys.unsure.insert(key, None);
        }
        self.changed.notify_one();
        keys.needed()
    }

    /// Ends the session. Keys that are bound remain so. Those that may be bound are remembered, so
    /// that the next session can remove their bindings.
    pub fn unfollow(&self) {
        let keys = &mut *self.keys.lock();
        keys.is_followed = false;
        keys.bindings.retain(|_, binding| !matches!(binding, Binding::Unbound { .. }));
        keys.unsure.clear();
    }

    /// Records that the queue or the exchange was lost, or that another gateway has consumed.
    pub fn interrupt_all(&self) {
        self.interrupt_each(&mut self.keys.lock());
    }

    fn interrupt_each(&self, keys: &mut Keys) {
        // If another gateway has consumed, the bindings are still there.
        keys.bindings.retain(|_, binding| !matches!(binding, Binding::Unbound { .. }));
        keys.bindings.values_mut().for_each(|binding| *binding = Binding::Unknown);
        keys.interrupted = Interrupted::All;
        keys.number += 1;
        if let Some(history) = &self.board.history {
            history.uncover_all();
        }
    }

    /// Records that a message of this key, which the gateway has published then, was not routed. If
    /// the queue should have been bound to the key, it is bound again. Returns `true` if it should have
    /// been bound to all keys: the session must end.
    #[must_use]
    pub fn interrupt(&self, key: &str, published: Instant) -> bool {
        let keys = &mut *self.keys.lock();
        let was_bound = |key: &str| keys.bound_since(key).is_some_and(|since| since <= published);
        if was_bound(ALL) {
            self.interrupt_each(keys);
            return true;
        }
        if !was_bound(key) {
            return false;
        }
        let key = Key::from(key);
        keys.bindings.insert(Key::clone(&key), Binding::Unknown);
        keys.number += 1;
        if let Some(history) = &self.board.history {
            history.uncover(&key);
        }
        if let Interrupted::Some(interrupted) = &mut keys.interrupted {
            interrupted.insert(Key::clone(&key));
        }
        self.mark_unsure(keys, key, None);
        false
    }

    /// Returns those of the keys whose bindings were removed, and whose clients are to be told: also
    /// those that are bound again with all.
    pub fn removed_among(&self, changes: &[Change]) -> HashSet<Key> {
        let keys = self.keys.lock();
        let Interrupted::Some(interrupted) = &keys.interrupted else { return HashSet::new() };
        if changes.iter().any(|(key, is_needed, _)| **key == *ALL && *is_needed) {
            return interrupted.clone();
        }
        let removed = changes.iter().filter(|(key, ..)| interrupted.contains(key));
        removed.map(|(key, ..)| Key::clone(key)).collect()
    }

    /// Tells the clients of keys that are about to be bound again: so they hear no later message
    /// first. They are told once more when the keys are bound, by this session or the next one.
    pub async fn tell_of_removed(&self, removed: &HashSet<Key>) {
        let number = {
            let keys = &mut *self.keys.lock();
            keys.number += 1;
            keys.number - 1
        };
        self.tell_of(Interrupted::Some(removed.clone()), number).await;
    }

    /// Tells the clients of keys that are bound again: if they have loaded their state before, they
    /// may have missed messages since then.
    pub async fn tell_of_bound(&self, removed: HashSet<Key>) {
        let number = {
            let keys = &mut *self.keys.lock();
            if let Interrupted::Some(interrupted) = &mut keys.interrupted {
                interrupted.retain(|key| !removed.contains(key));
            }
            keys.number
        };
        self.tell_of(Interrupted::Some(removed), number).await;
    }

    async fn tell_of(&self, keys: Interrupted, number: u64) {
        let (told, done) = oneshot::channel();
        let cause = Cause::Gap { number, told };
        let _ = self.interruptions.send(Interruption { keys, cause });
        let _ = done.await; // fails only when the gateway stops
    }

    /// Returns `true` if the queue is known to be bound to this key.
    pub fn is_bound(&self, key: &str) -> bool {
        self.follows && self.keys.lock().is_bound(key)
    }

    /// Called when the wanted keys are bound, and before messages are consumed. Tells the clients
    /// of keys that were interrupted.
    pub async fn tell(&self) {
        let (interrupted, number) = {
            let keys = &mut *self.keys.lock();
            let none = Interrupted::Some(HashSet::new());
            if keys.interrupted == none {
                return;
            }
            if let Some(history) = self.board.history.as_ref().filter(|_| !self.follows) {
                history.cover_all();
            }
            (std::mem::replace(&mut keys.interrupted, none), keys.number)
        };
        self.tell_of(interrupted, number).await;
    }

    /// Returns some keys whose bindings may not match.
    pub async fn next(&self, most: usize) -> Vec<Change> {
        loop {
            let changed = self.changed.notified();
            {
                let keys = &mut *self.keys.lock();
                if keys.bindings.len() > UNBOUND + keys.wanted.len() + keys.unsure.len() {
                    keys.bindings.retain(|_, binding| !matches!(binding, Binding::Unbound { .. }));
                }
                let some: Vec<Key> = std::iter::from_fn(|| keys.unsure.pop()).take(most).collect();
                if !some.is_empty() {
                    return some.into_iter().map(|key| self.change(keys, key, false)).collect();
                }
            }
            changed.await;
        }
    }

    /// Returns the keys that the queue is to be bound to.
    pub fn needed(&self) -> Vec<Key> {
        self.keys.lock().needed()
    }

    /// Returns how to bind these keys again, or for the first time in a session.
    pub fn again(&self, some: &[Key]) -> Vec<Change> {
        let keys = &mut *self.keys.lock();
        some.iter().map(|key| self.change(keys, Key::clone(key), true)).collect()
    }

    fn change(&self, keys: &mut Keys, key: Key, again: bool) -> Change {
        keys.unsure.remove(&key);
        let is_needed = keys.needs(&key);
        let is_as_needed = match keys.bindings.get(&key) {
            Some(Binding::Bound { .. }) => is_needed,
            Some(Binding::Unbound { .. }) => !is_needed,
            _ => false,
        };
        if !is_as_needed {
            keys.bindings.insert(Key::clone(&key), Binding::Unknown);
            let has_all = keys.wanted.contains_key(&key) && keys.has_all();
            if let Some(history) = self.history().filter(|_| !has_all) {
                history.uncover(&key);
            }
        }
        (key, is_needed, !is_as_needed || again && is_needed)
    }

    /// Called when the broker does not allow these keys to be bound or unbound. Ends their
    /// subscriptions.
    ///
    /// The queue may be bound to them nevertheless, from the time before. Then messages come for
    /// which there is no subscription, and the broker is [asked again](Self::recheck).
    pub fn refused(&self, some: HashSet<Key>) {
        // Without the lock, as there may be many messages to drop. No key is covered meanwhile: that is
        // done by the session, which calls this.
        if let Some(history) = &self.board.history {
            for key in &some {
                history.forbid(key);
            }
        }
        let (mut waiting, mut others) = (Vec::new(), HashSet::new());
        {
            let keys = &mut *self.keys.lock();
            for key in some {
                keys.bindings.insert(Key::clone(&key), Binding::Unbound { since: Instant::now() });
                let new = keys.waiting.remove(&key).unwrap_or_default();
                // Subscriptions that were bound, and are not known here.
                if keys.wanted.get(&key).is_some_and(|count| *count > new.len()) {
                    others.insert(key);
                }
                waiting.extend(new);
            }
        }
        // Without the lock, as these call foreign wakers.
        for terms in waiting {
            terms.forbid();
        }
        if !others.is_empty() {
            let keys = Interrupted::Some(others);
            let _ = self.interruptions.send(Interruption { keys, cause: Cause::Forbidden });
        }
    }

    /// Called when the broker has confirmed the changes.
    pub fn changed(&self, changes: Vec<Change>) {
        let (mut bound, number);
        {
            let keys = &mut *self.keys.lock();
            (bound, number) = (Vec::new(), keys.number);
            let mut has_changed = |key: &Key, waiting: &mut HashMap<Key, Vec<Arc<Terms>>>| {
                let at = self.cover(key);
                let waiting = waiting.remove(key).unwrap_or_default();
                bound.extend(waiting.into_iter().map(|terms| (terms, at)));
            };
            let mut with_all = None;
            for (key, is_needed, _) in changes {
                let binding = keys.bindings.entry(Key::clone(&key)).or_insert(Binding::Unknown);
                if !is_needed {
                    *binding = Binding::Unbound { since: Instant::now() };
                    continue;
                }
                let is_new = *binding == Binding::Unknown;
                if is_new {
                    *binding = Binding::Bound { since: Instant::now() };
                }
                if *key == *ALL {
                    with_all = Some(is_new);
                } else {
                    has_changed(&key, &mut keys.waiting);
                }
            }
            if let Some(is_new) = with_all.filter(|_| keys.wants_all) {
                // All wanted keys, but not each time that the binding is made again: they are many.
                let reached: Vec<Key> = if is_new {
                    keys.wanted.keys().cloned().collect()
                } else {
                    keys.waiting.keys().cloned().collect()
                };
                for key in &reached {
                    has_changed(key, &mut keys.waiting);
                }
                self.unbind_single(keys);
            } else if keys.has_all() && !keys.wants_all && keys.has_each() {
                self.mark_unsure(keys, ALL.into(), None);
            }
        }
        // Without the lock, as this calls foreign wakers.
        for (terms, at) in bound {
            terms.subscribed(at, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use clap::Parser;
    use futures::channel::mpsc as futures_mpsc;
    use futures::{FutureExt, SinkExt, sink, stream};
    use stream_demux::{Attach, DemuxStreamExt, Lease};

    use super::*;
    use crate::budget::Budget;
    use crate::config::{Config, Policy};
    use crate::history::Since;
    use crate::hooks::GatewayHooks;
    use crate::message::Message;
    use crate::outlet::Gone;
    use crate::subscription::{Notice, Registry, Share, SubscribeOptions};

    type Subscription = (Arc<Terms>, futures_mpsc::UnboundedReceiver<Notice>);

    fn terms(id: u64, key: &str) -> Subscription {
        terms_of(1, id, key)
    }

    /// The client has this port.
    fn terms_of(port: u16, id: u64, key: &str) -> Subscription {
        static BOARD: LazyLock<Arc<Board>> =
            LazyLock::new(|| Arc::new(Board::new(&Config::parse_from(["gateway"]))));
        let board = Arc::clone(&BOARD);
        let share = Arc::new(Share::new(1, Arc::new(Budget::new(1)), Policy::Wait));
        let (notices, received) = futures_mpsc::unbounded();
        let client = ([127, 0, 0, 1], port).into();
        let options = SubscribeOptions::default();
        (Arc::new(Terms::new(id, key.into(), client, &options, share, notices, board)), received)
    }

    fn interest() -> (Interest, mpsc::UnboundedReceiver<Interruption>) {
        interest_of(false)
    }

    fn interest_of(compares_all: bool) -> (Interest, mpsc::UnboundedReceiver<Interruption>) {
        let options = ["gateway", "--history", "9", "--amqp", "amqp://localhost"];
        let (interruptions, received) = mpsc::unbounded_channel();
        let mut config = Config::parse_from(options);
        config.broker.key_header = compares_all.then(|| "key".to_owned());
        let board = Arc::new(Board::new(&config));
        (Interest::new(&config.broker, board, interruptions), received)
    }

    impl Interest {
        /// Does what a session does when it starts. Returns what it changes.
        fn start(&self) -> Vec<Change> {
            let changes = self.again(&self.follow());
            self.changed(changes.clone());
            let _ = self.tell().now_or_never(); // there is no demux task to answer
            changes
        }

        fn next_now(&self) -> Option<Vec<Change>> {
            self.next(BATCH).now_or_never()
        }

        /// Makes one round of changes.
        fn round(&self) -> Vec<Change> {
            let changes = self.next_now().unwrap_or_default();
            self.changed(changes.clone());
            changes
        }

        fn is_empty(&self) -> bool {
            let keys = self.keys.lock();
            keys.wanted.is_empty() && keys.waiting.is_empty() && keys.unsure.len() == 0
        }

        /// Returns `true` if a client that heard all messages up to now has not missed any.
        fn has_all(&self, key: &str, at: u64) -> bool {
            let history = self.board.history.as_ref().unwrap();
            let epoch = Some(history.epoch.clone());
            !history.since(key, &Since { at, epoch, latest: false }).has_gap
        }

        fn last(&self, key: &str) -> u64 {
            self.board.history.as_ref().unwrap().last(key)
        }
    }

    #[test]
    fn each_subscription_is_notified_once_its_key_is_bound() {
        let ((interest, _interruptions), key) = (interest(), Key::from("tea"));
        interest.start();
        let (first, mut first_notices) = terms(1, "tea");
        interest.want(&key);
        interest.notify_when_bound(first);
        let changes = interest.next_now().unwrap();
        assert_eq!(changes, [(Key::clone(&key), true, true)]);
        assert!(first_notices.try_recv().is_err(), "the binding is not confirmed yet");
        interest.changed(changes);
        assert!(matches!(first_notices.try_recv(), Ok(Notice::Subscribed(_, 1))));

        let (second, mut second_notices) = terms(2, "tea");
        interest.want(&key);
        interest.notify_when_bound(second);
        assert!(matches!(second_notices.try_recv(), Ok(Notice::Subscribed(_, 2))), "it is bound");
        assert_eq!(interest.next_now(), None);
        assert!(first_notices.try_recv().is_err());

        interest.unwant(&key);
        assert_eq!(interest.next_now(), None, "the other subscription wants it");
        interest.unwant(&key);
        assert_eq!(interest.round(), [(key, false, true)]);
        assert_eq!(interest.next_now(), None);
    }

    #[test]
    fn a_client_does_not_wait_for_all_keys_of_the_others() {
        let (interest, _interruptions) = interest();
        interest.start();
        // Another client asks for many keys, and has left as many that were bound.
        let bound: Vec<Key> = (0..1_000).map(|id| format!("left {id}").into()).collect();
        for key in &bound {
            interest.want(key);
        }
        interest.changed(interest.again(&bound));
        for (id, key) in (0..).zip(&bound) {
            interest.unwant(key);
            let (terms, _notices) = terms_of(1, id, &format!("asked {id}"));
            interest.want(&terms.key);
            interest.notify_when_bound(terms);
        }
        let (terms, mut notices) = terms_of(2, 1_000, "tea");
        interest.want(&terms.key);
        interest.notify_when_bound(terms);
        let changes = interest.round();
        assert!(changes.len() == BATCH && matches!(notices.try_recv(), Ok(Notice::Subscribed(..))));
        let removed = changes.iter().filter(|(_, is_wanted, _)| !is_wanted).count();
        assert_eq!(removed, BATCH / 2);
    }

    #[test]
    fn a_key_keeps_its_turn_while_one_of_two_subscriptions_of_a_client_waits() {
        let ((interest, _interruptions), key) = (interest(), Key::from("tea"));
        interest.start();
        let [(first, _), (second, mut notices)] = [terms(1, "tea"), terms(2, "tea")];
        let (other, _other_notices) = terms_of(2, 3, "tea");
        for terms in [&first, &second, &other] {
            interest.want(&key);
            interest.notify_when_bound(Arc::clone(terms));
        }
        for terms in [&first, &other] {
            interest.remove(terms);
            interest.unwant(&key);
        }
        assert_eq!(interest.round(), [(key, true, true)]);
        assert!(matches!(notices.try_recv(), Ok(Notice::Subscribed(..))));
    }

    #[test]
    fn subscriptions_end_if_the_broker_refuses_their_key() {
        let ((interest, mut interruptions), key) = (interest(), Key::from("closed"));
        interest.start();
        interruptions.try_recv().unwrap(); // the first session
        let refused = || interest.refused(HashSet::from([Key::clone(&key)]));

        let (terms, mut notices) = terms(1, "closed");
        interest.want(&key);
        interest.notify_when_bound(Arc::clone(&terms));
        assert_eq!(interest.next_now(), Some(vec![(Key::clone(&key), true, true)]));
        refused();
        assert!(matches!(notices.try_recv(), Ok(Notice::Evict(_, 1))) && terms.is_forbidden());
        terms.forbid();
        assert!(notices.try_recv().is_err(), "it is ending already");
        assert!(interruptions.try_recv().is_err(), "no other client is subscribed");
        interest.unwant(&key);
        assert!(interest.is_empty());
        assert_eq!(interest.next_now(), None, "the queue is not bound to it");

        // The permission is revoked while a client is subscribed, and its binding is checked.
        interest.want(&key);
        interest.again(&[Key::clone(&key)]);
        interest.changed(vec![(Key::clone(&key), true, true)]);
        let at = interest.last("closed");
        assert!(interest.has_all("closed", at));
        interest.again(&[Key::clone(&key)]);
        refused();
        let Interruption { keys, cause } = interruptions.try_recv().unwrap();
        assert!(keys.contains(&key) && matches!(cause, Cause::Forbidden));
        assert!(!interest.has_all("closed", at), "the binding may be removed at any time");
    }

    #[test]
    fn nothing_is_kept_of_keys_that_come_and_go_while_the_broker_is_away_or_slow() {
        let (interest, _interruptions) = interest();
        for is_followed in [false, true] {
            for id in 0..1_000 {
                let (terms, _notices) = terms(id, &id.to_string());
                interest.want(&terms.key);
                interest.notify_when_bound(Arc::clone(&terms));
                interest.remove(&terms);
                interest.unwant(&terms.key);
            }
            assert!(interest.is_empty(), "followed: {is_followed}");
            interest.start();
        }
        // A bound key must be unbound, also by the next session.
        let key = Key::from("tea");
        interest.want(&key);
        interest.start();
        interest.unwant(&key);
        interest.unfollow();
        interest.start();
        assert_eq!(interest.round(), [(key, false, true)]);
        assert!(interest.is_empty());
    }

    /// The demux reports it as attached and detached, but its key as neither.
    #[test]
    fn nothing_is_kept_of_a_subscription_that_is_cancelled_before_it_is_attached() {
        let ((interest, _interruptions), (terms, _notices)) = (interest(), terms(1, "tea"));
        interest.start();
        let (interest, registry) = (Arc::new(interest), Arc::new(Registry::default()));
        registry.add(&terms);
        let hooks = GatewayHooks {
            board: Arc::clone(&interest.board),
            registry,
            attached: HashMap::new(),
            interest: Some(Arc::clone(&interest)),
        };
        let mut lease = Lease::new();
        let sink = sink::drain().sink_map_err(|_| Gone);
        let attach = Attach::new(Key::clone(&terms.key), sink).tag(terms.id).leased(&mut lease);
        drop(lease);
        let input = stream::empty().demux_by_ref(Message::key, stream::iter([attach]));
        let totals = input.hooks(hooks).now_or_never();
        assert_eq!(totals.map(|totals| (totals.attached, totals.detached)), Some((1, 1)));
        assert!(interest.is_empty());
        assert_eq!(interest.next_now(), None);
    }

    #[test]
    fn wanted_keys_are_bound_again_by_each_session() {
        let ((interest, _interruptions), key) = (interest(), Key::from("tea"));
        interest.want(&key);
        for _ in 0..2 {
            assert_eq!(interest.start(), [(Key::clone(&key), true, true)]);
            interest.recheck("left over");
            assert_eq!(interest.round(), [("left over".into(), false, true)]);
            interest.recheck("left over");
            assert_eq!(interest.next_now(), None, "the key is known to be unbound");
            interest.unfollow();
        }
    }

    /// Somebody has bound the queue to a pattern.
    #[test]
    fn keys_that_only_messages_name_are_not_remembered_without_end() {
        let (interest, _interruptions) = interest();
        interest.start();
        for round in 0..3 {
            for id in 0..2 * RECHECKED {
                interest.recheck(&format!("{round} {id}"));
            }
            assert_eq!(interest.keys.lock().unsure.len(), RECHECKED);
            interest.round();
        }
        while interest.keys.lock().unsure.len() > 0 {
            interest.round();
        }
        interest.recheck("0 1999");
        assert_eq!(interest.round(), [("0 1999".into(), false, true)]);
    }

    #[test]
    fn a_binding_that_was_removed_and_is_there_again_is_removed_again() {
        let ((interest, _interruptions), key) = (interest(), Key::from("tea"));
        interest.want(&key);
        interest.start();
        interest.unwant(&key);
        assert_eq!(interest.round(), [(Key::clone(&key), false, true)]);
        interest.recheck("tea");
        assert_eq!(interest.next_now(), None, "the message was published before");
        let since = Instant::now().checked_sub(2 * CERTAIN).unwrap();
        interest.keys.lock().bindings.insert(Key::clone(&key), Binding::Unbound { since });
        interest.recheck("tea");
        assert_eq!(interest.round(), [(key, false, true)]);
        interest.recheck("tea");
        assert_eq!(interest.next_now(), None);
    }

    /// The connection was lost while the binding was being removed, or while it was being made for a
    /// client that has left since then.
    #[test]
    fn a_binding_that_is_not_known_to_be_removed_is_removed_by_the_next_session() {
        let ((interest, _interruptions), key) = (interest(), Key::from("tea"));
        interest.start();
        interest.want(&key);
        interest.mark_unsure(&mut interest.keys.lock(), Key::clone(&key), None);
        for is_wanted in [true, false, false] {
            assert_eq!(interest.next_now(), Some(vec![(Key::clone(&key), is_wanted, true)]));
            if is_wanted {
                interest.unwant(&key);
            }
            interest.unfollow();
            assert_eq!(interest.start(), [], "it is not wanted");
        }
        assert_eq!(interest.round(), [(Key::clone(&key), false, true)]);
        interest.unfollow();
        interest.start();
        assert_eq!(interest.next_now(), None, "it was confirmed");
        assert!(interest.keys.lock().bindings.is_empty());
    }

    #[test]
    fn bindings_are_removed_although_another_gateway_has_consumed() {
        let ((interest, _interruptions), key) = (interest(), Key::from("tea"));
        interest.want(&key);
        interest.start();
        interest.unfollow();
        interest.unwant(&key);
        interest.interrupt_all();
        interest.start();
        assert_eq!(interest.round(), [(key, false, true)]);
    }

    #[test]
    fn nothing_is_kept_of_a_subscription_that_never_received() {
        let ((interest, _interruptions), key) = (interest(), Key::from("tea"));
        let (terms, mut notices) = terms(1, "tea");
        interest.want(&key);
        interest.notify_when_bound(Arc::clone(&terms));
        interest.remove(&terms);
        interest.unwant(&key);
        assert!(interest.is_empty());
        interest.changed(vec![(key, true, true)]);
        assert!(notices.try_recv().is_err());
    }

    #[test]
    fn a_key_has_no_gap_while_it_is_known_to_be_bound() {
        let ((interest, _interruptions), key) = (interest(), Key::from("tea"));
        interest.want(&key);
        assert!(!interest.has_all("tea", 0), "it is not bound");
        interest.start();
        let at = interest.last("tea");
        assert!(interest.has_all("tea", at) && !interest.has_all("tea", at - 1));
        // The client leaves, and returns before the key is unbound.
        interest.unwant(&key);
        interest.want(&key);
        interest.round();
        // The connection is lost. The client leaves, and returns.
        interest.unfollow();
        interest.unwant(&key);
        assert!(interest.has_all("tea", at));
        interest.start();
        interest.want(&key);
        interest.round();
        assert!(interest.has_all("tea", at));
        assert_eq!(interest.last("tea"), at);
    }

    #[test]
    fn a_key_has_a_gap_from_the_decision_to_unbind_it_until_it_is_bound() {
        let ((interest, _interruptions), key) = (interest(), Key::from("tea"));
        interest.want(&key);
        interest.start();
        let at = interest.last("tea");
        interest.unwant(&key);
        let changes = interest.next_now().unwrap();
        assert!(!interest.has_all("tea", at), "the change is not confirmed");
        interest.want(&key);
        // The connection is lost before the confirmation.
        interest.unfollow();
        assert!(!interest.has_all("tea", at));
        drop(changes);
        let changes = interest.again(&interest.follow());
        assert!(!interest.has_all("tea", at));
        interest.changed(changes);
        assert!(!interest.has_all("tea", at) && interest.has_all("tea", at + 1));
    }

    #[test]
    fn clients_are_told_of_an_interruption_when_their_keys_are_bound_again() {
        let ((interest, mut interruptions), tea, mate) = (interest(), "tea".into(), "mate".into());
        interest.want(&tea);
        interest.want(&mate);
        interest.start();
        assert_eq!(interruptions.try_recv().unwrap().keys, Interrupted::All, "the first session");
        let at = interest.last("tea");
        interest.unfollow();
        interest.start();
        assert!(interruptions.try_recv().is_err(), "nothing was interrupted");

        interest.unfollow();
        interest.interrupt_all();
        assert!(!interest.has_all("tea", at));
        let changes = interest.again(&interest.follow());
        assert!(interruptions.try_recv().is_err() && changes.len() == 2);
        interest.changed(changes);
        assert!(interest.tell().now_or_never().is_none(), "the demux task has to answer");
        assert_eq!(interruptions.try_recv().unwrap().keys, Interrupted::All);
        assert!(!interest.has_all("tea", at) && interest.has_all("tea", interest.last("tea")));
    }

    #[test]
    fn clients_of_a_key_whose_binding_was_removed_are_told_before_and_after_it_is_bound_again() {
        let ((interest, mut interruptions), tea) = (interest(), Key::from("tea"));
        interest.want(&tea);
        interest.want(&"mate".into());
        interest.start();
        interruptions.try_recv().unwrap(); // the first session
        let at = interest.last("tea");
        let before = Instant::now().checked_sub(CERTAIN).unwrap();
        assert!(!interest.interrupt("tea", before));
        assert!(!interest.interrupt("other", Instant::now()));
        assert!(interest.has_all("tea", at), "it was published before the key was bound");
        assert_eq!(interest.next_now(), None);

        assert!(!interest.interrupt("tea", Instant::now()));
        assert!(!interest.has_all("tea", at) && interest.has_all("mate", interest.last("mate")));
        let changes = interest.next_now().unwrap();
        assert_eq!(changes, [(Key::clone(&tea), true, true)]);
        let removed = interest.removed_among(&changes);
        assert_eq!(removed, HashSet::from([Key::clone(&tea)]));
        let mut told = || {
            let Interruption { keys, cause } = interruptions.try_recv().unwrap();
            assert_eq!(keys, Interrupted::Some(HashSet::from([Key::clone(&tea)])));
            let Cause::Gap { number, .. } = cause else { panic!("it is a gap") };
            number
        };
        assert!(interest.tell_of_removed(&removed).now_or_never().is_none());
        let first = told();
        // The session ends before the key is bound, or goes on.
        interest.unfollow();
        let changes = interest.again(&interest.follow());
        interest.changed(changes);
        assert!(interest.tell().now_or_never().is_none());
        assert!(first < told(), "a client that was told is told again");
        assert!(!interest.interrupt("tea", Instant::now()));
        let changes = interest.next_now().unwrap();
        let removed = interest.removed_among(&changes);
        assert!(interest.tell_of_removed(&removed).now_or_never().is_none());
        let first = told();
        interest.changed(changes);
        assert!(interest.tell_of_bound(removed).now_or_never().is_none());
        assert!(first < told());
        assert_eq!(interest.tell().now_or_never(), Some(()), "nothing is left to be told");
        assert!(interest.has_all("tea", interest.last("tea")));
    }

    /// What a broker knows: it applies changes.
    #[derive(Default)]
    struct Queue(HashSet<Key>);

    impl Queue {
        fn apply(&mut self, changes: &[Change]) {
            for (key, is_needed, _) in changes.iter().filter(|(_, _, is_new)| *is_new) {
                if *is_needed {
                    self.0.insert(Key::clone(key))
                } else {
                    self.0.remove(key)
                };
            }
        }

        fn has(&self, key: &Key) -> bool {
            self.0.contains(key) || self.0.contains(ALL)
        }

        /// Makes all changes that are due, and returns how many these are. All keys that were bound
        /// and are still wanted remain so meanwhile, even if each round removes bindings first.
        fn settle(&mut self, interest: &Interest) -> usize {
            let mut count = 0;
            while let Some(mut changes) = interest.next_now() {
                changes.sort_by_key(|(_, is_needed, _)| *is_needed);
                let removed = changes.partition_point(|(_, is_needed, _)| !is_needed);
                let wanted: Vec<Key> = interest.keys.lock().wanted.keys().cloned().collect();
                let bound: Vec<_> = wanted.iter().filter(|key| self.has(key)).collect();
                self.apply(&changes[..removed]);
                assert!(bound.into_iter().all(|key| self.has(key)), "a wanted key is interrupted");
                self.apply(&changes[removed..]);
                count += changes.iter().filter(|(_, _, is_new)| *is_new).count();
                interest.changed(changes);
            }
            count
        }
    }

    fn keys(count: usize) -> Vec<Key> {
        (0..count).map(|id| id.to_string().into()).collect()
    }

    #[test]
    fn a_headers_exchange_has_one_binding_for_many_keys_and_one_for_each_of_few() {
        let ((interest, mut interruptions), mut queue) = (interest_of(true), Queue::default());
        interest.start();
        interruptions.try_recv().unwrap(); // the first session
        let many = keys(20 * MANY);
        let mut clients: Vec<_> = (0..).zip(&many).map(|(id, key)| terms(id, key)).collect();
        for _ in 0..3 {
            for (index, (terms, _)) in clients.iter().enumerate() {
                if index == MANY {
                    queue.settle(&interest);
                    assert_eq!(queue.0.len(), MANY);
                    interest.unwant(&many[0]);
                    interest.want(&many[0]);
                }
                interest.want(&terms.key);
                interest.notify_when_bound(Arc::clone(terms));
            }
            let changes = queue.settle(&interest);
            assert!(changes <= 2 * MANY, "{changes}");
            assert_eq!(queue.0, HashSet::from([Key::from(ALL)]));
            for (_, notices) in &mut clients {
                assert!(matches!(notices.try_recv(), Ok(Notice::Subscribed(..))));
                assert!(notices.try_recv().is_err());
            }
            interest.recheck("unwanted");
            assert_eq!(interest.next_now(), None, "messages that no client wants are expected");
            let [at, at_left] = [interest.last("0"), interest.last(&many[FEW])];
            assert!(interest.has_all("0", at) && interest.has_all(&many[FEW], at_left));

            for (terms, _) in &clients[FEW..] {
                interest.unwant(&terms.key);
            }
            assert!(queue.settle(&interest) <= 2);
            assert_eq!(queue.0.len(), 1, "a key may return");
            interest.unwant(&many[FEW - 1]);
            // These are bound alone before the binding to all is removed.
            let late: Vec<Key> = (0..BATCH).map(|id| format!("late {id}").into()).collect();
            for (id, key) in (0..).zip(&late) {
                let (late, mut notices) = terms_of(2, id, key);
                interest.want(key);
                interest.notify_when_bound(late);
                assert!(matches!(notices.try_recv(), Ok(Notice::Subscribed(..))));
            }
            queue.settle(&interest);
            let few: HashSet<Key> = many[..FEW - 1].iter().chain(&late).cloned().collect();
            assert_eq!(queue.0, few);
            assert!(few.iter().all(|key| interest.has_all(key, interest.last(key))));
            assert!(interest.has_all("0", at) && !interest.has_all(&many[FEW], at_left));

            for key in &few {
                interest.unwant(key);
            }
            queue.settle(&interest);
            assert!(queue.0.is_empty() && interest.is_empty());
        }
        assert!(interruptions.try_recv().is_err(), "no client has missed anything");
    }

    #[test]
    fn a_binding_to_all_keys_is_removed_if_an_earlier_run_has_left_it() {
        let ((interest, _interruptions), tea) = (interest_of(true), Key::from("tea"));
        interest.want(&tea);
        let mut queue = Queue(HashSet::from([ALL.into(), "left".into()]));
        queue.apply(&interest.start());
        interest.recheck("left");
        queue.settle(&interest);
        assert_eq!(queue.0, HashSet::from([tea]));
        interest.recheck("other");
        assert_eq!(interest.round(), [("other".into(), false, true)], "the one to all is removed");
    }

    /// The session ends at any point of both transitions.
    #[test]
    fn all_wanted_keys_are_bound_by_the_next_session() {
        let many = keys(2 * MANY);
        for rounds in 0..12 {
            for is_lost in [false, true] {
                for is_leaving in [false, true] {
                    let ((interest, _interruptions), mut queue) =
                        (interest_of(true), Queue::default());
                    interest.start();
                    let ids = (0..).zip(&many);
                    let mut clients: Vec<_> = ids.map(|(id, key)| terms(id, key)).collect();
                    for (terms, _) in &clients {
                        interest.want(&terms.key);
                        interest.notify_when_bound(Arc::clone(terms));
                    }
                    let mut wanted = many.len();
                    if is_leaving {
                        queue.settle(&interest);
                        wanted = FEW - 1;
                        for (terms, _) in clients.drain(wanted..) {
                            interest.unwant(&terms.key);
                        }
                    }
                    for round in 0..rounds {
                        let Some(changes) = interest.next_now() else { break };
                        if round + 1 < rounds {
                            queue.apply(&changes);
                            interest.changed(changes);
                        } else {
                            queue.apply(&changes[..changes.len() / 2]); // not confirmed
                        }
                    }
                    interest.unfollow();
                    if is_lost {
                        interest.interrupt_all();
                        queue.0.clear();
                    }
                    let changes = interest.again(&interest.follow());
                    queue.apply(&changes);
                    interest.changed(changes);
                    let context = (rounds, is_lost, is_leaving);
                    for key in &many[..wanted] {
                        assert!(queue.has(key), "before it consumes: {key} {context:?}");
                    }
                    queue.settle(&interest);
                    let bound: HashSet<Key> = if is_leaving {
                        many[..wanted].iter().cloned().collect()
                    } else {
                        HashSet::from([ALL.into()])
                    };
                    assert_eq!(queue.0, bound, "{context:?}");
                    for (_, notices) in &mut clients {
                        assert!(matches!(notices.try_recv(), Ok(Notice::Subscribed(..))));
                    }
                }
            }
        }
    }

    #[test]
    fn clients_of_a_key_whose_binding_was_removed_are_told_if_it_is_bound_again_with_all() {
        let (interest, _interruptions) = interest_of(true);
        let many = keys(MANY + 1);
        for key in &many[..MANY] {
            interest.want(key);
        }
        interest.start();
        interest.want(&many[MANY]);
        assert!(!interest.interrupt("0", Instant::now()));
        let changes = interest.next_now().unwrap();
        assert!(changes.contains(&(ALL.into(), true, true)));
        let all: Vec<Change> = changes.into_iter().filter(|(key, ..)| **key == *ALL).collect();
        let removed = interest.removed_among(&all);
        assert_eq!(removed, HashSet::from(["0".into()]));
        interest.changed(all);
        assert!(interest.has_all("0", interest.last("0")));
        assert!(interest.tell_of_bound(removed).now_or_never().is_none());
        assert_eq!(interest.tell().now_or_never(), Some(()), "nothing is left to be told");
    }

    #[test]
    fn a_client_that_subscribes_while_the_broker_is_away_is_told_when_all_keys_are_bound_again() {
        let (interest, _interruptions) = interest_of(true);
        let many = keys(MANY + 1);
        for key in &many {
            interest.want(key);
        }
        interest.start();
        interest.unfollow();
        let (late, mut notices) = terms(1, "late");
        interest.want(&late.key);
        interest.notify_when_bound(late);
        assert!(notices.try_recv().is_err());
        assert_eq!(interest.start(), [(ALL.into(), true, true)]);
        assert!(matches!(notices.try_recv(), Ok(Notice::Subscribed(..))));
        assert!(interest.has_all("late", interest.last("late")));
    }

    #[test]
    fn the_session_ends_if_the_binding_to_all_keys_was_removed() {
        let ((interest, _interruptions), mut queue) = (interest_of(true), Queue::default());
        interest.start();
        let many = keys(MANY + 1);
        for key in &many {
            interest.want(key);
        }
        queue.settle(&interest);
        let at = interest.last("0");
        assert!(interest.has_all("0", at) && interest.is_bound("0"));
        let before = Instant::now().checked_sub(CERTAIN).unwrap();
        assert!(!interest.interrupt("0", before), "it was published before");
        assert!(interest.interrupt("0", Instant::now()));
        assert!(!interest.interrupt("1", Instant::now()), "it is told already");
        assert!(!interest.has_all("0", at) && !interest.is_bound("0"));
        interest.unfollow();
        assert_eq!(interest.start(), [(ALL.into(), true, true)]);
        assert!(!interest.has_all("0", at) && interest.has_all("0", interest.last("0")));
    }

    #[test]
    fn with_permanent_bindings_all_keys_have_a_gap_when_the_queue_was_lost() {
        let (mut interest, _interruptions) = interest();
        interest.follows = false;
        interest.want(&"tea".into());
        assert!(!interest.has_all("tea", 0));
        interest.start();
        for at in 1..3 {
            assert!(interest.has_all("other", at) && !interest.has_all("other", at - 1));
            interest.unfollow();
            interest.interrupt_all();
            assert!(!interest.has_all("other", at));
            interest.start();
        }
    }
}
