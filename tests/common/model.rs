//! A reference model of the whole contract, and the scripts that drive it against the crate.
//!
//! A script is a string of bytes; any string is one. It says what the outside world does: items, orders
//! on all terms, leases, what sinks and streams answer, what happens inside a poll, when the task is
//! run. Everything the demux then does passes through watched sinks, streams and hooks onto one tape,
//! and the model reads the tape: it keeps a list of attachments per key, a queue for each, and the one
//! item in hand, and objects to the first event that cannot follow from what came before.
//!
//! Exact, event by event: who is asked to admit an item, who receives it and in which order, who is
//! unmatched, what is discarded, lost, moved to a successor or taken along, and why; which order is
//! applied before which item; whom `blocked` and `unblocked` name; what limits and leases end; why an
//! attachment ended; the totals, `len`, `contains_key` and `blocked_on`.
//!
//! Where the contract leaves the moment open and nothing shows it (a lease's `detach` takes effect, the
//! end of the input is told, a held item joins a queue), the model follows each possibility until what
//! comes next rules it out. It objects when none is left.
//!
//! Only bounds, not exact: when a sink is flushed (never with nothing to flush, never later than
//! `flush_every`, always before sleep), the cost of a turn (never more than the budget and one item's
//! spread), how many turns things take (the task falls asleep, and does not turn idly), and the spurious
//! looks that stale wakers may cause. Shares between orders, sinks and items are not looked at.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};

use futures::future::FusedFuture;
use futures::{Sink, Stream};
use stream_demux::{
    Attach, ByValue, Demux, DemuxStreamExt, Detached, Discarded, Hooks, IntoOrder, Lease, Order,
    Overflow, Recipient, Totals,
};

use super::{
    Broken, Op, ScriptedSink, ScriptedStream, SinkHandle, StreamHandle, Task, lock, scripted_sink,
    scripted_stream,
};

/// Items have keys below `ITEM_KEYS`, attachments below `KEYS`: some items are strays.
const KEYS: u8 = 4;
const ITEM_KEYS: u8 = 6;
/// Bounds on what a script can do, so that a long one takes no longer than this.
const MAX_STEPS: usize = 600;
const MAX_SINKS: usize = 64;
const MAX_ITEMS: u32 = 3_000;
/// Polls in which nothing happens before the task is said to spin: a budget under four has up to three.
const MAX_IDLE: usize = 12;
const MAX_POLLS: usize = 20_000;
/// Ways to explain what was seen, before the model gives up on a script.
const MAX_BELIEFS: usize = 128;
const LOST: &str = "the model is at a loss";

/// Runs a script.
///
/// # Panics
///
/// If the crate breaks the contract; the message is the story of the script.
#[track_caller]
pub fn run(script: &[u8]) {
    if let Err(failure) = check(script) {
        panic!("{failure}");
    }
}

/// Runs a script, and returns its story, whether it fails or not.
pub fn run_traced(script: &[u8]) -> String {
    let mut world = Run::new(script);
    let complaint = world.guarded();
    world.story(complaint.as_deref())
}

/// Runs a script: what it came to, or the story of its failure.
pub fn check(script: &[u8]) -> Result<Summary, String> {
    let mut world = Run::new(script);
    match world.guarded() {
        None => Ok(world.monitor.summary),
        Some(complaint) => Err(world.story(Some(&complaint))),
    }
}

/// Drops bytes from a failing script for as long as it still fails: first long stretches, then single
/// bytes. `fails` decides.
pub fn shrink(script: &[u8], mut fails: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
    let mut script = script.to_vec();
    let mut len = script.len() / 2;
    while len > 0 {
        let mut at = 0;
        while at < script.len() {
            let mut shorter = script.clone();
            shorter.drain(at..script.len().min(at + len));
            if fails(&shorter) {
                script = shorter;
            } else {
                at += len;
            }
        }
        len /= 2;
    }
    script
}

/// How often what happened, in one script or in many.
#[derive(Clone, Debug, Default)]
pub struct Summary(pub BTreeMap<&'static str, u64>);

impl Summary {
    pub fn add(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            *self.0.entry(what).or_default() += times;
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

// ---- what happens -------------------------------------------------------------------------------

/// An attachment, by the number of its sink, which is also its tag.
type Att = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Terms {
    key: u8,
    buffer: Option<usize>,
    overflow: Option<Overflow>,
    limit: Option<u64>,
    keep_existing: bool,
    catch_all: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Wish {
    Stay,
    Detach,
    Evict,
}

/// What an order says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Attach(Att),
    Detach(u8),
    Evict(u8),
    Finish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cue {
    Park,
    Open,
    Allow(usize),
    Hold(Op),
    Release(Op),
    Fail(Op),
    FailQuietly(Op),
    Stutter(Op, usize),
    Wake,
}

/// What the outside world does.
#[derive(Clone, Copy, Debug)]
enum Cmd {
    Items { key: u8, count: u8 },
    Attach { terms: Terms, leases: [Option<usize>; 2], cue: Option<Cue> },
    Order(What),
    EndOrders,
    EndInput,
    StutterOrders,
    StutterInput,
    WakeOrders,
    WakeInput,
    Lease(usize, Option<Wish>),
    Cue(usize, Cue),
    Nothing,
}

/// Inside what something is to happen.
#[derive(Clone, Copy, Debug)]
enum Place {
    Input,
    Orders,
    Hook,
    Sink(usize, Op),
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Do(Cmd),
    Inside(Place, Cmd),
    RenewWaker,
    Poll,
    PollUnasked,
    Run,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Done,
    Pending,
    /// Pending, and it woke itself.
    Stutters,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Farewell(u8),
    Evicted,
    Overflowed,
    Failed(&'static str),
    Unknown,
}

/// What is on the tape.
#[derive(Clone, Debug)]
enum Ev {
    // the script, and what came of it outside
    Step(Step),
    Do(Cmd),
    Born(Att, Terms),
    Sent(What),
    /// The waker of the orders fired.
    OrdersWoken,
    Wish(Vec<Att>, Wish),
    Woken(Att),
    /// A waker of a sink that is gone was fired.
    Stale,
    // polls
    Turn,
    Rest {
        asleep: bool,
        totals: Totals,
    },
    Completed,
    // streams
    Read(u32, u8),
    InputPending,
    InputEnd,
    Order(What),
    AskOrders,
    OrdersPending {
        stutters: bool,
    },
    OrdersEnd,
    // sinks
    Ask(Att, Op),
    Ready(Att, Said),
    Send(Att, u32, Said),
    Flush(Att, Said),
    Close(Att, Said),
    Drop(Att),
    Clone(u32),
    // hooks
    Admit(Att, u32, bool),
    Attached(Att),
    Detached(Att, Why),
    Unmatched(u32),
    Discarded(Att, u32, Discarded),
    Blocked(Att),
    Unblocked(Att),
    /// A hook named an attachment with another's key.
    Misnamed(Att, u8),
}

impl Ev {
    fn is_outside(&self) -> bool {
        use Ev::{Born, Completed, Do, OrdersWoken, Rest, Sent, Stale, Step, Turn, Wish, Woken};
        matches!(
            self,
            Step(_)
                | Do(_)
                | Born(..)
                | Sent(_)
                | OrdersWoken
                | Wish(..)
                | Woken(_)
                | Stale
                | Turn
                | Rest { .. }
                | Completed
        )
    }
}

#[derive(Clone, Default)]
struct Tape(Arc<Mutex<Vec<Ev>>>);

impl Tape {
    fn push(&self, event: Ev) {
        let mut tape = lock(&self.0);
        assert!(tape.len() < 2_000_000, "there is no end to what happens");
        tape.push(event);
    }
}

// ---- what is watched ----------------------------------------------------------------------------

#[derive(Debug, PartialEq, Eq, Hash)]
struct Key(u8);

struct Item {
    seq: u32,
    key: u8,
    tape: Tape,
    /// Counted, so that none is lost silently.
    live: Arc<()>,
}

impl Clone for Item {
    fn clone(&self) -> Self {
        self.tape.push(Ev::Clone(self.seq));
        let Self { seq, key, ref tape, ref live } = *self;
        Self { seq, key, tape: tape.clone(), live: Arc::clone(live) }
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.seq)
    }
}

fn key_of(item: &Item) -> Key {
    Key(item.key)
}

struct Watched {
    att: Att,
    sink: ScriptedSink<Item>,
    handle: SinkHandle<Item>,
    tape: Tape,
}

impl Watched {
    fn said(&self, op: Op, answer: &Poll<Result<(), Broken>>) -> Said {
        match answer {
            Poll::Ready(Ok(())) => Said::Done,
            Poll::Ready(Err(_)) => Said::Failed,
            Poll::Pending if self.handle.is_waiting(op) => Said::Pending,
            Poll::Pending => Said::Stutters,
        }
    }
}

impl Sink<Item> for Watched {
    type Error = Broken;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.tape.push(Ev::Ask(self.att, Op::Ready));
        let answer = Pin::new(&mut self.sink).poll_ready(cx);
        self.tape.push(Ev::Ready(self.att, self.said(Op::Ready, &answer)));
        answer
    }

    fn start_send(mut self: Pin<&mut Self>, item: Item) -> Result<(), Broken> {
        let seq = item.seq;
        self.tape.push(Ev::Ask(self.att, Op::Send));
        let answer = Pin::new(&mut self.sink).start_send(item);
        let said = if answer.is_ok() { Said::Done } else { Said::Failed };
        self.tape.push(Ev::Send(self.att, seq, said));
        answer
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.tape.push(Ev::Ask(self.att, Op::Flush));
        let answer = Pin::new(&mut self.sink).poll_flush(cx);
        self.tape.push(Ev::Flush(self.att, self.said(Op::Flush, &answer)));
        answer
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.tape.push(Ev::Ask(self.att, Op::Close));
        let answer = Pin::new(&mut self.sink).poll_close(cx);
        self.tape.push(Ev::Close(self.att, self.said(Op::Close, &answer)));
        answer
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.tape.push(Ev::Drop(self.att));
    }
}

/// An order on its way.
struct Letter {
    what: What,
    order: Order<Key, Watched>,
}

impl IntoOrder for Letter {
    type Key = Key;
    type Sink = Watched;
    fn into_order(self) -> Order<Key, Watched> {
        self.order
    }
}

type Tell<T> = Box<dyn FnMut(&Poll<Option<T>>) -> Ev>;

struct WatchedStream<T> {
    stream: ScriptedStream<T>,
    asks: Option<Ev>,
    tell: Tell<T>,
    tape: Tape,
}

impl<T> Stream for WatchedStream<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(asks) = &self.asks {
            self.tape.push(asks.clone());
        }
        let answer = Pin::new(&mut self.stream).poll_next(cx);
        let event = (self.tell)(&answer);
        self.tape.push(event);
        answer
    }
}

struct Recorder {
    tape: Tape,
    world: Weak<Mutex<World>>,
    /// Refuses every item whose number plus the tag is divisible by this, if not 0.
    refuses: u32,
}

impl Recorder {
    fn hear(&mut self, event: Ev) {
        self.tape.push(event);
        let Some(world) = self.world.upgrade() else { return };
        let action = lock(&world).in_hook.take();
        if let Some(cmd) = action {
            lock(&world).act(cmd);
        }
    }

    fn name(&mut self, to: Recipient<'_, Key>) -> Att {
        let att = usize::try_from(to.tag).unwrap_or(usize::MAX);
        let named = self.world.upgrade().and_then(|world| lock(&world).keys.get(att).copied());
        if named.is_some_and(|key| key != to.key.0) {
            self.tape.push(Ev::Misnamed(att, to.key.0));
        }
        att
    }
}

impl Hooks<Key, Item, Broken> for Recorder {
    fn admit(&mut self, to: Recipient<'_, Key>, item: &Item) -> bool {
        let att = self.name(to);
        let sum = item.seq + u32::try_from(att).unwrap_or(0);
        let admits = self.refuses == 0 || sum % self.refuses != 0;
        self.hear(Ev::Admit(att, item.seq, admits));
        admits
    }

    fn attached(&mut self, to: Recipient<'_, Key>) {
        let att = self.name(to);
        self.hear(Ev::Attached(att));
    }

    fn detached(&mut self, to: Recipient<'_, Key>, why: Detached<Broken>) {
        let att = self.name(to);
        let why = match why {
            Detached::Finished => Why::Farewell(FINISHED),
            Detached::Requested => Why::Farewell(REQUESTED),
            Detached::Replaced => Why::Farewell(REPLACED),
            Detached::Limited => Why::Farewell(LIMITED),
            Detached::Refused => Why::Farewell(REFUSED),
            Detached::Evicted => Why::Evicted,
            Detached::Overflowed => Why::Overflowed,
            Detached::Failed(Broken(op)) => Why::Failed(op),
            _ => Why::Unknown,
        };
        self.hear(Ev::Detached(att, why));
    }

    fn unmatched(&mut self, item: Item) {
        self.hear(Ev::Unmatched(item.seq));
    }

    fn discarded(&mut self, to: Recipient<'_, Key>, item: Item, why: Discarded) {
        let att = self.name(to);
        self.hear(Ev::Discarded(att, item.seq, why));
    }

    fn blocked(&mut self, on: Recipient<'_, Key>) {
        let att = self.name(on);
        self.hear(Ev::Blocked(att));
    }

    fn unblocked(&mut self, on: Recipient<'_, Key>) {
        let att = self.name(on);
        self.hear(Ev::Unblocked(att));
    }
}

// ---- the script ---------------------------------------------------------------------------------

/// Reads a script; past its end there are only zeros.
struct Bytes<'a>(std::slice::Iter<'a, u8>);

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        self.0.next().copied()
    }

    fn arg(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    fn settings(&mut self) -> Settings {
        const BUDGETS: [usize; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 4, 12, 16, 64, 128, 256];
        const WINDOWS: [usize; 8] = [1, 2, 3, 5, 8, 16, 64, 16_384];
        let (a, b, c) = (self.arg(), self.arg(), self.arg());
        Settings {
            budget: BUDGETS[usize::from(a & 15)],
            multicast: a & 16 != 0,
            refuses: [0, 0, 0, 0, 0, 0, 3, 5][usize::from(a >> 5)],
            buffer: usize::from(b & 3),
            overflow: overflow(b >> 2 & 7).unwrap_or_default(),
            flush_every: WINDOWS[usize::from(c & 7)],
            drops: c & 8 != 0,
        }
    }

    fn step(&mut self) -> Option<Step> {
        let op = self.next()?;
        Some(match op % 32 {
            op @ 0..=22 => Step::Do(self.cmd(op)),
            23..=25 => {
                let (place, op) = (self.arg(), self.arg() % 23);
                let place = match place % 8 {
                    0 | 1 => Place::Input,
                    2 => Place::Orders,
                    3 => Place::Hook,
                    _ => Place::Sink(usize::from(place >> 3), OPS[usize::from(place % 4)]),
                };
                Step::Inside(place, self.cmd(op))
            }
            26 if self.arg() % 2 == 0 => Step::RenewWaker,
            26 => Step::PollUnasked,
            27 | 28 => Step::Poll,
            _ => Step::Run,
        })
    }

    fn cmd(&mut self, op: u8) -> Cmd {
        match op {
            0..=6 => {
                let arg = self.arg();
                Cmd::Items { key: arg % ITEM_KEYS, count: 1 + (arg / ITEM_KEYS) % 5 }
            }
            7..=11 => self.attach(),
            12 => Cmd::Order(What::Detach(self.arg() % KEYS)),
            13 => Cmd::Order(What::Evict(self.arg() % KEYS)),
            14 => match self.arg() % 16 {
                0 => Cmd::Order(What::Finish),
                1 => Cmd::EndOrders,
                2 => Cmd::EndInput,
                3..=6 => Cmd::StutterOrders,
                7..=9 => Cmd::StutterInput,
                10 | 11 => Cmd::WakeOrders,
                12 | 13 => Cmd::WakeInput,
                _ => Cmd::Nothing,
            },
            15 | 16 => {
                let arg = self.arg();
                let wish = [Some(Wish::Evict), Some(Wish::Detach), None, Some(Wish::Evict)];
                Cmd::Lease(usize::from(arg & 3), wish[usize::from(arg >> 2 & 3)])
            }
            _ => {
                let (sink, cue) = (self.arg(), self.arg());
                Cmd::Cue(usize::from(sink), cue_of(cue))
            }
        }
    }

    fn attach(&mut self) -> Cmd {
        let (a, b, c) = (self.arg(), self.arg(), self.arg());
        let lease = |bits: u8| (bits & 4 != 0).then_some(usize::from(bits & 3));
        Cmd::Attach {
            terms: Terms {
                key: a % KEYS,
                buffer: [None, Some(0), Some(1), Some(3)][usize::from(a >> 2 & 3)],
                overflow: overflow(a >> 4 & 7),
                limit: match b & 7 {
                    5 => Some(1),
                    6 => Some(2),
                    7 => Some([0, 4][usize::from(b >> 3 & 1)]),
                    _ => None,
                },
                keep_existing: b >> 3 & 7 == 7,
                catch_all: b >> 6 == 3,
            },
            leases: [lease(c), lease(c >> 3).filter(|_| c & 4 != 0)],
            cue: match c >> 6 {
                0 => None,
                1 => Some(Cue::Park),
                2 => Some(Cue::Allow(1)),
                _ => Some(cue_of(a ^ b)),
            },
        }
    }
}

