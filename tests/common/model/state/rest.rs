//! What must hold between two polls.

use super::super::super::{Op, StreamHandle};
use super::super::event::Id;
use super::super::event::reasons::REPLACED;
use super::super::facts::{Facts, Known};
use super::super::monitor::View;
use super::super::setup::Seen;
use super::{Attachment, Stage, State, Verdict};

/// The number of turns by which the budget may delay what a policy does.
const MAX_OVERDUE: u32 = 2;

impl State {
    pub(in super::super) fn rest(&mut self, view: &View<'_>, facts: &Facts) -> Result<(), String> {
        self.check_totals(view)?;
        if view.seen.blocked_on != self.named {
            return Err(format!(
                "blocked_on() is {:?}, not {:?}",
                view.seen.blocked_on, self.named
            ));
        }
        self.check_recipients(&view.seen)?;
        self.check_interest(facts)?;
        if view.completed {
            let present = self.attachments.iter().any(Attachment::is_present);
            if !self.over || self.item.is_some() || present {
                return Err("completed too early".into());
            }
            return Ok(());
        }
        self.check_parked(facts)?;
        self.rest_item(facts)?;
        if view.asleep { self.rest_asleep(view) } else { Ok(()) }
    }

    fn check_totals(&self, view: &View<'_>) -> Result<(), String> {
        // Recipients that have taken clones along still count as unserved.
        let held = if self.item.is_some() { 1 + self.spare_clones.unsigned_abs() } else { 0 };
        let queued =
            self.attachments.iter().map(|it| it.queue.len() as u64).sum::<u64>() + u64::from(held);
        let known = [
            ("unmatched", self.unmatched, view.seen.totals.unmatched),
            ("delivered", self.delivered, view.seen.totals.delivered),
            ("discarded", self.discarded, view.seen.totals.discarded),
            ("lost", self.lost, view.seen.totals.lost),
            ("queued", queued, view.seen.totals.queued),
            ("attached", self.attached, view.seen.totals.attached),
            ("detached", self.detached, view.seen.totals.detached),
        ];
        for (what, expected, found) in known {
            if expected != found {
                return Err(format!("totals().{what} is {found}, not {expected}"));
            }
        }
        Ok(())
    }

    /// Compares the attachments that receive with what the getters return. The getters show whether
    /// an attachment was detached unseen.
    fn check_recipients(&mut self, seen: &Seen) -> Result<(), String> {
        if seen.len != seen.recipients.len() {
            return Err(format!("len() is {}, recipients() has {:?}", seen.len, seen.recipients));
        }
        let present = self.attachments.iter().filter(|it| it.is_present()).count();
        if seen.len + seen.draining != present {
            let (len, draining) = (seen.len, seen.draining);
            return Err(format!("of {present} attachments, {len} receive and {draining} drain"));
        }
        if self.over {
            return Ok(());
        }
        for id in 0..self.attachments.len() {
            let receives = seen.recipients.contains(&id);
            if self.attachments[id].is_wavering() && !receives {
                self.detach(id);
            }
            if receives != (self.attachments[id].stage == Stage::Receiving) {
                return Err(format!(
                    "recipients() has {:?}, not {:?}",
                    seen.recipients, self.groups
                ));
            }
        }
        self.pause()
    }

    /// Checks that an item waits for each sink that is not ready, in its queue or held, so that
    /// nothing that the sink may have reserved is left unused. A sink whose queue was handed on is
    /// exempt, because it is closed. With `balance`, a reservation may wait for the next item.
    fn check_parked(&self, facts: &Facts) -> Result<(), String> {
        for (id, attachment) in self.attachments.iter().enumerate() {
            let handed_on = match attachment.stage {
                Stage::Receiving => false,
                Stage::Leaving { reasons, .. } => reasons & REPLACED != 0,
                _ => continue,
            };
            let idle = attachment.queue.is_empty()
                && !self.item.as_ref().is_some_and(|item| item.wants_sink(id));
            let sink = &facts.sinks[id];
            if sink.is_parked() && idle && !handed_on && !sink.closing && !self.balance {
                return Err(format!("{id} is not ready, but no item waits for it"));
            }
        }
        Ok(())
    }

