//! Examples of what the reference does, which show how it reads sections 1, 2, 3 and 5 of the
//! contract. They are about the reference alone, not about the crate.

use stream_demux::Overflow::{self, Conflate, DropNewest, DropOldest, Evict, Wait};

use super::common::model::Side;
use super::common::model::event::{Command, Event, Knob, OrderKind, Outcome, Request, Terms};
use super::common::model::script::Settings;
use super::common::{Op, SinkHandle};

/// A script that is written by hand, for the reference.
struct Play {
    side: Side,
    read: usize,
}

impl Play {
    /// Creates a play with sinks under key 1. The orders stream is quiet, and items 0 and 1 have
    /// been read.
    fn new(sinks: usize, terms: Terms, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings =
            Settings { budget: 128, supersedes: 1, flush_every: 16_384, ..Settings::default() };
        change(&mut settings);
        let mut play = Self { side: Side::new(settings, true), read: 0 };
        (0..sinks).for_each(|_| play.attach(Terms { key: 1, ..terms }));
        play.settle();
        play
    }

    fn exec(&self, command: Command) {
        self.side.world.lock().unwrap().exec(command);
    }

    fn attach(&mut self, terms: Terms) {
        let (count, stride, leases, pooled) = (1, 0, [Some(0), None], false);
        self.exec(Command::Attach { terms, count, stride, leases, pooled });
    }

    fn order(&self, kind: OrderKind) {
        self.exec(Command::Order(kind));
    }

    fn items(&self, key: u16, count: u16) {
        self.exec(Command::Items { key, count, stride: 0 });
    }

    fn sink<R>(
        &self,
        id: usize,
        act: impl FnOnce(&SinkHandle<super::common::model::Item>) -> R,
    ) -> R {
        let sink = self.side.world.lock().unwrap().sinks[id].clone();
        act(&sink)
    }

    /// Lets the reference poll the orders until they are quiet: after the first `Pending` they are
    /// doubted, and the next item waits for another.
    fn settle(&mut self) {
        self.items(5, 1);
        self.run();
        self.items(5, 1);
        self.run();
    }

    /// Polls once. Returns what happened.
    fn turn(&mut self) -> String {
        self.side.turn(false).unwrap();
        let tape = self.side.tape.0.lock().unwrap();
        let lines: Vec<_> = tape[self.read..].iter().filter_map(line).collect();
        self.read = tape.len();
        lines.join("; ")
    }

    /// Polls until the task sleeps. Returns what happened, turn by turn.
    fn run(&mut self) -> Vec<String> {
        let mut turns = Vec::new();
        while self.seen().is_none_or(|seen| !seen.asleep && !seen.completed) || turns.is_empty() {
            turns.push(self.turn());
        }
        turns.retain(|turn| !turn.is_empty());
        turns
    }

    fn seen(&self) -> Option<super::common::model::event::Seen> {
        match self.side.tape.0.lock().unwrap().last() {
            Some(Event::Rest(seen)) => Some(seen.clone()),
            _ => None,
        }
    }

    fn queued(&self) -> u64 {
        self.seen().unwrap().totals.queued
    }
}

fn line(event: &Event) -> Option<String> {
    let lost = |id, seq, why| format!("{id} loses {seq} {why}");
    Some(match *event {
        Event::Polled(id, Op::Ready, Outcome::Pending | Outcome::Yields) => format!("{id} busy"),
        Event::Polled(id, Op::Flush, Outcome::Done) => format!("{id} flushed"),
        Event::Polled(id, Op::Close, Outcome::Done) => format!("{id} closed"),
        Event::Polled(id, op, Outcome::Pending) => format!("{id} {} pending", op.name()),
        Event::Send(id, seq, Outcome::Done) => format!("{id} sent {seq}"),
        Event::Discarded(id, seq, why) => lost(id, seq, why),
        Event::Unmatched(seq) => format!("{seq} unmatched"),
        Event::Detached(id, why) => format!("{id} {why}"),
        Event::KeyDetached(key) => format!("key {key} free"),
        Event::Blocked(id) => format!("blocked {id}"),
        Event::Unblocked(id) => format!("unblocked {id}"),
        _ => return None,
    })
}

fn terms(overflow: Overflow, buffer: usize) -> Terms {
    Terms { overflow: Some(overflow), buffer: Some(buffer), ..Terms::default() }
}

fn one(overflow: Overflow, buffer: usize) -> Play {
    let play = Play::new(1, terms(overflow, buffer), |_| ());
    play.sink(0, SinkHandle::park);
    play
}

