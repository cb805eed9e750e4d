//! What do many sinks cost that have nothing to do: one wake, and memory?

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

/// So many wakes, one at a time, each of one of so many full channels: somebody takes an item from
/// it, and the one that waits goes in. By whoever knows the channel; by a demux as it is by
/// default, whose input waits with that item; and by one that keeps the next item of each sink in a
/// queue.
#[must_use]
pub fn wake(sizes: &[Size], wakes: u64) -> Group {
    let mut contenders = Vec::new();
    for &Size { sinks, bare, waiting, queued } in sizes {
        let (mut state, mut walk) = (None, Walk::new(sinks));
        contenders.push(Contender::new(bare, wakes, move |wakes| {
            state.get_or_insert_with(|| Channels::new(sinks)).wake(&mut walk, wakes)
        }));
        let (mut state, mut walk) = (None, Walk::new(sinks));
        contenders.push(Contender::new(waiting, wakes, move |wakes| {
            state.get_or_insert_with(|| Demuxed::waiting(sinks)).wake_for_held(&mut walk, wakes)
        }));
        let (mut state, mut walk) = (None, Walk::new(sinks));
        contenders.push(Contender::new(queued, wakes, move |wakes| {
            state.get_or_insert_with(|| Demuxed::queued(sinks)).wake_for_queued(&mut walk, wakes)
        }));
    }
    Group::new("scale/one wake", contenders)
}

/// So many wakes of bare channels, once.
#[must_use]
pub fn wake_bare(sinks: u64, wakes: u64) -> Run {
    Channels::new(sinks).wake(&mut Walk::new(sinks), wakes)
}

/// So many wakes of sinks that the input waits for, once.
#[must_use]
pub fn wake_for_held(sinks: u64, wakes: u64) -> Run {
    Demuxed::waiting(sinks).wake_for_held(&mut Walk::new(sinks), wakes)
}

/// So many wakes of sinks that have an item queued, and the queueing of the next one each, once.
#[must_use]
pub fn wake_for_queued(sinks: u64, wakes: u64) -> Run {
    Demuxed::queued(sinks).wake_for_queued(&mut Walk::new(sinks), wakes)
}

/// A size that [`wake`] is asked for, and what its contenders are called.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "names")]
pub struct Size {
    pub sinks: u64,
    pub bare: &'static str,
    pub waiting: &'static str,
    pub queued: &'static str,
}

/// The sizes that [`wake`] is asked for.
pub const SIZES: [Size; 3] = [
    Size {
        sinks: 1_000,
        bare: "bare channels, 1000",
        waiting: "demux, 1000",
        queued: "demux, queued, 1000",
    },
    Size {
        sinks: 100_000,
        bare: "bare channels, 100000",
        waiting: "demux, 100000",
        queued: "demux, queued, 100000",
    },
    Size {
        sinks: 1_000_000,
        bare: "bare channels, 1000000",
        waiting: "demux, 1000000",
        queued: "demux, queued, 1000000",
    },
];

/// So many wakes are timed at a stretch; then, untimed, queues are filled up.
const STRETCH: u64 = 1_000;

/// A prime, so that a walk comes to every sink; about the golden section of a million, so that it
/// comes near none that it has just been at.
const STEP: u64 = 618_031;

/// Goes through all sinks, far from the last one each time, and comes to each equally often.
struct Walk {
    /// Where it has just been.
    at: u64,
    sinks: u64,
}

impl Walk {
    fn new(sinks: u64) -> Self {
        Self { at: 0, sinks }
    }

    fn next(&mut self) -> u64 {
        self.at = (self.at + STEP) % self.sinks;
        self.at
    }
}

/// Times `wakes` in stretches: `wake` is timed, and tells whether the right item was taken;
/// `refill` is not.
fn time<S>(
    state: &mut S,
    walk: &mut Walk,
    wakes: u64,
    wake: impl Fn(&mut S, u64) -> bool,
    refill: impl Fn(&mut S, u64),
) -> Run {
    let (mut elapsed, mut sent, mut arrived) = (Duration::ZERO, 0, 0);
    while sent < wakes {
        let stretch = (0..STRETCH.min(walk.sinks)).map(|_| walk.next()).collect::<Vec<_>>();
        let start = ThreadTime::now();
        for &sink in &stretch {
            arrived += u64::from(wake(state, sink));
        }
        elapsed += start.elapsed();
        sent += stretch.len() as u64;
        stretch.into_iter().for_each(|sink| refill(state, sink));
    }
    Run { elapsed, sent, arrived, allocations: 0 }
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
        sender.as_mut().start_send(sink).expect("its receiver is here");
        assert!(sender.poll_flush(&mut cx).is_pending());
    }

    /// An item is taken from a channel, and the next one goes in.
    fn wake(&mut self, walk: &mut Walk, wakes: u64) -> Run {
        let wake = |all: &mut Self, sink| {
            let taken = all.receivers[sink as usize].try_recv() == Ok(sink);
            all.push(sink);
            taken
        };
        time(self, walk, wakes, wake, |_, _| ())
    }
}

