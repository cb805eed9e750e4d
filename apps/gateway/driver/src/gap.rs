//! Messages that a client cannot get, and whether it is told before it hears a later one.

use std::time::Duration;

use clap::ValueEnum;
use futures::{SinkExt, StreamExt};
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    ExchangeDeleteOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tokio_tungstenite::tungstenite::Message as Frame;

use crate::client::{self, Socket};
use crate::publish;
use crate::script::{Site, ask};
use crate::stats;

/// How long the gateway may take to notice what an operator has done, and to repair it.
const REPAIR: Duration = Duration::from_secs(180);

/// After this time, the gateway knows that a message was published after its key was bound.
const CERTAIN: Duration = Duration::from_secs(6);

/// How long a gateway must not confirm a subscription while another one may still unbind its key. A
/// machine on which this is too short sees no fault where there is none.
const HELD: Duration = Duration::from_secs(3);

/// Messages for a client that does not read.
const UNREAD: usize = 60;

/// How often a client resets its connection, what it does not read before, and the messages that wait
/// for it then and that others have heard. All fit into its share, which is 128 messages.
const RESETS: u64 = 10;
const CLOG: usize = 15;
const BEHIND: u64 = 10;

/// Keys of a client for which the queue is bound to all messages of a headers exchange.
const CROWD: usize = 200;

/// The header that has the key, for a headers exchange.
const HEADER: &str = "key";

/// How long the gateway may take to settle what it has received.
const SETTLED: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub struct Gap {
    case: Case,
    #[command(flatten)]
    site: Site,
    /// The queue of the gateway
    #[arg(long)]
    queue: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Case {
    /// Nothing is missed, and nothing is reported: clients come and go while the broker restarts
    None,
    /// A client returns while the broker is away, and leaves before it is subscribed
    Hasty,
    /// A client leaves while the broker is away, which then loses its disk
    Disk,
    /// The gateway is stopped for longer than its queue exists
    Expired,
    /// Messages were published before the first client subscribed
    First,
    /// An operator removes the binding of a key
    Unbound,
    /// An operator deletes the exchange, and declares it again
    Redeclared,
    /// An operator does so, and before the gateway has noticed, a client subscribes to many keys, or
    /// leaves them: the queue is bound to all messages of a headers exchange, or to single keys again
    Crowd,
    /// Another program consumes from the queue while the gateway is stopped, and keeps it out for a while
    Stolen,
    /// The connection of one client is reset while it does not read
    Reset,
    /// A client that does not read resets its connection again and again; without `--history`
    Clogged,
    /// A client that does not read resets its connection while the gateway stops; without `--history`
    Stopped,
    /// The gateway is killed while the broker has not read all that it has sent: a relay keeps back
    /// that a key is unbound, and a client subscribes to the key at the next gateway
    Late,
}

/// A client of one key, and the last position that it knows.
struct Client<'a> {
    gap: &'a Gap,
    key: &'static str,
    socket: Option<Socket>,
    epoch: Value,
    at: Value,
}

impl Gap {
    pub async fn run(self) -> Result<(), String> {
        let limit = Duration::from_secs(400);
        let done = timeout(limit, async {
            match self.case {
                Case::None => self.none().await,
                Case::Hasty => self.hasty().await,
                Case::Disk => self.disk().await,
                Case::Expired => self.expired().await,
                Case::First => self.first().await,
                Case::Unbound => self.unbound().await,
                Case::Redeclared => self.redeclared().await,
                Case::Crowd => self.crowd().await,
                Case::Stolen => self.stolen().await,
                Case::Reset => self.reset().await,
                Case::Clogged => self.clogged().await,
                Case::Stopped => self.stopped().await,
                Case::Late => self.late().await,
            }
        });
        done.await.map_err(|_| "no end after 400 s".to_owned())?
    }

