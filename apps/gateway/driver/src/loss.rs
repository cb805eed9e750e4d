//! Kills the gateway and the broker at random, while clients come and go, and accounts for every
//! message: a client must be told of a gap before it hears a later message.
//!
//! A publisher sends a message of a key when the last one of that key is confirmed. So when a
//! client hears a message, all messages of the key before it are owed to the client, except for
//! those before it has loaded its state. It loads its state, which has all messages that may have
//! been published, when it is subscribed for the first time or after a gap.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use futures::SinkExt;
use futures::future::{join_all, try_join_all};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use reqwest::Client as Http;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_tungstenite::tungstenite::Message as Frame;

use crate::client::{self, Socket};
use crate::flow::Faults;
use crate::script::{Site, ask};
use crate::stats;

/// Keys of a publisher, each of which has at most one unconfirmed message.
const KEYS: usize = 16;
/// Publishers of each kind: directly to the broker, and in batches through the gateway.
const PUBLISHERS: usize = 2;
const CLIENTS: usize = 60;
/// Keys of a client. Some keys have a single client, so their bindings come and go.
const WANTED: usize = 3;
/// A round of messages takes about as long: 3,000 messages a second in all.
const ROUND: Duration = Duration::from_millis(20);
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long messages are published after the last kill. The gateway reconnects within 5 s.
const CALM: Duration = Duration::from_secs(15);
/// How long the gateway and the broker may take to recover in the end.
const RECOVERY: Duration = Duration::from_secs(180);

#[derive(Debug, clap::Args)]
pub struct Loss {
    #[command(flatten)]
    site: Site,
    #[arg(long)]
    kills: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What has been published of a key.
#[derive(Default)]
struct Key {
    name: String,
    /// The number of messages that may have been published, and of those that were confirmed.
    begun: AtomicUsize,
    confirmed: AtomicUsize,
}

struct Run {
    loss: Loss,
    keys: Vec<Arc<Key>>,
    /// The publishers stop, and then the clients stay until they have heard everything.
    is_over: AtomicBool,
    phase: watch::Sender<Phase>,
}

/// What is killed. Four kills in a row are one of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Gateway,
    Broker,
    /// The broker, which loses its disk.
    Disk,
    /// The gateway and the broker, half of the time with its disk.
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Kill,
    /// Clients stay connected.
    Stay,
    Leave,
}

impl Loss {
    pub async fn run(self) -> Result<(), Vec<String>> {
        let one = |nth| Key { name: format!("key {nth}"), ..Key::default() };
        let keys = (0..2 * PUBLISHERS * KEYS).map(|nth| Arc::new(one(nth))).collect();
        let (is_over, phase) = (AtomicBool::new(false), watch::Sender::new(Phase::Kill));
        let run = Arc::new(Run { loss: self, keys, is_over, phase });
        run.start().await.map_err(|error| vec![error])?.into_result()
    }
}

impl Run {
    async fn start(self: Arc<Self>) -> Result<Faults, String> {
        let clients: Vec<_> =
            (0..CLIENTS).map(|nth| tokio::spawn(Arc::clone(&self).client(nth))).collect();
        let publishers: Vec<_> = self
            .keys
            .chunks(KEYS)
            .enumerate()
            .map(|(nth, keys)| {
                tokio::spawn(Arc::clone(&self).publisher(keys.to_vec(), nth % 2 == 0))
            })
            .collect();
        let kills = self.kill().await?;
        self.phase.send_replace(Phase::Stay);
        sleep(CALM).await; // all clients hear later messages
        self.is_over.store(true, Relaxed);
        let publishing = timeout(RECOVERY, try_join_all(publishers)).await;
        let publishing = publishing.map_err(|_| "publishing does not recover".to_owned())?;
        for published in publishing.map_err(|error| error.to_string())? {
            published?;
        }
        sleep(Duration::from_secs(1)).await; // until everything is on its way
        self.phase.send_replace(Phase::Leave);
        let (mut sum, mut missing, mut faults) = (Account::default(), 0, Faults::default());
        for (nth, accounts) in join_all(clients).await.into_iter().enumerate() {
            for (key, account) in accounts.map_err(|error| error.to_string())?? {
                if let Some(first) = account.missing.first() {
                    let count = account.missing.len();
                    missing += count;
                    faults.add(format!("client {nth}: {count} of {key}, the first is {first}"));
                }
                sum.add(&account);
            }
        }
        let confirmed: usize = self.keys.iter().map(|key| key.confirmed.load(Relaxed)).sum();
        println!("  {kills}; {confirmed} messages confirmed");
        println!(
            "  {} heard, {} of them again; {} returns, {} told of a gap, {} before they had loaded their state; \
             {} told while subscribed",
            sum.heard, sum.again, sum.returns, sum.gaps, sum.unloaded, sum.told
        );
        println!("  {missing} missing, of which the client was not told");
        if sum.gaps == 0 || sum.gaps == sum.returns || sum.told == 0 {
            faults.add("no gap, or nothing else: nothing was tested".into());
        }
        Ok(faults)
    }

