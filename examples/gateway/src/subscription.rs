//! What is known of a subscription beside its sink: its rate limit, what it lost, whom to tell.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use governor::{DefaultDirectRateLimiter, Quota};
use tokio::sync::mpsc;

use crate::board::Board;
use crate::message::Key;

/// How many messages may wait for one client, over all its subscriptions.
///
/// The broker delivers so many messages that are not settled, and then none to anybody: a client that
/// never reads, with a queue for each of its keys, must not be what all of them wait for.
#[derive(Debug)]
pub struct Share {
    most: usize,
    /// Of one too many: the subscription that it is for is ended.
    evicts: bool,
    waiting: AtomicUsize,
}

impl Share {
    pub fn new(most: usize, evicts: bool) -> Self {
        Self { most, evicts, waiting: AtomicUsize::new(0) }
    }

    /// One more waits, if that is not too many.
    fn take(&self) -> bool {
        // Only the demux takes, and others give back: it cannot be exceeded in between.
        let room = self.waiting.load(Ordering::Relaxed) < self.most;
        self.waiting.fetch_add(usize::from(room), Ordering::Relaxed);
        room
    }

    /// So many wait no longer.
    pub fn give_back(&self, count: usize) {
        self.waiting.fetch_sub(count, Ordering::Relaxed);
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
        }
    }

    /// Is there room for another message, and is it within the limit?
    pub fn admits(&self) -> bool {
        let room = self.share.take();
        self.was_full.store(!room, Ordering::Relaxed);
        let within = room && self.limiter.as_ref().is_none_or(|limiter| limiter.check().is_ok());
        if room && !within {
            self.share.give_back(1);
        }
        within
    }

    /// A message that was admitted waits no longer, and was not sent.
    pub fn forget(&self) {
        self.share.give_back(1);
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

    pub fn delivered(&self) {
        self.board.delivered(&self.key);
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

/// All subscriptions, by the tag of their attachments.
#[derive(Default)]
pub struct Registry(Mutex<HashMap<u64, Arc<Terms>>>);

impl Registry {
    pub fn add(&self, terms: &Arc<Terms>) {
        self.0.lock().unwrap().insert(terms.id, Arc::clone(terms));
    }

    pub fn get(&self, tag: u64) -> Option<Arc<Terms>> {
        self.0.lock().unwrap().get(&tag).cloned()
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
        let share = Share::new(2, false);
        assert!(share.take() && share.take() && !share.take() && !share.take());
        share.give_back(1);
        assert!(share.take() && !share.take());
    }
}
