//! Guarantee 3: every item has one fate, and the totals add up between two polls: `received +
//! copies = unmatched + delivered + discarded + lost + queued`. The tests compare the totals with
//! hooks and sinks, item by item.

use std::fmt::Debug;
use std::task::Poll;

use crate::common::{self, Crowd, Dice, Op, Rig, SinkHandle, Split, Terms};
use stream_demux::{Attach, Demux, Lease, Order, Overflow};

/// The totals, in the order of the equation; see `Rig::account`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Account {
    received: u64,
    copies: u64,
    unmatched: u64,
    delivered: u64,
    discarded: u64,
    lost: u64,
    queued: u64,
}

/// Logs the fates of items that reach no sink. Does not admit items that end in 99.
fn rig() -> Rig {
    rig_with(|demux| demux)
}

fn rig_with(settings: impl FnOnce(Split) -> Split) -> Rig {
    let fates = |line: &str| line.starts_with("unmatched") || line.starts_with("discarded");
    Rig::with(settings).logging_only(fates).admitting(|_, item| item % 100 != 99)
}

impl Rig {
    /// Attaches a parked sink under key 1.
    #[track_caller]
    fn parked_on_1(&mut self, terms: impl FnOnce(Terms) -> Terms) -> SinkHandle<u32> {
        let sink = self.order(1, "a", terms);
        sink.park();
        self.sleep();
        sink
    }

    /// Sends items without clearing the log.
    #[track_caller]
    fn read<const N: usize>(&mut self, items: [u32; N]) {
        self.input.extend(items);
        self.sleep();
    }

    /// Polls once spuriously, runs until the task parks, and returns the totals.
    #[track_caller]
    fn account(&mut self) -> Account {
        self.poll();
        self.sleep();
        let t = self.totals();
        Account {
            received: t.received,
            copies: t.copies,
            unmatched: t.unmatched,
            delivered: t.delivered,
            discarded: t.discarded,
            lost: t.lost,
            queued: t.queued,
        }
    }
}

const NOTHING: Account = Account {
    received: 0,
    copies: 0,
    unmatched: 0,
    delivered: 0,
    discarded: 0,
    lost: 0,
    queued: 0,
};

// One fate at a time.

#[test]
fn an_item_without_an_attachment_is_unmatched() {
    let mut rig = rig();
    rig.read([101, 102]);
    assert_eq!(rig.account(), Account { received: 2, unmatched: 2, ..NOTHING });
    assert_eq!(rig.log.lines(), ["unmatched 101", "unmatched 102"]);
}

#[test]
fn an_item_that_was_taken_is_delivered() {
    let mut rig = rig();
    let a = rig.attach(1, "a");
    rig.read([101, 102]);
    assert_eq!(rig.account(), Account { received: 2, delivered: 2, ..NOTHING });
    assert_eq!((a.items(), rig.log.lines().len()), (vec![101, 102], 0));
}

#[test]
fn items_in_a_queue_and_the_held_item_count_as_queued() {
    let mut rig = rig();
    let a = rig.parked_on_1(|attach| attach.buffer(2));
    rig.read([101, 102, 103, 104]);
    assert_eq!(rig.account(), Account { received: 3, queued: 3, ..NOTHING });
    a.allow(1);
    assert_eq!(rig.account(), Account { received: 4, delivered: 1, queued: 3, ..NOTHING });
    a.open();
    assert_eq!(rig.account(), Account { received: 4, delivered: 4, ..NOTHING });
}

#[test]
fn an_item_that_orders_overtook_is_queued() {
    let mut rig = rig_with(|demux| demux.budget(2));
    rig.read([]);
    let orders = rig.orders.clone();
    rig.input.action(move || orders.extend((0..5).map(|_| Order::Detach(9))));
    rig.input.push(101);
    rig.poll();
    assert_eq!(rig.totals().queued, 1);
    assert_eq!(rig.account(), Account { received: 1, unmatched: 1, ..NOTHING });
}

#[test]
fn an_item_that_is_not_admitted_is_discarded() {
    let mut rig = rig();
    rig.attach(1, "a");
    rig.read([199, 101]);
    assert_eq!(rig.account(), Account { received: 2, delivered: 1, discarded: 1, ..NOTHING });
    assert_eq!(rig.log.lines(), ["discarded 199 of 1 NotAdmitted"]);
}

