//! State of a subscription beside its sink: rate limit, losses, notices to the client's task.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::ws::Message as Frame;
use futures::channel::mpsc;
use governor::{DefaultDirectRateLimiter, Quota};
use serde::Deserialize;
use serde_json::json;
use stream_demux::Discarded;
use tokio::time::{Sleep, sleep};

use crate::board::Board;
use crate::budget::Budget;
use crate::config::Policy;
use crate::history::{History, Missed, Since};
use crate::lock::Lock;
use crate::message::{Key, Message};
use crate::outlet::Outlet;
use crate::waiting::Waiting;

/// Limits what may wait for one client over all its subscriptions: a number of messages, and a part
/// of the [budget](Budget).
///
/// The broker delivers a limited number of unacknowledged messages. The limit here prevents a
/// client that never reads, with a queue for each of its keys, from using all of them.
pub struct Share {
    most: usize,
    /// The same for subscriptions to the latest value, which give up what exceeds it.
    most_latest: usize,
    /// The same for all clients together.
    most_of_all: usize,
    budget: Arc<Budget>,
    policy: Policy,
    messages: AtomicUsize,
    bytes: AtomicUsize,
    /// For how long they have waited, if no message may be dropped.
    waiting: Option<Waiting>,
    /// For how many nanoseconds the input was blocked by this client, of late.
    held_up: AtomicU64,
    /// The client is disconnected for that.
    is_given_up: AtomicBool,
    /// Messages that were lost since the client has connected.
    pub lost: Lost,
}

/// Counts of lost messages, by reason.
#[derive(Default)]
pub struct Lost {
    pub rate: AtomicU64,
    pub overflow: AtomicU64,
}

impl Share {
    pub fn new(most: usize, budget: Arc<Budget>, policy: Policy) -> Self {
        let (messages, bytes, held_up, is_given_up, lost) = Default::default();
        Self {
            most,
            most_latest: usize::MAX,
            most_of_all: usize::MAX,
            budget,
            policy,
            messages,
            bytes,
            waiting: matches!(policy, Policy::Wait).then(Waiting::default),
            held_up,
            is_given_up,
            lost,
        }
    }

    /// Subscriptions to the latest value give up messages beyond these numbers, of this client and
    /// of all.
    pub fn latest(mut self, most_latest: usize, most_of_all: usize) -> Self {
        (self.most_latest, self.most_of_all) = (most_latest, most_of_all);
        self
    }

