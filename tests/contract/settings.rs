//! Settings: defaults, panics at the caller's line, hashers. The input at any time, and `Debug`.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures::{StreamExt, stream};

use crate::common::panics::{Caught, catch};
use crate::common::{
    Op, ScriptedSink, ScriptedStream, SinkHandle, StreamHandle, Task, scripted_sink,
    scripted_stream,
};
use stream_demux::{
    Attach, ByValue, Callbacks, DefaultHashBuilder, Demux, DemuxStreamExt, Detached, Discarded,
    Lease, Order, Overflow, Totals,
};

type Sink = ScriptedSink<u32>;
type Orders = Order<u32, Sink>;
type Split = Demux<ScriptedStream<u32>, ByValue<fn(&u32) -> u32>, ScriptedStream<Orders>>;

/// Creates a demux in which the key of item `n` is `n / 100`, and the handles of its streams.
fn split() -> (Split, StreamHandle<u32>, StreamHandle<Orders>) {
    let (input, items) = scripted_stream("input");
    let (orders, orders_handle) = scripted_stream("orders");
    let key: fn(&u32) -> u32 = |n| n / 100;
    (input.demux_by(key, orders), items, orders_handle)
}

#[track_caller]
fn sleep<F: Future>(task: &mut Task<F>) {
    assert!(task.run().is_pending());
}

fn attach(orders_handle: &StreamHandle<Orders>, key: u32) -> SinkHandle<u32> {
    let (sink, handle) = scripted_sink(key);
    orders_handle.push((key, sink).into());
    handle
}

/// Polls once a future that is not in a `Task`.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

// Panics.

/// Asserts that the closure panics in its own line, with a message that contains this word.
macro_rules! assert_panics_here {
    ($word:literal, $call:expr) => {{
        let Caught { message, file, line } = catch(|| $call);
        assert!(message.contains($word), "{message}");
        assert_eq!((file.as_str(), line), (file!(), line!()));
    }};
}

#[test]
fn invalid_settings_panic_at_the_caller() {
    assert_panics_here!("budget", split().0.budget(0));
    assert_panics_here!("flush", split().0.flush_every(0));
    let attached = || {
        let (mut demux, _items, orders_handle) = split();
        attach(&orders_handle, 1);
        assert!(poll_once(&mut demux).is_pending());
        demux
    };
    assert_panics_here!("hasher", attached().with_hasher(RandomState::new()));
    assert_panics_here!("multicast", attached().multicast());
    assert_panics_here!("balance", attached().balance());
}

// Defaults, and effects of settings.

#[test]
fn budget_is_1_024_unless_set() {
    for (set, budget) in [(None, 1_024), (Some(1), 1), (Some(7), 7)] {
        let (mut demux, items, _orders_handle) = split();
        if let Some(set) = set {
            demux = demux.budget(set);
        }
        items.endless(|_| 901);
        let mut task = Task::new(demux);
        for turn in 1..=3 {
            assert!(task.poll().is_pending() && task.woken());
            assert_eq!(task.get_ref().totals().unmatched, turn * budget);
        }
    }
}

/// Budgets and windows so large that sums of them overflow.
#[test]
fn huge_settings_do_not_hang() {
    for huge in [u32::MAX as usize, usize::MAX / 2, usize::MAX] {
        for sinks in [1, 16, 17] {
            let (demux, input, orders_handle) = split();
            let demux = demux.budget(huge).flush_every(huge).buffer(huge);
            let mut task = Task::new(demux.linger(u32::MAX).with_capacity(0));
            let handles: Vec<_> = (1..=sinks).map(|key| attach(&orders_handle, key)).collect();
            handles[0].park();
            input.extend((0..100).map(|n| 100 * (1 + n % sinks)));
            sleep(&mut task);
            handles[0].open();
            input.end();
            assert!(task.run().is_ready());
            assert_eq!(task.get_ref().totals().delivered, 100);
        }
    }
}

/// The next turn begins with an item that an order may have overtaken, for a group.
#[test]
fn huge_budget_that_nothing_was_spent_of_takes_no_more() {
    let (input, items) = scripted_stream("input");
    let (mut orders, orders_handle) = scripted_stream::<Orders>("orders");
    let group = [attach(&orders_handle, 1), attach(&orders_handle, 1)];
    let yields = Rc::new(Cell::new(false));
    let is_asked = Rc::clone(&yields);
    // Once, when an item has come, it does not say whether there is an order.
    let orders = stream::poll_fn(move |cx| {
        if is_asked.take() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        orders.poll_next_unpin(cx)
    });
    let input = input.inspect(move |_| {
        yields.set(true);
        orders_handle.waker().unwrap().wake();
    });
    let key: fn(&u32) -> u32 = |n| n / 100;
    let mut task = Task::new(input.demux_by(key, orders).multicast().budget(usize::MAX));
    sleep(&mut task);
    items.push(101);
    sleep(&mut task);
    assert_eq!(group.map(|member| member.take_items()), [[101], [101]]);
}

