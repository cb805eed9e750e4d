//! [`Store`]: the slots themselves, by their ids.
//!
//! All slots lie in one hash table. A *head* lies under the hash of its key, so an item finds its
//! slot with one cache miss and not two. All others lie under a hash of their ids. Slots move when
//! the table grows, so wakers and lists refer to a slot by its id, and `places` has the bucket of
//! each. Only [`insert`](Store::insert) and [`reserve`](Store::reserve) let the table grow, and
//! both bring `places` up to date afterwards.

use alloc::vec::Vec;
use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};
use core::mem;

use hashbrown::HashTable;

use super::id::SlotId;
use super::slot::Slot;

pub(super) struct Store<K, S> {
    table: HashTable<Slot<K, S>>,
    /// The bucket of each slot, by its id. The ids that are free form a linked list.
    places: Vec<u32>,
    /// The free id that is taken next, or `END`.
    free: u32,
}

/// The id has no slot. The other bits are the next free id, or `END`.
const FREE: u32 = 1 << 31;
/// The end of the list of free ids; no id is as large.
const END: u32 = !FREE;

/// `hashbrown` fills at most 7/8 of its buckets, whose number is a power of two. So this many slots
/// need 2³⁰ buckets, whose indices fit in 31 bits.
const MAX_SLOTS: usize = 1 << 29;

/// The largest room for slots in a table whose buckets have indices of 30 bits.
const MAX_ROOM: usize = (1 << 30) / 8 * 7;

const NO_SLOT: &str = "the slot is there until it is removed";

impl<K, S> Drop for Store<K, S> {
    fn drop(&mut self) {
        // If a sink panics as it is dropped, `HashTable` leaks the others; `drain` drops them.
        self.table.drain().for_each(drop);
    }
}

impl<K, S> Store<K, S> {
    pub(super) fn new() -> Self {
        Self { table: HashTable::new(), places: Vec::new(), free: END }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// The ids that were ever in use are below this.
    pub(super) fn ids(&self) -> usize {
        self.places.len()
    }

    /// Takes an id that is not in use: the one that was freed last, or a new one.
    pub(super) fn take_id(&mut self) -> SlotId {
        if self.free == END {
            assert!(self.places.len() < MAX_SLOTS, "more than {MAX_SLOTS} sinks attached at once");
            self.places.push(FREE);
            return SlotId::from_index(self.places.len() - 1);
        }
        let id = SlotId::from_raw(self.free);
        self.free = self.places[id.index()] & !FREE;
        id
    }

    pub(super) fn free_id(&mut self, id: SlotId) {
        self.places[id.index()] = FREE | self.free;
        self.free = id.raw();
    }

    /// The first id, from this index on, that has a slot.
    pub(super) fn next_id(&self, index: usize) -> Option<SlotId> {
        let steps = self.places.get(index..)?.iter().position(|place| place & FREE == 0)?;
        Some(SlotId::from_index(index + steps))
    }

    fn bucket(&self, id: SlotId) -> Option<usize> {
        let place = *self.places.get(id.index())?;
        if place & FREE == 0 { Some(place as usize) } else { None }
    }

    pub(super) fn get(&self, id: SlotId) -> Option<&Slot<K, S>> {
        self.table.get_bucket(self.bucket(id)?)
    }

    pub(super) fn get_mut(&mut self, id: SlotId) -> Option<&mut Slot<K, S>> {
        let bucket = self.bucket(id)?;
        self.table.get_bucket_mut(bucket)
    }

    /// # Panics
    ///
    /// If there is no such slot.
    pub(super) fn slot(&self, id: SlotId) -> &Slot<K, S> {
        self.get(id).expect(NO_SLOT)
    }

    /// # Panics
    ///
    /// If there is no such slot.
    pub(super) fn slot_mut(&mut self, id: SlotId) -> &mut Slot<K, S> {
        self.get_mut(id).expect(NO_SLOT)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<K, S>> {
        self.table.iter()
    }

    /// A slot with this key: if only one receives and none is leaving, that one.
    #[inline]
    pub(super) fn find_any<Q>(
        &mut self,
        key: &Q,
        hasher: &impl BuildHasher,
    ) -> Option<&mut Slot<K, S>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.table.find_mut(hasher.hash_one(key), |slot| slot.key().borrow() == key)
    }

    /// The head of the slots with this key that receive, or of those that are leaving: the one for
    /// which `is_meant` returns `true`.
    pub(super) fn head<Q>(
        &self,
        key: &Q,
        hasher: &impl BuildHasher,
        is_meant: impl Fn(&Slot<K, S>) -> bool,
    ) -> Option<SlotId>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let is_found =
            |slot: &Slot<K, S>| slot.is_head() && is_meant(slot) && slot.key().borrow() == key;
        Some(self.table.find(hasher.hash_one(key), is_found)?.id())
    }

