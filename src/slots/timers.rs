//! [`Timers`]: the slots that have time-outs, and the sweep that applies a tick to each of them.
//!
//! A tick is applied to the slots one by one, possibly over several turns: a *sweep*. The slots are
//! in a list without gaps, and a sweep goes through it from its end, so that a slot that joins
//! meanwhile is not part of it. When a slot is removed, the last one moves to its index, so a sweep
//! may come to that slot a second time, or to a slot that joined after the sweep began. Each slot
//! therefore keeps a number: that of the last sweep that was applied to it, or whose tick was read
//! before it joined.

use alloc::vec::Vec;

use super::id::SlotId;

#[derive(Debug)]
pub(super) struct Timers {
    /// The slots that have a time-out.
    slots: Vec<SlotId>,
    /// The sweep still has to come to the slots before this one.
    cursor: usize,
    /// The number of the sweep.
    sweep: u32,
    /// The input had to wait for a sink in the unit of time that the sweep is for.
    was_closed: bool,
    /// A tick was read while a sweep was under way: another one follows. Whether the input had to
    /// wait for a sink in the unit of time that it is for.
    pending: Option<bool>,
}

/// What a sweep means for each slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sweep {
    pub(super) number: u32,
    /// The input had to wait for a sink in the unit of time that has passed.
    pub(super) was_closed: bool,
}

