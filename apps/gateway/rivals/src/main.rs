//! Measures servers that route messages to WebSockets by key, and prints tables.
//!
//! `apps/gateway/compare` starts the servers and runs this.

mod measure;
mod publisher;
mod subscriber;
mod table;
mod usage;
mod wire;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use tokio::task::LocalSet;

use crate::measure::Measure;
use crate::table::Table;

#[derive(Parser)]
#[command(about = "The measuring program of apps/gateway/compare.")]
enum Command {
    /// Measures one server, and appends a line of JSON to a file
    Measure(Measure),
    /// Prints tables of such lines; fails if a rival takes less processor time than the gateway
    Table(Table),
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Measure(measure) => run(measure).map(|()| true),
        Command::Table(table) => table.run(),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// One thread, to leave the other processors to the server.
fn run(measure: Measure) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    let path = measure.samples.clone();
    let sample = LocalSet::new().block_on(&runtime, measure.run());
    println!("{sample}");
    let line = serde_json::to_string(&sample).map_err(|error| error.to_string())?;
    let opened = OpenOptions::new().create(true).append(true).open(&path);
    let written = opened.and_then(|mut file| writeln!(file, "{line}"));
    written.map_err(|error| format!("{}: {error}", path.display()))
}
