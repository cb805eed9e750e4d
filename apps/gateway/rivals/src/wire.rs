//! The protocols of the servers: how clients subscribe, and how messages are published.
//!
//! The body of a message is the same for all: `~KKKKKNNNNNNNNNTTTTTTTTTTTT`, which is the key, the
//! number within the key, and the time in microseconds, padded with `x`. A subscriber searches for
//! the `~`, so it does not depend on how a server wraps the body.

use std::io::Write as _;

use clap::ValueEnum;

pub const BODY: usize = 100;
const FIELDS: [usize; 3] = [5, 9, 12];

/// The contents of a body: the index of the key, the number, and the time of publishing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    pub key: usize,
    pub number: u64,
    pub sent: u64,
}

impl Stamp {
    pub fn append(self, to: &mut Vec<u8>) {
        let start = to.len();
        let _ = write!(to, "~{:05}{:09}{:012}", self.key, self.number, self.sent);
        to.resize(start + BODY, b'x');
    }

    /// Calls `found` for each body in the payload of a frame.
    pub fn find(payload: &[u8], mut found: impl FnMut(Self)) {
        for at in memchr::memchr_iter(b'~', payload) {
            let mut rest = &payload[at + 1..];
            let mut next = |digits: usize| {
                let (field, after) = rest.split_at_checked(digits)?;
                rest = after;
                field.iter().try_fold(0, |sum: u64, byte| {
                    byte.is_ascii_digit().then(|| sum * 10 + u64::from(byte - b'0'))
                })
            };
            if let [Some(key), Some(number), Some(sent)] = FIELDS.map(&mut next) {
                let key = usize::try_from(key).unwrap_or(usize::MAX);
                found(Self { key, number, sent });
            }
        }
    }
}

pub fn key(index: usize) -> String {
    format!("k{index:05}")
}

/// How a client subscribes over a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Subscribing {
    /// The gateway: a JSON message on `/ws`
    Gateway,
    /// The key is in the path, `/sub/KEY`; no message is needed
    Path,
    Nats,
    Mqtt,
    Stomp,
    Centrifuge,
}

impl Subscribing {
    /// Returns the path and the WebSocket subprotocol.
    pub fn path(self, key: &str) -> (String, Option<&'static str>) {
        match self {
            Self::Gateway | Self::Centrifuge => ("/ws".to_owned(), None),
            Self::Path => (format!("/sub/{key}"), None),
            Self::Nats => ("/".to_owned(), None),
            Self::Mqtt => ("/ws".to_owned(), Some("mqtt")),
            Self::Stomp => ("/ws".to_owned(), Some("v12.stomp")),
        }
    }

    pub fn is_binary(self) -> bool {
        matches!(self, Self::Nats | Self::Mqtt)
    }

