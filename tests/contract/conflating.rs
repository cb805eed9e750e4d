//! `Overflow::Conflate` and `Hooks::supersedes` (rule *overflow*): an item that would wait replaces
//! the first waiting item that it supersedes.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use crate::common::{
    Broken, Log, Op, Orders, ScriptedStream, SinkHandle, StreamHandle, Task, scripted_sink,
    scripted_stream,
};
use stream_demux::{
    Attach, ByValue, Demux, DemuxStreamExt, Discarded, Hooks, Order, Overflow, Recipient, Totals,
};

/// Returns `true` if the second item, which is new, supersedes the first, which waits.
type Rule = fn(u32, u32) -> bool;

/// Logs discarded items and calls of `supersedes`.
struct Recorder {
    log: Log,
    rule: Rule,
}

impl Hooks<u32, u32, Broken> for Recorder {
    fn supersedes(&mut self, to: Recipient<'_, u32>, waiting: &u32, new: &u32) -> bool {
        self.log.push(format!("{new} for {waiting}? of {}#{}", to.key, to.tag));
        (self.rule)(*waiting, *new)
    }
    fn discarded(&mut self, _: Recipient<'_, u32>, item: u32, why: Discarded) {
        self.log.push(format!("discarded {item} {why}"));
    }
    fn unmatched(&mut self, item: u32) {
        self.log.push(format!("unmatched {item}"));
    }
    fn blocked(&mut self, _: Recipient<'_, u32>) {
        self.log.push("blocked");
    }
}

type Split = Demux<ScriptedStream<u32>, ByValue<fn(&u32) -> u32>, ScriptedStream<Orders>, Recorder>;
type Terms = crate::common::Terms;

/// A demux whose attachments conflate by default. Items are numbers; the key of item `n` is `n /
/// 100`.
struct Rig {
    task: Task<Split>,
    input: StreamHandle<u32>,
    orders: StreamHandle<Orders>,
    log: Log,
}

/// Items that end in the same digit supersede each other.
fn same_digit(waiting: u32, new: u32) -> bool {
    waiting % 10 == new % 10
}

fn never(_: u32, _: u32) -> bool {
    false
}

impl Rig {
    fn new(rule: Rule) -> Self {
        Self::with(rule, |demux| demux)
    }

    fn with(rule: Rule, settings: impl FnOnce(Split) -> Split) -> Self {
        let (items, input) = scripted_stream("input");
        let (inbox, orders) = scripted_stream("orders");
        let log = Log::new();
        log.keep_only(|line| !line.contains('?'));
        let hooks = Recorder { log: log.clone(), rule };
        let key: fn(&u32) -> u32 = |n| n / 100;
        let demux = items.demux_by(key, inbox).overflow(Overflow::Conflate).hooks(hooks);
        Self { task: Task::new(settings(demux)), input, orders, log }
    }

    #[track_caller]
    fn sleep(&mut self) {
        assert!(self.task.run().is_pending());
        let all = self.totals();
        let fates = all.unmatched + all.delivered + all.discarded + all.lost + all.queued;
        assert_eq!(all.received + all.copies, fates, "{all:?}");
    }

    #[track_caller]
    fn attach_on(&mut self, key: u32, terms: impl FnOnce(Terms) -> Terms) -> SinkHandle<u32> {
        let (sink, handle) = scripted_sink(key);
        self.orders.push(terms(Attach::new(key, sink)).into());
        self.sleep();
        handle
    }

    /// Attaches a sink that is not ready under key 1.
    #[track_caller]
    fn parked(&mut self, buffer: usize) -> SinkHandle<u32> {
        let sink = self.attach_on(1, |attach| attach.buffer(buffer));
        sink.park();
        sink
    }

    #[track_caller]
    fn send(&mut self, items: impl IntoIterator<Item = u32>) -> Vec<String> {
        self.input.extend(items);
        self.sleep();
        self.log.take()
    }

    fn totals(&self) -> Totals {
        self.task.get_ref().totals()
    }
}

