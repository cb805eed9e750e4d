//! The turns that a woken sink waits, and the longest turn.

use std::time::Duration;

use figures::longest::{self, Longest};
use figures::measure::{median, percentile};
use figures::orders;
use figures::plot::nanoseconds;
use figures::table::Bound::AtMost;
use figures::table::Row;

use crate::report::Report;

pub(super) fn until_served(report: &mut Report) {
    let worst = orders::turns_until_served();
    let row = Row::new("turns a woken sink waits, with endless orders", worst.to_string(), "");
    report.add(row.figure(worst as f64, 0).limit(AtMost(4.0)));
    let delays = orders::delays_beside_orders();
    let [median, most] = [50, 99].map(|percent| percentile(delays.clone(), percent));
    let row = Row::new("µs of such a wait", nanoseconds(median), "").figure(median / 1e3, 0);
    report.add(row.note(format!("99 %: {}", nanoseconds(most))));
}

/// The number of runs. Each takes one or two seconds and has thousands of turns.
const RUNS: usize = 5;

pub(super) fn longest(report: &mut Report) {
    let runs = (0..RUNS).map(|_| longest::turns()).collect::<Vec<_>>();
    let row = |phase: &str, time_of: fn(&Longest) -> Duration| {
        let milliseconds =
            median(runs.iter().map(|run| time_of(run).as_secs_f64() * 1e3).collect());
        let what = format!("ms of the longest turn, 1,000,000 attached: {phase}");
        Row::new(what, format!("{milliseconds:.2} ms"), "").figure(milliseconds, 2)
    };
    let growth = row("attaching them, capacity reserved", |longest| longest.growth);
    report.add(growth.limit(AtMost(1.0)));
    let eviction = row("evicting a group of 100,000 more", |longest| longest.eviction);
    report.add(eviction.limit(AtMost(1.0)));
    // Without a limit: most of this time is the operating system's, which frees the tables.
    report.add(row("closing all", |longest| longest.end));
}
