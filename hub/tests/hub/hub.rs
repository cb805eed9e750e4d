//! A hub, on one thread and a clock that stands still: each situation is made, and nothing else
//! happens.

use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{FutureExt, Sink, StreamExt, sink, stream};
use sink_test::{Op, scripted_sink};
use stream_demux::Detached;
use stream_demux_hub::{End, Hub, Lagged, Overflow, Subscription, Terms, TryPublishError};
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use crate::common::{Dice, compute_in_each_turn};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Lets all other tasks run until they wait.
pub(crate) async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

pub(crate) fn read<K, V>(subscription: &mut Subscription<K, V>) -> Vec<Result<V, u64>> {
    let all = std::iter::from_fn(|| subscription.try_recv());
    all.map(|next| next.map_err(|Lagged(lost)| lost)).collect()
}

pub(crate) async fn publish<V: Clone + Send + 'static>(
    hub: &Hub<&'static str, V>,
    items: impl IntoIterator<Item = V>,
) {
    for item in items {
        assert!(hub.publish("a", item).await.is_ok());
    }
}

pub(crate) fn waiting_terms(buffer: usize) -> Terms {
    Terms::new().buffer(buffer).overflow(Overflow::Wait)
}

#[tokio::test(start_paused = true)]
async fn each_subscriber_of_a_key_gets_what_is_published_after_it() {
    let hub = Hub::new();
    publish(&hub, [0]).await;
    settle().await;
    let mut one = hub.subscribe("a");
    publish(&hub, [1]).await;
    settle().await;
    let mut two = hub.subscribe("a");
    publish(&hub, [2]).await;
    let mut other = hub.subscribe("b");
    drop(hub);
    settle().await;
    assert_eq!((read(&mut one), read(&mut two)), (vec![Ok(1), Ok(2)], vec![Ok(2)]));
    for subscription in [one, two] {
        assert_eq!(subscription.end(), Some(End::Closed));
    }
    assert_eq!(other.recv().await, None);
}

/// Subscribing overtakes items that were not routed yet.
#[tokio::test(start_paused = true)]
async fn subscriber_may_get_what_was_published_just_before() {
    let hub = Hub::new();
    publish(&hub, [1]).await;
    let mut late = hub.subscribe("a");
    assert_eq!(late.recv().await, Some(Ok(1)));
}

/// A key is added in the middle of a burst, of which the sink of another key holds items back.
#[tokio::test(start_paused = true)]
async fn key_that_is_added_in_a_burst_does_not_overtake() {
    for seed in 0..500 {
        let test = async move {
            let mut dice = Dice::new(seed);
            let hub = Hub::builder().budget(1 + dice.index(4)).spawn();
            let buffer = 4 << dice.index(3);
            let mut both = hub.subscribe_with(["a"], waiting_terms(buffer));
            assert!(both.recv().now_or_never().is_none()); // it sleeps
            let before = 1 + dice.index(buffer / 2 - 1);
            for n in 0..before {
                hub.try_publish("a", n).unwrap();
            }
            // The hub gets some turns. `yield_now` would let it go on until it waits.
            for _ in 0..=dice.index(3) {
                tokio::spawn(async {}).await.unwrap();
            }
            both.add("b");
            for n in before..60 {
                let key = if dice.index(buffer) == 0 { "a" } else { "b" };
                hub.try_publish(key, n).unwrap();
            }
            drop(hub);
            for n in 0..60 {
                assert_eq!(both.recv().await, Some(Ok(n)), "seed {seed}");
            }
            assert_eq!(both.recv().await, None);
        };
        // As a task, it takes turns with that of the hub.
        tokio::spawn(test).await.unwrap();
    }
}

