//! [`Subscription`]: what a subscriber reads.

use std::borrow::Borrow;
use std::fmt;
use std::future::poll_fn;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::keys::{Keys, Leftovers};
use super::shared::Shared;
use super::source::Source;
use super::split::{SubscriptionKeys, SubscriptionReader};
use super::terms::Terms;
use crate::read::{End, Lagged, Receive};
use crate::topic::clone_some;

/// A stream of the items that are published under its keys.
///
/// [`Hub::subscribe`](crate::Hub::subscribe) and [`Hub::subscribe_with`](crate::Hub::subscribe_with)
/// create it. It can be read with [`recv`](Self::recv) and its relatives, or as a [`Stream`].
///
/// * Items of one key come in the order in which they were published, and so do items of several
///   keys if one task published them.
/// * All keys share one buffer, whose size and policy the [`Terms`] set. Where items are dropped,
///   the subscriber gets a [`Lagged`] instead.
/// * Subscriptions to one key on the default terms share what they read. With [`add`](Self::add) or
///   [`remove`](Self::remove) one of them gets a buffer of its own, behind what it has not read.
/// * It ends when the hub has ended and everything is read, or when the hub gives the subscriber
///   up. [`end`](Self::end) tells why. Without keys, it waits for the end of the hub.
/// * Dropping it leaves: the keys are free at once, what was not read is dropped.
pub struct Subscription<K, V> {
    /// Dropped first: a topic is forgotten when its last reader has left.
    source: Source<V>,
    keys: Keys<K, V>,
}

impl<K: Hash + Eq + Clone, V> Subscription<K, V> {
    pub(super) fn new(
        shared: &Arc<Shared<K, V>>,
        keys: impl IntoIterator<Item = K>,
        terms: Terms,
    ) -> Self
    where
        V: Clone,
    {
        let (keys, source) = Keys::new(shared, keys, terms, clone_some);
        Self { source, keys }
    }

    /// Subscribes to one more key, on the same terms. Returns `false` if it is subscribed already.
    ///
    /// Items that the same task publishes after this call are received. With a
    /// [replay](Terms::replay), the last items of the key come before them, also if it was subscribed
    /// before and removed. A key that has reached its
    /// [limit](Terms::limit) is not subscribed any more, and its limit begins anew.
    pub fn add(&mut self, key: K) -> bool {
        if self.keys.topic() == Some(&key) {
            return false;
        }
        self.keys.move_to_inbox(&mut self.source);
        self.keys.add(key, &mut Leftovers::nothing())
    }

    /// Leaves a key. Returns `false` if it is not subscribed.
    ///
    /// Items that were routed before can still be received, and the loss of one is still told. An
    /// item that was published just before this call may not be routed yet, and is not received
    /// then: leave when you have read what you wait for. Under [`Wait`](crate::Overflow::Wait) the hub
    /// still waits for room for an item that was routed before, and reads no other until then.
    pub fn remove<Q>(&mut self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if self.keys.topic().is_some_and(|only| only.borrow() == key) {
            self.keys.move_to_inbox(&mut self.source);
        }
        self.keys.remove(key, &mut Leftovers::nothing())
    }

    /// Returns the keys, in no particular order. Those that have reached their
    /// [limit](Terms::limit) are not among them.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.keys.keys()
    }

    /// Splits the subscription into a half that reads, and one that adds and removes keys and can
    /// be cloned: for two tasks of a client, of which one reads what the client asks for.
    ///
    /// A subscription that is split has an inbox of its own, also on the default terms.
    ///
    /// # Examples
    ///
    /// ```
    /// use stream_demux_hub::{Hub, Terms};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let rooms = Hub::new();
    /// let (mut reader, keys) = rooms.subscribe_with([], Terms::new()).split();
    /// let client = tokio::spawn(async move {
    ///     assert!(keys.add("tea"));
    ///     rooms.publish("tea", "hello").await.unwrap();
    /// });
    /// assert_eq!(reader.recv().await, Some(Ok("hello")));
    /// # client.await.unwrap();
    /// # }
    /// ```
    pub fn split(mut self) -> (SubscriptionReader<K, V>, SubscriptionKeys<K, V>) {
        self.keys.move_to_inbox(&mut self.source);
        let Self { source, keys } = self;
        let keys = SubscriptionKeys::new(keys);
        (SubscriptionReader::new(source, keys.clone()), keys)
    }
}

/// Reading.
impl<K, V> Subscription<K, V> {
    /// Waits for the next item. Returns `None` when the subscription has [ended](Self::end).
    ///
    /// # Errors
    ///
    /// Returns [`Lagged`] once for each place at which items were dropped, before the item that
    /// follows. The next call returns that item.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped before it completes, nothing was taken.
    pub async fn recv(&mut self) -> Option<Result<V, Lagged>> {
        poll_fn(|cx| self.source.poll_recv(cx)).await
    }

    /// Waits until there is something to read, and appends up to `limit` items and losses to
    /// `buffer`.
    ///
    /// Returns how many were appended: 0 if the subscription has ended, or if `limit` is 0. To
    /// write a burst with one system call, read it with this method.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped before it completes, nothing was taken.
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

impl<K, V> Stream for Subscription<K, V> {
    type Item = Result<V, Lagged>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.source.poll_recv(cx)
    }
}

impl<K, V> Unpin for Subscription<K, V> {}

impl<K: fmt::Debug, V> fmt::Debug for Subscription<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("keys", &self.keys)
            .field("len", &self.len())
            .field("lost", &self.lost())
            .field("end", &self.end())
            .finish_non_exhaustive()
    }
}
