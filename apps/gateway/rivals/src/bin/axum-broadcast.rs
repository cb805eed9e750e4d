//! axum with a `tokio::sync::broadcast` channel for each key, in 100 lines.
//!
//! `GET /sub/KEY` is a WebSocket, `POST /publish/KEY` sends the body to all subscribers of the key.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::ws::{Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{self, Receiver, Sender};

/// How many messages a subscriber may lag behind. Each message is stored once for all of them.
const CAPACITY: usize = 1024;

#[derive(Clone, Default)]
struct Channels(Arc<Mutex<HashMap<String, Sender<Utf8Bytes>>>>);

impl Channels {
    fn subscribe(&self, key: String) -> Receiver<Utf8Bytes> {
        let mut channels = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        channels.entry(key).or_insert_with(|| broadcast::channel(CAPACITY).0).subscribe()
    }

    fn publish(&self, key: &str, body: Utf8Bytes) {
        let channels = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(key) {
            let _ = channel.send(body); // an error: the key has no subscribers
        }
    }

    fn leave(&self, key: &str) {
        let mut channels = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if channels.get(key).is_some_and(|channel| channel.receiver_count() == 0) {
            channels.remove(key);
        }
    }
}

async fn publish(
    State(channels): State<Channels>,
    Path(key): Path<String>,
    body: String,
) -> StatusCode {
    channels.publish(&key, body.into());
    StatusCode::ACCEPTED
}

async fn subscribe(
    State(channels): State<Channels>,
    Path(key): Path<String>,
    upgrade: WebSocketUpgrade,
) -> Response {
    // Subscribe before the handshake is answered: the client gets what is published from then on.
    let received = channels.subscribe(key.clone());
    upgrade.on_upgrade(move |socket| async move {
        serve(socket, received).await;
        channels.leave(&key);
    })
}

async fn serve(mut socket: WebSocket, mut received: Receiver<Utf8Bytes>) {
    loop {
        tokio::select! {
            message = received.recv() => match message {
                Ok(body) => {
                    if socket.send(Message::Text(body)).await.is_err() {
                        return;
                    }
                }
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            frame = socket.recv() => match frame {
                Some(Ok(_)) => {}
                _ => return,
            },
        }
    }
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let Some(port) = std::env::args().nth(1).and_then(|port| port.parse::<u16>().ok()) else {
        eprintln!("usage: axum-broadcast PORT");
        std::process::exit(2);
    };
    let routes = Router::new()
        .route("/sub/{key}", get(subscribe))
        .route("/publish/{key}", post(publish))
        .with_state(Channels::default());
    axum::serve(TcpListener::bind(("127.0.0.1", port)).await?, routes).await
}
