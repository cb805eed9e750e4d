//! Orders, and the ends of leases.

use std::collections::VecDeque;

use super::super::event::reasons::{FINISHED, IDLE, LIMITED, REFUSED, REPLACED, REQUESTED};
use super::super::event::{EndReason, Id, OrderKind, Request, Terms};
use super::clock::Clock;
use super::item::Item;
use super::{Attachment, EndedLease, KeptOrder, Stage, State, Verdict};
use stream_demux::Overflow;

/// Leases.
impl State {
    /// Records that a lease of these attachments has ended.
    pub(super) fn lease_ended(&mut self, held: &[Id], request: Request) {
        self.leases_ended |= request != Request::Stay;
        for &id in held {
            let attachment = &mut self.attachments[id];
            if request > attachment.request {
                attachment.request = request;
                attachment.may_detach |= request == Request::Detach;
            }
            match &mut attachment.stage {
                Stage::Leaving { reasons, begun: false } if request == Request::Detach => {
                    *reasons |= REQUESTED;
                }
                _ => {}
            }
        }
    }

    /// Returns the leases that have ended and have not yet taken effect.
    pub(super) fn ended_leases(&self) -> Vec<EndedLease> {
        let attachments = self.attachments.iter().enumerate();
        let ended = attachments.filter(|(_, attachment)| attachment.is_to_be_ended());
        ended.map(|(id, attachment)| (id, attachment.request)).collect()
    }

    /// Lets these leases take effect, if they have not. An eviction is always seen: if it was not,
    /// the attachment is returned as the error.
    pub(super) fn end_leases(&mut self, leases: &[EndedLease]) -> Result<(), Id> {
        for &(id, request) in leases {
            if request == Request::Evict && self.attachments[id].is_present() {
                return Err(id);
            }
            if self.attachments[id].is_detached_by_lease() {
                self.detach(id);
            }
        }
        Ok(())
    }

    /// Detaches `id` unseen, by a lease or because it was idle.
    pub(super) fn detach(&mut self, id: Id) {
        let attachment = &self.attachments[id];
        let mut reasons = if attachment.idle.may_expire() { IDLE } else { 0 };
        reasons |= if attachment.may_detach { REQUESTED } else { 0 };
        reasons |= if self.over { FINISHED } else { 0 };
        self.leave(id, reasons, true);
    }

    /// Lets `id` leave because the input is over.
    pub(super) fn leave_at_the_end(&mut self, id: Id) {
        let requested = self.attachments[id].request >= Request::Detach;
        // A tick that is on its way may come before the attachment begins to leave.
        let idle = if self.attachments[id].idle.is_set() && self.ticks > 0 { IDLE } else { 0 };
        let reasons = if requested { FINISHED | REQUESTED } else { FINISHED };
        self.leave(id, reasons | idle, false);
    }
}

/// Orders.
impl State {
    pub(super) fn born(&mut self, terms: Terms) {
        let overflow = terms.overflow.unwrap_or(self.default_overflow);
        let buffer = terms.buffer.unwrap_or(self.default_buffer);
        let at_least = match overflow {
            Overflow::DropNewest | Overflow::DropOldest | Overflow::Conflate => 1,
            _ => 0,
        };
        self.attachments.push(Attachment {
            key: terms.key,
            places: buffer.max(at_least),
            overflow,
            limit: terms.limit,
            keep_existing: terms.keep_existing,
            catch_all: terms.catch_all,
            request: Request::Stay,
            may_detach: false,
            stage: Stage::Unapplied,
            announced: false,
            queue: VecDeque::new(),
            accepted: 0,
            verdict: Verdict::Unknown,
            last_yield: None,
            yields_in_a_row: 0,
            holds_in_a_row: 0,
            drained: false,
            stall: Clock::new(terms.stall_timeout.unwrap_or(self.default_stall_timeout)),
            idle: Clock::new(terms.idle_timeout.unwrap_or(self.default_idle_timeout)),
        });
    }

