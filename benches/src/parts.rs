//! What the scenarios are made of: items, an input that carries a clock, sinks that count.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use cpu_time::ThreadTime;
use futures::{Sink, Stream};
use tokio::sync::mpsc;

use crate::alloc;
use crate::measure::Run;

/// An item of 16 bytes.
#[derive(Debug, Clone, Copy)]
pub struct Item {
    /// Where it goes.
    pub key: u64,
    /// Its number.
    pub value: u64,
}

/// Runs from the first item that the input gives until it ends, so that attaching and closing a
/// million sinks is not in the time of a few items. It counts only what this thread ran, so that
/// the machine may be busy: nothing that is timed with it waits for anything.
#[derive(Debug, Clone, Default)]
pub struct Clock(Rc<Cell<Reading>>);

#[derive(Debug, Clone, Copy, Default)]
struct Reading {
    start: Option<(ThreadTime, u64)>,
    stop: Option<(Duration, u64)>,
}

impl Clock {
    /// Starts, unless it runs.
    #[cold]
    pub fn start(&self) {
        let Reading { start, stop } = self.0.get();
        let now = (ThreadTime::now(), alloc::allocations());
        self.0.set(Reading { start: start.or(Some(now)), stop });
    }

    /// Stops, if it runs.
    #[cold]
    pub fn stop(&self) {
        if let Reading { start: Some((start, allocations)), stop: None } = self.0.get() {
            let stop = (start.elapsed(), alloc::allocations() - allocations);
            self.0.set(Reading { start: Some((start, allocations)), stop: Some(stop) });
        }
    }

    /// Has it stopped?
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.get().stop.is_some()
    }

    /// What it showed when it stopped.
    ///
    /// # Panics
    ///
    /// If it did not.
    #[must_use]
    pub fn run(&self, sent: u64, arrived: u64) -> Run {
        let (elapsed, allocations) = self.0.get().stop.expect("the input was read to its end");
        Run { elapsed, sent, arrived, allocations }
    }
}

/// Numbers that look random and are the same in every run.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Default for Dice {
    fn default() -> Self {
        Self(1)
    }
}

impl Dice {
    /// A number below `bound`, which must be below 2³¹.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) * bound) >> 31
    }
}

/// An input that is always ready: so many items, each with one of so many keys.
#[derive(Debug)]
pub struct Numbers {
    next: u64,
    /// Where something happens: at 0 the clock starts, at `items` it stops.
    stop: u64,
    items: u64,
    keys: u64,
    dice: Dice,
    clock: Clock,
}

impl Numbers {
    /// That input, with its clock.
    #[must_use]
    pub fn new(items: u64, keys: u64, clock: &Clock) -> Self {
        Self { next: 0, stop: 0, items, keys, dice: Dice::default(), clock: clock.clone() }
    }

    #[cold]
    #[inline(never)]
    fn is_over(&mut self) -> bool {
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
        if self.next == self.stop && self.is_over() {
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

/// What has arrived, wherever.
#[derive(Debug, Clone, Default)]
pub struct Tally(Rc<Cell<u64>>);

impl Tally {
    /// Adds the number of an item.
    #[inline]
    pub fn add(&self, value: u64) {
        self.0.set(self.0.get().wrapping_add(value));
    }

    /// How many of the items 0 to `items` arrived, if their sum is what it should be, else none.
    #[must_use]
    pub fn arrived(&self, items: u64) -> u64 {
        self.copies_arrived(items, 1)
    }

    /// The same for items of which each of `members` is to get a copy.
    #[must_use]
    pub fn copies_arrived(&self, items: u64, members: u64) -> u64 {
        let sum = items * items.saturating_sub(1) / 2;
        if self.0.get() == members * sum { members * items } else { 0 }
    }
}

/// A sink that is always ready, and adds up the numbers of its items.
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

/// A tokio channel's receiver as a stream.
#[derive(Debug)]
pub struct Receiving<T>(pub mpsc::Receiver<T>);

impl<T> Stream for Receiving<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(cx)
    }
}
