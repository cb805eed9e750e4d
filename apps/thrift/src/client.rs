//! The client: concurrent calls on one connection. A demux routes each answer to its caller.
//!
//! 1. A call sends its order before its request, so its sink is attached before an answer can
//!    arrive.
//! 2. A sequence id is used once per connection, so a late answer cannot match another call.
//! 3. A call owns the lease of its sink: when the call ends for any reason, the sink is detached.
//! 4. What has arrived is read: if a write fails, answers are routed until the input ends.
//! 5. Nothing waits for a peer without limit: a connection is closed if for a few deadlines no call
//!    is answered in time or no request can be written (`health`), and when its last handle has
//!    been dropped for a deadline.
//! 6. A call that was sent and whose future is dropped, or has ended early, is judged as if it had
//!    waited (`unanswered`).
//! 7. Requests that wait to be written take bounded memory (`outbox`).

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::thread;
use std::time::Duration;

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::{Sink, SinkExt, StreamExt, future, stream};
use stream_demux::{Attach, DemuxStreamExt, Detached, Hooks, Lease, Recipient};
use thrift::protocol::TMessageType;
use tokio::net::ToSocketAddrs;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::bytes::Bytes;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::connect;
use crate::error::Error;
use crate::health::{Health, InTime, Running, silence};
use crate::message::{Limits, Message, Protocol, Wire};
use crate::outbox::{Admitted, Flushed, Outbox, Queued, Written};
use crate::panics::contain;
use crate::service::SEPARATOR;
use crate::socket;
use crate::transport::{Frame, Transport};
use crate::unanswered::Unanswered;
use crate::unpolled::{CallerToPoll, Unpolled};
use crate::upstream::Place;

/// The largest sequence id. Ids are positive, because all implementations read positive ids alike.
const LAST_ID: u64 = i32::MAX as u64;

/// A deadline that cannot be represented is so far away.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

/// How long others wait for a caller that does not poll its future: so long for it to take the room for
/// its request (`outbox`), and once or twice as long for it to take its place or the answer to its call
/// (`upstream`). A task that is ready is polled sooner, unless its runtime is very busy; then, a server
/// that gets one call at a time gets another one each time, and callers lose their places in line.
const UNPOLLED: Duration = Duration::from_millis(100);

/// The time that others wait is no shorter, if the deadline is next to nothing: the resolution of Tokio's
/// timers.
const SHORTEST_LOOK: Duration = Duration::from_millis(1);

/// How long a server may take to close its side when all handles were dropped and calls are still with
/// it. Then the connection is reset, so that they cost the server nothing. Requests that were just
/// written, which may be one-way, have this time to arrive.
const LEAVE: Duration = Duration::from_secs(1);

/// Settings of a client.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The protocol that requests are written in.
    pub protocol: Protocol,
    /// Limits for requests and answers.
    pub limits: Limits,
    /// The service name to prepend to each method name, as Apache Thrift's `TMultiplexedProtocol`
    /// does.
    pub service: Option<&'static str>,
    /// Time limit of a call, from its first poll to its answer, and of connecting. A connection is
    /// closed if for three deadlines no call is answered in time although calls wait, or no byte
    /// can be written although requests wait.
    ///
    /// If you drop calls after a time of your own, the server has failed them only at their
    /// deadlines: choose one that is not much longer.
    pub deadline: Duration,
}

impl Options {
    /// How long others wait for a caller that does not poll its future.
    pub(crate) fn unpolled(&self) -> Duration {
        UNPOLLED.min(self.deadline / 8).max(SHORTEST_LOOK)
    }
}

impl Default for Options {
    /// Binary protocol, default limits, no service name, a deadline of 30 seconds.
    fn default() -> Self {
        let (protocol, limits, service) = Default::default();
        Self { protocol, limits, service, deadline: Duration::from_secs(30) }
    }
}

/// Counters of the calls of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Calls that wait for an answer: the sinks attached to the demux at this moment.
    pub waiting: u64,
    /// Calls that have been attached so far.
    pub calls: u64,
    /// Answers that arrived after their calls had ended. Their ids were used on this connection; an
    /// answer with another id closes it.
    pub late: u64,
}

