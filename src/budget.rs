//! [`Budget`]: how much work one turn may do, and how the kinds of work share it.
//!
//! A turn is one `poll`. Each order, woken sink, item, flush and close costs one. The kinds of work
//! are done one after the other, so each leaves something to those that come later:
//!
//! * orders leave a quarter of the budget to sinks that have something to do;
//! * sinks leave a quarter of the budget to items;
//! * of what sinks may spend, half is for closing the sinks at the end of the input; half of the
//!   rest is for a tick; half of what is left then is for flushes that are due, and the other half
//!   for sinks that were woken.
//!
//! A kind that has nothing to do leaves its part to the others. A budget below four has no
//! quarters: instead, one turn in four belongs to the sinks, and another one to the items. If a
//! share is odd, the two halves take turns in getting the larger part.

/// The budget of a demux, and what is left of it in this turn.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    left: usize,
    /// Which turn this is.
    turn: u8,
}

/// A part of the budget, for one kind of work.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Share(usize);

/// The turn in four that is the quarter of a small budget for sinks, and for items.
const FOR_SINKS: u8 = 0;
const FOR_ITEMS: u8 = 2;

/// The bit of the turn number that decides which half of an odd share is the larger one. The bits
/// differ, so that kinds that share very little each get something in some turn.
const CLOSES: u8 = 0;
const FLUSHES: u8 = 1;
const TICKS: u8 = 2;

impl Budget {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, left: 0, turn: 0 }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn begin_turn(&mut self) {
        self.left = self.limit;
        self.turn = self.turn.wrapping_add(1);
    }

    /// What is left for this turn.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    pub(crate) fn spend(&mut self, cost: usize) {
        self.left -= cost;
    }

    /// Takes all that is left.
    pub(crate) fn take(&mut self) -> Share {
        Share(core::mem::take(&mut self.left))
    }

    /// Takes what orders may spend; `sinks_wait` is whether sinks have something to do.
    pub(crate) fn take_for_orders(&mut self, sinks_wait: bool) -> Share {
        self.take_but(if sinks_wait { self.quarter(FOR_SINKS) } else { 0 })
    }

    /// Takes what may be spent on the effects of an order: sinks that drain and close.
    pub(crate) fn take_for_effects(&mut self) -> Share {
        self.take_but(self.quarter(FOR_SINKS))
    }

    /// Takes what sinks may spend; `items_wait` is whether items can be read or routed.
    pub(crate) fn take_for_sinks(&mut self, items_wait: bool) -> Share {
        let items = if items_wait { self.quarter(FOR_ITEMS) } else { 0 };
        self.take_but(items.min(self.left.saturating_sub(self.quarter(FOR_SINKS))))
    }

    /// Splits off the half of a share that is for closes, if any are due.
    pub(crate) fn split_for_closes(&self, share: &mut Share, are_due: bool) -> Share {
        share.split(if are_due { self.half(share, CLOSES) } else { 0 })
    }

    /// The same for a tick that is not applied to all sinks yet.
    pub(crate) fn split_for_ticks(&self, share: &mut Share, are_due: bool) -> Share {
        share.split(if are_due { self.half(share, TICKS) } else { 0 })
    }

    /// The same for flushes.
    pub(crate) fn split_for_flushes(&self, share: &mut Share, are_due: bool) -> Share {
        share.split(if are_due { self.half(share, FLUSHES) } else { 0 })
    }

    /// Returns what was not spent of a share.
    pub(crate) fn give_back(&mut self, Share(left): Share) {
        self.left += left;
    }

    fn take_but(&mut self, others: usize) -> Share {
        let share = Share(self.left.saturating_sub(others));
        self.left -= share.0;
        share
    }

    fn quarter(&self, phase: u8) -> usize {
        if self.limit >= 4 {
            self.limit / 4
        } else if self.turn % 4 == phase {
            self.limit
        } else {
            0
        }
    }

    fn half(&self, share: &Share, bit: u8) -> usize {
        // A budget below four goes round in four turns: the bit changes once a round.
        let round = if self.limit < 4 { self.turn >> 2 } else { self.turn };
        share.0 / 2 + share.0 % 2 * usize::from(round >> bit & 1)
    }
}

impl Share {
    pub(crate) fn new(share: usize) -> Self {
        Self(share)
    }

    pub(crate) fn left(&self) -> usize {
        self.0
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.0 == 0
    }

    /// Spends one. Returns `false` if there is none left.
    #[inline]
    pub(crate) fn spend(&mut self) -> bool {
        let left = self.0.checked_sub(1);
        self.0 = left.unwrap_or(0);
        left.is_some()
    }

    /// Takes all that is left.
    #[inline]
    pub(crate) fn take(&mut self) -> Self {
        Self(core::mem::take(&mut self.0))
    }

    /// Splits off `part`, or all if there is less.
    pub(crate) fn split(&mut self, part: usize) -> Self {
        let part = part.min(self.0);
        self.0 -= part;
        Self(part)
    }

    pub(crate) fn add(&mut self, Self(part): Self) {
        self.0 += part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(limit: usize) -> impl Iterator<Item = Budget> {
        (1..=16).map(move |turn| Budget { limit, left: limit, turn })
    }

    #[test]
    fn orders_leave_a_quarter_to_sinks_that_have_something_to_do() {
        for mut budget in turns(128) {
            assert_eq!(budget.take_for_orders(true), Share(96));
            assert_eq!(budget.left(), 32);
        }
        for mut budget in turns(128) {
            assert_eq!(budget.take_for_orders(false), Share(128));
        }
    }

    #[test]
    fn sinks_leave_a_quarter_to_items_and_get_theirs_before_items_do() {
        for mut budget in turns(128) {
            let orders = budget.take_for_orders(true);
            assert_eq!(budget.take_for_sinks(true), Share(32), "all that orders have left");
            assert_eq!((orders, budget.left()), (Share(96), 0));
        }
        for mut budget in turns(128) {
            assert_eq!(budget.take_for_sinks(true), Share(96));
            assert_eq!(budget.take_for_sinks(false), Share(32));
        }
    }

    #[test]
    fn with_a_budget_of_one_each_kind_has_turns_of_its_own() {
        let orders = turns(1).filter(|budget| budget.quarter(FOR_SINKS) == 0).count();
        let items = turns(1).filter(|budget| budget.quarter(FOR_ITEMS) == 1).count();
        assert_eq!((orders, items), (12, 4));
        for budget in turns(1).filter(|budget| budget.quarter(FOR_SINKS) == 1) {
            assert_eq!(budget.quarter(FOR_ITEMS), 0, "not in the same turn");
        }
    }

    #[test]
    fn woken_sinks_flushes_and_closes_all_get_something_of_the_smallest_share() {
        for limit in [1, 2, 3, 4, 5] {
            let mut got = [0; 3];
            for turn in 0..64 {
                let budget = Budget { limit, left: 0, turn };
                let mut woken = Share(1);
                let closes = budget.split_for_closes(&mut woken, true);
                let flushes = budget.split_for_flushes(&mut woken, true);
                for (got, share) in got.iter_mut().zip([woken, flushes, closes]) {
                    *got += share.0;
                }
            }
            assert!(got.iter().all(|&got| got >= 8), "{limit}: {got:?}");
        }
    }
}
