//! The cost of a copy for a member of a group, to sinks that count and to channels with live
//! readers.

mod common;

use figures::multicast;

fn main() {
    common::bench([
        multicast::counting(1_000_000),
        multicast::tokio(100, 100_000),
        multicast::futures(100, 100_000),
    ]);
}
