//! [`Slots`]: the slots, and four lists of their ids: the woken slots, the sinks to flush, the
//! slots with time-outs and, for groups that balance, the order of turns. Inserting and removing a
//! slot keeps all of them consistent.
//!
//! 1. Every slot has a waker, registered under its id.
//! 2. A slot whose sink took an item since its last flush is in the flush list, unless its sink is
//!    being closed. An entry whose slot was removed belongs to the next slot with that id.
//! 3. A slot that has a time-out is in the list of timers, and knows its index there.
//! 4. An entry in the line of a group counts if its stamp is the one that its slot has.

mod entry;
mod groups;

use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};
use core::task::Poll;

use futures_sink::Sink;

use crate::flush::Flushes;
use crate::hooks::Recipient;
use crate::id::SlotId;
use crate::key::sealed::{Directory, FindByKey};
use crate::lease::LeaseRequest;
use crate::ready::{Ready, Woken};
use crate::slot::{LeaveReason, Remains, Slot, SlotMut};
use crate::table::{NewSlot, Table};
use crate::timers::{Sweep, Timers};

pub(crate) use entry::{GroupWalk, SlotEntry};

pub(crate) struct Slots<K, S, V, B> {
    /// Dropped before the sinks, so that a sink that fires its waker when it is dropped wakes no
    /// task.
    ready: Ready,
    table: Table<K, S, V, B>,
    flushes: Flushes,
    timers: Timers,
}

impl<K, S, V, B> Slots<K, S, V, B> {
    pub(crate) fn new(hasher: B) -> Self {
        Self {
            ready: Ready::new(),
            table: Table::new(hasher),
            flushes: Flushes::new(),
            timers: Timers::new(),
        }
    }

    /// The same with another hasher; there must be no slots.
    pub(crate) fn with_hasher<B2>(self, hasher: B2) -> Slots<K, S, V, B2> {
        let Self { table, ready, flushes, timers } = self;
        Slots { table: table.with_hasher(hasher), ready, flushes, timers }
    }

    /// How many slots receive.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// How many slots are leaving.
    pub(crate) fn leaving(&self) -> usize {
        self.table.leaving()
    }

    pub(crate) fn is_vacant(&self) -> bool {
        self.table.is_vacant()
    }

    /// The ids that were ever in use are below this.
    pub(crate) fn ids(&self) -> usize {
        self.table.ids()
    }

    pub(crate) fn catch_all(&self) -> Option<SlotId> {
        self.table.catch_all()
    }

    pub(crate) fn set_catch_all(&mut self, id: SlotId) {
        self.table.set_catch_all(id);
    }

    pub(crate) fn ready(&self) -> &Ready {
        &self.ready
    }

    pub(crate) fn flushes(&self) -> &Flushes {
        &self.flushes
    }

    pub(crate) fn flushes_mut(&mut self) -> &mut Flushes {
        &mut self.flushes
    }

    pub(crate) fn get(&self, id: SlotId) -> Option<&Slot<K, S>> {
        self.table.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: SlotId) -> Option<SlotMut<'_, K, S, V>> {
        self.table.get_mut(id)
    }

    /// # Panics
    ///
    /// Panics if there is no such slot. So do the methods below that return no `Option`.
    pub(crate) fn slot(&self, id: SlotId) -> &Slot<K, S> {
        self.table.slot(id)
    }

    pub(crate) fn slot_mut(&mut self, id: SlotId) -> SlotMut<'_, K, S, V> {
        self.table.slot_mut(id)
    }

    #[inline]
    pub(crate) fn entry(&mut self, id: SlotId) -> SlotEntry<'_, K, S, V> {
        let Self { table, ready, flushes, .. } = self;
        SlotEntry::new(table.slot_mut(id), ready, flushes)
    }

    /// The recipients that receive.
    pub(crate) fn recipients(&self) -> impl Iterator<Item = Recipient<'_, K>> {
        self.table.recipients()
    }

    pub(crate) fn recipient(&self, id: SlotId) -> Recipient<'_, K> {
        self.table.recipient(id)
    }

    /// Returns `true` if an item for the slot may find a place.
    pub(crate) fn may_accept(&self, id: SlotId) -> bool {
        self.table.may_accept(id)
    }

    /// Returns `true` if a slot receives, and no other slot receives under its key.
    pub(crate) fn is_only_receiver(&self, id: SlotId) -> bool {
        self.table.is_only_receiver(id)
    }

    /// The group of a slot that shares its key, and the position there.
    pub(crate) fn group_of(&self, id: SlotId) -> Option<(usize, usize)> {
        self.table.group_of(id)
    }

    /// Frees the memory of slots that are gone, at most this number of wakers at a time. Returns
    /// `true` when all is freed.
    pub(crate) fn free(&mut self, wakers: usize) -> bool {
        let all = self.ready.free_wakers(wakers);
        if all {
            self.table.clear();
            self.flushes = Flushes::new();
            self.timers = Timers::new();
        }
        all
    }
}

/// The woken, and the flushes that are due.
impl<K, S, V, B> Slots<K, S, V, B> {
    /// Takes the list of the woken, for this turn.
    pub(crate) fn begin_turn(&mut self) {
        self.ready.awake();
        self.ready.take();
        self.timers.begin_turn();
    }

    pub(crate) fn pop_woken(&mut self) -> Option<Woken> {
        self.ready.pop()
    }

    pub(crate) fn pop_ended(&mut self) -> Option<SlotId> {
        self.ready.pop_ended()
    }

    /// Removes the next entry from the flush list that is due by the time the input will have
    /// returned `by` items.
    pub(crate) fn pop_flush(&mut self, by: u64) -> Option<SlotId> {
        self.flushes.pop_due(by)
    }

