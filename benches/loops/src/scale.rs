//! The cost of many idle sinks: for one wake, and in memory.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use cpu_time::ThreadTime;
use futures::channel::mpsc::{Receiver, Sender, channel};
use futures::{Sink, Stream, stream};
use stream_demux::{DemuxStreamExt, Totals};

use crate::alloc;
use crate::measure::{Contender, Group, Run};

/// Wakes one sink after another, each of which is a full channel: an item is received from it, and
/// the waiting item is sent. Compares bare channels, a demux by default, whose input is blocked on
/// that item, and a demux that has the next item of each sink in a queue.
#[must_use]
pub fn wake(sizes: &[Size], wakes: u64) -> Group {
    let mut contenders = Vec::new();
    for &Size { sinks, bare, blocked, queued } in sizes {
        let (mut state, mut walk) = (None, Walk::new(sinks));
        contenders.push(Contender::new(bare, wakes, move |wakes| {
            state.get_or_insert_with(|| Channels::new(sinks)).wake(&mut walk, wakes)
        }));
        let (mut state, mut walk) = (None, Walk::new(sinks));
        contenders.push(Contender::new(blocked, wakes, move |wakes| {
            state
                .get_or_insert_with(|| DemuxedChannels::blocked(sinks))
                .wake_for_held(&mut walk, wakes)
        }));
        let (mut state, mut walk) = (None, Walk::new(sinks));
        contenders.push(Contender::new(queued, wakes, move |wakes| {
            state
                .get_or_insert_with(|| DemuxedChannels::queued(sinks))
                .wake_for_queued(&mut walk, wakes)
        }));
    }
    Group::new("scale/one wake", contenders)
}

/// Runs the loop over bare channels once.
#[must_use]
pub fn wake_bare(sinks: u64, wakes: u64) -> Run {
    Channels::new(sinks).wake(&mut Walk::new(sinks), wakes)
}

/// Runs the loop over sinks that the input is blocked on once.
#[must_use]
pub fn wake_for_held(sinks: u64, wakes: u64) -> Run {
    DemuxedChannels::blocked(sinks).wake_for_held(&mut Walk::new(sinks), wakes)
}

/// Runs the loop over sinks with a queued item once, including the refills of the queues.
#[must_use]
pub fn wake_for_queued(sinks: u64, wakes: u64) -> Run {
    DemuxedChannels::queued(sinks).wake_for_queued(&mut Walk::new(sinks), wakes)
}

/// A number of sinks for [`wake`], and the names of its contenders.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "names")]
pub struct Size {
    pub sinks: u64,
    pub bare: &'static str,
    pub blocked: &'static str,
    pub queued: &'static str,
}

/// The sizes for [`wake`].
pub const SIZES: [Size; 3] = [
    Size {
        sinks: 1_000,
        bare: "bare channels, 1000",
        blocked: "demux, 1000",
        queued: "demux, queued, 1000",
    },
    Size {
        sinks: 100_000,
        bare: "bare channels, 100000",
        blocked: "demux, 100000",
        queued: "demux, queued, 100000",
    },
    Size {
        sinks: 1_000_000,
        bare: "bare channels, 1000000",
        blocked: "demux, 1000000",
        queued: "demux, queued, 1000000",
    },
];

/// The number of wakes that are timed together. After each batch the queues are refilled, untimed.
const BATCH: u64 = 1_000;

/// A prime, so that a walk visits every sink. It is near the golden section of a million, so that
/// successive sinks are far apart.
const STEP: u64 = 618_031;

/// Visits all sinks equally often, each far from the previous one.
struct Walk {
    /// The sink that was visited last.
    position: u64,
    sinks: u64,
}

impl Walk {
    fn new(sinks: u64) -> Self {
        Self { position: 0, sinks }
    }

    fn next(&mut self) -> u64 {
        self.position = (self.position + STEP) % self.sinks;
        self.position
    }
}

/// Times at least `wakes` calls of `wake`, in batches. `wake` returns `true` if the right item was
/// received. `refill` is not timed.
fn time<S>(
    state: &mut S,
    walk: &mut Walk,
    wakes: u64,
    wake: impl Fn(&mut S, u64) -> bool,
    refill: impl Fn(&mut S, u64),
) -> Run {
    let (mut elapsed, mut sent, mut arrived) = (Duration::ZERO, 0, 0);
    while sent < wakes {
        let batch = (0..BATCH.min(walk.sinks)).map(|_| walk.next()).collect::<Vec<_>>();
        let start = ThreadTime::now();
        for &sink in &batch {
            arrived += u64::from(wake(state, sink));
        }
        elapsed += start.elapsed();
        sent += batch.len() as u64;
        batch.into_iter().for_each(|sink| refill(state, sink));
    }
    Run::new(elapsed, sent, arrived)
}

/// Full channels.
struct Channels {
    senders: Vec<Sender<u64>>,
    receivers: Vec<Receiver<u64>>,
}

impl Channels {
    fn new(sinks: u64) -> Self {
        let (senders, receivers) = (0..sinks).map(|_| channel(0)).unzip();
        let mut new = Self { senders, receivers };
        (0..sinks).for_each(|sink| new.push(sink));
        new
    }

