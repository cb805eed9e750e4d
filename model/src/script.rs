//! The meaning of the bytes of a script: settings, the kind of the script, and steps.

use std::hash::{BuildHasher, Hasher};

use sink_test::Op;
use stream_demux::Overflow;

use crate::event::{self, Command, Knob, OrderKind, Place, Request, Step, Terms};
use crate::{ITEM_KEYS, KEYS};

/// What a step can be.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Items,
    Burst,
    Attach,
    Crowd,
    Detach,
    Evict,
    Tick,
    Streams,
    Lease,
    Cue,
    Inside,
    Waker,
    Poll,
    Run,
}

use Kind::{
    Attach, Burst, Crowd, Cue, Detach, Evict, Inside, Items, Lease, Poll, Run, Streams, Tick, Waker,
};
const STEPS: [Kind; 14] = [
    Items, Burst, Attach, Crowd, Detach, Evict, Tick, Streams, Lease, Cue, Inside, Waker, Poll, Run,
];

/// How often each of these steps occurs, for each kind of script.
const KINDS: [[usize; 14]; 7] = [
    [6, 1, 6, 0, 1, 1, 2, 1, 2, 6, 3, 1, 2, 3], // all kinds of steps
    [8, 0, 2, 0, 0, 0, 1, 0, 0, 8, 2, 1, 3, 4], // few sinks
    [4, 4, 1, 1, 1, 1, 1, 1, 1, 4, 1, 1, 6, 2], // crowds
    [1, 6, 3, 0, 1, 0, 0, 0, 0, 3, 0, 4, 2, 4], // long turns after idling
    [6, 0, 6, 0, 2, 2, 1, 2, 5, 3, 4, 0, 3, 3], // orders and leases
    [5, 0, 3, 0, 1, 0, 7, 0, 1, 5, 1, 0, 2, 5], // time
    [6, 0, 3, 0, 1, 0, 1, 6, 0, 2, 4, 0, 4, 2], // streams that yield
];

/// Two more kinds, for the last values of the byte that chooses the kind.
const DEPARTURES: u8 = 254; // crowds that leave together
const RECONNECTS: u8 = 255; // sinks that replace others and are not ready
const DEPARTURE: [usize; 14] = [5, 2, 1, 3, 1, 1, 1, 0, 6, 2, 2, 0, 4, 3];
const RECONNECT: [usize; 14] = [6, 0, 8, 0, 1, 1, 1, 0, 1, 2, 2, 0, 6, 2];

/// A reader of a script. All bytes after the end of the script are zero.
pub struct Script<'a> {
    bytes: &'a [u8],
    weights: [usize; 14],
    /// Each crowd has a lease.
    departs: bool,
}

