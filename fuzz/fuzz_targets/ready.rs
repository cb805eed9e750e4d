//! The target `ready`: see `src/slots/ready.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| stream_demux_fuzz::ready::run(script));
