//! Where an item goes: straight to its sink, into its queue, or nowhere for now.
//!
//! `route` is the hot path. All that is unusual about a slot is tested at once and dealt with in a
//! cold function. There is one place for each decision: `offer` (one recipient and an item),
//! `overflow` (one recipient and no room), `let_go` (an item that was held).

use core::hash::{BuildHasher, Hash};
use core::task::{Context, Poll};

use futures_sink::Sink;

use crate::hooks::{Detached, Discarded, Hooks};
use crate::hub::{Held, Hub};
use crate::key::sealed::FindByKey;
use crate::order::Overflow;
use crate::slot::Farewell;

/// What routing one item came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Routed {
    /// Its fate is decided, or its queue has it.
    Done,
    /// The same, and it went to so many more than one.
    Spread(usize),
    /// It is held, and the input is not to be read.
    Held,
}

/// What is in the way of an item, which its slot has not got.
pub(crate) enum Odd<V, E> {
    /// Its key belongs to nobody.
    Unknown(V),
    /// Its slot is known to be busy, or limited, or one of several.
    Unusual(usize, V),
    /// The hooks did not admit it.
    Refused(usize, V),
    /// Its sink has just said that it is not ready, or failed.
    Unready(usize, V, Poll<Result<(), E>>),
    /// Its sink failed while it took it.
    Failed(usize, E),
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
    pub(crate) fn route_late<F>(&mut self, key: &mut F, item: V) -> Routed
    where
        F: FindByKey<V, K>,
    {
        match self.route::<false, _>(key, item) {
            Ok(()) => Routed::Done,
            Err(odd) => self.route_odd(odd),
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

    /// Routes an item that has something in its way.
    #[cold]
    #[inline(never)]
    pub(crate) fn route_odd(&mut self, odd: Odd<V, S::Error>) -> Routed {
        match odd {
            Odd::Unknown(item) => return self.route_unknown(item),
            Odd::Unusual(slot, item) => return self.route_unusual(slot, item),
            Odd::Unready(slot, item, answer) => return self.route_unready(slot, item, answer),
            Odd::Refused(slot, item) => self.discard(slot, item, Discarded::NotAdmitted),
            Odd::Failed(slot, error) => self.lost(slot, error),
        }
        Routed::Done
    }

    /// Its key belongs to nobody.
    fn route_unknown(&mut self, item: V) -> Routed {
        let Some(slot) = self.table.catch_all() else {
            self.unmatched(item);
            return Routed::Done;
        };
        self.route_one(slot, item, true)
    }

    /// Its sink has just said that it is not ready, or failed.
    fn route_unready(
        &mut self,
        slot: usize,
        item: V,
        answer: Poll<Result<(), S::Error>>,
    ) -> Routed {
        match self.table[slot].note_ready(answer) {
            Ok(_) => self.put(slot, item, false),
            Err(error) => {
                self.remove(slot, Detached::Failed(error), Some(item));
                Routed::Done
            }
        }
    }

    /// Its slot is known to be busy, or limited, or one of several.
    fn route_unusual(&mut self, slot: usize, item: V) -> Routed {
        if self.table[slot].is_grouped() {
            self.route_group(slot, item)
        } else {
            self.route_one(slot, item, false)
        }
    }

    fn route_one(&mut self, slot: usize, item: V, caught: bool) -> Routed {
        if self.hooks.admit(self.table[slot].recipient(), &item) {
            self.put(slot, item, caught)
        } else {
            self.discard(slot, item, Discarded::NotAdmitted);
            Routed::Done
        }
    }

    /// Gives an item that was admitted to its one recipient, or holds it.
    fn put(&mut self, slot: usize, item: V, caught: bool) -> Routed {
        match self.offer(slot, item) {
            None => {
                self.unblock();
                Routed::Done
            }
            Some(item) => {
                self.hold(item, slot, caught);
                self.block(slot);
                Routed::Held
            }
        }
    }

    fn hold(&mut self, item: V, on: usize, caught: bool) {
        self.totals.queued += 1;
        self.held = Some(Held::Blocked { item, on, caught });
    }

    /// Sends, queues or discards an item, as the terms of its recipient have it. Returns it if it has
    /// to wait.
    fn offer(&mut self, slot: usize, item: V) -> Option<V> {
        let tenant = &self.table[slot];
        let (queued, room) = (tenant.is_queued(), tenant.has_room());
        if queued && room {
            self.enqueue(slot, item);
            self.accepted(slot);
            return None;
        }
        match self.ask(slot) {
            Ok(true) => self.send_in_order(slot, item, queued),
            Ok(false) if room => {
                self.enqueue(slot, item);
                self.accepted(slot);
            }
            Ok(false) => return self.overflow(slot, item),
            Err(error) => self.remove(slot, Detached::Failed(error), Some(item)),
        }
        None
    }

    /// The sink is ready: it gets the item, or the head of its queue, which the item then joins.
    fn send_in_order(&mut self, slot: usize, item: V, queued: bool) {
        let mut head = item;
        if queued {
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
    fn overflow(&mut self, slot: usize, item: V) -> Option<V> {
        match self.table[slot].overflow() {
            Overflow::Wait => return Some(item),
            Overflow::DropOldest if self.table[slot].has_buffer() => {
                let oldest = self.dequeue(slot);
                self.enqueue(slot, item);
                if let Some(oldest) = oldest {
                    self.discard(slot, oldest, Discarded::Overflowed);
                }
                self.accepted(slot);
            }
            Overflow::DropNewest | Overflow::DropOldest => {
                self.discard(slot, item, Discarded::Overflowed);
            }
            Overflow::Evict => self.remove(slot, Detached::Overflowed, Some(item)),
        }
        None
    }

    /// Tries again to let go of an item that is blocked. Whether anything is still held.
    pub(crate) fn let_go(&mut self) -> Routed {
        let &Some(Held::Blocked { on, caught, .. }) = &self.held else {
            return Routed::Done;
        };
        if self.is_blocked() {
            return Routed::Held;
        }
        if !caught && self.table[on].is_grouped() {
            return self.let_go_to_group(on);
        }
        self.take_held().map_or(Routed::Done, |item| self.put(on, item, caught))
    }

    /// Several want it. Each is asked whether it may have it; who may not discards its copy at once.
    fn route_group(&mut self, first: usize, item: V) -> Routed {
        let (mut admitted, mut refused, mut heir) = (0, 0, first);
        let mut next = Some(first);
        while let Some(slot) = next {
            next = self.table.next(slot);
            if self.hooks.admit(self.table[slot].recipient(), &item) {
                (admitted, heir) = (admitted + 1, slot);
            } else {
                refused += 1;
                self.table[slot].set_refused(true);
            }
        }
        if let Some(item) = self.refuse(first, item, refused, admitted == 0) {
            self.hold(item, heir, false);
            if self.let_go_to_group(heir) == Routed::Held {
                return Routed::Held;
            }
        }
        Routed::Spread(admitted + refused - 1)
    }

    /// Discards the copies of those who were refused, and gives the item back unless `all` were.
    fn refuse(&mut self, first: usize, item: V, mut refused: usize, all: bool) -> Option<V> {
        let mut next = (refused != 0).then_some(first);
        while let Some(slot) = next {
            next = self.table.next(slot);
            if self.table[slot].has_refused() {
                refused -= 1;
                if all && refused == 0 {
                    self.discard(slot, item, Discarded::NotAdmitted);
                    self.clear_refusals(Some(first));
                    return None;
                }
                let copy = self.copy(&item);
                self.discard(slot, copy, Discarded::NotAdmitted);
            }
        }
        Some(item)
    }

    fn copy(&mut self, item: &V) -> V {
        self.totals.copies += 1;
        let clone = self.clone_item.expect("a key has several sinks only after `multicast`");
        clone(item)
    }

    /// Lets go of the item that is held for the group of `on`, if none of them wants it to wait.
    ///
    /// All are looked at before the first clone is made. One that fails meanwhile leaves the group,
    /// and may have been the last who wanted the item.
    fn let_go_to_group(&mut self, mut on: usize) -> Routed {
        // Those before the one it waits for could take it, and still can: their queues stood still.
        let mut next = self.blocked_on.or_else(|| self.table.first_like(on));
        while let Some(slot) = next {
            next = self.table.next(slot);
            match self.can_take(slot) {
                Ok(true) => {}
                Ok(false) => {
                    self.block(slot);
                    return Routed::Held;
                }
                Err(error) => self.remove(slot, Detached::Failed(error), None),
            }
            let &Some(Held::Blocked { on: heir, .. }) = &self.held else {
                return Routed::Done;
            };
            on = heir;
        }
        self.unblock();
        self.hand_out(on)
    }

    /// Would the held item not have to wait for `slot`?
    fn can_take(&mut self, slot: usize) -> Result<bool, S::Error> {
        let tenant = &self.table[slot];
        if tenant.has_refused() || tenant.overflow() != Overflow::Wait || tenant.has_room() {
            return Ok(true);
        }
        self.ask(slot)
    }

    /// Gives the held item to all in the group of `on` that are to have it: a clone to each, the last
    /// one the item itself.
    fn hand_out(&mut self, on: usize) -> Routed {
        let first = self.table.first_like(on);
        let wanted =
            self.table.group(first).filter(|&slot| !self.table[slot].has_refused()).count();
        let (mut item, mut left, mut next) = (self.take_held(), wanted, first);
        while let Some(slot) = next {
            next = self.table.next(slot);
            if self.table[slot].has_refused() {
                self.table[slot].set_refused(false);
                continue;
            }
            left -= 1;
            let copy =
                if left == 0 { item.take() } else { item.as_ref().map(|item| self.copy(item)) };
            let Some(copy) = copy else { continue };
            let waits = self.offer(slot, copy);
            debug_assert!(waits.is_none(), "it could take the item a moment ago");
        }
        Routed::Spread(wanted.saturating_sub(1))
    }
}
