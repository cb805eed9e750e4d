//! Guarantee 8, errors stay where they are: everything else continues. What happens to the items and
//! the key of a sink that fails is in `endings`.

use crate::common::{Call, Op, Rig, scripted_sink};
use stream_demux::{Attach, Order};

// The fates of the items, and the order of the hooks.

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

// An error of a leaving sink is reported instead of its reason to leave.

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
        rig.check_totals();
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
