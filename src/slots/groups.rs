//! Slots that share a key: the walk through a group, and the line of those that may be ready.

use super::{GroupWalk, Slots};
use crate::group::Group;
use crate::id::SlotId;
use crate::slot::Slot;

/// Groups.
impl<K, S, V, B> Slots<K, S, V, B> {
    pub(crate) fn group(&self, group: usize) -> &Group {
        &self.groups[group]
    }

    fn group_mut(&mut self, group: usize) -> &mut Group {
        &mut self.groups[group]
    }
}

/// Members that each get an item.
impl<K, S, V, B> Slots<K, S, V, B> {
    /// Starts to offer an item to the members of a group. Returns how many there are.
    pub(crate) fn start_walk(&mut self, group: usize) -> usize {
        let group = self.group_mut(group);
        group.start();
        group.len()
    }

    /// The members that are still to be offered the item.
    pub(crate) fn walk(&mut self, group: usize) -> GroupWalk<'_, K, S, V> {
        let Self { groups, store, extras, ready, flushes, .. } = self;
        GroupWalk { group: &mut groups[group], store, extras, ready, flushes }
    }

    /// Lets a member wait for its copy of the item that it was offered last.
    pub(crate) fn start_waiting(&mut self, group: usize, id: SlotId) {
        self.slot_mut(id).set_waiting(true);
        self.group_mut(group).wait();
    }

    /// The first member of a group that waits.
    pub(crate) fn first_waiting(&mut self, group: usize) -> Option<SlotId> {
        let Self { store, groups, .. } = self;
        groups[group].first_waiting(|id| store.get(id).is_some_and(Slot::is_waiting))
    }

    /// Returns `true` if the member at this position is still to be offered the item.
    pub(crate) fn is_to_be_offered(&self, group: usize, position: usize) -> bool {
        self.group(group).is_to_be_offered(position)
    }
}

/// Groups of which one member gets an item.
impl<K, S, V, B> Slots<K, S, V, B> {
    /// How many members a group has.
    pub(crate) fn group_len(&self, group: usize) -> usize {
        self.group(group).len()
    }

    /// The members of a group, in the order in which they joined.
    pub(crate) fn members(&self, group: usize) -> impl Iterator<Item = SlotId> {
        self.group(group).members()
    }

    /// Puts a member of a group in the line of those that may be ready, unless it is in it.
    pub(crate) fn line_up(&mut self, group: usize, id: SlotId, at_front: bool) {
        if self.slot_mut(id).stamp() == 0 {
            self.close_line_gaps(group);
            let stamp = self.group_mut(group).line_up(id, at_front);
            self.slot_mut(id).set_stamp(stamp);
        }
    }

    /// Removes the entries of members that have left, if they are the greater part of the line.
    fn close_line_gaps(&mut self, group: usize) {
        if !self.group(group).is_line_sparse() {
            return;
        }
        let mut line = self.group_mut(group).take_line();
        line.retain(|&(id, stamp)| self.is_entry_of(group, id, stamp));
        self.group_mut(group).set_line(line);
    }

    /// Returns `true` if an entry of the line counts. If not, its member may be gone, and its id
    /// be that of another slot.
    fn is_entry_of(&mut self, group: usize, id: SlotId, stamp: u32) -> bool {
        let slot = self.get_mut(id);
        slot.is_some_and(|slot| slot.stamp() == stamp && slot.is_in_group(group))
    }

    /// A member whose sink is to be polled again, of those for which `may_have` returns `true`.
    pub(crate) fn find_member_to_be_polled(
        &self,
        group: usize,
        may_have: impl Fn(SlotId) -> bool,
    ) -> Option<SlotId> {
        self.members(group).find(|&id| self.is_to_be_polled_again(id) && may_have(id))
    }

    /// Returns `true` if a sink has answered `Pending`, and is to be polled again.
    pub(crate) fn is_to_be_polled_again(&self, id: SlotId) -> bool {
        let slot = self.slot(id);
        slot.is_parked() && (slot.is_to_retry() || self.ready.has_fired(id))
    }

    /// How many entries there are in the line of a group.
    pub(crate) fn line_len(&self, group: usize) -> usize {
        self.group(group).line_len()
    }

    /// Takes the next member that may be ready out of the line of its group.
    pub(crate) fn next_in_line(&mut self, group: usize) -> Option<SlotId> {
        loop {
            let (id, stamp) = self.group_mut(group).next_in_line()?;
            if self.is_entry_of(group, id, stamp) {
                self.slot_mut(id).set_stamp(0);
                return Some(id);
            }
        }
    }
}
