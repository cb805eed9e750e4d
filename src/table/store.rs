//! [`Store`]: the slots themselves, by their ids.
//!
//! A slot that is found by its key lies in a hash table, `heads`, and moves when the table grows;
//! all others lie in a slab, `others`. `places` has the place of each slot, by its id. Only
//! [`make_room`](Store::make_room) and [`reserve`](Store::reserve) let `heads` grow, and both bring
//! `places` up to date afterwards.

use core::hash::{BuildHasher, Hash};
use core::mem;
use core::ops::{Deref, DerefMut};

use hashbrown::HashTable;
use slab::Slab;

use super::places::{MAX_ROOM, Place, Places};
use crate::id::SlotId;
use crate::slot::Slot;

pub(super) struct Store<K, S> {
    heads: Heads<K, S>,
    others: Slab<Slot<K, S>>,
    places: Places,
}

/// The slots that an item can be for.
struct Heads<K, S>(HashTable<Slot<K, S>>);

impl<K, S> Drop for Heads<K, S> {
    fn drop(&mut self) {
        // If a sink panics as it is dropped, `HashTable` leaks the others; `drain` drops them.
        self.0.drain().for_each(drop);
    }
}

impl<K, S> Deref for Heads<K, S> {
    type Target = HashTable<Slot<K, S>>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<K, S> DerefMut for Heads<K, S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

pub(super) const NO_SLOT: &str = "the slot is there until it is removed";

impl<K, S> Store<K, S> {
    pub(super) fn new() -> Self {
        Self { heads: Heads(HashTable::new()), others: Slab::new(), places: Places::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.heads.len() + self.others.len()
    }

    /// The ids that were ever in use are below this.
    pub(super) fn ids(&self) -> usize {
        self.places.ids()
    }

    /// Takes an id that is not in use.
    pub(super) fn take_id(&mut self) -> SlotId {
        self.places.take_id()
    }

    pub(super) fn free_id(&mut self, id: SlotId) {
        self.places.free_id(id);
    }

    pub(super) fn get(&self, id: SlotId) -> Option<&Slot<K, S>> {
        match self.places.get(id)? {
            Place::Head(bucket) => self.heads.get_bucket(bucket),
            Place::Other(index) => self.others.get(index),
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: SlotId) -> Option<&mut Slot<K, S>> {
        match self.places.get(id)? {
            Place::Head(bucket) => self.heads.get_bucket_mut(bucket),
            Place::Other(index) => self.others.get_mut(index),
        }
    }

    /// # Panics
    ///
    /// If there is no such slot.
    pub(super) fn slot(&self, id: SlotId) -> &Slot<K, S> {
        self.get(id).expect(NO_SLOT)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<K, S>> {
        self.heads.iter().chain(self.others.iter().map(|(_, slot)| slot))
    }

    /// The head with this hash whose key is the one that is meant.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_meant: impl Fn(&K) -> bool) -> Option<&Slot<K, S>> {
        self.heads.find(hash, |slot| is_meant(slot.key()))
    }

    #[inline]
    pub(super) fn find_mut(
        &mut self,
        hash: u64,
        is_meant: impl Fn(&K) -> bool,
    ) -> Option<&mut Slot<K, S>> {
        self.heads.find_mut(hash, |slot| is_meant(slot.key()))
    }

    /// Adds a slot that is not found by its key.
    pub(super) fn insert_other(&mut self, slot: Slot<K, S>) {
        self.places.set(slot.id(), Place::Other(self.others.insert(slot)));
    }

    /// Removes the slot with an id. If it is a head, `heir` takes its place, whose key is the same.
    pub(super) fn take(&mut self, id: SlotId, heir: Option<SlotId>) -> Slot<K, S> {
        let bucket = match self.places.get(id).expect(NO_SLOT) {
            Place::Head(bucket) => bucket,
            Place::Other(index) => return self.others.remove(index),
        };
        if let Some(heir) = heir {
            let new = self.take(heir, None);
            self.places.set(heir, Place::Head(bucket));
            return mem::replace(self.heads.get_bucket_mut(bucket).expect(NO_SLOT), new);
        }
        let entry = self.heads.get_bucket_entry(bucket).ok().expect(NO_SLOT);
        entry.remove().0
    }
}

impl<K, S> Store<K, S>
where
    K: Hash,
{
    /// Adds a slot that is found by its key, of which this is the hash. No head has this key.
    pub(super) fn insert_head(&mut self, hash: u64, slot: Slot<K, S>, hasher: &impl BuildHasher) {
        self.make_room(hasher);
        let id = slot.id();
        let entry = self.heads.insert_unique(hash, slot, |slot| hasher.hash_one(slot.key()));
        self.places.set(id, Place::Head(entry.bucket_index()));
    }

    /// Makes room for `slots` slots, and in `heads` for `heads`: nothing moves before there are
    /// more.
    pub(super) fn reserve(&mut self, slots: usize, heads: usize, hasher: &impl BuildHasher) {
        self.others.reserve(slots.saturating_sub(self.others.len()));
        self.places.reserve(slots);
        let more = heads.min(MAX_ROOM).saturating_sub(self.heads.len());
        self.heads.reserve(more, |slot| hasher.hash_one(slot.key()));
        self.find_places();
    }

    /// Lets `heads` grow if the next slot would not fit.
    fn make_room(&mut self, hasher: &impl BuildHasher) {
        // `capacity` counts what is there and what fits without moving any of it.
        if self.heads.len() == self.heads.capacity() {
            self.heads.reserve(1, |slot| hasher.hash_one(slot.key()));
            self.find_places();
        }
    }

    /// Brings `places` up to date after `heads` may have moved its slots.
    fn find_places(&mut self) {
        let Self { heads, places, .. } = self;
        for bucket in heads.iter_buckets() {
            if let Some(slot) = heads.get_bucket(bucket) {
                places.set(slot.id(), Place::Head(bucket));
            }
        }
    }
}
