//! The last items of a key, for subscriptions that come later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use futures::FutureExt;
use stream_demux_hub::{Hub, Lagged, Overflow, Terms};
use tokio::task::JoinSet;

use crate::common::Dice;
use crate::hub::{publish, read, settle, waiting_terms};
use crate::runtimes::{RUNTIMES, run};

#[tokio::test(start_paused = true)]
async fn late_subscriber_begins_with_the_last_items() {
    let hub = Hub::builder().replay(3).spawn();
    publish(&hub, 0..10).await;
    settle().await;
    assert_eq!(hub.stats().await.totals.unmatched, 10);
    for (terms, expected) in [
        (Terms::new(), vec![]),
        (Terms::new().replay(2), vec![Ok(8), Ok(9)]),
        (Terms::new().replay(100), vec![Ok(7), Ok(8), Ok(9)]),
        (Terms::new().replay(100).buffer(2), vec![Ok(8), Ok(9)]),
        (waiting_terms(1).replay(2), vec![Ok(9)]),
        (Terms::new().replay(3).overflow(Overflow::Conflate), vec![Ok(9)]),
        (Terms::new().replay(3).overflow(Overflow::Evict), vec![Ok(7), Ok(8), Ok(9)]),
    ] {
        let mut late = hub.subscribe_with(["a"], terms);
        let mut none = hub.subscribe_with(["b"], terms);
        settle().await;
        assert_eq!((read(&mut late), read(&mut none)), (expected, vec![]), "{terms:?}");
        assert_eq!((late.end(), late.lost()), (None, 0));
    }
    let stats = hub.stats().await;
    assert_eq!((stats.totals.delivered, stats.replay_items, stats.replay_keys), (0, 3, 1));

    let plain = Hub::new();
    publish(&plain, [1]).await;
    settle().await;
    let mut late = plain.subscribe_with(["a"], Terms::new().replay(1));
    publish(&plain, [2]).await;
    assert_eq!(late.recv().await, Some(Ok(2)));
    assert_eq!(plain.stats().await.replay_items, 0);
}

