//! What the tape shows about the demux for certain, whatever state the demux is in.

use std::collections::BTreeMap;

use super::super::Op;
use super::KEYS;
use super::event::{Id, Outcome};

/// The number of operations in one poll after which a `Pending` of a sink that may lose items is
/// taken for a yield.
const MANY_OPERATIONS: u64 = 64;

/// Whether a statement is true. The variants are ordered, so `a.max(b)` means "a or b".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Known {
    #[default]
    No,
    Maybe,
    Yes,
}

impl Known {
    pub(super) fn not(self) -> Self {
        match self {
            Self::No => Self::Yes,
            Self::Maybe => Self::Maybe,
            Self::Yes => Self::No,
        }
    }
}

/// A count of which a part is uncertain: `possible` includes this part, `sure` does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Count {
    pub(super) sure: u64,
    pub(super) possible: u64,
}

impl Count {
    fn add(&mut self, counts: Known) {
        self.sure += u64::from(counts == Known::Yes);
        self.possible += u64::from(counts != Known::No);
    }

    /// Returns whether the count has grown since it was `earlier`.
    pub(super) fn exceeds(self, earlier: Self) -> Known {
        if self.sure > earlier.sure {
            Known::Yes
        } else if self.possible > earlier.possible {
            Known::Maybe
        } else {
            Known::No
        }
    }
}

/// What the tape has shown so far.
#[derive(Default)]
pub(super) struct Facts {
    pub(super) sinks: Vec<SinkFacts>,
    /// The keys of the items that were read.
    pub(super) keys: BTreeMap<u32, u8>,
    pub(super) turn: u32,
    pub(super) balance: bool,
    pub(super) received: u64,
    /// The number of operations in this turn: items and orders read, items sent, and flushes and
    /// closes that completed.
    pub(super) operations: Count,
    /// The progress that can separate two yields of a sink, counted since the start: orders read,
    /// items that sinks accepted, and flushes and closes that completed.
    pub(super) progress: Count,
    /// The number of ticks that were read since the task slept. Those of one turn count as one.
    pub(super) ticks: usize,
    /// The number of ticks that were read in this turn.
    pub(super) ticks_in_turn: u32,
    /// For each key, whether `key_attached` was called and `key_detached` was not called since.
    pub(super) keys_taken: [bool; KEYS as usize],
    /// The sink of which the last event completed an operation, if any.
    pub(super) moved: Option<Id>,
    /// Whether a sink was dropped, so that wakers of former sinks exist.
    drops: bool,
    /// Whether a waker of a former sink has fired.
    stale_wakes: bool,
}

/// What the tape has shown about a sink.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, Default)]
pub(super) struct SinkFacts {
    /// Whether a `Pending` late in a turn is not believed, because the policy discards or evicts.
    pub(super) loses_items: Known,
    pub(super) applied: bool,
    pub(super) dropped: bool,
    pub(super) closing: bool,
    pub(super) taken: u32,
    pub(super) flush_asked: u32,
    pub(super) flush_pending: bool,
    /// When the sink took the first item that is not flushed: the number of items read by then, and
    /// the turn.
    pub(super) unflushed_since: (u64, u32),
    /// The same, but a pending flush that is polled again after a wake does not reset it: such a
    /// flush did not fall due, and delays no other.
    pub(super) due_since: Option<(u64, u32)>,
    /// The number of dry turns since `unflushed_since`.
    pub(super) dry_turns: u32,
    /// For each operation that last returned `Pending`, the number of items that the sink had taken
    /// by then.
    pending: [Option<u32>; 4],
    /// For each operation, the wakes that allow one more call each, and the turn from which on they
    /// do. A wake before the `Pending` counts as long as the task has not slept since.
    woken: [Vec<u32>; 4],
    /// For each operation, whether it may be called once because of the waker of a former sink in
    /// the same slot.
    spurious: [bool; 4],
    /// Whether that waker has fired, which may be taken for a wake of this sink.
    inherits_wake: bool,
    /// Whether the first flush may be early, because the former sink was to be flushed.
    pub(super) inherits_flush: bool,
    /// The turn from which on `poll_ready` may be called again, once and without a wake, because it
    /// returned `Pending` after many operations.
    recheck: Option<u32>,
    /// While `poll_ready` runs, whether the sink's waker has fired inside the call.
    called: Option<Known>,
    /// Whether the last `Pending` of `poll_ready` is a yield, judging by its waker.
    pub(super) yields: Known,
    /// The same, judging by the number of operations.
    pub(super) yields_when_busy: Known,
    /// Whether the sink's waker has fired since this `Pending`.
    pub(super) fired: Known,
    /// Whether the sink is not ready, was woken since, and the task has slept since.
    pub(super) has_heard: bool,
    /// With `balance`: whether the sink may have been woken and was not polled again, because
    /// nothing waited for it.
    may_be_asked: bool,
    /// For each operation, whether the sink's waker has fired since the call, and not because of
    /// it.
    unheard_wakes: [Known; 4],
}

