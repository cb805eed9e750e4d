//! `Overflow`: what happens to items for which a sink is not ready (*When a policy acts*). A table
//! of policies, buffers and sinks tells it turn by turn, then come the details: which items
//! `Conflate` replaces, what counts towards a limit, how many sinks are polled in a turn.

use crate::common::{CoopBudget, Op, Rig, SinkHandle};
use Behaviour::*;
use Overflow::{Conflate, DropNewest, DropOldest, Evict, Wait};
use stream_demux::{Order, Overflow};

/// What a sink does when items 101 to 104 come in one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    /// It takes all.
    Ready,
    /// It is not ready.
    Full,
    /// The same, but before the second turn it has woken the task and is ready.
    WokenAndReady,
    /// The same, but it is still not ready.
    WokenInVain,

    /// `Pending` once, with a wake inside the call, as tokio's resources do.
    YieldsOnce,
    /// The same in every call.
    AlwaysYields,
    /// It takes this number of items in a turn, and its waker is deferred.
    Deferred(usize),
}

const ALL: &[Overflow] = &[Wait, DropNewest, DropOldest, Evict, Conflate];
const DISCARDING: &[Overflow] = &[DropNewest, DropOldest, Evict, Conflate];

/// Some sinks, the policies, the sizes of the buffer, and what happens in the first turn, in the
/// second turn, when item 105 comes, and when the sink is ready from then on.
type Row = (&'static [Behaviour], &'static [Overflow], &'static [usize], [&'static str; 4]);

