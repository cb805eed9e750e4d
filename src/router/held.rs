//! The one item that was read and has not been routed to the end. While there is one, the input is not
//! read.
//!
//! An item is held
//!
//! * because orders came before it: its key was not looked up yet;
//! * because a sink that is not ready has no room, and its policy is to wait: the item is *blocked*, and
//!   [`Hooks::blocked`] names the recipient;
//! * because a sink yielded: it answered `Pending` only to let other tasks run;
//! * because the budget of the turn ended while the members of a group were served.
//!
//! The members of a group that were attached when the item was read are *owed* a copy until they got it,
//! discarded it or were evicted. The last one that is owed a copy gets the item itself.

use core::hash::{BuildHasher, Hash};

use futures_sink::Sink;

use super::Router;
use super::items::{Place, Unready};
use super::multicast::GroupItem;
use crate::budget::Share;
use crate::hooks::Hooks;
use crate::id::SlotId;
use crate::key::sealed::FindByKey;
use crate::order::Overflow;

/// The item that is held, if there is one, and what it waits for.
pub(super) struct Holding<V> {
    held: Option<Held<V>>,
    /// The slot that the hooks were told the input waits for.
    blocked_on: Option<SlotId>,
    yielding: Option<Yielding>,
    /// The slot whose sink was polled again in this turn because it had yielded.
    retried: Option<SlotId>,
    /// The one slot that the item is for was woken since the item found no place in it.
    was_woken: bool,
}

enum Held<V> {
    /// Orders were ready before it: they are applied first.
    Overtaken(V),
    /// It is for this slot alone.
    One { item: V, id: SlotId },
    /// It is for those members of a group that are still owed a copy.
    Group(GroupItem<V>),
}

/// A sink that yielded when it was polled for the item that is held.
///
/// Under tokio a sink answers `Pending` when its task has used up its cooperative budget, whether or not
/// it has room. No overflow policy may act on that: the item is held, and the sink polled again in the
/// next turn.
struct Yielding {
    id: SlotId,
    /// How many operations the demux had done when the sink yielded last; `None` if it was not polled
    /// for this item yet, because its waker had fired since an earlier answer.
    operations: Option<u64>,
    /// For how many turns in a row the item has been held for this.
    turns: u8,
}

/// For how many turns in a row an item is held because its sink yields.
///
/// One turn is enough for a demux that has a task of its own. It may take a few when the budget is spent
/// on others that come first in the turn. A sink that has yielded 16 times in a row wakes itself for
/// reasons of its own, and would hold up all other items for nothing.
const YIELDS: u8 = 16;

/// After how many operations of one turn a `Pending` may be a yield though the sink's waker has not
/// fired.
///
/// Tokio wakes a task that has used up its cooperative budget of 128 only when its thread has nothing else
/// to do, or after 61 polls of other tasks ([`coop`] in its sources). So the answer looks like that of a
/// full sink. But the budget of a task that has just been polled is fresh: an operation of ours costs one
/// of it, seldom two, and before the 64th an answer can be believed. A sink that answered later, and whose
/// policy would act on it, is polled once more in the next turn. `Wait` does nothing that could be wrong.
///
/// [`coop`]: https://docs.rs/tokio/latest/tokio/task/coop/index.html
const BELIEVED: u64 = 64;

/// How a slot stops receiving.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// What waits for it is still sent.
    Graceful,
    /// It failed, or overflowed: what waits for it is discarded.
    Broken,
    /// It is gone: what waits for it alone is discarded.
    Evicted,
}

impl<V> Holding<V> {
    pub(super) fn new() -> Self {
        Self { held: None, blocked_on: None, yielding: None, retried: None, was_woken: false }
    }

    pub(super) fn begin_turn(&mut self) {
        self.retried = None;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_none()
    }

    /// Returns `true` if the key of the item was not looked up yet.
    pub(super) fn is_overtaken(&self) -> bool {
        matches!(self.held, Some(Held::Overtaken(_)))
    }

    pub(super) fn blocked_on(&self) -> Option<SlotId> {
        self.blocked_on
    }

    /// A slot was woken.
    #[inline]
    pub(super) fn slot_woken(&mut self, woken: SlotId) {
        self.was_woken |= matches!(&self.held, Some(Held::One { id, .. }) if *id == woken);
    }

    fn is_yielding(&self, id: SlotId) -> bool {
        self.yielding.as_ref().is_some_and(|yielding| yielding.id == id)
    }
}

