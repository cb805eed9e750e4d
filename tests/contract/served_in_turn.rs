//! How an item is given to a group (attachment rules on `multicast` and `admit`): member by member,
//! at once to members that are ready, later to the others, interrupted at the end of a turn and
//! resumed in the next. Also guarantees 3, 5 and 7 for an item that only some members have.
//!
//! `multicast` tests the results for whole groups; this module tests the order of events.

use std::task::Poll;

use crate::common::group::{Note, Rig, at};
use crate::common::{self, Op, SinkHandle, Terms};
use stream_demux::{Attach, Lease, Order, Overflow};

/// Returns an order without effect.
fn idle_order() -> common::Orders<Note> {
    Order::Detach(99)
}

fn sent(members: &[SinkHandle<Note>]) -> Vec<usize> {
    members.iter().map(SinkHandle::taken).collect()
}

// Members that are ready, and members that wait.

#[test]
fn ready_members_get_their_copies_in_the_poll_that_reads_the_item() {
    let mut rig = Rig::new();
    let members = rig.group(5, &[2, 4]);
    rig.push([101, 102]);
    assert_eq!(rig.turn(), ["1 sent 101'", "3 sent 101'", "5 sent 101'", "blocked 1#2"]);
    let t = rig.totals();
    assert_eq!((t.received, t.copies, t.delivered, t.queued), (1, 3, 3, 1));
    // They are flushed, and the task parks.
    assert!(!rig.task.woken());
    assert!(members.iter().all(|member| member.flushed() == member.taken()));
}

#[test]
fn slow_member_holds_back_the_next_item_and_not_this_one() {
    let mut rig = Rig::new();
    let members = rig.group(3, &[1]);
    rig.feed([101, 102, 103]);
    assert_eq!((sent(&members), rig.input.left()), (vec![0, 1, 1], 2));
    members[0].allow(1);
    rig.lines();
    assert_eq!((sent(&members), rig.input.left()), (vec![1, 2, 2], 1));
    members[0].open();
    rig.lines();
    assert_eq!(sent(&members), [3, 3, 3]);
}

#[test]
fn waiting_member_that_is_woken_gets_its_copy_in_that_poll() {
    for woken in 1..=4 {
        let mut rig = Rig::new();
        let members = rig.group(4, &[1, 2, 3, 4]);
        assert_eq!(rig.feed([101]), ["blocked 1#1"]);
        members[at(woken)].open();
        let copy = format!("{woken} sent 101'");
        if woken == 1 {
            assert_eq!(rig.turn(), ["unblocked 1#1", &copy, "blocked 1#2"]);
        } else {
            assert_eq!(rig.turn(), [copy]);
            assert_eq!(rig.blocked_on(), Some(1));
        }
        assert_eq!((rig.totals().queued, rig.totals().copies), (1, 1));
        assert_eq!(members[at(woken)].flushed(), 1);
    }
}

#[test]
fn waiting_members_get_their_copies_in_any_order_and_the_last_one_the_item_itself() {
    for order in [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]] {
        let mut rig = Rig::new();
        let members = rig.group(3, &[1, 2, 3]);
        rig.feed([101]);
        let mut got = Vec::new();
        for tag in order {
            members[at(tag)].open();
            got.extend(rig.lines().into_iter().filter(|line| line.contains("sent")));
        }
        let [first, second, last] = order;
        assert_eq!(
            got,
            [
                format!("{first} sent 101'"),
                format!("{second} sent 101'"),
                format!("{last} sent 101")
            ]
        );
        assert_eq!((rig.totals().copies, rig.totals().queued), (2, 0));
    }
}

#[test]
fn members_that_are_woken_together_are_served_in_one_poll() {
    let mut rig = Rig::new();
    let members = rig.group(4, &[1, 2, 4]);
    assert_eq!(rig.feed([101]), ["3 sent 101'", "blocked 1#1"]);
    members[0].open();
    members[1].open();
    members[3].open();
    let lines = rig.turn();
    assert!(!rig.task.woken());
    // Members that got their copies in between are not reported.
    let reported: Vec<_> = lines.iter().filter(|line| line.contains("blocked")).collect();
    assert_eq!(reported, ["unblocked 1#1"]);
    assert_eq!((sent(&members), rig.totals().copies), (vec![1; 4], 3));
}

#[test]
fn member_that_has_its_copy_is_not_polled_again_for_it() {
    let mut rig = Rig::new();
    let members = rig.group(3, &[2]);
    rig.feed([101]);
    for member in &members {
        member.wake();
    }
    assert!(rig.lines().is_empty());
    assert_eq!(sent(&members), [1, 0, 1]);
    members[1].open();
    rig.lines();
    assert_eq!(sent(&members), [1, 1, 1]);
    assert_eq!([members[0].count(Op::Ready), members[2].count(Op::Ready)], [1, 1]);
}