// 1. Where an item waits.

#[test]
fn an_item_beyond_the_buffer_closes_the_gate() {
    let mut play = one(Wait, 1);
    play.items(1, 4);
    assert_eq!(play.run(), ["0 busy; blocked 0"]);
    assert_eq!((play.queued(), play.seen().unwrap().totals.received), (2, 4));
    play.sink(0, |sink| sink.allow(1));
    // The gate opens in phase 5. The next item, which is read in phase 9, closes it again.
    assert_eq!(play.run(), ["0 sent 2; unblocked 0; 0 busy; 0 flushed; blocked 0"]);
    play.sink(0, SinkHandle::open);
    assert_eq!(play.run(), ["0 sent 3; unblocked 0; 0 sent 4; 0 sent 5; 0 flushed"]);
}

#[test]
fn blocked_is_not_called_if_the_waker_has_fired() {
    let mut play = one(Wait, 0);
    play.sink(0, |sink| {
        sink.open();
        sink.stutter(Op::Ready, 1);
    });
    play.items(1, 2);
    assert_eq!(play.run(), ["0 busy", "0 sent 2; 0 sent 3; 0 flushed"]);
}

#[test]
fn default_buffers() {
    for (overflow, room) in
        [(Wait, 0), (DropNewest, 64), (DropOldest, 64), (Evict, 64), (Conflate, 1)]
    {
        let terms = Terms { overflow: Some(overflow), ..Terms::default() };
        let mut play = Play::new(1, terms, |_| ());
        play.sink(0, SinkHandle::park);
        play.items(1, 100);
        play.turn();
        let read = if overflow == Wait { 1 } else { 100 };
        assert_eq!(play.queued(), read, "items beyond the buffer are queued, too");
        play.run();
        let left = if overflow == Evict { 0 } else { room.max(u64::from(overflow == Wait)) };
        assert_eq!(play.queued(), left, "{overflow:?}");
    }
}

#[test]
fn no_policy_acts_on_the_first_pending() {
    let mut play = one(DropNewest, 1);
    play.items(1, 3);
    assert_eq!(play.turn(), "0 busy");
    assert_eq!((play.queued(), play.seen().unwrap().asleep), (3, false));
    assert_eq!(play.turn(), "0 busy; 0 loses 3 overflowed; 0 loses 4 overflowed");
    // It is full from now on.
    play.items(1, 1);
    assert_eq!(play.turn(), "0 loses 5 overflowed");
    play.sink(0, SinkHandle::open);
    assert_eq!(play.run(), ["0 sent 2; 0 flushed"]);
}

#[test]
fn a_sink_that_yields_loses_nothing() {
    for overflow in [DropNewest, DropOldest, Evict, Conflate] {
        let mut play = one(overflow, 1);
        play.sink(0, |sink| {
            sink.open();
            sink.stutter(Op::Ready, 1);
        });
        play.items(1, 3);
        assert_eq!(play.run(), ["0 busy", "0 sent 2; 0 sent 3; 0 sent 4; 0 flushed"]);
    }
}

#[test]
fn policies_act_in_the_order_of_the_items() {
    let expected = [
        (DropOldest, "0 busy; 0 loses 2 overflowed; 0 loses 3 overflowed"),
        (Conflate, "0 busy; 0 loses 2 conflated; 0 loses 3 conflated"),
        (
            Evict,
            "0 busy; key 1 free; 0 loses 2 overflowed; 0 loses 3 overflowed; \
             0 loses 4 overflowed; 0 overflowed",
        ),
    ];
    for (overflow, expected) in expected {
        let mut play = one(overflow, 1);
        play.items(1, 3);
        assert_eq!([play.turn(), play.turn()], ["0 busy", expected]);
    }
}

#[test]
fn a_wake_during_the_poll_is_for_the_next_turn() {
    let mut play = one(DropNewest, 1);
    play.items(1, 2);
    play.turn();
    play.sink(0, |sink| sink.stutter(Op::Ready, 1));
    assert_eq!(play.turn(), "0 busy; 0 loses 3 overflowed");
    assert_eq!(play.turn(), "0 busy");
}

