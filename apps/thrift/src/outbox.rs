//! Requests that wait to be written.
//!
//! 1. They take bounded memory ([`ROOM`]). While there is no room, requests wait in line, and only
//!    the first of the line is encoded.
//! 2. A caller may have stopped polling its future, such as one of several in `Buffered`. If it is the
//!    first, there is room for it, and it does not take it in time, the line ends: all its callers are
//!    woken, and each is in a new line when it is polled. So it makes no difference how many of them
//!    are not polled.
//! 3. The request of a call that has ended is removed at once. A one-way call has ended when its
//!    request is here; the request stays until it is written or the connection ends.
//! 4. The lock guards the queue and the line only. Requests are encoded, wakers are woken, and frames
//!    are dropped when it is not held.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use futures::Sink;
use futures::task::AtomicWaker;
use socket2::SockRef;
use tokio::io::AsyncWrite;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::bytes::Bytes;

use crate::client::Connection;
use crate::error::Error;
use crate::panics::contain;
use crate::transport::{Frame, Outgoing};

/// Bytes of requests that may wait to be written on a connection. A longer request waits alone.
/// It is as much as the buffer of a socket grows to, so a connection does not pause between two
/// requests, and a hundred connections to servers that hang take less than half a GiB.
const ROOM: u32 = 4 << 20;

/// What each request counts in addition to its bytes, so that the number of short ones is bounded,
/// too: about 4,000, more than the places of a server in a pool.
const EACH: usize = 1 << 10;

fn charge(frame: &Bytes) -> u32 {
    u32::try_from(frame.len().saturating_add(EACH)).unwrap_or(ROOM).min(ROOM)
}

/// The requests of a connection.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    /// Notified when the first in line is called.
    has_called: Notify,
    /// The connection, which waits for a request.
    writer: AtomicWaker,
    /// Waits until nothing is unwritten.
    written: AtomicWaker,
    /// Changes when something is written.
    progress: AtomicU64,
}

#[derive(Debug)]
struct Queue {
    /// By their ids, which ascend.
    requests: BTreeMap<i32, Bytes>,
    /// Something was taken from the queue and not flushed yet.
    is_writing: bool,
    end: End,
    /// Bytes for which there is room.
    room: u32,
    line: Line,
}

impl Default for Queue {
    fn default() -> Self {
        let (requests, is_writing, end, line) = Default::default();
        Self { requests, is_writing, end, room: ROOM, line }
    }
}

#[derive(Debug, Default, PartialEq)]
enum End {
    #[default]
    Open,
    /// There are no further requests.
    Closed,
    /// Nothing is written any more.
    Gone,
}

/// Callers that wait for room.
#[derive(Debug, Default)]
struct Line {
    /// By their numbers, which ascend.
    waiting: BTreeMap<u64, Waiting>,
    /// How many numbers were given out.
    numbers: u64,
    /// How often the first was called.
    calls: u64,
}

#[derive(Debug)]
struct Waiting {
    waker: Waker,
    /// The room that it needs. It is known if it has been the first.
    charge: Option<u32>,
    /// The number of the call, if it was called and has not been polled since.
    called: Option<u64>,
}

impl Line {
    /// Adds a caller to the end. Returns its number.
    fn join(&mut self, waker: &Waker) -> u64 {
        self.numbers += 1;
        let waiting = Waiting { waker: waker.clone(), charge: None, called: None };
        self.waiting.insert(self.numbers, waiting);
        self.numbers
    }

    /// Calls the first if there may be `room` for it. Returns its waker.
    fn call_first(&mut self, room: u32) -> Option<Waker> {
        let mut first = self.waiting.first_entry()?;
        let first = first.get_mut();
        if first.called.is_some() || first.charge.is_some_and(|charge| charge > room) {
            return None;
        }
        self.calls += 1;
        first.called = Some(self.calls);
        Some(first.waker.clone())
    }

    /// Returns the number of the call, if the first was called and has not been polled since.
    fn called(&self) -> Option<u64> {
        self.waiting.first_key_value()?.1.called
    }
}

fn wake_all(waiting: BTreeMap<u64, Waiting>) {
    for waiting in waiting.into_values() {
        contain(|| waiting.waker.wake());
    }
}

/// A caller that waits for room. Dropping it leaves the line.
struct InLine<'a> {
    outbox: &'a Outbox,
    /// It may be the number in an earlier line.
    number: Option<u64>,
    /// Its request, if it is the first.
    frame: Option<Bytes>,
}

