//! [`Router`]: what happens to items, orders and sinks.
//!
//! An item comes in through `items`. If its key has several sinks, it goes to all of them through
//! `multicast`, or to one of them through `balance`. It stays in `held` if it has to wait. Orders
//! go through `orders`, ticks through `ticks`, and sinks that were woken, are to be flushed or
//! closed through `sinks`. All of them use the slots, the item that is held and the ledger. Between
//! two calls
//!
//! 1. the counts of the [`Ledger`] add up;
//! 2. a slot with something in its queue is parked, or it is in the ready list;
//! 3. a slot that is leaving with an empty queue waits for its close, or is in the ready list;
//! 4. a slot that is owed a copy of the held item is receiving.

mod balance;
mod held;
mod items;
mod multicast;
mod orders;
mod sinks;
mod ticks;

use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};
use core::task::Waker;

use crate::hooks::Recipient;
use crate::ledger::Ledger;
use crate::order::Overflow;
use crate::ready::ORDERS;
use crate::slots::Slots;
use crate::totals::Totals;

use held::Holding;

pub(crate) struct Router<K, S, V, H, B> {
    slots: Slots<K, S, V, B>,
    holding: Holding<V>,
    ledger: Ledger<H>,
    defaults: Defaults,
    sharing: Sharing<V>,
    /// Set when the input is over: the slots with ids below this have begun to leave.
    close_cursor: Option<usize>,
}

/// What a further attachment under a key does.
enum Sharing<V> {
    /// It replaces the one before.
    None,
    /// It joins, and each gets a clone of an item.
    Multicast(fn(&V) -> V),
    /// It joins, and one of them gets an item.
    Balance,
}

/// The terms of attachments that do not set their own.
struct Defaults {
    buffer: usize,
    overflow: Overflow,
    stall_timeout: u32,
    idle_timeout: u32,
}

/// A summary for `Debug`.
pub(crate) struct Overview {
    pub(crate) receiving: usize,
    pub(crate) leaving: usize,
    pub(crate) is_holding: bool,
    pub(crate) is_blocked: bool,
    pub(crate) is_finished: bool,
}

/// Settings.
impl<K, S, V, H, B> Router<K, S, V, H, B> {
    pub(crate) fn new(hooks: H, hasher: B) -> Self {
        Self {
            slots: Slots::new(hasher),
            holding: Holding::new(),
            ledger: Ledger::new(hooks),
            defaults: Defaults {
                buffer: 0,
                overflow: Overflow::Wait,
                stall_timeout: 0,
                idle_timeout: 0,
            },
            sharing: Sharing::None,
            close_cursor: None,
        }
    }

    /// The same with other hooks, or other slots.
    pub(crate) fn map_parts<H2, B2>(
        self,
        hooks: impl FnOnce(H) -> H2,
        slots: impl FnOnce(Slots<K, S, V, B>) -> Slots<K, S, V, B2>,
    ) -> Router<K, S, V, H2, B2> {
        Router {
            slots: slots(self.slots),
            holding: self.holding,
            ledger: self.ledger.map_hooks(hooks),
            defaults: self.defaults,
            sharing: self.sharing,
            close_cursor: self.close_cursor,
        }
    }

    pub(crate) fn set_buffer(&mut self, items: usize) {
        self.defaults.buffer = items;
    }

    pub(crate) fn set_overflow(&mut self, overflow: Overflow) {
        self.defaults.overflow = overflow;
    }

    pub(crate) fn set_stall_timeout(&mut self, ticks: u32) {
        self.defaults.stall_timeout = ticks;
    }

    pub(crate) fn set_idle_timeout(&mut self, ticks: u32) {
        self.defaults.idle_timeout = ticks;
    }

    pub(crate) fn set_linger(&mut self, ticks: u32) {
        self.slots.flushes_mut().set_linger(ticks);
    }

    pub(crate) fn set_flush_window(&mut self, items: usize) {
        self.slots.flushes_mut().set_window(items);
    }

    pub(crate) fn set_multicast(&mut self, clone_item: fn(&V) -> V) {
        self.sharing = Sharing::Multicast(clone_item);
    }

    pub(crate) fn set_balance(&mut self) {
        self.sharing = Sharing::Balance;
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
    #[inline]
    pub(crate) fn totals(&self) -> Totals {
        self.ledger.totals()
    }

    /// How many attachments receive.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns `true` if there is no attachment, not even one that is leaving.
    pub(crate) fn is_vacant(&self) -> bool {
        self.slots.is_vacant()
    }

    pub(crate) fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        B: BuildHasher,
    {
        self.slots.find(key).is_some()
    }

    pub(crate) fn blocked_on(&self) -> Option<Recipient<'_, K>> {
        Some(self.slots.recipient(self.holding.blocked_on()?))
    }

