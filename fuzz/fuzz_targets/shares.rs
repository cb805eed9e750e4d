//! The target `shares`: see `src/shares.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| stream_demux_fuzz::shares::run(script));
