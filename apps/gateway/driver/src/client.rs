//! WebSocket clients that account for every message.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Notify, OnceCell, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_tungstenite::client_async_with_config;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error as WsError, Message as Frame};

use crate::ledger::{Ledger, Receipt};
use crate::message::{self, Key};
use crate::stats;

pub type Socket = tokio_tungstenite::WebSocketStream<TcpStream>;

/// How long a gateway may be unreachable.
const AWAY: Duration = Duration::from_secs(180);
/// How many messages a gateway receives before clients that resume come back to it: about five of
/// each key, as the check has 200 keys.
const MISSED: u64 = 1_000;

/// Counters that the clients share.
#[derive(Default)]
pub struct Progress {
    pub subscribed: AtomicU64,
    /// First deliveries, and those of each client.
    pub delivered: AtomicU64,
    pub of: Vec<AtomicU64>,
    pub changed: Notify,
    /// The gateway has received messages since it was started again.
    reads_again: OnceCell<()>,
}

impl Progress {
    fn count(&self, what: &AtomicU64) {
        what.fetch_add(1, Relaxed);
        self.changed.notify_one();
    }
}

pub struct ClientConfig {
    /// HOST:PORT of its gateway.
    pub gateway: String,
    /// Its keys, and the number of messages of each.
    pub keys: Vec<(Key, usize)>,
    /// Reconnects when its connection is lost.
    pub reconnects: bool,
    /// Reconnects when it has missed messages, with the last position of each key.
    pub resumes: bool,
}

/// The result of a client.
#[derive(Default)]
pub struct Outcome {
    pub ledger: Ledger,
    /// How its connections ended while it was receiving: the close code, if there was one.
    pub cuts: Vec<Option<u16>>,
    pub errors: Vec<String>,
    /// The epoch and the last position of each key.
    last: HashMap<String, (Value, Value)>,
    /// Missed messages that were replayed after a reconnect.
    pub resumed: u64,
    /// Latencies of first deliveries, in microseconds.
    pub latencies: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Receive,
    Leave,
}

/// Many clients, each in a task.
pub struct Clients {
    tasks: Vec<JoinHandle<Outcome>>,
    phase: watch::Sender<Phase>,
    pub progress: Arc<Progress>,
    subscriptions: u64,
}

impl Clients {
    pub fn start(config: impl ExactSizeIterator<Item = ClientConfig>) -> Self {
        let (phase, receiver) = watch::channel(Phase::Receive);
        let of = (0..config.len()).map(|_| AtomicU64::new(0)).collect();
        let progress = Arc::new(Progress { of, ..Progress::default() });
        let mut subscriptions = 0;
        let start = |(own, config): (usize, ClientConfig)| {
            subscriptions += config.keys.len() as u64;
            tokio::spawn(run_client(own, config, receiver.clone(), Arc::clone(&progress)))
        };
        let tasks = config.enumerate().map(start).collect();
        Self { tasks, phase, progress, subscriptions }
    }

    /// Waits until all subscriptions are confirmed.
    pub async fn subscribed(&self, limit: Duration) -> Result<(), String> {
        let wanted = self.subscriptions;
        let there = self.until(&self.progress.subscribed, wanted, limit).await;
        there.map_err(|count| {
            format!(
                "{count} of {wanted} subscriptions are confirmed, and then there was no progress"
            )
        })
    }

    /// Waits for `count` first deliveries. Fails if there is no progress for too long.
    pub async fn delivered(&self, count: u64, limit: Duration) -> Result<(), String> {
        let there = self.until(&self.progress.delivered, count, limit).await;
        there.map_err(|delivered| {
            format!("{delivered} of {count} are delivered, and then there was no progress")
        })
    }

    async fn until(&self, counter: &AtomicU64, count: u64, limit: Duration) -> Result<(), u64> {
        let mut last = counter.load(Relaxed);
        let mut since = Instant::now();
        while counter.load(Relaxed) < count {
            let _ = timeout(Duration::from_millis(500), self.progress.changed.notified()).await;
            let current = counter.load(Relaxed);
            if current > last {
                (last, since) = (current, Instant::now());
            } else if since.elapsed() > limit {
                return Err(current);
            }
        }
        Ok(())
    }

    /// Makes all clients unsubscribe, await the confirmations, and leave.
    pub async fn leave(self) -> Vec<Outcome> {
        self.phase.send_replace(Phase::Leave);
        let mut outcomes = Vec::new();
        for task in self.tasks {
            let outcome = task.await.unwrap_or_else(|error| Outcome {
                errors: vec![format!("a client of the driver: {error}")],
                ..Outcome::default()
            });
            outcomes.push(outcome);
        }
        outcomes
    }
}

