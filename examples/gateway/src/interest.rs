//! The keys that clients subscribe to, and the bindings of the queue to them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::board::Board;
use crate::message::Key;
use crate::subscription::Terms;

/// Keys whose bindings are changed at once.
const BATCH: usize = 64;
/// How many keys that are known to be unbound are kept.
const UNBOUND: usize = 10_000;

/// Tracks wanted and bound keys. The demux reports when a key gets its first subscription and when
/// it loses the last one. Only the current state is kept, and the bindings are changed to match it.
/// While the broker is away, no binding is assumed.
pub struct Interest {
    pub follows: bool,
    keys: Mutex<Keys>,
    changed: Notify,
    board: Arc<Board>,
}

#[derive(Default)]
struct Keys {
    /// `true` while a session updates the bindings.
    is_followed: bool,
    wanted: HashSet<Key>,
    /// Subscriptions to notify once the queue is bound to their key.
    waiting: HashMap<Key, Vec<Arc<Terms>>>,
    /// Whether the queue is bound to a key, or about to be, as far as known.
    bound: HashMap<Key, bool>,
    /// Keys whose bindings may not match.
    unsure: HashSet<Key>,
}

impl Interest {
    /// If `follows` is `false`, bindings are not changed.
    pub fn new(follows: bool, board: Arc<Board>) -> Self {
        Self { follows, keys: Mutex::default(), changed: Notify::new(), board }
    }

    /// Called when a key gets its first subscription.
    pub fn want(&self, key: &Key) {
        let mut keys = self.keys.lock().unwrap();
        keys.wanted.insert(Key::clone(key));
        self.mark_unsure(&mut keys, Key::clone(key));
    }

    /// Called when a key loses its last subscription.
    pub fn unwant(&self, key: &Key) {
        let mut keys = self.keys.lock().unwrap();
        keys.wanted.remove(key);
        if keys.bound.get(key) == Some(&true) {
            self.mark_unsure(&mut keys, Key::clone(key));
        } else {
            // The key was never bound: drop its entry.
            keys.unsure.remove(key);
        }
    }

    /// Notifies a subscription when the queue is bound to its key. For the first subscription of a
    /// key, [`want`](Self::want) is called after this.
    pub fn notify_when_bound(&self, terms: Arc<Terms>) {
        let mut keys = self.keys.lock().unwrap();
        let key = Key::clone(&terms.key);
        keys.waiting.entry(Key::clone(&key)).or_default().push(terms);
        if keys.wanted.contains(&key) {
            self.mark_unsure(&mut keys, key);
        }
    }

    /// Removes a subscription that has ended.
    pub fn remove(&self, terms: &Terms) {
        let mut keys = self.keys.lock().unwrap();
        if let Some(waiting) = keys.waiting.get_mut(&terms.key) {
            waiting.retain(|other| other.id != terms.id);
            if waiting.is_empty() {
                keys.waiting.remove(&terms.key);
            }
        }
    }

    /// Called for a message without a subscription: the queue may still be bound to its key since
    /// an earlier run.
    pub fn recheck(&self, key: &str) {
        let mut keys = self.keys.lock().unwrap();
        if self.follows && keys.bound.get(key) != Some(&false) {
            self.mark_unsure(&mut keys, key.into());
        }
    }

    fn mark_unsure(&self, keys: &mut Keys, key: Key) {
        if keys.is_followed {
            keys.unsure.insert(key);
            self.changed.notify_one();
        }
    }

    /// Starts a session, in which no binding is known.
    pub fn follow(&self) {
        let keys = &mut *self.keys.lock().unwrap();
        keys.is_followed = true;
        keys.unsure.extend(keys.wanted.iter().cloned());
        self.changed.notify_one();
    }

    /// Ends the session.
    pub fn unfollow(&self) {
        let keys = &mut *self.keys.lock().unwrap();
        keys.is_followed = false;
        (keys.bound, keys.unsure) = Default::default();
    }

    /// Returns some keys, whether each is wanted, and whether its binding must be changed.
    pub async fn next(&self) -> Vec<(Key, bool, bool)> {
        loop {
            let changed = self.changed.notified();
            {
                let Keys { wanted, bound, unsure, .. } = &mut *self.keys.lock().unwrap();
                if bound.len() > UNBOUND + wanted.len() + unsure.len() {
                    bound.retain(|_, is_bound| *is_bound);
                }
                let some: Vec<Key> = unsure.iter().take(BATCH).cloned().collect();
                if !some.is_empty() {
                    return some
                        .into_iter()
                        .map(|key| {
                            unsure.remove(&key);
                            let is_wanted = wanted.contains(&key);
                            let before = bound.insert(Key::clone(&key), is_wanted);
                            // While holding the lock, so that the next subscription finds the gap.
                            if let Some(history) = &self.board.history
                                && (self.follows && !is_wanted && before != Some(false))
                            {
                                history.interrupt(&key);
                            }
                            (key, is_wanted, before != Some(is_wanted))
                        })
                        .collect();
                }
            }
            changed.await;
        }
    }

