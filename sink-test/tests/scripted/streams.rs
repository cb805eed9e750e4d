//! Scripted streams.

use futures::StreamExt;
use sink_test::Task;
use std::task::Poll;

use crate::{panic_message, stream};

#[test]
fn stream_waits_wakes_and_ends() {
    let (mut stream, handle) = stream();
    let mut task = Task::new(stream.by_ref().collect::<Vec<_>>());
    assert!(task.run().is_pending() && handle.is_waiting());
    handle.push(1);
    handle.extend([2, 3]);
    assert_eq!((task.wakes(), handle.left()), (1, 3));
    assert!(task.run().is_pending());
    assert_eq!((handle.taken(), handle.left()), (3, 0));
    handle.end();
    assert_eq!(task.run(), Poll::Ready(vec![1, 2, 3]));
    assert_eq!(handle.polls(), 6);
    drop(task);
    assert!(handle.is_ended() && !handle.is_dropped());
    drop(stream);
    assert!(handle.is_dropped());
}

#[test]
fn stream_stutters_and_acts_inside_its_poll() {
    let (mut stream, handle) = stream();
    let inside = handle.clone();
    handle.stutter();
    handle.action(move || inside.push(2));
    handle.push(1);
    let mut task = Task::new(stream.next());
    assert!(task.poll().is_pending() && task.woken() && !handle.is_waiting());
    assert_eq!(task.run(), Poll::Ready(Some(1)));
    drop(task);
    assert_eq!(Task::new(stream.next()).run(), Poll::Ready(Some(2)));
}

#[test]
fn endless_stream_continues_until_it_is_ended() {
    let (mut stream, handle) = stream();
    // Dropped when it is used, because the stream holds this closure.
    let mut inside = Some(handle.clone());
    handle.endless(move |n| {
        if n == 3 {
            inside.take().unwrap().end();
        }
        u32::try_from(n).unwrap()
    });
    handle.push(9);
    let mut task = Task::new(stream.by_ref().collect::<Vec<_>>());
    assert_eq!(task.run(), Poll::Ready(vec![9, 0, 1, 2, 3]));
}

#[test]
#[should_panic(expected = "stream input: polled after its end")]
fn poll_of_a_stream_after_its_end_panics() {
    let (mut stream, handle) = stream();
    handle.end();
    assert_eq!(Task::new(stream.next()).run(), Poll::Ready(None));
    let _ = Task::new(stream.next()).run();
}

#[test]
fn forbidden_poll_of_a_stream_panics() {
    let (mut stream, handle) = stream();
    handle.push(1);
    handle.forbid_polls();
    let message = panic_message(|| Task::new(stream.next()).poll());
    assert_eq!(message, "stream input: polled though this was forbidden");
    handle.permit_polls();
    assert_eq!(Task::new(stream.next()).poll(), Poll::Ready(Some(1)));
}

#[test]
fn poll_of_a_strict_stream_without_a_wake_panics() {
    let (mut stream, handle) = stream();
    handle.strict();
    handle.stutter();
    let mut task = Task::new(stream.next());
    assert!(task.run().is_pending(), "a wake by the stream should allow a poll");
    assert!(handle.wake() && task.run().is_pending(), "a wake by the handle should allow a poll");
    assert_eq!(panic_message(|| task.poll()), "stream input: polled again before its waker fired");
}

#[test]
fn streams_are_shown() {
    let (stream, handle) = stream();
    assert_eq!(format!("{stream:?}"), "ScriptedStream(input)");
    let shown = "StreamHandle { name: \"input\", polls: 0, taken: 0, ended: false, .. }";
    assert_eq!(format!("{handle:?}"), shown);
}
