//! Panics in user code: key functions, hooks, sinks, streams, and the traits of keys and items.
//!
//! An eventful scenario is played again and again, and each call to user code panics in turn, until
//! a run completes without a panic. `AFTERWARDS` is what must hold after each. (The clone of the
//! task's waker is in `any_task`.)
//!
//! Checks the section on panics of the crate page, and guarantee 11: the panic unwinds unchanged;
//! getters still work; another poll panics with the reason; wakers and leases do nothing; dropping
//! the future drops each sink once, each item, each key, both streams and the waker of the task.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use crate::common::panics::{message_of, try_catch};
use crate::common::{
    Broken, Op, ScriptedSink, ScriptedStream, SinkHandle, StreamHandle, Task, scripted_sink,
    scripted_stream,
};
use futures::future::FusedFuture;
use futures::{Sink, Stream, sink, stream};
use stream_demux::{
    Attach, ByValue, Demux, DemuxStreamExt, Detached, Discarded, Hooks, Lease, OrAttach, Order,
    Overflow, Recipient, Totals,
};

/// Selects the call to user code that panics.
#[derive(Clone, Copy)]
enum Fuse {
    /// No call panics, and calls are not counted.
    Out,
    /// The call after this many others.
    After(usize),
}

thread_local! {
    static FUSE: Cell<Fuse> = const { Cell::new(Fuse::Out) };
    /// The sites that have panicked on this thread.
    static PANICKED: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
}

/// Called by user code at `site`.
fn called(site: &'static str) {
    match FUSE.get() {
        Fuse::After(0) => {}
        Fuse::After(left) => return FUSE.set(Fuse::After(left - 1)),
        Fuse::Out => return,
    }
    FUSE.set(Fuse::Out);
    PANICKED.with_borrow_mut(|sites| sites.insert(site));
    // Unlike `panic!`, this does not print.
    resume_unwind(Box::new(site));
}

/// Runs `f` with this fuse. Returns the rest of the fuse, or the site that panicked.
fn with_fuse<R>(fuse: Fuse, f: impl FnOnce() -> R) -> Result<(R, Fuse), &'static str> {
    FUSE.set(fuse);
    let result = catch_unwind(AssertUnwindSafe(f));
    let left = FUSE.replace(Fuse::Out);
    let unchanged = "the panic unwinds unchanged";
    result.map(|value| (value, left)).map_err(|panic| *panic.downcast().expect(unchanged))
}

/// A number. The `Arc` counts live keys.
#[derive(Debug)]
struct Key(u32, #[expect(dead_code, reason = "it counts")] Arc<()>);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        called("hash of a key");
        // All keys collide, so that they are compared as well.
        (self.0 % 2).hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        called("comparison of keys");
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Drop for Key {
    fn drop(&mut self) {
        called("drop of a key");
    }
}

#[derive(Debug)]
struct Item(u32, Arc<()>);

impl Clone for Item {
    fn clone(&self) -> Self {
        called("clone of an item");
        Self(self.0, Arc::clone(&self.1))
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        called("drop of an item");
    }
}

/// A scripted sink that counts its drops.
struct Out(ScriptedSink<Item>, Arc<AtomicUsize>);

impl Sink<Item> for Out {
    type Error = Broken;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        called("poll_ready");
        Pin::new(&mut self.0).poll_ready(cx)
    }
    fn start_send(mut self: Pin<&mut Self>, item: Item) -> Result<(), Broken> {
        called("start_send");
        Pin::new(&mut self.0).start_send(item)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        called("poll_flush");
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        called("poll_close");
        Pin::new(&mut self.0).poll_close(cx)
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        self.1.fetch_add(1, SeqCst);
        called("drop of a sink");
    }
}

/// A scripted stream: the input, or the orders.
struct In<T>(ScriptedStream<T>, [&'static str; 2]);

impl<T> Stream for In<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        called(self.1[0]);
        Pin::new(&mut self.0).poll_next(cx)
    }
}

impl<T> Drop for In<T> {
    fn drop(&mut self) {
        called(self.1[1]);
    }
}

struct AllHooks;

