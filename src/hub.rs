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
//! 5. Who is owed a copy of the item that is held receives. `blocked_on` names the slot of which `blocked`
//!    was said last, if `unblocked` was not: it is one of these.

use futures_sink::Sink;

use core::hash::{BuildHasher, Hash};

use crate::flush::Flushes;
use crate::held::{Exit, Held, Yielding};
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
    /// The sink that yielded when it was polled for the item that is held.
    pub(crate) yielding: Option<Yielding>,
    /// The slot whose sink was polled again in this turn because it had yielded.
    pub(crate) retried: Option<usize>,
    /// How many orders were read, and how many flushes and closes have completed.
    pub(crate) others: u64,
    /// What [`operations`](Self::operations) was when the turn began.
    pub(crate) operations_before: u64,
    /// How an item is cloned, if a key may have many sinks.
    pub(crate) clone_item: Option<fn(&V) -> V>,
    /// The defaults of an attachment.
    pub(crate) buffer: usize,
    pub(crate) overflow: Overflow,
    /// The input is over, and the slots below this index were told.
    pub(crate) told: Option<usize>,
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
            yielding: None,
            retried: None,
            others: 0,
            operations_before: 0,
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
            yielding: self.yielding,
            retried: self.retried,
            others: self.others,
            operations_before: self.operations_before,
            clone_item: self.clone_item,
            buffer: self.buffer,
            overflow: self.overflow,
            told: self.told,
        }
    }

    /// How much the demux has done: items read, items sent, orders read, flushes and closes completed.
    pub(crate) fn operations(&self) -> u64 {
        self.totals.received + self.totals.delivered + self.others
    }

    /// A turn begins.
    pub(crate) fn begin(&mut self) {
        self.ready.awake();
        self.ready.take();
        self.retried = None;
        self.operations_before = self.operations();
    }

    /// Are there slots still to be told that the input is over?
    pub(crate) fn is_telling(&self) -> bool {
        self.told.is_some_and(|told| told < self.ready.seats())
    }

    /// The input is over, and the last sink is gone.
    pub(crate) fn is_over(&self) -> bool {
        self.told.is_some() && self.table.is_vacant()
    }

    /// Frees what grew with the number of slots; `ready` was released already.
    pub(crate) fn clear(&mut self) {
        self.table.clear();
        self.flushes.clear();
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

    /// Sends to a sink that is ready. False if that ended the attachment.
    pub(crate) fn send(&mut self, slot: usize, item: V) -> bool {
        let tenant = &mut self.table[slot];
        match tenant.start_send(item) {
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

    /// The input is over: it is not waited for, and what is held goes to its recipients as they leave.
    pub(crate) fn finish(&mut self) {
        self.told.get_or_insert(0);
        self.unblock();
    }

    /// From now on `slot` receives nothing; what is queued for it is still sent, with its copy of the
    /// item that is held, and then it is closed. Somebody has to see to that: `attend`, or `service`.
    pub(crate) fn leave(&mut self, slot: usize, why: Farewell) {
        if let Some(item) = self.take_owed(slot, Exit::Graceful) {
            self.enqueue(slot, item);
        }
        self.table.leave(slot, why);
    }

    /// Ends an attachment: the sink is dropped, and then all that waited for it is discarded. So is
    /// `item`, which was on its way to it.
    #[cold]
    pub(crate) fn remove(&mut self, slot: usize, why: Detached<S::Error>, item: Option<V>) {
        let (discarded, exit) = match why {
            Detached::Failed(_) => (Discarded::Failed, Exit::Broken),
            Detached::Overflowed => (Discarded::Overflowed, Exit::Broken),
            _ => (Discarded::Evicted, Exit::Evicted),
        };
        let held = self.take_owed(slot, exit);
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
}
