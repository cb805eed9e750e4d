//! How workers end: at a deadline, with an error, with a panic in a place where none is expected.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use futures::{FutureExt, SinkExt, StreamExt, channel::mpsc, stream};
use stream_demux_hub::{Workers, for_each_by_key};
use tokio::time::{sleep, timeout};

use crate::common::{Alive, Log, SECOND, settle};
use crate::runtimes::run;

#[tokio::test(start_paused = true)]
async fn workers_are_gone_when_shutdown_returns() {
    let alive = Alive::default();
    let of_workers = alive.clone();
    let of_input = alive.enter();
    let input = stream::iter(0..4).chain(stream::pending()).map(move |n| {
        let _ = &of_input;
        n
    });
    let mut run = for_each_by_key(
        input,
        |&n| n,
        Workers::new(),
        move |_, mut items| {
            let alive = of_workers.clone();
            async move {
                let _alive = alive.enter();
                items.recv().await;
                std::future::pending::<()>().await;
            }
        },
    );
    settle().await;
    assert_eq!(alive.now(), 5);
    let summary = run.shutdown(SECOND).await;
    assert_eq!((alive.now(), run.workers(), summary.hung.len()), (0, 0, 4));
}

/// The worker is in the middle of a step that cannot be interrupted.
#[test]
fn shutdown_waits_for_a_step_without_an_await() {
    run(2, async {
        let steps = Alive::default();
        let go_on = Arc::new(AtomicBool::new(false));
        let (of_worker, may_end) = (steps.clone(), Arc::clone(&go_on));
        let input = stream::iter([1, 2, 3]).chain(stream::pending());
        let mut run = for_each_by_key(
            input,
            |_| (),
            Workers::new(),
            move |(), mut items| {
                let (steps, may_end) = (of_worker.clone(), Arc::clone(&may_end));
                async move {
                    items.recv().await;
                    let _step = steps.enter();
                    while !may_end.load(SeqCst) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            },
        );
        // A waker that the step fires would be stuck behind it, in its thread.
        while steps.now() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        let read = run.summary().received;
        let end_step = async {
            sleep(Duration::from_millis(50)).await;
            go_on.store(true, SeqCst); // the deadline has passed, and the worker was aborted
        };
        let (summary, ()) = futures::join!(run.shutdown(Duration::ZERO), end_step);
        // No other worker of the key was made after it.
        assert_eq!((steps.now(), summary.taken, summary.received), (0, 1, read));
    });
}

#[tokio::test(start_paused = true)]
async fn shutdown_that_is_dropped_after_the_deadline_can_be_called_again() {
    let mut run = for_each_by_key(
        stream::iter([1]).chain(stream::pending()),
        |&n| n,
        Workers::new(),
        |_, mut items| async move {
            items.recv().await;
            std::future::pending::<()>().await;
        },
    );
    settle().await;
    {
        let mut shutdown = std::pin::pin!(run.shutdown(SECOND));
        assert!(shutdown.as_mut().now_or_never().is_none());
        tokio::time::advance(2 * SECOND).await;
        assert!(shutdown.as_mut().now_or_never().is_none(), "the worker is not gone yet");
    }
    let summary = timeout(SECOND, run.shutdown(100 * SECOND)).await.unwrap();
    assert_eq!((summary.hung, run.workers()), (vec![1], 0));
}

#[tokio::test(start_paused = true)]
async fn first_error_is_told_with_its_key_and_all_are_counted() {
    let log = Log::default();
    let to = log.clone();
    let settings = Workers::new().concurrency(1).on_error(move |key, error| {
        to.say(format!("{key}: {error}"));
    });
    let run = for_each_by_key(
        stream::iter([10, 20, 30, 21, 11, 22]),
        |n| n / 10,
        settings,
        |key, mut items| async move {
            while let Some(item) = items.recv().await {
                sleep(SECOND).await;
                if key == 2 {
                    return Err(io::Error::other(format!("no {item}")));
                }
            }
            Ok(())
        },
    );
    let summary = run.await;
    assert_eq!((summary.errors, summary.lost(), summary.workers), (3, 0, 3));
    let first = summary.first_error.clone().unwrap();
    assert_eq!((first.key, first.to_string()), (2, "worker of 2: no 20".to_owned()));
    assert!(first.error.downcast_ref::<io::Error>().is_some());
    assert!(format!("{first:?}").contains("no 20"));
    assert!(std::error::Error::source(&first).is_some());
    assert_eq!(summary, summary.clone());
    assert_eq!(log.take(), ["2: no 20", "2: no 21", "2: no 22"]);
}

#[tokio::test(start_paused = true)]
async fn errors_may_be_texts_and_boxes() {
    let texts = for_each_by_key(
        stream::iter([1]),
        |_| (),
        Workers::new(),
        |(), _| async { Err::<(), _>("a text") },
    );
    assert_eq!(texts.await.first_error.unwrap().error.to_string(), "a text");
    let boxes = for_each_by_key(
        stream::iter([1]),
        |_| (),
        Workers::new(),
        |(), _| async {
            "7x".parse::<u32>()?;
            Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
        },
    );
    assert_eq!(boxes.await.errors, 1);
}

#[tokio::test(start_paused = true)]
async fn key_function_is_called_once_for_an_item() {
    let calls = Arc::new(AtomicUsize::new(0));
    let of_key = Arc::clone(&calls);
    let key = move |n: &u32| {
        of_key.fetch_add(1, SeqCst);
        n % 7
    };
    let settings = Workers::new().max_workers(3).idle_timeout(Duration::from_millis(10));
    let run = for_each_by_key(stream::iter(0..100), key, settings, |_, mut items| async move {
        items.recv().await;
    });
    assert_eq!((run.await.lost(), calls.load(SeqCst)), (0, 100));
}

/// Panics when it is dropped, if it is to.
struct Bomb(bool);

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!self.0 || std::thread::panicking(), "in a drop");
    }
}

