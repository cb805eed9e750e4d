//! What do orders cost: an idle channel of them, and a storm? How long a woken sink waits while
//! they never pause is a number of turns, and in the summary.

mod common;

use figures::orders;

fn main() {
    common::bench([orders::idle(1_000_000), orders::storm(200_000)]);
}
