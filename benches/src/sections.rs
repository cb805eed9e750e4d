//! The sections of the summary, in the order of the table.

mod channels;
mod items;
mod orders;
mod sinks;
mod tasks;
mod tcp;
mod turns;

use figures::measure::Measured;
use figures::plot::nanoseconds;
use figures::table::Row;

use crate::report::Report;

pub(crate) struct Section {
    pub(crate) name: &'static str,
    pub(crate) asks: &'static str,
    pub(crate) measure: fn(&mut Report),
}

pub(crate) const ALL: &[Section] = &[
    Section {
        name: "instructions",
        asks: "how many does an item take? (needs valgrind)",
        measure: items::instructions,
    },
    Section {
        name: "route",
        asks: "what does an item cost, by the number of keys?",
        measure: items::routing,
    },
    Section {
        name: "article",
        asks: "the article's program and its four ways to write it",
        measure: items::the_article,
    },
    Section {
        name: "orders",
        asks: "what does an idle orders channel cost, and a storm of orders?",
        measure: orders::ordering,
    },
    Section { name: "tcp", asks: "lines to a hundred clients over loopback", measure: tcp::lines },
    Section {
        name: "scale",
        asks: "what does one wake cost beside a million sinks?",
        measure: sinks::scaling,
    },
    Section {
        name: "stuck",
        asks: "what do others lose when one sink is stuck, and what does a stuck group cost?",
        measure: sinks::being_stuck,
    },
    Section {
        name: "turns",
        asks: "how long does a woken sink wait for its turn?",
        measure: turns::until_served,
    },
    Section {
        name: "longest",
        asks: "how long does a turn take at worst, with a million attached?",
        measure: turns::longest,
    },
    Section {
        name: "memory",
        asks: "bytes for an attachment, allocations for an item",
        measure: sinks::memory,
    },
    Section {
        name: "channels",
        asks: "bounded channels with live readers, one for each key",
        measure: channels::keyed,
    },
    Section {
        name: "multicast",
        asks: "copies to a group: sinks that count, bounded channels with live readers",
        measure: channels::grouped,
    },
    Section {
        name: "fan_in",
        asks: "many producers into one consumer, by all means",
        measure: tasks::fanning_in,
    },
    Section {
        name: "shards",
        asks: "two demux tasks on two cores against one",
        measure: tasks::sharding,
    },
];

/// How many rounds each ratio of times is the median of: more for short ones, fewer for long ones.
const ROUNDS: usize = 15;
const MANY: usize = 31;
const FEW: usize = 7;

/// Ours beside a rival: `rival / ours`, which is how many times faster ours is.
fn faster(what: &str, measured: &Measured, rival: &str) -> Row {
    beside(what, measured, "demux", rival, measured.ratio(rival, "demux"))
}

/// Ours beside a limit: `ours / limit`, which is how many times more it costs.
fn times(what: &str, measured: &Measured, limit: &str) -> Row {
    beside(what, measured, "demux", limit, measured.ratio("demux", limit))
}

/// A row that shows what two members of a group cost, and a ratio of the two.
fn beside(what: &str, measured: &Measured, ours: &str, other: &str, ratio: f64) -> Row {
    let show = |name| nanoseconds(measured.ns(name));
    Row::new(what, show(ours), format!("{other}: {}", show(other))).figure(ratio, 2)
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
