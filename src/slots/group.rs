//! [`Group`]: the sinks that share one key, in the order in which they joined.
//!
//! A group is a list of slot ids with gaps where a member has left, so that going through it reads
//! memory in order. When gaps are the greater part of the list, they are closed. So a member that
//! leaves costs the others nothing later: there are at most as many gaps as members, and a few.
//! Closing gaps moves members to other positions. A slot therefore knows the *number* of its
//! membership, and its position is found by binary search. So gaps are closed without a look at any
//! slot, which takes about a nanosecond for a member.
//!
//! With `multicast` an item is offered to the members one by one, possibly over several turns. The
//! progress is kept here as positions: the members in `next..end` were attached when the item was
//! read, and were not offered it yet.
//!
//! With `balance` the members that may be ready stand in a line, in the order in which they are to
//! be polled. The others are unready, in the order in which they were parked.

use alloc::vec::Vec;

use super::id::SlotId;
use super::list::{BACK, FRONT, List};
use super::slot::{ExtrasList, Purpose};

/// A gap.
const VACANT: u32 = u32::MAX;

/// In a list that is shorter than this, gaps are not worth closing.
const SHORT: usize = 8;

pub(crate) struct Group {
    /// The slots of the members, or `VACANT`.
    members: Vec<u32>,
    /// The numbers of the members, also of those that have left. They increase.
    numbers: Vec<u64>,
    /// The number of the member that joins next.
    next_number: u64,
    /// How many members there are.
    len: usize,
    /// The position of the first member.
    head: usize,
    next: usize,
    end: usize,
    /// The members that may be ready.
    line: List,
    /// Those that are not.
    unready: List,
    /// How many items may be queued for the members together. The sum may exceed a `usize`.
    buffers: u64,
    /// No member was ready when a turn began with polling them.
    is_full: bool,
}

impl Group {
    pub(super) fn new() -> Self {
        Self {
            members: Vec::new(),
            numbers: Vec::new(),
            next_number: 0,
            len: 0,
            head: 0,
            next: 0,
            end: 0,
            line: List::new(Purpose::Line),
            unready: List::new(Purpose::Unready),
            buffers: 0,
            is_full: false,
        }
    }

    /// How many members there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many items may be queued for the members together.
    pub(crate) fn room(&self) -> usize {
        usize::try_from(self.buffers).unwrap_or(usize::MAX)
    }

    /// The member that joined first.
    pub(crate) fn head(&self) -> Option<SlotId> {
        self.members.get(self.head).copied().map(SlotId::from_raw)
    }

    /// Adds a member with this buffer, and returns its number.
    pub(super) fn join(&mut self, id: SlotId, buffer: usize) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.members.push(id.raw());
        self.numbers.push(number);
        self.len += 1;
        self.buffers += buffer as u64;
        number
    }

    /// Removes the member with a number and with this buffer.
    pub(super) fn leave(&mut self, number: u64, buffer: usize) {
        self.buffers -= buffer as u64;
        let Ok(position) = self.numbers.binary_search(&number) else { return };
        self.members[position] = VACANT;
        self.len -= 1;
        while self.members.get(self.head) == Some(&VACANT) {
            self.head += 1;
        }
        let gaps = self.members.len() - self.len;
        if gaps > self.len + SHORT {
            self.close_gaps();
        }
    }

    fn close_gaps(&mut self) {
        let count = |members: &[u32]| members.iter().filter(|&&member| member != VACANT).count();
        self.next = count(&self.members[..self.next]);
        self.end = count(&self.members[..self.end]);
        let mut members = self.members.iter();
        self.numbers.retain(|_| members.next() != Some(&VACANT));
        self.members.retain(|&member| member != VACANT);
        self.head = 0;
    }

    /// The members, in the order in which they joined.
    pub(super) fn members(&self) -> impl Iterator<Item = SlotId> {
        let members = self.members[self.head..].iter();
        members.filter(|&&member| member != VACANT).map(|&member| SlotId::from_raw(member))
    }

    /// Starts to go through all present members.
    pub(crate) fn start(&mut self) {
        self.next = self.head;
        self.end = self.members.len();
    }

    /// Returns the next member, and moves on. It may pass as many gaps as there are members.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<SlotId> {
        while self.next < self.end {
            let member = self.members[self.next];
            self.next += 1;
            if member != VACANT {
                return Some(SlotId::from_raw(member));
            }
        }
        None
    }

    /// Returns `true` if [`next`](Self::next) has yet to come to the member with a number.
    pub(crate) fn is_ahead(&self, number: u64) -> bool {
        match self.numbers[self.next..self.end] {
            [first, .., last] => (first..=last).contains(&number),
            [only] => number == only,
            [] => false,
        }
    }
}

/// With `balance`.
impl Group {
    /// The member that is polled next.
    pub(crate) fn first_in_line(&self) -> Option<SlotId> {
        self.line.first()
    }

    /// The member that has been unready for the longest time.
    pub(crate) fn longest_unready(&self) -> Option<SlotId> {
        self.unready.first()
    }

    /// The sink of a member may be ready: it is polled next.
    pub(super) fn line_up_first<V>(&mut self, id: SlotId, extras: &mut ExtrasList<V>) {
        self.leave_lists(id, extras);
        self.line.push(FRONT, id, extras);
    }

    /// A member has had its turn, or has joined: it is polled after all others.
    pub(super) fn line_up_last<V>(&mut self, id: SlotId, extras: &mut ExtrasList<V>) {
        self.leave_lists(id, extras);
        self.line.push(BACK, id, extras);
    }

