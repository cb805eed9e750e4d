//! Target `threads`: the demux runs in one thread, while three others use it.
//!
//! A script has rounds. In each, three threads send items and orders, take and drop leases, and
//! close, open, wake and fail sinks. Each thread runs its part of the script, while the demux is
//! polled whenever its waker has fired. When the threads have finished and the task is parked, no
//! wake is in progress, so work that is left undone means a lost wake. No clock is needed. The
//! target asserts:
//!
//! 1. after each poll, `received + copies = unmatched + delivered + discarded + lost + queued`;
//! 2. when the task is parked: orders are read; the input is read unless a closed sink holds it;
//!    nothing is queued if all sinks are open; each sink was flushed; sinks whose lease was dropped
//!    are dropped;
//! 3. each item and copy has one fate; a sink receives items in the order of the input;
//! 4. the contract of `Sink`; each attachment begins once and ends once;
//! 5. an item does not overtake an order that its thread has sent before it;
//! 6. the demux completes once all sinks are open, and leaves nothing behind.
//!
//! Interleavings differ from run to run: a script that failed may have to be played many times.

use alloc::sync::Arc;
use std::fmt;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use sink_test::{
    Broken, Op, ScriptedSink, SinkHandle, StreamHandle, scripted_sink, scripted_stream,
};
use stream_demux::{
    Attach, Demux, DemuxStreamExt, Detached, Discarded, Hooks, Lease, Order, Overflow, Recipient,
    Totals,
};

use crate::letters::Script;
use crate::lock;

const THREADS: usize = 3;
const KEYS: u8 = 4;
const MAX_STEPS: usize = 300;
const MAX_ROUNDS: usize = 6;
const MAX_SINKS: usize = 64;
const MAX_POLLS: usize = 100_000;

/// Plays a script. It begins with the budget, the flush window, and whether a key may have several
/// sinks. Steps follow: the number of a thread and what it does, or `|`, the end of a round.
///
/// # Panics
///
/// Panics if one of these assertions fails.
pub fn run(script: &[u8]) {
    let mut script = Script::new(script);
    let budget = [128, 1, 2, 5, 16][script.below(5)];
    let window = [16_384, 1, 7][script.below(3)];
    let multicast = script.flag();
    let (input, items) = scripted_stream("input");
    let (orders, orders_handle) = scripted_stream("orders");
    let world = Arc::new(World::new(items, orders_handle));
    let mut demux = input
        .demux_by(|item: &Item| item.key, orders)
        .hooks(CountingHooks(Arc::clone(&world)))
        .budget(budget)
        .flush_every(window);
    if multicast {
        demux = demux.multicast();
    }
    let mut demux = Some(Box::pin(demux));
    let mut leases: [Option<Lease>; THREADS] = Default::default();
    let mut runner = Runner::new(budget);

    let mut steps = 0;
    for _ in 0..MAX_ROUNDS {
        let mut thread_steps: [Vec<Step>; THREADS] = Default::default();
        while let Some(letter) = script.letter(b"012012012|").filter(|_| steps < MAX_STEPS) {
            steps += 1;
            match letter {
                b'|' => break,
                thread => thread_steps[usize::from(thread - b'0')].push(Step::read(&mut script)),
            }
        }
        if thread_steps.iter().all(Vec::is_empty) {
            break;
        }
        let actions = thread_steps.into_iter().zip(&mut leases).map(|(steps, lease)| {
            let world = Arc::clone(&world);
            move || steps.into_iter().for_each(|step| step.run(&world, lease))
        });
        assert!(
            runner.run_round(&mut demux, actions, Demux::totals).is_none(),
            "completed before the input ended"
        );
        world.check_parked(demux.as_ref().expect("the demux has not completed").totals());
    }

    // Three threads at once open all sinks, drop a lease and end the input.
    let [first, ..] = &mut leases;
    let lease = first.take();
    let actions: [Box<dyn FnOnce() + Send>; THREADS] = [
        Box::new(|| lock(&world.sinks).clone().iter().for_each(|sink| sink.release())),
        Box::new(|| drop(lease)),
        Box::new(|| world.items.end()),
    ];
    let totals = runner.run_round(&mut demux, actions.into_iter(), Demux::totals);
    let totals =
        totals.expect("the demux completes after the input has ended and all sinks are open");
    world.check_end(totals);
    assert_eq!((world.items.left(), world.items.taken() as u64), (0, totals.received));
    drop(demux);
    drop(leases);
    for sink in lock(&world.sinks).iter() {
        sink.wake();
        assert!(sink.handle.is_dropped(), "a sink outlives the demux");
        drop(sink.handle.take_items()); // which may hold the handle
    }
    assert!(!runner.task_waker.0.load(SeqCst), "the task was woken after the demux was dropped");
    // With late orders, which were not read, and the wakers that the streams have kept.
    drop(Arc::into_inner(world).expect("a callback or sink outlives the demux"));
    runner.end();
}