#[test]
fn waiting_member_is_polled_once_for_each_wake() {
    let mut rig = Rig::new();
    let members = rig.group(2, &[1, 2]);
    rig.feed([101]);
    for polls in 2..5 {
        members[1].wake();
        assert!(rig.lines().is_empty());
        assert_eq!((members[0].count(Op::Ready), members[1].count(Op::Ready)), (1, polls));
    }
}

#[test]
fn items_reach_each_member_in_order_however_it_is_woken() {
    let mut rig = Rig::new();
    let members = rig.group(3, &[1, 2, 3]);
    rig.push(101..=130);
    for step in 0..200 {
        members[step % 3].allow(1);
        rig.lines();
    }
    for member in &members {
        let items: Vec<_> = member.take_items().iter().map(|note| note.n).collect();
        assert_eq!(items, (101..=130).collect::<Vec<_>>());
    }
    assert_eq!((rig.totals().copies, rig.totals().queued), (60, 0));
}

// The reported member.

#[test]
fn blocked_reports_the_first_waiting_member_after_all_were_offered_the_item() {
    let mut rig = Rig::new().logging_admit();
    rig.group(4, &[2, 3]);
    assert_eq!(
        rig.feed([101]),
        [
            "admit 101 to 1#1",
            "1 sent 101'",
            "admit 101 to 1#2",
            "admit 101 to 1#3",
            "admit 101 to 1#4",
            "4 sent 101'",
            "blocked 1#2"
        ]
    );
}

#[test]
fn next_waiting_member_is_reported_when_the_reported_one_is_served_or_leaves() {
    type End = fn(&SinkHandle<Note>, Lease);
    let ends: [(End, &[&str]); 4] = [
        (
            |member, lease| {
                member.open();
                lease.disarm();
            },
            &["1 sent 101'"],
        ),
        (|_, lease| lease.detach(), &[]),
        (|_, lease| drop(lease), &["1 dropped", "detached 1#1 Evicted"]),
        (
            |member, lease| {
                member.fail(Op::Ready);
                lease.disarm();
            },
            &[
                "1 dropped",
                "discarded 101' of 1#1 Failed",
                "detached 1#1 Failed(Broken(\"poll_ready\"))",
            ],
        ),
    ];
    for (end, between) in ends {
        let mut rig = Rig::new();
        let (members, mut leases) = rig.leased_group(4, &[1, 2, 4]);
        assert_eq!(rig.feed([101]), ["3 sent 101'", "blocked 1#1"]);
        end(&members[0], leases.remove(0));
        let mut lines = rig.lines();
        lines.retain(|line| !line.contains("failed in"));
        let expected = [&["unblocked 1#1"], between, &["blocked 1#2"]].concat();
        assert_eq!(lines, expected);
        assert_eq!(rig.blocked_on(), Some(2));
    }
}

#[test]
fn member_that_is_not_reported_is_served_or_leaves_without_blocked_hooks() {
    let mut rig = Rig::new();
    let (members, mut leases) = rig.leased_group(5, &[1, 2, 3, 4]);
    assert_eq!(rig.feed([101]), ["5 sent 101'", "blocked 1#1"]);
    members[1].open();
    assert_eq!(rig.lines(), ["2 sent 101'"]);
    drop(leases.remove(2));
    assert_eq!(rig.lines(), ["3 dropped", "detached 1#3 Evicted"]);
    leases.remove(2).detach();
    assert!(rig.lines().is_empty());
    assert_eq!(rig.blocked_on(), Some(1));
    members[0].open();
    assert_eq!(rig.lines(), ["unblocked 1#1", "1 sent 101"]);
}

#[test]
fn members_that_leave_in_one_poll_are_not_reported_as_blocked() {
    let mut rig = Rig::new();
    let (_members, leases) = rig.leased_group(4, &[1, 2, 3, 4]);
    rig.feed([101]);
    let mut leases = leases.into_iter();
    leases.by_ref().take(3).for_each(drop);
    let reported: Vec<_> =
        rig.lines().into_iter().filter(|line| line.contains("blocked")).collect();
    assert_eq!(reported, ["unblocked 1#1", "blocked 1#4"]);
}

#[test]
fn evicting_the_key_calls_unblocked_once_and_reports_no_evicted_member() {
    let mut rig = Rig::new();
    rig.group(4, &[1, 2, 3]);
    rig.feed([101]);
    rig.orders.push(Order::Evict(1));
    let reported: Vec<_> =
        rig.lines().into_iter().filter(|line| line.contains("blocked")).collect();
    assert_eq!(reported, ["unblocked 1#1"]);
    assert_eq!(rig.blocked_on(), None);
}

