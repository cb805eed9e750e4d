//! Which keys the broker's user may read.
//!
//! On a topic exchange, permissions may depend on the key. RabbitMQ checks them when a binding is
//! added or removed, and refuses by closing the channel. If that were the channel that changes the
//! bindings, a client could end the session of all by subscribing to one forbidden key. So each key
//! is asked for first, on a channel of its own.
//!
//! The question is the removal of a binding that does not exist, from the exchange to the mark
//! ([`crate::amqp`]). It needs the same permissions, and changes nothing, so it does not matter when
//! the broker executes it.
//!
//! lapin does not reuse the number of a channel that the broker has closed. So the questions have a
//! [connection](Link) of their own, which is replaced before it has used up its numbers.

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::join_all;
use lapin::Channel;
use lapin::protocol::AMQPSoftError;
use tokio::time::timeout;
use tracing::warn;

use crate::amqp::{Broker, CLOSE_TIMEOUT, gone};
use crate::link::{Link, refusal};
use crate::log::NOT_READABLE;
use crate::message::Key;
use crate::refusals::Refusals;

/// What the connections are named, after the gateway.
const ASKING: &str = ", permissions";

/// Asks the broker which keys may be read, in one session.
pub struct Permissions<'a> {
    broker: &'a Broker,
    /// `None` before the first question.
    link: Option<Link>,
    refusals: Refusals,
}

impl<'a> Permissions<'a> {
    pub fn new(broker: &'a Broker) -> Self {
        Self { broker, link: None, refusals: Refusals::new() }
    }

    /// Returns those of the keys that may not be read.
    pub async fn refused(&mut self, keys: Vec<Key>) -> lapin::Result<HashSet<Key>> {
        let (refused, mut unknown): (Vec<Key>, Vec<Key>) =
            keys.into_iter().partition(|key| self.refusals.contains(key));
        let mut refused = HashSet::from_iter(refused);
        while !unknown.is_empty() {
            let channels = self.channels(unknown.len()).await?;
            let some = unknown.split_off(unknown.len() - channels.len());
            let asking = some.into_iter().zip(channels).map(async |(key, channel)| {
                let answer = self.broker.ask(&channel, &key).await;
                (key, channel, answer)
            });
            for (key, channel, answer) in join_all(asking).await {
                if let Some(link) = &mut self.link {
                    link.give_back(channel);
                }
                let Err(error) = answer else { continue };
                let Some((AMQPSoftError::ACCESSREFUSED, _)) = refusal(&error) else {
                    return Err(error);
                };
                if NOT_READABLE.allows() {
                    warn!(%key, %error, "the broker does not allow a key to be read");
                }
                self.refusals.add(&key);
                refused.insert(key);
            }
        }
        Ok(refused)
    }

    /// Takes some channels: at least one, and no more than `most`.
    async fn channels(&mut self, most: usize) -> lapin::Result<Vec<Channel>> {
        if let Some(worn) = self.link.take_if(|link| link.is_worn()) {
            let closing = worn.connection.close(200, "out of channels".into());
            let _ = timeout(CLOSE_TIMEOUT, closing).await;
        }
        let link = if let Some(link) = &mut self.link {
            link
        } else {
            let connection = self.broker.connect(ASKING).await?;
            self.link.insert(Link::new(Arc::new(connection), Arc::clone(&self.broker.channels)))
        };
        let mut channels = Vec::new();
        channels.extend(std::iter::from_fn(|| link.take()).take(most));
        for opened in join_all(link.open(most - channels.len())).await {
            link.opened(opened);
        }
        let missing = most - channels.len();
        channels.extend(std::iter::from_fn(|| link.take()).take(missing));
        if channels.is_empty() {
            return Err(gone("the broker opens no channel"));
        }
        Ok(channels)
    }
}
