//! Hooks: one `attached` and one `detached` for each attachment, however it ends; `unblocked` once
//! for each `blocked`, and before `detached`; `detached` after the drop of the sink; key and tag in
//! every call. Also the implementations of `Hooks`: `()`, `&mut H`, `Box<H>`, user-defined types,
//! and closures in every combination.

use std::hash::RandomState;
use std::task::Poll;

use crate::common::{
    Broken, Log, Op, Recorder, Rig, ScriptedSink, ScriptedStream, SinkHandle, Split, StreamHandle,
    Task, Terms, scripted_sink, scripted_stream,
};
use futures::{sink, stream};
use stream_demux::{
    Attach, ByValue, Demux, DemuxStreamExt, Detached, Discarded, Hooks, Lease, Order, Overflow,
    Recipient, Totals,
};

/// Logs calls of `admit`, but no flushes.
fn rig() -> Rig {
    rig_with(|demux| demux)
}

fn rig_with(settings: impl FnOnce(Split) -> Split) -> Rig {
    Rig::with(settings).logging_only(|line| !line.ends_with("flushed") && !line.starts_with("key "))
}

/// One way in which the attachment of sink `a`, under key 1 with tag 7, begins and ends.
struct Way {
    why: &'static str,
    /// Whether `poll_close` is called.
    closed: bool,
    go: fn(&mut Rig),
}

const fn way(why: &'static str, closed: bool, go: fn(&mut Rig)) -> Way {
    Way { why, closed, go }
}

fn attach_a(rig: &mut Rig) -> SinkHandle<u32> {
    rig_attach(rig, |attach| attach)
}

/// Attaches `a` without clearing the log.
fn rig_attach(rig: &mut Rig, terms: impl FnOnce(Terms) -> Terms) -> SinkHandle<u32> {
    let (attach, a) = rig.attachment(1, "a", |attach| terms(attach.tag(7)));
    rig.orders.push(attach);
    let _ = rig.run();
    a
}

/// Attaches another sink, which does not log.
fn other(rig: &mut Rig) {
    let (sink, _) = scripted_sink("other");
    rig.orders.push(Attach::new(1, sink).into());
    let _ = rig.run();
}

fn run(rig: &mut Rig) {
    let _ = rig.run();
}

fn breaks(rig: &mut Rig, op: Op) {
    attach_a(rig).fail(op);
    rig.input.push(101);
    run(rig);
}

