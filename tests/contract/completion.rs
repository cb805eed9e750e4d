//! Guarantee 9, the end: the input ends, or `Order::Finish` is applied. Queues drain, each sink is
//! closed exactly once, orders are still applied, and the future completes after the last close.

use std::task::Poll;

use crate::common::{Call, Op, Orders, Rig, SinkHandle, Terms, scripted_sink};
use futures::future::FusedFuture;
use stream_demux::{Attach, Demux, Lease, Order, Overflow};

type End = fn(&Rig);

/// The two ways to end the input.
fn both_ends() -> [(&'static str, End); 2] {
    [("the input ends", |rig| rig.input.end()), ("Finish", |rig| rig.orders.push(Order::Finish))]
}

// Without queued items.

#[test]
fn with_nothing_attached_it_completes_at_once_though_the_orders_are_open() {
    for (name, end) in both_ends() {
        let mut rig = Rig::new();
        rig.send([101]);
        rig.log.take();
        end(&rig);
        assert!(rig.last_lines().is_empty(), "{name}");
        assert_eq!((rig.totals().received, rig.totals().unmatched), (1, 1));
    }
}

#[test]
fn an_empty_input_closes_sinks_that_were_attached_before() {
    let mut rig = Rig::new();
    rig.input.end();
    let a = rig.order(1, "a", |attach| attach);
    assert_eq!(rig.last_lines(), ["attached 1", "a closed", "a dropped", "detached 1 Finished"]);
    assert_eq!(a.count(Op::Ready) + a.count(Op::Flush), 0);
}

#[test]
fn each_sink_is_closed_once_and_not_flushed_separately() {
    for (name, end) in both_ends() {
        let mut rig = Rig::new();
        let sinks: Vec<_> = (1..=5).map(|key| rig.attach(key, "s")).collect();
        rig.input.extend([101, 201, 301]);
        if name == "Finish" {
            // After the items, so that they are read.
            rig.lines();
        }
        for sink in &sinks {
            sink.take_calls();
        }
        end(&rig);
        rig.last_lines();
        for sink in &sinks {
            assert!(sink.is_closed() && sink.is_dropped(), "{name}");
            assert_eq!((sink.count(Op::Close), sink.flushed()), (1, sink.taken()), "{name}");
            let polls = sink.calls();
            assert!(!polls.iter().any(|call| matches!(call, Call::Flush(_))), "{name}: {polls:?}");
        }
    }
}

#[test]
fn it_completes_after_the_last_close_and_not_before() {
    for (name, end) in both_ends() {
        let mut rig = Rig::new();
        let a = rig.attach(1, "a");
        let b = rig.attach(2, "b");
        a.hold(Op::Close);
        b.hold(Op::Close);
        end(&rig);
        assert!(rig.lines().is_empty(), "{name}");
        b.release(Op::Close);
        assert_eq!(rig.lines(), ["b closed", "b dropped", "detached 2 Finished"]);
        a.release(Op::Close);
        assert_eq!(rig.last_lines(), ["a closed", "a dropped", "detached 1 Finished"]);
        assert_eq!((a.count(Op::Close), b.count(Op::Close)), (2, 2));
    }
}

#[test]
fn a_close_that_wakes_itself_is_polled_again_and_completes() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    a.stutter(Op::Close, 3);
    rig.input.end();
    rig.last_lines();
    assert_eq!(a.count(Op::Close), 4);
}

#[test]
fn sinks_that_are_already_leaving_delay_completion_and_keep_their_reason() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    let b = rig.attach_on(2, "b", |attach| attach.limit(1).buffer(1));
    a.hold(Op::Close);
    b.park();
    rig.orders.push(Order::Detach(1));
    rig.send([201]);
    rig.input.end();
    assert!(rig.lines().is_empty());
    b.open();
    assert_eq!(rig.lines(), ["b sent 201", "b closed", "b dropped", "detached 2 Limited"]);
    a.release(Op::Close);
    assert_eq!(rig.last_lines().last().unwrap(), "detached 1 Requested");
}

// Queues and the item that is held.

