//! Guarantee 6, flushing: at once when the input is not ready, once per window under load, never
//! once per item. No item stays unflushed, and a sink that is being closed is not flushed
//! separately.

use std::sync::{Arc, Mutex};

use crate::common::{
    Answer::{Done, Pending},
    Call, Op, Rig, SinkHandle, Split, StreamHandle,
};
use stream_demux::Order;

/// The default of `flush_every`, and of `budget`.
const WINDOW: usize = 16_384;
const BUDGET: usize = 128;

/// A demux whose items are their own keys.
fn rig() -> Rig {
    rig_with(|demux| demux)
}

fn rig_with(settings: impl FnOnce(Split) -> Split) -> Rig {
    Rig::keyed(|n| *n, settings).with_silent_sinks()
}

fn flushes(sinks: &[SinkHandle<u32>]) -> usize {
    sinks.iter().map(|sink| sink.count(Op::Flush)).sum()
}

/// Measures, inside the input, how many items were read since each sink took its first unflushed
/// item. The input is endless, and its items go to the sinks in turn.
struct Watch(Arc<Mutex<Lag>>);

#[derive(Default)]
struct Lag {
    /// For each sink, the number of its first unflushed item.
    first: Vec<Option<u64>>,
    worst: u64,
}

impl Watch {
    /// `sinks` have the keys 0, 1, 2 and so on.
    fn over(input: &StreamHandle<u32>, sinks: &[SinkHandle<u32>]) -> Self {
        let lag = Lag { first: vec![None; sinks.len()], worst: 0 };
        let lag = Arc::new(Mutex::new(lag));
        let (shared, sinks) = (Arc::clone(&lag), sinks.to_vec());
        input.endless(move |read| {
            let mut lag = shared.lock().unwrap();
            let count = sinks.len() as u64;
            // The sink that got the last item.
            if read > 0 {
                let last = usize::try_from((read - 1) % count).unwrap();
                lag.first[last].get_or_insert(read);
            }
            for (index, sink) in sinks.iter().enumerate() {
                if sink.flush_asked() == sink.taken() {
                    lag.first[index] = None;
                }
                if let Some(first) = lag.first[index] {
                    lag.worst = lag.worst.max(read - first);
                }
            }
            u32::try_from(read % count).unwrap()
        });
        Self(lag)
    }

    /// The largest number of items that were read while an item waited for a flush.
    fn worst(&self) -> u64 {
        self.0.lock().unwrap().worst
    }
}

// A lull.

#[test]
fn a_lull_flushes_in_the_same_poll() {
    let mut rig = rig();
    let sink = rig.attach(1, "a");
    rig.input.extend([1, 1, 1]);
    rig.poll();
    assert_eq!((sink.flushed(), sink.count(Op::Flush), rig.task.woken()), (3, 1, false));
    rig.poll();
    assert_eq!(sink.count(Op::Flush), 1, "more than one flush");
}

#[test]
fn a_lull_flushes_the_sinks_that_took_items_and_no_others() {
    let mut rig = rig();
    let sinks = rig.attach_each(0..10);
    rig.input.extend([2, 5, 2, 7]);
    rig.poll();
    let counts: Vec<_> = sinks.iter().map(|sink| sink.count(Op::Flush)).collect();
    assert_eq!(counts, [0, 0, 1, 0, 0, 1, 0, 1, 0, 0]);
    rig.input.push(5);
    rig.poll();
    assert_eq!((sinks[2].count(Op::Flush), sinks[5].count(Op::Flush)), (1, 2));
}

#[test]
fn a_lull_with_sixteen_sinks_to_flush_flushes_in_the_same_poll() {
    let mut rig = rig();
    let sinks = rig.attach_each(0..20);
    rig.input.extend(0..16);
    rig.poll();
    assert_eq!(flushes(&sinks), 16);
}

