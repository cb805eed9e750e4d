//! [`Flushes`]: which sinks are to be flushed, and when.
//!
//! A sink enters the list with the first item that it takes after a flush. Its entry is stamped
//! with the number of items and copies that the demux had handled by then. The sink is flushed when
//! enough further ones have paid for the flushes of all sinks in the list, at the latest after
//! [`flush_every`](crate::Demux::flush_every) further items, or when the input has nothing ready.
//!
//! Copies pay because they are as much work as items: if only items counted, one for a group of 500
//! would delay the flush of a quiet key as long as 500 items for a single sink.
//!
//! 1. Stamps never decrease from front to back.
//! 2. An id is in the list at most once, so the list cannot outgrow the slots, however fast they
//!    are attached and detached. A slot knows whether its id is in the list. If a slot is removed
//!    while it is, the id is marked as an orphan, and the next slot with that id adopts the entry.

use alloc::vec::Vec;

use super::entry::{Entry, Handled, MAX_AGE};
use super::linger::Linger;
use super::orphans::Orphans;
use super::patience::{Patience, Pause};
use super::tuning::{FLUSH_EVERY, LEAST, PER_SINK};
use crate::slots::id::SlotId;

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
    /// After how many further items an entry is due at the latest.
    flush_every: u64,
    /// How many items the input had returned, and where the list ended, in the last call of
    /// [`due_in`](Self::due_in).
    last_look: (u64, usize),
    lists_many: bool,
    linger: Linger,
    patience: Patience,
    orphans: Orphans,
}

impl Flushes {
    pub(in crate::slots) fn new() -> Self {
        Self {
            ring: Vec::new(),
            next: 0,
            end: 0,
            due: 0,
            flush_every: FLUSH_EVERY,
            last_look: (0, 0),
            lists_many: false,
            linger: Linger::default(),
            patience: Patience::default(),
            orphans: Orphans::default(),
        }
    }

    /// After how many further items a sink is flushed at the latest, while the input is busy.
    pub(crate) fn set_flush_every(&mut self, items: usize) {
        self.flush_every = (items as u64).min(MAX_AGE);
    }

    /// After how many ticks sinks are flushed when the input has nothing ready.
    pub(crate) fn set_linger(&mut self, ticks: u32) {
        self.linger.set(ticks);
    }

    pub(crate) fn can_linger(&self) -> bool {
        self.linger.is_set()
    }

    /// The first entry of the list.
    pub(super) fn first(&self) -> Option<SlotId> {
        self.front().map(Entry::id)
    }

    /// Removes the first entry of the list.
    pub(super) fn remove_first(&mut self) {
        self.due = self.due.saturating_sub(1);
        self.next = self.next.wrapping_add(1);
    }

    /// A turn ends in which flushes wait for ticks. If the input `is_dry`, these are counted from
    /// now on, unless they are already. They are not while nothing is listed.
    pub(super) fn linger(&mut self, is_dry: bool) {
        self.patience = Patience::default();
        if is_dry && self.len() == self.due {
            self.linger.stop();
        } else if is_dry {
            self.linger.start();
        }
    }

    /// A turn ends in which no flush waits for a tick. If it is a lull, all that is listed is due.
    pub(super) fn end_turn(&mut self, handled: u64, pause: Pause) {
        self.linger.stop();
        if self.patience.ends(self.len(), handled, pause) {
            self.mark_all_due();
        }
    }

    /// A tick was applied.
    pub(in crate::slots) fn count_linger(&mut self) {
        if self.linger.count() {
            self.mark_all_due();
        }
    }

    /// Returns `true` if there is something to flush that does not wait for a tick.
    pub(crate) fn has_work(&self) -> bool {
        self.due > 0 || !self.is_empty() && !self.linger.is_counting()
    }

    /// Makes room for `slots` slots. Their ids are below that number.
    pub(in crate::slots) fn reserve(&mut self, slots: usize) {
        // One more, because `push` may write behind the end of the list.
        if slots >= self.ring.len() {
            self.grow((slots + 1).next_power_of_two());
            self.orphans.reserve(slots);
        }
    }

