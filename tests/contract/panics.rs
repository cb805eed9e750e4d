//! A panic in foreign code, wherever that is called: an eventful life of a demux is run over and over,
//! and each time the next call to foreign code panics, until one run comes to its end without.
//!
//! Guards what the crate page says of panics, and 11: the panic comes out as it is; looking in still
//! works; another poll panics and says why; wakers and leases do nothing; the future can be dropped, and
//! with it each sink once, each item, each key, both streams and the waker of the task.
//! `reentrancy` looks at the same for single panics, closely.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::panic::{self, AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Once};
use std::task::{Context, Poll, Wake, Waker};

use crate::common::{
    Broken, Op, ScriptedSink, ScriptedStream, SinkHandle, StreamHandle, scripted_sink,
    scripted_stream,
};
use futures::future::FusedFuture;
use futures::{Sink, Stream};
use stream_demux::{
    Attach, Demux, DemuxStreamExt, Detached, Discarded, Hooks, Lease, Order, Overflow, Recipient,
};

thread_local! {
    /// Calls to foreign code until one panics; `None`: they are not counted.
    static FUSE: Cell<Option<usize>> = const { Cell::new(None) };
    static STRUCK: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
}

/// Foreign code is called here.
fn called(site: &'static str) {
    let Some(left) = FUSE.get() else { return };
    if left > 0 {
        return FUSE.set(Some(left - 1));
    }
    FUSE.set(None);
    STRUCK.with_borrow_mut(|struck| struck.insert(site));
    // Unlike `panic!`, it does not print.
    resume_unwind(Box::new(site));
}

/// Lights the fuse while `f` runs. What it panicked with.
fn with_fuse<R>(calls: usize, f: impl FnOnce() -> R) -> Result<R, &'static str> {
    FUSE.set(Some(calls));
    let done = catch_unwind(AssertUnwindSafe(f));
    FUSE.set(None);
    done.map_err(|panic| *panic.downcast::<&'static str>().expect("it comes out as it went in"))
}

/// What `f` panics with, which is not printed.
fn panic_of<R>(f: impl FnOnce() -> R) -> String {
    static QUIET: Once = Once::new();
    thread_local!(static EXPECTED: Cell<bool> = const { Cell::new(false) });
    QUIET.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !EXPECTED.get() {
                usual(info);
            }
        }));
    });
    EXPECTED.set(true);
    let done = catch_unwind(AssertUnwindSafe(f));
    EXPECTED.set(false);
    let panic: Box<dyn Any + Send> = done.err().expect("no panic");
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).expect("a panic with words")
}

/// Its number, and what counts how many there are.
#[derive(Debug)]
struct Key(u32, #[expect(dead_code, reason = "it counts")] Arc<()>);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        called("hash of a key");
        // All collide, so that they are compared as well.
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

/// A scripted sink, and how often it was dropped.
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

struct Listener;

impl<K, V, E> Hooks<K, V, E> for Listener {
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
    fn blocked(&mut self, _: Recipient<'_, K>) {
        called("blocked");
    }
    fn unblocked(&mut self, _: Recipient<'_, K>) {
        called("unblocked");
    }
}

/// The waker of the task: told of each wake, and a reason to look for leaks.
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
        called("wake of the task");
    }
}

type Deterministic = BuildHasherDefault<DefaultHasher>;
type Orders = Order<Key, Out>;
type Running = Pin<Box<dyn RunningDemux>>;

/// A demux whose key function has no name.
trait RunningDemux: Future<Output = stream_demux::Totals> {
    /// Looks in by all ways there are; how many receive.
    fn look(&self) -> (stream_demux::Totals, usize);
    fn is_over(&self) -> bool;
}