const WAYS: [Way; 21] = [
    way("Finished", true, |rig| {
        attach_a(rig);
        rig.input.end();
        run(rig);
    }),
    way("Finished", true, |rig| {
        attach_a(rig);
        rig.orders.push(Order::Finish);
        run(rig);
    }),
    way("Finished", true, |rig| {
        // It is attached after the end, while another sink still drains.
        let (sink, slow) = scripted_sink("slow");
        slow.hold(Op::Close);
        rig.orders.push(Attach::new(2, sink).into());
        rig.orders.push(Order::Finish);
        run(rig);
        attach_a(rig);
    }),
    way("Finished", true, |rig| {
        // The same on a taken key.
        let (sink, slow) = scripted_sink("slow");
        slow.hold(Op::Close);
        rig.orders.push(Attach::new(1, sink).into());
        rig.orders.push(Order::Finish);
        run(rig);
        attach_a(rig);
    }),
    way("Requested", true, |rig| {
        attach_a(rig);
        rig.orders.push(Order::Detach(1));
        run(rig);
    }),
    way("Requested", true, |rig| {
        let mut lease = Lease::new();
        rig_attach(rig, |attach| attach.leased(&mut lease));
        lease.detach();
        run(rig);
    }),
    way("Requested", true, |rig| {
        let mut lease = Lease::new();
        let (attach, _a) = rig.attachment(1, "a", |attach| attach.tag(7).leased(&mut lease));
        lease.detach();
        rig.orders.push(attach);
        run(rig);
    }),
    way("Replaced", true, |rig| {
        attach_a(rig);
        other(rig);
    }),
    way("Limited", true, |rig| {
        rig_attach(rig, |attach| attach.limit(1));
        rig.input.push(101);
        run(rig);
    }),
    way("Limited", true, |rig| {
        rig_attach(rig, |attach| attach.limit(0));
    }),
    way("Limited", true, |rig| {
        // By the items that it took over.
        let (sink, full) = scripted_sink("full");
        full.park();
        rig.orders.push(Attach::new(1, sink).buffer(3).into());
        rig.input.extend([101, 102, 103]);
        run(rig);
        rig_attach(rig, |attach| attach.limit(2));
    }),
    way("Evicted", false, |rig| {
        attach_a(rig);
        rig.orders.push(Order::Evict(1));
        run(rig);
    }),
    way("Evicted", false, |rig| {
        let mut lease = Lease::new();
        rig_attach(rig, |attach| attach.leased(&mut lease));
        drop(lease);
        run(rig);
    }),
    way("Evicted", false, |rig| {
        let mut lease = Lease::new();
        let (attach, _a) = rig.attachment(1, "a", |attach| attach.tag(7).leased(&mut lease));
        drop(lease);
        rig.orders.push(attach);
        run(rig);
    }),
    way("Overflowed", false, |rig| {
        rig_attach(rig, |attach| attach.overflow(Overflow::Evict)).park();
        rig.input.push(101);
        run(rig);
    }),
    way("Refused", true, |rig| {
        other(rig);
        rig_attach(rig, Attach::keep_existing);
    }),
    way("Failed(Broken(\"poll_ready\"))", false, |rig| breaks(rig, Op::Ready)),
    way("Failed(Broken(\"start_send\"))", false, |rig| breaks(rig, Op::Send)),
    way("Failed(Broken(\"poll_flush\"))", false, |rig| breaks(rig, Op::Flush)),
    way("Failed(Broken(\"poll_close\"))", false, |rig| {
        attach_a(rig).fail(Op::Close);
        rig.orders.push(Order::Detach(1));
        run(rig);
    }),
    way("Failed(Broken(\"poll_close\"))", false, |rig| {
        attach_a(rig).fail(Op::Close);
        other(rig);
    }),
];

#[test]
fn every_attachment_is_announced_once_and_ends_once_with_its_reason() {
    for (n, Way { why, go, .. }) in WAYS.into_iter().enumerate() {
        let mut rig = rig();
        go(&mut rig);
        let mut lines = rig.log.take();
        lines.retain(|line| line.starts_with("attached 1#7") || line.starts_with("detached 1#7"));
        assert_eq!(lines, ["attached 1#7".to_owned(), format!("detached 1#7 {why}")], "way {n}");
    }
}

#[test]
fn sink_is_dropped_before_detached_which_is_the_last_hook() {
    for (n, Way { why, go, closed }) in WAYS.into_iter().enumerate() {
        let mut rig = rig();
        go(&mut rig);
        let lines = rig.log.take();
        let at = |what: &str| lines.iter().position(|line| line == what);
        let detached = at(&format!("detached 1#7 {why}")).unwrap();
        assert!(at("a dropped").unwrap() < detached, "way {n}: {lines:?}");
        assert_eq!(at("a closed").is_some(), closed, "way {n}: {lines:?}");
        let after = &lines[detached + 1..];
        assert!(
            !after.iter().any(|l| l.starts_with("a ") || l.contains("1#7")),
            "way {n}: {after:?}"
        );
    }
}

#[test]
fn attachments_are_counted_as_they_are_announced() {
    for (n, Way { go, .. }) in WAYS.into_iter().enumerate() {
        let mut rig = rig();
        go(&mut rig);
        let lines = rig.log.take();
        let count = |what| lines.iter().filter(|line| line.starts_with(what)).count() as u64;
        let t = rig.totals();
        assert_eq!((t.attached, t.detached), (count("attached"), count("detached")), "way {n}");
    }
}

#[test]
fn detached_waits_for_the_close_to_complete() {
    let mut rig = rig();
    let a = attach_a(&mut rig);
    a.hold(Op::Close);
    rig.log.take();
    assert!(rig.apply(Order::Detach(1)).is_empty());
    assert_eq!((rig.totals().detached, rig.len()), (0, 0));
    a.release(Op::Close);
    assert_eq!(rig.lines(), ["a closed", "a dropped", "detached 1#7 Requested"]);
}

