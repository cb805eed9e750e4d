//! Guarantee 5, bounded turns: the budget of a turn; the share of each kind of work; streams and
//! sinks that wake themselves. Nothing is starved, even with small budgets.

use std::task::Poll;

use crate::common::{Op, Rig, SinkHandle, Split};
use stream_demux::{Order, Overflow, Totals};

/// A key without an attachment. An order for it costs one unit and has no effect.
const UNUSED_KEY: u32 = u32::MAX;

fn rig(budget: usize) -> Rig {
    rig_with(|demux| demux.budget(budget))
}

fn rig_with(settings: impl FnOnce(Split) -> Split) -> Rig {
    Rig::with(settings).with_silent_sinks()
}

impl Rig {
    /// Attaches a sink that is not ready and has `items` in its queue.
    #[track_caller]
    fn queued(&mut self, key: u32, items: u32) -> SinkHandle<u32> {
        let sink = self.order(key, key, |attach| attach.buffer(100));
        sink.park();
        self.send((1..=items).map(|n| key * 100 + n));
        assert!(self.totals().queued >= u64::from(items) && sink.is_waiting(Op::Ready));
        sink
    }

    /// Attaches a sink to each key while other sinks keep waking the task.
    #[track_caller]
    fn attach_now(&mut self, keys: std::ops::Range<u32>) -> Vec<SinkHandle<u32>> {
        let handles = keys.map(|key| self.order(key, key, |attach| attach)).collect();
        self.turns_until(100, |rig| rig.orders.left() == 0);
        handles
    }

    /// Attaches sinks that are closing and always wake themselves.
    #[track_caller]
    fn restless(&mut self, keys: std::ops::Range<u32>) -> Vec<SinkHandle<u32>> {
        let sinks = self.attach_each(keys.clone());
        for sink in &sinks {
            sink.stutter(Op::Close, usize::MAX);
        }
        self.orders.extend(keys.map(Order::Detach));
        while self.orders.left() > 0 {
            self.poll();
        }
        sinks
    }

    /// Endless orders without effect.
    fn endless_orders(&self) {
        self.orders.endless(|_| Order::Detach(UNUSED_KEY));
    }
}

fn sum(sinks: &[SinkHandle<u32>], of: impl Fn(&SinkHandle<u32>) -> usize) -> usize {
    sinks.iter().map(of).sum()
}

// Costs. A turn with more work than its budget spends the whole budget, wakes the task once and
// returns.

#[test]
fn each_order_costs_one() {
    for budget in 1..=5 {
        let mut rig = rig(budget);
        (1..=10).for_each(|key| drop(rig.order(key, key, |attach| attach)));
        for turn in 1..=10_u64 {
            rig.poll();
            let spent = 10.min(turn * budget as u64);
            assert_eq!(rig.totals().attached, spent, "budget {budget}, turn {turn}");
            if spent < 10 {
                assert_eq!(rig.task.wakes(), 1);
            }
        }
    }
}

#[test]
fn an_order_for_a_group_costs_one_for_each_of_its_members() {
    for order in [Order::Detach(1), Order::Evict(1)] {
        let mut rig = rig_with(|demux| demux.multicast().budget(100));
        (0..40).for_each(|_| drop(rig.order(1, "a", |attach| attach)));
        rig.sleep();
        rig.orders.push(order);
        rig.input.extend(900..1_100);
        rig.poll();
        let Totals { received, detached, .. } = rig.totals();
        assert_eq!((received, detached), (60, 40));
    }
}

#[test]
fn each_item_read_costs_one_whatever_its_fate() {
    for budget in 1..=5 {
        let mut rig = rig(budget);
        rig.attach_each(1..2);
        rig.input.extend([101, 201, 102, 202, 103, 203, 104, 204, 105, 205]);
        for turn in 1..=10_u64 {
            rig.poll();
            let spent = 10.min(turn * budget as u64);
            assert_eq!(rig.totals().received, spent, "budget {budget}, turn {turn}");
            if spent < 10 {
                assert_eq!(rig.task.wakes(), 1);
            }
        }
    }
}

