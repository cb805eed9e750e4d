//! Writers against a model that knows what each has to write; and single situations.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, ErrorKind, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::FusedFuture;
use futures::{FutureExt, Sink};
use sink_test::{Rule, SinkCheck, Task};
use stream_demux_hub::{
    Hub, Overflow, Terms, Writer, WriterEnd, Writers, WritersError, WritersSink, Written, writers,
};
use tokio::io::AsyncWrite;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::common::{Dice, settle};
use crate::pipe::Pipe;

type Encode<T> = fn(T, &mut Vec<u8>) -> io::Result<()>;

fn line(n: u32, bytes: &mut Vec<u8>) -> io::Result<()> {
    writeln!(bytes, "{n}")
}

fn notice(lost: u64, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(format!("lost {lost}\n").as_bytes());
}

/// Lines with numbers.
fn lines(capacity: usize) -> (WritersSink<Encode<u32>>, Writers) {
    writers(capacity, line as Encode<u32>)
}

/// Sends an item as a demux does: polls again when the sink has woken itself. Returns how often.
fn send<T, E>(sink: &mut WritersSink<E>, item: T) -> Result<u32, WritersError>
where
    E: FnMut(T, &mut Vec<u8>) -> io::Result<()>,
{
    let mut turns = 0;
    let mut task = Task::new(poll_fn(|cx| Sink::<T>::poll_ready(Pin::new(&mut *sink), cx)));
    loop {
        match task.poll() {
            Poll::Ready(answer) => break answer?,
            Poll::Pending => assert!(task.woken(), "it never waits"),
        }
        turns += 1;
    }
    drop(task);
    Pin::new(sink).start_send(item).map(|()| turns)
}

fn flush<T, E>(sink: &mut WritersSink<E>)
where
    E: FnMut(T, &mut Vec<u8>) -> io::Result<()>,
{
    let answer = Sink::<T>::poll_flush(Pin::new(sink), &mut Context::from_waker(Waker::noop()));
    assert!(matches!(answer, Poll::Ready(Ok(()))));
}

fn close<T, E>(sink: &mut WritersSink<E>)
where
    E: FnMut(T, &mut Vec<u8>) -> io::Result<()>,
{
    let answer = Sink::<T>::poll_close(Pin::new(sink), &mut Context::from_waker(Waker::noop()));
    assert!(matches!(answer, Poll::Ready(Ok(()))));
}

fn send_all(sink: &mut WritersSink<Encode<u32>>, items: impl IntoIterator<Item = u32>) {
    for item in items {
        send(sink, item).unwrap();
    }
    flush::<u32, _>(sink);
}

/// Polls a writer once, and tells whether it has ended.
fn poll(task: &mut Task<Writer<Pipe>>) -> Option<Written> {
    match task.poll() {
        Poll::Ready(written) => Some(written),
        Poll::Pending => None,
    }
}

/// The numbers that a writer ends with.
fn counts(written: &Written) -> (u64, u64, u64) {
    (written.items, written.lost, written.unwritten)
}

/// What a writer is about to write.
#[derive(Clone)]
struct Part {
    bytes: Vec<u8>,
    is_item: bool,
}

/// The specification of a writer. Item `n` is at position `n`.
struct Model {
    next: u64,
    /// What it has begun, or has to write before anything else.
    begun: Option<Part>,
    untold: u64,
    is_asleep: bool,
    room: usize,
    output: Vec<u8>,
    items: u64,
    lost: u64,
}

impl Model {
    /// Passes over what is lost.
    fn look(&mut self, world: &Sent) {
        let mut missing = world.floor().saturating_sub(self.next);
        while world.items.get(index(self.next + missing)).is_some_and(Option::is_none) {
            missing += 1;
        }
        self.next += missing;
        self.lost += missing;
        self.untold += missing;
    }

    fn poll(&mut self, world: &Sent) {
        if self.is_asleep {
            return;
        }
        self.look(world);
        loop {
            if let Some(part) = &mut self.begun {
                let bytes = part.bytes.len().min(self.room);
                self.output.extend(part.bytes.drain(..bytes));
                self.room -= bytes;
                if !part.bytes.is_empty() {
                    // What is missing behind it is known already.
                    self.look(world);
                    return;
                }
                self.items += u64::from(part.is_item);
                self.begun = None;
            }
            self.look(world);
            if self.untold > 0 {
                let mut bytes = Vec::new();
                notice(std::mem::take(&mut self.untold), &mut bytes);
                self.begun = Some(Part { bytes, is_item: false });
            } else if let Some(Some(bytes)) = world.items.get(index(self.next)) {
                if self.room == 0 {
                    return;
                }
                self.next += 1;
                self.begun = Some(Part { bytes: bytes.clone(), is_item: true });
            } else {
                self.is_asleep = true;
                return;
            }
        }
    }
}

