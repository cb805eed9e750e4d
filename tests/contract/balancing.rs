//! `Demux::balance` (*Groups*): the sinks of a key share one queue, and each item goes to one of
//! them. How members end is in `endings`.

use crate::common::{CoopBudget, Op, Rig, SinkHandle, Terms};
use stream_demux::{Lease, Order, Overflow};

/// A rig that does not log flushes.
fn balanced() -> Rig {
    Rig::with(|demux| demux.balance()).logging(|line| {
        ["admit", "attached", "key "].iter().all(|hook| !line.starts_with(hook))
            && !line.ends_with("flushed")
            && !line.ends_with('?')
    })
}

impl Rig {
    /// Attaches sinks under key 1, named and tagged with these numbers.
    #[track_caller]
    fn share(&mut self, tags: impl IntoIterator<Item = u64>) -> Vec<SinkHandle<u32>> {
        self.share_on(tags, |attach| attach)
    }

    #[track_caller]
    fn share_on(
        &mut self,
        tags: impl IntoIterator<Item = u64>,
        mut terms: impl FnMut(Terms) -> Terms,
    ) -> Vec<SinkHandle<u32>> {
        let share = |tag| self.attach_on(1, tag, |attach| terms(attach.tag(tag)));
        tags.into_iter().map(share).collect()
    }
}

fn items(sinks: &[SinkHandle<u32>]) -> Vec<Vec<u32>> {
    sinks.iter().map(SinkHandle::items).collect()
}

fn park(sinks: &[SinkHandle<u32>]) {
    sinks.iter().for_each(SinkHandle::park);
}

// Sinks that are ready.

#[test]
fn ready_sinks_get_items_in_turn() {
    let mut rig = balanced();
    let mut sinks = rig.share(1..=2);
    rig.send([101, 102, 103]);
    sinks.extend(rig.share([3])); // is last in turn
    rig.send([104, 105, 106, 107]);
    assert_eq!(items(&sinks), [vec![101, 103, 105], vec![102, 104, 107], vec![106]]);
    assert_eq!(rig.totals().copies, 0);
}

#[test]
fn item_goes_to_the_next_sink_if_one_fails_and_is_discarded_with_the_last() {
    let mut rig = balanced();
    let sinks = rig.share(1..=2);
    sinks[0].fail(Op::Ready);
    assert_eq!(rig.send([101]).last().unwrap(), "2 sent 101");
    sinks[1].fail(Op::Ready);
    assert!(rig.send([102]).contains(&"discarded 102 of 1#2 Failed".to_owned()));
    assert!(rig.demux().is_empty());
}

#[test]
fn sink_that_is_not_ready_is_skipped_and_next_in_turn_when_it_is_woken() {
    let mut rig = balanced();
    let sinks = rig.share(1..=3);
    sinks[0].park();
    rig.send([101, 102, 103, 104]);
    assert_eq!(items(&sinks), [vec![], vec![101, 103], vec![102, 104]]);
    assert_eq!(sinks[0].count(Op::Ready), 1, "it is not polled before its waker fires");
    sinks[0].open();
    rig.lines();
    assert_eq!(sinks[0].count(Op::Ready), 1, "it is not polled without an item");
    rig.send([105, 106]);
    assert_eq!(items(&sinks), [vec![105], vec![101, 103, 106], vec![102, 104]]);
}

// The queue.

#[test]
fn queue_has_room_for_the_buffers_of_all() {
    let mut rig = balanced();
    let mut buffers = [2, 0, 1].into_iter();
    let mut sinks = rig.share_on(1..=3, |attach| attach.buffer(buffers.next().unwrap()));
    park(&sinks);
    assert!(rig.send([101, 102, 103]).is_empty());
    assert_eq!(rig.send([104, 105, 106]), ["blocked 1#1"]);
    assert_eq!((rig.demux().queue_len(&1), rig.input.left()), (4, 2));
    // A sink that joins brings its own room.
    let fourth = rig.order(1, 4, |attach| attach.tag(4).buffer(1));
    fourth.park();
    sinks.push(fourth);
    sinks[1].allow(1);
    assert_eq!(rig.lines(), ["unblocked 1#1", "2 sent 101", "blocked 1#1"]);
    assert_eq!((rig.demux().queue_len(&1), rig.input.left()), (5, 0));
}

#[test]
fn woken_sink_takes_its_share_of_the_queue_in_order() {
    // The length of the queue divided by the number of sinks, rounded up.
    for (queued, share) in [(1, 1), (3, 1), (4, 2), (7, 3), (9, 3)] {
        let mut rig = balanced();
        let sinks = rig.share_on(1..=3, |attach| attach.buffer(9));
        park(&sinks);
        rig.send((1..=queued).map(|n| 100 + n));
        sinks[1].open();
        rig.turn();
        assert_eq!(sinks[1].items(), (101..=100 + share).collect::<Vec<_>>(), "{queued} queued");
        rig.lines();
        assert_eq!(sinks[1].taken(), queued as usize, "it goes on in the next turns");
    }
}

