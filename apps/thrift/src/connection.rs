//! One connection of a server.
//!
//! 1. A call holds a permit of its connection and memory for its bytes (`memory`) until its answer
//!    is written. If a client does not read its answers, the server stops reading from it; other
//!    clients are not affected.
//! 2. A connection leaves the demux, and its socket is closed, when it sends no more requests and no
//!    call owes an answer that is not yet written (`Owed`). One-way calls owe none.
//! 3. If the server stops, a connection goes on to be read until no call owes an answer. Requests that
//!    arrive meanwhile would be lost otherwise: nothing tells a client that a server does not read any
//!    more, except that the connection ends.
//!    The system may still have answers to send then, and would drop them if a socket was closed on
//!    which a request has arrived. So the connection shuts down its write direction, and reads on until
//!    the client does the same. If its last answer was written a while ago, nothing is left to send.
//! 4. A connection is gone when it was reset, stalled, could not be written to, or sent garbage.
//!    Then its pending calls are dropped, and its socket is closed. One-way calls continue, and
//!    requests that arrived before a reset are still started, because they may be one-way.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::{FutureExt, SinkExt, StreamExt, future};
use stream_demux::{Attach, Lease};
use thrift::protocol::TMessageType;
use thrift::{ApplicationError, ApplicationErrorKind};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinSet, unconstrained};
use tokio::time::timeout;
use tokio_util::bytes::Bytes;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::error::Error;
use crate::memory::Held;
use crate::message::Message;
use crate::server::{Answer, Outbox, Server};
use crate::service::{Request, Service};
use crate::socket::{self, Reading, Writing};
use crate::transport::{Frame, Framing, Incoming, Transport};

/// How many calls of a connection are started at a time. A call that computes takes its turn on a
/// thread of the runtime, which takes turns by calls: one client that sends a thousand calls at once
/// would get a thousand turns before the next client gets one. A call that waits for something else is
/// not counted any more. With fewer than eight, a connection whose calls are short is woken for nearly
/// each of them.
const STARTED: usize = 8;

/// A connection whose last answer was written before this time has nothing left to send.
const SENT: Duration = Duration::from_secs(1);

/// What a connection did last.
#[derive(Debug, Default)]
struct Last {
    /// Since when it has been waiting for a request, while others may be running.
    waiting: Option<Instant>,
    /// When an answer was written, or its call was cancelled.
    answered: Option<Instant>,
}

/// What others know of a connection, and how they end it.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// Cancelled when it gets no more answers.
    gone: CancellationToken,
    stalled: Arc<AtomicBool>,
    /// Cancelled when it is to end: see the third rule above.
    pub(crate) stop: CancellationToken,
    last: Arc<Mutex<Last>>,
    permits: Arc<Semaphore>,
    in_flight: usize,
}

impl Peer {
    pub(crate) fn new(stop: CancellationToken, in_flight: u32) -> Self {
        let in_flight = in_flight as usize;
        let permits = Arc::new(Semaphore::new(in_flight));
        let (gone, stalled, last) = Default::default();
        Self { gone, stalled, stop, last, permits, in_flight }
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns since when it has had no call; `None` while calls are running.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        // A connection that waits for a request holds one permit. Look at the permits first: a call
        // notes that it was answered before it returns its own.
        let is_free = self.permits.available_permits() + 1 == self.in_flight;
        let Last { waiting, answered } = *self.last();
        let since = waiting.filter(|_| is_free && !self.stop.is_cancelled())?;
        Some(answered.map_or(since, |answered| answered.max(since)))
    }

    /// Returns `true` if the system may have an answer that it has not sent yet.
    pub(crate) fn may_send(&self, now: Instant) -> bool {
        let answered = self.last().answered;
        answered.is_some_and(|answered| now.saturating_duration_since(answered) < SENT)
    }

    /// Marks the connection as gone.
    pub(crate) fn leave(&self, stalled: bool) {
        self.stalled.fetch_or(stalled, Relaxed);
        self.gone.cancel(); // `stalled` is stored before and read after the cancellation
    }
}

/// What a call that owes an answer holds until the answer is written.
#[derive(Debug)]
pub(crate) struct Owed {
    last: Arc<Mutex<Last>>,
    _permit: OwnedSemaphorePermit,
    _token: TaskTrackerToken,
}

impl Owed {
    pub(crate) fn new(permit: OwnedSemaphorePermit, by: &Peer, of: &TaskTracker) -> Self {
        Self { last: Arc::clone(&by.last), _permit: permit, _token: of.token() }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).answered = Some(Instant::now());
    }
}

struct Connection<S> {
    server: Arc<Server<S>>,
    id: u64,
    peer: Peer,
    calls: JoinSet<()>,
    /// Has a token for each answer that is owed.
    owed: TaskTracker,
    /// A permit for each call that may be started.
    turns: Arc<Semaphore>,
}

