//! Tests of the hub. The names are situations.

mod common;
mod inbox;
mod real_inbox;
mod runtimes;
mod sinks;
