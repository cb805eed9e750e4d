//! [`SlotId`]: what names a slot.

/// Names a slot for as long as it exists, and another one afterwards: ids are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotId(u32);

impl SlotId {
    #[inline]
    pub(crate) fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// Ids are counted up from 0, and there are fewer than 2³⁰.
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
