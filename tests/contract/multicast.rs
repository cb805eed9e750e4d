//! `Demux::multicast` (attachment rules): a key with many sinks. Each gets a clone of an item, the
//! last one the item itself. The copy for a member that is not ready is held, while members may
//! join, leave, fail and be evicted. Every item and every copy has one fate (guarantee 3).
//!
//! `served_in_turn` tests the order of events while a group gets an item.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Poll;

use crate::common::group::{Note, Rig, at};
use crate::common::{Op, Task, scripted_sink, scripted_stream};
use stream_demux::{Attach, DemuxStreamExt, Lease, Order, Overflow};

// Recipients.

#[test]
fn each_member_gets_a_clone_and_the_last_the_original() {
    for count in 1..=5 {
        let mut rig = Rig::new();
        rig.group(count, &[]);
        let mut lines: Vec<_> = (1..count).map(|tag| format!("{tag} sent 101'")).collect();
        lines.push(format!("{count} sent 101"));
        assert_eq!(rig.feed([101]), lines);
        let t = rig.totals();
        assert_eq!((t.received, t.copies, t.delivered), (1, count - 1, count));
    }
}

#[test]
fn without_multicast_nothing_is_cloned_and_a_second_sink_replaces() {
    let (input, items) = scripted_stream("input");
    let (orders, orders_handle) = scripted_stream("orders");
    let (first, second) = (scripted_sink(1), scripted_sink(2));
    let mut task = Task::new(input.demux_by(|_: &Note| 1, orders));
    orders_handle.extend([(1, first.0), (1, second.0)]);
    let clones = Arc::<AtomicUsize>::default();
    items.push(Note::new(101, &clones));
    assert!(task.run().is_pending());
    assert_eq!((first.1.taken(), second.1.taken(), clones.load(SeqCst)), (0, 1, 0));
    assert_eq!(task.get_ref().totals().copies, 0);
}

#[test]
fn other_keys_are_not_affected_by_a_group() {
    let mut rig = Rig::new();
    rig.group(2, &[]);
    assert_eq!(rig.feed([201]), ["unmatched 201"]);
    assert_eq!((rig.totals().copies, rig.len()), (0, 2));
}

#[test]
fn member_that_joins_later_gets_only_later_items() {
    let mut rig = Rig::new();
    rig.group(1, &[]);
    assert_eq!(rig.feed([101]), ["1 sent 101"]);
    rig.join(2);
    assert_eq!(rig.feed([102]), ["1 sent 102'", "2 sent 102"]);
    assert!(rig.task.get_ref().contains_key(&1));
    assert_eq!(rig.len(), 2);
}

#[test]
fn first_middle_or_last_member_leaves_and_the_others_continue() {
    for (leaving, lines) in [
        (1, ["2 sent 101'", "3 sent 101"]),
        (2, ["1 sent 101'", "3 sent 101"]),
        (3, ["1 sent 101'", "2 sent 101"]),
    ] {
        for detach in [false, true] {
            let mut rig = Rig::new();
            let mut leases: Vec<_> = (0..3).map(|_| Lease::new()).collect();
            for tag in 1..=3 {
                rig.join_on(tag, |attach| attach.leased(&mut leases[at(tag)]));
            }
            let lease = leases.remove(at(leaving));
            if detach {
                lease.detach();
                assert_eq!(rig.lines()[2], format!("detached 1#{leaving} Requested"));
            } else {
                drop(lease);
                assert_eq!(rig.lines()[1], format!("detached 1#{leaving} Evicted"));
            }
            assert_eq!(rig.feed([101]), lines);
            assert_eq!(rig.len(), 2);
        }
    }
}

