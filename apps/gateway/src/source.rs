//! The destination of published messages: the broker if there is one, otherwise the demux.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::amqp::Broker;
use crate::line::Line;
use crate::message::Message;
use crate::router::{Input, Refused};

/// How long a post waits while the input is blocked by a client.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub enum Source {
    Embedded(Input),
    Amqp(Arc<Broker>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishError {
    /// The input is blocked by a client.
    Blocked,
    /// The gateway is stopping.
    Draining,
    /// The broker is not connected, or too many messages are unconfirmed. It has not got this one.
    Away,
    /// The broker did not confirm the message.
    Down,
    /// The broker is short of memory or disk.
    Alarm,
    /// A queue that is bound to the key is full and rejects the message.
    Rejected,
    /// The broker user of the gateway may not publish to this key.
    Forbidden,
    /// The broker's size limit is lower than that of the gateway.
    TooLarge,
}

impl From<Refused> for PublishError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Blocked => Self::Blocked,
            Refused::Ended => Self::Draining,
        }
    }
}

impl Source {
    pub async fn publish(&self, key: &str, body: &[u8], is_json: bool) -> Result<(), PublishError> {
        match self {
            Self::Embedded(input) => {
                let message = Message::of(key.into(), body, is_json, None);
                Ok(input.offer(message, Instant::now() + TIMEOUT).await?)
            }
            Self::Amqp(broker) => broker.publisher.publish(key, body, is_json).await,
        }
    }

    /// Publishes all lines and returns their results. The broker confirms many at a time; without a
    /// broker, the first failure ends the batch.
    pub async fn publish_all(&self, lines: &[Line<'_>]) -> Vec<Result<(), PublishError>> {
        let input = match self {
            Self::Embedded(input) => input,
            Self::Amqp(broker) => return broker.publisher.publish_all(lines).await,
        };
        let (mut all, mut last) = (Vec::with_capacity(lines.len()), Ok(()));
        let until = Instant::now() + TIMEOUT;
        for line in lines {
            if last.is_ok() {
                let Line { key, body, is_json } = line;
                last = input.offer(Message::of((**key).into(), body, *is_json, None), until).await;
            }
            all.push(last.map_err(PublishError::from));
        }
        all
    }
}
