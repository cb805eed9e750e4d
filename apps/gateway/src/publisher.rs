//! Publishing to the broker, on connections of its own: while the broker is short of memory or
//! disk, it does not read from publishing connections, but acknowledgements must reach it.
//!
//! A post gets 202 if the broker has confirmed its message, and is refused if the broker has not
//! stored it. If it may or may not have it, the answer is [`PublishError::Down`].
//!
//! 1. One task publishes. lapin takes the delivery tag and queues the frames under two locks, so
//!    threads that publish on one channel at the same time get each other's confirmations.
//! 2. A [`Lane`] carries messages of one key at a time. The broker refuses a message by closing its
//!    channel, and with it all unconfirmed messages. What it refuses depends on the exchange; on
//!    the size, which is checked before; and on a topic exchange, on the key. So if a message of a
//!    lane is refused, all of them are, and no message of another lane is affected. With any other
//!    exchange, one lane is enough.
//! 3. No message is sent twice.
//! 4. lapin does not reuse the number of a channel that the broker has closed. Before a
//!    [connection](Link) has used up its numbers, another one replaces it.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use futures::future::{BoxFuture, OptionFuture, ready};
use futures::stream::{BoxStream, FuturesOrdered, FuturesUnordered};
use futures::{FutureExt, StreamExt};
use lapin::options::BasicPublishOptions;
use lapin::protocol::AMQPSoftError;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionStatus, Event};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use crate::amqp::{Broker, CLOSE_TIMEOUT, PUBLISHING, TIMEOUT, gone, table};
use crate::board::Publishing;
use crate::line::Line;
use crate::link::{Link, refusal};
use crate::lock::Lock;
use crate::log::{NOT_TAKEN, REPLACED};
use crate::refusals::Refusals;
use crate::source::PublishError;

/// Messages that may be unconfirmed: a broker that confirms nothing must not fill the memory.
const UNCONFIRMED: usize = 16_384;

/// Messages of a batch that may be unconfirmed. The broker is no faster with more.
const BATCH: usize = 512;

/// Messages of all batches that may be unconfirmed. A post beside them waits until the broker has
/// confirmed them: a tenth of a second, if it confirms 10,000 a second.
const BATCHES: usize = 1024;

/// Hands messages to the task that publishes.
pub struct Publisher {
    /// `None` while the broker is away.
    requests: Lock<Option<mpsc::UnboundedSender<Request>>>,
    /// A permit for each message of a batch that may be unconfirmed.
    batched: Semaphore,
}

impl Default for Publisher {
    fn default() -> Self {
        Self { requests: Lock::default(), batched: Semaphore::new(BATCHES) }
    }
}

struct Request {
    key: String,
    body: Vec<u8>,
    is_json: bool,
    answer: oneshot::Sender<Result<(), PublishError>>,
}

impl Publisher {
    /// Publishes a message, and waits until the broker has stored or refused it. Messages of a key
    /// are published in the order of the calls.
    pub fn publish(
        &self,
        key: &str,
        body: &[u8],
        is_json: bool,
    ) -> impl Future<Output = Result<(), PublishError>> + use<> {
        let (answer, answered) = oneshot::channel();
        if let Some(requests) = &*self.requests.lock() {
            let request = Request { key: key.to_owned(), body: body.to_vec(), is_json, answer };
            let _ = requests.send(request);
        } else {
            let _ = answer.send(Err(PublishError::Away));
        }
        async {
            let answer = timeout(TIMEOUT, answered).await;
            answer.ok().and_then(Result::ok).unwrap_or(Err(PublishError::Down))
        }
    }

