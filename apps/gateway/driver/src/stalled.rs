//! A client that never reads, or a crowd of them, and the effect on other clients.
//!
//! The others get everything while it has not read, the gateway never waits for it, and no more
//! messages are unacknowledged for it, or for the crowd, than their share: the broker searches all
//! of them for each acknowledgement of another message. Delays are printed, and not judged, as they
//! depend on what else the machine does.

use std::collections::HashSet;
use std::time::Duration;

use clap::ValueEnum;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::client::{self, Socket};
use crate::flow::{Faults, Flow, print};
use crate::ledger::Ledger;
use crate::message::{self, Key};
use crate::plan::Plan;
use crate::relay;
use crate::stats;

/// A small buffer in the kernel, which fills up soon.
const BUFFER: u32 = 16 * 1024;
/// One client may have this part of the prefetch waiting.
const PART: u64 = 64;
/// A crowd of clients may have this part of the prefetch waiting.
const PART_OF_CROWD: u64 = 16;
/// How long acknowledgements may be on their way.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub struct Stalled {
    /// What is published in each of two runs, and the clients that read. The stalled client
    /// subscribes to all keys
    #[command(flatten)]
    flow: Flow,
    /// The stalled client reads, with this delay in milliseconds in each direction
    #[arg(long, value_name = "MS")]
    delay: Option<u64>,
    /// The gateway's overflow policy
    #[arg(long)]
    overflow: Policy,
    /// As many more clients never read, each subscribed to one of the keys
    #[arg(long, default_value_t = 0)]
    crowd: usize,
    /// The gateway's prefetch
    #[arg(long, default_value_t = 8192)]
    prefetch: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Policy {
    DropNewest,
    DropOldest,
    Evict,
}

impl Stalled {
    pub async fn run(self) -> Result<(), Vec<String>> {
        self.try_run().await.map_err(|error| vec![error])?.into_result()
    }

    async fn try_run(&self) -> Result<Faults, String> {
        let plan = self.flow.plan();
        let mut faults = Faults::default();
        let without = self.others(&plan, &mut faults).await?;
        println!("  without it: {without}");

        let (resume, resumed) = oneshot::channel();
        let mut resume = Some(resume);
        let way = self.address().await?;
        let stalled = Stuck::subscribe(&way, &plan).await?.stop_until(resumed);
        if self.delay.is_some() {
            let _ = resume.take().map(|resume| resume.send(self.overflow));
        }
        let gateway = &self.flow.gateway[0];
        let mut crowd = Vec::new();
        for key in plan.keys.iter().cycle().take(self.crowd) {
            let mut socket = client::subscriber(gateway, Some(BUFFER), [key]).await?;
            client::subscribed(&mut socket, 1).await?;
            crowd.push(socket);
        }
        let blocked = stats::counter(gateway, "gateway_blocked_total").await?;
        let with = self.others(&plan, &mut faults).await?;
        println!("  with it:    {with}");
        let blocked = stats::counter(gateway, "gateway_blocked_total").await? - blocked;
        faults.count(blocked, "times the gateway waited for a client");
        if self.flow.has_broker() {
            let part = if crowd.is_empty() { PART } else { PART_OF_CROWD };
            faults.check(unacknowledged(gateway, self.prefetch / part).await);
        }

        let _ = resume.map(|resume| resume.send(self.overflow));
        let stuck = stalled.await.map_err(|error| error.to_string())??;
        let tally = stuck.ledger.tally();
        println!(
            "  the stalled client: expected {}, delivered {}, {} reported lost, evicted from {} keys",
            tally.expected,
            tally.delivered,
            tally.reported_lost,
            stuck.evicted.len()
        );
        faults.count(tally.duplicated, "duplicated for the stalled client");
        faults.count(tally.disordered, "out of order for the stalled client");
        faults
            .count(tally.misplaced + tally.damaged, "misplaced or damaged for the stalled client");
        if self.overflow == Policy::Evict {
            // It was too slow for the busy keys at least.
            let is_busy =
                |(_, count): &(&Key, &usize)| **count > self.flow.messages / self.flow.keys;
            let busy = plan.keys.iter().zip(&plan.counts).filter(is_busy);
            let spared = busy.filter(|(key, _)| !stuck.evicted.contains(*key)).count();
            faults.count(spared as u64, "busy keys from which the stalled client was not evicted");
        } else {
            let misreported = stuck.ledger.misreported() as u64;
            faults
                .count(misreported, "keys whose reported losses differ from the missing messages");
            if tally.reported_lost == 0 && self.delay.is_none() {
                faults.add("the stalled client lost nothing: nothing was tested".into());
            }
        }
        Ok(faults)
    }