#[test]
fn a_sink_in_doubt_that_is_ready_takes_what_it_can() {
    let mut play = Play::new(1, terms(DropNewest, 1), |settings| settings.budget = 3);
    play.sink(0, |sink| {
        sink.park();
        sink.stutter(Op::Ready, 1);
    });
    play.items(1, 3);
    assert_eq!(play.turn(), "0 busy");
    play.items(1, 3);
    play.sink(0, SinkHandle::open);
    // Three polls in doubt, then as a listed slot, then as items come.
    assert_eq!(play.turn(), "0 sent 2; 0 sent 3; 0 sent 4; 0 sent 5; 0 sent 6; 0 sent 7");
}

#[test]
fn the_end_waits_for_doubts() {
    let mut play = one(DropNewest, 1);
    play.items(1, 2);
    play.exec(Command::Input(Knob::End));
    assert_eq!(play.turn(), "0 busy");
    assert_eq!(play.turn(), "0 busy; 0 loses 3 overflowed; key 1 free");
    play.sink(0, SinkHandle::open);
    assert_eq!(play.run(), ["0 sent 2; 0 closed; 0 finished"]);
}

#[test]
fn items_beyond_a_limit_are_unmatched() {
    let terms = Terms { limit: Some(3), ..terms(DropNewest, 1) };
    let mut play = Play::new(1, terms, |_| ());
    play.sink(0, |sink| {
        sink.park();
        sink.stutter(Op::Ready, 1);
    });
    play.items(1, 5);
    play.turn();
    play.sink(0, SinkHandle::open);
    // It is still listed because it woke itself, so phase 5 goes on with what is left. (Q22)
    let expected = "0 sent 2; 0 sent 3; key 1 free; 5 unmatched; 6 unmatched";
    assert_eq!(play.turn(), format!("{expected}; 0 sent 4; 0 closed; 0 limited"));
}

#[test]
fn a_leaving_attachment_takes_all_items_along() {
    let mut play = one(Wait, 1);
    play.items(1, 3);
    play.run();
    play.order(OrderKind::Detach(1));
    assert_eq!(play.turn(), "unblocked 0; key 1 free");
    play.sink(0, SinkHandle::open);
    play.run();
    assert_eq!(play.sink(0, SinkHandle::taken), 2);
}

#[test]
fn a_queue_that_is_taken_over_has_nothing_beyond_the_buffer() {
    let mut play = one(Wait, 2);
    play.items(1, 3);
    play.run();
    play.attach(Terms { key: 1, ..terms(DropNewest, 1) });
    play.sink(1, SinkHandle::park);
    assert_eq!(play.turn(), "unblocked 0; 1 busy; 0 closed; 0 replaced");
    assert_eq!(play.queued(), 3);
    play.sink(1, SinkHandle::open);
    assert_eq!(play.run(), ["1 sent 2; 1 sent 3; 1 sent 4; 1 flushed"]);
}

#[test]
fn a_queue_that_is_taken_over_is_conflated() {
    let mut play = one(Wait, 2);
    play.items(1, 3);
    play.run();
    play.attach(Terms { key: 1, ..terms(Conflate, 1) });
    play.sink(1, SinkHandle::park);
    assert_eq!(play.turn(), "unblocked 0; 1 busy; 0 closed; 0 replaced");
    assert_eq!(play.turn(), "1 busy; 1 loses 2 conflated; 1 loses 3 conflated");
}

#[test]
fn nothing_overtakes_a_queue() {
    let mut play = Play::new(1, terms(Wait, 8), |settings| settings.budget = 2);
    play.sink(0, SinkHandle::park);
    play.items(1, 4);
    play.run();
    play.sink(0, SinkHandle::open);
    play.items(1, 1);
    // Two calls of `poll_ready` a turn; the new item is queued.
    assert_eq!(play.turn(), "0 sent 2; 0 sent 3; 0 flushed");
    assert_eq!(play.queued(), 3);
    assert_eq!(play.turn(), "0 sent 4; 0 sent 5; 0 flushed");
    assert_eq!(play.run(), ["0 sent 6; 0 flushed"]);
}

// 2.1 `multicast`.

fn group(members: usize, terms: Terms, budget: usize) -> Play {
    Play::new(members, terms, |settings| {
        (settings.multicast, settings.budget) = (true, budget);
    })
}

#[test]
fn a_walk_goes_on_in_the_next_turn_before_orders() {
    let mut play = group(5, Terms::default(), 2);
    play.items(1, 1);
    assert_eq!(play.turn(), "0 sent 2; 1 sent 2");
    assert_eq!((play.queued(), play.seen().unwrap().totals.copies), (1, 2));
    play.order(OrderKind::Evict(1));
    // Two members more; then two are evicted, and the others in the next turns.
    assert_eq!(play.turn(), "2 sent 2; 3 sent 2; 0 evicted; 1 evicted");
    assert_eq!(play.turn(), "4 sent 2; 2 evicted; 3 evicted");
    assert_eq!(play.seen().unwrap().totals.copies, 4);
}