impl<K, V, E> Hooks<K, V, E> for AllHooks {
    fn admit(&mut self, _: Recipient<'_, K>, _: &V) -> bool {
        called("admit");
        true
    }
    fn attached(&mut self, _: Recipient<'_, K>) {
        called("attached");
    }
    fn detached(&mut self, _: Recipient<'_, K>, _: Detached<E>) {
        called("detached");
    }
    fn unmatched(&mut self, _: V) {
        called("unmatched");
    }
    fn discarded(&mut self, _: Recipient<'_, K>, _: V, _: Discarded) {
        called("discarded");
    }
    fn key_attached(&mut self, _: &K) {
        called("key_attached");
    }
    fn key_detached(&mut self, _: &K) {
        called("key_detached");
    }
    fn supersedes(&mut self, _: Recipient<'_, K>, _: &V, _: &V) -> bool {
        called("supersedes");
        true
    }
    fn blocked(&mut self, _: Recipient<'_, K>) {
        called("blocked");
    }
    fn unblocked(&mut self, _: Recipient<'_, K>) {
        called("unblocked");
    }
}

/// The waker of the task, which counts wakes and clones.
struct TaskWaker(AtomicUsize);

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
        called("wake of the task");
    }
}

/// Hashes equally in each run, so that no call is skipped.
struct Hashing;

impl BuildHasher for Hashing {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        called("build of a hasher");
        DefaultHasher::new()
    }
}

type Orders = Order<Key, Out>;
type KeyFunction = Box<dyn FnMut(&Item) -> Key>;
type Maker = fn(&Item) -> Option<Attach<Key, Out>>;
type Running =
    Demux<In<Item>, OrAttach<ByValue<KeyFunction>, Maker>, In<Orders>, AllHooks, Hashing>;

/// Calls every getter. Returns the totals.
fn look(demux: &Running) -> Totals {
    assert!(format!("{demux:?}").starts_with("Demux"));
    let _ = (demux.blocked_on().map(|to| to.tag), demux.get_ref(), demux.hooks_ref());
    let _ = (demux.len(), demux.draining(), demux.recipients().map(|to| to.tag).max());
    let unused = Arc::new(());
    for key in 0..12 {
        demux.contains_key(&Key(key, Arc::clone(&unused)));
    }
    demux.totals()
}

/// A demux and the handles of its parts.
struct Life {
    future: Option<Pin<Box<Running>>>,
    input: StreamHandle<Item>,
    orders: StreamHandle<Orders>,
    sinks: Vec<(SinkHandle<Item>, Arc<AtomicUsize>)>,
    leases: Vec<Lease>,
    items: Arc<()>,
    keys: Arc<()>,
    task_waker: Arc<TaskWaker>,
    /// Remaining runs, after which the scenario is abandoned.
    runs: usize,
}

/// The pseudo-site at which an abandoned scenario ends.
const LEFT: &str = "abandoned";

impl Life {
    fn new(multicast: bool, budget: usize) -> Self {
        let (input, input_handle) = scripted_stream("input");
        let (orders, orders_handle) = scripted_stream("orders");
        let keys = Arc::new(());
        let key: KeyFunction = {
            let keys = Arc::clone(&keys);
            Box::new(move |item: &Item| {
                called("key function");
                Key(item.0 / 100, Arc::clone(&keys))
            })
        };
        let orders = In(orders, ["poll of the orders", "drop of the orders"]);
        let input = In(input, ["poll of the input", "drop of the input"]);
        let maker: Maker = |_| {
            called("or_attach_with");
            None
        };
        let demux = input.demux_by(key, orders).with_hasher(Hashing).or_attach_with(maker);
        let demux = demux.hooks(AllHooks).budget(budget).flush_every(4);
        Self {
            future: Some(Box::pin(if multicast { demux.multicast() } else { demux })),
            input: input_handle,
            orders: orders_handle,
            sinks: Vec::new(),
            leases: Vec::new(),
            items: Arc::new(()),
            keys,
            task_waker: Arc::new(TaskWaker(AtomicUsize::new(0))),
            runs: usize::MAX,
        }
    }

    fn key(&self, n: u32) -> Key {
        Key(n, Arc::clone(&self.keys))
    }

    fn order(&self, order: fn(Key) -> Orders, key: u32) {
        self.orders.push(order(self.key(key)));
    }

