//! When sinks are flushed.
//!
//! A flush costs as much as many items: over TCP it is a system call of some microseconds, and an
//! item takes some tens of nanoseconds. A flush for each item would be most of the work, and no
//! flush before the input pauses would delay a quiet key for as long as other keys are busy. So
//! each flush has to be paid for, in one of two ways:
//!
//! * *By the items that share it.* While the input is busy, the demux flushes a sink when it has
//!   handled a number of further items and copies. That number grows with the number of sinks that
//!   wait for a flush, so that the same number of items shares each flush on average. With few
//!   sinks it is small and so is the delay, whatever their items cost; with many, the delay is in
//!   proportion to the time that the flushes themselves take. If there are so many keys that the
//!   flushes are never paid for, [`flush_every`](crate::Demux::flush_every) bounds the delay. If the
//!   demux [counts time](crate::Demux::elapse), that pays as well, during waits, too: neither the
//!   items nor the turns say how long they take.
//!   [`Flushes`] keeps the list, and decides this.
//! * *By a wait that ends.* When the input has nothing ready, few flushes are made at once. If
//!   there are many, the demux lets other tasks run and waits for the items that would share them.
//!   The wait is bounded, and if waiting does not bring enough items, the demux stops doing it.
//!   [`Patience`](patience::Patience) decides this.
//!
//! The contract promises that no flush is forgotten, that both delays are bounded, and that a wait
//! that does not pay is given up. How long they are is decided by the numbers in [`tuning`].

mod entry;
mod linger;
mod list;
mod orphans;
mod patience;
mod tuning;

use core::task::Poll;

use futures_sink::Sink;

use super::Slots;
use super::id::SlotId;

pub(crate) use entry::{Elapsed, Handled};
pub(crate) use list::Flushes;
pub(crate) use patience::Pause;

/// A slot, and what its sink has answered to a flush.
type Flushed<E> = (SlotId, Poll<Result<(), E>>);

impl<K, S, V, B> Slots<K, S, V, B> {
    /// A turn ends that has handled this number of items and copies, and reads no more because of
    /// `pause`. If that is a lull, all that is listed becomes due, or the ticks until then are
    /// counted, if ticks may come.
    pub(crate) fn end_turn(&mut self, handled: u64, pause: Pause, ticks_may_come: bool) {
        let is_held_up = matches!(pause, Pause::Blocked | Pause::Over);
        if self.flushes.can_linger() && ticks_may_come && !is_held_up {
            let is_dry = pause == Pause::Dry;
            if is_dry {
                self.drop_stale_flushes();
            }
            self.flushes.linger(is_dry);
        } else {
            self.flushes.end_turn(handled, pause);
        }
    }

    /// Removes the entries at the front of the flush list whose sinks need no flush any more: they
    /// do not start the count of ticks.
    fn drop_stale_flushes(&mut self) {
        /// How many such entries are removed in a turn, which takes some microseconds. They do not
        /// count towards the budget, because with a small one a tick would overtake their removal.
        /// If more sinks than this have left since their last item, a flush may come early.
        const STALE: usize = 1_024;
        for _ in 0..STALE {
            let Some(id) = self.flushes.first() else { break };
            if let Some(mut slot) = self.get_mut(id) {
                if slot.needs_flush() {
                    break;
                }
                slot.set_flush_queued(false);
            } else {
                self.flushes.adopt(id);
            }
            self.flushes.remove_first();
        }
    }
}

impl<K, S, V, B> Slots<K, S, V, B>
where
    S: Sink<V> + Unpin,
{
    /// Flushes the next sink whose flush is due by the time as much as `by` will have been handled.
    /// An entry of the flush list whose sink needs no flush any more counts as flushed.
    #[inline]
    pub(crate) fn flush_next(&mut self, by: Handled) -> Option<Flushed<S::Error>> {
        let id = self.flushes.pop_due(by)?;
        let Some(mut slot) = self.get_mut(id) else {
            self.flushes.adopt(id);
            return Some((id, Poll::Ready(Ok(()))));
        };
        slot.set_flush_queued(false);
        let answer = if slot.needs_flush() { slot.poll_flush() } else { Poll::Ready(Ok(())) };
        Some((id, answer))
    }
}
