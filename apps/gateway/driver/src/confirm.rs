//! Compares the answers to posts with what the broker has stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use clap::ValueEnum;
use futures::future::{join, join_all, try_join};
use lapin::options::{BasicGetOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties};
use reqwest::Client;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::client;
use crate::flow::Faults;
use crate::script::Site;
use crate::stats;

const TIMEOUT: Duration = Duration::from_secs(60);
/// More than the channels of a connection: 2,047.
const MANY: usize = 2_100;
/// How many keys that the broker refuses are subscribed to at once. A connection may have 100
/// subscriptions.
const AT_ONCE: usize = 70;
/// How often the queue is to be full, and how many posts are to be refused, and to be taken, each
/// time. More than it holds, so that both kinds of answers are given while others are on their way.
const TURNS: usize = 50;
const ANSWERS: usize = 50;
/// How long that may take.
const LIMIT: Duration = Duration::from_secs(300);
/// The largest message that the broker accepts has 200,000 bytes.
const TOO_LARGE: usize = 200_001;

#[derive(Debug, clap::Args)]
pub struct Confirm {
    case: Case,
    #[command(flatten)]
    site: Site,
    /// At least as many are posted
    #[arg(long, default_value_t = 20_000)]
    messages: usize,
    /// Lines of each batch; otherwise, messages are posted one by one
    #[arg(long)]
    lines: Option<usize>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Case {
    /// Concurrent posts to a queue that is full half of the time, and rejects them then
    Full,
    /// Posts and subscriptions that the broker refuses, beside others. Keys that begin with `closed`
    /// are forbidden
    Refused,
}

/// The answer to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Taken,
    Refused,
    /// Neither: for example, the broker did not confirm it.
    Other,
    /// The message was not posted.
    Unasked,
}

impl Confirm {
    pub async fn run(self) -> Result<(), Vec<String>> {
        let done = match self.case {
            Case::Full => self.full().await,
            Case::Refused => self.refused().await,
        };
        done.map_err(|error| vec![error])?.into_result()
    }