    /// Kills and restarts at random.
    async fn kill(&self) -> Result<String, String> {
        let mut random = fastrand::Rng::with_seed(self.loss.seed);
        let (mut gateways, mut brokers, mut disks) = (0, 0, 0);
        let mut order = [Victim::Gateway, Victim::Broker, Victim::Disk, Victim::Both];
        sleep(Duration::from_secs(3)).await;
        for nth in 0..self.loss.kills {
            if nth.is_multiple_of(order.len()) {
                random.shuffle(&mut order);
            }
            let victim = order[nth % order.len()];
            if matches!(victim, Victim::Gateway | Victim::Both) {
                ask("kill gateway").await?;
                gateways += 1;
            }
            if victim != Victim::Gateway {
                ask("kill broker").await?;
                brokers += 1;
                if victim == Victim::Disk || victim == Victim::Both && random.bool() {
                    ask("wipe broker").await?;
                    disks += 1;
                }
                sleep(Duration::from_millis(random.u64(..2_000))).await;
                ask("start broker").await?;
            }
            match victim {
                Victim::Gateway | Victim::Both => ask("start gateway").await?,
                Victim::Disk => self.recovered().await?, // clients that stayed are told
                Victim::Broker => {}
            }
            sleep(Duration::from_millis(random.u64(200..5_000))).await;
        }
        Ok(format!(
            "{} kills: {gateways} of the gateway, {brokers} of the broker, {disks} times with its disk",
            self.loss.kills
        ))
    }

    /// Waits until the gateway is connected to the broker.
    async fn recovered(&self) -> Result<(), String> {
        let start = Instant::now();
        while start.elapsed() < RECOVERY {
            let health: Value =
                serde_json::from_str(&stats::text(&self.loss.site.gateway, "healthz").await?)
                    .map_err(|error| error.to_string())?;
            if health["source"] == "up" {
                return Ok(());
            }
            sleep(Duration::from_millis(100)).await;
        }
        Err("the gateway does not reconnect".into())
    }

    /// Publishes one message of each key after the other, until the run is over.
    async fn publisher(self: Arc<Self>, keys: Vec<Arc<Key>>, by_post: bool) -> Result<(), String> {
        let (http, mut broker) = (Http::new(), None);
        while !self.is_over.load(Relaxed) {
            let start = Instant::now();
            let mut rest: Vec<_> = keys.iter().collect();
            for key in &keys {
                key.begun.fetch_add(1, Relaxed);
            }
            while !rest.is_empty() {
                let done = if by_post {
                    timeout(TIMEOUT, self.post(&http, &rest)).await.unwrap_or_default()
                } else {
                    timeout(TIMEOUT, self.send(&mut broker, &rest)).await.unwrap_or_default()
                };
                if done.is_empty() {
                    broker = None;
                    sleep(Duration::from_millis(50)).await;
                }
                let is_done = |key: &Arc<Key>| done.iter().any(|done| done == &key.name);
                for key in rest.iter().filter(|key| is_done(key)) {
                    key.confirmed.store(key.begun.load(Relaxed), Relaxed);
                }
                rest.retain(|key| !is_done(key));
            }
            sleep(ROUND.saturating_sub(start.elapsed())).await;
        }
        Ok(())
    }

