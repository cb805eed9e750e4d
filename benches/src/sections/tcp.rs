//! Lines to TCP clients.

use figures::table::Bound::{AtLeast, AtMost};
use figures::tcp::{self, Feed, Job, Keys};

use super::{ROUNDS, compare, faster, slower};
use crate::report::Report;

/// The number of lines. With so many, one-time costs, mostly of closing the connections, are a
/// small part of the time per line: with 100,000 they were a third.
const LINES: u64 = 500_000;

pub(super) fn lines(report: &mut Report) {
    let saturated = Job { clients: 100, feed: Feed::Saturated, keys: Keys::RoundRobin };
    let measured = report.measure(&mut tcp::group(saturated, LINES), ROUNDS);
    let what = "a line to one of 100 TCP clients, saturated input";
    report.add(faster(what, &measured, "send().await").limit(AtLeast(50.0)).goal(AtLeast(100.0)));
    for rival in ["forward, tokio", "forward, futures"] {
        report.add(faster(what, &measured, rival).limit(AtLeast(2.0)).goal(AtLeast(4.0)));
    }
    report.add(slower(what, &measured, "bare loop").limit(AtMost(1.6)).goal(AtMost(1.3)));
    report.add(faster(what, &measured, "broadcast"));
    report.add(faster(what, &measured, "stream_router"));
    report.plot(measured);

    let fed = [
        (Feed::Channel(100), "a tokio channel of 100", Some(12.0), 40.0, Some((20.0, 40.0))),
        (Feed::Channel(1_024), "a tokio channel of 1,024", Some(1.2), 20.0, Some((20.0, 40.0))),
        (Feed::Unconstrained(1_024), "one of 1,024, unconstrained", None, 20.0, None),
    ];
    for (feed, name, limit, goal, linger) in fed {
        let fed = Job { feed, ..saturated };
        let measured = report.measure(&mut tcp::group(fed, LINES / 5), ROUNDS);
        let what = format!("the same, fed by {name}");
        let send = faster(&what, &measured, "send().await").goal(AtLeast(goal));
        report.add(match limit {
            Some(limit) => send.limit(AtLeast(limit)),
            None => send,
        });
        for rival in ["forward, tokio", "forward, futures"] {
            report.add(faster(&what, &measured, rival).goal(AtLeast(20.0)));
        }
        if let Some((limit, goal)) = linger {
            let what = format!("{what}, `linger(1)`, a tick each millisecond");
            let ratio = measured.ratio("send().await", tcp::LINGER);
            let row = compare(&what, &measured, tcp::LINGER, "send().await", ratio);
            report.add(row.limit(AtLeast(limit)).goal(AtLeast(goal)));
        }
        report.plot(measured);
    }

    let skewed = Job { keys: Keys::Skewed, ..saturated };
    let measured = report.measure(&mut tcp::group(skewed, LINES), ROUNDS);
    let what = "a line to one of 100 TCP clients, skewed keys, saturated";
    for rival in ["send().await", "forward, tokio", "forward, futures"] {
        report.add(faster(what, &measured, rival));
    }
    report.add(slower(what, &measured, "bare loop"));
}