#[test]
fn by_default_only_the_latest_item_waits_even_with_a_large_buffer() {
    struct Default;
    impl<K, V, E> Hooks<K, V, E> for Default {}
    for buffer in [0, 1, 2, 100] {
        let (items, input) = scripted_stream::<u32>("input");
        let (sink, a) = scripted_sink("a");
        a.park();
        let (inbox, orders) = scripted_stream("orders");
        orders.push((1, sink));
        let demux = items.demux_by(|_| 1, inbox).overflow(Overflow::Conflate).buffer(buffer);
        let mut task = Task::new(demux.hooks(Default));
        input.extend(0..50);
        assert!(task.run().is_pending());
        let totals = task.get_ref().totals();
        assert_eq!((totals.queued, totals.discarded), (1, 49), "buffer {buffer}");
        a.open();
        assert!(task.run().is_pending());
        assert_eq!(a.items(), [49]);
    }
}

#[test]
fn sink_that_is_ready_gets_every_item() {
    let mut rig = Rig::new(|_, _| true);
    let a = rig.attach_on(1, |attach| attach.buffer(5));
    assert_eq!(rig.send([101, 102, 103]), [""; 0]);
    assert_eq!(a.items(), [101, 102, 103]);
}

#[test]
fn limited_sink_that_is_ready_gets_every_item_up_to_its_limit() {
    let mut rig = Rig::new(|_, _| true);
    let a = rig.attach_on(1, |attach| attach.limit(3));
    assert_eq!(rig.send([101, 102, 103, 104]), ["unmatched 104"]);
    assert_eq!(a.items(), [101, 102, 103]);
}

#[test]
fn new_item_takes_the_place_of_the_first_that_it_supersedes() {
    let mut rig = Rig::new(same_digit);
    let a = rig.parked(5);
    assert_eq!(rig.send([101, 102, 103]), [""; 0]);
    assert_eq!(rig.send([112]), ["discarded 102 conflated"]);
    assert_eq!(rig.send([111]), ["discarded 101 conflated"]);
    assert_eq!(rig.totals().queued, 3);
    a.open();
    rig.sleep();
    assert_eq!(a.items(), [111, 112, 103]);
}

#[test]
fn an_item_supersedes_at_most_one_other() {
    fn odd_ones_are_superseded(waiting: u32, _: u32) -> bool {
        waiting % 2 == 1
    }
    let mut rig = Rig::new(odd_ones_are_superseded);
    let a = rig.parked(9);
    assert_eq!(rig.send([101]), [""; 0]);
    assert_eq!(rig.send([102]), ["discarded 101 conflated"]);
    assert_eq!(rig.send([103, 105]), ["discarded 103 conflated"]);
    assert_eq!(rig.send([104]), ["discarded 105 conflated"]);
    a.open();
    rig.sleep();
    assert_eq!(a.items(), [102, 104]);
}

#[test]
fn supersedes_is_called_from_the_oldest_until_it_returns_true() {
    let mut rig = Rig::new(same_digit);
    rig.log.keep_only(|_| true);
    let a = rig.attach_on(1, |attach| attach.buffer(5).tag(7));
    a.park();
    assert_eq!(rig.send([101]), [""; 0], "no item waits");
    assert_eq!(rig.send([102]), ["102 for 101? of 1#7"]);
    assert_eq!(rig.send([103]), ["103 for 101? of 1#7", "103 for 102? of 1#7"]);
    assert_eq!(
        rig.send([112]),
        ["112 for 101? of 1#7", "112 for 102? of 1#7", "discarded 102 conflated"]
    );
}

#[test]
fn supersedes_is_not_called_under_other_policies() {
    for overflow in [Overflow::DropNewest, Overflow::DropOldest, Overflow::Evict, Overflow::Wait] {
        let mut rig = Rig::with(|_, _| true, |demux| demux.overflow(overflow));
        rig.log.keep_only(|line| line.contains('?') || line.contains("conflated"));
        rig.parked(1);
        assert_eq!(rig.send([101, 102, 103]), [""; 0], "{overflow:?}");
    }
}

