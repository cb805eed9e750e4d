//! The effect of each event on a state, or the reason why the event cannot follow.

use stream_demux::{Discarded, Overflow};

use super::super::event::{EndReason, Event, Id, OrderKind, Outcome};
use super::super::facts::Facts;
use super::item::Item;
use super::{Cost, Stage, State, Verdict};

impl State {
    /// Applies an event, and adds to `out` the states that it may lead to.
    pub(in super::super) fn step(
        mut self,
        event: &Event,
        facts: &Facts,
        out: &mut Vec<Self>,
    ) -> Result<(), String> {
        if let Some((id, seq)) = self.not_admitted {
            let right = event.is_outside() && !matches!(event, Event::Rest { .. })
                || matches!(event, Event::Clone(_) | Event::Discarded(..));
            if !right {
                return Err(format!("{id} did not admit {seq}, but it was not discarded"));
            }
        }
        self.check_conflation(event)?;
        if let Event::Read(..) | Event::Order(_) = event {
            self.check_interest(facts)?;
        }
        match *event {
            Event::Born(_, terms) => self.born(terms),
            Event::LeaseEnded(ref held, request) => self.lease_ended(held, request),
            Event::Turn => (self.stopped_by, self.cost) = (None, Cost(0)),
            Event::Read(seq, _) => {
                self.may_read()?;
                self.item = Some(Item::new(seq, self.ended_leases()));
            }
            Event::InputPending => self.may_read()?,
            Event::InputEnd => {
                self.may_read()?;
                self.over = true;
            }
            Event::Order(kind) => {
                self.pause()?;
                self.order_read(kind)?;
                if kind == OrderKind::Tick && facts.ticks_in_turn == 1 {
                    self.ticks += 1;
                    self.tick(facts);
                }
            }
            Event::OrdersPending { .. } | Event::OrdersEnd => {
                self.pause()?;
                if let Some(order) = &self.order {
                    return Err(format!("{:?} was read before, but is not applied", order.kind));
                }
            }
            Event::Rest { .. } | Event::Completed => self.pause()?,
            Event::Ready(id, outcome) => {
                for state in self.ready(id, outcome, facts)? {
                    state.emit(out);
                }
                return Ok(());
            }
            Event::Send(id, seq, outcome) => {
                if let Some(other) = self.joined_before_failure(id, outcome) {
                    let mut other = other;
                    if other.sent(id, seq, outcome).is_ok() {
                        other.emit(out);
                    }
                }
                self.sent(id, seq, outcome)?;
            }
            Event::Flush(id, outcome) => self.flushed(id, outcome)?,
            Event::Close(id, outcome) => self.closed(id, outcome)?,
            Event::Drop(id) => return self.dropped(id, facts, out),
            Event::Clone(seq) => self.cloned(seq)?,
            Event::Admit(id, seq, admits) => self.admit(id, seq, admits, facts)?,
            Event::Attached(id) => {
                let attachment = &mut self.attachments[id];
                if attachment.announced || attachment.stage == Stage::Unapplied {
                    return Err("announced twice, or before its order was applied".into());
                }
                attachment.announced = true;
            }
            Event::OnDemand(seq, made) => self.demanded(seq, made, facts)?,
            Event::Supersedes(id, old, new, yes) => self.supersedes(id, old, new, yes, facts)?,
            Event::KeyAttached(key) => self.key_attached(key)?,
            Event::KeyDetached(key) => return self.key_detached(key, facts, out),
            Event::Detached(id, why) => {
                self.check_key_detached(id, facts)?;
                self.detached(id, why)?;
            }
            Event::Unmatched(seq) => self.unmatched(seq, facts)?,
            Event::Discarded(id, seq, why) => return self.discarded(id, seq, why, facts, out),
            Event::Blocked(id) => self.blocked(id, facts)?,
            Event::Unblocked(id) => {
                if self.named != Some(id) {
                    return Err(format!("the input waits for {:?}", self.named));
                }
                self.named = None;
            }
            _ => {}
        }
        self.emit(out);
        Ok(())
    }

    /// Checks that nothing is half done.
    pub(super) fn pause(&self) -> Result<(), String> {
        if let Some(seq) = self.surplus.front() {
            return Err(format!("{seq} exceeds a limit, but was not unmatched"));
        }
        if self.asks_leavers() {
            return Err("admit was not called for an attachment that leaves".into());
        }
        let taken_along = self.clones_taken_along();
        match self.spare_clones {
            spare if spare > taken_along => {
                return Err(format!("{spare} clones belong to no member"));
            }
            owed if owed < 0 => return Err(format!("{} clones were not made", -owed)),
            _ => {}
        }
        for (id, attachment) in self.attachments.iter().enumerate() {
            if attachment.stage != Stage::Unapplied && !attachment.announced {
                return Err(format!("{id} was not announced"));
            }
            if let Stage::Removing { end, discards, .. } = &attachment.stage {
                return Err(format!("{id} must be removed ({end:?}), and {discards:?} discarded"));
            }
        }
        Ok(())
    }

