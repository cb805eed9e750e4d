//! Publishers: directly to the broker, or through the gateway.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use lapin::message::BasicReturnMessage;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, PublisherConfirm,
};
use reqwest::{Client, StatusCode, Url};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::client::Progress;
use crate::plan::Plan;

/// The maximum number of unconfirmed messages.
const WINDOW: usize = 1_000;
/// How long the broker or a gateway may be unreachable.
const AWAY: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(100);
/// Timeout for a response.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Default, Clone, Copy)]
pub struct Published {
    /// Connections after the first.
    pub reconnects: u64,
    /// Sent again, because they may not have arrived.
    pub repeated: u64,
    /// No queue was bound to their key.
    pub unroutable: u64,
}

/// How many messages may be on their way to each client of a [`Follow`]: half of its share, which is
/// a 64th of the gateway's prefetch of 8,192. So none is discarded, however late the client reads.
const AHEAD: u64 = 64;

/// A number of messages a second, or unlimited.
pub struct Pace {
    start: Instant,
    each: Option<Duration>,
    follow: Option<Follow>,
}

/// Clients that the publisher waits for, so that a busy machine is slow and loses nothing.
pub struct Follow {
    clients: Arc<Progress>,
    /// The clients that get each message, and how many they get before it.
    before: Vec<Vec<(usize, u64)>>,
    /// A client makes no progress, which is found elsewhere.
    has_given_up: AtomicBool,
}

impl Follow {
    /// Follows clients that are subscribed to these keys of the plan.
    pub fn new(
        clients: Arc<Progress>,
        plan: &Plan,
        subscribed: impl Iterator<Item = Vec<usize>>,
    ) -> Self {
        let mut readers = vec![Vec::new(); plan.keys.len()];
        let mut sent = Vec::new();
        for (client, keys) in subscribed.enumerate() {
            sent.push(0);
            for key in keys {
                readers[key].push(client);
            }
        }
        let before = plan.messages.iter().map(|(key, _)| {
            let count = |client: &usize| {
                sent[*client] += 1;
                (*client, sent[*client] - 1)
            };
            readers[*key].iter().map(count).collect()
        });
        let before = before.collect();
        Self { clients, before, has_given_up: AtomicBool::new(false) }
    }

    /// Waits until each client that gets message `nth` has most of those before it.
    async fn wait(&self, nth: usize) {
        for (client, before) in &self.before[nth] {
            let since = Instant::now();
            while self.clients.of[*client].load(Relaxed) + AHEAD < *before
                && !self.has_given_up.load(Relaxed)
            {
                if since.elapsed() > AWAY {
                    self.has_given_up.store(true, Relaxed);
                }
                sleep(Duration::from_millis(1)).await;
            }
        }
    }
}

impl Pace {
    pub fn new(rate: u32) -> Self {
        let each = (rate > 0).then(|| Duration::from_secs(1) / rate.max(1));
        Self { start: Instant::now(), each, follow: None }
    }

    pub fn follow(mut self, clients: Option<Follow>) -> Self {
        self.follow = clients;
        self
    }

    /// Waits until message `nth` is due, and the clients have most of those before it.
    async fn wait(&self, nth: usize) {
        if let Some(each) = self.each {
            let due = self.start + each * u32::try_from(nth).unwrap_or(u32::MAX);
            // The timer has a resolution of a millisecond.
            if due > Instant::now() + Duration::from_millis(1) {
                sleep_until(due).await;
            }
        }
        if let Some(follow) = &self.follow {
            follow.wait(nth).await;
        }
    }
}

/// Publishes to the broker with confirms. Unconfirmed messages are sent again after a reconnect.
pub struct Broker {
    uri: String,
    exchange: String,
    channel: Option<(Connection, Channel)>,
}

impl Broker {
    pub fn new(uri: &str, exchange: &str) -> Self {
        Self { uri: uri.to_owned(), exchange: exchange.to_owned(), channel: None }
    }

    /// Connects, retrying until there is a connection or the timeout expires.
    pub async fn connect(&mut self, limit: Duration) -> Result<(), String> {
        let start = Instant::now();
        loop {
            match timeout(TIMEOUT, self.try_connect()).await {
                Ok(Ok(channel)) => {
                    self.channel = Some(channel);
                    return Ok(());
                }
                failed if start.elapsed() > limit => {
                    let cause = match failed {
                        Ok(Err(error)) => error.to_string(),
                        _ => "no answer".to_owned(),
                    };
                    return Err(format!(
                        "no connection to {} for {} s: {cause}",
                        self.uri,
                        AWAY.as_secs()
                    ));
                }
                _ => sleep(PAUSE).await,
            }
        }
    }

