//! Target `keys`: the table with poor hashers and unusual keys.
//!
//! The hasher may return the same hash for every key, or hashes that differ only in a few low or
//! high bits, which a hash table uses to tell keys apart. Keys are passed by value, borrowed from
//! the item as `str`, or borrowed with a case-insensitive `Eq`, so that different values are the
//! same key. A script attaches, detaches, evicts, lets sinks fail and sends items. The model is a
//! list that is searched with `Eq` alone. It predicts which attachments receive, which items each
//! gets, and which attachments have ended. The target asserts:
//!
//! 1. after each turn: the items that each sink received, in order; the unmatched items; the
//!    totals;
//! 2. when the task is parked: `len`, `is_empty`, and `contains_key` of every key, owned and
//!    borrowed; which sinks are dropped; that each sink was flushed; and that as many keys are
//!    alive as there are attachments;
//! 3. that the task parks, with no more consecutive idle turns than slots were ever in use at once,
//!    plus `SLACK`: entries of attachments that have ended do not pile up.

use alloc::rc::Rc;
use std::cell::RefCell;
use std::hash::{BuildHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::Sink;
use futures::future::FusedFuture;
use stream_demux::{Attach, Demux, DemuxStreamExt, Lease, Order, Totals};

use crate::common::Task;
use crate::queue::{Queue, Source};
use crate::script::Script;

const MAX_STEPS: usize = 400;
/// Idle turns allowed beyond one for each slot: in a lull the demux waits for up to 64 turns if many
/// sinks are to be flushed.
const SLACK: usize = 76;

/// Plays a script. It begins with the kind of key, the hasher, the budget, the flush window, and
/// whether a key may have several sinks.
///
/// # Panics
///
/// Panics if an item is not where the model expects it, or the table differs from the model.
pub fn run(script: &[u8]) {
    let mut script = Script::new(script);
    let kind = script.letter(b"vsc").unwrap_or(b'v');
    let hasher = PoorHashState::read(&mut script);
    let budget = [1, 2, 3, 7, 128][script.below(5)];
    let window = [1, 4, 16_384][script.below(3)];
    let multicast = script.flag();
    // A macro, because the type of the demux depends on the kind of key.
    macro_rules! play {
        ($of:ty, $by:ident, $key:expr, $borrowed:expr) => {{
            let world = World::<$of>::new(multicast);
            let (items, orders) = (Source(world.items.clone()), Source(world.orders.clone()));
            let unmatched = Rc::clone(&world.unmatched);
            let mut demux = items
                .$by($key, orders)
                .on_unmatched(move |item| unmatched.borrow_mut().push(item.seq))
                .with_hasher(hasher)
                .budget(budget)
                .flush_every(window);
            if multicast {
                demux = demux.multicast();
            }
            world.play(script, demux, $borrowed);
        }};
    }
    match kind {
        b'v' => play!(
            Number,
            demux_by,
            |item| Number::new(item.name, &item.live_keys, DropOnHash::default()),
            |_, _| None
        ),
        b's' => {
            play!(
                Text,
                demux_by_ref,
                |item| NAMES[item.name],
                |demux: &Demux<_, _, _, _, _>, name| { Some(demux.contains_key(NAMES[name])) }
            );
        }
        _ => play!(Caseless, demux_by_ref, |item| &*item.caseless, |_, _| None),
    }
}

// ---- hashers ------------------------------------------------------------------------------------

/// The ways in which hashes are poor.
#[derive(Clone, Copy, Debug)]
enum PoorHashState {
    /// `c`: all hashes are equal.
    Constant(u64),
    /// `l`: hashes differ only in one to three low bits.
    Low(u64),
    /// `h`: hashes differ only in the high bits, of which a table keeps seven as a tag.
    High(u32),
    /// `g`: the plain sum, which is poor for short keys.
    Sum,
}

impl PoorHashState {
    fn read(script: &mut Script<'_>) -> Self {
        match script.letter(b"clhg").unwrap_or(b'c') {
            b'c' => Self::Constant([0, u64::MAX, 1 << 63, 0x7F][script.below(4)]),
            b'l' => Self::Low([1, 3, 7][script.below(3)]),
            b'h' => Self::High([57, 63, 32][script.below(3)]),
            _ => Self::Sum,
        }
    }
}

impl BuildHasher for PoorHashState {
    type Hasher = PoorHasher;
    fn build_hasher(&self) -> PoorHasher {
        PoorHasher { sum: 0, kind: *self }
    }
}

struct PoorHasher {
    sum: u64,
    kind: PoorHashState,
}

impl Hasher for PoorHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.sum = self.sum.wrapping_mul(31).wrapping_add(u64::from(byte));
        }
    }

    fn finish(&self) -> u64 {
        match self.kind {
            PoorHashState::Constant(hash) => hash,
            PoorHashState::Low(mask) => self.sum & mask,
            PoorHashState::High(shift) => self.sum << shift,
            PoorHashState::Sum => self.sum,
        }
    }
}

