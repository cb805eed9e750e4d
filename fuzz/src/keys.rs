//! Target `keys`: the table under hashers and keys that mean no good.
//!
//! The hasher may give every key the same hash, or hashes that share their low or their high bits,
//! by which a table tells keys apart. Keys are had by value, borrowed from the item as `str`, or
//! borrowed with an `Eq` that knows no case, so that values that differ are the same key. A script
//! attaches, detaches, evicts, fails and sends; a model, a list that is searched with `Eq` alone,
//! says who receives under which key, who gets what, and who is gone. It asserts:
//!
//! 1. what each sink got, in order, and who was unmatched; the totals, after each turn;
//! 2. at rest: `len`, `is_empty`, `contains_key` of every key, owned and borrowed; whose sink is
//!    dropped, that each was flushed, and that no more keys live than there are attachments;
//! 3. that it comes to rest, after no more idle turns than there were ever slots at once: what
//!    former tenants have left behind does not pile up.

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
/// Idle turns beyond one for each slot: a budget under four has up to three for each phase.
const SLACK: usize = 12;

/// Plays a script. Its beginning says how keys are had and hashed, the budget, the window, and
/// whether a key may have several sinks.
///
/// # Panics
///
/// If an item goes where it should not, or the table is not what the model says.
pub fn run(script: &[u8]) {
    let mut script = Script::new(script);
    let kind = script.letter(b"vsc").unwrap_or(b'v');
    let hasher = Spoiler::read(&mut script);
    let budget = [1, 2, 3, 7, 128][script.below(5)];
    let window = [1, 4, 16_384][script.below(3)];
    let multicast = script.flag();
    // What kind of demux it is, is in its type.
    macro_rules! play {
        ($of:ty, $by:ident, $key:expr, $borrowed:expr) => {{
            let world = World::<$of>::new(multicast);
            let (items, orders) = (Source(world.items.clone()), Source(world.orders.clone()));
            let strays = Rc::clone(&world.strays);
            let mut demux = items
                .$by($key, orders)
                .on_unmatched(move |item| strays.borrow_mut().push(item.seq))
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
            |item| Number::new(item.name, &item.alive, Lit::default()),
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

/// How hashes are spoiled.
#[derive(Clone, Copy, Debug)]
enum Spoiler {
    /// `c`: all alike.
    Constant(u64),
    /// `l`: only the low bits differ, and few of them.
    Low(u64),
    /// `h`: only the high bits, of which a table keeps seven as a tag.
    High(u32),
    /// `g`: as they are, which for short keys is poor enough.
    Given,
}

impl Spoiler {
    fn read(script: &mut Script<'_>) -> Self {
        match script.letter(b"clhg").unwrap_or(b'c') {
            b'c' => Self::Constant([0, u64::MAX, 1 << 63, 0x7F][script.below(4)]),
            b'l' => Self::Low([1, 3, 7][script.below(3)]),
            b'h' => Self::High([57, 63, 32][script.below(3)]),
            _ => Self::Given,
        }
    }
}

impl BuildHasher for Spoiler {
    type Hasher = Spoiled;
    fn build_hasher(&self) -> Spoiled {
        Spoiled { sum: 0, how: *self }
    }
}

struct Spoiled {
    sum: u64,
    how: Spoiler,
}

impl Hasher for Spoiled {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.sum = self.sum.wrapping_mul(31).wrapping_add(u64::from(byte));
        }
    }

    fn finish(&self) -> u64 {
        match self.how {
            Spoiler::Constant(hash) => hash,
            Spoiler::Low(mask) => self.sum & mask,
            Spoiler::High(shift) => self.sum << shift,
            Spoiler::Given => self.sum,
        }
    }
}

// ---- keys ---------------------------------------------------------------------------------------

const NAMES: [&str; 24] = [
    "a", "A", "b", "B", "aa", "aA", "Aa", "AA", "ab", "aB", "Ab", "AB", "ba", "bA", "Ba", "BA", "",
    "c", "C", "ca", "cA", "cb", "Cb", "abc",
];

/// The last name is for those that `Lit` is about: no item has it.
const LAST: usize = NAMES.len() - 1;

/// Counts the keys that live.
type Alive = Rc<()>;

/// A lease that is dropped when its key is hashed: that is while its order is applied, as another
/// thread could do.
type Lit = Rc<RefCell<Option<Lease>>>;

/// A key as attachments have it: no `Clone`.
trait Key: Hash + Eq + 'static {
    fn new(name: usize, alive: &Alive, lit: Lit) -> Self;
    fn same(one: usize, other: usize) -> bool {
        one == other
    }
}

/// Equal if what is in it is.
struct Plain<T>(T, #[expect(dead_code, reason = "counted")] Alive, Lit);

/// By value: made anew for each item.
type Number = Plain<usize>;

/// Owned by attachments, looked up by a `str` that is part of the item.
type Text = Plain<String>;

impl<T: PartialEq> PartialEq for Plain<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T: Eq> Eq for Plain<T> {}

impl<T: Hash> Hash for Plain<T> {
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
    fn new(name: usize, alive: &Alive, lit: Lit) -> Self {
        Self(name, Rc::clone(alive), lit)
    }
}

impl Key for Text {
    fn new(name: usize, alive: &Alive, lit: Lit) -> Self {
        Self(NAMES[name].to_owned(), Rc::clone(alive), lit)
    }
}

/// Equal whatever the case: different values are the same key.
struct Caseless(String, #[expect(dead_code, reason = "counted")] Alive, Lit);

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
    fn new(name: usize, alive: &Alive, lit: Lit) -> Self {
        Self(NAMES[name].to_owned(), Rc::clone(alive), lit)
    }

    fn same(one: usize, other: usize) -> bool {
        NAMES[one].eq_ignore_ascii_case(NAMES[other])
    }
}

// ---- what is outside ----------------------------------------------------------------------------

#[derive(Clone)]
struct Item {
    seq: u32,
    name: usize,
    caseless: Rc<Caseless>,
    alive: Alive,
}

/// A sink, as the script and the model see it.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Default)]
struct Seen {
    got: Vec<u32>,
    unflushed: bool,
    fails: bool,
    holds_close: bool,
    closing: Option<Waker>,
    dropped: bool,
    /// How often it was asked for anything.
    calls: usize,
}

struct Bin(Rc<RefCell<Seen>>);

impl Sink<Item> for Bin {
    type Error = &'static str;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, item: Item) -> Result<(), Self::Error> {
        let mut seen = self.0.borrow_mut();
        seen.calls += 1;
        if seen.fails {
            return Err("full of holes");
        }
        seen.got.push(item.seq);
        seen.unflushed = true;
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let mut seen = self.0.borrow_mut();
        seen.calls += 1;
        assert!(std::mem::take(&mut seen.unflushed), "flushed with nothing to flush");
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let mut seen = self.0.borrow_mut();
        seen.calls += 1;
        if seen.holds_close {
            seen.closing = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Bin {
    fn drop(&mut self) {
        self.0.borrow_mut().dropped = true;
    }
}

// ---- the model ----------------------------------------------------------------------------------

#[derive(Clone, Copy)]
enum Told {
    Attach { att: usize, name: usize, keep_existing: bool },
    Briefly(usize),
    Detach(usize),
    Evict(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Unapplied,
    Receiving,
    Leaving,
    Gone,
}

struct Attachment {
    name: usize,
    stage: Stage,
    expects: Vec<u32>,
    seen: Rc<RefCell<Seen>>,
}

#[derive(Default)]
struct Model {
    multicast: bool,
    atts: Vec<Attachment>,
    unmatched: Vec<u32>,
    delivered: u64,
    lost: u64,
    copies: u64,
}

impl Model {
    fn receiving(&self, name: usize, same: fn(usize, usize) -> bool) -> Vec<usize> {
        let receives = |&att: &usize| {
            self.atts[att].stage == Stage::Receiving && same(self.atts[att].name, name)
        };
        (0..self.atts.len()).filter(receives).collect()
    }

    fn leave(&mut self, att: usize) {
        let holds = self.atts[att].seen.borrow().holds_close;
        self.atts[att].stage = if holds { Stage::Leaving } else { Stage::Gone };
    }

    fn order(&mut self, told: Told, same: fn(usize, usize) -> bool) {
        match told {
            Told::Attach { att, name, keep_existing } => {
                let there = self.receiving(name, same);
                self.atts[att].stage = Stage::Receiving;
                if !there.is_empty() && keep_existing {
                    self.leave(att);
                } else if !self.multicast {
                    for old in there {
                        self.leave(old);
                    }
                }
            }
            // It may have taken its key for a moment: no item can tell.
            Told::Briefly(att) => self.atts[att].stage = Stage::Gone,
            Told::Detach(name) => {
                for att in self.receiving(name, same) {
                    self.leave(att);
                }
            }
            Told::Evict(name) => {
                for tenant in &mut self.atts {
                    let here = matches!(tenant.stage, Stage::Receiving | Stage::Leaving);
                    if here && same(tenant.name, name) {
                        tenant.stage = Stage::Gone;
                    }
                }
            }
        }
    }

    fn item(&mut self, seq: u32, name: usize, same: fn(usize, usize) -> bool) {
        let group = self.receiving(name, same);
        if group.is_empty() {
            self.unmatched.push(seq);
            return;
        }
        self.copies += group.len() as u64 - 1;
        for att in group {
            if self.atts[att].seen.borrow().fails {
                self.lost += 1;
                self.atts[att].stage = Stage::Gone;
            } else {
                self.delivered += 1;
                self.atts[att].expects.push(seq);
            }
        }
    }
}

type Subject<K, F, H> = Demux<Source<Item>, F, Source<Order<K, Bin>>, H, Spoiler>;

struct World<K> {
    alive: Alive,
    items: Arc<Queue<Item>>,
    orders: Arc<Queue<Order<K, Bin>>>,
    strays: Rc<RefCell<Vec<u32>>>,
    /// What is in `items` and `orders`, or was.
    sent: Vec<usize>,
    told: Vec<Told>,
    model: Model,
    peak: usize,
    idle: usize,
}

impl<K: Key> World<K> {
    fn new(multicast: bool) -> Self {
        Self {
            alive: Alive::default(),
            items: Arc::default(),
            orders: Arc::default(),
            strays: Rc::default(),
            sent: Vec::new(),
            told: Vec::new(),
            model: Model { multicast, ..Model::default() },
            peak: 0,
            idle: 0,
        }
    }

    /// `borrowed` asks for a key by its borrowed form, if it has one.
    fn play<F, H>(
        mut self,
        mut script: Script<'_>,
        demux: Subject<K, F, H>,
        borrowed: fn(&Subject<K, F, H>, usize) -> Option<bool>,
    ) where
        Subject<K, F, H>: Future<Output = Totals>,
    {
        let mut task = Task::new(demux);
        for _ in 0..MAX_STEPS {
            let Some(letter) = script.letter(b"aakbdeixiihofppr") else { break };
            match letter {
                b'a' | b'k' => {
                    let (name, fails) = (script.below(LAST), script.below(8) == 1);
                    self.attach(name, letter == b'k', fails);
                }
                b'b' => self.attach_briefly(),
                b'd' => self.tell(Told::Detach(script.below(LAST))),
                b'e' => self.tell(Told::Evict(script.below(LAST))),
                b'i' => self.send(script.below(LAST), 1),
                b'x' => self.send(script.below(LAST), 9),
                b'h' => self.pick(&mut script, |seen| seen.holds_close = true),
                b'f' => self.pick(&mut script, |seen| seen.fails = true),
                b'o' => self.release(&mut script),
                b'p' => drop(self.turn(&mut task)),
                _ => self.rest(&mut task, borrowed),
            }
        }
        self.rest(&mut task, borrowed);
        self.items.end();
        for att in 0..self.model.atts.len() {
            self.open(att);
        }
        self.rest(&mut task, borrowed);
        task.drop_future();
        assert_eq!(Rc::strong_count(&self.alive), 1, "keys outlive the end");
    }

    fn attach(&mut self, name: usize, keep_existing: bool, fails: bool) {
        let att = self.model.atts.len();
        let seen = Rc::new(RefCell::new(Seen { fails, ..Seen::default() }));
        let mut attach =
            Attach::new(K::new(name, &self.alive, Lit::default()), Bin(Rc::clone(&seen)));
        if keep_existing {
            attach = attach.keep_existing();
        }
        let stage = Stage::Unapplied;
        self.model.atts.push(Attachment { name, stage, expects: Vec::new(), seen });
        self.told.push(Told::Attach { att, name, keep_existing });
        self.orders.push(attach.into());
    }

    /// Its lease is dropped while the order is applied.
    fn attach_briefly(&mut self) {
        let (att, name, lit) = (self.model.atts.len(), LAST, Lit::default());
        let seen = Rc::<RefCell<Seen>>::default();
        let mut lease = Lease::new();
        let key = K::new(name, &self.alive, Rc::clone(&lit));
        let attach = Attach::new(key, Bin(Rc::clone(&seen))).leased(&mut lease);
        lit.replace(Some(lease));
        let stage = Stage::Unapplied;
        self.model.atts.push(Attachment { name, stage, expects: Vec::new(), seen });
        self.told.push(Told::Briefly(att));
        self.orders.push(attach.into());
    }

    fn tell(&mut self, told: Told) {
        let order = match told {
            Told::Detach(name) => Order::Detach(K::new(name, &self.alive, Lit::default())),
            Told::Evict(name) => Order::Evict(K::new(name, &self.alive, Lit::default())),
            Told::Attach { .. } | Told::Briefly(_) => return,
        };
        self.told.push(told);
        self.orders.push(order);
    }

    fn send(&mut self, name: usize, count: usize) {
        for _ in 0..count {
            let seq = u32::try_from(self.sent.len()).expect("scripts are short");
            let caseless =
                Rc::new(Caseless(NAMES[name].to_owned(), Alive::default(), Lit::default()));
            self.sent.push(name);
            self.items.push(Item { seq, name, caseless, alive: Alive::default() });
        }
    }

    fn pick(&self, script: &mut Script<'_>, what: fn(&mut Seen)) {
        let count = self.model.atts.len();
        if count > 0 {
            let att = &self.model.atts[count - 1 - script.below(count.min(16))];
            // What is in the middle of being closed is left to that.
            if matches!(att.stage, Stage::Unapplied | Stage::Receiving) {
                what(&mut att.seen.borrow_mut());
            }
        }
    }

    fn release(&mut self, script: &mut Script<'_>) {
        let count = self.model.atts.len();
        if count > 0 {
            self.open(count - 1 - script.below(count.min(16)));
        }
    }

    fn open(&mut self, att: usize) {
        let tenant = &mut self.model.atts[att];
        if tenant.stage == Stage::Leaving {
            tenant.stage = Stage::Gone;
        }
        let mut seen = tenant.seen.borrow_mut();
        seen.holds_close = false;
        let waker = seen.closing.take();
        drop(seen);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Every call to a sink or a stream so far, and every sink that was dropped.
    fn calls(&self) -> usize {
        let calls = |seen: &Seen| seen.calls + usize::from(seen.dropped);
        let sinks: usize = self.model.atts.iter().map(|att| calls(&att.seen.borrow())).sum();
        sinks + self.items.given() + self.orders.given()
    }

    /// Polls once, if it is due. Whether it was.
    fn turn<F, H>(&mut self, task: &mut Task<Subject<K, F, H>>) -> bool
    where
        Subject<K, F, H>: Future<Output = Totals>,
    {
        let (polls, calls) = (task.polls(), self.calls());
        let (read, applied) = (self.items.given(), self.orders.given());
        let mut completed = task.turns(1).is_ready();
        if task.polls() == polls {
            return false;
        }
        // An item may be on its way through a group for as many turns as there are members, and the
        // next one begin in the turn in which it arrives.
        let limit = (1 + self.sent.len() - read) * (self.model.atts.len() + SLACK);
        for turns in 0.. {
            if completed || task.get_ref().totals().queued == 0 {
                break;
            }
            assert!(turns <= limit, "an item is held, and all are ready");
            completed = task.turns(1).is_ready();
        }
        // Nothing came in meanwhile: first the orders, then the items.
        for at in applied..self.orders.given() {
            self.model.order(self.told[at], K::same);
            let tenants = &self.model.atts;
            let here = tenants.iter().filter(|att| {
                matches!(att.stage, Stage::Receiving | Stage::Leaving) || !att.seen.borrow().dropped
            });
            self.peak = self.peak.max(here.count());
        }
        let read = read..self.items.given();
        let unread = self.told.len() - self.orders.given();
        assert!(read.is_empty() || unread == 0, "items were read before {unread} orders");
        for at in read {
            self.model.item(u32::try_from(at).expect("scripts are short"), self.sent[at], K::same);
        }
        let quiet = self.calls() == calls && task.woken();
        self.idle = if quiet { self.idle + 1 } else { 0 };
        let bound = self.peak + SLACK;
        assert!(self.idle <= bound, "{} turns with nothing to do", self.idle);
        let totals = task.get_ref().totals();
        assert_eq!(totals.received, self.items.given() as u64);
        let known = (self.model.unmatched.len() as u64, self.model.lost, self.model.copies);
        assert_eq!((totals.unmatched, totals.lost, totals.copies), known);
        assert_eq!((totals.delivered, totals.queued), (self.model.delivered, 0));
        assert_eq!(*self.strays.borrow(), self.model.unmatched, "who is unmatched");
        for (att, tenant) in self.model.atts.iter().enumerate() {
            assert_eq!(tenant.seen.borrow().got, tenant.expects, "what {att} got");
        }
        if completed {
            assert!(self.items.has_ended(), "completed, and the input goes on");
            return false;
        }
        true
    }

    /// Polls until it sleeps, and looks at everything.
    fn rest<F, H>(
        &mut self,
        task: &mut Task<Subject<K, F, H>>,
        borrowed: fn(&Subject<K, F, H>, usize) -> Option<bool>,
    ) where
        Subject<K, F, H>: Future<Output = Totals>,
    {
        if task.get_ref().is_terminated() {
            return;
        }
        let limit = 200 + 8 * (self.sent.len() + self.told.len()) * (1 + self.model.atts.len());
        let turns = (0..).take_while(|_| self.turn(task)).take(limit + 1).count();
        assert!(turns <= limit, "it does not come to rest");
        assert_eq!(self.orders.given(), self.told.len(), "orders are left");
        assert_eq!(self.items.given(), self.sent.len(), "items are left");
        let over = self.items.has_ended();
        let demux = task.get_ref();
        assert_eq!(demux.is_terminated(), over, "everything is open: it completes");
        let (mut receiving, mut leaving) = (0, 0);
        for (att, tenant) in self.model.atts.iter().enumerate() {
            receiving += usize::from(tenant.stage == Stage::Receiving);
            leaving += usize::from(tenant.stage == Stage::Leaving);
            let gone = over || tenant.stage == Stage::Gone;
            let seen = tenant.seen.borrow();
            assert_eq!(seen.dropped, gone, "is the sink of {att} gone?");
            let unflushed = seen.unflushed && tenant.stage == Stage::Receiving && !over;
            assert!(!unflushed, "{att} was not flushed");
        }
        if over {
            return;
        }
        assert_eq!((demux.len(), demux.is_empty()), (receiving, receiving == 0));
        assert_eq!(Rc::strong_count(&self.alive) - 1, receiving + leaving, "keys that live");
        for (name, text) in NAMES.iter().enumerate() {
            let there = !self.model.receiving(name, K::same).is_empty();
            let key = K::new(name, &self.alive, Lit::default());
            assert_eq!(demux.contains_key(&key), there, "is {text:?} there?");
            let borrowed = borrowed(demux, name).unwrap_or(there);
            assert_eq!(borrowed, there, "is {text:?} there, borrowed?");
        }
    }
}
