//! One demux per core, behind a first demux that distributes the items by a hash of their key.
//!
//! ```sh
//! cargo run --release --example shards
//! cargo run --release --example shards -- --work 0,100,500 --batch 256
//! ```
//!
//! ```text
//!                                ┌─▶ channel ─▶ demux by key ─▶ sinks     a thread for each shard
//! items ─▶ demux by hash ─▶ batch┤
//!                                └─▶ channel ─▶ demux by key ─▶ sinks
//! ```
//!
//! The output shows when this is worth it: a demux costs a few nanoseconds per item, a channel
//! between threads some hundred nanoseconds. Shards are faster if the *sinks* work on each item for
//! longer than the channel takes. Batches of items make the channel cheaper. Where shards are
//! slower, the printed speed-up is less than one.
//!
//! Items of one key stay in order, because they all take the same path. The sinks check that.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;
use std::io::{self, Write};
use std::num::{NonZeroU64, NonZeroUsize};
use std::pin::Pin;
use std::process::ExitCode;
use std::task::{Context, Poll, ready};
use std::thread;
use std::time::{Duration, Instant};

use futures::channel::mpsc::{self, SendError};
use futures::executor::block_on;
use futures::stream::BoxStream;
use futures::{Sink, SinkExt, Stream, StreamExt, stream};
use stream_demux::{DemuxStreamExt, Totals};

#[derive(Clone, Copy)]
struct Item {
    key: u64,
    number: u64,
}

/// The numbers from 0; each has the key after that of the number before it.
fn items(settings: &Settings) -> impl Stream<Item = Item> + use<> {
    let keys = settings.keys.get();
    stream::iter((0..settings.items.get()).map(move |number| Item { key: number % keys, number }))
}

/// A sink that works on each item: a number of multiplications, each of which waits for the one
/// before it, a nanosecond or two.
struct Work {
    multiplications: u64,
    /// The next item, because items arrive in order.
    next: u64,
    keys: u64,
}

impl Sink<Item> for Work {
    type Error = String;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), String>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, Item { key, number }: Item) -> Result<(), String> {
        if number != self.next {
            return Err(format!("key {key}: expected item {}, received {number}", self.next));
        }
        self.next += self.keys;
        let mut value = number;
        for _ in 0..self.multiplications {
            value = black_box(value.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        }
        black_box(value);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), String>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), String>> {
        Poll::Ready(Ok(()))
    }
}

/// One demux for the sinks of these keys.
fn route(
    input: impl Stream<Item = Item>,
    keys: impl Iterator<Item = u64>,
    multiplications: u64,
    settings: &Settings,
) -> Result<Totals, String> {
    let all = settings.keys.get();
    let sinks = keys.map(|key| (key, Work { multiplications, next: key, keys: all }));
    let mut wrong = None;
    let demux = input
        .demux_by(|item| item.key, stream::iter(sinks))
        .on_error(|_, error| wrong = wrong.take().or(Some(error)));
    let totals = block_on(demux);
    wrong.map_or(Ok(totals), Err)
}

/// Collects items for a sink of vectors. The demux flushes it when the input pauses, and every
/// 16,384 items while the input is busy, so no item stays in here.
struct Batch<S> {
    sink: S,
    items: Vec<Item>,
    size: usize,
}

impl<S: Sink<Vec<Item>> + Unpin> Batch<S> {
    fn new(size: usize, sink: S) -> Self {
        Self { sink, items: Vec::with_capacity(size), size }
    }

    /// Sends the items that were collected.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        if !self.items.is_empty() {
            ready!(self.sink.poll_ready_unpin(cx))?;
            let items = std::mem::replace(&mut self.items, Vec::with_capacity(self.size));
            self.sink.start_send_unpin(items)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Sink<Vec<Item>> + Unpin> Sink<Item> for Batch<S> {
    type Error = S::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        if self.items.len() < self.size { Poll::Ready(Ok(())) } else { self.poll_send(cx) }
    }

