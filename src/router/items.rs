//! Where an item goes: to its sink, into its queue, or to the hooks.
//!
//! [`route`](Router::route) is the hot path. One test finds out whether anything about a slot is
//! unusual; cold functions deal with that.

use core::hash::{BuildHasher, Hash};
use core::task::Poll;

use futures_sink::Sink;

use super::budget::Allowance;
use super::{Router, Sharing};
use crate::hooks::{Detached, Discarded, Hooks};
use crate::key::sealed::{AttachOnDemand, FindByKey};
use crate::slots::id::SlotId;

/// An item whose slot is to be looked up, again or for the first time.
pub(crate) struct Unrouted<K, V> {
    pub(super) item: V,
    /// Its key, if the key function has returned that and it is not a part of the item.
    key: Option<K>,
}

impl<K, V> Unrouted<K, V> {
    /// An item whose key was not computed.
    pub(crate) fn new(item: V) -> Self {
        Self { item, key: None }
    }
}

/// What happens to an item whose key is not attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfUnknown {
    /// A sink is attached on demand, or the catch-all gets it, or it is unmatched.
    Route,
    /// It waits as if an order had overtaken it: there may be an order that attaches its key.
    Wait,
}

/// Why an item cannot be sent on the hot path.
pub(crate) enum SlowPath<K, V, E> {
    /// No slot has its key.
    Unknown(Unrouted<K, V>),
    /// Its slot is known to be busy, or limited, or one of several, or it is leaving.
    Slow(SlotId, Unrouted<K, V>),
    /// The hooks did not admit it.
    NotAdmitted(SlotId, V),
    /// Its sink has just answered that it is not ready, or failed.
    Unready(SlotId, V, Poll<Result<(), E>>),
    /// Its sink failed in `start_send`.
    Failed(SlotId, E),
}

impl<K, S, V, H, B> Router<K, S, V, H, B> {
    /// An item was read.
    #[inline]
    pub(crate) fn received(&mut self) {
        self.ledger.received();
    }

    /// Keeps an item that orders have overtaken.
    #[cold]
    pub(crate) fn overtake(&mut self, item: Unrouted<K, V>) {
        self.overtaken = Some(item);
    }

    /// Returns `true` if there is an item that orders have overtaken.
    #[inline]
    pub(crate) fn has_overtaken(&self) -> bool {
        self.overtaken.is_some()
    }
}