#[test]
fn queues_drain_before_their_sinks_are_closed() {
    for (name, end) in both_ends() {
        let mut rig = Rig::new();
        let a = rig.attach_on(1, "a", |attach| attach.buffer(3));
        let b = rig.attach(2, "b");
        a.park();
        rig.send([101, 102, 103]);
        end(&rig);
        assert_eq!(rig.lines(), ["b closed", "b dropped", "detached 2 Finished"], "{name}");
        assert!(b.is_dropped() && !a.is_closing());
        a.allow(2);
        assert_eq!(rig.lines(), ["a sent 101", "a sent 102", "a flushed"], "{name}");
        a.open();
        assert_eq!(
            rig.last_lines(),
            ["a sent 103", "a closed", "a dropped", "detached 1 Finished"]
        );
    }
}

#[test]
fn the_end_drops_no_item_of_a_queue_under_any_policy() {
    for overflow in [Overflow::Wait, Overflow::DropNewest, Overflow::DropOldest, Overflow::Evict] {
        let mut rig = Rig::new();
        let a = rig.attach_on(1, "a", |attach| attach.buffer(2).overflow(overflow));
        a.park();
        rig.input.extend([101, 102]);
        rig.input.end();
        rig.lines();
        a.open();
        rig.last_lines();
        assert_eq!((a.items(), a.flushed()), (vec![101, 102], 2), "{overflow:?}");
    }
}

#[test]
fn finish_while_blocked_lets_the_held_item_join_the_queue_as_its_last() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(1));
    a.park();
    assert_eq!(rig.send([101, 102, 103]), ["blocked 1"]);
    rig.orders.push(Order::Finish);
    rig.input.forbid_polls();
    assert_eq!(rig.lines(), ["unblocked 1"]);
    assert!(rig.task.get_ref().blocked_on().is_none());
    assert_eq!((rig.totals().queued, rig.input.left(), rig.len()), (2, 1, 0));
    a.open();
    assert_eq!(
        rig.last_lines(),
        ["a sent 101", "a sent 102", "a closed", "a dropped", "detached 1 Finished"]
    );
    assert_eq!((rig.totals().received, rig.input.left()), (2, 1));
}

#[test]
fn finish_while_a_group_waits_gives_each_member_its_copy() {
    let mut rig = Rig::with(Demux::multicast);
    let a = rig.attach_on(1, "a", |attach| attach.tag(1));
    let b = rig.attach_on(1, "b", |attach| attach.tag(2));
    a.park();
    b.park();
    rig.send([101]);
    rig.orders.push(Order::Finish);
    rig.lines();
    assert_eq!((rig.totals().queued, rig.totals().copies), (2, 1));
    a.open();
    rig.lines();
    b.open();
    rig.last_lines();
    assert_eq!((a.items(), b.items()), (vec![101], vec![101]));
}

/// Sends `orders` while the next item is being read, so that they overtake it.
fn overtaken_by(rig: &Rig, orders: Vec<Orders>, item: u32) {
    let handle = rig.orders.clone();
    rig.input.action(move || handle.extend(orders));
    rig.input.push(item);
}

#[test]
fn an_item_that_finish_overtook_is_routed_at_that_moment() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    let (before, b) = scripted_sink("b");
    let (after, c) = scripted_sink("c");
    let orders = vec![(2, before).into(), Order::Finish, (3, after).into()];
    overtaken_by(&rig, orders, 201);
    rig.input.push(101);
    rig.last_lines();
    assert_eq!((a.taken(), b.items(), c.taken()), (0, vec![201], 0));
    assert_eq!((rig.totals().received, rig.input.left()), (1, 1));
}

#[test]
fn an_item_that_finish_overtook_does_not_go_to_a_sink_that_comes_after_finish() {
    let mut rig = Rig::new();
    let (sink, a) = scripted_sink("a");
    overtaken_by(&rig, vec![Order::Finish, (1, sink).into()], 101);
    assert_eq!(rig.last_lines(), ["unmatched 101", "attached 1", "detached 1 Finished"]);
    assert_eq!(a.taken(), 0);
}

