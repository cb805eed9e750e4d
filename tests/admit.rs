//! `admit` (attachment rules): asked once per item and recipient, before queue and readiness are looked
//! at, and not again when a held item is tried again; no for an answer means `NotAdmitted`, and the
//! item never waits for a sink (guarantee 3).

mod common;

use std::task::Poll;

use common::{
    Broken, Log, Op, ScriptedSink, ScriptedStream, SinkHandle, StreamHandle, Task, scripted_sink,
    scripted_stream,
};
use stream_demux::{
    Attach, ByValue, Demux, DemuxStreamExt, Detached, Discarded, Hooks, Order, Overflow, Recipient,
    Totals,
};

type Sink = ScriptedSink<u32>;
type Orders = Order<u32, Sink>;
type Terms = Attach<u32, Sink>;
type Split = Demux<ScriptedStream<u32>, ByValue<fn(&u32) -> u32>, ScriptedStream<Orders>, Recorder>;

/// Writes down every hook, with key and tag; `refuse` is given tag and item, and says what `admit` does
/// not.
struct Recorder {
    log: Log,
    refuse: fn(u64, u32) -> bool,
}

impl Hooks<u32, u32, Broken> for Recorder {
    fn admit(&mut self, to: Recipient<'_, u32>, item: &u32) -> bool {
        self.log.push(format!("admit {item} to {}#{}", to.key, to.tag));
        !(self.refuse)(to.tag, *item)
    }
    fn attached(&mut self, to: Recipient<'_, u32>) {
        self.log.push(format!("attached {}#{}", to.key, to.tag));
    }
    fn detached(&mut self, to: Recipient<'_, u32>, why: Detached<Broken>) {
        self.log.push(format!("detached {}#{} {why:?}", to.key, to.tag));
    }
    fn unmatched(&mut self, item: u32) {
        self.log.push(format!("unmatched {item}"));
    }
    fn discarded(&mut self, to: Recipient<'_, u32>, item: u32, why: Discarded) {
        self.log.push(format!("discarded {item} of {}#{} {why:?}", to.key, to.tag));
    }
    fn blocked(&mut self, on: Recipient<'_, u32>) {
        self.log.push(format!("blocked {}#{}", on.key, on.tag));
    }
    fn unblocked(&mut self, on: Recipient<'_, u32>) {
        self.log.push(format!("unblocked {}#{}", on.key, on.tag));
    }
}

/// A demux whose items have their hundreds as key, and all its handles.
struct Rig {
    task: Task<Split>,
    input: StreamHandle<u32>,
    orders: StreamHandle<Orders>,
    log: Log,
}

impl Rig {
    fn new() -> Self {
        Self::with(|_, _| false, |demux| demux)
    }

    fn with(refuse: fn(u64, u32) -> bool, settings: impl FnOnce(Split) -> Split) -> Self {
        let (input, input_handle) = scripted_stream("input");
        let (orders, orders_handle) = scripted_stream("orders");
        let log = Log::new();
        let key: fn(&u32) -> u32 = |n| n / 100;
        let hooks = Recorder { log: log.clone(), refuse };
        let demux = settings(input.demux_by(key, orders).hooks(hooks));
        Self { task: Task::new(demux), input: input_handle, orders: orders_handle, log }
    }

    /// Runs until it sleeps or completes; the account must balance.
    #[track_caller]
    fn run(&mut self) -> Poll<Totals> {
        let output = self.task.run();
        let t = self.totals();
        assert_eq!(
            t.received + t.copies,
            t.unmatched + t.delivered + t.discarded + t.lost + t.queued
        );
        output
    }

    /// Runs until it sleeps, and tells what was logged meanwhile, but for the flushes.
    #[track_caller]
    fn lines(&mut self) -> Vec<String> {
        assert!(self.run().is_pending());
        let mut lines = self.log.take();
        lines.retain(|line| !line.ends_with("flushed"));
        lines
    }

    /// Reads these items, and tells what was logged meanwhile.
    #[track_caller]
    fn feed(&mut self, items: impl IntoIterator<Item = u32>) -> Vec<String> {
        self.input.extend(items);
        self.lines()
    }

    /// Applies one order, and tells what was logged meanwhile.
    #[track_caller]
    fn order(&mut self, order: impl Into<Orders>) -> Vec<String> {
        self.orders.push(order.into());
        self.lines()
    }

    fn totals(&self) -> Totals {
        self.task.get_ref().totals()
    }