#[test]
fn wait_of_a_second_item_is_reported_again() {
    let mut rig = Rig::new();
    let members = rig.group(2, &[1]);
    assert_eq!(rig.feed([101, 102]), ["2 sent 101'", "blocked 1#1"]);
    members[0].allow(1);
    assert_eq!(rig.lines(), ["unblocked 1#1", "1 sent 101", "2 sent 102'", "blocked 1#1"]);
}

// Clones.

#[test]
fn clones_are_made_for_each_but_the_last_to_be_served() {
    let mut rig = Rig::new();
    let members = rig.group(3, &[1, 3]);
    rig.feed([101]);
    assert_eq!(rig.totals().copies, 1, "a clone was made before it was needed");
    members[2].open();
    assert_eq!(rig.lines(), ["3 sent 101'"]);
    assert_eq!(rig.totals().copies, 2);
    members[0].open();
    assert_eq!(rig.lines(), ["unblocked 1#1", "1 sent 101"]);
    assert_eq!(rig.totals().copies, 2);
}

#[test]
fn overflowed_member_discards_a_clone_unless_it_is_the_last() {
    for (waits, discarded) in [(true, "101'"), (false, "101")] {
        let mut rig = Rig::new();
        let slow = rig.join(1);
        if waits {
            slow.park();
        }
        let full = rig.join_on(2, |attach| attach.overflow(Overflow::Evict));
        full.park();
        rig.feed([101]);
        let t = rig.totals();
        assert_eq!((t.copies, t.discarded, t.queued), (1, 1, u64::from(waits)));
        slow.open();
        rig.lines();
        let got = format!("{:?}", slow.take_items());
        assert_eq!(got, if waits { "[101]" } else { "[101']" }, "the other copy: {discarded}");
    }
}

#[test]
fn overflowed_members_before_after_and_instead_of_the_last_one() {
    let overflows = |parked: &[u64]| {
        let mut rig = Rig::new();
        let members: Vec<_> =
            (1..=3).map(|tag| rig.join_on(tag, |a| a.overflow(Overflow::Evict))).collect();
        for &tag in parked {
            members[at(tag)].park();
        }
        let mut lines = rig.feed([101]);
        lines.retain(|line| line.contains("101"));
        lines
    };
    assert_eq!(overflows(&[1]), ["discarded 101' of 1#1 Overflowed", "2 sent 101'", "3 sent 101"]);
    assert_eq!(
        overflows(&[2, 3]),
        ["1 sent 101'", "discarded 101' of 1#2 Overflowed", "discarded 101 of 1#3 Overflowed"]
    );
}

#[test]
fn member_that_fails_discards_a_clone_unless_it_is_the_last() {
    for (broken, lines) in [
        (1, ["discarded 101' of 1#1 Failed", "2 sent 101'", "3 sent 101"]),
        (2, ["1 sent 101'", "discarded 101' of 1#2 Failed", "3 sent 101"]),
        (3, ["1 sent 101'", "2 sent 101'", "discarded 101 of 1#3 Failed"]),
    ] {
        let mut rig = Rig::new();
        let members = rig.group(3, &[]);
        members[at(broken)].fail_quietly(Op::Ready);
        let mut got = rig.feed([101]);
        got.retain(|line| line.contains("101"));
        assert_eq!(got, lines);
    }
}

#[test]
fn member_that_fails_to_take_its_clone_leaves_the_item_to_the_others() {
    let mut rig = Rig::new();
    let members = rig.group(3, &[3]);
    members[0].fail_quietly(Op::Send);
    rig.feed([101]);
    members[2].open();
    rig.lines();
    let t = rig.totals();
    assert_eq!((t.lost, t.delivered, t.copies), (1, 2, 2));
    assert_eq!(sent(&members), [0, 1, 1]);
}

#[test]
fn dropping_member_discards_a_clone_or_as_the_last_one_the_item_itself() {
    for last in [false, true] {
        let mut rig = Rig::new();
        let terms = |attach: Terms<Note>| attach.overflow(Overflow::DropNewest);
        let full = if last {
            rig.join(2);
            rig.join_on(1, terms)
        } else {
            let full = rig.join_on(1, terms);
            rig.join(2);
            full
        };
        full.park();
        rig.feed([101]); // fills the only place of the queue
        let lines = rig.feed([102]);
        if last {
            assert_eq!(lines, ["2 sent 102'", "discarded 102 of 1#1 Overflowed"]);
        } else {
            assert_eq!(lines, ["discarded 102' of 1#1 Overflowed", "2 sent 102"]);
        }
    }
}

#[test]
fn evicted_member_takes_none_and_the_last_one_discards_the_item_itself() {
    let mut rig = Rig::new();
    let (_members, leases) = rig.leased_group(3, &[1, 2, 3]);
    rig.feed([101]);
    let mut discarded = Vec::new();
    for lease in leases.into_iter().rev() {
        drop(lease);
        discarded.extend(rig.lines().into_iter().filter(|line| line.starts_with("discarded")));
    }
    assert_eq!(discarded, ["discarded 101 of 1#1 Evicted"]);
    assert_eq!((rig.totals().copies, rig.totals().discarded), (0, 1));
}