    /// Publishes the lines of a batch in their order, and waits for all results.
    pub async fn publish_all(&self, lines: &[Line<'_>]) -> Vec<Result<(), PublishError>> {
        let (mut rest, mut results) = (lines.iter(), Vec::with_capacity(lines.len()));
        let mut unconfirmed = FuturesOrdered::new();
        // It keeps its turn among all batches while messages of this one are confirmed.
        let mut next = pin!(self.batched.acquire());
        while results.len() < lines.len() {
            let may_publish = rest.len() > 0 && unconfirmed.len() < BATCH;
            tokio::select! {
                permit = &mut next, if may_publish => {
                    next.set(self.batched.acquire());
                    if let Some(Line { key, body, is_json }) = rest.next() {
                        let confirmed = self.publish(key, body, *is_json);
                        unconfirmed.push_back(async {
                            let _permit = permit;
                            confirmed.await
                        });
                    }
                }
                Some(result) = unconfirmed.next() => results.push(result),
            }
        }
        results
    }

    /// Accepts messages until [`close`](Self::close) is called.
    fn open(&self) -> mpsc::UnboundedReceiver<Request> {
        let (requests, received) = mpsc::unbounded_channel();
        *self.requests.lock() = Some(requests);
        received
    }

    /// Answers all messages that are not confirmed, and all later ones, with
    /// [`PublishError::Down`].
    pub fn close(&self) {
        *self.requests.lock() = None;
    }
}

/// The messages of a key that are unconfirmed, or wait for a channel.
#[derive(Default)]
struct Lane {
    /// The channel, and the number of its link.
    channel: Option<(Channel, u64)>,
    waiting: VecDeque<Request>,
    unconfirmed: usize,
    /// The broker has accepted a message on this channel. If it refuses a later one, the permission
    /// was revoked, and the result of those between is unknown.
    is_allowed: bool,
}

/// The result of a message, with its key and its lane.
struct Sent {
    key: String,
    lane: String,
    published: Instant,
    result: lapin::Result<Confirmation>,
    answer: oneshot::Sender<Result<(), PublishError>>,
}

/// The task that publishes, for one session.
pub struct Desk<'a> {
    broker: &'a Broker,
    requests: mpsc::UnboundedReceiver<Request>,
    status: ConnectionStatus,
    events: BoxStream<'static, Event>,
    /// `None` until the first connection is examined.
    link: Option<Link>,
    /// The number of the link.
    number: u64,
    /// The connection that is going to replace the link.
    next: Option<BoxFuture<'a, lapin::Result<Link>>>,
    opening: FuturesUnordered<BoxFuture<'static, (u64, lapin::Result<Channel>)>>,
    /// By key; on exchanges where the key does not matter, the only lane is that of the empty key.
    lanes: HashMap<String, Lane>,
    /// The lanes that wait for a channel.
    queue: VecDeque<String>,
    sent: FuturesUnordered<BoxFuture<'a, Sent>>,
    refusals: Refusals,
}

impl<'a> Desk<'a> {
    /// Starts to accept messages.
    pub fn open(broker: &'a Broker, connection: Connection) -> Self {
        broker.board.set_publishing(Publishing::Up);
        Self {
            broker,
            requests: broker.publisher.open(),
            status: connection.status().clone(),
            events: connection.events_listener().boxed(),
            link: None,
            number: 0,
            next: Some(examine(broker, connection).boxed()),
            opening: FuturesUnordered::new(),
            lanes: HashMap::new(),
            queue: VecDeque::new(),
            sent: FuturesUnordered::new(),
            refusals: Refusals::new(),
        }
    }

    /// Publishes until the connection or the exchange is lost.
    pub async fn run(&mut self) -> lapin::Result<Infallible> {
        loop {
            self.assign();
            tokio::select! {
                Some(request) = self.requests.recv() => self.accept(request)?,
                Some(sent) = self.sent.next() => self.answer(sent)?,
                Some(event) = self.events.next() => self.hear(event)?,
                Some((number, channel)) = self.opening.next() => {
                    if let Some(link) = self.link.as_mut().filter(|_| number == self.number) {
                        link.opened(channel);
                    }
                }
                link = OptionFuture::from(self.next.as_mut()), if self.next.is_some() => {
                    self.replace(link.expect("there is one")?);
                }
            }
        }
    }

    /// Closes the connection.
    pub async fn close(self) {
        self.broker.publisher.close();
        self.broker.board.set_publishing(Publishing::Down);
        if let Some(link) = self.link {
            let closing = link.connection.close(200, "session ended".into());
            let _ = timeout(CLOSE_TIMEOUT, closing).await;
        }
    }

    fn accept(&mut self, request: Request) -> lapin::Result<()> {
        // An error of the connection is an event: the session is to end with that. The broker may
        // also close the connection without one.
        if self.status.closed() {
            return Err(gone("the publishing connection is closed"));
        }
        let lane = if self.broker.config.topic { request.key.clone() } else { String::new() };
        let refusal = if self.status.blocked() {
            PublishError::Alarm // it would wait in memory until the alarm ends
        } else if !self.status.connected() || self.sent.len() >= UNCONFIRMED {
            PublishError::Away
        } else if self.refusals.contains(&lane) {
            PublishError::Forbidden
        } else {
            let queue = &mut self.queue;
            let new = || {
                queue.push_back(lane.clone());
                Lane::default()
            };
            self.lanes.entry(lane.clone()).or_insert_with(new).waiting.push_back(request);
            self.send(&lane);
            return Ok(());
        };
        let _ = request.answer.send(Err(refusal));
        Ok(())
    }

