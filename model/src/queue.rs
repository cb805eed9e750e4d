//! A queue that any thread may push into, and the stream by which a demux reads it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use futures::Stream;

pub(crate) struct Queue<T>(Mutex<State<T>>);

struct State<T> {
    unread: VecDeque<T>,
    pushed: usize,
    ended: bool,
    waker: Option<Waker>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let unread = VecDeque::new();
        Self(Mutex::new(State { unread, pushed: 0, ended: false, waker: None }))
    }
}

impl<T> Queue<T> {
    pub(crate) fn push(&self, value: T) {
        self.push_with(|_| value);
    }

    /// Pushes the value that `value` returns for its index. Indices are counted from 0.
    pub(crate) fn push_with(&self, value: impl FnOnce(usize) -> T) {
        let mut state = lock(&self.0);
        let value = value(state.pushed);
        state.unread.push_back(value);
        state.pushed += 1;
        wake(state);
    }

    pub(crate) fn end(&self) {
        let mut state = lock(&self.0);
        state.ended = true;
        wake(state);
    }

    /// Returns the number of values that were read.
    pub(crate) fn read_count(&self) -> usize {
        let state = lock(&self.0);
        state.pushed - state.unread.len()
    }

    /// Returns the number of values that were not read.
    pub(crate) fn unread_count(&self) -> usize {
        lock(&self.0).unread.len()
    }

    /// Drops the unread values and the reader's waker.
    pub(crate) fn clear(&self) {
        let mut state = lock(&self.0);
        let dropped = (std::mem::take(&mut state.unread), state.waker.take());
        drop(state);
        drop(dropped); // without the lock: a destructor may push
    }
}

/// Wakes the reader after releasing the lock.
fn wake<T>(mut state: MutexGuard<'_, State<T>>) {
    let waker = state.waker.take();
    drop(state);
    waker.into_iter().for_each(Waker::wake);
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a thread panicked while it held the lock")
}

/// The reading end of a [`Queue`].
pub(crate) struct Source<T>(pub(crate) Arc<Queue<T>>);

impl<T> Stream for Source<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = lock(&self.0.0);
        if let Some(value) = state.unread.pop_front() {
            return Poll::Ready(Some(value));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
