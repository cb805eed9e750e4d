//! Guarantee 8, errors stay where they are: a sink that fails is dropped and never called again,
//! its key becomes free, its waiting items are discarded with `Failed`, and everything else
//! continues. Scripted sinks panic if they are called after an error.

use crate::common::{Call, Op, Rig, SinkHandle, Terms, hooks, scripted_sink};
use stream_demux::{Attach, Demux, Lease, Order};

const ALL: [Op; 4] = [Op::Ready, Op::Send, Op::Flush, Op::Close];

// Each operation in each situation.

/// Lets sink `a` under key 1 fail in each of `ops`, in the situation that `situation` creates, and
/// checks the state afterwards.
#[track_caller]
fn fails_in_each<const N: usize>(ops: [Op; N], situation: impl Fn(&mut Rig) -> SinkHandle<u32>) {
    for op in ops {
        let mut rig = Rig::new();
        let b = rig.attach(2, "b");
        let a = situation(&mut rig);
        rig.log.take();
        a.fail(op);
        // Every reason to call each of the four operations.
        a.open();
        let mut lines = rig.send([150, 250]);
        lines.extend(rig.apply(Order::Detach(1)));
        lines.extend(rig.send([160, 260]));

        let failure = format!("Failed(Broken({:?}))", op.name());
        let ends: Vec<_> = lines.iter().filter(|line| line.starts_with("detached")).collect();
        assert_eq!(ends, [&format!("detached 1 {failure}")], "{op:?}: {lines:?}");
        let at = |what: &str| lines.iter().position(|line| line == what);
        assert!(at("a dropped") < at(&format!("detached 1 {failure}")), "{op:?}: {lines:?}");
        let mut discarded = lines.iter().filter(|line| line.starts_with("discarded"));
        assert!(discarded.all(|line| line.ends_with(" of 1 Failed")), "{op:?}: {lines:?}");
        assert!(a.is_failed() && a.is_dropped(), "{op:?}");
        assert!(at("unmatched 160").is_some(), "{op:?}: {lines:?}");
        assert_eq!((rig.totals().queued, rig.len()), (0, 1), "{op:?}");
        assert_eq!(rig.totals().lost, u64::from(op == Op::Send), "{op:?}");
        assert_eq!((b.items(), b.flushed(), b.is_dropped()), (vec![250, 260], 2, false), "{op:?}");

        // The key is free for another sink, which is not affected by the failure.
        let successor = rig.attach(1, "successor");
        a.wake();
        successor.excuse(); // it may reuse the slot
        rig.send([170]);
        assert_eq!((successor.items(), successor.flushed()), (vec![170], 1), "{op:?}");
    }
}

#[test]
fn it_fails_while_it_is_idle() {
    fails_in_each(ALL, |rig| rig.attach(1, "a"));
}

#[test]
fn it_fails_after_it_took_items_and_was_flushed() {
    fails_in_each(ALL, |rig| {
        let a = rig.attach(1, "a");
        rig.send([101, 102]);
        a
    });
}

#[test]
fn it_fails_while_items_are_queued() {
    fails_in_each(ALL, |rig| {
        let a = rig.attach_on(1, "a", |attach| attach.buffer(3));
        a.park();
        rig.send([101, 102]);
        a
    });
}

#[test]
fn it_fails_while_an_item_is_held_for_it() {
    fails_in_each(ALL, |rig| {
        let a = rig.attach_on(1, "a", |attach| attach.buffer(1));
        a.park();
        rig.send([101, 102]);
        assert!(rig.task.get_ref().blocked_on().is_some());
        a
    });
}

#[test]
fn it_fails_while_its_flush_is_pending() {
    fails_in_each(ALL, |rig| {
        let a = rig.attach(1, "a");
        a.hold(Op::Flush);
        rig.send([101]);
        assert!(a.is_waiting(Op::Flush));
        a
    });
}

#[test]
fn it_fails_while_its_flush_is_pending_and_items_are_queued() {
    fails_in_each(ALL, |rig| {
        let a = rig.attach_on(1, "a", |attach| attach.buffer(3));
        a.hold(Op::Flush);
        rig.send([101]);
        a.park();
        rig.send([102, 103]);
        assert!(a.is_waiting(Op::Flush) && a.is_waiting(Op::Ready));
        a
    });
}

#[test]
fn it_fails_while_it_drains() {
    // Not in a flush: after its last item the sink is closed, which flushes.
    fails_in_each([Op::Ready, Op::Send, Op::Close], |rig| {
        let a = rig.attach_on(1, "a", |attach| attach.buffer(3));
        a.park();
        rig.send([101, 102]);
        rig.apply(Order::Detach(1));
        a
    });
}

