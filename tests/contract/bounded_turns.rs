//! Guarantee 5, bounded turns, and *Fairness*: what each kind of work costs, that none takes from
//! another, and that what wakes itself is polled once a turn.

use crate::common::{Op, Rig, SinkHandle, Split};
use stream_demux::{
    Lease, Order,
    Overflow::{Conflate, DropNewest, Wait},
};

/// A key without an attachment. An order for it costs one unit and has no effect.
const UNUSED: u32 = 99_999;

/// A rig whose sinks do not log. The key of item `n` is `n / 100`.
fn rig(settings: impl FnOnce(Split) -> Split) -> Rig {
    Rig::with(settings).logging(|_| false)
}

fn sum(sinks: &[SinkHandle<u32>], of: impl Fn(&SinkHandle<u32>) -> usize) -> usize {
    sinks.iter().map(of).sum()
}

/// Attaches a sink to each key, parks it, and queues an item for it.
#[track_caller]
fn queued(rig: &mut Rig, keys: std::ops::Range<u32>) -> Vec<SinkHandle<u32>> {
    let join = |key| rig.order(key, key, |attach| attach.buffer(100));
    let sinks: Vec<_> = keys.clone().map(join).collect();
    rig.lines();
    sinks.iter().for_each(SinkHandle::park);
    rig.send(keys.map(|key| 100 * key));
    sinks
}

// What each kind of work costs.

/// Creates work, and returns how much of it is done.
type Work = fn(&mut Rig) -> Box<dyn Fn(&Rig) -> usize>;

/// Each kind of work does at most one budget in a turn, and exactly that if it has enough to do.
#[test]
fn turn_does_one_budget_of_each_kind_of_work() {
    const UNITS: usize = 20;
    let plain: [(&str, Work); 9] = [
        ("orders that are read", |rig| {
            rig.orders.extend((0..20).map(|_| Order::Detach(UNUSED)));
            Box::new(|rig| 20 - rig.orders.left())
        }),
        ("attachments that a lease ends", |rig| {
            let mut lease = Lease::new();
            for key in 1..=20 {
                rig.attach_on(key, key, |attach| attach.leased(&mut lease));
            }
            drop(lease);
            Box::new(|rig| 20 - rig.len())
        }),
        ("woken sinks", |rig| {
            let sinks = queued(rig, 1..21);
            sinks.iter().for_each(SinkHandle::open);
            Box::new(move |_| sum(&sinks, SinkHandle::taken))
        }),
        ("items of a queue", |rig| {
            let sink = queued(rig, 1..2).remove(0);
            rig.send((1..20).map(|n| 100 + n));
            sink.open();
            Box::new(move |_| sink.taken())
        }),
        ("flushes", |rig| {
            let sinks = rig.attach_each(1..21);
            rig.attach(99, "stuck").park();
            rig.push((1..21).map(|key| 100 * key).chain([9_900]));
            while rig.blocked_on().is_none() {
                rig.turn();
            }
            Box::new(move |_| sum(&sinks, |sink| sink.count(Op::Flush)))
        }),
        ("time-outs", |rig| {
            for key in 1..=20 {
                rig.attach_on(key, key, |attach| attach.idle_timeout(1));
            }
            rig.orders.push(Order::Tick);
            Box::new(|rig| 20 - rig.len())
        }),
        ("closes", |rig| {
            rig.attach_each(1..21).iter().for_each(|sink| sink.hold(Op::Close));
            rig.orders.push(Order::Finish);
            Box::new(|rig| 20 - rig.len())
        }),
        ("aborts", |rig| {
            rig.attach_each(1..50);
            rig.orders.push(Order::Abort);
            Box::new(|rig| (49 - rig.len()).min(20))
        }),
        ("items that are read", |rig| {
            rig.attach(1, "a");
            rig.push((0..20).map(|n| 100 * (n % 2)));
            Box::new(|rig| usize::try_from(rig.totals().received).unwrap())
        }),
    ];
    for budget in [1, 3, 4, 20] {
        for (kind, work) in plain {
            let mut rig = rig(|demux| demux.budget(budget));
            let done = work(&mut rig);
            for turn in 1.. {
                rig.turn();
                let most = UNITS.min(turn * budget);
                assert_eq!(done(&rig), most, "{kind}, budget {budget}, turn {turn}");
                if most == UNITS {
                    break;
                }
                assert!(rig.task.woken(), "{kind}: work is left");
            }
        }
    }
}

