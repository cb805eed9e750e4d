//! Sinks that reserve capacity which other sinks need: clones of a `PollSender` compete for the
//! places of one channel, and a clone that was polled keeps its place, or its position in the queue
//! for one, until it is used.
//!
//! Therefore the demux calls `poll_ready` only for an item that the sink then gets (attachment rule
//! on `Overflow`, and guarantee 4). Otherwise an unused reservation would block all other senders
//! although the channel is empty.

use crate::common::real::{FLAVORS, Receiving, assert_settled, reader, tokio_channel};
use crate::common::{self, Answer, Call, Op, Rig, SinkHandle, Task};
use futures::channel::mpsc as futures_mpsc;
use futures::{StreamExt, future, stream};
use stream_demux::{Attach, Demux, DemuxStreamExt, Lease, Order, Overflow, Totals};
use tokio::sync::mpsc;
use tokio_util::sync::PollSender;

const DROPPING: [Overflow; 2] = [Overflow::DropNewest, Overflow::DropOldest];

/// The key of item `n` is `n / 10`.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "key functions take a reference")]
fn tens(n: &u32) -> u32 {
    n / 10
}

/// Runs demuxes that share channels, which must complete. Returns the items read from each channel.
#[track_caller]
fn run_all<F: Future<Output = Totals>>(
    tasks: &mut [Task<F>],
    receivers: &mut [mpsc::Receiver<u32>],
) -> Vec<Vec<u32>> {
    let mut read = vec![Vec::new(); receivers.len()];
    let mut running: Vec<_> = tasks.iter_mut().collect();
    for _ in 0..1_000 {
        running.retain_mut(|task| task.run().is_pending());
        for (receiver, read) in receivers.iter_mut().zip(&mut read) {
            read.extend(receiver.try_recv().ok());
        }
        if running.is_empty() {
            for (receiver, read) in receivers.iter_mut().zip(&mut read) {
                read.extend(std::iter::from_fn(|| receiver.try_recv().ok()));
            }
            return read;
        }
    }
    panic!("{} demuxes did not complete; {read:?} was read", running.len());
}

// One group, one channel.

#[test]
fn two_members_share_a_channel_of_one_place() {
    let (sender, mut receiver) = mpsc::channel(1);
    let sinks = [(1, PollSender::new(sender.clone())), (1, PollSender::new(sender))];
    let demux = stream::iter([11]).demux_by(tens, stream::iter(sinks)).multicast();
    let mut task = Task::new(demux);
    assert!(task.run().is_pending());
    // The first member has sent its copy, the second waits for the place.
    assert_eq!((task.get_ref().totals().delivered, task.get_ref().totals().queued), (1, 1));
    assert_eq!(receiver.try_recv(), Ok(11));
    assert!(task.woken());
    assert!(task.run().is_ready());
    assert_eq!(receiver.try_recv(), Ok(11));
}

#[test]
fn many_members_share_a_channel_of_one_place() {
    for members in [2, 3, 10] {
        let (sender, receiver) = mpsc::channel(1);
        let sinks = (0..members).map(|_| (1, PollSender::new(sender.clone()))).collect::<Vec<_>>();
        drop(sender);
        let items = stream::iter(10..20);
        let mut task = [Task::new(items.demux_by(tens, stream::iter(sinks)).multicast())];
        let read = run_all(&mut task, &mut [receiver]);
        let all: Vec<_> = (10..20).flat_map(|n| (0..members).map(move |_| n)).collect();
        assert_eq!(read, [all]);
    }
}

#[test]
fn members_share_a_channel_under_every_policy_and_none_starves() {
    for overflow in [Overflow::Wait, Overflow::DropNewest, Overflow::DropOldest] {
        for buffer in [0, 1, 3] {
            let (sender, receiver) = mpsc::channel(1);
            let sinks =
                (0..3).map(|_| Attach::new(1, PollSender::new(sender.clone()))).collect::<Vec<_>>();
            drop(sender);
            let demux = stream::iter([11]).demux_by(tens, stream::iter(sinks));
            let demux = demux.multicast().overflow(overflow).buffer(buffer);
            let read = run_all(&mut [Task::new(demux)], &mut [receiver]);
            assert_eq!(read, [vec![11; 3]], "{overflow:?}, {buffer}");
        }
    }
}

