//! The test harness: scripted sinks and streams, a task polled by hand, a counting allocator.
//!
//! But for the rigs and the model it knows nothing of the crate under test. What it checks are the
//! contracts of `Sink`, `Stream` and `Future` themselves, so it objects on its own, whatever a test
//! asserts. But for `real`, nothing here sleeps, reads a clock or spawns; all handles are `Clone` and `Send`,
//! so other threads may pull them.

#![allow(dead_code, unused_imports, reason = "each test binary uses a part of the harness")]
#![allow(unreachable_pub, reason = "nothing is reachable from outside a test binary")]

pub mod alloc;
pub mod coop;
pub mod executor;
pub mod frugal;
pub mod group;
pub mod log;
pub mod model;
pub mod panics;
#[cfg(test)] // the fuzzers use the harness, too, and have no runtime
pub mod real;
pub mod rig;
pub mod sink;
pub mod stream;

pub use coop::CoopBudget;
pub use executor::Task;
pub use log::Log;
pub use rig::{Orders, Recorder, Rig, Split, Terms, hooks};
pub use sink::{Answer, Broken, Call, Op, ScriptedSink, SinkHandle, scripted_sink};
pub use stream::{ScriptedStream, StreamHandle, scripted_stream};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is run inside a poll of a scripted sink or stream.
type Action = Box<dyn FnOnce() + Send>;

/// Locks also what a panic left behind: the harness panics on purpose, and the test that catches
/// this wants to look at the state afterwards.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
