//! An item for one of several sinks: it goes to the next member of its group that is ready.
//!
//! The members share one queue, which is that of the *head*, the member that joined first. The
//! members that may be ready stand in a line. A member that answers `Pending` leaves the line and is
//! parked. When its waker has fired, it returns to the front of the line. A member that takes an
//! item goes to the end. So the cost of finding one that is ready, or the one that has been parked
//! longest, does not depend on how many there are.

use core::hash::{BuildHasher, Hash};
use core::mem;
use core::task::Poll;

use futures_sink::Sink;

use super::budget::Allowance;
use super::sinks::Drained;
use super::{Router, Sharing};
use crate::hooks::{Detached, Discarded, Hooks};
use crate::order::Overflow;
use crate::slots::id::SlotId;

impl<K, S, V, H, B> Router<K, S, V, H, B> {
    pub(super) fn balances(&self) -> bool {
        matches!(self.sharing, Sharing::Balance)
    }

    /// The group of a slot that shares its queue with others.
    pub(super) fn balanced_group(&self, id: SlotId) -> Option<usize> {
        if self.balances() { self.group_of_receiver(id) } else { None }
    }

    #[cold]
    fn group_of_receiver(&self, id: SlotId) -> Option<usize> {
        let (group, _) = self.slots.group_of(id)?;
        self.slots.slot(id).receives().then_some(group)
    }

    /// The slot whose queue a sink takes items from.
    pub(super) fn queue_owner(&self, id: SlotId) -> SlotId {
        let Some(group) = self.balanced_group(id) else { return id };
        self.slots.group(group).head().unwrap_or(id)
    }

    /// The slot whose queue a sink takes items from, and how many it may take in a row.
    pub(super) fn queue_of(&self, id: SlotId) -> (SlotId, usize) {
        let Some(group) = self.balanced_group(id) else { return (id, usize::MAX) };
        let (owner, members) = (self.queue_owner(id), self.slots.group(group).len());
        (owner, self.slots.queue_len(owner).0.div_ceil(members))
    }

    /// The waker of a sink has fired: it is next in turn, if it shares its key.
    pub(super) fn return_to_line(&mut self, id: SlotId) {
        if let Some(group) = self.balanced_group(id) {
            self.slots.to_front_of_line(group, id);
            self.slots.group_mut(group).set_full(false);
        }
    }

    /// A sink has taken an item.
    pub(super) fn go_to_end_of_line(&mut self, id: SlotId) {
        if let Some(group) = self.balanced_group(id) {
            self.slots.to_end_of_line(group, id);
        }
    }

    /// A sink has answered `Pending` when it was polled for an item.
    pub(super) fn park(&mut self, id: SlotId) {
        self.slots.slot_mut(id).park();
        if let Some(group) = self.balanced_group(id) {
            self.slots.step_aside(group, id);
        }
    }
}

impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// A slot was attached. If it shares its key with `head`, it stands in line; so does `head`, if
    /// it was alone.
    pub(super) fn join_line(&mut self, id: SlotId, head: SlotId) {
        let Some(group) = self.balanced_group(id) else { return };
        if self.slots.group(group).len() == 2 {
            if self.slots.slot(head).is_parked() {
                self.slots.step_aside(group, head);
            } else {
                self.slots.to_end_of_line(group, head);
            }
        }
        self.slots.to_end_of_line(group, id);
        self.slots.group_mut(group).set_full(false);
        self.use_more_room(head);
        if self.slots.slot(head).is_queued() {
            self.slots.ready.list(id);
        }
    }

    /// Gives an item to the next member of its group that is ready, or queues it. Each member but
    /// the first that is polled costs one unit, but a spent allowance stops none: a sink in line
    /// has joined or was woken, which has cost one.
    #[cold]
    pub(super) fn balance(&mut self, group: usize, item: V, items: &mut Allowance) {
        let Some(head) = self.slots.group(group).head() else { return };
        if !self.ledger.hooks_mut().admit(self.slots.recipient(head), &item) {
            return self.discard(head, item, Discarded::NotAdmitted);
        }
        if self.slots.slot(head).is_queued() {
            return self.enqueue(head, item);
        }
        let mut is_paid = true; // by the reading of the item
        while let Some(id) = self.slots.group(group).first_in_line() {
            if !mem::take(&mut is_paid) {
                items.spend();
            }
            match self.slots.slot_mut(id).poll_ready() {
                Poll::Pending => self.park(id),
                Poll::Ready(Err(error)) if self.slots.group(group).len() > 1 => {
                    self.remove(id, Detached::Failed(error));
                }
                answer @ Poll::Ready(_) => {
                    self.go_to_end_of_line(id);
                    return self.send_or_queue(id, item, answer);
                }
            }
        }
        if let Some(head) = self.slots.group(group).head() {
            self.enqueue(head, item);
        }
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
                return if is_doubted {
                    self.apply_policy_beyond(head, items);
                };
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
            if slot.is_parked() && (!slot.is_full() || self.slots.ready.has_fired(id)) {
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
        match self.drain(id, polls) {
            Drained::Gone => {}
            _ if !self.slots.slot(id).receives() => self.close_if_leaving(id),
            Drained::Left => self.slots.ready.list(id),
            Drained::Empty => {}
            Drained::Unready => self.slots.slot_mut(id).set_full(),
        }
    }

    /// A member of a group, of which there were `members`, leaves together with the others: takes
    /// an equal part of the queue for it.
    pub(super) fn take_part(&mut self, id: SlotId, group: usize, members: usize) {
        let Some(head) = self.slots.group(group).head() else { return };
        let (len, beyond) = self.slots.queue_len(head);
        let part = len.div_ceil(members);
        let items = self.slots.slot_mut(head).take_front(part);
        self.set_beyond(head, beyond.saturating_sub(part));
        self.slots.slot_mut(id).set_queue(items);
    }
}
