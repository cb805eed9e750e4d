//! The benchmark scenarios. The criterion benchmarks and the summary (`cargo run --profile bench -p
//! figures`) both run them.
//!
//! A scenario is a [`Group`](measure::Group) of contenders that do the same job: `stream-demux`,
//! its alternatives, and a bare loop as the lower bound. Each contender checks that every item
//! arrives.

pub use loops::{alloc, measure, parts, scale};

pub mod article;
pub mod channels;
mod clients;
pub mod delay;
pub mod fan_in;
pub mod fan_out;
pub mod gather;
pub mod longest;
pub mod multicast;
pub mod neighbour;
pub mod orders;
pub mod plot;
pub mod readers;
mod receiving;
pub mod route;
pub mod shards;
pub mod sockets;
pub mod stuck;
pub mod table;
pub mod tcp;
pub mod threads;
