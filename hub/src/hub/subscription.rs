//! [`Subscription`]: what a subscriber reads; and [`Next`], for a single item.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use stream_demux::{Attach, Lease, Overflow};
use tokio::sync::oneshot;

use super::shared::Shared;
use super::sink::HubSink;
use super::terms::Terms;
use super::watch::Watch;
use crate::inbox::{End, Inbox, Lagged, inbox_of_hub};

/// A stream of the items that are published under its keys.
///
/// [`Hub::subscribe`](crate::Hub::subscribe) and [`Hub::subscribe_with`](crate::Hub::subscribe_with)
/// create it. It can be read with [`recv`](Self::recv) and its relatives, or as a [`Stream`].
///
/// * Items of one key come in the order in which they were published, and so do items of several
///   keys if one task published them.
/// * All keys share one buffer, whose size and policy the [`Terms`] set. Where items are dropped,
///   the subscriber gets a [`Lagged`] instead.
/// * It ends when the hub has ended and everything is read, or when the hub gives the subscriber
///   up. [`end`](Self::end) tells why. Without keys, it waits for the end of the hub.
/// * Dropping it leaves: the keys are free at once, what was not read is dropped.
pub struct Subscription<K, V> {
    inbox: Inbox<V>,
    keys: HashMap<K, Hold>,
    terms: Terms,
    shared: Arc<Shared<K, V>>,
    /// Its number among the subscriptions without keys.
    keyless: Option<u64>,
}

/// A key of a subscription.
struct Hold {
    lease: Lease,
    /// If the terms ask for one.
    watch: Option<Arc<Watch>>,
}

impl Hold {
    /// Returns `true` if the limit of the key is not reached.
    fn is_live(&self) -> bool {
        self.watch.as_ref().is_none_or(|watch| !watch.is_used_up())
    }

    /// Lets a key go that has reached its limit: its sink is about to be closed, and is not torn off
    /// before.
    fn let_go(&mut self) {
        std::mem::take(&mut self.lease).disarm();
    }
}

/// The table of keys keeps room for this many.
const KEYS_KEPT: usize = 16;

impl<K: Hash + Eq + Clone, V> Subscription<K, V> {
    pub(super) fn new(
        shared: &Arc<Shared<K, V>>,
        keys: impl IntoIterator<Item = K>,
        terms: Terms,
    ) -> Self {
        let (sink, inbox) = inbox_of_hub(terms.buffer, terms.overflow, &shared.life);
        let shared = Arc::clone(shared);
        let mut new = Self { inbox, keys: HashMap::new(), terms, shared, keyless: None };
        new.attach(keys);
        sink.retire(); // there are others by now
        new
    }

    /// Subscribes to one more key, on the same terms. Returns `false` if it is subscribed already.
    ///
    /// Items that the same task publishes after this call are received. A key that has reached its
    /// [limit](Terms::limit) is not subscribed any more, and its limit begins anew.
    pub fn add(&mut self, key: K) -> bool {
        if self.keys.get(&key).is_some_and(Hold::is_live) {
            return false;
        }
        self.attach([key]);
        true
    }

    /// Leaves a key. Returns `false` if it is not subscribed.
    ///
    /// Items that were routed before can still be received, and the loss of one is still told. An
    /// item that was published just before this call may not be routed yet, and is not received
    /// then: leave when you have read what you wait for.
    pub fn remove<Q>(&mut self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Some(mut hold) = self.keys.remove(key) else { return false };
        if !hold.is_live() {
            hold.let_go();
            return false;
        }
        if self.keys().next().is_none() {
            self.keyless = Some(self.shared.keep_open(self.inbox.sink()));
        }
        hold.lease.detach();
        if self.keys.capacity() / 8 > self.keys.len().max(KEYS_KEPT) {
            self.keys.shrink_to(self.keys.len() * 2);
        }
        true
    }

