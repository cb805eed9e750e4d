//! Inboxes behind a demux, on tokio's runtimes: what a reader gets, and what it is told to be
//! missing, is exactly what was published for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use futures::channel::mpsc;
use futures::{FutureExt, StreamExt, stream};
use stream_demux::{Attach, DemuxStreamExt, Lease, Totals};
use stream_demux_hub::{End, Inbox, InboxSink, Lagged, Overflow, inbox};
use tokio::task::{JoinSet, yield_now};

use crate::common::Dice;
use crate::runtimes::{RUNTIMES, run};

/// All attachments of a subscription at once, so that no item comes between them.
type Orders = mpsc::UnboundedSender<Vec<Attach<u64, InboxSink<u64>>>>;

const KEYS: u64 = 4;

/// Item `n` has this key.
fn key(n: u64) -> u64 {
    n % KEYS
}

/// What a reader has got so far, of the items with its keys.
struct Account {
    keys: Vec<u64>,
    /// The item that comes next; not known before the first, if others were published before.
    next: Option<u64>,
    received: u64,
}

impl Account {
    fn after(&self, n: u64) -> u64 {
        (n + 1..=n + KEYS).find(|&n| self.keys.contains(&key(n))).expect("there is a key")
    }

    fn add(&mut self, got: Result<u64, Lagged>) {
        match got {
            Ok(n) => {
                assert_eq!(n, *self.next.get_or_insert(n), "of {:?}", self.keys);
                self.next = Some(self.after(n));
                self.received += 1;
            }
            Err(Lagged(lost)) => {
                self.next = self.next.map(|next| (0..lost).fold(next, |n, _| self.after(n)));
            }
        }
    }
}

/// Attaches an inbox under some of the keys.
fn subscribe(
    orders: &Orders,
    keys: &[u64],
    capacity: usize,
    full: Overflow,
) -> (Inbox<u64>, Lease) {
    let ((sink, inbox), mut lease) = (inbox(capacity, full), Lease::new());
    let attach = keys.iter().map(|&key| Attach::new(key, sink.clone()).leased(&mut lease));
    let _ = orders.unbounded_send(attach.collect());
    (inbox, lease)
}

/// Subscribes, reads at its own pace, and now and then leaves and comes back.
async fn reader(orders: Orders, published: Arc<AtomicU64>, total: u64, mut dice: Dice) -> u64 {
    let mut received = 0;
    loop {
        let full = [Overflow::Wait, Overflow::DropOldest, Overflow::DropNewest, Overflow::Evict];
        let (full, capacity) = (full[dice.index(4)], 1 + dice.index(40));
        let keys = (0..KEYS).filter(|_| dice.index(2) == 0).collect::<Vec<_>>();
        let keys = if keys.is_empty() { vec![0] } else { keys };
        let before = published.load(SeqCst);
        let (mut inbox, lease) = subscribe(&orders, &keys, capacity, full);
        let mut account = Account { keys, next: None, received: 0 };
        if before == 0 {
            account.next = account.keys.first().copied();
        }
        let stays = dice.index(3) == 0;
        let leaves_after = dice.index(500) as u64;
        while let Some(got) = inbox.recv().await {
            account.add(got);
            if dice.index(20) == 0 {
                for _ in 0..dice.index(20) {
                    yield_now().await;
                }
            }
            if !stays && account.received > leaves_after {
                break;
            }
        }
        received += account.received;
        match inbox.end() {
            Some(End::Closed) => {
                let mut rest = Vec::new();
                while inbox.recv_many(&mut rest, 100).await > 0 {}
                received += rest.iter().filter(|got| got.is_ok()).count() as u64;
                for got in rest {
                    account.add(got);
                }
                // Everything up to the end of the input is accounted for.
                assert!(account.next.is_none_or(|next| next >= total), "{:?}", account.next);
                return received;
            }
            Some(End::Overflowed) => assert_eq!(full, Overflow::Evict),
            // The demux completed before it read the order.
            Some(end) => {
                assert_eq!((end, account.received), (End::Aborted, 0));
                return received;
            }
            None => {}
        }
        drop(lease);
    }
}

