//! The server: calls of all connections run at once, and answers go out as they come.
//!
//! 1. A call holds a permit of its connection until its answer is in the socket's buffer. So a client
//!    has so many calls running or answered and unread, and no more: who does not read is not read from,
//!    and holds up nobody else.
//! 2. A connection leaves the demux when it has all its permits back: then no answer is on its way.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::{FutureExt, Sink, SinkExt, StreamExt, future, stream};
use stream_demux::{Attach, DemuxStreamExt, Lease, Overflow, Totals};
use thrift::protocol::TMessageType;
use thrift::{ApplicationError, ApplicationErrorKind};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::message::{Limits, Message, Wire};
use crate::transport::{Incoming, Transport};

/// Answers, of all connections, that wait for the demux.
const INBOX: usize = 1024;

/// Answers a request. [`demo::Serve`](crate::demo::Serve) makes one of a service of the IDL.
pub trait Service: Send + Sync + 'static {
    /// The answer, made with [`Request::answer`]; none to a one-way call.
    fn call(&self, request: Request) -> impl Future<Output = Result<Option<Bytes>, Error>> + Send;
}

/// A call that came.
#[derive(Debug, Clone)]
pub struct Request {
    /// What was sent.
    pub message: Message,
    limits: Limits,
}

impl Request {
    /// The arguments.
    pub fn args<A: Wire>(&self) -> Result<A, Error> {
        self.message.read(&self.limits)
    }

    /// The frame of an answer.
    pub fn answer<R: Wire>(&self, result: &R) -> Result<Option<Bytes>, Error> {
        let Message { protocol, name, kind, id, .. } = &self.message;
        if *kind == TMessageType::OneWay {
            return Ok(None);
        }
        Message::write(*protocol, name, TMessageType::Reply, *id, result).map(Some)
    }

    /// That there is no such method.
    pub fn unknown(&self) -> Result<Option<Bytes>, Error> {
        let what = format!("there is no method {:.64}", self.message.name);
        Err(Error::Refused(ApplicationErrorKind::UnknownMethod, what))
    }
}

type Wrap = dyn Fn(OwnedReadHalf, OwnedWriteHalf, &Limits) -> Transport + Send + Sync;
type OnClosed = dyn Fn(SocketAddr, &str) + Send + Sync;

/// How a server serves.
#[derive(Clone)]
pub struct Settings {
    /// What a request, and an answer, may hold.
    pub limits: Limits,
    /// How many calls of one connection are running, or answered and not yet sent.
    pub in_flight: u32,
    /// How long a connection has to finish its calls when the server stops.
    pub patience: Duration,
    /// The stages between a socket and its calls.
    pub wrap: Arc<Wrap>,
    /// Told when a connection is closed for a reason: garbage, or broken.
    pub on_closed: Arc<OnClosed>,
}

impl Default for Settings {
    /// The default limits, 1,024 calls, five seconds, frames, silence.
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            in_flight: 1024,
            patience: Duration::from_secs(5),
            wrap: Arc::new(Transport::framed),
            on_closed: Arc::new(|_, _| {}),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limits, in_flight, patience, wrap: _, on_closed: _ } = self;
        f.debug_struct("Settings")
            .field("limits", limits)
            .field("in_flight", in_flight)
            .field("patience", patience)
            .finish_non_exhaustive()
    }
}

/// What a server did.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    /// Connections it had.
    pub connections: u64,
    /// Connections it closed for what they sent, or that broke.
    pub faulty: u64,
    /// Calls it read.
    pub calls: u64,
    /// Of the answers: `unmatched` and `lost` are those whose connection had gone.
    pub answers: Totals,
}

struct Answer {
    connection: u64,
    frame: Bytes,
    permit: OwnedSemaphorePermit,
}

/// Writes answers to one connection, and gives their permits back.
type Outbox = std::pin::Pin<Box<dyn Sink<Answer, Error = io::Error> + Send>>;

struct Server<S> {
    service: S,
    settings: Settings,
    orders: UnboundedSender<Attach<u64, Outbox>>,
    answers: mpsc::Sender<Answer>,
    stop: CancellationToken,
    calls: AtomicU64,
    faulty: AtomicU64,
}

