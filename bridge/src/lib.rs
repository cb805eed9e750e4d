//! A [hub](stream_demux_hub) over several processes, by Redis or NATS.
//!
//! * [`Bridge::publish`] hands an item to the engine, and completes when the engine has accepted it.
//! * [`Bridge::subscribe`] completes when the engine has confirmed the subscription: what is
//!   published after that, by any process, is received, or the subscription is told that items are
//!   missing, and where ([`Received`]).
//! * All subscribers of a key in a process share one subscription of the engine, which exists while
//!   there is one of them.
//! * [`Bridge::local`] is the same without an engine, for one process.
//!
//! Redis pub/sub and NATS keep nothing: a server that is away for a moment loses what is published
//! meanwhile, and so does one that a client is too slow for. A bridge cannot bring these items back.
//! It tells who has missed something, and from when on nothing is missing. For items that must not
//! be lost, use Redis Streams, NATS `JetStream` or another log.
//!
//! # What happens when
//!
//! | | |
//! | --- | --- |
//! | the engine ends or the network breaks | the bridge connects again, after 100 ms at first and 2 s at last. Then each subscription gets a [`Gap`](Received::Gap) for each of its keys: after the last item of the old connection, and before the first of the new one |
//! | the engine is silent | the same after four [heartbeats](Builder::heartbeat). If it goes on before, nothing is lost |
//! | an item is published meanwhile | it waits for the connection until the [time-out](Builder::publish_timeout); the error says whether it may have been published |
//! | a key is subscribed meanwhile | it waits for the connection, and is joined then, without a gap |
//! | the last subscriber of a key leaves meanwhile | the key is not subscribed again |
//! | a subscriber is too slow | it gets a [`Lagged`](Received::Lagged); the others notice nothing, unless it asked for [`Wait`](stream_demux_hub::Overflow::Wait) |
//! | the hub is too slow, or waits | the bridge stops reading. If that is too much for the engine, it closes the connection, which is told as above |
//! | the engine refuses a key | [`subscribe`](Bridge::subscribe) fails, a subscription gets [`Refused`](Received::Refused); each new connection tries again |
//! | the task of a connection panics | the connection is broken, as above |
//! | the hub has ended | subscriptions end, publishing and subscribing fail |
//! | the last handle is dropped | subscriptions end after what the hub has read by then |
//!
//! # Keys
//!
//! For Redis, a key is the name of a channel. For NATS it is a subject if it can be one: `chat.tea`.
//! Characters that a subject cannot contain, wildcards and a leading `$` are written as `%20` and so
//! on, so that each key has a subject of its own that matches nothing else. An item or a key that is
//! too long for the server is refused, and the connection goes on.
//!
//! # Features
//!
//! `redis` and `nats` are the engines. Both are enabled by default. `redis` brings the client library
//! of that name; NATS is spoken without one.
//!
//! # Memory
//!
//! What comes from the engine waits in a queue of 256 KiB ([`Builder::arrivals`]) and then in the
//! buffers of the subscribers; one item may be as large as the engine allows. What goes to the
//! engine waits with its publishers, of which 1,024 at most wait for an answer at the same time
//! ([`Builder::publish_window`]). An item whose publisher has given up may still be on its way. A key
//! takes memory while it has a subscriber.

// Without an engine, a bridge is for one process, and nothing connects.
#![cfg_attr(not(any(feature = "nats", feature = "redis", test)), allow(dead_code))]

// bridge             the handle, and its settings
// ├── publisher      what goes: an item waits for a connection, and for its answer
// ├── subscription   what comes, for one subscriber: from the hub, which routes it by key
// └── shared         the input of the hub
//     ├── arrivals   what has come from the engine; the socket is not read while it is full
//     ├── table      the keys that have subscribers, and how far the engine is with each
//     └── status     whether the connections are there
// link               the two tasks that keep the connections, and drive them
// └── engine         what they need of an engine
//     ├── nats       the protocol is spoken here
//     ├── redis      the client library speaks it
//     └── fake       for tests
mod arrivals;
mod backoff;
mod bridge;
mod engine;
mod event;
#[cfg(test)]
mod fake;
mod link;
mod lock;
#[cfg(feature = "nats")]
mod nats;
mod publisher;
#[cfg(feature = "redis")]
mod redis;
mod settings;
mod shared;
mod status;
mod subscription;
mod table;
#[cfg(any(feature = "nats", feature = "redis"))]
mod url;

pub use crate::bridge::{Bridge, Builder, PublishError, SubscribeError};
pub use crate::event::Key;
pub use crate::status::{LineStatus, Status};
pub use crate::subscription::{Keys, Received, Subscription};
#[cfg(any(feature = "nats", feature = "redis"))]
pub use crate::url::UrlError;
pub use bytes::Bytes;
pub use stream_demux_hub::{End, Overflow, Terms};

/// Compiles the example of the README.
#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
