//! Routes items to sinks that are always ready and only add up: a bare loop, a demux, and a demux
//! that sends copies to a group.
//!
//! An item is `Copy` and has 16 bytes. The orders channel is idle after the sinks are attached.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures::executor::block_on;
use futures::{Sink, Stream};
use hashbrown::HashMap;
use stream_demux::DemuxStreamExt;

use crate::measure::Run;
use crate::parts::{Clock, Count, Numbers, Tally};

/// The lower bound: a look-up and the calls to the sink.
#[must_use]
pub fn bare(keys: u64, items: u64) -> Run {
    let (clock, tally) = (Clock::default(), Tally::default());
    let mut sinks = (0..keys).map(|key| (key, Count(tally.clone()))).collect::<HashMap<_, _>>();
    let mut input = Numbers::new(items, keys, &clock);
    let mut cx = Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(item)) = Pin::new(&mut input).poll_next(&mut cx) {
        if let Some(sink) = sinks.get_mut(&item.key) {
            deliver(sink, item, &mut cx);
        }
    }
    clock.run(items, tally.arrived(items))
}

/// Sends an item to a sink that is ready.
#[inline]
pub fn deliver<T, S: Sink<T> + Unpin>(sink: &mut S, item: T, cx: &mut Context<'_>) {
    if let Poll::Ready(Ok(())) = Pin::new(&mut *sink).poll_ready(cx) {
        let _ = Pin::new(sink).start_send(item);
    }
}

/// A demux with the default settings.
#[must_use]
pub fn demux(keys: u64, items: u64) -> Run {
    demux_flushing_every(16_384, keys, items)
}

/// A demux with another flush window. If there are many more keys than items in a window, nearly
/// each item causes a flush.
#[must_use]
pub fn demux_flushing_every(window: usize, keys: u64, items: u64) -> Run {
    let (clock, tally) = (Clock::default(), Tally::default());
    let (sender, orders) = attached(0..keys, &tally);
    let demux = Numbers::new(items, keys, &clock).demux_by(|item| item.key, orders.into_stream());
    let totals = block_on(demux.flush_every(window));
    drop(sender);
    assert_eq!((totals.received, totals.delivered), (items, items));
    clock.run(items, tally.arrived(items))
}

/// Sends items to a group of counting sinks until they have received `copies` copies.
///
/// # Panics
///
/// Panics if `copies` is not a multiple of `members`.
#[must_use]
pub fn copy(members: u64, copies: u64) -> Run {
    assert!(copies.is_multiple_of(members), "`copies` is not a multiple of `members`");
    let (items, clock, tally) = (copies / members, Clock::default(), Tally::default());
    let (order, orders) = attached((0..members).map(|_| 0), &tally);
    let input = Numbers::new(items, 1, &clock);
    let demux = input.demux_by(|item| item.key, orders.into_stream()).multicast();
    let totals = block_on(demux);
    drop(order);
    assert_eq!((totals.received, totals.delivered), (items, copies));
    clock.run(copies, tally.copies_arrived(items, members))
}

/// Both ends of an orders channel.
pub type Orders<K> = (flume::Sender<(K, Count)>, flume::Receiver<(K, Count)>);

/// Returns an orders channel that contains an order for each key.
pub fn attached<K>(keys: impl IntoIterator<Item = K>, tally: &Tally) -> Orders<K> {
    let (sender, orders) = flume::unbounded();
    for key in keys {
        sender.send((key, Count(tally.clone()))).expect("the receiver is open");
    }
    (sender, orders)
}
