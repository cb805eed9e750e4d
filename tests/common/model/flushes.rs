//! Guarantee 6, and flushes that linger.

use super::event::Id;
use super::facts::{Facts, Known, SinkFacts};
use super::script::Settings;

/// The check of guarantee 6: when sinks are flushed.
#[derive(Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct FlushRule {
    /// Whether an item was read in this turn, or an item that was read before was offered to more
    /// members.
    reads: bool,
    flushes: bool,
    input_pending: bool,
    /// Whether there was a lull at the last flush and nothing was read since, so that flushes go
    /// on.
    lull: bool,
    /// The last turn that was not busy throughout: the input had nothing ready, or was not read.
    last_calm_turn: u32,
    /// The last turn in which the input had to wait or was over.
    last_held_turn: u32,
    orders_ended: bool,
    linger: Linger,
    /// A sink whose flush in this turn did not linger. It should have lingered if the input had
    /// nothing ready.
    early: Option<Id>,
}

/// The flushes that wait for a tick.
#[derive(Clone, Copy, Default)]
struct Linger {
    /// Whether the input had nothing ready while something was unflushed, so that ticks are
    /// counted.
    counts: bool,
    /// Whether ticks may be counted.
    may_count: bool,
    /// The number of ticks that were read since.
    sure: u32,
    /// The number of ticks that may have come since.
    possible: u32,
    /// The turn of the last tick at which all sinks were to be flushed.
    due: Option<u32>,
    /// Whether sinks may still be flushed because of this tick.
    flushing: bool,
}

impl Linger {
    fn may_start(&mut self, facts: &Facts) {
        if !std::mem::replace(&mut self.may_count, true) {
            // A tick of this turn may have come before or after the start of the count.
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

    /// Handles the first tick that is read in a turn.
    pub(super) fn tick(&mut self, facts: &Facts, settings: Settings) {
        self.linger.sure += u32::from(self.linger.counts);
        self.linger.possible += u32::from(self.linger.may_count);
        if self.linger.counts && self.linger.sure >= settings.linger {
            self.linger.due = Some(facts.turn);
            self.linger.flushing = true;
            self.linger.stop();
        } else if self.linger.possible >= settings.linger {
            // The count may have ended and started anew.
            (self.linger.counts, self.linger.sure) = (false, 0);
        }
    }

    pub(super) fn asleep(&mut self) {
        self.linger.flushing = false;
    }

    /// Starts and ends the count of ticks, which runs while something is unflushed.
    pub(super) fn watch(&mut self, facts: &Facts) {
        if !facts.sinks.iter().any(SinkFacts::needs_flush) {
            // If a window has ended, the count may go on until the input has nothing ready.
            (self.linger.counts, self.linger.sure) = (false, 0);
            if self.input_pending {
                self.linger.stop();
            }
        } else if self.input_pending {
            self.linger.counts = true;
            self.linger.may_start(facts);
        }
    }

    /// Returns `true` if the flush of the sink must no longer wait for a tick.
    pub(super) fn must_flush(&self, sink: &SinkFacts) -> bool {
        self.orders_ended || self.linger.due.is_some_and(|turn| sink.unflushed_since.1 < turn)
    }

    /// Records that an item that was read in an earlier turn, and offered to some of its
    /// recipients, is offered to another one. The turn is then not a lull.
    pub(super) fn offered_on(&mut self) {
        self.reads = true;
    }

    /// Checks that a busy input is read no further than one window before a sink is flushed.
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
                return Err(format!("{id} should have been flushed before this read"));
            }
        }
        Ok(())
    }

    /// Checks that a flush in a busy turn is not early: at most a quarter of the window may be
    /// left. `waits` is whether the input may have to wait, or be over.
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
                // The flush is at a tick, or its window has ended and the count goes on.
                (self.linger.counts, self.linger.sure) = (false, 0);
            }
        }
        let lingers = lingers && !self.linger.flushing;
        if lingers && further < earliest {
            self.early = self.early.or((!excused).then_some(id));
            // The flush may be at a tick, which ends the count.
            (self.linger.counts, self.linger.sure) = (false, 0);
        }
        if busy && !excused && further < earliest {
            return Err(format!("flushed after only {further} of {window} further items"));
        }
        Ok(())
    }

    /// Checks that a flush starts in the 16th dry turn at the latest. `held` is whether an item is
    /// held or the input is over. `waits` is whether the item is held for a sink.
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
            // If the input is blocked, all sinks are flushed at once, and the count ends.
            (self.linger.counts, self.linger.sure) = (false, 0);
        } else if let Some(id) = self.early.filter(|_| self.input_pending || self.reads) {
            let ticks = self.linger.possible;
            return Err(format!("{id} was flushed after {ticks} of {} ticks", settings.linger));
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
