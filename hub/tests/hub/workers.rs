//! `for_each_by_key`, on one thread and a clock that stands still.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{FutureExt, SinkExt, Stream, StreamExt, channel::mpsc, stream};
use stream_demux_hub::{ForEachByKey, Mailbox, Workers, for_each_by_key};
use tokio::sync::{Notify, Semaphore};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use crate::common::compute_in_each_turn;

const SECOND: Duration = Duration::from_secs(1);

type Log = Arc<Mutex<Vec<String>>>;

fn log() -> (Log, impl Fn(String) + Clone + Send + Sync) {
    let log = Log::default();
    let to = Arc::clone(&log);
    (log, move |text| to.lock().unwrap().push(text))
}

fn taken(log: &Log) -> Vec<String> {
    std::mem::take(&mut *log.lock().unwrap())
}

/// Lets all other tasks run until they wait.
async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

/// Runs a worker that says what it gets and when it ends.
fn run_logging(
    input: impl Stream<Item = u32> + Send + 'static,
    settings: Workers<u32>,
) -> (ForEachByKey<u32, u32>, Log) {
    let (log, say) = log();
    let run = for_each_by_key(
        input,
        |n| n / 10,
        settings,
        move |key, mut items| {
            let say = say.clone();
            async move {
                while let Some(item) = items.recv().await {
                    say(format!("{item}"));
                }
                say(format!("end of {key}"));
            }
        },
    );
    (run, log)
}

#[tokio::test(start_paused = true)]
async fn items_of_a_key_come_in_order_to_one_worker() {
    let (run, log) = run_logging(stream::iter([10, 20, 11, 21, 12]), Workers::new());
    let summary = run.await;
    assert_eq!((summary.received, summary.taken, summary.workers), (5, 5, 2));
    assert_eq!((summary.lost(), summary.panics, summary.hung), (0, 0, vec![]));
    let mut said = taken(&log);
    said.retain(|text| !text.starts_with('2'));
    assert_eq!(said, ["10", "11", "12", "end of 1", "end of 2"]);
}

/// The demux waits for further items before it wakes many workers, but not for many turns.
#[tokio::test(start_paused = true)]
async fn workers_are_woken_in_time_while_other_tasks_compute() {
    const TURN: Duration = Duration::from_millis(10);

    let (mut orders, input) = mpsc::channel(1_000);
    let handled = Arc::new(Semaphore::new(0));
    let done = Arc::clone(&handled);
    let run = for_each_by_key(
        input,
        |n| n % 100,
        Workers::new(),
        move |_, mut items| {
            let done = Arc::clone(&done);
            async move {
                while items.recv().await.is_some() {
                    done.add_permits(1);
                }
            }
        },
    );
    // So few at a time that no wait fails: the next one would be shorter.
    for n in 0..100 {
        orders.try_send(n).unwrap();
        handled.acquire().await.unwrap().forget();
    }
    let computing = compute_in_each_turn(TURN);
    // As a task, it takes turns with the others.
    let sending = tokio::spawn(async move {
        let begin = Instant::now();
        (0..100).for_each(|n| orders.try_send(n).unwrap());
        handled.acquire_many(100).await.unwrap().forget();
        begin.elapsed()
    });
    let time = sending.await.unwrap();
    assert!(time <= 6 * TURN, "after {time:?}");
    computing.abort();
    assert_eq!(run.await.taken, 200);
}

