//! One attachment: the state machine of its sink, its terms, its queue.
//!
//! The contract of `Sink` is kept here:
//!
//! 1. `start_send` follows a `poll_ready` that answered `Ready(Ok)`, one for one: an answer is used
//!    at once, so none has to be remembered.
//! 2. An operation that answered `Pending` is not repeated before the sink's waker fired: `PARKED`,
//!    `FLUSHING` and `CLOSING` stand for the three that wait. Only a flush may be repeated earlier,
//!    when the sink took another item.
//! 3. An error is returned to the caller, who removes the slot: the sink is not touched again.
//! 4. After `poll_close` was called there is nothing in the queue, and nothing will be.
//!
//! `QUEUED`, `LIMITED` and `GROUPED` mirror what the extras say, so that one test of one word tells
//! the common case from all others.

mod extras;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::ops::{Deref, DerefMut};
use core::pin::Pin;
use core::task::{Context, Poll};

use futures_sink::Sink;

use crate::hooks::{Detached, Recipient};
use crate::id::SlotId;
use crate::lease::{Claim, LeaseRequest};
use crate::order::{Overflow, Terms};
use crate::timers::Sweep;

pub(crate) use extras::ExtrasList;

/// `poll_ready` answered `Pending`, and the sink's waker was not seen to have fired since.
const PARKED: u16 = 1;
/// Something is in the queue.
const QUEUED: u16 = 1 << 1;
/// It accepts a limited number of items.
const LIMITED: u16 = 1 << 2;
/// It shares its key: the extras say with which group.
const GROUPED: u16 = 1 << 3;
/// It was offered the item that is held for its group, and waits for its copy.
const WAITING: u16 = 1 << 4;
/// It took an item since `poll_flush` was called last. If so, it is in the flush list.
const UNFLUSHED: u16 = 1 << 5;
/// `poll_flush` answered `Pending`, and the sink's waker was not seen to have fired since.
const FLUSHING: u16 = 1 << 6;
/// `poll_flush` answered `Pending`, and the sink's waker has fired.
const FLUSH_AGAIN: u16 = 1 << 7;
/// `poll_close` answered `Pending`, and the sink's waker was not seen to have fired since.
const CLOSING: u16 = 1 << 8;
/// It is in the flush list, for itself or for its predecessor.
const FLUSH_QUEUED: u16 = 1 << 9;
/// `poll_ready` is to be repeated although the sink's waker has not fired. Only with `PARKED`.
const RETRY: u16 = 1 << 12;

/// An operation of its sink completed since the last tick: it took an item, or a flush.
const MOVED: u16 = 1 << 10;
/// It has a time-out.
const TIMED: u16 = 1 << 11;

/// Where the overflow policy begins in the flags.
const POLICY: u32 = 13;
const POLICIES: [Overflow; 5] = [
    Overflow::Wait,
    Overflow::DropNewest,
    Overflow::DropOldest,
    Overflow::Evict,
    Overflow::Conflate,
];

/// An item for this slot alone cannot go straight to the sink.
const SLOW: u16 = PARKED | QUEUED | LIMITED | GROUPED;
/// The same for an item that is for its group.
const SLOW_IN_GROUP: u16 = PARKED | QUEUED | LIMITED;

/// The room, in items, that a queue may keep when it has emptied. One that has more gives up all.
///
/// A burst may fill a thousand queues at once, and need not cost their memory for as long as their
/// sinks live. Queues that go up and down by a few items, the common case, do not allocate each
/// time.
const KEPT_ROOM: usize = 16;

/// The buffer is too large for the slot: the extras have it.
const LARGE: u8 = u8::MAX;

/// Where an attachment is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It gets the items of its key.
    Receiving,
    /// It gets no new ones: its queue is sent, then its sink is closed.
    Leaving(LeaveReason),
}

/// Why an attachment leaves gracefully; what [`Detached`] will say if all goes well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaveReason {
    Finished,
    Requested,
    Replaced,
    Limited,
    Refused,
    Idle,
}