async fn program(seed: u64, readers: u64, total: u64) -> (Totals, u64) {
    let (orders, orders_in) = mpsc::unbounded();
    let (items, input) = tokio::sync::mpsc::channel(16);
    let input =
        stream::unfold(input, |mut input| async { input.recv().await.map(|item| (item, input)) });
    let demux = Box::pin(input).demux_by(|&n| key(n), orders_in.flat_map(stream::iter)).multicast();
    let demux = tokio::spawn(demux);

    let published = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for n in 0..readers {
        let dice = Dice::new(seed * 1_000 + n);
        tasks.spawn(reader(orders.clone(), Arc::clone(&published), total, dice));
    }
    drop(orders);
    let mut dice = Dice::new(seed);
    for n in 0..total {
        published.store(n + 1, SeqCst);
        items.send(n).await.expect("the demux runs");
        if dice.index(50) == 0 {
            yield_now().await;
        }
    }
    drop(items);
    let received = tasks.join_all().await.into_iter().sum();
    (demux.await.expect("the demux does not panic"), received)
}

#[test]
fn readers_that_stop_and_leave_and_return_know_what_they_have_missed() {
    for workers in RUNTIMES {
        for seed in 1..=6 {
            let (totals, received) = run(workers, program(seed, 12, 4_000));
            assert_eq!(totals.received, 4_000);
            assert!(received > 4_000, "only {received} items were received");
            assert_eq!(totals.attached, totals.detached);
        }
    }
}

/// The publisher waits until each burst is read, as a server waits for answers. The inbox has room
/// for a burst, so no reader may be cut off, however the runtime schedules it.
#[test]
fn healthy_readers_with_room_for_a_burst_are_never_evicted() {
    const ROOM: usize = 32;
    const BURST: u64 = ROOM as u64;
    for workers in RUNTIMES {
        let ends = run(workers, async {
            let (orders, orders_in) = mpsc::unbounded();
            let (items, input) = mpsc::unbounded();
            let demux =
                tokio::spawn(input.demux_by(|_| 0, orders_in.flat_map(stream::iter)).multicast());
            let (done, mut read) = mpsc::unbounded();
            let mut readers = JoinSet::new();
            for _ in 0..20 {
                let (mut inbox, lease) = subscribe(&orders, &[0], ROOM, Overflow::Evict);
                let done = done.clone();
                readers.spawn(async move {
                    let mut next = 0;
                    while let Some(got) = inbox.recv().await {
                        assert_eq!(got, Ok(next));
                        next += 1;
                        if next % BURST == 0 {
                            done.unbounded_send(()).expect("the publisher waits");
                        }
                    }
                    lease.disarm();
                    (next, inbox.end())
                });
            }
            drop((orders, done));
            for burst in 0..200 {
                for n in 0..BURST {
                    items.unbounded_send(burst * BURST + n).expect("the demux runs");
                }
                for _ in 0..20 {
                    assert!(read.next().await.is_some(), "a reader is gone in burst {burst}");
                }
            }
            drop(items);
            demux.await.expect("the demux does not panic");
            readers.join_all().await
        });
        assert_eq!(ends, vec![(200 * BURST, Some(End::Closed)); 20]);
    }
}

/// On one thread a reader runs before anything is dropped, even with room for a single item.
#[test]
fn readers_on_the_thread_of_the_demux_lose_nothing() {
    for full in [Overflow::DropOldest, Overflow::DropNewest, Overflow::Evict] {
        for capacity in [1, 3, 64] {
            let got = run(0, async move {
                let (orders, orders_in) = mpsc::unbounded();
                let (mut inbox, lease) = subscribe(&orders, &[0, 1, 2, 3], capacity, full);
                let input = stream::iter(0..1_000);
                let demux =
                    tokio::spawn(input.demux_by(|&n| key(n), orders_in.flat_map(stream::iter)));
                let mut got = Vec::new();
                while let Some(next) = inbox.recv().await {
                    got.push(next.expect("nothing is lost"));
                }
                demux.await.expect("the demux does not panic");
                drop(lease);
                got
            });
            assert!(got.into_iter().eq(0..1_000), "{full:?}, {capacity}");
        }
    }
}

/// With a lease, the keys of a reader that goes are free at once, without a further item.
#[test]
fn a_reader_that_is_dropped_frees_its_keys() {
    let (orders, orders_in) = mpsc::unbounded();
    let orders_in = orders_in.flat_map(stream::iter);
    let mut demux = stream::pending::<u64>().demux_by(|&n| key(n), orders_in).multicast();
    let subscription = subscribe(&orders, &[0, 1], 8, Overflow::DropOldest);
    assert!((&mut demux).now_or_never().is_none());
    assert_eq!(demux.len(), 2);
    drop(subscription);
    assert!((&mut demux).now_or_never().is_none());
    assert_eq!((demux.len(), demux.draining()), (0, 0));
}
