//! A stream that any thread may push into, while a demux reads it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use futures::Stream;

pub(crate) struct Queue<T>(Mutex<Values<T>>);

struct Values<T> {
    waits: VecDeque<T>,
    pushed: usize,
    ended: bool,
    waker: Option<Waker>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let waits = VecDeque::new();
        Self(Mutex::new(Values { waits, pushed: 0, ended: false, waker: None }))
    }
}

impl<T> Queue<T> {
    pub(crate) fn push(&self, value: T) {
        self.push_made(|_| value);
    }

    /// Pushes what is made of its number, counted from 0.
    pub(crate) fn push_made(&self, value: impl FnOnce(usize) -> T) {
        let mut values = lock(&self.0);
        let value = value(values.pushed);
        values.waits.push_back(value);
        values.pushed += 1;
        wake(values);
    }

    pub(crate) fn end(&self) {
        let mut values = lock(&self.0);
        values.ended = true;
        wake(values);
    }

    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.0).ended
    }

    /// How many were read.
    pub(crate) fn given(&self) -> usize {
        let values = lock(&self.0);
        values.pushed - values.waits.len()
    }

    /// How many were not.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.0).waits.len()
    }

    /// Lets go of what was not read, and of who waits for more.
    pub(crate) fn abandon(&self) {
        let mut values = lock(&self.0);
        let left = (std::mem::take(&mut values.waits), values.waker.take());
        drop(values);
        drop(left); // without the lock: it may push
    }
}

/// Wakes who reads, without the lock.
fn wake<T>(mut values: MutexGuard<'_, Values<T>>) {
    let waker = values.waker.take();
    drop(values);
    waker.into_iter().for_each(Waker::wake);
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("whoever panics ends the process")
}

/// What a demux reads.
pub(crate) struct Source<T>(pub(crate) Arc<Queue<T>>);

impl<T> Stream for Source<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut values = lock(&self.0.0);
        if let Some(value) = values.waits.pop_front() {
            return Poll::Ready(Some(value));
        }
        if values.ended {
            return Poll::Ready(None);
        }
        values.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
