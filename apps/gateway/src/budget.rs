//! The limit on the bytes of messages that wait for clients, over all clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;

/// A client may use one eighth of the free bytes. A single client that never reads stops at a ninth
/// of the total, and several at equal parts that leave room for others: the rule by which switches
/// share a buffer between ports ("dynamic thresholds").
const PART: usize = 8;

/// What a client may always use: so many bytes, or less if the total is small. Clients that began to
/// wait when much was free may have used up the rest, and one that reads would lose all but one message
/// of a burst. It is as much as the longest message by default, which a client may always have, too.
const LITTLE: usize = 64 << 10;

/// The total is at least this many times what a client may always use, so that with a small total, too,
/// hundreds of clients may have it at a time. With 64 KiB, that is from 32 MiB on.
const LITTLES: usize = 512;

pub struct Budget {
    most: usize,
    used: AtomicUsize,
    /// Copies of messages that wait for clients.
    copies: AtomicUsize,
    waiting: AtomicWaker,
}

/// Bytes that are in use until this is dropped.
pub struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub fn new(most: usize) -> Self {
        Self {
            most,
            used: AtomicUsize::new(0),
            copies: AtomicUsize::new(0),
            waiting: AtomicWaker::new(),
        }
    }

    /// A copy of a message waits for a client.
    pub fn add_copy(&self) {
        self.copies.fetch_add(1, Relaxed);
    }

    /// Copies wait for a client no more.
    pub fn remove_copies(&self, copies: usize) {
        self.copies.fetch_sub(copies, Relaxed);
    }

    /// Returns how many copies wait for all clients.
    pub fn copies(&self) -> usize {
        self.copies.load(Relaxed)
    }

    pub fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        self.used.fetch_add(bytes, Relaxed);
        Charge { budget: Arc::clone(self), bytes }
    }

    /// Returns how many bytes one client may have waiting.
    pub fn part(&self) -> usize {
        let of_free = self.most.saturating_sub(self.used.load(Relaxed)) / PART;
        of_free.max(LITTLE.min(self.most / LITTLES))
    }

    /// Waits until bytes are free. Only one task may wait.
    pub fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let has_room = || self.used.load(Relaxed) < self.most;
        if has_room() {
            return Poll::Ready(());
        }
        // Register before the second check: pairs with the drop of a charge, which subtracts before
        // it wakes.
        self.waiting.register(cx.waker());
        if has_room() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.budget.used.fetch_sub(self.bytes, Relaxed) >= self.budget.most {
            self.budget.waiting.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::poll_fn;

    use super::*;

    #[test]
    fn each_client_gets_a_part_of_the_free_bytes_and_the_input_waits_without_room() {
        let budget = Arc::new(Budget::new(800));
        let room = || poll_fn(|cx| budget.poll_room(cx)).now_or_never();
        assert_eq!(budget.part(), 100);
        let first = budget.charge(400);
        assert_eq!((budget.part(), room()), (50, Some(())));
        let second = budget.charge(500);
        assert_eq!((budget.part(), room()), (1, None));
        drop(first);
        assert_eq!((budget.part(), room()), (37, Some(())));
        drop(second);
        assert_eq!(budget.part(), 100);
    }

    /// They began when much was free.
    #[test]
    fn clients_that_do_not_read_leave_some_bytes_to_each_other_client() {
        let budget = Arc::new(Budget::new(256 << 20));
        let mut charges = Vec::new();
        while budget.part() > LITTLE {
            charges.push(budget.charge(budget.part()));
        }
        charges.push(budget.charge(1 << 20));
        assert_eq!(budget.part(), LITTLE);
        assert!(charges.len() > 40);
    }

    #[tokio::test]
    async fn a_task_that_waits_for_room_is_woken() {
        let budget = Arc::new(Budget::new(10));
        let charge = budget.charge(10);
        let room = poll_fn(|cx| budget.poll_room(cx));
        futures::join!(room, async { drop(charge) });
    }
}
