//! Counters and state of the gateway, for `/stats` (which the page reads) and `/metrics`.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};
use serde::Serialize;
use serde_json::{Value, json};
use stream_demux::{Detached, Discarded, Totals};

use crate::config::Config;
use crate::history::History;
use crate::lock::Lock;
use crate::message::Key;
use crate::subscription::{Notice, Share};
use crate::waiting::Ticks;

/// How long keys without subscriptions are kept after their last message, and how many of them.
const RETENTION: Duration = Duration::from_secs(60);
const MAX_IDLE_KEYS: usize = 1_000;
/// Keys that are listed in an answer. It has about 20 kB.
const LISTED: usize = 100;
/// Clients that are listed: those that have lost most.
const LOSERS: usize = 10;
/// The maximum age of an answer. The page needs two answers for its first rates, and shows them within
/// a second after it was opened.
const FRESH: Duration = Duration::from_millis(500);

pub struct Board {
    /// The part of the answer that does not change.
    settings: Value,
    pub history: Option<History>,
    started: Instant,
    draining: AtomicBool,
    totals: Lock<Totals>,
    /// Messages that subscriptions to the latest value have taken from the demux and hold back.
    held_back: AtomicI64,
    /// Those that they have discarded.
    taken_back: AtomicU64,
    keys: Lock<Keys>,
    source: Lock<Source>,
    blocked: Lock<Option<Blocked>>,
    /// The last answer, shared by all requests until it is too old.
    last: Lock<Option<(Instant, Bytes)>>,
    registry: Registry,
    received: IntCounter,
    pub delivered: IntCounter,
    unmatched: IntCounter,
    discarded: IntCounterVec,
    attached: IntCounter,
    detached: IntCounterVec,
    blocks: IntCounter,
    is_blocked: IntGauge,
    queued: IntGauge,
    subscriptions: IntGauge,
    connections: IntGauge,
    clients: Lock<HashMap<SocketAddr, Present>>,
    /// Parts of the time for which messages may wait.
    pub ticks: Ticks,
    pub published: IntCounterVec,
    /// The counter of published messages that were taken.
    pub taken: IntCounter,
    pub acknowledged: IntCounter,
    pub requeued: IntCounter,
    pub refused: IntCounter,
    pub redelivered: IntCounter,
    is_up: IntGauge,
    reconnects: IntCounter,
    is_publishing: IntGauge,
    pub publisher_replaced: IntCounter,
}

#[derive(Default)]
struct Keys {
    known: HashMap<Key, Counts>,
    /// Messages of keys that have no entry.
    other: u64,
    /// The number of keys above which old ones are removed.
    many: usize,
}

#[derive(Clone)]
struct Counts {
    /// The number of keys that are summed up here.
    keys: u64,
    subscribers: u64,
    received: u64,
    /// Incremented by the subscriptions.
    delivered: Arc<AtomicU64>,
    dropped: u64,
    seen: Instant,
}

struct Source {
    kind: &'static str,
    error: Option<String>,
    is_up: bool,
    publishing: Publishing,
}

/// A client that is connected.
struct Present {
    share: Arc<Share>,
    notices: futures::channel::mpsc::UnboundedSender<Notice>,
}

/// Whether messages can be posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Publishing {
    Up,
    /// The broker is short of memory or disk.
    Blocked,
    /// The broker is away.
    Down,
}

struct Blocked {
    /// `None` if the input is blocked by the limit of bytes for all clients.
    key: Option<Key>,
    client: Option<SocketAddr>,
    since: Instant,
}

impl Present {
    /// Disconnects the client, because it is too slow. Returns `false` if this was done before.
    fn give_up(&self) -> bool {
        let is_new = self.share.give_up();
        if is_new {
            let _ = self.notices.unbounded_send(Notice::GivenUp);
        }
        is_new
    }
}

