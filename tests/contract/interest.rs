//! `Hooks::key_attached` and `Hooks::key_detached`: which keys have a receiving attachment. Calls
//! alternate for each key, and agree with `Demux::contains_key` between any two polls.

use std::collections::BTreeSet;
use std::task::Poll;

use crate::common::{Crowd, Dice, Op, Rig, Split, Terms};
use stream_demux::{Attach, Demux, Lease, Order, Overflow};

/// Logs all hooks, including those for keys.
fn rig() -> Rig {
    rig_with(|demux| demux)
}

fn rig_with(settings: impl FnOnce(Split) -> Split) -> Rig {
    Rig::with(settings).with_silent_sinks().logging_only(|line| !line.starts_with("admit "))
}

/// Returns the lines about keys.
fn keys(lines: Vec<String>) -> Vec<String> {
    lines.into_iter().filter(|line| line.starts_with("key ")).collect()
}

// The first.

#[test]
fn key_attached_is_called_after_attached_and_before_the_items_of_the_key() {
    let mut rig = Rig::new()
        .logging_only(|line| !line.ends_with("flushed"))
        .admitting(|_, item| *item != 102);
    rig.order(1, "a", |attach| attach.tag(7));
    assert_eq!(
        rig.send([101, 102]),
        [
            "attached 1#7",
            "key 1 attached",
            "admit 101 to 1#7",
            "a sent 101",
            "admit 102 to 1#7",
            "discarded 102 of 1#7 NotAdmitted",
        ]
    );
}

#[test]
fn key_attached_is_called_once_per_key_however_many_join() {
    let mut rig = rig_with(Demux::multicast);
    for key in [1, 2, 1, 1, 2] {
        rig.order(key, "s", |attach| attach);
    }
    assert_eq!(keys(rig.lines()), ["key 1 attached", "key 2 attached"]);
}

#[test]
fn key_attached_is_not_called_for_sinks_that_take_no_key() {
    let mut rig = rig();
    let (mut dropped, mut detached) = (Lease::new(), Lease::new());
    rig.order(1, "a", |attach| attach.limit(0));
    rig.order(2, "b", |attach| attach.leased(&mut dropped));
    rig.order(3, "c", |attach| attach.leased(&mut detached));
    drop(dropped);
    detached.detach();
    assert_eq!(keys(rig.lines()), [""; 0]);
    assert_eq!(rig.totals().detached, 3);
    // Also under a key that is taken.
    rig.attach(4, "kept");
    rig.order(4, "refused", Attach::keep_existing);
    rig.order(4, "none", |attach| attach.limit(0));
    assert_eq!(keys(rig.lines()), [""; 0]);
    // Also after the end.
    rig.orders.push(Order::Finish);
    rig.order(5, "late", |attach| attach);
    assert_eq!(keys(rig.last_lines()), ["key 4 detached"]);
}

// The last.

#[test]
fn key_is_free_when_the_last_sink_begins_to_leave() {
    let mut rig = rig();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(1));
    a.park();
    rig.send([101]);
    assert_eq!(rig.apply(Order::Detach(1)), ["key 1 detached"]);
    assert!(!rig.task.get_ref().contains_key(&1));
    a.open();
    assert_eq!(rig.lines(), ["detached 1 Requested"]);
}

#[test]
fn unblocked_is_called_before_key_detached() {
    for graceful in [false, true] {
        let mut rig = rig();
        let a = rig.attach(1, "a");
        a.park();
        rig.send([101]);
        let order = if graceful { Order::Detach(1) } else { Order::Evict(1) };
        let mut lines = rig.apply(order);
        a.open();
        lines.extend(rig.lines());
        lines.retain(|line| !line.starts_with("discarded"));
        assert_eq!(lines[..2], ["unblocked 1", "key 1 detached"]);
        assert!(lines[2].starts_with("detached 1"), "{lines:?}");
    }
}

#[test]
fn only_the_last_member_frees_the_key() {
    let mut rig = rig_with(Demux::multicast);
    let mut leases: Vec<_> = (0..3).map(|_| Lease::new()).collect();
    for (tag, lease) in (1..).zip(&mut leases) {
        rig.attach_on(1, tag, |attach| attach.tag(tag).leased(lease));
    }
    for lease in leases.drain(1..) {
        drop(lease);
        assert_eq!(keys(rig.lines()), [""; 0]);
    }
    drop(leases);
    assert_eq!(rig.lines(), ["key 1 detached", "detached 1#1 Evicted"]);
}

