//! Getters between two polls: `draining`, `recipients`, `hooks_ref`, `hooks_mut`, the length of a
//! lease. Also `Clone`, `Debug` and `Display` of small types.

use crate::common::{Broken, Op, Rig, ScriptedSink, scripted_sink, scripted_stream};
use futures::{FutureExt, StreamExt};
use stream_demux::{
    Attach, DemuxStreamExt, Detached, Discarded, Hooks, Lease, Order, Overflow, Recipient,
};

impl Rig {
    /// Returns keys and tags of the receiving attachments, sorted.
    fn recipients(&self) -> Vec<(u32, u64)> {
        let mut all: Vec<_> =
            self.task.get_ref().recipients().map(|to| (*to.key, to.tag)).collect();
        all.sort_unstable();
        all
    }

    fn draining(&self) -> usize {
        self.task.get_ref().draining()
    }
}

// Recipients, and draining attachments.

#[test]
fn recipients_are_the_receiving_attachments() {
    let mut rig = Rig::new();
    assert_eq!(rig.recipients(), []);
    let a = rig.attach_on(1, "a", |attach| attach.tag(7));
    rig.attach(2, "b");
    rig.attach_on(9, "c", |attach| attach.catch_all().tag(9));
    assert_eq!(rig.recipients(), [(1, 7), (2, 0), (9, 9)]);
    a.hold(Op::Close);
    rig.apply(Order::Detach(1));
    assert_eq!((rig.recipients(), rig.draining()), (vec![(2, 0), (9, 9)], 1));
    rig.attach_on(1, "new", |attach| attach.tag(8));
    assert_eq!((rig.recipients(), rig.draining()), (vec![(1, 8), (2, 0), (9, 9)], 1));
    a.release(Op::Close);
    rig.sleep();
    assert_eq!((rig.recipients().len(), rig.len(), rig.draining()), (3, 3, 0));
}

// The hooks.

/// Admits a number of items, and counts the refused ones.
struct Quota {
    left: u32,
    refused: u32,
}

impl<K, E> Hooks<K, u32, E> for Quota {
    fn admit(&mut self, _: Recipient<'_, K>, _: &u32) -> bool {
        let admitted = self.left > 0;
        self.left -= u32::from(admitted);
        self.refused += u32::from(!admitted);
        admitted
    }
}

#[test]
fn hooks_can_be_read_and_changed_between_polls() {
    let (items, input) = scripted_stream::<u32>("input");
    let (inbox, orders) = scripted_stream::<(u32, ScriptedSink<u32>)>("orders");
    let (sink, a) = scripted_sink("a");
    orders.push((1, sink));
    let mut demux = items.demux_by(|_| 1, inbox).hooks(Quota { left: 2, refused: 0 });
    assert_eq!(demux.hooks_ref().left, 2, "before the first poll");
    input.extend(0..5);
    assert!((&mut demux).now_or_never().is_none());
    assert_eq!((demux.hooks_ref().left, demux.hooks_ref().refused), (0, 3));
    *demux.hooks_mut() = Quota { left: 10, refused: 0 };
    input.extend(5..7);
    input.end();
    assert!((&mut demux).now_or_never().is_some());
    assert_eq!((demux.hooks_ref().left, a.items()), (8, vec![0, 1, 5, 6]), "after the last");
}

// Leases.

#[test]
fn lease_length_counts_attachments_that_have_not_ended() {
    let mut rig = Rig::new();
    let mut lease = Lease::new();
    assert_eq!((lease.len(), lease.is_empty()), (0, true));
    let (first, a) = rig.attachment(1, "a", |attach| attach.leased(&mut lease));
    let (second, _) = rig.attachment(2, "b", |attach| attach.leased(&mut lease));
    let (third, _) = rig.attachment(3, "c", |attach| attach.leased(&mut lease));
    assert_eq!((lease.len(), lease.is_empty()), (3, false), "no order was applied");
    drop(third);
    assert_eq!(lease.len(), 2, "one order was dropped");
    rig.apply(first);
    rig.apply(second);
    assert_eq!(lease.len(), 2);
    rig.apply(Order::Evict(2));
    assert_eq!(lease.len(), 1);
    a.hold(Op::Close);
    rig.apply(Order::Detach(1));
    assert_eq!(lease.len(), 1, "the attachment is still closing");
    a.release(Op::Close);
    rig.sleep();
    assert!(lease.is_empty());
}

