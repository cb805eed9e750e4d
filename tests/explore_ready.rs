//! Evidence for the lists of woken slots and of ended leases (`src/ready.rs`) without loom or Miri:
//! a model of them, one step for each atomic operation, and an explorer that goes through every
//! interleaving of two wakers and the owner, in a memory that may also show what is out of date.
//!
//! What must hold in every state: no slot is in a list twice, nor in one with its flag clear, nor
//! looked after twice in a turn; the waker of the task is not touched by two at once; no order is
//! applied before a lease has had its effect that had ended when the order was sent; and whenever
//! all have come to rest, everything was seen that wakers had to tell, and no slot is left listed.
//! Guards 1, 4 and 13.
//!
//! Then the same with everything done wrong that comes to mind, one thing at a time: the explorer
//! must find out, and says how (`--nocapture`). Without optimisation only small scenarios are gone
//! through; `cargo test --release --test explore_ready` does them all.
//!
//! Not covered: what a read may find that a later step of its own thread has led to (no processor
//! with Rust has that for these operations, but the language does not exclude it; where it matters,
//! that the owner reads `next` before it clears the bits, the two are tried in the wrong order
//! instead); plain stores that are put in order before one that their thread has not seen; more
//! threads, or slots, than there are here; and that the model is the code, which only reading can
//! tell.

#![allow(unreachable_pub, reason = "nothing is reachable from outside a test binary")]

#[path = "explore_ready/explore.rs"]
mod explore;
#[path = "explore_ready/memory.rs"]
mod memory;
#[path = "explore_ready/model.rs"]
mod model;
#[path = "explore_ready/steps.rs"]
mod steps;

use Act::{End, Ring, Stale, Wake};
use explore::explore;
use memory::Order::{self, Acquire, Relaxed, Release};
use memory::{Memory, NEWS, SIGNALS};
use model::{AS_IT_IS, Act, Extra, Flaw, Protocol, Scenario};

const fn scenario(a: &'static [Act], b: &'static [Act], extra: Extra) -> Scenario {
    Scenario { acts: [a, b], budget: 2, extra }
}

const SAME_SLOT: Scenario = scenario(&[Wake(0)], &[Wake(0)], Extra::Nothing);
const TWO_SLOTS: Scenario = scenario(&[Wake(0)], &[Wake(1)], Extra::Nothing);
/// The budget ends inside the list.
const ONE_A_TURN: Scenario = Scenario { budget: 1, ..TWO_SLOTS };
const SINK_AND_ORDERS: Scenario = scenario(&[Wake(0)], &[Ring], Extra::Nothing);
const TWO_ORDERS: Scenario = scenario(&[Ring], &[Ring], Extra::Nothing);
const SINK_AND_LEASE: Scenario = scenario(&[End(0)], &[Wake(0)], Extra::Nothing);
/// A client ends its lease, then sends the order of its successor.
const RECONNECTS: Scenario = scenario(&[End(0), Ring], &[Wake(0)], Extra::Nothing);
/// Two clients do.
const TWO_RECONNECT: Scenario = scenario(&[End(0), Ring], &[End(1), Ring], Extra::Nothing);
const TWO_LEASES: Scenario = scenario(&[End(0)], &[End(1)], Extra::Nothing);
const LEASE_AND_ORDERS: Scenario = scenario(&[End(0)], &[Ring], Extra::Nothing);
/// Two leases of one attachment.
const SAME_LEASE: Scenario = scenario(&[End(0)], &[End(0)], Extra::Nothing);
/// The lease of the next attachment in a slot ends, too.
const LEASE_REUSED: Scenario = scenario(&[End(0), Ring], &[End(0)], Extra::Replace);
/// An order replaces the attachment in a slot, whose waker fires once more, and then that of the
/// new one.
const SLOT_REUSED: Scenario = scenario(&[Ring, Stale(0)], &[Wake(0)], Extra::Replace);
const HEARD: Scenario = scenario(&[Wake(0)], &[Wake(0)], Extra::Hear);
const ATTENDED: Scenario = scenario(&[Wake(0)], &[Wake(1)], Extra::Attend);
const LEFT_UNDONE: Scenario = scenario(&[Wake(0)], &[Wake(1)], Extra::Relist);
const LEFT_UNDONE_AND_WOKEN: Scenario = scenario(&[Wake(0)], &[Wake(0)], Extra::Relist);
const WAKES_ITSELF: Scenario = scenario(&[Wake(0)], &[Wake(1)], Extra::WakesItself);
const TWICE: Scenario = scenario(&[Wake(0), Wake(1)], &[Wake(1), Wake(0)], Extra::Nothing);
const TWICE_ONE_A_TURN: Scenario = Scenario { budget: 1, ..TWICE };

