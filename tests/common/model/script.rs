//! The meaning of the bytes of a script.
//!
//! The first three bytes are settings:
//!
//! | byte | bits | meaning |
//! | --- | --- | --- |
//! | 0 | 0-3, 4, 5-7 | budget; multicast; which items are not admitted |
//! | 1 | 0-1, 2-4 | buffer; overflow |
//! | 2 | 0-2, 3 | window; whether the future is dropped at the end of the script |
//! | 2 | 4-5, 6-7 | operations of the cooperative budget, or none; what shares it, and when its wakers fire |
//!
//! If bit 5 of byte 1 is set, two more bytes of settings follow:
//!
//! | byte | bits | meaning |
//! | --- | --- | --- |
//! | 3 | 0-1, 2, 3 | which items supersede others; conflate; balance |
//! | 3 | 4-5, 6-7 | what is attached on demand; linger |
//! | 4 | 0-1, 2-3 | stall and idle time-outs |
//!
//! The rest are steps. Each step is a byte and its arguments. A byte below 224 is taken modulo 32.
//!
//! | byte | step | arguments |
//! | --- | --- | --- |
//! | 0-6 | items | key and count |
//! | 7-11 | attach | key, buffer, overflow; limit and other terms; leases and a cue |
//! | 12, 13 | detach, evict | key |
//! | 14 | finish; ends, yields and wakes of the streams | which |
//! | 15, 16 | end a lease | bits 0-1: which; 2-3: evict, detach or disarm; 6-7: if both are set, reconnect |
//! | 17-22 | a cue for a sink | which sink, counted from the newest; the cue: see `cue_of` |
//! | 23-25 | a step 0-22 or 224-255, inside the next call of a stream, a hook or a sink | place; step |
//! | 26 | renew the waker, or poll without a wake | which |
//! | 27, 28 | poll once | |
//! | 29-31 | poll until the task sleeps | |
//! | 224-239 | a tick | |
//! | 240-255 | attach | as above; time-outs, and whether it conflates: see `attach` |

use stream_demux::Overflow;

use super::super::Op;
use super::event::{Command, Cue, OrderKind, Place, Request, Step, Terms};
use super::{ITEM_KEYS, KEYS};

/// A reader of a script. All bytes after the end of the script are zero.
pub(super) struct Script<'a>(pub(super) std::slice::Iter<'a, u8>);

