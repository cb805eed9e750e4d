//! Ordered workers for each customer, which end when they are idle, and a deadline that names who
//! hangs.
//!
//! ```sh
//! cargo run -p stream-demux-hub --example customers    # with `for_each_by_key`
//! cargo run -p stream-demux-hub --example customers -- plain    # with a channel for each customer
//! ```

use std::time::Duration;

use futures::{StreamExt, stream};
use hub_programs::customers::{hub, plain};
use tokio::time::sleep;

async fn handle(customer: u64, order: u64) {
    if (customer, order) == (3, 13) {
        std::future::pending::<()>().await;
    }
    println!("customer {customer}: order {order}");
}

#[tokio::main]
async fn main() {
    let orders = stream::iter(0..20).map(|n| (n % 5, n)).chain(stream::pending());
    let stop = sleep(Duration::from_millis(100));
    let hung = if std::env::args().any(|argument| argument == "plain") {
        plain::run(orders, stop, handle).await
    } else {
        hub::run(orders, stop, handle).await
    };
    println!("given up: {hung:?}");
}
