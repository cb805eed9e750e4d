//! The harness in `common`: every check it makes fails when it should, and every handle has its effect.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;

use crate::common::coop::PollCount;
use crate::common::panics::{catch, panic_message, try_catch};
use crate::common::{
    Answer::{Done, Failed, Pending},
    Broken, Call, CoopBudget, Log, Op, ScriptedSink, ScriptedStream, SinkHandle, StreamHandle,
    Task, scripted_sink, scripted_stream,
};
use futures::future::FusedFuture;
use futures::{SinkExt, StreamExt, future, sink::Sink};

fn sink() -> (ScriptedSink<u32>, SinkHandle<u32>) {
    scripted_sink("a")
}

fn stream() -> (ScriptedStream<u32>, StreamHandle<u32>) {
    scripted_stream("input")
}

/// One call, with a waker that does nothing.
fn ask(sink: &mut ScriptedSink<u32>, op: Op) -> Poll<Result<(), Broken>> {
    let mut sink = pin!(sink);
    let cx = &mut Context::from_waker(Waker::noop());
    match op {
        Op::Ready => sink.as_mut().poll_ready(cx),
        Op::Send => Poll::Ready(sink.as_mut().start_send(7)),
        Op::Flush => sink.as_mut().poll_flush(cx),
        Op::Close => sink.as_mut().poll_close(cx),
    }
}

const OK: Poll<Result<(), Broken>> = Poll::Ready(Ok(()));

