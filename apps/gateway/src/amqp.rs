//! RabbitMQ: consuming, acknowledging and reconnecting.
//!
//! Each gateway has one durable queue, bound to the keys that its clients subscribe to. The broker
//! keeps a message until it is acknowledged ([`crate::message`]). It redelivers what is
//! unacknowledged when the connection ends: at most `--prefetch` messages.
//!
//! A [`session`](Broker::session) has one connection to consume and one to publish. It ends with an
//! error of either. The next session takes the lock, binds all [wanted keys](Interest), and then
//! consumes.
//!
//! The lock keeps an earlier session from removing a binding that this one has made. A gateway that
//! is killed, or whose connection is lost, may have sent unbinds that the broker has not read yet.
//! RabbitMQ orders the methods of a channel, and nothing between channels, so the unbinds may be
//! executed after the binds of the successor, whose clients were told that they are subscribed. So
//! the channel that changes bindings is the exclusive consumer of a queue of its own, to which
//! nothing is published. The broker accepts another exclusive consumer only when the channel of the
//! last one has ended, and a channel that has ended executes no more methods.
//!
//! To find out whether the exchange is still that of the last session, the gateway binds it to an
//! exchange of its own, the mark, which is deleted automatically with its only binding: when the
//! mark is gone, the exchange was deleted, and with it the bindings of the queue, even if another
//! exchange of that name exists now. The mark has the name of the queue, and needs no permission
//! that the queue does not need.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::OptionFuture;
use futures::{StreamExt, future};
use lapin::message::Delivery as Delivered;
use lapin::options::{
    BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, ExchangeBindOptions,
    ExchangeDeclareOptions, ExchangeDeleteOptions, ExchangeUnbindOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::protocol::AMQPSoftError;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties, Consumer, ExchangeKind};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::board::Board;
use crate::config::BrokerConfig;
use crate::deliveries::{Fate, Fates};
use crate::interest::{ALL, BATCH, Change, Interest};
use crate::link::{Channels, refusal};
use crate::lock::Lock;
use crate::log::REFUSED;
use crate::message::{Delivery, Key, Message, Verdict, check_json};
use crate::permissions::Permissions;
use crate::publisher::{Desk, Publisher};
use crate::rewriter::Rules;
use crate::router::Input;
use crate::settle::{Deadline, settle};
use crate::wire;

pub const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The lowest time-out that is learned from the broker.
const SHORTEST_LIMIT: Duration = Duration::from_millis(100);
/// Timeout for answers of the broker.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for closing a connection.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the mark is checked, and as many as [`BATCH`] wanted keys are bound again, in case an
/// operator has removed their bindings. That costs the broker about a thousandth of a core.
const AGAIN: Duration = Duration::from_secs(5);
/// For about how long bindings are changed at once. A client that asks for one key waits for as long, and
/// for its own turn. RabbitMQ takes 1 to 2 ms for most keys, and 6 to 15 ms for one of a hundred words on
/// a topic exchange: 64 of those would take a second. Few changes at once wait longer for the network.
const TURN: Duration = Duration::from_millis(100);
/// Within this time after the first, all channels of a lost connection have ended in the broker.
const CHANNELS_END: Duration = Duration::from_secs(2);
const CONSUMER: &str = "gateway";
/// What the connections for publishing are named, after the gateway.
pub const PUBLISHING: &str = ", publishing";

/// The broker and its settings.
pub struct Broker {
    /// Cancelled when the gateway stops and the last post was answered, or is no longer waited for.
    pub posted: CancellationToken,
    pub uri: AMQPUri,
    pub config: BrokerConfig,
    pub interest: Arc<Interest>,
    pub board: Arc<Board>,
    pub publisher: Publisher,
    pub channels: Arc<Channels>,
    pub max_body: usize,
    /// What is done with a message that waits for too long.
    pub overdue: Overdue,
}

/// When a message waits for too long: after `--ack-timeout`, or sooner if the broker turns out to be
/// less patient.
pub struct Overdue {
    limit: Lock<Duration>,
    acknowledges: bool,
}

impl Overdue {
    pub fn new(limit: Duration, acknowledges: bool) -> Self {
        Self { limit: Lock::new(limit), acknowledges }
    }

    fn deadline(&self) -> Deadline {
        Deadline { limit: *self.limit.lock(), acknowledges: self.acknowledges }
    }