fn index(position: u64) -> usize {
    usize::try_from(position).unwrap()
}

/// What was sent. `None`: it was too large.
struct Sent {
    items: Vec<Option<Vec<u8>>>,
    capacity: u64,
    max_bytes: usize,
}

impl Sent {
    fn end(&self) -> u64 {
        self.items.len() as u64
    }

    /// The first item that is within the limits.
    fn floor(&self) -> u64 {
        let (mut items, mut bytes) = (0, 0);
        for item in self.items.iter().rev() {
            items += 1;
            bytes += item.as_ref().map_or(0, Vec::len);
            if items > self.capacity || bytes > self.max_bytes {
                return self.end() + 1 - items;
            }
        }
        0
    }
}

struct Member {
    task: Task<Writer<Pipe>>,
    pipe: Pipe,
    model: Model,
    joined: u64,
}

/// A sink with its writers, and what they must do.
struct World {
    seed: u64,
    sent: Sent,
    sink: WritersSink<Encode<Vec<u8>>>,
    handle: Writers,
    members: Vec<Member>,
    largest: usize,
}

impl World {
    fn new(seed: u64, dice: &mut Dice) -> Self {
        let capacity = match dice.index(3) {
            0 => 1 + dice.index(3),
            1 => 1 + dice.index(400),
            _ => 1 + dice.index(20),
        };
        let max_bytes = match dice.index(3) {
            0 => 1 + dice.index(60),
            1 => 1 + dice.index(2_000),
            _ => 1_000_000,
        };
        // Most are short. Some do not share a segment with others.
        let largest = [8, 8, 8, 100, 100, 1_000, 1_000, 40_000][dice.index(8)];
        let append: Encode<Vec<u8>> = |item, bytes| bytes.write_all(&item);
        let (sink, handle) = writers(capacity, append);
        let sink = sink.max_bytes(max_bytes);
        let sent = Sent { items: Vec::new(), capacity: capacity as u64, max_bytes };
        Self { seed, sent, sink, handle, members: Vec::new(), largest }
    }

    fn send(&mut self, dice: &mut Dice) {
        let many = if dice.index(4) == 0 { 100 } else { 8 };
        for _ in 0..=dice.index(many) {
            let mut item = format!("{} ", self.sent.end()).into_bytes();
            item.resize(item.len() + dice.index(self.largest), b'x');
            item.push(b'\n');
            send(&mut self.sink, item.clone()).expect("there is a handle");
            // It is not encoded if there is no writer.
            if !self.members.is_empty() {
                let fits = item.len() <= self.sent.max_bytes;
                self.sent.items.push(fits.then_some(item));
            }
        }
        flush::<Vec<u8>, _>(&mut self.sink);
        for member in &mut self.members {
            if member.model.is_asleep && member.model.next < self.sent.end() {
                assert!(member.task.woken(), "seed {}", self.seed);
                member.model.is_asleep = false;
            }
        }
    }

    fn join(&mut self, dice: &mut Dice) {
        let pipe = Pipe::new(0);
        pipe.set(|state| {
            state.is_vectored = dice.index(2) == 0;
            state.most = if dice.index(2) == 0 { usize::MAX } else { 1 + dice.index(50) };
        });
        let task = Task::new(self.handle.join(pipe.clone()).on_lost(notice));
        let model = Model {
            next: self.sent.end(),
            begun: None,
            untold: 0,
            is_asleep: false,
            room: 0,
            output: Vec::new(),
            items: 0,
            lost: 0,
        };
        self.members.push(Member { task, pipe, model, joined: self.sent.end() });
    }

