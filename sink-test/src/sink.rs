//! A sink that is controlled by a handle, and panics if its caller breaks the contract of `Sink`.
//!
//! Wakers and actions are user code and run while the state is not locked.

mod handle;
mod observations;
mod state;

use std::fmt;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use futures_sink::Sink;

use crate::coop::Waiting;
use crate::lock;
pub use handle::SinkHandle;
pub(crate) use state::note_under_way;
use state::{State, Wake};

/// Creates a sink and its handle. Panics and log lines begin with `name`.
///
/// The sink is open: each operation returns `Ready(Ok(()))` until the handle changes that. Items
/// need `Debug`, for the log.
///
/// # Panics
///
/// The sink, not this function, panics if
///
/// 1. `start_send` is called without a `poll_ready` that returned `Ready(Ok(()))` since the last
///    send;
/// 2. after a call of `poll_close`, anything but `poll_close` is called, or anything at all once
///    `poll_close` has completed;
/// 3. anything is called after an error.
///
/// Polling a pending operation again without a wake does not break the contract, because a task may
/// be polled at any time. For code that promises not to do so, use [`SinkHandle::strict`] and
/// [`SinkHandle::strict_unless_in_doubt`].
///
/// # Examples
///
/// ```should_panic
/// use futures::SinkExt;
/// use sink_test::scripted_sink;
///
/// let (mut sink, _handle) = scripted_sink("a");
/// // Panics: "sink a: start_send without a Ready(Ok) of poll_ready since the last send".
/// let _ = sink.start_send_unpin(1);
/// ```
pub fn scripted_sink<V>(name: impl fmt::Display) -> (ScriptedSink<V>, SinkHandle<V>) {
    let state = Arc::new(Mutex::new(State::new(name.to_string())));
    (ScriptedSink(Arc::clone(&state)), SinkHandle::new(state))
}

/// The error of a scripted sink: the operation that failed, as in `Broken("poll_flush")`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken(pub &'static str);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed", self.0)
    }
}

impl std::error::Error for Broken {}

/// An operation of a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// `poll_ready`
    Ready,
    /// `start_send`
    Send,
    /// `poll_flush`
    Flush,
    /// `poll_close`
    Close,
}

impl Op {
    /// The name of the method.
    pub fn name(self) -> &'static str {
        match self {
            Op::Ready => "poll_ready",
            Op::Send => "start_send",
            Op::Flush => "poll_flush",
            Op::Close => "poll_close",
        }
    }
}

/// What an operation returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// `Ready(Ok(()))`, or `Ok(())` from `start_send`.
    Done,
    /// `Pending`; never from `start_send`.
    Pending,
    /// An error.
    Failed,
}

/// A call of a sink, and what it returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// A call of `poll_ready`.
    Ready(Answer),
    /// A call of `start_send`.
    Send(Answer),
    /// A call of `poll_flush`.
    Flush(Answer),
    /// A call of `poll_close`.
    Close(Answer),
    /// The sink was dropped.
    Drop,
}

/// A sink that is controlled by its [handle](SinkHandle); created by [`scripted_sink`].
///
/// It is `Unpin`, and `Send` if its items are.
pub struct ScriptedSink<V>(Arc<Mutex<State<V>>>);

impl<V> ScriptedSink<V> {
    /// Runs the action that is set for this call, then panics if the call is a breach.
    #[track_caller]
    fn enter(&self, op: Op) -> MutexGuard<'_, State<V>> {
        let action = lock(&self.0).script(op).action.take();
        if let Some(action) = action {
            action();
        }
        let mut state = lock(&self.0);
        state.hear_deferred();
        if let Some(breach) = state.breach(op) {
            let breach = format!("sink {}: {} {breach}", state.name, op.name());
            state.breaches.push(breach.clone());
            if state.is_checked {
                drop(state);
                resume_unwind(Box::new(breach));
            }
            drop(state);
            panic!("{breach}");
        }
        state
    }

    #[track_caller]
    fn poll(&self, op: Op, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let (lent, kept) = (cx.waker().clone(), cx.waker().clone());
        let mut state = self.enter(op);
        let (answer, wake) = state.answer(op, cx.waker());
        let wakes_itself = matches!(wake, Some(Wake::AtOnce));
        let waiting = match wake {
            None | Some(Wake::AtOnce) => None,
            Some(Wake::Later(deferred)) => Some(Waiting { waker: kept, deferred }),
        };
        let replaced = std::mem::replace(&mut state.script(op).waiting, waiting);
        let last = state.last_waker.replace(lent);
        drop(state);
        drop((replaced, last));
        if wakes_itself {
            cx.waker().wake_by_ref();
        }
        match answer {
            Answer::Done => Poll::Ready(Ok(())),
            Answer::Pending => Poll::Pending,
            Answer::Failed => Poll::Ready(Err(Broken(op.name()))),
        }
    }
}

impl<V: fmt::Debug> Sink<V> for ScriptedSink<V> {
    type Error = Broken;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.poll(Op::Ready, cx)
    }

    fn start_send(self: Pin<&mut Self>, item: V) -> Result<(), Broken> {
        let mut state = self.enter(Op::Send);
        let (answer, _) = state.answer(Op::Send, Waker::noop());
        if answer == Answer::Failed {
            drop(state);
            return Err(Broken(Op::Send.name()));
        }
        state.log(format_args!("sent {item:?}"));
        state.items.push(item);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.poll(Op::Flush, cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.poll(Op::Close, cx)
    }
}

impl<V> fmt::Debug for ScriptedSink<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScriptedSink({})", lock(&self.0).name)
    }
}

impl<V> Drop for ScriptedSink<V> {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.dropped = true;
        state.calls.push(Call::Drop);
        state.log(format_args!("dropped"));
    }
}
