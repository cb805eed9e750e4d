//! [`Stage`]: where an attachment is in its life.

use crate::hooks::Detached;

/// Where an attachment is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It gets the items of its key.
    Receiving,
    /// It gets no new ones: its queue is sent, then its sink is closed.
    Leaving(LeaveReason),
}

/// Why an attachment leaves gracefully; what [`Detached`] will say if all goes well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaveReason {
    Finished,
    Requested,
    Replaced,
    Limited,
    Refused,
    Idle,
}

impl<E> From<LeaveReason> for Detached<E> {
    fn from(reason: LeaveReason) -> Self {
        match reason {
            LeaveReason::Finished => Self::Finished,
            LeaveReason::Requested => Self::Requested,
            LeaveReason::Replaced => Self::Replaced,
            LeaveReason::Limited => Self::Limited,
            LeaveReason::Refused => Self::Refused,
            LeaveReason::Idle => Self::Idle,
        }
    }
}
