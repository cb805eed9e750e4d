//! 1,000 subscribers of 50 topics, in bursts: the publisher waits until all have read a burst.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel};

use stream_demux_hub::{Hub, Terms, topic};
use tokio::sync::{Notify, broadcast};
use tokio::task::JoinSet;

use crate::measure::{Clock, Contender, Cost, Threads, compare};

const SUBSCRIBERS: u64 = 1_000;
const TOPICS: u64 = 50;
/// Items of each topic in a burst.
fn each() -> u64 {
    std::env::var("EACH").map_or(20, |n| n.parse().unwrap())
}
fn bursts() -> u64 {
    std::env::var("BURSTS").map_or(100, |n| n.parse().unwrap())
}
const ROOM: usize = 1_024;

pub(crate) type Item = Arc<str>;

/// Counts the readers that have not read the burst yet.
struct Latch {
    left: AtomicU64,
    done: Notify,
}

impl Latch {
    fn new() -> Arc<Self> {
        Arc::new(Self { left: AtomicU64::new(SUBSCRIBERS), done: Notify::new() })
    }

    fn arrive(&self) {
        if self.left.fetch_sub(1, AcqRel) == 1 {
            self.left.store(SUBSCRIBERS, std::sync::atomic::Ordering::Release);
            self.done.notify_one();
        }
    }
}

/// What a reader does with an item.
struct Reader {
    /// Of this burst.
    left: u64,
    each: u64,
    items: u64,
    bytes: u64,
}

impl Reader {
    fn take(&mut self, item: &Item, latch: &Latch) {
        self.items += 1;
        self.bytes += item.len() as u64;
        self.left -= 1;
        if self.left == 0 {
            self.left = self.each;
            latch.arrive();
        }
    }
}

pub(crate) fn run<P>(threads: Threads, program: impl FnOnce() -> P + Send + 'static) -> P::Output
where
    P: Future<Output: Send> + Send + 'static,
{
    let runtime = threads.runtime();
    runtime.block_on(async { tokio::spawn(async { program().await }).await.unwrap() })
}

/// Publishes bursts, one of them unmeasured, and waits for the readers after each.
async fn publish<F: Future<Output = ()>>(latch: &Latch, mut publish: impl FnMut(u64) -> F) -> Cost {
    let mut clock = None;
    for _ in 0..=bursts() {
        for n in 0..TOPICS * each() {
            publish(n % TOPICS).await;
        }
        latch.done.notified().await;
        clock = clock.or_else(|| Some(Clock::start()));
    }
    clock.unwrap().stop(SUBSCRIBERS * each() * bursts())
}

async fn finish(readers: JoinSet<Reader>) {
    let items: u64 = readers.join_all().await.into_iter().map(|reader| reader.items).sum();
    assert_eq!(items, SUBSCRIBERS * each() * (bursts() + 1));
}

pub(crate) fn text() -> Item {
    "a line of text that somebody has written".into()
}

async fn hub() -> Cost {
    let (hub, latch) = (Hub::new(), Latch::new());
    let mut readers = JoinSet::new();
    for n in 0..SUBSCRIBERS {
        let mut items = hub.subscribe_with([n % TOPICS], Terms::new().buffer(ROOM));
        let latch = latch.clone();
        readers.spawn(async move {
            let mut reader = Reader { left: each(), each: each(), items: 0, bytes: 0 };
            while let Some(item) = items.recv().await {
                reader.take(&item.unwrap(), &latch);
            }
            reader
        });
    }
    let publish = publish(&latch, |topic| {
        let hub = &hub;
        async move { hub.publish(topic, text()).await.unwrap() }
    });
    let cost = publish.await;
    drop(hub);
    finish(readers).await;
    cost
}

/// A topic at each key of a hub, and its readers.
async fn topics() -> Cost {
    let (hub, latch) = (Hub::new(), Latch::new());
    let (mut readers, mut leases, mut first) = (JoinSet::new(), Vec::new(), Vec::new());
    for key in 0..TOPICS {
        let (sink, reader) = topic(ROOM);
        leases.push(hub.attach(key, sink, Terms::new().buffer(ROOM)));
        first.push(reader);
    }
    for n in 0..SUBSCRIBERS {
        let mut items = first[usize::try_from(n % TOPICS).unwrap()].subscribe();
        let latch = latch.clone();
        readers.spawn(async move {
            let mut reader = Reader { left: each(), each: each(), items: 0, bytes: 0 };
            while let Some(item) = items.recv().await {
                reader.take(&item.unwrap(), &latch);
            }
            reader
        });
    }
    drop(first);
    let publish = publish(&latch, |topic| {
        let hub = &hub;
        async move { hub.publish(topic, text()).await.unwrap() }
    });
    let cost = publish.await;
    drop(hub);
    finish(readers).await;
    drop(leases);
    cost
}

/// `all`: the reader takes all that is there before it waits again.
async fn broadcast(all: bool) -> Cost {
    let latch = Latch::new();
    let topics: HashMap<_, _> =
        (0..TOPICS).map(|n| (n, broadcast::channel::<Item>(ROOM).0)).collect();
    let mut readers = JoinSet::new();
    for n in 0..SUBSCRIBERS {
        let mut items = topics[&(n % TOPICS)].subscribe();
        let latch = latch.clone();
        readers.spawn(async move {
            let mut reader = Reader { left: each(), each: each(), items: 0, bytes: 0 };
            while let Ok(item) = items.recv().await {
                reader.take(&item, &latch);
                if all {
                    while let Ok(item) = items.try_recv() {
                        reader.take(&item, &latch);
                    }
                }
            }
            reader
        });
    }
    let publish = publish(&latch, |topic| {
        topics[&topic].send(text()).unwrap();
        std::future::ready(())
    });
    let cost = publish.await;
    drop(topics);
    finish(readers).await;
    cost
}

pub(crate) fn measure(rounds: usize) {
    for threads in crate::measure::threads() {
        let title = format!(
            "fan-out over inboxes, 1,000 subscribers of 50 topics, bursts, {}: a delivery",
            threads.name()
        );
        compare(
            &title,
            rounds,
            vec![
                Contender::new("hub, recv", move || run(threads, hub)),
                Contender::new("topics at a hub, recv", move || run(threads, topics)),
                Contender::new("broadcast per topic, recv", move || {
                    run(threads, || broadcast(false))
                }),
                Contender::new("broadcast per topic, all that is there", move || {
                    run(threads, || broadcast(true))
                }),
            ],
        );
    }
}
