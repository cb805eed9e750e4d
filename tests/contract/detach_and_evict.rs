//! The orders `Detach`, which drains and closes the receiving sinks of a key, and `Evict`, which
//! drops all sinks of the key at once.

use crate::common::{Answer, Call, Op, Rig, SinkHandle, Terms, hooks};
use stream_demux::{Demux, Lease, Order};

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

// Detach.

#[test]
fn an_idle_sink_that_is_detached_is_closed_and_its_key_is_free() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    rig.send([101]);
    a.take_calls();
    assert_eq!(rig.apply(Order::Detach(1)), ["a closed", "a dropped", "detached 1 Requested"]);
    assert_eq!(a.calls(), [Call::Close(Answer::Done), Call::Drop]);
    assert!(rig.task.get_ref().is_empty() && !rig.task.get_ref().contains_key(&1));
    assert_eq!(rig.send([102]), ["unmatched 102"]);
}

#[test]
fn a_detached_sink_is_sent_its_queue_and_nothing_new() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(3));
    a.park();
    rig.send([101, 102]);
    assert!(rig.apply(Order::Detach(1)).is_empty());
    assert_eq!(rig.send([103]), ["unmatched 103"]);
    assert_eq!((rig.len(), rig.totals().queued), (0, 2));
    a.allow(1);
    assert_eq!(rig.lines(), ["a sent 101", "a flushed"]);
    a.open();
    assert_eq!(rig.lines(), ["a sent 102", "a closed", "a dropped", "detached 1 Requested"]);
}

#[test]
fn the_held_item_joins_the_queue_over_the_buffer_by_one() {
    for buffer in 0..=2 {
        let mut rig = Rig::new();
        let a = rig.attach_on(1, "a", |attach| attach.buffer(buffer));
        a.park();
        let all = [101, 102, 103][..=buffer].to_vec();
        rig.input.extend(all.clone());
        rig.send([201]);
        assert_eq!(rig.input.left(), 1);
        assert_eq!(rig.apply(Order::Detach(1)), ["unblocked 1", "unmatched 201"]);
        assert_eq!(rig.totals().queued, buffer as u64 + 1);
        a.open();
        rig.lines();
        assert_eq!((a.items(), a.is_closed()), (all, true), "buffer {buffer}");
    }
}

#[test]
fn an_item_that_detach_overtook_is_not_for_the_detached() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(1));
    a.park();
    rig.send([101]);
    let orders = rig.orders.clone();
    rig.input.action(move || orders.push(Order::Detach(1)));
    assert_eq!(rig.send([102]), ["unmatched 102"]);
    a.open();
    rig.lines();
    assert_eq!(a.items(), [101]);
}

#[test]
fn detaching_twice_is_detaching_once() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(1));
    a.park();
    a.hold(Op::Close);
    rig.send([101]);
    rig.orders.extend([Order::Detach(1), Order::Detach(1)]);
    rig.lines();
    rig.apply(Order::Detach(1));
    assert_eq!((a.count(Op::Close), rig.totals().queued), (0, 1));
    a.open();
    assert_eq!(rig.lines(), ["a sent 101"]);
    assert!(rig.apply(Order::Detach(1)).is_empty());
    assert_eq!(a.count(Op::Close), 1);
    a.release(Op::Close);
    assert_eq!(rig.lines(), ["a closed", "a dropped", "detached 1 Requested"]);
    assert_eq!(rig.totals().detached, 1);
}

#[test]
fn detach_applies_to_the_receiving_sink_and_not_to_leaving_ones() {
    let mut rig = Rig::new();
    let replaced = rig.attach_on(1, "replaced", |attach| attach.tag(1));
    replaced.hold(Op::Close);
    let limited = rig.attach_on(1, "limited", |attach| attach.tag(2).limit(1).buffer(1));
    limited.park();
    rig.send([101]);
    let receives = rig.attach_on(1, "receives", |attach| attach.tag(3));
    assert_eq!(hooks(rig.apply(Order::Detach(1))), ["detached 1#3 Requested"]);
    assert!(receives.is_closed());
    replaced.release(Op::Close);
    limited.open();
    assert_eq!(sorted(hooks(rig.lines())), ["detached 1#1 Replaced", "detached 1#2 Limited"]);
    assert_eq!(limited.items(), [101]);
}

