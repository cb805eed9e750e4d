//! Guarantee 6, and flushes that linger.

use super::event::Id;
use super::facts::{Facts, Known, SinkFacts};
use super::script::Settings;

/// Guarantee 6: when sinks are flushed.
#[derive(Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct FlushRule {
    /// An item was read in this turn, or one that was read before was offered to more members.
    reads: bool,
    flushes: bool,
    input_pending: bool,
    /// There was a lull at the last flush, and nothing was read since: the flushes go on.
    lull: bool,
    /// The last turn that was not all busy: the input had nothing, or was not read.
    last_calm_turn: u32,
    /// The last turn in which the input had to wait, or was over.
    last_held_turn: u32,
    orders_ended: bool,
    linger: Linger,
    /// A flush in this turn that did not linger, as it should if the input had nothing ready.
    early: Option<Id>,
}

/// What lingers is flushed at a tick.
#[derive(Clone, Copy, Default)]
struct Linger {
    /// The input had nothing ready, with something unflushed: since then so many ticks were read,
    /// and so many may have come.
    counts: bool,
    may_count: bool,
    sure: u32,
    possible: u32,
    /// The turn of the last tick at which all were to be flushed, and whether they may still be.
    due: Option<u32>,
    flushing: bool,
}

impl Linger {
    fn may_start(&mut self, facts: &Facts) {
        if !std::mem::replace(&mut self.may_count, true) {
            // A tick of this turn may have come before or after that.
            self.possible = u32::from(facts.ticks_in_turn > 0);
        }
    }

    fn stop(&mut self) {
        (self.counts, self.may_count, self.sure, self.possible) = (false, false, 0, 0);
    }
}

impl FlushRule {
    const DRY_TURNS: u32 = 16;

    pub(super) fn begin_turn(&mut self) {
        *self = Self {
            last_calm_turn: self.last_calm_turn,
            last_held_turn: self.last_held_turn,
            orders_ended: self.orders_ended,
            linger: self.linger,
            ..Self::default()
        };
    }

    pub(super) fn input_pending(&mut self) {
        self.input_pending = true;
    }

    pub(super) fn orders_ended(&mut self) {
        self.orders_ended = true;
    }

    /// A tick was read, the first in this turn.
    pub(super) fn tick(&mut self, facts: &Facts, settings: Settings) {
        self.linger.sure += u32::from(self.linger.counts);
        self.linger.possible += u32::from(self.linger.may_count);
        if self.linger.counts && self.linger.sure >= settings.linger {
            self.linger.due = Some(facts.turn);
            self.linger.flushing = true;
            self.linger.stop();
        } else if self.linger.possible >= settings.linger {
            // The count may have come to its end, and start anew.
            (self.linger.counts, self.linger.sure) = (false, 0);
        }
    }

    pub(super) fn asleep(&mut self) {
        self.linger.flushing = false;
    }

    /// Starts and ends the count of ticks: while something is unflushed.
    pub(super) fn watch(&mut self, facts: &Facts) {
        if !facts.sinks.iter().any(SinkFacts::needs_flush) {
            // The count may go on if a window has ended, until the input has nothing ready.
            (self.linger.counts, self.linger.sure) = (false, 0);
            if self.input_pending {
                self.linger.stop();
            }
        } else if self.input_pending {
            self.linger.counts = true;
            self.linger.may_start(facts);
        }
    }

    /// Returns `true` if the sink must not wait for a tick any more.
    pub(super) fn must_flush(&self, sink: &SinkFacts) -> bool {
        self.orders_ended || self.linger.due.is_some_and(|turn| sink.unflushed_since.1 < turn)
    }

    /// An item that was read in an earlier turn, and offered to some of those it is for, is offered
    /// to another: that is no lull.
    pub(super) fn offered_on(&mut self) {
        self.reads = true;
    }

