//! The longest turn with a million sinks attached.
//!
//! A turn is one `poll`, during which the other tasks of the thread wait. Three phases have the
//! most work at once: growing tables, the eviction of a large group, and the end of the input.

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

/// The number of sinks that each have a different key.
const KEYS: u64 = 1_000_000;
/// The number of sinks in the group.
const MEMBERS: u64 = 100_000;
/// The key of the group.
const GROUP: u64 = KEYS;

/// The longest turn in each phase of a demux.
#[derive(Debug, Clone, Copy)]
pub struct Longest {
    /// While a million sinks were attached, with capacity reserved.
    pub growth: Duration,
    /// While a group of 100,000 sinks was evicted, with a million others attached.
    pub eviction: Duration,
    /// While the remaining million sinks were closed.
    pub end: Duration,
}

/// Measures the longest turn in each phase.
#[must_use]
pub fn turns() -> Longest {
    let tally = Tally::default();
    let keys = (0..KEYS).chain(iter::repeat_n(GROUP, MEMBERS as usize));
    let attach = keys.map(move |key| (key, Count(tally.clone())).into_order());
    let (sender, later_orders) = mpsc::unbounded();
    let ended = Rc::new(Cell::new(false));
    let input = SwitchedInput(Rc::clone(&ended));
    let orders = stream::iter(attach).chain(later_orders);
    let demux = input.demux_by(|item| item.key, orders).multicast();
    let mut demux = Box::pin(demux.with_capacity((KEYS + MEMBERS) as usize));

    // The group is attached last, so this phase ends before its first member is attached.
    let growth = longest(|| {
        assert!(poll(&mut demux).is_pending());
        demux.len() < KEYS as usize
    });
    while demux.len() < (KEYS + MEMBERS) as usize {
        assert!(poll(&mut demux).is_pending());
    }
    sender.unbounded_send(Order::Evict(GROUP)).expect("the receiver is open");
    let eviction = longest(|| {
        assert!(poll(&mut demux).is_pending());
        demux.totals().detached < MEMBERS
    });
    ended.set(true);
    let end = longest(|| poll(&mut demux).is_pending());
    assert_eq!(demux.totals().detached, KEYS + MEMBERS);
    Longest { growth, eviction, end }
}

fn poll<D: Future>(demux: &mut Pin<Box<D>>) -> Poll<D::Output> {
    demux.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Calls `turn` until it returns `false`, and returns the longest time of a call. Counts processor
/// time of the thread.
fn longest(mut turn: impl FnMut() -> bool) -> Duration {
    let mut longest = Duration::ZERO;
    loop {
        let start = ThreadTime::now();
        let continues = turn();
        longest = longest.max(start.elapsed());
        if !continues {
            return longest;
        }
    }
}

/// An input without items that ends when its flag is set.
struct SwitchedInput(Rc<Cell<bool>>);

impl Stream for SwitchedInput {
    type Item = Item;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Item>> {
        if self.0.get() { Poll::Ready(None) } else { Poll::Pending }
    }
}
