//! The tasks that keep a bridge connected: one for each of the two connections to the engine.
//!
//! Items come by one connection and are published by another: a connection that is not read,
//! because a subscriber makes the hub wait, does not keep the answers to publishers.
//!
//! Each connection lives in a task of its own, so a panic in it is one more way in which a
//! connection ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep, timeout};

use crate::arrivals::Arrival;
use crate::backoff::Backoff;
use crate::engine::{Connection, Engine, Failure, Line, Subscriber};
use crate::event::Key;
use crate::shared::Shared;
use crate::status::{self, Role};
use crate::table::Command;

/// How many commands about keys may be under way. Enough to subscribe to 100,000 keys in a second
/// over a round trip of a millisecond; the memory for it is that of so many keys.
const COMMANDS: usize = 128;

/// After this many heartbeats in a row without a byte, a connection is given up. The first may
/// follow the last byte at once, so the engine has at least the time of this many, less one.
///
/// Heartbeats are counted, not time: a process that was paused itself looks at its sockets before
/// the next one.
const SILENT_BEATS: u32 = 4;

/// What a connection is for.
#[derive(Clone)]
pub(crate) enum Purpose<L> {
    Receiving(Subscriber),
    /// The connection is put here for the publishers, while it is there.
    Publishing(Arc<watch::Sender<Option<L>>>),
}

impl<L: Line> Purpose<L> {
    /// Begins the next connection: what the last one still says is ignored from now on.
    fn begin(&mut self) {
        if let Self::Receiving(subscriber) = self {
            subscriber.epoch = subscriber.arrivals.begin();
        }
    }

    fn role(&self) -> Role {
        match self {
            Self::Receiving(_) => Role::Receiving,
            Self::Publishing(_) => Role::Publishing,
        }
    }

    fn subscriber(&self) -> Option<&Subscriber> {
        match self {
            Self::Receiving(subscriber) => Some(subscriber),
            Self::Publishing(_) => None,
        }
    }

    fn connected(&self, shared: &Shared, line: &L) {
        match self {
            Self::Receiving(subscriber) => shared.table.connected(subscriber.epoch),
            Self::Publishing(lines) => drop(lines.send_replace(Some(line.clone()))),
        }
        status::connected(&shared.status, self.role());
    }

    fn disconnected(&self, shared: &Shared, reason: Arc<str>) {
        match self {
            Self::Receiving(_) => shared.table.disconnected(),
            Self::Publishing(lines) => drop(lines.send_replace(None)),
        }
        status::disconnected(&shared.status, self.role(), reason);
    }
}

/// Keeps a connection, until the bridge ends or is dropped.
pub(crate) async fn keep<E: Engine>(
    engine: Arc<E>,
    shared: Arc<Shared>,
    mut purpose: Purpose<E::Line>,
) {
    // If this task should end for a reason that is not known here, the bridge ends with it.
    let _end = EndWith(Arc::clone(&shared));
    let mut backoff = Backoff::new(shared.settings.shortest_delay, shared.settings.longest_delay);
    loop {
        purpose.begin();
        // In a set, so that it is aborted if this task is.
        let mut task = JoinSet::new();
        let held = Arc::new(AtomicU64::new(0));
        let engine = Arc::clone(&engine);
        task.spawn(live(engine, Arc::clone(&shared), purpose.clone(), Arc::clone(&held)));
        let end = tokio::select! {
            end = task.join_next() => end,
            () = shared.ended() => return,
        };
        let reason = match end {
            Some(Ok(reason)) => reason,
            _ => Arc::from("the task of the connection has panicked"),
        };
        purpose.disconnected(&shared, reason);
        sleep(backoff.after(Duration::from_millis(held.load(Relaxed)))).await;
    }
}

struct EndWith(Arc<Shared>);

impl Drop for EndWith {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The life of one connection. Returns why it has ended, and leaves for how many milliseconds it
/// held.
async fn live<E: Engine>(
    engine: Arc<E>,
    shared: Arc<Shared>,
    purpose: Purpose<E::Line>,
    held: Arc<AtomicU64>,
) -> Arc<str> {
    let opening = engine.connect(purpose.subscriber().cloned());
    let connection = match timeout(shared.settings.connect_timeout, opening).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(failure)) => return failure.reason(),
        Err(_) => {
            let time = shared.settings.connect_timeout;
            return format!("the engine did not answer within {time:?} of connecting").into();
        }
    };
    let since = Instant::now();
    purpose.connected(&shared, &connection.line);
    let reason = run(connection, &shared, purpose.subscriber()).await;
    held.store(u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX), Relaxed);
    reason
}

