//! The cost of a sample from many producers to one consumer, by several kinds of queue.

mod common;

use figures::fan_in::{self, Destination};

fn main() {
    let producers = [1, 2, 4, 8, 16, 64, 256, 1_024, 8_192];
    common::bench([Destination::Server, Destination::Demux].into_iter().flat_map(|destination| {
        producers.into_iter().map(move |producers| fan_in::group(producers, destination, 131_072))
    }));
}
