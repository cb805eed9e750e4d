//! The last messages of each key, for clients that come back (`--history`).
//!
//! A message gets its position where it enters the demux, and what a client missed is taken where the order
//! that attaches it is applied. Both happen in the demux task, so there is neither a gap nor an overlap between
//! what is kept and what is live.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};

use lru::LruCache;
use serde_json::{Value, json};

use crate::budget::Budget;
use crate::message::{Key, Message};
use crate::subscription::Share;

/// This part of `--max-queued` is the most that is kept. With `wait`, the rest is left for messages.
const PART: usize = 4;
/// Of a key, beside its messages, in bytes. So the bound on bytes is also one on keys.
const OVERHEAD: usize = 512;

pub struct History {
    /// Of this run: positions of another mean nothing here.
    pub epoch: String,
    /// Messages of a key.
    most: usize,
    most_bytes: usize,
    kept: Mutex<Kept>,
}

struct Kept {
    /// The one that was published to least recently is forgotten first.
    logs: LruCache<Key, Log>,
    bytes: usize,
    /// No key that was forgotten had a higher position. A key begins above it, so that its positions rise also
    /// if it was there before.
    floor: u64,
}

struct Log {
    messages: VecDeque<Message>,
    bytes: usize,
    /// The position of the last message.
    last: u64,
}

/// What a client missed, as far as it is kept.
pub struct Missed {
    pub messages: Vec<Message>,
    /// The position before the first of them.
    pub after: u64,
    /// The last position of the key.
    pub last: u64,
    /// Something else may be missing before them.
    pub has_gap: bool,
}

/// The last that a client knows of a key.
pub struct Since {
    pub at: u64,
    pub epoch: Option<String>,
    /// Only the last message is of use.
    pub latest: bool,
}

impl History {
    /// None if nothing is to be kept.
    pub fn new(most: u32, max_queued: usize) -> Option<Self> {
        let kept = Kept { logs: LruCache::unbounded(), bytes: 0, floor: 0 };
        (most > 0).then(|| Self {
            epoch: format!("{:016x}", RandomState::new().hash_one(())),
            most: most as usize,
            most_bytes: max_queued / PART,
            kept: Mutex::new(kept),
        })
    }

    /// Gives a message its position, and keeps it.
    pub fn keep(&self, message: &mut Message, budget: &Arc<Budget>) {
        let mut kept = self.kept.lock().unwrap();
        let log = kept.log(message.key());
        log.last += 1;
        message.stamp(log.last);
        log.messages.push_back(message.to_keep(budget));
        log.bytes += message.size();
        let excess = if log.messages.len() > self.most { log.forget_first() } else { 0 };
        kept.bytes += message.size();
        kept.bytes -= excess;
        self.bound(&mut kept);
    }

    /// From now on, messages of this key may be published without reaching the gateway. They have
    /// no positions, so one position is left out for all of them: whoever asks for what came after
    /// an earlier one finds a gap.
    pub fn interrupt(&self, key: &str) {
        let mut kept = self.kept.lock().unwrap();
        kept.log(key).last += 1;
        self.bound(&mut kept);
    }

    /// Forgets what exceeds the bound on bytes.
    fn bound(&self, kept: &mut Kept) {
        let Kept { logs, bytes, floor } = kept;
        // Piece by piece, as a key may have many. One key may have all of it, and no more.
        while *bytes > self.most_bytes
            && let Some((_, log)) = logs.iter_mut().next_back()
        {
            if log.messages.is_empty() {
                *bytes -= log.bytes;
                *floor = log.last.max(*floor);
                logs.pop_lru();
            } else {
                *bytes -= log.forget_first();
            }
        }
    }

    /// What came after a position of an epoch, the newest that the client may have waiting. All
    /// that is kept, if the position is not of this run.
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

    /// The position of the last message of a key.
    pub fn last(&self, key: &str) -> u64 {
        let kept = self.kept.lock().unwrap();
        kept.logs.peek(key).map_or(kept.floor, |log| log.last)
    }

    /// The position of the last message of a key, and how many are kept.
    pub fn look_at(&self, key: &str) -> (Value, Value) {
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
        self.logs.get_mut(key).expect("it is there now")
    }
}

impl Log {
    /// How many bytes that was.
    fn forget_first(&mut self) -> usize {
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
    fn what_came_while_the_key_was_interrupted_is_a_gap_for_those_who_were_there_before() {
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
        assert_eq!(since(0), (vec![2, 3], 1, 3, true), "1 is forgotten");
        history.interrupt("tea");
        assert_eq!(since(3), (vec![], 4, 4, true), "nothing twice");
        assert_eq!(since(4), (vec![], 4, 4, false), "it came back after that");
        keep();
        assert_eq!(since(3), (vec![5], 4, 5, true));
        assert_eq!(since(4), (vec![5], 4, 5, false));
        history.interrupt("new");
        assert_eq!(history.last("new"), 1);
    }
}
