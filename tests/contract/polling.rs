//! Guarantee 4: only woken sinks are polled. The tests count every call of every sink. In all
//! modules, scripted sinks panic if they are polled again without a wake after `Pending`.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};

use crate::common::{
    Answer::{Done, Pending},
    Broken, Call, Op, Rig, ScriptedSink, SinkHandle, Split, Task, scripted_sink, scripted_stream,
};
use stream_demux::{Attach, Demux, DemuxStreamExt, Lease, Order, Overflow};

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

#[test]
fn poll_ready_is_called_once_per_item_and_never_ahead() {
    let mut rig = rig();
    let sink = rig.attach_on(1, "a", |attach| attach.buffer(2));
    rig.send([1, 1, 1]);
    let item = [Call::Ready(Done), Call::Send(Done)];
    assert_eq!(sink.calls(), [&item[..], &item, &item, &[Call::Flush(Done)]].concat());
}

#[test]
fn a_queue_is_drained_without_superfluous_calls() {
    let mut rig = rig();
    let sink = rig.attach_on(1, "a", |attach| attach.buffer(2));
    sink.park();
    rig.send([1, 1]);
    sink.open();
    rig.sleep();
    let calls = [
        Call::Ready(Pending),
        Call::Ready(Done),
        Call::Send(Done),
        Call::Ready(Done),
        Call::Send(Done),
        Call::Flush(Done),
    ];
    assert_eq!(sink.calls(), calls);
}

#[test]
fn an_item_that_is_not_admitted_polls_no_sink() {
    let (input, items) = scripted_stream("input");
    let (orders, orders_handle) = scripted_stream("orders");
    let (sink, handle) = scripted_sink(1);
    orders_handle.push((1, sink));
    items.extend([1, 1]);
    let mut task = Task::new(input.demux_by(|n| *n, orders).admit(|_, _: &u32| false));
    assert!(task.run().is_pending());
    assert_eq!((task.get_ref().totals().discarded, handle.calls()), (2, vec![]));
}

// Pending, and not woken.