impl Script<'_> {
    fn next(&mut self) -> Option<u8> {
        self.0.next().copied()
    }

    fn arg(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    pub(super) fn settings(&mut self) -> Settings {
        const BUDGETS: [usize; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 4, 12, 16, 64, 128, 256];
        const WINDOWS: [usize; 8] = [1, 2, 3, 5, 8, 16, 64, 16_384];
        const OPERATIONS: [usize; 4] = [0, 3, 12, 70];
        let [pace, buffer, flush] = [self.arg(), self.arg(), self.arg()];
        let coop = match OPERATIONS[usize::from(flush >> 4 & 3)] {
            0 => None,
            operations => Some(Coop {
                operations,
                streams: flush >> 6 != 0,
                wakes: [Wakes::AtOnce, Wakes::AtOnce, Wakes::AfterPoll, Wakes::WhenParked]
                    [usize::from(flush >> 6)],
            }),
        };
        let [more, ticks] = if buffer & MORE != 0 { [self.arg(), self.arg()] } else { [0; 2] };
        let overflow = overflow(buffer >> 2 & 7).unwrap_or_default();
        Settings {
            budget: BUDGETS[usize::from(pace & 15)],
            multicast: pace & 16 != 0 && more & 8 == 0,
            balance: more & 8 != 0,
            refuses: [0, 0, 0, 0, 0, 0, 3, 5][usize::from(pace >> 5)],
            buffer: usize::from(buffer & 3),
            overflow: if more & 4 != 0 { Overflow::Conflate } else { overflow },
            supersedes: [1, 2, 3, 0][usize::from(more & 3)],
            on_demand: more >> 4 & 3,
            linger: u32::from(more >> 6),
            stall_timeout: u32::from(ticks & 3),
            idle_timeout: u32::from(ticks >> 2 & 3),
            flush_every: WINDOWS[usize::from(flush & 7)],
            drops: flush & 8 != 0,
            coop,
        }
    }

    pub(super) fn step(&mut self) -> Option<Step> {
        let op = self.next()?;
        Some(match if op < TICK { op % 32 } else { op } {
            op @ (0..=22 | TICK..) => Step::Do(self.command(op)),
            23..=25 => {
                let (place, op) = (self.arg(), self.arg());
                let op = if op < TICK { op % 23 } else { op };
                let place = match place % 8 {
                    0 | 1 => Place::Input,
                    2 => Place::Orders,
                    3 => Place::Hook,
                    _ => Place::Sink(usize::from(place >> 3), OPS[usize::from(place % 4)]),
                };
                Step::Inside(place, self.command(op))
            }
            26 if self.arg() % 2 == 0 => Step::RenewWaker,
            26 => Step::PollUnasked,
            27 | 28 => Step::Poll,
            _ => Step::Run,
        })
    }

    fn command(&mut self, op: u8) -> Command {
        match op {
            0..=6 => {
                let arg = self.arg();
                Command::Items { key: arg % ITEM_KEYS, count: 1 + (arg / ITEM_KEYS) % 5 }
            }
            7..=11 => self.attach(false),
            TICK..=239 => Command::Order(OrderKind::Tick),
            240.. => self.attach(true),
            12 => Command::Order(OrderKind::Detach(self.arg() % KEYS)),
            13 => Command::Order(OrderKind::Evict(self.arg() % KEYS)),
            14 => match self.arg() % 16 {
                0 => Command::Order(OrderKind::Finish),
                1 => Command::EndOrders,
                2 => Command::EndInput,
                3..=6 => Command::YieldOrders,
                7..=9 => Command::YieldInput,
                10 | 11 => Command::WakeOrders,
                12 | 13 => Command::WakeInput,
                _ => Command::Nothing,
            },
            15 | 16 => {
                let arg = self.arg();
                let (lease, request) = (usize::from(arg & 3), usize::from(arg >> 2 & 3));
                let request =
                    [Some(Request::Evict), Some(Request::Detach), None, Some(Request::Evict)]
                        [request];
                if arg >> 6 == 3 {
                    Command::Reconnect(lease, request)
                } else {
                    Command::Lease(lease, request)
                }
            }
            _ => {
                let (sink, cue) = (self.arg(), self.arg());
                Command::Cue(usize::from(sink), cue_of(cue))
            }
        }
    }

    fn attach(&mut self, more: bool) -> Command {
        let (a, b, c) = (self.arg(), self.arg(), self.arg());
        let more = if more { self.arg() } else { 0 };
        let ticks = |bits: u8, none: u8| match bits & 3 {
            0 if none == 0 => None,
            ticks => Some(u32::from(ticks)),
        };
        let lease = |bits: u8| (bits & 4 != 0).then_some(usize::from(bits & 3));
        Command::Attach {
            terms: Terms {
                key: a % KEYS,
                buffer: [None, Some(0), Some(1), Some(3)][usize::from(a >> 2 & 3)],
                overflow: if more >> 6 == 3 {
                    Some(Overflow::Conflate)
                } else {
                    overflow(a >> 4 & 7)
                },
                limit: match b & 7 {
                    5 => Some(1),
                    6 => Some(2),
                    7 => Some([0, 4][usize::from(b >> 3 & 1)]),
                    _ => None,
                },
                keep_existing: b >> 3 & 7 == 7,
                catch_all: b >> 6 == 3,
                // 0 to 3, or the default.
                stall_timeout: ticks(more, more & 16),
                idle_timeout: ticks(more >> 2, more & 32),
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

/// The bit of the second byte that is set if two more bytes of settings follow.
const MORE: u8 = 32;
const TICK: u8 = 224;

pub(super) const OPS: [Op; 4] = [Op::Ready, Op::Send, Op::Flush, Op::Close];

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
        23 | 24 => Cue::Yield(Op::Ready, calls),
        25 => Cue::Yield(Op::Flush, calls),
        26 => Cue::Yield(Op::Close, calls),
        27 | 28 => Cue::Wake,
        29 => Cue::Yield(Op::Ready, 8 * calls),
        30 => Cue::Budget { operations: calls, defers: false },
        _ => Cue::Budget { operations: calls, defers: true },
    }
}

/// The settings, from the first three or five bytes of a script.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) budget: usize,
    pub(super) multicast: bool,
    pub(super) balance: bool,
    pub(super) refuses: u32,
    pub(super) buffer: usize,
    pub(super) overflow: Overflow,
    /// The divisor for `supersedes`. A new item supersedes a waiting item if the divisor divides
    /// the sum of their numbers. With 0, none does.
    pub(super) supersedes: u32,
    /// What is attached for items that match no key. With 0, nothing is.
    pub(super) on_demand: u8,
    pub(super) linger: u32,
    pub(super) stall_timeout: u32,
    pub(super) idle_timeout: u32,
    pub(super) flush_every: usize,
    /// Whether the future is dropped at the end of the script, in any situation. Otherwise it is
    /// polled until it completes.
    pub(super) drops: bool,
    /// The cooperative budget of the task.
    pub(super) coop: Option<Coop>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Coop {
    pub(super) operations: usize,
    /// Whether the input and the orders share the budget, too.
    pub(super) streams: bool,
    pub(super) wakes: Wakes,
}

/// When the wakers of operations fire that a cooperative budget has denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wakes {
    AtOnce,
    AfterPoll,
    /// Before the first poll for which the task is not woken otherwise.
    WhenParked,
}
