//! The target `threads`: see `src/threads.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| stream_demux_fuzz::threads::run(script));
