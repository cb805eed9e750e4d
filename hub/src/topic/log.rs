//! [`Log`]: items that are stored once, and positions of readers in them.
//!
//! Items are appended to `open`. When a reader takes what has come, or a reader joins, `open` is
//! sealed: it becomes a [`Segment`] behind an `Arc`, and each reader that takes it gets a clone of
//! that. A position is the number of items that were appended before it.
//!
//! The log does not know its readers. Each keeps its own position, its *cursor*, and names it when
//! it takes or leaves. The log counts how many cursors there are at the start of each segment.
//!
//! 1. A cursor is the start of a segment, or of `open`, or lies before all segments: its reader has
//!    lost items, and is *drowned*.
//! 2. `here` of all segments, `open_here` and `drowned` add up to `readers`.
//! 3. A segment is kept while a cursor is at its start or before, but no longer than it has one of
//!    the last `capacity` items. So at most `capacity` items and what is left of a segment are kept.
//! 4. Cursors below `given_up_below` are of readers that were given up: they have had their turn, and
//!    lose items. No other reader has more than `capacity` items before it.
//! 5. Cursors only move to the end, so the least cursor that is not given up never decreases. The
//!    search for it goes on where it ended, and costs a constant time for each segment in all.
//!
//! Everything takes constant time for each item that was appended, or is logarithmic in the number
//! of segments, whatever other readers do.
//!
//! Nothing of a user runs in here: no item is cloned or dropped. What is no longer needed goes to
//! the caller as [`Garbage`], to be dropped when the lock is released.

use std::collections::VecDeque;
use std::sync::Arc;

use super::segment::Segment;

/// Items that no reader needs from the log.
pub(super) type Garbage<T> = Vec<Arc<Segment<T>>>;

/// A segment has at most this many items. A segment costs two allocations, which so many items
/// share. More would keep more items for readers that need only the last ones.
const SEGMENT: usize = 256;

#[derive(Debug)]
pub(super) struct Log<T> {
    capacity: u64,
    /// The length at which `open` is sealed.
    segment: usize,
    sealed: VecDeque<Sealed<T>>,
    open: Vec<T>,
    open_start: u64,
    /// The number of cursors at the start of `open`.
    open_here: usize,
    readers: usize,
    drowned: usize,
    given_up_below: u64,
    /// How many segments have been removed from the front of `sealed`.
    removed: u64,
    /// Before the segment with this number, counted from the first that ever was, there is no
    /// cursor that is not given up.
    search_from: u64,
}

#[derive(Debug)]
struct Sealed<T> {
    segment: Arc<Segment<T>>,
    start: u64,
    /// The number of cursors at its start.
    here: usize,
}

impl<T> Sealed<T> {
    fn end(&self) -> u64 {
        self.start + self.segment.len() as u64
    }
}