#[test]
fn full_queue_without_a_superseded_item_loses_its_oldest() {
    let mut rig = Rig::new(never);
    let a = rig.parked(2);
    assert_eq!(
        rig.send([101, 102, 103, 104]),
        ["discarded 101 overflowed", "discarded 102 overflowed"]
    );
    a.open();
    rig.sleep();
    assert_eq!(a.items(), [103, 104]);
}

#[test]
fn buffer_0_has_one_place() {
    for rule in [never, same_digit] {
        let mut rig = Rig::new(rule);
        let a = rig.parked(0);
        let why = if rule(1, 1) { "conflated" } else { "overflowed" };
        assert_eq!(rig.send([101, 111]), [format!("discarded 101 {why}")]);
        assert_eq!(rig.send([102]), ["discarded 111 overflowed"]);
        a.open();
        rig.sleep();
        assert_eq!(a.items(), [102]);
    }
}

#[test]
fn items_that_take_a_place_do_not_count_towards_a_limit() {
    let mut rig = Rig::new(same_digit);
    let a = rig.attach_on(1, |attach| attach.buffer(5).limit(3));
    a.park();
    assert_eq!(rig.send([101, 111, 121, 102, 112]).len(), 3);
    assert!(rig.task.get_ref().contains_key(&1));
    assert_eq!(
        rig.send([103, 104]),
        ["unmatched 104"],
        "the limit was reached with the third accepted item"
    );
    a.open();
    rig.sleep();
    assert_eq!(a.items(), [121, 112, 103]);
    assert!(a.is_closed());
}

#[test]
fn item_that_pushes_the_oldest_out_counts_towards_a_limit() {
    let mut rig = Rig::new(never);
    let a = rig.attach_on(1, |attach| attach.buffer(1).limit(3));
    a.park();
    let lines = rig.send([101, 102, 103, 104]);
    assert_eq!(lines, ["discarded 101 overflowed", "discarded 102 overflowed", "unmatched 104"]);
    a.open();
    rig.sleep();
    assert_eq!(a.items(), [103]);
}

/// The sink takes the head of the queue when a new item arrives, which is compared with the rest of
/// the queue.
#[test]
fn item_that_finds_its_sink_ready_again_joins_the_rest_of_the_queue() {
    for budget in [1, 2, 128] {
        let mut rig = Rig::with(same_digit, |demux| demux.budget(budget));
        let a = rig.parked(5);
        rig.send([101, 102, 103]);
        a.allow(1);
        rig.input.extend([113, 111, 121]);
        rig.sleep();
        rig.sleep();
        a.open();
        rig.sleep();
        let mut items = a.items();
        assert_eq!(
            items.first(),
            Some(&101),
            "the first item was sent before any other could supersede it"
        );
        items.sort_unstable();
        assert_eq!(items, [101, 102, 113, 121], "budget {budget}");
        assert_eq!(rig.totals().discarded, 2);
    }
}

#[test]
fn sink_that_fails_while_its_queue_moves_loses_the_head_and_discards_the_rest() {
    for op in [Op::Ready, Op::Send] {
        let mut rig = Rig::with(same_digit, |demux| demux.budget(1));
        let a = rig.parked(5);
        let busy = rig.attach_on(2, |attach| attach);
        rig.send([101, 102, 103]);
        a.fail_quietly(op);
        a.open();
        rig.input.extend([111, 201]);
        rig.sleep();
        let totals = rig.totals();
        let lost = u64::from(op == Op::Send);
        let gone = totals.discarded + totals.unmatched;
        assert_eq!((totals.lost, gone, totals.queued), (lost, 4 - lost, 0), "{op:?}");
        assert_eq!(busy.items(), [201]);
    }
}

