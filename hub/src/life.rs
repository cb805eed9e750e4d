//! [`Life`]: how far the life of a hub has come, for all that belong to it.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize};

use crate::read::End;

/// Phases only ever advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Phase {
    Open,
    /// No more items are accepted. What was accepted is routed.
    Closing,
    /// What waits is discarded.
    Aborting,
    /// All sinks were closed.
    Finished,
    /// The task of the hub is gone before that: aborted, panicked, or shut down with its runtime.
    Gone,
}

const PHASES: [Phase; 5] =
    [Phase::Open, Phase::Closing, Phase::Aborting, Phase::Finished, Phase::Gone];

#[derive(Debug)]
pub(crate) struct Life {
    phase: AtomicU8,
    pub(crate) counts: Counts,
    /// The number of the item that the task has read last, counted from 1. No other item is read
    /// before each topic has taken this one, so a topic that takes an item knows its number. Written
    /// by the task only.
    pub(crate) item: AtomicU64,
    /// How many sinks have an item for which their inbox has no room, under `Wait`. The task reads no
    /// further item until there are none. Written by the task only.
    pub(crate) waiting_sinks: AtomicUsize,
    /// An attachment has a time-out, so the demux needs ticks.
    pub(crate) needs_ticks: AtomicBool,
}

impl Life {
    pub(crate) fn new() -> Self {
        Self {
            phase: AtomicU8::new(Phase::Open as u8),
            counts: Counts::default(),
            item: AtomicU64::new(0),
            waiting_sinks: AtomicUsize::new(0),
            needs_ticks: AtomicBool::new(false),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        PHASES[usize::from(self.phase.load(Acquire))]
    }

    /// Goes on to a phase, unless a later one has begun.
    pub(crate) fn advance(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, AcqRel);
    }

    /// Returns `true` if an item waits for room in its inbox.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting_sinks.load(Relaxed) > 0
    }

    /// Why a subscription ends whose sink is dropped without being closed.
    pub(crate) fn end_of_dropped_sink(&self) -> End {
        match self.phase() {
            Phase::Open | Phase::Closing => End::Stalled,
            Phase::Aborting | Phase::Gone => End::Aborted,
            Phase::Finished => End::Closed,
        }
    }
}

/// What the sinks of subscriptions count beside the demux, for which a topic is a single attachment
/// that gets an item once.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// How many items subscribers have lost because they were too slow.
    pub(crate) lost: Arc<AtomicU64>,
    /// How many readers have got an item of a topic, apart from one for each item. Modulo 2^64, as
    /// there may be fewer.
    pub(crate) copies: AtomicU64,
    /// How many subscribers have joined topics that were there already.
    pub(crate) joined: AtomicU64,
    /// How many subscribers topics have, apart from one for each topic.
    pub(crate) members: AtomicI64,
}

impl Counts {
    /// An item was appended to a topic with so many readers, some of which have lost one by that.
    pub(crate) fn deliver(&self, readers: usize, losing: usize) {
        if readers > 1 {
            self.copies.fetch_add(readers as u64 - 1, Relaxed);
        }
        if losing > 0 {
            self.lost.fetch_add(losing as u64, Relaxed);
        }
    }

    /// A subscriber was sent an item that it has got from a topic.
    pub(crate) fn take_back_copy(&self) {
        self.copies.fetch_sub(1, Relaxed);
    }
}
