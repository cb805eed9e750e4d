//! Guarantee 11, dropping: sinks that wake the task and drop leases while they are dropped, and the
//! wakers of the task that the demux keeps. `panics` drops the future in every state.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::common::{ScriptedSink, Task, scripted_sink, scripted_stream};
use futures::{Sink, StreamExt, stream};
use stream_demux::{Attach, DemuxStreamExt, Lease, Order};

/// An item that counts how many items exist: key and counter.
type Item = (u32, Arc<()>);
type Out = ScriptedSink<Item>;
type Orders = Order<u32, Out>;
type Key = fn(&Item) -> u32;

// A sink that fires wakers and drops leases when it is dropped.

struct WakesOnDrop {
    waker: Option<Waker>,
    lease: Option<Lease>,
    items: Vec<Arc<()>>,
}

impl Sink<Item> for WakesOnDrop {
    type Error = ();

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), ()>> {
        self.waker = Some(cx.waker().clone());
        Poll::Ready(Ok(()))
    }
    fn start_send(mut self: Pin<&mut Self>, item: Item) -> Result<(), ()> {
        self.items.push(item.1);
        Ok(())
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Pending
    }
}

impl Drop for WakesOnDrop {
    fn drop(&mut self) {
        self.waker.take().iter().for_each(Waker::wake_by_ref);
        self.lease.take();
    }
}

#[test]
fn sinks_may_wake_and_drop_leases_while_they_are_dropped() {
    let mut last = Lease::new();
    let mut orders: Vec<Order<u32, WakesOnDrop>> = Vec::new();
    for key in 0..4 {
        let held = std::mem::take(&mut last);
        let sink = WakesOnDrop { waker: None, lease: Some(held), items: Vec::new() };
        orders.push(Attach::new(key, sink).leased(&mut last).into());
    }
    let item = Arc::new(());
    let items: Vec<Item> = (0..4).map(|key| (key, Arc::clone(&item))).collect();
    let key: Key = |item| item.0;
    let input = stream::iter(items).chain(stream::pending());
    let mut task = Task::new(input.demux_by(key, stream::iter(orders)));
    assert!(task.run().is_pending());
    assert_eq!(Arc::strong_count(&item), 5);
    let wakes = task.total_wakes();
    task.drop_future();
    assert_eq!((Arc::strong_count(&item), task.total_wakes()), (1, wakes));
    assert_eq!(task.wakers_kept(), 0);
}

// Wakers of the task.

#[test]
fn completion_keeps_no_waker_of_the_task() {
    let (orders, handle) = scripted_stream::<Orders>("orders");
    let (sink, a) = scripted_sink(1);
    handle.push((1, sink).into());
    let key: Key = |item| item.0;
    let mut task = Task::new(stream::pending().demux_by(key, orders));
    assert!(task.run().is_pending());
    assert!(task.wakers_kept() > 0, "no waker was kept");
    task.renew_waker();
    assert!(task.run().is_pending());
    handle.push(Order::Finish);
    assert!(task.run().is_ready());
    assert!(a.is_dropped());
    assert_eq!(task.wakers_kept(), 0);
}

#[test]
fn former_wakers_of_the_task_are_not_kept() {
    let (orders, handle) = scripted_stream::<Orders>("orders");
    let (sink, a) = scripted_sink(1);
    a.park();
    handle.push(Attach::new(1, sink).buffer(1).into());
    let key: Key = |item| item.0;
    let items = stream::iter([(1, Arc::new(()))]).chain(stream::pending());
    let mut task = Task::new(items.demux_by(key, orders));
    for _ in 0..10 {
        assert!(task.run().is_pending());
        assert_eq!(task.wakers_kept(), 1);
        task.renew_waker();
    }
}