impl<T> Log<T> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity as u64,
            // So that a quarter more than the capacity is kept at most.
            segment: (capacity / 4).clamp(1, SEGMENT),
            sealed: VecDeque::new(),
            open: Vec::new(),
            open_start: 0,
            open_here: 0,
            readers: 0,
            drowned: 0,
            given_up_below: 0,
            removed: 0,
            search_from: 0,
        }
    }

    pub(super) fn readers(&self) -> usize {
        self.readers
    }

    /// The position of the item that is appended next.
    pub(super) fn end(&self) -> u64 {
        self.open_start + self.open.len() as u64
    }

    /// How many items a reader has lost, of those from this cursor on.
    pub(super) fn lost_from(&self, cursor: u64) -> u64 {
        (self.end() - cursor).saturating_sub(self.capacity)
    }

    /// How many items can be appended before a reader loses one that is not given up, and the cursor
    /// of the slowest of these readers.
    pub(super) fn room(&mut self) -> (u64, u64) {
        let slowest = self.slowest();
        // A reader that was not waited for may have more before it.
        (self.capacity.saturating_sub(self.end() - slowest), slowest)
    }

    /// The least cursor that is not given up, or the end.
    fn slowest(&mut self) -> u64 {
        let first = usize::try_from(self.search_from.saturating_sub(self.removed));
        let mut index = first.expect("there are at most as many segments as a queue can have");
        while let Some(segment) = self.sealed.get(index) {
            if segment.here > 0 && segment.start >= self.given_up_below {
                break;
            }
            index += 1;
        }
        self.search_from = self.removed + index as u64;
        match self.sealed.get(index) {
            Some(segment) => segment.start,
            None if self.open_here > 0 => self.open_start,
            None => self.end(),
        }
    }

    /// Appends an item. Returns the number of readers that lose one by that: the slowest do if there
    /// is no room. Without readers, returns the item.
    pub(super) fn append(&mut self, item: T, garbage: &mut Garbage<T>) -> Result<usize, T> {
        if self.readers == 0 {
            return Err(item);
        }
        let (room, slowest) = self.room();
        if room == 0 {
            self.given_up_below = slowest + 1;
        }
        self.open.push(item);
        if self.open.len() >= self.segment {
            self.seal();
        }
        self.remove_lost(garbage);
        Ok(self.losing())
    }

    /// How many readers have lost the item that is `capacity` items before the last one.
    fn losing(&self) -> usize {
        let end = self.end();
        let first = self.sealed.front().filter(|first| end - first.start > self.capacity);
        self.drowned + first.map_or(0, |first| first.here)
    }

    /// Adds a reader. Returns its cursor.
    pub(super) fn join(&mut self) -> u64 {
        self.seal();
        self.readers += 1;
        self.open_here += 1;
        self.end()
    }

    /// Removes a reader.
    pub(super) fn leave(&mut self, cursor: u64, garbage: &mut Garbage<T>) {
        *self.count_at(cursor) -= 1;
        self.readers -= 1;
        if self.readers == 0 {
            self.seal();
        }
        self.remove_unneeded(garbage);
    }

    /// Takes everything from a cursor on, which moves to the end. Returns how many items are lost,
    /// and how many of the first segment come before those that are not.
    pub(super) fn take(
        &mut self,
        cursor: &mut u64,
        into: &mut VecDeque<Arc<Segment<T>>>,
        garbage: &mut Garbage<T>,
    ) -> Taking {
        let lost = self.lost_from(*cursor);
        let from = *cursor + lost;
        self.seal();
        *self.count_at(*cursor) -= 1;
        self.open_here += 1;
        *cursor = self.open_start;

        // Most readers need the last segment only.
        let mut first = self.sealed.len();
        while first > 0 && self.sealed[first - 1].end() > from {
            first -= 1;
        }
        let skip = self.sealed.get(first).map_or(0, |segment| from.saturating_sub(segment.start));
        match self.sealed.back() {
            Some(newest) if first + 1 == self.sealed.len() => {
                into.push_back(Arc::clone(&newest.segment));
            }
            _ => into.extend(self.sealed.range(first..).map(|sealed| Arc::clone(&sealed.segment))),
        }
        self.remove_unneeded(garbage);
        Taking { lost, skip: usize::try_from(skip).expect("a segment is shorter than that") }
    }

    /// Where the cursor is counted.
    fn count_at(&mut self, cursor: u64) -> &mut usize {
        if cursor >= self.open_start {
            return &mut self.open_here;
        }
        // Most cursors are at the last segment.
        let last = self.sealed.len().saturating_sub(1);
        let index = match self.sealed.get(last) {
            Some(segment) if segment.start <= cursor => last,
            _ => self.sealed.partition_point(|segment| segment.start < cursor),
        };
        match self.sealed.get_mut(index) {
            Some(segment) if segment.start == cursor => &mut segment.here,
            _ => &mut self.drowned,
        }
    }

    fn seal(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let end = self.end();
        // The next segment is likely to be as long.
        let room = Vec::with_capacity(self.open.len());
        let segment = Segment::new(std::mem::replace(&mut self.open, room));
        let here = std::mem::take(&mut self.open_here);
        self.sealed.push_back(Sealed { segment, start: self.open_start, here });
        self.open_start = end;
    }

    /// Removes the segments of which each item is lost to all that have not taken it.
    fn remove_lost(&mut self, garbage: &mut Garbage<T>) {
        let end = self.end();
        while let Some(first) = self.sealed.front() {
            if end - first.end() < self.capacity {
                return;
            }
            self.drowned += first.here;
            self.remove_first(garbage);
        }
    }

    /// Removes the segments that all readers have taken.
    fn remove_unneeded(&mut self, garbage: &mut Garbage<T>) {
        while self.drowned == 0 && self.sealed.front().is_some_and(|first| first.here == 0) {
            self.remove_first(garbage);
        }
    }

    fn remove_first(&mut self, garbage: &mut Garbage<T>) {
        garbage.extend(self.sealed.pop_front().map(|first| first.segment));
        self.removed += 1;
    }
}

/// What [`Log::take`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taking {
    pub(super) lost: u64,
    pub(super) skip: usize,
}

