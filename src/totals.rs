//! The counts that a demux keeps: [`Totals`].

/// Counts of what a [`Demux`](crate::Demux) has done, and its output when it completes.
///
/// The last two fields count attachments, all others count items. Each starts at zero. Between two
/// polls
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
    /// Items whose key was not attached, or no longer because its [`limit`](crate::Attach::limit)
    /// was reached; each was passed to [`Hooks::unmatched`](crate::Hooks::unmatched).
    pub unmatched: u64,
    /// Items that a sink took: its `start_send` returned `Ok`. What a receiver leaves unread in its
    /// channel counts here, too: the demux does not see it.
    pub delivered: u64,
    /// Items that were not sent to their attachment; each was passed to
    /// [`Hooks::discarded`](crate::Hooks::discarded) with the reason.
    pub discarded: u64,
    /// Items that a sink took and failed with: its `start_send` returned an error. They are dropped
    /// with the sink. What a sink loses after it has taken it is not known here.
    pub lost: u64,
    /// Items that wait now: in the queue of an attachment, or read and not yet routed.
    pub queued: u64,
    /// Orders to attach that were applied, including attachments that were refused.
    pub attached: u64,
    /// Attachments that have ended, so that their sinks are gone.
    pub detached: u64,
}
