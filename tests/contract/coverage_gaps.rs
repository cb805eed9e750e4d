//! Situations that no other test comes to: `.ci/coverage` told of lines that were never run.

use std::cell::Cell;
use std::collections::HashSet;
use std::convert::Infallible;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;

use crate::common::{Op, Task, scripted_sink, scripted_stream};
use futures::{Sink, sink, stream};
use stream_demux::{Attach, DemuxStreamExt, Hooks, Order, Recipient, Totals};

fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).expect("a panic says something")
}

/// Runs a demux of five items, of which the key `1` has a sink.
#[track_caller]
fn keys<K: Hash + Eq + From<u8>>() {
    let orders = stream::iter([(K::from(1), sink::drain())]);
    let demux = stream::iter([0_u8, 1, 2, 1, 0]).demux_by(|&n| K::from(n), orders);
    let Poll::Ready(totals) = Task::new(demux).run() else { panic!("it waits for nothing") };
    assert_eq!((totals.delivered, totals.unmatched), (2, 3));
}

#[test]
fn keys_that_are_integers_of_any_width() {
    keys::<u8>();
    keys::<u16>();
    keys::<u32>();
    keys::<u64>();
    keys::<u128>();
    keys::<usize>();
    keys::<i16>();
    keys::<i128>();
}

/// A hook that keeps whom it was told of for a moment, and knows of nothing but `Clone`.
struct Twice(Vec<(u32, u64)>);

fn two_of<T: Clone>(one: T) -> [T; 2] {
    [one.clone(), one]
}

impl<V, E> Hooks<u32, V, E> for Twice {
    fn attached(&mut self, to: Recipient<'_, u32>) {
        self.0.extend(two_of(to).map(|to| (*to.key, to.tag)));
    }
}

#[test]
fn recipient_is_cloned_where_only_clone_is_asked_for() {
    let mut hooks = Twice(Vec::new());
    let orders = stream::iter([Attach::new(7, sink::drain()).tag(8)]);
    let demux = stream::empty::<u32>().demux_by(|&n| n, orders).hooks(&mut hooks);
    assert!(Task::new(demux).run().is_ready());
    assert_eq!(hooks.0, [(7, 8), (7, 8)]);
}

#[test]
fn orders_of_one_type_in_a_log() {
    let shown = |order: Order<&str, sink::Drain<u32>>| format!("{order:?}");
    assert!(shown(Order::from(("a", sink::drain()))).starts_with("Attach { key: \"a\""));
    assert_eq!(shown(Order::Detach("a")), "Detach(\"a\")");
    assert_eq!(shown(Order::Evict("a")), "Evict(\"a\")");
    assert_eq!(shown(Order::Finish), "Finish");
}

/// Polls a demux three times. Its hook panics if it is given an item.
fn panics_when_polled_on(items: &'static [u32]) -> Vec<String> {
    let orders = stream::empty::<(u32, sink::Drain<&u32>)>();
    let hook = |item| panic!("nobody wants {item}");
    let mut demux = Box::pin(stream::iter(items).demux_by(|&&n| n, orders).on_unmatched(hook));
    let poll = |_| {
        let poll = || demux.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        catch_unwind(AssertUnwindSafe(poll)).err().map(|panic| said(&*panic).to_owned())
    };
    (0..3).filter_map(poll).collect()
}

#[test]
fn polled_on_after_a_panic_and_after_completion() {
    let after_panic = "`Demux` polled after a panic in a key function, hook, sink or stream";
    let after_completion = "`Demux` polled after completion";
    assert_eq!(panics_when_polled_on(&[3]), ["nobody wants 3", after_panic, after_panic]);
    assert_eq!(panics_when_polled_on(&[]), [after_completion, after_completion]);
}

/// A key that looks at something that changes: what `Hash` forbids.
#[derive(PartialEq, Eq)]
struct Fickle(Rc<Cell<u64>>);

impl Hash for Fickle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.get().hash(state);
    }
}

