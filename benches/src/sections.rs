//! The sections of the summary, in the order of the table.

use std::process::Command;

use figures::measure::Measured;
use figures::plot::nanoseconds;
use figures::table::Bound::{AtLeast, AtMost};
use figures::table::Row;
use figures::tcp::{self, Feed, Job, Keys};
use figures::{article, channels, fan_in, orders, route, scale, shards, stuck};

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
        measure: instructions,
    },
    Section {
        name: "route",
        asks: "what does an item cost, by the number of keys?",
        measure: routing,
    },
    Section {
        name: "article",
        asks: "the article's program and its four ways to write it",
        measure: the_article,
    },
    Section {
        name: "orders",
        asks: "what does an idle orders channel cost, and a storm of orders?",
        measure: ordering,
    },
    Section { name: "tcp", asks: "lines to a hundred clients over loopback", measure: lines },
    Section {
        name: "scale",
        asks: "what does one wake cost beside a million sinks?",
        measure: scaling,
    },
    Section {
        name: "stuck",
        asks: "what do others lose when one sink is stuck?",
        measure: being_stuck,
    },
    Section {
        name: "turns",
        asks: "how long does a woken sink wait for its turn?",
        measure: turns,
    },
    Section {
        name: "memory",
        asks: "bytes for an attachment, allocations for an item",
        measure: memory,
    },
    Section {
        name: "channels",
        asks: "bounded channels with live readers, against a map of senders",
        measure: channelling,
    },
    Section {
        name: "fan_in",
        asks: "many producers into one consumer, by all means",
        measure: fanning_in,
    },
    Section { name: "shards", asks: "two demux tasks on two cores against one", measure: sharding },
];

/// How many rounds each ratio of times is the median of. The short ones can have more.
const ROUNDS: usize = 15;
const MANY: usize = 31;

/// A rival beside ours: `rival / ours`, which is how much faster we are.
fn faster(what: &str, measured: &Measured, rival: &str) -> Row {
    let figure = measured.ratio(rival, "demux");
    let (ours, theirs) = (measured.ns("demux"), measured.ns(rival));
    Row::new(what, nanoseconds(ours), format!("{rival}: {}", nanoseconds(theirs))).figure(figure, 2)
}

/// Ours beside the limit: `ours / limit`, which is how many times more it costs.
fn times(what: &str, measured: &Measured, limit: &str) -> Row {
    let figure = measured.ratio("demux", limit);
    let (ours, theirs) = (measured.ns("demux"), measured.ns(limit));
    Row::new(what, nanoseconds(ours), format!("{limit}: {}", nanoseconds(theirs))).figure(figure, 2)
}

/// What the script counts: lines of a name, a number of keys and instructions.
fn instructions(report: &mut Report) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions");
    let counted = std::env::current_exe()
        .and_then(|this| Command::new(script).arg("--count").arg(this).output())
        .map_err(|error| error.to_string())
        .and_then(|output| match output.status.success() {
            true => String::from_utf8(output.stdout).map_err(|error| error.to_string()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        });
    let counted = counted.unwrap_or_else(|error| {
        eprintln!("        {error}");
        String::new()
    });
    let count = |name: &str| {
        let line = counted.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<f64>().ok()
    };
    let show = |count: Option<f64>| count.map_or("?".to_owned(), |count| format!("{count:.1}"));
    let row = |keys: u64| {
        let (ours, bare) = (count(&format!("demux {keys} ")), count(&format!("bare {keys} ")));
        let what = format!("instructions per item, {} keys", thousands(keys));
        let row = Row::new(what, show(ours), format!("bare loop: {}", show(bare)));
        match ours {
            Some(ours) => row.figure(ours, 1),
            None => row,
        }
    };
    report.add(row(3).must(AtMost(90.0)).aim(AtMost(70.0)));
    report.add(row(1_000));
    report.add(row(100_000));
    let (many, few) = (count("wake 100000 "), count("wake 1000 "));
    let what = "instructions for one wake, 100,000 attached";
    let row = Row::new(what, show(many), format!("1,000 attached: {}", show(few)));
    report.add(match (many, few) {
        (Some(many), Some(few)) => row.figure(many / few, 2),
        _ => row,
    });
}

