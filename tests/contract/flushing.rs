//! Guarantee 6, flushing: when the input pauses, once per window while it is busy, never once per
//! item. No flush is forgotten, and a sink that is being closed is not flushed separately.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::tuning::{
    FLUSH_EVERY, FLUSHED_AT_ONCE, LEAST, LONGEST_WAIT, NANOS_PER_ITEM, PER_SINK,
};
use crate::common::{
    Answer::{Done, Pending},
    Call, Op, Rig, SinkHandle, Split, StreamHandle,
};
use stream_demux::{Demux, Order};

/// The smallest number of sinks for whose flushes the demux waits.
#[expect(clippy::cast_possible_truncation, reason = "it is small")]
const MANY: u32 = FLUSHED_AT_ONCE as u32 + 1;
/// The number of turns in a row for which it waits.
const WAIT: usize = LONGEST_WAIT as usize;

/// A demux whose items are their own keys, and whose sinks do not log.
fn rig() -> Rig {
    rig_with(|demux| demux)
}

fn rig_with(settings: impl FnOnce(Split) -> Split) -> Rig {
    Rig::keyed(|n| *n, settings).logging(|_| false)
}

/// How often the sinks were flushed.
fn flushes(sinks: &[SinkHandle<u32>]) -> usize {
    sinks.iter().map(|sink| sink.count(Op::Flush)).sum()
}

/// Runs turns until `done`, and returns their number.
#[track_caller]
fn until(rig: &mut Rig, done: impl Fn(&Rig) -> bool) -> usize {
    for turns in 0..100_000 {
        if done(rig) {
            return turns;
        }
        rig.turn();
    }
    panic!("nothing changes");
}

fn received(rig: &Rig) -> usize {
    usize::try_from(rig.totals().received).unwrap()
}

// A lull: the input has nothing ready.

#[test]
fn lull_flushes_the_sinks_that_took_items_once_and_no_others() {
    let mut rig = rig();
    let sinks = rig.attach_each(0..6);
    rig.push([2, 5, 2]);
    rig.input.stutter(); // a lull that wakes itself is one, too
    rig.turn();
    rig.turn();
    assert_eq!(sinks.iter().map(SinkHandle::flushed).collect::<Vec<_>>(), [0, 0, 2, 0, 0, 1]);
    rig.push([5]);
    rig.turn();
    assert_eq!((flushes(&sinks), rig.task.woken()), (3, false));
}

/// How many turns that read nothing pass before all of these sinks are flushed, after one that read
/// an item for each.
#[track_caller]
fn wait(rig: &mut Rig, sinks: &[SinkHandle<u32>]) -> usize {
    rig.push(0..u32::try_from(sinks.len()).unwrap());
    rig.turn();
    dry(rig, sinks)
}

/// How many more turns that read nothing pass before all of these sinks are flushed.
#[track_caller]
fn dry(rig: &mut Rig, sinks: &[SinkHandle<u32>]) -> usize {
    let flushed = |_: &Rig| sinks.iter().all(|sink| sink.flushed() == sink.taken());
    let turns = until(rig, |rig| flushed(rig) || !rig.task.woken());
    assert!(flushed(rig) && !rig.task.woken(), "{turns} turns");
    turns
}

#[test]
fn few_sinks_are_flushed_at_once_and_many_after_a_wait_that_brings_nothing() {
    for (sinks, turns) in [(1, 0), (MANY - 1, 0), (MANY, WAIT), (100, WAIT)] {
        let mut rig = rig();
        let sinks = rig.attach_each(0..sinks);
        assert_eq!(wait(&mut rig, &sinks), turns, "{} sinks", sinks.len());
        assert_eq!(flushes(&sinks), sinks.len());
    }
}

