//! 1,000 subscribers of 50 topics.

use futures::{Stream, StreamExt};
use stream_demux_hub::{Hub, Lagged};
use tokio::task::JoinSet;

/// Returns how many items were received, by all.
pub async fn run(items: impl Stream<Item = (u64, u64)> + Send + 'static) -> u64 {
    let (hub, mut readers) = (Hub::new(), JoinSet::new());
    for n in 0..1_000 {
        let mut items = hub.subscribe(n % 50);
        readers.spawn(async move {
            let mut count = 0;
            while let Some(item) = items.recv().await {
                count += item.map_or_else(|Lagged(lost)| panic!("{lost} are lost"), |_| 1);
            }
            count
        });
    }
    items.for_each(async |(topic, item)| hub.publish(topic, item).await.expect("it is open")).await;
    drop(hub);
    readers.join_all().await.into_iter().sum()
}
