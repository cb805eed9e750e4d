//! [`Stats`], [`Member`] and [`Report`]: what a hub tells about itself.

use stream_demux::Totals;

/// Counts of what a hub has done. [`Hub::stats`](crate::Hub::stats) returns them.
///
/// Each item that was published waits or was received:
///
/// ```text
/// published = waiting + totals.received
/// ```
///
/// (with an [input](crate::Builder::input), its items are part of `received`), and each item that
/// was received is accounted for by the [`Totals`]. An item counts as `delivered` there once for each
/// subscription that it came to, and as a copy for each but the first, whether it is stored once or
/// several times; if a subscription was too slow for it, it is also `lost` here, and the subscriber
/// is told by a [`Lagged`](crate::Lagged). What a dropped subscription has not
/// read counts as `delivered`, too. `totals.discarded` counts what had no room at attached sinks,
/// and what waited for members that left or were given up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The counts of the demux. `totals.lost` is not what slow subscribers have lost: see
    /// [`lagged`](Self::lagged).
    pub totals: Totals,
    /// Items that were accepted and that the demux has not read. After the end, they are lost.
    pub waiting: u64,
    /// Items that subscribers and [writers](crate::Hub::attach_writer) were too slow for, counted for
    /// each of them: the sum of what [`Lagged`](crate::Lagged) tells. [`lagged`](Self::lagged)
    /// returns it, too.
    ///
    /// Those of writers are counted when the writer notices them. `totals.lost` counts something
    /// else: items that an attached sink had taken when it failed.
    pub lost: u64,
    /// Attachments that receive items: one for each key of each subscription, and each attached
    /// sink.
    pub receiving: usize,
    /// Attachments that receive no more items and are not closed yet.
    pub leaving: usize,
    /// Items that are kept for a [replay](crate::Builder::replay).
    pub replay_items: usize,
    /// Keys of which items are kept.
    pub replay_keys: usize,
}

impl Stats {
    /// Returns how many items subscribers and writers were too slow for: the field
    /// [`lost`](Self::lost), under a name that cannot be taken for `totals.lost`.
    ///
    /// # Examples
    ///
    /// ```
    /// use stream_demux_hub::{Hub, Lagged, Terms};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let hub = Hub::new();
    /// let mut drinks = hub.subscribe_with(["tea", "coffee"], Terms::new().buffer(1));
    /// for n in 1..=3 {
    ///     hub.publish("tea", n).await.unwrap();
    /// }
    /// assert_eq!(drinks.recv().await, Some(Err(Lagged(2))));
    /// let stats = hub.stats().await;
    /// assert_eq!((stats.lagged(), stats.totals.lost), (2, 0));
    /// # }
    /// ```
    pub fn lagged(&self) -> u64 {
        self.lost
    }
}

/// A subscriber of a key, or a sink that is attached under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Member<K> {
    /// The key.
    pub key: K,
    /// The number set with [`Terms::tag`](crate::Terms::tag).
    pub tag: u64,
}

impl<K> Member<K> {
    pub(super) fn new(key: K, tag: u64) -> Self {
        Self { key, tag }
    }
}

/// How a hub has ended. [`Hub::shutdown`](crate::Hub::shutdown) returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report<K> {
    /// The counts at the end.
    pub stats: Stats,
    /// The members that had not taken what there was for them when the time was over: those that the
    /// hub was waiting for, sinks that were not ready or not flushed, and subscribers without room
    /// whose next item was not routed yet. If there are none, nothing was cut off.
    pub hung: Vec<Member<K>>,
}

/// What the task of a hub knows at the end of a turn.
#[derive(Debug, Clone)]
pub(super) struct Snapshot<K> {
    pub(super) stats: Stats,
    pub(super) blocked_on: Option<Member<K>>,
    pub(super) leaving: Vec<Member<K>>,
    /// All that the hub would have to wait for, if that was asked.
    pub(super) hung: Vec<Member<K>>,
}

impl<K> Snapshot<K> {
    /// The counts are known, and nothing else.
    pub(super) fn of(stats: Stats) -> Self {
        Self { stats, blocked_on: None, leaving: Vec::new(), hung: Vec::new() }
    }
}