    /// How far a turn with this budget looks ahead: a sink whose flush falls due by then is flushed
    /// together with those that are due. Otherwise each of many sinks would interrupt the reading
    /// at its own time. If it looked ahead more than a quarter of what is left to wait for, too few
    /// items would share a flush.
    pub(crate) fn look_ahead(&self, now: Handled, budget: usize) -> Handled {
        let wait = self.price().min(self.flush_every);
        Handled { items: now.items.saturating_add((budget as u64).min(wait / 4)), ..now }
    }

    /// How many further items and copies pay for the flushes of all sinks that are listed.
    ///
    /// When the first of many sinks that were listed together is flushed, the price falls, so that
    /// the others are due, too.
    fn price(&self) -> u64 {
        (self.len() as u64 * PER_SINK).clamp(LEAST, MAX_AGE)
    }

    #[inline]
    fn is_due(&self, entry: &Entry, now: &Handled) -> bool {
        entry.further_items(now) >= self.flush_every || entry.further_work(now) >= self.price()
    }

    /// Returns `true` if no sink is listed.
    pub(crate) fn is_empty(&self) -> bool {
        self.next == self.end
    }

    /// How many sinks are listed.
    fn len(&self) -> usize {
        self.end.wrapping_sub(self.next)
    }

    /// A sink took an item when as much as `now` had been handled. If it is `new` in the list, it
    /// joins the list.
    ///
    /// With many keys it is hard to predict which sink is new, and a wrong prediction is noticed
    /// only when the slot has arrived from memory. `BRANCHLESS` avoids the branch by writing behind
    /// the end of the list in either case. With 100,000 keys an item then costs a fifth less; with
    /// 3 keys it would cost a fifth more. [`lists_many`](Self::lists_many) says which is better.
    #[inline]
    pub(in crate::slots) fn push<const BRANCHLESS: bool>(
        &mut self,
        id: SlotId,
        now: &Handled,
        new: bool,
    ) {
        if BRANCHLESS {
            self.push_branchless(id, now, new);
        } else if new {
            self.push_new(id, now);
        }
    }

    #[inline]
    fn push_branchless(&mut self, id: SlotId, now: &Handled, new: bool) {
        // There is room: no id is listed twice, and there is a place more than ids.
        let end = self.place(self.end);
        self.ring[end] = Entry::new(id, now);
        self.end = self.end.wrapping_add(usize::from(new));
    }

    // Not inlined: the loop around it needs the registers.
    #[inline(never)]
    fn push_new(&mut self, id: SlotId, now: &Handled) {
        self.push_branchless(id, now, true);
    }

    /// Moves the list to the start of a larger ring.
    #[cold]
    fn grow(&mut self, len: usize) {
        let start = self.next;
        let listed = self.len();
        let mut ring = Vec::with_capacity(len);
        ring.extend((0..listed).map(|entry| self.ring[self.place(start.wrapping_add(entry))]));
        ring.resize(len, Entry::default());
        self.ring = ring;
        self.next = 0;
        self.end = listed;
        self.last_look.1 = self.last_look.1.wrapping_sub(start);
    }

    /// Where in the ring a position is.
    fn place(&self, position: usize) -> usize {
        position & self.ring.len().wrapping_sub(1)
    }

    /// The slot with this id was removed while it was listed.
    pub(in crate::slots) fn orphan(&mut self, id: SlotId) {
        self.orphans.insert(id);
    }

    /// Returns `true` if a removed slot left an entry under this id, which now belongs to the
    /// caller.
    pub(in crate::slots) fn adopt(&mut self, id: SlotId) -> bool {
        self.orphans.remove(id)
    }

    /// All that is listed now is due.
    fn mark_all_due(&mut self) {
        self.due = self.len();
    }

    /// Returns `true` if a flush is due when as much as `now` has been handled, even if flushes
    /// wait for ticks.
    pub(crate) fn is_any_due(&self, now: Handled) -> bool {
        self.front().is_some_and(|front| self.is_due(front, &now))
    }