impl<F> RunningDemux for Demux<In<Item>, F, In<Orders>, Listener, Deterministic>
where
    Self: FusedFuture<Output = stream_demux::Totals>,
{
    fn look(&self) -> (stream_demux::Totals, usize) {
        assert!(format!("{self:?}").starts_with("Demux"));
        let _ = (self.blocked_on().map(|to| to.tag), self.get_ref());
        let nobody = Arc::new(());
        for key in 0..12 {
            self.contains_key(&Key(key, Arc::clone(&nobody)));
        }
        (self.totals(), self.len())
    }
    fn is_over(&self) -> bool {
        self.is_terminated()
    }
}

/// One demux, and all that is known of it outside.
struct Life {
    future: Option<Running>,
    input: StreamHandle<Item>,
    orders: StreamHandle<Orders>,
    sinks: Vec<(SinkHandle<Item>, Arc<AtomicUsize>)>,
    leases: Vec<Lease>,
    items: Arc<()>,
    keys: Arc<()>,
    bell: Arc<Bell>,
    /// How often it is still run, before it is left where it is.
    runs: usize,
}

/// What a life ends with that is left where it is.
const LEFT: &str = "left asleep";

impl Life {
    fn new(multicast: bool, budget: usize) -> Self {
        let (input, input_handle) = scripted_stream("input");
        let (orders, orders_handle) = scripted_stream("orders");
        let keys = Arc::new(());
        let key = {
            let keys = Arc::clone(&keys);
            move |item: &Item| {
                called("key function");
                Key(item.0 / 100, Arc::clone(&keys))
            }
        };
        let orders = In(orders, ["poll of the orders", "drop of the orders"]);
        let demux = In(input, ["poll of the input", "drop of the input"])
            .demux_by(key, orders)
            .budget(budget)
            .flush_every(4)
            // The same in each run, so that no call is passed over.
            .with_hasher(Deterministic::default())
            .hooks(Listener);
        let demux = if multicast { demux.multicast() } else { demux };
        Self {
            future: Some(Box::pin(demux)),
            input: input_handle,
            orders: orders_handle,
            sinks: Vec::new(),
            leases: Vec::new(),
            items: Arc::new(()),
            keys,
            bell: Arc::new(Bell(AtomicUsize::new(0))),
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
        let drops = Arc::new(AtomicUsize::new(0));
        self.sinks.push((handle.clone(), Arc::clone(&drops)));
        self.orders.push(terms(Attach::new(self.key(key), Out(sink, drops))).into());
        handle
    }

    fn feed(&self, items: &[u32]) {
        self.input.extend(items.iter().map(|&n| Item(n, Arc::clone(&self.items))));
    }

    /// Polls until it sleeps or is over. The panic of the fuse, if it went off.
    fn run(&mut self, fuse: &mut usize) -> Result<(), &'static str> {
        let future = self.future.as_mut().expect("not dropped yet");
        let waker = Waker::from(Arc::clone(&self.bell));
        let mut cx = Context::from_waker(&waker);
        let polls = with_fuse(*fuse, || {
            for _ in 0..200 {
                let before = self.bell.0.load(SeqCst);
                if future.is_over() || future.as_mut().poll(&mut cx).is_ready() {
                    break;
                }
                if self.bell.0.load(SeqCst) == before {
                    break;
                }
            }
            FUSE.get().expect("it was lit")
        });
        *fuse = polls?;
        self.runs -= 1;
        if self.runs == 0 { Err(LEFT) } else { Ok(()) }
    }

