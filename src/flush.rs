//! [`Flushes`]: which sinks are to be flushed, and when.
//!
//! A sink enters the list with the first item that it takes after a flush. Its entry is stamped
//! with the number of items that the input had returned by then. The sink is flushed after a
//! *window* of further items, or as soon as the input has nothing ready. So a busy input costs each
//! busy sink one flush per window, and an idle input causes no delay.
//!
//! 1. Stamps never decrease from front to back.
//! 2. An id is in the list at most once, so the list cannot outgrow the slots, however fast they
//!    are attached and detached. A slot knows whether its id is in the list. If a slot is removed
//!    while it is, the id is marked as an orphan, and the next slot with that id adopts the entry.

use alloc::vec::Vec;

use crate::id::SlotId;

/// How far a busy input is read on before a sink that took an item is flushed, in items.
///
/// A window bounds how long the last item of a key waits for its flush while other keys stay busy.
/// It also determines how many items share a flush: `window / n` with `n` busy sinks. On loopback
/// TCP with a line codec, a flush is a system call of some microseconds and an item costs some tens
/// of nanoseconds, so about a hundred items should share a flush. A window of 16,384 does that for
/// 160 busy clients, and is read in about a millisecond. It is a compromise: more busy sinks are
/// better served by a larger window, at the price of delay.
const WINDOW: u64 = 16_384;

/// The largest window. Only the lower 32 bits of stamps are compared, which must distinguish an
/// entry that becomes due within a window from one that has been due for a while.
const MAX_WINDOW: u64 = 1 << 31;

/// If at least one item in this many lists a sink, [`push_branchless`](Flushes::push_branchless)
/// pays. If fewer do, the branch is predicted well and costs less.
const LISTS_MANY: u64 = 32;

/// The flush list.
#[derive(Debug)]
pub(crate) struct Flushes {
    /// A ring: the list is what lies between `next` and `end`, which only count up and are wrapped
    /// when they are used. Its length is a power of two.
    ring: Vec<Entry>,
    next: usize,
    end: usize,
    /// How many entries, from the front, are due regardless of their stamps.
    due: usize,
    window: u64,
    /// How many items the input had returned, and where the list ended, in the last call of
    /// [`due_in`](Self::due_in).
    last_look: (u64, usize),
    lists_many: bool,
    /// After how many ticks all that is listed is due, when the input has nothing ready; 0 for at
    /// once.
    linger: u32,
    /// How many of these ticks are left, while they are counted.
    ticks_left: u32,
    /// A bit for each id that is in the list and has no slot.
    orphans: Vec<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    id: u32,
    /// The lower half of the count: an entry is due and removed long before the upper half matters.
    stamp: u32,
}

impl Flushes {
    pub(crate) fn new() -> Self {
        Self {
            ring: Vec::new(),
            next: 0,
            end: 0,
            due: 0,
            window: WINDOW,
            last_look: (0, 0),
            lists_many: false,
            linger: 0,
            ticks_left: 0,
            orphans: Vec::new(),
        }
    }

    /// How many further items are read from a busy input before a sink that took one is flushed.
    pub(crate) fn set_window(&mut self, items: usize) {
        self.window = (items as u64).min(MAX_WINDOW);
    }

    /// After how many ticks sinks are flushed when the input has nothing ready.
    pub(crate) fn set_linger(&mut self, ticks: u32) {
        self.linger = ticks;
    }

    pub(crate) fn can_linger(&self) -> bool {
        self.linger > 0
    }

    /// The first entry of the list.
    pub(crate) fn first(&self) -> Option<SlotId> {
        self.front().map(|front| SlotId::from_raw(front.id))
    }

    /// Removes the first entry of the list.
    pub(crate) fn remove_first(&mut self) {
        self.due = self.due.saturating_sub(1);
        self.next = self.next.wrapping_add(1);
    }

    /// The input has nothing ready: ticks are counted from now on, unless they are already. They
    /// are not while nothing is listed.
    pub(crate) fn start_linger(&mut self) {
        if self.len() == self.due {
            self.ticks_left = 0;
        } else if self.ticks_left == 0 {
            self.ticks_left = self.linger;
        }
    }

    pub(crate) fn stop_linger(&mut self) {
        self.ticks_left = 0;
    }

    /// One unit of time has passed.
    pub(crate) fn tick(&mut self) {
        if self.ticks_left > 0 {
            self.ticks_left -= 1;
            if self.ticks_left == 0 {
                self.mark_all_due();
            }
        }
    }

    /// Returns `true` if there is something to flush that does not wait for a tick.
    pub(crate) fn has_work(&self) -> bool {
        self.due > 0 || self.len() > 0 && self.ticks_left == 0
    }

    /// Makes room for `slots` slots.
    pub(crate) fn reserve(&mut self, slots: usize) {
        self.grow(slots.next_power_of_two().max(self.ring.len()));
        self.orphans.reserve(slots.div_ceil(64).saturating_sub(self.orphans.len()));
    }

