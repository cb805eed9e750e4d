//! Sinks that must not be called again before their waker has fired.

use futures::{SinkExt, future};
use sink_test::{CoopBudget, Op, ScriptedSink, SinkHandle, Task, scripted_sink};
use std::task::Poll;

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

/// Returns a task that, in each poll, passes `operations` items, calls `poll_ready` of `sink`, and
/// yields.
fn busy_task(sink: ScriptedSink<u32>, operations: usize) -> Task<impl Future<Output = ()>> {
    let (mut sink, (mut other, _)) = (sink, scripted_sink("other"));
    Task::new(future::poll_fn(move |cx| {
        for _ in 0..operations {
            assert!(other.poll_ready_unpin(cx).is_ready());
            other.start_send_unpin(7).unwrap();
        }
        assert!(sink.poll_ready_unpin(cx).is_pending());
        Poll::Pending
    }))
}

#[test]
fn after_many_operations_pending_may_be_called_again_in_a_later_poll() {
    let (sink, handle) = strict_sink();
    handle.park();
    handle.strict_unless_busy();
    let mut task = busy_task(sink, 64);
    assert!(task.poll().is_pending());
    assert!(task.poll().is_pending(), "64 operations preceded the call");

    let (sink, handle) = strict_sink();
    handle.park();
    handle.strict_unless_busy();
    let mut task = busy_task(sink, 63);
    assert!(task.poll().is_pending());
    assert_eq!(
        panic_message(|| task.poll()),
        "sink a: poll_ready called again before its waker fired"
    );
}

#[test]
fn after_many_operations_pending_is_not_called_again_in_the_same_poll() {
    let ((mut sink, handle), (mut other, _)) = (strict_sink(), scripted_sink("other"));
    handle.park();
    handle.strict_unless_busy();
    let mut task = Task::new(future::poll_fn(move |cx| {
        for _ in 0..100 {
            assert!(other.poll_ready_unpin(cx).is_ready());
            other.start_send_unpin(7).unwrap();
        }
        assert!(sink.poll_ready_unpin(cx).is_pending());
        sink.poll_ready_unpin(cx)
    }));
    assert!(panic_message(|| task.poll()).ends_with("called again before its waker fired"));
}

#[test]
fn after_many_operations_a_strict_sink_is_not_called_again() {
    let (sink, handle) = strict_sink();
    handle.park();
    handle.strict();
    let mut task = busy_task(sink, 64);
    assert!(task.poll().is_pending());
    assert!(panic_message(|| task.poll()).ends_with("called again before its waker fired"));
}

#[test]
fn after_many_operations_a_flush_is_not_called_again() {
    let ((mut sink, handle), (mut other, _)) = (strict_sink(), scripted_sink("other"));
    handle.hold(Op::Flush);
    handle.strict_unless_busy();
    let mut task = Task::new(future::poll_fn(move |cx| {
        for _ in 0..100 {
            assert!(other.poll_ready_unpin(cx).is_ready());
            other.start_send_unpin(7).unwrap();
        }
        sink.poll_flush_unpin(cx)
    }));
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

#[test]
fn deferred_waker_fires_also_when_the_operation_was_called_again_since() {
    let budget = CoopBudget::deferred(0);
    let (mut sink, handle) = strict_sink();
    handle.share(&budget);
    assert!(ask(&mut sink, Op::Flush).is_pending() && handle.wake());
    handle.share(&CoopBudget::new(9));
    handle.hold(Op::Flush);
    assert!(ask(&mut sink, Op::Flush).is_pending());
    budget.fire_deferred();
    assert!(handle.is_waiting(Op::Flush), "the fired waker was an earlier one");
    assert!(ask(&mut sink, Op::Flush).is_pending(), "the wake should allow a call");
    assert!(
        panic_message(|| ask(&mut sink, Op::Flush))
            .ends_with("called again before its waker fired")
    );
}

#[test]
fn released_operation_is_called_again() {
    for op in [Op::Ready, Op::Flush, Op::Close] {
        let (mut sink, handle) = strict_sink();
        handle.hold(op);
        assert!(ask(&mut sink, op).is_pending());
        handle.release(op);
        assert_eq!(ask(&mut sink, op), OK);
    }
}
