//! What do the others lose when one of a thousand sinks is never ready again?

mod common;

fn main() {
    common::bench([figures::stuck::group(1_000_000)]);
}