// ---- the script ---------------------------------------------------------------------------------

/// A step of a thread: a letter and a number of one byte, even if it is not used, as in `q0`.
#[derive(Clone, Copy)]
enum Step {
    /// `i`: sends an item with a key.
    Item(u8),
    /// `x`: sends five items.
    Items(u8),
    /// `a`: attaches a sink with settings; `l`: also with this thread's lease.
    Attach {
        key: u8,
        settings: usize,
        leased: bool,
    },
    /// `b`: attaches a sink with a lease that is dropped or detached some spins later.
    AttachBriefly {
        key: u8,
        detached: bool,
        spins: usize,
    },
    /// `s`: attaches a sink under a key of its own, and sends it an item.
    AttachAndSend,
    /// `d`, `e`: detaches or evicts a key.
    Detach(u8),
    Evict(u8),
    /// `q`: drops this thread's lease; `m`: detaches it.
    DropLease,
    DetachLease,
    /// `c`, `o`: makes a sink pending or ready. Sinks are counted from the newest, 0.
    Close(usize),
    Open(usize),
    /// `h`: makes flush and close of a sink pending.
    Hold(usize),
    /// `w`: wakes a sink spuriously; `f`: makes it fail.
    Wake(usize),
    Fail(usize),
    /// `y`: spins.
    Spin(usize),
}

impl Step {
    fn read(script: &mut Script<'_>) -> Self {
        let letter = script.letter(b"iixxalabdeqmcowhfyos").unwrap_or(b'y');
        let arg = script.below(64);
        let key = u8::try_from(arg).unwrap_or(0) % KEYS;
        match letter {
            b'i' => Self::Item(key),
            b'x' => Self::Items(key),
            b'a' => Self::Attach { key, settings: script.below(32), leased: false },
            b'l' => Self::Attach { key, settings: script.below(32), leased: true },
            b'b' => Self::AttachBriefly { key, detached: arg & 32 != 0, spins: script.below(256) },
            b's' => Self::AttachAndSend,
            b'd' => Self::Detach(key),
            b'e' => Self::Evict(key),
            b'q' => Self::DropLease,
            b'm' => Self::DetachLease,
            b'c' => Self::Close(arg),
            b'o' => Self::Open(arg),
            b'h' => Self::Hold(arg),
            b'w' => Self::Wake(arg),
            b'f' => Self::Fail(arg),
            _ => Self::Spin(arg),
        }
    }

