//! `Hooks::key_attached` and `Hooks::key_detached`: which keys have a receiving attachment. That
//! the calls alternate and agree with `Demux::contains_key` is checked by `random_schedules`.

use crate::common::{Rig, Split, is_hook};
use stream_demux::{Attach, Demux, Lease, Order};

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