impl Facts {
    pub(super) fn new(balance: bool) -> Self {
        Self { balance, ..Self::default() }
    }

    pub(super) fn begin_turn(&mut self) {
        self.turn += 1;
        self.operations = Count::default();
        self.ticks_in_turn = 0;
    }

    /// Records that a tick was read.
    pub(super) fn tick_read(&mut self) {
        self.ticks_in_turn += 1;
        self.ticks += usize::from(self.ticks_in_turn == 1);
    }

    /// Records that the order to attach the sink was read.
    pub(super) fn order_to_attach_read(&mut self, id: Id) {
        self.sinks[id].applied = true;
    }

    /// Records that the sink was attached, possibly in a slot that another sink has left.
    pub(super) fn attached(&mut self, id: Id) {
        let sink = &mut self.sinks[id];
        sink.spurious = [self.drops; 4];
        sink.inherits_wake = self.stale_wakes;
        sink.inherits_flush = self.drops;
    }

    pub(super) fn dropped(&mut self, id: Id) {
        self.drops = true;
        let sink = &mut self.sinks[id];
        sink.dropped = true;
        // A wake that was not handled is left to the next sink in the slot.
        self.stale_wakes |= sink.woken.iter().any(|woken| !woken.is_empty());
    }

    pub(super) fn order_read(&mut self) {
        self.operations.add(Known::Yes);
        self.progress.add(Known::Yes);
    }

    pub(super) fn item_read(&mut self, seq: u32, key: u8) {
        self.received += 1;
        self.keys.insert(seq, key);
        self.operations.add(Known::Yes);
    }

    /// Records that the end of a stream was read.
    pub(super) fn end_read(&mut self) {
        self.operations.add(Known::Maybe);
    }

    /// Records that the waker of a sink fired.
    pub(super) fn woken(&mut self, id: Id) {
        let turn = self.turn;
        self.sinks[id].wake(turn, Known::Yes);
        self.sinks[id].unheard_wakes = [Known::Yes; 4];
    }

    /// Records that the waker of a dropped sink fired. It wakes the sink that has the slot now.
    pub(super) fn stale_wake(&mut self) {
        let turn = self.turn;
        self.stale_wakes = true;
        for sink in &mut self.sinks {
            sink.wake(turn, Known::Maybe);
            sink.may_have_woken();
        }
    }

    /// Records that the task sleeps, so it has handled every wake so far.
    pub(super) fn asleep(&mut self) {
        self.ticks = 0;
        for sink in &mut self.sinks {
            sink.has_heard |= sink.unheard_wakes[Op::Ready as usize] == Known::Yes;
            // The wake may have come before the `Pending`.
            let woken = sink.unheard_wakes[Op::Ready as usize] != Known::No
                || !sink.woken[Op::Ready as usize].is_empty();
            sink.may_be_asked |= self.balance && woken;
            sink.unheard_wakes = [Known::No; 4];
            sink.woken.iter_mut().for_each(Vec::clear);
            sink.inherits_wake = false;
            if sink.fired == Known::Maybe {
                sink.fired = Known::No;
            }
        }
    }

    /// Checks guarantee 4, and the parts of the contract of `Sink` that a scripted sink does not
    /// check. Returns `true` if the sink is polled again because it returned `Pending` after many
    /// operations.
    pub(super) fn asked(&mut self, id: Id, op: Op) -> Result<bool, String> {
        let turn = self.turn;
        let sink = &mut self.sinks[id];
        if sink.dropped || !sink.applied {
            return Err("the sink is not attached".into());
        }
        let mut rechecked = false;
        if let Some(taken) = sink.pending[op as usize] {
            let more = op == Op::Flush && sink.taken > taken;
            let woken = &mut sink.woken[op as usize];
            let heard = woken.iter().position(|from| *from <= turn);
            if op == Op::Ready && sink.may_be_asked {
                // The sink was woken before the task slept.
            } else if let (Some(at), false) = (heard, more) {
                woken.remove(at);
            } else if !more && !std::mem::take(&mut sink.spurious[op as usize]) {
                rechecked = op == Op::Ready && sink.recheck.is_some_and(|from| from <= turn);
                if !rechecked {
                    return Err(if woken.is_empty() {
                        "polled again before its waker fired".into()
                    } else {
                        "polled again in the turn in which it woke itself".into()
                    });
                }
            }
        }
        if op == Op::Flush && sink.taken == sink.flush_asked && !sink.flush_pending {
            return Err("there is nothing to flush".into());
        }
        sink.unheard_wakes[op as usize] = Known::No;
        if op == Op::Ready {
            sink.recheck = None;
            (sink.has_heard, sink.may_be_asked) = (false, false);
            sink.called = Some(Known::No);
        }
        Ok(rechecked)
    }