#[test]
fn all_but_one_have_their_copies_and_the_last_one_is_evicted() {
    let mut rig = Rig::new();
    let (_members, mut leases) = rig.leased_group(3, &[2]);
    rig.feed([101]);
    drop(leases.remove(1));
    assert_eq!(
        rig.lines(),
        ["unblocked 1#2", "2 dropped", "discarded 101 of 1#2 Evicted", "detached 1#2 Evicted"]
    );
    let t = rig.totals();
    assert_eq!((t.copies, t.delivered, t.discarded, t.queued), (2, 2, 1, 0));
}

// A member gets its queue before its copy.

#[test]
fn waiting_member_gets_its_copy_behind_its_queue() {
    let mut rig = Rig::new();
    let slow = rig.join_on(1, |attach| attach.buffer(2));
    rig.join(2);
    slow.park();
    rig.feed([101, 102, 103]);
    assert_eq!((rig.blocked_on(), rig.totals().queued), (Some(1), 3));
    slow.open();
    assert_eq!(rig.lines(), ["unblocked 1#1", "1 sent 101'", "1 sent 102'", "1 sent 103"]);
}

#[test]
fn waiting_member_that_leaves_keeps_its_copy_behind_its_queue_beyond_its_buffer() {
    let mut rig = Rig::new();
    let mut lease = Lease::new();
    let slow = rig.join_on(1, |attach| attach.buffer(1).leased(&mut lease));
    let other = rig.join(2);
    slow.park();
    other.park();
    rig.feed([101]);
    other.allow(1);
    rig.feed([102]);
    assert_eq!(rig.totals().queued, 2);
    lease.detach();
    rig.lines();
    assert_eq!(rig.totals().queued, 3);
    slow.open();
    let lines = rig.lines();
    assert_eq!(lines[..2], ["1 sent 101'", "1 sent 102'"]);
}

// New members.

#[test]
fn member_that_joins_while_an_item_is_held_is_not_offered_it() {
    let mut rig = Rig::new().logging_admit();
    let members = rig.group(2, &[2]);
    rig.feed([101]);
    let late = rig.join(3);
    assert!(rig.take_log().is_empty());
    members[1].open();
    assert_eq!(rig.lines(), ["unblocked 1#2", "2 sent 101"]);
    assert!(late.calls().is_empty());
    rig.feed([102]);
    assert_eq!(late.taken(), 1);
}

#[test]
fn new_member_does_not_inherit_the_copy_of_a_member_that_left() {
    for end in [drop as fn(Lease), Lease::detach] {
        let mut rig = Rig::new();
        let (_members, mut leases) = rig.leased_group(2, &[1, 2]);
        rig.feed([101]);
        let late = rig.join(3);
        end(leases.remove(0));
        rig.lines();
        end(leases.remove(0));
        rig.lines();
        assert_eq!((late.taken(), rig.blocked_on()), (0, None));
        rig.feed([102]);
        assert_eq!(late.taken(), 1);
    }
}

#[test]
fn member_that_leaves_and_joins_again_while_an_item_is_held_gets_the_next_items() {
    let mut rig = Rig::new();
    let mut lease = Lease::new();
    rig.group(1, &[1]);
    rig.join_on(2, |attach| attach.leased(&mut lease));
    assert_eq!(rig.feed([101]), ["2 sent 101'", "blocked 1#1"]);
    drop(lease);
    rig.lines();
    let again = rig.join(3);
    rig.orders.push(Order::Evict(1));
    rig.lines();
    assert!(again.is_dropped() && again.taken() == 0);
    let last = rig.join(4);
    rig.feed([102]);
    assert_eq!(last.taken(), 1);
}

#[test]
fn order_that_overtakes_the_item_lets_its_member_join_in_time() {
    let mut rig = Rig::new();
    rig.group(1, &[]);
    let (order, late) = rig.attachment(1, 2, |attach| attach.tag(2));
    let orders = rig.orders.clone();
    rig.input.action(move || orders.push(order));
    assert_eq!(rig.feed([101]), ["1 sent 101'", "2 sent 101"]);
    assert_eq!(late.taken(), 1);
}

#[test]
fn without_multicast_a_successor_takes_over_the_held_item() {
    let mut rig = common::Rig::new();
    let old = rig.attach(1, "old");
    old.park();
    rig.send([101]);
    let new = rig.attach(1, "new");
    assert_eq!((old.taken(), new.items()), (0, vec![101]));
}

// A walk that stops: a member that yields ends the turn for items.

