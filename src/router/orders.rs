//! What an order does, and what the end of a lease does.

use alloc::collections::VecDeque;
use core::hash::{BuildHasher, Hash};
use core::mem;

use futures_sink::Sink;

use super::held::Exit;
use super::{Router, Sharing};
use crate::budget::Share;
use crate::hooks::{Detached, Hooks, Recipient};
use crate::id::SlotId;
use crate::key::sealed::{AttachOnDemand, FindByKey};
use crate::lease::LeaseRequest;
use crate::order::{Attach, Order, Terms};
use crate::slot::{LeaveReason, Stage};
use crate::slots::NewSlot;

impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Applies an order, and returns it if `share` did not suffice for all of it.
    ///
    /// `key` finds the slot of an item that this order has overtaken. `share` is what may be spent
    /// on draining and closing, and on the members of a group. If the order is `fresh`, reading it
    /// has paid for the first member.
    pub(crate) fn apply<F>(
        &mut self,
        key: &mut F,
        order: Order<K, S>,
        fresh: bool,
        share: &mut Share,
    ) -> Option<Order<K, S>>
    where
        F: FindByKey<V, K> + AttachOnDemand<V, K, S>,
    {
        let mut is_paid = fresh;
        match order {
            Order::Attach(attach) => self.attach(attach, share),
            Order::Detach(key) => {
                while let Some(id) = self.slots.find(&key) {
                    if !mem::take(&mut is_paid) && !share.spend() {
                        return Some(Order::Detach(key));
                    }
                    self.leave_with_queue(id, LeaveReason::Requested);
                    self.advance_unless_listed(id, share);
                }
            }
            Order::Evict(key) => {
                while let Some(id) = self.find_any(&key) {
                    if !mem::take(&mut is_paid) && !share.spend() {
                        return Some(Order::Evict(key));
                    }
                    self.remove_with_queue(id, Detached::Evicted, None);
                }
            }
            Order::Tick => self.tick(),
            Order::Finish => {
                self.release_overtaken(key, share);
                self.finish();
            }
        }
        None
    }

    /// Ends the attachments whose leases have ended. Returns `false` if some are left because
    /// `share` is spent.
    pub(crate) fn end_leases(&mut self, share: &mut Share) -> bool {
        while share.spend() {
            let Some(id) = self.slots.ready_mut().pop_ended() else {
                share.add(Share::new(1));
                return true;
            };
            // Stale wake: the slot is vacant, or another attachment has it.
            match self.slots.lease_request(id) {
                Some(LeaseRequest::Evict) => self.remove(id, Detached::Evicted, None),
                Some(LeaseRequest::Detach) if self.slots.slot(id).receives() => {
                    self.detach(id, share);
                }
                _ => {}
            }
        }
        !self.has_ended_leases()
    }

    /// A slot that receives or is leaving under a key, in this order.
    fn find_any(&self, key: &K) -> Option<SlotId> {
        self.slots.find(key).or_else(|| self.slots.find_leaving(key))
    }

    fn detach(&mut self, id: SlotId, share: &mut Share) {
        self.leave(id, LeaveReason::Requested);
        self.advance_unless_listed(id, share);
    }

    /// Attaches a sink for an item that matches no key. It costs one, as an order does. If the item
    /// was read with the last of the budget, its sink is still attached.
    pub(super) fn attach_on_demand(&mut self, attach: Attach<K, S>, share: &mut Share) {
        share.spend();
        self.attach(attach, share);
    }

    /// Attaches a sink, on its terms.
    fn attach(&mut self, attach: Attach<K, S>, share: &mut Share) {
        let Attach { key, sink, mut terms, claim } = attach;
        let to = Recipient { key: &key, tag: terms.tag };
        // Before the hook is called: a lease that it ends comes after this order.
        let request = claim.as_ref().map_or(LeaseRequest::Stay, |claim| claim.request());
        self.ledger.attached(to);
        if request == LeaseRequest::Evict {
            drop(sink);
            return self.ledger.detached(to, Detached::Evicted);
        }
        terms.buffer.get_or_insert(self.defaults.buffer);
        terms.overflow.get_or_insert(self.defaults.overflow);
        terms.stall_timeout.get_or_insert(self.defaults.stall_timeout);
        terms.idle_timeout.get_or_insert(self.defaults.idle_timeout);
        let taken = self.slots.find(&key);
        let (catch_all, limited) = (terms.catch_all, terms.limit.is_some());
        let rejection = self.rejection(&terms, request, taken.is_some());
        let stage = rejection.map_or(Stage::Receiving, Stage::Leaving);
        let replaces = stage == Stage::Receiving && matches!(self.sharing, Sharing::None);
        let old = taken.filter(|_| replaces);
        let backlog = old.map(|old| self.replace(old));
        let id = self.slots.insert(NewSlot { key, sink, terms, claim, stage });
        if stage == Stage::Receiving && catch_all {
            // Before the backlog is moved to it, which may use up its limit: then there is no
            // catch-all, and the old one does not return.
            self.slots.set_catch_all(id);
        }
        if stage == Stage::Receiving && taken.is_none() {
            self.ledger.key_attached(self.slots.recipient(id).key);
        }
        if old.is_none() {
            self.join_line(id, taken);
        }
        if let Some(old) = old {
            self.advance_unless_listed(old, share);
        }
        if let Some(backlog) = backlog {
            self.take_over(id, backlog, limited);
        }
        if old.is_some() || rejection.is_some() {
            self.advance_unless_listed(id, share);
        }
    }

    /// Returns why an attachment is to be closed at once, if it is.
    fn rejection(
        &self,
        terms: &Terms,
        request: LeaseRequest,
        is_taken: bool,
    ) -> Option<LeaveReason> {
        if request == LeaseRequest::Detach {
            Some(LeaveReason::Requested)
        } else if self.is_finished() {
            Some(LeaveReason::Finished)
        } else if terms.limit == Some(0) {
            Some(LeaveReason::Limited)
        } else if terms.keep_existing && is_taken {
            Some(LeaveReason::Refused)
        } else {
            None
        }
    }

    /// Lets `old` leave because another sink takes its key. Returns the items that wait for it.
    fn replace(&mut self, old: SlotId) -> VecDeque<V> {
        let held = self.take_owed(old, Exit::Graceful);
        let mut backlog = self.slots.slot_mut(old).take_queue();
        self.ledger.unqueued(backlog.len());
        backlog.extend(held);
        self.slots.leave(old, LeaveReason::Replaced);
        backlog
    }

    /// Queues the items that waited for the predecessor of `id`, up to the limit of `id`.
    fn take_over(&mut self, id: SlotId, backlog: VecDeque<V>, limited: bool) {
        if !limited {
            self.ledger.queued(backlog.len());
            return self.slots.slot_mut(id).set_queue(backlog);
        }
        let mut is_spent = false;
        for item in backlog {
            if is_spent {
                self.ledger.unmatched(item);
            } else {
                self.enqueue(id, item);
                is_spent = !self.slots.slot_mut(id).accept();
            }
        }
        if is_spent {
            self.leave(id, LeaveReason::Limited);
        }
    }
}
