//! An asynchronous Apache Thrift client and server with many concurrent calls per connection.
//!
//! ```text
//! client   socket ─▶ frames ─▶ demux by sequence id ─▶ one sink per call, limit(1), leased
//!                                    ▲
//!          a call: sends its order ──┘, then its frame ─▶ socket
//!
//! server   sockets ─▶ frames ─▶ calls, concurrent ─▶ answers ─▶ demux by connection ─▶ sockets
//!
//! pool     calls ─▶ demux, one key, `balance` ─▶ places at each server
//! ```
//!
//! [`Client`] and [`Pool`] make calls, and [`serve`] answers them. [`demo`] contains the code
//! generated from `idl/demo.thrift`; it is the only module to replace for a service of your own.

mod client;
mod connect;
mod connection;
pub mod demo;
mod error;
mod fairness;
mod frame;
mod guard;
mod health;
mod limited;
mod memory;
mod message;
mod outbox;
mod pace;
mod panics;
mod places;
mod pool;
mod server;
mod service;
mod shares;
mod socket;
mod transport;
mod turns;
mod unanswered;
mod unpolled;
mod upstream;

pub use crate::client::{Client, Counts, Options};
pub use crate::error::Error;
pub use crate::message::{Limits, Message, Protocol, Wire};
pub use crate::pool::{Answers, Pool};
pub use crate::server::{Report, Settings, serve};
pub use crate::service::{Request, Service};
pub use crate::socket::{Reading, Writing};
pub use crate::transport::{Frame, Framing, Incoming, Outgoing, Transport, Way};