    /// Learns the broker's limit from the error with which it has closed the channel.
    fn learn(&self, error: &lapin::Error) {
        let Some((AMQPSoftError::PRECONDITIONFAILED, why)) = refusal(error) else { return };
        let Some(theirs) = consumer_timeout(why) else { return };
        let mut limit = self.limit.lock();
        if *limit >= theirs {
            *limit = (theirs / 2).max(SHORTEST_LIMIT);
            let (ack_timeout, consumer_timeout) = (*limit, theirs);
            warn!(
                ?ack_timeout,
                ?consumer_timeout,
                "the broker's consumer_timeout is lower than --ack-timeout: set --ack-timeout to \
                 ack_timeout, or it closes a channel after each start of the gateway"
            );
        }
    }
}

/// "… delivery acknowledgement on channel 1 timed out. Timeout value used: 6000 ms. …"
fn consumer_timeout(why: &str) -> Option<Duration> {
    let (_, rest) = why.split_once("Timeout value used: ")?;
    let (number, _) = rest.split_once(" ms")?;
    number.parse().ok().map(Duration::from_millis)
}

impl Broker {
    fn queue(&self) -> ShortString {
        self.config.queue().into()
    }

    fn exchange(&self) -> ShortString {
        self.config.exchange.as_str().into()
    }

    /// Passes messages of the broker to the input, until `stop` is cancelled and all of them are
    /// settled.
    pub async fn run(&self, input: Input, stop: CancellationToken) {
        let mut grace = Some(Instant::now() + self.config.grace);
        let (mut pause, mut lost) = (SHORTEST_PAUSE, Instant::now());
        loop {
            let done = self.session(&input, &mut grace, &mut pause, &stop).await;
            self.publisher.close();
            self.interest.unfollow();
            let Err(error) = done else { return };
            if stop.is_cancelled() {
                return;
            }
            warn!(queue = %self.queue(), %error, "broker lost");
            self.overdue.learn(&error);
            self.channels.learn(&error);
            let why = error.to_string();
            if why.contains("in exclusive use") {
                let (patience, advice) = if why.contains(&format!("'{}'", self.config.lock())) {
                    // Our last connection has the lock until the broker notices that it is dead.
                    let heartbeat = u64::from(self.uri.query.heartbeat.unwrap_or(0));
                    let noticed = (heartbeat > 0).then(|| Duration::from_secs(3 * heartbeat));
                    (noticed, "another gateway may have the same name: each needs its own --node")
                } else {
                    // Our last connection is gone, as we have the lock.
                    (
                        Some(CHANNELS_END),
                        "another program may consume from the queue of this gateway",
                    )
                };
                if patience.is_some_and(|patience| lost.elapsed() > patience) {
                    self.interest.interrupt_all(); // somebody else gets the messages
                }
                warn!("{advice}");
            } else {
                lost = Instant::now();
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
            connected = self.connect("") => connected?,
            () = stop.cancelled() => return Ok(()),
        };
        let mut desk = None;
        let ended = self.run_on(&connection, &mut desk, input, grace, pause, stop).await;
        // Close after an error, too: an open connection keeps the lock.
        let closing = timeout(CLOSE_TIMEOUT, connection.close(200, "session ended".into()));
        let leaving = OptionFuture::from(desk.map(Desk::close));
        let (closed, _) = future::join(closing, leaving).await;
        ended?;
        closed.map_err(|_| timed_out())?
    }

    /// Runs one session on an open connection.
    async fn run_on<'a>(
        &'a self,
        connection: &Connection,
        desk: &mut Option<Desk<'a>>,
        input: &Input,
        grace: &mut Option<Instant>,
        pause: &mut Duration,
        stop: &CancellationToken,
    ) -> lapin::Result<()> {
        let binding = connection.create_channel().await?;
        let mut lock = self.lock(&binding).await?;
        let publishing = self.connect(PUBLISHING).await?;
        let (fates, incoming) = Fates::channel(self.config.prefetch.get());
        let deliveries = Arc::clone(&fates.deliveries);
        let deadline = self.overdue.deadline();
        let channel = connection.create_channel().await?;
        self.declare(connection, &binding, grace).await?;
        let (bound, all_bound) = oneshot::channel();
        let desk = desk.insert(Desk::open(self, publishing));
        self.board.source_up();
        let moving = async {
            tokio::try_join!(
                self.consume(&channel, input, grace, all_bound, fates, stop),
                settle(&channel, &self.board, incoming, &deliveries, &deadline, pause)
            )?;
            self.posted.cancelled().await;
            Ok(())
        };
        tokio::select! {
            moved = moving => moved,
            Err(error) = self.bind(connection, &binding, bound, stop) => Err(error),
            Err(error) = desk.run() => Err(error),
            error = lost(&mut lock) => Err(error),
        }
    }