#[test]
fn attached_is_called_before_the_sink_is_polled() {
    let mut rig = rig();
    rig.input.push(101);
    let (attach, _a) = rig.attachment(1, "a", |attach| attach);
    assert_eq!(rig.apply(attach), ["attached 1", "admit 101 to 1", "a sent 101"]);
}

#[test]
fn replacement_under_a_key_that_is_not_yet_finished_is_finished_and_so_is_the_old_one() {
    for multicast in [false, true] {
        let mut rig = rig_with(|demux| {
            let demux = demux.budget(4);
            if multicast { demux.multicast() } else { demux }
        });
        for key in 1..=40 {
            rig.orders.push(Attach::new(key, scripted_sink(key).0).into());
        }
        run(&mut rig);
        rig.log.take();
        rig.orders.push(Order::Finish);
        rig.poll();
        assert!(rig.task.get_ref().contains_key(&40), "the demux finished all sinks in one turn");
        let (attach, _a) = rig.attachment(40, "a", |attach| attach.tag(7));
        rig.orders.push(attach);
        assert!(rig.run().is_ready());
        let mut lines = rig.log.take();
        assert!(lines.contains(&"detached 40#7 Finished".to_owned()));
        lines.retain(|line| line.starts_with("detached"));
        assert_eq!(lines.len(), 41);
        assert!(lines.iter().all(|line| line.ends_with("Finished")), "{lines:?}");
    }
}

#[test]
fn unblocked_is_called_once_for_each_blocked_and_before_detached() {
    type Go = fn(&mut Rig, &SinkHandle<u32>);
    let ways: [(&str, Go); 6] = [
        ("Evicted", |rig, _| rig.orders.push(Order::Evict(1))),
        ("Requested", |rig, a| {
            rig.orders.push(Order::Detach(1));
            run(rig);
            a.open();
        }),
        ("Replaced", |rig, _| other(rig)),
        ("Finished", |rig, a| {
            rig.orders.push(Order::Finish);
            run(rig);
            a.open();
        }),
        ("Failed(Broken(\"poll_ready\"))", |_, a| a.fail(Op::Ready)),
        ("Failed(Broken(\"start_send\"))", |_, a| {
            a.fail(Op::Send);
            a.open();
        }),
    ];
    for (why, go) in ways {
        let mut rig = rig();
        let a = attach_a(&mut rig);
        a.park();
        rig.send([101]);
        go(&mut rig, &a);
        run(&mut rig);
        let mut lines = rig.log.take();
        lines.retain(|line| line.contains("1#7") && !line.starts_with("discarded"));
        assert_eq!(lines, ["unblocked 1#7".to_owned(), format!("detached 1#7 {why}")]);
    }
}

#[test]
fn unblocked_is_called_before_detached_when_the_awaited_send_reaches_the_limit() {
    let mut rig = rig();
    let a = rig_attach(&mut rig, |attach| attach.limit(1));
    a.park();
    rig.send([101]);
    a.open();
    let mut lines = rig.lines();
    lines.retain(|line| line.contains("1#7"));
    assert_eq!(lines, ["unblocked 1#7", "detached 1#7 Limited"]);
}

#[test]
fn unblocked_is_called_before_detached_when_the_final_flush_fails() {
    let mut rig = rig();
    let a = attach_a(&mut rig);
    a.park();
    a.allow(1); // takes one item; the next one waits, and then the flush of the first fails
    a.fail_quietly(Op::Flush);
    let mut lines = rig.send([101, 102]);
    lines.retain(|line| line.contains("1#7") && !line.starts_with("admit"));
    assert_eq!(
        lines,
        [
            "attached 1#7",
            "blocked 1#7",
            "unblocked 1#7",
            "discarded 102 of 1#7 Failed",
            "detached 1#7 Failed(Broken(\"poll_flush\"))"
        ]
    );
}

