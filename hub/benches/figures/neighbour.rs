//! The delay of an item for a quiet key, beside a hot key that a thread publishes in a tight loop.
//! Time on the clock, from before the item is published until `recv` has returned it to its reader.
//!
//! Two threads outside of the runtime publish, one for each key. The readers are tasks on two
//! workers.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use stream_demux_hub::Hub;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::mpsc as channel;
use tokio::task::{JoinSet, spawn_blocking};

use crate::fanout::run;
use crate::measure::{Threads, percentile};
use crate::picture::{Point, Series, render};

const QUIET: u64 = 0;
const HOT: u64 = 1;

/// The quiet items of a run, and those before them that are not measured.
const ITEMS: usize = 30;
const WARM_UP: usize = 5;

/// The longest time between a quiet item and the next one, in microseconds. The time is random, so
/// that an item may come at any time between two flushes.
const LONGEST_PAUSE: u64 = 5_000;

/// The room of a channel: that of a subscription of a hub, by default.
const ROOM: usize = 1_024;

/// The room before the loop of `send`: that of a hub, by default.
const ROOM_OF_LOOP: usize = 512;

/// The subscriptions of the hot key.
#[derive(Clone, Copy)]
struct Subscriptions {
    count: u64,
    /// A task reads each of them. Otherwise they are kept, and never read.
    are_read: bool,
}

/// What a run has found.
#[derive(Default)]
struct Found {
    delays: Vec<Duration>,
    /// The items that were published under the hot key, and the time that this took.
    published: u64,
    time: Duration,
    /// The items that the readers of the hot key have received, together.
    received: u64,
}

impl Found {
    fn add(&mut self, run: Self) {
        self.delays.extend(run.delays);
        self.published += run.published;
        self.time += run.time;
        self.received += run.received;
    }

    /// Returns the delay in milliseconds that `percent` percent of the items do not exceed.
    fn percentile(&self, percent: usize) -> f64 {
        percentile(self.delays.iter().map(|delay| delay.as_secs_f64() * 1e3).collect(), percent)
    }

    fn describe(&self, hot: Subscriptions) -> String {
        let (published, time) = (self.published as f64, self.time.as_secs_f64());
        let rate = format!("{:.0} hot items a second", published / time);
        if hot.are_read {
            let received = self.received as f64 / (published * hot.count as f64);
            format!("{rate}, of which a reader gets {:.1} %", received * 1e2)
        } else {
            rate
        }
    }
}

