//! What the hub costs beside the best plain program for the same job, and the lines of the example
//! programs.
//!
//! ```sh
//! cargo bench -p stream-demux-hub                      # everything
//! cargo bench -p stream-demux-hub -- chat workers      # some of it
//! ```
//!
//! Processor time of all threads, not time on the clock: the median of some rounds, and the median
//! of the ratios in each round. `neighbour` measures delays, by the clock.

#![expect(clippy::cast_precision_loss, reason = "times and counts are far below 2⁵³")]

mod ends;
mod fanout;
mod measure;
mod neighbour;
mod programs;
mod sockets;

type Section = (&'static str, fn(usize));

const SECTIONS: [Section; 13] = [
    ("chat", programs::measure_chat),
    ("workers", programs::measure_workers),
    ("partitions", programs::measure_partitions),
    ("calls", programs::measure_calls),
    ("fanout", programs::measure_fanout),
    ("inboxes", fanout::measure),
    ("ping", ends::measure_ping),
    ("prices", programs::measure_prices),
    ("subscribe", ends::measure_subscribe),
    ("memory", ends::measure_memory),
    ("channels", ends::measure_channels),
    ("neighbour", neighbour::measure),
    ("sockets", sockets::measure),
];

fn main() {
    let arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let chosen = arguments.collect::<Vec<_>>();
    let rounds = std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(7);
    for (name, measure) in SECTIONS {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            measure(rounds);
        }
    }
}
