//! The keys that clients want, which the queue is to be bound for.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::board::Board;
use crate::message::Key;
use crate::subscription::Terms;

/// Keys that are bound, or unbound, at once.
const BATCH: usize = 64;
/// Keys of which it is remembered that they are not bound.
const UNBOUND: usize = 10_000;

/// The demux reports when a key gets its first subscription and when it loses the last one. Only the
/// keys that are wanted now are kept, and those that are bound: bindings are made to match, whatever
/// happened in between. While the broker is away, nothing is bound as far as is known.
pub struct Interest {
    pub follows: bool,
    keys: Mutex<Keys>,
    changed: Notify,
    board: Arc<Board>,
}

#[derive(Default)]
struct Keys {
    /// A session makes the bindings match.
    is_followed: bool,
    wanted: HashSet<Key>,
    /// Subscriptions to be told once the queue is bound for their key.
    waiting: HashMap<Key, Vec<Arc<Terms>>>,
    /// Whether the queue is bound for a key, or about to be, as far as that is known.
    bound: HashMap<Key, bool>,
    /// Their bindings may not match.
    unsure: HashSet<Key>,
}

impl Interest {
    /// If it does not follow the subscriptions, bindings are left as they are.
    pub fn new(follows: bool, board: Arc<Board>) -> Self {
        Self { follows, keys: Mutex::default(), changed: Notify::new(), board }
    }

    /// The first subscription to this key receives.
    pub fn want(&self, key: &Key) {
        let mut keys = self.keys.lock().unwrap();
        keys.wanted.insert(Key::clone(key));
        self.look_at(&mut keys, Key::clone(key));
    }

    /// No subscription to this key receives.
    pub fn unwant(&self, key: &Key) {
        let mut keys = self.keys.lock().unwrap();
        keys.wanted.remove(key);
        if keys.bound.get(key) == Some(&true) {
            self.look_at(&mut keys, Key::clone(key));
        } else {
            // It came and went before it was bound: nothing is kept of it.
            keys.unsure.remove(key);
        }
    }

    /// Tells a subscription when the queue is bound for its key. If it is the first, its key is
    /// [wanted](Self::want) after this call.
    pub fn tell_when_bound(&self, terms: Arc<Terms>) {
        let mut keys = self.keys.lock().unwrap();
        let key = Key::clone(&terms.key);
        keys.waiting.entry(Key::clone(&key)).or_default().push(terms);
        if keys.wanted.contains(&key) {
            self.look_at(&mut keys, key);
        }
    }

    /// This subscription has ended.
    pub fn forget(&self, terms: &Terms) {
        let mut keys = self.keys.lock().unwrap();
        if let Some(waiting) = keys.waiting.get_mut(&terms.key) {
            waiting.retain(|other| other.id != terms.id);
            if waiting.is_empty() {
                keys.waiting.remove(&terms.key);
            }
        }
    }

    /// A message came that nobody wants: the queue may be bound for its key since an earlier life.
    pub fn doubt(&self, key: &str) {
        let mut keys = self.keys.lock().unwrap();
        if self.follows && keys.bound.get(key) != Some(&false) {
            self.look_at(&mut keys, key.into());
        }
    }

    fn look_at(&self, keys: &mut Keys, key: Key) {
        if keys.is_followed {
            keys.unsure.insert(key);
            self.changed.notify_one();
        }
    }

    /// A session begins: nothing is known of the bindings.
    pub fn follow(&self) {
        let keys = &mut *self.keys.lock().unwrap();
        keys.is_followed = true;
        keys.unsure.extend(keys.wanted.iter().cloned());
        self.changed.notify_one();
    }

    /// It has ended.
    pub fn unfollow(&self) {
        let keys = &mut *self.keys.lock().unwrap();
        keys.is_followed = false;
        (keys.bound, keys.unsure) = Default::default();
    }

    /// Some keys to look at: whether each is wanted, and whether its binding is to be changed.
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
                            // With the lock: a subscription that comes next finds the gap.
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