#[test]
fn a_lull_with_more_sinks_to_flush_lets_others_run_once_before() {
    let mut rig = rig();
    let sinks = rig.attach_each(0..20);
    rig.input.extend(0..17);
    rig.poll();
    assert_eq!(flushes(&sinks), 0);
    assert!(rig.task.woken());
    rig.poll();
    assert_eq!(flushes(&sinks), 17);
    assert!(!rig.task.woken());
}

#[test]
fn a_producer_that_runs_in_that_turn_makes_many_items_share_a_flush() {
    let mut rig = rig();
    let sinks = rig.attach_each(0..20);
    for _ in 0..15 {
        rig.input.extend(0..20);
        rig.poll();
        assert!(rig.task.woken());
    }
    assert_eq!(flushes(&sinks), 0);
    rig.sleep();
    assert_eq!((flushes(&sinks), rig.totals().delivered), (20, 300));
}

#[test]
fn a_lull_with_many_sinks_to_flush_does_not_outlast_the_window() {
    let mut rig = rig_with(|demux| demux.flush_every(100));
    let sinks = rig.attach_each(0..20);
    for _ in 0..10 {
        rig.input.extend(0..20);
        rig.poll();
    }
    assert!(flushes(&sinks) >= 20, "{}", flushes(&sinks));
}

#[test]
fn a_lull_in_every_turn_flushes_many_sinks_in_every_sixteenth() {
    for count in [17, 20, 40] {
        let mut rig = rig();
        let sinks = rig.attach_each(0..count);
        for turn in 1..=50 {
            rig.input.extend(0..count);
            rig.poll();
            assert_eq!(flushes(&sinks), turn / 16 * sinks.len(), "turn {turn}");
            let all = sinks.iter().all(|sink| sink.flushed() == turn / 16 * 16);
            assert!(all, "turn {turn}");
            assert_eq!(rig.task.woken(), turn % 16 != 0, "turn {turn}");
        }
    }
}

#[test]
fn dry_turns_are_counted_from_the_oldest_item_that_was_not_flushed() {
    let mut rig = rig();
    let sinks = rig.attach_each(0..30);
    rig.input.extend(0..17);
    rig.poll();
    // One item per turn, to sinks with and without an unflushed item.
    for turn in 2..16 {
        rig.input.push(turn + 10);
        rig.poll();
        assert_eq!(flushes(&sinks), 0, "turn {turn}");
    }
    rig.input.push(29);
    rig.poll();
    assert!(sinks.iter().all(|sink| sink.flushed() == sink.taken()));
    // The next item goes to a sink without one.
    rig.input.push(0);
    rig.poll();
    assert_eq!((sinks[0].flushed(), rig.task.woken()), (2, false));
}

#[test]
fn the_sixteenth_dry_turn_starts_flushes_that_span_turns() {
    for budget in [4, 8, 16] {
        let mut rig = rig_with(|demux| demux.budget(budget));
        let sinks = rig.attach_each(0..40);
        rig.input.extend(0..40);
        rig.turns_until(40, |rig| rig.input.left() == 0);
        for _ in 0..16 {
            rig.input.push(0);
            rig.poll();
        }
        assert!(flushes(&sinks) > 0, "budget {budget}");
        for _ in 0..40 {
            rig.input.push(0);
            rig.poll();
        }
        let forgotten = sinks.iter().filter(|sink| sink.count(Op::Flush) == 0).count();
        assert_eq!(forgotten, 0, "budget {budget}");
    }
}

#[test]
fn a_turn_that_reads_nothing_flushes_many_sinks_before_the_sixteenth() {
    let mut rig = rig();
    let sinks = rig.attach_each(0..20);
    for _ in 0..5 {
        rig.input.extend(0..20);
        rig.poll();
    }
    rig.poll();
    assert_eq!((flushes(&sinks), rig.task.woken()), (20, false));
}

#[test]
fn many_sinks_are_flushed_though_the_input_is_blocked() {
    let mut rig = rig();
    let sinks = rig.attach_each(0..20);
    let stuck = rig.attach(99, "stuck");
    stuck.park();
    rig.input.extend(0..20);
    rig.input.extend([99, 0]);
    rig.poll();
    rig.poll();
    assert_eq!((flushes(&sinks), rig.task.woken(), rig.input.left()), (20, false, 1));
}