const SCENARIOS: [Scenario; 16] = [
    SAME_SLOT,
    TWO_SLOTS,
    ONE_A_TURN,
    SINK_AND_ORDERS,
    TWO_ORDERS,
    SINK_AND_LEASE,
    RECONNECTS,
    TWO_LEASES,
    LEASE_AND_ORDERS,
    SAME_LEASE,
    SLOT_REUSED,
    HEARD,
    ATTENDED,
    LEFT_UNDONE,
    LEFT_UNDONE_AND_WOKEN,
    WAKES_ITSELF,
];

/// The protocol as it is holds in these.
#[track_caller]
fn holds(protocol: &Protocol, weak: bool, scenarios: &[Scenario]) {
    for scenario in scenarios {
        match explore(protocol, scenario, weak) {
            Ok(states) => println!("{states:>8} states  {scenario:?}"),
            Err(trouble) => panic!("{scenario:?}\n{trouble}"),
        }
    }
}

/// With this wrong, the scenario ends in that.
#[track_caller]
fn ends_in(what: &str, protocol: &Protocol, weak: bool, scenario: &Scenario) {
    match explore(protocol, scenario, weak) {
        Ok(states) => panic!("not found in {states} states of {scenario:?}"),
        Err(trouble) => {
            println!("{scenario:?}\n{trouble}");
            assert!(trouble.what.contains(what), "it was to be {what:?}");
        }
    }
}

const LOST: &str = "it sleeps, and has not seen";
const TWICE_LISTED: &str = "is listed twice";
const TOO_EARLY: &str = "an order is applied before a lease ended";
const UNFLAGGED: &str = "is in a list, and its flag says no";

// Interleavings

#[test]
fn no_interleaving_loses_a_wake() {
    holds(&AS_IT_IS, false, &SCENARIOS);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "slow without optimisation")]
fn no_interleaving_of_four_wakes_loses_one() {
    holds(&AS_IT_IS, false, &[TWICE, TWICE_ONE_A_TURN, TWO_RECONNECT, LEASE_REUSED]);
}

#[track_caller]
fn flaw(flaw: Flaw, scenario: &Scenario, what: &str) {
    ends_in(what, &Protocol { flaw: Some(flaw), ..AS_IT_IS }, false, scenario);
}

#[test]
fn a_node_claimed_by_a_load_is_linked_twice() {
    flaw(Flaw::ClaimByLoad, &SAME_SLOT, TWICE_LISTED);
}

#[test]
fn a_wake_that_finds_the_node_listed_by_the_owner_must_say_that_it_was_the_sink() {
    flaw(Flaw::ClaimWithoutReason, &LEFT_UNDONE_AND_WOKEN, LOST);
}

#[test]
fn a_top_that_is_stored_buries_what_another_pushed() {
    flaw(Flaw::LinkByStore, &TWO_SLOTS, TWICE_LISTED);
}

#[test]
fn a_task_woken_before_the_node_is_listed_finds_nothing() {
    flaw(Flaw::WakeBeforeList, &SAME_SLOT, LOST);
}

#[test]
fn a_list_taken_over_an_unfinished_one_loses_its_rest() {
    flaw(Flaw::TakeOverTaken, &ONE_A_TURN, LOST);
}

#[test]
fn a_task_that_sleeps_on_an_unfinished_list_sleeps_for_ever() {
    flaw(Flaw::SleepOnTaken, &ONE_A_TURN, LOST);
}

#[test]
fn bits_cleared_before_next_is_read_let_another_wake_write_it() {
    flaw(Flaw::ClearBeforeNext, &SAME_SLOT, TWICE_LISTED);
}

#[test]
fn bits_cleared_after_the_poll_lose_the_wake_between() {
    flaw(Flaw::ClearAfterPoll, &SAME_SLOT, LOST);
}