/// Runs one client over all its connections.
async fn run_client(
    own: usize,
    config: ClientConfig,
    mut phase: watch::Receiver<Phase>,
    progress: Arc<Progress>,
) -> Outcome {
    let mut outcome =
        Outcome { ledger: Ledger::new(config.keys.iter().cloned()), ..Outcome::default() };
    let mut known = HashSet::new();
    let mut pause = Duration::from_millis(50);
    let mut away_since = None;
    while *phase.borrow() == Phase::Receive {
        let ended = match connect(&config.gateway, None).await {
            Ok(socket) => {
                away_since = None;
                pause = Duration::from_millis(50);
                let own = (own, &*progress);
                session(socket, &config, &mut outcome, &mut known, &mut phase, own).await
            }
            Err(error) if config.reconnects => {
                // Connection refused: not a cut, but a gateway that is still down.
                let since = *away_since.get_or_insert_with(Instant::now);
                if since.elapsed() < AWAY { Ok(Ended::Refused) } else { Err(error) }
            }
            Err(error) => Err(error),
        };
        match ended {
            Ok(Ended::Left) => break,
            Ok(Ended::Refused) => {}
            Ok(Ended::Cut(code)) => {
                outcome.cuts.push(code);
                if !config.reconnects {
                    outcome.errors.push(format!("the gateway closed a connection: {code:?}"));
                    break;
                }
                if config.resumes {
                    let waiting = || stats::await_received(&config.gateway, MISSED, AWAY);
                    if let Err(error) = progress.reads_again.get_or_try_init(waiting).await {
                        outcome.errors.push(error);
                        break;
                    }
                }
            }
            Err(error) => {
                outcome.errors.push(error);
                break;
            }
        }
        // Jitter, so that clients do not all reconnect at once.
        sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
    outcome
}

enum Ended {
    /// The client has left as planned.
    Left,
    Cut(Option<u16>),
    /// It could not connect.
    Refused,
}

/// Runs one connection of a client until it ends.
async fn session(
    mut socket: Socket,
    config: &ClientConfig,
    outcome: &mut Outcome,
    known: &mut HashSet<Key>,
    phase: &mut watch::Receiver<Phase>,
    (own, progress): (usize, &Progress),
) -> Result<Ended, String> {
    for (key, _) in &config.keys {
        let mut request = json!({ "type": "subscribe", "key": &**key });
        if let Some((epoch, at)) = outcome.last.get(&**key).filter(|_| config.resumes) {
            (request["epoch"], request["since"]) = (epoch.clone(), at.clone());
        }
        if socket.send(Frame::text(request.to_string())).await.is_err() {
            return Ok(Ended::Cut(None));
        }
    }
    let mut resuming = HashSet::new();
    // Messages before `subscribed` are allowed; messages after `unsubscribed` are not.
    let mut ended = HashSet::new();
    let mut is_leaving = false;
    let mut until = None;
    loop {
        let frame = tokio::select! {
            frame = socket.next() => frame,
            _ = phase.changed(), if !is_leaving => {
                is_leaving = true;
                until = Some(Instant::now() + Duration::from_secs(180));
                for (key, _) in &config.keys {
                    say(&mut socket, "unsubscribe", key).await.map_err(|error| error.to_string())?;
                }
                continue;
            }
            () = tokio::time::sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                let left = config.keys.len() - ended.len();
                return Err(format!("{left} subscriptions did not end within 180 s"));
            }
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(WsError::Io(_) | WsError::Protocol(_))) | None => return Ok(Ended::Cut(None)),
            Some(Err(error)) => return Err(error.to_string()),
        };
        let text = match frame {
            Frame::Text(text) => text,
            Frame::Ping(_) | Frame::Pong(_) => continue,
            Frame::Close(close) => {
                // Answers the close frame and waits for the end of the connection.
                while let Some(Ok(_)) = socket.next().await {}
                return Ok(Ended::Cut(close.map(|close| close.code.into())));
            }
            other => return Err(format!("not in the protocol: {other:?}")),
        };
        let value: Value = serde_json::from_str(&text)
            .map_err(|error| format!("not JSON: {error}: {text:.200}"))?;
        let key = value["key"].as_str().unwrap_or_default();
        if let (true, Some(at)) = (config.resumes, value.get("at")) {
            let last = outcome.last.entry(key.to_owned()).or_default();
            last.1 = at.clone();
            if let Some(epoch) = value.get("epoch") {
                last.0 = epoch.clone();
            }
        }
        match value["type"].as_str() {
            Some("message") if ended.contains(key) => outcome.ledger.misplaced(),
            Some("message") => {
                outcome.resumed += u64::from(resuming.contains(key));
                if receive(outcome, key, &value) {
                    progress.of[own].fetch_add(1, Relaxed);
                    progress.count(&progress.delivered);
                }
            }
            Some("history") => drop(resuming.insert(key.to_owned())),
            Some("subscribed") => {
                resuming.remove(key);
                let Some((key, _)) = config.keys.iter().find(|(wanted, _)| **wanted == *key) else {
                    return Err(format!(
                        "confirmation of a subscription that was not requested: {key:?}"
                    ));
                };
                if known.insert(Key::clone(key)) {
                    progress.count(&progress.subscribed);
                }
            }
            Some("unsubscribed") if is_leaving && value["reason"] == "requested" => {
                ended.insert(key.to_owned());
                if ended.len() == config.keys.len() {
                    let _ = socket.close(None).await;
                    while let Some(Ok(_)) = socket.next().await {}
                    return Ok(Ended::Left);
                }
            }
            Some("lost") => outcome.ledger.reported_lost(key, value["count"].as_u64().unwrap_or(0)),
            _ => return Err(format!("unexpected: {text:.200}")),
        }
    }
}

