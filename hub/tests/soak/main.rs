//! Random publishing, subscribing, writing, leaving, stalling and shutting down, on four workers.
//!
//! Takes two seconds, or as many as the environment says:
//!
//! ```sh
//! SOAK_SECONDS=3600 cargo test --release -p stream-demux-hub --test soak -- --nocapture
//! ```
//!
//! The items of a key are numbered. What a subscriber or the client of a writer receives and what
//! it is told to have lost must follow each other without a gap, up to the last item if it stays
//! until the end. At the end memory must be where it was in the beginning.

mod clients;
mod several;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use model::dice::Dice;
use stream_demux_hub::{End, Hub, Lagged, Overflow, Report, Subscription, Terms};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

const KEYS: u64 = 32;
const SUBSCRIBERS: u64 = 150;
/// Those that subscribe to several keys at once.
const SUBSCRIBERS_TO_SEVERAL: u64 = 30;
/// Those that get the items of a key as lines, from a writer.
const CLIENTS: u64 = 60;
const ROUND: Duration = Duration::from_millis(500);

/// Its key, and its number among the items of the key.
type Item = (u64, u64);

struct World {
    hub: Hub<u64, Item>,
    /// The number of items of each key that the hub has accepted.
    accepted: Vec<AtomicU64>,
    end: Instant,
    received: AtomicU64,
    lost: AtomicU64,
    subscriptions: AtomicU64,
    /// The lines that clients have read, and those that they were told are missing.
    lines: AtomicU64,
    lost_lines: AtomicU64,
}

impl World {
    fn accepted(&self, key: u64) -> &AtomicU64 {
        &self.accepted[usize::try_from(key).expect("it is small")]
    }
}

fn main() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(2, |text| text.parse().expect("seconds"));
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(4).enable_all().build().expect("a runtime starts");
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut rounds, mut memory, mut sums) = (0_u64, Vec::new(), [0; 5]);
    while Instant::now() < end {
        let counts = runtime.block_on(async move { tokio::spawn(round(rounds)).await });
        let counts = counts.expect("nothing panics");
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        rounds += 1;
        memory.push(resident());
        if rounds % 100 == 0 {
            println!("{rounds} rounds, {} MB", resident() >> 20);
        }
    }
    let [received, lost, lines, lost_lines, subscriptions] = sums;
    println!(
        "{rounds} rounds, {subscriptions} subscriptions and writers: {received} items received and \
         {lost} told to be lost, {lines} lines received and {lost_lines} told to be lost"
    );
    // The first rounds fill the allocator's pools.
    if let (Some(first), Some(last)) = (memory.get(20), memory.last()) {
        println!("memory: {} MB after 20 rounds, {} MB at the end", first >> 20, last >> 20);
        assert!(last < &(first + first / 4 + (8 << 20)), "memory grows");
    }
}

/// Runs a hub from its beginning to its end. Returns how many items and lines were received, and how
/// many were lost, by how many subscriptions and writers.
async fn round(seed: u64) -> [u64; 5] {
    let mut dice = Dice::new(seed);
    let builder = Hub::builder().capacity(1 << dice.below(11)).tick(Duration::from_millis(5));
    // Half of the hubs keep items, and half of these forget those of some keys.
    let builder = match dice.below(4) {
        0 => builder.replay(16),
        1 => builder.replay(100).replay_keys(5),
        _ => builder,
    };
    let hub = builder.spawn();
    let world = Arc::new(World {
        hub,
        accepted: (0..KEYS).map(|_| AtomicU64::new(0)).collect(),
        end: Instant::now() + ROUND,
        received: AtomicU64::new(0),
        lost: AtomicU64::new(0),
        subscriptions: AtomicU64::new(0),
        lines: AtomicU64::new(0),
        lost_lines: AtomicU64::new(0),
    });
    let (mut publishers, mut subscribers) = (JoinSet::new(), JoinSet::new());
    for n in 0..SUBSCRIBERS {
        subscribers.spawn(subscriber(Arc::clone(&world), Dice::new(seed ^ (n + 1) << 32)));
    }
    for n in 0..SUBSCRIBERS_TO_SEVERAL {
        subscribers.spawn(several::subscriber(Arc::clone(&world), Dice::new(seed ^ (n + 1) << 24)));
    }
    for n in 0..CLIENTS {
        subscribers.spawn(clients::client(Arc::clone(&world), Dice::new(seed ^ (n + 1) << 40)));
    }
    for key in 0..KEYS {
        publishers.spawn(publisher(Arc::clone(&world), key, Dice::new(seed ^ (key + 1) << 48)));
    }
    // Half of the hubs are shut down while all publish, and some of these at once.
    let is_early = dice.below(2) == 0;
    if is_early {
        sleep(ROUND / 2).await;
    } else {
        publishers.join_all().await;
        publishers = JoinSet::new();
    }
    let is_hasty = is_early && dice.below(2) == 0;
    let patience = if is_hasty { Duration::ZERO } else { Duration::from_secs(60) };
    let report = world.hub.shutdown(patience).await;
    publishers.join_all().await;
    subscribers.join_all().await;
    check(&world, &report, is_hasty);
    let World { received, lost, lines, lost_lines, subscriptions, .. } = &*world;
    [received, lost, lines, lost_lines, subscriptions].map(|count| count.load(Relaxed))
}