#[tokio::test(start_paused = true)]
async fn panic_in_the_drop_of_a_worker_costs_nothing_else() {
    let log = Log::default();
    let to = log.clone();
    let told = log.clone();
    let settings = Workers::new().on_panic(move |key, text| told.say(format!("{key}: {text}")));
    let run = for_each_by_key(
        stream::iter([1, 1, 2, 1]),
        |&n| n,
        settings,
        move |key, mut items| {
            let (log, bomb) = (to.clone(), Bomb(key == 1));
            // A future that has ended keeps what it has captured, unless it is an async block.
            let mut work = Box::pin(async move {
                items.recv().await;
                log.say(format!("{key}"));
            });
            std::future::poll_fn(move |cx| {
                let _ = &bomb;
                work.as_mut().poll(cx)
            })
        },
    );
    let summary = run.await;
    assert_eq!((summary.taken, summary.lost(), summary.panics), (4, 0, 3));
    let mut said = log.take();
    said.sort();
    assert_eq!(said, ["1", "1", "1", "1: in a drop", "1: in a drop", "1: in a drop", "2"]);
}

#[tokio::test(start_paused = true)]
async fn panic_in_the_drop_of_a_worker_that_is_aborted_is_counted() {
    let mut run = for_each_by_key(
        stream::iter([1, 2, 2]).chain(stream::pending()),
        |&n| n,
        Workers::new(),
        |key, mut items| async move {
            items.recv().await;
            let _bomb = Bomb(key == 1);
            std::future::pending::<()>().await;
        },
    );
    settle().await;
    let summary = run.shutdown(SECOND).await;
    assert_eq!((summary.hung.len(), summary.panics, summary.lost()), (2, 1, 1));
    assert_eq!(run.workers(), 0);
}

/// Two panics of which one happens while the other unwinds would end the process.
#[tokio::test(start_paused = true)]
async fn panics_in_the_drops_of_items_end_nothing() {
    struct Always;
    impl Drop for Always {
        fn drop(&mut self) {
            panic!("in a drop");
        }
    }
    let (mut input, items) = mpsc::unbounded();
    let of_items = Arc::new(AtomicUsize::new(0));
    let run = for_each_by_key(
        items,
        |&(key, _)| key,
        Workers::new().mailbox(2),
        move |key, mut items| {
            let of_items = Arc::clone(&of_items);
            async move {
                while let Some((_, item)) = items.recv().await {
                    std::mem::forget(item);
                    of_items.fetch_add(1, SeqCst);
                    if key == 1 {
                        std::future::pending::<()>().await;
                    }
                }
            }
        },
    );
    let handle = run.handle();
    for _ in 0..10 {
        input.send((1, Always)).await.unwrap();
    }
    input.send((2, Always)).await.unwrap();
    settle().await;
    assert_eq!(handle.revoke(&1).await, 9);
    for _ in 0..10 {
        input.send((1, Always)).await.unwrap();
    }
    input.send((2, Always)).await.unwrap();
    settle().await;
    assert_eq!((run.summary().taken, run.summary().panics), (4, 0));
    drop(run);
    settle().await;
    assert_eq!((handle.workers(), handle.summary().lost()), (0, 9));
}

#[tokio::test(start_paused = true)]
async fn panic_of_a_closure_for_panics_ends_nothing() {
    let settings = Workers::new()
        .on_panic(|_, _| panic!("in the closure for panics"))
        .on_error(|_, _| panic!("in the closure for errors"));
    let run = for_each_by_key(
        stream::iter(0..10),
        |n| n % 2,
        settings,
        |key, mut items| async move {
            items.recv().await;
            assert!(key == 0, "in the worker");
            Err::<(), _>("an error")
        },
    );
    let summary = run.await;
    assert_eq!((summary.panics, summary.errors, summary.lost()), (5, 5, 0));
}

#[tokio::test(start_paused = true)]
async fn workers_go_on_after_a_panic_of_the_key_function() {
    let log = Log::default();
    let to = log.clone();
    let mut run = for_each_by_key(
        stream::iter([1, 2, 3, 4]),
        |&n| if n == 4 { panic!("at {n}") } else { n },
        Workers::new().max_workers(1),
        move |key, mut items| {
            let log = to.clone();
            async move {
                while items.recv().await.is_some() {
                    sleep(SECOND).await;
                    log.say(format!("{key}"));
                }
            }
        },
    );
    let caught = std::panic::AssertUnwindSafe(&mut run).catch_unwind().await.unwrap_err();
    assert_eq!(caught.downcast_ref::<String>().map(String::as_str), Some("at 4"));
    let summary = run.await;
    assert_eq!((summary.received, summary.taken, log.take().concat()), (4, 3, "123".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn panic_in_the_drop_of_the_input_reaches_the_caller() {
    let bomb = Bomb(true);
    let input = stream::iter([1, 2, 3]).map(move |n| {
        let _ = &bomb;
        n
    });
    let mut run = for_each_by_key(
        input,
        |&n| n,
        Workers::new(),
        |_, mut items| async move { while items.recv().await.is_some() {} },
    );
    let caught = std::panic::AssertUnwindSafe(&mut run).catch_unwind().await.unwrap_err();
    assert_eq!(caught.downcast_ref::<&str>(), Some(&"in a drop"));
    assert_eq!(run.await.lost(), 0);
}
