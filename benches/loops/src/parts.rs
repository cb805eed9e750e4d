//! Parts of the scenarios: items, an input with a clock, sinks that count.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use cpu_time::ThreadTime;
use futures::{Sink, Stream};

use crate::alloc;
use crate::measure::Run;

/// An item of 16 bytes.
#[derive(Debug, Clone, Copy)]
pub struct Item {
    /// The key.
    pub key: u64,
    /// The number of the item.
    pub value: u64,
}

/// A clock that runs from the first item of the input to its end, so that attaching and closing a
/// million sinks is not counted. It counts processor time of this thread, so that other load on the
/// machine has little effect. Code that is timed with it never waits.
#[derive(Debug, Clone, Default)]
pub struct Clock(Rc<Cell<Reading>>);

#[derive(Debug, Clone, Copy, Default)]
struct Reading {
    start: Option<(ThreadTime, u64)>,
    stop: Option<(Duration, u64)>,
}

impl Clock {
    /// Starts the clock, unless it was started.
    #[cold]
    pub fn start(&self) {
        let Reading { start, stop } = self.0.get();
        let now = (ThreadTime::now(), alloc::allocations());
        self.0.set(Reading { start: start.or(Some(now)), stop });
    }

    /// Stops the clock, if it runs.
    #[cold]
    pub fn stop(&self) {
        if let Reading { start: Some((start, allocations)), stop: None } = self.0.get() {
            let stop = (start.elapsed(), alloc::allocations() - allocations);
            self.0.set(Reading { start: Some((start, allocations)), stop: Some(stop) });
        }
    }

    /// Returns `true` if the clock was stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.get().stop.is_some()
    }

    /// Returns the run that was timed.
    ///
    /// # Panics
    ///
    /// Panics if the clock was not stopped.
    #[must_use]
    pub fn run(&self, sent: u64, arrived: u64) -> Run {
        let (elapsed, allocations) = self.0.get().stop.expect("the input was read to its end");
        Run { allocations, ..Run::new(elapsed, sent, arrived) }
    }
}

/// A pseudo-random number generator with a fixed seed.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Default for Dice {
    fn default() -> Self {
        Self(1)
    }
}

impl Dice {
    /// Returns a number below `bound`, which must be below 2³¹.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) * bound) >> 31
    }
}

/// An input that is always ready, of items with random keys.
#[derive(Debug)]
pub struct Numbers {
    next: u64,
    /// The item before which the clock starts (0) or stops (`items`).
    stop: u64,
    items: u64,
    keys: u64,
    dice: Dice,
    clock: Clock,
}

impl Numbers {
    /// Creates an input of `items` items with keys below `keys`, which runs `clock`.
    #[must_use]
    pub fn new(items: u64, keys: u64, clock: &Clock) -> Self {
        Self { next: 0, stop: 0, items, keys, dice: Dice::default(), clock: clock.clone() }
    }

    #[cold]
    #[inline(never)]
    fn is_exhausted(&mut self) -> bool {
        if self.stop < self.items {
            self.clock.start();
            self.stop = self.items;
            return false;
        }
        self.clock.stop();
        true
    }
}

impl Iterator for Numbers {
    type Item = Item;

    #[inline]
    fn next(&mut self) -> Option<Item> {
        if self.next == self.stop && self.is_exhausted() {
            return None;
        }
        let value = self.next;
        self.next += 1;
        Some(Item { key: self.dice.below(self.keys), value })
    }
}

impl Stream for Numbers {
    type Item = Item;

    #[inline]
    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Item>> {
        Poll::Ready(self.next())
    }
}

/// The sum of the numbers of the items that have arrived at any sink.
#[derive(Debug, Clone, Default)]
pub struct Tally(Rc<Cell<u64>>);

impl Tally {
    /// Adds the number of an item.
    #[inline]
    pub fn add(&self, value: u64) {
        self.0.set(self.0.get().wrapping_add(value));
    }

    /// Returns `items` if the sum is that of the items 0 to `items`, else 0.
    #[must_use]
    pub fn arrived(&self, items: u64) -> u64 {
        self.copies_arrived(items, 1)
    }

    /// Returns the number of copies if each of `members` members has received each item, else 0.
    #[must_use]
    pub fn copies_arrived(&self, items: u64, members: u64) -> u64 {
        let sum = items * items.saturating_sub(1) / 2;
        if self.0.get() == members * sum { members * items } else { 0 }
    }
}

/// A sink that is always ready and adds up the numbers of its items.
#[derive(Debug, Clone)]
pub struct Count(pub Tally);

impl Sink<Item> for Count {
    type Error = ();

    #[inline]
    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn start_send(self: Pin<&mut Self>, item: Item) -> Result<(), ()> {
        self.0.add(item.value);
        Ok(())
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }
}
