//! What a tick does: time-outs expire, one slot after the other, and lingering flushes become due.

use core::hash::{BuildHasher, Hash};

use futures_sink::Sink;

use super::Router;
use super::budget::Allowance;
use crate::hooks::{Detached, Hooks};
use crate::slots::slot::{Expired, LeaveReason};

impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// One unit of time has passed.
    pub(super) fn tick(&mut self) {
        let was_closed = self.beyond.end_unit();
        self.slots.tick(was_closed);
    }

    /// Applies a tick to the next slots with a time-out. Each costs one of `ticks`; `sinks` is what
    /// may be spent on draining.
    pub(crate) fn sweep(&mut self, ticks: &mut Allowance, sinks: &mut Allowance) {
        while self.slots.is_sweeping() && ticks.spend() {
            let Some((id, expired)) = self.slots.sweep_next() else { return };
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
