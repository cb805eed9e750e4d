//! One WebSocket client: handles its requests, reports lost messages, and checks that it is alive.

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message as Frame, WebSocket, close_code};
use futures::channel::mpsc;
use futures::future::OptionFuture;
use futures::{FutureExt, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use stream_demux::Lease;
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout};
use tracing::debug;

use crate::gateway::Gateway;
use crate::json;
use crate::liveness::{Liveness, Next};
use crate::message::Key;
use crate::outlet::{Gone, Outlet, Subscription};
use crate::reader::Reader;
use crate::router::{Orders, Turn, attach};
use crate::subscription::{Ending, Notice, Share, SubscribeOptions, Terms};
use crate::timed_socket::Peer;

/// The longest message from a client, in bytes.
pub const LONGEST: usize = 4 * 1024;
/// The close code for an expired token.
const EXPIRED: u16 = 4401;
/// The close code for a client that holds up the others.
const TOO_SLOW: u16 = 4408;
/// How often lost messages are reported to a client.
const LOSS_INTERVAL: Duration = Duration::from_millis(250);
/// Timeout for the closing handshake.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Request {
    Subscribe(SubscribeOptions),
    Unsubscribe(Unsubscribe),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unsubscribe {
    key: Option<String>,
    keys: Option<Vec<String>>,
}

