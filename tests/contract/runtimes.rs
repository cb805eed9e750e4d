//! One program on different runtimes: the demux, its producer and each reader are separate tasks.
//!
//! Guarantee 13: the crate works on any runtime.

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::{Arc, mpsc as std_mpsc};
use std::thread;

use crate::common::real::{Flavor, within_a_minute};
use futures::channel::{mpsc, oneshot};
use futures::executor::{self, LocalPool};
use futures::task::SpawnExt;
use futures::{SinkExt, StreamExt};
use stream_demux::{Attach, DemuxStreamExt, Lease, Order, Overflow, Totals};

/// Read to the end, through the smallest channel.
const KEPT: u32 = 0;
/// Attached by the reader of `KEPT` when that has read `LATE_AFTER` items.
const LATE: u32 = 1;
const LATE_AFTER: usize = 1_000;
/// Never read: four items are in the channel, four are queued, and it is evicted at the end.
const STUCK: u32 = 2;
const FOUR: usize = 4;
/// Read a hundred times; then the lease and the receiver are dropped.
const LEASED: u32 = 3;
const HUNDRED: usize = 100;
/// The last one has no sink.
const KEYS: u32 = 5;
const ITEMS: Range<u32> = 0..25_000;
const EACH: usize = 5_000;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The result of a run.
struct Outcome {
    totals: Totals,
    kept: Vec<u32>,
    late: Vec<u32>,
    stuck: Vec<u32>,
    leased: Vec<u32>,
}

/// Spawns a future, and returns a future of its output.
fn output_of<T: Send + 'static>(
    spawn: &impl Fn(Task),
    future: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> {
    let (done, output) = oneshot::channel();
    spawn(Box::pin(async move { drop(done.send(future.await)) }));
    async { output.await.expect("the task did not complete") }
}

/// Runs the program. `spawn` must run several futures concurrently.
async fn program(spawn: impl Fn(Task)) -> Outcome {
    let (mut items, input) = mpsc::channel::<u32>(8);
    let (orders, orders_in) = mpsc::unbounded();
    let (kept, mut kept_out) = mpsc::channel(0);
    let (late, late_out) = mpsc::channel(1);
    let (stuck, stuck_out) = mpsc::channel(FOUR - 1); // plus one for each sender
    let (leased, leased_out) = mpsc::channel(16);

    let mut lease = Lease::new();
    let send = |order| orders.unbounded_send(order).expect("the demux was dropped");
    send(Order::from((KEPT, kept)));
    send(Attach::new(STUCK, stuck).buffer(FOUR).overflow(Overflow::DropNewest).into());
    send(Attach::new(LEASED, leased).leased(&mut lease).into());

    let totals = output_of(&spawn, input.demux_by(|n| n % KEYS, orders_in));
    let late_read = output_of(&spawn, late_out.collect());
    let leased_read = output_of(&spawn, async move {
        let read = leased_out.take(HUNDRED).collect().await;
        drop(lease);
        read
    });
    let kept_read = output_of(&spawn, async move {
        let mut late = Some(Order::from((LATE, late)));
        let mut read = Vec::new();
        while let Some(item) = kept_out.next().await {
            read.push(item);
            if let Some(order) = late.take_if(|_| read.len() == LATE_AFTER) {
                orders.unbounded_send(order).expect("the demux was dropped");
            }
        }
        // The demux closed the sink, so the input has ended. Only the stuck sink still has items.
        orders.unbounded_send(Order::Evict(STUCK)).expect("the demux was dropped");
        read
    });
    spawn(Box::pin(async move {
        for item in ITEMS {
            items.send(item).await.expect("the demux was dropped");
        }
    }));

    let totals = totals.await;
    let (kept, late, leased) = (kept_read.await, late_read.await, leased_read.await);
    Outcome { totals, kept, late, stuck: stuck_out.collect().await, leased }
}

/// Runs the program with `run`, and accounts for every item.
#[track_caller]
fn check(run: impl FnOnce() -> Outcome + Send + 'static) {
    let outcome = within_a_minute(run);
    let Outcome { totals, kept, late, stuck, leased } =
        outcome.unwrap_or_else(|fault| panic!("{fault}"));

    let all = |key| ITEMS.filter(move |n| n % KEYS == key).collect::<Vec<_>>();
    assert_eq!(kept, all(KEPT));
    assert!(late.len() < EACH && all(LATE).ends_with(&late), "late has gaps: {late:?}");
    assert_eq!(stuck, all(STUCK)[..FOUR]);
    assert_eq!(leased, all(LEASED)[..HUNDRED]);

    let count = |items: usize| items as u64;
    assert_eq!(totals.received, count(ITEMS.len()));
    assert_eq!(
        (totals.copies, totals.lost, totals.queued, totals.attached, totals.detached),
        (0, 0, 0, 4, 4)
    );
    assert_eq!(totals.delivered + totals.discarded + totals.unmatched, totals.received);
    // In addition to the items that its reader took, the leased channel may have got 17, and one
    // may be held.
    let leased = totals.delivered - count(kept.len() + late.len() + stuck.len());
    assert!((count(HUNDRED)..=count(HUNDRED) + 17).contains(&leased), "{leased} delivered");
    let held = totals.discarded - count(EACH - FOUR);
    assert!(held <= 1, "{held} items discarded when the lease was dropped");
    assert_eq!(totals.unmatched, count(3 * EACH - late.len()) - leased - held);
}

fn on_tokio(flavor: Flavor) -> Outcome {
    flavor.runtime().block_on(program(|task| drop(tokio::spawn(task))))
}

#[test]
fn tokio_in_one_thread() {
    check(|| on_tokio(Flavor::CurrentThread));
}

#[test]
fn tokio_in_many_threads() {
    check(|| on_tokio(Flavor::Workers(4)));
}

/// The program runs outside of the executor, as in `smol::block_on`.
#[test]
fn executor_of_smol_in_a_thread() {
    check(|| {
        let tasks = Arc::new(async_executor::Executor::new());
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = {
            let tasks = Arc::clone(&tasks);
            thread::spawn(move || executor::block_on(tasks.run(stopped)))
        };
        let outcome = executor::block_on(program(|task| tasks.spawn(task).detach()));
        drop(stop);
        assert!(thread.join().is_ok());
        outcome
    });
}

#[test]
fn the_local_pool_of_futures() {
    check(|| {
        let mut pool = LocalPool::new();
        let spawner = pool.spawner();
        pool.run_until(program(|task| spawner.spawn(task).expect("cannot spawn")))
    });
}

#[test]
fn a_bare_block_on_with_all_tasks_in_one_future() {
    check(|| {
        let (spawner, inbox) = std_mpsc::channel::<Task>();
        let mut program = pin!(program(move |task| spawner.send(task).expect("cannot spawn")));
        let mut tasks = Vec::new();
        executor::block_on(poll_fn(|cx| {
            // One waker for all futures: each wake polls all.
            let outcome = program.as_mut().poll(cx);
            tasks.extend(inbox.try_iter());
            tasks.retain_mut(|task| task.as_mut().poll(cx).is_pending());
            outcome
        }))
    });
}
