//! [`WorkersHandle`]: revokes keys, and looks at the workers, from anywhere.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use super::roster::{Roster, Unfinished};
use super::summary::Summary;

/// Refers to the workers of a stream, and revokes keys. [`ForEachByKey::handle`] creates it.
///
/// Clone it, and keep it wherever keys are taken away: in another task, in a worker, in the callback
/// of a consumer group. It keeps nothing alive: when the workers have ended, its methods find none.
///
/// [`ForEachByKey::handle`]: super::ForEachByKey::handle
///
/// # Examples
///
/// ```
/// use futures::{StreamExt, channel::mpsc, stream};
/// use stream_demux_hub::{Workers, for_each_by_key};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (orders, input) = mpsc::unbounded();
/// let run = for_each_by_key(input, |&(customer, _)| customer, Workers::new(), |_, mut orders| async move {
///     while let Some((_, order)) = orders.recv().await {
///         if order == "hang" {
///             std::future::pending::<()>().await;
///         }
///     }
/// });
/// let handle = run.handle();
/// orders.unbounded_send(("ann", "hang")).unwrap();
/// orders.unbounded_send(("ann", "tea")).unwrap();
/// while handle.summary().taken == 0 {
///     tokio::task::yield_now().await;
/// }
/// // Another process has taken over this customer.
/// assert_eq!(handle.revoke(&"ann").await, 1); // the tea
/// orders.unbounded_send(("ann", "cake")).unwrap(); // for a new worker
/// drop(orders);
/// let summary = run.await;
/// assert_eq!((summary.taken, summary.revoked, summary.lost()), (2, 1, 0));
/// # }
/// ```
pub struct WorkersHandle<K: Hash + Eq, T> {
    roster: Arc<Roster<K, T>>,
}

impl<K: Hash + Eq + Clone, T> WorkersHandle<K, T> {
    pub(super) fn new(roster: &Arc<Roster<K, T>>) -> Self {
        Self { roster: Arc::clone(roster) }
    }

    /// Takes a key away from its worker: drops the items that wait for it, aborts the worker, and
    /// waits until that is gone.
    ///
    /// Returns how many items were dropped; [`Summary::revoked`] counts those of all keys. The item
    /// that the worker was handling is not among them: it was taken. The next item of the key that
    /// is read from the input gets a new worker, which begins when the old one is gone.
    ///
    /// The worker is dropped at its next `await`; one that never reaches an `await` is waited for.
    /// Tasks that it has spawned are not a part of it, and go on; a mailbox that was moved into such
    /// a task has ended. If the key has no worker and no items, nothing happens.
    ///
    /// * **From inside a worker**: a worker that revokes its own key ends at this `await`, and the
    ///   call does not return. Two workers that revoke each other both end.
    /// * **Twice**: both calls wait for the same worker, and return the same number.
    /// * **Blocking**: do not block the thread of a runtime on this future, because the worker may
    ///   need that thread to be dropped: in a callback that is called there, use
    ///   `tokio::task::block_in_place`. It does not need the task that reads the input, so it may be
    ///   awaited in the input.
    ///
    /// # Cancel safety
    ///
    /// Everything happens at the first poll, except for the waiting: if the future is dropped then,
    /// the key is revoked all the same, and its next worker waits until the old one is gone. If it
    /// is never polled, nothing happens.
    pub async fn revoke(&self, key: &K) -> u64 {
        self.roster.revoke(key).gone().await
    }

    /// Revokes each key for which `is_revoked` returns `true`, for example all keys of a partition,
    /// and waits until their workers are gone. Returns how many items were dropped.
    ///
    /// All of them are revoked before the first one is waited for. For all else, see
    /// [`revoke`](Self::revoke): what happens when it is called twice, from inside a worker, or
    /// blocking, and that the first poll does everything except for the waiting.
    pub async fn revoke_if(&self, mut is_revoked: impl FnMut(&K) -> bool) -> u64 {
        let mut keys = self.roster.keys();
        keys.retain(|key| is_revoked(key));
        let mut revoked = Vec::new();
        for key in keys {
            revoked.push(self.roster.revoke(&key));
        }
        let mut items = 0;
        for revoked in revoked {
            items += revoked.gone().await;
        }
        items
    }

    /// Returns the counts so far. It may be called at any time, also from inside a worker.
    pub fn summary(&self) -> Summary<K> {
        self.roster.summary(&Unfinished::none())
    }

    /// Returns how many items wait for each key, without those that its worker has moved out of its
    /// mailbox; keys for which none waits are left out. They come in no particular order.
    ///
    /// It looks at all keys, so it is for a log line when the input waits, not for each item. It may
    /// be called at any time, also from inside a worker.
    pub fn queues(&self) -> Vec<(K, usize)> {
        self.roster.queues()
    }
}

impl<K: Hash + Eq, T> WorkersHandle<K, T> {
    /// Returns the number of workers that are alive, or wait until the one before them has
    /// returned. Keys that wait for a place do not count. It may be called at any time, also from
    /// inside a worker.
    pub fn workers(&self) -> usize {
        self.roster.len()
    }
}

impl<K: Hash + Eq, T> Clone for WorkersHandle<K, T> {
    fn clone(&self) -> Self {
        Self { roster: Arc::clone(&self.roster) }
    }
}

impl<K: Hash + Eq, T> fmt::Debug for WorkersHandle<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkersHandle").field("roster", &self.roster).finish()
    }
}
