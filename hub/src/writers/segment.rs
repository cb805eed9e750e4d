//! [`Segment`]: encoded items that are stored together; and [`Piece`], the part of one that a writer
//! is about to write.

use std::ops::Range;
use std::sync::Arc;

/// Items, one after the other. It is filled by the sink, and does not change when it is in the log.
#[derive(Debug, Default)]
pub(super) struct Segment {
    bytes: Vec<u8>,
    /// Where each item ends.
    ends: Vec<usize>,
    /// In place of one item, which was too large to be stored.
    is_refused: bool,
}

impl Segment {
    /// Creates an empty segment with room for this many bytes and items.
    pub(super) fn with_capacity(bytes: usize, items: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
            ends: Vec::with_capacity(items),
            is_refused: false,
        }
    }

    /// Creates the segment that stands for an item that is not stored.
    pub(super) fn refused() -> Self {
        Self { bytes: Vec::new(), ends: vec![0], is_refused: true }
    }

    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// The number of items.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The number of bytes of all items.
    pub(super) fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Appends an item.
    pub(super) fn push(&mut self, item: &[u8]) {
        self.bytes.extend_from_slice(item);
        self.ends.push(self.bytes.len());
    }

    /// Makes an item the first one, without copying it.
    pub(super) fn set_first(&mut self, item: Vec<u8>) {
        debug_assert!(self.is_empty());
        self.bytes = item;
        self.ends.push(self.bytes.len());
    }

    /// Where an item begins. Behind the last one, where that ends.
    pub(super) fn begin(&self, item: usize) -> usize {
        match item.checked_sub(1) {
            Some(previous) => self.ends[previous],
            None => 0,
        }
    }

    /// How many items begin before this many bytes.
    pub(super) fn items_that_begin_before(&self, bytes: usize) -> usize {
        if bytes == 0 {
            return 0;
        }
        let later = self.ends.partition_point(|&end| end < bytes);
        (later + 1).min(self.len())
    }

    /// Gives back room that is not used: a writer may keep a segment for a long time.
    pub(super) fn shrink(&mut self) {
        if self.bytes.capacity() > self.bytes.len() / 4 * 5 {
            self.bytes.shrink_to_fit();
        }
        if self.ends.capacity() > self.ends.len() / 4 * 5 {
            self.ends.shrink_to_fit();
        }
    }
}

/// Some bytes of a segment.
#[derive(Debug)]
pub(super) struct Piece {
    segment: Arc<Segment>,
    /// The position of the first item of the segment.
    start: u64,
    /// The items of which these are the bytes. The first may have begun before.
    items: Range<usize>,
    bytes: Range<usize>,
}

impl Piece {
    /// Whole items of a segment, which starts at this position.
    pub(super) fn new(segment: &Arc<Segment>, start: u64, items: Range<usize>) -> Self {
        let bytes = segment.begin(items.start)..segment.begin(items.end);
        Self { segment: Arc::clone(segment), start, items, bytes }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.segment.bytes[self.bytes.clone()]
    }

    /// The position behind the last item.
    pub(super) fn end(&self) -> u64 {
        self.start + self.items.end as u64
    }

    /// The number of items that are not written.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Goes on behind the first bytes, which have been written.
    pub(super) fn skip(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.bytes.len());
        self.bytes.start += bytes;
    }

    /// Returns how far whole items are written if the first bytes are, but not all. The piece begins
    /// between two items.
    pub(super) fn split(mut self, bytes: usize) -> Partial {
        debug_assert!(bytes < self.bytes.len());
        let from = self.bytes.start + bytes;
        let ends = &self.segment.ends[self.items.clone()];
        let complete = ends.partition_point(|&end| end <= from);
        let item = self.items.start + complete;
        let position = self.start + item as u64;
        let is_between = bytes == 0 || complete > 0 && self.segment.begin(item) == from;
        if is_between {
            return Partial { complete, position, rest: None };
        }
        self.items = item..item + 1;
        self.bytes = from..self.segment.ends[item];
        Partial { complete, position: position + 1, rest: Some(self) }
    }
}

/// What [`Piece::split`] returns.
#[derive(Debug)]
pub(super) struct Partial {
    /// How many items are completely written.
    pub(super) complete: usize,
    /// The position behind the last item of which bytes were written.
    pub(super) position: u64,
    /// What is left of that item.
    pub(super) rest: Option<Piece>,
}
