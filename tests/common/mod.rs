//! The test harness: rigs, the reference model, a counting allocator, and the test kit `sink-test`.
//!
//! The kit checks the contracts of `Sink`, `Stream` and `Future` themselves, so it panics whatever
//! a test asserts. But for `real`, nothing here sleeps, reads a clock or spawns.

#![allow(dead_code, unused_imports, reason = "each test binary uses a part of the harness")]
#![allow(unreachable_pub, reason = "nothing is reachable from outside a test binary")]

pub mod alloc;
pub mod crowd;
pub mod frugal;
pub mod group;
pub mod model;
pub mod panics;
#[cfg(test)] // the fuzzers use the harness, too, and have no runtime
pub mod real;
pub mod rig;

pub use crowd::{Crowd, Dice};
pub use rig::{Orders, Recorder, Rig, Split, Terms, hooks};
pub use sink_test::{
    Answer, Broken, Call, CoopBudget, Log, Op, ScriptedSink, ScriptedStream, SinkHandle,
    StreamHandle, Task, scripted_stream,
};

use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A scripted sink that is polled only after a wake, as guarantee 4 says.
pub fn scripted_sink<V>(name: impl Display) -> (ScriptedSink<V>, SinkHandle<V>) {
    let (sink, handle) = sink_test::scripted_sink(name);
    handle.strict_unless_busy();
    (sink, handle)
}

/// Locks also what a panic left behind: scripted sinks panic on purpose, and the test that catches
/// the panic looks at the state afterwards.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
