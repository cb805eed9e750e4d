//! Woken sinks are polled here: drained, flushed again if a flush was pending, and closed when they
//! leave.
//!
//! Work that an allowance does not cover stays in the ready list or the flush list for the next
//! turn.

use core::hash::{BuildHasher, Hash};
use core::task::Poll;

use futures_sink::Sink;

use super::Router;
use super::budget::Allowance;
use crate::hooks::{Detached, Hooks};
use crate::slots::id::SlotId;
use crate::slots::ready::Woken;
use crate::slots::slot::{LeaveReason, Popped, Stage};

/// Why a sink takes no more items from a queue.
pub(super) enum Drained {
    /// The queue is empty.
    Empty,
    /// It is not ready.
    Unready,
    /// It has taken its share, or the allowance is spent.
    Partly,
    /// Its slot is gone.
    Gone,
}

impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Advances the slots in the ready list: their sinks were woken, or an earlier turn left work.
    ///
    /// While others are in the list, none takes more than an eighth of the budget.
    pub(crate) fn poll_woken(&mut self, budget: usize, sinks: &mut Allowance) {
        while !sinks.is_spent() {
            let Some(Woken { id, by_sink }) = self.slots.pop_woken() else { return };
            sinks.spend();
            // Stale wake: the slot is vacant.
            let Some(mut slot) = self.slots.get_mut(id) else { continue };
            if by_sink && self.beyond.was_polled(id) {
                self.slots.ready().fire(id); // for the next turn
                continue;
            }
            if by_sink {
                slot.wake();
                if slot.shares_queue() {
                    self.slots.return_to_line(id);
                }
            }
            // The first poll of the sink is paid.
            let is_last = self.slots.ready().is_last();
            let more = if is_last { sinks.left() } else { sinks.left().min(budget / 8) };
            let mut polls = Allowance::new(more + 1);
            self.advance(id, &mut polls);
            sinks.spend_up_to(more.saturating_sub(polls.left()));
        }
    }

    /// Advances a slot that has work which no waker announced, unless it is in the ready list. It
    /// is called from many places, and one copy of it is enough.
    #[inline(never)]
    pub(super) fn advance_unless_listed(&mut self, id: SlotId, polls: &mut Allowance) {
        if !self.slots.ready().is_listed(id) {
            self.advance(id, polls);
        }
    }

    /// Closes the sink of a slot that has begun to leave while its queue was drained.
    pub(super) fn close_if_leaving(&mut self, id: SlotId) {
        if !self.slots.slot(id).receives() {
            self.advance_unless_listed(id, &mut Allowance::new(0));
        }
    }

    /// Drains a slot, and then closes it if it is leaving, or polls a pending flush again. Each
    /// poll of a sink for an item costs one of `polls`.
    fn advance(&mut self, id: SlotId, polls: &mut Allowance) {
        match self.drain(id, polls) {
            Drained::Empty | Drained::Unready => {}
            Drained::Gone => return,
            Drained::Partly => return self.slots.ready().list(id),
        }
        let slot = self.slots.slot(id);
        if slot.is_closable() {
            self.close(id);
        } else if slot.is_flushable() {
            self.flush(id);
        }
    }

    /// Lets a sink take items from its queue, or from the one that it shares.
    fn drain(&mut self, id: SlotId, polls: &mut Allowance) -> Drained {
        if self.slots.slot(id).shares_queue() {
            if let Some(group) = self.slots.shared_group(id) {
                return self.drain_member(id, group, polls);
            }
        }
        self.drain_own(id, polls)
    }

    /// Lets a sink take items from its own queue.
    pub(super) fn drain_own(&mut self, id: SlotId, polls: &mut Allowance) -> Drained {
        let mut share = usize::MAX;
        self.drain_queue(id, id, &mut share, polls)
    }

    /// Lets a sink take items from the queue of `owner`, at most `share`, which counts down.
    pub(super) fn drain_queue(
        &mut self,
        id: SlotId,
        owner: SlotId,
        share: &mut usize,
        polls: &mut Allowance,
    ) -> Drained {
        let mut is_queued = self.slots.slot(owner).is_queued();
        while is_queued {
            let mut slot = self.slots.slot_mut(id);
            if slot.is_parked() {
                return Drained::Unready;
            }
            if *share == 0 || !polls.spend() {
                return Drained::Partly;
            }
            match slot.poll_ready() {
                Poll::Ready(Ok(())) => {}
                Poll::Pending => {
                    slot.park();
                    return Drained::Unready;
                }
                Poll::Ready(Err(error)) => {
                    self.remove(id, Detached::Failed(error));
                    return Drained::Gone;
                }
            }
            match self.send_queued(id, owner) {
                Ok(left) => {
                    *share -= 1;
                    is_queued = left;
                }
                Err(error) => {
                    self.lose(id, error);
                    return Drained::Gone;
                }
            }
        }
        Drained::Empty
    }

    /// Sends the first item of a queue to a sink that is ready. Returns `true` if it may take more.
    fn send_queued(&mut self, id: SlotId, owner: SlotId) -> Result<bool, S::Error> {
        let now = *self.ledger.handled();
        let mut slot = self.slots.slot_mut(owner);
        let Some(Popped { item, accepts }) = slot.pop() else { return Ok(false) };
        let left = slot.is_queued();
        let fits = !slot.is_beyond();
        let mut slot = self.slots.slot_mut(id);
        let sent = slot.send::<false>(item, &now);
        let may_take_more = sent.is_err() || !accepts || slot.accept();
        if fits {
            self.unblock_from(owner);
        }
        sent?;
        self.ledger.delivered();
        if may_take_more || !self.slots.slot(id).receives() {
            return Ok(left);
        }
        self.leave(id, LeaveReason::Limited);
        // A queue that others share is theirs.
        Ok(self.slots.slot(id).is_queued())
    }

    fn flush(&mut self, id: SlotId) {
        if let Poll::Ready(Err(error)) = self.slots.slot_mut(id).poll_flush() {
            self.remove(id, Detached::Failed(error));
        }
    }

    #[cold]
    fn close(&mut self, id: SlotId) {
        let Stage::Leaving(reason) = self.slots.slot(id).stage() else { return };
        match self.slots.slot_mut(id).poll_close() {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => self.remove(id, reason.into()),
            Poll::Ready(Err(error)) => self.remove(id, Detached::Failed(error)),
        }
    }
}