    fn attach(
        &mut self,
        key: u32,
        terms: impl FnOnce(Attach<Key, Out>) -> Attach<Key, Out>,
    ) -> SinkHandle<Item> {
        let (sink, handle) = scripted_sink(format!("{key} ({})", self.sinks.len()));
        handle.lenient(); // the polls are not those of a `Task`, so those of doubts are not told apart
        let drops = Arc::new(AtomicUsize::new(0));
        self.sinks.push((handle.clone(), Arc::clone(&drops)));
        self.orders.push(terms(Attach::new(self.key(key), Out(sink, drops))).into());
        handle
    }

    fn feed(&self, items: &[u32]) {
        self.input.extend(items.iter().map(|&n| Item(n, Arc::clone(&self.items))));
    }

    /// Polls until the task parks or the demux completes. Fails with the site that panicked.
    fn run(&mut self, fuse: &mut Fuse) -> Result<(), &'static str> {
        let future = self.future.as_mut().expect("the future was dropped");
        let waker = Waker::from(Arc::clone(&self.task_waker));
        let mut cx = Context::from_waker(&waker);
        let ((), left) = with_fuse(*fuse, || {
            for _ in 0..200 {
                let before = self.task_waker.0.load(SeqCst);
                if future.is_terminated() || future.as_mut().poll(&mut cx).is_ready() {
                    break;
                }
                if self.task_waker.0.load(SeqCst) == before {
                    break;
                }
            }
        })?;
        *fuse = left;
        self.runs -= 1;
        if self.runs == 0 { Err(LEFT) } else { Ok(()) }
    }

    /// Runs the eventful part, up to just before completion. Fails with the site that panicked.
    fn live(&mut self, fuse: &mut Fuse) -> Result<(), &'static str> {
        // All kinds of attachments, and items for each.
        let waits = self.attach(1, |attach| attach.buffer(1));
        let oldest = self.attach(2, |attach| attach.buffer(1).overflow(Overflow::DropOldest));
        let newest = self.attach(3, |attach| attach.overflow(Overflow::DropNewest));
        let evicts = self.attach(4, |attach| attach.buffer(1).overflow(Overflow::Evict));
        let mut lease = Lease::new();
        let leased = self.attach(5, |attach| attach.buffer(2).leased(&mut lease));
        self.attach(6, |attach| attach.limit(1));
        self.attach(7, Attach::catch_all);
        self.feed(&[100, 200, 300, 400, 500, 600, 601, 999]);
        self.run(fuse)?;
        // Second members, or successors with and without a backlog.
        for sink in [&waits, &oldest, &newest, &evicts, &leased] {
            sink.park();
        }
        self.feed(&[101, 201, 202, 203, 301, 401, 402, 501, 502]);
        self.attach(2, |attach| attach.buffer(3));
        self.attach(1, |attach| attach.buffer(1));
        self.attach(1, Attach::keep_existing);
        self.run(fuse)?;
        // The input waits for a sink; orders are applied, and one of them ends the wait.
        let stuck = self.attach(8, |attach| attach.buffer(1));
        stuck.park();
        self.feed(&[800, 801, 802, 102]);
        self.run(fuse)?;
        self.attach(9, |attach| attach);
        self.run(fuse)?;
        self.order(Order::Evict, 8);
        self.run(fuse)?;
        // The input waits again; this time, the sink becomes ready.
        let slow = self.attach(10, |attach| attach.buffer(1));
        slow.park();
        self.feed(&[1000, 1001, 1002, 103]);
        self.run(fuse)?;
        slow.open();
        self.run(fuse)?;
        // All ways to leave: with and without a queue, by a lease, and by each kind of failure.
        self.order(Order::Detach, 1);
        self.order(Order::Detach, 10);
        self.run(fuse)?;
        drop(lease);
        [&waits, &leased].into_iter().for_each(SinkHandle::open);
        self.run(fuse)?;
        for (key, op) in [(20, Op::Ready), (21, Op::Send), (22, Op::Flush), (23, Op::Close)] {
            let fails = self.attach(key, |attach| attach.buffer(1));
            self.run(fuse)?;
            fails.fail_quietly(op);
            self.feed(&[key * 100, key * 100 + 1]);
            self.order(Order::Detach, key);
            self.run(fuse)?;
        }
        // Time-outs of a stalled sink that conflates, and of an idle sink.
        let conflates = self
            .attach(24, |attach| attach.buffer(2).overflow(Overflow::Conflate).stall_timeout(2));
        conflates.park();
        self.attach(25, |attach| attach.idle_timeout(1));
        self.feed(&[2400, 2401, 2402]);
        for _ in 0..2 {
            self.run(fuse)?;
            self.orders.push(Order::Tick);
        }
        self.run(fuse)?;
        // An order that comes with an item, a pending flush, a lease for the end.
        let flushes = self.attach(30, |attach| attach);
        flushes.hold(Op::Flush);
        let mut lease = Lease::new();
        self.attach(31, |attach| attach.leased(&mut lease)).park();
        self.leases.push(lease);
        self.feed(&[3000, 3001, 3100]);
        self.run(fuse)?;
        flushes.release(Op::Flush);
        // The catch-all leaves, and further items are unmatched.
        self.order(Order::Evict, 7);
        self.feed(&[9900]);
        self.run(fuse)
    }

    /// Completes the demux, with a sink that is closed late.
    fn end(&mut self, fuse: &mut Fuse) -> Result<(), &'static str> {
        let late = self.attach(40, |attach| attach.buffer(1));
        late.park();
        late.hold(Op::Close);
        self.feed(&[4000, 4001, 4002]);
        self.input.end();
        self.run(fuse)?;
        self.attach(41, |attach| attach);
        self.run(fuse)?;
        self.sinks.iter().for_each(|(sink, _)| sink.open());
        self.run(fuse)?;
        late.release(Op::Close);
        self.leases.clear();
        self.orders.end();
        self.run(fuse)
    }

    fn calls(&self) -> usize {
        let sinks = self.sinks.iter().map(|(sink, _)| sink.calls().len()).sum::<usize>();
        sinks + self.input.polls() + self.orders.polls()
    }

    fn wake_all(&self) {
        let sinks = self.sinks.iter().filter_map(|(sink, _)| sink.waker());
        sinks.chain(self.orders.waker()).for_each(|waker| waker.wake_by_ref());
    }

    /// Drops the future, and asserts that nothing remains.
    fn leaves_nothing(mut self, site: &str) {
        drop(self.future.take());
        self.assert_gone(site);
    }

    fn assert_gone(mut self, site: &str) {
        let wakes = self.task_waker.0.load(SeqCst);
        self.wake_all();
        self.leases.clear();
        assert_eq!(self.task_waker.0.load(SeqCst), wakes, "{site}: a wake after the drop");
        assert!(self.input.is_dropped() && self.orders.is_dropped(), "{site}");
        let Self { sinks, input, orders, items, keys, task_waker, .. } = self;
        drop(input); // with its remaining items and the waker of the task
        assert_eq!(
            Arc::strong_count(&task_waker),
            1,
            "{site}: sinks or orders keep the task alive"
        );
        drop(orders);
        for (number, (sink, drops)) in sinks.iter().enumerate() {
            assert_eq!(drops.load(SeqCst), 1, "{site}: drops of sink {number}");
            assert_eq!(sink.breaches(), [""; 0], "{site}");
            drop(sink.take_items());
        }
        assert_eq!(Arc::strong_count(&items), 1, "{site}: items leaked");
        assert_eq!(Arc::strong_count(&keys), 1, "{site}: keys leaked");
    }
}