/// What a caller finds when it is polled.
enum Found<'a> {
    /// Others are before it.
    Others,
    /// It is the first, and its request is not encoded.
    First,
    /// It is the first, and there is no room for its request.
    NoRoom,
    Room(Admitted<'a>),
    /// The connection has ended.
    End,
}

impl<'a> InLine<'a> {
    fn look(&mut self, cx: &mut Context<'_>) -> Found<'a> {
        let outbox = self.outbox;
        let mut queue = outbox.lock();
        let Queue { end, room, line, .. } = &mut *queue;
        if *end == End::Gone {
            return Found::End;
        }
        let number = self.number.filter(|number| line.waiting.contains_key(number));
        let number = number.unwrap_or_else(|| line.join(cx.waker()));
        self.number = Some(number);
        let is_first = line.waiting.first_key_value().is_some_and(|(first, _)| *first == number);
        if is_first && self.frame.is_none() {
            return Found::First;
        }
        if is_first && let Some(frame) = self.frame.take_if(|frame| charge(frame) <= *room) {
            let taken = Room { outbox, charge: charge(&frame) };
            *room -= taken.charge;
            let left = line.waiting.remove(&number);
            outbox.call_first(queue);
            drop(left);
            return Found::Room(Admitted { frame, room: taken });
        }
        let mut previous = None; // dropped without the lock
        if let Some(waiting) = line.waiting.get_mut(&number) {
            if !waiting.waker.will_wake(cx.waker()) {
                previous = Some(mem::replace(&mut waiting.waker, cx.waker().clone()));
            }
            waiting.charge = self.frame.as_ref().filter(|_| is_first).map(charge);
            waiting.called = None;
        }
        drop(queue);
        drop(previous);
        if is_first { Found::NoRoom } else { Found::Others }
    }

    fn poll(
        &mut self,
        encode: impl Fn() -> Result<Bytes, Error>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Admitted<'a>>, Error>> {
        loop {
            match self.look(cx) {
                Found::First => self.frame = Some(encode()?),
                Found::Room(admitted) => return Poll::Ready(Ok(Some(admitted))),
                Found::NoRoom => return Poll::Pending,
                Found::Others => {
                    self.frame = None;
                    return Poll::Pending;
                }
                Found::End => return Poll::Ready(Ok(None)),
            }
        }
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut queue = self.outbox.lock();
        let left = queue.line.waiting.remove(&number);
        self.outbox.call_first(queue);
        drop(left);
    }
}

/// Room for a request. Dropping it gives it back.
struct Room<'a> {
    outbox: &'a Outbox,
    charge: u32,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.outbox.release(self.charge);
    }
}

/// An encoded request that has room.
pub(crate) struct Admitted<'a> {
    frame: Bytes,
    room: Room<'a>,
}

/// A request in the queue. Dropping this removes it, unless it was written.
pub(crate) struct Queued<'a> {
    outbox: &'a Outbox,
    id: i32,
}

