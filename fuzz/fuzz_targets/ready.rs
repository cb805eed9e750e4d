//! The target `ready`: see `model/src/ready.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| model::ready::run(script));