    /// Removes the slot with an id. If it is a head, `heir` takes its place, whose key is the same.
    pub(super) fn take(&mut self, id: SlotId, heir: Option<SlotId>) -> Slot<K, S> {
        let bucket = self.bucket(id).expect(NO_SLOT);
        match heir {
            Some(heir) if self.slot(id).is_head() => {
                let mut new = self.take(heir, None);
                new.set_head(true);
                self.places[heir.index()] = narrow(bucket);
                mem::replace(self.table.get_bucket_mut(bucket).expect(NO_SLOT), new)
            }
            _ => {
                let entry = self.table.get_bucket_entry(bucket).ok().expect(NO_SLOT);
                entry.remove().0
            }
        }
    }
}

impl<K, S> Store<K, S>
where
    K: Hash,
{
    /// Adds a slot. If it is a head, no other one has its key and its stage.
    pub(super) fn insert(&mut self, slot: Slot<K, S>, hasher: &impl BuildHasher) {
        // `capacity` counts what is there and what fits without moving any of it.
        if self.table.len() == self.table.capacity() {
            self.grow(1, hasher);
        }
        let id = slot.id();
        let entry = self.table.insert_unique(hash(&slot, hasher), slot, |slot| hash(slot, hasher));
        self.places[id.index()] = narrow(entry.bucket_index());
    }

    /// Makes room for `slots` slots, and in the table for `room`: nothing moves before there are
    /// more.
    pub(super) fn reserve(&mut self, slots: usize, room: usize, hasher: &impl BuildHasher) {
        self.places.reserve(slots.saturating_sub(self.places.len()));
        self.grow(room.min(MAX_ROOM).saturating_sub(self.table.len()), hasher);
    }

    fn grow(&mut self, more: usize, hasher: &impl BuildHasher) {
        let Self { table, places, .. } = self;
        table.reserve(more, |slot| hash(slot, hasher));
        for bucket in table.iter_buckets() {
            if let Some(slot) = table.get_bucket(bucket) {
                places[slot.id().index()] = narrow(bucket);
            }
        }
    }
}

/// The hash that a slot lies under.
fn hash<K: Hash, S>(slot: &Slot<K, S>, hasher: &impl BuildHasher) -> u64 {
    /// 2⁶⁴ divided by the golden ratio (Knuth, The Art of Computer Programming 3, 6.4).
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    /// Slots with ids of one run are neighbours, so that the walk through a group causes fewer
    /// cache misses. Longer runs would be obstacles for the heads between them.
    const RUN: u64 = 8;
    if slot.is_head() {
        return hasher.hash_one(slot.key());
    }
    let id = u64::from(slot.id().raw());
    (id / RUN).wrapping_mul(GOLDEN).wrapping_mul(RUN) + id % RUN
}

/// An index of at most 30 bits, as [`MAX_SLOTS`] has it.
#[expect(clippy::cast_possible_truncation, reason = "there are at most `MAX_SLOTS` slots")]
pub(super) fn narrow(index: usize) -> u32 {
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
        assert!(ids.iter().all(|&id| store.get(id).is_none()));
        store.free_id(ids[1]);
        store.free_id(ids[0]);
        assert!(store.get(ids[0]).is_none() && store.get(ids[1]).is_none());
        assert_eq!([store.take_id(), store.take_id()], [ids[0], ids[1]]);
        assert!(store.get(ids[0]).is_none() && store.get(ids[1]).is_none(), "they have no place");
        assert_eq!((store.take_id().index(), store.ids()), (4, 5));
    }
}
