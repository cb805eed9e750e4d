//! The account: where every item went.

/// What happened so far; the output of a completed [`Demux`](crate::Demux).
///
/// All counts are of items, but for the last two, and start at zero. At any time between two polls
///
/// ```text
/// received + copies = unmatched + delivered + discarded + lost + queued
/// ```
///
/// and after completion `queued` is 0 and `attached` equals `detached`.
///
/// # Examples
///
/// ```
/// use futures::{channel::mpsc, executor::block_on, stream};
/// use stream_demux::DemuxStreamExt;
///
/// let (sink, _received) = mpsc::unbounded();
/// let orders = stream::iter([("even", sink)]);
/// let demux = stream::iter(0..5).demux_by(|n| if n % 2 == 0 { "even" } else { "odd" }, orders);
///
/// let totals = block_on(demux);
/// assert_eq!(totals.received, 5);
/// assert_eq!((totals.delivered, totals.unmatched), (3, 2));
/// assert_eq!((totals.attached, totals.detached), (1, 1));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Items read from the input.
    pub received: u64,
    /// Clones made for further sinks of a key; 0 without [`multicast`](crate::Demux::multicast).
    pub copies: u64,
    /// Items that no attachment wanted; each was handed to
    /// [`Hooks::unmatched`](crate::Hooks::unmatched).
    pub unmatched: u64,
    /// Items that a sink has taken: its `start_send` said `Ok`.
    pub delivered: u64,
    /// Items that an attachment did not get; each was handed to
    /// [`Hooks::discarded`](crate::Hooks::discarded) with the reason.
    pub discarded: u64,
    /// Items that went down with a failing `start_send`: the sink has them, nobody gets them back.
    pub lost: u64,
    /// Items that wait now: in the queue of an attachment, or held while the input waits.
    pub queued: u64,
    /// Attachments applied so far, whatever became of them.
    pub attached: u64,
    /// Attachments that have ended: each sink is gone.
    pub detached: u64,
}
