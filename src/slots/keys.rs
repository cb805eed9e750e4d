//! Finding a slot by its key; and coming and going, which keep the slots of a key together.

use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};

use hashbrown::hash_table::Entry;

use super::{NewSlot, SlotEntry, Slots};
use crate::group::Group;
use crate::id::SlotId;
use crate::key::sealed::{Directory, FindByKey};
use crate::lease::LeaseRequest;
use crate::slot::{LeaveReason, Remains, Slot, SlotMut, Stage};
use crate::store::narrow;

/// The slots of one key.
impl<K, S, V, B> Slots<K, S, V, B> {
    /// Returns `true` if a slot receives, and no other slot receives under its key.
    pub(crate) fn is_only_receiver(&self, id: SlotId) -> bool {
        let is_alone = || self.group_of(id).is_none_or(|(group, _)| self.group(group).len() == 1);
        self.slot(id).receives() && is_alone()
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
        let mut place = |id: SlotId, position: usize| {
            let mut slot = SlotMut::new(store.slot_mut(id), extras);
            slot.set_group(Some((narrow(group), narrow(position))));
        };
        let position = groups[group].push(id, &mut place);
        place(id, position);
        groups[group].line.room += store.slot(id).buffer(extras) as u64;
    }

    /// Removes a slot from its group, if it is in one. Returns the first member that is left.
    fn leave_group(&mut self, id: SlotId) -> Option<SlotId> {
        let (index, position) = self.group_of(id)?;
        self.slot_mut(id).set_group(None);
        let buffer = self.slot(id).buffer(&self.extras) as u64;
        let group = &mut self.groups[index];
        group.line.room -= buffer;
        group.remove(position);
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
    pub(crate) fn find<Q>(&self, key: &Q) -> Option<SlotId>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        Some(self.store.find(hash, |known| known.borrow() == key)?.id())
    }

    /// The slot for an item.
    #[inline]
    pub(crate) fn find_for<F>(&mut self, key: &mut F, item: &V) -> Option<SlotEntry<'_, K, S, V>>
    where
        F: FindByKey<V, K>,
    {
        key.find_in(self, item)
    }
}

impl<K, S, V, B> Directory<K> for Slots<K, S, V, B>
where
    B: BuildHasher,
{
    type Slot<'a>
        = SlotEntry<'a, K, S, V>
    where
        Self: 'a;

    #[inline]
    fn find<Q>(&mut self, key: &Q) -> Option<SlotEntry<'_, K, S, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Self { store, extras, ready, flushes, hasher, .. } = self;
        let slot = store.find_mut(hasher.hash_one(key), |known| known.borrow() == key)?;
        Some(SlotEntry::new(SlotMut::new(slot, extras), ready, flushes))
    }
}

