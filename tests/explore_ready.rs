//! A model check of the lists of woken slots and of ended leases (`src/ready.rs`), independent of
//! loom and Miri. The model has one step per atomic operation. The explorer visits every
//! interleaving of two wakers and the owner, in a memory in which reads may return stale values.
//!
//! It checks in every state: no slot is in a list twice, in a list with its flag clear, or polled
//! twice in a turn; there is no data race on the waker of the task; no order is applied before the
//! effect of a lease that had ended when the order was sent; and when no thread can take a step,
//! the owner has seen all data that was written before a wake, and no slot is listed. Covers
//! guarantees 1, 4 and 13.
//!
//! Other tests plant one flaw at a time, which the explorer must find; `--nocapture` prints the
//! path. Without optimisation, only small scenarios are explored; `cargo test --release --test
//! explore_ready` explores all.
//!
//! Not covered: reads of values that depend on a later step of the same thread (no processor that
//! Rust supports does this for these operations, but the language does not exclude it; for the one
//! case in which it matters, that the owner reads `next` before it clears the bits, the wrong order
//! is tested instead); plain stores that are ordered before a store that their thread has not seen;
//! more threads or slots; and whether the model matches the code.

#![allow(unreachable_pub, reason = "nothing is reachable from outside a test binary")]

#[path = "explore_ready/explore.rs"]
mod explore;
#[path = "explore_ready/memory.rs"]
mod memory;
#[path = "explore_ready/model.rs"]
mod model;
#[path = "explore_ready/steps.rs"]
mod steps;

use Act::{End, SendOrder, Stale, Wake};
use explore::explore;
use memory::Order::{self, Acquire, Relaxed, Release};
use memory::{DATA, Memory, SIGNALS};
use model::{Act, CURRENT, Extra, Flaw, Protocol, Scenario};

const fn scenario(a: &'static [Act], b: &'static [Act], extra: Extra) -> Scenario {
    Scenario { acts: [a, b], budget: 2, extra }
}

const SAME_SLOT: Scenario = scenario(&[Wake(0)], &[Wake(0)], Extra::Nothing);
const TWO_SLOTS: Scenario = scenario(&[Wake(0)], &[Wake(1)], Extra::Nothing);
/// The budget ends inside the list.
const ONE_A_TURN: Scenario = Scenario { budget: 1, ..TWO_SLOTS };
const SINK_AND_ORDERS: Scenario = scenario(&[Wake(0)], &[SendOrder], Extra::Nothing);
const TWO_ORDERS: Scenario = scenario(&[SendOrder], &[SendOrder], Extra::Nothing);
const SINK_AND_LEASE: Scenario = scenario(&[End(0)], &[Wake(0)], Extra::Nothing);
/// A client ends its lease, then sends the order of its successor.
const RECONNECTS: Scenario = scenario(&[End(0), SendOrder], &[Wake(0)], Extra::Nothing);
/// Two clients reconnect.
const TWO_RECONNECT: Scenario =
    scenario(&[End(0), SendOrder], &[End(1), SendOrder], Extra::Nothing);
const TWO_LEASES: Scenario = scenario(&[End(0)], &[End(1)], Extra::Nothing);
const LEASE_AND_ORDERS: Scenario = scenario(&[End(0)], &[SendOrder], Extra::Nothing);
/// Two leases of one attachment.
const SAME_LEASE: Scenario = scenario(&[End(0)], &[End(0)], Extra::Nothing);
/// The lease of the next attachment in a slot ends, too.
const LEASE_REUSED: Scenario = scenario(&[End(0), SendOrder], &[End(0)], Extra::Replace);
/// An order replaces the attachment in a slot; the old waker fires once more, and then the new one.
const SLOT_REUSED: Scenario = scenario(&[SendOrder, Stale(0)], &[Wake(0)], Extra::Replace);
const FIRED_TAKEN: Scenario = scenario(&[Wake(0)], &[Wake(0)], Extra::TakeFired);
const POLLED_UNLESS_LISTED: Scenario = scenario(&[Wake(0)], &[Wake(1)], Extra::PollUnlessListed);
const RELISTED: Scenario = scenario(&[Wake(0)], &[Wake(1)], Extra::Relist);
const RELISTED_AND_WOKEN: Scenario = scenario(&[Wake(0)], &[Wake(0)], Extra::Relist);
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
    FIRED_TAKEN,
    POLLED_UNLESS_LISTED,
    RELISTED,
    RELISTED_AND_WOKEN,
    WAKES_ITSELF,
];

