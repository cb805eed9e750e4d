//! Callers of a pool that do not poll their futures, such as those in `Buffered` while its consumer is
//! busy. Their places stop counting after a while, because others need them.
//!
//! A caller has something to do when it has got its place, when its call is answered, and when its
//! deadline has passed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The callers of a connection that have something to do, now or at some time.
#[derive(Debug)]
pub(crate) struct Unpolled {
    begin: Instant,
    interval: Duration,
    counts: Mutex<Counts>,
}

impl Default for Unpolled {
    /// That of a connection which has no places.
    fn default() -> Self {
        Self::new(Duration::ZERO)
    }
}

#[derive(Debug, Default)]
struct Counts {
    /// By the interval from which on they have something to do.
    since: BTreeMap<u64, usize>,
    /// Those before this interval were reported.
    reported: u64,
}

impl Unpolled {
    /// A caller may take this long, and once more.
    pub(crate) fn new(interval: Duration) -> Self {
        Self { begin: Instant::now(), interval, counts: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the interval.
    fn interval(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.begin);
        u64::try_from(since.as_nanos() / self.interval.as_nanos().max(1)).unwrap_or(u64::MAX)
    }

    /// Notes that a caller has something to do from now on, until the returned value is dropped.
    pub(crate) fn add(self: &Arc<Self>) -> CallerToPoll {
        self.add_at(Instant::now())
    }

    /// Notes that a caller has something to do then.
    pub(crate) fn add_at(self: &Arc<Self>, at: Instant) -> CallerToPoll {
        let since = self.interval(at);
        *self.lock().since.entry(since).or_default() += 1;
        CallerToPoll { among: Arc::clone(self), since }
    }

    /// Callers that have had something to do since before this interval should have been polled.
    fn long_ago(&self) -> u64 {
        self.interval(Instant::now()).saturating_sub(1)
    }

    /// Returns how many should have been polled two intervals ago. Some of those of one interval ago are
    /// counted, too.
    pub(crate) fn count_long(&self) -> usize {
        let until = self.long_ago();
        self.lock().since.range(..until).map(|(_, count)| count).sum()
    }

    /// Returns `true` if some of those that `count_long` counts were not reported before.
    pub(crate) fn report_long(&self) -> bool {
        let until = self.long_ago();
        let mut counts = self.lock();
        let new = counts.reported..until.max(counts.reported);
        let last = counts.since.range(new).next_back().map(|(since, _)| *since);
        counts.reported = last.map_or(counts.reported, |since| since + 1);
        last.is_some()
    }
}

/// What a caller gets when it is polled next.
#[derive(Debug)]
pub(crate) struct CallerToPoll {
    among: Arc<Unpolled>,
    since: u64,
}

impl Drop for CallerToPoll {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = self.among.lock().since.entry(self.since) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}
