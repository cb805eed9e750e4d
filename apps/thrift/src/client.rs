//! The client: concurrent calls on one connection. A demux routes each answer to its caller.
//!
//! 1. A call sends its order before its request, so its sink is attached before an answer can
//!    arrive.
//! 2. A sequence id is used once per connection, so a late answer cannot match another call.
//! 3. A call owns the lease of its sink: when the call ends for any reason, the sink is detached.
//! 4. What has arrived is read: if a write fails, answers are routed until the input ends.
//! 5. Nothing waits for a peer without limit: a connection is closed if it is silent for a few
//!    deadlines while calls wait, and when its last handle has been dropped for a deadline.

use std::fmt;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::{Sink, SinkExt, StreamExt, future, stream};
use stream_demux::{Attach, DemuxStreamExt, Detached, Hooks, Lease, Recipient};
use thrift::protocol::TMessageType;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_util::bytes::Bytes;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::error::Error;
use crate::message::{Limits, Message, Protocol, Wire};
use crate::service::SEPARATOR;
use crate::socket;
use crate::transport::{Frame, Transport};

/// Capacity of the queue of requests for the socket. If it is full, further calls wait until their
/// deadlines.
const QUEUE: usize = 1024;

/// A connection on which calls wait, and no byte arrives for this many deadlines, is closed: its
/// peer is gone without a word, or hangs. One deadline may be a slow call, and two a slow call
/// behind another. With each further one, all calls on the connection are lost.
const SILENT_DEADLINES: u32 = 3;

/// How often per deadline a connection is checked for silence. It is closed up to one check early,
/// because a call may begin to wait just before a check. It is quiet one check before the deadline,
/// so that calls which reach their deadline are not followed by as many others.
const CHECKS: u32 = 8;

/// The largest sequence id. Ids are positive, because all implementations read positive ids alike.
const LAST_ID: u64 = i32::MAX as u64;

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
    /// Time limit of a call, from its first poll to its answer, and of connecting. A connection on
    /// which no byte arrives for three deadlines while calls wait is closed.
    pub deadline: Duration,
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
/// when the last handle is dropped; requests in its queue have one deadline to be written.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    /// What is left of the deadline, if a call has waited for this handle.
    time_left: Duration,
}

struct Shared {
    options: Options,
    orders: UnboundedSender<Attach<i32, Caller>>,
    requests: mpsc::Sender<Bytes>,
    connection: Arc<Connection>,
    /// Tells `watch` that all handles were dropped.
    _handles: DropGuard,
}

/// State shared by the connection's task and its handles.
#[derive(Default)]
pub(crate) struct Connection {
    /// Why the connection was closed. Set before any call fails because of it.
    closed: OnceLock<Arc<str>>,
    /// Cancelled when no further call can be made: the connection is closed, or has no id left.
    ended: CancellationToken,
    /// Calls that were waiting when the connection was closed.
    lost: AtomicU64,
    answers: AtomicU64,
    used_ids: AtomicU64,
    attached: AtomicU64,
    detached: AtomicU64,
    late: AtomicU64,
    /// How often something was read.
    reads: AtomicU64,
    /// Calls have been waiting for nearly a deadline, and nothing was read.
    quiet: AtomicBool,
}

impl Connection {
    fn close(&self, reason: impl fmt::Display) {
        self.closed.get_or_init(|| {
            self.lost.store(self.counts().waiting, Relaxed);
            reason.to_string().into()
        });
        self.ended.cancel();
    }

    fn error(&self) -> Error {
        Error::Closed(self.closed.get().cloned().unwrap_or_else(|| "closed".into()))
    }

    fn counts(&self) -> Counts {
        // `detached` first, so that it cannot exceed `attached`.
        let detached = self.detached.load(Relaxed);
        let calls = self.attached.load(Relaxed);
        let late = self.late.load(Relaxed);
        Counts { waiting: calls.saturating_sub(detached), calls, late }
    }

