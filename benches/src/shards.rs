//! Two demux tasks on two cores, behind a first one that splits the items by hash.

use std::hash::BuildHasher;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::thread;
use std::time::Instant;

use futures::channel::mpsc::channel;
use futures::executor::block_on;
use futures::{Sink, Stream, stream};
use stream_demux::{DefaultHashBuilder, DemuxStreamExt};

use crate::measure::{Contender, Group, Run};
use crate::parts::{Clock, Item, Numbers};

const KEYS: u64 = 1_000;

/// Compares one demux with two shards. A sink does `rounds` rounds of work on each item.
#[must_use]
pub fn group(rounds: u64, items: u64) -> Group {
    Group::new(
        format!("shards/sinks work {rounds} rounds"),
        [
            Contender::new("one demux", items, move |items| one_demux(rounds, items)),
            Contender::new("two shards", items, move |items| two_shards(rounds, items)),
        ],
    )
}

/// A sink that works on each item.
struct WorkingSink {
    rounds: u64,
    sum: u64,
    total_sum: Arc<AtomicU64>,
}

impl Drop for WorkingSink {
    fn drop(&mut self) {
        self.total_sum.fetch_add(self.sum, Relaxed);
    }
}

impl Sink<Item> for WorkingSink {
    type Error = ();

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, item: Item) -> Result<(), ()> {
        let mut work = item.value;
        for _ in 0..self.rounds {
            work = std::hint::black_box(work.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17));
        }
        std::hint::black_box(work);
        self.sum = self.sum.wrapping_add(item.value);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }
}

/// Routes to the sinks of the keys for which `serves` returns `true`.
fn route(
    input: impl Stream<Item = Item>,
    rounds: u64,
    total_sum: &Arc<AtomicU64>,
    serves: impl Fn(u64) -> bool,
) {
    let sinks = (0..KEYS).filter(|&key| serves(key));
    let sinks =
        sinks.map(|key| (key, WorkingSink { rounds, sum: 0, total_sum: Arc::clone(total_sum) }));
    block_on(input.demux_by(|item| item.key, stream::iter(sinks)));
}

fn arrived(total_sum: &AtomicU64, items: u64) -> u64 {
    if total_sum.load(Relaxed) == items * items.saturating_sub(1) / 2 { items } else { 0 }
}

fn one_demux(rounds: u64, items: u64) -> Run {
    let total_sum = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    route(Numbers::new(items, KEYS, &Clock::default()), rounds, &total_sum, |_| true);
    Run::new(start.elapsed(), items, arrived(&total_sum, items))
}

/// The first demux runs on this thread, and only passes items on.
fn two_shards(rounds: u64, items: u64) -> Run {
    let total_sum = Arc::new(AtomicU64::new(0));
    let hasher = DefaultHashBuilder::default();
    let shard = move |key: u64| hasher.hash_one(key) & 1;
    let start = Instant::now();
    let mut orders = Vec::new();
    let mut threads = Vec::new();
    for shard_index in 0..2 {
        let (sender, receiver) = channel(4_096);
        orders.push((shard_index, sender));
        let (total_sum, shard) = (Arc::clone(&total_sum), shard.clone());
        threads.push(thread::spawn(move || {
            route(receiver, rounds, &total_sum, |key| shard(key) == shard_index);
        }));
    }
    let input = Numbers::new(items, KEYS, &Clock::default());
    block_on(input.demux_by(|item| shard(item.key), stream::iter(orders)));
    for thread in threads {
        thread.join().expect("no shard panicked");
    }
    Run::new(start.elapsed(), items, arrived(&total_sum, items))
}
