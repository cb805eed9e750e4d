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
//!
//! Callers are served in the order in which they came, except those that have waited for so long that
//! their calls would probably not be answered in the time that they have left: others are before them.
//! Otherwise, when there are more calls than all servers can answer, each call would get its place just
//! before its deadline, and all of them would fail.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use futures::{Sink, Stream, stream};
use stream_demux::{Attach, DemuxStreamExt, Lease};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep_until};

use crate::client::Client;
use crate::panics::contain;
use crate::upstream::{Granted, Upstream, Usual};

/// Callers that have given up are removed when this many are in line, and whenever there are twice as
/// many as after the last time. So while no server is ready, those that have given up take as much
/// memory as those that wait, or about 100 KiB.
const LINE: usize = 1024;

/// Gets a connection, and a place on it. Both that and the end wake it. If its waker panics, that does
/// not end the line.
struct Caller {
    caller: Option<oneshot::Sender<Granted>>,
    /// When its deadline began.
    began: Instant,
}

impl Caller {
    fn new(began: Instant) -> (Self, oneshot::Receiver<Granted>) {
        let (caller, place) = oneshot::channel();
        (Self { caller: Some(caller), began }, place)
    }

    fn has_given_up(&self) -> bool {
        self.caller.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// If it is dropped now, so is the place, which is free again.
    fn grant(mut self, place: Granted) {
        if let Some(caller) = self.caller.take() {
            contain(|| drop(caller.send(place)));
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        contain(|| self.caller = None);
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
    /// Those that have too little time left. The last one has most.
    late: VecDeque<Caller>,
    usual: Arc<Usual>,
    deadline: Duration,
    /// How many callers there may be before those that have given up are removed.
    most: usize,
    /// How often all were removed.
    cleared: u64,
    /// The demux, which waits for a caller.
    waker: Option<Waker>,
    /// Callers, or the demux, are gone.
    has_ended: bool,
}

impl Line {
    fn new(usual: Arc<Usual>, deadline: Duration) -> Self {
        let (callers, late, cleared, waker, has_ended) = Default::default();
        Self { callers, late, usual, deadline, most: LINE, cleared, waker, has_ended }
    }

    /// Returns the next caller.
    fn pop(&mut self) -> Option<Caller> {
        if self.callers.len() > 1 {
            let now = Instant::now();
            let time = patience(self.usual.get(), self.deadline);
            let is_late = |caller: &Caller| now.saturating_duration_since(caller.began) > time;
            let late = self.callers.partition_point(is_late);
            self.late.extend(self.callers.drain(..late));
        }
        self.callers.pop_front().or_else(|| self.late.pop_back())
    }

    fn take_all(&mut self) -> [VecDeque<Caller>; 2] {
        [mem::take(&mut self.callers), mem::take(&mut self.late)]
    }
}

/// How long a caller may have waited when it gets a place: so that the usual time of an answer is left,
/// an eighth more, because many take longer than usual, and a 64th of the deadline, for the delays of a
/// busy runtime. No more is left: when there are fewer calls than the servers can answer, but nearly as
/// many, all that come later would be answered in plain order. If answers usually take nearly the
/// deadline, it is half of the time that is left then.
fn patience(usual: Duration, deadline: Duration) -> Duration {
    let spare = deadline.saturating_sub(usual);
    spare.saturating_sub(usual / 8 + deadline / 64).max(spare / 2)
}

#[derive(Clone)]
struct InLine(Arc<Mutex<Line>>);

impl InLine {
    fn new(usual: Arc<Usual>, deadline: Duration) -> Self {
        Self(Arc::new(Mutex::new(Line::new(usual, deadline))))
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
        let mut gone: [VecDeque<_>; 2] = Default::default(); // dropped without the lock
        if line.callers.len() + line.late.len() >= line.most {
            let [callers, late] = line.take_all();
            (gone[0], line.callers) = callers.into_iter().partition(Caller::has_given_up);
            (gone[1], line.late) = late.into_iter().partition(Caller::has_given_up);
            line.most = LINE.max(2 * (line.callers.len() + line.late.len()));
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
        let callers = line.take_all();
        drop(line);
        drop(callers); // without the lock, because it wakes them
    }

    fn end(&self) {
        let mut line = self.lock();
        line.has_ended = true;
        let (callers, waker) = (line.take_all(), line.waker.take());
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
        match line.pop() {
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
        let line = self.line.lock();
        let in_line = line.callers.len() + line.late.len();
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
    pub(crate) fn new(
        servers: &[Arc<Upstream>],
        places: usize,
        usual: &Arc<Usual>,
        deadline: Duration,
    ) -> Self {
        let line = InLine::new(Arc::clone(usual), deadline);
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

    /// Waits for a place for a call whose deadline began then. Returns `None` if every server has retired.
    ///
    /// Cancel safe: a caller that is dropped takes no place.
    pub(crate) async fn next(&self, began: Instant) -> Option<Granted> {
        loop {
            let (caller, place) = Caller::new(began);
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

    fn line() -> InLine {
        InLine::new(Arc::default(), Duration::from_secs(60))
    }

    #[test]
    fn callers_that_have_given_up_take_bounded_memory() {
        let line = line();
        let mut waiting = Vec::new();
        for number in 0..10 * LINE {
            let (caller, place) = Caller::new(Instant::now());
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

    /// Adds callers that began so many seconds ago, and returns those that are served, in order.
    fn served(usual: u64, began: &[u64]) -> Vec<u64> {
        const DEADLINE: Duration = Duration::from_secs(1000);
        let times = Arc::<Usual>::default();
        times.note(Duration::from_secs(usual));
        let now = Instant::now();
        let mut line = Line::new(times, DEADLINE);
        for &ago in began {
            let caller = Caller::new(now.checked_sub(Duration::from_secs(ago)).unwrap()).0;
            line.callers.push_back(caller);
        }
        let began = |caller: Caller| (now - caller.began).as_secs();
        std::iter::from_fn(|| line.pop()).map(began).collect()
    }

    #[test]
    fn callers_that_have_too_little_time_left_come_after_others() {
        // Nothing is known.
        assert_eq!(served(0, &[980, 500, 10]), [980, 500, 10]);
        // 84 are needed.
        assert_eq!(served(60, &[920, 910, 10]), [910, 10, 920]);
        assert_eq!(served(60, &[950, 940, 930, 10]), [10, 930, 940, 950]);
        // Nearly the deadline is needed.
        assert_eq!(served(900, &[300, 60, 40, 10]), [40, 10, 60, 300]);
        assert_eq!(served(1000, &[900, 300, 10]), [10, 300, 900]);
        // One that is alone is served, whatever time it has left.
        assert_eq!(served(60, &[990]), [990]);
    }

    #[test]
    fn callers_are_dropped_when_the_line_has_ended() {
        let line = line();
        let (caller, place) = Caller::new(Instant::now());
        assert!(line.push(caller).is_ok());
        drop(Input(line.clone()));
        assert!(place.now_or_never().unwrap().is_err());
        assert!(line.push(Caller::new(Instant::now()).0).is_err());
    }
}
