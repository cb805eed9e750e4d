//! Sinks that reserve capacity which other sinks need: clones of a `PollSender` compete for the
//! places of one channel, and a clone that was polled keeps its place, or its position in the queue
//! for one, until it is used.
//!
//! Therefore the demux calls `poll_ready` only for an item that the sink then gets (attachment rule
//! on `Overflow`, and guarantee 4). Otherwise an unused reservation would block all other senders
//! although the channel is empty.

use crate::common::real::{RUNTIMES, Receiving, assert_settled};
use crate::common::{Task, scripted_stream};
use futures::{StreamExt, stream};
use stream_demux::{Attach, DemuxStreamExt, Overflow};
use tokio::sync::mpsc;
use tokio_util::sync::PollSender;

// One group, one channel.

#[test]
fn two_members_share_a_channel_of_one_place() {
    let (sender, mut receiver) = mpsc::channel(1);
    let sinks = [(1, PollSender::new(sender.clone())), (1, PollSender::new(sender))];
    let demux = stream::iter([11]).demux_by(|n| n / 10, stream::iter(sinks)).multicast();
    let mut task = Task::new(demux);
    assert!(task.run().is_pending());
    // The first member has sent its copy, the second waits for the place.
    assert_eq!((task.get_ref().totals().delivered, task.get_ref().totals().queued), (1, 1));
    assert_eq!(receiver.try_recv(), Ok(11));
    assert!(task.woken());
    assert!(task.run().is_ready());
    assert_eq!(receiver.try_recv(), Ok(11));
}

// Two keys, one full channel of one place.

#[test]
fn tokio_channel_of_one_place_serves_keys_of_every_policy() {
    const KEYS: usize = 30;
    const EACH: usize = 50;
    for runtime in RUNTIMES {
        let (totals, read) = runtime.run(async {
            let (sender, receiver) = mpsc::channel(1);
            let policies = [Overflow::Wait, Overflow::DropNewest, Overflow::DropOldest];
            let sinks: Vec<_> = (0..KEYS)
                .map(|key| {
                    let sink = PollSender::new(sender.clone());
                    Attach::new(key, sink).overflow(policies[key % 3])
                })
                .collect();
            drop(sender);
            let reader = tokio::spawn(Receiving(receiver).collect::<Vec<_>>());
            let input = stream::iter(0..KEYS * EACH);
            let demux = tokio::spawn(input.demux_by(|n| n % KEYS, stream::iter(sinks)));
            (demux.await.expect("the task panicked"), reader.await.expect("the task panicked"))
        });
        assert_settled(totals);
        assert_eq!(totals.delivered, read.len() as u64);
        for key in 0..KEYS {
            let of_key = read.iter().filter(|n| **n % KEYS == key).count();
            let least = if key % 3 == 0 { EACH } else { 1 };
            assert!(of_key >= least, "{runtime:?}: {of_key} of key {key}");
        }
    }
}

// A reservation ends with its item.

#[test]
fn sink_without_items_keeps_no_reservation() {
    for overflow in [Overflow::Wait, Overflow::DropNewest, Overflow::DropOldest] {
        let (sender, mut receiver) = mpsc::channel(1);
        sender.try_send(0).expect("the channel is not empty");
        let (input, items) = scripted_stream("input");
        let attach = Attach::new(1, PollSender::new(sender.clone())).overflow(overflow);
        let mut task = Task::new(input.demux_by(|n| n / 10, stream::iter([attach])));
        items.push(11);
        for expected in [0, 11] {
            assert!(task.run().is_pending());
            assert_eq!(receiver.try_recv(), Ok(expected), "{overflow:?}");
        }
        assert!(task.run().is_pending());
        sender.try_send(90).expect("a sender holds a reservation");
    }
}
