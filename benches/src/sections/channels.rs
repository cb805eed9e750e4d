//! What bounded channels with live readers cost: one for each key, many under one key.

use figures::channels;
use figures::table::Bound::AtLeast;

use super::{ROUNDS, faster};
use crate::report::Report;

/// For each kind of channel.
const ITEMS: u64 = 100_000;

pub(super) fn keyed(report: &mut Report) {
    let measured = report.measure(&mut channels::futures(100, ITEMS), ROUNDS);
    let what = "100 keys, bounded futures channels with live readers";
    report.add(faster(what, &measured, "feed").must(AtLeast(0.95)).aim(AtLeast(1.1)));
    let measured = report.measure(&mut channels::tokio(100, ITEMS), ROUNDS);
    let what = "100 keys, bounded tokio channels with live readers";
    report.add(faster(what, &measured, "feed").must(AtLeast(0.95)).aim(AtLeast(1.1)));
    report.add(faster(what, &measured, "send().await"));
}
