//! What an order does: attach, replace, join, detach, evict.

use core::hash::{BuildHasher, Hash};

use futures_sink::Sink;

use crate::hooks::{Detached, Discarded, Hooks, Recipient};
use crate::hub::{Held, Hub};
use crate::key::sealed::{Directory, FindByKey};
use crate::lease::Wish;
use crate::order::{Attach, Order, Terms};
use crate::slot::{Farewell, Slot, Stage};

impl<K, S, V, H, B> Hub<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Applies an order. `key` finds the slot of an item that this order has overtaken, `share` is
    /// what may be spent on draining and closing.
    pub(crate) fn apply<F>(&mut self, key: &mut F, order: Order<K, S>, share: &mut usize)
    where
        F: FindByKey<V, K>,
    {
        match order {
            Order::Attach(attach) => self.attach(attach, share),
            Order::Detach(key) => {
                let count = self.detach(&key, share);
                *share = share.saturating_sub(count.saturating_sub(1));
            }
            Order::Evict(key) => {
                let count = self.evict(&key);
                *share = share.saturating_sub(count.saturating_sub(1));
            }
            Order::Finish => {
                if let Some(item) = self.take_overtaken() {
                    self.route_late(key, item);
                }
                self.finish();
            }
        }
    }

    /// Attaches a sink, on its terms.
    fn attach(&mut self, attach: Attach<K, S>, share: &mut usize) {
        self.totals.attached += 1;
        let wish = attach.claim.as_ref().map_or(Wish::Stay, |claim| claim.wish());
        if wish == Wish::Evict {
            return self.never(attach);
        }
        let Attach { key, sink, mut terms, claim } = attach;
        terms.buffer.get_or_insert(self.buffer);
        terms.overflow.get_or_insert(self.overflow);
        let taken = self.table.find(&key);
        let farewell = self.turned_away(terms, wish, taken.is_some());
        let stage = farewell.map_or(Stage::Receiving, Stage::Leaving);
        let slot = self.seat(Slot::new(key, sink, terms, claim, stage));
        self.hooks.attached(self.table[slot].recipient());
        if farewell.is_some() {
            self.table.link(slot);
            return self.attend(slot, share);
        }
        if terms.catch_all {
            // Before its backlog is moved to it, which may be all that it accepts: the one before it
            // does not come back.
            self.table.set_catch_all(slot);
        }
        match taken {
            Some(old) if self.clone_item.is_none() => self.replace(old, slot, share),
            _ => {
                self.table.link(slot);
                self.join(slot);
            }
        }
    }

    /// Why an attachment is to be closed at once, if it is.
    fn turned_away(&self, terms: Terms, wish: Wish, taken: bool) -> Option<Farewell> {
        if wish == Wish::Detach {
            Some(Farewell::Requested)
        } else if self.told.is_some() {
            Some(Farewell::Finished)
        } else if terms.limit == Some(0) {
            Some(Farewell::Limited)
        } else if terms.keep_existing && taken {
            Some(Farewell::Refused)
        } else {
            None
        }
    }

    /// The lease of this attachment was dropped before the order was applied.
    fn never(&mut self, Attach { key, sink, terms, claim: _ }: Attach<K, S>) {
        let to = Recipient { key: &key, tag: terms.tag };
        self.hooks.attached(to);
        drop(sink);
        self.totals.detached += 1;
        self.hooks.detached(to, Detached::Evicted);
    }

    /// Gives a slot its index, its waker, and its leases theirs.
    fn seat(&mut self, slot: Slot<K, S, V>) -> usize {
        let slot = self.table.insert(slot);
        self.ready.seat(slot);
        if self.flushes.inherit(slot) {
            self.table[slot].set_listed();
        }
        if let Some(claim) = self.table[slot].claim() {
            claim.register(&self.ready.nudge(slot));
            if claim.wish() != Wish::Stay {
                self.ready.list(slot);
            }
        }
        slot
    }

    /// `new` takes the key of `old`, and with it what waits for `old`.
    fn replace(&mut self, old: usize, new: usize, share: &mut usize) {
        let held = self.settle(old, true);
        let mut backlog = self.table[old].take_queue();
        self.totals.queued -= backlog.len() as u64;
        backlog.extend(held);
        self.table.leave(old, Farewell::Replaced);
        self.table.link(new);
        self.attend(old, share);

        if !self.table[new].is_limited() {
            self.totals.queued += backlog.len() as u64;
            self.table[new].set_queue(backlog);
            return self.attend(new, share);
        }
        let mut spent = false;
        for item in backlog {
            if spent {
                self.unmatched(item);
            } else {
                self.enqueue(new, item);
                spent = !self.table[new].accept();
            }
        }
        if spent {
            self.leave(new, Farewell::Limited);
        }
        self.attend(new, share);
    }

    /// Multicast: one more who wants the item that is held for its key, if it may have it.
    fn join(&mut self, slot: usize) {
        let Some(Held::Blocked { item, on, caught: false }) = &self.held else { return };
        let tenant = &self.table[slot];
        if tenant.key() != self.table[*on].key() || self.hooks.admit(tenant.recipient(), item) {
            return;
        }
        let Some(clone) = self.clone_item else { return };
        let copy = clone(item);
        self.totals.copies += 1;
        self.table[slot].set_refused(true);
        self.discard(slot, copy, Discarded::NotAdmitted);
    }

    /// Those who receive under `key` leave. How many they were.
    fn detach(&mut self, key: &K, share: &mut usize) -> usize {
        let mut count = 0;
        let mut next = self.table.find(key);
        while let Some(slot) = next {
            next = self.table.next(slot);
            count += 1;
            self.leave(slot, Farewell::Requested);
            self.attend(slot, share);
        }
        count
    }

    /// Those who receive or are leaving under `key` are gone. How many they were.
    fn evict(&mut self, key: &K) -> usize {
        let mut count = 0;
        for first in [self.table.find(key), self.table.find_leaving(key)] {
            let mut next = first;
            while let Some(slot) = next {
                next = self.table.next(slot);
                count += 1;
                self.remove(slot, Detached::Evicted, None);
            }
        }
        count
    }
}
