//! [`writers`]: a sink that encodes each item once, and any number of sockets that it is written to.
//!
//! ```text
//! writers         the function, and what a writer tells at its end
//! ├── sink          takes and encodes items
//! ├── handle        a clonable handle with which writers join
//! ├── groups        which writers of a hub share a sink
//! ├── writer        the future that writes to a socket
//! ├── outbox        what a writer is about to write
//! ├── seat          its place in the log
//! ├── stall         its time-out
//! ├── shared        what the sink, the handles and the writers share, behind one lock
//! ├── log           encoded items that are stored once, and positions of writers in them
//! └── segment       encoded items that are stored together
//! ```

mod groups;
mod handle;
mod log;
mod outbox;
mod seat;
mod segment;
mod shared;
mod sink;
mod stall;
mod writer;

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use stream_demux::Overflow;

pub(crate) use groups::{Groups, Kind};
pub use handle::Writers;
pub(crate) use log::Limits;
use shared::Shared;
pub use sink::WritersSink;
pub use writer::Writer;

use crate::life::Life;

/// How many bytes a writer may leave unwritten by default. For items of a line, the limit of items
/// is reached first. A hundred keys with a stuck socket each take as much memory as 50 sockets of
/// the default size.
pub(crate) const MAX_BYTES: u64 = 1024 * 1024;

/// Creates a sink to attach, and a handle with which sockets join.
///
/// The sink encodes an item once, however many sockets there are, and stores the bytes once. A
/// [`Writer`] is a position in these bytes, and writes what has come with one call. So an item costs
/// a socket its part of a system call, and nothing else.
///
/// `encode` appends an item to an empty buffer, for example with [`writeln!`] or
/// `serde_json::to_writer`. If it fails or panics, the sink fails and its writers end.
///
/// `capacity` is how many items a writer may leave unwritten, at least 1;
/// [`max_bytes`](WritersSink::max_bytes) limits their bytes. A writer that falls further behind,
/// because its socket takes no more bytes, goes on with the oldest item that is left: it loses whole
/// items, counts them, and may [write a notice](Writer::on_lost). What is kept does not depend on the
/// number of writers: what these limits allow and up to a quarter more, or less if all writers have
/// written it.
///
/// [`Hub::attach_writer`](crate::Hub::attach_writer) does all of this for a key of a hub.
///
/// # Examples
///
/// ```
/// use std::io::Write;
///
/// use futures::stream;
/// use stream_demux::DemuxStreamExt;
/// use stream_demux_hub::writers;
/// use tokio::io::AsyncReadExt;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (sink, writers) = writers(1_024, |line: &str, bytes: &mut Vec<u8>| writeln!(bytes, "{line}"));
/// let (server, mut client) = tokio::io::duplex(1024); // usually a `TcpStream`
/// let writer = tokio::spawn(writers.join(server));
///
/// let lines = stream::iter(["one", "two"]);
/// lines.demux_by(|_| "key", stream::iter([("key", sink)])).await;
///
/// let mut received = String::new();
/// client.read_to_string(&mut received).await.unwrap();
/// assert_eq!(received, "one\ntwo\n");
/// assert_eq!(writer.await.unwrap().items, 2);
/// # }
/// ```
pub fn writers<T, E>(capacity: usize, encode: E) -> (WritersSink<E>, Writers)
where
    E: FnMut(T, &mut Vec<u8>) -> io::Result<()>,
{
    let limits = Limits::new(capacity, MAX_BYTES, Overflow::DropOldest);
    new(limits, encode, Arc::default(), None)
}

/// Creates the sink and the handle of a log that belongs to a hub.
pub(crate) fn writers_of_hub<E>(
    limits: Limits,
    encode: E,
    hub: &Arc<Life>,
) -> (WritersSink<E>, Writers) {
    new(limits, encode, Arc::clone(&hub.counts.lost), Some(Arc::clone(hub)))
}

fn new<E>(
    limits: Limits,
    encode: E,
    lost: Arc<AtomicU64>,
    hub: Option<Arc<Life>>,
) -> (WritersSink<E>, Writers) {
    let shared = Shared::new(limits, lost);
    let sink = WritersSink::new(Arc::clone(&shared), limits, encode, hub);
    (sink, Writers::first(shared))
}

/// What a [`Writer`] has done. Of the items that were sent while it existed, each is in one of the
/// counts:
///
/// ```text
/// sent = items + lost + unwritten
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Written {
    /// Why it has ended.
    pub end: WriterEnd,
    /// The number of items that its I/O object has taken completely.
    pub items: u64,
    /// The number of bytes that its I/O object has taken, with those of an incomplete item and of
    /// notices.
    pub bytes: u64,
    /// The number of items that it passed over because it was too slow, or because they were too
    /// large.
    pub lost: u64,
    /// The number of items that were there and were not completely written when it ended.
    pub unwritten: u64,
}

/// Why a [`Writer`] has ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum WriterEnd {
    /// The sink was closed: the input of the demux ended, the hub was shut down, or the key was
    /// detached. Everything was written or lost, and the I/O object was shut down.
    Closed,
    /// The sink was dropped without being closed, so items may be missing at the end. What had come
    /// was written and flushed.
    Aborted,
    /// An item could not be encoded: the encoder has failed or panicked. What had come before was
    /// written and flushed.
    Unencoded,
    /// The writer was too slow under [`Evict`](crate::Overflow::Evict).
    Overflowed,
    /// The I/O object has made no progress for the [`stall_timeout`](Writer::stall_timeout).
    Stalled,
    /// The writer has come to its [`limit`](Writer::limit), and the I/O object was shut down.
    Limit,
    /// The I/O object has failed with this error. If it took no more bytes, the error is
    /// [`WriteZero`](io::ErrorKind::WriteZero).
    Failed(io::Error),
}

impl fmt::Display for WriterEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.pad("closed"),
            Self::Aborted => f.pad("aborted"),
            Self::Unencoded => f.pad("an item could not be encoded"),
            Self::Overflowed => f.pad("overflowed"),
            Self::Stalled => f.pad("stalled"),
            Self::Limit => f.pad("the limit is reached"),
            Self::Failed(error) => write!(f, "failed: {error}"),
        }
    }
}

/// Why a [`WritersSink`] takes no more items.
#[derive(Debug)]
#[non_exhaustive]
pub enum WritersError {
    /// It was closed, has failed before, or has neither a writer nor a handle.
    Closed,
    /// The encoder has failed with this error.
    Encode(io::Error),
    /// The encoder has panicked with this message.
    EncodePanicked(String),
}

impl fmt::Display for WritersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the sink is closed, or has no writer"),
            Self::Encode(error) => write!(f, "an item could not be encoded: {error}"),
            Self::EncodePanicked(message) => write!(f, "the encoder has panicked: {message}"),
        }
    }
}

impl Error for WritersError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Encode(error) => Some(error),
            Self::Closed | Self::EncodePanicked(_) => None,
        }
    }
}