    /// Posts a batch; returns the keys of the messages that were taken.
    async fn post(&self, http: &Http, keys: &[&Arc<Key>]) -> Vec<String> {
        let line = |key: &&Arc<Key>| {
            let number = key.begun.load(Relaxed) - 1;
            json!({ "key": key.name, "body": number.to_string() }).to_string() + "\n"
        };
        let body: String = keys.iter().map(line).collect();
        let url = format!("http://{}/publish", self.loss.site.gateway);
        let Ok(answer) = http.post(url).body(body).send().await else { return Vec::new() };
        let is_taken = answer.status() == 202;
        let text = answer.text().await.unwrap_or_default();
        let reply: Value = serde_json::from_str(&text).unwrap_or_default();
        let failed: Option<Vec<usize>> = serde_json::from_value(reply["failed"].clone()).ok();
        let is_taken =
            |line| is_taken || failed.as_ref().is_some_and(|failed| !failed.contains(&line));
        let taken = (1..).zip(keys).filter(|(line, _)| is_taken(*line));
        taken.map(|(_, key)| key.name.clone()).collect()
    }

    /// Publishes to the broker; returns the keys of the messages that were confirmed.
    async fn send(
        &self,
        broker: &mut Option<(Connection, Channel)>,
        keys: &[&Arc<Key>],
    ) -> Vec<String> {
        if broker.is_none() {
            *broker = self.connect().await.ok();
        }
        let Some((_, channel)) = broker else { return Vec::new() };
        let (mut sent, mut done) = (Vec::new(), Vec::new());
        for key in keys {
            let body = (key.begun.load(Relaxed) - 1).to_string();
            let (options, persistent) =
                (BasicPublishOptions::default(), BasicProperties::default().with_delivery_mode(2));
            let exchange = self.loss.site.exchange.as_str().into();
            let name = key.name.as_str().into();
            let confirm =
                channel.basic_publish(exchange, name, options, body.as_bytes(), persistent).await;
            let Ok(confirm) = confirm else { break };
            sent.push((key, confirm));
        }
        for (key, confirm) in sent {
            if matches!(confirm.await, Ok(Confirmation::Ack(_))) {
                done.push(key.name.clone());
            }
        }
        done
    }

    async fn connect(&self) -> lapin::Result<(Connection, Channel)> {
        let connected = Connection::connect(&self.loss.site.amqp, ConnectionProperties::default());
        let connection = connected.await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok((connection, channel))
    }

    /// Runs a client over all its connections. Every third stays as long as it can.
    async fn client(self: Arc<Self>, nth: usize) -> Result<HashMap<String, Account>, String> {
        let wanted =
            (0..WANTED).map(|own| Arc::clone(&self.keys[(nth + own * 7) % self.keys.len()]));
        let keys: HashMap<_, _> = wanted.map(|key| (key.name.clone(), key)).collect();
        let mut accounts: HashMap<String, Account> =
            keys.keys().map(|key| (key.clone(), Account::default())).collect();
        let mut last = HashMap::new();
        let phase = self.phase.subscribe();
        let mut leaving = None;
        loop {
            let stay = Duration::from_millis(fastrand::u64(100..8_000));
            let until = (!nth.is_multiple_of(3) && *phase.borrow() == Phase::Kill)
                .then(|| Instant::now() + stay);
            let socket = client::connect(&self.loss.site.gateway, None).await;
            if let Ok(mut socket) = socket
                && subscribe(&mut socket, &keys, &last).await
            {
                let mut session =
                    Session { socket, keys: &keys, accounts: &mut accounts, last: &mut last };
                loop {
                    let end = until.unwrap_or_else(|| Instant::now() + Duration::from_millis(200));
                    let next = tokio::time::timeout_at(end, session.next()).await;
                    if next == Ok(false) || next.is_err() && until.is_some() {
                        break;
                    }
                    if *phase.borrow() == Phase::Leave {
                        if session.has_all() {
                            return Ok(accounts);
                        }
                        let since = leaving.get_or_insert_with(Instant::now);
                        if since.elapsed() > RECOVERY {
                            return Err(format!("client {nth} does not hear the last messages"));
                        }
                    }
                }
            }
            let pause = if until.is_some() { 2_000 } else { 200 };
            sleep(Duration::from_millis(fastrand::u64(..pause))).await;
        }
    }
}

