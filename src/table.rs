//! [`Table`]: the slots, found by key for an item, and by id otherwise.
//!
//! A slot that is found by its key lies in the hash table itself, so that an item causes one cache
//! miss and not two. Its place there changes when the table grows, so wakers and the flush list
//! refer to it by its id.
//!
//! 1. Of the slots that receive under a key, the first one, the *head*, lies in `heads`. All
//!    others, and those that are leaving, lie in `others`.
//! 2. The [`Store`] finds a slot by its id, wherever it lies.
//! 3. Receiving slots that share a key are a group, which the head stands for. So are leaving slots
//!    that share a key; `leaving` names the first. A group exists until its last member is gone.
//! 4. `catch_all` names a slot that receives.
//!
//! A key is stored once, in its slot, and never cloned.

mod places;
mod store;

use alloc::sync::Arc;
use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use slab::Slab;

use crate::group::Group;
use crate::hooks::Recipient;
use crate::id::SlotId;
use crate::lease::Claim;
use crate::order::Terms;
use crate::slot::{ExtrasList, LeaveReason, Remains, Slot, SlotMut, Stage};

use places::narrow;
use store::{NO_SLOT, Store};

pub(crate) struct Table<K, S, V, B> {
    store: Store<K, S>,
    leaving: HashTable<SlotId>,
    extras: ExtrasList<V>,
    groups: Slab<Group>,
    hasher: B,
    /// How many slots receive.
    len: usize,
    catch_all: Option<SlotId>,
}

/// An attachment that is to get a slot.
pub(crate) struct NewSlot<K, S> {
    pub(crate) key: K,
    pub(crate) sink: S,
    pub(crate) terms: Terms,
    pub(crate) claim: Option<Arc<Claim>>,
    pub(crate) stage: Stage,
}

impl<K, S, V, B> Table<K, S, V, B> {
    pub(crate) fn new(hasher: B) -> Self {
        Self {
            store: Store::new(),
            leaving: HashTable::new(),
            extras: ExtrasList::new(),
            groups: Slab::new(),
            hasher,
            len: 0,
            catch_all: None,
        }
    }

    /// The same, empty, with another hasher.
    pub(crate) fn with_hasher<B2>(self, hasher: B2) -> Table<K, S, V, B2> {
        debug_assert!(self.is_vacant());
        let Self { store, leaving, extras, groups, hasher: _, len, catch_all } = self;
        Table { store, leaving, extras, groups, hasher, len, catch_all }
    }

    /// How many slots receive.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many slots are leaving.
    pub(crate) fn leaving(&self) -> usize {
        // A `Hash` that panics while `heads` grows may lose some.
        self.store.len().saturating_sub(self.len)
    }

    pub(crate) fn is_vacant(&self) -> bool {
        self.store.len() == 0
    }

    /// The ids that were ever in use are below this.
    pub(crate) fn ids(&self) -> usize {
        self.store.ids()
    }

    pub(crate) fn catch_all(&self) -> Option<SlotId> {
        self.catch_all
    }

    pub(crate) fn set_catch_all(&mut self, id: SlotId) {
        self.catch_all = Some(id);
    }

    pub(crate) fn get(&self, id: SlotId) -> Option<&Slot<K, S>> {
        self.store.get(id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: SlotId) -> Option<SlotMut<'_, K, S, V>> {
        Some(SlotMut::new(self.store.get_mut(id)?, &mut self.extras))
    }

    /// # Panics
    ///
    /// Panics if there is no such slot. So do the methods below that return no `Option`.
    pub(crate) fn slot(&self, id: SlotId) -> &Slot<K, S> {
        self.store.slot(id)
    }

    pub(crate) fn slot_mut(&mut self, id: SlotId) -> SlotMut<'_, K, S, V> {
        self.get_mut(id).expect(NO_SLOT)
    }

    /// The recipients that receive.
    pub(crate) fn recipients(&self) -> impl Iterator<Item = Recipient<'_, K>> {
        let receiving = self.store.iter().filter(|slot| slot.receives());
        receiving.map(|slot| slot.recipient(&self.extras))
    }

    pub(crate) fn recipient(&self, id: SlotId) -> Recipient<'_, K> {
        self.slot(id).recipient(&self.extras)
    }

    /// How many items are queued for a slot.
    pub(crate) fn queue_len(&self, id: SlotId) -> usize {
        self.slot(id).queue_len(&self.extras)
    }

    pub(crate) fn may_accept(&self, id: SlotId) -> bool {
        self.slot(id).may_accept(&self.extras)
    }

    /// Returns `true` if a slot receives, and no other slot receives under its key.
    pub(crate) fn is_only_receiver(&self, id: SlotId) -> bool {
        let is_alone = || self.group_of(id).is_none_or(|(group, _)| self.groups[group].len() == 1);
        self.slot(id).receives() && is_alone()
    }

    /// The group of a slot that shares its key, and the position there.
    pub(crate) fn group_of(&self, id: SlotId) -> Option<(usize, usize)> {
        self.slot(id).group(&self.extras)
    }

    pub(crate) fn group(&self, group: usize) -> &Group {
        &self.groups[group]
    }

    pub(crate) fn group_mut(&mut self, group: usize) -> &mut Group {
        &mut self.groups[group]
    }

    /// The first member of a group that waits for its copy of the item that is held.
    pub(crate) fn first_waiting(&mut self, group: usize) -> Option<SlotId> {
        let Self { store, groups, .. } = self;
        groups[group].first_waiting(|id| store.get(id).is_some_and(Slot::is_waiting))
    }

    /// The members of a group that are still to be offered the item, one by one.
    pub(crate) fn walk(&mut self, group: usize) -> Walk<'_, K, S, V> {
        let Self { store, extras, groups, .. } = self;
        Walk { group: &mut groups[group], store, extras }
    }

    /// Frees all memory.
    pub(crate) fn clear(&mut self) {
        self.store = Store::new();
        self.leaving = HashTable::new();
        self.extras = ExtrasList::new();
        self.groups = Slab::new();
        self.len = 0;
        self.catch_all = None;
    }
}

