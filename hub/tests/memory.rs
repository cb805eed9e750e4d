//! Memory that a hub gives back, with a counting allocator.
//!
//! The task of the hub does not run while a test makes orders, so that all of them wait at once.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{FutureExt, SinkExt, channel::mpsc};
use model::counting::{CountingAllocator, usage};
use stream_demux_hub::{Hub, Overflow, Progress, Terms, Workers, for_each_by_key, writers};
use tokio::io::AsyncWrite;
use tokio::sync::Mutex;
use tokio::task::yield_now;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const MANY: u32 = 100_000;

/// What a hub with nothing in it may have allocated: lists with room for a thousand orders, for
/// which the default capacity is made. With room for `MANY` it is 20 times as much.
const IDLE: i64 = 500_000;

#[tokio::test]
async fn burst_of_subscriptions_leaves_no_memory_behind() {
    let hub = Hub::<u32, u32>::new();
    let before = usage().live;
    for key in 0..MANY {
        drop(hub.subscribe(key));
    }
    assert!(usage().live - before > 10 * IDLE, "they wait");
    assert_eq!(hub.stats().await.receiving, 0);
    let grown = usage().live - before;
    assert!(grown < IDLE, "{grown} bytes more");
}

/// The hub keeps a list of the subscriptions that it may have to wait for. What its demux keeps
/// follows the largest crowd, so there was one before.
#[tokio::test]
async fn crowd_that_could_be_waited_for_leaves_no_memory_behind() {
    let hub = Hub::<u32, u32>::new();
    let mut before = 0;
    for policy in [Overflow::DropNewest, Overflow::Wait] {
        before = usage().live;
        let terms = Terms::new().overflow(policy);
        let all = (0..MANY).map(|key| hub.subscribe_with([key], terms)).collect::<Vec<_>>();
        assert_eq!(hub.stats().await.receiving, MANY as usize);
        drop(all);
        assert_eq!(hub.stats().await.receiving, 0);
        // The task forgets a thousand in a turn.
        for _ in 0..1_000 {
            yield_now().await;
        }
    }
    let grown = usage().live - before;
    assert!(grown < IDLE / 5, "{grown} bytes more");
}

#[tokio::test]
async fn subscriptions_without_keys_leave_no_memory_behind() {
    let hub = Hub::<u32, u32>::new();
    let before = usage().live;
    let mut all = (0..MANY).map(|_| hub.subscribe_with([], Terms::new())).collect::<Vec<_>>();
    all.truncate(10);
    all.shrink_to_fit();
    let grown = usage().live - before;
    assert!(grown < IDLE, "{grown} bytes more");
    hub.shutdown(Duration::ZERO).await;
    assert!(all.iter().all(|subscription| subscription.end().is_some()));
}

/// A client that asks again and again on one subscription, with a new key for each reply.
#[tokio::test]
async fn keys_that_reached_their_limits_leave_no_memory_behind() {
    let hub = Hub::new();
    let terms = Terms::new().limit(1).overflow(Overflow::Wait);
    let mut replies = hub.subscribe_with([], terms);
    let before = usage().live;
    for n in 0..MANY / 4 {
        assert!(replies.add(n));
        hub.publish(n, n).await.unwrap();
        assert_eq!(replies.recv().await, Some(Ok(n)));
    }
    let grown = usage().live - before;
    assert!(grown < IDLE, "{grown} bytes more");
}

/// One item hangs. Those behind it are done.
#[test]
fn positions_that_are_done_leave_no_memory_behind() {
    let progress = Progress::new();
    let _hangs = progress.begin(0, 0);
    let before = usage().live;
    for offset in 1..u64::from(MANY) {
        progress.begin(0, offset).done();
    }
    let grown = usage().live - before;
    assert!(grown < 10_000, "{grown} bytes more");
    assert_eq!(progress.committable()[&0], 0);
}

/// Each key is behind by ten thousand items once, and its worker stays.
#[tokio::test]
async fn keys_that_were_behind_leave_no_memory_behind() {
    const ITEMS: u64 = 10_000;
    let (mut input, items) = mpsc::channel(100);
    let gate = Arc::new(Mutex::new(()));
    let of_workers = Arc::clone(&gate);
    let settings = Workers::new().idle_timeout(None);
    let run = for_each_by_key(
        items,
        |&(key, _)| key,
        settings,
        move |_, mut items| {
            let gate = Arc::clone(&of_workers);
            async move {
                while items.recv().await.is_some() {
                    drop(gate.lock().await);
                }
            }
        },
    );
    let mut before = 0;
    for key in 0..50_u32 {
        let closed = gate.lock().await;
        for n in 0..ITEMS {
            input.feed((key, n)).await.unwrap();
        }
        while run.summary().received < ITEMS * u64::from(key + 1) {
            yield_now().await;
        }
        drop(closed);
        while run.summary().lost() > 0 {
            yield_now().await;
        }
        if key == 0 {
            before = usage().live;
        }
    }
    let grown = usage().live - before;
    assert!(run.summary().most_backlog > 5_000, "{:?}", run.summary());
    assert!(grown < IDLE, "{grown} bytes more");
}

/// A socket that takes some bytes, and then nothing.
struct Stuck(usize);

impl AsyncWrite for Stuck {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        if taken == 0 { Poll::Pending } else { Poll::Ready(Ok(taken)) }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Each has seen other items, and is in the middle of one of them.
#[test]
fn writers_that_are_stuck_keep_a_piece_of_the_log_each() {
    const WRITERS: i64 = 100;
    const PIECE: i64 = 20 * 1024;
    const LOG: i64 = 1024 * 1024 * 5 / 4;
    let before = usage().live;
    let (mut sink, handle) = writers(1_024, |size: usize, bytes: &mut Vec<u8>| {
        bytes.resize(size, b'x');
        Ok(())
    });
    let mut stuck = Vec::new();
    for _ in 0..WRITERS {
        let mut writer = Box::pin(handle.join(Stuck(500)));
        for _ in 0..200 {
            assert!(matches!(sink.feed(1_000).now_or_never(), Some(Ok(()))));
        }
        assert!(matches!(SinkExt::<usize>::flush(&mut sink).now_or_never(), Some(Ok(()))));
        assert!((&mut writer).now_or_never().is_none());
        stuck.push(writer);
    }
    let grown = usage().live - before;
    assert!(grown < LOG + WRITERS * PIECE, "{grown} bytes for {WRITERS} writers");
    drop(stuck);
    let grown = usage().live - before;
    assert!(grown < IDLE, "{grown} bytes more");
}

#[tokio::test]
async fn keys_of_writers_that_left_leave_no_memory_behind() {
    let hub = Hub::<u32, u32>::new();
    let before = usage().live;
    let encode = |_: u32, _: &mut Vec<u8>| Ok(());
    for key in 0..MANY / 4 {
        drop(hub.attach_writer(key, Stuck(0), encode, Terms::new()));
        if key % 100 == 0 {
            assert_eq!(hub.stats().await.receiving, 0);
        }
    }
    let grown = usage().live - before;
    assert!(grown < IDLE, "{grown} bytes more");
}