/// Also if the head of the queue is sent because a new item has arrived.
#[test]
fn sink_that_fails_in_any_turn_of_draining_loses_one_item_and_discards_the_rest() {
    for budget in 1..=4 {
        for turn in 0..12 {
            let mut rig = Rig::with(never, |demux| demux.budget(budget));
            let a = rig.parked(20);
            rig.send(101..=110);
            a.open();
            rig.input.extend(111..=120);
            for _ in 0..turn {
                let _ = rig.task.poll();
            }
            let before = a.items().len() as u64;
            a.fail_quietly(Op::Send);
            rig.sleep();
            let totals = rig.totals();
            assert_eq!((totals.delivered, totals.queued), (before, 0), "{budget}, {turn}");
            let unsent = totals.discarded + totals.unmatched;
            assert_eq!((totals.lost, unsent), if before == 20 { (0, 0) } else { (1, 19 - before) });
        }
    }
}

#[test]
fn input_is_never_held() {
    for rule in [never, same_digit] {
        let mut rig = Rig::new(rule);
        rig.parked(3);
        let lines = rig.send((0..100).map(|n| 100 + n));
        assert!(!lines.contains(&"blocked".to_owned()));
        assert_eq!(rig.input.left(), 0);
    }
}

/// A sink that yields is polled again before its policy applies.
#[test]
fn yield_conflates_nothing() {
    let mut rig = Rig::new(|_, _| true);
    let a = rig.attach_on(1, |attach| attach);
    for n in 0..20 {
        a.stutter(Op::Ready, 1);
        assert_eq!(rig.send([100 + n, 150 + n]), [""; 0]);
    }
    assert_eq!((a.taken(), rig.totals().discarded), (40, 0));
}

#[test]
fn sink_that_yields_in_the_middle_of_a_queue_gets_all_of_it() {
    let mut rig = Rig::with(never, |demux| demux.budget(4));
    let a = rig.parked(3);
    rig.send([101, 102, 103]);
    for n in 0..10 {
        a.stutter(Op::Ready, 1);
        a.allow(1);
        rig.input.push(110 + n);
        rig.sleep();
        a.allow(1);
        rig.sleep();
    }
    a.open();
    rig.sleep();
    assert_eq!((a.taken(), rig.log.take()), (13, vec![]));
}

#[test]
fn successor_takes_over_the_conflated_queue() {
    let mut rig = Rig::new(same_digit);
    rig.parked(5);
    rig.send([101, 102, 111]);
    let (sink, new) = scripted_sink("new");
    new.park();
    rig.orders.push(Attach::new(1, sink).buffer(5).into());
    rig.sleep();
    assert_eq!(rig.send([112, 103]), ["discarded 102 conflated"]);
    new.open();
    rig.sleep();
    assert_eq!(new.items(), [111, 112, 103]);
}

#[test]
fn queue_of_a_leaving_sink_is_sent_unchanged() {
    let mut rig = Rig::new(same_digit);
    let a = rig.parked(5);
    rig.send([101, 102, 111]);
    rig.orders.push(Order::Detach(1));
    assert_eq!(rig.send([112]), ["unmatched 112"]);
    a.open();
    rig.sleep();
    assert_eq!(a.items(), [111, 102]);
    assert!(a.is_closed());
}

/// The item is held because the sink yields.
#[test]
fn item_that_a_leaver_takes_along_supersedes_one_that_waits() {
    let mut rig = Rig::new(|_, _| true);
    let a = rig.parked(5);
    rig.send([101]);
    a.stutter(Op::Ready, 1);
    a.wake();
    rig.input.push(102);
    assert!(rig.task.turns(1).is_pending());
    assert_eq!((rig.totals().queued, rig.log.take()), (2, vec![]));
    rig.orders.push(Order::Detach(1));
    rig.sleep();
    assert_eq!(rig.log.take(), ["discarded 101 conflated"]);
    a.open();
    rig.sleep();
    assert_eq!(a.items(), [102]);
}

#[test]
fn members_of_a_group_conflate_separately() {
    let mut rig = Rig::with(same_digit, Demux::multicast);
    let slow = rig.parked(2);
    let fast = rig.attach_on(1, |attach| attach.tag(2));
    assert_eq!(rig.send([101, 102, 111]), ["discarded 101 conflated"]);
    assert_eq!(rig.send([103]), ["discarded 111 overflowed"]);
    slow.open();
    rig.sleep();
    assert_eq!(fast.items(), [101, 102, 111, 103]);
    assert_eq!(slow.items(), [102, 103]);
}

