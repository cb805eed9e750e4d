//! What is dropped or woken may call back into the hub: no lock is held then. A call that finds one
//! held would never return.

use std::hash::{Hash, Hasher};
use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Wake, Waker};

use futures::StreamExt;
use stream_demux_hub::{End, Hub, Terms};

use crate::common::{SECOND, settle};
use crate::hub::waiting_terms;
use crate::runtimes::run;

type Call = Arc<dyn Fn() + Send + Sync>;

/// A key that calls back when it is dropped, if it is to.
#[derive(Clone)]
struct Key(u32, Option<Call>);

/// A key that does not call back.
fn quiet(n: u32) -> Key {
    Key(n, None)
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Drop for Key {
    fn drop(&mut self) {
        if let Some(call) = &self.1 {
            call();
        }
    }
}

fn encode(n: u32, bytes: &mut Vec<u8>) -> io::Result<()> {
    writeln!(bytes, "{n}")
}

#[test]
fn keys_of_a_split_subscription_that_are_dropped() {
    run(0, async {
        let hub = Hub::<Key, u32>::new();
        let called = Arc::new(AtomicUsize::new(0));
        for terms in [Terms::new(), Terms::new().limit(1), waiting_terms(1)] {
            let (reader, keys) = hub.subscribe_with([], terms).split();
            let (handle, count) = (keys.clone(), Arc::clone(&called));
            let call: Call = Arc::new(move || {
                handle.remove(&quiet(0));
                count.fetch_add(1, SeqCst);
            });
            let key = |n| Key(n, Some(Arc::clone(&call)));
            for n in 1..40 {
                assert!(keys.add(key(n)) && !keys.add(key(n)));
                assert!(hub.publish(quiet(n), n).await.is_ok());
            }
            settle().await;
            // Those that have reached the limit begin anew, or make room for others.
            for n in 1..80 {
                keys.add(key(n));
            }
            assert!(keys.remove(&quiet(30)) && !keys.remove(&quiet(30)));
            let before = called.load(SeqCst);
            drop(reader);
            settle().await;
            assert!(!keys.add(key(1)) && called.load(SeqCst) > before + 40);
        }
        // The key of a topic, which the reader leaves.
        let slot = Arc::new(OnceLock::<Call>::new());
        let late = Arc::clone(&slot);
        let call: Call = Arc::new(move || {
            if let Some(call) = late.get() {
                call();
            }
        });
        let (reader, keys) = hub.subscribe(Key(1, Some(call))).split();
        let (handle, count) = (keys.clone(), Arc::clone(&called));
        let call = move || {
            handle.remove(&quiet(0));
            count.fetch_add(1, SeqCst);
        };
        assert!(slot.set(Arc::new(call)).is_ok());
        let before = called.load(SeqCst);
        settle().await;
        assert!(keys.remove(&quiet(1)) && called.load(SeqCst) > before);
        drop(reader);
    });
}

#[test]
fn keys_that_are_dropped_by_calls_of_the_hub() {
    run(0, async {
        let hub = Hub::<Key, u32>::new();
        let called = Arc::new(AtomicUsize::new(0));
        let (handle, count) = (hub.clone(), Arc::clone(&called));
        let call: Call = Arc::new(move || {
            drop(handle.subscribe(quiet(0)));
            drop(handle.attach_writer(quiet(0), Vec::new(), encode, Terms::new()));
            count.fetch_add(1, SeqCst);
        });
        let key = |n| Key(n, Some(Arc::clone(&call)));
        let write = |n, terms| hub.attach_writer(key(n), Vec::new(), encode, terms);
        let writers = [
            write(1, Terms::new()),
            write(1, Terms::new().buffer(8)),
            write(1, Terms::new()),
            write(2, Terms::new()),
        ];
        let subscriptions = [hub.subscribe(key(1)), hub.subscribe(key(1)), hub.subscribe(key(2))];
        let (reader, keys) = hub.subscribe_with([key(1), key(2)], waiting_terms(1)).split();
        settle().await;
        drop(writers);
        hub.shutdown(SECOND).await;
        // What is attached now is refused.
        let before = called.load(SeqCst);
        drop(hub.subscribe(key(1)));
        drop([write(1, Terms::new()), write(1, Terms::new().buffer(8))]);
        assert!(keys.add(key(3)) && keys.remove(&quiet(1)) && keys.remove(&quiet(2)));
        assert!(keys.remove(&quiet(3)) && keys.keys().is_empty());
        drop((subscriptions, reader));
        assert!(called.load(SeqCst) > before + 8);
    });
}

/// Calls back when it is woken.
struct Waking(Call);

impl Wake for Waking {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

/// Calls back when it is dropped.
struct Guard(Arc<OnceLock<Call>>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.get().expect("the test has set it")();
    }
}

/// The closures of the hub are dropped at its end, before it has told the subscriptions without keys.
#[test]
fn reader_that_is_woken_while_another_leaves_its_last_key_at_the_end_of_the_hub() {
    run(0, async {
        let slot = Arc::new(OnceLock::new());
        let guard = Guard(Arc::clone(&slot));
        let on_unmatched = move |_, _| {
            let _ = &guard;
        };
        let hub = Hub::<u32, u32>::builder().on_unmatched(on_unmatched).spawn();
        let mut idle = hub.subscribe_with([], Terms::new());
        let (mut reader, keys) = hub.subscribe_with([1, 2], Terms::new()).split();
        assert!(keys.remove(&2));
        let handle = keys.clone();
        let leave: Call = Arc::new(move || assert!(handle.remove(&1)));
        assert!(slot.set(leave).is_ok());
        let woken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&woken);
        let waker = Waker::from(Arc::new(Waking(Arc::new(move || {
            keys.remove(&0);
            count.fetch_add(1, SeqCst);
        }))));
        assert!(idle.poll_next_unpin(&mut Context::from_waker(&waker)).is_pending());
        hub.shutdown(SECOND).await;
        assert_eq!((woken.load(SeqCst), idle.end()), (1, Some(End::Closed)));
        assert_eq!((reader.recv().await, reader.end()), (None, Some(End::Closed)));
    });
}
