//! The cost of many sinks: for one wake, beside a stuck sink, and in memory.

use figures::plot::nanoseconds;
use figures::table::Bound::{AtLeast, AtMost};
use figures::table::Row;
use figures::{route, scale, stuck};

use super::{MANY, ROUNDS, compare};
use crate::report::Report;

pub(super) fn wakes(report: &mut Report) {
    let [few, _, many] = scale::SIZES;
    let measured = report.measure(&mut scale::wake(&[few, many], 100_000), ROUNDS);
    let show = |few: &str, many: &str| {
        let (ratio, few, many) = (measured.ratio(many, few), measured.ns(few), measured.ns(many));
        format!("{ratio:.2} ({} / {})", nanoseconds(many), nanoseconds(few))
    };
    let bare_ratio = measured.ratio(many.bare, few.bare);
    let row = |what: &str, ours_few: &str, ours_many: &str| {
        let bare = format!("bare channels: {}", show(few.bare, many.bare));
        let figure = measured.ratio(ours_many, ours_few) / bare_ratio;
        Row::new(what, show(ours_few, ours_many), bare).figure(figure, 2)
    };
    let what = "one wake, 1,000,000 attached against 1,000";
    let blocked = row(what, few.blocked, many.blocked);
    report.add(blocked.limit(AtMost(1.3)));
    let what = "the same, for a queued item: buffer(1)";
    report.add(row(what, few.queued, many.queued));
    report.plot(measured);
}

pub(super) fn stuck_sinks(report: &mut Report) {
    let measured = report.measure(&mut stuck::group(500_000), MANY);
    for policy in ["DropNewest", "DropOldest", "Evict"] {
        let what = format!("throughput beside one stuck of 1,000, {policy}");
        let ratio = measured.ratio("none stuck", policy);
        let row = compare(&what, &measured, policy, "none stuck", ratio);
        report.add(match policy {
            "DropNewest" => row.limit(AtLeast(0.95)),
            _ => row,
        });
    }

    let measured = report.measure(&mut stuck::blockers(), ROUNDS);
    for (what, many, few) in [
        ("evicting 4,000 blockers of a group one by one", "4,000", "1,000"),
        ("the same, behind 4,000 ready members", "4,000 behind 4,000", "1,000 behind 1,000"),
    ] {
        // The time of all evictions: four times as many should take about four times as long.
        let ratio = 4.0 * measured.ratio(many, few);
        let ours = nanoseconds(4_000.0 * measured.ns(many));
        let row =
            Row::new(what, ours, format!("{few}: {}", nanoseconds(1_000.0 * measured.ns(few))));
        report.add(row.figure(ratio, 2).limit(AtMost(5.5)));
    }
}

pub(super) fn memory(report: &mut Report) {
    let sizes = [1_000, 100_000, 1_000_000];
    let found = sizes.map(scale::bytes_per_attachment);
    let show = |which: fn(&(f64, f64)) -> f64| {
        let each = found.iter().map(|bytes| format!("{:.0}", which(bytes)));
        each.collect::<Vec<_>>().join(", ")
    };
    let worst = |which: fn(&(f64, f64)) -> f64| found.iter().map(which).fold(0.0, f64::max);
    let rival = "beyond key and sink; 1,000, 100,000, 1,000,000 attached";
    let row = Row::new("bytes per attachment, worst of three sizes", show(|bytes| bytes.0), rival);
    report.add(row.figure(worst(|bytes| bytes.0), 0).limit(AtMost(120.0)));
    let row = Row::new("the same, after an item for each", show(|bytes| bytes.1), "");
    report.add(row.figure(worst(|bytes| bytes.1), 0));

    let allocations = |keys| {
        let [few, many] = [200_000, 400_000]
            .map(|items| figures::alloc::count(|| route::demux(keys, items)).0.allocations);
        (many as f64 - few as f64) / 200_000.0
    };
    let worst = allocations(3).max(allocations(1_000));
    let row = Row::new("allocations per routed item, sinks ready", worst.to_string(), "");
    report.add(row.figure(worst, 6).limit(AtMost(0.0)));
}