impl<E> From<LeaveReason> for Detached<E> {
    fn from(reason: LeaveReason) -> Self {
        match reason {
            LeaveReason::Finished => Self::Finished,
            LeaveReason::Requested => Self::Requested,
            LeaveReason::Replaced => Self::Replaced,
            LeaveReason::Limited => Self::Limited,
            LeaveReason::Refused => Self::Refused,
            LeaveReason::Idle => Self::Idle,
        }
    }
}

/// What every item touches of an attachment: 24 bytes with a key and a sink of 8 bytes each. With
/// many keys, fetching it is most of what routing an item costs.
pub(crate) struct Slot<K, S> {
    key: K,
    sink: S,
    id: SlotId,
    flags: u16,
    stage: Stage,
    buffer: u8,
}

/// What few attachments need, and none for each item.
pub(crate) struct Extras<V> {
    queue: VecDeque<V>,
    tag: u64,
    /// How many more items are accepted, if `LIMITED`.
    limit: u64,
    claim: Option<Arc<Claim>>,
    /// If the slot has no room for it.
    buffer: u32,
    /// The group and the position there, if `GROUPED`.
    group: u32,
    position: u32,
    timer: Option<Timer>,
    /// The stamp of its entry in the line of its group; 0 if it has none.
    stamp: u32,
}

/// The time-outs of an attachment, in ticks; 0 for none.
struct Timer {
    stall_timeout: u32,
    idle_timeout: u32,
    /// At how many ticks in a row it had stalled.
    stalled: u32,
    /// At how many ticks it was idle since its last item.
    idle: u32,
    /// The number of the last sweep that came to it, or that was for a tick before its time.
    sweep: u32,
    /// Where it is in the list of the timers.
    index: u32,
    /// The last answer of the sink was `Pending`, and its waker had fired by then: it woke itself.
    is_self_woken: bool,
}

/// What a tick means for an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expired {
    Stalled,
    Idle,
}

impl<V> Default for Extras<V> {
    fn default() -> Self {
        let queue = VecDeque::new();
        Self {
            queue,
            tag: 0,
            limit: 0,
            claim: None,
            buffer: 0,
            group: 0,
            position: 0,
            timer: None,
            stamp: 0,
        }
    }
}

/// A slot and its extras.
pub(crate) struct SlotMut<'a, K, S, V> {
    slot: &'a mut Slot<K, S>,
    extras: &'a mut ExtrasList<V>,
}

/// What is left of an attachment when its sink has been dropped.
pub(crate) struct Remains<K, V> {
    pub(crate) key: K,
    pub(crate) tag: u64,
    pub(crate) queue: VecDeque<V>,
}

/// Its life.
impl<K, S> Slot<K, S> {
    /// A slot on these terms, of which none is left to the defaults.
    pub(crate) fn new<V>(
        key: K,
        sink: S,
        id: SlotId,
        terms: &Terms,
        claim: Option<Arc<Claim>>,
        stage: Stage,
        extras: &mut ExtrasList<V>,
    ) -> Self {
        let overflow = terms.overflow.unwrap_or_default();
        // A policy that drops items has one place at least: a sink that was polled for an item, and
        // may have reserved something for it, gets one.
        let least = usize::from(!matches!(overflow, Overflow::Wait | Overflow::Evict));
        let buffer = terms.buffer.unwrap_or(0).max(least);
        let mut flags = (overflow as u16) << POLICY;
        let small = u8::try_from(buffer).ok().filter(|&buffer| buffer < LARGE);
        if small.is_none() {
            extras.get_or_default(id).buffer = u32::try_from(buffer).unwrap_or(u32::MAX);
        }
        if terms.tag != 0 {
            extras.get_or_default(id).tag = terms.tag;
        }
        if let Some(limit) = terms.limit {
            extras.get_or_default(id).limit = limit;
            flags |= LIMITED;
        }
        let (stall_timeout, idle_timeout) =
            (terms.stall_timeout.unwrap_or(0), terms.idle_timeout.unwrap_or(0));
        if stall_timeout > 0 || idle_timeout > 0 {
            let timer = Timer {
                stall_timeout,
                idle_timeout,
                stalled: 0,
                idle: 0,
                sweep: 0,
                index: 0,
                is_self_woken: false,
            };
            extras.get_or_default(id).timer = Some(timer);
            flags |= TIMED;
        }
        if claim.is_some() {
            extras.get_or_default(id).claim = claim;
        }
        Self { key, sink, id, flags, stage, buffer: small.unwrap_or(LARGE) }
    }

