//! The server: calls of all connections run concurrently, and answers are written as they complete.
//!
//! This module accepts connections and runs the demux that routes each answer to its connection.
//! `connection` handles one connection, `memory` limits what all of them may hold. A connection
//! whose client reads no answers fails (`frame`). The demux's stall time-out is not used: it counts
//! operations of a sink, and the client may read one long answer for longer.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::{Sink, stream};
use stream_demux::{Attach, DemuxStreamExt, Detached, Hooks, Overflow, Recipient, Totals};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::connection::{self, Peer};
use crate::fairness::{Threads, Turns};
use crate::memory::Memory;
use crate::message::Limits;
use crate::panics::contain;
use crate::service::{Answering, Service};
use crate::socket::{Reading, Writing, limit_unsent};
use crate::transport::{Frame, Framing, Transport};

/// Capacity of the queue of answers between the calls and the demux.
const INBOX: usize = 1024;

/// How often idle connections are looked for. A time-out may take that much longer.
const LOOK: Duration = Duration::from_millis(100);

type Wrap = dyn Fn(Reading, Writing, &Framing) -> Transport + Send + Sync;
type OnClosed = dyn Fn(SocketAddr, &str) + Send + Sync;
type OnAcceptError = dyn Fn(&io::Error) + Send + Sync;

/// How often the same trouble with new connections is reported: at the limit of open files, each
/// new connection may meet it.
const REPORT: Duration = Duration::from_secs(60);

/// Settings of a server.
#[derive(Clone)]
pub struct Settings {
    /// Limits for requests and answers.
    pub limits: Limits,
    /// Limit of calls per connection that are running, or answered but not yet written. At least 1.
    pub in_flight: u32,
    /// Limit of concurrent connections. When all places are taken, one whose client has shut down its
    /// side a second ago is closed for another one, with its calls; if there is none, the connection that
    /// has been idle for longest. A connection is idle if no call is running or waits for memory, and it
    /// has neither received anything nor been answered for a second; or if it has sent nothing for 100 ms
    /// since it was accepted. If none is idle, the new one waits. At least 1.
    ///
    /// A connection has its place until its client has reset it, or its socket is closed. A client that
    /// has closed its side may still read, so the server then closes the socket when no call owes an
    /// answer. One-way calls may still be running, and are dropped only when others need their memory.
    /// Connections of which this is true are limited by the same number; further ones keep their places
    /// until their calls end. A service should limit how long a one-way call may take.
    pub connections: usize,
    /// Memory limit for the calls and answers of all connections, in bytes, in addition to 64 KiB
    /// for each connection. A connection may hold half as much of it as it leaves free, and is closed
    /// when its calls have held more than an equal part for ten seconds and others need less. A frame
    /// has at most 9/32 of it, and longer ones are refused.
    pub memory: usize,
    /// Memory limit for each connection, in bytes.
    pub memory_each: usize,
    /// How long a frame may take to arrive, how long a client that has answers to read may read
    /// nothing, and how long a frame that has arrived in part waits for memory.
    ///
    /// A client reads if its system accepts bytes. When its receive buffer is full, most systems
    /// accept more in steps of a sixteenth of the buffer or so.
    pub stall_timeout: Duration,
    /// How long a connection may be idle, that is, without a call, since something was received or an
    /// answer was written; `None` if all clients are known.
    ///
    /// A call that is on its way when its connection is closed fails. Let this time be longer than the
    /// pauses of clients that call at intervals.
    pub idle_timeout: Option<Duration>,
    /// How long connections may take to finish their calls when the server stops. New connections are
    /// refused meanwhile. A connection is closed as soon as no call owes an answer; until then, further
    /// calls on it are answered. If an answer was written in the last second, its write direction is
    /// shut down first, and it is closed when the client closes it. One-way calls go on when it is closed.
    ///
    /// Also how long calls are started that had arrived before their client reset its connection.
    pub patience: Duration,
    /// Creates the stages between a socket and its calls.
    pub wrap: Arc<Wrap>,
    /// Called with the reason when the server closes a connection because of invalid input or a
    /// stalled client, or because others need the memory that it holds. Clients can cause thousands of
    /// calls in a second. It must not block: it is called on a thread of the runtime.
    pub on_closed: Arc<OnClosed>,
    /// Called, at most once in a minute, with the error when a connection cannot be accepted. At the
    /// limit of open files, the connection that has been idle for longest is closed. It must not block.
    pub on_accept_error: Arc<OnAcceptError>,
}