/// Serves a connection until it is closed and its calls have ended.
pub(crate) async fn run<S: Service>(
    server: Arc<Server<S>>,
    socket: TcpStream,
    address: SocketAddr,
    id: u64,
) {
    let _ = socket.set_nodelay(true); // the demux batches answers and flushes them
    socket::keep_alive(&socket);
    let peer = Peer::new(server.stop.child_token(), server.settings.in_flight);
    let peers = Arc::clone(&server.peers);
    peers.lock().unwrap_or_else(PoisonError::into_inner).insert(id, peer.clone());
    let mut connection = Connection {
        server: Arc::clone(&server),
        id,
        peer,
        calls: JoinSet::new(),
        owed: TaskTracker::new(),
        turns: Arc::new(Semaphore::new(STARTED)),
    };
    let end = connection.serve(socket).await;
    peers.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    if let Err(reason) = end {
        server.faulty.fetch_add(1, Relaxed);
        (server.settings.on_closed)(address, &reason);
    }
    while connection.calls.join_next().await.is_some() {}
}

impl<S: Service> Connection<S> {
    /// Returns when the socket is closed. Calls that are still running are one-way, or about to be
    /// cancelled.
    async fn serve(&mut self, socket: TcpStream) -> Result<(), String> {
        let settings = &self.server.settings;
        let memory = &self.server.memory;
        let longest = settings.limits.frame.min(memory.longest());
        let framing = Framing::held(longest, memory.account(), settings.stall_timeout);
        let socket = Arc::new(socket);
        let halves = (Reading(Arc::clone(&socket)), Writing(Arc::clone(&socket)));
        let mut unread = Reading(Arc::clone(&socket));
        let Transport { incoming, outgoing } = (settings.wrap)(halves.0, halves.1, &framing);
        let outbox = outgoing.with(|answer: Answer| future::ready(Ok(answer.frame)));
        let mut lease = Lease::new();
        let attach = Attach::new(self.id, Box::pin(outbox) as Outbox).leased(&mut lease);
        if self.server.orders.unbounded_send(attach).is_err() {
            return Ok(());
        }

        let peer = self.peer.clone();
        let reset = async {
            let _ = socket.ready(Interest::ERROR).await;
            peer.gone.cancel();
            future::pending::<Infallible>().await
        };
        let mut reset = pin!(reset);
        let mut end = tokio::select! {
            end = self.requests(incoming) => end,
            never = &mut reset => match never {},
        };
        if end.is_ok() {
            tokio::select! {
                () = self.finish() => lease.detach(),
                () = peer.gone.cancelled() => {}
                never = &mut reset => match never {},
            }
        }
        if end.is_ok() && self.server.stop.is_cancelled() && peer.may_send(Instant::now()) {
            peer.gone.cancelled().await; // the write direction is shut down
            let _ = tokio::io::copy(&mut unread, &mut tokio::io::sink()).await;
        }
        if peer.stalled.load(Relaxed) {
            let after = self.server.settings.stall_timeout;
            end = end.and(Err(format!("the client read no answers for {after:?}")));
        }
        if end.is_err() {
            peer.gone.cancel();
        }
        end
    }

    /// Waits until every answer that is owed is written.
    async fn finish(&self) {
        self.owed.close();
        self.owed.wait().await;
    }

    /// Reads requests and starts calls until the input ends, the connection is gone, or it is to end.
    async fn requests(&mut self, mut incoming: Incoming) -> Result<(), String> {
        let (peer, gone) = (self.peer.clone(), self.peer.gone.clone());
        let (stop, owed) = (self.peer.stop.clone(), self.owed.clone());
        let mut end = pin!(async move {
            stop.cancelled().await;
            owed.close();
            owed.wait().await;
        });
        loop {
            let permit = tokio::select! {
                permit = Arc::clone(&self.peer.permits).acquire_owned() => permit.ok(),
                () = &mut end => break,
                // Calls with an answer are cancelled. One-way calls may go on and keep their
                // permits.
                () = gone.cancelled() => self.permit_after_reset().await,
                Some(_) = self.calls.join_next() => continue, // frees the task
            };
            let Some(permit) = permit else { break };
            peer.last().waiting = Some(Instant::now());
            let frame = loop {
                tokio::select! {
                    frame = incoming.next() => break frame,
                    // Data received before a reset is still readable, up to the error.
                    () = gone.cancelled() => {
                        break unconstrained(incoming.next()).now_or_never().flatten();
                    }
                    () = &mut end => break None,
                    Some(_) = self.calls.join_next() => {}
                }
            };
            peer.last().waiting = None;
            match frame {
                Some(Ok(frame)) => self.start(frame, permit).await?,
                // Closing a socket that has unread bytes resets the connection. `TZlibTransport`
                // does so, because it leaves the end of a flush unread. It is not an error.
                Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => {
                    gone.cancel();
                    break;
                }
                Some(Err(error)) => return Err(error.to_string()),
                None => break,
            }
        }
        Ok(())
    }

