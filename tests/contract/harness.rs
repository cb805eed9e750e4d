//! Tests of the common parts. The test kit is tested in `sink-test/tests`.

use std::task::Poll;

use futures::{SinkExt, future};

use crate::common::panics::{catch, panic_message, try_catch};
use crate::common::{Task, scripted_sink};

/// Because of this, every test with a sink checks guarantee 4.
#[test]
fn scripted_sink_is_strict() {
    let (mut sink, handle) = scripted_sink::<u32>("a");
    handle.park();
    let mut task = Task::new(future::poll_fn(move |cx| {
        assert!(sink.poll_ready_unpin(cx).is_pending());
        Poll::<()>::Pending
    }));
    assert!(task.poll().is_pending());
    let breach = "sink a: poll_ready called again before its waker fired";
    assert_eq!(panic_message(|| task.poll()), breach);
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
    assert_eq!(panic_message(|| panic_message(|| 1)), "expected a panic");
}
