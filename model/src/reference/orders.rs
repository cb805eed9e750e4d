//! 3. Orders and the end.

use super::*;

/// What is known of the orders stream.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) enum Inbox {
    /// It was never polled, or is polled once more: `Pending` is believed.
    #[default]
    Unpolled,
    /// It returned an order last.
    Unread,
    /// It returned `Pending` in this turn.
    Doubted,
    /// It returned `Pending`, and woke itself.
    Yielded,
    /// It had nothing when it was polled last.
    Quiet,
}

/// An order that was read, and the turn.
pub(super) struct Unapplied {
    order: SentOrder,
    read_in: u64,
    /// Whether a part of it was applied.
    begun: bool,
}

impl Reference {
    /// Ends leases, then reads and applies orders, as far as the allowance goes.
    pub(super) fn apply_orders(&mut self) {
        self.caught_up = false;
        while self.end_leases() {
            // The leases are looked at again after an order was read.
            if let Some(order) = self.order.take() {
                if !self.apply(order) {
                    return;
                }
                continue;
            }
            let polls = matches!(self.inbox, Inbox::Unpolled | Inbox::Unread) || self.has_signal();
            if !polls || self.orders.is_none() {
                self.caught_up = true;
                return;
            }
            if self.left.orders == 0 {
                return;
            }
            // An orders stream that woke itself holds up items, once.
            let before = self.inbox;
            self.read_order();
            if self.inbox == Inbox::Yielded {
                self.caught_up = before == Inbox::Yielded;
                return;
            }
        }
    }

    /// An item that matched no key when the stream was doubted makes it be polled once more.
    pub(super) fn begin_orders(&mut self) {
        if self.inbox == Inbox::Doubted {
            let item_waits = self.overtaken.is_some();
            self.inbox = if item_waits { Inbox::Unpolled } else { Inbox::Quiet };
        }
    }

    /// An item was read that may match no key: an order may have been sent before it although the
    /// stream has not woken the task.
    pub(super) fn ask(&mut self) {
        if self.inbox == Inbox::Quiet && !self.has_signal() {
            self.inbox = Inbox::Unpolled;
        }
        self.apply_orders();
    }

    /// Reads an order, if there is one.
    fn read_order(&mut self) {
        let Some(orders) = &mut self.orders else { return };
        self.is_asked = true;
        self.signals.look().orders = false;
        let waker = self.signals.waker(None);
        match Pin::new(orders).poll_next(&mut Context::from_waker(&waker)) {
            Poll::Ready(Some(order)) => {
                self.left.orders -= 1;
                self.inbox = Inbox::Unread;
                self.order = Some(Unapplied { order, read_in: self.turn, begun: false });
            }
            Poll::Ready(None) => (self.orders, self.inbox) = (None, Inbox::Quiet),
            Poll::Pending => {
                self.inbox = match self.inbox {
                    _ if self.signals.look().orders => Inbox::Yielded,
                    Inbox::Unpolled => Inbox::Quiet,
                    _ => Inbox::Doubted,
                };
            }
        }
    }

    /// Returns whether the waker of the orders stream has fired.
    fn has_signal(&self) -> bool {
        self.orders.is_some() && self.signals.look().orders
    }

    /// Returns whether an order or the end of a lease has come. (open)
    pub(super) fn has_signalled(&self) -> bool {
        self.has_signal() || !self.signals.look().ended.is_empty()
    }

    /// Lets ended leases take effect. Returns `false` if the allowance is spent before.
    fn end_leases(&mut self) -> bool {
        loop {
            if self.ended.is_empty() && self.left.orders > 0 {
                self.ended = mem::take(&mut self.signals.look().ended); // those that end meanwhile come later (open)
            }
            let Some(&n) = self.ended.last() else {
                return self.signals.look().ended.is_empty();
            };
            // It costs one even if there is nothing to end. (open)
            if self.left.orders == 0 {
                return false;
            }
            self.ended.pop();
            self.left.orders -= 1;
            self.signals.look().is_ended[n] = false;
            let Some(slot) = &self.slots[n] else { continue };
            match self.hooks.request_of(slot.id) {
                Request::Evict => self.detach(n, true, false),
                Request::Detach if slot.leaving.is_none() && !self.aborted => {
                    self.detach(n, false, false);
                }
                _ => {}
            }
        }
    }

    /// Evicts an attachment, or lets it leave.
    fn detach(&mut self, n: usize, evicts: bool, takes_part: bool) {
        if evicts {
            self.end(n, "evicted", None);
        } else {
            self.leave(n, "requested", takes_part);
            self.advance(n);
        }
    }

    /// Applies an order. Returns `false` if the allowance is spent before.
    fn apply(&mut self, Unapplied { order, read_in, begun }: Unapplied) -> bool {
        let (key, evicts) = match order.kind {
            OrderKind::Detach(_) if self.aborted => return true,
            OrderKind::Detach(key) => (key, false),
            OrderKind::Evict(key) => (key, true),
            OrderKind::Attach(_) => {
                if let Some(Offer::Plain(made)) = order.offer {
                    self.attach(made);
                }
                return true;
            }
            OrderKind::Tick => {
                self.tick(read_in);
                return true;
            }
            OrderKind::Finish => {
                self.end_input();
                let item = self.overtaken.take();
                item.into_iter().for_each(|item| self.route(item)); // it was read before (open)
                return true;
            }
            OrderKind::Abort => {
                self.end_input();
                let item = self.overtaken.take();
                item.into_iter().for_each(|item| self.unmatched(item));
                (self.aborted, self.closed) = (true, 0); // See `close_some`. (open)
                return true;
            }
        };
        let mut members = self.of_key(key, true);
        if evicts {
            members.extend(self.of_key(key, false));
        }
        for (place, n) in members.into_iter().enumerate() {
            // Reading the order has paid for the first.
            let cost = usize::from(begun || place > 0);
            if self.left.orders < cost {
                self.order = Some(Unapplied { order, read_in, begun: true });
                return false;
            }
            self.left.orders -= cost;
            self.detach(n, evicts, true);
        }
        true
    }

