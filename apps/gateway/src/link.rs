//! A connection whose channels the broker may close, for publishing and for questions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use futures::FutureExt;
use futures::future::BoxFuture;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::{BasicProperties, Channel, Connection, ErrorKind};
use tracing::warn;

/// Channels that a connection has open at a time. A persistent message is confirmed after a few
/// milliseconds, so more would hardly be faster, and each is four processes of the broker.
const OPEN: usize = 256;

/// How many channels a connection may have open. Fewer if the broker limits those of the user
/// (`max-channels`): it ends the connection on which one too many is opened.
pub struct Channels(AtomicUsize);

impl Channels {
    pub fn new() -> Self {
        Self(AtomicUsize::new(OPEN))
    }

    fn most(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// Learns the limit from the error with which the broker has ended a connection. A quarter is
    /// for publishing, and another one for questions: the rest is left for the session, and for
    /// other programs with the same user.
    pub fn learn(&self, error: &lapin::Error) {
        let ErrorKind::ProtocolError(error) = error.kind() else { return };
        if !matches!(error.kind(), AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED)) {
            return;
        }
        let Some(limit) = channel_limit(error.get_message().as_str()) else { return };
        let most = (limit / 4).max(1);
        if self.0.fetch_min(most, Relaxed) > most {
            warn!(limit, most, "the broker limits the channels of the user");
        }
    }
}

/// "… number of channels opened for user 'guest' has reached the maximum allowed limit of (50)"
fn channel_limit(why: &str) -> Option<usize> {
    let (_, rest) = why.split_once("channels")?;
    rest.rsplit_once('(')?.1.split_once(')')?.0.parse().ok()
}

pub struct Link {
    pub connection: Arc<Connection>,
    channels: Arc<Channels>,
    /// The broker confirms what is published on its channels.
    confirms: bool,
    /// For publishing: the largest body that the broker accepts, at most `--max-body`.
    pub largest: usize,
    idle: Vec<Channel>,
    /// Channels that are open, and those of them that are being opened.
    open: usize,
    opening: usize,
    /// Channels that the broker has closed. lapin does not reuse their numbers.
    closed: usize,
    /// A channel could not be opened.
    is_broken: bool,
}

impl Link {
    /// A connection for questions.
    pub fn new(connection: Arc<Connection>, channels: Arc<Channels>) -> Self {
        Self {
            connection,
            channels,
            confirms: false,
            largest: 0,
            idle: Vec::new(),
            open: 0,
            opening: 0,
            closed: 0,
            is_broken: false,
        }
    }

    /// A connection for publishing. Finds the largest body that the broker accepts, by publishing
    /// to no queue. If the first message that is too large were one of a client, it would end the
    /// channel that it shares.
    pub async fn examine(
        connection: Arc<Connection>,
        channels: Arc<Channels>,
        max_body: usize,
    ) -> lapin::Result<Self> {
        let mut link =
            Self { confirms: true, largest: max_body, ..Self::new(connection, channels) };
        loop {
            let channel = open(Arc::clone(&link.connection), link.confirms).await?;
            link.open += 1;
            let (body, options) = (vec![0; link.largest], BasicPublishOptions::default());
            let properties = BasicProperties::default();
            let published = async {
                channel.basic_publish("".into(), "".into(), options, &body, properties).await?.await
            };
            let published = published.await;
            link.give_back(channel);
            match published.as_ref().map_err(refusal) {
                // The broker checks the size first.
                Ok(_) | Err(Some((AMQPSoftError::ACCESSREFUSED, _))) => break,
                Err(Some((AMQPSoftError::PRECONDITIONFAILED, why))) if link.largest > 0 => {
                    // "… message size 9 is larger than configured max size 7"
                    let limit = why.rsplit(' ').next().and_then(|word| word.parse().ok());
                    let limit = limit.filter(|limit| *limit < link.largest);
                    link.largest = limit.unwrap_or(link.largest / 2);
                }
                Err(_) => return published.map(|_| link),
            }
        }
        if link.largest < max_body {
            warn!(largest = link.largest, max_body, "the broker's limit is lower than --max-body");
        }
        Ok(link)
    }

    /// Takes an idle channel.
    pub fn take(&mut self) -> Option<Channel> {
        loop {
            let channel = self.idle.pop()?;
            if channel.status().connected() {
                return Some(channel);
            }
            self.give_back(channel);
        }
    }

    /// Returns a channel, which is idle, or which the broker has closed.
    pub fn give_back(&mut self, channel: Channel) {
        if channel.status().connected() {
            self.idle.push(channel);
        } else {
            self.open -= 1;
            self.closed += 1;
        }
    }

    /// Starts to open as many channels as are waited for, as far as the limits allow.
    pub fn open(&mut self, waiting: usize) -> Vec<BoxFuture<'static, lapin::Result<Channel>>> {
        let room = self.channels.most().min(self.half()).saturating_sub(self.open);
        let count = if self.is_broken { 0 } else { waiting.saturating_sub(self.opening).min(room) };
        (self.open, self.opening) = (self.open + count, self.opening + count);
        let confirms = self.confirms;
        (0..count).map(|_| open(Arc::clone(&self.connection), confirms).boxed()).collect()
    }

    pub fn opened(&mut self, channel: lapin::Result<Channel>) {
        self.opening -= 1;
        match channel {
            Ok(channel) => self.idle.push(channel),
            Err(error) => {
                self.channels.learn(&error);
                self.open -= 1;
                if !std::mem::replace(&mut self.is_broken, true) {
                    warn!(%error, "the broker opens no channel");
                }
            }
        }
    }

    /// Returns `true` if another connection should replace this one. Until it does, half of the
    /// numbers are left.
    pub fn is_worn(&self) -> bool {
        self.is_broken || self.closed >= self.half()
    }

    fn half(&self) -> usize {
        usize::from(self.connection.configuration().channel_max() / 2).max(1)
    }
}

async fn open(on: Arc<Connection>, confirms: bool) -> lapin::Result<Channel> {
    let channel = on.create_channel().await?;
    if confirms {
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
    }
    Ok(channel)
}

/// Returns why the broker has closed a channel.
pub fn refusal(error: &lapin::Error) -> Option<(AMQPSoftError, &str)> {
    let ErrorKind::ProtocolError(error) = error.kind() else { return None };
    match error.kind() {
        AMQPErrorKind::Soft(kind) => Some((kind.clone(), error.get_message().as_str())),
        AMQPErrorKind::Hard(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_on_channels_is_in_the_broker_s_text() {
        let of_user = "NOT_ALLOWED - number of channels opened for user 'a (b)' has reached the \
                       maximum allowed user limit of (50)";
        assert_eq!(channel_limit(of_user), Some(50));
        assert_eq!(channel_limit("NOT_ALLOWED - vhost not found (3)"), None);
    }
}
