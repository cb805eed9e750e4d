//! [`Ledger`]: counts each outcome and calls its hook, in one method. Hooks that count nothing are
//! called directly.
//!
//! Between two polls `received + copies = unmatched + delivered + discarded + lost + queued`. That
//! holds because every item that enters, by [`received`](Ledger::received) or
//! [`copied`](Ledger::copied), either waits or leaves by one of the other methods. What waits is
//! counted where it waits: see [`Router::totals`](super::Router::totals).

use core::time::Duration;

use crate::hooks::{Detached, Discarded, Hooks, Recipient};
use crate::slots::flush::{Elapsed, Handled};
use crate::totals::Totals;

pub(crate) struct Ledger<H> {
    handled: Handled,
    elapsed: Elapsed,
    /// The other counts.
    counts: Totals,
    hooks: H,
}

impl<H> Ledger<H> {
    pub(super) fn new(hooks: H) -> Self {
        Self {
            handled: Handled::default(),
            elapsed: Elapsed::default(),
            counts: Totals::default(),
            hooks,
        }
    }

    /// Changes the type of the hooks.
    pub(super) fn map_hooks<H2>(self, map: impl FnOnce(H) -> H2) -> Ledger<H2> {
        Ledger {
            handled: self.handled,
            elapsed: self.elapsed,
            counts: self.counts,
            hooks: map(self.hooks),
        }
    }

    pub(crate) fn hooks(&self) -> &H {
        &self.hooks
    }

    #[inline]
    pub(super) fn hooks_mut(&mut self) -> &mut H {
        &mut self.hooks
    }

    /// The counts, apart from what waits.
    pub(super) fn totals(&self) -> Totals {
        let Handled { items, others } = self.handled;
        Totals { received: items, copies: others - self.elapsed.work(), ..self.counts }
    }

    /// How many items the input has returned, and what else has paid for flushes.
    #[inline]
    pub(super) fn handled(&self) -> &Handled {
        &self.handled
    }

    /// An item was read.
    #[inline]
    pub(super) fn received(&mut self) {
        self.handled.items += 1;
    }

    /// An item was cloned.
    #[inline]
    pub(super) fn copied(&mut self) {
        self.handled.others += 1;
    }

    /// Time has passed.
    pub(super) fn elapse(&mut self, time: Duration) {
        self.handled.others += self.elapsed.add(time);
    }

    /// A sink took an item.
    #[inline]
    pub(super) fn delivered(&mut self) {
        self.counts.delivered += 1;
    }

    /// A sink failed while it took an item.
    pub(super) fn lost(&mut self) {
        self.counts.lost += 1;
    }

    #[cold]
    pub(super) fn unmatched<K, V, E>(&mut self, item: V)
    where
        H: Hooks<K, V, E>,
    {
        self.counts.unmatched += 1;
        self.hooks.unmatched(item);
    }

    #[cold]
    pub(super) fn discarded<K, V, E>(&mut self, to: Recipient<'_, K>, item: V, why: Discarded)
    where
        H: Hooks<K, V, E>,
    {
        self.counts.discarded += 1;
        self.hooks.discarded(to, item, why);
    }

    pub(super) fn attached<K, V, E>(&mut self, to: Recipient<'_, K>)
    where
        H: Hooks<K, V, E>,
    {
        self.counts.attached += 1;
        self.hooks.attached(to);
    }

    pub(super) fn detached<K, V, E>(&mut self, to: Recipient<'_, K>, why: Detached<E>)
    where
        H: Hooks<K, V, E>,
    {
        self.counts.detached += 1;
        self.hooks.detached(to, why);
    }
}
