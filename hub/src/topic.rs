//! [`topic`]: a sink, and any number of readers that all get what it is sent.
//!
//! ```text
//! topic           the function
//! ├── sink          the end that takes items
//! ├── reader        the ends that are read
//! ├── of_hub        the topic of a key of a hub, and a reader that moves from it to an inbox
//! ├── shared        what they share, behind one lock
//! ├── log           items that are stored once, and positions of readers in them
//! ├── segment       items that are stored together, and cloned by many readers
//! ├── cursor        the place of a reader
//! ├── taken         what a reader has taken from the log and not yet returned
//! └── sleepers      the wakers of the readers that wait
//! ```

mod cursor;
mod log;
mod of_hub;
mod reader;
mod segment;
mod shared;
mod sink;
mod sleepers;
mod taken;

use std::error::Error;
use std::fmt;

pub(crate) use cursor::{Cursor, Left};
pub(crate) use of_hub::{Handover, Reading, Topic};
pub use reader::TopicReader;
pub(crate) use segment::{CloneSome, clone_some};
use shared::Shared;
pub use sink::TopicSink;

/// Creates a topic: a sink to attach, and the first of its readers.
///
/// The sink stores an item once, however many readers there are. A reader is a position in what was
/// sent: [`subscribe`](TopicReader::subscribe) adds one that begins with the next item, and dropping
/// one leaves. A reader clones an item when it returns it, or takes it if no other reader can still
/// get it. So an item for many readers costs the demux as much as an item for one.
///
/// `capacity` is how many items a reader may leave unread, at least 1. A reader that falls further
/// behind loses the oldest, and gets a [`Lagged`](crate::Lagged) in their place. What is kept does
/// not depend on the number of readers: the last `capacity` items and up to a quarter more, or
/// fewer if all readers have taken them. A reader takes all that has come at once, and what it took
/// and has not returned is kept for it beside that.
///
/// A [`Hub`](crate::Hub) has such a topic for each key with subscriptions on the default terms.
/// [`Hub::attach`](crate::Hub::attach) attaches one with another capacity.
///
/// A topic needs no runtime. Its sink and its readers may be in different threads. Items need not be
/// [`Sync`]: readers that come to the same items clone them one after another, up to 32 at once.
/// Neither the sink nor readers of other items wait for that. A panic of a clone concerns the reader
/// for which the item is cloned, and only when the item is its next one.
///
/// # Examples
///
/// ```
/// use futures::{executor::block_on, future, stream};
/// use stream_demux::DemuxStreamExt;
/// use stream_demux_hub::topic;
///
/// let (sink, mut ann) = topic(1_024);
/// let mut ben = ann.subscribe();
/// let demux = stream::iter(["tea", "juice"]).demux_by(|_| "drinks", stream::iter([("drinks", sink)]));
///
/// let read = async {
///     assert_eq!(ann.recv().await, Some(Ok("tea")));
///     assert_eq!(ben.recv().await, Some(Ok("tea")));
///     assert_eq!(ben.recv().await, Some(Ok("juice")));
///     assert_eq!(ben.recv().await, None);
/// };
/// let (totals, ()) = block_on(future::join(demux, read));
/// assert_eq!((totals.delivered, totals.copies), (2, 0));
/// ```
pub fn topic<T>(capacity: usize) -> (TopicSink<T>, TopicReader<T>) {
    let shared = Shared::new(capacity, None);
    let reader = TopicReader::new(Cursor::new(&shared));
    (TopicSink::new(shared), reader)
}

/// A topic takes no more items: all of its readers are gone, or its sink was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TopicClosed;

impl fmt::Display for TopicClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the topic has no reader, or is closed")
    }
}

impl Error for TopicClosed {}
