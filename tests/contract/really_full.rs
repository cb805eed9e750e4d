//! Sinks that are really full, because their readers stopped or never read, have their policy
//! applied: exactly the items for which there is no room are discarded, and a sink is evicted once.
//!
//! Tests guarantee 3 and the attachment rule on `Overflow` with channels on every runtime of tokio.
//! `room_for_everything` is the opposite.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Wake, Waker};

use crate::common::real::{
    Fates, Flavor, POLICIES, Pipe, RUNTIMES, Receipt, Receiving, Sharing, assert_settled,
};
use futures::{StreamExt, future, stream};
use stream_demux::{Attach, Demux, DemuxStreamExt, Overflow, Totals};
use tokio::sync::{mpsc, watch};
use tokio::task;

/// The room of a channel that is not read.
const ROOM: usize = 4;
const ITEMS: u32 = 110;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
struct Case {
    runtime: Flavor,
    /// One sink; or the fifth of ten members, the others of which are read; or two that share.
    sharing: Sharing,
    channel: Pipe,
    overflow: Overflow,
    buffer: usize,
    /// The reader stops after this many items.
    read: u32,
}

/// The result of a run.
struct Outcome {
    /// When the demux had nothing more to do.
    fates: BTreeMap<(&'static str, &'static str), usize>,
    totals: Totals,
    /// What was read from the sinks that are full, after the demux had nothing more to do.
    kept: Vec<u32>,
    /// What was read from each other member of the group.
    others: Vec<Vec<u32>>,
}

impl Case {
    fn full_sinks(self) -> usize {
        if self.sharing == Sharing::Balance { 2 } else { 1 }
    }

    /// The items that the sinks have room for, in their channels and queues.
    fn kept(self) -> Vec<u32> {
        let items: Vec<_> = (self.read..ITEMS).collect();
        let sent = self.full_sinks() * ROOM;
        let places = self.full_sinks() * self.buffer.max(1);
        let (sent, queued) = match self.overflow {
            Overflow::DropNewest => (sent + places, 0),
            Overflow::DropOldest => (sent, places),
            Overflow::Conflate => (sent, 1),
            Overflow::Evict => (sent, 0),
            _ => (items.len(), 0),
        };
        [&items[..sent], &items[items.len() - queued..]].concat()
    }

    /// The items that the demux reads before it has nothing more to do.
    fn received(self) -> u64 {
        let waits = self.overflow == Overflow::Wait;
        let blocked = self.read as usize + self.full_sinks() * (ROOM + self.buffer) + 1;
        if waits { blocked as u64 } else { u64::from(ITEMS) }
    }

    async fn program(self) -> Outcome {
        let (mut sinks, mut full, mut others) = (Vec::new(), Vec::new(), Vec::new());
        let multicast = self.sharing == Sharing::Multicast;
        for n in 0..if multicast { 10 } else { self.full_sinks() } {
            if multicast && n != 4 {
                let (sink, receipt) = self.channel.open(ITEMS as usize).await;
                sinks.push(Attach::new((), sink));
                others.push(task::spawn(receipt.collect::<Vec<_>>()));
            } else {
                // A channel of `futures` has a place more for its sender.
                let room = if self.channel == Pipe::Futures { ROOM - 1 } else { ROOM };
                let (sink, receipt) = self.channel.open(room).await;
                sinks.push(Attach::new((), sink));
                full.push(receipt);
            }
        }
        let fates = Fates::default();
        let (items, input) = mpsc::channel(ITEMS as usize);
        let demux = Receiving(input).demux_by(|_| (), stream::iter(sinks)).hooks(fates.clone());
        let demux = demux.overflow(self.overflow).buffer(self.buffer);
        let demux = match self.sharing {
            Sharing::Alone => demux,
            Sharing::Multicast => demux.multicast(),
            Sharing::Balance => demux.balance(),
        };
        let (report, mut at_rest) = watch::channel(Totals::default());
        let demux = task::spawn(reporting(demux, Demux::totals, report));

        for n in 0..ITEMS {
            items.send(n).await.expect("the demux was dropped");
            if n < self.read {
                assert_eq!(full[0].next().await, Some(n));
            }
        }
        let received = self.received();
        at_rest.wait_for(|totals| totals.received == received).await.expect("the demux ended");
        let fates = fates.counts();
        drop(items);
        let kept = future::join_all(full.into_iter().map(Receipt::collect::<Vec<_>>)).await;
        let mut kept = kept.concat();
        kept.sort_unstable();
        let others = future::try_join_all(others).await.expect("a reader panicked");
        Outcome { fates, totals: demux.await.expect("the demux panicked"), kept, others }
    }

