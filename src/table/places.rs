//! [`Places`]: which ids are in use, and where the slot with an id lies.

use alloc::vec::Vec;

use crate::id::SlotId;

/// Where a slot lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In this bucket of `heads`.
    Head(usize),
    /// In `others`.
    Other(usize),
}

/// The place of each slot, by its id.
///
/// A place takes four bytes: the upper two bits are the kind, the others the index. The ids that
/// are free form a linked list.
pub(super) struct Places {
    places: Vec<u32>,
    /// The first free id, or `END`.
    free: u32,
}

const KIND: u32 = 3 << 30;
const HEAD: u32 = 0;
const OTHER: u32 = 1 << 30;
const FREE: u32 = 2 << 30;
/// The end of the list of free ids; no id is as large.
const END: u32 = !KIND;

/// `hashbrown` fills at most 7/8 of its buckets, whose number is a power of two. So this many slots
/// need 2³⁰ buckets, whose indices fit in 30 bits.
const MAX_SLOTS: usize = 1 << 29;

/// The largest room for slots in the hash table whose buckets have indices of 30 bits.
pub(super) const MAX_ROOM: usize = (1 << 30) / 8 * 7;

impl Places {
    pub(super) fn new() -> Self {
        Self { places: Vec::new(), free: END }
    }

    /// The ids that were ever in use are below this.
    pub(super) fn ids(&self) -> usize {
        self.places.len()
    }

    pub(super) fn reserve(&mut self, slots: usize) {
        self.places.reserve(slots.saturating_sub(self.places.len()));
    }

    /// Takes an id that is not in use.
    pub(super) fn take_id(&mut self) -> SlotId {
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

    pub(super) fn free_id(&mut self, id: SlotId) {
        self.places[id.index()] = FREE | self.free;
        self.free = id.raw();
    }

    #[inline]
    pub(super) fn get(&self, id: SlotId) -> Option<Place> {
        let place = *self.places.get(id.index())?;
        let index = (place & !KIND) as usize;
        match place & KIND {
            HEAD => Some(Place::Head(index)),
            OTHER => Some(Place::Other(index)),
            _ => None,
        }
    }

    pub(super) fn set(&mut self, id: SlotId, place: Place) {
        self.places[id.index()] = match place {
            Place::Head(bucket) => HEAD | narrow(bucket),
            Place::Other(index) => OTHER | narrow(index),
        };
    }
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
        let mut places = Places::new();
        let ids: Vec<SlotId> = (0..4).map(|_| places.take_id()).collect();
        assert_eq!(places.ids(), 4);
        for (id, place) in ids.iter().zip([Place::Head(7), Place::Other(7), Place::Head(0)]) {
            assert_eq!(places.get(*id), None);
            places.set(*id, place);
            assert_eq!(places.get(*id), Some(place));
        }
        places.free_id(ids[1]);
        places.free_id(ids[0]);
        assert_eq!((places.get(ids[0]), places.get(ids[1])), (None, None));
        assert_eq!([places.take_id(), places.take_id()], [ids[0], ids[1]]);
        assert_eq!((places.get(ids[0]), places.get(ids[1])), (None, None), "they have no place");
        assert_eq!((places.take_id().index(), places.ids()), (4, 5));
    }
}