/// `2 queued` stands for the total after these turns, `3 unread` for what is left in the input.
#[rustfmt::skip]
const TABLE: &[Row] = &[
    (&[Ready], ALL, &[0, 1, 2, 4],
        ["sent 101 102 103 104", "", "sent 105", ""]),
    (&[Full, WokenInVain], &[Wait], &[0],
        ["blocked, 1 queued, 3 unread", "1 queued, 3 unread", "1 queued, 4 unread", "sent 101, unblocked, sent 102 103 104 105"]),
    (&[Full, WokenInVain], &[Wait], &[2],
        ["blocked, 3 queued, 1 unread", "3 queued, 1 unread", "3 queued, 2 unread", "sent 101, unblocked, sent 102 103 104 105"]),
    (&[Full, WokenInVain], &[Wait], &[4],
        ["4 queued", "4 queued", "blocked, 5 queued", "sent 101, unblocked, sent 102 103 104 105"]),
    (&[Full, WokenInVain, AlwaysYields], &[DropNewest], &[0, 1],
        ["4 queued", "lost 102 103 104, 1 queued", "lost 105, 1 queued", "sent 101"]),
    (&[Full, WokenInVain, AlwaysYields], &[DropNewest], &[2],
        ["4 queued", "lost 103 104, 2 queued", "lost 105, 2 queued", "sent 101 102"]),
    (&[Full, WokenInVain, AlwaysYields], &[DropNewest], &[4],
        ["4 queued", "4 queued", "lost 105, 4 queued", "sent 101 102 103 104"]),
    (&[Full, WokenInVain, AlwaysYields], &[DropOldest], &[0, 1],
        ["4 queued", "lost 101 102 103, 1 queued", "lost 104, 1 queued", "sent 105"]),
    (&[Full, WokenInVain, AlwaysYields], &[DropOldest], &[2],
        ["4 queued", "lost 101 102, 2 queued", "lost 103, 2 queued", "sent 104 105"]),
    (&[Full, WokenInVain, AlwaysYields], &[DropOldest], &[4],
        ["4 queued", "4 queued", "lost 101, 4 queued", "sent 102 103 104 105"]),
    (&[Full, WokenInVain, AlwaysYields], &[Evict], &[0, 1, 2],
        ["4 queued", "a dropped, lost 101 102 103 104, evicted", "unmatched 105", ""]),
    (&[Full, WokenInVain, AlwaysYields], &[Evict], &[4],
        ["4 queued", "4 queued", "a dropped, lost 101 102 103 104 105, evicted", ""]),
    (&[Full, WokenInVain, AlwaysYields], &[Conflate], &[0, 1, 2, 4],
        ["4 queued", "conflated 101 102 103, 1 queued", "conflated 104, 1 queued", "sent 105"]),
    (&[WokenAndReady], &[Wait], &[0],
        ["blocked, 1 queued, 3 unread", "sent 101, unblocked, sent 102 103 104", "sent 105", ""]),
    (&[WokenAndReady], &[Wait], &[2],
        ["blocked, 3 queued, 1 unread", "sent 101, unblocked, sent 102 103 104", "sent 105", ""]),
    (&[WokenAndReady, YieldsOnce], &[Wait], &[4],
        ["4 queued", "sent 101 102 103 104", "sent 105", ""]),
    (&[WokenAndReady, YieldsOnce], DISCARDING, &[0, 1, 2, 4],
        ["4 queued", "sent 101 102 103 104", "sent 105", ""]),
    (&[YieldsOnce], &[Wait], &[0],
        ["1 queued, 3 unread", "sent 101 102 103 104", "sent 105", ""]),
    (&[YieldsOnce], &[Wait], &[2],
        ["3 queued, 1 unread", "sent 101 102 103 104", "sent 105", ""]),
    (&[AlwaysYields], &[Wait], &[0],
        ["1 queued, 3 unread", "1 queued, 3 unread", "1 queued, 4 unread", "sent 101 102 103 104 105"]),
    (&[AlwaysYields], &[Wait], &[2],
        ["3 queued, 1 unread", "3 queued, 1 unread", "3 queued, 2 unread", "sent 101 102 103 104 105"]),
    (&[AlwaysYields], &[Wait], &[4],
        ["4 queued", "4 queued", "5 queued", "sent 101 102 103 104 105"]),
    (&[Deferred(2)], &[Wait], &[0],
        ["sent 101 102, blocked, 1 queued, 1 unread", "1 queued, 1 unread", "1 queued, 2 unread", "sent 103, unblocked, sent 104 105"]),
    (&[Deferred(2)], &[Wait], &[2],
        ["sent 101 102, 2 queued", "2 queued", "blocked, 3 queued", "sent 103, unblocked, sent 104 105"]),
    (&[Deferred(2)], &[Wait, DropNewest, DropOldest, Evict], &[4],
        ["sent 101 102, 2 queued", "2 queued", "3 queued", "sent 103 104 105"]),
    (&[Deferred(2)], &[DropNewest, DropOldest, Evict], &[0, 1],
        ["sent 101 102, 2 queued", "sent 103 104", "sent 105", ""]),
    (&[Deferred(2)], &[Conflate], &[0, 1, 2, 4],
        ["sent 101 102, 2 queued", "sent 103 104", "sent 105", ""]),
    (&[Deferred(2)], &[DropNewest, DropOldest, Evict], &[2],
        ["sent 101 102, 2 queued", "2 queued", "sent 103 104, 1 queued", "sent 105"]),
    (&[Deferred(1)], &[Wait], &[0],
        ["sent 101, blocked, 1 queued, 2 unread", "1 queued, 2 unread", "1 queued, 3 unread", "sent 102, unblocked, sent 103 104 105"]),
    (&[Deferred(1)], &[Wait], &[2],
        ["sent 101, blocked, 3 queued", "3 queued", "3 queued, 1 unread", "sent 102, unblocked, sent 103 104 105"]),
    (&[Deferred(1)], &[Wait, DropNewest, DropOldest, Evict], &[4],
        ["sent 101, 3 queued", "3 queued", "4 queued", "sent 102 103 104 105"]),
    (&[Deferred(1)], &[DropNewest], &[0, 1],
        ["sent 101, 3 queued", "sent 102, lost 104, 1 queued", "lost 105, 1 queued", "sent 103"]),
    (&[Deferred(1)], &[DropNewest], &[2],
        ["sent 101, 3 queued", "sent 102, 2 queued", "lost 105, 2 queued", "sent 103 104"]),
    (&[Deferred(1)], &[DropOldest], &[2],
        ["sent 101, 3 queued", "sent 102, 2 queued", "lost 103, 2 queued", "sent 104 105"]),
    (&[Deferred(1)], &[Evict], &[2],
        ["sent 101, 3 queued", "sent 102, 2 queued", "a dropped, lost 103 104 105, evicted", ""]),
    (&[Deferred(1)], &[DropOldest], &[0, 1],
        ["sent 101, 3 queued", "sent 102, lost 103, 1 queued", "lost 104, 1 queued", "sent 105"]),
    (&[Deferred(1)], &[Evict], &[0, 1],
        ["sent 101, 3 queued", "sent 102, a dropped, lost 103 104, evicted", "unmatched 105", ""]),
    (&[Deferred(1)], &[Conflate], &[0, 1, 2, 4],
        ["sent 101, 3 queued", "sent 102, conflated 103, 1 queued", "conflated 104, 1 queued", "sent 105"]),
];

