//! An inbox against a model that keeps each item and each loss in a list; and single situations.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use futures::future::{join, poll_fn};
use futures::{FutureExt, Sink, SinkExt, StreamExt};
use sink_test::Task;
use stream_demux_hub::{End, InboxError, InboxSink, Lagged, Overflow, inbox};

use crate::common::Dice;

const POLICIES: [Overflow; 5] = [
    Overflow::Wait,
    Overflow::DropNewest,
    Overflow::DropOldest,
    Overflow::Evict,
    Overflow::Conflate,
];

/// What a reader gets: an item, or how many are missing.
type Entry = Result<u64, u64>;

/// The specification: the entries that the reader has not seen, oldest first.
#[derive(Default)]
struct Model {
    /// What the reader took and has not returned. It takes up no room.
    taken: VecDeque<Entry>,
    waiting: VecDeque<Entry>,
    is_evicted: bool,
    /// How many were accepted, received, and told to be lost.
    sent: u64,
    received: u64,
    told: u64,
}

impl Model {
    fn count(&self) -> usize {
        self.waiting.iter().filter(|entry| entry.is_ok()).count()
    }

    fn lose(&mut self, at: usize) {
        self.waiting[at] = Err(1);
        let mut merged = VecDeque::<Entry>::new();
        for entry in self.waiting.drain(..) {
            match (merged.back_mut(), entry) {
                (Some(Err(lost)), Err(more)) => *lost += more,
                _ => merged.push_back(entry),
            }
        }
        self.waiting = merged;
    }

    /// An item that the sink has accepted.
    fn send(&mut self, n: u64, capacity: usize, full: Overflow) {
        self.sent += 1;
        let is_full = self.count() == capacity;
        self.waiting.push_back(Ok(n));
        match full {
            Overflow::DropNewest if is_full => self.lose(self.waiting.len() - 1),
            Overflow::DropOldest | Overflow::Conflate if is_full => {
                let oldest = self.waiting.iter().position(Result::is_ok);
                self.lose(oldest.expect("there are as many as there is room for"));
            }
            _ => assert!(!is_full, "{full:?} accepted an item without room"),
        }
    }

    fn read(&mut self) -> Option<Entry> {
        if self.taken.is_empty() {
            std::mem::swap(&mut self.taken, &mut self.waiting);
        }
        let entry = self.taken.pop_front()?;
        match entry {
            Ok(_) => self.received += 1,
            Err(lost) => self.told += lost,
        }
        Some(entry)
    }
}

/// Sends an item if the sink takes it, polling again when it has woken itself, as a demux does.
fn try_send(sink: &mut InboxSink<u64>, n: u64) -> Result<bool, InboxError> {
    let mut task = Task::new(poll_fn(|cx| Pin::new(&mut *sink).poll_ready(cx)));
    match task.run() {
        Poll::Ready(Ok(())) => drop(task),
        Poll::Ready(Err(error)) => return Err(error),
        Poll::Pending => return Ok(false),
    }
    Pin::new(sink).start_send(n).map(|()| true)
}

fn flush_all(sinks: &mut [InboxSink<u64>]) {
    for sink in sinks {
        assert_eq!(sink.flush().now_or_never(), Some(Ok(())));
    }
}

fn entry(next: Option<Result<u64, Lagged>>) -> Option<Entry> {
    next.map(|next| next.map_err(|Lagged(lost)| lost))
}