#[test]
fn each_flush_costs_one() {
    for budget in 1..=5 {
        let mut rig = rig(budget);
        let sinks = rig.attach_each(1..11);
        rig.input.extend((1..11).map(|key| key * 100));
        for turn in 1..=20 {
            rig.poll();
            let spent = sum(&sinks, SinkHandle::taken) + sum(&sinks, |sink| sink.count(Op::Flush));
            assert_eq!(spent, 20.min(turn * budget), "budget {budget}, turn {turn}");
            if spent < 20 {
                assert_eq!(rig.task.wakes(), 1);
            }
        }
        rig.sleep();
        assert_eq!(sum(&sinks, |sink| sink.count(Op::Flush)), 10);
    }
}

#[test]
fn each_service_of_a_woken_sink_costs_one() {
    for budget in 1..=5 {
        let mut rig = rig(budget);
        let sinks = rig.attach_each(1..11);
        for sink in &sinks {
            sink.hold(Op::Close);
        }
        rig.input.end();
        rig.sleep();
        for sink in &sinks {
            sink.release(Op::Close);
        }
        for turn in 1..10_usize.div_ceil(budget) {
            rig.poll();
            let closed = sum(&sinks, |sink| usize::from(sink.is_closed()));
            assert_eq!(closed, turn * budget, "budget {budget}, turn {turn}");
            assert_eq!(rig.task.wakes(), 1);
        }
        assert!(rig.task.poll().is_ready(), "budget {budget}");
    }
}

#[test]
fn each_item_moved_out_of_a_queue_costs_one() {
    for budget in 1..=5 {
        let mut rig = rig(budget);
        let sinks = [rig.queued(1, 20), rig.queued(2, 20)];
        rig.input.end();
        rig.sleep();
        sinks.iter().for_each(SinkHandle::open);
        let mut before = 0;
        while rig.task.poll().is_pending() {
            let taken = sum(&sinks, SinkHandle::taken);
            assert!(taken - before <= budget, "budget {budget}");
            assert_eq!(rig.task.wakes(), 1);
            before = taken;
        }
        assert_eq!(sum(&sinks, SinkHandle::taken), 40);
    }
}

#[test]
fn an_item_to_several_sinks_costs_one_for_each_and_may_be_served_in_two_turns() {
    let mut rig = rig_with(|demux| demux.budget(7).multicast());
    (0..3).for_each(|_| drop(rig.order(1, "a", |attach| attach)));
    rig.sleep();
    rig.input.extend(101..=107);
    for turn in 1..=3_u64 {
        rig.poll();
        assert_eq!(
            (rig.totals().received, rig.totals().delivered),
            ((7 * turn).div_ceil(3), 7 * turn)
        );
    }
}

#[test]
fn each_sink_that_a_shared_item_is_offered_to_costs_one() {
    let mut rig = rig_with(|demux| demux.balance().buffer(10).budget(100));
    let sinks: Vec<_> = (0..64).map(|n| rig.order(1, n, |attach| attach)).collect();
    rig.sleep();
    for sink in &sinks {
        sink.park();
    }
    rig.input.extend([101; 100]);
    rig.poll(); // 64 sinks and four to find the shortest queue, and then five for an item
    assert_eq!(rig.totals().received, 1 + (100_u64 - 68).div_ceil(5));
}

#[test]
fn looking_for_the_shortest_queue_costs_one_for_sixteen_sinks() {
    let mut rig = rig_with(|demux| demux.balance().buffer(10).budget(64));
    let sinks: Vec<_> = (0..64).map(|n| rig.order(1, n, |attach| attach)).collect();
    rig.sleep();
    for sink in &sinks {
        sink.park();
    }
    rig.send([101]); // polls all sinks
    rig.input.extend([101; 100]);
    for turn in 1..=3_u64 {
        rig.poll();
        assert_eq!(
            rig.totals().received,
            1 + (64 * turn).div_ceil(5),
            "each item costs five units"
        );
    }
}