    async fn none(&self) -> Result<(), String> {
        let (mut live, mut other) = (self.subscribed("tea").await?, self.subscribed("tea").await?);
        self.publish("tea", 1..=5).await?;
        live.hears(1..=5).await?;
        other.hears(1..=5).await?;
        other.leave();
        self.publish("tea", 6..=8).await?;
        live.hears(6..=8).await?;
        other.returns(false).await?;
        other.hears(6..=8).await?;
        other.until("subscribed").await?;
        ask("stop broker").await?;
        // The key was bound when the broker was stopped, and its queue is durable.
        other.leave();
        ask("start broker").await?;
        self.publish("tea", 9..=11).await?;
        live.hears(9..=11).await?;
        other.returns(false).await?;
        other.hears(9..=11).await?;
        other.until("subscribed").await?;
        ask("kill broker").await?;
        // One that returns before the broker does, of a key that it alone subscribes to.
        let mut third = self.subscriber("mate").await?;
        ask("start broker").await?;
        third.until("subscribed").await?;
        self.publish("tea", 12..=14).await?;
        self.publish("mate", 1..=2).await?;
        third.hears(1..=2).await?;
        live.hears(12..=14).await?;
        other.hears(12..=14).await
    }

    async fn hasty(&self) -> Result<(), String> {
        let mut client = self.subscribed("tea").await?;
        self.publish("tea", 1..=5).await?;
        client.hears(1..=5).await?;
        client.leave();
        self.until_unbound("tea").await?;
        self.until_logged().await?;
        ask("kill broker").await?;
        client.returns(true).await?;
        client.leave();
        ask("start broker").await?;
        self.publish("tea", 6..=7).await?;
        client.returns(true).await?;
        client.until("subscribed").await?;
        self.publish("tea", 8..=8).await?;
        client.hears(8..=8).await
    }

    async fn disk(&self) -> Result<(), String> {
        let (mut live, mut client) =
            (self.subscribed("tea").await?, self.subscribed("mate").await?);
        for (key, client) in [("tea", &mut live), ("mate", &mut client)] {
            self.publish(key, 1..=5).await?;
            client.hears(1..=5).await?;
        }
        ask("kill broker").await?;
        client.leave();
        ask("wipe broker").await?;
        ask("start broker").await?;
        live.until("gap").await?;
        for key in ["tea", "mate"] {
            self.publish(key, 6..=7).await?;
        }
        live.hears(6..=7).await?;
        client.returns(true).await?;
        client.until("subscribed").await?;
        self.publish("mate", 8..=8).await?;
        client.hears(8..=8).await
    }

    async fn expired(&self) -> Result<(), String> {
        let (mut live, mut client) =
            (self.subscribed("tea").await?, self.subscribed("mate").await?);
        self.publish("tea", 1..=5).await?;
        self.publish("mate", 1..=5).await?;
        live.hears(1..=5).await?;
        client.hears(1..=5).await?;
        client.leave();
        ask("pause gateway").await?;
        self.until_gone().await?;
        self.publish("tea", 6..=7).await?;
        self.publish("mate", 6..=7).await?;
        ask("resume gateway").await?;
        live.until("gap").await?;
        self.publish("tea", 8..=8).await?;
        live.hears(8..=8).await?;
        client.returns(true).await
    }

    async fn first(&self) -> Result<(), String> {
        self.publish("tea", 1..=3).await?;
        let epoch = self.subscribed("mate").await?.epoch;
        for epoch in [Value::Null, epoch] {
            let mut client = Client { at: 0.into(), epoch, ..self.client("tea") };
            client.returns(true).await?;
            client.until("subscribed").await?;
        }
        Ok(())
    }

    async fn unbound(&self) -> Result<(), String> {
        let mut client = self.subscribed("tea").await?;
        // A post of the gateway's own shows that the key is not bound; nothing else does.
        for by_post in [true, false] {
            sleep(CERTAIN).await;
            self.publish("tea", 1..=1).await?;
            client.hears(1..=1).await?;
            let channel = self.channel().await?;
            let (queue, exchange, key) = (&self.queue, &self.site.exchange, "tea");
            let unbound = channel.queue_unbind(
                queue.as_str().into(),
                exchange.as_str().into(),
                key.into(),
                FieldTable::default(),
            );
            unbound.await.map_err(|error| error.to_string())?;
            let start = Instant::now();
            if by_post {
                let posts = reqwest::Client::new();
                publish::post_one(&posts, &self.site.gateway, "tea", b"2".to_vec(), true).await?;
                // Before the key is bound again, and afterwards.
                client.until("gap").await?;
                client.until("gap").await?;
            } else {
                self.publish("tea", 2..=2).await?;
            }
            let mut number = 2;
            let mut is_heard = false;
            while !is_heard {
                if start.elapsed() > REPAIR {
                    return Err("the client never hears again".into());
                }
                number += 1;
                self.publish("tea", number..=number).await?;
                // An earlier one may come late.
                while !is_heard
                    && let Ok(value) = timeout(Duration::from_millis(500), client.next()).await
                {
                    is_heard = value?["body"].as_str() == Some(&number.to_string());
                }
            }
            let how = if by_post { "told and heard" } else { "heard" };
            println!("  unbound: {how} again after {:.1?}", start.elapsed());
        }
        Ok(())
    }

