//! Guarantee 4: only woken sinks are polled. The tests count every call of every sink. In all
//! modules, scripted sinks panic if they are polled again without a wake after `Pending`.

use crate::common::{
    Answer::{Done, Pending},
    Call, Op, Rig,
};
use stream_demux::Order;

/// A key without a sink.
const UNUSED_KEY: u32 = u32::MAX;

/// Creates a demux whose items are their keys.
fn rig() -> Rig {
    Rig::keyed(|n| *n, |demux| demux).with_silent_sinks()
}

impl Rig {
    /// Wakes the task for all kinds of reasons other than sink 1.
    #[track_caller]
    fn bustle(&mut self) {
        self.attach(50, "x");
        self.send([50, UNUSED_KEY, 50]);
        self.apply(Order::Detach(50));
        self.apply(Order::Evict(UNUSED_KEY));
        self.input.wake();
        self.sleep();
        self.orders.wake();
        self.sleep();
        self.poll();
    }
}

// A sink without work.

#[test]
fn a_sink_without_items_is_not_polled_until_it_is_closed() {
    let mut rig = rig();
    let sink = rig.attach(1, "a");
    rig.bustle();
    assert_eq!(sink.calls(), []);
    rig.input.end();
    assert!(rig.run().is_ready());
    assert_eq!(sink.calls(), [Call::Close(Done), Call::Drop]);
}

#[test]
fn a_flushed_sink_is_not_polled_again() {
    let mut rig = rig();
    let sink = rig.attach(1, "a");
    rig.send([1]);
    let calls = sink.take_calls();
    assert_eq!(calls, [Call::Ready(Done), Call::Send(Done), Call::Flush(Done)]);
    rig.bustle();
    assert_eq!(sink.calls(), []);
}

#[test]
fn an_idle_sink_that_wakes_is_not_polled() {
    let mut rig = rig();
    let sink = rig.attach_on(1, "a", |attach| attach.buffer(2));
    rig.send([1]);
    sink.take_calls();
    assert!(sink.wake());
    rig.sleep();
    assert_eq!(sink.calls(), []);
}

// Pending, and not woken.

#[test]
fn a_blocked_sink_is_polled_once_whatever_else_happens() {
    for buffer in [0, 1, 3] {
        let mut rig = rig();
        let sink = rig.attach_on(1, "a", |attach| attach.buffer(buffer));
        sink.park();
        rig.send([1; 10]);
        rig.bustle();
        assert_eq!(sink.calls(), [Call::Ready(Pending)], "buffer {buffer}");
    }
}

#[test]
fn a_pending_flush_is_polled_once_if_no_item_is_taken() {
    let mut rig = rig();
    let sink = rig.attach(1, "a");
    sink.hold(Op::Flush);
    rig.send([1]);
    rig.bustle();
    assert_eq!(sink.count(Op::Flush), 1);
    sink.release(Op::Flush);
    rig.sleep();
    assert_eq!((sink.count(Op::Flush), sink.count(Op::Ready)), (2, 1));
    rig.bustle();
    assert_eq!(sink.count(Op::Flush), 2);
}

#[test]
fn a_pending_close_is_polled_once_whatever_else_happens() {
    let mut rig = rig();
    let sink = rig.attach(1, "a");
    sink.hold(Op::Close);
    rig.apply(Order::Detach(1));
    rig.bustle();
    rig.apply(Order::Detach(1));
    let successor = rig.attach(1, "successor");
    rig.send([1]);
    assert_eq!(sink.calls(), [Call::Close(Pending)]);
    rig.apply(Order::Finish);
    assert_eq!(sink.calls(), [Call::Close(Pending)], "the end does not poll the close again");
    assert!(successor.is_closed());
    sink.release(Op::Close);
    assert!(rig.run().is_ready());
    assert_eq!(sink.calls(), [Call::Close(Pending), Call::Close(Done), Call::Drop]);
}

// The cost of a wake.

/// Returns the calls of all other sinks and the polls of the task when one parked sink of `sinks` is
/// woken and gets its item.
fn cost_of_a_wake(sinks: u32) -> (usize, usize) {
    let mut rig = rig();
    let others = rig.attach_each(1..sinks);
    let woken = rig.attach_on(0, "woken", |attach| attach.buffer(1));
    rig.send(1..sinks.min(1_000)); // many sinks have been busy before
    woken.park();
    rig.send([0]);
    assert_eq!(rig.len(), sinks as usize);

    let calls = || others.iter().map(|sink| sink.calls().len()).sum::<usize>();
    let (before, polls) = (calls(), rig.task.polls());
    woken.take_calls();
    woken.open();
    rig.sleep();
    assert_eq!(woken.calls(), [Call::Ready(Done), Call::Send(Done), Call::Flush(Done)]);
    (calls() - before, rig.task.polls() - polls)
}

#[test]
fn a_wake_costs_the_same_with_ten_sinks_or_a_hundred_thousand() {
    for sinks in [10, 1_000, 100_000] {
        assert_eq!(cost_of_a_wake(sinks), (0, 1), "{sinks} sinks");
    }
}
