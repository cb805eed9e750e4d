//! Subscriptions on the default terms share a topic for each key. They keep all promises that a
//! subscription with an inbox of its own keeps, also when they turn into one.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use sink_test::Task;
use stream_demux_hub::{End, Hub, Lagged, Overflow, Subscription, Terms};
use tokio::sync::Barrier;
use tokio::task::{JoinSet, yield_now};

use crate::common::Dice;
use crate::hub::{SECOND, publish, read, settle, waiting_terms};
use crate::runtimes::{RUNTIMES, run, within_a_minute};

/// An item that counts its clones.
struct Counted(u64, Arc<AtomicUsize>);

impl Clone for Counted {
    fn clone(&self) -> Self {
        self.1.fetch_add(1, SeqCst);
        Self(self.0, Arc::clone(&self.1))
    }
}

fn numbers(subscription: &mut Subscription<&str, Counted>) -> Vec<Result<u64, u64>> {
    read(subscription).into_iter().map(|next| next.map(|item| item.0)).collect()
}

#[tokio::test(start_paused = true)]
async fn item_for_many_subscribers_is_stored_once() {
    let clones = Arc::new(AtomicUsize::new(0));
    let hub = Hub::new();
    let mut all = (0..10).map(|_| hub.subscribe("a")).collect::<Vec<_>>();
    publish(&hub, (0..3).map(|n| Counted(n, Arc::clone(&clones)))).await;
    settle().await;
    assert_eq!(clones.load(SeqCst), 0);
    for subscription in &mut all {
        assert_eq!(subscription.len(), 3);
        assert_eq!(numbers(subscription), [Ok(0), Ok(1), Ok(2)]);
    }
    assert!(clones.load(SeqCst) <= 30, "a reader clones what it returns");

    // One with terms of its own is served beside them.
    let mut other = hub.subscribe_with(["a"], Terms::new().buffer(8));
    publish(&hub, [Counted(3, Arc::clone(&clones))]).await;
    settle().await;
    assert_eq!(numbers(&mut other), [Ok(3)]);
    assert_eq!(numbers(&mut all[9]), [Ok(3)]);
    assert_eq!(hub.subscribers(&"a").await, 11);
    drop(all);
    assert_eq!(hub.subscribers(&"a").await, 1);
}