    fn run(self, world: &Arc<World>, lease: &mut Option<Lease>) {
        match self {
            Self::Item(key) => world.send(key),
            Self::Items(key) => (0..5).for_each(|_| world.send(key)),
            Self::Attach { key, settings, leased } => {
                let lease = leased.then(|| lease.get_or_insert_with(Lease::new));
                drop(world.attach(key, settings, lease));
            }
            Self::AttachBriefly { key, detached, spins } => {
                let mut lease = Lease::new();
                let sink = world.attach(key, 0, Some(&mut lease));
                spin(spins);
                if detached {
                    lease.detach();
                } else {
                    drop(lease);
                }
                if let Some(sink) = sink {
                    let end = if detached { &sink.lease_detached } else { &sink.lease_dropped };
                    end.store(true, SeqCst);
                }
            }
            Self::AttachAndSend => {
                let key = KEYS + world.own_keys.fetch_add(1, SeqCst) % 128; // more than sinks
                let sink = world.attach(key, 0, None).map(|sink| sink.handle.clone());
                world.send_with(key, sink);
            }
            Self::Detach(key) => world.orders.push(Order::Detach(key)),
            Self::Evict(key) => world.orders.push(Order::Evict(key)),
            Self::DropLease => drop(lease.take()),
            Self::DetachLease => drop(lease.take().map(Lease::detach)),
            Self::Close(nth) => world.pick(nth, |sink| sink.handle.park()),
            Self::Open(nth) => world.pick(nth, Attached::release),
            Self::Hold(nth) => world.pick(nth, |sink| {
                [Op::Flush, Op::Close].into_iter().for_each(|op| sink.handle.hold(op));
                sink.is_held.store(true, SeqCst);
            }),
            Self::Wake(nth) => world.pick(nth, Attached::wake),
            Self::Fail(nth) => world.pick(nth, |sink| {
                let all = [Op::Ready, Op::Send, Op::Flush, Op::Close];
                all.into_iter().for_each(|op| sink.handle.fail_quietly(op));
                sink.wake();
            }),
            Self::Spin(spins) => spin(spins * 4),
        }
    }
}

/// Spins for some hundred nanoseconds, so that other interleavings occur.
fn spin(spins: usize) {
    for _ in 0..spins {
        std::hint::spin_loop();
    }
}

// ---- the world ----------------------------------------------------------------------------------

type Orders = Order<u8, ScriptedSink<Item>>;

#[derive(Clone)]
struct Item {
    seq: usize,
    key: u8,
    /// Attached under this key by the thread that sent the item, and by no other.
    sink: Option<SinkHandle<Item>>,
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.seq.fmt(f)
    }
}

/// A sink, and what the threads did with it.
struct Attached {
    handle: SinkHandle<Item>,
    /// Its flush and its close are pending.
    is_held: AtomicBool,
    /// The end of its only lease.
    lease_dropped: AtomicBool,
    lease_detached: AtomicBool,
}

impl Attached {
    /// Makes the sink ready, and completes a pending flush or close.
    fn release(&self) {
        self.is_held.store(false, SeqCst);
        [Op::Ready, Op::Flush, Op::Close].into_iter().for_each(|op| self.handle.release(op));
    }

    /// Fires the waker that the sink was polled with last.
    fn wake(&self) {
        self.handle.wake();
    }

    fn is_open(&self) -> bool {
        !self.handle.is_parked()
    }
}

struct World {
    /// How many keys of `AttachAndSend` are in use.
    own_keys: AtomicU8,
    items: StreamHandle<Item>,
    /// How many items were sent. Locked while one is sent, so that the numbers are in order.
    sent: Mutex<usize>,
    orders: StreamHandle<Orders>,
    sinks: Mutex<Vec<Arc<Attached>>>,
    /// The items that hooks were given.
    dropped: Mutex<Vec<usize>>,
    attached: AtomicUsize,
    detached: AtomicUsize,
    unmatched: AtomicUsize,
    discarded: AtomicUsize,
    blocked: AtomicUsize,
}

impl World {
    fn new(items: StreamHandle<Item>, orders: StreamHandle<Orders>) -> Self {
        Self {
            own_keys: AtomicU8::default(),
            items,
            sent: Mutex::default(),
            orders,
            sinks: Mutex::default(),
            dropped: Mutex::default(),
            attached: AtomicUsize::default(),
            detached: AtomicUsize::default(),
            unmatched: AtomicUsize::default(),
            discarded: AtomicUsize::default(),
            blocked: AtomicUsize::default(),
        }
    }

    fn send(&self, key: u8) {
        self.send_with(key, None);
    }

    fn send_with(&self, key: u8, sink: Option<SinkHandle<Item>>) {
        let mut sent = lock(&self.sent);
        self.items.push(Item { seq: *sent, key, sink });
        *sent += 1;
    }