    /// The eventful part, up to where it is about to end. Ends early if the fuse goes off.
    fn live(&mut self, fuse: &mut usize) -> Result<(), &'static str> {
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
        // The input waits, orders go on, and one of them frees it.
        let stuck = self.attach(8, |attach| attach.buffer(1));
        stuck.park();
        self.feed(&[800, 801, 802, 102]);
        self.run(fuse)?;
        self.attach(9, |attach| attach);
        self.run(fuse)?;
        self.order(Order::Evict, 8);
        self.run(fuse)?;
        // It waits again, and this time the sink comes round.
        let slow = self.attach(10, |attach| attach.buffer(1));
        slow.park();
        self.feed(&[1000, 1001, 1002, 103]);
        self.run(fuse)?;
        slow.open();
        self.run(fuse)?;
        // Leaving in each way: with a queue, without, by a lease, and by each kind of failure.
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
        // An order that comes with an item, a pending flush, a lease for the end.
        let flushes = self.attach(30, |attach| attach);
        flushes.hold(Op::Flush);
        let mut lease = Lease::new();
        self.attach(31, |attach| attach.leased(&mut lease)).park();
        self.leases.push(lease);
        self.feed(&[3000, 3001, 3100]);
        self.run(fuse)?;
        flushes.release(Op::Flush);
        // Nobody catches any more what nobody wants.
        self.order(Order::Evict, 7);
        self.feed(&[9900]);
        self.run(fuse)
    }

    /// The end, with a sink that is closed late.
    fn end(&mut self, fuse: &mut usize) -> Result<(), &'static str> {
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

    /// It has panicked, and can do nothing but be dropped.
    fn assert_poisoned(&mut self, site: &str) {
        let future = self.future.as_mut().expect("not dropped yet");
        let (totals, _) = future.look();
        let gone = totals.unmatched + totals.delivered + totals.discarded + totals.lost;
        let came = totals.received + totals.copies;
        assert!(gone + totals.queued <= came, "{site}: more than there was: {totals:?}");
        let calls = self.calls();
        for _ in 0..2 {
            let future = self.future.as_mut().expect("not dropped yet");
            let said = panic_of(|| future.as_mut().poll(&mut Context::from_waker(Waker::noop())));
            assert!(said.contains("`Demux` polled after a panic"), "{site}: unclear: {said}");
            assert!(!future.is_over(), "{site}");
        }
        self.wake_all();
        assert_eq!(self.calls(), calls, "{site}: it is not alive");
    }

    /// It is dropped, by one who does not panic, and leaves nothing.
    fn leaves_nothing(mut self, site: &str) {
        drop(self.future.take());
        self.assert_gone(site);
    }

    fn assert_gone(mut self, site: &str) {
        let wakes = self.bell.0.load(SeqCst);
        self.wake_all();
        self.leases.clear();
        assert_eq!(self.bell.0.load(SeqCst), wakes, "{site}: a wake after the drop");
        assert!(self.input.is_dropped() && self.orders.is_dropped(), "{site}");
        let Self { sinks, input, orders, items, keys, bell, .. } = self;
        drop(input); // with what it had not given yet, and the waker of the task
        assert_eq!(Arc::strong_count(&bell), 1, "{site}: sinks or orders keep the task alive");
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

/// Lets each call to foreign code panic in turn. How many there are.
fn sweep(multicast: bool, budget: usize) -> usize {
    for calls in 0.. {
        let mut life = Life::new(multicast, budget);
        let mut fuse = calls;
        match life.live(&mut fuse).and_then(|()| life.end(&mut fuse)) {
            Ok(()) => {
                let future = life.future.as_ref().expect("not dropped yet");
                assert!(future.is_over(), "it did not end: {:?}", future.look());
                life.leaves_nothing("no panic");
                return calls;
            }
            Err(site) => {
                let at = format!("{site}, call {calls}");
                // The task is woken last thing: then nothing is broken, and it is as alive as before.
                if site != "wake of the task" {
                    life.assert_poisoned(&at);
                }
                life.leaves_nothing(&at);
            }
        }
    }
    unreachable!()
}

fn struck() -> Vec<&'static str> {
    STRUCK.take().into_iter().collect()
}

/// What foreign code there is, but for the clones of items, in the order of the alphabet.
const SITES: [&str; 20] = [
    "admit",
    "attached",
    "blocked",
    "comparison of keys",
    "detached",
    "discarded",
    "drop of a key",
    "drop of a sink",
    "drop of an item",
    "drop of the orders",
    "hash of a key",
    "key function",
    "poll of the input",
    "poll of the orders",
    "poll_close",
    "poll_flush",
    "poll_ready",
    "start_send",
    "unblocked",
    "unmatched",
];

