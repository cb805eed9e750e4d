//! Broken sinks, each with one fault.

use sink_test::{Fault, Rule};

use crate::pipe::{Wrong, check};

#[track_caller]
fn fault(wrong: Wrong) -> Fault {
    let found = check(wrong).try_run();
    found.expect_err("the fault was not found")
}

#[test]
fn sink_without_a_fault_passes_without_gaps() {
    assert!(check(Wrong::Nothing).run().gaps().is_empty());
}

/// The rule that each broken sink breaks.
const BROKEN: [(Wrong, Rule); 27] = [
    (Wrong::ForgetsItsWaker, Rule::Wakes),
    (Wrong::ForgetsWhenItsTaskChanges, Rule::Wakes),
    (Wrong::FlushesInStepsWithoutAWake, Rule::Wakes),
    (Wrong::NeverWakes, Rule::Wakes),
    (Wrong::IsNotWokenByTheEnd, Rule::Wakes),
    (Wrong::KeepsTheFirstWaker, Rule::LastWaker),
    (Wrong::IsReadyWithoutRoom, Rule::Room),
    (Wrong::DropsWithoutRoom, Rule::Room),
    (Wrong::HasNoBound, Rule::Room),
    (Wrong::FailsForNoReason, Rule::Room),
    (Wrong::LosesOnFlush, Rule::Delivers),
    (Wrong::LosesOnClose, Rule::Delivers),
    (Wrong::SendsTwice, Rule::Delivers),
    (Wrong::Reorders, Rule::Delivers),
    (Wrong::Invents, Rule::Delivers),
    (Wrong::FlushesWithoutProgress, Rule::Flushes),
    (Wrong::ClosesWithoutProgress, Rule::Closes),
    (Wrong::DoesNotTellTheEnd, Rule::Closes),
    (Wrong::AcceptsAfterClose, Rule::EndsWithClose),
    (Wrong::WorksAfterAnError, Rule::EndsWithError),
    (Wrong::HidesErrors, Rule::EndsWithError),
    (Wrong::UsesUpReadiness, Rule::Progresses),
    (Wrong::WakesItselfWithoutEnd, Rule::Progresses),
    (Wrong::IsStuckWhenFull, Rule::Progresses),
    (Wrong::IsWokenForNothing, Rule::Progresses),
    (Wrong::DropsTheOldest, Rule::Room),
    (Wrong::Panics, Rule::NoPanic),
];

#[test]
fn each_broken_sink_is_found_with_the_rule_that_it_breaks() {
    for (wrong, rule) in BROKEN {
        let fault = fault(wrong);
        assert_eq!(fault.rule(), rule, "{wrong:?}: {fault}");
    }
}

#[test]
fn sink_without_a_bound_that_drops_items_is_found() {
    let drops = |wrong, what| {
        let fault = check(wrong).unbounded().try_run().unwrap_err();
        assert_eq!((fault.rule(), fault.what()), (Rule::Room, what));
    };
    let lost = "item 4 was accepted and never arrived, although poll_flush is ready";
    drops(Wrong::DropsWithoutRoom, lost);
    drops(Wrong::DropsTheOldest, "item 2 was accepted, and item 398 arrived instead");
}

#[test]
fn sink_that_exceeds_its_capacity_is_found() {
    assert!(fault(Wrong::HasNoBound).what().starts_with("the sink took 4 items and was ready"));
    assert!(check(Wrong::HasNoBound).unbounded().try_run().is_ok());
}

#[test]
fn report_of_a_sink_that_delivers_other_items_names_them() {
    for (wrong, what) in [
        (Wrong::SendsTwice, "item 3 arrived twice"),
        (Wrong::Reorders, "item 3 arrived before item 2"),
        (Wrong::Invents, "999 arrived, which was not sent"),
    ] {
        assert_eq!(fault(wrong).what(), what);
    }
}

#[test]
fn panic_of_the_sink_is_a_fault() {
    assert_eq!(fault(Wrong::Panics).what(), "the sink panicked: five is too much");
}

#[test]
fn excepted_rule_may_be_broken_and_others_may_not() {
    let check_but_close = |wrong| check(wrong).except(Rule::EndsWithClose).try_run();
    assert!(check_but_close(Wrong::AcceptsAfterClose).is_ok());
    assert!(check_but_close(Wrong::WorksAfterAnError).is_err());
}

#[test]
fn check_is_shown_with_its_settings() {
    let check = format!("{:?}", check(Wrong::Nothing).except(Rule::Room));
    assert_eq!(check, "SinkCheck { capacity: Some(4), disconnects: 1, excepted: [Room], .. }");
}

#[test]
fn report_of_a_fault_lists_the_calls() {
    let report = "\
item 0 was accepted and never arrived, although poll_flush is ready
rule: every accepted item arrives once, and in order (Delivers)
while checking: each item is flushed
calls:
  poll_ready: Ready(Ok(()))
  start_send of item 0: Ok(())
  poll_flush: Ready(Ok(()))
  received nothing
  (a fault; the following calls classify it)
  poll_flush: Ready(Ok(()))
  received nothing
  poll_close: Ready(Ok(()))
  received nothing";
    assert_eq!(fault(Wrong::LosesOnFlush).to_string(), report);
}

#[test]
fn long_report_shows_the_last_calls_and_counts_repetitions() {
    let report = fault(Wrong::WakesItselfWithoutEnd).to_string();
    assert!(report.ends_with("\n  poll_ready: Pending, woken inside, 1000 times"), "{report}");
    assert!(report.contains("\ncalls:\n  poll_ready: Ready(Ok(()))\n  start_send"), "{report}");

    let fault = check(Wrong::HasNoBound).capacity(100).try_run().unwrap_err().to_string();
    let (_, calls) = fault.split_once("calls:\n  (177 earlier lines)\n").expect("201 calls");
    assert_eq!(calls.lines().count(), 24);
    assert!(calls.starts_with("  start_send of item 88: Ok(())\n"), "{fault}");
}
