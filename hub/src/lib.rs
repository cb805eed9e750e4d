//! Publish/subscribe and a worker per key, on tokio.

#![forbid(unsafe_code)]

mod channel;
mod hub;
mod inbox;
mod life;
mod oneshot;
mod workers;
mod write;

pub use crate::channel::MpscSink;
pub use crate::hub::{
    Builder, Hub, Member, Next, NoInput, PublishError, Report, SinkError, Stats, Subscription,
    Terms, TryPublishError,
};
pub use crate::inbox::{End, Inbox, InboxError, InboxSink, Lagged, inbox};
pub use crate::oneshot::{OneshotClosed, OneshotSink};
pub use crate::workers::{ForEachByKey, Mailbox, Summary, Workers, for_each_by_key};
pub use crate::write::{WriteSink, write_sink};
pub use stream_demux::Overflow;