    /// How many items a turn with this budget looks ahead: a sink whose flush falls due by then is
    /// flushed together with those that are due. Otherwise each of many sinks would interrupt the
    /// reading at its own time. If it looked ahead more than a quarter of a small window, too few
    /// items would share a flush.
    pub(crate) fn look_ahead(&self, budget: usize) -> u64 {
        (budget as u64).min(self.window / 4)
    }

    /// How many sinks are listed.
    pub(crate) fn len(&self) -> usize {
        self.end.wrapping_sub(self.next)
    }

    /// A sink took an item when the input had returned `now` items. If it is `new` in the list, it
    /// joins the list.
    ///
    /// With many keys it is hard to predict which sink is new, and a wrong prediction is noticed
    /// only when the slot has arrived from memory. `BRANCHLESS` avoids the branch by writing behind
    /// the end of the list in either case. With 100,000 keys an item then costs a fifth less; with
    /// 3 keys it would cost a fifth more. [`lists_many`](Self::lists_many) says which is better.
    #[inline]
    pub(crate) fn push<const BRANCHLESS: bool>(&mut self, id: SlotId, now: u64, new: bool) {
        if BRANCHLESS {
            self.push_branchless(id, now, new);
        } else if new {
            self.push_new(id, now);
        }
    }

    #[inline]
    fn push_branchless(&mut self, id: SlotId, now: u64, new: bool) {
        if self.len() == self.ring.len() {
            return self.push_into_full(id, now, new);
        }
        let end = self.place(self.end);
        self.ring[end] = Entry { id: id.raw(), stamp: low(now) };
        self.end = self.end.wrapping_add(usize::from(new));
    }

    // Not inlined: the loop around it needs the registers.
    #[inline(never)]
    fn push_new(&mut self, id: SlotId, now: u64) {
        self.push_branchless(id, now, true);
    }

    #[cold]
    #[inline(never)]
    fn push_into_full(&mut self, id: SlotId, now: u64, new: bool) {
        if new {
            self.grow((self.ring.len() * 2).max(4));
            self.push_branchless(id, now, new);
        }
    }

    /// Moves the list to the start of a larger ring.
    fn grow(&mut self, len: usize) {
        let (start, listed) = (self.next, self.len());
        let mut ring = Vec::with_capacity(len);
        ring.extend((0..listed).map(|entry| self.ring[self.place(start.wrapping_add(entry))]));
        ring.resize(len, Entry::default());
        self.ring = ring;
        for end in [&mut self.next, &mut self.end, &mut self.last_look.1] {
            *end = end.wrapping_sub(start);
        }
    }

    /// Where in the ring a position is.
    fn place(&self, position: usize) -> usize {
        position & self.ring.len().wrapping_sub(1)
    }

    /// The slot with this id was removed while it was listed.
    #[cold]
    pub(crate) fn orphan(&mut self, id: SlotId) {
        let (word, bit) = bit(id);
        if word >= self.orphans.len() {
            self.orphans.resize(word + 1, 0);
        }
        self.orphans[word] |= bit;
    }

    /// Returns `true` if a removed slot left an entry under this id, which now belongs to the
    /// caller.
    pub(crate) fn adopt(&mut self, id: SlotId) -> bool {
        let (word, bit) = bit(id);
        let Some(word) = self.orphans.get_mut(word) else { return false };
        let orphaned = *word & bit != 0;
        *word &= !bit;
        orphaned
    }

    /// All that is listed now is due.
    pub(crate) fn mark_all_due(&mut self) {
        self.due = self.len();
    }

    /// Returns `true` if a window is over when the input has returned `now` items.
    pub(crate) fn is_over(&self, now: u64) -> bool {
        self.front().is_some_and(|front| age(front, now) >= self.window)
    }

    /// How many items may be read before a flush is due. Called before each run of items, when the
    /// input has returned `now` items.
    pub(crate) fn due_in(&mut self, now: u64) -> u64 {
        let (then, end) = self.last_look;
        self.lists_many = self.end.wrapping_sub(end) as u64 * LISTS_MANY > now - then;
        self.last_look = (now, self.end);
        // The flush for an item that is read next is due after a whole window.
        self.front().map_or(self.window, |front| self.window.saturating_sub(age(front, now)))
    }

    /// Returns `true` if many of the items that were read last have listed their sinks.
    pub(crate) fn lists_many(&self) -> bool {
        self.lists_many
    }

    /// Removes and returns the next sink that is due by the time the input will have returned `by`
    /// items.
    #[inline]
    pub(crate) fn pop_due(&mut self, by: u64) -> Option<SlotId> {
        let front = self.front()?;
        if self.due > 0 {
            self.due -= 1;
        } else if age(front, by) < self.window {
            return None;
        }
        self.next = self.next.wrapping_add(1);
        Some(SlotId::from_raw(front.id))
    }

    fn front(&self) -> Option<Entry> {
        (self.next != self.end).then(|| self.ring[self.place(self.next)])
    }
}

