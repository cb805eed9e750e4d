//! Which sinks are to be flushed, and when.
//!
//! A sink enters the list with the first item it took since its last flush, stamped with the number
//! of items the input had given by then. It leaves when it is flushed: at the latest after so many
//! further items, or as soon as the input has nothing ready. So a busy input costs each busy sink one
//! flush a window, and an idle one costs it no delay.
//!
//! 1. Stamps never decrease from front to back.
//! 2. An index is in the list at most once, whoever its tenant is: the list cannot outgrow the slots,
//!    however fast they are attached and detached, and grows only with the number of slots. A tenant knows whether it is listed; of one that
//!    leaves, that is remembered here, for the next to inherit.

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
    /// A ring: the list is what lies between `next` and `end`, which count on and are wrapped when
    /// they are used. Its length is a power of two.
    ring: Vec<Entry>,
    next: usize,
    end: usize,
    /// So many, from the front, are due whatever their stamps say.
    owed: usize,
    every: u64,
    /// When it was last told how far to read, and where the list ended then.
    paused: (u64, usize),
    many: bool,
    /// A bit for each slot index that is in the list and vacant.
    vacated: Vec<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    slot: u32,
    /// The lower half: an entry is due, and is gone, long before the upper half counts.
    stamp: u32,
}

impl Flushes {
    pub(crate) fn new() -> Self {
        Self {
            ring: Vec::new(),
            next: 0,
            end: 0,
            owed: 0,
            every: FLUSH_EVERY as u64,
            paused: (0, 0),
            many: false,
            vacated: Vec::new(),
        }
    }

    pub(crate) fn set_every(&mut self, items: usize) {
        // Stamps are compared by their lower half, so no window is longer than that can tell.
        self.every = (items as u64).min(1 << 31);
    }

    /// How many are listed.
    pub(crate) fn len(&self) -> usize {
        self.end.wrapping_sub(self.next)
    }

    /// Slot `slot` took an item when the input had given `now`; it joins the list if it is `new` there.
    ///
    /// With many keys it is hard to predict who is new, and a branch that was predicted wrongly is
    /// found out only when the slot has come from memory. `MANY` does without the branch, and writes to
    /// the place after the last in either case: 100,000 keys cost a fifth less, 3 would cost a fifth more.
    #[inline]
    pub(crate) fn note<const MANY: bool>(&mut self, slot: usize, now: u64, new: bool) {
        let note = if MANY { Self::note_anyway } else { Self::note_if_new };
        note(self, slot, now, new);
    }

    #[inline]
    fn note_if_new(&mut self, slot: usize, now: u64, new: bool) {
        if new {
            self.add(slot, now);
        }
    }

    #[inline]
    fn note_anyway(&mut self, slot: usize, now: u64, new: bool) {
        if self.len() == self.ring.len() {
            return self.note_beyond(slot, now, new);
        }
        let end = self.place(self.end);
        self.ring[end] = Entry { slot: low(slot as u64), stamp: low(now) };
        self.end = self.end.wrapping_add(usize::from(new));
    }

    // Not inlined: it would cost the loop around it more in registers than it saves.
    #[inline(never)]
    fn add(&mut self, slot: usize, now: u64) {
        self.note_anyway(slot, now, true);
    }

    /// The same when the ring is full.
    #[cold]
    #[inline(never)]
    fn note_beyond(&mut self, slot: usize, now: u64, new: bool) {
        if new {
            let next = self.place(self.next);
            self.ring.rotate_left(next);
            let (_, paused) = &mut self.paused;
            *paused = paused.wrapping_sub(self.next);
            (self.next, self.end) = (0, self.ring.len());
            self.ring.resize((self.end * 2).max(4), Entry::default());
            self.note_anyway(slot, now, new);
        }
    }

    /// Where in the ring a position is.
    fn place(&self, position: usize) -> usize {
        position & self.ring.len().wrapping_sub(1)
    }

    /// The tenant of `slot` is gone, and was listed.
    #[cold]
    pub(crate) fn vacate(&mut self, slot: usize) {
        let (word, bit) = bit(slot);
        if word >= self.vacated.len() {
            self.vacated.resize(word + 1, 0);
        }
        self.vacated[word] |= bit;
    }

    /// Was the last tenant of `slot` listed? Its successor is, or the entry is used up now.
    pub(crate) fn inherit(&mut self, slot: usize) -> bool {
        let (word, bit) = bit(slot);
        let Some(word) = self.vacated.get_mut(word) else { return false };
        let listed = *word & bit != 0;
        *word &= !bit;
        listed
    }

    /// The input has nothing ready: all that is listed now is due.
    pub(crate) fn owe_all(&mut self) {
        self.owed = self.len();
    }

    /// Is something due by the time the input will have given `by`?
    pub(crate) fn is_due(&self, by: u64) -> bool {
        self.front().is_some_and(|front| self.owed > 0 || self.left(front, by) == 0)
    }

