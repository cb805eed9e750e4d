//! [`Receive`]: how what has come is read, for the readers of inboxes, topics and subscriptions; and
//! what they are told: [`Lagged`] and [`End`].

use std::error::Error;
use std::fmt;
use std::task::{Context, Poll, ready};

use tokio::task::coop::poll_proceed;

/// This number of items is missing here: they were dropped because the reader was too slow.
///
/// A reader gets it instead of the items. What it gets next came after the missing items, what it
/// got before came before them. When the inbox has ended as [`Closed`](End::Closed) and everything
/// was read, the number of items that were received and the numbers of all gaps add up to the
/// number of items that were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lagged(pub u64);

impl fmt::Display for Lagged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(lost) = self;
        write!(f, "{lost} items were dropped because the reader was too slow")
    }
}

impl Error for Lagged {}

/// Why an inbox, a topic or a subscription has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum End {
    /// The last sink was closed: the input of the demux ended, the hub was shut down, or the key
    /// was detached. Also if the reader has called [`close`](crate::Inbox::close).
    Closed,
    /// The reader was too slow under [`Evict`](crate::Overflow::Evict).
    Overflowed,
    /// The last sink was dropped without being closed, so items may be missing: it was evicted, or
    /// the demux was dropped, aborted or has panicked.
    Aborted,
    /// An item waited for longer than the [time-out](crate::Terms::stall_timeout) of a
    /// subscription.
    Stalled,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Closed => "closed",
            Self::Overflowed => "overflowed",
            Self::Aborted => "aborted",
            Self::Stalled => "stalled",
        })
    }
}

/// A reader that takes all that has come from those that send, and returns it one by one.
pub(crate) trait Receive {
    type Item;

    /// Returns `true` if something was taken and not returned.
    fn has_taken(&self) -> bool;

    /// Returns the next item that was taken, if nothing is to be done for it. Inlined into the loop
    /// of a reader.
    fn pop_ready(&mut self) -> Option<Self::Item>;

    /// Returns the next of what was taken: an item, or what is missing before it.
    fn next_taken(&mut self) -> Option<Result<Self::Item, Lagged>>;

    /// Takes what has come, if there is something. Called when all that was taken is returned.
    fn take(&mut self);

    /// Takes what has come. Completes when there is something, or nothing will ever be. Called when
    /// all that was taken is returned.
    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// The same, as one operation of tokio's cooperative budget. If the budget is spent, the next
    /// call returns what was taken.
    fn poll_take_coop(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.poll_take(cx));
        ready!(poll_proceed(cx)).made_progress();
        Poll::Ready(())
    }

    fn try_recv(&mut self) -> Option<Result<Self::Item, Lagged>> {
        if !self.has_taken() {
            self.take();
        }
        self.next_taken()
    }

    #[inline]
    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Self::Item, Lagged>>> {
        match self.pop_ready() {
            Some(item) => Poll::Ready(Some(Ok(item))),
            None => self.poll_next_taken(cx),
        }
    }

    #[inline(never)]
    fn poll_next_taken(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Self::Item, Lagged>>> {
        if !self.has_taken() {
            ready!(self.poll_take_coop(cx));
        }
        Poll::Ready(self.next_taken())
    }

    fn poll_recv_many(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut Vec<Result<Self::Item, Lagged>>,
        limit: usize,
    ) -> Poll<usize> {
        if !self.has_taken() && limit > 0 {
            ready!(self.poll_take_coop(cx));
        }
        let before = buffer.len();
        buffer.extend(std::iter::from_fn(|| self.next_taken()).take(limit));
        Poll::Ready(buffer.len() - before)
    }
}
