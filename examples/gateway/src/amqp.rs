//! RabbitMQ: consuming, acknowledging and reconnecting.
//!
//! Each gateway has one durable queue, bound to the keys that its clients subscribe to. The broker
//! keeps a message until it is acknowledged ([`crate::message`]). It redelivers what is
//! unacknowledged when the connection ends: at most `--prefetch` messages.
//!
//! A [`session`](Broker::session) has one connection to consume and one to publish. It ends with an
//! error of either. The next session starts with only the [wanted keys](Interest).
//! of either, and the next one begins with nothing but what is [wanted](Interest).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, future};
use lapin::message::Delivery as Delivered;
use lapin::options::{
    BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::board::Board;
use crate::config::BrokerConfig;
use crate::interest::Interest;
use crate::message::{Delivery, Fate, Key, Message, Verdict, check_json};
use crate::publisher::{Desk, Publisher};
use crate::rewriter::Rules;
use crate::router::Input;
use crate::settle::settle;
use crate::wire;

pub const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Timeout for answers of the broker.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for closing a connection.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
const CONSUMER: &str = "gateway";
/// What the connections for publishing are named, after the gateway.
pub const PUBLISHING: &str = ", publishing";

/// The broker and its settings.
pub struct Broker {
    pub uri: AMQPUri,
    pub config: BrokerConfig,
    pub interest: Arc<Interest>,
    pub board: Arc<Board>,
    pub publisher: Publisher,
    pub max_body: usize,
}

impl Broker {
    fn queue(&self) -> ShortString {
        format!("gateway.{}", self.config.node).into()
    }

    fn exchange(&self) -> ShortString {
        self.config.exchange.as_str().into()
    }

    /// Passes messages of the broker to the input, until `stop` is cancelled and all of them are
    /// settled.
    pub async fn run(&self, input: Input, stop: CancellationToken) {
        let mut grace = Some(Instant::now() + self.config.grace);
        let mut pause = SHORTEST_PAUSE;
        loop {
            let done = self.session(&input, &mut grace, &mut pause, &stop).await;
            self.publisher.close();
            self.interest.unfollow();
            let Err(error) = done else { return };
            if stop.is_cancelled() {
                return;
            }
            warn!(queue = %self.queue(), %error, "broker lost");
            if error.to_string().contains("in exclusive use") {
                warn!("another gateway may have the same name: each needs its own --node");
            }
            self.board.source_down(error.to_string());
            tokio::select! {
                () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                () = stop.cancelled() => return,
            }
        }
    }

    /// Runs one session, from connecting to the end of the connection.
    async fn session(
        &self,
        input: &Input,
        grace: &mut Option<Instant>,
        pause: &mut Duration,
        stop: &CancellationToken,
    ) -> lapin::Result<()> {
        let connection = tokio::select! {
            connected = timeout(TIMEOUT, self.connect("")) => connected.map_err(|_| timed_out())??,
            () = stop.cancelled() => return Ok(()),
        };
        let publishing = timeout(TIMEOUT, self.connect(PUBLISHING)).await;
        let publishing = publishing.map_err(|_| timed_out())??;
        let (fates, incoming) = mpsc::unbounded_channel();
        let channel = connection.create_channel().await?;
        let binding = self.declare(&connection, grace).await?;
        let mut desk = Desk::open(self, publishing);
        self.board.source_up();
        let moving = async {
            tokio::try_join!(
                self.consume(&channel, input, grace, fates, stop),
                settle(&channel, &self.board, incoming, pause)
            )
        };
        let ended = tokio::select! {
            moved = moving => moved.map(drop),
            Err(error) = self.bind(&binding, stop) => Err(error),
            Err(error) = desk.run() => Err(error),
        };
        // Close after an error, too: an open connection keeps exclusive use of the queue.
        let closing = timeout(CLOSE_TIMEOUT, connection.close(200, "session ended".into()));
        let (closed, ()) = future::join(closing, desk.close()).await;
        ended?;
        closed.map_err(|_| timed_out())?
    }

    pub async fn connect(&self, purpose: &str) -> lapin::Result<Connection> {
        let name = LongString::from(format!("gateway {}{purpose}", self.config.node));
        let properties = ConnectionProperties::default().with_connection_name(name);
        let rules = Rules { key_header: self.config.key_header.clone(), max_body: self.max_body };
        let runtime = wire::runtime(rules);
        Connection::connect_uri_with_runtime(self.uri.clone(), properties, runtime).await
    }

    /// Declares the exchange and the queue. A new queue needs no grace period.
    async fn declare(
        &self,
        on: &Connection,
        grace: &mut Option<Instant>,
    ) -> lapin::Result<Channel> {
        if grace.is_some() {
            // The broker closes this channel if the queue does not exist.
            let channel = on.create_channel().await?;
            let passive = QueueDeclareOptions { passive: true, ..Default::default() };
            if channel.queue_declare(self.queue(), passive, FieldTable::default()).await.is_err() {
                *grace = None;
            }
        }
        let channel = on.create_channel().await?;
        let kind = match &self.config {
            BrokerConfig { key_header: Some(_), .. } => ExchangeKind::Headers,
            BrokerConfig { topic: true, .. } => ExchangeKind::Topic,
            _ => ExchangeKind::Direct,
        };
        let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
        channel.exchange_declare(self.exchange(), kind, durable, FieldTable::default()).await?;
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        let expires = i32::try_from(self.config.expires.as_millis()).unwrap_or(i32::MAX);
        let mut arguments = FieldTable::default();
        arguments.insert("x-expires".into(), AMQPValue::LongInt(expires));
        if self.config.quorum {
            arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        }
        channel.queue_declare(self.queue(), durable, arguments).await?;
        for key in &self.config.binding {
            self.bind_to(&channel, key).await?;
        }
        Ok(channel)
    }

    /// Makes the bindings match the wanted keys, until the gateway stops. The bindings then stay,
    /// so that the queue collects messages until the restart.
    async fn bind(&self, channel: &Channel, stop: &CancellationToken) -> lapin::Result<Infallible> {
        self.interest.follow();
        loop {
            let some = tokio::select! {
                // Check `stop` first: during shutdown, clients are disconnected and keys lose their
                // subscriptions.
                biased;
                () = stop.cancelled() => future::pending().await,
                some = self.interest.next() => some,
            };
            let to_change = some.iter().filter(|(_, _, is_new)| *is_new);
            let changes = to_change.map(|(key, wanted, _)| self.change(channel, key, *wanted));
            if self.interest.follows {
                // On an error, the state of the bindings is unknown; the next session sets all of
                // them.
                future::try_join_all(changes).await?;
            }
            for (key, _, _) in some.iter().filter(|(_, wanted, _)| *wanted) {
                self.interest.bound(key);
            }
        }
    }

    async fn change(&self, channel: &Channel, key: &str, wanted: bool) -> lapin::Result<()> {
        if wanted {
            return self.bind_to(channel, key).await;
        }
        let (routing_key, arguments) = self.binding(key);
        channel.queue_unbind(self.queue(), self.exchange(), routing_key, arguments).await
    }

    async fn bind_to(&self, channel: &Channel, key: &str) -> lapin::Result<()> {
        let (routing_key, arguments) = self.binding(key);
        let options = QueueBindOptions::default();
        channel.queue_bind(self.queue(), self.exchange(), routing_key, options, arguments).await
    }

    fn binding(&self, key: &str) -> (ShortString, FieldTable) {
        match &self.config.key_header {
            Some(header) => ("".into(), table([("x-match", "all"), (header.as_str(), key)])),
            None => (key.into(), FieldTable::default()),
        }
    }

    /// Consumes until the gateway stops. It first waits the grace period, so that clients of an
    /// earlier run can come back: messages without a subscription are acknowledged.
    async fn consume(
        &self,
        channel: &Channel,
        input: &Input,
        grace: &mut Option<Instant>,
        fates: mpsc::UnboundedSender<Fate>,
        stop: &CancellationToken,
    ) -> lapin::Result<()> {
        if let Some(until) = *grace {
            info!("waiting for the clients of {} to come back", self.queue());
            tokio::select! {
                () = sleep_until(until) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
        channel.basic_qos(self.config.prefetch.get(), BasicQosOptions::default()).await?;
        // Exclusive: two gateways with the same name would each get only some of the messages.
        let exclusive = BasicConsumeOptions { exclusive: true, ..Default::default() };
        let arguments = FieldTable::default();
        let mut deliveries =
            channel.basic_consume(self.queue(), CONSUMER.into(), exclusive, arguments).await?;
        *grace = None;
        info!(queue = %self.queue(), "broker connected");
        loop {
            let delivered = tokio::select! {
                delivered = deliveries.next() => delivered.ok_or_else(|| gone("the queue was deleted"))??,
                () = stop.cancelled() => break,
            };
            if let Some(message) = self.message(&delivered, &fates)
                && input.send(message).await.is_err()
            {
                break;
            }
        }
        // The broker redelivers the unread deliveries when the connection closes.
        channel.basic_cancel(CONSUMER.into(), BasicCancelOptions::default()).await
    }

    /// Returns `None` if the [`rewriter`](crate::rewriter) has marked the message as refused.
    fn message(&self, from: &Delivered, fates: &mpsc::UnboundedSender<Fate>) -> Option<Message> {
        if let Some(why) = from.properties.kind() {
            let key = &from.routing_key;
            warn!(queue = %self.queue(), %key, %why, "a message is refused, and dead-lettered");
            let _ = fates.send(Fate { tag: from.delivery_tag, verdict: Verdict::Refuse });
            return None;
        }
        let key = match &self.config.key_header {
            Some(header) => text(from.properties.headers().as_ref(), header).unwrap_or_default(),
            None => from.routing_key.as_str().into(),
        };
        if from.redelivered {
            self.board.redelivered.inc();
        }
        let delivery = Delivery::new(from.delivery_tag, from.redelivered, fates.clone());
        // Invalid JSON is passed on as text: the publisher already has its confirmation.
        let is_json = from.properties.content_type().is_some() && check_json(&from.data).is_ok();
        Some(Message::of(key, &from.data, is_json, Some(delivery)))
    }
}

pub fn table<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    table
}

fn text(table: Option<&FieldTable>, name: &str) -> Option<Key> {
    match table?.inner().get(name)? {
        AMQPValue::LongString(text) => Some(String::from_utf8_lossy(text.as_bytes()).into()),
        AMQPValue::ShortString(text) => Some(text.as_str().into()),
        _ => None,
    }
}

pub fn timed_out() -> lapin::Error {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

pub fn gone(what: &str) -> lapin::Error {
    std::io::Error::other(what).into()
}