    fn leave(&mut self, dice: &mut Dice) {
        if self.members.is_empty() {
            return;
        }
        let member = self.members.swap_remove(dice.index(self.members.len()));
        if dice.index(2) == 0 {
            return;
        }
        // It fails at the next write, which comes when there is something to write.
        let Member { mut task, pipe, mut model, joined } = member;
        pipe.set(|state| state.error = Some(ErrorKind::BrokenPipe));
        if model.is_asleep {
            return;
        }
        model.room = 0;
        model.poll(&self.sent);
        let Some(written) = poll(&mut task) else {
            assert!(model.begun.is_none() && model.next == self.sent.end(), "seed {}", self.seed);
            return;
        };
        assert!(matches!(written.end, WriterEnd::Failed(_)), "seed {}: {written:?}", self.seed);
        assert_eq!((written.items, written.lost), (model.items, model.lost), "seed {}", self.seed);
        let all = written.items + written.lost + written.unwritten;
        assert_eq!(all, self.sent.end() - joined, "seed {}", self.seed);
    }

    /// One of the peers reads, and its writer is polled.
    fn poll(&mut self, dice: &mut Dice) {
        if self.members.is_empty() {
            return;
        }
        let member = dice.index(self.members.len());
        let Member { task, pipe, model, .. } = &mut self.members[member];
        let most = [20, 300, 20_000][dice.index(3)];
        let bytes = if dice.index(4) == 0 { 0 } else { dice.index(most) };
        pipe.allow(bytes);
        model.room += bytes;
        model.poll(&self.sent);
        assert!(poll(task).is_none());
        Self::check(self.seed, pipe, task, model);
    }

    fn check(seed: u64, pipe: &Pipe, task: &Task<Writer<Pipe>>, model: &mut Model) {
        assert_eq!(pipe.take().as_bytes(), model.output, "seed {seed}");
        model.output.clear();
        let writer = task.get_ref();
        assert_eq!((writer.items(), writer.lost()), (model.items, model.lost), "seed {seed}");
    }

    /// All that is left is written.
    fn close(mut self) {
        close::<Vec<u8>, _>(&mut self.sink);
        for Member { mut task, pipe, mut model, joined } in self.members {
            pipe.allow(100_000_000);
            model.room += 100_000_000;
            model.is_asleep = false;
            model.poll(&self.sent);
            let written = poll(&mut task).expect("it ends");
            assert!(matches!(written.end, WriterEnd::Closed), "seed {}: {written:?}", self.seed);
            assert_eq!(counts(&written), (model.items, model.lost, 0), "seed {}", self.seed);
            assert_eq!(written.items + written.lost, self.sent.end() - joined);
            assert_eq!(pipe.take().as_bytes(), model.output, "seed {}", self.seed);
            assert!(pipe.state().is_shut_down);
        }
        assert!(self.handle.is_empty());
    }
}

#[test]
fn random_programs_agree_with_the_model() {
    for seed in 1..100 {
        let mut dice = Dice::new(seed);
        let mut world = World::new(seed, &mut dice);
        // Some programs have many writers, in some the peers hardly ever read.
        let (joins, polls) = (1 + dice.index(4), 1 + dice.index(30));
        for _ in 0..100 {
            match dice.index(6 + joins + polls) {
                0 => world.leave(&mut dice),
                n if n >= 6 + polls => world.join(&mut dice),
                n if n >= 6 => world.poll(&mut dice),
                _ => world.send(&mut dice),
            }
        }
        world.close();
    }
}

/// Reads numbers from a pipe. The writer is polled with it.
struct Peer {
    handle: Option<Writers>,
    task: Option<Task<Writer<Pipe>>>,
    pipe: Pipe,
    read: VecDeque<u8>,
}

impl Peer {
    fn next(&mut self) -> Option<usize> {
        let task = self.task.as_mut()?;
        self.pipe.allow(30);
        if !task.get_ref().is_terminated() {
            poll(task);
        }
        self.read.extend(self.pipe.take().into_bytes());
        let end = self.read.iter().position(|&byte| byte == b'\n')?;
        let line = self.read.drain(..=end).collect::<Vec<_>>();
        std::str::from_utf8(&line).ok()?.trim().parse().ok()
    }

    fn leave(&mut self) {
        self.task = None;
        self.handle = None;
    }

    fn make(capacity: usize, full: Overflow) -> (WritersSink<Encode<usize>>, Self) {
        let encode: Encode<usize> = |n, bytes| writeln!(bytes, "{n:>20}");
        let (sink, handle) = writers(capacity, encode);
        let pipe = Pipe::new(0);
        let task = Some(Task::new(handle.join(pipe.clone())));
        let peer = Self { handle: Some(handle), task, pipe, read: VecDeque::new() };
        (sink.overflow(full), peer)
    }
}

