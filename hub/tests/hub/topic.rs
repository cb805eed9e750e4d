//! A topic against a model that knows what each reader has to get; and single situations.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::Poll;

use futures::future::poll_fn;
use futures::{FutureExt, Sink, SinkExt, StreamExt};
use sink_test::{Rule, SinkCheck, Task};
use stream_demux_hub::{End, Hub, Lagged, Terms, TopicClosed, TopicReader, TopicSink, topic};

use crate::common::Dice;

/// What a reader gets: an item, or how many are missing.
type Entry = Result<u64, u64>;

fn entry<T>(next: Option<Result<T, Lagged>>) -> Option<Result<T, u64>> {
    next.map(|next| next.map_err(|Lagged(lost)| lost))
}

/// The items and losses that can be read now.
fn read_all<T: Clone>(reader: &mut TopicReader<T>) -> Vec<Result<T, u64>> {
    std::iter::from_fn(|| entry(reader.try_recv())).collect()
}

/// Sends an item as a demux does: polls again when the sink has woken itself. Returns how often.
fn send<T>(sink: &mut TopicSink<T>, item: T) -> Result<u32, TopicClosed> {
    let mut turns = 0;
    let mut task = Task::new(poll_fn(|cx| Pin::new(&mut *sink).poll_ready(cx)));
    loop {
        match task.poll() {
            Poll::Ready(answer) => break answer?,
            Poll::Pending => assert!(task.woken(), "it never waits"),
        }
        turns += 1;
    }
    drop(task);
    sink.start_send_unpin(item).map(|()| turns)
}

fn flush<T>(sink: &mut TopicSink<T>) {
    assert_eq!(sink.flush().now_or_never(), Some(Ok(())));
}

/// The specification of a reader. Item `n` is at position `n`.
#[derive(Default)]
struct Model {
    cursor: u64,
    /// What it took and has not returned.
    taken: VecDeque<Entry>,
    is_asleep: bool,
    lost: u64,
}

impl Model {
    fn read(&mut self, end: u64, capacity: u64, sleeps: bool) -> Option<Entry> {
        if self.taken.is_empty() && !self.is_asleep {
            let lost = (end - self.cursor).saturating_sub(capacity);
            if lost > 0 {
                self.taken.push_back(Err(lost));
            }
            self.taken.extend((self.cursor + lost..end).map(Ok));
            self.lost += lost;
            self.is_asleep = sleeps && self.cursor == end;
            self.cursor = end;
        }
        self.taken.pop_front()
    }
}

/// A topic with its readers, and what it must do.
struct World {
    seed: u64,
    capacity: u64,
    sink: Option<TopicSink<u64>>,
    readers: Vec<(TopicReader<u64>, Model)>,
    /// How many items were sent.
    end: u64,
    /// How many since the sleepers were woken, and whether one of them slept then.
    unflushed: u64,
    owes_wake: bool,
}

impl World {
    fn send(&mut self) {
        let Some(sink) = &mut self.sink else { return };
        let sent = send(sink, self.end);
        assert_eq!(sent.is_err(), self.readers.is_empty(), "seed {}", self.seed);
        if sent.is_err() {
            return;
        }
        self.end += 1;
        if self.readers.iter().any(|(_, model)| model.is_asleep) {
            self.unflushed += 1;
            self.owes_wake = true;
            if self.unflushed >= self.capacity.div_ceil(2) {
                self.rouse();
            }
        }
    }

    fn rouse(&mut self) {
        for (_, model) in &mut self.readers {
            model.is_asleep = false;
        }
        self.unflushed = 0;
        self.owes_wake = false;
    }

    fn flush(&mut self) {
        let Some(sink) = &mut self.sink else { return };
        flush(sink);
        if self.owes_wake {
            self.rouse();
        }
    }

    fn end(&mut self, is_closed: bool) {
        let Some(mut sink) = self.sink.take() else { return };
        if is_closed {
            assert_eq!(sink.close().now_or_never(), Some(Ok(())));
        }
        drop(sink);
        self.rouse();
    }

    fn join(&mut self) {
        let reader = match (self.readers.first(), &self.sink) {
            (Some((reader, _)), _) => reader.subscribe(),
            (None, Some(sink)) => sink.subscribe(),
            (None, None) => return,
        };
        self.readers.push((reader, Model { cursor: self.end, ..Model::default() }));
    }

