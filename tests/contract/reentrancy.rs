//! Reentrancy: sinks, hooks and wakers that send orders and items, drop leases and fire wakers
//! while the demux calls them. Panics are in `panics`.
//!
//! Guarantees 1, 4, 7, 9 and 11.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::common::{Broken, Log, Op, ScriptedSink, SinkHandle, Task};
use crate::common::{scripted_sink, scripted_stream};
use futures::channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use futures::{Sink, stream};
use stream_demux::{DemuxStreamExt, Detached, Discarded, Hooks, Order, Recipient};

/// The key of item `n` is `n / 10`.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "key functions take a reference")]
fn tens(n: &u32) -> u32 {
    n / 10
}

/// Creates a scripted sink that is named by its key and logs.
fn sink(key: u32, log: &Log) -> (ScriptedSink<u32>, SinkHandle<u32>) {
    let (sink, handle) = scripted_sink(key);
    handle.log_to(log);
    (sink, handle)
}

type Orders<S = ScriptedSink<u32>> = UnboundedSender<Order<u32, S>>;

fn orders<S>() -> (Orders<S>, UnboundedReceiver<Order<u32, S>>) {
    mpsc::unbounded()
}

/// Hooks that log each call, and then react to unmatched items.
struct Reacting<F>(Log, F);

impl<F: FnMut(u32)> Hooks<u32, u32, Broken> for Reacting<F> {
    fn attached(&mut self, to: Recipient<'_, u32>) {
        self.0.push(format!("{} attached", to.key));
    }
    fn detached(&mut self, to: Recipient<'_, u32>, why: Detached<Broken>) {
        self.0.push(format!("{} {why:?}", to.key));
    }
    fn unmatched(&mut self, item: u32) {
        self.0.push(format!("unmatched {item}"));
        (self.1)(item);
    }
    fn discarded(&mut self, to: Recipient<'_, u32>, item: u32, why: Discarded) {
        self.0.push(format!("{} discarded {item} {why:?}", to.key));
    }
    fn blocked(&mut self, on: Recipient<'_, u32>) {
        self.0.push(format!("{} blocks", on.key));
    }
    fn unblocked(&mut self, on: Recipient<'_, u32>) {
        self.0.push(format!("{} unblocks", on.key));
    }
}

/// Returns the log without drops of sinks, because the contract only specifies that they come
/// before `detached`.
fn lines_but_drops(log: &Log) -> Vec<String> {
    log.lines().into_iter().filter(|line| !line.ends_with("dropped")).collect()
}

fn logging(log: &Log) -> Reacting<impl FnMut(u32) + use<>> {
    Reacting(log.clone(), |_| {})
}

// Sinks that call back

/// Sink 1 sends `order` in its first call of `op`; the items follow. Returns the log.
#[track_caller]
fn sends_order_from(
    op: Op,
    order: Order<u32, ScriptedSink<u32>>,
    items: impl IntoIterator<Item = u32>,
) -> Vec<String> {
    let log = Log::new();
    let (a, a_handle) = sink(1, &log);
    let (send, orders) = orders();
    send.unbounded_send((1, a).into()).unwrap();
    let (input, feed) = scripted_stream("input");
    let mut task = Task::new(input.demux_by(tens, orders).hooks(logging(&log)));
    a_handle.during(op, move || send.unbounded_send(order).unwrap());
    feed.extend(items);
    assert!(task.run().is_pending());
    log.lines()
}

#[test]
fn order_sent_from_start_send_comes_before_the_next_item() {
    assert_eq!(
        sends_order_from(Op::Send, Order::Detach(1), [11, 12]),
        ["1 attached", "1 sent 11", "1 closed", "1 dropped", "1 Requested", "unmatched 12"]
    );
}

