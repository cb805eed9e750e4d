//! Finding a slot by its key; and coming and going, which keep the slots of a key together.

use alloc::collections::VecDeque;
use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};

use super::group::Group;
use super::id::SlotId;
use super::slot::{LeaveReason, Slot, SlotMut, Stage};
use super::store::narrow;
use super::{Departure, NewSlot, Remains, SharedQueue, Slots};
use crate::key::sealed::Directory;
use crate::lease::LeaseRequest;

/// The slots of one key.
impl<K, S, V, B> Slots<K, S, V, B> {
    /// Returns `true` if a slot receives, and no other slot receives under its key.
    fn is_only_receiver(&self, id: SlotId) -> bool {
        if !self.slot(id).receives() {
            return false;
        }
        match self.group_of(id) {
            Some((group, _)) => self.group(group).len() == 1,
            None => true,
        }
    }

    /// Adds `id` to the group of `first`, and creates the group if there is none.
    fn join(&mut self, first: SlotId, id: SlotId) {
        let group = if let Some((group, _)) = self.group_of(first) {
            group
        } else {
            let group = self.groups.insert(Group::new());
            self.push_member(group, first);
            group
        };
        self.push_member(group, id);
    }

    fn push_member(&mut self, group: usize, id: SlotId) {
        let Self { store, extras, groups, .. } = self;
        let slot = store.slot_mut(id);
        let number = groups[group].join(id, slot.buffer(extras));
        slot.set_group(narrow(group), number, extras);
    }

    /// Removes a slot from its group, if it is in one. Returns the first member that is left.
    fn leave_group(&mut self, id: SlotId) -> Option<SlotId> {
        let (index, number) = self.group_of(id)?;
        self.store.slot_mut(id).leave_group();
        let buffer = self.slot(id).buffer(&self.extras);
        let group = &mut self.groups[index];
        group.leave_lists(id, &mut self.extras);
        group.leave(number, buffer);
        let heir = group.head();
        if heir.is_none() {
            self.groups.remove(index);
        }
        heir
    }
}

impl<K, S, V, B> Slots<K, S, V, B>
where
    B: BuildHasher,
{
    /// The slot that receives items with this key; the head, if there are several.
    pub(crate) fn receiver<Q>(&self, key: &Q) -> Option<SlotId>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.store.head(key, &self.hasher, Slot::receives)
    }

    /// How many slots receive under a key.
    pub(crate) fn receivers<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Some(head) = self.receiver(key) else { return 0 };
        self.group_of(head).map_or(1, |(group, _)| self.group(group).len())
    }

    /// How many items are queued for the slots that receive items with this key.
    pub(crate) fn queued_under<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Some(head) = self.receiver(key) else { return 0 };
        let len = |id: SlotId| self.queue_len(id);
        match self.group_of(head) {
            None => len(head),
            Some((group, _)) => self.group(group).members().map(len).sum(),
        }
    }

    /// The first slot that is leaving under this key.
    pub(crate) fn leaver(&self, key: &K) -> Option<SlotId>
    where
        K: Hash + Eq,
    {
        self.store.head(key, &self.hasher, |slot| !slot.receives())
    }

    /// The slot that receives items with the key of another slot; the head, if there are several.
    pub(crate) fn receiver_beside(&self, id: SlotId) -> Option<SlotId>
    where
        K: Hash + Eq,
    {
        let slot = self.slot(id);
        if slot.is_head() && slot.receives() { Some(id) } else { self.receiver(slot.key()) }
    }
}

/// For an item: finds a slot with its key. If that is [fast](Slot::is_fast), it alone receives such
/// items. Otherwise see [`receiver_beside`](Slots::receiver_beside).
impl<K, S, V, B> Directory<K> for Slots<K, S, V, B>
where
    B: BuildHasher,
{
    type Slot<'a>
        = SlotMut<'a, K, S, V>
    where
        Self: 'a;

    #[inline]
    fn find<Q>(&mut self, key: &Q) -> Option<SlotMut<'_, K, S, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Self { store, extras, queues, ready, flushes, hasher, .. } = self;
        Some(SlotMut { slot: store.find_any(key, hasher)?, extras, queues, ready, flushes })
    }
}