#[test]
fn a_key_can_be_attached_again_while_its_former_sink_drains_and_both_get_their_items() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(2));
    a.park();
    rig.send([101, 102]);
    let b = {
        rig.orders.push(Order::Detach(1));
        rig.order(1, "b", |attach| attach.tag(2))
    };
    rig.send([103]);
    assert_eq!((b.items(), a.taken(), rig.len()), (vec![103], 0, 1));
    a.open();
    rig.lines();
    assert_eq!(a.items(), [101, 102]);
    assert_eq!(hooks(rig.apply(Order::Detach(1))), ["detached 1#2 Requested"]);
}

#[test]
fn attach_and_detach_in_one_turn_leave_nothing_behind() {
    let mut rig = Rig::new();
    let a = rig.order(1, "a", |attach| attach);
    rig.orders.push(Order::Detach(1));
    assert_eq!(
        rig.send([101]),
        ["attached 1", "a closed", "a dropped", "detached 1 Requested", "unmatched 101"]
    );
    assert_eq!(a.taken(), 0);
}

// Evict.

#[test]
fn an_evicted_sink_is_dropped_at_once_without_flush_or_close() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    a.hold(Op::Flush);
    rig.send([101]);
    a.take_calls();
    assert_eq!(rig.apply(Order::Evict(1)), ["a dropped", "detached 1 Evicted"]);
    assert_eq!(a.calls(), [Call::Drop]);
    assert_eq!(rig.send([102]), ["unmatched 102"]);
}

#[test]
fn queue_then_held_item_are_discarded_and_the_input_continues() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(2).tag(5));
    a.park();
    rig.send([101, 102, 103, 201]);
    assert_eq!(
        hooks(rig.apply(Order::Evict(1))),
        [
            "unblocked 1#5",
            "discarded 101 of 1#5 Evicted",
            "discarded 102 of 1#5 Evicted",
            "discarded 103 of 1#5 Evicted",
            "detached 1#5 Evicted",
            "unmatched 201",
        ]
    );
    assert_eq!((rig.totals().queued, rig.totals().discarded), (0, 3));
}

#[test]
fn the_sink_is_dropped_before_its_items_are_discarded() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(1));
    a.park();
    rig.send([101]);
    assert_eq!(
        rig.apply(Order::Evict(1)),
        ["a dropped", "discarded 101 of 1 Evicted", "detached 1 Evicted"]
    );
}

#[test]
fn evicting_a_detached_sink_that_drains_discards_its_queue() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(1));
    a.park();
    rig.send([101, 102]);
    rig.apply(Order::Detach(1));
    assert_eq!(
        rig.apply(Order::Evict(1)),
        [
            "a dropped",
            "discarded 101 of 1 Evicted",
            "discarded 102 of 1 Evicted",
            "detached 1 Evicted",
        ]
    );
    assert_eq!(rig.totals().detached, 1);
}

#[test]
fn evict_applies_to_every_sink_of_the_key_however_it_leaves() {
    let mut rig = Rig::new();
    let replaced = rig.attach_on(1, "replaced", |attach| attach.tag(1));
    replaced.hold(Op::Close);
    let limited = rig.attach_on(1, "limited", |attach| attach.tag(2).limit(1).buffer(1));
    limited.park();
    rig.send([101]);
    let detached = rig.attach_on(1, "polls to go", |attach| attach.tag(3).buffer(1));
    detached.park();
    rig.send([102]);
    rig.apply(Order::Detach(1));
    let receives = rig.attach_on(1, "receives", |attach| attach.tag(4));
    let refused = rig.order(1, "refused", |attach| attach.tag(5).keep_existing());
    refused.hold(Op::Close);
    rig.lines();
    let other = rig.attach_on(2, "other", |attach| attach.buffer(1));
    other.park();
    rig.send([201]);
    rig.apply(Order::Detach(2));
    assert_eq!(
        sorted(hooks(rig.apply(Order::Evict(1)))),
        [
            "detached 1#1 Evicted",
            "detached 1#2 Evicted",
            "detached 1#3 Evicted",
            "detached 1#4 Evicted",
            "detached 1#5 Evicted",
            "discarded 101 of 1#2 Evicted",
            "discarded 102 of 1#3 Evicted",
        ]
    );
    for sink in [replaced, limited, detached, receives, refused] {
        assert!(sink.is_dropped() && !sink.is_closed());
    }
    assert!(!other.is_dropped());
    other.open();
    rig.lines();
    assert_eq!(other.items(), [201]);
}