#[test]
fn a_wake_heard_after_the_poll_is_lost() {
    flaw(Flaw::HearAfterPoll, &HEARD, LOST);
}

#[test]
fn a_signal_lowered_after_the_poll_loses_the_order_between() {
    flaw(Flaw::HushAfterPoll, &TWO_ORDERS, LOST);
}

// Rule 6: a lease lists the node first and raises the signal second, the owner lowers it first and
// takes the list second.

#[test]
fn a_lease_that_raises_the_signal_before_it_lists_the_node_is_overlooked() {
    flaw(Flaw::RaiseBeforeList, &SINK_AND_LEASE, LOST);
    flaw(Flaw::RaiseBeforeList, &RECONNECTS, TOO_EARLY);
}

#[test]
fn an_owner_that_takes_the_list_before_it_lowers_the_signal_overlooks_a_lease() {
    flaw(Flaw::LowerAfterTake, &TWO_LEASES, LOST);
    flaw(Flaw::LowerAfterTake, &TWO_RECONNECT, TOO_EARLY);
}

#[test]
fn an_order_applied_with_no_look_at_the_leases_comes_before_one_that_had_ended() {
    flaw(Flaw::ApplyAtOnce, &RECONNECTS, TOO_EARLY);
}

#[test]
fn a_flag_cleared_before_the_next_ended_lease_is_read_lets_another_write_it() {
    flaw(Flaw::ClearEndedBeforeNext, &SAME_LEASE, TWICE_LISTED);
}

#[test]
fn a_flag_cleared_after_the_request_is_read_loses_the_one_between() {
    flaw(Flaw::ClearEndedAfterWish, &SAME_LEASE, LOST);
}

#[test]
fn a_waker_registered_after_the_looking_comes_too_late() {
    flaw(Flaw::RegisterAfterLook, &SAME_SLOT, LOST);
    flaw(Flaw::RegisterAfterLook, &TWO_ORDERS, LOST);
}

#[test]
fn both_the_list_and_the_signals_are_to_be_looked_at_after_registering() {
    flaw(Flaw::LookAtSignalsOnly, &SAME_SLOT, LOST);
    flaw(Flaw::LookAtHeadOnly, &SINK_AND_ORDERS, LOST);
    flaw(Flaw::LookAtHeadOnly, &SINK_AND_LEASE, LOST);
}

// Orderings

#[test]
fn what_is_out_of_date_does_no_harm_in_small_scenarios() {
    holds(&AS_IT_IS, true, &[SAME_SLOT, SINK_AND_ORDERS, TWO_ORDERS]);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "slow without optimisation")]
fn what_is_out_of_date_does_no_harm() {
    holds(&AS_IT_IS, true, &SCENARIOS);
}

#[test]
#[ignore = "ten seconds and half a gigabyte, optimised"]
fn what_is_out_of_date_does_no_harm_to_four_wakes() {
    holds(&AS_IT_IS, true, &[TWICE]);
}

#[test]
fn a_link_that_does_not_release_leaves_next_unseen() {
    ends_in(LOST, &Protocol { link: Relaxed, ..AS_IT_IS }, true, &TWO_SLOTS);
}

#[test]
fn a_claim_that_does_not_release_leaves_the_news_unseen() {
    ends_in(LOST, &Protocol { claim: Acquire, ..AS_IT_IS }, true, &SAME_SLOT);
}

#[test]
fn a_signal_that_is_stored_hides_the_one_before() {
    let stored = Protocol { flaw: Some(Flaw::RingByStore), ..AS_IT_IS };
    ends_in(LOST, &stored, true, &TWO_ORDERS);
    ends_in(LOST, &stored, false, &LEASE_AND_ORDERS);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "slow without optimisation")]