#[test]
fn many_members_are_flushed_though_another_one_blocks_the_input() {
    let mut rig = rig_with(|demux| demux.multicast());
    let members: Vec<_> = (0..20).map(|n| rig.order(1, n, |attach| attach)).collect();
    rig.sleep();
    members[0].park();
    rig.input.extend([1, 1]);
    rig.poll();
    assert_eq!(flushes(&members), 0);
    rig.poll();
    assert_eq!((flushes(&members), rig.task.woken(), rig.input.left()), (19, false, 1));
}

/// The turn in which the last members get the item counts as a turn that read an item.
#[test]
fn a_lull_after_an_item_for_a_large_group_lets_others_run_once_before() {
    let mut rig = rig_with(|demux| demux.multicast().budget(8));
    let members: Vec<_> = (0..20).map(|n| rig.order(1, n, |attach| attach)).collect();
    rig.sleep();
    rig.input.push(1);
    assert_eq!(rig.turns_until(5, |rig| rig.totals().delivered == 20), 3);
    assert_eq!((flushes(&members), rig.task.woken()), (0, true));
    rig.poll();
    assert_eq!(flushes(&members), 8);
}

#[test]
fn a_lull_that_wakes_itself_is_a_lull() {
    let mut rig = rig();
    let sink = rig.attach(1, "a");
    rig.input.push(1);
    rig.input.stutter();
    rig.poll();
    assert_eq!(sink.flushed(), 1);
}

#[test]
fn a_sink_that_is_not_ready_any_more_is_flushed_before_the_task_sleeps() {
    for buffer in [0, 3] {
        let mut rig = rig();
        let sink = rig.order(1, "a", |attach| attach.buffer(buffer));
        sink.park();
        sink.allow(1);
        rig.input.extend([1, 1]);
        rig.sleep();
        assert_eq!((sink.taken(), sink.flushed(), rig.totals().queued), (1, 1, 1));
        assert!(sink.is_waiting(Op::Ready));
    }
}

#[test]
fn drained_items_are_flushed_before_the_task_parks() {
    let mut rig = rig();
    let sink = rig.order(1, "a", |attach| attach.buffer(5));
    sink.park();
    rig.input.extend([1, 1, 1]);
    rig.sleep();
    assert_eq!(sink.count(Op::Flush), 0, "the sink was flushed before it took an item");
    sink.allow(2);
    rig.poll();
    assert_eq!((sink.taken(), sink.flushed(), rig.task.woken()), (2, 2, false));
    sink.open();
    rig.poll();
    assert_eq!((sink.flushed(), sink.count(Op::Flush)), (3, 2));
}

#[test]
fn the_budget_ends_before_all_is_flushed_and_the_rest_follows() {
    for budget in [1, 2, 3, 4, 7] {
        let mut rig = rig_with(|demux| demux.budget(budget));
        let sinks = rig.attach_each(0..20);
        rig.input.extend(0..20);
        rig.turns_until(40, |_| sinks.iter().all(|sink| sink.taken() == 1));
        assert!(flushes(&sinks) < 20);
        while rig.task.woken() {
            rig.poll();
        }
        assert!(sinks.iter().all(|sink| sink.flushed() == 1 && sink.count(Op::Flush) == 1));
    }
}

#[test]
fn an_input_that_resumes_after_a_lull_does_not_forget_pending_flushes() {
    let mut rig = rig_with(|demux| demux.budget(4));
    let sinks = rig.attach_each(0..20);
    rig.input.extend(0..20);
    rig.turns_until(40, |_| flushes(&sinks) > 0); // the lull has started, and some sinks were flushed
    assert!(flushes(&sinks) < 20);
    rig.input.endless(|_| 1_000);
    rig.turns_until(20, |_| flushes(&sinks) == 20);
}

// No lull.

