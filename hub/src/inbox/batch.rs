//! [`Batch`]: items, and how many are missing where.

use std::collections::VecDeque;

use crate::read::Lagged;

/// A queue of items that remembers at which positions items are missing.
///
/// Positions count from the first item that was ever pushed, so they stay valid when items are
/// taken. Losses at one position are one gap. At most one gap lies between two items, so there is
/// at most one gap more than there are items.
#[derive(Debug)]
pub(super) struct Batch<T> {
    items: VecDeque<T>,
    gaps: VecDeque<Gap>,
    /// The position of the first item.
    first: u64,
}

#[derive(Debug)]
struct Gap {
    /// The position of the item that follows.
    before: u64,
    lost: u64,
}

impl<T> Batch<T> {
    pub(super) const fn new() -> Self {
        Self { items: VecDeque::new(), gaps: VecDeque::new(), first: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns `true` if there is neither an item nor a gap.
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.gaps.is_empty()
    }

    pub(super) fn push(&mut self, item: T) {
        self.items.push_back(item);
    }

    /// Appends an item that [`replace`](Self::replace) may replace. Returns its position. Either all
    /// items of a batch are appended so, or none.
    pub(super) fn push_replaceable(&mut self, item: T) -> u64 {
        let position = self.end();
        // A gap for each item, so that there is one to add to.
        if self.gaps.back().is_none_or(|gap| gap.before < position) {
            self.gaps.push_back(Gap { before: position, lost: 0 });
        }
        self.items.push_back(item);
        position
    }

    /// Puts an item in the place of the one at a position, which is lost and returned. If that was
    /// taken or lost, returns the item itself.
    pub(super) fn replace(&mut self, position: Option<u64>, item: T) -> Result<T, T> {
        let Some(index) = position.and_then(|position| self.index(position)) else {
            return Err(item);
        };
        match (self.items.get_mut(index), self.gaps.get_mut(index)) {
            (Some(old), Some(gap)) => {
                gap.lost += 1;
                Ok(std::mem::replace(old, item))
            }
            _ => Err(item),
        }
    }

    /// The index of a position, unless the item there was taken or lost.
    fn index(&self, position: u64) -> Option<usize> {
        let index = position.checked_sub(self.first)?;
        usize::try_from(index).ok()
    }

    /// Takes these items as a whole, if there is nothing else. Otherwise returns `false`.
    #[inline]
    pub(super) fn fill(&mut self, items: &mut Vec<T>) -> bool {
        if !self.is_empty() {
            return false;
        }
        // Neither conversion copies anything.
        let room = std::mem::take(&mut self.items);
        self.items = std::mem::replace(items, room.into()).into();
        true
    }

    /// An item that would have come next is lost.
    pub(super) fn lose_newest(&mut self) {
        let before = self.end();
        match self.gaps.back_mut() {
            Some(gap) if gap.before == before => gap.lost += 1,
            _ => self.gaps.push_back(Gap { before, lost: 1 }),
        }
    }

    /// Takes the oldest item, which is lost.
    pub(super) fn lose_oldest(&mut self) -> Option<T> {
        let item = self.items.pop_front()?;
        self.first += 1;
        let mut gap = Gap { before: self.first, lost: 1 };
        // What was missing before and after that item is now missing at one position.
        while let Some(next) = self.gap_up_to(self.first) {
            gap.lost += next.lost;
        }
        self.gaps.push_front(gap);
        Some(item)
    }

    /// Takes the first gap, if it is at this position or before.
    fn gap_up_to(&mut self, position: u64) -> Option<Gap> {
        let is_due = self.gaps.front()?.before <= position;
        if is_due { self.gaps.pop_front() } else { None }
    }

    /// Moves everything to the reader, which has nothing.
    pub(super) fn hand_over(&mut self, taken: &mut Taken<T>) {
        let first = self.first;
        self.first = self.end();
        // Neither conversion copies anything, unless the oldest items were lost.
        let room = std::mem::take(&mut taken.items);
        taken.items = std::mem::replace(&mut self.items, room.into()).into();
        taken.items.reverse();
        std::mem::swap(&mut taken.gaps, &mut self.gaps);
        taken.first = first;
        taken.find_gap();
    }

    /// Takes the room of the reader, which has nothing and will wait, unless there is room already.
    ///
    /// So two allocations go round between a sink, the batch and the reader. With three, many
    /// readers take half as much cache again.
    pub(super) fn take_room(&mut self, taken: &mut Taken<T>) {
        if self.items.capacity() == 0 {
            self.items = std::mem::take(&mut taken.items).into();
        }
    }

    /// The position of the item that is pushed next.
    fn end(&self) -> u64 {
        self.first + self.items.len() as u64
    }
}

/// What the reader has taken from a [`Batch`].
#[derive(Debug)]
pub(super) struct Taken<T> {
    /// The next item comes last: no queue is as cheap to take from as the end of a `Vec`.
    items: Vec<T>,
    gaps: VecDeque<Gap>,
    /// The position of the next item.
    first: u64,
    /// The position of the first gap, or one that no item has.
    gap: u64,
}

impl<T> Taken<T> {
    pub(super) const fn new() -> Self {
        Self { items: Vec::new(), gaps: VecDeque::new(), first: 0, gap: u64::MAX }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns `true` if there is neither an item nor a gap.
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.gaps.is_empty()
    }