fn each_other_half_of_a_pair_is_needed() {
    const RACE: &str = "a data race";
    let it = AS_IT_IS;
    let weakened: [(Protocol, Scenario, &str); 13] = [
        (Protocol { take: Relaxed, ..it }, TWO_SLOTS, LOST),
        (Protocol { clear: Release, ..it }, SAME_SLOT, LOST),
        (Protocol { hear: Release, ..it }, HEARD, LOST),
        (Protocol { ring: Relaxed, ..it }, TWO_ORDERS, LOST),
        (Protocol { ring: Relaxed, ..it }, SINK_AND_ORDERS, LOST),
        (Protocol { hush: Relaxed, ..it }, TWO_ORDERS, LOST),
        (Protocol { task: Acquire, ..it }, TWO_ORDERS, RACE),
        (Protocol { task: Release, ..it }, TWO_ORDERS, RACE),
        (Protocol { claim: Relaxed, ..it }, SLOT_REUSED, LOST),
        (Protocol { claim: Acquire, ..it }, SAME_LEASE, LOST),
        (Protocol { clear: Release, ..it }, SAME_LEASE, LOST),
        (Protocol { link: Relaxed, ring: Relaxed, ..it }, TWO_LEASES, UNFLAGGED),
        (Protocol { take: Relaxed, hush: Relaxed, ..it }, TWO_LEASES, LOST),
    ];
    for (protocol, scenario, what) in weakened {
        ends_in(what, &protocol, true, &scenario);
    }
}

/// Not that they may be weaker: the halves of `claim` and `clear` that keep the owner's read of
/// `next` before the next wake's write are beyond this memory. The others cost nothing.
#[test]
#[cfg_attr(debug_assertions, ignore = "slow without optimisation")]
fn these_orderings_are_stronger_than_the_model_can_tell() {
    let it = AS_IT_IS;
    for protocol in [
        Protocol { any: Relaxed, rung: Relaxed, ..it },
        Protocol { hear: Acquire, ..it },
        Protocol { claim: Release, ..it },
        Protocol { clear: Acquire, ..it },
    ] {
        holds(&protocol, true, &SCENARIOS);
    }
}

// The memory itself

/// What thread 1 may read of what thread 0 wrote, once it has read the signals after that.
fn message_passing(ring: Order, hear: Order) -> Vec<u8> {
    let mut memory = Memory::new(true, |_| 0);
    memory.store(0, NEWS[0], 1, Relaxed);
    memory.store(0, SIGNALS, 1, ring);
    assert_eq!(memory.readable(1, SIGNALS), 0..=1);
    assert_eq!(memory.read(1, SIGNALS, 1, hear), 1);
    let readable = memory.readable(1, NEWS[0]);
    readable.map(|which| memory.clone().read(1, NEWS[0], which, Relaxed)).collect()
}

#[test]
fn a_message_is_passed_by_release_and_acquire_and_nothing_less() {
    assert_eq!(message_passing(Release, Acquire), [1]);
    for (ring, hear) in [(Relaxed, Acquire), (Release, Relaxed), (Relaxed, Relaxed)] {
        assert_eq!(message_passing(ring, hear), [0, 1], "{ring:?} {hear:?}");
    }
}

#[test]
fn a_release_is_handed_on_by_an_update_and_not_by_a_store() {
    for (stored, expected) in [(false, vec![1]), (true, vec![0, 1])] {
        let mut memory = Memory::new(true, |_| 0);
        memory.store(0, NEWS[0], 1, Relaxed);
        memory.update(0, SIGNALS, Release, |_| 1);
        if stored {
            memory.store(1, SIGNALS, 1, Relaxed);
        } else {
            memory.update(1, SIGNALS, Relaxed, |_| 1);
        }
        memory.update(2, SIGNALS, Acquire, |_| 0);
        let readable = memory.readable(2, NEWS[0]);
        let read = readable.map(|which| memory.clone().read(2, NEWS[0], which, Relaxed));
        assert_eq!(read.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn two_that_write_and_then_read_the_other_may_both_miss_it() {
    let mut memory = Memory::new(true, |_| 0);
    memory.store(0, NEWS[0], 1, Release);
    memory.store(1, NEWS[1], 1, Release);
    assert_eq!(memory.read(0, NEWS[1], *memory.readable(0, NEWS[1]).start(), Acquire), 0);
    assert_eq!(memory.read(1, NEWS[0], *memory.readable(1, NEWS[0]).start(), Acquire), 0);
}

#[test]
fn nobody_reads_backwards() {
    let mut memory = Memory::new(true, |_| 0);
    memory.store(0, NEWS[0], 1, Relaxed);
    memory.read(1, NEWS[0], 1, Relaxed);
    assert_eq!(memory.readable(1, NEWS[0]), 1..=1);
    assert_eq!(memory.readable(0, NEWS[0]), 1..=1, "nor what it wrote over");
}
