//! [`List`]: slots in an order, such as those in doubt, or those that stand in line.
//!
//! A list is linked in both directions through the extras of its slots, so that a slot leaves it at
//! the same cost at any position. A slot has to leave its lists before it is removed.

use core::mem;

use super::id::SlotId;
use super::slot::{ExtrasList, Link, NONE, Purpose};

/// The sides of a slot, and the ends of a list.
pub(super) const FRONT: usize = 0;
pub(super) const BACK: usize = 1;

#[derive(Debug)]
pub(crate) struct List {
    purpose: Purpose,
    /// The slots at both ends.
    ends: [u32; 2],
}

impl List {
    pub(crate) const fn new(purpose: Purpose) -> Self {
        Self { purpose, ends: [NONE; 2] }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ends[FRONT] == NONE
    }

    /// The slot at the front.
    pub(crate) fn first(&self) -> Option<SlotId> {
        if self.is_empty() { None } else { Some(SlotId::from_raw(self.ends[FRONT])) }
    }

    /// Returns `true` if a slot is in this list.
    pub(super) fn has<V>(&self, id: SlotId, extras: &mut ExtrasList<V>) -> bool {
        self.link(id, extras).purpose == Some(self.purpose)
    }

    /// Adds a slot at an end. It is in no list with the same link.
    pub(super) fn push<V>(&mut self, end: usize, id: SlotId, extras: &mut ExtrasList<V>) {
        let neighbour = mem::replace(&mut self.ends[end], id.raw());
        let link = self.link(id, extras);
        debug_assert_eq!(link.purpose, None);
        link.purpose = Some(self.purpose);
        link.sides[1 - end] = neighbour;
        *self.side(neighbour, end, extras) = id.raw();
    }

    /// Takes a slot out. Returns `false` if it is not in this list.
    pub(super) fn remove<V>(&mut self, id: SlotId, extras: &mut ExtrasList<V>) -> bool {
        let link = self.link(id, extras);
        if link.purpose != Some(self.purpose) {
            return false;
        }
        let Link { sides, .. } = mem::take(link);
        for side in [FRONT, BACK] {
            *self.side(sides[side], 1 - side, extras) = sides[1 - side];
        }
        true
    }

    /// Where a slot is in this list, or in another one with the same link.
    fn link<'a, V>(&self, id: SlotId, extras: &'a mut ExtrasList<V>) -> &'a mut Link {
        extras.link(id, self.purpose.link())
    }

    /// What a slot has on a side; without a slot, what the list has at the other end.
    fn side<'a, V>(
        &'a mut self,
        raw: u32,
        side: usize,
        extras: &'a mut ExtrasList<V>,
    ) -> &'a mut u32 {
        if raw == NONE {
            &mut self.ends[1 - side]
        } else {
            &mut self.link(SlotId::from_raw(raw), extras).sides[side]
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::order::Terms;
    use crate::slots::slot::{Slot, Stage};

    /// The extras of this number of slots.
    fn extras(slots: u32) -> ExtrasList<()> {
        let mut extras = ExtrasList::new();
        let terms = Terms { tag: 1, ..Terms::default() };
        for slot in (0..slots).map(id) {
            let slot = Slot::new((), (), slot, &terms, None, Stage::Receiving, &mut extras);
            assert!(slot.receives());
        }
        extras
    }

    fn id(raw: u32) -> SlotId {
        SlotId::from_raw(raw)
    }

    /// Checks the links in both directions.
    fn ids(list: &List, extras: &mut ExtrasList<()>) -> Vec<u32> {
        let mut walk = |end: usize| {
            let mut found = Vec::new();
            let mut next = list.ends[end];
            while next != NONE {
                found.push(next);
                next = list.link(id(next), extras).sides[1 - end];
            }
            found
        };
        let found = walk(FRONT);
        let mut reverse = walk(BACK);
        reverse.reverse();
        assert_eq!(found, reverse);
        assert_eq!(list.first(), found.first().map(|&first| id(first)));
        assert_eq!(list.is_empty(), found.is_empty());
        found
    }

    #[test]
    fn slots_join_at_both_ends_and_leave_from_anywhere() {
        let mut line = List::new(Purpose::Line);
        let mut unready = List::new(Purpose::Unready);
        let mut extras = extras(8);
        for (end, slot) in [(BACK, 1), (BACK, 2), (FRONT, 3), (BACK, 7)] {
            line.push(end, id(slot), &mut extras);
        }
        unready.push(FRONT, id(4), &mut extras);
        assert_eq!(ids(&line, &mut extras), [3, 1, 2, 7]);
        assert_eq!(ids(&unready, &mut extras), [4]);
        assert!(unready.has(id(4), &mut extras) && !line.has(id(4), &mut extras));
        for (slot, left) in [(1, &[3, 2, 7][..]), (3, &[2, 7]), (7, &[2]), (4, &[2]), (2, &[])] {
            assert_eq!(line.remove(id(slot), &mut extras), slot != 4);
            assert_eq!(ids(&line, &mut extras), left);
            assert!(!line.remove(id(slot), &mut extras));
            assert!(!line.has(id(slot), &mut extras));
        }
        assert_eq!(ids(&unready, &mut extras), [4]);
        assert!(unready.remove(id(4), &mut extras));
        assert!(line.is_empty() && unready.is_empty());
    }

    #[test]
    fn lists_of_different_links_do_not_meet() {
        let mut doubts = List::new(Purpose::Doubts);
        let mut line = List::new(Purpose::Line);
        let mut extras = extras(3);
        for slot in 0..3 {
            doubts.push(BACK, id(slot), &mut extras);
            line.push(FRONT, id(slot), &mut extras);
        }
        assert!(line.remove(id(1), &mut extras));
        assert_eq!(ids(&doubts, &mut extras), [0, 1, 2]);
        assert_eq!(ids(&line, &mut extras), [2, 0]);
    }
}
