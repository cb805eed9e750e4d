//! `Overflow` (attachment rules): the fate of an item when the queue is full and the sink is not
//! ready, under each of the four policies, with and without a queue (guarantees 2, 3, 7). Every
//! count is exact. Under `DropNewest` and `DropOldest`, a queue has at least one place: `buffer(0)`
//! means 1.

use crate::common::{Op, Rig, SinkHandle, Split, scripted_sink};
use stream_demux::{Attach, Order, Overflow};

const ALL: [Overflow; 4] =
    [Overflow::Wait, Overflow::DropNewest, Overflow::DropOldest, Overflow::Evict];

fn rig() -> Rig {
    rig_with(|demux| demux)
}

/// Logs only hooks.
fn rig_with(settings: impl FnOnce(Split) -> Split) -> Rig {
    Rig::with(settings).with_silent_sinks()
}

impl Rig {
    /// Attaches a parked sink under key 1 with these settings.
    #[track_caller]
    fn parked(&mut self, overflow: Overflow, buffer: usize) -> SinkHandle<u32> {
        let sink = self.attach_on(1, "a", |attach| attach.overflow(overflow).buffer(buffer));
        sink.park();
        sink
    }
}

fn dropped(items: impl IntoIterator<Item = u32>) -> Vec<String> {
    items.into_iter().map(|n| format!("discarded {n} of {} Overflowed", n / 100)).collect()
}

// A sink that is ready.

#[test]
fn ready_sink_gets_everything_whatever_its_policy_and_queue() {
    for overflow in ALL {
        for buffer in [0, 1, 3] {
            let mut rig = rig();
            let sink = rig.attach_on(1, "a", |attach| attach.overflow(overflow).buffer(buffer));
            assert!(rig.send(101..150).is_empty(), "{overflow:?} {buffer}");
            assert_eq!(sink.items(), (101..150).collect::<Vec<_>>());
            assert_eq!((rig.totals().delivered, rig.totals().queued), (49, 0));
        }
    }
}

#[test]
fn item_goes_straight_to_a_ready_sink_and_is_not_queued_first() {
    for overflow in ALL {
        let mut rig = rig();
        let sink = rig.attach_on(1, "a", |attach| attach.overflow(overflow).buffer(8));
        rig.input.push(101);
        rig.poll();
        assert_eq!((sink.items(), rig.totals().queued), (vec![101], 0));
    }
}

#[test]
fn queue_takes_items_up_to_its_buffer_under_every_policy() {
    for overflow in ALL {
        let mut rig = rig();
        let sink = rig.parked(overflow, 3);
        assert!(rig.send([101, 102, 103]).is_empty(), "{overflow:?}");
        assert_eq!((rig.totals().queued, sink.count(Op::Ready)), (3, 1));
        sink.open();
        assert!(rig.lines().is_empty());
        assert_eq!(sink.items(), [101, 102, 103]);
    }
}

// Wait.

#[test]
fn wait_without_a_queue_holds_the_first_item_and_stops_reading() {
    let mut rig = rig();
    let sink = rig.parked(Overflow::Wait, 0);
    assert_eq!(rig.send([101, 102, 103]), ["blocked 1"]);
    assert_eq!((rig.input.taken(), rig.totals().received, rig.totals().queued), (1, 1, 1));
    assert_eq!(rig.task.get_ref().blocked_on().map(|on| *on.key), Some(1));
    sink.open();
    assert_eq!(rig.lines(), ["unblocked 1"]);
    assert_eq!(sink.items(), [101, 102, 103]);
    assert!(rig.task.get_ref().blocked_on().is_none());
}

#[test]
fn wait_with_a_queue_holds_one_item_more_than_fits() {
    let mut rig = rig();
    let sink = rig.parked(Overflow::Wait, 2);
    assert_eq!(rig.send(101..=105), ["blocked 1"]);
    assert_eq!((rig.input.taken(), rig.totals().queued), (3, 3));
    sink.open();
    assert_eq!(rig.lines(), ["unblocked 1"]);
    assert_eq!(sink.items(), [101, 102, 103, 104, 105]);
    assert_eq!((rig.totals().delivered, rig.totals().discarded), (5, 0));
}