#[test]
fn all_members_leave_and_the_key_is_freed_once() {
    for order in [Order::Detach, Order::Evict] {
        let mut rig = rig_with(Demux::multicast);
        for tag in 1..=3 {
            rig.attach_on(1, tag, |attach| attach.tag(tag));
        }
        assert_eq!(keys(rig.apply(order(1))), ["key 1 detached"]);
    }
}

#[test]
fn sink_that_fails_frees_its_key() {
    for op in [Op::Ready, Op::Send, Op::Flush] {
        let mut rig = rig();
        let a = rig.attach(1, "a");
        a.fail_quietly(op);
        let lines = rig.send([101]);
        assert_eq!(keys(lines.clone()), ["key 1 detached"], "{op:?}");
        assert!(lines.last().unwrap().starts_with("detached 1 Failed"));
    }
    // A sink that fails in its close has already freed the key.
    let mut rig = rig();
    let a = rig.attach(1, "a");
    a.hold(Op::Close);
    assert_eq!(rig.apply(Order::Detach(1)), ["key 1 detached"]);
    a.fail(Op::Close);
    assert_eq!(rig.lines(), ["detached 1 Failed(Broken(\"poll_close\"))"]);
}

#[test]
fn limit_overflow_and_time_outs_free_the_key() {
    let terms: [fn(Terms) -> Terms; 4] = [
        |attach| attach.limit(1),
        |attach| attach.overflow(Overflow::Evict),
        |attach| attach.stall_timeout(1).buffer(1),
        |attach| attach.idle_timeout(1),
    ];
    for (n, terms) in terms.into_iter().enumerate() {
        let mut rig = rig();
        let a = rig.attach_on(1, "a", terms);
        let mut lines = Vec::new();
        if n < 3 {
            if n > 0 {
                a.park();
            }
            lines.extend(rig.send([101]));
        }
        lines.extend(rig.apply(Order::Tick));
        assert_eq!(keys(lines.clone()), ["key 1 detached"], "{lines:?}");
        assert!(lines.last().unwrap().starts_with("detached 1 "), "{lines:?}");
        assert_eq!(rig.send([102]), ["unmatched 102"]);
    }
}

#[test]
fn leaving_sink_frees_no_key_when_it_is_dropped() {
    let mut rig = rig();
    let a = rig.attach(1, "a");
    a.hold(Op::Close);
    rig.apply(Order::Detach(1));
    rig.attach_on(1, "b", |attach| attach.tag(2));
    assert_eq!(keys(rig.log.take()), [""; 0]);
    a.release(Op::Close);
    assert_eq!(rig.lines(), ["detached 1 Requested"]);
    // `Evict` ends both sinks; the receiving one frees the key.
    let c = rig.attach_on(2, "c", |attach| attach);
    c.hold(Op::Close);
    rig.apply(Order::Detach(2));
    assert_eq!(rig.apply(Order::Evict(2)), ["detached 2 Evicted"]);
}

// Replacement.

#[test]
fn replacement_calls_no_key_hook() {
    let mut rig = rig();
    let old = rig.attach_on(1, "old", |attach| attach.buffer(2));
    old.park();
    rig.send([101, 102, 103]);
    let lines = {
        rig.order(1, "new", |attach| attach.tag(2));
        rig.lines()
    };
    assert_eq!(keys(lines), [""; 0]);
    assert!(rig.task.get_ref().contains_key(&1));
    assert_eq!(keys(rig.apply(Order::Evict(1))), ["key 1 detached"]);
}

#[test]
fn successor_that_spends_its_limit_on_the_backlog_frees_the_key() {
    let mut rig = rig();
    let old = rig.attach_on(1, "old", |attach| attach.buffer(3));
    old.park();
    rig.send([101, 102, 103]);
    rig.order(1, "new", |attach| attach.limit(2).tag(2));
    let lines = rig.lines();
    assert_eq!(keys(lines.clone()), ["key 1 detached"]);
    let at = |what: &str| lines.iter().position(|line| line == what).unwrap();
    assert!(at("attached 1#2") < at("key 1 detached"), "{lines:?}");
    assert!(at("key 1 detached") < at("detached 1#2 Limited"), "{lines:?}");
    assert!(lines.contains(&"unmatched 103".to_owned()));
}

