//! Prints the events of scripts of the target `model`, and the faults it finds.
//! `cargo run --release --example story -- corpus/model/...`

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut status = ExitCode::SUCCESS;
    for path in std::env::args().skip(1) {
        match std::fs::read(&path) {
            Ok(script) => println!("{path}\n{}", model::run_traced(&script)),
            Err(error) => {
                eprintln!("{path}: {error}");
                status = ExitCode::FAILURE;
            }
        }
    }
    status
}
