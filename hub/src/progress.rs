//! [`Progress`]: up to which position of a partitioned log everything is done.
//!
//! The offsets of a partition are in a queue, in their order: what is begun goes to its end, and
//! what is done leaves from its front. What is done behind an item that hangs is removed as soon as
//! it is more than half of the queue. So memory follows what is open, however many items are done
//! after it, and an item costs a push and a binary search.
//!
//! A ticket holds the state of its partition, not the name. So one of a partition that was forgotten
//! changes a state that nothing reads any more.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use pin_project_lite::pin_project;

use crate::bounds::InputStream;

/// Tells up to which position of each partition of a log everything is done, while items are done
/// in any order. For Kafka, Kinesis, the streams of Redis or NATS, and the like.
///
/// [`begin`](Self::begin) an item when it is read, before it goes to the workers, or let
/// [`track`](Self::track) do so for each item of a stream; its [`Ticket`] travels with it.
/// The worker that has handled it calls [`done`](Ticket::done). Commit what
/// [`committable`](Self::committable) returns now and then, and at the end; [`open`](Self::open)
/// names what is not done.
///
/// A clone refers to the same positions. All methods may be called from any thread, also from inside
/// a worker; none waits.
///
/// # Examples
///
/// ```
/// use stream_demux_hub::Progress;
///
/// let progress = Progress::new();
/// let first = progress.begin("orders-0", 7);
/// let second = progress.begin("orders-0", 8);
/// let third = progress.begin("orders-0", 11); // there may be gaps
///
/// third.done();
/// assert_eq!(progress.committable()["orders-0"], 7); // 7 and 8 are not done
/// first.done();
/// assert_eq!(progress.committable()["orders-0"], 8);
/// drop(second); // its worker has panicked: 8 is not done, and never will be
/// assert_eq!(progress.open(), [("orders-0", 8)]);
/// ```
pub struct Progress<P> {
    partitions: Arc<Mutex<HashMap<P, Arc<Partition>>>>,
}

#[derive(Debug, Default)]
struct Partition(Mutex<Positions>);

#[derive(Debug, Default)]
struct Positions {
    /// Sorted by their offsets. The first one is open.
    begun: VecDeque<Begun>,
    /// How many of them are open.
    open: usize,
    /// The position after the highest offset that was begun.
    next: u64,
}

#[derive(Debug)]
struct Begun {
    offset: u64,
    /// How often it is open.
    times: u32,
}

/// A queue is not searched for what is done until it has as many offsets as this: then it fits in a
/// page, and each search is paid for by as many that were done.
const FEW: usize = 128;

impl Positions {
    fn begin(&mut self, offset: u64) {
        // Nearly always the end.
        let is_last = self.begun.back().is_none_or(|last| last.offset < offset);
        let place = if is_last { Err(self.begun.len()) } else { self.find(offset) };
        match place {
            Ok(index) => {
                let begun = &mut self.begun[index];
                self.open += usize::from(begun.times == 0);
                begun.times += 1;
            }
            Err(index) => {
                self.begun.insert(index, Begun { offset, times: 1 });
                self.open += 1;
            }
        }
        self.next = self.next.max(offset.saturating_add(1));
    }

    fn end(&mut self, offset: u64) {
        // An open offset is always found.
        let Ok(index) = self.find(offset) else { return };
        self.begun[index].times -= 1;
        if self.begun[index].times > 0 {
            return;
        }
        self.open -= 1;
        while self.begun.front().is_some_and(|first| first.times == 0) {
            self.begun.pop_front();
        }
        if self.begun.len() > FEW.max(2 * self.open) {
            self.begun.retain(|begun| begun.times > 0);
            self.begun.shrink_to(FEW.max(4 * self.open));
        }
    }

    fn find(&self, offset: u64) -> Result<usize, usize> {
        self.begun.binary_search_by_key(&offset, |begun| begun.offset)
    }