const OPS: [Op; 4] = [Op::Ready, Op::Send, Op::Flush, Op::Close];

fn overflow(bits: u8) -> Option<Overflow> {
    match bits & 7 {
        0..=2 => None,
        3 | 4 => Some(Overflow::Wait),
        5 => Some(Overflow::DropNewest),
        6 => Some(Overflow::DropOldest),
        _ => Some(Overflow::Evict),
    }
}

fn cue_of(arg: u8) -> Cue {
    let calls = 1 + usize::from(arg >> 6);
    match arg % 32 {
        0..=3 => Cue::Park,
        4..=6 => Cue::Open,
        7..=9 => Cue::Allow(calls.min(3)),
        10 | 11 => Cue::Hold(Op::Flush),
        12 | 13 => Cue::Hold(Op::Close),
        14 | 15 => Cue::Release(Op::Flush),
        16 | 17 => Cue::Release(Op::Close),
        18 => Cue::Fail(Op::Ready),
        19 => Cue::Fail(Op::Send),
        20 => Cue::Fail(Op::Flush),
        21 => Cue::Fail(Op::Close),
        22 => Cue::FailQuietly(OPS[usize::from(arg >> 6)]),
        23 | 24 => Cue::Stutter(Op::Ready, calls),
        25 => Cue::Stutter(Op::Flush, calls),
        26 => Cue::Stutter(Op::Close, calls),
        _ => Cue::Wake,
    }
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    budget: usize,
    multicast: bool,
    refuses: u32,
    buffer: usize,
    overflow: Overflow,
    flush_every: usize,
    /// The future is dropped at the end of the script, wherever it is; else it is brought to its end.
    drops: bool,
}

/// Everything outside the demux.
struct World {
    tape: Tape,
    live: Arc<()>,
    input: Option<StreamHandle<Item>>,
    orders: StreamHandle<Letter>,
    sinks: Vec<SinkHandle<Item>>,
    keys: Vec<u8>,
    leases: [(Option<Lease>, Vec<Att>); 4],
    seq: u32,
    input_ended: bool,
    orders_ended: bool,
    in_hook: Option<Cmd>,
    /// The script is over: nothing planned happens any more.
    over: bool,
    me: Weak<Mutex<World>>,
}

impl World {
    /// Does it inside a poll.
    fn act(&mut self, cmd: Cmd) {
        if !self.over {
            self.tape.push(Ev::Do(cmd));
            self.exec(cmd);
        }
    }

    fn exec(&mut self, cmd: Cmd) {
        match cmd {
            Cmd::Items { key, count } => {
                for _ in 0..count {
                    if self.seq >= MAX_ITEMS || self.input_ended {
                        return;
                    }
                    let (tape, live) = (self.tape.clone(), Arc::clone(&self.live));
                    let item = Item { seq: self.seq, key, tape, live };
                    self.seq += 1;
                    if let Some(input) = &self.input {
                        input.push(item);
                    }
                }
            }
            Cmd::Attach { terms, leases, cue } => self.attach(terms, leases, cue),
            Cmd::Order(what) => {
                let order = match what {
                    What::Attach(_) => return,
                    What::Detach(key) => Order::Detach(Key(key)),
                    What::Evict(key) => Order::Evict(Key(key)),
                    What::Finish => Order::Finish,
                };
                self.send(what, order);
            }
            Cmd::EndOrders if !self.orders_ended => {
                self.tape.push(Ev::OrdersWoken);
                self.orders_ended = true;
                self.orders.end();
            }
            Cmd::EndInput if !self.input_ended => {
                self.input_ended = true;
                if let Some(input) = &self.input {
                    input.end();
                }
            }
            Cmd::StutterOrders if !self.orders_ended => {
                self.tape.push(Ev::OrdersWoken);
                self.orders.stutter();
            }
            Cmd::StutterInput => {
                if let Some(input) = &self.input {
                    input.stutter();
                }
            }
            Cmd::WakeOrders => {
                self.tape.push(Ev::OrdersWoken);
                self.orders.wake();
            }
            Cmd::WakeInput => drop(self.input.as_ref().map(StreamHandle::wake)),
            Cmd::Lease(lease, wish) => {
                let (lease, held) = std::mem::take(&mut self.leases[lease % 4]);
                let Some(lease) = lease else { return };
                self.tape.push(Ev::Wish(held, wish.unwrap_or(Wish::Stay)));
                match wish {
                    None => lease.disarm(),
                    Some(Wish::Detach) => lease.detach(),
                    Some(_) => drop(lease),
                }
            }
            Cmd::Cue(sink, cue) => {
                if !self.sinks.is_empty() {
                    // Counted from the newest, so that a script can mean the one it has just made.
                    let sink = self.sinks.len() - 1 - sink % self.sinks.len();
                    self.cue(sink, cue);
                }
            }
            Cmd::EndOrders | Cmd::EndInput | Cmd::StutterOrders | Cmd::Nothing => {}
        }
    }