/// Every item that was accepted is accounted for.
fn check(world: &World, report: &Report<u64>, is_hasty: bool) {
    let (stats, totals) = (report.stats, report.stats.totals);
    let accepted = world.accepted.iter().map(|count| count.load(Relaxed)).sum::<u64>();
    assert_eq!(totals.received + stats.waiting, accepted, "{report:?}");
    let fates = totals.unmatched + totals.delivered + totals.discarded + totals.lost;
    assert_eq!(totals.received + totals.copies, fates + totals.queued, "{report:?}");
    assert_eq!(totals.queued, 0, "{report:?}");
    // Writers may have noticed their losses later.
    assert!(world.lost.load(Relaxed) <= stats.lost, "{report:?}");
    if !is_hasty {
        assert_eq!((stats.waiting, report.hung.len()), (0, 0), "{report:?}");
    }
}

async fn publisher(world: Arc<World>, key: u64, mut dice: Dice) {
    for item in 0.. {
        if Instant::now() > world.end {
            return;
        }
        match dice.below(64) {
            0 => sleep(Duration::from_millis(1)).await,
            1..8 => yield_now().await,
            // If it is dropped before it completes, nothing is published.
            8 => match timeout(Duration::ZERO, world.hub.publish(key, (key, item))).await {
                Ok(Ok(())) => {
                    world.accepted(key).store(item + 1, Relaxed);
                    continue;
                }
                Ok(Err(_)) => return,
                Err(_) => {}
            },
            _ => {}
        }
        if world.hub.publish(key, (key, item)).await.is_err() {
            return;
        }
        world.accepted(key).store(item + 1, Relaxed);
    }
}

/// Subscribes again and again until the hub has ended.
async fn subscriber(world: Arc<World>, mut dice: Dice) {
    loop {
        let key = dice.below(KEYS);
        let policies =
            [Overflow::DropOldest, Overflow::DropNewest, Overflow::Evict, Overflow::Wait];
        let policy = policies[usize::try_from(dice.below(4)).expect("it is small")];
        let terms = Terms::new().buffer(1 << dice.below(8)).overflow(policy);
        let terms = if dice.below(2) == 0 { terms.replay(1 << dice.below(8)) } else { terms };
        let is_impatient = dice.below(4) == 0;
        let terms =
            if is_impatient { terms.stall_timeout(Duration::from_millis(5)) } else { terms };
        // On the default terms, it shares a topic with others.
        let is_plain = dice.below(3) == 0;
        let mut subscription = if is_plain {
            world.hub.subscribe(key)
        } else {
            world.hub.subscribe_with([key], terms)
        };
        world.subscriptions.fetch_add(1, Relaxed);
        if !read(&world, &mut subscription, key, &mut dice).await {
            continue;
        }
        match subscription.end().expect("it returned `None`") {
            // A later subscription ends in the same way.
            End::Closed if world.hub.is_closed() => return,
            End::Aborted => return,
            End::Overflowed => assert!(!is_plain && policy == Overflow::Evict),
            End::Stalled => assert!(!is_plain && is_impatient && policy == Overflow::Wait),
            end => panic!("the subscription has ended: {end}"),
        }
    }
}

/// Reads until the subscription ends, or until it is time to leave. Returns `true` if it has ended.
async fn read(
    world: &World,
    subscription: &mut Subscription<u64, Item>,
    key: u64,
    dice: &mut Dice,
) -> bool {
    let leaves_after = if dice.below(3) == 0 { u64::MAX } else { dice.below(2_000) };
    let (mut next, mut received, mut lost) = (None, 0, 0);
    let has_ended = loop {
        match subscription.recv().await {
            None => break true,
            Some(Ok((of, item))) => {
                assert_eq!(of, key);
                assert!(next.is_none_or(|next| next == item), "{item} instead of {next:?}");
                next = Some(item + 1);
                received += 1;
            }
            Some(Err(Lagged(n))) => {
                // What was lost before the first item has no number.
                next = next.map(|next| next + n);
                lost += n;
            }
        }
        match dice.below(2_000) {
            0 => sleep(Duration::from_millis(10)).await,
            1..50 => yield_now().await,
            _ => {}
        }
        if received + lost > leaves_after {
            break false;
        }
    };
    world.received.fetch_add(received, Relaxed);
    world.lost.fetch_add(lost, Relaxed);
    if has_ended && subscription.end() == Some(End::Closed) {
        let all = world.accepted(key).load(Relaxed);
        // The publisher may not have counted its last item yet.
        assert!(next.is_none_or(|next| next == all || next == all + 1), "{next:?} of {all}");
    }
    has_ended
}

/// The resident memory in bytes, or 0 where there is no `/proc`.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<usize>().ok());
    pages.unwrap_or(0) * 4_096
}
