//! [`for_each_by_key`]: a worker per key, each item of a key after the other, keys side by side.
//!
//! ```text
//! workers         the function, and the handle that is a future
//! ├── settings      the settings
//! ├── summary       the counts
//! ├── handle        a clonable handle that revokes keys
//! ├── outcome       what a worker may return
//! ├── router        the task of the demux; spawns workers, and ends idle ones for others
//! ├── streams       the input, which waits while the backlog is full; the ticks
//! ├── roster        which keys have a worker, wait for one, or are to lose it
//! ├── task          the task of a key: one worker after the other, and their panics
//! ├── mailbox       what a worker reads
//! ├── mail          the items of a key, from the sink to the mailbox
//! ├── backlog       how many items wait beyond the mailboxes of all keys
//! ├── turns         how many workers may handle an item at a time
//! └── guard         foreign code that may panic
//! ```

mod backlog;
mod guard;
mod handle;
mod mail;
mod mailbox;
mod outcome;
mod roster;
mod router;
mod settings;
mod streams;
mod summary;
mod task;
mod turns;

use std::fmt;
use std::future::{Future, poll_fn};
use std::hash::Hash;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use stream_demux::DemuxStreamExt;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::bounds::InputStream;
use crate::flush_clock::FlushClock;
use crate::hub::ticks;
use backlog::Backlog;
pub use handle::WorkersHandle;
use mail::Office;
pub use mailbox::Mailbox;
use mailbox::Post;
pub use outcome::{WorkerError, WorkerOutput};
use roster::{Roster, Start, Unfinished};
use router::Router;
pub use settings::Workers;
use streams::{KeyedInput, Ticks};
pub use summary::Summary;
use turns::{Turn, Turns};

/// The items after which a worker is woken at the latest, while the input has more.
///
/// Each wake hands a worker what has come for it, so more items make fewer wakes: of 1,000 keys, each
/// gets four here. With four times as many items, what waits did not fit into the cache any more,
/// and an item took 10 to 30 % more processor time; with a quarter, it took 20 to 80 % more for the
/// wakes.
const FLUSH_EVERY: usize = 4_096;

