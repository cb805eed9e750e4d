//! The delay of a quiet key beside a busy neighbour.

use figures::neighbour::{self, Contender, Neighbour};
use figures::table::Bound::AtMost;
use figures::table::Row;
use figures::threads::Threads;

use super::{compare_delays, thousands};
use crate::report::Report;

/// The number of runs of each program, in turn.
const RUNS: usize = 3;

pub(super) fn delays(report: &mut Report) {
    for (neighbour, limit) in [
        (Neighbour::Counting, 5.0),
        (Neighbour::Working, 80.0),
        (Neighbour::Group(100), 1.5),
        (Neighbour::Group(500), 1.5),
        (Neighbour::Group(10_000), 1.5),
        (Neighbour::Clients(100), 1.5),
    ] {
        for (rival, row) in measure(neighbour, Threads::One) {
            let is_limited = rival == Contender::Broadcast;
            report.add(if is_limited { row.limit(AtMost(limit)) } else { row });
        }
    }
    for (neighbour, threads) in [
        (Neighbour::Keys(1_000_000), Threads::One),
        (Neighbour::Group(500), Threads::Two),
        (Neighbour::Clients(100), Threads::Two),
    ] {
        for (_, row) in measure(neighbour, threads) {
            report.add(row);
        }
    }
}

/// Returns the rivals and the rows that compare the demux with them.
fn measure(neighbour: Neighbour, threads: Threads) -> Vec<(Contender, Row)> {
    let what = format!(
        "delay of an item for a quiet key, beside {}, {}",
        describe(neighbour),
        threads.name()
    );
    let measured = neighbour::measure(neighbour, threads, RUNS);
    let (contenders, delays): (Vec<_>, Vec<_>) = measured.into_iter().unzip();
    let named = contenders.iter().map(|contender| contender.name()).zip(delays);
    let rows = compare_delays(&what, &named.collect::<Vec<_>>());
    contenders.into_iter().skip(1).zip(rows).collect()
}

fn describe(neighbour: Neighbour) -> String {
    match neighbour {
        Neighbour::Counting => "a sink that counts".to_owned(),
        Neighbour::Working => "a sink that takes 20 µs".to_owned(),
        Neighbour::Group(members) => format!("a group of {} sinks", thousands(members)),
        Neighbour::Keys(keys) => format!("{} busy keys", thousands(keys)),
        Neighbour::Clients(clients) => format!("{} saturated TCP clients", thousands(clients)),
    }
}
