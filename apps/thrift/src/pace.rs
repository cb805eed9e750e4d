//! Compressing gives way: one task writes the answers of all connections, and a long one would hold
//! all others while it is compressed.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::PollSemaphore;

use crate::transport::QUANTUM;

/// How far a compressed writer may go on.
///
/// After each [`QUANTUM`], it gives way to all that the task of its demux has to do. The writers of a
/// server share a semaphore with one permit, and go on beyond a quantum one at a time: what a short answer
/// waits for does not grow with the number of long ones. The permit is kept from one poll to the next,
/// which is in another turn of the task. Otherwise one writer after the other would get it in the same turn.
#[derive(Debug)]
pub(crate) struct Pace {
    line: Option<PollSemaphore>,
    permit: Option<OwnedSemaphorePermit>,
    /// Bytes since it last gave way.
    written: usize,
    gives_way: bool,
}

impl Pace {
    /// Goes on in turn with those that share `line`, if there is one.
    pub(crate) fn new(line: Option<Arc<Semaphore>>) -> Self {
        let line = line.map(PollSemaphore::new);
        Self { line, permit: None, written: 0, gives_way: false }
    }

    /// Returns how many bytes may be written now; `Pending` if it has to give way.
    pub(crate) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        self.gives_way = self.written >= QUANTUM;
        if !self.gives_way {
            return Poll::Ready(QUANTUM - self.written);
        }
        self.permit = None; // the next in line gets it
        if let Some(line) = &mut self.line {
            self.permit = ready!(line.poll_acquire(cx));
        }
        self.written = 0;
        // Not by the budget of the task, as for input: that would stop also what the task does for others.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    pub(crate) fn note_written(&mut self, count: usize) {
        self.written += count;
    }

    /// Returns `true` if it stopped only to give way.
    pub(crate) fn gives_way(&self) -> bool {
        self.gives_way
    }

    /// Notes that the writer stops. Unless it gives way, others go on: its socket may stay full.
    pub(crate) fn stop(&mut self) {
        if !self.gives_way {
            self.permit = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
    use std::task::{Wake, Waker};
    use std::time::Duration;

    use async_compression::tokio::bufread::ZlibDecoder;
    use async_compression::tokio::write::ZlibEncoder;
    use futures::{FutureExt, Sink};
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};
    use tokio::time::advance;
    use tokio_util::bytes::Bytes;
    use tokio_util::io::InspectWriter;

    use super::*;
    use crate::connection::Activity;
    use crate::frame::Writer;
    use crate::memory::{Account, Memory, PAUSE};

    /// With its length, ten quanta.
    const LONG: usize = 10 * QUANTUM - 4;

    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Relaxed);
        }
    }

    type Encoder = InspectWriter<ZlibEncoder<DuplexStream>, Box<dyn FnMut(&[u8]) + Send>>;

    /// A compressed connection, which is polled as by a demux: once in a turn, if it was woken.
    struct Connection {
        writer: Writer<Encoder>,
        client: DuplexStream,
        woken: Arc<Woken>,
        compressed: Arc<AtomicUsize>,
        /// How much is to be compressed in all.
        answered: usize,
    }

    impl Connection {
        /// One whose socket takes so many bytes.
        fn new(line: Option<&Arc<Semaphore>>, socket: usize) -> Self {
            let (to, client) = duplex(socket);
            let compressed = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&compressed);
            let count = move |bytes: &[u8]| _ = count.fetch_add(bytes.len(), Relaxed);
            let to: Encoder = InspectWriter::new(ZlibEncoder::new(to), Box::new(count));
            let writer = Writer::new(to, 1 << 20).paced(Pace::new(line.cloned()));
            let woken = Arc::new(Woken(AtomicBool::new(true)));
            Self { writer, client, woken, compressed, answered: 0 }
        }

        /// One that has an answer to write, which does not get shorter.
        fn answering(line: &Arc<Semaphore>, socket: usize, length: usize) -> Self {
            let mut connection = Self::new(Some(line), socket);
            connection.answer(length);
            connection
        }

        fn watch(mut self, account: &Account) -> Self {
            self.writer = self.writer.watch(account.clone(), Duration::from_secs(3600));
            self
        }

        fn answer(&mut self, length: usize) {
            let answer: Vec<u8> =
                std::iter::repeat_with(|| fastrand::u8(..)).take(length).collect();
            Pin::new(&mut self.writer).start_send(Bytes::from(answer).into()).unwrap();
            self.answered += 4 + length;
        }

        /// Polls it, and returns how much it has compressed.
        fn poll(
            &mut self,
            poll: impl FnOnce(Pin<&mut Writer<Encoder>>, &mut Context<'_>) -> Poll<std::io::Result<()>>,
        ) -> (usize, bool) {
            let before = self.compressed.load(Relaxed);
            let waker = Arc::clone(&self.woken).into();
            let done = poll(Pin::new(&mut self.writer), &mut Context::from_waker(&waker));
            let is_done = done.map(Result::unwrap).is_ready();
            (self.compressed.load(Relaxed) - before, is_done)
        }

        /// Flushes it in this turn, if it was woken.
        fn turn(&mut self) -> (usize, bool) {
            if !self.woken.0.swap(false, Relaxed) {
                return (0, false);
            }
            self.poll(Sink::poll_flush)
        }

        /// Flushes it until it is woken by others.
        fn run(&mut self) {
            for _ in 0..1000 {
                if !self.woken.0.load(Relaxed) {
                    return;
                }
                self.turn();
            }
            panic!("it wakes itself, and does not go on");
        }

        fn is_written(&self) -> bool {
            self.compressed.load(Relaxed) == self.answered
        }

        /// Lets the client read all that was sent, and returns how much that is.
        fn read(&mut self) -> usize {
            let mut part = [0; 1 << 13];
            let mut read = 0;
            while let Some(more) = self.client.read(&mut part).now_or_never() {
                read += more.unwrap();
            }
            read
        }
    }

    #[test]
    fn a_long_answer_gives_way_after_each_quantum() {
        let mut connection = Connection::new(None, 1 << 20);
        connection.answer(LONG);
        for _ in 0..9 {
            assert_eq!(connection.turn(), (QUANTUM, false));
        }
        assert_eq!(connection.turn(), (QUANTUM, true));
        let mut sent = vec![0; 1 << 20];
        let read = connection.client.read(&mut sent).now_or_never().unwrap().unwrap();
        let mut inflated = vec![0; 4 + LONG];
        let all = ZlibDecoder::new(&sent[..read]).read_exact(&mut inflated).now_or_never();
        all.unwrap().unwrap();
        assert_eq!(inflated[..4], u32::try_from(LONG).unwrap().to_be_bytes());
    }

    #[test]
    fn short_answers_give_way_when_they_are_as_much_together() {
        let mut connection = Connection::new(None, 1 << 20);
        let mut turns = 0;
        for _ in 0..100 {
            connection.answer(1000);
            connection.woken.0.store(true, Relaxed);
            turns += 1 + (0..100).take_while(|_| !connection.turn().1).count();
        }
        assert_eq!(turns, 100 + 100 * 1004 / QUANTUM);
    }

    #[test]
    fn long_answers_are_compressed_in_turn_and_a_short_one_at_once() {
        let line = Arc::new(Semaphore::new(1));
        let [mut first, mut second] = [(); 2].map(|()| Connection::answering(&line, 1 << 20, LONG));
        let mut turns = Vec::new();
        for _ in 0..50 {
            let (of_first, of_second) = (first.turn().0, second.turn().0);
            let mut short = Connection::answering(&line, 1 << 20, 100);
            assert_eq!(short.turn(), (104, true));
            assert!(turns.is_empty() || of_first + of_second <= QUANTUM, "both in one turn");
            turns.extend((of_first > 0).then_some(1));
            turns.extend((of_second > 0).then_some(2));
        }
        assert_eq!(turns, [1, 2].repeat(10));
    }

    #[test]
    fn one_that_cannot_write_does_not_hold_the_others() {
        let line = Arc::new(Semaphore::new(1));
        let mut unread = Connection::answering(&line, 2 * QUANTUM, LONG);
        unread.run();
        assert!(!unread.is_written());
        for _ in 0..3 {
            let mut other = Connection::answering(&line, 1 << 20, LONG);
            other.run();
            assert!(other.is_written());
        }
        while !unread.is_written() {
            assert!(unread.read() > 0, "it does not go on");
            unread.run();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_is_not_to_read_while_its_answer_gives_way() {
        let account = Memory::new(1 << 20, 1 << 22, 1 << 20).account(Activity::default());
        let line = Arc::new(Semaphore::new(1));
        let mut connection = Connection::answering(&line, QUANTUM, 5 * LONG).watch(&account);
        let mut others = PollSemaphore::new(Arc::clone(&line));
        let cx = &mut Context::from_waker(Waker::noop());
        let permit = others.poll_acquire(cx);
        assert_eq!(connection.turn(), (QUANTUM, false));
        for _ in 0..4 {
            advance(PAUSE).await;
            connection.woken.0.store(true, Relaxed);
            assert_eq!(connection.turn(), (0, false));
            assert!(!account.is_paused());
        }
        drop(permit);
        assert!(others.poll_acquire(cx).is_pending());
        let mut reads = 0;
        while reads < 10 {
            connection.run();
            if connection.writer.gives_way() {
                advance(2 * PAUSE).await;
                connection.run();
                drop(others.poll_acquire(cx));
                assert!(others.poll_acquire(cx).is_pending());
            } else {
                // The client reads as soon as the socket is full.
                let mut part = [0; QUANTUM];
                connection.client.read_exact(&mut part).now_or_never().unwrap().unwrap();
                reads += 1;
            }
            assert!(!account.is_paused());
        }
        // Now it does not.
        drop(others);
        connection.run();
        for _ in 0..2 {
            assert!(!account.is_paused());
            advance(PAUSE).await;
            connection.run();
        }
        assert!(account.is_paused());
    }

    #[test]
    fn one_that_is_dropped_does_not_hold_the_others() {
        let line = Arc::new(Semaphore::new(1));
        let connect = || Connection::answering(&line, 1 << 20, LONG);
        let mut connections = [(); 5].map(|()| Some(connect()));
        for connection in connections.iter_mut().flatten() {
            connection.turn();
        }
        let [first, second, third, fourth, fifth] = &mut connections;
        assert_eq!(line.available_permits(), 0);
        *third = None; // waits
        *first = None; // has the permit
        assert!(second.as_ref().unwrap().woken.0.load(Relaxed));
        *second = None; // is to have it
        assert_eq!(fourth.as_mut().unwrap().turn(), (0, false));
        *fourth = None; // has it
        let fifth = fifth.as_mut().unwrap();
        fifth.run();
        assert!(fifth.is_written());
        assert_eq!(line.available_permits(), 1);
    }

    /// Its frames are not written before they are flushed, and it would have the permit until then.
    #[test]
    fn one_that_gives_way_takes_no_further_answers() {
        let line = Arc::new(Semaphore::new(1));
        let mut connection = Connection::new(Some(&line), 1 << 20);
        while connection.poll(Sink::poll_ready) == (0, true) {
            connection.answer(1000);
        }
        assert_eq!(line.available_permits(), 0);
        assert!((0..100).any(|_| connection.poll(Sink::poll_ready).1));
        assert_eq!(line.available_permits(), 1);
    }
}