#[test]
fn finishing_costs_one_for_each_sink() {
    for budget in 1..=5 {
        let mut rig = rig(budget);
        rig.attach_each(1..11);
        rig.input.end();
        for turn in 1..10_usize.div_ceil(budget) {
            rig.poll();
            assert_eq!(rig.len(), 10 - turn * budget, "budget {budget}");
            assert_eq!(rig.totals().detached, (turn * budget) as u64);
            assert_eq!(rig.task.wakes(), 1);
        }
        assert!(rig.task.poll().is_ready(), "budget {budget}");
    }
}

#[test]
fn the_turn_that_finishes_the_last_sink_is_the_last_while_closes_are_pending() {
    let mut rig = rig(4);
    let sinks = rig.attach_each(1..5);
    for sink in &sinks {
        sink.hold(Op::Close);
    }
    rig.input.end();
    rig.poll();
    assert_eq!((sum(&sinks, |sink| sink.count(Op::Close)), rig.task.woken()), (4, false));
}

#[test]
fn the_end_of_ten_thousand_sinks_is_spread_over_turns() {
    let mut rig = rig_with(|demux| demux);
    let sinks = rig.attach_each(0..10_000);
    rig.input.end();
    for turn in 1..=78 {
        rig.poll();
        assert_eq!(rig.len(), 10_000 - turn * 128);
        assert!(rig.task.woken());
    }
    let Poll::Ready(totals) = rig.task.poll() else {
        panic!("the demux did not complete in 79 turns of 128")
    };
    assert_eq!((totals.attached, totals.detached), (10_000, 10_000));
    assert!(sinks.iter().all(|sink| sink.count(Op::Close) == 1 && sink.is_closed()));
}

// Nothing is starved: small budgets.

#[test]
fn a_queue_drains_with_any_budget() {
    for budget in 1..=8 {
        let mut rig = rig(budget);
        let sink = rig.queued(1, 5);
        sink.open();
        rig.turns_until(100, |_| sink.taken() == 5);
        rig.sleep();
        assert_eq!(sink.flush_asked(), 5);
    }
}

#[test]
fn a_queue_drains_with_any_budget_while_flushes_are_always_due() {
    for budget in 1..=8 {
        let mut rig = rig_with(|demux| demux.budget(budget).flush_every(1));
        let sink = rig.queued(1, 5);
        rig.attach_each(2..4);
        rig.input.endless(|n| 200 + u32::from(n % 2 == 0) * 100);
        rig.poll();
        sink.open();
        rig.turns_until(100, |_| sink.taken() == 5);
    }
}

#[test]
fn a_queue_drains_with_any_budget_while_orders_never_pause() {
    for budget in 1..=8 {
        let mut rig = rig(budget);
        let sink = rig.queued(1, 5);
        rig.endless_orders();
        rig.poll();
        sink.open();
        rig.turns_until(200, |_| sink.taken() == 5);
    }
}

#[test]
fn flushes_closes_items_and_orders_progress_with_the_smallest_budgets() {
    for budget in 1..=3 {
        let mut rig = rig(budget);
        rig.restless(10..15);
        let flushing = rig.order(1, "a", |attach| attach);
        let closing = rig.order(2, "b", |attach| attach);
        rig.orders.push(Order::Detach(2));
        rig.input.endless(|_| 100);
        rig.turns_until(100, |_| flushing.taken() >= 10 && closing.is_closed());
        rig.endless_orders(); // no item is read any more, so the delivered item must be flushed
        rig.turns_until(100, |_| flushing.flush_asked() == flushing.taken());
        let (taken, orders) = (flushing.taken(), rig.orders.taken());
        rig.turns_until(100, |rig| rig.orders.taken() > orders + 10);
        assert_eq!(flushing.taken(), taken);
    }
}

// The shares.

#[test]
fn endless_orders_leave_a_quarter_to_sinks() {
    for budget in [4, 8, 30, 128] {
        let mut rig = rig(budget);
        let sinks = rig.attach_each(1..500);
        for sink in &sinks {
            sink.hold(Op::Close);
        }
        rig.orders.extend((1..500).map(Order::Detach));
        rig.sleep();
        for sink in &sinks {
            sink.release(Op::Close);
        }
        rig.endless_orders();
        for _ in 0..3 {
            let (orders, detached) = (rig.orders.taken(), rig.totals().detached);
            rig.poll();
            assert_eq!(rig.orders.taken() - orders, budget - budget / 4, "budget {budget}");
            assert_eq!(rig.totals().detached - detached, (budget / 4) as u64, "budget {budget}");
        }
    }
}

