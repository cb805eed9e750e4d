//! What is known of a subscription beside its sink: its rate limit, what it lost, whom to tell.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use governor::{DefaultDirectRateLimiter, Quota};
use tokio::sync::mpsc;

use crate::board::Board;
use crate::budget::Budget;
use crate::message::{Key, Message};

/// What may wait for one client, over all its subscriptions: so many messages, and a part of the
/// [budget](Budget).
///
/// The broker delivers so many messages that are not settled, and then none to anybody: a client that
/// never reads, with a queue for each of its keys, must not be what all of them wait for.
pub struct Share {
    most: usize,
    /// None if nothing is dropped: then the input waits.
    budget: Option<Arc<Budget>>,
    /// Of one too many: the subscription that it is for is ended.
    evicts: bool,
    messages: AtomicUsize,
    bytes: AtomicUsize,
}

impl Share {
    pub fn new(most: usize, budget: Option<Arc<Budget>>, evicts: bool) -> Self {
        Self { most, budget, evicts, messages: AtomicUsize::new(0), bytes: AtomicUsize::new(0) }
    }

    /// One more waits, if that is not too many. A single one may, however large.
    fn take(&self, size: usize) -> bool {
        // Only the demux takes, and others give back: it cannot be exceeded in between.
        let messages = self.messages.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed) + size;
        let is_within = |budget: &Arc<Budget>| messages == 0 || bytes <= budget.part();
        let room = messages < self.most && self.budget.as_ref().is_none_or(is_within);
        if room {
            self.messages.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(size, Ordering::Relaxed);
        }
        room
    }

    /// How many messages may be sent and not flushed: they are waiting as well.
    pub fn unflushed(&self) -> usize {
        (self.most / 2).max(1)
    }

    /// This one waits no longer.
    pub fn give_back(&self, message: &Message) {
        self.messages.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(message.size(), Ordering::Relaxed);
    }
}

pub struct Terms {
    pub id: u64,
    pub key: Key,
    pub client: SocketAddr,
    limiter: Option<DefaultDirectRateLimiter>,
    share: Arc<Share>,
    /// The message that was not admitted last was one too many for the client's share.
    was_full: AtomicBool,
    /// It is to end, as there was one too many; see [`is_too_slow`](Self::is_too_slow).
    is_too_slow: AtomicBool,
    too_slow: AtomicU64,
    too_many: AtomicU64,
    /// The client's task was told that there is something to say.
    told: AtomicBool,
    news: mpsc::UnboundedSender<News>,
    board: Arc<Board>,
    /// What was delivered of the key, once it is attached.
    delivered: OnceLock<Arc<AtomicU64>>,
}

/// What a client's task hears of a subscription, by its id. At most one of each waits.
#[derive(Debug)]
pub enum News {
    /// It receives, and the source knows that it is wanted.
    Subscribed(Key, u64),
    /// It lost something.
    Lost(Key, u64),
    /// It is to be ended, as the client is too slow.
    TooSlow(Key, u64),
    /// It is over, and nothing more comes.
    Ended(Key, u64, Ending),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Requested,
    TooSlow,
    /// With its connection, or the gateway: nobody is left to hear of it.
    Gone,
}

/// How many messages were lost, and not told of, by reason.
#[derive(Debug, Default)]
pub struct Losses {
    pub overflow: u64,
    pub rate: u64,
}

impl Terms {
    pub fn new(
        id: u64,
        key: Key,
        client: SocketAddr,
        rate: Option<NonZeroU32>,
        share: Arc<Share>,
        news: mpsc::UnboundedSender<News>,
        board: Arc<Board>,
    ) -> Self {
        Self {
            id,
            key,
            client,
            limiter: rate.map(|rate| DefaultDirectRateLimiter::direct(Quota::per_second(rate))),
            share,
            was_full: AtomicBool::new(false),
            is_too_slow: AtomicBool::new(false),
            too_slow: AtomicU64::new(0),
            too_many: AtomicU64::new(0),
            told: AtomicBool::new(false),
            news,
            board,
            delivered: OnceLock::new(),
        }
    }

