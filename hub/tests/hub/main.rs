//! Tests of the hub. The names are situations.

mod common;
mod hub;
mod inbox;
mod real_hub;
mod real_inbox;
mod runtimes;
mod sinks;
