//! The side of the wakers: what they do in any thread. The head of `ready` has the rules.

use alloc::sync::Arc;
use alloc::task::Wake;
use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32,
    Ordering::{AcqRel, Relaxed, Release},
};

use atomic_waker::AtomicWaker;

/// The end of a chain; no slot has this id.
pub(super) const END: u32 = u32::MAX;

/// The node is in the list of woken slots, or about to be.
pub(super) const LISTED: u8 = 1;
/// The sink's own waker fired, as opposed to the demux having left something undone for the slot.
pub(super) const BY_SINK: u8 = 2;

/// The orders stream asked to be polled.
pub(crate) const ORDERS: u8 = 1;
/// A lease has ended.
pub(crate) const LEASES: u8 = 2;

/// What was woken, and the task to wake: wakers and the owner share it. It is also the waker of the
/// orders stream.
pub(super) struct Wakes {
    /// The top of the stack of woken nodes.
    pub(super) woken: AtomicU32,
    /// The top of the stack of nodes whose lease has ended.
    pub(super) ended: AtomicU32,
    /// `ORDERS` and `LEASES`: both are dealt with before the next item.
    pub(super) signals: AtomicU8,
    /// The sleeping task; empty while it runs.
    pub(super) task: AtomicWaker,
}

impl Wakes {
    pub(super) fn new() -> Self {
        Self {
            woken: AtomicU32::new(END),
            ended: AtomicU32::new(END),
            // The first poll of the demux polls the orders stream without a wake.
            signals: AtomicU8::new(ORDERS),
            task: AtomicWaker::new(),
        }
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.signals.fetch_or(ORDERS, Release);
        self.task.wake();
    }
}

/// One slot id, for all attachments that have it in turn. It is also the waker of their sinks. A
/// stale waker, kept from an earlier attachment, causes a spurious poll of the present one.
pub(super) struct Node {
    wakes: Arc<Wakes>,
    id: u32,
    /// The links of the two lists.
    pub(super) next: AtomicU32,
    pub(super) next_ended: AtomicU32,
    pub(super) bits: AtomicU8,
    /// The node is in the list of ended leases, or about to be.
    pub(super) ended: AtomicBool,
}

impl Node {
    pub(super) fn new(id: u32, wakes: Arc<Wakes>) -> Self {
        Self {
            wakes,
            id,
            next: AtomicU32::new(END),
            next_ended: AtomicU32::new(END),
            bits: AtomicU8::new(0),
            ended: AtomicBool::new(false),
        }
    }

    /// Lists the node unless it is listed. Does not wake the task.
    pub(super) fn list(&self, why: u8) {
        if self.bits.fetch_or(LISTED | why, AcqRel) & LISTED == 0 {
            push(&self.wakes.woken, self.id, &self.next);
        }
    }
}

/// Pushes a node onto a stack.
fn push(head: &AtomicU32, id: u32, next: &AtomicU32) {
    let mut top = head.load(Relaxed);
    loop {
        next.store(top, Relaxed);
        match head.compare_exchange_weak(top, id, Release, Relaxed) {
            Ok(_) => return,
            Err(now) => top = now,
        }
    }
}

impl Wake for Node {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.list(BY_SINK);
        self.wakes.task.wake();
    }
}

/// The waker that a lease fires when it ends. It does not count as the sink's own waker, so the
/// sink is not polled.
pub(super) struct LeaseWaker(pub(super) Arc<Node>);

impl Wake for LeaseWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let Self(node) = &**self;
        if !node.ended.swap(true, AcqRel) {
            push(&node.wakes.ended, node.id, &node.next_ended);
        }
        // Also if the node was listed already: the signal must be raised when this returns (6).
        node.wakes.signals.fetch_or(LEASES, Release);
        node.wakes.task.wake();
    }
}
