//! The items that wait for the sink of a slot: how many may, and how many of these are accepted.
//!
//! Those at the end of the queue may be *beyond the buffer*: there was no room for them, and they
//! are not accepted yet. They are counted, because a queue that was taken over from another slot
//! may be longer than the buffer and still have none.

use alloc::collections::VecDeque;
use core::mem;

use super::word::{BEYOND, LIMITED, QUEUED, SHARES};
use super::{Extras, ExtrasList, Slot, SlotMut};

/// The room, in items, that a queue may keep when it has emptied. A queue with more room frees it.
///
/// A burst may fill a thousand queues at once, and their memory should not be kept for as long as
/// the sinks live. In the common case a queue grows and shrinks by a few items, and should not
/// allocate each time.
const KEPT_ROOM: usize = 16;

/// A queue that is moved from one slot to another.
pub(in crate::slots) struct Queue<V> {
    pub(in crate::slots) items: VecDeque<V>,
    /// How many of the items, at the end, are beyond the buffer.
    pub(in crate::slots) beyond: usize,
}

/// An item that was taken from a queue.
pub(crate) struct Popped<V> {
    pub(crate) item: V,
    /// An item is to be accepted: one that is no longer beyond the buffer or, if sinks share the
    /// queue, this one.
    pub(crate) accepts: bool,
}

/// How long it is, and may be.
impl<K, S> Slot<K, S> {
    #[inline]
    pub(crate) fn is_queued(&self) -> bool {
        self.has(QUEUED)
    }

    /// Returns `true` if items in its queue are beyond the buffer.
    #[inline]
    pub(crate) fn is_beyond(&self) -> bool {
        self.has(BEYOND)
    }

    /// How many items may be queued.
    pub(in crate::slots) fn buffer<V>(&self, extras: &ExtrasList<V>) -> usize {
        let large = || extras.get(self.id).map_or(0, |extras| extras.buffer as usize);
        self.word.small_buffer().unwrap_or_else(large)
    }

    /// How many items are in the queue.
    pub(in crate::slots) fn queue_len<V>(&self, extras: &ExtrasList<V>) -> usize {
        extras.get(self.id).map_or(0, |extras| extras.queue.len())
    }

    /// How many items are in the queue beyond the buffer.
    pub(in crate::slots) fn beyond_len<V>(&self, extras: &ExtrasList<V>) -> usize {
        if self.has(BEYOND) {
            extras.get(self.id).map_or(0, |extras| extras.beyond as usize)
        } else {
            0
        }
    }
}