/// Attaches members 1 to `count`, of which the first yields for `yields` calls, and sends an item,
/// which is held.
#[track_caller]
fn stopped_at_the_first(
    rig: &mut Rig,
    count: u64,
    yields: usize,
) -> (Vec<SinkHandle<Note>>, Vec<Lease>) {
    let (members, leases) = rig.leased_group(count, &[]);
    members[0].stutter(Op::Ready, yields);
    rig.push([101]);
    let mut lines = rig.turn();
    lines.retain(|line| !line.starts_with("admit 101 to 1#1"));
    assert!(lines.is_empty(), "{lines:?}");
    assert!(members[1..].iter().all(|member| member.calls().is_empty()));
    assert_eq!((rig.totals().queued, rig.totals().copies), (1, 0));
    (members, leases)
}

#[test]
fn admit_is_called_when_a_member_is_first_offered_the_item() {
    let mut rig = Rig::new().logging_admit();
    let (_members, _leases) = stopped_at_the_first(&mut rig, 3, 1);
    assert_eq!(
        rig.lines(),
        ["1 sent 101'", "admit 101 to 1#2", "2 sent 101'", "admit 101 to 1#3", "3 sent 101"]
    );
}

#[test]
fn admit_is_called_when_a_member_leaves_before_it_was_offered_the_item() {
    for admitted in [true, false] {
        let refuse: fn(u64, u32) -> bool = if admitted { |_, _| false } else { |tag, _| tag == 3 };
        let mut rig = Rig::refusing(refuse).logging_admit();
        let (members, mut leases) = stopped_at_the_first(&mut rig, 3, 1);
        leases.remove(2).detach();
        let mut lines = rig.lines();
        let of_3 = |line: &String| line.contains("1#3") || line.starts_with("3 ");
        let about: Vec<_> = lines.iter().filter(|line| of_3(line)).cloned().collect();
        let fate = if admitted { "3 sent 101'" } else { "discarded 101' of 1#3 NotAdmitted" };
        assert_eq!(
            about,
            ["admit 101 to 1#3", fate, "3 closed", "3 dropped", "detached 1#3 Requested"]
        );
        lines.retain(|line| !of_3(line));
        assert_eq!(lines, ["1 sent 101'", "admit 101 to 1#2", "2 sent 101"]);
        assert_eq!(members[2].taken(), usize::from(admitted));
    }
}

#[test]
fn member_that_leaves_before_it_was_offered_the_item_gets_it_beyond_its_buffer() {
    for overflow in [Overflow::DropNewest, Overflow::DropOldest, Overflow::Evict, Overflow::Wait] {
        let mut rig = Rig::new();
        let first = rig.join(1);
        let mut lease = Lease::new();
        let full = rig.join_on(2, |attach| attach.overflow(overflow).buffer(1).leased(&mut lease));
        full.park();
        rig.feed([101]);
        assert_eq!((first.taken(), rig.totals().queued), (1, 1));
        first.stutter(Op::Ready, 1);
        rig.push([102]);
        assert!(rig.turn().is_empty());
        lease.detach();
        assert_eq!(rig.lines(), ["1 sent 102"], "{overflow:?}");
        assert_eq!((rig.totals().queued, rig.totals().discarded), (2, 0));
        full.open();
        assert_eq!(rig.lines()[..2], ["2 sent 101", "2 sent 102'"], "{overflow:?}");
    }
}

#[test]
fn admit_is_not_called_for_a_member_evicted_before_it_was_offered_the_item() {
    let mut rig = Rig::new().logging_admit();
    let (_members, mut leases) = stopped_at_the_first(&mut rig, 3, 1);
    drop(leases.remove(2));
    assert_eq!(
        rig.lines(),
        ["3 dropped", "detached 1#3 Evicted", "1 sent 101'", "admit 101 to 1#2", "2 sent 101"]
    );
    assert_eq!((rig.totals().copies, rig.totals().discarded), (1, 0));
}

#[test]
fn admit_is_not_called_for_a_member_that_fails_before_it_was_offered_the_item() {
    let mut rig = Rig::new().logging_admit();
    let members = rig.group(3, &[]);
    members[2].hold(Op::Flush);
    rig.feed([101]);
    members[0].stutter(Op::Ready, 2);
    rig.push([102]);
    assert_eq!(rig.turn(), ["admit 102 to 1#1"]);
    // With an order in between, the second yield counts as a yield, too.
    rig.orders.push(idle_order());
    members[2].fail(Op::Flush);
    assert_eq!(
        rig.turn()[1..],
        [
            "3 dropped",
            "discarded 102' of 1#3 Failed",
            "detached 1#3 Failed(Broken(\"poll_flush\"))"
        ]
    );
    assert_eq!(rig.lines(), ["1 sent 102'", "admit 102 to 1#2", "2 sent 102"]);
    assert_eq!((rig.totals().copies, rig.totals().discarded), (4, 1));
}

