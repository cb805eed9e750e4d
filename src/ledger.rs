//! [`Ledger`]: counts each outcome and calls its hook, in one method.
//!
//! Between two polls `received + copies = unmatched + delivered + discarded + lost + queued`. That
//! holds because every item that enters, by [`received`](Ledger::received) or
//! [`copied`](Ledger::copied), is either counted as waiting or leaves by one of the other methods.

use crate::hooks::{Detached, Discarded, Hooks, Recipient};
use crate::totals::Totals;

pub(crate) struct Ledger<H> {
    totals: Totals,
    hooks: H,
    /// How many orders were read, and how many flushes and closes have completed.
    others: u64,
    /// What [`operations`](Self::operations) was when the turn began.
    before_turn: u64,
}

impl<H> Ledger<H> {
    pub(crate) fn new(hooks: H) -> Self {
        Self { totals: Totals::default(), hooks, others: 0, before_turn: 0 }
    }

    /// The same with other hooks.
    pub(crate) fn map_hooks<H2>(self, map: impl FnOnce(H) -> H2) -> Ledger<H2> {
        let Self { totals, hooks, others, before_turn } = self;
        Ledger { totals, hooks: map(hooks), others, before_turn }
    }

    pub(crate) fn hooks(&self) -> &H {
        &self.hooks
    }

    pub(crate) fn hooks_mut(&mut self) -> &mut H {
        &mut self.hooks
    }

    #[inline]
    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    /// How many items the input has returned.
    #[inline]
    pub(crate) fn count_received(&self) -> u64 {
        self.totals.received
    }

    /// The number of operations so far: items read and sent, orders read, flushes and closes
    /// completed.
    pub(crate) fn operations(&self) -> u64 {
        self.totals.received + self.totals.delivered + self.others
    }

    pub(crate) fn operations_in_turn(&self) -> u64 {
        self.operations() - self.before_turn
    }

    pub(crate) fn begin_turn(&mut self) {
        self.before_turn = self.operations();
    }

    /// Counts orders that were read, or flushes or closes that have completed.
    #[inline]
    pub(crate) fn operated(&mut self, operations: u64) {
        self.others += operations;
    }

    /// An item was read.
    #[inline]
    pub(crate) fn received(&mut self) {
        self.totals.received += 1;
    }

    /// An item was cloned.
    #[inline]
    pub(crate) fn copied(&mut self) {
        self.totals.copies += 1;
    }

    /// A sink took an item.
    #[inline]
    pub(crate) fn delivered(&mut self) {
        self.totals.delivered += 1;
    }

    /// A sink failed while it took an item.
    pub(crate) fn lost(&mut self) {
        self.totals.lost += 1;
    }

    /// `items` wait now, in a queue or held.
    pub(crate) fn queued(&mut self, items: usize) {
        self.totals.queued += items as u64;
    }

    /// `items` no longer wait.
    pub(crate) fn unqueued(&mut self, items: usize) {
        self.totals.queued -= items as u64;
    }

    #[inline]
    pub(crate) fn admit<K, V, E>(&mut self, to: Recipient<'_, K>, item: &V) -> bool
    where
        H: Hooks<K, V, E>,
    {
        self.hooks.admit(to, item)
    }

    #[cold]
    pub(crate) fn unmatched<K, V, E>(&mut self, item: V)
    where
        H: Hooks<K, V, E>,
    {
        self.totals.unmatched += 1;
        self.hooks.unmatched(item);
    }

    #[cold]
    pub(crate) fn discarded<K, V, E>(&mut self, to: Recipient<'_, K>, item: V, why: Discarded)
    where
        H: Hooks<K, V, E>,
    {
        self.totals.discarded += 1;
        self.hooks.discarded(to, item, why);
    }

    pub(crate) fn attached<K, V, E>(&mut self, to: Recipient<'_, K>)
    where
        H: Hooks<K, V, E>,
    {
        self.totals.attached += 1;
        self.hooks.attached(to);
    }

    pub(crate) fn detached<K, V, E>(&mut self, to: Recipient<'_, K>, why: Detached<E>)
    where
        H: Hooks<K, V, E>,
    {
        self.totals.detached += 1;
        self.hooks.detached(to, why);
    }

    pub(crate) fn key_attached<K, V, E>(&mut self, key: &K)
    where
        H: Hooks<K, V, E>,
    {
        self.hooks.key_attached(key);
    }

    pub(crate) fn key_detached<K, V, E>(&mut self, key: &K)
    where
        H: Hooks<K, V, E>,
    {
        self.hooks.key_detached(key);
    }

    pub(crate) fn supersedes<K, V, E>(&mut self, to: Recipient<'_, K>, waiting: &V, new: &V) -> bool
    where
        H: Hooks<K, V, E>,
    {
        self.hooks.supersedes(to, waiting, new)
    }

    pub(crate) fn blocked<K, V, E>(&mut self, on: Recipient<'_, K>)
    where
        H: Hooks<K, V, E>,
    {
        self.hooks.blocked(on);
    }

    pub(crate) fn unblocked<K, V, E>(&mut self, on: Recipient<'_, K>)
    where
        H: Hooks<K, V, E>,
    {
        self.hooks.unblocked(on);
    }
}