/// The task of the hub and those that are spawned run in the order in which they become ready.
#[tokio::test(start_paused = true)]
async fn several_items_let_other_publishers_run_before_a_reader_is_woken() {
    let hub = Hub::new();
    let mut reader = hub.subscribe("a");
    settle().await;
    let batches = tokio::spawn(async move {
        let (mut batch, mut lengths) = (Vec::new(), Vec::new());
        while reader.recv_many(&mut batch, 16).await > 0 {
            lengths.push(batch.len());
            batch.clear();
        }
        lengths
    });
    settle().await;
    publish(&hub, [1, 2]).await;
    let publisher = hub.clone();
    tokio::spawn(async move { publish(&publisher, [3]).await });
    settle().await;
    // What is asked after that comes after the items, and a single item waits for nothing.
    publish(&hub, [4, 5]).await;
    assert_eq!(hub.stats().await.totals.received, 5);
    publish(&hub, [6]).await;
    let publisher = hub.clone();
    tokio::spawn(async move { publish(&publisher, [7]).await });
    settle().await;
    hub.shutdown(SECOND).await;
    assert_eq!(batches.await.unwrap(), [3, 2, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn counts_are_those_of_subscribers() {
    let hub = Hub::new();
    let mut one = hub.subscribe("a");
    let two = hub.subscribe("a");
    publish(&hub, 0..10).await;
    settle().await;
    let mut late = hub.subscribe("a");
    publish(&hub, 10..15).await;
    settle().await;
    drop(two);
    publish(&hub, 15..16).await;
    let stats = hub.stats().await;
    let totals = stats.totals;
    assert_eq!((totals.received, totals.copies, totals.delivered), (16, 10 + 2 * 5 + 1, 37));
    assert_eq!((totals.attached, totals.detached, stats.receiving), (3, 1, 2));
    assert_eq!((read(&mut one).len(), read(&mut late).len()), (16, 6));

    publish(&hub, 0..2_000).await;
    settle().await;
    assert_eq!(read(&mut one)[..2], [Err(976), Ok(976)]);
    assert_eq!((one.lost(), late.lost(), late.len()), (976, 976, 1_024));
    assert_eq!(hub.stats().await.lost, 2 * 976);
    let report = hub.shutdown(SECOND).await;
    assert_eq!((report.stats.receiving, report.stats.totals.detached), (0, 3));
    assert_eq!(late.next().await, Some(Err(Lagged(976))));
}

#[tokio::test(start_paused = true)]
async fn key_is_forgotten_with_its_last_subscriber() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let hub = Hub::builder()
        .on_interest(move |key: &&str, wanted| tell.lock().unwrap().push((*key, wanted)))
        .spawn();
    for _ in 0..2 {
        let (one, two) = (hub.subscribe("a"), hub.subscribe("a"));
        settle().await;
        drop(one);
        settle().await;
        assert_eq!(told.lock().unwrap().pop(), Some(("a", true)));
        drop(two);
        settle().await;
        assert_eq!(told.lock().unwrap().pop(), Some(("a", false)));
        publish(&hub, [1]).await;
        settle().await;
    }
    let stats = hub.stats().await;
    assert_eq!((stats.totals.unmatched, stats.receiving), (2, 0));
}

/// The task of the hub has not heard of the first subscription when it is gone.
#[tokio::test(start_paused = true)]
async fn topic_that_nobody_reads_any_more_is_not_joined() {
    let hub = Hub::new();
    for n in 0..100 {
        drop(hub.subscribe("a"));
        let mut next = hub.subscribe("a");
        publish(&hub, [n]).await;
        if n % 2 == 0 {
            settle().await;
        }
        assert_eq!(next.recv().await, Some(Ok(n)));
    }
    assert_eq!(hub.stats().await.receiving, 0);
}

#[tokio::test(start_paused = true)]
async fn each_departure_is_told() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let hub = Hub::builder()
        .on_detached(move |to, why| tell.lock().unwrap().push((*to.key, why.as_str())))
        .spawn();
    let (one, two, three) = (hub.subscribe("a"), hub.subscribe("a"), hub.subscribe("a"));
    publish(&hub, [1]).await;
    drop(one);
    settle().await;
    assert_eq!(*told.lock().unwrap(), [("a", "evicted")]);
    drop(two);
    hub.shutdown(SECOND).await;
    assert_eq!(*told.lock().unwrap(), [("a", "evicted"), ("a", "evicted"), ("a", "finished")]);
    drop(three);
}

#[tokio::test(start_paused = true)]
async fn readers_that_sleep_are_woken_by_the_end() {
    for is_orderly in [true, false] {
        let hub = Hub::builder().on_unmatched(|_, _| panic!("nobody listens")).spawn();
        let readers = (0..3).map(|_| {
            let mut subscription = hub.subscribe("a");
            tokio::spawn(async move {
                let first = subscription.recv().await;
                (first, subscription.recv().await, subscription.end())
            })
        });
        let readers = readers.collect::<Vec<_>>();
        settle().await;
        publish(&hub, [1]).await;
        settle().await;
        if is_orderly {
            let report = hub.shutdown(SECOND).await;
            assert!(report.hung.is_empty());
        } else {
            hub.publish("b", 2).await.unwrap();
        }
        let end = if is_orderly { End::Closed } else { End::Aborted };
        for reader in readers {
            assert_eq!(reader.await.unwrap(), (Some(Ok(1)), None, Some(end)));
        }
        let mut late = hub.subscribe("a");
        assert_eq!((late.recv().await, late.end()), (None, Some(end)));
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_routed_before_its_key_is_left_can_be_read() {
    let hub = Hub::new();
    let mut subscription = hub.subscribe("a");
    let mut other = hub.subscribe("a");
    publish(&hub, 0..1_030).await;
    settle().await;
    assert_eq!(
        (subscription.recv().await, subscription.recv().await),
        (Some(Err(Lagged(6))), Some(Ok(6)))
    );
    assert!(subscription.remove(&"a") && !subscription.remove(&"a"));
    assert_eq!((subscription.keys().count(), subscription.len()), (0, 1_023));
    publish(&hub, 1_030..1_040).await;
    settle().await;
    let expected = (7..1_030).map(Ok).collect::<Vec<_>>();
    assert_eq!((read(&mut subscription), subscription.end()), (expected, None));
    assert_eq!((subscription.lost(), hub.subscribers(&"a").await), (6, 1));
    assert_eq!(read(&mut other).len(), 1_025);

    // Without keys it waits for the end of the hub, and a key can be added.
    assert!(subscription.recv().now_or_never().is_none());
    assert!(subscription.add("a"));
    publish(&hub, [1_040]).await;
    assert_eq!(subscription.recv().await, Some(Ok(1_040)));
    drop(hub);
    assert_eq!((subscription.recv().await, subscription.end()), (None, Some(End::Closed)));
}

/// It reads the rest of the topic, and then its inbox.
#[tokio::test(start_paused = true)]
async fn key_is_added_to_a_subscription_of_one() {
    let hub = Hub::new();
    let mut subscription = hub.subscribe("a");
    let mut beside = hub.subscribe("a");
    publish(&hub, 0..1_030).await;
    settle().await;
    assert!(subscription.add("b") && !subscription.add("a") && !subscription.add("b"));
    let stats = hub.stats().await;
    assert_eq!((stats.receiving, hub.subscribers(&"a").await), (3, 2));
    hub.publish("b", 2_000).await.unwrap();
    hub.publish("a", 2_001).await.unwrap();
    hub.publish("b", 2_002).await.unwrap();
    settle().await;
    assert_eq!((hub.stats().await.receiving, hub.subscribers(&"a").await), (3, 2));
    let mut expected = vec![Err(6)];
    expected.extend((6..1_030).chain(2_000..2_003).map(Ok));
    assert_eq!(read(&mut subscription), expected);
    assert_eq!((subscription.lost(), read(&mut beside).len()), (6, 1_025));
    assert!(subscription.remove(&"a"));
    assert_eq!((hub.subscribers(&"a").await, hub.subscribers(&"b").await), (1, 1));
    let totals = hub.stats().await.totals;
    let fates = totals.unmatched + totals.delivered + totals.discarded + totals.lost;
    assert_eq!(totals.received + totals.copies, fates);
}

/// No item of the first key comes after the addition, so nothing tells where the topic ends.
#[tokio::test(start_paused = true)]
async fn items_of_an_added_key_do_not_wait_for_the_first_key() {
    let hub = Hub::new();
    let mut subscription = hub.subscribe("a");
    let mut waiting = Task::new(subscription.recv());
    assert!(waiting.run().is_pending());
    drop(waiting);
    publish(&hub, [1]).await;
    subscription.add("b");
    hub.publish("b", 2).await.unwrap();
    hub.publish("b", 3).await.unwrap();
    for n in 1..=3 {
        assert_eq!(subscription.recv().await, Some(Ok(n)));
    }
    let report = hub.shutdown(SECOND).await;
    assert_eq!((subscription.recv().await, subscription.end()), (None, Some(End::Closed)));
    assert_eq!((report.stats.totals.detached, report.stats.receiving), (3, 0));
}

/// Some subscriptions turn into others in the middle of bursts of which the hub does a little at a
/// time: each item is received once and in its place.
#[tokio::test(start_paused = true)]
async fn subscription_that_turns_into_another_in_a_burst_gets_each_item_once() {
    for seed in 0..2_000 {
        let test = async move {
            let mut dice = Dice::new(seed);
            let hub = Hub::builder().budget(1 + dice.index(4)).spawn();
            // Others in the group of the key, before and behind the topic.
            let before = (0..dice.index(3)).map(|_| hub.subscribe_with(["a"], waiting_terms(100)));
            let before = before.collect::<Vec<_>>();
            let mut both = hub.subscribe("a");
            let shares = (0..dice.index(3)).map(|_| hub.subscribe("a")).collect::<Vec<_>>();
            let behind = (0..dice.index(3)).map(|_| hub.subscribe_with(["a"], waiting_terms(100)));
            let behind = behind.collect::<Vec<_>>();
            if dice.index(2) == 0 {
                assert!(both.recv().now_or_never().is_none()); // it sleeps
            }
            let first = dice.index(20);
            for n in 0..first {
                hub.try_publish("a", n).unwrap();
            }
            // The hub gets some turns. `yield_now` would let it go on until it waits.
            for _ in 0..=dice.index(6) {
                tokio::spawn(async {}).await.unwrap();
            }
            let mut got = Vec::new();
            if dice.index(2) == 0 {
                got.extend(both.try_recv());
            }
            assert!(both.add("b"));
            for n in first..60 {
                let key = if dice.index(4) == 0 { "a" } else { "b" };
                hub.try_publish(key, n).unwrap();
                if dice.index(8) == 0 {
                    tokio::spawn(async {}).await.unwrap();
                    got.extend(both.try_recv());
                }
            }
            drop((before, shares, behind));
            drop(hub);
            while let Some(next) = both.recv().await {
                got.push(next);
            }
            assert_eq!(got, (0..60).map(Ok).collect::<Vec<_>>(), "seed {seed}");
        };
        // As a task, it takes turns with that of the hub.
        tokio::spawn(test).await.unwrap();
    }
}

/// The same on real threads, with a publisher that never pauses and is never ahead by more than
/// there is room for.
#[test]
fn subscriptions_that_turn_into_others_beside_a_publisher_get_each_item_once() {
    for workers in RUNTIMES {
        run(workers, async {
            let hub = Hub::<&str, u64>::builder().capacity(64).spawn();
            let is_done = Arc::new(AtomicBool::new(false));
            // Waits for its subscriber, and so do all publishers.
            let slowest = hub.subscribe_with(["a"], waiting_terms(100));
            let (publisher, stop) = (hub.clone(), Arc::clone(&is_done));
            let publisher = tokio::spawn(async move {
                let mut n = 0;
                while !stop.load(SeqCst) {
                    publisher.publish("a", n).await.unwrap();
                    n += 1;
                }
                n
            });
            let drain = tokio::spawn(async move {
                let mut slowest = slowest;
                while slowest.recv().await.is_some() {}
            });
            for round in 0..300_u64 {
                let mut changing = hub.subscribe("a");
                let mut next = None;
                let mut check = |got: Option<Result<u64, Lagged>>| match got {
                    Some(Ok(n)) => {
                        assert_eq!(next.unwrap_or(n), n, "round {round}");
                        next = Some(n + 1);
                    }
                    Some(Err(Lagged(lost))) => next = next.map(|next| next + lost),
                    None => panic!("the hub runs"),
                };
                for _ in 0..round % 50 {
                    check(changing.recv().await);
                }
                assert!(changing.add("b"));
                for _ in 0..100 {
                    check(changing.recv().await);
                }
                changing.remove(&"b");
                for _ in 0..10 {
                    check(changing.recv().await);
                }
            }
            is_done.store(true, SeqCst);
            let sent = publisher.await.unwrap();
            let report = hub.shutdown(Duration::from_secs(30)).await;
            drain.await.unwrap();
            let totals = report.stats.totals;
            let fates = totals.unmatched + totals.delivered + totals.discarded + totals.lost;
            assert_eq!((totals.received, totals.received + totals.copies), (sent, fates));
            assert_eq!(totals.attached, totals.detached);
        });
    }
}

/// The last that leaves a key races with one that subscribes to it.
#[test]
fn subscriber_gets_what_it_publishes_while_others_leave() {
    for workers in [0, 1, 2, 4] {
        run(workers, async {
            let hub = Hub::<u64, u64>::new();
            let mut clients = JoinSet::new();
            let barrier = Arc::new(Barrier::new(8));
            for client in 0..8 {
                let (hub, barrier) = (hub.clone(), Arc::clone(&barrier));
                clients.spawn(async move {
                    for n in 0..2_000 {
                        // If the system lets a client wait, the others soon wait, too. Otherwise they
                        // would publish more than there is room for.
                        if n % 10 == 0 {
                            barrier.wait().await;
                        }
                        let mine = n * 8 + client;
                        let mut subscription = hub.subscribe(n % 2);
                        hub.publish(n % 2, mine).await.unwrap();
                        loop {
                            let got = subscription.recv().await.expect("the hub runs");
                            if got.expect("there is room for all") == mine {
                                break;
                            }
                        }
                        if n % 7 == 0 {
                            yield_now().await;
                        }
                    }
                });
            }
            clients.join_all().await;
            assert_eq!((hub.subscribers(&0).await, hub.subscribers(&1).await), (0, 0));
            let stats = hub.shutdown(Duration::from_secs(60)).await.stats;
            let totals = stats.totals;
            assert_eq!((totals.received, totals.attached - totals.detached), (16_000, 0));
            let fates = totals.unmatched + totals.delivered + totals.discarded + totals.lost;
            assert_eq!(totals.received + totals.copies, fates);
        });
    }
}

/// A clone panics, in a reader: it is woken, and nothing else notices.
#[test]
fn panic_of_a_clone_concerns_its_reader_only() {
    #[derive(Debug)]
    struct Bomb(u64);
    impl Clone for Bomb {
        fn clone(&self) -> Self {
            assert!(self.0 != 2 || std::thread::current().name() != Some("victim"), "a bomb");
            Self(self.0)
        }
    }
    within_a_minute(|| {
        let runtime = crate::runtimes::runtime(2);
        let (hub, mut victim, mut other) = runtime.block_on(async {
            let hub = Hub::new();
            let (victim, other) = (hub.subscribe("a"), hub.subscribe("a"));
            for n in 0..5 {
                hub.publish("a", Bomb(n)).await.unwrap();
            }
            while victim.len() < 5 {
                yield_now().await;
            }
            (hub, victim, other)
        });
        let thread = std::thread::Builder::new().name("victim".to_owned());
        let thread = thread.spawn(move || {
            assert!((0..2).all(|n| matches!(victim.try_recv(), Some(Ok(Bomb(m))) if n == m)));
            assert_eq!(victim.len(), 3);
            victim.try_recv()
        });
        assert!(thread.unwrap().join().is_err());
        for n in 0..5 {
            assert!(matches!(other.try_recv(), Some(Ok(Bomb(m))) if n == m));
        }
        runtime.block_on(async {
            hub.publish("a", Bomb(5)).await.unwrap();
            assert!(matches!(other.recv().await, Some(Ok(Bomb(5)))));
            assert_eq!(hub.subscribers(&"a").await, 1);
        });
    });
}

/// A clone that does not return holds up readers of the same items. The hub, other keys and readers
/// of other items go on.
#[test]
fn clone_that_hangs_holds_up_neither_the_hub_nor_readers_of_other_items() {
    struct Slow(u64, Arc<AtomicBool>);
    impl Clone for Slow {
        fn clone(&self) -> Self {
            if std::thread::current().name() == Some("slow") {
                while !self.1.load(SeqCst) {
                    std::thread::yield_now();
                }
            }
            Self(self.0, Arc::clone(&self.1))
        }
    }
    within_a_minute(|| {
        let runtime = crate::runtimes::runtime(2);
        let is_released = Arc::new(AtomicBool::new(false));
        let item = |n| Slow(n, Arc::clone(&is_released));
        let hub = runtime.block_on(async { Hub::new() });
        let (mut slow, mut same) = (hub.subscribe("a"), hub.subscribe("a"));
        runtime.block_on(async {
            hub.publish("a", item(0)).await.ok().unwrap();
            while slow.is_empty() {
                yield_now().await;
            }
        });
        let has_begun = Arc::new(AtomicBool::new(false));
        let begin = Arc::clone(&has_begun);
        let thread = std::thread::Builder::new().name("slow".to_owned());
        let thread = thread.spawn(move || {
            begin.store(true, SeqCst);
            slow.try_recv().is_some()
        });
        while !has_begun.load(SeqCst) {
            std::thread::yield_now();
        }
        runtime.block_on(async {
            let mut later = hub.subscribe("a");
            let mut other = hub.subscribe("b");
            for n in 1..3_000 {
                hub.publish("a", item(n)).await.ok().unwrap();
                if n % 1_000 == 0 {
                    hub.publish("b", item(n)).await.ok().unwrap();
                    assert!(other.recv().await.unwrap().is_ok_and(|got| got.0 == n));
                }
            }
            let mut next = 1;
            while next < 3_000 {
                match later.recv().await.unwrap() {
                    Ok(got) => {
                        assert_eq!(got.0, next);
                        next += 1;
                    }
                    Err(Lagged(lost)) => next += lost,
                }
            }
            assert_eq!(hub.subscribers(&"a").await, 3);
        });
        is_released.store(true, SeqCst);
        assert!(thread.unwrap().join().unwrap());
        let lost = 3_000 - 1_024;
        assert!(matches!(same.try_recv(), Some(Err(Lagged(n))) if n == lost));
        assert!(matches!(same.try_recv(), Some(Ok(got)) if got.0 == lost));
    });
}

/// A subscription of several keys, of which one is named twice, is none of two.
#[tokio::test(start_paused = true)]
async fn one_key_that_is_named_twice_is_one_key() {
    let hub = Hub::new();
    let mut twice = hub.subscribe_with(["a", "a"], Terms::new());
    let mut both = hub.subscribe_with(["a", "b", "a"], Terms::new().overflow(Overflow::DropOldest));
    assert_eq!((twice.keys().count(), both.keys().count()), (1, 2));
    publish(&hub, [1]).await;
    settle().await;
    assert_eq!((read(&mut twice), read(&mut both)), (vec![Ok(1)], vec![Ok(1)]));
    assert_eq!(hub.stats().await.receiving, 3);
}