#[test]
fn with_a_small_budget_endless_orders_leave_sinks_one_turn_in_four() {
    for budget in 1..=3 {
        let mut rig = rig(budget);
        rig.restless(1..10);
        rig.endless_orders();
        let before = rig.orders.taken();
        for _ in 0..40 {
            rig.poll();
        }
        assert_eq!(rig.orders.taken() - before, 30 * budget, "budget {budget}");
    }
}

#[test]
fn orders_take_the_whole_turn_if_no_sink_has_work() {
    let mut rig = rig(16);
    rig.attach_each(1..100);
    rig.endless_orders();
    for turn in 1..=5 {
        let before = rig.orders.taken();
        rig.poll();
        assert_eq!(rig.orders.taken() - before, 16, "turn {turn}");
    }
}

#[test]
fn orders_that_come_in_bursts_leave_sinks_their_quarter_too() {
    for burst in [80, 90, 95, 96, 97] {
        let mut rig = rig(128);
        let sinks = rig.attach_each(1..500);
        for sink in &sinks {
            sink.hold(Op::Close);
        }
        rig.orders.extend((1..500).map(Order::Detach));
        rig.sleep();
        for sink in &sinks {
            sink.release(Op::Close);
        }
        for _ in 0..3 {
            rig.orders.extend((0..burst).map(|_| Order::Detach(UNUSED_KEY)));
            let before = rig.totals().detached;
            rig.poll();
            let closed = rig.totals().detached - before;
            assert!(closed >= 32, "{closed} of 32 after {burst} orders");
        }
    }
}

#[test]
fn sinks_leave_a_quarter_to_items() {
    for budget in [4, 8, 30, 128] {
        let mut rig = rig(budget);
        rig.restless(1..200);
        rig.input.endless(|_| 0);
        for _ in 0..20 {
            let before = rig.totals().received;
            rig.poll();
            let read = rig.totals().received - before;
            assert!(read >= (budget / 4) as u64, "{read} of a budget of {budget}");
        }
    }
}

#[test]
fn with_a_small_budget_sinks_leave_items_one_turn_in_four() {
    for budget in 1..=3 {
        let mut rig = rig(budget);
        rig.restless(1..10);
        rig.input.endless(|_| 0);
        let before = rig.totals().received;
        for _ in 0..40 {
            rig.poll();
        }
        let read = rig.totals().received - before;
        assert!(read >= 10 * budget as u64, "{read} in 40 turns of {budget}");
    }
}

#[test]
fn awaited_sinks_take_the_share_of_items() {
    // While the input is blocked, no quarter is reserved for items.
    let mut rig = rig(8);
    let sinks = rig.attach_each(1..41);
    for sink in &sinks {
        sink.hold(Op::Close);
    }
    rig.orders.extend((2..41).map(Order::Detach));
    sinks[0].park();
    rig.input.extend([101, 102]);
    rig.sleep();
    for sink in &sinks[1..] {
        sink.release(Op::Close);
    }
    for turn in 1..=4 {
        rig.poll();
        assert_eq!(rig.totals().detached, turn * 8);
    }
}

// The delay of a woken, ready sink while orders and input never pause.

#[test]
fn a_woken_sink_closes_within_four_turns_while_orders_and_input_never_pause() {
    for budget in [4, 5, 7, 8, 16, 128] {
        let mut rig = rig(budget);
        let sink = rig.attach_each(1..2).remove(0);
        sink.hold(Op::Close);
        rig.orders.push(Order::Detach(1));
        rig.sleep();
        rig.endless_orders();
        rig.input.endless(|_| 0);
        rig.poll();
        sink.release(Op::Close);
        let turns = rig.turns_until(4, |_| sink.is_closed());
        assert_eq!(turns, 1, "no other work uses the quarter: budget {budget}");
    }
}

