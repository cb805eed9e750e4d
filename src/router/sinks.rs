//! Sinks are polled here: drained when they were woken, flushed when a flush is due, closed when
//! they leave. Every attachment ends in [`remove`](Router::remove).
//!
//! `share` is what may still be spent: one for each slot that was woken, each item that is sent
//! from a queue, each flush, and each slot that begins to leave at the end of the input. Work that
//! is left over stays in the ready list or the flush list for the next turn.

use core::hash::{BuildHasher, Hash};
use core::task::Poll;

use futures_sink::Sink;

use super::Router;
use super::held::Exit;
use crate::budget::Share;
use crate::hooks::{Detached, Discarded, Hooks, Recipient};
use crate::id::SlotId;
use crate::ready::Woken;
use crate::slot::{LeaveReason, Remains, Slot, Stage};

impl<K, S, V, H, B> Router<K, S, V, H, B> {
    /// All sinks that took an item are to be flushed.
    pub(crate) fn mark_all_due(&mut self) {
        self.slots.flushes_mut().mark_all_due();
    }

    /// How many sinks took an item and are to be flushed.
    pub(crate) fn count_unflushed(&self) -> usize {
        self.slots.flushes().len()
    }

    /// The input ran dry in this turn. Returns `true` if sinks are to be flushed for that, however
    /// many.
    pub(crate) fn count_dry_turn(&mut self) -> bool {
        self.slots.flushes_mut().count_dry_turn()
    }
}

impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Advances the slots in the ready list: their sinks were woken, or an earlier turn left work.
    pub(crate) fn poll_woken(&mut self, share: &mut Share) {
        while !share.is_spent() {
            let Some(Woken { id, by_sink }) = self.slots.ready_mut().pop() else { return };
            share.spend();
            let is_left_to_retry = self.is_left_to_retry(id);
            // Stale wake: the slot is vacant.
            let Some(mut slot) = self.slots.get_mut(id) else { continue };
            let is_to_retry = slot.is_to_retry();
            if is_left_to_retry && (by_sink || is_to_retry) {
                if by_sink {
                    self.slots.ready().fire(id);
                } else {
                    self.slots.ready().list(id);
                }
                continue;
            }
            if by_sink {
                slot.wake();
            } else if is_to_retry {
                slot.unpark();
            }
            if by_sink || is_to_retry {
                self.holding.slot_woken(id);
                self.member_woken(id);
            }
            // While others wait, no slot gets more than an eighth of what is left. Each gets at
            // least one: with a share of 1 in each turn a queue would never drain otherwise.
            let all = share.left();
            let most = if self.slots.ready().is_last() { all } else { all / 8 }.max(1);
            let mut part = Share::new(most);
            self.advance(id, &mut part);
            share.split(most - part.left());
        }
    }

    /// Advances a slot that has work which no waker announced, unless it is in the ready list.
    pub(super) fn advance_unless_listed(&mut self, id: SlotId, share: &mut Share) {
        if !self.slots.ready().is_listed(id) {
            self.advance(id, share);
        }
    }

    /// Drains a slot, gives it the item that it waits for, and then closes it if it is leaving, or
    /// polls a pending flush again.
    fn advance(&mut self, id: SlotId, share: &mut Share) {
        let mut slot = self.slots.slot(id);
        if slot.is_queued() || slot.is_waiting() {
            if !self.drain(id, share) {
                return;
            }
            if self.slots.slot(id).is_waiting() {
                self.serve_waiting(id);
            }
            let Some(same) = self.slots.get(id) else { return };
            slot = same;
        }
        if slot.is_closable() {
            self.close(id);
        } else if slot.is_flushable() {
            self.flush(id);
        }
    }

    /// Sends the queued items. Returns `false` if some must wait for the next turn, or the slot is
    /// gone.
    fn drain(&mut self, id: SlotId, share: &mut Share) -> bool {
        loop {
            let mut slot = self.slots.entry(id);
            if !slot.is_queued() || slot.is_parked() {
                return true;
            }
            if share.is_spent() {
                self.slots.ready().list(id);
                return false;
            }
            match slot.poll_ready() {
                Poll::Ready(Ok(())) => {}
                Poll::Pending => {
                    self.park(id);
                    return true;
                }
                Poll::Ready(Err(error)) => {
                    self.remove(id, Detached::Failed(error), None);
                    return false;
                }
            }
            share.spend();
            let Some(item) = slot.pop() else { return true };
            self.ledger.unqueued(1);
            if let Err(error) = slot.send::<false>(item, self.ledger.count_received()) {
                self.lose(id, error);
                return false;
            }
            self.ledger.delivered();
        }
    }

    /// Flushes the sinks whose flush is due. `budget` limits how many items ahead a flush counts as
    /// due.
    #[inline]
    pub(crate) fn flush_due(&mut self, budget: usize, share: &mut Share) {
        if self.has_due_flushes(budget) {
            self.flush_next(budget, share);
        }
    }

    fn flush_next(&mut self, budget: usize, share: &mut Share) {
        let horizon = self.flush_horizon(budget);
        // In locals, for the loop to keep them in registers.
        let (mut left, mut completed) = (share.take(), 0);
        while !left.is_spent() {
            let Some(id) = self.slots.flushes_mut().pop_due(horizon) else { break };
            left.spend();
            match self.slots.flush_unqueued(id) {
                None | Some(Poll::Pending) => {}
                Some(Poll::Ready(Ok(()))) => completed += 1,
                Some(Poll::Ready(Err(error))) => self.remove(id, Detached::Failed(error), None),
            }
        }
        self.ledger.operated(completed);
        share.add(left);
    }

    fn flush(&mut self, id: SlotId) {
        match self.slots.entry(id).poll_flush() {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => self.ledger.operated(1),
            Poll::Ready(Err(error)) => self.remove(id, Detached::Failed(error), None),
        }
    }

    #[cold]
    fn close(&mut self, id: SlotId) {
        let Stage::Leaving(reason) = self.slots.slot(id).stage() else { return };
        match self.slots.entry(id).poll_close() {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => {
                self.ledger.operated(1);
                self.remove(id, reason.into(), None);
            }
            Poll::Ready(Err(error)) => self.remove(id, Detached::Failed(error), None),
        }
    }

    /// The input is over: it is not polled any more. An item that is held goes to its recipients as
    /// they leave.
    pub(crate) fn finish(&mut self) {
        self.close_cursor.get_or_insert(0);
        self.unblock();
    }

    /// Lets slots leave because the input is over.
    #[inline]
    pub(crate) fn close_some(&mut self, share: &mut Share) {
        if self.is_closing() {
            self.close_next(share);
        }
    }

    #[cold]
    fn close_next(&mut self, share: &mut Share) {
        while let (Some(cursor), true) = (self.close_cursor, self.is_closing() && share.spend()) {
            self.close_cursor = Some(cursor + 1);
            let id = SlotId::from_index(cursor);
            if self.slots.get(id).is_some_and(Slot::receives) {
                self.leave(id, LeaveReason::Finished);
                self.advance_unless_listed(id, share);
            }
        }
    }

    /// Lets a slot leave gracefully: it receives no new items. The queued items and its copy of the
    /// held item are still sent, and then it is closed. The caller has to
    /// [`advance`](Self::advance) it.
    pub(super) fn leave(&mut self, id: SlotId, reason: LeaveReason) {
        self.hand_on_queue(id);
        self.leave_with_queue(id, reason);
    }

    /// The same, but the queue stays with the slot even if its group balances.
    pub(super) fn leave_with_queue(&mut self, id: SlotId, reason: LeaveReason) {
        if let Some(item) = self.take_owed(id, Exit::Graceful) {
            self.join_queue(id, item);
        }
        let frees_key = self.slots.is_only_receiver(id);
        self.slots.leave(id, reason);
        if frees_key {
            self.ledger.key_detached(self.slots.recipient(id).key);
        }
    }

    /// Ends an attachment: drops the sink, then discards all items that waited for it, and `item`,
    /// which was to be sent to it.
    #[cold]
    pub(super) fn remove(&mut self, id: SlotId, why: Detached<S::Error>, item: Option<V>) {
        self.hand_on_queue(id);
        self.remove_with_queue(id, why, item);
    }

    /// The same, but the queue is discarded even if its group balances.
    #[cold]
    pub(super) fn remove_with_queue(
        &mut self,
        id: SlotId,
        why: Detached<S::Error>,
        item: Option<V>,
    ) {
        let (discarded, exit) = match why {
            Detached::Failed(_) => (Discarded::Failed, Exit::Broken),
            Detached::Overflowed => (Discarded::Overflowed, Exit::Broken),
            _ => (Discarded::Evicted, Exit::Evicted),
        };
        let held = self.take_owed(id, exit);
        let frees_key = self.slots.is_only_receiver(id);
        let Remains { key, tag, queue } = self.slots.remove(id);
        let to = Recipient { key: &key, tag };
        if frees_key {
            self.ledger.key_detached(&key);
        }
        self.ledger.unqueued(queue.len());
        for item in queue.into_iter().chain(held).chain(item) {
            self.ledger.discarded(to, item, discarded);
        }
        self.ledger.detached(to, why);
    }
}