#[test]
fn sink_that_waits_for_the_slowest_writer() {
    for capacity in [1, 2, 5, 40] {
        let make = || Peer::make(capacity, Overflow::Wait);
        let check = SinkCheck::new(make, |n| n, Peer::next).capacity(capacity + 1);
        let report = check.disconnect(Peer::leave).run();
        assert!(report.gaps().is_empty(), "{:?}", report.gaps());
    }
}

#[test]
fn sinks_with_room() {
    for full in [Overflow::DropOldest, Overflow::Evict] {
        let check = SinkCheck::new(|| Peer::make(1_000, full), |n| n, Peer::next);
        check.unbounded().disconnect(Peer::leave).run();
    }
}

/// Sinks whose writers are too slow keep all rules but those that a policy is made to break.
#[test]
fn sinks_whose_writers_lose_items() {
    for full in [Overflow::DropOldest, Overflow::Conflate] {
        let check = SinkCheck::new(|| Peer::make(3, full), |n| n, Peer::next).unbounded();
        check.except(Rule::Delivers).except(Rule::Room).disconnect(Peer::leave).run();
    }
}

#[test]
fn burst_is_one_write_and_one_flush() {
    let (mut sink, handle) = lines(100_000);
    let pipe = Pipe::new(usize::MAX);
    let mut task = Task::new(handle.join(pipe.clone()));
    assert!(poll(&mut task).is_none());
    // Several segments.
    send_all(&mut sink, 0..5_000);
    assert!(task.woken());
    assert!(poll(&mut task).is_none());
    assert_eq!(pipe.calls(), (1, 1));
    let mut all = Vec::new();
    (0..5_000).for_each(|n| line(n, &mut all).unwrap());
    assert_eq!(pipe.take().into_bytes(), all);
    assert!(poll(&mut task).is_none());
    assert_eq!(pipe.calls(), (1, 1), "nothing was left");
}

#[test]
fn writer_that_sleeps_takes_nothing_before_the_flush() {
    let (mut sink, handle) = lines(1_000);
    let pipe = Pipe::new(usize::MAX);
    let mut task = Task::new(handle.join(pipe.clone()));
    assert!(poll(&mut task).is_none());
    for n in 0..400 {
        send(&mut sink, n).unwrap();
    }
    assert!(!task.woken());
    assert!(poll(&mut task).is_none(), "it is polled for another reason");
    assert_eq!(pipe.take(), "");
    // Half of the capacity wakes it, too.
    for n in 400..600 {
        send(&mut sink, n).unwrap();
    }
    assert!(task.woken());
    flush::<u32, _>(&mut sink);
    assert!(poll(&mut task).is_none());
    assert_eq!(pipe.state().writes, 1);
}

#[test]
fn item_is_encoded_once_for_all_writers_and_not_at_all_without() {
    let encoded = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&encoded);
    let (mut sink, handle) = writers(16, move |n: u32, bytes: &mut Vec<u8>| {
        count.fetch_add(1, SeqCst);
        line(n, bytes)
    });
    send(&mut sink, 1).unwrap();
    assert_eq!(encoded.load(SeqCst), 0);
    let pipes = [(); 10].map(|()| Pipe::new(usize::MAX));
    let mut tasks = pipes.clone().map(|pipe| Task::new(handle.join(pipe)));
    send(&mut sink, 2).unwrap();
    flush::<u32, _>(&mut sink);
    assert_eq!(encoded.load(SeqCst), 1);
    for (task, pipe) in tasks.iter_mut().zip(&pipes) {
        assert!(poll(task).is_none());
        assert_eq!(pipe.take(), "2\n");
    }
}

#[test]
fn writer_that_lags_goes_on_between_two_items_and_says_how_many_are_missing() {
    let (mut sink, handle) = lines(3);
    let pipe = Pipe::new(4);
    let mut task = Task::new(handle.join(pipe.clone()).on_lost(notice));
    send_all(&mut sink, 100..103);
    assert!(poll(&mut task).is_none());
    assert_eq!(pipe.take(), "100\n", "the next item is not begun");
    pipe.allow(1);
    assert!(poll(&mut task).is_none());
    send_all(&mut sink, 103..110);
    // The item that was begun is completed, then there are those within the capacity.
    pipe.allow(100);
    assert!(task.woken());
    assert!(poll(&mut task).is_none());
    assert_eq!(pipe.take(), "101\nlost 5\n107\n108\n109\n");
    assert_eq!((task.get_ref().items(), task.get_ref().lost(), handle.lost()), (5, 5, 5));
}