#[test]
fn it_fails_while_its_close_is_pending() {
    fails_in_each([Op::Close], |rig| {
        let a = rig.attach(1, "a");
        a.hold(Op::Close);
        rig.apply(Order::Detach(1));
        assert!(a.is_closing());
        a
    });
}

#[test]
fn it_fails_in_a_group_and_the_others_continue() {
    for op in ALL {
        for place in 1..=3_u64 {
            let mut rig = Rig::with(Demux::multicast);
            let mut lease = Lease::new();
            let sinks: Vec<_> = (1..=3)
                .map(|n| {
                    let terms = |attach: Terms| {
                        let attach = attach.tag(n);
                        if n == place { attach.leased(&mut lease) } else { attach }
                    };
                    rig.attach_on(1, format!("s{n}"), terms)
                })
                .collect();
            sinks[usize::try_from(place).unwrap() - 1].fail(op);
            let mut lines = rig.send([101]);
            if op == Op::Close {
                lease.detach();
                lines.extend(rig.lines());
            }
            let end = format!("detached 1#{place} Failed(Broken({:?}))", op.name());
            let ends: Vec<_> = lines.iter().filter(|line| line.starts_with("detached")).collect();
            assert_eq!(ends, [&end], "{op:?} {place}");
            rig.send([102]);
            for (n, sink) in (1..).zip(&sinks) {
                let failed = n == place;
                assert_eq!(sink.is_dropped(), failed, "{op:?} {place}");
                if !failed {
                    assert_eq!((sink.items(), sink.flushed()), (vec![101, 102], 2));
                }
            }
            let own = rig.totals();
            let fate = (own.delivered, own.discarded, own.lost);
            let expected = match op {
                Op::Ready => (4, 1, 0),
                Op::Send => (4, 0, 1),
                Op::Flush | Op::Close => (5, 0, 0),
            };
            assert_eq!(fate, expected, "{op:?} {place}");
            assert_eq!((rig.len(), own.detached), (2, 1));
        }
    }
}

// The fates of the items, and the order of the hooks.

#[test]
fn an_idle_sink_fails_with_its_next_item() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    a.fail_quietly(Op::Ready);
    assert!(rig.send([201]).iter().all(|line| line == "unmatched 201"));
    assert!(a.calls().is_empty());
    assert_eq!(
        rig.send([101, 102]),
        [
            "a failed in poll_ready",
            "a dropped",
            "discarded 101 of 1 Failed",
            "detached 1 Failed(Broken(\"poll_ready\"))",
            "unmatched 102",
        ]
    );
}

#[test]
fn queue_and_held_item_are_discarded_in_order_before_detached_is_called() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(2).tag(9));
    a.park();
    assert_eq!(rig.send([101, 102, 103, 201]), ["blocked 1#9"]);
    a.fail(Op::Ready);
    assert_eq!(
        rig.lines(),
        [
            "a failed in poll_ready",
            "unblocked 1#9",
            "a dropped",
            "discarded 101 of 1#9 Failed",
            "discarded 102 of 1#9 Failed",
            "discarded 103 of 1#9 Failed",
            "detached 1#9 Failed(Broken(\"poll_ready\"))",
            "unmatched 201",
        ]
    );
    assert_eq!((rig.totals().discarded, rig.totals().queued), (3, 0));
}

#[test]
fn the_item_of_a_failing_start_send_is_lost_and_shown_to_no_hook() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    a.fail(Op::Send);
    assert_eq!(
        rig.send([101]),
        ["a failed in start_send", "a dropped", "detached 1 Failed(Broken(\"start_send\"))",]
    );
    let all = rig.totals();
    assert_eq!((all.lost, all.delivered, all.discarded), (1, 0, 0));
}

#[test]
fn a_queue_whose_head_is_lost_is_discarded_behind_it() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(2));
    a.park();
    rig.send([101, 102, 103]);
    a.fail(Op::Send);
    a.allow(1);
    assert_eq!(
        rig.lines(),
        [
            "a failed in start_send",
            "unblocked 1",
            "a dropped",
            "discarded 102 of 1 Failed",
            "discarded 103 of 1 Failed",
            "detached 1 Failed(Broken(\"start_send\"))",
        ]
    );
    let all = rig.totals();
    assert_eq!((all.lost, all.discarded), (1, 2));
}