/// An error in a request: the code, the message, and the key if there is one.
struct RequestError(&'static str, String, Option<String>);

struct Client {
    gateway: Arc<Gateway>,
    address: SocketAddr,
    peer: Peer,
    /// `None` if the client may read all keys.
    reader: Option<Reader>,
    outlet: Arc<Outlet>,
    share: Arc<Share>,
    notices: mpsc::UnboundedSender<Notice>,
    subscriptions: HashMap<Key, Held>,
    /// Keys with losses that are not reported yet.
    lossy: Vec<(Key, u64)>,
    /// Leases all attachments of this client: dropping it evicts them.
    lease: Lease,
}

/// A subscription from the client's point of view.
struct Held {
    terms: Arc<Terms>,
    rate: u32,
    /// The client has got `subscribed`.
    is_subscribed: bool,
    /// `None` once it is ending.
    lease: Option<Lease>,
    /// The options of a new subscribe request that came while it was ending.
    again: Option<Box<SubscribeOptions>>,
}

/// How the connection ends.
enum End {
    /// The client left, or the connection broke.
    Gone,
    /// The gateway closes the connection.
    Closed(CloseFrame),
}

/// A client that is connected. Dropping it gives its place back, also when the client's task panics,
/// or when the drop of something that the task owns does.
struct Connected {
    gateway: Arc<Gateway>,
    address: SocketAddr,
    outlet: Arc<Outlet>,
}

impl Connected {
    fn new(
        gateway: &Arc<Gateway>,
        address: SocketAddr,
        outlet: &Arc<Outlet>,
        share: &Arc<Share>,
        notices: mpsc::UnboundedSender<Notice>,
    ) -> Self {
        gateway.board.connected(address, share, notices);
        Self { gateway: Arc::clone(gateway), address, outlet: Arc::clone(outlet) }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.outlet.end();
        self.gateway.board.disconnected(self.address);
        debug!(address = %self.address, "client gone");
    }
}

/// Serves a client until its connection is closed.
pub async fn serve(
    socket: WebSocket,
    gateway: Arc<Gateway>,
    address: SocketAddr,
    peer: Peer,
    reader: Option<Reader>,
) {
    debug!(%address, "client connected");
    // Not tokio's channel, which allocates room for 32 notices per client.
    let (notices, mut received) = mpsc::unbounded();
    let config = &gateway.config;
    let share = Share::new(config.share(), Arc::clone(&gateway.budget), config.overflow);
    let share = Arc::new(share.latest(config.share_of_latest(), config.half_of_prefetch()));
    let outlet = Arc::new(Outlet::new(socket, Arc::clone(&share)));
    let connected = Connected::new(&gateway, address, &outlet, &share, notices.clone());
    let mut client = Client {
        gateway: Arc::clone(&gateway),
        address,
        peer,
        reader,
        outlet: Arc::clone(&outlet),
        share,
        notices,
        subscriptions: HashMap::new(),
        lossy: Vec::new(),
        lease: Lease::new(),
    };
    let end = client.run(&mut received).await;
    if let End::Closed(why) = end
        && timeout(CLOSE_TIMEOUT, close(&outlet, why)).await.is_err()
        && gateway.board.is_draining()
    {
        gateway.stuck.fetch_add(1, Relaxed);
    }
    drop(connected); // before the leases, so that nothing more is sent
}

/// Sends the close frame and waits for the client's.
async fn close(outlet: &Outlet, why: CloseFrame) {
    outlet.queue(Frame::Close(Some(why)));
    if outlet.flush().await.is_ok() {
        while let Some(Ok(_)) = outlet.next().await {}
    }
}

impl Client {
    async fn run(&mut self, notices: &mut mpsc::UnboundedReceiver<Notice>) -> End {
        let mut liveness = Liveness::new(self.gateway.config.ping);
        let mut report = interval(LOSS_INTERVAL);
        report.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let until = self.reader.as_ref().map(|reader| reader.until);
        let mut expiry = pin!(OptionFuture::from(until.map(sleep_until)));
        let outlet = Arc::clone(&self.outlet);
        let gateway = Arc::clone(&self.gateway);
        // Requests and notices are handled in boxed futures, so that an idle client does not take
        // the memory that they need.
        loop {
            // Read no requests while output is pending, so that a client that does not read gets no
            // more of it.
            let has_output = outlet.has_output();
            let done = tokio::select! {
                request = outlet.next(), if !has_output => {
                    liveness.heard();
                    outlet.was_woken(); // caused by this frame, which is counted already
                    Box::pin(self.handle_next(request)).await
                }
                flushed = outlet.flush(), if has_output => flushed.map_err(|Gone| End::Gone),
                Some(notice) = notices.next() => Box::pin(self.handle_notice(notice)).await,
                _ = report.tick(), if !has_output && !self.lossy.is_empty() => {
                    self.report_losses();
                    Ok(())
                }
                next = liveness.next() => {
                    // A client that takes output is alive, even if it takes long to get to the pings.
                    let was_woken = outlet.was_woken();
                    if was_woken {
                        liveness.heard();
                    }
                    match next {
                        Next::Ping => {
                            if !has_output {
                                outlet.queue(Frame::Ping(axum::body::Bytes::new()));
                            }
                            liveness.pinged();
                            Ok(())
                        }
                        Next::Judge if was_woken => Ok(()),
                        Next::Judge => {
                            // Read first: this branch may be the first after a pause.
                            if !has_output && let Some(request) = outlet.next().now_or_never() {
                                liveness.heard();
                                Box::pin(self.handle_next(request)).await
                            } else {
                                debug!(address = %self.address, "client vanished");
                                Err(End::Gone)
                            }
                        }
                    }
                }
                Some(()) = &mut expiry => Err(closed(EXPIRED, "the token has expired")),
                () = gateway.routed.cancelled() => Err(closed(close_code::AWAY, "the gateway is stopping")),
            };
            if let Err(end) = done {
                return end;
            }
        }
    }

    /// Handles what was read from the client.
    async fn handle_next(&mut self, next: Option<Result<Frame, axum::Error>>) -> Result<(), End> {
        match next {
            Some(Ok(frame)) => self.handle_frame(frame).await,
            Some(Err(error)) => Err(end_of(error)),
            None => Err(End::Gone),
        }
    }

    async fn handle_frame(&mut self, frame: Frame) -> Result<(), End> {
        let text = match frame {
            Frame::Text(text) if text.len() <= LONGEST => text,
            Frame::Text(_) => return Err(closed(close_code::SIZE, "longer than 4 KiB")),
            Frame::Binary(_) => {
                return Err(closed(close_code::UNSUPPORTED, "binary messages are not supported"));
            }
            Frame::Ping(_) => {
                self.outlet.answer();
                return Ok(());
            }
            Frame::Pong(_) | Frame::Close(_) => return Ok(()),
        };
        if let Err(wrong) = self.handle_request(&text).await {
            self.refuse(wrong);
        }
        Ok(())
    }

    /// Handles a request. Each of several keys is answered on its own: an error for one does not
    /// affect the others.
    async fn handle_request(&mut self, text: &str) -> Result<(), RequestError> {
        let (keys, options) = match parse(text)? {
            Request::Subscribe(mut options) => {
                self.check(&options)?;
                (one_or_many(options.key.take(), options.keys.take())?, Some(options))
            }
            Request::Unsubscribe(Unsubscribe { key, keys }) => (one_or_many(key, keys)?, None),
        };
        // The answers to one request are kept until the client has read them.
        let most = self.gateway.config.max_subscriptions;
        if keys.len() > most {
            let what = format!("at most {most} keys in a request");
            return Err(RequestError("too_many_subscriptions", what, None));
        }
        let gateway = Arc::clone(&self.gateway);
        for key in keys {
            let done = match &options {
                Some(options) => {
                    let Some(turn) = self.turn(&gateway.orders).await else { return Ok(()) };
                    self.subscribe(key, options, turn)
                }
                None => self.unsubscribe(key),
            };
            if let Err(wrong) = done {
                self.refuse(wrong);
            }
        }
        Ok(())
    }

    fn check(&self, options: &SubscribeOptions) -> Result<(), RequestError> {
        let (error, what) = match (options.since, &options.epoch) {
            (None, Some(_)) => ("bad_request", "`epoch` without `since`"),
            (Some(_), _) if self.gateway.board.history.is_none() => {
                ("no_history", "this gateway keeps no messages: it was started without --history")
            }
            _ => return Ok(()),
        };
        Err(RequestError(error, what.to_owned(), options.key.clone()))
    }

    fn refuse(&self, RequestError(error, message, key): RequestError) {
        let mut wrong = json!({ "type": "error", "error": error, "message": message });
        if let Some(key) = key {
            wrong["key"] = key.into();
        }
        self.send(&wrong);
    }

    /// Waits until the demux takes an order of this client. Returns `None` if the gateway has stopped,
    /// or the client has closed its connection.
    ///
    /// Clients take turns, one key each. Nothing is read from one that waits, so it is asked here: a
    /// client that is gone passes its turn on, without work for the demux. If it went on to its last
    /// key, clients that subscribe and close faster than keys are attached would line up, and each would
    /// keep its place until then. What was not sent to the demux needs no removal.
    async fn turn<'a>(&self, orders: &'a Orders) -> Option<Turn<'a>> {
        let turn = orders.reserve().await.ok()?;
        if self.peer.has_closed() {
            self.outlet.end(); // so that nothing more that it has sent is handled
            return None;
        }
        Some(turn)
    }

    fn subscribe(
        &mut self,
        key: String,
        options: &SubscribeOptions,
        turn: Turn<'_>,
    ) -> Result<(), RequestError> {
        #[cfg(test)]
        assert_ne!(key, "a panic", "planted");
        if let Err(what) = Gateway::check_key(&key) {
            return Err(RequestError("bad_key", what.to_owned(), Some(key)));
        }
        if self.reader.as_ref().is_some_and(|reader| !reader.may_read(&key)) {
            let message = format!("the token is not for {key}");
            return Err(RequestError("forbidden", message, Some(key)));
        }
        let (count, most) = (self.subscriptions.len(), self.gateway.config.max_subscriptions);
        match self.subscriptions.get_mut(key.as_str()) {
            Some(held) if held.lease.is_none() => held.again = Some(Box::new(options.clone())),
            Some(_) => {
                return Err(RequestError(
                    "already_subscribed",
                    format!("already subscribed to {key}"),
                    Some(key),
                ));
            }
            None if count >= most => {
                let message = format!("at most {most} subscriptions on a connection");
                return Err(RequestError("too_many_subscriptions", message, Some(key)));
            }
            None => self.attach(key.into(), options, turn),
        }
        Ok(())
    }

    fn attach(&mut self, key: Key, options: &SubscribeOptions, turn: Turn<'_>) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let gateway = &self.gateway;
        // A client can lower the rate limit but not raise it.
        let rate = options.rate.into_iter().chain(NonZeroU32::new(gateway.config.rate)).min();
        let options = SubscribeOptions { rate, ..options.clone() };
        let terms = Terms::new(
            NEXT.fetch_add(1, Relaxed),
            Key::clone(&key),
            self.address,
            &options,
            Arc::clone(&self.share),
            self.notices.clone(),
            Arc::clone(&gateway.board),
        );
        let terms = Arc::new(terms.sent_to(&self.outlet, &options));
        gateway.registry.add(&terms);
        let mut lease = Lease::new();
        let order = attach(Subscription::new(Arc::clone(&self.outlet), Arc::clone(&terms)))
            .leased(&mut self.lease)
            .leased(&mut lease);
        turn.send(order.into());
        let rate = rate.map_or(0, NonZeroU32::get);
        let held = Held { terms, rate, is_subscribed: false, lease: Some(lease), again: None };
        self.subscriptions.insert(key, held);
    }

    fn unsubscribe(&mut self, key: String) -> Result<(), RequestError> {
        let held = self.subscriptions.get_mut(key.as_str());
        match held
            .and_then(|held| held.lease.take().or_else(|| held.again.take().map(|_| Lease::new())))
        {
            // Queued messages are still sent. `Notice::Ended` follows.
            Some(lease) => lease.detach(),
            None => {
                return Err(RequestError(
                    "not_subscribed",
                    format!("not subscribed to {key}"),
                    Some(key),
                ));
            }
        }
        Ok(())
    }

    async fn handle_notice(&mut self, notice: Notice) -> Result<(), End> {
        match notice {
            Notice::Subscribed(key, id) => {
                if let Some(held) = self.held(&key, id) {
                    held.is_subscribed = true;
                    let (rate, terms) = (held.rate, Arc::clone(&held.terms));
                    let mut reply = json!({ "type": "subscribed", "key": &*key, "rate": rate });
                    self.outlet.queue_with(|| {
                        if let Some(history) = &self.gateway.board.history {
                            reply["epoch"] = history.epoch.as_str().into();
                            reply["at"] = terms.known().into();
                        }
                        Frame::Text(reply.to_string().into())
                    });
                }
            }
            Notice::Output => {} // the flush is polled next
            Notice::GivenUp => return Err(closed(TOO_SLOW, "too slow: others had to wait")),
            Notice::Lost(key, id) => self.lossy.push((key, id)),
            // Dropping the lease evicts the subscription. If it is ending already, there is no
            // lease.
            Notice::Evict(key, id) => {
                drop(self.held(&key, id).and_then(|held| held.lease.take()));
            }
            Notice::Ended(key, id, ending) => {
                let Some(held) = self.held(&key, id) else { return Ok(()) };
                let (terms, again) = (Arc::clone(&held.terms), held.again.take());
                let was_subscribed = held.is_subscribed;
                self.subscriptions.remove(&key);
                self.report_loss(&terms);
                let reason = match ending {
                    Ending::Requested => "requested",
                    Ending::TooSlow => "too_slow",
                    Ending::Forbidden => "forbidden",
                    Ending::Gone if self.gateway.board.is_draining() => return Ok(()),
                    Ending::Gone => return Err(End::Gone),
                };
                if ending == Ending::Forbidden && !was_subscribed {
                    let what = format!("the broker does not allow {key} to be read");
                    self.refuse(RequestError("forbidden", what, Some((*key).to_owned())));
                } else {
                    self.send(&json!({ "type": "unsubscribed", "key": &*key, "reason": reason }));
                }
                let gateway = Arc::clone(&self.gateway);
                if let Some(options) = again
                    && let Some(turn) = self.turn(&gateway.orders).await
                {
                    self.attach(key, &options, turn);
                }
            }
        }
        Ok(())
    }

    /// Returns the subscription, unless a newer one for the key has replaced it.
    fn held(&mut self, key: &Key, id: u64) -> Option<&mut Held> {
        self.subscriptions.get_mut(key).filter(|held| held.terms.id == id)
    }

    fn report_losses(&mut self) {
        for (key, id) in std::mem::take(&mut self.lossy) {
            if let Some(held) = self.held(&key, id) {
                let terms = Arc::clone(&held.terms);
                self.report_loss(&terms);
            }
        }
    }

    fn report_loss(&self, terms: &Terms) {
        let losses = terms.losses();
        for (reason, count) in [("overflow", losses.overflow), ("rate", losses.rate)] {
            if count > 0 {
                let key = &*terms.key;
                self.send(&json!({ "type": "lost", "key": key, "reason": reason, "count": count }));
            }
        }
    }

    fn send(&self, what: &Value) {
        self.outlet.queue(Frame::Text(what.to_string().into()));
    }
}

