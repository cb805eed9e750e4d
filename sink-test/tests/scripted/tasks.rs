//! Tasks: polls, and counts of wakes.

use std::task::Poll;
use std::thread;

use futures::future::FusedFuture;
use futures::{StreamExt, future};
use sink_test::{Log, Task};

use crate::{panic_message, sink, stream};

#[test]
fn task_is_parked_until_it_is_woken() {
    let (mut stream, handle) = stream();
    let mut task = Task::new(stream.next());
    assert!(!task.woken() && task.run().is_pending());
    assert!(task.run().is_pending() && task.turns(9).is_pending());
    assert_eq!((task.polls(), task.wakes()), (1, 0));
    thread::spawn(move || handle.push(5)).join().unwrap();
    assert_eq!(task.run(), Poll::Ready(Some(5)));
    assert_eq!((task.polls(), task.total_wakes()), (2, 1));
}

#[test]
fn run_panics_if_the_task_never_parks() {
    let mut polls = 0;
    let mut task = Task::new(future::poll_fn(|cx| {
        polls += 1;
        cx.waker().wake_by_ref();
        Poll::<()>::Pending
    }));
    assert!(task.turns(5).is_pending() && task.woken());
    let message = panic_message(|| task.run_within(20));
    assert_eq!(message, "still awake after 20 polls");
    drop(task);
    assert_eq!(polls, 25);
}

#[test]
fn wakes_of_a_former_waker_do_not_wake_the_task() {
    let (stream, handle) = stream();
    let mut task = Task::new(stream.into_future());
    assert!(task.run().is_pending());
    let former = handle.waker().unwrap();
    task.renew_waker();
    former.wake_by_ref();
    assert_eq!((task.wakes(), task.stale_wakes()), (0, 1));
    assert!(task.run().is_pending(), "a new waker should cause a poll");
    assert_eq!(task.polls(), 2);
    handle.push(1);
    assert_eq!((task.wakes(), task.stale_wakes()), (1, 1));
    assert_eq!(task.total_wakes(), 1);
}

#[test]
fn kept_wakers_are_counted_after_the_future_was_dropped() {
    let (stream, handle) = stream();
    let mut task = Task::new(stream.into_future());
    assert!(task.run().is_pending());
    task.renew_waker();
    task.drop_future();
    assert_eq!(task.wakers_kept(), 2, "the waiting waker and the last waker");
    drop(handle);
    assert_eq!(task.wakers_kept(), 0);
    assert_eq!(panic_message(|| task.poll()), "the future was dropped");
}

#[test]
fn future_can_be_inspected_and_moved_out() {
    let mut task = Task::new(future::ready(1));
    assert!(!task.get_ref().is_terminated());
    assert_eq!(task.get_pin_mut().as_mut().get_mut().clone().into_inner(), 1);
    assert_eq!(Task::new(task.into_inner()).run(), Poll::Ready(1));
}

#[test]
fn harness_can_be_moved_between_threads() {
    fn assert_send<T: Send + Unpin>(_: &T) {}
    let ((sink, handle), (stream, feed)) = (sink(), stream());
    assert_send(&(&sink, &handle, &stream, &feed, &Log::new()));
    assert_send(&Task::new(stream.map(Ok).forward(sink)));
}

#[test]
fn wakes_are_counted_for_each_waker() {
    let mut task = Task::new(future::pending::<()>());
    let former = task.waker();
    former.wake_by_ref();
    former.wake_by_ref();
    task.renew_waker();
    assert_eq!((task.wakes(), task.total_wakes(), task.stale_wakes()), (0, 2, 0));
    former.wake_by_ref();
    former.wake_by_ref();
    task.waker().wake();
    assert_eq!((task.wakes(), task.total_wakes(), task.stale_wakes()), (1, 3, 2));
    assert_eq!(format!("{task:?}"), "Task { dropped: false, polls: 0, wakes: 1, .. }");
}
