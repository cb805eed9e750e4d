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
    /// From `next` on.
    list: Vec<u32>,
    next: usize,
    /// What is before this position is to be flushed now.
    due: usize,
    /// When what is in the list was added, but for the last batch.
    batches: VecDeque<Batch>,
    /// Where the last batch begins, and its stamp.
    open: Batch,
    /// A bit for each slot index that is in the list.
    listed: Vec<u64>,
    every: u64,
}

/// Neighbours in the list that share a stamp.
#[derive(Debug, Clone, Copy)]
struct Batch {
    stamp: u64,
    /// The position after its last one; in `open`, that of its first.
    at: usize,
}

impl Flushes {
    pub(crate) fn new() -> Self {
        Self {
            list: Vec::new(),
            next: 0,
            due: 0,
            batches: VecDeque::new(),
            open: Batch { stamp: 0, at: 0 },
            listed: Vec::new(),
            every: FLUSH_EVERY as u64,
        }
    }

    pub(crate) fn set_every(&mut self, items: usize) {
        self.every = items as u64;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.next == self.list.len()
    }

    /// Slot `slot` took an item, the first since it was flushed.
    // Not inlined: it would cost the loop around it more in registers than it saves.
    #[inline(never)]
    pub(crate) fn add(&mut self, slot: usize) {
        let (word, bit) = place(slot);
        if word >= self.listed.len() {
            self.listed.resize(word + 1, 0);
        }
        if self.listed[word] & bit == 0 {
            self.listed[word] |= bit;
            self.list.push(u32::try_from(slot).unwrap_or(u32::MAX));
        }
    }

    /// What is added from now on is stamped with the next item after the `now` that the input has given.
    /// Tells how many items may be read before something is due.
    pub(crate) fn stamp(&mut self, now: u64) -> u64 {
        while self.batches.front().is_some_and(|batch| batch.at <= self.next) {
            self.batches.pop_front();
        }
        if self.next > self.list.len() / 2 {
            self.compact();
        }
        let at = self.list.len();
        if at > self.open.at {
            self.batches.push_back(Batch { at, ..self.open });
        }
        self.open = Batch { stamp: now + 1, at };
        // What is read next can only be due later than `every`.
        self.first().map_or(self.every, |stamp| stamp.saturating_add(self.every).saturating_sub(now))
    }

    #[inline(never)]
    fn compact(&mut self) {
        let gone = self.next;
        self.list.drain(..gone);
        self.batches.iter_mut().for_each(|batch| batch.at -= gone);
        self.open.at = self.open.at.saturating_sub(gone);
        self.due = self.due.saturating_sub(gone);
        self.next = 0;
    }

    /// The input has nothing ready: all that is listed now is due.
    pub(crate) fn owe_all(&mut self) {
        self.due = self.list.len();
    }

    /// Is something due by the time the input will have given `by`?
    pub(crate) fn is_due(&self, by: u64) -> bool {
        self.due > self.next
            || self.first().is_some_and(|stamp| stamp.saturating_add(self.every) <= by)
    }

    /// All that is due by then is due now.
    pub(crate) fn fall_due(&mut self, by: u64) {
        let every = self.every;
        let is_due = |batch: &&Batch| batch.stamp.saturating_add(every) <= by;
        let batches = self.batches.iter().take_while(is_due);
        self.due = batches.last().map_or(self.due, |batch| batch.at.max(self.due));
        if is_due(&&self.open) {
            self.due = self.list.len();
        }
    }

    /// The next one that is due; it is no longer listed.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<usize> {
        if self.next >= self.due {
            return None;
        }
        let slot = *self.list.get(self.next)? as usize;
        self.next += 1;
        let (word, bit) = place(slot);
        if let Some(word) = self.listed.get_mut(word) {
            *word &= !bit;
        }
        Some(slot)
    }

    /// Frees what grew with the number of slots.
    pub(crate) fn clear(&mut self) {
        *self = Self { every: self.every, ..Self::new() };
    }

    /// The stamp of what is at the front.
    fn first(&self) -> Option<u64> {
        let listed = |batch: &&Batch| batch.at > self.next;
        let stamp = self.batches.iter().find(listed).map(|batch| batch.stamp);
        stamp.or_else(|| (!self.is_empty()).then_some(self.open.stamp))
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
