//! [`Writers`]: the handle with which writers join.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::io::AsyncWrite;

use super::Writer;
use super::seat::Seat;
use super::shared::{Shared, SinkEnd};

/// A handle with which writers join a log. [`writers`](super::writers) creates it.
///
/// Clones are handles to the same log. The sink fails when there is neither a handle nor a writer.
pub struct Writers {
    shared: Arc<Shared>,
}

impl Writers {
    /// The handle that the log was created with.
    pub(super) fn first(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        shared.lock().handles += 1;
        Self { shared: Arc::clone(shared) }
    }

    /// Adds a writer, which begins with the next item that is sent. If others that were sent before
    /// are not flushed yet, it may begin with these.
    ///
    /// The writer is a future, and writes while it is polled: spawn it, or poll it together with
    /// what reads from the same socket. Set `TCP_NODELAY` on sockets, because items that come
    /// together are written together anyway.
    ///
    /// If the sink has ended, the writer ends when it is polled first.
    pub fn join<W: AsyncWrite>(&self, io: W) -> Writer<W> {
        Writer::new(Seat::new(&self.shared), io)
    }

    /// Returns the number of writers.
    pub fn len(&self) -> usize {
        self.shared.lock().log.writers()
    }

    /// Returns `true` if an item could not be encoded: a writer that joins ends at once.
    pub(super) fn have_failed(&self) -> bool {
        self.shared.lock().end == Some(SinkEnd::Unencoded)
    }

    /// Returns `true` if there is no writer.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many items all writers together have lost, also those that have left. A writer
    /// that does not look at the log has not counted its last losses.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Relaxed)
    }
}

impl Clone for Writers {
    fn clone(&self) -> Self {
        Self::new(&self.shared)
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.handles -= 1;
        let sink = state.wake_sink();
        drop(state);
        if let Some(sink) = sink {
            sink.wake();
        }
    }
}

impl fmt::Debug for Writers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writers")
            .field("writers", &self.len())
            .field("lost", &self.lost())
            .finish_non_exhaustive()
    }
}
