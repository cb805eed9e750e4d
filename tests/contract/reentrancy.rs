//! Reentrancy: wakers that send orders and items and fire wakers while the demux calls or drops
//! them (guarantees 1 and 11). Streams, sinks and hooks that do so are in the random schedules;
//! panics are in `panics`.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use crate::common::scripted_sink;
use crate::common::{Log, Recorder, ScriptedSink, SinkHandle, Task};
use futures::channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use stream_demux::{DemuxStreamExt, Order};

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

/// Calls a closure when it is dropped.
struct Callback(Option<Box<dyn FnOnce() + Send>>);

impl Drop for Callback {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|call| call());
    }
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
    let mut demux = pin!(input.demux_by(|n| n / 10, orders).hooks(Recorder::of_events(&log)));
    let waker = Waker::from(Arc::clone(&calling));
    let cx = &mut Context::from_waker(&waker);
    assert!(demux.as_mut().poll(cx).is_pending());
    assert_eq!(log.take(), ["attached 1"]);

    items.unbounded_send(11).unwrap();
    let mut seen = 0;
    while calling.fired.load(SeqCst) > seen {
        seen = calling.fired.load(SeqCst);
        assert!(seen < 20, "the demux wakes itself without end");
        assert!(demux.as_mut().poll(cx).is_pending());
    }
    let lines: Vec<_> = log.take().into_iter().filter(|line| !line.contains("flush")).collect();
    let first = ["1 closed", "1 dropped", "detached 1 Requested", "attached 2"];
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
    let mut demux = Box::pin(input.demux_by(|n| n / 10, orders).hooks(Recorder::of_events(&log)));
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