    /// Returns the keys, in no particular order. Those that have reached their
    /// [limit](Terms::limit) are not among them.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.keys.iter().filter(|(_, hold)| hold.is_live()).map(|(key, _)| key)
    }

    fn attach(&mut self, keys: impl IntoIterator<Item = K>) {
        let mut attaches = Vec::new();
        for key in keys {
            if self.keys.get(&key).is_some_and(Hold::is_live) {
                continue;
            }
            self.forget_used_up();
            let (sink, watch) = self.make_sink(&key);
            let mut lease = Lease::new();
            attaches.push(Attach::new(key.clone(), sink).leased(&mut lease));
            if let Some(mut old) = self.keys.insert(key, Hold { lease, watch }) {
                old.let_go();
            }
        }
        self.shared.attach(&self.terms, attaches);
        if self.keys.is_empty() && self.keyless.is_none() {
            self.keyless = Some(self.shared.keep_open(self.inbox.sink()));
        } else if let Some(id) = self.keyless.take_if(|_| !self.keys.is_empty()) {
            self.shared.forget_keyless(id);
        }
    }

    /// Makes the sink of a key, with a watch if the terms ask for one.
    fn make_sink(&self, key: &K) -> (HubSink<V>, Option<Arc<Watch>>) {
        let sink = self.inbox.sink();
        if self.terms.limit.is_none() && self.terms.overflow != Overflow::Wait {
            return (HubSink::Inbox(sink), None);
        }
        let watch = self.shared.watch(key.clone(), &self.terms, Some(self.inbox.bell()));
        (HubSink::watched(sink, Arc::clone(&watch)), Some(watch))
    }

    /// Forgets the keys that have reached their limits, if the table is full. As much room again is
    /// left then, so that looking through the table costs little for each key that is added.
    fn forget_used_up(&mut self) {
        if self.terms.limit.is_none() || self.keys.len() < self.keys.capacity() {
            return;
        }
        self.keys.retain(|_, hold| {
            let is_live = hold.is_live();
            if !is_live {
                hold.let_go();
            }
            is_live
        });
        self.keys.reserve(self.keys.len().max(KEYS_KEPT));
        self.keys.shrink_to(4 * self.keys.len().max(KEYS_KEPT));
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
        poll_fn(|cx| self.inbox.poll_recv(cx)).await
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
        poll_fn(|cx| self.inbox.poll_recv_many(cx, buffer, limit)).await
    }

    /// Returns the next item, or what is missing before it, if it can be read without waiting.
    pub fn try_recv(&mut self) -> Option<Result<V, Lagged>> {
        self.inbox.try_recv()
    }

    /// Returns why no more items will come, as soon as that is certain. There may still be some to
    /// read.
    pub fn end(&self) -> Option<End> {
        self.inbox.end()
    }

    /// Returns the number of items that can be read without waiting.
    pub fn len(&self) -> usize {
        self.inbox.len()
    }

    /// Returns `true` if no item can be read without waiting.
    pub fn is_empty(&self) -> bool {
        self.inbox.is_empty()
    }

    /// Returns how many items this subscription has lost so far.
    pub fn lost(&self) -> u64 {
        self.inbox.lost()
    }
}

impl<K, V> Stream for Subscription<K, V> {
    type Item = Result<V, Lagged>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.inbox.poll_recv(cx)
    }
}

impl<K, V> Unpin for Subscription<K, V> {}

impl<K, V> Drop for Subscription<K, V> {
    fn drop(&mut self) {
        if let Some(id) = self.keyless {
            self.shared.forget_keyless(id);
        }
    }
}

impl<K: fmt::Debug, V> fmt::Debug for Subscription<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("keys", &Keys(&self.keys))
            .field("inbox", &self.inbox)
            .finish_non_exhaustive()
    }
}

/// Prints the keys that are subscribed.
struct Keys<'a, K>(&'a HashMap<K, Hold>);

impl<K: fmt::Debug> fmt::Debug for Keys<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live = self.0.iter().filter(|(_, hold)| hold.is_live());
        f.debug_list().entries(live.map(|(key, _)| key)).finish()
    }
}

/// A future of the next item of a key. [`Hub::next`](crate::Hub::next) creates it.
///
/// Completes with `None` if the hub ends before. Dropping it leaves the key at once.
#[must_use = "dropping it leaves the key"]
pub struct Next<V> {
    item: oneshot::Receiver<V>,
    _lease: Lease,
}

impl<V> Next<V> {
    pub(super) fn new(item: oneshot::Receiver<V>, lease: Lease) -> Self {
        Self { item, _lease: lease }
    }
}

impl<V> Future for Next<V> {
    type Output = Option<V>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<V>> {
        Pin::new(&mut self.item).poll(cx).map(Result::ok)
    }
}

impl<V> fmt::Debug for Next<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").finish_non_exhaustive()
    }
}