    fn start_send(mut self: Pin<&mut Self>, item: Item) -> Result<(), S::Error> {
        self.items.push(item);
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        ready!(self.poll_send(cx))?;
        self.sink.poll_flush_unpin(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        ready!(self.poll_send(cx))?;
        self.sink.poll_close_unpin(cx)
    }
}

/// A channel to a shard: the sink in the first demux, and the input of the shard's demux.
type Ends = (Pin<Box<dyn Sink<Item, Error = SendError>>>, BoxStream<'static, Item>);

/// How many items may be on their way to a shard.
const ROOM: usize = 4_096;

fn item_by_item() -> Ends {
    let (sender, receiver) = mpsc::channel(ROOM);
    (Box::pin(sender), receiver.boxed())
}

fn in_batches(size: usize) -> Ends {
    let (sender, receiver) = mpsc::channel(ROOM.div_ceil(size));
    (Box::pin(Batch::new(size, sender)), receiver.flat_map(stream::iter).boxed())
}

/// Everything in one demux, on this thread.
fn one(multiplications: u64, settings: &Settings) -> Result<Totals, String> {
    route(items(settings), 0..settings.keys.get(), multiplications, settings)
}

/// One demux per shard, each on a separate thread, and the first demux on this thread.
fn sharded(
    ends: &dyn Fn() -> Ends,
    multiplications: u64,
    settings: &Settings,
) -> Result<Totals, String> {
    // This hasher differs from that of the demuxes: the keys of a shard share a part of this hash,
    // and a table with the same hasher would use only a part of its buckets.
    let (hasher, shards) = (RandomState::new(), settings.shards.get());
    let mut keys_of = HashMap::<usize, Vec<u64>>::new();
    let shard_of = move |key: u64| {
        usize::try_from(hasher.hash_one(key) % shards as u64).expect("less than there are shards")
    };
    for key in 0..settings.keys.get() {
        keys_of.entry(shard_of(key)).or_default().push(key);
    }
    thread::scope(|scope| {
        let (mut orders, mut threads) = (Vec::new(), Vec::new());
        for shard in 0..shards {
            let (sender, receiver) = ends();
            let keys = keys_of.remove(&shard).unwrap_or_default().into_iter();
            let thread = thread::Builder::new()
                .spawn_scoped(scope, move || route(receiver, keys, multiplications, settings));
            threads.push(thread.map_err(|error| format!("cannot start a thread: {error}"))?);
            orders.push((shard, sender));
        }
        let mut gone = None;
        let demux = items(settings)
            .demux_by(|item| shard_of(item.key), stream::iter(orders))
            .on_error(|to, error: SendError| gone = Some(format!("shard {}: {error}", to.key)));
        let mut totals = block_on(demux);
        totals.delivered = 0;
        for thread in threads {
            // The counts of the first demux, and the sum of what the shards delivered.
            totals.delivered += thread.join().map_err(|_| "a shard panicked")??.delivered;
        }
        gone.map_or(Ok(totals), Err)
    })
}

/// The median time of several runs. Returns an error if an item did not arrive.
fn time(settings: &Settings, run: impl Fn() -> Result<Totals, String>) -> Result<Duration, String> {
    let mut times = Vec::new();
    for _ in 0..settings.rounds.get() {
        let start = Instant::now();
        let totals = run()?;
        times.push(start.elapsed());
        if totals.delivered != settings.items.get() {
            return Err(format!("{} items were sent, but arrived {totals:?}", settings.items));
        }
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

// ---- the command line ---------------------------------------------------------------------------

const USAGE: &str =
    "usage: shards [--work N,N,...] [--shards N] [--batch N] [--items N] [--keys N] [--rounds N]

  --work N,N,...  multiplications that a sink does for an item, a line for each (0,1000)
  --shards N      how many demuxes there are behind the first (one for each core)
  --batch N       items that go to a shard together (64)
  --items N       how many there are; a tenth of that where the work is heavy (1000000)
  --keys N        how many keys they have (1000)
  --rounds N      how often each is timed; the median is printed (3)";

/// From this number of multiplications on, the work counts as heavy.
const HEAVY: u64 = 500;

struct Settings {
    work: Vec<u64>,
    shards: NonZeroUsize,
    batch: NonZeroUsize,
    items: NonZeroU64,
    keys: NonZeroU64,
    rounds: NonZeroUsize,
}

impl Settings {
    /// Returns `None` if help was requested.
    fn from_arguments() -> Result<Option<Self>, lexopt::Error> {
        use lexopt::prelude::{Long, ValueExt};
        let mut settings = Self {
            work: vec![0, 1_000],
            shards: thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            batch: const { NonZeroUsize::new(64).unwrap() },
            items: const { NonZeroU64::new(1_000_000).unwrap() },
            keys: const { NonZeroU64::new(1_000).unwrap() },
            rounds: const { NonZeroUsize::new(3).unwrap() },
        };
        let mut arguments = lexopt::Parser::from_env();
        while let Some(argument) = arguments.next()? {
            match argument {
                Long("work") => {
                    let list = arguments.value()?.string()?;
                    let numbers = list.split(',').map(str::parse);
                    settings.work = numbers.collect::<Result<_, _>>().map_err(|error| {
                        lexopt::Error::Custom(format!("--work {list}: {error}").into())
                    })?;
                }
                Long("shards") => settings.shards = arguments.value()?.parse()?,
                Long("batch") => settings.batch = arguments.value()?.parse()?,
                Long("items") => settings.items = arguments.value()?.parse()?,
                Long("keys") => settings.keys = arguments.value()?.parse()?,
                Long("rounds") => settings.rounds = arguments.value()?.parse()?,
                Long("help") => return Ok(None),
                _ => return Err(argument.unexpected()),
            }
        }
        if settings.batch.get() > ROOM {
            let wrong = format!("--batch {}: at most {ROOM}", settings.batch);
            return Err(wrong.as_str().into());
        }
        Ok(Some(settings))
    }
}

fn compare(settings: &mut Settings) -> Result<(), String> {
    let print = |text: String| {
        writeln!(io::stdout(), "{text}").map_err(|error| format!("cannot print: {error}"))
    };
    let (batch, items) = (settings.batch, settings.items);
    print(format!(
        "{} shards, {} cores, {} keys; ns an item, and the speed-up over one demux\n",
        settings.shards,
        thread::available_parallelism().map_or_else(|_| "?".to_owned(), |n| n.to_string()),
        settings.keys
    ))?;
    print(format!(
        "{:>15} {:>10} {:>20} {:>20}",
        "multiplications",
        "one demux",
        "item by item",
        format!("batches of {batch}")
    ))?;
    for work in settings.work.clone() {
        let tenth = NonZeroU64::new(items.get() / 10).unwrap_or(NonZeroU64::MIN);
        settings.items = if work < HEAVY { items } else { tenth };
        let per_item = |time: Duration| {
            let tenths = time.as_nanos() * 10 / u128::from(settings.items.get());
            format!("{}.{}", tenths / 10, tenths % 10)
        };
        let one = time(settings, || one(work, settings))?;
        let compared = |ends: &dyn Fn() -> Ends| -> Result<String, String> {
            let time = time(settings, || sharded(ends, work, settings))?;
            Ok(format!("{} ({:.2} x)", per_item(time), one.div_duration_f64(time)))
        };
        let one_by_one = compared(&item_by_item)?;
        let (one, batched) = (per_item(one), compared(&|| in_batches(batch.get()))?);
        print(format!("{work:>15} {one:>10} {one_by_one:>20} {batched:>20}"))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut settings = match Settings::from_arguments() {
        Ok(Some(settings)) => settings,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("shards: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match compare(&mut settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shards: {error}");
            ExitCode::FAILURE
        }
    }
}