    fn heard(&self) {
        self.reads.fetch_add(1, Relaxed);
        self.quiet.store(false, Relaxed);
    }

    /// Returns an error if no call has used this id. Then the server does not answer with the ids
    /// of its calls, and none would be answered. An id of a call that has ended is not an error.
    fn check_id(&self, answer: &Message) -> Result<(), String> {
        let used = self.used_ids.load(Relaxed).min(LAST_ID);
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

    /// Returns why the connection was closed, if it failed: calls were waiting, or none was ever
    /// answered. A server may close an idle connection.
    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        let has_failed = self.lost.load(Relaxed) > 0 || !self.has_answered();
        self.closed.get().filter(|_| has_failed).cloned()
    }

    /// Returns `true` if a call was answered.
    pub(crate) fn has_answered(&self) -> bool {
        self.answers.load(Relaxed) > 0
    }

    /// Returns `true` if calls were answered, and no more were lost when the connection was closed.
    pub(crate) fn was_useful(&self) -> bool {
        self.has_answered() && self.answers.load(Relaxed) >= self.lost.load(Relaxed)
    }

    /// Returns `true` if calls have been waiting for nearly a deadline and nothing was read.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet.load(Relaxed)
    }
}

/// Hooks that count attachments and late answers.
struct Watch(Arc<Connection>);

impl Hooks<i32, Message, Gone> for Watch {
    fn attached(&mut self, _: Recipient<'_, i32>) {
        self.0.attached.fetch_add(1, Relaxed);
    }
    fn detached(&mut self, _: Recipient<'_, i32>, why: Detached<Gone>) {
        self.0.late.fetch_add(u64::from(why == Detached::Failed(Gone)), Relaxed);
        self.0.detached.fetch_add(1, Relaxed);
    }
    fn unmatched(&mut self, _: Message) {
        self.0.late.fetch_add(1, Relaxed);
    }
}

/// The sink of a call: passes one answer to the waiting caller.
struct Caller(Option<oneshot::Sender<Message>>);

/// The caller was dropped, and the demux has not yet processed the end of its lease.
#[derive(Debug, PartialEq)]
struct Gone;

impl Sink<Message> for Caller {
    type Error = Gone;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        Poll::Ready(Ok(()))
    }
    fn start_send(mut self: Pin<&mut Self>, answer: Message) -> Result<(), Gone> {
        self.0.take().ok_or(Gone)?.send(answer).map_err(|_| Gone)
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        Poll::Ready(Ok(()))
    }
    fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        self.0 = None;
        Poll::Ready(Ok(()))
    }
}

impl Client {
    /// Connects over TCP, with framing and no other stage. TCP keep-alive probes, one per minute,
    /// notice a peer that disappears while no call waits.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] with the reason, or [`Error::Deadline`] if connecting takes longer than
    /// [`Options::deadline`].
    pub async fn connect(to: impl ToSocketAddrs, options: Options) -> Result<Self, Error> {
        let closed = |error: io::Error| Error::Closed(error.to_string().into());
        let connecting = timeout(options.deadline, TcpStream::connect(to)).await;
        let socket = connecting.map_err(|_| Error::Deadline(options.deadline))?.map_err(closed)?;
        socket.set_nodelay(true).map_err(closed)?;
        socket::keep_alive(&socket);
        let (from, to) = socket.into_split();
        let connection = Arc::<Connection>::default();
        let from = Heard { from, connection: Arc::clone(&connection) };
        let transport = Transport::framed(from, to, &options.limits);
        Ok(Self::start(transport, options, connection))
    }