#[test]
fn the_newest_or_the_oldest_is_discarded_when_the_queue_is_full() {
    for (overflow, buffer, discarded) in [
        (
            Overflow::DropNewest,
            2,
            ["discarded 103 of 1 Overflowed", "discarded 104 of 1 Overflowed"],
        ),
        (
            Overflow::DropOldest,
            2,
            ["discarded 101 of 1 Overflowed", "discarded 102 of 1 Overflowed"],
        ),
    ] {
        let mut rig = rig();
        rig.parked_on_1(|attach| attach.buffer(buffer).overflow(overflow));
        rig.read([101, 102, 103, 104]);
        assert_eq!(rig.account(), Account { received: 4, discarded: 2, queued: 2, ..NOTHING });
        assert_eq!(rig.log.lines(), discarded);
    }
}

#[test]
fn without_a_buffer_the_newest_or_the_oldest_but_one_is_discarded() {
    for (overflow, discarded) in [(Overflow::DropNewest, 102), (Overflow::DropOldest, 101)] {
        let mut rig = rig();
        rig.parked_on_1(|attach| attach.overflow(overflow));
        rig.read([101, 102]);
        assert_eq!(rig.account(), Account { received: 2, discarded: 1, queued: 1, ..NOTHING });
        assert_eq!(rig.log.lines(), [format!("discarded {discarded} of 1 Overflowed")]);
    }
}

#[test]
fn a_sink_that_is_evicted_for_its_overflow_discards_queue_and_item() {
    let mut rig = rig();
    rig.parked_on_1(|attach| attach.buffer(2).overflow(Overflow::Evict));
    rig.read([101, 102, 103, 104]);
    assert_eq!(rig.account(), Account { received: 4, unmatched: 1, discarded: 3, ..NOTHING });
    let fates = [
        "discarded 101 of 1 Overflowed",
        "discarded 102 of 1 Overflowed",
        "discarded 103 of 1 Overflowed",
        "unmatched 104",
    ];
    assert_eq!(rig.log.lines(), fates);
}

#[test]
fn an_item_lost_in_start_send_is_lost_and_the_queue_discarded() {
    let mut rig = rig();
    let a = rig.parked_on_1(|attach| attach.buffer(3));
    rig.read([101, 102, 103]);
    a.fail(Op::Send);
    a.open();
    assert_eq!(rig.account(), Account { received: 3, discarded: 2, lost: 1, ..NOTHING });
    assert_eq!(rig.log.lines(), ["discarded 102 of 1 Failed", "discarded 103 of 1 Failed"]);
}

#[test]
fn an_item_that_goes_straight_to_a_failing_sink_is_lost() {
    let mut rig = rig();
    rig.attach(1, "a").fail_quietly(Op::Send);
    rig.read([101, 102]);
    assert_eq!(rig.account(), Account { received: 2, unmatched: 1, lost: 1, ..NOTHING });
}

#[test]
fn an_item_whose_sink_fails_to_get_ready_is_discarded() {
    let mut rig = rig();
    rig.attach(1, "a").fail_quietly(Op::Ready);
    rig.read([101, 102]);
    assert_eq!(rig.account(), Account { received: 2, unmatched: 1, discarded: 1, ..NOTHING });
    assert_eq!(rig.log.lines(), ["discarded 101 of 1 Failed", "unmatched 102"]);
}

#[test]
fn queue_and_held_item_of_a_sink_that_fails_are_discarded() {
    for op in [Op::Ready, Op::Flush] {
        let mut rig = rig();
        let a = rig.parked_on_1(|attach| attach.buffer(2));
        a.hold(Op::Flush);
        a.allow(1);
        rig.read([101, 102, 103, 104]);
        assert_eq!(rig.account(), Account { received: 4, delivered: 1, queued: 3, ..NOTHING });
        a.fail(op);
        assert_eq!(rig.account(), Account { received: 4, delivered: 1, discarded: 3, ..NOTHING });
        assert_eq!(
            rig.log.lines(),
            ["discarded 102 of 1 Failed", "discarded 103 of 1 Failed", "discarded 104 of 1 Failed"]
        );
    }
}

#[test]
fn an_item_that_was_held_is_lost_if_its_sink_fails_to_take_it() {
    let mut rig = rig();
    let a = rig.parked_on_1(|attach| attach);
    rig.read([101]);
    a.fail(Op::Send);
    a.open();
    assert_eq!(rig.account(), Account { received: 1, lost: 1, ..NOTHING });
}

#[test]
fn queue_and_held_item_of_an_evicted_sink_are_discarded() {
    for leased in [false, true] {
        let mut rig = rig();
        let mut lease = Lease::new();
        rig.parked_on_1(|attach| attach.buffer(2).leased(&mut lease));
        rig.read([101, 102, 103]);
        if leased {
            drop(lease);
        } else {
            rig.orders.push(Order::Evict(1));
        }
        assert_eq!(rig.account(), Account { received: 3, discarded: 3, ..NOTHING });
        assert_eq!(
            rig.log.lines(),
            [
                "discarded 101 of 1 Evicted",
                "discarded 102 of 1 Evicted",
                "discarded 103 of 1 Evicted"
            ]
        );
    }
}

