//! The wakers that the reference lends to sinks and to the orders stream, and the ends of leases.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Wake, Waker};

use crate::event::{Id, Request};
use crate::lock;

/// What wakers and leases have signalled.
#[derive(Default)]
pub struct Signals(Mutex<State>);

#[derive(Default)]
pub struct State {
    pub task: Option<Waker>,
    /// For each slot id: whether its waker has fired, and whether it is listed. Both outlive the
    /// slot. Then the ids that were listed since the list was last taken.
    pub fired: Vec<bool>,
    pub is_listed: Vec<bool>,
    pub listed: Vec<usize>,
    /// Whether the waker of the orders stream has fired.
    pub orders: bool,
    /// The attachments that are present, with their slot ids and what was requested of them since.
    /// The slot ids whose leases have ended
    /// since the list was last taken, and whether each slot id is listed.
    pub present: Vec<(Id, usize, Vec<Request>)>,
    pub ended: Vec<usize>,
    pub is_ended: Vec<bool>,
}

impl State {
    /// A lease of this slot has ended. Returns whether this is new.
    pub fn list_ended(&mut self, n: usize) -> bool {
        let is_new = !mem::replace(&mut self.is_ended[n], true);
        self.ended.extend(is_new.then_some(n));
        is_new
    }

    /// Lists a slot, at most once at a time. Returns whether this is new.
    pub fn list(&mut self, n: usize) -> bool {
        let is_new = !mem::replace(&mut self.is_listed[n], true);
        self.listed.extend(is_new.then_some(n));
        is_new
    }
}

impl Signals {
    pub fn look(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Wakes the task if `at` returns `true`: if there is something new.
    fn signal(&self, at: impl FnOnce(&mut State) -> bool) {
        let mut state = self.look();
        let task = if at(&mut state) { state.task.clone() } else { None };
        drop(state);
        task.into_iter().for_each(Waker::wake);
    }

    /// A lease has ended. Each kind of request signals once.
    pub fn lease_ended(&self, id: Id, request: Request) {
        self.signal(|state| {
            let found = state.present.iter_mut().find(|(other, ..)| *other == id);
            let found = found.filter(|(.., seen)| !seen.contains(&request));
            let n = found.map(|(_, n, seen)| {
                seen.push(request);
                *n
            });
            n.is_some_and(|n| state.list_ended(n))
        });
    }

    /// Returns the waker of a slot id, or that of the orders stream.
    pub fn waker(self: &Arc<Self>, n: Option<usize>) -> Waker {
        Waker::from(Arc::new(SignalWaker(Arc::clone(self), n)))
    }
}

struct SignalWaker(Arc<Signals>, Option<usize>);

impl Wake for SignalWaker {
    fn wake(self: Arc<Self>) {
        self.0.signal(|state| match self.1 {
            None => !mem::replace(&mut state.orders, true),
            Some(n) => {
                state.fired[n] = true;
                state.list(n)
            }
        });
    }
}
