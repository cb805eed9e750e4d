//! `Hooks::key_attached` and `Hooks::key_detached`: which keys have a receiving attachment. That
//! the calls alternate and agree with `Demux::contains_key` is checked by `random_schedules`.

use crate::common::{Rig, Split, Terms, is_hook};
use stream_demux::{Attach, Demux, Lease, Order, Overflow};

/// Logs all hooks, including those for keys.
fn rig() -> Rig {
    rig_with(|demux| demux)
}

fn rig_with(settings: impl FnOnce(Split) -> Split) -> Rig {
    Rig::with(settings).logging(|line| is_hook(line) || line.starts_with("key "))
}

/// Returns the lines about keys.
fn keys(lines: Vec<String>) -> Vec<String> {
    lines.into_iter().filter(|line| line.starts_with("key ")).collect()
}

// The first.

#[test]
fn key_attached_is_called_after_attached_and_before_the_items_of_the_key() {
    let mut rig =
        Rig::new().logging(|line| !line.ends_with("flushed")).admitting(|_, item| *item != 102);
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
fn limit_overflow_and_time_outs_free_the_key() {
    let terms: [fn(Terms) -> Terms; 4] = [
        |attach| attach.limit(1),
        |attach| attach.overflow(Overflow::Evict).buffer(0),
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

// Replacement.

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