/// A handle to a connection, which can be cloned and used from any thread. The connection is closed
/// when the last handle is dropped; requests in its queue have one deadline to be written. If calls are
/// still with the server, it is reset a second after the last request was written, so that the server
/// drops them.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    /// What is left of the deadline, if a call has waited for this handle.
    time_left: Duration,
    /// The place in a pool that calls of this handle take.
    place: Option<Arc<Place>>,
}

struct Shared {
    options: Options,
    orders: UnboundedSender<Attach<i32, Caller>>,
    connection: Arc<Connection>,
    /// Tells `watch` that all handles were dropped.
    _handles: DropGuard,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.connection.outbox.close();
    }
}

/// State shared by the connection's task and its handles.
#[derive(Default)]
pub(crate) struct Connection {
    /// Why the connection was closed. Set before any call fails because of it.
    closed: OnceLock<Arc<str>>,
    /// Why a pool shall not use it for further calls, although it is open.
    given_up: OnceLock<Arc<str>>,
    /// Cancelled when no further call can be made: the connection is closed, or has no id left.
    ended: CancellationToken,
    /// Calls that were with the server when the connection was closed.
    lost: AtomicU64,
    /// Answers that reached their calls, and those in time for calls that were dropped.
    answers: AtomicU64,
    /// Those of them that could not be read.
    unreadable: AtomicU64,
    /// Calls that had no answer when the server had had its deadline, also if they had ended before.
    expired: AtomicU64,
    used_ids: AtomicU64,
    attached: AtomicU64,
    detached: AtomicU64,
    late: AtomicU64,
    pub(crate) in_time: InTime,
    pub(crate) health: Arc<Health>,
    pub(crate) outbox: Outbox,
    pub(crate) unanswered: Unanswered,
    pub(crate) unpolled: Arc<Unpolled>,
}

impl Connection {
    fn close(&self, reason: impl fmt::Display) {
        let mut unanswered = None; // dropped last, because that wakes other tasks
        self.closed.get_or_init(|| {
            let dropped = unanswered.insert(self.unanswered.close()).len() as u64;
            self.lost.store(self.counts().waiting + dropped, Relaxed);
            reason.to_string().into()
        });
        self.ended.cancel();
        self.outbox.end();
    }

    /// Notes an answer that is not well-formed. A server that gets one call at a time, and answers it
    /// with garbage, has failed: a pool uses another connection. Other calls continue.
    fn unreadable(&self, call: &Running, what: &str) {
        self.unreadable.fetch_add(1, Relaxed);
        if call.failed() {
            self.given_up.get_or_init(|| format!("an answer could not be read: {what}").into());
            self.ended.cancel();
        }
    }

    /// Notes that a call was not answered within a deadline.
    pub(crate) fn expired(&self, call: &Running) {
        self.expired.fetch_add(1, Relaxed);
        call.failed();
    }

    /// Notes an answer that arrived after its call had ended. If the server has not had its deadline,
    /// the call is judged now.
    fn late(&self, id: i32) {
        self.late.fetch_add(1, Relaxed);
        self.in_time.answered(id);
        match self.unanswered.take(id) {
            Some(call) if call.due > Instant::now() => {
                self.answers.fetch_add(1, Relaxed);
                call.answered();
            }
            Some(call) => self.expired(&call),
            None => {}
        }
    }

    fn error(&self) -> Error {
        Error::Closed(self.reason())
    }

    pub(crate) fn counts(&self) -> Counts {
        // `detached` first, so that it cannot exceed `attached`.
        let detached = self.detached.load(Relaxed);
        let calls = self.attached.load(Relaxed);
        let late = self.late.load(Relaxed);
        Counts { waiting: calls.saturating_sub(detached), calls, late }
    }

    pub(crate) fn used_ids(&self) -> u64 {
        self.used_ids.load(Relaxed).min(LAST_ID)
    }

