//! A test kit for [`Sink`](futures_sink::Sink)s: for code that uses sinks, and for implementations
//! of sinks.
//!
//! * To test code that sends to sinks: [`scripted_sink`] creates a sink and a handle. The handle
//!   controls what each operation returns, and records every call. The sink panics if its caller
//!   breaks the contract of `Sink`.
//! * To test a sink: [`check_sink`], and [`check_adapter`] for a sink that wraps another. They
//!   exercise it in all ways that the contract allows, and report the [`Rule`] that it breaks.
//! * To test code that reads from streams: [`scripted_stream`].
//! * To test that a future is woken when it should be, and not more often: a [`Task`] polls a
//!   future only after a wake, and the test calls each poll.
//! * To test the behaviour when a cooperative budget like tokio's is spent: [`CoopBudget`].
//! * To test the order of events: [`Log`].
//!
//! There are no threads, sleeps or clocks: a test creates its situation explicitly, and asserts
//! what happens. All handles are `Clone` and `Send`, so other threads may use them.
//!
//! # Pending, then woken, then ready
//!
//! Most faults of sinks are missing wakes. Then a test that awaits in a runtime hangs, or passes
//! because another event has woken the task. With a [`Task`] and a scripted sink each step is an
//! assertion:
//!
//! ```
//! use futures::SinkExt;
//! use sink_test::{Op, Task, scripted_sink};
//! use std::task::Poll;
//!
//! let (mut sink, handle) = scripted_sink("a");
//! let mut task = Task::new(async move {
//!     sink.send(1).await?;
//!     sink.send(2).await
//! });
//!
//! // Pending: the sink has room for one item.
//! handle.park();
//! handle.allow(1);
//! assert!(task.run().is_pending());
//! assert!(handle.is_waiting(Op::Ready));
//! assert_eq!(handle.items(), [1]);
//!
//! // Woken: room for one more.
//! assert!(!task.woken());
//! handle.allow(1);
//! assert!(task.woken());
//!
//! // Ready.
//! assert_eq!(task.run(), Poll::Ready(Ok(())));
//! assert_eq!(handle.items(), [1, 2]);
//! assert_eq!(handle.flushed(), 2);
//! ```
//!
//! The same with an error, after which the sink panics if it is called again.
//!
//! ```
//! use futures::SinkExt;
//! use sink_test::{Broken, Op, Task, scripted_sink};
//! use std::task::Poll;
//!
//! let (mut sink, handle) = scripted_sink("a");
//! let mut task = Task::new(sink.send(1));
//! handle.hold(Op::Flush);
//! assert!(task.run().is_pending());
//!
//! handle.fail(Op::Flush);
//! assert_eq!(task.run(), Poll::Ready(Err(Broken("poll_flush"))));
//! assert_eq!((handle.taken(), handle.flushed()), (1, 0));
//! ```
//!
//! # Checking your sink
//!
//! [`check_sink`] takes three closures, which make the sink and its receiver, make an item, and
//! receive an item. It fills the sink, drains it, flushes and closes it in each state, changes the
//! waker, and polls again only after a wake. [`SinkCheck`] has more settings.
//!
//! ```
//! use futures::{FutureExt, StreamExt, channel::mpsc};
//! use sink_test::{SinkCheck, check_sink};
//!
//! check_sink(|| mpsc::channel(2), |n| n, |receiver| receiver.next().now_or_never()?);
//!
//! SinkCheck::new(|| mpsc::channel(2), |n| n, |receiver| receiver.next().now_or_never()?)
//!     .capacity(3)
//!     .disconnect(|receiver| receiver.close())
//!     .run();
//! ```
//!
//! This sink forgets to keep the waker:
//!
//! ```
//! use futures::Sink;
//! use sink_test::{Rule, SinkCheck};
//! use std::{cell::Cell, pin::Pin, rc::Rc, task::{Context, Poll}};
//!
//! struct Slot(Rc<Cell<Option<usize>>>);
//!
//! impl Sink<usize> for Slot {
//!     type Error = std::convert::Infallible;
//!
//!     fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
//!         if self.0.get().is_none() { Poll::Ready(Ok(())) } else { Poll::Pending }
//!     }
//!     // ...
//! #   fn start_send(self: Pin<&mut Self>, item: usize) -> Result<(), Self::Error> {
//! #       self.0.set(Some(item));
//! #       Ok(())
//! #   }
//! #   fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
//! #       Poll::Ready(Ok(()))
//! #   }
//! #   fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
//! #       Poll::Ready(Ok(()))
//! #   }
//! }
//!
//! let make = || {
//!     let slot = Rc::default();
//!     (Slot(Rc::clone(&slot)), slot)
//! };
//! let receive = |slot: &mut Rc<Cell<_>>| slot.take();
//! let fault = SinkCheck::new(make, |n| n, receive).try_run().unwrap_err();
//! assert_eq!(fault.rule(), Rule::Wakes);
//! assert_eq!(fault.what(), "poll_ready can progress, but the waker of its last poll was not woken");
//! ```

#![forbid(unsafe_code)]

mod check;
mod coop;
mod log;
mod sink;
mod stream;
mod task;
mod wakes;

pub use check::{Fault, Report, Rule, SinkCheck, check_adapter, check_sink};
pub use coop::CoopBudget;
pub use log::Log;
pub use sink::{Answer, Broken, Call, Op, ScriptedSink, SinkHandle, scripted_sink};
pub use stream::{ScriptedStream, StreamHandle, scripted_stream};
pub use task::Task;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A closure that runs inside a poll of a scripted sink or stream.
type Action = Box<dyn FnOnce() + Send>;

/// Ignores poisoning, because scripted sinks panic on purpose and tests inspect the state
/// afterwards.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