    fn leave(&mut self, dice: &mut Dice) {
        if !self.readers.is_empty() {
            drop(self.readers.swap_remove(dice.index(self.readers.len())));
        }
    }

    /// One of the readers reads in one of the ways that there are.
    fn read(&mut self, dice: &mut Dice) {
        if self.readers.is_empty() {
            return;
        }
        let (seed, end, capacity) = (self.seed, self.end, self.capacity);
        let index = dice.index(self.readers.len());
        let (reader, model) = &mut self.readers[index];
        match dice.index(3) {
            0 => {
                let mut buffer = Vec::new();
                let limit = dice.index(8);
                let count = reader.recv_many(&mut buffer, limit).now_or_never();
                assert!(count.is_none_or(|count| count == buffer.len() && count <= limit));
                for next in buffer {
                    assert_eq!(entry(Some(next)), model.read(end, capacity, false), "seed {seed}");
                }
                model.is_asleep |= count.is_none();
            }
            1 => {
                let next = entry(reader.next().now_or_never().flatten());
                let expected = model.read(end, capacity, self.sink.is_some());
                assert_eq!(next, expected, "seed {seed}");
            }
            _ => {
                for _ in 0..dice.index(4) {
                    let expected = model.read(end, capacity, false);
                    assert_eq!(entry(reader.try_recv()), expected, "seed {seed}");
                }
            }
        }
        let come = if model.is_asleep { 0 } else { (end - model.cursor).min(capacity) };
        let taken = model.taken.iter().filter(|entry| entry.is_ok()).count();
        assert_eq!(reader.len() as u64, come + taken as u64, "seed {seed}");
        let lost = (end - model.cursor).saturating_sub(capacity);
        assert_eq!(reader.lost(), model.lost + lost, "seed {seed}");
    }

    /// All that are left read to the end.
    fn finish(&mut self) {
        for (reader, model) in &mut self.readers {
            loop {
                let next = entry(reader.recv().now_or_never().expect("the topic has ended"));
                assert_eq!(next, model.read(self.end, self.capacity, false), "seed {}", self.seed);
                if next.is_none() {
                    break;
                }
            }
            assert!(reader.end().is_some());
        }
    }
}

#[test]
fn each_reader_gets_all_and_is_told_exactly_what_is_missing() {
    for seed in 0..3_000 {
        let mut dice = Dice::new(seed);
        let bits = 1 + dice.index(6);
        let capacity = 1 + dice.index(1 << bits);
        let (sink, first) = topic(capacity);
        let mut world = World {
            seed,
            capacity: capacity as u64,
            sink: Some(sink),
            readers: vec![(first, Model::default())],
            end: 0,
            unflushed: 0,
            owes_wake: false,
        };
        // In some programs nearly all is sending, in some there are many readers.
        let busy = dice.index(12);
        let many = 2 + 3 * dice.index(3);
        for _ in 0..150 {
            match dice.index(10 + busy) {
                0 => world.flush(),
                1 if dice.index(3) == 0 => world.leave(&mut dice),
                1 | 2 if world.readers.len() < many => world.join(),
                3 if dice.index(30) == 0 => world.end(dice.index(2) == 0),
                1..=6 => world.read(&mut dice),
                _ => world.send(),
            }
        }
        world.end(true);
        world.finish();
    }
}

#[test]
fn sink_of_a_topic_keeps_the_contract() {
    let receive =
        |reader: &mut Option<TopicReader<usize>>| reader.as_mut()?.try_recv().and_then(Result::ok);
    let make = |capacity| {
        move || {
            let (sink, reader) = topic(capacity);
            (sink, Some(reader))
        }
    };
    SinkCheck::new(make(10_000), |n| n, receive)
        .unbounded()
        .disconnect(|reader| drop(reader.take()))
        .closed(|reader| reader.as_ref().is_none_or(|reader| reader.end() == Some(End::Closed)))
        .run();
    // A full one drops the oldest, as it must.
    for capacity in [1, 3, 8] {
        SinkCheck::new(make(capacity), |n| n, receive)
            .unbounded()
            .disconnect(|reader| drop(reader.take()))
            .except(Rule::Delivers)
            .except(Rule::Room)
            .run();
    }
}

