//! The last messages of each key, for clients that reconnect (`--history`).
//!
//! A message gets its position when it enters the demux. The missed messages of a client are
//! collected when the order that attaches it is applied. Both happen in the demux task, so there is
//! neither a gap nor an overlap between replayed and live messages.
//!
//! Without a gap, a client has heard, or is going to hear, every message that was published after
//! its position. This is known only of keys that are covered: without a broker all of them, and
//! with one those that the queue has been bound to without interruption ([`crate::interest`]).
//! When a key is covered, one position is skipped, for all messages that were published before
//! without being received. So a client with an earlier position is told of the gap, even if it
//! returns much later.

use std::collections::{HashMap, VecDeque, vec_deque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use lru::LruCache;
use serde_json::{Value, json};

use crate::budget::Budget;
use crate::lock::Lock;
use crate::message::{Key, Message};

/// At most this part of `--max-queued` is kept. With `wait`, the rest is left for messages.
const PART: usize = 4;
/// Bytes counted for a key beside its messages, so that the bound on bytes also bounds the keys.
const OVERHEAD: usize = 512;

pub struct History {
    /// Identifies this run: positions of other runs are not valid.
    pub epoch: String,
    /// The maximum number of messages of a key.
    most: usize,
    most_bytes: usize,
    kept: Lock<Kept>,
}

struct Kept {
    /// Ordered by last publication: the least recently published key is removed first.
    logs: LruCache<Key, Log>,
    bytes: usize,
    /// At least the highest position of any removed key. A new entry starts above it, so that
    /// positions of a key never decrease.
    floor: u64,
    covered: Covered,
}

/// The keys of which all messages are received.
enum Covered {
    All,
    /// The position since which a key is covered, or the last one of its messages, if they are
    /// removed. It does not depend on `floor`, so that clients of other keys are told of no gap.
    Keys(HashMap<Key, u64>),
}

struct Log {
    messages: VecDeque<Message>,
    bytes: usize,
    /// The position of the last message.
    last: u64,
    /// The broker does not allow the key to be read: its messages are not kept.
    is_forbidden: bool,
}

/// The messages that a client missed, as far as they are kept.
pub struct Missed {
    /// The positions of the first and the last of them.
    pub kept: Option<(u64, u64)>,
    /// The position before the first of them.
    pub after: u64,
    /// The last position of the key.
    pub last: u64,
    /// `true` if earlier messages may be missing.
    pub has_gap: bool,
}

/// The last position of a key that a client knows.
pub struct Since {
    pub at: u64,
    pub epoch: Option<String>,
    /// The client needs only the last message.
    pub latest: bool,
}

impl History {
    /// Returns `None` if no messages are to be kept. With a broker, no key is covered yet.
    pub fn new(most: u32, max_queued: usize, has_broker: bool) -> Option<Self> {
        let covered = if has_broker { Covered::Keys(HashMap::new()) } else { Covered::All };
        let kept = Kept { logs: LruCache::unbounded(), bytes: 0, floor: 0, covered };
        (most > 0).then(|| Self {
            epoch: format!("{:016x}", RandomState::new().hash_one(())),
            most: most as usize,
            most_bytes: max_queued / PART,
            kept: Lock::new(kept),
        })
    }

    /// Assigns a message its position, and keeps it.
    pub fn keep(&self, message: &mut Message, budget: &Arc<Budget>) {
        let mut kept = self.kept.lock();
        let log = kept.log(message.key());
        log.last += 1;
        message.stamp(log.last);
        if log.is_forbidden {
            return;
        }
        log.messages.push_back(message.to_keep(budget));
        log.bytes += message.size();
        let excess = if log.messages.len() > self.most { log.remove_first() } else { 0 };
        kept.bytes += message.size();
        kept.bytes -= excess;
        self.bound(&mut kept);
    }

    /// Records that all messages of this key are received from now on. Returns the position before
    /// the first of them, unless this was so before.
    pub fn cover(&self, key: &Key) -> Option<u64> {
        let Kept { logs, floor, covered, .. } = &mut *self.kept.lock();
        let Covered::Keys(keys) = covered else { return None };
        if keys.contains_key(key) {
            return None;
        }
        let log = logs.peek_mut(key);
        let at = log.as_ref().map_or(*floor, |log| log.last) + 1;
        if let Some(log) = log {
            log.last = at;
            log.is_forbidden = false;
        }
        keys.insert(Key::clone(key), at);
        Some(at)
    }

    /// Called when the broker does not allow this key to be read any more. Removes what is kept of
    /// it. Its messages may go on to come, and are not kept until the key is covered again.
    pub fn forbid(&self, key: &Key) {
        self.uncover(key);
        let messages = {
            let kept = &mut *self.kept.lock();
            let Some(log) = kept.logs.peek_mut(key) else { return };
            log.is_forbidden = true;
            let messages = std::mem::take(&mut log.messages);
            let size: usize = messages.iter().map(Message::size).sum();
            log.bytes -= size;
            kept.bytes -= size;
            messages
        };
        drop(messages); // without the lock, as there may be many
    }

    /// Records that messages of this key may be published without being received.
    pub fn uncover(&self, key: &Key) {
        let Kept { logs, floor, covered, .. } = &mut *self.kept.lock();
        if let Covered::Keys(keys) = covered
            && let Some(last) = keys.remove(key)
            && !logs.contains(key)
        {
            *floor = last.max(*floor);
        }
    }

    /// Records that all messages of all keys are received from now on.
    pub fn cover_all(&self) {
        let Kept { logs, floor, covered, .. } = &mut *self.kept.lock();
        if matches!(covered, Covered::Keys(_)) {
            *covered = Covered::All;
            *floor += 1;
            logs.iter_mut().for_each(|(_, log)| log.last += 1);
        }
    }

    /// Records that messages of any key may be published without being received.
    pub fn uncover_all(&self) {
        let Kept { floor, covered, .. } = &mut *self.kept.lock();
        if let Covered::Keys(keys) = covered {
            *floor = keys.values().copied().max().unwrap_or(0).max(*floor);
        }
        *covered = Covered::Keys(HashMap::new());
    }

    /// Removes messages until the bound on bytes is met.
    fn bound(&self, kept: &mut Kept) {
        let Kept { logs, bytes, floor, covered } = kept;
        // Removes one message at a time, as a key may have many. A single key may use all of the
        // space.
        while *bytes > self.most_bytes
            && let Some((key, log)) = logs.iter_mut().next_back()
        {
            if log.messages.is_empty() {
                *bytes -= log.bytes;
                match covered {
                    Covered::Keys(keys) if keys.contains_key(key) => {
                        keys.insert(Key::clone(key), log.last);
                    }
                    _ => *floor = log.last.max(*floor),
                }
                logs.pop_lru();
            } else {
                *bytes -= log.remove_first();
            }
        }
    }

    /// Returns which messages are kept after a position; all that are kept if the position is not
    /// of this run.
    pub fn since(&self, key: &str, from: &Since) -> Missed {
        let kept = &*self.kept.lock();
        let last = kept.last(key);
        let is_of_this_run = from.epoch.as_ref().map_or(from.at == 0, |epoch| *epoch == self.epoch);
        let is_known = is_of_this_run && from.at <= last;
        let (at, missed) = if is_known { (from.at, last - from.at) } else { (0, u64::MAX) };
        let all = kept.after(key, at);
        let start = if from.latest { all.len().saturating_sub(1) } else { 0 };
        let first = all.clone().nth(start).map(Message::at);
        let newest = all.clone().next_back().map(Message::at);
        let has_all = if from.latest {
            missed == 0 || newest == Some(last)
        } else {
            all.len() as u64 == missed
        };
        Missed {
            kept: first.zip(newest),
            after: first.map_or(last, |first| first - 1),
            last,
            has_gap: !(has_all && kept.is_covered(key)),
        }
    }

    /// Returns the first message that is kept between these positions.
    pub fn first(&self, key: &str, (first, last): (u64, u64)) -> Option<Message> {
        let kept = self.kept.lock();
        kept.after(key, first - 1).next().filter(|message| message.at() <= last).cloned()
    }

    /// Returns the position of the last message of a key.
    pub fn last(&self, key: &str) -> u64 {
        self.kept.lock().last(key)
    }

    /// Returns the position of the last message of a key, and how many messages are kept.
    pub fn summary(&self, key: &str) -> (Value, Value) {
        let kept = self.kept.lock();
        let log = kept.logs.peek(key);
        log.map_or((0.into(), 0.into()), |log| (log.last.into(), log.messages.len().into()))
    }

    pub fn to_json(&self) -> Value {
        let kept = self.kept.lock();
        json!({ "epoch": self.epoch, "most": self.most, "keys": kept.logs.len(), "bytes": kept.bytes })
    }
}

impl Kept {
    fn is_covered(&self, key: &str) -> bool {
        match &self.covered {
            Covered::All => true,
            Covered::Keys(keys) => keys.contains_key(key),
        }
    }

    fn last(&self, key: &str) -> u64 {
        let log = self.logs.peek(key).map(|log| log.last);
        log.or_else(|| match &self.covered {
            Covered::All => None,
            Covered::Keys(keys) => keys.get(key).copied(),
        })
        .unwrap_or(self.floor)
    }

    /// Returns the messages of a key after a position.
    fn after(&self, key: &str, at: u64) -> vec_deque::Iter<'_, Message> {
        let messages = self.logs.peek(key).map(|log| &log.messages);
        let start = messages.map_or(0, |all| all.partition_point(|message| message.at() <= at));
        messages.map(|all| all.range(start..)).unwrap_or_default()
    }

    fn log(&mut self, key: &str) -> &mut Log {
        if !self.logs.contains(key) {
            let size = OVERHEAD + key.len();
            self.bytes += size;
            let last = self.last(key);
            let log = Log { messages: VecDeque::new(), bytes: size, last, is_forbidden: false };
            self.logs.put(key.into(), log);
        }
        self.logs.get_mut(key).expect("it was inserted above")
    }
}