impl Default for Settings {
    /// Default limits; 1,024 calls for each of 1,000 connections; 256 MiB, of which a connection
    /// may use a quarter; 30 seconds for a frame; five minutes without a call; five seconds to
    /// stop; framing without other stages; an `on_closed` and an `on_accept_error` that do nothing.
    ///
    /// A quarter of the memory is enough for the longest frame and its answer.
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            in_flight: 1024,
            connections: 1000,
            memory: 256 << 20,
            memory_each: 64 << 20,
            stall_timeout: Duration::from_secs(30),
            idle_timeout: Some(Duration::from_secs(300)),
            patience: Duration::from_secs(5),
            wrap: Arc::new(|from, to, framing| Transport::framed(from, to, framing)),
            on_closed: Arc::new(|_, _| {}),
            on_accept_error: Arc::new(|_| {}),
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
            .field("idle_timeout", &self.idle_timeout)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

/// Counters of a server.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    /// Connections that were accepted.
    pub connections: u64,
    /// Connections that were closed because of invalid input or a stall.
    pub faulty: u64,
    /// Calls that were started.
    pub calls: u64,
    /// Totals of the demux of answers. `unmatched` and `lost` count answers to closed connections.
    pub answers: Totals,
}

pub(crate) struct Answer {
    pub(crate) connection: u64,
    pub(crate) frame: Frame,
}

/// Writes answers to one connection.
pub(crate) type Outbox = Pin<Box<dyn Sink<Answer, Error = io::Error> + Send>>;

/// The connections, shared by the demux and their tasks.
pub(crate) type Peers = Mutex<Table>;

/// The connections by their ids, and the places that they take.
#[derive(Debug)]
pub(crate) struct Table {
    peers: HashMap<u64, Peer>,
    places: HashMap<u64, OwnedSemaphorePermit>,
    /// Ends the reading of what had arrived from clients that are gone. The first one is the oldest.
    leaving: BTreeMap<u64, CancellationToken>,
    /// Places of connections whose clients are gone, but whose one-way calls are running.
    outlasting: Arc<Semaphore>,
}

impl Table {
    fn new(outlasting: usize) -> Self {
        let outlasting = Arc::new(Semaphore::new(outlasting));
        let (peers, places, leaving) = Default::default();
        Self { peers, places, leaving, outlasting }
    }

    pub(crate) fn insert(&mut self, id: u64, peer: Peer) {
        self.peers.insert(id, peer);
    }

    /// Notes that a client is gone, and frees its place. Returns a token that is cancelled when no more of
    /// what it had sent is to be read.
    pub(crate) fn leave(&mut self, id: u64) -> CancellationToken {
        let token = self.leaving.remove(&id).unwrap_or_default();
        self.remove(&id);
        self.leaving.insert(id, token.clone());
        token
    }

    /// Closes a connection whose client is taken to be gone, and reads no more from it.
    fn drop_half_closed(&mut self, id: u64) {
        self.leaving.entry(id).or_default().cancel();
        if let Some(peer) = self.peers.get(&id) {
            peer.leave(false);
        }
    }

    /// Removes a connection whose client is gone, or whose socket is closed. Its place is free at once,
    /// unless too many that were removed before have calls that are still running.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "its caller knows it as a map")]
    pub(crate) fn remove(&mut self, id: &u64) {
        self.peers.remove(id);
        self.leaving.remove(id);
        if let Some(place) = self.places.get_mut(id)
            && let Ok(other) = Arc::clone(&self.outlasting).try_acquire_owned()
        {
            *place = other;
        }
    }
}

/// Takes a place for a connection, until its task ends.
struct Seat {
    peers: Arc<Peers>,
    id: u64,
}

impl Seat {
    fn take(peers: Arc<Peers>, id: u64, place: OwnedSemaphorePermit) -> Self {
        lock(&peers).places.insert(id, place);
        Self { peers, id }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut peers = lock(&self.peers);
        peers.peers.remove(&self.id); // is left there by a connection that panicked
        peers.leaving.remove(&self.id);
        peers.places.remove(&self.id);
    }
}

pub(crate) fn lock(peers: &Peers) -> MutexGuard<'_, Table> {
    peers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State shared by all connections.
