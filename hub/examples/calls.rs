//! Calls with time-outs on one connection, beside a map of `oneshot` senders.
//!
//! ```sh
//! cargo run -p stream-demux-hub --example calls    # with a hub
//! cargo run -p stream-demux-hub --example calls -- plain    # with a map
//! ```

use hub_programs::calls::{hub, plain};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let connection = TcpStream::connect(listener.local_addr()?).await?;
    let (mut server, _) = listener.accept().await?;
    tokio::spawn(async move {
        // A server that answers a request with the request.
        let mut buffer = [0; 1024];
        while let Ok(n @ 1..) = server.read(&mut buffer).await {
            server.write_all(&buffer[..n]).await?;
        }
        std::io::Result::Ok(())
    });
    let reply = if std::env::args().any(|argument| argument == "plain") {
        plain::Client::new(connection).call("hello").await?
    } else {
        hub::Client::new(connection).call("hello").await?
    };
    println!("{reply}");
    Ok(())
}