    /// Checks that the input may be polled.
    fn may_read(&self) -> Result<(), String> {
        self.pause()?;
        if let Some(order) = &self.order {
            return Err(format!("{:?} was read, but is not applied", order.kind));
        }
        if let Some(item) = &self.item {
            return Err(format!("the input is read while {} is held", item.seq));
        }
        if let Some(by) = self.stopped_by {
            return Err(format!("{by} yielded: no more items in this turn"));
        }
        if let Some(named) = self.named {
            return Err(format!("the input is read while it waits for {named}"));
        }
        if self.over { Err("the input is over".into()) } else { Ok(()) }
    }

    /// Returns the stage of `id`, if it may be polled or named.
    pub(super) fn present(&self, id: Id) -> Result<&Stage, String> {
        let attachment = self.attachments.get(id).ok_or("there is no such attachment")?;
        match &attachment.stage {
            _ if !attachment.announced => Err("it was not announced".into()),
            stage @ (Stage::Receiving | Stage::Leaving { .. }) => Ok(stage),
            stage => Err(format!("its stage is {stage:?}")),
        }
    }

    fn sent(&mut self, id: Id, seq: u32, outcome: Outcome) -> Result<(), String> {
        self.present(id)?;
        let shared = self.shared_wants(id);
        let wanted = self.item.as_ref().filter(|item| shared || item.wants_sink(id));
        let wanted = wanted.map(|item| item.seq);
        let head = self.attachments[id].queue.pop_front();
        if head.or(wanted) != Some(seq) {
            return Err(format!("the next item is {head:?} or {wanted:?}"));
        }
        self.attachments[id].drained |= self.over || self.attachments[id].stage != Stage::Receiving;
        let failed = outcome == Outcome::Failed;
        if failed {
            self.lost += 1;
        } else {
            self.delivered += 1;
        }
        let paid = self.balance || self.item.as_mut().is_some_and(|item| item.pays_for_send(id));
        self.cost.0 += usize::from(!paid);
        if head.is_none() && shared {
            self.shared_taken(id);
        } else if head.is_none() {
            self.take_copy(id);
        } else if self.shares_item(id) {
            self.head_sent(id);
        } else if let Some(item) = self.item.as_mut().filter(|_| wanted.is_some()) {
            item.head_sent = Some(id);
            if self.spare_clones == 1 && self.serves() && !self.attachments[id].conflates() {
                // The clone was for this recipient.
                self.join_queue(id);
            }
        }
        if failed {
            self.remove(id, EndReason::Failed("start_send"));
        } else if head.is_none() {
            self.accept(id);
        }
        Ok(())
    }

    fn flushed(&mut self, id: Id, outcome: Outcome) -> Result<(), String> {
        match self.present(id)? {
            Stage::Leaving { begun: true, .. } if self.attachments[id].queue.is_empty() => {
                return Err("it must be closed, which flushes it".into());
            }
            _ => {}
        }
        if outcome == Outcome::Failed {
            self.remove(id, EndReason::Failed("poll_flush"));
        }
        Ok(())
    }

    fn closed(&mut self, id: Id, outcome: Outcome) -> Result<(), String> {
        let Stage::Leaving { reasons, .. } = *self.present(id)? else {
            return Err("it does not leave".into());
        };
        if !self.attachments[id].queue.is_empty() {
            return Err(format!("{:?} still wait for it", self.attachments[id].queue));
        }
        if self.item.as_ref().is_some_and(|item| item.is_unserved(id)) {
            return Err("it leaves, but admit was not called for it".into());
        }
        match outcome {
            Outcome::Done => self.remove(id, EndReason::Left(reasons)),
            Outcome::Failed => self.remove(id, EndReason::Failed("poll_close")),
            Outcome::Pending | Outcome::Yields => {
                self.attachments[id].stage = Stage::Leaving { reasons, begun: true };
            }
        }
        Ok(())
    }

    /// Returns the reasons for which `id`, whose end no event has shown, may be ending.
    pub(super) fn unseen_ends(&self, id: Id, facts: &Facts) -> Vec<EndReason> {
        let attachment = &self.attachments[id];
        let mut ends = Vec::new();
        if !attachment.is_present() {
            return ends;
        }
        if attachment.is_evicted_by_lease() {
            ends.push(EndReason::Evicted);
        }
        let mut settled = self.clone();
        let overflows = self.overflows(id, facts)
            || settled.settle_on(id, facts) && settled.overflows(id, facts);
        if attachment.overflow == Overflow::Evict && overflows {
            ends.push(EndReason::Overflowed);
        }
        if attachment.stall.may_expire() {
            ends.push(EndReason::Stalled);
        }
        ends
    }

    /// Removes `id` for a reason that no event has shown.
    pub(super) fn remove_unseen(&mut self, id: Id, end: EndReason, facts: &Facts) {
        // The end of a lease costs one. An overflow is paid for by the item.
        self.cost.0 += usize::from(end == EndReason::Evicted);
        if end == EndReason::Overflowed {
            self.settle_on(id, facts);
        }
        self.remove(id, end);
    }

