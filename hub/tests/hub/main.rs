//! Tests of the hub. The names are situations.

mod common;
mod hub;
mod inbox;
mod programs;
mod progress;
mod real_hub;
mod real_inbox;
mod real_topic;
mod real_workers;
mod replay;
mod runtimes;
mod shared_topics;
mod sinks;
mod split;
mod topic;
mod workers;
