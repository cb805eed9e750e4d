//! Ticks, and the time-outs that they cause.

use super::super::super::Op;
use super::super::event::reasons::IDLE;
use super::super::event::{Event, Id};
use super::super::facts::{Facts, Known};
use super::{Stage, State};

impl State {
    /// Handles the first tick that is read in a turn.
    pub(super) fn tick(&mut self, facts: &Facts) {
        // When the first tick since the task slept was read, no other was on its way. The second
        // follows it. A third may come to all attachments together with the second.
        let distinct = facts.ticks <= 2;
        self.held_since_tick = false;
        let is_void = std::mem::take(&mut self.blocked_since_tick);
        for id in 0..self.attachments.len() {
            let (stall, idle) = (self.stalls(id, facts), self.is_idle(id, facts));
            let attachment = &self.attachments[id];
            if !attachment.is_present() || !attachment.has_time_outs() {
                continue;
            }
            let attachment = &mut self.attachments[id];
            attachment.stall.tick(stall.unwrap_or_default(), distinct);
            if is_void {
                attachment.idle.void_tick();
            } else {
                attachment.idle.tick(idle, distinct);
            }
            if let Stage::Leaving { reasons, begun: false } = &mut attachment.stage {
                *reasons |= if attachment.idle.is_set() { IDLE } else { 0 };
            }
        }
    }

    /// Records what ticks would do after this event.
    pub(in super::super) fn watch_time(&mut self, event: &Event, facts: &Facts) {
        let at_rest = matches!(event, Event::Rest { .. });
        let held = self.holds_input_up(at_rest);
        self.held_since_tick |= held != Known::No;
        self.blocked_since_tick |= held == Known::Yes;
        for id in 0..self.attachments.len() {
            let attachment = &self.attachments[id];
            if !attachment.is_present() || !attachment.has_time_outs() {
                continue;
            }
            let (mut stall, mut idle) = (attachment.stall, attachment.idle);
            let stalls = self.stalls(id, facts);
            if facts.moved == Some(id)
                || stalls.is_none() && attachment.stage == Stage::Receiving && !self.balance
            {
                stall.restart();
            } else if stalls.is_none() && (self.ticks > 0 || attachment.stage == Stage::Receiving) {
                // The queue was handed on, or the sink is closed next. If a tick comes earlier, the
                // count starts anew.
                stall.may_restart_but_not_skip();
            }
            stall.watch(stalls.unwrap_or_default());
            let is_idle = self.is_idle(id, facts);
            if facts.moved == Some(id) && matches!(event, Event::Flush(..)) {
                idle.item();
            } else if held != Known::No || facts.moved == Some(id) {
                // What waited for the sink earlier in this unit may count as well.
                idle.may_restart();
            } else if is_idle != Known::Yes {
                idle.may_restart_but_not_skip();
            }
            idle.watch(is_idle);
            if (stall, idle) != (attachment.stall, attachment.idle) {
                let attachment = &mut self.attachments[id];
                (attachment.stall, attachment.idle) = (stall, idle);
            }
        }
    }

    /// Returns whether something waits for the sink, and the sink neither makes progress nor was
    /// woken. Returns `None` if nothing waits. For a sink that wakes itself the result is
    /// uncertain.
    fn stalls(&self, id: Id, facts: &Facts) -> Option<Known> {
        let sink = &facts.sinks[id];
        let waits = |op| match op {
            Op::Close => true,
            Op::Flush => !sink.closing,
            Op::Ready => {
                let wanted = self.item.as_ref().is_some_and(|item| item.wants_sink(id));
                let shared = self.may_wait_shared(id) != Known::No;
                !sink.closing && (wanted || shared || !self.attachments[id].queue.is_empty())
            }
            Op::Send => false,
        };
        let ops = [Op::Ready, Op::Flush, Op::Close];
        let pending = ops.into_iter().filter(|&op| sink.is_pending(op) && waits(op));
        let doubt = self.may_wait_shared(id);
        pending.map(|op| sink.unheard_wake(op).max(doubt).not()).reduce(|one, other| {
            // The result is certain only if it is certain for all operations.
            if one == other { one } else { Known::Maybe }
        })
    }

    /// Returns whether no item waits for the sink: queued, held or unflushed.
    fn is_idle(&self, id: Id, facts: &Facts) -> Known {
        let (attachment, sink) = (&self.attachments[id], &facts.sinks[id]);
        let is_held_for_it = self.item.as_ref().is_some_and(|item| item.is_held_for(id));
        let waits = !attachment.queue.is_empty()
            || is_held_for_it
            || sink.is_unflushed()
            || sink.flush_pending;
        let may_wait = self.may_wait_shared(id);
        if attachment.stage == Stage::Receiving && !waits { may_wait.not() } else { Known::No }
    }

    /// Returns whether the input waits for a sink. The result is certain if the input is blocked.
    fn holds_input_up(&self, at_rest: bool) -> Known {
        let Some(item) = &self.item else { return Known::No };
        if !item.waiting.is_empty() || item.shared.is_some() && self.named.is_some() {
            Known::Yes
        } else if at_rest || item.held_over || self.stopped_by.is_some() {
            Known::Maybe
        } else {
            Known::No
        }
    }

    /// Records that the task sleeps. Every tick has come to all attachments, and it is known by now
    /// which of them receive.
    pub(super) fn settle_ticks(&mut self) -> Result<(), String> {
        for id in 0..self.attachments.len() {
            let attachment = &self.attachments[id];
            if !attachment.is_present() || !attachment.has_time_outs() {
                continue;
            }
            let attachment = &mut self.attachments[id];
            attachment.stall.settle();
            attachment.idle.settle();
            if attachment.stall.must_have_expired() {
                return Err(format!("the task sleeps, but {id} stalled ({:?})", attachment.stall));
            }
            if attachment.stage == Stage::Receiving && attachment.idle.must_have_expired() {
                return Err(format!("the task sleeps, but {id} is idle ({:?})", attachment.idle));
            }
            attachment.stall.has_not_expired();
            attachment.idle.has_not_expired();
        }
        Ok(())
    }
}
