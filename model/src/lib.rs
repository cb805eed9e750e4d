//! A reference model of the whole contract, the scripts that compare the crate with it, and the other
//! targets of the fuzzers.
//!
//! * A *script* is a string of bytes; any string is valid. It consists of *steps* of the outside
//!   world: items, orders on all terms, ends of leases, what sinks and streams return, what happens
//!   inside a call, and polls of the task.
//! * The *reference* is a second, naive implementation of the contract. What it does in each turn
//!   is determined by the contract alone.
//! * A *world* is everything outside a demux. A script is played in two worlds, step by step: one
//!   has the crate's `Demux`, the other the reference.
//! * The *tape* is the log of all events of a world. The demux polls watched sinks and streams and
//!   calls watched hooks, which write to it.
//!
//! After each step both tapes must be equal, event by event, and so must be what the getters
//! return, whether the task is woken or asleep, and the number of items that exist. The moment at
//! which an item is cloned is not compared.
//!
//! | file | content |
//! | --- | --- |
//! | `script.rs` | the meaning of the bytes |
//! | `event.rs` | commands, and the events on the tape |
//! | `world.rs` | what a script acts on: sinks, streams, leases, cooperative budgets |
//! | `watched.rs` | items, sinks, streams and hooks that write to the tape |
//! | `subject.rs` | creates the demux or the reference, and the world around it |
//! | `reference.rs`, `reference/` | the reference |
//! | `monitor.rs` | checks that need no reference |
//! | `play.rs` | plays a script and compares the worlds |
//! | `ready.rs`, `threads.rs` | the other fuzz targets, with `letters.rs` |
//! | `counting.rs` | a counting allocator |
//! | `dice.rs` | random numbers |
//! | `tuning.rs` | numbers of the crate |
//!
//! The test kit `sink-test` checks the contracts of `Sink`, `Stream` and `Future` in all tests, and
//! panics if they are violated. Nothing here sleeps, reads clocks or depends on a runtime.

#![allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#![allow(clippy::needless_for_each, reason = "on an `Option`, it takes one line instead of three")]
#![allow(clippy::wildcard_imports, reason = "the parts of the reference are one module")]
#![allow(clippy::needless_pass_by_value, reason = "an item that has met its fate is dropped")]

extern crate alloc;
// `ready` compiles `src/slots/ready.rs` with these atomics.
extern crate interleaved as core;

pub mod counting;
pub mod dice;
pub mod ready;
pub mod threads;
pub mod tuning;

mod event;
mod letters;
mod monitor;
mod play;
mod reference;
mod script;
mod subject;
mod watched;
mod world;

/// Files of the crate itself, compiled as they are.
#[path = "../../src/slots"]
mod slots {
    pub(crate) mod id;
    pub(crate) mod ready;
    pub(crate) mod flush {
        pub(crate) mod tuning;
    }
}

pub use monitor::{SITUATIONS, Situation, Summary};
use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};

use play::Run;
use sink_test::{ScriptedSink, SinkHandle};

/// Whether tests repeat many times: with optimisation.
pub const THOROUGH: bool = !cfg!(debug_assertions);

/// Creates a scripted sink that panics if it is polled without a wake (guarantee 4).
pub fn scripted_sink<V>(name: impl Display) -> (ScriptedSink<V>, SinkHandle<V>) {
    let (sink, handle) = sink_test::scripted_sink(name);
    handle.strict();
    (sink, handle)
}

/// Ignores poisoning, because scripted sinks panic on purpose and tests inspect the state
/// afterwards.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of keys that attachments have. Items have keys below `ITEM_KEYS`, so some items match
/// no attachment. Crowds and bursts have more keys.
const KEYS: u16 = 4;
const ITEM_KEYS: u16 = 6;
/// The maximal numbers of steps, sinks and items of a script, and of polls until the task sleeps.
const MAX_STEPS: usize = 600;
const MAX_SINKS: usize = 64;
const MAX_CROWD: usize = 2_500;
const MAX_ITEMS: u32 = 3_000;
const MAX_POLLS: usize = 10_000;

/// Runs a script.
///
/// # Panics
///
/// Panics if the crate breaks the contract. The message lists the last events of both worlds.
#[track_caller]
pub fn run(script: &[u8]) {
    if let Err(failure) = check(script) {
        panic!("{failure}");
    }
}

/// Runs a script. Returns its events, whether it fails or not.
pub fn run_traced(script: &[u8]) -> String {
    let mut run = Run::new(script);
    let fault = run.guarded();
    run.story(fault.as_deref(), true)
}

/// Runs a script. Returns how often each kind of event occurred or, if the script fails, its last
/// events and the fault.
pub fn check(script: &[u8]) -> Result<Summary, String> {
    let mut run = Run::new(script);
    match run.guarded() {
        None => Ok(run.monitor.summary),
        Some(fault) => Err(run.story(Some(&fault), false)),
    }
}

/// Removes bytes from a failing script, as long as `fails` returns `true` for the rest: first long
/// runs, then single bytes.
pub fn shrink(script: &[u8], mut fails: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
    let mut script = script.to_vec();
    let mut len = script.len() / 2;
    while len > 0 {
        let mut at = 0;
        while at < script.len() {
            let mut shorter = script.clone();
            shorter.drain(at..script.len().min(at + len));
            if fails(&shorter) {
                script = shorter;
            } else {
                at += len;
            }
        }
        len /= 2;
    }
    script
}
