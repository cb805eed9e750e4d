//! Time-outs: how many ticks have counted for an attachment.
//!
//! A tick comes to an attachment at some moment after its order was read, and before the task
//! sleeps; only what it does may show when. So there are two counts: of the ticks that have counted
//! whenever they came, and of those that may have.

use super::super::facts::Known;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Clock {
    /// It expires at this count; 0: never.
    limit: u32,
    sure: u32,
    possible: u32,
    /// Ticks that were read, and may not have come yet.
    outstanding: u32,
    /// So many of these have met a moment at which they count.
    may_count: u32,
    /// So many of these have met no moment at which they do not count.
    will_count: u32,
    /// The next tick does not count, for sure or perhaps: something has happened since the last.
    skips: bool,
    may_skip: bool,
    /// One that counts for none is on its way.
    void: bool,
}

impl Clock {
    pub(super) fn new(limit: u32) -> Self {
        Self { limit, ..Self::default() }
    }

    pub(super) fn is_set(self) -> bool {
        self.limit > 0
    }

    /// A tick was read. `counts`: whether it would count if it came now; `distinct`: it does not
    /// count as one with the tick before.
    pub(super) fn tick(&mut self, counts: Known, distinct: bool) {
        self.outstanding += 1;
        if distinct && !std::mem::take(&mut self.may_skip) && counts == Known::Yes {
            self.will_count += 1;
        }
        self.watch(counts);
    }

    /// A tick was read before it was attached, which may count as one with the next.
    pub(super) fn inherit_tick(&mut self) {
        self.outstanding += 1;
    }

    /// What a tick would do now.
    pub(super) fn watch(&mut self, counts: Known) {
        if counts != Known::Yes {
            self.will_count = 0;
        }
        if counts != Known::No {
            self.may_count = self.outstanding;
        }
    }

    /// The count starts anew.
    pub(super) fn restart(&mut self) {
        (self.sure, self.possible, self.may_count, self.will_count) = (0, 0, 0, 0);
    }

    /// It may start anew.
    pub(super) fn may_restart_but_not_skip(&mut self) {
        (self.sure, self.will_count) = (0, 0);
    }

    /// It may start anew, and the next tick may not count.
    pub(super) fn may_restart(&mut self) {
        (self.sure, self.will_count, self.may_skip) = (0, 0, true);
    }

    /// An item was accepted: the count starts anew after the next tick.
    pub(super) fn item(&mut self) {
        self.restart();
        (self.skips, self.may_skip) = (true, true);
    }

    /// A tick was read that counts for none, because of what happened in the unit that it ends.
    pub(super) fn void_tick(&mut self) {
        self.void = true;
        self.may_restart();
    }

    /// The next tick may count, whatever has happened.
    pub(super) fn unskip(&mut self) {
        self.skips = false;
    }

    /// All ticks that were read have come.
    pub(super) fn settle(&mut self) {
        self.possible = self.most();
        self.skips &= self.outstanding == 0 && !self.void;
        self.void = false;
        self.sure += self.will_count;
        (self.outstanding, self.may_count, self.will_count) = (0, 0, 0);
    }

    /// It has not expired, although every tick has come.
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
