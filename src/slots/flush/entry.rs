//! The entries of the flush list, and what they are stamped with: [`Handled`].

use crate::slots::id::SlotId;

/// How much the demux has handled.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Handled {
    /// The items that the input has returned.
    pub(crate) items: u64,
    pub(crate) copies: u64,
}

impl Handled {
    /// The number of items and copies.
    pub(crate) fn work(self) -> u64 {
        self.items + self.copies
    }
}

/// A sink in the flush list, stamped with what had been handled when it was listed.
// In this order: the compiler would otherwise load both counts at once, and wait for the one that
// was just written.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Entry {
    /// The lower half of the number of items that the input had returned. An entry is due and
    /// removed long before the upper half matters.
    items: u32,
    id: u32,
    /// The lower half of the number of copies.
    copies: u32,
}

impl Entry {
    #[inline]
    pub(super) fn new(id: SlotId, now: &Handled) -> Self {
        Self { items: low(now.items), id: id.raw(), copies: low(now.copies) }
    }

    #[inline]
    pub(super) fn id(&self) -> SlotId {
        SlotId::from_raw(self.id)
    }

    /// How many items the input has returned since the entry was made.
    #[inline]
    pub(super) fn further_items(&self, now: &Handled) -> u64 {
        u64::from(low(now.items).wrapping_sub(self.items))
    }

    /// How many items and copies were handled since the entry was made.
    pub(super) fn further_work(&self, now: &Handled) -> u64 {
        self.further_items(now) + u64::from(low(now.copies).wrapping_sub(self.copies))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is wanted")]
fn low(number: u64) -> u32 {
    number as u32
}