#[test]
fn the_queue_of_a_sink_that_is_leaving_is_discarded_when_it_is_evicted() {
    let mut rig = rig();
    rig.parked_on_1(|attach| attach.buffer(2));
    rig.read([101, 102, 103]);
    rig.orders.push(Order::Detach(1));
    rig.sleep();
    assert_eq!(rig.account(), Account { received: 3, queued: 3, ..NOTHING });
    rig.orders.push(Order::Evict(1));
    rig.sleep();
    assert_eq!(rig.account(), Account { received: 3, discarded: 3, ..NOTHING });
}

#[test]
fn a_backlog_that_is_handed_on_stays_queued() {
    let mut rig = rig();
    rig.parked_on_1(|attach| attach.buffer(2));
    rig.read([101, 102, 103, 104]);
    let new = rig.parked_on_1(|attach| attach);
    assert_eq!(rig.account(), Account { received: 4, queued: 4, ..NOTHING });
    new.open();
    assert_eq!(rig.account(), Account { received: 4, delivered: 4, ..NOTHING });
}

#[test]
fn the_surplus_of_a_limited_successor_is_unmatched() {
    let mut rig = rig();
    rig.parked_on_1(|attach| attach.buffer(3));
    rig.read([101, 102, 103, 104]);
    let new = rig.parked_on_1(|attach| attach.limit(2));
    assert_eq!(rig.account(), Account { received: 4, unmatched: 2, queued: 2, ..NOTHING });
    assert_eq!(rig.log.lines(), ["unmatched 103", "unmatched 104"]);
    new.open();
    assert_eq!(rig.account(), Account { received: 4, unmatched: 2, delivered: 2, ..NOTHING });
}

#[test]
fn items_after_the_limit_are_unmatched() {
    let mut rig = rig();
    let a = rig.parked_on_1(|attach| attach.buffer(5).limit(2));
    rig.read([199, 101, 102, 103]);
    let account = Account { received: 4, unmatched: 1, discarded: 1, queued: 2, ..NOTHING };
    assert_eq!(
        rig.account(),
        account,
        "items that are not admitted do not count towards the limit"
    );
    a.open();
    assert_eq!(rig.account(), Account { delivered: 2, queued: 0, ..account });
}

#[test]
fn items_of_a_catch_all_are_not_unmatched() {
    let mut rig = rig();
    let a = rig.attach_on(1, "a", Attach::catch_all);
    rig.read([501, 101, 702]);
    assert_eq!(rig.account(), Account { received: 3, delivered: 3, ..NOTHING });
    assert_eq!(a.items(), [501, 101, 702]);
}

#[test]
fn on_completion_nothing_is_queued() {
    for finish in [false, true] {
        let mut rig = rig();
        let a = rig.parked_on_1(|attach| attach.buffer(2));
        rig.read([101, 102, 103]);
        if finish {
            rig.orders.push(Order::Finish);
        } else {
            rig.input.end();
        }
        assert_eq!(rig.account(), Account { received: 3, queued: 3, ..NOTHING });
        a.open();
        let Poll::Ready(totals) = rig.run() else { panic!("the demux did not complete") };
        assert_eq!((totals.received, totals.delivered, totals.queued), (3, 3, 0));
        assert_eq!((totals.attached, totals.detached), (1, 1));
        assert_eq!(rig.totals(), totals);
    }
}

// Copies.

#[test]
fn each_member_but_the_last_gets_a_copy() {
    let mut rig = rig_with(Demux::multicast);
    let sinks = [1, 2, 3].map(|_| rig.attach(1, "a"));
    rig.read([101, 102]);
    assert_eq!(rig.account(), Account { received: 2, copies: 4, delivered: 6, ..NOTHING });
    assert!(sinks.iter().all(|sink| sink.items() == [101, 102]));
}

#[test]
fn an_item_that_is_held_for_several_is_queued_once() {
    let mut rig = rig_with(Demux::multicast);
    let a = rig.parked_on_1(|attach| attach);
    let b = rig.parked_on_1(|attach| attach);
    rig.attach(1, "a");
    rig.read([101]);
    let account = Account { received: 1, copies: 1, delivered: 1, queued: 1, ..NOTHING };
    assert_eq!(rig.account(), account);
    a.open();
    assert_eq!(rig.account(), Account { copies: 2, delivered: 2, ..account });
    b.open();
    assert_eq!(rig.account(), Account { received: 1, copies: 2, delivered: 3, ..NOTHING });
}

