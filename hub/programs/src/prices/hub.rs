//! 300 clients get the newest price of 50 symbols each: subscriptions that keep the latest item of
//! each key.

use std::collections::HashMap;
use std::time::Duration;

use futures::{Stream, StreamExt};
use stream_demux_hub::{Hub, Overflow, Terms};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::symbols;

/// Clients read prices as they come, or what has changed after each pause.
///
/// Returns the sum of the prices that the clients show at the end.
pub async fn run(
    updates: impl Stream<Item = (u32, u64)> + Send + 'static,
    pause: Option<Duration>,
) -> u64 {
    let (hub, mut clients) = (Hub::new(), JoinSet::new());
    let terms = Terms::new().buffer(50).overflow(Overflow::Conflate);
    for client in 0..300 {
        let mut prices = hub.subscribe_with(symbols(client), terms);
        clients.spawn(async move {
            let (mut screen, mut changed) = (HashMap::new(), Vec::new());
            while prices.recv_many(&mut changed, 50).await > 0 {
                // A price that was left out is out of date.
                screen.extend(changed.drain(..).flatten());
                if let Some(pause) = pause {
                    sleep(pause).await;
                }
            }
            screen.into_values().sum::<u64>()
        });
    }
    let publish = async |(symbol, price)| hub.publish(symbol, (symbol, price)).await.expect("open");
    updates.for_each(publish).await;
    drop(hub);
    clients.join_all().await.into_iter().sum()
}
