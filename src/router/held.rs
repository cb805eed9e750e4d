//! The one item that was read and is not completely routed. While there is one, the input is not
//! read.
//!
//! An item is held
//!
//! * because orders have overtaken it: they are applied before its key is looked up;
//! * because a sink that is not ready has no room, and its policy is to wait: the input is
//!   *blocked*, and [`Hooks::blocked`] names the recipient;
//! * because a sink yielded: it answered `Pending` only to let other tasks run;
//! * because the budget of the turn was spent while the members of a group were served.
//!
//! The members of a group that were attached when the item was read are *owed* a copy until they
//! get it, discard it or are evicted. The last member that is owed a copy gets the item itself.

mod yields;

use alloc::vec::Vec;
use core::hash::{BuildHasher, Hash};

use futures_sink::Sink;

use super::Router;
use super::balance::SharedItem;
use super::items::Place;
use super::multicast::GroupItem;
use crate::budget::Share;
use crate::hooks::Hooks;
use crate::id::SlotId;
use crate::key::sealed::{AttachOnDemand, FindByKey};

use yields::Yielding;

/// The item that is held, if there is one, and what it waits for.
pub(super) struct Holding<V> {
    /// An item that orders have overtaken: they are applied before its key is looked up. If there
    /// is one, no other item is held.
    overtaken: Option<V>,
    held: Option<Held<V>>,
    /// The slot that `Hooks::blocked` was called for last, until `Hooks::unblocked` is.
    blocked_on: Option<SlotId>,
    yielding: Option<Yielding>,
    /// The slots whose sinks were polled again in this turn because one had yielded, sorted.
    retried: Vec<SlotId>,
    /// An item was held for a sink since the last tick.
    was_held: bool,
    /// A slot that the item is for was woken, or its group changed, since the item found no place.
    was_woken: bool,
    /// The item was caught by the catch-all: no slot has its key.
    is_caught: bool,
}

/// An item whose key was looked up.
enum Held<V> {
    /// It is for this slot.
    One { item: V, id: SlotId },
    /// It is for one of the members of a group.
    Shared(SharedItem<V>),
    /// It is for those members of a group that are still owed a copy.
    Group(GroupItem<V>),
}

/// How a slot stops receiving.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// The items that wait for it are still sent.
    Graceful,
    /// It failed, or overflowed: the items that wait for it are discarded.
    Broken,
    /// It is evicted: the items that wait only for it are discarded.
    Evicted,
}

impl<V> Holding<V> {
    pub(super) fn new() -> Self {
        Self {
            overtaken: None,
            held: None,
            blocked_on: None,
            yielding: None,
            retried: Vec::new(),
            was_held: false,
            was_woken: false,
            is_caught: false,
        }
    }

    /// Call this when an item is routed that was not held: with `true` if it goes to the catch-all.
    pub(super) fn set_caught(&mut self, is_caught: bool) {
        self.is_caught = is_caught;
    }

    /// Call this when a second slot joins the key of `first`. An item that is held for `first` is
    /// then for both, unless the catch-all caught it: it has another key.
    pub(super) fn share(&mut self, first: SlotId, group: usize) {
        self.held = match self.held.take() {
            Some(Held::One { item, id }) if id == first && !self.is_caught => {
                Some(Held::Shared(SharedItem::admitted(item, group, id)))
            }
            other => other,
        };
    }

    pub(super) fn begin_turn(&mut self) {
        self.retried.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.overtaken.is_none() && self.held.is_none()
    }

    /// Returns `true` if the key of the item was not looked up yet.
    pub(super) fn is_overtaken(&self) -> bool {
        self.overtaken.is_some()
    }

    pub(super) fn blocked_on(&self) -> Option<SlotId> {
        self.blocked_on
    }

    /// A slot was woken.
    #[inline]
    pub(super) fn slot_woken(&mut self, woken: SlotId) {
        self.was_woken |= matches!(&self.held, Some(Held::One { id, .. }) if *id == woken);
    }

    /// Returns `true` if an item is held because a sink is not ready.
    pub(super) fn is_held(&self) -> bool {
        match &self.held {
            None => false,
            Some(Held::One { .. } | Held::Shared(_)) => true,
            Some(Held::Group(item)) => item.has_waiting(),
        }
    }