/// Returns what happens, as in the table.
#[track_caller]
fn play(behaviour: Behaviour, policy: Overflow, buffer: usize) -> [String; 4] {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.overflow(policy).buffer(buffer));
    let budget = CoopBudget::deferred(if let Deferred(items) = behaviour { items } else { 0 });
    match behaviour {
        Ready => {}
        YieldsOnce => a.stutter(Op::Ready, 1),
        AlwaysYields => a.stutter(Op::Ready, usize::MAX),
        Deferred(_) => a.share(&budget),
        Full | WokenAndReady | WokenInVain => a.park(),
    }
    rig.push(101..=104);
    let first = turns(&mut rig, 1);
    match behaviour {
        WokenAndReady => a.open(),
        WokenInVain => assert!(a.wake()),
        _ => {}
    }
    let second = turns(&mut rig, 1);
    rig.push([105]);
    let third = turns(&mut rig, 3);
    budget.lift();
    a.stutter(Op::Ready, 0);
    a.open();
    [first, second, third, turns(&mut rig, usize::MAX)]
}

/// Runs at most this number of turns, and returns what happened in them.
#[track_caller]
fn turns(rig: &mut Rig, limit: usize) -> String {
    assert!(rig.task.turns(limit).is_pending());
    rig.check_totals();
    let mut events = rig.log.take();
    events.retain(|line| line != "a flushed");
    for event in &mut events {
        let words: Vec<_> = event.split(' ').collect();
        *event = match words[..] {
            ["a", "sent", item] => format!("sent {item}"),
            ["discarded", item, .., "Overflowed"] => format!("lost {item}"),
            ["discarded", item, .., "Conflated"] => format!("conflated {item}"),
            ["detached", .., "Overflowed"] => "evicted".to_owned(),
            [hook @ ("blocked" | "unblocked"), _] => hook.to_owned(),
            _ => event.clone(),
        }
    }
    let counts = [(rig.totals().queued, "queued"), (rig.input.left() as u64, "unread")];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    events.extend(counts.map(|(count, what)| format!("{count} {what}")));
    // Items with the same fate in a row: `sent 101 102`.
    let mut all: Vec<String> = Vec::new();
    for event in events {
        match (all.last_mut(), event.split_once(' ')) {
            (Some(last), Some((fate @ ("sent" | "lost" | "conflated"), item)))
                if last.starts_with(fate) =>
            {
                last.push(' ');
                last.push_str(item);
            }
            _ => all.push(event),
        }
    }
    all.join(", ")
}

