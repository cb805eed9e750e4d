//! Target `threads`: the demux runs in one thread, the world in three others, all at once.
//!
//! A script has rounds. In each, three threads send items and orders, lease and drop leases, close
//! and open sinks, wake and fail them, each through its own part of the script, while the demux is
//! polled whenever its waker has fired. When the threads are through and the demux sleeps, it is at
//! rest: no wake is on its way, so whatever it has left undone, it has forgotten. There are no
//! clocks: a lost wake-up is seen because everybody else is done. It asserts:
//!
//! 1. after each poll, `received + copies = unmatched + delivered + discarded + lost + queued`;
//! 2. at rest, that orders are read, the input is read unless a closed sink holds it, nothing is
//!    queued for a sink that is open, each sink was flushed, and those whose lease was dropped are
//!    gone;
//! 3. one fate for each item and copy; what a sink got is in the order of the input;
//! 4. the contract of `Sink`; each attachment is announced once and ends once;
//! 5. that it completes once all is open, and has left nothing.
//!
//! How the threads meet is for the machine to say: a script that failed may have to be played
//! often.

use alloc::sync::Arc;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use futures::Sink;
use stream_demux::{
    Attach, Demux, DemuxStreamExt, Detached, Discarded, Hooks, Lease, Order, Overflow, Recipient,
    Totals,
};

use crate::queue::{Queue, Source, lock};
use crate::script::Script;

const THREADS: usize = 3;
const KEYS: u8 = 4;
const MAX_STEPS: usize = 300;
const MAX_ROUNDS: usize = 6;
const MAX_SINKS: usize = 64;
const MAX_POLLS: usize = 100_000;

/// Plays a script. It begins with budget, window, and whether a key may have several sinks; after
/// that come the number of a thread and what it does, or `|`, the end of a round.
///
/// # Panics
///
/// If a promise is broken.
pub fn run(script: &[u8]) {
    let mut script = Script::new(script);
    let budget = [128, 1, 2, 5, 16][script.below(5)];
    let window = [16_384, 1, 7][script.below(3)];
    let multicast = script.flag();
    let world = Arc::new(World::default());
    let (input, orders) = (Source(Arc::clone(&world.items)), Source(Arc::clone(&world.orders)));
    let mut demux = input
        .demux_by(|item: &Item| item.key, orders)
        .hooks(Ledger(Arc::clone(&world)))
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
        let mut parts: [Vec<Step>; THREADS] = Default::default();
        while let Some(letter) = script.letter(b"012012012|").filter(|_| steps < MAX_STEPS) {
            steps += 1;
            match letter {
                b'|' => break,
                thread => parts[usize::from(thread - b'0')].push(Step::read(&mut script)),
            }
        }
        if parts.iter().all(Vec::is_empty) {
            break;
        }
        let works = parts.into_iter().zip(&mut leases).map(|(steps, lease)| {
            let world = Arc::clone(&world);
            move || steps.into_iter().for_each(|step| step.make(&world, lease))
        });
        assert!(
            runner.round(&mut demux, works, Demux::totals).is_none(),
            "completed, and the input goes on"
        );
        world.check_rest(demux.as_ref().expect("it is there").totals());
    }

    // Everything is set free, by several at once.
    world.over.store(true, SeqCst);
    let [first, ..] = &mut leases;
    let lease = first.take();
    let works: [Box<dyn FnOnce() + Send>; THREADS] = [
        Box::new(|| lock(&world.sinks).clone().iter().for_each(|gate| gate.free())),
        Box::new(|| drop(lease)),
        Box::new(|| world.items.end()),
    ];
    let totals = runner.round(&mut demux, works.into_iter(), Demux::totals);
    let totals = totals.expect("everything is open, and it does not complete");
    world.check_end(totals);
    assert_eq!((world.items.waiting(), world.items.given() as u64), (0, totals.received));
    drop(demux);
    drop(leases);
    // What came too late was not read; and the input had the task's own waker.
    world.orders.abandon();
    world.items.abandon();
    for gate in lock(&world.sinks).iter() {
        gate.wake();
        assert!(lock(&gate.0).dropped, "a sink outlives the end");
    }
    assert!(!runner.bell.0.load(SeqCst), "woken after it was dropped");
    runner.end();
    assert_eq!(Arc::strong_count(&world), 1, "the world is kept");
}