/// A thread that publishes hot items without a pause.
struct Publisher {
    start: Instant,
    is_stopped: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Publisher {
    fn start(mut publish: impl FnMut() + Send + 'static) -> Self {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&is_stopped);
        let thread = thread::spawn(move || {
            let mut count = 0;
            while !stopped.load(Relaxed) {
                publish();
                count += 1;
            }
            count
        });
        Self { start: Instant::now(), is_stopped, thread }
    }

    /// Returns the number of items that it has published, and the time.
    ///
    /// Waits on another thread: the publisher may wait for a task that only this worker can run next.
    async fn stop(self) -> (u64, Duration) {
        self.is_stopped.store(true, Relaxed);
        let time = self.start.elapsed();
        let thread = spawn_blocking(|| self.thread.join());
        let count = thread.await.expect("it can be waited for");
        (count.expect("the publisher did not panic"), time)
    }
}

/// Publishes quiet items, on a thread outside of the workers, each after the last one has been
/// received. Returns their delays, which the reader tells.
async fn publish_quiet(
    mut publish: impl FnMut(Instant) + Send + 'static,
    received: mpsc::Receiver<Duration>,
) -> Vec<Duration> {
    let publisher = spawn_blocking(move || {
        let (mut delays, mut random) = (Vec::new(), 1_u64);
        for _ in 0..WARM_UP + ITEMS {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            thread::sleep(Duration::from_micros((random >> 33) % LONGEST_PAUSE));
            publish(Instant::now());
            delays.push(received.recv().expect("the reader is alive"));
        }
        delays.split_off(WARM_UP)
    });
    publisher.await.expect("the publisher did not panic")
}

async fn hub(hot: Subscriptions) -> Found {
    let hub = Hub::<u64, Instant>::new();
    let mut quiet = hub.subscribe(QUIET);
    let (sender, quiet_received) = mpsc::channel();
    tokio::spawn(async move {
        while let Some(item) = quiet.recv().await {
            let sent = item.expect("there is room for the item");
            sender.send(sent.elapsed()).expect("the publisher waits");
        }
    });
    let (mut readers, mut unread) = (JoinSet::new(), Vec::new());
    for _ in 0..hot.count {
        let mut items = hub.subscribe(HOT);
        if hot.are_read {
            readers.spawn(async move {
                let mut received = 0;
                while let Some(item) = items.recv().await {
                    received += u64::from(item.is_ok());
                }
                received
            });
        } else {
            unread.push(items);
        }
    }
    let (of_hot, of_quiet, item) = (hub.clone(), hub.clone(), Instant::now());
    let neighbour = Publisher::start(move || {
        block_on(of_hot.publish(HOT, item)).expect("the hub is open");
    });
    let publish = move |item| block_on(of_quiet.publish(QUIET, item)).expect("the hub is open");
    let delays = publish_quiet(publish, quiet_received).await;
    let (published, time) = neighbour.stop().await;
    drop((hub, unread));
    let received = readers.join_all().await.into_iter().sum();
    Found { delays, published, time, received }
}

async fn broadcast(hot: Subscriptions) -> Found {
    let (quiet_topic, mut quiet) = broadcast::channel(ROOM);
    let (sender, quiet_received) = mpsc::channel();
    tokio::spawn(async move {
        while let Ok(sent) = quiet.recv().await {
            sender.send(Instant::elapsed(&sent)).expect("the publisher waits");
        }
    });
    let (hot_topic, _) = broadcast::channel(ROOM);
    let (mut readers, mut unread) = (JoinSet::new(), Vec::new());
    for _ in 0..hot.count {
        let mut items = hot_topic.subscribe();
        if hot.are_read {
            readers.spawn(async move {
                let mut received = 0;
                loop {
                    match items.recv().await {
                        Ok(_) => received += 1,
                        Err(RecvError::Lagged(_)) => {}
                        Err(RecvError::Closed) => return received,
                    }
                }
            });
        } else {
            unread.push(items);
        }
    }
    let item = Instant::now();
    let neighbour = Publisher::start(move || {
        hot_topic.send(item).expect("there are receivers");
    });
    let publish = move |item| {
        quiet_topic.send(item).expect("there is a receiver");
    };
    let delays = publish_quiet(publish, quiet_received).await;
    let (published, time) = neighbour.stop().await;
    let received = readers.join_all().await.into_iter().sum();
    Found { delays, published, time, received }
}

/// One task that takes the items of all keys from a channel, and sends each to the channels of the
/// subscriptions of its key.
async fn loop_of_send(hot: Subscriptions) -> Found {
    let (queue, mut items) = channel::channel(ROOM_OF_LOOP);
    let (to_quiet, mut quiet) = channel::channel::<Instant>(ROOM);
    let (sender, quiet_received) = mpsc::channel();
    tokio::spawn(async move {
        while let Some(sent) = quiet.recv().await {
            sender.send(sent.elapsed()).expect("the publisher waits");
        }
    });
    let (mut senders, mut readers) = (Vec::new(), JoinSet::new());
    for _ in 0..hot.count {
        let (sender, mut items) = channel::channel(ROOM);
        senders.push(sender);
        readers.spawn(async move {
            let mut received = 0;
            while items.recv().await.is_some() {
                received += 1;
            }
            received
        });
    }
    let subscriptions = HashMap::from([(QUIET, vec![to_quiet]), (HOT, senders)]);
    tokio::spawn(async move {
        while let Some((key, item)) = items.recv().await {
            for subscription in &subscriptions[&key] {
                subscription.send(item).await.expect("the reader is alive");
            }
        }
    });
    let (of_hot, of_quiet, item) = (queue.clone(), queue, Instant::now());
    let neighbour = Publisher::start(move || {
        of_hot.blocking_send((HOT, item)).expect("the loop runs");
    });
    let publish = move |item| of_quiet.blocking_send((QUIET, item)).expect("the loop runs");
    let delays = publish_quiet(publish, quiet_received).await;
    let (published, time) = neighbour.stop().await;
    let received = readers.join_all().await.into_iter().sum();
    Found { delays, published, time, received }
}

#[derive(Clone, Copy)]
enum Program {
    Hub,
    Broadcast,
    LoopOfSend,
}

impl Program {
    /// The loop waits for a subscription that is not read, for ever.
    fn all(hot: Subscriptions) -> Vec<Self> {
        if hot.are_read {
            vec![Self::Hub, Self::Broadcast, Self::LoopOfSend]
        } else {
            vec![Self::Hub, Self::Broadcast]
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Hub => "hub",
            Self::Broadcast => "broadcast per topic",
            Self::LoopOfSend => "a loop of send",
        }
    }

