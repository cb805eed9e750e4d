//! [`FlushClock`]: the time that a demux counts while flushes wait.

use std::time::Duration;

use tokio::time::Instant;

/// Measures the time between the polls of a demux, so that on a busy runtime no flush waits long.
/// The clock is read only while a flush waits: a reading takes some tens of nanoseconds, and with
/// one in each poll, a round trip through a hub took 6 % more processor time.
#[derive(Debug, Default)]
pub(crate) struct FlushClock {
    /// When it was read last, while a flush waits.
    last: Option<Instant>,
}

impl FlushClock {
    /// The demux is about to be polled. Calls `elapse` if time is to be counted.
    pub(crate) fn begin_poll(&mut self, elapse: impl FnOnce(Duration)) {
        if let Some(last) = &mut self.last {
            let now = Instant::now();
            elapse(now - *last);
            *last = now;
        }
    }

    /// The demux was polled, and a flush waits or not.
    pub(crate) fn end_poll(&mut self, has_unflushed: bool) {
        if !has_unflushed {
            self.last = None;
        } else if self.last.is_none() {
            self.last = Some(Instant::now());
        }
    }
}