    /// Waits for a permit for a request that arrived before a reset. Returns `None` if the client
    /// has stalled, or if one-way calls hold all permits for longer than `patience`.
    async fn permit_after_reset(&self) -> Option<OwnedSemaphorePermit> {
        if self.peer.stalled.load(Relaxed) {
            return None;
        }
        let permit = Arc::clone(&self.peer.permits).acquire_owned();
        timeout(self.server.settings.patience, permit).await.ok()?.ok()
    }

    async fn start(&mut self, frame: Frame, permit: OwnedSemaphorePermit) -> Result<(), String> {
        let limits = self.server.settings.limits;
        let message =
            Message::open(&frame, &limits).map_err(|error| format!("a request is {error}"))?;
        let one_way = match message.kind {
            TMessageType::Call => false,
            TMessageType::OneWay => true,
            kind => return Err(format!("a request has the message type {kind:?}")),
        };
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        self.server.calls.fetch_add(1, Relaxed);
        let (server, connection) = (Arc::clone(&self.server), self.id);
        let gone = self.peer.gone.clone();
        let mut held = frame.into_held();
        let request = Request::new(message, limits);
        if one_way {
            self.calls.spawn(in_turn(turn, async move {
                let _permit = permit;
                answer(&server.service, request, &mut held).await;
            }));
            return Ok(());
        }
        let owed = Owed::new(permit, &self.peer, &self.owed);
        self.calls.spawn(in_turn(turn, async move {
            let answering = answer(&server.service, request, &mut held);
            let answered = tokio::select! {
                biased; // a call that never waits completes even after a reset
                answered = answering => answered,
                () = gone.cancelled() => None,
            };
            if let Some(bytes) = answered {
                let frame = Frame::holding(bytes, held, owed);
                let _ = server.answers.send(Answer { connection, frame }).await;
            }
        }));
        Ok(())
    }
}

/// Runs a call, whose turn ends when it waits for the first time.
async fn in_turn<T>(turn: T, call: impl Future<Output = ()>) {
    let (mut turn, mut call) = (Some(turn), pin!(call));
    future::poll_fn(|cx| {
        let polled = call.as_mut().poll(cx);
        turn = None;
        polled
    })
    .await;
}

/// Calls the service. Returns the frame of its answer or of the exception that replaces it; `None`
/// for a one-way call.
async fn answer<S: Service>(
    service: &S,
    request: Request,
    held: &mut Option<Held>,
) -> Option<Bytes> {
    let (envelope, limits) = (request.message.head(), request.limits);
    let mut room = |length| held.as_mut().is_none_or(|held| held.answer(length));
    let refused = |what| Error::Refused(ApplicationErrorKind::InternalError, what);
    let panicked = |_| Err(refused("the service panicked".to_owned()));
    let done =
        AssertUnwindSafe(service.call(request)).catch_unwind().await.unwrap_or_else(panicked);
    let error = match done {
        Ok(Some(frame)) if frame.len() > limits.frame => {
            let (length, most) = (frame.len(), limits.frame);
            refused(format!("an answer of {length} bytes, more than {most}"))
        }
        Ok(Some(frame)) if !room(frame.len()) => {
            let length = frame.len();
            refused(format!("no memory is left for an answer of {length} bytes"))
        }
        Ok(frame) => return frame,
        Err(error) => error,
    };
    if envelope.kind == TMessageType::OneWay {
        return None;
    }
    let error = match error {
        Error::Refused(kind, what) => ApplicationError::new(kind, what),
        Error::Malformed(_) => {
            ApplicationError::new(ApplicationErrorKind::ProtocolError, error.to_string())
        }
        _ => ApplicationError::new(ApplicationErrorKind::InternalError, error.to_string()),
    };
    let refusal = envelope.refuse(&error).ok()?;
    room(refusal.len()).then_some(refusal)
}

#[cfg(test)]
impl Peer {
    /// Creates the peer of a connection that waits for a request.
    pub(crate) fn waiting(since: Instant, answered: Option<Instant>) -> Self {
        let peer = Self::new(CancellationToken::new(), 1);
        *peer.last() = Last { waiting: Some(since), answered };
        Arc::clone(&peer.permits).try_acquire_owned().unwrap().forget();
        peer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The connection waits for the next request while a call runs. Counted from there, it would be
    /// idle for as long as the call has taken when its answer is written, and would be closed.
    #[test]
    fn a_connection_is_idle_since_its_last_answer() {
        let peer = Peer::new(CancellationToken::new(), 2);
        let permit = || Arc::clone(&peer.permits).try_acquire_owned().unwrap();
        let call = Owed::new(permit(), &peer, &TaskTracker::new());
        let _of_the_next = permit();
        let connected = Instant::now();
        peer.last().waiting = Some(connected);
        assert_eq!(peer.idle_since(), None);
        assert!(!peer.may_send(connected));
        let before = Instant::now();
        drop(call);
        assert!(peer.idle_since().unwrap() >= before);
        assert!(peer.may_send(before));
    }
}