#[test]
fn key_is_detached_while_the_walk_is_stopped_and_every_member_keeps_its_copy() {
    let mut rig = Rig::refusing(|tag, _| tag == 2).logging_admit();
    let (members, _leases) = stopped_at_the_first(&mut rig, 4, 1);
    rig.orders.push(Order::Detach(1));
    let mut lines = rig.feed([102]);
    assert!(lines.contains(&"unmatched 102".to_owned()));
    lines.retain(|line| line.starts_with("admit") || line.starts_with("discarded"));
    assert_eq!(
        lines,
        [
            "admit 101 to 1#2",
            "discarded 101' of 1#2 NotAdmitted",
            "admit 101 to 1#3",
            "admit 101 to 1#4"
        ]
    );
    assert_eq!((sent(&members), rig.totals().copies), (vec![1, 0, 1, 1], 3));
    assert!(members.iter().all(SinkHandle::is_closed));
}

#[test]
fn key_is_evicted_while_the_walk_is_stopped_and_only_the_last_one_discards_the_item() {
    let mut rig = Rig::new().logging_admit();
    let (_members, _leases) = stopped_at_the_first(&mut rig, 3, 1);
    rig.orders.push(Order::Evict(1));
    let mut lines = rig.lines();
    lines.retain(|line| !line.ends_with("dropped"));
    assert_eq!(
        lines,
        [
            "detached 1#1 Evicted",
            "detached 1#2 Evicted",
            "discarded 101 of 1#3 Evicted",
            "detached 1#3 Evicted"
        ]
    );
    assert_eq!((rig.totals().copies, rig.totals().discarded), (0, 1));
}

#[test]
fn member_joins_while_the_walk_is_stopped_and_gets_the_next_items() {
    let mut rig = Rig::new().logging_admit();
    let (_members, _leases) = stopped_at_the_first(&mut rig, 2, 1);
    let late = rig.order(1, 3, |attach| attach.tag(3));
    assert_eq!(rig.lines(), ["1 sent 101'", "admit 101 to 1#2", "2 sent 101"]);
    assert!(late.calls().is_empty());
}

#[test]
fn finish_comes_while_the_walk_is_stopped_and_every_member_keeps_its_copy() {
    let mut rig = Rig::new();
    let (members, _leases) = stopped_at_the_first(&mut rig, 4, 1);
    rig.orders.push(Order::Finish);
    let Poll::Ready(totals) = rig.run() else { panic!("the demux did not complete") };
    assert_eq!((totals.copies, totals.delivered, totals.discarded), (3, 4, 0));
    assert!(members.iter().all(|member| member.taken() == 1 && member.is_closed()));
    let log = rig.take_log();
    assert!(!log.iter().any(|line| line.contains("blocked")), "{log:?}");
}

// `Finish`.

#[test]
fn finish_ends_the_wait_at_once_and_each_member_keeps_its_copy() {
    let mut rig = Rig::new();
    let members = rig.group(4, &[1, 3]);
    assert_eq!(rig.feed([101]), ["2 sent 101'", "4 sent 101'", "blocked 1#1"]);
    rig.orders.push(Order::Finish);
    let lines = rig.turn();
    assert_eq!(lines[0], "unblocked 1#1");
    assert_eq!(lines.iter().filter(|line| line.contains("blocked")).count(), 1);
    assert_eq!((rig.blocked_on(), rig.totals().queued, rig.totals().copies), (None, 2, 3));
    members[2].open();
    let mut gone = rig.lines();
    members[0].open();
    assert!(rig.run().is_ready());
    gone.extend(rig.take_log());
    // The last member gets the item itself.
    assert!(gone.contains(&"1 sent 101".to_owned()) != gone.contains(&"3 sent 101".to_owned()));
    gone.retain(|line| line.starts_with("detached"));
    assert_eq!(gone, ["detached 1#3 Finished", "detached 1#1 Finished"]);
}

#[test]
fn finish_takes_many_turns_and_the_item_is_counted_in_each() {
    for budget in [1, 2, 3, 7] {
        let mut rig = Rig::with(|demux| demux.budget(budget));
        let parked: Vec<_> = (1..=20).collect();
        let members = rig.group(20, &parked);
        assert_eq!(rig.feed([101]), ["blocked 1#1"]);
        rig.orders.push(Order::Finish);
        for _ in 0..100 {
            rig.turn();
            let finished = 20 - rig.len() as u64;
            // One in the queue of each finishing member, and one for all others.
            assert_eq!(rig.totals().queued, 20.min(finished + 1), "budget {budget}");
            assert_eq!(rig.totals().copies, 19.min(finished));
            if rig.len() == 0 {
                break;
            }
        }
        assert!(rig.run().is_pending());
        assert_eq!((rig.len(), rig.totals().queued), (0, 20));
        members.iter().for_each(SinkHandle::open);
        assert!(rig.run().is_ready());
        assert_eq!(sent(&members), [1; 20]);
    }
}

