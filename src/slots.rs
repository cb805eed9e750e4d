//! [`Slots`]: the attachments, found by key for an item, and by id otherwise; and what is kept
//! consistent with them: their wakers, what is known of their queues together, the flush list and
//! the list of time-outs.
//!
//! 1. Of the slots that receive under a key, the first one, the *head*, is found by the key. So is
//!    the first one of those that are leaving.
//! 2. Receiving slots that share a key are a group, which the head stands for. So are leaving slots
//!    that share a key. A group exists until its last member is gone, or until an item for it
//!    finds one member alone.
//! 3. `catch_all` names a slot that receives.
//! 4. Every slot has a waker, registered under its id.
//! 5. A slot whose sink took an item since its last flush is in the flush list, unless its sink is
//!    being closed. An entry whose slot was removed belongs to the next slot with that id.
//! 6. A slot that has a time-out is in the list of timers, and knows its index there.
//!
//! A key is stored once, in its slot, and never cloned.

pub(crate) mod flush;
pub(crate) mod group;
mod groups;
pub(crate) mod id;
mod keys;
mod list;
mod queues;
pub(crate) mod ready;
pub(crate) mod slot;
mod store;
mod timers;

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use slab::Slab;

use self::flush::Flushes;
use self::group::Group;
use self::id::SlotId;
use self::queues::Queues;
use self::ready::{Ready, Woken};
use self::slot::{Expired, ExtrasList, Slot, SlotMut, Stage};
use self::store::Store;
use self::timers::Timers;
use crate::hooks::Recipient;
use crate::lease::Claim;
use crate::order::Terms;

pub(crate) struct Slots<K, S, V, B> {
    /// Dropped before the sinks, so that a sink that fires its waker when it is dropped wakes no
    /// task.
    ready: Ready,
    store: Store<K, S>,
    extras: ExtrasList<V>,
    queues: Queues,
    groups: Slab<Group>,
    hasher: B,
    /// How many slots receive.
    len: usize,
    catch_all: Option<SlotId>,
    flushes: Flushes,
    timers: Timers,
}

/// An attachment that is to get a slot.
pub(crate) struct NewSlot<K, S> {
    pub(crate) key: K,
    pub(crate) sink: S,
    pub(crate) terms: Terms,
    pub(crate) claim: Option<Arc<Claim>>,
    pub(crate) stage: Stage,
    /// Those that receive with its key share one queue.
    pub(crate) shares_queue: bool,
}

/// What becomes of a shared queue when one of its slots leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedQueue {
    /// The others keep it.
    Stays,
    /// The others are about to leave, too: the slot takes an equal part.
    IsDivided,
}

/// What the router has to know of a slot that has begun to leave.
pub(crate) struct Departure<V> {
    /// No slot receives under its key any more.
    pub(crate) frees_key: bool,
    /// The items that waited for it beyond its limit.
    pub(crate) surplus: VecDeque<V>,
}

/// The rest of an attachment whose sink was dropped.
pub(crate) struct Remains<K, V> {
    pub(crate) key: K,
    pub(crate) tag: u64,
    /// The items that waited for it, and for no other one.
    pub(crate) queue: VecDeque<V>,
    /// It received, and no slot receives under its key any more.
    pub(crate) frees_key: bool,
}

impl<K, S, V, B> Slots<K, S, V, B> {
    pub(crate) fn new(hasher: B) -> Self {
        Self {
            ready: Ready::new(),
            store: Store::new(),
            extras: ExtrasList::new(),
            queues: Queues::new(),
            groups: Slab::new(),
            hasher,
            len: 0,
            catch_all: None,
            flushes: Flushes::new(),
            timers: Timers::new(),
        }
    }

    /// Changes the hasher; there must be no slots. The room that was made stays.
    pub(crate) fn with_hasher<B2>(self, hasher: B2) -> Slots<K, S, V, B2> {
        debug_assert!(self.is_vacant());
        let Self {
            ready,
            store,
            extras,
            queues,
            groups,
            hasher: _,
            len,
            catch_all,
            flushes,
            timers,
        } = self;
        Slots { ready, store, extras, queues, groups, hasher, len, catch_all, flushes, timers }
    }

    /// A turn begins: the task runs, and the slots that were woken by now are its work.
    pub(crate) fn begin_turn(&mut self) {
        self.ready.awake();
        self.ready.take();
    }

    /// The wakers, and which of them have fired.
    pub(crate) fn ready(&self) -> &Ready {
        &self.ready
    }

    /// The next slot of those that were woken when the turn began, or a stale wake.
    pub(crate) fn pop_woken(&mut self) -> Option<Woken> {
        self.ready.pop()
    }