/// Attaches three sinks under one key, detaching the first two before the next comes, so that they leave
/// together. If the key is to be `fickle`, it is hashed otherwise by the time they are closed.
fn three_under_a_key(fickle: bool) -> Result<Totals, String> {
    let (input, items) = scripted_stream::<u32>("input");
    let (orders_in, orders) = scripted_stream("orders");
    let hash = Rc::new(Cell::new(1));
    let key = || Fickle(Rc::clone(&hash));
    let of_items = Rc::new(Cell::new(0));
    let demux = input.demux_by(move |_| Fickle(Rc::clone(&of_items)), orders_in).multicast();
    let mut task = Task::new(demux);
    let (first, first_handle) = scripted_sink::<u32>("first");
    let (second, second_handle) = scripted_sink::<u32>("second");
    let (third, third_handle) = scripted_sink::<u32>("third");
    first_handle.hold(Op::Close);
    second_handle.hold(Op::Close);
    orders.extend([Order::from((key(), first)), Order::Detach(key())]);
    orders.extend([Order::from((key(), second)), Order::Detach(key())]);
    orders.extend([Order::from((key(), third))]);
    assert!(task.run().is_pending());

    if fickle {
        hash.set(2);
    }
    first_handle.release(Op::Close);
    second_handle.release(Op::Close);
    items.end();
    let outcome = catch_unwind(AssertUnwindSafe(|| task.run()));
    assert_eq!(third_handle.is_dropped(), !fickle);
    task.drop_future();
    assert!(third_handle.is_dropped(), "all it held is dropped with it");
    let outcome = outcome.map_err(|panic| said(&*panic).to_owned())?;
    let Poll::Ready(totals) = outcome else { panic!("it is the end") };
    Ok(totals)
}

#[test]
fn key_that_hashes_otherwise_than_when_it_was_attached_is_named_as_the_cause() {
    let totals = three_under_a_key(false).expect("it hashes as it should");
    assert_eq!((totals.attached, totals.detached), (3, 3));
    let panic = three_under_a_key(true).expect_err("its entry is not found");
    assert!(panic.contains("its `Hash` or `Eq` is inconsistent"), "{panic}");
}

/// A sink that is ready when a thread has said so, and keeps the waker for that thread.
struct Gate {
    state: Arc<GateState>,
}

#[derive(Default)]
struct GateState {
    open: AtomicBool,
    taken: AtomicUsize,
    waker: Mutex<Option<Waker>>,
}

impl GateState {
    fn open(&self) {
        self.open.store(true, SeqCst);
        let waker = self.waker.lock().unwrap().take();
        waker.expect("an item waits for it").wake();
    }
}

type Done = Poll<Result<(), Infallible>>;

impl Sink<usize> for Gate {
    type Error = Infallible;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Done {
        *self.state.waker.lock().unwrap() = Some(cx.waker().clone());
        if self.state.open.swap(false, SeqCst) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
    fn start_send(self: Pin<&mut Self>, _: usize) -> Result<(), Infallible> {
        self.state.taken.fetch_add(1, SeqCst);
        Ok(())
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Done {
        Poll::Ready(Ok(()))
    }
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Done {
        Poll::Ready(Ok(()))
    }
}

/// All at the same moment, so that they get in each other's way: each has to find the top of the list
/// taken by another now and then, and try again.
#[test]
fn thousands_of_sinks_are_woken_by_threads_that_get_in_each_others_way() {
    const THREADS: usize = 4;
    const SINKS: usize = 4_000;
    const ROUNDS: usize = 25;

    let gates = (0..SINKS).map(|_| Arc::<GateState>::default()).collect::<Arc<[_]>>();
    let (input, items) = scripted_stream("input");
    let orders = gates.iter().enumerate().map(|(key, state)| {
        let gate = Gate { state: Arc::clone(state) };
        Attach::new(key, gate).buffer(1)
    });
    let orders = stream::iter(orders.collect::<Vec<_>>());
    let mut task = Task::new(input.demux_by(|&n| n, orders).budget(usize::MAX));
    let start = Arc::new(Barrier::new(THREADS));
    for round in 1..=ROUNDS {
        items.extend(0..SINKS);
        assert!(task.run().is_pending());
        let threads = (0..THREADS).map(|thread| {
            let (gates, start) = (Arc::clone(&gates), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                gates.iter().skip(thread).step_by(THREADS).for_each(|gate| gate.open());
            })
        });
        for thread in threads.collect::<Vec<_>>() {
            thread.join().unwrap();
        }
        assert!(task.woken());
        assert!(task.run().is_pending());
        let served = gates.iter().map(|gate| gate.taken.load(SeqCst)).collect::<HashSet<_>>();
        assert_eq!(served, HashSet::from([round]), "some were not served in round {round}");
    }
    items.end();
    let Poll::Ready(Totals { delivered, .. }) = task.run() else { panic!("it is the end") };
    assert_eq!(delivered, (SINKS * ROUNDS) as u64);
}
