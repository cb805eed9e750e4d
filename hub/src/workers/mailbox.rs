//! [`Mailbox`]: what a worker reads.

use std::fmt;
use std::future::poll_fn;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use stream_demux::Lease;
use tokio::sync::oneshot;

use super::roster::Roster;
use crate::inbox::Inbox;

/// The items of a key, for its worker.
///
/// [`for_each_by_key`](super::for_each_by_key) hands it to the worker. It ends when no more items will
/// come: because none came for the [idle time](super::Workers::idle_timeout), because the worker is
/// to make room for another, or because the input has ended. A worker should return then; if an
/// item of the key comes later, a new worker is made, which begins when this one has returned.
///
/// A worker may also return earlier. What it has not read is kept for a new worker of the key,
/// which is made as soon as there is something to read and the mailbox of the old one is dropped.
/// So nothing is lost if a worker returns while an item arrives, or after an error.
pub struct Mailbox<K: Hash + Eq, T> {
    post: Option<Post<K, T>>,
    back: Option<oneshot::Sender<Post<K, T>>>,
}

impl<K: Hash + Eq, T> Mailbox<K, T> {
    /// Creates a mailbox that gives the post back when it is dropped.
    pub(super) fn new(post: Post<K, T>) -> (Self, oneshot::Receiver<Post<K, T>>) {
        let (back, returned) = oneshot::channel();
        (Self { post: Some(post), back: Some(back) }, returned)
    }

    /// Waits for the next item. Returns `None` when the worker should return.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped before it completes, nothing was taken.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Waits until there is something to read, and appends up to `limit` items to `buffer`.
    ///
    /// Returns how many were appended: 0 if the worker should return, or if `limit` is 0. The input
    /// waits while there is no room in the mailbox, so read what can be handled together, for
    /// example in one transaction.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped before it completes, nothing was taken.
    pub async fn recv_many(&mut self, buffer: &mut Vec<T>, limit: usize) -> usize {
        let Some(post) = self.post.as_mut().filter(|_| limit > 0) else { return 0 };
        let before = buffer.len();
        if poll_fn(|cx| post.poll_filled(cx)).await {
            buffer.extend(std::iter::from_fn(|| post.try_recv()).take(limit));
        }
        buffer.len() - before
    }

    /// Returns the next item, if it can be read without waiting.
    pub fn try_recv(&mut self) -> Option<T> {
        self.post.as_mut()?.try_recv()
    }

    /// The same as [`recv`](Self::recv), for a future that is written by hand.
    ///
    /// If it returns `Pending`, the waker of the last call is woken.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let Some(post) = &mut self.post else { return Poll::Ready(None) };
        let is_filled = ready!(post.poll_filled(cx));
        Poll::Ready(if is_filled { post.try_recv() } else { None })
    }

    /// Returns the number of items that can be read without waiting.
    pub fn len(&self) -> usize {
        self.post.as_ref().map_or(0, |post| post.inbox.len())
    }

    /// Returns `true` if no item can be read without waiting.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: Hash + Eq, T> Stream for Mailbox<K, T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.get_mut().poll_recv(cx)
    }
}

impl<K: Hash + Eq, T> Unpin for Mailbox<K, T> {}

/// Gives what was not read to the next worker.
impl<K: Hash + Eq, T> Drop for Mailbox<K, T> {
    fn drop(&mut self) {
        if let (Some(post), Some(back)) = (self.post.take(), self.back.take()) {
            // If it fails, the task of the workers of this key is gone.
            let _ = back.send(post);
        }
    }
}

impl<K: Hash + Eq, T> fmt::Debug for Mailbox<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// What the workers of a key hand to each other.
pub(super) struct Post<K, T> {
    pub(super) inbox: Inbox<T>,
    /// The attachment of the inbox. Dropping it frees the key at once.
    pub(super) lease: Option<Lease>,
    /// How many items were taken.
    pub(super) taken: Arc<AtomicU64>,
    pub(super) roster: Arc<Roster<K, T>>,
}

impl<K: Hash + Eq, T> Post<K, T> {
    /// Waits until there is something to read. Completes with `false` if there will never be.
    pub(super) fn poll_filled(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let answer = self.inbox.poll_filled(cx);
        // Looked at after the reader is registered, so that either this or a bell is noticed. What
        // comes before the key is left still arrives.
        if answer.is_pending() && self.roster.wants_room() {
            self.lease.take().into_iter().for_each(Lease::detach);
        }
        answer
    }

    pub(super) fn try_recv(&mut self) -> Option<T> {
        let item = self.inbox.try_recv()?;
        self.taken.store(self.taken.load(Relaxed) + 1, Relaxed);
        Some(item.expect("an inbox that waits loses nothing"))
    }
}
