//! An item for several sinks: it is offered to the members of its group one by one.

use core::hash::{BuildHasher, Hash};
use core::task::Poll;

use futures_sink::Sink;

use super::balance::SharedItem;
use super::held::Exit;
use super::items::Place;
use super::{Router, Sharing};
use crate::budget::Share;
use crate::hooks::{Discarded, Hooks};
use crate::id::SlotId;
use crate::ledger::Ledger;

/// An item that is being served to a group. The [`Group`](crate::group::Group) keeps the progress.
///
/// The members that were attached when the item was read are *owed* a copy until they got it,
/// discarded it or were evicted. The last one gets the item itself.
pub(super) struct GroupItem<V> {
    /// There until the last member takes it.
    item: Option<V>,
    group: usize,
    /// How many members are owed a copy.
    owed: usize,
    /// How many of these were offered it, and wait.
    waiting: usize,
    clone: fn(&V) -> V,
}

/// Why the loop over the members of a group stopped.
enum Stop<E> {
    /// All members were offered the item, or the share is spent.
    Enough,
    /// A member is known to be busy, or limited.
    Slow(SlotId),
    /// The hooks did not admit the item.
    NotAdmitted(SlotId),
    /// A sink has just answered that it is not ready, or failed.
    Unready(SlotId, Poll<Result<(), E>>),
    /// A sink failed while it took its copy.
    Failed(SlotId, E),
}

impl<V> GroupItem<V> {
    pub(super) fn group(&self) -> usize {
        self.group
    }

    /// Returns `true` if no member is owed a copy any more.
    pub(super) fn is_served(&self) -> bool {
        self.owed == 0
    }

    /// Returns `true` if a member was offered the item, and waits.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Returns `true` if some members were not offered the item yet.
    pub(super) fn has_more_to_offer(&self) -> bool {
        self.owed > self.waiting
    }

    /// Takes the copy of one member, which it is owed no longer.
    #[inline]
    fn take_copy<H>(&mut self, ledger: &mut Ledger<H>) -> V {
        self.owed -= 1;
        if self.owed == 0 {
            return self.item.take().expect(THERE);
        }
        ledger.copied();
        (self.clone)(self.item.as_ref().expect(THERE))
    }
}

const THERE: &str = "the item is there while a member is owed a copy";

impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Offers an item to the members of a group, as far as `share` goes: one for each but the
    /// first, which the item itself has paid for.
    pub(super) fn send_to_group(&mut self, group: usize, item: V, share: &mut Share) {
        let Sharing::Multicast(clone) = self.sharing else {
            return self.balance(SharedItem::new(item, group), share);
        };
        let owed = self.slots.start_walk(group);
        share.add(Share::new(1));
        self.serve_group(GroupItem { item: Some(item), group, owed, waiting: 0, clone }, share);
        self.name_blocked();
    }

    /// Offers the item to the next members of its group, until all were offered it, a sink yields
    /// or `share` is spent. Holds it if a member is still owed a copy then.
    pub(super) fn serve_group(&mut self, mut item: GroupItem<V>, share: &mut Share) {
        loop {
            let (id, place) = match self.serve_in_a_row(&mut item, share) {
                Stop::Enough => break,
                Stop::Failed(id, error) => {
                    self.lose(id, error);
                    continue;
                }
                Stop::NotAdmitted(id) => {
                    self.refuse(id, &mut item);
                    continue;
                }
                Stop::Unready(id, answer) => (id, self.find_place_after(id, answer)),
                Stop::Slow(id) => {
                    let to = self.slots.recipient(id);
                    if !self.ledger.admit(to, item.item.as_ref().expect(THERE)) {
                        self.refuse(id, &mut item);
                        continue;
                    }
                    (id, self.find_place(id))
                }
            };
            if !self.serve_member(id, &mut item, place) {
                break;
            }
        }
        self.hold_for_group(item);
    }

    /// Gives the next members of a group their copies, as long as the hot path suffices. As in
    /// [`route`](Self::route), everything else is dealt with outside of the loop.
    #[inline(never)]
    fn serve_in_a_row(&mut self, item: &mut GroupItem<V>, share: &mut Share) -> Stop<S::Error> {
        let Self { slots, ledger, .. } = self;
        // The group is there for as long as a member is owed a copy.
        if !item.has_more_to_offer() {
            return Stop::Enough;
        }
        let mut walk = slots.walk(item.group);
        while !share.is_spent() {
            let Some(mut slot) = walk.next() else { break };
            share.spend();
            if !slot.is_fast_in_group() {
                return Stop::Slow(slot.id());
            }
            let Some(original) = &item.item else { break };
            if !ledger.admit(slot.recipient(), original) {
                return Stop::NotAdmitted(slot.id());
            }
            let answer = slot.poll_ready();
            if !matches!(answer, Poll::Ready(Ok(()))) {
                return Stop::Unready(slot.id(), answer);
            }
            let copy = item.take_copy(ledger);
            if let Err(error) = slot.send::<false>(copy, ledger.count_received()) {
                return Stop::Failed(slot.id(), error);
            }
            ledger.delivered();
        }
        Stop::Enough
    }

    /// Gives a member that was offered the item its copy, or lets it wait. Returns `false` if the
    /// next members are not to be offered the item in this turn.
    #[cold]
    fn serve_member(
        &mut self,
        id: SlotId,
        item: &mut GroupItem<V>,
        place: Place<S::Error>,
    ) -> bool {
        match place {
            Place::None(unready, policy) if self.decide_to_wait(id, unready, policy) => {
                item.waiting += 1;
                self.slots.start_waiting(item.group, id);
                !self.is_yielding()
            }
            place => {
                self.stop_yielding();
                let copy = item.take_copy(&mut self.ledger);
                self.give(id, copy, place);
                true
            }
        }
    }

    /// The hooks did not admit the item for a member: its copy is discarded.
    #[cold]
    fn refuse(&mut self, id: SlotId, item: &mut GroupItem<V>) {
        let copy = item.take_copy(&mut self.ledger);
        self.discard(id, copy, Discarded::NotAdmitted);
    }

    /// The sink of a member yielded, and is polled again.
    pub(super) fn retry_member(&mut self, mut item: GroupItem<V>, id: SlotId) {
        item.waiting -= 1;
        self.slots.slot_mut(id).set_waiting(false);
        let place = self.find_place(id);
        self.serve_member(id, &mut item, place);
        self.hold_for_group(item);
    }

    /// Returns `true` if the slot is owed a copy of this item.
    pub(super) fn is_owed(&self, item: &GroupItem<V>, id: SlotId) -> bool {
        let Some((group, position)) = self.slots.group_of(id) else { return false };
        group == item.group
            && (self.slots.slot(id).is_waiting() || self.slots.is_to_be_offered(group, position))
    }

    /// Takes the copy of a member that is owed one; see [`take_owed`](Self::take_owed).
    pub(super) fn take_member_copy(
        &mut self,
        item: &mut GroupItem<V>,
        id: SlotId,
        exit: Exit,
    ) -> Option<V> {
        let mut slot = self.slots.slot_mut(id);
        let was_waiting = slot.is_waiting();
        if was_waiting {
            item.waiting -= 1;
            slot.set_waiting(false);
        }
        if exit == Exit::Evicted && item.owed > 1 {
            item.owed -= 1;
            return None;
        }
        let asks = exit == Exit::Graceful && !was_waiting;
        if asks && !self.ledger.admit(self.slots.recipient(id), item.item.as_ref().expect(THERE)) {
            self.refuse(id, item);
            return None;
        }
        Some(item.take_copy(&mut self.ledger))
    }
}
