//! A stream that does what its handle says, and objects when it is polled after its end.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use futures::Stream;

use super::coop::{Deferred, Grant, PollCount, Waiting};
use super::{Action, CoopBudget, lock};

/// A stream and its handle. Its complaints begin with the name. It answers `Pending` until the
/// handle is used.
pub fn scripted_stream<T>(name: impl fmt::Display) -> (ScriptedStream<T>, StreamHandle<T>) {
    let state = Arc::new(Mutex::new(State {
        name: name.to_string(),
        steps: VecDeque::new(),
        endless: None,
        invented: 0,
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
    (ScriptedStream(Arc::clone(&state)), StreamHandle(state))
}

enum Step<T> {
    Item(T),
    /// Pending once, with the waker fired inside the poll.
    Stutter,
    /// Something happens inside the poll, before the next step.
    Action(Action),
    End,
}

/// When a poll is no breach.
#[derive(PartialEq, Eq)]
enum Polled {
    Freely,
    /// After a Pending, only once it has fired the waker.
    WhenAwake,
    Never,
}

type Inventor<T> = Box<dyn FnMut(u64) -> T + Send>;

struct State<T> {
    name: String,
    steps: VecDeque<Step<T>>,
    /// Makes the items once there are no more steps.
    endless: Option<Inventor<T>>,
    invented: u64,
    taken: usize,
    polls: usize,
    polled: Polled,
    /// `true` if it was never polled, did not answer Pending last, or has fired the waker since.
    awake: bool,
    ended: bool,
    dropped: bool,
    /// Of the last Pending answer, until something is pushed.
    waiting: Option<Waiting>,
    /// Wakers that a cooperative budget has yet to fire.
    deferred: Vec<Deferred>,
    budget: Option<CoopBudget>,
    last_waker: Option<Waker>,
}

impl<T> State<T> {
    /// Notes a wake that a cooperative budget has made meanwhile.
    fn hear_deferred(&mut self) {
        let deferred = self.deferred.len();
        self.deferred.retain(|deferred| !deferred.has_fired());
        self.awake |= self.deferred.len() < deferred;
        // Dropped under the lock, which is harmless: `last_waker` is a clone of it.
        drop(self.waiting.take_if(|waiting| waiting.has_fired()));
    }
}

/// The stream itself: `Unpin`, and `Send` if its items are.
pub struct ScriptedStream<T>(Arc<Mutex<State<T>>>);

impl<T> ScriptedStream<T> {
    /// Counts the poll, and panics if it is a breach.
    #[track_caller]
    fn enter(&self, cx: &Context<'_>) {
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

    /// The next step; `None`: there is nothing now, and the waker is kept.
    fn next_step(&self, cx: &Context<'_>) -> Option<Step<T>> {
        let mut state = lock(&self.0);
        if let Some(step) = state.steps.pop_front() {
            return Some(step);
        }
        let Some(mut invent) = state.endless.take() else {
            state.awake = false;
            state.waiting = Some(Waiting { waker: cx.waker().clone(), deferred: None });
            return None;
        };
        let n = state.invented;
        state.invented += 1;
        drop(state); // the closure may use the handle
        let item = invent(n);
        lock(&self.0).endless.get_or_insert(invent);
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

/// Controls and observes one stream. It outlives the stream, and then still holds its waker.
pub struct StreamHandle<T>(Arc<Mutex<State<T>>>);

impl<T> Clone for StreamHandle<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> StreamHandle<T> {
    /// Queues an item.
    pub fn push(&self, item: T) {
        self.script([Step::Item(item)]);
    }

    /// Queues several items, with one wake.
    pub fn extend(&self, items: impl IntoIterator<Item = T>) {
        self.script(items.into_iter().map(Step::Item));
    }

    /// Queues the end. Also ends an endless stream.
    pub fn end(&self) {
        self.script([Step::End]);
    }

    /// Queues a Pending that wakes its own waker inside the poll.
    pub fn stutter(&self) {
        self.script([Step::Stutter]);
    }

    /// Makes the stream answer Pending once `budget` is spent.
    pub fn share(&self, budget: &CoopBudget) {
        let replaced = self.look(|state| state.budget.replace(budget.clone()));
        drop(replaced);
    }

    /// Queues something to be done inside a poll, right before the next step of that same poll.
    pub fn action(&self, action: impl FnOnce() + Send + 'static) {
        self.script([Step::Action(Box::new(action))]);
    }

    /// Whenever nothing is queued, `invent` makes the next item; it is given 0, 1, 2 and so on.
    pub fn endless(&self, invent: impl FnMut(u64) -> T + Send + 'static) {
        let replaced = self.look(|state| state.endless.replace(Box::new(invent)));
        drop(replaced);
        self.script([]);
    }

    /// Makes any further poll a breach.
    pub fn forbid_polls(&self) {
        self.look(|state| state.polled = Polled::Never);
    }

    /// Undoes `forbid_polls` and `strict`.
    pub fn permit_polls(&self) {
        self.look(|state| state.polled = Polled::Freely);
    }

    /// Makes a poll a breach if it follows a Pending without a wake of this stream in between.
    pub fn strict(&self) {
        self.look(|state| state.polled = Polled::WhenAwake);
    }

    /// Fires the last waker the stream has seen, for no reason. Returns `false` if it has seen none.
    pub fn wake(&self) -> bool {
        let waker = self.look(|state| {
            state.awake = true;
            state.last_waker.clone()
        });
        waker.inspect(Waker::wake_by_ref).is_some()
    }

    /// The last waker the stream has seen.
    pub fn waker(&self) -> Option<Waker> {
        self.look(|state| state.last_waker.clone())
    }

    pub fn polls(&self) -> usize {
        self.look(|state| state.polls)
    }

    /// How many items were taken out of the stream.
    pub fn taken(&self) -> usize {
        self.look(|state| state.taken)
    }

    /// How many items are queued and not yet taken.
    pub fn left(&self) -> usize {
        let is_item = |step: &&Step<T>| matches!(step, Step::Item(_));
        self.look(|state| state.steps.iter().filter(is_item).count())
    }

    /// Returns `true` if it last answered Pending, without a stutter, and nothing was queued since.
    pub fn is_waiting(&self) -> bool {
        self.look(|state| state.waiting.is_some())
    }

    /// How many of its wakers a cooperative budget has yet to fire.
    pub fn deferred_wakers(&self) -> usize {
        self.look(|state| state.deferred.len())
    }

    /// Returns `true` if it has answered `None`.
    pub fn is_ended(&self) -> bool {
        self.look(|state| state.ended)
    }

    pub fn is_dropped(&self) -> bool {
        self.look(|state| state.dropped)
    }

    fn script(&self, steps: impl IntoIterator<Item = Step<T>>) {
        let steps: Vec<_> = steps.into_iter().collect(); // foreign code, so before the lock
        let waiting = self.look(|state| {
            state.steps.extend(steps);
            state.awake |= state.waiting.is_some();
            state.waiting.take()
        });
        if let Some(waiting) = waiting {
            waiting.waker.wake();
        }
    }

    fn look<R>(&self, at: impl FnOnce(&mut State<T>) -> R) -> R {
        let mut state = lock(&self.0);
        state.hear_deferred();
        at(&mut state)
    }
}
