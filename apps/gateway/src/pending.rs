//! Keys whose bindings are to be changed, and whose turn it is.
//!
//! The broker changes some hundred bindings a second, and a client can ask for more. So clients
//! take turns, in rounds: in each, a client gets one key, its oldest. A key is put into the round
//! after the present one, or after that of the client's last key, so those who ask later never
//! overtake it, however many they are (start-time fair queuing, Goyal, Vin and Cheng, 1996). What no
//! client waits for, such as the removal of a binding, gets every second turn, so clients that come
//! and go do not hold it up. Bindings that were made are removed as fast as new ones are made.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use crate::message::Key;

/// The client that waits for a key, or `None`.
type Asker = Option<SocketAddr>;

/// The round, and the number of the entry, which tells its age.
type Place = (u64, u64);

#[derive(Default)]
pub struct Pending {
    /// Keys that clients wait for.
    asked: BTreeMap<Place, Key>,
    /// Keys that no client waits for.
    unasked: BTreeMap<Place, Key>,
    /// The entries of each key: one for each asker.
    keys: HashMap<Key, Vec<(Asker, Place)>>,
    /// The entries of each client that has one.
    clients: HashMap<SocketAddr, BTreeSet<Place>>,
    /// The number of the next entry.
    number: u64,
    /// The present round.
    round: u64,
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

    /// The number of keys that no client waits for. A key that a client waits for as well counts.
    pub fn len_unasked(&self) -> usize {
        self.unasked.len()
    }

    /// Adds a key for a client, or for none. If another one waits for the key, too, the key has a
    /// place in the turns of both.
    pub fn insert(&mut self, key: Key, asker: Asker) {
        let entries = self.keys.entry(Key::clone(&key)).or_default();
        if entries.iter().any(|(other, _)| *other == asker) {
            return;
        }
        let number = self.number;
        self.number += 1;
        let place = match asker {
            None => (0, number),
            Some(client) => {
                let places = self.clients.entry(client).or_default();
                let last = places.last().map_or(0, |(round, _)| *round);
                let place = (last.max(self.round) + 1, number);
                places.insert(place);
                place
            }
        };
        entries.push((asker, place));
        let queue = if asker.is_some() { &mut self.asked } else { &mut self.unasked };
        queue.insert(place, key);
    }

    /// Removes a key for all.
    pub fn remove(&mut self, key: &Key) {
        for (asker, place) in self.keys.remove(key).unwrap_or_default() {
            self.remove_entry(asker, place);
        }
    }

    /// Removes the place of one client. If it was the only one, the key is removed.
    pub fn leave(&mut self, key: &Key, client: SocketAddr) {
        let Some(entries) = self.keys.get_mut(key) else { return };
        let Some(index) = entries.iter().position(|(asker, _)| *asker == Some(client)) else {
            return;
        };
        let (asker, place) = entries.swap_remove(index);
        if entries.is_empty() {
            self.keys.remove(key);
        }
        self.remove_entry(asker, place);
    }

    fn remove_entry(&mut self, asker: Asker, place: Place) {
        let Some(client) = asker else {
            self.unasked.remove(&place);
            return;
        };
        self.asked.remove(&place);
        if let Some(places) = self.clients.get_mut(&client) {
            places.remove(&place);
            if places.is_empty() {
                self.clients.remove(&client);
            }
        }
    }

    pub fn clear(&mut self) {
        self.asked.clear();
        self.unasked.clear();
        self.keys.clear();
        self.clients.clear();
    }

    /// Removes the key whose turn it is.
    pub fn pop(&mut self) -> Option<Key> {
        let is_client =
            if self.was_client { self.unasked.is_empty() } else { !self.asked.is_empty() };
        let queue = if is_client { &self.asked } else { &self.unasked };
        let ((round, _), key) = queue.first_key_value()?;
        if is_client {
            self.round = *round;
        }
        self.was_client = is_client;
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
        assert_empty(&pending);
    }

    fn assert_empty(pending: &Pending) {
        let entries = (pending.asked.len(), pending.len_unasked());
        assert_eq!((pending.len(), entries, pending.clients.len()), (0, (0, 0), 0));
    }

    #[test]
    fn clients_take_turns_and_each_gets_its_oldest_key() {
        let keys = [("a1", A), ("a2", A), ("a3", A), ("c1", C), ("b1", B), ("b2", B)];
        assert_order(pending(keys), &["a1", "c1", "b1", "a2", "b2", "a3"]);
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

    /// Each with a new address, before or after those of the others.
    #[test]
    fn clients_that_come_and_go_do_not_overtake_those_that_wait() {
        let mut pending = pending([("a1", A), ("a2", A), ("b1", B), ("b2", B), ("b3", B)]);
        let mut turns = Vec::new();
        for port in 3..10 {
            turns.push(pending.pop().unwrap());
            pending.insert(format!("new{port}").into(), Some(client(port)));
        }
        let turns: Vec<&str> = turns.iter().map(|key| &**key).collect();
        assert_eq!(turns, ["a1", "b1", "a2", "b2", "new3", "new4", "b3"]);
    }

    #[test]
    fn nothing_is_kept_of_keys_that_were_removed() {
        let mut pending = pending([("k", A), ("k", B), ("k", None), ("other", A)]);
        pending.leave(&"k".into(), "127.0.0.1:1".parse().unwrap());
        assert_eq!((pending.len(), pending.asked.len(), pending.len_unasked()), (2, 2, 1));
        pending.remove(&"k".into());
        pending.leave(&"k".into(), "127.0.0.1:2".parse().unwrap());
        pending.leave(&"other".into(), "127.0.0.1:2".parse().unwrap());
        assert_eq!((pending.asked.len(), pending.len_unasked()), (1, 0));
        pending.leave(&"other".into(), "127.0.0.1:1".parse().unwrap());
        assert_empty(&pending);
    }
}