#[test]
fn sink_that_wakes_itself_in_every_operation_does_not_keep_the_task_awake() {
    let log = Log::new();
    let (a, a_handle) = sink(1, &log);
    let (input, feed) = scripted_stream("input");
    let mut task = Task::new(input.demux_by(tens, stream::iter([(1, a)])));
    for op in [Op::Ready, Op::Send, Op::Flush, Op::Close] {
        let sink = a_handle.clone();
        a_handle.during(op, move || {
            sink.wake();
        });
    }
    feed.push(11);
    assert!(task.run().is_pending());
    feed.end();
    assert!(task.run().is_ready());
    assert!(task.polls() <= 5, "{} polls", task.polls());
    assert_eq!(log.lines(), ["1 sent 11", "1 flushed", "1 closed", "1 dropped"]);
}

// Sinks whose drop calls back

/// Calls a closure when it is dropped, after the drop of the inner sink.
struct OnDrop<S> {
    sink: S,
    _on_drop: Callback,
}

struct Callback(Option<Box<dyn FnOnce() + Send>>);

impl Drop for Callback {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|call| call());
    }
}

impl<S> OnDrop<S> {
    fn new(sink: S, on_drop: impl FnOnce() + Send + 'static) -> Self {
        Self { sink, _on_drop: Callback(Some(Box::new(on_drop))) }
    }
}

impl<V, S: Sink<V> + Unpin> Sink<V> for OnDrop<S> {
    type Error = S::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Pin::new(&mut self.sink).poll_ready(cx)
    }
    fn start_send(mut self: Pin<&mut Self>, item: V) -> Result<(), S::Error> {
        Pin::new(&mut self.sink).start_send(item)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Pin::new(&mut self.sink).poll_flush(cx)
    }
    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Pin::new(&mut self.sink).poll_close(cx)
    }
}

#[test]
fn drop_of_an_evicted_sink_attaches_its_successor() {
    let log = Log::new();
    let ((old, old_handle), (new, _)) = (sink(1, &log), sink(1, &log));
    let (send, orders) = orders();
    let again = send.clone();
    let old = OnDrop::new(old, move || {
        let new = OnDrop::new(new, || {});
        again.unbounded_send((1, new).into()).unwrap();
    });
    send.unbounded_send((1, old).into()).unwrap();
    let (input, feed) = scripted_stream("input");
    let mut task = Task::new(input.demux_by(tens, orders).hooks(logging(&log)));
    old_handle.park();
    feed.extend([11, 12]);
    assert!(task.run().is_pending());
    send.unbounded_send(Order::Evict(1)).unwrap();
    assert!(task.run().is_pending());
    assert_eq!(
        lines_but_drops(&log),
        [
            "1 attached",
            "1 blocks",
            "1 unblocks",
            "1 discarded 11 Evicted",
            "1 Evicted",
            "1 attached",
            "1 sent 12",
            "1 flushed"
        ]
    );
}

// Hooks that call back

#[test]
fn hook_that_attaches_the_key_of_an_unmatched_item_gets_the_next_item_delivered() {
    let log = Log::new();
    let (send, orders) = orders();
    let sinks = log.clone();
    let subscribe = Reacting(log.clone(), move |n| {
        send.unbounded_send((n / 10, sink(n / 10, &sinks).0).into()).unwrap();
    });
    let input = stream::iter([11, 12, 21, 13, 22]);
    let mut task = Task::new(input.demux_by(tens, orders).hooks(subscribe));
    assert!(task.run().is_ready());
    let log = log.lines();
    let routed: Vec<_> = log
        .iter()
        .filter(|line| line.contains("sent") || line.contains("attached") || line.contains("unm"))
        .collect();
    assert_eq!(
        routed,
        [
            "unmatched 11",
            "1 attached",
            "1 sent 12",
            "unmatched 21",
            "2 attached",
            "1 sent 13",
            "2 sent 22"
        ]
    );
}

// Wakers that call back

/// A waker that calls a closure each time it is fired.
struct Calling {
    callback: Mutex<Box<dyn FnMut() + Send>>,
    depth: AtomicUsize,
    deepest: AtomicUsize,
    fired: AtomicUsize,
}

