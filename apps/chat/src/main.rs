//! A chat over WebSockets. Rooms exist while someone is in them. With `--redis` or `--nats`, all
//! processes that use the same server are one chat.

mod client;

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use axum::extract::{State, WebSocketUpgrade};
use axum::response::Html;
use axum::routing::{any, get};
use clap::Parser;
use stream_demux_bridge::{Bridge, Status};
use tokio::net::TcpListener;

/// A chat over WebSockets: open the page that it serves.
#[derive(Parser)]
struct Options {
    /// The address to listen on; port 0 takes any that is free
    #[arg(long, default_value = "127.0.0.1:8080", env = "CHAT_LISTEN")]
    listen: SocketAddr,
    /// A Redis server, for several processes: redis://[:password@]host[:port]
    #[arg(long, value_name = "URL", env = "CHAT_REDIS")]
    redis: Option<String>,
    /// A NATS server, for several processes: nats://[user:password@]host[:port]
    #[arg(long, value_name = "URL", env = "CHAT_NATS", conflicts_with = "redis")]
    nats: Option<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match serve(Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chat: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(options: Options) -> io::Result<()> {
    let chat = match (&options.redis, &options.nats) {
        (Some(url), _) => Bridge::redis(url).map_err(io::Error::other)?,
        (None, Some(url)) => Bridge::nats(url).map_err(io::Error::other)?,
        (None, None) => Bridge::local(),
    };
    let engine = if options.nats.is_some() { "NATS" } else { "Redis" };
    let app = Router::new()
        .route("/", get(|| async { Html(include_str!("page.html")) }))
        .route("/chat", any(upgrade))
        .with_state(chat.clone());
    let listener = TcpListener::bind(options.listen).await.map_err(|error| {
        io::Error::other(format!("cannot listen on {}: {error}", options.listen))
    })?;
    println!("http://{}/", listener.local_addr()?);
    let report = tokio::spawn(report(chat.clone(), engine));
    let server = axum::serve(listener, app);
    tokio::select! {
        end = server => end?,
        end = tokio::signal::ctrl_c() => end?,
    }
    report.abort();
    chat.shutdown(Duration::from_secs(1)).await;
    Ok(())
}

async fn upgrade(socket: WebSocketUpgrade, State(chat): State<Bridge>) -> axum::response::Response {
    socket
        .max_message_size(client::LONGEST_MESSAGE)
        .max_frame_size(client::LONGEST_MESSAGE)
        .on_upgrade(|socket| client::talk(socket, chat))
}

/// Prints when the connection to the engine breaks, with the reason, and when it is there again.
async fn report(chat: Bridge, engine: &str) {
    let mut status = chat.status();
    let mut last = None;
    loop {
        let Status { receiving, publishing, .. } = status.borrow_and_update().clone();
        let broken = [receiving, publishing].into_iter().find(|line| !line.is_connected);
        let error = broken.and_then(|line| line.error);
        if error != last {
            match &error {
                Some(error) => eprintln!("chat: no connection to {engine}: {error}"),
                None => eprintln!("chat: connected to {engine}"),
            }
        }
        last = error;
        if status.changed().await.is_err() {
            return;
        }
    }
}
