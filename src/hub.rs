//! What the phases of a turn share: the slots, who is awake, the account, the hooks; and how an
//! attachment ends.
//!
//! `apply` (orders), `route` (items) and `drive` (sinks) are three more views of the same [`Hub`].
//! What must hold between two calls:
//!
//! 1. `received + copies = unmatched + delivered + discarded + lost + queued`.
//! 2. A slot with something in its queue is parked, or it is listed in `ready`.
//! 3. A slot that is leaving and has nothing in its queue waits for its close, or it is listed.
//! 4. A slot whose sink took an item since its last flush is in `flushes`, unless it is being closed.
//! 5. An item that is blocked is blocked on a slot that receives. `blocked_on` names the slot of which
//!    `blocked` was said last, if `unblocked` was not: the input may be waiting for none (`None`: look
//!    again), never for another.

use core::task::Context;

use futures_sink::Sink;

use core::hash::{BuildHasher, Hash};

use crate::flush::Flushes;
use crate::hooks::{Detached, Discarded, Hooks};
use crate::order::Overflow;
use crate::ready::Ready;
use crate::slot::Farewell;
use crate::table::Table;
use crate::totals::Totals;

pub(crate) struct Hub<K, S, V, H, B> {
    pub(crate) ready: Ready,
    pub(crate) table: Table<K, S, V, B>,
    pub(crate) flushes: Flushes,
    pub(crate) hooks: H,
    pub(crate) totals: Totals,
    pub(crate) held: Option<Held<V>>,
    /// Whom the input is waiting for, as far as the hooks were told.
    pub(crate) blocked_on: Option<usize>,
    /// How an item is cloned, if a key may have many sinks.
    pub(crate) clone_item: Option<fn(&V) -> V>,
    /// The defaults of an attachment.
    pub(crate) buffer: usize,
    pub(crate) overflow: Overflow,
    /// The input is over, and the slots below this index were told.
    pub(crate) told: Option<usize>,
}

/// The item that was read and has not been routed to the end. There is at most one: while there is,
/// the input is not read.
pub(crate) enum Held<V> {
    /// Orders were ready before it: they come first.
    Overtaken(V),
    /// Its sink is not ready, its queue is full, and that sink wants it to wait.
    Blocked {
        item: V,
        /// A slot that is to get it; in a group, any one of those that are.
        on: usize,
        /// It matched no key: it is for the catch-all alone, not for its group.
        caught: bool,
    },
}

impl<K, S, V, H, B> Hub<K, S, V, H, B> {
    pub(crate) fn new(hooks: H, hasher: B) -> Self {
        Self {
            ready: Ready::new(),
            table: Table::new(hasher),
            flushes: Flushes::new(),
            hooks,
            totals: Totals::default(),
            held: None,
            blocked_on: None,
            clone_item: None,
            buffer: 0,
            overflow: Overflow::Wait,
            told: None,
        }
    }

    /// The same with other hooks, or another table.
    pub(crate) fn refit<H2, B2>(
        self,
        hooks: impl FnOnce(H) -> H2,
        table: impl FnOnce(Table<K, S, V, B>) -> Table<K, S, V, B2>,
    ) -> Hub<K, S, V, H2, B2> {
        Hub {
            ready: self.ready,
            table: table(self.table),
            flushes: self.flushes,
            hooks: hooks(self.hooks),
            totals: self.totals,
            held: self.held,
            blocked_on: self.blocked_on,
            clone_item: self.clone_item,
            buffer: self.buffer,
            overflow: self.overflow,
            told: self.told,
        }
    }

    /// The input is over.
    pub(crate) fn finish(&mut self) {
        self.told.get_or_insert(0);
    }

    /// Are there slots still to be told that the input is over?
    pub(crate) fn is_telling(&self) -> bool {
        self.told.is_some_and(|told| told < self.ready.seats())
    }

    /// The input is over, and the last sink is gone.
    pub(crate) fn is_over(&self) -> bool {
        self.told.is_some() && self.table.is_vacant()
    }

    /// Must the input not be read now? Then the sink it waits for is not ready, and has no room.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked_on.is_some_and(|slot| {
            let tenant = &self.table[slot];
            tenant.is_parked() && !tenant.has_room()
        })
    }

    /// Frees everything but the hooks.
    pub(crate) fn clear(&mut self) {
        self.table.clear();
        self.flushes.clear();
        self.ready.clear();
    }

    /// Holds an item that orders have overtaken.
    #[cold]
    pub(crate) fn overtake(&mut self, item: V) {
        self.totals.queued += 1;
        self.held = Some(Held::Overtaken(item));
    }

    /// Lets go of the item that orders have overtaken, if there is one.
    pub(crate) fn take_overtaken(&mut self) -> Option<V> {
        if !matches!(self.held, Some(Held::Overtaken(_))) {
            return None;
        }
        self.take_held()
    }

    /// Lets go of the item that is held.
    pub(crate) fn take_held(&mut self) -> Option<V> {
        let (Held::Overtaken(item) | Held::Blocked { item, .. }) = self.held.take()?;
        self.totals.queued -= 1;
        Some(item)
    }

    pub(crate) fn enqueue(&mut self, slot: usize, item: V) {
        self.totals.queued += 1;
        self.table[slot].push(item);
    }

    pub(crate) fn dequeue(&mut self, slot: usize) -> Option<V> {
        let item = self.table[slot].pop();
        self.totals.queued -= u64::from(item.is_some());
        item
    }
}