    /// Creates a client on any transport and spawns the tasks that run the connection. Whether it
    /// is silent is judged by the frames that arrive, because bytes below the frames are not seen.
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
        let (requests, requests_in) = mpsc::channel(QUEUE);
        let dropped = CancellationToken::new();
        let handles = dropped.clone().drop_guard();
        let run = run(transport, orders_in, requests_in, options, Arc::clone(&connection));
        let run = tokio::spawn(run).abort_handle();
        tokio::spawn(watch(Arc::clone(&connection), options.deadline, dropped, run));
        let shared = Shared { options, orders, requests, connection, _handles: handles };
        Self { shared: Arc::new(shared), time_left: options.deadline }
    }

    /// Returns a handle whose calls have only this time.
    pub(crate) fn within(self, time_left: Duration) -> Self {
        Self { time_left, ..self }
    }

    /// Calls a method. `A` and `R` are the structs that the Thrift compiler generates for the
    /// method's arguments and result.
    ///
    /// # Errors
    ///
    /// All of [`Error`]. After [`Error::Closed`] and [`Error::Deadline`], the call may have been
    /// executed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the request may have been sent; its answer is then counted as
    /// [`Counts::late`]. The connection and other calls are not affected.
    pub async fn call<A: Wire, R: Wire>(&self, name: &str, args: &A) -> Result<R, Error> {
        let (id, frame) = self.request(name, TMessageType::Call, args)?;
        let deadline = self.shared.options.deadline;
        let answer = timeout(self.time_left, self.exchange(id, frame)).await;
        let answer = answer.map_err(|_| Error::Deadline(deadline))??;
        if answer.name != name {
            let what = format!("called {name}, but the answer is for {}", answer.name);
            return Err(Error::Malformed(what));
        }
        let limits = &self.shared.options.limits;
        match answer.kind {
            TMessageType::Reply => answer.read(limits),
            TMessageType::Exception => Err(answer.read_refusal(limits)),
            kind => {
                Err(Error::Malformed(format!("the answer to {name} has the message type {kind:?}")))
            }
        }
    }

    /// Calls a one-way method. Completes when the request is in the queue of the connection. If the
    /// future is dropped before, the request is not sent.
    pub async fn send<A: Wire>(&self, name: &str, args: &A) -> Result<(), Error> {
        let (_, frame) = self.request(name, TMessageType::OneWay, args)?;
        let deadline = self.shared.options.deadline;
        match timeout(self.time_left, self.shared.requests.send(frame)).await {
            Ok(sent) => sent.map_err(|_| self.shared.connection.error()),
            Err(_) => Err(Error::Deadline(deadline)),
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

    /// Returns `true` if both are handles to the same connection.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns `true` if further calls can be made.
    pub(crate) fn is_open(&self) -> bool {
        let connection = &self.shared.connection;
        connection.closed.get().is_none() && connection.used_ids.load(Relaxed) < LAST_ID
    }

    fn request<A: Wire>(
        &self,
        name: &str,
        kind: TMessageType,
        args: &A,
    ) -> Result<(i32, Bytes), Error> {
        let Shared { options, connection, .. } = &*self.shared;
        if connection.closed.get().is_some() {
            return Err(connection.error());
        }
        let id = connection.used_ids.fetch_add(1, Relaxed) + 1;
        if id == LAST_ID {
            connection.ended.cancel();
        }
        let id = i32::try_from(id).map_err(|_| {
            connection.used_ids.store(LAST_ID, Relaxed); // so that it never wraps around
            Error::Exhausted
        })?;
        let named = options.service.map(|service| format!("{service}{SEPARATOR}{name}"));
        let name = named.as_deref().unwrap_or(name);
        let frame = Message::write(options.protocol, name, kind, id, args)?;
        if frame.len() > options.limits.frame {
            let (length, most) = (frame.len(), options.limits.frame);
            return Err(Error::TooLarge(format!("{name}: {length} bytes, more than {most}")));
        }
        Ok((id, frame))
    }

    async fn exchange(&self, id: i32, frame: Bytes) -> Result<Message, Error> {
        let Shared { orders, requests, connection, .. } = &*self.shared;
        let (caller, answer) = oneshot::channel();
        let mut lease = Lease::new();
        let attach = Attach::new(id, Caller(Some(caller))).limit(1).leased(&mut lease);
        orders.unbounded_send(attach).map_err(|_| connection.error())?;
        requests.send(frame).await.map_err(|_| connection.error())?;
        answer.await.map_err(|_| connection.error())
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

/// Notes that bytes have arrived.
struct Heard<R> {
    from: R,
    connection: Arc<Connection>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Heard<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.from).poll_read(cx, into))?;
        if into.filled().len() > before {
            self.connection.heard();
        }
        Poll::Ready(Ok(()))
    }
}

