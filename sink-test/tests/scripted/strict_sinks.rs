//! Sinks that must not be called again before their waker has fired.

use std::task::Context;

use futures::{SinkExt, StreamExt, future};
use sink_test::{CoopBudget, Op, SinkHandle, Task, scripted_sink, scripted_stream};

use crate::{OK, ask, panic_message, strict_sink};

#[test]
fn pending_operation_is_not_called_again_unwoken() {
    for op in [Op::Ready, Op::Flush, Op::Close] {
        let (mut sink, handle) = strict_sink();
        handle.hold(op);
        for excuse in [|_: &_| {}, |handle: &SinkHandle<u32>| handle.excuse()] {
            excuse(&handle);
            assert!(ask(&mut sink, op).is_pending());
        }
        assert!(handle.wake() && ask(&mut sink, op).is_pending());
        assert_eq!(
            panic_message(|| ask(&mut sink, op)),
            format!("sink a: {} called again before its waker fired", op.name())
        );
        handle.lenient();
        assert!(ask(&mut sink, op).is_pending());
    }
}

#[test]
fn pending_flush_is_called_again_once_an_item_was_taken() {
    let (mut sink, handle) = strict_sink();
    handle.hold(Op::Flush);
    assert!(ask(&mut sink, Op::Flush).is_pending());
    assert_eq!(ask(&mut sink, Op::Ready), OK);
    assert_eq!(ask(&mut sink, Op::Send), OK);
    assert!(ask(&mut sink, Op::Flush).is_pending());
    assert!(panic_message(|| ask(&mut sink, Op::Flush)).contains("called again"));
}

const BREACH: &str = "sink a: poll_ready called again before its waker fired";

/// Parks sink `a`, and returns a task that polls it in each poll, after what `first` does.
fn doubting(first: impl FnMut(&mut Context<'_>) + Unpin) -> Task<impl Future<Output = ()>> {
    let ((mut sink, handle), mut first) = (strict_sink(), first);
    handle.park();
    handle.strict_unless_in_doubt();
    Task::new(future::poll_fn(move |cx| {
        first(cx);
        sink.poll_ready_unpin(cx).map(|_| ())
    }))
}

#[test]
fn sink_in_doubt_is_called_again_once_at_the_start_of_a_later_poll() {
    let mut task = doubting(|_| {});
    assert!(task.poll().is_pending());
    assert!(task.poll().is_pending());
    assert_eq!(panic_message(|| task.poll()), BREACH);
}

#[test]
fn each_wake_lets_a_sink_be_in_doubt_once_more() {
    let (mut sink, handle) = strict_sink();
    handle.park();
    handle.strict_unless_in_doubt();
    let mut task = Task::new(future::poll_fn(|cx| sink.poll_ready_unpin(cx).map(|_| ())));
    for _ in 0..2 {
        assert!(task.poll().is_pending() && task.poll().is_pending());
        assert!(handle.wake());
    }
}

#[test]
fn sink_in_doubt_is_not_called_again_in_the_same_poll() {
    let (mut sink, handle) = strict_sink();
    handle.park();
    handle.strict_unless_in_doubt();
    let mut task = Task::new(future::poll_fn(|cx| {
        assert!(sink.poll_ready_unpin(cx).is_pending());
        sink.poll_ready_unpin(cx).map(|_| ())
    }));
    assert_eq!(panic_message(|| task.poll()), BREACH);
}

#[test]
fn several_sinks_are_in_doubt_in_one_poll_and_take_items() {
    let ((mut other, opened), mut polls) = (scripted_sink("b"), 0);
    opened.park();
    let mut task = doubting(move |cx| {
        polls += 1;
        if polls == 2 {
            opened.open();
        }
        for n in 0..2 {
            if other.poll_ready_unpin(cx).is_ready() {
                other.start_send_unpin(n).unwrap();
            }
        }
    });
    assert!(task.poll().is_pending());
    assert!(task.poll().is_pending());
}

#[test]
fn sink_in_doubt_is_not_called_again_after_something_else_was_polled() {
    let (mut ready, _) = scripted_sink::<u32>("b");
    let mut task = doubting(move |cx| assert!(ready.poll_ready_unpin(cx).is_ready()));
    assert!(task.poll().is_pending());
    assert_eq!(panic_message(|| task.poll()), BREACH);

    let (mut flushed, _) = scripted_sink::<u32>("b");
    let mut task = doubting(move |cx| assert!(flushed.poll_flush_unpin(cx).is_ready()));
    assert!(task.poll().is_pending());
    assert_eq!(panic_message(|| task.poll()), BREACH);

    let (mut stream, _input) = scripted_stream::<u32>("input");
    let mut task = doubting(move |cx| assert!(stream.poll_next_unpin(cx).is_pending()));
    assert!(task.poll().is_pending());
    assert_eq!(panic_message(|| task.poll()), BREACH);
}

#[test]
fn flush_is_never_in_doubt() {
    let (mut sink, handle) = strict_sink();
    handle.hold(Op::Flush);
    handle.strict_unless_in_doubt();
    let mut task = Task::new(future::poll_fn(|cx| sink.poll_flush_unpin(cx).map(|_| ())));
    assert!(task.poll().is_pending());
    assert!(panic_message(|| task.poll()).ends_with("called again before its waker fired"));
}

#[test]
fn deferred_pending_is_not_called_again_before_the_budget_fires_it() {
    let budget = CoopBudget::deferred(0);
    let (mut sink, handle) = strict_sink();
    handle.share(&budget);
    assert!(ask(&mut sink, Op::Ready).is_pending());
    assert!(budget.fire_deferred() == 1 && ask(&mut sink, Op::Ready).is_pending());
    assert!(
        panic_message(|| ask(&mut sink, Op::Ready))
            .ends_with("called again before its waker fired")
    );
}
