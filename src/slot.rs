//! One attachment: its sink's state machine, its queue, what it is owed.
//!
//! The contract of `Sink` is kept here:
//!
//! 1. `start_send` follows a `poll_ready` that answered `Ready(Ok)`, one for one: an answer is used at
//!    once, so none has to be remembered.
//! 2. An operation that answered `Pending` is not repeated before the sink's waker fired: `PARKED`,
//!    `FLUSHING` and `CLOSING` stand for the three that wait. Only a flush may be repeated earlier,
//!    when the sink took another item.
//! 3. An error is returned to the caller, who removes the slot: the sink is not touched again.
//! 4. After `poll_close` was called there is nothing in the queue, and nothing will be.
//!
//! `QUEUED`, `LIMITED` and `GROUPED` mirror what the extras say, so that one test of one word tells
//! the common case from all others.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::pin::Pin;
use core::task::{Context, Poll};

use futures_sink::Sink;

use crate::hooks::{Detached, Recipient};
use crate::lease::{Claim, Wish};
use crate::order::{Overflow, Terms};

/// `poll_ready` answered `Pending`, and that the sink's waker fired was not noticed since.
const PARKED: u16 = 1;
/// Something is in the queue.
const QUEUED: u16 = 1 << 1;
/// It accepts a limited number of items.
const LIMITED: u16 = 1 << 2;
/// It shares its key, and `group` and `position` of its extras say where.
const GROUPED: u16 = 1 << 3;
/// It was offered the item that is held for its group, and waits for its copy.
const WAITING: u16 = 1 << 4;
/// It took an item since `poll_flush` was called last. If so, it is `LISTED`.
const UNFLUSHED: u16 = 1 << 5;
/// `poll_flush` answered `Pending`, and that the sink's waker fired was not noticed since.
const FLUSHING: u16 = 1 << 6;
/// `poll_flush` answered `Pending`, and the sink's waker has fired.
const FLUSH_AGAIN: u16 = 1 << 7;
/// `poll_close` answered `Pending`, and that the sink's waker fired was not noticed since.
const CLOSING: u16 = 1 << 8;
/// It is in the list of flushes, for itself or for its predecessor.
const LISTED: u16 = 1 << 9;

/// An item for this slot alone cannot go straight to the sink.
const UNUSUAL: u16 = PARKED | QUEUED | LIMITED | GROUPED;
/// An item for this slot and others cannot go straight to the sink.
const UNUSUAL_IN_GROUP: u16 = PARKED | QUEUED | LIMITED;

/// The room, in items, that a queue may keep when it has emptied. One that has more gives up all.
///
/// A burst may fill a thousand queues at once, and need not cost their memory for as long as their
/// sinks live. Queues that go up and down by a few items, the common case, do not allocate each time.
const KEPT_ROOM: usize = 16;

/// Where an attachment is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It gets the items of its key.
    Receiving,
    /// It gets no new ones: its queue is sent, then its sink is closed.
    Leaving(Farewell),
}

/// Why an attachment leaves gracefully; what [`Detached`] will say if all goes well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Farewell {
    Finished,
    Requested,
    Replaced,
    Limited,
    Refused,
}

impl<E> From<Farewell> for Detached<E> {
    fn from(why: Farewell) -> Self {
        match why {
            Farewell::Finished => Self::Finished,
            Farewell::Requested => Self::Requested,
            Farewell::Replaced => Self::Replaced,
            Farewell::Limited => Self::Limited,
            Farewell::Refused => Self::Refused,
        }
    }
}

/// An attachment. This part of it is 32 bytes with a key and a sink of 8 bytes each, two to a cache
/// line: with many keys, fetching it is most of what routing an item costs. What few attachments
/// need, and none for each item, is in a box.
pub(crate) struct Slot<K, S, V> {
    key: K,
    sink: S,
    extras: Option<Box<Extras<V>>>,
    buffer: u32,
    flags: u16,
    overflow: Overflow,
    stage: Stage,
}

struct Extras<V> {
    queue: VecDeque<V>,
    tag: u64,
    /// How many more items are accepted, if `LIMITED`.
    limit: u64,
    claim: Option<Arc<Claim>>,
    /// Its group, and its position there, if `GROUPED`.
    group: u32,
    position: u32,
}

impl<V> Default for Extras<V> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), tag: 0, limit: 0, claim: None, group: 0, position: 0 }
    }
}

