//! Where an item goes: straight to its sink, into its queue, or nowhere for now.
//!
//! `route` is the hot path. All that is unusual about a slot is tested at once and dealt with in a
//! cold function. There is one place for each decision: `find_place` (is there room for an item?),
//! `give` (what happens to it), `overflow` (when there is none).

use core::hash::{BuildHasher, Hash};
use core::task::{Context, Poll};

use futures_sink::Sink;

use crate::hooks::{Detached, Discarded, Hooks};
use crate::hub::Hub;
use crate::key::sealed::FindByKey;
use crate::order::Overflow;
use crate::slot::Farewell;

/// What is in the way of an item, which its slot has not got.
pub(crate) enum Odd<V, E> {
    /// No slot has its key.
    Unknown(V),
    /// Its slot is known to be busy, or limited, or one of several.
    Unusual(usize, V),
    /// The hooks did not admit it.
    Refused(usize, V),
    /// Its sink has just answered that it is not ready, or failed.
    Unready(usize, V, Poll<Result<(), E>>),
    /// Its sink failed while it took it.
    Failed(usize, E),
}

/// Where a slot has room for an item.
pub(crate) enum Place<E> {
    /// Its sink is ready, for the item or for the head of the queue, which makes room.
    Sink,
    /// Its queue has room.
    Queue,
    /// Its sink is not ready, and the queue is full.
    None(Unready),
    /// Its sink failed.
    Failed(E),
}

/// What is known of a sink that is not ready.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unready {
    /// It answered `Pending`, and its waker has not fired since.
    Full,
    /// Its waker has fired since it answered `Pending` the last time.
    Woken,
    /// It was polled just now, and its waker had fired by the time it answered `Pending`.
    Yielded,
}