    /// A sink that writes to the log of the hooks, to be attached under `key`, on the terms that
    /// `terms` adds.
    fn sink(
        &self,
        name: &str,
        key: u32,
        terms: impl FnOnce(Terms) -> Terms,
    ) -> (Terms, SinkHandle<u32>) {
        let (sink, handle) = scripted_sink(name);
        handle.log_to(&self.log);
        (terms(Attach::new(key, sink)), handle)
    }

    /// Attaches one; the lines it wrote are forgotten.
    #[track_caller]
    fn attach(
        &mut self,
        name: &str,
        key: u32,
        terms: impl FnOnce(Terms) -> Terms,
    ) -> SinkHandle<u32> {
        let (attach, handle) = self.sink(name, key, terms);
        self.order(attach);
        handle
    }
}

fn asked(lines: &[String]) -> usize {
    lines.iter().filter(|line| line.starts_with("admit")).count()
}

fn odd(_: u64, item: u32) -> bool {
    item % 2 == 1
}

#[test]
fn admitted_items_are_sent_and_the_others_discarded() {
    let mut rig = Rig::with(odd, |demux| demux);
    let a = rig.attach("a", 1, |attach| attach.tag(7));
    assert_eq!(
        rig.feed([101, 102, 103]),
        [
            "admit 101 to 1#7",
            "discarded 101 of 1#7 NotAdmitted",
            "admit 102 to 1#7",
            "a sent 102",
            "admit 103 to 1#7",
            "discarded 103 of 1#7 NotAdmitted"
        ]
    );
    assert_eq!((rig.totals().delivered, rig.totals().discarded), (1, 2));
    assert_eq!((a.count(Op::Ready), a.count(Op::Flush)), (1, 1));
}

#[test]
fn unmatched_items_are_nobodys_and_nobody_is_asked() {
    let mut rig = Rig::with(|_, _| true, |demux| demux);
    rig.attach("a", 1, |attach| attach);
    assert_eq!(rig.feed([201]), ["unmatched 201"]);
}

#[test]
fn sink_is_not_asked_for_an_item_that_is_refused() {
    let mut rig = Rig::with(|_, _| true, |demux| demux);
    let a = rig.attach("a", 1, |attach| attach);
    a.fail(Op::Ready);
    rig.feed([101, 102]);
    assert!(a.calls().is_empty());
    assert_eq!((rig.totals().discarded, rig.totals().detached), (2, 0));
}

#[test]
fn refused_item_never_waits_for_a_sink_that_is_not_ready() {
    let mut rig = Rig::with(odd, |demux| demux);
    let a = rig.attach("a", 1, |attach| attach);
    let b = rig.attach("b", 2, |attach| attach);
    a.park();
    assert_eq!(
        rig.feed([101, 202]),
        ["admit 101 to 1#0", "discarded 101 of 1#0 NotAdmitted", "admit 202 to 2#0", "b sent 202"]
    );
    assert!(rig.task.get_ref().blocked_on().is_none());
    assert_eq!((a.count(Op::Ready), b.taken()), (0, 1));
}

#[test]
fn refused_item_is_discarded_also_if_the_sink_is_known_to_be_parked() {
    let mut rig = Rig::with(odd, |demux| demux);
    let a = rig.attach("a", 1, |attach| attach.buffer(1));
    a.park();
    rig.feed([102]);
    assert_eq!(rig.feed([103]), ["admit 103 to 1#0", "discarded 103 of 1#0 NotAdmitted"]);
    assert_eq!(rig.totals().queued, 1);
}

#[test]
fn refused_item_makes_no_queue_overflow() {
    for overflow in [Overflow::Wait, Overflow::DropNewest, Overflow::DropOldest, Overflow::Evict] {
        for buffer in [0, 2] {
            let mut rig = Rig::with(odd, |demux| demux);
            let a = rig.attach("a", 1, |attach| attach.buffer(buffer).overflow(overflow));
            a.park();
            let fill: Vec<_> = [110, 120][..buffer].to_vec();
            rig.feed(fill.clone());
            let refused = ["admit 151 to 1#0", "discarded 151 of 1#0 NotAdmitted"];
            assert_eq!(rig.feed([151]), refused);
            assert_eq!(rig.totals().queued, buffer as u64);
            a.open();
            rig.lines();
            assert_eq!(a.items(), fill);
        }
    }
}

