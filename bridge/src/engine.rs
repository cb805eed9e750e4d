//! [`Engine`]: what a bridge needs of Redis, or of another server for publish/subscribe.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use bytes::Bytes;

use crate::arrivals::Arrivals;

/// Where to connect to.
pub(crate) trait Engine: Send + Sync + 'static {
    type Line: Line;

    /// Opens a connection. If it is given a place for arrivals, it is one that subscribes.
    ///
    /// All that the engine says about a key is pushed in the order in which the engine has said it:
    /// an item is pushed behind the confirmation of its subscription.
    fn connect(
        &self,
        arrivals: Option<Subscriber>,
    ) -> impl Future<Output = Result<Connection<Self::Line>, Failure>> + Send;
}

/// The place for what comes by one connection.
#[derive(Debug, Clone)]
pub(crate) struct Subscriber {
    pub(crate) arrivals: Arc<Arrivals>,
    pub(crate) epoch: u64,
}

/// A connection that was opened.
pub(crate) struct Connection<L> {
    pub(crate) line: L,
    /// Reads and writes. Completes when the connection is broken, and returns why.
    pub(crate) driver: Pin<Box<dyn Future<Output = Arc<str>> + Send>>,
    /// Counts what is read.
    pub(crate) reads: Arc<AtomicU64>,
}

/// The commands of a connection. A clone uses the same connection.
pub(crate) trait Line: Clone + Send + Sync + 'static {
    /// Completes when the engine has obeyed or refused; the confirmation is an arrival, too.
    fn subscribe(&self, key: &str) -> impl Future<Output = Result<(), Failure>> + Send + 'static;

    fn unsubscribe(&self, key: &str) -> impl Future<Output = Result<(), Failure>> + Send + 'static;

    /// Completes when the engine has accepted the item. The claim is taken before the item is sent.
    fn publish(
        &self,
        key: &str,
        item: &Bytes,
        claim: Claim,
    ) -> impl Future<Output = Result<(), Failure>> + Send + 'static;

    fn ping(&self) -> impl Future<Output = Result<(), Failure>> + Send + 'static;
}

/// Decides whether an item is sent. The connection takes it before it sends the item, and the
/// publisher when it gives up: the first of them has it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claim(Arc<AtomicBool>);

impl Claim {
    /// Returns `true` if it was not taken before.
    pub(crate) fn take(&self) -> bool {
        !self.0.swap(true, Relaxed)
    }
}

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The engine has answered that it does not obey.
    Refused(Arc<str>),
    /// There was no answer: the engine may have obeyed.
    Broken(Arc<str>),
}

impl Failure {
    pub(crate) fn reason(self) -> Arc<str> {
        let (Self::Refused(reason) | Self::Broken(reason)) = self;
        reason
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Refused(reason) | Self::Broken(reason)) = self;
        f.write_str(reason)
    }
}
