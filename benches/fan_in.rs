//! Many producers into one consumer, by all means: what does a sample cost?

mod common;

use figures::fan_in::{self, Into};

fn main() {
    let producers = [1, 2, 4, 8, 16, 64, 256, 1_024, 8_192];
    common::bench([Into::Server, Into::Demux].into_iter().flat_map(|into| {
        producers.into_iter().map(move |producers| fan_in::group(producers, into, 131_072))
    }));
}
