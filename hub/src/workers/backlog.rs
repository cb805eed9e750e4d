//! [`Backlog`]: how many items wait beyond the mailboxes of all keys, and the input that waits for
//! them.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A count that all keys share. The items themselves are in the mail of their keys.
///
/// The input waits while more items than the limit are counted: one beyond a limit of 0 is an item
/// that was read before its key was known.
///
/// The input writes `is_waiting` and then reads `used`; a worker writes `used` and then reads
/// `is_waiting`. Both are sequentially consistent, so one of them sees the other.
#[derive(Debug)]
pub(super) struct Backlog {
    limit: usize,
    used: AtomicUsize,
    /// The most that were ever counted.
    most: AtomicUsize,
    /// How often the input had to wait.
    waits: AtomicU64,
    is_waiting: AtomicBool,
    input: Mutex<Option<Waker>>,
}

impl Backlog {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            used: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            waits: AtomicU64::new(0),
            is_waiting: AtomicBool::new(false),
            input: Mutex::new(None),
        }
    }

    fn input(&self) -> MutexGuard<'_, Option<Waker>> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Items that wait beyond the mailboxes now.
    pub(super) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    pub(super) fn most(&self) -> usize {
        self.most.load(Relaxed)
    }

    pub(super) fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }

    /// Counts further items.
    pub(super) fn add(&self, items: usize) {
        let used = self.used.fetch_add(items, SeqCst) + items;
        self.most.fetch_max(used, Relaxed);
    }

    /// Counts items that have left. Returns the input, if it can go on.
    #[must_use = "a waker that is taken must be woken"]
    pub(super) fn sub(&self, items: usize) -> Option<Waker> {
        let used = self.used.fetch_sub(items, SeqCst) - items;
        let is_awaited = used <= self.limit
            && self.is_waiting.load(SeqCst)
            && self.is_waiting.swap(false, SeqCst);
        if is_awaited { self.input().take() } else { None }
    }

    /// Waits until another item may be read.
    #[inline]
    pub(super) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        if self.used.load(Relaxed) <= self.limit {
            return Poll::Ready(());
        }
        self.poll_room_slow(cx)
    }

    #[cold]
    fn poll_room_slow(&self, cx: &Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let replaced = self.input().replace(waker);
        drop(replaced);
        let was_waiting = self.is_waiting.swap(true, SeqCst);
        if self.used.load(SeqCst) > self.limit {
            if !was_waiting {
                self.waits.fetch_add(1, Relaxed);
            }
            return Poll::Pending;
        }
        self.is_waiting.store(false, SeqCst);
        Poll::Ready(())
    }
}
