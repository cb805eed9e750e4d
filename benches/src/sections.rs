//! The sections of the summary, in the order of the table.

mod channels;
mod items;
mod neighbour;
mod orders;
mod sinks;
mod tasks;
mod tcp;
mod turns;

use figures::delay::Delays;
use figures::measure::Measured;
use figures::plot::nanoseconds;
use figures::table::Row;

use crate::report::Report;

pub(crate) struct Section {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) measure: fn(&mut Report),
}

pub(crate) const ALL: &[Section] = &[
    Section {
        name: "tcp",
        about: "lines to clients over loopback: through a channel, and saturated",
        measure: tcp::lines,
    },
    Section {
        name: "fan_out",
        about: "lines to topics with 20 clients each, in bursts",
        measure: tcp::bursts,
    },
    Section {
        name: "delay",
        about: "the delay of the last line of a burst, idle and beside busy tasks",
        measure: tcp::delays,
    },
    Section {
        name: "neighbour",
        about: "the delay of an item for a quiet key, beside a neighbour that never pauses",
        measure: neighbour::delays,
    },
    Section {
        name: "instructions",
        about: "instructions per item, copy and wake (needs valgrind)",
        measure: items::instructions,
    },
    Section {
        name: "route",
        about: "the time of an item, by the number of keys",
        measure: items::routing,
    },
    Section {
        name: "article",
        about: "the benchmark of the article and its four loops",
        measure: items::article_benchmark,
    },
    Section {
        name: "orders",
        about: "the cost of an idle orders channel, and of many orders",
        measure: orders::ordering,
    },
    Section {
        name: "scale",
        about: "the time of one wake, with a million sinks",
        measure: sinks::wakes,
    },
    Section {
        name: "stuck",
        about: "throughput beside a stuck sink, and the cost of a stuck group",
        measure: sinks::stuck_sinks,
    },
    Section { name: "turns", about: "turns that a woken sink waits", measure: turns::until_served },
    Section {
        name: "longest",
        about: "the longest turn, with a million sinks attached",
        measure: turns::longest,
    },
    Section {
        name: "memory",
        about: "bytes per attachment, allocations per item",
        measure: sinks::memory,
    },
    Section {
        name: "channels",
        about: "bounded channels with live readers, one for each key",
        measure: channels::keyed,
    },
    Section {
        name: "multicast",
        about: "copies to a group: sinks that count, bounded channels with live readers",
        measure: channels::grouped,
    },
    Section {
        name: "fan_in",
        about: "many producers into one consumer, by several queues",
        measure: tasks::fanning_in,
    },
    Section {
        name: "shards",
        about: "two demux tasks on two cores against one",
        measure: tasks::sharding,
    },
];

/// The number of rounds that a ratio is the median of: more for short runs, fewer for long ones.
const ROUNDS: usize = 15;
const MANY: usize = 31;
const FEW: usize = 7;

/// Compares the demux with a rival: the ratio is the rival's time divided by that of the demux.
fn faster(what: &str, measured: &Measured, rival: &str) -> Row {
    compare(what, measured, "demux", rival, measured.ratio(rival, "demux"))
}

/// Compares the demux with a lower bound: the ratio is its time divided by that of the bound.
fn slower(what: &str, measured: &Measured, bound: &str) -> Row {
    compare(what, measured, "demux", bound, measured.ratio("demux", bound))
}

/// Returns a row with the times of two contenders and their ratio.
fn compare(what: &str, measured: &Measured, ours: &str, other: &str, ratio: f64) -> Row {
    let show = |name| nanoseconds(measured.ns(name));
    Row::new(what, show(ours), format!("{other}: {}", show(other))).figure(ratio, 2)
}

/// Prints the delays of contenders, and compares the first one, the demux, with each other one: the
/// ratio is its median divided by that of the other.
fn compare_delays(what: &str, contenders: &[(&str, Delays)]) -> Vec<Row> {
    eprintln!("        {what}");
    let show = |index: usize, percent| nanoseconds(contenders[index].1.percentile(percent));
    for (index, (name, _)) in contenders.iter().enumerate() {
        eprintln!("          {name:24}{:>9} {:>9}", show(index, 50), show(index, 99));
    }
    let rows = contenders.iter().enumerate().skip(1).map(|(index, (rival, delays))| {
        let ratio = contenders[0].1.percentile(50) / delays.percentile(50);
        let ours = format!("{} (99 %: {})", show(0, 50), show(0, 99));
        let row = Row::new(what, ours, format!("{rival}: {}", show(index, 50)));
        row.figure(ratio, 2).note(format!("99 %: {}", show(index, 99)))
    });
    rows.collect()
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