/// See [`Table::walk`].
pub(crate) struct Walk<'a, K, S, V> {
    group: &'a mut Group,
    store: &'a mut Store<K, S>,
    extras: &'a mut ExtrasList<V>,
}

impl<K, S, V> Walk<'_, K, S, V> {
    #[inline]
    pub(crate) fn next(&mut self) -> Option<SlotMut<'_, K, S, V>> {
        let id = self.group.next()?;
        let slot = self.store.get_mut(id)?;
        Some(SlotMut::new(slot, self.extras))
    }
}

impl<K, S, V, B> Table<K, S, V, B>
where
    B: BuildHasher,
{
    /// The slot that receives items with this key; the head, if there are several.
    #[inline]
    pub(crate) fn find_mut<Q>(&mut self, key: &Q) -> Option<SlotMut<'_, K, S, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        let slot = self.store.find_mut(hash, |known| known.borrow() == key)?;
        Some(SlotMut::new(slot, &mut self.extras))
    }

    /// The same, by its id.
    pub(crate) fn find<Q>(&self, key: &Q) -> Option<SlotId>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        Some(self.store.find(hash, |known| known.borrow() == key)?.id())
    }
}

impl<K, S, V, B> Table<K, S, V, B>
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
    }

    /// Gives an attachment a slot: it joins those that are there under its key, in its stage.
    pub(crate) fn insert(&mut self, new: NewSlot<K, S>) -> SlotId {
        let NewSlot { key, sink, terms, claim, stage } = new;
        let id = self.store.take_id();
        let slot = Slot::new(key, sink, id, &terms, claim, stage, &mut self.extras);
        match stage {
            Stage::Receiving => self.insert_receiving(slot),
            Stage::Leaving(_) => self.insert_leaving(slot),
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
            let slot = store.get_mut(id).expect(NO_SLOT);
            SlotMut::new(slot, extras).set_group(Some((narrow(group), narrow(position))));
        };
        let position = groups[group].push(id, &mut place);
        place(id, position);
    }

    /// Lets the slot leave: it receives no new items.
    pub(crate) fn leave(&mut self, id: SlotId, reason: LeaveReason) {
        let mut slot = self.take_receiving(id);
        slot.set_leaving(reason);
        self.insert_leaving(slot);
    }

    /// Removes the slot and drops its sink.
    pub(crate) fn remove(&mut self, id: SlotId) -> Removed<K, V> {
        let receives = self.slot(id).receives();
        let slot = if receives { self.take_receiving(id) } else { self.take_leaving(id) };
        self.store.free_id(id);
        let was_flush_queued = slot.is_flush_queued();
        Removed { remains: slot.into_remains(&mut self.extras), was_flush_queued }
    }

    /// Removes a slot that receives from the store and from its group.
    fn take_receiving(&mut self, id: SlotId) -> Slot<K, S> {
        self.len -= 1;
        if self.catch_all == Some(id) {
            self.catch_all = None;
        }
        let heir = self.leave_group(id);
        self.store.take(id, heir)
    }

    /// The same for a slot that is leaving.
    fn take_leaving(&mut self, id: SlotId) -> Slot<K, S> {
        let was_grouped = self.slot(id).is_grouped();
        let was_first =
            self.group_of(id).is_none_or(|(group, _)| self.groups[group].head() == Some(id));
        let heir = self.leave_group(id);
        debug_assert!(was_grouped || heir.is_none());
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

    /// Removes a slot from its group, if it is in one. Returns the first member that is left.
    fn leave_group(&mut self, id: SlotId) -> Option<SlotId> {
        let (index, position) = self.group_of(id)?;
        self.slot_mut(id).set_group(None);
        let group = &mut self.groups[index];
        group.remove(position);
        let heir = group.head();
        if heir.is_none() {
            self.groups.remove(index);
        }
        heir
    }
}

/// A slot that was removed.
pub(crate) struct Removed<K, V> {
    pub(crate) remains: Remains<K, V>,
    pub(crate) was_flush_queued: bool,
}