/// A command that is under way.
type Answer = BoxFuture<'static, (Asked, Result<(), Failure>)>;

enum Asked {
    Ping,
    About(Key, Command),
}

/// Drives a connection until it is broken. Returns why it is. Without a subscriber, nothing is
/// subscribed.
async fn run<L: Line>(
    connection: Connection<L>,
    shared: &Shared,
    subscriber: Option<&Subscriber>,
) -> Arc<str> {
    let Connection { line, mut driver, reads } = connection;
    let mut answers = FuturesUnordered::<Answer>::new();
    let mut pulse = Pulse::new(shared.settings.heartbeat, reads);
    loop {
        if subscriber.is_some() {
            while answers.len() < COMMANDS {
                let Some((key, command)) = shared.table.next_command() else { break };
                answers.push(tell(&line, key, command));
            }
        }
        tokio::select! {
            reason = &mut driver => return reason,
            Some((asked, answer)) = answers.next(), if !answers.is_empty() => {
                match (asked, answer) {
                    // Any answer is one, also that pings are not allowed.
                    (Asked::Ping, Ok(()) | Err(Failure::Refused(_))) => pulse.is_asked = false,
                    (_, Ok(())) => {}
                    (Asked::About(key, Command::Subscribe), Err(Failure::Refused(reason))) => {
                        if let Some(Subscriber { arrivals, epoch }) = subscriber {
                            arrivals.push(*epoch, key.as_bytes().to_vec(), Arrival::Refused(reason));
                        }
                    }
                    (_, Err(failure)) => return failure.reason(),
                }
            }
            () = shared.table.has_commands.notified(), if subscriber.is_some() => {}
            _ = pulse.ticker.tick() => {
                let is_read = subscriber.is_none_or(|to| !to.arrivals.is_full());
                if pulse.beat(is_read) {
                    return format!("the engine has said nothing for {:?}", pulse.patience()).into();
                }
                if !pulse.is_asked {
                    pulse.is_asked = true;
                    let pong = line.ping();
                    answers.push(Box::pin(async move { (Asked::Ping, pong.await) }));
                }
            }
        }
    }
}

fn tell<L: Line>(line: &L, key: Key, command: Command) -> Answer {
    match command {
        Command::Subscribe => {
            let answer = line.subscribe(&key);
            Box::pin(async move { (Asked::About(key, command), answer.await) })
        }
        Command::Unsubscribe => {
            let answer = line.unsubscribe(&key);
            Box::pin(async move { (Asked::About(key, command), answer.await) })
        }
    }
}

/// Whether the engine still says anything.
struct Pulse {
    ticker: Interval,
    reads: Arc<AtomicU64>,
    reads_seen: u64,
    silent: u32,
    /// A ping is under way.
    is_asked: bool,
}

impl Pulse {
    fn new(time: Duration, reads: Arc<AtomicU64>) -> Self {
        let mut ticker = interval_at(Instant::now() + time, time);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { ticker, reads, reads_seen: 0, silent: 0, is_asked: false }
    }

    /// Returns `true` if the connection is to be given up. `is_read` is `false` if nothing is read
    /// on purpose.
    fn beat(&mut self, is_read: bool) -> bool {
        let reads = self.reads.load(Relaxed);
        if reads != self.reads_seen || !is_read {
            self.reads_seen = reads;
            self.silent = 0;
            return false;
        }
        self.silent += 1;
        self.silent >= SILENT_BEATS
    }

    fn patience(&self) -> Duration {
        self.ticker.period() * SILENT_BEATS
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn process_that_was_paused_reads_before_it_gives_the_engine_up() {
        let time = Duration::from_secs(2);
        let mut pulse = Pulse::new(time, Arc::default());
        tokio::time::advance(time * 100).await;
        pulse.ticker.tick().await;
        assert!(!pulse.beat(true));
        // The beats that were missed are not made up for, so there is time to read.
        assert!(pulse.ticker.tick().now_or_never().is_none());
        pulse.reads.fetch_add(1, Relaxed);
        for n in 0..=SILENT_BEATS {
            pulse.ticker.tick().await;
            assert_eq!(pulse.beat(true), n == SILENT_BEATS);
        }
    }
}
