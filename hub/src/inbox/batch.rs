//! [`Batch`]: items, and how many are missing where.

use std::collections::VecDeque;

use super::Lagged;

/// A queue of items that remembers at which positions items are missing.
///
/// Positions count from the first item that was ever pushed, so they stay valid when items are taken.
/// Losses at one position are one gap. At most one gap lies between two items, so there is at most one
/// gap more than there are items.
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

    /// Takes these items as a whole, if there is nothing else. Otherwise returns `false`.
    pub(super) fn fill(&mut self, items: &mut Vec<T>) -> bool {
        let is_empty = self.is_empty();
        if is_empty {
            // Neither conversion copies anything.
            let room = std::mem::take(&mut self.items);
            self.items = std::mem::replace(items, room.into()).into();
        }
        is_empty
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

    /// Takes the next item, or what is missing before it.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Result<T, Lagged>> {
        if let Some(Gap { lost, .. }) = self.gap_up_to(self.first) {
            return Some(Err(Lagged(lost)));
        }
        let item = self.items.pop_front()?;
        self.first += 1;
        Some(Ok(item))
    }

    /// The position of the item that is pushed next.
    fn end(&self) -> u64 {
        self.first + self.items.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(mut batch: Batch<u32>) -> Vec<Result<u32, u64>> {
        let all = std::iter::from_fn(|| batch.next()).map(|next| next.map_err(|Lagged(lost)| lost));
        all.collect()
    }

    #[test]
    fn oldest_are_missing_in_front() {
        let mut batch = Batch::new();
        (1..=4).for_each(|n| batch.push(n));
        assert_eq!(batch.next(), Some(Ok(1)));
        assert_eq!((batch.lose_oldest(), batch.lose_oldest()), (Some(2), Some(3)));
        assert_eq!(rest(batch), [Err(2), Ok(4)]);
    }

    #[test]
    fn newest_are_missing_where_they_would_have_been() {
        let mut batch = Batch::new();
        batch.lose_newest();
        batch.push(1);
        batch.lose_newest();
        batch.lose_newest();
        batch.push(2);
        assert_eq!(rest(batch), [Err(1), Ok(1), Err(2), Ok(2)]);
    }

    #[test]
    fn gaps_around_a_lost_item_become_one() {
        let mut batch = Batch::new();
        batch.lose_newest();
        batch.push(1);
        batch.lose_newest();
        batch.push(2);
        assert_eq!(batch.lose_oldest(), Some(1));
        assert_eq!(rest(batch), [Err(3), Ok(2)]);
    }
}
