//! The bodies of the fuzz targets. Each is one function, which plays a script of bytes and panics
//! if it finds a fault. `tests/fuzz_corpus.rs` of the crate compiles the same files and plays the
//! seeds under `cargo test`. Therefore scripts are parsed by hand, and the targets use only crates
//! that the tests of the crate use.

extern crate alloc;
// `ready` compiles `src/slots/ready.rs` against these atomics.
extern crate interleaved as core;

pub mod model;
pub mod ready;
pub mod threads;

mod queue;
mod script;

#[path = "../../tests/common/mod.rs"]
mod common;

/// Plays a script of the target `model`. Returns its events, and the fault if it found one.
#[must_use]
pub fn story(script: &[u8]) -> String {
    common::model::run_traced(script)
}

// `src/slots/ready.rs` uses it.
#[path = "../../src/slots/id.rs"]
mod id;

/// Runs a call between two steps of another.
mod interleave {
    pub(crate) use core::during;
}
