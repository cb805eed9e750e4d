//! The cost of routing an item, by the number and kind of keys.

mod common;

use figures::route;

const KEYS: [u64; 4] = [3, 1_000, 100_000, 1_000_000];
const ITEMS: u64 = 1_000_000;

fn main() {
    common::bench(KEYS.into_iter().flat_map(|keys| {
        [route::integers as fn(u64, u64) -> _, route::strings]
            .into_iter()
            .map(move |kind| kind(keys, ITEMS))
    }));
}
