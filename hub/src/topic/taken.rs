//! [`Taken`]: what a reader has taken from the log and not yet returned.

use std::collections::VecDeque;
use std::sync::Arc;
use std::vec;

use super::log::Taking;
use super::segment::{CloneSome, Segment};
use crate::read::Lagged;

/// A queue of segments keeps room for this many. A reader that keeps up takes one or two.
const SEGMENTS_KEPT: usize = 8;

#[derive(Debug)]
pub(crate) struct Taken<T> {
    /// How many items are missing before the others.
    lost: u64,
    /// Clones of items of the current segment. The next item comes last.
    clones: Vec<T>,
    current: Current<T>,
    segments: VecDeque<Arc<Segment<T>>>,
    /// How many items of the next segment were lost.
    skip: usize,
    /// How many items are left.
    len: usize,
}

#[derive(Debug)]
enum Current<T> {
    Nothing,
    /// No other reader can still get these, so they are not cloned.
    Owned(vec::IntoIter<T>),
    /// Other readers may, from this index on.
    Shared(Arc<Segment<T>>, usize),
}

impl<T> Taken<T> {
    pub(super) fn new() -> Self {
        Self {
            lost: 0,
            clones: Vec::new(),
            current: Current::Nothing,
            segments: VecDeque::new(),
            skip: 0,
            len: 0,
        }
    }

    /// How many items are left.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if there is neither an item nor a loss to tell.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0 && self.lost == 0
    }

    /// Where the log puts the segments that are taken, if there is nothing else.
    pub(super) fn segments(&mut self) -> &mut VecDeque<Arc<Segment<T>>> {
        debug_assert!(self.is_empty());
        &mut self.segments
    }

    /// The log has put the segments in.
    pub(super) fn set(&mut self, taking: Taking) {
        self.lost = taking.lost;
        self.skip = taking.skip;
        let all = self.segments.iter().map(|segment| segment.len()).sum::<usize>();
        self.len = all - taking.skip;
    }

    /// Lets go of what was returned: other readers may own it then.
    pub(super) fn release(&mut self) {
        debug_assert!(self.is_empty());
        self.current = Current::Nothing;
        if self.segments.capacity() > SEGMENTS_KEPT {
            self.segments = VecDeque::new();
        }
    }

    /// Returns the next item, or what is missing before it.
    #[inline]
    pub(crate) fn next(&mut self, clone: CloneSome<T>) -> Option<Result<T, Lagged>> {
        let Some(item) = self.clones.pop() else { return self.next_uncloned(clone) };
        self.len -= 1;
        Some(Ok(item))
    }

    /// The same if no clone is left.
    #[inline(never)]
    fn next_uncloned(&mut self, clone: CloneSome<T>) -> Option<Result<T, Lagged>> {
        if self.lost > 0 {
            return Some(Err(Lagged(std::mem::take(&mut self.lost))));
        }
        loop {
            self.drop_lost();
            let item = match &mut self.current {
                Current::Nothing => None,
                Current::Owned(items) => items.next(),
                Current::Shared(segment, index) => {
                    // If `clone` panics, the item is the next one still.
                    segment.clone_some(*index, clone, &mut self.clones);
                    *index += self.clones.len();
                    self.clones.reverse();
                    self.clones.pop()
                }
            };
            if let Some(item) = item {
                self.len -= 1;
                return Some(Ok(item));
            }
            let next = self.segments.pop_front()?;
            self.begin_segment(next);
        }
    }

    /// Goes on to a segment, behind the items that were lost.
    fn begin_segment(&mut self, segment: Arc<Segment<T>>) {
        match Arc::try_unwrap(segment) {
            Ok(segment) => self.current = Current::Owned(segment.into_items().into_iter()),
            Err(segment) => {
                self.current = Current::Shared(segment, std::mem::take(&mut self.skip));
            }
        }
    }

    /// Drops the items of the current segment that were lost. If a drop panics, the next call goes
    /// on behind that item.
    fn drop_lost(&mut self) {
        while self.skip > 0 {
            let Current::Owned(items) = &mut self.current else { return };
            self.skip -= 1;
            drop(items.next());
        }
    }
}