#[test]
fn an_item_that_finish_overtook_waits_behind_the_queue_of_its_sink() {
    for buffer in 1..=2 {
        let mut rig = Rig::new();
        let a = rig.attach_on(1, "a", |attach| attach.buffer(buffer));
        a.park();
        rig.send([101]);
        overtaken_by(&rig, vec![Order::Finish], 102);
        rig.lines();
        assert_eq!(rig.totals().queued, 2);
        a.open();
        rig.last_lines();
        assert_eq!((a.items(), a.is_closed()), (vec![101, 102], true), "buffer {buffer}");
    }
}

#[test]
fn an_item_that_finish_overtook_is_subject_to_overflow_as_any_other() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.overflow(Overflow::Evict).buffer(1));
    a.park();
    rig.send([101]);
    overtaken_by(&rig, vec![Order::Finish], 102);
    assert_eq!(
        rig.last_lines(),
        [
            "a dropped",
            "discarded 101 of 1 Overflowed",
            "discarded 102 of 1 Overflowed",
            "detached 1 Overflowed",
        ]
    );
}

#[test]
fn orders_that_yield_before_finish_leave_the_item_overtaken_until_then() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    let orders = rig.orders.clone();
    rig.input.action(move || {
        orders.stutter();
        orders.push(Order::Finish);
    });
    rig.input.push(101);
    rig.poll();
    assert_eq!((rig.totals().queued, a.taken()), (1, 0));
    rig.last_lines();
    assert_eq!((a.items(), a.is_closed()), (vec![101], true));
}

// `Finish` and the input.

#[test]
fn finish_that_is_ready_before_the_first_item_leaves_the_input_untouched() {
    let mut rig = Rig::new();
    rig.input.extend([101, 102]);
    rig.input.forbid_polls();
    rig.orders.push(Order::Finish);
    assert!(rig.last_lines().is_empty());
    assert_eq!((rig.totals().received, rig.input.left()), (0, 2));
}

#[test]
fn finish_ends_an_endless_input() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    rig.input.endless(|_| 101);
    assert!(rig.task.turns(5).is_pending());
    rig.orders.push(Order::Finish);
    rig.input.forbid_polls();
    assert!(rig.task.run_within(3).is_ready());
    assert_eq!((a.taken() as u64, a.flushed()), (rig.totals().received, a.taken()));
}

#[test]
fn finish_wakes_a_sleeping_task() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    rig.orders.push(Order::Finish);
    assert!(rig.task.woken());
    rig.last_lines();
    assert!(a.is_closed());
}

#[test]
fn a_second_finish_and_an_end_of_input_after_finish_change_nothing() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    a.hold(Op::Close);
    rig.orders.push(Order::Finish);
    rig.lines();
    rig.input.forbid_polls();
    rig.input.extend([101]);
    rig.input.end();
    rig.orders.push(Order::Finish);
    assert!(rig.lines().is_empty());
    a.release(Op::Close);
    assert_eq!(rig.last_lines(), ["a closed", "a dropped", "detached 1 Finished"]);
}

#[test]
fn finish_after_the_end_of_the_input_closes_nothing_twice() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    a.hold(Op::Close);
    rig.input.end();
    rig.lines();
    rig.orders.push(Order::Finish);
    rig.lines();
    assert_eq!(a.count(Op::Close), 1);
}

// Orders during completion.

#[test]
fn a_stuck_sink_is_evicted_with_its_queue_and_the_future_completes() {
    for (name, end) in both_ends() {
        let mut rig = Rig::new();
        let a = rig.attach_on(1, "a", |attach| attach.buffer(2));
        a.park();
        rig.send([101, 102]);
        end(&rig);
        rig.lines();
        rig.orders.push(Order::Evict(1));
        assert_eq!(
            rig.last_lines(),
            [
                "a dropped",
                "discarded 101 of 1 Evicted",
                "discarded 102 of 1 Evicted",
                "detached 1 Evicted",
            ],
            "{name}"
        );
    }
}

