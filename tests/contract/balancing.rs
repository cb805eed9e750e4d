//! `Demux::balance`: the sinks of a key share its items. Each item goes to the next ready sink in
//! turn or, if none is ready, to the sink with the shortest queue.

use std::sync::{Arc, Mutex};

use crate::common::real::{FLAVORS, tokio_channel};
use crate::common::{CoopBudget, Op, Rig, SinkHandle, hooks};
use futures::stream;
use stream_demux::{Attach, DemuxStreamExt, Lease, Order, Overflow};

fn balanced() -> Rig {
    Rig::with(|demux| demux.balance())
}

/// Attaches `count` sinks to key 1, named by their numbers.
fn join(rig: &mut Rig, count: u32) -> Vec<SinkHandle<u32>> {
    (1..=count).map(|name| rig.attach(1, name)).collect()
}

fn taken(sinks: &[SinkHandle<u32>]) -> Vec<Vec<u32>> {
    sinks.iter().map(SinkHandle::items).collect()
}

#[test]
fn ready_sinks_get_items_in_turn() {
    let mut rig = balanced();
    let sinks = join(&mut rig, 3);
    rig.send([101, 102, 103, 104]);
    assert_eq!(taken(&sinks), [vec![101, 104], vec![102], vec![103]]);
    let totals = rig.totals();
    assert_eq!((totals.received, totals.copies, totals.delivered), (4, 0, 4));
}

#[test]
fn a_single_sink_gets_all_items_and_a_new_sink_gets_its_share() {
    let mut rig = balanced();
    let mut sinks = join(&mut rig, 1);
    rig.send([101, 102]);
    sinks.extend([rig.attach(1, "later")]);
    rig.send([103, 104]);
    assert_eq!(taken(&sinks), [vec![101, 102, 103], vec![104]]);
}

#[test]
fn a_busy_sink_is_skipped_and_next_in_turn_when_it_is_woken() {
    let mut rig = balanced();
    let sinks = join(&mut rig, 3);
    sinks[0].hold(Op::Ready);
    rig.send([101, 102, 103, 104]);
    assert_eq!(taken(&sinks), [vec![], vec![101, 103], vec![102, 104]]);
    assert_eq!(sinks[0].count(Op::Ready), 1, "not polled again before its waker fires");
    sinks[0].release(Op::Ready);
    rig.sleep();
    rig.send([105, 106]);
    assert_eq!(taken(&sinks), [vec![105], vec![101, 103, 106], vec![102, 104]]);
}

#[test]
fn if_no_sink_is_ready_the_item_is_held_for_the_first_that_becomes_ready() {
    let mut rig = balanced();
    let sinks = join(&mut rig, 3);
    for sink in &sinks {
        sink.hold(Op::Ready);
    }
    assert_eq!(hooks(rig.send([101, 102])), ["blocked 1"]);
    sinks[1].release(Op::Ready);
    assert_eq!(hooks(rig.lines()), ["unblocked 1"]);
    assert_eq!(taken(&sinks), [vec![], vec![101, 102], vec![]]);
}

#[test]
fn a_sink_that_joins_takes_the_item_that_is_held() {
    let mut rig = balanced();
    let sinks = join(&mut rig, 2);
    for sink in &sinks {
        sink.hold(Op::Ready);
    }
    rig.send([101]);
    let third = rig.attach(1, "third");
    assert_eq!(third.items(), [101]);
    assert_eq!(rig.totals().queued, 0);
}

#[test]
fn a_second_sink_takes_the_item_that_is_held_for_the_first() {
    let mut rig = balanced();
    let first = rig.attach(1, "first");
    first.hold(Op::Ready);
    assert_eq!(hooks(rig.send([101, 102])), ["blocked 1"]);
    let (sink, second) = rig.sink("second");
    assert!(hooks(rig.apply(Attach::new(1, sink))).contains(&"unblocked 1".to_owned()));
    assert_eq!((second.items(), rig.totals().queued), (vec![101, 102], 0));
    first.release(Op::Ready);
    rig.send([103]);
    assert_eq!(taken(&[first, second]), [vec![103], vec![101, 102]]);
}