/// Asserts that the protocol has no failure in these scenarios.
#[track_caller]
fn holds(protocol: &Protocol, weak: bool, scenarios: &[Scenario]) {
    for scenario in scenarios {
        match explore(protocol, scenario, weak) {
            Ok(states) => println!("{states:>8} states  {scenario:?}"),
            Err(failure) => panic!("{scenario:?}\n{failure}"),
        }
    }
}

/// Asserts that the protocol fails in this scenario with a message that contains `what`.
#[track_caller]
fn fails_with(what: &str, protocol: &Protocol, weak: bool, scenario: &Scenario) {
    match explore(protocol, scenario, weak) {
        Ok(states) => panic!("not found in {states} states of {scenario:?}"),
        Err(failure) => {
            println!("{scenario:?}\n{failure}");
            assert!(failure.what.contains(what), "expected {what:?}");
        }
    }
}

const LOST: &str = "the task parked without seeing";
const TWICE_LISTED: &str = "is listed twice";
const TOO_EARLY: &str = "an order is applied before a lease that had ended";
const UNFLAGGED: &str = "is in a list, but its flag is clear";

// Interleavings

#[test]
fn no_interleaving_loses_a_wake() {
    holds(&CURRENT, false, &SCENARIOS);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "slow without optimisation")]
fn no_interleaving_of_four_wakes_loses_one() {
    holds(&CURRENT, false, &[TWICE, TWICE_ONE_A_TURN, TWO_RECONNECT, LEASE_REUSED]);
}

#[track_caller]
fn flaw(flaw: Flaw, scenario: &Scenario, what: &str) {
    fails_with(what, &Protocol { flaw: Some(flaw), ..CURRENT }, false, scenario);
}

#[test]
fn a_node_claimed_by_a_load_is_linked_twice() {
    flaw(Flaw::ClaimByLoad, &SAME_SLOT, TWICE_LISTED);
}

#[test]
fn a_wake_that_finds_the_node_listed_by_the_owner_must_set_by_sink() {
    flaw(Flaw::ClaimWithoutReason, &RELISTED_AND_WOKEN, LOST);
}

#[test]
fn a_stored_top_loses_a_concurrent_push() {
    flaw(Flaw::LinkByStore, &TWO_SLOTS, TWICE_LISTED);
}

#[test]
fn a_task_woken_before_the_node_is_listed_loses_the_wake() {
    flaw(Flaw::WakeBeforeList, &SAME_SLOT, LOST);
}

#[test]
fn a_list_taken_before_the_last_one_is_finished_loses_its_rest() {
    flaw(Flaw::TakeOverTaken, &ONE_A_TURN, LOST);
}