/// Coming and going.
impl<K, S, V, B> Slots<K, S, V, B>
where
    K: Hash + Eq,
    B: BuildHasher,
{
    /// Makes room for `slots` slots: nothing here moves before there are more.
    ///
    /// The hash table gets twice the room. When a table of `hashbrown` is nearly full, most removed
    /// entries are marked as deleted instead of empty, and the whole table is rehashed when no
    /// empty entries are left.
    pub(crate) fn reserve(&mut self, slots: usize) {
        self.store.reserve(slots, slots.saturating_mul(2), &self.hasher);
        self.extras.reserve(slots);
        self.ready.reserve(slots);
        self.flushes.reserve(slots);
    }

    /// Gives an attachment a slot: it joins those that are there under its key, in its stage.
    pub(crate) fn insert(&mut self, new: NewSlot<K, S>) -> SlotId {
        let NewSlot { key, sink, terms, claim, stage, shares_queue } = new;
        let is_catch_all = terms.catch_all && stage == Stage::Receiving;
        let id = self.store.take_id();
        let mut slot = Slot::new(key, sink, id, &terms, claim, stage, &mut self.extras);
        slot.set_shares_queue(shares_queue);
        self.ready.register(id);
        self.flushes.reserve(self.store.ids());
        if self.flushes.adopt(id) {
            slot.set_flush_queued(true);
        }
        self.place(slot);
        if let Some(group) = self.shared_group(id) {
            self.join_line(group, id);
        }
        if is_catch_all {
            self.catch_all = Some(id);
        }
        if self.slot(id).is_timed() {
            let (index, sweep) = self.timers.insert(id);
            self.slot_mut(id).join_timers(index, sweep);
        }
        if let Some(claim) = self.slot(id).claim(&self.extras) {
            let waker = self.ready.lease_waker(id);
            claim.register(&waker);
            if claim.request() != LeaseRequest::Stay {
                waker.wake();
            }
        }
        id
    }

    /// Puts a slot in place: it joins those that are there under its key, in its stage.
    fn place(&mut self, mut slot: Slot<K, S>) {
        let id = slot.id();
        let receives = slot.receives();
        let is_beside = |other: &Slot<K, S>| other.receives() == receives;
        let head = self.store.head(slot.key(), &self.hasher, is_beside);
        slot.set_head(head.is_none());
        self.store.insert(slot, &self.hasher);
        if let Some(head) = head {
            self.join(head, id);
        }
        self.len += usize::from(receives);
    }

    /// Gives an attachment a slot in place of another one, which leaves, and the items that wait
    /// for that.
    pub(crate) fn replace(&mut self, old: SlotId, new: NewSlot<K, S>) -> SlotId {
        let backlog = self.slot_mut(old).take_queue().items;
        self.begin_to_leave(old, LeaveReason::Replaced);
        let id = self.insert(new);
        self.slot_mut(id).take_over(backlog);
        id
    }

    /// Lets a slot leave: it receives no new items. It keeps what waits for it, up to its limit. If
    /// it shares a queue, `shared` says what becomes of that.
    pub(crate) fn leave(
        &mut self,
        id: SlotId,
        reason: LeaveReason,
        shared: SharedQueue,
    ) -> Departure<V> {
        let frees_key = self.is_only_receiver(id);
        let heirs = self.heirs(id);
        self.begin_to_leave(id, reason);
        if let Some(group) = heirs {
            let queue = self.slot_mut(id).take_queue();
            self.hand_over(group, queue);
            if shared == SharedQueue::IsDivided {
                self.take_part(id, group);
            }
        }
        Departure { frees_key, surplus: self.slot_mut(id).split_surplus() }
    }

    fn begin_to_leave(&mut self, id: SlotId, reason: LeaveReason) {
        let mut slot = self.take(id);
        slot.set_leaving(reason);
        self.place(slot);
    }

    /// Removes a slot and drops its sink.
    pub(crate) fn remove(&mut self, id: SlotId) -> Remains<K, V> {
        let frees_key = self.is_only_receiver(id);
        let heirs = self.heirs(id);
        let queue = self.slot_mut(id).take_queue();
        if let Some(index) = self.slot_mut(id).timer_index() {
            if let Some(moved) = self.timers.remove(index) {
                self.slot_mut(moved).set_timer_index(index);
            }
        }
        let slot = self.take(id);
        self.store.free_id(id);
        let queue = if let Some(group) = heirs {
            self.hand_over(group, queue);
            VecDeque::new()
        } else {
            queue.items
        };
        if slot.is_flush_queued() {
            self.flushes.orphan(id);
        }
        let (key, tag) = slot.into_recipient(&mut self.extras);
        Remains { key, tag, queue, frees_key }
    }

    /// Takes a slot out of its place and out of its group.
    fn take(&mut self, id: SlotId) -> Slot<K, S> {
        self.len -= usize::from(self.slot(id).receives());
        self.catch_all.take_if(|catch_all| *catch_all == id);
        let heir = self.leave_group(id);
        self.store.take(id, heir)
    }
}
