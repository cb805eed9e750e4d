//! `for_each_by_key` on tokio's runtimes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt, executor::block_on, stream};
use stream_demux_hub::{Workers, for_each_by_key};
use tokio::task::yield_now;

use crate::common::Dice;
use crate::runtimes::{RUNTIMES, run, runtime, within_a_minute};

/// Workers that end early, panics, few workers at a time, small mailboxes: each item is taken once,
/// in order, and no key has two workers at a time.
#[test]
fn every_item_is_taken_once_and_in_order() {
    for workers in RUNTIMES {
        for (mailbox, max) in [(1, 3), (4, 1_000), (64, 20)] {
            run(workers, async move {
                let last = Arc::new(Mutex::new(HashMap::<u64, (bool, u64)>::new()));
                let of_workers = Arc::clone(&last);
                let mut dice = Dice::new(7);
                let input = stream::iter(1..8_000_u64).map(move |n| (dice.index(50) as u64, n));
                let settings = Workers::new()
                    .mailbox(mailbox)
                    .max_workers(max)
                    .idle_timeout(Duration::from_millis(2));
                let done = for_each_by_key(
                    input,
                    |item| item.0,
                    settings,
                    move |key, mut items| {
                        let last = Arc::clone(&of_workers);
                        async move {
                            let busy = |is: bool| {
                                let mut last = last.lock().unwrap();
                                let entry = last.entry(key).or_default();
                                assert_ne!(std::mem::replace(&mut entry.0, is), is, "two workers");
                            };
                            busy(true);
                            while let Some((of, n)) = items.recv().await {
                                assert_eq!(of, key);
                                let before = last
                                    .lock()
                                    .unwrap()
                                    .get_mut(&key)
                                    .map(|entry| std::mem::replace(&mut entry.1, n));
                                assert!(before < Some(n), "{n} comes after {before:?}");
                                if n % 97 == 0 {
                                    break;
                                }
                                if n % 13 == 0 {
                                    yield_now().await;
                                }
                            }
                            busy(false);
                        }
                    },
                );
                let summary = done.await;
                assert_eq!((summary.received, summary.taken, summary.panics), (7_999, 7_999, 0));
            });
        }
    }
}

#[test]
fn runtime_that_shuts_down_ends_the_workers() {
    within_a_minute(|| {
        for workers in RUNTIMES {
            let runtime = runtime(workers);
            let mut run = None;
            runtime.block_on(async {
                let input = stream::iter(0..10).chain(stream::pending());
                let started = for_each_by_key(
                    input,
                    |n| n % 3,
                    Workers::new(),
                    |_, mut items| async move { while items.recv().await.is_some() {} },
                );
                while started.summary().taken < 10 {
                    yield_now().await;
                }
                run = Some(started);
            });
            drop(runtime);
            let summary = block_on(run.unwrap());
            assert_eq!((summary.received, summary.lost(), summary.hung), (10, 0, vec![]));
        }
    });
}
