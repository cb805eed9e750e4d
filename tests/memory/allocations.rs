//! Guarantee 12: memory follows the largest number of simultaneous attachments, not the number of
//! keys ever used. While nothing is queued, there is no allocation per item, and an empty queue
//! keeps room for at most 16 items.
//!
//! Sinks only count, and streams compute their items, so every allocation is one of the crate.

use std::cell::RefCell;
use std::hint::black_box;
use std::rc::Rc;

use crate::frugal::{Before, Counter, Feed, demux, run};
use futures::channel::mpsc;
use futures::{FutureExt, sink, stream};
use model::THOROUGH;
use model::counting::{Usage, allocations_during, usage};
use sink_test::Task;
use stream_demux::{Attach, DemuxStreamExt, Lease, Order, Overflow};

// Items.

#[test]
fn an_item_to_a_ready_sink_allocates_nothing() {
    let (demux, feed) = demux(|n| n % 3);
    let mut task = Task::new(demux);
    let sink = Counter::default();
    for key in 0..3 {
        feed.order((key, sink.clone()));
    }
    feed.send(3);
    run(&mut task);
    for _ in 0..5 {
        feed.send(20_000);
        assert_eq!(run(&mut task), Usage::default());
    }
    assert_eq!(sink.0.taken.get(), 100_003);
}

#[test]
fn items_with_settings_a_lease_a_catch_all_and_unmatched_items_allocate_nothing() {
    let (demux, feed) = demux(|n| n % 6);
    let mut task = Task::new(demux.on_unmatched(drop));
    let (sink, mut lease) = (Counter::default(), Lease::new());
    feed.order(Attach::new(0, sink.clone()).buffer(8).tag(1).leased(&mut lease));
    feed.order(Attach::new(1, sink.clone()).limit(u64::MAX));
    feed.order(Attach::new(2, sink.clone()).overflow(Overflow::DropNewest));
    feed.send(12);
    run(&mut task);
    feed.send(60_000);
    assert_eq!(run(&mut task), Usage::default());
    feed.order(Attach::new(3, sink.clone()).catch_all());
    feed.send(12);
    run(&mut task);
    feed.send(60_000);
    assert_eq!(run(&mut task), Usage::default());
    assert_eq!(sink.0.taken.get(), 6 + 30_000 + 12 + 60_000);
}

#[test]
fn copies_for_a_group_allocate_nothing() {
    let (demux, feed) = demux(|_| 0);
    let mut task = Task::new(demux.multicast());
    let sink = Counter::default();
    for tag in 0..3 {
        feed.order(Attach::new(0, sink.clone()).tag(tag));
    }
    feed.send(3);
    run(&mut task);
    feed.send(20_000);
    assert_eq!(run(&mut task), Usage::default());
    assert_eq!(sink.0.taken.get(), 60_009);
}

// Queues.

/// Repeatedly fills a queue and lets it drain. Returns the allocations of each round.
#[track_caller]
fn fill_and_drain(items: u64, rounds: usize) -> Vec<Usage> {
    let (demux, feed) = demux(|_| 0);
    let mut task = Task::new(demux);
    let sink = Counter::default();
    feed.order(Attach::new(0, sink.clone()).buffer(1_000));
    feed.send(1);
    run(&mut task);
    let round = |_| {
        let ((), usage) = allocations_during(|| {
            sink.0.shut.set(true);
            feed.send(items);
            assert!(task.run().is_pending());
            assert_eq!(task.get_ref().totals().queued, items);
            sink.0.open();
            assert!(task.run().is_pending());
            assert_eq!(task.get_ref().totals().queued, 0);
        });
        usage
    };
    (0..rounds).map(round).collect()
}

#[test]
fn a_queue_of_16_that_was_as_long_before_allocates_nothing() {
    for items in [1, 2, 15, 16] {
        let usage = fill_and_drain(items, 20);
        assert!(usage[0].peak <= 16 * 8 + 256, "{items}: {:?}", usage[0]);
        assert!(usage[1..].iter().all(|round| *round == Usage::default()), "{items}: {usage:?}");
    }
}

