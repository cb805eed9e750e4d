//! Runs one loop, so that callgrind can count its instructions: `loops NAME SINKS ITEMS`.

use std::process::ExitCode;

use loops::measure::Run;
use loops::{alloc, route, scale};

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

/// Takes the number of sinks and of items.
type Loop = fn(u64, u64) -> Run;

/// The loops by name.
const LOOPS: [(&str, Loop); 6] = [
    ("bare", route::bare),
    ("demux", route::demux),
    ("copy", route::copy),
    ("wake-bare", scale::wake_bare),
    ("wake", scale::wake_for_held),
    ("wake-queued", scale::wake_for_queued),
];

fn main() -> ExitCode {
    let args = std::env::args().skip(1).collect::<Vec<_>>();
    match parse(&args) {
        Some((run, sinks, items)) => {
            println!("{}", run(sinks, items).arrived);
            ExitCode::SUCCESS
        }
        None => {
            let names = LOOPS.map(|(name, _)| name).join(", ");
            eprintln!("usage: loops NAME SINKS ITEMS, where NAME is one of {names}");
            ExitCode::from(2)
        }
    }
}

fn parse(args: &[String]) -> Option<(Loop, u64, u64)> {
    let [name, sinks, items] = args else { return None };
    let (_, run) = LOOPS.into_iter().find(|(known, _)| known == name)?;
    let positive = |number: &String| number.parse().ok().filter(|&number| number > 0);
    Some((run, positive(sinks)?, positive(items)?))
}