/// Coming and going.
impl<K, S, V, B> Slots<K, S, V, B>
where
    K: Hash + Eq,
    B: BuildHasher,
{
    /// The first slot that is leaving under this key.
    pub(crate) fn find_leaving(&self, key: &K) -> Option<SlotId> {
        let same = |&id: &SlotId| self.slot(id).key() == key;
        self.leaving.find(self.hasher.hash_one(key), same).copied()
    }

    /// Makes room for `slots` slots: nothing here moves before there are more.
    ///
    /// The hash tables get twice the room. When a table of `hashbrown` is nearly full, most removed
    /// entries are marked as deleted instead of empty, and the whole table is rehashed when no
    /// empty entries are left.
    pub(crate) fn reserve(&mut self, slots: usize) {
        let Self { store, leaving, extras, hasher, .. } = self;
        let room = slots.saturating_mul(2);
        store.reserve(slots, room, hasher);
        extras.reserve(slots);
        let hash = |&id: &SlotId| hasher.hash_one(store.slot(id).key());
        leaving.reserve(room.saturating_sub(leaving.len()), hash);
        self.ready.reserve(slots);
        self.flushes.reserve(slots);
    }

    /// Gives an attachment a slot: it joins those that are there under its key, in its stage.
    pub(crate) fn insert(&mut self, new: NewSlot<K, S>) -> SlotId {
        let NewSlot { key, sink, terms, claim, stage } = new;
        let id = self.store.take_id();
        let mut slot = Slot::new(key, sink, id, &terms, claim, stage, &mut self.extras);
        self.ready.register(id);
        if self.flushes.adopt(id) {
            slot.set_flush_queued();
        }
        match stage {
            Stage::Receiving => self.insert_receiving(slot),
            Stage::Leaving(_) => self.insert_leaving(slot),
        }
        let mut slot = SlotMut::new(self.store.slot_mut(id), &mut self.extras);
        if slot.is_timed() {
            let (index, sweep) = self.timers.insert(id);
            slot.set_timer_index(index);
            slot.set_last_sweep(sweep);
        }
        if let Some(claim) = slot.claim() {
            let waker = self.ready.lease_waker(id);
            claim.register(&waker);
            if claim.request() != LeaseRequest::Stay {
                waker.wake();
            }
        }
        id
    }

    fn insert_receiving(&mut self, slot: Slot<K, S>) {
        let (id, hash) = (slot.id(), self.hasher.hash_one(slot.key()));
        match self.store.find(hash, |key| key == slot.key()).map(Slot::id) {
            None => self.store.insert_head(hash, slot, &self.hasher),
            Some(head) => {
                self.store.insert_other(slot);
                self.join(head, id);
            }
        }
        self.len += 1;
    }

    fn insert_leaving(&mut self, slot: Slot<K, S>) {
        let (id, hash) = (slot.id(), self.hasher.hash_one(slot.key()));
        self.store.insert_other(slot);
        let Self { store, leaving, hasher, .. } = self;
        let key_of = |id: SlotId| store.slot(id).key();
        let same = |&other: &SlotId| key_of(other) == key_of(id);
        match leaving.entry(hash, same, |&other| hasher.hash_one(key_of(other))) {
            Entry::Vacant(entry) => drop(entry.insert(id)),
            Entry::Occupied(entry) => {
                let first = *entry.get();
                self.join(first, id);
            }
        }
    }

    /// Lets the slot leave: it receives no new items.
    pub(crate) fn leave(&mut self, id: SlotId, reason: LeaveReason) {
        let mut slot = self.take_receiving(id);
        slot.set_leaving(reason);
        self.insert_leaving(slot);
    }

    /// Removes the slot and drops its sink.
    pub(crate) fn remove(&mut self, id: SlotId) -> Remains<K, V> {
        if let Some(index) = self.slot_mut(id).timer_index() {
            if let Some(moved) = self.timers.remove(index) {
                self.slot_mut(moved).set_timer_index(index);
            }
        }
        let receives = self.slot(id).receives();
        let slot = if receives { self.take_receiving(id) } else { self.take_leaving(id) };
        self.store.free_id(id);
        if slot.is_flush_queued() {
            self.flushes.orphan(id);
        }
        slot.into_remains(&mut self.extras)
    }

    /// Removes a slot that receives from the store and from its group.
    fn take_receiving(&mut self, id: SlotId) -> Slot<K, S> {
        self.len -= 1;
        self.catch_all.take_if(|catch_all| *catch_all == id);
        let heir = self.leave_group(id);
        self.store.take(id, heir)
    }

    /// The same for a slot that is leaving.
    fn take_leaving(&mut self, id: SlotId) -> Slot<K, S> {
        let group = self.group_of(id).map(|(group, _)| group);
        let was_first = group.is_none_or(|group| self.group(group).head() == Some(id));
        let heir = self.leave_group(id);
        if was_first {
            let hash = self.hasher.hash_one(self.slot(id).key());
            let Ok(mut entry) = self.leaving.find_entry(hash, |&first| first == id) else {
                panic!("a key that is leaving is not found: its `Hash` or `Eq` is inconsistent");
            };
            match heir {
                Some(heir) => *entry.get_mut() = heir,
                None => drop(entry.remove()),
            }
        }
        self.store.take(id, None)
    }
}
