//! What do the others lose when one of a thousand sinks is never ready again?

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use futures::Sink;
use futures::executor::block_on;
use stream_demux::{Attach, DemuxStreamExt, Overflow};

use crate::measure::{Contender, Group, Run};
use crate::parts::{Clock, Item, Numbers};

const SINKS: u64 = 1_000;

/// None is stuck, or one is, under each policy that does not wait for it.
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
struct Maybe {
    stuck: bool,
}

impl Sink<Item> for Maybe {
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

/// The run's items are those of the others.
fn route(items: u64, stuck: Option<u64>, overflow: Overflow) -> Run {
    let clock = Clock::default();
    let attach =
        |key| Attach::new(key, Maybe { stuck: stuck == Some(key) }).buffer(8).overflow(overflow);
    let orders = futures::stream::iter((0..SINKS).map(attach));
    let mut for_it = 0;
    let input = Numbers::new(items, SINKS, &clock);
    let key = |item: &Item| {
        for_it += u64::from(item.key == 7);
        item.key
    };
    // The stuck one would keep it from ever completing: the end of the input is enough.
    let totals = {
        let mut demux = pin!(input.demux_by(key, orders));
        block_on(poll_fn(|cx| match demux.as_mut().poll(cx) {
            Poll::Pending if !clock.is_over() => Poll::Pending,
            _ => Poll::Ready(()),
        }));
        demux.totals()
    };
    let fates = totals.delivered + totals.discarded + totals.unmatched + totals.queued;
    assert_eq!(fates, items, "each item has a fate: {totals:?}");
    let arrived = totals.delivered - if stuck.is_some() { 0 } else { for_it };
    clock.run(items - for_it, arrived)
}
