//! Types and closures that are hooks: `()`, `&mut H`, `Box<H>`, user-defined types, and closures in
//! every combination. What each call is for is told by `endings`; key and tag are in every call.

use crate::common::{
    Broken, Log, Op, Recorder, ScriptedSink, Task, scripted_sink, scripted_stream,
};
use futures::stream;
use stream_demux::{Attach, DemuxStreamExt, Discarded, Hooks, Overflow, Recipient};

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
    everything(Box::new(recorder(&log)) as Box<dyn Hooks<u32, u32, Broken>>);
    assert_everything(&log);
    everything(&mut Box::new(&mut recorder(&log)));
    assert_everything(&log);
}

#[test]
fn borrowed_and_boxed_hooks_say_which_item_supersedes_another() {
    /// An odd number supersedes odd numbers, an even one even ones.
    struct Parity;
    impl Hooks<u32, u32, Broken> for Parity {
        fn supersedes(&mut self, _: Recipient<'_, u32>, waiting: &u32, new: &u32) -> bool {
            waiting % 2 == new % 2
        }
    }
    let (input, items) = scripted_stream("input");
    let (sink, a) = scripted_sink("a");
    let attach = Attach::new(1, sink).overflow(Overflow::Conflate).buffer(3);
    let mut parity = Parity;
    let hooks = Box::new(&mut parity) as Box<dyn Hooks<u32, u32, Broken> + '_>;
    let mut task = Task::new(input.demux_by(|_| 1, stream::iter([attach])).hooks(hooks));
    a.park();
    a.strict_unless_in_doubt();
    items.extend([1, 2, 3]);
    assert!(task.run().is_pending());
    a.open();
    items.end();
    assert!(task.run().is_ready());
    assert_eq!(a.items(), [3, 2]);
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
fn closures_may_be_given_alone_and_together_in_any_order() {
    combination!();
    combination!(on_error(errors));
    combination!(on_unmatched(unmatched));
    combination!(on_discarded(discards));
    combination!(admit(admits));
    combination!(on_error(errors), on_unmatched(unmatched), on_discarded(discards), admit(admits));
    combination!(admit(admits), on_discarded(discards), on_unmatched(unmatched), on_error(errors));
}

#[test]
fn second_closure_of_a_kind_takes_the_place_of_the_first() {
    let (first, second) = (Log::new(), Log::new());
    let orders = stream::empty::<(u32, ScriptedSink<u32>)>();
    let demux = stream::iter([901]).demux_by(|n: &u32| n / 100, orders);
    let demux = demux.on_unmatched(unmatched(&first)).on_unmatched(unmatched(&second));
    assert!(Task::new(demux).run().is_ready());
    assert_eq!((first.take().len(), second.take().len()), (0, 1));
}
