//! RabbitMQ: consuming, acknowledging, publishing; and coming back when it was away.
//!
//! Each gateway has one durable queue, bound for the keys that its clients want. A message stays the
//! broker's until its fate is known ([`crate::message`]); what is unacknowledged when the connection ends
//! is delivered again by the broker, and at most `--prefetch` messages are.
//!
//! One connection is one [`session`](Broker::session): it ends with an error, and the next one begins with
//! nothing but what is [wanted](Interest).

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use futures::{StreamExt, future};
use lapin::message::Delivery as Delivered;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions,
    BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::uri::AMQPUri;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind,
};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::board::Board;
use crate::config::BrokerConfig;
use crate::message::{Delivery, Fate, Key, Message};
use crate::router::Input;
use crate::subscription::Terms;

const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// With a broker that does not answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Keys that are bound, or unbound, at once.
const BATCH: usize = 64;
/// Keys of which it is remembered that they are not bound.
const UNBOUND: usize = 10_000;
const CONSUMER: &str = "gateway";

/// The keys that clients want, which the queue is to be bound for.
///
/// The demux reports when a key gets its first subscription and when it loses the last one. Only the
/// keys that are wanted now are kept, and which keys to look at: bindings are made to match, whatever
/// happened in between.
pub struct Interest {
    follows: bool,
    keys: Mutex<Keys>,
    changed: Notify,
}

#[derive(Default)]
struct Keys {
    wanted: HashSet<Key>,
    /// Subscriptions to be told once the queue is bound for their key.
    waiting: HashMap<Key, Vec<Arc<Terms>>>,
    /// Their bindings may not match.
    unsure: HashSet<Key>,
}

impl Interest {
    /// If it does not follow the subscriptions, bindings are left as they are.
    pub fn new(follows: bool) -> Self {
        Self { follows, keys: Mutex::default(), changed: Notify::new() }
    }

    /// The first subscription to this key receives.
    pub fn want(&self, key: &Key) {
        let mut keys = self.keys.lock().unwrap();
        keys.wanted.insert(Key::clone(key));
        keys.unsure.insert(Key::clone(key));
        self.changed.notify_one();
    }

    /// No subscription to this key receives.
    pub fn unwant(&self, key: &Key) {
        let mut keys = self.keys.lock().unwrap();
        keys.wanted.remove(key);
        keys.unsure.insert(Key::clone(key));
        self.changed.notify_one();
    }

    /// Tells a subscription when the queue is bound for its key. If it is the first, its key is
    /// [wanted](Self::want) after this call.
    pub fn tell_when_bound(&self, terms: Arc<Terms>) {
        let mut keys = self.keys.lock().unwrap();
        let key = Key::clone(&terms.key);
        keys.waiting.entry(Key::clone(&key)).or_default().push(terms);
        if keys.wanted.contains(&key) {
            keys.unsure.insert(key);
            self.changed.notify_one();
        }
    }

    /// This subscription has ended.
    pub fn forget(&self, terms: &Terms) {
        let mut keys = self.keys.lock().unwrap();
        if let Some(waiting) = keys.waiting.get_mut(&terms.key) {
            waiting.retain(|other| other.id != terms.id);
            if waiting.is_empty() {
                keys.waiting.remove(&terms.key);
            }
        }
    }

    /// A message came that nobody wants: the queue may be bound for its key since an earlier life.
    pub fn doubt(&self, key: &str) {
        if self.follows {
            self.keys.lock().unwrap().unsure.insert(key.into());
            self.changed.notify_one();
        }
    }

    /// Nothing is known of the bindings.
    fn doubt_all(&self) {
        let keys = &mut *self.keys.lock().unwrap();
        keys.unsure.extend(keys.wanted.iter().cloned());
        self.changed.notify_one();
    }

    /// Some keys to look at, and whether each is wanted.
    async fn next(&self) -> Vec<(Key, bool)> {
        loop {
            let changed = self.changed.notified();
            {
                let Keys { wanted, unsure, .. } = &mut *self.keys.lock().unwrap();
                let some: Vec<Key> = unsure.iter().take(BATCH).cloned().collect();
                if !some.is_empty() {
                    for key in &some {
                        unsure.remove(key);
                    }
                    return some
                        .into_iter()
                        .map(|key| (key.clone(), wanted.contains(&key)))
                        .collect();
                }
            }
            changed.await;
        }
    }

    /// The queue is bound for this key.
    fn bound(&self, key: &Key) {
        // The lock is released before they are told.
        let waiting = self.keys.lock().unwrap().waiting.remove(key);
        waiting.unwrap_or_default().iter().for_each(|terms| terms.subscribed());
    }
}

/// The broker, or the lack of it.
pub struct Broker {
    pub uri: AMQPUri,
    pub config: BrokerConfig,
    pub interest: Arc<Interest>,
    pub board: Arc<Board>,
    /// None while the broker is away.
    pub publisher: Mutex<Option<Channel>>,
}

/// It is not sure that the broker has it.
#[derive(Debug)]
pub struct NotConfirmed;

