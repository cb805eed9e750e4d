//! Sends messages to many clients, and checks that all of them arrive.

use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use tokio::time::Instant;

use crate::client::{ClientConfig, Clients, Outcome};
use crate::ledger::Tally;
use crate::plan::Plan;
use crate::publish::{self, Broker, Follow, Pace, Published};
use crate::stats;

#[derive(Debug, clap::Args)]
pub struct Flow {
    /// HOST:PORT of a gateway; repeatable: clients are spread over all of them
    #[arg(long, required = true)]
    pub gateway: Vec<String>,
    /// Publishes to this broker; otherwise posts to the gateways
    #[arg(long, value_name = "URI")]
    amqp: Option<String>,
    #[arg(long, default_value = "gateway")]
    exchange: String,
    /// Posts to the gateways even with a broker
    #[arg(long)]
    post: bool,
    #[arg(long, default_value_t = 100)]
    clients: usize,
    /// At most as many as clients, so that each key has a subscriber
    #[arg(long, default_value_t = 100)]
    pub keys: usize,
    /// The maximum number of keys that a client subscribes to
    #[arg(long, default_value_t = 3)]
    per_client: usize,
    #[arg(long, default_value_t = 10_000)]
    pub messages: usize,
    /// Size of a body, in bytes
    #[arg(long, default_value_t = 200)]
    size: usize,
    /// Messages a second; 0: unlimited
    #[arg(long, default_value_t = 0)]
    rate: u32,
    /// The publisher waits for clients that are far behind
    #[arg(long)]
    follows: bool,
    /// What is going to be interrupted half-way; duplicates are then allowed
    #[arg(long)]
    cut: Option<Cut>,
    /// Clients reconnect late and request the missed messages; the queue is bound to all keys
    #[arg(long)]
    history: bool,
    /// The close code that every client is expected to get
    #[arg(long)]
    close_code: Option<u16>,
    /// Seconds without progress before the driver gives up
    // So long that the broker can start in the meantime, on a machine with much other work: that took
    // up to 36 s.
    #[arg(long, default_value_t = 180)]
    timeout: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Cut {
    /// The gateway: every client loses its connection and reconnects
    Gateway,
    /// The broker: clients keep their connections
    Broker,
    /// The network between gateway and broker: clients keep their connections
    Network,
}

/// The result of publishing and receiving.
pub struct Transfer {
    pub outcomes: Vec<Outcome>,
    published: Published,
    /// The duration of publishing.
    publishing: Duration,
    arrived: Result<(), String>,
    arriving: Duration,
}

impl Flow {
    pub async fn run(self) -> Result<(), Vec<String>> {
        if self.keys > self.clients || self.keys < 8 * self.per_client {
            return Err(vec![
                "there must be 8 keys for each of a client's, and a client for each".into(),
            ]);
        }
        self.try_run().await.map_err(|error| vec![error])?.into_result()
    }

    async fn try_run(&self) -> Result<Faults, String> {
        let plan = self.plan();
        let mut before = Vec::new();
        for gateway in &self.gateway {
            before.push(stats::stats(gateway).await?);
        }

        let transfer = self.transfer(&plan).await?;
        let mut faults = Faults::default();
        let tally = self.judge(&transfer, &mut faults);
        for (own, gateway) in self.gateway.iter().enumerate() {
            faults.check(stats::await_idle(gateway).await);
            if self.cut.is_none() {
                let (received, delivered) = (self.received(&plan, own), self.copies(&plan, own));
                faults.check(stats::compare(gateway, &before[own], received, delivered).await);
            }
        }
        if let Some(mut broker) = self.broker().filter(|_| !self.history) {
            faults.check(unbound(&mut broker, &plan).await);
        }
        print(tally);
        println!(
            "  {} published in {:.1} s ({} repeated), the last arrived after {:.1} s, {} deliveries/s",
            self.messages,
            transfer.publishing.as_secs_f64(),
            transfer.published.repeated,
            transfer.arriving.as_secs_f64(),
            u128::from(tally.delivered) * 1_000 / transfer.arriving.as_millis().max(1),
        );
        if self.gateway.len() > 1 && self.amqp.is_some() {
            let received: Vec<_> =
                (0..self.gateway.len()).map(|own| self.received(&plan, own).to_string()).collect();
            println!("  received by each gateway: {}", received.join(", "));
        }
        Ok(faults)
    }

    pub fn has_broker(&self) -> bool {
        self.amqp.is_some()
    }

    pub fn plan(&self) -> Plan {
        Plan::new(self.keys, self.messages, self.size, self.seed)
    }

    fn broker(&self) -> Option<Broker> {
        self.amqp.as_ref().map(|uri| Broker::new(uri, &self.exchange))
    }

    /// Publishes the plan to clients, which subscribe before it and leave after it.
    pub async fn transfer(&self, plan: &Plan) -> Result<Transfer, String> {
        let limit = Duration::from_secs(self.timeout);
        let clients = Clients::start((0..self.clients).map(|client| self.config(plan, client)));
        clients.subscribed(limit).await?;
        let copies: u64 = (0..self.gateway.len()).map(|own| self.copies(plan, own)).sum();
        let follow = self.follows.then(|| {
            let keys = |client| plan.wanted_by(client, self.gateway.len(), self.per_client);
            Follow::new(Arc::clone(&clients.progress), plan, (0..self.clients).map(keys))
        });
        let (start, pace) = (Instant::now(), Pace::new(self.rate).follow(follow));
        let publish = async {
            let published = match self.broker() {
                Some(mut broker) if !self.post => broker.publish(plan, &pace).await,
                _ => publish::post(&self.gateway, plan, &pace, self.cut.is_some()).await,
            };
            published.map(|published| (published, start.elapsed()))
        };
        let arrive = async {
            let mut arrived = clients.delivered(copies / 2, limit).await;
            if arrived.is_ok() {
                println!("@halfway"); // the script waits for this line
                arrived = clients.delivered(copies, limit).await;
            }
            Ok::<_, String>((arrived, start.elapsed()))
        };
        // A failing publisher ends this; missing deliveries are found by the ledgers.
        let ((published, publishing), (arrived, arriving)) = tokio::try_join!(publish, arrive)?;
        let outcomes = clients.leave().await;
        Ok(Transfer { outcomes, published, publishing, arrived, arriving })
    }

