//! How an attachment ends (guarantees 3, 7, 8, 9, *Attachments*): every way to end it, in every
//! situation. One table tells what then happens to each waiting item, and which hooks are called in
//! which order. The driver also checks that every item has one fate, that the key is free at once,
//! and that the input is free for others.
//!
//! A way to end or a situation that is missing here gets a row, not a test.

use crate::common::{Op, Rig, SinkHandle};
use Situation::*;
use Way::*;
use stream_demux::{Lease, Order, Overflow};

/// What the attachment of sink `a` is doing when it ends. It is under key 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Situation {
    /// It has taken item 101 and was flushed.
    Idle,
    /// It took 101, and its flush is pending.
    Unflushed,
    /// It is not ready, and 101 and 102 are in its queue.
    Queued,
    /// The same, and it has woken the task but was not polled yet.
    Woken,
    /// The same as `Queued`, but 102 is beyond the buffer, and the input waits.
    Blocking,
    /// 102 is beyond the buffer, too, in this turn, and the policy discards.
    InDoubt,
    /// 101 was read in this turn and is not yet routed.
    Overtaken,
    /// It is the last member of a group, and is going to be offered 101.
    LastOfWalk,
    /// It is going to be offered 101 before the last member.
    MiddleOfWalk,
    /// It shares a queue with 101 and 102 with sink `m` (`balance`).
    Sharing,
    /// It is the only one that shares this queue.
    SharingAlone,
    /// It was detached, and 101 and 102 are in its queue.
    Draining,
    /// It was detached, and its close is pending.
    Closing,
}

/// What ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Detach,
    LeaseDetached,
    InputEnds,
    Finish,
    Evict,
    LeaseDropped,
    Abort,
    /// Three ticks: a sink has stalled after three, and is idle after two without an item.
    Ticks,
    /// An attachment under its key: sink `n`.
    Replaced,
    /// The sink is open, but the operation fails.
    Fails(Op),
    DemuxDropped,
}

const GRACEFUL: &[Way] = &[Detach, LeaseDetached, InputEnds, Finish];
const EVICTED: &[Way] = &[Evict, LeaseDropped, Abort];
const GONE: &[Way] = &[Evict, LeaseDropped, Abort, Ticks];

