//! [`Inbox`]: the end of an inbox that is read.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use super::InboxSink;
use super::batch::Taken;
use super::shared::{Shared, State, wake_all};
use crate::read::{End, Lagged, Receive};

/// The reader of an inbox: a [`Stream`] of items, and of how many are missing where.
///
/// [`inbox`](super::inbox) creates it. It ends when all of its sinks are gone and everything is read.
/// [`end`](Self::end) tells why.
///
/// # Fairness
///
/// On tokio, taking what has come counts as one operation of the cooperative budget, so a loop over
/// an inbox that is never empty lets other tasks run.
pub struct Inbox<T> {
    shared: Arc<Shared<T>>,
    /// What was taken from `shared` and not yet returned.
    batch: Taken<T>,
}

impl<T> Inbox<T> {
    pub(super) fn new(shared: Arc<Shared<T>>) -> Self {
        Self { shared, batch: Taken::new() }
    }

    /// Waits for the next item. Returns `None` when the inbox has ended.
    ///
    /// # Errors
    ///
    /// Returns [`Lagged`] once for each place at which items were dropped, before the item that
    /// follows. The next call returns that item.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped before it completes, nothing was taken.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{SinkExt, executor::block_on};
    /// use stream_demux_hub::{Overflow, inbox};
    ///
    /// let (mut sink, mut inbox) = inbox(2, Overflow::DropOldest);
    /// block_on(async {
    ///     for n in 1..=5 {
    ///         sink.send(n).await.unwrap();
    ///     }
    ///     drop(sink);
    ///     assert_eq!(inbox.recv().await.unwrap().unwrap_err().0, 3);
    ///     assert_eq!(inbox.recv().await, Some(Ok(4)));
    ///     assert_eq!(inbox.recv().await, Some(Ok(5)));
    ///     assert_eq!(inbox.recv().await, None);
    /// });
    /// ```
    pub async fn recv(&mut self) -> Option<Result<T, Lagged>> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Waits until there is something to read, and appends up to `limit` items and losses to
    /// `buffer`.
    ///
    /// Returns how many were appended: 0 if the inbox has ended, or if `limit` is 0.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped before it completes, nothing was taken.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{SinkExt, executor::block_on};
    /// use stream_demux_hub::{Overflow, inbox};
    ///
    /// let (mut sink, mut inbox) = inbox(64, Overflow::Wait);
    /// block_on(async {
    ///     for n in 1..=3 {
    ///         sink.feed(n).await.unwrap();
    ///     }
    ///     let mut items = Vec::new();
    ///     assert_eq!(inbox.recv_many(&mut items, 100).await, 3);
    ///     assert_eq!(items, [Ok(1), Ok(2), Ok(3)]);
    /// });
    /// ```
    pub async fn recv_many(&mut self, buffer: &mut Vec<Result<T, Lagged>>, limit: usize) -> usize {
        poll_fn(|cx| self.poll_recv_many(cx, buffer, limit)).await
    }

    /// Returns the next item, or what is missing before it, if it can be read without waiting.
    ///
    /// `None` means that there is nothing to read at present; [`end`](Self::end) tells whether
    /// anything can still come.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, SinkExt};
    /// use stream_demux_hub::{End, Overflow, inbox};
    ///
    /// let (mut sink, mut inbox) = inbox(8, Overflow::Wait);
    /// sink.send("hello").now_or_never().unwrap().unwrap();
    /// assert_eq!(inbox.try_recv(), Some(Ok("hello")));
    /// assert_eq!((inbox.try_recv(), inbox.end()), (None, None));
    ///
    /// sink.close().now_or_never().unwrap().unwrap();
    /// assert_eq!((inbox.try_recv(), inbox.end()), (None, Some(End::Closed)));
    /// ```
    pub fn try_recv(&mut self) -> Option<Result<T, Lagged>> {
        Receive::try_recv(self)
    }

