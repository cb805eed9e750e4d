//! An item for one of several sinks: it goes to the next member of its group that is ready, or
//! joins the shortest queue.
//!
//! The members that may be ready stand in a line. A member that answers `Pending` leaves the line,
//! and returns to its front when its waker has fired. A member that takes an item goes to the end.
//! So the cost of finding one that is ready does not depend on how many are busy.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::hash::{BuildHasher, Hash};
use core::task::Poll;

use futures_sink::Sink;

use super::held::Exit;
use super::items::{Place, Unready};
use super::{Router, Sharing};
use crate::budget::Share;
use crate::hooks::{Detached, Discarded, Hooks};
use crate::id::SlotId;
use crate::order::Overflow;

/// How many members are looked at for one of the budget, to find the shortest queue.
///
/// To read the length of a queue costs far less than to poll a sink. With 16, a group of the size
/// of the default budget costs 8 of it.
const LOOKED_AT: usize = 16;

/// An item for one of the members of a group.
pub(super) struct SharedItem<V> {
    item: V,
    group: usize,
    /// The members that the item was offered to. A member that is ready and takes the item is not
    /// recorded, so this allocates only after one was not ready or refused.
    offers: BTreeMap<SlotId, Offer>,
    /// How many offers were made.
    count: usize,
}

/// What came of offering an item to a member.
struct Offer {
    /// How many offers were made before.
    place: usize,
    /// What `admit` returned.
    admitted: bool,
    /// How many operations the demux had done when the sink last yielded instead of taking the
    /// item, if it did.
    yielded: Option<u64>,
}

impl<V> SharedItem<V> {
    pub(super) fn new(item: V, group: usize) -> Self {
        Self { item, group, offers: BTreeMap::new(), count: 0 }
    }

    /// An item that was admitted for a member when that was the only one.
    pub(super) fn admitted(item: V, group: usize, id: SlotId) -> Self {
        let mut item = Self::new(item, group);
        item.offered(id, true);
        item
    }

    pub(super) fn group(&self) -> usize {
        self.group
    }

    /// A member has left. Its id may be that of another slot next.
    pub(super) fn forget(&mut self, id: SlotId) {
        self.offers.remove(&id);
    }

    fn was_admitted(&self, id: SlotId) -> Option<bool> {
        self.offers.get(&id).map(|offer| offer.admitted)
    }

    /// Records what `admit` returned for a member.
    fn offered(&mut self, id: SlotId, admitted: bool) {
        let place = self.count;
        self.offers.insert(id, Offer { place, admitted, yielded: None });
        self.count += 1;
    }

    /// A sink yielded when the demux had done so many operations. Returns `false` if it had yielded
    /// before, and nothing was done since: it is taken to be full.
    fn note_yield(&mut self, id: SlotId, operations: u64) -> bool {
        let before = self.offers.get_mut(&id).and_then(|offer| offer.yielded.replace(operations));
        before != Some(operations)
    }

    /// Returns `true` if a sink has yielded and nothing was done since.
    fn has_yielded(&self, id: SlotId, operations: u64) -> bool {
        self.offers.get(&id).is_some_and(|offer| offer.yielded == Some(operations))
    }
}

impl<K, S, V, H, B> Router<K, S, V, H, B> {
    fn balances(&self) -> bool {
        matches!(self.sharing, Sharing::Balance)
    }

    /// Asks the hooks, once for each member, whether it may have the item.
    fn admit_shared<E>(&mut self, item: &mut SharedItem<V>, id: SlotId) -> bool
    where
        H: Hooks<K, V, E>,
    {
        if let Some(admitted) = item.was_admitted(id) {
            return admitted;
        }
        let admitted = self.ledger.admit(self.slots.recipient(id), &item.item);
        item.offered(id, admitted);
        admitted
    }