/// In a group, each member beyond the first costs one: for an item, and for an order that ends it.
#[test]
fn each_member_of_a_group_costs_one() {
    let members = |rig: &mut Rig| -> Vec<_> {
        let members = (0..20).map(|name| rig.order(1, name, |attach| attach)).collect();
        rig.lines();
        members
    };
    for budget in [1, 3, 4, 20] {
        let mut copies = rig(|demux| demux.multicast().budget(budget));
        let sinks = members(&mut copies);
        copies.push([101]);
        for order in [Order::Detach(1), Order::Evict(1)] {
            let mut ends = rig(|demux| demux.multicast().budget(budget));
            members(&mut ends);
            ends.orders.push(order);
            for turn in 1..=20_usize.div_ceil(budget) {
                ends.turn();
                assert_eq!(20 - ends.len(), 20.min(turn * budget), "budget {budget}");
            }
        }
        for turn in 1..=20_usize.div_ceil(budget) {
            copies.turn();
            assert_eq!(sum(&sinks, SinkHandle::taken), 20.min(turn * budget), "budget {budget}");
        }
    }
}

/// No kind of work takes from another, and none waits for another: not even with a budget of one.
#[test]
fn all_kinds_of_work_go_on_in_every_turn() {
    for budget in [1, 2, 5] {
        let mut rig = rig(|demux| demux.budget(budget));
        let woken = queued(&mut rig, 1..61);
        let idle: Vec<_> = (100..160)
            .map(|key| rig.attach_on(key, key, |attach| attach.idle_timeout(1)))
            .collect();
        let busy = rig.attach(200, "busy");
        rig.orders.push(Order::Tick);
        rig.turn();
        rig.input.endless(|_| 20_000);
        woken.iter().for_each(SinkHandle::open);
        for turn in 1..=5 {
            // With a budget of one, an order in every turn holds back items: guarantee 1.
            rig.orders.extend((1..budget).map(|_| Order::Detach(UNUSED)).take(1));
            rig.turn();
            assert_eq!(sum(&woken, SinkHandle::taken), turn * budget, "woken sinks");
            assert_eq!(idle.iter().filter(|sink| sink.is_closed()).count(), (turn + 1) * budget);
            assert_eq!(busy.taken(), turn * budget, "items");
        }
    }
}

/// As guarantee 1 requires, orders that never pause hold back items. They hold back nothing else.
#[test]
fn endless_orders_hold_back_items_and_nothing_else() {
    for budget in [1, 2, 100] {
        let mut rig = rig(|demux| demux.budget(budget));
        let closing = rig.attach(1, "closing");
        let drains = queued(&mut rig, 2..3).remove(0);
        let flushed = rig.attach(3, "flushed");
        closing.hold(Op::Close);
        flushed.hold(Op::Flush);
        rig.apply(Order::Detach(1));
        rig.send([300]);
        rig.push([301]);
        rig.orders.endless(|_| Order::Detach(UNUSED));
        rig.turn();
        drains.open();
        closing.release(Op::Close);
        flushed.release(Op::Flush);
        (0..3).for_each(|_| drop(rig.turn()));
        assert_eq!((drains.taken(), closing.is_closed(), flushed.flushed()), (1, true, 1));
        (0..20).for_each(|_| drop(rig.turn()));
        assert_eq!((rig.input.left(), rig.totals().queued), (1, 0));
    }
}

#[test]
fn long_queue_gets_an_eighth_of_the_budget_while_others_wait() {
    let mut rig = rig(|demux| demux.budget(80));
    let sinks = queued(&mut rig, 1..11);
    rig.send((1..60).map(|n| 100 + n));
    sinks[1..].iter().chain(&sinks[..1]).for_each(SinkHandle::open);
    rig.turn();
    // One for each sink, and 80 / 8 more for the long queue, which comes first.
    assert_eq!(sinks[0].taken(), 11);
    assert_eq!(sum(&sinks[1..], SinkHandle::taken), 9);
    rig.lines();
    assert_eq!(sinks[0].taken(), 60);
}

