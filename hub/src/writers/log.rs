//! [`Log`]: encoded items that are stored once, and positions of writers in them.
//!
//! The sink appends whole [`Segment`]s. A position is the number of items that were appended before
//! it. The log does not know its writers: each keeps its own position, in a [`Cursor`], and names it
//! in each call. The log counts how many cursors there are in each segment.
//!
//! 1. A cursor is in the segment that has the item at its position; or at the end; or it lies before
//!    all segments, and is *drowned*: its writer will lose items.
//! 2. The cursors of all segments, `at_end` and `drowned` add up to `writers`.
//! 3. A segment is kept while a cursor is in it or before it, but no longer than it has an item from
//!    `floor` on. So what is kept is what the limits allow, and what is left of one segment.
//! 4. `floor` is the least position from which on the items are within the limits. Without loss, it
//!    stays 0.
//! 5. The sink waits only for cursors that are *awaited*. One that is not belongs to a writer whose
//!    I/O object takes no more bytes, or that has had its turn. It is awaited again when the writer
//!    has written everything.
//! 6. Cursors below `given_up_below` have had their turn. They are counted as awaited until they
//!    move, and so are drowned ones, but the sink does not wait for them.
//! 7. Cursors only move to the end, and become awaited only there. So the first segment with a cursor
//!    that the sink waits for never lies before the one that was found last, and the search for it
//!    costs a constant time for each segment in all.
//!
//! Everything takes constant time for each segment that was appended, or is logarithmic in the number
//! of segments, whatever other writers do.

use std::collections::VecDeque;
use std::sync::Arc;

use stream_demux::Overflow;

use super::segment::{Piece, Segment};

/// Segments that no writer needs from the log. They are freed after the lock is released.
pub(super) type Garbage = Vec<Arc<Segment>>;

/// A writer looks at this many segments at once, and writes them with one call. Linux takes up to
/// 1,024 pieces in a call. So many are a megabyte if segments are full; if each has one short item,
/// the call costs little for each of them.
pub(super) const PIECES: usize = 64;

/// How much the log may keep for the slowest writer, and what happens then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(super) items: u64,
    pub(super) bytes: u64,
    full: Overflow,
}

impl Limits {
    /// # Panics
    ///
    /// Panics if writers that share items cannot have this policy.
    #[track_caller]
    pub(crate) fn new(items: usize, bytes: u64, full: Overflow) -> Self {
        let items = match full {
            Overflow::DropOldest | Overflow::Evict | Overflow::Wait => items.max(1),
            Overflow::Conflate => 1,
            _ => panic!("writers that share their items cannot have the policy {full:?}"),
        };
        Self { items: items as u64, bytes, full }
    }

    /// The sink waits for all writers, so none ever loses what was appended.
    pub(super) fn is_lossless(&self) -> bool {
        self.full == Overflow::Wait
    }

    /// A writer that has lost items ends.
    pub(super) fn evicts(&self) -> bool {
        self.full == Overflow::Evict
    }

    /// Items are meant to be lost, also by writers that could write them.
    pub(super) fn conflates(&self) -> bool {
        self.full == Overflow::Conflate
    }
}

/// The place of a writer.
#[derive(Debug)]
pub(super) struct Cursor {
    /// Where it goes on.
    position: u64,
    is_awaited: bool,
}

impl Cursor {
    pub(super) fn position(&self) -> u64 {
        self.position
    }
}

#[derive(Debug)]
pub(super) struct Log {
    limits: Limits,
    segments: VecDeque<Entry>,
    /// The position of the item that is appended next.
    end: u64,
    /// The number of bytes that were ever appended.
    bytes: u64,
    floor: u64,
    writers: usize,
    at_end: Count,
    drowned: Count,
    given_up_below: u64,
    /// How many segments have been removed from the front.
    removed: u64,
    /// Before the segment with this number, counted from the first that ever was, the sink waits for
    /// no cursor.
    search_from: u64,
}

#[derive(Debug)]
struct Entry {
    segment: Arc<Segment>,
    /// The position of its first item, and how many bytes come before.
    start: u64,
    bytes_before: u64,
    cursors: Count,
}

impl Entry {
    fn end(&self) -> u64 {
        self.start + self.segment.len() as u64
    }

