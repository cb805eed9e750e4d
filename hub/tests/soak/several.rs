//! Subscriptions to several keys, of which some come and go.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use model::dice::Dice;
use stream_demux_hub::{End, Lagged, Overflow, SubscriptionKeys, SubscriptionReader, Terms};
use tokio::task::yield_now;
use tokio::time::sleep;

use crate::{Item, KEYS, World};

/// What a subscription knows from what it has received.
#[derive(Debug, Default)]
struct Reading {
    /// The number that comes next at the earliest, of each key of which an item has come.
    next: HashMap<u64, u64>,
    /// Keys that were removed once. What was published until they were added again is missing, and
    /// what had come before may be read after that.
    removed: HashSet<u64>,
    /// How many numbers are missing between those that have come.
    missing: u64,
    received: u64,
    lost: u64,
}

impl Reading {
    /// # Panics
    ///
    /// Panics if this item has come before, or one after it.
    fn take(&mut self, (key, item): Item) {
        self.received += 1;
        if self.removed.contains(&key) {
            return;
        }
        if let Some(next) = self.next.insert(key, item + 1) {
            assert!(next <= item, "{item} of {key}, expected {next}");
            self.missing += item - next;
        }
    }
}

/// Subscribes again and again until the hub has ended.
pub(crate) async fn subscriber(world: Arc<World>, mut dice: Dice) {
    loop {
        let policies = [
            Overflow::DropOldest,
            Overflow::DropNewest,
            Overflow::Evict,
            Overflow::Wait,
            Overflow::Conflate,
        ];
        let policy = policies[usize::try_from(dice.below(5)).expect("it is small")];
        let terms = Terms::new().buffer(1 << dice.below(8)).overflow(policy);
        let terms = if dice.below(2) == 0 { terms.replay(4) } else { terms };
        let keys = [dice.below(KEYS), dice.below(KEYS), dice.below(KEYS)];
        let subscription = world.hub.subscribe_with(keys, terms);
        world.subscriptions.fetch_add(1, Relaxed);
        let (mut reader, keys) = subscription.split();
        let (reading, has_ended) = read(&mut reader, &keys, &mut dice).await;
        world.received.fetch_add(reading.received, Relaxed);
        world.lost.fetch_add(reading.lost, Relaxed);
        if !has_ended {
            continue;
        }
        match reader.end().expect("it returned `None`") {
            // A later subscription ends in the same way.
            End::Closed if world.hub.is_closed() => return check(&world, &keys, &reading),
            End::Aborted => return,
            End::Overflowed => assert_eq!(policy, Overflow::Evict),
            end => panic!("the subscription has ended: {end}"),
        }
    }
}

/// Reads until the subscription ends, or until it is time to leave. Adds and removes keys meanwhile.
/// Returns `true` if it has ended.
async fn read(
    reader: &mut SubscriptionReader<u64, Item>,
    keys: &SubscriptionKeys<u64, Item>,
    dice: &mut Dice,
) -> (Reading, bool) {
    let leaves_after = if dice.below(3) == 0 { u64::MAX } else { dice.below(2_000) };
    let mut reading = Reading::default();
    loop {
        match reader.recv().await {
            None => return (reading, true),
            Some(Ok(item)) => reading.take(item),
            Some(Err(Lagged(n))) => reading.lost += n,
        }
        match dice.below(2_000) {
            0 => sleep(Duration::from_millis(10)).await,
            1..50 => yield_now().await,
            50..80 => {
                keys.add(dice.below(KEYS));
            }
            80..100 => {
                let key = dice.below(KEYS);
                if keys.keys().len() > 1 && keys.remove(&key) {
                    reading.removed.insert(key);
                }
            }
            _ => {}
        }
        if reading.received + reading.lost > leaves_after {
            return (reading, false);
        }
    }
}

/// The hub has ended, and the subscription was there until then: what is missing was told.
fn check(world: &World, keys: &SubscriptionKeys<u64, Item>, reading: &Reading) {
    let mut missing = reading.missing;
    for key in keys.keys().into_iter().filter(|key| !reading.removed.contains(key)) {
        let Some(next) = reading.next.get(&key) else { continue };
        // The publisher may not have counted its last item yet.
        missing += world.accepted(key).load(Relaxed).saturating_sub(*next);
    }
    assert!(missing <= reading.lost, "{reading:?}: {missing} are missing");
}