    pub async fn connect(&self, purpose: &str) -> lapin::Result<Connection> {
        let name = LongString::from(format!("gateway {}{purpose}", self.config.node));
        let properties = ConnectionProperties::default().with_connection_name(name);
        let rules = Rules { key_header: self.config.key_header.clone(), max_body: self.max_body };
        let runtime = wire::runtime(rules);
        let connecting =
            Connection::connect_uri_with_runtime(self.uri.clone(), properties, runtime);
        timeout(TIMEOUT, connecting).await.map_err(|_| timed_out())?
    }

    /// Takes the lock for the channel that changes bindings. Fails while another channel has it.
    async fn lock(&self, binding: &Channel) -> lapin::Result<Consumer> {
        let name: ShortString = self.config.lock().into();
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        // A quorum queue, which may be the default of the virtual host, takes any number of
        // exclusive consumers.
        let mut arguments = table([("x-queue-type", "classic")]);
        arguments.insert("x-expires".into(), AMQPValue::LongInt(self.expires()));
        binding.queue_declare(name.clone(), durable, arguments).await?;
        let exclusive = BasicConsumeOptions { exclusive: true, no_ack: true, ..Default::default() };
        binding.basic_consume(name, CONSUMER.into(), exclusive, FieldTable::default()).await
    }

    /// How long queues exist without a consumer, in milliseconds.
    fn expires(&self) -> i32 {
        i32::try_from(self.config.expires.as_millis()).unwrap_or(i32::MAX)
    }

    /// Declares the exchange, the queue and the mark. A new queue needs no grace period.
    async fn declare(
        &self,
        on: &Connection,
        channel: &Channel,
        grace: &mut Option<Instant>,
    ) -> lapin::Result<()> {
        // The broker closes the channel of what does not exist.
        let (passive, none) =
            (QueueDeclareOptions { passive: true, ..Default::default() }, FieldTable::default());
        let checking = on.create_channel().await?;
        let has_queue = exists(checking.queue_declare(self.queue(), passive, none).await)?;
        let has_mark = exists(self.check_mark(&on.create_channel().await?).await)?;
        if !has_queue {
            *grace = None;
        }
        if !has_queue || !has_mark {
            self.interest.interrupt_all();
        }
        let kind = match &self.config {
            BrokerConfig { key_header: Some(_), .. } => ExchangeKind::Headers,
            BrokerConfig { topic: true, .. } => ExchangeKind::Topic,
            _ => ExchangeKind::Direct,
        };
        let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
        channel.exchange_declare(self.exchange(), kind, durable, FieldTable::default()).await?;
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        let mut arguments = FieldTable::default();
        arguments.insert("x-expires".into(), AMQPValue::LongInt(self.expires()));
        if self.config.quorum {
            arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        }
        channel.queue_declare(self.queue(), durable, arguments).await?;
        let mark =
            ExchangeDeclareOptions { durable: true, auto_delete: true, ..Default::default() };
        channel
            .exchange_declare(self.queue(), ExchangeKind::Fanout, mark, FieldTable::default())
            .await?;
        let (options, none) = (ExchangeBindOptions::default(), FieldTable::default());
        channel.exchange_bind(self.exchange(), self.queue(), "".into(), options, none).await?;
        for key in &self.config.binding {
            self.bind_to(channel, key).await?;
        }
        Ok(())
    }

    /// Fails if the exchange was deleted since the mark was declared.
    async fn check_mark(&self, channel: &Channel) -> lapin::Result<()> {
        let passive = ExchangeDeclareOptions { passive: true, ..Default::default() };
        let none = FieldTable::default();
        channel.exchange_declare(self.queue(), ExchangeKind::Fanout, passive, none).await
    }

