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
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use futures::Sink;
use stream_demux::{
    Attach, Demux, DemuxStreamExt, Detached, Discarded, Hooks, Lease, Order, Overflow, Recipient,
    Totals,
};

use crate::letters::Script;
use crate::queue::{Queue, Source, lock};

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
    let world = Arc::new(World::default());
    let (input, orders) = (Source(Arc::clone(&world.items)), Source(Arc::clone(&world.orders)));
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
        Box::new(|| lock(&world.sinks).clone().iter().for_each(|handle| handle.release())),
        Box::new(|| drop(lease)),
        Box::new(|| world.items.end()),
    ];
    let totals = runner.run_round(&mut demux, actions.into_iter(), Demux::totals);
    let totals =
        totals.expect("the demux completes after the input has ended and all sinks are open");
    world.check_end(totals);
    assert_eq!((world.items.unread_count(), world.items.read_count() as u64), (0, totals.received));
    drop(demux);
    drop(leases);
    // Late orders were not read, and the input stored the task's waker.
    world.orders.clear();
    world.items.clear();
    for handle in lock(&world.sinks).iter() {
        handle.wake();
        assert!(lock(&handle.0).dropped, "a sink outlives the demux");
    }
    assert!(!runner.task_waker.0.load(SeqCst), "the task was woken after the demux was dropped");
    runner.end();
    assert_eq!(Arc::strong_count(&world), 1, "a callback or sink outlives the demux");
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
                let handle = world.attach(key, 0, Some(&mut lease));
                spin(spins);
                if detached {
                    lease.detach();
                } else {
                    drop(lease);
                }
                if let Some(handle) = handle {
                    let mut state = lock(&handle.0);
                    (state.lease_dropped, state.lease_detached) = (!detached, detached);
                }
            }
            Self::AttachAndSend => {
                let key = KEYS + world.own_keys.fetch_add(1, SeqCst) % 128; // more than sinks
                let sink = world.attach(key, 0, None);
                world.items.push_with(|seq| Item { seq, key, sink });
            }
            Self::Detach(key) => world.orders.push(Order::Detach(key)),
            Self::Evict(key) => world.orders.push(Order::Evict(key)),
            Self::DropLease => drop(lease.take()),
            Self::DetachLease => drop(lease.take().map(Lease::detach)),
            Self::Close(nth) => world.pick(nth, |handle| lock(&handle.0).open = false),
            Self::Open(nth) => world.pick(nth, SinkHandle::release),
            Self::Hold(nth) => world.pick(nth, |handle| lock(&handle.0).flush_is_held = true),
            Self::Wake(nth) => world.pick(nth, SinkHandle::wake),
            Self::Fail(nth) => world.pick(nth, |handle| {
                lock(&handle.0).fails = true;
                handle.wake();
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

#[derive(Clone)]
struct Item {
    seq: usize,
    key: u8,
    /// Attached under this key by the thread that sent the item, and by no other.
    sink: Option<Arc<SinkHandle>>,
}

/// The state of a sink, shared with the threads that control it.
struct SinkHandle(Mutex<SinkState>);

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent")]
struct SinkState {
    open: bool,
    flush_is_held: bool,
    fails: bool,
    /// Its only lease was dropped.
    lease_dropped: bool,
    /// It was detached.
    lease_detached: bool,
    ready_returned: bool,
    unflushed: bool,
    closing: bool,
    ended: bool,
    dropped: bool,
    last_seq: Option<usize>,
    received: u64,
    ready_waker: Option<Waker>,
    /// The waker of a pending flush or close.
    flush_waker: Option<Waker>,
    last_waker: Option<Waker>,
}

impl SinkHandle {
    fn new(open: bool) -> Self {
        Self(Mutex::new(SinkState { open, ..SinkState::default() }))
    }

    /// Makes the sink ready, and completes a pending flush or close.
    fn release(&self) {
        let mut state = lock(&self.0);
        (state.open, state.flush_is_held) = (true, false);
        let wakers = (state.ready_waker.take(), state.flush_waker.take());
        drop(state);
        wakers.0.into_iter().chain(wakers.1).for_each(Waker::wake);
    }

    /// Fires the waker that the sink was polled with last.
    fn wake(&self) {
        let waker = lock(&self.0).last_waker.clone();
        waker.into_iter().for_each(Waker::wake);
    }
}

struct TestSink {
    handle: Arc<SinkHandle>,
    world: Arc<World>,
}

impl TestSink {
    fn enter(&self, call_name: &str) -> MutexGuard<'_, SinkState> {
        let state = lock(&self.handle.0);
        assert!(!state.ended, "{call_name} after the sink has failed or was closed");
        state
    }

    fn poll_settled(
        mut state: MutexGuard<'_, SinkState>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), &'static str>> {
        state.last_waker = Some(cx.waker().clone());
        if state.fails {
            state.ended = true;
            return Poll::Ready(Err("broken"));
        }
        if state.flush_is_held {
            state.flush_waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        state.ended = state.closing;
        Poll::Ready(Ok(()))
    }
}

impl Sink<Item> for TestSink {
    type Error = &'static str;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let mut state = self.enter("poll_ready");
        assert!(!state.closing, "poll_ready after poll_close");
        state.last_waker = Some(cx.waker().clone());
        if state.fails {
            state.ended = true;
            return Poll::Ready(Err("broken"));
        }
        state.ready_returned = state.open;
        if state.open {
            return Poll::Ready(Ok(()));
        }
        state.ready_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn start_send(self: Pin<&mut Self>, item: Item) -> Result<(), Self::Error> {
        let mut state = self.enter("start_send");
        assert!(std::mem::take(&mut state.ready_returned), "start_send without poll_ready");
        if state.fails {
            state.ended = true;
            self.world.record_fate(item.seq);
            return Err("broken");
        }
        assert!(
            state.last_seq < Some(item.seq),
            "{:?} was sent after {:?}",
            item.seq,
            state.last_seq
        );
        (state.last_seq, state.unflushed) = (Some(item.seq), true);
        state.received += 1;
        self.world.record_fate(item.seq);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let mut state = self.enter("poll_flush");
        assert!(!state.closing, "poll_flush after poll_close");
        state.unflushed = false;
        Self::poll_settled(state, cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let mut state = self.enter("poll_close");
        state.closing = true;
        Self::poll_settled(state, cx)
    }
}

impl Drop for TestSink {
    fn drop(&mut self) {
        lock(&self.handle.0).dropped = true;
    }
}

#[derive(Default)]
struct World {
    /// How many keys of `AttachAndSend` are in use.
    own_keys: AtomicU8,
    items: Arc<Queue<Item>>,
    orders: Arc<Queue<Order<u8, TestSink>>>,
    sinks: Mutex<Vec<Arc<SinkHandle>>>,
    /// The number of fates of each item.
    fates: Mutex<Vec<u32>>,
    attached: AtomicUsize,
    detached: AtomicUsize,
    unmatched: AtomicUsize,
    discarded: AtomicUsize,
    blocked: AtomicUsize,
}

impl World {
    fn send(&self, key: u8) {
        self.items.push_with(|seq| Item { seq, key, sink: None });
    }

    fn attach(
        self: &Arc<Self>,
        key: u8,
        settings: usize,
        lease: Option<&mut Lease>,
    ) -> Option<Arc<SinkHandle>> {
        let mut sinks = lock(&self.sinks);
        if sinks.len() == MAX_SINKS {
            return None;
        }
        let handle = Arc::new(SinkHandle::new(settings & 16 == 0));
        sinks.push(Arc::clone(&handle));
        drop(sinks);
        let mut attach =
            Attach::new(key, TestSink { handle: Arc::clone(&handle), world: Arc::clone(self) });
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
        Some(handle)
    }

    fn pick(&self, nth: usize, action: impl FnOnce(&SinkHandle)) {
        let sinks = lock(&self.sinks);
        if let Some(last) = sinks.len().checked_sub(1) {
            let handle = Arc::clone(&sinks[last - nth % sinks.len()]);
            drop(sinks);
            action(&handle);
        }
    }

    fn record_fate(&self, seq: usize) {
        let mut fates = lock(&self.fates);
        if fates.len() <= seq {
            fates.resize(seq + 1, 0);
        }
        fates[seq] += 1;
    }

    /// Checks the totals against the items and attachments that were counted here.
    fn check(&self, totals: Totals) {
        add_up(totals);
        let Totals { received, copies, unmatched, delivered, discarded, queued, .. } = totals;
        let seen = [&self.unmatched, &self.discarded, &self.attached, &self.detached]
            .map(|count| count.load(SeqCst) as u64);
        assert_eq!(seen, [unmatched, discarded, totals.attached, totals.detached]);
        let fates: u64 = lock(&self.fates).iter().map(|&fates| u64::from(fates)).sum();
        assert_eq!(fates + queued, received + copies, "each item has one fate");
        let received: u64 = lock(&self.sinks).iter().map(|handle| lock(&handle.0).received).sum();
        assert_eq!(received, delivered, "items that sinks received");
        if copies == 0 {
            assert!(lock(&self.fates).iter().all(|&fates| fates <= 1), "an item has two fates");
        }
    }

    /// Checks what must hold when the task is parked and no thread is active.
    fn check_parked(&self, totals: Totals) {
        self.check(totals);
        assert!(self.orders.unread_count() == 0, "the task is parked although orders are unread");
        let sinks = lock(&self.sinks);
        let present = || sinks.iter().map(|handle| lock(&handle.0)).filter(|state| !state.dropped);
        let is_any_closed = present().any(|state| !state.open || state.flush_is_held);
        let unread_items = self.items.unread_count();
        if self.blocked.load(SeqCst) == 0 {
            assert_eq!(unread_items, 0, "the task is parked although items are unread");
        }
        if !is_any_closed {
            assert_eq!(self.blocked.load(SeqCst), 0, "all sinks are open");
            assert_eq!(totals.queued, 0, "all sinks are open");
        }
        for state in present() {
            assert!(!state.lease_dropped, "a sink was not dropped with its lease");
            let not_detached = state.lease_detached && state.open && !state.closing;
            assert!(!not_detached, "a sink receives although its lease was detached");
            assert!(!state.unflushed || state.closing, "a sink was not flushed");
            // Opening a sink takes its waker.
            assert!(state.ready_waker.is_none() || !state.open, "an open sink was not polled");
        }
    }

    fn check_end(&self, totals: Totals) {
        self.check(totals);
        assert_eq!((totals.queued, totals.attached), (0, totals.detached));
        assert_eq!(self.blocked.load(SeqCst), 0);
        assert!(lock(&self.fates).iter().all(|&fates| fates > 0), "an item has no fate");
    }
}

fn add_up(totals: Totals) {
    let Totals { received, copies, unmatched, delivered, discarded, lost, queued, .. } = totals;
    assert_eq!(received + copies, unmatched + delivered + discarded + lost + queued);
}

struct CountingHooks(Arc<World>);

impl Hooks<u8, Item, &'static str> for CountingHooks {
    fn attached(&mut self, _: Recipient<'_, u8>) {
        self.0.attached.fetch_add(1, SeqCst);
    }

    fn detached(&mut self, _: Recipient<'_, u8>, _: Detached<&'static str>) {
        self.0.detached.fetch_add(1, SeqCst);
    }

    fn unmatched(&mut self, item: Item) {
        let is_attached = item.sink.is_some_and(|sink| !lock(&sink.0).fails);
        assert!(!is_attached, "an item overtook the order that was sent before it");
        self.0.unmatched.fetch_add(1, SeqCst);
        self.0.record_fate(item.seq);
    }

    fn discarded(&mut self, _: Recipient<'_, u8>, item: Item, _: Discarded) {
        self.0.discarded.fetch_add(1, SeqCst);
        self.0.record_fate(item.seq);
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
