//! The cost of an item: its instructions, its time, and the benchmark of the article.

use std::process::Command;

use figures::table::Bound::{AtLeast, AtMost};
use figures::table::Row;
use figures::{article, route};

use super::{FEW, MANY, ROUNDS, faster, slower, thousands};
use crate::report::Report;

/// Runs the script `instructions`, which prints lines of a name, a number of sinks and a count.
pub(super) fn instructions(report: &mut Report) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions");
    let counted =
        Command::new(script).arg("--count").output().map_err(|error| error.to_string()).and_then(
            |output| match output.status.success() {
                true => String::from_utf8(output.stdout).map_err(|error| error.to_string()),
                false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            },
        );
    let counted = counted.unwrap_or_else(|error| {
        eprintln!("        {error}");
        String::new()
    });
    let count = |name: &str| {
        let line = counted.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<f64>().ok()
    };
    let show = |count: Option<f64>| count.map_or("?".to_owned(), |count| format!("{count:.1}"));
    let row = |name: &str, what: String, rival: &str, rival_name: &str| {
        let (ours, rival) = (count(name), count(rival));
        let row = Row::new(what, show(ours), format!("{rival_name}: {}", show(rival)));
        match ours {
            // Rounded to whole instructions: builds differ by a few tenths.
            Some(ours) => row.count(ours, 0),
            None => row,
        }
    };
    // The limits of `benches/instructions`.
    for (keys, limit) in [(3, 66.0), (1_000, 80.0), (100_000, 130.0)] {
        let what = format!("instructions per item, {} keys", thousands(keys));
        let row = row(&format!("demux {keys} "), what, &format!("bare {keys} "), "bare loop");
        report.add(row.limit(AtMost(limit)));
    }
    for members in [100, 10_000] {
        let what = format!("instructions per copy to one of {} members", thousands(members));
        report.add(row(&format!("copy {members} "), what, "demux 1000 ", "one of 1,000 keys"));
    }
    let (many, few) = (count("wake 100000 "), count("wake 1000 "));
    let what = "instructions for one wake, 100,000 attached";
    let row = Row::new(what, show(many), format!("1,000 attached: {}", show(few)));
    report.add(match (many, few) {
        (Some(many), Some(few)) => row.figure(many / few, 2),
        _ => row,
    });
}

pub(super) fn routing(report: &mut Report) {
    let mut bare_times = Vec::new();
    for (keys, items, least_to_select, most_to_bare) in
        [(3, 250_000, 6.5, 1.9), (1_000, 250_000, 5.0, 2.3), (100_000, 1_000_000, 1.8, 4.2)]
    {
        let rounds = if keys > 1_000 { ROUNDS } else { MANY };
        let measured = report.measure(&mut route::integers(keys, items), rounds);
        let what = format!("routing a 16-byte item, {} keys", thousands(keys));
        bare_times.push(measured.ns("bare loop"));
        let select = faster(&what, &measured, "select_biased!");
        report.add(select.limit(AtLeast(least_to_select)));
        let bare = slower(&what, &measured, "bare loop");
        report.add(bare.limit(AtMost(most_to_bare)));
        report.add(faster(&what, &measured, "stream_router"));
        report.add(faster(&what, &measured, "stream-partition"));
        report.plot(measured);
    }
    let [three, thousand] = [bare_times[0], bare_times[1]];
    for (unlucky, keys) in [(three > 2.0 * thousand, "3"), (thousand > 3.0 * three, "1,000")] {
        if unlucky {
            eprintln!(
                "        the hasher's seed in this process is unlucky for {keys} keys: run it again"
            );
        }
    }
    // Attaching a million sinks takes much longer than routing the items, so there are fewer
    // rounds.
    let measured = report.measure(&mut route::integers(1_000_000, 1_000_000), FEW);
    let what = "routing a 16-byte item, 1,000,000 keys";
    let select = faster(what, &measured, "select_biased!");
    report.add(select.limit(AtLeast(2.0)));
    report.add(slower(what, &measured, "bare loop").limit(AtMost(4.5)));
    report.plot(measured);
    let measured = report.measure(&mut route::strings(1_000, 500_000), ROUNDS);
    let what = "routing a 16-byte item, 1,000 string keys";
    report.add(faster(what, &measured, "select_biased!"));
    report.add(slower(what, &measured, "bare loop"));
}

pub(super) fn article_benchmark(report: &mut Report) {
    let measured = report.measure(&mut article::group(100_000), MANY);
    let what = "the benchmark of the article, 3 keys";
    for rival in ["select!", "select_biased!", "select-all", "lossy"] {
        let member = measured.member(rival);
        let lost = member.sent - member.arrived;
        let row = faster(what, &measured, rival).limit(AtLeast(1.0));
        report.add(if lost > 0 { row.note(format!("loses {lost} items")) } else { row });
    }
    report.add(slower(what, &measured, "bare loop").limit(AtMost(1.2)));
    report.add(faster(what, &measured, "stream_router"));
    report.add(faster(what, &measured, "stream-partition"));
    report.plot(measured);
}