#[test]
fn blocked_is_called_once_per_held_item_and_not_once_per_poll() {
    let mut rig = rig();
    let sink = rig.parked(Overflow::Wait, 0);
    assert_eq!(rig.send([101, 102]), ["blocked 1"]);
    for _ in 0..3 {
        rig.poll();
        sink.wake(); // polled again, still not ready
        assert!(rig.lines().is_empty());
    }
    sink.allow(1);
    assert_eq!(rig.lines(), ["unblocked 1", "blocked 1"]);
    assert_eq!((sink.items(), rig.totals().queued), (vec![101], 1));
}

#[test]
fn wait_lets_one_item_into_the_queue_for_each_that_leaves_it() {
    let mut rig = rig();
    let sink = rig.parked(Overflow::Wait, 2);
    rig.send(101..=106);
    for n in 1..=3 {
        sink.allow(1);
        assert_eq!(rig.lines(), ["unblocked 1", "blocked 1"]);
        assert_eq!((sink.taken(), rig.input.taken(), rig.totals().queued), (n, n + 3, 3));
    }
    sink.allow(1);
    assert_eq!(rig.lines(), ["unblocked 1"]);
    assert_eq!((sink.items(), rig.totals().queued), ((101..=104).collect(), 2));
}

#[test]
fn wait_delays_the_items_of_others_and_another_policy_does_not() {
    for overflow in ALL {
        let mut rig = rig();
        rig.parked(overflow, 0);
        let other = rig.attach(2, "b");
        rig.send([101, 201, 102, 202]);
        let got = if overflow == Overflow::Wait { vec![] } else { vec![201, 202] };
        assert_eq!(other.items(), got, "{overflow:?}");
    }
}

#[test]
fn end_of_the_input_loses_no_waiting_item_under_any_policy() {
    for overflow in ALL {
        let mut rig = rig();
        let sink = rig.parked(overflow, 2);
        rig.send([101, 102]);
        rig.input.end();
        rig.sleep();
        assert!(rig.log.take().is_empty());
        sink.open();
        assert!(rig.run().is_ready());
        assert_eq!(rig.log.take(), ["detached 1 Finished"]);
        assert_eq!(sink.items(), [101, 102]);
    }
}

// DropNewest.

#[test]
fn drop_newest_without_a_buffer_queues_the_first_item_and_discards_the_others() {
    let mut rig = rig();
    let sink = rig.parked(Overflow::DropNewest, 0);
    assert_eq!(rig.send(101..=105), dropped(102..=105));
    assert_eq!((rig.totals().discarded, rig.totals().queued), (4, 1));
    assert_eq!(sink.count(Op::Ready), 1);
    sink.open();
    assert!(rig.send([106]).is_empty());
    assert_eq!(sink.items(), [101, 106]);
}

#[test]
fn drop_newest_keeps_queued_items() {
    let mut rig = rig();
    let sink = rig.parked(Overflow::DropNewest, 2);
    assert_eq!(rig.send(101..=105), dropped(103..=105));
    assert_eq!((rig.totals().discarded, rig.totals().queued), (3, 2));
    sink.open();
    assert!(rig.send([106]).is_empty());
    assert_eq!(sink.items(), [101, 102, 106]);
}

// DropOldest.

#[test]
fn drop_oldest_without_a_buffer_keeps_the_latest_item() {
    let mut rig = rig();
    let sink = rig.parked(Overflow::DropOldest, 0);
    assert_eq!(rig.send(101..=105), dropped(101..=104));
    assert_eq!((rig.totals().discarded, rig.totals().queued), (4, 1));
    sink.open();
    assert!(rig.send([106]).is_empty());
    assert_eq!(sink.items(), [105, 106]);
}