// What wakes itself.

/// A sink or stream that wakes itself while it is polled is polled once in each turn, and the
/// others go on.
#[test]
fn what_wakes_itself_is_polled_once_a_turn() {
    type Count = Box<dyn Fn(&Rig) -> usize>;
    let cases: [fn(&mut Rig) -> Count; 6] = [
        |rig| {
            let sink = rig.attach_on(1, "in doubt", |attach| attach.overflow(DropNewest).buffer(1));
            sink.stutter(Op::Ready, 5);
            rig.push([101, 102]);
            Box::new(move |_| sink.count(Op::Ready))
        },
        |rig| {
            let sink = queued(rig, 1..2).remove(0);
            sink.stutter(Op::Ready, 5);
            sink.wake();
            Box::new(move |_| sink.count(Op::Ready) - 1)
        },
        |rig| {
            let sink = rig.attach(1, "flushed");
            sink.stutter(Op::Flush, 5);
            rig.push([101]);
            Box::new(move |_| sink.count(Op::Flush))
        },
        |rig| {
            let sink = rig.attach(1, "closed");
            sink.stutter(Op::Close, 5);
            rig.orders.push(Order::Detach(1));
            Box::new(move |_| sink.count(Op::Close))
        },
        |rig| {
            let sink = rig.attach(1, "closed at the end");
            sink.stutter(Op::Close, 5);
            rig.orders.push(Order::Finish);
            Box::new(move |_| sink.count(Op::Close))
        },
        |rig| {
            let before = rig.orders.polls();
            (0..5).for_each(|_| rig.orders.stutter());
            Box::new(move |rig| rig.orders.polls() - before)
        },
    ];
    for (n, case) in cases.into_iter().enumerate() {
        let mut rig = rig(|demux| demux);
        let other = rig.attach(9, "other");
        other.hold(Op::Close);
        let polls = case(&mut rig);
        for turn in 1..=5 {
            if n < 5 {
                rig.push([901]); // after an item, orders that wake themselves are polled again
            }
            rig.turn();
            assert_eq!((n, polls(&rig)), (n, turn));
            assert!(rig.task.woken());
        }
        assert!(rig.run().is_pending());
        assert_eq!(other.taken(), if n < 4 { 5 } else { 0 });
    }
}

// Comparisons under `Conflate`: 64 cost as much as an item.

/// A rig that logs comparisons, in which no item supersedes another.
fn comparing(settings: impl FnOnce(Split) -> Split) -> Rig {
    let unlike = |mut demux: Split| {
        demux.hooks_mut().supersedes = |_, _| false;
        settings(demux)
    };
    Rig::keyed(|n| n / 10_000, unlike).logging(|line| line.ends_with('?'))
}

#[test]
fn turn_that_compares_with_a_long_queue_reads_fewer_items() {
    for (budget, waiting) in [(1, 500), (10, 500), (10, 70), (1_000, 500)] {
        let mut rig = comparing(|demux| demux.budget(budget));
        let a = rig.attach_on(1, "a", |attach| attach.overflow(Conflate).buffer(1_000));
        let b = rig.attach_on(2, "b", |attach| attach.buffer(1_000));
        [&a, &b].into_iter().for_each(SinkHandle::park);
        rig.send([20_000; 20]);
        rig.send((0..waiting).map(|n| 10_000 + n));
        b.open();
        rig.push((0..100).map(|n| 11_000 + n));
        let mut comparisons = 0;
        while rig.input.left() > 0 {
            let before = rig.totals().received;
            let compared = rig.turn().len();
            let read = usize::try_from(rig.totals().received - before).unwrap();
            // The comparisons of the last item are made to the end.
            let most = 64 * budget + waiting as usize + 100;
            assert!(compared <= most, "{compared} of {most}");
            assert!(read > 0 && (read == 1 || 64 * budget > waiting as usize), "{read}");
            comparisons += compared;
        }
        assert_eq!(comparisons as u64, (0..100).map(|n| u64::from(waiting) + n).sum());
        assert!(b.taken() > 0, "queues drain in the meantime");
    }
}