    /// A member of a group was woken, joined or left.
    pub(super) fn group_changed(&mut self, group: usize) {
        self.was_woken |= matches!(&self.held, Some(Held::Shared(item)) if item.group() == group);
    }

    /// Returns `true` if an item was held for a sink since this was called last.
    pub(super) fn take_was_held(&mut self) -> bool {
        let is_held = self.is_held();
        core::mem::replace(&mut self.was_held, is_held)
    }

    fn is_yielding(&self, id: SlotId) -> bool {
        self.yielding.as_ref().is_some_and(|yielding| yielding.id() == id)
    }
}

impl<K, S, V, H, B> Router<K, S, V, H, B> {
    /// Holds an item that orders have overtaken.
    #[cold]
    pub(crate) fn overtake(&mut self, item: V) {
        self.ledger.queued(1);
        self.holding.overtaken = Some(item);
    }

    fn hold(&mut self, held: Held<V>) {
        self.ledger.queued(1);
        self.holding.was_woken = false;
        self.holding.held = Some(held);
        self.holding.was_held |= self.holding.is_held();
    }

    /// Holds an item for one of the members of a group.
    pub(super) fn hold_shared(&mut self, item: SharedItem<V>) {
        self.hold(Held::Shared(item));
    }

    /// Holds an item for those members of a group that are still owed a copy, if there are any.
    pub(super) fn hold_for_group(&mut self, item: GroupItem<V>) {
        if !item.is_served() {
            self.hold(Held::Group(item));
        }
    }

    /// Takes the item that is held, to route it or hold it again.
    fn take_held(&mut self) -> Option<Held<V>> {
        let held = self.holding.held.take();
        self.ledger.unqueued(usize::from(held.is_some()));
        held
    }

    /// Takes the item that orders have overtaken.
    fn take_overtaken(&mut self) -> Option<V> {
        let item = self.holding.overtaken.take();
        self.ledger.unqueued(usize::from(item.is_some()));
        item
    }

    /// Returns `true` if the item that is held can be routed further before any sink is woken. An
    /// item that orders have overtaken has to wait for nothing else.
    #[inline]
    pub(super) fn can_release(&self) -> bool {
        self.holding.is_overtaken() || self.can_go_on()
    }

    /// The same for an item whose key was looked up.
    #[inline]
    fn can_go_on(&self) -> bool {
        let Holding { held, yielding, was_woken, .. } = &self.holding;
        let Some(held) = held else { return false };
        let can_go_on = match held {
            Held::One { id, .. } => *was_woken && self.slots.may_accept(*id),
            Held::Shared(_) => *was_woken,
            Held::Group(item) => item.has_more_to_offer(),
        };
        can_go_on && yielding.is_none() && !self.is_finished()
    }

    /// Returns `true` if an item is on its way through a group: the next members can be served.
    pub(crate) fn is_serving_group(&self) -> bool {
        matches!(self.holding.held, Some(Held::Group(_))) && self.can_release()
    }