    /// Returns an error if no call has used this id. Then the server does not answer with the ids
    /// of its calls, and none would be answered. An id of a call that has ended is not an error.
    fn check_id(&self, answer: &Message) -> Result<(), String> {
        let used = self.used_ids();
        match u64::try_from(answer.id) {
            Ok(id) if (1..=used).contains(&id) => Ok(()),
            _ => Err(format!(
                "the server answered {:.64} with the id {}, but the calls have ids from 1 to {used}: \
                 an answer must have the id of its call",
                answer.name, answer.id,
            )),
        }
    }

    /// Waits until no further call can be made.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Returns why the connection failed: it was closed while calls were waiting, or before any was
    /// answered, or its answers cannot be read. A server may close an idle connection.
    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        let has_failed = self.has_lost_calls() || !self.has_answered();
        let closed = || self.closed.get().filter(|_| has_failed);
        self.given_up.get().or_else(closed).cloned()
    }

    /// Returns `true` if calls were with the server when the connection was closed.
    pub(crate) fn has_lost_calls(&self) -> bool {
        self.lost.load(Relaxed) > 0
    }

    /// Returns `true` if the server closed the connection, or it broke, while calls were with the server.
    pub(crate) fn was_closed_with_calls(&self) -> bool {
        self.given_up.get().is_none() && self.has_lost_calls()
    }

    /// Returns why it was closed.
    pub(crate) fn reason(&self) -> Arc<str> {
        self.closed.get().cloned().unwrap_or_else(|| "closed".into())
    }

    /// Returns `true` if a call was answered in time.
    pub(crate) fn has_answered(&self) -> bool {
        self.in_time.count() > self.unreadable.load(Relaxed)
    }

    /// Returns `true` if more calls were answered than failed.
    pub(crate) fn was_useful(&self) -> bool {
        let answered = self.answers.load(Relaxed).saturating_sub(self.unreadable.load(Relaxed));
        let failed =
            self.lost.load(Relaxed) + self.expired.load(Relaxed) + self.unreadable.load(Relaxed);
        answered > failed
    }
}

/// Hooks that count attachments and answers.
struct Watch(Arc<Connection>);

impl Hooks<i32, Message, Gone> for Watch {
    fn attached(&mut self, _: Recipient<'_, i32>) {
        self.0.attached.fetch_add(1, Relaxed);
    }
    fn detached(&mut self, call: Recipient<'_, i32>, why: Detached<Gone>) {
        let connection = &self.0;
        match why {
            Detached::Limited => {
                connection.answers.fetch_add(1, Relaxed);
                connection.in_time.answered(*call.key);
            }
            Detached::Failed(Gone) => connection.late(*call.key),
            _ => {}
        }
        connection.detached.fetch_add(1, Relaxed);
    }
    fn unmatched(&mut self, answer: Message) {
        self.0.late(answer.id);
    }
}

/// An answer on its way to the caller.
#[derive(Debug)]
struct Arrived {
    answer: Message,
    /// If the call has a place.
    _unpolled: Option<CallerToPoll>,
}

/// The sink of a call: passes one answer to the waiting caller. Both that and the end wake the caller.
/// If its waker panics, that does not end the connection.
struct Caller {
    caller: Option<oneshot::Sender<Arrived>>,
    place: Option<Arc<Place>>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        contain(|| self.caller = None);
    }
}

/// The caller was dropped, and the demux has not yet processed the end of its lease.
#[derive(Debug, PartialEq)]
struct Gone;

impl Sink<Message> for Caller {
    type Error = Gone;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        Poll::Ready(Ok(()))
    }
    fn start_send(mut self: Pin<&mut Self>, answer: Message) -> Result<(), Gone> {
        let arrived =
            Arrived { answer, _unpolled: self.place.as_ref().map(|place| place.unpolled.add()) };
        let caller = self.caller.take().ok_or(Gone)?;
        contain(|| caller.send(arrived)).and_then(Result::ok).ok_or(Gone)
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        Poll::Ready(Ok(()))
    }
    fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        contain(|| self.caller = None);
        Poll::Ready(Ok(()))
    }
}