/// A writer that was woken gets its turn, and one whose socket takes nothing does not.
#[test]
fn sink_gives_turns_to_writers_that_could_write() {
    let (mut sink, handle) = lines(2);
    let (quick, stuck) = (Pipe::new(usize::MAX), Pipe::new(0));
    let mut quick_task = Task::new(handle.join(quick.clone()));
    let mut stuck_task = Task::new(handle.join(stuck.clone()));
    assert!(poll(&mut quick_task).is_none() && poll(&mut stuck_task).is_none());
    send_all(&mut sink, 0..2);
    assert!(quick_task.woken() && stuck_task.woken());
    assert!(poll(&mut stuck_task).is_none() && poll(&mut quick_task).is_none());
    for n in 2..100 {
        // The other one moves on from time to time, and is not waited for by that.
        assert_eq!(send(&mut sink, n).unwrap(), 0, "nothing waits for a full socket");
        flush::<u32, _>(&mut sink);
        assert!(poll(&mut quick_task).is_none());
        stuck.allow(1);
        assert!(poll(&mut stuck_task).is_none());
    }
    // A writer that does not run is not waited for again.
    drop(stuck_task);
    assert_eq!(send(&mut sink, 100).unwrap() + send(&mut sink, 101).unwrap(), 0);
    assert!(send(&mut sink, 102).unwrap() > 0);
    let turns = (103..200).map(|n| send(&mut sink, n).unwrap()).sum::<u32>();
    assert!(turns < 10, "{turns}");
}

#[test]
fn item_that_is_too_large_is_lost_in_its_place() {
    let (sink, handle) = lines(16);
    let mut sink = sink.max_bytes(4);
    let pipes = [Pipe::new(usize::MAX), Pipe::new(usize::MAX)];
    let mut told = Task::new(handle.join(pipes[0].clone()).on_lost(notice));
    let mut silent = Task::new(handle.join(pipes[1].clone()));
    send_all(&mut sink, [1, 10_000, 10_001, 2, 10_002]);
    assert!(poll(&mut told).is_none() && poll(&mut silent).is_none());
    assert_eq!(pipes[0].take(), "1\nlost 2\n2\nlost 1\n");
    assert_eq!(pipes[1].take(), "1\n2\n");
    close::<u32, _>(&mut sink);
    assert_eq!(counts(&poll(&mut told).unwrap()), (2, 3, 0));
    assert_eq!(counts(&poll(&mut silent).unwrap()), (2, 3, 0));
}

#[test]
fn items_without_bytes_are_items() {
    let (mut sink, handle) = writers(4, |(), _: &mut Vec<u8>| Ok(()));
    let pipe = Pipe::new(0);
    let mut task = Task::new(handle.join(pipe.clone()));
    for _ in 0..3 {
        send(&mut sink, ()).unwrap();
    }
    close::<(), _>(&mut sink);
    assert_eq!(counts(&poll(&mut task).unwrap()), (3, 0, 0));
    assert_eq!(pipe.state().writes, 0, "a write of nothing looks like a socket that is closed");
}

#[test]
fn encoder_that_fails_or_panics_ends_its_writers_after_what_came_before() {
    let encode: [Encode<u32>; 2] = [
        |n, bytes| match n {
            3 => {
                bytes.push(b'?');
                Err(ErrorKind::InvalidData.into())
            }
            n => line(n, bytes),
        },
        |n, bytes| {
            bytes.push(b'?');
            assert!(n < 3, "cannot encode {n}");
            bytes.clear();
            line(n, bytes)
        },
    ];
    let messages =
        ["an item could not be encoded: invalid data", "the encoder has panicked: cannot encode 3"];
    for (encode, message) in encode.into_iter().zip(messages) {
        let (mut sink, handle) = writers(16, encode);
        let pipe = Pipe::new(usize::MAX);
        let mut task = Task::new(handle.join(pipe.clone()));
        assert!(poll(&mut task).is_none());
        send(&mut sink, 1).unwrap();
        send(&mut sink, 2).unwrap();
        assert_eq!(send(&mut sink, 3).unwrap_err().to_string(), message);
        assert!(task.woken());
        let written = poll(&mut task).unwrap();
        assert!(matches!(written.end, WriterEnd::Unencoded));
        assert_eq!((counts(&written), &*pipe.take()), ((2, 0, 0), "1\n2\n"));
        assert_eq!(pipe.state().flushes, 1);
        assert!(!pipe.state().is_shut_down, "something is missing");
        assert!(matches!(send(&mut sink, 4), Err(WritersError::Closed)));
        let late = handle.join(Pipe::new(0)).now_or_never().unwrap();
        assert!(matches!(late.end, WriterEnd::Unencoded));
    }
}

