//! Sinks are polled here: drained when they were woken, flushed when a flush is due, closed when
//! they leave. Every attachment ends in [`remove`](Router::remove).
//!
//! Work that an allowance does not cover stays in the ready list or the flush list for the next
//! turn.

use alloc::collections::VecDeque;
use core::hash::{BuildHasher, Hash};
use core::task::Poll;

use futures_sink::Sink;

use super::budget::Allowance;
use super::{Ending, Router, Sharing};
use crate::hooks::{Detached, Discarded, Hooks, Recipient};
use crate::slots::id::SlotId;
use crate::slots::ready::Woken;
use crate::slots::slot::{LeaveReason, Popped, Remains, Stage};

/// Why a sink takes no more items from a queue.
pub(super) enum Drained {
    /// The queue is empty.
    Empty,
    /// It is not ready.
    Unready,
    /// It has taken its share, or the allowance is spent.
    Left,
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
            sinks.spend_up_to(more - polls.left().min(more));
        }
    }

    /// Advances a slot that has work which no waker announced, unless it is in the ready list. It is
    /// called from many places, and one copy of it is enough.
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
            Drained::Left => return self.slots.ready().list(id),
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
                return Drained::Left;
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
        let Some(Popped { item, accepts, was_last_beyond }) = slot.pop() else { return Ok(false) };
        let left = slot.is_queued();
        self.ledger.unqueued(1);
        let mut slot = self.slots.slot_mut(id);
        let sent = slot.send::<false>(item, &now);
        let is_open = sent.is_err() || !accepts || slot.accept();
        if was_last_beyond {
            self.leave_beyond(owner);
        }
        sent?;
        self.ledger.delivered();
        if is_open || !self.slots.slot(id).receives() {
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

    /// The input is over: it is not polled any more.
    pub(crate) fn finish(&mut self) {
        self.ending.get_or_insert(Ending { cursor: 0, aborts: false });
        self.unblock();
    }

    /// Lets slots leave because the input is over, one for each unit of `closes`. `sinks` is what
    /// they may take from their queues.
    pub(crate) fn close_some(&mut self, closes: &mut Allowance, sinks: &mut Allowance) {
        while self.is_closing() && !closes.is_spent() {
            self.close_next(closes, sinks);
        }
    }

    /// Ids that have no slot cost nothing, so that a crowd that has left does not delay the end. To
    /// pass a million of them takes less than a millisecond.
    #[cold]
    fn close_next(&mut self, closes: &mut Allowance, sinks: &mut Allowance) {
        let Some(Ending { cursor, aborts }) = &mut self.ending else { return };
        let aborts = *aborts;
        let next = self.slots.next_id(*cursor);
        *cursor = next.map_or(self.slots.ids(), |id| id.index() + 1);
        let Some(id) = next else { return };
        closes.spend();
        if aborts {
            self.remove(id, Detached::Evicted);
        } else if self.slots.slot(id).receives() {
            self.leave_key(id, LeaveReason::Finished, true);
            self.advance_unless_listed(id, sinks);
        }
    }

    /// Lets a slot leave gracefully: it receives no new items. What is queued for it is still sent,
    /// and then it is closed. The caller has to [`advance`](Self::advance) it.
    pub(super) fn leave(&mut self, id: SlotId, reason: LeaveReason) {
        self.leave_key(id, reason, false);
    }

    /// Lets a slot [`leave`](Self::leave). It `takes_part` of the queue that it shares with others, if
    /// these leave for the same reason.
    pub(super) fn leave_key(&mut self, id: SlotId, reason: LeaveReason, takes_part: bool) {
        self.forget_beyond(id);
        if self.walk.is_some() {
            self.offer_before_leaving(id);
        }
        let frees_key = self.slots.is_only_receiver(id);
        let shared = if frees_key { None } else { self.slots.shared_group(id) };
        self.slots.leave(id, reason);
        if let Some(group) = shared {
            self.leave_queue(id, group, takes_part);
        }
        let over = self.split_over_limit(id);
        if frees_key {
            self.ledger.hooks_mut().key_detached(self.slots.recipient(id).key);
        }
        for item in over {
            if matches!(self.sharing, Sharing::Multicast(_)) {
                // Others may have had it.
                self.ledger.discarded(self.slots.recipient(id), item, Discarded::Overflowed);
            } else {
                self.ledger.unmatched(item);
            }
        }
    }

    /// Accepts the queued items that a slot which leaves has not accepted yet. Returns those that
    /// exceed its limit.
    fn split_over_limit(&mut self, id: SlotId) -> VecDeque<V> {
        let mut slot = self.slots.slot_mut(id);
        if !slot.is_queued() {
            return VecDeque::new();
        }
        let mut over = slot.split_unaccepted();
        while slot.may_accept() {
            let Some(item) = over.pop_front() else { break };
            slot.push(item);
            slot.accept();
        }
        self.ledger.unqueued(over.len());
        over
    }

    /// The slot has accepted the last item that it may: its key is free.
    #[cold]
    pub(super) fn reach_limit(&mut self, id: SlotId) {
        self.leave(id, LeaveReason::Limited);
        self.advance_unless_listed(id, &mut Allowance::new(0));
    }

    /// A sink failed while it took an item.
    #[cold]
    pub(super) fn lose(&mut self, id: SlotId, error: S::Error) {
        self.ledger.lost();
        self.remove(id, Detached::Failed(error));
    }

    /// Ends an attachment: drops the sink, then discards all items that waited for it.
    pub(super) fn remove(&mut self, id: SlotId, why: Detached<S::Error>) {
        self.remove_with(id, why, None);
    }

    /// Ends an attachment, and discards also an item that was to be sent to it.
    #[cold]
    pub(super) fn remove_with(&mut self, id: SlotId, why: Detached<S::Error>, item: Option<V>) {
        let discarded = match why {
            Detached::Failed(_) => Discarded::Failed,
            Detached::Overflowed => Discarded::Overflowed,
            _ => Discarded::Evicted,
        };
        let skipped = if self.walk.is_some() { self.skip_member(id) } else { None };
        let mut frees_key = false;
        let mut shared = None;
        if self.slots.slot(id).receives() {
            frees_key = self.slots.is_only_receiver(id);
            let group = if frees_key { None } else { self.slots.shared_group(id) };
            self.forget_beyond(id);
            shared = group.map(|group| (group, self.slots.slot_mut(id).take_queue()));
        }
        let Remains { key, tag, queue } = self.slots.remove(id);
        if let Some((group, queue)) = shared {
            self.hand_over(group, queue);
        }
        let to = Recipient { key: &key, tag };
        if frees_key {
            self.ledger.hooks_mut().key_detached(&key);
        }
        self.ledger.unqueued(queue.len());
        for item in queue.into_iter().chain(item).chain(skipped) {
            self.ledger.discarded(to, item, discarded);
        }
        self.ledger.detached(to, why);
    }
}