impl Client {
    /// Connects over TCP, with framing and no other stage. Of several addresses, it is the first one
    /// that accepts: each is tried for an equal part of the time that is left. TCP keep-alive probes,
    /// one per minute, notice a peer that disappears while no call waits.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] with the reason, or [`Error::Deadline`] if connecting takes longer than
    /// [`Options::deadline`].
    pub async fn connect(to: impl ToSocketAddrs, options: Options) -> Result<Self, Error> {
        Self::connect_to(connect::addresses(to), options, Arc::default()).await
    }

    /// Connects to a server of which something may be known.
    pub(crate) async fn connect_to(
        addresses: impl Future<Output = io::Result<Vec<SocketAddr>>>,
        options: Options,
        health: Arc<Health>,
    ) -> Result<Self, Error> {
        let socket = connect::connect(addresses, options.deadline).await?;
        socket.set_nodelay(true).map_err(|error| closed(&error))?;
        socket::keep_alive(&socket);
        let (from, to) = socket.into_split();
        let unpolled = Arc::new(Unpolled::new(options.unpolled()));
        let connection = Arc::new(Connection { health, unpolled, ..Connection::default() });
        let to = Written { to, connection: Arc::clone(&connection) };
        let transport = Transport::framed(from, to, &options.limits);
        Ok(Self::start(transport, options, connection))
    }

    /// Creates a client on any transport and spawns the tasks that run the connection. Whether its
    /// peer reads is judged by the frames that are written, because bytes below them are not seen. A
    /// connection that ends while calls are with the server is closed, and not reset.
    ///
    /// # Panics
    ///
    /// Panics if called outside of a Tokio runtime.
    #[must_use]
    pub fn over(transport: Transport, options: Options) -> Self {
        Self::start(transport, options, Arc::default())
    }

    fn start(transport: Transport, options: Options, connection: Arc<Connection>) -> Self {
        let (orders, orders_in) = unbounded();
        let dropped = CancellationToken::new();
        let handles = dropped.clone().drop_guard();
        let run = run(transport, orders_in, options, Arc::clone(&connection));
        let run = tokio::spawn(run).abort_handle();
        tokio::spawn(watch(Arc::clone(&connection), options, dropped, run));
        let shared = Shared { options, orders, connection, _handles: handles };
        Self { shared: Arc::new(shared), time_left: options.deadline, place: None }
    }

    /// Returns a handle whose calls take this place.
    pub(crate) fn at(self, place: Arc<Place>) -> Self {
        Self { place: Some(place), ..self }
    }

    /// Returns a handle whose calls have only this time.
    pub(crate) fn within(self, time_left: Duration) -> Self {
        Self { time_left, ..self }
    }

    /// Calls a method. `A` and `R` are the structs that the Thrift compiler generates for the
    /// method's arguments and result. `name` may include the name of the service, as in
    /// `Service:method`; both have at most 1,024 bytes together.
    ///
    /// # Errors
    ///
    /// All of [`Error`]. After [`Error::Closed`] and [`Error::Deadline`], the call may have been
    /// executed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the request may have been sent; its answer is then counted as
    /// [`Counts::late`], and a [`Pool`](crate::Pool) judges the server by it as if the future had
    /// not been dropped. A request that still waits to be written is removed. The connection and
    /// other calls are not affected.
    pub async fn call<A: Wire, R: Wire>(&self, name: &str, args: &A) -> Result<R, Error> {
        self.call_as(name, args, Ok).await
    }

    /// Calls a method, and converts the generated struct for its result with `into`, usually the
    /// `ok_or` of that struct. An answer without a result is [`Error::Malformed`].
    ///
    /// # Errors
    ///
    /// Those of [`call`](Self::call), and the declared exception that `into` returns.
    ///
    /// # Cancel safety
    ///
    /// That of [`call`](Self::call).
    pub async fn call_as<A: Wire, R: Wire, T>(
        &self,
        name: &str,
        args: &A,
        into: impl FnOnce(R) -> thrift::Result<T>,
    ) -> Result<T, Error> {
        let connection = &self.shared.connection;
        let (until, running, _overdue) = self.begin();
        let mut call = Call { connection, running, waiting: None };
        let answer = timeout_at(until, self.exchange(name, args, &mut call.waiting)).await;
        let Ok(answer) = answer else {
            if call.is_sent() && call.running.due > Instant::now() {
                drop(call); // it has waited for a place, and the server has not had a deadline for it
            } else {
                call.waiting = None;
                self.expired(&call.running);
            }
            return Err(Error::Deadline(self.shared.options.deadline));
        };
        call.waiting = None;
        let answer = answer?;
        let result = self.read(name, &answer, into);
        match &result {
            Err(Error::Malformed(what)) if !answer.is_well_formed() => {
                connection.unreadable(&call.running, what);
            }
            // The server is not judged by what this caller expects.
            _ => call.running.answered(),
        }
        result
    }