    /// A slot was attached. If it shares its key with `head`, it stands in line; so does `head`, if
    /// it was alone.
    pub(super) fn join_line(&mut self, id: SlotId, head: Option<SlotId>) {
        if !self.balances() {
            return;
        }
        let Some((group, _)) = self.slots.group_of(id).filter(|_| self.slots.slot(id).receives())
        else {
            return;
        };
        if let Some(head) = head.filter(|_| self.slots.group_len(group) == 2) {
            self.holding.share(head, group);
            if !self.slots.slot(head).is_parked() {
                self.slots.line_up(group, head, false);
            }
        }
        self.slots.line_up(group, id, false);
        self.holding.group_changed(group);
    }

    /// The waker of a sink has fired: it is next in turn, if it shares its key.
    #[inline]
    pub(super) fn member_woken(&mut self, id: SlotId) {
        if self.balances() {
            self.line_up_woken(id);
        }
    }

    fn line_up_woken(&mut self, id: SlotId) {
        if !self.slots.slot(id).receives() {
            return;
        }
        if let Some((group, _)) = self.slots.group_of(id) {
            self.slots.line_up(group, id, true);
            self.holding.group_changed(group);
        }
    }

    /// A slot stops receiving: what is queued for it goes to the others that share its key.
    pub(super) fn hand_on_queue(&mut self, id: SlotId) {
        if !self.balances() || self.is_finished() || !self.slots.slot(id).receives() {
            return;
        }
        let Some((group, _)) = self.slots.group_of(id) else { return };
        self.holding.group_changed(group);
        if self.slots.group_len(group) == 1 || !self.slots.slot(id).is_queued() {
            return;
        }
        let others: Vec<SlotId> = self.slots.members(group).filter(|&other| other != id).collect();
        let queue = self.slots.slot_mut(id).take_queue();
        for (item, &other) in queue.into_iter().zip(others.iter().cycle()) {
            self.slots.slot_mut(other).push(item);
            // A sink that is ready is not woken: it is advanced in the next turn.
            if !self.slots.slot(other).is_parked() {
                self.slots.ready().list(other);
            }
        }
    }

    /// Returns `true` if the item that is held goes with this member, which leaves: there is no
    /// other, or the input is over and the member can still send it.
    pub(super) fn is_heir(&self, item: &SharedItem<V>, id: SlotId, exit: Exit) -> bool {
        let group = self.slots.group_of(id).map(|(group, _)| group);
        let is_last = || self.slots.group_len(item.group) == 1;
        let takes_it = || is_last() || self.is_finished() && exit == Exit::Graceful;
        group == Some(item.group) && self.slots.slot(id).receives() && takes_it()
    }
}

impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Gives an item to a member of its group, or holds it. Each member but the first that it is
    /// offered to costs one of `share`. It is also offered to those that `share` does not suffice
    /// for: a sink that may be ready has joined or was woken, which has cost one; only members for
    /// which the item is not admitted may be asked without that.
    #[cold]
    pub(super) fn balance(&mut self, mut item: SharedItem<V>, share: &mut Share) {
        let mut yielded = None;
        let mut is_paid = true; // for the first, by the item itself
        for _ in 0..self.slots.line_len(item.group) {
            let Some(id) = self.slots.next_in_line(item.group) else { break };
            if self.slots.slot(id).is_parked() {
                continue;
            }
            let was_admitted = item.was_admitted(id);
            if was_admitted != Some(false) && !core::mem::take(&mut is_paid) {
                share.spend();
            }
            let admitted = was_admitted
                .unwrap_or_else(|| self.ledger.admit(self.slots.recipient(id), &item.item));
            let answer = if admitted { Some(self.slots.entry(id).poll_ready()) } else { None };
            if matches!(answer, Some(Poll::Ready(Ok(())))) {
                self.slots.line_up(item.group, id, false);
                return self.settle_shared(id, item.item, Place::Sink);
            }
            if was_admitted.is_none() {
                item.offered(id, admitted);
            }
            let Some(answer) = answer else {
                self.slots.line_up(item.group, id, false);
                continue;
            };
            match self.find_place_after(id, answer) {
                Place::Failed(error) => {
                    let is_last = self.slots.group_len(item.group) == 1;
                    if is_last {
                        return self.settle_shared(id, item.item, Place::Failed(error));
                    }
                    self.remove(id, Detached::Failed(error), None);
                    item.forget(id);
                }
                Place::None(Unready::Yielded, _)
                    if item.note_yield(id, self.ledger.operations()) =>
                {
                    yielded = Some(id);
                }
                _ => {}
            }
        }
        match self.shortest_queue(&mut item, share) {
            None => {
                let first = item.offers.iter().min_by_key(|(_, offer)| offer.place);
                let (&first, _) = first.expect("`admit` was called for at least one member");
                self.stop_yielding();
                self.unblock();
                self.discard(first, item.item, Discarded::NotAdmitted);
            }
            Some(id) => self.join_shortest(id, item, yielded),
        }
    }

    /// No member is ready: the item joins this queue, which is the shortest, or is held.
    fn join_shortest(&mut self, id: SlotId, item: SharedItem<V>, yielded: Option<SlotId>) {
        let slot = self.slots.entry(id);
        if slot.can_queue() {
            return self.settle_shared(id, item.item, Place::Queue);
        }
        let policy = slot.overflow();
        // No policy acts before all members that may be ready were polled.
        let to_be_polled = yielded.or_else(|| self.member_to_be_polled(&item));
        if to_be_polled.is_some_and(|member| self.hold_for_member(member)) {
            return self.hold_shared(item);
        }
        self.stop_yielding();
        if policy == Overflow::Wait {
            self.hold_shared(item);
            self.block(id);
        } else {
            self.settle_shared(id, item.item, Place::None(Unready::Full, policy));
        }
    }

    /// Returns a member that may have the item and whose sink is to be polled again, unless it has
    /// just yielded.
    fn member_to_be_polled(&self, item: &SharedItem<V>) -> Option<SlotId> {
        let operations = self.ledger.operations();
        self.slots.find_member_to_be_polled(item.group, |id| {
            item.was_admitted(id) != Some(false) && !item.has_yielded(id, operations)
        })
    }

    fn settle_shared(&mut self, id: SlotId, item: V, place: Place<S::Error>) {
        self.stop_yielding();
        self.give(id, item, place);
        self.unblock();
    }

    /// Returns the member with the shortest queue of those for which the item is admitted. If there
    /// are several, returns the one that joined first.
    fn shortest_queue(&mut self, item: &mut SharedItem<V>, share: &mut Share) -> Option<SlotId> {
        let cost = self.slots.group_len(item.group) / LOOKED_AT;
        share.split(cost);
        let may_have = |id: &SlotId| item.was_admitted(*id) != Some(false);
        let members = self.slots.members(item.group).filter(may_have);
        let shortest = members.min_by_key(|&id| self.slots.queue_len(id))?;
        if self.admit_shared(item, shortest) {
            return Some(shortest);
        }
        let may_have = |id: &SlotId| item.was_admitted(*id) != Some(false);
        let mut members: Vec<SlotId> = self.slots.members(item.group).filter(may_have).collect();
        members.sort_by_key(|&id| self.slots.queue_len(id));
        members.into_iter().find(|&id| {
            share.spend();
            self.admit_shared(item, id)
        })
    }

    /// Returns the item that is held for a member that leaves, if it is admitted for that member.
    /// Otherwise it stays held for the others, if there are any. `admit` is not called if the last
    /// member would only discard the item.
    pub(super) fn take_shared(
        &mut self,
        mut item: SharedItem<V>,
        id: SlotId,
        exit: Exit,
    ) -> Option<V> {
        let asks = exit == Exit::Graceful || item.was_admitted(id).is_some();
        if !asks || self.admit_shared(&mut item, id) {
            return Some(item.item);
        }
        if self.slots.group_len(item.group) > 1 {
            self.hold_shared(item);
        } else {
            self.discard(id, item.item, Discarded::NotAdmitted);
        }
        None
    }
}
