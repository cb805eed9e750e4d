//! [`Next`]: a future of a single item.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use stream_demux::Lease;
use tokio::sync::oneshot;

/// A future of the next item of a key. [`Hub::next`](crate::Hub::next) creates it.
///
/// Completes with `None` if the hub ends before. Dropping it leaves the key at once.
#[must_use = "dropping it leaves the key"]
pub struct Next<V> {
    item: oneshot::Receiver<V>,
    _lease: Lease,
}

impl<V> Next<V> {
    pub(super) fn new(item: oneshot::Receiver<V>, lease: Lease) -> Self {
        Self { item, _lease: lease }
    }
}

impl<V> Future for Next<V> {
    type Output = Option<V>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<V>> {
        Pin::new(&mut self.item).poll(cx).map(Result::ok)
    }
}

impl<V> fmt::Debug for Next<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").finish_non_exhaustive()
    }
}
