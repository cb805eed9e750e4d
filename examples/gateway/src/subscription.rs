//! What is known of a subscription beside its sink: its rate limit, what it lost, whom to tell.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use governor::{DefaultDirectRateLimiter, Quota};
use tokio::sync::mpsc;

use crate::board::Board;
use crate::message::Key;

pub struct Terms {
    pub id: u64,
    pub key: Key,
    pub client: SocketAddr,
    limiter: Option<DefaultDirectRateLimiter>,
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
        news: mpsc::UnboundedSender<News>,
        board: Arc<Board>,
    ) -> Self {
        Self {
            id,
            key,
            client,
            limiter: rate.map(|rate| DefaultDirectRateLimiter::direct(Quota::per_second(rate))),
            too_slow: AtomicU64::new(0),
            too_many: AtomicU64::new(0),
            told: AtomicBool::new(false),
            news,
            board,
        }
    }

    /// Is it within the limit?
    pub fn admits(&self) -> bool {
        self.limiter.as_ref().is_none_or(|limiter| limiter.check().is_ok())
    }

    pub fn delivered(&self) {
        self.board.delivered(&self.key);
    }

    /// It lost a message, because the client is too slow or there are too many.
    pub fn lose(&self, is_slow: bool) {
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
