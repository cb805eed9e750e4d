//! An item for one of several sinks: it goes to the next member of its group that is ready.
//!
//! The members share one queue, which is that of the *head*, the member that joined first. The
//! members that may be ready stand in a line. A member that answers `Pending` leaves the line and
//! is parked. When its waker has fired, it returns to the front of the line. A member that takes an
//! item goes to the end. So the cost of finding one that is ready, or the one that has been parked
//! longest, does not depend on how many there are.

use core::hash::{BuildHasher, Hash};
use core::mem;
use core::task::Poll;

use futures_sink::Sink;

use super::Router;
use super::beyond::FullQueue;
use super::budget::Allowance;
use super::sinks::Drained;
use crate::hooks::{Detached, Discarded, Hooks};
use crate::order::Overflow;
use crate::slots::id::SlotId;

impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Gives an item to the next member of its group that is ready, or queues it. Each member but
    /// the first that is polled costs one unit, but a spent allowance stops none: a sink in line
    /// has joined or was woken, which has cost one.
    #[cold]
    pub(super) fn balance(&mut self, group: usize, item: V, items: &mut Allowance) {
        let Some(head) = self.slots.group(group).head() else { return };
        if !self.ledger.hooks_mut().admit(self.slots.recipient(head), &item) {
            self.ledger.discarded(self.slots.recipient(head), item, Discarded::NotAdmitted);
            return;
        }
        if self.slots.slot(head).is_queued() {
            return self.enqueue_shared(group, head, item, items);
        }
        let mut is_paid = true; // by the reading of the item
        while let Some(id) = self.slots.group(group).first_in_line() {
            if !mem::take(&mut is_paid) {
                items.spend();
            }
            match self.slots.slot_mut(id).poll_ready() {
                Poll::Pending => {
                    self.slots.slot_mut(id).park();
                    self.slots.step_aside(group, id);
                }
                Poll::Ready(Err(error)) if self.slots.group(group).len() > 1 => {
                    self.remove(id, Detached::Failed(error));
                }
                answer @ Poll::Ready(_) => {
                    self.slots.line_up_last(group, id);
                    return self.send_or_queue(id, item, answer, items);
                }
            }
        }
        if let Some(head) = self.slots.group(group).head() {
            self.enqueue_shared(group, head, item, items);
        }
    }

    /// Queues an item that was admitted and that no member has taken.
    fn enqueue_shared(&mut self, group: usize, head: SlotId, item: V, items: &mut Allowance) {
        if self.slots.slot(head).overflow() != Overflow::Wait && self.is_group_full(group, head) {
            self.apply_policy_to(item, self.shared_queue(group, head), items);
        } else {
            self.enqueue_within(head, item, self.slots.group(group).room());
        }
    }

    /// Returns `true` if no member was ready when a turn began with polling them, and none was
    /// woken since.
    fn is_group_full(&self, group: usize, head: SlotId) -> bool {
        let members = self.slots.group(group);
        let is_woken = if members.len() > 1 {
            self.slots.ready().any()
        } else {
            self.slots.ready().has_fired(head)
        };
        members.is_full() && !is_woken
    }

    /// The queue of a group. The policy `Evict` ends the member that has been parked longest.
    fn shared_queue(&self, group: usize, head: SlotId) -> FullQueue {
        let members = self.slots.group(group);
        let victim = members.longest_unready().unwrap_or(head);
        FullQueue { owner: head, room: members.room(), victim }
    }

    /// Lets a member take its share of the queue of its group.
    pub(super) fn drain_member(
        &mut self,
        id: SlotId,
        group: usize,
        polls: &mut Allowance,
    ) -> Drained {
        let members = self.slots.group(group);
        let owner = members.head().unwrap_or(id);
        let share = self.slots.queue_len(owner).div_ceil(members.len());
        let mut left = share;
        let drained = self.drain_queue(id, owner, &mut left, polls);
        if matches!(drained, Drained::Gone) || self.slots.shared_group(id).is_none() {
            return drained; // it has left the group
        }
        if left < share {
            self.slots.line_up_last(group, id);
        }
        if matches!(drained, Drained::Unready) {
            self.slots.step_aside(group, id);
        }
        drained
    }

    /// Polls the members of a group whose queue is in doubt, as far as `polls` goes. If none is
    /// ready then, the policy acts, and `items` pays for its comparisons.
    pub(super) fn ask_group(&mut self, group: usize, polls: &mut Allowance, items: &mut Allowance) {
        self.slots.group_mut(group).start();
        loop {
            let Some(head) = self.slots.group(group).head() else { return };
            // First those that are parked, then those that are in line by then.
            let parked = self.next_to_ask(group);
            let next = parked.or_else(|| self.slots.group(group).first_in_line());
            // The head may be another one, with another policy.
            let slot = self.slots.slot(head);
            let is_doubted = slot.is_beyond() && slot.overflow() != Overflow::Wait;
            let Some(id) = next else {
                self.slots.group_mut(group).set_full(true);
                if is_doubted {
                    self.apply_policy_beyond(self.shared_queue(group, head), items);
                }
                return;
            };
            if !is_doubted || polls.is_spent() {
                return;
            }
            let is_last = self.slots.group(group).len() == 1;
            self.ask_member(id, group, polls);
            if is_last && self.slots.get(id).is_none_or(|slot| !slot.receives()) {
                return; // so is the group
            }
        }
    }

    /// The next member that is parked and not known to be full.
    fn next_to_ask(&mut self, group: usize) -> Option<SlotId> {
        while let Some(id) = self.slots.group_mut(group).next() {
            let slot = self.slots.slot(id);
            if slot.is_parked() && (!slot.is_full() || self.slots.ready().has_fired(id)) {
                return Some(id);
            }
        }
        None
    }

    /// Lets a member take its share of a queue in doubt. If its sink takes nothing, it has been
    /// parked for as long as before.
    fn ask_member(&mut self, id: SlotId, group: usize, polls: &mut Allowance) {
        self.slots.group_mut(group).set_full(false);
        self.unpark(id);
        match self.drain_member(id, group, polls) {
            Drained::Gone => {}
            _ if !self.slots.slot(id).receives() => self.close_if_leaving(id),
            Drained::Partly => self.slots.ready().list(id),
            Drained::Empty => {}
            Drained::Unready => self.slots.slot_mut(id).set_full(),
        }
    }
}
