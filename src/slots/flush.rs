//! When sinks are flushed.
//!
//! A flush costs as much as many items: over TCP it is a system call of some microseconds, and an
//! item takes some tens of nanoseconds. A flush for each item would be most of the work, and no
//! flush before the input pauses would delay a quiet key for as long as other keys are busy. So
//! each flush has to be paid for, in one of two ways:
//!
//! * *By the items that share it.* While the input is busy, the demux flushes a sink when it has
//!   handled a number of further items and copies. That number grows with the number of sinks that
//!   wait for a flush, so that the same number of items shares each flush on average. With few sinks
//!   it is small and so is the delay, whatever their items cost; with many, the delay is in
//!   proportion to the time that the flushes themselves take. If there are so many keys that the
//!   flushes are never paid for, [`flush_every`](crate::Demux::flush_every) bounds the delay.
//!   [`Flushes`] keeps the list, and decides this.
//! * *By a wait that ends.* When the input has nothing ready, few flushes are made at once. If there
//!   are many, the demux lets other tasks run and waits for the items that would share them. The
//!   wait is bounded, and if waiting does not bring enough items, the demux stops doing it.
//!   [`Patience`] decides this.
//!
//! The contract promises that no flush is forgotten, that both delays are bounded, and that a wait
//! that does not pay is given up. How long they are is decided by the numbers in [`tuning`], which
//! stand nowhere else.

mod entry;
mod linger;
mod list;
mod orphans;
mod patience;
mod tuning;

pub(crate) use entry::Handled;
pub(crate) use list::Flushes;
pub(crate) use patience::{Patience, Pause};