    /// The sink of a member is not ready. If it has not been since it was last in line, it stays
    /// where it is among the unready.
    pub(super) fn step_aside<V>(&mut self, id: SlotId, extras: &mut ExtrasList<V>) {
        if !self.unready.has(id, extras) {
            self.leave_lists(id, extras);
            self.unready.push(BACK, id, extras);
        }
    }

    pub(super) fn leave_lists<V>(&mut self, id: SlotId, extras: &mut ExtrasList<V>) {
        if !self.line.remove(id, extras) {
            self.unready.remove(id, extras);
        }
    }

    /// Returns `true` if the policy acts on each further item: no member was ready when a turn
    /// began with polling them.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    pub(crate) fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;

    /// A group, and the numbers of its members.
    struct Members(Group, BTreeMap<u32, u64>);

    fn id(raw: u32) -> SlotId {
        SlotId::from_raw(raw)
    }

    impl Members {
        fn new(slots: impl IntoIterator<Item = u32>) -> Self {
            let mut members = Self(Group::new(), BTreeMap::new());
            slots.into_iter().for_each(|slot| members.join(slot));
            members
        }

        fn join(&mut self, slot: u32) {
            let number = self.0.join(id(slot), 1);
            self.1.insert(slot, number);
        }

        fn leave(&mut self, slot: u32) {
            let number = self.1.remove(&slot).unwrap();
            self.0.leave(number, 1);
        }

        fn rest(&mut self) -> Vec<u32> {
            core::iter::from_fn(|| self.0.next()).map(SlotId::raw).collect()
        }
    }

    #[test]
    fn the_first_that_is_left_is_the_head() {
        let mut members = Members::new([5, 3, 9]);
        members.leave(3);
        assert_eq!((members.0.head(), members.0.len()), (Some(id(5)), 2));
        members.leave(5);
        assert_eq!(members.0.head(), Some(id(9)));
        members.leave(9);
        assert_eq!((members.0.head(), members.0.len()), (None, 0));
    }

    #[test]
    fn an_item_is_offered_to_those_who_were_there_when_it_was_read_and_have_not_left() {
        let mut members = Members::new([1, 2, 3, 4]);
        let is_ahead = |members: &Members, slot| members.0.is_ahead(members.1[&slot]);
        assert!(!is_ahead(&members, 1));
        members.0.start();
        assert_eq!(members.0.next(), Some(id(1)));
        members.leave(3);
        members.join(5);
        assert!(!is_ahead(&members, 1) && is_ahead(&members, 2) && !is_ahead(&members, 5));
        assert!(is_ahead(&members, 4));
        assert_eq!(members.0.next(), Some(id(2)));
        assert!(!is_ahead(&members, 2) && is_ahead(&members, 4) && !is_ahead(&members, 5));
        assert_eq!(members.rest(), [4]);
        assert!(!is_ahead(&members, 4));
        members.0.start();
        assert_eq!(members.rest(), [1, 2, 4, 5]);
    }

    #[test]
    fn how_far_an_item_has_come_survives_the_closing_of_gaps() {
        let mut members = Members::new(0..40);
        members.0.start();
        for slot in 0..20 {
            assert_eq!(members.0.next(), Some(id(slot)));
        }
        (2..18).chain(22..29).for_each(|slot| members.leave(slot));
        assert_eq!(members.0.members.len(), 40, "23 gaps beside 17 members");
        members.join(40);
        (29..36).for_each(|slot| members.leave(slot));
        assert!(members.0.members.len() < 20, "the gaps are closed");
        let is_ahead = |slot| members.0.is_ahead(members.1[&slot]);
        assert!(is_ahead(20) && is_ahead(39) && !is_ahead(19) && !is_ahead(40));
        assert_eq!(members.rest(), [20, 21, 36, 37, 38, 39]);
        members.0.start();
        assert_eq!(members.rest(), [0, 1, 18, 19, 20, 21, 36, 37, 38, 39, 40]);
    }

    #[test]
    fn an_item_that_has_come_to_the_end_stays_there() {
        let mut members = Members::new(0..40);
        members.0.start();
        while members.0.next().is_some() {}
        (0..36).for_each(|slot| members.leave(slot));
        members.join(40);
        assert_eq!(members.rest(), []);
        assert!(!members.0.is_ahead(members.1[&40]));
    }

    /// Otherwise each item would pass them for ever.
    #[test]
    fn there_are_never_more_gaps_than_members_and_eight() {
        let mut members = Members::new(0..10_000);
        let mut moved = 0;
        for slot in (0..9_999).map(|n| n * 7_919 % 10_000) {
            let before = members.0.members.len();
            members.leave(slot);
            let group = &members.0;
            assert!(group.members.len() <= 2 * group.len() + SHORT);
            assert_eq!(group.numbers.len(), group.members.len());
            moved += if group.members.len() < before { before } else { 0 };
        }
        assert!(moved < 3 * 10_000, "closing gaps took {moved} steps for 10,000 that left");
    }

    #[test]
    fn a_group_that_members_join_and_leave_for_ever_stays_small() {
        let mut members = Members::new([0]);
        for slot in 1..10_000 {
            members.join(slot);
            members.leave(slot - 1);
        }
        assert!(members.0.members.capacity() <= 32, "{}", members.0.members.capacity());
    }
}
