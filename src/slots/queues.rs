//! [`Queues`]: how many items wait in the queues of all slots, and which slots have items beyond
//! their buffers.
//!
//! The methods that change a queue (`slot/queue`) keep this up to date: a slot is in one of the two
//! lists exactly while it has items beyond its buffer.

use super::id::SlotId;
use super::list::{BACK, List};
use super::slot::{ExtrasList, Purpose};
use crate::order::Overflow;

pub(crate) struct Queues {
    /// How many items wait.
    items: u64,
    /// The slots with items beyond their buffers, in the order in which they got them: under
    /// `Wait`, ...
    gate: List,
    /// ... and under the policies that discard.
    doubts: List,
}

impl Queues {
    pub(super) fn new() -> Self {
        Self { items: 0, gate: List::new(Purpose::Gate), doubts: List::new(Purpose::Doubts) }
    }

    /// How many items wait.
    pub(crate) fn items(&self) -> u64 {
        self.items
    }

    pub(super) fn add(&mut self, items: usize) {
        self.items += items as u64;
    }

    pub(super) fn subtract(&mut self, items: usize) {
        self.items -= items as u64;
    }

    /// Returns `true` if the gate is open: no slot under `Wait` has an item beyond its buffer.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.gate.is_empty()
    }

    /// The slot that has kept the gate closed for the longest time.
    pub(crate) fn first_at_gate(&self) -> Option<SlotId> {
        self.gate.first()
    }

    /// Returns `true` if a slot is in doubt: its policy is to act on items beyond its buffer.
    pub(crate) fn is_in_doubt(&self) -> bool {
        !self.doubts.is_empty()
    }

    /// The slot that has been in doubt for the longest time.
    pub(crate) fn first_in_doubt(&self) -> Option<SlotId> {
        self.doubts.first()
    }

    /// A slot with this policy has its first item beyond the buffer.
    pub(super) fn enter<V>(&mut self, policy: Overflow, id: SlotId, extras: &mut ExtrasList<V>) {
        self.list(policy).push(BACK, id, extras);
    }

    /// A slot with this policy has no items beyond the buffer any more.
    pub(super) fn leave<V>(&mut self, policy: Overflow, id: SlotId, extras: &mut ExtrasList<V>) {
        self.list(policy).remove(id, extras);
    }

    fn list(&mut self, policy: Overflow) -> &mut List {
        if policy == Overflow::Wait { &mut self.gate } else { &mut self.doubts }
    }
}