// ---- the script ---------------------------------------------------------------------------------

/// What a thread does; `n` is a number below 16.
#[derive(Clone, Copy)]
enum Step {
    /// `i`: sends an item, under a key.
    Item(u8),
    /// `x`: five items.
    Items(u8),
    /// `a`: attaches a sink, on terms; `l`: with this thread's lease.
    Attach {
        key: u8,
        terms: usize,
        leased: bool,
    },
    /// `b`: attaches a sink with a lease that is dropped, or detached, a moment later.
    Brief {
        key: u8,
        detached: bool,
        moment: usize,
    },
    /// `d`, `e`: orders.
    Detach(u8),
    Evict(u8),
    /// `q`: drops this thread's lease; `m`: detaches it.
    Drop,
    Leave,
    /// `c`, `o`: closes and opens a sink, the newest being 0.
    Close(usize),
    Open(usize),
    /// `h`: holds flush and close.
    Hold(usize),
    /// `w`: wakes a sink for nothing; `f`: lets it fail.
    Wake(usize),
    Fail(usize),
    /// `y`: a moment passes.
    Pass(usize),
}

impl Step {
    fn read(script: &mut Script<'_>) -> Self {
        let letter = script.letter(b"iixxalabdeqmcowhfyoc").unwrap_or(b'y');
        let arg = script.below(64);
        let key = u8::try_from(arg).unwrap_or(0) % KEYS;
        match letter {
            b'i' => Self::Item(key),
            b'x' => Self::Items(key),
            b'a' => Self::Attach { key, terms: script.below(32), leased: false },
            b'l' => Self::Attach { key, terms: script.below(32), leased: true },
            b'b' => Self::Brief { key, detached: arg & 32 != 0, moment: script.below(256) },
            b'd' => Self::Detach(key),
            b'e' => Self::Evict(key),
            b'q' => Self::Drop,
            b'm' => Self::Leave,
            b'c' => Self::Close(arg),
            b'o' => Self::Open(arg),
            b'h' => Self::Hold(arg),
            b'w' => Self::Wake(arg),
            b'f' => Self::Fail(arg),
            _ => Self::Pass(arg),
        }
    }

    fn make(self, world: &Arc<World>, lease: &mut Option<Lease>) {
        match self {
            Self::Item(key) => world.send(key),
            Self::Items(key) => (0..5).for_each(|_| world.send(key)),
            Self::Attach { key, terms, leased } => {
                let lease = leased.then(|| lease.get_or_insert_with(Lease::new));
                drop(world.attach(key, terms, lease));
            }
            Self::Brief { key, detached, moment } => {
                let mut lease = Lease::new();
                let gate = world.attach(key, 0, Some(&mut lease));
                pass(moment);
                if detached {
                    lease.detach();
                } else {
                    drop(lease);
                }
                if let Some(gate) = gate {
                    let mut state = lock(&gate.0);
                    (state.evicted, state.left) = (!detached, detached);
                }
            }
            Self::Detach(key) => world.orders.push(Order::Detach(key)),
            Self::Evict(key) => world.orders.push(Order::Evict(key)),
            Self::Drop => drop(lease.take()),
            Self::Leave => drop(lease.take().map(Lease::detach)),
            Self::Close(nth) => world.pick(nth, |gate| lock(&gate.0).open = false),
            Self::Open(nth) => world.pick(nth, Gate::free),
            Self::Hold(nth) => world.pick(nth, |gate| lock(&gate.0).holds = true),
            Self::Wake(nth) => world.pick(nth, Gate::wake),
            Self::Fail(nth) => world.pick(nth, |gate| {
                lock(&gate.0).fails = true;
                gate.wake();
            }),
            Self::Pass(moment) => pass(moment * 4),
        }
    }
}