/// Some ways, what follows at once, and what follows after all sinks are opened and released.
type Row = (&'static [Way], &'static str, &'static str);

/// The events are those of sink `a` and of its attachment, or begin with the name of another sink.
/// `freed` stands for the hook `key_detached`. The driver adds the reasons.
#[rustfmt::skip]
const TABLE: &[(Situation, &[Row])] = &[
    (Idle, &[
        (&[Detach, LeaseDetached, InputEnds, Finish, Ticks], "freed, closed, dropped, detached", ""),
        (EVICTED, "dropped, freed, detached", ""),
        (&[Replaced], "n attached, closed, dropped, detached", ""),
        (&[Fails(Op::Ready)], "failed, dropped, freed, discarded 103, detached", ""),
        (&[Fails(Op::Send)], "failed, dropped, freed, detached", ""),
        (&[Fails(Op::Flush)], "sent 103, failed, dropped, freed, detached", ""),
        (&[Fails(Op::Close)], "freed, failed, dropped, detached", ""),
        (&[DemuxDropped], "dropped", ""),
    ]),
    (Unflushed, &[
        (GRACEFUL, "freed, closed, dropped, detached", ""),
        (GONE, "dropped, freed, detached", ""),
        (&[Replaced], "n attached, closed, dropped, detached", ""),
        (&[Fails(Op::Flush)], "failed, dropped, freed, detached", ""),
        (&[DemuxDropped], "dropped", ""),
    ]),
    (Queued, &[
        (GRACEFUL, "freed", "sent 101, sent 102, closed, dropped, detached"),
        (GONE, "dropped, freed, discarded 101, discarded 102, detached", ""),
        (&[Replaced], "n attached, closed, dropped, detached, n sent 101, n sent 102, n flushed", ""),
        (&[Fails(Op::Ready)], "failed, dropped, freed, discarded 101, discarded 102, detached", ""),
        (&[Fails(Op::Send)], "failed, dropped, freed, discarded 102, detached", ""),
        (&[DemuxDropped], "dropped", ""),
    ]),
    (Woken, &[
        (&[Detach, LeaseDetached], "freed, sent 101, sent 102, closed, dropped, detached", ""),
        (&[InputEnds, Finish], "sent 101, sent 102, freed, closed, dropped, detached", ""),
        (EVICTED, "dropped, freed, discarded 101, discarded 102, detached", ""),
        (&[Replaced], "n attached, n sent 101, n sent 102, closed, dropped, detached, n flushed", ""),
        (&[Fails(Op::Ready)], "failed, dropped, freed, discarded 101, discarded 102, detached", ""),
        (&[Fails(Op::Send)], "failed, dropped, freed, discarded 102, detached", ""),
        (&[DemuxDropped], "dropped", ""),
    ]),
    (Blocking, &[
        (&[Detach, LeaseDetached, Finish], "unblocked, freed", "sent 101, sent 102, closed, dropped, detached"),
        (GONE, "unblocked, dropped, freed, discarded 101, discarded 102, detached", ""),
        (&[Replaced], "n attached, unblocked, closed, dropped, detached, n sent 101, n sent 102, n flushed", ""),
        (&[Fails(Op::Ready)], "failed, unblocked, dropped, freed, discarded 101, discarded 102, detached", ""),
        (&[Fails(Op::Send)], "failed, unblocked, dropped, freed, discarded 102, detached", ""),
        (&[DemuxDropped], "dropped", ""),
    ]),
    (InDoubt, &[
        (&[Detach, LeaseDetached], "freed", "sent 101, sent 102, closed, dropped, detached"),
        (&[Finish], "discarded 102, freed", "sent 101, closed, dropped, detached"),
        (&[Evict, LeaseDropped], "dropped, freed, discarded 101, discarded 102, detached", ""),
        (&[Abort], "unmatched 201, dropped, freed, discarded 101, discarded 102, detached", ""),
        (&[Replaced], "n attached, closed, dropped, detached, n sent 101, n sent 102, n flushed", ""),
        (&[Fails(Op::Ready)], "failed, dropped, freed, discarded 101, discarded 102, detached", ""),
        (&[Fails(Op::Send)], "failed, dropped, freed, discarded 102, detached", ""),
        (&[DemuxDropped], "dropped", ""),
    ]),
    (Overtaken, &[
        (&[Detach, LeaseDetached], "freed, closed, dropped, detached, unmatched 101", ""),
        (&[Finish], "sent 101, freed, closed, dropped, detached", ""),
        (&[Evict, LeaseDropped], "dropped, freed, detached, unmatched 101", ""),
        (&[Abort], "unmatched 101, dropped, freed, detached", ""),
        (&[Replaced], "n attached, closed, dropped, detached, n sent 101, n flushed", ""),
        (&[DemuxDropped], "dropped", ""),
    ]),
    (LastOfWalk, &[
        (&[LeaseDetached], "n sent 101, sent 101, closed, dropped, detached, m flushed, n flushed", ""),
        (&[Finish], "n sent 101, sent 101, m closed, m dropped, m detached, n closed, n dropped, n detached, freed, closed, dropped, detached", ""),
        (&[LeaseDropped], "n sent 101, dropped, discarded 101, detached, m flushed, n flushed", ""),
        (&[Abort], "n sent 101, m dropped, m detached, n dropped, n detached, dropped, freed, discarded 101, detached", ""),
        (&[Fails(Op::Ready)], "n sent 101, failed, dropped, discarded 101, detached, m flushed, n flushed", ""),
        (&[Fails(Op::Send)], "n sent 101, failed, dropped, detached, m flushed, n flushed", ""),
        (&[DemuxDropped], "m dropped, n dropped, dropped", ""),
    ]),
    (MiddleOfWalk, &[
        (&[LeaseDetached], "n sent 101, sent 101, closed, dropped, detached, z sent 101, m flushed, n flushed, z flushed", ""),
        (&[Finish], "n sent 101, sent 101, z sent 101, m closed, m dropped, m detached, n closed, n dropped, n detached, closed, dropped, detached, freed, z closed, z dropped, z detached", ""),
        (&[LeaseDropped], "n sent 101, dropped, detached, z sent 101, m flushed, n flushed, z flushed", ""),
        (&[Abort], "n sent 101, m dropped, m detached, n dropped, n detached, dropped, detached, z dropped, freed, z discarded 101, z detached", ""),
        (&[Fails(Op::Ready)], "n sent 101, failed, dropped, discarded 101, detached, z sent 101, m flushed, n flushed, z flushed", ""),
        (&[Fails(Op::Send)], "n sent 101, failed, dropped, detached, z sent 101, m flushed, n flushed, z flushed", ""),
        (&[DemuxDropped], "m dropped, n dropped, dropped, z dropped", ""),
    ]),
    (Sharing, &[
        (&[Detach, InputEnds, Finish], "freed", "sent 102, closed, dropped, detached, m sent 101, m closed, m dropped, m detached"),
        (&[LeaseDetached], "closed, dropped, detached", "m sent 101, m sent 102, m flushed"),
        (&[Evict, Abort], "m dropped, m detached, dropped, freed, discarded 101, discarded 102, detached", ""),
        (&[LeaseDropped, Ticks], "dropped, detached", "m sent 101, m sent 102, m flushed"),
        (&[Fails(Op::Ready)], "failed, dropped, detached", "m sent 101, m sent 102, m flushed"),
        (&[Fails(Op::Send)], "failed, dropped, detached", "m sent 102, m flushed"),
        (&[DemuxDropped], "m dropped, dropped", ""),
    ]),
    (SharingAlone, &[
        (GRACEFUL, "freed", "sent 101, sent 102, closed, dropped, detached"),
        (GONE, "dropped, freed, discarded 101, discarded 102, detached", ""),
        (&[Fails(Op::Ready)], "failed, dropped, freed, discarded 101, discarded 102, detached", ""),
        (&[Fails(Op::Send)], "failed, dropped, freed, discarded 102, detached", ""),
        (&[DemuxDropped], "dropped", ""),
    ]),
    (Draining, &[
        (GRACEFUL, "", "sent 101, sent 102, closed, dropped, detached"),
        (&[Replaced], "n attached", "sent 101, sent 102, closed, dropped, detached"),
        (GONE, "dropped, discarded 101, discarded 102, detached", ""),
        (&[Fails(Op::Ready)], "failed, dropped, discarded 101, discarded 102, detached", ""),
        (&[Fails(Op::Send)], "failed, dropped, discarded 102, detached", ""),
        (&[DemuxDropped], "dropped", ""),
    ]),
    (Closing, &[
        (GRACEFUL, "", "closed, dropped, detached"),
        (&[Replaced], "n attached", "closed, dropped, detached"),
        (GONE, "dropped, detached", ""),
        (&[Fails(Op::Close)], "failed, dropped, detached", ""),
        (&[DemuxDropped], "dropped", ""),
    ]),
];

impl Way {
    /// The reasons for the hooks `detached` and `discarded`.
    fn reasons(self, situation: Situation) -> (String, &'static str) {
        let (detached, discarded) = match self {
            _ if situation == Draining && !self.is_forced() => ("Requested", ""),
            _ if situation == Closing && !self.is_forced() => ("Requested", ""),
            Detach | LeaseDetached => ("Requested", ""),
            // The end of the input waits for a sink in doubt, whose policy may act.
            InputEnds | Finish => ("Finished", "Overflowed"),
            Evict | LeaseDropped | Abort => ("Evicted", "Evicted"),
            Ticks if situation == Idle => ("Idle", ""),
            Ticks => ("Stalled", "Evicted"),
            Replaced => ("Replaced", ""),
            Fails(op) => return (format!("Failed(Broken({:?}))", op.name()), "Failed"),
            DemuxDropped => ("", ""),
        };
        (detached.to_owned(), discarded)
    }

    fn is_forced(self) -> bool {
        matches!(self, Evict | LeaseDropped | Abort | Ticks | Fails(_))
    }

    fn ends_the_demux(self) -> bool {
        matches!(self, InputEnds | Finish | Abort | DemuxDropped)
    }
}

/// Returns what ends the attachment, to be called between two turns or while the input is polled.
fn deed(
    (situation, way): (Situation, Way),
    rig: &Rig,
    (a, lease): (SinkHandle<u32>, Lease),
) -> impl FnOnce() + Send + use<> {
    let (input, orders) = (rig.input.clone(), rig.orders.clone());
    let successor = rig.attachment(1, "n", |attach| attach.tag(8)).0;
    let mut successor = Some(successor).filter(|_| way == Replaced);
    rig.log.take();
    rig.log.take();
    let mut lease = Some(lease);
    move || {
        match way {
            Detach => orders.push(Order::Detach(1)),
            LeaseDetached => lease.take().into_iter().for_each(Lease::detach),
            InputEnds => input.end(),
            Finish => orders.push(Order::Finish),
            Evict => orders.push(Order::Evict(1)),
            LeaseDropped => drop(lease.take()),
            Abort => orders.push(Order::Abort),
            Ticks => orders.push(Order::Tick),
            Replaced => orders.extend(successor.take()),
            Fails(op) => {
                a.fail(op);
                match (op, situation) {
                    (Op::Close, Idle) => orders.push(Order::Detach(1)),
                    (_, Idle) => input.push(103),
                    (Op::Send, _) => a.open(),
                    _ => {}
                }
            }
            DemuxDropped => {}
        }
        lease.into_iter().for_each(Lease::disarm);
    }
}

/// Ends sink `a` in this situation. Returns the log up to the moment when the task parks, and from
/// then on, without the lines about sink `b` under key 2.
#[track_caller]
fn play(situation: Situation, way: Way) -> [Vec<String>; 2] {
    let mut rig = Rig::with(|demux| match situation {
        LastOfWalk | MiddleOfWalk => demux.multicast().budget(1),
        Sharing | SharingAlone => demux.balance(),
        _ => demux,
    });
    let b = rig.attach(2, "b");
    let walks = matches!(situation, LastOfWalk | MiddleOfWalk);
    let mut others = Vec::new();
    if walks || situation == Sharing {
        others.push(rig.attach_on(1, "m", |attach| attach.tag(6).buffer(1)));
    }
    if walks {
        others.push(rig.attach_on(1, "n", |attach| attach.tag(8)));
    }
    let mut lease = Lease::new();
    let a = rig.attach_on(1, "a", |attach| {
        let attach = attach.tag(7).leased(&mut lease).stall_timeout(3).idle_timeout(2);
        match situation {
            Blocking | Sharing => attach.buffer(1),
            InDoubt => attach.buffer(1).overflow(Overflow::DropNewest),
            _ => attach.buffer(2),
        }
    });
    if situation == MiddleOfWalk {
        rig.attach_on(1, "z", |attach| attach.tag(9));
    }
    rig.log.keep_only(|line| !line.starts_with("admit ") && !line.ends_with("attached"));
    let mut log = Vec::new();
    match situation {
        Idle | Overtaken | LastOfWalk | MiddleOfWalk => {}
        Unflushed => a.hold(Op::Flush),
        Closing => a.hold(Op::Close),
        Queued | Woken | Blocking | InDoubt | Sharing | SharingAlone | Draining => {
            others.iter().chain([&a]).for_each(SinkHandle::park);
        }
    }
    match situation {
        Idle | Unflushed => log = rig.send([101]),
        Queued | Woken | Draining | Sharing | SharingAlone => log = rig.send([101, 102]),
        Blocking => log = rig.send([101, 102, 201]),
        InDoubt => rig.push([101, 102]),
        LastOfWalk | MiddleOfWalk => {
            rig.push([101]);
            log = rig.turn();
            assert_eq!(log, ["m sent 101"]);
        }
        Overtaken | Closing => {}
    }
    match situation {
        Draining | Closing => drop(rig.apply(Order::Detach(1))),
        Woken => a.open(),
        _ => {}
    }

    let deed = deed((situation, way), &rig, (a.clone(), lease));
    match situation {
        Overtaken => {
            rig.input.action(deed);
            rig.push([101]);
        }
        InDoubt => {
            rig.input.action(deed);
            rig.push([201]);
        }
        _ => deed(),
    }
    if way == DemuxDropped {
        rig.task.drop_future();
        return [without_b(rig.log.take()), Vec::new()];
    }
    let mut ended = rig.run().is_ready();
    for _ in 1..if way == Ticks { 3 } else { 1 } {
        rig.orders.push(Order::Tick);
        ended = rig.run().is_ready();
    }
    let at_once = rig.log.take();
    if !ended {
        let alone = others.is_empty() || matches!(way, Detach | Evict | InputEnds | Finish);
        let taken = way == Replaced || !alone;
        assert_eq!(rig.demux().contains_key(&1), taken, "{situation:?}, {way:?}: its key");
        if !way.ends_the_demux() {
            log.extend(rig.send([202]));
            assert_eq!(b.items().last(), Some(&202), "{situation:?}, {way:?}: b waits");
        }
    }
    log.extend(at_once.clone());
    others.iter().for_each(SinkHandle::open);
    release(&a);
    if !ended {
        ended = rig.run().is_ready();
    }
    assert_eq!(ended, way.ends_the_demux(), "{situation:?}, {way:?}");
    let later = rig.log.take();
    log.extend(later.clone());
    let count = |what| log.iter().filter(|line| line.contains(what)).count() as u64;
    let fates = (count(" sent "), count("discarded "), count("unmatched "));
    let all = rig.totals();
    assert_eq!((all.delivered, all.discarded, all.unmatched), fates, "{situation:?}, {way:?}");
    assert_eq!(all.lost, u64::from(way == Fails(Op::Send)), "{situation:?}, {way:?}");
    [without_b(at_once), without_b(later)]
}

fn release(sink: &SinkHandle<u32>) {
    for op in [Op::Ready, Op::Flush, Op::Close] {
        sink.release(op);
    }
}

fn without_b(mut log: Vec<String>) -> Vec<String> {
    log.retain(|line| line.split(' ').all(|word| word != "b" && word != "2"));
    log
}

/// Writes events of the table as in the log.
fn spelled(events: &str, (situation, way): (Situation, Way)) -> Vec<String> {
    let (why, fate) = way.reasons(situation);
    let line = |event: &str| {
        let (name, event) = match event.split_once(' ') {
            Some((name @ ("m" | "n" | "z"), event)) => (name, event),
            _ => ("a", event),
        };
        let to = match name {
            "m" => "1#6",
            "n" => "1#8",
            "z" => "1#9",
            _ => "1#7",
        };
        match (event.split_once(' ').unwrap_or((event, "")), way) {
            (("freed", _), _) => "key 1 detached".to_owned(),
            (("attached" | "unblocked", _), _) => format!("{event} {to}"),
            (("detached", _), _) => format!("detached {to} {why}"),
            (("discarded", item), _) => format!("discarded {item} of {to} {fate}"),
            (("unmatched", _), _) => event.to_owned(),
            (("failed", _), Fails(op)) => format!("a failed in {}", op.name()),
            _ => format!("{name} {event}"),
        }
    };
    events.split(", ").filter(|event| !event.is_empty()).map(line).collect()
}

#[test]
fn every_way_to_end_in_every_situation() {
    let mut faults = Vec::new();
    for &(situation, rows) in TABLE {
        for &(ways, at_once, later) in rows {
            for &way in ways {
                let mut expected = [at_once, later].map(|events| spelled(events, (situation, way)));
                let mut log = play(situation, way);
                if way == DemuxDropped {
                    // The order in which it drops sinks is not promised.
                    log.iter_mut().chain(&mut expected).for_each(|lines| lines.sort());
                }
                if log != expected {
                    faults.push(format!("{situation:?}, {way:?}:\n{log:#?}\n{expected:#?}"));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// An error of a sink that leaves is reported instead of the reason why it leaves.
#[test]
fn close_that_fails_is_reported_for_every_reason_to_leave() {
    type Leave = fn(&Rig);
    let leave: [(&str, Leave); 5] = [
        ("Requested", |rig| rig.orders.push(Order::Detach(1))),
        ("Limited", |rig| rig.push([101])),
        ("Replaced", |rig| drop(rig.order(1, "n", |attach| attach.tag(8)))),
        ("Idle", |rig| rig.orders.push(Order::Tick)),
        ("Finished", |rig| rig.input.end()),
    ];
    for (reason, leave) in leave {
        for fails in [false, true] {
            let mut rig = Rig::new().logging(|line| line.starts_with("detached 1#7"));
            let a = rig.attach_on(1, "a", |attach| attach.tag(7).limit(1).idle_timeout(1));
            a.hold(Op::Close);
            leave(&rig);
            assert!(rig.lines().is_empty() && a.is_closing(), "{reason}");
            if fails {
                a.fail(Op::Close);
            } else {
                a.release(Op::Close);
            }
            let why = if fails { "Failed(Broken(\"poll_close\"))" } else { reason };
            assert_eq!(rig.run().is_ready(), reason == "Finished");
            assert_eq!(rig.log.take(), [format!("detached 1#7 {why}")]);
        }
    }
}

// Which attachments an order applies to.

#[test]
fn detach_applies_to_the_receiving_attachment_and_evict_to_every_one_of_the_key() {
    let mut rig = Rig::new().logging(|line| line.starts_with("detached"));
    let replaced = rig.attach_on(1, "replaced", |attach| attach.tag(1));
    replaced.hold(Op::Close);
    let limited = rig.attach_on(1, "limited", |attach| attach.tag(2).limit(1).buffer(1));
    limited.park();
    rig.send([101]);
    let drains = rig.attach_on(1, "drains", |attach| attach.tag(3).buffer(1));
    drains.park();
    rig.send([102]);
    rig.apply(Order::Detach(1));
    rig.attach_on(1, "receives", |attach| attach.tag(4));
    let refused = rig.order(1, "refused", |attach| attach.tag(5).keep_existing());
    refused.hold(Op::Close);
    let other = rig.attach(2, "other");
    other.hold(Op::Close);
    rig.apply(Order::Detach(2));
    assert_eq!((rig.len(), rig.demux().draining()), (1, 5));

    assert_eq!(rig.apply(Order::Detach(1)), ["detached 1#4 Requested"]);
    rig.attach_on(1, "receives", |attach| attach.tag(6));
    let mut evicted = rig.apply(Order::Evict(1));
    evicted.sort();
    assert_eq!(evicted, [1, 2, 3, 5, 6].map(|tag| format!("detached 1#{tag} Evicted")));
    assert_eq!((rig.totals().discarded, rig.demux().draining()), (2, 1));
    assert!(!other.is_dropped());
}
