//! 6. Time.

use super::*;

/// A tick on its way through the attachments that have time-outs.
#[derive(Clone, Copy)]
pub(super) struct Sweep {
    tick: u64,
    /// The number of places that it has yet to come to.
    left: usize,
    /// Whether the input waited for a sink, so that no attachment is idle.
    waited: bool,
}

impl Reference {
    /// Applies a tick that was read in the given turn. Those of one turn count as one.
    pub(super) fn tick(&mut self, read_in: u64) {
        let (tick, last) = self.ticks;
        if last == read_in {
            return;
        }
        self.ticks.1 = read_in;
        // It counts for flushes even if it is absorbed by one that is kept. (open)
        self.lingering = self.lingering.map(|ticks| ticks + 1);
        if self.lingering.is_some_and(|ticks| ticks >= self.settings.linger) {
            self.lingering = None;
            self.owed = self.entries.len();
        }
        // Whether the input waited since the tick before.
        let waited = mem::take(&mut self.waited);
        if let Some((_, kept)) = &mut self.kept_tick {
            *kept |= waited;
        } else {
            self.ticks.0 = tick + 1;
            if self.sweep.is_some() {
                self.kept_tick = Some((tick + 1, waited));
            } else {
                self.begin_sweep(tick + 1, waited);
            }
        }
    }

    fn begin_sweep(&mut self, tick: u64, waited: bool) {
        self.sweep = Some(Sweep { tick, left: self.timers.len(), waited });
        self.settle_sweep();
    }

    /// Ends the sweep if no attachment with a time-out is left for it.
    pub(super) fn settle_sweep(&mut self) {
        let places = self.timers.len();
        if let Some(sweep) = &mut self.sweep {
            sweep.left = sweep.left.min(places);
            if sweep.left == 0 {
                self.sweep = None;
                if let Some((tick, waited)) = self.kept_tick.take() {
                    self.begin_sweep(tick, waited);
                }
            }
        }
    }

    pub(super) fn go_on_sweep(&mut self) {
        while let Some(Sweep { tick, left, waited }) = self.sweep {
            if self.left.ticks == 0 {
                return;
            }
            self.left.ticks -= 1;
            let place = left - 1;
            let n = self.timers[place];
            self.sweep = Some(Sweep { tick, left: place, waited });
            self.settle_sweep();
            // It may have been moved here after it got the tick, or have joined later. (open)
            if self[n].last_tick < tick {
                self[n].last_tick = tick;
                self.give_tick(n, waited);
            }
        }
    }

    fn give_tick(&mut self, n: usize, input_waited: bool) {
        let is_queued = !self[self.queue_of(n)].queue.is_empty();
        let fired = self.signals.look().fired[n];
        let slot = &mut self[n];
        // If its waker has fired, the demux is late, unless the sink woke itself.
        let pending =
            slot.parked && is_queued || slot.flushing && !slot.flush_woken || slot.closing;
        if mem::take(&mut slot.moved) {
            slot.stalled = 0;
            slot.woke_itself &= pending;
        }
        if !(pending || is_queued || slot.flushing) {
            slot.stalled = 0; // nothing waits for it (open)
        } else if slot.woke_itself || pending && !fired {
            slot.stalled += 1;
        }
        if self.aborted {
            return;
        }
        let slot = &mut self[n];
        if slot.stall_timeout > 0 && slot.stalled >= slot.stall_timeout {
            return self.end(n, "stalled", None);
        }
        let waits = is_queued || slot.unflushed || slot.flushing;
        if mem::take(&mut slot.busy) {
            slot.idle = 0;
        } else if !waits && !input_waited {
            slot.idle += 1;
        }
        if slot.leaving.is_none() && slot.idle_timeout > 0 && slot.idle >= slot.idle_timeout {
            self.leave(n, "idle", false);
            self.advance(n);
        }
    }
}
