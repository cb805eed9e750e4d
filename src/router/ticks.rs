//! What a tick does: time-outs expire, one slot after the other, and lingering flushes become due.

use core::hash::{BuildHasher, Hash};

use futures_sink::Sink;

use super::Router;
use super::budget::Allowance;
use crate::hooks::{Detached, Hooks};
use crate::slots::flush::{Patience, Pause};
use crate::slots::slot::{Expired, LeaveReason};

impl<K, S, V, H, B> Router<K, S, V, H, B> {
    /// A tick was read. Returns `true` if it is to be applied: it is the first of this turn.
    pub(crate) fn is_first_tick(&mut self) -> bool {
        self.slots.timers.is_first_tick()
    }

    /// One unit of time has passed.
    pub(super) fn tick(&mut self) {
        self.slots.timers.request_sweep(self.beyond.take_was_closed());
        self.slots.flushes.count_linger();
    }

    /// How many items were read, and how many copies were made.
    pub(crate) fn count_handled(&self) -> u64 {
        self.ledger.handled().work()
    }

    /// A turn ends that has handled this number of items and copies; `is_dry` if the input was
    /// polled and had no more. If it is a lull, all sinks that took an item are to be flushed, or
    /// the ticks until then are counted. `has_orders` is whether ticks may come.
    pub(crate) fn end_turn(&mut self, handled: u64, is_dry: bool, has_orders: bool) {
        let pause = if self.walk.is_some() {
            Pause::Walk
        } else if self.is_finished() {
            Pause::Over
        } else if !self.beyond.is_open() {
            Pause::Blocked
        } else if is_dry {
            Pause::Dry
        } else {
            Pause::Enough
        };
        let is_held_up = matches!(pause, Pause::Blocked | Pause::Over);
        if self.slots.flushes.can_linger() && has_orders && !is_held_up {
            if is_dry {
                self.slots.start_linger();
            }
            self.patience = Patience::default();
            return;
        }
        let flushes = &mut self.slots.flushes;
        flushes.stop_linger();
        if self.patience.ends(flushes.len(), handled, pause) {
            flushes.mark_all_due();
        }
    }

    /// Returns `true` if a tick is not applied to all slots with a time-out yet.
    pub(crate) fn is_sweeping(&self) -> bool {
        self.slots.timers.is_sweeping()
    }
}

impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Applies a tick to the next slots with a time-out. Each costs one of `ticks`; `sinks` is what
    /// may be spent on draining.
    pub(crate) fn sweep(&mut self, ticks: &mut Allowance, sinks: &mut Allowance) {
        while self.is_sweeping() && ticks.spend() {
            let Some((id, sweep)) = self.slots.timers.next() else { return };
            let has_queue = self.slots.has_items_for(id);
            let mut slot = self.slots.slot_mut(id);
            let has_fired = slot.has_fired();
            let expired = slot.check_timeouts(sweep, has_fired, has_queue);
            if self.is_aborted() {
                continue; // all are evicted
            }
            match expired {
                Some(Expired::Stalled) => self.remove(id, Detached::Stalled),
                Some(Expired::Idle) => {
                    self.leave(id, LeaveReason::Idle);
                    self.advance_unless_listed(id, sinks);
                }
                None => {}
            }
        }
    }
}
