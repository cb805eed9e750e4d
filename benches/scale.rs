//! What does one wake cost beside many sinks that sleep? Bytes per attachment are in the summary:
//! they are counted, not timed.

mod common;

use figures::scale;

fn main() {
    common::bench(scale::SIZES.map(|size| scale::wake(&[size], 100_000)));
}