// ---- keys ---------------------------------------------------------------------------------------

const NAMES: [&str; 24] = [
    "a", "A", "b", "B", "aa", "aA", "Aa", "AA", "ab", "aB", "Ab", "AB", "ba", "bA", "Ba", "BA", "",
    "c", "C", "ca", "cA", "cb", "Cb", "abc",
];

/// The key of attachments with `DropOnHash`. No item has it.
const BRIEF: usize = NAMES.len() - 1;

/// Counts the keys that are alive.
type LiveKeys = Rc<()>;

/// A lease that is dropped when its key is hashed: while its order is applied, as another thread
/// could do.
type DropOnHash = Rc<RefCell<Option<Lease>>>;

/// The key of an attachment. It is not `Clone`.
trait Key: Hash + Eq + 'static {
    fn new(name: usize, live_keys: &LiveKeys, drop_on_hash: DropOnHash) -> Self;
    fn same(one: usize, other: usize) -> bool {
        one == other
    }
}

/// A key that is equal if its first field is.
struct SimpleKey<T>(T, #[expect(dead_code, reason = "counted")] LiveKeys, DropOnHash);

/// A key that is passed by value.
type Number = SimpleKey<usize>;

/// A key that is looked up by a `str` borrowed from the item.
type Text = SimpleKey<String>;

impl<T: PartialEq> PartialEq for SimpleKey<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T: Eq> Eq for SimpleKey<T> {}

impl<T: Hash> Hash for SimpleKey<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        drop(self.2.take());
        self.0.hash(state);
    }
}

