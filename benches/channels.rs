//! A bounded channel with a live reader for each key: what does the demux add to a loop over a map?

mod common;

use figures::channels;

fn main() {
    common::bench([channels::tokio(100, 100_000), channels::futures(100, 100_000)]);
}
