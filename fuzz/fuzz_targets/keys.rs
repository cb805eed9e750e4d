//! The target `keys`: see `src/keys.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| stream_demux_fuzz::keys::run(script));