/// All that is about the queue names the head: the sink that joined first.
#[test]
fn head_is_named_asked_and_followed_by_the_next_one() {
    let mut rig = balanced().admitting(|_, item| item % 10 != 9);
    rig.log.keep_only(|line| ["1 ", "2 "].iter().all(|sink| !line.starts_with(sink)));
    let mut lease = Lease::new();
    let mut sinks = rig.share_on([1], |attach| attach.leased(&mut lease));
    sinks.extend(rig.share([2]));
    park(&sinks);
    let refused = ["admit 109 to 1#1", "discarded 109 of 1#1 NotAdmitted"];
    assert_eq!(rig.send([109]), refused);
    assert_eq!(sinks[0].count(Op::Ready), 0);
    assert_eq!(rig.send([101]), ["admit 101 to 1#1", "blocked 1#1"]);
    lease.detach();
    let handed_over = ["unblocked 1#1", "detached 1#1 Requested", "blocked 1#2"];
    assert_eq!(rig.lines(), handed_over);
    sinks[1].open();
    assert_eq!(rig.send([102]), ["unblocked 1#2", "admit 102 to 1#2"]);
    assert_eq!(sinks[1].items(), [101, 102]);
}

// The policy of the head.

#[test]
fn policy_of_the_head_applies_to_the_queue_of_all() {
    type Row = (Overflow, &'static [&'static str], &'static [u32]);
    let rows: [Row; 4] = [
        (Overflow::DropNewest, &["discarded 103 of 1#1 Overflowed"], &[101, 102]),
        (Overflow::DropOldest, &["discarded 101 of 1#1 Overflowed"], &[102, 103]),
        (Overflow::Conflate, &["discarded 101 of 1#1 Conflated"], &[103]),
        (Overflow::Evict, &["1 dropped", "detached 1#1 Overflowed"], &[101, 102, 103]),
    ];
    for (policy, full, kept) in rows {
        let mut rig = balanced();
        // The second sink has another policy, which does not matter.
        let mut sinks = rig.share_on([1], |attach| attach.overflow(policy).buffer(1));
        sinks.extend(rig.share_on([2], |attach| attach.overflow(Overflow::Wait).buffer(1)));
        park(&sinks);
        sinks[1].strict_unless_in_doubt();
        rig.push([101, 102, 103]);
        assert!(rig.turn().is_empty(), "{policy:?}");
        let mut lines = rig.lines();
        if policy == Overflow::Conflate {
            assert_eq!(lines.remove(1), "discarded 102 of 1#1 Conflated");
        }
        assert_eq!(lines, full, "{policy:?}");
        sinks[1].open();
        rig.lines();
        assert_eq!(sinks[1].items(), kept, "{policy:?}");
    }
}

#[test]
fn policy_acts_only_when_no_sink_of_the_key_is_ready() {
    for ready in 0..3 {
        let mut rig = balanced();
        let sinks = rig.share_on(1..=3, |attach| attach.overflow(Overflow::Evict).buffer(0));
        park(&sinks);
        rig.push([101, 102, 103]);
        rig.turn();
        sinks[ready].open();
        rig.lines();
        assert_eq!((sinks[ready].items(), rig.len()), (vec![101, 102, 103], 3));
        let polls: Vec<_> = sinks.iter().map(|sink| sink.count(Op::Ready)).collect();
        assert!(polls.iter().enumerate().all(|(n, &polls)| n == ready || polls <= 2), "{polls:?}");
    }
}

#[test]
fn evict_drops_the_sink_that_has_not_been_ready_for_longest_and_its_key_keeps_the_queue() {
    let mut rig = balanced();
    let sinks = rig.share_on(1..=3, |attach| attach.overflow(Overflow::Evict).buffer(1));
    sinks[1].park();
    rig.send([101, 102, 103]); // sink 2 is not ready
    sinks[0].park();
    rig.send([104, 105]); // nor is sink 1
    sinks[2].park();
    assert!(rig.send([106, 107, 108]).is_empty());
    assert_eq!(rig.send([109]), ["2 dropped", "detached 1#2 Overflowed"]);
    assert_eq!(rig.demux().queue_len(&1), 4);
    assert_eq!(rig.send([110]), ["1 dropped", "detached 1#1 Overflowed"]);
    sinks[2].open();
    rig.lines();
    assert!(sinks[2].items().ends_with(&[106, 107, 108, 109, 110]));
    assert_eq!(rig.totals().discarded, 0);
}