#[test]
fn a_sink_that_joins_the_catch_all_does_not_take_what_is_held_for_that() {
    let mut rig = balanced();
    let first = rig.attach_on(1, "first", Attach::catch_all);
    first.hold(Op::Ready);
    rig.send([901]);
    let second = rig.attach(1, "second");
    assert_eq!((second.items(), rig.totals().queued), (vec![], 1));
    first.release(Op::Ready);
    rig.sleep();
    assert_eq!(taken(&[first, second]), [vec![901], vec![]]);
}

#[test]
fn a_sink_that_is_evicted_is_not_asked_whether_it_admits_the_item_that_is_held() {
    let mut rig = balanced().admitting(|to, _| {
        assert_ne!(to.tag, 3, "it joined when the item was held");
        true
    });
    for tag in 1..=2 {
        rig.attach_on(1, tag, |attach| attach.tag(tag)).hold(Op::Ready);
    }
    rig.send([101]);
    let (sink, _) = rig.sink("third");
    rig.orders.push(Attach::new(1, sink).tag(3).into());
    assert!(hooks(rig.apply(Order::Evict(1))).contains(&"discarded 101 of 1#3 Evicted".to_owned()));
}

#[test]
fn with_buffers_the_shortest_queue_gets_the_item() {
    let mut rig = Rig::with(|demux| demux.balance().buffer(10));
    let sinks = join(&mut rig, 3);
    for sink in &sinks {
        sink.hold(Op::Ready);
    }
    rig.send(101..=107);
    assert_eq!(rig.totals().queued, 7);
    for sink in &sinks {
        sink.release(Op::Ready);
    }
    rig.sleep();
    assert_eq!(taken(&sinks), [vec![101, 104, 107], vec![102, 105], vec![103, 106]]);
}

#[test]
fn the_policy_of_the_sink_with_the_shortest_queue_applies() {
    let mut rig = balanced();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(2).overflow(Overflow::DropNewest));
    let b = rig.attach_on(1, "b", |attach| attach.buffer(2).overflow(Overflow::DropOldest));
    a.hold(Op::Ready);
    b.hold(Op::Ready);
    // Each gets two. Then both queues are full, and the first sink drops the newest item.
    let lines = hooks(rig.send(101..=105));
    assert_eq!(lines, ["discarded 105 of 1 Overflowed"]);
}

#[test]
fn items_queued_for_a_leaving_sink_move_to_the_others() {
    for evict in [false, true] {
        let mut rig = Rig::with(|demux| demux.balance().buffer(10));
        let mut lease = Lease::new();
        let first = rig.attach_on(1, "first", |attach| attach.leased(&mut lease));
        let others: Vec<_> = (0..2).map(|n| rig.attach(1, n)).collect();
        first.hold(Op::Ready);
        for sink in &others {
            sink.hold(Op::Ready);
        }
        rig.send(101..=106); // 101 and 104 are queued for the first
        if evict {
            drop(lease);
        } else {
            lease.detach();
        }
        rig.sleep();
        assert!(first.is_dropped() && first.items().is_empty());
        for sink in &others {
            sink.release(Op::Ready);
        }
        rig.sleep();
        assert_eq!(taken(&others), [vec![102, 105, 101], vec![103, 106, 104]]);
        assert_eq!((rig.totals().delivered, rig.totals().discarded), (6, 0));
    }
}

#[test]
fn items_queued_for_a_failing_sink_move_to_the_others_that_are_ready() {
    let mut rig = Rig::with(|demux| demux.balance().buffer(10));
    let a = rig.attach(1, "a");
    let b = rig.attach(1, "b");
    a.hold(Op::Ready);
    b.hold(Op::Ready);
    rig.send([101, 102]);
    b.release(Op::Ready);
    rig.sleep();
    a.fail(Op::Ready);
    rig.sleep();
    assert_eq!((b.items(), a.is_dropped()), (vec![102, 101], true));
}