#[test]
fn a_new_item_that_pushes_the_head_of_the_queue_into_a_failure_is_discarded_with_the_rest() {
    let mut rig = Rig::with(|demux| demux.budget(4));
    let a = rig.attach_on(1, "a", |attach| attach.buffer(1));
    a.park();
    rig.send([101]);
    a.fail(Op::Send);
    a.open();
    let lines = rig.send([102]);
    let fate = |line: &str| lines.iter().filter(|logged| *logged == line).count();
    // 102 was queued before the failure, or found its key free.
    assert_eq!(fate("discarded 102 of 1 Failed") + fate("unmatched 102"), 1);
    assert_eq!(rig.totals().lost, 1);
}

#[test]
fn delivered_items_stay_delivered_when_the_flush_fails() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    a.fail(Op::Flush);
    assert_eq!(
        rig.send([101]),
        [
            "a sent 101",
            "a failed in poll_flush",
            "a dropped",
            "detached 1 Failed(Broken(\"poll_flush\"))",
        ]
    );
    let all = rig.totals();
    assert_eq!((all.delivered, all.lost, all.discarded), (1, 0, 0));
}

#[test]
fn a_failing_flush_discards_queued_and_held_items() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(1));
    a.allow(0);
    a.hold(Op::Flush);
    a.allow(1);
    rig.send([101, 102, 103, 201]);
    assert_eq!((a.items(), rig.totals().queued), (vec![101], 2));
    a.fail(Op::Flush);
    let lines = rig.lines();
    assert_eq!(
        lines[lines.len() - 4..],
        [
            "discarded 102 of 1 Failed",
            "discarded 103 of 1 Failed",
            "detached 1 Failed(Broken(\"poll_flush\"))",
            "unmatched 201",
        ]
    );
}

#[test]
fn the_final_flush_of_the_blocked_sink_fails_and_the_input_continues() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    let b = rig.attach(2, "b");
    a.allow(1);
    a.fail(Op::Flush);
    let lines = rig.send([101, 102, 201]);
    assert!(lines.contains(&"discarded 102 of 1 Failed".to_owned()), "{lines:?}");
    assert_eq!((b.items(), b.flushed(), rig.input.left()), (vec![201], 1, 0));
}

#[test]
fn a_failing_flush_in_a_busy_stream_does_not_stop_other_sinks() {
    let mut rig = Rig::with(|demux| demux.flush_every(4).budget(4));
    let a = rig.attach(1, "a");
    let b = rig.attach(2, "b");
    a.fail(Op::Flush);
    rig.input.extend([101]);
    rig.input.extend((0..40).map(|n| 200 + n));
    let lines = rig.lines();
    assert!(a.is_dropped());
    assert_eq!(lines.iter().filter(|line| line.starts_with("detached")).count(), 1);
    assert_eq!((b.taken(), b.flushed()), (40, 40));
}

#[test]
fn several_sinks_fail_in_the_same_flush_and_the_rest_is_flushed() {
    let mut rig = Rig::new();
    let sinks: Vec<_> = (1..=6).map(|key| rig.attach(key, "s")).collect();
    for sink in sinks.iter().step_by(2) {
        sink.fail(Op::Flush);
    }
    rig.send([100, 200, 300, 400, 500, 600]);
    for (n, sink) in sinks.iter().enumerate() {
        assert_eq!((sink.is_dropped(), sink.flushed()), (n % 2 == 0, n % 2));
    }
    assert_eq!((rig.len(), rig.totals().delivered, rig.totals().detached), (3, 6, 3));
}

#[test]
fn all_sinks_fail_with_items_waiting_and_the_input_continues() {
    let mut rig = Rig::new();
    let sinks: Vec<_> = (1..=4)
        .map(|key| rig.attach_on(key, "s", |attach| attach.buffer(1)))
        .inspect(SinkHandle::park)
        .collect();
    rig.send([100, 200, 300, 400, 101, 201]);
    for sink in &sinks {
        sink.fail(Op::Ready);
    }
    rig.send([301, 401]);
    assert!(sinks.iter().all(SinkHandle::is_dropped));
    let all = rig.totals();
    assert_eq!((all.received, all.discarded, all.unmatched, all.queued), (8, 5, 3, 0));
    assert_eq!((rig.len(), rig.input.left()), (0, 0));
}

// An error of a leaving sink is reported instead of its reason to leave.