#[test]
fn tokio_group_on_one_channel_of_one_place_runs_to_its_end() {
    for flavor in FLAVORS {
        let (totals, read) = flavor.run(async {
            let (sender, receiver) = mpsc::channel(1);
            let sinks = (0..5).map(|_| (1, PollSender::new(sender.clone()))).collect::<Vec<_>>();
            drop(sender);
            let reader = reader(receiver);
            let input = stream::iter(0..1_000);
            let demux = tokio::spawn(input.demux_by(|_| 1, stream::iter(sinks)).multicast());
            (demux.await.expect("the task panicked"), reader.await.expect("the task panicked"))
        });
        assert_settled(totals);
        assert_eq!((totals.delivered, read.len()), (5_000, 5_000), "{flavor:?}");
        assert!(read.is_sorted());
    }
}

#[test]
fn futures_group_on_one_channel_runs_to_its_end() {
    for flavor in FLAVORS {
        let (totals, read) = flavor.run(async {
            let (sender, receiver) = futures_mpsc::channel(0);
            let sinks = (0..5).map(|_| (1, sender.clone())).collect::<Vec<_>>();
            drop(sender);
            let input = stream::iter(0..1_000);
            let demux = tokio::spawn(input.demux_by(|_| 1, stream::iter(sinks)).multicast());
            let read = receiver.collect::<Vec<_>>().await;
            (demux.await.expect("the task panicked"), read)
        });
        assert_settled(totals);
        assert_eq!((totals.delivered, read.len()), (5_000, 5_000), "{flavor:?}");
    }
}

// Two demuxes.

#[test]
fn two_demuxes_name_two_channels_in_opposite_order() {
    let channels = [mpsc::channel(1), mpsc::channel(1)];
    let [(a, a_out), (b, b_out)] = channels;
    let group = |first: &mpsc::Sender<u32>, second: &mpsc::Sender<u32>| {
        let sinks = [first, second].map(|sender| (1, PollSender::new(sender.clone())));
        Task::new(stream::iter(10..20).demux_by(tens, stream::iter(sinks)).multicast())
    };
    let mut tasks = [group(&a, &b), group(&b, &a)];
    drop((a, b));
    let read = run_all(&mut tasks, &mut [a_out, b_out]);
    for mut read in read {
        read.sort_unstable();
        let twice: Vec<_> = (10..20).flat_map(|n| [n, n]).collect();
        assert_eq!(read, twice);
    }
}

#[test]
fn five_demuxes_share_five_channels_each_with_its_neighbours() {
    let (senders, mut receivers): (Vec<_>, Vec<_>) = (0..5).map(|_| mpsc::channel(1)).unzip();
    let mut tasks: Vec<_> = (0..5)
        .map(|n| {
            let sinks = [n, (n + 1) % 5].map(|n| (1, PollSender::new(senders[n].clone())));
            Task::new(stream::iter(10..20).demux_by(tens, stream::iter(sinks)).multicast())
        })
        .collect();
    drop(senders);
    let read = run_all(&mut tasks, &mut receivers);
    assert!(read.iter().all(|read| read.len() == 20), "{read:?}");
}

#[test]
fn tokio_two_demuxes_name_two_channels_in_opposite_order() {
    const ITEMS: usize = 1_000;
    for flavor in FLAVORS {
        let (totals, read) = flavor.run(async {
            let [(a, a_out), (b, b_out)] = [mpsc::channel(1), mpsc::channel(1)];
            let readers = [reader(a_out), reader(b_out)];
            let group = |first: &mpsc::Sender<usize>, second: &mpsc::Sender<usize>| {
                let sinks = [first, second].map(|sender| (1, PollSender::new(sender.clone())));
                let input = stream::iter(0..ITEMS);
                tokio::spawn(input.demux_by(|_| 1, stream::iter(sinks)).multicast())
            };
            let demuxes = [group(&a, &b), group(&b, &a)];
            drop((a, b));
            let totals = future::join_all(demuxes).await;
            (totals, future::join_all(readers).await)
        });
        for totals in totals {
            let totals = totals.expect("the task panicked");
            assert_settled(totals);
            assert_eq!(totals.delivered, 2 * ITEMS as u64, "{flavor:?}");
        }
        assert!(read.into_iter().all(|read| read.expect("the task panicked").len() == 2 * ITEMS));
    }
}

// Two keys, one full channel of one place.

