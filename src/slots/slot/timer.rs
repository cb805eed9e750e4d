//! The time-outs of an attachment, and how a tick changes them.

use super::SlotMut;
use super::word::{CLOSING, FLUSH_AGAIN, FLUSHING, MOVED, PARKED, UNFLUSHED};
use crate::order::Terms;
use crate::slots::timers::Sweep;

/// The time-outs of an attachment, in ticks; 0 for none.
pub(super) struct Timer {
    stall_timeout: u32,
    idle_timeout: u32,
    /// For how many ticks in a row it has stalled.
    stalled: u32,
    /// For how many ticks it has been idle since its last item.
    idle: u32,
    /// The number of the last sweep that was applied to it, or whose tick was read before it
    /// joined.
    sweep: u32,
    /// Where it is in the list of the timers.
    index: u32,
    /// The sink's last answer was `Pending`, and it had woken itself.
    is_self_woken: bool,
}

impl Timer {
    /// Returns `None` if these terms have no time-out.
    pub(super) fn new(terms: &Terms) -> Option<Self> {
        let stall_timeout = terms.stall_timeout.unwrap_or(0);
        let idle_timeout = terms.idle_timeout.unwrap_or(0);
        (stall_timeout > 0 || idle_timeout > 0).then_some(Self {
            stall_timeout,
            idle_timeout,
            stalled: 0,
            idle: 0,
            sweep: 0,
            index: 0,
            is_self_woken: false,
        })
    }
}

/// Which time-out has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expired {
    Stalled,
    Idle,
}

impl<K, S, V> SlotMut<'_, K, S, V> {
    /// Where it is in the list of the timers, if it has a time-out.
    pub(in crate::slots) fn timer_index(&self) -> Option<usize> {
        Some(self.extras.get(self.slot.id)?.timer.as_ref()?.index as usize)
    }

    /// Notes whether the waker of a sink that has just answered `Pending` has fired.
    pub(super) fn set_self_woken(&mut self, woken: bool) {
        if let Some(timer) = self.timer_mut() {
            timer.is_self_woken = woken;
        }
    }

    /// Sets where it is in the list of the timers.
    pub(in crate::slots) fn set_timer_index(&mut self, index: usize) {
        if let (Some(timer), Ok(index)) = (self.timer_mut(), u32::try_from(index)) {
            timer.index = index;
        }
    }

    /// It joins the list of the timers. `sweep` is the last one that it does not take part in.
    pub(in crate::slots) fn join_timers(&mut self, index: usize, sweep: u32) {
        self.set_timer_index(index);
        if let Some(timer) = self.timer_mut() {
            timer.sweep = sweep;
        }
    }

    /// Applies a tick. Returns the time-out that has expired, if one has. `has_fired` is whether
    /// the sink's waker has fired since it was polled last, `has_queue` whether items are queued
    /// that it may take.
    pub(in crate::slots) fn check_timeouts(
        &mut self,
        sweep: Sweep,
        has_fired: bool,
        has_queue: bool,
    ) -> Option<Expired> {
        let Self { slot, extras, .. } = self;
        let timer = extras.get_mut(slot.id)?.timer.as_mut()?;
        // The numbers wrap around.
        if timer.sweep.wrapping_sub(sweep.number) <= 1 {
            return None;
        }
        timer.sweep = sweep.number;
        let has_moved = slot.has(MOVED);
        slot.set(MOVED, false);
        let waits_for_item = has_queue;
        let is_flushing = slot.has(FLUSHING | FLUSH_AGAIN);
        let is_pending = slot.has(FLUSHING | CLOSING) || slot.has(PARKED) && waits_for_item;
        if has_moved {
            timer.stalled = 0;
            timer.idle = 0;
            timer.is_self_woken &= is_pending;
        }
        // If the waker has fired, progress is possible and only the demux is late. A sink that woke
        // itself has made none.
        if !(is_pending || waits_for_item || is_flushing) {
            timer.stalled = 0;
        } else if timer.is_self_woken || is_pending && !has_fired {
            timer.stalled = timer.stalled.saturating_add(1);
        }
        let is_busy = has_moved || waits_for_item || is_flushing || slot.has(UNFLUSHED);
        if slot.receives() && !is_busy && !sweep.was_closed {
            timer.idle = timer.idle.saturating_add(1);
        }
        let has_stalled = timer.stall_timeout > 0 && timer.stalled >= timer.stall_timeout;
        let is_idle = timer.idle_timeout > 0 && timer.idle >= timer.idle_timeout;
        if has_stalled {
            Some(Expired::Stalled)
        } else if is_idle && slot.receives() {
            Some(Expired::Idle)
        } else {
            None
        }
    }

    fn timer_mut(&mut self) -> Option<&mut Timer> {
        self.extras.get_mut(self.slot.id)?.timer.as_mut()
    }
}
