//! Guarantee 9, the end: the input ends, or `Order::Finish` is applied. Queues drain, each sink is
//! closed exactly once, orders are still applied, and the future completes after the last close.

use std::task::Poll;

use crate::common::{Call, Op, Orders, Rig, scripted_sink};
use futures::future::FusedFuture;
use stream_demux::{Attach, Lease, Order};

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

// Queues.

/// Sends `orders` while the next item is being read, so that they overtake it.
fn overtaken_by(rig: &Rig, orders: Vec<Orders>, item: u32) {
    let handle = rig.orders.clone();
    rig.input.action(move || handle.extend(orders));
    rig.input.push(item);
}

#[test]
fn an_item_that_finish_overtook_does_not_go_to_a_sink_that_comes_after_finish() {
    let mut rig = Rig::new();
    let (sink, a) = scripted_sink("a");
    overtaken_by(&rig, vec![Order::Finish, (1, sink).into()], 101);
    assert_eq!(rig.last_lines(), ["unmatched 101", "attached 1", "detached 1 Finished"]);
    assert_eq!(a.taken(), 0);
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

// Orders during completion.

/// They would be closed gracefully without the abort.
#[test]
fn nothing_is_closed_after_an_abort() {
    let ways: [fn(&Rig, Lease); 3] = [
        |rig, lease| {
            rig.orders.push(Order::Detach(1));
            lease.disarm();
        },
        |_, lease| lease.detach(),
        |rig, lease| {
            rig.orders.push(Order::Tick); // it is idle
            lease.disarm();
        },
    ];
    for way in ways {
        let mut rig = Rig::with(|demux| demux.budget(1));
        let mut lease = Lease::new();
        rig.attach(9, "first");
        let a = rig.attach_on(1, "a", |attach| attach.idle_timeout(1).leased(&mut lease));
        rig.orders.push(Order::Abort);
        assert_eq!(rig.turn(), ["first dropped", "detached 9 Evicted"]);
        way(&rig, lease);
        assert_eq!(rig.last_lines(), ["a dropped", "detached 1 Evicted"]);
        assert_eq!(a.calls(), [Call::Drop]);
    }
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
    rig.check_totals();
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