impl Queued<'_> {
    /// Returns `true` if the request was still in the queue, and was removed.
    pub(crate) fn remove(&self) -> bool {
        let removed = self.outbox.lock().requests.remove(&self.id);
        if let Some(frame) = &removed {
            self.outbox.release(charge(frame));
        }
        removed.is_some()
    }

    /// Leaves the request in the queue.
    pub(crate) fn keep(self) {
        mem::forget(self);
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.remove();
    }
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Encodes a request and waits until there is room for it. Returns `None` if the connection has
    /// ended. May encode it several times.
    ///
    /// Cancel safe. A future that is not polled does not keep others waiting for long.
    pub(crate) async fn admit(
        &self,
        encode: impl Fn() -> Result<Bytes, Error>,
    ) -> Result<Option<Admitted<'_>>, Error> {
        if self.lock().line.waiting.is_empty() {
            let frame = encode()?;
            if let Some(room) = self.try_take(charge(&frame)) {
                return Ok(Some(Admitted { frame, room }));
            }
        }
        let mut in_line = InLine { outbox: self, number: None, frame: None };
        future::poll_fn(|cx| in_line.poll(&encode, cx)).await
    }

    /// Takes room, if there is enough and no other request waits for it.
    fn try_take(&self, charge: u32) -> Option<Room<'_>> {
        let mut queue = self.lock();
        let Queue { room, line, .. } = &mut *queue;
        if !line.waiting.is_empty() || *room < charge {
            return None;
        }
        *room -= charge;
        Some(Room { outbox: self, charge })
    }

    /// Adds a request. It is removed when the returned value is dropped. Returns `None` if the
    /// connection has ended.
    pub(crate) fn push(&self, id: i32, admitted: Admitted<'_>) -> Option<Queued<'_>> {
        let Admitted { frame, room } = admitted;
        let mut queue = self.lock();
        if queue.end == End::Gone {
            drop(queue);
            return None;
        }
        mem::forget(room); // `release` returns it
        queue.requests.insert(id, frame);
        drop(queue);
        self.writer.wake();
        Some(Queued { outbox: self, id })
    }

    fn release(&self, charge: u32) {
        let mut queue = self.lock();
        queue.room += charge;
        self.call_first(queue);
    }

    /// Calls the first in line if there may be room for it.
    fn call_first(&self, mut queue: MutexGuard<'_, Queue>) {
        let Queue { room, line, .. } = &mut *queue;
        let first = line.call_first(*room);
        drop(queue);
        if let Some(first) = first {
            self.has_called.notify_one();
            contain(|| first.wake());
        }
    }

    /// Ends the line whenever its first caller is called and not polled `within` this time. Never
    /// completes.
    pub(crate) async fn keep_line_moving(&self, within: Duration) -> Infallible {
        loop {
            self.has_called.notified().await;
            let called = self.lock().line.called();
            if called.is_some() {
                sleep(within).await;
                self.end_line(called);
            }
        }
    }

    /// Ends the line if its first caller has not been polled since this call.
    fn end_line(&self, called: Option<u64>) {
        let mut queue = self.lock();
        if called.is_some() && queue.line.called() == called {
            let line = mem::take(&mut queue.line.waiting);
            drop(queue);
            wake_all(line);
        }
    }

    /// Announces that there are no further requests.
    pub(crate) fn close(&self) {
        let mut queue = self.lock();
        if queue.end == End::Open {
            queue.end = End::Closed;
        }
        drop(queue);
        self.writer.wake();
    }

    /// Drops all requests, and takes no more.
    pub(crate) fn end(&self) {
        let mut queue = self.lock();
        queue.end = End::Gone;
        let requests = mem::take(&mut queue.requests);
        let line = mem::take(&mut queue.line.waiting);
        drop(queue);
        drop(requests);
        wake_all(line);
    }

    /// Returns the next request to write, and `None` after the last.
    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.writer.register(cx.waker()); // register first, look second
        let mut queue = self.lock();
        let Some((_, frame)) = queue.requests.pop_first() else {
            return if queue.end == End::Open { Poll::Pending } else { Poll::Ready(None) };
        };
        queue.is_writing = true;
        drop(queue);
        self.release(charge(&frame));
        self.note_progress();
        Poll::Ready(Some(frame))
    }

    fn note_progress(&self) {
        self.progress.fetch_add(1, Relaxed);
    }

    /// Returns a number that changes when something is written.
    pub(crate) fn progress(&self) -> u64 {
        self.progress.load(Relaxed)
    }

    /// Returns `true` if something waits to be written.
    pub(crate) fn is_waiting(&self) -> bool {
        let queue = self.lock();
        queue.is_writing || !queue.requests.is_empty()
    }

    /// Waits until nothing waits to be written.
    pub(crate) fn poll_written(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.written.register(cx.waker()); // register first, look second
        if self.is_waiting() { Poll::Pending } else { Poll::Ready(()) }
    }

    fn flushed(&self) {
        self.lock().is_writing = false;
        self.note_progress();
        self.written.wake();
    }
}

/// Notes when all that was written is flushed.
pub(crate) struct Flushed {
    pub(crate) to: Outgoing,
    pub(crate) connection: Arc<Connection>,
}

impl Sink<Frame> for Flushed {
    type Error = io::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.to.as_mut().poll_ready(cx)
    }
    fn start_send(mut self: Pin<&mut Self>, frame: Frame) -> io::Result<()> {
        self.to.as_mut().start_send(frame)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.to.as_mut().poll_flush(cx))?;
        self.connection.outbox.flushed();
        Poll::Ready(Ok(()))
    }
    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.to.as_mut().poll_close(cx)
    }
}

/// Notes that bytes were written.
pub(crate) struct Written {
    pub(crate) to: OwnedWriteHalf,
    pub(crate) connection: Arc<Connection>,
}

impl Drop for Written {
    /// Calls may be with the server whose callers are gone. It drops them if the connection is
    /// reset; an end of its input would look as if this side went on to read, so that it would keep the
    /// connection until they end.
    fn drop(&mut self) {
        if self.connection.has_lost_calls() {
            let _ = SockRef::from(self.to.as_ref()).set_linger(Some(Duration::ZERO));
        }
    }
}