    /// The queue is full and empty in turns, each of which ends when enough posts were answered. So
    /// the mix of answers does not depend on the speeds of the broker, the gateway and the posters.
    async fn full(&self) -> Result<Faults, String> {
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongInt(20));
        arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
        let turns = Arc::new(Turns::default());
        let stored = self.collect("full", arguments, Some(Arc::clone(&turns))).await?;
        let (posters, lines) = if self.lines.is_some() { (8, self.lines) } else { (32, None) };
        let count = lines.unwrap_or(1);
        let next = AtomicUsize::new(0);
        let start = Instant::now();
        let posting = (0..posters).map(async |_| {
            let mut answers = Vec::new();
            while next.load(Relaxed) < self.messages || turns.ended.load(Relaxed) < TURNS {
                if start.elapsed() > LIMIT {
                    return Err(format!("the queue was not full {TURNS} times in {LIMIT:?}"));
                }
                let first = next.fetch_add(count, Relaxed);
                let posts: Vec<_> =
                    (first..first + count).map(|nth| ("full".to_owned(), nth)).collect();
                let some = match lines {
                    Some(_) => self.batch(&posts).await?,
                    None => vec![self.post("full", first.to_string(), 503).await?],
                };
                turns.count(&some);
                answers.push((first, some));
            }
            Ok::<_, String>(answers)
        });
        let mut answers = Vec::new();
        for some in join_all(posting).await {
            for (first, some) in some? {
                answers.resize(answers.len().max(first + some.len()), Answer::Unasked);
                answers[first..first + some.len()].copy_from_slice(&some);
            }
        }
        let mut faults = Faults::default();
        let stored = stored.end(answers.len()).await?;
        let tally = Tally::of(&answers, &stored);
        let ended = turns.ended.load(Relaxed);
        println!(
            "  {posters} posters, {} messages, the queue was full {ended} times: {tally}",
            answers.len()
        );
        tally.judge(&mut faults);
        faults.count(tally.other as u64, "with another answer than 202 and 503 rejected");
        Ok(faults)
    }

    async fn refused(&self) -> Result<Faults, String> {
        let mut faults = Faults::default();
        let stored = self.collect("#", FieldTable::default(), None).await?;
        let over = AtomicBool::new(false);
        // Number `nth` of poster `own` is `own + 4 * nth`, and those of batches follow.
        let honest = join_all((0..4).map(async |own| {
            let mut answers = Vec::new();
            while !over.load(Relaxed) {
                let number = own + 4 * answers.len();
                let key = format!("open.{}", number % 50);
                answers.push(self.post(&key, number.to_string(), 403).await?);
            }
            Ok::<_, String>(answers)
        }));
        let hostile = async {
            for (what, status) in [("forbidden", 403), ("too large", 413)] {
                let mut right = 0;
                for nth in 0..MANY {
                    let (key, body) = match status {
                        403 => (format!("closed.{nth}"), "x".to_owned()),
                        _ => ("open.x".to_owned(), "x".repeat(TOO_LARGE)),
                    };
                    right += usize::from(self.post(&key, body, status).await? == Answer::Refused);
                }
                println!("  {MANY} posts that are {what}: {right} are answered {status}");
                faults.count((MANY - right) as u64, "refused posts with another answer");
            }
            let posts: Vec<_> = (0..MANY).map(|nth| (format!("closed.more.{nth}"), 0)).collect();
            let answers = self.batch(&posts).await?;
            let right = answers.iter().filter(|answer| **answer == Answer::Refused).count();
            println!("  {MANY} lines that are forbidden: {right} are refused");
            faults.count((MANY - right) as u64, "refused lines with another answer");
            over.store(true, Relaxed);
            Ok::<_, String>(())
        };
        let (honest, hostile) = join(honest, hostile).await;
        hostile?;
        let mut answers = Vec::new();
        for (own, some) in honest.into_iter().enumerate() {
            for (nth, answer) in some?.into_iter().enumerate() {
                let number = own + 4 * nth;
                answers.resize(answers.len().max(number + 1), Answer::Unasked);
                answers[number] = answer;
            }
        }
        let alone = answers.len();
        let mut posts = Vec::new();
        for nth in 0..6_000 {
            let is_closed = nth % 1_000 == 500;
            let key =
                if is_closed { format!("closed.{nth}") } else { format!("open.{}", nth % 50) };
            posts.push((key, alone + nth));
        }
        answers.extend(self.batch(&posts).await?);
        let stored = stored.end(answers.len()).await?;
        for (what, range, closed) in [
            ("posts beside them", 0..alone, 0),
            ("a batch of 6,000, 6 of them forbidden", alone..answers.len(), 6),
        ] {
            let tally = Tally::of(&answers[range.clone()], &stored[range]);
            println!("  {what}: {tally}");
            tally.judge(&mut faults);
            faults.count(tally.other as u64, "honest messages that are neither taken nor refused");
            if tally.refused != closed {
                faults.add(format!("{} are refused, instead of {closed}", tally.refused));
            }
        }
        faults.check(self.healthy().await);
        faults.check(self.subscribe_refused().await);
        Ok(faults)
    }

    /// Subscribes to keys that the broker refuses, beside a client that subscribes to others.
    async fn subscribe_refused(&self) -> Result<(), String> {
        let gateway = &self.site.gateway;
        let mut honest = client::subscriber(gateway, None, ["open.heard"]).await?;
        client::subscribed(&mut honest, 1).await?;
        let mut hostile = client::connect(gateway, None).await?;
        let mut refused = 0;
        for turn in 0..MANY / AT_ONCE {
            let subscribing = async {
                for nth in 0..AT_ONCE {
                    let key = format!("closed.heard.{turn}.{nth}");
                    let said = client::say(&mut hostile, "subscribe", &key).await;
                    said.map_err(|error| error.to_string())?;
                }
                for _ in 0..AT_ONCE {
                    let reply = client::next(&mut hostile).await?;
                    refused += usize::from(reply["error"] == "forbidden");
                }
                Ok(())
            };
            let hearing = async {
                let said =
                    client::say(&mut honest, "subscribe", &format!("open.heard.{turn}")).await;
                said.map_err(|error| error.to_string())?;
                client::subscribed(&mut honest, 1).await?;
                for key in ["open.heard".to_owned(), format!("open.heard.{turn}")] {
                    let answer = self.post(&key, turn.to_string(), 403).await?;
                    if answer != Answer::Taken {
                        return Err(format!("a post beside them is {answer:?}"));
                    }
                    let message = client::next(&mut honest).await?;
                    if (&message["key"], &message["body"])
                        != (&json!(key), &json!(turn.to_string()))
                    {
                        return Err(format!("a client beside them heard {message:.200}"));
                    }
                }
                Ok(())
            };
            try_join(subscribing, hearing).await?;
        }
        let asked = MANY / AT_ONCE * AT_ONCE;
        println!("  {asked} subscriptions that are forbidden: {refused} are refused");
        if refused < asked {
            return Err("each should be refused".into());
        }
        Ok(())
    }

    /// Checks that the gateway says that it publishes, and how often it replaced its connection.
    async fn healthy(&self) -> Result<(), String> {
        let health = stats::text(&self.site.gateway, "healthz").await?;
        let health: Value = serde_json::from_str(&health).map_err(|error| error.to_string())?;
        if health["publishing"] != "up" {
            return Err(format!("/healthz does not say that publishing is up: {health}"));
        }
        let metrics = stats::text(&self.site.gateway, "metrics").await?;
        let name = "gateway_publisher_replaced_total ";
        let count = metrics.lines().find_map(|line| line.strip_prefix(name));
        println!("  the publishing connection was replaced {} times", count.unwrap_or("?"));
        if count.is_none_or(|count| count == "0") {
            return Err("it should have been replaced".into());
        }
        Ok(())
    }

    /// Posts a message, and expects 202 or this other status.
    async fn post(&self, key: &str, body: String, refusal: u16) -> Result<Answer, String> {
        thread_local!(static CLIENT: Client = Client::new());
        let url = format!("http://{}/publish/{key}", self.site.gateway);
        let post = CLIENT.with(|client| client.post(&url).body(body).timeout(TIMEOUT));
        let answer = post.send().await.map_err(|error| format!("POST {url}: {error}"))?;
        let status = answer.status().as_u16();
        let text = answer.text().await.map_err(|error| format!("POST {url}: {error}"))?;
        Ok(match status {
            202 => Answer::Taken,
            // Not the 503 of a broker that is away.
            _ if status == refusal && !text.contains("source_down") => Answer::Refused,
            _ => Answer::Other,
        })
    }

    /// Posts a batch of keys and numbers; returns the answer for each.
    async fn batch(&self, posts: &[(String, usize)]) -> Result<Vec<Answer>, String> {
        let url = format!("http://{}/publish", self.site.gateway);
        let line = |(key, number): &(String, usize)| {
            json!({ "key": key, "body": number.to_string() }).to_string() + "\n"
        };
        let body: String = posts.iter().map(line).collect();
        let answer = Client::new().post(&url).body(body).timeout(TIMEOUT).send().await;
        let answer = answer.map_err(|error| format!("POST {url}: {error}"))?;
        let status = answer.status().as_u16();
        let text = answer.text().await.map_err(|error| format!("POST {url}: {error}"))?;
        let reply: Value =
            serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        if status == 202 {
            return Ok(vec![Answer::Taken; posts.len()]);
        }
        let is_refusal = ["rejected", "forbidden"].contains(&reply["error"].as_str().unwrap_or(""));
        let failure = if is_refusal { Answer::Refused } else { Answer::Other };
        let failed: Option<Vec<usize>> = serde_json::from_value(reply["failed"].clone()).ok();
        let Some(failed) = failed else {
            return Ok(vec![failure; posts.len()]); // nothing was taken
        };
        let mut answers = vec![Answer::Taken; posts.len()];
        for line in failed {
            answers[line - 1] = failure;
        }
        Ok(answers)
    }

    /// Declares a queue for this key, and counts the messages in it. Takes them in turns, if there
    /// are any.
    async fn collect(
        &self,
        key: &str,
        arguments: FieldTable,
        turns: Option<Arc<Turns>>,
    ) -> Result<Collector, String> {
        let declared = async {
            let connection =
                Connection::connect(&self.site.amqp, ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            let (name, options) =
                (format!("stored.{}", self.site.exchange), QueueDeclareOptions::default());
            channel.queue_declare(name.as_str().into(), options, arguments).await?;
            let (options, none) = (QueueBindOptions::default(), FieldTable::default());
            let exchange = self.site.exchange.as_str();
            channel
                .queue_bind(name.as_str().into(), exchange.into(), key.into(), options, none)
                .await?;
            Ok::<_, lapin::Error>(Collector::start(connection, channel, name, turns))
        };
        declared.await.map_err(|error| error.to_string())
    }
}

