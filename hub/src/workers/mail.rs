//! [`Mail`]: the items of a key, between the sink that the demux fills and the mailbox that the
//! worker reads.
//!
//! The sink is always ready, so an item never waits in the demux: it waits here, and here alone it
//! is counted, dropped by a revocation, or lost. The input waits instead, by the [`Backlog`].
//!
//! A worker takes at most as many items at a time as fit in a mailbox. So it keeps at most two
//! mailboxes full, and all other items are in the backlog.
//!
//! Foreign code (wakers, the drop of an item) runs after the lock is released.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use futures_sink::Sink;
use tokio::task::coop::poll_proceed;
use tokio::time::Instant;

use super::backlog::Backlog;
use super::guard::discard;

/// What the mail of all keys shares.
#[derive(Debug)]
pub(super) struct Office {
    /// The number of items in a mailbox.
    pub(super) room: usize,
    pub(super) backlog: Backlog,
    /// Items that were dropped by a revocation.
    pub(super) revoked: AtomicU64,
    /// When the workers were started, if it matters how long a worker has been idle.
    pub(super) idle_clock: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Mail<T> {
    office: Arc<Office>,
    /// Items that workers have taken from their mailboxes. Written by one worker at a time.
    taken: AtomicU64,
    /// Since when the worker has waited for an item, in milliseconds of the clock plus 1; 0 if it
    /// does not wait.
    idle_since: AtomicU64,
    /// The worker has items, and waits for its turn.
    is_in_line: AtomicBool,
    is_revoked: AtomicBool,
    /// No worker is to read anything any more.
    is_over: AtomicBool,
    /// Items that were dropped because it was revoked.
    revoked: AtomicU64,
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    /// How many of them the backlog counts.
    beyond: usize,
    /// A worker is there, so the first items are in its mailbox.
    has_worker: bool,
    /// No more items will come.
    is_ended: bool,
    /// The worker is gone or going: what comes is dropped.
    is_dead: bool,
    /// The worker that waits for an item.
    reader: Option<Waker>,
}

impl<T> Mail<T> {
    pub(super) fn new(office: &Arc<Office>) -> Arc<Self> {
        let state = State {
            items: VecDeque::new(),
            beyond: 0,
            has_worker: false,
            is_ended: false,
            is_dead: false,
            reader: None,
        };
        Arc::new(Self {
            office: Arc::clone(office),
            taken: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
            is_in_line: AtomicBool::new(false),
            is_revoked: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            revoked: AtomicU64::new(0),
            state: Mutex::new(state),
        })
    }

    /// No panic can leave the state inconsistent, so a poisoned lock is used on.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an item in. Returns `true` if the worker waits, and is to be woken by a flush.
    fn push(&self, item: T) -> bool {
        let mut state = self.lock();
        if state.is_dead {
            drop(state);
            self.drop_items([item]);
            return false;
        }
        state.items.push_back(item);
        if !state.has_worker || state.items.len() > self.office.room {
            state.beyond += 1;
            self.office.backlog.add(1);
        }
        if state.reader.is_none() {
            return false;
        }
        self.idle_since.store(0, Relaxed);
        // One that has a mailbox half full of work does not wait for the flush.
        let is_half_full = state.items.len() >= self.office.room.div_ceil(2);
        let reader = if is_half_full { state.reader.take() } else { None };
        drop(state);
        let owes_wake = reader.is_none();
        reader.into_iter().for_each(Waker::wake);
        owes_wake
    }

    /// Wakes the worker, if it waits.
    fn wake(&self) {
        let reader = self.lock().reader.take();
        reader.into_iter().for_each(Waker::wake);
    }

    /// No more items will come.
    fn end(&self) {
        let mut state = self.lock();
        state.is_ended = true;
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }

    /// A worker is there, or will be at once.
    pub(super) fn open(&self) {
        let mut state = self.lock();
        state.has_worker = true;
        let input = self.settle(&mut state);
        drop(state);
        input.into_iter().for_each(Waker::wake);
    }

    /// Moves the next items to a worker that has none. Completes with `false` if there will be
    /// none.
    ///
    /// If the worker has items when it returns `Pending`, its cooperative budget is spent.
    pub(super) fn poll_take(&self, cx: &mut Context<'_>, to: &mut VecDeque<T>) -> Poll<bool> {
        let mut state = self.lock();
        if state.items.is_empty() {
            if state.is_ended {
                return Poll::Ready(false);
            }
            let is_known = state.reader.as_ref().is_some_and(|known| known.will_wake(cx.waker()));
            let replaced = if is_known { None } else { state.reader.replace(cx.waker().clone()) };
            self.note_idle();
            drop(state);
            drop(replaced);
            return Poll::Pending;
        }
        let (reader, input) = self.hand_over(&mut state, to);
        drop(state);
        drop(reader);
        input.into_iter().for_each(Waker::wake);
        ready!(poll_proceed(cx)).made_progress();
        Poll::Ready(true)
    }

    /// Moves the next items to a worker that has none, if there are any.
    pub(super) fn take_now(&self, to: &mut VecDeque<T>) {
        let mut state = self.lock();
        if state.items.is_empty() {
            return;
        }
        let (reader, input) = self.hand_over(&mut state, to);
        drop(state);
        drop(reader);
        input.into_iter().for_each(Waker::wake);
    }