    fn attach(&mut self, terms: Terms, leases: [Option<usize>; 2], cue: Option<Cue>) {
        if self.sinks.len() == MAX_SINKS || self.orders_ended {
            return;
        }
        let att = self.sinks.len();
        let (sink, handle) = scripted_sink(att);
        handle.lenient(); // the model knows better when asking again is excused
        let sink = Watched { att, sink, handle: handle.clone(), tape: self.tape.clone() };
        let Terms { key, buffer, overflow, limit, keep_existing, catch_all } = terms;
        let mut attach = Attach::new(Key(key), sink).tag(att as u64);
        if let Some(buffer) = buffer {
            attach = attach.buffer(buffer);
        }
        if let Some(overflow) = overflow {
            attach = attach.overflow(overflow);
        }
        if let Some(limit) = limit {
            attach = attach.limit(limit);
        }
        if keep_existing {
            attach = attach.keep_existing();
        }
        if catch_all {
            attach = attach.catch_all();
        }
        for lease in leases.into_iter().flatten() {
            let (lease, held) = &mut self.leases[lease % 4];
            attach = attach.leased(lease.get_or_insert_with(Lease::new));
            held.push(att);
        }
        self.sinks.push(handle);
        self.keys.push(key);
        self.tape.push(Ev::Born(att, terms));
        if let Some(cue) = cue {
            self.cue(att, cue);
        }
        self.send(What::Attach(att), attach.into());
    }

    fn send(&mut self, what: What, order: Order<Key, Watched>) {
        if !self.orders_ended {
            self.tape.push(Ev::Sent(what));
            self.tape.push(Ev::OrdersWoken);
            self.orders.push(Letter { what, order });
        }
    }

    fn cue(&mut self, att: Att, cue: Cue) {
        let sink = &self.sinks[att];
        let waiting = [Op::Ready, Op::Flush, Op::Close].map(|op| sink.is_waiting(op));
        // On the tape first: what is woken may be said to be so.
        let event = if sink.is_dropped() { Ev::Stale } else { Ev::Woken(att) };
        let wakes = match cue {
            Cue::Park
            | Cue::Hold(_)
            | Cue::FailQuietly(_)
            | Cue::Stutter(..)
            | Cue::Release(Op::Send)
            | Cue::Fail(Op::Send) => false,
            Cue::Open | Cue::Allow(_) | Cue::Release(Op::Ready) | Cue::Fail(Op::Ready) => {
                waiting[0]
            }
            Cue::Release(Op::Flush) | Cue::Fail(Op::Flush) => waiting[1],
            Cue::Release(Op::Close) | Cue::Fail(Op::Close) => waiting[2],
            Cue::Wake => sink.waker().is_some(),
        };
        if wakes {
            self.tape.push(event);
        }
        match cue {
            Cue::Park => sink.park(),
            Cue::Open => sink.open(),
            Cue::Allow(sends) => sink.allow(sends),
            Cue::Hold(op) => sink.hold(op),
            Cue::Release(op) => sink.release(op),
            Cue::Fail(op) => sink.fail(op),
            Cue::FailQuietly(op) => sink.fail_quietly(op),
            Cue::Stutter(op, calls) => sink.stutter(op, calls),
            Cue::Wake => drop(sink.wake()),
        }
    }

    fn plan(&mut self, place: Place, cmd: Cmd) {
        let me = self.me.clone();
        let action = move || {
            if let Some(world) = me.upgrade() {
                lock(&world).act(cmd);
            }
        };
        match place {
            Place::Input => {
                if let Some(input) = &self.input {
                    input.action(action);
                }
            }
            Place::Orders => {
                self.tape.push(Ev::OrdersWoken);
                self.orders.action(action);
            }
            Place::Hook => self.in_hook = Some(cmd),
            Place::Sink(sink, op) => {
                if !self.sinks.is_empty() {
                    let sink = self.sinks.len() - 1 - sink % self.sinks.len();
                    self.sinks[sink].during(op, action);
                }
            }
        }
    }
}

type Future =
    Demux<WatchedStream<Item>, ByValue<fn(&Item) -> Key>, WatchedStream<Letter>, Recorder>;

/// One run of one script.
struct Run<'a> {
    script: Bytes<'a>,
    bytes: &'a [u8],
    settings: Settings,
    world: Arc<Mutex<World>>,
    tape: Tape,
    read: usize,
    task: Option<Task<Future>>,
    monitor: Monitor,
    idle: usize,
    completed: bool,
}

impl<'a> Run<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let mut script = Bytes(bytes.iter());
        let settings = script.settings();
        let tape = Tape::default();
        let (input, input_handle) = scripted_stream("input");
        let (orders, orders_handle) = scripted_stream("orders");
        let world = Arc::new_cyclic(|me| {
            Mutex::new(World {
                tape: tape.clone(),
                live: Arc::default(),
                input: Some(input_handle),
                orders: orders_handle.clone(),
                sinks: Vec::new(),
                keys: Vec::new(),
                leases: Default::default(),
                seq: 0,
                input_ended: false,
                orders_ended: false,
                in_hook: None,
                over: false,
                me: me.clone(),
            })
        });
        let input = WatchedStream {
            stream: input,
            asks: None,
            tell: Box::new(|answer| match answer {
                Poll::Ready(Some(Item { seq, key, .. })) => Ev::Read(*seq, *key),
                Poll::Ready(None) => Ev::InputEnd,
                Poll::Pending => Ev::InputPending,
            }),
            tape: tape.clone(),
        };
        let orders = WatchedStream {
            stream: orders,
            asks: Some(Ev::AskOrders),
            tell: Box::new(move |answer| match answer {
                Poll::Ready(Some(letter)) => Ev::Order(letter.what),
                Poll::Ready(None) => Ev::OrdersEnd,
                Poll::Pending => Ev::OrdersPending { stutters: !orders_handle.is_waiting() },
            }),
            tape: tape.clone(),
        };
        let recorder = Recorder {
            tape: tape.clone(),
            world: Arc::downgrade(&world),
            refuses: settings.refuses,
        };
        let mut demux = input
            .demux_by(key_of as fn(&Item) -> Key, orders)
            .hooks(recorder)
            .budget(settings.budget)
            .buffer(settings.buffer)
            .overflow(settings.overflow)
            .flush_every(settings.flush_every);
        if settings.multicast {
            demux = demux.multicast();
        }
        Self {
            script,
            bytes,
            settings,
            world,
            tape,
            read: 0,
            task: Some(Task::new(demux)),
            monitor: Monitor::new(settings),
            idle: 0,
            completed: false,
        }
    }

    /// Plays the script to its end. What was wrong, if anything.
    fn guarded(&mut self) -> Option<String> {
        match catch_unwind(AssertUnwindSafe(|| self.play())) {
            Ok(Err(lost)) if lost == LOST => {
                self.monitor.summary.count("given up");
                None
            }
            Ok(played) => played.err(),
            Err(payload) => Some(match payload.downcast::<String>() {
                Ok(message) => *message,
                Err(payload) => match payload.downcast::<&str>() {
                    Ok(message) => (*message).to_owned(),
                    Err(_) => "a panic without words".to_owned(),
                },
            }),
        }
    }

    fn story(&self, complaint: Option<&str>) -> String {
        let mut story = format!("script {:?}\n{:?}\n", self.bytes, self.settings);
        for event in lock(&self.tape.0).iter() {
            let margin = match event {
                Ev::Ask(..) | Ev::AskOrders | Ev::OrdersWoken | Ev::Sent(_) => continue,
                Ev::Step(_) => "",
                event if event.is_outside() => "  ",
                _ => "    ",
            };
            let _ = writeln!(story, "{margin}{event:?}");
        }
        if let Some(complaint) = complaint {
            let _ = writeln!(story, "WRONG: {complaint}");
        }
        story
    }

    fn play(&mut self) -> Result<(), String> {
        for _ in 0..MAX_STEPS {
            let Some(step) = self.script.step() else { break };
            self.tape.push(Ev::Step(step));
            match step {
                Step::Do(cmd) => lock(&self.world).exec(cmd),
                Step::Inside(place, cmd) => lock(&self.world).plan(place, cmd),
                Step::RenewWaker => self.task.as_mut().into_iter().for_each(Task::renew_waker),
                Step::Poll => drop(self.turn(false)?),
                Step::PollUnasked => drop(self.turn(true)?),
                Step::Run => self.until_asleep()?,
            }
        }
        if !self.settings.drops {
            self.finish()?;
        }
        Self::read_tape(&self.tape, &mut self.read, &mut self.monitor)?;
        self.end()
    }

    fn until_asleep(&mut self) -> Result<(), String> {
        for _ in 0..MAX_POLLS {
            if !self.turn(false)? {
                return Ok(());
            }
        }
        Err(format!("still awake after {MAX_POLLS} polls"))
    }

    /// Polls once, if it is due or `unasked`. Whether it was polled and is not complete.
    fn turn(&mut self, unasked: bool) -> Result<bool, String> {
        let Some(task) = self.task.as_mut().filter(|_| !self.completed) else { return Ok(false) };
        let polls = task.polls();
        self.tape.push(Ev::Turn);
        let before = lock(&self.tape.0).len();
        let answer = if unasked { task.poll() } else { task.turns(1) };
        if task.polls() == polls {
            lock(&self.tape.0).pop();
            return Ok(false);
        }
        let asleep = answer.is_pending() && !task.woken();
        let quiet = lock(&self.tape.0).len() == before;
        self.idle = if quiet && !asleep && !unasked { self.idle + 1 } else { 0 };
        if self.idle > MAX_IDLE {
            return Err(format!("the task was woken {MAX_IDLE} times for nothing"));
        }
        let demux = task.get_ref();
        let totals = demux.totals();
        let world = lock(&self.world);
        let view = View {
            totals,
            asleep,
            completed: answer.is_ready(),
            len: demux.len(),
            keys: std::array::from_fn(|key| demux.contains_key(&Key(u8::try_from(key).unwrap()))),
            blocked_on: demux.blocked_on().map(|on| usize::try_from(on.tag).unwrap_or(usize::MAX)),
            terminated: demux.is_terminated(),
            live: Arc::strong_count(&world.live) - 1,
            input: world.input.as_ref(),
            orders: &world.orders,
            sinks: &world.sinks,
        };
        if let Poll::Ready(output) = answer {
            if output != totals {
                return Err(format!("completed with {output:?}, but totals() is {totals:?}"));
            }
            self.tape.push(Ev::Completed);
        } else {
            self.tape.push(Ev::Rest { asleep, totals });
        }
        Self::read_tape(&self.tape, &mut self.read, &mut self.monitor)?;
        self.monitor.rest(&view)?;
        drop(world);
        if answer.is_ready() {
            self.completed = true;
            self.check_dropped(false)?;
        }
        Ok(true)
    }

    fn read_tape(tape: &Tape, read: &mut usize, monitor: &mut Monitor) -> Result<(), String> {
        let tape = lock(&tape.0);
        for event in &tape[*read..] {
            *read += 1;
            monitor.observe(event)?;
        }
        Ok(())
    }

    /// Lets everything go its way, until the future completes.
    fn finish(&mut self) -> Result<(), String> {
        {
            let mut world = lock(&self.world);
            world.over = true;
            world.in_hook = None;
            for sink in 0..world.sinks.len() {
                for op in OPS {
                    world.sinks[sink].during(op, || {});
                    if op != Op::Send {
                        world.sinks[sink].stutter(op, 0);
                        world.cue(sink, Cue::Release(op));
                    }
                }
            }
            world.exec(Cmd::EndInput);
        }
        self.until_asleep()?;
        if self.completed {
            Ok(())
        } else {
            Err("everything is open, and it does not complete".into())
        }
    }

    /// What is gone after completion, or after the future was dropped.
    fn check_dropped(&self, future: bool) -> Result<(), String> {
        let world = lock(&self.world);
        let input = world.input.as_ref();
        for (att, sink) in world.sinks.iter().enumerate() {
            if self.monitor.recs[att].applied && !sink.is_dropped() {
                return Err(format!("sink {att} outlives the end"));
            }
        }
        if !world.orders.is_dropped() {
            return Err("the orders outlive the end".into());
        }
        if future != input.is_none_or(StreamHandle::is_dropped) {
            return Err("the input goes with the future, not before".into());
        }
        let left = input.map_or(0, StreamHandle::left);
        let taken: usize = world.sinks.iter().map(SinkHandle::taken).sum();
        let live = Arc::strong_count(&world.live) - 1;
        if live != left + taken {
            return Err(format!("{live} items live: {left} unread and {taken} taken are known"));
        }
        Ok(())
    }

    /// Drops the future, and pulls at everything that outlives it.
    fn end(&mut self) -> Result<(), String> {
        lock(&self.world).over = true;
        let Some(mut task) = self.task.take() else { return Ok(()) };
        task.drop_future();
        self.check_dropped(true)?;
        let wakes = task.total_wakes() + task.stale_wakes();
        let mut world = lock(&self.world);
        // The input has the task's own waker, and its handle remembers it.
        world.input = None;
        if task.wakers_kept() > 0 {
            return Err(format!("{} wakers of the task are kept", task.wakers_kept()));
        }
        for sink in &world.sinks {
            sink.wake();
        }
        world.orders.wake();
        for lease in 0..4 {
            world.exec(Cmd::Lease(lease, Some(Wish::Evict)));
        }
        if task.total_wakes() + task.stale_wakes() > wakes {
            return Err("a waker that outlives the future wakes the task".into());
        }
        Ok(())
    }
}

