//! The items that wait for the sink of a slot.

use alloc::collections::VecDeque;
use core::mem;

use super::SlotMut;
use super::flags::QUEUED;

/// The room, in items, that a queue may keep when it has emptied. A queue with more room frees it.
///
/// A burst may fill a thousand queues at once, and their memory should not be kept for as long as
/// the sinks live. In the common case a queue grows and shrinks by a few items, and should not
/// allocate each time.
const KEPT_ROOM: usize = 16;

impl<K, S, V> SlotMut<'_, K, S, V> {
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

    /// The item at a position of the queue.
    pub(crate) fn queued(&self, position: usize) -> Option<&V> {
        self.extras.get(self.slot.id)?.queue.get(position)
    }

    /// Puts an item in the place of the one at a position of the queue, which is returned.
    pub(crate) fn replace_queued(&mut self, position: usize, item: V) -> V {
        mem::replace(&mut self.extras_mut().queue[position], item)
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
        extras.map(|extras| mem::take(&mut extras.queue)).unwrap_or_default()
    }

    /// Takes over the queue of another slot. It may be longer than the buffer.
    pub(crate) fn set_queue(&mut self, queue: VecDeque<V>) {
        debug_assert!(!self.slot.is_queued());
        if !queue.is_empty() {
            self.extras_mut().queue = queue;
            self.slot.set(QUEUED, true);
        }
    }
}