pub(crate) struct Server<S> {
    pub(crate) service: S,
    pub(crate) settings: Settings,
    pub(crate) memory: Memory,
    pub(crate) threads: Threads,
    /// Those of all connections whose clients are gone. Otherwise, a client that reset one connection
    /// after another would have more turns than others.
    pub(crate) turns_of_gone: Turns,
    pub(crate) orders: UnboundedSender<Attach<u64, Outbox>>,
    pub(crate) answers: mpsc::Sender<Answer>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) stop: CancellationToken,
    pub(crate) calls: AtomicU64,
    pub(crate) faulty: AtomicU64,
}

/// Hooks that notify a connection when its sink is detached.
struct Watch(Arc<Peers>);

impl Hooks<u64, Answer, io::Error> for Watch {
    fn detached(&mut self, to: Recipient<'_, u64>, why: Detached<io::Error>) {
        let table = lock(&self.0);
        // An error of the system has a code. Of the others, only that of a stall is a time-out.
        let has_stalled = match why {
            Detached::Failed(error) => {
                error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none()
            }
            _ => false,
        };
        if let Some(peer) = table.peers.get(to.key) {
            peer.leave(has_stalled);
        }
    }
}

/// Serves connections until `stop` is cancelled, then lets running calls finish, at most for
/// [`Settings::patience`].
pub async fn serve<S: Service>(
    listener: TcpListener,
    service: S,
    mut settings: Settings,
    stop: CancellationToken,
) -> Report {
    settings.connections = settings.connections.clamp(1, Semaphore::MAX_PERMITS);
    settings.in_flight = settings.in_flight.max(1);
    let (orders, orders_in) = unbounded();
    let (answers, mut answers_in) = mpsc::channel(INBOX);
    let peers = Arc::new(Mutex::new(Table::new(settings.connections)));
    let demux = stream::poll_fn(move |cx| answers_in.poll_recv(cx))
        .demux_by(|answer: &Answer| answer.connection, orders_in)
        .buffer(settings.in_flight as usize)
        // Permits keep each queue within its buffer. If they failed to, only this connection would
        // be closed.
        .overflow(Overflow::Evict)
        .hooks(Watch(Arc::clone(&peers)));
    let demux = tokio::spawn(demux);

    let (calls, faulty) = Default::default();
    let memory = Memory::new(settings.memory_each, settings.memory, settings.limits.frame);
    let service = Answering(service);
    let threads = Threads::new();
    let turns_of_gone = Turns::new(&threads);
    let server = Arc::new(Server {
        service,
        settings,
        memory,
        threads,
        turns_of_gone,
        orders,
        answers,
        peers,
        stop,
        calls,
        faulty,
    });
    let connections = accept(listener, &server).await;
    let (calls, faulty) = (server.calls.load(Relaxed), server.faulty.load(Relaxed));
    drop(server); // this ends the input of the demux
    let answers = match demux.await {
        Ok(totals) => totals,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    };
    Report { connections, faulty, calls, answers }
}

/// Closes the connections that have been idle for this long.
fn close_idle(peers: &Peers, least: Duration) {
    for peer in lock(peers).peers.values() {
        if peer.idle_since().is_some_and(|since| since.elapsed() >= least) {
            peer.stop.cancel();
        }
    }
}

/// Closes the connection of a client that is gone, if there is one that is still read.
fn close_leaving(peers: &Peers) -> bool {
    let oldest = lock(peers).leaving.pop_first();
    oldest.is_some_and(|(_, token)| {
        token.cancel();
        true
    })
}

/// Closes the connection whose client has shut down its side first, although its calls may be running.
fn close_half_closed(peers: &Peers) -> bool {
    let (mut table, now) = (lock(peers), Instant::now());
    let all = table.peers.iter();
    let half_closed = all.filter_map(|(id, peer)| Some((peer.half_closed_since(now)?, *id))).min();
    half_closed.is_some_and(|(_, id)| {
        table.drop_half_closed(id);
        true
    })
}

/// Closes the connection that has been idle for longest, if one may be closed for another one.
fn close_longest_idle(peers: &Peers) {
    let (table, now) = (lock(peers), Instant::now());
    let all = table.peers.values();
    let may_close = all.filter_map(|peer| Some((peer.replaceable_since(LOOK, now)?, peer)));
    if let Some((_, peer)) = may_close.min_by_key(|(since, _)| *since) {
        peer.stop.cancel();
    }
}

