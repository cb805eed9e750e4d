//! What does routing an item cost, by the number of keys?
//!
//! A 16-byte `Copy` item, sinks that are always ready and only add up, an orders channel that is
//! idle once the sinks are attached.

use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures::executor::block_on;
use futures::{Sink, SinkExt, Stream, StreamExt, future, select_biased};
use hashbrown::HashMap;
use stream_demux::DemuxStreamExt;
use stream_partition::StreamPartitionExt;
use stream_router::StreamRouter;

use crate::measure::{Contender, Group, Run};
use crate::parts::{Clock, Count, Item, Numbers, Tally};

/// The limit, both rivals that are crates, what one writes by hand, and ours.
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
    // With more keys, boxing the sinks or making a task's worth of state for each takes too long.
    if keys <= 100_000 {
        contenders.extend([
            Contender::new("stream_router", items / 4, move |items| router(keys, items)),
            Contender::new("stream-partition", items / 4, move |items| partition(keys, items)),
        ]);
    }
    Group::new(format!("route/{keys} integer keys"), contenders)
}

/// The same with keys that are strings, borrowed from the item.
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

/// A look-up and the same work on the sink, with nothing around it.
#[must_use]
pub fn bare(keys: u64, items: u64) -> Run {
    let (clock, tally) = (Clock::default(), Tally::default());
    let mut sinks = (0..keys).map(|key| (key, Count(tally.clone()))).collect::<HashMap<_, _>>();
    let mut input = Numbers::new(items, keys, &clock);
    let mut cx = Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(item)) = Pin::new(&mut input).poll_next(&mut cx) {
        if let Some(sink) = sinks.get_mut(&item.key) {
            deliver(sink, item, &mut cx);
        }
    }
    clock.run(items, tally.arrived(items))
}

#[inline]
fn deliver<T, S: Sink<T> + Unpin>(sink: &mut S, item: T, cx: &mut Context<'_>) {
    if let Poll::Ready(Ok(())) = Pin::new(&mut *sink).poll_ready(cx) {
        let _ = Pin::new(sink).start_send(item);
    }
}

/// Ours.
#[must_use]
pub fn demux(keys: u64, items: u64) -> Run {
    demux_flushing_every(16_384, keys, items)
}

/// Ours, with another window for flushes: with many more keys than it has items, nearly each item
/// has a flush of its own.
fn demux_flushing_every(window: usize, keys: u64, items: u64) -> Run {
    let (clock, tally) = (Clock::default(), Tally::default());
    let (order, orders) = attached(0..keys, &tally);
    let demux = Numbers::new(items, keys, &clock).demux_by(|item| item.key, orders.into_stream());
    let totals = block_on(demux.flush_every(window));
    drop(order);
    assert_eq!((totals.received, totals.delivered), (items, items));
    clock.run(items, tally.arrived(items))
}

/// What everybody writes: both are polled for each item, and each item is flushed.
fn biased(keys: u64, items: u64) -> Run {
    let (clock, tally) = (Clock::default(), Tally::default());
    let (order, orders) = attached(0..keys, &tally);
    block_on(select_loop(Numbers::new(items, keys, &clock), orders.into_stream(), |item| item.key));
    drop(order);
    clock.run(items, tally.arrived(items))
}

/// The loop that everybody writes.
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

/// The crate that routes between streams and sinks: tags are futures, sinks are boxed and flushed
/// for each item. Sinks cannot come while it runs.
fn router(keys: u64, items: u64) -> Run {
    let (clock, tally) = (Clock::default(), Tally::default());
    let mut router = StreamRouter::new();
    router.add_source(Numbers::new(items, keys, &clock), |item: Item| {
        future::ready((item, item.key))
    });
    for key in 0..keys {
        router.add_sink(Count(tally.clone()), key);
    }
    let strays = block_on(router.count());
    assert_eq!(strays, 0);
    clock.run(items, tally.arrived(items))
}

/// The crate that makes a stream for each key; here each is forwarded to its sink.
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

type Orders<K> = (flume::Sender<(K, Count)>, flume::Receiver<(K, Count)>);

/// A channel with an order for each key in it. It stays open while its sender lives.
pub(crate) fn attached<K>(keys: impl IntoIterator<Item = K>, tally: &Tally) -> Orders<K> {
    let (order, orders) = flume::unbounded();
    for key in keys {
        order.send((key, Count(tally.clone()))).expect("its receiver is here");
    }
    (order, orders)
}

/// An item whose key is a string that somebody else owns.
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

/// Topics that outlive everything: a benchmark ends with its process.
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
    let (order, orders) = attached(topics.iter().map(|&topic| topic.to_owned()), &tally);
    let input = posts(topics, items, &clock);
    let totals = block_on(input.demux_by_ref(|post| post.topic, orders.into_stream()));
    drop(order);
    assert_eq!((totals.received, totals.delivered), (items, items));
    clock.run(items, tally.arrived(items))
}

fn biased_strings(topics: &[&'static str], items: u64) -> Run {
    let (clock, tally) = (Clock::default(), Tally::default());
    let (order, orders) = attached(topics.iter().copied(), &tally);
    block_on(select_loop(posts(topics, items, &clock), orders.into_stream(), |post| post.topic));
    drop(order);
    clock.run(items, tally.arrived(items))
}