    /// The next slot whose lease has ended, or a stale wake.
    pub(crate) fn pop_ended(&mut self) -> Option<SlotId> {
        self.ready.pop_ended()
    }

    /// The flush list. What would break its invariants is only visible here.
    pub(crate) fn flushes(&self) -> &Flushes {
        &self.flushes
    }

    pub(crate) fn flushes_mut(&mut self) -> &mut Flushes {
        &mut self.flushes
    }

    /// What is known of all queues together.
    pub(crate) fn queues(&self) -> &Queues {
        &self.queues
    }

    /// The slot that items go to whose keys are not attached.
    pub(crate) fn catch_all(&self) -> Option<SlotId> {
        self.catch_all
    }

    /// How many slots receive.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many slots are leaving.
    pub(crate) fn leaving(&self) -> usize {
        // A `Hash` that panics while the table grows may lose some.
        self.store.len().saturating_sub(self.len)
    }

    pub(crate) fn is_vacant(&self) -> bool {
        self.store.len() == 0
    }

    /// The ids that were ever in use are below this.
    pub(crate) fn ids(&self) -> usize {
        self.store.ids()
    }

    /// The first id, from this index on, that has a slot.
    pub(crate) fn next_id(&self, index: usize) -> Option<SlotId> {
        self.store.next_id(index)
    }

    pub(crate) fn get(&self, id: SlotId) -> Option<&Slot<K, S>> {
        self.store.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: SlotId) -> Option<SlotMut<'_, K, S, V>> {
        let Self { store, extras, queues, ready, flushes, .. } = self;
        Some(SlotMut { slot: store.get_mut(id)?, extras, queues, ready, flushes })
    }

    /// # Panics
    ///
    /// Panics if there is no such slot. So do the methods below that return no `Option`.
    pub(crate) fn slot(&self, id: SlotId) -> &Slot<K, S> {
        self.store.slot(id)
    }

    pub(crate) fn slot_mut(&mut self, id: SlotId) -> SlotMut<'_, K, S, V> {
        let Self { store, extras, queues, ready, flushes, .. } = self;
        SlotMut { slot: store.slot_mut(id), extras, queues, ready, flushes }
    }

    /// The recipients of the slots that are meant.
    pub(crate) fn recipients(
        &self,
        is_meant: impl Fn(&Slot<K, S>) -> bool,
    ) -> impl Iterator<Item = Recipient<'_, K>> {
        let slots = self.store.iter().filter(move |&slot| is_meant(slot));
        slots.map(|slot| slot.recipient(&self.extras))
    }

    pub(crate) fn recipient(&self, id: SlotId) -> Recipient<'_, K> {
        self.slot(id).recipient(&self.extras)
    }

    /// How many items are queued for a slot.
    pub(crate) fn queue_len(&self, id: SlotId) -> usize {
        self.slot(id).queue_len(&self.extras)
    }

    /// How many of the items that are queued for a slot are beyond its buffer.
    pub(crate) fn beyond_len(&self, id: SlotId) -> usize {
        self.slot(id).beyond_len(&self.extras)
    }

    /// How many items may be queued for a slot.
    pub(crate) fn buffer(&self, id: SlotId) -> usize {
        self.slot(id).buffer(&self.extras)
    }

    /// One unit of time has passed. `was_closed` is whether the input had to wait for a sink in it.
    pub(crate) fn tick(&mut self, was_closed: bool) {
        self.timers.request_sweep(was_closed);
        self.flushes.count_linger();
    }

    /// Returns `true` if a tick is not applied to all slots with a time-out yet.
    pub(crate) fn is_sweeping(&self) -> bool {
        self.timers.is_sweeping()
    }

    /// Applies a tick to the next slot with a time-out. Returns the slot, and its time-out if that
    /// has expired.
    pub(crate) fn sweep_next(&mut self) -> Option<(SlotId, Option<Expired>)> {
        let (id, sweep) = self.timers.next()?;
        let has_items = self.has_items_for(id);
        let mut slot = self.slot_mut(id);
        let has_fired = slot.has_fired();
        Some((id, slot.check_timeouts(sweep, has_fired, has_items)))
    }

    /// Frees the memory of slots that are gone, at most this number of wakers at a time. Returns
    /// `true` when all is freed.
    pub(crate) fn free(&mut self, wakers: usize) -> bool {
        let all = self.ready.free_wakers(wakers);
        if all {
            self.store = Store::new();
            self.extras = ExtrasList::new();
            self.groups = Slab::new();
            self.flushes = Flushes::new();
            self.timers = Timers::new();
        }
        all
    }
}