    #[inline]
    pub(crate) fn id(&self) -> SlotId {
        self.id
    }

    #[inline]
    pub(crate) fn key(&self) -> &K {
        &self.key
    }

    #[inline]
    pub(crate) fn receives(&self) -> bool {
        self.stage == Stage::Receiving
    }

    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    pub(crate) fn set_leaving(&mut self, reason: LeaveReason) {
        self.stage = Stage::Leaving(reason);
    }

    pub(crate) fn overflow(&self) -> Overflow {
        POLICIES[usize::from(self.flags >> POLICY)]
    }

    /// Returns `true` if an item may replace one that waits.
    #[inline]
    pub(crate) fn conflates(&self) -> bool {
        self.flags >> POLICY == Overflow::Conflate as u16
    }

    #[inline]
    pub(crate) fn recipient<'a, V>(&'a self, extras: &ExtrasList<V>) -> Recipient<'a, K> {
        Recipient { key: &self.key, tag: extras.get(self.id).map_or(0, |extras| extras.tag) }
    }

    /// The group and the position there, if it shares its key.
    pub(crate) fn group<V>(&self, extras: &ExtrasList<V>) -> Option<(usize, usize)> {
        let extras = extras.get(self.id).filter(|_| self.is_grouped())?;
        Some((extras.group as usize, extras.position as usize))
    }

    pub(crate) fn is_grouped(&self) -> bool {
        self.has(GROUPED)
    }

    pub(crate) fn has_room<V>(&self, extras: &ExtrasList<V>) -> bool {
        if self.buffer == 0 {
            return false;
        }
        let extras = extras.get(self.id);
        let queued = extras.map_or(0, |extras| extras.queue.len());
        let buffer = match (self.buffer, extras) {
            (LARGE, Some(extras)) => extras.buffer,
            (small, _) => u32::from(small),
        };
        queued < buffer as usize
    }

    /// How many items are in the queue.
    pub(crate) fn queue_len<V>(&self, extras: &ExtrasList<V>) -> usize {
        extras.get(self.id).map_or(0, |extras| extras.queue.len())
    }

    /// Returns `true` if an item may find a place: the sink can be polled, or the queue has room.
    #[inline]
    pub(crate) fn may_accept<V>(&self, extras: &ExtrasList<V>) -> bool {
        !self.is_parked() || self.has_room(extras)
    }

    /// Drops the sink.
    pub(crate) fn into_remains<V>(self, extras: &mut ExtrasList<V>) -> Remains<K, V> {
        let Self { key, sink, id, .. } = self;
        drop(sink);
        let extras = extras.take(id).map(|extras| *extras).unwrap_or_default();
        Remains { key, tag: extras.tag, queue: extras.queue }
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

/// What its sink is waiting for, and what it is owed.
impl<K, S> Slot<K, S> {
    /// Returns `true` if nothing stands between an item for this slot and `poll_ready`.
    #[inline]
    pub(crate) fn is_fast(&self) -> bool {
        !self.has(SLOW)
    }

    /// The same for an item that is for its group.
    #[inline]
    pub(crate) fn is_fast_in_group(&self) -> bool {
        !self.has(SLOW_IN_GROUP)
    }

    #[inline]
    pub(crate) fn is_queued(&self) -> bool {
        self.has(QUEUED)
    }

    /// Returns `true` if it was offered the item that is held for its group, and waits for its
    /// copy.
    pub(crate) fn is_waiting(&self) -> bool {
        self.has(WAITING)
    }

    pub(crate) fn set_waiting(&mut self, waiting: bool) {
        self.set(WAITING, waiting);
    }

    /// Returns `true` if `poll_ready` answered `Pending`, and that its waker fired was not noticed
    /// since.
    pub(crate) fn is_parked(&self) -> bool {
        self.has(PARKED)
    }

    pub(crate) fn park(&mut self) {
        self.set(PARKED, true);
    }

    /// Returns `true` if it has a time-out.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        self.has(TIMED)
    }

    /// Returns `true` if `poll_ready` is to be repeated although the sink's waker has not fired.
    pub(crate) fn is_to_retry(&self) -> bool {
        self.has(RETRY)
    }

    /// Lets a sink that is parked be polled again for `poll_ready`, and for nothing else.
    pub(crate) fn set_to_retry(&mut self) {
        self.set(RETRY, true);
    }

    /// `poll_ready` may be repeated.
    pub(crate) fn unpark(&mut self) {
        self.set(PARKED | RETRY, false);
    }

    /// Its own waker fired: what answered `Pending` may be repeated.
    pub(crate) fn wake(&mut self) {
        let flush_again = self.has(FLUSHING);
        self.set(PARKED | RETRY | FLUSHING | CLOSING, false);
        if flush_again {
            self.set(FLUSH_AGAIN, true);
        }
    }

    /// Returns `true` if it is being closed: its sink is polled for nothing else.
    fn is_past_sending(&self) -> bool {
        self.stage != Stage::Receiving && !self.has(QUEUED)
    }

    /// Returns `true` if `poll_close` is to be called.
    pub(crate) fn is_closable(&self) -> bool {
        self.is_past_sending() && !self.has(CLOSING)
    }

    /// Returns `true` if it waited for a flush, and its waker fired.
    pub(crate) fn is_flushable(&self) -> bool {
        self.has(FLUSH_AGAIN) && !self.is_past_sending()
    }

    #[inline]
    pub(crate) fn is_flush_queued(&self) -> bool {
        self.has(FLUSH_QUEUED)
    }

    pub(crate) fn set_flush_queued(&mut self) {
        self.set(FLUSH_QUEUED, true);
    }

    /// It was taken from the flush list. Returns `true` if it wants to be flushed: a sink that is
    /// being closed does not, as closing flushes.
    #[inline]
    pub(crate) fn unqueue_flush(&mut self) -> bool {
        self.set(FLUSH_QUEUED, false);
        self.has(UNFLUSHED) && !self.is_past_sending()
    }
}

