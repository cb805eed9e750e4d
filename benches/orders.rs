//! The cost of orders: of an idle channel, and of many orders. The summary has the turns that a
//! woken sink waits while orders are endless.

mod common;

use figures::orders;

fn main() {
    common::bench([orders::idle(1_000_000), orders::churn(200_000)]);
}
