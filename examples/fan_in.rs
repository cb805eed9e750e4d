//! Many producers, one consumer: a buffer behind the standard library's mutex, which the consumer
//! swaps for an empty one and reads without the lock, in front of a demux.
//!
//! ```sh
//! cargo run --release --example fan_in
//! cargo run --release --example fan_in -- --producers 1000 --samples 4000000
//! cargo run --release --example fan_in -- --producers 4 --threads
//! ```
//!
//! The same samples are also sent through tokio's bounded channel, item by item and with
//! `recv_many`. Each time the sinks check that every sample of every producer arrives once and in
//! order; otherwise the program fails. You can copy [`channel`], [`Sender`] and [`Receiver`]: about
//! a hundred lines, of which `Sender::poll_send` and `Receiver::poll_next` are the important ones.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, Write};
use std::mem;
use std::num::{NonZeroU64, NonZeroUsize};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::{Sink, Stream, stream};
use stream_demux::DemuxStreamExt;
use tokio::sync::{Semaphore, mpsc};

// ---- the swapped buffer -------------------------------------------------------------------------

/// A channel with room for `room` items. Twice as many are in memory while the consumer reads one
/// buffer and the producers fill the other.
fn channel<T>(room: NonZeroUsize) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Mutex::new(Shared {
        items: VecDeque::new(),
        room: room.get(),
        senders: 1,
        is_abandoned: false,
        receiver: None,
        waiting: Vec::new(),
        swaps: 0,
    }));
    (Sender(Arc::clone(&shared)), Receiver { shared, batch: VecDeque::new() })
}

struct Shared<T> {
    items: VecDeque<T>,
    room: usize,
    senders: usize,
    is_abandoned: bool,
    /// The waker of the consumer, if it is waiting.
    receiver: Option<Waker>,
    /// Producers that found no room since the last swap. The next swap wakes them all.
    waiting: Vec<Waker>,
    swaps: u64,
}

/// No foreign code runs under this lock: wakers are fired and items dropped after it is released.
fn lock<T>(shared: &Mutex<Shared<T>>) -> MutexGuard<'_, Shared<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sending end. Works on any thread and with any runtime.
struct Sender<T>(Arc<Mutex<Shared<T>>>);

/// The place of a waiting producer: its index in `waiting`, and before which swap.
type Place = Option<(u64, usize)>;

impl<T> Sender<T> {
    /// Waits until there is room. Returns the item if the consumer was dropped.
    async fn send(&self, item: T) -> Result<(), T> {
        let (mut item, mut place) = (Some(item), None);
        poll_fn(|cx| self.poll_send(&mut item, &mut place, cx)).await
    }

    fn poll_send(
        &self,
        item: &mut Option<T>,
        place: &mut Place,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), T>> {
        let mut shared = lock(&self.0);
        if shared.is_abandoned {
            return Poll::Ready(item.take().map_or(Ok(()), Err));
        }
        if shared.items.len() >= shared.room {
            // If it is polled again before there is room, it keeps its place, so the list stays
            // short.
            match *place {
                Some((swaps, at)) if swaps == shared.swaps => {
                    shared.waiting[at].clone_from(cx.waker());
                }
                _ => {
                    *place = Some((shared.swaps, shared.waiting.len()));
                    shared.waiting.push(cx.waker().clone());
                }
            }
            return Poll::Pending;
        }
        shared.items.extend(item.take());
        let receiver = shared.receiver.take();
        drop(shared);
        receiver.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(()))
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        lock(&self.0).senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut shared = lock(&self.0);
        shared.senders -= 1;
        let receiver = if shared.senders == 0 { shared.receiver.take() } else { None };
        drop(shared);
        receiver.into_iter().for_each(Waker::wake);
    }
}

/// The receiving end: a stream, which ends when all senders were dropped and all items are read.
struct Receiver<T> {
    shared: Arc<Mutex<Shared<T>>>,
    batch: VecDeque<T>,
}

impl<T> Unpin for Receiver<T> {}

