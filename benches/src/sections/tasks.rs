//! The cost of several tasks: many producers, two demuxes.

use figures::{fan_in, shards};

use super::{ROUNDS, compare, thousands};
use crate::report::Report;

pub(super) fn fanning_in(report: &mut Report) {
    for (destination, name) in
        [(fan_in::Destination::Server, "a server"), (fan_in::Destination::Demux, "a demux")]
    {
        for producers in [64, 8_192] {
            let measured =
                report.measure(&mut fan_in::group(producers, destination, 65_536), ROUNDS);
            let buffer = "swapped std Mutex<Vec>";
            for rival in ["bounded", "bounded, recv_many", "SegQueue"] {
                let producers = thousands(producers);
                let what = format!("{producers} producers to {name}, a swapped buffer");
                let ratio = measured.ratio(rival, buffer);
                report.add(compare(&what, &measured, buffer, rival, ratio));
            }
        }
    }
}

pub(super) fn sharding(report: &mut Report) {
    for rounds in [0, 1_000] {
        let measured = report.measure(&mut shards::group(rounds, 50_000), ROUNDS);
        let what = match rounds {
            0 => "two shards on two cores, sinks that do nothing",
            _ => "two shards on two cores, sinks that work",
        };
        let ratio = measured.ratio("one demux", "two shards");
        report.add(compare(what, &measured, "two shards", "one demux", ratio));
    }
}