    /// What the leases of a slot request, if there is such a slot.
    pub(crate) fn lease_request(&mut self, id: SlotId) -> Option<LeaseRequest> {
        Some(self.table.get_mut(id)?.lease_request())
    }
}

/// Time.
impl<K, S, V, B> Slots<K, S, V, B> {
    /// A tick was read. Returns `true` if it is the first of this turn: others do not count.
    pub(crate) fn tick_read(&mut self) -> bool {
        self.timers.tick_read()
    }

    /// A tick is applied. `was_held` is whether the input had to wait for a sink since the last
    /// one.
    pub(crate) fn tick(&mut self, was_held: bool) {
        self.timers.tick(was_held);
        self.flushes.tick();
    }

    /// The input has nothing ready: starts to count the ticks until lingering flushes are due. An
    /// entry of the flush list whose sink needs no flush any more does not start the count.
    pub(crate) fn start_linger(&mut self) {
        /// How many such entries are removed in a turn, which takes some microseconds. They do not
        /// count towards the budget, because with a small one a tick would overtake their removal.
        /// If more sinks than this have left since their last item, a flush may come early.
        const STALE: usize = 1_024;
        for _ in 0..STALE {
            let Some(id) = self.flushes.first() else { break };
            match self.table.get_mut(id) {
                Some(slot) if slot.needs_flush() => break,
                Some(mut slot) => _ = slot.unqueue_flush(),
                None => _ = self.flushes.adopt(id),
            }
            self.flushes.remove_first();
        }
        self.flushes.start_linger();
    }

    /// Returns `true` if a tick is not applied to all slots yet.
    pub(crate) fn is_sweeping(&self) -> bool {
        self.timers.is_sweeping()
    }

    /// The next slot that the last tick applies to.
    pub(crate) fn next_timer(&mut self) -> Option<(SlotId, Sweep)> {
        self.timers.next()
    }
}

/// Finding a slot by its key.
impl<K, S, V, B> Slots<K, S, V, B>
where
    B: BuildHasher,
{
    /// The slot that receives items with this key; the first of its group, if there are several.
    pub(crate) fn find<Q>(&self, key: &Q) -> Option<SlotId>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.table.find(key)
    }

    /// The slot for an item.
    #[inline]
    pub(crate) fn find_for<F>(&mut self, key: &mut F, item: &V) -> Option<SlotEntry<'_, K, S, V>>
    where
        F: FindByKey<V, K>,
    {
        key.find_in(self, item)
    }
}

/// Coming and going.
impl<K, S, V, B> Slots<K, S, V, B>
where
    K: Hash + Eq,
    B: BuildHasher,
{
    /// The first slot that is leaving under this key.
    pub(crate) fn find_leaving(&self, key: &K) -> Option<SlotId> {
        self.table.find_leaving(key)
    }

    /// Makes room for `slots` slots.
    pub(crate) fn reserve(&mut self, slots: usize) {
        self.table.reserve(slots);
        self.ready.reserve(slots);
        self.flushes.reserve(slots);
    }

    pub(crate) fn insert(&mut self, new: NewSlot<K, S>) -> SlotId {
        let id = self.table.insert(new);
        self.ready.register(id);
        let mut slot = self.table.slot_mut(id);
        if self.flushes.adopt(id) {
            slot.set_flush_queued();
        }
        if slot.timer_index().is_some() {
            let (index, sweep) = self.timers.insert(id);
            slot.set_timer_index(index);
            slot.set_last_sweep(sweep);
        }
        if let Some(claim) = slot.claim() {
            let waker = self.ready.lease_waker(id);
            claim.register(&waker);
            if claim.request() != LeaseRequest::Stay {
                waker.wake();
            }
        }
        id
    }

    /// Lets the slot leave: it receives no new items.
    pub(crate) fn leave(&mut self, id: SlotId, reason: LeaveReason) {
        self.table.leave(id, reason);
    }

    /// Removes the slot and drops its sink.
    pub(crate) fn remove(&mut self, id: SlotId) -> Remains<K, V> {
        if let Some(index) = self.table.slot_mut(id).timer_index() {
            if let Some(moved) = self.timers.remove(index) {
                self.table.slot_mut(moved).set_timer_index(index);
            }
        }
        let removed = self.table.remove(id);
        if removed.was_flush_queued {
            self.flushes.orphan(id);
        }
        removed.remains
    }
}

impl<K, S, V, B> Directory<K> for Slots<K, S, V, B>
where
    B: BuildHasher,
{
    type Slot<'a>
        = SlotEntry<'a, K, S, V>
    where
        Self: 'a;

    #[inline]
    fn find<Q>(&mut self, key: &Q) -> Option<SlotEntry<'_, K, S, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Self { table, ready, flushes, .. } = self;
        Some(SlotEntry::new(table.find_mut(key)?, ready, flushes))
    }
}

impl<K, S, V, B> Slots<K, S, V, B>
where
    S: Sink<V> + Unpin,
{
    /// Flushes the slot whose entry was taken from the flush list. Returns `None` if it is not to
    /// be flushed: it is gone, or its sink is closing.
    #[inline]
    pub(crate) fn flush_unqueued(&mut self, id: SlotId) -> Option<Poll<Result<(), S::Error>>> {
        let Self { ready, table, flushes, .. } = self;
        let Some(mut slot) = table.get_mut(id) else {
            flushes.adopt(id);
            return None;
        };
        slot.unqueue_flush().then(|| SlotEntry::new(slot, ready, flushes).poll_flush())
    }
}