#[test]
fn detach_and_evict_of_the_key_and_the_end_move_nothing() {
    for order in [Order::Detach(1), Order::Evict(1), Order::Finish] {
        let evicts = matches!(order, Order::Evict(_));
        let mut rig = Rig::with(|demux| demux.balance().buffer(10));
        let sinks = join(&mut rig, 2);
        for sink in &sinks {
            sink.hold(Op::Ready);
        }
        rig.send(101..=104);
        rig.orders.push(order);
        let _ = rig.run();
        for sink in &sinks {
            sink.release(Op::Ready);
        }
        let _ = rig.run();
        let expected = if evicts { [vec![], vec![]] } else { [vec![101, 103], vec![102, 104]] };
        assert_eq!(taken(&sinks), expected);
        assert_eq!(rig.totals().discarded, if evicts { 4 } else { 0 });
    }
}

#[test]
fn an_item_that_finish_overtook_may_end_a_limit_and_then_the_queue_moves() {
    let mut rig = Rig::with(|demux| demux.balance().buffer(10));
    let first = rig.attach_on(1, "first", |attach| attach.limit(2));
    let second = rig.attach(1, "second");
    first.hold(Op::Ready);
    second.hold(Op::Ready);
    rig.send([101, 102]); // one for each
    let orders = rig.orders.clone();
    rig.input.action(move || orders.push(Order::Finish));
    rig.input.push(103);
    rig.sleep();
    // 103 was read before `Finish`: it is the second item of `first`, which leaves.
    assert!(first.is_dropped() && first.items().is_empty());
    second.release(Op::Ready);
    assert!(rig.run().is_ready());
    assert_eq!(second.items(), [102, 101, 103]);
    assert_eq!(rig.totals().delivered, 3);
}

#[test]
fn an_item_that_is_held_goes_with_the_last_that_leaves() {
    for (order, discarded) in [(Order::Detach(1), 0), (Order::Evict(1), 1), (Order::Finish, 0)] {
        let mut rig = balanced();
        let sinks = join(&mut rig, 3);
        for sink in &sinks {
            sink.hold(Op::Ready);
        }
        rig.send([101]);
        rig.orders.push(order);
        let _ = rig.run();
        for sink in &sinks {
            sink.release(Op::Ready);
        }
        let _ = rig.run();
        let totals = rig.totals();
        assert_eq!((totals.queued, totals.discarded), (0, discarded));
        assert_eq!(totals.delivered + totals.discarded, 1);
    }
}

#[test]
fn a_sink_that_admit_refuses_is_skipped() {
    // Sinks are distinguished by their tags.
    let mut rig = balanced().admitting(|to, item| to.tag != u64::from(item % 10));
    let sinks: Vec<_> =
        (1..=2).map(|tag| rig.attach_on(1, tag, |attach| attach.tag(tag))).collect();
    rig.send([101, 103, 102]);
    assert_eq!(taken(&sinks), [vec![103, 102], vec![101]]);
    assert_eq!(rig.totals().discarded, 0);
}

#[test]
fn an_item_that_admit_refuses_for_all_is_discarded_once_for_the_first() {
    let mut rig = balanced().admitting(|_, item| item % 10 != 9);
    let sinks = join(&mut rig, 3);
    sinks[0].hold(Op::Ready);
    rig.send([101, 102]);
    assert_eq!(hooks(rig.send([109])).len(), 1);
    assert_eq!((rig.totals().discarded, rig.totals().delivered), (1, 2));
}

#[test]
fn a_member_that_fails_when_it_is_polled_leaves_the_item_to_the_others() {
    let mut rig = balanced();
    let sinks = join(&mut rig, 2);
    sinks[0].fail(Op::Ready);
    rig.send([101]);
    assert_eq!((sinks[1].items(), rig.totals().discarded), (vec![101], 0));
    sinks[1].fail(Op::Ready);
    rig.send([102]);
    assert_eq!((rig.totals().discarded, rig.len()), (1, 0));
}