fn routing(report: &mut Report) {
    let mut luck = Vec::new();
    for (keys, items, musts, aims) in [
        (3, 250_000, (6.5, 1.9), (9.0, 1.4)),
        (1_000, 250_000, (5.5, 2.3), (7.6, 1.7)),
        (100_000, 1_000_000, (1.8, 4.2), (3.4, 2.6)),
    ] {
        let rounds = if keys > 1_000 { ROUNDS } else { MANY };
        let measured = report.measure(&mut route::integers(keys, items), rounds);
        let what = format!("routing a 16-byte item, {} keys", thousands(keys));
        luck.push(measured.ns("bare loop"));
        let hand = faster(&what, &measured, "select_biased!");
        report.add(hand.must(AtLeast(musts.0)).aim(AtLeast(aims.0)));
        let limit = times(&what, &measured, "bare loop");
        report.add(limit.must(AtMost(musts.1)).aim(AtMost(aims.1)));
        report.add(faster(&what, &measured, "stream_router"));
        report.add(faster(&what, &measured, "stream-partition"));
        report.plot(measured);
    }
    if luck[1] > 3.0 * luck[0] {
        eprintln!(
            "        the hasher's seed is unlucky for 1,000 keys, in this process: run it again"
        );
    }
    let measured = report.measure(&mut route::strings(1_000, 500_000), ROUNDS);
    let what = "the same, 1,000 keys that are strings";
    report.add(faster(what, &measured, "select_biased!"));
    report.add(times(what, &measured, "bare loop"));
}

fn the_article(report: &mut Report) {
    let measured = report.measure(&mut article::group(100_000), MANY);
    let what = "the article's own benchmark, 3 keys";
    for rival in ["select!", "select_biased!", "select-all", "lossy"] {
        let member = measured.member(rival);
        let lost = member.sent - member.arrived;
        let row = faster(what, &measured, rival).must(AtLeast(1.0));
        report.add(if lost > 0 { row.note(format!("it loses {lost} items")) } else { row });
    }
    report.add(times(what, &measured, "bare loop").must(AtMost(1.2)).aim(AtMost(1.05)));
    report.add(faster(what, &measured, "stream_router"));
    report.add(faster(what, &measured, "stream-partition"));
    report.plot(measured);
}

fn ordering(report: &mut Report) {
    let measured = report.measure(&mut orders::idle(250_000), 2 * MANY);
    for channel in ["flume", "tokio", "futures"] {
        let (ours, none) = (measured.ns(channel), measured.ns("pending()"));
        let rival = format!("no orders: {}", nanoseconds(none));
        let row = Row::new(format!("an idle orders channel: {channel}"), nanoseconds(ours), rival);
        let row = row.figure(measured.ratio(channel, "pending()"), 2);
        report.add(row.must(AtMost(1.05)).aim(AtMost(1.0)));
    }
    let measured = report.measure(&mut orders::storm(200_000), ROUNDS);
    report.add(times("an order: attach, detach and close in turn", &measured, "bare map"));
}

/// So many that what comes once, most of it the closing of each connection, is little of what a line
/// costs: with 100,000 it was a third.
const LINES: u64 = 500_000;

fn lines(report: &mut Report) {
    let saturated = Job { clients: 100, feed: Feed::Saturated, keys: Keys::RoundRobin };
    let measured = report.measure(&mut tcp::group(saturated, LINES), ROUNDS);
    let what = "a line to one of 100 TCP clients, saturated input";
    report.add(faster(what, &measured, "send().await").must(AtLeast(50.0)).aim(AtLeast(100.0)));
    for rival in ["forward, tokio", "forward, futures"] {
        report.add(faster(what, &measured, rival).must(AtLeast(2.0)).aim(AtLeast(4.0)));
    }
    report.add(faster(what, &measured, "broadcast"));
    report.add(faster(what, &measured, "stream_router"));
    report.plot(measured);

    let fed = [
        (Feed::Channel(100), "a tokio channel of 100"),
        (Feed::Channel(1_024), "a tokio channel of 1,024"),
        (Feed::Unconstrained(1_024), "one of 1,024, unconstrained"),
    ];
    for (feed, name) in fed {
        let fed = Job { feed, ..saturated };
        let measured = report.measure(&mut tcp::group(fed, LINES / 5), ROUNDS);
        let what = format!("the same, fed by {name}");
        for rival in ["send().await", "forward, tokio", "forward, futures"] {
            report.add(faster(&what, &measured, rival).aim(AtLeast(20.0)));
        }
        report.plot(measured);
    }

    let skewed = Job { keys: Keys::Skewed, ..saturated };
    let measured = report.measure(&mut tcp::group(skewed, LINES), ROUNDS);
    let what = "a line to one of 100 TCP clients, skewed keys, saturated";
    for rival in ["send().await", "forward, tokio", "forward, futures"] {
        report.add(faster(what, &measured, rival));
    }
}

