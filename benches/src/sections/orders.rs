//! The cost of orders.

use figures::orders;
use figures::plot::nanoseconds;
use figures::table::Bound::AtMost;
use figures::table::Row;

use super::{MANY, ROUNDS, slower};
use crate::report::Report;

pub(super) fn ordering(report: &mut Report) {
    let measured = report.measure(&mut orders::idle(250_000), 2 * MANY);
    for channel in ["flume", "tokio", "futures"] {
        let (ours, none) = (measured.ns(channel), measured.ns("pending()"));
        let rival = format!("no orders: {}", nanoseconds(none));
        let row = Row::new(format!("an idle orders channel: {channel}"), nanoseconds(ours), rival);
        let row = row.figure(measured.ratio(channel, "pending()"), 2);
        report.add(row.limit(AtMost(1.05)));
    }
    let measured = report.measure(&mut orders::churn(200_000), ROUNDS);
    report.add(slower("an order: attach, detach and close in turn", &measured, "bare map"));
}
