//! Round robin: callers wait for a free place at one of several servers.
//!
//! ```text
//! callers ─▶ demux, one key, `balance` ─▶ places of the first server
//!                                      ─▶ places of the second …
//! ```
//!
//! Each server is a sink that accepts a caller for each of its places; it is not ready while all
//! places are taken. `balance` gives a caller to the next ready server in turn. If no server is
//! ready, callers wait in the input and are not bound to a server: the next one goes to the first
//! server with a free place.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use futures::{Sink, stream};
use stream_demux::{Attach, DemuxStreamExt, Lease};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::PollSemaphore;

/// A place for a call at a server. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) server: usize,
    _permit: OwnedSemaphorePermit,
}

type Caller = oneshot::Sender<Place>;

/// The places of a server.
struct Places {
    server: usize,
    free: PollSemaphore,
    /// Acquired for the next caller.
    next: Option<OwnedSemaphorePermit>,
}

impl Sink<Caller> for Places {
    type Error = Infallible;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.next.is_none() {
            self.next = ready!(self.free.poll_acquire(cx));
        }
        Poll::Ready(Ok(()))
    }
    fn start_send(mut self: Pin<&mut Self>, caller: Caller) -> Result<(), Infallible> {
        if let Some(permit) = self.next.take() {
            // If the caller was dropped, so is the place, which is free again.
            let _ = caller.send(Place { server: self.server, _permit: permit });
        }
        Ok(())
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }
}

/// Gives each caller a place at one of the servers.
#[derive(Debug)]
pub(crate) struct Turns {
    callers: mpsc::UnboundedSender<Caller>,
    leases: Mutex<Vec<Lease>>,
}

impl Turns {
    /// Spawns a task that shares out `servers` servers with `places` places each. The task ends
    /// when this value is dropped.
    pub(crate) fn new(servers: usize, places: usize) -> Self {
        let (callers, mut input) = mpsc::unbounded_channel();
        let mut leases = Vec::new();
        let places = (0..servers).map(|server| {
            let free = PollSemaphore::new(Arc::new(Semaphore::new(places)));
            let mut lease = Lease::new();
            let attach = Attach::new((), Places { server, free, next: None }).leased(&mut lease);
            leases.push(lease);
            attach
        });
        let orders = stream::iter(places.collect::<Vec<_>>());
        let input = stream::poll_fn(move |cx| input.poll_recv(cx));
        tokio::spawn(input.demux_by(|_| (), orders).balance());
        Self { callers, leases: Mutex::new(leases) }
    }

    /// Waits for a place. Returns `None` if every server has retired.
    pub(crate) async fn next(&self) -> Option<Place> {
        let (caller, place) = oneshot::channel();
        self.callers.send(caller).ok()?;
        place.await.ok()
    }

    /// Removes a server: it gets no more calls.
    pub(crate) fn retire(&self, server: usize) {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lease) = leases.get_mut(server) {
            std::mem::take(lease).detach();
        }
    }
}