#[test]
fn a_woken_sink_gets_its_item_within_four_turns_while_orders_and_input_never_pause() {
    for budget in [4, 5, 7, 8, 16, 128] {
        let mut rig = rig(budget);
        let sink = rig.queued(1, 1);
        rig.endless_orders();
        rig.input.endless(|_| 0);
        rig.poll();
        sink.open();
        rig.turns_until(4, |_| sink.taken() == 1);
    }
}

#[test]
fn a_woken_sink_gets_its_item_within_four_turns_while_orders_release_a_backlog() {
    let mut rig = rig(128);
    let stuck = rig.order(1, "a", |attach| attach.buffer(10_000));
    stuck.park();
    rig.input.extend((0..10_000).map(|_| 100));
    rig.sleep();
    let woken = rig.queued(2, 1);
    // In every turn, another ready sink takes over the backlog.
    let sinks =
        (0..8).map(|_| rig.order(1, "a", |attach| attach.buffer(10_000))).collect::<Vec<_>>();
    rig.endless_orders();
    woken.open();
    rig.turns_until(4, |_| woken.taken() == 1);
    assert!(sum(&sinks, SinkHandle::taken) > 0, "the backlog does not move");
}

#[test]
fn a_long_queue_leaves_the_other_woken_sinks_their_turn() {
    let mut rig = rig(128);
    let sinks = (1..101).map(|key| rig.queued(key, 90)).collect::<Vec<_>>();
    sinks.iter().for_each(SinkHandle::open);
    rig.turns_until(20, |_| sinks.iter().all(|sink| sink.taken() > 0));
    rig.sleep();
    assert_eq!(sum(&sinks, SinkHandle::taken), 9_000);
}

#[test]
fn a_long_queue_gets_an_eighth_of_the_rest_while_others_wait_and_all_if_it_is_the_last() {
    let mut rig = rig(128);
    let sinks = [rig.queued(1, 90), rig.queued(2, 90), rig.queued(3, 90)];
    sinks.iter().for_each(SinkHandle::open);
    rig.poll();
    let mut taken = sinks.each_ref().map(SinkHandle::taken);
    taken.sort_unstable();
    // A quarter is reserved for items, and to poll a sink costs one: an eighth of 95, of 83, and
    // the rest.
    assert_eq!(taken, [10, 11, 72]);
}

/// A hundred sinks wait for their flush, while endless orders have been sent for some turns.
#[track_caller]
fn flushes_wait(rig: &mut Rig, since: usize) {
    let sinks = rig.attach_each(100..200);
    rig.input.extend((100..200).map(|key| key * 100));
    rig.turns_until(100, |_| sum(&sinks, SinkHandle::taken) == 100);
    rig.endless_orders();
    (0..=since).for_each(|_| rig.poll());
    assert!(sum(&sinks, |sink| sink.count(Op::Flush)) < 100);
}

#[test]
fn a_woken_sink_closes_within_four_turns_while_flushes_are_overdue() {
    for (budget, since) in [4, 5, 7, 8, 16].into_iter().flat_map(|b| (0..16).map(move |n| (b, n))) {
        let mut rig = rig(budget);
        let sink = rig.attach_each(1..2).remove(0);
        sink.hold(Op::Close);
        rig.orders.push(Order::Detach(1));
        rig.sleep();
        flushes_wait(&mut rig, since);
        sink.release(Op::Close);
        rig.turns_until(4, |_| sink.is_closed());
    }
}

#[test]
fn a_woken_sink_gets_its_item_within_four_turns_while_flushes_are_overdue() {
    for (budget, since) in [4, 5, 7, 8, 16].into_iter().flat_map(|b| (0..16).map(move |n| (b, n))) {
        let mut rig = rig(budget);
        let sink = rig.queued(1, 1);
        flushes_wait(&mut rig, since);
        sink.open();
        rig.turns_until(4, |_| sink.taken() == 1);
    }
}

// Sinks that always wake themselves starve neither flushes nor completion.

