//! [`for_each_by_key`]: a worker per key, each item of a key after the other, keys side by side.

mod gate;
mod mailbox;
mod roster;
mod task;

use std::fmt;
use std::hash::Hash;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use stream_demux::{Attach, DemuxStreamExt, Lease, Overflow, Totals};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::hub::ticks;
use crate::inbox::inbox;
use gate::{Gate, Ticks};
pub use mailbox::Mailbox;
use mailbox::Post;
use roster::{OnPanic, Roster};

/// Runs a worker for each key of a stream: items of a key are handled in order, keys side by side.
///
/// The first item of a key makes its worker: `worker` is called with the key and a [`Mailbox`], and
/// what it returns runs in a task of its own. When no items have come for a while, the mailbox
/// ends, the worker returns, and nothing is left of the key. There are never two workers of a key
/// at a time.
///
/// * A mailbox has [room](Workers::mailbox) for 64 items. When one is full, the input waits, so a
///   worker that is slower than its items slows down all others.
/// * At most [`max_workers`](Workers::max_workers) are alive. If one more is needed, the input
///   waits, and workers that have nothing to do end at once.
/// * **A worker that panics** is reported to [`on_panic`](Workers::on_panic) and counted in
///   [`Summary::panics`]. The item that it was working on is gone. What it has not read goes to a
///   new worker of the key, and other keys notice nothing.
/// * **A worker that returns early** is replaced in the same way, when there is something to read.
///   One that panics or returns without having taken any item loses one, so that the next gets
///   further.
/// * **A worker that hangs** stops its key, and the input when its mailbox is full.
///   [`shutdown`](ForEachByKey::shutdown) names it.
///
/// Everything starts at once. The result is a handle and a future that completes when the input has
/// ended and all workers have returned. Each item that was read from the input is taken by a worker
/// by then, except for those that workers lose which panic or return before they have taken one;
/// [`Summary::lost`] counts these.
///
/// # Cancel safety
///
/// You can poll `&mut` handle in a `select!` and go on later. Dropping the handle aborts
/// everything: the input is dropped, each worker is dropped at its next `await`, and what it has
/// not read is lost. To end without a loss, call [`shutdown`](ForEachByKey::shutdown). To go on
/// without the handle, give it to `tokio::spawn`.
///
/// # Panics
///
/// Panics outside of a tokio runtime. With an idle time-out, which is the default, the runtime
/// needs its time driver: `enable_time` or `enable_all`. If the input or `key` panics, the handle
/// panics with the same message when it is awaited, and the workers return after what they have
/// got.
///
/// # Examples
///
/// ```
/// use futures::stream;
/// use stream_demux_hub::{Workers, for_each_by_key};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let orders = stream::iter([("ann", 5), ("ben", 1), ("ann", 7)]);
/// let summary = for_each_by_key(orders, |order| order.0, Workers::new(), |customer, mut orders| async move {
///     let mut sum = 0; // what this customer has spent so far
///     while let Some((_, price)) = orders.recv().await {
///         sum += price;
///         println!("{customer} has spent {sum}");
///     }
/// })
/// .await;
/// assert_eq!((summary.received, summary.lost(), summary.workers), (3, 0, 2));
/// # }
/// ```
pub fn for_each_by_key<St, F, K, W, Fut>(
    input: St,
    key: F,
    settings: Workers<K>,
    worker: W,
) -> ForEachByKey<K, St::Item>
where
    St: Stream<Item: Send + 'static> + Send + 'static,
    F: Fn(&St::Item) -> K + Send + Sync + 'static,
    K: Hash + Eq + Clone + Send + Sync + 'static,
    W: Fn(K, Mailbox<K, St::Item>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let Workers { mailbox: room, max, idle_timeout, on_panic } = settings;
    let roster = Roster::new(max, on_panic);
    let tick = idle_timeout.map(tick_of);
    // The tick that follows an item does not count, so one less than for another time-out.
    let idle_ticks = idle_timeout.map_or(0, |idle| (ticks(idle, tick_of(idle)) - 1).max(1));
    let (key, worker) = (Arc::new(key), Arc::new(worker));
    let (of, entered, returned) = (Arc::clone(&key), Arc::clone(&roster), Arc::clone(&roster));
    let demux = Gate::new(input, Arc::clone(&roster))
        .demux_by(move |item| key(item), Ticks::new(tick))
        .idle_timeout(idle_ticks)
        .on_unmatched(move |item| returned.take_back(item))
        .or_attach_with(move |item| {
            let (key, roster) = (of(item), Arc::clone(&entered));
            let (sink, inbox) = inbox(room, Overflow::Wait);
            let entry = roster.enter(&key, inbox.bell())?;
            let mut lease = Lease::new();
            let attach = Attach::new(key.clone(), sink).leased(&mut lease);
            let (id, lease) = (entry.departure.id, Some(lease));
            let post = Post { inbox, lease, taken: entry.taken, roster: Arc::clone(&roster) };
            let worker = Arc::clone(&worker);
            let run = task::run(entry.departure, key, post, entry.predecessor, worker);
            roster.set_task(id, tokio::spawn(run).abort_handle());
            Some(attach)
        });
    ForEachByKey { demux: Some(tokio::spawn(demux)), roster, hung: Vec::new() }
}