    fn read<R: Wire, T>(
        &self,
        name: &str,
        answer: &Message,
        into: impl FnOnce(R) -> thrift::Result<T>,
    ) -> Result<T, Error> {
        if method(&answer.name) != method(name) {
            let what = format!("called {name:.64}, but the answer is for {:.64}", answer.name);
            return Err(Error::Malformed(what));
        }
        let limits = &self.shared.options.limits;
        match answer.kind {
            TMessageType::Reply => into(answer.read(limits)?).map_err(|error| match error {
                thrift::Error::Application(error) => {
                    Error::Malformed(format!("the answer to {name}: {}", error.message))
                }
                error => error.into(),
            }),
            TMessageType::Exception => Err(answer.read_refusal(limits)),
            kind => {
                Err(Error::Malformed(format!("the answer to {name} has the message type {kind:?}")))
            }
        }
    }

    /// Calls a one-way method. Completes when the request is in the queue of the connection, and
    /// waits for room there. Nothing tells whether it arrives at the server. If the future is
    /// dropped before it completes, the request is not sent.
    pub async fn send<A: Wire>(&self, name: &str, args: &A) -> Result<(), Error> {
        let connection = &self.shared.connection;
        let (until, running, _overdue) = self.begin();
        let queued = async {
            let (id, request) = self.admit(name, TMessageType::OneWay, args).await?;
            connection.outbox.push(id, request).ok_or_else(|| connection.error())?.keep();
            Ok(())
        };
        timeout_at(until, queued).await.unwrap_or_else(|_| {
            self.expired(&running);
            Err(Error::Deadline(self.shared.options.deadline))
        })
    }

    /// Notes that a call begins. Returns also when its time is over, which is sooner than a deadline
    /// if it has waited for a place. When the server has had its deadline, the call should be polled.
    fn begin(&self) -> (Instant, Running, Option<CallerToPoll>) {
        let Shared { options, connection, .. } = &*self.shared;
        let now = Instant::now();
        let after = |time| now.checked_add(time).unwrap_or_else(|| now + FAR);
        let place = self.place.as_ref();
        let due = after(options.deadline);
        let running = connection.health.call(now, due, place.map(Place::occupy));
        let overdue = place.map(|place| place.unpolled.add_at(due));
        (after(self.time_left), running, overdue)
    }

    /// Notes that a call was not answered in a deadline, or that its request could not be sent in the
    /// time that it had. If it had little, because it has waited for a place, that says little about
    /// the server.
    fn expired(&self, call: &Running) {
        if self.time_left >= self.shared.options.deadline / 2 {
            self.shared.connection.expired(call);
        }
    }