#[test]
fn members_that_leave_during_a_walk() {
    // Gracefully: they get their copies at that moment.
    let mut play = group(4, Terms::default(), 1);
    play.items(1, 1);
    assert_eq!(play.turn(), "0 sent 2");
    play.exec(Command::Lease(0, Request::Detach, false));
    assert_eq!(play.turn(), "1 sent 2; 3 sent 2; 3 closed; 3 requested");
    // Evicted: the last one discards the item.
    let mut play = group(3, Terms::default(), 1);
    play.items(1, 1);
    assert_eq!(play.turn(), "0 sent 2");
    play.order(OrderKind::Evict(1));
    assert_eq!(play.turn(), "1 sent 2; 0 evicted");
    assert_eq!(play.turn(), "2 sent 2; 1 evicted");
    let mut play = group(2, Terms::default(), 1);
    play.items(1, 1);
    play.turn();
    play.exec(Command::Lease(0, Request::Evict, false));
    // The last member gets the item itself, so this turn has handled nothing, and flushes. (Q23)
    assert_eq!(play.turn(), "1 sent 2; 1 evicted; 0 flushed");
}

#[test]
fn a_member_without_room_closes_the_gate_for_all() {
    let mut play = group(3, Terms::default(), 128);
    play.sink(1, SinkHandle::park);
    play.items(1, 2);
    assert_eq!(play.turn(), "0 sent 2; 1 busy; 2 sent 2; 0 flushed; 2 flushed; blocked 1");
    assert_eq!((play.queued(), play.seen().unwrap().totals.copies), (1, 2));
    play.sink(1, SinkHandle::open);
    assert_eq!(
        play.turn(),
        "1 sent 2; unblocked 1; 0 sent 3; 1 sent 3; 2 sent 3; 1 flushed; 0 flushed; 2 flushed"
    );
}

#[test]
fn a_copy_beyond_a_limit_is_discarded() {
    let terms = Terms { limit: Some(2), ..terms(DropNewest, 1) };
    let mut play = group(1, terms, 128);
    play.sink(0, |sink| {
        sink.park();
        sink.stutter(Op::Ready, 1);
    });
    play.items(1, 3);
    play.turn();
    play.sink(0, SinkHandle::open);
    let expected = "0 sent 2; key 1 free; 0 loses 4 overflowed; 0 sent 3; 0 closed; 0 limited";
    assert_eq!(play.turn(), expected);
}

// 2.2 `balance`.

fn balance(members: usize, terms: Terms) -> Play {
    Play::new(members, terms, |settings| settings.balance = true)
}

#[test]
fn items_go_to_the_sinks_in_turn() {
    let mut play = balance(3, Terms::default());
    play.items(1, 4);
    assert!(play.turn().starts_with("0 sent 2; 1 sent 3; 2 sent 4; 0 sent 5"));
    play.sink(1, SinkHandle::park);
    play.items(1, 4);
    assert!(play.turn().starts_with("1 busy; 2 sent 6; 0 sent 7; 2 sent 8; 0 sent 9"));
}

#[test]
fn a_woken_sink_takes_its_share() {
    let mut play = balance(2, terms(Wait, 4));
    (0..2).for_each(|id| play.sink(id, SinkHandle::park));
    play.items(1, 8);
    assert_eq!(play.turn(), "0 busy; 1 busy");
    assert_eq!(play.queued(), 8);
    play.sink(1, SinkHandle::open);
    assert_eq!(play.turn(), "1 sent 2; 1 sent 3; 1 sent 4; 1 sent 5; 1 flushed");
    // It is listed, and takes half of what is left.
    assert_eq!(play.turn(), "1 sent 6; 1 sent 7; 1 flushed");
}

