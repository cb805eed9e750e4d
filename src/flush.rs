//! Which sinks are to be flushed, and when.
//!
//! A sink enters the list with the first item it took since its last flush, stamped with the number
//! of items the input had given by then. It leaves when it is flushed: at the latest after so many
//! further items, or as soon as the input has nothing ready. So a busy input costs each busy sink one
//! flush a window, and an idle one costs it no delay.
//!
//! 1. Stamps never decrease from front to back: only the front is looked at.
//! 2. An index is in the list at most once, whoever its tenant is: the list cannot outgrow the slots,
//!    however fast they are attached and detached. A tenant knows whether it is listed; of one that
//!    leaves, that is remembered here, for the next to inherit.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// How far a busy input is read on before a sink that took an item is flushed, in items.
///
/// A window bounds what the last item before a lull of *its* key may wait while other keys stay busy,
/// and decides how many items share a flush: with `n` busy sinks, `window / n`. On loopback TCP with
/// a line codec a flush is a system call of some microseconds and an item some tens of nanoseconds,
/// so a flush wants to be shared by a hundred items; 16,384 gives that to a hundred and sixty busy
/// clients, and is read in about a millisecond. It is a compromise: more busy sinks want a larger
/// window, and pay for it with delay.
pub(crate) const FLUSH_EVERY: usize = 16_384;

#[derive(Debug)]
pub(crate) struct Flushes {
    list: VecDeque<Entry>,
    /// A bit for each slot index that is in the list and vacant.
    vacated: Vec<u64>,
    /// So many of the list, from its front, are due whatever their stamps say.
    owed: usize,
    every: u64,
}

#[derive(Debug)]
struct Entry {
    slot: u32,
    stamp: u64,
}

impl Flushes {
    pub(crate) fn new() -> Self {
        Self { list: VecDeque::new(), vacated: Vec::new(), owed: 0, every: FLUSH_EVERY as u64 }
    }

    pub(crate) fn set_every(&mut self, items: usize) {
        self.every = items as u64;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Slot `slot`, which is not listed, took an item when the input had given `now`.
    #[inline]
    pub(crate) fn add(&mut self, slot: usize, now: u64) {
        let slot = u32::try_from(slot).unwrap_or(u32::MAX);
        self.list.push_back(Entry { slot, stamp: now });
    }

    /// The tenant of `slot` is gone, and was listed.
    #[cold]
    pub(crate) fn vacate(&mut self, slot: usize) {
        let (word, bit) = place(slot);
        if word >= self.vacated.len() {
            self.vacated.resize(word + 1, 0);
        }
        self.vacated[word] |= bit;
    }

    /// Was the last tenant of `slot` listed? Its successor is, or the entry is used up now.
    pub(crate) fn inherit(&mut self, slot: usize) -> bool {
        let (word, bit) = place(slot);
        let Some(word) = self.vacated.get_mut(word) else { return false };
        let listed = *word & bit != 0;
        *word &= !bit;
        listed
    }

    /// The input has nothing ready: all that is listed now is due.
    pub(crate) fn owe_all(&mut self) {
        self.owed = self.list.len();
    }

    /// Is something due by the time the input will have given `by`?
    pub(crate) fn is_due(&self, by: u64) -> bool {
        self.owed > 0
            || self.list.front().is_some_and(|entry| entry.stamp.saturating_add(self.every) <= by)
    }

    /// How many items may be read before something is due.
    pub(crate) fn due_in(&self, now: u64) -> u64 {
        let Some(entry) = self.list.front() else {
            // What is read next can only be due later than this.
            return self.every;
        };
        entry.stamp.saturating_add(self.every).saturating_sub(now)
    }

    /// The next one that is due by then; it is no longer listed.
    pub(crate) fn next(&mut self, by: u64) -> Option<usize> {
        if !self.is_due(by) {
            return None;
        }
        let entry = self.list.pop_front()?;
        self.owed = self.owed.saturating_sub(1);
        Some(entry.slot as usize)
    }

    /// Frees what grew with the number of slots.
    pub(crate) fn clear(&mut self) {
        self.list = VecDeque::new();
        self.vacated = Vec::new();
        self.owed = 0;
    }
}

fn place(slot: usize) -> (usize, u64) {
    (slot / 64, 1 << (slot % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every(items: usize) -> Flushes {
        let mut flushes = Flushes::new();
        flushes.set_every(items);
        flushes
    }

    #[test]
    fn a_slot_is_due_so_many_items_after_the_first_it_took() {
        let mut flushes = every(10);
        flushes.add(3, 1);
        flushes.add(4, 2);
        assert_eq!(flushes.due_in(5), 6);
        assert_eq!(flushes.next(10), None);
        assert_eq!(flushes.next(11), Some(3));
        assert_eq!(flushes.next(11), None);
        assert_eq!(flushes.due_in(12), 0);
        assert_eq!(flushes.next(12), Some(4));
        assert!(flushes.is_empty());
    }

    #[test]
    fn what_is_owed_is_due_at_once_and_what_comes_after_is_not() {
        let mut flushes = every(100);
        flushes.add(0, 1);
        flushes.owe_all();
        flushes.add(1, 1);
        assert_eq!(flushes.next(1), Some(0));
        assert_eq!(flushes.next(1), None);
    }

    #[test]
    fn an_entry_is_handed_on_to_the_next_tenant_and_to_no_other() {
        let mut flushes = every(10);
        flushes.add(70, 1);
        flushes.vacate(70);
        assert!(!flushes.inherit(6) && !flushes.inherit(700));
        assert!(flushes.inherit(70));
        assert!(!flushes.inherit(70));
        assert_eq!(flushes.next(11), Some(70));
    }

    #[test]
    fn a_window_without_end_is_never_due() {
        let mut flushes = every(usize::MAX);
        flushes.add(1, 7);
        assert_eq!(flushes.due_in(u64::MAX - 1), 1);
        assert!(!flushes.is_due(u64::MAX - 1));
    }
}
