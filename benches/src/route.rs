//! The cost of routing an item, by the number and kind of keys.
//!
//! Sinks are always ready and only add up.

use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures::executor::block_on;
use futures::{Sink, SinkExt, Stream, StreamExt, future, select_biased};
use hashbrown::HashMap;
pub use loops::route::*;
use stream_demux::DemuxStreamExt;
use stream_partition::StreamPartitionExt;
use stream_router::StreamRouter;

use crate::measure::{Contender, Group, Run};
use crate::parts::{Clock, Count, Item, Numbers, Tally};

/// Returns the contenders for integer keys.
#[must_use]
pub fn integers(keys: u64, items: u64) -> Group {
    let mut contenders = vec![
        Contender::new("bare loop", items, move |items| bare(keys, items)),
        Contender::new("demux", items, move |items| demux(keys, items)),
        Contender::new("demux, no flush due", items, move |items| {
            demux_flushing_every(usize::MAX, keys, items)
        }),
        Contender::new("select_biased!", items, move |items| biased(keys, items)),
    ];
    // With more keys, these two take too long to set up: they box each sink, or create a stream per
    // key.
    if keys <= 100_000 {
        contenders.extend([
            Contender::new("stream_router", items / 4, move |items| router(keys, items)),
            Contender::new("stream-partition", items / 4, move |items| partition(keys, items)),
        ]);
    }
    Group::new(format!("route/{keys} integer keys"), contenders)
}

/// Returns the contenders for string keys, which are borrowed from the item.
#[must_use]
pub fn strings(keys: u64, items: u64) -> Group {
    let topics = topics(keys);
    let contenders = [
        Contender::new("bare loop", items, {
            let topics = topics.clone();
            move |items| bare_strings(&topics, items)
        }),
        Contender::new("demux", items, {
            let topics = topics.clone();
            move |items| demux_strings(&topics, items)
        }),
        Contender::new("select_biased!", items, move |items| biased_strings(&topics, items)),
    ];
    Group::new(format!("route/{keys} string keys"), contenders)
}

/// The usual loop: it polls both streams for each item, and flushes each item.
fn biased(keys: u64, items: u64) -> Run {
    let (clock, tally) = (Clock::default(), Tally::default());
    let (sender, orders) = attached(0..keys, &tally);
    block_on(select_loop(Numbers::new(items, keys, &clock), orders.into_stream(), |item| item.key));
    drop(sender);
    clock.run(items, tally.arrived(items))
}

/// The usual loop, with `select_biased!`.
pub(crate) async fn select_loop<T, K: Hash + Eq, S: Sink<T> + Unpin>(
    input: impl Stream<Item = T> + Unpin,
    orders: impl Stream<Item = (K, S)> + Unpin,
    key: impl Fn(&T) -> K,
) {
    let mut sinks = HashMap::new();
    let (mut input, mut orders) = (input.fuse(), orders.fuse());
    loop {
        select_biased! {
            order = orders.next() => if let Some((key, sink)) = order {
                sinks.insert(key, sink);
            },
            item = input.next() => match item {
                None => return,
                Some(item) => if let Some(sink) = sinks.get_mut(&key(&item)) {
                    let _ = sink.send(item).await;
                },
            },
        }
    }
}

/// `stream_router`: tags are futures, and sinks are boxed and flushed for each item. It accepts no
/// sinks while it runs.
fn router(keys: u64, items: u64) -> Run {
    let (clock, tally) = (Clock::default(), Tally::default());
    let mut router = StreamRouter::new();
    router.add_source(Numbers::new(items, keys, &clock), |item: Item| {
        future::ready((item, item.key))
    });
    for key in 0..keys {
        router.add_sink(Count(tally.clone()), key);
    }
    let unrouted = block_on(router.count());
    assert_eq!(unrouted, 0);
    clock.run(items, tally.arrived(items))
}

/// `stream-partition`, which creates a stream per key. Each stream is forwarded to its sink.
fn partition(keys: u64, items: u64) -> Run {
    let (clock, tally) = (Clock::default(), Tally::default());
    let parts = Numbers::new(items, keys, &clock).partition_by(|item| future::ready(item.key));
    let forward = |key| {
        let part = parts.lock().unwrap().get_partition(key);
        part.map(Ok).forward(Count(tally.clone()))
    };
    let done = block_on(future::join_all((0..keys).map(forward)));
    assert!(done.iter().all(Result::is_ok));
    clock.run(items, tally.arrived(items))
}

/// An item whose key is a borrowed string.
#[derive(Debug, Clone, Copy)]
struct Post {
    topic: &'static str,
    item: Item,
}

impl Sink<Post> for Count {
    type Error = ();

    #[inline]
    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn start_send(self: Pin<&mut Self>, post: Post) -> Result<(), ()> {
        Sink::<Item>::start_send(self, post.item)
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }
}

/// Returns leaked topics: a benchmark ends with its process.
fn topics(keys: u64) -> Vec<&'static str> {
    (0..keys).map(|key| &*format!("sensors/hall/{key}").leak()).collect()
}

fn posts(
    topics: &[&'static str],
    items: u64,
    clock: &Clock,
) -> impl Stream<Item = Post> + Unpin + use<> {
    let topics = topics.to_vec();
    let numbers = Numbers::new(items, topics.len() as u64, clock);
    StreamExt::map(numbers, move |item| Post { topic: topics[item.key as usize], item })
}

fn bare_strings(topics: &[&'static str], items: u64) -> Run {
    let (clock, tally) = (Clock::default(), Tally::default());
    let sinks = topics.iter().map(|&topic| (topic.to_owned(), Count(tally.clone())));
    let mut sinks = sinks.collect::<HashMap<_, _>>();
    let mut input = posts(topics, items, &clock);
    let mut cx = Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(post)) = Pin::new(&mut input).poll_next(&mut cx) {
        if let Some(sink) = sinks.get_mut(post.topic) {
            deliver(sink, post, &mut cx);
        }
    }
    clock.run(items, tally.arrived(items))
}

fn demux_strings(topics: &[&'static str], items: u64) -> Run {
    let (clock, tally) = (Clock::default(), Tally::default());
    let (sender, orders) = attached(topics.iter().map(|&topic| topic.to_owned()), &tally);
    let input = posts(topics, items, &clock);
    let totals = block_on(input.demux_by_ref(|post| post.topic, orders.into_stream()));
    drop(sender);
    assert_eq!((totals.received, totals.delivered), (items, items));
    clock.run(items, tally.arrived(items))
}

fn biased_strings(topics: &[&'static str], items: u64) -> Run {
    let (clock, tally) = (Clock::default(), Tally::default());
    let (sender, orders) = attached(topics.iter().copied(), &tally);
    block_on(select_loop(posts(topics, items, &clock), orders.into_stream(), |post| post.topic));
    drop(sender);
    clock.run(items, tally.arrived(items))
}