impl<K, S, V, H, B> Router<K, S, V, H, B> {
    /// Holds an item that orders have overtaken.
    #[cold]
    pub(crate) fn overtake(&mut self, item: V) {
        self.hold(Held::Overtaken(item));
    }

    fn hold(&mut self, held: Held<V>) {
        self.ledger.queued(1);
        self.holding.was_woken = false;
        self.holding.held = Some(held);
    }

    /// Holds an item for those members of a group that are still owed a copy, if there are any.
    pub(super) fn hold_for_group(&mut self, item: GroupItem<V>) {
        if !item.is_served() {
            self.hold(Held::Group(item));
        }
    }

    /// Takes what is held, to be routed or held anew.
    fn take_held(&mut self) -> Option<Held<V>> {
        let held = self.holding.held.take();
        self.ledger.unqueued(usize::from(held.is_some()));
        held
    }

    /// Returns `true` if the item that is held, and whose key was looked up, can be routed further before
    /// any sink is woken.
    #[inline]
    pub(super) fn can_release(&self) -> bool {
        let Holding { held, yielding, was_woken, .. } = &self.holding;
        match held {
            None => false,
            Some(Held::Overtaken(_)) => true,
            Some(_) if self.is_finished() || yielding.is_some() => false,
            Some(Held::One { id, .. }) => *was_woken && self.slots.may_accept(*id),
            Some(Held::Group(item)) => item.has_more_to_offer(),
        }
    }

    /// Returns `true` if an item is on its way through a group: the next members can be served.
    pub(crate) fn is_serving_group(&self) -> bool {
        matches!(self.holding.held, Some(Held::Group(_))) && self.can_release()
    }

    /// Returns `true` if the slot was polled again in this turn because it had yielded.
    pub(super) fn was_retried(&self, id: SlotId) -> bool {
        self.holding.retried == Some(id)
    }
}

/// Routing what is held.
impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Routes the item that is held further, as far as that is possible now. One that orders have
    /// overtaken is routed only once they are all read. Returns `true` if none is held any more.
    pub(crate) fn release_held<F>(
        &mut self,
        key: &mut F,
        orders_read: bool,
        share: &mut Share,
    ) -> bool
    where
        F: FindByKey<V, K>,
    {
        match &self.holding.held {
            None => return true,
            Some(Held::Overtaken(_)) if orders_read => self.release_overtaken(key, share),
            Some(Held::Overtaken(_)) => {}
            Some(_) => {
                if self.can_release() {
                    match self.take_held() {
                        Some(Held::One { item, id }) => {
                            let place = self.find_place(id);
                            self.give_or_hold(id, item, place);
                        }
                        Some(Held::Group(item)) => self.serve_group(item, share),
                        Some(Held::Overtaken(_)) | None => {}
                    }
                }
                self.name_blocked();
            }
        }
        self.holding.held.is_none()
    }

    /// Routes the item that orders have overtaken, if there is one.
    pub(super) fn release_overtaken<F>(&mut self, key: &mut F, share: &mut Share)
    where
        F: FindByKey<V, K>,
    {
        if self.holding.is_overtaken() {
            if let Some(Held::Overtaken(item)) = self.take_held() {
                self.route_overtaken(key, item, share);
            }
        }
    }

    /// Gives an item that was admitted to its one recipient, or holds it.
    pub(super) fn give_or_hold(&mut self, id: SlotId, item: V, place: Place<S::Error>) {
        match place {
            Place::None(unready, policy) if self.is_to_wait(id, unready, policy) => {
                self.hold(Held::One { item, id });
                if self.holding.yielding.is_none() {
                    self.block(id);
                }
            }
            place => {
                self.holding.yielding = None;
                self.give(id, item, place);
                self.unblock();
            }
        }
    }

    /// Takes the copy of the held item that a slot is owed, if it is owed one, because it stops
    /// receiving. To be called before the slot leaves its place.
    ///
    /// One that leaves gracefully before it was offered the item is asked for admission now. One that
    /// is evicted takes no copy, unless it is the last that is owed one.
    pub(super) fn take_owed(&mut self, id: SlotId, exit: Exit) -> Option<V> {
        if self.holding.blocked_on == Some(id) {
            self.unblock();
        }
        if self.holding.is_yielding(id) {
            self.holding.yielding = None;
        }
        self.take_copy(id, exit)
    }

    /// The same for a slot that may go on to receive.
    pub(super) fn take_copy(&mut self, id: SlotId, exit: Exit) -> Option<V> {
        match &self.holding.held {
            Some(Held::One { id: one, .. }) if *one == id => match self.take_held() {
                Some(Held::One { item, .. }) => Some(item),
                _ => None,
            },
            Some(Held::Group(item)) if self.is_owed(item, id) => {
                let Some(Held::Group(mut item)) = self.take_held() else { return None };
                let copy = self.take_member_copy(&mut item, id, exit);
                self.hold_for_group(item);
                copy
            }
            _ => None,
        }
    }
}