#[test]
fn drop_oldest_keeps_the_latest() {
    let mut rig = rig();
    let sink = rig.parked(Overflow::DropOldest, 2);
    assert_eq!(rig.send(101..=105), dropped(101..=103));
    assert_eq!((rig.totals().discarded, rig.totals().queued), (3, 2));
    sink.open();
    rig.lines();
    assert_eq!(sink.items(), [104, 105]);
}

#[test]
fn drop_oldest_with_a_queue_of_one_keeps_the_last() {
    let mut rig = rig();
    let sink = rig.parked(Overflow::DropOldest, 1);
    assert_eq!(rig.send(101..=104), dropped(101..=103));
    sink.open();
    rig.lines();
    assert_eq!(sink.items(), [104]);
}

#[test]
fn drop_oldest_lags_catches_up_and_lags_again() {
    let mut rig = rig();
    let sink = rig.parked(Overflow::DropOldest, 4);
    // Filled to capacity: no item is lost yet.
    assert!(rig.send(101..=104).is_empty());
    assert_eq!((rig.totals().queued, rig.totals().discarded), (4, 0));
    // The sink lags by three items.
    assert_eq!(rig.send(105..=107), dropped(101..=103));
    assert_eq!((rig.totals().queued, rig.totals().discarded), (4, 3));
    // It catches up by two, so two more fit.
    sink.allow(2);
    assert!(rig.lines().is_empty());
    assert_eq!(sink.take_items(), [104, 105]);
    assert!(rig.send([108, 109]).is_empty());
    assert_eq!((rig.totals().queued, rig.totals().discarded), (4, 3));
    // It lags by one and catches up entirely.
    assert_eq!(rig.send([110]), dropped([106]));
    sink.open();
    assert!(rig.lines().is_empty());
    assert_eq!(sink.take_items(), [107, 108, 109, 110]);
    assert_eq!((rig.totals().queued, rig.totals().discarded), (0, 4));
    assert!(rig.send([111]).is_empty());
    assert_eq!(sink.take_items(), [111]);
    // It lags again, by a full queue and one more.
    sink.park();
    assert_eq!(rig.send(112..=120), dropped(112..=116));
    sink.open();
    rig.lines();
    assert_eq!(sink.take_items(), [117, 118, 119, 120]);
    let t = rig.totals();
    assert_eq!((t.received, t.delivered, t.discarded, t.queued), (20, 11, 9, 0));
}

// Evict.

#[test]
fn evict_without_a_queue_ends_the_attachment_with_its_first_item() {
    let mut rig = rig();
    let sink = rig.parked(Overflow::Evict, 0);
    assert_eq!(
        rig.send([101, 102]),
        ["discarded 101 of 1 Overflowed", "detached 1 Overflowed", "unmatched 102"]
    );
    assert!(sink.is_dropped());
    assert_eq!((sink.count(Op::Close), sink.count(Op::Flush)), (0, 0));
}

#[test]
fn evict_discards_the_queue_in_order_then_the_item_and_then_calls_detached() {
    let mut rig = Rig::new();
    rig.parked(Overflow::Evict, 2);
    assert_eq!(
        rig.send(101..=105),
        [
            "a dropped",
            "discarded 101 of 1 Overflowed",
            "discarded 102 of 1 Overflowed",
            "discarded 103 of 1 Overflowed",
            "detached 1 Overflowed",
            "unmatched 104",
            "unmatched 105"
        ]
    );
    let t = rig.totals();
    assert_eq!((t.discarded, t.unmatched, t.queued, t.detached), (3, 2, 0, 1));
    assert_eq!(rig.len(), 0);
    assert!(!rig.task.get_ref().contains_key(&1));
}

#[test]
fn evict_frees_the_key_for_another_sink() {
    let mut rig = rig();
    rig.parked(Overflow::Evict, 0);
    rig.send([101]);
    let next = rig.attach_on(1, "a", Attach::keep_existing);
    assert!(rig.send([102]).is_empty());
    assert_eq!(next.items(), [102]);
}

// A full queue, but a ready sink.