/// Runs a connection: routes answers to callers and writes requests, until either side ends.
async fn run(
    transport: Transport,
    orders: UnboundedReceiver<Attach<i32, Caller>>,
    mut requests: mpsc::Receiver<Bytes>,
    options: Options,
    connection: Arc<Connection>,
) {
    let _ended = connection.ended.clone().drop_guard(); // also if a stage panics
    let Transport { incoming, mut outgoing } = transport;
    let answers = incoming
        .map(|frame| {
            let frame = frame.map_err(|error| error.to_string())?;
            connection.heard();
            let answer = Message::open(&frame, &options.limits)
                .map_err(|error| format!("an answer is {error}"))?;
            connection.check_id(&answer)?;
            connection.answers.fetch_add(1, Relaxed);
            Ok(answer)
        })
        .chain(stream::once(future::ready(Err("the server closed the connection".to_owned()))))
        .scan(Arc::clone(&connection), |connection, answer: Result<Message, String>| {
            future::ready(answer.map_err(|reason| connection.close(reason)).ok())
        });
    let routing =
        answers.demux_by(|answer| answer.id, orders).hooks(Watch(Arc::clone(&connection)));
    let mut routing = pin!(routing);
    let mut outbox = stream::poll_fn(|cx| requests.poll_recv(cx)).map(Frame::from).map(Ok);
    let writing = async {
        outgoing.send_all(&mut outbox).await?;
        outgoing.close().await
    };
    tokio::select! {
        _totals = &mut routing => {}
        written = writing => match written {
            Ok(()) => connection.close("all handles were dropped"),
            Err(error) => {
                connection.close(format_args!("cannot write: {error}"));
                // Answers that arrived before a reset are still readable. No call waits longer
                // than a deadline.
                let _ = timeout(options.deadline, routing).await;
            }
        },
    }
}

/// Ends a connection that would otherwise wait without limit. A task of its own, so that it costs
/// nothing when the connection is woken.
async fn watch(
    connection: Arc<Connection>,
    deadline: Duration,
    dropped: CancellationToken,
    run: AbortHandle,
) {
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
        () = silence(&connection, deadline) => connection.close(format_args!(
            "no byte arrived for {SILENT_DEADLINES} deadlines of {deadline:?} while calls waited"
        )),
        () = abandoned => connection.close("all handles were dropped"),
    }
    run.abort();
}

/// Completes when calls have been waiting for a few deadlines and nothing was read.
async fn silence(connection: &Connection, deadline: Duration) {
    let (mut quiet, mut reads, mut calls) = (0, 0, 0);
    while quiet < CHECKS * SILENT_DEADLINES {
        // Not an interval: after the process was stopped, one check is due, and not all that were
        // missed.
        sleep((deadline / CHECKS).max(Duration::from_millis(1))).await;
        let counts = connection.counts();
        let has_waited = counts.waiting > 0 || counts.calls != calls;
        let has_read = connection.reads.load(Relaxed) != reads;
        reads = connection.reads.load(Relaxed);
        calls = counts.calls;
        if has_read {
            quiet = 0;
        } else if has_waited {
            quiet += 1;
        }
        connection.quiet.store(quiet + 1 >= CHECKS, Relaxed);
    }
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
        let args = crate::demo::one_of_each();
        assert_eq!(client.request("ping", TMessageType::Call, &args).unwrap().0, i32::MAX);
        for _ in 0..3 {
            let error = client.request("ping", TMessageType::Call, &args).unwrap_err();
            assert!(matches!(error, Error::Exhausted), "{error}");
        }
    }
}
