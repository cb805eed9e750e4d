//! Clients that come and go while the broker closes the connections of the gateway: afterwards the
//! queue is bound for the keys that are still wanted, and for no others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures::future::join_all;
use tokio::time::sleep;

use crate::client;
use crate::script::{Site, ask};

const CLIENTS: usize = 60;
/// Keys of a client at a time, of many, so that most bindings are for a single client.
const WANTED: usize = 4;
const KEYS: usize = 2_000;
/// How often all connections are closed.
const CLOSED: usize = 4;
/// A key whose client stays.
const KEPT: &str = "kept";

#[derive(Debug, clap::Args)]
pub struct Churn {
    #[command(flatten)]
    site: Site,
}

impl Churn {
    pub async fn run(self) -> Result<(), String> {
        let gateway: Arc<str> = self.site.gateway.as_str().into();
        let mut kept = client::subscriber(&gateway, None, [KEPT]).await?;
        client::subscribed(&mut kept, 1).await?;
        // It has to be read: a client that does not answer pings is disconnected.
        let kept = tokio::spawn(async move { while client::read(&mut kept).await {} });
        let is_over = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| tokio::spawn(come_and_go(Arc::clone(&gateway), Arc::clone(&is_over))))
            .collect();
        for _ in 0..CLOSED {
            sleep(Duration::from_millis(fastrand::u64(500..1_500))).await;
            ask("close connections").await?;
        }
        is_over.store(true, Relaxed);
        for client in join_all(clients).await {
            client.map_err(|error| error.to_string())??;
        }
        if kept.is_finished() {
            return Err(format!("the client of {KEPT} was disconnected"));
        }
        let matched = ask(&format!("await bindings {KEPT}")).await;
        kept.abort();
        matched
    }
}

/// Subscribes to some keys and leaves, over and over.
async fn come_and_go(gateway: Arc<str>, is_over: Arc<AtomicBool>) -> Result<(), String> {
    while !is_over.load(Relaxed) {
        let keys: Vec<_> =
            (0..WANTED).map(|_| format!("key {}", fastrand::usize(..KEYS))).collect();
        let socket = client::subscriber(&gateway, None, keys).await?;
        sleep(Duration::from_millis(fastrand::u64(..100))).await;
        drop(socket);
    }
    Ok(())
}
