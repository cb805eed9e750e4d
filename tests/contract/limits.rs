//! `Attach::limit` (*Attachments*): after `n` items were sent or queued, the key is free, and the
//! sink drains and is closed.

use crate::common::{CoopBudget, Rig, Terms, hooks};
use stream_demux::Overflow;

#[test]
fn after_the_last_item_the_key_is_free_and_the_sink_is_closed() {
    for limit in 1..=3 {
        let mut rig = Rig::new();
        let a = rig.attach_on(1, "a", |attach| attach.limit(limit));
        for _ in 1..limit {
            rig.send([101]);
            assert_eq!(rig.len(), 1);
        }
        assert_eq!(rig.send([150])[1..], ["a closed", "a dropped", "detached 1 Limited"]);
        assert_eq!((a.taken() as u64, a.flushed() as u64, rig.len()), (limit, limit, 0));
        assert_eq!(rig.send([151]), ["unmatched 151"]);
    }
}

// Items that count as accepted.

#[test]
fn sent_and_queued_items_count_once_each() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.limit(4).buffer(2));
    rig.send([101]);
    a.park();
    rig.send([102, 103]);
    a.allow(1);
    rig.lines();
    assert_eq!((a.items(), rig.len()), (vec![101, 102], 1));
    rig.send([104]);
    assert_eq!(rig.send([105]), ["unmatched 105"]);
    a.open();
    rig.lines();
    assert_eq!((a.items(), a.is_closed()), (vec![101, 102, 103, 104], true));
}

#[test]
fn an_item_beyond_the_buffer_does_not_count() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.limit(2).buffer(1));
    a.park();
    assert_eq!(rig.send([101, 102, 103]), ["blocked 1"]);
    assert_eq!((rig.len(), rig.input.left()), (1, 1));
    a.open();
    let lines = hooks(rig.lines());
    assert_eq!(lines, ["unblocked 1", "detached 1 Limited", "unmatched 103"]);
    assert_eq!(a.items(), [101, 102]);
}

#[test]
fn the_key_is_free_when_the_item_beyond_the_buffer_moves_up() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.limit(3).buffer(2));
    a.park();
    assert_eq!(rig.send([101, 102, 103, 104, 105]), ["blocked 1"]);
    assert_eq!((rig.len(), rig.totals().queued, rig.input.left()), (1, 3, 2));
    a.allow(1);
    assert_eq!(
        rig.lines(),
        ["a sent 101", "unblocked 1", "unmatched 104", "unmatched 105", "a flushed"]
    );
    assert_eq!((rig.len(), rig.totals().queued), (0, 2));
    a.open();
    assert_eq!(
        rig.lines(),
        ["a sent 102", "a sent 103", "a closed", "a dropped", "detached 1 Limited"]
    );
}

#[test]
fn newest_items_that_are_dropped_do_not_count() {
    let mut rig = Rig::new();
    let terms = |attach: Terms| attach.limit(2).buffer(1).overflow(Overflow::DropNewest);
    let a = rig.attach_on(1, "a", terms);
    a.park();
    assert_eq!(
        rig.send([101, 102, 103]),
        ["discarded 102 of 1 Overflowed", "discarded 103 of 1 Overflowed"]
    );
    assert_eq!(rig.len(), 1);
    a.open();
    rig.lines();
    rig.send([104, 105]);
    assert_eq!((a.items(), rig.totals().unmatched), (vec![101, 104], 1));
}

/// The runtime defers its wake.
#[test]
fn sink_in_doubt_is_closed_after_its_last_item_although_no_waker_has_fired() {
    let mut rig = Rig::new();
    let terms = |attach: Terms| attach.limit(2).buffer(1).overflow(Overflow::DropNewest);
    let (a, spent) = (rig.attach_on(1, "a", terms), CoopBudget::deferred(0));
    a.share(&spent);
    rig.push([101, 102]);
    rig.turn();
    a.share(&CoopBudget::deferred(8));
    rig.turn();
    assert_eq!((a.is_closed(), spent.deferred_wakers()), (true, 1));
}

/// It was offered to that attachment, so no other one gets it.
#[test]
fn rest_beyond_a_limit_that_is_reached_in_doubt_is_unmatched_although_there_is_a_catch_all() {
    let mut rig = Rig::new();
    let all = rig.attach_on(9, "all", Terms::catch_all);
    let terms = |attach: Terms| attach.limit(2).buffer(1).overflow(Overflow::DropNewest);
    let a = rig.attach_on(1, "a", terms);
    a.park();
    rig.push([101, 102, 103, 104]);
    rig.turn(); // three are beyond the buffer
    a.allow(2);
    rig.sleep();
    assert_eq!((a.items(), rig.totals().unmatched, all.taken()), (vec![101, 102], 2, 0));
    rig.send([105]);
    assert_eq!((all.items(), rig.totals().unmatched), (vec![105], 2), "the key is free now");
}

// With other attachments under the key.

#[test]
fn the_limit_of_a_replaced_sink_ends_with_it() {
    let mut rig = Rig::new();
    let old = rig.attach_on(1, "old", |attach| attach.limit(3).buffer(2).tag(1));
    old.park();
    rig.send([101, 102]);
    let new = rig.attach_on(1, "new", |attach| attach.tag(2));
    rig.send([103, 104, 105]);
    assert_eq!((new.items(), rig.len()), (vec![101, 102, 103, 104, 105], 1));
    assert!(old.is_closed());
}