#[test]
fn refused_items_do_not_count_towards_a_limit() {
    let mut rig = Rig::with(odd, |demux| demux);
    let a = rig.attach("a", 1, |attach| attach.limit(2));
    rig.feed([101, 102, 103, 104]);
    assert_eq!(a.items(), [102, 104]);
    assert!(a.is_closed());
    assert_eq!(rig.feed([105]), ["unmatched 105"]);
}

#[test]
fn held_item_is_not_asked_about_again() {
    let mut rig = Rig::new();
    let a = rig.attach("a", 1, |attach| attach);
    a.park();
    assert_eq!(rig.feed([101]), ["admit 101 to 1#0", "blocked 1#0"]);
    for _ in 0..3 {
        a.wake();
        assert!(rig.lines().is_empty());
    }
    a.open();
    let mut lines = rig.lines();
    lines.sort();
    assert_eq!(lines, ["a sent 101", "unblocked 1#0"]);
}

#[test]
fn queued_item_is_asked_about_as_it_is_queued_and_not_as_it_is_sent() {
    let mut rig = Rig::new();
    let a = rig.attach("a", 1, |attach| attach.buffer(2));
    a.park();
    assert_eq!(rig.feed([101, 102]), ["admit 101 to 1#0", "admit 102 to 1#0"]);
    a.open();
    assert_eq!(rig.lines(), ["a sent 101", "a sent 102"]);
}

#[test]
fn held_item_that_joins_the_queue_of_a_leaver_is_not_asked_about_again() {
    let mut rig = Rig::new();
    let a = rig.attach("a", 1, |attach| attach);
    a.park();
    rig.feed([101]);
    assert_eq!(rig.order(Order::Detach(1)), ["unblocked 1#0"]);
    a.open();
    assert_eq!(rig.lines(), ["a sent 101", "a closed", "a dropped", "detached 1#0 Requested"]);
}

#[test]
fn item_overtaken_by_an_order_is_asked_about_once_and_for_its_new_recipient() {
    let mut rig = Rig::new();
    rig.attach("a", 1, |attach| attach.tag(1));
    let (attach, b) = rig.sink("b", 1, |attach| attach.tag(2));
    let orders = rig.orders.clone();
    rig.input.action(move || orders.push(attach.into()));
    let lines = rig.feed([101]);
    assert_eq!(asked(&lines), 1);
    assert!(lines.contains(&"admit 101 to 1#2".to_owned()), "{lines:?}");
    assert_eq!(b.items(), [101]);
}

#[test]
fn every_member_of_a_group_is_asked_once_before_any_sink_is() {
    let mut rig = Rig::with(|tag, _| tag == 2, Demux::multicast);
    for (name, tag) in [("a", 1), ("b", 2), ("c", 3)] {
        rig.attach(name, 1, |attach| attach.tag(tag));
    }
    let lines = rig.feed([101]);
    assert_eq!(lines[..3], ["admit 101 to 1#1", "admit 101 to 1#2", "admit 101 to 1#3"]);
    let mut rest = lines[3..].to_vec();
    rest.sort();
    assert_eq!(rest, ["a sent 101", "c sent 101", "discarded 101 of 1#2 NotAdmitted"]);
}

#[test]
fn item_held_for_a_group_is_not_asked_about_again() {
    let mut rig = Rig::with(|_, _| false, Demux::multicast);
    let a = rig.attach("a", 1, |attach| attach.tag(1));
    let b = rig.attach("b", 1, |attach| attach.tag(2));
    a.park();
    b.park();
    assert_eq!(asked(&rig.feed([101])), 2);
    a.wake();
    assert_eq!(asked(&rig.lines()), 0);
    a.open();
    assert_eq!(asked(&rig.lines()), 0);
    b.open();
    assert_eq!(asked(&rig.lines()), 0);
    assert_eq!((a.items(), b.items()), (vec![101], vec![101]));
}

#[test]
fn newcomer_is_asked_about_the_held_item_as_it_joins_and_not_again() {
    let mut rig = Rig::with(|_, _| false, Demux::multicast);
    let a = rig.attach("a", 1, |attach| attach.tag(1));
    a.park();
    rig.feed([101]);
    let (attach, b) = rig.sink("b", 1, |attach| attach.tag(2));
    assert_eq!(rig.order(attach), ["attached 1#2", "admit 101 to 1#2"]);
    a.open();
    assert_eq!(asked(&rig.lines()), 0);
    assert_eq!(b.items(), [101]);
}

