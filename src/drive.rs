//! What sinks are owed: to be sent what is queued, to be flushed, to be closed, to be told the end.
//!
//! `share` is what may still be spent: one for each slot that was woken, each item moved out of a
//! queue, each flush, each slot that is told. What cannot be done now is listed for the next turn.

use core::hash::{BuildHasher, Hash};
use core::task::{Context, Poll};

use futures_sink::Sink;

use crate::hooks::{Detached, Hooks};
use crate::hub::Hub;
use crate::lease::Wish;
use crate::ready::Woken;
use crate::slot::{Farewell, Stage};

impl<K, S, V, H, B> Hub<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Looks after the slots that were woken.
    pub(crate) fn serve(&mut self, share: &mut usize) {
        while *share > 0 {
            let Some(woken) = self.ready.pop() else { return };
            *share -= 1;
            // While others wait, nobody gets more than an eighth of what is left. An item may go on top
            // of an empty share: with a share of 1 in each turn a queue would never drain otherwise.
            let purse = if self.ready.is_last() { *share } else { *share / 8 }.max(1);
            let mut left = purse;
            self.service(woken, &mut left);
            *share = share.saturating_sub(purse - left);
        }
    }

    /// Looks after a slot that was woken, by its sink or by what was left undone.
    fn service(&mut self, Woken { slot, by_sink }: Woken, share: &mut usize) {
        // Stale wake: the slot is vacant.
        let Some(tenant) = self.table.get_mut(slot) else { return };
        if by_sink && self.retried == Some(slot) {
            // It woke itself when it was polled in this turn: it is polled again in the next.
            return self.ready.fire(slot);
        }
        if by_sink {
            tenant.woken();
        }
        self.look_after(slot, share);
    }

    /// Ends the attachments whose leases have ended. Returns `true` if none is left.
    pub(crate) fn end_leases(&mut self, share: &mut usize) -> bool {
        while *share > 0 {
            let Some(slot) = self.ready.pop_ended() else { return true };
            *share -= 1;
            // Stale wake: the slot is vacant, or another attachment has it.
            let Some(tenant) = self.table.get(slot) else { continue };
            match tenant.wish() {
                Wish::Evict => self.remove(slot, Detached::Evicted, None),
                Wish::Detach if tenant.receives() => {
                    self.leave(slot, Farewell::Requested);
                    self.attend(slot, share);
                }
                Wish::Detach | Wish::Stay => {}
            }
        }
        !self.ready.has_ended()
    }

    /// Looks after a slot of which something is wanted that nothing woke, unless it is listed anyway.
    pub(crate) fn attend(&mut self, slot: usize, share: &mut usize) {
        if !self.ready.is_listed(slot) {
            self.look_after(slot, share);
        }
    }

    /// Does all that can be done for a slot: drains it, gives it the item that it waits for, then closes
    /// it if it is leaving, or polls a flush that it waited for again.
    fn look_after(&mut self, slot: usize, share: &mut usize) {
        if !self.drain(slot, share) {
            return;
        }
        if self.table[slot].is_waiting() {
            self.serve_waiting(slot);
        }
        let Some(tenant) = self.table.get(slot) else { return };
        if tenant.is_closable() {
            self.close(slot);
        } else if tenant.wants_flush_again() {
            self.flush_one(slot);
        }
    }

    /// Sends what is queued. False if the rest must wait for the next turn, or the slot is gone.
    fn drain(&mut self, slot: usize, share: &mut usize) -> bool {
        while self.table[slot].is_queued() && !self.table[slot].is_parked() {
            if *share == 0 {
                self.ready.list(slot);
                return false;
            }
            let mut cx = Context::from_waker(self.ready.waker(slot));
            match self.table[slot].poll_ready(&mut cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Pending => {
                    self.note_pending(slot);
                    return true;
                }
                Poll::Ready(Err(error)) => {
                    self.remove(slot, Detached::Failed(error), None);
                    return false;
                }
            }
            *share -= 1;
            let Some(item) = self.dequeue(slot) else { return true };
            if !self.send(slot, item) {
                return false;
            }
        }
        true
    }

    fn close(&mut self, slot: usize) {
        let tenant = &mut self.table[slot];
        let Stage::Leaving(why) = tenant.stage() else { return };
        let mut cx = Context::from_waker(self.ready.waker(slot));
        match tenant.close(&mut cx) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => {
                self.others += 1;
                self.remove(slot, why.into(), None);
            }
            Poll::Ready(Err(error)) => self.remove(slot, Detached::Failed(error), None),
        }
    }

    /// Flushes the sinks whose flush is due by the time the input will have given `by` items.
    pub(crate) fn flush(&mut self, by: u64, share: &mut usize) {
        while *share > 0 {
            let Some(slot) = self.flushes.next(by) else { return };
            *share -= 1;
            let Some(tenant) = self.table.get_mut(slot) else {
                self.flushes.inherit(slot);
                continue;
            };
            if tenant.unlist() {
                self.flush_one(slot);
            }
        }
    }

    #[inline]
    fn flush_one(&mut self, slot: usize) {
        let mut cx = Context::from_waker(self.ready.waker(slot));
        match self.table[slot].flush(&mut cx) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => self.others += 1,
            Poll::Ready(Err(error)) => self.remove(slot, Detached::Failed(error), None),
        }
    }

    /// Tells slots that the input is over: they leave.
    pub(crate) fn tell(&mut self, share: &mut usize) {
        while *share > 0 {
            let Some(slot) = self.told.filter(|_| self.is_telling()) else { return };
            self.told = Some(slot + 1);
            *share -= 1;
            if self.table.get(slot).is_some_and(super::slot::Slot::receives) {
                self.leave(slot, Farewell::Finished);
                self.attend(slot, share);
            }
        }
    }
}
