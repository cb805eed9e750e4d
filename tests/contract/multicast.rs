//! `Demux::multicast` (*Groups*): a key with many sinks. Each gets a clone of an item into its sink
//! or its queue, in the order in which they joined, and the last one the item itself. Only the
//! budget interrupts the way of an item through a group. How members end is in `endings`.

use crate::common::{Note, Rig, SinkHandle, Split, Terms};
use stream_demux::{Attach, Lease, Order, Overflow};

/// A rig that logs neither `attached` nor flushes. A clone of item 101 is shown as `101'`.
fn group() -> Rig<Note> {
    group_with(|demux| demux)
}

fn group_with(settings: impl FnOnce(Split<Note>) -> Split<Note>) -> Rig<Note> {
    Rig::group(settings).logging(|line| {
        ["admit", "attached", "key "].iter().all(|hook| !line.starts_with(hook))
            && !line.ends_with("flushed")
            && !line.ends_with('?')
    })
}

impl Rig<Note> {
    /// Attaches members under key 1, named and tagged with these numbers.
    #[track_caller]
    fn join(&mut self, tags: impl IntoIterator<Item = u64>) -> Vec<SinkHandle<Note>> {
        self.join_on(tags, |attach| attach)
    }

    #[track_caller]
    fn join_on(
        &mut self,
        tags: impl IntoIterator<Item = u64>,
        mut terms: impl FnMut(Terms<Note>) -> Terms<Note>,
    ) -> Vec<SinkHandle<Note>> {
        let join = |tag| self.order(1, tag, |attach| terms(attach.tag(tag)));
        let members = tags.into_iter().map(join).collect();
        assert!(self.lines().is_empty());
        members
    }
}

/// How many items each member has taken.
fn taken(members: &[SinkHandle<Note>]) -> Vec<usize> {
    members.iter().map(SinkHandle::taken).collect()
}

// Who gets what.

#[test]
fn each_member_gets_a_clone_and_the_last_the_item_itself() {
    for count in 1..=4 {
        let mut rig = group();
        rig.join(1..=count);
        let mut lines: Vec<_> = (1..count).map(|tag| format!("{tag} sent 101'")).collect();
        lines.push(format!("{count} sent 101"));
        assert_eq!(rig.send([101]), lines);
        assert_eq!(rig.totals().copies, count - 1);
        assert_eq!(rig.send([201]), ["unmatched 201"]);
    }
}

#[test]
fn keep_existing_is_refused_by_a_group_and_joins_a_free_key() {
    let mut rig = group();
    rig.join_on([1], Attach::keep_existing);
    rig.order(1, 2, |attach| attach.tag(2).keep_existing());
    assert_eq!(rig.lines(), ["2 closed", "2 dropped", "detached 1#2 Refused"]);
    rig.join([3]);
    assert_eq!((rig.demux().receivers(&1), rig.demux().receivers(&2)), (2, 0));
    assert_eq!(rig.send([101]), ["1 sent 101'", "3 sent 101"]);
}

#[test]
fn order_for_a_key_applies_to_all_its_members_in_the_order_in_which_they_joined() {
    for (order, end) in
        [(Order::Detach(1), "closed"), (Order::Evict(1), "dropped"), (Order::Finish, "closed")]
    {
        let mut rig = group();
        let members = rig.join(1..=4);
        rig.orders.push(order);
        let ended = rig.run().is_ready();
        let mut lines = rig.log.take();
        lines.retain(|line| line.ends_with(end));
        assert_eq!(lines, [1, 2, 3, 4].map(|tag| format!("{tag} {end}")));
        assert!(members.iter().all(SinkHandle::is_dropped));
        assert!(ended || rig.send([101]) == ["unmatched 101"]);
    }
}

// Members that are not ready, or fail.

/// Each member has its own policy. The second of three is not ready.
#[test]
fn member_that_is_not_ready_is_treated_under_its_own_policy() {
    type Row = (Overflow, &'static [&'static str], &'static [&'static str]);
    let rows: [Row; 5] = [
        (Overflow::Wait, &["blocked 1#2"], &["2 sent 101'", "unblocked 1#2", "2 sent 102'"]),
        (Overflow::DropNewest, &["discarded 102' of 1#2 Overflowed"], &["2 sent 101'"]),
        (Overflow::DropOldest, &["discarded 101' of 1#2 Overflowed"], &["2 sent 102'"]),
        (Overflow::Conflate, &["discarded 101' of 1#2 Conflated"], &["2 sent 102'"]),
        (
            Overflow::Evict,
            &[
                "2 dropped",
                "discarded 101' of 1#2 Overflowed",
                "discarded 102' of 1#2 Overflowed",
                "detached 1#2 Overflowed",
            ],
            &[],
        ),
    ];
    for (policy, full, ready) in rows {
        let mut rig = group();
        rig.join([1]);
        let slow = rig.join_on([2], |attach| attach.overflow(policy).buffer(1)).remove(0);
        rig.join([3]);
        slow.park();
        assert_eq!(rig.send([101]), ["1 sent 101'", "3 sent 101"], "{policy:?}");
        let both = ["1 sent 102'", "3 sent 102"].iter().chain(full).copied().collect::<Vec<_>>();
        assert_eq!(rig.send([102]), both, "{policy:?}");
        slow.open();
        assert_eq!(rig.lines(), ready, "{policy:?}");
    }
}

