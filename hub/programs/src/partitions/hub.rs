//! Handles the orders of a partitioned log: 200 customers at a time, those of one in order.

use std::time::Duration;

use futures::Stream;
use stream_demux_hub::{Progress, Ticket, Workers, for_each_by_key};

use super::{Commit, Handle};

/// Commits positions each second and at the end, which is at most five seconds after `stop` if `handle`
/// does not block its thread. Returns the partitions and offsets of the orders that are not done.
pub async fn run(
    log: impl Stream<Item = (u32, u64, u64)> + Send + 'static,
    mut stop: impl Future<Output = ()> + Unpin,
    handle: Handle,
    commit: Commit,
) -> Vec<(u32, u64)> {
    let progress = Progress::new();
    let log = progress.track(log, |&(partition, offset, _)| (partition, offset));
    let customer = |(order, _): &((u32, u64, u64), Ticket)| order.2;
    let workers = Workers::new().concurrency(200);
    let mut run = for_each_by_key(log, customer, workers, move |_, mut orders| async move {
        while let Some(((_, offset, customer), ticket)) = orders.recv().await {
            handle(customer, offset).await;
            ticket.done();
        }
    });
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            _ = &mut run => break,
            () = &mut stop => break,
            _ = tick.tick() => progress.committable().into_iter().for_each(commit),
        }
    }
    run.shutdown(Duration::from_secs(5)).await;
    progress.committable().into_iter().for_each(commit);
    progress.open()
}
