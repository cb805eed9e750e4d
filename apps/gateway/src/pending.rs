//! Keys whose bindings are to be changed, and whose turn it is.
//!
//! The broker changes some hundred bindings a second, and a client can ask for more. So clients
//! take turns: each gets one key, its oldest, before any gets another one. What no client waits for,
//! such as the removal of a binding, gets every second turn, so clients that come and go do not hold
//! it up. Bindings that were made are removed as fast as new ones are made.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::ops::Bound::{Excluded, Unbounded};

use crate::message::Key;

/// The client that waits for a key, or `None`.
type Asker = Option<SocketAddr>;

#[derive(Default)]
pub struct Pending {
    /// By asker and age.
    entries: BTreeMap<(Asker, u64), Key>,
    /// The entries of each key: one for each asker.
    keys: HashMap<Key, Vec<(Asker, u64)>>,
    /// The number of the next entry.
    number: u64,
    /// The client that had the last turn.
    last: Asker,
    /// The last turn was that of a client.
    was_client: bool,
}

impl Pending {
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Adds a key for a client, or for none. If another one waits for the key, too, the key has a
    /// place in the turns of both.
    pub fn insert(&mut self, key: Key, asker: Asker) {
        let places = self.keys.entry(Key::clone(&key)).or_default();
        if places.iter().all(|(other, _)| *other != asker) {
            places.push((asker, self.number));
            self.entries.insert((asker, self.number), key);
            self.number += 1;
        }
    }

    /// Removes a key for all.
    pub fn remove(&mut self, key: &Key) {
        for place in self.keys.remove(key).unwrap_or_default() {
            self.entries.remove(&place);
        }
    }

    /// Removes the place of one client. If it was the only one, the key is removed.
    pub fn leave(&mut self, key: &Key, client: SocketAddr) {
        let Some(places) = self.keys.get_mut(key) else { return };
        let Some(index) = places.iter().position(|(asker, _)| *asker == Some(client)) else {
            return;
        };
        self.entries.remove(&places.swap_remove(index));
        if places.is_empty() {
            self.keys.remove(key);
        }
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.keys.clear();
    }

    /// Removes the key whose turn it is.
    pub fn pop(&mut self) -> Option<Key> {
        let after = |asker: Asker| self.entries.range((Excluded((asker, u64::MAX)), Unbounded));
        let client = after(self.last).next().or_else(|| after(None).next());
        let unasked = self.entries.first_key_value().filter(|((asker, _), _)| asker.is_none());
        let (place, key) = if self.was_client { unasked.or(client) } else { client.or(unasked) }?;
        self.was_client = place.0.is_some();
        if self.was_client {
            self.last = place.0;
        }
        let key = Key::clone(key);
        self.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use super::*;

    const A: Asker = Some(client(1));
    const B: Asker = Some(client(2));
    const C: Asker = Some(client(3));

    const fn client(port: u16) -> SocketAddr {
        SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
    }

    fn pending<'a>(keys: impl IntoIterator<Item = (&'a str, Asker)>) -> Pending {
        let mut pending = Pending::new();
        for (key, asker) in keys {
            pending.insert(key.into(), asker);
        }
        pending
    }

    fn pop(pending: &mut Pending) -> Vec<Key> {
        std::iter::from_fn(|| pending.pop()).collect()
    }

    #[track_caller]
    fn assert_order(mut pending: Pending, expected: &[&str]) {
        let popped = pop(&mut pending);
        assert_eq!(popped.iter().map(|key| &**key).collect::<Vec<&str>>(), expected);
        assert!(pending.len() == 0 && pending.entries.is_empty());
    }

    #[test]
    fn clients_take_turns_and_each_gets_its_oldest_key() {
        let keys = [("a1", A), ("a2", A), ("a3", A), ("c1", C), ("b1", B), ("b2", B)];
        assert_order(pending(keys), &["a1", "b1", "c1", "a2", "b2", "a3"]);
    }

    #[test]
    fn what_no_client_waits_for_gets_every_second_turn() {
        let keys = [("n1", None), ("n2", None), ("n3", None), ("a1", A), ("b1", B), ("a2", A)];
        assert_order(pending(keys), &["a1", "n1", "b1", "n2", "a2", "n3"]);
        assert_order(pending([("n1", None), ("n2", None)]), &["n1", "n2"]);
    }

    #[test]
    fn key_that_several_wait_for_comes_with_the_first_of_them_and_once() {
        let keys = [("a1", A), ("a2", A), ("both", A), ("b1", B), ("both", B), ("both", B)];
        assert_order(pending(keys), &["a1", "b1", "a2", "both"]);
        assert_order(pending([("n", None), ("a", A), ("n", B)]), &["a", "n"]);
    }

    #[test]
    fn a_client_that_goes_on_asking_does_not_overtake_the_others() {
        let mut pending = pending([("a0", A), ("b0", B)]);
        for round in 1..4 {
            pending.insert(format!("a{round}").into(), A);
            pending.insert(format!("b{round}").into(), B);
            assert_eq!(&*pending.pop().unwrap(), format!("a{}", round - 1));
            assert_eq!(&*pending.pop().unwrap(), format!("b{}", round - 1));
        }
    }

    #[test]
    fn nothing_is_kept_of_keys_that_were_removed() {
        let mut pending = pending([("k", A), ("k", B), ("k", None), ("other", A)]);
        pending.leave(&"k".into(), "127.0.0.1:1".parse().unwrap());
        assert_eq!((pending.len(), pending.entries.len()), (2, 3));
        pending.remove(&"k".into());
        pending.leave(&"k".into(), "127.0.0.1:2".parse().unwrap());
        pending.leave(&"other".into(), "127.0.0.1:2".parse().unwrap());
        assert_eq!(pending.entries.len(), 1);
        pending.leave(&"other".into(), "127.0.0.1:1".parse().unwrap());
        assert!(pending.len() == 0 && pending.entries.is_empty());
    }
}