#[test]
fn comparisons_of_many_items_add_up() {
    // Each item is compared with the one that waits, and replaces it. So a turn of 65 reads 64.
    let settings = |demux: Split| demux.budget(65);
    let mut rig = Rig::keyed(|n| n / 10_000, settings).logging(|line| line.ends_with('?'));
    let a = rig.attach_on(1, "a", |attach| attach.overflow(Conflate).buffer(1));
    a.park();
    rig.send([10_000, 10_001]);
    rig.push(10_100..16_500);
    let mut turns = 0;
    while rig.input.left() > 0 {
        rig.turn();
        turns += 1;
    }
    assert_eq!(turns, 100);
}

/// The queue that is taken over has to be compared with itself, which takes many turns.
#[test]
fn sink_in_doubt_that_compares_for_many_turns_holds_up_no_order_and_no_other_sink() {
    let mut rig = comparing(|demux| demux.budget(4));
    let old = rig.attach_on(1, "old", |attach| attach.overflow(Wait).buffer(500));
    let other = rig.attach_on(2, "other", |attach| attach.overflow(DropNewest).buffer(1));
    [&old, &other].into_iter().for_each(SinkHandle::park);
    rig.send((0..300).map(|n| 10_000 + n));
    let new = rig.order(1, "new", |attach| attach.overflow(Conflate).buffer(500));
    new.park();
    rig.turn();
    assert_eq!(old.items(), []);
    rig.push([20_000, 20_001]);
    let (mut turns, mut comparisons) = (0, 0);
    while rig.input.left() > 0 {
        rig.orders.push(Order::Detach(UNUSED));
        let compared = rig.turn().len();
        assert!(compared <= 4 * 64 + 300 && rig.orders.left() == 0);
        (turns, comparisons) = (turns + 1, comparisons + compared);
        assert!(turns < 1_000);
    }
    assert_eq!(comparisons, 300 * 299 / 2);
    assert!(turns >= comparisons / (4 * 64 + 300), "{turns}");
    rig.lines();
    assert_eq!(new.count(Op::Ready), 2, "once as it was attached, and once in doubt");
    new.open();
    rig.lines();
    assert_eq!(new.items(), (10_000..10_300).collect::<Vec<_>>());
}

// What is gone.

/// The ids of those that have left are passed at no cost.
#[test]
fn crowd_that_has_left_does_not_delay_the_end_of_the_others() {
    for order in [None, Some(Order::Abort), Some(Order::Finish)] {
        let mut rig = rig(|demux| demux.budget(16));
        let mut lease = Lease::new();
        for key in 2..2_000 {
            rig.order(key, key, |attach| attach.leased(&mut lease));
        }
        let last = rig.order(1, "last", |attach| attach);
        rig.lines();
        drop(lease);
        rig.lines();
        assert_eq!(rig.len(), 1);
        rig.orders.extend(order);
        rig.input.end();
        assert!(rig.task.turns(3).is_ready(), "in three turns");
        assert!(last.is_dropped());
    }
}

/// They get their items in one turn, as if the others had never been there.
#[test]
fn group_that_a_crowd_has_left_gets_as_many_items_in_a_turn_as_before() {
    for stays in [1, 2, 7] {
        let mut rig = rig(|demux| demux.budget(16).multicast());
        let mut lease = Lease::new();
        let mut members = Vec::new();
        for n in 0..2_000 {
            let is_last = n >= 2_000 - stays;
            let member =
                rig.order(1, n, |attach| if is_last { attach } else { attach.leased(&mut lease) });
            members.extend(is_last.then_some(member));
        }
        rig.lines();
        drop(lease);
        rig.lines();
        assert_eq!(rig.len(), stays);
        rig.push([101; 100]);
        rig.turn();
        // One that is begun is offered to the next members in the next turn.
        assert_eq!(sum(&members, SinkHandle::taken), 16);
        rig.lines();
        assert_eq!(sum(&members, SinkHandle::taken), 100 * stays);
    }
}