impl Broker {
    fn queue(&self) -> ShortString {
        format!("gateway.{}", self.config.node).into()
    }

    fn exchange(&self) -> ShortString {
        self.config.exchange.as_str().into()
    }

    /// Publishes, and waits until the broker has it on disk.
    pub async fn publish(&self, key: &str, body: &[u8]) -> Result<(), NotConfirmed> {
        let channel = self.publisher.lock().unwrap().clone().ok_or(NotConfirmed)?;
        let mut properties = BasicProperties::default().with_delivery_mode(2); // persistent
        if let Some(header) = &self.config.key_header {
            properties = properties.with_headers(table([(header.as_str(), key)]));
        }
        let options = BasicPublishOptions::default();
        let confirmed = async {
            channel
                .basic_publish(self.exchange(), key.into(), options, body, properties)
                .await?
                .await
        };
        match timeout(PATIENCE, confirmed).await {
            Ok(Ok(Confirmation::Ack(_))) => Ok(()),
            _ => Err(NotConfirmed),
        }
    }

    /// Puts what the broker has into the input, until it is stopped and all that came is settled.
    pub async fn run(&self, input: Input, stop: CancellationToken) {
        let mut grace = Some(Instant::now() + self.config.grace);
        let mut pause = SHORTEST_PAUSE;
        loop {
            let done = self.session(&input, &mut grace, &mut pause, &stop).await;
            *self.publisher.lock().unwrap() = None;
            let Err(error) = done else { return };
            if stop.is_cancelled() {
                return;
            }
            warn!(%error, "broker lost");
            if error.to_string().contains("in exclusive use") {
                warn!("is there another gateway of this name? Each needs a --node of its own");
            }
            self.board.source_down(error.to_string());
            tokio::select! {
                () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                () = stop.cancelled() => return,
            }
        }
    }

    /// From one connection to its end.
    async fn session(
        &self,
        input: &Input,
        grace: &mut Option<Instant>,
        pause: &mut Duration,
        stop: &CancellationToken,
    ) -> lapin::Result<()> {
        let connection = tokio::select! {
            connected = timeout(PATIENCE, self.connect()) => connected.map_err(|_| timed_out())??,
            () = stop.cancelled() => return Ok(()),
        };
        let (fates, told) = mpsc::unbounded_channel();
        let channel = connection.create_channel().await?;
        let binding = self.declare(&connection, grace).await?;
        *self.publisher.lock().unwrap() = Some(self.publisher_on(&connection).await?);
        self.board.source_up();
        let moving = async {
            tokio::try_join!(
                self.consume(&channel, input, grace, pause, fates, stop),
                self.settle(&channel, told)
            )
        };
        tokio::select! {
            moved = moving => moved?,
            never = self.bind(&binding, stop) => match never? {},
        };
        connection.close(200, "the gateway stops".into()).await
    }

    async fn connect(&self) -> lapin::Result<Connection> {
        let name = LongString::from(format!("gateway {}", self.config.node));
        let properties = ConnectionProperties::default().with_connection_name(name);
        Connection::connect_uri(self.uri.clone(), properties).await
    }