impl Board {
    pub fn new(config: &Config) -> Self {
        let registry = Registry::new();
        let counter = |name, help| registered(&registry, IntCounter::new(name, help));
        let gauge = |name, help| registered(&registry, IntGauge::new(name, help));
        let by = |label, name, help| {
            registered(&registry, IntCounterVec::new(Opts::new(name, help), &[label]))
        };
        let overflow = clap::ValueEnum::to_possible_value(&config.overflow);
        let kind = if config.amqp.is_some() { "amqp" } else { "embedded" };
        let published = by("result", "gateway_published_total", "Results of POST /publish.");
        let is_up = gauge("gateway_source_up", "1 while the source is up.");
        let is_publishing = gauge("gateway_publishing", "1 while messages can be posted.");
        let source = match config.amqp {
            None => Source { kind, error: None, is_up: true, publishing: Publishing::Up },
            Some(_) => Source { kind, error: None, is_up: false, publishing: Publishing::Down },
        };
        is_up.set(i64::from(source.is_up));
        is_publishing.set(i64::from(source.is_up));
        Self {
            settings: json!({
                "node": config.broker.node,
                "overflow": overflow.map(|policy| policy.get_name().to_owned()),
                "buffer": config.buffer,
                "rate": config.rate,
            }),
            history: History::new(config.history, config.max_queued, config.amqp.is_some()),
            started: Instant::now(),
            draining: AtomicBool::new(false),
            totals: Lock::default(),
            held_back: AtomicI64::new(0),
            taken_back: AtomicU64::new(0),
            keys: Lock::default(),
            source: Lock::new(source),
            blocked: Lock::default(),
            last: Lock::default(),
            received: counter("gateway_received_total", "Messages received."),
            delivered: counter(
                "gateway_delivered_total",
                "Messages sent, one for each subscription.",
            ),
            unmatched: counter("gateway_unmatched_total", "Messages without a subscription."),
            discarded: by(
                "reason",
                "gateway_discarded_total",
                "Copies of messages that were discarded.",
            ),
            attached: counter("gateway_attached_total", "Subscriptions attached."),
            detached: by("reason", "gateway_detached_total", "Subscriptions detached."),
            blocks: counter("gateway_blocked_total", "Times the input was blocked by a client."),
            is_blocked: gauge("gateway_blocked", "1 while the input is blocked by a client."),
            queued: gauge("gateway_queued", "Messages in the queues of subscriptions."),
            subscriptions: gauge("gateway_subscriptions", "Subscriptions now."),
            clients: Lock::default(),
            ticks: Ticks::default(),
            connections: gauge("gateway_connections", "WebSockets now."),
            taken: published.with_label_values(&["ok"]),
            published,
            acknowledged: counter(
                "gateway_acknowledged_total",
                "Messages acknowledged to the broker.",
            ),
            requeued: counter("gateway_requeued_total", "Messages returned to the broker's queue."),
            refused: counter(
                "gateway_refused_total",
                "Messages refused because they cannot be used.",
            ),
            redelivered: counter(
                "gateway_redelivered_total",
                "Messages redelivered by the broker.",
            ),
            is_up,
            reconnects: counter(
                "gateway_reconnects_total",
                "Times the connection to the broker was lost.",
            ),
            is_publishing,
            publisher_replaced: counter(
                "gateway_publisher_replaced_total",
                "Times the publishing connection was replaced.",
            ),
            registry,
        }
    }

