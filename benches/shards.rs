//! Two demux tasks on two cores behind a first one, by the work of a sink per item.

mod common;

fn main() {
    common::bench([0, 100, 1_000].map(|rounds| figures::shards::group(rounds, 100_000)));
}
