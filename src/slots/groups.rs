//! Slots that share a key: the walk through a group; the queue that its members share, which is
//! that of the first one, and the line of those that may be ready.

use super::Slots;
use super::flush::Flushes;
use super::group::Group;
use super::id::SlotId;
use super::queues::Queues;
use super::ready::Ready;
use super::slot::{ExtrasList, Queue, SlotMut};
use super::store::Store;
use crate::order::Overflow;

impl<K, S, V, B> Slots<K, S, V, B> {
    pub(crate) fn group(&self, group: usize) -> &Group {
        &self.groups[group]
    }

    pub(crate) fn group_mut(&mut self, group: usize) -> &mut Group {
        &mut self.groups[group]
    }

    /// The group of a slot that shares its key, and its number there.
    pub(crate) fn group_of(&self, id: SlotId) -> Option<(usize, u64)> {
        self.slot(id).group(&self.extras)
    }

    /// Ends the group of a slot that is left alone in it: the slot is found and served like one
    /// that never shared its key.
    pub(crate) fn end_group(&mut self, group: usize) {
        debug_assert_eq!(self.group(group).len(), 1);
        if let Some(id) = self.groups.remove(group).head() {
            self.slot_mut(id).leave_group();
        }
    }

    /// The members that the walk through a group has yet to come to.
    pub(crate) fn walk(&mut self, group: usize) -> GroupWalk<'_, K, S, V> {
        let Self { groups, store, extras, queues, ready, flushes, .. } = self;
        GroupWalk { group: &mut groups[group], store, extras, queues, ready, flushes }
    }
}

/// The members of a group that are still to be offered an item, one by one.
pub(crate) struct GroupWalk<'a, K, S, V> {
    group: &'a mut Group,
    store: &'a mut Store<K, S>,
    extras: &'a mut ExtrasList<V>,
    queues: &'a mut Queues,
    ready: &'a Ready,
    flushes: &'a mut Flushes,
}

impl<K, S, V> GroupWalk<'_, K, S, V> {
    #[inline]
    pub(crate) fn next(&mut self) -> Option<SlotMut<'_, K, S, V>> {
        let Self { group, store, extras, queues, ready, flushes } = self;
        Some(SlotMut { slot: store.get_mut(group.next()?)?, extras, queues, ready, flushes })
    }
}

/// Groups of which one member gets an item, and whose members share the queue of the head.
impl<K, S, V, B> Slots<K, S, V, B> {
    /// The group that a slot shares its queue with.
    pub(crate) fn shared_group(&self, id: SlotId) -> Option<usize> {
        let slot = self.slot(id);
        if slot.shares_queue() && slot.receives() { Some(self.group_of(id)?.0) } else { None }
    }

    /// Returns `true` if items are queued that the sink of a slot may take.
    pub(super) fn has_items_for(&self, id: SlotId) -> bool {
        let head = self.shared_group(id).and_then(|group| self.group(group).head());
        self.slot(head.unwrap_or(id)).is_queued()
    }

    /// The waker of a sink has fired: it is next in line, if it shares its queue.
    pub(crate) fn return_to_line(&mut self, id: SlotId) {
        if let Some(group) = self.shared_group(id) {
            let group = &mut self.groups[group];
            group.line_up_first(id, &mut self.extras);
            group.set_full(false);
        }
    }

    /// A slot has joined a group that shares a queue: it stands in line. So does the head, if it
    /// was alone.
    pub(super) fn join_line(&mut self, group: usize, id: SlotId) {
        let Some(head) = self.group(group).head() else { return };
        if self.group(group).len() == 2 {
            if self.slot(head).is_parked() {
                self.step_aside(group, head);
            } else {
                self.line_up_last(group, head);
            }
        }
        self.line_up_last(group, id);
        let members = self.group_mut(group);
        members.set_full(false);
        let room = members.room();
        if self.slot(head).overflow() == Overflow::Wait {
            // What fits now is not beyond the buffer any more.
            let len = self.queue_len(head);
            let beyond = self.beyond_len(head);
            self.slot_mut(head).set_beyond(beyond.min(len.saturating_sub(room)));
        }
        if self.slot(head).is_queued() {
            self.ready.list(id);
        }
    }

    /// The group that a slot leaves its queue to when it leaves.
    pub(super) fn heirs(&self, id: SlotId) -> Option<usize> {
        self.shared_group(id).filter(|&group| self.group(group).len() > 1)
    }

    /// Gives the first member of a group the queue that another one has left to it.
    pub(super) fn hand_over(&mut self, group: usize, Queue { items, beyond }: Queue<V>) {
        let len = items.len();
        if len == 0 {
            return;
        }
        let Some(head) = self.group(group).head() else { return };
        self.group_mut(group).set_full(false); // the policy may be another one
        let beyond = if self.slot(head).conflates() {
            len - 1 // each is compared with those before it
        } else {
            beyond.min(len.saturating_sub(self.group(group).room()))
        };
        self.slot_mut(head).set_queue(Queue { items, beyond });
    }

    /// Gives a slot that has just left a group an equal part of the queue.
    pub(super) fn take_part(&mut self, id: SlotId, group: usize) {
        let members = self.group(group);
        let Some(head) = members.head() else { return };
        let len = self.queue_len(head);
        let beyond = self.beyond_len(head);
        let part = len.div_ceil(members.len() + 1);
        let mut slot = self.slot_mut(head);
        let items = slot.take_front(part);
        slot.set_beyond(beyond.saturating_sub(part));
        self.slot_mut(id).set_queue(Queue { items, beyond: 0 });
    }

    /// Puts a member at the end of the line of its group.
    pub(crate) fn line_up_last(&mut self, group: usize, id: SlotId) {
        self.groups[group].line_up_last(id, &mut self.extras);
    }

    /// Takes a member out of the line of its group, until its sink may be ready.
    pub(crate) fn step_aside(&mut self, group: usize, id: SlotId) {
        self.groups[group].step_aside(id, &mut self.extras);
    }
}
