//! What the router tells [`flush`](crate::slots::flush), which decides when sinks are flushed: how
//! much was handled, and why a turn reads no more.

use core::hash::{BuildHasher, Hash};
use core::task::Poll;
use core::time::Duration;

use futures_sink::Sink;

use super::Router;
use super::budget::Allowance;
use crate::hooks::{Detached, Hooks};
use crate::slots::flush::{Handled, Pause};

impl<K, S, V, H, B> Router<K, S, V, H, B> {
    /// How many items were read, and how many copies were made.
    pub(crate) fn count_handled(&self) -> u64 {
        self.ledger.handled().work()
    }

    /// Time has passed.
    pub(crate) fn elapse(&mut self, time: Duration) {
        if !self.slots.flushes().can_linger() {
            self.ledger.elapse(time);
        }
    }

    /// Returns `true` if sinks are to be flushed, now or later.
    pub(crate) fn has_unflushed(&self) -> bool {
        !self.slots.flushes().is_empty()
    }

    /// How many items may be read before sinks are to be flushed.
    pub(crate) fn items_before_flush(&mut self) -> u64 {
        let now = *self.ledger.handled();
        self.slots.flushes_mut().due_in(now)
    }

    /// Returns `true` if [`route`](Self::route) is better done without branches: see
    /// [`Flushes::push`](crate::slots::flush::Flushes::push).
    pub(crate) fn prefers_branchless(&self) -> bool {
        self.slots.flushes().lists_many()
    }

    /// Returns `true` if a flush comes before the next item.
    pub(crate) fn must_flush(&self) -> bool {
        self.slots.flushes().is_any_due(*self.ledger.handled())
    }

    /// A turn ends that has handled this number of items and copies; `is_dry` if the input was
    /// polled and had no more. If it is a lull, all sinks that took an item are to be flushed, or
    /// the ticks until then are counted. `has_orders` is whether ticks may come.
    pub(crate) fn end_turn(&mut self, handled: u64, is_dry: bool, has_orders: bool) {
        let pause = if self.walk.is_some() {
            Pause::Walk
        } else if self.is_finished() {
            Pause::Over
        } else if !self.slots.queues().is_open() {
            Pause::Blocked
        } else if is_dry {
            Pause::Dry
        } else {
            Pause::Enough
        };
        self.slots.end_turn(handled, pause, has_orders);
    }
}

impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Flushes the sinks whose flush is due by the time the input will have returned up to `budget`
    /// further items.
    #[inline]
    pub(crate) fn flush_due(&mut self, budget: usize, flushes: &mut Allowance) {
        let now = *self.ledger.handled();
        if self.slots.flushes().is_any_due_within(now, budget) {
            self.flush_each(self.slots.flushes().look_ahead(now, budget), flushes);
        }
    }

    /// Flushes the sinks whose flush is due by `horizon`.
    // Not inlined: most turns call `flush_due` with nothing to flush.
    #[inline(never)]
    fn flush_each(&mut self, horizon: Handled, flushes: &mut Allowance) {
        while !flushes.is_spent() {
            let Some((id, answer)) = self.slots.flush_next(horizon) else { return };
            flushes.spend();
            if let Poll::Ready(Err(error)) = answer {
                self.remove(id, Detached::Failed(error));
            }
        }
    }
}