    fn attach(&self, key: u8, settings: usize, lease: Option<&mut Lease>) -> Option<Arc<Attached>> {
        let mut sinks = lock(&self.sinks);
        if sinks.len() == MAX_SINKS {
            return None;
        }
        let (sink, handle) = scripted_sink(sinks.len());
        if settings & 16 != 0 {
            handle.park();
        }
        let attached = Arc::new(Attached {
            handle,
            is_held: AtomicBool::new(false),
            lease_dropped: AtomicBool::new(false),
            lease_detached: AtomicBool::new(false),
        });
        sinks.push(Arc::clone(&attached));
        drop(sinks);
        let mut attach = Attach::new(key, sink);
        attach = match settings & 7 {
            1 => attach.buffer(2),
            2 => attach.buffer(3).overflow(Overflow::DropOldest),
            3 => attach.overflow(Overflow::DropNewest),
            4 => attach.buffer(1).overflow(Overflow::Evict),
            5 => attach.limit(2),
            6 => attach.catch_all(),
            7 => attach.keep_existing(),
            _ => attach,
        };
        if let Some(lease) = lease {
            attach = attach.leased(lease);
        }
        self.orders.push(attach.into());
        Some(attached)
    }

    fn pick(&self, nth: usize, action: impl FnOnce(&Attached)) {
        let sinks = lock(&self.sinks);
        if let Some(last) = sinks.len().checked_sub(1) {
            let sink = Arc::clone(&sinks[last - nth % sinks.len()]);
            drop(sinks);
            action(&sink);
        }
    }

    /// Checks the totals against the items and attachments that were counted here. Returns the
    /// number of items that have no fate.
    fn check(&self, totals: Totals) -> u64 {
        add_up(totals);
        let Totals { received, copies, unmatched, delivered, discarded, .. } = totals;
        let seen = [&self.unmatched, &self.discarded, &self.attached, &self.detached]
            .map(|count| count.load(SeqCst) as u64);
        assert_eq!(seen, [unmatched, discarded, totals.attached, totals.detached]);
        let mut all = lock(&self.dropped).clone();
        let mut sent = 0;
        for sink in lock(&self.sinks).iter() {
            let items: Vec<_> = sink.handle.items().iter().map(|item| item.seq).collect();
            assert!(items.is_sorted_by(|a, b| a < b), "the items are not in order: {items:?}");
            sent += items.len() as u64;
            all.extend(items);
        }
        assert_eq!(sent, delivered, "items that sinks received");
        let fates = all.len();
        all.sort_unstable();
        all.dedup();
        assert!(copies > 0 || all.len() == fates, "an item has two fates");
        received - all.len() as u64
    }

    /// Checks what must hold when the task is parked and no thread is active.
    fn check_parked(&self, totals: Totals) {
        self.check(totals);
        assert!(self.orders.left() == 0, "the task is parked although orders are unread");
        let sinks = lock(&self.sinks);
        let present = || sinks.iter().filter(|sink| !sink.handle.is_dropped());
        let is_any_closed = present().any(|sink| !sink.is_open() || sink.is_held.load(SeqCst));
        let unread_items = self.items.left();
        if self.blocked.load(SeqCst) == 0 {
            assert_eq!(unread_items, 0, "the task is parked although items are unread");
        }
        if !is_any_closed {
            assert_eq!(self.blocked.load(SeqCst), 0, "all sinks are open");
            assert_eq!(totals.queued, 0, "all sinks are open");
        }
        for sink in present() {
            let (handle, closing) = (&sink.handle, sink.handle.is_closing());
            assert!(!sink.lease_dropped.load(SeqCst), "a sink was not dropped with its lease");
            let not_detached = sink.lease_detached.load(SeqCst) && sink.is_open() && !closing;
            assert!(!not_detached, "a sink receives although its lease was detached");
            let is_flushed = handle.flush_asked() == handle.taken();
            assert!(is_flushed || closing, "a sink was not flushed");
            // Opening a sink takes its waker.
            let is_forgotten = handle.is_waiting(Op::Ready) && sink.is_open();
            assert!(!is_forgotten, "an open sink was not polled");
        }
    }

    fn check_end(&self, totals: Totals) {
        let without_fate = self.check(totals);
        assert_eq!((totals.queued, totals.attached), (0, totals.detached));
        assert_eq!(self.blocked.load(SeqCst), 0);
        assert!(without_fate <= totals.lost, "an item has no fate");
    }
}

fn add_up(totals: Totals) {
    let Totals { received, copies, unmatched, delivered, discarded, lost, queued, .. } = totals;
    assert_eq!(received + copies, unmatched + delivered + discarded + lost + queued);
}

