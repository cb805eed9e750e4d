//! Guarantee 1: an order that was ready before the input returned an item is applied before that
//! item is routed. Orders that wake themselves; an idle orders stream costs nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;

use crate::common::real::{Pipe, RUNTIMES, Receiving, assert_settled};
use crate::common::{CoopBudget, Op, Orders, Rig, THOROUGH, Task, scripted_sink, scripted_stream};
use futures::channel::mpsc as futures_mpsc;
use futures::{StreamExt, sink, stream};
use stream_demux::{Attach, DemuxStreamExt, Lease, Order, Overflow, Totals};
use tokio::{sync::mpsc, task};

impl Rig {
    /// Sends an order inside the `poll_next` that returns the next queued item.
    fn order_with_next_item(&self, order: Orders) {
        let orders = self.orders.clone();
        self.input.action(move || orders.push(order));
    }

    /// Returns the number of routed items.
    fn routed(&self) -> u64 {
        self.totals().delivered + self.totals().unmatched
    }
}

// An order that becomes ready while the item is read.

#[test]
fn orders_split_the_input_exactly_where_they_came() {
    for budget in [1, 2, 3, 5, 128] {
        let mut rig = Rig::with(|demux| demux.budget(budget));
        let (first, a) = rig.attachment(1, "a", |attach| attach);
        let (second, b) = rig.attachment(1, "b", |attach| attach);
        rig.push([101, 102]);
        rig.order_with_next_item(first);
        rig.push([103, 104, 105]);
        rig.order_with_next_item(second);
        rig.push([106]);
        rig.order_with_next_item(Order::Detach(1));
        rig.push([107, 108]);
        rig.lines();
        assert_eq!((a.items(), b.items()), (vec![103, 104, 105], vec![106]), "budget {budget}");
        assert_eq!(rig.totals().unmatched, 4);
    }
}

/// Another thread sends each order right before its item, while the demux reads earlier ones. A
/// demux that polled orders only before it reads the input would fail this test sooner or later.
/// So would one that takes the wakes of another thread for those of an orders stream that wakes
/// itself.
#[test]
fn orders_and_items_from_another_thread_stay_in_order() {
    const ROUNDS: u32 = if THOROUGH { 300_000 } else { 20_000 };
    let (input, items) = scripted_stream("input");
    let (orders, orders_handle) = scripted_stream("orders");
    let key: fn(&u32) -> u32 = |n| *n;
    let mut task = Task::new(input.demux_by(key, orders));
    let sender = thread::spawn(move || {
        for round in 0..ROUNDS {
            orders_handle.push((round, sink::drain()));
            items.push(round);
        }
        items.end();
    });
    let totals = loop {
        let sent = sender.is_finished();
        // One `run` may poll any number of times, because another thread keeps waking the task.
        match task.turns(1_000) {
            Poll::Ready(totals) => break totals,
            Poll::Pending => {
                assert!(!sent || task.woken(), "the task parked although everything was sent");
            }
        }
        thread::yield_now();
    };
    sender.join().unwrap();
    assert_eq!((totals.delivered, totals.unmatched), (u64::from(ROUNDS), 0));
}

// Orders that return `Pending`, and may have yielded.

/// A channel of tokio answers so, too, when the cooperative budget of the task is used up.
#[test]
fn item_that_matches_no_key_waits_until_pending_orders_were_polled_once_more() {
    for (item, waits) in [(101, false), (901, true)] {
        let mut rig = Rig::new();
        rig.attach(1, "a");
        rig.orders.push(Order::Detach(50));
        rig.push([item, 902]);
        let polls = rig.orders.polls();
        rig.turn();
        assert_eq!(rig.orders.polls(), polls + 2, "the order, and Pending");
        assert_eq!((rig.routed(), rig.totals().queued), (u64::from(!waits), 1));
        rig.turn();
        assert_eq!((rig.routed(), rig.totals().queued), (2, 0));
        let polls = polls + if waits { 4 } else { 3 };
        assert_eq!(rig.orders.polls(), polls, "at the start of the turn, and for 902");
        // From then on it need not wait for a turn.
        rig.push([101, 903]);
        rig.turn();
        assert_eq!((rig.routed(), rig.orders.polls()), (4, polls + 1));
    }
}

#[test]
fn order_that_is_found_then_is_applied_before_the_item() {
    let mut rig = Rig::new();
    rig.lines();
    let budget = CoopBudget::deferred(1);
    rig.orders.share(&budget);
    rig.orders.push(Order::Detach(50));
    let a = rig.order(1, "a", |attach| attach);
    rig.push([101]);
    rig.turn();
    assert_eq!((rig.orders.left(), rig.totals().queued), (1, 1), "the stream has yielded");
    rig.turn();
    assert_eq!((a.items(), budget.deferred_wakers()), (vec![101], 2), "no waker has fired");
}

/// Of two threads that send an order at once, one may take the waker of the channel and be
/// preempted before it fires it. The other then sends an order, and an item, and fires no waker.
#[test]
fn order_that_no_waker_has_announced_comes_before_an_item_that_matches_no_key() {
    let ends: [fn(Lease); 2] = [Lease::disarm, drop];
    for end in ends {
        let sent = Arc::new(Mutex::new(VecDeque::new()));
        let unread = Arc::clone(&sent);
        let next = move || unread.lock().unwrap().pop_front();
        let orders = stream::poll_fn(move |_| {
            next().map_or(Poll::Pending, |order| Poll::Ready(Some(order)))
        });
        let (input, items) = scripted_stream("input");
        let key: fn(&u32) -> u32 = |n| *n;
        let mut task = Task::new(input.demux_by(key, orders));
        for n in 0..10 {
            let mut lease = Lease::new();
            sent.lock().unwrap().push_back(Attach::new(100 + n, sink::drain()).leased(&mut lease));
            let sent = Arc::clone(&sent);
            items.push(100 + n);
            assert!(task.run().is_pending());
            items.action(move || {
                sent.lock().unwrap().push_back(Attach::new(n, sink::drain()));
                end(lease);
            });
            items.push(n);
        }
        assert!(task.run().is_pending());
        let totals = task.get_ref().totals();
        assert_eq!((totals.delivered, totals.unmatched), (20, 0));
    }
}

