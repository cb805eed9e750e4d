//! `Attach::catch_all` (attachment rules): the attachment that also receives items that match no
//! other, with its own settings. Such items count as delivered, not as unmatched (guarantee 3). The
//! last catch-all that was attached is used; an earlier one is not used again.

use crate::common::Rig;
use stream_demux::{Attach, Demux, Order};

/// Logs neither flushes nor calls of `admit`.
fn rig() -> Rig {
    but_flushes(Rig::new())
}

fn group() -> Rig {
    but_flushes(Rig::with(Demux::multicast))
}

fn but_flushes(rig: Rig) -> Rig {
    rig.logging(|line| {
        !["admit ", "key "].iter().any(|hook| line.starts_with(hook)) && !line.ends_with("flushed")
    })
}

#[test]
fn catch_all_gets_items_of_its_key_and_unmatched_items() {
    let mut rig = rig();
    let a = rig.attach_on(1, "a", Attach::catch_all);
    let b = rig.attach(2, "b");
    rig.send([101, 201, 901, 801]);
    assert_eq!((a.items(), b.items()), (vec![101, 901, 801], vec![201]));
    let t = rig.totals();
    assert_eq!((t.delivered, t.unmatched), (4, 0));
    assert!(rig.task.get_ref().contains_key(&1) && !rig.task.get_ref().contains_key(&9));
    assert_eq!(rig.len(), 2);
}

#[test]
fn key_attached_later_is_no_longer_caught_and_a_freed_one_is() {
    let mut rig = rig();
    rig.attach_on(1, "a", Attach::catch_all);
    assert_eq!(rig.send([201]), ["a sent 201"]);
    rig.attach(2, "b");
    assert_eq!(rig.send([202]), ["b sent 202"]);
    rig.apply(Order::Detach(2));
    assert_eq!(rig.send([203]), ["a sent 203"]);
}

#[test]
fn earlier_catch_all_is_not_used_again_when_the_last_one_leaves() {
    for evict in [false, true] {
        let mut rig = rig();
        rig.attach_on(1, "a", Attach::catch_all);
        rig.attach_on(2, "b", Attach::catch_all);
        rig.apply(if evict { Order::Evict(2) } else { Order::Detach(2) });
        assert_eq!(rig.send([901, 101]), ["unmatched 901", "a sent 101"]);
    }
}

// Replaced.

#[test]
fn replaced_by_an_ordinary_sink_its_backlog_moves_and_it_catches_no_more() {
    let mut rig = rig();
    let a = rig.attach_on(1, "a", |attach| attach.catch_all().buffer(2));
    a.park();
    rig.send([901, 101, 902]);
    let b = rig.attach(1, "b");
    assert_eq!(b.items(), [901, 101, 902]);
    assert!(a.items().is_empty());
    assert_eq!(rig.send([903, 102]), ["unmatched 903", "b sent 102"]);
}

// With multicast.

#[test]
fn caught_item_goes_to_that_attachment_alone_and_not_to_its_group() {
    for catcher in 0..3 {
        let mut rig = group();
        let names = ["a", "b", "c"];
        let sinks: Vec<_> =
            (0..3)
                .map(|n| {
                    rig.attach_on(1, names[n], |attach| {
                        if n == catcher { attach.catch_all() } else { attach }
                    })
                })
                .collect();
        assert_eq!(rig.send([901]), [format!("{} sent 901", names[catcher])]);
        assert_eq!(rig.totals().copies, 0);
        rig.send([101]);
        assert!(sinks.iter().all(|sink| sink.items().last() == Some(&101)));
    }
}

#[test]
fn catch_all_that_reaches_its_limit_with_the_queue_that_it_takes_over_catches_nothing() {
    let mut rig = Rig::with(|demux| demux.buffer(2));
    rig.attach_on(1, "old", Attach::catch_all).park();
    rig.send([101, 102]);
    rig.order(1, "new", |attach| attach.catch_all().limit(1)).park();
    assert!(rig.send([501]).contains(&"unmatched 501".to_owned()));
}