// ---- the model ----------------------------------------------------------------------------------

const FINISHED: u8 = 1;
const REQUESTED: u8 = 2;
const REPLACED: u8 = 4;
const LIMITED: u8 = 8;
const REFUSED: u8 = 16;

/// What can be seen of the demux between two polls.
struct View<'a> {
    totals: Totals,
    asleep: bool,
    completed: bool,
    len: usize,
    keys: [bool; KEYS as usize],
    blocked_on: Option<Att>,
    terminated: bool,
    live: usize,
    input: Option<&'a StreamHandle<Item>>,
    orders: &'a StreamHandle<Letter>,
    sinks: &'a [SinkHandle<Item>],
}

/// What was seen of a sink: never in doubt.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, Default)]
struct Rec {
    applied: bool,
    dropped: bool,
    closing: bool,
    promised: bool,
    taken: u32,
    flush_asked: u32,
    flush_pending: bool,
    /// How many items had been read when it took the first one that is not flushed.
    stamp: u64,
    /// What last answered Pending: how many items it had taken then.
    waits: [Option<u32>; 4],
    /// Its waker fired, and so each operation may be asked again once: from which turn on. A wake that
    /// came before the Pending answer counts, as long as nobody has slept since.
    woken: [Vec<u32>; 4],
    /// A new tenant of an old slot may be asked once for the old one's sake.
    spurious: [bool; 4],
}

/// Reads the tape.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Monitor {
    settings: Settings,
    recs: Vec<Rec>,
    beliefs: Vec<State>,
    summary: Summary,
    /// Keys of the items read.
    keys: BTreeMap<u32, u8>,
    turn: u32,
    received: u64,
    copies: u64,
    drops: u32,
    orders_sent: usize,
    orders_read: usize,
    orders_ended: bool,
    /// Turns in which the orders woke themselves and gave nothing, since they gave something.
    stutters: u32,
    yielded: bool,
    /// The orders answered Pending; their waker fired since they were asked.
    orders_pending: bool,
    orders_woken: bool,
    /// In which turn they woke themselves, if that is what they answered last.
    orders_stuttered: Option<u32>,
    /// An item that was read and not yet routed, and the orders that come before it.
    fresh: Option<(u32, usize)>,
    cost: Cost,
}

#[derive(Default)]
struct Cost {
    orders: usize,
    reads: usize,
    sends: usize,
    flushes: usize,
    tells: usize,
}

impl Monitor {
    fn new(settings: Settings) -> Self {
        Self {
            settings,
            recs: Vec::new(),
            beliefs: vec![State::new(settings)],
            summary: Summary::default(),
            keys: BTreeMap::new(),
            turn: 0,
            received: 0,
            copies: 0,
            drops: 0,
            orders_sent: 0,
            orders_read: 0,
            orders_ended: false,
            stutters: 0,
            yielded: false,
            orders_pending: false,
            orders_woken: false,
            orders_stuttered: None,
            fresh: None,
            cost: Cost::default(),
        }
    }

    fn observe(&mut self, event: &Ev) -> Result<(), String> {
        self.note(event).map_err(|complaint| format!("{event:?}: {complaint}"))?;
        if matches!(
            event,
            Ev::Step(_)
                | Ev::Do(_)
                | Ev::Clone(_)
                | Ev::Turn
                | Ev::Woken(_)
                | Ev::AskOrders
                | Ev::Ask(..)
        ) {
            return Ok(());
        }
        let (recs, mut next, mut complaints) = (&self.recs, Vec::new(), Vec::new());
        let beliefs = std::mem::take(&mut self.beliefs);
        let Some(possible) = State::possible(beliefs, event, recs, &self.keys) else {
            return Err(LOST.into());
        };
        for belief in possible {
            match belief.step(event, recs, &self.keys, &mut next) {
                Ok(()) => {}
                Err(complaint) => complaints.push(complaint),
            }
        }
        dedup(&mut next);
        if next.is_empty() {
            complaints.dedup();
            return Err(format!("{event:?}: {}", complaints.join("; or ")));
        }
        if next.len() > MAX_BELIEFS {
            return Err(LOST.into());
        }
        if next.len() > 1 {
            self.summary.count("doubt");
        }
        self.beliefs = next;
        Ok(())
    }

    /// What needs no model.
    fn note(&mut self, event: &Ev) -> Result<(), String> {
        self.tally(event);
        match *event {
            Ev::Born(..) => self.recs.push(Rec::default()),
            Ev::Sent(_) => self.orders_sent += 1,
            Ev::Woken(att) => self.recs[att].wake(self.turn),
            Ev::Stale => {
                let turn = self.turn;
                self.recs.iter_mut().for_each(|rec| rec.wake(turn));
            }
            Ev::Turn => {
                self.turn += 1;
                self.yielded = false;
                self.cost = Cost::default();
            }
            Ev::Read(seq, key) => {
                self.received += 1;
                self.cost.reads += 1;
                self.keys.insert(seq, key);
                self.fresh = Some((seq, self.orders_sent));
                return self.check_windows();
            }
            Ev::Order(what) => {
                self.orders_read += 1;
                self.cost.orders += 1;
                self.stutters = 0;
                match what {
                    What::Attach(att) => {
                        self.recs[att].applied = true;
                        self.recs[att].spurious = [self.drops > 0; 4];
                    }
                    // An overtaken item is routed now, before the orders that follow.
                    What::Finish => self.fresh = None,
                    What::Detach(_) | What::Evict(_) => {}
                }
            }
            Ev::OrdersWoken => self.orders_woken = true,
            Ev::AskOrders => {
                let spun = self.orders_stuttered == Some(self.turn);
                if self.orders_pending && !self.orders_woken {
                    match self.orders_stuttered {
                        None => return Err("asked again before their waker fired".into()),
                        Some(_) if spun => {
                            return Err(
                                "asked again in the turn in which they woke themselves".into()
                            );
                        }
                        Some(_) => {}
                    }
                }
                (self.orders_pending, self.orders_woken) = (false, false);
                self.orders_stuttered = None;
            }
            Ev::OrdersPending { stutters } => {
                let stutters = stutters || self.orders_woken;
                (self.orders_pending, self.orders_woken) = (true, false);
                self.orders_stuttered = stutters.then_some(self.turn);
                self.stutters = if stutters { self.stutters + 1 } else { 0 };
                self.yielded = self.stutters == 1;
            }
            Ev::OrdersEnd => self.orders_ended = true,
            Ev::Admit(_, seq, _) | Ev::Unmatched(seq) => return self.check_orders_first(seq),
            Ev::Clone(_) => self.copies += 1,
            Ev::Drop(att) => {
                self.drops += 1;
                self.recs[att].dropped = true;
            }
            Ev::Ready(att, said) => self.answered(att, Op::Ready, said),
            Ev::Ask(att, op) => {
                let first = op == Op::Close && !self.recs[att].closing;
                let ends = |belief: &State| belief.atts[att].was_told_with_all();
                self.cost.tells += usize::from(first && self.beliefs.iter().all(ends));
                return self.asked(att, op);
            }
            Ev::Send(att, _, said) => self.answered(att, Op::Send, said),
            Ev::Flush(att, said) => self.answered(att, Op::Flush, said),
            Ev::Close(att, said) => self.answered(att, Op::Close, said),
            Ev::Misnamed(att, key) => {
                return Err(format!("the tag is {att}'s, the key {key} is not"));
            }
            _ => {}
        }
        Ok(())
    }