    fn push(&mut self, sink: u64) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut sender = Pin::new(&mut self.senders[sink as usize]);
        assert!(sender.as_mut().poll_ready(&mut cx).is_ready());
        sender.as_mut().start_send(sink).expect("the receiver is open");
        assert!(sender.poll_flush(&mut cx).is_pending());
    }

    /// Receives an item from each channel and sends the next.
    fn wake(&mut self, walk: &mut Walk, wakes: u64) -> Run {
        let wake = |channels: &mut Self, sink| {
            let taken = channels.receivers[sink as usize].try_recv() == Ok(sink);
            channels.push(sink);
            taken
        };
        time(self, walk, wakes, wake, |_, _| ())
    }
}

/// The same channels behind a demux.
struct DemuxedChannels {
    demux: Pin<Box<dyn Future<Output = Totals>>>,
    next_item: Rc<Cell<Option<u64>>>,
    receivers: Vec<Receiver<u64>>,
    /// The sink that the held item is for, if the input is blocked.
    held: u64,
}

impl DemuxedChannels {
    /// Creates a demux with full channels, each with a queue of `buffer` items.
    fn new(sinks: u64, buffer: usize) -> Self {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..sinks).map(|_| channel(0)).unzip();
        let next_item = Rc::new(Cell::new(None));
        let orders = stream::iter((0..sinks).zip(senders));
        let demux =
            OneItemInput(Rc::clone(&next_item)).demux_by(|item| *item, orders).buffer(buffer);
        let mut new = Self { demux: Box::pin(demux), next_item, receivers, held: 0 };
        (0..sinks).for_each(|item| new.route(item));
        new
    }

    /// By default, without a buffer, the input is blocked on an item that cannot be sent: here on
    /// that for sink 0.
    fn blocked(sinks: u64) -> Self {
        let mut new = Self::new(sinks, 0);
        new.route(new.held);
        new
    }

    /// With one queued item per sink.
    fn queued(sinks: u64) -> Self {
        let mut new = Self::new(sinks, 1);
        (0..sinks).for_each(|item| new.route(item));
        new
    }

    fn poll(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(self.demux.as_mut().poll(&mut cx).is_pending());
    }

    fn route(&mut self, item: u64) {
        self.next_item.set(Some(item));
        // Orders are applied first, so a later turn may read the item.
        while self.next_item.get().is_some() {
            self.poll();
        }
    }

    /// Receives the item of a full channel, which wakes the sink.
    fn take(&mut self, sink: u64) -> bool {
        self.receivers[sink as usize].try_recv() == Ok(sink)
    }

    /// Receives an item from a channel, which wakes its sink. One poll sends the held item and
    /// reads the next one, for another full channel.
    fn wake_for_held(&mut self, walk: &mut Walk, wakes: u64) -> Run {
        let wake = |channels: &mut Self, next| {
            let held = std::mem::replace(&mut channels.held, next);
            channels.next_item.set(Some(next));
            let taken = channels.take(held);
            channels.poll();
            taken & channels.next_item.get().is_none()
        };
        time(self, walk, wakes, wake, |_, _| ())
    }

    /// Receives an item from a channel, which wakes its sink. One poll sends the queued item.
    fn wake_for_queued(&mut self, walk: &mut Walk, wakes: u64) -> Run {
        let wake = |channels: &mut Self, sink| {
            let taken = channels.take(sink);
            channels.poll();
            taken
        };
        time(self, walk, wakes, wake, Self::route)
    }
}

/// An input that yields the item in its cell.
struct OneItemInput(Rc<Cell<Option<u64>>>);

impl Stream for OneItemInput {
    type Item = u64;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u64>> {
        self.0.take().map_or(Poll::Pending, |item| Poll::Ready(Some(item)))
    }
}

/// A sink of 8 bytes that is always ready.
struct Null(#[expect(dead_code, reason = "it gives the sink its size")] u64);

impl Sink<u64> for Null {
    type Error = ();

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, _: u64) -> Result<(), ()> {
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }
}

/// Returns the bytes of the heap for one attachment beyond its key and its sink: when attached, and
/// after each has received an item. Needs [`alloc::Counting`].
#[must_use]
pub fn bytes_per_attachment(sinks: u64) -> (f64, f64) {
    let next_item = Rc::new(Cell::new(None));
    let orders = stream::iter((0..sinks).map(|key| (key, Null(key))));
    let mut cx = Context::from_waker(Waker::noop());
    let mut demux = Box::pin(OneItemInput(Rc::clone(&next_item)).demux_by(|item| *item, orders));
    let attach = || {
        while demux.len() < sinks as usize {
            assert!(demux.as_mut().poll(&mut cx).is_pending());
        }
    };
    let ((), _, attached) = alloc::count(attach);
    let route = || {
        for item in 0..sinks {
            next_item.set(Some(item));
            while next_item.get().is_some() {
                assert!(demux.as_mut().poll(&mut cx).is_pending());
            }
        }
    };
    let ((), _, served) = alloc::count(route);
    let each = |bytes: i64| bytes as f64 / sinks as f64;
    let payload = size_of::<(u64, Null)>() as f64;
    (each(attached) - payload, each(attached + served) - payload)
}
