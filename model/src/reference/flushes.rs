//! 5. Flushing.

use super::*;
use crate::tuning::{
    FLUSHED_AT_ONCE, LEAST, LONGEST_WAIT, MAX_BATCHES, MAX_FAILURES, NANOS_PER_ITEM, PER_SINK,
    TURNS_PER_ITEM, WAITED_FOR,
};

/// How long flushes wait for more items when the input is dry.
#[derive(Default)]
pub(super) struct Patience {
    waited: u32,
    /// The length of the last wait, and what came after it.
    judged: Option<(u32, usize)>,
    batches: u32,
    failures: u32,
    skip: u32,
}

impl Patience {
    fn fail(&mut self) {
        self.skip = 1 << self.failures.min(MAX_FAILURES);
        self.failures += 1;
    }
}

impl Reference {
    /// A sink took an item: an entry is made, unless an old or inherited one is left. (open)
    pub(super) fn enter_flush_list(&mut self, n: usize) {
        self[n].unflushed = true;
        if self.entries.iter().all(|(other, ..)| *other != n) {
            self.entries.push_back((n, self.totals.received, self.work()));
        }
    }

    /// What pays for flushes: the items that were read, their copies, and time.
    fn work(&self) -> u64 {
        let time = u64::try_from(self.elapsed.as_nanos()).unwrap() / NANOS_PER_ITEM;
        self.totals.received + self.totals.copies + time
    }

    /// How much work pays for the flushes of all entries.
    fn price(&self) -> u64 {
        LEAST.max(PER_SINK * self.entries.len() as u64)
    }

    /// Returns whether the first entry is due, or will be within the next `early` items.
    pub(super) fn is_due(&self, early: u64) -> bool {
        !self.entries.is_empty() && self.owed > 0 || self.is_over(early)
    }

    fn is_over(&self, early: u64) -> bool {
        self.entries.front().is_some_and(|(_, received, work)| {
            self.work() - work + early >= self.price()
                || self.totals.received - received + early >= self.settings.flush_every as u64
        })
    }

    /// Flushes the entries that are due, as far as the allowance goes.
    pub(super) fn flush_due(&mut self) {
        // How many items earlier than necessary an entry may be flushed.
        let wait = self.price().min(self.settings.flush_every as u64);
        let early = (self.settings.budget as u64).min(wait / 4);
        while self.is_due(early) && self.left.flushes > 0 {
            self.left.flushes -= 1;
            self.owed = self.owed.saturating_sub(1);
            let entry = self.entries.pop_front();
            if let Some((n, ..)) = entry.filter(|(n, ..)| self.needs_flush(*n)) {
                self.flush(n);
            }
        }
    }

    /// Flushes what is due before an item is read. Returns whether the allowance sufficed. (open)
    pub(super) fn flush_before_read(&mut self) -> bool {
        if self.is_over(0) {
            self.flush_due();
        }
        !self.is_over(0)
    }

    /// Returns `false` if the entry of this slot is stale. A sink that is to be closed is not
    /// flushed.
    fn needs_flush(&self, n: usize) -> bool {
        let closes = |slot: &Slot| slot.leaving.is_some() && slot.queue.is_empty();
        self.slots[n].as_ref().is_some_and(|slot| slot.unflushed && !closes(slot))
    }

    pub(super) fn flush(&mut self, n: usize) {
        (self[n].unflushed, self[n].flush_woken) = (false, false);
        match self.poll_sink(n, Op::Flush) {
            Poll::Pending => self[n].flushing = true,
            Poll::Ready(Err(op)) => self.end(n, op, None),
            Poll::Ready(Ok(())) => (self[n].flushing, self[n].busy) = (false, true),
        }
    }

    /// Returns whether flushes wait for ticks when the input is dry.
    pub(super) fn lingers(&self) -> bool {
        let may_tick = self.settings.linger > 0 && self.orders.is_some();
        may_tick && (self.walk.is_some() || self.gate.is_empty() && !self.over)
    }

    /// Decides, before the task sleeps, whether sinks are flushed now or in a later turn.
    pub(super) fn decide_flushes(&mut self) {
        if !self.lingers() {
            self.lingering = None;
            if self.is_lull() {
                (self.patience.waited, self.patience.batches) = (0, 0);
                self.owed = self.entries.len();
            }
            return;
        }
        self.patience = Patience::default(); // with `linger`, nothing is learned (open)
        // Ticks count from the first dry turn with an item that is not flushed. (open)
        if !self.dry {
            return;
        }
        while self.entries.front().is_some_and(|(n, ..)| !self.needs_flush(*n)) {
            self.entries.pop_front();
            self.owed = self.owed.saturating_sub(1);
        }
        self.lingering = match self.lingering {
            _ if self.entries.len() == self.owed => None,
            None => Some(0),
            lingering => lingering,
        };
    }

    /// Returns whether all entries are due because of this turn.
    fn is_lull(&mut self) -> bool {
        // The last member of a group gets no copy, so it is not handled. (open)
        let (n, handled, walks) = (self.entries.len(), self.handled, self.walk.is_some());
        let patience = &mut self.patience;
        let waited = if handled > 0 { mem::take(&mut patience.waited) } else { 0 };
        if waited > 0 {
            patience.judged = Some((waited, 0));
        }
        if let Some((waited, came)) = &mut patience.judged {
            *came += handled;
            if *came as u64 * TURNS_PER_ITEM >= u64::from(*waited) {
                (patience.failures, patience.skip, patience.judged) = (0, 0, None);
            } else if handled == 0 && !walks {
                patience.judged = None;
                patience.fail();
            }
        }
        if n == 0 {
            (patience.waited, patience.batches) = (0, 0);
            return false;
        }
        if walks {
            return false;
        }
        if !self.dry {
            patience.waited = 0;
            return handled == 0 || self.over || !self.gate.is_empty() && n <= FLUSHED_AT_ONCE;
        }
        if n <= FLUSHED_AT_ONCE {
            true
        } else if handled > 0 {
            patience.batches += if waited > 0 { WAITED_FOR } else { 1 };
            patience.batches >= MAX_BATCHES
        } else if patience.skip > 0 {
            patience.skip -= 1;
            true
        } else {
            patience.waited += 1;
            let fails = patience.waited == LONGEST_WAIT;
            if fails {
                patience.fail();
            }
            fails
        }
    }
}