    async fn redeclared(&self) -> Result<(), String> {
        for away in [false, true] {
            let mut client = self.subscribed("tea").await?;
            self.publish("tea", 1..=1).await?;
            client.hears(1..=1).await?;
            if away {
                ask("pause gateway").await?;
                self.until_unused().await?;
            }
            self.redeclare(ExchangeKind::Direct).await?;
            self.publish("tea", 2..=2).await?;
            let start = Instant::now();
            if away {
                ask("resume gateway").await?;
            }
            timeout(REPAIR, client.until("gap")).await.map_err(|_| "the client is not told")??;
            println!("  declared again: told after {:.1?}", start.elapsed());
            self.publish("tea", 3..=3).await?;
            client.hears(3..=3).await?;
        }
        Ok(())
    }

    async fn crowd(&self) -> Result<(), String> {
        let mut client = self.subscribed("tea").await?;
        let (mut crowd, mut number) = (None, 0);
        for comes in [true, false, true, false] {
            number += 1;
            self.publish("tea", [number]).await?;
            client.until_heard(number).await?;
            self.redeclare(ExchangeKind::Headers).await?;
            let how = if comes {
                let keys = (0..CROWD).map(|number| format!("crowd-{number}"));
                crowd = Some(client::subscriber(&self.site.gateway, None, keys).await?);
                "subscribes to"
            } else {
                crowd = None;
                "leaves"
            };
            let start = Instant::now();
            let publishing = async {
                loop {
                    number += 1;
                    if let Err(error) = self.publish("tea", [number]).await {
                        break error;
                    }
                }
            };
            tokio::select! {
                told = client.until("gap") => told?,
                error = publishing => return Err(error),
            }
            println!("  a client {how} {CROWD} keys: told after {:.1?}", start.elapsed());
        }
        drop(crowd);
        Ok(())
    }

    /// Deletes the exchange, and declares it again.
    async fn redeclare(&self, kind: ExchangeKind) -> Result<(), String> {
        let channel = self.channel().await?;
        let exchange = self.site.exchange.as_str();
        let deleted = channel.exchange_delete(exchange.into(), ExchangeDeleteOptions::default());
        deleted.await.map_err(|error| error.to_string())?;
        let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let declared =
            channel.exchange_declare(exchange.into(), kind, durable, FieldTable::default());
        declared.await.map_err(|error| error.to_string())
    }

    async fn stolen(&self) -> Result<(), String> {
        let mut client = self.subscribed("tea").await?;
        self.publish("tea", 1..=1).await?;
        client.hears(1..=1).await?;
        ask("pause gateway").await?;
        self.until_unused().await?;
        let channel = self.channel().await?;
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let none = FieldTable::default();
        let consumed = channel.basic_consume(self.queue.as_str().into(), "".into(), options, none);
        let mut thief = consumed.await.map_err(|error| error.to_string())?;
        self.publish("tea", 2..=2).await?;
        thief.next().await.ok_or("the queue is gone")?.map_err(|error| error.to_string())?;
        ask("resume gateway").await?;
        // It waits twice as long each time: the sixth time is more than 3 s after the first.
        let refusals = async || {
            let stats = stats::stats(&self.site.gateway).await?;
            Ok::<_, String>(stats["source"]["reconnects"].as_u64().unwrap_or_default())
        };
        while refusals().await? < 7 {
            sleep(Duration::from_millis(100)).await;
        }
        channel.close(200, "done".into()).await.map_err(|error| error.to_string())?;
        self.publish("tea", 3..=3).await?;
        // Each attempt may tell of a gap.
        let mut gaps = 0;
        loop {
            let value = client.next().await?;
            match (value["type"].as_str(), value["body"].as_str()) {
                (Some("gap"), _) => gaps += 1,
                (Some("message"), Some("3")) if gaps > 0 => return Ok(()),
                _ => return Err(format!("after {gaps} gaps: {value}")),
            }
        }
    }

