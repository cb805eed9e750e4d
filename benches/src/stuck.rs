//! The cost of sinks that are never ready again: one among a thousand, or all of a group.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use cpu_time::ThreadTime;
use futures::executor::block_on;
use futures::{Sink, StreamExt, stream};
use stream_demux::{Attach, DemuxStreamExt, Lease, Overflow};

use crate::measure::{Contender, Group, Run};
use crate::parts::{Clock, Item, Numbers};

const SINKS: u64 = 1_000;

/// Compares no stuck sink with one, for each policy that does not hold the input.
#[must_use]
pub fn group(items: u64) -> Group {
    let stuck =
        |name, overflow| Contender::new(name, items, move |items| route(items, Some(7), overflow));
    Group::new(
        "stuck/one of 1000",
        [
            Contender::new("none stuck", items, |items| route(items, None, Overflow::DropNewest)),
            stuck("DropNewest", Overflow::DropNewest),
            stuck("DropOldest", Overflow::DropOldest),
            stuck("Evict", Overflow::Evict),
        ],
    )
}

/// A sink that is always ready, or never.
struct TestSink {
    stuck: bool,
}

impl Sink<Item> for TestSink {
    type Error = ();

    #[inline]
    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        if self.stuck { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    #[inline]
    fn start_send(self: Pin<&mut Self>, item: Item) -> Result<(), ()> {
        std::hint::black_box(item);
        Ok(())
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        if self.stuck { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    #[inline]
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        if self.stuck { Poll::Pending } else { Poll::Ready(Ok(())) }
    }
}

/// Routes items to all sinks. The run counts only the items for sinks that are not stuck.
fn route(items: u64, stuck: Option<u64>, overflow: Overflow) -> Run {
    let clock = Clock::default();
    let attach =
        |key| Attach::new(key, TestSink { stuck: stuck == Some(key) }).buffer(8).overflow(overflow);
    let orders = stream::iter((0..SINKS).map(attach));
    let mut for_stuck = 0;
    let input = Numbers::new(items, SINKS, &clock);
    let key = |item: &Item| {
        for_stuck += u64::from(item.key == 7);
        item.key
    };
    // With a stuck sink the demux does not complete, so the run ends with the input.
    let totals = {
        let mut demux = pin!(input.demux_by(key, orders));
        block_on(poll_fn(|cx| match demux.as_mut().poll(cx) {
            Poll::Pending if !clock.is_stopped() => Poll::Pending,
            _ => Poll::Ready(()),
        }));
        demux.totals()
    };
    let fates = totals.delivered + totals.discarded + totals.unmatched + totals.queued;
    assert_eq!(fates, items, "each item has one fate: {totals:?}");
    let arrived = totals.delivered - if stuck.is_some() { 0 } else { for_stuck };
    clock.run(items - for_stuck, arrived)
}

/// Evicts stuck members of a group, which an item is held for, one after another: an eviction must
/// not cost more in a larger group. Either all members are stuck, or half of them, attached first,
/// are ready.
#[must_use]
pub fn blockers() -> Group {
    let evict = |name, blockers, ready| {
        Contender::new(name, blockers, move |blockers| evict_blockers(blockers, ready))
    };
    Group::new(
        "stuck/blockers of a group, evicted one by one",
        [
            evict("1,000", 1_000, 0),
            evict("4,000", 4_000, 0),
            evict("1,000 behind 1,000", 1_000, 1_000),
            evict("4,000 behind 4,000", 4_000, 4_000),
        ],
    )
}

/// Drops the lease of the member that the input is blocked on, until it is not blocked. An eviction
/// counts as an item.
fn evict_blockers(blockers: u64, ready: u64) -> Run {
    let members = (0..ready + blockers).map(|tag| leased(tag, tag >= ready));
    let (leases, attaches): (Vec<_>, Vec<_>) = members.unzip();
    let mut leases = leases.into_iter().map(Some).collect::<Vec<_>>();
    let input = stream::iter([Item { key: 0, value: 0 }]).chain(stream::pending());
    let demux = input.demux_by(|item| item.key, stream::iter(attaches)).multicast();
    let mut demux = pin!(demux);
    let mut cx = Context::from_waker(Waker::noop());
    while demux.blocked_on().is_none() {
        assert!(demux.as_mut().poll(&mut cx).is_pending());
    }
    let start = ThreadTime::now();
    while let Some(blocker) = demux.blocked_on() {
        drop(
            leases[blocker.tag as usize]
                .take()
                .expect("a member that was evicted does not block the input"),
        );
        assert!(demux.as_mut().poll(&mut cx).is_pending());
    }
    let elapsed = start.elapsed();
    let totals = demux.totals();
    assert_eq!((totals.queued, totals.delivered), (0, ready), "the ready members receive the item");
    Run::new(elapsed, blockers, totals.detached)
}

/// Returns a member of the group and its lease.
fn leased(tag: u64, stuck: bool) -> (Lease, Attach<u64, TestSink>) {
    let mut lease = Lease::new();
    let attach = Attach::new(0, TestSink { stuck }).tag(tag).leased(&mut lease);
    (lease, attach)
}