    pub fn drain(&self) {
        self.draining.store(true, Relaxed);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    pub fn set_totals(&self, totals: Totals) {
        *self.totals.lock() = totals;
        let queued = self.corrected(totals).queued;
        self.queued.set(queued.try_into().unwrap_or(i64::MAX));
    }

    /// Returns the counts of the demux. Messages that a subscription to the latest value has taken
    /// and not sent are not delivered: they wait, or were discarded.
    pub fn totals(&self) -> Totals {
        let totals = *self.totals.lock();
        self.corrected(totals)
    }

    fn corrected(&self, mut totals: Totals) -> Totals {
        let held_back = u64::try_from(self.held_back.load(Relaxed)).unwrap_or(0);
        let taken_back = self.taken_back.load(Relaxed);
        totals.delivered = totals.delivered.saturating_sub(held_back + taken_back);
        totals.queued += held_back;
        totals.discarded += taken_back;
        totals
    }

    /// Counts messages that a subscription to the latest value has taken and holds back.
    pub fn held_back(&self, difference: i64) {
        self.held_back.fetch_add(difference, Relaxed);
    }

    /// Counts a message that such a subscription has discarded.
    pub fn taken_back(&self) {
        self.taken_back.fetch_add(1, Relaxed);
    }

    pub fn source_up(&self) {
        let mut source = self.source.lock();
        (source.error, source.is_up) = (None, true);
        self.is_up.set(1);
    }

    /// Records that the broker is away, and why.
    pub fn source_down(&self, error: String) {
        let mut source = self.source.lock();
        if source.is_up {
            self.reconnects.inc();
        }
        (source.error, source.is_up) = (Some(error), false);
        self.is_up.set(0);
    }

    pub fn set_publishing(&self, publishing: Publishing) {
        self.source.lock().publishing = publishing;
        self.is_publishing.set(i64::from(publishing == Publishing::Up));
    }

    pub fn received(&self, key: &str) {
        self.received.inc();
        let mut keys = self.keys.lock();
        let has_room = keys.known.len() < MAX_IDLE_KEYS;
        match keys.known.get_mut(key) {
            Some(counts) => {
                counts.received += 1;
                if counts.subscribers == 0 {
                    counts.seen = Instant::now();
                }
            }
            None if has_room => keys.counts(&key.into()).received = 1,
            None => keys.other += 1,
        }
    }

    pub fn unmatched(&self) {
        self.unmatched.inc();
    }

    pub fn discarded(&self, key: &Key, why: Discarded) {
        self.discarded.with_label_values(&[why.as_str()]).inc();
        self.keys.lock().counts(key).dropped += 1;
    }

    /// Returns the counter of deliveries for this key.
    pub fn attached(&self, key: &Key) -> Arc<AtomicU64> {
        self.attached.inc();
        self.subscriptions.inc();
        let mut keys = self.keys.lock();
        let counts = keys.counts(key);
        counts.subscribers += 1;
        Arc::clone(&counts.delivered)
    }

    pub fn detached<E>(&self, key: &Key, why: &Detached<E>) {
        self.detached.with_label_values(&[why.as_str()]).inc();
        self.subscriptions.dec();
        let mut keys = self.keys.lock();
        let counts = keys.counts(key);
        counts.subscribers = counts.subscribers.saturating_sub(1);
        counts.seen = Instant::now();
        // Clients choose keys, too: a client that subscribes to a new key each time must not grow
        // the table more than a publisher of new keys does.
        if keys.known.len() > keys.many.max(2 * MAX_IDLE_KEYS) {
            keys.remove_idle();
            keys.many = 2 * keys.known.len(); // amortizes the scan
        }
    }

    /// Records which client the input is blocked on; `None` if it is not blocked.
    pub fn blocked(&self, on: Option<(Option<Key>, Option<SocketAddr>)>) {
        self.is_blocked.set(i64::from(on.is_some()));
        if on.is_some() {
            self.blocks.inc();
        }
        let now = Instant::now();
        let next = on.map(|(key, client)| Blocked { key, client, since: now });
        let last = std::mem::replace(&mut *self.blocked.lock(), next);
        // Adds up for how long each client has held up the others.
        if let Some(Blocked { client: Some(client), since, .. }) = last
            && let Some(present) = self.clients.lock().get(&client)
        {
            present.share.held_up(now.duration_since(since));
        }
    }

    pub fn connected(
        &self,
        client: SocketAddr,
        share: &Arc<Share>,
        notices: futures::channel::mpsc::UnboundedSender<Notice>,
    ) {
        self.connections.inc();
        let present = Present { share: Arc::clone(share), notices };
        self.clients.lock().insert(client, present);
    }

    /// Called at each tick.
    pub fn pass_tick(&self) {
        self.ticks.pass();
        self.clients.lock().values().for_each(|present| present.share.fade());
    }

    /// Disconnects each client for which a message has waited for as many ticks. Returns their
    /// addresses. Returns `None` if there is no such client, and none that is being disconnected: a
    /// connection takes some time to close.
    pub fn give_up_overdue(&self, ticks: u8) -> Option<Vec<SocketAddr>> {
        let (clients, now) = (self.clients.lock(), self.ticks.now());
        let is_closing = clients.values().any(|present| present.share.is_given_up());
        let overdue = clients.iter().filter(|(_, present)| present.share.oldest(now) >= ticks);
        let overdue = overdue.filter(|(_, present)| present.give_up());
        let overdue: Vec<_> = overdue.map(|(client, _)| *client).collect();
        (is_closing || !overdue.is_empty()).then_some(overdue)
    }

    /// Disconnects the client that has held up the others most of late, and if none has, the one that
    /// most bytes wait for. Returns its address. Disconnects none if nothing waits for any client.
    pub fn give_up_slowest(&self) -> Option<SocketAddr> {
        if let Some(Blocked { client: Some(client), since, .. }) = &mut *self.blocked.lock() {
            let held_up = std::mem::replace(since, Instant::now()).elapsed();
            if let Some(present) = self.clients.lock().get(client) {
                present.share.held_up(held_up);
            }
        }
        let clients = self.clients.lock();
        let weights = clients.iter().map(|(client, present)| (present.share.weight(), client));
        let ((_, bytes), client) = weights.max()?;
        (bytes > 0 && clients.get(client)?.give_up()).then_some(*client)
    }

    pub fn disconnected(&self, client: SocketAddr) {
        self.connections.dec();
        self.clients.lock().remove(&client);
    }

    /// Returns the clients that have lost most.
    fn losers(&self) -> Value {
        let clients = self.clients.lock();
        let counts = clients.iter().map(|(client, Present { share, .. })| {
            let (rate, overflow) =
                (share.lost.rate.load(Relaxed), share.lost.overflow.load(Relaxed));
            (rate + overflow, client, rate, overflow)
        });
        let mut losers: Vec<_> = counts.filter(|(lost, ..)| *lost > 0).collect();
        losers.sort_unstable_by_key(|(lost, ..)| Reverse(*lost));
        let losers = losers.into_iter().take(LOSERS);
        losers
            .map(|(_, client, rate, overflow)| {
                json!({ "client": client, "rate": rate, "overflow": overflow })
            })
            .collect()
    }

    pub fn health(&self) -> Value {
        let status = if self.is_draining() { "draining" } else { "ok" };
        let source = self.source.lock();
        json!({ "status": status, "source": source.state(), "publishing": source.publishing })
    }

    /// Returns the statistics as JSON, at most a second old.
    pub fn stats(&self) -> Bytes {
        let mut last = self.last.lock();
        match &*last {
            Some((made, answer)) if made.elapsed() < FRESH => answer.clone(),
            _ => last.insert((Instant::now(), self.to_json().to_string().into())).1.clone(),
        }
    }

    fn to_json(&self) -> Value {
        let mut stats = self.settings.clone();
        let by_reason = |reason: &str| self.discarded.with_label_values(&[reason]).get();
        let totals = self.totals();
        {
            let source = self.source.lock();
            stats["source"] = json!({
                "kind": source.kind, "state": source.state(), "error": source.error,
                "reconnects": self.reconnects.get(),
            });
        }
        stats["uptime_ms"] = millis(self.started).into();
        stats["draining"] = self.is_draining().into();
        stats["connections"] = self.connections.get().into();
        stats["subscriptions"] = self.subscriptions.get().into();
        stats["totals"] = json!({
            "received": totals.received, "copies": totals.copies, "unmatched": totals.unmatched,
            "delivered": totals.delivered, "queued": totals.queued, "lost": totals.lost,
            "attached": totals.attached, "detached": totals.detached,
            "discarded": {
                "not_admitted": by_reason("not_admitted"), "overflowed": by_reason("overflowed"),
                "evicted": by_reason("evicted"), "failed": by_reason("failed"),
                "conflated": by_reason("conflated"),
            },
        });
        stats["blocked"] = match &*self.blocked.lock() {
            Some(Blocked { key, client, since }) => {
                json!({ "key": key.as_deref(), "client": client, "for_ms": millis(*since) })
            }
            None => Value::Null,
        };
        stats["clients"] = self.losers();
        let (listed, other) = self.keys.lock().list();
        stats["keys"] = listed.iter().map(|(key, counts)| counts.to_json(Some(key))).collect();
        if let (Some(history), Some(keys)) = (&self.history, stats["keys"].as_array_mut()) {
            for (key, (name, _)) in keys.iter_mut().zip(&listed) {
                (key["at"], key["kept"]) = history.summary(name);
            }
        }
        stats["history"] = self.history.as_ref().map_or(Value::Null, History::to_json);
        stats["other"] = other.to_json(None);
        stats
    }

    /// Returns the metrics in the text format of Prometheus.
    pub fn metrics(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

impl Source {
    fn state(&self) -> &'static str {
        if self.is_up { "up" } else { "down" }
    }
}

impl Counts {
    fn new(keys: u64) -> Self {
        let seen = Instant::now();
        Self { keys, subscribers: 0, received: 0, delivered: Arc::default(), dropped: 0, seen }
    }

    fn add(&mut self, other: &Self) {
        self.keys += other.keys;
        self.subscribers += other.subscribers;
        self.received += other.received;
        self.delivered.fetch_add(other.delivered.load(Relaxed), Relaxed);
        self.dropped += other.dropped;
    }

    fn to_json(&self, key: Option<&Key>) -> Value {
        let mut json = json!({
            "subscribers": self.subscribers, "received": self.received,
            "delivered": self.delivered.load(Relaxed), "dropped": self.dropped,
        });
        match key {
            Some(key) => json["key"] = (**key).into(),
            None => json["keys"] = self.keys.into(),
        }
        json
    }
}

impl Keys {
    fn counts(&mut self, key: &Key) -> &mut Counts {
        self.known.entry(Key::clone(key)).or_insert_with(|| Counts::new(1))
    }

    /// Returns the keys with the most messages, and the sum of the others.
    fn list(&mut self) -> (Vec<(Key, Counts)>, Counts) {
        self.remove_idle();
        let mut rest = Counts { received: self.other, ..Counts::new(0) };
        let mut most: Vec<(&Key, &Counts)> = Vec::with_capacity(2 * LISTED);
        let by_received = |(_, counts): &(&Key, &Counts)| Reverse(counts.received);
        let mut keep = |most: &mut Vec<(&Key, &Counts)>| {
            if most.len() > LISTED {
                most.select_nth_unstable_by_key(LISTED, by_received);
                most.drain(LISTED..).for_each(|(_, counts)| rest.add(counts));
            }
        };
        for one in &self.known {
            most.push(one);
            if most.len() == 2 * LISTED {
                keep(&mut most); // bounds the table, however many keys there are
            }
        }
        keep(&mut most);
        (most.into_iter().map(|(key, counts)| (Key::clone(key), counts.clone())).collect(), rest)
    }

    /// Removes keys without subscriptions that have been idle for [`RETENTION`], or all if there
    /// are too many.
    fn remove_idle(&mut self) {
        let retention =
            if self.known.len() > 2 * MAX_IDLE_KEYS { Duration::ZERO } else { RETENTION };
        self.known.retain(|_, counts| counts.subscribers > 0 || counts.seen.elapsed() < retention);
    }
}

fn registered<C: Collector + Clone + 'static>(to: &Registry, metric: prometheus::Result<C>) -> C {
    let metric = metric.expect("the names of the metrics are valid");
    to.register(Box::new(metric.clone())).expect("each metric is registered once");
    metric
}

fn millis(since: Instant) -> u64 {
    since.elapsed().as_millis().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use futures::channel::mpsc;

    use super::*;
    use crate::budget::Budget;
    use crate::config::Policy;
    use crate::deliveries::Fates;
    use crate::message::{Delivery, Message};

    struct Client {
        address: SocketAddr,
        share: Arc<Share>,
        notices: mpsc::UnboundedReceiver<Notice>,
    }

    impl Client {
        fn connect(board: &Board, port: u16) -> Self {
            let address = ([127, 0, 0, 1], port).into();
            let share = Arc::new(Share::new(9, Arc::new(Budget::new(1 << 20)), Policy::Wait));
            let (sender, notices) = mpsc::unbounded();
            board.connected(address, &share, sender);
            Self { address, share, notices }
        }

        fn is_disconnected(&mut self) -> bool {
            let is_told = matches!(self.notices.try_recv(), Ok(Notice::GivenUp));
            assert!(self.notices.try_recv().is_err(), "it is told once");
            is_told
        }
    }

    fn routed(board: &Board) -> Message {
        let (fates, _) = Fates::channel(9);
        let message = Message::new("tea".into(), b"x", Some(Delivery::new(1, false, fates)));
        message.mark_routed(board.ticks.now());
        message
    }

    fn pass_ticks(board: &Board, count: u8) {
        (0..count).for_each(|_| board.pass_tick());
    }

    #[test]
    fn the_clients_that_an_overdue_message_waits_for_are_disconnected_and_no_others() {
        let board = Board::new(&Config::parse_from(["gateway"]));
        let mut clients = [1, 2, 3, 4].map(|port| Client::connect(&board, port));
        let [slow, stuck, recovered, healthy] = &clients;
        let overdue = routed(&board);
        slow.share.take(&overdue);
        stuck.share.take(&overdue);
        recovered.share.take(&overdue);
        recovered.share.held_up(Duration::from_secs(60));
        recovered.share.give_back(&overdue);
        pass_ticks(&board, 7);
        assert_eq!(board.give_up_overdue(8), None);
        pass_ticks(&board, 1);
        healthy.share.take(&routed(&board));
        let mut given_up = board.give_up_overdue(8).unwrap();
        given_up.sort();
        assert_eq!(given_up, [slow.address, stuck.address]);
        assert_eq!(clients.each_mut().map(Client::is_disconnected), [true, true, false, false]);

        // Their connections take some time to close.
        pass_ticks(&board, 1);
        assert_eq!(board.give_up_overdue(8), Some(Vec::new()));
        clients[..2].iter().for_each(|client| board.disconnected(client.address));
        assert_eq!(board.give_up_overdue(8), None);
        assert_eq!(clients.each_mut().map(Client::is_disconnected), [false; 4]);
    }

    #[test]
    fn the_client_that_holds_up_the_others_of_late_is_disconnected_if_a_message_waits_for_none() {
        let board = Board::new(&Config::parse_from(["gateway"]));
        let mut clients = [1, 2, 3].map(|port| Client::connect(&board, port));
        let [slow, recovered, healthy] = &clients;
        recovered.share.held_up(Duration::from_secs(60));
        pass_ticks(&board, 8);
        for client in [slow, recovered, healthy] {
            client.share.take(&routed(&board));
        }
        slow.share.held_up(Duration::from_secs(1));
        assert_eq!(board.give_up_slowest(), Some(slow.address));
        assert_eq!(board.give_up_overdue(9), Some(Vec::new()), "it is closing");
        assert_eq!(clients.each_mut().map(Client::is_disconnected), [true, false, false]);

        // Nobody has anything waiting: the limit of bytes for all is used up by the history.
        let board = Board::new(&Config::parse_from(["gateway"]));
        let mut client = Client::connect(&board, 1);
        client.share.held_up(Duration::from_secs(1));
        assert!(board.give_up_slowest().is_none() && !client.is_disconnected());
    }
}
