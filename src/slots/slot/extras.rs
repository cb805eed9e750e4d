//! [`ExtrasList`]: the [`Extras`] of all slots.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Extras;
use crate::slots::id::SlotId;

/// No slot has this id.
pub(in crate::slots) const NONE: u32 = u32::MAX;

/// What a [`List`](crate::slots::list::List) of slots is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Under a policy that discards, they have items beyond their buffers.
    Doubts,
    /// Under `Wait`, they have items beyond their buffers.
    Gate,
    /// The members of a group that may be ready.
    Line,
    /// The members of a group that are not.
    Unready,
}

impl Purpose {
    /// Which of its links a slot uses for such a list: it is in at most one list with the same
    /// link.
    pub(in crate::slots) fn link(self) -> usize {
        match self {
            Self::Doubts | Self::Gate => 0,
            Self::Line | Self::Unready => 1,
        }
    }
}

/// Where a slot is in a [`List`](crate::slots::list::List), if it is in one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    /// What the list is for.
    pub(in crate::slots) purpose: Option<Purpose>,
    /// The slots on both sides.
    pub(in crate::slots) sides: [u32; 2],
}

impl Default for Link {
    fn default() -> Self {
        Self { purpose: None, sides: [NONE; 2] }
    }
}

/// The extras of all slots, by their ids.
pub(crate) struct ExtrasList<V>(Vec<Option<Box<Extras<V>>>>);

impl<V> ExtrasList<V> {
    pub(in crate::slots) fn new() -> Self {
        Self(Vec::new())
    }

    pub(in crate::slots) fn reserve(&mut self, slots: usize) {
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

    /// One of the links of a slot. Only slots with extras are in lists.
    #[inline]
    pub(in crate::slots) fn link(&mut self, id: SlotId, link: usize) -> &mut Link {
        &mut self.get_mut(id).expect("a slot in a list has extras").links[link]
    }

    pub(super) fn take(&mut self, id: SlotId) -> Option<Box<Extras<V>>> {
        self.0.get_mut(id.index())?.take()
    }
}
