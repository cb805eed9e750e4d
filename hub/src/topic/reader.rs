//! [`TopicReader`]: the ends of a topic that are read.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::cursor::{Cursor, Unflushed, Unused};
use super::segment::clone_some;
use super::taken::Taken;
use crate::read::{End, Lagged, Receive};

/// A reader of a topic: a [`Stream`] of all items from its beginning on, and of how many are missing
/// where.
///
/// [`topic`](super::topic) creates the first, and [`subscribe`](Self::subscribe) and
/// [`TopicSink::subscribe`](super::TopicSink::subscribe) others. It ends when the sink is gone and
/// everything is read. [`end`](Self::end) tells why.
///
/// A reader that has waited gets nothing before the sink is flushed, or half of the capacity has
/// come. So a burst wakes it once, even if it is polled for another reason in the meantime.
///
/// # Fairness
///
/// On tokio, taking what has come counts as one operation of the cooperative budget, so a loop over
/// a topic that is never silent lets other tasks run.
pub struct TopicReader<T> {
    cursor: Cursor<T>,
    taken: Taken<T>,
}

impl<T> TopicReader<T> {
    pub(super) fn new(cursor: Cursor<T>) -> Self {
        Self { cursor, taken: Taken::new() }
    }

    /// Adds a reader, which begins with the next item that is sent.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, SinkExt};
    /// use stream_demux_hub::topic;
    ///
    /// let (mut sink, mut early) = topic(16);
    /// sink.send(1).now_or_never().unwrap().unwrap();
    /// let mut late = early.subscribe();
    /// sink.send(2).now_or_never().unwrap().unwrap();
    /// assert_eq!((early.try_recv(), early.try_recv()), (Some(Ok(1)), Some(Ok(2))));
    /// assert_eq!((late.try_recv(), late.try_recv()), (Some(Ok(2)), None));
    /// ```
    pub fn subscribe(&self) -> Self {
        Self::new(Cursor::new(&self.cursor.shared))
    }

    /// Returns why no more items will come, as soon as that is certain. There may still be some to
    /// read.
    pub fn end(&self) -> Option<End> {
        self.cursor.end()
    }

    /// Returns the number of items that can be read without waiting.
    pub fn len(&self) -> usize {
        self.taken.len() + self.cursor.len()
    }

    /// Returns `true` if no item can be read without waiting.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many items this reader has lost so far. [`Lagged`] tells it where they are
    /// missing.
    pub fn lost(&self) -> u64 {
        self.cursor.lost()
    }
}

/// Reading.
impl<T: Clone> TopicReader<T> {
    /// Waits for the next item. Returns `None` when the topic has [ended](Self::end).
    ///
    /// # Errors
    ///
    /// Returns [`Lagged`] once for each place at which items were lost, before the item that
    /// follows. The next call returns that item.
    ///
    /// # Panics
    ///
    /// Panics if the `clone` of the item does. The item is not lost by that.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped before it completes, nothing was taken.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{SinkExt, executor::block_on};
    /// use stream_demux_hub::{Lagged, topic};
    ///
    /// let (mut sink, mut reader) = topic(2);
    /// block_on(async {
    ///     for n in 1..=5 {
    ///         sink.send(n).await.unwrap();
    ///     }
    ///     drop(sink);
    ///     assert_eq!(reader.recv().await, Some(Err(Lagged(3))));
    ///     assert_eq!(reader.recv().await, Some(Ok(4)));
    ///     assert_eq!(reader.recv().await, Some(Ok(5)));
    ///     assert_eq!(reader.recv().await, None);
    /// });
    /// ```
    pub async fn recv(&mut self) -> Option<Result<T, Lagged>> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Waits until there is something to read, and appends up to `limit` items and losses to
    /// `buffer`.
    ///
    /// Returns how many were appended: 0 if the topic has ended, or if `limit` is 0.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped before it completes, nothing was taken.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{SinkExt, executor::block_on};
    /// use stream_demux_hub::topic;
    ///
    /// let (mut sink, mut reader) = topic(64);
    /// block_on(async {
    ///     for n in 1..=3 {
    ///         sink.feed(n).await.unwrap();
    ///     }
    ///     let mut items = Vec::new();
    ///     assert_eq!(reader.recv_many(&mut items, 100).await, 3);
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
    /// use stream_demux_hub::{End, topic};
    ///
    /// let (mut sink, mut reader) = topic(8);
    /// sink.send("hello").now_or_never().unwrap().unwrap();
    /// assert_eq!(reader.try_recv(), Some(Ok("hello")));
    /// assert_eq!((reader.try_recv(), reader.end()), (None, None));
    ///
    /// sink.close().now_or_never().unwrap().unwrap();
    /// assert_eq!((reader.try_recv(), reader.end()), (None, Some(End::Closed)));
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
}

impl<T: Clone> Receive for TopicReader<T> {
    type Item = T;

    fn has_taken(&self) -> bool {
        !self.taken.is_empty()
    }

    #[inline]
    fn pop_ready(&mut self) -> Option<T> {
        self.taken.pop_ready()
    }

    fn next_taken(&mut self) -> Option<Result<T, Lagged>> {
        self.taken.next(clone_some)
    }

    fn take(&mut self) {
        // If there is nothing, the caller notices.
        let _ = self.cursor.take(&mut self.taken, None, Unflushed::Left, &mut Unused::nothing());
    }

    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut unused = Unused::nothing();
        self.cursor.take(&mut self.taken, Some(cx.waker()), Unflushed::Left, &mut unused)
    }
}

impl<T: Clone> Stream for TopicReader<T> {
    type Item = Result<T, Lagged>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Receive::poll_recv(self.get_mut(), cx)
    }
}

impl<T> Unpin for TopicReader<T> {}

impl<T> fmt::Debug for TopicReader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopicReader")
            .field("len", &self.len())
            .field("capacity", &self.cursor.shared.capacity)
            .field("lost", &self.lost())
            .field("end", &self.end())
            .finish_non_exhaustive()
    }
}
