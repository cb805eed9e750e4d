//! [`Stall`]: a time-out for what makes no progress.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

#[derive(Debug, Default)]
pub(super) struct Stall {
    time_out: Option<Duration>,
    /// Made when it is needed first: a writer that keeps up needs no timer.
    timer: Option<Pin<Box<Sleep>>>,
    is_running: bool,
}

impl Stall {
    pub(super) fn after(time: Duration) -> Self {
        Self { time_out: Some(time), timer: None, is_running: false }
    }

    /// An operation is pending. The time runs from the first call since there was progress.
    pub(super) fn begin(&mut self) {
        if self.is_running {
            return;
        }
        // A time that no clock can show is never over.
        let Some(deadline) = self.time_out.and_then(|time| Instant::now().checked_add(time)) else {
            return;
        };
        self.is_running = true;
        match &mut self.timer {
            Some(timer) => timer.as_mut().reset(deadline),
            None => self.timer = Some(Box::pin(sleep_until(deadline))),
        }
    }

    /// There was progress.
    pub(super) fn end(&mut self) {
        self.is_running = false;
    }

    /// Completes if the time is over.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.timer {
            Some(timer) if self.is_running => timer.as_mut().poll(cx),
            _ => Poll::Pending,
        }
    }
}
