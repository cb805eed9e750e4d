//! Tests of the documented guarantees, with a module for each situation; `../README.md` lists them.
//!
//! They form one binary, so that the crate and the harness are compiled and linked once. Tests that
//! need a separate process are separate binaries.

mod common;

mod admit;
mod any_task;
mod balancing;
mod blocked_sink;
mod bounded_turns;
mod catch_all;
mod completion;
mod dropping;
mod endings;
mod flushing;
mod harness;
mod hooks;
mod interest;
mod leases;
mod limits;
mod looking_in;
mod multicast;
mod on_demand;
mod orders_before_items;
mod overflow;
mod panics;
mod polling;
mod public_api;
mod real_sinks;
mod really_full;
mod reconnecting;
mod reentrancy;
mod room_for_everything;
mod runtimes;
mod settings;
mod shared_reservations;
mod sink_and_stream;
mod taken_key;
mod ticks;
