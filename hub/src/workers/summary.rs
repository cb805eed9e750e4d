//! [`Summary`]: what the workers have done.

use super::outcome::WorkerError;

/// What [`for_each_by_key`](super::for_each_by_key) has done.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary<K> {
    /// Items that were read from the input.
    pub received: u64,
    /// Items that workers have taken from their mailboxes.
    pub taken: u64,
    /// Items that were dropped by a [revocation](super::WorkersHandle::revoke).
    pub revoked: u64,
    /// Mailboxes that were made: a key gets one with its first item, and with the first one after its
    /// mailbox has ended. [`mailboxes`](Self::mailboxes) returns it, too.
    ///
    /// Despite its name it does not count each call of the worker's closure: a worker that panics
    /// or returns early is replaced at the same mailbox.
    pub workers: u64,
    /// Workers that have panicked.
    pub panics: u64,
    /// Workers that have returned an error.
    pub errors: u64,
    /// The first error that a worker returned, with its key.
    pub first_error: Option<WorkerError<K>>,
    /// Items that wait in the [backlog](super::Workers::backlog) now.
    pub backlog: usize,
    /// The most items that were ever in the backlog. If it is about the limit, the input has waited,
    /// and all keys with it.
    pub most_backlog: usize,
    /// How often the input had to wait because the backlog was full.
    pub input_waits: u64,
    /// The keys whose workers were busy at the deadline, and were aborted, in no particular order.
    pub hung: Vec<K>,
    /// The keys whose items waited at the deadline for a worker or for its
    /// [turn](super::Workers::concurrency), in no particular order. They are not among `hung`.
    pub waiting: Vec<K>,
}

impl<K> Summary<K> {
    /// Returns how many mailboxes were made: the field [`workers`](Self::workers), under the name of
    /// what it counts.
    pub fn mailboxes(&self) -> u64 {
        self.workers
    }

    /// Returns the number of items that no worker has taken, without those that were
    /// [revoked](Self::revoked). At the end, they are lost.
    ///
    /// An item in the hands of a worker that panicked or was aborted is not among them: see
    /// [`panics`](Self::panics) and [`hung`](Self::hung). [`Progress`](crate::Progress) names the
    /// items that are not done.
    pub fn lost(&self) -> u64 {
        self.received.saturating_sub(self.taken + self.revoked)
    }
}