#[test]
fn blocked_is_not_called_when_nothing_waits() {
    let mut rig = rig();
    let a = rig_attach(&mut rig, |attach| attach.buffer(1));
    a.park();
    let lines = rig.send([101]);
    assert!(!lines.iter().any(|line| line.contains("blocked")), "{lines:?}");
}

#[test]
fn blocked_on_names_the_sink_of_the_last_blocked() {
    let mut rig = rig();
    let a = attach_a(&mut rig);
    assert!(rig.task.get_ref().blocked_on().is_none());
    a.park();
    rig.send([101]);
    let on = rig.task.get_ref().blocked_on().unwrap();
    assert_eq!((*on.key, on.tag), (1, 7));
    a.open();
    rig.lines();
    assert!(rig.task.get_ref().blocked_on().is_none());
}

#[test]
fn tag_and_key_are_with_every_hook() {
    let mut rig = rig().admitting(|_, n| *n != 103);
    attach_a(&mut rig).park();
    rig.input.extend([103, 101]);
    run(&mut rig);
    rig.orders.push(Order::Evict(1));
    run(&mut rig);
    assert_eq!(
        rig.log.take(),
        [
            "attached 1#7",
            "admit 103 to 1#7",
            "discarded 103 of 1#7 NotAdmitted",
            "admit 101 to 1#7",
            "blocked 1#7",
            "unblocked 1#7",
            "a dropped",
            "discarded 101 of 1#7 Evicted",
            "detached 1#7 Evicted"
        ]
    );
}

#[test]
fn tag_is_0_unless_set_and_may_be_the_largest() {
    let mut rig = rig();
    let (unset, _) = rig.attachment(1, "unset", |attach| attach);
    assert_eq!(rig.apply(unset), ["attached 1"]);
    let (largest, _) = rig.attachment(2, "largest", |attach| attach.tag(u64::MAX));
    assert_eq!(rig.apply(largest), [format!("attached 2#{}", u64::MAX)]);
}

#[test]
fn tag_distinguishes_old_and_new_sink_of_a_key() {
    let mut rig = rig();
    let (old, _) = rig.attachment(1, "old", |attach| attach.tag(1));
    rig.apply(old);
    let (new, _) = rig.attachment(1, "new", |attach| attach.tag(2));
    assert_eq!(
        rig.apply(new),
        ["attached 1#2", "old closed", "old dropped", "detached 1#1 Replaced"]
    );
}

#[test]
fn hook_may_send_an_order() {
    /// Attaches a successor whenever an attachment ends.
    struct Successors(StreamHandle<(u32, ScriptedSink<u32>)>, Vec<ScriptedSink<u32>>);
    impl Hooks<u32, u32, Broken> for Successors {
        fn detached(&mut self, to: Recipient<'_, u32>, _: Detached<Broken>) {
            if let Some(sink) = self.1.pop() {
                self.0.push((*to.key, sink));
            }
        }
    }
    let (input, items) = scripted_stream("input");
    let (orders, orders_handle) = scripted_stream("orders");
    let (a, a_handle) = scripted_sink("a");
    let (b, b_handle) = scripted_sink("b");
    let hooks = Successors(orders_handle.clone(), vec![b]);
    orders_handle.push((1, a));
    let mut task = Task::new(input.demux_by(|n: &u32| n / 100, orders).hooks(hooks));
    a_handle.fail(Op::Ready);
    items.push(101);
    assert!(task.run().is_pending());
    items.push(102);
    assert!(task.run().is_pending());
    assert_eq!(b_handle.items(), [102]);
}