    fn dropped(mut self, id: Id, facts: &Facts, out: &mut Vec<Self>) -> Result<(), String> {
        if !self.attachments[id].announced {
            return Err("it was not announced".into());
        }
        if let Stage::Removing { dropped, .. } = &mut self.attachments[id].stage {
            *dropped = true;
            self.emit(out);
            return Ok(());
        }
        let mut removed = Vec::new();
        for end in self.unseen_ends(id, facts) {
            let mut other = self.clone();
            other.remove_unseen(id, end, facts);
            removed.push(other);
        }
        let mut other = self.clone();
        if other.evict_next(id) {
            removed.push(other);
        }
        if removed.is_empty() {
            let order = self.order.as_ref().map(|order| order.kind);
            return Err(format!("dropped in {:?}, order {order:?}", self.attachments[id].stage));
        }
        for mut other in removed {
            if let Stage::Removing { dropped, .. } = &mut other.attachments[id].stage {
                *dropped = true;
            }
            other.emit(out);
        }
        Ok(())
    }

    fn discarded(
        mut self,
        id: Id,
        seq: u32,
        why: Discarded,
        facts: &Facts,
        out: &mut Vec<Self>,
    ) -> Result<(), String> {
        self.discarded += 1;
        let before = out.len();
        if why == Discarded::NotAdmitted && self.item.as_ref().is_some_and(|it| it.shared.is_some())
        {
            self.refused_by_all(id, seq)?;
            self.emit(out);
            return Ok(());
        }
        if why == Discarded::NotAdmitted || self.not_admitted.is_some() {
            if why != Discarded::NotAdmitted || self.not_admitted != Some((id, seq)) {
                return Err(format!("not admitted: {:?}", self.not_admitted));
            }
            self.not_admitted = None;
            self.emit(out);
            return Ok(());
        }
        if self.conflation.is_some() {
            self.conflated(id, seq, why)?;
            self.emit(out);
            return Ok(());
        }
        let attachment = self.attachments.get(id).ok_or("there is no such attachment")?;
        if matches!(attachment.stage, Stage::Removing { .. }) {
            self.discarded_at_the_end(id, seq, why)?;
            self.emit(out);
            return Ok(());
        }
        let mut complaint = match (&attachment.stage, attachment.verdict) {
            (Stage::Receiving, Verdict::Yielded) => "it yielded".into(),
            (Stage::Receiving, _) if facts.sinks[id].is_parked() => {
                "no policy applies: it has room, or its waker has fired".into()
            }
            (stage, _) => format!("its stage is {stage:?}"),
        };
        let mut other = self.clone();
        other.settle_on(id, facts);
        if why == Discarded::Overflowed && other.overflows(id, facts) {
            match other.overflow(id, seq) {
                Ok(()) => other.emit(out),
                Err(error) => complaint = error,
            }
        }
        for end in self.unseen_ends(id, facts) {
            let mut other = self.clone();
            other.remove_unseen(id, end, facts);
            match other.discarded_at_the_end(id, seq, why) {
                Ok(()) => other.emit(out),
                Err(error) => complaint = error,
            }
        }
        if out.len() == before { Err(complaint) } else { Ok(()) }
    }

    /// Handles the discard of one of the items of an attachment that ends.
    fn discarded_at_the_end(&mut self, id: Id, seq: u32, why: Discarded) -> Result<(), String> {
        let Stage::Removing { end, discards, perhaps, .. } = &mut self.attachments[id].stage else {
            return Err("it is not being removed".into());
        };
        let expected = match end {
            EndReason::Failed(_) => Discarded::Failed,
            EndReason::Overflowed => Discarded::Overflowed,
            _ => Discarded::Evicted,
        };
        if why != expected {
            return Err(format!("the reason must be {expected:?}"));
        }
        if discards.front() == Some(&seq) {
            discards.pop_front();
            return Ok(());
        }
        if !discards.is_empty() {
            return Err(format!("{discards:?} must be discarded"));
        }
        if perhaps.take_if(|perhaps| *perhaps == seq).is_some() {
            self.spare_clones -= 1;
            return Ok(());
        }
        Err("it has no such item".into())
    }

    fn detached(&mut self, id: Id, why: EndReason) -> Result<(), String> {
        self.detached += 1;
        if self.named == Some(id) {
            return Err("the input still waits for it".into());
        }
        let attachment = self.attachments.get_mut(id).ok_or("there is no such attachment")?;
        let Stage::Removing { end, discards, dropped, .. } = &attachment.stage else {
            return Err(format!("its stage is {:?}", attachment.stage));
        };
        if !dropped {
            return Err("its sink is not dropped".into());
        }
        if !discards.is_empty() {
            return Err(format!("{discards:?} must be discarded first"));
        }
        let right = match (*end, why) {
            (EndReason::Left(reasons), EndReason::Left(reason)) => reasons & reason != 0,
            (end, why) => end == why,
        };
        if !right {
            return Err(format!("the reason must be {end:?}"));
        }
        attachment.stage = Stage::Gone;
        Ok(())
    }
}
