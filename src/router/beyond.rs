//! Items for which a queue has no room, and what a sink's policy does with them.
//!
//! `Pending` does not always mean that a sink is full. Tokio's channels and sockets also answer so
//! when the task has used up its cooperative budget, which may happen after any number of
//! operations: a task that was woken by another one runs with what that one has left of its budget
//! (tokio's LIFO slot). The wake that follows is late on purpose, so it tells nothing either. Only
//! an answer on a whole budget can be believed, and a task that wakes itself while it is polled
//! gets one in its next poll. Therefore an item that finds no room is queued all the same, *beyond
//! the buffer*, and
//!
//! * under `Wait` the *gate* closes: the input waits until that sink takes an item;
//! * under the other policies the slot is *in doubt*: its sink is polled once more at the start of
//!   the next turn. If it is not ready, it is *full*, its policy acts on what is beyond the buffer,
//!   and from then until its waker fires on each further item at once.
//!
//! All items beyond buffers together are at most what one turn reads, and their copies.

use alloc::vec::Vec;
use core::hash::{BuildHasher, Hash};
use core::{iter, mem};

use futures_sink::Sink;

use super::Router;
use super::budget::Allowance;
use super::sinks::Drained;
use crate::hooks::{Detached, Discarded, Hooks};
use crate::order::Overflow;
use crate::slots::id::SlotId;
use crate::slots::slot::Popped;

/// How often sinks in doubt are polled in one turn.
///
/// Tokio's cooperative budget is 128 operations in each poll of a task. A poll of a sink takes one
/// of it; of a sink that wraps others, one for each of them. So with up to 32 polls, `Pending` can
/// be believed of sinks that take up to four, and something is left for the orders that come next.
const POLLS: usize = 32;

/// How many comparisons of an item with those that wait cost as much as an item.
///
/// A comparison takes one or two nanoseconds, an item some tens. With a budget of 1,024 a turn
/// makes up to 65,536 comparisons, which take about a tenth of a millisecond, and then those of one
/// more item.
const COMPARISONS: usize = 64;

/// A queue whose sinks are full.
#[derive(Clone, Copy)]
pub(super) struct FullQueue {
    /// The slot that it belongs to.
    pub(super) owner: SlotId,
    /// How many items it has room for.
    pub(super) room: usize,
    /// The slot that leaves under [`Overflow::Evict`].
    pub(super) victim: SlotId,
}

/// Which sink the input waits for, which were polled again, and what the policies have cost.
#[derive(Default)]
pub(super) struct Beyond {
    /// The slot that `Hooks::blocked` was called for last, until `Hooks::unblocked` is.
    blocked_on: Option<SlotId>,
    /// The gate was closed at the end of a turn since the last tick.
    was_closed: bool,
    /// The sinks that were in doubt and were polled in this turn. At most [`POLLS`].
    polled: Vec<SlotId>,
    /// How many comparisons were made that no allowance has paid for.
    comparisons: usize,
}

impl Beyond {
    /// A turn begins: no sink in doubt was polled in it yet.
    pub(super) fn begin_turn(&mut self) {
        self.polled.clear();
    }

    /// The slot that `Hooks::blocked` was called for last, until `Hooks::unblocked` is.
    pub(super) fn blocked_on(&self) -> Option<SlotId> {
        self.blocked_on
    }

    /// Returns `true` if a sink was in doubt and was polled in this turn: a wake of it is left for
    /// the next one.
    pub(super) fn was_polled(&self, id: SlotId) -> bool {
        self.polled.contains(&id)
    }

    /// A tick was read: a unit of time is over. Returns `true` if the gate was closed at the end of
    /// a turn in it.
    pub(super) fn end_unit(&mut self) -> bool {
        mem::take(&mut self.was_closed)
    }
}

impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Names the first sink that the input waits for, if none is named. One whose waker has fired
    /// will take an item in the next turn.
    pub(crate) fn name_blocked(&mut self) {
        if self.is_finished() {
            return;
        }
        let Some(id) = self.slots.queues().first_at_gate() else { return };
        self.beyond.was_closed = true;
        if self.beyond.blocked_on.is_none() && !self.slots.ready().has_fired(id) {
            self.beyond.blocked_on = Some(id);
            self.ledger.hooks_mut().blocked(self.slots.recipient(id));
        }
    }

    /// The input no longer waits for a slot: it stops receiving, or all its items fit the buffer.
    pub(super) fn unblock_from(&mut self, id: SlotId) {
        if self.beyond.blocked_on == Some(id) {
            self.unblock();
        }
    }

    /// The input no longer waits for the sink that it waited for.
    pub(super) fn unblock(&mut self) {
        if let Some(id) = self.beyond.blocked_on.take() {
            self.ledger.hooks_mut().unblocked(self.slots.recipient(id));
        }
    }

    /// Queues an item that was admitted and that the sink has not taken.
    pub(super) fn enqueue(&mut self, id: SlotId, item: V, items: &mut Allowance) {
        let slot = self.slots.slot_mut(id);
        let room = slot.buffer();
        if slot.overflow() != Overflow::Wait && slot.is_known_full() {
            self.apply_policy_to(item, self.own_queue(id), items);
        } else {
            self.enqueue_within(id, item, room);
        }
    }

    /// Queues an item. If the queue has no room for it, it is beyond the buffer.
    #[inline]
    pub(super) fn enqueue_within(&mut self, id: SlotId, item: V, room: usize) {
        if !self.slots.slot_mut(id).enqueue(item, room) {
            self.reach_limit(id);
        }
    }

    /// The queue of a slot that shares it with no other.
    fn own_queue(&self, id: SlotId) -> FullQueue {
        FullQueue { owner: id, room: self.slots.buffer(id), victim: id }
    }

    /// Polls the sinks in doubt once more, now that the cooperative budget of the task is fresh.
    /// `items` pays for the comparisons of policies.
    pub(crate) fn settle_doubts(&mut self, limit: usize, items: &mut Allowance) {
        if !self.is_in_doubt() {
            return;
        }
        let mut polls = Allowance::new(limit.min(POLLS));
        while !polls.is_spent() && !items.is_spent() {
            let Some(id) = self.slots.queues().first_in_doubt() else { break };
            if let Some(group) = self.slots.shared_group(id) {
                self.ask_group(group, &mut polls, items);
                continue;
            }
            if self.slots.slot_mut(id).is_known_full() {
                // `items` did not suffice for its policy in the turn before.
                self.apply_policy_beyond(self.own_queue(id), items);
                continue;
            }
            self.unpark(id);
            match self.drain_own(id, &mut polls) {
                Drained::Unready => {
                    self.slots.slot_mut(id).set_full();
                    self.apply_policy_beyond(self.own_queue(id), items);
                }
                Drained::Partly => self.slots.ready().list(id),
                Drained::Gone => {}
                Drained::Empty => self.close_if_leaving(id),
            }
        }
    }

    /// Allows one more poll of a sink in doubt. That uses up a wake that has come meanwhile.
    pub(super) fn unpark(&mut self, id: SlotId) {
        self.beyond.polled.push(id);
        let has_fired = self.slots.ready().take_fired(id);
        let mut slot = self.slots.slot_mut(id);
        if has_fired {
            slot.wake();
        } else {
            slot.unpark();
        }
    }

    /// The sinks of a queue are full: the policy acts on the items beyond the buffer, as if they
    /// came now. `items` pays for the comparisons. If it does not suffice, the rest stays beyond
    /// the buffer, and the slot in doubt, behind the others.
    pub(super) fn apply_policy_beyond(&mut self, queue: FullQueue, items: &mut Allowance) {
        let id = queue.owner;
        let mut slot = self.slots.slot_mut(id);
        if !slot.is_beyond() {
            return;
        }
        debug_assert!(slot.receives());
        let mut beyond = slot.split_beyond();
        let most = items.left().saturating_mul(COMPARISONS);
        self.apply_policy(queue, &mut iter::from_fn(|| beyond.pop_front()), most);
        self.pay_comparisons(items);
        if !beyond.is_empty() {
            self.slots.slot_mut(id).restore_beyond(beyond);
        }
    }

    /// The policy acts on an item that comes while the sinks of a queue are full. `items` pays for
    /// the comparisons, but a spent allowance stops none of them.
    pub(super) fn apply_policy_to(&mut self, item: V, queue: FullQueue, items: &mut Allowance) {
        self.apply_policy(queue, &mut iter::once(item), usize::MAX);
        self.pay_comparisons(items);
    }

    /// Spends what the comparisons cost that were made since this was called last.
    fn pay_comparisons(&mut self, items: &mut Allowance) {
        items.spend_up_to(self.beyond.comparisons / COMPARISONS);
        self.beyond.comparisons %= COMPARISONS;
    }

    /// The policy acts on items that come while the sinks of a queue are full, until `most`
    /// comparisons are to be paid for.
    fn apply_policy(&mut self, queue: FullQueue, items: &mut dyn Iterator<Item = V>, most: usize) {
        let FullQueue { owner: id, room, victim } = queue;
        while self.beyond.comparisons < most {
            let Some(mut item) = items.next() else { return };
            // Nothing in the queue is beyond the buffer now.
            let has_room = self.slots.queue_len(id) < room;
            match self.slots.slot(id).overflow() {
                Overflow::Conflate => match self.conflate(id, item) {
                    Some(unlike) => item = unlike,
                    None => continue,
                },
                Overflow::DropNewest if !has_room => {
                    self.ledger.discarded(self.slots.recipient(id), item, Discarded::Overflowed);
                    continue;
                }
                Overflow::Evict if !has_room => {
                    let mut slot = self.slots.slot_mut(id);
                    slot.push(item);
                    items.for_each(|item| slot.push(item));
                    // What is beyond the room is accepted then.
                    return self.remove(victim, Detached::Overflowed);
                }
                _ => {}
            }
            if !has_room {
                self.drop_oldest(id);
            }
            let mut slot = self.slots.slot_mut(id);
            slot.push(item);
            if !slot.accept_queued() {
                items.for_each(|item| slot.push_beyond(item));
                return self.reach_limit(id);
            }
        }
    }

    /// Puts an item in the place of the oldest one that it supersedes. Returns it if there is none.
    fn conflate(&mut self, id: SlotId, item: V) -> Option<V> {
        let slot = self.slots.slot_mut(id);
        let hooks = self.ledger.hooks_mut();
        let to = slot.recipient();
        let comparisons = &mut self.beyond.comparisons;
        let position = slot.queue().position(|waiting| {
            *comparisons += 1;
            hooks.supersedes(to, waiting, &item)
        });
        let Some(position) = position else { return Some(item) };
        let old = self.slots.slot_mut(id).replace_queued(position, item);
        self.ledger.discarded(self.slots.recipient(id), old, Discarded::Conflated);
        None
    }

    fn drop_oldest(&mut self, id: SlotId) {
        if let Some(Popped { item, .. }) = self.slots.slot_mut(id).pop() {
            self.ledger.discarded(self.slots.recipient(id), item, Discarded::Overflowed);
        }
    }
}
