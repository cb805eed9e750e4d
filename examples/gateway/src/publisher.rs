//! Publishing to the broker, on a separate connection: while the broker is short of memory or disk,
//! it does not read from publishing connections, but acknowledgements must reach it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ErrorKind};
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::timeout;
use tracing::warn;

use crate::amqp::table;
use crate::config::BrokerConfig;
use crate::source::PublishError;

/// Timeout for answers of the broker.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Publishes messages and awaits their confirmations. The broker may close the channel because of
/// one message, and then all unconfirmed ones fail. Each of them is retried alone on a second
/// channel, so that each post gets its own result.
pub struct Publisher {
    config: BrokerConfig,
    /// `None` while the broker is away.
    connection: Mutex<Option<Arc<Connection>>>,
    shared: AsyncMutex<Option<Channel>>,
    alone: AsyncMutex<Option<Channel>>,
    /// Notified when the connection or the exchange is lost: a new session is needed.
    pub lost: Notify,
}

impl Publisher {
    pub fn new(config: BrokerConfig) -> Self {
        let (shared, alone) = (AsyncMutex::default(), AsyncMutex::default());
        Self { config, connection: Mutex::default(), shared, alone, lost: Notify::new() }
    }

    /// Sets the connection; `None` while the broker is away.
    pub fn set(&self, connection: Option<Arc<Connection>>) {
        *self.connection.lock().unwrap() = connection;
    }

    /// Publishes a message, and waits until the broker has stored it.
    pub async fn publish(&self, key: &str, body: &[u8], is_json: bool) -> Result<(), PublishError> {
        let connection = self.connection.lock().unwrap().clone().ok_or(PublishError::Down)?;
        if connection.status().blocked() {
            return Err(PublishError::Alarm); // it would wait in memory until the alarm ends
        }
        let trying = async {
            let channel = open(&mut *self.shared.lock().await, &connection).await?;
            self.send(&channel, key, body, is_json).await
        };
        let tried = timeout(TIMEOUT, trying).await.map_err(|_| PublishError::Down)?;
        let answer = match tried {
            Err(_) if connection.status().connected() => {
                let again = async {
                    // Held until the confirmation: only this message can close the channel.
                    let mut alone = self.alone.lock().await;
                    let channel = open(&mut alone, &connection).await?;
                    self.send(&channel, key, body, is_json).await
                };
                timeout(TIMEOUT, again).await.map_err(|_| PublishError::Down)?
            }
            tried => tried,
        };
        match answer {
            Ok(Confirmation::Ack(_)) => Ok(()),
            Ok(_) => Err(PublishError::Rejected),
            Err(error) => {
                warn!(key, %error, "the broker did not take a message");
                if !connection.status().connected() {
                    self.lost.notify_waiters();
                }
                Err(self.refused(&error))
            }
        }
    }

    async fn send(
        &self,
        on: &Channel,
        key: &str,
        body: &[u8],
        is_json: bool,
    ) -> lapin::Result<Confirmation> {
        let mut properties = BasicProperties::default().with_delivery_mode(2); // persistent
        if is_json {
            properties = properties.with_content_type("application/json".into());
        }
        if let Some(header) = &self.config.key_header {
            properties = properties.with_headers(table([(header.as_str(), key)]));
        }
        let (exchange, options) = (self.config.exchange.as_str(), BasicPublishOptions::default());
        on.basic_publish(exchange.into(), key.into(), options, body, properties).await?.await
    }

    fn refused(&self, error: &lapin::Error) -> PublishError {
        let ErrorKind::ProtocolError(error) = error.kind() else { return PublishError::Down };
        match error.kind() {
            AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => PublishError::Forbidden,
            AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) => PublishError::TooLarge,
            AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => {
                self.lost.notify_waiters();
                PublishError::Down
            }
            _ => PublishError::Down,
        }
    }
}

/// Returns the stored channel, or a new one if it is closed.
async fn open(place: &mut Option<Channel>, on: &Connection) -> lapin::Result<Channel> {
    if let Some(channel) = place.as_ref().filter(|channel| channel.status().connected()) {
        return Ok(channel.clone());
    }
    let channel = on.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(place.insert(channel).clone())
}
