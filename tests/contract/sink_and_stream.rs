//! Guarantee 10: the demux keeps the contracts of `Sink`, `Stream` and `Future`. Scripted sinks and
//! streams panic if they are misused; these tests create situations in which this is likely.

use crate::common::Answer::{Done, Pending};
use crate::common::{Call, Op, Rig};
use stream_demux::Order;

// All calls of a sink, from its first item to its drop.

#[test]
fn from_the_first_item_to_the_close_each_call_is_accounted_for() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    assert!(a.calls().is_empty());
    rig.send([101]);
    assert_eq!(a.take_calls(), [Call::Ready(Done), Call::Send(Done), Call::Flush(Done)]);
    rig.send([102, 103]);
    let two = [Call::Ready(Done), Call::Send(Done), Call::Ready(Done), Call::Send(Done)];
    assert_eq!(a.take_calls(), [&two[..], &[Call::Flush(Done)]].concat());
    rig.apply(Order::Detach(1));
    assert_eq!(a.take_calls(), [Call::Close(Done), Call::Drop]);
}

#[test]
fn a_sink_that_was_not_ready_is_polled_again_before_the_send() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    a.park();
    rig.send([101]);
    a.wake();
    rig.sleep();
    a.open();
    rig.sleep();
    assert_eq!(
        a.calls(),
        [
            Call::Ready(Pending),
            Call::Ready(Pending),
            Call::Ready(Done),
            Call::Send(Done),
            Call::Flush(Done)
        ]
    );
}

#[test]
fn nothing_follows_a_close_that_completed() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    rig.send([101]);
    let waker = a.waker().unwrap();
    rig.apply(Order::Detach(1));
    let calls = a.calls();
    assert_eq!(calls[3..], [Call::Close(Done), Call::Drop]);
    waker.wake();
    rig.send([102]);
    rig.apply(Order::Detach(1));
    rig.apply(Order::Evict(1));
    assert_eq!(a.calls(), calls);
}

// Streams.

#[test]
fn the_input_is_not_polled_after_its_end() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    let b = rig.attach(2, "b");
    a.hold(Op::Close);
    b.hold(Op::Close);
    rig.input.end();
    rig.sleep();
    let polls = rig.input.polls();
    let waker = rig.task.waker();
    b.release(Op::Close);
    rig.sleep();
    rig.apply(Order::Detach(7));
    waker.wake_by_ref();
    rig.sleep();
    a.release(Op::Close);
    assert!(rig.run().is_ready());
    assert_eq!(rig.input.polls(), polls);
}

#[test]
fn the_orders_are_not_polled_after_their_end_though_their_waker_fires() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    let waker = rig.orders.waker().unwrap();
    rig.orders.end();
    rig.sleep();
    let polls = rig.orders.polls();
    waker.wake_by_ref();
    rig.send([101]);
    waker.wake();
    rig.sleep();
    assert_eq!((a.items(), rig.orders.polls()), (vec![101], polls));
}
