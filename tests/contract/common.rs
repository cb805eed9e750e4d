//! What the modules share: rigs, the test kit `sink-test`, and what they use of `model`.
//!
//! The kit checks the contracts of `Sink`, `Stream` and `Future` in all tests, and panics if they
//! are violated. Except for `real`, this module does not sleep, read clocks or spawn threads.

#![allow(unreachable_pub, reason = "nothing is reachable from outside a test binary")]

pub mod panics;
pub mod real;
pub mod rig;

pub use model::{THOROUGH, lock, scripted_sink, tuning};
pub use rig::{Note, Orders, Recorder, Rig, Split, Terms, hooks, is_hook};
pub use sink_test::{
    Answer, Broken, Call, CoopBudget, Log, Op, ScriptedSink, ScriptedStream, SinkHandle,
    StreamHandle, Task, scripted_stream,
};
