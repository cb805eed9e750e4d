//! A client reconnects: its lease ends, and the order for its successor is sent. A lease that ended
//! before an order or an item was read takes effect first (guarantee 1), so the result does not
//! depend on when the demux is polled.

use crate::common::{Orders, Rig, Split, Terms};

use stream_demux::{Attach, Lease, Order};

/// Returns an order without effect.
fn idle_order() -> Orders {
    Order::Detach(99)
}

/// How the old client's lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Dropped,
    Detached,
}

const ENDS: [End; 2] = [End::Dropped, End::Detached];

impl End {
    fn of(self, lease: Lease) {
        match self {
            Self::Dropped => drop(lease),
            Self::Detached => lease.detach(),
        }
    }
}

/// When the successor's order is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// After the demux was polled for the end of the lease.
    Polled,
    /// After the end of the lease, with no poll in between.
    After,
    /// Before the end of the lease, with no poll in between.
    Before,
    /// The lease ends while the orders stream is polled for it.
    WhileRead,
    /// The lease ends while the orders stream is polled, after an order without effect.
    AfterAnother,
}

const WHEN: [When; 5] =
    [When::Polled, When::After, When::Before, When::WhileRead, When::AfterAnother];

type Named<A> = (&'static str, fn(A) -> A);

const TERMS: [Named<Terms>; 2] =
    [("replace", |attach| attach), ("keep_existing", Attach::keep_existing)];

/// Ends the lease and attaches the successor.
fn reconnect(rig: &mut Rig, lease: Lease, end: End, when: When, successor: Orders) {
    match when {
        When::Polled => {
            end.of(lease);
            rig.sleep();
            rig.orders.push(successor);
        }
        When::After => {
            end.of(lease);
            rig.orders.push(successor);
        }
        When::Before => {
            rig.orders.push(successor);
            end.of(lease);
        }
        When::WhileRead => {
            rig.orders.action(move || end.of(lease));
            rig.orders.push(successor);
        }
        When::AfterAnother => {
            rig.orders.push(idle_order());
            rig.orders.action(move || end.of(lease));
            rig.orders.push(successor);
        }
    }
}

/// The old client has `queued` items in a queue of `buffer`; then it reconnects, and item 110
/// follows. Returns the log up to the last item of both sinks.
#[track_caller]
fn story(
    settings: impl FnOnce(Split) -> Split,
    (buffer, queued): (usize, u32),
    (end, when): (End, When),
    terms: fn(Terms) -> Terms,
) -> Vec<String> {
    let mut rig = Rig::with(settings);
    let mut lease = Lease::new();
    let old = rig.attach_on(1, "old", |attach| attach.buffer(buffer).tag(1).leased(&mut lease));
    old.park();
    rig.send((101..).take(queued as usize));
    let (successor, new) = rig.attachment(1, "new", |attach| terms(attach.tag(2)));
    reconnect(&mut rig, lease, end, when, successor);
    rig.input.push(110);
    rig.sleep();
    assert_eq!((new.items(), rig.len()), (vec![110], 1), "{end:?}, {when:?}");
    old.open();
    rig.sleep();
    assert!(old.is_dropped() && rig.totals().queued == 0);
    let mut lines = rig.log.take();
    lines.retain(|line| !line.ends_with("flushed"));
    lines
}

/// Asserts that the log is the same in all cases of `WHEN` and `TERMS`.
#[track_caller]
fn each_time(queue: (usize, u32), end: End, expected: &[&str]) {
    for when in WHEN {
        for (name, terms) in TERMS {
            let lines = story(|demux| demux, queue, (end, when), terms);
            assert_eq!(lines, expected, "{when:?}, {name}");
        }
    }
}

// The ordinary reconnect.

#[test]
fn dropped_lease_discards_its_queue_and_the_successor_has_the_key() {
    each_time(
        (4, 2),
        End::Dropped,
        &[
            "old dropped",
            "discarded 101 of 1#1 Evicted",
            "discarded 102 of 1#1 Evicted",
            "detached 1#1 Evicted",
            "attached 1#2",
            "new sent 110",
        ],
    );
}

#[test]
fn detached_lease_keeps_its_queue_and_the_successor_has_the_key() {
    each_time(
        (4, 2),
        End::Detached,
        &[
            "attached 1#2",
            "new sent 110",
            "old sent 101",
            "old sent 102",
            "old closed",
            "old dropped",
            "detached 1#1 Requested",
        ],
    );
}

#[test]
fn every_budget_has_the_same_result() {
    for budget in 1..=8 {
        for end in ENDS {
            for when in WHEN {
                for (_, terms) in TERMS {
                    let usual = story(|demux| demux, (4, 2), (end, When::Polled), terms);
                    let short = story(|demux| demux.budget(budget), (4, 2), (end, when), terms);
                    assert_eq!(short, usual, "budget {budget}, {when:?}");
                }
            }
        }
    }
}

// Items.

#[test]
fn item_that_is_read_after_the_end_of_a_lease_does_not_reach_the_old_client() {
    for end in ENDS {
        let mut rig = Rig::new().with_silent_sinks();
        let mut lease = Lease::new();
        let a = rig.attach_on(1, "a", |attach| attach.leased(&mut lease));
        rig.input.push(101);
        rig.input.action(move || end.of(lease));
        rig.input.extend([102, 103]);
        let lines = rig.lines();
        assert_eq!(lines.iter().filter(|line| line.starts_with("unmatched")).count(), 2);
        assert_eq!(a.items(), [101], "{end:?}");
    }
}

// A lease for many.

/// A demux with a sink for each of `count` keys, all under one lease. Items are their keys.
#[track_caller]
fn leased_by_one(count: u32, settings: impl FnOnce(Split) -> Split) -> (Rig, Lease) {
    let mut rig = Rig::keyed(|n| *n, settings).with_silent_sinks();
    let mut lease = Lease::new();
    for key in 0..count {
        rig.order(key, key, |attach| attach.leased(&mut lease));
    }
    rig.sleep();
    rig.log.take();
    (rig, lease)
}

#[test]
fn order_that_was_read_while_leases_end_is_kept_and_comes_before_the_next() {
    for budget in 1..=4 {
        let (mut rig, lease) = leased_by_one(10, |demux| demux.budget(budget));
        rig.orders.action(move || drop(lease));
        let first = rig.order(3, "first", |attach| attach.keep_existing().tag(1));
        let second = rig.order(3, "second", |attach| attach.keep_existing().tag(2));
        rig.input.push(3);
        let mut lines = rig.lines();
        lines.retain(|line| line.contains('#'));
        assert_eq!(lines, ["attached 3#1", "attached 3#2", "detached 3#2 Refused"]);
        assert_eq!((first.items(), second.taken(), rig.len()), (vec![3], 0, 1), "{budget}");
    }
}