    /// The input has ended, or `Finish` was applied: the gate opens.
    pub(super) fn end_input(&mut self) {
        self.over = true;
        self.check_beyond();
    }

    /// Returns whether closing may begin or go on.
    pub(super) fn may_close(&self) -> bool {
        self.over && (self.aborted || self.doubts.is_empty() && self.walk.is_none())
    }

    /// Once no item is on its way any more, the attachments leave, as far as the allowance goes.
    pub(super) fn close_some(&mut self) {
        while self.may_close() && self.closed < self.slots.len() && self.left.closes > 0 {
            let n = self.closed;
            self.closed += 1;
            if self.slots[n].is_none() {
                continue; // Only attachments cost something.
            }
            self.left.closes -= 1;
            if self.aborted {
                self.end(n, "evicted", None);
            } else if self[n].leaving.is_none() {
                self.leave(n, "finished", true);
                self.close_if_drained(n);
            }
        }
    }

    pub(super) fn attach(&mut self, Made { id, terms, sink }: Made) {
        self.totals.attached += 1;
        // What its leases request before it is announced takes effect at once.
        let request = self.hooks.request_of(id);
        if request == Request::Evict || self.aborted {
            self.say(Event::Attached(id));
            drop(sink);
            self.totals.detached += 1;
            return self.say(Event::Detached(id, "evicted")); // without a slot (open)
        }
        let settings = self.settings;
        let overflow = terms.overflow.unwrap_or(settings.overflow);
        let slot = Slot {
            id,
            key: terms.key,
            sink: Some(sink),
            buffer: match (terms.buffer.or(settings.buffer), overflow) {
                (None, Overflow::Wait) => 0,
                (None, Overflow::Conflate) => 1,
                (None, _) => 64,
                (Some(buffer), Overflow::Wait | Overflow::Evict) => buffer,
                (Some(buffer), _) => buffer.max(1),
            },
            overflow,
            limit: terms.limit,
            stall_timeout: terms.stall_timeout.unwrap_or(settings.stall_timeout),
            idle_timeout: terms.idle_timeout.unwrap_or(settings.idle_timeout),
            since: self.now(),
            place: self.clock,
            leaving: Some("attached"),
            last_tick: self.ticks.0,
            ..Slot::default()
        };
        let others = self.of_key(terms.key, true);
        self.say(Event::Attached(id));
        let n = self.add(slot);
        // The first that applies. (open)
        self[n].leaving = if request == Request::Detach {
            Some("requested")
        } else if self.over {
            Some("finished")
        } else if terms.limit == Some(0) {
            Some("limited")
        } else if terms.keep_existing && !others.is_empty() {
            Some("refused")
        } else {
            None
        };
        if self[n].leaving.is_some() {
            return self.advance(n);
        }
        // Also if the backlog uses up its limit.
        self.catch_all = if terms.catch_all { Some(n) } else { self.catch_all };
        match others.first() {
            None => self.say(Event::KeyAttached(terms.key)),
            Some(_) if settings.multicast => {}
            Some(&head) if settings.balance => {
                self[head].full = false;
                // Under `Wait`, what fits into the larger room is not beyond it any more.
                if self[head].overflow == Overflow::Wait {
                    let beyond = self[head].queue.len().saturating_sub(self.room(head));
                    self[head].beyond = beyond.min(self[head].beyond);
                    self.check_beyond();
                }
                if !self[head].queue.is_empty() {
                    self.signals.look().list(n);
                }
            }
            Some(&old) => self.replace(old, n),
        }
    }

    /// Gives an attachment a slot, whose id may be that of an earlier one.
    fn add(&mut self, slot: Slot) -> usize {
        let n = self.free.pop().unwrap_or(self.slots.len());
        let mut signals = self.signals.look();
        signals.present.push((slot.id, n, Vec::new()));
        if n == self.slots.len() {
            self.slots.push(None);
            signals.fired.push(false);
            signals.is_listed.push(false);
            signals.is_ended.push(false);
        }
        if self.hooks.request_of(slot.id) != Request::Stay {
            signals.list_ended(n); // although that is known
        }
        if slot.stall_timeout > 0 || slot.idle_timeout > 0 {
            self.timers.push(n);
        }
        self.slots[n] = Some(slot);
        n
    }

    /// A new attachment takes over key and queue of an old one.
    fn replace(&mut self, old: usize, new: usize) {
        let queue = mem::take(&mut self[old].queue);
        self[old].beyond = 0;
        self.unlink(old, "replaced", false);
        self.advance(old); // before the new one is offered anything (open)
        for item in queue {
            let slot = &mut self[new];
            let conflates = slot.overflow == Overflow::Conflate && !slot.queue.is_empty();
            if slot.leaving.is_some() {
                self.unmatched(item);
                continue;
            }
            let fits = slot.queue.len() < slot.buffer;
            slot.queue.push_back(item);
            if conflates || !fits {
                slot.beyond += 1;
                self.mark_beyond(new);
            } else {
                self.count(new);
            }
        }
        self.advance(new);
    }
}