#[test]
fn ends_of_a_topic_may_be_in_different_threads() {
    fn check<T: Send + Sync + Unpin>() {}
    check::<TopicSink<Arc<str>>>();
    check::<TopicReader<Arc<str>>>();
}

#[test]
fn readers_are_woken_once_for_a_burst() {
    let (mut sink, reader) = topic(64);
    let readers = [reader.subscribe(), reader.subscribe()];
    drop(reader);
    let mut readers = readers.map(|mut reader| {
        Task::new(async move {
            let mut items = Vec::new();
            reader.recv_many(&mut items, 64).await;
            items.len()
        })
    });
    assert!(readers.iter_mut().all(|reader| reader.run().is_pending()));
    for n in 0..3 {
        assert_eq!(send(&mut sink, n), Ok(0));
        assert!(!readers.iter().any(Task::woken));
    }
    // Polled for another reason, it does not take half of the burst.
    readers[0].renew_waker();
    assert!(readers[0].poll().is_pending());
    flush(&mut sink);
    for reader in &mut readers {
        assert_eq!((reader.wakes(), reader.stale_wakes()), (1, 0));
        assert_eq!(reader.run(), Poll::Ready(3));
    }
}

#[test]
fn readers_of_a_half_full_topic_are_woken_without_a_flush() {
    let (mut sink, mut reader) = topic(5);
    let mut reader = Task::new(async move { reader.recv().await });
    assert!(reader.run().is_pending());
    for n in 0..3 {
        assert!(!reader.woken());
        assert_eq!(send(&mut sink, n), Ok(0));
    }
    assert!(reader.woken());
    assert_eq!(reader.run(), Poll::Ready(Some(Ok(0))));
}

#[test]
fn reader_that_does_not_wait_sees_items_before_they_are_flushed() {
    let (mut sink, mut reader) = topic(64);
    assert_eq!(send(&mut sink, 1), Ok(0));
    assert_eq!(read_all(&mut reader), [Ok(1)]);
    assert!(reader.recv().now_or_never().is_none());
    assert_eq!(send(&mut sink, 2), Ok(0));
    assert_eq!((reader.try_recv(), reader.is_empty()), (None, true));
    flush(&mut sink);
    assert_eq!((reader.len(), read_all(&mut reader)), (1, vec![Ok(2)]));
}

#[test]
fn slow_readers_get_a_few_turns_before_they_lose_items() {
    let (mut sink, mut slow) = topic(4);
    let mut slower = slow.subscribe();
    assert_eq!((0..4).map(|n| send(&mut sink, n)).collect::<Vec<_>>(), [Ok(0); 4]);
    let mut ready = Task::new(poll_fn(|cx| sink.poll_ready_unpin(cx)));
    assert!(ready.poll().is_pending() && ready.woken());
    // One of two uses its turn. The other gets the rest of its turns, and is not waited for again.
    assert_eq!(read_all(&mut slow), [Ok(0), Ok(1), Ok(2), Ok(3)]);
    drop(ready);
    let turns = (4..40).map(|n| {
        let turns = send(&mut sink, n).unwrap();
        assert_eq!(slow.try_recv(), Some(Ok(n)));
        turns
    });
    assert_eq!(turns.sum::<u32>(), 3);
    assert_eq!((slower.lost(), slow.lost()), (36, 0));
    assert_eq!(read_all(&mut slower), [Err(36), Ok(36), Ok(37), Ok(38), Ok(39)]);
    // It has read, so it is waited for.
    assert_eq!((40..45).map(|n| send(&mut sink, n).unwrap()).sum::<u32>(), 4);
}

#[test]
fn memory_is_bounded_by_the_capacity() {
    let token = Arc::new(());
    for capacity in [1, 2, 7, 64, 1_000] {
        let (mut sink, mut quick) = topic(capacity);
        let mut never_read = (0..10).map(|_| quick.subscribe()).collect::<Vec<_>>();
        for n in 0..5_000 {
            send(&mut sink, Arc::clone(&token)).unwrap();
            if n % 3 == 0 {
                while quick.try_recv().is_some() {}
            }
            let kept = Arc::strong_count(&token) - 1;
            assert!(kept <= capacity + (capacity / 4).max(1) + 3, "{kept} of {capacity}");
        }
        assert!(quick.lost() == 0 || capacity < 3);
        never_read.truncate(1);
        assert!(Arc::strong_count(&token) > capacity);
        drop(never_read);
        while quick.try_recv().is_some() {}
        assert!(Arc::strong_count(&token) <= 2, "the last reader has everything");
        drop(quick);
        assert_eq!(Arc::strong_count(&token), 1);
        assert_eq!(send(&mut sink, Arc::clone(&token)), Err(TopicClosed));
        assert_eq!(Arc::strong_count(&token), 1);
    }
}