    /// The same as [`recv`](Self::recv), for a future that is written by hand.
    ///
    /// If it returns `Pending`, the waker of the last call is woken.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, Lagged>>> {
        Receive::poll_recv(self, cx)
    }

    /// The same as [`recv_many`](Self::recv_many), for a future that is written by hand.
    ///
    /// If it returns `Pending`, the waker of the last call is woken.
    pub fn poll_recv_many(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut Vec<Result<T, Lagged>>,
        limit: usize,
    ) -> Poll<usize> {
        Receive::poll_recv_many(self, cx, buffer, limit)
    }

    /// Returns what tells whether this inbox is full.
    pub(crate) fn bell(&self) -> Bell<T> {
        Bell(Arc::downgrade(&self.shared))
    }

    /// Returns another sink of this inbox.
    ///
    /// An inbox that has ended because all of its sinks were gone goes on with the new one.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, SinkExt};
    /// use stream_demux_hub::{Overflow, inbox};
    ///
    /// let (sink, mut inbox) = inbox(8, Overflow::Wait);
    /// drop(sink);
    /// assert_eq!(inbox.recv().now_or_never(), Some(None));
    ///
    /// inbox.sink().send(1).now_or_never().unwrap().unwrap();
    /// assert_eq!(inbox.try_recv(), Some(Ok(1)));
    /// ```
    pub fn sink(&self) -> InboxSink<T> {
        InboxSink::new(&self.shared)
    }

    /// Takes no more items: the sinks fail from now on. What was sent before can still be read.
    ///
    /// A sink that holds items back for its next flush puts them in when it is flushed, closed or
    /// dropped. The inbox ends after these.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, SinkExt};
    /// use stream_demux_hub::{InboxError, Overflow, inbox};
    ///
    /// let (mut sink, mut inbox) = inbox(8, Overflow::Wait);
    /// sink.send(1).now_or_never().unwrap().unwrap();
    /// inbox.close();
    /// assert_eq!(sink.send(2).now_or_never(), Some(Err(InboxError::Closed)));
    /// assert_eq!(inbox.recv().now_or_never(), Some(Some(Ok(1))));
    /// assert_eq!(inbox.recv().now_or_never(), Some(None));
    /// ```
    pub fn close(&mut self) {
        self.shared.refuse(End::Closed);
    }

    /// Returns why no more items will come, as soon as that is certain. There may still be some to
    /// read.
    pub fn end(&self) -> Option<End> {
        self.shared.lock().end()
    }

    /// Returns the number of items that can be read without waiting.
    pub fn len(&self) -> usize {
        self.batch.len() + self.shared.lock().batch.len()
    }

    /// Returns `true` if no item can be read without waiting.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many items were dropped because the inbox was full. [`Lagged`] tells it where
    /// they are missing.
    pub fn lost(&self) -> u64 {
        self.shared.lock().lost
    }
}

impl<T> Receive for Inbox<T> {
    type Item = T;

    fn has_taken(&self) -> bool {
        !self.batch.is_empty()
    }

    #[inline]
    fn pop_ready(&mut self) -> Option<T> {
        self.batch.pop()
    }

    fn next_taken(&mut self) -> Option<Result<T, Lagged>> {
        self.batch.next()
    }

    fn take(&mut self) {
        let mut state = self.shared.lock();
        let writers = take(&self.shared, &mut state, &mut self.batch);
        drop(state);
        wake_all(writers);
    }

    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.shared.lock();
        if state.batch.is_empty() && state.end().is_none() {
            let replaced = self.shared.sleep(&mut state, cx.waker());
            state.batch.take_room(&mut self.batch);
            drop(state);
            drop(replaced);
            return Poll::Pending;
        }
        let writers = take(&self.shared, &mut state, &mut self.batch);
        drop(state);
        wake_all(writers);
        Poll::Ready(())
    }
}

impl<T> Stream for Inbox<T> {
    type Item = Result<T, Lagged>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Receive::poll_recv(self.get_mut(), cx)
    }
}

impl<T> Unpin for Inbox<T> {}

/// The sinks fail from now on, and the items that were not read are dropped.
impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        self.shared.desert();
        self.batch = Taken::new();
        let mut state = self.shared.lock();
        // No sink waits: all were woken.
        drop(take(&self.shared, &mut state, &mut self.batch));
        drop(state);
    }
}

/// Refers to an inbox, and tells whether it is full.
#[derive(Debug)]
pub(crate) struct Bell<T>(Weak<Shared<T>>);

impl<T> Bell<T> {
    /// Puts items in before a sink sends its first, and wakes the reader.
    pub(crate) fn put_some(&self, items: Vec<T>, sink: u32) {
        if let Some(shared) = self.0.upgrade() {
            shared.put_some(items, sink);
        }
    }

    /// Returns another sink of the inbox, unless nothing of it is left.
    pub(crate) fn sink(&self) -> Option<InboxSink<T>> {
        Some(InboxSink::new(&self.0.upgrade()?))
    }

    /// Returns `true` if an item waits for room.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.0.upgrade().is_some_and(|shared| shared.is_waited_for.load(Relaxed))
    }

    /// Returns `true` if there is no room for another item.
    pub(crate) fn is_full(&self) -> bool {
        self.0.upgrade().is_some_and(|shared| shared.is_full())
    }
}

impl<T> Clone for Bell<T> {
    fn clone(&self) -> Self {
        Self(Weak::clone(&self.0))
    }
}

/// Moves everything that has come to a reader that has nothing. Returns the sinks to wake: there is
/// room now.
fn take<T>(
    shared: &Shared<T>,
    state: &mut State<T>,
    batch: &mut Taken<T>,
) -> impl Iterator<Item = Waker> + use<T> {
    state.batch.hand_over(batch);
    state.reads = state.reads.wrapping_add(1);
    shared.set_load(state);
    state.writers.take()
}

impl<T> fmt::Debug for Inbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("Inbox")
            .field("len", &(self.batch.len() + state.batch.len()))
            .field("capacity", &self.shared.capacity)
            .field("full", &self.shared.full)
            .field("sinks", &state.sinks)
            .field("lost", &state.lost)
            .field("end", &state.end())
            .finish_non_exhaustive()
    }
}