#[test]
fn members_that_join_and_leave_keep_the_turns_in_order() {
    let mut rig = balanced();
    for round in 0..200_u32 {
        let mut leases: Vec<Lease> = (0..5).map(|_| Lease::new()).collect();
        for (n, lease) in leases.iter_mut().enumerate() {
            rig.attach_on(1, n, |attach: Attach<_, _>| attach.leased(lease));
        }
        rig.send((0..10).map(|n| 100 + n));
        drop(leases.remove((round % 5) as usize));
        rig.send((0..10).map(|n| 100 + n));
        drop(leases);
        rig.sleep();
        assert_eq!((rig.len(), rig.totals().delivered), (0, u64::from(round + 1) * 20));
    }
}

/// The sink is polled again for an item that it gets as catch-all, and remains in turn for the
/// items of its key.
#[test]
fn a_sink_that_yielded_and_then_catches_an_item_is_in_turn_again() {
    let mut rig = balanced();
    let a = rig.attach_on(1, "a", Attach::catch_all);
    let b = rig.attach(1, "b");
    a.stutter(Op::Ready, 1);
    rig.send([101, 901]);
    assert_eq!((a.items(), b.items()), (vec![901], vec![101]));
    b.hold(Op::Ready);
    assert_eq!(hooks(rig.send([102])), [""; 0], "one sink is ready");
    assert_eq!(a.items(), [901, 102]);
}

#[test]
fn an_item_is_held_for_a_member_that_yields_and_not_given_to_a_policy() {
    let mut rig = Rig::with(|demux| demux.balance().overflow(Overflow::Evict));
    let sinks = join(&mut rig, 2);
    sinks[1].park();
    sinks[0].stutter(Op::Ready, 1);
    assert_eq!(hooks(rig.send([101])), [""; 0], "nothing is reported");
    assert_eq!((sinks[0].items(), rig.len(), rig.totals().discarded), (vec![101], 2, 0));
}

#[test]
fn a_member_that_was_woken_and_is_full_again_is_skipped() {
    let mut rig = Rig::with(|demux| demux.balance().buffer(3));
    let sinks = join(&mut rig, 3);
    for sink in &sinks {
        sink.park();
    }
    rig.send(101..=106);
    sinks[0].allow(1);
    rig.sleep();
    assert_eq!(sinks[0].items(), [101], "one of the two queued items");
    rig.send([107]);
    assert_eq!(
        (sinks[0].count(Op::Ready), rig.totals().queued),
        (3, 6),
        "its queue is the shortest"
    );
    for sink in &sinks {
        sink.open();
    }
    rig.sleep();
    assert_eq!(taken(&sinks), [vec![101, 104, 107], vec![102, 105], vec![103, 106]]);
}

#[test]
fn an_item_that_is_held_at_the_end_goes_to_a_member_that_is_admitted() {
    for refusing in 1..=2_u64 {
        let mut rig = balanced().admitting(move |to, _| to.tag != refusing);
        let sinks: Vec<_> =
            (1..=2).map(|tag| rig.attach_on(1, tag, |attach| attach.tag(tag))).collect();
        for sink in &sinks {
            sink.hold(Op::Ready);
        }
        rig.send([101]);
        rig.orders.push(Order::Finish);
        let _ = rig.run();
        for sink in &sinks {
            sink.release(Op::Ready);
        }
        let _ = rig.run();
        assert_eq!((rig.totals().delivered, rig.totals().discarded), (1, 0), "{refusing}");
        assert_eq!(sinks[usize::from(refusing == 1)].items(), [101]);
    }
}

#[test]
fn an_item_that_the_last_member_refuses_as_it_leaves_is_discarded() {
    let mut rig = balanced().admitting(|to, _| to.tag != 1);
    let mut leases = [Lease::new(), Lease::new()];
    for (tag, lease) in (1..=2).zip(&mut leases) {
        rig.attach_on(1, tag, |attach| attach.tag(tag).leased(lease)).hold(Op::Ready);
    }
    rig.send([101]);
    let [first, second] = leases;
    drop(second);
    rig.sleep();
    assert_eq!((rig.totals().queued, rig.totals().discarded), (0, 1));
    drop(first);
    rig.sleep();
    assert_eq!((rig.len(), rig.totals().discarded), (0, 1));
}

