//! The bodies of the fuzz targets: one function each, that takes a script of bytes and panics if it
//! finds something. `tests/fuzz_corpus.rs` of the crate compiles the same files, and plays the
//! seeds with nothing but `cargo test`; therefore scripts are read by hand, and no crate is used
//! that the tests of the crate do not use.

extern crate alloc;
// For `src/ready.rs`, which `ready` compiles once more.
extern crate interleaved as core;

pub mod keys;
pub mod model;
pub mod ready;
pub mod shares;
pub mod threads;

mod queue;
mod script;

#[path = "../../tests/common/mod.rs"]
mod common;

/// What happens in a script of `model`, event by event, and what was wrong, if anything.
#[must_use]
pub fn story(script: &[u8]) -> String {
    common::model::run_traced(script)
}

// For `src/ready.rs`, too.
#[path = "../../src/id.rs"]
mod id;

/// What happens between two steps of a call.
mod interleave {
    pub(crate) use core::during;
}