/// Counts its clones.
struct Counted(Arc<AtomicUsize>);

impl Clone for Counted {
    fn clone(&self) -> Self {
        self.0.fetch_add(1, SeqCst);
        Self(Arc::clone(&self.0))
    }
}

#[test]
fn last_reader_of_an_item_gets_it_without_a_clone() {
    let clones = Arc::new(AtomicUsize::new(0));
    let (mut sink, mut one) = topic(16);
    let mut two = one.subscribe();
    for _ in 0..10 {
        send(&mut sink, Counted(Arc::clone(&clones))).ok().unwrap();
    }
    assert_eq!(read_all(&mut one).len(), 10);
    assert_eq!(clones.load(SeqCst), 10);
    // The first one lets go of what it has read when it looks for more.
    assert_eq!(read_all(&mut two).len(), 10);
    assert_eq!(clones.load(SeqCst), 10);
}

#[test]
fn topic_ends_as_its_sink_does() {
    type Act = fn(TopicSink<u64>);
    let ends: [(Act, End); 2] = [
        (|mut sink| assert_eq!(sink.close().now_or_never(), Some(Ok(()))), End::Closed),
        (drop, End::Aborted),
    ];
    for (end, why) in ends {
        let (mut sink, mut reader) = topic(16);
        let mut sleeper = reader.subscribe();
        let mut sleeper = Task::new(async { (sleeper.recv().await, sleeper.recv().await) });
        assert!(sleeper.run().is_pending());
        send(&mut sink, 1).unwrap();
        end(sink);
        assert!(sleeper.woken());
        assert_eq!(sleeper.run(), Poll::Ready((Some(Ok(1)), None)));
        let mut late = reader.subscribe();
        assert_eq!((late.recv().now_or_never(), late.end()), (Some(None), Some(why)));
        assert_eq!((read_all(&mut reader), reader.end()), (vec![Ok(1)], Some(why)));
        assert_eq!(reader.next().now_or_never(), Some(None));
    }
}

#[test]
fn reader_that_leaves_while_it_sleeps_is_forgotten() {
    let (mut sink, mut stays) = topic(16);
    let mut leaves = stays.subscribe();
    let mut waiting = Task::new(poll_fn(|cx| leaves.poll_recv(cx)));
    assert!(waiting.run().is_pending());
    drop(waiting);
    drop(leaves);
    let mut waiting = Task::new(stays.recv());
    assert!(waiting.run().is_pending());
    send(&mut sink, 1).unwrap();
    flush(&mut sink);
    assert_eq!((waiting.total_wakes(), waiting.run()), (1, Poll::Ready(Some(Ok(1)))));
    drop(waiting);
    assert_eq!(sink.readers(), 1);
    let debug = format!("{sink:?} {stays:?}");
    assert!(debug.contains("readers: 1") && debug.contains("capacity: 16"), "{debug}");
}

/// An item whose clone or drop panics as long as it is set to.
struct Bomb {
    n: u64,
    panics: Arc<AtomicBool>,
}

impl Clone for Bomb {
    fn clone(&self) -> Self {
        assert!(!self.panics.load(SeqCst) || self.n % 2 == 0, "the clone of a bomb");
        Self { n: self.n, panics: Arc::default() }
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        let is_armed = self.panics.swap(false, SeqCst);
        assert!(!is_armed || std::thread::panicking(), "the drop of a bomb");
    }
}

fn numbers(reader: &mut TopicReader<Bomb>) -> Vec<Result<u64, u64>> {
    let all = std::iter::from_fn(|| entry(reader.try_recv()));
    all.map(|next| next.map(|bomb| bomb.n)).collect()
}