    /// Returns `true` if a wake of this slot is left for the next turn: its sink was already polled
    /// again in this turn because it had yielded, or the item is held because it yielded, and
    /// `retry_yielded` will poll it.
    pub(super) fn is_left_to_retry(&self, id: SlotId) -> bool {
        let is_held_for = self.holding.is_yielding(id) && self.close_cursor.is_none();
        let retried = &self.holding.retried;
        is_held_for || !retried.is_empty() && retried.binary_search(&id).is_ok()
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
    /// Routes the item that is held further, as far as that is possible now. An item that orders
    /// have overtaken is routed only after all of them are read. Returns `true` if none is held any
    /// more.
    pub(crate) fn release_held<F>(
        &mut self,
        key: &mut F,
        orders_read: bool,
        share: &mut Share,
    ) -> bool
    where
        F: FindByKey<V, K> + AttachOnDemand<V, K, S>,
    {
        if self.holding.is_empty() {
            return true;
        }
        if !self.holding.is_overtaken() {
            if self.can_go_on() {
                self.route_held(share);
            }
            self.name_blocked();
        } else if orders_read {
            self.release_overtaken(key, share);
        }
        self.holding.is_empty()
    }

    fn route_held(&mut self, share: &mut Share) {
        let Some(held) = self.take_held() else { return };
        match held {
            Held::One { item, id } => self.place(id, item),
            Held::Shared(item) => self.balance(item, share),
            Held::Group(item) => self.serve_group(item, share),
        }
    }

    /// Routes the item that orders have overtaken, if there is one.
    pub(super) fn release_overtaken<F>(&mut self, key: &mut F, share: &mut Share)
    where
        F: FindByKey<V, K> + AttachOnDemand<V, K, S>,
    {
        if let Some(item) = self.take_overtaken() {
            self.route_overtaken(key, item, share);
        }
    }

    /// Returns `true` if the item that is held is for this slot, alone or with others.
    pub(super) fn is_held_for(&self, id: SlotId) -> bool {
        match &self.holding.held {
            None => false,
            Some(Held::One { id: one, .. }) => *one == id,
            Some(Held::Shared(item)) => {
                self.slots.group_of(id).is_some_and(|(group, _)| group == item.group())
            }
            Some(Held::Group(item)) => self.is_owed(item, id),
        }
    }

    /// Finds a place for an item that was admitted for this slot, its one recipient.
    pub(super) fn place(&mut self, id: SlotId, item: V) {
        let place = self.find_place(id);
        self.give_or_hold(id, item, place);
    }

    /// Gives an item that was admitted to its one recipient, or holds it.
    pub(super) fn give_or_hold(&mut self, id: SlotId, item: V, place: Place<S::Error>) {
        match place {
            Place::None(unready, policy) if self.decide_to_wait(id, unready, policy) => {
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

    /// Call this before a slot that stops receiving is unlinked. Returns its copy of the held item,
    /// if it was owed one.
    ///
    /// For a slot that leaves gracefully before it was offered the item, `admit` is called now. A
    /// slot that is evicted takes no copy, unless it is the last that is owed one.
    pub(super) fn take_owed(&mut self, id: SlotId, exit: Exit) -> Option<V> {
        if self.holding.blocked_on == Some(id) {
            self.unblock();
        }
        if self.holding.is_yielding(id) {
            self.holding.yielding = None;
        }
        let copy = self.take_copy(id, exit);
        if let Some(Held::Shared(item)) = &mut self.holding.held {
            item.forget(id);
        }
        copy
    }

    /// The same for a slot that may go on to receive.
    pub(super) fn take_copy(&mut self, id: SlotId, exit: Exit) -> Option<V> {
        let held = self.take_held()?;
        match held {
            Held::One { item, id: one } if one == id => Some(item),
            Held::Shared(item) if self.is_heir(&item, id, exit) => self.take_shared(item, id, exit),
            Held::Group(mut item) if self.is_owed(&item, id) => {
                let copy = self.take_member_copy(&mut item, id, exit);
                self.hold_for_group(item);
                copy
            }
            held => {
                self.ledger.queued(1);
                self.holding.held = Some(held);
                None
            }
        }
    }
}

/// Members of a group that wait.
impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Gives a member that waits for its copy the copy, if its sink is ready by now.
    pub(super) fn serve_waiting(&mut self, id: SlotId) {
        if self.holding.is_yielding(id) {
            return; // `retry_yielded` does it
        }
        let place = self.find_place(id);
        if matches!(place, Place::None(..)) {
            return;
        }
        let Some(copy) = self.take_copy(id, Exit::Graceful) else { return };
        self.give(id, copy, place);
        if self.holding.blocked_on == Some(id) {
            self.unblock();
        }
    }
}

/// Calling `blocked` and `unblocked`.
impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// The input starts to wait for a sink, or goes on waiting for it.
    pub(super) fn block(&mut self, id: SlotId) {
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

    /// Calls `blocked` for the first member that waits, once every member of the group was offered
    /// the item.
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
        // If the first is not parked, the input waits for the next turn and not for a sink.
        let first = self.slots.first_waiting(item.group());
        if let Some(id) = first.filter(|&id| self.slots.slot(id).is_parked()) {
            self.block(id);
        }
    }
}
