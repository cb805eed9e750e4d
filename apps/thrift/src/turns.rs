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

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use futures::{Sink, Stream, stream};
use stream_demux::{Attach, DemuxStreamExt, Lease};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep_until};

use crate::client::Client;
use crate::panics::contain;
use crate::upstream::{Granted, Upstream};

/// Callers that have given up are removed when this many are in line, and whenever there are twice as
/// many as after the last time. So while no server is ready, those that have given up take as much
/// memory as those that wait, or about 100 KiB.
const LINE: usize = 1024;

/// Gets a connection, and a place on it. Both that and the end wake it. If its waker panics, that does
/// not end the line.
struct Caller(Option<oneshot::Sender<Granted>>);

impl Caller {
    fn new() -> (Self, oneshot::Receiver<Granted>) {
        let (caller, place) = oneshot::channel();
        (Self(Some(caller)), place)
    }

    fn has_given_up(&self) -> bool {
        self.0.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// If it is dropped now, so is the place, which is free again.
    fn grant(mut self, place: Granted) {
        if let Some(caller) = self.0.take() {
            contain(|| drop(caller.send(place)));
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        contain(|| self.0 = None);
    }
}

/// The places of a server.
struct Places {
    server: Arc<Upstream>,
    count: usize,
    /// The connection for the next caller.
    next: Option<Client>,
    /// When to ask again without being woken.
    look_again: Option<Pin<Box<Sleep>>>,
    line: InLine,
}

impl Places {
    fn poll_place(&mut self, cx: &mut Context<'_>) -> Poll<Client> {
        loop {
            let mut at = None;
            if let Poll::Ready(client) = self.server.poll_place(self.count, &mut at, cx) {
                return Poll::Ready(client);
            }
            // Others that are in line may not be polled either.
            if self.server.has_callers_not_polled() {
                self.line.clear();
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
            && !caller.has_given_up()
        {
            caller.grant(self.server.take_place(client));
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

/// Callers that no sink has taken yet.
///
/// If some get their places and are not polled, such as those in `Buffered`, the line is cleared: each
/// caller is woken, and is in line again when it is polled. It is not a bounded channel, because that
/// would give its room to callers that are not polled, who would keep it.
struct Line {
    callers: VecDeque<Caller>,
    /// How many callers there may be before those that have given up are removed.
    most: usize,
    /// How often all were removed.
    cleared: u64,
    /// The demux, which waits for a caller.
    waker: Option<Waker>,
    /// Callers, or the demux, are gone.
    has_ended: bool,
}

#[derive(Clone)]
struct InLine(Arc<Mutex<Line>>);

impl InLine {
    fn new() -> Self {
        let (callers, cleared, waker, has_ended) = Default::default();
        Self(Arc::new(Mutex::new(Line { callers, most: LINE, cleared, waker, has_ended })))
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a caller, unless the line has ended. Returns how often it was cleared before.
    fn push(&self, caller: Caller) -> Result<u64, Ended> {
        let mut line = self.lock();
        if line.has_ended {
            return Err(Ended);
        }
        let mut gone = VecDeque::new(); // dropped without the lock
        if line.callers.len() >= line.most {
            let callers = mem::take(&mut line.callers).into_iter();
            (gone, line.callers) = callers.partition(Caller::has_given_up);
            line.most = LINE.max(2 * line.callers.len());
        }
        line.callers.push_back(caller);
        let (cleared, waker) = (line.cleared, line.waker.take());
        drop(line);
        drop(gone);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(cleared)
    }

    /// Removes all callers.
    fn clear(&self) {
        let mut line = self.lock();
        line.cleared += 1;
        let callers = mem::take(&mut line.callers);
        drop(line);
        drop(callers); // without the lock, because it wakes them
    }

    fn end(&self) {
        let mut line = self.lock();
        line.has_ended = true;
        let (callers, waker) = (mem::take(&mut line.callers), line.waker.take());
        drop(line);
        drop(callers);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Nothing gives out places any more.
struct Ended;

/// The input of the demux. The line ends with it: then nothing gives out places.
struct Input(InLine);

impl Stream for Input {
    type Item = Caller;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Caller>> {
        let mut line = self.0.lock();
        match line.callers.pop_front() {
            Some(caller) => Poll::Ready(Some(caller)),
            None if line.has_ended => Poll::Ready(None),
            None => {
                let previous = line.waker.replace(cx.waker().clone());
                drop(line);
                drop(previous);
                Poll::Pending
            }
        }
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Gives each caller a place at one of the servers.
pub(crate) struct Turns {
    line: InLine,
    leases: Mutex<Vec<Lease>>,
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_line = self.line.lock().callers.len();
        f.debug_struct("Turns").field("in_line", &in_line).finish_non_exhaustive()
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.line.end();
    }
}

impl Turns {
    /// Spawns a task that shares out the servers, with `places` places each. The task ends when
    /// this value is dropped.
    pub(crate) fn new(servers: &[Arc<Upstream>], places: usize) -> Self {
        let line = InLine::new();
        let mut leases = Vec::new();
        let places = servers.iter().map(|server| {
            let mut lease = Lease::new();
            let (server, line) = (Arc::clone(server), line.clone());
            let places = Places { server, count: places, next: None, look_again: None, line };
            let attach = Attach::new((), places).leased(&mut lease);
            leases.push(lease);
            attach
        });
        let orders = stream::iter(places.collect::<Vec<_>>());
        tokio::spawn(Input(line.clone()).demux_by(|_| (), orders).balance());
        Self { line, leases: Mutex::new(leases) }
    }

    /// Waits for a place. Returns `None` if every server has retired.
    ///
    /// Cancel safe: a caller that is dropped takes no place.
    pub(crate) async fn next(&self) -> Option<Granted> {
        loop {
            let (caller, place) = Caller::new();
            let cleared = self.line.push(caller).ok()?;
            match place.await {
                Ok(place) => return Some(place),
                // It was dropped by the demux, which has no server.
                Err(_) if self.line.lock().cleared == cleared => return None,
                Err(_) => {}
            }
        }
    }

    /// Removes a server: it gets no more calls.
    pub(crate) fn retire(&self, server: usize) {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lease) = leases.get_mut(server) {
            mem::take(lease).detach();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, StreamExt};

    use super::*;

    #[test]
    fn callers_that_have_given_up_take_bounded_memory() {
        let line = InLine::new();
        let mut waiting = Vec::new();
        for number in 0..10 * LINE {
            let (caller, place) = Caller::new();
            assert!(line.push(caller).is_ok());
            if number % 10 == 0 {
                waiting.push(place);
            }
        }
        assert!(line.lock().callers.len() <= 2 * LINE);
        let mut input = Input(line);
        let mut callers = Vec::new();
        while let Some(Some(caller)) = input.next().now_or_never() {
            callers.push(caller);
        }
        let served = callers.iter().filter(|caller| !caller.has_given_up()).count();
        assert_eq!(served, waiting.len());
    }

    #[test]
    fn callers_are_dropped_when_the_line_has_ended() {
        let line = InLine::new();
        let (caller, place) = Caller::new();
        assert!(line.push(caller).is_ok());
        drop(Input(line.clone()));
        assert!(place.now_or_never().unwrap().is_err());
        assert!(line.push(Caller::new().0).is_err());
    }
}
