//! What may happen unseen, as far as the next event depends on it.

use super::super::super::Op;
use super::super::MAX_STATES;
use super::super::event::{Event, Id, OrderKind};
use super::super::facts::Facts;
use super::{Distinct, EndedLease, State, dedup};

impl State {
    /// Returns these states, and those that they may have become before `event`, as far as `event`
    /// depends on the difference. Returns `None` if there are too many.
    pub(in super::super) fn possible(
        mut found: Vec<Self>,
        event: &Event,
        facts: &Facts,
    ) -> Option<Vec<Self>> {
        let rest = matches!(event, Event::Rest { .. } | Event::Completed);
        let tells_nothing = matches!(event, Event::Ask(_, Op::Ready | Op::Send));
        if event.is_outside() && !rest || tells_nothing {
            return Some(found);
        }
        if matches!(event, Event::Rest { asleep: true, .. }) {
            // Before the task sleeps, every ended lease has taken effect, and after the end all
            // attachments have begun to leave.
            for state in &mut found {
                state.all_begin_to_leave();
                for id in 0..state.attachments.len() {
                    if state.attachments[id].is_detached_by_lease() {
                        state.detach(id);
                    }
                }
            }
            dedup(&mut found);
        }
        let mut found = Distinct { states: found, hashes: Vec::new() };
        let (mut at, mut more) = (0, Vec::new());
        while at < found.states.len() {
            found.states[at].settle_offer(facts, &mut more);
            found.states[at].unseen(event, facts, &mut more);
            for other in more.drain(..) {
                found.add(other);
            }
            if found.states.len() > MAX_STATES {
                return None;
            }
            at += 1;
        }
        Some(found.states)
    }

    /// Adds to `more` the states that this state may become in one unseen step.
    fn unseen(&self, event: &Event, facts: &Facts, more: &mut Vec<Self>) {
        for id in (0..self.attachments.len()).filter(|&id| self.attachments[id].is_wavering()) {
            if self.matters_whether_it_detached(id, event, facts) {
                let mut other = self.clone();
                other.detach(id);
                more.push(other);
            }
        }
        if let Some(item) = self.item.as_ref().filter(|item| item.is_routed()) {
            for id in item.unserved() {
                let matters = self.matters_whether_it_was_served(id, event);
                if self.over && matters && item.is_unoffered(id) {
                    let mut other = self.clone();
                    other.leave_at_the_end(id);
                    more.push(other);
                }
                let conflates = self.attachments[id].conflates();
                if matters && item.may_join(id) && self.serves() && !conflates {
                    let mut other = self.clone();
                    other.join_queue(id);
                    more.push(other);
                }
            }
        }
        self.share_unseen(event, facts, more);
        self.share_at_the_end(more);
        if self.finishing {
            // The item is routed, and its recipients may begin to leave before it is offered to
            // them.
            let mut other = self.clone();
            if other.route_unseen(facts) {
                more.push(other);
            }
        }
        if self.order.is_some() {
            let mut other = self.clone();
            if other.go_on_with_order() {
                more.push(other);
            }
        }
    }

    /// Returns `true` if `event` depends on whether an unserved member of a group has got its copy
    /// unseen: a clone was made, or none is needed because the member is the last.
    fn matters_whether_it_was_served(&self, id: Id, event: &Event) -> bool {
        let Some(item) = &self.item else { return false };
        if item.is_unoffered(id) {
            return matches!(*event, Event::Admit(asked, ..) if asked == id);
        }
        let next = matches!(*event, Event::Admit(asked, ..) if asked != id);
        next && item.is_offered(id) || matches!(event, Event::Clone(_)) || item.is_last(id)
    }

    fn matters_whether_it_detached(&self, id: Id, event: &Event, facts: &Facts) -> bool {
        let key = self.attachments[id].key;
        let ended = |leases: &[EndedLease]| leases.iter().any(|(of, _)| *of == id);
        // A lease that ended before the order or the item was read is handled where the order is
        // applied or the item is routed. A lease that ended since may or may not have taken effect.
        // For an order to detach it makes no difference, and for an order to evict see
        // `evict_next`.
        let order_matters = self.order.as_ref().is_some_and(|order| match order.kind {
            OrderKind::Attach(new) => self.attachments[new].key == key && !ended(&order.leases),
            _ => false,
        });
        let unrouted = |seq| {
            self.item.as_ref().is_some_and(|item| item.is_unrouted(seq) && !ended(&item.leases))
        };
        let routed_now = match *event {
            Event::Admit(_, seq, _) | Event::Unmatched(seq) | Event::OnDemand(seq, _) => {
                unrouted(seq) && (facts.keys.get(&seq) == Some(&key) || self.catch_all == Some(id))
            }
            Event::Close(closed, _) => closed == id,
            Event::KeyDetached(detached) => detached == key,
            _ => false,
        };
        let unserved = self.item.as_ref().is_some_and(|item| item.is_unserved(id));
        // With `balance`, the items that wait for the attachment go to the others.
        self.balance
            || order_matters
            || routed_now
            || unserved && self.matters_whether_it_was_served(id, event)
    }
}
