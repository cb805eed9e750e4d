//! A sink that yields is not full: its `poll_ready` returns `Pending` and fires its waker inside
//! the call, as tokio's channels and sockets do when the cooperative budget of the task is spent.
//! Then no overflow policy is applied; the item waits for the next turn, and no hook reports that
//! the input is blocked.
//!
//! Tests guarantees 4, 5 and 7 and the attachment rule on `Overflow`, first with tokio, then with
//! scripted sinks, turn by turn.

use std::future::Future;

use crate::common::real::{FLAVORS, Flavor, Receiving, assert_settled, reader, tokio_channel};
use crate::common::{self, Op, Orders, Rig, SinkHandle, Terms};
use futures::channel::mpsc;
use futures::{StreamExt, stream};
use stream_demux::{Attach, Demux, DemuxStreamExt, Lease, Order, Overflow};

const ALL: [Overflow; 4] =
    [Overflow::Wait, Overflow::DropNewest, Overflow::DropOldest, Overflow::Evict];

// Tokio: channels with room for every item, and live readers.

/// Sizes of groups. Around 128, the last member is polled when the budget of the task is spent.
const SIZES: [usize; 8] = [1, 2, 10, 20, 127, 128, 129, 400];

/// Where the demux runs.
#[derive(Clone, Copy, Debug)]
enum Place {
    Spawned,
    BlockedOn,
}