    /// Is there room for another message, and is it within the limit?
    pub fn admits(&self, message: &Message) -> bool {
        let room = self.share.take(message.size());
        self.was_full.store(!room, Ordering::Relaxed);
        let within = room && self.limiter.as_ref().is_none_or(|limiter| limiter.check().is_ok());
        if room && !within {
            self.share.give_back(message);
        }
        within
    }

    /// A message that was admitted waits no longer, and was not sent.
    pub fn forget(&self, message: &Message) {
        self.share.give_back(message);
    }

    /// Was it for want of room that a message was not admitted just now?
    pub fn was_full(&self) -> bool {
        self.was_full.load(Ordering::Relaxed)
    }

    /// There was one too many for the client's share, and the policy is to evict: what the demux does
    /// with a full buffer, done by hand. It is so from then on until the subscription has ended.
    pub fn is_too_slow(&self) -> bool {
        self.is_too_slow.load(Ordering::Relaxed)
    }

    pub fn count_in(&self, delivered: Arc<AtomicU64>) {
        let _ = self.delivered.set(delivered);
    }

    pub fn delivered(&self) {
        self.board.delivered.inc();
        if let Some(delivered) = self.delivered.get() {
            delivered.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// It lost a message, because the client is too slow or there are too many.
    pub fn lose(&self, is_slow: bool) {
        if is_slow
            && self.share.evicts
            && self.was_full()
            && !self.is_too_slow.swap(true, Ordering::Relaxed)
        {
            let _ = self.news.send(News::TooSlow(Arc::clone(&self.key), self.id));
        }
        let losses = if is_slow { &self.too_slow } else { &self.too_many };
        losses.fetch_add(1, Ordering::Relaxed);
        // Pairs with the swap in `losses`: whoever finds it told has its loss counted there.
        if !self.told.swap(true, Ordering::AcqRel) {
            let _ = self.news.send(News::Lost(Arc::clone(&self.key), self.id));
        }
    }

    /// What was lost since this was last asked.
    pub fn losses(&self) -> Losses {
        self.told.swap(false, Ordering::AcqRel);
        Losses {
            overflow: self.too_slow.swap(0, Ordering::Relaxed),
            rate: self.too_many.swap(0, Ordering::Relaxed),
        }
    }

    pub fn subscribed(&self) {
        let _ = self.news.send(News::Subscribed(Arc::clone(&self.key), self.id));
    }

    pub fn ended(&self, ending: Ending) {
        let _ = self.news.send(News::Ended(Arc::clone(&self.key), self.id, ending));
    }
}

/// Subscriptions that the demux is to attach, by their tags.
#[derive(Default)]
pub struct Registry(Mutex<HashMap<u64, Arc<Terms>>>);

impl Registry {
    pub fn add(&self, terms: &Arc<Terms>) {
        self.0.lock().unwrap().insert(terms.id, Arc::clone(terms));
    }

    pub fn remove(&self, tag: u64) -> Option<Arc<Terms>> {
        self.0.lock().unwrap().remove(&tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_no_more_than_its_share_until_some_is_given_back() {
        let budget = Some(Arc::new(Budget::new(8 * 600)));
        let small = Message::new("k".into(), b"x", None);
        let share = Share::new(2, budget.clone(), false);
        let take = |share: &Share, message: &Message| share.take(message.size());
        assert!(take(&share, &small) && take(&share, &small) && !take(&share, &small));
        share.give_back(&small);
        assert!(take(&share, &small) && !take(&share, &small));

        let share = Share::new(100, budget, false);
        let large = Message::new("k".into(), &[b'x'; 1000], None);
        assert!(take(&share, &large) && !take(&share, &small), "a single one, however large");
        share.give_back(&large);
        assert!(take(&share, &small) && !take(&share, &large));

        let share = Share::new(100, None, false);
        assert!((0..100).all(|_| take(&share, &large)) && !take(&share, &small));
    }
}
