//! [`SubscriptionReader`] and [`SubscriptionKeys`]: the halves of a subscription that was split.

use std::borrow::Borrow;
use std::fmt;
use std::future::poll_fn;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use futures_core::Stream;

use super::keys::{Keys, Leftovers};
use super::shared::lock;
use super::source::Source;
use crate::read::{End, Lagged, Receive};

/// The half of a subscription that reads. [`Subscription::split`](super::Subscription::split)
/// creates it.
///
/// Dropping it leaves: the keys are free at once, what was not read is dropped, and the other half
/// adds no more keys.
pub struct SubscriptionReader<K, V> {
    /// Dropped first, as in a subscription.
    source: Source<V>,
    keys: Leaves<K, V>,
}

/// Leaves all keys when it is dropped.
struct Leaves<K, V>(SubscriptionKeys<K, V>);

impl<K, V> Drop for Leaves<K, V> {
    fn drop(&mut self) {
        let leftovers = self.0.lock().end();
        drop(leftovers);
    }
}

impl<K, V> SubscriptionReader<K, V> {
    pub(super) fn new(source: Source<V>, keys: SubscriptionKeys<K, V>) -> Self {
        Self { source, keys: Leaves(keys) }
    }
}

/// Reading, as with a [`Subscription`](super::Subscription).
impl<K, V> SubscriptionReader<K, V> {
    /// Waits for the next item. Returns `None` when the subscription has [ended](Self::end).
    ///
    /// Everything that [`Subscription::recv`](super::Subscription::recv) says applies.
    pub async fn recv(&mut self) -> Option<Result<V, Lagged>> {
        poll_fn(|cx| self.source.poll_recv(cx)).await
    }

    /// Waits until there is something to read, and appends up to `limit` items and losses to
    /// `buffer`.
    ///
    /// Returns how many were appended: 0 if the subscription has ended, or if `limit` is 0. Everything
    /// that [`Subscription::recv_many`](super::Subscription::recv_many) says applies.
    pub async fn recv_many(&mut self, buffer: &mut Vec<Result<V, Lagged>>, limit: usize) -> usize {
        poll_fn(|cx| self.source.poll_recv_many(cx, buffer, limit)).await
    }

    /// Returns the next item, or what is missing before it, if it can be read without waiting.
    pub fn try_recv(&mut self) -> Option<Result<V, Lagged>> {
        self.source.try_recv()
    }

    /// Returns why no more items will come, as soon as that is certain. There may still be some to
    /// read.
    pub fn end(&self) -> Option<End> {
        self.source.end()
    }

    /// Returns the number of items that can be read without waiting.
    pub fn len(&self) -> usize {
        self.source.len()
    }

    /// Returns `true` if no item can be read without waiting.
    pub fn is_empty(&self) -> bool {
        self.source.len() == 0
    }

    /// Returns how many items this subscription has lost so far.
    pub fn lost(&self) -> u64 {
        self.source.lost()
    }
}

impl<K, V> Stream for SubscriptionReader<K, V> {
    type Item = Result<V, Lagged>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.source.poll_recv(cx)
    }
}

impl<K, V> Unpin for SubscriptionReader<K, V> {}

impl<K: fmt::Debug, V> fmt::Debug for SubscriptionReader<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubscriptionReader")
            .field("keys", &*self.keys.0.lock())
            .field("len", &self.len())
            .field("lost", &self.lost())
            .field("end", &self.end())
            .finish_non_exhaustive()
    }
}

/// The half of a subscription that adds and removes keys. Clones are handles to the same keys.
///
/// [`Subscription::split`](super::Subscription::split) creates it. When the other half is dropped,
/// all keys are left. When all clones of this half are, the keys stay as they are.
pub struct SubscriptionKeys<K, V>(Arc<Mutex<Keys<K, V>>>);

impl<K, V> SubscriptionKeys<K, V> {
    pub(super) fn new(keys: Keys<K, V>) -> Self {
        Self(Arc::new(Mutex::new(keys)))
    }

    /// `Hash`, `Eq`, `Clone` and `Debug` of keys run under the lock, and nothing else of a user: what is
    /// to be dropped and to be woken is among the [`Leftovers`].
    fn lock(&self) -> MutexGuard<'_, Keys<K, V>> {
        lock(&self.0)
    }
}

impl<K: Hash + Eq + Clone, V> SubscriptionKeys<K, V> {
    /// Subscribes to one more key, on the same terms. Returns `false` if it is subscribed already,
    /// or the reader is gone.
    ///
    /// The same applies as to [`Subscription::add`](super::Subscription::add).
    pub fn add(&self, key: K) -> bool {
        let mut leftovers = Leftovers::nothing();
        let is_added = self.lock().add(key, &mut leftovers);
        drop(leftovers);
        is_added
    }

    /// Leaves a key. Returns `false` if it is not subscribed.
    ///
    /// The same applies as to [`Subscription::remove`](super::Subscription::remove).
    pub fn remove<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut leftovers = Leftovers::nothing();
        let is_removed = self.lock().remove(key, &mut leftovers);
        drop(leftovers);
        is_removed
    }

    /// Returns the keys, in no particular order. Those that have reached their
    /// [limit](crate::Terms::limit) are not among them.
    pub fn keys(&self) -> Vec<K> {
        self.lock().keys().cloned().collect()
    }
}

impl<K, V> Clone for SubscriptionKeys<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: fmt::Debug, V> fmt::Debug for SubscriptionKeys<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SubscriptionKeys").field(&*self.lock()).finish()
    }
}
