//! A partitioned log, as Kafka has: at most 200 of 1,000 customers at a time, the orders of one in
//! order, positions that are committed when everything before them is done, five seconds to stop,
//! and the names of what is not done.
//!
//! ```sh
//! cargo run -p stream-demux-hub --example partitions    # with `for_each_by_key` and `Progress`
//! cargo run -p stream-demux-hub --example partitions -- plain    # with channels and semaphores
//! ```

use std::pin::pin;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use hub_programs::partitions::{hub, plain};
use tokio::time::sleep;

/// Handles an order. One hangs.
fn handle(customer: u64, offset: u64) -> BoxFuture<'static, ()> {
    let handled = async move {
        if customer == 13 && offset > 500 {
            std::future::pending::<()>().await;
        }
        sleep(Duration::from_millis(5)).await;
    };
    handled.boxed()
}

fn commit((partition, position): (u32, u64)) {
    println!("commit: partition {partition} at {position}");
}

#[tokio::main]
async fn main() {
    let orders = (0..40_000_u64).map(|n| ((n % 4) as u32, n / 4, n * 7_919 % 1_000));
    let log = stream::iter(orders).chain(stream::pending());
    let stop = pin!(sleep(Duration::from_millis(2_500)));
    let open = if std::env::args().any(|argument| argument == "plain") {
        plain::run(log, stop, handle, commit).await
    } else {
        hub::run(log, stop, handle, commit).await
    };
    println!("not done, as (partition, offset): {open:?}");
}