    /// Declares exchange and queue. Without a queue from an earlier life nobody has to be waited for.
    async fn declare(
        &self,
        on: &Connection,
        grace: &mut Option<Instant>,
    ) -> lapin::Result<Channel> {
        if grace.is_some() {
            // If there is none, the broker closes this channel.
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
        channel.queue_declare(self.queue(), durable, arguments).await?;
        for key in &self.config.binding {
            self.bind_to(&channel, key).await?;
        }
        Ok(channel)
    }

    async fn publisher_on(&self, connection: &Connection) -> lapin::Result<Channel> {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    /// Makes the bindings match what is wanted, until the gateway stops: then they stay, so that the
    /// queue collects what comes before it is back.
    async fn bind(&self, channel: &Channel, stop: &CancellationToken) -> lapin::Result<Infallible> {
        // Whether the queue is bound for a key, as far as that is known.
        let mut bound = HashMap::new();
        self.interest.doubt_all();
        loop {
            let some = tokio::select! {
                // First: once it stops, keys are wanted no longer only because all clients are sent away.
                biased;
                () = stop.cancelled() => future::pending().await,
                some = self.interest.next() => some,
            };
            let to_change = some.iter().filter(|(key, wanted)| bound.get(key) != Some(wanted));
            let changes = to_change.map(|(key, wanted)| self.change(channel, key, *wanted));
            if self.interest.follows {
                // After an error nothing is known; the next session asks for all of them.
                future::try_join_all(changes).await?;
            }
            for (key, wanted) in some {
                if wanted {
                    self.interest.bound(&key);
                }
                bound.insert(key, wanted);
            }
            if bound.len() > UNBOUND {
                bound.retain(|_, wanted| *wanted);
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

    /// Until the gateway stops. Nothing is read before the clients of an earlier life had the time to
    /// come back: what nobody wants is forgotten.
    async fn consume(
        &self,
        channel: &Channel,
        input: &Input,
        grace: &mut Option<Instant>,
        pause: &mut Duration,
        fates: mpsc::UnboundedSender<Fate>,
        stop: &CancellationToken,
    ) -> lapin::Result<()> {
        if let Some(until) = *grace {
            info!("waits for the clients of {} to come back", self.queue());
            tokio::select! {
                () = sleep_until(until) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
        channel.basic_qos(self.config.prefetch.get(), BasicQosOptions::default()).await?;
        // Exclusive: two gateways of one name would each get half of what both want.
        let exclusive = BasicConsumeOptions { exclusive: true, ..Default::default() };
        let arguments = FieldTable::default();
        let mut deliveries =
            channel.basic_consume(self.queue(), CONSUMER.into(), exclusive, arguments).await?;
        (*grace, *pause) = (None, SHORTEST_PAUSE);
        info!(queue = %self.queue(), "broker connected");
        loop {
            let delivered = tokio::select! {
                delivered = deliveries.next() => delivered.ok_or_else(cancelled)??,
                () = stop.cancelled() => break,
            };
            let message = self.message(delivered, &fates);
            if input.send(message).await.is_err() {
                break;
            }
        }
        // What was delivered and not looked at is delivered again once the connection is closed.
        channel.basic_cancel(CONSUMER.into(), BasicCancelOptions::default()).await
    }

    fn message(&self, from: Delivered, fates: &mpsc::UnboundedSender<Fate>) -> Message {
        let key = match &self.config.key_header {
            Some(header) => text(from.properties.headers().as_ref(), header).unwrap_or_default(),
            None => from.routing_key.as_str().into(),
        };
        if from.redelivered {
            self.board.redelivered.inc();
        }
        let delivery = Delivery::new(from.delivery_tag, from.redelivered, fates.clone());
        Message::new(key, Bytes::from(from.data), Some(delivery))
    }

    /// Tells the broker what became of its messages, until all of them are gone and no more come.
    async fn settle(
        &self,
        channel: &Channel,
        mut told: mpsc::UnboundedReceiver<Fate>,
    ) -> lapin::Result<()> {
        while let Some(Fate { tag, again }) = told.recv().await {
            if again {
                self.board.requeued.inc();
                let requeue = BasicNackOptions { requeue: true, multiple: false };
                channel.basic_nack(tag, requeue).await?;
            } else {
                self.board.acknowledged.inc();
                channel.basic_ack(tag, BasicAckOptions::default()).await?;
            }
        }
        Ok(())
    }
}

fn table<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> FieldTable {
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

fn timed_out() -> lapin::Error {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

fn cancelled() -> lapin::Error {
    std::io::Error::other("the queue was deleted").into()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use futures::FutureExt;

    use super::*;
    use crate::config::Config;
    use crate::subscription::{News, Share};

    fn terms(id: u64, key: &str) -> (Arc<Terms>, mpsc::UnboundedReceiver<News>) {
        let board = Arc::new(Board::new(&Config::parse_from(["gateway"])));
        let (share, (news, heard)) = (Arc::new(Share::new(1, false)), mpsc::unbounded_channel());
        let client = ([127, 0, 0, 1], 1).into();
        (Arc::new(Terms::new(id, key.into(), client, None, share, news, board)), heard)
    }

    fn next(interest: &Interest) -> Option<Vec<(Key, bool)>> {
        interest.next().now_or_never()
    }

    #[test]
    fn each_subscription_is_told_once_its_key_is_bound() {
        let (interest, key) = (Interest::new(true), Key::from("tea"));
        let (first, mut first_news) = terms(1, "tea");
        interest.tell_when_bound(first);
        assert_eq!(next(&interest), None, "the key is not attached yet");
        interest.want(&key);
        assert_eq!(next(&interest), Some(vec![(Key::clone(&key), true)]));
        assert!(first_news.try_recv().is_err(), "the binding is under way");
        interest.bound(&key);
        assert!(matches!(first_news.try_recv(), Ok(News::Subscribed(_, 1))));

        // It joins: the key is attached already.
        let (second, mut second_news) = terms(2, "tea");
        interest.tell_when_bound(second);
        assert_eq!(next(&interest), Some(vec![(Key::clone(&key), true)]));
        interest.bound(&key);
        assert!(matches!(second_news.try_recv(), Ok(News::Subscribed(_, 2))));
        assert!(first_news.try_recv().is_err());

        interest.unwant(&key);
        assert_eq!(next(&interest), Some(vec![(key, false)]));
        assert_eq!(next(&interest), None);
    }

    #[test]
    fn nothing_is_kept_of_a_subscription_that_never_received() {
        let (interest, key) = (Interest::new(true), Key::from("tea"));
        let (terms, mut news) = terms(1, "tea");
        interest.tell_when_bound(Arc::clone(&terms));
        interest.forget(&terms);
        assert!(interest.keys.lock().unwrap().waiting.is_empty());
        interest.bound(&key);
        assert!(news.try_recv().is_err());
    }
}