/// Enters a message into the ledger. Returns `true` if it arrived for the first time.
fn receive(outcome: &mut Outcome, key: &str, value: &Value) -> bool {
    let Some(head) = body_of(value).and_then(|body| message::check(key, &body)) else {
        outcome.ledger.damaged();
        return false;
    };
    let redelivered = value["redelivered"] == true;
    let is_first = outcome.ledger.receive(key, head.number, redelivered) == Receipt::First;
    if is_first {
        outcome.latencies.push(message::now().saturating_sub(head.sent));
    }
    is_first
}

/// Returns the body of a message, in whichever field it is.
pub fn body_of(value: &Value) -> Option<Vec<u8>> {
    match (value["body"].as_str(), value["base64"].as_str()) {
        (Some(text), None) => Some(text.as_bytes().to_vec()),
        (None, Some(text)) => BASE64_STANDARD.decode(text).ok(),
        _ => None,
    }
}

/// Connects; `buffer` sets the receive buffer in the kernel.
pub async fn connect(gateway: &str, buffer: Option<u32>) -> Result<Socket, String> {
    let connecting = async {
        let stream = match buffer {
            None => TcpStream::connect(gateway).await.map_err(|error| error.to_string())?,
            Some(size) => {
                let socket = TcpSocket::new_v4().map_err(|error| error.to_string())?;
                socket.set_recv_buffer_size(size).map_err(|error| error.to_string())?;
                let address =
                    gateway.parse().map_err(|_| format!("{gateway} is not an address"))?;
                socket.connect(address).await.map_err(|error| error.to_string())?
            }
        };
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        // The default of 128 KiB for each of a thousand clients is too much.
        let small = WebSocketConfig::default().read_buffer_size(8 * 1024);
        let opened =
            client_async_with_config(format!("ws://{gateway}/ws"), stream, Some(small)).await;
        opened.map(|(socket, _)| socket).map_err(|error| error.to_string())
    };
    let connected = timeout(Duration::from_secs(60), connecting).await;
    let connected = connected.unwrap_or_else(|_| Err("no answer within 60 s".to_owned()));
    connected.map_err(|error| format!("no WebSocket to {gateway}: {error}"))
}

/// Sends `subscribe` or `unsubscribe`.
pub async fn say(socket: &mut Socket, what: &str, key: &str) -> Result<(), WsError> {
    socket.send(Frame::text(json!({ "type": what, "key": key }).to_string())).await
}

/// Connects and subscribes, without reading the answer.
pub async fn subscriber(
    gateway: &str,
    buffer: Option<u32>,
    keys: impl IntoIterator<Item = impl AsRef<str>>,
) -> Result<Socket, String> {
    let mut socket = connect(gateway, buffer).await?;
    for key in keys {
        let reply = say(&mut socket, "subscribe", key.as_ref()).await;
        reply.map_err(|error| error.to_string())?;
    }
    Ok(socket)
}

/// Reads this number of confirmations, and fails on anything else.
pub async fn subscribed(socket: &mut Socket, count: usize) -> Result<(), String> {
    for _ in 0..count {
        let value = next(socket).await?;
        if value["type"] != "subscribed" {
            return Err(format!("unexpected: {value:.200}"));
        }
    }
    Ok(())
}

/// Returns the next message, which must arrive within three minutes.
pub async fn next(socket: &mut Socket) -> Result<Value, String> {
    loop {
        let frame = timeout(Duration::from_secs(180), socket.next()).await;
        match frame.map_err(|_| "no message within three minutes".to_owned())? {
            Some(Ok(Frame::Text(text))) => {
                return serde_json::from_str(&text)
                    .map_err(|error| format!("not JSON: {error}: {text:.200}"));
            }
            Some(Ok(Frame::Ping(_) | Frame::Pong(_))) => {}
            other => return Err(format!("expected a message, got {other:?}")),
        }
    }
}
