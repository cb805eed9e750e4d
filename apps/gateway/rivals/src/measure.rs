//! One measurement of one server.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};

use crate::publisher::{Publisher, Window};
use crate::subscriber::{Subscriber, Tally};
use crate::usage::Usage;
use crate::wire::{Publishing, Subscribing};

/// For few keys: less than the gateway's buffer of a subscription, and enough that a server can
/// write several messages at once.
const FEW_KEYS: Window = Window { size: 64, refill: 8 };
/// For one key per subscriber: 8 posts at a time over each publishing connection.
const MANY_KEYS: Window = Window { size: 1024, refill: 128 };
/// With 64 messages in a batch.
const BATCHES: Window = Window { size: 2048, refill: 1024 };
/// Publishing connections, unless there are fewer keys.
const CONNECTIONS: usize = 16;
/// Timeout for a server to start, and to confirm subscriptions.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// 1 key, 1,000 subscribers
    One,
    /// 8 keys, 1,000 subscribers
    Eight,
    /// 1,000 keys, one subscriber each
    Thousand,
    /// 1,000 keys, one subscriber each, in batches
    Batch,
    /// 1,000 keys, one subscriber each, persistent
    Persistent,
    /// Idle WebSockets with a subscription
    Idle,
    /// 1 key, and one of 51 subscribers does not read
    Stalled,
}

#[derive(Debug, clap::Args)]
pub struct Measure {
    #[arg(long)]
    rival: String,
    #[arg(long)]
    case: Case,
    /// The address that clients subscribe at
    #[arg(long, value_name = "ADDR")]
    subscribe: SocketAddr,
    #[arg(long, value_name = "HOW")]
    subscribing: Subscribing,
    /// The address that messages are published to
    #[arg(long, value_name = "ADDR")]
    publish: SocketAddr,
    #[arg(long, value_name = "HOW")]
    publishing: Publishing,
    /// Process id of the server; its children are counted too
    #[arg(long, required = true)]
    pid: Vec<u32>,
    /// The file of the results
    #[arg(long, value_name = "FILE")]
    pub samples: PathBuf,
    /// Publishes only 1/N of the messages
    #[arg(long, value_name = "N", default_value = "1")]
    part: NonZeroU16,
}

/// A measurement, or the reason why it failed.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sample {
    pub rival: String,
    pub case: Case,
    pub result: Result<Figures, String>,
}

#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize)]
pub struct Figures {
    /// Deliveries a second.
    pub rate: f64,
    /// The server's processor time, in seconds for a million deliveries.
    pub cpu: f64,
    /// In milliseconds.
    pub p99: f64,
    /// Memory, in KiB for each WebSocket.
    pub memory: f64,
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rival, case, result } = self;
        let case = case.to_possible_value();
        write!(f, "  {rival}, {}: ", case.as_ref().map_or("", PossibleValue::get_name))?;
        match result {
            Ok(figures) => f.write_str(&figures.show(self.case)),
            Err(error) => f.write_str(error),
        }
    }
}

impl Figures {
    /// Formats the figures that matter for a case.
    pub fn show(&self, case: Case) -> String {
        let Self { rate, cpu, p99, memory } = self;
        match case {
            Case::Idle => format!("{memory:.0}"),
            Case::Stalled => format!("{p99:.1}"),
            _ if *cpu < 9.95 => format!("{}; {cpu:.2}", thousands(*rate)),
            _ => format!("{}; {cpu:.1}", thousands(*rate)),
        }
    }
}

/// Rounded to thousands.
fn thousands(rate: f64) -> String {
    let rounded = (rate / 1e3).round();
    match rounded {
        1e3.. => format!("{},{:03},000", (rounded / 1e3).floor(), rounded % 1e3),
        _ => format!("{rounded},000"),
    }
}

impl Measure {
    pub async fn run(self) -> Sample {
        let result = match self.case {
            Case::Idle => self.idle().await,
            Case::Stalled => self.stalled().await,
            Case::One => self.flow(1, 1_000, 1_000, FEW_KEYS).await,
            Case::Eight => self.flow(8, 1_000, 8_000, FEW_KEYS).await,
            Case::Thousand | Case::Persistent => self.flow(1_000, 1_000, 200_000, MANY_KEYS).await,
            Case::Batch => self.flow(1_000, 1_000, 200_000, BATCHES).await,
        };
        Sample { rival: self.rival, case: self.case, result }
    }

