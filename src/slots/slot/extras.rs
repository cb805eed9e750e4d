//! [`ExtrasList`]: the [`Extras`] of all slots.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Extras;
use crate::slots::id::SlotId;

/// No slot has this id, and no [list](crate::slots::list) this number.
pub(in crate::slots) const NONE: u32 = u32::MAX;

/// Where a slot is in the [lists](crate::slots::list::Lists) of one chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    pub(in crate::slots) list: u32,
    /// The slots on both sides.
    pub(in crate::slots) sides: [u32; 2],
}

impl Default for Link {
    fn default() -> Self {
        Self { list: NONE, sides: [NONE; 2] }
    }
}

/// The extras of all slots, by their ids.
pub(crate) struct ExtrasList<V>(Vec<Option<Box<Extras<V>>>>);

impl<V> ExtrasList<V> {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn reserve(&mut self, slots: usize) {
        self.0.reserve(slots.saturating_sub(self.0.len()));
    }

    pub(super) fn get(&self, id: SlotId) -> Option<&Extras<V>> {
        self.0.get(id.index())?.as_deref()
    }

    pub(super) fn get_mut(&mut self, id: SlotId) -> Option<&mut Extras<V>> {
        self.0.get_mut(id.index())?.as_deref_mut()
    }

    pub(super) fn get_or_default(&mut self, id: SlotId) -> &mut Extras<V> {
        if self.0.len() <= id.index() {
            self.0.resize_with(id.index() + 1, || None);
        }
        self.0[id.index()].get_or_insert_default()
    }

    /// Where a slot is in the lists of a chain. Only slots with extras are in lists.
    #[inline]
    pub(crate) fn link(&mut self, id: SlotId, chain: usize) -> &mut Link {
        &mut self.get_mut(id).expect("a slot in a list has extras").links[chain]
    }

    pub(super) fn take(&mut self, id: SlotId) -> Option<Box<Extras<V>>> {
        self.0.get_mut(id.index())?.take()
    }
}
