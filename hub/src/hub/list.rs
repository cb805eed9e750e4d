//! [`List`]: what many tasks hand to one, which takes all of it at once.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A list that any task appends to, and that one task swaps for an empty one.
///
/// An item costs a lock, and a wake only if the task waits.
#[derive(Debug)]
pub(super) struct List<T>(Mutex<State<T>>);

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    /// The task that takes the items, if it waits for one.
    reader: Option<Waker>,
    is_closed: bool,
}

impl<T> List<T> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(State { items: VecDeque::new(), reader: None, is_closed: false }))
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends items, with none of others between them. Returns them if the list is closed.
    pub(super) fn extend<I: IntoIterator<Item = T>>(&self, items: I) -> Result<(), I> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(items);
        }
        state.items.extend(items);
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Appends an item. Returns it if the list is closed.
    pub(super) fn push(&self, item: T) -> Result<(), T> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(item);
        }
        state.items.push_back(item);
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Takes no more items. Those that are in the list can still be taken.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }

    pub(super) fn len(&self) -> usize {
        self.lock().items.len()
    }

    /// Takes all items at once, into an empty queue. Returns `false` if there will be no more.
    pub(super) fn poll_take(&self, into: &mut VecDeque<T>, cx: &mut Context<'_>) -> Poll<bool> {
        let mut state = self.lock();
        if !state.items.is_empty() {
            std::mem::swap(into, &mut state.items);
            return Poll::Ready(true);
        }
        if state.is_closed {
            return Poll::Ready(false);
        }
        let is_known = state.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker()));
        let replaced = if is_known { None } else { state.reader.replace(cx.waker().clone()) };
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    /// Takes all items, and no more from now on.
    pub(super) fn end(&self) -> VecDeque<T> {
        let mut state = self.lock();
        state.is_closed = true;
        std::mem::take(&mut state.items)
    }
}
