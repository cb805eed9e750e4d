//! [`Life`]: how far the life of a hub has come, for all that belong to it.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::inbox::End;

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
    /// How many items the inboxes of subscribers dropped because they were full.
    pub(crate) lost: Arc<AtomicU64>,
    /// An attachment has a time-out, so the demux needs ticks.
    pub(crate) needs_ticks: AtomicBool,
}

impl Life {
    pub(crate) fn new() -> Self {
        Self {
            phase: AtomicU8::new(Phase::Open as u8),
            lost: Arc::default(),
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

    /// Why a subscription ends whose sink is dropped without being closed.
    pub(crate) fn end_of_dropped_sink(&self) -> End {
        match self.phase() {
            Phase::Open | Phase::Closing => End::Stalled,
            Phase::Aborting | Phase::Gone => End::Aborted,
            Phase::Finished => End::Closed,
        }
    }
}
