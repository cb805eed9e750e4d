//! The last messages of each key, for clients that reconnect (`--history`).
//!
//! A message gets its position when it enters the demux. The missed messages of a client are
//! collected when the order that attaches it is applied. Both happen in the demux task, so there is
//! neither a gap nor an overlap between replayed and live messages.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};

use lru::LruCache;
use serde_json::{Value, json};

use crate::budget::Budget;
use crate::message::{Key, Message};
use crate::subscription::Share;

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
    kept: Mutex<Kept>,
}

struct Kept {
    /// Ordered by last publication: the least recently published key is removed first.
    logs: LruCache<Key, Log>,
    bytes: usize,
    /// At least the highest position of any removed key. A new entry starts above it, so that
    /// positions of a key never decrease.
    floor: u64,
}

struct Log {
    messages: VecDeque<Message>,
    bytes: usize,
    /// The position of the last message.
    last: u64,
}

/// The messages that a client missed, as far as they are kept.
pub struct Missed {
    pub messages: Vec<Message>,
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
    /// Returns `None` if no messages are to be kept.
    pub fn new(most: u32, max_queued: usize) -> Option<Self> {
        let kept = Kept { logs: LruCache::unbounded(), bytes: 0, floor: 0 };
        (most > 0).then(|| Self {
            epoch: format!("{:016x}", RandomState::new().hash_one(())),
            most: most as usize,
            most_bytes: max_queued / PART,
            kept: Mutex::new(kept),
        })
    }

    /// Assigns a message its position, and keeps it.
    pub fn keep(&self, message: &mut Message, budget: &Arc<Budget>) {
        let mut kept = self.kept.lock().unwrap();
        let log = kept.log(message.key());
        log.last += 1;
        message.stamp(log.last);
        log.messages.push_back(message.to_keep(budget));
        log.bytes += message.size();
        let excess = if log.messages.len() > self.most { log.remove_first() } else { 0 };
        kept.bytes += message.size();
        kept.bytes -= excess;
        self.bound(&mut kept);
    }

    /// Records that messages of this key may be published without reaching the gateway from now on.
    /// Skips one position in place of all of them, so that a replay from an earlier position
    /// reports a gap.
    pub fn interrupt(&self, key: &str) {
        let mut kept = self.kept.lock().unwrap();
        kept.log(key).last += 1;
        self.bound(&mut kept);
    }

    /// Removes messages until the bound on bytes is met.
    fn bound(&self, kept: &mut Kept) {
        let Kept { logs, bytes, floor } = kept;
        // Removes one message at a time, as a key may have many. A single key may use all of the
        // space.
        while *bytes > self.most_bytes
            && let Some((_, log)) = logs.iter_mut().next_back()
        {
            if log.messages.is_empty() {
                *bytes -= log.bytes;
                *floor = log.last.max(*floor);
                logs.pop_lru();
            } else {
                *bytes -= log.remove_first();
            }
        }
    }

    /// Returns the kept messages after a position: the newest that fit into the client's share.
    /// Returns all that are kept if the position is not of this run.
    pub fn since(&self, key: &str, from: &Since, share: &Share) -> Missed {
        let Kept { logs, floor, .. } = &*self.kept.lock().unwrap();
        let log = logs.peek(key);
        let last = log.map_or(*floor, |log| log.last);
        let is_of_this_run = from.epoch.as_ref().map_or(from.at == 0, |epoch| *epoch == self.epoch);
        let is_known = is_of_this_run && from.at <= last;
        let (at, missed) = if is_known { (from.at, last - from.at) } else { (0, u64::MAX) };
        let newest = log.into_iter().flat_map(|log| log.messages.iter().rev());
        let newest = newest.take(if from.latest { 1 } else { usize::MAX });
        let wanted = newest.take_while(|message| message.at() > at && share.take_kept(message));
        let mut messages: Vec<_> = wanted.cloned().collect();
        messages.reverse();
        let has_gap = !from.latest && (messages.len() as u64) < missed;
        let after = messages.first().map_or(last, |first| first.at() - 1);
        Missed { messages, after, last, has_gap }
    }

    /// Returns the position of the last message of a key.
    pub fn last(&self, key: &str) -> u64 {
        let kept = self.kept.lock().unwrap();
        kept.logs.peek(key).map_or(kept.floor, |log| log.last)
    }

    /// Returns the position of the last message of a key, and how many messages are kept.
    pub fn summary(&self, key: &str) -> (Value, Value) {
        let kept = self.kept.lock().unwrap();
        let log = kept.logs.peek(key);
        log.map_or((0.into(), 0.into()), |log| (log.last.into(), log.messages.len().into()))
    }

    pub fn to_json(&self) -> Value {
        let kept = self.kept.lock().unwrap();
        json!({ "epoch": self.epoch, "most": self.most, "keys": kept.logs.len(), "bytes": kept.bytes })
    }
}

impl Kept {
    fn log(&mut self, key: &str) -> &mut Log {
        if !self.logs.contains(key) {
            let size = OVERHEAD + key.len();
            self.bytes += size;
            let log = Log { messages: VecDeque::new(), bytes: size, last: self.floor };
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
    use crate::config::Policy;

    #[test]
    fn an_interruption_is_a_gap_for_earlier_positions_only() {
        let budget = Arc::new(Budget::new(1 << 20));
        let share = Share::new(100, Arc::clone(&budget), Policy::DropOldest);
        let history = History::new(2, 1 << 20).unwrap();
        let keep = || history.keep(&mut Message::new("tea".into(), b"x", None), &budget);
        let since = |at| {
            let from = Since { at, epoch: Some(history.epoch.clone()), latest: false };
            let Missed { messages, after, last, has_gap } = history.since("tea", &from, &share);
            let kept: Vec<_> = messages.iter().map(Message::at).collect();
            (kept, after, last, has_gap)
        };
        (0..3).for_each(|_| keep());
        assert_eq!(since(3), (vec![], 3, 3, false));
        assert_eq!(since(2), (vec![3], 2, 3, false));
        assert_eq!(since(0), (vec![2, 3], 1, 3, true), "1 is removed");
        history.interrupt("tea");
        assert_eq!(since(3), (vec![], 4, 4, true), "no message twice");
        assert_eq!(since(4), (vec![], 4, 4, false), "the client left after the interruption");
        keep();
        assert_eq!(since(3), (vec![5], 4, 5, true));
        assert_eq!(since(4), (vec![5], 4, 5, false));
        history.interrupt("new");
        assert_eq!(history.last("new"), 1);
    }
}