/// When idle connections are looked for. After a pause of the process, all connections seem idle,
/// and their requests are in the sockets: they are read until the next look.
struct Looks {
    last: Instant,
    is_late: bool,
}

impl Looks {
    /// Notes a look. Returns `true` if it was in time; only one in a row is not.
    fn note(&mut self, now: Instant) -> bool {
        self.is_late = !self.is_late && self.is_overdue(now);
        self.last = now;
        !self.is_late
    }

    /// Returns `true` if connections can be judged now, between two looks.
    fn are_in_time(&self, now: Instant) -> bool {
        !self.is_late && !self.is_overdue(now)
    }

    fn is_overdue(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) > 3 * LOOK
    }
}

/// Returns `true` if the process or the system has too many open files.
fn is_out_of_files(error: &io::Error) -> bool {
    const ENFILE: i32 = 23; // these are the same on all Unix systems
    const EMFILE: i32 = 24;
    cfg!(unix) && matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

/// Runs connections until the server stops and they have ended. Returns the number of connections.
async fn accept<S: Service>(listener: TcpListener, server: &Arc<Server<S>>) -> u64 {
    let Settings { connections: places, idle_timeout, patience, .. } = server.settings;
    let places = Arc::new(Semaphore::new(places));
    let (mut connections, mut newcomer, mut id) = (JoinSet::new(), None, 0);
    let mut may_accept = true;
    let mut reported: Option<Instant> = None;
    let mut looks = Looks { last: Instant::now(), is_late: false };
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            accepted = listener.accept(), if newcomer.is_none() && may_accept => match accepted {
                Ok(accepted) => {
                    newcomer = Some(accepted);
                    if places.available_permits() == 0
                        && !close_half_closed(&server.peers)
                        && looks.are_in_time(Instant::now())
                    {
                        close_longest_idle(&server.peers);
                    }
                }
                // The error remains for a while. It is tried again when a connection has ended, and
                // at the next look.
                Err(error) => {
                    may_accept = false;
                    if is_out_of_files(&error) && !close_leaving(&server.peers) {
                        close_longest_idle(&server.peers);
                    }
                    if reported.is_none_or(|at| at.elapsed() >= REPORT) {
                        reported = Some(Instant::now());
                        // If it panics, the connections are served nevertheless.
                        let report = || (server.settings.on_accept_error)(&error);
                        contain(report);
                    }
                }
            },
            place = Arc::clone(&places).acquire_owned(), if newcomer.is_some() => {
                if let Some((socket, peer)) = newcomer.take() {
                    limit_unsent(&socket);
                    let seat = place.ok().map(|place| {
                        Seat::take(Arc::clone(&server.peers), id, place)
                    });
                    let connection = connection::run(Arc::clone(server), socket, peer, id);
                    connections.spawn(async {
                        let _seat = seat;
                        connection.await;
                    });
                    id += 1;
                }
            }
            _ = look.tick() => {
                may_accept = true;
                server.memory.tick();
                // The newcomer may have been accepted just now, while places are free.
                let needs_place = newcomer.is_some() && places.available_permits() == 0;
                let has_place = needs_place && close_half_closed(&server.peers);
                if !looks.note(Instant::now()) {
                    continue;
                }
                if let Some(least) = idle_timeout {
                    close_idle(&server.peers, least);
                }
                if needs_place && !has_place {
                    close_longest_idle(&server.peers);
                }
            }
            Some(_) = connections.join_next() => may_accept = true,
            () = server.stop.cancelled() => break,
        }
    }
    // A client that connects now is refused, and tries another server at once.
    drop((listener, newcomer));
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(patience, all).await.is_err() {
        connections.shutdown().await;
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_pause_no_connection_is_judged_before_the_second_look() {
        let begun = Instant::now();
        let at = |millis| begun + Duration::from_millis(millis);
        let mut looks = Looks { last: begun, is_late: false };
        assert!(looks.note(at(100)) && looks.note(at(250)));
        assert!(looks.are_in_time(at(260)));
        // A connection is accepted before the look that is due.
        assert!(!looks.are_in_time(at(2000)));
        assert!(!looks.note(at(2000)));
        assert!(!looks.are_in_time(at(2050)));
        assert!(looks.note(at(2100)) && looks.are_in_time(at(2150)));
        // A runtime that is always late nevertheless makes room.
        assert!(!looks.note(at(4000)) && looks.note(at(6000)) && !looks.note(at(8000)));
    }
}