// Orders that wake themselves.

#[test]
fn orders_that_wake_themselves_end_the_turn_before_another_item_is_routed() {
    let mut rig = Rig::new();
    let (order, a) = rig.attachment(1, "a", |attach| attach);
    rig.orders.stutter();
    rig.orders.push(order);
    rig.push([101, 102]);
    rig.turn();
    assert_eq!((rig.routed(), rig.task.wakes()), (0, 1));
    rig.turn();
    assert_eq!((a.items(), rig.totals().unmatched), (vec![101, 102], 0));
}

/// A wake that comes from another thread while the stream is polled looks like a self-wake.
#[test]
fn order_after_two_self_wakes_is_applied_before_the_item_that_follows_it() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    rig.orders.stutter();
    rig.orders.stutter();
    rig.push([101]);
    rig.order_with_next_item(Order::Detach(1));
    rig.push([102]);
    rig.lines();
    assert_eq!((a.items(), rig.totals().unmatched), (vec![101], 1));
}

#[test]
fn orders_that_always_wake_themselves_do_not_delay_items() {
    let mut rig = Rig::with(|demux| demux.budget(4));
    (0..200).for_each(|_| rig.orders.stutter());
    rig.input.endless(|_| 101);
    rig.turn();
    assert_eq!(rig.routed(), 0);
    for turn in 1..30_usize {
        rig.turn();
        assert_eq!((rig.routed(), rig.orders.polls()), (turn as u64 * 4, 1 + turn * 5));
    }
}

// An idle orders stream.

#[test]
fn an_idle_orders_stream_is_polled_once_for_all_items() {
    let mut rig = Rig::new();
    rig.orders.strict();
    rig.attach(1, "a");
    let polls = rig.orders.polls();
    rig.push(std::iter::repeat_n(101, 10_000));
    rig.lines();
    assert_eq!((rig.totals().received, rig.orders.polls()), (10_000, polls));
    rig.orders.push(Order::Detach(1));
    rig.lines();
    assert_eq!(rig.orders.polls(), polls + 2, "the order, and Pending");
}

// Channels of tokio, which yield when the cooperative budget of the task is used up, on every
// runtime.

/// Runs a demux that parks. It is woken when a task, after `spent` operations, has sent an order
/// for each of `keys` and then an item for each.
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

// The key function.

/// Orders that come while an item is read or waits, and slots that are leaving, make the demux look
/// for its slot more than once.
#[test]
fn key_function_is_called_once_for_each_item_whatever_its_fate() {
    for (on_demand, budget) in [(false, 1), (false, 100), (true, 1), (true, 100)] {
        let calls = Arc::new(Mutex::new(0_u64));
        let (input, items) = scripted_stream("input");
        let (orders_in, orders) = scripted_stream("orders");
        let count = Arc::clone(&calls);
        let key = move |n: &u32| {
            *count.lock().unwrap() += 1;
            n % 10
        };
        let made = |n: &u32| (on_demand && n % 10 == 9).then(|| Attach::new(9, scripted_sink(9).0));
        let mut task =
            Task::new(input.demux_by(key, orders_in).or_attach_with(made).budget(budget));
        let send = |key: u32, name: &str| {
            let (sink, handle) = scripted_sink(name);
            orders.push(Order::from(Attach::new(key, sink).buffer(3)));
            handle
        };
        let leaving = send(1, "leaving");
        assert!(task.turns(9).is_pending());
        leaving.park();
        leaving.hold(Op::Close);
        items.extend([1, 11, 21]); // the first of them is parked
        assert!(task.turns(9).is_pending());
        orders.push(Order::Detach(1));
        assert!(task.turns(9).is_pending());
        items.extend([31, 2, 9, 19, 3]); // for the leaving sink, for none, on demand
        assert!(task.turns(9).is_pending());
        let late = orders.clone();
        let (sink, _taken) = scripted_sink("late");
        items.action(move || late.push(Order::from(Attach::new(1, sink)))); // overtakes the item
        items.extend([41, 2]);
        orders.stutter();
        items.extend([51, 2]);
        assert!(task.turns(30).is_pending());
        let totals = task.get_ref().totals();
        assert_eq!((totals.received, *calls.lock().unwrap()), (12, 12), "budget {budget}");
        assert_eq!(totals.unmatched, if on_demand { 5 } else { 7 });
    }
}

/// It borrows the key from the item, so the demux cannot keep it.
#[test]
fn key_function_that_borrows_is_called_again_only_if_orders_are_looked_for() {
    let calls = std::cell::Cell::new(0);
    let orders = stream::iter([("a".to_owned(), sink::drain())]).chain(stream::pending());
    let input = stream::iter(["ab", "ac", "ad"].map(str::to_owned));
    let demux = input.demux_by_ref(
        |text| {
            calls.set(calls.get() + 1);
            &text[..1]
        },
        orders,
    );
    let totals = futures::executor::block_on(demux);
    assert_eq!((totals.delivered, calls.get()), (3, 3));
}