/// Checks after a panic at any place. Each gets the site for its message. Finally the future is
/// dropped: see `Life::leaves_nothing`.
const AFTERWARDS: [fn(&mut Life, &str); 3] =
    [getters_work, another_poll_panics_with_the_reason, wakers_do_nothing];

fn getters_work(life: &mut Life, site: &str) {
    let future = life.future.as_ref().expect("the future was dropped");
    let totals = look(future);
    let gone = totals.unmatched + totals.delivered + totals.discarded + totals.lost;
    let entered = totals.received + totals.copies;
    assert!(gone + totals.queued <= entered, "{site}: more items than were read: {totals:?}");
    assert!(!future.is_terminated(), "{site}");
}

fn another_poll_panics_with_the_reason(life: &mut Life, site: &str) {
    let calls = life.calls();
    for _ in 0..2 {
        let future = life.future.as_mut().expect("the future was dropped");
        let poll = || future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        let panic = try_catch(poll).unwrap_or_else(|| panic!("{site}: another poll did not panic"));
        let message = panic.message;
        assert!(message.contains("`Demux` polled after a panic"), "{site}: {message}");
        assert!(!future.is_terminated(), "{site}");
    }
    assert_eq!(life.calls(), calls, "{site}: the demux called a sink or a stream");
}