    #[track_caller]
    fn check(self) {
        let Outcome { fates, totals, kept, others } = self.runtime.run(self.program());
        assert_settled(totals);
        assert_eq!(kept, self.kept(), "{self:?}: {totals:?}");
        assert!(
            others.iter().all(|read| read.iter().copied().eq(0..ITEMS)),
            "{self:?}: {totals:?}"
        );

        let count = |what, why| fates.get(&(what, why)).copied().unwrap_or(0);
        let evicted = count("detached", "overflowed");
        let (overflowed, conflated) =
            (count("discarded", "overflowed"), count("discarded", "conflated"));
        let without_room = (ITEMS - self.read) as usize - kept.len();
        let expected = match self.overflow {
            Overflow::Wait => (0, 0, 0),
            Overflow::Conflate => (0, without_room, 0),
            // How many items are unmatched depends on when they were read.
            Overflow::Evict if self.sharing == Sharing::Alone => {
                (without_room - count("unmatched", ""), 0, 1)
            }
            Overflow::Evict => (overflowed, 0, 1),
            _ => (without_room, 0, 0),
        };
        assert_eq!((overflowed, conflated, evicted), expected, "{self:?}: {fates:?}");
        assert!(evicted == 0 || overflowed > self.buffer, "{self:?}: {fates:?}");
    }
}

/// Runs a demux. Reports its totals whenever it returns `Pending` without having woken itself.
async fn reporting<D: Future<Output = Totals>>(
    demux: D,
    totals: fn(&D) -> Totals,
    report: watch::Sender<Totals>,
) -> Totals {
    /// A waker, and whether it has fired.
    struct Watched(Waker, AtomicBool);

    impl Wake for Watched {
        fn wake(self: Arc<Self>) {
            self.1.store(true, SeqCst);
            self.0.wake_by_ref();
        }
    }

    let mut demux = pin!(demux);
    poll_fn(|cx| {
        let task = Arc::new(Watched(cx.waker().clone(), AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&task));
        let polled = demux.as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_pending() && !task.1.load(SeqCst) {
            report.send_replace(totals(&demux));
        }
        polled
    })
    .await
}

/// Checks both kinds of channels on each runtime.
#[track_caller]
fn check_everywhere(sharing: Sharing, overflow: Overflow, buffer: usize, read: u32) {
    for runtime in RUNTIMES {
        for channel in [Pipe::Tokio, Pipe::Futures] {
            Case { runtime, sharing, channel, overflow, buffer, read }.check();
        }
    }
}

#[test]
fn sink_that_is_not_read_or_no_longer_loses_exactly_what_has_no_room() {
    for overflow in POLICIES {
        for (buffer, read) in [(0, 0), (2, 0), (64, 0), (0, 10), (2, 10)] {
            check_everywhere(Sharing::Alone, overflow, buffer, read);
        }
    }
}

#[test]
fn member_whose_reader_stops_loses_items_and_the_others_lose_none() {
    for overflow in POLICIES {
        for buffer in [0, 2, 64] {
            check_everywhere(Sharing::Multicast, overflow, buffer, 10);
        }
    }
}

#[test]
fn sinks_that_share_items_and_are_not_read_lose_exactly_what_has_no_room() {
    // Under `Evict`, how many of the sinks are evicted depends on when the items are read.
    for overflow in POLICIES.into_iter().filter(|overflow| *overflow != Overflow::Evict) {
        check_everywhere(Sharing::Balance, overflow, 2, 0);
    }
}
