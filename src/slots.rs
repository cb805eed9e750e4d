//! The slots, with what is known of them elsewhere: who was woken, and whose flush is due.
//! Inserting and removing a slot keeps the three in step, and a sink is polled here, with its own
//! waker.
//!
//! 1. Every slot has a waker, registered under its id.
//! 2. A slot whose sink took an item since its last flush is in the flush list, unless its sink is
//!    being closed. An entry whose slot was removed belongs to the next slot with that id.

use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};
use core::ops::{Deref, DerefMut};
use core::task::{Context, Poll};

use futures_sink::Sink;

use crate::flush::Flushes;
use crate::hooks::Recipient;
use crate::id::SlotId;
use crate::key::sealed::{Directory, FindByKey};
use crate::lease::LeaseRequest;
use crate::ready::{Ready, Woken};
use crate::slot::{LeaveReason, Remains, Slot, SlotMut};
use crate::table::{NewSlot, Table, Walk};
use crate::timers::{Sweep, Timers};

pub(crate) struct Slots<K, S, V, B> {
    /// Dropped before the sinks, so that one that fires its waker as it is dropped wakes no task.
    ready: Ready,
    table: Table<K, S, V, B>,
    flushes: Flushes,
    timers: Timers,
}

/// A slot whose sink can be polled.
pub(crate) struct SlotEntry<'a, K, S, V> {
    slot: SlotMut<'a, K, S, V>,
    ready: &'a Ready,
    flushes: &'a mut Flushes,
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
    /// If there is no such slot. So do the methods below that return no `Option`.
    pub(crate) fn slot(&self, id: SlotId) -> &Slot<K, S> {
        self.table.slot(id)
    }

    pub(crate) fn slot_mut(&mut self, id: SlotId) -> SlotMut<'_, K, S, V> {
        self.table.slot_mut(id)
    }

    #[inline]
    pub(crate) fn entry(&mut self, id: SlotId) -> SlotEntry<'_, K, S, V> {
        let Self { table, ready, flushes, .. } = self;
        SlotEntry { slot: table.slot_mut(id), ready, flushes }
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

    /// Frees what the slots were kept in, the wakers a part at a time. Returns `true` when all is
    /// freed.
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

/// Groups.
impl<K, S, V, B> Slots<K, S, V, B> {
    /// Starts to offer an item to the members of a group. Returns how many there are.
    pub(crate) fn start_walk(&mut self, group: usize) -> usize {
        let group = self.table.group_mut(group);
        group.start();
        group.len()
    }

    /// The members that are still to be offered the item.
    pub(crate) fn walk(&mut self, group: usize) -> GroupWalk<'_, K, S, V> {
        let Self { table, ready, flushes, .. } = self;
        GroupWalk { walk: table.walk(group), ready, flushes }
    }

    /// Lets a member wait for its copy of the item that it was offered last.
    pub(crate) fn start_waiting(&mut self, group: usize, id: SlotId) {
        self.table.slot_mut(id).set_waiting(true);
        self.table.group_mut(group).wait();
    }

    /// The first member of a group that waits.
    pub(crate) fn first_waiting(&mut self, group: usize) -> Option<SlotId> {
        self.table.first_waiting(group)
    }

    /// Returns `true` if the member at this position is still to be offered the item.
    pub(crate) fn is_to_be_offered(&self, group: usize, position: usize) -> bool {
        self.table.group(group).is_to_be_offered(position)
    }
}

/// Groups whose items go to one member.
impl<K, S, V, B> Slots<K, S, V, B> {
    /// How many members a group has.
    pub(crate) fn group_len(&self, group: usize) -> usize {
        self.table.group(group).len()
    }

    /// How many items are queued for a slot.
    pub(crate) fn queue_len(&self, id: SlotId) -> usize {
        self.table.queue_len(id)
    }

    /// The members of a group, in the order in which they joined.
    pub(crate) fn members(&self, group: usize) -> impl Iterator<Item = SlotId> {
        self.table.group(group).members()
    }

    /// Puts a member of a group in the line of those that may be ready, unless it is in it.
    pub(crate) fn line_up(&mut self, group: usize, id: SlotId, at_front: bool) {
        if self.table.slot_mut(id).stamp() == 0 {
            let stamp = self.table.group_mut(group).line_up(id, at_front);
            self.table.slot_mut(id).set_stamp(stamp);
        }
    }

    /// How many entries there are in the line of a group.
    pub(crate) fn line_len(&self, group: usize) -> usize {
        self.table.group(group).line_len()
    }

