//! `Attach::catch_all` (attachment rules): the attachment that also receives items that match no
//! other, with its own settings. Such items count as delivered, not as unmatched (guarantee 3). The
//! last catch-all that was attached is used; an earlier one is not used again.

use crate::common::{Op, Rig, SinkHandle, hooks};
use stream_demux::{Attach, Demux, Lease, Order};

/// Logs neither flushes nor calls of `admit`.
fn rig() -> Rig {
    but_flushes(Rig::new())
}

fn group() -> Rig {
    but_flushes(Rig::with(Demux::multicast))
}

fn but_flushes(rig: Rig) -> Rig {
    rig.logging(|line| {
        !["admit ", "key "].iter().any(|hook| line.starts_with(hook)) && !line.ends_with("flushed")
    })
}

#[test]
fn catch_all_gets_items_of_its_key_and_unmatched_items() {
    let mut rig = rig();
    let a = rig.attach_on(1, "a", Attach::catch_all);
    let b = rig.attach(2, "b");
    rig.send([101, 201, 901, 801]);
    assert_eq!((a.items(), b.items()), (vec![101, 901, 801], vec![201]));
    let t = rig.totals();
    assert_eq!((t.delivered, t.unmatched), (4, 0));
    assert!(rig.task.get_ref().contains_key(&1) && !rig.task.get_ref().contains_key(&9));
    assert_eq!(rig.len(), 2);
}

#[test]
fn key_attached_later_is_no_longer_caught_and_a_freed_one_is() {
    let mut rig = rig();
    rig.attach_on(1, "a", Attach::catch_all);
    assert_eq!(rig.send([201]), ["a sent 201"]);
    rig.attach(2, "b");
    assert_eq!(rig.send([202]), ["b sent 202"]);
    rig.apply(Order::Detach(2));
    assert_eq!(rig.send([203]), ["a sent 203"]);
}

#[test]
fn last_one_attached_counts() {
    let mut rig = rig();
    rig.attach_on(1, "a", Attach::catch_all);
    rig.attach_on(2, "b", Attach::catch_all);
    rig.attach(3, "c");
    assert_eq!(rig.send([901, 101, 201]), ["b sent 901", "a sent 101", "b sent 201"]);
}

#[test]
fn earlier_catch_all_is_not_used_again_when_the_last_one_leaves() {
    for evict in [false, true] {
        let mut rig = rig();
        rig.attach_on(1, "a", Attach::catch_all);
        rig.attach_on(2, "b", Attach::catch_all);
        rig.apply(if evict { Order::Evict(2) } else { Order::Detach(2) });
        assert_eq!(rig.send([901, 101]), ["unmatched 901", "a sent 101"]);
    }
}

#[test]
fn unmatched_items_are_unmatched_again_after_it_leaves_for_any_reason() {
    type Way = fn(&mut Rig, &SinkHandle<u32>, Lease);
    let ways: [Way; 6] = [
        |rig, _, lease| {
            rig.apply(Order::Detach(1));
            lease.disarm();
        },
        |rig, _, lease| {
            rig.apply(Order::Evict(1));
            lease.disarm();
        },
        |rig, _, lease| {
            drop(lease);
            rig.lines();
        },
        |rig, _, lease| {
            lease.detach();
            rig.lines();
        },
        |rig, a, lease| {
            a.fail(Op::Ready);
            rig.send([900]);
            lease.disarm();
        },
        |rig, a, lease| {
            a.fail(Op::Send);
            rig.send([900]);
            lease.disarm();
        },
    ];
    for (n, way) in ways.into_iter().enumerate() {
        let mut rig = rig();
        let mut lease = Lease::new();
        let a = rig.attach_on(1, "a", |attach| attach.catch_all().leased(&mut lease));
        way(&mut rig, &a, lease);
        assert_eq!(rig.send([901]), ["unmatched 901"], "way {n}");
        assert!(a.is_dropped());
    }
}

#[test]
fn reused_slot_of_a_catch_all_catches_nothing() {
    let mut rig = rig();
    rig.attach_on(1, "a", Attach::catch_all);
    rig.apply(Order::Evict(1));
    rig.attach(2, "b");
    assert_eq!(rig.send([901]), ["unmatched 901"]);
}

// Its settings.

#[test]
fn caught_items_wait_for_their_catch_all_with_backpressure() {
    let mut rig = rig();
    let a = rig.attach_on(1, "a", |attach| attach.catch_all().tag(7));
    let b = rig.attach(2, "b");
    a.park();
    assert_eq!(rig.send([901, 201]), ["blocked 1#7"]);
    assert_eq!((rig.totals().queued, b.taken()), (1, 0));
    a.open();
    let mut lines = rig.lines();
    lines.sort();
    assert_eq!(lines, ["a sent 901", "b sent 201", "unblocked 1#7"]);
}

#[test]
fn caught_items_and_own_items_share_one_queue_in_order() {
    let mut rig = rig();
    let a = rig.attach_on(1, "a", |attach| attach.catch_all().buffer(3));
    a.park();
    assert_eq!(rig.send([101, 901, 102, 902]), ["blocked 1"]);
    a.open();
    rig.lines();
    assert_eq!(a.items(), [101, 901, 102, 902]);
}

