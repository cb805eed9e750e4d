//! What an engine and a bridge pay for an item, a copy and a key, in processor time and memory. The figures of
//! `docs/scaling.md` are from here.
//!
//! ```sh
//! redis-server --port 6399 --save '' & nats-server -a 127.0.0.1 -p 4299 &
//! cargo run --release -p stream-demux-bridge --example engine_cost -- redis://127.0.0.1:6399 PID
//! cargo run --release -p stream-demux-bridge --example engine_cost -- nats://127.0.0.1:4299 PID
//! ```

use std::error::Error;
use std::fs;
use std::time::{Duration, Instant};

use stream_demux_bridge::{Bridge, Received, Subscription, Terms};
use tokio::task::JoinSet;

type Failure = Box<dyn Error + Send + Sync>;

/// Items of a measurement, and how many are on their way at once.
const ITEMS: u32 = 200_000;
const PUBLISHERS: u32 = 256;
/// The size of an item.
const BYTES: usize = 100;
const KEYS: u32 = 50_000;

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, process] = &arguments[..] else {
        return Err("give the URL of an engine, and the id of its process".into());
    };
    println!(
        "items of {BYTES} bytes, {PUBLISHERS} on their way at once; µs of processor time for each item"
    );
    println!("subscribed processes | engine | publisher and readers | items/s");
    for readers in [0, 1, 8] {
        let publisher = bridge(url)?;
        let mut reading = JoinSet::new();
        for _ in 0..readers {
            let reader = bridge(url)?;
            let terms = Terms::new().buffer(ITEMS as usize);
            let subscription = reader.subscribe_with(["tea"], terms).await?;
            reading.spawn(async move {
                let _reader = reader;
                read(subscription).await
            });
        }
        publisher.publish("warm", "up").await?;
        let before = (Instant::now(), processor_time(process)?, processor_time("self")?);
        publish(&publisher).await?;
        while let Some(result) = reading.join_next().await {
            result??;
        }
        let took = before.0.elapsed().as_secs_f64();
        let engine = processor_time(process)? - before.1;
        let own = processor_time("self")? - before.2;
        let items = f64::from(ITEMS);
        println!(
            "{readers} | {:.2} | {:.2} | {:.0}",
            engine / items * 1e6,
            own / items * 1e6,
            items / took
        );
    }

    let reader = bridge(url)?;
    reader.subscribe("warm up").await?;
    let before = (processor_time(process)?, memory(process)?);
    let keys = (0..KEYS).map(|n| format!("room:{n}"));
    let subscription = reader.subscribe_with(keys, Terms::new()).await?;
    let engine = (processor_time(process)? - before.0) / f64::from(KEYS);
    let bytes = memory(process)?.saturating_sub(before.1) / KEYS as usize;
    println!(
        "a key: {:.1} µs of the engine to subscribe, {bytes} bytes of its memory",
        engine * 1e6
    );
    drop(subscription);
    Ok(())
}

fn bridge(url: &str) -> Result<Bridge, Failure> {
    let settings = Bridge::builder().publish_timeout(Duration::from_secs(60));
    let is_nats = url.starts_with("nats:");
    Ok(if is_nats { settings.nats(url)? } else { settings.redis(url)? })
}

async fn publish(bridge: &Bridge) -> Result<(), Failure> {
    let mut publishing = JoinSet::new();
    for _ in 0..PUBLISHERS {
        let bridge = bridge.clone();
        publishing.spawn(async move {
            for _ in 0..ITEMS / PUBLISHERS {
                bridge.publish("tea", vec![0; BYTES]).await?;
            }
            Ok::<(), Failure>(())
        });
    }
    while let Some(result) = publishing.join_next().await {
        result??;
    }
    Ok(())
}

/// Reads everything that is published. What it may have missed would make the figures wrong.
async fn read(mut subscription: Subscription) -> Result<(), Failure> {
    let mut batch = Vec::new();
    let mut read = 0;
    while read < ITEMS / PUBLISHERS * PUBLISHERS {
        subscription.recv_many(&mut batch, 1_024).await;
        for received in batch.drain(..) {
            match received {
                Received::Item { .. } => read += 1,
                other => return Err(format!("{other:?}").into()),
            }
        }
    }
    Ok(())
}

/// The processor time of a process in seconds: the 14th and 15th words, in hundredths of a second.
fn processor_time(process: &str) -> Result<f64, Failure> {
    let text = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, words) = text.rsplit_once(')').ok_or("it has no name")?;
    let ticks = words.split_whitespace().skip(11).take(2).map(str::parse::<u32>);
    let ticks = ticks.sum::<Result<u32, _>>()?;
    Ok(f64::from(ticks) / 100.0)
}

fn memory(process: &str) -> Result<usize, Failure> {
    let text = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no memory")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<usize>()? * 1_024)
}
