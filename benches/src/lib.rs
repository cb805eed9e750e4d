//! The scenarios behind the figures: each is written once, and run by the criterion benchmarks and
//! by the summary (`cargo run --profile bench -p figures`).
//!
//! A scenario is a [`Group`](measure::Group) of contenders that do the same job: `stream-demux`,
//! what one would use instead, and the bare limit. Each contender checks that what arrived is what
//! was sent.

pub mod alloc;
pub mod article;
pub mod channels;
pub mod fan_in;
pub mod gather;
pub mod longest;
pub mod measure;
pub mod multicast;
pub mod orders;
pub mod parts;
pub mod plot;
pub mod readers;
pub mod route;
pub mod scale;
pub mod shards;
pub mod stuck;
pub mod table;
pub mod tcp;