#[tokio::test(start_paused = true)]
async fn keys_are_handled_side_by_side() {
    let start = Instant::now();
    let run = for_each_by_key(
        stream::iter(0..100_u32),
        |n| n % 10,
        Workers::new(),
        |_, mut items| async move {
            while items.recv().await.is_some() {
                sleep(SECOND).await;
            }
        },
    );
    assert_eq!(run.await.lost(), 0);
    assert_eq!(start.elapsed(), 10 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn input_waits_while_a_mailbox_is_full() {
    let (mut input, items) = mpsc::channel(0);
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let run = for_each_by_key(
        items,
        |_| (),
        Workers::new().mailbox(2).backlog(0),
        move |(), mut items: Mailbox<_, u32>| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.unwrap().forget();
                while items.recv().await.is_some() {}
            }
        },
    );
    let mut sent = 0;
    while timeout(SECOND, input.send(sent)).await.is_ok() {
        sent += 1;
    }
    // Two that the task of the key has taken, two in the mailbox, one beyond it, and those in the
    // channel.
    assert!((3..=7).contains(&run.summary().received), "{:?}", run.summary());
    opened.add_permits(1);
    drop(input);
    assert_eq!(run.await.lost(), 0);
}

#[tokio::test(start_paused = true)]
async fn idle_workers_end_and_are_made_again() {
    let (mut input, items) = mpsc::channel(0);
    let (run, log) = run_logging(items, Workers::new().idle_timeout(10 * SECOND));
    input.send(10).await.unwrap();
    sleep(8 * SECOND).await;
    input.send(20).await.unwrap();
    assert_eq!((run.workers(), taken(&log)), (2, vec!["10".to_owned(), "20".to_owned()]));
    sleep(9 * SECOND).await;
    assert_eq!((run.workers(), taken(&log)), (1, vec!["end of 1".to_owned()]));
    sleep(10 * SECOND).await;
    assert_eq!((run.workers(), taken(&log)), (0, vec!["end of 2".to_owned()]));
    input.send(11).await.unwrap();
    drop(input);
    assert_eq!((run.await.workers, taken(&log)), (3, vec!["11".to_owned(), "end of 1".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn workers_never_end_if_they_are_not_to() {
    let (mut input, items) = mpsc::channel(0);
    let (mut run, _) = run_logging(items, Workers::new().idle_timeout(None));
    input.send(10).await.unwrap();
    sleep(100_000 * SECOND).await;
    assert_eq!(run.workers(), 1);
    assert_eq!(run.shutdown(SECOND).await.hung, []);
}

/// The worker is busy when it is idle for the input, so its mailbox ends. The next one waits.
#[tokio::test(start_paused = true)]
async fn successor_waits_for_its_predecessor() {
    let (mut input, items) = mpsc::channel(0);
    let (log, say) = log();
    let run = for_each_by_key(
        items,
        |_| 0,
        Workers::new().idle_timeout(SECOND),
        move |_, mut items| {
            let say = say.clone();
            async move {
                say("begin".into());
                while let Some(item) = items.recv().await {
                    sleep(10 * SECOND).await;
                    say(format!("{item}"));
                }
                say("end".into());
            }
        },
    );
    input.send(1).await.unwrap();
    sleep(3 * SECOND).await;
    input.send(2).await.unwrap();
    sleep(3 * SECOND).await;
    assert_eq!((run.workers(), taken(&log)), (2, vec!["begin".to_owned()]));
    drop(input);
    assert_eq!(run.await.lost(), 0);
    assert_eq!(taken(&log), ["1", "end", "begin", "2", "end"]);
}

#[tokio::test(start_paused = true)]
async fn panic_of_a_worker_is_reported_and_costs_one_item() {
    let (log, say) = log();
    let told = say.clone();
    let settings = Workers::new().on_panic(move |key, text| told(format!("{key}: {text}")));
    let run = for_each_by_key(
        stream::iter([10, 11, 20, 12, 21, 13, 22]),
        |n| n / 10,
        settings,
        move |_, mut items| {
            let say = say.clone();
            async move {
                while let Some(item) = items.recv().await {
                    assert!(item != 11, "eleven");
                    assert!(item != 12, "item {item}");
                    say(format!("{item}"));
                }
            }
        },
    );
    let summary = run.await;
    assert_eq!((summary.received, summary.taken, summary.panics), (7, 7, 2));
    let mut said = taken(&log);
    said.sort();
    assert_eq!(said, ["10", "13", "1: eleven", "1: item 12", "20", "21", "22"]);
}

#[tokio::test(start_paused = true)]
async fn worker_that_ends_without_an_item_loses_one() {
    let (log, say) = log();
    let run = for_each_by_key(
        stream::iter(0..4),
        |_| (),
        Workers::new(),
        move |(), mailbox| {
            let n = mailbox.len();
            say(format!("{n} left"));
            assert_ne!(n, 3, "in the closure");
            async {}
        },
    );
    let summary = run.await;
    assert_eq!((summary.lost(), summary.panics, summary.workers), (4, 1, 1));
    assert_eq!(taken(&log), ["4 left", "3 left", "2 left", "1 left"]);
}

#[tokio::test(start_paused = true)]
async fn worker_that_returns_early_leaves_the_rest_to_the_next() {
    let (log, say) = log();
    let run = for_each_by_key(
        stream::iter(0..10_u32),
        |_| (),
        Workers::new().mailbox(3),
        move |(), mailbox| {
            let say = say.clone();
            async move {
                let some = mailbox.take(4).collect::<Vec<_>>().await;
                say(format!("{some:?}"));
            }
        },
    );
    assert_eq!(run.await.lost(), 0);
    assert_eq!(taken(&log), ["[0, 1, 2, 3]", "[4, 5, 6, 7]", "[8, 9]"]);
}

#[tokio::test(start_paused = true)]
async fn next_worker_begins_when_the_mailbox_is_dropped_elsewhere() {
    let (log, say) = log();
    let run = for_each_by_key(
        stream::iter(0..4_u32),
        |_| (),
        Workers::new(),
        move |(), mut mailbox| {
            let say = say.clone();
            async move {
                tokio::spawn(async move {
                    let mut two = Vec::new();
                    while two.len() < 2 && mailbox.recv_many(&mut two, 1).await > 0 {
                        sleep(SECOND).await;
                    }
                    say(format!("{two:?}"));
                });
            }
        },
    );
    assert_eq!(run.await.lost(), 0);
    assert_eq!(taken(&log), ["[0, 1]", "[2, 3]"]);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_handle_aborts_everything() {
    let dropped = Arc::new(());
    let (in_worker, in_input) = (Arc::clone(&dropped), Arc::clone(&dropped));
    let input = stream::iter(0..3).chain(stream::pending()).map(move |n| {
        let _ = &in_input;
        n
    });
    let run = for_each_by_key(
        input,
        |&n| n,
        Workers::new(),
        move |_, mut items| {
            let here = Arc::clone(&in_worker);
            async move {
                items.recv().await;
                pending::<()>().await;
                drop(here);
            }
        },
    );
    settle().await;
    assert_eq!((run.workers(), Arc::strong_count(&dropped)), (3, 6));
    drop(run);
    settle().await;
    assert_eq!(Arc::strong_count(&dropped), 1);
}

#[tokio::test(start_paused = true)]
async fn handle_that_is_polled_in_between_goes_on() {
    let (mut run, log) = run_logging(stream::iter([10]).chain(stream::pending()), Workers::new());
    assert!(timeout(SECOND, &mut run).await.is_err());
    assert_eq!(taken(&log), ["10"]);
    assert!(timeout(SECOND, run.shutdown(2 * SECOND)).await.is_ok());
    assert_eq!(taken(&log), ["end of 1"]);
}

#[tokio::test(start_paused = true)]
async fn shutdown_handles_what_was_read() {
    let input = stream::iter(10..30).chain(stream::pending());
    let mut run = for_each_by_key(
        input,
        |n| n / 10,
        Workers::new().mailbox(2),
        |_, mut items| async move {
            while items.recv().await.is_some() {
                sleep(SECOND / 10).await;
            }
        },
    );
    settle().await;
    let read = run.summary().received;
    let summary = run.shutdown(60 * SECOND).await;
    // An item that was being read when the end was asked for is handled, too.
    assert!(summary.received <= read + 1, "{summary:?}");
    assert_eq!((summary.lost(), summary.hung), (0, vec![]));
}

#[tokio::test(start_paused = true)]
async fn shutdown_names_who_hangs() {
    let mut run = for_each_by_key(
        stream::iter([10, 20, 21, 22, 30]).chain(stream::pending()),
        |n| n / 10,
        Workers::new(),
        |key, mut items| async move {
            while items.recv().await.is_some() {
                if key == 2 {
                    pending::<()>().await;
                }
            }
        },
    );
    settle().await;
    let start = Instant::now();
    let summary = run.shutdown(SECOND).await;
    assert_eq!(start.elapsed(), SECOND);
    assert_eq!((summary.received, summary.lost(), &*summary.hung), (5, 2, &[2][..]));
    settle().await;
    assert_eq!(run.workers(), 0);
    // Again: there is nothing left to wait for.
    assert_eq!(run.shutdown(SECOND).await, summary);
    assert_eq!((run.await, start.elapsed()), (summary, SECOND));
}

#[tokio::test(start_paused = true)]
async fn shutdown_that_is_dropped_aborts_nothing() {
    let wake = Arc::new(Notify::new());
    let woken = Arc::clone(&wake);
    let mut run = for_each_by_key(
        stream::iter([1, 2]).chain(stream::pending()),
        |_| (),
        Workers::new(),
        move |(), mut items| {
            let woken = Arc::clone(&woken);
            async move {
                while items.recv().await.is_some() {
                    woken.notified().await;
                }
            }
        },
    );
    settle().await;
    assert!(timeout(SECOND, run.shutdown(2 * SECOND)).await.is_err());
    sleep(5 * SECOND).await;
    wake.notify_one();
    settle().await;
    wake.notify_one();
    assert_eq!(run.await.lost(), 0);
}

#[tokio::test(start_paused = true)]
async fn item_without_a_worker_is_handled_at_shutdown() {
    let settings = Workers::new().max_workers(1).backlog(0);
    let mut run = for_each_by_key(
        stream::iter([1, 2, 3]).chain(stream::pending()),
        |&n| n,
        settings,
        |_, mut items| async move {
            while items.recv().await.is_some() {
                sleep(SECOND).await;
            }
        },
    );
    settle().await;
    let summary = run.shutdown(10 * SECOND).await;
    assert_eq!((summary.received, summary.lost()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn panic_of_the_input_reaches_the_caller() {
    let (run, log) = run_logging(
        stream::iter(10..13).map(|n| if n == 12 { panic!("at {n}") } else { n }),
        Workers::new(),
    );
    let caught = std::panic::AssertUnwindSafe(run).catch_unwind().await.unwrap_err();
    assert_eq!(caught.downcast_ref::<String>().map(String::as_str), Some("at 12"));
    settle().await;
    assert!(log.lock().unwrap().len() <= 3);
}

#[tokio::test(start_paused = true)]
async fn debug_and_small_methods() {
    let (run, _) = run_logging(stream::iter([10]), Workers::default());
    assert!(format!("{run:?} {:?}", Workers::<u32>::new()).contains("alive"));
    drop(run);
    let run = for_each_by_key(
        stream::iter([1, 2]),
        |_| (),
        Workers::new(),
        |(), mut items| async move {
            let mut buffer = Vec::new();
            assert_eq!(items.recv_many(&mut buffer, 0).await, 0);
            assert!(!items.is_empty() && format!("{items:?}").contains("len"));
            assert_eq!(items.try_recv(), Some(1));
            assert_eq!((items.next().await, items.next().await), (Some(2), None));
        },
    );
    let summary = run.await;
    assert_eq!((summary.lost(), summary.panics), (0, 0));
}
