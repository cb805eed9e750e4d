//! Handles orders: those of a customer one after the other, customers side by side.

use std::time::Duration;

use futures::Stream;
use stream_demux_hub::{Workers, for_each_by_key};

/// Returns the customers whose orders took too long after `stop`.
pub async fn run<H, Fut>(
    orders: impl Stream<Item = (u64, u64)> + Send + 'static,
    stop: impl Future<Output = ()>,
    handle: H,
) -> Vec<u64>
where
    H: Fn(u64, u64) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let settings = Workers::new().idle_timeout(Duration::from_secs(60));
    let mut run = for_each_by_key(
        orders,
        |&(customer, _)| customer,
        settings,
        move |customer, mut orders| {
            let handle = handle.clone();
            async move {
                while let Some((_, order)) = orders.recv().await {
                    handle(customer, order).await;
                }
            }
        },
    );
    tokio::select! {
        done = &mut run => done.hung,
        () = stop => run.shutdown(Duration::from_secs(5)).await.hung,
    }
}
