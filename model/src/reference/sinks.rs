//! 4. What a sink takes; how an attachment leaves and ends.

use futures::Sink;

use super::*;

impl Reference {
    /// Polls an operation with the waker of the slot. An error is the name of the operation.
    pub(super) fn poll_sink(&mut self, n: usize, op: Op) -> Poll<Result<(), &'static str>> {
        let waker = self.signals.waker(Some(n));
        let sink = self[n].sink.as_mut().expect("it has a sink");
        let answer = sink.poll(op, &Context::from_waker(&waker));
        if answer.is_pending() {
            let fired = self.signals.look().fired[n];
            self[n].woke_itself = fired; // before it returned (open)
        } else {
            self[n].moved = true;
        }
        answer.map_err(|Broken(op)| op)
    }

    pub(super) fn poll_ready(&mut self, n: usize) -> Poll<Result<(), &'static str>> {
        let answer = self.poll_sink(n, Op::Ready);
        self[n].parked = answer.is_pending();
        self[n].parked_since = self.now();
        answer
    }

    /// Sends an item to a sink that is ready. Returns `false` if the sink failed and is gone.
    fn start_send(&mut self, n: usize, item: Item) -> bool {
        let sink = self[n].sink.as_mut().expect("it has a sink");
        if let Err(Broken(op)) = Pin::new(sink).start_send(item) {
            self.totals.lost += 1;
            self.end(n, op, None);
            return false;
        }
        self[n].busy = true;
        self[n].place = self.now(); // the end of the line
        self.totals.delivered += 1;
        self.enter_flush_list(n);
        true
    }

    /// Sends an item that need not wait.
    pub(super) fn send_now(&mut self, n: usize, item: Item) {
        if self.start_send(n, item) {
            self.count(n);
            self.close_if_drained(n);
        }
    }

    /// Lets a sink that is ready take the first item of its queue.
    pub(super) fn take(&mut self, n: usize) {
        let queue = self.queue_of(n);
        let slot = &mut self[queue];
        let item = slot.queue.pop_front().expect("an item waits");
        let accepts = slot.beyond > 0;
        slot.beyond -= usize::from(accepts); // also if the send fails (open)
        if self.start_send(n, item) {
            self.check_beyond();
            if accepts || self.shares(n) {
                self.count(n);
            }
        }
    }

    /// Lets a sink take items while it is ready, with at most this many calls of `poll_ready`. The
    /// first `paid` are paid for.
    fn drain(&mut self, n: usize, paid: usize, calls: usize) {
        for call in 0..calls {
            if !self.has_work(n) {
                return;
            }
            let left = if self.on_demand { &mut self.left.items } else { &mut self.left.sinks };
            let cost = usize::from(call >= paid);
            if *left < cost {
                break;
            }
            *left -= cost;
            match self.poll_ready(n) {
                Poll::Ready(Ok(())) => self.take(n),
                Poll::Ready(Err(op)) => return self.end(n, op, None),
                Poll::Pending => return,
            }
        }
        if self.has_work(n) {
            self.signals.look().list(n);
        }
    }

    /// Returns whether the sink could take an item that waits.
    fn has_work(&self, n: usize) -> bool {
        self.slots[n].is_some() && !self[n].parked && !self[self.queue_of(n)].queue.is_empty()
    }

    /// 5. Listed slots.
    pub(super) fn serve_listed(&mut self) {
        while self.left.sinks > 0 {
            let Some(n) = self.listed.pop() else { return };
            self.left.sinks -= 1; // also for an id that is free (open)
            self.signals.look().is_listed[n] = false;
            self.serve(n);
        }
    }

    fn serve(&mut self, n: usize) {
        let woken = mem::take(&mut self.signals.look().fired[n]);
        if self.slots[n].is_none() {
            return;
        }
        if woken && self.asked.contains(&n) {
            // It was polled in this turn because it was in doubt: this wake is for the next turn,
            // and so is work that is left. (open)
            self.signals.look().fired[n] = true;
            self.signals.look().list(n);
            return;
        }
        let flushes = self[n].flushing && (woken || self[n].flush_woken);
        self[n].flush_woken = false;
        if woken {
            let (front, queue) = (-self.now(), self.queue_of(n));
            self[queue].full = false;
            let slot = &mut self[n];
            (slot.parked, slot.confirmed, slot.place) = (false, false, front);
        }
        let eighth = self.settings.budget / 8;
        let calls = if self.listed.is_empty() { usize::MAX } else { 1 + eighth };
        self.drain(n, 1, calls.min(self.share(n)));
        let Some(slot) = &self.slots[n] else { return };
        if slot.leaving.is_some() && slot.queue.is_empty() {
            if woken || !slot.closing {
                self.close(n);
            }
        } else if flushes && self.has_work(n) {
            self[n].flush_woken = true; // first the rest of the queue
        } else if flushes {
            self.flush(n);
        }
    }

    /// What an order causes for a sink is done at once: it takes its queue or is closed.
    pub(super) fn advance(&mut self, n: usize) {
        if self.slots[n].is_some() && self.signals.look().is_listed[n] {
            return; // It is served later.
        }
        self.drain(n, 0, usize::MAX);
        let Some(slot) = &self.slots[n] else { return };
        if slot.leaving.is_some() && slot.queue.is_empty() && !slot.closing {
            self.close(n);
        }
    }

    /// Closes a sink that began to leave for another reason, unless it is listed and served later.
    pub(super) fn close_if_drained(&mut self, n: usize) {
        let Some(slot) = self.slots[n].as_ref().filter(|slot| slot.leaving.is_some()) else {
            return;
        };
        if self.has_work(n) {
            self.signals.look().list(n);
        } else if slot.queue.is_empty() && !slot.closing && !self.signals.look().is_listed[n] {
            self.close(n);
        }
    }

    pub(super) fn close(&mut self, n: usize) {
        self[n].closing = true;
        match self.poll_sink(n, Op::Close) {
            Poll::Pending => {}
            Poll::Ready(Err(op)) => self.end(n, op, None),
            Poll::Ready(Ok(())) => self.end(n, self[n].leaving.expect("it leaves"), None),
        }
    }

    /// Lets an attachment leave gracefully. With `balance` it takes a part of the queue along, if
    /// `takes_part` or if it is the last of its key.
    pub(super) fn leave(&mut self, n: usize, why: &'static str, takes_part: bool) {
        // The first `accepted` items of its queue count towards its limit already.
        let (queue_of, shares) = (self.queue_of(n), self.shares(n));
        let is_alone = self.of_key(self[n].key, true) == [n];
        let takes_part = takes_part || is_alone;
        let share = if takes_part { self.share(n) } else { 0 };
        let slot = &mut self[queue_of];
        let part = if shares { share } else { slot.queue.len() };
        let accepted = if shares { 0 } else { slot.queue.len() - slot.beyond };
        slot.beyond = slot.beyond.saturating_sub(part);
        let mut queue: VecDeque<_> = slot.queue.drain(..part).collect();
        queue.extend(self.copy_for_leaver(n));
        self.unlink(n, why, false);
        for (place, item) in queue.into_iter().enumerate() {
            let slot = &mut self[n];
            if place < accepted || slot.limit != Some(slot.accepted) {
                slot.accepted += u64::from(place >= accepted);
                slot.queue.push_back(item);
            } else if self.settings.multicast {
                self.discard(n, item, "overflowed"); // a copy is not unmatched (open)
            } else {
                self.unmatched(item);
            }
        }
    }

    /// Ends the receiving of an attachment: `unblocked`, then `key_detached`. In between, the sink
    /// is dropped if the attachment ends.
    pub(super) fn unlink(&mut self, n: usize, why: &'static str, ends: bool) {
        self.hand_over(n);
        self[n].since = self.now();
        self[n].leaving = Some(why);
        self.catch_all.take_if(|catch_all| *catch_all == n);
        self.check_beyond();
        if ends {
            self.drop_sink(n);
        }
        let key = self[n].key;
        if self.of_key(key, true).is_empty() {
            self.say(Event::KeyDetached(key));
        }
    }

    /// Drops the sink, and what leases know of it.
    fn drop_sink(&mut self, n: usize) {
        self[n].sink = None;
        let id = self[n].id;
        self.signals.look().present.retain(|(other, ..)| *other != id);
    }

    /// Removes an attachment. `why` is the reason, or the operation that failed. Its sink is
    /// dropped, then its queue, `item` and what is on its way to it alone are discarded. (open)
    pub(super) fn end(&mut self, n: usize, why: &'static str, item: Option<Item>) {
        let item = self.forget_on_walk(n).or(item);
        if self[n].leaving.is_none() {
            self.unlink(n, why, true);
        }
        let discarded = match why {
            "evicted" | "stalled" => "evicted",
            "overflowed" => "overflowed",
            _ => "failed",
        };
        self.drop_sink(n);
        let queue = mem::take(&mut self[n].queue);
        queue.into_iter().chain(item).for_each(|item| self.discard(n, item, discarded));
        let id = self[n].id;
        self.slots[n] = None;
        if let Some(place) = self.timers.iter().position(|other| *other == n) {
            self.timers.swap_remove(place);
            self.settle_sweep();
        }
        self.free.push(n);
        self.totals.detached += 1;
        self.say(Event::Detached(id, why));
    }
}