// The end.

#[test]
fn every_key_is_freed_at_the_end_once() {
    for finish in [false, true] {
        for budget in [1, 128] {
            let mut rig = rig_with(|demux| demux.multicast().budget(budget));
            rig.attach_each([1, 2, 3, 1, 2]);
            if finish {
                rig.orders.push(Order::Finish);
            } else {
                rig.input.end();
            }
            let mut lines = keys(rig.last_lines());
            lines.sort();
            assert_eq!(lines, ["key 1 detached", "key 2 detached", "key 3 detached"]);
        }
    }
}

#[test]
fn drop_of_the_demux_calls_no_key_hook() {
    let mut rig = rig();
    rig.attach_each([1, 2]);
    rig.task.drop_future();
    assert_eq!(rig.log.take(), [""; 0]);
}

// Random events.

impl Rig {
    /// Reads the calls of the key hooks, which must alternate, and compares them with
    /// `contains_key`.
    #[track_caller]
    fn follow(&mut self, attached: &mut BTreeSet<u32>) {
        for line in self.log.take() {
            let mut words = line.split(' ');
            let (what, key) = (words.next(), words.next().map(|key| key.parse().unwrap()));
            match (what, key, words.next()) {
                (Some("key"), Some(key), Some("attached")) => {
                    assert!(attached.insert(key), "key {key} is attached twice");
                }
                (Some("key"), Some(key), Some("detached")) => {
                    assert!(attached.remove(&key), "key {key} is detached twice");
                }
                _ => panic!("{line}"),
            }
        }
        let demux = self.task.get_ref();
        for key in 0..5 {
            assert_eq!(attached.contains(&key), demux.contains_key(&key), "key {key}");
        }
        let receiving: BTreeSet<_> = demux.recipients().map(|to| *to.key).collect();
        assert_eq!(*attached, receiving);
    }
}

/// Sinks join, replace, yield, stall, fail and leave at random.
#[track_caller]
fn all_at_once(seed: u64, multicast: bool) {
    let mut dice = Dice::new(seed);
    let budget = 1 + dice.below(12) as usize;
    let mut rig = Rig::with(|demux| {
        let demux = demux.budget(budget).idle_timeout(dice.below(2) * 3);
        if multicast { demux.multicast() } else { demux }
    })
    .with_silent_sinks()
    .logging_only(|line| line.starts_with("key "));
    let (mut attached, mut changes) = (BTreeSet::new(), 0);
    let mut crowd = Crowd::default();
    for step in 0..800 + dice.below(200) {
        for _ in 0..crowd.act(&mut rig, &mut dice, step) {
            assert!(rig.task.poll().is_pending());
            changes += rig.log.lines().len();
            rig.follow(&mut attached);
        }
    }
    if seed % 2 == 0 {
        rig.orders.push(Order::Finish);
    }
    rig.input.end();
    crowd.release();
    loop {
        let is_over = rig.task.turns(1).is_ready();
        rig.follow(&mut attached);
        if is_over {
            break;
        }
        assert!(rig.task.woken(), "seed {seed}: the demux did not complete");
    }
    assert!(attached.is_empty() && changes > 20, "seed {seed}: {changes} changes");
    assert!(crowd.is_gone(), "seed {seed}");
}

#[test]
fn calls_alternate_and_agree_with_contains_key_whatever_happens() {
    let rounds = if cfg!(debug_assertions) { 60 } else { 1_000 };
    (1..=rounds).for_each(|seed| all_at_once(seed, false));
}

#[test]
fn calls_alternate_and_agree_with_contains_key_whatever_happens_to_groups() {
    let rounds = if cfg!(debug_assertions) { 60 } else { 1_000 };
    (1..=rounds).for_each(|seed| all_at_once(seed, true));
}

/// The key is free before its last sink has drained.
#[test]
fn key_is_free_while_its_last_sink_still_drains() {
    let mut rig = Rig::new().logging_only(|line| !line.starts_with("admit "));
    let a = rig.attach(1, "a");
    a.park();
    rig.send([101]);
    assert_eq!(rig.apply(Order::Detach(1)), ["unblocked 1", "key 1 detached"]);
    a.open();
    assert_eq!(rig.lines(), ["a sent 101", "a closed", "a dropped", "detached 1 Requested"]);
    rig.input.end();
    assert!(matches!(rig.run(), Poll::Ready(_)));
}
