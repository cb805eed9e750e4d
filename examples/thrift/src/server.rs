//! The server: calls of all connections run at once, and answers go out as they come.
//!
//! `connection` says what becomes of one connection, `memory` how much all of them may hold. Here
//! they are accepted, and the demux runs that brings each answer to its connection. A connection
//! that takes no answer stalls there, and is evicted.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::{Sink, Stream, StreamExt, stream};
use stream_demux::{Attach, DemuxStreamExt, Detached, Hooks, Order, Overflow, Recipient, Totals};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::connection::{self, Peer};
use crate::memory::Memory;
use crate::message::Limits;
use crate::service::Service;
use crate::socket::{Reading, Writing};
use crate::transport::{Frame, Framing, Transport};

/// Answers, of all connections, that wait for the demux.
const INBOX: usize = 1024;

/// In a stall time-out: it may take a quarter longer than was said.
const TICKS: u32 = 4;

type Wrap = dyn Fn(Reading, Writing, &Framing) -> Transport + Send + Sync;
type OnClosed = dyn Fn(SocketAddr, &str) + Send + Sync;

/// How a server serves.
#[derive(Clone)]
pub struct Settings {
    /// What a request, and an answer, may hold.
    pub limits: Limits,
    /// How many calls of one connection are running, or answered and not yet sent.
    pub in_flight: u32,
    /// How many connections there may be. Others wait to be accepted.
    pub connections: usize,
    /// Bytes that the calls and answers of all connections may hold, beside 64 KiB for each
    /// connection.
    pub memory: usize,
    /// Bytes of these that one connection may hold.
    pub memory_each: usize,
    /// How long a frame may take to arrive, and an answer to be taken.
    pub stall_timeout: Duration,
    /// How long a connection has to finish its calls when the server stops.
    pub patience: Duration,
    /// The stages between a socket and its calls.
    pub wrap: Arc<Wrap>,
    /// Called when a connection is closed for a reason: garbage, or a client that stalls.
    pub on_closed: Arc<OnClosed>,
}

impl Default for Settings {
    /// The default limits; 1,024 calls of each of 1,000 connections; 256 MiB, of which a connection
    /// gets a quarter; 30 seconds for a frame, five to stop; frames, silence.
    ///
    /// A quarter has room for the longest frame and its answer.
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            in_flight: 1024,
            connections: 1000,
            memory: 256 << 20,
            memory_each: 64 << 20,
            stall_timeout: Duration::from_secs(30),
            patience: Duration::from_secs(5),
            wrap: Arc::new(|from, to, framing| Transport::framed(from, to, framing)),
            on_closed: Arc::new(|_, _| {}),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limits, in_flight, connections, memory, memory_each, .. } = self;
        f.debug_struct("Settings")
            .field("limits", limits)
            .field("in_flight", in_flight)
            .field("connections", connections)
            .field("memory", memory)
            .field("memory_each", memory_each)
            .field("stall_timeout", &self.stall_timeout)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

/// What a server did.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    /// Connections it had.
    pub connections: u64,
    /// Connections it closed for what they sent, or because they stalled.
    pub faulty: u64,
    /// Calls it read.
    pub calls: u64,
    /// Of the answers: `unmatched` and `lost` are those whose connection had gone.
    pub answers: Totals,
}

pub(crate) struct Answer {
    pub(crate) connection: u64,
    pub(crate) frame: Frame,
}

/// Writes answers to one connection.
pub(crate) type Outbox = Pin<Box<dyn Sink<Answer, Error = io::Error> + Send>>;

/// Connections, as the demux and their tasks both know them.
pub(crate) type Peers = Mutex<HashMap<u64, Peer>>;

/// What all connections share.
pub(crate) struct Server<S> {
    pub(crate) service: S,
    pub(crate) settings: Settings,
    pub(crate) memory: Memory,
    pub(crate) orders: UnboundedSender<Attach<u64, Outbox>>,
    pub(crate) answers: mpsc::Sender<Answer>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) stop: CancellationToken,
    pub(crate) calls: AtomicU64,
    pub(crate) faulty: AtomicU64,
}

/// Says to a connection that it gets no more answers.
struct Watch(Arc<Peers>);

impl Hooks<u64, Answer, io::Error> for Watch {
    fn detached(&mut self, to: Recipient<'_, u64>, why: Detached<io::Error>) {
        let peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = peers.get(to.key) {
            peer.leave(matches!(why, Detached::Stalled));
        }
    }
}

/// An endless stream of ticks: the demux has no clock.
fn ticks<K, S>(every: Duration) -> impl Stream<Item = Order<K, S>> {
    let mut interval = interval(every.max(Duration::from_millis(1)));
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    stream::poll_fn(move |cx| interval.poll_tick(cx).map(|_| Some(Order::Tick)))
}

/// Serves all that connect until `stop` is cancelled, then lets the calls that are running finish.
pub async fn serve<S: Service>(
    listener: TcpListener,
    service: S,
    settings: Settings,
    stop: CancellationToken,
) -> Report {
    let (orders, orders_in) = unbounded();
    let orders_in =
        stream::select(orders_in.map(Order::from), ticks(settings.stall_timeout / TICKS));
    let (answers, mut answers_in) = mpsc::channel(INBOX);
    let peers = Arc::<Peers>::default();
    let demux = stream::poll_fn(move |cx| answers_in.poll_recv(cx))
        .demux_by(|answer: &Answer| answer.connection, orders_in)
        .buffer(settings.in_flight as usize)
        // Permits keep a queue within its buffer. Were they wrong, one client would pay, not all.
        .overflow(Overflow::Evict)
        .stall_timeout(TICKS + 1) // at least TICKS: the first tick may come at once
        .hooks(Watch(Arc::clone(&peers)));
    let demux = tokio::spawn(tokio::task::unconstrained(demux));

    let (calls, faulty) = Default::default();
    let memory = Memory::new(settings.memory_each, settings.memory);
    let server = Server { service, settings, memory, orders, answers, peers, stop, calls, faulty };
    let server = Arc::new(server);
    let connections = accept(&listener, &server).await;
    let (calls, faulty) = (server.calls.load(Relaxed), server.faulty.load(Relaxed));
    drop((listener, server)); // and with it the input of the demux
    let answers = match demux.await {
        Ok(totals) => totals,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    };
    Report { connections, faulty, calls, answers }
}

/// Runs connections until the server stops and they have ended. Returns how many there were.
async fn accept<S: Service>(listener: &TcpListener, server: &Arc<Server<S>>) -> u64 {
    let Settings { connections: places, patience, .. } = server.settings;
    let places = Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS)));
    let mut connections = JoinSet::new();
    let mut id = 0;
    loop {
        tokio::select! {
            accepted = async {
                let place = Arc::clone(&places).acquire_owned().await;
                (listener.accept().await, place)
            } => match accepted {
                (Ok((socket, peer)), place) => {
                    let connection = connection::run(Arc::clone(server), socket, peer, id);
                    connections.spawn(async { (connection.await, drop(place)).0 });
                    id += 1;
                }
                // Too many files are open: by then a client may have left.
                (Err(_), _) => sleep(Duration::from_millis(100)).await,
            },
            Some(_) = connections.join_next() => {}
            () = server.stop.cancelled() => break,
        }
    }
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(patience, all).await.is_err() {
        connections.shutdown().await;
    }
    id
}