    /// The queue is bound for this key.
    pub fn bound(&self, key: &Key) {
        // The lock is released before they are told.
        let waiting = self.keys.lock().unwrap().waiting.remove(key);
        waiting.unwrap_or_default().iter().for_each(|terms| terms.subscribed());
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use futures::FutureExt;
    use tokio::sync::mpsc;

    use super::*;
    use crate::budget::Budget;
    use crate::config::{Config, Policy};
    use crate::subscription::{News, Share, Wish};

    fn terms(id: u64, key: &str) -> (Arc<Terms>, mpsc::UnboundedReceiver<News>) {
        let board = Arc::new(Board::new(&Config::parse_from(["gateway"])));
        let share = Arc::new(Share::new(1, Arc::new(Budget::new(1)), Policy::Wait));
        let (news, heard) = mpsc::unbounded_channel();
        let client = ([127, 0, 0, 1], 1).into();
        let wish = Wish::default();
        (Arc::new(Terms::new(id, key.into(), client, &wish, share, news, board)), heard)
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
    fn each_subscription_is_told_once_its_key_is_bound() {
        let (interest, key) = (interest(&[]), Key::from("tea"));
        interest.follow();
        let (first, mut first_news) = terms(1, "tea");
        interest.tell_when_bound(first);
        assert_eq!(next(&interest), None, "the key is not attached yet");
        interest.want(&key);
        assert_eq!(next(&interest), Some(vec![(Key::clone(&key), true, true)]));
        assert!(first_news.try_recv().is_err(), "the binding is under way");
        interest.bound(&key);
        assert!(matches!(first_news.try_recv(), Ok(News::Subscribed(_, 1))));

        // It joins: the key is attached already.
        let (second, mut second_news) = terms(2, "tea");
        interest.tell_when_bound(second);
        assert_eq!(next(&interest), Some(vec![(Key::clone(&key), true, false)]));
        interest.bound(&key);
        assert!(matches!(second_news.try_recv(), Ok(News::Subscribed(_, 2))));
        assert!(first_news.try_recv().is_err());

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
                interest.tell_when_bound(Arc::clone(&terms));
                interest.want(&terms.key);
                interest.forget(&terms);
                interest.unwant(&terms.key);
            }
            assert!(is_empty(&interest), "followed: {is_followed}");
            interest.follow();
        }
        // Once it is bound it has to be unbound, but not after the connection was lost.
        let key = Key::from("tea");
        interest.want(&key);
        assert_eq!(next(&interest), Some(vec![(Key::clone(&key), true, true)]));
        interest.unwant(&key);
        assert!(!is_empty(&interest));
        interest.unfollow();
        assert!(is_empty(&interest));
    }

    #[test]
    fn what_is_wanted_is_bound_anew_by_each_session() {
        let (interest, key) = (interest(&[]), Key::from("tea"));
        interest.want(&key);
        for _ in 0..2 {
            interest.follow();
            assert_eq!(next(&interest), Some(vec![(Key::clone(&key), true, true)]));
            interest.doubt("left over");
            assert_eq!(next(&interest), Some(vec![("left over".into(), false, true)]));
            interest.doubt("left over");
            assert_eq!(next(&interest), None, "it is known not to be bound");
            interest.unfollow();
        }
    }

    #[test]
    fn nothing_is_kept_of_a_subscription_that_never_received() {
        let (interest, key) = (interest(&[]), Key::from("tea"));
        let (terms, mut news) = terms(1, "tea");
        interest.tell_when_bound(Arc::clone(&terms));
        interest.forget(&terms);
        assert!(is_empty(&interest));
        interest.bound(&key);
        assert!(news.try_recv().is_err());
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
        assert_eq!(history.last("tea"), 0, "it stays bound");
        interest.unwant(&key);
        next(&interest);
        interest.want(&key);
        next(&interest);
        assert_eq!(history.last("tea"), 1);
    }
}
