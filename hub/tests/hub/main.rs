//! Tests of the hub. The names are situations.

mod backlog;
mod callbacks;
mod common;
mod hub;
mod inbox;
mod pipe;
mod places;
mod programs;
mod progress;
mod real_hub;
mod real_inbox;
mod real_topic;
mod real_workers;
mod real_writers;
mod replay;
mod revoke;
mod runtimes;
mod shared_topics;
mod sinks;
mod split;
mod topic;
mod turns;
mod worker_ends;
mod workers;
mod writers;
