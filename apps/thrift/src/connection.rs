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
//!    requests that arrived before a reset are still started, because they may be one-way, for a while
//!    (`Settings::after_reset`) and in the turns that all such connections share. Those whose clients have
//!    shut down their side share them, too, because nearly all of these have left.
//!    When a new connection needs the place or the file, those that have not begun are dropped (`places`).
//! 5. When a connection is closed because others need its memory, its one-way calls are dropped, too,
//!    also if its client had left before. Otherwise they would keep the memory.

use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::{FutureExt, SinkExt, StreamExt, future};
use stream_demux::{Attach, Lease};
use thrift::protocol::TMessageType;
use thrift::{ApplicationError, ApplicationErrorKind};
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinSet, unconstrained};
use tokio::time::timeout;
use tokio_util::bytes::Bytes;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::error::Error;
use crate::fairness::Turns;
use crate::memory::{Account, Held};
use crate::message::Message;
use crate::server::{Answer, Outbox, Server};
use crate::service::{Request, Service};
use crate::socket::{self, Reading, Writing};
use crate::transport::{Frame, Framing, Incoming, Transport};

/// A connection is not idle for this time after something was received or an answer was written: it may
/// be sending the rest of a call, or receiving the rest of an answer.
const ACTIVE: Duration = Duration::from_secs(1);

/// When a connection did something last.
#[derive(Debug, Default, Clone, Copy)]
struct Last {
    /// Since when it has been waiting for a request, while others may be running.
    waiting: Option<Instant>,
    received: Option<Instant>,
    /// When an answer was written, or its call was cancelled.
    answered: Option<Instant>,
    /// When the client has shut down its side.
    ended: Option<Instant>,
    /// A request has arrived in part, and the rest is not read because there is no memory for it.
    needs_memory: bool,
}

/// What those that read, answer and wait note for those that look for idle connections.
#[derive(Debug, Default, Clone)]
pub(crate) struct Activity(Arc<Mutex<Last>>);

impl Activity {
    fn last(&self) -> MutexGuard<'_, Last> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that bytes have arrived.
    pub(crate) fn note_received(&self) {
        self.last().received = Some(Instant::now());
    }

    /// Notes that the client has shut down its side.
    fn note_end(&self) {
        self.last().ended.get_or_insert_with(Instant::now);
    }

    #[cfg(test)]
    pub(crate) fn needs_memory(&self) -> bool {
        self.last().needs_memory
    }

    /// Notes that a request waits for memory, until the returned value is dropped.
    pub(crate) fn wait_for_memory(&self) -> NeedsMemory<'_> {
        self.last().needs_memory = true;
        NeedsMemory(self)
    }
}

/// A request waits for memory.
pub(crate) struct NeedsMemory<'a>(&'a Activity);

impl Drop for NeedsMemory<'_> {
    fn drop(&mut self) {
        let mut last = self.0.last();
        last.needs_memory = false;
        last.received = Some(Instant::now()); // more of it is read now
    }
}

/// Returns `true` if this was less than `ACTIVE` ago.
fn is_recent(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| now.saturating_duration_since(at) < ACTIVE)
}

/// What others know of a connection, and how they end it.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// Cancelled when it gets no more answers.
    gone: CancellationToken,
    stalled: Arc<AtomicBool>,
    /// Cancelled when no more of the calls that a client has left behind are to be begun.
    cut_off: CancellationToken,
    /// Cancelled when it is to end: see the third rule above.
    pub(crate) stop: CancellationToken,
    activity: Activity,
    permits: Arc<Semaphore>,
    in_flight: usize,
    /// How many one-way calls are running.
    one_way: Arc<AtomicUsize>,
}

/// A one-way call is running.
pub(crate) struct OneWay(Arc<AtomicUsize>);

