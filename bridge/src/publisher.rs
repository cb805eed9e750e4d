//! [`Publisher`]: items on their way to the engine.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use crate::bridge::PublishError;
use crate::engine::{Failure, Line};
use crate::shared::Shared;

/// A publisher, whatever its engine.
pub(crate) trait Publish: Send + Sync {
    fn publish<'a>(
        &'a self,
        key: &'a str,
        item: Bytes,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<(), PublishError>>;
}

pub(crate) struct Publisher<L> {
    /// The connection, while there is one.
    line: watch::Receiver<Option<L>>,
    /// A permit for each item that may be on its way. Publishers that wait for one keep their items
    /// themselves.
    window: Semaphore,
    shared: Arc<Shared>,
}

impl<L: Line> Publisher<L> {
    pub(crate) fn new(line: watch::Receiver<Option<L>>, shared: &Arc<Shared>) -> Self {
        let window = Semaphore::new(shared.settings.window.min(Semaphore::MAX_PERMITS));
        Self { line, window, shared: Arc::clone(shared) }
    }

    async fn publish(&self, key: &str, item: Bytes, deadline: Instant) -> Result<(), PublishError> {
        let Ok(permit) = timeout_at(deadline, self.window.acquire()).await else {
            let reason = "too many other items wait for the engine".into();
            return Err(PublishError::NotSent(reason));
        };
        let mut lines = self.line.clone();
        let Ok(line) = timeout_at(deadline, lines.wait_for(Option::is_some)).await else {
            return Err(PublishError::NotSent(self.why_not_connected()));
        };
        // The sender is dropped only when the bridge has ended.
        let Some(line) = line.ok().and_then(|line| line.clone()) else {
            return Err(PublishError::Closed);
        };
        // What is late already is not sent: it could only be in doubt.
        if Instant::now() >= deadline {
            let reason = "too many other items wait for the engine".into();
            return Err(PublishError::NotSent(reason));
        }
        let answer = timeout_at(deadline, line.publish(key, &item)).await;
        drop(permit);
        match answer {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Failure::Refused(reason))) => Err(PublishError::Refused(reason)),
            Ok(Err(Failure::Broken(reason))) => Err(PublishError::InDoubt(reason)),
            Err(_) => {
                let time = self.shared.settings.publish_timeout;
                let reason = format!("the engine did not answer within {time:?}");
                Err(PublishError::InDoubt(reason.into()))
            }
        }
    }

    fn why_not_connected(&self) -> Arc<str> {
        let error = self.shared.status.borrow().publishing.error.clone();
        let time = self.shared.settings.publish_timeout;
        match error {
            Some(error) => format!("no connection to the engine for {time:?}: {error}").into(),
            None => format!("no connection to the engine for {time:?}").into(),
        }
    }
}

impl<L: Line> Publish for Publisher<L> {
    fn publish<'a>(
        &'a self,
        key: &'a str,
        item: Bytes,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<(), PublishError>> {
        Box::pin(self.publish(key, item, deadline))
    }
}
