//! [`Workers`]: the settings.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::roster::{OnError, OnPanic};
use crate::bounds::IdleTimeout;

/// The items that may wait beyond the mailboxes by default.
///
/// It is what a hot key may be behind before the others notice, and what is handled at a time when
/// there are more busy keys than places: with a quarter of it, nearly four times as many workers
/// were made for a million items of 1,000 keys with 200 places. It is as much as 256 full mailboxes
/// hold, so it seldom decides about the memory. More would delay the end of a run that is behind,
/// and let a shutdown lose more.
const BACKLOG: usize = 16_384;

/// The settings of [`for_each_by_key`](super::for_each_by_key).
#[derive(Clone)]
#[must_use = "settings do nothing by themselves"]
pub struct Workers<K> {
    pub(super) mailbox: usize,
    pub(super) backlog: usize,
    pub(super) max: usize,
    pub(super) concurrency: Option<usize>,
    pub(super) idle_timeout: Option<Duration>,
    pub(super) on_panic: Option<OnPanic<K>>,
    pub(super) on_error: Option<OnError<K>>,
}

impl<K> Workers<K> {
    /// Creates the default settings: mailboxes of 64 items and a backlog of 16,384, any number of
    /// workers, which end after a minute without an item.
    pub fn new() -> Self {
        Self {
            mailbox: 64,
            backlog: BACKLOG,
            max: usize::MAX,
            concurrency: None,
            idle_timeout: Some(Duration::from_secs(60)),
            on_panic: None,
            on_error: None,
        }
    }

    /// Sets how many items may wait for a worker before they wait in the
    /// [backlog](Self::backlog), at least 1; the default is 64.
    ///
    /// A worker takes what has come and reads it while as much can come again, so up to twice this
    /// number of items are kept for a key.
    pub fn mailbox(mut self, items: usize) -> Self {
        self.mailbox = items;
        self
    }

    /// Sets how many items may wait beyond the mailboxes, for all keys together, before the input
    /// waits; the default is 16,384.
    ///
    /// Items that come for a full mailbox wait here, in their order, and so do those of keys that
    /// wait for a worker under [`max_workers`](Self::max_workers). So a key that gets more than its
    /// worker can do holds the others only when the backlog is full: then the input waits until
    /// some of these items are read. With 0, the input waits for each mailbox that is full.
    ///
    /// What waits here is accepted: the end of the input waits for it, and a
    /// [`shutdown`](super::ForEachByKey::shutdown) loses what is left at its deadline.
    /// [`Summary::most_backlog`](super::Summary::most_backlog) and
    /// [`input_waits`](super::Summary::input_waits) tell whether it was large enough, and
    /// [`WorkersHandle::queues`](super::WorkersHandle::queues) names the keys that fill it.
    pub fn backlog(mut self, items: usize) -> Self {
        self.backlog = items;
        self
    }

    /// Sets how many workers may handle an item at a time, at least 1; the default is any number.
    ///
    /// A worker handles an item from when it gets it until it asks for the next one, returns, or
    /// drops its mailbox. The time before its first item counts, too. Workers that want an item
    /// take turns: of many that always have some, each gets one item (or what it takes with one
    /// call of [`recv_many`](super::Mailbox::recv_many)), and is then last in line.
    ///
    /// Workers that wait for their turn stay in memory. To limit these, set
    /// [`max_workers`](Self::max_workers).
    ///
    /// A worker that waits for another key's worker while it handles an item holds a turn that the
    /// other one may need. If as many do so as there are turns, they wait for ever.
    pub fn concurrency(mut self, workers: usize) -> Self {
        self.concurrency = Some(workers);
        self
    }

    /// Sets how many keys may have a mailbox and its worker in memory at a time, at least 1; the
    /// default is any number.
    ///
    /// A mailbox counts from when its worker is spawned until that has returned, also while it waits
    /// for items or for its turn. A worker that replaces one which panicked or returned early has
    /// the same mailbox and counts once. This does not limit how many work at a time: see
    /// [`concurrency`](Self::concurrency).
    ///
    /// Set it if others choose the keys, to the number of keys that the memory has room for.
    ///
    /// If one more key has items, they wait in the [backlog](Self::backlog), and the worker that
    /// has been idle longest ends in its favour, once it has been idle for a moment (10 ms). A
    /// worker whose key has items, or had one a moment ago, never ends for another. So with more
    /// busy keys than this, the backlog fills, the input waits for that moment, and items come in
    /// bursts: choose a larger number.
    ///
    /// The runtime needs its time driver: `enable_time` or `enable_all`.
    pub fn max_workers(mut self, workers: usize) -> Self {
        self.max = workers;
        self
    }

    /// Sets after how much time without an item a worker's mailbox ends; the default is a minute,
    /// and `None` is never.
    ///
    /// It takes at least this long and up to half as long again. Less than 2 ms counts as 2 ms.
    pub fn idle_timeout(mut self, time: impl IdleTimeout) -> Self {
        self.idle_timeout = time.into();
        self
    }

    /// Sets a closure that is called when a worker has panicked, with its key and the message of
    /// the panic. A closure that was set before is replaced.
    ///
    /// It runs in the task of the worker, before the next worker of the key begins. Panics are
    /// counted and printed by the panic hook in any case. A panic of the closure is printed, too,
    /// and changes nothing.
    pub fn on_panic(mut self, call: impl Fn(&K, &str) + Send + Sync + 'static) -> Self {
        self.on_panic = Some(Arc::new(call));
        self
    }

    /// Sets a closure that is called when a worker has returned an error, with its key and the
    /// error. A closure that was set before is replaced.
    ///
    /// It runs in the task of the worker, before the next worker of the key begins. Errors are
    /// counted, and the first one is kept in
    /// [`Summary::first_error`](super::Summary::first_error), in any case. A panic of the closure is
    /// printed by the panic hook, and changes nothing.
    pub fn on_error(
        mut self,
        call: impl Fn(&K, &(dyn Error + Send + Sync + 'static)) + Send + Sync + 'static,
    ) -> Self {
        self.on_error = Some(Arc::new(call));
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
        let Self { mailbox, backlog, max, concurrency, idle_timeout, on_panic, on_error } = self;
        f.debug_struct("Workers")
            .field("mailbox", mailbox)
            .field("backlog", backlog)
            .field("max_workers", max)
            .field("concurrency", concurrency)
            .field("idle_timeout", idle_timeout)
            .field("on_panic", &on_panic.is_some())
            .field("on_error", &on_error.is_some())
            .finish()
    }
}
