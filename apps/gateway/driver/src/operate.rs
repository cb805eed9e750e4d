//! Operations of publishers and operators on a broker, and their effect on the gateway.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use clap::ValueEnum;
use futures::future::join_all;
use futures::{SinkExt, StreamExt};
use lapin::options::{
    BasicPublishOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use reqwest::Client;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tokio_tungstenite::tungstenite::Message as Frame;

use crate::client::{self, Socket, next};
use crate::raw::{Forged, Raw, long, short};
use crate::script::Site;
use crate::stats;

const TIMEOUT: Duration = Duration::from_secs(180);
/// Messages that are too large. The script counts the lines of the log about them.
const FLOOD: u64 = 1_000;

#[derive(Debug, clap::Args)]
pub struct Operate {
    case: Case,
    #[command(flatten)]
    site: Site,
    /// The queue of the gateway
    #[arg(long)]
    queue: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Case {
    /// Messages that client libraries cannot parse
    Poison,
    /// Many messages that the gateway refuses
    Flood,
    /// Publishes that the broker refuses
    Refused,
    /// A queue that rejects publishes, bound beside that of the gateway
    Rejected,
    /// The queue, and then the exchange, is deleted under load
    Deleted,
    /// The broker is short of memory; prints @halfway when the alarm is to start, and when it is to
    /// end
    Alarm,
}

impl Operate {
    pub async fn run(self) -> Result<(), String> {
        match self.case {
            Case::Poison => self.poison().await,
            Case::Flood => self.flood().await,
            Case::Refused => self.refused().await,
            Case::Rejected => self.rejected().await,
            Case::Deleted => self.deleted().await,
            Case::Alarm => self.alarm().await,
        }
    }

    async fn poison(&self) -> Result<(), String> {
        let channel = self.channel().await?;
        self.collect(&channel, "dead", ExchangeKind::Fanout, FieldTable::default()).await?;
        let mut client = self.subscriber().await?;
        // One that gets bytes must survive the same messages.
        let mut binary = client::connect(&self.site.gateway, None).await?;
        let request = json!({ "type": "subscribe", "key": "tea", "binary": true });
        binary.send(Frame::text(request.to_string())).await.map_err(|error| error.to_string())?;
        client::subscribed(&mut binary, 1).await?;
        let poison = poison();
        let usable: Vec<_> = poison
            .iter()
            .map(|(message, is_usable)| is_usable.then(|| message.body.clone()))
            .collect();
        let (uri, exchange) = (self.site.amqp.clone(), self.site.exchange.clone());
        let publishing = tokio::task::spawn_blocking(move || {
            let mut raw = Raw::connect(&uri)?;
            for (message, _) in poison {
                let good = |body: &str| Forged {
                    body: body.as_bytes().to_vec(),
                    ..forged(b"tea", 0, vec![])
                };
                raw.publish(&exchange, &good("before"))?;
                raw.publish(&exchange, &message)?;
                raw.publish(&exchange, &good("behind"))?;
            }
            Ok::<_, String>(())
        });
        publishing.await.map_err(|error| error.to_string())??;
        let mut arrived = 0;
        for usable in &usable {
            let (before, behind) = (Some(&b"before"[..]), Some(&b"behind"[..]));
            for expected in [before, usable.as_deref(), behind].into_iter().flatten() {
                expect_bytes(&mut client, &mut binary, expected).await?;
                arrived += 1;
            }
        }
        let refused = usable.iter().filter(|usable| usable.is_none()).count();
        self.await_refused(refused as u64).await?;
        let reconnects = stats::counter(&self.site.gateway, "gateway_reconnects_total").await?;
        if reconnects > 0 {
            return Err(format!("the broker was lost {reconnects} times"));
        }
        // Only counted: lapin cannot parse the messages.
        let passive = QueueDeclareOptions { passive: true, ..Default::default() };
        let start = Instant::now();
        let dead = loop {
            let dead = channel.queue_declare("dead".into(), passive, FieldTable::default()).await;
            let dead = dead.map_err(|error| error.to_string())?.message_count();
            if dead as usize >= refused || start.elapsed() > TIMEOUT {
                break dead;
            }
            sleep(Duration::from_millis(50)).await;
        };
        println!(
            "  {arrived} messages arrived, each once, as text and as bytes; {refused} cannot be used, of which \
             {dead} are dead-lettered"
        );
        if dead as usize == refused {
            Ok(())
        } else {
            Err("not all of them are dead-lettered".into())
        }
    }

    async fn flood(&self) -> Result<(), String> {
        let mut client = self.subscriber().await?;
        let channel = self.channel().await?;
        let publish = async |body: &[u8]| {
            let exchange = self.site.exchange.as_str().into();
            let (options, none) = (BasicPublishOptions::default(), BasicProperties::default());
            let sent = channel.basic_publish(exchange, "tea".into(), options, body, none).await;
            sent.map(drop).map_err(|error| error.to_string())
        };
        for _ in 0..FLOOD {
            publish(&[b'x'; 1_000]).await?;
        }
        publish(b"behind").await?;
        expect(&mut client, "behind").await?;
        self.await_refused(FLOOD).await?;
        println!("  {FLOOD} messages are refused");
        Ok(())
    }

    /// Waits until this number of messages was refused. They are counted when they are answered, and
    /// later messages may arrive before that.
    async fn await_refused(&self, count: u64) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let refused = stats::counter(&self.site.gateway, "gateway_refused_total").await?;
            if refused == count {
                return Ok(());
            }
            if refused > count || start.elapsed() > TIMEOUT {
                return Err(format!("{refused} messages are refused, instead of {count}"));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn refused(&self) -> Result<(), String> {
        let mut client = self.subscriber().await?;
        let posts = (0..60).map(|nth| async move {
            let is_large = nth % 20 == 10; // the broker's limit is 200,000
            let answer = self.post("tea", "x".repeat(if is_large { 300_000 } else { 10 })).await;
            (is_large, answer)
        });
        for (is_large, answer) in join_all(posts).await {
            let expected = if is_large { "413 too_large" } else { "202 " };
            if answer? != expected {
                return Err(format!("an answer is not {expected}"));
            }
        }
        for _ in 0..57 {
            expect(&mut client, "xxxxxxxxxx").await?;
        }
        self.post("tea", "{\"a\": [1.0]}".to_owned()).await?;
        let value = next(&mut client).await?;
        if value["json"]["a"][0] != 1.0 {
            return Err(format!("expected JSON, got {value:.200}"));
        }
        println!("  57 posts are accepted; 3 that the broker refuses get 413");
        Ok(())
    }

    async fn rejected(&self) -> Result<(), String> {
        let channel = self.channel().await?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
        arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
        self.collect(&channel, "full", ExchangeKind::Direct, arguments).await?;
        let mut answers = Vec::new();
        for _ in 0..5 {
            answers.push(self.post("full", "x".to_owned()).await?);
        }
        println!("  posted to a queue that is full after the first: {}", answers.join(", "));
        let is_right = answers[0] == "202 " && answers[1..].iter().all(|it| it == "503 rejected");
        if is_right { Ok(()) } else { Err("all but the first should get 503 rejected".into()) }
    }

    /// The messages in the queue are lost, and the client is told. Messages posted after it is
    /// bound again arrive, in order.
    async fn deleted(&self) -> Result<(), String> {
        let mut client = self.subscriber().await?;
        let channel = self.channel().await?;
        for what in ["queue", "exchange"] {
            // Posts go on until one was accepted after the client was told of the gap.
            let is_told = AtomicBool::new(false);
            let posted = OnceLock::new();
            let posting = async {
                let (mut taken, start) = (0, Instant::now());
                for number in 0.. {
                    let was_told = is_told.load(Relaxed);
                    if self.post("tea", number.to_string()).await? == "202 " {
                        taken += 1;
                        if was_told {
                            let _ = posted.set(number);
                            return Ok((taken, number));
                        }
                    }
                    if start.elapsed() > TIMEOUT {
                        break;
                    }
                }
                Err("publishing does not recover, or the client is not told of the gap".to_owned())
            };
            let deleting = async {
                sleep(Duration::from_millis(500)).await;
                let deleted = if what == "queue" {
                    let options = QueueDeleteOptions::default();
                    channel.queue_delete(self.queue.as_str().into(), options).await.map(drop)
                } else {
                    let options = ExchangeDeleteOptions::default();
                    channel.exchange_delete(self.site.exchange.as_str().into(), options).await
                };
                deleted.map_err(|error| error.to_string())
            };
            let reading = async {
                let (mut got, mut next) = (0_u64, 0);
                let mut heard = Instant::now();
                while posted.get().is_none_or(|last| next <= *last) {
                    let soon = Duration::from_millis(100);
                    let Ok(value) = timeout(soon, client::next(&mut client)).await else {
                        if heard.elapsed() > TIMEOUT {
                            break;
                        }
                        continue;
                    };
                    heard = Instant::now();
                    let value = value?;
                    if value["type"] == "gap" {
                        is_told.store(true, Relaxed);
                        continue;
                    }
                    let number = value["body"].as_str().and_then(|body| body.parse::<i64>().ok());
                    let number = number.ok_or_else(|| format!("unexpected: {value}"))?;
                    if number < next {
                        return Err(format!("{number} after {}", next - 1));
                    }
                    (got, next) = (got + 1, number + 1);
                }
                Ok((got, next - 1))
            };
            let (posted, deleted, read) = tokio::join!(posting, deleting, reading);
            let ((), (taken, last), (got, newest)) = (deleted?, posted?, read?);
            println!("  the {what} deleted: {taken} accepted, {got} arrived, including the last");
            if newest != last {
                return Err(format!("messages posted after the {what} was deleted do not arrive"));
            }
        }
        Ok(())
    }

    async fn alarm(&self) -> Result<(), String> {
        let mut client = self.subscriber().await?;
        let channel = self.channel().await?;
        println!("@halfway");
        // The first post makes the broker notice that this connection publishes.
        self.until("503 source_down").await?;
        let start = Instant::now();
        for _ in 0..20 {
            self.post("tea", "x".to_owned()).await?;
        }
        println!("  20 posts during the alarm: 503, in {:.1?}", start.elapsed());
        if start.elapsed() > Duration::from_secs(5) {
            return Err("posts wait for the end of the alarm".into());
        }
        drop(channel);
        println!("@halfway");
        self.until("202 ").await?;
        // Posts of unknown result may arrive now.
        while body(&mut client).await? != "probe" {}
        Ok(())
    }

    async fn until(&self, wanted: &str) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let answer = self.post("tea", "probe".to_owned()).await?;
            if answer == wanted {
                return Ok(());
            }
            if start.elapsed() > TIMEOUT {
                return Err(format!("the answer is still {answer} instead of {wanted}"));
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn channel(&self) -> Result<Channel, String> {
        let connected = Connection::connect(&self.site.amqp, ConnectionProperties::default()).await;
        let channel = connected.map_err(|error| error.to_string())?.create_channel().await;
        channel.map_err(|error| error.to_string())
    }

    /// Declares an exchange of this name, unless it is the gateway's, and a queue.
    async fn collect(
        &self,
        on: &Channel,
        name: &str,
        kind: ExchangeKind,
        arguments: FieldTable,
    ) -> Result<(), String> {
        let declared = async {
            let exchange = if kind == ExchangeKind::Fanout { name } else { &self.site.exchange };
            if kind == ExchangeKind::Fanout {
                let (options, none) = (ExchangeDeclareOptions::default(), FieldTable::default());
                on.exchange_declare(exchange.into(), kind.clone(), options, none).await?;
            }
            on.queue_declare(name.into(), QueueDeclareOptions::default(), arguments).await?;
            let (options, none) = (QueueBindOptions::default(), FieldTable::default());
            on.queue_bind(name.into(), exchange.into(), name.into(), options, none).await
        };
        declared.await.map_err(|error| error.to_string())
    }

    async fn subscriber(&self) -> Result<Socket, String> {
        let mut socket = client::subscriber(&self.site.gateway, None, ["tea"]).await?;
        client::subscribed(&mut socket, 1).await?;
        Ok(socket)
    }

    /// Posts a message; returns the status, and the error code if there is one.
    async fn post(&self, key: &str, body: String) -> Result<String, String> {
        let url = format!("http://{}/publish/{key}", self.site.gateway);
        let kind = if body.starts_with('{') { "application/json" } else { "text/plain" };
        let post = Client::new().post(&url).header("content-type", kind).body(body);
        let answer = post.timeout(TIMEOUT).send().await;
        let answer = answer.map_err(|error| format!("POST {url}: {error}"))?;
        let status = answer.status().as_u16();
        let text = answer.text().await.map_err(|error| format!("POST {url}: {error}"))?;
        let value: Value =
            serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        Ok(format!("{status} {}", value["error"].as_str().unwrap_or_default()))
    }
}

fn forged(key: &[u8], flags: u16, properties: Vec<u8>) -> Forged {
    Forged { key: key.to_vec(), flags, properties, body: b"forged".to_vec() }
}

/// Messages that are made to cause harm, and whether they can be used.
fn poison() -> Vec<(Forged, bool)> {
    const HEADERS: u16 = 1 << 13;
    const CONTENT_TYPE: u16 = 1 << 15;
    let headers =
        |name: &[u8], kind: u8, value: Vec<u8>| long(&[&short(name)[..], &[kind], &value].concat());
    // Five and seven bytes per level, in a frame of 131,072 bytes.
    let arrays = headers(b"deep", b'A', nested(26_200, b"A"));
    let tables = headers(b"deep", b'F', nested(18_700, b"\x01nF"));
    let json = |body: &[u8]| Forged {
        body: body.to_vec(),
        ..forged(b"tea", CONTENT_TYPE, short(b"application/json"))
    };
    let large = |key: &[u8]| Forged { body: vec![b'x'; 100_000], ..forged(key, 0, vec![]) };
    let usable = vec![
        forged(b"tea", HEADERS, arrays),
        forged(b"tea", HEADERS, tables),
        forged(b"tea", HEADERS, headers(b"\xff", b'S', long(b"x"))),
        forged(b"tea", CONTENT_TYPE, vec![1, 0xff]),
        json(b"forged"), // which is not JSON
        json(b"null"),
        json(b"\r\n null\t"),
        json(b" {\"json\":null} "),
        forged(b"tea", 1 << 7, vec![1, 0xff]), // message_id
        forged(b"tea", 1 << 3, vec![1, 0xff]), // app_id
    ];
    // The keys of those that cannot be used are logged: the script looks for forged lines.
    let unusable = vec![
        forged(b"\xff", 0, vec![]),
        large(b"tea"),
        large(b"tea\nFORGED\r\x1b[2JFORGED\xc2\x9b\xe2\x80\xa8FORGED"),
        large(b"tea why=FORGED \"FORGED"),
    ];
    let unusable = unusable.into_iter().map(|message| (message, false));
    unusable.chain(usable.into_iter().map(|message| (message, true))).collect()
}

fn nested(depth: usize, level: &[u8]) -> Vec<u8> {
    let value = |inner| {
        let length = u32::try_from(inner * (4 + level.len())).expect("it fits into a frame");
        [&length.to_be_bytes()[..], if inner > 0 { level } else { b"" }].concat()
    };
    (0..depth).rev().flat_map(value).collect()
}

async fn body(socket: &mut Socket) -> Result<String, String> {
    let value = next(socket).await?;
    match value["body"].as_str() {
        Some(body) => Ok(body.to_owned()),
        None => Err(format!("unexpected: {value}")),
    }
}

/// Reads the same body in a message as text and in one as bytes.
async fn expect_bytes(
    text: &mut Socket,
    binary: &mut Socket,
    expected: &[u8],
) -> Result<(), String> {
    let value = next(text).await?;
    let is_same = match value.get("json") {
        Some(json) => {
            serde_json::from_slice(expected).is_ok_and(|expected: Value| expected == *json)
        }
        None => client::body_of(&value).is_some_and(|body| body == expected),
    };
    if !is_same || value["type"] != "message" || !value["redelivered"].is_null() {
        return Err(format!("expected {}, got {value:.200}", expected.escape_ascii()));
    }
    loop {
        let frame = timeout(TIMEOUT, binary.next()).await;
        match frame.map_err(|_| "no message as bytes within a minute".to_owned())? {
            Some(Ok(Frame::Binary(frame))) => {
                let end = frame.iter().position(|byte| *byte == b'\n').ok_or("no line")?;
                return if frame[end + 1..] == *expected {
                    Ok(())
                } else {
                    let (expected, got) = (expected.escape_ascii(), frame.escape_ascii());
                    Err(format!("expected the bytes {expected}, got {got}"))
                };
            }
            Some(Ok(Frame::Ping(_) | Frame::Pong(_))) => {}
            other => return Err(format!("expected bytes, got {other:?}")),
        }
    }
}

async fn expect(socket: &mut Socket, expected: &str) -> Result<(), String> {
    let value = next(socket).await?;
    if value["body"] == expected && value["redelivered"].is_null() {
        return Ok(());
    }
    Err(format!("expected {expected}, got {value:.200}"))
}
