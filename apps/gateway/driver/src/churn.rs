//! Clients that come and go while the broker closes the connections of the gateway: afterwards the
//! queue is bound for the keys that are still wanted, and for no others. A client that stays hears
//! all messages of its key.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use futures::future::join_all;
use reqwest::Client as Http;
use tokio::time::{sleep, timeout};

use crate::client::{self, Socket};
use crate::publish;
use crate::script::{Site, ask};

const CLIENTS: usize = 60;
/// Clients choose their keys from as many, so that most bindings are for a single client.
const KEYS: usize = 2_000;
/// How often all connections are closed.
const CLOSED: usize = 4;
/// A key whose client stays.
const KEPT: &str = "kept";
/// How long messages may be on their way.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub struct Churn {
    #[command(flatten)]
    site: Site,
    /// Keys of a client at a time
    #[arg(long, default_value_t = 4)]
    wanted: usize,
}

impl Churn {
    pub async fn run(self) -> Result<(), String> {
        let gateway: Arc<str> = self.site.gateway.as_str().into();
        let mut kept = client::subscriber(&gateway, None, [KEPT]).await?;
        client::subscribed(&mut kept, 1).await?;
        let posted = Arc::new(AtomicUsize::new(usize::MAX));
        let kept = tokio::spawn(hear(kept, Arc::clone(&posted)));
        let is_over = Arc::new(AtomicBool::new(false));
        let posting = tokio::spawn(post(Arc::clone(&gateway), Arc::clone(&is_over)));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                tokio::spawn(come_and_go(Arc::clone(&gateway), self.wanted, Arc::clone(&is_over)))
            })
            .collect();
        for _ in 0..CLOSED {
            sleep(Duration::from_millis(fastrand::u64(500..1_500))).await;
            ask("close connections").await?;
        }
        is_over.store(true, Relaxed);
        for client in join_all(clients).await {
            client.map_err(|error| error.to_string())??;
        }
        let count = posting.await.map_err(|error| error.to_string())??;
        ask(&format!("await bindings {KEPT}")).await?;
        posted.store(count, Relaxed);
        publish::post_one(&Http::new(), &gateway, KEPT, count.to_string().into(), true).await?;
        let kept = timeout(TIMEOUT, kept).await;
        let kept = kept.map_err(|_| format!("{count} messages of {KEPT} do not arrive"))?;
        kept.map_err(|error| error.to_string())??;
        println!("  the client that stays has heard {count} messages, and no gap");
        Ok(())
    }
}

/// Posts numbers, one after the other. Returns how many.
async fn post(gateway: Arc<str>, is_over: Arc<AtomicBool>) -> Result<usize, String> {
    let (http, mut count) = (Http::new(), 0);
    while !is_over.load(Relaxed) {
        publish::post_one(&http, &gateway, KEPT, count.to_string().into(), true).await?;
        count += 1;
    }
    Ok(count)
}

/// Reads all numbers up to the last one, `posted`. Some may come again.
async fn hear(mut socket: Socket, posted: Arc<AtomicUsize>) -> Result<(), String> {
    let mut heard = HashSet::new();
    while heard.len() <= posted.load(Relaxed) {
        let value = client::next(&mut socket).await?;
        let body = client::body_of(&value).and_then(|body| String::from_utf8(body).ok());
        let number = body.and_then(|body| body.parse::<usize>().ok());
        heard.insert(number.ok_or_else(|| format!("unexpected: {value:.200}"))?);
    }
    Ok(())
}

/// Subscribes to some keys and leaves, over and over.
async fn come_and_go(
    gateway: Arc<str>,
    wanted: usize,
    is_over: Arc<AtomicBool>,
) -> Result<(), String> {
    while !is_over.load(Relaxed) {
        let keys: Vec<_> =
            (0..wanted).map(|_| format!("key {}", fastrand::usize(..KEYS))).collect();
        let socket = client::subscriber(&gateway, None, keys).await?;
        sleep(Duration::from_millis(fastrand::u64(..100))).await;
        drop(socket);
    }
    Ok(())
}