    /// Binds the wanted keys, and then makes the bindings match them, until the gateway stops. The
    /// bindings then stay, so that the queue collects messages until the restart.
    async fn bind(
        &self,
        on: &Connection,
        channel: &Channel,
        bound: oneshot::Sender<()>,
        stop: &CancellationToken,
    ) -> lapin::Result<Infallible> {
        let mut permissions = Permissions::new(self);
        for some in self.interest.follow().chunks(BATCH) {
            self.apply(channel, self.interest.again(some), &mut permissions).await?;
        }
        self.interest.tell().await;
        let _ = bound.send(());
        let (mut again, mut tick, mut most) = (Vec::new(), interval(AGAIN), BATCH);
        // lapin keeps an entry for each call to bind in the channel, also if the key is bound
        // already. So each round over the wanted keys has a channel of its own.
        let mut rebinding = on.create_channel().await?;
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let (channel, some) = tokio::select! {
                // Check `stop` first: during shutdown, clients are disconnected and keys lose their
                // subscriptions.
                biased;
                () = stop.cancelled() => future::pending().await,
                _ = tick.tick() => {
                    if again.is_empty() {
                        again = self.interest.needed();
                        rebinding.close(200, "all keys are bound again".into()).await?;
                        rebinding = on.create_channel().await?;
                    }
                    let some = again.split_off(again.len().saturating_sub(most));
                    (&rebinding, self.interest.again(&some))
                }
                some = self.interest.next(most) => (channel, some),
            };
            let (began, count) =
                (Instant::now(), some.iter().filter(|(_, _, is_new)| *is_new).count());
            let removed = self.interest.removed_among(&some);
            if !removed.is_empty() {
                self.interest.tell_of_removed(&removed).await;
            }
            self.apply(channel, some, &mut permissions).await?;
            most = most_in_turn(most, count, began.elapsed());
            if !removed.is_empty() {
                self.interest.tell_of_bound(removed).await;
            }
        }
    }

    /// Changes bindings, unless the mark is gone. On an error, their state is unknown.
    ///
    /// If the exchange was deleted, and another one of that name is there, a new binding may be to a key
    /// whose clients have missed messages. They must be told first, by the next session. The broker
    /// executes the methods of a channel in their order, and none after one that has failed.
    async fn apply(
        &self,
        channel: &Channel,
        mut some: Vec<Change>,
        permissions: &mut Permissions<'_>,
    ) -> lapin::Result<()> {
        if self.interest.follows {
            if self.config.topic {
                let to_change = some.iter().filter(|(_, _, is_new)| *is_new);
                let keys = to_change.map(|(key, ..)| Key::clone(key)).collect();
                let refused = permissions.refused(keys).await?;
                some.retain(|(key, ..)| !refused.contains(key));
                self.interest.refused(refused);
            }
            let to_change = some.iter().filter(|(_, _, is_new)| *is_new);
            let changes = to_change.map(|(key, wanted, _)| self.change(channel, key, *wanted));
            future::try_join(self.check_mark(channel), future::try_join_all(changes)).await?;
        } else {
            self.check_mark(channel).await?;
        }
        self.interest.changed(some);
        Ok(())
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

    /// Fails with [`AMQPSoftError::ACCESSREFUSED`], and ends the channel, if the key must not be
    /// read: see [`crate::permissions`].
    pub async fn ask(&self, channel: &Channel, key: &str) -> lapin::Result<()> {
        let (options, arguments) = (ExchangeUnbindOptions::default(), FieldTable::default());
        channel.exchange_unbind(self.queue(), self.exchange(), key.into(), options, arguments).await
    }

    fn binding(&self, key: &str) -> (ShortString, FieldTable) {
        match &self.config.key_header {
            Some(_) if key == ALL => ("".into(), table([("x-match", "all")])),
            Some(header) => ("".into(), table([("x-match", "all"), (header.as_str(), key)])),
            None => (key.into(), FieldTable::default()),
        }
    }

    /// Consumes until the gateway stops. It first waits the grace period, so that clients of an
    /// earlier run can come back: messages without a subscription are acknowledged. Then it waits
    /// until all keys are bound, and clients are told if they were not.
    async fn consume(
        &self,
        channel: &Channel,
        input: &Input,
        grace: &mut Option<Instant>,
        all_bound: oneshot::Receiver<()>,
        fates: Arc<Fates>,
        stop: &CancellationToken,
    ) -> lapin::Result<()> {
        if let Some(until) = *grace {
            info!("waiting for the clients of {} to come back", self.queue());
            tokio::select! {
                () = sleep_until(until) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
        tokio::select! {
            _ = all_bound => {}
            () = stop.cancelled() => return Ok(()),
        }
        channel.basic_qos(self.config.prefetch.get(), BasicQosOptions::default()).await?;
        // Exclusive: two gateways with the same name would each get only some of the messages.
        let exclusive = BasicConsumeOptions { exclusive: true, ..Default::default() };
        let arguments = FieldTable::default();
        let mut deliveries =
            channel.basic_consume(self.queue(), CONSUMER.into(), exclusive, arguments).await?;
        *grace = None;
        info!(queue = %self.queue(), "broker connected");
        let mut next = async || {
            let delivered = deliveries.next().await.ok_or_else(|| {
                self.interest.interrupt_all(); // even if the queue is declared again at once
                gone("the queue was deleted")
            })??;
            fates.deliveries.set_arrived(delivered.delivery_tag);
            Ok::<_, lapin::Error>(delivered)
        };
        // Deliveries that have arrived while the input is blocked: at most the prefetch. They are
        // taken from lapin, as the broker counts their age.
        let mut early = VecDeque::new();
        'consuming: loop {
            let delivered = if let Some(delivered) = early.pop_front() {
                delivered
            } else {
                tokio::select! {
                    delivered = next() => delivered?,
                    () = stop.cancelled() => break,
                }
            };
            let Some(message) = self.message(&delivered, &fates) else { continue };
            let mut sending = pin!(input.send(message));
            loop {
                tokio::select! {
                    biased;
                    sent = &mut sending => match sent {
                        Ok(()) => break,
                        Err(_) => break 'consuming,
                    },
                    delivered = next() => early.push_back(delivered?),
                }
            }
        }
        // The next run has another epoch, and needs no mark.
        channel.exchange_delete(self.queue(), ExchangeDeleteOptions::default()).await?;
        // The broker redelivers the unread deliveries when the connection closes.
        channel.basic_cancel(CONSUMER.into(), BasicCancelOptions::default()).await
    }

    /// Returns `None` if the [`rewriter`](crate::rewriter) has marked the message as refused.
    fn message(&self, from: &Delivered, fates: &Arc<Fates>) -> Option<Message> {
        if let Some(why) = from.properties.kind() {
            let key = &from.routing_key;
            if REFUSED.allows() {
                warn!(queue = %self.queue(), %key, %why, "a message is refused, and dead-lettered");
            }
            fates.send(Fate { tag: from.delivery_tag, verdict: Verdict::Refuse });
            return None;
        }
        let key = match &self.config.key_header {
            Some(header) => text(from.properties.headers().as_ref(), header).unwrap_or_default(),
            None => from.routing_key.as_str().into(),
        };
        if from.redelivered {
            self.board.redelivered.inc();
        }
        let delivery = Delivery::new(from.delivery_tag, from.redelivered, Arc::clone(fates));
        // Invalid JSON is passed on as text: the publisher already has its confirmation.
        let is_json = from.properties.content_type().is_some() && check_json(&from.data).is_ok();
        Some(Message::of(key, &from.data, is_json, Some(delivery)))
    }
}

/// Returns how many bindings can be changed in a [`TURN`], if so many have taken this time. Without any,
/// it is the number that is known before.
fn most_in_turn(before: usize, count: usize, time: Duration) -> usize {
    if count == 0 {
        return before;
    }
    let most = TURN.as_nanos() * count as u128 / time.as_nanos().max(1);
    usize::try_from(most).unwrap_or(BATCH).clamp(1, BATCH)
}

/// Waits until the lock is lost.
async fn lost(lock: &mut Consumer) -> lapin::Error {
    while let Some(delivered) = lock.next().await {
        // A message that somebody has published to it is dropped.
        if let Err(error) = delivered {
            return error;
        }
    }
    gone("the queue that is the lock was deleted")
}

/// Returns `false` if the error says that the object does not exist.
fn exists<T>(declared: lapin::Result<T>) -> lapin::Result<bool> {
    match declared {
        Ok(_) => Ok(true),
        Err(error) => match refusal(&error) {
            Some((AMQPSoftError::NOTFOUND, _)) => Ok(false),
            _ => Err(error),
        },
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

fn timed_out() -> lapin::Error {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

pub fn gone(what: &str) -> lapin::Error {
    std::io::Error::other(what).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_bindings_are_changed_at_once_as_take_a_short_time() {
        let after = |count, millis| most_in_turn(9, count, Duration::from_millis(millis));
        assert_eq!([after(64, 1), after(64, 100), after(1, 0)], [BATCH; 3]);
        assert_eq!([after(64, 1000), after(6, 90), after(1, 5)], [6, 6, 20]);
        assert_eq!([after(1, 10_000), after(0, 0)], [1, 9]);
    }
}