/// Serves whoever connects until `stop` is cancelled, then lets the calls that are running finish.
pub async fn serve<S: Service>(
    listener: TcpListener,
    service: S,
    settings: Settings,
    stop: CancellationToken,
) -> Report {
    let (orders, orders_in) = unbounded();
    let (answers, mut answers_in) = mpsc::channel(INBOX);
    let demux = stream::poll_fn(move |cx| answers_in.poll_recv(cx))
        .demux_by(|answer: &Answer| answer.connection, orders_in)
        .buffer(settings.in_flight as usize)
        // Permits keep a queue within its buffer. Were they wrong, one client would pay, not all.
        .overflow(Overflow::Evict);
    let demux = tokio::spawn(tokio::task::unconstrained(demux));

    let (calls, faulty) = Default::default();
    let patience = settings.patience;
    let server = Arc::new(Server { service, settings, orders, answers, stop, calls, faulty });
    let mut connections = JoinSet::new();
    let mut id = 0;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((socket, peer)) => {
                    connections.spawn(connection(Arc::clone(&server), socket, peer, id));
                    id += 1;
                }
                // Too many files are open: by then somebody may have left.
                Err(_) => sleep(Duration::from_millis(100)).await,
            },
            Some(_) = connections.join_next() => {}
            () = server.stop.cancelled() => break,
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(patience, all).await.is_err() {
        connections.shutdown().await;
    }
    let (calls, faulty) = (server.calls.load(Relaxed), server.faulty.load(Relaxed));
    drop(server); // and with it the input of the demux
    let answers = match demux.await {
        Ok(totals) => totals,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    };
    Report { connections: id, faulty, calls, answers }
}

async fn connection<S: Service>(
    server: Arc<Server<S>>,
    socket: TcpStream,
    peer: SocketAddr,
    id: u64,
) {
    let _ = socket.set_nodelay(true); // the demux knows better what to send together
    let (from, to) = socket.into_split();
    let settings = &server.settings;
    let Transport { incoming, outgoing } = (settings.wrap)(from, to, &settings.limits);
    let outbox = outgoing.with(|answer: Answer| {
        drop(answer.permit);
        future::ready(Ok(answer.frame))
    });
    let mut lease = Lease::new();
    let attach = Attach::new(id, Box::pin(outbox) as Outbox).leased(&mut lease);
    if server.orders.unbounded_send(attach).is_err() {
        return;
    }
    let permits = Arc::new(Semaphore::new(settings.in_flight as usize));
    let mut calls = JoinSet::new();
    let end = requests(&server, incoming, id, &permits, &mut calls).await;
    if let Err(reason) = &end {
        server.faulty.fetch_add(1, Relaxed);
        (settings.on_closed)(peer, reason);
        // Who sends garbage gets no answers. But what came whole is done, as it may be a one-way call.
        drop(std::mem::take(&mut lease));
    }
    while calls.join_next().await.is_some() {}
    if end.is_ok() {
        let _ = permits.acquire_many(settings.in_flight).await;
        lease.detach();
    }
}

/// Starts the calls of a connection until it sends no more, or the server stops.
async fn requests<S: Service>(
    server: &Arc<Server<S>>,
    mut incoming: Incoming,
    connection: u64,
    permits: &Arc<Semaphore>,
    calls: &mut JoinSet<()>,
) -> Result<(), String> {
    loop {
        let permit = tokio::select! {
            permit = Arc::clone(permits).acquire_owned() => permit.map_err(|e| e.to_string())?,
            () = server.stop.cancelled() => break,
        };
        let frame = tokio::select! {
            frame = incoming.next() => frame,
            () = server.stop.cancelled() => break,
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            // A client that leaves bytes unread when it closes, as one with `TZlibTransport` does the end
            // of a flush, resets the connection. It has gone, and that is no fault.
            Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => break,
            Some(Err(error)) => return Err(error.to_string()),
            None => break,
        };
        let limits = server.settings.limits;
        let message =
            Message::open(&frame, &limits).map_err(|error| format!("a request is {error}"))?;
        if !matches!(message.kind, TMessageType::Call | TMessageType::OneWay) {
            return Err(format!("a request is of the kind {:?}", message.kind));
        }
        server.calls.fetch_add(1, Relaxed);
        let (server, request) = (Arc::clone(server), Request { message, limits });
        calls.spawn(async move {
            if let Some(frame) = answer(&server.service, request).await {
                let answer = Answer { connection, frame, permit };
                let _ = server.answers.send(answer).await;
            }
        });
        while calls.try_join_next().is_some() {}
    }
    Ok(())
}

/// The answer of the service, or that there is none and why.
async fn answer<S: Service>(service: &S, request: Request) -> Option<Bytes> {
    let (message, limits) = (request.message.clone(), request.limits);
    let panicked =
        |_| Err(Error::Refused(ApplicationErrorKind::InternalError, "it panicked".into()));
    let done =
        AssertUnwindSafe(service.call(request)).catch_unwind().await.unwrap_or_else(panicked);
    let refusal = match done {
        Ok(Some(frame)) if frame.len() > limits.frame => {
            let what = format!("an answer of {} bytes, more than {}", frame.len(), limits.frame);
            ApplicationError::new(ApplicationErrorKind::InternalError, what)
        }
        Ok(frame) => return frame,
        Err(Error::Refused(kind, what)) => ApplicationError::new(kind, what),
        Err(error @ Error::Malformed(_)) => {
            ApplicationError::new(ApplicationErrorKind::ProtocolError, error.to_string())
        }
        Err(error) => ApplicationError::new(ApplicationErrorKind::InternalError, error.to_string()),
    };
    if message.kind == TMessageType::OneWay {
        return None;
    }
    message.refuse(&refusal).ok()
}
