//! `Demux::with_capacity`: room for a number of simultaneous attachments, receiving and leaving. Up
//! to that number, no turn moves a table, so no turn is long because of an attachment (guarantees 5
//! and 12).
//!
//! A growing table allocates a large block. The tests count the allocations of each turn, so they
//! do not depend on time.

use std::hash::RandomState;
use std::ops::Range;

use crate::frugal::{Counter, Feed, demux};
use model::counting::allocations_during;
use sink_test::Task;
use stream_demux::{Attach, Demux, Order, Overflow, Totals};

/// The capacity, in attachments. Tables of this size take a megabyte.
const MANY: u64 = 20_000;

/// More than a single attachment allocates: the waker of its slot, and its sink.
const SMALL: i64 = 4_096;

/// Runs one turn per order. Returns the largest number of bytes allocated in a turn.
#[track_caller]
fn in_turns<F: Future<Output = Totals>>(
    task: &mut Task<F>,
    feed: &Feed,
    orders: impl Iterator<Item = Order<u64, Counter>>,
) -> i64 {
    orders
        .map(|order| {
            feed.order(order);
            let (pending, usage) = allocations_during(|| task.run().is_pending());
            assert!(pending);
            usage.peak
        })
        .max()
        .unwrap_or(0)
}

fn attach(sink: &Counter, keys: Range<u64>) -> impl Iterator<Item = Order<u64, Counter>> {
    keys.map(|key| Attach::new(key, sink.clone()).into())
}

/// Attaches `MANY` sinks, one per turn, with these settings. Returns the largest number of bytes
/// allocated in a turn.
macro_rules! longest_turn {
    ($settings:expr) => {{
        let (demux, feed) = demux(|n| *n);
        let mut task = Task::new($settings(demux));
        let longest = in_turns(&mut task, &feed, attach(&Counter::default(), 0..MANY));
        assert_eq!(task.get_ref().len() as u64, MANY);
        longest
    }};
}

fn capacity() -> usize {
    usize::try_from(MANY).expect("the value fits")
}

#[test]
fn without_capacity_a_turn_in_which_a_table_grows_allocates_all_of_it() {
    assert!(longest_turn!(|demux| demux) > 100_000);
}

#[test]
fn attaching_up_to_the_capacity_moves_no_table() {
    let longest = longest_turn!(|demux: Demux<_, _, _>| demux.with_capacity(capacity()));
    assert!(longest < SMALL, "{longest} bytes in one turn");
}

#[test]
fn the_capacity_is_allocated_at_once() {
    let (demux, _feed) = demux(|n| *n);
    let (demux, usage) = allocations_during(|| demux.with_capacity(capacity()));
    assert!(usage.live > 500_000, "{usage:?}");
    assert!(demux.is_empty());
}

#[test]
fn the_capacity_survives_other_settings() {
    let n = capacity();
    let longest = [
        longest_turn!(|demux: Demux<_, _, _>| demux
            .with_capacity(n)
            .with_hasher(RandomState::new())),
        longest_turn!(|demux: Demux<_, _, _>| demux
            .with_hasher(RandomState::new())
            .with_capacity(n)),
        longest_turn!(|demux: Demux<_, _, _>| demux.with_capacity(n).hooks(())),
        longest_turn!(|demux: Demux<_, _, _>| demux.hooks(()).with_capacity(n)),
        longest_turn!(|demux: Demux<_, _, _>| demux.with_capacity(n).on_unmatched(drop)),
        longest_turn!(|demux: Demux<_, _, _>| demux
            .with_capacity(n)
            .budget(1)
            .flush_every(3)
            .buffer(8)
            .overflow(Overflow::DropOldest)),
    ];
    assert!(longest.iter().all(|&longest| longest < SMALL), "{longest:?}");
}

/// The list of the members of a key is not preallocated, because their number is unknown.
#[test]
fn members_of_a_group_take_twelve_bytes_more() {
    let (demux, feed) = demux(|_| 0);
    let mut task = Task::new(demux.multicast().with_capacity(capacity()));
    let sink = Counter::default();
    let joins = (0..MANY).map(|tag| Attach::new(0, sink.clone()).tag(tag).into());
    let longest = in_turns(&mut task, &feed, joins);
    assert_eq!(task.get_ref().len() as u64, MANY);
    // A slot, and the number of its membership.
    let lists = 12 * i64::try_from(MANY.next_power_of_two()).expect("the value fits");
    let most = lists + SMALL;
    assert!(longest <= most, "{longest} bytes in one turn");
}

#[test]
fn leaving_attachments_count_towards_the_capacity() {
    let (demux, feed) = demux(|n| *n);
    let mut task = Task::new(demux.with_capacity(capacity()));
    // Each sink has an item that it cannot take, so it stays until the gate opens.
    let gate = Counter::default();
    gate.0.shut.set(true);
    let half = MANY / 2;
    let queued = (0..half).map(|key| Attach::new(key, gate.clone()).buffer(1).into());
    let mut longest = in_turns(&mut task, &feed, queued);
    feed.send(half);
    assert!(task.run().is_pending());
    assert_eq!(task.get_ref().totals().queued, half);
    longest = longest.max(in_turns(&mut task, &feed, (0..half).map(Order::Detach)));
    assert_eq!((task.get_ref().len(), task.get_ref().totals().detached), (0, 0));
    // As many further sinks, under the same keys.
    longest = longest.max(in_turns(&mut task, &feed, attach(&Counter::default(), 0..half)));
    assert_eq!(task.get_ref().len() as u64, half);
    assert!(longest < SMALL, "{longest} bytes in one turn");
}

#[test]
fn items_and_flushes_of_all_of_them_move_no_table() {
    let (demux, feed) = demux(|n| n % MANY);
    let mut task = Task::new(demux.with_capacity(capacity()).flush_every(usize::MAX));
    let sink = Counter::default();
    in_turns(&mut task, &feed, attach(&sink, 0..MANY));
    // No sink is flushed before all have an item.
    feed.send(2 * MANY);
    while sink.0.taken.get() < MANY {
        let (pending, usage) = allocations_during(|| task.poll().is_pending());
        assert!(pending && usage.peak < SMALL, "{usage:?}");
    }
    assert!(task.run().is_pending());
    assert_eq!(sink.0.taken.get(), 2 * MANY);
}

#[test]
fn attachments_that_join_and_leave_within_the_capacity_move_no_table() {
    let (demux, feed) = demux(|n| *n);
    let mut task = Task::new(demux.with_capacity(capacity()));
    let sink = Counter::default();
    let first = MANY - 1;
    in_turns(&mut task, &feed, attach(&sink, 0..first));
    let come_and_go = (first..first + 3 * MANY).flat_map(|key| {
        let newcomer = Attach::new(key, sink.clone()).into();
        [newcomer, Order::Evict(key - first)]
    });
    let longest = in_turns(&mut task, &feed, come_and_go);
    assert_eq!(task.get_ref().len() as u64, first);
    assert!(longest < SMALL, "{longest} bytes in one turn");
}