#[test]
fn full_queue_moves_on_when_the_sink_is_ready_again_and_nothing_overflows() {
    for overflow in ALL {
        let mut rig = rig();
        let sink = rig.parked(overflow, 2);
        rig.send([101, 102]);
        // At the same time, the sink becomes ready and the next items arrive.
        sink.open();
        assert!(rig.send([103, 104, 105, 106]).is_empty(), "{overflow:?}");
        assert_eq!(sink.items(), [101, 102, 103, 104, 105, 106]);
    }
}

#[test]
fn queue_that_is_longer_than_its_buffer_overflows_nothing_while_the_sink_is_ready() {
    // A backlog of 20 moves to a sink with a queue of one. Turns are too short to send all of it
    // before the next item is read: the head is sent, and the item is queued.
    for overflow in ALL {
        for buffer in [0, 1] {
            let mut rig = rig_with(|demux| demux.budget(8));
            let old = rig.parked(Overflow::Wait, 20);
            rig.send(101..=120);
            rig.input.extend(121..=140);
            let new = rig.order(1, "new", |attach| attach.overflow(overflow).buffer(buffer));
            assert_eq!(rig.lines(), ["attached 1", "detached 1 Replaced"], "{overflow:?} {buffer}");
            assert_eq!(new.items(), (101..=140).collect::<Vec<_>>());
            assert!(old.items().is_empty());
        }
    }
}

#[test]
fn queue_that_is_longer_than_its_buffer_stays_as_long_under_drop_oldest() {
    let mut rig = rig();
    rig.parked(Overflow::Wait, 4);
    rig.send(101..=104);
    let (sink, new) = scripted_sink("new");
    new.park();
    rig.orders.push(Attach::new(1, sink).overflow(Overflow::DropOldest).buffer(2).into());
    assert_eq!(
        rig.send([105]),
        ["attached 1", "detached 1 Replaced", "discarded 101 of 1 Overflowed"]
    );
    assert_eq!(rig.totals().queued, 4);
    new.open();
    rig.lines();
    assert_eq!(new.items(), [102, 103, 104, 105]);
}

// Defaults.

#[test]
fn default_is_to_wait_without_a_queue() {
    let mut rig = rig();
    rig.attach(1, "a").park();
    assert_eq!(rig.send([101, 102]), ["blocked 1"]);
    assert_eq!(rig.totals().queued, 1);
}

#[test]
fn default_of_the_demux_applies_to_attachments_without_settings() {
    let mut rig = rig_with(|demux| demux.buffer(1).overflow(Overflow::DropNewest));
    let sink = rig.attach(1, "a");
    sink.park();
    assert_eq!(rig.send([101, 102, 103]), dropped([102, 103]));
    sink.open();
    rig.lines();
    assert_eq!(sink.items(), [101]);
}

#[test]
fn default_queue_and_default_policy_are_overridden_separately() {
    let mut rig = rig_with(|demux| demux.buffer(1).overflow(Overflow::DropNewest));
    rig.attach_on(1, "a", |attach| attach.buffer(2)).park();
    rig.attach_on(2, "b", |attach| attach.overflow(Overflow::DropOldest)).park();
    rig.attach_on(3, "c", |attach| attach.buffer(0)).park();
    rig.attach_on(4, "d", |attach| attach.overflow(Overflow::Evict)).park();
    assert_eq!(rig.send([101, 102, 103]), dropped([103]));
    assert_eq!(rig.send([201, 202, 203]), dropped([201, 202]));
    assert_eq!(rig.send([301, 302]), dropped([302]));
    assert!(rig.send([401]).is_empty());
    assert_eq!(rig.send([402]).last().unwrap(), "detached 4 Overflowed");
}

#[test]
fn attachment_may_wait_where_the_default_is_to_drop() {
    let mut rig = rig_with(|demux| demux.overflow(Overflow::Evict));
    rig.attach_on(1, "a", |attach| attach.overflow(Overflow::Wait)).park();
    assert_eq!(rig.send([101]), ["blocked 1"]);
}

