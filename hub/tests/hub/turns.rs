//! `Workers::concurrency`, on one thread and a clock that stands still.

use std::time::Duration;

use futures::{SinkExt, StreamExt, channel::mpsc, stream};
use stream_demux_hub::{Workers, for_each_by_key};
use tokio::time::{Instant, sleep, timeout};

use crate::common::{Alive, Dice, Log, SECOND, settle};
use crate::runtimes::{RUNTIMES, run};

#[tokio::test(start_paused = true)]
async fn at_most_so_many_workers_handle_an_item_at_a_time() {
    let (busy, of_workers) = (Alive::default(), Alive::default());
    let (start, alive) = (Instant::now(), of_workers.clone());
    let of_items = busy.clone();
    let run = for_each_by_key(
        stream::iter(0..50_u32),
        |n| n % 10,
        Workers::new().concurrency(3),
        move |_, mut items| {
            let busy = of_items.clone();
            let alive = alive.enter();
            async move {
                let _alive = alive;
                while items.recv().await.is_some() {
                    let _busy = busy.enter();
                    sleep(SECOND).await;
                }
            }
        },
    );
    assert_eq!(run.await.lost(), 0);
    assert_eq!((busy.most(), start.elapsed()), (3, 17 * SECOND));
    // The others are there before their turn: only the closure waits for the first one.
    assert_eq!(of_workers.most(), 10);
}

#[tokio::test(start_paused = true)]
async fn workers_that_have_items_take_turns() {
    let log = Log::default();
    let to = log.clone();
    let input = stream::iter([1, 1, 1, 1, 2, 3, 2, 3, 2, 3]);
    let run = for_each_by_key(
        input,
        |&n| n,
        Workers::new().concurrency(1),
        move |key, items| {
            let to = to.clone();
            items.for_each(move |_: i32| {
                to.say(format!("{key}"));
                sleep(SECOND)
            })
        },
    );
    assert_eq!(run.await.lost(), 0);
    assert_eq!(log.take().concat(), "1231231231");
}

/// A worker in a `select!` is busy with something else when its turn comes.
#[tokio::test(start_paused = true)]
async fn worker_that_gave_up_waiting_is_passed_over() {
    let (log, start) = (Log::default(), Instant::now());
    let (mut input, items) = mpsc::unbounded();
    let to = log.clone();
    let run = for_each_by_key(
        items,
        |&(key, _)| key,
        Workers::new().concurrency(1),
        move |key, mut items| {
            let log = to.clone();
            async move {
                let mut is_first = true;
                while let Some((key, text)) = items.recv().await {
                    log.say(format!("{key}{text} at {}", start.elapsed().as_secs()));
                    sleep(10 * SECOND).await;
                    if key == 2 && std::mem::take(&mut is_first) {
                        // It wants its next item for a second, and is away for a minute then.
                        assert!(timeout(SECOND, items.recv()).await.is_err());
                        sleep(60 * SECOND).await;
                    }
                }
                log.say(format!("end of {key}"));
            }
        },
    );
    for item in [(2, "a"), (1, "a"), (2, "b"), (3, "a")] {
        input.send(item).await.unwrap();
    }
    sleep(75 * SECOND).await;
    drop(input);
    assert_eq!(run.await.lost(), 0);
    let said = log.take();
    // 2b is in line behind 1a and 3a, and is away when its turn comes at 30.
    assert_eq!(said[..4], ["2a at 0", "1a at 10", "3a at 20", "2b at 71"]);
}

/// It gives up each second, and comes back at once.
#[tokio::test(start_paused = true)]
async fn worker_that_comes_back_has_kept_its_place() {
    let (log, start) = (Log::default(), Instant::now());
    let to = log.clone();
    let (mut input, items) = mpsc::unbounded();
    let run = for_each_by_key(
        items,
        |&(key, _)| key,
        Workers::new().concurrency(1),
        move |key, mut items| {
            let log = to.clone();
            async move {
                // Key 2 gives up each second, and comes back at once. The others wait.
                let patience = if key == 2 { SECOND } else { 100 * SECOND };
                loop {
                    let Ok(next) = timeout(patience, items.recv()).await else { continue };
                    let Some((key, seconds)) = next else { break };
                    log.say(format!("{key} at {}", start.elapsed().as_secs()));
                    sleep(seconds * SECOND).await;
                }
            }
        },
    );
    // All are there before the long one begins.
    for item in [(1, 1), (2, 1), (3, 1), (1, 20)] {
        input.send(item).await.unwrap();
    }
    sleep(Duration::from_millis(3_500)).await;
    input.send((2, 1)).await.unwrap();
    sleep(5 * SECOND).await;
    input.send((3, 1)).await.unwrap();
    drop(input);
    assert_eq!(run.await.lost(), 0);
    assert_eq!(log.take(), ["1 at 0", "2 at 1", "3 at 2", "1 at 3", "2 at 23", "3 at 24"]);
}