/// Runs a worker for each key of a stream: items of a key are handled in order, keys side by side.
///
/// The first item of a key makes its worker: `worker` is called with the key and a [`Mailbox`], and
/// what it returns runs in a task of its own. When no items have come for a while, the mailbox
/// ends, the worker returns, and nothing is left of the key. There are never two workers of a key
/// at a time.
///
/// * A mailbox has [room](Workers::mailbox) for 64 items. What comes when it is full waits in a
///   [backlog](Workers::backlog) of 16,384 items that all keys share. Only when that is full does the
///   input wait, so a worker that is slower than its items does not slow down the others until then.
/// * At most [`concurrency`](Workers::concurrency) workers handle an item at a time, in turn.
/// * At most [`max_workers`](Workers::max_workers) mailboxes, each with its worker, are in memory. If
///   one more is needed, the worker that has been idle longest ends.
/// * **A worker that panics** is reported to [`on_panic`](Workers::on_panic) and counted in
///   [`Summary::panics`]. The item that it was working on is gone. What it has not read goes to a
///   new worker of the key, and other keys notice nothing.
/// * **A worker that returns early** is replaced in the same way, when there is something to read.
///   One that panics or returns without having taken any item loses one, so that the next gets
///   further.
/// * **A worker may return a `Result`.** An error is counted in [`Summary::errors`] and reported to
///   [`on_error`](Workers::on_error), the first one is kept with its key in
///   [`Summary::first_error`], and then the worker has returned early, as above.
/// * **A worker that hangs** stops its key, and the input when the backlog is full.
///   [`shutdown`](ForEachByKey::shutdown) names it.
/// * **A key may be revoked**: [`WorkersHandle::revoke`] ends its worker, waits until that is gone,
///   and drops what waits for it.
///
/// `key` is called once for each item, and returns a key of its own, which is not borrowed from the
/// item: `|order| order.customer.clone()`, or an `Arc<str>` if that is to cost less. With
/// `|order| order.customer.as_str()` the compiler says *lifetime may not live long enough*.
///
/// Everything starts at once. The result is a handle and a future that completes when the input has
/// ended and all workers have returned. Each item that was read from the input is taken by a worker
/// by then, except for those that workers lose which panic or return before they have taken one
/// ([`Summary::lost`] counts these), and for those of keys that were revoked.
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
/// Panics outside of a tokio runtime. With an idle time-out, which is the default, or a limit of
/// workers, the runtime needs its time driver: `enable_time` or `enable_all`. If the input or `key`
/// panics, the handle panics with the same message when it is awaited, and the workers return after
/// what they have got, unless the handle is dropped by that. A panic in a worker, in its drop or in
/// the drop of an item ends at most that worker.
///
/// A drop that panics while the closure `worker` itself returns is the exception: Rust leaks the
/// future then ([issue 47949](https://github.com/rust-lang/rust/issues/47949)), and with it the
/// mailbox. Its key gets no other worker, and [`shutdown`](ForEachByKey::shutdown) names it.
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
) -> ForEachByKey<K, St::Input>
where
    St: InputStream<Input: Send + 'static> + Send + 'static,
    F: Fn(&St::Input) -> K + Send + Sync + 'static,
    K: Hash + Eq + Clone + Send + Sync + 'static,
    W: Fn(K, Mailbox<K, St::Input>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: WorkerOutput> + Send + 'static,
{
    let Workers { mailbox, backlog, max, concurrency, idle_timeout, on_panic, on_error } = settings;
    let office = Arc::new(Office {
        room: mailbox.max(1),
        backlog: Backlog::new(backlog),
        revoked: AtomicU64::new(0),
        idle_clock: (max < usize::MAX).then(Instant::now),
    });
    let roster = Roster::new(max, office, on_panic, on_error);
    let tick = idle_timeout.map(tick_of);
    // The tick that follows an item does not count, so one less than for another time-out.
    let idle_ticks = idle_timeout.map_or(0, |idle| (ticks(idle, tick_of(idle)) - 1).max(1));
    let entered = Arc::clone(&roster);
    let unattached = Arc::clone(&roster);
    let demux = KeyedInput::new(input, key, Arc::clone(&roster))
        .demux_by_ref(|(key, _)| key, Ticks::new(tick))
        .idle_timeout(idle_ticks)
        .flush_every(FLUSH_EVERY)
        .or_attach_with(move |(key, _)| entered.enter(key))
        .on_unmatched(move |(_, item)| unattached.drop_unattached(item));
    let (mut demux, mut clock) = (Box::pin(demux), FlushClock::default());
    let demux = poll_fn(move |cx| {
        clock.begin_poll(|time| demux.as_mut().elapse(time));
        let answer = demux.as_mut().poll(cx);
        clock.end_poll(demux.has_unflushed());
        answer
    });
    let worker = Arc::new(worker);
    let turns = concurrency.map(Turns::new);
    let spawn = move |start: Start<K, St::Input>| {
        let post = Post::new(start.mail, turns.as_ref().map(Turn::new));
        let run = task::run(start.departure, start.key, post, Arc::clone(&worker));
        tokio::spawn(run).abort_handle()
    };
    ForEachByKey {
        router: Some(tokio::spawn(Router::new(demux, Arc::clone(&roster), spawn))),
        roster,
        unfinished: Unfinished::none(),
        is_aborted: false,
    }
}

/// The unit of time for an idle time-out: half of it, so that it takes at most half longer.
fn tick_of(idle: Duration) -> Duration {
    (idle / 2).clamp(Duration::from_millis(1), Duration::from_secs(86_400))
}

/// The workers of a stream. [`for_each_by_key`] creates it.
///
/// It is a handle, and a future that completes when the input has ended and all workers have
/// returned. Dropping it aborts them, and does not wait until they are gone. After completion it can
/// be awaited again, and completes at once. A worker that awaits the handle of its own run waits
/// for itself.
#[must_use = "dropping it aborts the workers"]
pub struct ForEachByKey<K: Hash + Eq, T> {
    /// Until it has ended.
    router: Option<JoinHandle<()>>,
    roster: Arc<Roster<K, T>>,
    /// The keys that were given up.
    unfinished: Unfinished<K>,
    is_aborted: bool,
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
    /// It returns when the workers that were aborted are gone, so nothing that they own is in use any
    /// more, and the counts are final. [`Summary::hung`] names the keys whose workers were busy,
    /// [`Summary::waiting`] those whose items had to wait for a worker or for its turn, and
    /// [`Summary::lost`] counts the items that no worker has taken. An item that a worker has taken
    /// counts as handled even if the worker is aborted then; [`Progress`](crate::Progress) tells
    /// which ones were not done.
    ///
    /// A worker is dropped at its next `await`. One that is in a long step without an `await` is
    /// waited for beyond `patience`, because that step could otherwise run beside the next start of
    /// the program; one that never reaches an `await` is waited for for ever. Put a time-out around
    /// `shutdown` if that can happen. Tasks that a worker has spawned are not a part of it.
    ///
    /// A worker that calls it for its own run, and waits for it, is one of those that hang.
    ///
    /// # Cancel safety
    ///
    /// The first poll stops the input. If the future is dropped before `patience` is over, the
    /// workers handle what was read and return, but none is aborted; if it is dropped later, they
    /// are aborted, and not waited for. You can call `shutdown` again, which begins a new `patience`
    /// or goes on to wait for those that were aborted, or await the handle. When everything has
    /// ended, it returns the same counts again.
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
        // Without a timer after the end, as there may be no runtime any more.
        let ended = poll_fn(|cx| Poll::Ready(Pin::new(&mut *self).poll(cx))).await;
        if let Poll::Ready(summary) = ended {
            return summary;
        }
        if !self.is_aborted {
            if let Ok(summary) = timeout(patience, &mut *self).await {
                return summary;
            }
            self.unfinished = self.roster.unfinished();
            self.is_aborted = true;
            self.abort();
        }
        self.await
    }

    /// Returns the counts so far. It may be called at any time.
    pub fn summary(&self) -> Summary<K> {
        self.roster.summary(&self.unfinished)
    }

    /// Returns a handle that can be cloned: it revokes keys, and returns the counts.
    pub fn handle(&self) -> WorkersHandle<K, T> {
        WorkersHandle::new(&self.roster)
    }
}

impl<K: Hash + Eq, T> ForEachByKey<K, T> {
    /// Returns the number of workers that are alive, or wait until the one before them has
    /// returned. Keys that wait for a place do not count. It may be called at any time.
    pub fn workers(&self) -> usize {
        self.roster.len()
    }

    /// Ends the router, and all workers at their next `await`.
    fn abort(&self) {
        self.router.iter().for_each(JoinHandle::abort);
        self.roster.abort();
    }
}

impl<K: Hash + Eq + Clone, T> Future for ForEachByKey<K, T> {
    type Output = Summary<K>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Summary<K>> {
        if let Some(panic) = self.roster.take_failure(cx) {
            resume_unwind(panic);
        }
        if let Some(router) = &mut self.router {
            let end = ready!(Pin::new(router).poll(cx));
            self.router = None;
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
