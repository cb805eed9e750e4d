//! The cost of a line to one of many TCP clients over loopback.
//!
//! The time is the processor time of the threads that run the program, from the first line until
//! the last one has arrived. The clock on the wall is read as well. Closing is not timed.

pub(crate) mod programs;

use std::future::poll_fn;
use std::hint::black_box;
use std::task::Poll;
use std::time::Instant;

use cpu_time::ProcessTime;
use futures::channel::oneshot;
use futures::{FutureExt, Stream, StreamExt, stream};
use tokio::sync::mpsc;

use self::programs::Program;
use crate::clients::Clients;
use crate::measure::{Contender, Group, Run};
use crate::parts::Dice;
use crate::receiving::Receiving;
use crate::sockets::{self, Client, Line};
use crate::threads::Threads;

/// Where the lines come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feed {
    /// A stream that is always ready.
    Saturated,
    /// A bounded tokio channel of this size, filled by a task on the same runtime.
    Channel(usize),
}

/// How the lines are distributed to the clients.
#[derive(Debug, Clone, Copy)]
pub enum Keys {
    /// Each in turn.
    RoundRobin,
    /// A tenth of the clients receives almost half of the lines.
    Skewed,
}

/// The job of all contenders.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// The number of clients.
    pub clients: usize,
    /// Where the lines come from.
    pub feed: Feed,
    /// How the lines are distributed.
    pub keys: Keys,
    /// How many threads run the tasks.
    pub threads: Threads,
}

/// The contender that sends each line and waits for its flush.
pub const SEND: &str = "send().await";
/// The contender with a task per client that takes all lines there are.
pub const RECV_MANY: &str = "recv_many";
/// The contender that reads the channel and writes nothing.
pub const READING: &str = "reading alone";

/// Returns the contenders. The demux sends `lines` lines, the slower ones fewer.
#[must_use]
pub fn group(job: Job, lines: u64) -> Group {
    let contender =
        |name, lines, program| Contender::new(name, lines, move |lines| run(job, program, lines));
    let mut contenders =
        vec![contender("demux", lines, Program::Demux), contender(SEND, lines / 10, Program::Send)];
    match job.feed {
        Feed::Saturated => {
            contenders.push(contender(RECV_MANY, lines / 10, Program::ReceiveMany));
            contenders.push(contender("forward, futures", lines, Program::Forward));
            contenders.push(contender("bare loop", lines, Program::Bare));
        }
        Feed::Channel(size) => {
            let fewer = lines / 3;
            contenders.push(contender(RECV_MANY, fewer, Program::ReceiveMany));
            contenders.push(contender("forward, futures", fewer, Program::Forward));
            contenders.push(contender("one loop", fewer, Program::OneLoop));
            contenders.push(contender("broadcast", fewer, Program::Broadcast));
            let read = move |lines| read_alone(job, size, lines);
            contenders.push(Contender::new(READING, lines, read));
        }
    }
    Group::new(format!("tcp/{}", describe(job)), contenders)
}

/// A demux with nothing set writes lines from a tokio channel of 1,024 to clients, on one thread.
///
/// # Panics
///
/// Panics if there are more than 1,000 clients.
#[must_use]
pub fn default_case(clients: u64, lines: u64) -> Run {
    let (clients, feed) = (clients as usize, Feed::Channel(1_024));
    let job = Job { clients, feed, keys: Keys::RoundRobin, threads: Threads::One };
    run(job, Program::Demux, lines)
}

fn describe(job: Job) -> String {
    let Job { clients, feed, keys, threads } = job;
    let feed = match feed {
        Feed::Saturated => "saturated".to_owned(),
        Feed::Channel(size) => format!("channel of {size}"),
    };
    let keys = match keys {
        Keys::RoundRobin => "",
        Keys::Skewed => ", skewed",
    };
    format!("{clients} clients{keys}, {feed}, {}", threads.name())
}

fn run(job: Job, program: Program, lines: u64) -> Run {
    let (sockets, clients) = sockets::connect(job.clients);
    let mut clients = Clients::start(clients.into_iter().enumerate().collect(), lines, 1);
    let runtime = job.threads.runtime();
    let run = runtime.block_on(async {
        let sockets = sockets.into_iter().map(sockets::framed).collect();
        let (end, ended) = oneshot::channel();
        let (start, start_on_wall) = (ProcessTime::now(), Instant::now());
        let writer = tokio::spawn(write_all(job, program, lines, sockets, ended));
        let arrived = clients.burst_arrived().await;
        end.send(()).expect("the input is open");
        writer.await.expect("the writer did not panic");
        let processor = arrived.process.duration_since(start).saturating_sub(arrived.clients);
        let wall = Some(arrived.at.duration_since(start_on_wall));
        Run { wall, ..Run::new(processor, lines, lines) }
    });
    drop(runtime);
    clients.join();
    run
}

/// Creates the input and writes it to the clients. The input stays open until `ended` completes, so
/// that the last lines are not flushed because it ends.
async fn write_all(
    job: Job,
    program: Program,
    lines: u64,
    clients: Vec<Client>,
    ended: oneshot::Receiver<()>,
) {
    let lines = stream::iter(make_lines(job, lines));
    match job.feed {
        Feed::Saturated => program.run(lines.chain(nothing_until(ended)), clients).await,
        Feed::Channel(size) => {
            let (sender, receiver) = mpsc::channel(size);
            tokio::spawn(produce(lines, sender, ended));
            program.run(Receiving(receiver), clients).await;
        }
    }
}

/// Reads the channel as the demux does while it waits for more lines: until nothing is ready, and
/// again when other tasks have run. It writes nothing, so its time is that of the channel and the
/// runtime.
fn read_alone(job: Job, size: usize, lines: u64) -> Run {
    job.threads.runtime().block_on(async {
        let (end, ended) = oneshot::channel();
        let (sender, mut receiver) = mpsc::channel(size);
        let (start, start_on_wall) = (ProcessTime::now(), Instant::now());
        tokio::spawn(produce(stream::iter(make_lines(job, lines)), sender, ended));
        let mut left = lines;
        let reader = poll_fn(move |cx| {
            while left > 0 {
                let Poll::Ready(line) = receiver.poll_recv(cx) else {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                };
                black_box(line.expect("the input is open").bytes());
                left -= 1;
            }
            Poll::Ready(())
        });
        tokio::spawn(reader).await.expect("the reader did not panic");
        let (processor, wall) = (start.elapsed(), Some(start_on_wall.elapsed()));
        end.send(()).expect("the input is open");
        Run { wall, ..Run::new(processor, lines, lines) }
    })
}

fn nothing_until<T>(mut ended: oneshot::Receiver<()>) -> impl Stream<Item = T> {
    stream::poll_fn(move |cx| ended.poll_unpin(cx).map(|_| None))
}

async fn produce(
    mut lines: impl Stream<Item = Line> + Unpin,
    sender: mpsc::Sender<Line>,
    ended: oneshot::Receiver<()>,
) {
    while let Some(line) = lines.next().await {
        sender.send(line).await.expect("the receiver is open");
    }
    let _ = ended.await;
}

fn make_lines(job: Job, lines: u64) -> impl Iterator<Item = Line> {
    let mut dice = Dice::default();
    let clients = job.clients as u64;
    (0..lines).map(move |number| {
        let key = match job.keys {
            Keys::RoundRobin => number % clients,
            Keys::Skewed => {
                let (one, two, three) =
                    (dice.below(1 << 10), dice.below(1 << 10), dice.below(1 << 10));
                (one * two * three * clients) >> 30
            }
        };
        Line::new(key as usize)
    })
}