impl<K, S, V, H, B> Router<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Routes an item to the sink of its key, if nothing is in the way.
    #[expect(clippy::inline_always, reason = "it is the body of the hot loop")]
    #[inline(always)]
    pub(crate) fn route<const BRANCHLESS: bool, F>(
        &mut self,
        key: &mut F,
        item: V,
    ) -> Result<(), SlowPath<K, V, S::Error>>
    where
        F: FindByKey<V, K> + AttachOnDemand<V, K, S>,
    {
        let Self { slots, ledger, .. } = self;
        let (slot, key) = key.find_in(slots, &item);
        let Some(mut slot) = slot else {
            return Err(SlowPath::Unknown(Unrouted { item, key }));
        };
        if !slot.is_fast() {
            return Err(SlowPath::Slow(slot.id(), Unrouted { item, key }));
        }
        drop(key);
        if !ledger.hooks_mut().admit(slot.recipient(), &item) {
            return Err(SlowPath::NotAdmitted(slot.id(), item));
        }
        let answer = slot.poll_ready();
        if !matches!(answer, Poll::Ready(Ok(()))) {
            return Err(SlowPath::Unready(slot.id(), item, answer));
        }
        if let Err(error) = slot.send::<BRANCHLESS>(item, ledger.handled()) {
            return Err(SlowPath::Failed(slot.id(), error));
        }
        ledger.delivered();
        Ok(())
    }

    /// Routes an item that cannot be sent on the hot path. `items` is what may be spent on the
    /// members of its group except the first.
    ///
    #[cold]
    #[inline(never)]
    pub(crate) fn route_slow<F>(
        &mut self,
        key: &mut F,
        path: SlowPath<K, V, S::Error>,
        if_unknown: IfUnknown,
        items: &mut Allowance,
    ) where
        F: FindByKey<V, K> + AttachOnDemand<V, K, S>,
    {
        let path = match self.resolve(path) {
            SlowPath::Unknown(unrouted) if if_unknown == IfUnknown::Wait => {
                return self.overtake(unrouted);
            }
            SlowPath::Unknown(unrouted) if !self.is_finished() => {
                match key.attach_for(&unrouted.item) {
                    None => SlowPath::Unknown(unrouted),
                    Some(attach) => {
                        // An item that was read with the last of the allowance is served, too.
                        items.spend();
                        self.attach(attach, items);
                        self.look_up(key, unrouted)
                    }
                }
            }
            path => path,
        };
        self.route_known(path, items);
    }

    /// Looks for the slot of an item, away from the hot path.
    fn look_up<F>(
        &mut self,
        key: &mut F,
        Unrouted { item, key: known }: Unrouted<K, V>,
    ) -> SlowPath<K, V, S::Error>
    where
        F: FindByKey<V, K>,
    {
        let (id, key) = if let Some(known) = known {
            (self.slots.receiver(&known), Some(known))
        } else {
            let (slot, key) = key.find_in(&mut self.slots, &item);
            (slot.map(|slot| slot.id()), key)
        };
        let unrouted = Unrouted { item, key };
        match id {
            Some(id) => self.resolve(SlowPath::Slow(id, unrouted)),
            None => SlowPath::Unknown(unrouted),
        }
    }

    /// The slot that was found for an item may be leaving, or another member of a group: looks for
    /// the one that receives.
    fn resolve(&self, path: SlowPath<K, V, S::Error>) -> SlowPath<K, V, S::Error> {
        match path {
            SlowPath::Slow(id, item) => match self.slots.receiver_beside(id) {
                Some(head) => SlowPath::Slow(head, item),
                None => SlowPath::Unknown(item),
            },
            path => path,
        }
    }

    /// Routes an item away from the hot path. Attaches no sink if no slot has its key.
    fn route_known(&mut self, path: SlowPath<K, V, S::Error>, items: &mut Allowance) {
        match path {
            SlowPath::Unknown(Unrouted { item, .. }) => match self.slots.catch_all() {
                Some(id) => self.route_to_one(id, item, items),
                None => self.ledger.unmatched(item),
            },
            SlowPath::Slow(id, Unrouted { item, .. }) => match self.sharing {
                Sharing::Multicast(clone) => self.route_to_all(id, item, clone, items),
                Sharing::Balance => self.route_to_one(id, item, items),
                Sharing::None => self.route_to(id, item, items),
            },
            SlowPath::Unready(id, item, answer) => self.send_or_queue(id, item, answer, items),
            SlowPath::NotAdmitted(id, item) => {
                self.ledger.discarded(self.slots.recipient(id), item, Discarded::NotAdmitted);
            }
            SlowPath::Failed(id, error) => self.lose(id, error),
        }
    }

    /// Routes the item that orders have overtaken, if there is one.
    pub(crate) fn route_overtaken<F>(
        &mut self,
        key: &mut F,
        if_unknown: IfUnknown,
        items: &mut Allowance,
    ) where
        F: FindByKey<V, K> + AttachOnDemand<V, K, S>,
    {
        if let Some(unrouted) = self.overtaken.take() {
            let path = self.look_up(key, unrouted);
            self.route_slow(key, path, if_unknown, items);
        }
    }

    /// Routes an item to a slot, or to one of those that share its queue. This is where that is
    /// decided: what follows is for a slot with a queue of its own.
    fn route_to_one(&mut self, id: SlotId, item: V, items: &mut Allowance) {
        match self.slots.shared_group(id) {
            Some(group) => self.balance(group, item, items),
            None => self.route_to(id, item, items),
        }
    }

    /// Routes an item to the one slot that it is for.
    pub(super) fn route_to(&mut self, id: SlotId, item: V, items: &mut Allowance) {
        if self.ledger.hooks_mut().admit(self.slots.recipient(id), &item) {
            self.offer(id, item, items);
        } else {
            self.ledger.discarded(self.slots.recipient(id), item, Discarded::NotAdmitted);
        }
    }

    /// Sends an item that was admitted to its slot, or queues it. `items` pays for what a policy
    /// does.
    pub(super) fn offer(&mut self, id: SlotId, item: V, items: &mut Allowance) {
        let mut slot = self.slots.slot_mut(id);
        if slot.is_queued() || slot.is_parked() {
            return self.enqueue(id, item, items);
        }
        let answer = slot.poll_ready();
        self.send_or_queue(id, item, answer, items);
    }

    /// Sends an item to a sink that has just answered that it is ready; or queues it, or removes
    /// the slot, as the answer says.
    pub(super) fn send_or_queue(
        &mut self,
        id: SlotId,
        item: V,
        answer: Poll<Result<(), S::Error>>,
        items: &mut Allowance,
    ) {
        match answer {
            Poll::Ready(Ok(())) => self.send(id, item),
            Poll::Ready(Err(error)) => self.remove_with(id, Detached::Failed(error), Some(item)),
            Poll::Pending => {
                self.slots.slot_mut(id).park();
                self.enqueue(id, item, items);
            }
        }
    }

    /// Sends an item to a sink that is ready.
    fn send(&mut self, id: SlotId, item: V) {
        let now = *self.ledger.handled();
        let mut slot = self.slots.slot_mut(id);
        match slot.send::<false>(item, &now) {
            Ok(()) => {
                let may_take_more = slot.accept();
                self.ledger.delivered();
                if !may_take_more {
                    self.reach_limit(id);
                }
            }
            Err(error) => self.lose(id, error),
        }
    }
}
