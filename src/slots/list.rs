//! [`Lists`]: slots in an order, such as those that are ready and those that are parked.
//!
//! A list is linked in both directions through the extras of its slots, so that a slot leaves it at
//! the same cost at any position. A slot is in at most one list of a [`Lists`], and has to leave it
//! before the slot is removed.

use core::mem;

use super::id::SlotId;
use super::slot::{ExtrasList, Link, NONE};

/// The sides of a slot, and the ends of a list.
pub(crate) const FRONT: usize = 0;
pub(crate) const BACK: usize = 1;

/// Two lists, by their numbers.
#[derive(Debug)]
pub(crate) struct Lists {
    /// Which of the links of its slots it uses.
    chain: usize,
    /// The slots at the ends of each.
    ends: [[u32; 2]; 2],
}

impl Lists {
    pub(crate) const fn new(chain: usize) -> Self {
        Self { chain, ends: [[NONE; 2]; 2] }
    }

    #[inline]
    pub(crate) fn is_empty(&self, list: u32) -> bool {
        self.ends[list as usize][FRONT] == NONE
    }

    /// The slot at the front of a list.
    pub(crate) fn first(&self, list: u32) -> Option<SlotId> {
        Some(self.ends[list as usize][FRONT]).filter(|&id| id != NONE).map(SlotId::from_raw)
    }

    /// Returns `true` if a slot is in this list.
    pub(crate) fn has<V>(&self, list: u32, id: SlotId, extras: &mut ExtrasList<V>) -> bool {
        extras.link(id, self.chain).list == list
    }

    /// Adds a slot that is in no list at an end of this one.
    pub(crate) fn push<V>(
        &mut self,
        list: u32,
        end: usize,
        id: SlotId,
        extras: &mut ExtrasList<V>,
    ) {
        let neighbour = mem::replace(&mut self.ends[list as usize][end], id.raw());
        let link = extras.link(id, self.chain);
        debug_assert_eq!(link.list, NONE);
        link.list = list;
        link.sides[1 - end] = neighbour;
        *self.side(list, neighbour, end, extras) = id.raw();
    }

    /// Takes a slot out of the list that it is in.
    pub(crate) fn remove<V>(&mut self, id: SlotId, extras: &mut ExtrasList<V>) {
        let Link { list, sides } = mem::take(extras.link(id, self.chain));
        if list != NONE {
            for side in [FRONT, BACK] {
                *self.side(list, sides[side], 1 - side, extras) = sides[1 - side];
            }
        }
    }

    /// What a slot has on a side; without a slot, what the list has at the other end.
    fn side<'a, V>(
        &'a mut self,
        list: u32,
        raw: u32,
        side: usize,
        extras: &'a mut ExtrasList<V>,
    ) -> &'a mut u32 {
        if raw == NONE {
            &mut self.ends[list as usize][1 - side]
        } else {
            &mut extras.link(SlotId::from_raw(raw), self.chain).sides[side]
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
        let (mut extras, terms) = (ExtrasList::new(), Terms { tag: 1, ..Terms::default() });
        for slot in (0..slots).map(id) {
            let _ = Slot::new((), (), slot, &terms, None, Stage::Receiving, &mut extras);
        }
        extras
    }

    fn id(raw: u32) -> SlotId {
        SlotId::from_raw(raw)
    }

    /// Checks the links in both directions.
    fn ids(lists: &Lists, list: u32, extras: &mut ExtrasList<()>) -> Vec<u32> {
        let mut walk = |end: usize| {
            let (mut found, mut next) = (Vec::new(), lists.ends[list as usize][end]);
            while next != NONE {
                found.push(next);
                next = extras.link(id(next), lists.chain).sides[1 - end];
            }
            found
        };
        let (found, mut reverse) = (walk(FRONT), walk(BACK));
        reverse.reverse();
        assert_eq!(found, reverse);
        assert_eq!(lists.first(list), found.first().map(|&first| id(first)));
        assert_eq!(lists.is_empty(list), found.is_empty());
        found
    }

    #[test]
    fn slots_join_at_both_ends_and_leave_from_anywhere() {
        let (mut lists, mut extras) = (Lists::new(1), extras(8));
        for (list, end, slot) in [(0, BACK, 1), (0, BACK, 2), (0, FRONT, 3), (1, FRONT, 4)] {
            lists.push(list, end, id(slot), &mut extras);
        }
        lists.push(0, BACK, id(7), &mut extras);
        assert_eq!(ids(&lists, 0, &mut extras), [3, 1, 2, 7]);
        assert_eq!(ids(&lists, 1, &mut extras), [4]);
        assert!(lists.has(1, id(4), &mut extras) && !lists.has(0, id(4), &mut extras));
        for (slot, left) in [(1, &[3, 2, 7][..]), (3, &[2, 7]), (7, &[2]), (4, &[2]), (2, &[])] {
            lists.remove(id(slot), &mut extras);
            assert_eq!(ids(&lists, 0, &mut extras), left);
            lists.remove(id(slot), &mut extras); // does nothing
            assert!(!lists.has(0, id(slot), &mut extras));
        }
        assert!(lists.is_empty(0) && lists.is_empty(1));
    }

    #[test]
    fn lists_of_different_chains_do_not_meet() {
        let (mut doubts, mut line) = (Lists::new(0), Lists::new(1));
        let mut extras = extras(3);
        for slot in 0..3 {
            doubts.push(0, BACK, id(slot), &mut extras);
            line.push(0, FRONT, id(slot), &mut extras);
        }
        line.remove(id(1), &mut extras);
        assert_eq!(ids(&doubts, 0, &mut extras), [0, 1, 2]);
        assert_eq!(ids(&line, 0, &mut extras), [2, 0]);
    }
}
