//! An order attaches a sink to a key that has one. The new sink takes over key, queue and held
//! item, and the old sink is flushed and closed in the background. With `keep_existing`, the new
//! sink is refused.

use crate::common::{Answer, Call, Op, Rig, hooks, scripted_sink};
use stream_demux::{Attach, Lease, Order, Overflow};

// Replacing.

#[test]
fn the_new_sink_gets_the_next_items_and_the_old_sink_is_closed() {
    let mut rig = Rig::new();
    let old = rig.attach_on(1, "old", |attach| attach.tag(1));
    rig.send([101, 102]);
    let new = rig.order(1, "new", |attach| attach.tag(2));
    assert_eq!(rig.lines(), ["attached 1#2", "old closed", "old dropped", "detached 1#1 Replaced"]);
    assert_eq!(rig.len(), 1);
    rig.send([103]);
    assert_eq!((old.items(), old.flushed(), new.items()), (vec![101, 102], 2, vec![103]));
}

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
fn the_queue_moves_to_the_new_sink_in_order() {
    let mut rig = Rig::new();
    let old = rig.attach_on(1, "old", |attach| attach.buffer(3));
    old.park();
    rig.send([101, 102, 103]);
    let new = rig.order(1, "new", |attach| attach.buffer(3));
    rig.lines();
    assert_eq!((old.taken(), old.is_closed()), (0, true));
    assert_eq!((new.items(), new.flushed()), (vec![101, 102, 103], 3));
    let all = rig.totals();
    assert_eq!((all.queued, all.delivered, all.discarded), (0, 3, 0));
}

#[test]
fn the_queue_and_the_held_item_move_even_beyond_the_buffer_of_the_new_sink() {
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
        // Three items have moved; the fourth found no room and is held.
        assert_eq!((rig.totals().queued, rig.input.left()), (4, 0), "buffer {buffer}");
        new.allow(1);
        rig.lines();
        assert_eq!((new.items(), rig.task.get_ref().blocked_on().is_some()), (vec![101], true));
        new.open();
        rig.lines();
        assert_eq!((new.items(), old.taken()), (vec![101, 102, 103, 104], 0));
    }
}

#[test]
fn later_items_wait_behind_the_moved_items() {
    for buffer in [0, 1, 8] {
        let mut rig = Rig::new();
        let old = rig.attach_on(1, "old", |attach| attach.buffer(2));
        old.park();
        rig.send([101, 102, 103]);
        let new = rig.order(1, "new", |attach| attach.buffer(buffer));
        new.stutter(Op::Ready, 1);
        rig.input.extend([104, 105]);
        rig.lines();
        assert_eq!(new.items(), [101, 102, 103, 104, 105], "buffer {buffer}");
    }
}

#[test]
fn the_policy_of_the_new_sink_does_not_affect_items_that_moved() {
    for overflow in [Overflow::DropNewest, Overflow::DropOldest, Overflow::Evict] {
        let mut rig = Rig::new();
        let old = rig.attach_on(1, "old", |attach| attach.buffer(3));
        old.park();
        rig.send([101, 102, 103]);
        let new = rig.order(1, "new", |attach| attach.buffer(1).overflow(overflow));
        new.park();
        assert!(!hooks(rig.lines()).iter().any(|line| line.starts_with("discarded")));
        assert_eq!(rig.totals().queued, 3);
        new.open();
        rig.lines();
        assert_eq!(new.items(), [101, 102, 103], "{overflow:?}");
    }
}

#[test]
fn replacing_frees_the_input_in_the_same_poll() {
    let mut rig = Rig::new();
    let old = rig.attach(1, "old");
    let other = rig.attach(2, "other");
    old.park();
    rig.send([101, 201]);
    let new = rig.order(1, "new", |attach| attach);
    rig.poll();
    assert_eq!((new.items(), other.items()), (vec![101], vec![201]));
    assert!(old.is_closed());
}