#[cfg(test)]
impl<T> Log<T> {
    /// Checks the invariants, given all cursors.
    pub(super) fn check(&mut self, cursors: &[u64]) {
        let count = |from: u64, to: u64| cursors.iter().filter(|c| (from..to).contains(*c)).count();
        assert_eq!(cursors.len(), self.readers);
        let first = self.sealed.front().map_or(self.open_start, |segment| segment.start);
        assert_eq!(count(0, first), self.drowned);
        let mut start = first;
        for segment in &self.sealed {
            assert_eq!(segment.start, start);
            start = segment.end();
            assert_eq!(count(segment.start, segment.start + 1), segment.here);
            assert_eq!(count(segment.start + 1, start), 0);
            assert!(self.end() - segment.end() < self.capacity);
        }
        assert_eq!((start, count(start, u64::MAX)), (self.open_start, self.open_here));
        assert_eq!(count(start + 1, u64::MAX), 0);
        assert!(self.open.len() < self.segment);
        if self.drowned == 0 {
            assert!(self.sealed.front().is_none_or(|segment| segment.here > 0));
        }
        let held = cursors.iter().copied().filter(|&cursor| cursor >= self.given_up_below);
        assert_eq!(held.min().unwrap_or(self.end()), self.slowest());
        assert!(self.end() - self.slowest() <= self.capacity);
    }

    /// How many items are kept.
    pub(super) fn kept(&self) -> usize {
        self.open.len() + self.sealed.iter().map(|sealed| sealed.segment.len()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use model::dice::Dice;

    use super::*;

    /// The item at a position is the position, so a reader knows what it must get.
    fn take(log: &mut Log<u64>, cursor: &mut u64, capacity: u64) {
        let (before, end) = (*cursor, log.end());
        let lost = (end - before).saturating_sub(capacity);
        let (mut segments, mut garbage) = (VecDeque::new(), Vec::new());
        let taking = log.take(cursor, &mut segments, &mut garbage);
        assert_eq!((taking.lost, *cursor), (lost, end));
        let items = segments.iter().flat_map(|segment| segment.to_items()).skip(taking.skip);
        assert!(items.eq(before + lost..end));
        assert!(segments.front().is_none_or(|first| taking.skip < first.len()));
    }

    #[test]
    fn random_programs_agree_with_the_model() {
        for seed in 1..5_000 {
            let mut dice = Dice::new(seed);
            let capacity = match dice.below(4) {
                0 => 1 + dice.below(3),
                1 => 1 + dice.below(40),
                _ => 1 + dice.below(16),
            };
            let capacity_size = usize::try_from(capacity).expect("it is small");
            let mut log = Log::new(capacity_size);
            let mut cursors = Vec::new();
            let mut garbage = Vec::new();
            // Some programs have many readers, some hardly ever take.
            let (joins, takes) = (dice.below(4), dice.below(8));
            for _ in 0..200 {
                match dice.below(12 + joins + takes) {
                    0 if !cursors.is_empty() => {
                        let gone = cursors.swap_remove(dice.index(cursors.len()));
                        log.leave(gone, &mut garbage);
                    }
                    1 if dice.below(4) == 0 => {
                        for gone in cursors.drain(..) {
                            log.leave(gone, &mut garbage);
                        }
                    }
                    n if n > 12 + takes => cursors.push(log.join()),
                    n if n > 12 && !cursors.is_empty() => {
                        let index = dice.index(cursors.len());
                        take(&mut log, &mut cursors[index], capacity);
                    }
                    _ => {
                        let end = log.end();
                        let appended = log.append(end, &mut garbage);
                        let losing = cursors.iter().filter(|&&c| end + 1 - c > capacity).count();
                        let expected = if cursors.is_empty() { Err(end) } else { Ok(losing) };
                        assert_eq!(appended, expected, "seed {seed}");
                    }
                }
                garbage.clear();
                log.check(&cursors);
                assert!(log.kept() <= capacity_size + (capacity_size / 4).max(1), "seed {seed}");
                if cursors.is_empty() {
                    assert_eq!(log.kept(), 0);
                }
            }
            for cursor in &mut cursors {
                take(&mut log, cursor, capacity);
            }
            assert_eq!(log.kept(), 0, "all have taken everything");
        }
    }

    /// Each of many readers has its own place, and the search for the slowest passes over each
    /// segment once.
    #[test]
    fn readers_that_leave_cost_the_others_nothing() {
        let mut log = Log::new(1_000);
        let mut garbage = Vec::new();
        let mut cursors = VecDeque::new();
        for n in 0..100_000_u64 {
            cursors.push_back(log.join());
            assert_eq!(log.append(n, &mut garbage), Ok(0));
            if cursors.len() == 999 {
                // The slowest leaves.
                log.leave(cursors.pop_front().expect("there are 999"), &mut garbage);
            }
            garbage.clear();
        }
        let searched = log.search_from;
        assert_eq!(log.room(), (2, log.end() - 998));
        assert!(log.search_from >= searched && log.kept() == 998);
    }
}