#[test]
fn members_leave_one_after_the_other_in_any_order() {
    let orders: [[usize; 3]; 6] =
        [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders {
        let mut rig = Rig::new();
        let mut leases: Vec<_> = (0..3).map(|_| Some(Lease::new())).collect();
        for (tag, lease) in (0..).zip(&mut leases) {
            rig.join_on(tag, |attach| attach.leased(lease.as_mut().unwrap()));
        }
        let mut left = vec![0, 1, 2];
        for leaving in order {
            drop(leases[leaving].take());
            rig.lines();
            left.retain(|&tag| tag != leaving);
            let mut lines: Vec<_> = left.iter().map(|tag| format!("{tag} sent 101'")).collect();
            match lines.last_mut() {
                Some(last) => drop(last.pop()),
                None => lines.push("unmatched 101".to_owned()),
            }
            assert_eq!(rig.feed([101]), lines, "{order:?}");
        }
        // The key can be attached again.
        rig.join(7);
        assert_eq!(rig.feed([102]), ["7 sent 102"]);
    }
}

#[test]
fn thousand_members_get_their_copies_and_leave_one_by_one() {
    let mut rig = Rig::new();
    let mut leases: Vec<_> = (0..1_000).map(|_| Lease::new()).collect();
    let members: Vec<_> =
        (0..).zip(&mut leases).map(|(tag, lease)| rig.join_on(tag, |a| a.leased(lease))).collect();
    rig.feed([101, 102]);
    assert!(members.iter().all(|member| member.taken() == 2));
    assert_eq!((rig.totals().copies, rig.totals().delivered), (1_998, 2_000));
    // Every other member leaves, from both ends of the group at once.
    let mut kept = Vec::new();
    for (n, lease) in leases.into_iter().enumerate() {
        if n % 2 == 0 {
            drop(lease);
        } else {
            kept.push(lease);
        }
    }
    rig.lines();
    assert_eq!(rig.len(), 500);
    rig.feed([103]);
    for (n, member) in members.iter().enumerate() {
        assert_eq!(member.taken(), if n % 2 == 0 { 2 } else { 3 });
    }
    assert_eq!((rig.totals().copies, rig.totals().delivered), (2_497, 2_500));
    rig.orders.push(Order::Detach(1));
    rig.lines();
    assert_eq!((rig.len(), rig.totals().detached), (0, 1_000));
    drop(kept);
}

#[test]
fn keep_existing_is_refused_on_a_taken_key_and_joins_a_free_one() {
    let mut rig = Rig::new();
    let first = rig.join_on(1, Attach::keep_existing);
    let second = rig.join_on(2, Attach::keep_existing);
    assert_eq!(rig.take_log(), ["2 closed", "2 dropped", "detached 1#2 Refused"]);
    assert!(second.is_dropped() && !first.is_dropped());
    assert_eq!(rig.feed([101]), ["1 sent 101"]);
    // A member with `keep_existing` does not prevent others from joining.
    rig.join(3);
    assert_eq!(rig.feed([102]), ["1 sent 102'", "3 sent 102"]);
}

#[test]
fn lease_applies_to_its_attachment_and_orders_to_all() {
    for evict in [false, true] {
        let mut rig = Rig::new();
        let mut lease = Lease::new();
        rig.join(1);
        rig.join_on(2, |attach| attach.leased(&mut lease));
        rig.join(3);
        rig.join(4);
        drop(lease);
        assert_eq!(rig.lines(), ["2 dropped", "detached 1#2 Evicted"]);
        rig.orders.push(if evict { Order::Evict(1) } else { Order::Detach(1) });
        let mut lines = rig.lines();
        lines.retain(|line| line.starts_with("detached"));
        let why = if evict { "Evicted" } else { "Requested" };
        assert_eq!(lines, [1, 3, 4].map(|tag| format!("detached 1#{tag} {why}")));
        assert_eq!(rig.feed([101]), ["unmatched 101"]);
    }
}

#[test]
fn evict_also_applies_to_leaving_members() {
    let mut rig = Rig::new();
    let mut lease = Lease::new();
    let slow = rig.join_on(1, |attach| attach.leased(&mut lease));
    slow.hold(Op::Close);
    rig.join(2);
    lease.detach();
    rig.lines();
    assert!(slow.is_closing());
    rig.orders.push(Order::Evict(1));
    let mut lines = rig.lines();
    lines.sort();
    assert_eq!(lines, ["1 dropped", "2 dropped", "detached 1#1 Evicted", "detached 1#2 Evicted"]);
}

#[test]
fn members_may_have_different_limits() {
    let mut rig = Rig::new();
    rig.join_on(1, |attach| attach.limit(1));
    rig.join(2);
    rig.join_on(3, |attach| attach.limit(2));
    let mut sent = rig.feed([101, 102, 103]);
    sent.retain(|line| line.contains("sent") || line.contains("detached"));
    assert_eq!(
        sent,
        [
            "1 sent 101'",
            "detached 1#1 Limited",
            "2 sent 101'",
            "3 sent 101",
            "2 sent 102'",
            "3 sent 102",
            "detached 1#3 Limited",
            "2 sent 103"
        ]
    );
}

// Held items.

#[test]
fn waiting_member_holds_its_copy_and_delays_the_next_item_for_all() {
    for slow in 1..=3 {
        let mut rig = Rig::new();
        let members = rig.group(3, &[slow]);
        let mut lines: Vec<_> =
            (1..=3).filter(|&tag| tag != slow).map(|tag| format!("{tag} sent 101'")).collect();
        lines.push(format!("blocked 1#{slow}"));
        assert_eq!(rig.feed([101, 102]), lines);
        assert_eq!(rig.blocked_on(), Some(slow));
        let t = rig.totals();
        assert_eq!((t.received, t.queued, t.copies, t.delivered), (1, 1, 2, 2));
        members[at(slow)].open();
        assert_eq!(
            rig.lines(),
            [
                format!("unblocked 1#{slow}").as_str(),
                &format!("{slow} sent 101"),
                "1 sent 102'",
                "2 sent 102'",
                "3 sent 102"
            ]
        );
        assert_eq!(rig.totals().queued, 0);
    }
}

#[test]
fn member_with_room_in_its_queue_holds_nothing_back() {
    let mut rig = Rig::new();
    let slow = rig.join_on(1, |attach| attach.buffer(2));
    rig.join(2);
    slow.park();
    assert_eq!(rig.feed([101, 102]), ["2 sent 101", "2 sent 102"]);
    assert_eq!((rig.totals().queued, rig.totals().copies), (2, 2));
    assert_eq!(rig.feed([103]), ["2 sent 103'", "blocked 1#1"]);
    assert_eq!(rig.totals().queued, 3);
    slow.open();
    let mut lines = rig.lines();
    lines.sort();
    assert_eq!(lines, ["1 sent 101'", "1 sent 102'", "1 sent 103", "unblocked 1#1"]);
}

#[test]
fn member_whose_queue_has_room_again_holds_nothing_back() {
    let mut rig = Rig::new();
    let slow = rig.join_on(1, |attach| attach.buffer(2));
    rig.join(2);
    slow.park();
    rig.feed([101, 102, 103]);
    assert_eq!(rig.blocked_on(), Some(1));
    slow.allow(1);
    assert_eq!(rig.feed([104]), ["unblocked 1#1", "1 sent 101'", "2 sent 104'", "blocked 1#1"]);
    assert_eq!(rig.totals().queued, 3);
}

#[test]
fn other_policies_apply_to_their_members() {
    let mut rig = Rig::new();
    let newest = rig.join_on(1, |attach| attach.overflow(Overflow::DropNewest).buffer(1));
    let oldest = rig.join_on(2, |attach| attach.overflow(Overflow::DropOldest).buffer(1));
    let evicted = rig.join_on(3, |attach| attach.overflow(Overflow::Evict).buffer(1));
    rig.join(4);
    for slow in [&newest, &oldest, &evicted] {
        slow.park();
    }
    assert_eq!(rig.feed([101]), ["4 sent 101"]);
    assert_eq!(
        rig.feed([102]),
        [
            "discarded 102' of 1#1 Overflowed",
            "discarded 101' of 1#2 Overflowed",
            "3 dropped",
            "discarded 101' of 1#3 Overflowed",
            "discarded 102' of 1#3 Overflowed",
            "detached 1#3 Overflowed",
            "4 sent 102"
        ]
    );
    newest.open();
    oldest.open();
    let mut lines = rig.lines();
    lines.sort();
    assert_eq!(lines, ["1 sent 101'", "2 sent 102'"]);
}

#[test]
fn member_that_drops_has_its_copy_in_its_queue_while_another_waits() {
    let mut rig = Rig::new();
    let dropping = rig.join_on(1, |attach| attach.overflow(Overflow::DropNewest));
    let waiting = rig.join(2);
    dropping.park();
    waiting.park();
    assert_eq!(rig.feed([101]), ["blocked 1#2"]);
    assert_eq!((rig.totals().queued, rig.totals().copies), (2, 1));
    dropping.open();
    assert_eq!(rig.lines(), ["1 sent 101'"]);
    waiting.open();
    assert_eq!(rig.lines(), ["unblocked 1#2", "2 sent 101"]);
}

#[test]
fn blocked_moves_from_one_member_to_the_next() {
    let mut rig = Rig::new();
    let members = rig.group(3, &[1, 3]);
    assert_eq!(rig.feed([101]), ["2 sent 101'", "blocked 1#1"]);
    members[0].open();
    assert_eq!(rig.lines(), ["unblocked 1#1", "1 sent 101'", "blocked 1#3"]);
    assert_eq!(rig.blocked_on(), Some(3));
    members[2].open();
    assert_eq!(rig.lines(), ["unblocked 1#3", "3 sent 101"]);
    assert_eq!(rig.blocked_on(), None);
}

#[test]
fn woken_member_gets_its_copy_whichever_member_is_reported() {
    let mut rig = Rig::new();
    let members = rig.group(2, &[1, 2]);
    assert_eq!(rig.feed([101]), ["blocked 1#1"]);
    members[1].open();
    assert_eq!(rig.lines(), ["2 sent 101'"]);
    assert_eq!(rig.blocked_on(), Some(1));
    members[0].open();
    assert_eq!(rig.lines(), ["unblocked 1#1", "1 sent 101"]);
}

#[test]
fn ready_member_is_polled_once_and_gets_its_copy_while_another_waits() {
    let mut rig = Rig::new();
    let members = rig.group(2, &[2]);
    assert_eq!(rig.feed([101]), ["1 sent 101'", "blocked 1#2"]);
    assert_eq!((members[0].count(Op::Ready), members[0].flushed()), (1, 1));
    members[1].open();
    assert_eq!(rig.lines(), ["unblocked 1#2", "2 sent 101"]);
    assert_eq!(members[0].count(Op::Ready), 1);
}

#[test]
fn member_that_joins_while_an_item_is_held_gets_later_items() {
    let mut rig = Rig::new();
    let members = rig.group(2, &[2]);
    rig.feed([101]);
    rig.join(3);
    assert!(rig.take_log().is_empty());
    members[1].open();
    assert_eq!(rig.lines(), ["unblocked 1#2", "2 sent 101"]);
    assert_eq!(rig.feed([102]), ["1 sent 102'", "2 sent 102'", "3 sent 102"]);
}

#[test]
fn second_member_joins_while_the_item_is_held_for_the_only_one() {
    let mut rig = Rig::new();
    let members = rig.group(1, &[1]);
    rig.feed([101]);
    rig.join(2);
    assert_eq!((rig.totals().queued, rig.totals().copies), (1, 0));
    members[0].open();
    assert_eq!(rig.lines(), ["unblocked 1#1", "1 sent 101"]);
    assert_eq!(rig.feed([102]), ["1 sent 102'", "2 sent 102"]);
}

#[test]
fn new_member_that_is_not_ready_is_not_awaited_until_the_next_item() {
    let mut rig = Rig::new();
    let members = rig.group(1, &[1]);
    rig.feed([101]);
    let late = rig.order(1, 2, |attach| attach.tag(2));
    late.park();
    assert!(rig.lines().is_empty());
    members[0].open();
    assert_eq!(rig.lines(), ["unblocked 1#1", "1 sent 101"]);
    assert_eq!(late.count(Op::Ready), 0);
    assert_eq!(rig.feed([102]), ["1 sent 102'", "blocked 1#2"]);
    late.open();
    assert_eq!(rig.lines(), ["unblocked 1#2", "2 sent 102"]);
}

#[test]
fn member_that_leaves_gracefully_keeps_its_copy() {
    for leaving in 1..=3 {
        let mut rig = Rig::new();
        let (members, mut leases) = rig.leased_group(3, &[1, 3]);
        assert_eq!(rig.feed([101]), ["2 sent 101'", "blocked 1#1"]);
        leases.remove(at(leaving)).detach();
        match leaving {
            1 => {
                // The member that the input waits for.
                assert_eq!(rig.lines(), ["unblocked 1#1", "blocked 1#3"]);
                assert_eq!((rig.totals().queued, rig.totals().copies), (2, 2));
            }
            2 => {
                // A member that has its copy.
                assert_eq!(rig.lines(), ["2 closed", "2 dropped", "detached 1#2 Requested"]);
                assert_eq!((rig.totals().queued, rig.totals().copies), (1, 1));
            }
            _ => {
                // Another waiting member.
                assert!(rig.lines().is_empty());
                assert_eq!((rig.totals().queued, rig.totals().copies), (2, 2));
            }
        }
        members[0].open();
        let gone = |tag| [format!("{tag} closed"), format!("{tag} dropped")];
        assert_eq!(
            rig.lines(),
            match leaving {
                1 =>
                    [vec!["1 sent 101'".to_owned()], gone(1).to_vec(), vec![requested(1)]].concat(),
                2 => ["unblocked 1#1", "1 sent 101'", "blocked 1#3"].map(str::to_owned).to_vec(),
                _ => ["unblocked 1#1", "1 sent 101"].map(str::to_owned).to_vec(),
            }
        );
        members[2].open();
        assert_eq!(
            rig.lines(),
            match leaving {
                3 =>
                    [vec!["3 sent 101'".to_owned()], gone(3).to_vec(), vec![requested(3)]].concat(),
                _ => ["unblocked 1#3", "3 sent 101"].map(str::to_owned).to_vec(),
            }
        );
        assert_eq!((rig.totals().queued, rig.totals().copies), (0, 2));
    }
}

fn requested(tag: u64) -> String {
    format!("detached 1#{tag} Requested")
}

#[test]
fn last_member_that_leaves_gracefully_keeps_the_original() {
    let mut rig = Rig::new();
    let members = rig.group(1, &[1]);
    rig.feed([101]);
    rig.orders.push(Order::Detach(1));
    assert_eq!(rig.feed([102]), ["unblocked 1#1", "unmatched 102"]);
    members[0].open();
    assert_eq!(rig.lines(), ["1 sent 101", "1 closed", "1 dropped", "detached 1#1 Requested"]);
    assert_eq!(rig.totals().copies, 0);
}

#[test]
fn evicted_member_gets_no_copy() {
    let mut rig = Rig::new();
    let (members, mut leases) = rig.leased_group(3, &[1, 3]);
    assert_eq!(rig.feed([101]), ["2 sent 101'", "blocked 1#1"]);
    drop(leases.remove(1)); // this member has its copy
    assert_eq!(rig.lines(), ["2 dropped", "detached 1#2 Evicted"]);
    drop(leases.remove(0));
    assert_eq!(rig.lines(), ["unblocked 1#1", "1 dropped", "detached 1#1 Evicted", "blocked 1#3"]);
    members[2].open();
    assert_eq!(rig.lines(), ["unblocked 1#3", "3 sent 101"]);
    assert_eq!((rig.totals().copies, rig.totals().discarded), (1, 0));
}

#[test]
fn last_member_that_is_evicted_discards_the_item() {
    let mut rig = Rig::new();
    let (mut first, mut second) = (Lease::new(), Lease::new());
    let a = rig.join_on(1, |attach| attach.leased(&mut first));
    let b = rig.join_on(2, |attach| attach.leased(&mut second));
    a.park();
    b.park();
    rig.feed([101]);
    drop(first);
    assert_eq!(rig.lines(), ["unblocked 1#1", "1 dropped", "detached 1#1 Evicted", "blocked 1#2"]);
    drop(second);
    assert_eq!(
        rig.feed([102]),
        [
            "unblocked 1#2",
            "2 dropped",
            "discarded 101 of 1#2 Evicted",
            "detached 1#2 Evicted",
            "unmatched 102"
        ]
    );
    assert_eq!(rig.totals().copies, 0);
}

#[test]
fn member_that_was_leaving_already_has_no_copy_of_the_held_item() {
    for fails in [false, true] {
        let mut rig = Rig::new();
        let mut lease = Lease::new();
        let gone = rig.join_on(1, |attach| attach.leased(&mut lease).tag(1));
        gone.hold(Op::Close);
        rig.orders.push(Order::Detach(1));
        rig.lines();
        let slow = rig.join(2);
        rig.join(3);
        slow.park();
        assert_eq!(rig.feed([101]), ["3 sent 101'", "blocked 1#2"]);
        if fails {
            gone.fail(Op::Close);
            assert_eq!(
                rig.lines()[1..],
                ["1 dropped", "detached 1#1 Failed(Broken(\"poll_close\"))"]
            );
            lease.disarm();
        } else {
            drop(lease);
            assert_eq!(rig.lines(), ["1 dropped", "detached 1#1 Evicted"]);
        }
        assert_eq!((rig.totals().copies, rig.totals().queued), (1, 1));
        slow.open();
        assert_eq!(rig.lines(), ["unblocked 1#2", "2 sent 101"]);
    }
}

#[test]
fn detaching_all_while_an_item_is_held_gives_each_a_copy() {
    let mut rig = Rig::new();
    let members = rig.group(3, &[1, 2, 3]);
    rig.feed([101]);
    rig.orders.push(Order::Detach(1));
    assert_eq!(rig.feed([102]), ["unblocked 1#1", "unmatched 102"]);
    assert_eq!((rig.totals().queued, rig.totals().copies), (3, 2));
    for member in &members {
        member.open();
    }
    let mut lines = rig.lines();
    lines.retain(|line| line.contains("sent"));
    lines.sort();
    assert_eq!(lines, ["1 sent 101'", "2 sent 101'", "3 sent 101"]);
}

#[test]
fn evicting_all_while_an_item_is_held_discards_it_once() {
    let mut rig = Rig::new();
    rig.group(3, &[1, 2, 3]);
    rig.feed([101]);
    rig.orders.push(Order::Evict(1));
    assert_eq!(
        rig.lines(),
        [
            "unblocked 1#1",
            "1 dropped",
            "detached 1#1 Evicted",
            "2 dropped",
            "detached 1#2 Evicted",
            "3 dropped",
            "discarded 101 of 1#3 Evicted",
            "detached 1#3 Evicted"
        ]
    );
    assert_eq!((rig.totals().copies, rig.totals().discarded), (0, 1));
}

#[test]
fn member_that_fails_while_the_item_is_held_discards_its_copy() {
    let mut rig = Rig::new();
    let members = rig.group(3, &[1, 3]);
    assert_eq!(rig.feed([101]), ["2 sent 101'", "blocked 1#1"]);
    members[0].fail(Op::Ready);
    assert_eq!(
        rig.lines(),
        [
            "1 failed in poll_ready",
            "unblocked 1#1",
            "1 dropped",
            "discarded 101' of 1#1 Failed",
            "detached 1#1 Failed(Broken(\"poll_ready\"))",
            "blocked 1#3"
        ]
    );
    members[2].open();
    assert_eq!(rig.lines(), ["unblocked 1#3", "3 sent 101"]);
}

#[test]
fn last_member_that_fails_while_the_item_is_held_discards_the_item_itself() {
    let mut rig = Rig::new();
    let members = rig.group(2, &[1, 2]);
    rig.feed([101]);
    members[0].fail(Op::Ready);
    rig.lines();
    members[1].fail(Op::Ready);
    assert_eq!(
        rig.feed([102]),
        [
            "2 failed in poll_ready",
            "unblocked 1#2",
            "2 dropped",
            "discarded 101 of 1#2 Failed",
            "detached 1#2 Failed(Broken(\"poll_ready\"))",
            "unmatched 102"
        ]
    );
}

#[test]
fn all_members_fail_at_once_when_they_are_polled() {
    let mut rig = Rig::new();
    let members = rig.group(3, &[]);
    for member in &members {
        member.fail_quietly(Op::Ready);
    }
    let mut lines = rig.feed([101, 102]);
    lines.retain(|line| line.starts_with("discarded") || line.starts_with("unmatched"));
    assert_eq!(
        lines,
        [
            "discarded 101' of 1#1 Failed",
            "discarded 101' of 1#2 Failed",
            "discarded 101 of 1#3 Failed",
            "unmatched 102"
        ]
    );
    assert_eq!((rig.totals().discarded, rig.totals().detached), (3, 3));
}

#[test]
fn each_member_in_turn_fails_while_the_item_is_handed_out() {
    for op in [Op::Ready, Op::Send] {
        for broken in 1..=3_u64 {
            let mut rig = Rig::new();
            let members = rig.group(3, &[]);
            members[at(broken)].fail(op);
            rig.feed([101]);
            for (tag, member) in (1..).zip(&members) {
                assert_eq!(member.taken(), usize::from(tag != broken), "{op:?} {broken} {tag}");
            }
            let t = rig.totals();
            assert_eq!((t.received, t.copies, t.delivered, t.detached), (1, 2, 2, 1));
            let lost = u64::from(op == Op::Send);
            assert_eq!((t.lost, t.discarded), (lost, 1 - lost));
            // The others are not affected.
            let mut rest: Vec<_> = (1..=3).filter(|&tag| tag != broken).collect();
            let original = rest.pop().unwrap();
            assert_eq!(
                rig.feed([102]),
                [format!("{} sent 102'", rest[0]), format!("{original} sent 102")]
            );
        }
    }
}

#[test]
fn member_that_drops_its_items_fails_while_the_item_is_handed_out() {
    // It is polled only then, because its policy never holds an item.
    for broken in 1..=3_u64 {
        let mut rig = Rig::new();
        let members: Vec<_> =
            (1..=3).map(|tag| rig.join_on(tag, |a| a.overflow(Overflow::DropNewest))).collect();
        members[at(broken)].fail(Op::Ready);
        let lines = rig.feed([101]);
        let copy = if broken == 3 { "101" } else { "101'" };
        assert!(lines.contains(&format!("discarded {copy} of 1#{broken} Failed")), "{lines:?}");
        let t = rig.totals();
        assert_eq!((t.copies, t.delivered, t.discarded, t.detached), (2, 2, 1, 1));
    }
}

#[test]
fn every_member_fails_while_the_item_is_handed_out() {
    let mut rig = Rig::new();
    let members = rig.group(3, &[]);
    for member in &members {
        member.fail(Op::Send);
    }
    rig.feed([101, 102]);
    let t = rig.totals();
    assert_eq!((t.received, t.copies, t.lost, t.unmatched, t.detached), (2, 2, 3, 1, 3));
}

#[test]
fn evict_overflow_of_every_member_frees_the_key() {
    let mut rig = Rig::new();
    let members: Vec<_> =
        (1..=3).map(|tag| rig.join_on(tag, |a| a.overflow(Overflow::Evict))).collect();
    for member in &members {
        member.park();
    }
    let mut lines = rig.feed([101, 102]);
    lines.retain(|line| !line.ends_with("dropped"));
    assert_eq!(
        lines,
        [
            "discarded 101' of 1#1 Overflowed",
            "detached 1#1 Overflowed",
            "discarded 101' of 1#2 Overflowed",
            "detached 1#2 Overflowed",
            "discarded 101 of 1#3 Overflowed",
            "detached 1#3 Overflowed",
            "unmatched 102"
        ]
    );
}

#[test]
fn finish_while_an_item_is_held_gives_every_member_its_copy() {
    let mut rig = Rig::new();
    let members = rig.group(3, &[2]);
    rig.feed([101, 102]);
    rig.orders.push(Order::Finish);
    assert!(rig.run().is_pending());
    assert_eq!(rig.totals().queued, 1);
    members[1].open();
    let Poll::Ready(totals) = rig.run() else { panic!("the demux did not complete") };
    assert_eq!((totals.received, totals.copies, totals.delivered), (1, 2, 3));
    assert!(members.iter().all(|member| member.taken() == 1 && member.is_closed()));
    assert_eq!(totals.detached, 3);
}

#[test]
fn finish_with_short_turns_gives_every_member_its_copy_of_the_held_item() {
    for budget in 2..=6 {
        let (input, items) = scripted_stream("input");
        let (orders, orders_handle) = scripted_stream("orders");
        let mut task = Task::new(input.demux_by(|_: &u32| 1, orders).multicast().budget(budget));
        let members: Vec<_> = (0..5).map(scripted_sink::<u32>).collect();
        let mut handles = Vec::new();
        for (sink, handle) in members {
            orders_handle.push(Order::Attach(Attach::new(1, sink)));
            handles.push(handle);
        }
        assert!(task.run().is_pending());
        handles[3].park();
        items.push(7);
        assert!(task.run().is_pending());
        orders_handle.push(Order::Finish);
        assert!(task.run().is_pending());
        handles[3].open();
        let Poll::Ready(totals) = task.run() else { panic!("the demux did not complete") };
        assert_eq!((totals.copies, totals.delivered, totals.queued), (4, 5, 0));
        assert!(handles.iter().all(|handle| handle.items() == [7] && handle.is_closed()));
    }
}

#[test]
fn end_of_the_input_right_after_a_held_item_gives_every_member_its_copy() {
    let mut rig = Rig::new();
    let members = rig.group(2, &[1]);
    rig.feed([101]);
    rig.input.end();
    assert!(rig.run().is_pending() && !rig.input.is_ended());
    members[0].open();
    let Poll::Ready(totals) = rig.run() else { panic!("the demux did not complete") };
    assert_eq!((totals.delivered, totals.copies, totals.queued), (2, 1, 0));
    rig.take_log();
}

// Admission.

#[test]
fn refused_members_discard_clones_and_the_last_one_the_item_itself() {
    let mut rig = Rig::refusing(|tag, _| tag == 1 || tag == 4);
    rig.group(4, &[]);
    assert_eq!(
        rig.feed([101]),
        [
            "discarded 101' of 1#1 NotAdmitted",
            "2 sent 101'",
            "3 sent 101'",
            "discarded 101 of 1#4 NotAdmitted"
        ]
    );
    assert_eq!((rig.totals().copies, rig.totals().discarded), (3, 2));
}

#[test]
fn item_that_all_members_refuse_is_discarded_by_each() {
    let mut rig = Rig::refusing(|_, n| n == 101);
    rig.group(3, &[2]);
    assert_eq!(
        rig.feed([101]),
        [
            "discarded 101' of 1#1 NotAdmitted",
            "discarded 101' of 1#2 NotAdmitted",
            "discarded 101 of 1#3 NotAdmitted"
        ]
    );
    assert_eq!((rig.totals().copies, rig.totals().queued), (2, 0));
    // The refusal has no further effect: the next item goes to all.
    assert_eq!(rig.feed([102]), ["1 sent 102'", "3 sent 102'", "blocked 1#2"]);
}

#[test]
fn refused_member_is_not_awaited() {
    let mut rig = Rig::refusing(|tag, n| tag == 1 && n == 101);
    let members = rig.group(2, &[1]);
    assert_eq!(rig.feed([101]), ["discarded 101' of 1#1 NotAdmitted", "2 sent 101"]);
    assert_eq!(members[0].count(Op::Ready), 0);
    assert_eq!(rig.feed([102]), ["2 sent 102'", "blocked 1#1"]);
}

#[test]
fn refused_member_that_leaves_while_the_item_is_held_gets_no_copy() {
    for evict in [false, true] {
        let mut rig = Rig::refusing(|tag, _| tag == 1);
        let mut lease = Lease::new();
        rig.join_on(1, |attach| attach.leased(&mut lease));
        let slow = rig.join(2);
        slow.park();
        assert_eq!(rig.feed([101]), ["discarded 101' of 1#1 NotAdmitted", "blocked 1#2"]);
        if evict {
            drop(lease);
            assert_eq!(rig.lines(), ["1 dropped", "detached 1#1 Evicted"]);
        } else {
            lease.detach();
            assert_eq!(rig.lines(), ["1 closed", "1 dropped", "detached 1#1 Requested"]);
        }
        slow.open();
        assert_eq!(rig.lines(), ["unblocked 1#2", "2 sent 101"]);
    }
}

#[test]
fn last_admitted_member_leaves_and_the_refused_get_the_next_item() {
    for evict in [false, true] {
        let mut rig = Rig::refusing(|tag, n| tag != 2 && n == 101);
        let mut lease = Lease::new();
        rig.join(1);
        let slow = rig.join_on(2, |attach| attach.leased(&mut lease));
        rig.join(3);
        slow.park();
        rig.feed([101]);
        if evict {
            drop(lease);
            assert_eq!(
                rig.lines(),
                [
                    "unblocked 1#2",
                    "2 dropped",
                    "discarded 101 of 1#2 Evicted",
                    "detached 1#2 Evicted"
                ]
            );
        } else {
            lease.detach();
            assert_eq!(rig.lines(), ["unblocked 1#2"]);
        }
        assert_eq!(rig.feed([102]), ["1 sent 102'", "3 sent 102"]);
        assert_eq!(rig.totals().queued, u64::from(!evict));
    }
}

#[test]
fn admit_is_not_called_again_when_the_last_admitted_member_fails() {
    let mut rig = Rig::refusing(|tag, n| tag == 2 && n == 101);
    let members = rig.group(2, &[]);
    members[0].fail(Op::Ready);
    rig.feed([101]);
    assert!(members[0].is_dropped() && members[1].calls().is_empty());
    assert_eq!(rig.feed([102]), ["2 sent 102"]);
}

#[test]
fn admit_is_not_called_for_a_new_member_and_the_held_item() {
    let mut rig = Rig::refusing(|tag, n| tag == 3 && n == 101).logging_admit();
    let members = rig.group(2, &[2]);
    rig.feed([101]);
    let late = rig.order(1, 3, |attach| attach.tag(3));
    assert!(rig.lines().is_empty());
    assert_eq!((rig.totals().copies, rig.totals().queued), (1, 1));
    members[1].open();
    assert_eq!(rig.lines(), ["unblocked 1#2", "2 sent 101"]);
    assert!(late.calls().is_empty());
    assert_eq!(
        rig.feed([102]),
        [
            "admit 102 to 1#1",
            "1 sent 102'",
            "admit 102 to 1#2",
            "2 sent 102'",
            "admit 102 to 1#3",
            "3 sent 102"
        ]
    );
}

#[test]
fn new_member_outlives_the_only_member_the_item_was_held_for() {
    let mut rig = Rig::new();
    let members = rig.group(1, &[1]);
    rig.feed([101]);
    rig.join(2);
    members[0].fail(Op::Ready);
    assert_eq!(
        rig.lines()[1..],
        [
            "unblocked 1#1",
            "1 dropped",
            "discarded 101 of 1#1 Failed",
            "detached 1#1 Failed(Broken(\"poll_ready\"))"
        ]
    );
    assert_eq!(rig.feed([102]), ["2 sent 102"]);
}

#[test]
fn blocked_names_a_member_of_the_group_that_the_item_is_for() {
    let mut rig = Rig::new();
    rig.group(2, &[]);
    let others = [3, 4].map(|tag| rig.order(2, tag, |attach| attach.tag(tag)));
    rig.lines();
    others[1].park();
    assert_eq!(rig.feed([201]), ["3 sent 201'", "blocked 2#4"]);
    assert_eq!(rig.blocked_on(), Some(4));
    others[1].open();
    assert_eq!(rig.lines(), ["unblocked 2#4", "4 sent 201"]);
}

#[test]
fn members_after_one_that_is_evicted_while_it_waits_get_the_item() {
    let mut rig = Rig::with(|demux| demux.budget(2));
    let (members, mut leases) = rig.leased_group(6, &[1]);
    rig.push([101, 102]);
    rig.turn();
    assert!(members[0].is_waiting(Op::Ready) && members[5].taken() == 0);
    drop(leases.remove(0));
    rig.lines();
    assert!(members[1..].iter().all(|member| member.taken() == 2));
    assert_eq!((rig.totals().queued, rig.totals().delivered), (0, 10));
}

#[test]
fn blocked_member_leaves_and_the_next_item_is_read_in_the_same_poll() {
    for end in [drop as fn(Lease), Lease::detach] {
        let mut rig = Rig::new();
        let mut lease = Lease::new();
        let slow = rig.join_on(1, |attach| attach.leased(&mut lease));
        slow.park();
        rig.join(2);
        assert_eq!(rig.feed([101, 102]), ["2 sent 101'", "blocked 1#1"]);
        end(lease);
        let mut lines = rig.turn();
        lines.retain(|line| line.starts_with("2 "));
        assert_eq!(lines, ["2 sent 102"]);
    }
}

#[test]
fn member_that_is_blocked_in_one_group_does_not_hide_a_catch_all() {
    let mut rig = Rig::new();
    let caught = rig.join_on(1, Attach::catch_all);
    rig.join(2);
    // Items of its key go to both, items of other keys to the catch-all only.
    assert_eq!(rig.feed([101, 901]), ["1 sent 101'", "2 sent 101", "1 sent 901"]);
    caught.park();
    assert_eq!(rig.feed([902]), ["blocked 1#1"]);
    rig.join(3);
    caught.open();
    assert_eq!(rig.lines(), ["unblocked 1#1", "1 sent 902"]);
    assert_eq!(rig.totals().copies, 1);
}
