//! [`Table`]: the keys that have subscribers, and how far the engine is with each.
//!
//! These tasks meet here, and none waits for another:
//!
//! * The task of the hub says which keys have subscribers ([`Table::interest`]), and applies what the
//!   engine has answered, in its place among the items ([`Table::apply`]).
//! * The tasks of the connection say when it is there and when it is broken ([`Table::connected`],
//!   [`Table::disconnected`]), and ask what they are to tell the engine ([`Table::next_command`]).
//! * For each subscription, a task says that it waits for a key ([`Table::join`]), and its user that
//!   it does so no more ([`Table::forget`]).
//!
//! At most one command about a key is under way. So a confirmation is always that of the last
//! command, and a key that is unsubscribed and subscribed again cannot be taken for live too early.
//!
//! Invariants:
//!
//! 1. A key is in the table while it is wanted or the engine has been told about it. Without a
//!    connection, only wanted keys are in it.
//! 2. `todo` holds keys of the table only. Without a connection, it is empty.
//! 3. A join waits at a key that is wanted and not live.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Notify;

use crate::arrivals::{Arrival, Arrived};
use crate::event::{Event, Key, What};
use crate::lock::lock;

/// A subscription that waits until it really gets the items of a key.
pub(crate) trait Joiner: Send + Sync {
    /// Returns `true` if this is still the current join of the key.
    fn waits_for(&self, key: &Key, join: u64) -> bool;

    /// Ends the wait.
    fn settle(&self, key: &Key, join: u64, outcome: Outcome);
}

/// What has become of a join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The engine has confirmed the subscription, by the connection with this number.
    Joined(u64),
    Refused(Arc<str>),
    /// The bridge has ended.
    Closed,
}

/// The hub has detached the subscription from the key in the meantime: its limit is reached, or it
/// was too slow. It gets nothing more, and nothing is missing.
const HAS_LEFT: Outcome = Outcome::Joined(0);

/// Identifies a subscription.
pub(crate) type Id = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upstream {
    /// The engine does not know that the key is wanted.
    Absent,
    Subscribing,
    /// Confirmed, by the connection with this number.
    Live(u64),
    Unsubscribing,
    Refused,
}

struct Entry {
    upstream: Upstream,
    /// The hub has a subscriber for the key.
    is_wanted: bool,
    /// A connection broke by which the key was live, so subscribers may have missed items.
    has_gap: bool,
    waiting: HashMap<Id, Waiting>,
}

#[derive(Clone)]
struct Waiting {
    join: u64,
    joiner: Weak<dyn Joiner>,
}

impl Entry {
    fn new() -> Self {
        let waiting = HashMap::new();
        Self { upstream: Upstream::Absent, is_wanted: true, has_gap: false, waiting }
    }

