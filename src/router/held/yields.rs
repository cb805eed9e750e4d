//! Sinks that yield.
//!
//! Under tokio a sink answers `Pending` when its task has used up its cooperative budget, whether
//! or not it has room. No overflow policy may act on that: the item is held, and the sink polled
//! again in the next turn.

use alloc::vec::Vec;
use core::hash::{BuildHasher, Hash};

use futures_sink::Sink;

use super::Held;
use crate::budget::Share;
use crate::hooks::Hooks;
use crate::id::SlotId;
use crate::order::Overflow;
use crate::router::Router;
use crate::router::items::Unready;

/// A sink that yielded when it was polled for the item that is held.
pub(super) struct Yielding {
    id: SlotId,
    /// How many operations the demux had done when the sink yielded last; `None` if it was not
    /// polled for this item yet, because its waker had fired since an earlier answer.
    operations: Option<u64>,
    /// For how many turns in a row the item has been held because of this sink.
    turns: u8,
}

/// For how many turns in a row an item is held because its sink yields.
///
/// One turn is enough for a demux that has a task of its own. It may take a few if the cooperative
/// budget is spent on work that comes first in the turn. A sink that yields 16 times in a row wakes
/// itself for other reasons, and would delay all other items.
const YIELDS: u8 = 16;

/// After how many operations of one turn a `Pending` may be a yield though the sink's waker has not
/// fired.
///
/// Tokio wakes a task that has used up its cooperative budget of 128 only when its thread has
/// nothing else to do, or after 61 polls of other tasks ([`coop`] in its sources). Until then, the
/// answer looks like that of a full sink. But the budget is fresh when a task is polled, and an
/// operation of the demux costs one of it, seldom two. So an answer before the 64th operation can
/// be believed. A sink that answered later, and whose policy would act on it, is polled once more
/// in the next turn. `Wait` needs no such care, because it discards nothing.
///
/// [`coop`]: https://docs.rs/tokio/latest/tokio/task/coop/index.html
const BELIEVED: u64 = 64;

impl Yielding {
    pub(super) fn id(&self) -> SlotId {
        self.id
    }
}

impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Polls the sink that yielded in an earlier turn again.
    ///
    /// This comes early in a turn: the sink may have yielded because much had been done in the turn
    /// before it was polled.
    #[inline]
    pub(crate) fn retry_yielded(&mut self) {
        // When the input is over, the sink takes the item along as it leaves.
        if let (Some(Yielding { id, .. }), None) = (&self.holding.yielding, self.close_cursor) {
            self.retry(*id);
        }
    }

    #[cold]
    fn retry(&mut self, id: SlotId) {
        let Some(held) = self.take_held() else { return };
        match held {
            Held::One { item, id } => {
                self.retry_slot(id);
                self.place(id, item);
            }
            Held::Group(item) => {
                self.retry_slot(id);
                self.retry_member(item, id);
            }
            Held::Shared(item) => {
                self.retry_members(item.group());
                self.balance(item, &mut Share::new(0));
            }
        }
    }

    fn retry_slot(&mut self, id: SlotId) {
        self.holding.retried.push(id);
        self.unpark(id);
    }

    /// Any member may take an item that is shared, so all that are to be polled again are.
    fn retry_members(&mut self, group: usize) {
        let members: Vec<SlotId> = self.slots.members(group).collect();
        self.holding.retried.extend_from_slice(&members);
        self.holding.retried.sort_unstable();
        // Each comes to the front of the line: the one that joined first is polled first.
        for id in members.into_iter().rev() {
            if self.slots.is_to_be_polled_again(id) {
                self.unpark(id);
            }
        }
    }

    /// A sink that has woken itself, or answered late in a turn, may be polled again.
    fn unpark(&mut self, id: SlotId) {
        let has_fired = self.slots.ready().take_fired(id);
        let mut slot = self.slots.slot_mut(id);
        if has_fired {
            slot.wake();
        } else if slot.is_to_retry() {
            slot.unpark();
        }
        self.member_woken(id);
    }

    /// Decides whether an item that found no place in a slot is held. Returns `true` if it is:
    /// because the sink yielded, which is then noted as [`Yielding`], or because its policy is to
    /// wait.
    pub(in crate::router) fn decide_to_wait(
        &mut self,
        id: SlotId,
        unready: Unready,
        policy: Overflow,
    ) -> bool {
        if unready != Unready::Full && self.note_yield(id, unready) {
            return true;
        }
        self.holding.yielding = None;
        policy == Overflow::Wait
    }

    /// Notes that a sink yielded. Returns `false` if the sink is taken to be full instead: it has
    /// yielded too often, or it yielded before and nothing was done since then that may have used
    /// up its budget.
    fn note_yield(&mut self, id: SlotId, unready: Unready) -> bool {
        let operations = (unready == Unready::Yielded).then(|| self.ledger.operations());
        let before = self.holding.yielding.as_ref().filter(|yielding| yielding.id == id);
        let turns = before.map_or(0, |yielding| yielding.turns);
        let same = before.is_some_and(|yielding| yielding.operations == operations);
        if turns == YIELDS || same {
            return false;
        }
        self.holding.yielding = Some(Yielding { id, operations, turns: turns + 1 });
        true
    }

    /// Notes that an item which any of several sinks may take is held because this one is to be
    /// polled again. Returns `false` if the item has been held for that too often.
    pub(in crate::router) fn hold_for_member(&mut self, id: SlotId) -> bool {
        let turns = self.holding.yielding.take().map_or(0, |yielding| yielding.turns);
        if turns < YIELDS {
            self.holding.yielding = Some(Yielding { id, operations: None, turns: turns + 1 });
        }
        turns < YIELDS
    }

    /// The sink has answered `Pending` when it was polled for an item.
    pub(in crate::router) fn park(&mut self, id: SlotId) {
        let mut slot = self.slots.entry(id);
        slot.park();
        let may_act = slot.overflow() != Overflow::Wait;
        if may_act && self.ledger.operations_in_turn() >= BELIEVED {
            // A flush that is pending is not repeated for this: the sink's waker has not fired.
            slot.set_to_retry();
            self.slots.ready().list(id);
        }
    }

    pub(in crate::router) fn is_yielding(&self) -> bool {
        self.holding.yielding.is_some()
    }

    pub(in crate::router) fn stop_yielding(&mut self) {
        self.holding.yielding = None;
    }
}