/// Polling its sink.
impl<K, S> Slot<K, S> {
    #[inline]
    pub(crate) fn poll_ready<V>(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>>
    where
        S: Sink<V> + Unpin,
    {
        Pin::new(&mut self.sink).poll_ready(cx)
    }

    /// Sends an item to a sink that is ready. Returns `true` if the slot has to join the flush
    /// list.
    #[inline]
    pub(crate) fn start_send<V>(&mut self, item: V) -> Result<bool, S::Error>
    where
        S: Sink<V> + Unpin,
    {
        Pin::new(&mut self.sink).start_send(item)?;
        let was_queued = self.is_flush_queued();
        self.flags |= UNFLUSHED | FLUSH_QUEUED | MOVED;
        Ok(!was_queued)
    }

    pub(crate) fn poll_flush<V>(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>>
    where
        S: Sink<V> + Unpin,
    {
        self.set(UNFLUSHED | FLUSHING | FLUSH_AGAIN, false);
        let flushed = Pin::new(&mut self.sink).poll_flush(cx);
        self.set(if flushed.is_pending() { FLUSHING } else { MOVED }, true);
        flushed
    }

    pub(crate) fn poll_close<V>(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>>
    where
        S: Sink<V> + Unpin,
    {
        let closed = Pin::new(&mut self.sink).poll_close(cx);
        self.set(CLOSING, closed.is_pending());
        closed
    }
}

/// Its queue and the rest of its terms.
impl<'a, K, S, V> SlotMut<'a, K, S, V> {
    #[inline]
    pub(crate) fn new(slot: &'a mut Slot<K, S>, extras: &'a mut ExtrasList<V>) -> Self {
        Self { slot, extras }
    }

    #[inline]
    pub(crate) fn recipient(&self) -> Recipient<'_, K> {
        self.slot.recipient(self.extras)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.slot.has_room(self.extras)
    }

    pub(crate) fn claim(&self) -> Option<&Claim> {
        self.extras.get(self.slot.id)?.claim.as_deref()
    }

    /// What its leases request.
    pub(crate) fn lease_request(&self) -> LeaseRequest {
        self.claim().map_or(LeaseRequest::Stay, Claim::request)
    }

    /// Where it is in the list of the timers, if it has a time-out.
    pub(crate) fn timer_index(&self) -> Option<usize> {
        Some(self.extras.get(self.slot.id)?.timer.as_ref()?.index as usize)
    }

    /// Notes whether the waker of a sink that has just answered `Pending` has fired.
    pub(crate) fn set_self_woken(&mut self, woken: bool) {
        let timer = self.extras.get_mut(self.slot.id).and_then(|extras| extras.timer.as_mut());
        if let Some(timer) = timer {
            timer.is_self_woken = woken;
        }
    }

    /// Sets where it is in the list of the timers.
    pub(crate) fn set_timer_index(&mut self, index: usize) {
        let timer = self.extras.get_mut(self.slot.id).and_then(|extras| extras.timer.as_mut());
        if let (Some(timer), Ok(index)) = (timer, u32::try_from(index)) {
            timer.index = index;
        }
    }

    /// Sets the number of the last sweep that it is not to get.
    pub(crate) fn set_last_sweep(&mut self, sweep: u32) {
        let timer = self.extras.get_mut(self.slot.id).and_then(|extras| extras.timer.as_mut());
        if let Some(timer) = timer {
            timer.sweep = sweep;
        }
    }

    /// A tick. `has_fired` is whether its waker has fired since the sink was polled last,
    /// `is_held_for` whether the item that is held is for it.
    pub(crate) fn tick(
        &mut self,
        sweep: Sweep,
        has_fired: bool,
        is_held_for: bool,
    ) -> Option<Expired> {
        let Self { slot, extras } = self;
        let timer = extras.get_mut(slot.id)?.timer.as_mut()?;
        // The numbers wrap around.
        if timer.sweep.wrapping_sub(sweep.number) <= 1 {
            return None;
        }
        timer.sweep = sweep.number;
        let has_moved = slot.has(MOVED);
        slot.set(MOVED, false);
        let waits_for_item = slot.has(QUEUED | WAITING) || is_held_for;
        let is_flushing = slot.has(FLUSHING | FLUSH_AGAIN);
        let is_pending = slot.has(FLUSHING | CLOSING) || slot.has(PARKED) && waits_for_item;
        if has_moved {
            (timer.stalled, timer.idle) = (0, 0);
            timer.is_self_woken &= is_pending;
        }
        // A waker that has fired means progress, which the demux has not come to yet; but not if
        // the sink fired it itself.
        if !(is_pending || waits_for_item || is_flushing) {
            timer.stalled = 0;
        } else if timer.is_self_woken || is_pending && !has_fired {
            timer.stalled += 1;
        }
        let is_busy = has_moved || waits_for_item || is_flushing || slot.has(UNFLUSHED);
        if slot.receives() && !is_busy && !sweep.was_held {
            timer.idle += 1;
        }
        let has_stalled = timer.stall_timeout > 0 && timer.stalled >= timer.stall_timeout;
        let is_idle = timer.idle_timeout > 0 && timer.idle >= timer.idle_timeout;
        if has_stalled {
            Some(Expired::Stalled)
        } else {
            (is_idle && slot.receives()).then_some(Expired::Idle)
        }
    }

    pub(crate) fn set_group(&mut self, group: Option<(u32, u32)>) {
        self.slot.set(GROUPED, group.is_some());
        if let Some((group, position)) = group {
            let extras = self.extras_mut();
            (extras.group, extras.position) = (group, position);
        } else {
            self.set_stamp(0);
        }
    }

    pub(crate) fn push(&mut self, item: V) {
        self.extras_mut().queue.push_back(item);
        self.slot.set(QUEUED, true);
    }

    pub(crate) fn pop(&mut self) -> Option<V> {
        let queue = &mut self.extras.get_mut(self.slot.id)?.queue;
        let item = queue.pop_front();
        let left = !queue.is_empty();
        if !left && queue.capacity() > KEPT_ROOM {
            *queue = VecDeque::new();
        }
        self.slot.set(QUEUED, left);
        item
    }

    /// Returns `true` if it is a member of this group.
    pub(crate) fn is_in_group(&self, group: usize) -> bool {
        self.slot.group(self.extras).is_some_and(|(of, _)| of == group)
    }

    /// Sets the stamp of its entry in the line of its group; 0 for none.
    pub(crate) fn set_stamp(&mut self, stamp: u32) {
        self.extras_mut().stamp = stamp;
    }

    /// The stamp of its entry in the line of its group; 0 if it has none.
    pub(crate) fn stamp(&self) -> u32 {
        self.extras.get(self.slot.id).map_or(0, |extras| extras.stamp)
    }

    /// The item at a position of the queue.
    pub(crate) fn queued(&self, position: usize) -> Option<&V> {
        self.extras.get(self.slot.id)?.queue.get(position)
    }

    /// Puts an item in the place of the one at a position of the queue, which is returned.
    pub(crate) fn replace_queued(&mut self, position: usize, item: V) -> V {
        core::mem::replace(&mut self.extras_mut().queue[position], item)
    }

    /// Adds an item to the queue and takes the first: the item itself, if the queue is empty.
    #[inline]
    pub(crate) fn push_pop(&mut self, item: V) -> V {
        if !self.slot.is_queued() {
            return item;
        }
        let queue = &mut self.extras_mut().queue;
        queue.push_back(item);
        queue.pop_front().expect("an item was added")
    }

    pub(crate) fn take_queue(&mut self) -> VecDeque<V> {
        self.slot.set(QUEUED, false);
        let extras = self.extras.get_mut(self.slot.id);
        extras.map(|extras| core::mem::take(&mut extras.queue)).unwrap_or_default()
    }

    /// Takes over the queue of another slot. It may be longer than the buffer.
    pub(crate) fn set_queue(&mut self, queue: VecDeque<V>) {
        debug_assert!(!self.slot.is_queued());
        if !queue.is_empty() {
            self.extras_mut().queue = queue;
            self.slot.set(QUEUED, true);
        }
    }

    /// It accepts an item. Returns `false` if that was the last one.
    #[inline]
    pub(crate) fn accept(&mut self) -> bool {
        if !self.slot.has(LIMITED) {
            return true;
        }
        let limit = &mut self.extras_mut().limit;
        *limit = limit.saturating_sub(1);
        *limit > 0
    }

    fn extras_mut(&mut self) -> &mut Extras<V> {
        self.extras.get_or_default(self.slot.id)
    }
}

impl<K, S, V> Deref for SlotMut<'_, K, S, V> {
    type Target = Slot<K, S>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        self.slot
    }
}