fn scaling(report: &mut Report) {
    let [few, _, many] = scale::SIZES;
    let measured = report.measure(&mut scale::wake(&[few, many], 100_000), ROUNDS);
    let show = |few: &str, many: &str| {
        let (ratio, few, many) = (measured.ratio(many, few), measured.ns(few), measured.ns(many));
        format!("{ratio:.2} ({} / {})", nanoseconds(many), nanoseconds(few))
    };
    let theirs = measured.ratio(many.bare, few.bare);
    let row = |what: &str, ours_few: &str, ours_many: &str| {
        let bare = format!("bare channels: {}", show(few.bare, many.bare));
        let figure = measured.ratio(ours_many, ours_few) / theirs;
        Row::new(what, show(ours_few, ours_many), bare).figure(figure, 2)
    };
    let what = "one wake, 1,000,000 attached against 1,000";
    let waiting = row(what, few.waiting, many.waiting);
    report.add(waiting.must(AtMost(1.3)).aim(AtMost(1.1)));
    let what = "the same, for a queued item: buffer(1)";
    report.add(row(what, few.queued, many.queued));
    report.plot(measured);
}

fn being_stuck(report: &mut Report) {
    let measured = report.measure(&mut stuck::group(500_000), MANY);
    for policy in ["DropNewest", "DropOldest", "Evict"] {
        let (ours, none) = (measured.ns(policy), measured.ns("none stuck"));
        let row = Row::new(
            format!("throughput beside one stuck of 1,000, {policy}"),
            nanoseconds(ours),
            format!("none stuck: {}", nanoseconds(none)),
        );
        let row = row.figure(measured.ratio("none stuck", policy), 2);
        report.add(match policy {
            "DropNewest" => row.must(AtLeast(0.95)).aim(AtLeast(1.0)),
            _ => row,
        });
    }
}

fn turns(report: &mut Report) {
    let worst = orders::turns_until_served();
    let row = Row::new("turns a woken sink waits while orders never pause", worst.to_string(), "");
    report.add(row.figure(worst as f64, 0).must(AtMost(4.0)).aim(AtMost(1.0)));
}

fn memory(report: &mut Report) {
    let sizes = [1_000, 100_000, 1_000_000];
    let found = sizes.map(scale::bytes_per_attachment);
    let show = |which: fn(&(f64, f64)) -> f64| {
        let each = found.iter().map(|bytes| format!("{:.0}", which(bytes)));
        each.collect::<Vec<_>>().join(", ")
    };
    let worst = |which: fn(&(f64, f64)) -> f64| found.iter().map(which).fold(0.0, f64::max);
    let rival = "beyond key and sink; 1,000, 100,000, 1,000,000 attached";
    let row = Row::new("bytes per attachment, worst of three sizes", show(|bytes| bytes.0), rival);
    report.add(row.figure(worst(|bytes| bytes.0), 0).must(AtMost(120.0)).aim(AtMost(96.0)));
    let row = Row::new("the same, after each had an item", show(|bytes| bytes.1), "");
    report.add(row.figure(worst(|bytes| bytes.1), 0));

    let allocations = |keys| {
        let [few, many] = [200_000, 400_000]
            .map(|items| figures::alloc::count(|| route::demux(keys, items)).0.allocations);
        (many as f64 - few as f64) / 200_000.0
    };
    let worst = allocations(3).max(allocations(1_000));
    let row = Row::new("allocations per routed item, sinks ready", worst.to_string(), "");
    report.add(row.figure(worst, 6).must(AtMost(0.0)).aim(AtMost(0.0)));
}

fn channelling(report: &mut Report) {
    for (make, mut group) in
        [("tokio", channels::tokio(100, 50_000)), ("futures", channels::futures(100, 50_000))]
    {
        let measured = report.measure(&mut group, ROUNDS);
        let what = format!("100 bounded {make} channels with live readers");
        report.add(faster(&what, &measured, "map of senders"));
    }
}

fn fanning_in(report: &mut Report) {
    for (into, name) in [(fan_in::Into::Server, "a server"), (fan_in::Into::Demux, "a demux")] {
        for producers in [64, 8_192] {
            let measured = report.measure(&mut fan_in::group(producers, into, 65_536), ROUNDS);
            let buffer = "swapped std Mutex<Vec>";
            for rival in ["bounded", "bounded, recv_many", "SegQueue"] {
                let (ours, theirs) = (measured.ns(buffer), measured.ns(rival));
                let what =
                    format!("{} producers to {name}, a swapped buffer", thousands(producers));
                let row =
                    Row::new(what, nanoseconds(ours), format!("{rival}: {}", nanoseconds(theirs)));
                report.add(row.figure(measured.ratio(rival, buffer), 2));
            }
        }
    }
}

fn sharding(report: &mut Report) {
    for rounds in [0, 1_000] {
        let measured = report.measure(&mut shards::group(rounds, 50_000), ROUNDS);
        let (two, one) = (measured.ns("two shards"), measured.ns("one demux"));
        let what = match rounds {
            0 => "two shards on two cores, sinks that do nothing",
            _ => "two shards on two cores, sinks that work",
        };
        let row = Row::new(what, nanoseconds(two), format!("one demux: {}", nanoseconds(one)));
        report.add(row.figure(measured.ratio("one demux", "two shards"), 2));
    }
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