    /// Starts clients and waits until all are subscribed.
    async fn subscribe(
        &self,
        tally: &Rc<Tally>,
        clients: usize,
        keys: usize,
    ) -> Result<(), String> {
        self.await_server().await?;
        // Concurrently: mosquitto takes 0.1 s for each.
        let turns = Rc::new(Semaphore::new(100));
        let (to, subscribing, before) = (self.subscribe, self.subscribing, tally.confirmed.get());
        for client in 0..clients {
            let (tally, turns) = (Rc::clone(tally), Rc::clone(&turns));
            spawn_local(async move {
                let turn = turns.acquire().await;
                let (key, name) = (client % keys, before + client);
                let connected = Subscriber::connect(&tally, to, subscribing, key, name, None).await;
                drop(turn);
                match connected {
                    Ok(subscriber) => subscriber.run().await,
                    Err(error) => tally.end(error),
                }
            });
        }
        let wanted = before + clients;
        while tally.confirmed.get() < wanted {
            let changed = timeout(TIMEOUT, tally.changed.notified()).await;
            if let Some(ended) = tally.ended.borrow().first() {
                return Err(format!("a subscriber's connection: {ended}"));
            }
            if changed.is_err() {
                return Err(format!("{} of {wanted} subscribed", tally.confirmed.get()));
            }
        }
        Ok(())
    }

    fn is_quick(&self) -> bool {
        self.part.get() > 1
    }

    /// Waits until the server accepts connections.
    async fn await_server(&self) -> Result<(), String> {
        let start = Instant::now();
        while let Err(error) = TcpStream::connect(self.subscribe).await {
            Usage::of(&self.pid)?; // fails if the server has ended
            if start.elapsed() > TIMEOUT {
                return Err(format!("no connection to {}: {error}", self.subscribe));
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    fn publisher(
        &self,
        tally: &Rc<Tally>,
        keys: usize,
        fan_out: u64,
    ) -> impl Future<Output = Result<Publisher, String>> {
        Publisher::connect(tally, self.publish, self.publishing, CONNECTIONS, keys, fan_out)
    }

    /// Publishes as fast as possible.
    async fn flow(
        &self,
        keys: usize,
        clients: usize,
        messages: u64,
        window: Window,
    ) -> Result<Figures, String> {
        let messages = messages / u64::from(self.part.get());
        let tally = Tally::new();
        self.subscribe(&tally, clients, keys).await?;
        let fan_out = (clients / keys) as u64;
        let mut publisher = self.publisher(&tally, keys, fan_out).await?;
        publisher.publish((messages / 5).max(2 * window.size), window).await?; // warm-up
        let (before, start) = (Usage::of(&self.pid)?, Instant::now());
        publisher.publish(messages, window).await?;
        let elapsed = start.elapsed().as_secs_f64();
        let after = Usage::of(&self.pid)?;
        publisher.finish().await?;
        complete(&tally)?;
        let millions = (messages * fan_out) as f64 / 1e6;
        let (rate, cpu) = (millions * 1e6 / elapsed, (after.cpu - before.cpu) / millions);
        Ok(Figures { rate, cpu, ..Figures::default() })
    }

    async fn idle(&self) -> Result<Figures, String> {
        let clients = if self.is_quick() { 1_000 } else { 5_000 };
        let tally = Tally::new();
        // The first clients pay for what the server allocates once.
        self.subscribe(&tally, 100, 1).await?;
        sleep(Duration::from_secs(1)).await;
        let before = Usage::of(&self.pid)?;
        self.subscribe(&tally, clients, 1).await?;
        sleep(Duration::from_secs(1)).await;
        let memory = (Usage::of(&self.pid)?.memory - before.memory) / clients as f64;
        Ok(Figures { memory, ..Figures::default() })
    }

    /// Publishes at a moderate rate beside a client that does not read.
    async fn stalled(&self) -> Result<Figures, String> {
        let seconds = if self.is_quick() { 3 } else { 10 };
        let tally = Tally::new();
        self.subscribe(&tally, 50, 1).await?;
        let (to, subscribing, name) = (self.subscribe, self.subscribing, 50);
        let stalled = Subscriber::connect(&tally, to, subscribing, 0, name, Some(4096)).await?;
        let mut publisher = self.publisher(&tally, 1, 50).await?;
        publisher.publish_at(1_000, Duration::from_secs(1)).await?;
        tally.times.set(true);
        publisher.publish_at(1_000, Duration::from_secs(seconds)).await?;
        publisher.finish().await?;
        drop(stalled);
        complete(&tally)?;
        let mut latencies = tally.latencies.take();
        latencies.sort_unstable();
        let p99 = latencies[latencies.len() * 99 / 100] as f64 / 1e3;
        Ok(Figures { p99, ..Figures::default() })
    }
}

fn complete(tally: &Tally) -> Result<(), String> {
    if tally.wrong.get() > 0 {
        return Err(format!("{} missing, duplicated or out of order", tally.wrong.get()));
    }
    tally.ended.borrow().first().map_or(Ok(()), |ended| Err(format!("a connection: {ended}")))
}