/// Creates a demux of two keys whose sinks share a channel of one place, which holds 0.
fn full_channel_of_two_keys(
    one: Overflow,
    two: Overflow,
) -> (Task<impl Future<Output = Totals>>, common::StreamHandle<u32>, mpsc::Receiver<u32>) {
    let (sender, receiver) = mpsc::channel(1);
    sender.try_send(0).expect("the channel is not empty");
    let (input, items) = common::scripted_stream("input");
    let orders = stream::iter([
        Attach::new(1, PollSender::new(sender.clone())).overflow(one),
        Attach::new(2, PollSender::new(sender)).overflow(two),
    ]);
    (Task::new(input.demux_by(tens, orders)), items, receiver)
}

/// Reads an item whenever the demux parks, until it completes. Returns the items.
#[track_caller]
fn read_to_the_end(
    task: &mut Task<impl Future<Output = Totals>>,
    receiver: &mut mpsc::Receiver<u32>,
) -> Vec<u32> {
    let mut read = Vec::new();
    while task.run().is_pending() {
        read.push(receiver.try_recv().expect("the demux parked with an empty channel"));
    }
    read.extend(receiver.try_recv());
    read
}

#[test]
fn key_that_drops_takes_the_first_free_place_and_key_that_waits_the_next() {
    for dropping in DROPPING {
        let (mut task, items, mut receiver) = full_channel_of_two_keys(dropping, Overflow::Wait);
        items.extend([11, 21]);
        items.end();
        assert_eq!(read_to_the_end(&mut task, &mut receiver), [0, 11, 21], "{dropping:?}");
    }
}

#[test]
fn key_that_waits_takes_the_first_free_place_if_its_item_came_first() {
    for dropping in DROPPING {
        let (mut task, items, mut receiver) = full_channel_of_two_keys(dropping, Overflow::Wait);
        items.extend([21, 11]);
        items.end();
        assert_eq!(read_to_the_end(&mut task, &mut receiver), [0, 21, 11], "{dropping:?}");
    }
}

#[test]
fn two_keys_that_drop_both_progress() {
    for one in DROPPING {
        for two in DROPPING {
            let (mut task, items, mut receiver) = full_channel_of_two_keys(one, two);
            items.extend([11, 21]);
            items.end();
            assert_eq!(read_to_the_end(&mut task, &mut receiver), [0, 11, 21], "{one:?}, {two:?}");
        }
    }
}

#[test]
fn key_that_drops_and_has_no_items_leaves_the_channel_to_the_other() {
    for one in DROPPING {
        for two in DROPPING {
            let (mut task, items, mut receiver) = full_channel_of_two_keys(one, two);
            items.push(11);
            let mut read = Vec::new();
            for n in 21..=25 {
                assert!(task.run().is_pending());
                read.extend(receiver.try_recv());
                items.push(n);
            }
            items.end();
            read.extend(read_to_the_end(&mut task, &mut receiver));
            assert_eq!(read, [0, 11, 21, 22, 23, 24, 25], "{one:?}, {two:?}");
        }
    }
}

#[test]
fn two_keys_that_drop_share_the_channel_permanently() {
    for one in DROPPING {
        for two in DROPPING {
            let (mut task, items, mut receiver) = full_channel_of_two_keys(one, two);
            let mut read = Vec::new();
            for _ in 0..100 {
                items.extend([11, 21]);
                assert!(task.run().is_pending());
                read.extend(receiver.try_recv());
            }
            assert_eq!(read.len(), 100, "a free place was not used");
            let of = |key| read.iter().filter(|n| **n / 10 == key).count();
            assert!(of(1).abs_diff(of(2)) <= 1, "{} and {}: {one:?}, {two:?}", of(1), of(2));
        }
    }
}

#[test]
fn tokio_channel_of_one_place_serves_keys_of_every_policy() {
    const KEYS: usize = 30;
    const EACH: usize = 50;
    for flavor in FLAVORS {
        let (totals, read) = flavor.run(async {
            let (sender, receiver) = mpsc::channel(1);
            let policies = [Overflow::Wait, Overflow::DropNewest, Overflow::DropOldest];
            let sinks: Vec<_> = (0..KEYS)
                .map(|key| {
                    let sink = PollSender::new(sender.clone());
                    Attach::new(key, sink).overflow(policies[key % 3])
                })
                .collect();
            drop(sender);
            let reader = reader(receiver);
            let input = stream::iter(0..KEYS * EACH);
            let demux = tokio::spawn(input.demux_by(|n| n % KEYS, stream::iter(sinks)));
            (demux.await.expect("the task panicked"), reader.await.expect("the task panicked"))
        });
        assert_settled(totals);
        assert_eq!(totals.delivered, read.len() as u64);
        for key in 0..KEYS {
            let of_key = read.iter().filter(|n| **n % KEYS == key).count();
            let least = if key % 3 == 0 { EACH } else { 1 };
            assert!(of_key >= least, "{flavor:?}: {of_key} of key {key}");
        }
    }
}