#[test]
fn member_of_a_group_that_yields_conflates_nothing() {
    let mut rig = Rig::with(|_, _| true, Demux::multicast);
    let a = rig.attach_on(1, |attach| attach);
    let b = rig.attach_on(1, |attach| attach.tag(2));
    for n in 0..20 {
        b.stutter(Op::Ready, 1);
        rig.send([100 + n, 150 + n]);
    }
    assert_eq!((a.taken(), b.taken(), rig.totals().discarded), (40, 40, 0));
}

#[test]
fn queue_of_a_stalled_sink_is_discarded_as_it_was_conflated() {
    let mut rig = Rig::with(same_digit, |demux| demux.stall_timeout(1));
    rig.parked(5);
    assert_eq!(rig.send([101, 102, 111]), ["discarded 101 conflated"]);
    rig.orders.push(Order::Tick);
    rig.sleep();
    assert_eq!(rig.log.take(), ["discarded 111 evicted", "discarded 102 evicted"]);
}

/// Whatever a sink returns, it finally gets the latest item of each kind, and the items of each
/// kind in order.
#[test]
fn latest_of_each_kind_arrives_whatever_the_sink_returns() {
    let rounds: u64 = if cfg!(debug_assertions) { 40 } else { 1_000 };
    for seed in 1..=rounds {
        let mut dice = crate::common::Dice::new(seed);
        let budget = 1 + dice.below(8) as usize;
        let mut rig = Rig::with(same_digit, |demux| demux.budget(budget));
        // Room for all kinds, so no item overflows.
        let a = rig.attach_on(1, |attach| attach.buffer(10));
        let mut latest = HashMap::new();
        for n in 0..100 {
            match dice.below(5) {
                0 => a.park(),
                1 => a.allow(dice.below(4) as usize),
                2 => a.open(),
                3 => a.stutter(Op::Ready, dice.below(3) as usize),
                _ => {}
            }
            for _ in 0..dice.below(4) {
                // Number and kind; the key function routes all of them to key 1.
                let item = 100 + n % 10 * 10 + dice.below(10);
                latest.insert(item % 10, item);
                rig.input.push(item);
            }
            rig.sleep();
        }
        a.open();
        rig.sleep();
        let mut last = HashMap::new();
        for item in a.items() {
            last.insert(item % 10, item);
        }
        assert_eq!(last, latest, "seed {seed}");
        let totals = rig.totals();
        assert_eq!(totals.delivered + totals.discarded, totals.received);
        assert!(rig.log.take().iter().all(|line| line.ends_with("conflated")));
    }
}

/// The hook is called behind pointers, too.
#[test]
fn supersedes_is_called_behind_pointers() {
    struct CountsCalls(Arc<Mutex<u32>>);
    impl<K, V, E> Hooks<K, V, E> for CountsCalls {
        fn supersedes(&mut self, _: Recipient<'_, K>, _: &V, _: &V) -> bool {
            *self.0.lock().unwrap() += 1;
            false
        }
    }
    let calls = Arc::new(Mutex::new(0));
    let mut by_ref = CountsCalls(Arc::clone(&calls));
    let boxed: Box<dyn Hooks<u32, u32, Broken> + '_> = Box::new(&mut by_ref);
    let (items, input) = scripted_stream::<u32>("input");
    let (inbox, orders) = scripted_stream("orders");
    let (sink, a) = scripted_sink("a");
    a.park();
    orders.push((1, sink));
    let mut demux =
        Box::pin(items.demux_by(|_| 1, inbox).overflow(Overflow::Conflate).buffer(9).hooks(boxed));
    input.extend([1, 2, 3]);
    let mut task = Task::new(Pin::as_mut(&mut demux));
    assert!(task.run().is_pending());
    assert_eq!(*calls.lock().unwrap(), 3, "once for the second item, twice for the third");
}