    /// Returns `true` if a sink is to be flushed in a turn with this budget, in which as much as
    /// `now` has been handled.
    #[inline]
    pub(crate) fn is_any_due_within(&self, now: Handled, budget: usize) -> bool {
        self.due > 0
            || self.front().is_some_and(|front| self.is_due(front, &self.look_ahead(now, budget)))
    }

    /// How many items may be read before a flush is due. Called before each run of items.
    pub(crate) fn due_in(&mut self, now: Handled) -> u64 {
        let (then, end) = self.last_look;
        self.lists_many = self.end.wrapping_sub(end) as u64 * LISTS_MANY > now.items - then;
        self.last_look = (now.items, self.end);
        let Some(front) = self.front() else {
            // The item that is read next may list a sink.
            return self.flush_every.min(self.price());
        };
        let items_left = self.flush_every.saturating_sub(front.further_items(&now));
        let work_left = self.price().saturating_sub(front.further_work(&now));
        items_left.min(work_left)
    }

    /// Returns `true` if many of the items that were read last have listed their sinks.
    pub(crate) fn lists_many(&self) -> bool {
        self.lists_many
    }

    /// Removes and returns the next sink that is due by the time as much as `by` will have been
    /// handled.
    #[inline]
    pub(super) fn pop_due(&mut self, by: Handled) -> Option<SlotId> {
        let front = self.front()?;
        let id = front.id();
        if self.due > 0 {
            self.due -= 1;
        } else if !self.is_due(front, &by) {
            return None;
        }
        self.next = self.next.wrapping_add(1);
        Some(id)
    }