/// The hub waits for the item of a key that was removed as it would wait for one that was not.
#[tokio::test(start_paused = true)]
async fn item_of_a_removed_key_that_waits_for_room_is_not_overtaken() {
    for again in [None, Some("a"), Some("c")] {
        for buffer in 1..4 {
            let hub = Hub::new();
            let mut both = hub.subscribe_with(["a", "b"], waiting_terms(buffer));
            publish(&hub, 0..=buffer).await;
            settle().await;
            assert!(both.remove("a"));
            if let Some(key) = again {
                both.add(key);
            }
            settle().await;
            for n in buffer + 1..12 {
                hub.publish("b", n).await.unwrap();
                hub.publish("c", n).await.unwrap();
            }
            settle().await;
            let mut items = Vec::new();
            while let Some(Ok(n)) = both.recv().now_or_never().flatten() {
                items.push(n);
                settle().await;
            }
            items.dedup(); // "c" has the same
            assert_eq!(items, (0..12).collect::<Vec<_>>(), "{again:?}, buffer {buffer}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn client_that_adds_and_removes_a_key_and_never_reads_lets_nothing_further_in() {
    let hub = Hub::builder().capacity(4).spawn();
    let (reader, keys) = hub.subscribe_with(["a"], waiting_terms(2)).split();
    let mut published = 0;
    for n in 0..100 {
        published += usize::from(hub.try_publish("a", n).is_ok());
        settle().await;
        keys.remove("a");
        keys.add("a");
        settle().await;
    }
    // In the inbox, outside of it, and in the hub.
    assert_eq!(published, 2 + 1 + 4);
    let stats = hub.stats().await;
    assert_eq!((stats.receiving, stats.leaving, stats.totals.queued, stats.waiting), (1, 1, 1, 4));
    assert_eq!(hub.blocked_on().await.map(|member| member.key), Some("a"));

    // The others go on when it has gone.
    let mut other = hub.subscribe("a");
    settle().await;
    assert_eq!(other.try_recv(), None);
    drop((reader, keys));
    settle().await;
    assert_eq!(read(&mut other), [Ok(3), Ok(4), Ok(5), Ok(6)]);
}

#[tokio::test(start_paused = true)]
async fn hub_that_ends_delivers_the_waiting_item_of_a_removed_key_and_what_comes_later() {
    let hub = Hub::new();
    let mut both = hub.subscribe_with(["a", "b"], waiting_terms(1));
    publish(&hub, 0..2).await;
    settle().await;
    both.remove("a");
    hub.publish("b", 2).await.unwrap();
    drop(hub);
    settle().await;
    assert_eq!(both.end(), None);
    for n in 0..3 {
        assert_eq!(both.recv().await, Some(Ok(n)));
    }
    assert_eq!((both.recv().await, both.end()), (None, Some(End::Closed)));
}

#[tokio::test(start_paused = true)]
async fn waiting_item_of_a_removed_key_is_given_up_at_the_time_out() {
    let hub = Hub::new();
    let terms = waiting_terms(1).stall_timeout(SECOND);
    let mut slow = hub.subscribe_with(["a", "b"], terms);
    let mut other = hub.subscribe("other");
    publish(&hub, 0..2).await;
    settle().await;
    slow.remove("a");
    hub.publish("other", 7).await.unwrap();
    let begun = Instant::now();
    assert_eq!(other.recv().await, Some(Ok(7)));
    assert!(begun.elapsed() >= SECOND);
    assert_eq!(read(&mut slow), [Ok(0)]);
    assert_eq!(slow.end(), Some(End::Stalled));
}

#[tokio::test(start_paused = true)]
async fn last_handle_delivers_what_was_published() {
    let hub = Hub::builder().capacity(4).spawn();
    let mut slow = hub.subscribe_with(["a"], waiting_terms(1));
    let clone = hub.clone();
    drop(hub);
    publish(&clone, 0..2).await;
    settle().await;
    assert!(!clone.is_closed());
    publish(&clone, 2..6).await; // waits for room in the hub
    drop(clone);
    for n in 0..6 {
        assert_eq!(slow.recv().await, Some(Ok(n)));
    }
    assert_eq!((slow.recv().await, slow.end()), (None, Some(End::Closed)));
}

#[tokio::test(start_paused = true)]
async fn subscription_does_not_keep_the_hub_alive() {
    let hub = Hub::<_, u32>::new();
    let mut subscription = hub.subscribe("a");
    let mut none = hub.subscribe_with([], Terms::new());
    let mut next = hub.next("a");
    assert!((&mut next).now_or_never().is_none());
    assert!(none.recv().now_or_never().is_none());
    drop(hub);
    assert_eq!(subscription.recv().await, None);
    assert_eq!((none.recv().await, none.end()), (None, Some(End::Closed)));
    assert_eq!(next.await, None);
}

#[tokio::test(start_paused = true)]
async fn keys_come_and_go() {
    let hub = Hub::new();
    let mut keys = hub.subscribe_with(["a", "b", "a"], Terms::new());
    assert_eq!(keys.keys().count(), 2);
    assert!(keys.add("c") && !keys.add("a"));
    hub.publish("c", 1).await.unwrap();
    settle().await;
    assert!(keys.remove(&"c") && !keys.remove(&"c") && keys.remove(&"a") && keys.remove(&"b"));
    hub.publish("a", 2).await.unwrap();
    hub.publish("c", 3).await.unwrap();
    settle().await;
    assert_eq!((read(&mut keys), keys.end()), (vec![Ok(1)], None));
    assert_eq!(hub.stats().await.receiving, 0);

    assert!(keys.add("a"));
    hub.publish("a", 4).await.unwrap();
    assert_eq!(keys.recv().await, Some(Ok(4)));
    let stats = hub.stats().await;
    assert_eq!((stats.totals.unmatched, stats.receiving), (2, 1));
    drop(hub);
    assert_eq!(keys.recv().await, None);
}

#[tokio::test(start_paused = true)]
async fn key_that_is_left_before_the_hub_knew_of_it() {
    let hub = Hub::new();
    let mut subscription = hub.subscribe("a");
    subscription.remove(&"a");
    subscription.add("b");
    hub.publish("a", 1).await.unwrap();
    hub.publish("b", 2).await.unwrap();
    assert_eq!(subscription.recv().await, Some(Ok(2)));
}

/// The item is in the queue of the hub, because the inbox is full, when its key is left.
#[tokio::test(start_paused = true)]
async fn items_of_a_key_that_is_left_are_still_received() {
    let hub = Hub::new();
    let mut subscription = hub.subscribe_with(["a", "b"], waiting_terms(1));
    publish(&hub, [1, 2]).await;
    settle().await;
    subscription.remove(&"a");
    hub.publish("b", 3).await.unwrap();
    for n in 1..=3 {
        assert_eq!(subscription.recv().await, Some(Ok(n)));
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_a_subscription_leaves_its_keys() {
    let hub = Hub::new();
    drop(hub.subscribe_with(["a", "b"], Terms::new()));
    drop(hub.subscribe_with([], Terms::new()));
    drop(hub.next("a"));
    publish(&hub, [1]).await;
    settle().await;
    let stats = hub.stats().await;
    assert_eq!((stats.receiving, stats.totals.unmatched, stats.totals.delivered), (0, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn publisher_that_is_dropped_while_it_waits_publishes_nothing() {
    let hub = Hub::builder().capacity(1).spawn();
    let mut slow = hub.subscribe_with(["a"], waiting_terms(1));
    publish(&hub, [1]).await;
    settle().await;
    // One in the inbox, one beyond it, one that the hub has not read, one that was not accepted.
    publish(&hub, [2, 3]).await;
    settle().await;
    let mut dropped = Box::pin(hub.publish("a", 4));
    assert!((&mut dropped).now_or_never().is_none());
    drop(dropped);
    assert!(
        matches!(hub.try_publish("a", 5), Err(TryPublishError::Full(error)) if error.item == 5)
    );
    for n in 1..=3 {
        assert_eq!(slow.recv().await, Some(Ok(n)));
    }
    settle().await;
    // The room is not lost.
    assert_eq!(hub.try_publish("a", 6), Ok(()));
    assert_eq!(slow.recv().await, Some(Ok(6)));
}

#[tokio::test(start_paused = true)]
async fn publishers_wait_for_those_who_asked_for_it_only() {
    let hub = Hub::builder().capacity(4).spawn();
    let mut never_reads = hub.subscribe_with(["a"], Terms::new().buffer(2));
    for n in 0..100 {
        publish(&hub, [n]).now_or_never().unwrap();
        settle().await;
    }
    assert_eq!(hub.stats().await.lost, 98);
    assert_eq!((hub.blocked_on().await, never_reads.lost()), (None, 98));

    let waits = hub.subscribe_with(["a"], waiting_terms(2).tag(7));
    publish(&hub, 100..103).await;
    settle().await;
    let on = hub.blocked_on().await.unwrap();
    assert_eq!((on.key, on.tag), ("a", 7));
    drop(waits);
    settle().await;
    assert_eq!(hub.blocked_on().await, None);
    assert_eq!(read(&mut never_reads), [Err(101), Ok(101), Ok(102)]);
}

#[tokio::test(start_paused = true)]
async fn subscriber_that_never_reads_is_given_up() {
    let hub = Hub::builder().capacity(1).tick(SECOND / 10).spawn();
    let mut other = hub.subscribe("b");
    let mut stuck = hub.subscribe_with(["a", "c"], waiting_terms(1).stall_timeout(5 * SECOND));
    let start = Instant::now();
    publish(&hub, 0..5).await;
    hub.publish("b", 5).await.unwrap();
    assert_eq!(other.recv().await, Some(Ok(5)));
    let waited = start.elapsed();
    assert!((5 * SECOND..=5 * SECOND + SECOND / 5).contains(&waited), "{waited:?}");

    // What was in the inbox is there, and the other key is left as soon as an item comes.
    assert_eq!(stuck.end(), Some(End::Stalled));
    assert_eq!((stuck.recv().await, stuck.recv().await), (Some(Ok(0)), None));
    hub.publish("c", 6).await.unwrap();
    let stats = hub.stats().await;
    assert_eq!((stats.receiving, stats.totals.unmatched), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn subscriber_that_is_too_slow_is_cut_off() {
    let hub = Hub::new();
    let terms = Terms::new().buffer(2).overflow(Overflow::Evict);
    let mut slow = hub.subscribe_with(["a"], terms);
    publish(&hub, 0..5).await;
    settle().await;
    assert_eq!(slow.end(), Some(End::Overflowed));
    assert_eq!(read(&mut slow), [Ok(0), Ok(1)]);
    assert_eq!(slow.recv().await, None);
    assert_eq!(hub.stats().await.receiving, 0);
}

#[tokio::test(start_paused = true)]
async fn shutdown_delivers_what_was_accepted() {
    let hub = Hub::builder().capacity(100).spawn();
    let mut slow = hub.subscribe_with(["a"], waiting_terms(1));
    publish(&hub, 0..100).await;
    let reader = tokio::spawn(async move {
        let mut items = Vec::new();
        while let Some(item) = slow.recv().await {
            items.push(item.unwrap());
            tokio::time::sleep(SECOND / 1_000).await;
        }
        (items, slow.end())
    });
    let report = hub.shutdown(SECOND).await;
    assert_eq!(
        (report.stats.totals.delivered, report.stats.waiting, report.hung),
        (100, 0, vec![])
    );
    assert!(hub.publish("a", 100).await.is_err());
    assert!(matches!(hub.try_publish("a", 100), Err(TryPublishError::Closed(_))));
    assert_eq!(reader.await.unwrap(), ((0..100).collect(), Some(End::Closed)));
}

#[tokio::test(start_paused = true)]
async fn shutdown_gives_up_at_its_deadline() {
    let hub = Hub::builder().capacity(100).spawn();
    let mut stuck = hub.subscribe_with(["a"], waiting_terms(1).tag(1));
    let mut quick = hub.subscribe("b");
    let (sink, handle) = scripted_sink("c");
    handle.hold(Op::Close);
    let lease = hub.attach("c", Never(sink), Terms::new().tag(2));
    publish(&hub, 0..10).await;
    hub.publish("b", 10).await.unwrap();
    let start = Instant::now();
    let report = hub.shutdown(SECOND).await;
    assert_eq!(start.elapsed(), SECOND);
    // The input is blocked, so the end was not read, and no sink is closed yet.
    assert_eq!(report.hung.iter().map(|member| member.tag).collect::<Vec<_>>(), [1]);
    let totals = report.stats.totals;
    assert_eq!((totals.received, totals.delivered, totals.discarded), (2, 1, 1));
    assert_eq!((report.stats.waiting, totals.queued), (9, 0));
    assert_eq!((read(&mut stuck), stuck.end()), (vec![Ok(0)], Some(End::Aborted)));
    assert_eq!((quick.recv().await, quick.end()), (None, Some(End::Aborted)));
    assert!(handle.is_dropped() && lease.is_empty());
}

/// A sink for numbers that takes none.
struct Never(sink_test::ScriptedSink<u32>);

impl Sink<u32> for Never {
    type Error = std::io::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_ready(cx).map_err(std::io::Error::other)
    }
    fn start_send(mut self: Pin<&mut Self>, item: u32) -> std::io::Result<()> {
        Pin::new(&mut self.0).start_send(item).map_err(std::io::Error::other)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx).map_err(std::io::Error::other)
    }
    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_close(cx).map_err(std::io::Error::other)
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_names_sinks_that_do_not_close() {
    let hub = Hub::new();
    let (sink, handle) = scripted_sink("a");
    handle.hold(Op::Close);
    let _lease = hub.attach("a", Never(sink), Terms::new().tag(3));
    publish(&hub, [1]).await;
    let shutdown = hub.shutdown(SECOND);
    let look = async {
        tokio::time::sleep(SECOND / 2).await;
        hub.leaving().await
    };
    let (report, leaving) = futures::future::join(shutdown, look).await;
    assert_eq!(leaving.iter().map(|member| member.tag).collect::<Vec<_>>(), [3]);
    assert_eq!(report.hung, leaving);
    assert_eq!((handle.items(), report.stats.totals.delivered), (vec![1], 1));
}

#[tokio::test(start_paused = true)]
async fn shutdown_twice_waits_for_the_same_end() {
    let hub = Hub::new();
    let _stuck = hub.subscribe_with(["a"], waiting_terms(1));
    publish(&hub, 0..3).await;
    let start = Instant::now();
    let clone = hub.clone();
    let (one, other) =
        futures::future::join(hub.shutdown(2 * SECOND), clone.shutdown(SECOND)).await;
    assert_eq!((start.elapsed(), &one), (SECOND, &other));
    assert_eq!(one.hung.len(), 1);
    assert_eq!(hub.shutdown(SECOND).await, one);
    assert_eq!((start.elapsed(), hub.stats().await), (SECOND, one.stats));
}

#[tokio::test(start_paused = true)]
async fn shutdown_that_is_dropped_goes_on_without_a_deadline() {
    let hub = Hub::new();
    let mut slow = hub.subscribe_with(["a"], waiting_terms(1));
    publish(&hub, 0..3).await;
    assert!(timeout(SECOND, hub.shutdown(2 * SECOND)).await.is_err());
    assert!(hub.is_closed() && hub.publish("a", 3).await.is_err());
    tokio::time::sleep(5 * SECOND).await;
    for n in 0..3 {
        assert_eq!(slow.recv().await, Some(Ok(n)));
    }
    assert_eq!(slow.recv().await, None);
    assert!(hub.shutdown(SECOND).await.hung.is_empty());
}

#[tokio::test(start_paused = true)]
async fn publishers_that_wait_get_their_items_back_at_shutdown() {
    let hub = Hub::builder().capacity(1).spawn();
    let _stuck = hub.subscribe_with(["a"], waiting_terms(1));
    publish(&hub, [1, 2]).await;
    settle().await;
    publish(&hub, [3]).await;
    let publish = hub.publish("a", 4);
    let (refused, report) = futures::future::join(publish, hub.shutdown(SECOND)).await;
    assert_eq!(refused.unwrap_err().item, 4);
    assert_eq!(report.stats.totals.received + report.stats.waiting, 3);
}

#[tokio::test(start_paused = true)]
async fn after_the_end_everything_answers_at_once() {
    let hub = Hub::<_, u32>::new();
    let mut earlier = hub.subscribe("a");
    let report = hub.shutdown(SECOND).await;
    let mut late = hub.subscribe("a");
    assert_eq!((late.recv().await, late.end()), (None, Some(End::Closed)));
    let mut none = hub.subscribe_with([], Terms::new());
    assert_eq!((none.recv().await, none.end()), (None, Some(End::Closed)));
    assert_eq!(hub.next("a").await, None);
    assert_eq!((hub.stats().await, hub.leaving().await.len()), (report.stats, 0));
    assert!(earlier.add("b") && earlier.remove(&"a"));
    assert_eq!(earlier.recv().await, None);
    let (sink, handle) = scripted_sink("a");
    assert!(hub.attach("a", Never(sink), Terms::new()).is_empty() && handle.is_dropped());
}

/// Each key is a reference to one value, which counts them.
#[tokio::test(start_paused = true)]
async fn handle_that_is_kept_after_the_end_keeps_no_key() {
    let hub = Hub::<_, u32>::new();
    let key = Arc::new("a");
    let keep = || Arc::clone(&key);
    let encode = |_: u32, _: &mut Vec<u8>| Ok(());
    let subscription = hub.subscribe_with([keep()], waiting_terms(1));
    let lease = hub.attach(keep(), sink::drain(), Terms::new());
    hub.shutdown(SECOND).await;
    drop((subscription, lease));
    assert_eq!(Arc::strong_count(&key), 1);
    for _ in 0..10 {
        drop(hub.subscribe(keep()));
        drop(hub.subscribe_with([keep()], waiting_terms(1)));
        drop(hub.attach(keep(), sink::drain(), Terms::new()));
        drop(hub.attach_writer(keep(), Vec::new(), encode, Terms::new()));
        drop(hub.next(keep()));
    }
    assert_eq!(Arc::strong_count(&key), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reply_is_waited_for() {
    let hub = Hub::new();
    let (one, two, none) = (hub.next(1), hub.next(2), hub.next(3));
    hub.publish(2, "two").await.unwrap();
    hub.publish(1, "one").await.unwrap();
    hub.publish(1, "one more").await.unwrap();
    assert_eq!((one.await, two.await), (Some("one"), Some("two")));
    assert_eq!(timeout(SECOND, none).await.ok(), None);
    hub.publish(3, "too late").await.unwrap();
    settle().await;
    assert_eq!(hub.stats().await.totals.unmatched, 2);
}

#[tokio::test(start_paused = true)]
async fn a_reply_is_not_taken_from_a_subscriber_of_its_key() {
    let hub = Hub::new();
    let mut subscription = hub.subscribe("a");
    let reply = hub.next("a");
    publish(&hub, [1, 2]).await;
    assert_eq!(reply.await, Some(1));
    settle().await;
    assert_eq!(read(&mut subscription), [Ok(1), Ok(2)]);
    let stats = hub.stats().await;
    assert_eq!((stats.receiving, stats.totals.copies, stats.totals.unmatched), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn attached_sinks_have_a_queue_and_a_policy() {
    let hub = Hub::new();
    let (sink, handle) = scripted_sink("a");
    handle.park();
    let terms = Terms::new().buffer(2).overflow(Overflow::DropOldest);
    let lease = hub.attach("a", Never(sink), terms);
    publish(&hub, 0..5).await;
    settle().await;
    handle.open();
    settle().await;
    assert_eq!(handle.items(), [3, 4]);
    drop(lease);
    settle().await;
    assert!(handle.is_dropped());
    assert_eq!(hub.stats().await.totals.discarded, 3);
}

#[tokio::test(start_paused = true)]
async fn closures_are_told_what_happens() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = |told: &Arc<Mutex<Vec<String>>>, what: String| told.lock().unwrap().push(what);
    let (one, two, three, four) = (told.clone(), told.clone(), told.clone(), told.clone());
    let hub = Hub::builder()
        .on_unmatched(move |key, item| tell(&one, format!("unmatched {key} {item}")))
        .on_interest(move |key, wanted| tell(&two, format!("{key} wanted: {wanted}")))
        .on_detached(move |to, why| {
            let why = match why {
                Detached::Failed(error) => error.to_string(),
                why => why.to_string(),
            };
            tell(&three, format!("{} of {}: {why}", to.tag, to.key));
        })
        .on_discarded(move |to, item, why| {
            tell(&four, format!("{item} of {} at {}: {why}", to.key, to.tag));
        })
        .spawn();
    publish(&hub, [1]).await;
    settle().await;
    let subscription = hub.subscribe("a");
    let (sink, handle) = scripted_sink("a");
    let _lease = hub.attach("a", Never(sink), Terms::new().tag(9));
    publish(&hub, [2]).await;
    handle.fail(Op::Ready);
    publish(&hub, [3]).await;
    settle().await;
    drop(subscription);
    settle().await;
    assert_eq!(
        *told.lock().unwrap(),
        [
            "unmatched a 1",
            "a wanted: true",
            "2 of a at 9: failed",
            "9 of a: poll_ready failed",
            "a wanted: false",
            "0 of a: evicted"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn input_is_published_beside_the_handles() {
    let (input, items) = mpsc::channel(1);
    let items = stream::unfold(items, |mut items| async { Some((items.recv().await?, items)) });
    let hub = Hub::builder().input(items).spawn();
    let mut a = hub.subscribe("a");
    input.send(("a", 1)).await.unwrap();
    assert_eq!(a.recv().await, Some(Ok(1)));
    publish(&hub, [2]).await;
    assert_eq!(a.recv().await, Some(Ok(2)));
    input.send(("a", 3)).await.unwrap();
    publish(&hub, [4]).await;
    drop(input);
    settle().await;
    assert!(hub.is_closed() && hub.publish("a", 5).await.is_err());
    let mut rest = read(&mut a);
    rest.sort();
    assert_eq!(rest, [Ok(3), Ok(4)]);
    assert_eq!(a.recv().await, None);
}

#[tokio::test(start_paused = true)]
async fn busy_input_and_busy_publishers_get_turns() {
    let hub = Hub::builder().input(stream::repeat(("input", 0))).capacity(2).spawn();
    let mut published = hub.subscribe("a");
    for n in 0..10 {
        publish(&hub, [n]).await;
        assert_eq!(published.recv().await, Some(Ok(n)));
    }
    let report = hub.shutdown(SECOND).await;
    assert!(report.stats.totals.received >= 20 && report.hung.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_task_ends_the_hub() {
    let hub = Hub::builder().on_unmatched(|_, item| panic!("{item}")).spawn();
    let mut subscription = hub.subscribe("b");
    let mut none = hub.subscribe_with([], Terms::new());
    let next = hub.next("b");
    hub.publish("b", 0).await.unwrap();
    publish(&hub, [1, 2]).await;
    assert_eq!(next.await, Some(0));
    assert_eq!(subscription.recv().await, Some(Ok(0)));
    assert_eq!((subscription.recv().await, subscription.end()), (None, Some(End::Aborted)));
    assert_eq!((none.recv().await, none.end()), (None, Some(End::Aborted)));
    assert!(hub.publish("b", 3).await.is_err());
    let report = hub.shutdown(SECOND).await;
    assert_eq!((report.stats.totals.received, report.stats.waiting), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn subscription_is_a_stream() {
    let hub = Hub::new();
    let subscription = hub.subscribe_with(["a"], Terms::new().buffer(3));
    publish(&hub, 0..5).await;
    drop(hub);
    settle().await;
    assert_eq!(subscription.collect::<Vec<_>>().await, [Err(Lagged(2)), Ok(2), Ok(3), Ok(4)]);
}

#[tokio::test(start_paused = true)]
async fn limits_and_debug() {
    let hub = Hub::new();
    let mut two = hub.subscribe_with(["a"], Terms::new().limit(2));
    publish(&hub, 0..3).await;
    assert_eq!((two.recv().await, two.recv().await), (Some(Ok(0)), Some(Ok(1))));
    assert_eq!((two.recv().await, two.end()), (None, Some(End::Closed)));
    assert!(format!("{hub:?} {two:?} {:?}", Hub::<u8, u8>::builder()).contains("Open"));
}

#[test]
#[should_panic(expected = "`tick` must be longer than zero")]
fn tick_of_zero_is_refused_where_it_is_set() {
    drop(Hub::<u32, u32>::builder().tick(Duration::ZERO));
}

#[test]
#[should_panic(expected = "`budget` must be at least 1 item")]
fn budget_of_nothing_is_refused_where_it_is_set() {
    drop(Hub::<u32, u32>::builder().budget(0));
}

/// Panics when it is dropped, if it is the original and not a copy.
struct Bomb(bool);

impl Clone for Bomb {
    fn clone(&self) -> Self {
        Self(false)
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!self.0, "the bomb goes off");
    }
}

/// A sink that takes nothing, and panics when it is dropped.
struct BombSink;

impl Sink<Bomb> for BombSink {
    type Error = std::io::Error;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Pending
    }
    fn start_send(self: Pin<&mut Self>, _: Bomb) -> std::io::Result<()> {
        unreachable!("it is not ready")
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The runtime shuts down, and then something that the hub drops panics: an item that waits for
/// room in an inbox or is not routed yet, or a sink that is attached or waits to be.
#[test]
fn hub_whose_runtime_shuts_down_ends_even_if_a_drop_panics() {
    for (what, is_routed) in
        [("item", true), ("item", false), ("sink", true), ("sink", false), ("both", false)]
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (hub, mut keyless, mut subscription, leases) = runtime.block_on(async {
            let hub = Hub::<_, Bomb>::new();
            let keyless = hub.subscribe_with([], Terms::new());
            let subscription = hub.subscribe_with(["a"], waiting_terms(1));
            settle().await;
            let mut leases = Vec::new();
            if what != "item" {
                leases.push(hub.attach("b", BombSink, Terms::new()));
            }
            if what != "sink" {
                publish(&hub, [Bomb(false), Bomb(true), Bomb(true), Bomb(true)]).await;
            }
            if is_routed {
                settle().await;
            }
            (hub, keyless, subscription, leases)
        });
        drop(runtime);
        assert!(hub.is_closed() && hub.try_publish("a", Bomb(false)).is_err(), "{what}");
        assert_eq!(keyless.end(), Some(End::Aborted), "{what}");
        assert!(keyless.recv().now_or_never().unwrap().is_none());
        while subscription.try_recv().is_some() {}
        assert_eq!(subscription.end(), Some(End::Aborted), "{what}");
        let stats = hub.stats().now_or_never().expect("the hub has ended");
        let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let report = other.block_on(async { hub.shutdown(SECOND).now_or_never() });
        assert_eq!(report.expect("the hub has ended").stats, stats, "{what}");
        assert!(leases.iter().all(stream_demux::Lease::is_empty));
    }
}

/// A key that panics when it is dropped, once, if it is armed.
#[derive(Clone)]
struct BombKey(u32, Arc<AtomicBool>);

impl Hash for BombKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl PartialEq for BombKey {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for BombKey {}

impl Drop for BombKey {
    fn drop(&mut self) {
        assert!(!self.1.swap(false, SeqCst), "the bomb goes off");
    }
}

/// The history refers to the key, or the list of those that the hub may have to wait for does.
#[test]
fn hub_whose_runtime_shuts_down_ends_even_if_the_drop_of_a_key_panics() {
    for is_kept_in_history in [true, false] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let armed = Arc::new(AtomicBool::new(false));
        let hub = runtime.block_on(async {
            let hub = Hub::builder().replay(1).spawn();
            let key = BombKey(1, Arc::clone(&armed));
            if is_kept_in_history {
                assert!(hub.publish(key, 1).await.is_ok());
            } else {
                drop(hub.subscribe_with([key], waiting_terms(1)));
            }
            settle().await;
            hub
        });
        armed.store(true, SeqCst);
        drop(runtime);
        assert!(!armed.load(SeqCst), "a key was dropped");
        let stats = hub.stats().now_or_never().expect("the hub has ended");
        assert_eq!(stats.totals.received, u64::from(is_kept_in_history));
    }
}

/// A key whose hash panics once, when the counter gets to zero.
#[derive(Clone)]
struct CountedKey(Arc<AtomicUsize>);

impl PartialEq for CountedKey {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for CountedKey {}

impl Hash for CountedKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let left = self.0.load(SeqCst);
        if left > 0 {
            self.0.store(left - 1, SeqCst);
            assert!(left > 1, "the hash panics");
        }
        state.write_u8(0);
    }
}

/// The writer that was made is dropped, which takes the lock of the table that was being searched.
#[tokio::test(start_paused = true)]
async fn a_hash_that_panics_when_a_writer_is_attached_keeps_no_lock() {
    let hub = Hub::new();
    let mut panics = 0;
    for hashes in 1.. {
        let left = Arc::new(AtomicUsize::new(hashes));
        let encode = |_: u32, _: &mut Vec<u8>| Ok(());
        let attach = || {
            drop(hub.attach_writer(
                CountedKey(Arc::clone(&left)),
                Vec::new(),
                encode,
                Terms::new(),
            ));
        };
        if catch_unwind(AssertUnwindSafe(attach)).is_ok() {
            break;
        }
        panics += 1;
    }
    assert!(panics >= 2, "a key is looked up before a log is made, and after");
}

#[tokio::test(start_paused = true)]
async fn key_that_reached_its_limit_is_not_subscribed_any_more() {
    let hub = Hub::new();
    for overflow in [Overflow::DropOldest, Overflow::Wait] {
        let terms = Terms::new().limit(2).overflow(overflow);
        let mut two = hub.subscribe_with(["a", "b"], terms);
        assert!(!two.add("a"));
        publish(&hub, 0..3).await;
        assert_eq!((two.recv().await, two.recv().await), (Some(Ok(0)), Some(Ok(1))));
        assert_eq!(two.keys().collect::<Vec<_>>(), [&"b"]);
        assert!(!two.remove(&"a"));

        // It begins anew.
        assert!(two.add("a") && !two.add("a"));
        publish(&hub, 3..6).await;
        assert_eq!((two.recv().await, two.recv().await), (Some(Ok(3)), Some(Ok(4))));
        settle().await;
        assert_eq!((read(&mut two), two.end()), (vec![], None));
        assert!(two.remove(&"b") && two.keys().next().is_none());
        settle().await;
        assert_eq!(two.end(), None, "without keys it waits for the end of the hub");
    }
    assert_eq!(hub.stats().await.receiving, 0);
}

#[tokio::test(start_paused = true)]
async fn key_with_a_limit_of_nothing_is_never_subscribed() {
    let hub = Hub::<_, u32>::new();
    let mut none = hub.subscribe_with(["a"], Terms::new().limit(0));
    assert_eq!((none.keys().count(), none.remove(&"a")), (0, false));
    assert_eq!((none.recv().await, none.end()), (None, Some(End::Closed)));
}

/// A client that asks again and again on one subscription, with a new key for each reply.
#[tokio::test(start_paused = true)]
async fn keys_that_reached_their_limits_take_no_room() {
    let hub = Hub::new();
    let mut replies = hub.subscribe_with([], Terms::new().limit(1));
    for n in 0..1_000 {
        assert!(replies.add(n));
        hub.publish(n, n).await.unwrap();
        assert_eq!(replies.recv().await, Some(Ok(n)));
        assert_eq!(replies.keys().count(), 0);
    }
    let debug = format!("{replies:?}");
    assert!(debug.contains("keys: []"), "{debug}");
}

#[tokio::test(start_paused = true)]
async fn shutdown_names_all_that_hang() {
    let hub = Hub::new();
    let wait = |key, tag| hub.subscribe_with([key], waiting_terms(1).tag(tag));
    let stuck = [wait("a", 1), wait("a", 2), wait("b", 3)];
    let (sink, handle) = scripted_sink("c");
    handle.park();
    let terms = waiting_terms(8).tag(4);
    let _lease = hub.attach("c", Never(sink), terms);
    // These do not hang: the first has room for more, and the second gets no more.
    let with_room = hub.subscribe_with(["b"], waiting_terms(9).tag(5));
    let full = hub.subscribe_with(["d"], waiting_terms(1).tag(6));
    let never_waited_for = hub.subscribe_with(["b"], Terms::new().buffer(1).tag(7));
    for (key, item) in [("d", 0), ("c", 0), ("b", 0), ("a", 0), ("a", 1), ("b", 1)] {
        hub.publish(key, item).await.unwrap();
    }
    let report = hub.shutdown(SECOND).await;
    let mut hung = report.hung.iter().map(|member| (member.key, member.tag)).collect::<Vec<_>>();
    hung.sort_unstable();
    assert_eq!(hung, [("a", 1), ("a", 2), ("b", 3), ("c", 4)]);
    assert_eq!(hub.shutdown(SECOND).await, report);
    drop((stuck, with_room, full, never_waited_for));
}

#[tokio::test(start_paused = true)]
async fn subscribers_of_a_key_are_counted() {
    let hub = Hub::new();
    let mut one = hub.subscribe("a");
    let mut two = hub.subscribe_with(["a", "b"], Terms::new().limit(1));
    let next = hub.next("a");
    let (sink, _handle) = scripted_sink("a");
    let lease = hub.attach("a", Never(sink), Terms::new());
    assert_eq!((hub.subscribers(&"a").await, hub.subscribers(&"b").await), (4, 1));
    assert_eq!(hub.subscribers(&"c").await, 0);

    drop(lease);
    assert_eq!(hub.subscribers(&"a").await, 3);
    publish(&hub, [1]).await; // which is all that two of them want
    assert_eq!(next.await, Some(1));
    assert_eq!((hub.subscribers(&"a").await, hub.subscribers(&"b").await), (1, 1));
    assert!(two.add("a") && one.remove(&"a"));
    assert_eq!(hub.subscribers(&"a").await, 1);
    drop(two);
    assert_eq!((hub.subscribers(&"a").await, hub.subscribers(&"b").await), (0, 0));

    assert!(one.add("a"));
    hub.shutdown(SECOND).await;
    assert_eq!(hub.subscribers(&"a").await, 0);
}

/// The hub waits for further items before it wakes many readers, but not for many turns.
#[tokio::test(start_paused = true)]
async fn readers_are_woken_in_time_while_other_tasks_compute() {
    const TURN: Duration = Duration::from_millis(10);

    let hub = Hub::new();
    let mut readers: Vec<_> = (0..100).map(|key| hub.subscribe(key)).collect();
    for reader in &mut readers {
        assert!(reader.recv().now_or_never().is_none());
    }
    settle().await;
    let computing = compute_in_each_turn(TURN);
    // As a task, it takes turns with the others.
    let reading = tokio::spawn(async move {
        let begin = Instant::now();
        for key in 0..100 {
            hub.try_publish(key, key).unwrap();
        }
        for reader in &mut readers {
            assert!(reader.recv().await.is_some());
        }
        begin.elapsed()
    });
    let time = reading.await.unwrap();
    assert!(time <= 4 * TURN, "after {time:?}");
    computing.abort();
}

/// Counted in items, without a clock: how much a hub that is never idle publishes between an item
/// of a quiet key and the wake of its subscriber.
#[tokio::test(start_paused = true)]
async fn quiet_subscriber_is_woken_after_a_number_of_items() {
    async fn items_before_the_wake(flush_every: Option<usize>) -> u64 {
        let read = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&read);
        // An input that always has an item. The others wait for a flush, too, so that it is not
        // paid for at once.
        let busy = stream::iter(1_u64..).map(move |n| {
            count.store(n, SeqCst);
            (n % 1_000 + 1, n)
        });
        let builder = Hub::builder().budget(16).input(busy);
        let hub = match flush_every {
            Some(items) => builder.flush_every(items).spawn(),
            None => builder.spawn(),
        };
        let _busy = (1..=1_000).map(|key| hub.subscribe(key)).collect::<Vec<_>>();
        let mut quiet = hub.subscribe(0);
        assert!(quiet.recv().now_or_never().is_none());
        // The others are asleep, and hold back what they get.
        settle().await;
        let before = read.load(SeqCst);
        hub.publish(0, 0).await.unwrap();
        assert_eq!(quiet.recv().await, Some(Ok(0)));
        read.load(SeqCst) - before
    }
    let by_default = items_before_the_wake(None).await;
    let often = items_before_the_wake(Some(64)).await;
    assert!(often < 1_000 && often < by_default, "{often}, {by_default} by default");
}

#[test]
#[should_panic(expected = "`flush_every` must be at least 1 item")]
fn flush_after_no_items_is_refused_where_it_is_set() {
    drop(Hub::<u32, u32>::builder().flush_every(0));
}

#[tokio::test(start_paused = true)]
async fn latest_item_of_each_key_waits_in_the_order_of_their_first_change() {
    let hub = Hub::new();
    let terms = Terms::new().overflow(Overflow::Conflate);
    let mut prices = hub.subscribe_with(["tea", "coffee", "juice"], terms);
    let changes = [("tea", 1), ("coffee", 2), ("tea", 3), ("juice", 4), ("tea", 5), ("juice", 6)];
    for (key, price) in changes {
        hub.publish(key, price).await.unwrap();
    }
    settle().await;
    assert_eq!((prices.len(), prices.lost(), hub.stats().await.lost), (3, 3, 3));
    assert_eq!(read(&mut prices), [Err(2), Ok(5), Ok(2), Err(1), Ok(6)]);

    // What was read is not replaced.
    hub.publish("coffee", 7).await.unwrap();
    settle().await;
    assert_eq!(prices.recv().await, Some(Ok(7)));
    assert!(prices.recv().now_or_never().is_none());
    for price in 8..20 {
        hub.publish("coffee", price).await.unwrap();
    }
    assert_eq!(prices.recv().await, Some(Err(Lagged(11))));
    assert_eq!(prices.recv().await, Some(Ok(19)));

    // There are no more than the buffer holds.
    let mut two = hub.subscribe_with(["a", "b", "c"], terms.buffer(2));
    for (key, price) in [("a", 1), ("b", 2), ("b", 3), ("c", 4), ("b", 5), ("a", 6)] {
        hub.publish(key, price).await.unwrap();
    }
    settle().await;
    assert_eq!(read(&mut two), [Err(4), Ok(4), Ok(6)]);
    assert_eq!(two.lost(), 4);
}

/// Against a model: many keys, of which some come and go.
#[tokio::test(start_paused = true)]
async fn latest_items_agree_with_a_model() {
    for seed in 0..200 {
        let mut dice = Dice::new(seed);
        let hub = Hub::builder().budget(1 + dice.index(8)).spawn();
        let terms = Terms::new().overflow(Overflow::Conflate);
        let mut subscription = hub.subscribe_with(0..8, terms);
        // What waits: a key, its item, and how many are missing before it.
        let mut model = Vec::<(usize, usize, u64)>::new();
        for n in 0..200 {
            if dice.index(10) == 0 {
                settle().await;
                let mut expected = Vec::new();
                for (_, item, lost) in model.drain(..) {
                    expected.extend((lost > 0).then_some(Err(lost)));
                    expected.push(Ok(item));
                }
                assert_eq!(read(&mut subscription), expected, "seed {seed}");
                if dice.index(2) == 0 {
                    assert!(subscription.recv().now_or_never().is_none());
                }
                let key = dice.index(8);
                assert!(subscription.remove(&key) && subscription.add(key));
            }
            let key = dice.index(8);
            hub.publish(key, n).await.unwrap();
            match model.iter_mut().find(|(known, _, _)| *known == key) {
                Some((_, item, lost)) => {
                    *item = n;
                    *lost += 1;
                }
                None => model.push((key, n, 0)),
            }
        }
    }
}

/// An item gives its room back when it is routed, not when the hub takes all that were published.
#[tokio::test(start_paused = true)]
async fn no_more_items_wait_than_there_is_room_for() {
    let hub = Hub::builder().capacity(8).spawn();
    let mut slow = hub.subscribe_with(["a"], waiting_terms(1));
    publish(&hub, 0..8).await;
    settle().await;
    // The first is in the inbox, and the second waits for room there. Six are not routed.
    assert_eq!(hub.stats().await.waiting, 6);
    let more = (8..20).take_while(|&n| hub.try_publish("a", n).is_ok()).count();
    assert_eq!((more, hub.stats().await.waiting), (2, 8));
    for n in 0..10 {
        assert_eq!(slow.recv().await, Some(Ok(n)));
    }
    settle().await;
    assert_eq!((0..20).take_while(|&n| hub.try_publish("b", n).is_ok()).count(), 8);
}