#[test]
fn panic_of_a_clone_loses_nothing_and_concerns_no_other() {
    let panics = Arc::new(AtomicBool::new(false));
    let (mut sink, mut one) = topic(16);
    let mut two = one.subscribe();
    for n in 0..4 {
        send(&mut sink, Bomb { n, panics: Arc::clone(&panics) }).ok().unwrap();
    }
    panics.store(true, SeqCst);
    assert!(matches!(one.try_recv(), Some(Ok(Bomb { n: 0, .. }))));
    for _ in 0..2 {
        assert!(catch_unwind(AssertUnwindSafe(|| one.try_recv().is_some())).is_err());
    }
    assert_eq!(one.len(), 3);
    panics.store(false, SeqCst);
    assert_eq!(numbers(&mut two), [Ok(0), Ok(1), Ok(2), Ok(3)]);
    assert_eq!(numbers(&mut one), [Ok(1), Ok(2), Ok(3)]);
    send(&mut sink, Bomb { n: 4, panics }).ok().unwrap();
    assert_eq!((numbers(&mut one), numbers(&mut two)), (vec![Ok(4)], vec![Ok(4)]));
}

/// The items that a slow reader loses are dropped by the sink, by a reader that takes them without
/// a clone, or when a reader leaves.
#[test]
fn panic_of_a_drop_concerns_no_other() {
    let panics = Arc::new(AtomicBool::new(false));
    let bomb = |n| Bomb { n, panics: Arc::clone(&panics) };
    let (mut sink, mut slow) = topic(8);
    let mut other = slow.subscribe();
    (0..8).for_each(|n| assert_eq!(send(&mut sink, bomb(n)), Ok(0)));
    assert_eq!(numbers(&mut other).len(), 8);
    let mut sleeper = Task::new(other.recv());
    assert!(sleeper.run().is_pending());

    // The sink: 8 is stored all the same, and 9 fills the segment and drops that of 0 and 1.
    assert_eq!(send(&mut sink, bomb(8)), Ok(4));
    panics.store(true, SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| send(&mut sink, bomb(9)))).is_err());
    assert!(!panics.load(SeqCst), "a bomb went off");
    flush(&mut sink);
    assert!(sleeper.woken());
    assert!(matches!(sleeper.run(), Poll::Ready(Some(Ok(Bomb { n: 8, .. })))));
    drop(sleeper);
    assert_eq!(numbers(&mut other), [Ok(9)]);

    // The reader: 2 is lost, and 3 is not.
    assert_eq!(send(&mut sink, bomb(10)), Ok(0));
    assert_eq!(numbers(&mut other), [Ok(10)]);
    assert_eq!(entry(slow.try_recv()).map(Result::err), Some(Some(3)));
    panics.store(true, SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| slow.try_recv().is_some())).is_err());
    assert_eq!(numbers(&mut slow), (3..=10).map(Ok).collect::<Vec<_>>());

    // A reader that leaves with all there is.
    assert_eq!(send(&mut sink, bomb(11)), Ok(0));
    assert_eq!(numbers(&mut other), [Ok(11)]);
    panics.store(true, SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(slow))).is_err());
    assert_eq!((sink.readers(), send(&mut sink, bomb(12))), (1, Ok(0)));
    assert_eq!(numbers(&mut other), [Ok(12)]);
}

/// The items of a key of a hub are stored once for all readers of a topic.
#[tokio::test]
async fn topic_at_a_key_of_a_hub() {
    let hub = Hub::new();
    let (sink, mut one) = topic(16);
    let lease = hub.attach("a", sink, Terms::new());
    let mut two = one.subscribe();
    for n in 0..10 {
        hub.publish("a", n).await.unwrap();
    }
    for n in 0..10 {
        assert_eq!((one.recv().await, two.recv().await), (Some(Ok(n)), Some(Ok(n))));
    }
    let stats = hub.stats().await;
    assert_eq!((stats.totals.delivered, stats.totals.copies, stats.receiving), (10, 0, 1));
    // The last reader has gone: the key is free with the next item.
    drop((one, two));
    hub.publish("a", 10).await.unwrap();
    assert_eq!(hub.subscribers(&"a").await, 0);
    assert!(lease.is_empty());

    let (sink, mut reader) = topic(16);
    let _lease = hub.attach("a", sink, Terms::new());
    hub.publish("a", 11).await.unwrap();
    hub.shutdown(std::time::Duration::from_secs(1)).await;
    assert_eq!((read_all(&mut reader), reader.end()), (vec![Ok(11)], Some(End::Closed)));
}