    /// Returns the payloads that a client sends first, one per frame.
    pub fn hello(self, key: &str, client: usize) -> Vec<Vec<u8>> {
        let text = |text: String| text.into_bytes();
        match self {
            Self::Gateway => vec![text(format!(r#"{{"type":"subscribe","key":"{key}"}}"#))],
            Self::Path => Vec::new(),
            Self::Nats => vec![
                b"CONNECT {\"verbose\":false,\"pedantic\":false,\"protocol\":1}\r\n".to_vec(),
                text(format!("SUB {key} 1\r\nPING\r\n")),
            ],
            Self::Mqtt => vec![mqtt_connect(client), mqtt_subscribe(key)],
            Self::Stomp => vec![
                b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\n\
                  heart-beat:0,0\n\n\0"
                    .to_vec(),
                text(format!(
                    "SUBSCRIBE\nid:0\ndestination:/exchange/amq.direct/{key}\nack:auto\n\
                     receipt:there\n\n\0"
                )),
            ],
            Self::Centrifuge => vec![
                br#"{"id":1,"params":{}}"#.to_vec(),
                text(format!(r#"{{"id":2,"method":1,"params":{{"channel":"{key}"}}}}"#)),
            ],
        }
    }

    /// Returns the payload that confirms the subscription; if `None`, the handshake confirms it.
    pub fn confirmation(self) -> Option<&'static [u8]> {
        Some(match self {
            Self::Gateway => br#""type":"subscribed""#,
            Self::Path => return None,
            Self::Nats => b"PONG",
            Self::Mqtt => &[0x90, 3, 0, 1, 0],
            Self::Stomp => b"receipt-id:there",
            Self::Centrifuge => br#""id":2,"result""#,
        })
    }
}

/// How a message is published, over TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Publishing {
    /// `POST /publish/KEY`, pipelined
    Http,
    /// `POST /publish`, one JSON object a line
    HttpBatch,
    Nats,
    Mqtt,
    /// AMQP 0-9-1, to `amq.direct`
    Amqp,
    /// AMQP 0-9-1, to `amq.direct`, with delivery mode 2
    AmqpPersistent,
    /// AMQP 0-9-1, to `amq.topic`, where RabbitMQ's MQTT plugin subscribes
    AmqpTopic,
    /// AMQP 0-9-1, to `amq.topic`, with delivery mode 2
    AmqpTopicPersistent,
}

impl Publishing {
    /// Returns what the nth connection sends first.
    pub fn hello(self, nth: usize) -> Vec<u8> {
        match self {
            Self::Http | Self::HttpBatch => Vec::new(),
            Self::Nats => b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\n".to_vec(),
            Self::Mqtt => mqtt_connect(usize::MAX - nth),
            _ => amqp_hello(),
        }
    }

    /// Returns the server's answer to that, after which messages may be sent.
    pub fn welcome(self) -> Option<&'static [u8]> {
        match self {
            Self::Http | Self::HttpBatch => None,
            Self::Nats => Some(b"INFO"),
            Self::Mqtt => Some(&[0x20, 2, 0, 0]),
            _ => Some(&[0, 20, 0, 11]), // channel.open-ok
        }
    }

    /// Appends messages for one connection; returns the number of answers to expect.
    pub fn append(self, messages: &[Stamp], to: &mut Vec<u8>) -> u64 {
        if self == Self::HttpBatch {
            let mut lines = Vec::with_capacity(messages.len() * (BODY + 32));
            for message in messages {
                let _ = write!(lines, r#"{{"key":"{}","body":""#, key(message.key));
                message.append(&mut lines);
                lines.extend(b"\"}\n");
            }
            let size = lines.len();
            let _ = write!(
                to,
                "POST /publish HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size}\r\n\r\n"
            );
            to.extend(lines);
            return 1;
        }
        for message in messages {
            self.append_one(*message, to);
        }
        if self == Self::Http { messages.len() as u64 } else { 0 }
    }

    fn append_one(self, message: Stamp, to: &mut Vec<u8>) {
        let key = key(message.key);
        match self {
            Self::Http => {
                let _ = write!(
                    to,
                    "POST /publish/{key} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {BODY}\r\n\r\n"
                );
                message.append(to);
            }
            Self::Nats => {
                let _ = write!(to, "PUB {key} {BODY}\r\n");
                message.append(to);
                to.extend(b"\r\n");
            }
            Self::Mqtt => {
                to.push(0x30);
                to.push(length(2 + key.len() + BODY));
                mqtt_string(to, &key);
                message.append(to);
            }
            _ => self.append_amqp(message, &key, to),
        }
    }

    /// Appends basic.publish, a header with the delivery mode, and the body.
    fn append_amqp(self, message: Stamp, key: &str, to: &mut Vec<u8>) {
        let (exchange, mode) = match self {
            Self::Amqp => ("amq.direct", 1),
            Self::AmqpPersistent => ("amq.direct", 2),
            Self::AmqpTopic => ("amq.topic", 1),
            _ => ("amq.topic", 2),
        };
        let mut publish = vec![0, 60, 0, 40, 0, 0, length(exchange.len())];
        publish.extend(exchange.as_bytes());
        publish.push(length(key.len()));
        publish.extend(key.as_bytes());
        publish.push(0); // neither mandatory nor immediate
        amqp_frame(to, 1, 1, &publish);
        let mut header = vec![0, 60, 0, 0];
        header.extend((BODY as u64).to_be_bytes());
        header.extend([0x10, 0, mode]); // the delivery mode is the only property
        amqp_frame(to, 2, 1, &header);
        let mut body = Vec::with_capacity(BODY);
        message.append(&mut body);
        amqp_frame(to, 3, 1, &body);
    }
}

/// Returns the length of a short slice.
fn length(length: usize) -> u8 {
    u8::try_from(length).unwrap_or(u8::MAX)
}

fn mqtt_string(to: &mut Vec<u8>, text: &str) {
    to.extend([0, length(text.len())]);
    to.extend(text.as_bytes());
}

/// MQTT 3.1.1, a clean session, without keep-alive.
fn mqtt_connect(client: usize) -> Vec<u8> {
    let mut rest = vec![0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0];
    mqtt_string(&mut rest, &format!("c{client}-{}", std::process::id()));
    [vec![0x10, length(rest.len())], rest].concat()
}

/// With quality of service 0.
fn mqtt_subscribe(key: &str) -> Vec<u8> {
    let mut rest = vec![0, 1];
    mqtt_string(&mut rest, key);
    rest.push(0);
    [vec![0x82, length(rest.len())], rest].concat()
}

fn amqp_frame(to: &mut Vec<u8>, kind: u8, channel: u16, payload: &[u8]) {
    to.push(kind);
    to.extend(channel.to_be_bytes());
    to.extend(u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes());
    to.extend(payload);
    to.push(0xce);
}

/// Start-ok, tune-ok, open and channel.open at once: the broker reads them in order.
fn amqp_hello() -> Vec<u8> {
    let mut all = b"AMQP\0\0\x09\x01".to_vec();
    let start_ok = b"\0\x0a\0\x0b\0\0\0\0\x05PLAIN\0\0\0\x0c\0guest\0guest\x05en_US";
    amqp_frame(&mut all, 1, 0, start_ok);
    let tune_ok = [0, 10, 0, 31, 0x07, 0xff, 0, 2, 0, 0, 0, 0]; // frames of 128 KiB, no heartbeat
    amqp_frame(&mut all, 1, 0, &tune_ok);
    amqp_frame(&mut all, 1, 0, b"\0\x0a\0\x28\x01/\0\0");
    amqp_frame(&mut all, 1, 1, b"\0\x14\0\x0a\0");
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_found_in_any_envelope() {
        let stamp = Stamp { key: 999, number: 123_456_789, sent: 987_654_321_012 };
        let mut payload = br#"{"key":"k00999","body":""#.to_vec();
        stamp.append(&mut payload);
        payload.extend(br#""}~garbage"#);
        stamp.append(&mut payload);
        let mut found = Vec::new();
        Stamp::find(&payload, |stamp| found.push(stamp));
        assert_eq!(found, [stamp, stamp]);
        Stamp::find(&payload[..40], |stamp| panic!("cut off, and found: {stamp:?}"));
    }
}
