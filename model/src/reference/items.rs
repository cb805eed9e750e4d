//! 1. Where an item waits.

use super::*;

impl Reference {
    /// Routes an item that was read, after all orders that come before it.
    pub(super) fn route(&mut self, item: Item) {
        let mut members = self.of_key(item.key, true);
        if members.is_empty() && self.settings.on_demand > 0 && !self.over {
            if let Some(Offer::Plain(made)) = self.hooks.make_on_demand(&item) {
                self.left.items = self.left.items.saturating_sub(1);
                self.on_demand = true;
                self.attach(made);
                self.on_demand = false;
                members = self.of_key(item.key, true);
            }
        }
        match (members.first(), self.catch_all) {
            (None, None) => self.unmatched(item),
            (None, Some(n)) if self.settings.balance => self.balance(self.queue_of(n), item),
            (Some(&head), _) if self.settings.balance => self.balance(head, item),
            (Some(_), _) if self.settings.multicast => self.begin_walk(item, members),
            (None, Some(n)) | (Some(&n), _) => self.offer(n, item),
        }
    }

    pub(super) fn admits(&self, n: usize, item: &Item) -> bool {
        self.hooks.admits(self[n].id, item)
    }

    pub(super) fn offer(&mut self, n: usize, item: Item) {
        if !self.admits(n, &item) {
            return self.discard(n, item, "not_admitted");
        }
        if self[n].queue.is_empty() && !self[n].parked {
            match self.poll_ready(n) {
                Poll::Ready(Ok(())) => return self.send_now(n, item),
                Poll::Ready(Err(op)) => return self.end(n, op, Some(item)),
                Poll::Pending => {}
            }
        }
        self.enqueue(n, item);
        self.close_if_drained(n);
    }

    /// Points 2 to 4. With `balance`, `n` is the head of the key.
    pub(super) fn enqueue(&mut self, n: usize, item: Item) {
        let (room, full) = (self.room(n), self.is_full(n));
        let slot = &mut self[n];
        let conflates = slot.overflow == Overflow::Conflate && !slot.queue.is_empty();
        // Nothing is accepted behind items that are not. (open)
        if slot.beyond == 0 && slot.queue.len() < room && !conflates {
            slot.queue.push_back(item);
            self.accept(n);
        } else if full {
            self.apply_policy(n, item);
        } else {
            slot.queue.push_back(item);
            slot.beyond += 1;
            self.mark_beyond(n);
        }
    }

    /// An item is beyond the buffer: under `Wait`, no further one is read; under the other policies,
    /// the sink is in doubt.
    pub(super) fn mark_beyond(&mut self, n: usize) {
        let waits = self[n].overflow == Overflow::Wait;
        let list = if waits { &mut self.gate } else { &mut self.doubts };
        if !(list.contains(&n) || waits && self.over) {
            list.push(n);
        }
    }

    /// The number of items that may be accepted.
    pub(super) fn room(&self, n: usize) -> usize {
        let members = if self.shares(n) { self.of_key(self[n].key, true) } else { vec![n] };
        members.into_iter().fold(0, |room, n| room.saturating_add(self[n].buffer))
    }

    fn is_full(&self, n: usize) -> bool {
        let is_shared = self.shares(n) && self.of_key(self[n].key, true).len() > 1;
        let signals = self.signals.look();
        let woken = if is_shared { signals.is_listed.contains(&true) } else { signals.fired[n] };
        self[n].full && !woken
    }

    /// An item joined the accepted ones. With `balance`, items count when a sink takes them.
    fn accept(&mut self, n: usize) {
        if !self.shares(n) {
            self.count(n);
        }
    }

    /// Counts an item towards the limit.
    pub(super) fn count(&mut self, n: usize) {
        let slot = &mut self[n];
        slot.accepted += 1;
        if slot.limit == Some(slot.accepted) && slot.leaving.is_none() {
            self.leave(n, "limited", false);
        }
    }

    /// Forgets slots that have no items beyond their buffers any longer. This may open the gate.
    pub(super) fn check_beyond(&mut self) {
        let is_beyond = |n: &usize| {
            let slot = self.slots[*n].as_ref().filter(|slot| slot.leaving.is_none());
            slot.is_some_and(|slot| slot.beyond > 0)
        };
        self.gate.retain(|n| is_beyond(n) && !self.over);
        self.doubts.retain(is_beyond);
        if let Some((_, id)) = self.named.take_if(|(n, _)| !self.gate.contains(n)) {
            self.say(Event::Unblocked(id));
        }
    }

    pub(super) fn name_blocked(&mut self) {
        // With `balance`, the waker of the head alone counts. (open)
        let Some(&n) = self.gate.first() else { return };
        self.waited = true;
        if self.named.is_none() && !self.signals.look().fired[n] {
            self.named = Some((n, self[n].id));
            self.say(Event::Blocked(self[n].id));
        }
    }

