//! [`inbox`]: sinks, and one stream that reads what they get and is told what it has missed.
//!
//! ```text
//! inbox           the function
//! ├── sink          the end that takes items
//! ├── reader        the end that is read
//! ├── shared        what they share, behind one lock; the policies
//! └── batch         items, and how many are missing where
//! ```

mod batch;
mod reader;
mod shared;
mod sink;

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use stream_demux::Overflow;

pub(crate) use reader::Bell;
pub use reader::Inbox;
use shared::Shared;
pub use sink::InboxSink;

use crate::life::Life;
use crate::read::End;

/// Creates an inbox: a sink to attach, and a stream for one reader.
///
/// `capacity` is how many items may wait to be read, at least 1. `full` says what happens to an
/// item that comes then:
///
/// | `full` | |
/// | --- | --- |
/// | [`Wait`](Overflow::Wait) | the sink is not ready until the reader takes something |
/// | [`DropOldest`](Overflow::DropOldest) | the oldest item is dropped; the reader is told so before the next item |
/// | [`DropNewest`](Overflow::DropNewest) | the item is dropped; the reader is told so after the item before it |
/// | [`Conflate`](Overflow::Conflate) | the item takes the place of the one that waits; `capacity` does not matter |
/// | [`Evict`](Overflow::Evict) | the sink fails, and the inbox ends after the items that are in it |
///
/// The inbox, not the queue of the demux, decides this, so the reader is told of a loss
/// [where](crate::Lagged) it happened. Attach the sink without a buffer and without another policy.
///
/// A reader takes everything at once, so up to `capacity` items can come while it works on as many
/// others: an inbox holds at most twice its capacity, and one more for each of its sinks. It
/// allocates as items come, and nothing while they fit in what was allocated before.
///
/// An inbox needs no runtime. Its sinks and its reader may be in different threads.
///
/// # Panics
///
/// Panics if `full` is a policy that was added to the crate later than this function.
///
/// # Examples
///
/// Several keys in one inbox, with one bound over all of them:
///
/// ```
/// use futures::{executor::block_on, future, stream};
/// use stream_demux::{Attach, DemuxStreamExt};
/// use stream_demux_hub::{Overflow, inbox};
///
/// let (sink, mut inbox) = inbox(64, Overflow::DropOldest);
/// let orders = stream::iter([Attach::new("tea", sink.clone()), Attach::new("coffee", sink)]);
/// let demux = stream::iter(["tea", "juice", "coffee"]).demux_by(|&drink| drink, orders);
///
/// let read = async {
///     let mut drinks = Vec::new();
///     while let Some(drink) = inbox.recv().await {
///         drinks.push(drink.expect("64 places are enough"));
///     }
///     drinks
/// };
/// let (totals, drinks) = block_on(future::join(demux, read));
/// assert_eq!(drinks, ["tea", "coffee"]);
/// assert_eq!(totals.unmatched, 1);
/// ```
pub fn inbox<T>(capacity: usize, full: Overflow) -> (InboxSink<T>, Inbox<T>) {
    new(capacity, full, None)
}

/// Creates an inbox that belongs to a hub.
pub(crate) fn inbox_of_hub<T>(
    capacity: usize,
    full: Overflow,
    hub: &Arc<Life>,
) -> (InboxSink<T>, Inbox<T>) {
    new(capacity, full, Some(Arc::clone(hub)))
}

fn new<T>(capacity: usize, full: Overflow, hub: Option<Arc<Life>>) -> (InboxSink<T>, Inbox<T>) {
    let shared = Shared::new(capacity, full, hub);
    (InboxSink::new(&shared), Inbox::new(shared))
}

/// Why an [`InboxSink`] takes no more items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InboxError {
    /// The reader is gone or has called [`close`](Inbox::close), or the sink was closed.
    Closed,
    /// The inbox was full under [`Evict`](Overflow::Evict).
    Overflowed,
}

impl From<End> for InboxError {
    fn from(end: End) -> Self {
        match end {
            End::Overflowed => Self::Overflowed,
            End::Closed | End::Aborted | End::Stalled => Self::Closed,
        }
    }
}

impl fmt::Display for InboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Closed => "the inbox is closed",
            Self::Overflowed => "the reader of the inbox was too slow",
        })
    }
}

impl Error for InboxError {}
