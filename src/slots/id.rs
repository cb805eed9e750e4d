//! [`SlotId`]: the name of a slot.

/// Identifies a slot for as long as it exists. Afterwards the id is used again for another slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotId(u32);

impl SlotId {
    #[inline]
    pub(crate) fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// Ids are dense, and there are fewer than 2³⁰.
    #[expect(clippy::cast_possible_truncation, reason = "checked where ids are made")]
    pub(crate) fn from_index(index: usize) -> Self {
        Self(index as u32)
    }

    #[inline]
    pub(crate) fn raw(self) -> u32 {
        self.0
    }

    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}