#[test]
fn a_parked_sink_is_polled_once_whatever_else_happens() {
    for overflow in [Overflow::DropNewest, Overflow::DropOldest] {
        for buffer in [0, 1, 3] {
            let mut rig = rig();
            let sink = rig.attach_on(1, "a", |attach| attach.buffer(buffer).overflow(overflow));
            sink.park();
            rig.send([1; 10]);
            rig.bustle();
            rig.send([1; 10]);
            assert_eq!(sink.calls(), [Call::Ready(Pending)], "{overflow:?}, buffer {buffer}");
        }
    }
}

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
fn a_sink_with_a_dropping_policy_is_polled_when_woken_for_its_queued_item() {
    for overflow in [Overflow::DropNewest, Overflow::DropOldest] {
        let mut rig = rig();
        let sink = rig.attach_on(1, "a", |attach| attach.overflow(overflow));
        sink.park();
        rig.send([1, 1]);
        sink.open();
        rig.sleep();
        let calls = [Call::Ready(Pending), Call::Ready(Done), Call::Send(Done), Call::Flush(Done)];
        assert_eq!(sink.calls(), calls);
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
fn a_pending_flush_is_polled_again_when_due_after_another_item() {
    let mut rig = rig_with(|demux| demux.budget(10).flush_every(100));
    let sink = rig.attach(1, "a");
    sink.hold(Op::Flush);
    rig.send([1]);
    assert_eq!(sink.count(Op::Flush), 1);
    rig.input.push(1);
    rig.input.endless(|_| UNUSED_KEY);
    while rig.totals().received < 90 {
        rig.poll();
        assert_eq!(sink.count(Op::Flush), 1, "the flush is not due");
    }
    while rig.totals().received < 500 {
        rig.poll();
    }
    assert_eq!((sink.count(Op::Flush), sink.flush_asked()), (2, 2), "the flush is due once");
}

#[test]
fn a_pending_flush_does_not_stop_poll_ready() {
    let mut rig = rig();
    let sink = rig.attach(1, "a");
    sink.hold(Op::Flush);
    for taken in 1..=3 {
        rig.send([1]);
        assert_eq!((sink.taken(), sink.flushed()), (taken, 0));
    }
}

#[test]
fn a_pending_flush_does_not_stop_a_drain() {
    let mut rig = rig();
    let sink = rig.attach_on(1, "a", |attach| attach.buffer(3));
    sink.hold(Op::Flush);
    sink.park();
    sink.allow(1);
    rig.send([1, 1, 1]);
    assert_eq!((sink.taken(), sink.count(Op::Flush)), (1, 1));
    sink.open();
    rig.sleep();
    assert_eq!((sink.taken(), sink.flush_asked(), sink.flushed()), (3, 3, 0));
}

#[test]
fn a_woken_flush_polls_only_the_flush() {
    let mut rig = rig();
    let sink = rig.attach(1, "a");
    sink.hold(Op::Flush);
    rig.send([1]);
    sink.take_calls();
    sink.release(Op::Flush);
    rig.sleep();
    assert_eq!(sink.calls(), [Call::Flush(Done)]);
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

// Events that are not a wake of the sink.

#[test]
fn a_wake_before_the_return_causes_at_most_one_more_poll() {
    let mut rig = rig();
    let sink = rig.attach_on(1, "a", |attach| attach.buffer(1));
    sink.lenient(); // a wake before the return may cause one more poll
    sink.hold(Op::Flush);
    rig.send([1]);
    let handle = sink.clone();
    rig.input.action(move || {
        handle.park();
        handle.release(Op::Flush); // wakes for the flush, before poll_ready returns Pending
    });
    rig.send([1]);
    assert_eq!((sink.taken(), sink.flushed()), (1, 1));
    assert!((2..=3).contains(&sink.count(Op::Ready)));
    rig.bustle();
    assert!(sink.count(Op::Ready) <= 3);
}

#[test]
fn a_wake_within_the_send_polls_a_pending_flush_at_most_once_more() {
    let mut rig = rig();
    let sink = rig.attach(1, "a");
    sink.lenient(); // a wake before the return may cause one more poll
    sink.hold(Op::Flush);
    let handle = sink.clone();
    sink.during(Op::Send, move || assert!(handle.wake()));
    rig.send([1]);
    rig.bustle();
    assert_eq!(sink.taken(), 1);
    assert!((1..=2).contains(&sink.count(Op::Flush)));
}

#[test]
fn a_wake_within_the_last_send_polls_a_pending_close_at_most_once_more() {
    let mut rig = rig();
    let sink = rig.attach_on(1, "a", |attach| attach.buffer(1));
    sink.lenient(); // a wake before the return may cause one more poll
    sink.park();
    rig.send([1]);
    sink.hold(Op::Close);
    rig.apply(Order::Detach(1));
    let handle = sink.clone();
    sink.during(Op::Send, move || assert!(handle.wake()));
    sink.open();
    rig.sleep();
    rig.bustle();
    assert_eq!(sink.taken(), 1);
    assert!((1..=2).contains(&sink.count(Op::Close)));
}

#[test]
fn a_wake_during_a_flush_is_not_lost() {
    let mut rig = rig();
    let sink = rig.attach_on(1, "a", |attach| attach.buffer(2));
    rig.send([1]);
    let handle = sink.clone();
    sink.allow(1);
    rig.input.push(1);
    rig.input.push(1);
    // Parked by the second item, and woken before the flush at the lull.
    rig.input.action(move || handle.open());
    rig.sleep();
    assert_eq!((sink.taken(), sink.flush_asked()), (3, 3));
}

#[test]
fn a_detach_does_not_poll_a_parked_sink_again() {
    let mut rig = rig();
    let sink = rig.attach_on(1, "a", |attach| attach.buffer(3));
    sink.park();
    rig.send([1, 1]);
    rig.apply(Order::Detach(1));
    rig.bustle();
    assert_eq!(sink.calls(), [Call::Ready(Pending)]);
    sink.open();
    rig.sleep();
    assert!(sink.is_closed() && sink.taken() == 2);
}

#[test]
fn the_end_of_a_lease_does_not_poll_a_parked_sink_again() {
    for buffer in [0, 1, 3] {
        let mut rig = rig();
        let mut lease = Lease::new();
        let sink = rig.attach_on(1, "a", |attach| attach.buffer(buffer).leased(&mut lease));
        sink.park();
        rig.send([1, 1]);
        lease.detach();
        rig.sleep();
        assert_eq!(rig.len(), 0);
        assert_eq!(sink.calls(), [Call::Ready(Pending)], "buffer {buffer}");
        sink.open();
        rig.sleep();
        assert!(sink.is_closed());
    }
}

#[test]
fn the_end_of_a_lease_does_not_poll_a_pending_close_again() {
    let mut rig = rig();
    let mut lease = Lease::new();
    let sink = rig.attach_on(1, "a", |attach| attach.leased(&mut lease));
    sink.hold(Op::Close);
    rig.apply(Order::Detach(1));
    lease.detach();
    rig.sleep();
    assert_eq!(sink.calls(), [Call::Close(Pending)]);
}

#[test]
fn the_end_of_a_lease_does_not_poll_a_pending_flush_again() {
    let mut rig = rig();
    let mut lease = Lease::new();
    let sink = rig.attach_on(1, "a", |attach| attach.buffer(3).leased(&mut lease));
    sink.hold(Op::Flush);
    sink.park();
    sink.allow(1);
    rig.send([1, 1]);
    assert_eq!((sink.count(Op::Ready), sink.count(Op::Flush)), (2, 1));
    lease.detach(); // an item is still queued
    rig.sleep();
    assert_eq!((sink.count(Op::Ready), sink.count(Op::Flush), sink.count(Op::Close)), (2, 1, 0));
}

#[test]
fn the_end_does_not_poll_a_parked_sink_again() {
    let mut rig = rig();
    let sink = rig.attach_on(1, "a", |attach| attach.buffer(3));
    sink.park();
    rig.send([1, 1]);
    rig.input.end();
    rig.sleep();
    assert_eq!(sink.calls(), [Call::Ready(Pending)]);
    sink.open();
    assert!(rig.run().is_ready());
}

#[test]
fn a_refused_sink_does_not_cause_a_poll_of_the_present_one() {
    let mut rig = rig();
    let sink = rig.attach_on(1, "a", |attach| attach.buffer(3));
    sink.park();
    rig.send([1, 1]);
    rig.attach_on(1, "a", Attach::keep_existing);
    assert_eq!(sink.calls(), [Call::Ready(Pending)]);
}

#[test]
fn a_replaced_sink_is_only_closed() {
    let mut rig = rig();
    let sink = rig.attach_on(1, "a", |attach| attach.buffer(3));
    sink.park();
    rig.send([1, 1]);
    let successor = rig.attach(1, "successor");
    assert_eq!(sink.calls(), [Call::Ready(Pending), Call::Close(Done), Call::Drop]);
    assert_eq!(successor.taken(), 2);
}

#[test]
fn an_evicted_sink_is_not_polled() {
    let mut rig = rig();
    let sink = rig.attach_on(1, "a", |attach| attach.buffer(3));
    sink.park();
    rig.send([1, 1]);
    rig.apply(Order::Evict(1));
    assert_eq!(sink.calls(), [Call::Ready(Pending), Call::Drop]);
}

#[test]
fn a_member_that_delays_the_others_is_polled_once() {
    let mut rig = rig_with(Demux::multicast);
    let parked = rig.attach(1, "a");
    let open = rig.attach(1, "a");
    parked.park();
    rig.send([1, 1]);
    rig.bustle();
    assert_eq!(parked.calls(), [Call::Ready(Pending)]);
    assert_eq!((open.count(Op::Ready), open.taken()), (1, 1));
    parked.open();
    rig.sleep();
    assert_eq!((parked.taken(), open.taken()), (2, 2));
    assert_eq!(open.count(Op::Ready), 2);
}

// Streams.

#[test]
fn an_idle_orders_stream_is_polled_only_when_it_wakes() {
    let mut rig = rig();
    rig.orders.strict();
    rig.attach(1, "a");
    let polls = rig.orders.polls();
    for _ in 0..1_000 {
        rig.send([1, UNUSED_KEY]);
    }
    assert_eq!(rig.orders.polls(), polls);
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

#[test]
fn one_live_sink_among_thousands_of_idle_ones_is_served_in_one_poll() {
    let mut rig = rig();
    let sinks: Vec<_> =
        (0..5_000).map(|key| rig.attach_on(key, key, |attach| attach.buffer(1))).collect();
    for live in [0, 2_500, 4_999_u32] {
        let sink = &sinks[live as usize];
        sink.park();
        rig.send([live]);
        sink.open();
        rig.poll();
        assert_eq!((sink.taken(), sink.flushed(), rig.task.woken()), (1, 1, false));
    }
    assert_eq!(sinks.iter().filter(|sink| sink.calls().is_empty()).count(), 4_997);
}

#[test]
fn one_live_sink_among_thousands_that_are_stuck_is_served_in_one_poll() {
    let mut rig = rig();
    let sinks: Vec<_> =
        (0..2_000).map(|key| rig.attach_on(key, key, |attach| attach.buffer(1))).collect();
    sinks.iter().for_each(SinkHandle::park);
    rig.send(0..2_000);
    sinks[777].open();
    rig.poll();
    assert_eq!((sinks[777].flushed(), rig.task.woken()), (1, false));
    assert!(sinks.iter().all(|sink| sink.count(Op::Ready) == 1 + sink.taken()));
}

#[test]
fn vacant_slots_do_not_make_a_wake_more_expensive() {
    let mut rig = rig();
    for key in 10..3_010 {
        rig.attach(key, key);
    }
    let gone: Vec<_> = (10..3_010).map(Order::Evict).collect();
    rig.orders.extend(gone);
    rig.sleep();
    let sink = rig.attach_on(1, "a", |attach| attach.buffer(1));
    sink.park();
    rig.send([1]);
    sink.open();
    rig.poll();
    assert_eq!((sink.flushed(), rig.task.woken()), (1, false));
}