    /// The address that the stalled client connects to.
    async fn address(&self) -> Result<String, String> {
        let gateway = &self.flow.gateway[0];
        let Some(delay) = self.delay else { return Ok(gateway.clone()) };
        let delay = Duration::from_millis(delay);
        let started = relay::start(0, gateway.clone(), delay).await;
        let (port, _) = started.map_err(|error| error.to_string())?;
        Ok(format!("127.0.0.1:{port}"))
    }

    /// Runs the clients that read.
    async fn others(&self, plan: &Plan, faults: &mut Faults) -> Result<Latency, String> {
        let transfer = self.flow.transfer(plan).await?;
        print(self.flow.judge(&transfer, faults));
        let latencies = transfer.outcomes.into_iter().flat_map(|outcome| outcome.latencies);
        Ok(Latency::of(latencies.collect()))
    }
}

/// Waits until all messages are acknowledged, except for this many.
async fn unacknowledged(gateway: &str, most: u64) -> Result<(), String> {
    let start = Instant::now();
    loop {
        // What is settled is read first: it cannot be more than what was received by then.
        let mut settled = 0;
        for name in ["gateway_acknowledged_total", "gateway_requeued_total"] {
            settled += stats::counter(gateway, name).await?;
        }
        let waiting = stats::counter(gateway, "gateway_received_total").await? - settled;
        if waiting <= most {
            println!("  {waiting} messages that wait are unacknowledged");
            return Ok(());
        }
        if start.elapsed() > TIMEOUT {
            return Err(format!("{waiting} messages are unacknowledged, more than {most}"));
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Latencies in microseconds.
struct Latency {
    median: u64,
    late: u64,
    most: u64,
}

impl Latency {
    fn of(mut all: Vec<u64>) -> Self {
        all.sort_unstable();
        let at =
            |share: usize| all.get(all.len().saturating_sub(1) * share / 100).copied().unwrap_or(0);
        Self { median: at(50), late: at(99), most: at(100) }
    }
}

impl std::fmt::Display for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [median, late, most] = [self.median, self.late, self.most].map(Duration::from_micros);
        write!(
            f,
            "from publisher to client {median:.1?} (median), {late:.1?} (99 %), {most:.1?} (max)"
        )
    }
}

/// The client that does not read.
pub struct Stuck {
    socket: Socket,
    ledger: Ledger,
    evicted: HashSet<Key>,
}

impl Stuck {
    pub async fn subscribe(gateway: &str, plan: &Plan) -> Result<Self, String> {
        let mut socket = client::subscriber(gateway, Some(BUFFER), &plan.keys).await?;
        client::subscribed(&mut socket, plan.keys.len()).await?;
        let ledger = Ledger::new(plan.keys.iter().cloned().zip(plan.counts.iter().copied()));
        Ok(Self { socket, ledger, evicted: HashSet::new() })
    }

    /// Stays idle until `reading`, and then reads everything.
    fn stop_until(
        mut self,
        resumed: oneshot::Receiver<Policy>,
    ) -> JoinHandle<Result<Self, String>> {
        tokio::spawn(async move {
            let Ok(policy) = resumed.await else {
                return Err("the other clients did not finish".into());
            };
            let start = Instant::now();
            // With `evict`, the number of remaining messages is unknown: it reads until no message
            // arrives for a while.
            let quiet = Duration::from_secs(if policy == Policy::Evict { 5 } else { 30 });
            loop {
                let is_over = policy != Policy::Evict && self.ledger.is_accounted();
                if is_over || start.elapsed() > Duration::from_secs(300) {
                    return Ok(self);
                }
                let value = match timeout(quiet, client::next(&mut self.socket)).await {
                    Ok(value) => value?,
                    Err(_) => return Ok(self),
                };
                let key = value["key"].as_str().unwrap_or_default();
                match value["type"].as_str() {
                    Some("message") => {
                        match client::body_of(&value).and_then(|body| message::check(key, &body)) {
                            Some(head) => drop(self.ledger.receive(key, head.number, false)),
                            None => self.ledger.damaged(),
                        }
                    }
                    Some("lost") => {
                        self.ledger.reported_lost(key, value["count"].as_u64().unwrap_or(0));
                    }
                    Some("unsubscribed") if value["reason"] == "too_slow" => {
                        self.evicted.insert(key.into());
                    }
                    _ => return Err(format!("unexpected: {value}")),
                }
            }
        })
    }

    /// Returns the socket, which is never read again.
    pub fn into_socket(self) -> Socket {
        self.socket
    }
}