/// How many items the input has returned since an entry was listed, if it has returned `now`.
fn age(entry: Entry, now: u64) -> u64 {
    u64::from(low(now).wrapping_sub(entry.stamp))
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is wanted")]
fn low(number: u64) -> u32 {
    number as u32
}

/// The word for a slot, and the bit in that word.
fn bit(id: SlotId) -> (usize, u64) {
    (id.index() / 64, 1 << (id.index() % 64))
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use super::*;

    fn windowed(items: usize) -> Flushes {
        let mut flushes = Flushes::new();
        flushes.set_window(items);
        flushes
    }

    fn id(raw: u32) -> SlotId {
        SlotId::from_raw(raw)
    }

    /// Beside the obvious list.
    #[test]
    fn whatever_is_listed_and_whenever_it_is_looked_at_each_is_flushed_once_and_in_time() {
        let (mut flushes, mut list) = (windowed(40), VecDeque::new());
        let (mut now, mut by, mut slot, mut dice) = (u64::from(u32::MAX) - 5_000, 0, 0_u32, 1_u64);
        for _ in 0..10_000 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let run = flushes.due_in(now).min(dice >> 60);
            for item in 0..run {
                now += 1;
                let new = dice >> (item + 8) & 1 == 0;
                if item % 2 == 0 {
                    flushes.push::<true>(id(slot), now, new);
                } else {
                    flushes.push::<false>(id(slot), now, new);
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
                let expected = due.then(|| id(list.pop_front().unwrap().0));
                assert_eq!(flushes.pop_due(by), expected);
            }
            assert_eq!(flushes.len(), list.len());
        }
        assert!(slot > 1_000);
    }

    #[test]
    fn more_than_one_in_thirty_two_that_are_the_first_for_their_sink_are_many() {
        let mut flushes = windowed(1_000);
        let mut read = |items: u64, new: u64| {
            let start = flushes.last_look.0;
            for item in 0..items {
                flushes.push::<false>(id(0), start + item, item < new);
            }
            flushes.due_in(start + items);
            flushes.lists_many()
        };
        assert!(!read(64, 0) && !read(64, 2) && read(64, 3) && read(64, 64) && !read(64, 1));
        assert!(!read(0, 0) && read(31, 1) && !read(32, 1) && !read(33, 1));
    }

    #[test]
    fn a_slot_is_due_so_many_items_after_the_first_it_took() {
        let mut flushes = windowed(10);
        flushes.push::<false>(id(3), 1, true);
        flushes.push::<true>(id(4), 2, true);
        flushes.push::<true>(id(4), 3, false);
        assert_eq!(flushes.due_in(5), 6);
        assert_eq!(flushes.pop_due(10), None);
        assert_eq!(flushes.pop_due(11), Some(id(3)));
        assert_eq!(flushes.pop_due(11), None);
        assert_eq!(flushes.due_in(12), 0);
        assert_eq!(flushes.pop_due(12), Some(id(4)));
        assert_eq!(flushes.len(), 0);
    }

    #[test]
    fn what_is_marked_is_due_at_once_and_what_comes_after_is_not() {
        let mut flushes = windowed(100);
        flushes.push::<true>(id(0), 1, true);
        flushes.mark_all_due();
        flushes.push::<false>(id(1), 1, true);
        assert_eq!(flushes.pop_due(1), Some(id(0)));
        assert_eq!(flushes.pop_due(1), None);
    }

    #[test]
    fn an_entry_that_was_left_behind_is_adopted_once_and_by_its_own_id() {
        let mut flushes = windowed(10);
        flushes.push::<false>(id(70), 1, true);
        flushes.orphan(id(70));
        assert_eq!(flushes.orphans.len(), 2, "a bit for each");
        assert!(!flushes.adopt(id(6)) && !flushes.adopt(id(700)));
        assert!(flushes.adopt(id(70)));
        assert!(!flushes.adopt(id(70)));
        assert_eq!(flushes.pop_due(11), Some(id(70)));
    }

    #[test]
    fn a_window_without_end_is_one_of_two_thousand_million_items() {
        let mut flushes = windowed(usize::MAX);
        let start = u64::from(u32::MAX) - 7;
        flushes.push::<false>(id(1), start, true);
        assert_eq!(flushes.due_in(start + 9), (1 << 31) - 9);
        assert!(!flushes.is_over(start + (1 << 31) - 1));
        assert!(flushes.is_over(start + (1 << 31)));
    }

    #[test]
    fn a_turn_looks_ahead_as_far_as_its_budget_but_not_over_a_quarter_of_the_window() {
        for (window, budget, ahead) in [(100, 16, 16), (100, 128, 25), (3, 128, 0), (7, 1, 1)] {
            assert_eq!(windowed(window).look_ahead(budget), ahead);
        }
        assert_eq!(windowed(usize::MAX).look_ahead(usize::MAX), 1 << 29);
    }
}