    /// Checks that no work is left when the task sleeps.
    fn rest_asleep(&mut self, view: &View<'_>) -> Result<(), String> {
        let is_waiting = |id: Id| view.sinks[id].is_waiting(Op::Ready);
        let mut alone = true;
        for id in 0..self.attachments.len() {
            if !self.attachments[id].is_present() {
                continue;
            }
            let attachment = &mut self.attachments[id];
            alone = false;
            if attachment.is_to_be_ended() {
                return Err(format!("the task sleeps, but the lease of {id} had no effect"));
            }
            if !attachment.queue.is_empty() {
                if !is_waiting(id) {
                    let queue = &attachment.queue;
                    return Err(format!("the task sleeps, but {id} could be sent {queue:?}"));
                }
                if attachment.verdict == Verdict::Yielded {
                    return Err(format!("the task sleeps, but {id} yielded and must be polled"));
                }
            }
            if let Stage::Leaving { begun, .. } = &mut attachment.stage {
                *begun = true;
                if attachment.queue.is_empty() && !view.sinks[id].is_closing() {
                    return Err(format!("the task sleeps, but {id} is not being closed"));
                }
            }
        }
        if let Some(order) = &self.order {
            return Err(format!("the task sleeps, but {:?} is not applied", order.kind));
        }
        if self.over && alone {
            return Err("the task sleeps, but everything is done".into());
        }
        if self.over && view.seen.len > 0 {
            return Err(format!("the task sleeps, but {} still receive", view.seen.len));
        }
        self.leases_ended = false;
        self.settle_ticks()?;
        self.ticks = 0;
        self.rest_item_asleep(is_waiting)?;
        let input_waits = view.input.is_none_or(StreamHandle::is_waiting);
        if !self.over && self.item.is_none() && !input_waits {
            return Err("the task sleeps, but the input can be read".into());
        }
        Ok(())
    }

    /// Checks the item at the end of a turn.
    fn rest_item(&mut self, facts: &Facts) -> Result<(), String> {
        let over = self.over;
        if let Some(named) = self.named {
            let waits = self.item.as_ref().is_some_and(|item| item.waiting.contains(&named));
            let waits = waits || self.shares_item(named);
            let after_finish = self.item.as_ref().is_some_and(|item| item.after_finish);
            if !waits {
                return Err(format!("the input still waits for {named}"));
            }
            if over && !after_finish {
                return Err(format!("Finish was applied, but the input waits for {named}"));
            }
        }
        let stopped = self.stopped_by.is_some();
        let Some(item) = &mut self.item else { return Ok(()) };
        item.held_over = true;
        item.held_turns = if item.offer.is_some() || stopped { item.held_turns + 1 } else { 0 };
        let (seq, Some(offer)) = (item.seq, item.offer.clone()) else { return Ok(()) };
        if over {
            // The recipient may have begun to leave, and have taken its copy along.
            return Ok(());
        }
        let attachment = &self.attachments[offer.to];
        // With `balance` the sink may have been polled for an item that another sink took.
        let was_asked = offer.asked || self.balance && facts.sinks[offer.to].is_parked();
        if attachment.queue.is_empty() && !was_asked {
            return Err(format!("{} was offered {seq}, but its sink was not polled", offer.to));
        }
        if attachment.waits() || self.is_not_ready(offer.to, facts) != Known::Yes {
            return Ok(());
        }
        // If the sink was polled again in this turn, the rest may be left for the next turn. If its
        // waker has fired at any time, the item may be held until the sink is polled again.
        let woke_itself = matches!(attachment.verdict, Verdict::NotReady { counted_in: Some(_) });
        let at_once = offer.turn == facts.turn && !offer.asked && !woke_itself;
        if at_once || offer.overdue >= MAX_OVERDUE {
            return Err(format!("{} has no room for {seq} and is not ready", offer.to));
        }
        if let Some(offer) = self.item.as_mut().and_then(|item| item.offer.as_mut()) {
            offer.overdue += 1;
        }
        Ok(())
    }

    /// Checks the item when the task sleeps. `is_waiting` returns `true` for a sink whose waker has
    /// not fired.
    fn rest_item_asleep(&self, is_waiting: impl Fn(Id) -> bool) -> Result<(), String> {
        let Some(item) = &self.item else { return Ok(()) };
        let seq = item.seq;
        if !item.routed {
            return Err(format!("the task sleeps, but {seq} is not routed"));
        }
        if !item.unoffered.is_empty() || item.offer.is_some() {
            return Err(format!("the task sleeps, but {seq} was not offered to all"));
        }
        if self.over {
            return Err(format!("the task sleeps, but {:?} have not begun to leave", item.waiting));
        }
        if item.shared.is_some() {
            return self.shared_asleep(is_waiting);
        }
        for &id in &item.waiting {
            let not_ready = matches!(self.attachments[id].verdict, Verdict::NotReady { .. });
            if self.attachments[id].has_room() || !not_ready || !is_waiting(id) {
                return Err(format!("the task sleeps, but {seq} need not wait for {id}"));
            }
        }
        if self.named.is_none() {
            return Err(format!("the task sleeps, but blocked named none of {:?}", item.waiting));
        }
        Ok(())
    }
}
