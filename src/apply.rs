//! What an order does: attach, replace, join, detach, evict.

use core::hash::{BuildHasher, Hash};

use futures_sink::Sink;

use crate::held::Exit;
use crate::hooks::{Detached, Hooks, Recipient};
use crate::hub::Hub;
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
    /// Applies an order, and returns it if `share` did not suffice to apply all of it.
    ///
    /// `key` finds the slot of an item that this order has overtaken. `share` is what may be spent on
    /// draining and closing, and on all members of a group but the first, which was paid for with the
    /// order if it is `fresh`.
    pub(crate) fn apply<F>(
        &mut self,
        key: &mut F,
        order: Order<K, S>,
        fresh: bool,
        share: &mut usize,
    ) -> Option<Order<K, S>>
    where
        F: FindByKey<V, K>,
    {
        match order {
            Order::Attach(attach) => self.attach(attach, share),
            Order::Detach(key) => {
                if !self.detach(&key, fresh, share) {
                    return Some(Order::Detach(key));
                }
            }
            Order::Evict(key) => {
                if !self.evict(&key, fresh, share) {
                    return Some(Order::Evict(key));
                }
            }
            Order::Finish => {
                if let Some(item) = self.take_overtaken() {
                    self.route_late(key, item, share);
                }
                self.finish();
            }
        }
        None
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
            _ => self.table.link(slot),
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
            let waker = self.ready.lease_waker(slot);
            claim.register(&waker);
            if claim.wish() != Wish::Stay {
                waker.wake();
            }
        }
        slot
    }

    /// `new` takes the key of `old`, and with it what waits for `old`.
    fn replace(&mut self, old: usize, new: usize, share: &mut usize) {
        let held = self.take_owed(old, Exit::Graceful);
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

    /// Detaches those that receive under `key`. Returns `false` if some are left because `share` is
    /// spent.
    fn detach(&mut self, key: &K, mut fresh: bool, share: &mut usize) -> bool {
        while let Some(slot) = self.table.find(key) {
            if !pay(&mut fresh, share) {
                return false;
            }
            self.leave(slot, Farewell::Requested);
            self.attend(slot, share);
        }
        true
    }

    /// Evicts those that receive or are leaving under `key`. Returns `false` if some are left because
    /// `share` is spent.
    fn evict(&mut self, key: &K, mut fresh: bool, share: &mut usize) -> bool {
        while let Some(slot) = self.table.find(key).or_else(|| self.table.find_leaving(key)) {
            if !pay(&mut fresh, share) {
                return false;
            }
            self.remove(slot, Detached::Evicted, None);
        }
        true
    }
}

/// Pays for one more, unless the order has paid for it. Returns `false` if nothing is left to pay with.
fn pay(fresh: &mut bool, share: &mut usize) -> bool {
    if core::mem::take(fresh) {
        return true;
    }
    let left = share.checked_sub(1);
    *share = left.unwrap_or(0);
    left.is_some()
}
