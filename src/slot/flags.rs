//! The flags of a [`Slot`](super::Slot): one word that every item reads.

use crate::order::Overflow;

/// `poll_ready` answered `Pending`, and the demux has not noticed a wake since.
pub(super) const PARKED: u16 = 1;
/// Something is in the queue.
pub(super) const QUEUED: u16 = 1 << 1;
/// It accepts a limited number of items.
pub(super) const LIMITED: u16 = 1 << 2;
/// It shares its key: the extras have the group.
pub(super) const GROUPED: u16 = 1 << 3;
/// Some items in the queue are beyond the buffer. Only with `QUEUED`.
pub(super) const BEYOND: u16 = 1 << 4;
/// `poll_ready` answered `Pending` at the start of a turn, when the sink was in doubt. Only with
/// `PARKED`.
pub(super) const FULL: u16 = 1 << 5;
/// It took an item since `poll_flush` was called last. If so, it is in the flush list.
pub(super) const UNFLUSHED: u16 = 1 << 6;
/// `poll_flush` answered `Pending`, and the demux has not noticed a wake since.
pub(super) const FLUSHING: u16 = 1 << 7;
/// `poll_flush` answered `Pending`, and the sink's waker has fired.
pub(super) const FLUSH_AGAIN: u16 = 1 << 8;
/// `poll_close` answered `Pending`, and the demux has not noticed a wake since.
pub(super) const CLOSING: u16 = 1 << 9;
/// It is in the flush list, for itself or for its predecessor.
pub(super) const FLUSH_QUEUED: u16 = 1 << 10;
/// An operation of its sink completed since the last tick: it took an item, or a flush.
pub(super) const MOVED: u16 = 1 << 11;
/// It has a time-out.
pub(super) const TIMED: u16 = 1 << 12;

/// Where the overflow policy begins in the flags.
pub(super) const POLICY: u32 = 13;
pub(super) const POLICIES: [Overflow; 5] = [
    Overflow::Wait,
    Overflow::DropNewest,
    Overflow::DropOldest,
    Overflow::Evict,
    Overflow::Conflate,
];

/// An item for this slot alone cannot go straight to the sink.
pub(super) const SLOW: u16 = PARKED | QUEUED | LIMITED | GROUPED;
/// The same for an item that is for its group.
pub(super) const SLOW_IN_GROUP: u16 = PARKED | QUEUED | LIMITED;
