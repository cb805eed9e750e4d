//! How long is the longest turn with a million sinks attached?
//!
//! A turn is one `poll`: what other tasks of the thread wait for. The three that have the most to
//! do at once are looked at: tables that grow, the eviction of a large group, and the end of the
//! input.

use std::cell::Cell;
use std::iter;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use cpu_time::ThreadTime;
use futures::channel::mpsc;
use futures::{Stream, StreamExt, stream};
use stream_demux::{DemuxStreamExt, IntoOrder, Order};

use crate::parts::{Count, Item, Tally};

/// The sinks with a key of their own.
const KEYS: u64 = 1_000_000;
/// The sinks that share one key beside them.
const MEMBERS: u64 = 100_000;
/// Their key.
const GROUP: u64 = KEYS;

/// The longest turns of one life of a demux.
#[derive(Debug, Clone, Copy)]
pub struct Longest {
    /// While a million sinks were attached, for which room had been made.
    pub growth: Duration,
    /// While a group of 100,000 was evicted, with a million others attached.
    pub eviction: Duration,
    /// While the million that were left were closed.
    pub end: Duration,
}

/// Attaches, evicts and ends.
#[must_use]
pub fn turns() -> Longest {
    let tally = Tally::default();
    let keys = (0..KEYS).chain(iter::repeat_n(GROUP, MEMBERS as usize));
    let attach = keys.map(move |key| (key, Count(tally.clone())).into_order());
    let (order, later) = mpsc::unbounded();
    let over = Rc::new(Cell::new(false));
    let input = Ending(Rc::clone(&over));
    let orders = stream::iter(attach).chain(later);
    let demux = input.demux_by(|item| item.key, orders).multicast();
    let mut demux = Box::pin(demux.with_capacity((KEYS + MEMBERS) as usize));

    // The group is attached last, so this ends before its first member is.
    let growth = longest(|| {
        assert!(poll(&mut demux).is_pending());
        demux.len() < KEYS as usize
    });
    while demux.len() < (KEYS + MEMBERS) as usize {
        assert!(poll(&mut demux).is_pending());
    }
    order.unbounded_send(Order::Evict(GROUP)).expect("the demux is there");
    let eviction = longest(|| {
        assert!(poll(&mut demux).is_pending());
        demux.totals().detached < MEMBERS
    });
    over.set(true);
    let end = longest(|| poll(&mut demux).is_pending());
    assert_eq!(demux.totals().detached, KEYS + MEMBERS);
    Longest { growth, eviction, end }
}

fn poll<D: Future>(demux: &mut Pin<Box<D>>) -> Poll<D::Output> {
    demux.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// The longest of the turns that are taken until one returns `false`. What the thread ran counts,
/// not what it waited for the processor.
fn longest(mut turn: impl FnMut() -> bool) -> Duration {
    let mut longest = Duration::ZERO;
    loop {
        let start = ThreadTime::now();
        let goes_on = turn();
        longest = longest.max(start.elapsed());
        if !goes_on {
            return longest;
        }
    }
}

/// An input without items, which ends when it is told to.
struct Ending(Rc<Cell<bool>>);

impl Stream for Ending {
    type Item = Item;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Item>> {
        if self.0.get() { Poll::Ready(None) } else { Poll::Pending }
    }
}