    fn config(&self, plan: &Plan, client: usize) -> ClientConfig {
        let keys = plan.wanted_by(client, self.gateway.len(), self.per_client);
        ClientConfig {
            gateway: self.gateway[client % self.gateway.len()].clone(),
            keys: keys
                .iter()
                .map(|index| (plan.keys[*index].clone(), plan.counts[*index]))
                .collect(),
            reconnects: self.cut.is_some(),
            resumes: self.history,
        }
    }

    /// The keys subscribed to at a gateway, once for each subscription.
    fn wanted_at(&self, plan: &Plan, gateway: usize) -> Vec<usize> {
        let clients = (gateway..self.clients).step_by(self.gateway.len());
        clients
            .flat_map(|client| plan.wanted_by(client, self.gateway.len(), self.per_client))
            .collect()
    }

    /// The number of copies that a gateway must deliver.
    fn copies(&self, plan: &Plan, gateway: usize) -> u64 {
        self.wanted_at(plan, gateway).iter().map(|key| plan.counts[*key] as u64).sum()
    }

    /// The number of messages that a gateway must receive: those of its clients' keys, and no
    /// others.
    fn received(&self, plan: &Plan, gateway: usize) -> u64 {
        if self.amqp.is_none() {
            return self.messages as u64;
        }
        let mut keys = self.wanted_at(plan, gateway);
        keys.sort_unstable();
        keys.dedup();
        keys.iter().map(|key| plan.counts[*key] as u64).sum()
    }

    pub fn judge(&self, transfer: &Transfer, faults: &mut Faults) -> Tally {
        let Transfer { outcomes, published, arrived, .. } = transfer;
        let mut tally = Tally::default();
        for outcome in outcomes {
            tally += outcome.ledger.tally();
            outcome.errors.iter().for_each(|error| faults.add(error.clone()));
        }
        faults.count(tally.lost, "lost");
        faults.count(tally.reported_lost, "reported as lost");
        faults.count(tally.disordered, "out of order");
        faults.count(tally.misplaced, "delivered to the wrong client, or after the end");
        faults.count(tally.damaged, "damaged");
        faults.count(published.unroutable, "for which no queue was bound");
        faults.check(arrived.clone());
        let cut_off = outcomes.iter().filter(|outcome| !outcome.cuts.is_empty()).count();
        match self.cut {
            None => faults.count(tally.duplicated, "duplicated"),
            Some(Cut::Gateway) => {
                if cut_off < outcomes.len() {
                    faults.add(format!(
                        "only {cut_off} clients were disconnected: nothing was tested"
                    ));
                }
                if !self.post {
                    faults.count(tally.unmarked, "duplicated and not marked as redelivered");
                }
            }
            Some(Cut::Broker | Cut::Network) => {
                faults.count(cut_off as u64, "clients (not messages) disconnected");
                if self.cut == Some(Cut::Broker) && published.reconnects == 0 && !self.post {
                    faults.add("the publisher never lost the broker: nothing was tested".into());
                }
            }
        }
        let resumed: u64 = outcomes.iter().map(|outcome| outcome.resumed).sum();
        if self.history {
            println!("  {resumed} missed messages were replayed");
        }
        if self.history && resumed == 0 {
            faults.add("no client missed anything: nothing was tested".into());
        }
        if let Some(code) = self.close_code {
            let other =
                outcomes.iter().flat_map(|outcome| &outcome.cuts).filter(|cut| **cut != Some(code));
            faults.count(other.count() as u64, &format!("closes without code {code}"));
        }
        // Last, as there may be many lines.
        for missing in outcomes.iter().flat_map(|outcome| outcome.ledger.missing()) {
            faults.add(format!("lost: {missing}"));
        }
        tally
    }
}

/// Checks that all bindings are removed once all clients have left.
async fn unbound(broker: &mut Broker, plan: &Plan) -> Result<(), String> {
    let start = Instant::now();
    loop {
        let bound = broker.bound(plan).await?;
        if bound == 0 {
            return Ok(());
        }
        if start.elapsed() > Duration::from_secs(180) {
            return Err(format!("all clients left 180 s ago, and {bound} keys are still bound"));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

pub fn print(tally: Tally) {
    println!(
        "  expected {}, delivered {}, duplicated {}, lost {}, out of order {}, misplaced {}, damaged {}",
        tally.expected,
        tally.delivered,
        tally.duplicated,
        tally.lost,
        tally.disordered,
        tally.misplaced,
        tally.damaged
    );
}

/// What went wrong.
#[derive(Default)]
pub struct Faults(Vec<String>);

impl Faults {
    pub fn add(&mut self, fault: String) {
        self.0.push(fault);
    }

    pub fn count(&mut self, count: u64, what: &str) {
        if count > 0 {
            self.0.push(format!("{count} {what}"));
        }
    }

    pub fn check(&mut self, result: Result<(), String>) {
        self.0.extend(result.err());
    }

    pub fn into_result(self) -> Result<(), Vec<String>> {
        if self.0.is_empty() { Ok(()) } else { Err(self.0) }
    }
}