impl<K, S, V, H, B> Hub<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    #[cold]
    pub(crate) fn discard(&mut self, slot: usize, item: V, why: Discarded) {
        self.totals.discarded += 1;
        self.hooks.discarded(self.table[slot].recipient(), item, why);
    }

    #[cold]
    pub(crate) fn unmatched(&mut self, item: V) {
        self.totals.unmatched += 1;
        self.hooks.unmatched(item);
    }

    /// Is the sink of `slot` ready? Asks it unless that is known.
    pub(crate) fn ask(&mut self, slot: usize) -> Result<bool, S::Error> {
        let tenant = &mut self.table[slot];
        if tenant.is_flushing_only() && self.ready.hear(slot) {
            // Its flush was woken before this. If it says `Pending` now, that wake is not one to ask
            // again for.
            tenant.woken();
        }
        let mut cx = Context::from_waker(self.ready.waker(slot));
        tenant.ready(&mut cx)
    }

    /// Sends to a sink that is ready. False if that ended the attachment.
    pub(crate) fn send(&mut self, slot: usize, item: V) -> bool {
        let tenant = &mut self.table[slot];
        match tenant.send(item) {
            Ok(()) => {
                let new = tenant.owe_flush();
                self.sent::<false>(slot, new);
                true
            }
            Err(error) => {
                self.lost(slot, error);
                false
            }
        }
    }

    /// A sink took an item; `new` is whether it has to be listed for a flush.
    #[inline]
    pub(crate) fn sent<const MANY: bool>(&mut self, slot: usize, new: bool) {
        self.totals.delivered += 1;
        self.flushes.note::<MANY>(slot, self.totals.received, new);
    }

    /// A sink failed while it took an item.
    #[cold]
    pub(crate) fn lost(&mut self, slot: usize, error: S::Error) {
        self.totals.lost += 1;
        self.remove(slot, Detached::Failed(error), None);
    }

    /// The input starts to wait for `slot`, or goes on waiting for it.
    pub(crate) fn block(&mut self, slot: usize) {
        if self.blocked_on != Some(slot) {
            self.unblock();
            self.blocked_on = Some(slot);
            self.hooks.blocked(self.table[slot].recipient());
        }
    }

    /// The input no longer waits for whom it waited for.
    pub(crate) fn unblock(&mut self) {
        if let Some(slot) = self.blocked_on.take() {
            self.hooks.unblocked(self.table[slot].recipient());
        }
    }

    /// From now on `slot` receives nothing; what is queued for it is still sent, with its copy of the
    /// item that is held, and then it is closed. Somebody has to see to that: `attend`, or `service`.
    pub(crate) fn leave(&mut self, slot: usize, why: Farewell) {
        if let Some(item) = self.settle(slot, true) {
            self.enqueue(slot, item);
        }
        self.table.leave(slot, why);
    }

    /// Ends an attachment: the sink is dropped, and then all that waited for it is discarded. So is
    /// `item`, which was on its way to it.
    #[cold]
    pub(crate) fn remove(&mut self, slot: usize, why: Detached<S::Error>, item: Option<V>) {
        let discarded = match why {
            Detached::Failed(_) => Discarded::Failed,
            Detached::Overflowed => Discarded::Overflowed,
            _ => Discarded::Evicted,
        };
        let held = self.settle(slot, discarded == Discarded::Failed);
        let tenant = self.table.remove(slot);
        if tenant.is_listed() {
            self.flushes.vacate(slot);
        }
        let (key, tag, queue) = tenant.into_remains();
        let to = crate::hooks::Recipient { key: &key, tag };
        self.totals.queued -= queue.len() as u64;
        for item in queue.into_iter().chain(held).chain(item) {
            self.totals.discarded += 1;
            self.hooks.discarded(to, item, discarded);
        }
        self.totals.detached += 1;
        self.hooks.detached(to, why);
    }

    /// Decides what becomes of the item that is held when `slot`, which may be one that was to get
    /// it, stops receiving; to be called before it is unlinked. Tells its copy, if it has one coming:
    /// the item itself if it was the last to want it, a clone otherwise and if `wants_copy`.
    pub(crate) fn settle(&mut self, slot: usize, wants_copy: bool) -> Option<V> {
        if self.blocked_on == Some(slot) {
            self.unblock();
        }
        let Some(Held::Blocked { item, on, caught }) = &mut self.held else {
            return None;
        };
        let leaver = &self.table[slot];
        let concerned = if *caught {
            *on == slot
        } else {
            leaver.receives() && !leaver.has_refused() && leaver.key() == self.table[*on].key()
        };
        if !concerned {
            return None;
        }
        let first = if *caught { None } else { self.table.first_like(slot) };
        let wants = |&other: &usize| other != slot && !self.table[other].has_refused();
        // Unless it is the leaver's, `on` is the name of one who wants it.
        let heir =
            Some(*on).filter(|on| *on != slot).or_else(|| self.table.group(first).find(wants));
        if let Some(heir) = heir {
            *on = heir;
            let clone = self.clone_item.filter(|_| wants_copy)?;
            self.totals.copies += 1;
            return Some(clone(item));
        }
        self.clear_refusals(first);
        self.take_held()
    }

    /// The item that some of a group refused is settled: they may have the next.
    pub(crate) fn clear_refusals(&mut self, first: Option<usize>) {
        let mut next = first;
        while let Some(slot) = next {
            next = self.table.next(slot);
            self.table[slot].set_refused(false);
        }
    }
}
