//! What the hub costs beside the best plain program for the same job, and the lines of the example
//! programs.
//!
//! ```sh
//! cargo bench -p stream-demux-hub                      # everything
//! cargo bench -p stream-demux-hub -- chat workers      # some of it
//! cargo bench -p stream-demux-hub --bench figures -- neighbour --draw benches/neighbour.svg
//! ```
//!
//! Processor time of all threads, not time on the clock: the median of some rounds, and the median
//! of the ratios in each round. `neighbour` and `hot` measure delays, by the clock, and `--draw FILE`
//! draws those of `neighbour`: a path from the folder of the package.

#![expect(clippy::cast_precision_loss, reason = "times and counts are far below 2⁵³")]

mod ends;
mod fanout;
mod hot;
mod measure;
mod neighbour;
mod picture;
mod programs;
mod sockets;

type Section = (&'static str, fn(usize));

const SECTIONS: [Section; 14] = [
    ("chat", programs::measure_chat),
    ("workers", programs::measure_workers),
    ("partitions", programs::measure_partitions),
    ("calls", programs::measure_calls),
    ("prices", programs::measure_prices),
    ("fanout", programs::measure_fanout),
    ("inboxes", fanout::measure),
    ("ping", ends::measure_ping),
    ("subscribe", ends::measure_subscribe),
    ("memory", ends::measure_memory),
    ("channels", ends::measure_channels),
    ("neighbour", neighbour::measure),
    ("hot", hot::measure),
    ("sockets", sockets::measure),
];

fn main() {
    let mut chosen = Vec::new();
    let mut picture = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--draw" {
            let Some(file) = arguments.next() else { fail("`--draw` needs the name of a file") };
            picture = Some(file);
        } else if !argument.starts_with('-') {
            chosen.push(argument);
        }
    }
    if picture.is_some() && !chosen.iter().any(|section| section == "neighbour") {
        fail("`--draw` draws the section `neighbour`: name it, too");
    }
    let rounds = std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(7);
    for (name, measure) in SECTIONS {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            match &picture {
                Some(file) if name == "neighbour" => draw(rounds, file),
                _ => measure(rounds),
            }
        }
    }
}

fn draw(rounds: usize, file: &str) {
    if let Err(error) = neighbour::draw(rounds, file.as_ref()) {
        fail(&format!("cannot write {file}: {error}"));
    }
}

fn fail(message: &str) -> ! {
    eprintln!("figures: {message}");
    std::process::exit(2);
}
