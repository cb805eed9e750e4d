//! Slots that share a key: the walk through a group, and the line of those that may be ready.

use super::Slots;
use crate::flush::Flushes;
use crate::group::Group;
use crate::id::SlotId;
use crate::ready::Ready;
use crate::slot::{ExtrasList, SlotMut};
use crate::store::Store;

impl<K, S, V, B> Slots<K, S, V, B> {
    pub(crate) fn group(&self, group: usize) -> &Group {
        &self.groups[group]
    }

    pub(crate) fn group_mut(&mut self, group: usize) -> &mut Group {
        &mut self.groups[group]
    }

    /// The group of a slot that shares its key, and the position there.
    pub(crate) fn group_of(&self, id: SlotId) -> Option<(usize, usize)> {
        self.slot(id).group(&self.extras)
    }

    /// The members that the walk through a group has yet to come to.
    pub(crate) fn walk(&mut self, group: usize) -> GroupWalk<'_, K, S, V> {
        let Self { groups, store, extras, ready, flushes, .. } = self;
        GroupWalk { group: &mut groups[group], store, extras, ready, flushes }
    }
}

/// The members of a group that are still to be offered an item, one by one.
pub(crate) struct GroupWalk<'a, K, S, V> {
    group: &'a mut Group,
    store: &'a mut Store<K, S>,
    extras: &'a mut ExtrasList<V>,
    ready: &'a Ready,
    flushes: &'a mut Flushes,
}

impl<K, S, V> GroupWalk<'_, K, S, V> {
    #[inline]
    pub(crate) fn next(&mut self) -> Option<SlotMut<'_, K, S, V>> {
        let Self { group, store, extras, ready, flushes } = self;
        Some(SlotMut { slot: store.get_mut(group.next()?)?, extras, ready, flushes })
    }
}

/// Groups of which one member gets an item.
impl<K, S, V, B> Slots<K, S, V, B> {
    /// Puts a member in the line of its group, in place of an entry that it has there.
    pub(crate) fn line_up(&mut self, group: usize, id: SlotId, at_front: bool) {
        if self.group(group).line.is_sparse(self.group(group).len()) {
            let mut line = core::mem::take(&mut self.group_mut(group).line);
            line.retain(|id, stamp| self.is_in_line(group, id, stamp));
            self.group_mut(group).line = line;
        }
        let stamp = self.group_mut(group).line.push(id, at_front);
        self.slot_mut(id).set_stamp(stamp);
    }

    /// Takes a member that is parked out of the line.
    pub(crate) fn leave_line(&mut self, group: usize, id: SlotId) {
        let stamp = self.group_mut(group).line.stamp();
        self.slot_mut(id).set_stamp(stamp);
    }

    /// The next member that may be ready.
    pub(crate) fn first_in_line(&mut self, group: usize) -> Option<SlotId> {
        loop {
            let (id, stamp) = self.group(group).line.first()?;
            if self.is_in_line(group, id, stamp) {
                return Some(id);
            }
            self.group_mut(group).line.remove_first();
        }
    }

    /// Returns `true` if an entry of the line counts. If not, its member may be gone, and its id
    /// be that of another slot.
    fn is_in_line(&self, group: usize, id: SlotId, stamp: u32) -> bool {
        let is_member = || self.group_of(id).is_some_and(|(of, _)| of == group);
        self.get(id).is_some_and(|slot| slot.stamp(&self.extras) == stamp) && is_member()
    }

    /// When a member was put in the line of its group, or parked.
    pub(crate) fn stamp(&self, id: SlotId) -> u32 {
        self.slot(id).stamp(&self.extras)
    }

    /// The member of a group that has been parked longest, if all are parked.
    pub(crate) fn longest_parked(&self, group: usize) -> Option<SlotId> {
        let line = &self.group(group).line;
        let age = |id: &SlotId| line.age(self.stamp(*id));
        self.group(group).members().max_by_key(age)
    }
}
