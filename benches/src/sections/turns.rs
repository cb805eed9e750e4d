//! How long a woken sink waits for its turn, and other tasks for the end of one.

use std::time::Duration;

use figures::longest::{self, Longest};
use figures::measure::median;
use figures::orders;
use figures::table::Bound::AtMost;
use figures::table::Row;

use crate::report::Report;

pub(super) fn until_served(report: &mut Report) {
    let worst = orders::turns_until_served();
    let row = Row::new("turns a woken sink waits while orders never pause", worst.to_string(), "");
    report.add(row.figure(worst as f64, 0).must(AtMost(4.0)).aim(AtMost(1.0)));
}

/// A life takes a second or two, and each turn of it is one of thousands already.
const LIVES: usize = 5;

pub(super) fn longest(report: &mut Report) {
    let lives = (0..LIVES).map(|_| longest::turns()).collect::<Vec<_>>();
    let row = |phase: &str, which: fn(&Longest) -> Duration| {
        let milliseconds =
            median(lives.iter().map(|life| which(life).as_secs_f64() * 1e3).collect());
        let what = format!("ms of the longest turn, 1,000,000 attached: {phase}");
        Row::new(what, format!("{milliseconds:.2} ms"), "").figure(milliseconds, 2)
    };
    let growth = row("attaching them, room made beforehand", |life| life.growth);
    report.add(growth.must(AtMost(1.0)).aim(AtMost(0.2)));
    let eviction = row("evicting a group of 100,000 more", |life| life.eviction);
    report.add(eviction.must(AtMost(1.0)).aim(AtMost(0.2)));
    // Without a bound: what is left of it is the operating system, which takes back the tables.
    report.add(row("the end", |life| life.end));
}