#[test]
fn evicted_after_finish_was_applied_and_before_it_is_finished() {
    let mut rig = Rig::with(|demux| demux.budget(1));
    let (members, mut leases) = rig.leased_group(6, &[1, 2, 3, 4, 5, 6]);
    rig.feed([101]);
    rig.orders.push(Order::Finish);
    rig.turn();
    drop(leases.remove(5));
    drop(leases.remove(4));
    assert!(rig.run().is_pending());
    members.iter().for_each(SinkHandle::open);
    let Poll::Ready(totals) = rig.run() else { panic!("the demux did not complete") };
    assert_eq!((totals.copies, totals.delivered, totals.queued), (3, 4, 0));
    assert_eq!(totals.discarded, 0);
}

// Turns.

#[test]
fn item_to_a_group_costs_one_for_each_member_and_continues_in_the_next_turn() {
    let mut rig = Rig::with(|demux| demux.budget(7));
    let members = rig.group(3, &[]);
    rig.push(101..=121);
    for turn in 1..=9 {
        rig.turn();
        assert!(rig.task.woken());
        let t = rig.totals();
        assert_eq!(t.delivered, 7 * turn);
        // The item that only some members have counts once.
        assert_eq!((t.received, t.queued), ((7 * turn).div_ceil(3), u64::from(turn % 3 != 0)));
        assert_eq!(t.copies, t.delivered + t.queued - t.received);
    }
    assert_eq!(sent(&members), [21; 3]);
}

#[test]
fn item_to_a_large_group_does_not_overrun_the_budget() {
    let mut rig = Rig::new();
    let members = rig.group(1_000, &[]);
    rig.push([101]);
    let mut turns = 0;
    while rig.totals().delivered < 1_000 {
        let before = rig.totals().delivered;
        assert!(rig.turn().iter().all(|line| line.contains("sent")));
        let t = rig.totals();
        assert!(t.delivered - before <= 128, "{t:?}");
        assert_eq!((t.received, t.queued), (1, u64::from(t.delivered < 1_000)));
        assert_eq!((rig.blocked_on(), rig.task.woken()), (None, true));
        turns += 1;
    }
    // Seven full turns and one more. The number of flushes in between is not specified.
    assert!((8..=16).contains(&turns), "{turns}");
    rig.lines();
    assert!(members.iter().all(|member| member.count(Op::Ready) == 1 && member.flushed() == 1));
}

#[test]
fn blocked_is_called_at_the_end_of_the_walk_and_not_when_the_budget_is_spent() {
    let mut rig = Rig::with(|demux| demux.budget(4));
    let members = rig.group(10, &[2, 6]);
    rig.push([101, 102]);
    let mut turns = Vec::new();
    loop {
        turns.push(rig.turn());
        if rig.blocked_on().is_some() {
            break;
        }
        assert!(rig.task.woken() && turns.len() < 10);
    }
    assert!(turns.len() >= 3, "ten members take three turns of four units");
    let lines = turns.concat();
    let copies = [1, 3, 4, 5, 7, 8, 9, 10].map(|tag| format!("{tag} sent 101'"));
    assert_eq!(lines, [&copies[..], &["blocked 1#2".to_owned()]].concat());
    members[1].open();
    members[5].open();
    rig.lines();
    assert_eq!(sent(&members), [2; 10]);
}

#[test]
fn member_that_was_found_waiting_is_woken_before_the_walk_is_over() {
    let mut rig = Rig::with(|demux| demux.budget(4));
    let members = rig.group(10, &[2]);
    rig.push([101]);
    rig.turn();
    assert_eq!(sent(&members)[..2], [1, 0]);
    members[1].open();
    let lines = rig.lines();
    assert!(!lines.iter().any(|line| line.contains("blocked")), "{lines:?}");
    assert_eq!(sent(&members), [1; 10]);
    assert_eq!((rig.totals().copies, rig.totals().queued), (9, 0));
}

#[test]
fn orders_are_applied_between_two_parts_of_a_group() {
    let mut rig = Rig::with(|demux| demux.budget(4));
    let (members, mut leases) = rig.leased_group(10, &[]);
    rig.push([101]);
    rig.turn();
    let served = sent(&members).iter().sum::<usize>();
    assert_eq!(served, 4);
    // A member that has its copy, one that was not offered it, and a new one.
    drop(leases.remove(8));
    drop(leases.remove(0));
    let late = rig.order(1, 11, |attach| attach.tag(11));
    rig.lines();
    assert_eq!(sent(&members), [1, 1, 1, 1, 1, 1, 1, 1, 0, 1]);
    assert_eq!((late.taken(), rig.totals().copies, rig.totals().discarded), (0, 8, 0));
}