#[test]
fn open_sink_takes_everything_and_remembers_it() {
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
fn gate_lets_through_what_it_allows_and_wakes_who_waits() {
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
fn promise_outlives_the_gate() {
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
fn failure_wakes_who_waits_unless_it_is_quiet() {
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
fn stuttering_sink_wakes_itself_and_may_be_asked_again() {
    let (mut sink, handle) = sink();
    handle.stutter(Op::Ready, 2);
    let mut task = Task::new(sink.feed(1));
    assert!(task.poll().is_pending() && task.woken() && !handle.is_waiting(Op::Ready));
    assert_eq!(task.run(), OK);
    assert_eq!(task.polls(), 3);
    assert_eq!(handle.calls()[..2], [Call::Ready(Pending), Call::Ready(Pending)]);
}

#[test]
fn what_has_no_pending_is_neither_held_nor_stutters() {
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
fn wakers_can_be_fired_by_hand_also_when_the_sink_is_gone() {
    let (mut sink, handle) = sink();
    assert!(!handle.wake() && handle.waker().is_none());
    handle.park();
    let mut task = Task::new(future::poll_fn(move |cx| sink.poll_ready_unpin(cx)));
    assert!(task.run().is_pending());
    assert!(handle.wake() && task.woken());
    assert!(task.run().is_pending(), "a spurious wake opens nothing");
    task.drop_future();
    assert!(handle.is_dropped());
    handle.waker().expect("the handle keeps it").wake();
    handle.open();
    assert_eq!(task.wakes(), 2);
}

#[test]
fn every_breach_of_the_sink_contract_is_named() {
    // The calls that lead there, the last of which is the breach.
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
fn pending_operation_is_not_asked_again_unwoken() {
    for op in [Op::Ready, Op::Flush, Op::Close] {
        let (mut sink, handle) = sink();
        handle.hold(op);
        for excuse in [|_: &_| {}, |handle: &SinkHandle<u32>| handle.excuse()] {
            excuse(&handle);
            assert!(ask(&mut sink, op).is_pending());
        }
        assert!(handle.wake() && ask(&mut sink, op).is_pending());
        assert_eq!(
            panic_message(|| ask(&mut sink, op)),
            format!("sink a: {} asked again before its waker fired", op.name())
        );
        handle.lenient();
        assert!(ask(&mut sink, op).is_pending());
    }
}

#[test]
fn pending_flush_is_asked_again_once_an_item_was_taken() {
    let (mut sink, handle) = sink();
    handle.hold(Op::Flush);
    assert!(ask(&mut sink, Op::Flush).is_pending());
    assert_eq!(ask(&mut sink, Op::Ready), OK);
    assert_eq!(ask(&mut sink, Op::Send), OK);
    assert!(ask(&mut sink, Op::Flush).is_pending());
    assert!(panic_message(|| ask(&mut sink, Op::Flush)).contains("asked again"));
}

/// A task that makes `operations` items pass, asks `sink` whether it is ready, and yields: for each poll.
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
fn after_many_operations_pending_may_be_asked_again_in_a_later_poll() {
    let (sink, handle) = sink();
    handle.park();
    let mut task = busy_task(sink, 64);
    assert!(task.poll().is_pending());
    assert!(task.poll().is_pending(), "64 operations came before the answer");

    let (sink, handle) = scripted_sink("a");
    handle.park();
    let mut task = busy_task(sink, 63);
    assert!(task.poll().is_pending());
    assert_eq!(
        panic_message(|| task.poll()),
        "sink a: poll_ready asked again before its waker fired"
    );
}

#[test]
fn after_many_operations_pending_is_not_asked_again_in_the_same_poll() {
    let ((mut sink, handle), (mut other, _)) = (sink(), scripted_sink("other"));
    handle.park();
    let mut task = Task::new(future::poll_fn(move |cx| {
        for _ in 0..100 {
            assert!(other.poll_ready_unpin(cx).is_ready());
            other.start_send_unpin(7).unwrap();
        }
        assert!(sink.poll_ready_unpin(cx).is_pending());
        sink.poll_ready_unpin(cx)
    }));
    assert!(panic_message(|| task.poll()).ends_with("asked again before its waker fired"));
}

#[test]
fn after_many_operations_a_sink_that_waits_is_not_asked_again() {
    let (sink, handle) = sink();
    handle.park();
    handle.waits();
    let mut task = busy_task(sink, 64);
    assert!(task.poll().is_pending());
    assert!(panic_message(|| task.poll()).ends_with("asked again before its waker fired"));
}

#[test]
fn after_many_operations_a_flush_is_not_asked_again() {
    let ((mut sink, handle), (mut other, _)) = (sink(), scripted_sink("other"));
    handle.hold(Op::Flush);
    let mut task = Task::new(future::poll_fn(move |cx| {
        for _ in 0..100 {
            assert!(other.poll_ready_unpin(cx).is_ready());
            other.start_send_unpin(7).unwrap();
        }
        sink.poll_flush_unpin(cx)
    }));
    assert!(task.poll().is_pending());
    assert!(panic_message(|| task.poll()).ends_with("asked again before its waker fired"));
}

#[test]
fn spent_budget_makes_all_that_share_it_wake_themselves_until_the_next_poll() {
    let budget = CoopBudget::new(3);
    let ((sink, handle), (stream, feed)) = (sink(), stream());
    handle.share(&budget);
    feed.share(&budget);
    feed.extend(0..4);
    feed.end();
    let mut task = Task::new(stream.map(Ok).forward(sink));
    let mut polls = 0;
    while task.poll().is_pending() {
        assert!(task.woken() && budget.left() == 0, "it is awake for what was denied");
        assert!(!handle.is_waiting(Op::Ready) && !feed.is_waiting());
        polls += 1;
    }
    // Two operations for each item, one for the end of the stream, one for the close.
    assert_eq!((handle.taken(), polls), (4, 3));
    assert!(budget.denied() >= polls);
    assert!(handle.is_closed());
}

#[test]
fn sends_and_pending_answers_take_nothing_of_a_budget() {
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
        assert!(ask(&mut sink, Op::Ready).is_pending(), "it is spent, and wakes itself");
    }
    assert_eq!(budget.denied(), 2);
    budget.refill();
    assert_eq!(ask(&mut sink, Op::Ready), OK);
    assert_eq!(ask(&mut sink, Op::Flush), OK);
    assert_eq!(ask(&mut sink, Op::Ready), OK, "a promise is kept when the budget is spent");
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
    assert!(task.poll().is_pending(), "it is ready, and the flush is denied");
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

#[test]
fn deferred_pending_is_not_asked_again_before_the_budget_fires_it() {
    let budget = CoopBudget::deferred(0);
    let (mut sink, handle) = sink();
    handle.share(&budget);
    assert!(ask(&mut sink, Op::Ready).is_pending());
    assert!(budget.fire_deferred() == 1 && ask(&mut sink, Op::Ready).is_pending());
    assert!(
        panic_message(|| ask(&mut sink, Op::Ready)).ends_with("asked again before its waker fired")
    );
}

#[test]
fn deferred_waker_fires_also_when_the_operation_was_asked_again_since() {
    let budget = CoopBudget::deferred(0);
    let (mut sink, handle) = sink();
    handle.share(&budget);
    assert!(ask(&mut sink, Op::Flush).is_pending() && handle.wake());
    handle.share(&CoopBudget::new(9));
    handle.hold(Op::Flush);
    assert!(ask(&mut sink, Op::Flush).is_pending());
    budget.fire_deferred();
    assert!(handle.is_waiting(Op::Flush), "that was another waker");
    assert!(ask(&mut sink, Op::Flush).is_pending(), "it was woken all the same");
    assert!(
        panic_message(|| ask(&mut sink, Op::Flush)).ends_with("asked again before its waker fired")
    );
}

#[test]
fn polls_may_be_nested_and_count_for_themselves() {
    let budget = CoopBudget::new(1);
    let (mut sink, handle) = sink();
    handle.share(&budget);
    let mut inner = Task::new(future::poll_fn(|cx| sink.poll_flush_unpin(cx)));
    let mut outer = Task::new(future::poll_fn(|_| {
        assert!(inner.poll().is_ready());
        Poll::Ready(PollCount::now().operations)
    }));
    assert_eq!(outer.poll(), Poll::Ready(0), "the flush was made in the other poll");
    assert_eq!(PollCount::now(), PollCount::default());
}

#[test]
fn log_keeps_the_order_of_all_who_write_to_it() {
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
fn endless_stream_goes_on_until_it_is_ended() {
    let (mut stream, handle) = stream();
    // Let go of as it is used: the stream holds this closure.
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
fn stream_objects_to_a_poll_after_its_end() {
    let (mut stream, handle) = stream();
    handle.end();
    assert_eq!(Task::new(stream.next()).run(), Poll::Ready(None));
    let _ = Task::new(stream.next()).run();
}

#[test]
fn stream_objects_to_forbidden_polls() {
    let (mut stream, handle) = stream();
    handle.push(1);
    handle.forbid_polls();
    let message = panic_message(|| Task::new(stream.next()).poll());
    assert_eq!(message, "stream input: polled though this was forbidden");
    handle.permit_polls();
    assert_eq!(Task::new(stream.next()).poll(), Poll::Ready(Some(1)));
}

#[test]
fn strict_stream_objects_to_a_poll_without_a_wake() {
    let (mut stream, handle) = stream();
    handle.strict();
    handle.stutter();
    let mut task = Task::new(stream.next());
    assert!(task.run().is_pending(), "its own wake counts");
    assert!(handle.wake() && task.run().is_pending(), "so does this one");
    assert_eq!(panic_message(|| task.poll()), "stream input: polled again before its waker fired");
}

#[test]
fn task_sleeps_until_it_is_woken() {
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
fn restless_task_is_found_out() {
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
fn renewed_waker_does_not_hear_the_former_one() {
    let (stream, handle) = stream();
    let mut task = Task::new(stream.into_future());
    assert!(task.run().is_pending());
    let former = handle.waker().unwrap();
    task.renew_waker();
    former.wake_by_ref();
    assert_eq!((task.wakes(), task.stale_wakes()), (0, 1));
    assert!(task.run().is_pending(), "it is polled once by its new task");
    assert_eq!(task.polls(), 2);
    handle.push(1);
    assert_eq!((task.wakes(), task.stale_wakes()), (1, 1));
    assert_eq!(task.total_wakes(), 1);
}

#[test]
fn kept_wakers_are_counted_when_the_future_is_gone() {
    let (stream, handle) = stream();
    let mut task = Task::new(stream.into_future());
    assert!(task.run().is_pending());
    task.renew_waker();
    task.drop_future();
    assert_eq!(task.wakers_kept(), 2, "one that waits, one last seen");
    drop(handle);
    assert_eq!(task.wakers_kept(), 0);
    assert_eq!(panic_message(|| task.poll()), "the future was dropped");
}

#[test]
fn future_can_be_looked_at_and_given_away() {
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
fn expected_panic_is_caught_with_its_message_and_its_line() {
    let line = line!() + 1;
    let panic = catch(|| panic!("{} is odd", 7));
    assert_eq!(
        (panic.message.as_str(), panic.file.as_str(), panic.line),
        ("7 is odd", file!(), line)
    );
    assert_eq!(panic_message(|| panic!("a literal")), "a literal");
    assert!(try_catch(|| 1).is_none());
    assert_eq!(panic_message(|| panic_message(|| 1)), "no panic");
}
