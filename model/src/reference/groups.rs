//! 2. Groups.

use super::*;

/// An item on its way through a group, and the members that it was not offered to.
pub(super) struct Walk(Item, Vec<usize>);

// 2.1 `multicast`.
impl Reference {
    pub(super) fn begin_walk(&mut self, item: Item, members: Vec<usize>) {
        self.walk = Some(Walk(item, members));
        self.left.items += 1; // Reading the item has paid for the first.
        self.go_on_walk();
    }

    pub(super) fn go_on_walk(&mut self) {
        while let Some(Walk(_, members)) = &self.walk {
            let n = members[0];
            if self.left.items == 0 {
                return;
            }
            self.left.items -= 1;
            let copy = self.next_copy(n);
            self.offer(n, copy);
        }
    }

    /// Returns the copy of a member that is offered the item now. The last gets the item itself.
    fn next_copy(&mut self, n: usize) -> Item {
        let Walk(item, mut members) = self.walk.take().expect("an item is on its way");
        members.retain(|other| *other != n);
        if members.is_empty() {
            return item;
        }
        self.totals.copies += 1;
        self.handled += 1;
        let copy = item.clone();
        self.walk = Some(Walk(item, members));
        copy
    }

    pub(super) fn is_on_walk(&self, n: usize) -> bool {
        self.walk.as_ref().is_some_and(|Walk(_, members)| members.contains(&n))
    }

    /// Returns the copy of a member that leaves gracefully before it was offered the item.
    pub(super) fn copy_for_leaver(&mut self, n: usize) -> Option<Item> {
        let copy = self.is_on_walk(n).then(|| self.next_copy(n))?;
        if self.admits(n, &copy) {
            return Some(copy);
        }
        self.discard(n, copy, "not_admitted");
        None
    }

    /// Forgets a member that gets no copy. Returns the item if it was for this member alone.
    pub(super) fn forget_on_walk(&mut self, n: usize) -> Option<Item> {
        let Walk(_, members) = self.walk.as_mut()?;
        members.retain(|other| *other != n);
        let Walk(item, _) = self.walk.take_if(|Walk(_, members)| members.is_empty())?;
        Some(item)
    }
}

// 2.2 `balance`.
impl Reference {
    /// Returns whether the attachment receives and shares the queue of its key.
    pub(super) fn shares(&self, n: usize) -> bool {
        self.settings.balance && self[n].leaving.is_none()
    }

    /// Returns the slot whose queue this one takes from: with `balance`, the head of its key.
    pub(super) fn queue_of(&self, n: usize) -> usize {
        if self.shares(n) { self.of_key(self[n].key, true)[0] } else { n }
    }

    /// Returns the members that are lined up, not parked, in order.
    fn line(&self, key: u16) -> Vec<usize> {
        let mut line = self.of_key(key, true);
        line.retain(|&n| !self[n].parked);
        line.sort_by_key(|&n| self[n].place);
        line
    }

    /// Offers an item to the sinks of a key in turn. Hooks name the head.
    pub(super) fn balance(&mut self, head: usize, item: Item) {
        if !self.admits(head, &item) {
            return self.discard(head, item, "not_admitted");
        }
        let key = self[head].key;
        let mut cost = 0;
        while self[self.of_key(key, true)[0]].queue.is_empty() {
            let Some(&n) = self.line(key).first() else { break };
            self.left.items = self.left.items.saturating_sub(cost);
            cost = 1;
            match self.poll_ready(n) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => return self.send_now(n, item),
                Poll::Ready(Err(op)) if self.of_key(key, true) == [n] => {
                    return self.end(n, op, Some(item));
                }
                Poll::Ready(Err(op)) => self.end(n, op, None),
            }
        }
        self.enqueue(self.of_key(key, true)[0], item);
    }

    /// Returns how many items a sink may take at a time.
    pub(super) fn share(&self, n: usize) -> usize {
        if !self.shares(n) {
            return usize::MAX;
        }
        let members = self.of_key(self[n].key, true);
        self[members[0]].queue.len().div_ceil(members.len())
    }

    /// Polls the members of a key in doubt: first those that may be ready, in the order in
    /// which they joined, then those in line. If none is ready, the policy acts.
    pub(super) fn poll_doubted_key(&mut self, key: u16, polls: &mut usize) {
        let mut after = 0; // Each is asked once.
        while let Some(&head) = self.of_key(key, true).first() {
            let is_doubted = self.is_doubted(head);
            let unconfirmed = self.of_key(key, true).into_iter().find(|&n| {
                let may_be_ready = !self[n].confirmed || self.signals.look().fired[n];
                self[n].since > after && self[n].parked && may_be_ready
            });
            after = unconfirmed.map_or(i64::MAX, |n| self[n].since);
            let Some(n) = unconfirmed.or(self.line(key).first().copied()) else {
                self[head].full = true;
                // The head may be another one, whose policy is another one, too.
                return if is_doubted {
                    self.apply_policy_beyond(head);
                };
            };
            if *polls == 0 || !is_doubted {
                return;
            }
            self.poll_doubted_member(n, polls);
        }
    }

    fn poll_doubted_member(&mut self, n: usize, polls: &mut usize) {
        let (was_parked, since) = (self[n].parked, self[n].parked_since);
        self.begin_doubt(n);
        for taken in 0..self.share(n) {
            if *polls == 0 {
                break;
            }
            *polls -= 1;
            match self.poll_ready(n) {
                Poll::Ready(Ok(())) => self.take(n),
                Poll::Ready(Err(op)) => self.end(n, op, None),
                Poll::Pending => {
                    let slot = &mut self[n];
                    slot.confirmed = true;
                    if was_parked && taken == 0 {
                        slot.parked_since = since;
                    }
                    return;
                }
            }
            if self.slots[n].is_none() || self[n].leaving.is_some() {
                return self.close_if_drained(n);
            }
        }
        if !self[self.queue_of(n)].queue.is_empty() {
            self.signals.look().list(n);
        }
    }

    /// Returns the sink to evict: of several with the same queue, the one that was parked first.
    pub(super) fn longest_parked(&self, head: usize) -> usize {
        let members = if self.shares(head) { self.of_key(self[head].key, true) } else { vec![] };
        members.into_iter().min_by_key(|&n| self[n].parked_since).unwrap_or(head)
    }

    /// The queue stays with the key when its head leaves.
    pub(super) fn hand_over(&mut self, n: usize) {
        let members = if self.shares(n) { self.of_key(self[n].key, true) } else { Vec::new() };
        let [head, next, ..] = members[..] else { return };
        if head != n {
            return;
        }
        let slot = &mut self[n];
        let (queue, beyond) = (mem::take(&mut slot.queue), mem::take(&mut slot.beyond));
        let full = self[n].full && queue.is_empty();
        let room =
            members[1..].iter().fold(0_usize, |room, n| room.saturating_add(self[*n].buffer));
        let slot = &mut self[next];
        let conflates = slot.overflow == Overflow::Conflate;
        let beyond = if conflates {
            queue.len().saturating_sub(1)
        } else {
            beyond.min(queue.len().saturating_sub(room))
        };
        (slot.queue, slot.beyond, slot.full) = (queue, beyond, full); // the successor goes on where it was (open)
        if beyond > 0 {
            self.mark_beyond(next);
        }
    }
}
