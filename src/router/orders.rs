//! What an order does, and what the end of a lease does.

use core::hash::{BuildHasher, Hash};
use core::mem;

use futures_sink::Sink;

use super::budget::{Allowance, Budget};
use super::{Ending, IfUnknown, Router, Sharing, Unrouted};
use crate::hooks::{Detached, Hooks, Recipient};
use crate::key::sealed::{AttachOnDemand, FindByKey};
use crate::lease::LeaseRequest;
use crate::order::{Attach, Order, Terms};
use crate::slots::NewSlot;
use crate::slots::id::SlotId;
use crate::slots::slot::{LeaveReason, Stage};

impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Applies an order, and returns it if `orders` did not suffice for all of it.
    ///
    /// `key` finds the slot of an item that this order has overtaken. If the order is `fresh`,
    /// reading it has paid for the first member of a group that it applies to. `sinks` is what may
    /// be spent on draining.
    pub(crate) fn apply<F>(
        &mut self,
        key: &mut F,
        order: Order<K, S>,
        fresh: bool,
        Budget { orders, sinks, items, .. }: &mut Budget,
    ) -> Option<Order<K, S>>
    where
        F: FindByKey<V, K> + AttachOnDemand<V, K, S>,
    {
        let mut is_paid = fresh;
        match order {
            Order::Attach(attach) => self.attach(attach, sinks),
            // All are evicted.
            Order::Detach(_) if self.is_aborted() => {}
            Order::Detach(key) => {
                while let Some(id) = self.slots.receiver(&key) {
                    if !mem::take(&mut is_paid) && !orders.spend() {
                        return Some(Order::Detach(key));
                    }
                    self.leave_with_key(id, LeaveReason::Requested);
                    self.advance_unless_listed(id, sinks);
                }
            }
            Order::Evict(key) => {
                while let Some(id) = self.slots.receiver(&key).or_else(|| self.slots.leaver(&key)) {
                    if !mem::take(&mut is_paid) && !orders.spend() {
                        return Some(Order::Evict(key));
                    }
                    self.remove(id, Detached::Evicted);
                }
            }
            Order::Tick => self.tick(),
            Order::Finish => {
                self.end_input();
                self.route_overtaken(key, IfUnknown::Route, items);
            }
            Order::Abort => self.abort(),
        }
        None
    }

    /// Ends the attachments whose leases have ended. Returns `false` if some are left because
    /// `orders` is spent.
    pub(crate) fn end_leases(&mut self, Budget { orders, sinks, .. }: &mut Budget) -> bool {
        while !orders.is_spent() {
            let Some(id) = self.slots.pop_ended() else { return true };
            orders.spend();
            // Stale wake: the slot is vacant, or another attachment has it.
            match self.slots.get_mut(id).map(|slot| slot.lease_request()) {
                Some(LeaseRequest::Evict) => self.remove(id, Detached::Evicted),
                Some(LeaseRequest::Detach)
                    if self.slots.slot(id).receives() && !self.is_aborted() =>
                {
                    self.leave(id, LeaveReason::Requested);
                    self.advance_unless_listed(id, sinks);
                }
                _ => {}
            }
        }
        !self.slots.ready().has_ended()
    }

    /// Attaches a sink, on its terms. `sinks` is what may be spent on draining.
    pub(super) fn attach(&mut self, attach: Attach<K, S>, sinks: &mut Allowance) {
        let Attach { key, sink, terms, claim } = attach;
        let terms = terms.or(self.defaults);
        let to = Recipient { key: &key, tag: terms.tag };
        // Before the hook is called: a lease that it ends comes after this order.
        let request = claim.as_ref().map_or(LeaseRequest::Stay, |claim| claim.request());
        self.ledger.attached(to);
        if request == LeaseRequest::Evict || self.is_aborted() {
            drop(sink);
            return self.ledger.detached(to, Detached::Evicted);
        }
        let taken = self.slots.receiver(&key);
        let stage = match self.rejection(&terms, request, taken.is_some()) {
            Some(reason) => Stage::Leaving(reason),
            None => Stage::Receiving,
        };
        let shares_queue = matches!(self.sharing, Sharing::Balance);
        let new = NewSlot { key, sink, terms, claim, stage, shares_queue };
        if stage != Stage::Receiving {
            let id = self.slots.insert(new);
            return self.advance_unless_listed(id, sinks);
        }
        match taken {
            None => {
                let id = self.slots.insert(new);
                self.ledger.hooks_mut().key_attached(self.slots.recipient(id).key);
            }
            Some(old) if matches!(self.sharing, Sharing::None) => self.replace(old, new, sinks),
            Some(head) => {
                self.slots.insert(new);
                // If they share a queue, it has more room now.
                if !self.slots.slot(head).is_beyond() {
                    self.unblock_from(head);
                }
            }
        }
    }

    /// Attaches a sink in place of another one, which leaves. What waits for that may use up the
    /// limit of the new one.
    fn replace(&mut self, old: SlotId, new: NewSlot<K, S>, sinks: &mut Allowance) {
        self.unblock_from(old);
        let id = self.slots.replace(old, new);
        self.advance_unless_listed(old, sinks);
        if !self.slots.slot_mut(id).may_accept() {
            self.leave(id, LeaveReason::Limited);
        }
        self.advance_unless_listed(id, sinks);
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

    /// Everything ends at once: what waits is discarded, and all sinks are dropped.
    fn abort(&mut self) {
        self.end_input();
        self.ending = Some(Ending { cursor: 0, aborts: true });
        if let Some(Unrouted { item, .. }) = self.overtaken.take() {
            self.ledger.unmatched(item);
        }
    }

    /// Returns `true` if all attachments are to be evicted.
    pub(crate) fn is_aborted(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| ending.aborts)
    }
}
