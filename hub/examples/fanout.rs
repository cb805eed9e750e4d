//! 1,000 subscribers of 50 topics.
//!
//! ```sh
//! cargo run --release -p stream-demux-hub --example fanout    # with a hub
//! cargo run --release -p stream-demux-hub --example fanout -- plain    # with a `broadcast` channel for each topic
//! ```

use futures::{StreamExt, stream};
use hub_programs::fanout::{hub, plain};

#[tokio::main]
async fn main() {
    let items = stream::iter(0..1_000).map(|n| (n % 50, n));
    let is_plain = std::env::args().any(|argument| argument == "plain");
    let count = if is_plain { plain::run(items).await } else { hub::run(items).await };
    println!("{count} items were received");
}