#[test]
fn evict_drops_leaving_sinks_in_the_order_in_which_they_began_to_leave() {
    let mut rig = Rig::new();
    let leave = |rig: &mut Rig, name| {
        let sink = rig.attach(1, name);
        sink.hold(Op::Close);
        rig.apply(Order::Detach(1));
        sink
    };
    let a = leave(&mut rig, "a");
    leave(&mut rig, "b");
    a.release(Op::Close);
    rig.lines();
    leave(&mut rig, "c");
    let lines = rig.apply(Order::Evict(1));
    assert_eq!(lines, ["b dropped", "detached 1 Evicted", "c dropped", "detached 1 Evicted"]);
}

#[test]
fn evicting_twice_is_evicting_once() {
    let mut rig = Rig::new();
    rig.attach(1, "a");
    rig.orders.extend([Order::Evict(1), Order::Evict(1)]);
    assert_eq!(rig.lines(), ["a dropped", "detached 1 Evicted"]);
    assert!(rig.apply(Order::Evict(1)).is_empty());
    assert_eq!(rig.totals().detached, 1);
}

#[test]
fn a_key_that_was_evicted_can_be_attached_in_the_same_turn() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(1));
    a.park();
    rig.send([101]);
    rig.orders.push(Order::Evict(1));
    let b = rig.order(1, "b", |attach| attach);
    rig.send([102]);
    assert_eq!((a.taken(), b.items(), rig.len()), (0, vec![102], 1));
}

#[test]
fn a_waker_of_an_evicted_sink_does_not_affect_others() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    let b = rig.attach(2, "b");
    a.park();
    b.park();
    rig.send([101]);
    let waker = a.waker().unwrap();
    rig.apply(Order::Evict(1));
    rig.send([201]);
    waker.wake();
    rig.lines();
    assert_eq!((b.count(Op::Ready), b.taken()), (1, 0));
    b.open();
    rig.lines();
    assert_eq!(b.items(), [201]);
}

#[test]
fn an_item_that_evict_overtook_is_unmatched() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    let orders = rig.orders.clone();
    rig.input.action(move || orders.push(Order::Evict(1)));
    assert_eq!(rig.send([101]), ["a dropped", "detached 1 Evicted", "unmatched 101"]);
    assert_eq!(a.taken(), 0);
}

// Unknown keys.

#[test]
fn for_an_unknown_key_both_do_nothing() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(1));
    a.park();
    rig.send([101, 102]);
    let before = rig.totals();
    for key in [0, 2, 9] {
        assert!(rig.apply(Order::Detach(key)).is_empty());
        assert!(rig.apply(Order::Evict(key)).is_empty());
    }
    assert_eq!((rig.totals(), rig.len()), (before, 1));
    assert!(rig.task.get_ref().blocked_on().is_some());
    assert!(!a.is_dropped());
}

#[test]
fn a_key_without_attachments_is_unknown() {
    let mut rig = Rig::new();
    rig.attach(1, "a");
    rig.apply(Order::Detach(1));
    assert!(rig.apply(Order::Detach(1)).is_empty());
    assert!(rig.apply(Order::Evict(1)).is_empty());
    assert_eq!(rig.totals().detached, 1);
}

// Keys with several sinks.

/// Attaches sinks under key 1, tagged 0, 1 and so on.
fn group(rig: &mut Rig, size: u64, terms: impl Fn(Terms) -> Terms) -> Vec<SinkHandle<u32>> {
    let join = |tag| rig.attach_on(1, format!("s{tag}"), |attach| terms(attach.tag(tag)));
    (0..size).map(join).collect()
}

#[test]
fn detach_applies_to_all_members() {
    let mut rig = Rig::with(Demux::multicast);
    let sinks = group(&mut rig, 3, |attach| attach.buffer(2));
    sinks[1].park();
    rig.send([101, 102]);
    assert_eq!(
        sorted(hooks(rig.apply(Order::Detach(1)))),
        ["detached 1 Requested", "detached 1#2 Requested"]
    );
    assert_eq!(hooks(rig.send([103])), ["unmatched 103"]);
    sinks[1].open();
    assert_eq!(hooks(rig.lines()), ["detached 1#1 Requested"]);
    for sink in &sinks {
        assert_eq!((sink.items(), sink.is_closed()), (vec![101, 102], true));
    }
}

