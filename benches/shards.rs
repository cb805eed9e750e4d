//! Two demux tasks on two cores behind a first one: what is gained, by how much a sink has to do?

mod common;

fn main() {
    common::bench([0, 100, 1_000].map(|rounds| figures::shards::group(rounds, 100_000)));
}
