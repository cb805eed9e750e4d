//! Lines to TCP clients.

use figures::delay::{self, Load};
use figures::fan_out;
use figures::measure::Measured;
use figures::table::Bound::{AtLeast, AtMost};
use figures::table::Row;
use figures::tcp::{self, Feed, Job, Keys};
use figures::threads::Threads;

use super::{FEW, compare_delays, faster, slower, thousands};
use crate::report::Report;

/// The number of lines that the demux writes if they come through a channel.
const LINES: u64 = 100_000;

/// The number of lines of a saturated input.
const SATURATED_LINES: u64 = 500_000;

pub(super) fn lines(report: &mut Report) {
    for threads in [Threads::One, Threads::Two] {
        for (clients, size) in [(100, 1_024), (100, 100), (17, 1_024), (1_000, 1_024)] {
            from_channel(report, clients, size, threads);
        }
    }
    saturated(report);
}

fn from_channel(report: &mut Report, clients: usize, size: usize, threads: Threads) {
    let job = Job { clients, feed: Feed::Channel(size), keys: Keys::RoundRobin, threads };
    let measured = report.measure(&mut tcp::group(job, LINES), FEW);
    let what = format!(
        "a line to one of {} TCP clients, from a tokio channel of {}, {}",
        thousands(clients as u64),
        thousands(size as u64),
        threads.name()
    );
    let is_main = clients == 100;
    for rival in [tcp::SEND, tcp::RECV_MANY, "forward, futures", "one loop", "broadcast"] {
        let row = with_wall(faster(&what, &measured, rival), &measured, rival);
        report.add(if is_main && rival == tcp::SEND {
            let limit = if size == 100 { 12.0 } else { 10.0 };
            row.limit(AtLeast(limit))
        } else {
            row
        });
    }
    let ratio = measured.wall_ratio("demux", tcp::READING);
    let row = slower(&what, &measured, tcp::READING);
    report.add(row.note(format!("{ratio:.2} by the clock")));
    if is_main {
        report.plot(measured);
    }
}

fn saturated(report: &mut Report) {
    for (clients, keys) in [(100, Keys::RoundRobin), (100, Keys::Skewed), (1_000, Keys::RoundRobin)]
    {
        let job = Job { clients, feed: Feed::Saturated, keys, threads: Threads::One };
        let measured = report.measure(&mut tcp::group(job, SATURATED_LINES), FEW);
        let keys = match keys {
            Keys::RoundRobin => "",
            Keys::Skewed => ", skewed keys",
        };
        let clients = thousands(clients as u64);
        let what = format!("a line to one of {clients} TCP clients, saturated input{keys}");
        let is_main = job.clients == 100 && keys.is_empty();
        for (rival, limit) in [(tcp::SEND, 50.0), (tcp::RECV_MANY, 2.5), ("forward, futures", 2.5)]
        {
            let row = faster(&what, &measured, rival);
            report.add(if is_main { row.limit(AtLeast(limit)) } else { row });
        }
        let row = slower(&what, &measured, "bare loop");
        report.add(if is_main { row.limit(AtMost(1.6)) } else { row });
        if is_main {
            report.plot(measured);
        }
    }
}

pub(super) fn bursts(report: &mut Report) {
    for threads in [Threads::One, Threads::Two] {
        for (burst, bursts) in [(5_000, 4), (250, 20)] {
            let measured = report.measure(&mut fan_out::group(threads, burst, bursts), FEW);
            let what = format!(
                "a copy to one of 1,000 TCP clients, 50 topics, bursts of {} lines, {}",
                thousands(burst),
                threads.name()
            );
            for rival in [fan_out::SEND, fan_out::BROADCAST, fan_out::BUFFERS] {
                report.add(with_wall(faster(&what, &measured, rival), &measured, rival));
            }
            report.plot(measured);
        }
    }
}

/// Adds the ratio by the clock on the wall.
fn with_wall(row: Row, measured: &Measured, rival: &str) -> Row {
    row.note(format!("{:.2} by the clock", measured.wall_ratio(rival, "demux")))
}

pub(super) fn delays(report: &mut Report) {
    for threads in [Threads::One, Threads::Two] {
        for load in [Load::Idle, Load::Busy] {
            for clients in [17, 100, 1_000] {
                let job = delay::Job { clients, load, threads };
                let delays = delay::measure(job, 3, if clients == 1_000 { 50 } else { 100 });
                let beside = match load {
                    Load::Idle => "idle",
                    Load::Busy => "beside ten busy tasks",
                };
                let what = format!(
                    "delay of the last of a line to each of {} TCP clients, {beside}, {}",
                    thousands(clients as u64),
                    threads.name()
                );
                let contenders = delay::CONTENDERS.into_iter().zip(delays).collect::<Vec<_>>();
                for (index, row) in compare_delays(&what, &contenders).into_iter().enumerate() {
                    let is_main = load == Load::Idle && threads == Threads::One && index == 0;
                    report.add(if is_main && clients == 100 {
                        row.limit(AtMost(1.15))
                    } else {
                        row
                    });
                }
            }
        }
    }
}