#[test]
fn a_window_of_one_flushes_before_the_second_item_after() {
    let mut rig = rig_with(|demux| demux.budget(1).flush_every(1));
    let sinks = rig.attach_each(0..3);
    let watch = Watch::over(&rig.input, &sinks);
    rig.turns_until(200, |rig| rig.totals().received == 60);
    assert!(watch.worst() < 1, "{}", watch.worst());
}

#[test]
fn no_sink_waits_longer_than_the_window() {
    for window in [1, 2, 3, 10, 100, 1_000] {
        for budget in [1, 2, 4, 16, 128] {
            for keys in [1, 2, 30] {
                let mut rig = rig_with(|demux| demux.budget(budget).flush_every(window));
                let sinks = rig.attach_each(0..keys);
                let watch = Watch::over(&rig.input, &sinks);
                rig.turns_until(20_000, |rig| rig.totals().received >= 2_500);
                assert!(
                    watch.worst() < window as u64,
                    "{} of {window}, budget {budget}, {keys} keys",
                    watch.worst()
                );
            }
        }
    }
}

#[test]
fn items_share_a_flush_however_small_the_window_is_beside_the_budget() {
    for (window, budget) in [(64, 128), (4, 128), (8, 128), (100, 1_000), (64, 64), (1_000, 128)] {
        for keys in [1, 4] {
            let mut rig = rig_with(|demux| demux.budget(budget).flush_every(window));
            let sinks = rig.attach_each(0..keys);
            let watch = Watch::over(&rig.input, &sinks);
            rig.turns_until(10_000, |rig| rig.totals().received >= 10_000);
            assert!(watch.worst() < window as u64, "{} of {window}", watch.worst());
            // A turn flushes only sinks that fall due within a quarter of the window.
            let items = usize::try_from(rig.totals().received).unwrap();
            let most = sinks.len() * (items.div_ceil(window - window / 4) + 1);
            let flushes = flushes(&sinks);
            assert!(flushes <= most, "{flushes} of {most}: window {window}, budget {budget}");
        }
    }
}

#[test]
fn items_of_short_turns_share_a_flush_if_the_window_is_smaller_than_the_budget() {
    let mut rig = rig_with(|demux| demux.flush_every(128));
    // Enough sinks that more than 16 need a flush whenever the input runs dry.
    let sinks = rig.attach_each(0..40);
    for _ in 0..100 {
        rig.input.extend(0..40);
        rig.poll();
    }
    let flushes = flushes(&sinks);
    // The oldest item waits for at least 96 further items, which take three turns.
    assert!((4_000 / 4 - 40..=4_000 / 3 + 40).contains(&flushes), "{flushes} for 4,000 items");
}

#[test]
fn with_many_more_keys_than_the_window_each_item_has_its_flush_in_time() {
    let mut rig = rig_with(|demux| demux.flush_every(64));
    let sinks = rig.attach_each(0..1_000);
    let watch = Watch::over(&rig.input, &sinks);
    rig.turns_until(1_000, |rig| rig.totals().received >= 5_000);
    assert!(watch.worst() < 64, "{}", watch.worst());
    let sent = usize::try_from(rig.totals().delivered).unwrap();
    assert!(flushes(&sinks) <= sent && flushes(&sinks) + 64 + BUDGET >= sent);
}

#[test]
fn by_default_a_busy_sink_is_flushed_once_in_16_384_items() {
    let mut rig = rig();
    let sink = rig.attach(1, "a");
    rig.input.extend(std::iter::repeat_n(1, 4 * WINDOW + WINDOW / 2));
    rig.sleep();
    assert_eq!(sink.flushed(), sink.taken());
    // Four flushes that fell due, up to a budget early, and one at the lull.
    assert_eq!(sink.count(Op::Flush), 5);
}

#[test]
fn a_busy_sink_is_flushed_once_a_window_and_not_once_per_item() {
    let mut rig = rig_with(|demux| demux.budget(10).flush_every(1_000));
    let sink = rig.attach(1, "a");
    rig.input.endless(|_| 1);
    rig.turns_until(5_000, |rig| rig.totals().received >= 20_000);
    let flushes = sink.count(Op::Flush);
    assert!((19..=20).contains(&flushes), "{flushes}"); // each may be ten items early
}