    /// Moves at most a mailbox full. Returns the waker of the worker, which does not wait any more,
    /// and that of the input, if it can go on.
    fn hand_over(
        &self,
        state: &mut State<T>,
        to: &mut VecDeque<T>,
    ) -> (Option<Waker>, Option<Waker>) {
        let room = self.office.room;
        if state.items.len() <= room {
            std::mem::swap(&mut state.items, to);
        } else {
            to.extend(state.items.drain(..room));
        }
        // A key that was behind gives the memory back: any key may be behind once.
        for queue in [&mut state.items, to] {
            if queue.capacity() / 4 > queue.len().max(room) {
                queue.shrink_to(2 * queue.len().max(room));
            }
        }
        self.idle_since.store(0, Relaxed);
        let input = self.settle(state);
        (state.reader.take(), input)
    }

    /// Tells the backlog how many items it has. Returns the input, if it can go on.
    #[must_use = "a waker that is taken must be woken"]
    fn settle(&self, state: &mut State<T>) -> Option<Waker> {
        let in_mailbox = if state.has_worker { self.office.room } else { 0 };
        let beyond = state.items.len().saturating_sub(in_mailbox);
        // Items only leave here: those that come are counted by `push`.
        let left = state.beyond - beyond;
        state.beyond = beyond;
        if left > 0 { self.office.backlog.sub(left) } else { None }
    }

    /// The worker waits for an item. If it has done so before, since then.
    fn note_idle(&self) {
        if let Some(start) = self.office.idle_clock {
            if self.idle_since.load(Relaxed) == 0 {
                let now = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
                self.idle_since.store(now + 1, Relaxed);
            }
        }
    }

    /// Since when the worker has waited for an item, in milliseconds of the clock.
    pub(super) fn idle_since(&self) -> Option<u64> {
        self.idle_since.load(Relaxed).checked_sub(1)
    }

    /// How many items wait, without those that the worker has moved to itself.
    pub(super) fn len(&self) -> usize {
        self.lock().items.len()
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    #[inline]
    pub(super) fn count_taken(&self) {
        self.taken.store(self.taken.load(Relaxed) + 1, Relaxed);
    }

    pub(super) fn is_in_line(&self) -> bool {
        self.is_in_line.load(Relaxed)
    }

    pub(super) fn set_in_line(&self, is_in_line: bool) {
        self.is_in_line.store(is_in_line, Relaxed);
    }

    /// Returns `true` if no worker is to read anything any more.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// How many items were dropped because the mail was revoked.
    pub(super) fn revoked(&self) -> u64 {
        self.revoked.load(Relaxed)
    }

    /// Takes what waits, and counts it and what comes as revoked. Runs no foreign code: that is left
    /// to what it returns.
    pub(super) fn revoke(&self) -> Killed<T> {
        self.is_revoked.store(true, Relaxed);
        let killed = self.take_all();
        self.count_revoked(killed.items.len() as u64);
        killed
    }

    /// Drops what waits and what comes: no worker will read it.
    pub(super) fn kill(&self) {
        let Killed { items, wakers } = self.take_all();
        wakers.into_iter().flatten().for_each(Waker::wake);
        self.drop_items(items);
    }

    fn take_all(&self) -> Killed<T> {
        self.is_over.store(true, Relaxed);
        let mut state = self.lock();
        state.is_ended = true;
        state.is_dead = true;
        let items = std::mem::take(&mut state.items);
        let input = self.settle(&mut state);
        Killed { items, wakers: [input, state.reader.take()] }
    }

    /// Drops items that no worker will take, and counts them if they were revoked.
    pub(super) fn drop_items(&self, items: impl IntoIterator<Item = T>) {
        let count = discard(items);
        if self.is_revoked.load(Relaxed) {
            self.count_revoked(count);
        }
    }

    fn count_revoked(&self, items: u64) {
        self.revoked.fetch_add(items, Relaxed);
        self.office.revoked.fetch_add(items, Relaxed);
    }
}

/// What is left of a mail that was revoked.
#[must_use = "the wakers are to be woken"]
pub(super) struct Killed<T> {
    items: VecDeque<T>,
    /// The input and the worker, if they wait.
    wakers: [Option<Waker>; 2],
}

impl<T> Killed<T> {
    pub(super) fn happen(self) {
        self.wakers.into_iter().flatten().for_each(Waker::wake);
        discard(self.items);
    }
}

/// Items of a mail that is dropped by its last owner. There are none, unless the task of the demux
/// was dropped while it put one in.
impl<T> Drop for Mail<T> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let items = std::mem::take(&mut state.items);
        self.drop_items(items);
    }
}

/// The sink of a key, for the demux.
#[derive(Debug)]
pub(super) struct MailSink<T> {
    mail: Arc<Mail<T>>,
    /// The worker waits, and is to be woken by the next flush.
    owes_wake: bool,
}

impl<T> MailSink<T> {
    pub(super) fn new(mail: Arc<Mail<T>>) -> Self {
        Self { mail, owes_wake: false }
    }

    fn flush(&mut self) {
        if std::mem::replace(&mut self.owes_wake, false) {
            self.mail.wake();
        }
    }
}

impl<K, T> Sink<(K, T)> for MailSink<T> {
    type Error = Infallible;

    #[inline]
    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn start_send(mut self: Pin<&mut Self>, (_, item): (K, T)) -> Result<(), Infallible> {
        self.owes_wake = self.mail.push(item);
        Ok(())
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.flush();
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.mail.end();
        Poll::Ready(Ok(()))
    }
}

impl<T> Unpin for MailSink<T> {}

/// However the sink ends, no more items will come.
impl<T> Drop for MailSink<T> {
    fn drop(&mut self) {
        self.mail.end();
    }
}