#[test]
fn an_item_that_the_replacement_overtook_goes_to_the_new_sink_behind_the_moved_items() {
    let mut rig = Rig::new();
    let old = rig.attach_on(1, "old", |attach| attach.buffer(1));
    old.park();
    rig.send([101]);
    let (sink, new) = scripted_sink("new");
    let orders = rig.orders.clone();
    rig.input.action(move || orders.push((1, sink).into()));
    rig.send([102, 103]);
    assert_eq!((old.taken(), new.items()), (0, vec![101, 102, 103]));
}

#[test]
fn admit_is_not_called_again_for_items_that_moved() {
    let mut rig = Rig::new().logging_only(|line| !line.starts_with("key "));
    let old = rig.attach_on(1, "old", |attach| attach.buffer(1));
    old.park();
    assert_eq!(rig.send([101, 102]), ["admit 101 to 1", "admit 102 to 1", "blocked 1"]);
    let new = rig.order(1, "new", |attach| attach);
    assert!(rig.lines().iter().all(|line| !line.starts_with("admit")));
    assert_eq!(new.taken(), 2);
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

#[test]
fn a_new_sink_whose_limit_is_not_reached_by_moved_items_accepts_the_rest() {
    let mut rig = Rig::new();
    let old = rig.attach_on(1, "old", |attach| attach.buffer(2));
    old.park();
    rig.send([101, 102]);
    let new = rig.attach_on(1, "new", |attach| attach.limit(3));
    assert_eq!((rig.len(), new.is_dropped()), (1, false));
    assert_eq!(hooks(rig.send([103, 104])), ["detached 1 Limited", "unmatched 104"]);
    assert_eq!(new.items(), [101, 102, 103]);
}

#[test]
fn a_new_sink_that_reaches_its_limit_by_moved_items_drains_and_is_closed() {
    let mut rig = Rig::new();
    let old = rig.attach_on(1, "old", |attach| attach.buffer(3));
    old.park();
    rig.send([101, 102, 103]);
    let new = rig.order(1, "new", |attach| attach.limit(2));
    new.park();
    assert!(hooks(rig.lines()).contains(&"unmatched 103".to_owned()));
    assert_eq!((rig.len(), rig.totals().queued), (0, 2));
    assert_eq!(hooks(rig.send([104])), ["unmatched 104"]);
    new.open();
    rig.lines();
    assert_eq!((new.items(), new.is_closed()), (vec![101, 102], true));
}

#[test]
fn items_of_the_old_sink_do_not_count_for_the_new_one() {
    let mut rig = Rig::new();
    let old = rig.attach_on(1, "old", |attach| attach.limit(3));
    rig.send([101, 102]);
    let new = rig.attach_on(1, "new", |attach| attach.limit(2));
    rig.send([103]);
    assert_eq!((old.taken(), new.taken(), rig.len()), (2, 1, 1));
    rig.send([104]);
    assert_eq!((new.items(), new.is_closed(), rig.len()), (vec![103, 104], true, 0));
}

#[test]
fn a_new_sink_of_limit_0_takes_no_key_and_nothing_moves() {
    let mut rig = Rig::new();
    let old = rig.attach_on(1, "old", |attach| attach.buffer(1).tag(1));
    old.park();
    rig.send([101, 102]);
    rig.order(1, "new", |attach| attach.limit(0).tag(2));
    assert_eq!(rig.lines(), ["attached 1#2", "new closed", "new dropped", "detached 1#2 Limited"]);
    old.open();
    rig.lines();
    assert_eq!(old.items(), [101, 102]);
}

// `keep_existing`.

#[test]
fn a_sink_with_keep_existing_is_refused_and_closed() {
    let mut rig = Rig::new();
    let old = rig.attach_on(1, "old", |attach| attach.buffer(1).tag(1));
    old.park();
    rig.send([101, 102]);
    let new = rig.order(1, "new", |attach| attach.keep_existing().tag(2));
    assert_eq!(rig.lines(), ["attached 1#2", "new closed", "new dropped", "detached 1#2 Refused"]);
    assert_eq!(new.calls(), [Call::Close(Answer::Done), Call::Drop]);
    assert_eq!(rig.task.get_ref().blocked_on().map(|on| on.tag), Some(1));
    old.open();
    rig.lines();
    assert_eq!((old.items(), rig.len()), (vec![101, 102], 1));
}

#[test]
fn on_a_free_key_it_is_attached_like_any_other() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", Attach::keep_existing);
    rig.send([101]);
    assert_eq!((a.items(), rig.len()), (vec![101], 1));
}

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