    pub(super) fn answered(&mut self, id: Id, op: Op, outcome: Outcome) {
        let (turn, received) = (self.turn, self.received);
        let done = match outcome {
            Outcome::Done => Known::Yes,
            Outcome::Failed => Known::Maybe,
            Outcome::Pending | Outcome::Yields => Known::No,
        };
        if op != Op::Ready {
            self.operations.add(done);
            self.progress.add(done);
            self.moved = (done == Known::Yes).then_some(id);
        }
        let operations = self.operations;
        let sink = &mut self.sinks[id];
        let pending = matches!(outcome, Outcome::Pending | Outcome::Yields);
        let woken_in_call = &mut sink.unheard_wakes[op as usize];
        *woken_in_call = (*woken_in_call).min(Known::Maybe);
        if outcome == Outcome::Yields {
            sink.wake(turn + 1, Known::Yes);
            sink.may_have_woken();
        }
        sink.pending[op as usize] = pending.then_some(sink.taken);
        match op {
            Op::Ready => sink.ready_answered(pending, operations, turn),
            Op::Send if outcome == Outcome::Done => {
                if sink.taken == sink.flush_asked {
                    sink.unflushed_since = (received, turn);
                    sink.dry_turns = 0;
                }
                sink.due_since.get_or_insert((received, turn));
                sink.taken += 1;
            }
            Op::Send => {}
            Op::Flush => {
                sink.inherits_flush = false;
                sink.due_since.take_if(|_| !sink.flush_pending);
                sink.flush_asked = sink.taken;
                sink.flush_pending = pending;
            }
            Op::Close => {
                sink.closing = true;
            }
        }
    }
}

impl SinkFacts {
    pub(super) fn new(loses_items: Known) -> Self {
        Self { loses_items, ..Self::default() }
    }

    /// Records that the sink's waker fired. The demux will have handled it by this turn.
    fn wake(&mut self, turn: u32, its_own: Known) {
        for woken in &mut self.woken {
            if woken.len() < 8 {
                woken.push(turn);
            }
        }
        if let Some(fired) = &mut self.called {
            *fired = its_own.max(*fired);
        } else if self.is_parked() {
            self.fired = its_own.max(self.fired);
        }
    }

    /// Evaluates what `poll_ready` returned.
    fn ready_answered(&mut self, pending: bool, operations: Count, turn: u32) {
        let fired = self.called.take().unwrap_or_default();
        // A wake that is left over from before the call may be taken for a wake inside the call.
        let left_over = !self.woken[Op::Ready as usize].is_empty() || self.inherits_wake;
        let left_over = left_over && fired != Known::Yes;
        // The inherited wake lasts until the sink is advanced, at the latest until it returns
        // `Pending`.
        self.inherits_wake &= !pending;
        let left_over = if left_over { Known::Maybe } else { Known::No };
        self.fired = left_over;
        self.yields = fired.max(left_over);
        let busy = if operations.sure >= MANY_OPERATIONS {
            Known::Yes
        } else if operations.possible >= MANY_OPERATIONS {
            Known::Maybe
        } else {
            Known::No
        };
        self.yields_when_busy = if pending { busy.min(self.loses_items) } else { Known::No };
        self.recheck = (self.yields_when_busy != Known::No).then_some(turn + 1);
    }

    /// Returns `true` if `poll_ready` returned `Pending` when it was last called.
    pub(super) fn is_parked(&self) -> bool {
        self.pending[Op::Ready as usize].is_some()
    }

    /// Returns `true` if `poll_ready` may be called.
    pub(super) fn may_be_ready(&self) -> bool {
        !self.is_parked()
            || self.fired != Known::No
            || self.has_heard
            || self.may_be_asked
            || self.inherits_wake
            || self.recheck.is_some()
            || self.spurious[Op::Ready as usize]
            || !self.woken[Op::Ready as usize].is_empty()
    }

    /// Returns `true` if the sink took an item that is to be flushed.
    pub(super) fn needs_flush(&self) -> bool {
        self.applied && !self.dropped && !self.closing && self.is_unflushed()
    }

    fn may_have_woken(&mut self) {
        for wake in &mut self.unheard_wakes {
            *wake = (*wake).max(Known::Maybe);
        }
    }

    /// Returns `true` if the operation returned `Pending` when it was last called.
    pub(super) fn is_pending(&self, op: Op) -> bool {
        self.pending[op as usize].is_some()
    }

    /// Returns whether the sink's waker has fired since the operation was called, so that the
    /// operation can go on. The result is uncertain for a sink that fires its waker itself or is
    /// polled again in any case.
    pub(super) fn unheard_wake(&self, op: Op) -> Known {
        let doubt = self.inherits_wake || op == Op::Ready && self.recheck.is_some();
        let doubt = if doubt { Known::Maybe } else { Known::No };
        self.unheard_wakes[op as usize].max(doubt)
    }

    /// Returns `true` if the sink took an item since `poll_flush` was last called.
    pub(super) fn is_unflushed(&self) -> bool {
        self.taken > self.flush_asked
    }
}