#[test]
fn the_policy_acts_when_no_member_is_ready() {
    let mut play = balance(2, terms(DropNewest, 1));
    (0..2).for_each(|id| play.sink(id, SinkHandle::park));
    play.items(1, 4);
    assert_eq!(play.turn(), "0 busy; 1 busy");
    assert_eq!(play.turn(), "0 busy; 1 busy; 0 loses 4 overflowed; 0 loses 5 overflowed");
    play.items(1, 1);
    assert_eq!(play.turn(), "0 loses 6 overflowed");
    // A member that is ready in doubt takes items, and nothing is lost.
    let mut play = balance(2, terms(DropNewest, 1));
    (0..2).for_each(|id| play.sink(id, |sink| sink.stutter(Op::Ready, 1)));
    play.sink(0, SinkHandle::park);
    play.items(1, 4);
    assert_eq!(play.turn(), "0 busy; 1 busy");
    // Its share, in doubt; then, because it is listed, half of what is left. (Q22)
    assert_eq!(play.turn(), "0 busy; 1 sent 2; 1 sent 3; 1 sent 4; 1 flushed");
    assert_eq!(play.turn(), "1 sent 5; 1 flushed");
}

#[test]
fn evict_drops_the_member_that_has_been_parked_longest() {
    let mut play = balance(3, terms(Evict, 1));
    (0..3).for_each(|id| play.sink(id, SinkHandle::park));
    play.items(1, 5);
    assert_eq!(play.turn(), "0 busy; 1 busy; 2 busy");
    assert_eq!(play.turn(), "0 busy; 1 busy; 2 busy; 0 overflowed");
    assert_eq!(play.queued(), 5, "all items are accepted");
}

#[test]
fn the_queue_stays_with_the_key() {
    let mut play = balance(2, terms(Wait, 2));
    (0..2).for_each(|id| play.sink(id, SinkHandle::park));
    play.items(1, 5);
    assert_eq!(play.run(), ["0 busy; 1 busy; blocked 0"]);
    play.sink(0, |sink| sink.fail(Op::Ready));
    // The next head keeps the gate closed.
    assert_eq!(play.run(), ["unblocked 0; 0 poll_ready; blocked 1"]);
    play.exec(Command::Lease(0, Request::Evict, false));
    let losses = [2, 3, 4, 5, 6].map(|seq| format!("1 loses {seq} evicted")).join("; ");
    assert_eq!(play.run(), [format!("unblocked 1; key 1 free; {losses}; 1 evicted")]);
}

#[test]
fn detached_members_take_equal_parts() {
    let mut play = balance(3, terms(Wait, 2));
    (0..3).for_each(|id| play.sink(id, SinkHandle::park));
    play.items(1, 5);
    play.run();
    play.order(OrderKind::Detach(1));
    assert_eq!(play.turn(), "key 1 free");
    (0..3).for_each(|id| play.sink(id, SinkHandle::open));
    play.run();
    assert_eq!([0, 1, 2].map(|id| play.sink(id, SinkHandle::taken)), [2, 2, 1]);
}

#[test]
fn a_limit_counts_what_a_sink_takes() {
    let mut play = balance(2, Terms { limit: Some(2), ..terms(Wait, 8) });
    (0..2).for_each(|id| play.sink(id, SinkHandle::park));
    play.items(1, 6);
    play.run();
    play.sink(0, SinkHandle::open);
    assert_eq!(play.turn(), "0 sent 2; 0 sent 3; 0 closed; 0 limited");
    play.sink(1, SinkHandle::open);
    let expected = "1 sent 4; 1 sent 5; key 1 free; 6 unmatched; 7 unmatched; 1 closed; 1 limited";
    assert_eq!(play.turn(), expected);
}

// 3. Orders and the end.

#[test]
fn an_item_waits_while_the_orders_stream_is_doubted() {
    let mut play = Play::new(1, Terms::default(), |_| ());
    play.order(OrderKind::Detach(3));
    play.items(1, 3);
    assert_eq!(play.turn(), "", "the first item is read, and is overtaken");
    assert_eq!((play.queued(), play.seen().unwrap().totals.received), (1, 3));
    assert_eq!(play.turn(), "0 sent 2; 0 sent 3; 0 sent 4; 0 flushed");
    play.items(1, 1);
    assert_eq!(play.turn(), "0 sent 5; 0 flushed");
}

#[test]
fn abort_ends_all_at_once() {
    let mut play = one(Wait, 1);
    play.attach(Terms { key: 2, ..Terms::default() });
    play.settle();
    play.items(1, 2);
    play.run();
    play.order(OrderKind::Abort);
    let expected = "unblocked 0; key 1 free; 0 loses 4 evicted; 0 loses 5 evicted; 0 evicted; \
                    key 2 free; 1 evicted";
    assert_eq!(play.run(), [expected]);
    assert!(play.seen().unwrap().completed);
}

