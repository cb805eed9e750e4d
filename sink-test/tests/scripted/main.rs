//! Tests of the kit: each check can fail, and each method of a handle has its effect.

mod coop;
mod sinks;
mod streams;
mod strict_sinks;
mod tasks;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use futures::Sink;
use sink_test::{Broken, Op, ScriptedSink, ScriptedStream, SinkHandle, StreamHandle};
use sink_test::{scripted_sink, scripted_stream};

const OK: Poll<Result<(), Broken>> = Poll::Ready(Ok(()));

fn sink() -> (ScriptedSink<u32>, SinkHandle<u32>) {
    scripted_sink("a")
}

fn strict_sink() -> (ScriptedSink<u32>, SinkHandle<u32>) {
    let (sink, handle) = sink();
    handle.strict();
    (sink, handle)
}

fn stream() -> (ScriptedStream<u32>, StreamHandle<u32>) {
    scripted_stream("input")
}

/// Calls an operation with a waker that does nothing.
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

/// Calls `f`, which must panic. Returns the message.
#[track_caller]
fn panic_message<R>(f: impl FnOnce() -> R) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).err().expect("expected a panic");
    let literal = panic.downcast_ref::<&str>().map(ToString::to_string);
    literal.or_else(|| panic.downcast_ref::<String>().cloned()).expect("the panic has no message")
}