    /// The number of bytes that come before its end.
    fn bytes_to_end(&self) -> u64 {
        self.bytes_before + self.segment.size() as u64
    }

    /// The index of the item at a position.
    fn index(&self, position: u64) -> usize {
        let index = usize::try_from(position - self.start).expect("the item is in memory");
        debug_assert!(index <= self.segment.len());
        index
    }
}

/// How many cursors are in a place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Count {
    all: usize,
    awaited: usize,
}

impl Count {
    fn add(&mut self, cursor: &Cursor) {
        self.all += 1;
        self.awaited += usize::from(cursor.is_awaited);
    }

    fn remove(&mut self, cursor: &Cursor) {
        self.all -= 1;
        self.awaited -= usize::from(cursor.is_awaited);
    }
}

/// How much can be appended before a writer that is awaited loses something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) items: u64,
    pub(super) bytes: u64,
    /// Where the slowest of these writers is. A cursor counts as at the start of its segment.
    pub(super) slowest: u64,
}

impl Room {
    pub(super) const NONE: Self = Self { items: 0, bytes: 0, slowest: 0 };

    pub(super) fn is_empty(&self) -> bool {
        self.items == 0 || self.bytes == 0
    }
}

/// What a writer finds out when it looks for items.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Missing {
    /// Items that it lost because it was too slow.
    pub(super) lagged: u64,
    /// Items that were not stored.
    pub(super) refused: u64,
}