#[test]
fn finish_routes_the_item_that_it_has_overtaken() {
    let mut play = Play::new(1, Terms::default(), |settings| settings.on_demand = 1);
    let orders = Command::Order(OrderKind::Finish);
    let place = super::common::model::event::Place::Input;
    play.side.world.lock().unwrap().plan(place, orders);
    play.items(2, 1);
    assert_eq!(play.run(), ["2 unmatched; key 1 free; 0 closed; 0 finished"]);
}

// 5. Flushing.

/// Sends an item to each of so many sinks, which have keys of their own.
fn crowd(sinks: u16, change: impl FnOnce(&mut Settings)) -> Play {
    let mut play = Play::new(0, Terms::default(), change);
    let (terms, leases, pooled) = (Terms::default(), [None; 2], false);
    play.exec(Command::Attach { terms, count: sinks, stride: 1, leases, pooled });
    play.settle();
    play.run();
    play
}

fn burst(play: &Play, count: u16) {
    play.exec(Command::Items { key: 0, count, stride: 1 });
}

fn flushes(turn: &str) -> usize {
    turn.split("; ").filter(|line| line.ends_with("flushed")).count()
}

#[test]
fn up_to_16_sinks_are_flushed_at_once() {
    let mut play = crowd(20, |_| ());
    burst(&play, 16);
    assert_eq!(flushes(&play.turn()), 16);
    assert!(play.seen().unwrap().asleep);
}

#[test]
fn more_are_flushed_when_64_turns_have_read_nothing() {
    let mut play = crowd(20, |_| ());
    burst(&play, 17);
    assert_eq!(flushes(&play.turn()), 0);
    for _ in 0..63 {
        assert_eq!(play.turn(), "");
    }
    assert_eq!(flushes(&play.turn()), 17);
    assert!(play.seen().unwrap().asleep);
    // The wait has failed: the next lull is not waited for, then two, then four.
    for skipped in [1, 2, 4] {
        for _ in 0..skipped {
            burst(&play, 17);
            assert_eq!([flushes(&play.turn()), flushes(&play.turn())], [0, 17]);
        }
        burst(&play, 17);
        assert_eq!((0..65).map(|_| flushes(&play.turn())).collect::<Vec<_>>()[63..], [0, 17]);
    }
}

#[test]
fn a_wait_that_paid_is_forgotten_failures() {
    let mut play = crowd(20, |_| ());
    burst(&play, 17);
    (0..65).for_each(|_| drop(play.turn()));
    burst(&play, 17);
    play.run(); // skipped
    burst(&play, 17);
    (0..3).for_each(|_| drop(play.turn()));
    burst(&play, 17); // it pays
    (0..65).for_each(|_| drop(play.turn())); // it fails, the first time again
    burst(&play, 17);
    assert_eq!([flushes(&play.turn()), flushes(&play.turn())], [0, 17], "one is skipped");
    burst(&play, 17);
    assert_eq!([flushes(&play.turn()), flushes(&play.turn())], [0, 0], "the next is not");
}

#[test]
fn a_dry_input_is_waited_for_1024_turns_at_most() {
    let mut play = crowd(20, |_| ());
    burst(&play, 17);
    play.turn();
    for turn in 2..1_024 {
        play.items(0, 1);
        assert_eq!(flushes(&play.turn()), 0, "turn {turn}");
    }
    play.items(0, 1);
    assert_eq!(flushes(&play.turn()), 17);
}

#[test]
fn a_busy_input_flushes_within_the_window() {
    let mut play = crowd(3, |settings| (settings.budget, settings.flush_every) = (4, 40));
    play.items(0, 1);
    play.items(1, 99);
    let mut read = 0;
    while play.seen().is_none_or(|seen| !seen.asleep) || read == 0 {
        let turn = play.turn();
        read += turn.split("; ").filter(|line| line.contains("sent")).count();
        // An entry is flushed up to four items early, at the head of a turn.
        if turn.contains("0 flushed") {
            assert!((37..=41).contains(&read), "{read}");
        }
    }
}

#[test]
fn few_sinks_are_flushed_if_the_input_is_blocked_and_more_in_the_next_turn() {
    for sinks in [16, 17] {
        let mut play = crowd(20, |_| ());
        play.sink(19, SinkHandle::park);
        burst(&play, sinks);
        play.items(19, 2);
        let turn = play.turn();
        assert_eq!(flushes(&turn), if sinks == 16 { 16 } else { 0 }, "{turn}");
        play.run();
        assert!((0..16).all(|id| play.sink(id, SinkHandle::flushed) >= 1));
    }
}
