//! Runs the seeds of the fuzz targets in `fuzz/` as regression tests, with the code of the targets,
//! on stable and without a fuzzer.
//!
//! In `fuzz/corpus`, files with a dash in their names are seeds. Other files were written by a
//! fuzzer.

#![allow(unreachable_pub, reason = "the targets are modules of a library in `fuzz/`")]

extern crate alloc;

mod common;

#[path = "../fuzz/src/keys.rs"]
mod keys;
#[path = "../fuzz/src/model.rs"]
mod model;
#[path = "../fuzz/src/queue.rs"]
mod queue;
#[path = "../fuzz/src/ready.rs"]
mod ready;
#[path = "../fuzz/src/script.rs"]
mod script;
#[path = "../fuzz/src/shares.rs"]
mod shares;
#[path = "../fuzz/src/threads.rs"]
mod threads;

// Also for `src/ready.rs`.
#[path = "../src/id.rs"]
mod id;

/// The fuzz target can run another call between two steps of an atomic. Here, that call runs
/// afterwards.
mod interleave {
    pub(crate) fn during<R>(
        _steps: usize,
        other: impl FnOnce() + 'static,
        call: impl FnOnce() -> R,
    ) -> R {
        let result = call();
        other();
        result
    }
}

/// Runs each seed of a target. Prints its name first, so the last name printed is the failed seed.
fn play(target: &str, run: fn(&[u8])) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus");
    let folder = std::path::Path::new(folder).join(target);
    let entries = std::fs::read_dir(&folder).expect("cannot read the seeds");
    let mut seeds: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    seeds.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains('-')));
    seeds.sort();
    assert!(seeds.len() >= 5, "{}: only {} seeds", folder.display(), seeds.len());
    for seed in seeds {
        println!("{}", seed.display());
        run(&std::fs::read(&seed).unwrap());
    }
}

#[test]
fn seeds_of_the_whole_contract() {
    play("model", model::run);
}

#[test]
fn seeds_of_the_list_of_woken_slots() {
    play("ready", ready::run);
}

#[test]
fn seeds_of_keys_and_hashers() {
    play("keys", keys::run);
}

#[test]
fn seeds_of_fair_shares() {
    play("shares", shares::run);
}

#[test]
fn seeds_of_threads() {
    play("threads", threads::run);
}