#[test]
fn what_is_received_and_what_is_told_is_what_was_sent() {
    for seed in 0..2_000 {
        let mut dice = Dice::new(seed);
        let full = POLICIES[dice.index(5)];
        let capacity = if full == Overflow::Conflate { 1 } else { 1 + dice.index(5) };
        let (sink, mut inbox) = inbox(capacity, full);
        let mut sinks = vec![sink];
        let mut model = Model::default();
        for n in 0..200 {
            match dice.index(12) {
                0..=5 if !sinks.is_empty() => {
                    let which = dice.index(sinks.len());
                    let answer = try_send(&mut sinks[which], n);
                    let expected = match full {
                        _ if model.is_evicted => Err(InboxError::Overflowed),
                        Overflow::Evict if model.count() == capacity => Err(InboxError::Overflowed),
                        Overflow::Wait => Ok(model.count() < capacity),
                        _ => Ok(true),
                    };
                    assert_eq!(answer, expected, "seed {seed}, {full:?}");
                    model.is_evicted |= answer.is_err();
                    if answer == Ok(true) {
                        model.send(n, capacity, full);
                    }
                }
                6 if sinks.len() < 4 => {
                    // What was sent before must not come after items of the new sink.
                    flush_all(&mut sinks);
                    sinks.push(inbox.sink());
                }
                7 if !sinks.is_empty() => drop(sinks.swap_remove(dice.index(sinks.len()))),
                8 => {
                    flush_all(&mut sinks);
                    // A reader that takes all there is.
                    let mut buffer = Vec::new();
                    let limit = dice.index(8);
                    let taken = inbox.recv_many(&mut buffer, limit).now_or_never();
                    assert!(taken.is_none_or(|taken| taken == buffer.len() && taken <= limit));
                    for next in buffer {
                        assert_eq!(entry(Some(next)), model.read(), "seed {seed}, {full:?}");
                    }
                }
                9 => {
                    flush_all(&mut sinks);
                    let next = inbox.next().now_or_never().flatten();
                    assert_eq!(entry(next), model.read(), "seed {seed}, {full:?}");
                }
                _ => {
                    flush_all(&mut sinks);
                    assert_eq!(entry(inbox.try_recv()), model.read(), "seed {seed}, {full:?}");
                }
            }
        }
        flush_all(&mut sinks);
        while let Some(next) = inbox.try_recv() {
            assert_eq!(entry(Some(next)), model.read(), "seed {seed}, {full:?}");
        }
        assert_eq!(model.read(), None);
        assert_eq!(model.received + model.told, model.sent);
        assert_eq!(model.told, inbox.lost());
    }
}

/// The items and losses that can be read now.
fn read_all<T>(inbox: &mut stream_demux_hub::Inbox<T>) -> Vec<Result<T, u64>> {
    let all = std::iter::from_fn(|| inbox.try_recv());
    all.map(|next| next.map_err(|Lagged(lost)| lost)).collect()
}

#[test]
fn reader_is_woken_once_for_a_batch() {
    let (mut sink, mut inbox) = inbox(64, Overflow::Wait);
    let mut reader = Task::new(async move {
        let mut items = Vec::new();
        inbox.recv_many(&mut items, 64).await;
        items.len()
    });
    assert!(reader.run().is_pending());
    for n in 0..3 {
        sink.feed(n).now_or_never().unwrap().unwrap();
        assert!(!reader.woken());
    }
    sink.flush().now_or_never().unwrap().unwrap();
    assert_eq!(reader.wakes(), 1);
    sink.flush().now_or_never().unwrap().unwrap();
    assert_eq!(reader.total_wakes(), 1);
    assert_eq!(reader.run(), Poll::Ready(3));
}

#[test]
fn reader_of_a_half_full_inbox_is_woken_without_a_flush() {
    let (mut sink, mut inbox) = inbox(5, Overflow::DropOldest);
    let mut reader = Task::new(async move { inbox.recv().await });
    assert!(reader.run().is_pending());
    sink.feed(1).now_or_never().unwrap().unwrap();
    sink.feed(2).now_or_never().unwrap().unwrap();
    assert!(!reader.woken());
    sink.feed(3).now_or_never().unwrap().unwrap();
    assert!(reader.woken());
    sink.flush().now_or_never().unwrap().unwrap();
    assert_eq!(reader.wakes(), 1);
}

#[test]
fn reader_that_does_not_wait_sees_items_before_they_are_flushed() {
    let (mut sink, mut inbox) = inbox(64, Overflow::Wait);
    sink.feed(1).now_or_never().unwrap().unwrap();
    assert_eq!(inbox.try_recv(), Some(Ok(1)));
}

#[test]
fn reader_that_has_waited_sees_items_when_they_are_flushed() {
    let (mut sink, mut inbox) = inbox(64, Overflow::Wait);
    assert!(inbox.recv().now_or_never().is_none());
    sink.feed(1).now_or_never().unwrap().unwrap();
    assert_eq!(inbox.try_recv(), None);
    sink.flush().now_or_never().unwrap().unwrap();
    assert_eq!(inbox.try_recv(), Some(Ok(1)));
}

#[test]
fn items_of_several_sinks_keep_their_order() {
    let (mut one, mut inbox) = inbox(64, Overflow::Wait);
    let mut other = one.clone();
    assert!(inbox.recv().now_or_never().is_none());
    for n in 0..10 {
        let sink = if n % 3 == 0 { &mut one } else { &mut other };
        sink.feed(n).now_or_never().unwrap().unwrap();
    }
    other.flush().now_or_never().unwrap().unwrap();
    assert!(read_all(&mut inbox).into_iter().eq((0..10).map(Ok)));
}