    fn tally(&mut self, event: &Ev) {
        self.summary.count(match *event {
            Ev::Read(..) => "read",
            Ev::Order(What::Attach(_)) => "order: attach",
            Ev::Order(What::Detach(_)) => "order: detach",
            Ev::Order(What::Evict(_)) => "order: evict",
            Ev::Order(What::Finish) => "order: finish",
            Ev::OrdersPending { stutters: true } => "orders stutter",
            Ev::Ready(_, Said::Stutters) => "ready stutters",
            Ev::Flush(_, Said::Pending) => "flush pending",
            Ev::Close(_, Said::Pending) => "close pending",
            Ev::Send(_, _, Said::Done) => "delivered",
            Ev::Send(..) => "lost",
            Ev::Clone(_) => "copied",
            Ev::Stale => "stale wake",
            Ev::Unmatched(_) => "unmatched",
            Ev::Blocked(_) => "blocked",
            Ev::Discarded(_, _, Discarded::NotAdmitted) => "discarded: not admitted",
            Ev::Discarded(_, _, Discarded::Overflowed) => "discarded: overflowed",
            Ev::Discarded(_, _, Discarded::Evicted) => "discarded: evicted",
            Ev::Discarded(_, _, Discarded::Failed) => "discarded: failed",
            Ev::Detached(_, Why::Farewell(FINISHED)) => "detached: finished",
            Ev::Detached(_, Why::Farewell(REQUESTED)) => "detached: requested",
            Ev::Detached(_, Why::Farewell(REPLACED)) => "detached: replaced",
            Ev::Detached(_, Why::Farewell(LIMITED)) => "detached: limited",
            Ev::Detached(_, Why::Farewell(_)) => "detached: refused",
            Ev::Detached(_, Why::Evicted) => "detached: evicted",
            Ev::Detached(_, Why::Overflowed) => "detached: overflowed",
            Ev::Detached(_, Why::Failed(_)) => "detached: failed",
            Ev::Completed => "completed",
            Ev::Turn => "turns",
            _ => "other",
        });
    }

    /// Guarantee 1: orders before items.
    fn check_orders_first(&mut self, seq: u32) -> Result<(), String> {
        let Some((fresh, orders)) = self.fresh else { return Ok(()) };
        if fresh != seq {
            return Ok(());
        }
        self.fresh = None;
        if self.orders_read < orders && !self.orders_ended && self.stutters < 2 {
            let unread = orders - self.orders_read;
            return Err(format!("{unread} orders were ready before this item and are not applied"));
        }
        if self.yielded {
            return Err("routed in the turn in which the orders woke themselves".into());
        }
        Ok(())
    }

    /// Guarantee 6: a busy input is read on for no more than a window.
    fn check_windows(&self) -> Result<(), String> {
        let window = self.settings.flush_every as u64;
        for (att, rec) in self.recs.iter().enumerate() {
            let late = rec.taken > rec.flush_asked && self.received - rec.stamp > window;
            if late && !self.beliefs.iter().all(|belief| belief.atts[att].needs_no_flush()) {
                return Err(format!("{att} was to be flushed before this is read"));
            }
        }
        Ok(())
    }

    /// The contract of a sink, and guarantee 4.
    fn asked(&mut self, att: Att, op: Op) -> Result<(), String> {
        let turn = self.turn;
        self.cost.sends += usize::from(op == Op::Send);
        let rec = &mut self.recs[att];
        if rec.dropped || !rec.applied {
            return Err("the sink is not attached".into());
        }
        if let Some(taken) = rec.waits[op as usize] {
            let more = op == Op::Flush && rec.taken > taken;
            let woken = &mut rec.woken[op as usize];
            let heard = woken.iter().position(|from| *from <= turn);
            if let (Some(at), false) = (heard, more) {
                woken.remove(at);
            } else if !more && !std::mem::take(&mut rec.spurious[op as usize]) {
                return Err(if woken.is_empty() {
                    "asked again before its waker fired".into()
                } else {
                    "asked again in the turn in which it woke itself".into()
                });
            }
        }
        if op == Op::Flush && rec.taken == rec.flush_asked && !rec.flush_pending {
            return Err("there is nothing to flush".into());
        }
        // A flush that was woken is in the price of looking after the sink.
        self.cost.flushes += usize::from(op == Op::Flush && !rec.flush_pending);
        Ok(())
    }

    /// What a sink answered.
    fn answered(&mut self, att: Att, op: Op, said: Said) {
        let (turn, received) = (self.turn, self.received);
        let rec = &mut self.recs[att];
        if said == Said::Stutters {
            rec.wake(turn + 1);
        }
        let pending = matches!(said, Said::Pending | Said::Stutters);
        rec.waits[op as usize] = pending.then_some(rec.taken);
        match op {
            Op::Ready => rec.promised = said == Said::Done,
            Op::Send => {
                rec.promised = false;
                if said == Said::Done {
                    if rec.taken == rec.flush_asked {
                        rec.stamp = received;
                    }
                    rec.taken += 1;
                }
            }
            Op::Flush => {
                rec.flush_asked = rec.taken;
                rec.flush_pending = pending;
            }
            Op::Close => rec.closing = true,
        }
    }

    /// What must hold between two polls.
    fn rest(&mut self, view: &View<'_>) -> Result<(), String> {
        let Cost { orders, reads, sends, flushes, tells } = self.cost;
        let cost = orders + flushes + tells + reads.max(sends);
        let group = self.beliefs.iter().map(|belief| belief.widest).max().unwrap_or(1).max(1);
        if cost > self.settings.budget + group {
            return Err(format!("a turn with a budget of {} did {cost}", self.settings.budget));
        }
        let t = view.totals;
        if t.received + t.copies != t.unmatched + t.delivered + t.discarded + t.lost + t.queued {
            return Err(format!("{t:?} does not add up"));
        }
        if t.received != self.received || t.copies != self.copies {
            return Err(format!("{} read, {} cloned, but {t:?}", self.received, self.copies));
        }
        let left = view.input.map_or(0, StreamHandle::left) as u64;
        let taken: u64 = self.recs.iter().map(|rec| u64::from(rec.taken)).sum();
        if view.live as u64 != left + taken + t.queued {
            return Err(format!(
                "{} items live: {left} unread, {taken} taken and {} queued are known",
                view.live, t.queued
            ));
        }
        if view.terminated != view.completed {
            return Err("is_terminated() disagrees".into());
        }
        let mut complaints = Vec::new();
        self.beliefs.retain_mut(|belief| match belief.rest(view) {
            Ok(()) => true,
            Err(complaint) => {
                complaints.push(complaint);
                false
            }
        });
        if self.beliefs.is_empty() {
            complaints.dedup();
            return Err(format!("after the poll: {}", complaints.join("; or ")));
        }
        dedup(&mut self.beliefs);
        if !view.asleep {
            return Ok(());
        }
        for rec in &mut self.recs {
            for (woken, wait) in rec.woken.iter_mut().zip(rec.waits) {
                if wait.is_none() {
                    woken.clear();
                }
            }
        }
        self.check_asleep(view)
    }

    /// No sleep with work left: what does not depend on the model.
    fn check_asleep(&self, view: &View<'_>) -> Result<(), String> {
        if !view.orders.is_waiting() && !self.orders_ended {
            return Err("it sleeps, and the orders are not read to their end".into());
        }
        for (att, rec) in
            self.recs.iter().enumerate().filter(|(_, rec)| rec.applied && !rec.dropped)
        {
            let sink = &view.sinks[att];
            if !rec.closing && sink.flush_asked() != sink.taken() {
                return Err(format!("it sleeps, and {att} was not flushed"));
            }
            if !rec.closing && rec.flush_pending && !sink.is_waiting(Op::Flush) {
                return Err(format!("it sleeps, and the flush that {att} waits for can go on"));
            }
            if rec.closing && !sink.is_waiting(Op::Close) {
                return Err(format!("it sleeps, and the close of {att} can go on"));
            }
        }
        Ok(())
    }
}

impl Rec {
    /// Its waker fired, and will have been heard by this turn.
    fn wake(&mut self, turn: u32) {
        for woken in &mut self.woken {
            if woken.len() < 8 {
                woken.push(turn);
            }
        }
    }

    /// It said that it is not ready, and has not taken that back.
    fn parked(&self) -> bool {
        self.waits[Op::Ready as usize].is_some()
    }
}