impl Calling {
    fn new(callback: impl FnMut() + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            callback: Mutex::new(Box::new(callback)),
            depth: AtomicUsize::new(0),
            deepest: AtomicUsize::new(0),
            fired: AtomicUsize::new(0),
        })
    }
}

impl Calling {
    /// Drops the closure and its channels, which may hold this waker.
    fn clear(&self) {
        *self.callback.lock().unwrap() = Box::new(|| {});
    }
}

impl Wake for Calling {
    /// Does not call the closure recursively.
    fn wake(self: Arc<Self>) {
        self.fired.fetch_add(1, SeqCst);
        let depth = self.depth.fetch_add(1, SeqCst) + 1;
        self.deepest.fetch_max(depth, SeqCst);
        if let Ok(mut callback) = self.callback.try_lock() {
            callback();
        }
        self.depth.fetch_sub(1, SeqCst);
    }
}

/// A waker that calls a closure when its last clone is dropped.
struct Mortal {
    _on_drop: Mutex<Callback>,
}

impl Wake for Mortal {
    fn wake(self: Arc<Self>) {}
}

fn mortal(on_drop: impl FnOnce() + Send + 'static) -> Waker {
    let on_drop = Callback(Some(Box::new(on_drop)));
    Waker::from(Arc::new(Mortal { _on_drop: Mutex::new(on_drop) }))
}

#[test]
fn waker_may_send_orders_and_items_while_it_fires() {
    let log = Log::new();
    let (items, input) = mpsc::unbounded();
    let (send, orders) = orders();
    send.unbounded_send((1, sink(1, &log).0).into()).unwrap();
    let (more_items, more_orders) = (items.clone(), send.clone());
    let mut left = VecDeque::from([Order::Detach(1), (2, sink(2, &log).0).into()]);
    let calling = Calling::new(move || {
        if let Some(order) = left.pop_front() {
            more_orders.unbounded_send(order).unwrap();
            more_items.unbounded_send(21).unwrap();
        }
    });
    let mut demux = pin!(input.demux_by(tens, orders).hooks(logging(&log)));
    let waker = Waker::from(Arc::clone(&calling));
    let cx = &mut Context::from_waker(&waker);
    assert!(demux.as_mut().poll(cx).is_pending());
    assert_eq!(log.take(), ["1 attached"]);

    items.unbounded_send(11).unwrap();
    let mut seen = 0;
    while calling.fired.load(SeqCst) > seen {
        seen = calling.fired.load(SeqCst);
        assert!(seen < 20, "the demux wakes itself without end");
        assert!(demux.as_mut().poll(cx).is_pending());
    }
    let lines: Vec<_> = log.take().into_iter().filter(|line| !line.contains("flush")).collect();
    let first = ["1 closed", "1 dropped", "1 Requested", "2 attached"];
    assert_eq!(lines, [&first[..], &["unmatched 11", "2 sent 21", "2 sent 21"]].concat());
    assert!(calling.deepest.load(SeqCst) <= 2);
    calling.clear();
}

#[test]
fn waker_whose_drop_sends_into_the_channels_does_not_deadlock() {
    let log = Log::new();
    let (items, input) = mpsc::unbounded();
    let (send, orders) = orders();
    let (a, a_handle) = sink(1, &log);
    a_handle.park();
    send.unbounded_send((1, a).into()).unwrap();
    let mut demux = Box::pin(input.demux_by(tens, orders).hooks(logging(&log)));
    for n in 0..3 {
        let (items, send, sink) = (items.clone(), send.clone(), a_handle.clone());
        let waker = mortal(move || {
            items.unbounded_send(20 + n).unwrap();
            send.unbounded_send(Order::Evict(9)).unwrap();
            sink.wake();
        });
        assert!(demux.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    items.unbounded_send(11).unwrap();
    drop(items);
    a_handle.open();
    assert!(Task::new(demux).run().is_ready());
    let routed: Vec<_> = log
        .take()
        .into_iter()
        .filter(|line| line.contains("unm") || line.contains("sen"))
        .collect();
    assert_eq!(routed.len(), 4, "not every waker called its closure: {routed:?}");
}
