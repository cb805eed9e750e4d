//! Guarantee 11, dropping: at every stage, dropping the future drops all that it holds at once. The
//! future drops parts earlier if it no longer needs them. Wakers that outlive it do nothing, and do
//! not keep the task alive.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::common::{
    Op, ScriptedSink, ScriptedStream, SinkHandle, StreamHandle, Task, scripted_sink,
    scripted_stream,
};
use futures::{Sink, StreamExt, stream};
use stream_demux::{Attach, ByValue, Demux, DemuxStreamExt, Hooks, Lease, Order};

/// An item that counts how many items exist: key and counter.
type Item = (u32, Arc<()>);
type Out = ScriptedSink<Item>;
type Orders = Order<u32, Out>;
type Key = fn(&Item) -> u32;
type Split = Demux<ScriptedStream<Item>, ByValue<Key>, ScriptedStream<Orders>, Owner>;

/// Hooks that own a value and ignore events.
struct Owner {
    _own: Rc<()>,
}

impl<K, V, E> Hooks<K, V, E> for Owner {}

/// A demux and all its handles; `items` and `hooks` count live values.
struct Rig {
    task: Task<Split>,
    input: StreamHandle<Item>,
    orders: StreamHandle<Orders>,
    sinks: Vec<SinkHandle<Item>>,
    items: Arc<()>,
    hooks: Rc<()>,
}

impl Rig {
    fn new() -> Self {
        let (input, input_handle) = scripted_stream("input");
        let (orders, orders_handle) = scripted_stream("orders");
        let hooks = Rc::new(());
        let key: Key = |item| item.0;
        let demux = input.demux_by(key, orders).multicast();
        let demux = Demux::hooks(demux, Owner { _own: Rc::clone(&hooks) });
        Self {
            task: Task::new(demux),
            input: input_handle,
            orders: orders_handle,
            sinks: Vec::new(),
            items: Arc::new(()),
            hooks,
        }
    }

    fn attach(&mut self, key: u32, buffer: usize) -> SinkHandle<Item> {
        let (sink, handle) = scripted_sink(key);
        self.orders.push(Attach::new(key, sink).buffer(buffer).into());
        self.sinks.push(handle.clone());
        handle
    }

    fn push<const N: usize>(&self, keys: [u32; N]) {
        self.input.extend(keys.map(|key| (key, Arc::clone(&self.items))));
    }

    #[track_caller]
    fn sleep(&mut self) {
        assert!(self.task.run().is_pending());
    }

    /// Returns the number of items that are neither in the script of the input nor held by the
    /// handle of a sink.
    fn items_within(&self) -> usize {
        let taken: usize = self.sinks.iter().map(SinkHandle::taken).sum();
        Arc::strong_count(&self.items) - 1 - self.input.left() - taken
    }

    /// Drops the future, and checks that nothing of it remains.
    #[track_caller]
    fn dropped(mut self) {
        let wakes = self.task.total_wakes();
        self.task.drop_future();
        assert!(self.input.is_dropped(), "the input was not dropped");
        assert!(self.orders.is_dropped(), "the orders were not dropped");
        assert!(self.sinks.iter().all(SinkHandle::is_dropped), "a sink was not dropped");
        assert_eq!(self.items_within(), 0, "items");
        assert_eq!(Rc::strong_count(&self.hooks), 1, "the hooks were not dropped");

        // Wakers that outlive it.
        let sinks = self.sinks.iter().filter_map(SinkHandle::waker);
        let kept: Vec<_> = sinks.chain(self.orders.waker()).collect();
        kept.iter().for_each(Waker::wake_by_ref);
        for sink in &self.sinks {
            sink.open();
            sink.release(Op::Flush);
            sink.release(Op::Close);
        }
        self.orders.push(Order::Finish);
        assert_eq!(
            self.task.total_wakes(),
            wakes,
            "a waker that outlived the future woke the task"
        );

        // The handle of the input keeps the waker of the task.
        let Self { task, input, .. } = self;
        drop(input);
        assert_eq!(task.wakers_kept(), 0, "a waker keeps the task alive");
        drop(kept);
    }
}

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

// Parts that are dropped earlier.

#[test]
fn orders_are_dropped_when_they_end_and_not_before() {
    let mut rig = Rig::new();
    rig.sleep();
    assert!(!rig.orders.is_dropped());
    rig.orders.end();
    assert!(rig.task.poll().is_pending());
    assert!(rig.orders.is_dropped());
}

#[test]
fn completion_drops_sinks_and_orders_while_input_and_hooks_stay() {
    for finish in [false, true] {
        let mut rig = Rig::new();
        for key in 0..5 {
            rig.attach(key, 0);
        }
        rig.push([1, 2, 9]);
        rig.sleep();
        if finish {
            rig.orders.push(Order::Finish);
        } else {
            rig.input.end();
        }
        assert!(rig.task.run().is_ready());
        assert!(rig.sinks.iter().all(SinkHandle::is_dropped) && rig.orders.is_dropped());
        assert!(!rig.input.is_dropped());
        assert_eq!((rig.items_within(), Rc::strong_count(&rig.hooks)), (0, 2));
        rig.dropped();
    }
}

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