#[test]
fn every_policy_and_buffer_with_every_sink() {
    let mut faults = Vec::new();
    for &(behaviours, policies, buffers, ref expected) in TABLE {
        for &behaviour in behaviours {
            for &policy in policies {
                for &buffer in buffers {
                    let events = play(behaviour, policy, buffer);
                    if events != *expected {
                        faults.push(format!("{behaviour:?}, {policy:?}, {buffer}: {events:#?}"));
                    }
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

// Buffers.

/// Returns how many items wait for a sink that is full under this policy.
#[track_caller]
fn kept(policy: Overflow, buffer: Option<usize>, default: Option<usize>) -> u64 {
    let mut rig = Rig::keyed(
        |_: &u32| 1,
        |demux| default.iter().fold(demux.overflow(policy), |demux, &items| demux.buffer(items)),
    );
    let a = rig.attach_on(1, "a", |attach| {
        buffer.iter().fold(attach, |attach, &items| attach.buffer(items))
    });
    a.park();
    a.strict_unless_in_doubt();
    for n in 0..100 {
        let before = rig.totals().queued;
        rig.send([n]);
        if rig.len() == 0 || rig.totals().discarded > 0 {
            return before; // the policy has acted
        }
        if rig.blocked_on().is_some() {
            return before;
        }
    }
    panic!("nothing overflows")
}

#[test]
fn buffer_has_the_documented_default_and_at_least_one_place_for_a_policy_that_keeps_items() {
    for (policy, default, least) in
        [(Wait, 0, 0), (DropNewest, 64, 1), (DropOldest, 64, 1), (Evict, 64, 0), (Conflate, 1, 1)]
    {
        assert_eq!(kept(policy, None, None), default, "{policy:?}");
        assert_eq!(kept(policy, Some(0), None), least, "{policy:?}");
        assert_eq!(kept(policy, None, Some(0)), least, "{policy:?}");
        if policy != Conflate {
            assert_eq!(kept(policy, None, Some(3)), 3, "{policy:?}");
            assert_eq!(kept(policy, Some(5), Some(3)), 5, "{policy:?}");
        }
    }
}

// Sinks in doubt.

#[test]
fn full_sink_is_polled_once_more_and_then_not_before_it_is_woken() {
    for &policy in DISCARDING {
        let mut rig = Rig::new();
        let a = rig.attach_on(1, "a", |attach| attach.overflow(policy).buffer(0));
        a.park();
        rig.send([101, 102]);
        (0..5).for_each(|_| drop(rig.send([103, 104])));
        assert_eq!(a.count(Op::Ready), 2, "{policy:?}");
        if policy == Evict {
            assert!(a.is_dropped());
            continue;
        }
        // A wake ends that, before the turn of an item or in it.
        for wakes in [[true, false], [false, true]] {
            let sink = a.clone();
            assert!(!wakes[0] || sink.wake());
            rig.input.action(move || assert!(!wakes[1] || sink.wake()));
            rig.push([105]);
            assert!(!rig.turn().iter().any(|line| line.starts_with("discarded")), "{policy:?}");
            rig.lines();
        }
    }
}

#[test]
fn thirty_two_sinks_in_doubt_are_polled_in_a_turn_and_the_input_waits_for_the_others() {
    let mut rig = Rig::with(|demux| demux.overflow(DropNewest).buffer(1)).logging(|_| false);
    let sinks = rig.attach_each(1..=40);
    for sink in &sinks {
        sink.park();
        sink.strict_unless_in_doubt();
    }
    let polled = || sinks.iter().filter(|sink| sink.count(Op::Ready) == 2).count();
    rig.push((1..=40).flat_map(|key| [100 * key, 100 * key + 1]));
    rig.turn();
    rig.push([9_900]);
    for (polls, discarded, unread) in [(0, 0, 1), (32, 32, 1), (40, 40, 0)] {
        assert_eq!((polled(), rig.input.left()), (polls, unread));
        assert_eq!(rig.totals().discarded, discarded);
        rig.turn();
    }
}

/// The policy acts before the end. An attachment that leaves alone keeps what waits for it.
#[test]
fn finish_waits_for_a_sink_in_doubt_and_detach_does_not() {
    for (order, discarded) in [(Order::Finish, 1), (Order::Detach(1), 0)] {
        let mut rig = Rig::new();
        let a = rig.attach_on(1, "a", |attach| attach.overflow(DropOldest).buffer(1));
        a.park();
        let orders = rig.orders.clone();
        rig.push([101, 102]);
        rig.input.action(move || orders.push(order));
        rig.push([201]); // in the same turn
        let _ = rig.run();
        assert_eq!(rig.totals().discarded, discarded);
        a.open();
        let _ = rig.run();
        assert_eq!((a.taken(), a.is_closed()), (2 - usize::try_from(discarded).unwrap(), true));
    }
}

// Conflate.

/// Items that end in the same digit supersede each other.
fn conflating() -> Rig {
    Rig::with(|mut demux| {
        demux.hooks_mut().supersedes = |waiting, new| waiting % 10 == new % 10;
        demux.overflow(Conflate)
    })
}

impl Rig {
    /// Attaches a full sink that conflates.
    #[track_caller]
    fn conflates(&mut self, buffer: usize) -> SinkHandle<u32> {
        let sink = self.attach_on(1, "a", |attach| attach.overflow(Conflate).buffer(buffer));
        sink.park();
        sink
    }
}

#[test]
fn new_item_takes_the_place_of_the_first_that_it_supersedes() {
    let mut rig = conflating();
    let a = rig.conflates(9);
    rig.send([101, 102, 103]);
    assert_eq!(rig.send([112, 122]), ["102", "112"].map(conflated));
    a.open();
    rig.lines();
    assert_eq!(a.items(), [101, 122, 103]);
}

fn conflated(item: &str) -> String {
    format!("discarded {item} of 1 Conflated")
}

#[test]
fn supersedes_is_called_from_the_oldest_item_until_it_returns_true() {
    let mut rig = conflating().logging(|line| line.ends_with('?'));
    rig.conflates(9);
    assert_eq!(rig.send([101, 102, 103]), ["102 for 101?", "103 for 101?", "103 for 102?"]);
    assert_eq!(rig.send([112]), ["112 for 101?", "112 for 102?"]);
    for policy in [DropNewest, DropOldest] {
        rig.attach_on(2, "b", |attach| attach.overflow(policy).buffer(1)).park();
        assert!(rig.send([201, 202, 203]).is_empty(), "{policy:?}");
    }
}

#[test]
fn full_queue_in_which_nothing_is_superseded_loses_its_oldest() {
    let mut rig = conflating();
    let a = rig.conflates(2);
    assert_eq!(rig.send([101, 102, 103]), ["discarded 101 of 1 Overflowed"]);
    assert_eq!(
        rig.send([113, 104]),
        ["discarded 103 of 1 Conflated", "discarded 102 of 1 Overflowed"]
    );
    a.open();
    rig.lines();
    assert_eq!(a.items(), [113, 104]);
}
