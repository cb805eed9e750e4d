//! The target `model`: see `src/model.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| stream_demux_fuzz::model::run(script));