    async fn run(self, hot: Subscriptions) -> Found {
        match self {
            Self::Hub => hub(hot).await,
            Self::Broadcast => broadcast(hot).await,
            Self::LoopOfSend => loop_of_send(hot).await,
        }
    }
}

/// Runs the programs in turn, each round beginning with another one, and prints what they reach.
fn compare(hot: Subscriptions, rounds: usize) -> Vec<(Program, Found)> {
    let mut all = Program::all(hot)
        .into_iter()
        .map(|program| (program, Found::default()))
        .collect::<Vec<_>>();
    for round in 0..rounds {
        for place in 0..all.len() {
            let index = (round + place) % all.len();
            let (program, found) = &mut all[index];
            let program = *program;
            found.add(run(Threads::Two, move || program.run(hot)));
        }
    }
    let read = if hot.are_read { "that are read" } else { "that are not read" };
    println!("delay beside a hot key with {} subscriptions {read}, two threads", hot.count);
    let of_hub = all[0].1.percentile(50);
    for (index, (program, found)) in all.iter().enumerate() {
        let (median, most) = (found.percentile(50), found.percentile(99));
        let ratio = format!("   hub / this: {:.2}", of_hub / median);
        let ratio = if index == 0 { "" } else { &ratio };
        println!("    {:<44} {median:>9.3} ms, 99 % {most:>9.3} ms{ratio}", program.name());
        println!("    {:<44} {}", "", found.describe(hot));
    }
    all
}

/// The loads of the picture: the subscriptions of the hot key.
const COUNTS: [u64; 4] = [1, 10, 100, 500];

/// Prints the delays. Returns those of the subscriptions that are read.
fn print(rounds: usize) -> Vec<Series> {
    let mut all = Vec::<Series>::new();
    for count in COUNTS {
        for (index, (program, found)) in
            compare(Subscriptions { count, are_read: true }, rounds).into_iter().enumerate()
        {
            if all.len() == index {
                all.push(Series { name: program.name(), points: Vec::new() });
            }
            let (median, most) = (found.percentile(50), found.percentile(99));
            all[index].points.push(Point { load: count, median, most });
        }
    }
    compare(Subscriptions { count: 500, are_read: false }, rounds);
    all
}

pub(crate) fn measure(rounds: usize) {
    print(rounds);
}

/// Measures, and draws a picture of the delays.
pub(crate) fn draw(rounds: usize, to: &Path) -> io::Result<()> {
    let title = "Delay of an item for a quiet key beside a hot key";
    std::fs::write(to, render(title, "subscriptions of the hot key", &print(rounds)))
}
