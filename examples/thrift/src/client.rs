//! The client: concurrent calls on one connection. A demux routes each answer to its caller.
//!
//! 1. A call sends its order before its request, so its sink is attached before an answer can
//!    arrive.
//! 2. A sequence id is used once per connection, so a late answer cannot match another call.
//! 3. A call owns the lease of its sink: when the call ends for any reason, the sink is detached.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::{Sink, SinkExt, StreamExt, future, stream};
use stream_demux::{Attach, DemuxStreamExt, Detached, Hooks, Lease, Recipient};
use thrift::protocol::TMessageType;
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::bytes::Bytes;

use crate::error::Error;
use crate::message::{Limits, Message, Protocol, Wire};
use crate::service::SEPARATOR;
use crate::transport::{Frame, Transport};

/// Capacity of the queue of requests for the socket. If it is full, further calls wait until their
/// deadlines.
const QUEUE: usize = 1024;

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
    /// Time limit of a call, from its first poll to its answer.
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
    /// Answers that arrived after their calls had ended.
    pub late: u64,
}

/// A handle to a connection, which can be cloned and used from any thread. The connection is closed
/// when the last handle is dropped.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    options: Options,
    orders: UnboundedSender<Attach<i32, Caller>>,
    requests: mpsc::Sender<Bytes>,
    used_ids: AtomicU64,
    connection: Arc<Connection>,
}

/// State shared by the connection's task and its handles.
#[derive(Default)]
struct Connection {
    /// Why the connection was closed. Set before any call fails because of it.
    closed: OnceLock<Arc<str>>,
    attached: AtomicU64,
    detached: AtomicU64,
    late: AtomicU64,
}

impl Connection {
    fn close(&self, reason: impl fmt::Display) {
        self.closed.get_or_init(|| reason.to_string().into());
    }

    fn error(&self) -> Error {
        Error::Closed(self.closed.get().cloned().unwrap_or_else(|| "closed".into()))
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
    /// Connects over TCP, with framing and no other stage.
    pub async fn connect(to: impl ToSocketAddrs, options: Options) -> Result<Self, Error> {
        let closed = |error: io::Error| Error::Closed(error.to_string().into());
        let connecting = timeout(options.deadline, TcpStream::connect(to)).await;
        let socket = connecting.map_err(|_| Error::Deadline(options.deadline))?.map_err(closed)?;
        socket.set_nodelay(true).map_err(closed)?;
        let (from, to) = socket.into_split();
        Ok(Self::over(Transport::framed(from, to, &options.limits), options))
    }

    /// Creates a client on any transport and spawns the task that runs the connection.
    ///
    /// # Panics
    ///
    /// Panics if called outside of a Tokio runtime.
    #[must_use]
    pub fn over(transport: Transport, options: Options) -> Self {
        let (orders, orders_in) = unbounded();
        let (requests, requests_in) = mpsc::channel(QUEUE);
        let connection = Arc::<Connection>::default();
        let run = run(transport, orders_in, requests_in, options.limits, Arc::clone(&connection));
        tokio::spawn(run);
        let used_ids = AtomicU64::new(0);
        Self { shared: Arc::new(Shared { options, orders, requests, used_ids, connection }) }
    }

    /// Calls a method. `A` and `R` are the structs that the Thrift compiler generates for the
    /// method's arguments and result.
    pub async fn call<A: Wire, R: Wire>(&self, name: &str, args: &A) -> Result<R, Error> {
        let (id, frame) = self.request(name, TMessageType::Call, args)?;
        let deadline = self.shared.options.deadline;
        let answer = timeout(deadline, self.exchange(id, frame)).await;
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

    /// Calls a one-way method. Completes when the request is in the queue of the connection.
    pub async fn send<A: Wire>(&self, name: &str, args: &A) -> Result<(), Error> {
        let (_, frame) = self.request(name, TMessageType::OneWay, args)?;
        let deadline = self.shared.options.deadline;
        match timeout(deadline, self.shared.requests.send(frame)).await {
            Ok(sent) => sent.map_err(|_| self.shared.connection.error()),
            Err(_) => Err(Error::Deadline(deadline)),
        }
    }

    /// Returns the counters of this connection.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let of = &self.shared.connection;
        // `detached` first, so that it cannot exceed `attached`.
        let detached = of.detached.load(Relaxed);
        let calls = of.attached.load(Relaxed);
        Counts { waiting: calls.saturating_sub(detached), calls, late: of.late.load(Relaxed) }
    }

    /// Returns the reason if the connection is closed.
    #[must_use]
    pub fn closed(&self) -> Option<Arc<str>> {
        self.shared.connection.closed.get().cloned()
    }

    fn request<A: Wire>(
        &self,
        name: &str,
        kind: TMessageType,
        args: &A,
    ) -> Result<(i32, Bytes), Error> {
        let Shared { options, used_ids, connection, .. } = &*self.shared;
        if connection.closed.get().is_some() {
            return Err(connection.error());
        }
        let id = used_ids.fetch_add(1, Relaxed) + 1;
        let id = i32::try_from(id).map_err(|_| {
            used_ids.store(LAST_ID, Relaxed); // so that it never wraps around
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

/// Runs a connection: routes answers to callers and writes requests, until either side ends.
async fn run(
    transport: Transport,
    orders: UnboundedReceiver<Attach<i32, Caller>>,
    mut requests: mpsc::Receiver<Bytes>,
    limits: Limits,
    connection: Arc<Connection>,
) {
    let Transport { incoming, mut outgoing } = transport;
    let answers = incoming
        .map(|frame| {
            let frame = frame.map_err(|error| error.to_string())?;
            Message::open(&frame, &limits).map_err(|error| format!("an answer is {error}"))
        })
        .chain(stream::once(future::ready(Err("the server closed the connection".to_owned()))))
        .scan(Arc::clone(&connection), |connection, answer| {
            future::ready(answer.map_err(|reason| connection.close(reason)).ok())
        });
    let routing =
        answers.demux_by(|answer| answer.id, orders).hooks(Watch(Arc::clone(&connection)));
    let mut outbox = stream::poll_fn(|cx| requests.poll_recv(cx)).map(Frame::from).map(Ok);
    let writing = async {
        outgoing.send_all(&mut outbox).await?;
        outgoing.close().await
    };
    tokio::select! {
        _totals = routing => {}
        written = writing => match written {
            Ok(()) => connection.close("all handles were dropped"),
            Err(error) => connection.close(format_args!("cannot write: {error}")),
        },
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

    #[tokio::test]
    async fn no_id_is_used_twice() {
        let (near, _far) = tokio::io::duplex(1024);
        let (from, to) = tokio::io::split(near);
        let options = Options::default();
        let client = Client::over(Transport::framed(from, to, &options.limits), options);
        client.shared.used_ids.store(LAST_ID - 1, Relaxed);
        let args = crate::demo::one_of_each();
        assert_eq!(client.request("ping", TMessageType::Call, &args).unwrap().0, i32::MAX);
        for _ in 0..3 {
            let error = client.request("ping", TMessageType::Call, &args).unwrap_err();
            assert!(matches!(error, Error::Exhausted), "{error}");
        }
    }
}