    /// Gives channels to the lanes that wait for one.
    fn assign(&mut self) {
        let number = self.number;
        while let Some(link) = &mut self.link
            && !self.queue.is_empty()
        {
            let Some(channel) = link.take() else {
                for opening in link.open(self.queue.len()) {
                    self.opening.push(opening.map(move |channel| (number, channel)).boxed());
                }
                break;
            };
            let lane = self.queue.pop_front().expect("it is not empty");
            let waiting = self.lanes.get_mut(&lane).expect("lanes in the queue have messages");
            waiting.channel = Some((channel, number));
            self.send(&lane);
        }
        if self.next.is_none() && self.link.as_ref().is_some_and(Link::is_worn) {
            let broker = self.broker;
            self.next =
                Some(Box::pin(async { examine(broker, broker.connect(PUBLISHING).await?).await }));
        }
    }

    /// Sends the messages of a lane, if it has a channel.
    fn send(&mut self, name: &str) {
        let lane = self.lanes.get_mut(name).expect("lanes stay until their messages are confirmed");
        let Some((channel, _)) = &lane.channel else { return };
        let largest = self.link.as_ref().map_or(0, |link| link.largest);
        // What comes after the broker has closed the channel waits for another one.
        while channel.status().connected()
            && let Some(request) = lane.waiting.pop_front()
        {
            if request.answer.is_closed() {
                continue; // the post has timed out
            }
            if request.body.len() > largest {
                let _ = request.answer.send(Err(PublishError::TooLarge));
                continue;
            }
            lane.unconfirmed += 1;
            let publishing = publish(self.broker, channel.clone(), name.to_owned(), request);
            let mut publishing = publishing.boxed();
            // The first poll takes the tag and queues the frames.
            self.sent.push(match (&mut publishing).now_or_never() {
                Some(sent) => ready(sent).boxed(),
                None => publishing,
            });
        }
        if lane.unconfirmed == 0 {
            self.release(name);
        }
    }

    /// Answers a post.
    fn answer(&mut self, sent: Sent) -> lapin::Result<()> {
        let Sent { key, lane: name, published, result, answer } = sent;
        let lane =
            self.lanes.get_mut(&name).expect("lanes stay until their messages are confirmed");
        lane.unconfirmed -= 1;
        let is_over = lane.unconfirmed == 0;
        let mut lost = None;
        let answered = match result {
            Ok(confirmation) => {
                lane.is_allowed = true;
                // lapin may attach it to the confirmation of another message.
                if let Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned)) =
                    &confirmation
                {
                    let key = returned.delivery.routing_key.as_str();
                    if self.broker.interest.interrupt(key, published) {
                        lost = Some(gone("the queue is not bound to all keys any more"));
                    }
                }
                if confirmation.is_ack() { Ok(()) } else { Err(PublishError::Rejected) }
            }
            Err(error) => {
                if NOT_TAKEN.allows() {
                    warn!(key, %error, "the broker did not take a message");
                }
                match refusal(&error) {
                    Some((AMQPSoftError::ACCESSREFUSED, _)) if !lane.is_allowed => {
                        self.refusals.add(&name);
                        Err(PublishError::Forbidden)
                    }
                    Some((AMQPSoftError::NOTFOUND, _)) => {
                        lost = Some(error);
                        Err(PublishError::Down)
                    }
                    _ => Err(PublishError::Down),
                }
            }
        };
        let _ = answer.send(answered);
        if is_over {
            self.release(&name);
        }
        lost.map_or(Ok(()), Err)
    }

    /// Takes the channel of a lane without unconfirmed messages. The lane ends, or waits for
    /// another channel.
    fn release(&mut self, name: &str) {
        let lane = self.lanes.get_mut(name).expect("lanes stay until they are released");
        lane.is_allowed = false;
        if let Some((channel, number)) = lane.channel.take()
            && let Some(link) = self.link.as_mut().filter(|_| number == self.number)
        {
            link.give_back(channel);
        }
        if lane.waiting.is_empty() {
            self.lanes.remove(name);
        } else {
            self.queue.push_back(name.to_owned());
        }
    }

    /// Publishes on another connection from now on. The lanes of the last one keep it open until
    /// their messages are confirmed.
    fn replace(&mut self, link: Link) {
        self.next = None;
        if self.link.is_some() {
            if REPLACED.allows() {
                info!("the publishing connection is replaced, as it runs out of channels");
            }
            self.broker.board.publisher_replaced.inc();
            self.number += 1;
            (self.status, self.events) =
                (link.connection.status().clone(), link.connection.events_listener().boxed());
        }
        self.link = Some(link);
    }

    fn hear(&mut self, event: Event) -> lapin::Result<()> {
        match event {
            Event::ConnectionBlocked(_) => {
                self.broker.board.set_publishing(Publishing::Blocked);
                for request in self.lanes.values_mut().flat_map(|lane| lane.waiting.drain(..)) {
                    let _ = request.answer.send(Err(PublishError::Alarm));
                }
            }
            Event::ConnectionUnblocked => self.broker.board.set_publishing(Publishing::Up),
            Event::Error(error) if !self.status.connected() => return Err(error),
            _ => {}
        }
        Ok(())
    }
}

