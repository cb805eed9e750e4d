//! A sink that does what its handle says, and objects when it is not treated as a sink.
//!
//! It panics on the first breach of the `Sink` contract, with its name in the message:
//!
//! 1. `start_send` needs a `poll_ready` that answered `Ready(Ok)` since the last send;
//! 2. once `poll_close` was called, only `poll_close` may follow, and nothing once it completed;
//! 3. nothing follows an error;
//! 4. an operation that answered `Pending` is not asked again before this sink woke its caller
//!    (switched off by [`SinkHandle::lenient`]), with two exceptions: a flush may be, if an item was
//!    taken meanwhile; and `poll_ready` may be, once and in a later poll of the task, if it answered
//!    after 64 or more operations of one poll (switched off by [`SinkHandle::waits`]).
//!
//! Wakers and actions, which are foreign code, run while the state is not locked.

mod handle;
mod state;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use futures::Sink;

use super::coop::Waiting;
pub use handle::SinkHandle;
use state::{State, Wake};

/// A sink and its handle. The name, or number, is what its complaints and log lines begin with.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    Ready,
    Send,
    Flush,
    Close,
}

impl Op {
    pub fn name(self) -> &'static str {
        match self {
            Op::Ready => "poll_ready",
            Op::Send => "start_send",
            Op::Flush => "poll_flush",
            Op::Close => "poll_close",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Done,
    Pending,
    Failed,
}

/// One call, as the sink saw it. `Send` is never `Pending`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    Ready(Answer),
    Send(Answer),
    Flush(Answer),
    Close(Answer),
    Drop,
}

/// The sink itself: `Unpin`, and `Send` if its items are.
pub struct ScriptedSink<V>(Arc<Mutex<State<V>>>);

impl<V> ScriptedSink<V> {
    /// Runs the action set for this call, then objects if the call is a breach.
    #[track_caller]
    fn enter(&self, op: Op) -> MutexGuard<'_, State<V>> {
        let action = super::lock(&self.0).script(op).action.take();
        if let Some(action) = action {
            action();
        }
        let mut state = super::lock(&self.0);
        state.hear_deferred();
        if let Some(breach) = state.breach(op) {
            let breach = format!("sink {}: {} {breach}", state.name, op.name());
            state.breaches.push(breach.clone());
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
        write!(f, "ScriptedSink({})", super::lock(&self.0).name)
    }
}

impl<V> Drop for ScriptedSink<V> {
    fn drop(&mut self) {
        let mut state = super::lock(&self.0);
        state.dropped = true;
        state.calls.push(Call::Drop);
        state.log(format_args!("dropped"));
    }
}