// A reservation ends with its item.

#[test]
fn evicted_sink_releases_its_reservation() {
    let (sender, mut receiver) = mpsc::channel(1);
    sender.try_send(0).expect("the channel is not empty");
    let mut lease = Lease::new();
    let (input, items) = common::scripted_stream("input");
    let attach = Attach::new(1, PollSender::new(sender.clone())).overflow(Overflow::DropNewest);
    let mut task = Task::new(input.demux_by(tens, stream::iter([attach.leased(&mut lease)])));
    items.push(11);
    assert!(task.run().is_pending());
    drop(lease);
    assert!(task.run().is_pending());
    assert_eq!((receiver.try_recv(), task.get_ref().totals().discarded), (Ok(0), 1));
    sender.try_send(90).expect("a sender holds a reservation");
}

#[test]
fn replaced_sink_releases_its_reservation() {
    let (sender, mut receiver) = mpsc::channel(1);
    sender.try_send(0).expect("the channel is not empty");
    let (successor, mut results) = tokio_channel(4);
    let (input, items) = common::scripted_stream("input");
    let (orders, orders_handle) = common::scripted_stream("orders");
    let mut task = Task::new(input.demux_by(tens, orders));
    orders_handle.push(Attach::new(1, PollSender::new(sender.clone())).buffer(2));
    items.extend([11, 12]);
    assert!(task.run().is_pending());
    orders_handle.push(Attach::new(1, successor));
    assert!(task.run().is_pending());
    assert_eq!((results.try_recv(), results.try_recv()), (Ok(11), Ok(12)));
    assert_eq!(receiver.try_recv(), Ok(0));
    sender.try_send(90).expect("a sender holds a reservation");
}

#[test]
fn sink_without_items_keeps_no_reservation() {
    for overflow in [Overflow::Wait, Overflow::DropNewest, Overflow::DropOldest] {
        let (sender, mut receiver) = mpsc::channel(1);
        sender.try_send(0).expect("the channel is not empty");
        let (input, items) = common::scripted_stream("input");
        let attach = Attach::new(1, PollSender::new(sender.clone())).overflow(overflow);
        let mut task = Task::new(input.demux_by(tens, stream::iter([attach])));
        items.push(11);
        for expected in [0, 11] {
            assert!(task.run().is_pending());
            assert_eq!(receiver.try_recv(), Ok(expected), "{overflow:?}");
        }
        assert!(task.run().is_pending());
        sender.try_send(90).expect("a sender holds a reservation");
    }
}

#[test]
fn reader_of_a_shared_channel_feeds_the_demux_itself() {
    // Items that are read become input again: each place is used at once by the first waiting
    // sender.
    let (sender, receiver) = mpsc::channel(1);
    let orders = stream::iter([1, 2].map(|key| {
        Attach::new(key, PollSender::new(sender.clone())).overflow(Overflow::DropOldest)
    }));
    sender.try_send(10).expect("the channel is not empty");
    drop(sender);
    let input = Receiving(receiver).map(|n| if n < 20 { n + 10 } else { n - 10 });
    let mut task = Task::new(input.demux_by(tens, orders));
    for _ in 0..100 {
        assert!(task.poll().is_pending());
    }
    let totals = task.get_ref().totals();
    assert!(totals.delivered > 100, "{totals:?}");
    assert_eq!(totals.discarded, 0);
}

// Scripted sinks: if `poll_ready` is pending, an item waits; if it is ready, an item is sent.

fn rig() -> Rig {
    Rig::new().with_silent_sinks()
}

#[test]
fn sink_that_is_not_ready_has_an_item_waiting_under_every_policy() {
    for overflow in [Overflow::Wait, Overflow::DropNewest, Overflow::DropOldest] {
        for buffer in 0..3 {
            let mut rig = rig();
            let sink = rig.attach_on(1, "a", |a| a.overflow(overflow).buffer(buffer));
            sink.park();
            for item in 101..=105 {
                rig.send([item]);
                assert!(sink.is_waiting(Op::Ready) && rig.totals().queued > 0);
            }
            sink.open();
            rig.lines();
            assert!(sink.taken() > 0 && rig.totals().queued == 0, "{overflow:?}, {buffer}");
            assert_eq!(sink.calls().first(), Some(&Call::Ready(Answer::Pending)));
            assert_every_promise_is_used(&sink);
        }
    }
}

