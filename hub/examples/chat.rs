//! A chat with rooms over TCP.
//!
//! ```sh
//! cargo run -p stream-demux-hub --example chat    # with a hub
//! cargo run -p stream-demux-hub --example chat -- plain    # with a `broadcast` channel per room
//! nc 127.0.0.1 7000    # a client: the first line is the room
//! ```

use hub_programs::chat::{hub, plain};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:7000").await?;
    if std::env::args().any(|argument| argument == "plain") {
        return plain::serve(listener).await;
    }
    hub::serve(listener).await
}