fn wakers_do_nothing(life: &mut Life, site: &str) {
    let calls = life.calls();
    life.wake_all();
    assert_eq!(life.calls(), calls, "{site}: the demux called a sink or a stream");
}

// Every call in turn

/// Lets each call to user code panic in turn. Returns the number of calls.
fn sweep(multicast: bool, budget: usize) -> usize {
    for calls in 0.. {
        let mut life = Life::new(multicast, budget);
        let mut fuse = Fuse::After(calls);
        match life.live(&mut fuse).and_then(|()| life.end(&mut fuse)) {
            Ok(()) => {
                let future = life.future.as_ref().expect("the future was dropped");
                assert!(future.is_terminated(), "the demux did not complete: {:?}", look(future));
                life.leaves_nothing("no panic");
                return calls;
            }
            Err(site) => {
                let at = format!("{site}, call {calls}");
                for check in AFTERWARDS {
                    check(&mut life, &at);
                }
                life.leaves_nothing(&at);
            }
        }
    }
    unreachable!()
}

/// While the table makes room by rehashing in place, a panic of `Hash` loses slots.
#[test]
fn getters_work_after_the_sink_that_the_input_waits_for_is_lost_with_its_hash() {
    const PARKED: u32 = 50;
    const EVICTED: u32 = 62;
    thread_local! {
        /// The call that panics, if it is positive.
        static COUNTDOWN: Cell<u32> = const { Cell::new(0) };
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Number(u32);

    impl Hash for Number {
        fn hash<H: Hasher>(&self, state: &mut H) {
            COUNTDOWN.set(COUNTDOWN.get().saturating_sub(1));
            assert!(COUNTDOWN.get() != 1, "the hash");
            self.0.hash(state);
        }
    }

    let (input, items) = scripted_stream("input");
    let (orders, orders_handle) = scripted_stream("orders");
    let mut future = Box::pin(input.demux_by(|&number: &Number| number, orders));
    let mut cx = Context::from_waker(Waker::noop());
    let mut attach = |key| {
        let (sink, handle) = scripted_sink(key);
        handle.park();
        orders_handle.push(Order::from((Number(key), sink)));
    };
    (0..PARKED + EVICTED).for_each(&mut attach);
    (PARKED..PARKED + EVICTED).for_each(|key| orders_handle.push(Order::Evict(Number(key))));
    items.push(Number(7));
    assert!(future.as_mut().poll(&mut cx).is_pending());
    assert_eq!(future.blocked_on().map(|to| to.key.0), Some(7));

    for key in 1_000.. {
        attach(key);
        // The key itself is hashed a few times. When the table makes room, so are all others.
        COUNTDOWN.set(10);
        let panicked = try_catch(|| future.as_mut().poll(&mut cx).is_pending()).is_some();
        COUNTDOWN.set(0);
        if panicked {
            break;
        }
        orders_handle.push(Order::Evict(Number(key)));
        assert!(future.as_mut().poll(&mut cx).is_pending());
    }
    assert!(future.recipients().count() < PARKED as usize, "no slot was lost");
    assert!(future.recipients().all(|to| to.key.0 != 7), "the sink is still there");
    assert_eq!(future.blocked_on().map(|to| to.key.0), None);
    assert!(format!("{future:?}").contains("Demux"));
    assert_eq!((future.totals().received, future.queue_len(&Number(7))), (1, 0));
}

/// The sites that have panicked on this thread since the last call.
fn panicked() -> BTreeSet<&'static str> {
    PANICKED.take()
}

/// All sites, except the drops of the streams and those of a group.
const SITES: &[&str] = &[
    "key function",
    "build of a hasher",
    "hash of a key",
    "comparison of keys",
    "drop of a key",
    "drop of an item",
    "poll of the input",
    "poll of the orders",
    "drop of the orders",
    "poll_ready",
    "start_send",
    "poll_flush",
    "poll_close",
    "drop of a sink",
    "or_attach_with",
    "admit",
    "attached",
    "detached",
    "unmatched",
    "discarded",
    "key_attached",
    "key_detached",
    "supersedes",
    "blocked",
    "unblocked",
];