impl std::borrow::Borrow<str> for Text {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Key for Number {
    fn new(name: usize, live_keys: &LiveKeys, drop_on_hash: DropOnHash) -> Self {
        Self(name, Rc::clone(live_keys), drop_on_hash)
    }
}

impl Key for Text {
    fn new(name: usize, live_keys: &LiveKeys, drop_on_hash: DropOnHash) -> Self {
        Self(NAMES[name].to_owned(), Rc::clone(live_keys), drop_on_hash)
    }
}

/// A key that ignores case: different values are the same key.
struct Caseless(String, #[expect(dead_code, reason = "counted")] LiveKeys, DropOnHash);

impl PartialEq for Caseless {
    fn eq(&self, other: &Self) -> bool {
        self.0.eq_ignore_ascii_case(&other.0)
    }
}

impl Eq for Caseless {}

impl Hash for Caseless {
    fn hash<H: Hasher>(&self, state: &mut H) {
        drop(self.2.take());
        self.0.bytes().for_each(|byte| state.write_u8(byte.to_ascii_lowercase()));
    }
}

impl Key for Caseless {
    fn new(name: usize, live_keys: &LiveKeys, drop_on_hash: DropOnHash) -> Self {
        Self(NAMES[name].to_owned(), Rc::clone(live_keys), drop_on_hash)
    }

    fn same(one: usize, other: usize) -> bool {
        NAMES[one].eq_ignore_ascii_case(NAMES[other])
    }
}

// ---- items and sinks ----------------------------------------------------------------------------

#[derive(Clone)]
struct Item {
    seq: u32,
    name: usize,
    caseless: Rc<Caseless>,
    live_keys: LiveKeys,
}

/// The state of a sink, shared with the script and the model.
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent")]
#[derive(Default)]
struct SinkState {
    received: Vec<u32>,
    unflushed: bool,
    fails: bool,
    close_is_held: bool,
    close_waker: Option<Waker>,
    dropped: bool,
    /// The number of calls, except for `poll_ready`.
    calls: usize,
}

struct TestSink(Rc<RefCell<SinkState>>);

impl Sink<Item> for TestSink {
    type Error = &'static str;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, item: Item) -> Result<(), Self::Error> {
        let mut sink = self.0.borrow_mut();
        sink.calls += 1;
        if sink.fails {
            return Err("broken");
        }
        sink.received.push(item.seq);
        sink.unflushed = true;
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let mut sink = self.0.borrow_mut();
        sink.calls += 1;
        assert!(std::mem::take(&mut sink.unflushed), "poll_flush with nothing to flush");
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let mut sink = self.0.borrow_mut();
        sink.calls += 1;
        if sink.close_is_held {
            sink.close_waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for TestSink {
    fn drop(&mut self) {
        self.0.borrow_mut().dropped = true;
    }
}

// ---- the model ----------------------------------------------------------------------------------

#[derive(Clone, Copy)]
enum ModelOrder {
    Attach { index: usize, name: usize, keep_existing: bool },
    AttachBriefly(usize),
    Detach(usize),
    Evict(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Unapplied,
    Receiving,
    Leaving,
    Ended,
}

struct Attachment {
    name: usize,
    stage: Stage,
    expects: Vec<u32>,
    sink: Rc<RefCell<SinkState>>,
}

#[derive(Default)]
struct Model {
    multicast: bool,
    attachments: Vec<Attachment>,
    unmatched: Vec<u32>,
    delivered: u64,
    lost: u64,
    copies: u64,
}

impl Model {
    fn receiving(&self, name: usize, same: fn(usize, usize) -> bool) -> Vec<usize> {
        let receives = |&index: &usize| {
            self.attachments[index].stage == Stage::Receiving
                && same(self.attachments[index].name, name)
        };
        (0..self.attachments.len()).filter(receives).collect()
    }

    fn leave(&mut self, index: usize) {
        let holds = self.attachments[index].sink.borrow().close_is_held;
        self.attachments[index].stage = if holds { Stage::Leaving } else { Stage::Ended };
    }

    fn order(&mut self, order: ModelOrder, same: fn(usize, usize) -> bool) {
        match order {
            ModelOrder::Attach { index, name, keep_existing } => {
                let present = self.receiving(name, same);
                self.attachments[index].stage = Stage::Receiving;
                if !present.is_empty() && keep_existing {
                    self.leave(index);
                } else if !self.multicast {
                    for old in present {
                        self.leave(old);
                    }
                }
            }
            // It may have received for a moment, which no item can show.
            ModelOrder::AttachBriefly(index) => self.attachments[index].stage = Stage::Ended,
            ModelOrder::Detach(name) => {
                for index in self.receiving(name, same) {
                    self.leave(index);
                }
            }
            ModelOrder::Evict(name) => {
                for attachment in &mut self.attachments {
                    let in_use = matches!(attachment.stage, Stage::Receiving | Stage::Leaving);
                    if in_use && same(attachment.name, name) {
                        attachment.stage = Stage::Ended;
                    }
                }
            }
        }
    }

    fn route(&mut self, seq: u32, name: usize, same: fn(usize, usize) -> bool) {
        let group = self.receiving(name, same);
        if group.is_empty() {
            self.unmatched.push(seq);
            return;
        }
        self.copies += group.len() as u64 - 1;
        for index in group {
            if self.attachments[index].sink.borrow().fails {
                self.lost += 1;
                self.attachments[index].stage = Stage::Ended;
            } else {
                self.delivered += 1;
                self.attachments[index].expects.push(seq);
            }
        }
    }
}

type TestDemux<K, F, H> = Demux<Source<Item>, F, Source<Order<K, TestSink>>, H, PoorHashState>;

struct World<K> {
    live_keys: LiveKeys,
    items: Arc<Queue<Item>>,
    orders: Arc<Queue<Order<K, TestSink>>>,
    unmatched: Rc<RefCell<Vec<u32>>>,
    /// The keys of all items that were sent, and all orders.
    items_sent: Vec<usize>,
    orders_sent: Vec<ModelOrder>,
    model: Model,
    max_slots: usize,
    idle: usize,
}

impl<K: Key> World<K> {
    fn new(multicast: bool) -> Self {
        Self {
            live_keys: LiveKeys::default(),
            items: Arc::default(),
            orders: Arc::default(),
            unmatched: Rc::default(),
            items_sent: Vec::new(),
            orders_sent: Vec::new(),
            model: Model { multicast, ..Model::default() },
            max_slots: 0,
            idle: 0,
        }
    }

    /// `borrowed` calls `contains_key` with the borrowed form of a key, if it has one.
    fn play<F, H>(
        mut self,
        mut script: Script<'_>,
        demux: TestDemux<K, F, H>,
        borrowed: fn(&TestDemux<K, F, H>, usize) -> Option<bool>,
    ) where
        TestDemux<K, F, H>: Future<Output = Totals>,
    {
        let mut task = Task::new(demux);
        for _ in 0..MAX_STEPS {
            let Some(letter) = script.letter(b"aakbdeixiihofppr") else { break };
            match letter {
                b'a' | b'k' => {
                    let (name, fails) = (script.below(BRIEF), script.below(8) == 1);
                    self.attach(name, letter == b'k', fails);
                }
                b'b' => self.attach_briefly(),
                b'd' => self.send_order(ModelOrder::Detach(script.below(BRIEF))),
                b'e' => self.send_order(ModelOrder::Evict(script.below(BRIEF))),
                b'i' => self.send(script.below(BRIEF), 1),
                b'x' => self.send(script.below(BRIEF), 9),
                b'h' => self.pick(&mut script, |sink| sink.close_is_held = true),
                b'f' => self.pick(&mut script, |sink| sink.fails = true),
                b'o' => self.release_any(&mut script),
                b'p' => drop(self.turn(&mut task)),
                _ => self.run_until_parked(&mut task, borrowed),
            }
        }
        self.run_until_parked(&mut task, borrowed);
        self.items.end();
        for index in 0..self.model.attachments.len() {
            self.release(index);
        }
        self.run_until_parked(&mut task, borrowed);
        task.drop_future();
        assert_eq!(Rc::strong_count(&self.live_keys), 1, "a key outlives the demux");
    }

    fn attach(&mut self, name: usize, keep_existing: bool, fails: bool) {
        let index = self.model.attachments.len();
        let sink = Rc::new(RefCell::new(SinkState { fails, ..SinkState::default() }));
        let mut attach = Attach::new(
            K::new(name, &self.live_keys, DropOnHash::default()),
            TestSink(Rc::clone(&sink)),
        );
        if keep_existing {
            attach = attach.keep_existing();
        }
        let stage = Stage::Unapplied;
        self.model.attachments.push(Attachment { name, stage, expects: Vec::new(), sink });
        self.orders_sent.push(ModelOrder::Attach { index, name, keep_existing });
        self.orders.push(attach.into());
    }

    /// Attaches a sink whose lease is dropped while the order is applied.
    fn attach_briefly(&mut self) {
        let (index, name, drop_on_hash) =
            (self.model.attachments.len(), BRIEF, DropOnHash::default());
        let sink = Rc::<RefCell<SinkState>>::default();
        let mut lease = Lease::new();
        let key = K::new(name, &self.live_keys, Rc::clone(&drop_on_hash));
        let attach = Attach::new(key, TestSink(Rc::clone(&sink))).leased(&mut lease);
        drop_on_hash.replace(Some(lease));
        let stage = Stage::Unapplied;
        self.model.attachments.push(Attachment { name, stage, expects: Vec::new(), sink });
        self.orders_sent.push(ModelOrder::AttachBriefly(index));
        self.orders.push(attach.into());
    }

    fn send_order(&mut self, model_order: ModelOrder) {
        let order = match model_order {
            ModelOrder::Detach(name) => {
                Order::Detach(K::new(name, &self.live_keys, DropOnHash::default()))
            }
            ModelOrder::Evict(name) => {
                Order::Evict(K::new(name, &self.live_keys, DropOnHash::default()))
            }
            ModelOrder::Attach { .. } | ModelOrder::AttachBriefly(_) => return,
        };
        self.orders_sent.push(model_order);
        self.orders.push(order);
    }

    fn send(&mut self, name: usize, count: usize) {
        for _ in 0..count {
            let seq = u32::try_from(self.items_sent.len()).expect("scripts are short");
            let caseless = Rc::new(Caseless(
                NAMES[name].to_owned(),
                LiveKeys::default(),
                DropOnHash::default(),
            ));
            self.items_sent.push(name);
            self.items.push(Item { seq, name, caseless, live_keys: LiveKeys::default() });
        }
    }

    fn pick(&self, script: &mut Script<'_>, what: fn(&mut SinkState)) {
        let count = self.model.attachments.len();
        if count > 0 {
            let attachment = &self.model.attachments[count - 1 - script.below(count.min(16))];
            // A sink that is being closed is not changed.
            if matches!(attachment.stage, Stage::Unapplied | Stage::Receiving) {
                what(&mut attachment.sink.borrow_mut());
            }
        }
    }

    fn release_any(&mut self, script: &mut Script<'_>) {
        let count = self.model.attachments.len();
        if count > 0 {
            self.release(count - 1 - script.below(count.min(16)));
        }
    }

    fn release(&mut self, index: usize) {
        let attachment = &mut self.model.attachments[index];
        if attachment.stage == Stage::Leaving {
            attachment.stage = Stage::Ended;
        }
        let mut sink = attachment.sink.borrow_mut();
        sink.close_is_held = false;
        let waker = sink.close_waker.take();
        drop(sink);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Counts the calls to sinks, the values that were read, and the sinks that were dropped.
    fn calls(&self) -> usize {
        let calls = |sink: &SinkState| sink.calls + usize::from(sink.dropped);
        let sinks: usize =
            self.model.attachments.iter().map(|attachment| calls(&attachment.sink.borrow())).sum();
        sinks + self.items.read_count() + self.orders.read_count()
    }

    /// Polls once if the task was woken, and on until no item is held. Returns `false` if the task
    /// was not woken or has completed.
    fn turn<F, H>(&mut self, task: &mut Task<TestDemux<K, F, H>>) -> bool
    where
        TestDemux<K, F, H>: Future<Output = Totals>,
    {
        let (polls, calls) = (task.polls(), self.calls());
        let (read, applied) = (self.items.read_count(), self.orders.read_count());
        let mut completed = task.turns(1).is_ready();
        if task.polls() == polls {
            return false;
        }
        // Serving a group may take a turn for each member, and the next item may begin in the last
        // of these turns.
        let limit = (1 + self.items_sent.len() - read) * (self.model.attachments.len() + SLACK);
        for turns in 0.. {
            if completed || task.get_ref().totals().queued == 0 {
                break;
            }
            assert!(turns <= limit, "an item is held although all sinks are ready");
            completed = task.turns(1).is_ready();
        }
        // No order was sent meanwhile, so all orders were applied before the items were read.
        for at in applied..self.orders.read_count() {
            self.model.order(self.orders_sent[at], K::same);
            let attachments = &self.model.attachments;
            let in_use = attachments.iter().filter(|attachment| {
                matches!(attachment.stage, Stage::Receiving | Stage::Leaving)
                    || !attachment.sink.borrow().dropped
            });
            self.max_slots = self.max_slots.max(in_use.count());
        }
        let read = read..self.items.read_count();
        let unread = self.orders_sent.len() - self.orders.read_count();
        assert!(read.is_empty() || unread == 0, "an item was read before {unread} orders");
        for at in read {
            self.model.route(
                u32::try_from(at).expect("scripts are short"),
                self.items_sent[at],
                K::same,
            );
        }
        let quiet = self.calls() == calls && task.woken();
        self.idle = if quiet { self.idle + 1 } else { 0 };
        let bound = self.max_slots + SLACK;
        assert!(self.idle <= bound, "{} idle turns in a row", self.idle);
        let totals = task.get_ref().totals();
        assert_eq!(totals.received, self.items.read_count() as u64);
        let known = (self.model.unmatched.len() as u64, self.model.lost, self.model.copies);
        assert_eq!((totals.unmatched, totals.lost, totals.copies), known);
        assert_eq!((totals.delivered, totals.queued), (self.model.delivered, 0));
        assert_eq!(*self.unmatched.borrow(), self.model.unmatched, "unmatched items");
        for (index, attachment) in self.model.attachments.iter().enumerate() {
            assert_eq!(
                attachment.sink.borrow().received,
                attachment.expects,
                "items that sink {index} received"
            );
        }
        if completed {
            assert!(self.items.has_ended(), "completed before the input ended");
            return false;
        }
        true
    }

    /// Polls until the task parks or completes, and checks everything.
    fn run_until_parked<F, H>(
        &mut self,
        task: &mut Task<TestDemux<K, F, H>>,
        borrowed: fn(&TestDemux<K, F, H>, usize) -> Option<bool>,
    ) where
        TestDemux<K, F, H>: Future<Output = Totals>,
    {
        if task.get_ref().is_terminated() {
            return;
        }
        let limit = 200
            + 8 * (self.items_sent.len() + self.orders_sent.len())
                * (1 + self.model.attachments.len());
        let turns = (0..).take_while(|_| self.turn(task)).take(limit + 1).count();
        assert!(turns <= limit, "the task does not park");
        assert_eq!(self.orders.read_count(), self.orders_sent.len(), "unread orders");
        assert_eq!(self.items.read_count(), self.items_sent.len(), "unread items");
        let ended = self.items.has_ended();
        let demux = task.get_ref();
        assert_eq!(
            demux.is_terminated(),
            ended,
            "no sink holds its close, so it completes if the input has ended"
        );
        let (mut receiving, mut leaving) = (0, 0);
        for (index, attachment) in self.model.attachments.iter().enumerate() {
            receiving += usize::from(attachment.stage == Stage::Receiving);
            leaving += usize::from(attachment.stage == Stage::Leaving);
            let must_be_dropped = ended || attachment.stage == Stage::Ended;
            let sink = attachment.sink.borrow();
            assert_eq!(sink.dropped, must_be_dropped, "sink {index} is dropped");
            let unflushed = sink.unflushed && attachment.stage == Stage::Receiving && !ended;
            assert!(!unflushed, "sink {index} was not flushed");
        }
        if ended {
            return;
        }
        assert_eq!((demux.len(), demux.is_empty()), (receiving, receiving == 0));
        assert_eq!(Rc::strong_count(&self.live_keys) - 1, receiving + leaving, "keys alive");
        for (name, text) in NAMES.iter().enumerate() {
            let present = !self.model.receiving(name, K::same).is_empty();
            let key = K::new(name, &self.live_keys, DropOnHash::default());
            assert_eq!(demux.contains_key(&key), present, "contains_key({text:?})");
            let borrowed = borrowed(demux, name).unwrap_or(present);
            assert_eq!(borrowed, present, "contains_key({text:?}), borrowed");
        }
    }
}
