//! The target `threads`: see `model/src/threads.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| model::threads::run(script));