/// The first sink holds its items back when the other one is made: whatever puts them in lets the
/// other go on.
#[test]
fn sink_that_is_made_later_does_not_overtake() {
    type Act = fn(InboxSink<u64>) -> Option<InboxSink<u64>>;
    let ends: [Act; 4] = [
        |mut one| one.flush().now_or_never().map(|flushed| flushed.unwrap()).map(|()| one),
        |mut one| one.feed(2).now_or_never().map(|fed| fed.unwrap()).map(|()| one),
        |mut one| one.close().now_or_never().map(|closed| closed.unwrap()).map(|()| one),
        |one| {
            drop(one);
            None
        },
    ];
    for (end, all) in ends.into_iter().zip([3, 4, 3, 3]) {
        let (mut one, mut inbox) = inbox(6, Overflow::DropOldest);
        assert!(inbox.recv().now_or_never().is_none());
        one.feed(0).now_or_never().unwrap().unwrap();
        one.feed(1).now_or_never().unwrap().unwrap();
        let mut other = one.clone();
        let mut later = Task::new(async { other.feed(9).await });
        assert!(later.run().is_pending() && inbox.is_empty());
        let _one = end(one);
        assert!(later.woken());
        assert_eq!(later.run(), Poll::Ready(Ok(())));
        drop(later);
        drop(other);
        let items = read_all(&mut inbox);
        assert_eq!((items.len(), items.first(), items.last()), (all, Some(&Ok(0)), Some(&Ok(9))));
    }
}

#[test]
fn sink_that_waits_for_another_fails_when_the_reader_goes() {
    let (mut one, mut inbox) = inbox(64, Overflow::Wait);
    assert!(inbox.recv().now_or_never().is_none());
    one.feed(0).now_or_never().unwrap().unwrap();
    let mut other = inbox.sink();
    let mut later = Task::new(async { other.feed(1).await });
    assert!(later.run().is_pending());
    drop(inbox);
    assert!(later.woken());
    assert_eq!(later.run(), Poll::Ready(Err(InboxError::Closed)));
}

#[test]
fn items_that_are_held_back_arrive_when_the_sink_goes() {
    let (mut sink, mut inbox) = inbox(64, Overflow::Wait);
    assert!(inbox.recv().now_or_never().is_none());
    sink.feed(1).now_or_never().unwrap().unwrap();
    drop(sink);
    assert_eq!(inbox.recv().now_or_never(), Some(Some(Ok(1))));
    assert_eq!(inbox.recv().now_or_never(), Some(None));
}

#[test]
fn reader_is_woken_when_a_sink_goes_without_a_flush() {
    let (mut sink, mut inbox) = inbox(64, Overflow::Wait);
    let _other = sink.clone();
    let mut reader = Task::new(async { inbox.recv().await });
    assert!(reader.run().is_pending());
    sink.feed(1).now_or_never().unwrap().unwrap();
    drop(sink);
    assert!(reader.woken());
    assert_eq!(reader.run(), Poll::Ready(Some(Ok(1))));
}

#[test]
fn all_sinks_that_wait_are_woken_by_a_read() {
    let (mut one, mut inbox) = inbox(1, Overflow::Wait);
    let mut other = one.clone();
    one.feed(1).now_or_never().unwrap().unwrap();
    let mut one = Task::new(poll_fn(|cx| one.poll_ready_unpin(cx)));
    let mut other = Task::new(poll_fn(|cx| other.poll_ready_unpin(cx)));
    assert!(one.run().is_pending() && other.run().is_pending());
    one.renew_waker();
    assert!(one.poll().is_pending());

    assert_eq!(inbox.try_recv(), Some(Ok(1)));
    assert!(one.woken() && other.woken());
    assert_eq!(one.stale_wakes(), 0);
    assert!(one.run().is_ready() && other.run().is_ready());
}

#[test]
fn reader_gets_a_turn_before_something_is_dropped() {
    for full in [Overflow::DropOldest, Overflow::DropNewest, Overflow::Evict] {
        let (mut sink, mut inbox) = inbox(2, full);
        for round in 0..3 {
            for n in 0..2 {
                sink.feed(n).now_or_never().unwrap().unwrap();
            }
            let mut full = Task::new(poll_fn(|cx| sink.poll_ready_unpin(cx)));
            assert!(full.poll().is_pending() && full.woken(), "round {round}");
            assert_eq!(read_all(&mut inbox), [Ok(0), Ok(1)]);
        }
    }
}