    /// Checks that a busy input is read on for no more than a window.
    pub(super) fn item_read(
        &mut self,
        facts: &Facts,
        settings: Settings,
        needs_no_flush: impl Fn(Id) -> bool,
    ) -> Result<(), String> {
        self.reads = true;
        self.lull = false;
        for (id, sink) in facts.sinks.iter().enumerate().filter(|(_, sink)| sink.is_unflushed()) {
            let further = facts.received - sink.unflushed_since.0;
            if further > settings.flush_every as u64 && !needs_no_flush(id) {
                return Err(format!("{id} was to be flushed before this is read"));
            }
        }
        Ok(())
    }

    /// Checks that a flush in a busy turn is not early: of the window, a quarter may be left.
    /// `waits`: the input may have to wait, or be over.
    pub(super) fn flush_asked(
        &mut self,
        facts: &Facts,
        settings: Settings,
        id: Id,
        waits: bool,
    ) -> Result<(), String> {
        self.flushes = true;
        self.lull |= waits || self.input_pending || !self.reads;
        let sink = &facts.sinks[id];
        let (since, turn) = sink.due_since.unwrap_or(sink.unflushed_since);
        if waits {
            self.last_held_turn = facts.turn;
        }
        let busy = !self.lull && turn > self.last_calm_turn;
        let window = settings.flush_every as u64;
        let earliest = (window - window / 4).saturating_sub(1);
        let further = facts.received - since;
        let excused = sink.flush_pending || sink.inherits_flush;
        let lingers = settings.linger > 0
            && turn > self.last_held_turn
            && !self.orders_ended
            && !self.linger.flushing;
        if lingers && self.linger.possible >= settings.linger {
            self.linger.flushing = true;
            if further < earliest && !excused {
                self.linger.stop();
            } else {
                // Or its window has ended, and the count goes on.
                (self.linger.counts, self.linger.sure) = (false, 0);
            }
        }
        let lingers = lingers && !self.linger.flushing;
        if lingers && further < earliest {
            self.early = self.early.or((!excused).then_some(id));
            // It may be at a tick, which ends the count.
            (self.linger.counts, self.linger.sure) = (false, 0);
        }
        if busy && !excused && further < earliest {
            return Err(format!("only {further} further items were read, of {window}"));
        }
        Ok(())
    }

    /// Checks that a flush starts in the 16th dry turn at the latest. `held`: whether an item is
    /// held, or the input over; `waits`: whether it is held for a sink.
    pub(super) fn end_turn(
        &mut self,
        facts: &mut Facts,
        settings: Settings,
        held: Known,
        waits: Known,
        needs_no_flush: impl Fn(Id) -> bool,
    ) -> Result<(), String> {
        if self.input_pending || !self.reads || waits != Known::No {
            self.last_calm_turn = facts.turn;
        }
        if waits != Known::No {
            self.last_held_turn = facts.turn;
            // All are flushed at once if it is blocked, and the count ends.
            (self.linger.counts, self.linger.sure) = (false, 0);
        } else if let Some(id) = self.early.filter(|_| self.input_pending || self.reads) {
            let ticks = self.linger.possible;
            return Err(format!("{id} was flushed after {ticks} ticks of {}", settings.linger));
        }
        if settings.linger > 0 {
            if !self.reads && facts.sinks.iter().any(SinkFacts::needs_flush) {
                self.linger.may_start(facts);
            }
            return Ok(());
        }
        let dry = self.input_pending || (!self.reads && held == Known::Yes);
        for (id, sink) in facts.sinks.iter_mut().enumerate().filter(|_| dry) {
            if !sink.needs_flush() {
                continue;
            }
            sink.dry_turns += 1;
            // With a small budget, a turn has no share for flushes.
            let late = sink.dry_turns >= Self::DRY_TURNS && !self.flushes && settings.budget >= 16;
            if late && !needs_no_flush(id) {
                return Err(format!("{id} was not flushed in {} dry turns", sink.dry_turns));
            }
        }
        Ok(())
    }
}
