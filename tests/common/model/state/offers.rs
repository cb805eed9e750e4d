//! Which attachments the item is offered to, what policies do with it, and which attachment the
//! input waits for.

use stream_demux::Overflow;

use super::super::event::Id;
use super::super::facts::{Facts, Known};
use super::item::Offer;
use super::shared::Shared;
use super::{State, Verdict};

impl State {
    /// Looks up the key of the item. The first hook that is called for the item, or its fate, shows
    /// that the demux has done so.
    fn route(&mut self, facts: &Facts) -> Result<(), String> {
        if self.order.is_some() {
            return Err("an order that was read before is not applied".into());
        }
        let Some(item) = &mut self.item else { return Ok(()) };
        let leases = std::mem::take(&mut item.leases);
        let key = facts.keys.get(&item.seq).copied();
        self.end_leases(&leases).map_err(|id| {
            format!("the lease of {id} ended before the item was read, but has had no effect")
        })?;
        self.check_interest(facts)?;
        let recipients = self.recipients(key);
        self.check_demanded(key)?;
        let group = key.map(usize::from).filter(|&key| key < self.groups.len());
        let shares = group.filter(|&key| self.balance && !self.groups[key].is_empty());
        let Some(item) = &mut self.item else { return Ok(()) };
        item.routed = true;
        item.after_finish = self.finishing;
        self.over |= std::mem::take(&mut self.finishing);
        if let Some(key) = shares {
            item.shared = Some(Shared::new(key));
        } else if let Some(group) = recipients {
            item.unoffered = group;
        }
        Ok(())
    }

    /// Looks up the key of the item before an event shows it. Returns `false` if the look-up is
    /// impossible.
    pub(super) fn route_unseen(&mut self, facts: &Facts) -> bool {
        let routed = self.route(facts).is_ok();
        routed && self.item.as_ref().is_some_and(|item| !item.unoffered.is_empty())
    }

    /// Returns the attachments that get items with this key.
    fn recipients(&self, key: Option<u8>) -> Option<Vec<Id>> {
        let group = key.and_then(|key| self.groups.get(usize::from(key))).cloned();
        match group.unwrap_or_default() {
            group if !group.is_empty() => Some(group),
            _ => self.catch_all.map(|id| vec![id]),
        }
    }

    pub(super) fn unmatched(&mut self, seq: u32, facts: &Facts) -> Result<(), String> {
        self.unmatched += 1;
        if self.surplus.front() == Some(&seq) {
            self.surplus.pop_front();
            return Ok(());
        }
        if !self.item.as_ref().is_some_and(|item| item.is_unrouted(seq)) {
            return Err("the item is not to be routed".into());
        }
        self.route(facts)?;
        match self.item.take() {
            Some(item) if item.shared.is_some() => Err("an attachment has its key".into()),
            Some(item) if !item.unoffered.is_empty() => {
                Err(format!("{:?} must get the item", item.unoffered))
            }
            _ => Ok(()),
        }
    }

    /// Handles a call of `admit` for `id`, because the item is offered to it next or because it
    /// leaves.
    pub(super) fn admit(
        &mut self,
        id: Id,
        seq: u32,
        admits: bool,
        facts: &Facts,
    ) -> Result<(), String> {
        self.present(id)?;
        let current = self.item.as_ref().filter(|item| item.seq == seq);
        let first = !current.ok_or("it is not the item that was read last")?.routed;
        if first {
            self.route(facts)?;
        }
        let Some(item) = &mut self.item else { return Ok(()) };
        if item.shared.is_some() {
            return self.admit_shared(id, admits, facts);
        }
        if self.balance && !self.loose.contains(&id) {
            // An item that the catch-all gets may count as a turn.
            self.loose.push(id);
        }
        let leaves = item.leavers.contains(&id);
        if !leaves {
            if !item.unoffered.contains(&id) {
                return Err(format!("admit must be called for {:?}", item.unoffered));
            }
            if let Some(offer) = &item.offer {
                return Err(format!("{} was offered the item, but is not served", offer.to));
            }
            if let Some(by) = self.stopped_by {
                return Err(format!("{by} yielded: no other member is served in this turn"));
            }
            if self.over && !item.after_finish {
                return Err("Finish was applied: the item is no longer offered".into());
            }
            item.unoffered.retain(|&other| other != id);
            item.offer =
                Some(Offer { to: id, turn: facts.turn, asked: false, sent: false, overdue: 0 });
            self.cost.0 += usize::from(!first);
        }
        if leaves && self.over {
            // It leaves because the input is over, or was detached after the end.
            self.attachments[id].drained = true;
        }
        let attachment = &self.attachments[id];
        if !admits {
            let seq = self.take_copy(id).ok_or("it is owed no copy")?;
            self.not_admitted = Some((id, seq));
        } else if leaves {
            let seq = self.take_copy(id).ok_or("it is owed no copy")?;
            self.take_along(id, seq);
        } else if !attachment.queue.is_empty() && attachment.takes_unasked() {
            self.join_queue(id);
        }
        Ok(())
    }