#[test]
fn a_task_that_parks_with_an_unfinished_list_is_never_woken() {
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
fn a_wake_cleared_after_the_poll_is_lost() {
    flaw(Flaw::ClearFiredAfterPoll, &FIRED_TAKEN, LOST);
}

#[test]
fn a_signal_lowered_after_the_poll_loses_the_order_between() {
    flaw(Flaw::LowerAfterPoll, &TWO_ORDERS, LOST);
}

// Rule 6: a lease lists the node first and raises the signal second; the owner lowers the signal
// first and takes the list second.

#[test]
fn a_lease_that_raises_the_signal_before_it_lists_the_node_is_missed() {
    flaw(Flaw::RaiseBeforeList, &SINK_AND_LEASE, LOST);
    flaw(Flaw::RaiseBeforeList, &RECONNECTS, TOO_EARLY);
}

#[test]
fn an_owner_that_takes_the_list_before_it_lowers_the_signal_misses_a_lease() {
    flaw(Flaw::LowerAfterTake, &TWO_LEASES, LOST);
    flaw(Flaw::LowerAfterTake, &TWO_RECONNECT, TOO_EARLY);
}

#[test]
fn an_order_applied_without_checking_leases_comes_before_one_that_had_ended() {
    flaw(Flaw::ApplyAtOnce, &RECONNECTS, TOO_EARLY);
}

#[test]
fn a_flag_cleared_before_the_next_ended_lease_is_read_lets_another_write_it() {
    flaw(Flaw::ClearEndedBeforeNext, &SAME_LEASE, TWICE_LISTED);
}

#[test]
fn a_flag_cleared_after_the_request_is_read_loses_the_one_between() {
    flaw(Flaw::ClearEndedAfterRead, &SAME_LEASE, LOST);
}

#[test]
fn a_waker_registered_after_the_check_loses_a_wake() {
    flaw(Flaw::RegisterAfterCheck, &SAME_SLOT, LOST);
    flaw(Flaw::RegisterAfterCheck, &TWO_ORDERS, LOST);
}

#[test]
fn both_the_list_and_the_signals_must_be_checked_after_registering() {
    flaw(Flaw::CheckSignalsOnly, &SAME_SLOT, LOST);
    flaw(Flaw::CheckHeadOnly, &SINK_AND_ORDERS, LOST);
    flaw(Flaw::CheckHeadOnly, &SINK_AND_LEASE, LOST);
}

// Orderings

#[test]
fn stale_reads_lose_nothing_in_small_scenarios() {
    holds(&CURRENT, true, &[SAME_SLOT, SINK_AND_ORDERS, TWO_ORDERS]);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "slow without optimisation")]
fn stale_reads_lose_nothing() {
    holds(&CURRENT, true, &SCENARIOS);
}

#[test]
#[ignore = "ten seconds and half a gigabyte, optimised"]
fn stale_reads_lose_none_of_four_wakes() {
    holds(&CURRENT, true, &[TWICE]);
}

#[test]
fn a_link_that_does_not_release_leaves_next_unseen() {
    fails_with(LOST, &Protocol { link: Relaxed, ..CURRENT }, true, &TWO_SLOTS);
}

#[test]
fn a_claim_that_does_not_release_leaves_the_news_unseen() {
    fails_with(LOST, &Protocol { claim: Acquire, ..CURRENT }, true, &SAME_SLOT);
}

#[test]
fn a_signal_that_is_stored_hides_the_one_before() {
    let stored = Protocol { flaw: Some(Flaw::RaiseByStore), ..CURRENT };
    fails_with(LOST, &stored, true, &TWO_ORDERS);
    fails_with(LOST, &stored, false, &LEASE_AND_ORDERS);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "slow without optimisation")]
fn each_other_half_of_a_pair_is_needed() {
    const RACE: &str = "a data race";
    let it = CURRENT;
    let weakened: [(Protocol, Scenario, &str); 13] = [
        (Protocol { take: Relaxed, ..it }, TWO_SLOTS, LOST),
        (Protocol { clear: Release, ..it }, SAME_SLOT, LOST),
        (Protocol { take_fired: Release, ..it }, FIRED_TAKEN, LOST),
        (Protocol { raise: Relaxed, ..it }, TWO_ORDERS, LOST),
        (Protocol { raise: Relaxed, ..it }, SINK_AND_ORDERS, LOST),
        (Protocol { lower: Relaxed, ..it }, TWO_ORDERS, LOST),
        (Protocol { task: Acquire, ..it }, TWO_ORDERS, RACE),
        (Protocol { task: Release, ..it }, TWO_ORDERS, RACE),
        (Protocol { claim: Relaxed, ..it }, SLOT_REUSED, LOST),
        (Protocol { claim: Acquire, ..it }, SAME_LEASE, LOST),
        (Protocol { clear: Release, ..it }, SAME_LEASE, LOST),
        (Protocol { link: Relaxed, raise: Relaxed, ..it }, TWO_LEASES, UNFLAGGED),
        (Protocol { take: Relaxed, lower: Relaxed, ..it }, TWO_LEASES, LOST),
    ];
    for (protocol, scenario, what) in weakened {
        fails_with(what, &protocol, true, &scenario);
    }
}