#[test]
fn changes_of_hasher_and_hooks_keep_the_other_settings() {
    let (demux, items, orders_handle) = split();
    let demux = demux
        .buffer(2)
        .overflow(Overflow::DropNewest)
        .budget(9)
        .multicast()
        .with_hasher(RandomState::new())
        .hooks(())
        .with_hasher(DefaultHashBuilder::default());
    let (a, b) = (attach(&orders_handle, 1), attach(&orders_handle, 1));
    a.park();
    a.strict_unless_in_doubt();
    items.extend([101, 102, 103]);
    let mut task = Task::new(demux);
    sleep(&mut task);
    let t = task.get_ref().totals();
    assert_eq!((t.copies, t.queued, t.discarded, b.taken()), (3, 2, 1, 3));
    items.endless(|_| 901);
    assert!(task.poll().is_pending());
    assert_eq!(task.get_ref().totals().received, 3 + 9);
}

#[test]
fn input_can_be_reached_before_during_and_after() {
    let (mut demux, items, _orders_handle) = split();
    assert_eq!(format!("{:?}", demux.get_ref()), "ScriptedStream(input)");
    assert_eq!(format!("{:?}", demux.get_mut()), "ScriptedStream(input)");
    let mut task = Task::new(demux);
    sleep(&mut task);
    assert_eq!(format!("{:?}", task.get_pin_mut().get_pin_mut()), "ScriptedStream(input)");
    items.end();
    assert!(task.run().is_ready());
    assert!(!items.is_dropped(), "the input was dropped before the future");
    assert_eq!(format!("{:?}", task.get_ref().get_ref()), "ScriptedStream(input)");
    task.drop_future();
    assert!(items.is_dropped());
}

// Debug and documented traits.

#[test]
fn debug_of_the_demux_shows_counts_and_the_blocked_recipient() {
    let (demux, items, orders_handle) = split();
    let mut task = Task::new(demux.budget(50));
    let (a, b, _c) =
        (attach(&orders_handle, 1), attach(&orders_handle, 2), attach(&orders_handle, 3));
    sleep(&mut task);
    a.park();
    items.push(101);
    b.hold(Op::Close);
    orders_handle.push(Order::Detach(2));
    sleep(&mut task);
    let text = format!("{:?}", task.get_ref());
    for part in [
        "state: Waiting",
        "input_is_over: false",
        "receiving: 2",
        "leaving: 1",
        "is_blocked: true",
        "budget: 50",
        "queued: 1",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    a.open();
    sleep(&mut task);
    let text = format!("{:?}", task.get_ref());
    assert!(text.contains("is_blocked: false"), "{text}");
}

#[test]
fn debug_of_every_public_type_is_not_empty() {
    /// Sinks and hooks need no `Debug`.
    struct Opaque;
    let mut lease = Lease::new();
    let attach = Attach::new(7, Opaque).tag(42).leased(&mut lease);
    let shown = format!("{attach:?}");
    assert!(shown.contains("Attach") && shown.contains('7') && shown.contains("42"), "{shown}");
    assert!(format!("{lease:?}").contains("Lease"));
    assert!(format!("{:?}", Order::Attach(attach)).contains('7'));
    assert!(format!("{:?}", Order::<_, Opaque>::Detach(7)).contains("Detach(7)"));
    assert!(format!("{:?}", Order::<_, Opaque>::Evict(7)).contains("Evict(7)"));
    assert!(format!("{:?}", Order::<u32, Opaque>::Finish).contains("Finish"));
    assert_eq!(format!("{:?}", Overflow::DropOldest), "DropOldest");
    assert_eq!(format!("{:?}", Discarded::NotAdmitted), "NotAdmitted");
    assert_eq!(format!("{:?}", Detached::Failed(3)), "Failed(3)");
    assert!(format!("{:?}", Totals::default()).contains("received: 0"));
    assert!(!format!("{:?}", <Callbacks>::default()).is_empty());
    let hasher = DefaultHashBuilder::default();
    assert!(!format!("{hasher:?}").is_empty());
    assert!(!format!("{:?}", hasher.build_hasher()).is_empty());
}