    /// How many items may be read before something is due; asked before each run of items.
    pub(crate) fn due_in(&mut self, now: u64) -> u64 {
        let (then, end) = self.paused;
        // Of those that were read meanwhile, was one in 32 the first for its sink? Fewer wrong
        // predictions than that cost less than it does to go without.
        self.many = self.end.wrapping_sub(end) as u64 * 32 > now - then;
        self.paused = (now, self.end);
        // What is read next can only be due later than `every`.
        self.front().map_or(self.every, |front| self.left(front, now))
    }

    /// Were many of the items that were read last the first for their sinks?
    pub(crate) fn has_many(&self) -> bool {
        self.many
    }

    /// The next one that is due by the time the input will have given `by`; it is no longer listed.
    #[inline]
    pub(crate) fn next(&mut self, by: u64) -> Option<usize> {
        let front = self.front()?;
        if self.owed > 0 {
            self.owed -= 1;
        } else if self.left(front, by) > 0 {
            return None;
        }
        self.next = self.next.wrapping_add(1);
        Some(front.slot as usize)
    }

    fn front(&self) -> Option<Entry> {
        (self.next != self.end).then(|| self.ring[self.place(self.next)])
    }

    /// How many items more than `now` the input may give before an entry is due.
    fn left(&self, entry: Entry, now: u64) -> u64 {
        self.every.saturating_sub(u64::from(low(now).wrapping_sub(entry.stamp)))
    }

    /// Frees what grew with the number of slots.
    pub(crate) fn clear(&mut self) {
        *self = Self { every: self.every, ..Self::new() };
    }
}

/// The lower half. Of a slot index it is all of it: `Ready::seat` refuses more.
#[expect(clippy::cast_possible_truncation, reason = "it is what is wanted")]
fn low(number: u64) -> u32 {
    number as u32
}

/// Which word, and which bit of it, is for a slot.
fn bit(slot: usize) -> (usize, u64) {
    (slot / 64, 1 << (slot % 64))
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use super::*;

    fn every(items: usize) -> Flushes {
        let mut flushes = Flushes::new();
        flushes.set_every(items);
        flushes
    }

    /// Beside the obvious list.
    #[test]
    fn whatever_is_listed_and_whenever_it_is_looked_at_each_is_flushed_once_and_in_time() {
        let (mut flushes, mut list) = (every(40), VecDeque::new());
        let (mut now, mut by, mut slot, mut dice) = (u64::from(u32::MAX) - 5_000, 0, 0_u32, 1_u64);
        for _ in 0..10_000 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let run = flushes.due_in(now).min(dice >> 60);
            for item in 0..run {
                now += 1;
                let new = dice >> (item + 8) & 1 == 0;
                if item % 2 == 0 {
                    flushes.note::<true>(slot as usize, now, new);
                } else {
                    flushes.note::<false>(slot as usize, now, new);
                }
                if new {
                    list.push_back((slot, now));
                    slot += 1;
                }
            }
            // What was due by then is due, though this time we look less far ahead.
            by = by.max(now + (dice >> 30) % 8);
            for _ in 0..(dice >> 40) % 20 {
                let due = list.front().is_some_and(|(_, stamp)| stamp + 40 <= by);
                let expected = due.then(|| list.pop_front().unwrap().0 as usize);
                assert_eq!(flushes.next(by), expected);
            }
            assert_eq!(flushes.len(), list.len());
        }
        assert!(slot > 1_000);
    }

    #[test]
    fn a_slot_is_due_so_many_items_after_the_first_it_took() {
        let mut flushes = every(10);
        flushes.note::<false>(3, 1, true);
        flushes.note::<true>(4, 2, true);
        flushes.note::<true>(4, 3, false);
        assert_eq!(flushes.due_in(5), 6);
        assert_eq!(flushes.next(10), None);
        assert_eq!(flushes.next(11), Some(3));
        assert_eq!(flushes.next(11), None);
        assert_eq!(flushes.due_in(12), 0);
        assert_eq!(flushes.next(12), Some(4));
        assert_eq!(flushes.len(), 0);
    }

    #[test]
    fn what_is_owed_is_due_at_once_and_what_comes_after_is_not() {
        let mut flushes = every(100);
        flushes.note::<true>(0, 1, true);
        flushes.owe_all();
        flushes.note::<false>(1, 1, true);
        assert_eq!(flushes.next(1), Some(0));
        assert_eq!(flushes.next(1), None);
    }

    #[test]
    fn an_entry_is_handed_on_to_the_next_tenant_and_to_no_other() {
        let mut flushes = every(10);
        flushes.note::<false>(70, 1, true);
        flushes.vacate(70);
        assert!(!flushes.inherit(6) && !flushes.inherit(700));
        assert!(flushes.inherit(70));
        assert!(!flushes.inherit(70));
        assert_eq!(flushes.next(11), Some(70));
    }

    #[test]
    fn a_window_without_end_is_one_of_two_thousand_million_items() {
        let mut flushes = every(usize::MAX);
        let start = u64::from(u32::MAX) - 7;
        flushes.note::<false>(1, start, true);
        assert_eq!(flushes.due_in(start + 9), (1 << 31) - 9);
        assert!(!flushes.is_due(start + (1 << 31) - 1));
        assert!(flushes.is_due(start + (1 << 31)));
    }
}
