//! [`Store`]: the slots themselves, by their ids.
//!
//! A slot that is found by its key lies in a hash table, `heads`, and moves when the table grows;
//! all others lie in a slab, `others`. `places` has the place of each slot, by its id. Only
//! [`make_room`](Store::make_room) and [`reserve`](Store::reserve) let `heads` grow, and both bring
//! `places` up to date afterwards.

use alloc::vec::Vec;
use core::hash::{BuildHasher, Hash};
use core::mem;
use core::ops::{Deref, DerefMut};

use hashbrown::HashTable;
use slab::Slab;

use crate::id::SlotId;
use crate::slot::Slot;

pub(crate) struct Store<K, S> {
    heads: Heads<K, S>,
    others: Slab<Slot<K, S>>,
    /// The place of each slot, by its id, in four bytes: the upper two bits are the kind, the
    /// others the index. The ids that are free form a linked list.
    places: Vec<u32>,
    /// The free id that is taken next, or `END`.
    free: u32,
}

const KIND: u32 = 3 << 30;
/// In this bucket of `heads`.
const HEAD: u32 = 0;
/// At this index of `others`.
const OTHER: u32 = 1 << 30;
const FREE: u32 = 2 << 30;
/// The end of the list of free ids; no id is as large.
const END: u32 = !KIND;

/// `hashbrown` fills at most 7/8 of its buckets, whose number is a power of two. So this many slots
/// need 2³⁰ buckets, whose indices fit in 30 bits.
const MAX_SLOTS: usize = 1 << 29;

/// The largest room for slots in the hash table whose buckets have indices of 30 bits.
const MAX_ROOM: usize = (1 << 30) / 8 * 7;

const NO_SLOT: &str = "the slot is there until it is removed";

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

impl<K, S> Store<K, S> {
    pub(crate) fn new() -> Self {
        Self { heads: Heads(HashTable::new()), others: Slab::new(), places: Vec::new(), free: END }
    }

    pub(crate) fn len(&self) -> usize {
        self.heads.len() + self.others.len()
    }

    /// The ids that were ever in use are below this.
    pub(crate) fn ids(&self) -> usize {
        self.places.len()
    }

    /// Takes an id that is not in use: the one that was freed last, or a new one.
    pub(crate) fn take_id(&mut self) -> SlotId {
        if self.free == END {
            assert!(self.places.len() < MAX_SLOTS, "more than {MAX_SLOTS} sinks attached at once");
            self.places.push(FREE | END);
            return SlotId::from_index(self.places.len() - 1);
        }
        let id = SlotId::from_raw(self.free);
        self.free = self.places[id.index()] & !KIND;
        self.places[id.index()] = FREE | END;
        id
    }

    pub(crate) fn free_id(&mut self, id: SlotId) {
        self.places[id.index()] = FREE | self.free;
        self.free = id.raw();
    }

    /// The kind and the index of a place.
    fn place(&self, id: SlotId) -> Option<(u32, usize)> {
        let place = *self.places.get(id.index())?;
        Some((place & KIND, (place & !KIND) as usize))
    }

    pub(crate) fn get(&self, id: SlotId) -> Option<&Slot<K, S>> {
        match self.place(id)? {
            (HEAD, bucket) => self.heads.get_bucket(bucket),
            (OTHER, index) => self.others.get(index),
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, id: SlotId) -> Option<&mut Slot<K, S>> {
        match self.place(id)? {
            (HEAD, bucket) => self.heads.get_bucket_mut(bucket),
            (OTHER, index) => self.others.get_mut(index),
            _ => None,
        }
    }

    /// # Panics
    ///
    /// If there is no such slot.
    pub(crate) fn slot(&self, id: SlotId) -> &Slot<K, S> {
        self.get(id).expect(NO_SLOT)
    }

    /// # Panics
    ///
    /// If there is no such slot.
    pub(crate) fn slot_mut(&mut self, id: SlotId) -> &mut Slot<K, S> {
        self.get_mut(id).expect(NO_SLOT)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Slot<K, S>> {
        self.heads.iter().chain(self.others.iter().map(|(_, slot)| slot))
    }

    /// The head with this hash whose key is the one that is meant.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is_meant: impl Fn(&K) -> bool) -> Option<&Slot<K, S>> {
        self.heads.find(hash, |slot| is_meant(slot.key()))
    }

    #[inline]
    pub(crate) fn find_mut(
        &mut self,
        hash: u64,
        is_meant: impl Fn(&K) -> bool,
    ) -> Option<&mut Slot<K, S>> {
        self.heads.find_mut(hash, |slot| is_meant(slot.key()))
    }

    /// Adds a slot that is not found by its key.
    pub(crate) fn insert_other(&mut self, slot: Slot<K, S>) {
        let id = slot.id();
        self.places[id.index()] = OTHER | narrow(self.others.insert(slot));
    }

    /// Removes the slot with an id. If it is a head, `heir` takes its place, whose key is the same.
    pub(crate) fn take(&mut self, id: SlotId, heir: Option<SlotId>) -> Slot<K, S> {
        let bucket = match self.place(id).expect(NO_SLOT) {
            (HEAD, bucket) => bucket,
            (_, index) => return self.others.remove(index),
        };
        if let Some(heir) = heir {
            let new = self.take(heir, None);
            self.places[heir.index()] = HEAD | narrow(bucket);
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
    pub(crate) fn insert_head(&mut self, hash: u64, slot: Slot<K, S>, hasher: &impl BuildHasher) {
        self.make_room(hasher);
        let id = slot.id();
        let entry = self.heads.insert_unique(hash, slot, |slot| hasher.hash_one(slot.key()));
        self.places[id.index()] = HEAD | narrow(entry.bucket_index());
    }

    /// Makes room for `slots` slots, and in `heads` for `heads`: nothing moves before there are
    /// more.
    pub(crate) fn reserve(&mut self, slots: usize, heads: usize, hasher: &impl BuildHasher) {
        self.others.reserve(slots.saturating_sub(self.others.len()));
        self.places.reserve(slots.saturating_sub(self.places.len()));
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
                places[slot.id().index()] = HEAD | narrow(bucket);
            }
        }
    }
}

/// An index of at most 30 bits, as [`MAX_SLOTS`] has it.
#[expect(clippy::cast_possible_truncation, reason = "there are at most `MAX_SLOTS` slots")]
pub(crate) fn narrow(index: usize) -> u32 {
    index as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `hashbrown` computes how many buckets it needs.
    #[test]
    fn the_largest_room_has_buckets_with_indices_of_30_bits_and_no_larger_one_has() {
        let buckets = |room: usize| (room as u64 * 8 / 7).next_power_of_two();
        assert_eq!((buckets(MAX_ROOM), buckets(MAX_ROOM + 1)), (1 << 30, 1 << 31));
    }

    #[test]
    fn ids_are_used_again_and_never_twice_at_once() {
        let mut store = Store::<(), ()>::new();
        let ids: Vec<SlotId> = (0..4).map(|_| store.take_id()).collect();
        assert_eq!(store.ids(), 4);
        assert!(ids.iter().all(|&id| store.place(id) == Some((FREE, END as usize))));
        store.free_id(ids[1]);
        store.free_id(ids[0]);
        assert!(store.get(ids[0]).is_none() && store.get(ids[1]).is_none());
        assert_eq!([store.take_id(), store.take_id()], [ids[0], ids[1]]);
        assert!(store.get(ids[0]).is_none() && store.get(ids[1]).is_none(), "they have no place");
        assert_eq!((store.take_id().index(), store.ids()), (4, 5));
    }
}