impl Script<'_> {
    /// Returns the settings of a script, and its steps.
    pub fn new(bytes: &[u8]) -> (Settings, Script<'_>) {
        let mut script = Script { bytes, weights: KINDS[0], departs: false };
        let mut settings = script.settings();
        let kind = script.byte();
        script.weights = match kind {
            DEPARTURES => DEPARTURE,
            RECONNECTS => RECONNECT,
            _ => KINDS[usize::from(kind) * KINDS.len() / 256],
        };
        script.departs = kind == DEPARTURES;
        settings.parks = kind == RECONNECTS;
        (settings, script)
    }

    fn byte(&mut self) -> u8 {
        let (first, rest) = self.bytes.split_first().unwrap_or((&0, &[]));
        self.bytes = rest;
        *first
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) * end / 256
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns `Some` of a choice, in one of `times` cases.
    fn rarely<T: Copy>(&mut self, times: u8, from: &[T]) -> Option<T> {
        let byte = self.byte();
        (byte % times == times - 1).then(|| from[usize::from(byte / times) % from.len()])
    }

    fn settings(&mut self) -> Settings {
        const BUDGETS: [usize; 12] = [128, 1, 2, 3, 4, 5, 6, 8, 12, 16, 64, 300];
        let group = self.below(4);
        Settings {
            budget: self.pick(&BUDGETS),
            multicast: group == 2,
            balance: group == 3,
            refuses: self.rarely(4, &[3, 5]).unwrap_or(0),
            buffer: self.rarely(2, &[0, 1, 2, 3, 8, 100]),
            overflow: self.rarely(2, &POLICIES).unwrap_or_default(),
            supersedes: self.pick(&[1, 2, 3, 0]),
            flush_every: self.pick(&[16_384, 1, 2, 3, 5, 8, 16, 64]),
            drops: self.byte() % 8 == 7,
            on_demand: self.rarely(4, &[1, 2, 3]).unwrap_or(0),
            linger: self.rarely(4, &[1, 2]).unwrap_or(0),
            stall_timeout: self.rarely(3, &[1, 2, 3]).unwrap_or(0),
            idle_timeout: self.rarely(3, &[1, 2, 3]).unwrap_or(0),
            pool: self.pick(&[1, 2, 5, 20]),
            coop: self.rarely(3, &[3, 12, 70, 128]),
            coop_for_streams: self.byte() % 2 == 1,
            coop_delay: self.pick(&[None, Some(0), Some(3), Some(61)]),
            coop_left: self.below(130),
            hashing: self.pick(&[Hashing::Good, Hashing::Equal, Hashing::Low, Hashing::High]),
            parks: false,
        }
    }

    pub fn step(&mut self) -> Option<Step> {
        if self.bytes.is_empty() {
            return None;
        }
        Some(match self.kind() {
            Poll => Step::Poll,
            Run => Step::Run,
            Waker => match self.below(6) {
                0 => Step::RenewWaker,
                1 => Step::PollUnasked,
                2 | 3 => Step::Do(Command::Leave(self.below(130))),
                4 => Step::Do(Command::Receive(1 + self.below(8))),
                // A part of an item, and what pays for few flushes, for many, and for all.
                _ => Step::Elapse(self.pick(&[100, 80_000, 800_000, 100_000_000])),
            },
            Inside => {
                let ops = [Op::Ready, Op::Ready, Op::Send, Op::Flush, Op::Close];
                let place = match self.below(8) {
                    0 | 1 => Place::Input,
                    2 => Place::Orders,
                    3 | 4 => Place::Hook,
                    _ => Place::Sink(self.below(8), self.pick(&ops)),
                };
                let kind = self.pick(&[Cue, Items, Attach, Detach, Evict, Tick, Streams, Lease]);
                Step::Inside(place, self.command(kind))
            }
            kind => Step::Do(self.command(kind)),
        })
    }

    fn kind(&mut self) -> Kind {
        let mut at = self.below(self.weights.iter().sum());
        for (kind, weight) in STEPS.into_iter().zip(self.weights) {
            if at < weight {
                return kind;
            }
            at -= weight;
        }
        Run
    }

    fn command(&mut self, kind: Kind) -> Command {
        match kind {
            Items => {
                let key = self.key(ITEM_KEYS);
                Command::Items { key, count: self.pick(&[1, 1, 1, 2, 3, 5]), stride: 0 }
            }
            Burst => {
                let (key, stride) = (self.key(ITEM_KEYS), self.pick(&[0, 1, 1]));
                Command::Items { key, count: self.pick(&[8, 20, 70, 150, 400]), stride }
            }
            Attach => self.attach(1),
            Crowd => {
                let count = self.rarely(if self.departs { 4 } else { 32 }, &[300, 1_000, 2_000]);
                let few = self.pick(&[18, 20, 40, 70]);
                self.attach(count.unwrap_or(few))
            }
            Detach => Command::Order(OrderKind::Detach(self.key(KEYS))),
            Evict => Command::Order(OrderKind::Evict(self.key(KEYS))),
            Tick => Command::Order(OrderKind::Tick),
            Streams => match self.below(32) {
                0 => Command::Order(OrderKind::Finish),
                1 => Command::Order(OrderKind::Abort),
                2 => Command::Orders(Knob::End),
                3 => Command::Input(Knob::End),
                4..=14 => Command::Orders(Knob::Yield),
                15..=20 => Command::Input(Knob::Yield),
                21..=26 => Command::Orders(Knob::Wake),
                _ => Command::Input(Knob::Wake),
            },
            Lease => {
                let requests = [Request::Evict, Request::Evict, Request::Detach, Request::Stay];
                Command::Lease(self.below(4), self.pick(&requests), self.byte() % 4 == 3)
            }
            _ => Command::Cue(self.below(8), self.cue()),
        }
    }

    /// Returns a key. The first ones are more frequent.
    fn key(&mut self, end: u16) -> u16 {
        let byte = u16::from(self.byte());
        if byte < 192 { byte % 2 } else { byte % end }
    }

    fn attach(&mut self, count: u16) -> Command {
        let (stall_timeout, idle_timeout) = self.rarely(6, &[(0, 2), (2, 0), (2, 2)]).unzip();
        let is_leased = self.departs && count > 1;
        let lease = if is_leased { Some(self.below(4)) } else { self.rarely(2, &[0, 1, 2, 3]) };
        Command::Attach {
            terms: Terms {
                key: self.key(KEYS),
                buffer: self.rarely(2, &[0, 1, 2, 3, 100]),
                overflow: self.rarely(2, &POLICIES),
                limit: self.rarely(4, &[1, 2, 5, 0]),
                keep_existing: self.byte() % 12 == 11,
                catch_all: self.byte() % 8 == 7,
                stall_timeout,
                idle_timeout,
            },
            count,
            stride: self.pick(&[0, 1]),
            leases: [lease, self.rarely(4, &[0, 1, 2, 3]).filter(|_| lease.is_some())],
            pooled: self.byte() % 8 == 7,
        }
    }

    fn cue(&mut self) -> event::Cue {
        use event::Cue;
        let ops = [Op::Ready, Op::Flush, Op::Close];
        let calls = self.pick(&[1, 1, 2, 3, 20]);
        match self.below(20) {
            0..=3 => Cue::Park,
            4..=6 => Cue::Open,
            7..=9 => Cue::Allow(calls.min(3)),
            10 => Cue::Hold(self.pick(&ops[1..])),
            11 | 12 => Cue::Release(self.pick(&ops[1..])),
            13 => Cue::Fail(self.pick(&OPS)),
            14 => Cue::FailQuietly(self.pick(&OPS)),
            15 | 16 => Cue::Yield(self.pick(&ops), calls),
            17 | 18 => Cue::Wake,
            _ => Cue::Budget(calls, self.byte() % 2 == 1),
        }
    }
}