    pub(crate) fn recipients(&self) -> impl Iterator<Item = Recipient<'_, K>> {
        self.slots.recipients(true)
    }

    pub(crate) fn hooks(&self) -> &H {
        self.ledger.hooks()
    }

    pub(crate) fn hooks_mut(&mut self) -> &mut H {
        self.ledger.hooks_mut()
    }

    pub(crate) fn overview(&self) -> Overview {
        Overview {
            receiving: self.slots.len(),
            leaving: self.slots.leaving(),
            is_holding: !self.holding.is_empty(),
            is_blocked: self.holding.blocked_on().is_some(),
            is_finished: self.close_cursor.is_some(),
        }
    }
}

/// Pending work.
impl<K, S, V, H, B> Router<K, S, V, H, B> {
    pub(crate) fn begin_turn(&mut self) {
        let ready = self.slots.ready_mut();
        ready.awake();
        ready.take();
        self.slots.timers_mut().begin_turn();
        self.holding.begin_turn();
        self.ledger.begin_turn();
    }

    /// Returns `true` if the orders stream asked to be polled.
    pub(crate) fn has_orders(&self) -> bool {
        self.slots.ready().signals() & ORDERS != 0
    }

    /// The signals that are raised, of `ORDERS` and `LEASES`.
    #[inline]
    pub(crate) fn signals(&self) -> u8 {
        self.slots.ready().signals()
    }

    /// Lowers the signal `ORDERS`, before the orders stream is polled.
    pub(crate) fn lower_orders(&self) {
        self.slots.ready().lower_orders();
    }

    pub(crate) fn orders_waker(&self) -> &Waker {
        self.slots.ready().orders_waker()
    }

    pub(crate) fn order_read(&mut self) {
        self.ledger.operated(1);
    }

    /// The task is about to sleep: wakes it if anything has happened since the turn began.
    pub(crate) fn sleep(&self, task: &Waker) {
        self.slots.ready().sleep(task);
    }

    /// Returns `true` if a lease has ended, and its attachment has not.
    pub(crate) fn has_ended_leases(&self) -> bool {
        self.slots.ready().has_ended()
    }

    /// Returns `true` if sinks have something to do. `budget` limits how many items ahead a flush
    /// counts as due.
    pub(crate) fn has_sinks(&self, budget: usize) -> bool {
        self.slots.ready().any()
            || self.has_due_flushes(budget)
            || self.is_closing()
            || self.is_sweeping()
    }

    /// Returns `true` if flushes are due. `budget` limits how many items ahead a flush counts as
    /// due.
    pub(crate) fn has_due_flushes(&self, budget: usize) -> bool {
        self.slots.flushes().is_due(self.flush_horizon(budget))
    }

    /// Returns `true` if an item can be read, or the one that is held routed further. While orders
    /// are unread, this is so only for a held item whose key was already looked up.
    pub(crate) fn has_items(&self, orders_read: bool) -> bool {
        if self.holding.is_empty() {
            orders_read && !self.is_finished()
        } else if self.holding.is_overtaken() {
            orders_read
        } else {
            self.can_release()
        }
    }

    /// Returns `true` if the input is over and some slots have not begun to leave.
    pub(crate) fn is_closing(&self) -> bool {
        self.close_cursor.is_some_and(|cursor| cursor < self.slots.ids())
    }

    /// Returns `true` if the input is over, so that it is not to be read.
    pub(crate) fn is_finished(&self) -> bool {
        self.close_cursor.is_some()
    }

    /// Returns `true` if the input is over and the last sink is gone.
    pub(crate) fn is_done(&self) -> bool {
        self.is_finished() && self.slots.is_vacant()
    }

    /// Returns `true` if there is work that no waker will announce, and that [`sleep`](Self::sleep)
    /// does not find in the lists of woken slots and ended leases. `input_is_dry` is whether the
    /// input will wake the task when it has an item.
    pub(crate) fn has_work(&self, input_is_dry: bool) -> bool {
        self.slots.flushes().has_work()
            || self.is_closing()
            || self.is_sweeping()
            || self.is_done() // but not freed yet
            || self.can_read() && !(input_is_dry && self.holding.is_empty())
    }

    /// Returns `true` if the input may be read, or the item that is held routed further.
    pub(crate) fn can_read(&self) -> bool {
        if self.holding.is_empty() { !self.is_finished() } else { self.can_release() }
    }

    /// Frees the tables of the slots, when all slots are gone. Returns `true` when that is done.
    pub(crate) fn free(&mut self) -> bool {
        /// How many wakers are freed in a turn, which takes about half a millisecond. To free those
        /// of a million sinks at once would take 30 ms.
        const WAKERS: usize = 16_384;
        self.slots.free(WAKERS)
    }

    /// Sinks are flushed now if their flush is due by the time the input will have returned this
    /// number of items.
    fn flush_horizon(&self, budget: usize) -> u64 {
        let ahead = self.slots.flushes().look_ahead(budget);
        self.ledger.count_received().saturating_add(ahead)
    }
}
