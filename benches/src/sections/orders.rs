//! What orders cost.

use figures::orders;
use figures::plot::nanoseconds;
use figures::table::Bound::AtMost;
use figures::table::Row;

use super::{MANY, ROUNDS, times};
use crate::report::Report;

pub(super) fn ordering(report: &mut Report) {
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