#[test]
fn reader_that_does_not_use_its_turn_is_not_waited_for_again() {
    let (mut sink, mut inbox) = inbox(2, Overflow::DropNewest);
    let mut yields = 0;
    for n in 0..10 {
        let mut ready = Task::new(poll_fn(|cx| sink.poll_ready_unpin(cx)));
        while ready.poll().is_pending() {
            yields += 1;
        }
        drop(ready);
        sink.start_send_unpin(n).unwrap();
    }
    assert_eq!(yields, 1);
    assert_eq!(read_all(&mut inbox), [Ok(0), Ok(1), Err(8)]);
    assert_eq!(inbox.lost(), 8);
}

#[test]
fn latest_value_is_never_waited_for() {
    let (mut sink, mut inbox) = inbox(100, Overflow::Conflate);
    for n in 0..10 {
        sink.feed(n).now_or_never().unwrap().unwrap();
    }
    assert_eq!(read_all(&mut inbox), [Err(9), Ok(9)]);
}

#[test]
fn evicted_reader_gets_what_is_in_the_inbox() {
    let (mut sink, mut inbox) = inbox(2, Overflow::Evict);
    let mut other = sink.clone();
    sink.feed(1).now_or_never().unwrap().unwrap();
    sink.feed(2).now_or_never().unwrap().unwrap();
    let mut send = Task::new(sink.feed(3));
    assert_eq!(send.run(), Poll::Ready(Err(InboxError::Overflowed)));
    assert_eq!(other.feed(4).now_or_never(), Some(Err(InboxError::Overflowed)));
    assert_eq!(inbox.end(), Some(End::Overflowed));
    assert_eq!(read_all(&mut inbox), [Ok(1), Ok(2)]);
    assert_eq!(inbox.recv().now_or_never(), Some(None));
}

#[test]
fn sinks_fail_and_are_woken_when_the_reader_is_dropped() {
    let (mut sink, inbox) = inbox(1, Overflow::Wait);
    let item = Arc::new(());
    sink.feed(Arc::clone(&item)).now_or_never().unwrap().unwrap();
    let mut other = sink.clone();
    let mut ready = Task::new(poll_fn(|cx| sink.poll_ready_unpin(cx)));
    assert!(ready.run().is_pending());
    drop(inbox);
    assert!(ready.woken());
    assert_eq!(ready.run(), Poll::Ready(Err(InboxError::Closed)));
    assert_eq!(other.feed(Arc::clone(&item)).now_or_never(), Some(Err(InboxError::Closed)));
    assert_eq!(Arc::strong_count(&item), 1, "items that nobody will read are dropped");
}

#[test]
fn items_in_the_hands_of_a_dropped_reader_are_dropped() {
    let (mut sink, mut inbox) = inbox(8, Overflow::Wait);
    let item = Arc::new(());
    for _ in 0..3 {
        sink.feed(Arc::clone(&item)).now_or_never().unwrap().unwrap();
    }
    drop(inbox.try_recv());
    sink.feed(Arc::clone(&item)).now_or_never().unwrap().unwrap();
    assert_eq!(Arc::strong_count(&item), 4);
    drop(inbox);
    assert_eq!(Arc::strong_count(&item), 1);
}

#[test]
fn end_tells_how_the_sinks_have_gone() {
    let (mut one, mut inbox) = inbox::<u32>(8, Overflow::Wait);
    let mut other = one.clone();
    let mut reader = Task::new(async { inbox.recv().await });
    assert!(reader.run().is_pending());
    one.close().now_or_never().unwrap().unwrap();
    assert!(!reader.woken(), "there is another sink");
    other.close().now_or_never().unwrap().unwrap();
    assert!(reader.woken());
    assert_eq!(reader.run(), Poll::Ready(None));
    drop(reader);
    drop((one, other));
    assert_eq!(inbox.end(), Some(End::Closed));

    drop(inbox.sink());
    assert_eq!(inbox.end(), Some(End::Aborted));
}

