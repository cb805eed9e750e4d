//! Which slots have time-outs, and how a tick comes to each of them.
//!
//! A tick is told to the slots one by one, possibly over several turns: a *sweep*. The slots are in
//! a list without gaps, and a sweep goes through it from its end, so that what joins meanwhile is
//! not part of it. A slot that is removed gives its place to the last one, which may have had its
//! tick already: each slot knows the number of the sweep that came to it last.

use alloc::vec::Vec;

use crate::id::SlotId;

#[derive(Debug)]
pub(crate) struct Timers {
    /// The slots that have a time-out.
    slots: Vec<SlotId>,
    /// The sweep still has to come to the slots before this one.
    cursor: usize,
    /// The number of the sweep.
    sweep: u32,
    /// A tick was read while a sweep was under way: another one follows.
    is_pending: bool,
    /// A tick was read in this turn.
    has_ticked: bool,
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), cursor: 0, sweep: 0, is_pending: false, has_ticked: false }
    }

    pub(crate) fn begin_turn(&mut self) {
        self.has_ticked = false;
    }

    /// A tick was read. Returns `false` if it is not the first of this turn, and does not count.
    pub(crate) fn tick(&mut self) -> bool {
        if self.has_ticked {
            return false;
        }
        self.has_ticked = true;
        if self.cursor > 0 {
            self.is_pending = true;
        } else {
            self.start_sweep();
        }
        true
    }

    /// Returns `true` if a sweep is under way.
    pub(crate) fn is_sweeping(&self) -> bool {
        self.cursor > 0
    }

    /// The next slot of the sweep, and the number of the sweep.
    pub(crate) fn next(&mut self) -> Option<(SlotId, u32)> {
        self.cursor = self.cursor.checked_sub(1)?;
        let (id, sweep) = (self.slots[self.cursor], self.sweep);
        if self.cursor == 0 {
            self.end_sweep();
        }
        Some((id, sweep))
    }

    /// Adds a slot, which the present sweep does not come to. Returns its index.
    pub(crate) fn insert(&mut self, id: SlotId) -> usize {
        self.slots.push(id);
        self.slots.len() - 1
    }

    /// Removes the slot at an index. Returns the slot that has this index now, if there is one.
    pub(crate) fn remove(&mut self, index: usize) -> Option<SlotId> {
        self.slots.swap_remove(index);
        if self.cursor > self.slots.len() {
            self.cursor = self.slots.len();
            if self.cursor == 0 {
                self.end_sweep();
            }
        }
        self.slots.get(index).copied()
    }

    fn start_sweep(&mut self) {
        self.cursor = self.slots.len();
        self.sweep = self.sweep.wrapping_add(1);
    }

    fn end_sweep(&mut self) {
        if core::mem::take(&mut self.is_pending) {
            self.start_sweep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(raw: u32) -> SlotId {
        SlotId::from_raw(raw)
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
        assert!(timers.tick() && timers.is_sweeping());
        assert_eq!(timers.next(), Some((id(2), 1)));
        assert_eq!(timers.insert(id(3)), 3);
        assert_eq!(swept(&mut timers), [1, 0]);
        assert!(!timers.is_sweeping());
    }

    #[test]
    fn two_ticks_in_a_turn_are_one_and_one_during_a_sweep_starts_the_next() {
        let mut timers = timers(2);
        assert!(timers.tick() && !timers.tick());
        assert_eq!(timers.next(), Some((id(1), 1)));
        timers.begin_turn();
        assert!(timers.tick());
        timers.begin_turn();
        assert!(timers.tick(), "merged with the one before");
        assert_eq!(timers.next(), Some((id(0), 1)));
        assert_eq!(timers.next(), Some((id(1), 2)));
        assert_eq!(timers.next(), Some((id(0), 2)));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn slots_that_are_removed_during_a_sweep_leave_none_out() {
        let mut timers = timers(5);
        timers.tick();
        assert_eq!(timers.next(), Some((id(4), 1)));
        assert_eq!(timers.remove(1), Some(id(4)), "which the sweep has come to already");
        assert_eq!(swept(&mut timers), [3, 2, 4, 0]);
        timers.begin_turn();
        timers.tick();
        assert_eq!(timers.remove(3), None);
        assert_eq!(swept(&mut timers), [2, 4, 0]);
    }

    #[test]
    fn a_sweep_ends_when_the_last_slot_is_removed() {
        let mut timers = timers(1);
        timers.tick();
        timers.remove(0);
        assert!(!timers.is_sweeping() && timers.next().is_none());
    }
}