    // 1.2 Policies that discard: in doubt, then full.

    pub(super) fn is_doubted(&self, n: usize) -> bool {
        let slot = self.slots[n].as_ref().filter(|slot| slot.leaving.is_none());
        slot.is_some_and(|slot| slot.beyond > 0 && slot.overflow != Overflow::Wait)
    }

    pub(super) fn poll_doubts(&mut self) {
        let mut polls = self.settings.budget.min(32);
        while polls > 0 && self.left.items > 0 && !self.doubts.is_empty() {
            let n = self.doubts[0];
            if !self.is_doubted(n) {
                self.doubts.remove(0);
            } else if self.shares(n) {
                self.poll_doubted_key(self[n].key, &mut polls);
            } else {
                self.poll_doubted(n, &mut polls);
            }
        }
        self.doubted = !self.doubts.is_empty();
    }

    fn poll_doubted(&mut self, n: usize, polls: &mut usize) {
        if self.is_full(n) {
            return self.apply_policy_beyond(n); // goes on with it
        }
        self.begin_doubt(n);
        while self.slots[n].is_some() && !self[n].queue.is_empty() {
            if *polls == 0 {
                self.signals.look().list(n);
                return;
            }
            *polls -= 1;
            match self.poll_ready(n) {
                Poll::Ready(Ok(())) => self.take(n),
                Poll::Ready(Err(op)) => self.end(n, op, None),
                Poll::Pending => {
                    self[n].full = true;
                    self.apply_policy_beyond(n);
                    break;
                }
            }
        }
        self.close_if_drained(n);
    }

    /// Uses up the wake of a sink that is polled because it is in doubt. A pending flush is still
    /// polled when the slot is served. (open)
    pub(super) fn begin_doubt(&mut self, n: usize) {
        let woken = mem::take(&mut self.signals.look().fired[n]);
        self.asked.push(n);
        let head = self.queue_of(n);
        self[head].full = false;
        let slot = &mut self[n];
        slot.confirmed = false;
        slot.flush_woken |= woken && slot.flushing;
    }

    /// The sink was found full: its policy is applied to the items beyond the buffer.
    pub(super) fn apply_policy_beyond(&mut self, n: usize) {
        while self.slots[n].as_ref().is_some_and(|slot| slot.beyond > 0) {
            if self.left.items == 0 {
                // The rest is for the next turn, after the other sinks in doubt.
                self.doubts.retain(|other| *other != n);
                self.doubts.push(n);
                break;
            }
            let room = self.room(n);
            let slot = &mut self[n];
            let accepted = slot.queue.len() - slot.beyond;
            slot.beyond -= 1;
            if accepted < room && slot.overflow != Overflow::Conflate {
                self.accept(n); // The room has grown, with `balance`. (open)
            } else if let Some(item) = slot.queue.remove(accepted) {
                self.apply_policy(n, item);
            }
        }
        self.check_beyond();
    }

    /// Applies the policy of a full sink to an item, which comes before those beyond the buffer.
    fn apply_policy(&mut self, n: usize, item: Item) {
        let room = self.room(n);
        let slot = &mut self[n];
        let (id, accepted) = (slot.id, slot.queue.len() - slot.beyond);
        match slot.overflow {
            Overflow::DropNewest => return self.discard(n, item, "overflowed"),
            Overflow::Evict => {
                // What is beyond the room stays for the others, if there are any.
                slot.queue.insert(accepted, item);
                slot.beyond = 0;
                let longest = self.longest_parked(n);
                return self.end(longest, "overflowed", None);
            }
            Overflow::Conflate => {
                for place in 0..accepted {
                    self.compare();
                    if self.hooks.is_superseded(id, &self[n].queue[place], &item) {
                        let old = mem::replace(&mut self[n].queue[place], item);
                        return self.discard(n, old, "conflated");
                    }
                }
            }
            _ => {}
        }
        if accepted >= room {
            let oldest = self[n].queue.pop_front();
            oldest.into_iter().for_each(|oldest| self.discard(n, oldest, "overflowed"));
        }
        let slot = &mut self[n];
        slot.queue.insert(slot.queue.len() - slot.beyond, item);
        self.accept(n);
    }

    /// A number of comparisons cost as much as an item.
    fn compare(&mut self) {
        self.comparisons += 1;
        if self.comparisons % 64 == 0 {
            self.left.items = self.left.items.saturating_sub(1);
        }
    }

    // The fates of items.

    pub(super) fn unmatched(&mut self, item: Item) {
        self.totals.unmatched += 1;
        self.say(Event::Unmatched(item.seq));
    }

    pub(super) fn discard(&mut self, n: usize, item: Item, why: &'static str) {
        self.totals.discarded += 1;
        self.say(Event::Discarded(self[n].id, item.seq, why));
    }
}
