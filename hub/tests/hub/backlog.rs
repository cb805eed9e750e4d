//! `Workers::backlog`, on one thread and a clock that stands still.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{SinkExt, Stream, StreamExt, channel::mpsc, stream};
use stream_demux_hub::{ForEachByKey, Workers, for_each_by_key};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::common::{Log, SECOND, settle};

/// Runs workers that say what they get. That of key 0 needs a permit for each item.
fn run_with_hot_key(
    input: impl Stream<Item = (u32, u32)> + Send + 'static,
    settings: Workers<u32>,
) -> (ForEachByKey<u32, (u32, u32)>, Arc<Semaphore>, Log) {
    let (log, permits) = (Log::default(), Arc::new(Semaphore::new(0)));
    let (to, gate) = (log.clone(), Arc::clone(&permits));
    let run = for_each_by_key(
        input,
        |&(key, _)| key,
        settings,
        move |key, mut items| {
            let (log, gate) = (to.clone(), Arc::clone(&gate));
            async move {
                while let Some((_, n)) = items.recv().await {
                    if key == 0 {
                        gate.acquire().await.unwrap().forget();
                    }
                    log.say(format!("{key}:{n}"));
                }
            }
        },
    );
    (run, permits, log)
}

#[tokio::test(start_paused = true)]
async fn key_that_is_behind_does_not_hold_the_others() {
    let hot = stream::iter((0..1_000).map(|n| (0, n)));
    let others = stream::iter((1..=3).map(|key| (key, 0)));
    let (run, permits, log) = run_with_hot_key(hot.chain(others), Workers::new().mailbox(2));
    settle().await;
    assert_eq!(log.take(), ["1:0", "2:0", "3:0"]);
    let summary = run.summary();
    // Two are in the hands of the task of the key, two in its mailbox.
    assert_eq!((summary.received, summary.backlog, summary.input_waits), (1_003, 996, 0));
    assert_eq!(run.handle().queues(), [(0, 998)]);
    permits.add_permits(1_000);
    let summary = run.await;
    assert_eq!((summary.lost(), summary.backlog, summary.most_backlog), (0, 0, 996 + 2));
    assert_eq!(log.take(), (0..1_000).map(|n| format!("0:{n}")).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn input_waits_only_when_the_backlog_is_full() {
    let (mut input, items) = mpsc::unbounded();
    let (run, permits, log) = run_with_hot_key(items, Workers::new().mailbox(2).backlog(3));
    settle().await;
    for n in 0..20 {
        input.send((0, n)).await.unwrap();
        settle().await;
    }
    input.send((1, 0)).await.unwrap();
    settle().await;
    // One is being handled, two are in the hands of the task or in its mailbox each, three in the
    // backlog, and one that was read before its key was known.
    let summary = run.summary();
    assert!((7..=9).contains(&summary.received), "{summary:?}");
    assert_eq!((summary.backlog, summary.input_waits, log.take().len()), (4, 1, 0));
    permits.add_permits(18);
    settle().await;
    assert!(log.take().contains(&"1:0".to_owned()));
    permits.add_permits(2);
    drop(input);
    assert_eq!(run.await.lost(), 0);
}

/// Half of all items are for one key, whose worker needs twice the time that they leave it.
#[tokio::test(start_paused = true)]
async fn hot_key_leaves_the_delay_of_the_others_alone() {
    let mut medians = Vec::new();
    for is_hot in [false, true] {
        let delays = Arc::new(Mutex::new(Vec::new()));
        let of_workers = Arc::clone(&delays);
        let ticker = stream::unfold(0_u32, |n| async move {
            sleep(Duration::from_millis(1)).await;
            Some((n, n + 1))
        });
        let input = ticker.take(3_000).flat_map(move |n| {
            let now = Instant::now();
            stream::iter([(1 + n % 50, now), (0, now)]).take(if is_hot { 2 } else { 1 })
        });
        let run = for_each_by_key(
            input,
            |&(key, _)| key,
            Workers::new(),
            move |key, mut items| {
                let delays = Arc::clone(&of_workers);
                async move {
                    while let Some((_, since)) = items.recv().await {
                        sleep(Duration::from_millis(2)).await;
                        if key > 0 {
                            delays.lock().unwrap().push(since.elapsed());
                        }
                    }
                }
            },
        );
        let summary = run.await;
        assert_eq!((summary.lost(), summary.input_waits), (0, 0));
        let mut delays = delays.lock().unwrap();
        assert_eq!(delays.len(), 3_000);
        delays.sort_unstable();
        medians.push(delays[2_970]);
    }
    assert!(medians[1] <= 2 * medians[0], "{medians:?}");
}

#[tokio::test(start_paused = true)]
async fn items_of_keys_that_wait_for_a_worker_are_in_the_backlog() {
    let input = stream::iter([(0, 0), (1, 0), (1, 1), (2, 0), (0, 1)]);
    let settings = Workers::new().max_workers(1).backlog(10);
    let (run, permits, log) = run_with_hot_key(input, settings);
    settle().await;
    assert_eq!((run.summary().received, run.summary().backlog, run.workers()), (5, 3, 1));
    permits.add_permits(2);
    assert_eq!(run.await.lost(), 0);
    assert_eq!(log.take(), ["0:0", "0:1", "1:0", "1:1", "2:0"]);
}

#[tokio::test(start_paused = true)]
async fn shutdown_is_noticed_while_the_backlog_is_full() {
    let input = stream::iter((0..100).map(|n| (0, n)));
    let (mut run, permits, log) = run_with_hot_key(input, Workers::new().mailbox(1).backlog(1));
    settle().await;
    permits.add_permits(1_000);
    let received = run.summary().received;
    let summary = run.shutdown(SECOND).await;
    assert!(received < 10 && summary.received <= received + 1, "{summary:?}");
    assert_eq!((summary.lost(), log.take().len() as u64), (0, summary.received));
}

#[tokio::test(start_paused = true)]
async fn revoked_key_gives_the_backlog_back() {
    let hot = stream::iter((0..20).map(|n| (0, n)));
    let settings = Workers::new().mailbox(2).backlog(10);
    let (run, permits, log) = run_with_hot_key(hot.chain(stream::iter([(1, 0)])), settings);
    settle().await;
    let received = run.summary().received;
    assert_eq!((run.summary().backlog, log.take().len()), (11, 0));
    // One of them was taken.
    assert_eq!(run.handle().revoke(&0).await, received - 1);
    settle().await;
    assert_eq!((run.summary().received, log.take()), (21, vec!["1:0".to_owned()]));
    assert!(run.summary().backlog <= 20 - 11, "{:?}", run.summary());
    permits.add_permits(20);
    let summary = run.await;
    assert_eq!((summary.revoked, summary.backlog, summary.lost()), (received - 1, 0, 0));
}