/// Empties a queue, and counts the messages by their number.
struct Collector {
    is_over: Arc<AtomicBool>,
    task: JoinHandle<Result<Vec<usize>, lapin::Error>>,
}

impl Collector {
    fn start(
        connection: Connection,
        channel: Channel,
        queue: String,
        turns: Option<Arc<Turns>>,
    ) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let task = tokio::spawn(async move {
            let (_connection, mut numbers) = (connection, Vec::new());
            let mut turn = turns.as_deref().map(Turn::begin);
            loop {
                let is_last = over.load(Relaxed);
                if turn.as_mut().is_some_and(|turn| !turn.takes()) && !is_last {
                    sleep(Duration::from_millis(1)).await;
                    continue;
                }
                let options = BasicGetOptions { no_ack: true };
                match channel.basic_get(queue.as_str().into(), options).await? {
                    Some(message) => {
                        let number = std::str::from_utf8(&message.delivery.data).ok();
                        numbers.extend(number.and_then(|number| number.parse::<usize>().ok()));
                    }
                    None if is_last => return Ok(numbers),
                    None => sleep(Duration::from_millis(1)).await,
                }
            }
        });
        Self { is_over, task }
    }

    /// Returns how often each number was stored.
    async fn end(self, count: usize) -> Result<Vec<usize>, String> {
        self.is_over.store(true, Relaxed);
        let numbers = self.task.await.map_err(|error| error.to_string())?;
        let mut stored = vec![0; count];
        for number in numbers.map_err(|error| error.to_string())? {
            if let Some(times) = stored.get_mut(number) {
                *times += 1;
            }
        }
        Ok(stored)
    }
}