/// All leave in one turn, so the item is not offered again in between.
#[test]
fn an_item_that_is_held_is_discarded_once_if_all_members_leave_at_once() {
    for refusing in 1..=3_u64 {
        let mut rig = balanced().admitting(move |to, _| to.tag != refusing);
        let mut lease = Lease::new();
        for tag in 1..=3 {
            rig.attach_on(1, tag, |attach| attach.tag(tag).leased(&mut lease)).hold(Op::Ready);
        }
        rig.send([101]);
        drop(lease);
        rig.sleep();
        let totals = rig.totals();
        assert_eq!((rig.len(), totals.queued, totals.discarded), (0, 0, 1), "{refusing}");
    }
}

/// All leave in the same turn.
#[test]
fn an_item_that_the_last_of_several_that_leave_at_once_refuses_is_discarded() {
    for order in [Order::Detach(1), Order::Evict(1)] {
        let mut rig = balanced().admitting(|to, _| to.tag != 2);
        for tag in 1..=2 {
            rig.attach_on(1, tag, |attach| attach.tag(tag)).hold(Op::Ready);
        }
        assert_eq!(rig.send([101]), ["blocked 1#1"]);
        let lines = rig.apply(order);
        assert!(lines.contains(&"discarded 101 of 1#2 NotAdmitted".to_owned()), "{lines:?}");
        assert_eq!((rig.totals().queued, rig.totals().discarded, rig.len()), (0, 1, 0));
    }
}

#[test]
fn an_item_that_is_held_stays_when_one_of_several_members_leaves() {
    let mut rig = balanced();
    let mut lease = Lease::new();
    let first = rig.attach_on(1, "first", |attach| attach.leased(&mut lease));
    let second = rig.attach(1, "second");
    first.hold(Op::Ready);
    second.hold(Op::Ready);
    rig.send([101]);
    lease.detach();
    rig.sleep();
    assert!(first.is_closed());
    second.release(Op::Ready);
    rig.sleep();
    assert_eq!((first.items(), second.items()), (vec![], vec![101]));
}

#[test]
fn members_stall_while_an_item_is_held_for_all_of_them() {
    let mut rig = Rig::with(|demux| demux.balance().stall_timeout(2));
    let sinks = join(&mut rig, 2);
    for sink in &sinks {
        sink.hold(Op::Ready);
    }
    rig.send([101]);
    for _ in 0..2 {
        rig.orders.push(Order::Tick);
        rig.sleep();
    }
    assert!(sinks.iter().all(SinkHandle::is_dropped));
    assert_eq!((rig.len(), rig.totals().discarded), (0, 1));
}

#[test]
fn a_member_that_takes_the_place_of_one_that_left_has_one_turn() {
    let mut rig = balanced();
    let mut lease = Lease::new();
    let first = rig.attach_on(1, "first", |attach| attach.leased(&mut lease));
    let second = rig.attach(1, "second");
    drop(lease);
    let third = rig.attach(1, "third");
    rig.send([101, 102, 103, 104]);
    assert!(first.items().is_empty());
    assert_eq!(taken(&[second, third]), [vec![101, 103], vec![102, 104]]);
}

#[test]
fn a_sink_that_joins_is_last_in_turn_though_one_has_left_before() {
    let mut rig = balanced();
    let mut lease = Lease::new();
    rig.attach_on(1, "first", |attach| attach.leased(&mut lease));
    let mut sinks = join(&mut rig, 2);
    drop(lease);
    rig.sleep();
    sinks.push(rig.attach(1, "last"));
    rig.send([101, 102, 103, 104]);
    assert_eq!(taken(&sinks), [vec![101, 104], vec![102], vec![103]]);
}

/// The first sink in turn has left, and a sink of another key reuses its slot id.
#[test]
fn a_sink_of_another_key_gets_nothing_though_it_came_after_one_that_left() {
    let mut rig = balanced();
    let mut lease = Lease::new();
    rig.attach_on(1, "first", |attach| attach.leased(&mut lease));
    let sinks = join(&mut rig, 1);
    drop(lease);
    rig.sleep();
    let others = [rig.attach(2, "a"), rig.attach(2, "b")];
    rig.send([101, 102]);
    assert_eq!((taken(&sinks), taken(&others)), (vec![vec![101, 102]], vec![vec![], vec![]]));
}

