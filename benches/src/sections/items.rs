//! What an item costs: its instructions, routing it, and the program of the article.

use std::process::Command;

use figures::table::Bound::{AtLeast, AtMost};
use figures::table::Row;
use figures::{article, route};

use super::{FEW, MANY, ROUNDS, faster, thousands, times};
use crate::report::Report;

/// What the script counts: lines of a name, a number of keys and instructions.
pub(super) fn instructions(report: &mut Report) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions");
    let counted = std::env::current_exe()
        .and_then(|this| Command::new(script).arg("--count").arg(this).output())
        .map_err(|error| error.to_string())
        .and_then(|output| match output.status.success() {
            true => String::from_utf8(output.stdout).map_err(|error| error.to_string()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        });
    let counted = counted.unwrap_or_else(|error| {
        eprintln!("        {error}");
        String::new()
    });
    let count = |name: &str| {
        let line = counted.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<f64>().ok()
    };
    let show = |count: Option<f64>| count.map_or("?".to_owned(), |count| format!("{count:.1}"));
    let row = |name: &str, what: String, limit: &str, limit_is: &str| {
        let (ours, limit) = (count(name), count(limit));
        let row = Row::new(what, show(ours), format!("{limit_is}: {}", show(limit)));
        match ours {
            // Whole ones: from build to build a few tenths come and go.
            Some(ours) => row.figure(ours, 0),
            None => row,
        }
    };
    // The musts are those of the script.
    for (keys, must, aim) in [(3, 72.0, 62.0), (1_000, 84.0, 72.0), (100_000, 130.0, 105.0)] {
        let what = format!("instructions per item, {} keys", thousands(keys));
        let row = row(&format!("demux {keys} "), what, &format!("bare {keys} "), "bare loop");
        report.add(row.must(AtMost(must)).aim(AtMost(aim)));
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
    let mut luck = Vec::new();
    for (keys, items, musts, aims) in [
        (3, 250_000, (6.5, 1.9), (9.0, 1.4)),
        (1_000, 250_000, (5.5, 2.3), (7.6, 1.7)),
        (100_000, 1_000_000, (1.8, 4.2), (3.4, 2.6)),
    ] {
        let rounds = if keys > 1_000 { ROUNDS } else { MANY };
        let measured = report.measure(&mut route::integers(keys, items), rounds);
        let what = format!("routing a 16-byte item, {} keys", thousands(keys));
        luck.push(measured.ns("bare loop"));
        let hand = faster(&what, &measured, "select_biased!");
        report.add(hand.must(AtLeast(musts.0)).aim(AtLeast(aims.0)));
        let limit = times(&what, &measured, "bare loop");
        report.add(limit.must(AtMost(musts.1)).aim(AtMost(aims.1)));
        report.add(faster(&what, &measured, "stream_router"));
        report.add(faster(&what, &measured, "stream-partition"));
        report.plot(measured);
    }
    for (unlucky, keys) in [(luck[0] > 2.0 * luck[1], "3"), (luck[1] > 3.0 * luck[0], "1,000")] {
        if unlucky {
            eprintln!(
                "        the hasher's seed is unlucky for {keys} keys, in this process: run it again"
            );
        }
    }
    // Attaching a million sinks takes far longer than the items do, so there are fewer rounds.
    let measured = report.measure(&mut route::integers(1_000_000, 1_000_000), FEW);
    let what = "routing a 16-byte item, 1,000,000 keys";
    let hand = faster(what, &measured, "select_biased!");
    report.add(hand.must(AtLeast(2.0)).aim(AtLeast(2.4)));
    report.add(times(what, &measured, "bare loop").must(AtMost(3.3)));
    report.plot(measured);
    let measured = report.measure(&mut route::strings(1_000, 500_000), ROUNDS);
    let what = "the same, 1,000 keys that are strings";
    report.add(faster(what, &measured, "select_biased!"));
    report.add(times(what, &measured, "bare loop"));
}

pub(super) fn the_article(report: &mut Report) {
    let measured = report.measure(&mut article::group(100_000), MANY);
    let what = "the article's own benchmark, 3 keys";
    for rival in ["select!", "select_biased!", "select-all", "lossy"] {
        let member = measured.member(rival);
        let lost = member.sent - member.arrived;
        let row = faster(what, &measured, rival).must(AtLeast(1.0));
        report.add(if lost > 0 { row.note(format!("it loses {lost} items")) } else { row });
    }
    report.add(times(what, &measured, "bare loop").must(AtMost(1.2)).aim(AtMost(1.05)));
    report.add(faster(what, &measured, "stream_router"));
    report.add(faster(what, &measured, "stream-partition"));
    report.plot(measured);
}