impl<K, S, V> SlotMut<'_, K, S, V> {
    /// How many items may be queued.
    pub(crate) fn buffer(&self) -> usize {
        self.slot.buffer(self.extras)
    }

    /// Adds an item that was admitted. Without room for it, it is beyond the buffer; otherwise it
    /// is accepted. Returns `false` if that was the last item that the slot may accept.
    pub(crate) fn enqueue(&mut self, item: V, room: usize) -> bool {
        let may_replace = self.slot.is_queued() && self.slot.conflates();
        self.slot.set(QUEUED, true);
        let Extras { queue, beyond, .. } = self.extras.get_or_default(self.slot.id);
        let has_room = queue.len() < room && *beyond == 0;
        queue.push_back(item);
        self.queues.add(1);
        if has_room && !may_replace {
            return self.accept_queued();
        }
        *beyond += 1;
        if *beyond == 1 {
            self.enter_beyond();
        }
        true
    }

    /// Adds an item, regardless of the buffer.
    pub(crate) fn push(&mut self, item: V) {
        self.extras_mut().queue.push_back(item);
        self.queues.add(1);
        self.slot.set(QUEUED, true);
    }

    /// Adds an item beyond the buffer.
    pub(crate) fn push_beyond(&mut self, item: V) {
        self.push(item);
        self.set_beyond(self.beyond_len() + 1);
    }

    /// Takes the first item. The first one beyond the buffer, if there is one, moves up.
    pub(crate) fn pop(&mut self) -> Option<Popped<V>> {
        let Extras { queue, beyond, .. } = self.extras.get_mut(self.slot.id)?;
        let item = queue.pop_front()?;
        self.queues.subtract(1);
        let left = !queue.is_empty();
        if !left && queue.capacity() > KEPT_ROOM {
            *queue = VecDeque::new();
        }
        self.slot.set(QUEUED, left);
        let moves_up = *beyond > 0;
        *beyond -= u32::from(moves_up);
        if moves_up && *beyond == 0 {
            self.leave_beyond();
        }
        Some(Popped { item, accepts: moves_up || self.slot.has(SHARES) })
    }

    /// The items of the queue.
    pub(crate) fn queue(&self) -> impl Iterator<Item = &V> {
        self.extras.get(self.slot.id).into_iter().flat_map(|extras| &extras.queue)
    }

    /// Puts an item into the queue in place of another one.
    pub(crate) fn replace_queued(&mut self, position: usize, item: V) -> V {
        mem::replace(&mut self.extras_mut().queue[position], item)
    }

    /// Sets how many items are beyond the buffer.
    pub(in crate::slots) fn set_beyond(&mut self, items: usize) {
        let was_beyond = self.slot.is_beyond();
        self.extras_mut().beyond = u32::try_from(items).unwrap_or(u32::MAX);
        if items > 0 && !was_beyond {
            self.enter_beyond();
        } else if items == 0 && was_beyond {
            self.leave_beyond();
        }
    }

    fn enter_beyond(&mut self) {
        self.slot.set(BEYOND, true);
        self.queues.enter(self.slot.overflow(), self.slot.id, self.extras);
    }

    fn leave_beyond(&mut self) {
        self.slot.set(BEYOND, false);
        self.queues.leave(self.slot.overflow(), self.slot.id, self.extras);
    }

    /// Takes the items beyond the buffer out of the queue.
    pub(crate) fn split_beyond(&mut self) -> VecDeque<V> {
        let beyond = self.beyond_len();
        self.set_beyond(0);
        let queue = &mut self.extras_mut().queue;
        let items = queue.split_off(queue.len() - beyond);
        let left = !queue.is_empty();
        self.queues.subtract(beyond);
        self.slot.set(QUEUED, left);
        items
    }

    /// Accepts the items that are not accepted yet: those beyond the buffer or, if sinks share the
    /// queue, all. Takes those out of the queue that exceed the limit.
    pub(in crate::slots) fn split_surplus(&mut self) -> VecDeque<V> {
        if !self.slot.is_queued() {
            return VecDeque::new();
        }
        let mut surplus =
            if self.slot.has(SHARES) { self.take_queue().items } else { self.split_beyond() };
        while self.may_accept() {
            let Some(item) = surplus.pop_front() else { break };
            self.push(item);
            self.accept();
        }
        surplus
    }

    /// Takes this number of items from the front of the queue.
    pub(in crate::slots) fn take_front(&mut self, items: usize) -> VecDeque<V> {
        let queue = &mut self.extras_mut().queue;
        // Not `split_off`: that moves all that stay, and each of many members takes a part.
        let front = queue.drain(..items).collect();
        let left = !queue.is_empty();
        self.queues.subtract(items);
        self.slot.set(QUEUED, left);
        front
    }

    /// Puts items that were beyond the buffer back to the end of the queue.
    pub(crate) fn restore_beyond(&mut self, mut items: VecDeque<V>) {
        let beyond = items.len();
        self.queues.add(beyond);
        self.extras_mut().queue.append(&mut items);
        self.slot.set(QUEUED, true);
        self.set_beyond(beyond);
    }

    /// How many items are beyond the buffer.
    pub(super) fn beyond_len(&self) -> usize {
        self.slot.beyond_len(self.extras)
    }

    pub(in crate::slots) fn take_queue(&mut self) -> Queue<V> {
        if !self.slot.is_queued() {
            return Queue { items: VecDeque::new(), beyond: 0 };
        }
        let beyond = self.beyond_len();
        self.set_beyond(0);
        self.slot.set(QUEUED, false);
        let items = mem::take(&mut self.extras_mut().queue);
        self.queues.subtract(items.len());
        Queue { items, beyond }
    }

    /// Takes over the items that waited for the predecessor, and accepts those that fit, as far as
    /// the limit goes. The others are beyond the buffer as if they came now: otherwise each
    /// replacement of a sink that does not read would let in further items. If it conflates, all
    /// but the first are compared with others before they are accepted.
    pub(in crate::slots) fn take_over(&mut self, items: VecDeque<V>) {
        let len = items.len();
        let room = if self.slot.conflates() { 1 } else { self.buffer() };
        let beyond = len - self.accept_up_to(len.min(room));
        self.set_queue(Queue { items, beyond });
    }

    /// Sets the queue to that of another slot. It may be longer than the buffer.
    pub(in crate::slots) fn set_queue(&mut self, Queue { items, beyond }: Queue<V>) {
        debug_assert!(!self.slot.is_queued());
        if !items.is_empty() {
            self.queues.add(items.len());
            self.extras_mut().queue = items;
            self.slot.set(QUEUED, true);
            self.set_beyond(beyond);
        }
    }
}

/// How many of the items it accepts.
impl<K, S, V> SlotMut<'_, K, S, V> {
    /// Counts an item towards the limit. Returns `false` if that was the last one.
    #[inline]
    pub(crate) fn accept(&mut self) -> bool {
        if !self.is_limited() {
            return true;
        }
        let limit = &mut self.extras_mut().limit;
        *limit = limit.saturating_sub(1);
        *limit > 0
    }

    /// Counts an item that was queued towards the limit. Returns `false` if that was the last one.
    /// A queue that sinks share belongs to none of them: an item counts when one of them takes it.
    pub(crate) fn accept_queued(&mut self) -> bool {
        self.slot.has(SHARES) || self.accept()
    }

    /// Counts items towards the limit: as many of these as it may accept. Returns their number.
    fn accept_up_to(&mut self, items: usize) -> usize {
        if !self.is_limited() {
            return items;
        }
        let limit = &mut self.extras_mut().limit;
        let accepted = usize::try_from(*limit).unwrap_or(usize::MAX).min(items);
        *limit -= accepted as u64;
        accepted
    }

    /// Returns `true` if it accepts a limited number of items.
    fn is_limited(&self) -> bool {
        self.slot.has(LIMITED)
    }

    /// Returns `true` if it may accept another item.
    pub(crate) fn may_accept(&self) -> bool {
        let extras = self.extras.get(self.slot.id);
        !self.is_limited() || extras.is_some_and(|extras| extras.limit > 0)
    }
}