#[test]
fn a_queue_that_has_emptied_keeps_room_for_at_most_16_items() {
    for items in [17, 64, 1_000] {
        let usage = fill_and_drain(items, 20);
        assert!((1..=20).contains(&usage[0].allocations), "{items}: {:?}", usage[0]);
        assert!(usage[0].peak <= 2 * 1_024 * 8 + 10_000, "{items}: {:?}", usage[0]);
        let mut kept = 0;
        for round in &usage {
            kept += round.live;
            assert!(kept <= 16 * 8 + 256, "{items}: {kept} bytes are kept, {usage:?}");
        }
    }
}

#[test]
fn a_thousand_queues_free_their_memory_after_a_burst() {
    const QUEUES: u64 = 1_000;
    const LENGTH: u64 = 1_024;
    let (demux, feed) = demux(|n| n % QUEUES);
    let mut task = Task::new(demux);
    let sinks: Vec<_> = (0..QUEUES).map(|_| Counter::default()).collect();
    for (key, sink) in (0..).zip(&sinks) {
        feed.order(Attach::new(key, sink.clone()).buffer(1_024));
    }
    run(&mut task);
    let mut burst = |length| {
        for sink in &sinks {
            sink.0.shut.set(true);
        }
        feed.send(QUEUES * length);
        run(&mut task);
        assert_eq!(task.get_ref().totals().queued, QUEUES * length);
        for sink in &sinks {
            sink.0.open();
        }
        run(&mut task);
        assert_eq!(task.get_ref().totals().queued, 0);
    };
    burst(1); // for other allocations of a slot with its first queued item
    let ((), usage) = allocations_during(|| burst(LENGTH));
    assert!(usage.peak > 8_000_000, "{usage:?}");
    assert!(usage.live <= 1_000 * 16 * 8 + 4_096, "{usage:?}");
}

#[test]
fn a_full_queue_that_drops_does_not_grow() {
    for overflow in [Overflow::DropNewest, Overflow::DropOldest] {
        let (demux, feed) = demux(|_| 0);
        let mut task = Task::new(demux);
        let sink = Counter::default();
        sink.0.shut.set(true);
        feed.order(Attach::new(0, sink.clone()).buffer(16).overflow(overflow));
        feed.send(100);
        run(&mut task);
        feed.send(50_000);
        assert_eq!(run(&mut task), Usage::default(), "{overflow:?}");
        assert_eq!(task.get_ref().totals().queued, 16);
    }
}

// Attachments.

/// With each item, its key is attached, and the key of `width` items before is detached.
fn churn(width: u64, sink: &Counter) -> Before {
    let sink = sink.clone();
    Box::new(move |n, feed| {
        if let Some(old) = n.checked_sub(width) {
            feed.order(if n % 2 == 0 { Order::Detach(old) } else { Order::Evict(old) });
        }
        feed.order((n, sink.clone()));
    })
}

#[test]
fn a_million_distinct_keys_take_no_more_memory_than_those_attached_at_once() {
    const WIDTH: u64 = 100;
    const KEYS: u64 = if THOROUGH { 1_000_000 } else { 200_000 };
    let (demux, feed) = demux(|n| *n);
    let mut task = Task::new(demux);
    let sink = Counter::default();
    *feed.before.borrow_mut() = Some(churn(WIDTH, &sink));
    feed.send(10 * WIDTH);
    let before = run(&mut task);
    feed.send(KEYS);
    let usage = run(&mut task);
    assert_eq!(task.get_ref().len() as u64, WIDTH);
    assert_eq!(task.get_ref().totals().delivered, KEYS + 10 * WIDTH);
    assert!(usage.peak <= before.live, "{usage:?} after {before:?}");
}

#[test]
fn the_list_of_flushes_does_not_grow_under_churn() {
    let (demux, feed) = demux(|n| *n);
    // No flush is due while the input is busy.
    let mut task = Task::new(demux.flush_every(usize::MAX));
    let sink = Counter::default();
    *feed.before.borrow_mut() = Some(churn(3, &sink));
    feed.send(1_000);
    run(&mut task);
    feed.send(300_000);
    let usage = run(&mut task);
    assert!(usage.peak < 1_024, "{usage:?}");
    assert_eq!(sink.0.taken.get(), 301_000);
}