#[test]
fn overdue_flushes_are_not_starved_by_sinks_that_always_wake_themselves() {
    for budget in [1, 2, 3, 4, 8, 16] {
        let mut rig = rig(budget);
        rig.restless(1..50);
        let sinks = rig.attach_now(100..110);
        rig.input.extend((100..110).map(|key| key * 100));
        rig.turns_until(100, |_| sum(&sinks, SinkHandle::taken) == 10);
        rig.endless_orders();
        rig.turns_until(200, |_| sinks.iter().all(|sink| sink.flush_asked() == 1));
    }
}

#[test]
fn the_end_is_reached_though_sinks_wake_themselves_and_orders_never_pause() {
    for budget in [1, 2, 3, 4, 8, 16] {
        let mut rig = rig(budget);
        rig.restless(1..50);
        rig.attach_now(100..110);
        rig.orders.push(Order::Finish);
        rig.endless_orders();
        rig.turns_until(1_000, |rig| rig.task.get_ref().is_empty());
        assert_eq!(rig.totals().detached, 10);
    }
}

#[test]
fn one_flush_in_every_window_though_sinks_always_wake_themselves() {
    let mut rig = rig_with(|demux| demux.budget(8).flush_every(20));
    rig.restless(1..50);
    let sink = rig.attach_now(100..101).remove(0);
    rig.input.endless(|_| 10_000);
    for _ in 0..100 {
        rig.poll();
        assert!(sink.taken() - sink.flush_asked() <= 21);
    }
    assert!(rig.totals().received >= 200);
}

// Sinks and streams that wake themselves while they are polled.

/// Polls until the task parks. In each turn, `op` is called once and the task is woken once.
#[track_caller]
fn once_a_turn(rig: &mut Rig, sink: &SinkHandle<u32>, op: Op, times: usize) {
    for turn in 1..=times {
        rig.poll();
        assert_eq!((sink.count(op), rig.task.wakes()), (turn, 1), "turn {turn}");
    }
}

#[test]
fn a_poll_ready_that_wakes_itself_is_called_once_a_turn_and_others_continue() {
    let mut rig = rig(128);
    let sinks = rig.attach_each(1..3);
    sinks[0].stutter(Op::Ready, 3);
    rig.input.extend([200, 100, 201]);
    rig.poll();
    assert_eq!((sinks[0].count(Op::Ready), rig.task.wakes()), (1, 1));
    assert_eq!((sinks[1].taken(), sinks[1].flush_asked()), (1, 1));
    for turn in 2..=3 {
        rig.poll();
        assert_eq!((sinks[0].count(Op::Ready), rig.task.wakes()), (turn, 1));
    }
    rig.sleep();
    assert_eq!((sinks[0].items(), sinks[1].items()), (vec![100], vec![200, 201]));
}

#[test]
fn a_poll_ready_that_wakes_itself_while_the_flush_is_pending_is_called_once_a_turn() {
    let mut rig = rig(128);
    let sink = rig.order(1, 1, |attach| attach.overflow(Overflow::DropNewest));
    sink.hold(Op::Flush);
    rig.input.push(100);
    rig.sleep();
    sink.stutter(Op::Ready, 3);
    rig.input.extend([101, 102, 103]);
    for polls in 2..=4 {
        rig.poll();
        assert_eq!((sink.count(Op::Ready), rig.task.wakes()), (polls, 1));
        if polls == 2 {
            // One is queued, one is held until the sink is polled again, and one is unread.
            let t = rig.totals();
            assert_eq!((t.queued, t.discarded, rig.input.left()), (2, 0, 1));
        }
    }
    rig.sleep();
    assert_eq!(sink.items()[..2], [100, 101]);
}

#[test]
fn a_queue_whose_sink_wakes_itself_is_tried_once_a_turn_and_items_are_read() {
    let mut rig = rig(128);
    let sink = rig.order(1, "a", |attach| attach.buffer(2));
    let other = rig.attach_each(2..3).remove(0);
    sink.stutter(Op::Ready, 3);
    for turn in 1..=3 {
        rig.input.push(200);
        if turn == 1 {
            rig.input.push(100);
        }
        rig.poll();
        assert_eq!((sink.count(Op::Ready), rig.task.wakes()), (turn, 1));
        assert_eq!((other.taken(), other.flush_asked()), (turn, turn));
    }
    rig.sleep();
    assert_eq!(sink.items(), [100]);
}