/// Sinks that yield.
impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Polls the sink that yielded in an earlier turn again.
    ///
    /// This comes early in a turn: what made the sink yield may be that much was done in the turn
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
        let has_fired = self.slots.ready().take_fired(id);
        let mut slot = self.slots.slot_mut(id);
        if has_fired {
            slot.wake();
        } else if slot.is_to_retry() {
            slot.unpark();
        }
        self.holding.retried = Some(id);
        match self.take_held() {
            Some(Held::One { item, id }) => {
                let place = self.find_place(id);
                self.give_or_hold(id, item, place);
            }
            Some(Held::Group(item)) => self.retry_member(item, id),
            Some(Held::Overtaken(_)) | None => unreachable!("a sink is polled for an item"),
        }
    }

    /// Returns `true` if an item that found no place in a slot is to be held: because the sink yielded,
    /// and then [`Yielding`] says so, or because its policy is to wait.
    pub(super) fn is_to_wait(&mut self, id: SlotId, unready: Unready, policy: Overflow) -> bool {
        if unready != Unready::Full && self.hold_for_yield(id, unready) {
            return true;
        }
        self.holding.yielding = None;
        policy == Overflow::Wait
    }

    /// Returns `true` if an item is to be held because the sink yielded; `false` if the sink has yielded
    /// before and is taken to be full: nothing has happened since then that may have used up what it is
    /// waiting for, or it has yielded too often.
    fn hold_for_yield(&mut self, id: SlotId, unready: Unready) -> bool {
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

    /// The sink has answered `Pending` when it was polled for an item.
    pub(super) fn park(&mut self, id: SlotId) {
        let mut slot = self.slots.slot_mut(id);
        slot.park();
        let may_act = slot.overflow() != Overflow::Wait;
        if may_act && self.ledger.operations_in_turn() >= BELIEVED {
            // A flush that is pending is not repeated for this: the sink's waker has not fired.
            slot.set_to_retry();
            self.slots.ready().list(id);
        }
    }

    pub(super) fn is_yielding(&self) -> bool {
        self.holding.yielding.is_some()
    }

    pub(super) fn stop_yielding(&mut self) {
        self.holding.yielding = None;
    }

    /// Gives a member that waits for its copy the copy, if its sink is ready by now.
    pub(super) fn serve_waiting(&mut self, id: SlotId) {
        if self.holding.is_yielding(id) {
            return; // `retry_yielded` does it
        }
        let place = self.find_place(id);
        if matches!(place, Place::None(..)) {
            return;
        }
        if let Some(copy) = self.take_copy(id, Exit::Graceful) {
            self.give(id, copy, place);
            if self.holding.blocked_on == Some(id) {
                self.unblock();
            }
        }
    }
}

/// What the hooks hear of waiting.
impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// The input starts to wait for a sink, or goes on waiting for it.
    fn block(&mut self, id: SlotId) {
        if self.holding.blocked_on != Some(id) {
            self.unblock();
            self.holding.blocked_on = Some(id);
            self.ledger.blocked(self.slots.recipient(id));
        }
    }

    /// The input no longer waits for the sink that it waited for.
    pub(super) fn unblock(&mut self) {
        if let Some(id) = self.holding.blocked_on.take() {
            self.ledger.unblocked(self.slots.recipient(id));
        }
    }

    /// Tells the hooks which sink the input waits for, once every member of the group was offered the
    /// item.
    #[inline]
    pub(crate) fn name_blocked(&mut self) {
        if matches!(self.holding.held, Some(Held::Group(_))) {
            self.name_blocked_member();
        }
    }

    fn name_blocked_member(&mut self) {
        let Holding { held, blocked_on, yielding, .. } = &self.holding;
        if blocked_on.is_some() || yielding.is_some() || self.is_finished() {
            return;
        }
        let Some(Held::Group(item)) = held else { return };
        if item.has_more_to_offer() {
            return;
        }
        // One that is ready and will take more is not waited for: it is the turn that is spent.
        let first = self.slots.first_waiting(item.group());
        if let Some(id) = first.filter(|&id| self.slots.slot(id).is_parked()) {
            self.block(id);
        }
    }
}
