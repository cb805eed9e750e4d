//! The statistics of a gateway.

use std::time::Duration;

use reqwest::Client;
use serde_json::Value;
use tokio::time::{Instant, sleep};

/// Returns statistics made after this call: an answer is shared for a second.
pub async fn stats(gateway: &str) -> Result<Value, String> {
    let old = any_stats(gateway).await?;
    loop {
        let new = any_stats(gateway).await?;
        if new["uptime_ms"] != old["uptime_ms"] {
            return Ok(new);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn any_stats(gateway: &str) -> Result<Value, String> {
    let text = text(gateway, "stats").await?;
    serde_json::from_str(&text).map_err(|error| format!("/stats: not JSON: {error}"))
}

pub async fn text(gateway: &str, path: &str) -> Result<String, String> {
    let url = format!("http://{gateway}/{path}");
    let fetched = async {
        let answer = Client::new().get(&url).timeout(Duration::from_secs(60)).send().await?;
        answer.error_for_status()?.text().await
    };
    fetched.await.map_err(|error| format!("GET {url}: {error}"))
}

/// Returns a counter of `/metrics`.
pub async fn counter(gateway: &str, name: &str) -> Result<u64, String> {
    let metrics = text(gateway, "metrics").await?;
    let of_line = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    metrics.lines().find_map(of_line).ok_or_else(|| format!("/metrics has no {name}"))
}

/// Waits until a gateway, which may still be starting, has received this many messages.
pub async fn await_received(gateway: &str, count: u64, limit: Duration) -> Result<(), String> {
    let start = Instant::now();
    loop {
        let stats = any_stats(gateway).await;
        let received = stats.map(|stats| stats["totals"]["received"].as_u64().unwrap_or(0));
        if received.as_ref().is_ok_and(|received| *received >= count) {
            return Ok(());
        }
        if start.elapsed() > limit {
            return Err(format!("{gateway} has not received {count} messages: {received:?}"));
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until the gateway has neither connections nor subscriptions.
pub async fn await_idle(gateway: &str) -> Result<(), String> {
    let start = Instant::now();
    loop {
        let stats = stats(gateway).await?;
        let (connections, subscriptions) = (&stats["connections"], &stats["subscriptions"]);
        if (connections, subscriptions) == (&Value::from(0), &Value::from(0)) {
            return Ok(());
        }
        if start.elapsed() > Duration::from_secs(180) {
            return Err(format!(
                "{gateway}: all clients left 180 s ago, /stats shows {connections} connections, \
                 {subscriptions} subscriptions"
            ));
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Checks that the totals have grown by what this run must have caused.
pub async fn compare(
    gateway: &str,
    before: &Value,
    received: u64,
    delivered: u64,
) -> Result<(), String> {
    let after = stats(gateway).await?;
    let grown = |name: &str| {
        let [after, before] =
            [&after, before].map(|stats| stats["totals"][name].as_u64().unwrap_or(0));
        after - before
    };
    let expected =
        [("received", received), ("delivered", delivered), ("unmatched", 0), ("lost", 0)];
    for (name, expected) in expected {
        if grown(name) != expected {
            let grown = grown(name);
            return Err(format!("{gateway}: /stats shows {grown} {name} instead of {expected}"));
        }
    }
    if after["totals"]["queued"] != 0 {
        return Err(format!("{gateway}: /stats shows {} queued", after["totals"]["queued"]));
    }
    Ok(())
}
