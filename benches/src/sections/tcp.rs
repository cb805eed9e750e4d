//! Lines to TCP clients.

use figures::tcp::{self, Feed, Job, Keys};
use figures::threads::Threads;

use super::{FEW, faster};
use crate::report::Report;

const LINES: u64 = 100_000;

pub(super) fn lines(report: &mut Report) {
    for threads in [Threads::One, Threads::Two] {
        for clients in [17, 100, 1_000] {
            for size in [64, 100, 1_024] {
                let job =
                    Job { clients, feed: Feed::Channel(size), keys: Keys::RoundRobin, threads };
                let measured = report.measure(&mut tcp::group(job, LINES), FEW);
                for rival in
                    ["send().await", "recv_many", "forward, futures", "one loop", "broadcast"]
                {
                    let wall = measured.wall_ratio(rival, "demux");
                    let row =
                        faster(&measured.name, &measured, rival).note(format!("wall {wall:.2}"));
                    report.add(row);
                }
            }
        }
    }
    for (clients, keys) in [(100, Keys::RoundRobin), (100, Keys::Skewed), (1000, Keys::RoundRobin)]
    {
        let job = Job { clients, feed: Feed::Saturated, keys, threads: Threads::One };
        let measured = report.measure(&mut tcp::group(job, 5 * LINES), FEW);
        for rival in ["send().await", "recv_many", "forward, futures", "bare loop"] {
            let wall = measured.wall_ratio(rival, "demux");
            let row = faster(&measured.name, &measured, rival).note(format!("wall {wall:.2}"));
            report.add(row);
        }
    }
}
