//! The server: calls of all connections run concurrently, and answers are written as they complete.
//!
//! This module accepts connections and runs the demux that routes each answer to its connection.
//! `connection` handles one connection, `memory` limits what all of them may hold. A connection
//! whose client reads no answers fails (`frame`). The demux's stall time-out is not used: it counts
//! operations of a sink, and the client may read one long answer for longer.

use std::fmt;
use std::future;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::{Sink, stream};
use stream_demux::{Attach, DemuxStreamExt, Detached, Hooks, Overflow, Recipient, Totals};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::connection::{self, Arrived, Peer};
use crate::fairness::{Threads, Turns};
use crate::memory::Memory;
use crate::message::Limits;
use crate::panics::contain;
use crate::places::{Connections, LOOK, Lack, Room, Seat};
use crate::service::{Answering, Service};
use crate::socket::{Reading, Writing, limit_unsent};
use crate::transport::{Frame, Framing, Transport};

/// Capacity of the queue of answers between the calls and the demux.
const INBOX: usize = 1024;

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
    /// Connections of which this is true are limited by the same number. Further ones keep their places
    /// until their calls end, or until another connection needs the place and none of the calls is running
    /// yet: then they are dropped. A service should limit how long a one-way call may take.
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
    pub patience: Duration,
    /// How long calls are started that had arrived before their client reset the connection. They may be
    /// one-way calls, which the client wants executed. Meanwhile the connection has no place, but an open
    /// file.
    pub after_reset: Duration,
    /// Creates the stages between a socket and its calls.
    pub wrap: Arc<Wrap>,
    /// Called with the reason when the server closes a connection because of invalid input or a
    /// stalled client, or because others need the memory that it holds. Clients can cause thousands of
    /// calls in a second. It must not block: it is called on a thread of the runtime.
    pub on_closed: Arc<OnClosed>,
    /// Called, at most once in a minute, with the error when a connection cannot be accepted. At the
    /// limit of open files, another connection is closed: one that was reset and is still read; if there
    /// is none, one as when all places are taken. It must not block.
    pub on_accept_error: Arc<OnAcceptError>,
}

impl Default for Settings {
    /// Default limits; 1,024 calls for each of 1,000 connections; 256 MiB, of which a connection
    /// may use a quarter; 30 seconds for a frame; five minutes without a call; five seconds to stop,
    /// and for what arrived before a reset; framing without other stages; an `on_closed` and an
    /// `on_accept_error` that do nothing.
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
            after_reset: Duration::from_secs(5),
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
            .field("after_reset", &self.after_reset)
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

/// State shared by all connections.
pub(crate) struct Server<S> {
    pub(crate) service: S,
    pub(crate) settings: Settings,
    pub(crate) memory: Memory,
    pub(crate) threads: Threads,
    /// Its permit is that of the connection that compresses a long answer at the moment: see `pace`.
    pub(crate) compressing: Arc<Semaphore>,
    /// Those of all connections whose clients are gone. Otherwise, a client that reset one connection
    /// after another would have more turns than others.
    pub(crate) turns_of_gone: Turns,
    pub(crate) orders: UnboundedSender<Attach<u64, Outbox>>,
    pub(crate) answers: mpsc::Sender<Answer>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) stop: CancellationToken,
    pub(crate) calls: AtomicU64,
    pub(crate) faulty: AtomicU64,
}

/// Hooks that notify a connection when its sink is detached.
struct Watch(Arc<Connections>);

impl Hooks<u64, Answer, io::Error> for Watch {
    fn detached(&mut self, to: Recipient<'_, u64>, why: Detached<io::Error>) {
        // An error of the system has a code. Of the others, only that of a stall is a time-out.
        let has_stalled = match why {
            Detached::Failed(error) => {
                error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none()
            }
            _ => false,
        };
        self.0.with(*to.key, |peer| peer.leave(has_stalled));
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
    let connections = Arc::new(Connections::new(settings.connections));
    let demux = stream::poll_fn(move |cx| answers_in.poll_recv(cx))
        .demux_by(|answer: &Answer| answer.connection, orders_in)
        .buffer(settings.in_flight as usize)
        // Permits keep each queue within its buffer. If they failed to, only this connection would
        // be closed.
        .overflow(Overflow::Evict)
        .hooks(Watch(Arc::clone(&connections)));
    // With 200 busy clients, 15,000 answers share the flushes. If each is computed in a tenth of a
    // millisecond, these would take 1.5 seconds, unless time counts.
    let (mut demux, mut last) = (Box::pin(demux), Instant::now());
    let demux = tokio::spawn(future::poll_fn(move |cx| {
        let now = Instant::now();
        demux.as_mut().elapse(now - mem::replace(&mut last, now));
        demux.as_mut().poll(cx)
    }));

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
        compressing: Arc::new(Semaphore::new(1)),
        turns_of_gone,
        orders,
        answers,
        connections,
        stop,
        calls,
        faulty,
    });
    let accepted = accept(listener, &server).await;
    let (calls, faulty) = (server.calls.load(Relaxed), server.faulty.load(Relaxed));
    drop(server); // this ends the input of the demux
    let answers = match demux.await {
        Ok(totals) => totals,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    };
    Report { connections: accepted, faulty, calls, answers }
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
    let (mut tasks, mut newcomer, mut id) = (JoinSet::new(), None, 0);
    let connections = &server.connections;
    let (mut room, mut files) = (Room::new(Lack::Place), Room::new(Lack::File));
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
                    if places.available_permits() == 0 {
                        let now = Instant::now();
                        room.make(connections, looks.are_in_time(now), now);
                    }
                }
                // The error remains for a while. It is tried again when a connection has ended, and
                // at the next look.
                Err(error) => {
                    may_accept = false;
                    if is_out_of_files(&error) {
                        let now = Instant::now();
                        files.make(connections, looks.are_in_time(now), now);
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
                if let Some((socket, address)) = newcomer.take() {
                    limit_unsent(&socket);
                    let peer = Peer::new(server.stop.child_token(), server.settings.in_flight);
                    let seat = place.ok().map(|place| {
                        Seat::take(Arc::clone(connections), id, peer.clone(), place)
                    });
                    let arrived = Arrived { socket, address, id, peer };
                    let connection = connection::run(Arc::clone(server), arrived);
                    tasks.spawn(async {
                        let _seat = seat;
                        connection.await;
                    });
                    id += 1;
                }
            }
            _ = look.tick() => {
                may_accept = true;
                server.memory.tick();
                room.forget();
                files.forget();
                let now = Instant::now();
                let is_in_time = looks.note(now);
                if let Some(least) = idle_timeout
                    && is_in_time
                {
                    connections.close_idle(least);
                }
                // The newcomer may have been accepted just now, while places are free.
                if newcomer.is_some() && places.available_permits() == 0 {
                    room.make(connections, is_in_time, now);
                }
            }
            Some(_) = tasks.join_next() => may_accept = true,
            () = server.stop.cancelled() => break,
        }
    }
    // A client that connects now is refused, and tries another server at once.
    drop((listener, newcomer));
    let all = async { while tasks.join_next().await.is_some() {} };
    if timeout(patience, all).await.is_err() {
        tasks.shutdown().await;
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
