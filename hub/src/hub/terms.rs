//! [`Terms`]: what a subscriber may leave unread, and what happens then.

use std::time::Duration;

use stream_demux::{Attach, Overflow};

/// The terms of a subscription or an attached sink.
///
/// By default up to 1,024 items may wait, and then the oldest is dropped: a slow subscriber loses
/// items and does not hold up the others.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use stream_demux_hub::{Overflow, Terms};
///
/// // Loses nothing and slows the publishers down, but not for more than five seconds at a time.
/// let terms = Terms::new()
///     .buffer(64)
///     .overflow(Overflow::Wait)
///     .stall_timeout(Duration::from_secs(5));
/// # let _ = terms;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "terms do nothing by themselves"]
pub struct Terms {
    pub(super) buffer: usize,
    pub(super) overflow: Overflow,
    pub(super) stall_timeout: Option<Duration>,
    pub(super) limit: Option<u64>,
    pub(super) replay: usize,
    pub(super) tag: u64,
}

impl Terms {
    /// Creates the default terms: 1,024 items, [`DropOldest`](Overflow::DropOldest), no time-out.
    pub const fn new() -> Self {
        Self {
            buffer: 1_024,
            overflow: Overflow::DropOldest,
            stall_timeout: None,
            limit: None,
            replay: 0,
            tag: 0,
        }
    }

    /// Sets how many items may wait; the default is 1,024. Memory is allocated only for items that
    /// do.
    ///
    /// A reader that takes what has come works on it while as much can come again, so up to twice
    /// this number of items are kept for a subscription.
    pub const fn buffer(mut self, items: usize) -> Self {
        self.buffer = items;
        self
    }

    /// Sets what happens to an item for which there is no room; the default is
    /// [`DropOldest`](Overflow::DropOldest).
    ///
    /// Under [`Wait`](Overflow::Wait) the hub reads no more items, of any key, until this
    /// subscriber has room, also if it has removed the key of the item that waits: publishers wait for
    /// the slowest subscriber that asked for it. Set a [`stall_timeout`](Self::stall_timeout), too,
    /// if the subscriber may hang.
    ///
    /// Under [`Conflate`](Overflow::Conflate) the latest item of each key waits: an item takes the
    /// place of the one of its key that waits, and the subscriber is told there how many it has
    /// missed. Keys come in the order in which they changed first since they were read. If more keys
    /// have changed than the [buffer](Self::buffer) holds, the oldest is dropped.
    pub const fn overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// Ends the subscription if an item has waited for it for so long without progress; the default
    /// is no time-out.
    ///
    /// This applies under [`Wait`](Overflow::Wait), and to attached sinks, also while they leave.
    /// It takes at least this long, and up to two [ticks](crate::Builder::tick) longer.
    pub const fn stall_timeout(mut self, time: Duration) -> Self {
        self.stall_timeout = Some(time);
        self
    }

    /// Ends the subscription to a key after this number of items; the default is no limit.
    ///
    /// The key can be [added](crate::Subscription::add) again then. A subscription ends when all of
    /// its keys have reached the limit, and goes on when a key is added.
    pub const fn limit(mut self, items: u64) -> Self {
        self.limit = Some(items);
        self
    }

    /// Begins the subscription to a key with the last items that the hub has routed, at most this
    /// number; the default is 0. What is published afterwards follows without a gap and without a
    /// repeat.
    ///
    /// The hub must [keep](crate::Builder::replay) items for that. There are at most as many as it
    /// keeps and as the [buffer](Self::buffer) holds, and one under
    /// [`Conflate`](Overflow::Conflate). Where nothing is dropped ([`Wait`](Overflow::Wait) and
    /// [`Evict`](Overflow::Evict)), the replays of several keys may exceed the buffer together, by up
    /// to its size for each key. They do not count towards the [limit](Self::limit), nor in
    /// [`Stats`](crate::Stats) as delivered. The hub clones each of them in one go. Attached sinks
    /// and [writers](crate::Hub::attach_writer) get none.
    pub const fn replay(mut self, items: usize) -> Self {
        self.replay = items;
        self
    }

    /// Sets a number that tells subscribers of a key apart in [`Member::tag`](crate::Member::tag);
    /// the default is 0.
    pub const fn tag(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }

    /// Applies what concerns every attachment.
    pub(super) fn apply<K, S>(&self, attach: Attach<K, S>, tick: Duration) -> Attach<K, S> {
        let attach = attach.tag(self.tag);
        let attach = match self.limit {
            Some(limit) => attach.limit(limit),
            None => attach,
        };
        match self.stall_timeout {
            Some(time) => attach.stall_timeout(ticks(time, tick)),
            None => attach,
        }
    }
}

impl Default for Terms {
    fn default() -> Self {
        Self::new()
    }
}

/// How many ticks take at least this long. The first may follow at once.
pub(crate) fn ticks(time: Duration, tick: Duration) -> u32 {
    let ticks = time.as_nanos().div_ceil(tick.as_nanos().max(1)) + 1;
    u32::try_from(ticks).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_take_at_least_as_long() {
        let ms = Duration::from_millis;
        let ticks = |time| ticks(ms(time), ms(100));
        assert_eq!([0, 1, 100, 101, 1_000].map(ticks), [1, 2, 2, 3, 11]);
        assert_eq!(super::ticks(Duration::MAX, ms(1)), u32::MAX);
    }
}
