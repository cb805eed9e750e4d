//! [`Lease`]: attachments that last as long as the lease does.
//!
//! One [`Claim`] stands for one attachment. The attachment owns it, from `Attach` until its slot
//! is removed. Any number of leases refer to it weakly: if a claim cannot be upgraded, its
//! attachment is gone and the lease may forget it.
//!
//! A lease can end in any thread, before the attachment has a slot, while it has one, or after.
//! The slot registers its waker first and reads the request second, the lease makes the request
//! first and wakes second, so one of them sees the other (`AtomicWaker` has the orderings).
//!
//! When two leases of one attachment end at the same time in two threads, only one of them wakes
//! the slot. The other may return before that has happened, and an order sent right after it may
//! come first.

use alloc::sync::{Arc, Weak};
use alloc::vec::{self, Vec};
use core::fmt;
use core::mem;
use core::sync::atomic::{AtomicU8, Ordering};
use core::task::Waker;

use atomic_waker::AtomicWaker;

/// What a lease requests of its attachments, from the weakest to the strongest.
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

    /// The strongest request so far.
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

/// Holds attachments and evicts them when it is dropped.
///
/// Store the lease in the value that the sinks belong to, for example a client's connection or a
/// subscription handle. When that value is dropped, its attachments end promptly, even if no
/// further item with their keys arrives.
///
/// A lease holds *attachments*, not keys: the late clean-up of an old consumer never removes its
/// successor under the same key. One lease may hold any number of attachments, for example all
/// topics of a client, and forgets those that have ended. An attachment may have several leases;
/// the strongest request wins: evict, then detach, then stay.
///
/// A lease may end in any thread. If it ends before the order is applied, the attachment never
/// takes its key. If it ends after the demux is gone, nothing happens. Ending a lease wakes the
/// task that runs the demux. The hooks are called and the sink is dropped in that task, not in the
/// thread that ended the lease.
///
/// If two leases of one attachment end at the same time in two threads, an order that one of these
/// threads sends right afterwards may still be applied first.
///
/// # Reconnecting
///
/// The end of a lease takes effect before any order or item that is read after it, even if the
/// order was sent before the lease ended. A client that reconnects under its key has two choices:
///
/// * **Drop the old lease, then send the new order.** The old attachment is evicted, the items
///   that wait for it are discarded, and the new attachment starts with the next item.
/// * **Send the new order, then drop the old lease** after
///   [`Hooks::attached`](crate::Hooks::attached) was called for the new attachment. The new
///   attachment replaces the old one and takes over its queue. The old lease has nothing left to
///   end. This does not work with [`Attach::keep_existing`](crate::Attach::keep_existing), which
///   refuses the new attachment while the old one has the key.
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
///     drop(lease); // the client disconnects
///     drop(items); // the input ends
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
    /// Creates a lease that holds no attachments.
    ///
    /// [`Attach::leased`](crate::Attach::leased) adds an attachment.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::sink;
    /// use stream_demux::{Attach, Lease};
    ///
    /// let mut lease = Lease::new();
    /// let topics = ["news", "weather"].map(|topic| {
    ///     Attach::new(topic, sink::drain::<u32>()).leased(&mut lease)
    /// });
    /// assert_eq!(format!("{lease:?}"), "Lease { held: 2 }");
    /// # drop(topics);
    /// ```
    pub const fn new() -> Self {
        Self { claims: Vec::new() }
    }

    /// Returns the number of attachments that the lease holds and that have not ended. Those whose
    /// orders were not applied yet count, too.
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

    /// Returns `true` if all attachments of the lease have ended, or it has none.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{executor::block_on, sink, stream};
    /// use stream_demux::{Attach, DemuxStreamExt, Lease};
    ///
    /// let mut lease = Lease::new();
    /// let attach = Attach::new("key", sink::drain::<u32>()).leased(&mut lease);
    /// assert!(!lease.is_empty());
    ///
    /// block_on(stream::empty().demux_by(|_| "key", stream::iter([attach])));
    /// assert!(lease.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the lease and detaches its attachments gracefully.
    ///
    /// As with [`Order::Detach`](crate::Order::Detach), each attachment gets no new items, is sent
    /// the items that wait for it, and is closed.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, channel::mpsc, sink};
    /// use stream_demux::{Attach, DemuxStreamExt, Lease};
    ///
    /// let (items, input) = mpsc::unbounded();
    /// let (orders, orders_in) = mpsc::unbounded();
    /// let mut demux = input.demux_by(|&n| n, orders_in);
    ///
    /// let mut lease = Lease::new();
    /// orders.unbounded_send(Attach::new(7, sink::drain()).leased(&mut lease)).unwrap();
    /// items.unbounded_send(7).unwrap();
    /// assert!((&mut demux).now_or_never().is_none());
    ///
    /// lease.detach();
    /// items.unbounded_send(7).unwrap();
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert_eq!((demux.totals().delivered, demux.totals().unmatched), (1, 1));
    /// ```
    pub fn detach(mut self) {
        self.end(Claim::detach);
    }

    /// Ends the lease without ending its attachments.
    ///
    /// Other leases of the same attachments are not affected.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{executor::block_on, sink, stream};
    /// use stream_demux::{Attach, DemuxStreamExt, Lease};
    ///
    /// let mut lease = Lease::new();
    /// let orders = stream::iter([Attach::new("a", sink::drain()).leased(&mut lease)]);
    /// lease.disarm();
    ///
    /// let totals = block_on(stream::iter([1]).demux_by(|_| "a", orders));
    /// assert_eq!(totals.delivered, 1);
    /// ```
    pub fn disarm(mut self) {
        self.claims = Vec::new();
    }

    /// Holds one more attachment, whose claim is created if it has none.
    pub(crate) fn hold(&mut self, claim: &mut Option<Arc<Claim>>) {
        let claim = claim.get_or_insert_with(|| Arc::new(Claim::new()));
        self.forget_gone();
        self.claims.push(Arc::downgrade(claim));
    }

    /// Forgets the attachments that are gone, if the list is full. Then doubles the room, so that a
    /// list that is nearly full is not searched for each addition.
    fn forget_gone(&mut self) {
        if self.claims.len() == self.claims.capacity() {
            self.claims.retain(|claim| claim.strong_count() > 0);
            self.claims.reserve(self.claims.len().max(4));
            self.claims.shrink_to(self.claims.len().saturating_mul(2).max(4));
        }
    }

    fn end(&mut self, request: fn(&Claim)) {
        let claims = mem::take(&mut self.claims).into_iter();
        Requests { claims, request }.make();
    }
}

/// The requests that the end of a lease has yet to make. Each wakes the task of a demux. If the
/// waker of one panics, the others are woken all the same.
struct Requests {
    claims: vec::IntoIter<Weak<Claim>>,
    request: fn(&Claim),
}

impl Requests {
    fn make(&mut self) {
        for claim in self.claims.by_ref() {
            if let Some(claim) = claim.upgrade() {
                (self.request)(&claim);
            }
        }
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.make();
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
