//! `Workers::max_workers`, on one thread and a clock that stands still.

use std::time::Duration;

use futures::{SinkExt, StreamExt, channel::mpsc, stream};
use stream_demux_hub::{Workers, for_each_by_key};
use tokio::time::{Instant, sleep};

use crate::common::{Alive, Log, SECOND, settle};

/// How long a worker is idle before another key gets its place, and a bit.
const A_MOMENT: Duration = Duration::from_millis(15);

#[tokio::test(start_paused = true)]
async fn no_worker_is_made_for_a_few_items_when_keys_come_in_turn() {
    const ITEMS: u64 = 100_000;
    let input = stream::iter((0..ITEMS).map(|n| n * 7_919 % 1_000));
    let alive = Alive::default();
    let of_workers = alive.clone();
    let settings = Workers::new().max_workers(200);
    let run = for_each_by_key(
        input,
        |&n| n,
        settings,
        move |_, mut items| {
            let alive = of_workers.clone();
            async move {
                let _alive = alive.enter();
                while items.recv().await.is_some() {}
            }
        },
    );
    let summary = run.await;
    assert_eq!((summary.received, summary.lost()), (ITEMS, 0));
    assert!(alive.most() <= 200, "{}", alive.most());
    assert!(summary.workers < ITEMS / 20, "{}", summary.workers);
}

#[tokio::test(start_paused = true)]
async fn worker_that_has_items_now_and_then_stays() {
    let (mut input, items) = mpsc::unbounded();
    let log = Log::default();
    let to = log.clone();
    let settings = Workers::new().max_workers(1);
    let run = for_each_by_key(
        items,
        |&n| n,
        settings,
        move |key, mut items| {
            let log = to.clone();
            async move {
                while items.recv().await.is_some() {
                    log.say(format!("{key}"));
                }
                log.say(format!("end of {key}"));
            }
        },
    );
    input.send(1).await.unwrap();
    input.send(2).await.unwrap();
    for _ in 0..100 {
        sleep(Duration::from_millis(5)).await;
        input.send(1).await.unwrap();
    }
    settle().await;
    assert_eq!(log.take(), vec!["1"; 101]);
    sleep(A_MOMENT).await;
    assert_eq!(log.take(), ["end of 1", "2"]);
    assert_eq!(run.workers(), 1);
    drop(input);
    assert_eq!((run.await.lost(), log.take()), (0, vec!["end of 2".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn worker_that_handles_an_item_for_long_stays() {
    let input = stream::iter([1, 2]).chain(stream::pending());
    let settings = Workers::new().max_workers(1);
    let mut run = for_each_by_key(
        input,
        |&n| n,
        settings,
        |_, mut items| async move {
            while items.recv().await.is_some() {
                sleep(100 * SECOND).await;
            }
        },
    );
    sleep(99 * SECOND).await;
    assert_eq!((run.summary().taken, run.workers()), (1, 1));
    assert_eq!(run.shutdown(1_000 * SECOND).await.lost(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_that_has_been_idle_longest_ends_and_nobody_waits() {
    let (mut input, items) = mpsc::unbounded();
    let log = Log::default();
    let to = log.clone();
    let settings = Workers::new().max_workers(3).idle_timeout(None);
    let run = for_each_by_key(
        items,
        |&n| n,
        settings,
        move |key, mut items| {
            let log = to.clone();
            async move {
                while items.recv().await.is_some() {}
                log.say(format!("end of {key}"));
            }
        },
    );
    for key in [1, 2, 3, 1] {
        input.send(key).await.unwrap();
        sleep(SECOND).await;
    }
    let start = Instant::now();
    for key in [4, 5] {
        input.send(key).await.unwrap();
        settle().await;
    }
    assert_eq!(log.take(), ["end of 2", "end of 3"]);
    assert_eq!((run.workers(), run.summary().taken, start.elapsed()), (3, 6, Duration::ZERO));
    drop(input);
    assert_eq!(run.await.lost(), 0);
}

/// No more end than are needed.
#[tokio::test(start_paused = true)]
async fn idle_workers_stay_if_their_places_are_not_needed() {
    let (mut input, items) = mpsc::unbounded();
    let settings = Workers::new().max_workers(100).idle_timeout(None);
    let run = for_each_by_key(
        items,
        |&n| n,
        settings,
        |_, mut items| async move { while items.recv().await.is_some() {} },
    );
    for key in 0..100 {
        input.send(key).await.unwrap();
    }
    sleep(SECOND).await;
    input.send(100).await.unwrap();
    sleep(SECOND).await;
    for key in 1..=100 {
        input.send(key).await.unwrap();
    }
    sleep(SECOND).await;
    let summary = run.summary();
    assert_eq!((summary.taken, run.workers()), (201, 100));
    assert!(summary.workers <= 102, "{summary:?}");
}

#[tokio::test(start_paused = true)]
async fn keys_that_wait_for_a_place_are_named_at_the_deadline() {
    let input = stream::iter([1, 2, 3, 2]).chain(stream::pending());
    let settings = Workers::new().max_workers(1);
    let mut run = for_each_by_key(
        input,
        |&n| n,
        settings,
        |_, mut items| async move {
            while items.recv().await.is_some() {
                std::future::pending::<()>().await;
            }
        },
    );
    settle().await;
    let mut summary = run.shutdown(SECOND).await;
    summary.waiting.sort_unstable();
    assert_eq!((summary.hung, summary.waiting, summary.taken), (vec![1], vec![2, 3], 1));
    assert_eq!((summary.backlog, run.workers()), (0, 0));
}

/// The predecessor of a key waits to return while its successor needs its place.
#[tokio::test(start_paused = true)]
async fn successor_gets_the_place_of_its_predecessor() {
    let (mut input, items) = mpsc::unbounded();
    let log = Log::default();
    let to = log.clone();
    let settings = Workers::new().max_workers(1).idle_timeout(SECOND);
    let run = for_each_by_key(
        items,
        |_| 0,
        settings,
        move |_, mut items| {
            let log = to.clone();
            async move {
                let present = Alive::default();
                let _present = present.enter();
                while let Some(item) = items.recv().await {
                    log.say(format!("{item}"));
                }
                sleep(10 * SECOND).await;
                log.say("end");
            }
        },
    );
    for item in 1..=3 {
        input.send(item).await.unwrap();
        sleep(5 * SECOND).await;
    }
    drop(input);
    assert_eq!(run.await.lost(), 0);
    assert_eq!(log.take(), ["1", "end", "2", "end", "3", "end"]);
}