#[test]
fn sink_that_is_dropped_ends_its_writers_as_aborted() {
    let (mut sink, handle) = lines(16);
    let pipe = Pipe::new(2);
    let mut task = Task::new(handle.join(pipe.clone()));
    send(&mut sink, 1).unwrap();
    send(&mut sink, 2).unwrap();
    drop(sink);
    assert!(poll(&mut task).is_none(), "there is more to write");
    pipe.allow(100);
    let written = poll(&mut task).unwrap();
    assert!(matches!(written.end, WriterEnd::Aborted));
    assert_eq!((counts(&written), &*pipe.take()), ((2, 0, 0), "1\n2\n"));
    assert!(!pipe.state().is_shut_down);
}

#[test]
fn sink_ends_with_its_last_writer_and_handle() {
    let (mut sink, handle) = lines(16);
    drop(handle);
    assert!(matches!(send(&mut sink, 1), Err(WritersError::Closed)));

    let (mut sink, handle) = lines(1);
    let task = Task::new(handle.join(Pipe::new(0)));
    drop((handle.clone(), handle));
    send(&mut sink, 1).unwrap();
    drop(task);
    // What was known of the room is used up first.
    flush::<u32, _>(&mut sink);
    assert!(matches!(send(&mut sink, 2), Err(WritersError::Closed)));
    // A handle can be made at any time.
    let handle = sink.writers();
    send(&mut sink, 3).unwrap();
    assert!(handle.is_empty());
}

#[test]
fn writer_that_fails_tells_what_it_has_written() {
    let (mut sink, handle) = lines(16);
    let (broken, full) = (Pipe::new(5), Pipe::new(usize::MAX));
    let mut tasks =
        [broken.clone(), full.clone()].map(|pipe| Task::new(handle.join(pipe).on_lost(notice)));
    send_all(&mut sink, 100..104);
    assert!(poll(&mut tasks[0]).is_none());
    broken.set(|state| state.error = Some(ErrorKind::ConnectionReset));
    let written = poll(&mut tasks[0]).unwrap();
    assert_eq!(written.end.to_string(), "failed: connection reset");
    assert_eq!((counts(&written), written.bytes), ((1, 0, 3), 5));
    assert!(tasks[0].get_ref().is_terminated());
    // A writer that takes nothing and does not wait would be polled for ever.
    full.set(|state| state.most = 0);
    let written = poll(&mut tasks[1]).unwrap();
    assert!(
        matches!(written.end, WriterEnd::Failed(error) if error.kind() == ErrorKind::WriteZero)
    );
    assert!(handle.is_empty());
}

/// A socket that fails in its first write. Meanwhile, as another thread could, it sends ten items.
struct Overtaken(Arc<Mutex<WritersSink<Encode<u32>>>>);

