//! The writing half of one WebSocket, shared by all subscriptions of a client.
//!
//! A [`Subscription`] is the sink that is attached to the demux. All subscriptions of a client
//! write to its WebSocket directly. There is no queue in between, so the readiness, queues and
//! overflow policies of the demux are the only ones. The socket keeps a copy of each sent message
//! until a flush succeeds, and settles it then, whichever task has flushed.
//!
//! The task of the demux writes to the sockets of all clients. A panic in what it does for one of them
//! ends that client only ([`contain`]).
//!
//! Several tasks poll one socket, which remembers one waker. [`Waiting`] is that waker and wakes
//! all registered tasks.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, Wake, Waker, ready};

use axum::extract::ws::{Message as Frame, WebSocket};
use futures::{Sink, SinkExt, StreamExt, future};
use stream_demux::Discarded;

use crate::http::WRITE_BUFFER;
use crate::lock::Lock;
use crate::message::Message;
use crate::subscription::{Next, Pace, Replay, Share, Terms};

/// Missed messages that are sent before other tasks get a turn.
const PIECE: usize = 64;

/// The WebSocket of a client.
pub struct Outlet {
    socket: Lock<Socket>,
    waiting: Arc<Waiting>,
}

struct Socket {
    /// `None` once the connection is closed.
    web: Option<WebSocket>,
    /// Output of the gateway itself. It is sent first, so that a client that cannot keep up still
    /// gets reports of its losses.
    output: VecDeque<Output>,
    /// Output was queued and is not flushed.
    has_output: bool,
    /// Something was written and is not flushed.
    is_dirty: bool,
    /// Copies of messages that were sent and not flushed, and their bytes.
    unflushed: Vec<Message>,
    bytes: usize,
    share: Arc<Share>,
}

enum Output {
    Frame(Frame),
    Replay(Replay),
}

/// The error of a closed connection.
#[derive(Debug)]
pub struct Gone;

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection is closed")
    }
}

impl Error for Gone {}

/// The error of a message that cannot be sent, which is a fault of this program.
#[derive(Debug)]
struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message cannot be sent")
    }
}

impl Error for Malformed {}

/// Does something for a client. A panic becomes an error, which closes its connection: the task of
/// the demux, which serves all clients, goes on. The panic is logged where all are.
fn contain<T>(act: impl FnOnce() -> Result<T, axum::Error>) -> Result<T, axum::Error> {
    // Nothing of what was being changed is used again but to close the connection.
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|_| Err(axum::Error::new(Malformed)))
}

/// The tasks that wait for the socket.
#[derive(Default)]
struct Waiting {
    wakers: Lock<Vec<Waker>>,
    was_woken: AtomicBool,
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.was_woken.store(true, Relaxed);
        self.wake_all();
    }
}

impl Waiting {
    fn wake_all(&self) {
        // Wake outside of the lock: a waker is foreign code.
        let wakers = std::mem::take(&mut *self.wakers.lock());
        wakers.into_iter().for_each(Waker::wake);
    }

