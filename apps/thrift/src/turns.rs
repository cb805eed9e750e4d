//! Round robin: callers wait for a free place at one of several servers.
//!
//! ```text
//! callers ─▶ demux, one key, `balance` ─▶ places of the first server
//!                                      ─▶ places of the second …
//! ```
//!
//! Each server is a sink that accepts a caller for each of its places. It is not ready while all
//! places are taken, or while there is no connection; being asked makes it connect. `balance` gives
//! a caller to the next ready server in turn. If no server is ready, callers wait in the input and
//! are not bound to a server: the next one goes to the first server with a free place.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use futures::{Sink, stream};
use stream_demux::{Attach, DemuxStreamExt, Lease};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Sleep, sleep_until};

use crate::client::Client;
use crate::upstream::{Granted, Upstream};

/// Callers beyond this number wait in the channel's own list, which they leave when they are
/// dropped. So while no server is ready, the memory of callers that have given up is bounded, by
/// about 100 KiB. A shorter line would wake callers twice.
const LINE: usize = 1024;

/// Gets a connection, and a place on it.
type Caller = oneshot::Sender<Granted>;

/// The places of a server.
struct Places {
    server: Arc<Upstream>,
    count: usize,
    /// The connection for the next caller.
    next: Option<Client>,
    /// When to ask again without being woken.
    look_again: Option<Pin<Box<Sleep>>>,
}

impl Places {
    fn poll_place(&mut self, cx: &mut Context<'_>) -> Poll<Client> {
        loop {
            let mut at = None;
            if let Poll::Ready(client) = self.server.poll_place(self.count, &mut at, cx) {
                return Poll::Ready(client);
            }
            let Some(at) = at else { return Poll::Pending };
            let sleep = self.look_again.get_or_insert_with(|| Box::pin(sleep_until(at)));
            sleep.as_mut().reset(at);
            ready!(sleep.as_mut().poll(cx));
        }
    }
}

impl Sink<Caller> for Places {
    type Error = Infallible;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.next = None; // it may have been closed since
        self.next = Some(ready!(self.poll_place(cx)));
        Poll::Ready(Ok(()))
    }
    fn start_send(mut self: Pin<&mut Self>, caller: Caller) -> Result<(), Infallible> {
        // A caller that was dropped before takes no place, so that the next one does not wait for it.
        if let Some(client) = self.next.take()
            && !caller.is_closed()
        {
            // If the caller is dropped now, so is the place, which is free again.
            let _ = caller.send(self.server.take_place(client));
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
    callers: mpsc::Sender<Caller>,
    leases: Mutex<Vec<Lease>>,
}

impl Turns {
    /// Spawns a task that shares out the servers, with `places` places each. The task ends when
    /// this value is dropped.
    pub(crate) fn new(servers: &[Arc<Upstream>], places: usize) -> Self {
        let (callers, mut input) = mpsc::channel(LINE);
        let mut leases = Vec::new();
        let places = servers.iter().map(|server| {
            let mut lease = Lease::new();
            let places =
                Places { server: Arc::clone(server), count: places, next: None, look_again: None };
            let attach = Attach::new((), places).leased(&mut lease);
            leases.push(lease);
            attach
        });
        let orders = stream::iter(places.collect::<Vec<_>>());
        let input = stream::poll_fn(move |cx| input.poll_recv(cx));
        tokio::spawn(input.demux_by(|_| (), orders).balance());
        Self { callers, leases: Mutex::new(leases) }
    }

    /// Waits for a place. Returns `None` if every server has retired.
    ///
    /// Cancel safe: a caller that is dropped takes no place.
    pub(crate) async fn next(&self) -> Option<Granted> {
        let (caller, place) = oneshot::channel();
        self.callers.send(caller).await.ok()?;
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