    /// Counts a time in which the input was blocked by this client.
    pub fn held_up(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.held_up.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Called at each tick: for how long it has held up the others fades.
    pub fn fade(&self) {
        let held_up = self.held_up.load(Ordering::Relaxed);
        self.held_up.fetch_sub(held_up / 2, Ordering::Relaxed);
    }

    /// Returns for how long it has held up the others of late, and the bytes that wait for it.
    pub fn weight(&self) -> (u64, usize) {
        (self.held_up.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Returns how many ticks a message has waited for it.
    pub fn oldest(&self, now: u8) -> u8 {
        self.waiting.as_ref().map_or(0, |waiting| waiting.oldest(now))
    }

    /// Marks the client as given up. Returns `false` if it was before.
    pub fn give_up(&self) -> bool {
        !self.is_given_up.swap(true, Ordering::Relaxed)
    }

    pub fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    /// Reserves room for a message. Returns `false` if there is none.
    pub fn take(&self, message: &Message) -> bool {
        // Only the demux task reserves, and others release, so the limit cannot be exceeded in
        // between.
        let room = self.has_room(message.size());
        if room {
            self.add(message);
        }
        room
    }

    /// Returns `true` if there is room. A single message may wait, however large.
    fn has_room(&self, size: usize) -> bool {
        let messages = self.messages.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed) + size;
        // With `wait` no message is dropped: the input waits for room in the budget.
        let waits = matches!(self.policy, Policy::Wait);
        messages < self.most && (waits || messages == 0 || bytes <= self.budget.part())
    }

    fn add(&self, message: &Message) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(message.size(), Ordering::Relaxed);
        if let Some((waiting, tick)) = self.waiting.as_ref().zip(message.tick()) {
            waiting.add(tick);
        }
        self.budget.add_copy();
    }

    /// Returns how many messages may be sent and not flushed. They count as waiting.
    pub fn unflushed(&self) -> usize {
        (self.most / 2).max(1)
    }

    /// Releases the room of a message, if it has any.
    pub fn give_back(&self, message: &Message) {
        if message.counts() {
            self.messages.fetch_sub(1, Ordering::Relaxed);
            self.bytes.fetch_sub(message.size(), Ordering::Relaxed);
            if let Some((waiting, tick)) = self.waiting.as_ref().zip(message.tick()) {
                waiting.remove(tick);
            }
            self.budget.remove_copies(1);
        }
    }
}

/// What waited for the client when its connection ended waits no more.
impl Drop for Share {
    fn drop(&mut self) {
        self.budget.remove_copies(*self.messages.get_mut());
    }
}

/// The options of a subscribe request.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubscribeOptions {
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

/// The state of a subscription, shared by its sink, the hooks and the client's task.
pub struct Terms {
    pub id: u64,
    pub key: Key,
    pub client: SocketAddr,
    /// A newer message replaces the one that waits.
    pub latest: bool,
    /// Messages are sent as binary frames.
    pub binary: bool,
    /// Where the replay starts.
    since: Option<Since>,
    /// The outlet of the client; `None` in unit tests.
    outlet: Option<Arc<Outlet>>,
    /// The position of the last message before the subscription was attached.
    from: AtomicU64,
    /// The last position that the client may know.
    known: AtomicU64,
    /// If not 0, the client relies on every message of the key, and must be told of interruptions
    /// after the one of this number.
    relies: AtomicU64,
    limiter: Option<DefaultDirectRateLimiter>,
    share: Arc<Share>,
    /// `true` if the last message that was not admitted exceeded the client's share.
    was_full: AtomicBool,
    /// The subscription is to be evicted; see [`is_too_slow`](Self::is_too_slow).
    is_too_slow: AtomicBool,
    /// The subscription is to be evicted, as the broker does not allow its key to be read.
    is_forbidden: AtomicBool,
    too_slow: AtomicU64,
    too_many: AtomicU64,
    /// `true` if a `Lost` notice was sent and the losses were not taken yet.
    is_notified: AtomicBool,
    notices: mpsc::UnboundedSender<Notice>,
    board: Arc<Board>,
    /// The counter of deliveries for the key, once attached.
    delivered: OnceLock<Arc<AtomicU64>>,
}

/// A notice to a client's task about a subscription, by its id. At most one of each kind is
/// pending.
#[derive(Debug)]
pub enum Notice {
    /// Output was queued and must be flushed.
    Output,
    /// The subscription is attached, and its key is bound.
    Subscribed(Key, u64),
    /// Messages were lost.
    Lost(Key, u64),
    /// The client is too slow, or the key must not be read, and the subscription is to be evicted.
    Evict(Key, u64),
    /// The subscription has ended, and no more messages follow.
    Ended(Key, u64, Ending),
    /// The client holds up the others, and is to be disconnected.
    GivenUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Requested,
    TooSlow,
    /// The broker does not allow the key to be read.
    Forbidden,
    /// The connection or the gateway has ended; the client gets no notice.
    Gone,
}

/// Lost messages that were not reported yet, by reason.
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
        options: &SubscribeOptions,
        share: Arc<Share>,
        notices: mpsc::UnboundedSender<Notice>,
        board: Arc<Board>,
    ) -> Self {
        Self {
            id,
            key,
            client,
            latest: options.latest,
            binary: options.binary,
            since: None,
            outlet: None,
            from: AtomicU64::new(0),
            known: AtomicU64::new(0),
            relies: AtomicU64::new(0),
            limiter: options
                .rate
                .map(|rate| DefaultDirectRateLimiter::direct(Quota::per_second(rate))),
            share,
            was_full: AtomicBool::new(false),
            is_too_slow: AtomicBool::new(false),
            is_forbidden: AtomicBool::new(false),
            too_slow: AtomicU64::new(0),
            too_many: AtomicU64::new(0),
            is_notified: AtomicBool::new(false),
            notices,
            board,
            delivered: OnceLock::new(),
        }
    }

    /// Sends missed messages and notices there; replays missed messages if that was requested.
    pub fn sent_to(mut self, outlet: &Arc<Outlet>, options: &SubscribeOptions) -> Self {
        let SubscribeOptions { since, ref epoch, latest, .. } = *options;
        self.since = since.map(|at| Since { at, epoch: epoch.clone(), latest });
        self.outlet = Some(Arc::clone(outlet));
        self
    }

    /// Called when it is attached, after this interruption: queues the kept messages before live
    /// ones.
    pub fn replay(self: &Arc<Self>, history: &History, number: u64) {
        let mut last = history.last(&self.key);
        if let (Some(since), Some(outlet)) = (&self.since, &self.outlet) {
            let missed = history.since(&self.key, since);
            let Missed { kept, after, has_gap, .. } = missed;
            last = missed.last;
            self.relies.store(if has_gap { 0 } else { number }, Ordering::Relaxed);
            let reply = json!({
                "type": "history", "key": &*self.key, "epoch": history.epoch, "at": after, "gap": has_gap,
            });
            outlet.queue(Frame::Text(reply.to_string().into()));
            if let Some(range) = kept {
                outlet.replay(Replay { terms: Arc::clone(self), range, has_gap });
            }
            let _ = self.notices.unbounded_send(Notice::Output);
        }
        self.from.store(last, Ordering::Relaxed);
        self.known.store(last, Ordering::Relaxed);
    }

    /// Returns `true` if the message is older than the subscription, and was replayed if that was
    /// requested. The order to attach may be applied after a message was read and kept, and before
    /// it is routed.
    pub fn is_older(&self, message: &Message) -> bool {
        message.at() > 0 && message.at() <= self.from.load(Ordering::Relaxed)
    }

    /// Tells a client that relies on the key of this interruption: messages may be missing.
    pub fn tell_gap(&self, number: u64) {
        let relied = self.relies.load(Ordering::Relaxed);
        let Some(outlet) = self.outlet.as_ref().filter(|_| relied > 0 && relied < number) else {
            return;
        };
        self.relies.store(number, Ordering::Relaxed);
        let at = self.board.history.as_ref().map_or(0, |history| history.last(&self.key));
        self.known.fetch_max(at, Ordering::Relaxed);
        outlet.queue(self.gap(at));
        let _ = self.notices.unbounded_send(Notice::Output);
    }

    /// Returns the notice that messages may be missing up to this position.
    fn gap(&self, at: u64) -> Frame {
        let mut notice = json!({ "type": "gap", "key": &*self.key });
        if let Some(history) = &self.board.history {
            (notice["epoch"], notice["at"]) = (history.epoch.as_str().into(), at.into());
        }
        Frame::Text(notice.to_string().into())
    }

    /// Returns the last position that the client may know. Call while the outlet is locked, so that
    /// no message is sent before the client is told.
    pub fn known(&self) -> u64 {
        self.known.load(Ordering::Relaxed)
    }

    /// Returns `true` if there is room for another message and the rate allows it.
    pub fn admits(&self, message: &Message) -> bool {
        if self.is_older(message) {
            return false;
        }
        if self.latest {
            // The last message is always admitted; the sink limits the rate, and at most one waits.
            self.share.add(message);
            return true;
        }
        let room = self.share.take(message);
        self.was_full.store(!room, Ordering::Relaxed);
        let within = room && self.limiter.as_ref().is_none_or(|limiter| limiter.check().is_ok());
        if room && !within {
            self.share.give_back(message);
        }
        within
    }

    /// Returns `true` if more messages wait for the client than may, the one included that is about
    /// to be sent by this subscription to the latest value; or more for all clients together.
    pub fn has_too_many(&self) -> bool {
        let Share { most_latest, most_of_all, messages, budget, .. } = &*self.share;
        messages.load(Ordering::Relaxed) > *most_latest || budget.copies() > *most_of_all
    }

    /// Gives up a message, which waits on.
    pub fn give_up(&self, message: Message) -> Message {
        self.share.give_back(&message);
        self.board.held_back(1);
        message.give_up()
    }

    /// A message that was given up is sent.
    pub fn given_up_sent(&self) {
        self.board.held_back(-1);
    }

    /// A message that was given up is dropped. It was delivered as far as the demux knows.
    pub fn given_up_dropped(&self, why: Discarded) {
        self.board.held_back(-1);
        self.board.taken_back();
        self.board.discarded(&self.key, why);
    }

    /// Releases the room of an admitted message that was not sent.
    pub fn release(&self, message: &Message) {
        self.share.give_back(message);
    }

    /// Returns `true` if the last message was not admitted for lack of room.
    pub fn was_full(&self) -> bool {
        self.was_full.load(Ordering::Relaxed)
    }

    /// Returns `true` if the client's share was exceeded and the policy is to evict: the
    /// counterpart of a full buffer in the demux. Remains `true` until the subscription has ended.
    pub fn is_too_slow(&self) -> bool {
        self.is_too_slow.load(Ordering::Relaxed)
    }

    /// Returns `true` if the client's share is used up.
    pub fn is_full(&self) -> bool {
        !self.share.has_room(0)
    }

    pub fn count_in(&self, delivered: Arc<AtomicU64>) {
        let _ = self.delivered.set(delivered);
    }

    pub fn delivered(&self, at: u64) {
        if at > 0 {
            self.known.fetch_max(at, Ordering::Relaxed);
        }
        self.board.delivered.inc();
        if let Some(delivered) = self.delivered.get() {
            delivered.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a loss, because the client is too slow or because of the rate limit.
    pub fn count_loss(&self, is_slow: bool) {
        if is_slow
            && matches!(self.share.policy, Policy::Evict)
            && self.was_full()
            && !self.is_too_slow.swap(true, Ordering::Relaxed)
        {
            let _ = self.notices.unbounded_send(Notice::Evict(Arc::clone(&self.key), self.id));
        }
        let lost = &self.share.lost;
        let (losses, of_client) =
            if is_slow { (&self.too_slow, &lost.overflow) } else { (&self.too_many, &lost.rate) };
        losses.fetch_add(1, Ordering::Relaxed);
        of_client.fetch_add(1, Ordering::Relaxed);
        // Pairs with the swap in `losses`: if a notice is pending, that call includes this loss.
        if !self.is_notified.swap(true, Ordering::AcqRel) {
            let _ = self.notices.unbounded_send(Notice::Lost(Arc::clone(&self.key), self.id));
        }
    }

    /// Takes the losses since the last call.
    pub fn losses(&self) -> Losses {
        self.is_notified.swap(false, Ordering::AcqRel);
        Losses {
            overflow: self.too_slow.swap(0, Ordering::Relaxed),
            rate: self.too_many.swap(0, Ordering::Relaxed),
        }
    }

    /// Called when its key is bound, after this interruption; since this position, if the key was
    /// not bound before.
    pub fn subscribed(&self, at: Option<u64>, number: u64) {
        self.known.fetch_max(at.unwrap_or(0), Ordering::Relaxed);
        if self.relies.load(Ordering::Relaxed) == 0 {
            self.relies.store(number, Ordering::Relaxed);
        }
        let _ = self.notices.unbounded_send(Notice::Subscribed(Arc::clone(&self.key), self.id));
    }

    /// Called when the broker does not allow the key to be read.
    pub fn forbid(&self) {
        if !self.is_forbidden.swap(true, Ordering::Relaxed) {
            let _ = self.notices.unbounded_send(Notice::Evict(Arc::clone(&self.key), self.id));
        }
    }

    /// Returns `true` if the subscription is to be evicted because its key must not be read.
    pub fn is_forbidden(&self) -> bool {
        self.is_forbidden.load(Ordering::Relaxed)
    }

    pub fn ended(&self, ending: Ending) {
        let _ = self.notices.unbounded_send(Notice::Ended(Arc::clone(&self.key), self.id, ending));
    }
}

/// The kept messages that a client has missed. There may be many, so each is read when it is sent,
/// and may have been removed by then.
pub struct Replay {
    terms: Arc<Terms>,
    /// The positions of the next and the last of them.
    range: (u64, u64),
    /// The client knows that messages are missing.
    has_gap: bool,
}

/// What is sent next in a replay.
pub enum Next {
    /// Notice that messages were removed.
    Gap(Frame),
    /// A message, and whether it is sent as a binary frame.
    Message(Message, bool),
}

impl Iterator for Replay {
    type Item = Next;

    fn next(&mut self) -> Option<Next> {
        let Self { terms, range, has_gap } = self;
        let (next, last) = *range;
        let history = terms.board.history.as_ref().filter(|_| next <= last)?;
        let message = history.first(&terms.key, *range);
        let at = message.as_ref().map_or(last + 1, Message::at);
        range.0 = at;
        if at > next && !std::mem::replace(has_gap, true) {
            return Some(Next::Gap(terms.gap(at - 1)));
        }
        range.0 += 1;
        Some(Next::Message(message?, terms.binary))
    }
}

/// Limits the rate of a subscription to the latest value.
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

/// Subscriptions that the demux has yet to attach, by tag.
#[derive(Default)]
pub struct Registry(Lock<HashMap<u64, Arc<Terms>>>);

impl Registry {
    pub fn add(&self, terms: &Arc<Terms>) {
        self.0.lock().insert(terms.id, Arc::clone(terms));
    }

    pub fn remove(&self, tag: u64) -> Option<Arc<Terms>> {
        self.0.lock().remove(&tag)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.lock().len()
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
        assert!(share.take(&small) && share.take(&small) && !share.take(&small));
        share.give_back(&small);
        assert!(share.take(&small) && !share.take(&small));

        let share = Share::new(100, Arc::clone(&budget), Policy::DropOldest);
        let large = Message::new("k".into(), &[b'x'; 1000], None);
        assert!(
            share.take(&large) && !share.take(&small),
            "a single message may wait, however large"
        );
        share.give_back(&large);
        assert!(share.take(&small) && !share.take(&large));

        let share = Share::new(100, budget, Policy::Wait);
        assert!((0..100).all(|_| share.take(&large)) && !share.take(&small));
    }
}