#[test]
fn with_more_busy_sinks_than_the_window_has_items_each_is_flushed_once_a_window() {
    let mut rig = rig_with(|demux| demux.budget(20).flush_every(1_000));
    let sinks = rig.attach_each(0..3_000);
    rig.input.endless(|read| u32::try_from(read % 3_000).unwrap());
    rig.turns_until(5_000, |rig| rig.totals().received >= 5_000);
    for _ in 0..100 {
        rig.poll();
        let waiting = sinks.iter().filter(|sink| sink.flushed() < sink.taken()).count();
        assert!((960..=1_000).contains(&waiting), "{waiting}");
    }
}

#[test]
fn a_sink_whose_items_paused_is_flushed_while_others_stay_busy() {
    let mut rig = rig_with(|demux| demux.budget(8).flush_every(100));
    let sinks = rig.attach_each(0..2);
    rig.input.push(1);
    rig.input.endless(|_| 0);
    rig.turns_until(20, |rig| rig.totals().received >= 80);
    assert_eq!(sinks[1].count(Op::Flush), 0);
    rig.turns_until(20, |rig| rig.totals().received >= 101);
    rig.poll();
    assert_eq!((sinks[1].count(Op::Flush), sinks[1].flushed()), (1, 1));
}

#[test]
fn a_busy_input_that_is_unmatched_counts_too() {
    let mut rig = rig_with(|demux| demux.budget(8).flush_every(50));
    let sink = rig.attach(1, "a");
    rig.input.push(1);
    rig.input.endless(|_| 99);
    rig.turns_until(20, |rig| rig.totals().received >= 64);
    assert_eq!(sink.flushed(), 1);
}

#[test]
fn drained_items_are_flushed_within_a_window_of_a_busy_input() {
    let mut rig = rig_with(|demux| demux.budget(8).flush_every(40));
    let sink = rig.order(1, "a", |attach| attach.buffer(5));
    sink.park();
    rig.input.extend([1, 1]);
    rig.sleep();
    rig.input.endless(|_| 99);
    rig.poll();
    sink.open();
    rig.turns_until(10, |_| sink.taken() == 2);
    let then = rig.totals().received;
    rig.turns_until(10, |rig| rig.totals().received > then + 40);
    assert_eq!((sink.flushed(), sink.count(Op::Flush)), (2, 1));
}

// No item is read, though the input is ready.

#[test]
fn a_turn_that_reads_nothing_for_orders_flushes() {
    let mut rig = rig_with(|demux| demux.budget(16));
    let sinks = rig.attach_each(0..4);
    rig.input.extend([0, 1, 2, 3]);
    rig.input.endless(|_| 99);
    rig.poll();
    assert_eq!((rig.totals().received, flushes(&sinks)), (16, 0));
    rig.orders.endless(|_| Order::Detach(50));
    rig.poll();
    rig.poll();
    assert_eq!((rig.totals().received, flushes(&sinks)), (16, 4));
}

#[test]
fn drains_are_flushed_while_the_input_is_blocked() {
    let mut rig = rig();
    let sink = rig.order(1, "a", |attach| attach.buffer(5));
    let stuck = rig.attach(2, "b");
    stuck.park();
    sink.park();
    rig.input.extend([1, 1, 2, 99]);
    rig.sleep();
    sink.open();
    rig.poll();
    assert_eq!((sink.flushed(), rig.task.woken(), rig.input.left()), (2, false, 1));
}

#[test]
fn the_item_before_the_one_that_blocks_is_flushed() {
    let mut rig = rig();
    let sinks = rig.attach_each(0..2);
    sinks[1].park();
    rig.input.extend([0, 1, 0]);
    rig.poll();
    assert_eq!((sinks[0].flushed(), rig.task.woken(), rig.input.left()), (1, false, 1));
}

// A flush that is pending.

