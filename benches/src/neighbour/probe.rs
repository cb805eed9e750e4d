//! The input, and the delays of its quiet items.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::Stream;

use super::QUIET;
use crate::parts::Dice;

/// What the input and the readers know of a run. At most one quiet item is on its way.
#[derive(Debug)]
pub(super) struct Probe {
    /// The number of quiet items in the input.
    items: usize,
    /// When the latest quiet item was sent.
    sent: Mutex<Instant>,
    delays: Mutex<Vec<Duration>>,
    arrived: AtomicUsize,
    /// The busy items that the input has returned. Set when it ends.
    busy_sent: AtomicU64,
    busy_arrived: AtomicU64,
}

impl Probe {
    pub(super) fn new(items: usize) -> Self {
        Self {
            items,
            sent: Mutex::new(Instant::now()),
            delays: Mutex::default(),
            arrived: AtomicUsize::new(0),
            busy_sent: AtomicU64::new(0),
            busy_arrived: AtomicU64::new(0),
        }
    }

    /// The reader of the quiet key has an item.
    pub(super) fn arrive(&self) {
        let now = Instant::now();
        let sent = *self.sent.lock().expect("no thread panicked");
        self.delays.lock().expect("no thread panicked").push(now - sent);
        self.arrived.fetch_add(1, Ordering::Release);
    }

    /// A sink or a client has taken so many busy items.
    pub(super) fn busy_arrived(&self, items: u64) {
        self.busy_arrived.fetch_add(items, Ordering::Relaxed);
    }

    /// Returns the delays, and checks that each copy of each item has arrived.
    pub(super) fn finish(&self, copies: u64) -> Vec<Duration> {
        let sent = self.busy_sent.load(Ordering::Relaxed) * copies;
        assert_eq!(self.busy_arrived.load(Ordering::Relaxed), sent, "busy items are missing");
        let delays = std::mem::take(&mut *self.delays.lock().expect("no thread panicked"));
        assert_eq!(delays.len(), self.items, "quiet items are missing");
        delays
    }
}

/// An input that is always ready.
///
/// It returns a quiet item when the reader has had the last one for a random number of busy items,
/// and ends when the reader has them all.
#[derive(Debug)]
pub(super) struct Input<T> {
    make: fn(u64) -> T,
    probe: Arc<Probe>,
    keys: u64,
    next_key: u64,
    longest_pause: u64,
    /// The busy items before the next quiet one.
    pause: u64,
    sent: usize,
    busy_sent: u64,
    dice: Dice,
}

impl<T> Input<T> {
    pub(super) fn new(
        keys: u64,
        longest_pause: u64,
        probe: &Arc<Probe>,
        make: fn(u64) -> T,
    ) -> Self {
        Self {
            make,
            probe: Arc::clone(probe),
            keys,
            next_key: 0,
            longest_pause,
            pause: longest_pause,
            sent: 0,
            busy_sent: 0,
            dice: Dice::default(),
        }
    }

    fn next(&mut self) -> Option<T> {
        // The pause begins when the quiet item has arrived.
        if self.sent == self.probe.arrived.load(Ordering::Acquire) {
            if self.sent == self.probe.items {
                self.probe.busy_sent.store(self.busy_sent, Ordering::Relaxed);
                return None;
            }
            if self.pause == 0 {
                self.pause = self.dice.below(self.longest_pause);
                self.sent += 1;
                *self.probe.sent.lock().expect("no thread panicked") = Instant::now();
                return Some((self.make)(QUIET));
            }
            self.pause -= 1;
        }
        self.busy_sent += 1;
        self.next_key = if self.next_key == self.keys { 1 } else { self.next_key + 1 };
        Some((self.make)(QUIET + self.next_key))
    }
}

impl<T> Stream for Input<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<T>> {
        Poll::Ready(self.next())
    }
}
