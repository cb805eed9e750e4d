//! The delay of the items of many customers, beside one customer that gets half of all items: more
//! than its worker can handle. Time on the clock, from before an item is sent until its worker has
//! it.

use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use stream_demux_hub::{Workers, for_each_by_key};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;

use crate::fanout::run;
use crate::measure::{Threads, percentile};

const HOT: u64 = 0;

/// The other customers. Each gets an item every 100 ms on average.
const OTHERS: u64 = 100;

/// An item for one of the others is sent each millisecond, for a second.
const ITEMS: u64 = 1_000;
const PAUSE: Duration = Duration::from_millis(1);

/// Handling an item takes so long, and up to a millisecond more. So the hot customer gets about twice
/// as many as its worker can handle, and fewer than the backlog has room for.
const HANDLING: Duration = Duration::from_millis(1);

/// The room of a mailbox, by default.
const ROOM: usize = 64;

/// A customer, and when the item was sent.
type Item = (u64, Instant);

/// Sends the items from a thread outside of the runtime.
fn produce(with_hot: bool) -> mpsc::Receiver<Item> {
    let (items, input) = mpsc::channel(ROOM);
    thread::spawn(move || {
        let (start, mut random) = (Instant::now(), 1_u64);
        for n in 0..ITEMS {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let due = start + PAUSE * u32::try_from(n).expect("it is small");
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let customer = 1 + (random >> 33) % OTHERS;
            // An item that has to wait in the program that makes it is late, too.
            items.blocking_send((customer, due)).expect("the customers are served");
            if with_hot {
                items.blocking_send((HOT, due)).expect("the customers are served");
            }
        }
    });
    input
}

async fn handle((customer, sent): Item, delays: &Sender<Duration>) {
    if customer != HOT {
        delays.send(sent.elapsed()).expect("the delays are read at the end");
    }
    sleep(HANDLING).await;
}

async fn workers(with_hot: bool) -> Vec<Duration> {
    let (delays, all) = channel();
    let input = ReceiverStream::new(produce(with_hot));
    let customer = |item: &Item| item.0;
    let run = for_each_by_key(input, customer, Workers::new(), move |_, mut items| {
        let delays = delays.clone();
        async move {
            while let Some(item) = items.recv().await {
                handle(item, &delays).await;
            }
        }
    });
    run.await;
    all.into_iter().collect()
}

/// A task and a channel for each customer, and a loop that sends.
async fn map_of_channels(with_hot: bool) -> Vec<Duration> {
    let (delays, all) = channel();
    let mut input = produce(with_hot);
    let (mut senders, mut tasks) = (HashMap::new(), JoinSet::new());
    while let Some(item) = input.recv().await {
        let sender = senders.entry(item.0).or_insert_with(|| {
            let (sender, mut items) = mpsc::channel(ROOM);
            let delays = delays.clone();
            tasks.spawn(async move {
                while let Some(item) = items.recv().await {
                    handle(item, &delays).await;
                }
            });
            sender
        });
        sender.send(item).await.expect("the task receives until the end");
    }
    drop((senders, delays));
    tasks.join_all().await;
    all.into_iter().collect()
}

pub(crate) fn measure(rounds: usize) {
    println!("delay of the items of {OTHERS} customers beside a hot one, two threads");
    // In turn, so that all are measured in the same conditions.
    let mut delays: [[Vec<Duration>; 2]; 2] = Default::default();
    for _ in 0..rounds {
        for (index, with_hot) in [false, true].into_iter().enumerate() {
            delays[0][index].extend(run(Threads::Two, move || workers(with_hot)));
            delays[1][index].extend(run(Threads::Two, move || map_of_channels(with_hot)));
        }
    }
    for (name, [without, with]) in ["for_each_by_key", "a map of channels"].iter().zip(delays) {
        let at = |delays: &[Duration], percent| {
            percentile(delays.iter().map(|delay| delay.as_secs_f64() * 1e3).collect(), percent)
        };
        let most = [at(&without, 99), at(&with, 99)];
        for (situation, delays, most) in
            [("alone", &without, most[0]), ("beside the hot one", &with, most[1])]
        {
            println!(
                "    {:<44} {:>9.3} ms, 99 % {most:>9.3} ms",
                format!("{name}, {situation}"),
                at(delays, 50)
            );
        }
        println!("    {:<44} {:.2} times as long at 99 %", "", most[1] / most[0]);
    }
}