#[test]
fn a_pending_flush_holds_up_no_other_sink() {
    let mut rig = rig();
    let sinks = rig.attach_each(0..3);
    sinks[0].hold(Op::Flush);
    rig.input.extend([0, 1, 2]);
    rig.sleep();
    rig.input.extend([1, 2]);
    rig.sleep();
    assert_eq!((sinks[1].flushed(), sinks[2].flushed()), (2, 2));
    assert_eq!((sinks[0].flushed(), sinks[0].count(Op::Flush)), (0, 1));
}

#[test]
fn a_woken_flush_is_polled_at_once_though_the_input_is_busy() {
    let mut rig = rig_with(|demux| demux.budget(8));
    let sink = rig.attach(1, "a");
    sink.hold(Op::Flush);
    rig.input.push(1);
    rig.sleep();
    rig.input.endless(|_| 99);
    rig.poll();
    sink.release(Op::Flush);
    rig.poll();
    assert_eq!((sink.flushed(), sink.count(Op::Flush)), (1, 2));
}

#[test]
fn a_pending_flush_is_polled_again_in_every_window_in_which_the_sink_took_an_item() {
    let mut rig = rig_with(|demux| demux.budget(10).flush_every(100));
    let sink = rig.attach(1, "a");
    sink.hold(Op::Flush);
    rig.input.endless(|_| 1);
    rig.turns_until(300, |rig| rig.totals().received >= 1_000);
    let polls = sink.count(Op::Flush);
    assert!((9..=11).contains(&polls), "{polls}");
    sink.release(Op::Flush);
    rig.poll();
    assert!(sink.flushed() >= 1_000);
}

#[test]
fn a_pending_flush_is_polled_again_at_the_lull_after_another_item() {
    let mut rig = rig();
    let sink = rig.attach(1, "a");
    sink.hold(Op::Flush);
    for item in 1..=3 {
        rig.input.push(1);
        rig.sleep();
        assert_eq!((sink.flush_asked(), sink.count(Op::Flush)), (item, item));
    }
    sink.release(Op::Flush);
    rig.sleep();
    assert_eq!((sink.flushed(), sink.count(Op::Flush)), (3, 4));
}

// A flush that fails.

#[test]
fn a_flush_that_fails_and_frees_the_input_wakes_the_task() {
    for budget in [3, 4, 128] {
        let mut rig = rig_with(|demux| demux.budget(budget));
        let sinks = rig.attach_each(0..2);
        sinks[1].park();
        sinks[1].allow(1);
        sinks[1].fail_quietly(Op::Flush);
        rig.input.extend([1, 1, 0, 0]);
        rig.sleep();
        assert!(sinks[1].is_dropped());
        assert_eq!((sinks[0].flushed(), rig.input.left()), (2, 0), "budget {budget}");
    }
}

#[test]
fn a_flush_that_fails_after_the_end_completes() {
    for budget in [1, 2, 3, 4, 128] {
        let mut rig = rig_with(|demux| demux.budget(budget));
        let sink = rig.order(1, "a", |attach| attach.buffer(5));
        sink.park();
        rig.input.extend([1, 1, 1]);
        rig.input.end();
        rig.sleep();
        sink.fail_quietly(Op::Flush);
        sink.allow(1);
        assert!(rig.run().is_ready(), "budget {budget}");
        assert_eq!((sink.taken(), sink.count(Op::Close)), (1, 0));
    }
}

#[test]
fn a_flush_that_fails_does_not_prevent_other_flushes() {
    let mut rig = rig();
    let sinks = rig.attach_each(0..3);
    sinks[0].fail_quietly(Op::Flush);
    rig.input.extend([0, 1, 2]);
    rig.sleep();
    assert_eq!((sinks[1].flushed(), sinks[2].flushed()), (1, 1));
}

// Not in addition to a close.

const SENT_AND_CLOSED: [Call; 4] =
    [Call::Ready(Done), Call::Send(Done), Call::Close(Done), Call::Drop];

