//! Cooperative budgets shared by sinks and streams.

use futures::{SinkExt, StreamExt, future};
use sink_test::{CoopBudget, Op, Task};
use std::task::Poll;

use crate::{OK, ask, sink, stream};

#[test]
fn spent_budget_makes_its_users_wake_themselves_until_the_next_poll() {
    let budget = CoopBudget::new(3);
    let ((sink, handle), (stream, feed)) = (sink(), stream());
    handle.share(&budget);
    feed.share(&budget);
    feed.extend(0..4);
    feed.end();
    let mut task = Task::new(stream.map(Ok).forward(sink));
    let mut polls = 0;
    while task.poll().is_pending() {
        assert!(
            task.woken() && budget.left() == 0,
            "the denied operation should have woken the task"
        );
        assert!(!handle.is_waiting(Op::Ready) && !feed.is_waiting());
        polls += 1;
    }
    // Two operations for each item, one for the end of the stream, one for the close.
    assert_eq!((handle.taken(), polls), (4, 3));
    assert!(budget.denied() >= polls);
    assert!(handle.is_closed());
}

#[test]
fn sends_and_pending_operations_take_no_unit_of_a_budget() {
    let budget = CoopBudget::new(2);
    let (mut sink, handle) = sink();
    handle.share(&budget);
    assert_eq!(ask(&mut sink, Op::Ready), OK);
    assert_eq!(ask(&mut sink, Op::Send), OK);
    handle.park();
    assert!(ask(&mut sink, Op::Ready).is_pending() && handle.is_waiting(Op::Ready));
    assert_eq!((budget.left(), budget.denied()), (1, 0));
    assert_eq!(ask(&mut sink, Op::Flush), OK);
    handle.open();
    for _ in 0..2 {
        assert!(ask(&mut sink, Op::Ready).is_pending(), "the budget is spent");
    }
    assert_eq!(budget.denied(), 2);
    budget.refill();
    assert_eq!(ask(&mut sink, Op::Ready), OK);
    assert_eq!(ask(&mut sink, Op::Flush), OK);
    assert_eq!(ask(&mut sink, Op::Ready), OK, "readiness remains valid when the budget is spent");
    assert_eq!(budget.left(), 0);
}

#[test]
fn deferred_budget_fires_wakers_between_polls() {
    let budget = CoopBudget::deferred(1);
    let ((mut sink, handle), (mut stream, feed)) = (sink(), stream());
    handle.share(&budget);
    feed.share(&budget);
    feed.strict();
    feed.push(1);
    let mut task = Task::new(async {
        let item = stream.next().await.unwrap();
        sink.send(item).await.unwrap();
    });
    assert!(task.poll().is_pending());
    assert!(!task.woken() && handle.is_waiting(Op::Ready));
    assert_eq!(handle.deferred_wakers(), 1);
    assert_eq!((budget.left(), budget.denied(), budget.deferred_wakers()), (0, 1, 1));
    assert_eq!(budget.fire_deferred(), 1);
    assert!(task.woken() && !handle.is_waiting(Op::Ready));
    assert_eq!(handle.deferred_wakers(), 0);
    assert!(task.poll().is_pending(), "the flush should have been denied");
    assert_eq!(handle.taken(), 1);
    assert_eq!((budget.fire_deferred(), budget.fire_deferred()), (1, 0));
    assert!(task.poll().is_ready());
    drop(task);

    feed.push(2);
    let mut task = Task::new(future::poll_fn(|cx| {
        assert!(sink.poll_ready_unpin(cx).is_ready());
        stream.poll_next_unpin(cx)
    }));
    assert!(task.poll().is_pending() && !task.woken());
    assert!(feed.is_waiting() && feed.deferred_wakers() == 1);
    budget.lift();
    assert!(task.woken() && !feed.is_waiting());
    assert_eq!(task.poll(), Poll::Ready(Some(2)));
}
