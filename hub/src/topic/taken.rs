//! [`Taken`]: what a reader has taken from the log and not yet returned.

use std::collections::VecDeque;
use std::sync::Arc;
use std::vec;

use super::log::{Items, Taking};
use crate::inbox::Lagged;

/// A queue of segments keeps room for this many. A reader that keeps up takes one or two.
const SEGMENTS_KEPT: usize = 8;

#[derive(Debug)]
pub(super) struct Taken<T> {
    /// How many items are missing before the others.
    lost: u64,
    current: Current<T>,
    segments: VecDeque<Items<T>>,
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
    Shared(Items<T>, usize),
}

impl<T> Taken<T> {
    pub(super) fn new() -> Self {
        Self { lost: 0, current: Current::Nothing, segments: VecDeque::new(), skip: 0, len: 0 }
    }

    /// How many items are left.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if there is neither an item nor a loss to tell.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0 && self.lost == 0
    }

    /// Where the log puts the segments that are taken, if there is nothing else.
    pub(super) fn segments(&mut self) -> &mut VecDeque<Items<T>> {
        debug_assert!(self.is_empty());
        &mut self.segments
    }

    /// The log has put the segments in.
    pub(super) fn set(&mut self, taking: Taking) {
        self.lost = taking.lost;
        self.skip = taking.skip;
        let all = self.segments.iter().map(|items| items.len()).sum::<usize>();
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

    /// Goes on to a segment, behind the items that were lost.
    fn begin_segment(&mut self, items: Items<T>) {
        match Arc::try_unwrap(items) {
            Ok(items) => self.current = Current::Owned(items.into_iter()),
            Err(items) => {
                self.current = Current::Shared(items, std::mem::take(&mut self.skip));
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

impl<T: Clone> Taken<T> {
    /// Returns the next item, or what is missing before it.
    pub(super) fn next(&mut self) -> Option<Result<T, Lagged>> {
        if self.lost > 0 {
            return Some(Err(Lagged(std::mem::take(&mut self.lost))));
        }
        loop {
            self.drop_lost();
            let item = match &mut self.current {
                Current::Nothing => None,
                Current::Owned(items) => items.next(),
                Current::Shared(items, index) => {
                    // If `clone` panics, the item is the next one still.
                    let item = items.get(*index).cloned();
                    *index += 1;
                    item
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
}
