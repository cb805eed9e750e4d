//! Where an item goes: to its sink, into its queue, to the hooks, or nowhere yet.
//!
//! [`route`](Router::route) is the hot path. One test finds out whether anything about a slot is
//! unusual; cold functions deal with that. Each decision is made in one function:
//! [`find_place`](Router::find_place) (is there room for an item?), [`give`](Router::give) (what
//! happens to the item) and `overflow` (what happens if there is no room).

use core::hash::{BuildHasher, Hash};
use core::task::Poll;

use futures_sink::Sink;

use super::Router;
use crate::budget::Share;
use crate::hooks::{Detached, Discarded, Hooks};
use crate::id::SlotId;
use crate::key::sealed::{AttachOnDemand, FindByKey};
use crate::order::Overflow;
use crate::slot::LeaveReason;

/// Why an item cannot be sent on the hot path.
pub(crate) enum SlowPath<V, E> {
    /// No slot has its key.
    Unknown(V),
    /// Its slot is known to be busy, or limited, or one of several.
    Slow(SlotId, V),
    /// The hooks did not admit it.
    NotAdmitted(SlotId, V),
    /// Its sink has just answered that it is not ready, or failed.
    Unready(SlotId, V, Poll<Result<(), E>>),
    /// Its sink failed in `start_send`.
    Failed(SlotId, E),
}

/// Where a slot has room for an item.
pub(super) enum Place<E> {
    /// Its sink is ready: it gets the item or, if items are queued, the first of them, and the item
    /// is queued.
    Sink,
    /// Its queue has room.
    Queue,
    /// There is none: its sink is not ready, and its queue is full or, under `Conflate`, not empty.
    /// The policy decides.
    None(Unready, Overflow),
    /// Its sink failed.
    Failed(E),
}

/// What is known about a sink that is not ready.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unready {
    /// It answered `Pending`, and its waker has not fired since.
    Full,
    /// Its waker has fired since it answered `Pending` the last time.
    Woken,
    /// It was polled just now, and its waker had fired by the time it answered `Pending`.
    Yielded,
}

impl<K, S, V, H, B> Router<K, S, V, H, B> {
    /// An item was read.
    #[inline]
    pub(crate) fn received(&mut self) {
        self.ledger.received();
    }

    /// How many items may be read before sinks are to be flushed.
    pub(crate) fn items_before_flush(&mut self) -> u64 {
        let received = self.ledger.count_received();
        self.slots.flushes_mut().due_in(received)
    }

    /// Returns `true` if [`route`](Self::route) is better done without branches: see
    /// [`Flushes::push`](crate::flush::Flushes::push).
    pub(crate) fn prefers_branchless(&self) -> bool {
        self.slots.flushes().lists_many()
    }
}

impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Routes an item to the sink of its key, if nothing is in the way.
    #[expect(clippy::inline_always, reason = "it is the body of the hot loop")]
    #[inline(always)]
    pub(crate) fn route<const BRANCHLESS: bool, F>(
        &mut self,
        key: &mut F,
        item: V,
    ) -> Result<(), SlowPath<V, S::Error>>
    where
        F: FindByKey<V, K> + AttachOnDemand<V, K, S>,
    {
        let Self { slots, ledger, .. } = self;
        let Some(mut slot) = slots.find_for(key, &item) else {
            return Err(SlowPath::Unknown(item));
        };
        if !slot.is_fast() {
            return Err(SlowPath::Slow(slot.id(), item));
        }
        if !ledger.admit(slot.recipient(), &item) {
            return Err(SlowPath::NotAdmitted(slot.id(), item));
        }
        let answer = slot.poll_ready();
        if !matches!(answer, Poll::Ready(Ok(()))) {
            return Err(SlowPath::Unready(slot.id(), item, answer));
        }
        if let Err(error) = slot.send::<BRANCHLESS>(item, ledger.count_received()) {
            return Err(SlowPath::Failed(slot.id(), error));
        }
        ledger.delivered();
        Ok(())
    }

    /// Routes an item that cannot be sent on the hot path, or holds it. `share` is what may be
    /// spent on the members of its group except the first. Returns `true` if nothing is held.
    #[cold]
    #[inline(never)]
    pub(crate) fn route_slow<F>(
        &mut self,
        key: &mut F,
        path: SlowPath<V, S::Error>,
        share: &mut Share,
    ) -> bool
    where
        F: FindByKey<V, K> + AttachOnDemand<V, K, S>,
    {
        match path {
            SlowPath::Unknown(item) => {
                let attach = if self.is_finished() { None } else { key.attach_for(&item) };
                let path = match attach {
                    None => Some(SlowPath::Unknown(item)),
                    Some(attach) => {
                        self.attach_on_demand(attach, share);
                        self.route::<false, _>(key, item).err()
                    }
                };
                if let Some(path) = path {
                    self.route_known(path, share);
                }
            }
            path => self.route_known(path, share),
        }
        self.holding.is_empty()
    }

    /// The same, but attaches no sink if no slot has the key of the item.
    fn route_known(&mut self, path: SlowPath<V, S::Error>, share: &mut Share) {
        self.holding.set_caught(matches!(path, SlowPath::Unknown(_)));
        match path {
            SlowPath::Unknown(item) => match self.slots.catch_all() {
                Some(id) => self.route_to(id, item),
                None => self.ledger.unmatched(item),
            },
            SlowPath::Slow(id, item) => match self.slots.group_of(id) {
                Some((group, _)) => self.send_to_group(group, item, share),
                None => self.route_to(id, item),
            },
            SlowPath::Unready(id, item, answer) => {
                let place = self.find_place_after(id, answer);
                self.give_or_hold(id, item, place);
            }
            SlowPath::NotAdmitted(id, item) => self.discard(id, item, Discarded::NotAdmitted),
            SlowPath::Failed(id, error) => self.lose(id, error),
        }
    }

    /// Routes an item that orders have overtaken.
    #[cold]
    #[inline(never)]
    pub(super) fn route_overtaken<F>(&mut self, key: &mut F, item: V, share: &mut Share)
    where
        F: FindByKey<V, K> + AttachOnDemand<V, K, S>,
    {
        if let Err(path) = self.route::<false, _>(key, item) {
            self.route_slow(key, path, share);
        }
    }

    /// Routes an item to the one slot that it is for.
    fn route_to(&mut self, id: SlotId, item: V) {
        if self.ledger.admit(self.slots.recipient(id), &item) {
            self.place(id, item);
        } else {
            self.discard(id, item, Discarded::NotAdmitted);
        }
    }

    /// Finds out where a slot has room for an item. The slot must get the item then: its sink may
    /// have reserved something for it.
    pub(super) fn find_place(&mut self, id: SlotId) -> Place<S::Error> {
        let mut slot = self.slots.entry(id);
        if slot.is_queued() && slot.can_queue() {
            Place::Queue
        } else if slot.is_parked() {
            self.find_place_beside(id, Unready::Woken)
        } else {
            let answer = slot.poll_ready();
            self.find_place_after(id, answer)
        }
    }

    /// The same when the sink has just been polled.
    pub(super) fn find_place_after(
        &mut self,
        id: SlotId,
        answer: Poll<Result<(), S::Error>>,
    ) -> Place<S::Error> {
        match answer {
            Poll::Ready(Ok(())) => Place::Sink,
            Poll::Ready(Err(error)) => Place::Failed(error),
            Poll::Pending => {
                self.park(id);
                self.find_place_beside(id, Unready::Yielded)
            }
        }
    }

    /// The same when the sink is not ready. `again` is the result if it will be polled again.
    fn find_place_beside(&mut self, id: SlotId, again: Unready) -> Place<S::Error> {
        let slot = self.slots.entry(id);
        if slot.can_queue() {
            Place::Queue
        } else {
            let unready = if slot.is_to_be_polled() { again } else { Unready::Full };
            Place::None(unready, slot.overflow())
        }
    }

    /// Sends, queues or discards an item, depending on its place and the terms of its recipient.
    pub(super) fn give(&mut self, id: SlotId, item: V, place: Place<S::Error>) {
        match place {
            Place::Sink => self.send_in_order(id, item),
            Place::Queue => {
                self.enqueue(id, item);
                self.accept(id);
            }
            Place::None(_, policy) => self.overflow(id, item, policy),
            Place::Failed(error) => self.remove(id, Detached::Failed(error), Some(item)),
        }
    }

    /// Sends the item to a sink that is ready. If items are queued, sends the first of them and
    /// queues the item.
    fn send_in_order(&mut self, id: SlotId, item: V) {
        let received = self.ledger.count_received();
        let mut slot = self.slots.entry(id);
        if slot.is_queued() && slot.conflates() {
            return self.send_and_conflate(id, item);
        }
        let head = slot.push_pop(item);
        match slot.send::<false>(head, received) {
            Ok(()) => {
                self.ledger.delivered();
                if !slot.accept() {
                    self.reach_limit(id);
                }
            }
            Err(error) => self.lose(id, error),
        }
    }

    /// The same for a slot that conflates: the item may replace one that stays in the queue.
    #[cold]
    fn send_and_conflate(&mut self, id: SlotId, item: V) {
        let Some(head) = self.dequeue(id) else { return };
        let received = self.ledger.count_received();
        match self.slots.entry(id).send::<false>(head, received) {
            Ok(()) => {
                self.ledger.delivered();
                if self.join_queue(id, item) {
                    self.accept(id);
                }
            }
            Err(error) => {
                self.enqueue(id, item);
                self.lose(id, error);
            }
        }
    }

    /// Queues an item. If the slot conflates, and the item supersedes one that waits, it takes the
    /// place of that one, and `false` is returned.
    pub(super) fn join_queue(&mut self, id: SlotId, item: V) -> bool {
        let mut slot = self.slots.slot_mut(id);
        let conflates = slot.conflates();
        let mut position = 0;
        while let (true, Some(waiting)) = (conflates, slot.queued(position)) {
            if self.ledger.supersedes(slot.recipient(), waiting, &item) {
                let superseded = slot.replace_queued(position, item);
                self.discard(id, superseded, Discarded::Conflated);
                return false;
            }
            position += 1;
        }
        self.enqueue(id, item);
        true
    }

    /// Counts an item towards the limit of a slot.
    fn accept(&mut self, id: SlotId) {
        if !self.slots.slot_mut(id).accept() {
            self.reach_limit(id);
        }
    }

    /// The slot has accepted the last item that it may: its key is free.
    #[cold]
    fn reach_limit(&mut self, id: SlotId) {
        self.leave(id, LeaveReason::Limited);
        self.advance_unless_listed(id, &mut Share::new(0));
    }

    /// The sink is not ready, and there is no room in the queue.
    fn overflow(&mut self, id: SlotId, item: V, policy: Overflow) {
        match policy {
            // Under `Wait` the item is held and does not come here.
            Overflow::Wait | Overflow::DropNewest => {
                self.discard(id, item, Discarded::Overflowed);
            }
            Overflow::DropOldest => {
                let oldest = self.dequeue(id);
                self.enqueue(id, item);
                if let Some(oldest) = oldest {
                    self.discard(id, oldest, Discarded::Overflowed);
                }
                self.accept(id);
            }
            Overflow::Evict => self.remove(id, Detached::Overflowed, Some(item)),
            Overflow::Conflate => {
                let had_room = self.slots.slot_mut(id).has_room();
                if !self.join_queue(id, item) {
                    return;
                }
                if !had_room {
                    if let Some(oldest) = self.dequeue(id) {
                        self.discard(id, oldest, Discarded::Overflowed);
                    }
                }
                self.accept(id);
            }
        }
    }

    /// A sink failed while it took an item.
    #[cold]
    pub(super) fn lose(&mut self, id: SlotId, error: S::Error) {
        self.ledger.lost();
        self.remove(id, Detached::Failed(error), None);
    }

    #[cold]
    pub(super) fn discard(&mut self, id: SlotId, item: V, why: Discarded) {
        self.ledger.discarded(self.slots.recipient(id), item, why);
    }

    pub(super) fn enqueue(&mut self, id: SlotId, item: V) {
        self.ledger.queued(1);
        self.slots.slot_mut(id).push(item);
    }

    pub(super) fn dequeue(&mut self, id: SlotId) -> Option<V> {
        let item = self.slots.slot_mut(id).pop();
        self.ledger.unqueued(usize::from(item.is_some()));
        item
    }
}