impl Timers {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), cursor: 0, sweep: 0, was_closed: false, pending: None }
    }

    /// Starts a sweep for a tick, or has one follow that is under way. `was_closed` is whether the
    /// input had to wait for a sink since the last tick.
    pub(super) fn request_sweep(&mut self, was_closed: bool) {
        if self.cursor > 0 {
            self.pending = Some(was_closed || self.pending == Some(true));
        } else {
            self.start_sweep(was_closed);
        }
    }

    /// Returns `true` if a sweep is under way.
    pub(super) fn is_sweeping(&self) -> bool {
        self.cursor > 0
    }

    /// The next slot of the sweep.
    pub(super) fn next(&mut self) -> Option<(SlotId, Sweep)> {
        self.cursor = self.cursor.checked_sub(1)?;
        let id = self.slots[self.cursor];
        let sweep = Sweep { number: self.sweep, was_closed: self.was_closed };
        if self.cursor == 0 {
            self.end_sweep();
        }
        Some((id, sweep))
    }

    /// Adds a slot. Returns its index, and the number of the last sweep whose tick was read before.
    pub(super) fn insert(&mut self, id: SlotId) -> (usize, u32) {
        self.slots.push(id);
        let pending = u32::from(self.pending.is_some());
        (self.slots.len() - 1, self.sweep.wrapping_add(pending))
    }

    /// Removes the slot at an index. Returns the slot that has this index now, if there is one.
    pub(super) fn remove(&mut self, index: usize) -> Option<SlotId> {
        self.slots.swap_remove(index);
        self.cursor = self.cursor.min(self.slots.len());
        if self.cursor == 0 {
            self.end_sweep();
        }
        self.slots.get(index).copied()
    }

    fn start_sweep(&mut self, was_closed: bool) {
        self.was_closed = was_closed;
        self.cursor = self.slots.len();
        self.sweep = self.sweep.wrapping_add(1);
    }

    fn end_sweep(&mut self) {
        if let Some(was_closed) = self.pending.take() {
            self.start_sweep(was_closed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(raw: u32) -> SlotId {
        SlotId::from_raw(raw)
    }

    fn tick(timers: &mut Timers) {
        timers.request_sweep(false);
    }

    fn next(timers: &mut Timers) -> Option<(u32, u32)> {
        timers.next().map(|(slot, sweep)| (slot.raw(), sweep.number))
    }

    fn timers(slots: u32) -> Timers {
        let mut timers = Timers::new();
        for slot in 0..slots {
            timers.insert(id(slot));
        }
        timers
    }

    fn swept(timers: &mut Timers) -> Vec<u32> {
        core::iter::from_fn(|| timers.next()).map(|(id, _)| id.raw()).collect()
    }

    #[test]
    fn a_sweep_comes_to_each_slot_that_was_there_when_it_began() {
        let mut timers = timers(3);
        assert!(!timers.is_sweeping());
        tick(&mut timers);
        assert!(timers.is_sweeping());
        assert_eq!(next(&mut timers), Some((2, 1)));
        assert_eq!(timers.insert(id(3)), (3, 1));
        assert_eq!(swept(&mut timers), [1, 0]);
        assert!(!timers.is_sweeping());
    }

    #[test]
    fn ticks_during_a_sweep_are_one_and_start_the_next() {
        let mut timers = timers(2);
        tick(&mut timers);
        assert_eq!(next(&mut timers), Some((1, 1)));
        tick(&mut timers);
        tick(&mut timers);
        assert_eq!(next(&mut timers), Some((0, 1)));
        assert_eq!(next(&mut timers), Some((1, 2)));
        assert_eq!(next(&mut timers), Some((0, 2)));
        assert_eq!(next(&mut timers), None);
    }

    #[test]
    fn slots_that_are_removed_during_a_sweep_leave_none_out() {
        let mut timers = timers(5);
        tick(&mut timers);
        assert_eq!(next(&mut timers), Some((4, 1)));
        assert_eq!(timers.remove(1), Some(id(4)), "which the sweep has come to already");
        assert_eq!(swept(&mut timers), [3, 2, 4, 0]);
        tick(&mut timers);
        assert_eq!(timers.remove(3), None);
        assert_eq!(swept(&mut timers), [2, 4, 0]);
    }

    #[test]
    fn a_sweep_ends_when_the_last_slot_is_removed() {
        let mut timers = timers(1);
        tick(&mut timers);
        timers.remove(0);
        assert!(!timers.is_sweeping() && timers.next().is_none());
    }

    #[test]
    fn a_sweep_goes_on_when_a_slot_is_removed_that_it_has_not_come_to() {
        let mut timers = timers(2);
        tick(&mut timers);
        tick(&mut timers);
        assert_eq!(timers.remove(1), None);
        assert_eq!(next(&mut timers), Some((0, 1)));
        assert_eq!(next(&mut timers), Some((0, 2)));
    }

    #[test]
    fn a_tick_during_the_sweep_of_the_last_slot_is_over_when_that_is_removed() {
        let mut timers = timers(1);
        tick(&mut timers);
        tick(&mut timers);
        timers.remove(0);
        assert_eq!(timers.insert(id(0)), (0, 2));
        tick(&mut timers);
        assert_eq!(next(&mut timers), Some((0, 3)), "the next tick applies to the new slot");
    }

    #[test]
    fn a_slot_gets_no_tick_that_was_read_before_it_came() {
        let mut timers = timers(2);
        assert_eq!(timers.insert(id(2)), (2, 0));
        tick(&mut timers);
        assert_eq!(timers.insert(id(3)), (3, 1));
        tick(&mut timers);
        assert_eq!(timers.insert(id(4)), (4, 2));
    }

    #[test]
    fn each_sweep_is_for_its_own_unit_of_time() {
        let mut timers = timers(2);
        for was_closed in [true, false, true, false] {
            timers.request_sweep(was_closed);
        }
        let held: Vec<_> =
            core::iter::from_fn(|| timers.next()).map(|(_, sweep)| sweep.was_closed).collect();
        assert_eq!(held, [true, true, true, true], "the last three are one");
        for was_closed in [true, false] {
            timers.request_sweep(was_closed);
        }
        let held: Vec<_> =
            core::iter::from_fn(|| timers.next()).map(|(_, sweep)| sweep.was_closed).collect();
        assert_eq!(held, [true, true, false, false]);
    }
}