#[test]
fn a_close_that_fails_is_reported_as_failed_for_every_reason() {
    type Leave = fn(&mut Rig) -> Vec<String>;

    let failed = "detached 1 Failed(Broken(\"poll_close\"))".to_owned();
    let requested = |rig: &mut Rig| rig.apply(Order::Detach(1));
    let limited = |rig: &mut Rig| rig.send([101]);
    let replaced = |rig: &mut Rig| {
        let (successor, _) = scripted_sink("successor");
        rig.apply(Attach::new(1, successor).tag(1))
    };
    let leaving: [(&str, Leave); 3] =
        [("requested", requested), ("limited", limited), ("replaced", replaced)];
    for (name, leave) in leaving {
        for held in [false, true] {
            let mut rig = Rig::new();
            let a = rig.attach_on(1, "a", |attach| attach.limit(1));
            if held {
                a.hold(Op::Close);
            } else {
                a.fail(Op::Close);
            }
            let mut lines = leave(&mut rig);
            assert_eq!(lines.contains(&failed), !held, "{name}");
            a.fail(Op::Close);
            lines.extend(rig.lines());
            assert_eq!(lines.iter().filter(|line| line.starts_with("detached")).count(), 1);
            assert!(lines.contains(&failed), "{name}: {lines:?}");
            assert_eq!(a.count(Op::Close), 1 + usize::from(held));
        }
    }
}

#[test]
fn a_refused_sink_whose_close_fails_is_reported_as_failed_and_the_old_sink_stays() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    let b = {
        let (sink, handle) = scripted_sink("b");
        handle.fail(Op::Close);
        rig.orders.push(Attach::new(1, sink).tag(1).keep_existing().into());
        handle
    };
    assert_eq!(rig.lines(), ["attached 1#1", "detached 1#1 Failed(Broken(\"poll_close\"))"]);
    assert_eq!(b.calls()[1..], [Call::Drop]);
    assert_eq!(rig.send([101]), ["a sent 101", "a flushed"]);
    assert!(!a.is_dropped());
}

#[test]
fn closes_that_fail_at_the_end_do_not_keep_it_from_completing() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    let b = rig.attach(2, "b");
    let c = rig.attach(3, "c");
    a.fail(Op::Close);
    c.hold(Op::Close);
    rig.input.end();
    let lines = rig.lines();
    assert!(lines.contains(&"detached 1 Failed(Broken(\"poll_close\"))".to_owned()));
    assert!(lines.contains(&"detached 2 Finished".to_owned()) && b.is_closed());
    c.fail(Op::Close);
    assert!(rig.run().is_ready());
    assert_eq!(
        rig.log.take(),
        ["c failed in poll_close", "c dropped", "detached 3 Failed(Broken(\"poll_close\"))"]
    );
    assert_eq!(rig.totals().detached, 3);
}

#[test]
fn the_last_sink_fails_while_it_drains_at_the_end_and_the_future_completes() {
    for op in [Op::Ready, Op::Send, Op::Flush, Op::Close] {
        let mut rig = Rig::new();
        let a = rig.attach_on(1, "a", |attach| attach.buffer(3));
        a.hold(Op::Flush);
        a.allow(1);
        a.park();
        a.allow(1);
        rig.input.extend([101, 102, 103]);
        rig.input.end();
        rig.lines();
        assert!(a.is_waiting(Op::Ready) && a.is_waiting(Op::Flush));
        a.fail(op);
        if op != Op::Flush {
            a.open();
        }
        assert!(rig.run().is_ready(), "{op:?}");
        rig.balance();
        let all = rig.totals();
        let expected = match op {
            Op::Ready | Op::Flush => (1, 2, 0),
            Op::Send => (1, 1, 1),
            Op::Close => (3, 0, 0),
        };
        assert_eq!((all.delivered, all.discarded, all.lost), expected, "{op:?}");
        let end = format!("detached 1 Failed(Broken({:?}))", op.name());
        assert_eq!(rig.log.take().last(), Some(&end));
    }
}

// Everything else continues.

#[test]
fn others_flush_drain_and_close_in_the_turn_of_the_failure() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    let b = rig.attach_on(2, "b", |attach| attach.buffer(2));
    let c = rig.attach(3, "c");
    let d = rig.attach(4, "d");
    b.park();
    c.hold(Op::Flush);
    d.hold(Op::Close);
    rig.send([201, 202, 301]);
    rig.apply(Order::Detach(4));
    a.fail(Op::Ready);
    b.open();
    c.release(Op::Flush);
    d.release(Op::Close);
    rig.input.push(101);
    rig.poll();
    assert!(!rig.task.woken());
    assert!(a.is_dropped() && d.is_dropped());
    assert_eq!((b.items(), b.flushed(), c.flushed()), (vec![201, 202], 2, 1));
}

