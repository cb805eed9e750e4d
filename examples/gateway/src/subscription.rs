//! What is known of a subscription beside its sink: its rate limit, what it lost, whom to tell.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::ws::Message as Frame;
use governor::{DefaultDirectRateLimiter, Quota};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Sleep, sleep};

use crate::board::Board;
use crate::budget::Budget;
use crate::config::Policy;
use crate::history::{History, Missed, Since};
use crate::message::{Key, Message};
use crate::outlet::Outlet;

/// What may wait for one client, over all its subscriptions: so many messages, and a part of the
/// [budget](Budget).
///
/// The broker delivers so many messages that are not settled, and then none to anybody: a client that
/// never reads, with a queue for each of its keys, must not be what all of them wait for.
pub struct Share {
    most: usize,
    budget: Arc<Budget>,
    policy: Policy,
    messages: AtomicUsize,
    bytes: AtomicUsize,
}

impl Share {
    pub fn new(most: usize, budget: Arc<Budget>, policy: Policy) -> Self {
        Self { most, budget, policy, messages: AtomicUsize::new(0), bytes: AtomicUsize::new(0) }
    }

    /// One more waits, if that is not too many.
    fn take(&self, size: usize) -> bool {
        // Only the demux takes, and others give back: it cannot be exceeded in between.
        let room = self.has_room(size);
        if room {
            self.add(size);
        }
        room
    }

    /// A single one may wait, however large.
    fn has_room(&self, size: usize) -> bool {
        let messages = self.messages.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed) + size;
        // With `wait` nothing is dropped: the input waits for room in the budget.
        let waits = matches!(self.policy, Policy::Wait);
        messages < self.most && (waits || messages == 0 || bytes <= self.budget.part())
    }

    fn add(&self, size: usize) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(size, Ordering::Relaxed);
    }

    /// One that is kept anyway waits as well, and the broker does not wait for it. Half of the room is left for
    /// what comes meanwhile.
    pub fn take_kept(&self, message: &Message) -> bool {
        let bytes = self.bytes.load(Ordering::Relaxed) + message.size();
        let room = bytes <= self.budget.part() / 2;
        if room {
            self.bytes.fetch_add(message.size(), Ordering::Relaxed);
        }
        room
    }

    /// How many messages may be sent and not flushed: they are waiting as well.
    pub fn unflushed(&self) -> usize {
        (self.most / 2).max(1)
    }

    /// This one waits no longer.
    pub fn give_back(&self, message: &Message) {
        self.messages.fetch_sub(usize::from(!message.is_kept()), Ordering::Relaxed);
        self.bytes.fetch_sub(message.size(), Ordering::Relaxed);
    }
}

/// What a client asks for.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    pub key: Option<String>,
    pub keys: Option<Vec<String>>,
    pub rate: Option<NonZeroU32>,
    #[serde(default)]
    pub latest: bool,
    #[serde(default)]
    pub binary: bool,
    pub since: Option<u64>,
    pub epoch: Option<String>,
}

pub struct Terms {
    pub id: u64,
    pub key: Key,
    pub client: SocketAddr,
    /// Newer messages take the place of the one that waits.
    pub latest: bool,
    /// Messages are sent as bytes.
    pub binary: bool,
    /// What it is sent first, and by what.
    since: Option<(Since, Arc<Outlet>)>,
    /// The position of the last message before it was attached.
    pub at: AtomicU64,
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
    /// There is something to flush.
    Said,
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
        wish: &Wish,
        share: Arc<Share>,
        news: mpsc::UnboundedSender<News>,
        board: Arc<Board>,
    ) -> Self {
        Self {
            id,
            key,
            client,
            latest: wish.latest,
            binary: wish.binary,
            since: None,
            at: AtomicU64::new(0),
            limiter: wish
                .rate
                .map(|rate| DefaultDirectRateLimiter::direct(Quota::per_second(rate))),
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

    /// The same, which is sent first what it missed.
    pub fn since(mut self, wish: &Wish, outlet: &Arc<Outlet>) -> Self {
        let Wish { since, ref epoch, latest, .. } = *wish;
        let since = since.map(|at| Since { at, epoch: epoch.clone(), latest });
        self.since = since.map(|since| (since, Arc::clone(outlet)));
        self
    }

    /// It is attached now: what is kept goes before what comes.
    pub fn replay(&self, history: &History) {
        let Some((since, outlet)) = &self.since else {
            return self.at.store(history.last(&self.key), Ordering::Relaxed);
        };
        let Missed { messages, after, last, has_gap } =
            history.since(&self.key, since, &self.share);
        self.at.store(last, Ordering::Relaxed);
        let said = json!({
            "type": "history", "key": &*self.key, "epoch": history.epoch, "at": after, "gap": has_gap,
        });
        outlet.say(Frame::Text(said.to_string().into()));
        outlet.replay(messages, self.binary);
        let _ = self.news.send(News::Said);
    }

    /// Was it among what was kept? The order to attach may be applied between a message that was read, and kept,
    /// and its way to those that are attached.
    pub fn had(&self, message: &Message) -> bool {
        self.since.is_some() && message.at() <= self.at.load(Ordering::Relaxed)
    }

    /// Is there room for another message, and is it within the limit?
    pub fn admits(&self, message: &Message) -> bool {
        if self.had(message) {
            return false;
        }
        if self.latest {
            // The last one always arrives; the sink has the pace, and at most one waits for it.
            self.share.add(message.size());
            return true;
        }
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

    /// Has the client all waiting that it may?
    pub fn is_full(&self) -> bool {
        !self.share.has_room(0)
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
            && matches!(self.share.policy, Policy::Evict)
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

/// When a subscription to the latest value may have the next message.
pub struct Pace {
    timer: Pin<Box<Sleep>>,
    is_due: bool,
}

impl Pace {
    pub fn new() -> Self {
        Self { timer: Box::pin(sleep(Duration::ZERO)), is_due: false }
    }

    pub fn poll_due(&mut self, terms: &Terms, cx: &mut Context<'_>) -> Poll<()> {
        while let (false, Some(limiter)) = (self.is_due, &terms.limiter) {
            ready!(self.timer.as_mut().poll(cx));
            match limiter.check() {
                Ok(()) => self.is_due = true,
                Err(until) => self.timer.as_mut().reset(until.earliest_possible().into()),
            }
        }
        Poll::Ready(())
    }

    pub fn sent(&mut self) {
        self.is_due = false;
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
        let budget = Arc::new(Budget::new(8 * 600));
        let small = Message::new("k".into(), b"x", None);
        let share = Share::new(2, Arc::clone(&budget), Policy::DropOldest);
        let take = |share: &Share, message: &Message| share.take(message.size());
        assert!(take(&share, &small) && take(&share, &small) && !take(&share, &small));
        share.give_back(&small);
        assert!(take(&share, &small) && !take(&share, &small));

        let share = Share::new(100, Arc::clone(&budget), Policy::DropOldest);
        let large = Message::new("k".into(), &[b'x'; 1000], None);
        assert!(take(&share, &large) && !take(&share, &small), "a single one, however large");
        share.give_back(&large);
        assert!(take(&share, &small) && !take(&share, &large));

        let share = Share::new(100, budget, Policy::Wait);
        assert!((0..100).all(|_| take(&share, &large)) && !take(&share, &small));
    }
}
