//! Small things: a round trip, a subscription, and the sink for channels of tokio.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures::{Sink, stream};
use stream_demux::DemuxStreamExt;
use stream_demux_hub::{Hub, MpscSink};
use tokio::sync::{broadcast, mpsc};
use tokio::task::{JoinSet, yield_now};
use tokio_util::sync::PollSender;

use crate::fanout::run;
use crate::measure::{Clock, Contender, Cost, compare, threads};

const PINGS: u64 = 20_000;

async fn ping_hub() -> Cost {
    let hub = Hub::new();
    let (mut requests, mut replies) = (hub.subscribe("ping"), hub.subscribe("pong"));
    let server = hub.clone();
    let server = tokio::spawn(async move {
        for _ in 0..PINGS {
            let n: u64 = requests.recv().await.unwrap().unwrap();
            server.publish("pong", n).await.unwrap();
        }
    });
    let clock = Clock::start();
    for n in 0..PINGS {
        hub.publish("ping", n).await.unwrap();
        assert_eq!(replies.recv().await, Some(Ok(n)));
    }
    let cost = clock.stop(PINGS);
    server.await.unwrap();
    cost
}

async fn ping_map() -> Cost {
    let ((to_server, mut requests), (to_client, mut replies)) =
        (mpsc::channel(64), mpsc::channel(64));
    let map = Arc::new(Mutex::new(HashMap::from([("ping", to_server), ("pong", to_client)])));
    let publish = async |map: &Mutex<HashMap<_, mpsc::Sender<u64>>>, key, n| {
        let sender = map.lock().unwrap().get(key).cloned().unwrap();
        sender.send(n).await.unwrap();
    };
    let of_server = Arc::clone(&map);
    let server = tokio::spawn(async move {
        for _ in 0..PINGS {
            let n = requests.recv().await.unwrap();
            let sender = of_server.lock().unwrap().get("pong").cloned().unwrap();
            sender.send(n).await.unwrap();
        }
    });
    let clock = Clock::start();
    for n in 0..PINGS {
        publish(&map, "ping", n).await;
        assert_eq!(replies.recv().await, Some(n));
    }
    let cost = clock.stop(PINGS);
    server.await.unwrap();
    cost
}

pub(crate) fn measure_ping(rounds: usize) {
    for threads in threads() {
        compare(
            &format!("ping: a round trip, {}", threads.name()),
            rounds,
            vec![
                Contender::new("hub", move || run(threads, ping_hub)),
                Contender::new("map of senders", move || run(threads, ping_map)),
            ],
        );
    }
}

const VISITS: u64 = 50_000;
const PLACES: u64 = 1_000;

async fn visit_hub() -> Cost {
    let hub = Hub::<u64, u64>::new();
    let _stay = (0..PLACES).map(|key| hub.subscribe(key)).collect::<Vec<_>>();
    yield_now().await;
    let clock = Clock::start();
    for n in 0..VISITS {
        drop(hub.subscribe(n % PLACES));
        if n % 100 == 0 {
            yield_now().await;
        }
    }
    hub.stats().await;
    clock.stop(VISITS)
}

async fn visit_broadcast() -> Cost {
    let map = (0..PLACES).map(|key| (key, broadcast::channel::<u64>(1_024)));
    let map = Mutex::new(map.collect::<HashMap<_, _>>());
    let clock = Clock::start();
    for n in 0..VISITS {
        drop(map.lock().unwrap()[&(n % PLACES)].0.subscribe());
        if n % 100 == 0 {
            yield_now().await;
        }
    }
    clock.stop(VISITS)
}

pub(crate) fn measure_subscribe(rounds: usize) {
    for threads in threads() {
        compare(
            &format!("subscribe and leave, {}", threads.name()),
            rounds,
            vec![
                Contender::new("hub", move || run(threads, visit_hub)),
                Contender::new("map of broadcast channels", move || run(threads, visit_broadcast)),
            ],
        );
    }
}

const IDLE: usize = 100_000;

/// The memory of the process, in bytes.
fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u32>().ok());
    f64::from(pages.unwrap_or(0)) * 4096.0
}

fn print_memory<T>(name: &str, made: impl FnOnce() -> T) -> T {
    let before = resident();
    let made = made();
    println!("    {name:<44} {:>9.0} bytes", (resident() - before) / IDLE as f64);
    made
}

pub(crate) fn measure_memory(_: usize) {
    println!("memory: an idle subscription, of {IDLE}, each of a key of its own");
    let threads = crate::measure::Threads::One;
    let runtime = threads.runtime();
    runtime.block_on(async {
        let hub = Hub::<usize, u64>::new();
        let idle = print_memory("hub, before it knows of them", || {
            (0..IDLE).map(|key| hub.subscribe(key)).collect::<Vec<_>>()
        });
        let before = resident();
        hub.stats().await;
        println!("    {:<44} {:>9.0} bytes", "hub, more", (resident() - before) / IDLE as f64);
        let map = print_memory("map of broadcast channels of 16", || {
            (0..IDLE).map(|key| (key, broadcast::channel::<u64>(16))).collect::<HashMap<_, _>>()
        });
        drop((idle, map));
    });
}

const ITEMS: u64 = 400_000;
const ROOM: usize = 64;

/// The senders of channels, and tasks that read them to their ends.
fn channels(count: u64) -> (Vec<mpsc::Sender<u64>>, JoinSet<u64>) {
    let (mut senders, mut readers) = (Vec::new(), JoinSet::new());
    for _ in 0..count {
        let (sender, mut receiver) = mpsc::channel(ROOM);
        senders.push(sender);
        readers.spawn(async move {
            let mut count = 0;
            while let Some(item) = receiver.recv().await {
                std::hint::black_box(item);
                count += 1;
            }
            count
        });
    }
    (senders, readers)
}

async fn finish(clock: Clock, readers: JoinSet<u64>) -> Cost {
    assert_eq!(readers.join_all().await.into_iter().sum::<u64>(), ITEMS);
    clock.stop(ITEMS)
}

async fn channels_demux<S>(count: u64, sink: fn(mpsc::Sender<u64>) -> S) -> Cost
where
    S: Sink<u64> + Unpin,
{
    let (senders, readers) = channels(count);
    let sinks = (0..).zip(senders).map(|(key, sender)| (key, sink(sender))).collect::<Vec<_>>();
    let clock = Clock::start();
    let items = stream::iter((0..ITEMS).map(|n| n * 7_919));
    items.demux_by(move |n| n % count, stream::iter(sinks)).await;
    finish(clock, readers).await
}

async fn channels_send(count: u64) -> Cost {
    let (senders, readers) = channels(count);
    let senders = (0..).zip(senders).collect::<HashMap<_, _>>();
    let clock = Clock::start();
    for n in (0..ITEMS).map(|n| n * 7_919) {
        senders[&(n % count)].send(n).await.unwrap();
    }
    drop(senders);
    finish(clock, readers).await
}

pub(crate) fn measure_channels(rounds: usize) {
    for (count, threads) in
        [100, 1_000].into_iter().flat_map(|n| threads().into_iter().map(move |t| (n, t)))
    {
        compare(
            &format!("{count} channels of tokio, {}: an item", threads.name()),
            rounds,
            vec![
                Contender::new("demux, MpscSink", move || {
                    run(threads, move || channels_demux(count, MpscSink::new))
                }),
                Contender::new("demux, PollSender", move || {
                    run(threads, move || channels_demux(count, PollSender::new))
                }),
                Contender::new("map of senders, send", move || {
                    run(threads, move || channels_send(count))
                }),
            ],
        );
    }
}