/// The unit of time for an idle time-out: half of it, so that it takes at most half longer.
fn tick_of(idle: Duration) -> Duration {
    (idle / 2).clamp(Duration::from_millis(1), Duration::from_secs(86_400))
}

/// The settings of [`for_each_by_key`].
#[derive(Clone)]
#[must_use = "settings do nothing by themselves"]
pub struct Workers<K> {
    mailbox: usize,
    max: usize,
    idle_timeout: Option<Duration>,
    on_panic: Option<OnPanic<K>>,
}

impl<K> Workers<K> {
    /// Creates the default settings: mailboxes of 64 items, any number of workers, which end after
    /// a minute without an item.
    pub fn new() -> Self {
        Self {
            mailbox: 64,
            max: usize::MAX,
            idle_timeout: Some(Duration::from_secs(60)),
            on_panic: None,
        }
    }

    /// Sets how many items may wait for a worker before the input waits, at least 1; the default is
    /// 64.
    ///
    /// A worker takes what has come and reads it while as much can come again, so up to twice this
    /// number of items are kept for a key.
    pub fn mailbox(mut self, items: usize) -> Self {
        self.mailbox = items;
        self
    }

    /// Sets how many workers there may be at a time, at least 1; the default is any number.
    ///
    /// Set it if others choose the keys. Workers that wait to end, and those that wait for their
    /// predecessor, count. A worker that has nothing to do ends when another needs its place, and
    /// so do others until half are left.
    pub fn max_workers(mut self, workers: usize) -> Self {
        self.max = workers;
        self
    }

    /// Sets after how much time without an item a worker's mailbox ends; the default is a minute,
    /// and `None` is never.
    ///
    /// It takes at least this long and up to half as long again. Less than 2 ms counts as 2 ms.
    pub fn idle_timeout(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.idle_timeout = time.into();
        self
    }

    /// Sets a closure that is called when a worker has panicked, with its key and the message of
    /// the panic.
    ///
    /// It runs in the task of the worker. Panics are counted and printed by the panic hook in any
    /// case.
    pub fn on_panic(mut self, call: impl Fn(&K, &str) + Send + Sync + 'static) -> Self {
        self.on_panic = Some(Arc::new(call));
        self
    }
}

impl<K> Default for Workers<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> fmt::Debug for Workers<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mailbox, max, idle_timeout, on_panic } = self;
        f.debug_struct("Workers")
            .field("mailbox", mailbox)
            .field("max_workers", max)
            .field("idle_timeout", idle_timeout)
            .field("on_panic", &on_panic.is_some())
            .finish()
    }
}

/// The workers of a stream. [`for_each_by_key`] creates it.
///
/// It is a handle, and a future that completes when the input has ended and all workers have
/// returned. Dropping it aborts them. After completion it can be awaited again, and completes at
/// once.
#[must_use = "dropping it aborts the workers"]
pub struct ForEachByKey<K: Hash + Eq, T> {
    /// Until it has ended.
    demux: Option<JoinHandle<Totals>>,
    roster: Arc<Roster<K, T>>,
    /// The keys that were given up.
    hung: Vec<K>,
}

