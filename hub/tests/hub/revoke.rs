//! `WorkersHandle::revoke`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use futures::{FutureExt, SinkExt, StreamExt, channel::mpsc, stream};
use stream_demux_hub::{ForEachByKey, Mailbox, Workers, WorkersHandle, for_each_by_key};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crate::common::{Alive, Dice, Log, SECOND, settle};
use crate::runtimes::{RUNTIMES, run};

type Item = (u32, &'static str);
type Run = ForEachByKey<u32, Item>;

/// Workers that say what they get, and wait for ever at "hang".
fn run_that_hangs(settings: Workers<u32>) -> (mpsc::UnboundedSender<Item>, Run, Log, Alive) {
    let (input, items) = mpsc::unbounded();
    let (log, alive) = (Log::default(), Alive::default());
    let (to, of_workers) = (log.clone(), alive.clone());
    let run = for_each_by_key(
        items,
        |&(key, _)| key,
        settings,
        move |_, mut items| {
            let (log, alive) = (to.clone(), of_workers.clone());
            async move {
                let _alive = alive.enter();
                while let Some((_, text)) = items.recv().await {
                    log.say(text);
                    if text == "hang" {
                        std::future::pending::<()>().await;
                    }
                }
            }
        },
    );
    (input, run, log, alive)
}

fn send(input: &mpsc::UnboundedSender<Item>, key: u32, texts: &[&'static str]) {
    for text in texts {
        input.unbounded_send((key, text)).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_dropped_and_the_worker_is_gone() {
    let (input, run, log, alive) = run_that_hangs(Workers::new().mailbox(2));
    send(&input, 1, &["hang", "a", "b", "c", "d"]);
    send(&input, 2, &["hang"]);
    settle().await;
    let handle = run.handle();
    assert_eq!((alive.now(), handle.workers(), log.take().len()), (2, 2, 2));
    assert_eq!(handle.revoke(&1).await, 4);
    assert_eq!((alive.now(), handle.workers()), (1, 1));
    let summary = handle.summary();
    assert_eq!((summary.taken, summary.revoked, summary.lost()), (2, 4, 0));
    assert_eq!(summary, run.summary());
    // What comes now is for a new worker.
    send(&input, 1, &["e"]);
    settle().await;
    assert_eq!((log.take(), handle.workers(), handle.summary().workers), (vec!["e".into()], 2, 3));
    assert_eq!((handle.revoke(&7).await, handle.revoke(&1).await, alive.now()), (0, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn revocation_that_is_never_polled_does_nothing() {
    let (input, run, _, alive) = run_that_hangs(Workers::new());
    send(&input, 1, &["hang"]);
    settle().await;
    drop(run.handle().revoke(&1));
    settle().await;
    assert_eq!(alive.now(), 1);
}

#[tokio::test(start_paused = true)]
async fn revocation_that_is_dropped_has_begun() {
    let (input, run, log, alive) = run_that_hangs(Workers::new());
    send(&input, 1, &["hang", "lost"]);
    settle().await;
    let handle = run.handle();
    assert!(handle.revoke(&1).now_or_never().is_none());
    send(&input, 1, &["next"]);
    settle().await;
    assert_eq!((log.take(), alive.most()), (vec!["hang".into(), "next".into()], 1));
    assert_eq!((handle.summary().revoked, handle.summary().lost()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn two_that_revoke_the_same_key_wait_for_the_same_worker() {
    let (input, run, _, alive) = run_that_hangs(Workers::new());
    send(&input, 1, &["hang", "lost"]);
    settle().await;
    let (handle, again) = (run.handle(), run.handle().clone());
    assert_eq!(futures::join!(handle.revoke(&1), again.revoke(&1)), (1, 1));
    assert_eq!((alive.now(), handle.summary().revoked), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn all_keys_of_a_partition_are_revoked_at_once() {
    let (input, run, log, alive) = run_that_hangs(Workers::new().max_workers(4));
    for key in 0..6 {
        send(&input, key, &["hang", "lost"]);
    }
    settle().await;
    log.take();
    let handle = run.handle();
    assert_eq!(alive.now(), 4);
    // Those of keys 4 and 5 wait for a place.
    assert_eq!(handle.revoke_if(|key| key % 2 == 0).await, 4);
    assert_eq!(handle.summary().revoked, 4);
    settle().await;
    // Key 5 has got a place. Keys 1, 3 and 5 hang.
    assert_eq!((alive.now(), handle.workers(), log.take()), (3, 3, vec!["hang".to_owned()]));
    assert_eq!(handle.revoke_if(|_| true).await, 3);
    assert_eq!((alive.now(), handle.workers(), handle.summary().lost()), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn key_without_a_worker_yet_is_revoked() {
    let (input, run, log, _) = run_that_hangs(Workers::new().max_workers(1));
    send(&input, 1, &["hang"]);
    for _ in 0..1_000 {
        send(&input, 2, &["lost", "lost"]);
        settle().await;
        assert_eq!(run.handle().revoke(&2).await, 2);
    }
    send(&input, 2, &["kept"]);
    settle().await;
    assert_eq!((run.workers(), run.summary().backlog), (1, 1));
    run.handle().revoke(&1).await;
    settle().await;
    assert_eq!(log.take(), ["hang", "kept"]);
}

/// Runs workers that do what the items say with the handle of the run.
fn run_with_handle(settings: Workers<u32>) -> (mpsc::UnboundedSender<Item>, Run, Log, Alive) {
    let (input, items) = mpsc::unbounded();
    let (log, alive) = (Log::default(), Alive::default());
    let (to, of_workers) = (log.clone(), alive.clone());
    let handle = Arc::new(Mutex::new(None::<WorkersHandle<u32, Item>>));
    let of_run = Arc::clone(&handle);
    let run = for_each_by_key(
        items,
        |&(key, _)| key,
        settings,
        move |key, mut items| {
            let (log, alive, handle) = (to.clone(), of_workers.clone(), Arc::clone(&of_run));
            async move {
                let _alive = alive.enter();
                while let Some((_, text)) = items.recv().await {
                    let handle = handle.lock().unwrap().clone().unwrap();
                    match text {
                        "revoke me" => {
                            handle.revoke(&key).await;
                        }
                        "revoke all" => {
                            handle.revoke_if(|_| true).await;
                        }
                        "revoke next" => {
                            handle.revoke(&(key + 1)).await;
                        }
                        _ => {}
                    }
                    log.say(format!("{key}: {text}"));
                }
            }
        },
    );
    *handle.lock().unwrap() = Some(run.handle());
    (input, run, log, alive)
}

#[tokio::test(start_paused = true)]
async fn worker_that_revokes_its_own_key_ends() {
    let (input, run, log, alive) = run_with_handle(Workers::new());
    send(&input, 1, &["revoke me", "lost"]);
    settle().await;
    assert_eq!((alive.now(), run.workers(), run.summary().revoked), (0, 0, 1));
    send(&input, 1, &["next"]);
    settle().await;
    assert_eq!(log.take(), ["1: next"]);
}

#[tokio::test(start_paused = true)]
async fn workers_that_revoke_each_other_end() {
    let (input, run, log, alive) = run_with_handle(Workers::new());
    send(&input, 1, &["revoke all"]);
    send(&input, 2, &["revoke all"]);
    settle().await;
    send(&input, 1, &["next"]);
    settle().await;
    assert_eq!((alive.now(), log.take()), (1, vec!["1: next".into()]));
    drop(input);
    assert_eq!(run.await.lost(), 0);
}

#[tokio::test(start_paused = true)]
async fn worker_revokes_another_key_and_goes_on() {
    let (input, run, log, _) = run_with_handle(Workers::new().concurrency(1));
    send(&input, 2, &["first"]);
    settle().await;
    send(&input, 1, &["revoke next", "after"]);
    drop(input);
    assert_eq!(run.await.lost(), 0);
    assert_eq!(log.take(), ["2: first", "1: revoke next", "1: after"]);
}

/// As the callback of a consumer group does.
#[tokio::test(start_paused = true)]
async fn input_revokes_a_key_before_its_next_item() {
    let alive = Alive::default();
    let of_workers = alive.clone();
    let handle = Arc::new(Mutex::new(None::<WorkersHandle<u32, u32>>));
    let of_input = Arc::clone(&handle);
    let input = stream::iter(0..10_u32).then(move |n| {
        let handle = of_input.lock().unwrap().clone();
        async move {
            if n == 5 {
                sleep(SECOND).await;
                assert_eq!(handle.unwrap().revoke(&0).await, 4);
            }
            n
        }
    });
    let mut run = for_each_by_key(
        input,
        |_| 0,
        Workers::new(),
        move |_, mut items| {
            let alive = of_workers.clone();
            async move {
                let _alive = alive.enter();
                let first = items.recv().await.unwrap();
                assert!(first == 0 || first == 5);
                if first == 0 {
                    std::future::pending::<()>().await;
                }
                while items.recv().await.is_some() {}
            }
        },
    );
    *handle.lock().unwrap() = Some(run.handle());
    let summary = timeout(60 * SECOND, &mut run).await.unwrap();
    assert_eq!((summary.taken, summary.revoked, summary.panics), (6, 4, 0));
    assert_eq!(alive.most(), 1);
}

#[tokio::test(start_paused = true)]
async fn mailbox_in_another_task_has_ended() {
    let log = Log::default();
    let to = log.clone();
    let (mut input, items) = mpsc::unbounded();
    let run = for_each_by_key(
        items,
        |_| (),
        Workers::new(),
        move |(), mut mailbox| {
            let log = to.clone();
            async move {
                tokio::spawn(async move {
                    assert_eq!(mailbox.recv().await, Some(1));
                    sleep(SECOND).await;
                    log.say(format!("{:?} {:?}", mailbox.try_recv(), mailbox.recv().await));
                });
            }
        },
    );
    for n in 1..=5 {
        input.send(n).await.unwrap();
    }
    settle().await;
    run.handle().revoke(&()).await;
    sleep(2 * SECOND).await;
    assert_eq!(log.take(), ["None None"]);
    let summary = run.summary();
    assert_eq!((summary.taken, summary.revoked, summary.lost()), (1, 4, 0));
}

/// The end may come in another thread while a revocation goes on: its items are counted by then.
#[tokio::test(start_paused = true)]
async fn items_are_counted_as_revoked_before_their_key_is_gone() {
    type Handle = Arc<Mutex<Option<WorkersHandle<u32, Item>>>>;

    /// Looks at the counts when it is dropped, if it has a handle.
    struct Item(u32, Option<Handle>, Log);

    impl Drop for Item {
        fn drop(&mut self) {
            let Some(handle) = self.1.take() else { return };
            let handle = handle.lock().unwrap();
            let handle = handle.as_ref().expect("it was set before");
            self.2.say(format!("{} keys, {} lost", handle.workers(), handle.summary().lost()));
        }
    }

    let log = Log::default();
    let handle = Handle::default();
    let (mut input, items) = mpsc::unbounded();
    // The only place is taken by another key.
    let run = for_each_by_key(
        items,
        |item: &Item| item.0,
        Workers::new().max_workers(1),
        |_, mut items| async move {
            let _item = items.recv().await;
            std::future::pending::<()>().await;
        },
    );
    *handle.lock().unwrap() = Some(run.handle());
    input.send(Item(1, None, log.clone())).await.unwrap();
    settle().await;
    input.send(Item(2, Some(Arc::clone(&handle)), log.clone())).await.unwrap();
    settle().await;
    assert_eq!(run.handle().revoke(&2).await, 1);
    assert_eq!(log.take(), ["1 keys, 0 lost"]);
}

/// Another thread revokes the key between the moment at which its first item is routed and that at
/// which its mailbox is attached.
#[test]
fn item_on_its_way_to_a_new_mailbox_is_revoked_and_not_lost() {
    const ITEMS: u64 = 100_000;
    run(2, async {
        let input = stream::iter(0..ITEMS).then(async |n| {
            yield_now().await;
            n
        });
        let worker =
            |(), mut items: Mailbox<(), u64>| async move { while items.recv().await.is_some() {} };
        let mut run = for_each_by_key(input, |_| (), Workers::new(), worker);
        let handle = run.handle();
        let is_over = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&is_over);
        let revoker = thread::spawn(move || {
            while !is_done.load(Relaxed) {
                let _count = handle.revoke(&()).now_or_never();
            }
        });
        let summary = (&mut run).await;
        is_over.store(true, Relaxed);
        revoker.join().unwrap();
        assert_eq!((summary.received, summary.lost(), summary.panics), (ITEMS, 0, 0));
    });
}

/// Items are taken once and in order or revoked, and no key has two workers at a time.
#[test]
fn keys_that_are_revoked_all_the_time_lose_nothing_else() {
    for threads in RUNTIMES {
        for (max, concurrency) in [(1_000, 1_000), (8, 1_000), (1_000, 2)] {
            run(threads, async move {
                let state = Arc::new(Mutex::new(HashMap::<usize, (usize, u64)>::new()));
                let of_workers = Arc::clone(&state);
                let mut dice = Dice::new(11);
                let input = stream::iter(1..10_000_u64).then(move |n| {
                    let key = dice.index(20);
                    async move {
                        if n % 100 == 0 {
                            yield_now().await;
                        }
                        (key, n)
                    }
                });
                let settings = Workers::new()
                    .mailbox(4)
                    .max_workers(max)
                    .concurrency(concurrency)
                    .idle_timeout(Duration::from_millis(2));
                let mut run = for_each_by_key(
                    input,
                    |item| item.0,
                    settings,
                    move |key, mut items| {
                        let state = Arc::clone(&of_workers);
                        async move {
                            let _only = Only::enter(&state, key);
                            while let Some((_, n)) = items.recv().await {
                                comes_later(&state, key, n);
                                if n % 7 == 0 {
                                    yield_now().await;
                                }
                                if n % 311 == 0 {
                                    break;
                                }
                            }
                        }
                    },
                );
                let handle = run.handle();
                let revoker = tokio::spawn(async move {
                    let mut dice = Dice::new(5);
                    loop {
                        match dice.index(4) {
                            0 => drop(handle.revoke(&dice.index(20)).now_or_never()),
                            1 => {
                                handle.revoke_if(|key| key % 5 == 0).await;
                            }
                            _ => {
                                handle.revoke(&dice.index(20)).await;
                            }
                        }
                        yield_now().await;
                    }
                });
                let summary = (&mut run).await;
                revoker.abort();
                assert_eq!((summary.received, summary.lost(), summary.panics), (9_999, 0, 0));
                assert_eq!(summary.taken + summary.revoked, 9_999);
                assert!(state.lock().unwrap().values().all(|(workers, _)| *workers == 0));
            });
        }
    }
}

fn comes_later(state: &Mutex<HashMap<usize, (usize, u64)>>, key: usize, n: u64) {
    let mut states = state.lock().unwrap();
    let last = &mut states.entry(key).or_default().1;
    assert!(std::mem::replace(last, n) < n, "{n} of {key}");
}

/// A worker of a key, which is the only one.
struct Only(Arc<Mutex<HashMap<usize, (usize, u64)>>>, usize);

impl Only {
    fn enter(state: &Arc<Mutex<HashMap<usize, (usize, u64)>>>, key: usize) -> Self {
        let mut states = state.lock().unwrap();
        let workers = &mut states.entry(key).or_default().0;
        *workers += 1;
        assert_eq!(*workers, 1, "workers of {key}");
        drop(states);
        Self(Arc::clone(state), key)
    }
}

impl Drop for Only {
    fn drop(&mut self) {
        self.0.lock().unwrap().get_mut(&self.1).unwrap().0 -= 1;
    }
}