/// Some hundred nanoseconds, so that threads meet elsewhere.
fn pass(moment: usize) {
    for _ in 0..moment {
        std::hint::spin_loop();
    }
}

// ---- the world ----------------------------------------------------------------------------------

#[derive(Clone)]
struct Item {
    seq: usize,
    key: u8,
}

/// A sink, from outside.
struct Gate(Mutex<State>);

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct State {
    open: bool,
    holds: bool,
    fails: bool,
    /// Its only lease was dropped.
    evicted: bool,
    /// It was detached.
    left: bool,
    promised: bool,
    unflushed: bool,
    closing: bool,
    ended: bool,
    dropped: bool,
    last: Option<usize>,
    got: u64,
    ready: Option<Waker>,
    /// Of flush and close.
    settled: Option<Waker>,
    any: Option<Waker>,
}

impl Gate {
    fn new(open: bool) -> Self {
        Self(Mutex::new(State {
            open,
            holds: false,
            fails: false,
            evicted: false,
            left: false,
            promised: false,
            unflushed: false,
            closing: false,
            ended: false,
            dropped: false,
            last: None,
            got: 0,
            ready: None,
            settled: None,
            any: None,
        }))
    }

    /// Lets everything pass.
    fn free(&self) {
        let mut state = lock(&self.0);
        (state.open, state.holds) = (true, false);
        let wakers = (state.ready.take(), state.settled.take());
        drop(state);
        wakers.0.into_iter().chain(wakers.1).for_each(Waker::wake);
    }

    /// Fires the waker that was seen last, whatever for.
    fn wake(&self) {
        let waker = lock(&self.0).any.clone();
        waker.into_iter().for_each(Waker::wake);
    }
}

struct Port {
    gate: Arc<Gate>,
    world: Arc<World>,
}

impl Port {
    fn enter(&self, what: &str) -> MutexGuard<'_, State> {
        let state = lock(&self.gate.0);
        assert!(!state.ended, "{what} after the end");
        state
    }

    fn settle(
        mut state: MutexGuard<'_, State>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), &'static str>> {
        state.any = Some(cx.waker().clone());
        if state.fails {
            state.ended = true;
            return Poll::Ready(Err("broken"));
        }
        if state.holds {
            state.settled = Some(cx.waker().clone());
            return Poll::Pending;
        }
        state.ended = state.closing;
        Poll::Ready(Ok(()))
    }
}

impl Sink<Item> for Port {
    type Error = &'static str;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let mut state = self.enter("poll_ready");
        assert!(!state.closing, "poll_ready after poll_close");
        state.any = Some(cx.waker().clone());
        if state.fails {
            state.ended = true;
            return Poll::Ready(Err("broken"));
        }
        state.promised = state.open;
        if state.open {
            return Poll::Ready(Ok(()));
        }
        state.ready = Some(cx.waker().clone());
        Poll::Pending
    }

    fn start_send(self: Pin<&mut Self>, item: Item) -> Result<(), Self::Error> {
        let mut state = self.enter("start_send");
        assert!(std::mem::take(&mut state.promised), "start_send without poll_ready");
        if state.fails {
            state.ended = true;
            self.world.fate(item.seq);
            return Err("broken");
        }
        assert!(state.last < Some(item.seq), "{:?} was sent after {:?}", item.seq, state.last);
        (state.last, state.unflushed) = (Some(item.seq), true);
        state.got += 1;
        self.world.fate(item.seq);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let mut state = self.enter("poll_flush");
        assert!(!state.closing, "poll_flush after poll_close");
        state.unflushed = false;
        Self::settle(state, cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let mut state = self.enter("poll_close");
        state.closing = true;
        Self::settle(state, cx)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        lock(&self.gate.0).dropped = true;
    }
}

