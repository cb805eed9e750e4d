//! The entries of the flush list, and what they are stamped with: [`Handled`].

use core::time::Duration;

use super::tuning::NANOS_PER_ITEM;
use crate::slots::id::SlotId;

/// After how much an entry is due at the latest. Only the lower 32 bits of stamps are compared,
/// which must distinguish an entry that becomes due from one that has been due for a while.
pub(super) const MAX_AGE: u64 = 1 << 31;

/// How much the demux has handled.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Handled {
    /// The items that the input has returned.
    pub(crate) items: u64,
    /// What pays for flushes beside them: their copies, and the time that has [`Elapsed`].
    pub(crate) others: u64,
}

impl Handled {
    pub(crate) fn work(self) -> u64 {
        self.items + self.others
    }
}

/// The time that has passed, as far as the demux knows.
#[derive(Debug, Default)]
pub(crate) struct Elapsed {
    nanos: u64,
}

impl Elapsed {
    /// Adds some time, and returns how many items it is worth. What is less than an item counts
    /// together with the next times.
    pub(crate) fn add(&mut self, time: Duration) -> u64 {
        let before = self.work();
        // Not more than the stamps of entries can tell apart.
        let longest = NANOS_PER_ITEM * MAX_AGE;
        let nanos = u64::try_from(time.as_nanos()).map_or(longest, |nanos| nanos.min(longest));
        self.nanos = self.nanos.saturating_add(nanos);
        self.work() - before
    }

    /// How many items all of it is worth.
    pub(crate) fn work(&self) -> u64 {
        self.nanos / NANOS_PER_ITEM
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
    /// The lower half of what else had been handled.
    others: u32,
}

impl Entry {
    #[inline]
    pub(super) fn new(id: SlotId, now: &Handled) -> Self {
        Self { items: low(now.items), id: id.raw(), others: low(now.others) }
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

    /// How much was handled since the entry was made.
    pub(super) fn further_work(&self, now: &Handled) -> u64 {
        self.further_items(now) + u64::from(low(now.others).wrapping_sub(self.others))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is wanted")]
fn low(number: u64) -> u32 {
    number as u32
}