    /// Records that an order was read. The leases that ended before it come first.
    pub(super) fn order_read(&mut self, kind: OrderKind) -> Result<(), String> {
        if let Some(order) = &self.order {
            return Err(format!("{:?} was read before, but is not applied", order.kind));
        }
        if self.finishing {
            return Err("Finish was read, but the item that it overtook is not routed".into());
        }
        // Even the end of a lease that changes nothing may have spent the turn.
        let begun = !self.leases_ended;
        let leases = self.ended_leases();
        self.order = Some(KeptOrder { kind, leases, begun, fresh: true });
        match kind {
            OrderKind::Detach(key) if self.over => self.may_detach_leavers(key),
            _ if begun => drop(self.go_on_with_order()),
            _ => {}
        }
        Ok(())
    }

    /// Applies the order that was read, or its next part. Returns `false` if something else must
    /// come first, or if nothing is left to be done unseen, because evictions are seen.
    pub(super) fn go_on_with_order(&mut self) -> bool {
        if self.asks_leavers() || self.is_being_removed() {
            return false;
        }
        let Some(order) = &mut self.order else { return false };
        let begins = !std::mem::replace(&mut order.begun, true);
        let (kind, leases) = (order.kind, std::mem::take(&mut order.leases));
        if begins && self.end_leases(&leases).is_err() {
            return false;
        }
        match kind {
            OrderKind::Detach(key) => self.detach_next(key),
            OrderKind::Evict(key) => {
                let evicted = !self.attachments.iter().any(|it| it.is_present() && it.key == key);
                self.order.take_if(|_| evicted);
                begins || evicted
            }
            OrderKind::Attach(_) | OrderKind::Finish | OrderKind::Tick => {
                self.order = None;
                self.apply(kind);
                true
            }
        }
    }

    /// Pays for one more attachment that the order detaches or evicts.
    fn pay(&mut self) {
        let fresh = self.order.as_mut().is_some_and(|order| std::mem::take(&mut order.fresh));
        self.cost.0 += usize::from(!fresh);
    }

    /// Detaches the next attachment that receives under `key`, in the order in which they joined.
    fn detach_next(&mut self, key: u8) -> bool {
        let group = &self.groups[usize::from(key)];
        let (next, last) = (group.first().copied(), group.len() <= 1);
        if let Some(id) = next {
            // Its lease may have detached it unseen in an earlier turn.
            if !self.over && !self.attachments[id].is_wavering() {
                self.pay();
            }
            self.attachments[id].may_detach = true;
            self.whole_key = true;
            self.detach(id);
            self.whole_key = false;
        }
        self.may_detach_leavers(key);
        self.order.take_if(|_| last);
        true
    }

    /// Records that an order detaches attachments while the input is over. Those that have begun to
    /// leave go on leaving, and the others are detached; it is not known which are which.
    fn may_detach_leavers(&mut self, key: u8) {
        for id in 0..self.attachments.len() {
            let attachment = &self.attachments[id];
            let has_begun = !matches!(attachment.stage, Stage::Leaving { begun: false, .. });
            if attachment.key != key || has_begun {
                continue;
            }
            if let Stage::Leaving { reasons, .. } = &mut self.attachments[id].stage {
                *reasons |= REQUESTED;
            }
        }
    }

    /// Evicts `id`, if it is next for the order that was read. The attachments that receive come
    /// first, in the order in which they joined, then those that leave. Returns `false` if `id`
    /// cannot be next.
    pub(super) fn evict_next(&mut self, id: Id) -> bool {
        let key = self.attachments[id].key;
        let begun = matches!(
            self.order,
            Some(KeptOrder { kind: OrderKind::Evict(of), begun: true, .. }) if of == key
        );
        if !begun || !self.attachments[id].is_present() || self.asks_leavers() {
            return false;
        }
        // The attachments before it must have been detached by their leases.
        let group = &self.groups[usize::from(key)];
        let before: Vec<_> = group.iter().copied().take_while(|&other| other != id).collect();
        let detached = |id: &Id| {
            let unoffered = self.item.as_ref().is_some_and(|item| item.is_unoffered(*id));
            self.attachments[*id].is_wavering() && !unoffered
        };
        if !self.over {
            // Once the input is over, it is not known which attachments have begun to leave.
            if !before.iter().all(detached) {
                return false;
            }
            for id in before {
                self.detach(id);
            }
        }
        self.pay();
        self.whole_key = true;
        self.remove(id, EndReason::Evicted);
        self.whole_key = false;
        self.order.take_if(|_| !self.attachments.iter().any(|it| it.is_present() && it.key == key));
        true
    }