#[test]
fn a_sink_whose_close_is_stuck_is_evicted_and_the_future_completes() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    a.hold(Op::Close);
    rig.input.end();
    rig.lines();
    rig.orders.push(Order::Evict(1));
    assert_eq!(rig.last_lines(), ["a dropped", "detached 1 Evicted"]);
}

#[test]
fn a_dropped_lease_evicts_a_stuck_sink_at_the_end() {
    for stuck in [Op::Ready, Op::Close] {
        let mut rig = Rig::new();
        let mut lease = Lease::new();
        let a = rig.attach_on(1, "a", |attach| attach.buffer(1).leased(&mut lease));
        a.hold(stuck);
        rig.input.push(101);
        rig.input.end();
        rig.lines();
        drop(lease);
        rig.last_lines();
        assert!(a.is_dropped() && !a.is_closed());
        assert_eq!(rig.totals().discarded, u64::from(stuck == Op::Ready));
    }
}

#[test]
fn a_lease_detached_at_the_end_does_not_affect_a_closing_sink() {
    let mut rig = Rig::new();
    let mut lease = Lease::new();
    let a = rig.attach_on(1, "a", |attach| attach.leased(&mut lease));
    a.hold(Op::Close);
    rig.input.end();
    rig.lines();
    lease.detach();
    assert!(rig.lines().is_empty());
    assert_eq!(a.count(Op::Close), 1);
    a.release(Op::Close);
    assert_eq!(rig.last_lines().last().unwrap(), "detached 1 Finished");
}

#[test]
fn detaching_at_the_end_neither_hurries_nor_repeats_anything() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(1));
    a.park();
    rig.input.push(101);
    rig.input.end();
    rig.lines();
    rig.orders.push(Order::Detach(1));
    assert!(rig.lines().is_empty());
    a.open();
    rig.last_lines();
    assert_eq!((a.items(), a.count(Op::Close)), (vec![101], 1));
}

#[test]
fn a_sink_attached_after_the_end_is_closed_at_once() {
    for (name, end) in both_ends() {
        let mut rig = Rig::new();
        let stuck = rig.attach(1, "stuck");
        stuck.hold(Op::Close);
        end(&rig);
        rig.lines();
        let late = rig.order(2, "late", |attach| attach.tag(7));
        assert_eq!(
            rig.lines(),
            ["attached 2#7", "late closed", "late dropped", "detached 2#7 Finished"],
            "{name}"
        );
        assert_eq!(late.calls().len(), 2, "closed and dropped");
        stuck.release(Op::Close);
        rig.last_lines();
    }
}

#[test]
fn a_sink_attached_to_a_taken_key_after_the_end_neither_replaces_nor_joins() {
    for multicast in [false, true] {
        for terms in [|attach: Terms| attach, |attach: Terms| attach.keep_existing()] {
            let mut rig = Rig::with(|demux| if multicast { demux.multicast() } else { demux });
            let old = rig.attach_on(1, "old", |attach| attach.buffer(2));
            old.park();
            rig.input.extend([101, 102]);
            rig.input.end();
            rig.lines();
            let late = rig.order(1, "late", |attach| terms(attach.tag(7)));
            assert_eq!(
                rig.lines(),
                ["attached 1#7", "late closed", "late dropped", "detached 1#7 Finished"]
            );
            assert_eq!((late.taken(), rig.totals().queued), (0, 2));
            old.open();
            rig.last_lines();
            assert_eq!(old.items(), [101, 102]);
        }
    }
}

#[test]
fn the_same_while_that_key_is_not_finished_yet() {
    for terms in [|attach: Terms| attach, |attach: Terms| attach.keep_existing()] {
        let mut rig = Rig::with(|demux| demux.budget(1));
        let sinks: Vec<_> = (1..=20).map(|key| rig.attach(key, "s")).collect();
        let (late, handle) = scripted_sink("late");
        rig.orders.extend([Order::Finish, terms(Attach::new(20, late).tag(7)).into()]);
        while !handle.is_dropped() {
            assert!(rig.task.woken(), "the task parked");
            rig.poll();
        }
        assert!(rig.log.take().contains(&"detached 20#7 Finished".to_owned()));
        assert!(
            !sinks[19].is_dropped(),
            "the test does not reach its situation: the sink is dropped"
        );
        rig.last_lines();
        assert_eq!(sinks[19].count(Op::Close), 1);
    }
}