    async fn reset(&self) -> Result<(), String> {
        let (mut client, mut other) =
            (self.subscribed("tea").await?, self.subscribed("tea").await?);
        let posts = reqwest::Client::new();
        let body = "x".repeat(60_000).into_bytes(); // more than the buffers hold, in all
        for _ in 0..UNREAD {
            publish::post_one(&posts, &self.site.gateway, "tea", body.clone(), true).await?;
            other.next().await?;
        }
        client.leave();
        if let Ok(again) = timeout(Duration::from_secs(3), other.next()).await {
            return Err(format!("the other client hears again: {:.100}", again?.to_string()));
        }
        client.returns(false).await?;
        for _ in 0..UNREAD {
            let value = client.next().await?;
            if value["type"] != "message" {
                return Err(format!("expected a message, got {value:.100}"));
            }
        }
        client.until("subscribed").await
    }

    /// Others hear each message once, in order, and lose none to the rate.
    async fn clogged(&self) -> Result<(), String> {
        let mut other = self.subscribed("tea").await?;
        for round in 0..RESETS {
            let clogged = self.clog().await?;
            let first = round * BEHIND + 1;
            for number in first..first + BEHIND {
                self.post("tea", number.to_string()).await?;
                other.hears_next(number).await?;
            }
            reset(clogged)?;
        }
        self.until_settled().await?;
        self.post("tea", (RESETS * BEHIND + 1).to_string()).await?;
        other.hears_next(RESETS * BEHIND + 1).await?;
        for name in ["gateway_requeued_total", "gateway_redelivered_total"] {
            let count = stats::counter(&self.site.gateway, name).await?;
            if count > 0 {
                return Err(format!("{name} is {count}"));
            }
        }
        println!("  {RESETS} resets: the other client hears each message once");
        Ok(())
    }

    /// What waits for a client when the gateway stops is redelivered to the next gateway.
    async fn stopped(&self) -> Result<(), String> {
        let clogged = self.clog().await?;
        self.post("tea", "1".to_owned()).await?;
        let leaving = async {
            while stats::stats(&self.site.gateway).await?["draining"] != true {
                sleep(Duration::from_millis(50)).await;
            }
            reset(clogged)
        };
        let (stopped, left) = tokio::join!(ask("stop gateway"), leaving);
        stopped.and(left)?;
        ask("start gateway").await?;
        let mut client = self.subscriber("tea").await?;
        self.post("tea", "2".to_owned()).await?;
        loop {
            let value = client.next().await?;
            match (value["type"].as_str(), value["body"].as_str()) {
                (Some("subscribed"), _) => {}
                (Some("message"), Some("1")) if value["redelivered"] == true => break,
                _ => return Err(format!("expected message 1 again, got {value:.100}")),
            }
        }
        println!("  stopped: what waited for a client is redelivered");
        Ok(())
    }

    /// Returns a client that has subscribed to two keys and does not read, and for which more waits
    /// than the buffers hold.
    async fn clog(&self) -> Result<Socket, String> {
        let mut socket =
            client::subscriber(&self.site.gateway, Some(4096), ["junk", "tea"]).await?;
        let mut unconfirmed = 2;
        while unconfirmed > 0 {
            if client::next(&mut socket).await?["type"] == "subscribed" {
                unconfirmed -= 1;
            }
        }
        for _ in 0..CLOG {
            self.post("junk", "x".repeat(60_000)).await?;
        }
        Ok(socket)
    }

    async fn post(&self, key: &str, body: String) -> Result<(), String> {
        let http = reqwest::Client::new();
        publish::post_one(&http, &self.site.gateway, key, body.into_bytes(), true).await?;
        Ok(())
    }

