//! [`Taken`]: what a reader has taken from the log and not yet returned.

use std::collections::VecDeque;
use std::sync::Arc;

use super::log::Taking;
use super::segment::{CloneSome, Segment};
use crate::read::Lagged;

/// Room is kept for at most this many segments and items. A reader that keeps up takes one or two
/// segments, and clones 32 items at most.
const SEGMENTS_KEPT: usize = 8;
const READY_KEPT: usize = 64;

/// The room of a reader that has nothing. It goes round among the readers of a topic: one that is
/// used again is in the cache, and readers that sleep need none.
#[derive(Debug)]
pub(super) struct Room<T> {
    ready: Vec<T>,
    segments: VecDeque<Arc<Segment<T>>>,
}

impl<T> Room<T> {
    /// Returns `true` if it is worth keeping.
    pub(super) fn is_useful(&self) -> bool {
        (1..=READY_KEPT).contains(&self.ready.capacity())
            && self.segments.capacity() <= SEGMENTS_KEPT
    }
}

#[derive(Debug)]
pub(crate) struct Taken<T> {
    /// Items that are the reader's: clones, or items of which no other reader needs one. The next
    /// item comes last.
    ready: Vec<T>,
    /// How many items are missing before the others.
    lost: u64,
    current: Current<T>,
    segments: VecDeque<Arc<Segment<T>>>,
    /// How many items of the next segment were lost.
    skip: usize,
    /// How many items are left, apart from those that are ready.
    len: usize,
}

#[derive(Debug)]
enum Current<T> {
    Nothing,
    /// No other reader can still get these, so they are not cloned. The next item comes last. Only
    /// while those that were lost are dropped.
    Owned(Vec<T>),
    /// Other readers may, from this index on.
    Shared(Arc<Segment<T>>, usize),
}

impl<T> Taken<T> {
    pub(super) fn new() -> Self {
        Self {
            ready: Vec::new(),
            lost: 0,
            current: Current::Nothing,
            segments: VecDeque::new(),
            skip: 0,
            len: 0,
        }
    }

    /// How many items are left.
    pub(crate) fn len(&self) -> usize {
        self.ready.len() + self.len
    }

    /// Returns `true` if there is neither an item nor a loss to tell.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0 && self.lost == 0
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

    /// Uses this room, if it has none.
    #[inline]
    pub(super) fn set_room(&mut self, room: Room<T>) {
        if self.ready.capacity() == 0 {
            self.ready = room.ready;
        }
        if self.segments.capacity() == 0 {
            self.segments = room.segments;
        }
    }

    /// Gives its room away.
    #[inline]
    pub(super) fn take_room(&mut self) -> Room<T> {
        debug_assert!(self.is_empty());
        let ready = std::mem::take(&mut self.ready);
        let segments = std::mem::take(&mut self.segments);
        Room { ready, segments }
    }

    /// Returns the next item, if it is ready.
    #[inline]
    pub(crate) fn pop_ready(&mut self) -> Option<T> {
        self.ready.pop()
    }

    /// Returns the next item, or what is missing before it.
    pub(crate) fn next(&mut self, clone: CloneSome<T>) -> Option<Result<T, Lagged>> {
        if let Some(item) = self.ready.pop() {
            return Some(Ok(item));
        }
        if self.lost > 0 {
            return Some(Err(Lagged(std::mem::take(&mut self.lost))));
        }
        loop {
            match &mut self.current {
                Current::Nothing => {}
                Current::Owned(items) => {
                    // If a drop panics, the next call goes on behind that item.
                    while self.skip > 0 {
                        self.skip -= 1;
                        drop(items.pop());
                    }
                    self.len -= items.len();
                    self.ready = std::mem::take(items);
                    self.current = Current::Nothing;
                }
                Current::Shared(segment, index) => {
                    // If `clone` panics, the item is the next one still.
                    segment.clone_some(*index, clone, &mut self.ready);
                    *index += self.ready.len();
                    self.len -= self.ready.len();
                    if *index == segment.len() {
                        // Another reader may own the items now.
                        self.current = Current::Nothing;
                    }
                }
            }
            if let Some(item) = self.ready.pop() {
                return Some(Ok(item));
            }
            let segment = self.segments.pop_front()?;
            self.begin_segment(segment);
        }
    }

    /// Goes on to a segment, behind the items that were lost.
    fn begin_segment(&mut self, segment: Arc<Segment<T>>) {
        self.current = match Arc::try_unwrap(segment) {
            Ok(segment) => {
                let mut items = segment.into_items();
                items.reverse();
                Current::Owned(items)
            }
            Err(segment) => Current::Shared(segment, std::mem::take(&mut self.skip)),
        };
    }
}