/// The same channels behind a demux.
struct Demuxed {
    demux: Pin<Box<dyn Future<Output = Totals>>>,
    feed: Rc<Cell<Option<u64>>>,
    receivers: Vec<Receiver<u64>>,
    /// For whom the item is that the input waits with, if it does.
    held: u64,
}

impl Demuxed {
    /// Each channel is full, and `buffer` more may be queued for it.
    fn new(sinks: u64, buffer: usize) -> Self {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..sinks).map(|_| channel(0)).unzip();
        let feed = Rc::new(Cell::new(None));
        let orders = stream::iter((0..sinks).zip(senders));
        let demux = Feed(Rc::clone(&feed)).demux_by(|item| *item, orders).buffer(buffer);
        let mut new = Self { demux: Box::pin(demux), feed, receivers, held: 0 };
        (0..sinks).for_each(|item| new.route(item));
        new
    }

    /// Without a buffer, which is the default, an item that cannot be sent waits, and the input
    /// with it: here the one for sink 0.
    fn waiting(sinks: u64) -> Self {
        let mut new = Self::new(sinks, 0);
        new.route(new.held);
        new
    }

    /// One more item is queued for each sink.
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
        self.feed.set(Some(item));
        // Orders come first, and a turn may end before the item: then the next one reads it.
        while self.feed.get().is_some() {
            self.poll();
        }
    }

    /// Takes the item that the channel of `sink` is full of, which wakes the sink.
    fn take(&mut self, sink: u64) -> bool {
        self.receivers[sink as usize].try_recv() == Ok(sink)
    }

    /// An item is taken from a channel, which wakes its sink; one poll sends the item that is held
    /// for it, and reads the next one, for another channel that is full.
    fn wake_for_held(&mut self, walk: &mut Walk, wakes: u64) -> Run {
        let wake = |all: &mut Self, next| {
            let held = std::mem::replace(&mut all.held, next);
            all.feed.set(Some(next));
            let taken = all.take(held);
            all.poll();
            taken & all.feed.get().is_none()
        };
        time(self, walk, wakes, wake, |_, _| ())
    }

    /// An item is taken from a channel, which wakes its sink, and one poll sends the queued one.
    fn wake_for_queued(&mut self, walk: &mut Walk, wakes: u64) -> Run {
        let wake = |all: &mut Self, sink| {
            let taken = all.take(sink);
            all.poll();
            taken
        };
        time(self, walk, wakes, wake, Self::route)
    }
}

/// An input that is given its items one by one.
struct Feed(Rc<Cell<Option<u64>>>);

impl Stream for Feed {
    type Item = u64;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u64>> {
        self.0.take().map_or(Poll::Pending, |item| Poll::Ready(Some(item)))
    }
}

/// A sink of 8 bytes that is always ready.
struct Null(#[expect(dead_code, reason = "its size counts")] u64);

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

/// Bytes of the heap for one attachment beyond its key and its sink: attached, and after each has
/// had an item. Needs [`alloc::Counting`].
#[must_use]
pub fn bytes_per_attachment(sinks: u64) -> (f64, f64) {
    let feed = Rc::new(Cell::new(None));
    let orders = stream::iter((0..sinks).map(|key| (key, Null(key))));
    let mut cx = Context::from_waker(Waker::noop());
    let mut demux = Box::pin(Feed(Rc::clone(&feed)).demux_by(|item| *item, orders));
    let attach = || {
        while demux.len() < sinks as usize {
            assert!(demux.as_mut().poll(&mut cx).is_pending());
        }
    };
    let ((), _, attached) = alloc::count(attach);
    let route = || {
        for item in 0..sinks {
            feed.set(Some(item));
            while feed.get().is_some() {
                assert!(demux.as_mut().poll(&mut cx).is_pending());
            }
        }
    };
    let ((), _, served) = alloc::count(route);
    let each = |bytes: i64| bytes as f64 / sinks as f64;
    let payload = size_of::<(u64, Null)>() as f64;
    (each(attached) - payload, each(attached + served) - payload)
}