    async fn try_connect(&self) -> lapin::Result<(Connection, Channel)> {
        let connection = Connection::connect(&self.uri, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok((connection, channel))
    }

    async fn start(&self, key: &str, body: &[u8]) -> Option<PublisherConfirm> {
        let (_, channel) = self.channel.as_ref()?;
        // Mandatory: the broker returns the message if no queue is bound to the key.
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let persistent = BasicProperties::default().with_delivery_mode(2);
        let sent = channel.basic_publish(
            self.exchange.as_str().into(),
            key.into(),
            options,
            body,
            persistent,
        );
        timeout(TIMEOUT, sent).await.ok()?.ok()
    }

    /// Publishes the whole plan, in order.
    pub async fn publish(&mut self, plan: &Plan, pace: &Pace) -> Result<Published, String> {
        let mut published = Published::default();
        let mut waiting: VecDeque<(usize, PublisherConfirm)> = VecDeque::new();
        let mut next = 0;
        if self.channel.is_none() {
            self.connect(AWAY).await?;
        }
        loop {
            let is_going = if next < plan.messages.len() && waiting.len() < WINDOW {
                pace.wait(next).await;
                let (index, _) = plan.messages[next];
                match self.start(&plan.keys[index], &plan.body(plan.messages[next])).await {
                    Some(confirm) => {
                        waiting.push_back((next, confirm));
                        next += 1;
                        true
                    }
                    None => false,
                }
            } else if let Some((_, confirm)) = waiting.front_mut() {
                match confirmed(confirm).await {
                    Some(returned) => {
                        published.unroutable += u64::from(returned.is_some());
                        waiting.pop_front();
                        true
                    }
                    None => false,
                }
            } else {
                return Ok(published);
            };
            if !is_going {
                published.repeated += waiting.len() as u64;
                published.reconnects += 1;
                next = waiting.front().map_or(next, |(first, _)| *first);
                waiting.clear();
                self.channel = None;
                self.connect(AWAY).await?;
            }
        }
    }

    /// Publishes one message of each key, and returns for how many keys a queue is bound.
    pub async fn bound(&mut self, plan: &Plan) -> Result<usize, String> {
        if self.channel.is_none() {
            self.connect(AWAY).await?;
        }
        let mut waiting = Vec::new();
        for key in &plan.keys {
            waiting.push(self.start(key, b"probe").await.ok_or("the broker is away")?);
        }
        let mut bound = 0;
        for mut confirm in waiting {
            let returned = confirmed(&mut confirm).await.ok_or("the broker is away")?;
            bound += usize::from(returned.is_none());
        }
        Ok(bound)
    }
}

/// Returns `None` if the broker may not have the message.
async fn confirmed(confirm: &mut PublisherConfirm) -> Option<Option<BasicReturnMessage>> {
    match timeout(TIMEOUT, confirm).await {
        Ok(Ok(Confirmation::Ack(returned))) => Some(returned),
        _ => None,
    }
}

/// Publishes through the gateways over a few connections; each key always uses the same one.
pub async fn post(
    gateways: &[String],
    plan: &Plan,
    pace: &Pace,
    insists: bool,
) -> Result<Published, String> {
    const CONNECTIONS: usize = 8;
    let client = Client::new();
    let all = (0..CONNECTIONS).map(|own| {
        let (client, gateway) = (client.clone(), &gateways[own % gateways.len()]);
        async move {
            let mut published = Published::default();
            for (nth, message) in plan.messages.iter().enumerate() {
                if message.0 % CONNECTIONS == own {
                    pace.wait(nth).await;
                    let body = plan.body(*message);
                    published.repeated +=
                        post_one(&client, gateway, &plan.keys[message.0], body, insists).await?;
                }
            }
            Ok::<_, String>(published)
        }
    });
    let mut sum = Published::default();
    for published in futures::future::try_join_all(all).await? {
        sum.repeated += published.repeated;
    }
    Ok(sum)
}

/// Posts a message, retrying if need be; returns the number of retries.
pub async fn post_one(
    client: &Client,
    gateway: &str,
    key: &str,
    body: Vec<u8>,
    insists: bool,
) -> Result<u64, String> {
    let mut url =
        Url::parse(&format!("http://{gateway}/publish")).map_err(|error| error.to_string())?;
    url.path_segments_mut().map_err(|()| "no path".to_owned())?.push(key);
    let start = Instant::now();
    let mut again = 0;
    loop {
        let answer = client.post(url.clone()).body(body.clone()).timeout(TIMEOUT).send().await;
        let failure = match answer {
            Ok(answer) if answer.status() == StatusCode::ACCEPTED => return Ok(again),
            Ok(answer) if answer.status() == StatusCode::SERVICE_UNAVAILABLE => {
                answer.status().to_string()
            }
            Ok(answer) => {
                let status = answer.status();
                let text = answer.text().await.unwrap_or_default();
                return Err(format!("POST {url}: {status} {text:.200}"));
            }
            Err(error) => error.to_string(),
        };
        if !insists || start.elapsed() > AWAY {
            return Err(format!("POST {url}: {failure}"));
        }
        again += 1;
        sleep(PAUSE).await;
    }
}