#[tokio::test(start_paused = true)]
async fn item_that_waits_for_room_comes_once_if_its_key_is_removed_and_added_again() {
    for (again, expected) in [("a", &[0, 1, 1, 2, 3][..]), ("b", &[0, 1, 10, 11, 2, 3])] {
        let hub = Hub::builder().replay(8).spawn();
        for n in 10..12 {
            hub.publish("b", n).await.unwrap();
        }
        settle().await;
        let mut slow = hub.subscribe_with(["a"], waiting_terms(2).replay(2));
        publish(&hub, 0..3).await;
        settle().await;
        slow.remove("a");
        slow.add(again);
        hub.publish(again, 3).await.unwrap();
        settle().await;
        let mut items = Vec::new();
        while let Some(Ok(n)) = slow.recv().now_or_never().flatten() {
            items.push(n);
            settle().await;
        }
        assert_eq!(items, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn replays_to_a_client_that_never_reads_are_bounded() {
    for policy in [Overflow::Wait, Overflow::Evict, Overflow::DropOldest] {
        let hub = Hub::builder().replay(8).spawn();
        publish(&hub, 0..8).await;
        hub.publish("b", 8).await.unwrap();
        settle().await;
        let terms = Terms::new().buffer(4).overflow(policy).replay(4);
        let mut slow = hub.subscribe_with(["a", "b"], terms);
        settle().await;
        let begun = slow.len();
        for _ in 0..100 {
            slow.remove("a");
            slow.add("a");
            settle().await;
        }
        let is_lossy = policy == Overflow::DropOldest;
        assert_eq!((begun, slow.len()), if is_lossy { (4, 4) } else { (5, 8) }, "{policy:?}");
        assert_eq!(slow.end(), None);
    }
}

/// It waits for its first item before the task of the hub hears of it.
#[tokio::test(start_paused = true)]
async fn subscriber_that_waits_is_woken_for_a_replay() {
    let hub = Hub::builder().replay(1).spawn();
    publish(&hub, [1]).await;
    settle().await;
    let mut late = hub.subscribe_with(["a"], Terms::new().replay(1));
    assert!(late.recv().now_or_never().is_none());
    assert_eq!(late.recv().await, Some(Ok(1)));
}

#[tokio::test(start_paused = true)]
async fn memory_for_replays_is_bounded_in_items_and_keys() {
    let hub = Hub::builder().replay(2).replay_keys(3).spawn();
    for n in 0..100 {
        hub.publish(n % 10, n).await.unwrap();
    }
    settle().await;
    let stats = hub.stats().await;
    // The last three keys have got items last.
    assert_eq!((stats.replay_items, stats.replay_keys), (3, 3));
    hub.publish(8, 100).await.unwrap();
    hub.publish(5, 101).await.unwrap();
    settle().await;
    let terms = Terms::new().replay(5);
    let mut all = hub.subscribe_with([5, 7, 8, 9], terms);
    settle().await;
    assert_eq!(read(&mut all), [Ok(101), Ok(98), Ok(100), Ok(99)]);
    let stats = hub.stats().await;
    assert_eq!((stats.replay_items, stats.replay_keys), (4, 3));
}

#[tokio::test(start_paused = true)]
async fn key_that_is_added_is_replayed_behind_what_came_before() {
    let hub = Hub::builder().replay(2).spawn();
    let mut subscription = hub.subscribe_with(["a"], Terms::new().replay(2));
    for n in 0..4 {
        hub.publish(["a", "b"][n % 2], n).await.unwrap();
    }
    settle().await;
    assert!(subscription.add("b"));
    hub.publish("b", 4).await.unwrap();
    settle().await;
    assert_eq!(read(&mut subscription), [Ok(0), Ok(2), Ok(1), Ok(3), Ok(4)]);
}

/// What is published after a replay takes the place of what was replayed and waits.
#[tokio::test(start_paused = true)]
async fn replay_of_the_latest_item_is_the_latest_item() {
    let hub = Hub::builder().replay(3).spawn();
    for (key, item) in [("a", 1), ("a", 2), ("b", 3)] {
        hub.publish(key, item).await.unwrap();
    }
    settle().await;
    let terms = Terms::new().overflow(Overflow::Conflate).replay(3);
    let mut both = hub.subscribe_with(["b", "a"], terms);
    hub.publish("b", 4).await.unwrap();
    settle().await;
    assert_eq!(read(&mut both), [Err(1), Ok(4), Ok(2)]);
}

#[tokio::test(start_paused = true)]
async fn replayed_items_do_not_count_towards_the_limit() {
    let hub = Hub::builder().replay(2).spawn();
    publish(&hub, 0..2).await;
    settle().await;
    let mut two = hub.subscribe_with(["a"], Terms::new().replay(2).limit(2));
    settle().await;
    publish(&hub, 2..5).await;
    settle().await;
    assert_eq!(read(&mut two), (0..4).map(Ok).collect::<Vec<_>>());
    assert_eq!((two.recv().await, two.keys().count()), (None, 0));
}

/// An item that is read and not routed when the sink is attached is in the replay, and is not sent
/// once more.
#[tokio::test(start_paused = true)]
async fn what_follows_a_replay_follows_without_a_gap_or_a_repeat() {
    for seed in 0..2_000 {
        let test = async move {
            let mut dice = Dice::new(seed);
            let keeps = 1 + dice.index(4);
            let hub = Hub::builder().budget(1 + dice.index(4)).replay(keeps).spawn();
            let others = (0..dice.index(4)).map(|n| match n {
                0 => hub.subscribe("a"),
                _ => hub.subscribe_with(["a"], waiting_terms(100)),
            });
            let others = others.collect::<Vec<_>>();
            let first = dice.index(20);
            for n in 0..first {
                hub.try_publish("a", n).unwrap();
            }
            // The hub gets some turns. `yield_now` would let it go on until it waits.
            let is_settled = dice.index(3) == 0;
            if is_settled {
                settle().await;
            }
            for _ in 0..=dice.index(6) {
                tokio::spawn(async {}).await.unwrap();
            }
            let mut late = hub.subscribe_with(["a"], Terms::new().replay(keeps));
            for n in first..40 {
                hub.try_publish("a", n).unwrap();
                if dice.index(8) == 0 {
                    tokio::spawn(async {}).await.unwrap();
                }
            }
            drop((others, hub));
            let mut got = Vec::new();
            while let Some(next) = late.recv().await {
                got.push(next.expect("there is room"));
            }
            let begin = got[0];
            assert_eq!(got, (begin..40).collect::<Vec<_>>(), "seed {seed}");
            assert!(begin <= first && (first == 0 || begin < first), "seed {seed}");
            assert!(!is_settled || begin == first.saturating_sub(keeps), "seed {seed}");
        };
        // As a task, it takes turns with that of the hub.
        tokio::spawn(test).await.unwrap();
    }
}

/// Late subscribers on real threads, beside a publisher in a tight loop.
#[test]
fn late_subscribers_beside_a_publisher_in_a_tight_loop() {
    for workers in RUNTIMES {
        run(workers, async {
            let hub = Hub::<u64, u64>::builder().capacity(64).replay(8).spawn();
            let (is_done, routed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
            let (publisher, stop) = (hub.clone(), Arc::clone(&is_done));
            let publish = tokio::spawn(async move {
                let mut n = 0;
                while !stop.load(SeqCst) {
                    publisher.publish(7, n).await.unwrap();
                    n += 1;
                }
                n
            });
            let (mut watch, count) =
                (hub.subscribe_with([7], waiting_terms(64)), Arc::clone(&routed));
            let watch = tokio::spawn(async move {
                while let Some(Ok(n)) = watch.recv().await {
                    count.store(n + 1, SeqCst);
                }
            });
            while routed.load(SeqCst) < 8 {
                tokio::task::yield_now().await;
            }
            let mut clients = JoinSet::new();
            for client in 0..4_usize {
                let (hub, routed) = (hub.clone(), Arc::clone(&routed));
                clients.spawn(async move {
                    for round in 0..250 {
                        let before = routed.load(SeqCst);
                        let terms = Terms::new().replay(1 + round % 8).buffer(8 << client);
                        let mut late = hub.subscribe_with([7], terms);
                        let mut next = None;
                        for _ in 0..50 {
                            match late.recv().await.expect("the hub runs") {
                                Ok(n) => {
                                    assert_eq!(next.unwrap_or(n), n, "round {round}");
                                    // No gap before the first, either.
                                    assert!(next.is_some() || n + 8 >= before, "{n}, {before}");
                                    next = Some(n + 1);
                                }
                                Err(Lagged(lost)) => next = next.map(|next| next + lost),
                            }
                        }
                    }
                });
            }
            clients.join_all().await;
            is_done.store(true, SeqCst);
            let sent = publish.await.unwrap();
            let report = hub.shutdown(Duration::from_secs(30)).await;
            watch.await.unwrap();
            assert_eq!((report.stats.totals.received, routed.load(SeqCst)), (sent, sent));
            assert_eq!(report.stats.replay_items, 8.min(usize::try_from(sent).unwrap()));
        });
    }
}

/// Two workers and few items: a subscriber that was told what was published last gets that, or what
/// follows it.
#[test]
fn late_subscriber_misses_nothing_between_the_replay_and_what_follows() {
    run(2, async {
        let hub = Hub::<u64, u64>::builder().replay(1).spawn();
        for n in 0..3_000 {
            hub.publish(n, 1).await.unwrap();
            let other = hub.clone();
            let publish = tokio::spawn(async move { other.publish(n, 2).await.unwrap() });
            let mut late = hub.subscribe_with([n], Terms::new().replay(1));
            let mut got = vec![late.recv().await.unwrap().unwrap()];
            publish.await.unwrap();
            if got[0] == 1 {
                got.push(late.recv().await.unwrap().unwrap());
            }
            assert!(got == [1, 2] || got == [2], "{got:?}");
            hub.publish(n, 3).await.unwrap();
            assert_eq!(late.recv().await, Some(Ok(3)));
        }
    });
}

#[test]
#[should_panic(expected = "`replay_keys` must be at least 1 key")]
fn replay_of_no_keys_is_refused_where_it_is_set() {
    drop(Hub::<u32, u32>::builder().replay_keys(0));
}