#[test]
fn a_late_sink_whose_close_is_pending_is_waited_for_and_can_be_evicted() {
    let mut rig = Rig::new();
    let stuck = rig.attach(1, "stuck");
    stuck.hold(Op::Close);
    rig.input.end();
    rig.lines();
    let (sink, late) = scripted_sink("late");
    late.hold(Op::Close);
    rig.orders.push(Attach::new(1, sink).tag(7).into());
    rig.lines();
    stuck.release(Op::Close);
    assert!(rig.lines().contains(&"detached 1 Finished".to_owned()));
    rig.orders.push(Order::Evict(1));
    assert_eq!(rig.last_lines(), ["detached 1#7 Evicted"]);
}

#[test]
fn a_late_sink_whose_close_fails_is_reported_as_failed() {
    let mut rig = Rig::new();
    let stuck = rig.attach(1, "stuck");
    stuck.hold(Op::Close);
    rig.input.end();
    rig.lines();
    let (sink, late) = scripted_sink("late");
    late.fail(Op::Close);
    rig.orders.push((2, sink).into());
    assert_eq!(rig.lines(), ["attached 2", "detached 2 Failed(Broken(\"poll_close\"))"]);
    stuck.release(Op::Close);
    rig.last_lines();
}

#[test]
fn a_late_catch_all_catches_nothing() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(1));
    a.park();
    rig.send([101, 201]);
    rig.log.take();
    let (sink, late) = scripted_sink("late");
    overtaken_by(&rig, vec![Order::Finish, Attach::new(9, sink).catch_all().into()], 301);
    let lines = rig.lines();
    assert!(lines.contains(&"unmatched 301".to_owned()), "{lines:?}");
    assert_eq!(late.taken(), 0);
    a.open();
    rig.last_lines();
}

// `len` counts down while attachments are finished.

#[test]
fn len_counts_down_while_the_end_takes_many_turns() {
    const SINKS: usize = 50;
    let mut rig = Rig::with(|demux| demux.budget(4));
    let sinks: Vec<_> = (0..).take(SINKS).map(|key| rig.attach(key, "s")).collect();
    assert_eq!(rig.len(), SINKS);
    rig.input.end();
    let mut turns = 0;
    let mut len = SINKS;
    while rig.task.poll().is_pending() {
        assert!(rig.task.woken());
        assert!(len >= rig.len() && len - rig.len() <= 4, "{len} to {}", rig.len());
        len = rig.len();
        let open = sinks.iter().filter(|sink| !sink.is_closed()).count();
        assert_eq!(len, open);
        turns += 1;
    }
    assert!(turns >= SINKS / 4 - 1, "{turns}");
    assert!(rig.task.get_ref().is_empty());
}

#[test]
fn a_finished_key_is_no_longer_contained_though_its_sink_still_drains() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(1));
    a.park();
    rig.input.push(101);
    rig.lines();
    assert!(rig.task.get_ref().contains_key(&1));
    rig.input.end();
    rig.lines();
    assert!(!rig.task.get_ref().contains_key(&1) && rig.task.get_ref().is_empty());
    assert!(!a.is_dropped());
}

#[test]
fn busy_sinks_and_orders_do_not_delay_the_end() {
    let mut rig = Rig::with(|demux| demux.budget(8));
    let idle: Vec<_> = (100..140).map(|key| rig.attach(key, "s")).collect();
    let busy: Vec<_> = (0..10).map(|key| rig.attach(key, "b")).collect();
    for sink in &busy {
        sink.stutter(Op::Close, usize::MAX);
    }
    rig.orders.push(Order::Finish); // the end of the input would never be read
    rig.orders.endless(|_| Order::Detach(77));
    assert!(rig.task.turns(400).is_pending());
    assert!(idle.iter().all(SinkHandle::is_closed));
    assert_eq!(rig.len(), 0);
}

// The orders stream and the end.