#[test]
fn panic_at_each_call_to_user_code() {
    let calls = sweep(false, 128);
    let panicked = panicked();
    let missed = SITES.iter().filter(|site| !panicked.contains(*site)).collect::<Vec<_>>();
    assert!(missed.is_empty(), "none of {calls} calls was at {missed:?}");
}

#[test]
fn panic_at_each_call_to_user_code_of_a_group() {
    sweep(true, 128);
    assert!(panicked().contains("clone of an item"));
}

#[test]
fn panic_at_each_call_to_user_code_in_short_turns() {
    for multicast in [false, true] {
        sweep(multicast, 2);
    }
    assert!(panicked().contains("wake of the task"));
}

/// The demux is dropped in every state in which it waits. If the drop of a value panics, the
/// remaining values are still dropped.
#[test]
fn panic_at_each_call_to_user_code_while_the_future_is_dropped() {
    for multicast in [false, true] {
        let mut runs = 1..;
        while runs.next().is_some_and(|runs| panics_while_dropped(multicast, runs)) {}
        assert!(runs.start > 20, "the scenario has too few runs: {runs:?}");
    }
    let panicked = panicked();
    for site in ["drop of a sink", "drop of a key", "drop of an item", "drop of the input"] {
        assert!(panicked.contains(site), "no call was at {site}");
    }
}

/// Returns `false` if the scenario has fewer runs.
fn panics_while_dropped(multicast: bool, runs: usize) -> bool {
    for calls in 0.. {
        let mut life = Life { runs, ..Life::new(multicast, 128) };
        let mut never = Fuse::Out;
        if life.live(&mut never).and_then(|()| life.end(&mut never)).is_ok() {
            return false;
        }
        let future = life.future.take();
        let dropped = with_fuse(Fuse::After(calls), || drop(future));
        life.assert_gone(&format!("asleep after {runs} runs, call {calls} of the drop"));
        if dropped.is_ok() {
            return true;
        }
    }
    unreachable!()
}

// Panics of the demux itself

/// Polls a demux three times, with a hook that panics for each item. Returns the messages of the
/// panics.
fn panics_of_three_polls(items: &'static [u32]) -> Vec<String> {
    let orders = stream::empty::<(u32, sink::Drain<&u32>)>();
    let hook = |item| panic!("unmatched {item}");
    let mut demux = Box::pin(stream::iter(items).demux_by(|&&n| n, orders).on_unmatched(hook));
    let poll = |_| {
        let poll = || demux.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        catch_unwind(AssertUnwindSafe(poll)).err().map(|panic| message_of(&*panic))
    };
    (0..3).filter_map(poll).collect()
}

#[test]
fn polled_again_after_a_panic_and_after_completion() {
    let after_panic = "`Demux` polled after a panic in a key function, hook, sink or stream";
    let after_completion = "`Demux` polled after completion";
    assert_eq!(panics_of_three_polls(&[3]), ["unmatched 3", after_panic, after_panic]);
    assert_eq!(panics_of_three_polls(&[]), [after_completion, after_completion]);
}

/// A key whose hash changes, which violates the contract of `Hash`.
#[derive(PartialEq, Eq)]
struct Fickle(Rc<Cell<u64>>);

impl Hash for Fickle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.get().hash(state);
    }
}

/// Attaches three sinks under one key, and detaches each of the first two before the next is
/// attached, so that they leave together. If `fickle` is set, the hash of the key changes before
/// they are closed.
fn three_under_a_key(fickle: bool) -> Totals {
    let (input, items) = scripted_stream::<u32>("input");
    let (orders_in, orders) = scripted_stream("orders");
    let hash = Rc::new(Cell::new(1));
    let key = || Fickle(Rc::clone(&hash));
    let of_items = Rc::new(Cell::new(0));
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let demux = input.demux_by(move |_| Fickle(Rc::clone(&of_items)), orders_in);
    let mut task = Task::new(demux.with_hasher(hasher).multicast());
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
    let Poll::Ready(totals) = task.run() else { panic!("the demux did not complete") };
    assert!(third_handle.is_dropped());
    totals
}

#[test]
fn each_sink_is_closed_even_if_the_hash_of_its_key_has_changed() {
    for fickle in [false, true] {
        let totals = three_under_a_key(fickle);
        assert_eq!((totals.attached, totals.detached), (3, 3));
    }
}
