//! Guarantee 1: an order that was ready before the input returned an item is applied before that
//! item is routed. Orders that wake themselves; an idle orders stream costs nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;
use std::thread;

use crate::common::{Op, Orders, Rig, Task, scripted_sink, scripted_stream};
use stream_demux::{DemuxStreamExt, Order};

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
fn orders_that_are_ready_at_the_start_come_before_the_first_item() {
    let mut rig = Rig::new();
    rig.input.push(101);
    let (order, _a) = rig.attachment(1, "a", |attach| attach);
    rig.orders.push(order);
    assert_eq!(rig.lines(), ["attached 1", "a sent 101", "a flushed"]);
}

#[test]
fn a_sink_that_is_attached_while_its_item_is_read_gets_it() {
    let mut rig = Rig::new();
    let (order, _a) = rig.attachment(1, "a", |attach| attach);
    rig.lines();
    rig.order_with_next_item(order);
    rig.input.push(101);
    assert_eq!(rig.lines(), ["attached 1", "a sent 101", "a flushed"]);
}

#[test]
fn a_sink_that_is_detached_while_its_item_is_read_does_not_get_it() {
    for order in [Order::Detach(1), Order::Evict(1)] {
        let mut rig = Rig::new();
        let a = rig.attach(1, "a");
        rig.order_with_next_item(order);
        rig.input.push(101);
        assert_eq!(rig.lines().last().unwrap(), "unmatched 101");
        assert!(a.is_dropped() && a.taken() == 0);
    }
}

#[test]
fn a_sink_that_is_replaced_while_its_item_is_read_does_not_get_it() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    let (order, new) = rig.attachment(1, "new", |attach| attach);
    rig.order_with_next_item(order);
    rig.input.push(101);
    rig.lines();
    assert_eq!((a.taken(), new.items()), (0, vec![101]));
}

#[test]
fn all_orders_that_came_with_an_item_are_applied_before_it() {
    let mut rig = Rig::new();
    rig.lines();
    let (first, a) = rig.attachment(1, "a", |attach| attach);
    let (second, b) = rig.attachment(1, "b", |attach| attach);
    for order in [first, Order::Detach(1), Order::Evict(9), second] {
        rig.order_with_next_item(order);
    }
    rig.input.push(101);
    rig.lines();
    assert_eq!((a.taken(), b.items()), (0, vec![101]));
}

#[test]
fn an_order_that_comes_while_an_item_is_sent_is_applied_before_the_next() {
    for op in [Op::Ready, Op::Send] {
        let mut rig = Rig::new();
        let a = rig.attach(1, "a");
        let (order, b) = rig.attachment(2, "b", |attach| attach);
        let orders = rig.orders.clone();
        a.during(op, move || orders.push(order));
        rig.input.extend([101, 201, 202]);
        rig.lines();
        assert_eq!((b.items(), rig.totals().unmatched), (vec![201, 202], 0), "{op:?}");
    }
}

#[test]
fn orders_split_the_input_exactly_where_they_came() {
    for budget in [1, 2, 3, 5, 128] {
        let mut rig = Rig::with(|demux| demux.budget(budget));
        let (first, a) = rig.attachment(1, "a", |attach| attach);
        let (second, b) = rig.attachment(1, "b", |attach| attach);
        rig.input.extend([101, 102]);
        rig.order_with_next_item(first);
        rig.input.extend([103, 104, 105]);
        rig.order_with_next_item(second);
        rig.input.extend([106]);
        rig.order_with_next_item(Order::Detach(1));
        rig.input.extend([107, 108]);
        rig.lines();
        assert_eq!((a.items(), b.items()), (vec![103, 104, 105], vec![106]), "budget {budget}");
        assert_eq!(rig.totals().unmatched, 4);
    }
}

#[test]
fn the_item_that_finish_overtook_is_routed_at_that_moment() {
    let mut rig = Rig::new();
    let (late, b) = rig.attachment(2, "b", |attach| attach);
    let a = rig.attach(1, "a");
    rig.order_with_next_item(Order::Finish);
    rig.order_with_next_item(late);
    rig.input.push(201);
    rig.input.action(|| panic!("the input was read after Finish"));
    let Poll::Ready(totals) = rig.run() else { panic!("the demux did not complete") };
    assert_eq!((totals.unmatched, b.taken(), a.is_closed()), (1, 0, true));
}

#[test]
fn the_item_that_finish_overtook_reaches_the_sink_of_that_moment() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    rig.order_with_next_item(Order::Finish);
    rig.order_with_next_item(Order::Detach(1));
    rig.input.push(101);
    let Poll::Ready(totals) = rig.run() else { panic!("the demux did not complete") };
    assert_eq!((a.items(), totals.unmatched), (vec![101], 0));
}