    /// Returns the counters of this connection.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.connection.counts()
    }

    /// Returns the reason if the connection is closed.
    #[must_use]
    pub fn closed(&self) -> Option<Arc<str>> {
        self.shared.connection.closed.get().cloned()
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.shared.connection
    }

    /// Returns `true` if a pool can make further calls.
    pub(crate) fn is_open(&self) -> bool {
        let connection = &self.shared.connection;
        connection.closed.get().is_none()
            && connection.given_up.get().is_none()
            && connection.used_ids.load(Relaxed) < LAST_ID
    }

    fn next_id(&self) -> Result<i32, Error> {
        let connection = &self.shared.connection;
        if connection.closed.get().is_some() {
            return Err(connection.error());
        }
        let id = connection.used_ids.fetch_add(1, Relaxed) + 1;
        if id == LAST_ID {
            connection.ended.cancel();
        }
        i32::try_from(id).map_err(|_| {
            connection.used_ids.store(LAST_ID, Relaxed); // so that it never wraps around
            Error::Exhausted
        })
    }

    fn encode<A: Wire>(
        &self,
        id: i32,
        name: &str,
        kind: TMessageType,
        args: &A,
    ) -> Result<Bytes, Error> {
        let options = &self.shared.options;
        let named = options.service.map(|service| format!("{service}{SEPARATOR}{name}"));
        let name = named.as_deref().unwrap_or(name);
        Message::write_within(&options.limits, options.protocol, name, kind, id, args)
    }

    /// Encodes a request with the next id, and waits for room for it.
    async fn admit<A: Wire>(
        &self,
        name: &str,
        kind: TMessageType,
        args: &A,
    ) -> Result<(i32, Admitted<'_>), Error> {
        let connection = &self.shared.connection;
        let id = self.next_id()?;
        let request = connection.outbox.admit(|| self.encode(id, name, kind, args)).await?;
        Ok((id, request.ok_or_else(|| connection.error())?))
    }

    async fn exchange<'a, A: Wire>(
        &'a self,
        name: &str,
        args: &A,
        waiting: &mut Option<Waiting<'a>>,
    ) -> Result<Message, Error> {
        let Shared { orders, connection, .. } = &*self.shared;
        let (id, request) = self.admit(name, TMessageType::Call, args).await?;
        let (caller, answer) = oneshot::channel();
        let mut lease = Lease::new();
        let caller = Caller { caller: Some(caller), place: self.place.clone() };
        let attach = Attach::new(id, caller).limit(1).leased(&mut lease);
        orders.unbounded_send(attach).map_err(|_| connection.error())?;
        let request = connection.outbox.push(id, request).ok_or_else(|| connection.error())?;
        let waiting = waiting.insert(Waiting { id, answer, request, _lease: lease });
        let arrived = (&mut waiting.answer).await;
        arrived.map(|arrived| arrived.answer).map_err(|_| connection.error())
    }
}

/// Returns the name of a method without that of its service. Servers answer with or without it.
fn method(name: &str) -> &str {
    name.rsplit_once(SEPARATOR).map_or(name, |(_, method)| method)
}

fn closed(error: &io::Error) -> Error {
    Error::Closed(error.to_string().into())
}

/// A call. If it is dropped while it waits for its answer, it is still with the server.
struct Call<'a> {
    connection: &'a Connection,
    running: Running,
    waiting: Option<Waiting<'a>>,
}

/// A call whose request is in the queue, or was written.
struct Waiting<'a> {
    id: i32,
    answer: oneshot::Receiver<Arrived>,
    request: Queued<'a>,
    _lease: Lease,
}

impl Call<'_> {
    /// Returns `true` if its request was sent. If it is still in the queue, it is removed.
    fn is_sent(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| !waiting.request.remove())
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let Some(Waiting { id, answer, request, .. }) = &mut self.waiting else { return };
        if request.remove() {
            return; // it was not sent
        }
        let unanswered = &self.connection.unanswered;
        unanswered.add(*id, self.running.clone());
        answer.close(); // from now on, `Watch` gets the answer
        if answer.try_recv().is_ok()
            && let Some(call) = unanswered.take(*id)
        {
            call.answered();
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("options", &self.shared.options)
            .field("counts", &self.counts())
            .field("closed", &self.closed())
            .finish_non_exhaustive()
    }
}

/// Closes the connection, if it is not closed yet. Dropped before the demux, because its calls fail when
/// it is dropped.
struct Stopped(Arc<Connection>);

impl Drop for Stopped {
    fn drop(&mut self) {
        let has_panicked = thread::panicking();
        self.0.close(if has_panicked { "a stage panicked" } else { "its runtime has shut down" });
    }
}

/// No call is attached any more. Dropped after the demux, which reports no ends when it is dropped.
struct Ended(Arc<Connection>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.detached.store(self.0.attached.load(Relaxed), Relaxed);
    }
}

