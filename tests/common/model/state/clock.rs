//! Time-outs: the number of ticks that have counted for an attachment.
//!
//! A tick comes to an attachment at some moment after the order was read and before the task
//! sleeps. Only the effect of the tick can show this moment. Therefore there are two counts: the
//! ticks that have counted whenever they came, and the ticks that may have counted.

use super::super::facts::Known;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Clock {
    /// The count at which the attachment expires; 0 means never.
    limit: u32,
    sure: u32,
    possible: u32,
    /// The number of ticks that were read and may not have come yet.
    outstanding: u32,
    /// The number of these ticks that have met a moment at which they count.
    may_count: u32,
    /// The number of these ticks that have met no moment at which they do not count.
    will_count: u32,
    /// Whether the next tick is skipped, because something has happened since the last tick.
    skips: bool,
    /// Whether the next tick may be skipped.
    may_skip: bool,
    /// Whether a tick that counts for no attachment is on its way.
    void: bool,
}

impl Clock {
    pub(super) fn new(limit: u32) -> Self {
        Self { limit, ..Self::default() }
    }

    pub(super) fn is_set(self) -> bool {
        self.limit > 0
    }

    /// Records that a tick was read. `counts` is whether the tick would count if it came now.
    /// `distinct` is whether it does not count as one with the tick before.
    pub(super) fn tick(&mut self, counts: Known, distinct: bool) {
        self.outstanding += 1;
        if distinct && !std::mem::take(&mut self.may_skip) && counts == Known::Yes {
            self.will_count += 1;
        }
        self.watch(counts);
    }

    /// Records that a tick was read before the sink was attached. It may count as one with the next
    /// tick.
    pub(super) fn inherit_tick(&mut self) {
        self.outstanding += 1;
    }

    /// Records whether a tick would count if it came now.
    pub(super) fn watch(&mut self, counts: Known) {
        if counts != Known::Yes {
            self.will_count = 0;
        }
        if counts != Known::No {
            self.may_count = self.outstanding;
        }
    }

    /// Starts the count anew.
    pub(super) fn restart(&mut self) {
        (self.sure, self.possible, self.may_count, self.will_count) = (0, 0, 0, 0);
    }

    /// Records that the count may start anew.
    pub(super) fn may_restart_but_not_skip(&mut self) {
        (self.sure, self.will_count) = (0, 0);
    }

    /// Records that the count may start anew, and that the next tick may be skipped.
    pub(super) fn may_restart(&mut self) {
        (self.sure, self.will_count, self.may_skip) = (0, 0, true);
    }

    /// Records that an item was accepted. The count starts anew after the next tick.
    pub(super) fn item(&mut self) {
        self.restart();
        (self.skips, self.may_skip) = (true, true);
    }

    /// Records a tick that counts for no attachment, because of what happened in the unit that it
    /// ends.
    pub(super) fn void_tick(&mut self) {
        self.void = true;
        self.may_restart();
    }

    /// Records that the next tick may count, whatever has happened.
    pub(super) fn unskip(&mut self) {
        self.skips = false;
    }

    /// Records that all ticks that were read have come.
    pub(super) fn settle(&mut self) {
        self.possible = self.most();
        self.skips &= self.outstanding == 0 && !self.void;
        self.void = false;
        self.sure += self.will_count;
        (self.outstanding, self.may_count, self.will_count) = (0, 0, 0);
    }

    /// Records that the attachment has not expired, although every tick has come.
    pub(super) fn has_not_expired(&mut self) {
        if self.is_set() {
            self.possible = self.possible.min(self.limit - 1);
        }
    }

    fn most(self) -> u32 {
        self.possible + self.may_count.saturating_sub(u32::from(self.skips && !self.void))
    }

    pub(super) fn may_expire(self) -> bool {
        self.is_set() && self.most() >= self.limit
    }

    pub(super) fn must_have_expired(self) -> bool {
        self.is_set() && self.sure >= self.limit
    }
}
