//! Tells the story of scripts of `model`: what happened, event by event, and what was wrong, if
//! anything. `cargo run --release --example story -- corpus/model/...`

use std::process::ExitCode;

use stream_demux_fuzz::common::model;

fn main() -> ExitCode {
    let mut status = ExitCode::SUCCESS;
    for path in std::env::args_os().skip(1) {
        match std::fs::read(&path) {
            Ok(script) => println!("{}\n{}", path.display(), model::run_traced(&script)),
            Err(error) => {
                eprintln!("{}: {error}", path.display());
                status = ExitCode::FAILURE;
            }
        }
    }
    status
}