    fn front(&self) -> Option<&Entry> {
        if self.is_empty() { None } else { Some(&self.ring[self.place(self.next)]) }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use super::*;

    /// With room for 100 slots.
    fn flushing_every(items: usize) -> Flushes {
        let mut flushes = Flushes::new();
        flushes.reserve(100);
        flushes.set_flush_every(items);
        flushes
    }

    fn id(raw: u32) -> SlotId {
        SlotId::from_raw(raw)
    }

    /// So many items, and no copies.
    fn items(items: u64) -> Handled {
        Handled { items, others: 7 }
    }

    /// Beside the obvious list.
    #[test]
    fn whatever_is_listed_and_whenever_it_is_looked_at_each_is_flushed_once_and_in_time() {
        let mut flushes = Flushes::new();
        let mut list = VecDeque::new();
        flushes.set_flush_every(40);
        let mut now = u64::from(u32::MAX) - 5_000;
        let mut by = 0;
        let mut slot = 0_u32;
        let mut dice = 1_u64;
        for _ in 0..10_000 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let run = flushes.due_in(items(now)).min(dice >> 60);
            for item in 0..run {
                now += 1;
                let new = dice >> (item + 8) & 1 == 0;
                flushes.reserve(slot as usize + 1);
                if item % 2 == 0 {
                    flushes.push::<true>(id(slot), &items(now), new);
                } else {
                    flushes.push::<false>(id(slot), &items(now), new);
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
                assert_eq!(flushes.pop_due(items(by)), expected);
            }
            assert_eq!(flushes.len(), list.len());
        }
        assert!(slot > 1_000);
    }

    #[test]
    fn more_than_one_in_thirty_two_that_are_the_first_for_their_sink_are_many() {
        let mut flushes = flushing_every(1_000);
        let mut read = |count: u64, new: u64| {
            let start = flushes.last_look.0;
            for item in 0..count {
                flushes.push::<false>(id(0), &items(start + item), item < new);
            }
            flushes.due_in(items(start + count));
            flushes.lists_many()
        };
        assert!(!read(64, 0) && !read(64, 2) && read(64, 3) && read(64, 64) && !read(64, 1));
        assert!(!read(0, 0) && read(31, 1) && !read(32, 1) && !read(33, 1));
    }

    #[test]
    fn a_slot_is_due_so_many_items_after_the_first_it_took() {
        let mut flushes = flushing_every(10);
        flushes.push::<false>(id(3), &items(1), true);
        flushes.push::<true>(id(4), &items(2), true);
        flushes.push::<true>(id(4), &items(3), false);
        assert_eq!(flushes.due_in(items(5)), 6);
        assert_eq!(flushes.pop_due(items(10)), None);
        assert_eq!(flushes.pop_due(items(11)), Some(id(3)));
        assert_eq!(flushes.pop_due(items(11)), None);
        assert_eq!(flushes.due_in(items(12)), 0);
        assert_eq!(flushes.pop_due(items(12)), Some(id(4)));
        assert_eq!(flushes.len(), 0);
    }

    #[test]
    fn what_is_marked_is_due_at_once_and_what_comes_after_is_not() {
        let mut flushes = flushing_every(100);
        flushes.push::<true>(id(0), &items(1), true);
        flushes.mark_all_due();
        flushes.push::<false>(id(1), &items(1), true);
        assert_eq!(flushes.pop_due(items(1)), Some(id(0)));
        assert_eq!(flushes.pop_due(items(1)), None);
    }

    #[test]
    fn an_entry_that_was_left_behind_is_adopted_once_and_by_its_own_id() {
        let mut flushes = flushing_every(10);
        flushes.push::<false>(id(70), &items(1), true);
        flushes.orphan(id(70));
        assert!(!flushes.adopt(id(6)));
        assert!(flushes.adopt(id(70)));
        assert!(!flushes.adopt(id(70)));
        assert_eq!(flushes.pop_due(items(11)), Some(id(70)));
    }

    #[test]
    fn the_price_grows_with_the_number_of_sinks_and_is_paid_by_items_and_copies() {
        let mut flushes = flushing_every(16_384);
        let start = Handled { items: u64::from(u32::MAX) - 7, others: u64::from(u32::MAX) - 9 };
        let after =
            |items, others| Handled { items: start.items + items, others: start.others + others };
        assert_eq!(flushes.due_in(start), LEAST);
        for sink in 0..10 {
            flushes.push::<false>(id(sink), &start, true);
            let price = (u64::from(sink + 1) * PER_SINK).max(LEAST);
            for copies in [0, 1, price - 10] {
                assert_eq!(flushes.due_in(after(9, copies)), price - copies - 9);
                assert!(!flushes.is_any_due(after(price - copies - 1, copies)));
                assert!(flushes.is_any_due(after(price - copies, copies)));
            }
        }
    }

    #[test]
    fn copies_do_not_shorten_the_longest_wait() {
        let mut flushes = flushing_every(1_000);
        flushes.reserve(10_000);
        for sink in 0..10_000 {
            flushes.push::<false>(id(sink), &Handled { items: 1, others: sink.into() }, true);
        }
        assert!(!flushes.is_any_due(Handled { items: 1_000, others: 900_000 }));
        assert!(flushes.is_any_due(Handled { items: 1_001, others: 900_000 }));
        assert_eq!(flushing_every(usize::MAX).flush_every, 1 << 31, "never");
    }

    /// Those that come much later are not.
    #[test]
    fn sinks_that_were_listed_together_are_due_together() {
        let mut flushes = flushing_every(20_000);
        let price = 100 * PER_SINK;
        for sink in 0..100 {
            let now = if sink < 80 { u64::from(sink) } else { price - LEAST + 1 };
            flushes.push::<true>(id(sink), &items(now), true);
        }
        assert_eq!(flushes.pop_due(items(price - 1)), None);
        let due = core::iter::from_fn(|| flushes.pop_due(items(price))).count();
        assert_eq!((due, flushes.len()), (80, 20));
    }

    #[test]
    fn a_turn_looks_ahead_as_far_as_its_budget_but_not_over_a_quarter_of_the_wait() {
        for (every, budget, ahead) in
            [(100, 16, 16), (100, 128, 25), (3, 128, 0), (7, 1, 1), (1 << 20, 1 << 20, LEAST / 4)]
        {
            let horizon = flushing_every(every).look_ahead(items(5), budget);
            assert_eq!((horizon.items, horizon.others), (5 + ahead, 7));
        }
    }
}
