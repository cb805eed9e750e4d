//! A guide, by what you want to do. This module contains documentation only.
//!
//! Each example is compiled and run with the tests of the crate.
//!
//! | page | about |
//! | --- | --- |
//! | [`first_steps`] | from a `select!` loop to a demux, on tokio |
//! | [`channels`] | tokio's channels, sockets, codecs, WebSockets, flume; sinks of several types |
//! | [`slow_sinks`] | overflow policies, lost items, rate limits, time-outs |
//! | [`attachments`] | leases, reconnecting, leaving, request and response, workers on demand |
//! | [`routing`] | keys, groups, several keys for an item, everything to all, priorities, shards |
//! | [`ending`] | shutdown with a deadline; when the last handle is gone |
//! | [`inputs`] | fallible inputs; Kafka, Redis, PostgreSQL, NATS |
//! | [`production`] | metrics, logs, the type of a demux in a struct, tests |
//! | [`bare_metal`] | without `std`: embassy and microcontrollers |
//! | [`comparison`] | other ways to do it, and when they are enough |
//! | [`contract`] | what a demux does, exactly; practical notes |

// The modules exist only for rustdoc: the library has no item here.

#[doc = include_str!("guide/first_steps.md")]
pub mod first_steps {}

#[doc = include_str!("guide/channels.md")]
pub mod channels {}

#[doc = include_str!("guide/slow_sinks.md")]
pub mod slow_sinks {}

#[doc = include_str!("guide/attachments.md")]
pub mod attachments {}

#[doc = include_str!("guide/routing.md")]
pub mod routing {}

#[doc = include_str!("guide/ending.md")]
pub mod ending {}

#[doc = include_str!("guide/inputs.md")]
pub mod inputs {}

#[doc = include_str!("guide/production.md")]
pub mod production {}

#[doc = include_str!("guide/bare_metal.md")]
pub mod bare_metal {}

#[doc = include_str!("guide/comparison.md")]
pub mod comparison {}

#[doc = include_str!("guide/contract.md")]
pub mod contract {}