#[test]
fn a_refused_sink_whose_close_is_pending_neither_receives_nor_counts() {
    let mut rig = Rig::new();
    let old = rig.attach(1, "old");
    let new = rig.order(1, "new", |attach| attach.keep_existing().tag(2));
    new.hold(Op::Close);
    assert_eq!(rig.lines(), ["attached 1#2"]);
    rig.send([101]);
    assert_eq!((old.items(), rig.len()), (vec![101], 1));
    rig.apply(Order::Detach(1));
    assert_eq!(hooks(rig.send([102])), ["unmatched 102"]);
    new.release(Op::Close);
    assert_eq!(hooks(rig.lines()), ["detached 1#2 Refused"]);
}

// The old sink in the background.

#[test]
fn a_pending_close_of_the_old_sink_delays_no_other_sink() {
    let mut rig = Rig::new();
    let old = rig.attach_on(1, "old", |attach| attach.tag(1));
    old.hold(Op::Flush);
    rig.send([101]);
    old.hold(Op::Close);
    let new = rig.order(1, "new", |attach| attach.tag(2));
    assert_eq!(rig.lines(), ["attached 1#2"]);
    rig.send([102]);
    assert_eq!((new.items(), new.flushed(), rig.len()), (vec![102], 1, 1));
    old.release(Op::Close);
    assert_eq!(rig.lines(), ["old closed", "old dropped", "detached 1#1 Replaced"]);
    assert_eq!(old.flushed(), 1);
    rig.send([103]);
    assert_eq!(new.items(), [102, 103]);
}

#[test]
fn the_old_sink_fails_as_it_is_closed_and_the_new_one_keeps_key_and_queue() {
    let mut rig = Rig::new();
    let old = rig.attach_on(1, "old", |attach| attach.buffer(1).tag(1));
    old.park();
    rig.send([101, 102]);
    old.fail(Op::Close);
    let new = rig.order(1, "new", |attach| attach.tag(2));
    let lines = hooks(rig.lines());
    let failed = "detached 1#1 Failed(Broken(\"poll_close\"))".to_owned();
    assert_eq!(
        lines.iter().filter(|line| line.starts_with("detached")).collect::<Vec<_>>(),
        [&failed]
    );
    assert_eq!((new.items(), rig.totals().discarded, rig.len()), (vec![101, 102], 0, 1));
}

#[test]
fn an_old_sink_that_is_woken_later_gets_no_moved_items() {
    let mut rig = Rig::new();
    let old = rig.attach_on(1, "old", |attach| attach.buffer(1));
    old.park();
    old.hold(Op::Close);
    rig.send([101]);
    let new = rig.attach(1, "new");
    old.open();
    rig.lines();
    assert_eq!((old.taken(), new.items()), (0, vec![101]));
}

// Repeated replacement.

#[test]
fn replaced_many_times_the_queue_is_handed_on_each_time() {
    let mut rig = Rig::new();
    let mut sinks = vec![rig.attach_on(1, "s0", |attach| attach.buffer(2))];
    sinks[0].park();
    rig.send([101, 102, 103]);
    for n in 1..10 {
        let (sink, handle) = scripted_sink(n);
        handle.park();
        handle.hold(Op::Close);
        rig.apply(Attach::new(1, sink).tag(n));
        sinks.push(handle);
    }
    assert_eq!((rig.len(), rig.totals().queued), (1, 3));
    let last = sinks.pop().unwrap();
    last.open();
    rig.lines();
    assert_eq!(last.items(), [101, 102, 103]);
    for sink in &sinks {
        assert_eq!((sink.taken(), sink.is_failed()), (0, false));
        sink.release(Op::Close);
    }
    let lines = hooks(rig.lines());
    let expected: Vec<_> = (1..9).map(|tag| format!("detached 1#{tag} Replaced")).collect();
    let mut sorted = lines;
    sorted.sort();
    assert_eq!(sorted, expected);
}