#[test]
fn every_budget_serves_a_group_with_slow_members() {
    for budget in 1..=12 {
        let mut rig = Rig::with(|demux| demux.budget(budget));
        let members = rig.group(7, &[3, 5]);
        rig.push(101..=105);
        for _ in 0..5 {
            rig.lines();
            members[4].allow(1);
            members[2].allow(1);
        }
        rig.lines();
        assert_eq!((sent(&members), rig.totals().copies), (vec![5; 7], 30), "budget {budget}");
        assert_eq!((rig.totals().queued, rig.blocked_on()), (0, None));
    }
}

#[test]
fn waiting_member_is_served_while_orders_never_pause() {
    for budget in [4, 16, 128] {
        let mut rig = Rig::with(|demux| demux.budget(budget));
        let members = rig.group(3, &[1, 3]);
        rig.feed([101]);
        rig.orders.endless(|_| idle_order());
        rig.turn();
        members[0].open();
        for _ in 0..4 {
            rig.turn();
        }
        assert_eq!(sent(&members), [1, 1, 0], "budget {budget}");
        members[2].open();
        for _ in 0..4 {
            rig.turn();
        }
        assert_eq!(sent(&members), [1, 1, 1], "budget {budget}");
        assert_eq!(rig.blocked_on(), None);
    }
}

#[test]
fn blocked_sink_of_an_ordinary_key_is_served_while_orders_never_pause() {
    let mut rig = common::Rig::new().with_silent_sinks();
    let sink = rig.attach(1, "a");
    sink.park();
    assert_eq!(rig.send([101, 102]), ["blocked 1"]);
    rig.orders.endless(|_| Order::Detach(99));
    rig.poll();
    sink.open();
    rig.turns_until(4, |_| sink.taken() == 1);
    assert_eq!(rig.log.take(), ["unblocked 1"]);
    // The next item is not routed before the orders stream is pending.
    for _ in 0..10 {
        rig.poll();
    }
    assert_eq!(sink.taken(), 1);
}

#[test]
fn evicting_blocking_members_one_per_turn_reports_each_once() {
    const MEMBERS: u64 = 500;
    let mut rig = Rig::new().logging_admit();
    let parked: Vec<_> = (1..=MEMBERS).collect();
    let (members, leases) = rig.leased_group(MEMBERS, &parked);
    let reported = rig.feed([101]);
    assert_eq!(reported.len() as u64, MEMBERS + 1, "`admit` for each, and one `blocked`");
    let (polls, mut lines) = (rig.task.polls(), 0);
    for lease in leases {
        drop(lease);
        lines += rig.turn().len() as u64;
    }
    assert_eq!(rig.task.polls() - polls, members.len());
    // Dropped, detached, unblocked, and the next one blocked; the last one discards the item.
    assert_eq!(lines, 4 * MEMBERS);
    assert!(members.iter().all(|member| member.count(Op::Ready) == 1));
    assert_eq!(rig.totals().copies, 0);
}

// Getters and other rules.

#[test]
fn item_that_is_served_in_part_counts_once_in_queued() {
    let mut rig = Rig::new();
    let members = rig.group(5, &[1, 2, 3, 4]);
    rig.feed([101]);
    for (open, member) in members[..3].iter().enumerate() {
        let t = rig.totals();
        assert_eq!((t.queued, t.delivered), (1, open as u64 + 1));
        member.open();
        rig.lines();
    }
    assert_eq!((rig.totals().queued, rig.totals().delivered), (1, 4));
    members[3].open();
    rig.lines();
    assert_eq!((rig.totals().queued, rig.totals().delivered), (0, 5));
}

#[test]
fn limits_count_the_copy_when_it_is_accepted() {
    let mut rig = Rig::new();
    let slow = rig.join_on(1, |attach| attach.limit(1));
    rig.join_on(2, |attach| attach.limit(1));
    slow.park();
    let mut lines = rig.feed([101]);
    lines.retain(|line| line.contains("1#"));
    lines.sort();
    assert_eq!(lines, ["blocked 1#1", "detached 1#2 Limited"]);
    assert_eq!(rig.len(), 1);
    slow.open();
    let lines = rig.feed([102]);
    assert_eq!(lines[0], "unblocked 1#1");
    assert!(lines.contains(&"unmatched 102".to_owned()));
    assert_eq!((rig.totals().delivered, rig.len()), (2, 0));
}

#[test]
fn keep_existing_is_refused_while_the_group_is_served() {
    let mut rig = Rig::new();
    let members = rig.group(2, &[2]);
    rig.feed([101]);
    let late = rig.join_on(3, Attach::keep_existing);
    assert_eq!(rig.take_log(), ["3 closed", "3 dropped", "detached 1#3 Refused"]);
    members[1].open();
    rig.lines();
    assert_eq!((late.taken(), sent(&members)), (0, vec![1, 1]));
}