impl Log {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            segments: VecDeque::new(),
            end: 0,
            bytes: 0,
            floor: 0,
            writers: 0,
            at_end: Count::default(),
            drowned: Count::default(),
            given_up_below: 0,
            removed: 0,
            search_from: 0,
        }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns `true` if a writer at this cursor has lost items.
    pub(super) fn is_behind(&self, cursor: &Cursor) -> bool {
        cursor.position < self.floor
    }

    /// The position from which on the items are within the limits.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// Changes the limits. Nothing was appended yet.
    pub(super) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    pub(super) fn writers(&self) -> usize {
        self.writers
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// How much can be appended before an awaited writer loses something.
    pub(super) fn room(&mut self) -> Room {
        let index = self.find_slowest();
        let (slowest, bytes_before) = match self.segments.get(index) {
            Some(entry) => (entry.start, entry.bytes_before),
            None => (self.end, self.bytes),
        };
        // One item may have gone beyond the limit of bytes.
        Room {
            items: self.limits.items.saturating_sub(self.end - slowest),
            bytes: self.limits.bytes.saturating_sub(self.bytes - bytes_before),
            slowest,
        }
    }

    /// Finds the first segment with a cursor that the sink waits for.
    fn find_slowest(&mut self) -> usize {
        let first = usize::try_from(self.search_from.saturating_sub(self.removed));
        let mut index = first.expect("there are at most as many segments as a queue can have");
        while let Some(entry) = self.segments.get(index) {
            if entry.cursors.awaited > 0 && entry.start >= self.given_up_below {
                break;
            }
            index += 1;
        }
        self.search_from = self.removed + index as u64;
        index
    }

    /// The sink waits no longer for the slowest writers.
    pub(super) fn give_up_slowest(&mut self) {
        debug_assert!(!self.limits.is_lossless());
        let index = self.find_slowest();
        if let Some(entry) = self.segments.get(index) {
            self.given_up_below = entry.end();
        }
    }

    /// Appends a segment. Without writers, nothing is kept.
    pub(super) fn append(&mut self, segment: Segment, garbage: &mut Garbage) {
        let start = self.end;
        let bytes_before = self.bytes;
        self.end += segment.len() as u64;
        self.bytes += segment.size() as u64;
        let segment = Arc::new(segment);
        if self.writers == 0 {
            garbage.push(segment);
            return;
        }
        let cursors = std::mem::take(&mut self.at_end);
        self.segments.push_back(Entry { segment, start, bytes_before, cursors });
        if !self.limits.is_lossless() {
            self.raise_floor();
            self.remove_lost(garbage);
        }
    }

    fn raise_floor(&mut self) {
        let first_bytes = self.segments.front().map_or(self.bytes, |first| first.bytes_before);
        self.floor = self.floor.max(self.end.saturating_sub(self.limits.items));
        if self.bytes - first_bytes <= self.limits.bytes {
            return;
        }
        // The first item that has no more than `limits.bytes` from its begin on.
        let least = self.bytes - self.limits.bytes;
        let index = self.segments.partition_point(|entry| entry.bytes_to_end() < least);
        let Some(entry) = self.segments.get(index) else { return };
        let within = usize::try_from(least.saturating_sub(entry.bytes_before));
        let within = within.expect("the bytes are in memory");
        let position = entry.start + entry.segment.items_that_begin_before(within) as u64;
        self.floor = self.floor.max(position);
    }

    /// Removes the segments of which each item is lost to all that have not taken it.
    fn remove_lost(&mut self, garbage: &mut Garbage) {
        while let Some(first) = self.segments.front() {
            if first.end() > self.floor {
                return;
            }
            self.drowned.all += first.cursors.all;
            self.drowned.awaited += first.cursors.awaited;
            self.remove_first(garbage);
        }
    }

    /// Removes the segments that all writers have passed.
    fn remove_unneeded(&mut self, garbage: &mut Garbage) {
        while self.drowned.all == 0 && self.segments.front().is_some_and(|e| e.cursors.all == 0) {
            self.remove_first(garbage);
        }
    }

    fn remove_first(&mut self, garbage: &mut Garbage) {
        garbage.extend(self.segments.pop_front().map(|first| first.segment));
        self.removed += 1;
    }

    /// Adds a writer, which begins with what is appended next.
    pub(super) fn join(&mut self) -> Cursor {
        let cursor = Cursor { position: self.end, is_awaited: true };
        self.writers += 1;
        self.at_end.add(&cursor);
        cursor
    }

    /// Removes a writer.
    pub(super) fn leave(&mut self, cursor: &Cursor, garbage: &mut Garbage) {
        self.count_at(cursor.position).remove(cursor);
        self.writers -= 1;
        self.remove_unneeded(garbage);
    }

    /// A writer has taken all items before a position.
    pub(super) fn advance(&mut self, cursor: &mut Cursor, to: u64, garbage: &mut Garbage) {
        if to > cursor.position {
            self.move_cursor(cursor, to);
            self.remove_unneeded(garbage);
        }
    }

    fn move_cursor(&mut self, cursor: &mut Cursor, to: u64) {
        debug_assert!(cursor.position < to && to <= self.end);
        let first = self.segments.front().map_or(self.end, |entry| entry.start);
        self.count_at(cursor.position).remove(cursor);
        if cursor.position < self.given_up_below.max(first) {
            cursor.is_awaited = false;
        }
        cursor.position = to;
        self.count_at(to).add(cursor);
    }

    /// The sink does not wait for this writer, unless it waits for all.
    pub(super) fn stop_waiting_for(&mut self, cursor: &mut Cursor) {
        if cursor.is_awaited && !self.limits.is_lossless() {
            self.count_at(cursor.position).awaited -= 1;
            cursor.is_awaited = false;
        }
    }

    /// The writer has written everything, and will be waited for.
    pub(super) fn wait_for(&mut self, cursor: &mut Cursor) {
        debug_assert_eq!(cursor.position, self.end);
        if !cursor.is_awaited {
            self.at_end.awaited += 1;
            cursor.is_awaited = true;
        }
    }

    /// Appends the items from a cursor on to `pieces`, which is empty, up to the position `until` or
    /// to the next gap. The cursor passes over what is missing before the first of them.
    pub(super) fn look(
        &mut self,
        cursor: &mut Cursor,
        until: u64,
        pieces: &mut Vec<Piece>,
        garbage: &mut Garbage,
    ) -> Missing {
        let mut position = cursor.position.max(self.floor.min(until));
        let lagged = position - cursor.position;
        let mut index = self.segments.partition_point(|entry| entry.end() <= position);
        let mut refused = 0;
        while position < until && self.segments.get(index).is_some_and(|e| e.segment.is_refused()) {
            position += 1;
            refused += 1;
            index += 1;
        }
        for entry in self.segments.range(index..).take(PIECES) {
            if entry.segment.is_refused() || position >= until || entry.start >= until {
                break;
            }
            let first = entry.index(position.max(entry.start));
            let last = entry.index(until.min(entry.end()));
            pieces.push(Piece::new(&entry.segment, entry.start, first..last));
        }
        self.advance(cursor, position, garbage);
        Missing { lagged, refused }
    }

    /// Where a cursor is counted.
    fn count_at(&mut self, position: u64) -> &mut Count {
        if position == self.end {
            return &mut self.at_end;
        }
        let index = self.segments.partition_point(|entry| entry.end() <= position);
        match self.segments.get_mut(index) {
            Some(entry) if entry.start <= position => &mut entry.cursors,
            _ => &mut self.drowned,
        }
    }
}