#[test]
fn newcomer_under_another_key_is_not_asked_about_the_held_item() {
    let mut rig = Rig::with(|_, _| false, Demux::multicast);
    let a = rig.attach("a", 1, |attach| attach);
    a.park();
    rig.feed([101]);
    let (attach, _b) = rig.sink("b", 2, |attach| attach);
    assert_eq!(rig.order(attach), ["attached 2#0"]);
}

#[test]
fn newcomer_that_does_not_join_is_not_asked_about_the_held_item() {
    let mut rig = Rig::with(|_, _| false, Demux::multicast);
    let a = rig.attach("a", 1, |attach| attach);
    a.park();
    rig.feed([101]);
    for terms in [Attach::keep_existing as fn(Terms) -> Terms, |attach| attach.limit(0)] {
        let (attach, _b) = rig.sink("b", 1, terms);
        assert_eq!(asked(&rig.order(attach)), 0);
    }
    assert_eq!(rig.totals().queued, 1);
}

#[test]
fn catch_all_is_asked_about_what_it_catches() {
    let mut rig = Rig::with(odd, |demux| demux);
    let a = rig.attach("a", 1, |attach| attach.tag(7).catch_all());
    assert_eq!(
        rig.feed([901, 902]),
        ["admit 901 to 1#7", "discarded 901 of 1#7 NotAdmitted", "admit 902 to 1#7", "a sent 902"]
    );
    assert_eq!((rig.totals().unmatched, a.taken()), (0, 1));
}

#[test]
fn item_held_for_the_catch_all_is_not_asked_about_again() {
    let mut rig = Rig::new();
    let a = rig.attach("a", 1, Attach::catch_all);
    a.park();
    assert_eq!(rig.feed([901]), ["admit 901 to 1#0", "blocked 1#0"]);
    a.wake();
    assert!(rig.lines().is_empty());
    a.open();
    assert_eq!(asked(&rig.lines()), 0);
    assert_eq!(a.items(), [901]);
}

#[test]
fn newcomer_is_not_asked_about_an_item_that_its_groups_catch_all_caught() {
    let mut rig = Rig::with(|tag, _| tag == 2, Demux::multicast);
    let a = rig.attach("a", 1, |attach| attach.tag(1).catch_all());
    a.park();
    rig.feed([901]);
    let (attach, _b) = rig.sink("b", 1, |attach| attach.tag(2));
    assert_eq!(rig.order(attach), ["attached 1#2"]);
    assert_eq!((rig.totals().copies, rig.totals().discarded), (0, 0));
}

#[test]
fn held_item_admitted_to_a_member_that_fails_is_not_asked_about_again_for_the_others() {
    let mut rig = Rig::with(|_, _| false, Demux::multicast);
    let a = rig.attach("a", 1, |attach| attach.tag(1));
    let b = rig.attach("b", 1, |attach| attach.tag(2));
    a.park();
    assert_eq!(asked(&rig.feed([101])), 2);
    a.fail(Op::Ready);
    assert_eq!(asked(&rig.lines()), 0);
    assert_eq!(b.items(), [101]);
}

#[test]
fn refusal_lasts_for_one_item_only() {
    let mut rig = Rig::with(|tag, n| tag == 1 && n == 101, Demux::multicast);
    let a = rig.attach("a", 1, |attach| attach.tag(1));
    let b = rig.attach("b", 1, |attach| attach.tag(2));
    rig.feed([101, 102]);
    assert_eq!((a.items(), b.items()), (vec![102], vec![101, 102]));
}

#[test]
fn admit_closure_decides_by_key_and_item() {
    let (input, items) = scripted_stream("input");
    let (orders, told) = scripted_stream("orders");
    let (a, a_handle) = scripted_sink::<u32>("a");
    let (b, b_handle) = scripted_sink::<u32>("b");
    told.extend([(1, a), (2, b)]);
    let demux = input
        .demux_by(|n: &u32| n / 100, orders)
        .admit(|to: Recipient<'_, u32>, n: &u32| *to.key == 1 || n % 2 == 0);
    let mut task = Task::new(demux);
    items.extend([101, 102, 201, 202]);
    assert!(task.run().is_pending());
    assert_eq!((a_handle.items(), b_handle.items()), (vec![101, 102], vec![202]));
    assert_eq!(task.get_ref().totals().discarded, 1);
}
