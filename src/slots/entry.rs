//! [`SlotEntry`]: a slot whose sink can be polled, with its own waker.

use core::ops::{Deref, DerefMut};
use core::task::{Context, Poll};

use futures_sink::Sink;

use crate::flush::Flushes;
use crate::group::Group;
use crate::ready::Ready;
use crate::slot::{ExtrasList, SlotMut};
use crate::store::Store;

/// A slot whose sink can be polled.
pub(crate) struct SlotEntry<'a, K, S, V> {
    slot: SlotMut<'a, K, S, V>,
    ready: &'a Ready,
    flushes: &'a mut Flushes,
}

impl<'a, K, S, V> SlotEntry<'a, K, S, V> {
    #[inline]
    pub(super) fn new(
        slot: SlotMut<'a, K, S, V>,
        ready: &'a Ready,
        flushes: &'a mut Flushes,
    ) -> Self {
        Self { slot, ready, flushes }
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

    /// Sends an item to a sink that is ready, when the input has returned `now` items. See
    /// [`Flushes::push`] for `BRANCHLESS`.
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
    /// Returns `true` if the sink's waker has fired and the slot was not advanced since.
    pub(crate) fn has_fired(&self) -> bool {
        self.ready.has_fired(self.slot.id())
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

/// The members of a group that are still to be offered an item, one by one.
pub(crate) struct GroupWalk<'a, K, S, V> {
    pub(super) group: &'a mut Group,
    pub(super) store: &'a mut Store<K, S>,
    pub(super) extras: &'a mut ExtrasList<V>,
    pub(super) ready: &'a Ready,
    pub(super) flushes: &'a mut Flushes,
}

impl<K, S, V> GroupWalk<'_, K, S, V> {
    #[inline]
    pub(crate) fn next(&mut self) -> Option<SlotEntry<'_, K, S, V>> {
        let Self { group, store, extras, ready, flushes } = self;
        let slot = store.get_mut(group.next()?)?;
        Some(SlotEntry { slot: SlotMut::new(slot, extras), ready, flushes })
    }
}