/// Runs a connection: routes answers to callers and writes requests, until either side ends.
async fn run(
    transport: Transport,
    orders: UnboundedReceiver<Attach<i32, Caller>>,
    options: Options,
    connection: Arc<Connection>,
) {
    let _ended = Ended(Arc::clone(&connection));
    let Transport { incoming, outgoing } = transport;
    let mut outgoing = Flushed { to: outgoing, connection: Arc::clone(&connection) };
    let answers = incoming
        .map(|frame| {
            let frame = frame.map_err(|error| error.to_string())?;
            let answer = Message::open(&frame, &options.limits)
                .map_err(|error| format!("an answer is {error}"))?;
            connection.check_id(&answer)?;
            Ok(answer)
        })
        .chain(stream::once(future::ready(Err("the server closed the connection".to_owned()))))
        .scan(Arc::clone(&connection), |connection, answer: Result<Message, String>| {
            future::ready(answer.map_err(|reason| connection.close(reason)).ok())
        });
    let routing =
        answers.demux_by(|answer| answer.id, orders).hooks(Watch(Arc::clone(&connection)));
    let mut routing = pin!(routing);
    let writing = async {
        future::poll_fn(|cx| poll_write(&connection, &mut outgoing, cx)).await?;
        outgoing.close().await
    };
    let _stopped = Stopped(Arc::clone(&connection)); // also if a stage panics
    tokio::select! {
        _totals = &mut routing => {}
        written = writing => match written {
            Ok(()) => {
                connection.close("all handles were dropped");
                if connection.has_lost_calls() {
                    let _ = timeout(LEAVE, routing).await;
                }
            }
            Err(error) => {
                connection.close(format_args!("cannot write: {error}"));
                // Answers that arrived before a reset are still readable. No call waits longer
                // than a deadline.
                let _ = timeout(options.deadline, routing).await;
            }
        },
    }
}

/// Writes the requests. Unlike `send_all`, it takes none that cannot be written yet, because its
/// call may end before.
fn poll_write(
    connection: &Connection,
    outgoing: &mut Flushed,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    loop {
        ready!(outgoing.poll_ready_unpin(cx))?;
        match connection.outbox.poll_next(cx) {
            Poll::Ready(Some(request)) => outgoing.start_send_unpin(Frame::from(request))?,
            Poll::Ready(None) => return Poll::Ready(Ok(())),
            Poll::Pending => {
                ready!(outgoing.poll_flush_unpin(cx))?;
                return Poll::Pending;
            }
        }
    }
}

/// Ends a connection that would otherwise wait without limit. A task of its own, so that it costs
/// nothing when the connection is woken.
async fn watch(
    connection: Arc<Connection>,
    options: Options,
    dropped: CancellationToken,
    run: AbortHandle,
) {
    let deadline = options.deadline;
    let abandoned = async {
        dropped.cancelled().await;
        sleep(deadline).await; // for the requests that are still to be written
    };
    let closed = async {
        connection.ended().await;
        if connection.closed.get().is_none() {
            future::pending::<()>().await; // no id is left, and calls may still be running
        }
    };
    tokio::select! {
        () = closed => return,
        reason = silence(&connection, deadline) => connection.close(reason),
        () = abandoned => connection.close("all handles were dropped"),
        never = connection.outbox.keep_line_moving(options.unpolled()) => match never {},
    }
    run.abort();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_is_send_and_sync() {
        fn check<T: Clone + Send + Sync + 'static>() {}
        check::<Client>();
    }

    impl Client {
        /// Leaves one id.
        pub(crate) fn use_up_ids(&self) {
            self.shared.connection.used_ids.store(LAST_ID - 1, Relaxed);
        }
    }

    #[tokio::test]
    async fn no_id_is_used_twice() {
        let (near, _far) = tokio::io::duplex(1024);
        let (from, to) = tokio::io::split(near);
        let options = Options::default();
        let client = Client::over(Transport::framed(from, to, &options.limits), options);
        client.use_up_ids();
        assert_eq!(client.next_id().unwrap(), i32::MAX);
        for _ in 0..3 {
            let error = client.next_id().unwrap_err();
            assert!(matches!(error, Error::Exhausted), "{error}");
        }
    }
}
