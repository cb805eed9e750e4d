//! The test harness: rigs, the reference model, a counting allocator, and the test kit `sink-test`.
//!
//! The kit checks the contracts of `Sink`, `Stream` and `Future` in all tests, and panics if they
//! are violated. Except for `real`, this module does not sleep, read clocks or spawn threads.

#![allow(dead_code, unused_imports, reason = "each test binary uses only some of it")]
#![allow(unreachable_pub, reason = "nothing is reachable from outside a test binary")]

pub mod alloc;
pub mod dice;
pub mod frugal;
pub mod model;
pub mod panics;
#[cfg(test)] // the fuzzers also use the harness, but have no runtime
pub mod real;
pub mod rig;
/// The numbers that decide when sinks are flushed. They are not promised, and tests that depend on
/// them take them from here.
#[path = "../../src/slots/flush/tuning.rs"]
pub mod tuning;

pub use dice::Dice;
pub use rig::{Note, Orders, Recorder, Rig, Split, Terms, hooks, is_hook};
pub use sink_test::{
    Answer, Broken, Call, CoopBudget, Log, Op, ScriptedSink, ScriptedStream, SinkHandle,
    StreamHandle, Task, scripted_stream,
};

use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Creates a scripted sink that panics if it is polled without a wake (guarantee 4).
pub fn scripted_sink<V>(name: impl Display) -> (ScriptedSink<V>, SinkHandle<V>) {
    let (sink, handle) = sink_test::scripted_sink(name);
    handle.strict();
    (sink, handle)
}

/// Whether tests repeat many times: with optimisation.
pub const THOROUGH: bool = !cfg!(debug_assertions);

/// Ignores poisoning, because scripted sinks panic on purpose and tests inspect the state
/// afterwards.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