#[test]
fn copies_that_are_dropped_or_queued_or_refused_count_one_by_one() {
    let mut rig = rig_with(Demux::multicast);
    rig.parked_on_1(|attach| attach.overflow(Overflow::DropNewest));
    rig.parked_on_1(|attach| attach.buffer(5));
    rig.parked_on_1(|attach| attach.overflow(Overflow::Evict));
    rig.attach(1, "a");
    rig.read([101]);
    let account =
        Account { received: 1, copies: 3, delivered: 1, discarded: 1, queued: 2, ..NOTHING };
    assert_eq!(rig.account(), account);
    rig.read([199]);
    let account = Account { received: 2, copies: 5, discarded: 4, ..account };
    assert_eq!(rig.account(), account);
    rig.read([102]);
    let account =
        Account { received: 3, copies: 7, delivered: 2, discarded: 5, queued: 3, ..account };
    assert_eq!(rig.account(), account);
}

#[test]
fn a_member_that_fails_while_the_item_is_held_discards_its_copy() {
    let mut rig = rig_with(Demux::multicast);
    let a = rig.parked_on_1(|attach| attach);
    let b = rig.parked_on_1(|attach| attach);
    rig.read([101]);
    b.fail(Op::Ready);
    a.open();
    assert_eq!(
        rig.account(),
        Account { received: 1, copies: 1, delivered: 1, discarded: 1, ..NOTHING }
    );
    assert_eq!(rig.log.lines(), ["discarded 101 of 1 Failed"]);
}

#[test]
fn a_member_that_leaves_takes_a_copy_of_the_held_item_and_an_evicted_one_takes_none() {
    for evict in [false, true] {
        let mut rig = rig_with(Demux::multicast);
        let mut lease = Lease::new();
        rig.parked_on_1(|attach| attach);
        rig.parked_on_1(|attach| attach.leased(&mut lease));
        rig.read([101]);
        if evict {
            drop(lease);
            assert_eq!(rig.account(), Account { received: 1, queued: 1, ..NOTHING });
        } else {
            lease.detach();
            assert_eq!(rig.account(), Account { received: 1, copies: 1, queued: 2, ..NOTHING });
        }
    }
}

#[test]
fn the_last_member_to_be_evicted_discards_the_held_item() {
    let mut rig = rig_with(Demux::multicast);
    rig.parked_on_1(|attach| attach);
    rig.parked_on_1(|attach| attach);
    rig.read([101]);
    rig.orders.push(Order::Evict(1));
    rig.sleep();
    assert_eq!(rig.account(), Account { received: 1, discarded: 1, ..NOTHING });
    assert_eq!(rig.log.lines(), ["discarded 101 of 1 Evicted"]);
}

// Random events.

/// Sinks join, yield, fail and leave at random. In the end, sinks and hooks got exactly the items
/// that were read and their copies.
#[track_caller]
fn all_at_once(seed: u64, multicast: bool) {
    let mut dice = Dice::new(seed);
    let budget = 1 + dice.below(12) as usize;
    let mut rig = rig_with(|demux| {
        let demux = demux.budget(budget).flush_every(5);
        if multicast { demux.multicast() } else { demux }
    });
    let mut crowd = Crowd::default();
    for step in 0..1_500 {
        for _ in 0..crowd.act(&mut rig, &mut dice, step) {
            rig.poll();
        }
    }
    rig.input.end();
    crowd.release();
    let Poll::Ready(totals) = rig.run() else { panic!("seed {seed}: the demux did not complete") };
    assert_eq!((totals.queued, totals.attached), (0, totals.detached), "seed {seed}");

    let lines = rig.log.lines();
    let unmatched = lines.iter().filter(|line| line.starts_with("unmatched")).count() as u64;
    let taken: usize = crowd.sinks.iter().map(SinkHandle::taken).sum();
    let failed = crowd.sinks.iter().filter(|sink| sink.calls().contains(&LOST)).count() as u64;
    assert_eq!(unmatched, totals.unmatched, "seed {seed}");
    assert_eq!(lines.len() as u64 - unmatched, totals.discarded, "seed {seed}");
    assert_eq!(taken as u64, totals.delivered, "seed {seed}");
    assert_eq!(failed, totals.lost, "seed {seed}");
    assert!(crowd.is_gone(), "seed {seed}");
}

const LOST: common::Call = common::Call::Send(common::Answer::Failed);

#[test]
fn the_totals_add_up_after_random_events() {
    (1..=60).for_each(|seed| all_at_once(seed, false));
}

#[test]
fn the_totals_add_up_after_random_events_with_many_sinks_per_key() {
    (1..=60).for_each(|seed| all_at_once(seed, true));
}
