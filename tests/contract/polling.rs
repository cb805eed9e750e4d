//! Guarantee 4: only woken sinks are polled. The tests count every call of every sink. In all
//! modules, scripted sinks panic if they are polled again without a wake after `Pending`.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};

use crate::common::{
    Answer::{Done, Pending},
    Broken, Call, Op, Rig, ScriptedSink, Split, Task, scripted_sink, scripted_stream,
};
use stream_demux::{Attach, DemuxStreamExt, Order};

/// A key without a sink.
const UNUSED_KEY: u32 = u32::MAX;

/// Creates a demux whose items are their keys.
fn rig() -> Rig {
    rig_with(|demux| demux)
}

fn rig_with(settings: impl FnOnce(Split) -> Split) -> Rig {
    Rig::keyed(|n| *n, settings).with_silent_sinks()
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

/// A sink that is always ready and counts the calls of all sinks of this type.
struct Counted {
    calls: Arc<AtomicUsize>,
}

impl futures::Sink<u32> for Counted {
    type Error = Broken;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.calls.fetch_add(1, SeqCst);
        Poll::Ready(Ok(()))
    }
    fn start_send(self: Pin<&mut Self>, _: u32) -> Result<(), Self::Error> {
        self.calls.fetch_add(1, SeqCst);
        Ok(())
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.calls.fetch_add(1, SeqCst);
        Poll::Ready(Ok(()))
    }
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.calls.fetch_add(1, SeqCst);
        Poll::Ready(Ok(()))
    }
}

/// Returns the calls of all sinks and the polls of the task when one parked sink of `sinks` is
/// woken and gets its item.
fn cost_of_a_wake(sinks: u32) -> (usize, usize) {
    type Either = futures::future::Either<Counted, ScriptedSink<u32>>;
    let (input, items) = scripted_stream("input");
    let (orders, orders_handle) = scripted_stream::<Order<u32, Either>>("orders");
    let mut task = Task::new(input.demux_by(|n| *n, orders));
    let calls = Arc::new(AtomicUsize::new(0));
    orders_handle.extend(
        (1..sinks).map(|key| {
            Attach::new(key, Either::Left(Counted { calls: Arc::clone(&calls) })).into()
        }),
    );
    let (sink, handle) = scripted_sink("woken");
    orders_handle.push(Attach::new(0, Either::Right(sink)).buffer(1).into());
    assert!(task.run().is_pending());
    items.extend(1..sinks.min(1_000)); // many sinks have been busy before
    handle.park();
    items.push(0);
    assert!(task.run().is_pending());
    assert_eq!(task.get_ref().len(), sinks as usize);

    handle.take_calls();
    let (before, polls) = (calls.load(SeqCst), task.polls());
    handle.open();
    assert!(task.run().is_pending());
    assert_eq!(handle.calls(), [Call::Ready(Done), Call::Send(Done), Call::Flush(Done)]);
    (calls.load(SeqCst) - before, task.polls() - polls)
}

#[test]
fn a_wake_costs_the_same_with_ten_sinks_or_a_hundred_thousand() {
    for sinks in [10, 1_000, 100_000] {
        assert_eq!(cost_of_a_wake(sinks), (0, 1), "{sinks} sinks");
    }
}