#[test]
fn each_key_has_separate_turns() {
    let mut rig = balanced();
    let ready = join(&mut rig, 2);
    let busy = [rig.attach(2, "a"), rig.attach(2, "b")];
    for sink in &busy {
        sink.hold(Op::Ready);
    }
    assert_eq!(hooks(rig.send([101, 201, 102])), ["blocked 2"]);
    busy[1].release(Op::Ready);
    assert_eq!(hooks(rig.lines()), ["unblocked 2"]);
    assert_eq!(
        (taken(&ready), taken(&busy)),
        (vec![vec![101], vec![102]], vec![vec![], vec![201]])
    );
}

/// The new sink reuses the slot id of the sink that left, for which `admit` was called.
#[test]
fn admit_is_called_for_a_sink_that_joins_while_the_item_is_held() {
    let mut rig = balanced().logging_only(|line| line.starts_with("admit "));
    let mut lease = Lease::new();
    let a = rig.attach_on(1, "a", |attach| attach.tag(1).leased(&mut lease));
    let b = rig.attach_on(1, "b", |attach| attach.tag(2));
    a.hold(Op::Ready);
    b.hold(Op::Ready);
    assert_eq!(rig.send([101]), ["admit 101 to 1#1", "admit 101 to 1#2"]);
    drop(lease);
    assert_eq!(rig.lines(), [""; 0]);
    let c = rig.order(1, "c", |attach| attach.tag(3));
    assert_eq!(rig.lines(), ["admit 101 to 1#3"]);
    assert_eq!(c.items(), [101]);
}

#[test]
fn the_last_of_a_group_keeps_its_queue() {
    for evict in [false, true] {
        let mut rig = Rig::with(|demux| demux.balance().buffer(10));
        let (mut first, mut last) = (Lease::new(), Lease::new());
        rig.attach_on(1, "first", |attach| attach.leased(&mut first));
        let sink = rig.attach_on(1, "last", |attach| attach.leased(&mut last));
        drop(first);
        rig.sleep();
        sink.hold(Op::Ready);
        rig.send([101, 102]);
        if evict {
            drop(last);
        } else {
            last.detach();
        }
        rig.sleep();
        sink.release(Op::Ready);
        rig.sleep();
        let (sent, discarded) = if evict { (vec![], 2) } else { (vec![101, 102], 0) };
        assert_eq!((sink.items(), rig.totals().discarded, rig.len()), (sent, discarded, 0));
    }
}

#[test]
fn a_sink_of_another_key_leaves_without_the_item_that_is_held() {
    for (members, order) in
        [(1, Order::Detach(2)), (2, Order::Detach(2)), (1, Order::Finish), (2, Order::Finish)]
    {
        let mut rig = balanced();
        let other = rig.attach(2, "other");
        let mut lease = Lease::new();
        rig.attach_on(1, "gone", |attach| attach.leased(&mut lease));
        let sinks = join(&mut rig, members);
        drop(lease);
        rig.sleep();
        for sink in &sinks {
            sink.hold(Op::Ready);
        }
        rig.send([101]);
        rig.orders.push(order);
        let _ = rig.run();
        assert!(other.is_closed() && other.items().is_empty());
        for sink in &sinks {
            sink.release(Op::Ready);
        }
        let _ = rig.run();
        assert_eq!((taken(&sinks).concat(), rig.totals().discarded), (vec![101], 0));
    }
}

/// The policy of the first sink would evict it, but the second sink only yields.
#[test]
fn a_sink_that_yields_is_polled_again_before_the_policy_of_another_acts() {
    let mut rig = Rig::with(|demux| demux.balance().overflow(Overflow::Evict));
    let sinks = join(&mut rig, 2);
    sinks[0].hold(Op::Ready);
    sinks[1].stutter(Op::Ready, 1);
    assert_eq!(hooks(rig.send([101])), [""; 0]);
    assert_eq!((taken(&sinks), rig.len()), (vec![vec![], vec![101]], 2));
}