#[test]
fn copies_count_when_a_wait_pays() {
    let mut rig = rig_with(Demux::multicast);
    let members: Vec<_> = (0..20).map(|name| rig.attach(1, name)).collect();
    rig.push([1]);
    rig.turn();
    for _ in 0..10 {
        for _ in 1..WAIT {
            rig.turn();
        }
        rig.push([1]); // and 19 copies
        rig.turn();
    }
    assert_eq!((flushes(&members), dry(&mut rig, &members)), (0, WAIT));
}

#[test]
fn flushes_that_a_turn_does_not_cover_are_made_in_the_next_ones() {
    for budget in [1, 2, 3, 7] {
        for resumes in [false, true] {
            let mut rig = rig_with(|demux| demux.budget(budget));
            let sinks = rig.attach_each(0..40);
            rig.push(0..40);
            until(&mut rig, |_| flushes(&sinks) > 0);
            assert!(flushes(&sinks) <= budget);
            if resumes {
                rig.input.endless(|_| 1_000);
            }
            let turns = until(&mut rig, |_| flushes(&sinks) == 40);
            assert!(turns <= 40 / budget + 1, "budget {budget}: {turns} turns");
        }
    }
}

// The input has to wait, or a turn reads nothing for another reason.

#[test]
fn turn_that_only_reads_orders_flushes() {
    let mut rig = rig_with(|demux| demux.budget(16));
    let sinks = rig.attach_each(0..4);
    rig.push(0..4);
    rig.input.endless(|_| 99);
    rig.turn();
    assert_eq!((received(&rig), flushes(&sinks)), (16, 0));
    rig.orders.endless(|_| Order::Detach(50));
    rig.turn();
    rig.turn();
    assert_eq!((received(&rig), flushes(&sinks)), (16, 4));
}

#[test]
fn queue_that_drains_is_flushed_before_the_task_parks() {
    for (blocked, leaves) in [(false, false), (true, false), (false, true)] {
        let mut rig = rig();
        let sink = rig.attach_on(1, "a", |attach| attach.buffer(5));
        rig.attach(2, "stuck").park();
        sink.park();
        rig.push([1, 1, 1]);
        rig.push(blocked.then_some(2));
        rig.lines();
        rig.orders.extend(leaves.then_some(Order::Detach(1)));
        rig.lines();
        assert_eq!(sink.count(Op::Flush), 0, "it took nothing");
        sink.allow(2);
        rig.turn();
        assert_eq!((sink.taken(), sink.flushed(), rig.task.woken()), (2, 2, false));
        sink.open();
        rig.turn();
        assert_eq!((sink.flushed(), sink.count(Op::Flush)), (3, if leaves { 1 } else { 2 }));
    }
}

