//! The summary: a short version of all benchmarks, in one table with limits.

mod cli;
mod report;
mod sections;

use std::process::ExitCode;

use figures::{alloc, tcp};

use crate::cli::Task;
use crate::report::Report;

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

fn main() -> ExitCode {
    match cli::parse(std::env::args().skip(1)) {
        Ok(Task::Help) => print!("{}", cli::help()),
        Ok(Task::Tcp { clients, lines }) => {
            println!("{}", tcp::default_case(clients, lines).arrived);
        }
        Ok(Task::Summary { only }) => return summarize(only.as_deref()),
        Err(error) => {
            eprintln!("figures: {error}\nfigures: see --help");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn summarize(only: Option<&str>) -> ExitCode {
    let mut report = Report::default();
    for section in sections::ALL {
        if only.is_none_or(|only| only == section.name) {
            report.begin(section.name);
            (section.measure)(&mut report);
        }
    }
    print!("\n{}\n{}", report.table(), report.summary());
    if only.is_some() {
        println!("benches/README.md and benches/figures.svg were not written: --only");
    } else if let Err(error) = report.write() {
        eprintln!("figures: {error}");
        return ExitCode::FAILURE;
    }
    if report.meets_limits() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
