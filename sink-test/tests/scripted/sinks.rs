//! Scripted sinks: each setting has its effect, and each breach of the contract of `Sink` panics.

use futures::{SinkExt, future};
use sink_test::Answer::{Done, Failed, Pending};
use sink_test::{Broken, Call, Log, Op, Task, scripted_sink};
use std::task::Poll;

use crate::{OK, ask, panic_message, sink};

#[test]
fn open_sink_takes_and_records_all_items() {
    let (sink, handle) = sink();
    let mut task = Task::new(async move {
        let mut sink = sink;
        sink.feed(1).await?;
        sink.send(2).await?;
        sink.close().await
    });
    assert_eq!(task.run(), OK);
    assert_eq!(handle.items(), [1, 2]);
    assert_eq!(
        handle.calls(),
        [
            Call::Ready(Done),
            Call::Send(Done),
            Call::Ready(Done),
            Call::Send(Done),
            Call::Flush(Done),
            Call::Close(Done),
            Call::Drop
        ]
    );
    assert_eq!((handle.taken(), handle.flush_asked(), handle.flushed()), (2, 2, 2));
    assert_eq!((handle.count(Op::Send), handle.count(Op::Flush)), (2, 1));
    assert!(handle.is_closed() && handle.is_dropped());
    assert_eq!(handle.take_items(), [1, 2]);
    assert!(handle.items().is_empty() && handle.breaches().is_empty());
}

#[test]
fn parked_sink_takes_allowed_items_and_wakes_its_caller() {
    let (mut sink, handle) = sink();
    handle.park();
    let mut task = Task::new(async move {
        for n in 1..=4 {
            sink.feed(n).await.unwrap();
        }
        sink
    });
    assert!(task.run().is_pending() && handle.is_parked() && handle.is_waiting(Op::Ready));
    handle.allow(2);
    assert!(task.woken() && !handle.is_waiting(Op::Ready));
    assert!(task.run().is_pending());
    assert_eq!(handle.items(), [1, 2]);
    handle.open();
    assert!(task.run().is_ready());
    assert_eq!(handle.items(), [1, 2, 3, 4]);
}

#[test]
fn readiness_remains_valid_when_the_sink_is_parked() {
    let (mut sink, handle) = sink();
    assert_eq!(ask(&mut sink, Op::Ready), OK);
    handle.park();
    assert!(!handle.is_parked());
    assert_eq!(ask(&mut sink, Op::Ready), OK);
    assert_eq!(ask(&mut sink, Op::Send), OK);
    assert!(handle.is_parked());
    assert!(ask(&mut sink, Op::Ready).is_pending());
}

#[test]
fn held_flush_and_close_wait_for_their_release() {
    for op in [Op::Flush, Op::Close] {
        let (mut sink, handle) = sink();
        handle.hold(op);
        let mut task = Task::new(async {
            sink.feed(1).await?;
            match op {
                Op::Flush => sink.flush().await,
                _ => sink.close().await,
            }
        });
        assert!(task.run().is_pending() && handle.is_waiting(op));
        assert_eq!(handle.is_closing(), op == Op::Close);
        assert_eq!((handle.flush_asked(), handle.flushed()), (1, 0));
        handle.release(op);
        assert!(task.woken());
        assert_eq!(task.run(), OK);
        assert_eq!(handle.flushed(), 1);
    }
}

#[test]
fn each_operation_fails_under_its_own_name() {
    for op in [Op::Ready, Op::Send, Op::Flush, Op::Close] {
        let (mut sink, handle) = sink();
        assert_eq!(ask(&mut sink, Op::Ready), OK);
        handle.fail(op);
        assert_eq!(ask(&mut sink, op), Poll::Ready(Err(Broken(op.name()))));
        assert!(handle.is_failed() && handle.taken() == 0);
        let last = *handle.calls().last().unwrap();
        assert!(
            [Call::Ready(Failed), Call::Send(Failed), Call::Flush(Failed), Call::Close(Failed)]
                .contains(&last)
        );
    }
}

#[test]
fn failure_wakes_the_caller_unless_it_is_quiet() {
    let (mut sink, handle) = sink();
    handle.park();
    let mut task = Task::new(sink.feed(1));
    assert!(task.run().is_pending());
    handle.fail_quietly(Op::Ready);
    assert!(!task.woken());
    handle.fail(Op::Ready);
    assert!(task.woken());
    assert_eq!(task.run(), Poll::Ready(Err(Broken("poll_ready"))));
}

#[test]
fn stuttering_sink_wakes_itself_and_may_be_called_again() {
    let (mut sink, handle) = sink();
    handle.stutter(Op::Ready, 2);
    let mut task = Task::new(sink.feed(1));
    assert!(task.poll().is_pending() && task.woken() && !handle.is_waiting(Op::Ready));
    assert_eq!(task.run(), OK);
    assert_eq!(task.polls(), 3);
    assert_eq!(handle.calls()[..2], [Call::Ready(Pending), Call::Ready(Pending)]);
}