    /// Called when the queue is bound to this key.
    pub fn bound(&self, key: &Key) {
        // Release the lock before the subscriptions are notified.
        let waiting = self.keys.lock().unwrap().waiting.remove(key);
        waiting.unwrap_or_default().iter().for_each(|terms| terms.subscribed());
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use futures::FutureExt;
    use futures::channel::mpsc;

    use super::*;
    use crate::budget::Budget;
    use crate::config::{Config, Policy};
    use crate::subscription::{Notice, Share, SubscribeOptions};

    fn terms(id: u64, key: &str) -> (Arc<Terms>, mpsc::UnboundedReceiver<Notice>) {
        let board = Arc::new(Board::new(&Config::parse_from(["gateway"])));
        let share = Arc::new(Share::new(1, Arc::new(Budget::new(1)), Policy::Wait));
        let (notices, received) = mpsc::unbounded();
        let client = ([127, 0, 0, 1], 1).into();
        let options = SubscribeOptions::default();
        (Arc::new(Terms::new(id, key.into(), client, &options, share, notices, board)), received)
    }

    fn interest(options: &[&str]) -> Interest {
        let config = Config::parse_from([&["gateway"], options].concat());
        Interest::new(true, Arc::new(Board::new(&config)))
    }

    fn next(interest: &Interest) -> Option<Vec<(Key, bool, bool)>> {
        interest.next().now_or_never()
    }

    fn is_empty(interest: &Interest) -> bool {
        let keys = interest.keys.lock().unwrap();
        keys.wanted.is_empty() && keys.waiting.is_empty() && keys.unsure.is_empty()
    }

    #[test]
    fn each_subscription_is_notified_once_its_key_is_bound() {
        let (interest, key) = (interest(&[]), Key::from("tea"));
        interest.follow();
        let (first, mut first_notices) = terms(1, "tea");
        interest.notify_when_bound(first);
        assert_eq!(next(&interest), None, "the key is not attached yet");
        interest.want(&key);
        assert_eq!(next(&interest), Some(vec![(Key::clone(&key), true, true)]));
        assert!(first_notices.try_recv().is_err(), "the binding is not confirmed yet");
        interest.bound(&key);
        assert!(matches!(first_notices.try_recv(), Ok(Notice::Subscribed(_, 1))));

        // A second subscription, to a key that is attached already.
        let (second, mut second_notices) = terms(2, "tea");
        interest.notify_when_bound(second);
        assert_eq!(next(&interest), Some(vec![(Key::clone(&key), true, false)]));
        interest.bound(&key);
        assert!(matches!(second_notices.try_recv(), Ok(Notice::Subscribed(_, 2))));
        assert!(first_notices.try_recv().is_err());

        interest.unwant(&key);
        assert_eq!(next(&interest), Some(vec![(key, false, true)]));
        assert_eq!(next(&interest), None);
    }

    #[test]
    fn nothing_is_kept_of_keys_that_come_and_go_while_the_broker_is_away_or_slow() {
        let interest = interest(&[]);
        for is_followed in [false, true] {
            for id in 0..1_000 {
                let (terms, _news) = terms(id, &id.to_string());
                interest.notify_when_bound(Arc::clone(&terms));
                interest.want(&terms.key);
                interest.remove(&terms);
                interest.unwant(&terms.key);
            }
            assert!(is_empty(&interest), "followed: {is_followed}");
            interest.follow();
        }
        // A bound key must be unbound, but not if the connection was lost.
        let key = Key::from("tea");
        interest.want(&key);
        assert_eq!(next(&interest), Some(vec![(Key::clone(&key), true, true)]));
        interest.unwant(&key);
        assert!(!is_empty(&interest));
        interest.unfollow();
        assert!(is_empty(&interest));
    }

    #[test]
    fn wanted_keys_are_bound_again_by_each_session() {
        let (interest, key) = (interest(&[]), Key::from("tea"));
        interest.want(&key);
        for _ in 0..2 {
            interest.follow();
            assert_eq!(next(&interest), Some(vec![(Key::clone(&key), true, true)]));
            interest.recheck("left over");
            assert_eq!(next(&interest), Some(vec![("left over".into(), false, true)]));
            interest.recheck("left over");
            assert_eq!(next(&interest), None, "the key is known to be unbound");
            interest.unfollow();
        }
    }

    #[test]
    fn nothing_is_kept_of_a_subscription_that_never_received() {
        let (interest, key) = (interest(&[]), Key::from("tea"));
        let (terms, mut notices) = terms(1, "tea");
        interest.notify_when_bound(Arc::clone(&terms));
        interest.remove(&terms);
        assert!(is_empty(&interest));
        interest.bound(&key);
        assert!(notices.try_recv().is_err());
    }

    #[test]
    fn a_key_that_is_unbound_has_a_gap_in_its_history() {
        let (interest, key) = (interest(&["--history", "9"]), Key::from("tea"));
        let history = interest.board.history.as_ref().unwrap();
        interest.follow();
        interest.want(&key);
        next(&interest);
        interest.unwant(&key);
        interest.want(&key);
        next(&interest);
        assert_eq!(history.last("tea"), 0, "the key stays bound");
        interest.unwant(&key);
        next(&interest);
        interest.want(&key);
        next(&interest);
        assert_eq!(history.last("tea"), 1);
    }
}