impl<K, S, V, H, B> Hub<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Routes an item that was read a while ago; the same as in the reading loop, out of its way.
    #[cold]
    #[inline(never)]
    pub(crate) fn route_late<F>(&mut self, key: &mut F, item: V, share: &mut usize)
    where
        F: FindByKey<V, K>,
    {
        if let Err(odd) = self.route::<false, _>(key, item) {
            self.route_odd(odd, share);
        }
    }

    /// Routes an item to whom its key belongs, if nothing is in the way: the hot path.
    #[expect(clippy::inline_always, reason = "the loop around it has the only copy that matters")]
    #[inline(always)]
    pub(crate) fn route<const MANY: bool, F>(
        &mut self,
        key: &mut F,
        item: V,
    ) -> Result<(), Odd<V, S::Error>>
    where
        F: FindByKey<V, K>,
    {
        let Some(slot) = key.find_in(&self.table, &item) else { return Err(Odd::Unknown(item)) };
        let tenant = &mut self.table[slot];
        if !tenant.is_plain() {
            return Err(Odd::Unusual(slot, item));
        }
        if !self.hooks.admit(tenant.recipient(), &item) {
            return Err(Odd::Refused(slot, item));
        }
        let mut cx = Context::from_waker(self.ready.waker(slot));
        let answer = tenant.poll_ready(&mut cx);
        if !matches!(answer, Poll::Ready(Ok(()))) {
            return Err(Odd::Unready(slot, item, answer));
        }
        if let Err(error) = tenant.start_send(item) {
            return Err(Odd::Failed(slot, error));
        }
        let new = tenant.owe_flush();
        self.sent::<MANY>(slot, new);
        Ok(())
    }

    /// Routes an item that has something in its way, or holds it. `share` is what may be spent on
    /// members of its group, one for each but the first.
    #[cold]
    #[inline(never)]
    pub(crate) fn route_odd(&mut self, odd: Odd<V, S::Error>, share: &mut usize) {
        match odd {
            Odd::Unknown(item) => match self.table.catch_all() {
                Some(slot) => self.route_to(slot, item),
                None => self.unmatched(item),
            },
            Odd::Unusual(slot, item) => match self.table[slot].group() {
                Some((group, _)) => self.put_to_group(group, item, share),
                None => self.route_to(slot, item),
            },
            Odd::Unready(slot, item, answer) => {
                let place = self.find_place_unready(slot, answer);
                self.put_in_place(slot, item, place);
            }
            Odd::Refused(slot, item) => self.discard(slot, item, Discarded::NotAdmitted),
            Odd::Failed(slot, error) => self.lost(slot, error),
        }
    }

    /// Routes an item to the one slot that it is for.
    fn route_to(&mut self, slot: usize, item: V) {
        if self.hooks.admit(self.table[slot].recipient(), &item) {
            self.put(slot, item);
        } else {
            self.discard(slot, item, Discarded::NotAdmitted);
        }
    }

    /// Finds out where `slot` has room for an item, which it must get then: its sink may have reserved
    /// something for it.
    pub(crate) fn find_place(&mut self, slot: usize) -> Place<S::Error> {
        let tenant = &mut self.table[slot];
        if tenant.is_queued() && tenant.has_room() {
            return Place::Queue;
        }
        if tenant.is_parked() {
            return self.find_place_beside(slot, Unready::Woken);
        }
        let mut cx = Context::from_waker(self.ready.waker(slot));
        let answer = tenant.poll_ready(&mut cx);
        self.find_place_unready(slot, answer)
    }

    /// The same when the sink has just been polled.
    pub(crate) fn find_place_unready(
        &mut self,
        slot: usize,
        answer: Poll<Result<(), S::Error>>,
    ) -> Place<S::Error> {
        match answer {
            Poll::Ready(Ok(())) => Place::Sink,
            Poll::Ready(Err(error)) => Place::Failed(error),
            Poll::Pending => {
                self.note_pending(slot);
                self.find_place_beside(slot, Unready::Yielded)
            }
        }
    }

    /// The same when the sink is not ready. `fired` is what it means if its waker has fired.
    fn find_place_beside(&self, slot: usize, fired: Unready) -> Place<S::Error> {
        if self.table[slot].has_room() {
            Place::Queue
        } else {
            Place::None(if self.ready.has_fired(slot) { fired } else { Unready::Full })
        }
    }

    /// Sends, queues or discards an item, as its place and the terms of its recipient have it.
    pub(crate) fn give(&mut self, slot: usize, item: V, place: Place<S::Error>) {
        match place {
            Place::Sink => self.send_in_order(slot, item),
            Place::Queue => {
                self.enqueue(slot, item);
                self.accepted(slot);
            }
            Place::None(_) => self.overflow(slot, item),
            Place::Failed(error) => self.remove(slot, Detached::Failed(error), Some(item)),
        }
    }

    /// The sink is ready: it gets the item, or the head of its queue, which the item then joins.
    fn send_in_order(&mut self, slot: usize, item: V) {
        let mut head = item;
        if self.table[slot].is_queued() {
            self.enqueue(slot, head);
            let Some(first) = self.dequeue(slot) else { return };
            head = first;
        }
        if self.send(slot, head) {
            self.accepted(slot);
        }
    }

    /// `slot` accepted an item. If it was the last, its key is free.
    fn accepted(&mut self, slot: usize) {
        if !self.table[slot].accept() {
            self.leave(slot, Farewell::Limited);
            self.attend(slot, &mut 0);
        }
    }

    /// The sink is not ready, and there is no room in the queue.
    fn overflow(&mut self, slot: usize, item: V) {
        match self.table[slot].overflow() {
            Overflow::Wait => unreachable!("the item is held"),
            Overflow::DropNewest => self.discard(slot, item, Discarded::Overflowed),
            Overflow::DropOldest => {
                let oldest = self.dequeue(slot);
                self.enqueue(slot, item);
                if let Some(oldest) = oldest {
                    self.discard(slot, oldest, Discarded::Overflowed);
                }
                self.accepted(slot);
            }
            Overflow::Evict => self.remove(slot, Detached::Overflowed, Some(item)),
        }
    }
}
