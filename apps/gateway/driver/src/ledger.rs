//! Compares what one client received with what was published.

use std::collections::HashMap;
use std::ops::AddAssign;

use crate::message::Key;

/// The account of one client: which messages of each key arrived, and in which order.
#[derive(Default)]
pub struct Ledger {
    keys: HashMap<Key, Entry>,
    sums: Tally,
}

#[derive(Default)]
struct Entry {
    /// Whether a message arrived, by sequence number.
    seen: Vec<bool>,
    /// The highest sequence number that arrived.
    highest: Option<usize>,
    arrived: u64,
    reported_lost: u64,
}

/// The classification of a received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    First,
    /// It arrived before.
    Duplicate,
    /// Not subscribed to, or never published.
    Misplaced,
}

/// Counts of messages.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    pub expected: u64,
    /// Without duplicates.
    pub delivered: u64,
    pub duplicated: u64,
    /// Duplicates that were not marked as redelivered.
    pub unmarked: u64,
    /// Never arrived.
    pub lost: u64,
    /// Reported as lost by the gateway.
    pub reported_lost: u64,
    /// Arrived for the first time after a later one of the same key.
    pub disordered: u64,
    pub misplaced: u64,
    /// The contents differ from what was published.
    pub damaged: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.expected += other.expected;
        self.delivered += other.delivered;
        self.duplicated += other.duplicated;
        self.unmarked += other.unmarked;
        self.lost += other.lost;
        self.reported_lost += other.reported_lost;
        self.disordered += other.disordered;
        self.misplaced += other.misplaced;
        self.damaged += other.damaged;
    }
}

impl Ledger {
    /// Creates the account of a client that must get this number of messages of each key, numbered
    /// from 0.
    pub fn new(keys: impl IntoIterator<Item = (Key, usize)>) -> Self {
        let entry = |expected| Entry { seen: vec![false; expected], ..Entry::default() };
        let keys = keys.into_iter().map(|(key, expected)| (key, entry(expected))).collect();
        Self { keys, sums: Tally::default() }
    }

    pub fn receive(&mut self, key: &str, number: usize, redelivered: bool) -> Receipt {
        let entry = self.keys.get_mut(key);
        let Some((entry, false)) = entry.map(|entry| {
            let unknown = number >= entry.seen.len();
            (entry, unknown)
        }) else {
            self.sums.misplaced += 1;
            return Receipt::Misplaced;
        };
        if std::mem::replace(&mut entry.seen[number], true) {
            self.sums.duplicated += 1;
            self.sums.unmarked += u64::from(!redelivered);
            return Receipt::Duplicate;
        }
        entry.arrived += 1;
        if entry.highest.is_some_and(|highest| highest > number) {
            self.sums.disordered += 1;
        } else {
            entry.highest = Some(number);
        }
        Receipt::First
    }

    /// Counts a message with damaged contents.
    pub fn damaged(&mut self) {
        self.sums.damaged += 1;
    }

    /// Counts a message of a key that is not, or no longer, subscribed to.
    pub fn misplaced(&mut self) {
        self.sums.misplaced += 1;
    }

    /// Records that the gateway has reported `count` lost messages of the key.
    pub fn reported_lost(&mut self, key: &str, count: u64) {
        match self.keys.get_mut(key) {
            Some(entry) => entry.reported_lost += count,
            None => self.sums.misplaced += 1,
        }
    }

    /// Returns `true` if each message of each key has arrived or was reported as lost.
    pub fn is_accounted(&self) -> bool {
        self.keys
            .values()
            .all(|entry| entry.arrived + entry.reported_lost >= entry.seen.len() as u64)
    }

    /// Returns the number of keys whose reported losses differ from the missing messages.
    pub fn misreported(&self) -> usize {
        let is_wrong =
            |entry: &Entry| entry.arrived + entry.reported_lost != entry.seen.len() as u64;
        self.keys.values().filter(|entry| is_wrong(entry)).count()
    }

    /// Describes some of the missing messages.
    pub fn missing(&self) -> Vec<String> {
        let missing = self.keys.iter().filter_map(|(key, entry)| {
            let first = entry.seen.iter().position(|seen| !seen)?;
            let last = entry.seen.iter().rposition(|seen| !seen)?;
            let count = entry.seen.iter().filter(|seen| !**seen).count();
            Some(format!("{count} of {key:?}, from {first} to {last}"))
        });
        missing.collect()
    }

    pub fn tally(&self) -> Tally {
        let mut tally = self.sums;
        for entry in self.keys.values() {
            tally.expected += entry.seen.len() as u64;
            tally.delivered += entry.arrived;
            tally.reported_lost += entry.reported_lost;
        }
        tally.lost = tally.expected - tally.delivered;
        tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        Ledger::new([("a".into(), 3), ("b".into(), 1)])
    }

    #[test]
    fn all_that_was_published_in_order() {
        let mut ledger = ledger();
        for (key, number) in [("a", 0), ("b", 0), ("a", 1), ("a", 2)] {
            assert_eq!(ledger.receive(key, number, false), Receipt::First);
        }
        assert_eq!(ledger.tally(), Tally { expected: 4, delivered: 4, ..Tally::default() });
        assert!(ledger.missing().is_empty() && ledger.is_accounted());
    }

    #[test]
    fn a_gap_is_a_loss() {
        let mut ledger = ledger();
        ledger.receive("a", 0, false);
        ledger.receive("a", 2, false);
        let tally = ledger.tally();
        assert_eq!((tally.delivered, tally.lost, tally.disordered), (2, 2, 0));
        let mut missing = ledger.missing();
        missing.sort();
        assert_eq!(missing, ["1 of \"a\", from 1 to 1", "1 of \"b\", from 0 to 0"]);
    }

    #[test]
    fn late_messages_are_out_of_order_and_not_lost() {
        let mut ledger = ledger();
        for number in [2, 0, 1] {
            assert_eq!(ledger.receive("a", number, false), Receipt::First);
        }
        let tally = ledger.tally();
        assert_eq!((tally.delivered, tally.lost, tally.disordered), (3, 1, 2));
    }

    #[test]
    fn duplicates_are_neither_out_of_order_nor_deliveries() {
        let mut ledger = ledger();
        for (number, again) in [(0, false), (1, false), (0, true), (1, false), (2, false)] {
            ledger.receive("a", number, again);
        }
        let tally = ledger.tally();
        assert_eq!((tally.delivered, tally.duplicated, tally.unmarked), (3, 2, 1));
        assert_eq!((tally.lost, tally.disordered), (1, 0));
    }

    #[test]
    fn unrequested_messages_are_misplaced() {
        let mut ledger = ledger();
        assert_eq!(ledger.receive("c", 0, false), Receipt::Misplaced);
        assert_eq!(ledger.receive("b", 1, false), Receipt::Misplaced);
        assert_eq!((ledger.tally().misplaced, ledger.tally().delivered), (2, 0));
    }

    #[test]
    fn a_notice_accounts_for_reported_losses_only() {
        let mut ledger = ledger();
        ledger.receive("b", 0, false);
        ledger.receive("a", 2, false);
        ledger.reported_lost("a", 1);
        assert!(!ledger.is_accounted());
        assert_eq!(ledger.misreported(), 1);
        ledger.reported_lost("a", 1);
        assert!(ledger.is_accounted());
        assert_eq!(ledger.misreported(), 0);
        ledger.reported_lost("a", 1);
        assert_eq!(ledger.misreported(), 1);
    }
}
