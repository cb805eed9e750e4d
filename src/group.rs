//! [`Group`]: the sinks that share one key, in the order in which they joined.
//!
//! A group is a list of slot ids with gaps where a member has left, so that going through it reads
//! memory in order, and removing a member costs the same at any position. Gaps are closed when a
//! member joins and gaps are the greater part of the list.
//!
//! With `multicast` an item is offered to the members one by one, possibly over several turns. The
//! progress is kept here as positions, because closing gaps moves them: the members in `next..end`
//! were attached when the item was read, and were not offered it yet.
//!
//! With `balance` the members that may be ready stand in a line, in the order in which they are to
//! be polled. The others are parked, in the order in which they were.

use alloc::vec::Vec;

use crate::id::SlotId;
use crate::list::Lists;

/// The lists of the members of a group that share its items: those that may be ready, ...
pub(crate) const LINE: u32 = 0;
/// ... and those that are parked.
pub(crate) const PARKED: u32 = 1;
/// The [chain](Lists) of these lists.
const CHAIN: usize = 1;

/// A gap.
const VACANT: u32 = u32::MAX;

/// In a list that is shorter than this, gaps are not worth closing.
const SHORT: usize = 8;

pub(crate) struct Group {
    members: Vec<u32>,
    len: usize,
    /// The position of the first member.
    head: usize,
    next: usize,
    end: usize,
    /// `LINE` and `PARKED`.
    pub(crate) lists: Lists,
    /// How many items may be queued for the members together. The sum may exceed a `usize`.
    pub(crate) buffers: u64,
    /// The policy acts on each further item: no member was ready at the start of a turn.
    pub(crate) is_full: bool,
}

impl Group {
    pub(crate) fn new() -> Self {
        Self {
            members: Vec::new(),
            len: 0,
            head: 0,
            next: 0,
            end: 0,
            lists: Lists::new(CHAIN),
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

    /// Adds a member and returns its position. Calls `moved` for each member whose position
    /// changes.
    pub(crate) fn push(&mut self, id: SlotId, moved: impl FnMut(SlotId, usize)) -> usize {
        if self.members.len() > SHORT + 2 * self.len {
            self.close_gaps(moved);
        }
        self.members.push(id.raw());
        self.len += 1;
        self.members.len() - 1
    }

    pub(crate) fn remove(&mut self, position: usize) {
        self.members[position] = VACANT;
        self.len -= 1;
        while self.members.get(self.head) == Some(&VACANT) {
            self.head += 1;
        }
    }

    fn close_gaps(&mut self, mut moved: impl FnMut(SlotId, usize)) {
        let count = |members: &[u32]| members.iter().filter(|&&member| member != VACANT).count();
        (self.next, self.end) =
            (count(&self.members[..self.next]), count(&self.members[..self.end]));
        self.members.retain(|&member| member != VACANT);
        for (position, &member) in self.members.iter().enumerate() {
            moved(SlotId::from_raw(member), position);
        }
        self.head = 0;
    }

    /// The members, in the order in which they joined.
    pub(crate) fn members(&self) -> impl Iterator<Item = SlotId> {
        let members = self.members[self.head..].iter();
        members.filter(|&&member| member != VACANT).map(|&member| SlotId::from_raw(member))
    }

    /// Starts to go through all present members.
    pub(crate) fn start(&mut self) {
        self.next = self.head;
        self.end = self.members.len();
    }

    /// Returns the next member, and moves on.
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

    /// Returns `true` if [`next`](Self::next) has yet to come to the member at `position`.
    pub(crate) fn is_ahead(&self, position: usize) -> bool {
        (self.next..self.end).contains(&position)
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;

    /// A group, and where its members believe to be.
    struct Members(Group, BTreeMap<u32, usize>);

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
            let Self(group, positions) = self;
            let position = group.push(id(slot), |slot, position| {
                positions.insert(slot.raw(), position);
            });
            positions.insert(slot, position);
        }

        fn leave(&mut self, slot: u32) {
            let position = self.1.remove(&slot).unwrap();
            self.0.remove(position);
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
        members.0.start();
        assert_eq!(members.0.next(), Some(id(1)));
        members.leave(3);
        members.join(5);
        let is_ahead = |slot| members.0.is_ahead(members.1[&slot]);
        assert!(!is_ahead(1) && is_ahead(2) && !is_ahead(5));
        assert_eq!(members.rest(), [2, 4]);
        members.0.start();
        assert_eq!(members.rest(), [1, 2, 4, 5]);
    }

    #[test]
    fn how_far_an_item_has_come_survives_the_closing_of_gaps() {
        let mut members = Members::new(0..40);
        (0..10).for_each(|slot| members.leave(slot));
        members.0.start();
        for slot in 10..20 {
            assert_eq!(members.0.next(), Some(id(slot)));
        }
        (10..14).chain(22..39).for_each(|slot| members.leave(slot));
        assert_eq!(members.0.members.len(), 40);
        members.join(40);
        assert_eq!(members.0.members, [14, 15, 16, 17, 18, 19, 20, 21, 39, 40]);
        assert_eq!(members.rest(), [20, 21, 39]);
        let Members(group, positions) = &members;
        assert!(positions.iter().all(|(&slot, &position)| group.members[position] == slot));
    }

    #[test]
    fn marks_that_stand_at_the_end_stay_there() {
        let mut members = Members::new(0..40);
        members.0.start();
        while members.0.next().is_some() {}
        (0..36).for_each(|slot| members.leave(slot));
        members.join(40);
        assert_eq!(members.rest(), []);
        assert!(!members.0.is_ahead(members.1[&40]));
    }

    #[test]
    fn gaps_stay_until_there_are_more_of_them_than_members_and_eight() {
        let mut members = Members::new(0..20);
        (0..14).for_each(|slot| members.leave(slot));
        members.join(20);
        assert_eq!(members.0.members.len(), 21, "14 gaps beside 6 members");
        members.leave(20);
        members.join(21);
        assert_eq!(members.0.members, [14, 15, 16, 17, 18, 19, 21], "15 gaps");
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
