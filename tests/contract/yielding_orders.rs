//! Orders that yield: a channel of tokio returns `Pending` when the cooperative budget of the task
//! is spent, although it has orders, and its wake is delayed. No item overtakes these orders.
//!
//! Tests guarantee 1 with channels on every runtime of tokio.

use crate::common::real::{Pipe, RUNTIMES, Receiving, assert_settled};
use futures::channel::mpsc as futures_mpsc;
use futures::{sink, stream};
use stream_demux::{DemuxStreamExt, Overflow, Totals};
use tokio::{sync::mpsc, task};

/// Runs a demux that parks. It is woken when a task, after `spent` operations, has sent an order for
/// each of `keys` and then an item for each.
async fn woken_for_all(keys: u64, spent: usize) -> Totals {
    let (orders, inbox) = mpsc::channel(400);
    let (items, input) = futures_mpsc::unbounded();
    let demux = input.demux_by(|item| *item, Receiving(inbox)).budget(1_000);
    let demux = task::spawn(demux);
    task::spawn(async move {
        for _ in 0..10 {
            task::yield_now().await;
        }
        for _ in 0..spent {
            task::consume_budget().await;
        }
        for key in 0..keys {
            assert!(orders.try_send((key, sink::drain())).is_ok(), "the demux was dropped");
        }
        (0..keys).for_each(|item| items.unbounded_send(item).expect("the demux was dropped"));
    });
    demux.await.expect("the demux panicked")
}

#[track_caller]
fn check(keys: u64, spent: usize) {
    for runtime in RUNTIMES {
        let totals = runtime.run(woken_for_all(keys, spent));
        assert_settled(totals);
        assert_eq!((totals.delivered, totals.unmatched), (keys, 0), "{runtime:?}: {totals:?}");
    }
}

#[test]
fn tokio_orders_beyond_the_budget_of_the_task_come_before_items() {
    check(400, 0);
}

#[test]
fn tokio_orders_beyond_what_the_waker_left_of_its_budget_come_before_items() {
    check(100, 100);
}

/// The items before the order use up the budget of one turn, or of two: then the sink, which is in
/// doubt, is polled at the start of the second.
#[test]
fn tokio_order_that_comes_late_in_a_turn_comes_before_the_next_item() {
    for (runtime, pipe) in RUNTIMES.into_iter().flat_map(|it| [(it, Pipe::Tokio), (it, Pipe::Pair)])
    {
        let totals = runtime.run(async move {
            let (first, _of_first) = pipe.open(200).await;
            let (second, _of_second) = pipe.open(200).await;
            let (orders, inbox) = mpsc::channel(2);
            assert!(orders.try_send((1, first)).is_ok());
            let mut second = Some((2, second));
            let input = stream::iter(0..200);
            let demux = input.demux_by(|n| if *n < 150 { 1 } else { 2 }, Receiving(inbox));
            let demux = demux.budget(1_000).overflow(Overflow::DropNewest).admit(move |_, n| {
                let order = second.take_if(|_| *n == 149);
                order.is_none_or(|order| orders.try_send(order).is_ok())
            });
            task::spawn(demux).await.expect("the demux panicked")
        });
        assert_settled(totals);
        assert_eq!(totals.unmatched, 0, "{runtime:?}, {pipe:?}: {totals:?}");
    }
}