    /// What the engine is to be told next.
    fn command(&self) -> Option<Command> {
        match (self.is_wanted, self.upstream) {
            (true, Upstream::Absent) => Some(Command::Subscribe),
            (false, Upstream::Live(_)) => Some(Command::Unsubscribe),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Subscribe,
    Unsubscribe,
}

/// Joins of which something has become. They are told when the table is not locked any more.
#[must_use]
#[derive(Default)]
struct Settled(Vec<(Key, Waiting)>);

impl Settled {
    fn take(&mut self, key: &Key, entry: &mut Entry) {
        self.0.extend(entry.waiting.drain().map(|(_, waiting)| (Arc::clone(key), waiting)));
        entry.waiting.shrink_to_fit();
    }

    /// The same for joins that go on waiting: the engine is asked again by the next connection.
    fn copy(&mut self, key: &Key, entry: &Entry) {
        let waiting = entry.waiting.values();
        self.0.extend(waiting.map(|waiting| (Arc::clone(key), waiting.clone())));
    }

    fn settle(self, outcome: &Outcome) {
        for (key, waiting) in self.0 {
            if let Some(joiner) = waiting.joiner.upgrade() {
                joiner.settle(&key, waiting.join, outcome.clone());
            }
        }
    }
}

pub(crate) struct Table {
    state: Mutex<State>,
    /// There are commands for the engine.
    pub(crate) has_commands: Notify,
    /// There is no engine: a key is live as soon as it is wanted.
    is_local: bool,
}

struct State {
    keys: HashMap<Key, Entry>,
    /// Keys that the engine may have to be told about.
    todo: BTreeSet<Key>,
    /// The number of the connection that is there.
    connection: Option<u64>,
    is_closed: bool,
}

impl Table {
    pub(crate) fn new(is_local: bool) -> Self {
        let state = State {
            keys: HashMap::new(),
            todo: BTreeSet::new(),
            connection: None,
            is_closed: false,
        };
        Self { state: Mutex::new(state), has_commands: Notify::new(), is_local }
    }

    /// The hub has got its first subscriber for a key, or lost its last.
    pub(crate) fn interest(&self, key: &Key, is_wanted: bool) {
        let mut state = lock(&self.state);
        let State { keys, todo, connection, .. } = &mut *state;
        let mut settled = Settled::default();
        if is_wanted {
            let entry = keys.entry(Arc::clone(key)).or_insert_with(Entry::new);
            entry.is_wanted = true;
            if self.is_local {
                entry.upstream = Upstream::Live(0);
            }
        } else if let Some(entry) = keys.get_mut(key) {
            entry.is_wanted = false;
            entry.has_gap = false;
            settled.take(key, entry);
            let is_unknown = matches!(entry.upstream, Upstream::Absent | Upstream::Refused);
            if self.is_local || is_unknown {
                todo.remove(key);
                keys.remove(key);
                shrink(keys);
            }
        }
        let has_command = keys.get(key).is_some_and(|entry| entry.command().is_some());
        if connection.is_some() && has_command {
            todo.insert(Arc::clone(key));
            self.has_commands.notify_one();
        }
        drop(state);
        settled.settle(&HAS_LEFT);
    }

    /// A subscription has been attached to a key by now, and wants to know when it gets the items.
    pub(crate) fn join(&self, key: &Key, id: Id, join: u64, joiner: Weak<dyn Joiner>) {
        let Some(strong) = joiner.upgrade() else { return };
        let mut state = lock(&self.state);
        // Looked at under the lock: what leaves later is forgotten later, by `forget`.
        if !strong.waits_for(key, join) {
            return;
        }
        let State { keys, todo, connection, is_closed } = &mut *state;
        let outcome = if *is_closed {
            Outcome::Closed
        } else {
            match keys.get_mut(key).filter(|entry| entry.is_wanted) {
                None => HAS_LEFT,
                Some(Entry { upstream: Upstream::Live(epoch), .. }) => Outcome::Joined(*epoch),
                Some(entry) => {
                    entry.waiting.insert(id, Waiting { join, joiner });
                    if entry.upstream == Upstream::Refused && connection.is_some() {
                        // It may be allowed by now.
                        entry.upstream = Upstream::Absent;
                        todo.insert(Arc::clone(key));
                        self.has_commands.notify_one();
                    }
                    return;
                }
            }
        };
        drop(state);
        strong.settle(key, join, outcome);
    }

    /// A subscription does not wait for a key any more.
    pub(crate) fn forget(&self, key: &Key, id: Id) {
        let mut state = lock(&self.state);
        let forgotten = state.keys.get_mut(key).and_then(|entry| entry.waiting.remove(&id));
        drop(state);
        drop(forgotten);
    }

    /// Returns what the engine is to be told next, and remembers that it was told.
    pub(crate) fn next_command(&self) -> Option<(Key, Command)> {
        let mut state = lock(&self.state);
        let State { keys, todo, .. } = &mut *state;
        while let Some(key) = todo.pop_first() {
            let Some(entry) = keys.get_mut(&key) else { continue };
            let Some(command) = entry.command() else { continue };
            entry.upstream = match command {
                Command::Subscribe => Upstream::Subscribing,
                Command::Unsubscribe => Upstream::Unsubscribing,
            };
            return Some((key, command));
        }
        None
    }

    /// A connection is there: everything that is wanted has to be subscribed.
    pub(crate) fn connected(&self, epoch: u64) {
        let mut state = lock(&self.state);
        let State { keys, todo, connection, .. } = &mut *state;
        *connection = Some(epoch);
        todo.extend(keys.keys().cloned());
        drop(state);
        self.has_commands.notify_one();
    }

    /// The connection is broken, and the engine has forgotten everything.
    pub(crate) fn disconnected(&self) {
        let mut state = lock(&self.state);
        let State { keys, todo, connection, .. } = &mut *state;
        *connection = None;
        todo.clear();
        keys.retain(|_, entry| {
            // Nothing is missing for a join that was not confirmed.
            entry.has_gap |= matches!(entry.upstream, Upstream::Live(_)) && entry.is_wanted;
            entry.upstream = Upstream::Absent;
            entry.is_wanted
        });
        shrink(keys);
    }

    /// Applies what has come from the engine. Returns what the subscriptions of the key get.
    pub(crate) fn apply(&self, arrived: Arrived) -> Option<Event> {
        let Arrived { key, epoch, arrival } = arrived;
        let name = std::str::from_utf8(&key).ok()?;
        let mut state = lock(&self.state);
        // Nothing for a key that has no subscriber any more.
        let (key, _) = state.keys.get_key_value(name)?;
        let key = Arc::clone(key);
        if let Arrival::Item(item) = arrival {
            return Some(Event { key, epoch, what: What::Item(item) });
        }
        // A confirmation that is read when its connection is broken. Another will come.
        if state.connection != Some(epoch) {
            return None;
        }
        let State { keys, todo, .. } = &mut *state;
        let entry = keys.get_mut(&key)?;
        if !matches!(entry.upstream, Upstream::Subscribing | Upstream::Unsubscribing) {
            return None;
        }
        let mut settled = Settled::default();
        let (what, outcome) = match arrival {
            Arrival::Unsubscribed => {
                entry.upstream = Upstream::Absent;
                (None, Outcome::Closed)
            }
            Arrival::Refused(reason) => {
                entry.upstream = Upstream::Refused;
                settled.copy(&key, entry);
                (Some(What::Refused(Arc::clone(&reason))), Outcome::Refused(reason))
            }
            _ => {
                entry.upstream = Upstream::Live(epoch);
                settled.take(&key, entry);
                let has_gap = std::mem::take(&mut entry.has_gap);
                (has_gap.then_some(What::Gap), Outcome::Joined(epoch))
            }
        };
        let has_command = entry.command().is_some();
        if has_command {
            todo.insert(Arc::clone(&key));
        } else if !entry.is_wanted {
            keys.remove(&key);
            shrink(keys);
        }
        drop(state);
        if has_command {
            self.has_commands.notify_one();
        }
        settled.settle(&outcome);
        what.map(|what| Event { key, epoch, what })
    }

    /// The bridge has ended.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        let mut settled = Settled::default();
        for (key, entry) in &mut state.keys {
            settled.take(key, entry);
        }
        drop(state);
        settled.settle(&Outcome::Closed);
    }

    /// The numbers of keys, of keys in `todo`, and of joins that wait.
    #[cfg(test)]
    fn sizes(&self) -> (usize, usize, usize) {
        let state = lock(&self.state);
        let waiting = state.keys.values().map(|entry| entry.waiting.len()).sum();
        (state.keys.len(), state.todo.len(), waiting)
    }
}

/// Tables keep room for this many keys.
const KEYS_KEPT: usize = 64;

/// Gives memory back when most keys are gone. Twice the room that is needed is left, so that this
/// costs little for each key that goes.
pub(crate) fn shrink<K: Eq + Hash, V>(keys: &mut HashMap<K, V>) {
    if keys.capacity() / 8 > keys.len().max(KEYS_KEPT) {
        keys.shrink_to(keys.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A joiner that remembers what it is told.
    #[derive(Default)]
    struct Told(Mutex<Vec<(Key, Outcome)>>);

    impl Joiner for Told {
        fn waits_for(&self, _: &Key, join: u64) -> bool {
            join == 1
        }

        fn settle(&self, key: &Key, _: u64, outcome: Outcome) {
            lock(&self.0).push((Arc::clone(key), outcome));
        }
    }

    struct Test {
        table: Table,
        told: Arc<Told>,
    }

    impl Test {
        fn new() -> Self {
            Self { table: Table::new(false), told: Arc::default() }
        }

        fn join(&self, key: &str, id: Id) {
            let joiner: Arc<dyn Joiner> = Arc::clone(&self.told) as _;
            self.table.join(&key.into(), id, 1, Arc::downgrade(&joiner));
        }

        fn interest(&self, key: &str, is_wanted: bool) {
            self.table.interest(&key.into(), is_wanted);
        }

        fn commands(&self) -> Vec<(String, Command)> {
            let next = || self.table.next_command();
            std::iter::from_fn(next).map(|(key, command)| (key.to_string(), command)).collect()
        }

        fn arrive(&self, epoch: u64, key: &str, arrival: Arrival) -> Option<What> {
            let arrived = Arrived { key: key.into(), epoch, arrival };
            self.table.apply(arrived).map(|event| event.what)
        }

        fn told(&self) -> Vec<(String, Outcome)> {
            let told = std::mem::take(&mut *lock(&self.told.0));
            told.into_iter().map(|(key, outcome)| (key.to_string(), outcome)).collect()
        }
    }

    fn subscribe(key: &str) -> (String, Command) {
        (key.to_owned(), Command::Subscribe)
    }

    fn unsubscribe(key: &str) -> (String, Command) {
        (key.to_owned(), Command::Unsubscribe)
    }

    fn joined(key: &str, epoch: u64) -> (String, Outcome) {
        (key.to_owned(), Outcome::Joined(epoch))
    }

    #[test]
    fn join_is_settled_by_the_confirmation() {
        let test = Test::new();
        test.table.connected(1);
        test.interest("tea", true);
        test.join("tea", 7);
        assert_eq!(test.commands(), [subscribe("tea")]);
        assert_eq!(test.told(), []);
        assert!(test.arrive(1, "tea", Arrival::Subscribed).is_none());
        assert_eq!(test.told(), [joined("tea", 1)]);
        // The next one is settled at once, and the engine is told nothing.
        test.join("tea", 8);
        assert_eq!(test.told(), [joined("tea", 1)]);
        assert_eq!(test.commands(), []);
    }

    #[test]
    fn confirmation_of_a_connection_that_is_gone_does_not_count() {
        let test = Test::new();
        test.table.connected(1);
        test.interest("tea", true);
        test.join("tea", 7);
        assert_eq!(test.commands(), [subscribe("tea")]);
        test.table.disconnected();
        assert!(test.arrive(1, "tea", Arrival::Subscribed).is_none());
        test.table.connected(2);
        assert_eq!(test.commands(), [subscribe("tea")]);
        // It was in the queue when the connection broke.
        assert!(test.arrive(1, "tea", Arrival::Subscribed).is_none());
        assert_eq!(test.told(), []);
        assert!(test.arrive(2, "tea", Arrival::Subscribed).is_none(), "nothing was missed");
        assert_eq!(test.told(), [joined("tea", 2)]);
    }

    #[test]
    fn gap_is_told_when_the_key_is_subscribed_again() {
        let test = Test::new();
        test.table.connected(1);
        test.interest("tea", true);
        test.commands();
        test.arrive(1, "tea", Arrival::Subscribed);
        test.table.disconnected();
        test.join("tea", 8);
        assert_eq!(test.told(), [], "not before the engine is back");
        test.table.connected(2);
        test.commands();
        // What came before the break is routed before the gap.
        assert!(matches!(test.arrive(1, "tea", Arrival::Item("1".into())), Some(What::Item(_))));
        assert!(matches!(test.arrive(2, "tea", Arrival::Subscribed), Some(What::Gap)));
        assert_eq!(test.told(), [joined("tea", 2)]);
        // Once for each break, also if the next connection breaks before it confirms.
        test.table.disconnected();
        test.table.connected(3);
        test.commands();
        test.table.disconnected();
        test.table.connected(4);
        test.commands();
        assert!(matches!(test.arrive(4, "tea", Arrival::Subscribed), Some(What::Gap)));
    }

    #[test]
    fn key_that_is_wanted_again_while_it_is_unsubscribed_is_subscribed_after_that() {
        let test = Test::new();
        test.table.connected(1);
        test.interest("tea", true);
        test.commands();
        test.arrive(1, "tea", Arrival::Subscribed);
        test.interest("tea", false);
        assert_eq!(test.commands(), [unsubscribe("tea")]);
        test.interest("tea", true);
        test.join("tea", 8);
        assert_eq!(test.commands(), [], "one command at a time");
        assert_eq!(test.told(), []);
        test.arrive(1, "tea", Arrival::Unsubscribed);
        assert_eq!(test.commands(), [subscribe("tea")]);
        assert_eq!(test.told(), []);
        assert!(test.arrive(1, "tea", Arrival::Subscribed).is_none());
        assert_eq!(test.told(), [joined("tea", 1)]);
    }

    #[test]
    fn key_that_is_left_and_wanted_again_at_once_stays_subscribed() {
        let test = Test::new();
        test.table.connected(1);
        test.interest("tea", true);
        test.commands();
        test.arrive(1, "tea", Arrival::Subscribed);
        test.interest("tea", false);
        test.interest("tea", true);
        assert_eq!(test.commands(), []);
        test.join("tea", 8);
        assert_eq!(test.told(), [joined("tea", 1)]);
    }

    #[test]
    fn refused_key_is_told_each_time_and_tried_by_the_next_connection() {
        let test = Test::new();
        test.table.connected(1);
        test.interest("tea", true);
        test.join("tea", 7);
        test.commands();
        test.arrive(1, "tea", Arrival::Refused("no".into()));
        assert_eq!(test.told(), [("tea".into(), Outcome::Refused("no".into()))]);
        assert_eq!(test.commands(), []);
        test.table.disconnected();
        test.table.connected(2);
        assert_eq!(test.commands(), [subscribe("tea")]);
        test.arrive(2, "tea", Arrival::Subscribed);
        assert_eq!(test.told(), [joined("tea", 2)]);
    }

    #[test]
    fn nothing_is_kept_for_keys_and_joins_that_are_gone() {
        let test = Test::new();
        for round in 0..3 {
            for n in 0..10_000_u64 {
                let key = format!("room {n}");
                test.interest(&key, true);
                test.join(&key, n);
                if n % 2 == 0 {
                    test.table.forget(&key.as_str().into(), n);
                    test.interest(&key, false);
                }
            }
            let todo = if round == 0 { 0 } else { 5_000 };
            assert_eq!(test.table.sizes(), (5_000, todo, 5_000));
            for n in 0..10_000 {
                test.interest(&format!("room {n}"), false);
            }
            assert_eq!(test.table.sizes(), (0, 0, 0));
            test.table.connected(1);
        }
        assert!(lock(&test.table.state).keys.capacity() < 1_000);
    }

    #[test]
    fn key_that_is_being_left_when_the_connection_breaks_is_forgotten() {
        let test = Test::new();
        test.table.connected(1);
        for key in ["tea", "coffee"] {
            test.interest(key, true);
            test.commands();
            test.arrive(1, key, Arrival::Subscribed);
        }
        test.interest("tea", false);
        assert_eq!(test.commands(), [unsubscribe("tea")]);
        test.interest("coffee", false);
        assert_eq!(test.table.sizes(), (2, 1, 0));
        test.table.disconnected();
        assert_eq!(test.table.sizes(), (0, 0, 0));
        // A subscriber that comes now has missed nothing.
        test.interest("tea", true);
        test.table.connected(2);
        assert_eq!(test.commands(), [subscribe("tea")]);
        assert!(test.arrive(2, "tea", Arrival::Subscribed).is_none());
    }

    #[test]
    fn join_of_a_key_that_the_hub_has_left_again_does_not_wait() {
        let test = Test::new();
        test.join("tea", 7);
        assert_eq!(test.told(), [joined("tea", 0)]);
        test.interest("tea", true);
        test.join("tea", 7);
        assert_eq!(test.told(), []);
        test.interest("tea", false);
        assert_eq!(test.told(), [joined("tea", 0)]);
    }

    #[test]
    fn end_settles_all_joins() {
        let test = Test::new();
        test.interest("tea", true);
        test.join("tea", 7);
        test.table.close();
        assert_eq!(test.told(), [("tea".into(), Outcome::Closed)]);
        test.join("coffee", 7);
        assert_eq!(test.told(), [("coffee".into(), Outcome::Closed)]);
    }
}