/// No item comes, so that none walks over those that have left.
#[test]
fn members_that_come_and_go_beside_one_that_stays_take_no_memory() {
    let (orders, orders_in) = mpsc::unbounded();
    let mut demux = stream::pending::<u32>().demux_by(|&n| n, orders_in).balance();
    orders.unbounded_send(Order::from((1, sink::drain()))).unwrap();
    // A hundred leave at once, before any other comes.
    let mut lease = Lease::new();
    for _ in 0..100 {
        orders.unbounded_send(Attach::new(1, sink::drain()).leased(&mut lease).into()).unwrap();
    }
    assert!((&mut demux).now_or_never().is_none());
    drop(lease);
    let mut live = Vec::new();
    for _ in 0..2 {
        for _ in 0..20_000 {
            let mut lease = Lease::new();
            let attach = Attach::new(1, sink::drain()).leased(&mut lease);
            orders.unbounded_send(attach.into()).unwrap();
            assert!((&mut demux).now_or_never().is_none());
            drop(lease);
            assert!((&mut demux).now_or_never().is_none());
        }
        live.push(usage().live);
    }
    assert!(live[1] - live[0] < 1_000, "{live:?}");
}

#[test]
fn dropping_the_future_frees_all_memory() {
    let ((), usage) = allocations_during(|| {
        let (demux, feed) = demux(|n| n % 50);
        let mut task = Task::new(demux.multicast());
        let (sink, mut lease) = (Counter::default(), Lease::new());
        for key in 0..50 {
            feed.order(Attach::new(key, sink.clone()).buffer(4).leased(&mut lease));
            feed.order(Attach::new(key, sink.clone()).limit(7));
        }
        feed.send(100);
        run(&mut task);
        sink.0.shut.set(true);
        feed.send(1_000);
        run(&mut task);
        assert!(task.get_ref().totals().queued > 0);
        task.drop_future();
        drop(lease);
        drop(feed.input.take());
        drop(feed.inbox.take());
    });
    assert_eq!((usage.live, usage.allocations > 100), (0, true));
}

// Leases.

#[test]
fn a_lease_of_many_ended_attachments_stays_small() {
    let (demux, feed) = demux(|n| *n);
    let mut task = Task::new(demux);
    let sink = Counter::default();
    let lease = Rc::new(RefCell::new(Lease::new()));
    let (held, asked) = (Rc::clone(&lease), sink.clone());
    let ask = move |n, feed: &Feed| {
        let attach = Attach::new(n, asked.clone()).limit(1);
        feed.order(attach.leased(&mut held.borrow_mut()));
    };
    *feed.before.borrow_mut() = Some(Box::new(ask));
    feed.send(100);
    run(&mut task);
    feed.send(100_000);
    let usage = run(&mut task);
    assert!(usage.peak < 4_096, "{usage:?}");
    assert_eq!(sink.0.taken.get(), 100_100);
    feed.order(Order::Finish);
    assert!(task.run().is_ready());
    let ((), usage) = allocations_during(|| drop(lease.take()));
    assert!(usage.live > -4_096, "{usage:?}");
}

#[test]
fn lease_forgets_ended_attachments() {
    let mut lease = Lease::new();
    for n in 0..100 {
        drop(Attach::new(n, ()).leased(&mut lease));
    }
    let ((), usage) = allocations_during(|| {
        for n in 0..10_000 {
            drop(Attach::new(n, ()).leased(&mut lease));
        }
    });
    assert!(usage.live.abs() < 2_000, "{usage:?}");
    assert!(usage.peak < 2_000, "{usage:?}");
    lease.disarm();
}

// The counting allocator.

#[test]
fn allocations_are_counted_and_may_be_nested() {
    let ((inner, block), outer) = allocations_during(|| {
        let ((), inner) = allocations_during(|| drop(black_box(vec![0_u8; 1000])));
        (inner, black_box(vec![0_u8; 100]))
    });
    assert_eq!((inner.allocations, inner.live, inner.peak), (1, 0, 1000));
    assert_eq!((outer.live, outer.peak), (100, 1000));
    let (_, none) = allocations_during(|| block.len());
    assert_eq!(none, Usage::default());
    let (_, grown) = allocations_during(|| {
        let mut block = block;
        block.reserve_exact(100);
        block
    });
    assert_eq!((grown.allocations, grown.live), (1, 100));
}