#[cfg(test)]
impl Log {
    /// Checks the invariants, given all cursors.
    fn check(&mut self, cursors: &[Cursor]) {
        let count = |from: u64, to: u64| {
            let mut count = Count::default();
            cursors.iter().filter(|c| (from..to).contains(&c.position)).for_each(|c| count.add(c));
            count
        };
        assert_eq!(cursors.len(), self.writers);
        let first = self.segments.front().map_or(self.end, |entry| entry.start);
        assert_eq!(count(0, first), self.drowned);
        let mut start = first;
        for entry in &self.segments {
            assert_eq!(entry.start, start);
            start = entry.end();
            assert_eq!(count(entry.start, start), entry.cursors);
            assert!(self.limits.is_lossless() || entry.end() > self.floor);
        }
        assert_eq!(start, self.end);
        assert_eq!(count(self.end, u64::MAX), self.at_end);
        if self.drowned.all == 0 {
            assert!(self.segments.front().is_none_or(|entry| entry.cursors.all > 0));
        }
        let is_awaited = |e: &&Entry| e.cursors.awaited > 0 && e.start >= self.given_up_below;
        let slowest = self.segments.iter().find(is_awaited).map_or(self.end, |e| e.start);
        assert_eq!(self.room().slowest, slowest);
    }

    /// The number of items and bytes that are kept.
    fn kept(&self) -> (u64, u64) {
        let items = self.segments.iter().map(|entry| entry.segment.len() as u64).sum();
        let bytes = self.segments.iter().map(|entry| entry.segment.size() as u64).sum();
        (items, bytes)
    }
}

#[cfg(test)]
mod tests {
    use model::dice::Dice;

    use super::*;

    /// The bytes of the item at a position.
    fn bytes(position: u64, size: u64) -> impl Iterator<Item = u8> {
        (0..size).map(move |n| (position * 31 + n).to_le_bytes()[0])
    }

    /// A log with its writers, and what was appended to it.
    struct World {
        seed: u64,
        limits: Limits,
        log: Log,
        cursors: Vec<Cursor>,
        /// The sizes of all items. `None`: it was refused.
        sizes: Vec<Option<u64>>,
        largest_segment: (u64, u64),
        garbage: Garbage,
    }

    impl World {
        fn new(seed: u64, dice: &mut Dice) -> Self {
            let items = match dice.below(3) {
                0 => 1 + dice.index(3),
                1 => 1 + dice.index(40),
                _ => 1 + dice.index(12),
            };
            let bytes = if dice.below(3) == 0 { 1_000_000 } else { 1 + dice.below(200) };
            let full = if dice.below(4) == 0 { Overflow::Wait } else { Overflow::DropOldest };
            let limits = Limits::new(items, bytes, full);
            let log = Log::new(limits);
            let (cursors, sizes, garbage) = (Vec::new(), Vec::new(), Vec::new());
            Self { seed, limits, log, cursors, sizes, largest_segment: (1, 0), garbage }
        }

        fn end(&self) -> u64 {
            self.sizes.len() as u64
        }

        /// The first item that is within the limits.
        fn floor(&self) -> u64 {
            if self.limits.is_lossless() {
                return 0;
            }
            let (mut items, mut bytes) = (0, 0);
            for size in self.sizes.iter().rev() {
                items += 1;
                bytes += size.unwrap_or(0);
                if items > self.limits.items || bytes > self.limits.bytes {
                    return self.end() + 1 - items;
                }
            }
            0
        }

        fn append(&mut self, dice: &mut Dice) {
            let mut segment = Segment::default();
            if dice.below(10) == 0 {
                segment = Segment::refused();
                self.sizes.push(None);
            }
            while segment.is_empty() || dice.below(3) > 0 && !segment.is_refused() {
                let size = if dice.below(4) == 0 { 0 } else { dice.below(30) };
                let size = size.min(self.limits.bytes);
                segment.push(&bytes(self.end(), size).collect::<Vec<_>>());
                self.sizes.push(Some(size));
            }
            let (items, bytes) = &mut self.largest_segment;
            *items = (*items).max(segment.len() as u64);
            *bytes = (*bytes).max(segment.size() as u64);
            self.log.append(segment, &mut self.garbage);
            assert_eq!(self.log.end(), self.end());
        }

