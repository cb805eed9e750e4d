//! [`Router`]: what happens to items, orders and sinks.
//!
//! An item comes in through `items`, and goes to its sink or into the queue of its slot: nowhere
//! else. If the queue is full, `beyond` decides. If its key has several sinks, the item goes to all
//! of them through `multicast`, or to one of them through `balance`. Orders go through `orders`,
//! ticks through `ticks`, sinks that were woken through `sinks`, and those that are to be flushed
//! through `flushes`. An attachment ends in `endings`. All of them use the slots and the ledger.
//! Between two calls
//!
//! 1. the counts of the [`Ledger`] add up;
//! 2. a slot with something in its queue is parked, in doubt or in the ready list;
//! 3. a slot that is leaving with an empty queue waits for its close, or is in the ready list.

mod balance;
mod beyond;
pub(crate) mod budget;
mod endings;
mod flushes;
mod items;
mod ledger;
mod multicast;
mod orders;
mod sinks;
mod ticks;

use core::hash::{BuildHasher, Hash};

use self::ledger::Ledger;
use crate::hooks::Recipient;
use crate::order::Terms;
use crate::slots::Slots;
use crate::slots::flush::Flushes;
use crate::slots::ready::Ready;
use crate::totals::Totals;

use beyond::Beyond;
use multicast::Walk;

pub(crate) use items::{IfUnknown, SlowPath, Unrouted};

pub(crate) struct Router<K, S, V, H, B> {
    slots: Slots<K, S, V, B>,
    beyond: Beyond,
    /// An item that orders have overtaken: they are applied before its slot is looked up. While
    /// there is one, the input is not read.
    overtaken: Option<Unrouted<K, V>>,
    /// An item on its way through a group. While there is one, the input is not read.
    walk: Option<Walk<V>>,
    ledger: Ledger<H>,
    defaults: Terms,
    sharing: Sharing<V>,
    /// Set when the input is over.
    ending: Option<Ending>,
}

/// What a further attachment under a key does.
pub(crate) enum Sharing<V> {
    /// It replaces the one before.
    None,
    /// It joins, and each gets a clone of an item.
    Multicast(fn(&V) -> V),
    /// It joins, and one of them gets an item.
    Balance,
}

/// How the slots end when the input is over.
#[derive(Clone, Copy)]
struct Ending {
    /// The slots with ids below this have begun to leave.
    cursor: usize,
    /// They are evicted instead.
    aborts: bool,
}

/// Settings.
impl<K, S, V, H, B> Router<K, S, V, H, B> {
    pub(crate) fn new(hooks: H, hasher: B) -> Self {
        Self {
            slots: Slots::new(hasher),
            beyond: Beyond::default(),
            overtaken: None,
            walk: None,
            ledger: Ledger::new(hooks),
            defaults: Terms::default(),
            sharing: Sharing::None,
            ending: None,
        }
    }

    /// Changes the type of the hooks, or of the slots.
    pub(crate) fn map_parts<H2, B2>(
        self,
        hooks: impl FnOnce(H) -> H2,
        slots: impl FnOnce(Slots<K, S, V, B>) -> Slots<K, S, V, B2>,
    ) -> Router<K, S, V, H2, B2> {
        Router {
            slots: slots(self.slots),
            beyond: self.beyond,
            overtaken: self.overtaken,
            walk: self.walk,
            ledger: self.ledger.map_hooks(hooks),
            defaults: self.defaults,
            sharing: self.sharing,
            ending: self.ending,
        }
    }

    /// The terms of attachments that do not set their own.
    pub(crate) fn defaults_mut(&mut self) -> &mut Terms {
        &mut self.defaults
    }

    /// The flush list, for its settings.
    pub(crate) fn flushes_mut(&mut self) -> &mut Flushes {
        self.slots.flushes_mut()
    }

    pub(crate) fn set_sharing(&mut self, sharing: Sharing<V>) {
        self.sharing = sharing;
    }

    pub(crate) fn reserve(&mut self, attachments: usize)
    where
        K: Hash + Eq,
        B: BuildHasher,
    {
        self.slots.reserve(attachments);
    }
}

/// Queries.
impl<K, S, V, H, B> Router<K, S, V, H, B> {
    /// The attachments. They change only through the router.
    pub(crate) fn slots(&self) -> &Slots<K, S, V, B> {
        &self.slots
    }

    /// The counts. An item waits in a queue; or in the router, if it is not routed yet.
    pub(crate) fn totals(&self) -> Totals {
        let unrouted = u64::from(self.overtaken.is_some()) + u64::from(self.walk.is_some());
        Totals { queued: self.slots.queues().items() + unrouted, ..self.ledger.totals() }
    }

    pub(crate) fn hooks(&self) -> &H {
        self.ledger.hooks()
    }

    pub(crate) fn hooks_mut(&mut self) -> &mut H {
        self.ledger.hooks_mut()
    }

    pub(crate) fn ready(&self) -> &Ready {
        self.slots.ready()
    }

    pub(crate) fn blocked_on(&self) -> Option<Recipient<'_, K>> {
        let id = self.beyond.blocked_on()?;
        // A `Hash` that panics while the table makes room may have lost the slot.
        self.slots.get(id).map(|_| self.slots.recipient(id))
    }
}

/// Pending work.
impl<K, S, V, H, B> Router<K, S, V, H, B> {
    pub(crate) fn begin_turn(&mut self) {
        self.slots.begin_turn();
        self.beyond.begin_turn();
    }

    /// Returns `true` if items may be routed: the input is not over, no sink holds it up, and no
    /// item is on its way through a group.
    #[inline]
    pub(crate) fn may_route(&self) -> bool {
        self.slots.queues().is_open() && self.walk.is_none() && self.ending.is_none()
    }

    /// Returns `true` if a sink is in doubt.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.slots.queues().is_in_doubt()
    }

    /// Returns `true` if slots are to leave because the input is over. Items on their way come
    /// first.
    pub(crate) fn is_closing(&self) -> bool {
        let Some(Ending { cursor, aborts }) = self.ending else { return false };
        let is_routed = !self.is_in_doubt() && self.walk.is_none();
        cursor < self.slots.ids() && (aborts || is_routed)
    }

    /// Returns `true` if the input is over, so that it is not to be read.
    pub(crate) fn is_finished(&self) -> bool {
        self.ending.is_some()
    }

    /// Returns `true` if the input is over and the last sink is gone.
    pub(crate) fn is_done(&self) -> bool {
        self.is_finished() && self.slots.is_vacant()
    }

    /// Returns `true` if there is work that no waker will announce, apart from reading the input,
    /// woken slots and ended leases.
    pub(crate) fn has_work(&self) -> bool {
        self.is_in_doubt()
            || self.walk.is_some()
            || self.slots.flushes().has_work()
            || self.must_flush() // even while flushes wait for a tick
            || self.is_closing()
            || self.slots.is_sweeping()
            || self.is_done() // but not freed yet
            || self.overtaken.is_some() && self.may_route()
    }

    /// Frees the tables of the slots, when all slots are gone. Returns `true` when that is done.
    pub(crate) fn free(&mut self) -> bool {
        /// How many wakers are freed in a turn, which takes about half a millisecond. To free those
        /// of a million sinks at once would take 30 ms.
        const WAKERS: usize = 16_384;
        self.slots.free(WAKERS)
    }
}