    /// Lets the recipient that is offered the item wait for it, if the sink is not ready and the
    /// policy is `Wait`. If it is uncertain whether the sink is ready, the recipient waits in one
    /// more state.
    pub(super) fn settle_offer(&mut self, facts: &Facts, more: &mut Vec<Self>) {
        let Some(to) = self.item.as_ref().and_then(|item| item.offer.as_ref()).map(|it| it.to)
        else {
            return;
        };
        let attachment = &self.attachments[to];
        if !attachment.waits() || attachment.has_room() {
            return;
        }
        let waits = |state: &mut Self| {
            if let Some(item) = &mut state.item {
                item.offer = None;
                item.waiting.push(to);
            }
            let verdict = &mut state.attachments[to].verdict;
            if let Verdict::Doubtful(_) = verdict {
                *verdict = Verdict::NotReady { counted_in: None };
            }
        };
        match self.is_not_ready(to, facts) {
            Known::No => {}
            Known::Maybe => {
                let mut other = self.clone();
                waits(&mut other);
                more.push(other);
            }
            Known::Yes => waits(self),
        }
    }

    /// Returns `true` if the item may find no room in the queue of `id`, and its sink may not be
    /// ready.
    pub(super) fn overflows(&self, id: Id, facts: &Facts) -> bool {
        if !self.item.as_ref().is_some_and(|item| item.is_offered(id)) {
            return false;
        }
        let full = !self.attachments[id].takes_unasked();
        self.serves() && full && self.is_not_ready(id, facts) != Known::No
    }

    /// Handles the discard of `seq`, because the item found no room.
    pub(super) fn overflow(&mut self, id: Id, seq: u32) -> Result<(), String> {
        match self.attachments[id].overflow {
            Overflow::DropNewest => match self.take_copy(id) {
                Some(newest) if newest == seq => Ok(()),
                newest => Err(format!("the newest is {newest:?}")),
            },
            Overflow::DropOldest => {
                let oldest = self.attachments[id].queue.pop_front();
                self.join_queue(id);
                if oldest == Some(seq) { Ok(()) } else { Err(format!("the oldest is {oldest:?}")) }
            }
            Overflow::Conflate => Err("supersedes was not called".into()),
            policy => Err(format!("the policy is {policy:?}")),
        }
    }

    pub(super) fn blocked(&mut self, id: Id, facts: &Facts) -> Result<(), String> {
        if let Some(named) = self.named {
            return Err(format!("the input already waits for {named}"));
        }
        self.present(id)?;
        let over = self.over;
        let first = if self.shares_item(id) {
            self.may_block(id, facts).then_some(id)
        } else {
            self.first_that_waits(facts)
        };
        let item = self.item.as_mut().ok_or("no item is held")?;
        if !item.unoffered.is_empty() || item.offer.is_some() {
            return Err(format!("{} was not offered to all recipients yet", item.seq));
        }
        if over && !item.after_finish {
            return Err("Finish was applied".into());
        }
        if first != Some(id) {
            return Err(format!("{first:?} is the first of {:?} that waits", item.waiting));
        }
        // If several attachments share the item, one that joins may be named in between.
        if item.named.contains(&id) && item.shared.is_none() {
            return Err(format!("called twice for {}", item.seq));
        }
        item.named.push(id);
        self.named = Some(id);
        Ok(())
    }

    /// Returns the first recipient that still waits for the item, and not because it yielded.
    fn first_that_waits(&self, facts: &Facts) -> Option<Id> {
        let waits = |id: &Id| {
            let not_ready = matches!(self.attachments[*id].verdict, Verdict::NotReady { .. });
            not_ready && facts.sinks[*id].is_parked()
        };
        self.item.as_ref()?.waiting.iter().copied().find(waits)
    }
}
