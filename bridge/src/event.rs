//! [`Event`]: what the hub of a bridge routes to the subscriptions of a key.

use std::sync::Arc;

use bytes::Bytes;

/// A key: the channel or subject of the engine that an item is published to.
pub type Key = Arc<str>;

/// An item, or what a subscription has to know in its place among the items.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) key: Key,
    /// The number of the connection that it came by. Later connections have higher numbers.
    pub(crate) epoch: u64,
    pub(crate) what: What,
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    Item(Bytes),
    /// The connection broke, and the key is subscribed again on this one. Items may be missing here.
    Gap,
    /// The engine refuses to subscribe to the key again.
    Refused(Arc<str>),
}