async fn examine(broker: &Broker, connection: Connection) -> lapin::Result<Link> {
    Link::examine(Arc::new(connection), Arc::clone(&broker.channels), broker.max_body).await
}

async fn publish(broker: &Broker, on: Channel, lane: String, request: Request) -> Sent {
    let config = &broker.config;
    let Request { key, body, is_json, answer } = request;
    let mut properties = BasicProperties::default().with_delivery_mode(2); // persistent
    if is_json {
        properties = properties.with_content_type("application/json".into());
    }
    if let Some(header) = &config.key_header {
        properties = properties.with_headers(table([(header.as_str(), key.as_str())]));
    }
    // The broker returns the message if the binding of its key was removed by somebody else.
    let published = Instant::now();
    let mandatory = broker.interest.is_bound(&key);
    let options = BasicPublishOptions { mandatory, ..Default::default() };
    let exchange = config.exchange.as_str().into();
    let written = on.basic_publish(exchange, key.as_str().into(), options, &body, properties).await;
    drop(body);
    let result = match written {
        Ok(confirm) => confirm.await,
        Err(error) => Err(error),
    };
    Sent { key, lane, published, result, answer }
}

#[cfg(test)]
mod tests {
    use futures::future;
    use tokio::task::yield_now;

    use super::*;

    fn lines(name: &str, count: usize) -> Vec<Line<'static>> {
        let line = |number| Line {
            key: name.to_owned().into(),
            body: format!("{number}").into_bytes().into(),
            is_json: false,
        };
        (0..count).map(line).collect()
    }

    /// Otherwise a post beside them would wait for all of their messages.
    #[tokio::test]
    async fn batches_have_a_limited_number_of_unconfirmed_messages_together() {
        const LINES: usize = 3 * BATCH;
        let publisher = Publisher::default();
        let mut requests = publisher.open();
        let batches = ["a", "b", "c", "d"].map(|name| lines(name, LINES));
        let publishing = future::join_all(batches.iter().map(|lines| publisher.publish_all(lines)));
        let broker = async {
            let (mut counts, mut unconfirmed) = (HashMap::new(), VecDeque::new());
            let mut rest = batches.len() * LINES;
            while rest > 0 {
                while let Ok(request) = requests.try_recv() {
                    let next: &mut usize = counts.entry(request.key.clone()).or_default();
                    assert_eq!(request.body, next.to_string().into_bytes(), "they are in order");
                    *next += 1;
                    unconfirmed.push_back(request);
                }
                assert!(unconfirmed.len() <= BATCHES);
                let mut of_a = unconfirmed.iter().filter(|request| request.key == "a");
                assert!(of_a.by_ref().take(BATCH + 1).count() <= BATCH);
                if let Some(request) = unconfirmed.pop_front() {
                    request.answer.send(Ok(())).expect("it is waited for");
                    rest -= 1;
                }
                yield_now().await;
            }
        };
        let (results, ()) = future::join(publishing, broker).await;
        assert!(
            results.iter().all(|batch| batch.len() == LINES && batch.iter().all(Result::is_ok))
        );
    }
}