/// Answers to posts on a queue that is full in turns.
#[derive(Default)]
struct Turns {
    taken: AtomicUsize,
    refused: AtomicUsize,
    ended: AtomicUsize,
}

impl Turns {
    fn count(&self, answers: &[Answer]) {
        let count = |wanted| answers.iter().filter(|answer| **answer == wanted).count();
        self.taken.fetch_add(count(Answer::Taken), Relaxed);
        self.refused.fetch_add(count(Answer::Refused), Relaxed);
    }
}

/// One turn: the queue stays full until enough posts were refused, and is then emptied until enough
/// were taken.
struct Turn<'a> {
    turns: &'a Turns,
    is_full: bool,
    /// The answers at which the present half of the turn ends.
    until: usize,
}

impl<'a> Turn<'a> {
    fn begin(turns: &'a Turns) -> Self {
        Self { turns, is_full: true, until: ANSWERS }
    }

    /// Returns `true` if messages are to be taken from the queue.
    fn takes(&mut self) -> bool {
        let (here, there) = (&self.turns.refused, &self.turns.taken);
        let (present, next) = if self.is_full { (here, there) } else { (there, here) };
        if present.load(Relaxed) >= self.until {
            self.turns.ended.fetch_add(usize::from(!self.is_full), Relaxed);
            self.is_full = !self.is_full;
            self.until = next.load(Relaxed) + ANSWERS;
        }
        !self.is_full
    }
}

#[derive(Default)]
struct Tally {
    taken: usize,
    refused: usize,
    other: usize,
    /// Answered 202, and not stored.
    missing: usize,
    /// Refused, and stored nevertheless.
    unexpected: usize,
    /// Stored more than once.
    repeated: usize,
}

impl Tally {
    fn of(answers: &[Answer], stored: &[usize]) -> Self {
        let mut tally = Self::default();
        for (answer, stored) in answers.iter().zip(stored) {
            match answer {
                Answer::Taken => tally.taken += 1,
                Answer::Refused => tally.refused += 1,
                Answer::Other => tally.other += 1,
                Answer::Unasked => {}
            }
            tally.missing += usize::from(*answer == Answer::Taken && *stored == 0);
            tally.unexpected += usize::from(*answer == Answer::Refused && *stored > 0);
            tally.repeated += usize::from(*stored > 1);
        }
        tally
    }

    fn judge(&self, faults: &mut Faults) {
        faults.count(self.missing as u64, "answered 202 and not stored");
        faults.count(self.unexpected as u64, "refused and stored");
        faults.count(self.repeated as u64, "stored more than once");
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { taken, refused, other, missing, unexpected, repeated } = self;
        write!(
            f,
            "{taken} taken, {refused} refused, {other} neither; {missing} taken and not stored, \
             {unexpected} refused and stored, {repeated} stored more than once"
        )
    }
}
