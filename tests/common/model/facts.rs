//! What was seen of the demux: never in doubt, whatever state it is in.

use std::collections::BTreeMap;

use super::super::Op;
use super::KEYS;
use super::event::{Id, Outcome};

/// After so many operations in one poll, a Pending of a sink that may lose items is taken for a
/// yield.
const MANY_OPERATIONS: u64 = 64;

/// Whether something is so. In order: `a.max(b)` is "a or b".
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

/// A number of which a part may or may not count.
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

    /// Returns whether it has grown since it was `earlier`.
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

/// What was seen so far.
#[derive(Default)]
pub(super) struct Facts {
    pub(super) sinks: Vec<SinkFacts>,
    /// Keys of the items read.
    pub(super) keys: BTreeMap<u32, u8>,
    pub(super) turn: u32,
    pub(super) balance: bool,
    pub(super) received: u64,
    /// Operations in this turn: items and orders read, items sent, flushes and closes that
    /// completed.
    pub(super) operations: Count,
    /// What two yields of a sink may have between them: orders read, items that sinks accepted,
    /// flushes and closes that completed. Counted since the start.
    pub(super) progress: Count,
    /// Ticks that were read since the task slept, those in one turn as one; and all in this turn.
    pub(super) ticks: usize,
    pub(super) ticks_in_turn: u32,
    /// Keys that `key_attached` was called for, and `key_detached` not since.
    pub(super) told: [bool; KEYS as usize],
    /// The last event completed an operation of this sink.
    pub(super) moved: Option<Id>,
    /// Sinks were dropped, so that there are wakers of former ones; and such wakers have fired.
    drops: bool,
    stale_wakes: bool,
}

/// What was seen of a sink.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, Default)]
pub(super) struct SinkFacts {
    /// Whether an answer late in a turn is not believed: with a policy that discards or evicts.
    pub(super) loses_items: Known,
    pub(super) applied: bool,
    pub(super) dropped: bool,
    pub(super) closing: bool,
    pub(super) taken: u32,
    pub(super) flush_asked: u32,
    pub(super) flush_pending: bool,
    /// When it took the first item that is not flushed: how many items had been read, and the turn.
    pub(super) unflushed_since: (u64, u32),
    /// The same, but counted from before a flush that was pending and went on when it was woken:
    /// that one is no flush that fell due, and puts off none.
    pub(super) due_since: Option<(u64, u32)>,
    /// Dry turns since then.
    pub(super) dry_turns: u32,
    /// The operations that last answered Pending: how many items it had taken then.
    pending: [Option<u32>; 4],
    /// Its waker fired, and so each operation may be asked again once: from which turn on. A wake
    /// that came before the Pending answer counts, as long as the task has not slept since.
    woken: [Vec<u32>; 4],
    /// A new sink in an old slot may be asked once for the sake of the old one's waker. If that one
    /// has fired, it may be taken for a wake of the new one.
    spurious: [bool; 4],
    inherits_wake: bool,
    /// If the old one was to be flushed, the first flush may be early.
    pub(super) inherits_flush: bool,
    /// `poll_ready` answered Pending after many operations: from this turn on it may be asked
    /// again, once, unwoken.
    recheck: Option<u32>,
    /// `poll_ready` runs: whether the sink's waker has fired in it.
    called: Option<Known>,
    /// Whether the last Pending of `poll_ready` is a yield, by its waker or by the count of
    /// operations.
    pub(super) yields: Known,
    pub(super) yields_when_busy: Known,
    /// Whether its waker has fired since that answer.
    pub(super) fired: Known,
    /// It is not ready, was woken since, and the task has slept since.
    pub(super) has_heard: bool,
    /// With `balance`: it may have been woken, and nothing waited for it, so that it was not asked
    /// again.
    may_be_asked: bool,
    /// Whether its waker has fired since the operation was asked, and not because of that.
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