    /// Waits until the gateway has settled all that it has received.
    async fn until_settled(&self) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let mut settled = 0;
            for name in ["gateway_acknowledged_total", "gateway_requeued_total"] {
                settled += stats::counter(&self.site.gateway, name).await?;
            }
            let received = stats::counter(&self.site.gateway, "gateway_received_total").await?;
            if settled == received {
                return Ok(());
            }
            if start.elapsed() > SETTLED {
                return Err(format!("{settled} of {received} messages are settled"));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn late(&self) -> Result<(), String> {
        let mut client = self.subscribed("tea").await?;
        self.publish("tea", 1..=3).await?;
        client.hears(1..=3).await?;
        ask("hold relay").await?;
        client.leave();
        ask("await unbind").await?;
        ask("kill gateway").await?;
        ask("start gateway").await?;
        client.returns(true).await?;
        let early = timeout(HELD, client.until("subscribed")).await;
        ask("release relay").await?;
        if let Ok(told) = early {
            told?;
            let unbound = timeout(REPAIR, self.until_unbound("tea")).await;
            unbound.map_err(|_| "subscribed too early, and no message was lost this time")??;
            return Err(
                "a message is lost that was published after \"subscribed\": the gateway that \
                        was killed has unbound its key"
                    .into(),
            );
        }
        client.until("subscribed").await?;
        self.publish("tea", 4..=6).await?;
        client.hears(4..=6).await
    }

    fn client(&self, key: &'static str) -> Client<'_> {
        Client { gap: self, key, socket: None, epoch: Value::Null, at: Value::Null }
    }

    /// Connects and subscribes for the first time.
    async fn subscriber(&self, key: &'static str) -> Result<Client<'_>, String> {
        let mut client = self.client(key);
        client.subscribe().await?;
        Ok(client)
    }

    async fn subscribed(&self, key: &'static str) -> Result<Client<'_>, String> {
        let mut client = self.subscriber(key).await?;
        client.until("subscribed").await?;
        Ok(client)
    }

    async fn channel(&self) -> Result<Channel, String> {
        let connected = Connection::connect(&self.site.amqp, ConnectionProperties::default()).await;
        let channel = connected.map_err(|error| error.to_string())?.create_channel().await;
        channel.map_err(|error| error.to_string())
    }

    /// Publishes numbers to the broker, and waits until it has confirmed them. The gateway may not
    /// have declared the exchange yet.
    async fn publish(
        &self,
        key: &str,
        numbers: impl IntoIterator<Item = u64>,
    ) -> Result<(), String> {
        for number in numbers {
            let start = Instant::now();
            while let Err(error) = self.try_publish(key, number).await {
                if start.elapsed() > REPAIR {
                    return Err(error.to_string());
                }
                sleep(Duration::from_millis(100)).await;
            }
        }
        Ok(())
    }

    async fn try_publish(&self, key: &str, number: u64) -> lapin::Result<()> {
        let connection =
            Connection::connect(&self.site.amqp, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let mut headers = FieldTable::default();
        headers.insert(HEADER.into(), AMQPValue::LongString(key.into()));
        let properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
        let (options, body) = (BasicPublishOptions::default(), number.to_string());
        channel
            .basic_publish(
                self.site.exchange.as_str().into(),
                key.into(),
                options,
                body.as_bytes(),
                properties,
            )
            .await?
            .await?;
        connection.close(200, "done".into()).await
    }

    /// Waits until the gateway's queue is gone.
    async fn until_gone(&self) -> Result<(), String> {
        let passive = QueueDeclareOptions { passive: true, ..Default::default() };
        loop {
            sleep(Duration::from_secs(3)).await; // less often than the queue expires: asking is a use
            let queue = self.queue.as_str().into();
            let channel = self.channel().await?;
            if channel.queue_declare(queue, passive, FieldTable::default()).await.is_err() {
                return Ok(());
            }
        }
    }

    /// Waits until the broker has noticed that the gateway does not consume from its queue.
    async fn until_unused(&self) -> Result<(), String> {
        let passive = QueueDeclareOptions { passive: true, ..Default::default() };
        let channel = self.channel().await?;
        loop {
            let queue = self.queue.as_str().into();
            let declared = channel.queue_declare(queue, passive, FieldTable::default()).await;
            if declared.map_err(|error| error.to_string())?.consumer_count() == 0 {
                return Ok(());
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits until the broker has written to its disk what it has changed so far. It shows the removal
    /// of a binding before its log is written: if it is killed in between, the queue is bound again. The
    /// log is written in order, and a durable exchange is confirmed when it is in the log.
    async fn until_logged(&self) -> Result<(), String> {
        let channel = self.channel().await?;
        let name = format!("{}.logged.{:x}", self.site.exchange, fastrand::u64(..));
        let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let none = FieldTable::default();
        let declared = channel.exchange_declare(name.into(), ExchangeKind::Direct, durable, none);
        declared.await.map_err(|error| error.to_string())
    }

    /// Waits until no queue is bound for this key.
    async fn until_unbound(&self, key: &str) -> Result<(), String> {
        loop {
            let channel = self.channel().await?;
            let confirms = channel.confirm_select(ConfirmSelectOptions::default()).await;
            confirms.map_err(|error| error.to_string())?;
            let options = BasicPublishOptions { mandatory: true, ..Default::default() };
            let (exchange, none) = (self.site.exchange.as_str().into(), BasicProperties::default());
            let sent = channel.basic_publish(exchange, key.into(), options, b"0", none).await;
            let confirmation = sent.map_err(|error| error.to_string())?.await;
            if confirmation.map_err(|error| error.to_string())?.take_message().is_some() {
                return Ok(());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Ends a connection so that what its buffers hold is dropped.
fn reset(socket: Socket) -> Result<(), String> {
    let set = socket.get_ref().set_zero_linger();
    drop(socket);
    set.map_err(|error| error.to_string())
}

impl Client<'_> {
    async fn subscribe(&mut self) -> Result<(), String> {
        let mut socket = client::connect(&self.gap.site.gateway, None).await?;
        let mut request = json!({ "type": "subscribe", "key": self.key });
        for (name, value) in [("since", &self.at), ("epoch", &self.epoch)] {
            if !value.is_null() {
                request[name] = value.clone();
            }
        }
        socket.send(Frame::text(request.to_string())).await.map_err(|error| error.to_string())?;
        self.socket = Some(socket);
        Ok(())
    }

    fn leave(&mut self) {
        self.socket = None;
    }

    /// Returns with the last position, and expects that the gateway reports a gap, or none.
    async fn returns(&mut self, has_gap: bool) -> Result<(), String> {
        self.subscribe().await?;
        let since = self.at.clone();
        let value = self.next().await?;
        if (&value["type"], &value["gap"]) == (&json!("history"), &json!(has_gap)) {
            return Ok(());
        }
        Err(format!("since {since}: expected a history with \"gap\":{has_gap}, got {value}"))
    }

    async fn next(&mut self) -> Result<Value, String> {
        let value = client::next(self.socket.as_mut().ok_or("not connected")?).await?;
        for (name, known) in [("at", &mut self.at), ("epoch", &mut self.epoch)] {
            if let Some(new) = value.get(name) {
                *known = new.clone();
            }
        }
        Ok(value)
    }

    /// Reads until a message of this type. Messages of the key may come before only if they are marked
    /// as redelivered.
    async fn until(&mut self, kind: &str) -> Result<(), String> {
        let expected = json!({ "type": kind, "key": self.key });
        loop {
            let value = self.next().await?;
            let is = |name: &str| value[name] == expected[name];
            if is("type") && is("key") {
                return Ok(());
            }
            if value["type"] != "message" || value["redelivered"] != true {
                return Err(format!("expected {kind}, got {value}"));
            }
        }
    }

    /// Reads until this message.
    async fn until_heard(&mut self, number: u64) -> Result<(), String> {
        while self.next().await?["body"].as_str() != Some(&number.to_string()) {}
        Ok(())
    }

    /// Reads this message, which must come next and is not marked as redelivered.
    async fn hears_next(&mut self, number: u64) -> Result<(), String> {
        let value = self.next().await?;
        let is_next = value["body"].as_str() == Some(&number.to_string());
        if is_next && value["redelivered"].is_null() {
            Ok(())
        } else {
            Err(format!("expected message {number}, once, got {value:.100}"))
        }
    }

    /// Reads these messages, each of which may be repeated if it is marked as redelivered.
    async fn hears(&mut self, numbers: impl IntoIterator<Item = u64>) -> Result<(), String> {
        for number in numbers {
            loop {
                let value = self.next().await?;
                if value["body"].as_str() == Some(&number.to_string()) {
                    break;
                }
                if value["redelivered"] != true {
                    return Err(format!("expected message {number}, got {value}"));
                }
            }
        }
        Ok(())
    }
}
