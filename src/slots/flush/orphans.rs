//! [`Orphans`]: the ids that are in the flush list and have no slot.

use alloc::vec::Vec;

use crate::slots::id::SlotId;

/// A bit for each id.
#[derive(Debug, Default)]
pub(super) struct Orphans(Vec<u64>);

impl Orphans {
    /// Makes room for the ids of `slots` slots.
    pub(super) fn reserve(&mut self, slots: usize) {
        self.0.reserve(slots.div_ceil(64).saturating_sub(self.0.len()));
    }

    #[cold]
    pub(super) fn insert(&mut self, id: SlotId) {
        let (word, bit) = place(id);
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= bit;
    }

    /// Returns `true` if the id was there.
    pub(super) fn remove(&mut self, id: SlotId) -> bool {
        let (word, bit) = place(id);
        let Some(word) = self.0.get_mut(word) else { return false };
        let was_there = *word & bit != 0;
        *word &= !bit;
        was_there
    }
}

/// The word for an id, and the bit in that word.
fn place(id: SlotId) -> (usize, u64) {
    (id.index() / 64, 1 << (id.index() % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_removed_once_and_takes_a_bit() {
        let id = SlotId::from_raw;
        let mut orphans = Orphans::default();
        orphans.insert(id(70));
        assert_eq!(orphans.0.len(), 2);
        assert!(!orphans.remove(id(6)) && !orphans.remove(id(700)));
        assert!(orphans.remove(id(70)));
        assert!(!orphans.remove(id(70)));
    }
}