    /// Returns `true` if `admit` has yet to be called for an attachment that leaves.
    pub(super) fn asks_leavers(&self) -> bool {
        self.item.as_ref().is_some_and(Item::has_leavers)
    }

    fn is_being_removed(&self) -> bool {
        let removed = |stage: &Stage| matches!(stage, Stage::Removing { .. });
        self.attachments.iter().any(|attachment| removed(&attachment.stage))
    }

    fn apply(&mut self, kind: OrderKind) {
        match kind {
            OrderKind::Attach(id) => self.attach(id),
            OrderKind::Finish if self.over => {}
            OrderKind::Finish if self.item.as_ref().is_some_and(|item| !item.is_routed()) => {
                self.finishing = true;
            }
            OrderKind::Finish => self.over = true,
            OrderKind::Detach(_) | OrderKind::Evict(_) | OrderKind::Tick => {}
        }
    }

    pub(super) fn attach(&mut self, id: Id) {
        self.attached += 1;
        let attachment = &mut self.attachments[id];
        let (key, request) = (usize::from(attachment.key), attachment.request);
        let taken = self.groups[key].first().copied();
        if request == Request::Evict {
            let (end, discards) = (EndReason::Evicted, VecDeque::new());
            attachment.stage = Stage::Removing { end, discards, perhaps: None, dropped: false };
            return;
        }
        let mut reasons = 0;
        reasons |= if request == Request::Detach { REQUESTED } else { 0 };
        reasons |= if self.over { FINISHED } else { 0 };
        reasons |= if attachment.limit == Some(0) { LIMITED } else { 0 };
        reasons |= if attachment.keep_existing && taken.is_some() { REFUSED } else { 0 };
        if reasons != 0 {
            attachment.stage = Stage::Leaving { reasons, begun: true };
            return;
        }
        attachment.stage = Stage::Receiving;
        if self.held_since_tick {
            // The tick that ends this unit may count for no attachment.
            attachment.idle.may_restart();
        }
        if self.ticks > 1 {
            attachment.idle.inherit_tick();
            attachment.stall.inherit_tick();
        }
        let backlog = match taken {
            Some(old) if !self.multicast && !self.balance => {
                self.leave(old, REPLACED, true);
                std::mem::take(&mut self.attachments[old].queue)
            }
            _ => VecDeque::new(),
        };
        self.groups[key].push(id);
        self.lines[key].push(id);
        if self.attachments[id].catch_all {
            self.catch_all = Some(id);
        }
        for seq in backlog {
            if self.attachments[id].stage == Stage::Receiving {
                self.attachments[id].queue.push_back(seq);
                self.accept(id);
            } else {
                self.surplus.push_back(seq);
            }
        }
        // Items that are handed on possibly do not count as items of its own.
        self.attachments[id].idle.unskip();
    }

    /// Records that `id` has accepted one more item.
    pub(super) fn accept(&mut self, id: Id) {
        let attachment = &mut self.attachments[id];
        attachment.idle.item();
        let Some(limit) = attachment.limit else { return };
        attachment.accepted += 1;
        if attachment.accepted < limit {
            return;
        }
        match &mut attachment.stage {
            Stage::Receiving => {
                let reasons = if self.over { LIMITED | FINISHED } else { LIMITED };
                self.leave(id, reasons, true);
            }
            Stage::Leaving { reasons, begun: false } => *reasons |= LIMITED,
            _ => {}
        }
    }
}
