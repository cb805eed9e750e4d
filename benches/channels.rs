//! The cost of an item for one of many bounded channels with live readers.

mod common;

use figures::channels;

fn main() {
    common::bench([channels::tokio(100, 100_000), channels::futures(100, 100_000)]);
}
