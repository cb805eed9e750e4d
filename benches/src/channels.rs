//! Bounded channels with live readers, one for each key: what a demux costs beyond a loop over a
//! map of senders.

use futures::{Sink, SinkExt, stream};
use hashbrown::HashMap;
use stream_demux::DemuxStreamExt;
use tokio::sync::mpsc;

use crate::measure::Group;
use crate::parts::Item;
use crate::readers::{
    DEFAULT_BUDGET, Delivery, Job, LARGE_BUDGET, futures_channel, on_local_pool, on_tokio,
    tokio_channel, tokio_sink,
};

/// Channels of tokio.
#[must_use]
pub fn tokio(readers: u64, items: u64) -> Group {
    let contender = |name, run: fn(Job) -> _| Delivery::One.contender(name, readers, items, run);
    Group::new(
        format!("channels/tokio, {readers} readers"),
        [
            contender("demux", |job| {
                on_tokio(job, tokio_sink, |job, sinks| demux(job, sinks, DEFAULT_BUDGET))
            }),
            contender("feed", |job| on_tokio(job, tokio_sink, feed)),
            contender("send().await", |job| on_tokio(job, tokio_channel, send)),
        ],
    )
}

/// Channels of the futures crate.
#[must_use]
pub fn futures(readers: u64, items: u64) -> Group {
    let contender = |name, run: fn(Job) -> _| Delivery::One.contender(name, readers, items, run);
    Group::new(
        format!("channels/futures, {readers} readers"),
        [
            contender("demux", |job| {
                on_local_pool(job, futures_channel, |job, sinks| demux(job, sinks, DEFAULT_BUDGET))
            }),
            contender("demux, budget 4,096", |job| {
                on_local_pool(job, futures_channel, |job, sinks| demux(job, sinks, LARGE_BUDGET))
            }),
            contender("feed", |job| on_local_pool(job, futures_channel, feed)),
        ],
    )
}

async fn demux<S: Sink<Item> + Unpin>(job: Job, sinks: Vec<S>, budget: usize) {
    let orders = stream::iter((0..).zip(sinks));
    stream::iter(job.input()).demux_by(|item| item.key, orders).budget(budget).await;
}

/// Feeds a map of sinks. `SinkExt::send` would flush each item, and a flush waits while the channel
/// is full.
async fn feed<S: Sink<Item> + Unpin>(job: Job, sinks: Vec<S>) {
    let mut sinks = (0..).zip(sinks).collect::<HashMap<_, _>>();
    for item in job.input() {
        if let Some(sink) = sinks.get_mut(&item.key) {
            let _ = sink.feed(item).await;
        }
    }
}

/// Sends to a map of tokio's senders, without an adapter to `Sink`.
async fn send(job: Job, senders: Vec<mpsc::Sender<Item>>) {
    let senders = (0..).zip(senders).collect::<HashMap<_, _>>();
    for item in job.input() {
        if let Some(sender) = senders.get(&item.key) {
            let _ = sender.send(item).await;
        }
    }
}
