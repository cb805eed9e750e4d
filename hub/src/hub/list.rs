//! [`List`]: what many tasks hand to one, which takes all of it at once.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// An empty queue keeps room for this many items, whatever comes next. A queue of the default
/// capacity of a hub is never freed; 1,024 orders take about 200 kB.
const ROOM_KEPT: usize = 1_024;

/// A larger room is kept only if at least one part in this many of it is used by what was taken, so
/// that bursts of one size do not allocate again and again.
const ROOM_USED: usize = 4;

/// A list that any task appends to, and that one task swaps for an empty one.
///
/// An item costs a lock, and a wake only if the task waits. Two allocations go round between the
/// list and its reader. Both shrink after a burst, when the list is read with little or nothing in
/// it.
#[derive(Debug)]
pub(super) struct List<T> {
    state: Mutex<State<T>>,
    /// The reader is woken before the lock is released.
    wakes_locked: bool,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    /// The task that takes the items, if it waits for one.
    reader: Option<Waker>,
    is_closed: bool,
}

impl<T> List<T> {
    pub(super) fn new() -> Self {
        let state = State { items: VecDeque::new(), reader: None, is_closed: false };
        Self { state: Mutex::new(state), wakes_locked: false }
    }

    /// Creates a list for orders. When an append returns, the waker of the reader has fired.
    ///
    /// A demux applies an order before an item that comes later only if the waker of the orders
    /// fires before the item comes. Without the lock, a thread may be preempted between taking the
    /// waker and firing it. A second thread then finds no waker, and the item that it publishes
    /// after its order is routed before the order is read.
    pub(super) fn of_orders() -> Self {
        Self { wakes_locked: true, ..Self::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the task if it waits.
    fn wake(&self, mut state: MutexGuard<'_, State<T>>) {
        let Some(reader) = state.reader.take() else { return };
        if self.wakes_locked {
            reader.wake();
            drop(state);
        } else {
            drop(state);
            reader.wake();
        }
    }

    /// Appends items, with none of others between them. Returns them if the list is closed.
    pub(super) fn extend<I: IntoIterator<Item = T>>(&self, items: I) -> Result<(), I> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(items);
        }
        state.items.extend(items);
        self.wake(state);
        Ok(())
    }

    /// Appends an item. Returns it if the list is closed.
    pub(super) fn push(&self, item: T) -> Result<(), T> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(item);
        }
        state.items.push_back(item);
        self.wake(state);
        Ok(())
    }

    /// Takes no more items. Those that are in the list can still be taken.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        self.wake(state);
    }

    pub(super) fn len(&self) -> usize {
        self.lock().items.len()
    }

    /// Takes all items at once, into an empty queue. Returns `false` if there will be no more.
    pub(super) fn poll_take(&self, into: &mut VecDeque<T>, cx: &mut Context<'_>) -> Poll<bool> {
        debug_assert!(into.is_empty(), "items would be left in the list");
        // Freed after the lock is released.
        let mut unused = VecDeque::new();
        let mut state = self.lock();
        let room_needed = state.items.len().saturating_mul(ROOM_USED).max(ROOM_KEPT);
        if into.capacity() > room_needed {
            std::mem::swap(into, &mut unused);
        }
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

    /// Takes all items that there are, behind others.
    pub(super) fn take(&self, behind: &mut VecDeque<T>) {
        behind.append(&mut self.lock().items);
    }

    /// Takes all items, and no more from now on.
    pub(super) fn end(&self) -> VecDeque<T> {
        let mut state = self.lock();
        state.is_closed = true;
        std::mem::take(&mut state.items)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::task::Wake;
    use std::thread::{self, JoinHandle};

    use super::*;

    /// When it is woken, another thread appends to the list, and returns whether this waker had
    /// fired by then.
    struct Slow {
        list: Arc<List<u32>>,
        has_fired: AtomicBool,
        other: Mutex<Option<JoinHandle<bool>>>,
    }

    impl Wake for Slow {
        fn wake(self: Arc<Self>) {
            let this = Arc::clone(&self);
            let other =
                thread::spawn(move || this.list.push(2).is_ok() && this.has_fired.load(SeqCst));
            for _ in 0..10_000 {
                if other.is_finished() {
                    break;
                }
                thread::yield_now();
            }
            self.has_fired.store(true, SeqCst);
            *self.other.lock().unwrap() = Some(other);
        }
    }

    #[test]
    fn order_that_another_thread_announces_is_announced_when_its_append_returns() {
        let list = Arc::new(List::of_orders());
        let (has_fired, other) = (AtomicBool::new(false), Mutex::new(None));
        let slow = Arc::new(Slow { list: Arc::clone(&list), has_fired, other });
        let waker = Waker::from(Arc::clone(&slow));
        let mut taken = VecDeque::new();
        assert!(list.poll_take(&mut taken, &mut Context::from_waker(&waker)).is_pending());
        assert_eq!(list.push(1), Ok(()));
        let other = slow.other.lock().unwrap().take().expect("the waker has fired");
        assert!(other.join().expect("the list is not poisoned"), "it returned too early");
        assert_eq!(list.len(), 2);
    }
}
