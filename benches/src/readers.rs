//! Bounded channels with live readers: a writer fills a hundred of them while a task reads each.
//!
//! The writer and the readers are tasks on one thread, and the time is that of all of them.
//! Channels of tokio run on its current-thread runtime, those of futures on its `LocalPool`.

use std::iter::Sum;

use cpu_time::ThreadTime;
use futures::channel::oneshot;
use futures::executor::{LocalPool, LocalSpawner};
use futures::future::join_all;
use futures::task::LocalSpawnExt;
use futures::{Stream, StreamExt};
use tokio::runtime;
use tokio::sync::mpsc;
use tokio_util::sync::PollSender;

use crate::measure::{Contender, Run};
use crate::parts::{Dice, Item};
use crate::receiving::Receiving;

/// The capacity of each channel.
///
/// A common value. The input is always ready, so the writer fills the channels, waits, and fills
/// them again, as any writer does that is faster than its readers. With a capacity of 1, each item
/// would cost two task switches. Channels that never fill up would never make the writer wait.
pub const CAPACITY: usize = 64;

/// The default budget of a demux.
pub const DEFAULT_BUDGET: usize = 1_024;

/// A larger budget, for comparison.
///
/// A turn ends when the budget is spent, and then the readers that have received items run. The
/// fewer items each finds, the more its wake costs. A loop that sends until a channel is full wakes
/// a reader for 64. It gains nothing if the sinks use tokio's cooperative budget, which is spent
/// after 128 operations in any case.
pub const LARGE_BUDGET: usize = 4_096;

/// What a writer sends.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    readers: u64,
    /// The number of items in the input.
    items: u64,
    delivery: Delivery,
}

/// Which readers get an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The reader with the item's key.
    One,
    /// All readers; every item has the key 0.
    All,
}

impl Delivery {
    /// Creates a contender whose runs deliver `items` items, copies included.
    pub fn contender(
        self,
        name: &'static str,
        readers: u64,
        items: u64,
        run: impl Fn(Job) -> Run + 'static,
    ) -> Contender {
        Contender::new(name, items, move |items| {
            let items = if self == Self::All { items / readers } else { items };
            run(Job { readers, items, delivery: self })
        })
    }
}

impl Job {
    /// Returns the items in order.
    pub fn input(self) -> impl Iterator<Item = Item> + Send + use<> {
        let mut dice = Dice::default();
        let keys = if self.delivery == Delivery::All { 1 } else { self.readers };
        (0..self.items).map(move |value| Item { key: dice.below(keys), value })
    }

    /// Reads a channel to its end.
    pub async fn read(
        self,
        reader: u64,
        mut channel: impl Stream<Item = Item> + Unpin,
    ) -> Received {
        let mut received = Received::default();
        while let Some(item) = channel.next().await {
            received.add(self, reader, item);
        }
        received
    }

    /// Returns what all readers together must receive.
    fn expected(self) -> Received {
        let copies = if self.delivery == Delivery::All { self.readers } else { 1 };
        let sum = self.items * self.items.saturating_sub(1) / 2;
        Received { count: copies * self.items, sum: copies * sum }
    }
}

/// The items that the right reader received.
#[derive(Debug, Clone, Copy, Default)]
pub struct Received {
    count: u64,
    sum: u64,
}

impl Received {
    /// Counts an item that `reader` received.
    pub fn add(&mut self, job: Job, reader: u64, item: Item) {
        self.count += u64::from(job.delivery == Delivery::All || item.key == reader);
        self.sum += item.value;
    }
}

impl Sum for Received {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |all, one| Self {
            count: all.count + one.count,
            sum: all.sum + one.sum,
        })
    }
}

/// Opens a channel of the futures crate. The sender is a sink.
pub fn futures_channel(
    job: Job,
    reader: u64,
) -> (futures::channel::mpsc::Sender<Item>, impl Future<Output = Received> + Send) {
    let (sender, receiver) = futures::channel::mpsc::channel(CAPACITY);
    (sender, job.read(reader, receiver))
}

/// Opens a channel of tokio.
pub fn tokio_channel(
    job: Job,
    reader: u64,
) -> (mpsc::Sender<Item>, impl Future<Output = Received> + Send) {
    let (sender, receiver) = mpsc::channel(CAPACITY);
    (sender, job.read(reader, Receiving(receiver)))
}

/// Opens a channel of tokio, with the sender in a `PollSender`.
pub fn tokio_sink(
    job: Job,
    reader: u64,
) -> (PollSender<Item>, impl Future<Output = Received> + Send) {
    let (sender, reader) = tokio_channel(job, reader);
    (PollSender::new(sender), reader)
}

/// Times the writer and the readers on tokio's current-thread runtime.
///
/// `open` returns a channel and the future that reads it; `write` returns the writer.
pub fn on_tokio<S, R, W>(
    job: Job,
    open: impl Fn(Job, u64) -> (S, R),
    write: impl FnOnce(Job, Vec<S>) -> W,
) -> Run
where
    R: Future<Output = Received> + Send + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    let runtime = runtime::Builder::new_current_thread().build().expect("the runtime starts");
    runtime.block_on(async {
        let (senders, readers) = open_all(job, open, tokio::spawn);
        time(job, async {
            tokio::spawn(write(job, senders)).await.expect("the writer did not panic");
            let readers = join_all(readers).await;
            readers.into_iter().map(|read| read.expect("no reader panicked")).sum()
        })
        .await
    })
}

/// Times the writer and the readers on the `LocalPool` of the futures crate.
pub fn on_local_pool<S, R, W>(
    job: Job,
    open: impl Fn(Job, u64) -> (S, R),
    write: impl FnOnce(Job, Vec<S>) -> W,
) -> Run
where
    R: Future<Output = Received> + 'static,
    W: Future<Output = ()> + 'static,
{
    let mut pool = LocalPool::new();
    let spawner = pool.spawner();
    let (senders, readers) = open_all(job, open, |reader| spawn_local(&spawner, reader));
    let writer = write(job, senders);
    pool.run_until(time(job, async {
        spawn_local(&spawner, writer).await.expect("the writer did not panic");
        let readers = join_all(readers).await;
        readers.into_iter().map(|read| read.expect("no reader panicked")).sum()
    }))
}

/// Spawns a task and returns a receiver for its output. `spawn_local_with_handle` would check its
/// handle in each poll, which would slow down the contender whose readers run more often.
fn spawn_local<F>(spawner: &LocalSpawner, task: F) -> oneshot::Receiver<F::Output>
where
    F: Future<Output: 'static> + 'static,
{
    let (done, handle) = oneshot::channel();
    let task = async move {
        let _ = done.send(task.await);
    };
    spawner.spawn_local(task).expect("the pool is running");
    handle
}

/// Opens the channels and spawns their readers. Returns the senders and the handles of the readers.
fn open_all<S, R, H>(
    job: Job,
    open: impl Fn(Job, u64) -> (S, R),
    spawn: impl Fn(R) -> H,
) -> (Vec<S>, Vec<H>) {
    let channels = (0..job.readers).map(|reader| open(job, reader));
    channels.map(|(sender, reader)| (sender, spawn(reader))).unzip()
}

async fn time(job: Job, work: impl Future<Output = Received>) -> Run {
    let start = ThreadTime::now();
    let received = work.await;
    let elapsed = start.elapsed();
    let expected = job.expected();
    let arrived = if received.sum == expected.sum { received.count } else { 0 };
    Run::new(elapsed, expected.count, arrived)
}