type Positions = HashMap<String, (Value, Value)>;

async fn subscribe(
    socket: &mut Socket,
    keys: &HashMap<String, Arc<Key>>,
    last: &Positions,
) -> bool {
    for key in keys.keys() {
        let mut request = json!({ "type": "subscribe", "key": key });
        if let Some((epoch, at)) = last.get(key) {
            (request["epoch"], request["since"]) = (epoch.clone(), at.clone());
        }
        if socket.send(Frame::text(request.to_string())).await.is_err() {
            return false;
        }
    }
    true
}

/// One connection of a client.
struct Session<'a> {
    socket: Socket,
    keys: &'a HashMap<String, Arc<Key>>,
    accounts: &'a mut HashMap<String, Account>,
    last: &'a mut Positions,
}

impl Session<'_> {
    /// Handles the next message. Returns `false` if the connection has ended.
    async fn next(&mut self) -> bool {
        let Ok(value) = client::next(&mut self.socket).await else { return false };
        let name = value["key"].as_str().unwrap_or_default();
        let (Some(account), Some(key)) = (self.accounts.get_mut(name), self.keys.get(name)) else {
            panic!("unexpected: {value}");
        };
        if let Some(at) = value.get("at") {
            let last = self.last.entry(name.to_owned()).or_default();
            last.1 = at.clone();
            if let Some(epoch) = value.get("epoch") {
                last.0 = epoch.clone();
            }
        }
        match value["type"].as_str() {
            Some("message") => account.hear(value["body"].as_str().unwrap().parse().unwrap()),
            Some("history") => {
                account.returns += 1;
                if value["gap"] == true {
                    account.gaps += 1;
                    account.owed = None;
                } else if account.owed.is_none() {
                    // Its last connection ended between a gap and `subscribed`, and it may have
                    // heard later messages by then: it still has to load its state.
                    account.unloaded += 1;
                }
            }
            // The key is bound: what is not in the state now will be heard.
            Some("subscribed") => {
                account.owed.get_or_insert_with(|| key.begun.load(Relaxed));
            }
            Some("gap") => {
                account.told += 1;
                account.owed = Some(key.begun.load(Relaxed));
            }
            _ => panic!("unexpected: {value}"),
        }
        true
    }

    /// Returns `true` if the client has heard the last message of each key, or has it in its state.
    fn has_all(&self) -> bool {
        self.accounts.iter().all(|(name, account)| {
            let count = self.keys[name].confirmed.load(Relaxed);
            account
                .owed
                .is_some_and(|owed| owed >= count || account.seen.get(count - 1) == Some(&true))
        })
    }
}

/// What a client has heard of a key.
#[derive(Default)]
struct Account {
    seen: Vec<bool>,
    /// All messages from this one on are owed; `None` while the client must load its state.
    owed: Option<usize>,
    /// Owed messages that were not heard before a later one.
    missing: BTreeSet<usize>,
    heard: usize,
    again: usize,
    returns: usize,
    gaps: usize,
    /// Returns without a gap before it had loaded its state.
    unloaded: usize,
    told: usize,
}

impl Account {
    fn hear(&mut self, number: usize) {
        self.heard += 1;
        if self.seen.len() <= number {
            self.seen.resize(number + 1, false);
        }
        if std::mem::replace(&mut self.seen[number], true) {
            self.again += 1;
        }
        self.missing.remove(&number);
        if let Some(owed) = &mut self.owed {
            self.missing.extend((*owed..number).filter(|earlier| !self.seen[*earlier]));
            *owed = number.max(*owed);
        }
    }

    fn add(&mut self, other: &Self) {
        self.heard += other.heard;
        self.again += other.again;
        self.returns += other.returns;
        self.gaps += other.gaps;
        self.unloaded += other.unloaded;
        self.told += other.told;
    }
}
