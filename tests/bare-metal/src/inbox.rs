//! A queue of fixed size from interrupts to tasks, where it is a stream.

use core::cell::RefCell;
use core::pin::Pin;
use core::task::{Context, Poll};

use atomic_waker::AtomicWaker;
use critical_section::Mutex;
use futures_core::Stream;
use heapless::Deque;

pub struct Inbox<T, const N: usize> {
    items: Mutex<RefCell<Deque<T, N>>>,
    reader: AtomicWaker,
}

impl<T, const N: usize> Inbox<T, N> {
    pub const fn new() -> Self {
        Self { items: Mutex::new(RefCell::new(Deque::new())), reader: AtomicWaker::new() }
    }

    /// Returns the item as an error if the queue is full.
    pub fn push(&self, item: T) -> Result<(), T> {
        critical_section::with(|cs| self.items.borrow_ref_mut(cs).push_back(item))?;
        self.wake();
        Ok(())
    }

    pub fn wake(&self) {
        self.reader.wake();
    }

    fn pop(&self) -> Option<T> {
        critical_section::with(|cs| self.items.borrow_ref_mut(cs).pop_front())
    }

    /// Removes all items.
    pub fn drain(&self, each: impl FnMut(T)) {
        core::iter::from_fn(|| self.pop()).for_each(each);
    }
}

/// Never ends.
impl<T, const N: usize> Stream for &Inbox<T, N> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let item = self.pop().or_else(|| {
            self.reader.register(cx.waker());
            self.pop()
        });
        item.map_or(Poll::Pending, |item| Poll::Ready(Some(item)))
    }
}