// Clones.

/// A sink that is cloned with its order.
type Kept = futures::channel::mpsc::UnboundedSender<u32>;

#[test]
fn clone_of_an_attach_has_its_settings_and_no_lease() {
    let (sink, mut received) = futures::channel::mpsc::unbounded();
    let mut lease = Lease::new();
    let attach: Attach<u32, Kept> =
        Attach::new(1, sink).tag(7).limit(1).overflow(Overflow::DropNewest).leased(&mut lease);
    let before = attach.clone();
    assert_eq!(lease.len(), 1, "the lease does not hold the clone");
    drop(lease);
    let after = attach.clone();
    let mut tags = Vec::new();
    for attach in [attach, before, after] {
        let orders = futures::stream::iter([attach]);
        let demux = futures::stream::iter([1, 1]).demux_by(|n| *n, orders).admit(|to, _| {
            tags.push(to.tag);
            true
        });
        let totals = demux.now_or_never().unwrap();
        assert!(totals.delivered <= 1, "the limit was not cloned");
    }
    assert_eq!(tags, [7, 7], "the lease of the original had ended");
    assert_eq!(std::iter::from_fn(|| received.next().now_or_never().flatten()).count(), 2);
}

#[test]
fn clone_of_an_order_is_the_same_order() {
    let (sink, _received) = futures::channel::mpsc::unbounded();
    let orders: [Order<u32, Kept>; 6] = [
        Attach::new(1, sink).tag(7).into(),
        Order::Detach(2),
        Order::Evict(3),
        Order::Tick,
        Order::Finish,
        Order::Abort,
    ];
    let clones = orders.clone().map(|order| format!("{order:?}"));
    assert_eq!(clones, orders.map(|order| format!("{order:?}")));
    assert!(clones[0].starts_with("Attach") && clones[0].contains("tag: 7"), "{}", clones[0]);
    assert_eq!(clones[1..], ["Detach(2)", "Evict(3)", "Tick", "Finish", "Abort"]);
}

#[test]
fn recipient_is_copied_whatever_its_key() {
    let key = String::from("tea");
    let mut seen = Vec::new();
    let sink = futures::sink::drain();
    let demux = futures::stream::iter([key.clone()])
        .demux_by(String::clone, futures::stream::iter([Attach::new(key, sink).tag(7)]))
        .admit(|to, _| {
            let copy = Clone::clone(&to);
            seen.push((copy.key.clone(), to.tag));
            true
        });
    demux.now_or_never().unwrap();
    assert_eq!(seen, [("tea".to_owned(), 7)]);
}

// Names.

#[test]
fn reasons_have_names_for_labels() {
    let detached = [
        (Detached::Finished, "finished"),
        (Detached::Requested, "requested"),
        (Detached::Replaced, "replaced"),
        (Detached::Limited, "limited"),
        (Detached::Evicted, "evicted"),
        (Detached::Overflowed, "overflowed"),
        (Detached::Refused, "refused"),
        (Detached::Stalled, "stalled"),
        (Detached::Idle, "idle"),
        (Detached::Failed(Broken("poll_ready")), "failed"),
    ];
    for (reason, name) in &detached {
        assert_eq!((reason.as_str(), reason.to_string().as_str()), (*name, *name));
        assert_eq!(format!("{reason:>12}|{reason:<12}|"), format!("{name:>12}|{name:<12}|"));
    }
    let discarded = [
        (Discarded::NotAdmitted, "not_admitted"),
        (Discarded::Overflowed, "overflowed"),
        (Discarded::Evicted, "evicted"),
        (Discarded::Failed, "failed"),
        (Discarded::Conflated, "conflated"),
    ];
    for (reason, name) in discarded {
        assert_eq!((reason.as_str(), reason.to_string().as_str()), (name, name));
        assert_eq!(format!("{reason:>14}"), format!("{name:>14}"));
    }
}
