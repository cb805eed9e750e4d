//! The target `model`: see `model/src/lib.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| model::run(script));