#[test]
fn the_end_of_the_orders_that_comes_with_an_item_does_not_lose_it() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    let orders = rig.orders.clone();
    rig.input.action(move || orders.end());
    rig.input.extend([101, 102]);
    rig.lines();
    assert!(rig.orders.is_ended() && rig.orders.is_dropped());
    assert_eq!(a.items(), [101, 102]);
}

/// Another thread sends each order right before its item, while the demux reads the previous item.
/// A demux that polled orders only before it reads the input would fail this test sooner or later.
///
/// The thread waits for each item to arrive. Otherwise, two wakes in a row could come after their
/// orders were read. They would look like two self-wakes in a row, after which items no longer
/// wait.
#[test]
fn orders_and_items_from_another_thread_stay_in_order() {
    const ROUNDS: u32 = 20_000;
    let (input, items) = scripted_stream("input");
    let (orders, orders_handle) = scripted_stream("orders");
    let key: fn(&u32) -> u32 = |n| *n;
    let mut task = Task::new(input.demux_by(key, orders));
    let over = Arc::new(AtomicBool::new(false));
    let sender_over = Arc::clone(&over);
    let sender = thread::spawn(move || {
        for round in 0..ROUNDS {
            let (sink, handle) = scripted_sink(round);
            orders_handle.push((round, sink));
            items.push(round);
            while handle.taken() == 0 && !sender_over.load(Relaxed) {
                thread::yield_now();
            }
        }
        items.end();
    });
    let totals = loop {
        let sent = sender.is_finished();
        // One `run` may poll any number of times, because another thread keeps waking the task.
        match task.turns(1_000) {
            Poll::Ready(totals) => break totals,
            Poll::Pending if task.get_ref().totals().unmatched > 0 => {
                break task.get_ref().totals();
            }
            Poll::Pending => {
                assert!(!sent || task.woken(), "the task parked although everything was sent");
            }
        }
        thread::yield_now();
    };
    over.store(true, Relaxed);
    sender.join().unwrap();
    assert_eq!((totals.delivered, totals.unmatched), (u64::from(ROUNDS), 0));
}

// The budget ends among orders.

#[test]
fn an_overtaken_item_is_kept_and_counts_as_queued() {
    let mut rig = Rig::with(|demux| demux.budget(4));
    rig.lines();
    let mut sinks = Vec::new();
    for key in 1..=10 {
        let (order, sink) = rig.attachment(key, "some", |attach| attach);
        rig.order_with_next_item(order);
        sinks.push(sink);
    }
    rig.input.extend([1_001, 1_002]);
    rig.poll(); // one unit for the item
    assert_eq!((rig.totals().attached, rig.totals().queued, rig.totals().received), (3, 1, 1));
    rig.poll();
    assert_eq!((rig.totals().attached, rig.totals().queued, rig.totals().received), (7, 1, 1));
    rig.lines();
    assert_eq!((rig.totals().attached, rig.totals().queued), (10, 0));
    assert_eq!(sinks[9].items(), [1_001, 1_002]);
}

#[test]
fn the_next_turn_continues_with_orders_if_the_budget_ended_among_them() {
    for budget in [1, 2, 3, 4, 7] {
        let mut rig = Rig::with(|demux| demux.budget(budget));
        let mut sinks = Vec::new();
        for key in 1..=20 {
            let (order, sink) = rig.attachment(key, "some", |attach| attach);
            rig.orders.push(order);
            sinks.push(sink);
        }
        rig.input.extend((1..=20).map(|key| key * 100));
        while rig.totals().attached < 20 {
            assert_eq!(rig.routed(), 0);
            rig.poll();
        }
        rig.lines();
        assert_eq!((rig.totals().delivered, rig.totals().unmatched), (20, 0), "budget {budget}");
        assert!(sinks.iter().all(|sink| sink.taken() == 1));
    }
}

#[test]
fn endless_orders_hold_items_back_without_end() {
    let mut rig = Rig::with(|demux| demux.budget(8));
    let restless = rig.attach(9, "restless"); // so that orders leave a part of each turn
    restless.stutter(Op::Close, usize::MAX);
    rig.orders.push(Order::Detach(9));
    rig.input.extend([101, 102]);
    rig.orders.endless(|_| Order::Detach(50));
    for _ in 0..100 {
        rig.poll();
    }
    assert_eq!(rig.routed(), 0);
}

// Orders that return `Pending` and wake themselves.