impl<K, S, V> DerefMut for SlotMut<'_, K, S, V> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.slot
    }
}

#[cfg(test)]
mod tests {
    use core::mem::size_of;

    use super::*;

    #[test]
    fn a_slot_adds_8_bytes_to_its_key_and_sink() {
        assert_eq!(size_of::<Slot<u32, u32>>(), 16);
        assert_eq!(size_of::<Slot<u64, u64>>(), 24);
    }

    #[test]
    fn a_policy_is_found_where_it_was_packed() {
        for overflow in POLICIES {
            let terms = Terms { overflow: Some(overflow), limit: Some(1), ..Terms::default() };
            let mut extras = ExtrasList::<u8>::new();
            let (id, stage) = (SlotId::from_raw(0), Stage::Receiving);
            let mut slot = Slot::new((), (), id, &terms, None, stage, &mut extras);
            slot.flags |= (1 << POLICY) - 1;
            assert_eq!(slot.overflow(), overflow);
        }
    }

    #[test]
    fn buffers_of_any_size_are_kept() {
        for buffer in [0, 1, 253, 254, 255, 256, 1_000, usize::MAX] {
            let terms = Terms { buffer: Some(buffer), ..Terms::default() };
            let mut extras = ExtrasList::new();
            let (id, stage) = (SlotId::from_raw(3), Stage::Receiving);
            let mut slot = Slot::new((), (), id, &terms, None, stage, &mut extras);
            let places = buffer.min(2_000);
            for _ in 0..places {
                assert!(slot.has_room(&extras), "{buffer}");
                SlotMut::new(&mut slot, &mut extras).push(());
            }
            assert_eq!(slot.has_room(&extras), buffer > places);
        }
    }
}
