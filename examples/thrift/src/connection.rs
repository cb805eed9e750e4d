//! One connection of a server.
//!
//! 1. A call holds a permit of its connection, and room for its bytes (`memory`), until its answer
//!    is written. A client that does not read its answers is not read from, and no other waits for
//!    it.
//! 2. A connection leaves the demux when it has all its permits back: then no answer is on its way.
//! 3. A connection is gone when it was reset, or gets no more answers: because it stalled, could
//!    not be written to, or sent garbage. Then its calls are dropped where they wait, and its
//!    socket is closed. One-way calls go on, and what had arrived before a reset is begun: no
//!    answer to it was due.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::{FutureExt, SinkExt, StreamExt, future};
use socket2::{SockRef, TcpKeepalive};
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

use crate::error::Error;
use crate::memory::Held;
use crate::message::Message;
use crate::server::{Answer, Outbox, Server};
use crate::service::{Request, Service};
use crate::socket::{Reading, Writing};
use crate::transport::{Frame, Framing, Incoming, Transport};

/// A client that has vanished without a word is noticed after a few of these: its calls are
/// dropped.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Whether a connection gets answers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Peer {
    gone: CancellationToken,
    stalled: Arc<AtomicBool>,
}

impl Peer {
    /// The connection gets no more answers.
    pub(crate) fn leave(&self, stalled: bool) {
        self.stalled.fetch_or(stalled, Relaxed);
        self.gone.cancel(); // what was stored before is seen after this
    }
}

struct Connection<S> {
    server: Arc<Server<S>>,
    id: u64,
    peer: Peer,
    permits: Arc<Semaphore>,
    calls: JoinSet<()>,
}

/// Serves a client until its connection is closed and its calls have ended.
pub(crate) async fn run<S: Service>(
    server: Arc<Server<S>>,
    socket: TcpStream,
    address: SocketAddr,
    id: u64,
) {
    let _ = socket.set_nodelay(true); // the demux knows better what to send together
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    let _ = SockRef::from(&socket).set_tcp_keepalive(&keepalive);
    let peer = Peer::default();
    let peers = Arc::clone(&server.peers);
    peers.lock().unwrap_or_else(PoisonError::into_inner).insert(id, peer.clone());
    let permits = Arc::new(Semaphore::new(server.settings.in_flight as usize));
    let calls = JoinSet::new();
    let mut connection = Connection { server: Arc::clone(&server), id, peer, permits, calls };
    let end = connection.serve(socket).await;
    peers.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    if let Err(reason) = end {
        server.faulty.fetch_add(1, Relaxed);
        (server.settings.on_closed)(address, &reason);
    }
    while connection.calls.join_next().await.is_some() {}
}

impl<S: Service> Connection<S> {
    /// Returns when the socket is closed. Calls that are left are one-way, or end by themselves.
    async fn serve(&mut self, socket: TcpStream) -> Result<(), String> {
        let settings = &self.server.settings;
        let memory = &self.server.memory;
        let longest = settings.limits.frame.min(memory.longest());
        let framing = Framing::held(longest, memory.account(), settings.stall_timeout);
        let socket = Arc::new(socket);
        let halves = (Reading(Arc::clone(&socket)), Writing(Arc::clone(&socket)));
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
        if peer.stalled.load(Relaxed) {
            let after = self.server.settings.stall_timeout;
            end = end.and(Err(format!("it took no answer for {after:?}")));
        }
        if end.is_err() {
            peer.gone.cancel();
        }
        end
    }

    /// Waits until every call is answered, and every answer written.
    async fn finish(&mut self) {
        while self.calls.join_next().await.is_some() {}
        let _ = self.permits.acquire_many(self.server.settings.in_flight).await;
    }

    /// Starts calls until the client sends no more, is gone, or the server stops.
    async fn requests(&mut self, mut incoming: Incoming) -> Result<(), String> {
        let (server, gone) = (Arc::clone(&self.server), self.peer.gone.clone());
        loop {
            let permit = tokio::select! {
                permit = Arc::clone(&self.permits).acquire_owned() => permit.ok(),
                () = server.stop.cancelled() => break,
                // Calls end that were to be answered. One-way calls may not.
                () = gone.cancelled() => self.permit_at_last().await,
                Some(_) = self.calls.join_next() => continue, // a call that has ended is freed
            };
            let Some(permit) = permit else { break };
            let frame = loop {
                tokio::select! {
                    frame = incoming.next() => break frame,
                    // What came before a reset is still there: it ends with the error.
                    () = gone.cancelled() => {
                        break unconstrained(incoming.next()).now_or_never().flatten();
                    }
                    () = server.stop.cancelled() => break None,
                    Some(_) = self.calls.join_next() => {}
                }
            };
            match frame {
                Some(Ok(frame)) => self.start(frame, permit)?,
                // A client that leaves bytes unread when it closes, as one with `TZlibTransport`
                // does the end of a flush, resets the connection. It has gone, and that is no
                // fault.
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

    /// A permit for what came before a reset, unless one-way calls keep all of them for too long.
    async fn permit_at_last(&self) -> Option<OwnedSemaphorePermit> {
        if self.peer.stalled.load(Relaxed) {
            return None;
        }
        let permit = Arc::clone(&self.permits).acquire_owned();
        timeout(self.server.settings.patience, permit).await.ok()?.ok()
    }

    fn start(&mut self, frame: Frame, permit: OwnedSemaphorePermit) -> Result<(), String> {
        let limits = self.server.settings.limits;
        let message =
            Message::open(&frame, &limits).map_err(|error| format!("a request is {error}"))?;
        let one_way = match message.kind {
            TMessageType::Call => false,
            TMessageType::OneWay => true,
            kind => return Err(format!("a request is of the kind {kind:?}")),
        };
        self.server.calls.fetch_add(1, Relaxed);
        let (server, connection) = (Arc::clone(&self.server), self.id);
        let gone = self.peer.gone.clone();
        let mut held = frame.into_held();
        let request = Request::new(message, limits);
        self.calls.spawn(async move {
            let answering = answer(&server.service, request, &mut held);
            if one_way {
                answering.await;
                return;
            }
            let answered = tokio::select! {
                biased; // so that a call that does not wait is made, reset or not
                answered = answering => answered,
                () = gone.cancelled() => None,
            };
            if let Some(bytes) = answered {
                let frame = Frame::holding(bytes, held, permit);
                let _ = server.answers.send(Answer { connection, frame }).await;
            }
        });
        Ok(())
    }
}

/// The answer of the service, or that there is none and why.
async fn answer<S: Service>(
    service: &S,
    request: Request,
    held: &mut Option<Held>,
) -> Option<Bytes> {
    let (envelope, limits) = (request.message.head(), request.limits);
    let mut room = |length| held.as_mut().is_none_or(|held| held.answer(length));
    let refused = |what| Error::Refused(ApplicationErrorKind::InternalError, what);
    let panicked = |_| Err(refused("it panicked".to_owned()));
    let done =
        AssertUnwindSafe(service.call(request)).catch_unwind().await.unwrap_or_else(panicked);
    let error = match done {
        Ok(Some(frame)) if frame.len() > limits.frame => {
            let (length, most) = (frame.len(), limits.frame);
            refused(format!("an answer of {length} bytes, more than {most}"))
        }
        Ok(Some(frame)) if !room(frame.len()) => {
            let length = frame.len();
            refused(format!("an answer of {length} bytes, for which there is no room"))
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