#[test]
fn hook_may_drop_a_lease_of_the_attachment_it_is_called_for() {
    struct DropsLease(Option<Lease>, Log);
    impl Hooks<u32, u32, Broken> for DropsLease {
        fn blocked(&mut self, on: Recipient<'_, u32>) {
            self.1.push(format!("blocked {}", on.key));
            self.0 = None;
        }
        fn unblocked(&mut self, on: Recipient<'_, u32>) {
            self.1.push(format!("unblocked {}", on.key));
        }
        fn detached(&mut self, to: Recipient<'_, u32>, why: Detached<Broken>) {
            self.1.push(format!("detached {} {why:?}", to.key));
        }
    }
    let (input, items) = scripted_stream("input");
    let (orders, orders_handle) = scripted_stream("orders");
    let (sink, a) = scripted_sink("a");
    let mut lease = Lease::new();
    orders_handle.push(Attach::new(1, sink).leased(&mut lease));
    a.park();
    let log = Log::new();
    let hooks = DropsLease(Some(lease), log.clone());
    let mut task = Task::new(input.demux_by(|n: &u32| n / 100, orders).hooks(hooks));
    items.extend([101, 102]);
    assert!(task.run().is_pending());
    assert_eq!(log.take(), ["blocked 1", "unblocked 1", "detached 1 Evicted"]);
    assert_eq!((task.get_ref().totals().discarded, task.get_ref().totals().unmatched), (1, 1));
}

// Types that implement `Hooks`.

/// Causes one call of each hook.
fn everything<H: Hooks<u32, u32, Broken>>(hooks: H) {
    let (input, items) = scripted_stream("input");
    let (orders, orders_handle) = scripted_stream("orders");
    let (sink, a) = scripted_sink("a");
    orders_handle.push(Attach::new(1, sink).tag(7));
    let mut task = Task::new(input.demux_by(|n: &u32| n / 100, orders).hooks(hooks));
    assert!(task.run().is_pending());
    a.park();
    items.extend([901, 103, 101]);
    assert!(task.run().is_pending());
    a.open();
    assert!(task.run().is_pending());
    items.end();
    assert!(task.run().is_ready());
}

fn recorder(log: &Log) -> Recorder {
    Recorder::new(log, |_, n| *n != 103)
}

fn assert_everything(log: &Log) {
    assert_eq!(
        log.take(),
        [
            "attached 1#7",
            "key 1 attached",
            "unmatched 901",
            "admit 103 to 1#7",
            "discarded 103 of 1#7 NotAdmitted",
            "admit 101 to 1#7",
            "blocked 1#7",
            "unblocked 1#7",
            "key 1 detached",
            "detached 1#7 Finished"
        ]
    );
}

#[test]
fn hooks_may_be_owned_borrowed_boxed_or_a_trait_object() {
    let log = Log::new();
    everything(recorder(&log));
    assert_everything(&log);
    everything(&mut recorder(&log));
    assert_everything(&log);
    everything(Box::new(recorder(&log)));
    assert_everything(&log);
    everything(Box::new(recorder(&log)) as Box<dyn Hooks<u32, u32, Broken>>);
    assert_everything(&log);
    everything(&mut recorder(&log) as &mut dyn Hooks<u32, u32, Broken>);
    assert_everything(&log);
    everything(&mut Box::new(&mut recorder(&log)));
    assert_everything(&log);
}

#[test]
fn unit_ignores_events_and_admits_everything() {
    everything(());
    let (input, items) = scripted_stream("input");
    let (orders, orders_handle) = scripted_stream("orders");
    let (sink, a) = scripted_sink("a");
    orders_handle.push((1, sink));
    let mut task = Task::new(input.demux_by(|_: &u32| 1, orders).hooks(()));
    items.extend([1, 2]);
    assert!(task.run().is_pending());
    assert_eq!(a.items(), [1, 2]);
}

#[test]
fn hooks_without_methods_have_the_defaults() {
    struct Silent;
    impl<K, V, E> Hooks<K, V, E> for Silent {}
    everything(Silent);
}

#[test]
fn borrowed_hooks_can_be_read_after_the_demux_is_dropped() {
    #[derive(Default)]
    struct Count(u64);
    impl<K, E> Hooks<K, u32, E> for Count {
        fn unmatched(&mut self, item: u32) {
            self.0 += u64::from(item);
        }
    }
    let mut count = Count::default();
    everything(&mut count);
    assert_eq!(count.0, 901);
}

// Closures.

fn errors(log: &Log) -> impl FnMut(Recipient<'_, u32>, Broken) + use<> {
    let log = log.clone();
    move |to, error| log.push(format!("error {}#{} {error}", to.key, to.tag))
}