    /// A tick was read.
    pub(super) fn tick_read(&mut self) {
        self.ticks_in_turn += 1;
        self.ticks += usize::from(self.ticks_in_turn == 1);
    }

    /// The order to attach it was read.
    pub(super) fn order_to_attach_read(&mut self, id: Id) {
        self.sinks[id].applied = true;
    }

    /// It was attached, perhaps in a slot that another has left.
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
        // A wake that was not heard is left to the next one in its slot.
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

    /// The end of a stream was read.
    pub(super) fn end_read(&mut self) {
        self.operations.add(Known::Maybe);
    }

    /// The waker of a sink fired.
    pub(super) fn woken(&mut self, id: Id) {
        let turn = self.turn;
        self.sinks[id].wake(turn, Known::Yes);
        self.sinks[id].unheard_wakes = [Known::Yes; 4];
    }

    /// The waker of a sink that is gone fired: whoever has its slot now is woken.
    pub(super) fn stale_wake(&mut self) {
        let turn = self.turn;
        self.stale_wakes = true;
        for sink in &mut self.sinks {
            sink.wake(turn, Known::Maybe);
            sink.may_have_woken();
        }
    }

    /// The task sleeps: every wake so far has been heard.
    pub(super) fn asleep(&mut self) {
        self.ticks = 0;
        for sink in &mut self.sinks {
            sink.has_heard |= sink.unheard_wakes[Op::Ready as usize] == Known::Yes;
            // The wake may have come before the answer.
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

    /// Checks the contract of `Sink` as far as a scripted sink does not, and guarantee 4. Returns
    /// `true` if the sink is asked because it answered after many operations.
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
                // Woken before the task slept.
            } else if let (Some(at), false) = (heard, more) {
                woken.remove(at);
            } else if !more && !std::mem::take(&mut sink.spurious[op as usize]) {
                rechecked = op == Op::Ready && sink.recheck.is_some_and(|from| from <= turn);
                if !rechecked {
                    return Err(if woken.is_empty() {
                        "asked again before its waker fired".into()
                    } else {
                        "asked again in the turn in which it woke itself".into()
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

    /// Its waker fired, and will have been heard by this turn.
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

    /// Judges an answer of `poll_ready`.
    fn ready_answered(&mut self, pending: bool, operations: Count, turn: u32) {
        let fired = self.called.take().unwrap_or_default();
        // A wake that was left over from before the call may be taken for one in it.
        let left_over = !self.woken[Op::Ready as usize].is_empty() || self.inherits_wake;
        let left_over = left_over && fired != Known::Yes;
        // Until it is looked after; at the latest an answer that it is not ready uses it up.
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

    /// Returns `true` if it answered that it is not ready, and has not taken that back.
    pub(super) fn is_parked(&self) -> bool {
        self.pending[Op::Ready as usize].is_some()
    }

    /// Returns `true` if it may be asked whether it is ready.
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

    /// Returns `true` if it took an item that is to be flushed.
    pub(super) fn needs_flush(&self) -> bool {
        self.applied && !self.dropped && !self.closing && self.is_unflushed()
    }

    fn may_have_woken(&mut self) {
        for wake in &mut self.unheard_wakes {
            *wake = (*wake).max(Known::Maybe);
        }
    }

    /// Returns `true` if the operation answered Pending when it was last asked.
    pub(super) fn is_pending(&self, op: Op) -> bool {
        self.pending[op as usize].is_some()
    }

    /// Whether its waker has fired since the operation was asked, so that it can go on. It is not
    /// known of one that fires it itself, or is to be asked again all the same.
    pub(super) fn unheard_wake(&self, op: Op) -> Known {
        let doubt = self.inherits_wake || op == Op::Ready && self.recheck.is_some();
        let doubt = if doubt { Known::Maybe } else { Known::No };
        self.unheard_wakes[op as usize].max(doubt)
    }

    /// Returns `true` if it took an item since it was last asked to flush.
    pub(super) fn is_unflushed(&self) -> bool {
        self.taken > self.flush_asked
    }
}
