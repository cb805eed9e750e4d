//! The throughput when one of a thousand sinks is never ready again, and the cost of evicting a
//! group of such sinks one by one.

mod common;

use figures::stuck;

fn main() {
    common::bench([stuck::group(1_000_000), stuck::blockers()]);
}