fn parse(text: &str) -> Result<Request, RequestError> {
    json::object(text.as_bytes()).map_err(|error| {
        let code = if error.is_data() { "bad_request" } else { "bad_json" };
        RequestError(code, error.to_string(), None)
    })
}

fn one_or_many(
    key: Option<String>,
    keys: Option<Vec<String>>,
) -> Result<Vec<String>, RequestError> {
    match (key, keys) {
        (Some(key), None) => Ok(vec![key]),
        (None, Some(keys)) if !keys.is_empty() => Ok(keys),
        _ => {
            let what = "either `key`, or `keys` with at least one";
            Err(RequestError("bad_request", what.to_owned(), None))
        }
    }
}

fn closed(code: u16, reason: &'static str) -> End {
    End::Closed(CloseFrame { code, reason: reason.into() })
}

/// Maps a WebSocket error to the close frame that the client gets.
fn end_of(error: axum::Error) -> End {
    use tungstenite::Error as WsError;
    let error = error.into_inner();
    match error.downcast_ref::<WsError>() {
        Some(WsError::Capacity(_)) => closed(close_code::SIZE, "longer than 4 KiB"),
        Some(WsError::Utf8(_)) => closed(close_code::INVALID, "text that is not UTF-8"),
        Some(WsError::Protocol(
            tungstenite::error::ProtocolError::ResetWithoutClosingHandshake,
        )) => End::Gone,
        Some(WsError::Protocol(_)) => closed(close_code::PROTOCOL, "WebSocket protocol error"),
        _ => {
            debug!(error = &*error as &dyn Error, "a connection is broken");
            End::Gone
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use futures::SinkExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::{Semaphore, mpsc};
    use tokio::time::sleep;
    use tokio_tungstenite::WebSocketStream;
    use tokio_tungstenite::tungstenite::Message as Received;
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::batch::Batches;
    use crate::board::Board;
    use crate::budget::Budget;
    use crate::config::Config;
    use crate::deliveries::Fates;
    use crate::hooks::GatewayHooks;
    use crate::message::{Delivery, Message, PLANTED, Verdict};
    use crate::router::{self, Input};
    use crate::serve::serve;
    use crate::source::Source;
    use crate::subscription::Registry;

    type Socket = WebSocketStream<TcpStream>;

    /// A gateway in this process.
    struct Site {
        gateway: Arc<Gateway>,
        input: Input,
        address: SocketAddr,
    }

    impl Site {
        async fn start(options: &[&str]) -> Self {
            Self::start_with(options, None).await
        }

        /// If there are `orders`, they are sent there and not to the demux.
        async fn start_with(options: &[&str], orders: Option<Orders>) -> Self {
            let config = Config::parse_from(["gateway"].iter().chain(options));
            let board = Arc::new(Board::new(&config));
            let registry = Arc::new(Registry::default());
            let hooks = GatewayHooks {
                board: Arc::clone(&board),
                registry: Arc::clone(&registry),
                attached: HashMap::new(),
                interest: None,
            };
            let budget = Arc::new(Budget::new(config.max_queued));
            let (_, interruptions) = mpsc::unbounded_channel();
            let (input, orders_of_demux, _routing) =
                router::start(&config, hooks, interruptions, Arc::clone(&budget));
            let gateway = Arc::new(Gateway {
                places: Arc::new(Semaphore::new(config.max_connections as usize)),
                batches: Batches::new(1, 1),
                clients: TaskTracker::new(),
                posts: TaskTracker::new(),
                is_local: true,
                routed: CancellationToken::new(),
                stuck: AtomicU64::new(0),
                config,
                board,
                registry,
                orders: orders.unwrap_or(orders_of_demux),
                source: Source::Embedded(input.clone()),
                budget,
            });
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(serve(listener, Arc::clone(&gateway), CancellationToken::new()));
            Self { gateway, input, address }
        }

        async fn subscriber(&self, request: Value) -> Socket {
            let socket = TcpStream::connect(self.address).await.unwrap();
            let url = format!("ws://{}/ws", self.address);
            let (mut socket, _) = tokio_tungstenite::client_async(url, socket).await.unwrap();
            socket.send(Received::text(request.to_string())).await.unwrap();
            socket
        }

        async fn publish(&self, key: &str) {
            self.deliver(key, None).await;
        }

        async fn deliver(&self, key: &str, delivery: Option<Delivery>) {
            let message = Message::of(key.into(), b"x", false, delivery);
            assert_eq!(self.input.send(message).await, Ok(()));
        }

        async fn until_connected(&self, count: u64) {
            let counted = async {
                while !self
                    .gateway
                    .board
                    .metrics()
                    .unwrap()
                    .lines()
                    .any(|line| line == format!("gateway_connections {count}"))
                {
                    sleep(Duration::from_millis(5)).await;
                }
            };
            timeout(Duration::from_secs(60), counted).await.expect("all others have left");
        }
    }

    /// Reads until a message of this type.
    async fn until(socket: &mut Socket, kind: &str) {
        let reading = async {
            loop {
                let frame = socket.next().await.expect("it stays connected").unwrap();
                if let Received::Text(text) = frame
                    && serde_json::from_str::<Value>(&text).unwrap()["type"] == kind
                {
                    return;
                }
            }
        };
        timeout(Duration::from_secs(60), reading).await.expect(kind);
    }

    async fn until_gone(mut socket: Socket) {
        let reading = async { while let Some(Ok(_)) = socket.next().await {} };
        timeout(Duration::from_secs(60), reading).await.expect("it is disconnected");
    }

    #[tokio::test]
    async fn a_panic_while_a_message_is_sent_ends_its_client_and_no_other() {
        let site = Site::start(&["--history", "9"]).await;
        let mut other = site.subscriber(json!({ "type": "subscribe", "key": "tea" })).await;
        until(&mut other, "subscribed").await;
        // In the task of the demux, and then from the history.
        let (live, since) = (json!(null), json!(0));
        for since in [live, since] {
            let request = match &since {
                Value::Null => json!({ "type": "subscribe", "key": PLANTED }),
                since => json!({ "type": "subscribe", "key": PLANTED, "since": since }),
            };
            let mut client = site.subscriber(request).await;
            if since.is_null() {
                until(&mut client, "subscribed").await;
                let (fates, mut received) = Fates::channel(1);
                site.deliver(PLANTED, Some(Delivery::new(1, false, fates))).await;
                // Not requeued: it would end the client each time that it returns.
                assert_eq!(received.recv().await.map(|fate| fate.verdict), Some(Verdict::Lost));
            }
            until_gone(client).await;
            site.until_connected(1).await;
            site.publish("tea").await;
            until(&mut other, "message").await;
        }
    }

    #[tokio::test]
    async fn a_panic_in_the_task_of_a_client_gives_its_place_back() {
        let site = Site::start(&["--history", "9"]).await;
        let mut other = site.subscriber(json!({ "type": "subscribe", "key": "tea" })).await;
        until(&mut other, "subscribed").await;
        let keys = ["tea", "a panic"];
        until_gone(site.subscriber(json!({ "type": "subscribe", "keys": keys })).await).await;
        site.until_connected(1).await;
        site.publish("tea").await;
        until(&mut other, "message").await;
        let totals = || site.gateway.board.totals();
        while totals().detached < totals().attached - 1 {
            sleep(Duration::from_millis(5)).await; // its subscriptions end, too
        }
    }

    /// The demux takes one order at a time, and the clients wait for their turns.
    #[tokio::test]
    async fn clients_that_close_their_connections_while_they_wait_for_their_turns_attach_no_more() {
        const CLIENTS: u64 = 10;
        let (orders, mut taken) = mpsc::channel(1);
        let site = Site::start_with(&[], Some(orders)).await;
        let keys: Vec<String> = (0..100).map(|key| key.to_string()).collect();
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let mut client = site.subscriber(json!({ "type": "subscribe", "keys": keys })).await;
            // Something that is not read before they have had their turns.
            client.send(Received::text("unread")).await.unwrap();
            clients.push(client);
        }
        site.until_connected(CLIENTS).await;
        let mut orders = vec![taken.recv().await.unwrap()];
        drop(clients);
        let taking = async {
            loop {
                sleep(Duration::from_millis(20)).await;
                orders.push(taken.recv().await.unwrap());
            }
        };
        tokio::select! {
            () = taking => {}
            () = site.until_connected(0) => {}
        }
        while let Ok(order) = taken.try_recv() {
            orders.push(order);
        }
        assert!(orders.len() < 50, "{} of 1,000 were attached", orders.len());
        assert_eq!(site.gateway.registry.len(), orders.len(), "nothing is kept of the others");
    }

    /// The broker delivers no more if too many messages are unacknowledged.
    #[tokio::test]
    async fn messages_that_wait_for_the_latest_value_are_acknowledged_beyond_the_share_of_a_client()
    {
        const KEYS: usize = 20;
        for policy in ["wait", "drop-oldest"] {
            // Its share is one message.
            let options = ["--amqp", "amqp://127.0.0.1", "--prefetch", "64", "--overflow", policy];
            let site = Site::start(&options).await;
            let keys: Vec<String> = (0..KEYS).map(|key| format!("key {key}")).collect();
            let request = json!({ "type": "subscribe", "keys": keys, "latest": true, "rate": 1 });
            let mut client = site.subscriber(request).await;
            for _ in &keys {
                until(&mut client, "subscribed").await;
            }
            let (fates, mut received) = Fates::channel(1);
            for round in 0..3 {
                for (number, key) in keys.iter().enumerate() {
                    let tag = (round * KEYS + number) as u64;
                    let delivery = Delivery::new(tag, false, Arc::clone(&fates));
                    let body = round.to_string();
                    let message =
                        Message::of(key.as_str().into(), body.as_bytes(), true, Some(delivery));
                    assert_eq!(site.input.send(message).await, Ok(()));
                }
            }
            // Nothing is read yet, and the last value of each key waits for its turn.
            let settled = async {
                for _ in 0..3 * KEYS - 2 {
                    let fate = received.recv().await.unwrap();
                    assert_eq!(fate.verdict, Verdict::Acknowledge);
                }
            };
            timeout(Duration::from_secs(60), settled).await.expect("they are acknowledged");
            let totals = site.gateway.board.totals();
            assert!(totals.queued >= 2, "{policy}: {totals:?}");
            let mut last = HashMap::new();
            let reading = async {
                while last.len() < KEYS || last.values().any(|value| *value != 2) {
                    let frame = client.next().await.expect("it stays connected").unwrap();
                    let Received::Text(text) = frame else { continue };
                    let message: Value = serde_json::from_str(&text).unwrap();
                    let value = message["json"].as_u64().unwrap();
                    assert!(last.insert(message["key"].to_string(), value) <= Some(value));
                }
            };
            timeout(Duration::from_secs(60), reading).await.expect("the last of each key comes");
            let done = async {
                loop {
                    let totals = site.gateway.board.totals();
                    if totals.queued == 0 {
                        break totals;
                    }
                    sleep(Duration::from_millis(5)).await;
                }
            };
            let totals = timeout(Duration::from_secs(60), done).await.expect("nothing waits");
            assert_eq!(
                totals.delivered,
                site.gateway.board.delivered.get(),
                "{policy}: {totals:?}"
            );
        }
    }

    /// Each client has no more than its share waiting, but there are many of them.
    #[tokio::test]
    async fn messages_that_wait_for_the_latest_value_take_no_more_than_half_of_the_prefetch() {
        const CLIENTS: usize = 48;
        for (prefetch, half) in [("64", 32), ("8", 4), ("1", 0)] {
            let options = ["--amqp", "amqp://127.0.0.1", "--prefetch", prefetch];
            let site = Site::start(&options).await;
            let mut clients = Vec::new();
            for client in 0..CLIENTS {
                let key = format!("key {client}");
                let request = json!({ "type": "subscribe", "key": key, "latest": true, "rate": 1 });
                let mut client = site.subscriber(request).await;
                until(&mut client, "subscribed").await;
                clients.push(client);
            }
            let (fates, mut received) = Fates::channel(1);
            for tag in 0..2 * CLIENTS {
                let delivery = Some(Delivery::new(tag as u64, false, Arc::clone(&fates)));
                site.deliver(&format!("key {}", tag % CLIENTS), delivery).await;
            }
            // The first of each was sent, and the second waits a second for its turn.
            for _ in 0..2 * CLIENTS - half {
                let fate = timeout(Duration::from_secs(60), received.recv()).await.expect("a fate");
                assert_eq!(fate.map(|fate| fate.verdict), Some(Verdict::Acknowledge));
            }
            assert!(site.gateway.board.totals().queued > 0);
            drop(clients);
            site.until_connected(0).await;
            let gone = async {
                while site.gateway.budget.copies() > 0 {
                    sleep(Duration::from_millis(5)).await;
                }
            };
            timeout(Duration::from_secs(60), gone).await.expect("nothing is counted any more");
        }
    }
}