impl<T> Stream for Receiver<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let Self { shared, batch } = &mut *self;
        // The lock is taken once per batch, not once per item.
        if batch.is_empty() {
            let mut shared = lock(shared);
            mem::swap(&mut shared.items, batch);
            if batch.is_empty() && shared.senders > 0 {
                shared.receiver = Some(cx.waker().clone());
                return Poll::Pending;
            }
            shared.swaps += 1;
            let waiting = mem::take(&mut shared.waiting);
            drop(shared);
            waiting.into_iter().for_each(Waker::wake);
        }
        Poll::Ready(batch.pop_front())
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.is_abandoned = true;
        let (items, waiting) = (mem::take(&mut shared.items), mem::take(&mut shared.waiting));
        drop(shared);
        drop(items);
        waiting.into_iter().for_each(Waker::wake);
    }
}

// ---- the samples, and the sinks that check them -------------------------------------------------

/// How many sinks share the producers.
const KEYS: usize = 16;

#[derive(Clone, Copy)]
struct Sample {
    producer: usize,
    number: u64,
}

/// A sink that checks what it receives: each number of each of its producers once, in order.
struct Ledger {
    key: usize,
    /// The next number of its first producer, its second, …
    next: Vec<u64>,
    /// How many samples each producer sends.
    each: u64,
}

impl Ledger {
    fn new(key: usize, settings: &Settings) -> Self {
        let producers = (key..settings.producers.get()).step_by(KEYS).len();
        Self { key, next: vec![0; producers], each: settings.each() }
    }
}

impl Sink<Sample> for Ledger {
    type Error = String;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), String>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(
        mut self: Pin<&mut Self>,
        Sample { producer, number }: Sample,
    ) -> Result<(), String> {
        let next = &mut self.next[producer / KEYS];
        if *next != number {
            return Err(format!("producer {producer}: expected sample {next}, received {number}"));
        }
        *next += 1;
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), String>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), String>> {
        let Self { key, next, each } = &*self;
        let short = next.iter().position(|received| received != each);
        Poll::Ready(short.map_or(Ok(()), |at| {
            let producer = at * KEYS + key;
            Err(format!("producer {producer}: received {} samples of {each}", next[at]))
        }))
    }
}

// ---- three ways from the producers to the demux -------------------------------------------------

/// A producer's end of any of the channels. Returns `false` if the consumer was dropped.
trait Give: Clone + Send + 'static {
    fn give(&self, sample: Sample) -> impl Future<Output = bool> + Send;
}

impl Give for Sender<Sample> {
    async fn give(&self, sample: Sample) -> bool {
        self.send(sample).await.is_ok()
    }
}

impl Give for mpsc::Sender<Sample> {
    async fn give(&self, sample: Sample) -> bool {
        self.send(sample).await.is_ok()
    }
}

const WAYS: [&str; 3] = ["swapped buffer", "tokio mpsc, recv_many", "tokio mpsc"];

/// Sends all samples through one channel, and returns how long that took. Returns an error if a
/// sample is missing or arrives twice.
async fn run(way: &str, settings: Settings) -> Result<Duration, String> {
    let room = settings.room;
    if way == WAYS[0] {
        let (sender, receiver) = channel(room);
        return time(settings, sender, receiver).await;
    }
    let (sender, mut receiver) = mpsc::channel(room.get());
    if way == WAYS[1] {
        let mut batch = Vec::new();
        let batches = stream::poll_fn(move |cx| {
            if batch.is_empty() {
                ready!(receiver.poll_recv_many(cx, &mut batch, room.get()));
                batch.reverse(); // so that `pop` returns the oldest item first
            }
            Poll::Ready(batch.pop())
        });
        return time(settings, sender, batches).await;
    }
    time(settings, sender, stream::poll_fn(move |cx| receiver.poll_recv(cx))).await
}

async fn time(
    settings: Settings,
    sender: impl Give,
    samples: impl Stream<Item = Sample> + Send + 'static,
) -> Result<Duration, String> {
    let wrong = Arc::new(Mutex::new(Vec::new()));
    let errors = Arc::clone(&wrong);
    let ledgers = (0..KEYS).map(move |key| (key, Ledger::new(key, &settings)));
    let demux = samples.demux_by(|sample| sample.producer % KEYS, stream::iter(ledgers)).on_error(
        move |_, error| errors.lock().unwrap_or_else(PoisonError::into_inner).push(error),
    );

    let start = Instant::now();
    let demux = tokio::spawn(demux);
    for producer in 0..settings.producers.get() {
        let sender = sender.clone();
        let samples = async move {
            for number in 0..settings.each() {
                if !sender.give(Sample { producer, number }).await {
                    break;
                }
            }
        };
        if settings.threads {
            thread::Builder::new().spawn(|| block_on(samples)).map_err(|error| {
                format!("cannot start the thread of producer {producer}: {error}")
            })?;
        } else {
            tokio::spawn(samples);
        }
    }
    drop(sender);
    let totals = demux.await.map_err(|error| error.to_string())?;
    let elapsed = start.elapsed();

    if let Some(error) = wrong.lock().unwrap_or_else(PoisonError::into_inner).first() {
        return Err(error.clone());
    }
    if totals.delivered != settings.total() {
        return Err(format!("{} samples were sent, but delivered {totals:?}", settings.total()));
    }
    Ok(elapsed)
}