impl AsyncWrite for Overtaken {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        send_all(&mut self.0.lock().unwrap(), 1..11);
        Poll::Ready(Err(ErrorKind::ConnectionReset.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn items_that_are_lost_while_a_writer_ends_are_not_among_the_unwritten() {
    let (sink, handle) = lines(4);
    let sink = Arc::new(Mutex::new(sink));
    let mut task = Task::new(handle.join(Overtaken(Arc::clone(&sink))));
    send_all(&mut sink.lock().unwrap(), 0..1);
    let Poll::Ready(written) = task.poll() else { panic!("it has not ended") };
    assert!(matches!(written.end, WriterEnd::Failed(_)), "{written:?}");
    assert_eq!(counts(&written), (0, 7, 4));
    assert_eq!(handle.lost(), 7);
}

#[test]
#[should_panic(expected = "`Writer` was polled after it had completed")]
fn writer_that_is_polled_after_its_end_panics() {
    let (sink, handle) = lines(16);
    drop(sink);
    let mut writer = Box::pin(handle.join(Pipe::new(0)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(writer.as_mut().poll(&mut context).is_ready());
    let _ = writer.as_mut().poll(&mut context);
}

#[test]
fn writer_ends_at_its_limit() {
    let (mut sink, handle) = lines(2);
    let pipe = Pipe::new(usize::MAX);
    let mut task = Task::new(handle.join(pipe.clone()).limit(4).on_lost(notice));
    // Three are lost, of which it gets three.
    send_all(&mut sink, 0..5);
    let written = poll(&mut task).unwrap();
    assert!(matches!(written.end, WriterEnd::Limit), "{written:?}");
    assert_eq!((counts(&written), &*pipe.take()), ((1, 3, 0), "lost 3\n3\n"));
    assert!(pipe.state().is_shut_down && handle.is_empty());

    let none = handle.join(Pipe::new(0)).limit(0).now_or_never().unwrap();
    assert!(matches!(none.end, WriterEnd::Limit));

    // It loses all that is left.
    let pipe = Pipe::new(usize::MAX);
    let mut task = Task::new(handle.join(pipe.clone()).limit(1).on_lost(notice));
    send_all(&mut sink, 0..5);
    assert_eq!(counts(&poll(&mut task).unwrap()), (0, 1, 0));
    assert_eq!(pipe.take(), "lost 1\n");
}

#[test]
fn writer_without_room_is_evicted_also_if_its_socket_is_stuck() {
    let (sink, handle) = lines(4);
    let mut sink = sink.overflow(Overflow::Evict);
    let (quick, stuck) = (Pipe::new(usize::MAX), Pipe::new(3));
    let mut quick_task = Task::new(handle.join(quick.clone()));
    let mut stuck_task = Task::new(handle.join(stuck.clone()));
    assert!(poll(&mut quick_task).is_none() && poll(&mut stuck_task).is_none());
    for n in 0..5 {
        send_all(&mut sink, [n]);
        assert!(poll(&mut quick_task).is_none());
        assert!(stuck_task.poll().is_pending(), "it has begun the second, and has room for four");
    }
    send_all(&mut sink, [5, 6]);
    assert!(stuck_task.woken());
    let written = poll(&mut stuck_task).unwrap();
    assert!(matches!(written.end, WriterEnd::Overflowed));
    assert_eq!(counts(&written), (1, 1, 5));
    assert!(poll(&mut quick_task).is_none());
    assert_eq!(quick.take(), "0\n1\n2\n3\n4\n5\n6\n");
}

#[test]
fn conflating_sink_keeps_the_newest_item() {
    let (sink, handle) = lines(100);
    let mut sink = sink.overflow(Overflow::Conflate);
    let pipe = Pipe::new(usize::MAX);
    let mut task = Task::new(handle.join(pipe.clone()));
    for n in 0..50 {
        assert_eq!(send(&mut sink, n).unwrap(), 0, "losing them is intended");
    }
    flush::<u32, _>(&mut sink);
    assert!(poll(&mut task).is_none());
    assert_eq!((&*pipe.take(), task.get_ref().lost()), ("49\n", 49));
}

#[test]
fn drop_newest_is_refused() {
    let (sink, handle) = lines(16);
    let refused = catch_unwind(AssertUnwindSafe(|| sink.overflow(Overflow::DropNewest)));
    let message = refused.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(*message, "writers that share their items cannot have the policy DropNewest");
    drop(handle);
}

/// The hub waits for all of its writers. One peer does not let the shutdown complete, and another one
/// stops in the middle of the last item.
#[tokio::test(start_paused = true)]
async fn writers_that_hang_at_their_limits_hold_up_nothing() {
    let hub = Hub::new();
    let terms = Terms::new().overflow(Overflow::Wait).buffer(1);
    let open = Pipe::new(usize::MAX);
    open.set(|state| state.hangs_at_shutdown = true);
    let (half, other) = (Pipe::new(1), Pipe::new(usize::MAX));
    let attach =
        |pipe: &Pipe, terms| tokio::spawn(hub.attach_writer("a", pipe.clone(), line, terms));
    let leaving = [attach(&open, terms.limit(1)), attach(&half, terms.limit(1))];
    let stays = attach(&other, terms);
    for n in 0..4 {
        hub.publish("a", n).await.unwrap();
    }
    settle().await;
    assert_eq!((hub.blocked_on().await, &*other.take()), (None, "0\n1\n2\n3\n"));
    assert!(leaving.iter().all(|writer| !writer.is_finished()));

    // The key is free when only such writers are left.
    stays.abort();
    assert!(stays.await.is_err());
    assert_eq!(hub.subscribers(&"a").await, 0);

    open.set(|state| state.hangs_at_shutdown = false);
    half.allow(1);
    for (writer, pipe) in leaving.into_iter().zip([open, half]) {
        let written = writer.await.unwrap();
        assert!(matches!(written.end, WriterEnd::Limit), "{written:?}");
        assert_eq!((counts(&written), &*pipe.take()), ((1, 0, 0), "0\n"));
        assert!(pipe.state().is_shut_down);
    }
}

/// The writer ends when its socket takes the item that came before. Others come in the meantime.
#[tokio::test(start_paused = true)]
async fn writer_that_is_stuck_when_its_encoder_fails_does_not_end_those_that_come_later() {
    let hub = Hub::new();
    let fails = |n: u32, bytes: &mut Vec<u8>| match n {
        1 => Err(ErrorKind::InvalidData.into()),
        n => line(n, bytes),
    };
    let attach =
        |pipe: &Pipe| tokio::spawn(hub.attach_writer("a", pipe.clone(), fails, Terms::new()));
    let (stuck, late, later) = (Pipe::new(0), Pipe::new(usize::MAX), Pipe::new(usize::MAX));
    let first = attach(&stuck);
    for n in 0..2 {
        hub.publish("a", n).await.unwrap();
    }
    assert_eq!(hub.subscribers(&"a").await, 0);
    let others = [attach(&late), attach(&later)];
    assert_eq!(hub.subscribers(&"a").await, 1);
    hub.publish("a", 2).await.unwrap();
    settle().await;
    assert_eq!((&*late.take(), &*later.take()), ("2\n", "2\n"));

    stuck.allow(usize::MAX);
    let written = first.await.unwrap();
    assert!(matches!(written.end, WriterEnd::Unencoded), "{written:?}");
    assert_eq!(counts(&written), (1, 0, 0));
    let again = attach(&stuck);
    assert_eq!(hub.subscribers(&"a").await, 1, "it shares the sink of the others");
    drop(hub);
    for writer in others.into_iter().chain([again]) {
        assert!(matches!(writer.await.unwrap().end, WriterEnd::Closed));
    }
}

/// Waits for the end of a writer, which comes within the time of the test.
async fn ended(writer: JoinHandle<Written>) -> Written {
    timeout(Duration::from_secs(600), writer).await.expect("it ends").unwrap()
}

#[tokio::test(start_paused = true)]
async fn writer_whose_socket_takes_nothing_is_ended_by_its_timeout() {
    let (mut sink, handle) = lines(16);
    let pipe = Pipe::new(3);
    let time = Duration::from_secs(5);
    let writer = tokio::spawn(handle.join(pipe.clone()).stall_timeout(time));
    send_all(&mut sink, 0..3);
    // Each byte is progress.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(4)).await;
        pipe.allow(1);
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(!writer.is_finished());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!writer.is_finished(), "everything is written, so it waits for items");
    tokio::time::sleep(Duration::from_secs(60)).await;
    send_all(&mut sink, [1_000]);
    let written = ended(writer).await;
    assert!(matches!(written.end, WriterEnd::Stalled), "{written:?}");
    assert_eq!((counts(&written), written.bytes), ((3, 0, 1), 6));

    // Also while the hub is gone.
    let writer = tokio::spawn(handle.join(Pipe::new(1)).stall_timeout(time));
    send_all(&mut sink, [1]);
    drop(sink);
    assert!(matches!(ended(writer).await.end, WriterEnd::Stalled));
    // Its socket has taken nothing of an item, which is lost by now: it waits for items again.
    let (sink, handle) = lines(1);
    let mut sink = sink.max_bytes(2);
    let writer = tokio::spawn(handle.join(Pipe::new(0)).stall_timeout(time));
    send_all(&mut sink, [1]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    send_all(&mut sink, [1_000]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    drop(sink);
    let written = ended(writer).await;
    assert!(matches!(written.end, WriterEnd::Aborted), "{written:?}");
    assert_eq!(counts(&written), (0, 2, 0));

    // No time-out is too long.
    let long = tokio::spawn(handle.join(Pipe::new(0)).stall_timeout(Duration::MAX));
    assert!(matches!(ended(long).await.end, WriterEnd::Aborted));
}
