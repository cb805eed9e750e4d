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
    let mut add = |phase: &str, which: fn(&Longest) -> Duration| {
        let milliseconds =
            median(lives.iter().map(|life| which(life).as_secs_f64() * 1e3).collect());
        let what = format!("ms of the longest turn, 1,000,000 attached: {phase}");
        let row = Row::new(what, format!("{milliseconds:.2} ms"), "");
        report.add(row.figure(milliseconds, 2).must(AtMost(1.0)).aim(AtMost(0.2)));
    };
    add("attaching them, room made beforehand", |life| life.growth);
    add("evicting a group of 100,000 more", |life| life.eviction);
    add("the end", |life| life.end);
}