    /// Takes the next member that may be ready out of the line of its group.
    pub(crate) fn next_in_line(&mut self, group: usize) -> Option<SlotId> {
        loop {
            let (id, stamp) = self.table.group_mut(group).next_in_line()?;
            // The entry may be of one that is gone, and its id of another slot.
            let Some(mut slot) = self.table.get_mut(id) else { continue };
            if slot.stamp() == stamp && slot.is_in_group(group) {
                slot.set_stamp(0);
                return Some(id);
            }
        }
    }
}

/// Who was woken.
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

    /// Takes the next entry that is due by the time the input will have given `by` items from the
    /// flush list.
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
    /// Returns `true` if a tick was read in this turn: others do not count.
    pub(crate) fn has_ticked(&self) -> bool {
        self.timers.has_ticked()
    }

    /// A tick was read, the first of this turn. `was_held` is whether the input had to wait for a
    /// sink since the last one.
    pub(crate) fn tick(&mut self, was_held: bool) {
        self.timers.tick(was_held);
        self.flushes.tick();
    }

    /// Returns `true` if the last tick has not come to all slots.
    pub(crate) fn is_sweeping(&self) -> bool {
        self.timers.is_sweeping()
    }

    /// The next slot that the last tick comes to, and what it is told.
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

    /// From now on the slot receives nothing and is on its way out.
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
        Some(SlotEntry { slot: table.find_mut(key)?, ready, flushes })
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
        slot.unqueue_flush().then(|| SlotEntry { slot, ready, flushes }.poll_flush())
    }
}

/// The members of a group that are still to be offered an item, one by one.
pub(crate) struct GroupWalk<'a, K, S, V> {
    walk: Walk<'a, K, S, V>,
    ready: &'a Ready,
    flushes: &'a mut Flushes,
}

impl<K, S, V> GroupWalk<'_, K, S, V> {
    #[inline]
    pub(crate) fn next(&mut self) -> Option<SlotEntry<'_, K, S, V>> {
        let Self { walk, ready, flushes } = self;
        Some(SlotEntry { slot: walk.next()?, ready, flushes })
    }
}

/// Polling a sink.
impl<K, S, V> SlotEntry<'_, K, S, V>
where
    S: Sink<V> + Unpin,
{
    #[inline]
    pub(crate) fn poll_ready(&mut self) -> Poll<Result<(), S::Error>> {
        let waker = self.ready.waker(self.slot.id());
        self.slot.poll_ready(&mut Context::from_waker(waker))
    }

    /// Sends an item to a sink that is ready, when the input has given `now`. See [`Flushes::push`]
    /// for `BRANCHLESS`.
    #[inline]
    pub(crate) fn send<const BRANCHLESS: bool>(
        &mut self,
        item: V,
        now: u64,
    ) -> Result<(), S::Error> {
        let new = self.slot.start_send(item)?;
        self.flushes.push::<BRANCHLESS>(self.slot.id(), now, new);
        Ok(())
    }

    #[inline]
    pub(crate) fn poll_flush(&mut self) -> Poll<Result<(), S::Error>> {
        let waker = self.ready.waker(self.slot.id());
        let answer = self.slot.poll_flush(&mut Context::from_waker(waker));
        if answer.is_pending() {
            self.note_pending();
        }
        answer
    }

    pub(crate) fn poll_close(&mut self) -> Poll<Result<(), S::Error>> {
        let waker = self.ready.waker(self.slot.id());
        let answer = self.slot.poll_close(&mut Context::from_waker(waker));
        if answer.is_pending() {
            self.note_pending();
        }
        answer
    }
}

impl<K, S, V> SlotEntry<'_, K, S, V> {
    /// Returns `true` if the sink's waker has fired, and the slot was not advanced since.
    pub(crate) fn has_fired(&self) -> bool {
        self.ready.has_fired(self.slot.id())
    }

    /// Returns `true` if a sink that is parked will be polled again: its waker has fired, or it is
    /// to be retried.
    pub(crate) fn is_to_be_polled(&self) -> bool {
        self.slot.is_to_retry() || self.ready.has_fired(self.slot.id())
    }

    /// The sink has answered `Pending` when it was polled for an item.
    pub(crate) fn park(&mut self) {
        self.slot.park();
        self.note_pending();
    }

    #[inline]
    fn note_pending(&mut self) {
        if self.slot.is_timed() {
            let has_fired = self.has_fired();
            self.slot.set_self_woken(has_fired);
        }
    }
}

impl<'a, K, S, V> Deref for SlotEntry<'a, K, S, V> {
    type Target = SlotMut<'a, K, S, V>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.slot
    }
}

impl<K, S, V> DerefMut for SlotEntry<'_, K, S, V> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.slot
    }
}