#[derive(Default)]
struct World {
    items: Arc<Queue<Item>>,
    orders: Arc<Queue<Order<u8, Port>>>,
    sinks: Mutex<Vec<Arc<Gate>>>,
    /// How many fates each item has had.
    fates: Mutex<Vec<u32>>,
    attached: AtomicUsize,
    detached: AtomicUsize,
    unmatched: AtomicUsize,
    discarded: AtomicUsize,
    blocked: AtomicUsize,
    over: AtomicBool,
}

impl World {
    fn send(&self, key: u8) {
        self.items.push_made(|seq| Item { seq, key });
    }

    fn attach(
        self: &Arc<Self>,
        key: u8,
        terms: usize,
        lease: Option<&mut Lease>,
    ) -> Option<Arc<Gate>> {
        let mut sinks = lock(&self.sinks);
        if sinks.len() == MAX_SINKS {
            return None;
        }
        let gate = Arc::new(Gate::new(terms & 16 == 0));
        sinks.push(Arc::clone(&gate));
        drop(sinks);
        let mut attach =
            Attach::new(key, Port { gate: Arc::clone(&gate), world: Arc::clone(self) });
        attach = match terms & 7 {
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
        Some(gate)
    }

    fn pick(&self, nth: usize, what: impl FnOnce(&Gate)) {
        let sinks = lock(&self.sinks);
        if let Some(last) = sinks.len().checked_sub(1) {
            let gate = Arc::clone(&sinks[last - nth % sinks.len()]);
            drop(sinks);
            what(&gate);
        }
    }

    fn fate(&self, seq: usize) {
        let mut fates = lock(&self.fates);
        if fates.len() <= seq {
            fates.resize(seq + 1, 0);
        }
        fates[seq] += 1;
    }

    /// What has been seen of items and attachments is what the totals say.
    fn check(&self, totals: Totals) {
        add_up(totals);
        let Totals { received, copies, unmatched, delivered, discarded, queued, .. } = totals;
        let seen = [&self.unmatched, &self.discarded, &self.attached, &self.detached]
            .map(|count| count.load(SeqCst) as u64);
        assert_eq!(seen, [unmatched, discarded, totals.attached, totals.detached]);
        let fates: u64 = lock(&self.fates).iter().map(|&fates| u64::from(fates)).sum();
        assert_eq!(fates + queued, received + copies, "each item has one fate");
        let got: u64 = lock(&self.sinks).iter().map(|gate| lock(&gate.0).got).sum();
        assert_eq!(got, delivered, "what sinks got was delivered");
        if copies == 0 {
            assert!(lock(&self.fates).iter().all(|&fates| fates <= 1), "an item has two fates");
        }
    }

    /// It sleeps, and so does everybody else.
    fn check_rest(&self, totals: Totals) {
        self.check(totals);
        assert!(self.orders.waiting() == 0, "it sleeps, and orders are unread");
        let sinks = lock(&self.sinks);
        let here = || sinks.iter().map(|gate| lock(&gate.0)).filter(|state| !state.dropped);
        let shut = here().any(|state| !state.open || state.holds);
        let unread = self.items.waiting();
        if self.blocked.load(SeqCst) == 0 {
            assert_eq!(unread, 0, "it sleeps, and the input can be read");
        }
        if !shut {
            assert_eq!(self.blocked.load(SeqCst), 0, "it sleeps, and everything is open");
            assert_eq!(totals.queued, 0, "it sleeps, and everything is open");
        }
        for state in here() {
            assert!(!state.evicted, "it sleeps, and the lease of a sink was dropped");
            let stays = state.left && state.open && !state.closing;
            assert!(!stays, "it sleeps, and the lease of a sink was detached");
            assert!(!state.unflushed || state.closing, "it sleeps, and a sink was not flushed");
            // Whoever frees a sink takes its wakers: one that is free and still waits was not
            // asked.
            assert!(state.ready.is_none() || !state.open);
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

struct Ledger(Arc<World>);

impl Hooks<u8, Item, &'static str> for Ledger {
    fn attached(&mut self, _: Recipient<'_, u8>) {
        self.0.attached.fetch_add(1, SeqCst);
    }

    fn detached(&mut self, _: Recipient<'_, u8>, _: Detached<&'static str>) {
        self.0.detached.fetch_add(1, SeqCst);
    }

    fn unmatched(&mut self, item: Item) {
        self.0.unmatched.fetch_add(1, SeqCst);
        self.0.fate(item.seq);
    }

    fn discarded(&mut self, _: Recipient<'_, u8>, item: Item, _: Discarded) {
        self.0.discarded.fetch_add(1, SeqCst);
        self.0.fate(item.seq);
    }

    fn blocked(&mut self, _: Recipient<'_, u8>) {
        assert_eq!(self.0.blocked.fetch_add(1, SeqCst), 0, "blocked twice");
    }

    fn unblocked(&mut self, _: Recipient<'_, u8>) {
        assert_eq!(self.0.blocked.fetch_sub(1, SeqCst), 1, "unblocked, and was not blocked");
    }
}

// ---- running it ---------------------------------------------------------------------------------

/// The waker: a flag, and the thread that looks at it.
struct Bell(AtomicBool, Thread);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, SeqCst);
        self.1.unpark();
    }
}

