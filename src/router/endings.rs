//! How attachments end: gracefully, by [`leave`](Router::leave) and a close, or at once. Each ends
//! in [`remove`](Router::remove). After the end of the input all of them leave, one after the
//! other.

use core::hash::{BuildHasher, Hash};

use futures_sink::Sink;

use super::budget::Allowance;
use super::{Ending, Router, Sharing};
use crate::hooks::{Detached, Discarded, Hooks, Recipient};
use crate::slots::id::SlotId;
use crate::slots::slot::LeaveReason;
use crate::slots::{Departure, Remains, SharedQueue};

impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// The input is over: it is not polled any more.
    pub(crate) fn end_input(&mut self) {
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
            self.leave_with_key(id, LeaveReason::Finished);
            self.advance_unless_listed(id, sinks);
        }
    }

    /// Lets a slot leave gracefully: it receives no new items. What is queued for it is still sent,
    /// and then it is closed. The caller has to [`advance`](Self::advance) it.
    pub(super) fn leave(&mut self, id: SlotId, reason: LeaveReason) {
        self.leave_queue(id, reason, SharedQueue::Stays);
    }

    /// Lets a slot [`leave`](Self::leave) as all others with its key are to: it takes its part of
    /// the queue that they share.
    pub(super) fn leave_with_key(&mut self, id: SlotId, reason: LeaveReason) {
        self.leave_queue(id, reason, SharedQueue::IsDivided);
    }

    fn leave_queue(&mut self, id: SlotId, reason: LeaveReason, shared: SharedQueue) {
        self.unblock_from(id);
        if self.walk.is_some() {
            self.offer_before_leaving(id);
        }
        let Departure { frees_key, surplus } = self.slots.leave(id, reason, shared);
        if frees_key {
            self.ledger.hooks_mut().key_detached(self.slots.recipient(id).key);
        }
        for item in surplus {
            if matches!(self.sharing, Sharing::Multicast(_)) {
                // Others may have had it.
                self.ledger.discarded(self.slots.recipient(id), item, Discarded::Overflowed);
            } else {
                self.ledger.unmatched(item);
            }
        }
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
        self.unblock_from(id);
        let Remains { key, tag, queue, frees_key } = self.slots.remove(id);
        let to = Recipient { key: &key, tag };
        if frees_key {
            self.ledger.hooks_mut().key_detached(&key);
        }
        for item in queue.into_iter().chain(item).chain(skipped) {
            self.ledger.discarded(to, item, discarded);
        }
        self.ledger.detached(to, why);
    }
}
