//! One attachment: its sink, its terms, its queue.
//!
//! [`Slot`] is the part that every item reads, the extras are what few attachments have. The flags
//! `QUEUED`, `BEYOND`, `LIMITED`, `GROUPED` and `TIMED` mirror what the extras contain.

mod extras;
mod queue;
mod sink;
mod stage;
mod timer;
mod word;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::ops::{Deref, DerefMut};

use super::flush::Flushes;
use super::id::SlotId;
use super::queues::Queues;
use super::ready::Ready;
use crate::hooks::Recipient;
use crate::lease::{Claim, LeaseRequest};
use crate::order::{Overflow, Terms};

use timer::Timer;
use word::{GROUPED, HEAD, LIMITED, SHARES, TIMED, Word};

pub(super) use extras::NONE;
pub(crate) use extras::{ExtrasList, Link, Purpose};
pub(crate) use queue::Popped;
pub(super) use queue::Queue;
pub(crate) use stage::{LeaveReason, Stage};
pub(crate) use timer::Expired;

/// The part of an attachment that every item reads: 24 bytes with a key and a sink of 8 bytes each.
/// With many keys, fetching it from memory is most of the cost of an item.
pub(crate) struct Slot<K, S> {
    key: K,
    sink: S,
    id: SlotId,
    word: Word,
}

/// The part of an attachment that only unusual items or terms need.
pub(super) struct Extras<V> {
    queue: VecDeque<V>,
    /// How many items of the queue, at its end, are beyond the buffer.
    beyond: u32,
    tag: u64,
    /// How many more items are accepted, if `LIMITED`.
    limit: u64,
    claim: Option<Arc<Claim>>,
    /// If the slot has no room for it.
    buffer: u32,
    /// The group and the number there, if `GROUPED`.
    group: u32,
    number: u64,
    timer: Option<Timer>,
    /// Where it is in a [`List`](crate::slots::list::List): of slots beyond their buffers, and of a
    /// group.
    links: [Link; 2],
}

impl<V> Default for Extras<V> {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            beyond: 0,
            tag: 0,
            limit: 0,
            claim: None,
            buffer: 0,
            group: 0,
            number: 0,
            timer: None,
            links: <[Link; 2]>::default(),
        }
    }
}

/// A slot, with its extras and everything that its sink is polled with.
pub(crate) struct SlotMut<'a, K, S, V> {
    pub(super) slot: &'a mut Slot<K, S>,
    pub(super) extras: &'a mut ExtrasList<V>,
    pub(super) queues: &'a mut Queues,
    pub(super) ready: &'a Ready,
    pub(super) flushes: &'a mut Flushes,
}

/// Its terms and its stage.
impl<K, S> Slot<K, S> {
    /// A slot on these terms. The defaults of the demux are already filled in.
    pub(super) fn new<V>(
        key: K,
        sink: S,
        id: SlotId,
        terms: &Terms,
        claim: Option<Arc<Claim>>,
        stage: Stage,
        extras: &mut ExtrasList<V>,
    ) -> Self {
        let overflow = terms.overflow.unwrap_or_default();
        let buffer = terms
            .buffer
            .map_or(overflow.default_buffer(), |buffer| buffer.max(overflow.least_buffer()));
        let mut word = Word::new(stage, overflow, buffer);
        if word.small_buffer().is_none() {
            extras.get_or_default(id).buffer = u32::try_from(buffer).unwrap_or(u32::MAX);
        }
        if terms.tag != 0 {
            extras.get_or_default(id).tag = terms.tag;
        }
        if let Some(limit) = terms.limit {
            extras.get_or_default(id).limit = limit;
            word.set(LIMITED, true);
        }
        if let Some(timer) = Timer::new(terms) {
            extras.get_or_default(id).timer = Some(timer);
            word.set(TIMED, true);
        }
        if claim.is_some() {
            extras.get_or_default(id).claim = claim;
        }
        Self { key, sink, id, word }
    }

    #[inline]
    pub(crate) fn id(&self) -> SlotId {
        self.id
    }

    #[inline]
    pub(super) fn key(&self) -> &K {
        &self.key
    }

    #[inline]
    pub(crate) fn receives(&self) -> bool {
        self.word.receives()
    }

    pub(crate) fn stage(&self) -> Stage {
        self.word.stage()
    }

