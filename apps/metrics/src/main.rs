//! Monitoring a demux, and a watchdog for it: hooks that feed Prometheus metrics and `tracing`, and
//! a task with a timer that evicts a sink that blocks the input for too long.
//!
//! ```sh
//! cargo run --release -p metrics               # log on standard error, then the metrics
//! cargo run --release -p metrics -- --patience 20
//! ```
//!
//! ```text
//!                   ┌─▶ orders   reads what it gets
//! messages ─▶ demux ┼─▶ search   pauses now and then: the input waits, not long enough to be evicted
//!               │   ├─▶ prices   reads slowly, and loses the oldest items in its queue
//!               │   ├─▶ audit    hangs: the input waits until the watchdog evicts it
//!               │   └── spam     has no consumer
//!               └─ blocked, unblocked ─▶ watchdog ─ drops its lease ─▶ that attachment is evicted
//! ```
//!
//! The demux has no clock: it reports when the input starts to wait and for which sink, and the
//! watchdog measures the time. Events per item are counted, not logged: a sink that loses a
//! thousand items per second should not write a thousand lines. Keys are labels here because there
//! are five of them; do not use untrusted keys as labels, because each label is kept forever.

use std::collections::HashMap;
use std::fmt::Debug;
use std::io::{self, Write};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::channel::mpsc;
use futures::{StreamExt, stream};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use stream_demux::{
    Attach, DemuxStreamExt, Detached, Discarded, Hooks, Lease, Overflow, Recipient, Totals,
};
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep, timeout_at};
use tracing::{info, warn};

type Key = &'static str;

