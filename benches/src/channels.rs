//! Bounded channels with live readers: what does the demux add to the loop over a map of senders?
//!
//! All on one thread, so that the time is what all of them took together.

use cpu_time::ThreadTime;
use futures::channel::mpsc as futures_mpsc;
use futures::{Sink, SinkExt, Stream, StreamExt, stream};
use hashbrown::HashMap;
use stream_demux::DemuxStreamExt;
use tokio::runtime;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio_util::sync::PollSender;

use crate::measure::{Contender, Group, Run};
use crate::parts::{Clock, Item, Numbers, Receiving};

const ROOM: usize = 64;

/// Channels of tokio.
#[must_use]
pub fn tokio(readers: u64, items: u64) -> Group {
    Group::new(
        format!("channels/tokio, {readers} readers"),
        [
            Contender::new("map of senders", items, move |items| {
                run(items, async move |input| {
                    let (mut senders, mut readers) = open(readers, || {
                        let (sender, receiver) = mpsc::channel(ROOM);
                        (sender, Receiving(receiver))
                    });
                    map_of_tokio_senders(input, &mut senders).await;
                    drop(senders);
                    readers.finish().await
                })
            }),
            Contender::new("demux", items, move |items| {
                run(items, async move |input| {
                    let (senders, mut readers) = open(readers, || {
                        let (sender, receiver) = mpsc::channel(ROOM);
                        (PollSender::new(sender), Receiving(receiver))
                    });
                    demux(input, senders).await;
                    readers.finish().await
                })
            }),
        ],
    )
}

/// Channels of the futures crate.
#[must_use]
pub fn futures(readers: u64, items: u64) -> Group {
    Group::new(
        format!("channels/futures, {readers} readers"),
        [
            Contender::new("map of senders", items, move |items| {
                run(items, async move |input| {
                    let (mut senders, mut readers) = open(readers, || futures_mpsc::channel(ROOM));
                    map_of_futures_senders(input, &mut senders).await;
                    drop(senders);
                    readers.finish().await
                })
            }),
            Contender::new("demux", items, move |items| {
                run(items, async move |input| {
                    let (senders, mut readers) = open(readers, || futures_mpsc::channel(ROOM));
                    demux(input, senders).await;
                    readers.finish().await
                })
            }),
        ],
    )
}

/// A stream that always has an item, as far as it goes: the clock of `Numbers` is not used.
type Input = stream::Iter<Numbers>;

fn run<J>(items: u64, job: impl FnOnce(Inputs) -> J) -> Run
where
    J: Future<Output = Received>,
{
    let runtime = runtime::Builder::new_current_thread().build().expect("a runtime");
    let start = ThreadTime::now();
    let received = LocalSet::new().block_on(&runtime, job(Inputs(items)));
    let elapsed = start.elapsed();
    let right = received.sum == items * items.saturating_sub(1) / 2;
    let arrived = if right { received.count } else { 0 };
    Run { elapsed, sent: items, arrived, allocations: 0 }
}

/// How many items are to come.
struct Inputs(u64);

impl Inputs {
    fn over(self, keys: usize) -> Input {
        stream::iter(Numbers::new(self.0, keys as u64, &Clock::default()))
    }
}

/// Items that came to the right reader, and the sum of their numbers.
#[derive(Default)]
struct Received {
    count: u64,
    sum: u64,
}

struct Readers(Vec<JoinHandle<Received>>);

impl Readers {
    async fn finish(&mut self) -> Received {
        let mut all = Received::default();
        for reader in self.0.drain(..) {
            let Received { count, sum } = reader.await.expect("no reader panicked");
            all.count += count;
            all.sum += sum;
        }
        all
    }
}

/// A channel for each key, with a task that reads it.
fn open<S, R>(readers: u64, channel: impl Fn() -> (S, R)) -> (HashMap<u64, S>, Readers)
where
    R: Stream<Item = Item> + Unpin + 'static,
{
    let (mut senders, mut tasks) = (HashMap::new(), Vec::new());
    for key in 0..readers {
        let (sender, mut receiver) = channel();
        senders.insert(key, sender);
        tasks.push(spawn_local(async move {
            let mut received = Received::default();
            while let Some(item) = receiver.next().await {
                received.count += u64::from(item.key == key);
                received.sum += item.value;
            }
            received
        }));
    }
    (senders, Readers(tasks))
}

async fn demux<S>(input: Inputs, senders: HashMap<u64, S>)
where
    S: Sink<Item> + Unpin,
{
    let input = input.over(senders.len());
    input.demux_by(|item| item.key, stream::iter(senders)).await;
}

async fn map_of_tokio_senders(input: Inputs, senders: &mut HashMap<u64, mpsc::Sender<Item>>) {
    let mut input = input.over(senders.len());
    while let Some(item) = input.next().await {
        if let Some(sender) = senders.get(&item.key) {
            let _ = sender.send(item).await;
        }
    }
}

/// It feeds: `send` would wait until each item is read.
async fn map_of_futures_senders(
    input: Inputs,
    senders: &mut HashMap<u64, futures_mpsc::Sender<Item>>,
) {
    let mut input = input.over(senders.len());
    while let Some(item) = input.next().await {
        if let Some(sender) = senders.get_mut(&item.key) {
            let _ = sender.feed(item).await;
        }
    }
}