#[test]
fn each_sink_has_the_policy_of_its_own_attachment() {
    let mut rig = rig();
    let newest = rig.attach_on(1, "a", |attach| attach.overflow(Overflow::DropNewest).buffer(2));
    let oldest = rig.attach_on(2, "b", |attach| attach.overflow(Overflow::DropOldest).buffer(2));
    newest.park();
    oldest.park();
    assert_eq!(
        rig.send([101, 201, 102, 202, 103, 203]),
        ["discarded 103 of 1 Overflowed", "discarded 201 of 2 Overflowed"]
    );
    newest.open();
    oldest.open();
    rig.lines();
    assert_eq!((newest.items(), oldest.items()), (vec![101, 102], vec![202, 203]));
}

// With other rules.

#[test]
fn dropped_items_do_not_count_towards_a_limit() {
    let mut rig = rig();
    let sink = rig.attach_on(1, "a", |attach| attach.overflow(Overflow::DropNewest).limit(2));
    sink.park();
    assert_eq!(rig.send([101, 102, 103]), dropped(102..=103));
    sink.open();
    let mut lines = rig.send([104, 105, 106]);
    lines.sort();
    assert_eq!(lines, ["detached 1 Limited", "unmatched 105", "unmatched 106"]);
    assert_eq!(sink.items(), [101, 104]);
}

#[test]
fn held_item_does_not_count_towards_a_limit_until_it_is_taken() {
    let mut rig = rig();
    let sink = rig.attach_on(1, "a", |attach| attach.limit(1));
    sink.park();
    assert_eq!(rig.send([101, 102]), ["blocked 1"]);
    assert_eq!(rig.len(), 1);
    sink.open();
    let lines = rig.lines();
    assert_eq!(lines[0], "unblocked 1");
    assert_eq!(sink.items(), [101]);
    assert_eq!((rig.totals().unmatched, rig.totals().detached), (1, 1));
}

#[test]
fn sink_that_fails_instead_of_being_full_is_failed_and_not_overflowed() {
    for overflow in ALL {
        let mut rig = rig();
        let sink = rig.parked(overflow, 2);
        rig.send([101, 102]);
        sink.fail(Op::Ready);
        let unmatched = "unmatched 103";
        assert_eq!(
            rig.send([103]),
            [
                "discarded 101 of 1 Failed",
                "discarded 102 of 1 Failed",
                "detached 1 Failed(Broken(\"poll_ready\"))",
                unmatched
            ],
            "{overflow:?}"
        );
    }
}

#[test]
fn sink_that_fails_for_an_item_discards_that_item_as_failed() {
    for overflow in ALL {
        let mut rig = rig();
        let sink = rig.attach_on(1, "a", |attach| attach.overflow(overflow));
        sink.fail(Op::Ready);
        assert_eq!(
            rig.send([101, 102]),
            [
                "discarded 101 of 1 Failed",
                "detached 1 Failed(Broken(\"poll_ready\"))",
                "unmatched 102"
            ],
            "{overflow:?}"
        );
    }
}

#[test]
fn full_sink_that_leaves_gracefully_still_gets_its_queue() {
    for overflow in ALL {
        let mut rig = rig();
        let sink = rig.parked(overflow, 2);
        rig.send([101, 102]);
        rig.orders.push(Order::Detach(1));
        assert_eq!(rig.send([103]), ["unmatched 103"], "{overflow:?}");
        sink.open();
        assert_eq!(rig.lines(), ["detached 1 Requested"]);
        assert_eq!(sink.items(), [101, 102]);
    }
}

#[test]
fn parked_sink_is_polled_once_however_many_items_it_misses() {
    for overflow in [Overflow::DropNewest, Overflow::DropOldest] {
        for buffer in [0, 3] {
            let mut rig = rig();
            let sink = rig.parked(overflow, buffer);
            rig.send(100..200);
            assert_eq!(sink.count(Op::Ready), 1, "{overflow:?} {buffer}");
            assert_eq!(rig.totals().discarded, 100 - 1.max(buffer as u64));
        }
    }
}