        /// One of the writers looks, and takes a part of what it finds.
        fn look(&mut self, dice: &mut Dice) {
            let (seed, floor, end) = (self.seed, self.floor(), self.end());
            let until =
                if dice.below(4) == 0 { end - dice.below(end.min(5) + 1) } else { u64::MAX };
            let index = dice.index(self.cursors.len());
            let cursor = &mut self.cursors[index];
            let before = cursor.position;
            if before > until {
                return;
            }
            let size = |position| self.sizes[usize::try_from(position).unwrap()];
            let lagged = floor.min(until).saturating_sub(before);
            let mut position = before + lagged;
            while position < end.min(until) && size(position).is_none() {
                position += 1;
            }
            let mut pieces = Vec::new();
            let missing = self.log.look(cursor, until, &mut pieces, &mut self.garbage);
            let refused = position - before - lagged;
            assert_eq!(missing, Missing { lagged, refused }, "seed {seed}");
            assert_eq!(cursor.position, position, "seed {seed}");
            let mut ends = vec![position];
            for piece in &pieces {
                let mut expected = Vec::new();
                while position < piece.end() {
                    expected.extend(bytes(position, size(position).expect("it was not refused")));
                    position += 1;
                    ends.push(position);
                }
                assert_eq!(piece.bytes(), expected, "seed {seed}");
            }
            let is_gap = position == end.min(until) || size(position).is_none();
            assert!(is_gap || pieces.len() == PIECES, "seed {seed}: it ends at {position}");
            let taken = ends[dice.index(ends.len())];
            self.log.advance(cursor, taken, &mut self.garbage);
            if taken == end {
                self.log.wait_for(cursor);
            } else if dice.below(3) == 0 {
                self.log.stop_waiting_for(cursor);
            }
        }

        fn check(&mut self) {
            self.garbage.clear();
            self.log.check(&self.cursors);
            let (items, bytes) = self.log.kept();
            if !self.limits.is_lossless() {
                let (most_items, most_bytes) = self.largest_segment;
                assert!(items < self.limits.items + most_items, "seed {}", self.seed);
                assert!(bytes <= self.limits.bytes + most_bytes, "seed {}", self.seed);
            }
            if self.cursors.is_empty() {
                assert_eq!(items, 0, "seed {}", self.seed);
            }
        }
    }

    #[test]
    fn random_programs_agree_with_the_model() {
        for seed in 1..1_000 {
            let mut dice = Dice::new(seed);
            let mut world = World::new(seed, &mut dice);
            let looks = dice.below(8);
            for _ in 0..100 {
                match dice.below(8 + looks) {
                    0 if !world.cursors.is_empty() => {
                        let gone = dice.index(world.cursors.len());
                        let gone = world.cursors.swap_remove(gone);
                        world.log.leave(&gone, &mut world.garbage);
                    }
                    1 | 2 => world.cursors.push(world.log.join()),
                    3 if world.log.room().is_empty() && !world.limits.is_lossless() => {
                        world.log.give_up_slowest();
                    }
                    n if n >= 8 && !world.cursors.is_empty() => world.look(&mut dice),
                    _ => world.append(&mut dice),
                }
                world.check();
            }
        }
    }

    #[test]
    fn slowest_writer_is_found_without_looking_at_segments_again() {
        let mut log = Log::new(Limits::new(1_000, u64::MAX, Overflow::DropOldest));
        let mut garbage = Vec::new();
        let mut cursors = VecDeque::new();
        for _ in 0..100_000 {
            cursors.push_back(log.join());
            let mut segment = Segment::default();
            segment.push(b"item");
            log.append(segment, &mut garbage);
            if cursors.len() == 999 {
                let slowest = cursors.pop_front().expect("there are 999");
                log.leave(&slowest, &mut garbage);
            }
            garbage.clear();
        }
        let searched = log.search_from;
        assert_eq!(log.room().slowest, log.end() - 998);
        assert!(log.search_from >= searched && log.kept().0 == 998);
    }
}
