//! The way to a client: one WebSocket, shared by all its subscriptions.
//!
//! A [`Subscription`] is what is attached to the demux. All those of a client write to its WebSocket
//! themselves: there is no queue in between, so that the readiness, the queues and the overflow policies
//! of the demux are the only ones. The socket keeps a copy of what it took until a flush has succeeded,
//! whoever asked for the flush, and settles it then.
//!
//! Several tasks poll one socket, which remembers one waker: it is given that of [`Waiting`], which
//! passes it on to all that wait.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::vec;

use axum::extract::ws::{Message as Frame, WebSocket};
use futures::{Sink, SinkExt, StreamExt, future};

use crate::http::WRITE_BUFFER;
use crate::message::Message;
use crate::subscription::{Pace, Share, Terms};

/// Of what a client missed, messages that are sent before others have their turn.
const PIECE: usize = 64;

/// The WebSocket of a client.
pub struct Outlet {
    socket: Mutex<Socket>,
    waiting: Arc<Waiting>,
}

struct Socket {
    /// None once it is over.
    web: Option<WebSocket>,
    /// What the gateway itself has to say. Goes first: a client that is sent more than it can take is
    /// to hear what it lost.
    says: VecDeque<Say>,
    /// Something was said and not flushed.
    has_said: bool,
    /// Something was written and not flushed.
    is_dirty: bool,
    /// Copies of what was sent and not flushed, and how many bytes they are.
    unflushed: Vec<Message>,
    bytes: usize,
    share: Arc<Share>,
}

enum Say {
    Frame(Frame),
    /// What the client missed, as bytes or not.
    Kept(vec::IntoIter<Message>, bool),
}

/// The connection is over.
#[derive(Debug)]
pub struct Gone;

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection is over")
    }
}

impl Error for Gone {}

/// Who waits for the socket.
#[derive(Default)]
struct Waiting {
    wakers: Mutex<Vec<Waker>>,
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
        // Foreign code, a wake, is not run under the lock.
        let wakers = std::mem::take(&mut *self.wakers.lock().unwrap());
        wakers.into_iter().for_each(Waker::wake);
    }

    fn register(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock().unwrap();
        if !wakers.last().is_some_and(|last| last.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }
}