#[test]
fn a_flush_that_wakes_itself_is_polled_once_a_turn() {
    let mut rig = rig(128);
    let sinks = rig.attach_each(1..3);
    sinks[0].stutter(Op::Flush, 3);
    rig.input.extend([100, 200]);
    once_a_turn(&mut rig, &sinks[0], Op::Flush, 3);
    assert_eq!(sinks[1].count(Op::Flush), 1);
    rig.sleep();
    assert_eq!((sinks[0].count(Op::Flush), sinks[0].flushed()), (4, 1));
}

#[test]
fn a_close_that_wakes_itself_is_polled_once_a_turn() {
    let mut rig = rig(128);
    let sinks = rig.attach_each(1..3);
    sinks[0].stutter(Op::Close, 3);
    rig.input.end();
    once_a_turn(&mut rig, &sinks[0], Op::Close, 3);
    assert!(sinks[1].is_closed());
    assert!(rig.run().is_ready());
    assert_eq!(sinks[0].count(Op::Close), 4);
}

#[test]
fn a_detached_sink_whose_close_wakes_itself_is_polled_once_a_turn() {
    let mut rig = rig(128);
    let sink = rig.attach_each(1..2).remove(0);
    sink.stutter(Op::Close, 3);
    rig.orders.push(Order::Detach(1));
    once_a_turn(&mut rig, &sink, Op::Close, 3);
    rig.sleep();
    assert!(sink.is_closed() && sink.count(Op::Close) == 4);
}

#[test]
fn orders_that_wake_themselves_are_polled_once_a_turn() {
    let mut rig = rig(128);
    (0..5).for_each(|_| rig.orders.stutter());
    rig.input.push(0);
    for turn in 1..=5 {
        rig.poll();
        assert_eq!((rig.orders.polls(), rig.task.wakes()), (turn, 1));
    }
    rig.sleep();
    assert_eq!(rig.totals().unmatched, 1);
}

#[test]
fn orders_that_wake_themselves_are_polled_once_in_the_last_turn_too() {
    let mut rig = rig(128);
    let sink = rig.attach_each(1..2).remove(0);
    sink.hold(Op::Close);
    rig.input.end();
    rig.sleep();
    (0..5).for_each(|_| rig.orders.stutter());
    rig.orders.wake();
    sink.release(Op::Close);
    let before = rig.orders.polls();
    let _ = rig.task.poll();
    assert!(sink.is_closed());
    assert_eq!(rig.orders.polls() - before, 1);
}

#[test]
fn the_task_is_woken_once_if_several_wake_themselves() {
    let mut rig = rig(64);
    rig.restless(1..20);
    let flushing = rig.attach_now(30..31).remove(0);
    flushing.stutter(Op::Flush, usize::MAX);
    let queued = rig.order(31, 31, |attach| attach.buffer(2));
    queued.stutter(Op::Ready, usize::MAX);
    rig.input.extend([3_000, 3_100]);
    for _ in 0..20 {
        rig.orders.stutter();
        rig.poll();
        assert_eq!(rig.task.wakes(), 1);
    }
    assert!(flushing.count(Op::Flush) > 10 && queued.count(Op::Ready) > 10);
}

#[test]
fn a_turn_that_leaves_work_wakes_the_task_once() {
    let mut rig = rig(4);
    rig.attach_each(1..9);
    rig.input.endless(|n| 100 + u32::try_from(n % 8).unwrap() * 100);
    for _ in 0..20 {
        rig.poll();
        assert_eq!(rig.task.wakes(), 1);
    }
}

#[test]
fn a_turn_that_leaves_nothing_does_not_wake_the_task() {
    let mut rig = rig(128);
    rig.attach_each(1..9);
    rig.input.extend([100, 200, 300]);
    rig.poll();
    assert_eq!(rig.task.wakes(), 0);
}

#[test]
#[should_panic(expected = "budget")]
fn a_budget_of_0_panics() {
    drop(rig(0));
}