impl OneWay {
    /// Adds it to this count, until it is dropped.
    fn begin(count: Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for OneWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Peer {
    pub(crate) fn new(stop: CancellationToken, in_flight: u32) -> Self {
        let in_flight = in_flight as usize;
        let permits = Arc::new(Semaphore::new(in_flight));
        let (gone, stalled, cut_off, activity, one_way) = Default::default();
        Self { gone, stalled, cut_off, stop, activity, permits, in_flight, one_way }
    }

    /// Returns since when it has neither had a call nor received anything; `None` while calls are
    /// running, or the rest of one is not read.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        // A connection that waits for a request holds one permit. Look at the permits first: a call
        // notes that it was answered before it returns its own.
        let is_free = self.permits.available_permits() + 1 == self.in_flight;
        let last = *self.activity.last();
        last.waiting.filter(|_| is_free && !last.needs_memory && !self.stop.is_cancelled())?;
        last.waiting.max(last.received).max(last.answered)
    }

    /// Returns since when it has been idle, if it may be closed for another one. A client that waits
    /// less than `least` between two calls is not idle.
    pub(crate) fn replaceable_since(&self, least: Duration, now: Instant) -> Option<Instant> {
        let since = self.idle_since()?;
        let Last { received, answered, .. } = *self.activity.last();
        let is_active = is_recent(received.max(answered), now);
        (!is_active && now.saturating_duration_since(since) >= least).then_some(since)
    }

    #[cfg(test)]
    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Returns `true` if its client has shut down its side: it has probably left.
    fn is_closing(&self) -> bool {
        self.activity.last().ended.is_some()
    }

    /// Returns since when its client has shut down its side, if it may be closed for another one although
    /// its calls are running. Its client may still read, but nearly always it has left.
    pub(crate) fn half_closed_since(&self, now: Instant) -> Option<Instant> {
        let ended = self.activity.last().ended.filter(|ended| !is_recent(Some(*ended), now));
        ended.filter(|_| !self.gone.is_cancelled())
    }

    /// Has no more calls begun once its client is gone.
    pub(crate) fn cut_off(&self) {
        self.cut_off.cancel();
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off.is_cancelled()
    }

    #[cfg(test)]
    pub(crate) fn begin_one_way(&self) -> OneWay {
        OneWay::begin(Arc::clone(&self.one_way))
    }

    /// Returns `true` if one-way calls are running: they go on when its client is gone.
    pub(crate) fn has_begun_one_way(&self) -> bool {
        self.one_way.load(Relaxed) > 0
    }

    /// A peer that waits for a request, and whose client may have shut down its side.
    #[cfg(test)]
    pub(crate) fn waiting(since: Instant, ended: Option<Instant>) -> Self {
        let peer = Self::new(CancellationToken::new(), 1);
        Arc::clone(&peer.permits).try_acquire_owned().unwrap().forget();
        *peer.activity.last() = Last { waiting: Some(since), ended, ..Last::default() };
        peer
    }

    /// Returns `true` if the system may have an answer that it has not sent yet.
    fn may_send(&self) -> bool {
        is_recent(self.activity.last().answered, Instant::now())
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
    activity: Activity,
    _permit: OwnedSemaphorePermit,
    _token: TaskTrackerToken,
}

impl Owed {
    pub(crate) fn new(permit: OwnedSemaphorePermit, by: &Peer, of: &TaskTracker) -> Self {
        Self { activity: by.activity.clone(), _permit: permit, _token: of.token() }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.activity.last().answered = Some(Instant::now());
    }
}

/// Returns `true` if the client has shut down its side, although not all that it has sent is read.
fn is_closed_by_client(socket: &TcpStream) -> bool {
    let ready = socket.ready(Interest::READABLE).now_or_never();
    ready.is_some_and(|ready| ready.is_ok_and(Ready::is_read_closed))
}

struct Connection<S> {
    server: Arc<Server<S>>,
    id: u64,
    peer: Peer,
    calls: JoinSet<()>,
    /// Has a token for each answer that is owed.
    owed: TaskTracker,
    turns: Turns,
}

/// A connection that was accepted.
pub(crate) struct Arrived {
    pub(crate) socket: TcpStream,
    pub(crate) address: SocketAddr,
    pub(crate) id: u64,
    pub(crate) peer: Peer,
}

/// Serves a connection until it is closed and its calls have ended.
pub(crate) async fn run<S: Service>(server: Arc<Server<S>>, arrived: Arrived) {
    let Arrived { socket, address, id, peer } = arrived;
    let _ = socket.set_nodelay(true); // the demux batches answers and flushes them
    socket::keep_alive(&socket);
    let mut connection = Connection {
        server: Arc::clone(&server),
        id,
        peer,
        calls: JoinSet::new(),
        owed: TaskTracker::new(),
        turns: Turns::new(&server.threads),
    };
    let end = connection.serve(socket).await;
    server.connections.close(id);
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
        let account = memory.account(self.peer.activity.clone());
        let line = Arc::clone(&self.server.compressing);
        let framing = Framing::held(longest, account.clone(), settings.stall_timeout, line);
        let socket = Arc::new(socket);
        let reading = || Reading::new(Arc::clone(&socket), self.peer.activity.clone());
        let halves = (reading(), Writing(Arc::clone(&socket)));
        let mut unread = reading();
        let Transport { incoming, outgoing } = (settings.wrap)(halves.0, halves.1, &framing);
        let outbox = outgoing.with(|answer: Answer| future::ready(Ok(answer.frame)));
        let mut lease = Lease::new();
        let attach = Attach::new(self.id, Box::pin(outbox) as Outbox).leased(&mut lease);
        if self.server.orders.unbounded_send(attach).is_err() {
            return Ok(());
        }

        let (peer, after_reset) = (self.peer.clone(), settings.after_reset);
        // The runtime tells errors with the next events only. This one may have been reset before. Then
        // what has arrived is readable, as soon as the runtime knows it.
        if socket.take_error().is_ok_and(|error| error.is_some()) {
            let _ = socket.readable().await;
            peer.gone.cancel();
        }
        // Completes when the client has left, and what had arrived before has had its time.
        let (server, id) = (Arc::clone(&self.server), self.id);
        let left = async {
            tokio::select! {
                _ = socket.ready(Interest::ERROR) => peer.gone.cancel(),
                () = peer.gone.cancelled() => {}
            }
            server.connections.leave(id);
            let _ = timeout(after_reset, peer.cut_off.cancelled()).await;
            peer.cut_off();
        };
        let mut left = pin!(left.fuse());
        let closed = || Err(account.end_error().to_string());
        let mut end = tokio::select! {
            biased; // what a reset connection has sent is read in another way
            () = &mut left => Ok(()),
            () = account.ended().cancelled() => closed(),
            end = self.requests(incoming, &socket, &account) => end,
        };
        if end.is_ok() {
            tokio::select! {
                () = self.finish() => lease.detach(),
                () = peer.gone.cancelled() => {}
                () = account.ended().cancelled() => end = closed(),
                () = &mut left => {}
            }
        }
        if end.is_ok() && self.server.stop.is_cancelled() && peer.may_send() {
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
    async fn requests(
        &mut self,
        mut incoming: Incoming,
        socket: &TcpStream,
        account: &Account,
    ) -> Result<(), String> {
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
            peer.activity.last().waiting = Some(Instant::now());
            let frame = loop {
                tokio::select! {
                    frame = incoming.next() => {
                        if frame.is_none() || is_closed_by_client(socket) {
                            peer.activity.note_end();
                        }
                        break frame;
                    }
                    // Data received before a reset is still readable, up to the error.
                    () = gone.cancelled() => {
                        break unconstrained(incoming.next()).now_or_never().flatten();
                    }
                    () = &mut end => break None,
                    Some(_) = self.calls.join_next() => {}
                }
            };
            peer.activity.last().waiting = None;
            match frame {
                Some(Ok(frame)) => self.start(frame, permit, account).await?,
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
    /// has stalled.
    async fn permit_after_reset(&self) -> Option<OwnedSemaphorePermit> {
        if self.peer.stalled.load(Relaxed) {
            return None;
        }
        Arc::clone(&self.peer.permits).acquire_owned().await.ok()
    }

    async fn start(
        &mut self,
        frame: Frame,
        permit: OwnedSemaphorePermit,
        account: &Account,
    ) -> Result<(), String> {
        let limits = self.server.settings.limits;
        let message =
            Message::open(&frame, &limits).map_err(|error| format!("a request is {error}"))?;
        let one_way = match message.kind {
            TMessageType::Call => false,
            TMessageType::OneWay => true,
            kind => return Err(format!("a request has the message type {kind:?}")),
        };
        let gone = self.peer.gone.clone();
        let has_left = gone.is_cancelled() || self.peer.is_closing();
        let turns = if has_left { &self.server.turns_of_gone } else { &self.turns };
        let turn = turns.next(frame.len()).await;
        self.server.calls.fetch_add(1, Relaxed);
        let (server, connection) = (Arc::clone(&self.server), self.id);
        let mut held = frame.into_held();
        let request = Request::new(message, limits);
        if one_way {
            let (evicted, cut_off) = (account.evicted().clone(), self.peer.cut_off.clone());
            let (is_evicted, is_cut_off) = (evicted.clone(), cut_off.cancelled_owned());
            let dropped = async move {
                tokio::select! {
                    () = is_evicted.cancelled() => {}
                    () = is_cut_off => {}
                }
            };
            let one_way = Arc::clone(&self.peer.one_way);
            turn.spawn(&mut self.calls, dropped, async move {
                let _running = (OneWay::begin(one_way), permit);
                tokio::select! {
                    biased;
                    _none = answer(&server.service, request, &mut held) => {}
                    () = evicted.cancelled() => {}
                }
            });
            return Ok(());
        }
        let owed = Owed::new(permit, &self.peer, &self.owed);
        let (turns, is_gone) = (turns.clone(), gone.clone().cancelled_owned());
        let called = Arc::clone(&server);
        let call = async move {
            let bytes = tokio::select! {
                biased; // a call that never waits completes even after a reset
                answered = answer(&called.service, request, &mut held) => answered?,
                () = gone.cancelled() => return None,
            };
            Some(Frame::holding(bytes, held, owed))
        };
        self.calls.spawn(async move {
            let Some((Some(frame), turn)) = turn.run(is_gone, call).await else { return };
            let _turn = match turn {
                Some(turn) => Some(turn),
                None => turns.answer().await,
            };
            let _ = server.answers.send(Answer { connection, frame }).await;
        });
        Ok(())
    }
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
    let panicked = |payload| {
        std::mem::forget(payload); // it may panic when it is dropped
        Err(refused("the service panicked".to_owned()))
    };
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
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    /// The peer of a connection that waits for a request, and the permit of a call.
    fn waiting(since: Instant) -> (Peer, OwnedSemaphorePermit) {
        let peer = Peer::new(CancellationToken::new(), 2);
        let permit = || Arc::clone(&peer.permits).try_acquire_owned().unwrap();
        let of_a_call = permit();
        permit().forget(); // that of the next request
        peer.activity.last().waiting = Some(since);
        (peer, of_a_call)
    }

    /// The connection waits for the next request while a call runs. Counted from there, it would be
    /// idle for as long as the call has taken when its answer is written, and would be closed.
    #[test]
    fn a_connection_is_idle_since_its_last_answer() {
        let connected = Instant::now();
        let (peer, permit) = waiting(connected);
        let call = Owed::new(permit, &peer, &TaskTracker::new());
        assert_eq!(peer.idle_since(), None);
        assert!(!peer.may_send());
        let before = Instant::now();
        drop(call);
        assert!(peer.idle_since().unwrap() >= before);
        assert!(peer.activity.last().answered.unwrap() >= before);
    }

    #[tokio::test]
    async fn a_connection_is_not_idle_while_a_request_arrives() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let (peer, permit) = waiting(Instant::now());
        drop(permit);
        let mut reading = Reading::new(Arc::new(socket), peer.activity.clone());
        assert!(reading.read_u8().now_or_never().is_none());
        assert_eq!(peer.activity.last().received, None);
        for _ in 0..2 {
            let before = Instant::now();
            client.writable().await.unwrap();
            assert_eq!(client.try_write(b"x").unwrap(), 1);
            assert_eq!(reading.read_u8().await.unwrap(), b'x');
            assert!(peer.idle_since().unwrap() >= before);
        }
        let received = peer.activity.last().received;
        drop(client);
        reading.read_u8().await.unwrap_err();
        assert_eq!(peer.activity.last().received, received);
    }

    #[test]
    fn a_connection_whose_request_waits_for_memory_is_not_idle() {
        let (peer, permit) = waiting(Instant::now());
        drop(permit);
        assert!(peer.idle_since().is_some());
        let needs_memory = peer.activity.wait_for_memory();
        assert_eq!(peer.idle_since(), None);
        let before = Instant::now();
        drop(needs_memory);
        assert!(peer.idle_since().unwrap() >= before, "it is to be read now");
    }

    #[test]
    fn a_connection_is_closed_for_another_one_if_it_has_done_nothing_for_a_while() {
        let connected = Instant::now();
        let (peer, permit) = waiting(connected);
        let after = |millis| connected + Duration::from_millis(millis);
        let is_replaceable = |millis| {
            let since = peer.replaceable_since(Duration::from_millis(100), after(millis));
            assert!(since.is_none() || since == peer.idle_since());
            since.is_some()
        };
        assert!(!is_replaceable(5000), "a call is running");
        drop(permit);
        assert!(!is_replaceable(99));
        assert!(is_replaceable(100));
        peer.activity.last().received = Some(after(2000));
        assert!(!is_replaceable(2999));
        assert!(is_replaceable(3000));
        peer.activity.last().answered = Some(after(5000));
        assert!(!is_replaceable(5999));
        assert!(is_replaceable(6000));
        peer.activity.last().waiting = Some(after(5950)); // a one-way call
        assert!(!is_replaceable(6000));
        assert!(is_replaceable(6050));
        peer.stop.cancel();
        assert!(!is_replaceable(9000), "it is being closed");
    }
}
