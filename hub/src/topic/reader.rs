//! [`TopicReader`]: the ends of a topic that are read.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use futures_core::Stream;
use tokio::task::coop::poll_proceed;

use super::shared::{Shared, State};
use super::sleepers::Place;
use super::taken::Taken;
use crate::inbox::{End, Lagged};

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
    shared: Arc<Shared<T>>,
    /// The position of the first item that was not taken.
    cursor: u64,
    taken: Taken<T>,
    /// Where it slept last.
    place: Option<Place>,
    /// How many items were missing in all that was taken.
    lost: u64,
}

impl<T> TopicReader<T> {
    pub(super) fn new(shared: &Arc<Shared<T>>) -> Self {
        Self {
            shared: Arc::clone(shared),
            cursor: shared.lock().log.join(),
            taken: Taken::new(),
            place: None,
            lost: 0,
        }
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
        Self::new(&self.shared)
    }

    /// Returns why no more items will come, as soon as that is certain. There may still be some to
    /// read.
    pub fn end(&self) -> Option<End> {
        self.shared.lock().end
    }

    /// Returns the number of items that can be read without waiting.
    pub fn len(&self) -> usize {
        let state = self.shared.lock();
        let come = if self.is_asleep(&state) {
            0
        } else {
            state.log.end() - self.cursor - state.log.lost_from(self.cursor)
        };
        self.taken.len() + usize::try_from(come).unwrap_or(usize::MAX)
    }

    /// Returns `true` if no item can be read without waiting.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many items this reader has lost so far. [`Lagged`] tells it where they are
    /// missing.
    pub fn lost(&self) -> u64 {
        self.lost + self.shared.lock().log.lost_from(self.cursor)
    }

    /// Returns `true` if this reader waits for a flush.
    fn is_asleep(&self, state: &State<T>) -> bool {
        self.place.is_some_and(|place| state.sleepers.holds(place))
    }

    /// Takes everything that has come. Completes when there is something, or nothing will ever be.
    /// With a waker, the reader sleeps otherwise.
    fn take(&mut self, waker: Option<&Waker>) -> Poll<()> {
        self.taken.release();
        // Dropped after the lock is released.
        let mut garbage = Vec::new();
        let mut replaced = None;
        let mut state = self.shared.lock();
        let is_asleep = self.is_asleep(&state);
        if !is_asleep && state.log.end() > self.cursor {
            let taking = state.log.take(&mut self.cursor, self.taken.segments(), &mut garbage);
            drop(state);
            self.lost += taking.lost;
            self.taken.set(taking);
            return Poll::Ready(());
        }
        if state.end.is_some() {
            return Poll::Ready(());
        }
        if let Some(waker) = waker {
            match self.place.filter(|_| is_asleep) {
                Some(place) => replaced = state.sleepers.renew(place, waker),
                None => self.place = Some(state.sleepers.add(waker.clone())),
            }
        }
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.take(Some(cx.waker())));
        // If the budget is spent, the next call returns what was taken.
        ready!(poll_proceed(cx)).made_progress();
        Poll::Ready(())
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
        if self.taken.is_empty() {
            let _ = self.take(None);
        }
        self.taken.next()
    }

    /// The same as [`recv`](Self::recv), for a future that is written by hand.
    ///
    /// If it returns `Pending`, the waker of the last call is woken.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, Lagged>>> {
        if self.taken.is_empty() {
            ready!(self.poll_take(cx));
        }
        Poll::Ready(self.taken.next())
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
        if self.taken.is_empty() && limit > 0 {
            ready!(self.poll_take(cx));
        }
        let before = buffer.len();
        buffer.extend(std::iter::from_fn(|| self.taken.next()).take(limit));
        Poll::Ready(buffer.len() - before)
    }
}

impl<T: Clone> Stream for TopicReader<T> {
    type Item = Result<T, Lagged>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_recv(cx)
    }
}

impl<T> Unpin for TopicReader<T> {}

/// The reader leaves. What only it has not read is dropped.
impl<T> Drop for TopicReader<T> {
    fn drop(&mut self) {
        let mut garbage = Vec::new();
        let mut state = self.shared.lock();
        state.log.leave(self.cursor, &mut garbage);
        let waker = self.place.and_then(|place| state.sleepers.remove(place));
        drop(state);
        drop(waker);
        drop(garbage);
    }
}

impl<T> fmt::Debug for TopicReader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopicReader")
            .field("len", &self.len())
            .field("capacity", &self.shared.capacity)
            .field("lost", &self.lost())
            .field("end", &self.end())
            .finish_non_exhaustive()
    }
}