#[test]
fn caught_items_count_towards_the_limit() {
    let mut rig = rig();
    let a = rig.attach_on(1, "a", |attach| attach.catch_all().limit(2));
    let mut lines = rig.send([901, 101, 902, 102]);
    lines.retain(|line| line.starts_with("unmatched"));
    assert_eq!(lines, ["unmatched 902", "unmatched 102"]);
    assert_eq!(a.items(), [901, 101]);
    assert!(a.is_closed());
}

// Replaced.

#[test]
fn replaced_by_an_ordinary_sink_its_backlog_moves_and_it_catches_no_more() {
    let mut rig = rig();
    let a = rig.attach_on(1, "a", |attach| attach.catch_all().buffer(2));
    a.park();
    rig.send([901, 101, 902]);
    let b = rig.attach(1, "b");
    assert_eq!(b.items(), [901, 101, 902]);
    assert!(a.items().is_empty());
    assert_eq!(rig.send([903, 102]), ["unmatched 903", "b sent 102"]);
}

#[test]
fn replaced_by_another_catch_all_items_are_still_caught() {
    let mut rig = rig();
    let a = rig.attach_on(1, "a", |attach| attach.catch_all().buffer(1));
    a.park();
    rig.send([901, 902]);
    let (attach, b) = rig.attachment(1, "b", |attach| attach.catch_all().tag(2));
    let mut lines = rig.apply(attach);
    lines.retain(|line| !line.starts_with("a "));
    assert_eq!(lines.iter().filter(|line| *line == "unblocked 1").count(), 1);
    assert_eq!(b.items(), [901, 902]);
    assert_eq!(rig.send([903]), ["b sent 903"]);
}

#[test]
fn earlier_catch_all_that_is_replaced_takes_nothing_from_the_last_one() {
    let mut rig = rig();
    rig.attach_on(1, "a", Attach::catch_all);
    rig.attach_on(2, "b", Attach::catch_all);
    rig.attach(1, "c");
    assert_eq!(rig.send([901, 101]), ["b sent 901", "c sent 101"]);
}

#[test]
fn surplus_of_a_limited_successor_is_not_caught_by_another_catch_all_either() {
    let mut rig = rig();
    let a = rig.attach_on(1, "a", |attach| attach.catch_all().buffer(3));
    a.park();
    rig.send([901, 902]);
    let c = rig.attach_on(3, "c", Attach::catch_all);
    let (attach, b) = rig.attachment(1, "b", |attach| attach.limit(1));
    let mut lines = rig.apply(attach);
    lines.retain(|line| line.starts_with("unmatched"));
    assert_eq!(lines, ["unmatched 902"]);
    assert_eq!((b.items(), c.items()), (vec![901], vec![]));
    // The key is free again, so its items are caught.
    assert_eq!(rig.send([101]), ["c sent 101"]);
}

#[test]
fn catch_all_gets_the_items_that_were_caught_before_another_took_its_place() {
    let mut rig = rig();
    let a = rig.attach_on(1, "a", Attach::catch_all);
    a.park();
    rig.send([901, 902]);
    let b = rig.attach_on(2, "b", Attach::catch_all);
    assert!(b.items().is_empty());
    a.open();
    rig.lines();
    assert_eq!((a.items(), b.items()), (vec![901], vec![902]));
}

// Attachments that never receive.

#[test]
fn catch_all_catches_the_item_that_its_order_overtook() {
    let mut rig = rig();
    rig.lines();
    let (attach, a) = rig.attachment(1, "a", Attach::catch_all);
    let orders = rig.orders.clone();
    rig.input.action(move || orders.push(attach));
    rig.send([901]);
    assert_eq!((a.items(), rig.totals().unmatched), (vec![901], 0));
}

// With multicast.

#[test]
fn caught_item_goes_to_that_attachment_alone_and_not_to_its_group() {
    for catcher in 0..3 {
        let mut rig = group();
        let names = ["a", "b", "c"];
        let sinks: Vec<_> =
            (0..3)
                .map(|n| {
                    rig.attach_on(1, names[n], |attach| {
                        if n == catcher { attach.catch_all() } else { attach }
                    })
                })
                .collect();
        assert_eq!(rig.send([901]), [format!("{} sent 901", names[catcher])]);
        assert_eq!(rig.totals().copies, 0);
        rig.send([101]);
        assert!(sinks.iter().all(|sink| sink.items().last() == Some(&101)));
    }
}

#[test]
fn catch_all_that_reaches_its_limit_with_the_queue_that_it_takes_over_catches_nothing() {
    let mut rig = Rig::with(|demux| demux.buffer(2));
    rig.attach_on(1, "old", Attach::catch_all).park();
    rig.send([101, 102]);
    rig.attach_on(1, "new", |attach| attach.catch_all().limit(1));
    assert_eq!(hooks(rig.send([501])), ["unmatched 501"]);
}