pub const OPS: [Op; 4] = [Op::Ready, Op::Send, Op::Flush, Op::Close];
const POLICIES: [Overflow; 5] = [
    Overflow::DropNewest,
    Overflow::DropOldest,
    Overflow::Evict,
    Overflow::Conflate,
    Overflow::Wait,
];

/// The settings of the demux and of its world.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    pub budget: usize,
    pub multicast: bool,
    pub balance: bool,
    /// An item is refused if this divides the sum of its number and the tag. With 0, none is.
    pub refuses: u32,
    pub buffer: Option<usize>,
    pub overflow: Overflow,
    /// An item supersedes another if this divides the sum of their numbers. With 0, none does.
    pub supersedes: u32,
    pub flush_every: usize,
    /// Whether the future is dropped at the end. Otherwise it is polled until it completes.
    pub drops: bool,
    /// What is attached for items that match no key. With 0, nothing is.
    pub on_demand: u8,
    pub linger: u32,
    pub stall_timeout: u32,
    pub idle_timeout: u32,
    /// The number of places of the channel that pooled sinks share.
    pub pool: usize,
    /// The cooperative budget of the task.
    pub coop: Option<usize>,
    /// The streams share it, too.
    pub coop_for_streams: bool,
    /// After how many polls denied wakes fire; at once without it.
    pub coop_delay: Option<usize>,
    /// What is left of the budget if the task is woken from outside.
    pub coop_left: usize,
    pub hashing: Hashing,
    /// Sinks are not ready until a step makes them so.
    pub parks: bool,
}

/// The hashes of the first 64 keys. If they are not good, the table compares keys that differ. With
/// more such keys, scripts would take too long.
#[derive(Clone, Copy, Debug, Default)]
pub enum Hashing {
    #[default]
    Good,
    Equal,
    /// They differ only in the two lowest bits.
    Low,
    /// They differ only in the seven highest bits, which a hash table compares before the keys.
    High,
}

impl BuildHasher for Hashing {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(*self, 0)
    }
}

pub struct KeyHasher(Hashing, u64);

impl Hasher for KeyHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers of 16 bits");
    }

    fn write_u16(&mut self, key: u16) {
        self.1 = key.into();
    }

    fn finish(&self) -> u64 {
        match *self {
            Self(Hashing::Equal, 0..64) => 7,
            Self(Hashing::Low, key @ 0..64) => key & 3,
            Self(Hashing::High, key @ 0..64) => key << 57,
            Self(_, key) => key.wrapping_mul(0x9E37_79B9_7F4A_7C15),
        }
    }
}