impl Outlet {
    pub fn new(socket: WebSocket, share: Arc<Share>) -> Self {
        let socket = Socket {
            web: Some(socket),
            says: VecDeque::new(),
            has_said: false,
            is_dirty: false,
            unflushed: Vec::new(),
            bytes: 0,
            share,
        };
        Self { socket: Mutex::new(socket), waiting: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Socket> {
        self.socket.lock().unwrap()
    }

    /// Asks the socket; if it is pending, everybody who was told so is woken when it may no longer be.
    fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        ask: impl Fn(&mut Socket, &mut Context<'_>) -> Poll<Result<T, axum::Error>>,
    ) -> Poll<Result<T, Gone>> {
        let waker = Waker::from(Arc::clone(&self.waiting));
        let mut shared = Context::from_waker(&waker);
        let mut socket = self.lock();
        let mut answer = ask(&mut socket, &mut shared);
        if answer.is_pending() {
            // It may have been woken since: register first, look second.
            self.waiting.register(cx.waker());
            answer = ask(&mut socket, &mut shared);
        }
        answer.map_err(|error| {
            tracing::debug!(%error, "a connection is broken");
            socket.end();
            drop(socket);
            self.waiting.wake_all();
            Gone
        })
    }

    /// What the client says next; None when it has left.
    pub async fn next(&self) -> Option<Result<Frame, axum::Error>> {
        future::poll_fn(|cx| match &mut self.lock().web {
            Some(web) => web.poll_next_unpin(cx),
            None => Poll::Ready(None),
        })
        .await
    }

    /// Says something, once [`flush`](Self::flush) is awaited.
    pub fn say(&self, frame: Frame) {
        let mut socket = self.lock();
        socket.says.push_back(Say::Frame(frame));
        socket.has_said = true;
    }

    /// The same for what the client missed.
    pub fn replay(&self, messages: Vec<Message>, binary: bool) {
        let mut socket = self.lock();
        socket.says.push_back(Say::Kept(messages.into_iter(), binary));
        socket.has_said = true;
    }

    /// The WebSocket has an answer to a ping, which it keeps until something is written: one who pings
    /// and does not read must not make it keep many.
    pub fn answer(&self) {
        let mut socket = self.lock();
        (socket.has_said, socket.is_dirty) = (true, true);
    }

    /// Has something been said and not been written to the socket?
    pub fn has_said(&self) -> bool {
        self.lock().has_said
    }

    /// Completes when all that was said, and sent, was written.
    pub async fn flush(&self) -> Result<(), Gone> {
        future::poll_fn(|cx| self.poll(cx, Socket::poll_flush)).await
    }

    /// Did the socket take, or give, anything since this was last asked, after it would not?
    pub fn was_woken(&self) -> bool {
        self.waiting.was_woken.swap(false, Relaxed)
    }

    /// The connection is over: what was not flushed is not settled.
    pub fn end(&self) {
        self.lock().end();
        self.waiting.wake_all();
    }
}

impl Socket {
    fn end(&mut self) {
        self.web = None;
        self.says.clear();
        self.unflushed = Vec::new();
    }

    fn web(&mut self) -> Result<&mut WebSocket, axum::Error> {
        self.web.as_mut().ok_or_else(|| axum::Error::new(Gone))
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
        // What is not flushed counts among what waits for the client.
        if self.unflushed.len() >= self.share.unflushed() || self.bytes >= WRITE_BUFFER {
            return self.poll_flush(cx);
        }
        self.poll_say(cx)
    }

    /// Room for another message, after what the gateway itself has to say.
    fn poll_say(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
        ready!(self.web()?.poll_ready_unpin(cx))?;
        let mut room = PIECE;
        while let Some(say) = self.says.pop_front() {
            self.is_dirty = true;
            match say {
                Say::Frame(frame) => self.web()?.start_send_unpin(frame)?,
                Say::Kept(mut messages, binary) => {
                    let Some(message) = messages.next() else { continue };
                    self.says.push_front(Say::Kept(messages, binary));
                    self.send(message, binary)?;
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

    fn send(&mut self, message: Message, binary: bool) -> Result<(), axum::Error> {
        let frame =
            if binary { Frame::Binary(message.binary()) } else { Frame::Text(message.frame()) };
        self.bytes += message.size();
        self.web()?.start_send_unpin(frame)?;
        self.unflushed.push(message);
        self.is_dirty = true;
        Ok(())
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
        ready!(self.poll_say(cx))?;
        if self.is_dirty {
            ready!(self.web()?.poll_flush_unpin(cx))?;
            self.bytes = 0;
            for message in self.unflushed.drain(..) {
                self.share.give_back(&message);
                message.settle();
            }
        }
        (self.is_dirty, self.has_said) = (false, false);
        Poll::Ready(Ok(()))
    }
}

/// What is attached: sends the messages of one key to a client.
pub struct Subscription {
    outlet: Arc<Outlet>,
    pub terms: Arc<Terms>,
    /// Of one to the latest value.
    pace: Option<Pace>,
}

impl Subscription {
    pub fn new(outlet: Arc<Outlet>, terms: Arc<Terms>) -> Self {
        let pace = terms.latest.then(Pace::new);
        Self { outlet, terms, pace }
    }
}

impl Sink<Message> for Subscription {
    type Error = Gone;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        let Self { outlet, terms, pace } = &mut *self;
        if let Some(pace) = pace {
            ready!(pace.poll_due(terms, cx));
            if terms.is_full() {
                ready!(outlet.poll(cx, Socket::poll_flush))?; // which gives back what was sent
            }
        }
        outlet.poll(cx, Socket::poll_ready)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), Gone> {
        if let Some(pace) = &mut self.pace {
            pace.sent();
        }
        let mut socket = self.outlet.lock();
        let sent = socket.send(message, self.terms.binary);
        drop(socket);
        sent.map_err(|_| Gone)?;
        self.terms.delivered();
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        self.outlet.poll(cx, Socket::poll_flush)
    }

    /// The client stays: only this subscription ends.
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        self.outlet.poll(cx, Socket::poll_flush)
    }
}