#[test]
fn start_send_is_neither_held_nor_stutters() {
    let (_sink, handle) = sink();
    assert!(panic_message(|| handle.hold(Op::Send)).contains("no Pending"));
    assert!(panic_message(|| handle.stutter(Op::Send, 1)).contains("no Pending"));
}

#[test]
fn action_runs_inside_the_call() {
    let (mut sink, handle) = sink();
    let inside = handle.clone();
    handle.during(Op::Ready, move || inside.park());
    assert!(ask(&mut sink, Op::Ready).is_pending());
}

#[test]
fn wakers_can_be_fired_also_after_the_sink_was_dropped() {
    let (mut sink, handle) = sink();
    assert!(!handle.wake() && handle.waker().is_none());
    handle.park();
    let mut task = Task::new(future::poll_fn(move |cx| sink.poll_ready_unpin(cx)));
    assert!(task.run().is_pending());
    assert!(handle.wake() && task.woken());
    assert!(task.run().is_pending(), "a spurious wake must not open the sink");
    task.drop_future();
    assert!(handle.is_dropped());
    handle.waker().expect("the handle has no waker").wake();
    handle.open();
    assert_eq!(task.wakes(), 2);
}

#[test]
fn every_breach_of_the_sink_contract_is_named() {
    // The calls that lead to the breach, which is the last one.
    use Op::{Close, Flush, Ready, Send};
    let unready = "without a Ready(Ok) of poll_ready since the last send";
    let cases: [(&[Op], &str); 9] = [
        (&[Send], unready),
        (&[Ready, Send, Send], unready),
        (&[Ready, Close, Send], "after poll_close completed"),
        (&[Close, Close], "after poll_close completed"),
        (&[Close, Flush], "after poll_close completed"),
        (&[Close, Ready], "after poll_close completed"),
        (&[Ready, Ready, Flush, Flush, Send, Send], unready),
        (&[Flush, Send], unready),
        (&[Ready, Send, Flush, Send], unready),
    ];
    for (calls, breach) in cases {
        let (mut sink, handle) = sink();
        let (last, calls) = calls.split_last().unwrap();
        for &op in calls {
            assert_eq!(ask(&mut sink, op), OK);
        }
        let message = format!("sink a: {} {breach}", last.name());
        assert_eq!(panic_message(|| ask(&mut sink, *last)), message);
        assert_eq!(handle.breaches(), [message]);
    }
}

#[test]
fn nothing_but_close_follows_a_pending_close() {
    for op in [Op::Ready, Op::Send, Op::Flush] {
        let (mut sink, handle) = sink();
        assert_eq!(ask(&mut sink, Op::Ready), OK);
        handle.hold(Op::Close);
        assert!(ask(&mut sink, Op::Close).is_pending());
        assert!(panic_message(|| ask(&mut sink, op)).ends_with("after poll_close was called"));
    }
}

#[test]
fn nothing_follows_an_error() {
    for op in [Op::Ready, Op::Send, Op::Flush, Op::Close] {
        let (mut sink, handle) = sink();
        handle.fail(Op::Flush);
        assert!(ask(&mut sink, Op::Flush).is_ready());
        assert!(panic_message(|| ask(&mut sink, op)).ends_with("after an error"));
    }
}

#[test]
fn log_keeps_the_order_of_all_lines() {
    let log = Log::new();
    let (mut a, handle_a) = sink();
    let (mut b, handle_b) = scripted_sink(2);
    handle_a.log_to(&log);
    handle_b.log_to(&log);
    handle_b.fail(Op::Flush);
    let mut task = Task::new(async {
        b.feed(20).await.unwrap();
        a.send(10).await.unwrap();
        log.push("hook");
        b.flush().await.unwrap_err();
        drop(b);
        a.close().await
    });
    assert_eq!(task.run(), OK);
    drop(task);
    assert_eq!(log.lines().len(), 7);
    assert_eq!(
        log.take(),
        [
            "2 sent 20",
            "a sent 10",
            "a flushed",
            "hook",
            "2 failed in poll_flush",
            "2 dropped",
            "a closed"
        ]
    );
    assert!(log.lines().is_empty());
}

#[test]
fn log_keeps_only_selected_lines() {
    let log = Log::new();
    log.keep_only(|line| line.starts_with('a'));
    log.push("b");
    log.push("a");
    assert_eq!(log.lines(), ["a"]);
}

#[test]
fn sinks_and_their_errors_are_shown() {
    let (mut sink, handle) = sink();
    assert_eq!(ask(&mut sink, Op::Flush), OK);
    assert_eq!(Broken("poll_flush").to_string(), "poll_flush failed");
    assert_eq!(format!("{sink:?}"), "ScriptedSink(a)");
    let shown = "SinkHandle { name: \"a\", taken: 0, flushed: 0, calls: [Flush(Done)], .. }";
    assert_eq!(format!("{handle:?}"), shown);
}