#[test]
fn policy_acts_at_once_on_a_full_sink_that_is_alone_although_another_is_woken() {
    let mut rig = balanced();
    let mut lease = Lease::new();
    let terms = |attach: Terms| attach.overflow(Overflow::DropNewest).buffer(1);
    let sinks = rig.share_on([1], terms);
    rig.share_on([2], |attach| terms(attach).leased(&mut lease));
    lease.detach();
    rig.lines();
    park(&sinks);
    assert_eq!(rig.send([101, 102]), ["discarded 102 of 1#1 Overflowed"]);
    // Another sink wakes the task before the next item comes.
    let other = rig.attach_on(2, 3, |attach| attach.buffer(1));
    other.share(&CoopBudget::new(1));
    rig.push([201, 202, 103]);
    assert_eq!(rig.turn(), ["3 sent 201", "discarded 103 of 1#1 Overflowed"]);
}

// Members that leave.

#[test]
fn each_takes_an_equal_part_of_the_queue_if_all_leave_together() {
    for (order, why) in [(Order::Detach(1), "Requested"), (Order::Finish, "Finished")] {
        let mut rig = balanced();
        let sinks = rig.share_on(1..=3, |attach| attach.buffer(9));
        park(&sinks);
        rig.send(101..=107);
        rig.apply(order);
        assert_eq!((rig.len(), rig.totals().queued), (0, 7));
        sinks.iter().for_each(SinkHandle::open);
        let ended = rig.run().is_ready();
        let mut ends = rig.log.take();
        ends.retain(|line| line.starts_with("detached"));
        ends.sort();
        assert_eq!(ends, [1, 2, 3].map(|tag| format!("detached 1#{tag} {why}")));
        assert_eq!(items(&sinks), [vec![101, 102, 103], vec![104, 105], vec![106, 107]]);
        assert_eq!(ended, why == "Finished");
    }
}

#[test]
fn limit_counts_what_a_sink_takes() {
    let mut rig = balanced();
    let mut limits = [2, 1].into_iter();
    let sinks = rig.share_on(1..=2, |attach| attach.limit(limits.next().unwrap()).buffer(2));
    park(&sinks);
    rig.send([101, 102, 103, 104]);
    assert_eq!((rig.len(), rig.totals().queued), (2, 4), "queued items do not count");
    sinks[1].open();
    let ended = ["2 sent 101", "2 closed", "2 dropped", "detached 1#2 Limited"];
    assert_eq!(rig.lines(), ended);
    sinks[0].open();
    let lines = rig.lines();
    let last = ["1 closed", "1 dropped", "detached 1#1 Limited"];
    assert_eq!(lines[..2], ["1 sent 102", "1 sent 103"]);
    assert!(last.iter().all(|line| lines.iter().any(|other| other == line)), "{lines:?}");
    assert!(lines.contains(&"unmatched 104".to_owned()), "{lines:?}");
}

/// Two members with room for one item each, and three items: the last one is beyond their buffers.
fn in_doubt() -> (Rig, Vec<SinkHandle<u32>>) {
    let mut rig = balanced();
    let sinks = rig.share_on(1..=2, |attach| attach.overflow(Overflow::DropNewest).buffer(1));
    park(&sinks);
    sinks.iter().for_each(SinkHandle::strict_unless_in_doubt);
    rig.push([101, 102, 103]);
    assert!(rig.turn().is_empty());
    (rig, sinks)
}

#[test]
fn members_in_doubt_that_fail_leave_the_queue_to_the_other_or_to_nobody() {
    for failing in [1, 2] {
        let (mut rig, sinks) = in_doubt();
        sinks[..failing].iter().for_each(|sink| sink.fail(Op::Ready));
        let lines = rig.lines();
        let count = |what| lines.iter().filter(|line| line.starts_with(what)).count();
        assert_eq!(
            (count("detached"), count("discarded")),
            (failing, 2 * failing - 1),
            "{lines:?}"
        );
        sinks[1].open();
        rig.lines();
        assert_eq!(items(&sinks)[1], [101, 102][..4 - 2 * failing], "{lines:?}");
    }
}

/// It yields, so that no wake of it announces the close.
#[test]
fn member_in_doubt_that_reaches_its_limit_is_closed_in_the_same_turn() {
    let mut rig = balanced();
    let mut limits = [9, 3].into_iter();
    let sinks = rig.share_on(1..=2, |attach| {
        attach.overflow(Overflow::DropNewest).buffer(1).limit(limits.next().unwrap())
    });
    sinks[0].park();
    sinks[1].share(&CoopBudget::deferred(2));
    rig.push(101..=105);
    assert_eq!(rig.turn(), ["2 sent 101", "2 sent 102"]);
    let lines = rig.turn();
    assert!(lines.contains(&"detached 1#2 Limited".to_owned()), "{lines:?}");
    assert_eq!((sinks[1].items(), sinks[1].is_closed()), (vec![101, 102, 103], true));
}