impl Log {
    /// Removes the oldest message and returns its size.
    fn remove_first(&mut self) -> usize {
        let size = self.messages.pop_front().map_or(0, |first| first.size());
        self.bytes -= size;
        size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Kept {
        history: History,
        budget: Arc<Budget>,
    }

    fn kept(has_broker: bool, max_queued: usize) -> Kept {
        let budget = Arc::new(Budget::new(1 << 20));
        Kept { history: History::new(2, max_queued, has_broker).unwrap(), budget }
    }

    impl Kept {
        fn keep(&self, key: &str) {
            self.history.keep(&mut Message::new(key.into(), b"x", None), &self.budget);
        }

        /// Returns the kept messages after a position, the position before them, the last one, and
        /// whether there is a gap.
        fn since(&self, key: &str, at: u64, latest: bool) -> (Vec<u64>, u64, u64, bool) {
            let from = Since { at, epoch: Some(self.history.epoch.clone()), latest };
            let Missed { kept, after, last, has_gap } = self.history.since(key, &from);
            let all = kept.into_iter().flat_map(|(first, last)| first..=last);
            let all = all.filter(|at| self.first(key, (*at, *at)).is_some());
            (all.collect(), after, last, has_gap)
        }

        fn first(&self, key: &str, range: (u64, u64)) -> Option<u64> {
            self.history.first(key, range).map(|message| message.at())
        }
    }

    #[test]
    fn without_a_broker_only_removed_messages_are_a_gap() {
        let kept = kept(false, 1 << 20);
        (0..3).for_each(|_| kept.keep("tea"));
        assert_eq!(kept.since("tea", 3, false), (vec![], 3, 3, false));
        assert_eq!(kept.since("tea", 2, false), (vec![3], 2, 3, false));
        assert_eq!(kept.since("tea", 0, false), (vec![2, 3], 1, 3, true), "1 is removed");
        assert_eq!(kept.since("tea", 0, true), (vec![3], 2, 3, false));
        assert_eq!(kept.since("new", 0, false), (vec![], 0, 0, false));
    }

    #[test]
    fn nothing_is_kept_of_a_key_that_must_not_be_read() {
        let (kept, key) = (kept(true, 1 << 20), Key::from("tea"));
        kept.history.cover(&key);
        (0..2).for_each(|_| kept.keep("tea"));
        assert_eq!(kept.since("tea", 1, false), (vec![2, 3], 1, 3, false));
        kept.history.forbid(&key);
        kept.keep("tea");
        assert_eq!(kept.since("tea", 1, false), (vec![], 4, 4, true));
        kept.history.cover(&key); // skips a position
        kept.keep("tea");
        assert_eq!(kept.since("tea", 1, false), (vec![6], 5, 6, true));
    }

    #[test]
    fn messages_are_read_one_by_one_until_they_are_removed() {
        let kept = kept(false, 1 << 20);
        (0..4).for_each(|_| kept.keep("tea"));
        assert_eq!(kept.first("tea", (3, 4)), Some(3));
        kept.keep("tea");
        assert_eq!(kept.first("tea", (3, 4)), Some(4));
        kept.keep("tea");
        assert_eq!(kept.first("tea", (3, 4)), None);
    }

    #[test]
    fn a_key_that_is_not_covered_has_a_gap_and_so_have_positions_before_it_was_covered() {
        let (kept, tea) = (kept(true, 1 << 20), Key::from("tea"));
        kept.keep("tea");
        for latest in [false, true] {
            assert_eq!(kept.since("tea", 1, latest), (vec![], 1, 1, true));
        }
        assert_eq!(kept.history.cover(&tea), Some(2));
        assert_eq!(kept.history.cover(&tea), None, "it was not interrupted");
        assert_eq!(kept.since("tea", 1, false), (vec![], 2, 2, true));
        assert_eq!(kept.since("tea", 1, true), (vec![], 2, 2, true));
        assert_eq!(kept.since("tea", 2, false), (vec![], 2, 2, false));
        kept.keep("tea");
        assert_eq!(kept.since("tea", 1, false), (vec![3], 2, 3, true));
        assert_eq!(kept.since("tea", 1, true), (vec![3], 2, 3, false), "the latest is known");
        kept.history.uncover(&tea);
        assert_eq!(kept.since("tea", 3, false), (vec![], 3, 3, true));
        assert_eq!(kept.history.cover(&tea), Some(4));
        assert_eq!(kept.since("tea", 3, false), (vec![], 4, 4, true));
        assert_eq!(kept.since("tea", 4, false), (vec![], 4, 4, false));
    }

    #[test]
    fn keys_without_messages_have_positions_too() {
        let (kept, tea, mate) = (kept(true, 1 << 20), Key::from("tea"), Key::from("mate"));
        assert_eq!((kept.history.cover(&tea), kept.history.cover(&mate)), (Some(1), Some(1)));
        assert_eq!(kept.since("tea", 0, false), (vec![], 1, 1, true));
        kept.history.uncover(&tea);
        assert_eq!(kept.history.cover(&tea), Some(2), "position 1 is before the interruption");
        assert_eq!(kept.since("tea", 1, false), (vec![], 2, 2, true));
        assert_eq!(kept.since("mate", 1, false), (vec![], 1, 1, false), "another key");
        kept.keep("tea");
        assert_eq!(kept.since("tea", 2, false), (vec![3], 2, 3, false));
        assert_eq!(kept.history.to_json()["keys"], 1, "only keys with messages are counted");
    }

    #[test]
    fn removed_messages_of_a_covered_key_are_a_gap_for_its_clients_only() {
        let (kept, tea, mate) = (kept(true, 4 * 2_000), Key::from("tea"), Key::from("mate"));
        kept.history.cover(&tea);
        kept.history.cover(&mate);
        kept.keep("tea");
        (0..4).for_each(|n| kept.keep(&format!("another {n}")));
        assert_eq!(kept.since("tea", 1, false), (vec![], 2, 2, true));
        assert_eq!(kept.since("tea", 2, false), (vec![], 2, 2, false));
        assert_eq!(kept.since("mate", 1, false), (vec![], 1, 1, false));
    }

    #[test]
    fn an_interruption_of_all_keys_is_a_gap_in_each_of_them() {
        let kept = kept(true, 1 << 20);
        assert_eq!(kept.since("tea", 0, false), (vec![], 0, 0, true));
        for last in [1, 2] {
            kept.history.cover_all();
            kept.history.cover_all();
            assert_eq!(kept.since("tea", last - 1, false), (vec![], last, last, true));
            assert_eq!(kept.since("tea", last, false), (vec![], last, last, false));
            kept.history.uncover_all();
            assert_eq!(kept.since("tea", last, false), (vec![], last, last, true));
        }
    }
}
