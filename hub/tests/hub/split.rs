//! Subscriptions that are split: one half reads, and another one changes the keys.

use std::future::ready;
use std::sync::mpsc as test_channel;
use std::task::Poll;

use futures::{FutureExt, StreamExt, stream};
use sink_test::Task;
use stream_demux_hub::{End, Hub, SubscriptionReader, Terms};
use tokio::sync::mpsc;
use tokio::task::yield_now;

use crate::hub::{SECOND, publish, settle, waiting_terms};
use crate::runtimes::{RUNTIMES, run};

fn read<K, V>(reader: &mut SubscriptionReader<K, V>) -> Vec<V> {
    std::iter::from_fn(|| reader.try_recv()).map(|next| next.expect("nothing is lost")).collect()
}

#[tokio::test(start_paused = true)]
async fn keys_are_changed_while_the_reader_waits() {
    let hub = Hub::new();
    let (mut reader, keys) = hub.subscribe_with([], Terms::new()).split();
    let read = tokio::spawn(async move {
        let mut items = Vec::new();
        reader.recv_many(&mut items, 8).await;
        items.push(reader.recv().await.unwrap());
        items
    });
    settle().await;
    let clone = keys.clone();
    assert!(keys.add("a") && !clone.add("a") && clone.add("b"));
    publish(&hub, [1]).await;
    settle().await;
    assert!(clone.remove(&"a") && !keys.remove(&"a"));
    assert_eq!(keys.keys(), ["b"]);
    publish(&hub, [2]).await;
    hub.publish("b", 3).await.unwrap();
    assert_eq!(read.await.unwrap(), [Ok(1), Ok(3)]);
}

#[tokio::test(start_paused = true)]
async fn subscription_that_is_split_reads_on() {
    let hub = Hub::new();
    for terms in [Terms::new(), waiting_terms(8)] {
        let subscription = hub.subscribe_with(["a"], terms);
        publish(&hub, 0..3).await;
        settle().await;
        publish(&hub, 3..5).await;
        let (mut reader, keys) = subscription.split();
        publish(&hub, 5..7).await;
        settle().await;
        assert_eq!(reader.len(), 7);
        assert_eq!(read(&mut reader), (0..7).collect::<Vec<_>>());
        assert_eq!((keys.keys(), hub.subscribers(&"a").await), (vec!["a"], 1));
        assert!(reader.is_empty() && reader.lost() == 0);
        let debug = format!("{reader:?} {keys:?}");
        assert!(debug.contains(r#"SubscriptionKeys(["a"])"#), "{debug}");
    }
}

#[tokio::test(start_paused = true)]
async fn reader_that_is_dropped_leaves_all_keys() {
    let hub = Hub::new();
    for keys in [vec!["a"], vec!["a", "b"], vec![]] {
        let (reader, keys) = hub.subscribe_with(keys, Terms::new()).split();
        publish(&hub, [1]).await;
        settle().await;
        drop(reader);
        assert!(!keys.add("c") && !keys.remove(&"a") && keys.keys().is_empty());
        assert_eq!((hub.subscribers(&"a").await, hub.stats().await.receiving), (0, 0));
    }
}

/// What the input of a hub does when it is polled: it may return an item.
type Step = Box<dyn FnOnce() -> Option<(&'static str, u32)> + Send>;

/// The input does in its turns what other threads could do at the same time: the reader sleeps in
/// the topic of its key before the item is routed, and the key is left before the item is flushed.
#[tokio::test(start_paused = true)]
async fn reader_that_sleeps_is_woken_for_what_came_before_its_key_was_left() {
    let (steps, mut taken) = mpsc::unbounded_channel::<Step>();
    let input = stream::poll_fn(move |cx| taken.poll_recv(cx));
    let hub = Hub::builder().input(input.filter_map(|step| ready(step()))).spawn();
    let subscription = hub.subscribe("a");
    settle().await;
    let (give_keys, keys) = test_channel::channel();
    let (give_reader, reader) = test_channel::channel();
    let sleep = move || {
        let (mut reader, keys) = subscription.split();
        let mut task = Task::new(async move { (reader.recv().await, reader) });
        assert!(task.run().is_pending());
        give_reader.send(task).unwrap();
        give_keys.send(keys).unwrap();
        Some(("a", 1))
    };
    let leave = move || {
        assert!(keys.recv().unwrap().remove(&"a"));
        None
    };
    assert!(steps.send(Box::new(sleep)).is_ok() && steps.send(Box::new(leave)).is_ok());
    settle().await;
    let mut reader = reader.recv().unwrap();
    assert!(reader.woken(), "nothing else will wake it");
    let Poll::Ready((item, mut reader)) = reader.run() else { panic!("the item is there") };
    assert_eq!((item, reader.recv().now_or_never()), (Some(Ok(1)), None));
    assert_eq!(hub.subscribers(&"a").await, 0);
}

#[tokio::test(start_paused = true)]
async fn keys_outlive_the_half_that_changes_them() {
    let hub = Hub::new();
    let (mut reader, keys) = hub.subscribe("a").split();
    drop(keys);
    publish(&hub, [1]).await;
    assert_eq!(reader.next().await, Some(Ok(1)));
    let (mut none, keys) = hub.subscribe_with([], Terms::new()).split();
    drop(keys);
    assert!(none.recv().now_or_never().is_none());
    hub.shutdown(SECOND).await;
    for reader in [&mut reader, &mut none] {
        assert_eq!((reader.recv().await, reader.end()), (None, Some(End::Closed)));
    }
}

/// A client whose one task reads, and whose other joins and leaves rooms and writes into them.
#[test]
fn two_tasks_of_a_client_share_a_subscription() {
    for workers in RUNTIMES {
        run(workers, async {
            let hub = Hub::<u64, u64>::new();
            let (mut reader, keys) = hub.subscribe(0).split();
            let writer = hub.clone();
            let write = tokio::spawn(async move {
                for n in 0..2_000 {
                    assert!(n % 10 == 0 || keys.add(n % 10));
                    writer.publish(n % 10, n).await.unwrap();
                    if n % 10 == 9 {
                        // What was published is routed before the keys are left.
                        writer.stats().await;
                        (1..10).for_each(|key| assert!(keys.remove(&key)));
                    }
                    if n % 50 == 0 {
                        yield_now().await;
                    }
                }
                keys
            });
            for n in 0..2_000 {
                assert_eq!(reader.recv().await, Some(Ok(n)));
            }
            assert_eq!(write.await.unwrap().keys(), [0]);
        });
    }
}