/// Its life in the table.
impl<K, S, V> Slot<K, S, V> {
    /// An attachment on these terms; `terms.buffer` and `terms.overflow` are the defaults' business.
    pub(crate) fn new(
        key: K,
        sink: S,
        terms: Terms,
        claim: Option<Arc<Claim>>,
        stage: Stage,
    ) -> Self {
        let overflow = terms.overflow.unwrap_or_default();
        let buffer = u32::try_from(terms.buffer.unwrap_or(0)).unwrap_or(u32::MAX);
        // A policy that drops items has one place at least: a sink that was polled for an item, and
        // may have reserved something for it, gets one.
        let least = u32::from(matches!(overflow, Overflow::DropNewest | Overflow::DropOldest));
        let buffer = buffer.max(least);
        let mut slot = Self { key, sink, extras: None, buffer, flags: 0, overflow, stage };
        if terms.tag != 0 {
            slot.extras_mut().tag = terms.tag;
        }
        if let Some(limit) = terms.limit {
            slot.extras_mut().limit = limit;
            slot.flags |= LIMITED;
        }
        if claim.is_some() {
            slot.extras_mut().claim = claim;
        }
        slot
    }

    #[inline]
    pub(crate) fn key(&self) -> &K {
        &self.key
    }

    #[inline]
    pub(crate) fn recipient(&self) -> Recipient<'_, K> {
        Recipient { key: &self.key, tag: self.extras.as_ref().map_or(0, |extras| extras.tag) }
    }

    #[inline]
    pub(crate) fn receives(&self) -> bool {
        self.stage == Stage::Receiving
    }

    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    pub(crate) fn set_leaving(&mut self, why: Farewell) {
        self.stage = Stage::Leaving(why);
    }

    pub(crate) fn claim(&self) -> Option<&Claim> {
        self.extras.as_ref()?.claim.as_deref()
    }

    /// What its leases wish.
    pub(crate) fn wish(&self) -> Wish {
        self.claim().map_or(Wish::Stay, Claim::wish)
    }

    /// Its group and its position there, if it shares its key.
    pub(crate) fn group(&self) -> Option<(usize, usize)> {
        let extras = self.extras.as_ref().filter(|_| self.is_grouped())?;
        Some((extras.group as usize, extras.position as usize))
    }

    pub(crate) fn set_group(&mut self, group: Option<(u32, u32)>) {
        self.set(GROUPED, group.is_some());
        if let Some((group, position)) = group {
            let extras = self.extras_mut();
            (extras.group, extras.position) = (group, position);
        }
    }

    pub(crate) fn is_grouped(&self) -> bool {
        self.has(GROUPED)
    }

    /// Drops the sink; what is left is for the hooks.
    pub(crate) fn into_remains(self) -> (K, u64, VecDeque<V>) {
        let Self { key, sink, extras, .. } = self;
        drop(sink);
        let extras = extras.map(|extras| *extras).unwrap_or_default();
        (key, extras.tag, extras.queue)
    }

    fn extras_mut(&mut self) -> &mut Extras<V> {
        self.extras.get_or_insert_default()
    }

    #[inline]
    fn has(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }

    #[inline]
    fn set(&mut self, flags: u16, on: bool) {
        if on {
            self.flags |= flags;
        } else {
            self.flags &= !flags;
        }
    }
}

/// Its queue and its terms.
impl<K, S, V> Slot<K, S, V> {
    /// Nothing stands between an item for this slot and `poll_ready`.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        !self.has(UNUSUAL)
    }

    /// The same for an item that is for its group.
    #[inline]
    pub(crate) fn is_plain_in_group(&self) -> bool {
        !self.has(UNUSUAL_IN_GROUP)
    }

    pub(crate) fn overflow(&self) -> Overflow {
        self.overflow
    }

    #[inline]
    pub(crate) fn is_queued(&self) -> bool {
        self.has(QUEUED)
    }

    /// May one more item be queued? A queue can be longer than the buffer: it grows over it when it is
    /// handed on, and when an item that was held joins it.
    pub(crate) fn has_room(&self) -> bool {
        let queued = self.extras.as_ref().map_or(0, |extras| extras.queue.len());
        queued < self.buffer as usize
    }

    pub(crate) fn push(&mut self, item: V) {
        self.extras_mut().queue.push_back(item);
        self.set(QUEUED, true);
    }

    pub(crate) fn pop(&mut self) -> Option<V> {
        let queue = &mut self.extras.as_mut()?.queue;
        let item = queue.pop_front();
        let left = !queue.is_empty();
        if !left && queue.capacity() > KEPT_ROOM {
            *queue = VecDeque::new();
        }
        self.set(QUEUED, left);
        item
    }

    pub(crate) fn take_queue(&mut self) -> VecDeque<V> {
        self.set(QUEUED, false);
        self.extras.as_mut().map(|extras| core::mem::take(&mut extras.queue)).unwrap_or_default()
    }

    /// Takes over the queue of another; it has none of its own.
    pub(crate) fn set_queue(&mut self, queue: VecDeque<V>) {
        if !queue.is_empty() {
            self.extras_mut().queue = queue;
            self.set(QUEUED, true);
        }
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.has(LIMITED)
    }

    /// One more item is accepted. False if it was the last that may be.
    pub(crate) fn accept(&mut self) -> bool {
        if !self.has(LIMITED) {
            return true;
        }
        let limit = &mut self.extras_mut().limit;
        *limit = limit.saturating_sub(1);
        *limit > 0
    }

    /// It was offered the item that is held for its group, and waits for its copy.
    pub(crate) fn is_waiting(&self) -> bool {
        self.has(WAITING)
    }

    pub(crate) fn set_waiting(&mut self, waiting: bool) {
        self.set(WAITING, waiting);
    }
}