#[test]
fn unread_items_stay_when_the_sinks_are_closed() {
    let (mut sink, mut inbox) = inbox(8, Overflow::Wait);
    sink.feed(1).now_or_never().unwrap().unwrap();
    sink.close().now_or_never().unwrap().unwrap();
    assert_eq!(sink.feed(2).now_or_never(), Some(Err(InboxError::Closed)));
    assert_eq!((inbox.len(), inbox.end()), (1, Some(End::Closed)));
    assert_eq!(inbox.recv().now_or_never(), Some(Some(Ok(1))));
    assert_eq!(inbox.recv().now_or_never(), Some(None));
}

/// An item whose drop uses the inbox that it is dropped by.
struct Meddler(Arc<Mutex<Option<InboxSink<Self>>>>);

impl Drop for Meddler {
    fn drop(&mut self) {
        drop(self.0.lock().unwrap().take());
    }
}

#[test]
fn an_item_may_use_the_inbox_when_it_is_dropped() {
    for full in [Overflow::DropOldest, Overflow::DropNewest, Overflow::Conflate] {
        let (mut sink, mut inbox) = inbox(1, full);
        let other = Arc::new(Mutex::new(Some(sink.clone())));
        let mut send = Task::new(async {
            for _ in 0..3 {
                sink.feed(Meddler(Arc::clone(&other))).await.unwrap();
            }
        });
        assert!(send.run().is_ready());
        assert!(other.lock().unwrap().is_none());
        assert_eq!(read_all(&mut inbox).len(), 2);
    }
}

#[test]
fn a_reader_that_never_waits_lets_other_tasks_run() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let other = tokio::spawn(async {});
        let (mut sink, mut inbox) = inbox(8, Overflow::Wait);
        let mut reads = 0;
        while !other.is_finished() {
            let (sent, received) = join(sink.send(1), inbox.recv()).await;
            assert_eq!((sent, received), (Ok(()), Some(Ok(1))));
            reads += 1;
            assert!(reads <= 1_000, "the other task starves");
        }
    });
}

/// What was sent before can be read, and nothing comes after the end.
#[test]
fn inbox_that_is_closed_while_its_sink_holds_items_back() {
    type Act = fn(&mut Option<InboxSink<u64>>);
    let ends: [Act; 3] = [
        |sink| assert!(sink.as_mut().unwrap().flush().now_or_never().is_some()),
        |sink| assert!(sink.as_mut().unwrap().close().now_or_never().is_some()),
        |sink| drop(sink.take()),
    ];
    for end in ends {
        let (sink, mut inbox) = inbox(8, Overflow::Wait);
        let mut sink = Some(sink);
        assert_eq!(inbox.recv().now_or_never(), None);
        assert_eq!(sink.as_mut().unwrap().feed(1).now_or_never(), Some(Ok(())));
        inbox.close();
        let refused = sink.as_mut().unwrap().feed(2).now_or_never();
        assert_eq!(refused, Some(Err(InboxError::Closed)));

        let mut reader = Task::new(async {
            let first = inbox.recv().await;
            (first, inbox.recv().await, inbox.end())
        });
        assert!(reader.run().is_pending());
        end(&mut sink);
        assert!(reader.woken());
        assert_eq!(reader.run(), Poll::Ready((Some(Ok(1)), None, Some(End::Closed))));
    }
}

#[test]
fn inbox_that_is_closed_while_one_of_two_sinks_holds_items_back() {
    let (mut one, mut inbox) = inbox(8, Overflow::Evict);
    assert_eq!(inbox.recv().now_or_never(), None);
    assert_eq!(one.feed(1).now_or_never(), Some(Ok(())));
    let other = inbox.sink();
    drop(other);
    inbox.close();
    assert_eq!((inbox.try_recv(), inbox.end()), (None, None));
    assert_eq!(one.flush().now_or_never(), Some(Ok(())));
    assert_eq!((inbox.try_recv(), inbox.end()), (Some(Ok(1)), Some(End::Closed)));
}

#[test]
fn items_that_are_held_back_for_a_reader_that_is_gone_are_dropped() {
    let (mut sink, mut inbox) = inbox(8, Overflow::Wait);
    let item = Arc::new(());
    assert_eq!(inbox.recv().now_or_never(), None);
    assert_eq!(sink.feed(Arc::clone(&item)).now_or_never(), Some(Ok(())));
    let _other = inbox.sink();
    drop(inbox);
    assert_eq!(sink.flush().now_or_never(), Some(Err(InboxError::Closed)));
    assert_eq!(Arc::strong_count(&item), 1);
    assert_eq!(sink.feed(item).now_or_never(), Some(Err(InboxError::Closed)));
}
