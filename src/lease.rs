//! A [`Lease`]: attachments that last as long as the lease does.
//!
//! One [`Claim`] stands for one attachment. The attachment owns it, from `Attach` until its slot is
//! removed; any number of leases know it, weakly: a claim whose attachment is gone cannot be upgraded, and
//! that is how a lease knows what it may forget.
//!
//! A lease can end in any thread, before the attachment has a slot, while it has one, or after. The slot
//! registers its waker first and reads the request second, the lease makes the request first and wakes
//! second, so one of them sees the other (`AtomicWaker` has the orderings).
//!
//! When two leases of one attachment end at the same time in two threads, only one of them wakes the
//! slot. The other may return before that has happened, and an order sent right after it may come first.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt;
use core::mem;
use core::sync::atomic::{AtomicU8, Ordering};
use core::task::Waker;

use atomic_waker::AtomicWaker;

/// What a lease wants of its attachments. The order is that of strength: the strongest request counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum LeaseRequest {
    Stay = 0,
    Detach = 1,
    Evict = 2,
}

/// One attachment, as its leases know it.
#[derive(Debug)]
pub(crate) struct Claim {
    request: AtomicU8,
    /// One waker for each request that changes something, as firing one uses it up.
    detach: AtomicWaker,
    evict: AtomicWaker,
}

impl Claim {
    fn new() -> Self {
        let request = AtomicU8::new(LeaseRequest::Stay as u8);
        Self { request, detach: AtomicWaker::new(), evict: AtomicWaker::new() }
    }

    /// What is requested now.
    pub(crate) fn request(&self) -> LeaseRequest {
        // Acquire pairs with the Release in `make`, for what its thread did before.
        match self.request.load(Ordering::Acquire) {
            0 => LeaseRequest::Stay,
            1 => LeaseRequest::Detach,
            _ => LeaseRequest::Evict,
        }
    }

    /// Sets the waker that a later request fires. Read the request after this, not before.
    pub(crate) fn register(&self, waker: &Waker) {
        self.detach.register(waker);
        self.evict.register(waker);
    }

    fn detach(&self) {
        self.make(LeaseRequest::Detach, &self.detach);
    }

    fn evict(&self) {
        self.make(LeaseRequest::Evict, &self.evict);
    }

    fn make(&self, request: LeaseRequest, waker: &AtomicWaker) {
        // Release pairs with the Acquire in `request`.
        self.request.fetch_max(request as u8, Ordering::Release);
        waker.wake();
    }
}

/// Holds attachments; dropping it evicts them.
///
/// A lease speaks of *attachments*, not of keys: the late clean-up of an old consumer never removes
/// its successor under the same key. Give it to whatever the sinks belong to (a client's connection,
/// a subscription handle), and when that is dropped its attachments go with it, promptly, with no
/// item needed to find out.
///
/// One lease may hold any number of attachments (all the topics of a client), and forgets those that
/// are gone; an attachment may be held by several leases, and then the strongest wish wins: evict
/// over detach over stay. It works from any thread, before the order was applied (the attachment
/// then never takes its key), and after the demux is gone (nothing happens).
///
/// Each method that ends a lease wakes the task that runs the demux; the hooks and the sink's drop
/// run there, not in the thread that dropped the lease.
///
/// # Reconnecting
///
/// The end of a lease takes effect before any order or item that is read after it, even if the order was
/// sent before the lease ended. So a client that disconnects and comes back under its key can do either:
///
/// ```text
/// drop(old_lease);  orders.send(attach)     the old attachment is evicted, what was queued for it is
///                                           discarded; the new one starts with the next item
/// orders.send(attach);  … attached …        the new attachment replaces the old one and takes over its
/// drop(old_lease);                          queue; the old lease then has nothing left to end
/// ```
///
/// For the second, keep the old lease until [`Hooks::attached`](crate::Hooks::attached) was called for
/// the new attachment. With [`Attach::keep_existing`](crate::Attach::keep_existing) only the first lets
/// the new attachment in.
///
/// # Examples
///
/// ```
/// use futures::{SinkExt, StreamExt, channel::mpsc, executor::block_on, future};
/// use stream_demux::{Attach, DemuxStreamExt, Lease};
///
/// let (items, input) = mpsc::unbounded::<u32>();
/// let (orders, orders_in) = mpsc::unbounded();
/// let (sink, received) = mpsc::unbounded();
///
/// let mut lease = Lease::new();
/// orders.unbounded_send(Attach::new(7, sink).leased(&mut lease)).unwrap();
/// let demux = input.demux_by(|&n| n, orders_in);
///
/// let client = async move {
///     items.unbounded_send(7).unwrap();
///     let got = received.take(1).collect::<Vec<_>>().await;
///     drop(lease); // the client is gone
///     drop(items); // and so, here, is the input
///     got
/// };
/// let (totals, got) = block_on(future::join(demux, client));
/// assert_eq!(got, [7]);
/// assert_eq!((totals.delivered, totals.detached), (1, 1));
/// ```
#[derive(Default)]
#[must_use = "dropping a lease evicts what it holds"]
pub struct Lease {
    claims: Vec<Weak<Claim>>,
}

impl Lease {
    /// A lease that holds nothing yet; see [`Attach::leased`](crate::Attach::leased).
    pub const fn new() -> Self {
        Self { claims: Vec::new() }
    }

    /// Returns the number of attachments that the lease holds and that have not ended. Those that were
    /// not applied yet count.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::sink;
    /// use stream_demux::{Attach, Lease};
    ///
    /// let mut lease = Lease::new();
    /// let attach = Attach::new("key", sink::drain::<u32>()).leased(&mut lease);
    /// assert_eq!(lease.len(), 1);
    /// drop(attach);
    /// assert!(lease.is_empty());
    /// ```
    pub fn len(&self) -> usize {
        self.claims.iter().filter(|claim| claim.strong_count() > 0).count()
    }

    /// Returns `true` if the lease holds no attachment that has not ended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the lease gracefully: each attachment gets no new items, is sent what is queued for it,
    /// and is closed, as by [`Order::Detach`](crate::Order::Detach).
    pub fn detach(mut self) {
        self.end(Claim::detach);
    }

    /// Ends the lease and lets its attachments stay, as far as this lease goes.
    pub fn disarm(mut self) {
        self.claims = Vec::new();
    }

    /// Holds one more attachment. `claim` is that attachment's own place for it.
    pub(crate) fn hold(&mut self, claim: &mut Option<Arc<Claim>>) {
        let claim = claim.get_or_insert_with(|| Arc::new(Claim::new()));
        self.forget_gone();
        self.claims.push(Arc::downgrade(claim));
    }

    /// Makes room by forgetting what is gone, when there is no room. Reserves as many again as are
    /// left, so that a lease near its capacity does not look through all of it for each addition.
    fn forget_gone(&mut self) {
        if self.claims.len() == self.claims.capacity() {
            self.claims.retain(|claim| claim.strong_count() > 0);
            self.claims.reserve(self.claims.len().max(4));
            self.claims.shrink_to(self.claims.len().saturating_mul(2).max(4));
        }
    }

    fn end(&mut self, request: fn(&Claim)) {
        for claim in mem::take(&mut self.claims) {
            if let Some(claim) = claim.upgrade() {
                request(&claim);
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.end(Claim::evict);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("held", &self.len()).finish()
    }
}
