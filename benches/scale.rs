//! The cost of one wake with many idle sinks. The bytes per attachment are in the summary, because
//! they are counted, not timed.

mod common;

use figures::scale;

fn main() {
    common::bench(scale::SIZES.map(|size| scale::wake(&[size], 100_000)));
}