#[test]
fn a_sink_that_was_woken_is_polled_again_before_its_policy_acts() {
    let mut rig = Rig::with(|demux| demux.balance().overflow(Overflow::Evict));
    let sinks = join(&mut rig, 2);
    sinks[0].hold(Op::Ready);
    sinks[1].park();
    sinks[1].allow(1);
    let first = sinks[0].clone();
    sinks[1].during(Op::Send, move || first.release(Op::Ready));
    assert_eq!(hooks(rig.send([101, 102])), [""; 0]);
    assert_eq!((taken(&sinks), rig.len()), (vec![vec![102], vec![101]], 2));
}

/// The item is held for a sink that yielded and, in the next turn, for another sink, which is woken
/// in that turn.
#[test]
fn a_sink_that_yielded_for_an_earlier_item_is_polled_again_for_one_that_is_held() {
    let mut rig = balanced();
    let (a, b, c) = (rig.attach(1, "a"), rig.attach(1, "b"), rig.attach(1, "c"));
    a.stutter(Op::Ready, 1);
    b.allow(1);
    c.stutter(Op::Ready, 1);
    c.park();
    rig.send([101, 102]);
    assert_eq!((a.items(), b.items(), c.items()), (vec![102], vec![101], vec![]));
}

#[test]
fn a_sink_that_yielded_is_polled_again_though_another_goes_on_yielding() {
    for (a_yields, b_yields) in [(1, 2), (2, 1), (1, 20), (20, 1)] {
        let mut rig = Rig::with(|demux| demux.balance().overflow(Overflow::Evict));
        let (a, b) = (rig.attach(1, "a"), rig.attach(1, "b"));
        a.stutter(Op::Ready, a_yields);
        b.stutter(Op::Ready, b_yields);
        assert_eq!(hooks(rig.send([101])), [""; 0]);
        assert_eq!((a.taken() + b.taken(), rig.len()), (1, 2));
    }
}

#[test]
fn a_sink_that_was_woken_is_polled_again_though_another_yielded() {
    let mut rig = Rig::with(|demux| demux.balance().overflow(Overflow::Evict));
    let (a, b) = (rig.attach(1, "a"), rig.attach(1, "b"));
    a.park();
    b.stutter(Op::Ready, 2);
    rig.input.push(101);
    rig.poll();
    a.open();
    assert_eq!(hooks(rig.lines()), [""; 0]);
    assert_eq!(a.items(), [101]);
}

/// A queue has one item, and its sink yields while it drains. The policy of the other sink, which
/// is full, does not act on the next item of that turn.
#[test]
fn a_sink_that_yielded_while_its_queue_drained_is_polled_again_before_the_policy_of_another_acts() {
    for overflow in [Overflow::Evict, Overflow::DropNewest, Overflow::DropOldest] {
        let mut rig = Rig::with(|demux| demux.balance());
        let a = rig.attach_on(1, "a", |attach| attach.overflow(overflow).buffer(1));
        let b = rig.attach_on(1, "b", |attach| attach.overflow(overflow).buffer(1));
        a.park();
        b.park();
        rig.send([101, 102]); // one for each queue
        b.stutter(Op::Ready, 1);
        b.open();
        assert_eq!(hooks(rig.send([103])), [""; 0], "{overflow:?}");
        assert_eq!((b.items(), rig.len()), (vec![102, 103], 2));
    }
}

#[test]
fn a_sink_that_yields_without_end_and_is_alone_with_a_full_one_holds_the_item_for_16_turns() {
    let mut rig = Rig::with(|demux| demux.balance().overflow(Overflow::Evict));
    let (a, b) = (rig.attach(1, "a"), rig.attach(1, "b"));
    let busy = rig.attach(0, "busy");
    a.park();
    b.stutter(Op::Ready, 1_000);
    let asked = b.count(Op::Ready);
    rig.input.push(101);
    // Something is done in each turn, so the sink may have room in the next one.
    let orders = rig.orders.clone();
    for turn in 0..40 {
        rig.poll();
        if rig.len() < 3 {
            assert_eq!((turn, b.count(Op::Ready) - asked), (16, 17));
            assert_eq!((a.is_dropped(), busy.taken()), (true, 0));
            return;
        }
        orders.push(Order::Tick);
    }
    panic!("the item was held for too long");
}