#[test]
fn the_end_of_the_orders_ends_nothing() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    rig.orders.end();
    assert!(rig.lines().is_empty());
    assert!(rig.orders.is_ended() && rig.orders.is_dropped());
    assert_eq!(rig.send([101]), ["a sent 101", "a flushed"]);
    let polls = rig.task.polls();
    assert!(rig.lines().is_empty());
    assert_eq!(rig.task.polls(), polls, "the ended orders cause polls");
    assert!(!a.is_closing());
    rig.input.end();
    rig.last_lines();
}

#[test]
fn orders_that_end_before_anything_was_attached_let_the_input_run_out() {
    let mut rig = Rig::new();
    rig.orders.end();
    assert_eq!(rig.send([101, 102]), ["unmatched 101", "unmatched 102"]);
    rig.input.end();
    rig.last_lines();
}

#[test]
fn orders_that_end_in_the_turn_of_the_end_do_not_matter() {
    let mut rig = Rig::new();
    rig.attach(1, "a");
    rig.orders.end();
    rig.input.end();
    assert_eq!(rig.last_lines(), ["a closed", "a dropped", "detached 1 Finished"]);
}

#[test]
fn endless_orders_are_dropped_after_the_last_close() {
    for (name, end) in both_ends() {
        let mut rig = Rig::with(|demux| demux.budget(16));
        let a = rig.attach(1, "a");
        a.hold(Op::Close);
        end(&rig);
        rig.lines();
        rig.orders.endless(|_| Order::Detach(9));
        assert!(rig.task.turns(20).is_pending(), "{name}");
        let read = rig.orders.taken();
        a.release(Op::Close);
        assert!(rig.task.run_within(3).is_ready(), "{name}");
        assert!(rig.orders.taken() - read <= 3 * 16, "{name}");
        assert!(rig.orders.is_dropped(), "{name}");
    }
}

#[test]
fn endless_attachments_after_the_last_close_do_not_prevent_completion() {
    let mut rig = Rig::with(|demux| demux.budget(16));
    let attach = |n| Attach::new(n, scripted_sink(n).0).into();
    rig.orders.extend((0..30).map(attach));
    rig.orders.push(Order::Finish);
    let mut keys = 30..;
    rig.orders.endless(move |_| attach(keys.next().unwrap()));
    assert!(rig.task.run_within(100).is_ready());
    assert!(rig.totals().attached >= 30);
    assert_eq!(rig.totals().attached, rig.totals().detached);
    rig.balance();
}

#[test]
fn orders_that_came_with_the_last_close_are_still_applied() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    let (sink, b) = scripted_sink("b");
    let orders = rig.orders.clone();
    a.during(Op::Close, move || orders.push((2, sink).into()));
    rig.input.end();
    rig.last_lines();
    assert_eq!((rig.totals().attached, b.count(Op::Close)), (2, 1));
}

#[test]
fn orders_that_only_yield_do_not_prevent_completion() {
    let mut rig = Rig::new();
    rig.attach(1, "a");
    for _ in 0..1_000 {
        rig.orders.stutter();
    }
    rig.input.end();
    assert!(rig.task.run_within(5).is_ready());
}

#[test]
fn while_the_wakers_of_many_sinks_are_freed_nothing_is_attached_and_stale_wakes_do_nothing() {
    let mut rig = Rig::new();
    let mut lease = Lease::new();
    let sinks: Vec<_> =
        (0..20_000).map(|key| rig.order(key, key, |attach| attach.leased(&mut lease))).collect();
    rig.sleep();
    rig.input.end();
    while rig.totals().detached < 20_000 {
        rig.poll();
    }
    // The last sink has been dropped; the demux still frees wakers.
    assert!(!rig.task.get_ref().is_terminated() && rig.task.woken());
    assert!(rig.orders.is_dropped());
    let late = rig.order(1, "late", |attach| attach);
    for sink in sinks.iter().step_by(97) {
        sink.wake();
    }
    drop(lease);
    let Poll::Ready(totals) = rig.task.run() else { panic!("the demux did not complete") };
    assert_eq!((totals.attached, totals.detached), (20_000, 20_000));
    assert!(late.calls().is_empty());
}
