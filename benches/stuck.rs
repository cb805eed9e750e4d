//! What do the others lose when one of a thousand sinks is never ready again, and what does it cost
//! to evict a group of such sinks one by one?

mod common;

use figures::stuck;

fn main() {
    common::bench([stuck::group(1_000_000), stuck::blockers()]);
}
