//! Broken sinks, each with one fault.

use sink_test::{Fault, Rule};

use crate::pipe::{Wrong, check};

#[track_caller]
fn fault(wrong: Wrong) -> Fault {
    let found = check(wrong).try_run();
    found.expect_err("the fault was not found")
}

#[track_caller]
fn assert_breaks(wrong: Wrong, rule: Rule) {
    let fault = fault(wrong);
    assert_eq!(fault.rule(), rule, "{fault}");
}

#[test]
fn sink_without_a_fault_passes_without_gaps() {
    assert!(check(Wrong::Nothing).run().gaps().is_empty());
}

#[test]
fn sink_that_keeps_no_waker_is_found() {
    assert_breaks(Wrong::ForgetsItsWaker, Rule::Wakes);
    assert_breaks(Wrong::ForgetsWhenItsTaskChanges, Rule::Wakes);
    assert_breaks(Wrong::FlushesInStepsWithoutAWake, Rule::Wakes);
}

#[test]
fn sink_that_keeps_the_first_waker_is_found() {
    assert_breaks(Wrong::KeepsTheFirstWaker, Rule::LastWaker);
}

#[test]
fn sink_that_never_wakes_is_found() {
    assert_breaks(Wrong::NeverWakes, Rule::Wakes);
}

#[test]
fn sink_that_does_not_wake_when_its_receiver_disconnects_is_found() {
    assert_breaks(Wrong::IsNotWokenByTheEnd, Rule::Wakes);
}

#[test]
fn sink_that_is_ready_without_room_is_found() {
    assert_breaks(Wrong::IsReadyWithoutRoom, Rule::Room);
    assert_breaks(Wrong::DropsWithoutRoom, Rule::Room);
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
    assert_breaks(Wrong::HasNoBound, Rule::Room);
    assert!(fault(Wrong::HasNoBound).what().starts_with("the sink took 4 items and was ready"));
    assert!(check(Wrong::HasNoBound).unbounded().try_run().is_ok());
}

#[test]
fn sink_that_loses_items_is_found() {
    assert_breaks(Wrong::LosesOnFlush, Rule::Delivers);
    assert_breaks(Wrong::LosesOnClose, Rule::Delivers);
}

#[test]
fn sink_that_is_flushed_or_closed_without_progress_is_found() {
    assert_breaks(Wrong::FlushesWithoutProgress, Rule::Flushes);
    assert_breaks(Wrong::ClosesWithoutProgress, Rule::Closes);
    assert_breaks(Wrong::DoesNotTellTheEnd, Rule::Closes);
}

#[test]
fn sink_that_accepts_items_after_its_close_is_found() {
    assert_breaks(Wrong::AcceptsAfterClose, Rule::EndsWithClose);
}

#[test]
fn sink_that_continues_after_an_error_is_found() {
    assert_breaks(Wrong::WorksAfterAnError, Rule::EndsWithError);
    assert_breaks(Wrong::HidesErrors, Rule::EndsWithError);
    assert_breaks(Wrong::FailsForNoReason, Rule::Room);
}

#[test]
fn sink_whose_readiness_is_used_up_is_found() {
    assert_breaks(Wrong::UsesUpReadiness, Rule::Progresses);
}

#[test]
fn sink_that_delivers_other_items_is_found() {
    let delivers = |wrong, rule, what| {
        assert_breaks(wrong, rule);
        assert_eq!(fault(wrong).what(), what);
    };
    delivers(Wrong::SendsTwice, Rule::Delivers, "item 3 arrived twice");
    delivers(Wrong::Reorders, Rule::Delivers, "item 3 arrived before item 2");
    delivers(Wrong::Invents, Rule::Delivers, "999 arrived, which was not sent");
}

#[test]
fn sink_that_is_pending_forever_is_found() {
    assert_breaks(Wrong::WakesItselfWithoutEnd, Rule::Progresses);
    assert_breaks(Wrong::IsStuckWhenFull, Rule::Progresses);
    assert_breaks(Wrong::IsWokenForNothing, Rule::Progresses);
}

#[test]
fn panic_of_the_sink_is_a_fault() {
    assert_breaks(Wrong::Panics, Rule::NoPanic);
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
