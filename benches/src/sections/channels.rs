//! The cost of a group of sinks, and of bounded channels with live readers.

use figures::table::Bound::{AtLeast, AtMost};
use figures::{channels, multicast};

use super::{MANY, ROUNDS, compare, faster};
use crate::report::Report;

/// The number of items, for each kind of channel.
const ITEMS: u64 = 100_000;

pub(super) fn keyed(report: &mut Report) {
    let measured = report.measure(&mut channels::futures(100, ITEMS), ROUNDS);
    let what = "100 keys, bounded futures channels with live readers";
    report.add(faster(what, &measured, "feed").limit(AtLeast(0.9)));
    let (what, ours) = (format!("{what}, budget 4,096"), "demux, budget 4,096");
    let row = compare(&what, &measured, ours, "feed", measured.ratio("feed", ours));
    report.add(row.limit(AtLeast(0.9)));
    let measured = report.measure(&mut channels::tokio(100, ITEMS), ROUNDS);
    let what = "100 keys, bounded tokio channels with live readers";
    report.add(faster(what, &measured, "feed").limit(AtLeast(0.9)));
    report.add(faster(what, &measured, "send().await"));
}

pub(super) fn grouped(report: &mut Report) {
    let measured = report.measure(&mut multicast::counting(200_000), MANY);
    for members in ["100 members", "10,000 members"] {
        let (what, item) = (format!("a copy to one of {members}"), "one of 1,000 keys");
        let row = compare(&what, &measured, members, item, measured.ratio(members, item));
        report.add(row.limit(AtMost(1.0)));
    }
    report.plot(measured);

    let measured = report.measure(&mut multicast::futures(100, ITEMS), ROUNDS);
    let what = "a copy to one of a group of 100 bounded futures channels with live readers";
    report.add(faster(what, &measured, "feed").limit(AtLeast(0.9)));
    let (what, ours) = (format!("{what}, budget 4,096"), "demux, budget 4,096");
    let row = compare(&what, &measured, ours, "feed", measured.ratio("feed", ours));
    report.add(row.limit(AtLeast(0.9)));
    let row = compare(&what, &measured, ours, "send().await", measured.ratio("send().await", ours));
    report.add(row);
    let measured = report.measure(&mut multicast::tokio(100, ITEMS), ROUNDS);
    let what = "a copy to one of a group of 100 bounded tokio channels with live readers";
    report.add(faster(what, &measured, "feed").limit(AtLeast(0.65)));
    report.add(faster(what, &measured, "send().await"));
    report.add(faster(what, &measured, "broadcast"));
}
