//! [`Publisher`]: items on their way to the engine.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use crate::bridge::PublishError;
use crate::engine::{Claim, Failure, Line};
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
    /// The connection, while there is one. Only clones are read, so each clone begins with the one
    /// that is there.
    lines: watch::Receiver<Option<L>>,
    /// A permit for each publisher that may wait for an answer. Those that wait for a permit keep
    /// their items themselves.
    window: Semaphore,
    shared: Arc<Shared>,
}

impl<L: Line> Publisher<L> {
    pub(crate) fn new(lines: watch::Receiver<Option<L>>, shared: &Arc<Shared>) -> Self {
        let window = Semaphore::new(shared.settings.window.min(Semaphore::MAX_PERMITS));
        Self { lines, window, shared: Arc::clone(shared) }
    }

    async fn publish(&self, key: &str, item: Bytes, deadline: Instant) -> Result<(), PublishError> {
        let Ok(permit) = timeout_at(deadline, self.window.acquire()).await else {
            return Err(too_late());
        };
        let mut lines = self.lines.clone();
        let answer = loop {
            let line = self.next_line(&mut lines, deadline).await?;
            // What is late already is not sent: it could only be in doubt.
            if Instant::now() >= deadline {
                return Err(too_late());
            }
            let claim = Claim::default();
            let sending = line.publish(key, &item, claim.clone());
            match timeout_at(deadline, sending).await {
                // It was not sent: the next connection can take it.
                Ok(Err(Failure::Broken(_))) if claim.take() => {}
                Err(_) if claim.take() => return Err(too_late()),
                answer => break answer,
            }
        };
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

    /// Waits for a connection that this receiver has not seen.
    async fn next_line(
        &self,
        lines: &mut watch::Receiver<Option<L>>,
        deadline: Instant,
    ) -> Result<L, PublishError> {
        loop {
            match timeout_at(deadline, lines.changed()).await {
                Ok(Ok(())) => {
                    if let Some(line) = &*lines.borrow_and_update() {
                        return Ok(line.clone());
                    }
                }
                // The sender is dropped only when the bridge has ended.
                Ok(Err(_)) => return Err(PublishError::Closed),
                Err(_) => return Err(PublishError::NotSent(self.why_not_connected())),
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

fn too_late() -> PublishError {
    PublishError::NotSent("too many other items wait for the engine".into())
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

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use super::*;
    use crate::settings::Settings;

    /// What a connection does with an item.
    #[derive(Debug, Clone, Copy)]
    enum Plan {
        Accepts,
        BreaksUnsent,
        BreaksWhenSent,
        HangsUnsent,
        HangsWhenSent,
    }

    impl Line for Plan {
        fn subscribe(&self, _: &str) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
            pending()
        }

        fn unsubscribe(
            &self,
            _: &str,
        ) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
            pending()
        }

        fn publish(
            &self,
            _: &str,
            _: &Bytes,
            claim: Claim,
        ) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
            let plan = *self;
            async move {
                if matches!(plan, Self::Accepts | Self::BreaksWhenSent | Self::HangsWhenSent) {
                    assert!(claim.take());
                }
                match plan {
                    Self::Accepts => Ok(()),
                    Self::BreaksUnsent | Self::BreaksWhenSent => Err(Failure::Broken("cut".into())),
                    Self::HangsUnsent | Self::HangsWhenSent => pending().await,
                }
            }
        }

        fn ping(&self) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
            pending()
        }
    }

    type Lines = watch::Sender<Option<Plan>>;

    fn publisher(first: Plan) -> (Lines, Publisher<Plan>) {
        let (lines, receiver) = watch::channel(None);
        let publisher = Publisher::new(receiver, &Shared::new(Settings::default(), false));
        lines.send_replace(Some(first));
        (lines, publisher)
    }

    async fn publish(publisher: &Publisher<Plan>) -> Result<(), PublishError> {
        let deadline = Instant::now() + Duration::from_secs(5);
        publisher.publish("tea", "hello".into(), deadline).await
    }

    #[tokio::test(start_paused = true)]
    async fn item_that_a_broken_connection_has_not_sent_waits_for_the_next_one() {
        let (lines, publisher) = publisher(Plan::BreaksUnsent);
        let publishing = tokio::spawn(async move { publish(&publisher).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!publishing.is_finished());
        lines.send_replace(None);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!publishing.is_finished());
        lines.send_replace(Some(Plan::Accepts));
        assert_eq!(publishing.await.unwrap(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn item_is_in_doubt_only_if_it_was_sent() {
        for (plan, is_in_doubt) in [
            (Plan::BreaksUnsent, false),
            (Plan::BreaksWhenSent, true),
            (Plan::HangsUnsent, false),
            (Plan::HangsWhenSent, true),
        ] {
            let (_lines, publisher) = publisher(plan);
            let error = publish(&publisher).await.unwrap_err();
            assert_eq!(error.is_in_doubt(), is_in_doubt, "{plan:?}: {error}");
            assert!(is_in_doubt || matches!(error, PublishError::NotSent(_)), "{plan:?}: {error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn item_that_was_not_sent_when_the_bridge_ends_is_not_published() {
        let (lines, publisher) = publisher(Plan::BreaksUnsent);
        drop(lines);
        assert_eq!(publish(&publisher).await, Err(PublishError::Closed));
    }
}
