//! Guarantee 10: the demux keeps the contracts of `Sink`, `Stream` and `Future`. Scripted sinks and
//! streams panic if they are misused, in all modules.

use crate::common::Answer::{Done, Pending};
use crate::common::{Call, Rig};

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
