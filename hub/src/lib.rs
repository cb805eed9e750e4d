//! Publish/subscribe and a worker per key, on tokio.

#![forbid(unsafe_code)]

mod inbox;

pub use crate::inbox::{End, Inbox, InboxError, InboxSink, Lagged, inbox};
pub use stream_demux::Overflow;
