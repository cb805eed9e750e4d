//! [`Word`]: what every item reads of a [`Slot`](super::Slot), in 32 bits. One test separates the
//! common case from all others.

use super::{LeaveReason, Stage};
use crate::order::Overflow;

/// Flags, the stage of the attachment, its policy, and its buffer if that is small.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word(u32);

/// `poll_ready` answered `Pending`, and the demux has not noticed a wake since.
pub(super) const PARKED: u32 = 1;
/// Something is in the queue.
pub(super) const QUEUED: u32 = 1 << 1;
/// It accepts a limited number of items.
pub(super) const LIMITED: u32 = 1 << 2;
/// It shares its key: the extras have the group.
pub(super) const GROUPED: u32 = 1 << 3;
/// Some items in the queue are beyond the buffer. Only with `QUEUED`.
pub(super) const BEYOND: u32 = 1 << 4;
/// `poll_ready` answered `Pending` at the start of a turn, when the sink was in doubt. Only with
/// `PARKED`.
pub(super) const FULL: u32 = 1 << 5;
/// It took an item since `poll_flush` was called last. If so, it is in the flush list.
pub(super) const UNFLUSHED: u32 = 1 << 6;
/// `poll_flush` answered `Pending`, and the demux has not noticed a wake since.
pub(super) const FLUSHING: u32 = 1 << 7;
/// `poll_flush` answered `Pending`, and the sink's waker has fired.
pub(super) const FLUSH_AGAIN: u32 = 1 << 8;
/// `poll_close` answered `Pending`, and the demux has not noticed a wake since.
pub(super) const CLOSING: u32 = 1 << 9;
/// It is in the flush list, for itself or for its predecessor.
pub(super) const FLUSH_QUEUED: u32 = 1 << 10;
/// An operation of its sink completed since the last tick: it took an item, or a flush.
pub(super) const MOVED: u32 = 1 << 11;
/// It has a time-out.
pub(super) const TIMED: u32 = 1 << 12;
/// It is the first with its key in its stage, and found by its key.
pub(super) const HEAD: u32 = 1 << 13;
/// Those that receive with its key share one queue (`balance`).
pub(super) const SHARES: u32 = 1 << 14;

/// Where the stage begins: 0 if it receives, otherwise one more than the place of the reason.
const STAGE: u32 = 16;
const REASONS: [LeaveReason; 6] = [
    LeaveReason::Finished,
    LeaveReason::Requested,
    LeaveReason::Replaced,
    LeaveReason::Limited,
    LeaveReason::Refused,
    LeaveReason::Idle,
];
/// It does not receive.
const LEAVING: u32 = 7 << STAGE;

/// Where the policy begins.
const POLICY: u32 = 20;
const POLICIES: [Overflow; 5] = [
    Overflow::Wait,
    Overflow::DropNewest,
    Overflow::DropOldest,
    Overflow::Evict,
    Overflow::Conflate,
];

/// Where the buffer begins.
const BUFFER: u32 = 24;
/// The buffer is too large for 8 bits.
const LARGE: u32 = u8::MAX as u32;

/// An item for this slot alone cannot go straight to the sink.
pub(super) const SLOW: u32 = PARKED | QUEUED | LIMITED | GROUPED | LEAVING;
/// An item for its group cannot go straight to the sink.
pub(super) const SLOW_IN_GROUP: u32 = PARKED | QUEUED | LIMITED;

impl Word {
    pub(super) fn new(stage: Stage, policy: Overflow, buffer: usize) -> Self {
        let small = u32::try_from(buffer).unwrap_or(LARGE).min(LARGE);
        let mut word = Self((policy as u32) << POLICY | small << BUFFER);
        if let Stage::Leaving(reason) = stage {
            word.set_leaving(reason);
        }
        word
    }

    /// Returns `true` if one of these flags is set.
    #[inline]
    pub(super) fn has(self, flags: u32) -> bool {
        self.0 & flags != 0
    }

    #[inline]
    pub(super) fn set(&mut self, flags: u32, on: bool) {
        if on {
            self.0 |= flags;
        } else {
            self.0 &= !flags;
        }
    }

    #[inline]
    pub(super) fn receives(self) -> bool {
        !self.has(LEAVING)
    }

    pub(super) fn stage(self) -> Stage {
        match (self.0 >> STAGE & 7) as usize {
            0 => Stage::Receiving,
            reason => Stage::Leaving(REASONS[reason - 1]),
        }
    }

    pub(super) fn set_leaving(&mut self, reason: LeaveReason) {
        self.0 = self.0 & !LEAVING | (reason as u32 + 1) << STAGE;
    }

    pub(super) fn policy(self) -> Overflow {
        POLICIES[(self.0 >> POLICY & 7) as usize]
    }

    /// The buffer, or `None` if it is large.
    pub(super) fn small_buffer(self) -> Option<usize> {
        let small = self.0 >> BUFFER;
        (small != LARGE).then_some(small as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_packed_is_found_whatever_the_flags_are() {
        for (policy, buffer) in POLICIES.into_iter().zip([0, 1, 254, 255, usize::MAX]) {
            for reason in REASONS {
                let mut word = Word::new(Stage::Receiving, policy, buffer);
                word.set((SHARES << 1) - 1, true);
                assert!(word.receives() && word.stage() == Stage::Receiving);
                word.set_leaving(reason);
                assert!(!word.receives() && word.stage() == Stage::Leaving(reason));
                assert_eq!(word.policy(), policy);
                assert_eq!(word.small_buffer(), Some(buffer).filter(|&buffer| buffer < 255));
                word.set((SHARES << 1) - 1, false);
                assert_eq!(word.0, Word::new(Stage::Leaving(reason), policy, buffer).0);
            }
        }
    }
}