#[test]
fn members_that_are_detached_keep_their_copy_of_the_held_item() {
    let mut rig = Rig::with(Demux::multicast);
    let sinks = group(&mut rig, 3, |attach| attach);
    sinks[1].park();
    rig.send([101, 201]);
    assert_eq!((rig.totals().queued, rig.input.left()), (1, 1));
    rig.apply(Order::Detach(1));
    assert_eq!((rig.totals().copies, rig.totals().queued, rig.input.left()), (2, 1, 0));
    sinks[1].open();
    rig.lines();
    for sink in &sinks {
        assert_eq!((sink.items(), sink.is_closed()), (vec![101], true));
    }
}

#[test]
fn evict_applies_to_all_members_and_the_last_discards_the_held_item() {
    let mut rig = Rig::with(Demux::multicast);
    let sinks = group(&mut rig, 3, |attach| attach.buffer(1));
    sinks[0].park();
    sinks[2].park();
    rig.send([101, 102]);
    assert_eq!(sinks[1].items(), [101, 102]);
    let lines = sorted(hooks(rig.apply(Order::Evict(1))));
    let ends = ["detached 1 Evicted", "detached 1#1 Evicted", "detached 1#2 Evicted"];
    assert_eq!(lines[..3], ends);
    let discarded: Vec<_> = lines.iter().filter(|line| line.starts_with("discarded")).collect();
    // The queues of the two parked members, and the held item once.
    assert_eq!(discarded.len(), 3, "{lines:?}");
    assert_eq!(discarded.iter().filter(|line| line.starts_with("discarded 102")).count(), 1);
    assert!(sinks.iter().all(SinkHandle::is_dropped));
    let all = rig.totals();
    assert_eq!((all.received, all.copies, all.discarded, all.queued), (2, 3, 3, 0));
}

#[test]
fn evict_applies_to_leaving_and_receiving_members() {
    let mut rig = Rig::with(Demux::multicast);
    let leaving = group(&mut rig, 4, |attach| attach);
    for sink in &leaving {
        sink.hold(Op::Close);
    }
    rig.apply(Order::Detach(1));
    let receiving = group(&mut rig, 4, |attach| attach);
    assert_eq!(rig.len(), 4);
    assert_eq!(rig.apply(Order::Evict(1)).len(), 16);
    assert!(leaving.iter().chain(&receiving).all(SinkHandle::is_dropped));
    assert_eq!((rig.len(), rig.totals().detached), (0, 8));
}

#[test]
fn members_that_leave_from_any_place_of_a_group_leave_the_others_in_order() {
    for first in 0..4_usize {
        for second in 0..4_usize {
            let mut rig = Rig::with(Demux::multicast);
            let mut leases: Vec<_> = (0..4).map(|_| Some(Lease::new())).collect();
            let mut sinks = Vec::new();
            for (tag, lease) in (0..4).zip(leases.iter_mut().flatten()) {
                sinks.push(rig.attach_on(1, "s", |attach| attach.tag(tag).leased(lease)));
            }
            let mut left = vec![0, 1, 2, 3];
            for leaving in [first, second] {
                drop(leases[leaving].take());
                left.retain(|place| *place != leaving);
                rig.lines();
                rig.send([101]);
                assert_eq!(rig.len(), left.len());
                for (place, sink) in sinks.iter().enumerate() {
                    let gets = usize::from(left.contains(&place));
                    assert_eq!(sink.take_items().len(), gets, "{first} {second} {place}");
                }
            }
            assert_eq!(rig.apply(Order::Evict(1)).len(), 2 * left.len());
            assert_eq!((rig.len(), rig.totals().detached), (0, 4));
        }
    }
}

// With a small budget.

#[test]
fn detaching_a_long_queue_on_a_budget_of_one_delivers_all_of_it() {
    let mut rig = Rig::with(|demux| demux.budget(1));
    let a = rig.attach_on(1, "a", |attach| attach.buffer(20));
    a.park();
    rig.input.extend((0..20).map(|n| 100 + n));
    rig.lines();
    rig.orders.push(Order::Detach(1));
    rig.input.extend([150, 250]);
    a.open();
    let lines = hooks(rig.lines());
    assert_eq!(a.items(), (100..120).collect::<Vec<_>>());
    assert_eq!(sorted(lines), ["detached 1 Requested", "unmatched 150", "unmatched 250"]);
}