// The input is busy.

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
        let lag = Arc::new(Mutex::new(Lag { first: vec![None; sinks.len()], worst: 0 }));
        let (shared, sinks) = (Arc::clone(&lag), sinks.to_vec());
        input.endless(move |read| {
            let mut lag = shared.lock().unwrap();
            let count = sinks.len() as u64;
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
    fn worst(&self) -> usize {
        usize::try_from(self.0.lock().unwrap().worst).unwrap()
    }
}

/// With a bound that is shorter than any window: no sink waits longer, and each flush comes at most
/// one budget or a quarter of the window early.
#[test]
fn busy_sink_is_flushed_once_in_a_window() {
    for window in [1, 2, 3, 64, 400] {
        for budget in [1, 16, 1_000] {
            for keys in [1, 4, if window == 64 { 500 } else { 30 }] {
                let mut rig = rig_with(|demux| demux.budget(budget).flush_every(window));
                let sinks = rig.attach_each(0..keys);
                let watch = Watch::over(&rig.input, &sinks);
                until(&mut rig, |rig| received(rig) >= 2_500);
                let case = format!("window {window}, budget {budget}, {keys} keys");
                assert!(watch.worst() < window, "{case}: {}", watch.worst());
                let (items, early) = (received(&rig), budget.min(window / 4));
                let most = sinks.len() * (items.div_ceil(window - early) + 1);
                assert!(flushes(&sinks) <= most.min(items), "{case}: {}", flushes(&sinks));
            }
        }
    }
}

/// Whatever the item of another key costs, a quiet key waits for a fixed number of them.
#[test]
fn item_of_a_quiet_key_is_flushed_early_if_few_sinks_share_the_work() {
    for busy in [1, 2, 10, 50, 500] {
        let mut rig = rig();
        let sinks = rig.attach_each(0..=busy);
        let (quiet, busy_key) = (sinks[0].clone(), move |read: u64| 1 + (read % u64::from(busy)));
        let flushed_after = Arc::new(Mutex::new(None));
        let after = Arc::clone(&flushed_after);
        rig.input.endless(move |read| {
            if quiet.flushed() > 0 {
                after.lock().unwrap().get_or_insert(read - 1 - 100_000);
            }
            if read == 100_000 { 0 } else { u32::try_from(busy_key(read)).unwrap() }
        });
        until(&mut rig, |_| flushed_after.lock().unwrap().is_some());
        let price = (u64::from(busy + 1) * PER_SINK).clamp(LEAST, FLUSH_EVERY);
        let after = flushed_after.lock().unwrap().unwrap();
        assert!(after <= price, "beside {busy}: after {after} of {price}");
    }
}

/// Copies pay as items do, but `flush_every` counts items.
#[test]
fn item_of_a_quiet_key_is_flushed_after_a_number_of_items_and_copies() {
    /// Some windows: the busy members have been flushed before.
    const BEFORE: u64 = 1_000;
    for (members, flush_every) in [(2, 16_384), (20, 16_384), (500, 16_384), (500, 10)] {
        let mut rig = rig_with(|demux| demux.multicast().flush_every(flush_every));
        let group: Vec<_> = (0..members).map(|name| rig.attach(1, name)).collect();
        let quiet = rig.attach(0, "quiet");
        let flushed_after = Arc::new(Mutex::new(None));
        let after = Arc::clone(&flushed_after);
        rig.input.endless(move |read| {
            if quiet.flushed() > 0 {
                after.lock().unwrap().get_or_insert(read - 1 - BEFORE);
            }
            u32::from(read != BEFORE)
        });
        until(&mut rig, |_| flushed_after.lock().unwrap().is_some());
        let items = flushed_after.lock().unwrap().unwrap();
        let price = ((members + 1) * PER_SINK).max(LEAST);
        let most = price.div_ceil(members).min(flush_every as u64);
        let turn = 1_024_u64.div_ceil(members); // it may look ahead, and goes on to its end
        assert!(items <= most + turn, "{members} members: after {items} of {most}");
        assert!(group.iter().all(|member| member.flushed() > 0));
    }
}

#[test]
fn sink_without_further_items_is_flushed_while_items_of_others_or_of_none_are_read() {
    for other in [0, 99] {
        let mut rig = rig_with(|demux| demux.budget(8).flush_every(100));
        let sinks = rig.attach_each(0..2);
        let drains = rig.attach_on(2, "drains", |attach| attach.buffer(5));
        drains.park();
        rig.push([2, 2]);
        rig.lines();
        rig.push([1]);
        rig.input.endless(move |_| other);
        drains.open();
        until(&mut rig, |rig| received(rig) >= 80);
        assert_eq!((sinks[1].count(Op::Flush), drains.count(Op::Flush)), (0, 0));
        until(&mut rig, |rig| received(rig) >= 104);
        assert_eq!((sinks[1].flushed(), drains.flushed()), (1, 2));
    }
}

#[test]
fn next_sink_of_a_slot_is_flushed_like_any_other() {
    for (items, fails) in [(0, false), (60, false), (0, true)] {
        let mut rig = rig_with(|demux| demux.budget(4).flush_every(50));
        let old = rig.attach(1, "old");
        old.fail_quietly(if fails { Op::Send } else { Op::Close });
        rig.push([1]);
        let orders = rig.orders.clone();
        rig.input.action(move || orders.push(Order::Evict(1)));
        rig.input.endless(|_| 99);
        until(&mut rig, |rig| received(rig) > items);
        let new = rig.order(2, "new", |attach| attach);
        rig.turn();
        assert_eq!((old.is_dropped(), new.count(Op::Flush)), (true, 0));
        rig.push([2]);
        until(&mut rig, |_| new.taken() == 1);
        let then = received(&rig);
        until(&mut rig, |rig| received(rig) > then + 50);
        assert_eq!((new.flushed(), new.count(Op::Flush)), (1, 1));
    }
}

// Time. A flush may come early, but not before half of what pays for it.

/// How much time pays for the flushes of this number of sinks.
fn time_for(sinks: u32) -> Duration {
    Duration::from_nanos(NANOS_PER_ITEM * (u64::from(sinks) * PER_SINK).max(LEAST))
}

fn elapse(rig: &mut Rig, time: Duration) {
    rig.task.get_pin_mut().elapse(time);
    rig.turn();
}

#[test]
fn wait_for_items_ends_when_its_time_is_over() {
    for sinks in [MANY, 100, 1_000] {
        let mut rig = rig();
        let all = rig.attach_each(0..sinks);
        rig.turn();
        assert!(!rig.demux().has_unflushed());
        rig.push(0..sinks);
        rig.turn();
        assert!(rig.demux().has_unflushed());
        elapse(&mut rig, time_for(sinks) / 2);
        assert_eq!(flushes(&all), 0, "{sinks} sinks");
        elapse(&mut rig, time_for(sinks) / 2);
        assert_eq!((flushes(&all), rig.task.woken()), (all.len(), false));
        assert!(!rig.demux().has_unflushed());
    }
}

/// Items come in each turn, but so few that they would not pay for a while.
#[test]
fn sinks_are_flushed_in_time_while_items_trickle() {
    let mut rig = rig();
    let all = rig.attach_each(0..MANY);
    rig.push(0..MANY);
    rig.turn();
    for eighth in 1..=8 {
        assert_eq!(flushes(&all), 0, "after {eighth} eighths");
        rig.push([0, 1]);
        elapse(&mut rig, time_for(MANY) / 8);
        if flushes(&all) > 0 {
            assert!(eighth > 4);
            return assert!(all.iter().all(|sink| sink.flushed() > 0));
        }
    }
    panic!("no sink is flushed");
}

#[test]
fn time_pays_together_with_items_and_copies() {
    let mut rig = rig_with(Demux::multicast);
    let group: Vec<_> = (0..MANY).map(|name| rig.attach(0, name)).collect();
    let price = u64::from(MANY) * PER_SINK;
    let item = u64::from(MANY); // one, and its copies for the others
    let mut work = 0;
    while work < price {
        rig.push([0]);
        elapse(&mut rig, Duration::from_nanos(item * NANOS_PER_ITEM));
        work += 2 * item;
        assert!(work > price / 2 || flushes(&group) == 0, "{work} of {price}");
    }
    rig.turn();
    assert!(flushes(&group) >= group.len());
}

#[test]
fn time_that_is_worth_less_than_an_item_is_not_forgotten() {
    let mut rig = rig();
    let all = rig.attach_each(0..MANY);
    rig.push(0..MANY);
    rig.turn();
    for half in [0, all.len()] {
        let step = NANOS_PER_ITEM * 3 / 4;
        for _ in 0..=time_for(MANY).as_nanos() / 2 / u128::from(step) {
            rig.task.get_pin_mut().elapse(Duration::from_nanos(step));
        }
        rig.turn();
        assert_eq!(flushes(&all), half);
    }
}

/// Such as that for which the task has slept.
#[test]
fn time_before_an_item_does_not_count_for_its_flush_and_is_no_copy() {
    for time in [Duration::from_secs(1), Duration::MAX] {
        let mut rig = rig();
        let all = rig.attach_each(0..MANY);
        rig.turn();
        rig.push(0..MANY);
        elapse(&mut rig, time);
        assert_eq!((flushes(&all), rig.totals().copies), (0, 0));
        assert_eq!(dry(&mut rig, &all), WAIT);
    }
}

#[test]
fn time_does_not_flush_what_waits_for_a_tick() {
    let mut rig = rig_with(|demux| demux.linger(1));
    let all = rig.attach_each(0..4);
    rig.push(0..4);
    rig.turn();
    elapse(&mut rig, Duration::from_secs(60));
    assert_eq!(flushes(&all), 0);
    rig.orders.push(Order::Tick);
    rig.turn();
    assert_eq!(flushes(&all), 4);
}

// A flush that is pending, or fails.

#[test]
fn pending_flush_holds_up_no_other_sink_and_is_polled_when_woken() {
    let mut rig = rig_with(|demux| demux.budget(8));
    let sinks = rig.attach_each(0..3);
    sinks[0].hold(Op::Flush);
    rig.push([0, 1, 2]);
    rig.lines();
    rig.push([1, 2]);
    rig.lines();
    assert_eq!((sinks[1].flushed(), sinks[2].flushed()), (2, 2));
    rig.input.endless(|_| 99);
    rig.turn();
    assert_eq!(sinks[0].count(Op::Flush), 1);
    sinks[0].release(Op::Flush);
    rig.turn();
    assert_eq!((sinks[0].flushed(), sinks[0].count(Op::Flush)), (1, 2));
}

#[test]
fn pending_flush_is_polled_again_when_it_is_due_after_another_item() {
    let mut rig = rig_with(|demux| demux.budget(10).flush_every(100));
    let sink = rig.attach(1, "a");
    sink.hold(Op::Flush);
    for item in 1..=3 {
        rig.push([1]);
        rig.lines();
        assert_eq!((sink.flush_asked(), sink.count(Op::Flush)), (item, item), "a lull");
    }
    rig.input.endless(|_| 1);
    until(&mut rig, |rig| received(rig) >= 1_003);
    assert!((12..=14).contains(&sink.count(Op::Flush)), "ten windows");
}

#[test]
fn flush_that_fails_after_the_end_completes_the_future() {
    for budget in [1, 2, 3, 4, 128] {
        let mut rig = rig_with(|demux| demux.budget(budget));
        let sink = rig.attach_on(1, "a", |attach| attach.buffer(5));
        sink.park();
        rig.push([1, 1, 1]);
        rig.input.end();
        rig.lines();
        sink.fail_quietly(Op::Flush);
        sink.allow(1);
        assert!(rig.run().is_ready(), "budget {budget}");
        assert_eq!((sink.taken(), sink.count(Op::Close)), (1, 0));
    }
}

// Not in addition to a close.

#[test]
fn sink_that_is_closed_is_not_flushed_separately() {
    let ends: [fn(&mut Rig); 4] = [
        |rig| rig.input.end(),
        |rig| rig.orders.push(Order::Finish),
        |rig| {
            let orders = rig.orders.clone();
            rig.input.action(move || orders.push(Order::Detach(1)));
            rig.push([99]);
        },
        |rig| drop(rig.order(1, "next", |attach| attach)),
    ];
    for (n, end) in ends.into_iter().enumerate() {
        for pending in [false, true] {
            let mut rig = rig();
            let sink = rig.attach(1, "a");
            sink.hold(Op::Flush);
            sink.stutter(Op::Close, 1);
            rig.push([1]);
            if pending {
                rig.lines();
            } else if n % 2 == 1 {
                continue; // the order would come before the item
            }
            end(&mut rig);
            assert!(rig.run().is_ready() == (n < 2));
            let mut calls = vec![Call::Ready(Done), Call::Send(Done)];
            calls.extend(pending.then_some(Call::Flush(Pending)));
            calls.extend([Call::Close(Pending), Call::Close(Done), Call::Drop]);
            assert_eq!((n, sink.calls()), (n, calls));
        }
    }
}