fn dedup(beliefs: &mut Vec<State>) {
    let mut at = 1;
    while at < beliefs.len() {
        if beliefs[..at].contains(&beliefs[at]) {
            beliefs.swap_remove(at);
        } else {
            at += 1;
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Stage {
    Unapplied,
    Receiving,
    /// `told`: it knows; else it is one of those that are leaving because the input is over.
    Leaving {
        reasons: u8,
        told: bool,
    },
    /// It is being removed: so is what waited for it.
    Removing {
        end: Why,
        discards: VecDeque<u32>,
        dropped: bool,
    },
    Gone,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, PartialEq)]
struct Attachment {
    key: u8,
    buffer: usize,
    overflow: Overflow,
    limit: Option<u64>,
    keep_existing: bool,
    catch_all: bool,
    wish: Wish,
    /// A lease wished it to leave, and nothing more when it did.
    may_leave: bool,
    stage: Stage,
    announced: bool,
    queue: VecDeque<u32>,
    accepted: u64,
}

impl Attachment {
    fn has_room(&self) -> bool {
        self.queue.len() < self.buffer
    }

    fn waits(&self) -> bool {
        self.overflow == Overflow::Wait
    }

    /// It is leaving because the input is over, as far as is known.
    fn was_told_with_all(&self) -> bool {
        self.stage == Stage::Leaving { reasons: FINISHED, told: false }
    }

    fn needs_no_flush(&self) -> bool {
        match self.stage {
            Stage::Leaving { .. } => self.queue.is_empty(),
            Stage::Receiving => false,
            Stage::Unapplied | Stage::Removing { .. } | Stage::Gone => true,
        }
    }
}

/// The item that was read last, until its fate is decided.
#[derive(Clone, Debug, PartialEq)]
struct Hand {
    seq: u32,
    /// Somebody was asked to admit it.
    routed: bool,
    caught: bool,
    to_ask: Vec<Att>,
    /// Admitted, and not yet settled.
    wanted: Vec<Att>,
    /// It had to wait; for these in turn.
    blocked: Vec<Att>,
    /// It waits for nobody any more: who has no room overflows.
    let_go: bool,
}

/// One way to explain what was seen.
#[derive(Clone, Debug, PartialEq)]
struct State {
    settings: (bool, usize, Overflow),
    groups: [Vec<Att>; KEYS as usize],
    catch_all: Option<Att>,
    hand: Option<Hand>,
    said: Option<Att>,
    refusals: Vec<(Att, u32)>,
    /// The surplus of a limited successor.
    surplus: VecDeque<u32>,
    /// An item held for several who were all evicted: one of them discards it.
    orphan: Option<(u32, Vec<Att>)>,
    over: bool,
    /// `Finish` waits for the item that orders overtook.
    finishing: bool,
    unmatched: u64,
    delivered: u64,
    discarded: u64,
    lost: u64,
    attached: u64,
    detached: u64,
    /// The largest group there was.
    widest: usize,
    /// Last, because states are compared in this order, and differ in what is above if they do.
    atts: Vec<Attachment>,
}

impl State {
    fn new(settings: Settings) -> Self {
        Self {
            settings: (settings.multicast, settings.buffer, settings.overflow),
            atts: Vec::new(),
            groups: Default::default(),
            catch_all: None,
            hand: None,
            said: None,
            refusals: Vec::new(),
            surplus: VecDeque::new(),
            orphan: None,
            over: false,
            finishing: false,
            unmatched: 0,
            delivered: 0,
            discarded: 0,
            lost: 0,
            attached: 0,
            detached: 0,
            widest: 1,
        }
    }

    // -- what may have happened unseen --

    /// These beliefs, and what they may have become before `event`, as far as `event` can tell the
    /// difference. `None`: that is too much to follow.
    fn possible(
        mut found: Vec<Self>,
        event: &Ev,
        recs: &[Rec],
        keys: &BTreeMap<u32, u8>,
    ) -> Option<Vec<Self>> {
        let rest = matches!(event, Ev::Rest { .. } | Ev::Completed);
        if event.is_outside() && !rest {
            return Some(found);
        }
        if rest && matches!(event, Ev::Rest { asleep: true, .. }) {
            // Before it sleeps, every wish has been heard.
            for belief in &mut found {
                for att in 0..belief.atts.len() {
                    if belief.is_wavering(att) {
                        belief.leave(att, REQUESTED, true);
                    }
                }
            }
            dedup(&mut found);
        }
        let mut at = 0;
        while at < found.len() {
            let mut more = Vec::new();
            found[at].unseen(event, recs, keys, &mut more);
            for other in more {
                if !found.contains(&other) {
                    found.push(other);
                }
            }
            if found.len() > MAX_BELIEFS {
                return None;
            }
            at += 1;
        }
        Some(found)
    }

    /// A lease wished it to leave, and whether it has is not known.
    fn is_wavering(&self, att: Att) -> bool {
        let Attachment { may_leave, stage, .. } = &self.atts[att];
        *stage == Stage::Receiving && *may_leave
    }

    /// What this belief may become in one unseen step.
    fn unseen(&self, event: &Ev, recs: &[Rec], keys: &BTreeMap<u32, u8>, more: &mut Vec<Self>) {
        for att in (0..self.atts.len()).filter(|&att| self.is_wavering(att)) {
            let key = self.atts[att].key;
            let matters = self.wants(att)
                || match *event {
                    Ev::Order(What::Attach(new)) => self.atts[new].key == key,
                    Ev::Admit(_, seq, _) | Ev::Unmatched(seq) => {
                        keys.get(&seq) == Some(&key) || self.catch_all == Some(att)
                    }
                    Ev::Close(closed, _) => closed == att,
                    _ => false,
                };
            if matters {
                let mut other = self.clone();
                other.leave(att, REQUESTED, true);
                more.push(other);
            }
        }
        let Some(hand) = self.hand.as_ref().filter(|hand| hand.routed && !hand.let_go) else {
            return;
        };
        if self.over && hand.to_ask.is_empty() {
            for &att in &hand.wanted {
                let mut other = self.clone();
                other.leave(att, FINISHED, false);
                more.push(other);
            }
        }
        if !hand.blocked.is_empty() && self.said.is_none() && self.takeable(recs) {
            let mut other = self.clone();
            other.let_go();
            more.push(other);
        }
    }

    // -- the item in hand --

    fn wants(&self, att: Att) -> bool {
        self.hand.as_ref().is_some_and(|hand| hand.routed && hand.wanted.contains(&att))
    }

    /// Takes `att` off the list of those who want the item in hand. Its number, and whether it was the
    /// last.
    fn settle(&mut self, att: Att) -> Option<(u32, bool)> {
        let hand = self.hand.as_mut().filter(|hand| hand.routed)?;
        let at = hand.wanted.iter().position(|&other| other == att)?;
        hand.wanted.remove(at);
        let seq = hand.seq;
        let last = hand.wanted.is_empty() && hand.to_ask.is_empty();
        if last {
            self.hand = None;
        }
        Some((seq, last))
    }

    /// Is nobody in the way of the item in hand?
    fn takeable(&self, recs: &[Rec]) -> bool {
        self.hand.as_ref().is_some_and(|hand| {
            hand.to_ask.is_empty()
                && hand.wanted.iter().all(|&att| {
                    let tenant = &self.atts[att];
                    !tenant.waits() || tenant.has_room() || recs[att].promised
                })
        })
    }

    /// An item that never had to wait goes on at once.
    fn advance(&mut self, recs: &[Rec]) {
        let new = |hand: &Hand| hand.routed && !hand.let_go && hand.blocked.is_empty();
        if self.hand.as_ref().is_some_and(new) && self.takeable(recs) {
            self.let_go();
        }
    }

    /// Those who have room queue the item; the others must send or overflow.
    fn let_go(&mut self) {
        let Some(hand) = &mut self.hand else { return };
        hand.let_go = true;
        for att in hand.wanted.clone() {
            if self.atts[att].has_room() {
                self.join_queue(att);
            }
        }
    }

    fn join_queue(&mut self, att: Att) {
        if let Some((seq, _)) = self.settle(att) {
            self.atts[att].queue.push_back(seq);
            self.accept(att);
        }
    }

    fn accept(&mut self, att: Att) {
        let tenant = &mut self.atts[att];
        tenant.accepted += 1;
        if tenant.limit.is_none_or(|limit| tenant.accepted < limit) {
            return;
        }
        match &mut tenant.stage {
            Stage::Receiving => self.leave(att, LIMITED, true),
            Stage::Leaving { reasons, told: false } => *reasons |= LIMITED,
            _ => {}
        }
    }

    // -- coming and going --

    fn unlink(&mut self, att: Att) {
        self.groups[usize::from(self.atts[att].key)].retain(|&other| other != att);
        if self.catch_all == Some(att) {
            self.catch_all = None;
        }
    }

    /// It receives nothing more, and takes its copy of the item in hand along.
    fn leave(&mut self, att: Att, reasons: u8, told: bool) {
        if let Some((seq, _)) = self.settle(att) {
            self.atts[att].queue.push_back(seq);
        }
        self.unlink(att);
        self.atts[att].stage = Stage::Leaving { reasons, told };
    }

    fn remove(&mut self, att: Att, end: Why) {
        let mut discards = std::mem::take(&mut self.atts[att].queue);
        if let Some((seq, last)) = self.settle(att) {
            if last || end != Why::Evicted {
                discards.push_back(seq);
            }
        }
        self.unlink(att);
        self.atts[att].stage = Stage::Removing { end, discards, dropped: false };
    }

    /// Why `att`, which nothing visible has ended, may be seen going.
    fn may_go(&self, att: Att, recs: &[Rec]) -> Vec<Why> {
        let tenant = &self.atts[att];
        let mut why = Vec::new();
        if !matches!(tenant.stage, Stage::Receiving | Stage::Leaving { .. }) {
            return why;
        }
        if tenant.wish == Wish::Evict {
            why.push(Why::Evicted);
        }
        let evicts = tenant.overflow == Overflow::Evict && self.overflows(att, recs);
        if evicts {
            why.push(Why::Overflowed);
        }
        why
    }

    /// Has `att` no room for the item in hand, and its sink no use for it?
    fn overflows(&self, att: Att, recs: &[Rec]) -> bool {
        self.wants(att)
            && self.hand.as_ref().is_some_and(|hand| hand.let_go)
            && !self.atts[att].has_room()
            && recs[att].parked()
    }

    fn apply(&mut self, what: What) {
        match what {
            What::Attach(att) => self.attach(att),
            What::Detach(key) => {
                for att in self.groups[usize::from(key)].clone() {
                    self.leave(att, REQUESTED, true);
                }
                for tenant in self.atts.iter_mut().filter(|tenant| tenant.key == key) {
                    if let Stage::Leaving { reasons, told: false } = &mut tenant.stage {
                        *reasons |= REQUESTED;
                    }
                }
            }
            What::Evict(key) => self.evict(key),
            What::Finish if self.over => {}
            What::Finish if self.hand.as_ref().is_some_and(|hand| !hand.routed) => {
                self.finishing = true;
            }
            What::Finish => self.over = true,
        }
    }

    fn evict(&mut self, key: u8) {
        let gone: Vec<_> = (0..self.atts.len())
            .filter(|&att| {
                let tenant = &self.atts[att];
                let here = matches!(tenant.stage, Stage::Receiving | Stage::Leaving { .. });
                here && tenant.key == key
            })
            .collect();
        if let Some(hand) = self.hand.take_if(|hand| {
            hand.routed && hand.wanted.len() > 1 && hand.wanted.iter().all(|att| gone.contains(att))
        }) {
            self.orphan = Some((hand.seq, hand.wanted));
        }
        for att in gone {
            self.remove(att, Why::Evicted);
        }
    }

    fn attach(&mut self, att: Att) {
        self.attached += 1;
        let (multicast, ..) = self.settings;
        let tenant = &mut self.atts[att];
        let (key, wish) = (usize::from(tenant.key), tenant.wish);
        let taken = self.groups[key].first().copied();
        let mut reasons = 0;
        if wish == Wish::Evict {
            let (end, discards) = (Why::Evicted, VecDeque::new());
            tenant.stage = Stage::Removing { end, discards, dropped: false };
            return;
        }
        reasons |= if wish == Wish::Detach { REQUESTED } else { 0 };
        reasons |= if self.over { FINISHED } else { 0 };
        reasons |= if tenant.limit == Some(0) { LIMITED } else { 0 };
        reasons |= if tenant.keep_existing && taken.is_some() { REFUSED } else { 0 };
        if reasons != 0 {
            tenant.stage = Stage::Leaving { reasons, told: true };
            return;
        }
        tenant.stage = Stage::Receiving;
        let backlog = match taken {
            Some(old) if !multicast => {
                self.leave(old, REPLACED, true);
                std::mem::take(&mut self.atts[old].queue)
            }
            _ => VecDeque::new(),
        };
        self.groups[key].push(att);
        self.widest = self.widest.max(self.groups[key].len());
        if self.atts[att].catch_all {
            self.catch_all = Some(att);
        }
        for seq in backlog {
            if self.atts[att].stage == Stage::Receiving {
                self.atts[att].queue.push_back(seq);
                self.accept(att);
            } else {
                self.surplus.push_back(seq);
            }
        }
        if let Some(hand) = self.hand.as_mut().filter(|hand| hand.routed && !hand.caught) {
            let first = hand.wanted.first().map(|&first| usize::from(self.atts[first].key));
            if multicast && first == Some(key) {
                hand.to_ask.push(att);
            }
        }
    }

    // -- what is seen --

    /// Nothing may be half done now.
    fn pause(&self) -> Result<(), String> {
        if let Some(&(att, seq)) = self.refusals.first() {
            return Err(format!("{att} was refused {seq}, and it was not discarded"));
        }
        if let Some(seq) = self.surplus.front() {
            return Err(format!("{seq} is surplus, and was not unmatched"));
        }
        if let Some((seq, _)) = &self.orphan {
            return Err(format!("nobody discarded {seq}"));
        }
        if self.finishing {
            return Err("Finish was applied, and the overtaken item not routed".into());
        }
        for (att, tenant) in self.atts.iter().enumerate() {
            if tenant.stage != Stage::Unapplied && !tenant.announced {
                return Err(format!("{att} was not announced"));
            }
            if let Stage::Removing { end, discards, .. } = &tenant.stage {
                return Err(format!("{att} is to go ({end:?}), with {discards:?} to be discarded"));
            }
        }
        match &self.hand {
            Some(hand) if !hand.to_ask.is_empty() => {
                Err(format!("{:?} were not asked to admit {}", hand.to_ask, hand.seq))
            }
            Some(hand) if hand.routed && (hand.let_go || hand.blocked.is_empty()) => {
                let Hand { seq, wanted, .. } = hand;
                Err(format!("{seq} is neither sent, queued, discarded nor held for {wanted:?}"))
            }
            _ => Ok(()),
        }
    }

    /// The input may be asked.
    fn may_read(&self) -> Result<(), String> {
        self.pause()?;
        if let Some(hand) = &self.hand {
            return Err(format!("the input is read while {} is held", hand.seq));
        }
        if let Some(said) = self.said {
            return Err(format!("the input is read, and waits for {said}"));
        }
        if self.over { Err("the input is over".into()) } else { Ok(()) }
    }

    fn step(
        mut self,
        event: &Ev,
        recs: &[Rec],
        keys: &BTreeMap<u32, u8>,
        out: &mut Vec<Self>,
    ) -> Result<(), String> {
        match *event {
            Ev::Born(_, terms) => {
                let (_, buffer, overflow) = self.settings;
                self.atts.push(Attachment {
                    key: terms.key,
                    buffer: terms.buffer.unwrap_or(buffer),
                    overflow: terms.overflow.unwrap_or(overflow),
                    limit: terms.limit,
                    keep_existing: terms.keep_existing,
                    catch_all: terms.catch_all,
                    wish: Wish::Stay,
                    may_leave: false,
                    stage: Stage::Unapplied,
                    announced: false,
                    queue: VecDeque::new(),
                    accepted: 0,
                });
            }
            Ev::Wish(ref held, wish) => {
                for &att in held {
                    let tenant = &mut self.atts[att];
                    if wish > tenant.wish {
                        tenant.wish = wish;
                        tenant.may_leave |= wish == Wish::Detach;
                    }
                    match &mut tenant.stage {
                        Stage::Leaving { reasons, told: false } if wish == Wish::Detach => {
                            *reasons |= REQUESTED;
                        }
                        _ => {}
                    }
                }
            }
            Ev::Read(seq, _) => {
                self.may_read()?;
                self.hand = Some(Hand {
                    seq,
                    routed: false,
                    caught: false,
                    to_ask: Vec::new(),
                    wanted: Vec::new(),
                    blocked: Vec::new(),
                    let_go: false,
                });
            }
            Ev::InputPending => self.may_read()?,
            Ev::InputEnd => {
                self.may_read()?;
                self.over = true;
            }
            Ev::Order(what) => {
                self.pause()?;
                self.apply(what);
            }
            Ev::OrdersPending { .. } | Ev::OrdersEnd | Ev::Rest { .. } | Ev::Completed => {
                self.pause()?;
            }
            Ev::Ready(att, said) => self.ready(att, said, recs)?,
            Ev::Send(att, seq, said) => return self.send(att, seq, said, recs, out),
            Ev::Flush(att, said) => {
                match self.present(att)? {
                    Stage::Leaving { told: true, .. } if self.atts[att].queue.is_empty() => {
                        return Err("it is told to close: that flushes".into());
                    }
                    _ => {}
                }
                if said == Said::Failed {
                    self.remove(att, Why::Failed("poll_flush"));
                    self.advance(recs);
                }
            }
            Ev::Close(att, said) => self.close(att, said)?,
            Ev::Drop(att) => return self.dropped(att, recs, out),
            Ev::Admit(att, seq, admits) => self.admit(att, seq, admits, recs, keys)?,
            Ev::Attached(att) => {
                let tenant = &mut self.atts[att];
                if tenant.announced || tenant.stage == Stage::Unapplied {
                    return Err("announced twice, or before its order".into());
                }
                tenant.announced = true;
            }
            Ev::Detached(att, why) => self.detached(att, why)?,
            Ev::Unmatched(seq) => self.unmatched(seq, keys)?,
            Ev::Discarded(att, seq, why) => return self.discarded(att, seq, why, recs, out),
            Ev::Blocked(att) => self.blocked(att, recs)?,
            Ev::Unblocked(att) => {
                if self.said != Some(att) {
                    return Err(format!("the input waits for {:?}", self.said));
                }
                self.said = None;
            }
            _ => {}
        }
        self.emit(out);
        Ok(())
    }

    /// Done with an event.
    fn emit(mut self, out: &mut Vec<Self>) {
        if self.over {
            for att in 0..self.atts.len() {
                if self.atts[att].stage == Stage::Receiving && !self.wants(att) {
                    let wish = self.atts[att].wish;
                    let requested = if wish >= Wish::Detach { REQUESTED } else { 0 };
                    self.leave(att, FINISHED | requested, false);
                }
            }
        }
        out.push(self);
    }

    /// The stage of one that may be asked or spoken of.
    fn present(&self, att: Att) -> Result<&Stage, String> {
        let tenant = self.atts.get(att).ok_or("there is no such attachment")?;
        match &tenant.stage {
            _ if !tenant.announced => Err("it was not announced".into()),
            stage @ (Stage::Receiving | Stage::Leaving { .. }) => Ok(stage),
            stage => Err(format!("it is {stage:?}")),
        }
    }

    fn ready(&mut self, att: Att, said: Said, recs: &[Rec]) -> Result<(), String> {
        self.present(att)?;
        if self.atts[att].queue.is_empty() && !self.wants(att) {
            return Err("no item waits for it".into());
        }
        if said == Said::Failed {
            self.remove(att, Why::Failed("poll_ready"));
        }
        self.advance(recs);
        Ok(())
    }

    fn send(
        mut self,
        att: Att,
        seq: u32,
        said: Said,
        recs: &[Rec],
        out: &mut Vec<Self>,
    ) -> Result<(), String> {
        self.present(att)?;
        let failed = said == Said::Failed;
        // Is this member alone in the way of the item in hand, if any is?
        let in_hand = self.wants(att).then(|| self.hand.as_ref().map(|hand| hand.seq)).flatten();
        let others_can = self.hand.as_ref().is_some_and(|hand| {
            hand.to_ask.is_empty()
                && hand.wanted.iter().filter(|&&other| other != att).all(|&other| {
                    let tenant = &self.atts[other];
                    !tenant.waits() || tenant.has_room() || recs[other].promised
                })
        });
        let head = self.atts[att].queue.pop_front();
        if head.or(in_hand) != Some(seq) {
            return Err(format!("{head:?} is next, or {in_hand:?}"));
        }
        if failed {
            self.lost += 1;
        } else {
            self.delivered += 1;
        }
        if head.is_none() {
            if !others_can {
                return Err("the item is held back by another member".into());
            }
            self.settle(att);
            if failed {
                self.remove(att, Why::Failed("start_send"));
            } else {
                self.accept(att);
            }
            if self.hand.as_ref().is_some_and(|hand| hand.routed && !hand.let_go) {
                self.let_go();
            }
            self.emit(out);
            return Ok(());
        }
        if failed {
            self.remove(att, Why::Failed("start_send"));
            self.advance(recs);
            self.emit(out);
            return Ok(());
        }
        // The head made room: the item in hand may have taken it at once.
        if in_hand.is_some() && others_can {
            let mut other = self.clone();
            other.join_queue(att);
            if other.hand.as_ref().is_some_and(|hand| hand.routed && !hand.let_go) {
                other.let_go();
            }
            other.emit(out);
        }
        self.advance(recs);
        self.emit(out);
        Ok(())
    }

    fn close(&mut self, att: Att, said: Said) -> Result<(), String> {
        let Stage::Leaving { reasons, .. } = *self.present(att)? else {
            return Err("it was not told to leave".into());
        };
        if !self.atts[att].queue.is_empty() {
            return Err(format!("{:?} wait for it", self.atts[att].queue));
        }
        match said {
            Said::Done => self.remove(att, Why::Farewell(reasons)),
            Said::Failed => self.remove(att, Why::Failed("poll_close")),
            Said::Pending | Said::Stutters => {
                self.atts[att].stage = Stage::Leaving { reasons, told: true };
            }
        }
        Ok(())
    }

    fn dropped(mut self, att: Att, recs: &[Rec], out: &mut Vec<Self>) -> Result<(), String> {
        if !self.atts[att].announced {
            return Err("it was not announced".into());
        }
        if let Stage::Removing { dropped, .. } = &mut self.atts[att].stage {
            *dropped = true;
            self.emit(out);
            return Ok(());
        }
        let why = self.may_go(att, recs);
        if why.is_empty() {
            return Err(format!("dropped while {:?}", self.atts[att].stage));
        }
        for why in why {
            let mut other = self.clone();
            other.remove(att, why);
            if let Stage::Removing { dropped, .. } = &mut other.atts[att].stage {
                *dropped = true;
            }
            other.advance(recs);
            other.emit(out);
        }
        Ok(())
    }

    fn admit(
        &mut self,
        att: Att,
        seq: u32,
        admits: bool,
        recs: &[Rec],
        keys: &BTreeMap<u32, u8>,
    ) -> Result<(), String> {
        self.present(att)?;
        let recipients = self.recipients(keys.get(&seq).copied());
        let (group, caught) = recipients.unwrap_or_default();
        let hand = self.hand.as_mut().filter(|hand| hand.seq == seq).ok_or("it is not in hand")?;
        if !hand.routed {
            hand.routed = true;
            hand.caught = caught;
            hand.to_ask = group;
        }
        let at = hand.to_ask.iter().position(|&other| other == att);
        let at = at.ok_or_else(|| format!("{:?} are to be asked", hand.to_ask))?;
        hand.to_ask.remove(at);
        if admits {
            hand.wanted.push(att);
        } else {
            self.refusals.push((att, seq));
        }
        if hand.to_ask.is_empty() {
            if hand.wanted.is_empty() {
                self.hand = None;
            }
            if std::mem::take(&mut self.finishing) {
                self.over = true;
            }
        }
        self.advance(recs);
        Ok(())
    }

    /// Who gets items with this key, and whether only as the catch-all.
    fn recipients(&self, key: Option<u8>) -> Option<(Vec<Att>, bool)> {
        let group = key.and_then(|key| self.groups.get(usize::from(key))).cloned();
        match group.unwrap_or_default() {
            group if !group.is_empty() => Some((group, false)),
            _ => self.catch_all.map(|att| (vec![att], true)),
        }
    }

    fn unmatched(&mut self, seq: u32, keys: &BTreeMap<u32, u8>) -> Result<(), String> {
        self.unmatched += 1;
        if self.surplus.front() == Some(&seq) {
            self.surplus.pop_front();
            return Ok(());
        }
        let hand = self.hand.as_ref().filter(|hand| hand.seq == seq && !hand.routed);
        if hand.is_none() {
            return Err("it is not in hand".into());
        }
        if let Some((group, _)) = self.recipients(keys.get(&seq).copied()) {
            return Err(format!("{group:?} are to get it"));
        }
        self.hand = None;
        if std::mem::take(&mut self.finishing) {
            self.over = true;
        }
        Ok(())
    }

    fn discarded(
        mut self,
        att: Att,
        seq: u32,
        why: Discarded,
        recs: &[Rec],
        out: &mut Vec<Self>,
    ) -> Result<(), String> {
        self.discarded += 1;
        if why == Discarded::NotAdmitted {
            let at = self.refusals.iter().position(|&refused| refused == (att, seq));
            self.refusals.remove(at.ok_or("it was not refused")?);
            self.emit(out);
            return Ok(());
        }
        let tenant = self.atts.get(att).ok_or("there is no such attachment")?;
        if matches!(tenant.stage, Stage::Removing { .. }) {
            self.discard_with(att, seq, why)?;
            self.emit(out);
            return Ok(());
        }
        let mut complaint = format!("it is {:?}", tenant.stage);
        let before = out.len();
        if why == Discarded::Overflowed && self.overflows(att, recs) {
            let mut other = self.clone();
            match other.overflow(att, seq) {
                Ok(()) => other.emit(out),
                Err(error) => complaint = error,
            }
        }
        for end in self.may_go(att, recs) {
            let mut other = self.clone();
            other.remove(att, end);
            match other.discard_with(att, seq, why) {
                Ok(()) => other.emit(out),
                Err(error) => complaint = error,
            }
        }
        if out.len() == before { Err(complaint) } else { Ok(()) }
    }

    /// One of what is discarded with an attachment that ends.
    fn discard_with(&mut self, att: Att, seq: u32, why: Discarded) -> Result<(), String> {
        let Stage::Removing { end, discards, .. } = &mut self.atts[att].stage else {
            return Err("it is not going".into());
        };
        let expected = match end {
            Why::Failed(_) => Discarded::Failed,
            Why::Overflowed => Discarded::Overflowed,
            _ => Discarded::Evicted,
        };
        if why != expected {
            return Err(format!("that is {expected:?}"));
        }
        if discards.front() == Some(&seq) {
            discards.pop_front();
            return Ok(());
        }
        let orphaned = |(orphan, of): &mut (u32, Vec<Att>)| *orphan == seq && of.contains(&att);
        if discards.is_empty() && self.orphan.take_if(orphaned).is_some() {
            return Ok(());
        }
        Err(format!("{discards:?} are to be discarded"))
    }

    /// An item that found no room.
    fn overflow(&mut self, att: Att, seq: u32) -> Result<(), String> {
        let oldest = match self.atts[att].overflow {
            Overflow::DropNewest => false,
            Overflow::DropOldest => self.atts[att].buffer > 0,
            policy => return Err(format!("the policy is {policy:?}")),
        };
        if oldest {
            let head = self.atts[att].queue.pop_front();
            self.join_queue(att);
            if head == Some(seq) { Ok(()) } else { Err(format!("the oldest is {head:?}")) }
        } else {
            match self.settle(att) {
                Some((newest, _)) if newest == seq => Ok(()),
                newest => Err(format!("the newest is {newest:?}")),
            }
        }
    }

    fn detached(&mut self, att: Att, why: Why) -> Result<(), String> {
        self.detached += 1;
        if self.said == Some(att) {
            return Err("the input still waits for it".into());
        }
        let tenant = self.atts.get_mut(att).ok_or("there is no such attachment")?;
        let Stage::Removing { end, discards, dropped } = &tenant.stage else {
            return Err(format!("it is {:?}", tenant.stage));
        };
        if !dropped {
            return Err("its sink is not dropped".into());
        }
        if !discards.is_empty() {
            return Err(format!("{discards:?} are to be discarded first"));
        }
        let right = match (*end, why) {
            (Why::Farewell(reasons), Why::Farewell(reason)) => reasons & reason != 0,
            (end, why) => end == why,
        };
        if !right {
            return Err(format!("the reason is {end:?}"));
        }
        tenant.stage = Stage::Gone;
        Ok(())
    }

    fn blocked(&mut self, att: Att, recs: &[Rec]) -> Result<(), String> {
        if let Some(said) = self.said {
            return Err(format!("the input waits for {said}"));
        }
        self.present(att)?;
        if !self.wants(att) {
            return Err("it does not want the item in hand".into());
        }
        let tenant = &self.atts[att];
        if !tenant.waits() || tenant.has_room() || !recs[att].parked() {
            return Err("the item need not wait for it".into());
        }
        let Some(hand) = self.hand.as_mut().filter(|hand| !hand.let_go) else {
            return Err("the item was let go".into());
        };
        if hand.blocked.contains(&att) {
            return Err(format!("said twice of {}", hand.seq));
        }
        hand.blocked.push(att);
        self.said = Some(att);
        Ok(())
    }

    // -- between polls --

    fn rest(&mut self, view: &View<'_>) -> Result<(), String> {
        let held = u64::from(self.hand.is_some());
        let queued = self.atts.iter().map(|tenant| tenant.queue.len() as u64).sum::<u64>() + held;
        let known = [
            ("unmatched", self.unmatched, view.totals.unmatched),
            ("delivered", self.delivered, view.totals.delivered),
            ("discarded", self.discarded, view.totals.discarded),
            ("lost", self.lost, view.totals.lost),
            ("queued", queued, view.totals.queued),
            ("attached", self.attached, view.totals.attached),
            ("detached", self.detached, view.totals.detached),
        ];
        for (what, expected, found) in known {
            if expected != found {
                return Err(format!("totals().{what} is {found}, not {expected}"));
            }
        }
        if view.blocked_on != self.said {
            return Err(format!("blocked_on() is {:?}, not {:?}", view.blocked_on, self.said));
        }
        if !self.over {
            let receiving: Vec<_> = self.groups.iter().flatten().copied().collect();
            let sure = receiving.iter().filter(|&&att| !self.is_wavering(att)).count();
            if view.len < sure || view.len > receiving.len() {
                return Err(format!("len() is {}, not {}", view.len, receiving.len()));
            }
            for (group, found) in self.groups.iter().zip(view.keys) {
                let sure = group.iter().any(|&att| !self.is_wavering(att));
                if found && group.is_empty() || !found && sure {
                    return Err(format!("the keys are {:?}, not {:?}", view.keys, self.groups));
                }
            }
        }
        let present =
            |tenant: &Attachment| matches!(tenant.stage, Stage::Receiving | Stage::Leaving { .. });
        if view.completed {
            if !self.over || self.hand.is_some() || self.atts.iter().any(present) {
                return Err("completed too early".into());
            }
            return Ok(());
        }
        if view.asleep { self.rest_asleep(view) } else { Ok(()) }
    }

    /// No sleep with work left.
    fn rest_asleep(&mut self, view: &View<'_>) -> Result<(), String> {
        let mut alone = true;
        for (att, tenant) in self.atts.iter_mut().enumerate() {
            match &mut tenant.stage {
                Stage::Receiving if tenant.wish == Wish::Detach => {
                    return Err(format!("it sleeps, and {att} was to be detached"));
                }
                Stage::Leaving { told, .. } => *told = true,
                Stage::Receiving => {}
                _ => continue,
            }
            alone = false;
            let leaving = matches!(tenant.stage, Stage::Leaving { .. });
            if tenant.wish == Wish::Evict {
                return Err(format!("it sleeps, and {att} was to be evicted"));
            }
            if !tenant.queue.is_empty() && !view.sinks[att].is_waiting(Op::Ready) {
                return Err(format!("it sleeps, and {att} could be sent {:?}", tenant.queue));
            }
            if leaving && tenant.queue.is_empty() && !view.sinks[att].is_closing() {
                return Err(format!("it sleeps, and {att} was not asked to close"));
            }
        }
        if self.over && alone {
            return Err("it sleeps, and everything is done".into());
        }
        if self.over && view.len > 0 {
            return Err(format!("it sleeps, and {} were not told the end", view.len));
        }
        match (&self.hand, self.said) {
            (None, None) => {}
            (Some(hand), Some(said)) if hand.routed => {
                if !self.wants(said) || self.atts[said].has_room() {
                    return Err(format!("it sleeps, and {} need not wait for {said}", hand.seq));
                }
                if !view.sinks[said].is_waiting(Op::Ready) {
                    return Err(format!("it sleeps, and {said} is ready for {}", hand.seq));
                }
                return Ok(());
            }
            (hand, said) => {
                return Err(format!("it sleeps, and holds {hand:?}, blocked on {said:?}"));
            }
        }
        let waits = view.input.is_none_or(StreamHandle::is_waiting);
        if !self.over && !waits {
            Err("it sleeps, and the input can be read".into())
        } else {
            Ok(())
        }
    }
}
