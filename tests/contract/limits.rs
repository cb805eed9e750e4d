//! `Attach::limit` (*Attachments*): after `n` items were sent or queued, the key is free, and the
//! sink drains and is closed.

use crate::common::{Rig, hooks};

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
