//! The same with a `broadcast` channel for each topic.

use std::collections::HashMap;

use futures::{Stream, StreamExt};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::JoinSet;

/// Returns how many items were received, by all.
pub async fn run(items: impl Stream<Item = (u64, u64)> + Send + 'static) -> u64 {
    let (mut topics, mut readers) = (HashMap::new(), JoinSet::new());
    for n in 0..1_000 {
        let topic = topics.entry(n % 50).or_insert_with(|| broadcast::channel(1_024).0);
        let mut items = topic.subscribe();
        readers.spawn(async move {
            let mut count = 0;
            loop {
                match items.recv().await {
                    Ok(_) => count += 1,
                    Err(RecvError::Lagged(lost)) => panic!("{lost} are lost"),
                    Err(RecvError::Closed) => return count,
                }
            }
        });
    }
    items.for_each(async |(topic, item)| assert!(topics[&topic].send(item).is_ok())).await;
    drop(topics);
    readers.join_all().await.into_iter().sum()
}