#[test]
fn wherever_it_strikes() {
    let calls = sweep(false, 128);
    let struck = struck();
    let missed = SITES.iter().filter(|site| !struck.contains(site)).collect::<Vec<_>>();
    assert!(missed.is_empty(), "never struck in {calls} calls: {missed:?}");
}

#[test]
fn wherever_it_strikes_a_group() {
    let calls = sweep(true, 128);
    assert!(struck().contains(&"clone of an item"), "never struck in {calls} calls");
}

#[test]
fn wherever_it_strikes_in_short_turns() {
    for multicast in [false, true] {
        sweep(multicast, 2);
    }
    assert!(struck().contains(&"wake of the task"));
}

/// Where foreign code panics while the future is dropped, wherever it sleeps then. Whoever comes after
/// the one that panics is dropped all the same.
#[test]
fn wherever_it_strikes_as_the_future_is_dropped() {
    for multicast in [false, true] {
        let mut runs = 1..;
        while runs.next().is_some_and(|runs| strikes_as_it_is_dropped(multicast, runs)) {}
        assert!(runs.start > 20, "the life is shorter than it was meant to be: {runs:?}");
    }
    let struck = struck();
    for site in ["drop of a sink", "drop of a key", "drop of an item", "drop of the input"] {
        assert!(struck.contains(&site), "never struck: {site}");
    }
}

/// False if a life is not run so often.
fn strikes_as_it_is_dropped(multicast: bool, runs: usize) -> bool {
    for calls in 0.. {
        let mut life = Life { runs, ..Life::new(multicast, 128) };
        let mut never = usize::MAX;
        if life.live(&mut never).and_then(|()| life.end(&mut never)).is_ok() {
            return false;
        }
        let future = life.future.take();
        let dropped = with_fuse(calls, || drop(future));
        life.assert_gone(&format!("asleep after {runs} runs, call {calls} of the drop"));
        if dropped.is_ok() {
            return true;
        }
    }
    unreachable!()
}

#[test]
fn a_task_that_panics_hurts_nobody_else() {
    use futures::channel::mpsc;
    use futures::{SinkExt, StreamExt};

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let (mut healthy_in, healthy) = mpsc::channel(1);
        let (healthy_orders, orders) = mpsc::unbounded();
        let healthy = tokio::spawn(healthy.demux_by(|&n| n, orders));
        let (mut items, input) = mpsc::channel::<i32>(1);
        let (send, orders) = mpsc::unbounded();
        let (sink, received) = mpsc::channel(8);
        let mut lease = Lease::new();
        send.unbounded_send(Attach::new(1, sink).leased(&mut lease)).unwrap();
        let demux = input.demux_by(
            |&n| {
                if n == 3 {
                    resume_unwind(Box::new("boom"));
                }
                n.min(1)
            },
            orders,
        );
        // Its items come from, and go to, tasks of their own.
        let task = tokio::spawn(demux);
        let producer = tokio::spawn(async move {
            let mut last = 0;
            while items.send(last + 1).await.is_ok() {
                last += 1;
            }
            last
        });
        let consumer = tokio::spawn(received.collect::<Vec<i32>>());
        assert!(task.await.unwrap_err().is_panic());
        assert_eq!(consumer.await.unwrap(), [1, 2], "what was sent before, and the end");
        assert!(producer.await.unwrap() >= 3, "it was told");
        drop(lease);
        assert!(send.is_closed());

        let (sink, received) = mpsc::channel::<i32>(8);
        healthy_orders.unbounded_send((3, sink)).unwrap();
        healthy_in.send(3).await.unwrap();
        drop(healthy_in);
        assert_eq!(received.collect::<Vec<_>>().await, [3]);
        assert_eq!(healthy.await.unwrap().delivered, 1);
    });
}