struct Runner {
    bell: Arc<Bell>,
    polls: usize,
    /// Whether each round has a waker of its own, as if the future had moved to another task.
    renews: bool,
}

impl Runner {
    fn new(budget: usize) -> Self {
        Self { bell: Self::bell(), polls: 0, renews: budget % 2 == 0 }
    }

    fn bell() -> Arc<Bell> {
        Arc::new(Bell(AtomicBool::new(true), thread::current()))
    }

    /// Polls while the others work, and then until it sleeps or completes.
    fn round<F: Future<Output = Totals>, W: FnOnce() + Send>(
        &mut self,
        future: &mut Option<Pin<Box<F>>>,
        works: impl Iterator<Item = W>,
        totals: fn(&F) -> Totals,
    ) -> Option<Totals> {
        if self.renews {
            self.bell = Self::bell();
        }
        let working = &AtomicUsize::new(0);
        let main = &thread::current();
        thread::scope(|scope| {
            for work in works {
                working.fetch_add(1, SeqCst);
                scope.spawn(move || {
                    work();
                    working.fetch_sub(1, SeqCst);
                    main.unpark();
                });
            }
            let waker = Waker::from(Arc::clone(&self.bell));
            let mut idle = 0;
            loop {
                // Looked at first: what they did before they were through has fired the bell by
                // now.
                let done = working.load(SeqCst) == 0;
                if self.bell.0.swap(false, SeqCst) {
                    (self.polls, idle) = (self.polls + 1, 0);
                    assert!(self.polls < MAX_POLLS, "it does not come to rest");
                    let demux = future.as_mut()?;
                    let poll = demux.as_mut().poll(&mut Context::from_waker(&waker));
                    add_up(totals(demux));
                    if let Poll::Ready(totals) = poll {
                        *future = None;
                        // Orders may still come, and find nobody.
                        while working.load(SeqCst) > 0 {
                            thread::park();
                        }
                        self.bell.0.store(false, SeqCst);
                        return Some(totals);
                    }
                } else if done {
                    return None;
                } else if idle < 2_000 {
                    // To be there at once when something happens: that is when threads meet.
                    idle += 1;
                    std::hint::spin_loop();
                } else {
                    thread::park();
                }
            }
        })
    }

    /// Nobody has kept a waker of the task.
    fn end(self) {
        assert_eq!(Arc::strong_count(&self.bell), 1, "the task is kept by a waker");
    }
}