#[test]
fn a_sink_that_is_being_closed_is_not_flushed() {
    let mut rig = rig();
    let sinks = rig.attach_each(0..3);
    rig.input.extend([0, 1, 2]);
    rig.input.end();
    assert!(rig.run().is_ready());
    assert!(sinks.iter().all(|sink| sink.calls() == SENT_AND_CLOSED && sink.flushed() == 1));
}

#[test]
fn a_sink_that_reached_its_limit_is_not_flushed_separately() {
    let mut rig = rig();
    let sink = rig.order(1, "a", |attach| attach.limit(1));
    rig.input.push(1);
    rig.sleep();
    assert_eq!(sink.calls(), SENT_AND_CLOSED);
}

#[test]
fn a_sink_that_is_detached_in_the_turn_of_its_item_is_not_flushed_separately() {
    let mut rig = rig();
    let sink = rig.attach(1, "a");
    let orders = rig.orders.clone();
    rig.input.push(1);
    rig.input.action(move || orders.push(Order::Detach(1)));
    rig.input.push(1);
    rig.sleep();
    assert_eq!(sink.calls(), SENT_AND_CLOSED);
}

#[test]
fn a_sink_whose_close_is_pending_is_not_flushed() {
    let mut rig = rig();
    let sink = rig.order(1, "a", |attach| attach.limit(1));
    sink.hold(Op::Close);
    rig.input.push(1);
    rig.sleep();
    rig.input.extend([99, 99]);
    rig.sleep();
    sink.release(Op::Close);
    rig.sleep();
    let calls =
        [Call::Ready(Done), Call::Send(Done), Call::Close(Pending), Call::Close(Done), Call::Drop];
    assert_eq!(sink.calls(), calls);
}

#[test]
fn a_sink_whose_flush_is_pending_is_closed_without_waiting_for_it() {
    let mut rig = rig();
    let sink = rig.attach(1, "a");
    sink.hold(Op::Flush);
    rig.input.push(1);
    rig.sleep();
    rig.orders.push(Order::Detach(1));
    rig.poll();
    let calls =
        [Call::Ready(Done), Call::Send(Done), Call::Flush(Pending), Call::Close(Done), Call::Drop];
    assert_eq!(sink.calls(), calls);
}

#[test]
fn a_leaving_sink_that_drains_is_flushed_before_the_task_parks() {
    let mut rig = rig();
    let sink = rig.order(1, "a", |attach| attach.buffer(5));
    sink.park();
    rig.input.extend([1, 1, 1]);
    rig.orders.push(Order::Detach(50));
    rig.sleep();
    rig.orders.push(Order::Detach(1));
    rig.sleep();
    sink.allow(1);
    rig.sleep();
    assert_eq!((sink.taken(), sink.flushed(), sink.count(Op::Flush)), (1, 1, 1));
    sink.open();
    rig.sleep();
    assert_eq!((sink.taken(), sink.count(Op::Flush), sink.is_closed()), (3, 1, true));
}

#[test]
fn the_next_sink_of_a_slot_is_flushed_like_any_other() {
    let mut rig = rig_with(|demux| demux.budget(4).flush_every(50));
    let old = rig.attach(1, "old");
    let orders = rig.orders.clone();
    rig.input.push(1);
    rig.input.action(move || orders.push(Order::Evict(1)));
    rig.input.push(99);
    rig.input.endless(|_| 99);
    rig.poll();
    let new = rig.order(2, "new", |attach| attach);
    rig.poll();
    assert_eq!((old.is_dropped(), new.count(Op::Flush)), (true, 0));
    rig.input.push(2);
    rig.turns_until(5, |_| new.taken() == 1);
    let then = rig.totals().received;
    rig.turns_until(40, |rig| rig.totals().received > then + 50);
    assert_eq!((new.flushed(), new.count(Op::Flush)), (1, 1));
}

#[test]
#[should_panic(expected = "must be at least 1")]
fn a_window_of_0_panics() {
    drop(rig_with(|demux| demux.flush_every(0)));
}
