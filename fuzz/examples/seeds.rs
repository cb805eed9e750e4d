//! Plays the seeds of a target, with the interleavings that `cargo test` cannot play, and without a
//! fuzzer. `cargo run --example seeds -- ready`

use std::path::Path;

use stream_demux_fuzz::{model, ready, threads};

fn main() {
    for target in std::env::args().skip(1) {
        let run = match target.as_str() {
            "model" => model::run,
            "ready" => ready::run,
            "threads" => threads::run,
            _ => panic!("there is no target `{target}`"),
        };
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(&target);
        let entries = std::fs::read_dir(folder).expect("cannot read the seeds");
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.file_name().is_some_and(|name| name.to_string_lossy().contains('-')) {
                println!("{}", path.display());
                run(&std::fs::read(path).unwrap());
            }
        }
    }
}