impl Written {
    fn note(&self, written: io::Result<usize>) -> Poll<io::Result<usize>> {
        if written.as_ref().is_ok_and(|&count| count > 0) {
            self.connection.outbox.note_progress();
        }
        Poll::Ready(written)
    }
}

impl AsyncWrite for Written {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.to).poll_write(cx, bytes));
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.to).poll_write_vectored(cx, parts));
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.to.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.to).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.to).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::task::Wake;

    use futures::FutureExt;
    use tokio::task::yield_now;

    use super::*;

    /// Notes that it was woken.
    #[derive(Default)]
    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, SeqCst);
        }
    }

    impl Flag {
        fn was_woken(&self) -> bool {
            self.0.swap(false, SeqCst)
        }
    }

    /// A caller, polled by hand.
    struct Caller<F> {
        future: Pin<Box<F>>,
        flag: Arc<Flag>,
    }

    impl<'a, F: Future<Output = Result<Option<Admitted<'a>>, Error>>> Caller<F> {
        fn poll(&mut self) -> Poll<Option<Admitted<'a>>> {
            let waker = Waker::from(Arc::clone(&self.flag));
            let polled = self.future.as_mut().poll(&mut Context::from_waker(&waker));
            polled.map(Result::unwrap)
        }

        fn is_admitted(&mut self) -> Option<Admitted<'a>> {
            match self.poll() {
                Poll::Ready(admitted) => Some(admitted.expect("the connection has ended")),
                Poll::Pending => None,
            }
        }

        fn was_woken(&self) -> bool {
            self.flag.was_woken()
        }
    }

    /// A caller whose request takes so many KiB of the room.
    fn caller(
        outbox: &Outbox,
        kib: usize,
    ) -> Caller<impl Future<Output = Result<Option<Admitted<'_>>, Error>>> {
        let future = outbox.admit(move || Ok(vec![0; (kib << 10) - EACH].into()));
        Caller { future: Box::pin(future), flag: Arc::default() }
    }

    const ALL: usize = ROOM as usize >> 10;

    fn fill(outbox: &Outbox) -> Admitted<'_> {
        caller(outbox, ALL).is_admitted().expect("it is not empty")
    }

    #[test]
    fn requests_get_room_in_their_order() {
        let outbox = Outbox::default();
        let room = [caller(&outbox, ALL - 3), caller(&outbox, 2)].map(|mut one| one.is_admitted());
        let [large, small] = room.map(|room| room.expect("there is room"));
        let [mut first, mut second, mut third] = [1000, 1, 1].map(|kib| caller(&outbox, kib));
        assert!(first.is_admitted().is_none());
        assert!(second.is_admitted().is_none(), "it would overtake a longer request");
        assert!(third.is_admitted().is_none());
        drop(small);
        assert!(!first.was_woken(), "there is no room for it");
        drop(large);
        assert!(first.was_woken() && !second.was_woken());
        assert!(second.is_admitted().is_none());
        let room = first.is_admitted().expect("there is room");
        assert!(second.was_woken() && !third.was_woken());
        let others = [second.is_admitted(), third.is_admitted()];
        assert!(third.was_woken() && others.iter().all(Option::is_some));
        drop((room, others));
        assert_eq!(outbox.lock().room, ROOM);
        assert!(outbox.lock().line.waiting.is_empty());
    }

    #[test]
    fn a_caller_that_leaves_the_line_does_not_hold_it_up() {
        let outbox = Outbox::default();
        let room = fill(&outbox);
        let [mut first, mut second, mut third] = [1, 1, 1].map(|kib| caller(&outbox, kib));
        for caller in [&mut first, &mut second, &mut third] {
            assert!(caller.is_admitted().is_none());
        }
        drop(second);
        assert!(!first.was_woken() && !third.was_woken());
        drop(room);
        assert!(first.was_woken() && !third.was_woken());
        drop(first);
        assert!(third.was_woken());
        assert!(third.is_admitted().is_some());
    }

    #[test]
    fn a_caller_that_is_not_polled_does_not_hold_the_line_up() {
        let outbox = Outbox::default();
        let room = fill(&outbox);
        let mut callers: Vec<_> = (0..5).map(|_| caller(&outbox, ALL)).collect();
        assert!(callers.iter_mut().all(|caller| caller.is_admitted().is_none()));
        assert_eq!(outbox.lock().line.called(), None);
        drop(room);
        let called = outbox.lock().line.called();
        assert!(called.is_some() && callers[0].was_woken());
        outbox.end_line(called);
        assert!(callers.iter().all(Caller::was_woken));
        // Those that are polled are in line again, and the others are not.
        let room = callers[3].is_admitted().expect("others hold it up");
        assert!(callers[2].is_admitted().is_none() && callers[0].is_admitted().is_none());
        drop(room);
        assert!(callers[2].was_woken() && !callers[0].was_woken());
        let called = outbox.lock().line.called();
        let room = callers[2].is_admitted().unwrap();
        outbox.end_line(called);
        assert_eq!(outbox.lock().line.waiting.len(), 1, "it has been polled");
        assert!(callers[0].was_woken() && callers[0].is_admitted().is_none());
        drop(room);
        assert!(callers[0].was_woken());
        assert!(outbox.try_take(1).is_none(), "another caller waits for it");
        assert!(callers[0].is_admitted().is_some());
    }

    #[test]
    fn a_caller_that_was_not_polled_is_the_last_of_the_new_line() {
        let outbox = Outbox::default();
        let room = fill(&outbox);
        let [mut small, mut large] = [1, ALL].map(|kib| caller(&outbox, kib));
        assert!(small.is_admitted().is_none() && large.is_admitted().is_none());
        drop(room);
        let called = outbox.lock().line.called();
        outbox.end_line(called);
        let room = caller(&outbox, 1).is_admitted().expect("nothing waits");
        assert!(large.is_admitted().is_none());
        assert!(small.is_admitted().is_none(), "it overtakes the other one");
        drop(room);
        assert!(large.is_admitted().is_some() && small.is_admitted().is_some());
    }

    /// A waker that uses the queue when it is dropped, as it may if that drops a task.
    struct Uses(Arc<Outbox>);

    impl Wake for Uses {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Uses {
        fn drop(&mut self) {
            assert!(self.0.queue.try_lock().is_ok(), "it is dropped under the lock");
        }
    }

    #[test]
    fn wakers_of_callers_may_use_the_queue_when_they_are_dropped() {
        let outbox = Arc::new(Outbox::default());
        let room = fill(&outbox);
        let mut callers = [(); 3].map(|()| caller(&outbox, 1));
        for _ in 0..2 {
            for caller in &mut callers {
                let waker = Waker::from(Arc::new(Uses(Arc::clone(&outbox))));
                let polled = caller.future.as_mut().poll(&mut Context::from_waker(&waker));
                assert!(polled.is_pending());
            }
        }
        let [first, second, third] = callers;
        drop(second);
        drop(room);
        drop((first, third));
    }

    #[tokio::test]
    async fn the_line_ends_when_its_first_caller_was_not_polled_for_a_while() {
        let outbox = Outbox::default();
        let mut moving = pin!(outbox.keep_line_moving(Duration::from_millis(1)));
        let room = fill(&outbox);
        let [mut first, mut second] = [1, 1].map(|kib| caller(&outbox, kib));
        assert!(first.is_admitted().is_none() && second.is_admitted().is_none());
        drop(room);
        assert!((&mut moving).now_or_never().is_none());
        assert!(first.was_woken() && !second.was_woken());
        let woken = async {
            while !second.was_woken() {
                yield_now().await;
            }
        };
        tokio::select! {
            () = woken => {}
            never = &mut moving => match never {},
        }
        assert!(second.is_admitted().is_some());
    }

    #[test]
    fn only_the_first_in_line_is_encoded() {
        let outbox = Outbox::default();
        let room = fill(&outbox);
        let encoded = Cell::new(0);
        let encode = || {
            encoded.set(encoded.get() + 1);
            Ok(Bytes::new())
        };
        let mut callers = [(); 3].map(|()| Box::pin(outbox.admit(encode)));
        for _ in 0..2 {
            for caller in &mut callers {
                assert!(caller.as_mut().now_or_never().is_none());
            }
        }
        assert_eq!(encoded.get(), 2, "once before it was in line");
        drop(room);
        for (index, caller) in callers.iter_mut().enumerate() {
            assert!(caller.as_mut().now_or_never().is_some());
            assert_eq!(encoded.get(), 2 + index);
        }
    }

    #[test]
    fn callers_in_line_are_woken_when_the_connection_ends() {
        let outbox = Outbox::default();
        let room = fill(&outbox);
        let mut callers = [1, 1].map(|kib| caller(&outbox, kib));
        assert!(callers.iter_mut().all(|caller| caller.is_admitted().is_none()));
        outbox.end();
        assert!(callers.iter().all(Caller::was_woken));
        assert!(callers.iter_mut().all(|caller| matches!(caller.poll(), Poll::Ready(None))));
        assert!(outbox.push(1, room).is_none());
    }
}
