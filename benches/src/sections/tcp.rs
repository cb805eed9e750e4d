//! Lines to TCP clients.

use figures::table::Bound::{AtLeast, AtMost};
use figures::tcp::{self, Feed, Job, Keys};

use super::{ROUNDS, beside, faster, times};
use crate::report::Report;

/// So many that what comes once, most of it the closing of each connection, is little of what a
/// line costs: with 100,000 it was a third.
const LINES: u64 = 500_000;

pub(super) fn lines(report: &mut Report) {
    let saturated = Job { clients: 100, feed: Feed::Saturated, keys: Keys::RoundRobin };
    let measured = report.measure(&mut tcp::group(saturated, LINES), ROUNDS);
    let what = "a line to one of 100 TCP clients, saturated input";
    report.add(faster(what, &measured, "send().await").must(AtLeast(50.0)).aim(AtLeast(100.0)));
    for rival in ["forward, tokio", "forward, futures"] {
        report.add(faster(what, &measured, rival).must(AtLeast(2.0)).aim(AtLeast(4.0)));
    }
    report.add(times(what, &measured, "bare loop").must(AtMost(1.6)).aim(AtMost(1.3)));
    report.add(faster(what, &measured, "broadcast"));
    report.add(faster(what, &measured, "stream_router"));
    report.plot(measured);

    let fed = [
        (Feed::Channel(100), "a tokio channel of 100", Some(12.0), 40.0, Some((20.0, 40.0))),
        (Feed::Channel(1_024), "a tokio channel of 1,024", Some(1.2), 20.0, Some((20.0, 40.0))),
        (Feed::Unconstrained(1_024), "one of 1,024, unconstrained", None, 20.0, None),
    ];
    for (feed, name, must, aim, linger) in fed {
        let fed = Job { feed, ..saturated };
        let measured = report.measure(&mut tcp::group(fed, LINES / 5), ROUNDS);
        let what = format!("the same, fed by {name}");
        let send = faster(&what, &measured, "send().await").aim(AtLeast(aim));
        report.add(match must {
            Some(must) => send.must(AtLeast(must)),
            None => send,
        });
        for rival in ["forward, tokio", "forward, futures"] {
            report.add(faster(&what, &measured, rival).aim(AtLeast(20.0)));
        }
        if let Some((must, aim)) = linger {
            let what = format!("{what}, `linger(1)`, a tick each millisecond");
            let ratio = measured.ratio("send().await", tcp::LINGER);
            let row = beside(&what, &measured, tcp::LINGER, "send().await", ratio);
            report.add(row.must(AtLeast(must)).aim(AtLeast(aim)));
        }
        report.plot(measured);
    }

    let skewed = Job { keys: Keys::Skewed, ..saturated };
    let measured = report.measure(&mut tcp::group(skewed, LINES), ROUNDS);
    let what = "a line to one of 100 TCP clients, skewed keys, saturated";
    for rival in ["send().await", "forward, tokio", "forward, futures"] {
        report.add(faster(what, &measured, rival));
    }
    report.add(times(what, &measured, "bare loop"));
}