#[test]
fn replaced_many_times_in_one_turn_only_the_last_receives() {
    let mut rig = Rig::new();
    let sinks: Vec<_> = (0..10).map(|n| rig.order(1, "s", |attach| attach.tag(n))).collect();
    rig.send([101]);
    for (n, sink) in sinks.iter().enumerate() {
        assert_eq!((sink.taken(), sink.is_closed()), (usize::from(n == 9), n < 9));
    }
    assert_eq!((rig.totals().attached, rig.totals().detached), (10, 9));
}

#[test]
fn replaced_and_detached_and_attached_again_each_item_has_one_fate() {
    let mut rig = Rig::new();
    let first = rig.attach_on(1, "first", |attach| attach.buffer(1));
    first.park();
    rig.send([101, 102]);
    let second = rig.order(1, "second", |attach| attach.buffer(1));
    second.park();
    rig.orders.push(Order::Detach(1));
    let third = rig.order(1, "third", |attach| attach);
    rig.input.push(103);
    rig.lines();
    assert_eq!(third.items(), [103]);
    second.open();
    rig.lines();
    assert_eq!((first.taken(), second.items(), second.is_closed()), (0, vec![101, 102], true));
}

#[test]
fn a_replacement_with_a_budget_of_one_loses_and_reorders_nothing() {
    let mut rig = Rig::with(|demux| demux.budget(1));
    let old = rig.attach_on(1, "old", |attach| attach.buffer(5));
    old.park();
    rig.send([101, 102, 103, 104, 105, 106]);
    let new = rig.order(1, "new", |attach| attach);
    rig.input.extend([107, 108]);
    rig.lines();
    assert_eq!(new.items(), (101..=108).collect::<Vec<_>>());
    assert_eq!(new.flushed(), 8);
}

#[test]
fn a_new_sink_that_fails_on_moved_items_discards_them_and_the_key_is_free() {
    for op in [Op::Ready, Op::Send] {
        let mut rig = Rig::new();
        let old = rig.attach_on(1, "old", |attach| attach.buffer(2).tag(1));
        old.park();
        rig.send([101, 102, 103]);
        let new = rig.order(1, "new", |attach| attach.tag(2));
        new.fail(op);
        let lines = hooks(rig.lines());
        let discarded = lines.iter().filter(|line| line.ends_with("of 1#2 Failed")).count() as u64;
        let lost = u64::from(op == Op::Send);
        assert_eq!((discarded, rig.totals().lost), (3 - lost, lost), "{op:?}");
        assert_eq!((rig.len(), hooks(rig.send([104]))), (0, vec!["unmatched 104".to_owned()]));
    }
}

#[test]
fn a_sink_whose_lease_has_ended_does_not_replace() {
    for detach in [false, true] {
        let mut rig = Rig::new();
        let old = rig.attach_on(1, "old", |attach| attach.buffer(1).tag(1));
        old.park();
        rig.send([101, 102]);
        let mut lease = Lease::new();
        rig.order(1, "new", |attach| attach.tag(2).leased(&mut lease));
        if detach {
            lease.detach();
        } else {
            drop(lease);
        }
        let why = if detach { "Requested" } else { "Evicted" };
        assert_eq!(hooks(rig.lines()), ["attached 1#2".to_owned(), format!("detached 1#2 {why}")]);
        assert_eq!((rig.totals().attached, rig.totals().detached), (2, 1));
        old.open();
        rig.lines();
        assert_eq!(old.items(), [101, 102]);
    }
}

#[test]
fn the_lease_of_the_old_sink_does_not_affect_its_successor() {
    let mut rig = Rig::new();
    let mut lease = Lease::new();
    let old = rig.attach_on(1, "old", |attach| attach.buffer(2).leased(&mut lease));
    old.park();
    rig.send([101, 102]);
    old.hold(Op::Close);
    let new = rig.order(1, "new", |attach| attach.tag(2));
    new.park();
    rig.lines();
    drop(lease);
    assert_eq!(rig.lines(), ["old dropped", "detached 1 Evicted"]);
    new.open();
    rig.lines();
    assert_eq!((new.items(), rig.totals().discarded), (vec![101, 102], 0));
}