/// These orderings cannot be weakened all the same: the halves of `claim` and `clear` that order
/// the owner's read of `next` before the next wake's write are beyond this memory model. The others
/// cost nothing.
#[test]
#[cfg_attr(debug_assertions, ignore = "slow without optimisation")]
fn these_orderings_are_stronger_than_the_model_can_tell() {
    let it = CURRENT;
    for protocol in [
        Protocol { any: Relaxed, signals: Relaxed, ..it },
        Protocol { take_fired: Acquire, ..it },
        Protocol { claim: Release, ..it },
        Protocol { clear: Acquire, ..it },
    ] {
        holds(&protocol, true, &SCENARIOS);
    }
}

// The memory model

/// Returns the values that thread 1 may read after it has read the signals that thread 0 wrote
/// later.
fn message_passing(write: Order, read: Order) -> Vec<u8> {
    let mut memory = Memory::new(true, |_| 0);
    memory.store(0, DATA[0], 1, Relaxed);
    memory.store(0, SIGNALS, 1, write);
    assert_eq!(memory.readable(1, SIGNALS), 0..=1);
    assert_eq!(memory.read(1, SIGNALS, 1, read), 1);
    let readable = memory.readable(1, DATA[0]);
    readable.map(|which| memory.clone().read(1, DATA[0], which, Relaxed)).collect()
}

#[test]
fn a_message_is_passed_only_by_release_and_acquire() {
    assert_eq!(message_passing(Release, Acquire), [1]);
    for (write, read) in [(Relaxed, Acquire), (Release, Relaxed), (Relaxed, Relaxed)] {
        assert_eq!(message_passing(write, read), [0, 1], "{write:?} {read:?}");
    }
}

#[test]
fn a_release_sequence_continues_with_an_update_and_not_with_a_store() {
    for (stored, expected) in [(false, vec![1]), (true, vec![0, 1])] {
        let mut memory = Memory::new(true, |_| 0);
        memory.store(0, DATA[0], 1, Relaxed);
        memory.update(0, SIGNALS, Release, |_| 1);
        if stored {
            memory.store(1, SIGNALS, 1, Relaxed);
        } else {
            memory.update(1, SIGNALS, Relaxed, |_| 1);
        }
        memory.update(2, SIGNALS, Acquire, |_| 0);
        let readable = memory.readable(2, DATA[0]);
        let read = readable.map(|which| memory.clone().read(2, DATA[0], which, Relaxed));
        assert_eq!(read.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn two_threads_that_write_and_then_read_may_both_read_stale_values() {
    let mut memory = Memory::new(true, |_| 0);
    memory.store(0, DATA[0], 1, Release);
    memory.store(1, DATA[1], 1, Release);
    assert_eq!(memory.read(0, DATA[1], *memory.readable(0, DATA[1]).start(), Acquire), 0);
    assert_eq!(memory.read(1, DATA[0], *memory.readable(1, DATA[0]).start(), Acquire), 0);
}

#[test]
fn no_thread_reads_older_values_than_before() {
    let mut memory = Memory::new(true, |_| 0);
    memory.store(0, DATA[0], 1, Relaxed);
    memory.read(1, DATA[0], 1, Relaxed);
    assert_eq!(memory.readable(1, DATA[0]), 1..=1);
    assert_eq!(
        memory.readable(0, DATA[0]),
        1..=1,
        "a thread must not read a value that it has overwritten"
    );
}
