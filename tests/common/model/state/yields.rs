//! The meaning of a `Pending` of `poll_ready`: a yield, or a sink that is not ready.

use super::super::event::{EndReason, Id, Outcome};
use super::super::facts::{Facts, Known};
use super::{Attachment, Stage, State, Verdict};

/// The number of turns in a row in which an item is held because of yields, before a yield counts
/// as "not ready".
const HELD_TURNS: u32 = 16;

impl State {
    /// Returns the states that a result of `poll_ready` may lead to.
    pub(super) fn ready(
        mut self,
        id: Id,
        outcome: Outcome,
        facts: &Facts,
    ) -> Result<Vec<Self>, String> {
        self.present(id)?;
        let wanted = self.item.as_ref().is_some_and(|item| item.wants_sink(id));
        let shared = self.shared_wants(id);
        if self.attachments[id].queue.is_empty() && !wanted && !shared {
            return Err("no item waits for it".into());
        }
        let offer = self.item.as_mut().and_then(|item| item.offer.as_mut());
        if let Some(offer) = offer.filter(|offer| offer.to == id) {
            offer.asked = true;
        }
        match outcome {
            Outcome::Failed => {
                self.remove(id, EndReason::Failed("poll_ready"));
                Ok(vec![self])
            }
            Outcome::Done => {
                self.attachments[id].verdict = Verdict::Unknown;
                self.attachments[id].yields_in_a_row = 0;
                self.attachments[id].holds_in_a_row = 0;
                Ok(vec![self])
            }
            Outcome::Pending | Outcome::Yields => {
                self.passed_over(id, shared);
                let verdicts = self.verdicts(id, facts);
                let judged = |verdict| {
                    let mut state = self.clone();
                    state.judge(id, verdict, facts);
                    state
                };
                Ok(verdicts.into_iter().map(judged).collect())
            }
        }
    }

    /// Returns the possible meanings of a `Pending` of `poll_ready`.
    fn verdicts(&self, id: Id, facts: &Facts) -> Vec<Verdict> {
        let (attachment, sink) = (&self.attachments[id], &facts.sinks[id]);
        let receives = attachment.stage == Stage::Receiving;
        // The rule applies to policies, and a sink that leaves no longer has one.
        let when_busy =
            if receives { sink.yields_when_busy } else { sink.yields_when_busy.min(Known::Maybe) };
        let yields = sink.yields.max(when_busy);
        let counts = self.yield_counts(attachment, facts);
        let wanted = self.item.as_ref().is_some_and(|item| item.wants_sink(id));
        let matters = wanted && !attachment.takes_unasked();
        if matters && self.item.as_ref().is_some_and(|item| item.waiting.contains(&id)) {
            // Under `Wait` the sink was found not ready, and is blocked until it takes its copy.
            return vec![Verdict::NotReady { counted_in: Some(facts.turn) }];
        }
        if yields == Known::Maybe && counts != Known::Yes && !matters {
            return vec![Verdict::Doubtful(facts.progress)];
        }
        let mut verdicts = Vec::new();
        if yields != Known::No && counts != Known::Yes {
            verdicts.push(Verdict::Yielded);
        }
        if yields != Known::Yes {
            verdicts.push(Verdict::NotReady { counted_in: None });
        } else if counts != Known::No {
            verdicts.push(Verdict::NotReady { counted_in: Some(facts.turn) });
        }
        verdicts
    }

    /// Returns whether a yield counts as "not ready": it is the second with nothing done in
    /// between, or the item was held for 16 turns in a row.
    fn yield_counts(&self, attachment: &Attachment, facts: &Facts) -> Known {
        if attachment.holds_in_a_row >= HELD_TURNS {
            return Known::Yes;
        }
        // The item was held for several sinks in turn, or because of wakes, or the sink also
        // yielded for earlier items.
        let held = attachment.yields_in_a_row >= HELD_TURNS
            || self.item.as_ref().is_some_and(|item| item.held_turns >= HELD_TURNS);
        let held = if held { Known::Maybe } else { Known::No };
        let in_a_row = matches!(
            attachment.verdict,
            Verdict::Yielded | Verdict::NotReady { counted_in: Some(_) }
        );
        let idle = match attachment.last_yield.map(|then| facts.progress.exceeds(then)) {
            None | Some(Known::Yes) => Known::No,
            Some(Known::No) if in_a_row => Known::Yes,
            Some(_) => Known::Maybe,
        };
        let doubt = match attachment.verdict {
            Verdict::Doubtful(then) if facts.progress.exceeds(then) != Known::Yes => Known::Maybe,
            _ => Known::No,
        };
        held.max(idle).max(doubt)
    }

    fn judge(&mut self, id: Id, verdict: Verdict, facts: &Facts) {
        let wanted = self.item.as_ref().is_some_and(|item| item.wants_sink(id));
        let attachment = &mut self.attachments[id];
        let room = attachment.takes_unasked();
        attachment.verdict = verdict;
        if let Some(item) = &mut self.item {
            item.head_sent.take_if(|head_sent| *head_sent == id);
        }
        match verdict {
            Verdict::Yielded => {
                attachment.last_yield = Some(facts.progress);
                attachment.yields_in_a_row += 1;
                if wanted && !room {
                    attachment.holds_in_a_row += 1;
                    self.stopped_by = Some(id);
                }
            }
            Verdict::NotReady { counted_in: Some(_) } => {
                attachment.last_yield = Some(facts.progress);
                attachment.yields_in_a_row += 1;
            }
            Verdict::NotReady { counted_in: None } | Verdict::Doubtful(_) | Verdict::Unknown => {
                attachment.yields_in_a_row = 0;
                attachment.holds_in_a_row = 0;
            }
        }
        if wanted && room && self.serves() {
            self.join_queue(id);
        }
    }

    /// Returns whether a policy may act on `id`: the sink returned `Pending`, which was not a yield
    /// or was a yield that counts, and its waker has not fired since.
    pub(super) fn is_not_ready(&self, id: Id, facts: &Facts) -> Known {
        let sink = &facts.sinks[id];
        match self.attachments[id].verdict {
            Verdict::NotReady { counted_in: None } if sink.is_parked() => sink.fired.not(),
            Verdict::Doubtful(_) if sink.is_parked() => sink.fired.not().min(Known::Maybe),
            // Its waker fired inside the call. In later turns the sink must be polled again first.
            Verdict::NotReady { counted_in: Some(turn) } if sink.is_parked() => {
                if turn == facts.turn { Known::Yes } else { Known::No }
            }
            _ => Known::No,
        }
    }
}