    fn open(&self) -> impl Iterator<Item = u64> {
        self.begun.iter().filter(|begun| begun.times > 0).map(|begun| begun.offset)
    }

    /// The position before which everything is done.
    fn committable(&self) -> u64 {
        self.begun.front().map_or(self.next, |first| first.offset)
    }
}

impl Partition {
    fn lock(&self) -> MutexGuard<'_, Positions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P> Progress<P> {
    /// Creates one that knows of no partition.
    pub fn new() -> Self {
        Self { partitions: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<P, Arc<Partition>>> {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Hash + Eq + Clone> Progress<P> {
    /// Begins an item: it is open until its ticket is [done](Ticket::done).
    ///
    /// Begin the items of a partition in the order of the log. There may be gaps between their
    /// offsets. An offset that is begun again, for example because the log was read again from an
    /// earlier position, is open until both are done, and the position to commit goes back to it.
    /// An item that is begun too late, after a later one was done and committed, does the same; what
    /// was committed in the meantime is not taken back. If many items are open, each that is begun
    /// out of order costs as much as moving them.
    ///
    /// # Examples
    ///
    /// ```
    /// use stream_demux_hub::Progress;
    ///
    /// let progress = Progress::new();
    /// progress.begin(0, 5).done();
    /// let again = progress.begin(0, 5);
    /// assert_eq!(progress.committable()[&0], 5);
    /// again.done();
    /// assert_eq!(progress.committable()[&0], 6);
    /// ```
    pub fn begin(&self, partition: P, offset: u64) -> Ticket {
        // Dropped after the locks are released.
        let mut unused = None;
        let mut partitions = self.lock();
        let known = match partitions.get(&partition) {
            Some(known) => {
                unused = Some(partition);
                Arc::clone(known)
            }
            None => Arc::clone(partitions.entry(partition).or_default()),
        };
        // Both locks, so that a partition that is forgotten meanwhile gets nothing.
        let mut positions = known.lock();
        drop(partitions);
        positions.begin(offset);
        drop(positions);
        drop(unused);
        Ticket { partition: known, offset }
    }

    /// Begins each item of a stream when it is read, and hands it on with its ticket.
    ///
    /// `position` returns the partition and the offset of an item. The stream that is returned may
    /// be dropped at any time: what was read keeps its place.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::stream;
    /// use stream_demux_hub::{Progress, Workers, for_each_by_key};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let progress = Progress::new();
    /// // A partition, an offset, a customer.
    /// let log = stream::iter([(0, 4, "ann"), (0, 5, "ben"), (1, 2, "ann"), (0, 6, "ann")]);
    /// let orders = progress.track(log, |&(partition, offset, _)| (partition, offset));
    /// for_each_by_key(orders, |(order, _)| order.2, Workers::new(), |customer, mut orders| async move {
    ///     while let Some((_, ticket)) = orders.recv().await {
    ///         if customer == "ben" {
    ///             return Err("no credit");
    ///         }
    ///         ticket.done();
    ///     }
    ///     Ok(())
    /// })
    /// .await;
    /// assert_eq!((progress.committable()[&0], progress.committable()[&1]), (5, 3));
    /// assert_eq!(progress.open(), [(0, 5)]);
    /// # }
    /// ```
    pub fn track<St, F>(&self, input: St, position: F) -> Track<St, P, F>
    where
        St: InputStream,
        F: FnMut(&St::Input) -> (P, u64),
    {
        Track { input, progress: self.clone(), position }
    }

    /// Returns for each partition the position before which everything that was begun is done.
    ///
    /// It is the offset of the first item that is open or, if none is, the one after the highest
    /// offset that was begun. So it is the position that Kafka commits: the next one to read.
    ///
    /// # Examples
    ///
    /// ```
    /// use stream_demux_hub::Progress;
    ///
    /// let progress = Progress::new();
    /// progress.begin("a", 1).done();
    /// let _open = progress.begin("b", 1);
    /// for (partition, position) in progress.committable() {
    ///     println!("commit {partition} at {position}"); // a at 2, b at 1
    /// }
    /// ```
    pub fn committable(&self) -> HashMap<P, u64> {
        let mut committable = HashMap::new();
        for (partition, positions) in &*self.lock() {
            committable.insert(partition.clone(), positions.lock().committable());
        }
        committable
    }

    /// Returns the items that are open: their partitions and offsets, those of a partition in order.
    /// An offset that was begun more than once is listed once.
    pub fn open(&self) -> Vec<(P, u64)> {
        let mut open = Vec::new();
        for (partition, positions) in &*self.lock() {
            let positions = positions.lock();
            open.extend(positions.open().map(|offset| (partition.clone(), offset)));
        }
        open
    }

    /// Forgets a partition, for example because a rebalance has given it to another consumer.
    /// Returns the position before which everything was done, if the partition was known.
    ///
    /// Tickets of the partition that are done later have no effect, also if it is begun anew. To
    /// commit what is done before it is given away, [revoke](crate::WorkersHandle::revoke_if) its
    /// keys first, commit what this returns, and let the rebalance go on then. Called again, it
    /// returns `None`.
    ///
    /// # Examples
    ///
    /// ```
    /// use stream_demux_hub::Progress;
    ///
    /// let progress = Progress::new();
    /// progress.begin(3, 100).done();
    /// let late = progress.begin(3, 101);
    /// assert_eq!(progress.forget(&3), Some(101));
    ///
    /// let _again = progress.begin(3, 101); // the partition has come back
    /// late.done();
    /// assert_eq!(progress.committable()[&3], 101);
    /// ```
    pub fn forget(&self, partition: &P) -> Option<u64> {
        let forgotten = self.lock().remove_entry(partition);
        forgotten.map(|(_, positions)| positions.lock().committable())
    }
}

impl<P> Clone for Progress<P> {
    fn clone(&self) -> Self {
        Self { partitions: Arc::clone(&self.partitions) }
    }
}

impl<P> Default for Progress<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: fmt::Debug> fmt::Debug for Progress<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (partition, positions) in &*self.lock() {
            let positions = positions.lock();
            map.entry(partition, &(positions.committable(), positions.open));
        }
        map.finish()
    }
}

pin_project! {
    /// A stream of items and their tickets. [`Progress::track`] creates it.
    #[must_use = "streams do nothing unless polled"]
    pub struct Track<St, P, F> {
        #[pin]
        input: St,
        progress: Progress<P>,
        position: F,
    }
}

impl<St, P, F> Stream for Track<St, P, F>
where
    St: Stream,
    P: Hash + Eq + Clone,
    F: FnMut(&St::Item) -> (P, u64),
{
    type Item = (St::Item, Ticket);

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let Some(item) = ready!(this.input.poll_next(cx)) else { return Poll::Ready(None) };
        let (partition, offset) = (this.position)(&item);
        let ticket = this.progress.begin(partition, offset);
        Poll::Ready(Some((item, ticket)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.input.size_hint()
    }
}

impl<St, P: fmt::Debug, F> fmt::Debug for Track<St, P, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Track").field("progress", &self.progress).finish_non_exhaustive()
    }
}

/// An item that was [begun](Progress::begin), and is open until it is [done](Self::done).
///
/// If it is dropped without that, it stays open for ever: nothing behind it can be committed, and
/// [`Progress::open`] names it. So an item whose worker panics or is aborted is read again after a
/// restart.
#[derive(Debug)]
#[must_use = "an item whose ticket is dropped is never done"]
pub struct Ticket {
    partition: Arc<Partition>,
    offset: u64,
}

impl Ticket {
    /// Tells that the item was handled.
    pub fn done(self) {
        self.partition.lock().end(self.offset);
    }

    /// Returns the offset of the item.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}