#[test]
fn it_fails_while_the_input_waits_for_another_which_is_still_awaited() {
    for op in [Op::Ready, Op::Flush, Op::Close] {
        let mut rig = Rig::new();
        let a = rig.attach(1, "a");
        let b = rig.attach_on(2, "b", |attach| attach.buffer(3));
        b.hold(Op::Flush);
        rig.send([201]);
        b.park();
        b.hold(Op::Close);
        rig.send([202]);
        a.park();
        rig.send([101, 102]);
        if op == Op::Close {
            b.open();
            rig.apply(Order::Detach(2));
        }
        b.fail(op);
        rig.lines();
        assert!(b.is_failed() && b.is_dropped(), "{op:?}");
        assert_eq!(rig.task.get_ref().blocked_on().map(|on| *on.key), Some(1));
        assert_eq!((a.taken(), rig.input.left()), (0, 1));
        a.open();
        rig.lines();
        assert_eq!((a.items(), a.flushed()), (vec![101, 102], 2));
    }
}

#[test]
fn a_successor_gets_only_items_after_the_failure() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(1));
    a.park();
    rig.send([101, 102]);
    a.fail(Op::Ready);
    let (sink, b) = scripted_sink("b");
    rig.input.push(103);
    rig.lines();
    rig.orders.push((1, sink).into());
    rig.send([104]);
    assert_eq!(b.items(), [104]);
    let all = rig.totals();
    assert_eq!((all.discarded, all.unmatched, all.delivered), (2, 1, 1));
}

#[test]
fn the_wakers_of_a_failed_sink_do_nothing() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    a.park();
    rig.send([101]);
    let waker = a.waker().unwrap();
    a.fail(Op::Ready);
    rig.lines();
    let calls = a.calls().len();
    waker.wake();
    assert!(rig.lines().is_empty());
    assert_eq!((a.calls().len(), rig.totals().detached), (calls, 1));
}

#[test]
fn a_member_that_fails_while_the_input_waits_for_it_discards_its_copy() {
    let mut rig = Rig::with(Demux::multicast);
    let a = rig.attach_on(1, "a", |attach| attach.tag(1));
    let b = rig.attach_on(1, "b", |attach| attach.tag(2));
    a.park();
    assert_eq!(hooks(rig.send([101])), ["blocked 1#1"]);
    a.fail(Op::Ready);
    let lines = rig.lines();
    assert!(lines.contains(&"discarded 101 of 1#1 Failed".to_owned()), "{lines:?}");
    assert_eq!((b.items(), b.flushed()), (vec![101], 1));
    let all = rig.totals();
    assert_eq!((all.received, all.copies, all.delivered, all.discarded), (1, 1, 1, 1));
}

#[test]
fn a_draining_sink_that_fails_takes_no_copy_of_an_item_that_is_held_for_its_key() {
    let mut rig = Rig::with(Demux::multicast);
    let a = rig.attach_on(1, "a", |attach| attach.tag(1).buffer(1));
    a.park();
    rig.send([101]);
    rig.apply(Order::Detach(1));
    let b = rig.attach_on(1, "b", |attach| attach.tag(2));
    b.park();
    rig.send([102]);
    a.fail(Op::Ready);
    assert_eq!(
        rig.lines(),
        [
            "a failed in poll_ready",
            "a dropped",
            "discarded 101 of 1#1 Failed",
            "detached 1#1 Failed(Broken(\"poll_ready\"))",
        ]
    );
    assert_eq!((rig.totals().copies, rig.totals().queued), (0, 1));
    b.open();
    rig.lines();
    assert_eq!(b.items(), [102]);
}

#[test]
fn the_last_members_of_a_group_fail_together_and_the_key_is_free() {
    let mut rig = Rig::with(Demux::multicast);
    let a = rig.attach_on(1, "a", |attach| attach.tag(1));
    let b = rig.attach_on(1, "b", |attach| attach.tag(2));
    a.fail(Op::Ready);
    b.fail(Op::Ready);
    let lines = rig.send([101, 102]);
    for line in ["discarded 101 of 1#1 Failed", "discarded 101 of 1#2 Failed", "unmatched 102"] {
        assert_eq!(lines.iter().filter(|logged| *logged == line).count(), 1, "{line}");
    }
    assert!(rig.task.get_ref().is_empty());
    assert_eq!((rig.totals().copies, rig.totals().discarded), (1, 2));
}
