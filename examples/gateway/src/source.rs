//! The destination of published messages: the broker if there is one, otherwise the demux.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, future, stream};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::amqp::Broker;
use crate::line::Line;
use crate::message::{Key, Message};
use crate::router::{Input, Refused};

/// How long a post waits while the input is blocked by a client.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Unconfirmed messages of a batch. The broker is no faster with more.
const UNCONFIRMED: usize = 512;

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
    /// The broker is away, or did not confirm the message.
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
            Self::Amqp(broker) => {
                let publish =
                    |line: &Line<'_>| broker.publisher.publish(&line.key, &line.body, line.is_json);
                return stream::iter(lines).map(publish).buffered(UNCONFIRMED).collect().await;
            }
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

/// The keys of the demo, and their shares in percent.
const MENU: [(&str, u64); 8] = [
    ("demo.tea", 30),
    ("demo.coffee", 25),
    ("demo.cocoa", 15),
    ("demo.mate", 10),
    ("demo.cider", 8),
    ("demo.juice", 6),
    ("demo.milk", 4),
    ("demo.water", 2),
];

/// Publishes made-up messages at this rate while it is polled.
pub async fn demo(source: Source, rate: u32) {
    let keys: Vec<Key> = MENU.iter().map(|(key, _)| Key::from(*key)).collect();
    let mut tick = interval(Duration::from_millis(20));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut count, mut due, mut last) = (0_u64, 0.0, Instant::now());
    loop {
        let now = tick.tick().await;
        // After a pause (blocked input, broker away), at most 100 ms of messages are made up for.
        due += f64::from(rate) * now.duration_since(last).as_secs_f64().min(0.1);
        last = now;
        let mut published = [const { Vec::new() }; MENU.len()];
        while due >= 1.0 {
            due -= 1.0;
            count += 1;
            // 37 is coprime to 100, so this visits all residues in a scattered order.
            let (mut rest, mut choice) = (count.wrapping_mul(37) % 100, 0);
            while rest >= MENU[choice].1 {
                rest -= MENU[choice].1;
                choice += 1;
            }
            let body = format!("cup {count} of {}", &keys[choice]["demo.".len()..]);
            published[choice].push(body);
        }
        // Publishes the messages of a key in sequence to keep their order.
        let publish = async |(key, bodies): (&Key, Vec<String>)| {
            for body in bodies {
                let _ = source.publish(key, body.as_bytes(), false).await;
            }
        };
        future::join_all(keys.iter().zip(published).map(publish)).await;
    }
}
