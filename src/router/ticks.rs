//! What a tick does: time-outs expire, one slot after the other, and lingering flushes become due.

use core::hash::{BuildHasher, Hash};

use futures_sink::Sink;

use super::Router;
use crate::budget::Share;
use crate::hooks::{Detached, Hooks};
use crate::slot::{Expired, LeaveReason};

impl<K, S, V, H, B> Router<K, S, V, H, B> {
    /// A tick was read. Returns `true` if it is to be applied: it is the first of this turn.
    pub(crate) fn tick_read(&mut self) -> bool {
        self.slots.timers_mut().tick_read()
    }

    /// One unit of time has passed.
    pub(super) fn tick(&mut self) {
        self.slots.timers_mut().tick(self.holding.take_was_held());
        self.slots.flushes_mut().tick();
    }

    /// Returns `true` if a tick is not applied to all slots with a time-out yet.
    pub(crate) fn is_sweeping(&self) -> bool {
        self.slots.timers().is_sweeping()
    }

    /// The input has nothing ready: starts to count the ticks until lingering flushes are due.
    pub(crate) fn start_linger(&mut self) {
        self.slots.start_linger();
    }

    /// Stops counting ticks for lingering flushes.
    pub(crate) fn stop_linger(&mut self) {
        self.slots.flushes_mut().stop_linger();
    }

    /// Returns `true` if flushes wait for ticks. They do not while the input is blocked, nor after
    /// its end.
    pub(crate) fn lingers(&self) -> bool {
        let is_blocked = self.holding.blocked_on().is_some();
        self.slots.flushes().can_linger() && !is_blocked && !self.is_finished()
    }
}

impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Applies a tick to the next slots with a time-out. Each costs one.
    pub(crate) fn sweep(&mut self, share: &mut Share) {
        while self.is_sweeping() && share.spend() {
            let Some((id, sweep)) = self.slots.timers_mut().next() else { return };
            let is_held_for = self.is_held_for(id);
            let mut slot = self.slots.entry(id);
            let has_fired = slot.has_fired();
            match slot.tick(sweep, has_fired, is_held_for) {
                Some(Expired::Stalled) => self.remove(id, Detached::Stalled, None),
                Some(Expired::Idle) => {
                    self.leave(id, LeaveReason::Idle);
                    self.advance_unless_listed(id, share);
                }
                None => {}
            }
        }
    }
}