fn unmatched(log: &Log) -> impl FnMut(u32) + use<> {
    let log = log.clone();
    move |item| log.push(format!("unmatched {item}"))
}

fn discards(log: &Log) -> impl FnMut(Recipient<'_, u32>, u32, Discarded) + use<> {
    let log = log.clone();
    move |to, item, why| log.push(format!("discarded {item} of {}#{} {why:?}", to.key, to.tag))
}

fn admits(log: &Log) -> impl FnMut(Recipient<'_, u32>, &u32) -> bool + use<> {
    let log = log.clone();
    move |to, item| {
        log.push(format!("admit {item} to {}#{}", to.key, to.tag));
        *item != 102
    }
}

/// Causes events for all four closures, sets those named by `$method`, in this order, and checks
/// that exactly these are called.
macro_rules! combination {
    ($($method:ident($closure:ident)),*) => {{
        let given = [$(stringify!($method)),*];
        let log = Log::new();
        let (input, items) = scripted_stream("input");
        let (orders, orders_handle) = scripted_stream("orders");
        let (sink, a) = scripted_sink("a");
        orders_handle.push(Attach::new(1, sink).tag(7).buffer(1));
        let demux = input.demux_by(|n: &u32| n / 100, orders)$(.$method($closure(&log)))*;
        let mut task = Task::new(demux);
        assert!(task.run().is_pending());
        items.extend([901, 102]);
        assert!(task.run().is_pending());
        a.park();
        items.push(103);
        assert!(task.run().is_pending());
        a.fail(Op::Ready);
        assert!(task.run().is_pending());
        let mut lines = Vec::new();
        let has = |name: &str| given.contains(&name);
        if has("on_unmatched") {
            lines.push("unmatched 901");
        }
        if has("admit") {
            lines.push("admit 102 to 1#7");
            if has("on_discarded") {
                lines.push("discarded 102 of 1#7 NotAdmitted");
            }
            lines.push("admit 103 to 1#7");
        }
        if has("on_discarded") {
            lines.push("discarded 103 of 1#7 Failed");
        }
        if has("on_error") {
            lines.push("error 1#7 poll_ready failed");
        }
        assert_eq!(log.take(), lines, "{given:?}");
        assert_eq!(a.taken(), usize::from(!has("admit")));
    }};
}

#[test]
fn closures_may_be_given_in_every_combination() {
    combination!();
    combination!(on_error(errors));
    combination!(on_unmatched(unmatched));
    combination!(on_discarded(discards));
    combination!(admit(admits));
    combination!(on_error(errors), on_unmatched(unmatched));
    combination!(on_error(errors), on_discarded(discards));
    combination!(on_error(errors), admit(admits));
    combination!(on_unmatched(unmatched), on_discarded(discards));
    combination!(on_unmatched(unmatched), admit(admits));
    combination!(on_discarded(discards), admit(admits));
    combination!(on_error(errors), on_unmatched(unmatched), on_discarded(discards));
    combination!(on_error(errors), on_unmatched(unmatched), admit(admits));
    combination!(on_error(errors), on_discarded(discards), admit(admits));
    combination!(on_unmatched(unmatched), on_discarded(discards), admit(admits));
    combination!(on_error(errors), on_unmatched(unmatched), on_discarded(discards), admit(admits));
}

#[test]
fn closures_may_be_given_in_any_order() {
    combination!(admit(admits), on_discarded(discards), on_unmatched(unmatched), on_error(errors));
    combination!(on_discarded(discards), admit(admits), on_error(errors), on_unmatched(unmatched));
    combination!(on_unmatched(unmatched), on_error(errors), admit(admits), on_discarded(discards));
}

#[test]
fn on_error_is_not_called_for_an_end_without_an_error() {
    let log = Log::new();
    let (input, items) = scripted_stream("input");
    let (orders, orders_handle) = scripted_stream("orders");
    let (sink, a) = scripted_sink("a");
    orders_handle.push((1, sink));
    let mut task = Task::new(input.demux_by(|n: &u32| *n, orders).on_error(errors(&log)));
    items.push(1);
    items.end();
    assert!(task.run().is_ready());
    assert!(a.is_closed() && log.take().is_empty());
}