// ---- metrics ------------------------------------------------------------------------------------

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByKey {
    key: Key,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByKeyAndReason {
    key: Key,
    reason: &'static str,
}

/// Clones share their counters.
#[derive(Clone, Default)]
struct Metrics {
    received: Counter,
    delivered: Counter,
    unmatched: Counter,
    queued: Gauge,
    attachments: Gauge,
    detached: Family<ByReason, Counter>,
    discarded: Family<ByKeyAndReason, Counter>,
    blocked: Family<ByKey, Counter>,
    blocked_seconds: Family<ByKey, Counter<f64, AtomicU64>>,
}

impl Metrics {
    fn register(&self, registry: &mut Registry) {
        let Self { received, delivered, unmatched, queued, attachments, .. } = self.clone();
        registry.register("received", "Items read from the input", received);
        registry.register("delivered", "Items that sinks took", delivered);
        registry.register("unmatched", "Items without a sink for their key", unmatched);
        registry.register("queued", "Items that wait", queued);
        registry.register("attachments", "Sinks that are attached", attachments);
        let Self { detached, discarded, blocked, blocked_seconds, .. } = self.clone();
        registry.register("detached", "Attachments that ended", detached);
        registry.register("discarded", "Items an attachment did not get", discarded);
        registry.register("blocked", "Times that the input waited for a sink", blocked);
        registry.register("blocked_seconds", "How long it waited", blocked_seconds);
    }

    /// The totals need no hook: they are read now and then.
    fn publish(&self, totals: Totals) {
        let follow = |counter: &Counter, total: u64| counter.inc_by(total - counter.get());
        follow(&self.received, totals.received);
        follow(&self.delivered, totals.delivered);
        follow(&self.unmatched, totals.unmatched);
        self.queued.set(i64::try_from(totals.queued).unwrap_or(i64::MAX));
    }
}

// ---- hooks --------------------------------------------------------------------------------------

/// The attachment that the input waits for: its tag, and since when.
type Blocking = Option<(u64, Instant)>;

/// The leases of all attachments, by tag, for the watchdog.
type Leases = Arc<Mutex<HashMap<u64, Lease>>>;

fn lock(leases: &Leases) -> MutexGuard<'_, HashMap<u64, Lease>> {
    leases.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Watch {
    metrics: Metrics,
    blocking: watch::Sender<Blocking>,
    leases: Leases,
}

impl<V, E: Debug> Hooks<Key, V, E> for Watch {
    fn attached(&mut self, to: Recipient<'_, Key>) {
        self.metrics.attachments.inc();
        info!(key = to.key, tag = to.tag, "attached");
    }

    fn detached(&mut self, to: Recipient<'_, Key>, why: Detached<E>) {
        self.metrics.attachments.dec();
        // The error of a sink is logged and is not a label: there may be any number of texts.
        let reason = why.as_str();
        if let Detached::Failed(error) = why {
            warn!(key = to.key, tag = to.tag, ?error, "its sink failed");
        } else {
            info!(key = to.key, tag = to.tag, reason, "detached");
        }
        self.metrics.detached.get_or_create(&ByReason { reason }).inc();
        lock(&self.leases).remove(&to.tag);
    }

    fn discarded(&mut self, to: Recipient<'_, Key>, _item: V, why: Discarded) {
        let labels = ByKeyAndReason { key: to.key, reason: why.as_str() };
        self.metrics.discarded.get_or_create(&labels).inc();
    }

    fn blocked(&mut self, on: Recipient<'_, Key>) {
        self.metrics.blocked.get_or_create(&ByKey { key: on.key }).inc();
        self.blocking.send_replace(Some((on.tag, Instant::now())));
    }

    fn unblocked(&mut self, on: Recipient<'_, Key>) {
        if let Some((_, since)) = self.blocking.send_replace(None) {
            let labels = ByKey { key: on.key };
            let seconds = since.elapsed().as_secs_f64();
            self.metrics.blocked_seconds.get_or_create(&labels).inc_by(seconds);
        }
    }
}

// ---- the watchdog -------------------------------------------------------------------------------

/// Evicts the attachment that the input has waited for longer than `patience`. A lease holds one
/// attachment: if another one has taken the key in the meantime, it stays. `Order::Evict` would end
/// that one.
async fn watchdog(mut blocking: watch::Receiver<Blocking>, leases: Leases, patience: Duration) {
    loop {
        let now = *blocking.borrow_and_update();
        let changed = match now {
            Some((tag, since)) => match timeout_at(since + patience, blocking.changed()).await {
                Ok(changed) => changed,
                Err(_too_long) => {
                    let lease = lock(&leases).remove(&tag);
                    warn!(tag, ?patience, "evicted, because the input waited for it for too long");
                    drop(lease);
                    blocking.changed().await
                }
            },
            None => blocking.changed().await,
        };
        if changed.is_err() {
            return; // the demux and its hooks were dropped
        }
    }
}

// ---- the consumers ------------------------------------------------------------------------------

#[derive(Debug, Clone, Copy)]
struct Message {
    topic: Key,
}

const TOPICS: [Key; 5] = ["orders", "search", "prices", "audit", "spam"];
/// Shorter than the watchdog's patience, unless that is set to a smaller value.
const THINK: Duration = Duration::from_millis(50);

/// Reads the messages of a topic at the speed of its consumer, and returns their number.
async fn consume(topic: Key, mut messages: mpsc::Receiver<Message>) -> u64 {
    let mut count = 0;
    while let Some(Message { .. }) = messages.next().await {
        count += 1;
        match topic {
            "search" if count % 2_000 == 0 => sleep(THINK).await,
            "prices" if count % 500 == 0 => sleep(THINK).await,
            // Hangs, and keeps its channel open.
            "audit" if count == 1_000 => std::future::pending().await,
            _ => {}
        }
    }
    count
}

async fn run(settings: Settings) -> Result<(), String> {
    let mut registry = Registry::with_prefix("demux");
    let metrics = Metrics::default();
    metrics.register(&mut registry);
    let (leases, (blocking, blocked)) = (Leases::default(), watch::channel(None));
    let (orders, orders_in) = mpsc::unbounded();
    for (tag, topic) in (1..).zip(TOPICS).filter(|(_, topic)| *topic != "spam") {
        let (sender, receiver) = mpsc::channel(16);
        let mut lease = Lease::new();
        let mut attach = Attach::new(topic, sender).tag(tag).leased(&mut lease);
        if topic == "prices" {
            attach = attach.buffer(64).overflow(Overflow::DropOldest);
        }
        lock(&leases).insert(tag, lease);
        let _ = orders.unbounded_send(attach); // cannot fail: the receiver is in scope
        tokio::spawn(consume(topic, receiver));
    }
    tokio::spawn(watchdog(blocked, Arc::clone(&leases), settings.patience));

    let topics = TOPICS.into_iter().cycle();
    let messages = (0..settings.messages).zip(topics).map(|(_, topic)| Message { topic });
    let hooks = Watch { metrics: metrics.clone(), blocking, leases };
    let demux = stream::iter(messages).demux_by(|message| message.topic, orders_in).hooks(hooks);
    let mut demux = pin!(demux);
    // No state is lost between two polls, so the caller can inspect the demux at any time.
    let mut every_second = interval(Duration::from_secs(1));
    let totals = loop {
        tokio::select! {
            totals = &mut demux => break totals,
            _ = every_second.tick() => metrics.publish(demux.totals()),
        }
    };
    metrics.publish(totals);

    let mut exposition = String::new();
    text::encode(&mut exposition, &registry).map_err(|error| error.to_string())?;
    let print = io::stdout().write_all(exposition.as_bytes());
    print.map_err(|error| format!("cannot print: {error}"))?;
    let fates = totals.unmatched + totals.delivered + totals.discarded + totals.lost;
    if (totals.received, totals.received) != (settings.messages, fates) {
        return Err(format!("{} messages were sent, but {totals:?}", settings.messages));
    }
    Ok(())
}

// ---- the command line ---------------------------------------------------------------------------

const USAGE: &str = "usage: metrics [--messages N] [--patience MILLISECONDS]

  --messages N             how many there are, of five topics in turn (50000)
  --patience MILLISECONDS  how long the input may wait for one sink (200)";

#[derive(Clone, Copy)]
struct Settings {
    messages: u64,
    patience: Duration,
}

impl Settings {
    /// Returns `None` if help was requested.
    fn from_arguments() -> Result<Option<Self>, lexopt::Error> {
        use lexopt::prelude::{Long, ValueExt};
        let mut settings = Self { messages: 50_000, patience: Duration::from_millis(200) };
        let mut arguments = lexopt::Parser::from_env();
        while let Some(argument) = arguments.next()? {
            match argument {
                Long("messages") => settings.messages = arguments.value()?.parse()?,
                Long("patience") => {
                    let milliseconds: u32 = arguments.value()?.parse()?;
                    settings.patience = Duration::from_millis(milliseconds.into());
                }
                Long("help") => return Ok(None),
                _ => return Err(argument.unexpected()),
            }
        }
        Ok(Some(settings))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let settings = match Settings::from_arguments() {
        Ok(Some(settings)) => settings,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("metrics: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let Err(error) = run(settings).await else { return ExitCode::SUCCESS };
    eprintln!("metrics: {error}");
    ExitCode::FAILURE
}