// ---- the command line ---------------------------------------------------------------------------

const USAGE: &str =
    "usage: fan_in [--producers N] [--samples N] [--room N] [--rounds N] [--threads]

  --producers N  how many send (16)
  --samples N    how many samples they send together, rounded down to as many of each (1000000)
  --room N       how many samples a channel has room for (4096)
  --rounds N     each way is timed so often, and the median printed (5)
  --threads      a thread for each producer instead of a task";

#[derive(Clone, Copy)]
struct Settings {
    producers: NonZeroUsize,
    samples: NonZeroU64,
    room: NonZeroUsize,
    rounds: NonZeroUsize,
    threads: bool,
}

impl Settings {
    /// Returns `None` if help was requested.
    fn from_arguments() -> Result<Option<Self>, lexopt::Error> {
        use lexopt::prelude::{Long, ValueExt};
        let mut settings = Self {
            producers: const { NonZeroUsize::new(16).unwrap() },
            samples: const { NonZeroU64::new(1_000_000).unwrap() },
            room: const { NonZeroUsize::new(4_096).unwrap() },
            rounds: const { NonZeroUsize::new(5).unwrap() },
            threads: false,
        };
        let mut arguments = lexopt::Parser::from_env();
        while let Some(argument) = arguments.next()? {
            match argument {
                Long("producers") => settings.producers = arguments.value()?.parse()?,
                Long("samples") => settings.samples = arguments.value()?.parse()?,
                Long("room") => settings.room = arguments.value()?.parse()?,
                Long("rounds") => settings.rounds = arguments.value()?.parse()?,
                Long("threads") => settings.threads = true,
                Long("help") => return Ok(None),
                _ => return Err(argument.unexpected()),
            }
        }
        if settings.room.get() > Semaphore::MAX_PERMITS {
            return Err(format!("--room: tokio has no channel for {}", settings.room)
                .as_str()
                .into());
        }
        if settings.each() == 0 {
            let Self { producers, samples, .. } = settings;
            let wrong = format!("{producers} producers cannot share {samples} samples");
            return Err(wrong.as_str().into());
        }
        Ok(Some(settings))
    }

    fn each(&self) -> u64 {
        self.samples.get() / self.producers.get() as u64
    }

    fn total(&self) -> u64 {
        self.each() * self.producers.get() as u64
    }
}

/// Runs each channel once, then each again, so that other load of the machine affects all of them.
async fn compare(settings: Settings) -> Result<(), String> {
    let mut times = WAYS.map(|_| Vec::new());
    for _ in 0..settings.rounds.get() {
        for (way, times) in WAYS.iter().zip(&mut times) {
            times.push(run(way, settings).await.map_err(|error| format!("{way}: {error}"))?);
        }
    }
    let total = settings.total();
    let kind = if settings.threads { "threads" } else { "tasks" };
    let mut report = vec![format!(
        "{total} samples of {} {kind}, each received once and in order",
        settings.producers
    )];
    for (way, mut times) in WAYS.iter().zip(times) {
        times.sort_unstable();
        let tenths = times[times.len() / 2].as_nanos() * 10 / u128::from(total);
        report.push(format!("{way:22} {:>5}.{} ns a sample", tenths / 10, tenths % 10));
    }
    writeln!(io::stdout(), "{}", report.join("\n"))
        .map_err(|error| format!("cannot print: {error}"))
}

#[tokio::main]
async fn main() -> ExitCode {
    let settings = match Settings::from_arguments() {
        Ok(Some(settings)) => settings,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("fan_in: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match compare(settings).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fan_in: {error}");
            ExitCode::FAILURE
        }
    }
}