/// `a` is full. `b` and `c` answer `Pending` after 64 operations of a turn; `b` has room.
#[test]
fn a_sink_that_answered_late_is_polled_again_before_another_is_evicted() {
    let mut rig = Rig::with(|demux| demux.balance().budget(1_000).overflow(Overflow::Evict));
    let coop = CoopBudget::deferred(100);
    let [busy, a, b, c] = [(0, "busy"), (1, "a"), (1, "b"), (1, "c")].map(|(key, name)| {
        let sink = rig.attach(key, name);
        sink.share(&coop);
        sink
    });
    a.park();
    rig.send([101, 102]); // to b and c
    c.park();
    assert_eq!(hooks(rig.send((0..100).chain([103]))), [""; 0]);
    assert_eq!((b.items(), busy.taken()), (vec![101, 103], 100));
}

/// The same with tokio's channels, in a task of its own.
#[test]
fn on_tokio_no_sink_is_evicted_while_another_has_room() {
    for flavor in FLAVORS {
        let (discarded, got) = flavor.run(async {
            let (busy, _busy_out) = tokio_channel::<u32>(1_000);
            let (a, _a_out) = tokio_channel::<u32>(1);
            let (b, mut b_out) = tokio_channel::<u32>(100);
            let (c, _c_out) = tokio_channel::<u32>(2);
            let attach = |tag, sink| Attach::new(1, sink).tag(tag).overflow(Overflow::Evict);
            let orders = [Attach::new(0, busy), attach(1, a), attach(2, b), attach(3, c)];
            // 1, 2 and 3 go to a, b and c: a is full. 4 and 5 go to b and c: c is full. The others
            // use up the cooperative budget of the task.
            let items = (1..=5).chain((0..123).map(|_| 0)).chain([6]);
            let discarded = Arc::new(Mutex::new(Vec::new()));
            let log = Arc::clone(&discarded);
            let demux = stream::iter(items)
                .demux_by(|&n: &u32| u32::from(n != 0), stream::iter(orders))
                .balance()
                .budget(1_000)
                .on_discarded(move |to, item, why| {
                    log.lock().unwrap().push(format!("{item} of {}: {why}", to.tag));
                });
            tokio::spawn(demux).await.unwrap();
            let mut got = Vec::new();
            while let Some(item) = b_out.recv().await {
                got.push(item);
            }
            let discarded = discarded.lock().unwrap().clone();
            (discarded, got)
        });
        assert_eq!((discarded, got), (vec![], vec![2, 4, 6]), "{flavor:?}");
    }
}

#[test]
fn many_sinks_that_refuse_an_item_are_each_asked_once() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    let rig = Rig::with(|demux| demux.balance().buffer(1)).with_silent_sinks();
    let mut rig = rig.admitting(move |to, &item| {
        if item == 199 {
            log.lock().unwrap().push(to.tag);
        }
        item != 199
    });
    let sinks: Vec<_> = (0..1_000).map(|n| rig.order(1, n, |attach| attach.tag(n))).collect();
    rig.sleep();
    for sink in &sinks {
        sink.hold(Op::Ready);
    }
    rig.send((0..1_000).map(|_| 101)); // one for each queue
    rig.send([199]);
    let expected: Vec<u64> = (0..1_000).collect();
    assert_eq!(*asked.lock().unwrap(), expected, "in the order in which they joined");
    assert_eq!(rig.totals().discarded, 1);
}

#[test]
#[should_panic = "`balance` cannot be set once something is attached"]
fn it_is_set_before_anything_is_attached() {
    let mut rig = Rig::new();
    rig.attach(1, "a");
    let demux = std::pin::Pin::into_inner(rig.task.into_inner());
    drop(demux.balance());
}