struct CountingHooks(Arc<World>);

impl Hooks<u8, Item, Broken> for CountingHooks {
    fn attached(&mut self, _: Recipient<'_, u8>) {
        self.0.attached.fetch_add(1, SeqCst);
    }

    fn detached(&mut self, _: Recipient<'_, u8>, _: Detached<Broken>) {
        self.0.detached.fetch_add(1, SeqCst);
    }

    fn unmatched(&mut self, item: Item) {
        let is_attached = item.sink.is_some_and(|sink| !sink.is_failed());
        assert!(!is_attached, "an item overtook the order that was sent before it");
        self.0.unmatched.fetch_add(1, SeqCst);
        lock(&self.0.dropped).push(item.seq);
    }

    fn discarded(&mut self, _: Recipient<'_, u8>, item: Item, _: Discarded) {
        self.0.discarded.fetch_add(1, SeqCst);
        lock(&self.0.dropped).push(item.seq);
    }

    fn blocked(&mut self, _: Recipient<'_, u8>) {
        assert_eq!(self.0.blocked.fetch_add(1, SeqCst), 0, "blocked twice");
    }

    fn unblocked(&mut self, _: Recipient<'_, u8>) {
        assert_eq!(self.0.blocked.fetch_sub(1, SeqCst), 1, "unblocked without blocked");
    }
}

// ---- running it ---------------------------------------------------------------------------------

/// The task's waker: sets a flag and unparks the thread that polls.
struct FlagWaker(AtomicBool, Thread);

impl Wake for FlagWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, SeqCst);
        self.1.unpark();
    }
}

struct Runner {
    task_waker: Arc<FlagWaker>,
    polls: usize,
    /// Each round uses a new waker, as if the future had moved to another task.
    renews_waker: bool,
}

impl Runner {
    fn new(budget: usize) -> Self {
        Self { task_waker: Self::task_waker(), polls: 0, renews_waker: budget % 2 == 0 }
    }

    fn task_waker() -> Arc<FlagWaker> {
        Arc::new(FlagWaker(AtomicBool::new(true), thread::current()))
    }

    /// Polls while the other threads run their actions, and then until the task is parked or the
    /// demux completes.
    fn run_round<F: Future<Output = Totals>, W: FnOnce() + Send>(
        &mut self,
        future: &mut Option<Pin<Box<F>>>,
        actions: impl Iterator<Item = W>,
        totals: fn(&F) -> Totals,
    ) -> Option<Totals> {
        if self.renews_waker {
            self.task_waker = Self::task_waker();
        }
        let active = &AtomicUsize::new(0);
        let main = &thread::current();
        thread::scope(|scope| {
            for action in actions {
                active.fetch_add(1, SeqCst);
                scope.spawn(move || {
                    action();
                    active.fetch_sub(1, SeqCst);
                    main.unpark();
                });
            }
            let waker = Waker::from(Arc::clone(&self.task_waker));
            let mut idle = 0;
            loop {
                // Loaded before the flag: if the threads have finished, their wakes have set it.
                let done = active.load(SeqCst) == 0;
                if self.task_waker.0.swap(false, SeqCst) {
                    (self.polls, idle) = (self.polls + 1, 0);
                    assert!(self.polls < MAX_POLLS, "the task does not park");
                    let demux = future.as_mut()?;
                    let poll = demux.as_mut().poll(&mut Context::from_waker(&waker));
                    add_up(totals(demux));
                    if let Poll::Ready(totals) = poll {
                        *future = None;
                        // Threads may still send orders, which are not read.
                        while active.load(SeqCst) > 0 {
                            thread::park();
                        }
                        self.task_waker.0.store(false, SeqCst);
                        return Some(totals);
                    }
                } else if done {
                    return None;
                } else if idle < 2_000 {
                    // Spins before it parks, so that it often polls while the threads are active.
                    idle += 1;
                    std::hint::spin_loop();
                } else {
                    thread::park();
                }
            }
        })
    }

    /// Checks that no waker of the task is left.
    fn end(self) {
        assert_eq!(Arc::strong_count(&self.task_waker), 1, "a waker keeps the task alive");
    }
}
