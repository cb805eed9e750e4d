//! An item for several sinks: it is offered to the members of its group one by one.

use core::hash::{BuildHasher, Hash};
use core::task::Poll;

use futures_sink::Sink;

use super::Router;
use super::budget::Allowance;
use super::ledger::Ledger;
use crate::hooks::{Discarded, Hooks};
use crate::slots::id::SlotId;

/// An item on its way through a group. The [`Group`](crate::slots::group::Group) keeps the
/// progress.
pub(super) struct Walk<V> {
    /// There until the last member takes it.
    item: Option<V>,
    group: usize,
    /// How many members are still to be offered the item. The last one gets the item itself.
    ahead: usize,
    clone: fn(&V) -> V,
}

/// Why the loop over the members of a group stopped.
enum Stop<E> {
    /// All members were offered the item, or the allowance is spent.
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

impl<V> Walk<V> {
    fn item(&self) -> &V {
        self.item.as_ref().expect("the item is there while members are ahead")
    }

    /// The copy of the next member.
    #[inline]
    fn take_copy<H>(&mut self, ledger: &mut Ledger<H>) -> Option<V> {
        self.ahead -= 1;
        if self.ahead == 0 {
            return self.item.take();
        }
        ledger.copied();
        self.item.as_ref().map(self.clone)
    }
}

impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Routes an item to all slots that share the key of this one, as far as `items` goes: one for
    /// each but the first, which the item itself has paid for.
    pub(super) fn route_to_all(
        &mut self,
        id: SlotId,
        item: V,
        clone: fn(&V) -> V,
        items: &mut Allowance,
    ) {
        let Some((group, _)) = self.slots.group_of(id) else {
            return self.route_to(id, item, items);
        };
        if self.slots.group(group).len() == 1 {
            // Those that have left cost the last one nothing.
            self.slots.end_group(group);
            return self.route_to(id, item, items);
        }
        let members = self.slots.group_mut(group);
        members.start();
        let ahead = members.len();
        items.refund();
        self.walk_on(Walk { item: Some(item), group, ahead, clone }, items);
    }

    /// Offers the item that is on its way through a group, if there is one, to the next members.
    pub(crate) fn continue_walk(&mut self, items: &mut Allowance) {
        if let Some(walk) = self.walk.take() {
            self.walk_on(walk, items);
        }
    }

    /// Offers the item to the next members of its group, until all were offered it or `items` is
    /// spent. Then the walk goes on in the next turn.
    fn walk_on(&mut self, mut walk: Walk<V>, items: &mut Allowance) {
        loop {
            let (id, answer) = match self.send_copies(&mut walk, items) {
                Stop::Enough => break,
                Stop::Failed(id, error) => {
                    self.lose(id, error);
                    continue;
                }
                Stop::Unready(id, answer) => (id, Some(answer)),
                Stop::Slow(id)
                    if self.ledger.hooks_mut().admit(self.slots.recipient(id), walk.item()) =>
                {
                    (id, None)
                }
                Stop::Slow(id) | Stop::NotAdmitted(id) => {
                    self.refuse(id, &mut walk);
                    continue;
                }
            };
            let Some(copy) = walk.take_copy(&mut self.ledger) else { break };
            match answer {
                Some(answer) => self.send_or_queue(id, copy, answer, items),
                None => self.offer(id, copy, items),
            }
        }
        if walk.ahead > 0 {
            self.walk = Some(walk);
        }
    }

    /// Gives the next members of a group their copies, as long as the hot path suffices. As in
    /// [`route`](Self::route), everything else is dealt with outside of the loop.
    #[inline(never)]
    fn send_copies(&mut self, walk: &mut Walk<V>, items: &mut Allowance) -> Stop<S::Error> {
        let Self { slots, ledger, .. } = self;
        // The group is there for as long as members are ahead.
        if walk.ahead == 0 {
            return Stop::Enough;
        }
        let mut members = slots.walk(walk.group);
        while !items.is_spent() {
            let Some(mut slot) = members.next() else { break };
            items.spend();
            if !slot.is_fast_in_group() {
                return Stop::Slow(slot.id());
            }
            let Some(original) = &walk.item else { break };
            if !ledger.hooks_mut().admit(slot.recipient(), original) {
                return Stop::NotAdmitted(slot.id());
            }
            let answer = slot.poll_ready();
            if !matches!(answer, Poll::Ready(Ok(()))) {
                return Stop::Unready(slot.id(), answer);
            }
            let Some(copy) = walk.take_copy(ledger) else { break };
            if let Err(error) = slot.send::<false>(copy, ledger.handled()) {
                return Stop::Failed(slot.id(), error);
            }
            ledger.delivered();
        }
        Stop::Enough
    }

    /// The hooks did not admit the item for a member: its copy is discarded.
    #[cold]
    fn refuse(&mut self, id: SlotId, walk: &mut Walk<V>) {
        if let Some(copy) = walk.take_copy(&mut self.ledger) {
            self.ledger.discarded(self.slots.recipient(id), copy, Discarded::NotAdmitted);
        }
    }

    /// Returns `true` if a slot is to be offered the item that is on its way through its group.
    fn is_ahead(&self, id: SlotId) -> bool {
        let Some(walk) = &self.walk else { return false };
        let Some((group, number)) = self.slots.group_of(id) else { return false };
        group == walk.group && self.slots.group(group).is_ahead(number)
    }

    /// Offers a member that leaves the item that is on its way through its group, if it was not
    /// offered it before.
    pub(super) fn offer_before_leaving(&mut self, id: SlotId) {
        if !self.is_ahead(id) {
            return;
        }
        let Some(mut walk) = self.walk.take() else { return };
        if !self.ledger.hooks_mut().admit(self.slots.recipient(id), walk.item()) {
            self.refuse(id, &mut walk);
        } else if let Some(copy) = walk.take_copy(&mut self.ledger) {
            self.slots.slot_mut(id).push_beyond(copy); // it is accepted as the others are
        }
        if walk.ahead > 0 {
            self.walk = Some(walk);
        }
    }

    /// A member is gone before it was offered the item that is on its way through its group.
    /// Returns the item if that was the last one ahead.
    pub(super) fn skip_member(&mut self, id: SlotId) -> Option<V> {
        if !self.is_ahead(id) {
            return None;
        }
        let walk = self.walk.as_mut()?;
        walk.ahead -= 1;
        if walk.ahead > 0 {
            return None;
        }
        self.walk.take()?.item
    }
}