/// Asserts that an item followed each `Ready` at once.
#[track_caller]
fn assert_every_promise_is_used(sink: &SinkHandle<u32>) {
    let calls = sink.calls();
    for pair in calls.windows(2) {
        if pair[0] == Call::Ready(Answer::Done) {
            assert_eq!(pair[1], Call::Send(Answer::Done), "{calls:?}");
        }
    }
    assert_ne!(calls.last(), Some(&Call::Ready(Answer::Done)), "{calls:?}");
}

#[test]
fn members_of_a_group_use_every_readiness_at_once() {
    let mut rig = Rig::with(Demux::multicast).with_silent_sinks();
    let members: Vec<_> =
        (1..=4).map(|tag| rig.attach_on(1, tag, |attach| attach.tag(tag))).collect();
    members[1].park();
    members[3].park();
    rig.input.extend(101..=110);
    for step in 0..20 {
        rig.sleep();
        members.iter().for_each(assert_every_promise_is_used);
        members[if step % 2 == 0 { 1 } else { 3 }].allow(1);
    }
    rig.sleep();
    assert!(members.iter().all(|member| member.taken() == 10));
    members.iter().for_each(assert_every_promise_is_used);
}

#[test]
fn single_place_of_a_sink_that_drops_counts_as_queued_and_towards_its_limit() {
    for overflow in DROPPING {
        let mut rig = rig();
        let sink = rig.attach_on(1, "a", |attach| attach.overflow(overflow).limit(1));
        sink.park();
        assert_eq!(rig.send([101, 102]), ["unmatched 102"], "{overflow:?}");
        assert_eq!((rig.len(), rig.totals().queued), (0, 1));
        sink.open();
        assert_eq!(rig.lines(), ["detached 1 Limited"]);
        assert_eq!(sink.items(), [101]);
    }
}

#[test]
fn default_buffer_of_0_means_one_place_for_dropping_policies_and_none_for_others() {
    for explicit in [false, true] {
        for (overflow, queued) in [
            (Overflow::Wait, 1), // held
            (Overflow::DropNewest, 1),
            (Overflow::DropOldest, 1),
            (Overflow::Evict, 0),
        ] {
            let settings = |demux: common::Split| demux.overflow(overflow).buffer(0);
            let mut rig = if explicit { rig() } else { Rig::with(settings).with_silent_sinks() };
            let sink = rig.attach_on(1, "a", |attach| {
                if explicit { attach.overflow(overflow).buffer(0) } else { attach }
            });
            sink.park();
            rig.send([101]);
            assert_eq!(rig.totals().queued, queued, "{overflow:?}, {explicit}");
            let blocked = overflow == Overflow::Wait;
            assert_eq!(rig.task.get_ref().blocked_on().is_some(), blocked);
            assert_eq!(sink.is_dropped(), overflow == Overflow::Evict);
        }
    }
}

#[test]
fn full_sink_that_drops_the_oldest_has_the_latest_value() {
    let mut rig = rig();
    let sink = rig.attach_on(1, "a", |attach| attach.overflow(Overflow::DropOldest));
    sink.park();
    for item in 101..=120 {
        rig.send([item]);
        assert_eq!(rig.totals().queued, 1);
    }
    sink.allow(1);
    rig.sleep();
    assert_eq!((sink.items(), rig.totals().discarded), (vec![120], 19));
    rig.send([121, 122]);
    sink.open();
    rig.sleep();
    assert_eq!(sink.items(), [120, 122]);
}

#[test]
fn sink_that_drops_is_sent_its_one_item_also_when_it_leaves() {
    for overflow in DROPPING {
        let mut rig = rig();
        let sink = rig.attach_on(1, "a", |attach| attach.overflow(overflow));
        sink.park();
        rig.send([101]);
        assert!(rig.apply(Order::Detach(1)).is_empty());
        sink.open();
        assert_eq!(rig.lines(), ["detached 1 Requested"]);
        assert_eq!((sink.items(), sink.is_closed()), (vec![101], true));
    }
}
