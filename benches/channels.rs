//! Bounded channels with live readers: what does the demux add to a loop over a map of senders?

mod common;

use figures::channels;

fn main() {
    common::bench([channels::tokio(100, 100_000), channels::futures(100, 100_000)]);
}