    pub(super) fn set_leaving(&mut self, reason: LeaveReason) {
        self.word.set_leaving(reason);
    }

    /// Returns `true` if it is found by its key.
    pub(super) fn is_head(&self) -> bool {
        self.has(HEAD)
    }

    pub(super) fn set_head(&mut self, is_head: bool) {
        self.set(HEAD, is_head);
    }

    pub(crate) fn overflow(&self) -> Overflow {
        self.word.policy()
    }

    /// Returns `true` if an item may replace one that waits.
    #[inline]
    pub(crate) fn conflates(&self) -> bool {
        self.overflow() == Overflow::Conflate
    }

    #[inline]
    pub(super) fn recipient<'a, V>(&'a self, extras: &ExtrasList<V>) -> Recipient<'a, K> {
        Recipient { key: &self.key, tag: extras.get(self.id).map_or(0, |extras| extras.tag) }
    }

    /// The group and the number there, if it shares its key.
    pub(super) fn group<V>(&self, extras: &ExtrasList<V>) -> Option<(usize, u64)> {
        if !self.has(GROUPED) {
            return None;
        }
        let extras = extras.get(self.id)?;
        Some((extras.group as usize, extras.number))
    }

    /// Returns `true` if those that receive with its key share one queue.
    pub(crate) fn shares_queue(&self) -> bool {
        self.has(SHARES)
    }

    pub(super) fn set_shares_queue(&mut self, shares: bool) {
        self.set(SHARES, shares);
    }

    pub(super) fn set_group<V>(&mut self, group: u32, number: u64, extras: &mut ExtrasList<V>) {
        self.set(GROUPED, true);
        let extras = extras.get_or_default(self.id);
        extras.group = group;
        extras.number = number;
    }

    pub(super) fn leave_group(&mut self) {
        self.set(GROUPED, false);
    }

    pub(super) fn claim<'a, V>(&self, extras: &'a ExtrasList<V>) -> Option<&'a Claim> {
        extras.get(self.id)?.claim.as_deref()
    }

    /// Drops the sink. Returns the key and the tag.
    pub(super) fn into_recipient<V>(self, extras: &mut ExtrasList<V>) -> (K, u64) {
        let Self { key, sink, id, .. } = self;
        drop(sink);
        (key, extras.take(id).map_or(0, |extras| extras.tag))
    }

    #[inline]
    fn has(&self, flags: u32) -> bool {
        self.word.has(flags)
    }

    #[inline]
    fn set(&mut self, flags: u32, on: bool) {
        self.word.set(flags, on);
    }
}

/// The rest of its terms.
impl<K, S, V> SlotMut<'_, K, S, V> {
    #[inline]
    pub(crate) fn recipient(&self) -> Recipient<'_, K> {
        self.slot.recipient(self.extras)
    }

    /// What its leases request.
    pub(crate) fn lease_request(&self) -> LeaseRequest {
        self.slot.claim(self.extras).map_or(LeaseRequest::Stay, Claim::request)
    }

    fn extras_mut(&mut self) -> &mut Extras<V> {
        self.extras.get_or_default(self.slot.id)
    }
}

impl<K, S, V> Deref for SlotMut<'_, K, S, V> {
    type Target = Slot<K, S>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        self.slot
    }
}

impl<K, S, V> DerefMut for SlotMut<'_, K, S, V> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.slot
    }
}

#[cfg(test)]
mod tests {
    use core::mem::size_of;

    use super::*;

    #[test]
    fn a_slot_adds_8_bytes_to_its_key_and_sink() {
        assert_eq!(size_of::<Slot<u32, u32>>(), 16);
        assert_eq!(size_of::<Slot<u64, u64>>(), 24);
    }

    #[test]
    fn buffers_of_any_size_are_kept() {
        for buffer in [0, 1, 253, 254, 255, 256, 1_000, usize::MAX] {
            let terms = Terms { buffer: Some(buffer), ..Terms::default() };
            let mut extras = ExtrasList::<u8>::new();
            let id = SlotId::from_raw(3);
            let slot = Slot::new((), (), id, &terms, None, Stage::Receiving, &mut extras);
            assert_eq!(slot.buffer(&extras), buffer.min(u32::MAX as usize), "{buffer}");
        }
    }
}
