//! An order attaches a sink to a key that has one (*Attachments*). The new sink takes over key and
//! queue, and the old sink is flushed and closed in the background.

use crate::common::{Op, Rig, hooks, scripted_sink};
use stream_demux::{Attach, Order};

// Replacing.

#[test]
fn the_sequence_is_split_exactly_where_the_order_came() {
    let mut rig = Rig::new();
    let old = rig.attach(1, "old");
    let (sink, new) = scripted_sink("new");
    let orders = rig.orders.clone();
    rig.input.extend(100..150);
    rig.input.action(move || orders.push((1, sink).into()));
    rig.input.extend(150..200);
    rig.lines();
    assert_eq!(old.items(), (100..150).collect::<Vec<_>>());
    assert_eq!(new.items(), (150..200).collect::<Vec<_>>());
}

#[test]
fn the_queue_moves_even_beyond_the_buffer_of_the_new_sink() {
    for buffer in 0..=2 {
        let mut rig = Rig::new();
        let old = rig.attach_on(1, "old", |attach| attach.buffer(2).tag(1));
        old.park();
        rig.send([101, 102, 103, 104]);
        let new = rig.order(1, "new", |attach| attach.buffer(buffer).tag(2));
        new.park();
        let logged = hooks(rig.lines());
        let expected = ["attached 1#2", "unblocked 1#1", "detached 1#1 Replaced", "blocked 1#2"];
        let mut sorted = logged.clone();
        sorted.sort();
        assert_eq!(
            sorted,
            ["attached 1#2", "blocked 1#2", "detached 1#1 Replaced", "unblocked 1#1"]
        );
        let at = |line: &str| logged.iter().position(|other| other == line);
        assert!(at(expected[1]) < at(expected[2]) && at(expected[1]) < at(expected[3]));
        // Three items have moved; the fourth is beyond the buffer.
        assert_eq!((rig.totals().queued, rig.input.left()), (4, 0), "buffer {buffer}");
        new.allow(1);
        rig.lines();
        assert_eq!((new.items(), rig.blocked_on()), (vec![101], None));
        new.open();
        rig.lines();
        assert_eq!((new.items(), old.taken()), (vec![101, 102, 103, 104], 0));
    }
}

// The limit of the new sink.

#[test]
fn moved_items_count_towards_the_limit_and_the_surplus_is_unmatched() {
    for limit in 1..=2 {
        let mut rig = Rig::new();
        let old = rig.attach_on(1, "old", |attach| attach.buffer(2).tag(1));
        old.park();
        rig.send([101, 102, 103]);
        let new = rig.order(1, "new", |attach| attach.limit(limit).tag(2));
        let lines = hooks(rig.lines());
        let surplus: Vec<_> = lines.iter().filter(|line| line.starts_with("unmatched")).collect();
        let expected: Vec<_> = (101 + limit..=103).map(|n| format!("unmatched {n}")).collect();
        assert_eq!(surplus, expected.iter().collect::<Vec<_>>());
        assert_eq!(lines.iter().filter(|line| *line == "detached 1#2 Limited").count(), 1);
        let items: Vec<_> = [101, 102, 103].into_iter().filter(|n| *n <= 100 + limit).collect();
        let taken: Vec<_> = new.items().into_iter().map(u64::from).collect();
        assert_eq!((taken, new.is_closed()), (items, true));
        assert_eq!((rig.len(), rig.totals().queued), (0, 0));
        assert_eq!(hooks(rig.send([104])), ["unmatched 104"]);
    }
}

// `keep_existing`.

#[test]
fn a_key_is_free_while_its_former_sink_still_drains_or_closes() {
    let mut rig = Rig::new();
    let draining = rig.attach_on(1, "draining", |attach| attach.buffer(1));
    draining.park();
    rig.send([101]);
    rig.apply(Order::Detach(1));
    let second = rig.attach_on(1, "second", Attach::keep_existing);
    second.hold(Op::Close);
    rig.send([102]);
    rig.apply(Order::Detach(1));
    let third = rig.attach_on(1, "third", Attach::keep_existing);
    rig.send([103]);
    draining.open();
    rig.lines();
    assert_eq!(draining.items(), [101]);
    assert_eq!((second.items(), third.items()), (vec![102], vec![103]));
}