impl<K: Hash + Eq + Clone, T> ForEachByKey<K, T> {
    /// Reads no more of the input, and waits until all workers have handled what was read and have
    /// returned. Those that have not after `patience` are aborted.
    ///
    /// Items that are still in the input are neither handled nor counted, and a key that has all
    /// its items there is not named. To handle all that was accepted, end the input first, for
    /// example by dropping the senders of its channel, await the handle with a time-out, and call
    /// `shutdown` only when that expires.
    ///
    /// [`Summary::hung`] names the keys of the workers that were aborted, and [`Summary::lost`]
    /// counts the items that they have not taken. An item that a worker has taken counts as handled
    /// even if the worker is aborted then.
    ///
    /// A worker that never reaches an `await` cannot be aborted; `shutdown` does not wait for it.
    ///
    /// # Cancel safety
    ///
    /// The first poll stops the input. If the future is dropped then, the workers handle what was
    /// read and return, but none is aborted. You can call `shutdown` again or await the handle.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use futures::{StreamExt, stream};
    /// use stream_demux_hub::{Workers, for_each_by_key};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let input = stream::iter(0..10).chain(stream::pending());
    /// let mut run = for_each_by_key(input, |n| n % 5, Workers::new(), |rest, mut numbers| async move {
    ///     while numbers.recv().await.is_some() {
    ///         if rest == 3 {
    ///             std::future::pending::<()>().await; // this one hangs
    ///         }
    ///     }
    /// });
    /// // Usually `tokio::select!` on `&mut run` and a signal.
    /// # tokio::task::yield_now().await;
    /// let summary = run.shutdown(Duration::from_millis(10)).await;
    /// assert_eq!((summary.hung, summary.received), (vec![3], 10));
    /// # }
    /// ```
    pub async fn shutdown(&mut self, patience: Duration) -> Summary<K> {
        self.roster.stop();
        if let Ok(summary) = timeout(patience, &mut *self).await {
            return summary;
        }
        if self.hung.is_empty() {
            self.hung = self.roster.keys();
        }
        let summary = self.summary();
        self.abort();
        summary
    }

    /// Returns the counts so far.
    pub fn summary(&self) -> Summary<K> {
        self.roster.summary(self.hung.clone())
    }
}

impl<K: Hash + Eq, T> ForEachByKey<K, T> {
    /// Returns the number of workers that are alive.
    pub fn workers(&self) -> usize {
        self.roster.len()
    }

    /// Ends the demux and all workers at their next `await`.
    fn abort(&self) {
        self.demux.iter().for_each(JoinHandle::abort);
        self.roster.abort();
    }
}

impl<K: Hash + Eq + Clone, T> Future for ForEachByKey<K, T> {
    type Output = Summary<K>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Summary<K>> {
        if let Some(demux) = &mut self.demux {
            let end = ready!(Pin::new(demux).poll(cx));
            self.demux = None;
            // It fails otherwise only if the runtime has shut down, or after an abort.
            if let Some(panic) = end.err().and_then(|error| error.try_into_panic().ok()) {
                resume_unwind(panic);
            }
        }
        ready!(self.roster.poll_over(cx));
        Poll::Ready(self.summary())
    }
}

impl<K: Hash + Eq, T> Unpin for ForEachByKey<K, T> {}

impl<K: Hash + Eq, T> Drop for ForEachByKey<K, T> {
    fn drop(&mut self) {
        self.abort();
    }
}

impl<K: Hash + Eq, T> fmt::Debug for ForEachByKey<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForEachByKey").field("roster", &self.roster).finish_non_exhaustive()
    }
}

/// What [`for_each_by_key`] has done.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary<K> {
    /// Items that were read from the input.
    pub received: u64,
    /// Items that workers have taken from their mailboxes.
    pub taken: u64,
    /// How often a key has got a mailbox.
    pub workers: u64,
    /// Workers that have panicked.
    pub panics: u64,
    /// The keys whose workers were aborted at the deadline, in no particular order.
    pub hung: Vec<K>,
}

impl<K> Summary<K> {
    /// Returns the number of items that no worker has taken. At the end, they are lost.
    ///
    /// An item in the hands of a worker that panicked or was aborted is not among them: see
    /// [`panics`](Self::panics) and [`hung`](Self::hung).
    pub fn lost(&self) -> u64 {
        self.received.saturating_sub(self.taken)
    }
}
