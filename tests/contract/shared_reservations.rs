//! Sinks that reserve capacity which other sinks need: clones of a `PollSender` compete for the
//! places of one channel, and a clone that was polled keeps its place, or its position in the queue
//! for one, until it is used.
//!
//! Therefore the demux calls `poll_ready` only for an item that the sink then gets (attachment rule
//! on `Overflow`, and guarantee 4). Otherwise an unused reservation would block all other senders
//! although the channel is empty.

use crate::common::real::{FLAVORS, assert_settled, reader};
use crate::common::{self, Task};
use futures::stream;
use stream_demux::{Attach, DemuxStreamExt, Overflow, Totals};
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