/// Its sink.
impl<K, S, V> Slot<K, S, V> {
    /// Its own waker fired: what answered `Pending` may be repeated.
    pub(crate) fn woken(&mut self) {
        let flush_again = self.has(FLUSHING);
        self.set(PARKED | FLUSHING | CLOSING, false);
        if flush_again {
            self.set(FLUSH_AGAIN, true);
        }
    }

    /// `poll_ready` answered `Pending`, and that its waker fired was not noticed since.
    pub(crate) fn is_parked(&self) -> bool {
        self.has(PARKED)
    }

    pub(crate) fn park(&mut self) {
        self.set(PARKED, true);
    }

    /// It is being closed: nothing is asked of it but that.
    fn is_past_sending(&self) -> bool {
        self.stage != Stage::Receiving && !self.has(QUEUED)
    }

    /// It is to be asked to close.
    pub(crate) fn is_closable(&self) -> bool {
        self.is_past_sending() && !self.has(CLOSING)
    }

    /// It took an item. True if it has to be listed for a flush.
    #[inline]
    pub(crate) fn owe_flush(&mut self) -> bool {
        let listed = self.is_listed();
        self.flags |= UNFLUSHED | LISTED;
        !listed
    }

    #[inline]
    pub(crate) fn is_listed(&self) -> bool {
        self.has(LISTED)
    }

    pub(crate) fn set_listed(&mut self) {
        self.set(LISTED, true);
    }

    /// It is no longer in the list. True if it wants to be flushed: a sink that is being closed does
    /// not, as closing flushes.
    #[inline]
    pub(crate) fn unlist(&mut self) -> bool {
        self.set(LISTED, false);
        self.has(UNFLUSHED) && !self.is_past_sending()
    }

    /// It waited for a flush, and its waker fired.
    pub(crate) fn wants_flush_again(&self) -> bool {
        self.has(FLUSH_AGAIN) && !self.is_past_sending()
    }
}

/// Asking it.
impl<K, S, V> Slot<K, S, V>
where
    S: Sink<V> + Unpin,
{
    /// The two calls that an item costs in the common case; the slot must be plain.
    #[inline]
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Pin::new(&mut self.sink).poll_ready(cx)
    }

    #[inline]
    pub(crate) fn start_send(&mut self, item: V) -> Result<(), S::Error> {
        Pin::new(&mut self.sink).start_send(item)
    }

    pub(crate) fn flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.set(UNFLUSHED | FLUSHING | FLUSH_AGAIN, false);
        let flushed = Pin::new(&mut self.sink).poll_flush(cx);
        if flushed.is_pending() {
            self.set(FLUSHING, true);
        }
        flushed
    }

    pub(crate) fn close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        let closed = Pin::new(&mut self.sink).poll_close(cx);
        self.set(CLOSING, closed.is_pending());
        closed
    }
}

#[cfg(test)]
mod tests {
    use core::mem::size_of;

    use super::*;

    /// Two slots to a cache line; and what a `Slab` makes of it is no larger.
    #[test]
    fn the_hot_part_of_a_slot_is_32_bytes_or_less() {
        type Small = Slot<u64, Box<u8>, [u8; 100]>;
        let size = if cfg!(target_pointer_width = "64") { 32 } else { 24 };
        assert_eq!(size_of::<Small>(), size);
        assert_eq!(size_of::<Option<Small>>(), size);
    }
}