#[test]
fn on_error_is_called_for_every_kind_of_failure() {
    for op in [Op::Ready, Op::Send, Op::Flush, Op::Close] {
        let log = Log::new();
        let (input, items) = scripted_stream("input");
        let (orders, orders_handle) = scripted_stream("orders");
        let (sink, a) = scripted_sink("a");
        a.fail(op);
        orders_handle.push((1, sink));
        let mut task = Task::new(input.demux_by(|n: &u32| *n, orders).on_error(errors(&log)));
        items.push(1);
        assert!(task.run().is_pending());
        items.end();
        assert!(task.run().is_ready());
        assert_eq!(log.take(), [format!("error 1#0 {} failed", op.name())]);
    }
}

#[test]
fn closures_may_borrow_and_change_local_variables() {
    let (mut unmatched_items, mut failed) = (Vec::new(), 0);
    let (input, items) = scripted_stream("input");
    let (orders, orders_handle) = scripted_stream("orders");
    let (sink, a) = scripted_sink::<u32>("a");
    a.fail(Op::Ready);
    orders_handle.push((1, sink));
    items.extend([1, 2]);
    items.end();
    let demux = input
        .demux_by(|n: &u32| *n, orders)
        .on_unmatched(|n| unmatched_items.push(n))
        .on_error(|_, _| failed += 1);
    assert!(Task::new(demux).run().is_ready());
    assert_eq!((unmatched_items, failed), (vec![2], 1));
}

type Plain =
    Demux<ScriptedStream<u32>, ByValue<fn(&u32) -> u32>, ScriptedStream<(u32, ScriptedSink<u32>)>>;

/// Creates a demux with two sinks under key 1 and the items 101 and 901.
fn plain() -> Plain {
    let (input, items) = scripted_stream("input");
    let (orders, orders_handle) = scripted_stream("orders");
    orders_handle.extend([(1, scripted_sink("a").0), (1, scripted_sink("b").0)]);
    items.extend([101, 901]);
    items.end();
    input.demux_by(|n| n / 100, orders)
}

fn totals<F: Future<Output = Totals>>(future: F) -> Totals {
    let Poll::Ready(totals) = Task::new(future).run() else { panic!("the demux did not complete") };
    totals
}

#[test]
fn closures_and_the_other_settings_are_chained_in_any_order() {
    let (log, hasher) = (Log::new(), RandomState::new());
    let closure_first = plain().on_unmatched(unmatched(&log)).multicast().budget(2);
    let first = totals(closure_first.with_hasher(hasher.clone()));
    assert_eq!((first.copies, log.take()), (1, vec!["unmatched 901".to_owned()]));
    let closure_last = plain().with_hasher(hasher).budget(2).multicast();
    let last = totals(closure_last.on_unmatched(unmatched(&log)));
    assert_eq!((last, log.take()), (first, vec!["unmatched 901".to_owned()]));
}

#[test]
fn second_closure_of_a_kind_takes_the_place_of_the_first() {
    let (first, second) = (Log::new(), Log::new());
    totals(plain().on_unmatched(unmatched(&first)).on_unmatched(unmatched(&second)));
    assert_eq!((first.take().len(), second.take().len()), (0, 1));
}

/// Hooks that clone the recipient.
struct Twice(Vec<(u32, u64)>);

fn two_of<T: Clone>(one: T) -> [T; 2] {
    [one.clone(), one]
}

impl<V, E> Hooks<u32, V, E> for Twice {
    fn attached(&mut self, to: Recipient<'_, u32>) {
        self.0.extend(two_of(to).map(|to| (*to.key, to.tag)));
    }
}

#[test]
fn recipient_is_cloned_where_only_clone_is_required() {
    let mut hooks = Twice(Vec::new());
    let orders = stream::iter([Attach::new(7, sink::drain()).tag(8)]);
    let demux = stream::empty::<u32>().demux_by(|&n| n, orders).hooks(&mut hooks);
    assert!(Task::new(demux).run().is_ready());
    assert_eq!(hooks.0, [(7, 8), (7, 8)]);
}