#[test]
fn orders_that_wake_themselves_end_the_turn_before_another_item_is_routed() {
    let mut rig = Rig::new();
    let (order, a) = rig.attachment(1, "a", |attach| attach);
    rig.orders.stutter();
    rig.orders.push(order);
    rig.input.extend([101, 102]);
    rig.poll();
    assert_eq!((rig.routed(), rig.task.wakes()), (0, 1));
    rig.poll();
    assert_eq!((a.items(), rig.totals().unmatched), (vec![101, 102], 0));
}

#[test]
fn orders_that_wake_themselves_while_an_item_is_held_keep_it_held() {
    let mut rig = Rig::new();
    rig.lines();
    let (order, a) = rig.attachment(1, "a", |attach| attach);
    let orders = rig.orders.clone();
    rig.input.action(move || {
        orders.stutter();
        orders.push(order);
    });
    rig.input.extend([101, 102]);
    rig.poll();
    assert_eq!((rig.routed(), rig.totals().queued, rig.task.wakes()), (0, 1, 1));
    rig.poll();
    assert_eq!((a.items(), rig.totals().unmatched), (vec![101, 102], 0));
}

#[test]
fn a_second_self_wake_in_a_row_no_longer_delays_items() {
    let mut rig = Rig::new();
    let (order, a) = rig.attachment(1, "a", |attach| attach);
    rig.orders.stutter();
    rig.orders.stutter();
    rig.orders.push(order);
    rig.input.extend([101, 102]);
    rig.poll();
    assert_eq!(rig.routed(), 0);
    rig.poll();
    assert_eq!((rig.totals().unmatched, rig.orders.polls()), (2, 2));
    rig.input.push(103);
    rig.lines();
    assert_eq!(a.items(), [103]);
}

#[test]
fn an_order_between_gives_orders_that_wake_themselves_another_turn() {
    let mut rig = Rig::new();
    let mut sinks = Vec::new();
    for key in 1..=5 {
        let (order, sink) = rig.attachment(key, "some", |attach| attach);
        rig.orders.stutter();
        rig.orders.push(order);
        sinks.push(sink);
    }
    rig.input.extend([501, 101]);
    for turn in 0..5 {
        rig.poll();
        assert_eq!((rig.totals().attached, rig.routed()), (turn, 0));
    }
    rig.poll();
    assert_eq!((rig.totals().attached, rig.totals().delivered), (5, 2));
}

#[test]
fn orders_that_always_wake_themselves_do_not_delay_items() {
    let mut rig = Rig::with(|demux| demux.budget(4));
    (0..40).for_each(|_| rig.orders.stutter());
    rig.input.endless(|_| 101);
    rig.poll();
    assert_eq!(rig.routed(), 0);
    for turn in 1..30_usize {
        rig.poll();
        assert_eq!((rig.routed(), rig.orders.polls()), (turn as u64 * 4, 1 + turn));
    }
}

#[test]
fn a_turn_in_which_orders_are_quiet_makes_the_next_self_wake_a_first_one() {
    let mut rig = Rig::new();
    rig.orders.stutter();
    rig.lines();
    rig.orders.stutter();
    rig.input.push(101);
    rig.poll();
    assert_eq!(rig.routed(), 0);
    rig.poll();
    assert_eq!(rig.routed(), 1);
}

// An idle orders stream.

#[test]
fn an_idle_orders_stream_is_polled_once_for_all_items() {
    let mut rig = Rig::new();
    rig.orders.strict();
    rig.input.extend(std::iter::repeat_n(101, 10_000));
    rig.lines();
    assert_eq!((rig.totals().received, rig.orders.polls()), (10_000, 1));
    rig.orders.push(Order::Detach(1));
    rig.lines();
    assert_eq!(rig.orders.polls(), 3, "the order, and Pending");
}

#[test]
fn orders_that_have_ended_are_not_polled_again() {
    let mut rig = Rig::new();
    rig.orders.end();
    rig.lines();
    let polls = rig.task.polls();
    rig.input.extend([101, 102]);
    rig.lines();
    rig.orders.wake(); // a waker that outlived the stream
    rig.lines();
    assert_eq!((rig.orders.polls(), rig.totals().unmatched), (1, 2));
    assert!(rig.task.polls() - polls <= 3);
}

#[test]
fn an_order_wakes_a_task_that_sleeps() {
    let mut rig = Rig::new();
    rig.lines();
    let (order, _a) = rig.attachment(1, "a", |attach| attach);
    rig.orders.push(order);
    assert_eq!(rig.task.wakes(), 1);
    assert_eq!(rig.lines(), ["attached 1"]);
}
