//! The cost of a copy for a member of a group.
//!
//! With sinks that only count, compared with routing an item among 1,000 keys; and with bounded
//! channels with live readers, compared with a loop over the same sinks.

use std::iter;

use futures::{Sink, SinkExt, stream};
use stream_demux::DemuxStreamExt;
use tokio::sync::{broadcast, mpsc};
use tokio::task::yield_now;

use crate::measure::{Contender, Group};
use crate::parts::Item;
use crate::readers::{
    CAPACITY, DEFAULT_BUDGET, Delivery, Job, LARGE_BUDGET, Received, futures_channel,
    on_local_pool, on_tokio, tokio_channel, tokio_sink,
};
use crate::route::{self, copy};

/// Copies to counting sinks, and items to one of 1,000 keys.
#[must_use]
pub fn counting(copies: u64) -> Group {
    Group::new(
        "multicast/counting sinks",
        [
            Contender::new("one of 1,000 keys", copies, |items| route::demux(1_000, items)),
            Contender::new("100 members", copies, |copies| copy(100, copies)),
            Contender::new("10,000 members", copies, |copies| copy(10_000, copies)),
        ],
    )
}

/// Copies to channels of tokio.
#[must_use]
pub fn tokio(readers: u64, copies: u64) -> Group {
    let contender = |name, run: fn(Job) -> _| Delivery::All.contender(name, readers, copies, run);
    Group::new(
        format!("multicast/tokio, {readers} readers"),
        [
            contender("demux", |job| {
                on_tokio(job, tokio_sink, |job, sinks| demux(job, sinks, DEFAULT_BUDGET))
            }),
            contender("feed", |job| on_tokio(job, tokio_sink, feed)),
            contender("send().await", |job| on_tokio(job, tokio_channel, send_to_tokio)),
            contender("broadcast", |job| {
                let (sender, _) = broadcast::channel(CAPACITY);
                let open = move |job, _| (sender.clone(), read_broadcast(job, sender.subscribe()));
                on_tokio(job, open, broadcast)
            }),
        ],
    )
}

/// Copies to channels of the futures crate.
#[must_use]
pub fn futures(readers: u64, copies: u64) -> Group {
    let contender = |name, run: fn(Job) -> _| Delivery::All.contender(name, readers, copies, run);
    Group::new(
        format!("multicast/futures, {readers} readers"),
        [
            contender("demux", |job| {
                on_local_pool(job, futures_channel, |job, sinks| demux(job, sinks, DEFAULT_BUDGET))
            }),
            contender("demux, budget 4,096", |job| {
                on_local_pool(job, futures_channel, |job, sinks| demux(job, sinks, LARGE_BUDGET))
            }),
            contender("feed", |job| on_local_pool(job, futures_channel, feed)),
            contender("send().await", |job| on_local_pool(job, futures_channel, send)),
        ],
    )
}

async fn demux<S: Sink<Item> + Unpin>(job: Job, sinks: Vec<S>, budget: usize) {
    let orders = stream::iter(iter::repeat(0).zip(sinks));
    stream::iter(job.input()).demux_by(|item| item.key, orders).multicast().budget(budget).await;
}

async fn feed<S: Sink<Item> + Unpin>(job: Job, mut sinks: Vec<S>) {
    for item in job.input() {
        for sink in &mut sinks {
            let _ = sink.feed(item).await;
        }
    }
}

async fn send<S: Sink<Item> + Unpin>(job: Job, mut sinks: Vec<S>) {
    for item in job.input() {
        for sink in &mut sinks {
            let _ = sink.send(item).await;
        }
    }
}

async fn send_to_tokio(job: Job, senders: Vec<mpsc::Sender<Item>>) {
    for item in job.input() {
        for sender in &senders {
            let _ = sender.send(item).await;
        }
    }
}

/// A broadcast channel drops items that a receiver is too slow for. To lose no item, the writer
/// waits for all receivers whenever the channel is full.
async fn broadcast(job: Job, senders: Vec<broadcast::Sender<Item>>) {
    let Some(sender) = senders.into_iter().next() else { return };
    for (number, item) in job.input().enumerate() {
        while number % CAPACITY == 0 && !sender.is_empty() {
            yield_now().await;
        }
        let _ = sender.send(item);
    }
}

async fn read_broadcast(job: Job, mut receiver: broadcast::Receiver<Item>) -> Received {
    let mut received = Received::default();
    loop {
        match receiver.recv().await {
            Ok(item) => received.add(job, 0, item),
            Err(broadcast::error::RecvError::Closed) => return received,
            Err(lagged) => panic!("{lagged}"),
        }
    }
}
