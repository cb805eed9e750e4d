//! [`Turns`]: how many workers may handle an item at a time, and who is next.
//!
//! A worker that wants an item needs a turn. It keeps its turn until it wants the next item, waits
//! for one, or ends; if others wait for a turn, it gets in line behind them. So of n workers that
//! always have items each gets one item of n.
//!
//! A place in line is a number, and the least number is next. A worker that gives up waiting, for
//! example because another branch of its `select!` was ready, leaves the line, since it could not
//! use a turn; it keeps its number, so it does not lose its place.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

#[derive(Debug)]
pub(super) struct Turns {
    /// How many wait in line. Written under the lock. A worker that reads an old value keeps its
    /// turn for one item more, or takes the lock for nothing.
    waiting: AtomicUsize,
    line: Mutex<Line>,
}

#[derive(Debug)]
struct Line {
    /// Turns that are not taken. If there are any, no worker waits in line.
    free: usize,
    next_number: u64,
    waiting: BTreeMap<u64, Waker>,
}

impl Turns {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        let line = Line { free: limit.max(1), next_number: 0, waiting: BTreeMap::new() };
        Arc::new(Self { waiting: AtomicUsize::new(0), line: Mutex::new(line) })
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_waiting(&self, line: &Line) {
        self.waiting.store(line.waiting.len(), Relaxed);
    }
}

impl Line {
    fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Gives a turn to the first in line, who is to be woken, or keeps it.
    #[must_use = "a waker that is taken must be woken"]
    fn give(&mut self) -> Option<Waker> {
        let first = self.waiting.pop_first();
        if first.is_none() {
            self.free += 1;
        }
        first.map(|(_, waker)| waker)
    }
}

/// The turn of a worker, or its place in line. Dropping it gives both up.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It wants none.
    Out,
    /// It is in line with this number. If the line does not have it, it has got a turn.
    InLine(u64),
    /// It has left the line, and may come back with this number.
    Away(u64),
    /// It has a turn, and no item yet.
    Granted,
    /// It has an item.
    Used,
}

impl Turn {
    pub(super) fn new(turns: &Arc<Turns>) -> Self {
        Self { turns: Arc::clone(turns), stage: Stage::Out }
    }

    /// Waits for a turn for the next item.
    #[inline]
    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        match self.stage {
            Stage::Granted => Poll::Ready(()),
            Stage::Used if self.turns.waiting.load(Relaxed) == 0 => {
                self.stage = Stage::Granted;
                Poll::Ready(())
            }
            _ => self.poll_line(cx),
        }
    }

    fn poll_line(&mut self, cx: &Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let mut line = self.turns.lock();
        let (number, next) = match self.stage {
            Stage::InLine(number) if line.waiting.contains_key(&number) => (Some(number), None),
            Stage::Granted | Stage::InLine(_) => (None, None),
            Stage::Used if line.waiting.is_empty() => (None, None),
            Stage::Used => (Some(line.take_number()), line.give()),
            Stage::Out | Stage::Away(_) if line.free > 0 => {
                line.free -= 1;
                (None, None)
            }
            Stage::Out => (Some(line.take_number()), None),
            Stage::Away(number) => (Some(number), None),
        };
        let replaced = number.and_then(|number| line.waiting.insert(number, waker));
        self.turns.note_waiting(&line);
        drop(line);
        drop(replaced);
        next.into_iter().for_each(Waker::wake);
        self.stage = number.map_or(Stage::Granted, Stage::InLine);
        if number.is_none() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Takes a turn without waiting, or goes on with the one that it has. Returns `false` if it has
    /// none.
    pub(super) fn try_take(&mut self) -> bool {
        let mut line = self.turns.lock();
        let has_turn = match self.stage {
            Stage::Granted | Stage::Used => true,
            Stage::InLine(number) => !line.waiting.contains_key(&number),
            Stage::Out | Stage::Away(_) if line.free > 0 => {
                line.free -= 1;
                true
            }
            Stage::Out | Stage::Away(_) => false,
        };
        drop(line);
        if has_turn {
            self.stage = Stage::Granted;
        }
        has_turn
    }

    /// The worker has an item now.
    #[inline]
    pub(super) fn begin_item(&mut self) {
        self.stage = Stage::Used;
    }

    /// The worker does not wait for an item any more, and has not got one. It keeps its place.
    pub(super) fn step_aside(&mut self) {
        let Stage::InLine(number) = self.stage else { return };
        let next = self.leave(number);
        self.stage = Stage::Away(number);
        next.into_iter().for_each(Waker::wake);
    }

    /// The worker has no item, and wants no turn.
    pub(super) fn release(&mut self) {
        let next = match std::mem::replace(&mut self.stage, Stage::Out) {
            Stage::Out | Stage::Away(_) => None,
            Stage::InLine(number) => self.leave(number),
            Stage::Granted | Stage::Used => {
                let mut line = self.turns.lock();
                let next = line.give();
                self.turns.note_waiting(&line);
                next
            }
        };
        next.into_iter().for_each(Waker::wake);
    }

    /// Leaves the line. If it has got a turn by now, the next one gets it, and is to be woken.
    #[must_use = "a waker that is taken must be woken"]
    fn leave(&self, number: u64) -> Option<Waker> {
        let mut line = self.turns.lock();
        let waker = line.waiting.remove(&number);
        let next = if waker.is_none() { line.give() } else { None };
        self.turns.note_waiting(&line);
        drop(line);
        drop(waker);
        next
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.release();
    }
}