// `admit`.

#[test]
fn admit_is_called_for_each_member_when_it_is_offered_the_item() {
    let mut rig = group().admitting(|to, note| to.tag != u64::from(note.n % 10));
    rig.join(1..=3);
    rig.log.keep_only(|line| !line.ends_with("flushed"));
    let offers = |refused: u64| {
        (1..=3).flat_map(move |tag| {
            let copy = if tag < 3 { "'" } else { "" };
            let fate = if tag == refused {
                format!("discarded 10{refused}{copy} of 1#{tag} NotAdmitted")
            } else {
                format!("{tag} sent 10{refused}{copy}")
            };
            [format!("admit 10{refused} to 1#{tag}"), fate]
        })
    };
    for refused in 1..=3 {
        let item = 100 + u32::try_from(refused).unwrap();
        assert_eq!(rig.send([item]), offers(refused).collect::<Vec<_>>());
    }
}

// The budget interrupts the way of an item through a group.

/// Sends 101 to members with these tags, with a budget of one: only the first one is offered it.
fn walking(tags: std::ops::RangeInclusive<u64>) -> (Rig<Note>, Vec<SinkHandle<Note>>, Vec<Lease>) {
    let mut rig = group_with(|demux| demux.budget(1));
    let mut leases: Vec<_> = tags.clone().map(|_| Lease::new()).collect();
    let mut next = leases.iter_mut();
    let members = rig.join_on(tags, |attach| attach.leased(next.next().unwrap()));
    rig.push([101]);
    assert_eq!(rig.turn(), ["1 sent 101'"]);
    rig.log.keep_only(|line| !line.starts_with("attached") && !line.ends_with("flushed"));
    (rig, members, leases)
}

#[test]
fn orders_and_leases_take_effect_during_a_walk() {
    let (mut rig, members, mut leases) = walking(1..=6);
    drop(leases.remove(4)); // is not offered the item
    drop(leases.remove(0)); // has its copy
    let late = rig.order(1, 7, |attach| attach.tag(7));
    rig.lines();
    assert_eq!(taken(&members), [1, 1, 1, 1, 0, 1]);
    assert_eq!((late.taken(), rig.totals().copies, rig.totals().discarded), (0, 4, 0));
    rig.send([102]);
    assert_eq!((taken(&members), late.taken()), (vec![1, 2, 2, 2, 0, 2], 1));
}

#[test]
fn walk_is_no_lull_and_nothing_else_is_read_until_it_is_over() {
    let (mut rig, members, _leases) = walking(1..=5);
    rig.push([201]);
    for tag in 2..=5 {
        assert!(members.iter().all(|member| member.flushed() == 0));
        let copy = if tag < 5 { "'" } else { "" };
        assert_eq!(rig.turn(), [format!("admit 101 to 1#{tag}"), format!("{tag} sent 101{copy}")]);
        assert_eq!((rig.input.left(), rig.task.woken()), (1, true));
    }
    assert_eq!(rig.turn(), ["unmatched 201"]);
}

#[test]
fn member_that_leaves_during_a_walk_is_offered_the_item_at_that_moment() {
    for refuse in [false, true] {
        let (rig, members, mut leases) = walking(1..=4);
        let mut rig = rig.admitting(move |_, _| !refuse);
        members[3].park();
        leases.remove(3).detach();
        let all = [rig.turn(), rig.turn(), rig.turn()].concat();
        let mut expected = vec!["admit 101 to 1#2", "2 sent 101'", "admit 101 to 1#4"];
        expected.extend(["admit 101 to 1#3", "3 sent 101"]);
        if refuse {
            expected = vec![
                "admit 101 to 1#2",
                "discarded 101' of 1#2 NotAdmitted",
                "admit 101 to 1#4",
                "discarded 101' of 1#4 NotAdmitted",
                "4 closed",
                "4 dropped",
                "detached 1#4 Requested",
                "admit 101 to 1#3",
                "discarded 101 of 1#3 NotAdmitted",
            ];
        }
        assert_eq!(all, expected);
        members[3].open();
        rig.lines();
        assert_eq!(members[3].taken(), usize::from(!refuse));
    }
}