impl Place {
    async fn output<F>(self, future: F) -> F::Output
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        match self {
            Self::Spawned => tokio::spawn(future).await.expect("the task panicked"),
            Self::BlockedOn => future.await,
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
struct Setting {
    flavor: Flavor,
    place: Place,
    members: usize,
    items: usize,
    overflow: Overflow,
    buffer: usize,
}

impl Setting {
    /// Asserts that a group of live readers gets every item.
    #[track_caller]
    fn check(self) {
        let (totals, read) = self.flavor.run(async move {
            let (mut sinks, mut readers) = (Vec::new(), Vec::new());
            for _ in 0..self.members {
                let (sink, receiver) = tokio_channel(self.items);
                sinks.push(Attach::new((), sink));
                readers.push(reader(receiver));
            }
            let demux = stream::iter(0..self.items)
                .demux_by(|_| (), stream::iter(sinks))
                .multicast()
                .buffer(self.buffer)
                .overflow(self.overflow);
            let totals = self.place.output(demux).await;
            let mut read = Vec::new();
            for reader in readers {
                read.push(reader.await.expect("the reader panicked"));
            }
            (totals, read)
        });
        assert_settled(totals);
        assert_eq!(totals.discarded, 0, "{self:?}");
        assert_eq!(totals.delivered, (self.members * self.items) as u64, "{self:?}");
        let all: Vec<_> = (0..self.items).collect();
        assert!(read.iter().all(|items| *items == all), "{self:?}");
    }
}

/// Tests every size under every policy, with enough items to spend the budget often.
#[track_caller]
fn every_size(flavor: Flavor, place: Place, buffer: usize) {
    for members in SIZES {
        for overflow in ALL {
            let items = (3_000 / members).max(20);
            Setting { flavor, place, members, items, overflow, buffer }.check();
        }
    }
}

#[test]
fn tokio_group_without_queues_misses_nothing_in_one_thread() {
    every_size(Flavor::CurrentThread, Place::Spawned, 0);
}

#[test]
fn tokio_group_without_queues_misses_nothing_in_two_threads() {
    every_size(Flavor::MultiThread, Place::Spawned, 0);
}

#[test]
fn tokio_group_with_queues_misses_nothing_in_one_thread() {
    every_size(Flavor::CurrentThread, Place::Spawned, 64);
}

#[test]
fn tokio_group_with_queues_misses_nothing_in_two_threads() {
    every_size(Flavor::MultiThread, Place::Spawned, 64);
}

/// In `block_on` of the multi-thread runtime, the waker fires inside the call; in that of the
/// current-thread runtime, it does not.
#[test]
fn tokio_group_in_block_on_misses_nothing() {
    for flavor in FLAVORS {
        for buffer in [0, 64] {
            every_size(flavor, Place::BlockedOn, buffer);
        }
    }
}

#[test]
fn tokio_ten_members_that_drop_the_oldest_of_64_get_all_9_000() {
    for flavor in FLAVORS {
        let (members, items, overflow, buffer) = (10, 9_000, Overflow::DropOldest, 64);
        Setting { flavor, place: Place::Spawned, members, items, overflow, buffer }.check();
    }
}

#[test]
fn tokio_twenty_members_that_drop_the_newest_get_all_900() {
    for flavor in FLAVORS {
        let (members, items, overflow, buffer) = (20, 900, Overflow::DropNewest, 0);
        Setting { flavor, place: Place::Spawned, members, items, overflow, buffer }.check();
    }
}

#[test]
fn tokio_ten_members_with_64_places_are_not_evicted() {
    for flavor in FLAVORS {
        let (members, items, overflow, buffer) = (10, 900, Overflow::Evict, 64);
        Setting { flavor, place: Place::Spawned, members, items, overflow, buffer }.check();
    }
}

/// Input, orders and sink share the budget of the task.
#[test]
fn tokio_single_sink_fed_by_a_tokio_channel_misses_nothing() {
    const ITEMS: usize = 2_000;
    for flavor in FLAVORS {
        for overflow in ALL {
            for buffer in [0, 1, 64] {
                let totals = flavor.run(async move {
                    let (sink, receiver) = tokio_channel(ITEMS);
                    let (items, input) = tokio::sync::mpsc::channel(64);
                    let (orders, inbox) = tokio::sync::mpsc::channel(8);
                    orders.send(Attach::new((), sink)).await.expect("the demux was dropped");
                    let demux = Receiving(input).demux_by(|_: &usize| (), Receiving(inbox));
                    let demux = tokio::spawn(demux.buffer(buffer).overflow(overflow));
                    let reader = reader(receiver);
                    for n in 0..ITEMS {
                        items.send(n).await.expect("the demux was dropped");
                    }
                    drop(items);
                    let totals = demux.await.expect("the demux panicked");
                    assert_eq!(reader.await.expect("the reader panicked").len(), ITEMS);
                    totals
                });
                assert_settled(totals);
                assert_eq!(totals.discarded, 0, "{flavor:?}, {overflow:?}, {buffer}");
            }
        }
    }
}

#[test]
fn tokio_separate_keys_miss_nothing() {
    const KEYS: usize = 300;
    for flavor in FLAVORS {
        for overflow in ALL {
            for buffer in [0, 1, 64] {
                let totals = flavor.run(async move {
                    let (mut sinks, mut readers) = (Vec::new(), Vec::new());
                    for key in 0..KEYS {
                        let (sink, receiver) = tokio_channel(10);
                        sinks.push(Attach::new(key, sink).overflow(overflow).buffer(buffer));
                        readers.push(reader(receiver));
                    }
                    let input = stream::iter(0..10 * KEYS);
                    let demux = input.demux_by(|n| n % KEYS, stream::iter(sinks));
                    // A larger budget than tokio's.
                    let demux = tokio::spawn(demux.budget(1_000));
                    let totals = demux.await.expect("the demux panicked");
                    for reader in readers {
                        assert_eq!(reader.await.expect("the reader panicked").len(), 10);
                    }
                    totals
                });
                assert_eq!(totals.discarded, 0, "{flavor:?}, {overflow:?}, {buffer}");
                assert_settled(totals);
            }
        }
    }
}

/// It takes more than sixteen turns until every member of such a large group has its copy.
#[test]
fn tokio_group_of_4_000_misses_nothing() {
    for flavor in FLAVORS {
        for overflow in ALL {
            let (members, items, buffer) = (4_000, 2, 0);
            Setting { flavor, place: Place::Spawned, members, items, overflow, buffer }.check();
        }
    }
}

/// A full channel is still treated as full.
#[test]
fn tokio_member_that_is_full_is_evicted_from_a_large_group_and_no_other_is() {
    const MEMBERS: u64 = 300;
    for flavor in FLAVORS {
        for stuck in [0, 150, MEMBERS - 1] {
            let (totals, kept) = flavor.run(async move {
                let (mut sinks, mut readers) = (Vec::new(), Vec::new());
                let mut kept = None;
                for tag in 0..MEMBERS {
                    let (sink, receiver) = tokio_channel(if tag == stuck { 1 } else { 20 });
                    sinks.push(Attach::new((), sink).tag(tag));
                    if tag == stuck {
                        kept = Some(receiver);
                    } else {
                        readers.push(reader(receiver));
                    }
                }
                let demux = stream::iter(0..20).demux_by(|_| (), stream::iter(sinks));
                let demux = demux.multicast().overflow(Overflow::Evict);
                let totals = tokio::spawn(demux).await.expect("the demux panicked");
                for reader in readers {
                    assert_eq!(reader.await.expect("the reader panicked").len(), 20);
                }
                let mut kept = kept.expect("no member is stuck");
                (totals, std::iter::from_fn(move || kept.try_recv().ok()).collect::<Vec<_>>())
            });
            assert_eq!((kept.as_slice(), totals.discarded), (&[0][..], 1), "{flavor:?}, {stuck}");
            assert_settled(totals);
        }
    }
}

/// Futures' channels never yield, so their policies apply at once.
#[test]
fn futures_channels_that_are_full_overflow_at_once() {
    for overflow in [Overflow::DropNewest, Overflow::DropOldest] {
        let (sink, receiver) = mpsc::channel(0);
        let orders = stream::iter([Attach::new((), sink).overflow(overflow)]);
        let mut task = common::Task::new(stream::iter(0..10).demux_by(|_| (), orders));
        assert!(task.run().is_pending(), "the last item waits in the queue");
        assert_eq!((task.get_ref().totals().delivered, task.get_ref().totals().discarded), (1, 8));
        let (totals, got) = futures::executor::block_on(futures::future::join(
            task.into_inner(),
            receiver.collect::<Vec<_>>(),
        ));
        assert_settled(totals);
        let waited = if overflow == Overflow::DropNewest { 1 } else { 9 };
        assert_eq!(got, [0, waited]);
    }
}

// Scripted sinks, turn by turn.

/// Returns an order without effect.
fn idle_order() -> Orders {
    Order::Detach(99)
}

impl Rig {
    /// Attaches sink `a` under key 1 with these settings. It yields for `yields` calls of
    /// `poll_ready`.
    #[track_caller]
    fn yielding(&mut self, yields: usize, terms: impl FnOnce(Terms) -> Terms) -> SinkHandle<u32> {
        let sink = self.attach_on(1, "a", terms);
        sink.stutter(Op::Ready, yields);
        sink
    }

    /// Runs one turn, after which the item is still held, nothing was logged, and the task has
    /// woken itself.
    #[track_caller]
    fn still_holds(&mut self) {
        self.poll();
        assert_eq!(self.log.take(), [""; 0]);
        assert_eq!((self.totals().queued, self.task.wakes()), (1, 1));
        assert!(self.task.get_ref().blocked_on().is_none());
    }
}

fn on(overflow: Overflow) -> impl Fn(Terms) -> Terms {
    move |attach| attach.overflow(overflow)
}

#[test]
fn yield_without_room_holds_the_item_and_ends_the_serving_for_one_turn() {
    for overflow in [Overflow::Wait, Overflow::Evict] {
        let mut rig = Rig::new().with_silent_sinks();
        let b = rig.attach(2, "b");
        let a = rig.yielding(1, on(overflow));
        rig.input.extend([101, 201]);
        rig.still_holds();
        assert_eq!((a.count(Op::Ready), b.count(Op::Ready), rig.input.left()), (1, 0, 1));
        rig.poll();
        assert_eq!((a.items(), b.items()), (vec![101], vec![201]), "{overflow:?}");
        assert_eq!((rig.log.take().len(), rig.totals().queued), (0, 0));
    }
}

#[test]
fn yield_with_room_queues_the_item_and_other_items_continue() {
    for overflow in ALL {
        let mut rig = Rig::new().with_silent_sinks();
        let b = rig.attach(2, "b");
        let a = rig.yielding(1, |attach| attach.overflow(overflow).buffer(1));
        rig.input.extend([101, 201]);
        rig.poll();
        assert_eq!((a.taken(), b.taken(), rig.totals().queued), (0, 1, 1), "{overflow:?}");
        assert!(rig.task.woken());
        assert!(rig.lines().is_empty());
        assert_eq!(a.items(), [101]);
    }
}

#[test]
fn sink_that_drops_and_has_no_buffer_queues_the_item_it_yielded_for() {
    for overflow in [Overflow::DropNewest, Overflow::DropOldest] {
        let mut rig = Rig::new().with_silent_sinks();
        let a = rig.yielding(1, on(overflow));
        rig.input.push(101);
        rig.poll();
        assert_eq!((rig.totals().queued, rig.totals().discarded), (1, 0), "{overflow:?}");
        assert!(rig.lines().is_empty());
        assert_eq!(a.items(), [101]);
    }
}

#[test]
fn full_queue_of_a_sink_that_yields_loses_nothing() {
    for overflow in ALL {
        let mut rig = Rig::new().with_silent_sinks();
        let a = rig.attach_on(1, "a", |attach| attach.overflow(overflow).buffer(2));
        a.park();
        rig.send([101, 102]);
        a.stutter(Op::Ready, 1);
        a.open();
        assert!(rig.send([103, 104]).is_empty(), "{overflow:?}");
        assert_eq!(a.items(), [101, 102, 103, 104]);
    }
}

#[test]
fn policy_acts_only_on_a_sink_that_was_not_woken_since() {
    for overflow in ALL {
        let mut rig = Rig::new().with_silent_sinks();
        let a = rig.attach_on(1, "a", |attach| attach.overflow(overflow).buffer(1));
        let b = rig.attach(2, "b");
        a.park();
        rig.send([101]);
        // The sink opens after the woken sinks of this turn were polled.
        let gate = a.clone();
        rig.input.action(move || gate.open());
        rig.input.extend([102, 201]);
        rig.poll();
        assert_eq!((rig.log.take(), rig.totals().discarded), (vec![], 0), "{overflow:?}");
        assert_eq!((a.count(Op::Ready), b.taken(), rig.totals().queued), (1, 0, 2));
        rig.poll();
        assert_eq!((a.items(), b.items()), (vec![101, 102], vec![201]), "{overflow:?}");
        assert!(rig.log.take().is_empty());
    }
}

#[test]
fn policy_acts_on_a_sink_that_was_woken_spuriously() {
    let mut rig = Rig::new().with_silent_sinks();
    let a = rig.attach_on(1, "a", |attach| attach.overflow(Overflow::DropNewest).buffer(1));
    a.park();
    rig.send([101]);
    let gate = a.clone();
    rig.input.action(move || assert!(gate.wake()));
    rig.input.extend([102, 103]);
    rig.poll();
    assert_eq!((a.count(Op::Ready), rig.totals().discarded, rig.totals().queued), (1, 0, 2));
    assert_eq!(rig.lines(), ["discarded 102 of 1 Overflowed", "discarded 103 of 1 Overflowed"]);
    assert_eq!(a.count(Op::Ready), 2);
}

#[test]
fn held_item_is_sent_before_those_that_were_read_later() {
    for overflow in [Overflow::Wait, Overflow::Evict] {
        let mut rig = Rig::new().with_silent_sinks();
        let a = rig.yielding(1, on(overflow));
        assert!(rig.send([101, 102, 103]).is_empty());
        a.stutter(Op::Ready, 1);
        assert!(rig.send([104, 105]).is_empty());
        assert_eq!(a.items(), [101, 102, 103, 104, 105]);
    }
}

#[test]
fn sink_that_turns_out_to_be_full_is_treated_as_such_in_the_next_turn() {
    for overflow in [Overflow::Wait, Overflow::Evict] {
        let mut rig = Rig::new().with_silent_sinks();
        let a = rig.yielding(1, on(overflow));
        a.park();
        rig.input.push(101);
        rig.still_holds();
        rig.poll();
        assert_eq!(a.count(Op::Ready), 2);
        let logged = rig.log.take();
        if overflow == Overflow::Wait {
            assert_eq!(logged, ["blocked 1"]);
        } else {
            assert_eq!(logged, ["discarded 101 of 1 Overflowed", "detached 1 Overflowed"]);
        }
    }
}

#[test]
fn sink_that_turns_out_to_be_broken_fails_in_the_next_turn() {
    for overflow in [Overflow::Wait, Overflow::Evict] {
        let mut rig = Rig::new().with_silent_sinks();
        let a = rig.yielding(1, on(overflow));
        a.fail_quietly(Op::Ready);
        rig.input.push(101);
        rig.still_holds();
        let failed = "detached 1 Failed(Broken(\"poll_ready\"))";
        assert_eq!(rig.lines(), ["discarded 101 of 1 Failed", failed]);
    }
}

// The second yield in a row.

#[test]
fn second_yield_counts_as_full_without_progress_in_between() {
    let mut rig = Rig::new().with_silent_sinks();
    let a = rig.yielding(2, on(Overflow::Evict));
    rig.input.push(101);
    rig.still_holds();
    rig.poll();
    assert_eq!(rig.log.take(), ["discarded 101 of 1 Overflowed", "detached 1 Overflowed"]);
    assert_eq!((a.count(Op::Ready), a.taken()), (2, 0));
}

#[test]
fn second_yield_in_a_row_under_wait_blocks_and_loses_nothing() {
    let mut rig = Rig::new().with_silent_sinks();
    let a = rig.yielding(5, on(Overflow::Wait));
    let b = rig.attach(2, "b");
    rig.input.extend([101, 201]);
    rig.still_holds();
    let logged = rig.lines();
    // The contract does not specify whether `blocked` is called; if it is, so is `unblocked`.
    assert!(logged.is_empty() || logged == ["blocked 1", "unblocked 1"], "{logged:?}");
    assert_eq!((a.items(), b.items(), a.count(Op::Ready)), (vec![101], vec![201], 6));
}

#[test]
fn yield_that_follows_a_wake_is_held_too_after_progress() {
    let mut rig = Rig::new().with_silent_sinks();
    let a = rig.attach_on(1, "a", |attach| attach.overflow(Overflow::DropNewest).buffer(1));
    a.park();
    rig.send([101]);
    let gate = a.clone();
    rig.input.action(move || {
        gate.stutter(Op::Ready, 1);
        gate.open();
    });
    rig.input.push(102);
    rig.poll();
    rig.orders.push(idle_order());
    assert!(rig.lines().is_empty());
    assert_eq!(a.items(), [101, 102]);
}

/// The kinds of progress between two yields.
#[derive(Clone, Copy, Debug)]
enum Progress {
    Order,
    Item,
    Flush,
    Close,
}

const STEPS: u32 = 20;

/// Attaches sink `a` under key 1 with `overflow`. Returns a closure that causes progress of this
/// kind once per call.
fn with_progress(
    rig: &mut Rig,
    progress: Progress,
    overflow: Overflow,
    yields: usize,
) -> (SinkHandle<u32>, Box<dyn FnMut()>) {
    let others = rig.attach_each(200..200 + STEPS);
    let a = rig.yielding(yields, on(overflow));
    let orders = rig.orders.clone();
    let step: Box<dyn FnMut()> = match progress {
        Progress::Order => Box::new(move || orders.push(idle_order())),
        Progress::Item => {
            let slow = rig.attach_on(300, "slow", |attach| attach.buffer(100));
            slow.park();
            rig.send(30_000..30_000 + STEPS);
            Box::new(move || slow.allow(1))
        }
        Progress::Flush => {
            for sink in &others {
                sink.hold(Op::Flush);
            }
            rig.send((200..200 + STEPS).map(|key| 100 * key));
            let mut others = others.into_iter();
            Box::new(move || others.next().unwrap().release(Op::Flush))
        }
        Progress::Close => {
            for sink in &others {
                sink.hold(Op::Close);
            }
            rig.orders.extend((200..200 + STEPS).map(Order::Detach));
            rig.sleep();
            let mut others = others.into_iter();
            Box::new(move || others.next().unwrap().release(Op::Close))
        }
    };
    rig.log.take();
    (a, step)
}

#[test]
fn yield_counts_as_yield_again_after_any_progress() {
    for progress in [Progress::Order, Progress::Item, Progress::Flush, Progress::Close] {
        for overflow in [Overflow::Wait, Overflow::Evict] {
            let mut rig = Rig::new().with_silent_sinks();
            let (a, mut step) = with_progress(&mut rig, progress, overflow, 10);
            rig.input.push(101);
            rig.poll();
            // In the second turn, the sink may be polled before the others progress.
            rig.orders.push(idle_order());
            for polls in 2..=10 {
                step();
                rig.poll();
                let logged = rig.log.take();
                assert!(!logged.iter().any(|line| line.contains("locked 1")), "{logged:?}");
                assert_eq!((a.count(Op::Ready), a.taken()), (polls, 0), "{progress:?}");
            }
            step();
            rig.poll();
            assert_eq!(a.items(), [101], "{progress:?}, {overflow:?}");
        }
    }
}

/// The flush fell due and completed at once.
#[test]
fn yield_counts_as_yield_again_after_another_sink_was_flushed() {
    let mut rig = Rig::new().with_silent_sinks();
    let b = rig.attach(2, "b");
    let a = rig.yielding(2, on(Overflow::Evict));
    rig.input.extend([201, 101]);
    rig.poll();
    assert_eq!((b.flushed(), a.count(Op::Ready)), (1, 1));
    rig.still_holds();
    assert_eq!(rig.lines(), [""; 0]);
    assert_eq!((a.items(), a.count(Op::Ready)), (vec![101], 3));
}

#[test]
fn yields_with_progress_between_them_are_held_for_sixteen_turns() {
    for (yields, sent) in [(15, true), (16, true), (17, false)] {
        let mut rig = Rig::new().with_silent_sinks();
        let a = rig.yielding(yields, on(Overflow::Evict));
        rig.input.push(101);
        for turn in 1..=yields.min(16) {
            rig.still_holds();
            assert_eq!(a.count(Op::Ready), turn);
            rig.orders.push(idle_order());
        }
        rig.poll();
        let logged = rig.log.take();
        if sent {
            assert_eq!((a.items(), logged), (vec![101], vec![]));
        } else {
            assert_eq!(logged, ["discarded 101 of 1 Overflowed", "detached 1 Overflowed"]);
        }
    }
}

#[test]
fn sixteen_turns_are_counted_separately_for_each_item() {
    let mut rig = Rig::new().with_silent_sinks();
    let a = rig.attach_on(1, "a", on(Overflow::Evict));
    for item in [101, 102, 103] {
        a.stutter(Op::Ready, 16);
        rig.input.push(item);
        for _ in 0..16 {
            rig.still_holds();
            rig.orders.push(idle_order());
        }
        assert!(rig.lines().is_empty());
    }
    assert_eq!(a.items(), [101, 102, 103]);
}

#[test]
fn sink_that_always_yields_is_treated_as_full_under_every_policy() {
    for overflow in ALL {
        for buffer in [0, 2] {
            let mut rig = Rig::new().with_silent_sinks();
            let a = rig.yielding(usize::MAX, |attach| attach.overflow(overflow).buffer(buffer));
            let b = rig.attach(2, "b");
            rig.input.extend([101, 102, 103, 104, 201]);
            for _ in 0..100 {
                rig.orders.push(idle_order());
                rig.poll();
            }
            let t = rig.totals();
            assert_eq!((a.taken(), b.taken()), (0, usize::from(overflow != Overflow::Wait)));
            let queued = match overflow {
                Overflow::Wait => buffer as u64 + 1,
                Overflow::Evict => 0,
                _ => 1.max(buffer as u64),
            };
            assert_eq!(t.queued, queued, "{overflow:?}, {buffer}");
        }
    }
}

#[test]
fn sink_is_polled_at_most_once_a_turn_while_it_yields() {
    for overflow in ALL {
        for buffer in [0, 1] {
            let mut rig = Rig::new().with_silent_sinks();
            let a = rig.yielding(12, |attach| attach.overflow(overflow).buffer(buffer));
            rig.input.extend([101, 102, 103]);
            for _ in 0..20 {
                let before = a.count(Op::Ready) - a.taken();
                rig.orders.push(idle_order());
                rig.poll();
                let vain = a.count(Op::Ready) - a.taken() - before;
                assert!(vain <= 1, "{overflow:?}, {buffer}: {vain} futile polls");
            }
            assert_eq!(a.items(), [101, 102, 103], "{overflow:?}, {buffer}");
        }
    }
}

// Orders and ends while an item is held for a yield.

/// Sends an item, which is held for sink `a`, which will yield once more.
#[track_caller]
fn held_for_a_yield(rig: &mut Rig, overflow: Overflow, lease: &mut Lease) -> SinkHandle<u32> {
    let a = rig.yielding(2, |attach| attach.overflow(overflow).tag(7).leased(lease));
    rig.input.push(101);
    rig.still_holds();
    a
}

/// Runs `end` for an item held for a yield. Returns the following log without flushes.
#[track_caller]
fn ended_by(overflow: Overflow, end: impl FnOnce(&mut Rig, Lease)) -> Vec<String> {
    let mut rig = Rig::new();
    let mut lease = Lease::new();
    held_for_a_yield(&mut rig, overflow, &mut lease);
    end(&mut rig, lease);
    let _ = rig.run();
    assert_eq!(rig.totals().queued, 0);
    let mut lines = rig.log.take();
    lines.retain(|line| !line.ends_with("flushed"));
    lines
}

#[test]
fn replacement_takes_over_an_item_held_for_a_yield() {
    for overflow in [Overflow::Wait, Overflow::Evict] {
        let lines = ended_by(overflow, |rig, lease| {
            rig.order(1, "new", |attach| attach);
            lease.disarm();
        });
        let mut sorted = lines.clone();
        sorted.sort();
        assert_eq!(
            sorted,
            ["a closed", "a dropped", "attached 1", "detached 1#7 Replaced", "new sent 101"],
            "{overflow:?}"
        );
    }
}

#[test]
fn sink_that_is_detached_keeps_an_item_held_for_a_yield() {
    let gone = ["a sent 101", "a closed", "a dropped", "detached 1#7 Requested"];
    for overflow in [Overflow::Wait, Overflow::Evict] {
        let by_order = ended_by(overflow, |rig, lease| {
            rig.orders.push(Order::Detach(1));
            lease.disarm();
        });
        assert_eq!(by_order, gone, "{overflow:?}");
        assert_eq!(ended_by(overflow, |_, lease| lease.detach()), gone, "{overflow:?}");
    }
}

#[test]
fn sink_that_is_evicted_discards_an_item_held_for_a_yield() {
    let gone = ["a dropped", "discarded 101 of 1#7 Evicted", "detached 1#7 Evicted"];
    for overflow in [Overflow::Wait, Overflow::Evict] {
        let by_order = ended_by(overflow, |rig, lease| {
            rig.orders.push(Order::Evict(1));
            lease.disarm();
        });
        assert_eq!(by_order, gone, "{overflow:?}");
        assert_eq!(ended_by(overflow, |_, lease| drop(lease)), gone, "{overflow:?}");
    }
}

#[test]
fn finish_lets_an_item_held_for_a_yield_keep_its_place() {
    for overflow in [Overflow::Wait, Overflow::Evict] {
        let lines = ended_by(overflow, |rig, lease| {
            rig.input.push(102);
            rig.input.forbid_polls();
            rig.orders.push(Order::Finish);
            lease.disarm();
        });
        let gone = ["a sent 101", "a closed", "a dropped", "detached 1#7 Finished"];
        assert_eq!(lines, gone, "{overflow:?}");
    }
}

#[test]
fn end_of_the_input_behind_an_item_held_for_a_yield_loses_nothing() {
    for overflow in [Overflow::Wait, Overflow::Evict] {
        let mut rig = Rig::new().with_silent_sinks();
        let a = rig.yielding(1, on(overflow));
        rig.input.push(101);
        rig.input.end();
        rig.still_holds();
        assert!(!rig.input.is_ended());
        assert_eq!(rig.last_lines(), ["detached 1 Finished"]);
        assert_eq!((a.items(), a.is_closed()), (vec![101], true));
    }
}

#[test]
fn orders_and_other_sinks_continue_while_an_item_is_held_for_a_yield() {
    let mut rig = Rig::new().with_silent_sinks();
    let b = rig.attach_on(2, "b", |attach| attach.buffer(3));
    b.park();
    rig.send([201, 202]);
    rig.yielding(3, on(Overflow::Wait));
    rig.input.push(101);
    rig.still_holds_with(3);
    b.open();
    let c = rig.order(3, "c", |attach| attach);
    rig.poll();
    assert_eq!((b.items(), b.flushed(), rig.len()), (vec![201, 202], 2, 3));
    assert!(!c.is_dropped());
}

impl Rig {
    /// Like `still_holds`, with queued items in addition.
    #[track_caller]
    fn still_holds_with(&mut self, queued: u64) {
        self.poll();
        assert_eq!((self.log.take(), self.totals().queued), (vec![], queued));
        assert!(self.task.get_ref().blocked_on().is_none());
    }
}

#[test]
fn item_for_which_the_catch_all_yields_is_held() {
    let mut rig = Rig::new().with_silent_sinks();
    let a = rig.yielding(1, |attach| attach.catch_all().overflow(Overflow::Evict));
    rig.input.push(901);
    rig.still_holds();
    assert!(rig.lines().is_empty());
    assert_eq!(a.items(), [901]);
}

#[test]
fn limit_does_not_count_an_item_that_is_held_for_a_yield() {
    let mut rig = Rig::new().with_silent_sinks();
    let a = rig.yielding(1, |attach| attach.overflow(Overflow::Evict).limit(1));
    rig.input.extend([101, 102]);
    rig.still_holds();
    assert_eq!(rig.len(), 1);
    assert_eq!(rig.lines(), ["detached 1 Limited", "unmatched 102"]);
    assert_eq!(a.items(), [101]);
}

#[test]
fn admit_is_not_called_again_for_an_item_held_for_a_yield() {
    let mut rig = Rig::new().with_silent_sinks().logging_only(|line| !line.starts_with("key "));
    let a = rig.yielding(1, on(Overflow::Evict));
    assert_eq!(rig.send([101]), ["admit 101 to 1"]);
    assert_eq!(a.items(), [101]);
}

// Groups.

/// Attaches members `1`, `2` and `3` of key 1 with `overflow`. The second yields for `yields`
/// calls.
fn group(overflow: Overflow, yields: usize) -> (Rig, Vec<SinkHandle<u32>>) {
    let mut rig = Rig::with(Demux::multicast).with_silent_sinks();
    let member = |tag| rig.attach_on(1, tag, |attach| attach.tag(tag).overflow(overflow));
    let members: Vec<_> = (1..=3).map(member).collect();
    members[1].stutter(Op::Ready, yields);
    (rig, members)
}

fn polls(members: &[SinkHandle<u32>]) -> Vec<usize> {
    members.iter().map(|member| member.count(Op::Ready)).collect()
}

#[test]
fn members_behind_one_that_yields_are_polled_in_the_next_turn() {
    for overflow in [Overflow::Wait, Overflow::Evict] {
        let (mut rig, members) = group(overflow, 1);
        rig.input.push(101);
        rig.still_holds();
        assert_eq!(polls(&members), [1, 1, 0], "{overflow:?}");
        rig.poll();
        assert!(rig.log.take().is_empty());
        assert_eq!(polls(&members), [1, 2, 1], "{overflow:?}");
        assert!(members.iter().all(|member| member.items() == [101]));
    }
}

#[test]
fn member_that_yields_with_room_in_its_queue_delays_no_other() {
    for overflow in [Overflow::DropNewest, Overflow::DropOldest] {
        let (mut rig, members) = group(overflow, 1);
        rig.input.push(101);
        rig.poll();
        assert_eq!(polls(&members), [1, 1, 1], "{overflow:?}");
        assert_eq!((rig.totals().queued, rig.totals().delivered), (1, 2));
        assert!(rig.lines().is_empty());
        assert_eq!(members[1].items(), [101]);
    }
}

#[test]
fn second_yield_of_a_member_counts_as_full_and_the_walk_continues() {
    for overflow in [Overflow::Wait, Overflow::Evict] {
        let (mut rig, members) = group(overflow, 2);
        members[0].hold(Op::Flush); // a completed flush would be progress
        rig.input.push(101);
        rig.still_holds();
        rig.poll();
        assert_eq!((polls(&members)[1], members[2].items()), (2, vec![101]), "{overflow:?}");
        if overflow == Overflow::Wait {
            rig.sleep();
            assert_eq!(members[1].items(), [101]);
        } else {
            let logged = rig.log.take();
            assert_eq!(logged, ["discarded 101 of 1#2 Overflowed", "detached 1#2 Overflowed"]);
        }
    }
}

#[test]
fn every_member_yields_in_turn() {
    for overflow in [Overflow::Wait, Overflow::Evict] {
        let mut rig = Rig::with(Demux::multicast).with_silent_sinks();
        let members: Vec<_> =
            (1..=5).map(|tag| rig.attach_on(1, tag, |a| a.tag(tag).overflow(overflow))).collect();
        for member in &members {
            member.stutter(Op::Ready, 1);
        }
        rig.input.push(101);
        for turn in 0..5_usize {
            let taken: Vec<_> = members.iter().map(SinkHandle::taken).collect();
            assert_eq!(
                taken.iter().sum::<usize>(),
                turn.saturating_sub(1),
                "{overflow:?}: {taken:?}"
            );
            rig.still_holds();
        }
        assert!(rig.lines().is_empty());
        assert!(members.iter().all(|member| member.items() == [101]));
    }
}

#[test]
fn sixteen_turns_are_counted_separately_for_each_member() {
    let mut rig = Rig::with(Demux::multicast).with_silent_sinks();
    let members: Vec<_> = (1..=40)
        .map(|tag| rig.attach_on(1, tag, |a| a.tag(tag).overflow(Overflow::Evict)))
        .collect();
    for member in &members {
        member.stutter(Op::Ready, 1);
    }
    assert!(rig.send([101]).is_empty());
    assert!(members.iter().all(|member| member.items() == [101]));
}

// Late in a long turn, when tokio does not wake at once.

/// Attaches a parked sink `a` under key 1 with `overflow`, and sends its item after `operations` of
/// other sinks: one for each order read, each item read and each item sent.
#[track_caller]
fn parked_late(overflow: Overflow, orders: usize, items: usize) -> (Rig, SinkHandle<u32>) {
    let mut rig = Rig::new().with_silent_sinks();
    rig.attach(2, "b");
    let a = rig.attach_on(1, "a", on(overflow));
    a.park();
    a.lenient();
    rig.orders.extend((0..orders).map(|_| idle_order()));
    rig.input.extend((0..items).map(|_| 200));
    rig.input.push(101);
    (rig, a)
}

/// Orders and items of other sinks, such that the item for `a` is read as the last of these
/// operations.
const LONG: [(usize, usize); 3] = [(63, 0), (1, 31), (20, 22)];
const SHORT: [(usize, usize); 3] = [(62, 0), (0, 31), (20, 21)];

#[test]
fn pending_after_64_operations_counts_as_yield_though_no_waker_fired() {
    for (orders, items) in LONG {
        let (mut rig, a) = parked_late(Overflow::Evict, orders, items);
        rig.poll();
        assert_eq!((rig.log.take(), rig.totals().queued), (vec![], 1), "{orders}, {items}");
        assert!(rig.task.woken());
        // The sink is polled once more although its waker did not fire.
        let gate = a.clone();
        a.during(Op::Ready, move || gate.open());
        rig.poll();
        assert_eq!((a.items(), a.count(Op::Ready)), (vec![101], 2), "{orders}, {items}");
        assert!(rig.log.take().is_empty());
    }
}

#[test]
fn pending_in_the_next_turn_counts_as_full() {
    for (orders, items) in LONG {
        let (mut rig, a) = parked_late(Overflow::Evict, orders, items);
        rig.poll();
        assert_eq!(a.count(Op::Ready), 1);
        assert!(rig.log.take().is_empty());
        rig.poll();
        assert_eq!(rig.log.take(), ["discarded 101 of 1 Overflowed", "detached 1 Overflowed"]);
        assert_eq!(a.count(Op::Ready), 2);
    }
}

#[test]
fn pending_after_fewer_operations_counts_as_full_at_once() {
    for (orders, items) in SHORT {
        let (mut rig, a) = parked_late(Overflow::Evict, orders, items);
        rig.poll();
        assert_eq!(rig.log.take(), ["discarded 101 of 1 Overflowed", "detached 1 Overflowed"]);
        assert_eq!(a.count(Op::Ready), 1, "{orders}, {items}");
    }
}

#[test]
fn pending_after_64_operations_counts_as_full_at_once_under_wait() {
    for (orders, items) in LONG {
        let (mut rig, a) = parked_late(Overflow::Wait, orders, items);
        rig.poll();
        assert_eq!(rig.log.take(), ["blocked 1"], "{orders}, {items}");
        rig.sleep();
        assert_eq!(a.count(Op::Ready), 1);
    }
}

#[test]
fn pending_after_64_operations_is_polled_once_more_also_if_its_item_was_queued() {
    for overflow in [Overflow::DropNewest, Overflow::DropOldest] {
        for (orders, items) in LONG {
            let (mut rig, a) = parked_late(overflow, orders, items);
            rig.poll();
            assert_eq!((rig.log.take(), rig.totals().queued), (vec![], 1));
            let gate = a.clone();
            a.during(Op::Ready, move || gate.open());
            rig.sleep();
            assert_eq!((a.items(), a.count(Op::Ready)), (vec![101], 2), "{overflow:?}");
        }
    }
}

#[test]
fn pending_after_64_operations_is_polled_at_most_once_more() {
    for overflow in [Overflow::DropNewest, Overflow::DropOldest] {
        let (mut rig, a) = parked_late(overflow, 63, 0);
        rig.sleep();
        assert_eq!((a.count(Op::Ready), rig.totals().queued), (2, 1), "{overflow:?}");
        rig.send([201, 202]);
        assert_eq!(a.count(Op::Ready), 2);
    }
}

#[test]
fn pending_after_a_wake_counts_as_full_though_the_previous_did_not() {
    let (mut rig, a) = parked_late(Overflow::Evict, 63, 0);
    rig.poll();
    a.allow(1);
    rig.input.push(102);
    rig.poll();
    assert_eq!(rig.log.take(), ["discarded 102 of 1 Overflowed", "detached 1 Overflowed"]);
    assert_eq!((a.items(), a.count(Op::Ready)), (vec![101], 3));
}

#[test]
fn flushes_and_closes_count_as_operations() {
    for close in [false, true] {
        let mut rig = Rig::new().with_silent_sinks();
        let others = rig.attach_each(200..270);
        let a = rig.attach_on(1, "a", on(Overflow::Evict));
        a.park();
        a.lenient();
        let op = if close { Op::Close } else { Op::Flush };
        for sink in &others {
            sink.hold(op);
        }
        if close {
            rig.orders.extend((200..270).map(Order::Detach));
        } else {
            rig.input.extend((200..270).map(|key| 100 * key));
        }
        rig.lines();
        for sink in &others {
            sink.release(op);
        }
        rig.input.push(101);
        rig.poll();
        let logged = hooks_of_1(&rig);
        assert_eq!((logged, rig.totals().queued), (vec![], 1), "{op:?}");
        rig.poll();
        assert_eq!(
            hooks_of_1(&rig),
            ["discarded 101 of 1 Overflowed", "detached 1 Overflowed"],
            "{op:?}"
        );
    }
}

/// The calls to hooks for key 1.
fn hooks_of_1(rig: &Rig) -> Vec<String> {
    let mut lines = rig.log.take();
    lines.retain(|line| line.contains(" 1 "));
    lines
}

// Guarantee 4: only `poll_ready` of a retried sink is called, because its waker has not fired.

#[test]
fn pending_flush_is_not_repeated_when_a_sink_is_retried() {
    for overflow in [Overflow::DropNewest, Overflow::DropOldest, Overflow::Evict] {
        let mut rig = Rig::new();
        let a = rig.attach_on(1, "a", |attach| attach.overflow(overflow).buffer(2));
        rig.attach(2, "b");
        a.hold(Op::Flush);
        rig.input.push(101);
        rig.lines();
        assert_eq!((a.count(Op::Ready), a.count(Op::Flush)), (1, 1), "{overflow:?}");

        a.park();
        rig.input.extend(std::iter::repeat_n(201, 64));
        rig.input.push(102);
        rig.lines();
        assert_eq!(a.count(Op::Ready), 3, "{overflow:?}: `poll_ready` was not called again");
        assert_eq!(a.count(Op::Flush), 1, "{overflow:?}: `poll_flush` was called again");

        a.release(Op::Flush);
        a.open();
        rig.lines();
        assert_eq!((a.items(), a.flushed()), (vec![101, 102], 2), "{overflow:?}");
    }
}

/// After many operations of a turn, `Pending` may be a yield. If as many operations precede the
/// retry, it may be a yield again; but each turn polls the sink only once.
#[test]
fn sink_that_is_retried_late_in_a_turn_is_polled_once_in_it() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.overflow(Overflow::Evict));
    rig.attach(2, "b");
    rig.log.take();
    a.park();
    rig.input.extend(std::iter::repeat_n(201, 80));
    rig.input.push(101);
    rig.poll();
    assert_eq!((a.count(Op::Ready), rig.totals().queued), (1, 1));
    for _ in 0..80 {
        rig.orders.push(idle_order());
    }
    rig.poll();
    assert_eq!((a.count(Op::Ready), rig.totals().queued), (2, 1));
    rig.poll();
    assert_eq!(
        (a.count(Op::Ready), a.is_dropped()),
        (3, true),
        "after few operations, the sink counts as full"
    );
}