    fn register(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock();
        if !wakers.last().is_some_and(|last| last.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }
}

impl Outlet {
    pub fn new(socket: WebSocket, share: Arc<Share>) -> Self {
        let socket = Socket {
            web: Some(socket),
            output: VecDeque::new(),
            has_output: false,
            is_dirty: false,
            unflushed: Vec::new(),
            bytes: 0,
            share,
        };
        Self { socket: Lock::new(socket), waiting: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Socket> {
        self.socket.lock()
    }

    /// Polls the socket. If it is pending, the task is woken when the socket makes progress.
    fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        ask: impl Fn(&mut Socket, &mut Context<'_>) -> Poll<Result<T, axum::Error>>,
    ) -> Poll<Result<T, Gone>> {
        let waker = Waker::from(Arc::clone(&self.waiting));
        let mut shared = Context::from_waker(&waker);
        let mut socket = self.lock();
        let answer = contain(|| {
            let mut answer = ask(&mut socket, &mut shared);
            if answer.is_pending() {
                // Register before the second poll, as a wake may have come in between.
                self.waiting.register(cx.waker());
                answer = ask(&mut socket, &mut shared);
            }
            match answer {
                Poll::Ready(done) => done.map(Poll::Ready),
                Poll::Pending => Ok(Poll::Pending),
            }
        });
        match answer {
            Ok(answer) => answer.map(Ok),
            Err(error) => Poll::Ready(Err(self.broken(socket, &error))),
        }
    }

    /// Ends the connection after an error.
    fn broken(&self, mut socket: MutexGuard<'_, Socket>, error: &axum::Error) -> Gone {
        tracing::debug!(%error, "a connection is broken");
        socket.end();
        drop(socket);
        self.waiting.wake_all();
        Gone
    }

    /// Returns the next frame from the client; `None` when it has left.
    pub async fn next(&self) -> Option<Result<Frame, axum::Error>> {
        future::poll_fn(|cx| match &mut self.lock().web {
            Some(web) => web.poll_next_unpin(cx),
            None => Poll::Ready(None),
        })
        .await
    }

    /// Queues a frame; [`flush`](Self::flush) sends it.
    pub fn queue(&self, frame: Frame) {
        self.queue_with(|| frame);
    }

    /// Queues a frame that is made while no message is sent.
    pub fn queue_with(&self, make: impl FnOnce() -> Frame) {
        let mut socket = self.lock();
        socket.output.push_back(Output::Frame(make()));
        socket.has_output = true;
    }

    /// Queues the messages that a client missed.
    pub fn replay(&self, replay: Replay) {
        let mut socket = self.lock();
        socket.output.push_back(Output::Replay(replay));
        socket.has_output = true;
    }

    /// Schedules a flush for the answer to a ping. The WebSocket keeps it until the next write, so
    /// a client that sends pings without reading must not be able to queue many.
    pub fn answer(&self) {
        let mut socket = self.lock();
        (socket.has_output, socket.is_dirty) = (true, true);
    }

    /// Returns `true` if output is queued that was not flushed.
    pub fn has_output(&self) -> bool {
        self.lock().has_output
    }

    /// Completes when all output and messages are flushed.
    pub async fn flush(&self) -> Result<(), Gone> {
        future::poll_fn(|cx| self.poll(cx, Socket::poll_flush)).await
    }

    /// Returns `true` if the socket has made progress after it was pending, since the last call.
    pub fn was_woken(&self) -> bool {
        self.waiting.was_woken.swap(false, Relaxed)
    }

    /// Closes the connection. Unflushed messages are lost.
    pub fn end(&self) {
        self.lock().end();
        self.waiting.wake_all();
    }
}

impl Socket {
    fn end(&mut self) {
        self.web = None;
        self.output.clear();
        std::mem::take(&mut self.unflushed).into_iter().for_each(Message::lose);
    }

    fn web(&mut self) -> Result<&mut WebSocket, axum::Error> {
        self.web.as_mut().ok_or_else(|| axum::Error::new(Gone))
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
        // Unflushed messages count as waiting for the client.
        if self.unflushed.len() >= self.share.unflushed() || self.bytes >= WRITE_BUFFER {
            return self.poll_flush(cx);
        }
        self.poll_output(cx)
    }

    /// Writes the queued output, until there is room for a message.
    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
        ready!(self.web()?.poll_ready_unpin(cx))?;
        let mut room = PIECE;
        while let Some(output) = self.output.pop_front() {
            self.is_dirty = true;
            match output {
                Output::Frame(frame) => self.web()?.start_send_unpin(frame)?,
                Output::Replay(mut replay) => {
                    let Some(next) = replay.next() else { continue };
                    self.output.push_front(Output::Replay(replay));
                    match next {
                        Next::Gap(frame) => self.web()?.start_send_unpin(frame)?,
                        Next::Message(message, binary) => self.send(message, binary)?,
                    }
                    room -= 1;
                    if room == 0 {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
            }
            ready!(self.web()?.poll_ready_unpin(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends a message. If that fails or panics, the message is lost with the connection: repeated,
    /// it would fail again each time its client has returned, and all others would get it again.
    fn send(&mut self, message: Message, binary: bool) -> Result<(), axum::Error> {
        self.bytes += message.size();
        self.is_dirty = true;
        let last = self.unflushed.len();
        self.unflushed.push(message);
        let message = &self.unflushed[last];
        let frame = if binary {
            let binary = message.binary();
            Frame::Binary(binary.ok_or_else(|| axum::Error::new(Malformed))?)
        } else {
            Frame::Text(message.frame())
        };
        self.web()?.start_send_unpin(frame)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
        ready!(self.poll_output(cx))?;
        if self.is_dirty {
            ready!(self.web()?.poll_flush_unpin(cx))?;
            self.bytes = 0;
            for message in self.unflushed.drain(..) {
                self.share.give_back(&message);
                message.settle();
            }
        }
        (self.is_dirty, self.has_output) = (false, false);
        Poll::Ready(Ok(()))
    }
}

/// The sink that is attached: sends the messages of one key to a client.
pub struct Subscription {
    outlet: Arc<Outlet>,
    pub terms: Arc<Terms>,
    /// `None` unless only the latest value matters.
    latest: Option<Latest>,
}

/// Limits the rate of a subscription to the latest value.
///
/// A message that has to wait does so in the queue of the demux, where a newer one replaces it. But
/// there it is unacknowledged. If too many wait for the client, it is given up, and waits here.
struct Latest {
    pace: Pace,
    /// The next message is given up.
    gives_up: bool,
    /// The message that was given up. The next one replaces it.
    given_up: Option<Message>,
}

impl Subscription {
    pub fn new(outlet: Arc<Outlet>, terms: Arc<Terms>) -> Self {
        let latest = Latest { pace: Pace::new(), gives_up: false, given_up: None };
        let latest = terms.latest.then_some(latest);
        Self { outlet, terms, latest }
    }

    fn write(&mut self, message: Message) -> Result<(), Gone> {
        if let Some(latest) = &mut self.latest {
            latest.pace.sent();
        }
        let at = message.at();
        let mut socket = self.outlet.lock();
        match contain(|| socket.send(message, self.terms.binary)) {
            Ok(()) => {
                self.terms.delivered(at);
                Ok(())
            }
            Err(error) => Err(self.outlet.broken(socket, &error)),
        }
    }

    /// Sends the message that was given up, when it may be sent.
    fn poll_given_up(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        let Some(latest) = self.latest.as_mut().filter(|latest| latest.given_up.is_some()) else {
            return Poll::Ready(Ok(()));
        };
        ready!(latest.pace.poll_due(&self.terms, cx));
        ready!(self.outlet.poll(cx, Socket::poll_ready))?;
        let Some(message) = latest.given_up.take() else { return Poll::Ready(Ok(())) };
        self.terms.given_up_sent();
        Poll::Ready(self.write(message))
    }

    /// Sends what was given up, and flushes all that was sent.
    fn poll_all(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        let sent = self.poll_given_up(cx)?;
        ready!(self.outlet.poll(cx, Socket::poll_flush))?;
        sent.map(Ok)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if self.latest.as_mut().and_then(|latest| latest.given_up.take()).is_some() {
            self.terms.given_up_dropped(Discarded::Evicted);
        }
    }
}

impl Sink<Message> for Subscription {
    type Error = Gone;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        let Self { outlet, terms, latest } = &mut *self;
        if let Some(latest) = latest {
            latest.gives_up = latest.given_up.is_some() || terms.has_too_many();
            if latest.gives_up {
                return Poll::Ready(Ok(()));
            }
            ready!(latest.pace.poll_due(terms, cx));
            if terms.is_full() {
                ready!(outlet.poll(cx, Socket::poll_flush))?; // which releases what was sent
            }
        }
        outlet.poll(cx, Socket::poll_ready)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), Gone> {
        let Self { terms, latest, .. } = &mut *self;
        match latest {
            Some(latest) if latest.gives_up => {
                if latest.given_up.replace(terms.give_up(message)).is_some() {
                    terms.given_up_dropped(Discarded::Conflated);
                }
                Ok(())
            }
            _ => self.write(message),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        self.poll_all(cx)
    }

    /// The connection stays open: only this subscription ends.
    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        self.poll_all(cx)
    }
}
