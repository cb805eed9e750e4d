//! A stream that is controlled by a handle, and panics if it is polled after its end.

mod handle;

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use crate::coop::{Deferred, Grant, PollCount, Waiting};
use crate::sink::note_under_way;
use crate::{Action, CoopBudget, lock};
pub use handle::StreamHandle;

/// Creates a stream and its handle. Panics begin with `name`.
///
/// The stream is pending until the handle is used.
///
/// # Panics
///
/// The stream, not this function, panics if it is polled after its end.
///
/// # Examples
///
/// ```
/// use futures::StreamExt;
/// use sink_test::{Task, scripted_stream};
/// use std::task::Poll;
///
/// let (stream, handle) = scripted_stream("input");
/// handle.extend([1, 2]);
/// let mut task = Task::new(stream.collect::<Vec<_>>());
/// assert!(task.run().is_pending());
/// assert_eq!(handle.taken(), 2);
///
/// handle.end();
/// assert_eq!(task.run(), Poll::Ready(vec![1, 2]));
/// ```
pub fn scripted_stream<T>(name: impl fmt::Display) -> (ScriptedStream<T>, StreamHandle<T>) {
    let state = Arc::new(Mutex::new(State {
        name: name.to_string(),
        steps: VecDeque::new(),
        endless: None,
        created: 0,
        taken: 0,
        polls: 0,
        polled: Polled::Freely,
        awake: true,
        ended: false,
        dropped: false,
        waiting: None,
        deferred: Vec::new(),
        budget: None,
        last_waker: None,
    }));
    (ScriptedStream(Arc::clone(&state)), StreamHandle::new(state))
}

enum Step<T> {
    Item(T),
    /// `Pending` once, with the waker fired inside the poll.
    Stutter,
    /// Runs an action inside the poll, before the next step.
    Action(Action),
    End,
}

/// When the stream may be polled.
#[derive(PartialEq, Eq)]
enum Polled {
    Freely,
    /// After `Pending`, only once it has fired the waker.
    WhenAwake,
    Never,
}

type MakeItem<T> = Box<dyn FnMut(u64) -> T + Send>;

struct State<T> {
    name: String,
    steps: VecDeque<Step<T>>,
    /// Creates further items when no steps are left.
    endless: Option<MakeItem<T>>,
    created: u64,
    taken: usize,
    polls: usize,
    polled: Polled,
    /// `false` if the last poll returned `Pending` and the waker has not fired since.
    awake: bool,
    ended: bool,
    dropped: bool,
    /// Set by `Pending`, until something is queued.
    waiting: Option<Waiting>,
    /// Wakers that a cooperative budget has not yet fired.
    deferred: Vec<Deferred>,
    budget: Option<CoopBudget>,
    last_waker: Option<Waker>,
}

impl<T> State<T> {
    /// Records wakers that a cooperative budget has fired.
    fn hear_deferred(&mut self) {
        let deferred = self.deferred.len();
        self.deferred.retain(|deferred| !deferred.has_fired());
        self.awake |= self.deferred.len() < deferred;
        // Dropped under the lock, which is harmless: `last_waker` is a clone of it.
        drop(self.waiting.take_if(|waiting| waiting.has_fired()));
    }
}

/// A stream that is controlled by its [handle](StreamHandle); created by [`scripted_stream`].
///
/// It is `Unpin`, and `Send` if its items are.
pub struct ScriptedStream<T>(Arc<Mutex<State<T>>>);

impl<T> ScriptedStream<T> {
    /// Counts the poll, and panics if it is a breach.
    #[track_caller]
    fn enter(&self, cx: &Context<'_>) {
        note_under_way();
        let lent = cx.waker().clone();
        let mut state = lock(&self.0);
        state.hear_deferred();
        state.polls += 1;
        let breach = if state.ended {
            Some("polled after its end")
        } else if state.polled == Polled::Never {
            Some("polled though this was forbidden")
        } else if state.polled == Polled::WhenAwake && !state.awake {
            Some("polled again before its waker fired")
        } else {
            None
        };
        if let Some(breach) = breach {
            let breach = format!("stream {}: {breach}", state.name);
            drop(state);
            panic!("{breach}");
        }
        state.awake = true;
        let replaced = (state.last_waker.replace(lent), state.waiting.take());
        drop(state);
        drop(replaced);
    }

    /// Returns the next step. If there is none, keeps the waker and returns `None`.
    fn next_step(&self, cx: &Context<'_>) -> Option<Step<T>> {
        let mut state = lock(&self.0);
        if let Some(step) = state.steps.pop_front() {
            return Some(step);
        }
        let Some(mut make) = state.endless.take() else {
            state.awake = false;
            state.waiting = Some(Waiting { waker: cx.waker().clone(), deferred: None });
            return None;
        };
        let n = state.created;
        state.created += 1;
        drop(state); // the closure may use the handle
        let item = make(n);
        lock(&self.0).endless.get_or_insert(make);
        Some(Step::Item(item))
    }
}

impl<T> Stream for ScriptedStream<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.enter(cx);
        let budget = lock(&self.0).budget.clone();
        match budget.as_ref().map(|budget| budget.ask(cx.waker())) {
            None | Some(Grant::Given) => {}
            Some(Grant::DeniedAndWoken) => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Some(Grant::Deferred(deferred)) => {
                let mut state = lock(&self.0);
                state.awake = false;
                state.deferred.push(deferred.clone());
                state.waiting =
                    Some(Waiting { waker: cx.waker().clone(), deferred: Some(deferred) });
                return Poll::Pending;
            }
        }
        let take = || budget.iter().for_each(CoopBudget::take);
        loop {
            match self.next_step(cx) {
                Some(Step::Item(item)) => {
                    lock(&self.0).taken += 1;
                    take();
                    PollCount::count_one();
                    return Poll::Ready(Some(item));
                }
                Some(Step::Action(action)) => action(),
                Some(Step::Stutter) => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some(Step::End) => {
                    lock(&self.0).ended = true;
                    take();
                    return Poll::Ready(None);
                }
                None => return Poll::Pending,
            }
        }
    }
}

impl<T> fmt::Debug for ScriptedStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScriptedStream({})", lock(&self.0).name)
    }
}

impl<T> Drop for ScriptedStream<T> {
    fn drop(&mut self) {
        lock(&self.0).dropped = true;
    }
}