    /// Takes the next item, if nothing is missing before it.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.first >= self.gap {
            return None;
        }
        let item = self.items.pop()?;
        self.first += 1;
        Some(item)
    }

    /// Takes the next item, or what is missing before it.
    pub(super) fn next(&mut self) -> Option<Result<T, Lagged>> {
        while self.first >= self.gap {
            let lagged = self.next_gap()?;
            // A gap may have been made for losses that never came.
            if lagged.0 > 0 {
                return Some(Err(lagged));
            }
        }
        self.pop().map(Ok)
    }

    #[cold]
    fn next_gap(&mut self) -> Option<Lagged> {
        let gap = self.gaps.pop_front()?;
        self.find_gap();
        Some(Lagged(gap.lost))
    }

    fn find_gap(&mut self) {
        self.gap = self.gaps.front().map_or(u64::MAX, |gap| gap.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_that_are_replaced_are_missing_in_their_places() {
        let mut batch = Batch::new();
        let positions = [1, 2, 3].map(|n| batch.push_replaceable(n));
        assert_eq!(batch.replace(Some(positions[1]), 4), Ok(2));
        assert_eq!(batch.replace(Some(positions[1]), 5), Ok(4));
        assert_eq!(batch.replace(None, 6), Err(6));
        assert_eq!(batch.lose_oldest(), Some(1));
        assert_eq!(batch.replace(Some(positions[0]), 7), Err(7));
        assert_eq!(batch.replace(Some(positions[2]), 8), Ok(3));
        assert_eq!(rest(&mut batch), [Err(3), Ok(5), Err(1), Ok(8)]);
        assert_eq!(batch.replace(Some(positions[2]), 9), Err(9));
        let position = batch.push_replaceable(9);
        assert_eq!((batch.lose_oldest(), batch.push_replaceable(10)), (Some(9), position + 1));
        assert_eq!(batch.replace(Some(position + 1), 11), Ok(10));
        assert_eq!(rest(&mut batch), [Err(2), Ok(11)]);
    }

    fn rest(batch: &mut Batch<u32>) -> Vec<Result<u32, u64>> {
        let mut taken = Taken::new();
        batch.hand_over(&mut taken);
        let all = std::iter::from_fn(|| taken.next()).map(|next| next.map_err(|Lagged(lost)| lost));
        all.collect()
    }

    #[test]
    fn oldest_are_missing_in_front() {
        let mut batch = Batch::new();
        (1..=4).for_each(|n| batch.push(n));
        assert_eq!((batch.lose_oldest(), batch.lose_oldest()), (Some(1), Some(2)));
        assert_eq!(rest(&mut batch), [Err(2), Ok(3), Ok(4)]);
        assert_eq!(rest(&mut batch), []);
        (5..=7).for_each(|n| batch.push(n));
        assert_eq!(batch.lose_oldest(), Some(5));
        assert_eq!(rest(&mut batch), [Err(1), Ok(6), Ok(7)]);
    }

    #[test]
    fn newest_are_missing_where_they_would_have_been() {
        let mut batch = Batch::new();
        batch.lose_newest();
        batch.push(1);
        batch.lose_newest();
        batch.lose_newest();
        batch.push(2);
        assert_eq!(rest(&mut batch), [Err(1), Ok(1), Err(2), Ok(2)]);
    }

    #[test]
    fn gaps_around_a_lost_item_become_one() {
        let mut batch = Batch::new();
        batch.lose_newest();
        batch.push(1);
        batch.lose_newest();
        batch.push(2);
        assert_eq!(batch.lose_oldest(), Some(1));
        assert_eq!(rest(&mut batch), [Err(3), Ok(2)]);
    }
}