#[tokio::test(start_paused = true)]
async fn items_that_are_read_together_are_one_turn() {
    let log = Log::default();
    let to = log.clone();
    let run = for_each_by_key(
        stream::iter([1, 1, 1, 2, 2, 2, 1, 2]),
        |&n| n,
        Workers::new().concurrency(1),
        move |key, mut items| {
            let log = to.clone();
            async move {
                let mut some = Vec::new();
                while items.recv_many(&mut some, 3).await > 0 {
                    sleep(SECOND).await;
                    while some.len() < 4 {
                        let Some(item) = items.try_recv() else { break };
                        some.push(item);
                    }
                    log.say(format!("{} of {key}", some.len()));
                    some.clear();
                }
            }
        },
    );
    assert_eq!(run.await.lost(), 0);
    assert_eq!(log.take(), ["4 of 1", "4 of 2"]);
}

#[tokio::test(start_paused = true)]
async fn turn_that_nobody_uses_is_taken_without_waiting() {
    let (mut input, items) = mpsc::unbounded();
    let log = Log::default();
    let to = log.clone();
    let run = for_each_by_key(
        items,
        |&n| n,
        Workers::new().concurrency(1),
        move |key, mut items| {
            let log = to.clone();
            async move {
                if key == 2 {
                    assert_eq!(items.recv().await, Some(2));
                    assert!(timeout(SECOND, items.recv()).await.is_err(), "it has no turn now");
                    sleep(SECOND).await;
                    log.say(format!("{:?}, one waits", items.try_recv()));
                    sleep(10 * SECOND).await;
                    log.say(format!("{:?}", items.try_recv()));
                }
                while items.recv().await.is_some() {
                    sleep(5 * SECOND).await;
                }
            }
        },
    );
    input.send(2).await.unwrap();
    settle().await;
    input.send(1).await.unwrap();
    sleep(SECOND + SECOND / 2).await;
    input.send(2).await.unwrap();
    sleep(20 * SECOND).await;
    drop(input);
    assert_eq!(run.await.lost(), 0);
    assert_eq!(log.take(), ["None, one waits", "Some(2)"]);
}

#[tokio::test(start_paused = true)]
async fn worker_that_panics_returns_or_moves_its_mailbox_gives_its_turn_back() {
    let run = for_each_by_key(
        stream::iter(0..40_u32),
        |n| n % 4,
        Workers::new().concurrency(1),
        |key, mut items| async move {
            let item = items.recv().await;
            assert!(key > 0, "at {item:?}");
            if key == 1 {
                tokio::spawn(async move {
                    sleep(SECOND).await;
                    drop(items);
                });
            } else if key == 2 {
                while items.recv().await.is_some() {}
            }
        },
    );
    let summary = run.await;
    assert_eq!((summary.lost(), summary.panics), (0, 10));
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_for_a_turn_at_the_deadline_do_not_hang() {
    let mut run = for_each_by_key(
        stream::iter([1, 2, 3, 3]).chain(stream::pending()),
        |&n| n,
        Workers::new().concurrency(1),
        |_, mut items| async move {
            while items.recv().await.is_some() {
                std::future::pending::<()>().await;
            }
        },
    );
    settle().await;
    let mut summary = run.shutdown(SECOND).await;
    summary.waiting.sort_unstable();
    assert_eq!((summary.hung, summary.waiting), (vec![1], vec![2, 3]));
    assert_eq!((summary.taken, summary.received), (1, 4));
}

/// Few turns, small mailboxes, batches, workers that give up waiting: nothing is lost, no turn is.
#[test]
fn turns_are_neither_lost_nor_doubled() {
    for threads in RUNTIMES {
        for concurrency in [1, 3] {
            run(threads, async move {
                let busy = Alive::default();
                let of_items = busy.clone();
                let mut dice = Dice::new(3);
                let input = stream::iter(0..6_000_u64).map(move |n| (dice.index(40), n));
                let settings = Workers::new().concurrency(concurrency).mailbox(4).backlog(50);
                let done = for_each_by_key(
                    input,
                    |item| item.0,
                    settings,
                    move |key, mut items| {
                        let busy = of_items.clone();
                        async move {
                            let mut dice = Dice::new(key as u64);
                            let mut some = Vec::new();
                            loop {
                                let count = match dice.index(3) {
                                    0 => {
                                        let some = items.recv_many(&mut some, 3);
                                        timeout(Duration::ZERO, some).await.unwrap_or(usize::MAX)
                                    }
                                    1 => items.recv_many(&mut some, 1).await,
                                    _ => items.recv().await.map_or(0, |_| 1),
                                };
                                if count == 0 {
                                    break;
                                }
                                if count < usize::MAX {
                                    let _busy = busy.enter();
                                    if dice.index(2) == 0 {
                                        tokio::task::yield_now().await;
                                    }
                                }
                                assert!(dice.index(200) > 0, "now and then");
                            }
                        }
                    },
                );
                let summary = done.await;
                assert_eq!((summary.received, summary.lost()), (6_000, 0));
                assert!(busy.most() <= concurrency, "{}", busy.most());
            });
        }
    }
}
