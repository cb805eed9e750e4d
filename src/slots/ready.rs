//! [`Ready`]: one waker per slot, the list of woken slots, and the list of slots whose lease has
//! ended.
//!
//! The only atomics of the crate are here, in `node` and in `lease.rs`. What must hold:
//!
//! 1. A node is in a list at most once, and only if its flag for that list is set (`LISTED` in
//!    `bits`, `ended`): only the wake that sets the flag links the node, and only the owner clears
//!    it, after it has taken the node out.
//! 2. A node's link belongs to the wake that set the flag until the node is linked, then to the
//!    owner until the flag is cleared: so the owner reads the link first and clears second.
//! 3. A wake before the owner clears the flag is seen by the poll that follows the clearing. A wake
//!    after it links the node again. So no wake is lost.
//! 4. The owner goes to sleep only if, *after* it registered the task's waker, both lists were
//!    empty and no signal was raised. A later wake finds that waker.
//! 5. The list of woken slots is taken at most once a turn, first thing. So a sink that wakes
//!    itself while it is polled is found in the next turn, never again in this one.
//! 6. The end of a lease lists the node first and raises `LEASES` second; the owner lowers the
//!    signal first and takes the list second. So when an order was sent after a lease had ended,
//!    the owner that has read the order finds either the signal or the node.
//!
//! What each ordering pairs with (R release, A acquire, AR both):
//!
//! * A wake's `bits.fetch_or` (AR) with the owner's `bits.swap(0)` and `bits.fetch_and` (AR): what
//!   the sink did before the wake is seen by the poll after it, also if the bit was set (3); the
//!   owner's read of `next` is over before the next wake writes it (2).
//! * A lease's `ended.swap(true)` (AR) with the owner's `ended.swap(false)` (AR): the same for the
//!   list of ended leases.
//! * The `compare_exchange` in `push` (R) with the owner's `woken.swap` and `ended.swap` (A): the
//!   link of every node in the chain is seen (2).
//! * A wake's `signals.fetch_or` (R) with the owner's `signals.fetch_and` (A): the orders that were
//!   sent, and the nodes that were listed, are seen after it (6). A read-modify-write, not a store:
//!   a second signal must not hide the first.
//! * A wake's `task.wake` with the owner's `task.register` (AR inside): either the wake finds the
//!   waker, or the owner finds the list or the signal (4).
//!
//! The loads of `woken` and `signals` could be Relaxed: a chain is walked, and a signal is acted
//! upon, only after a read-modify-write, and before sleep `register` has acquired what each earlier
//! wake wrote. They are Acquire as a precaution, and so is the Release in `bits.fetch_and`.
//! The fuzz target `ready` runs these files with other steps before each atomic operation.
//!
//! A wake that runs at the same time as `awake`, which takes the task's waker, may wake no task.
//! The owner then sees the node when it goes to sleep, because `register` reads what that wake has
//! written. `is_listed` and `has_fired` may miss a wake that is under way: the node is listed then,
//! and `pop` returns it later.
//!
//! Each list is a stack (Treiber, 1986) that is only ever emptied as a whole, which leaves no ABA
//! problem; nodes are chained by id, not by pointer, which leaves no `unsafe`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::task::Waker;

use super::id::SlotId;
use node::{BY_SINK, END, LEASES, LISTED, LeaseWaker, Node, Wakes};

mod node;

pub(crate) use node::ORDERS;

/// A slot that was woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Woken {
    pub(crate) id: SlotId,
    /// Its sink's own waker fired.
    pub(crate) by_sink: bool,
}

/// The waker of a slot. It is made once, from the node: a `Waker` cannot be borrowed from an `Arc`,
/// and making one for every poll would cost two atomic operations.
struct Registered {
    waker: Waker,
    node: Arc<Node>,
}

/// The owner's side: it belongs to the demux and is never shared.
pub(crate) struct Ready {
    wakes: Arc<Wakes>,
    /// For the orders stream.
    orders: Waker,
    /// By slot id.
    slots: Vec<Registered>,
    /// What is left of the chain of woken slots that was taken last.
    woken: u32,
    /// What is left of the chain of ended leases that was taken last.
    ended: u32,
}

impl Ready {
    pub(crate) fn new() -> Self {
        let wakes = Arc::new(Wakes::new());
        let orders = Waker::from(Arc::clone(&wakes));
        Self { orders, wakes, slots: Vec::new(), woken: END, ended: END }
    }

    /// Makes room for `slots` slots.
    pub(crate) fn reserve(&mut self, slots: usize) {
        self.slots.reserve(slots.saturating_sub(self.slots.len()));
    }

    /// Creates a waker for the slot, unless its id has one from an earlier attachment. Ids are
    /// dense.
    pub(crate) fn register(&mut self, id: SlotId) {
        if id.index() < self.slots.len() {
            return;
        }
        debug_assert_eq!(id.index(), self.slots.len());
        let node = Arc::new(Node::new(id.raw(), Arc::clone(&self.wakes)));
        self.slots.push(Registered { waker: Waker::from(Arc::clone(&node)), node });
    }

    /// The waker of the sink in a slot.
    #[inline]
    pub(crate) fn waker(&self, id: SlotId) -> &Waker {
        // Every slot is registered. Without a panic here, the compiler removes the look-up for
        // sinks that ignore their waker.
        self.slots.get(id.index()).map_or(Waker::noop(), |slot| &slot.waker)
    }

    /// A waker for the lease of a slot.
    pub(crate) fn lease_waker(&self, id: SlotId) -> Waker {
        Waker::from(Arc::new(LeaseWaker(Arc::clone(&self.slots[id.index()].node))))
    }

    /// The waker of the orders stream.
    pub(crate) fn orders_waker(&self) -> &Waker {
        &self.orders
    }

    /// The signals that are raised. This is the one atomic load for each item.
    #[inline]
    pub(crate) fn signals(&self) -> u8 {
        self.wakes.signals.load(Acquire)
    }

    /// Lowers `ORDERS`; the orders must be polled after this, not before.
    pub(crate) fn lower_orders(&self) {
        if self.signals() & ORDERS != 0 {
            self.wakes.signals.fetch_and(!ORDERS, Acquire);
        }
    }

    /// Returns `true` if [`pop_ended`](Self::pop_ended) will return a slot.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended != END || self.signals() & LEASES != 0
    }

    /// The next slot whose lease has ended.
    pub(crate) fn pop_ended(&mut self) -> Option<SlotId> {
        if self.ended == END && self.signals() & LEASES != 0 {
            self.wakes.signals.fetch_and(!LEASES, Acquire);
            self.ended = self.wakes.ended.swap(END, Acquire);
        }
        let id = SlotId::from_raw(self.ended);
        let Some(Registered { node, .. }) = self.slots.get(id.index()) else {
            self.ended = END; // also if its waker was freed
            return None;
        };
        self.ended = node.next_ended.load(Relaxed); // (2): before the flag is cleared
        node.ended.swap(false, AcqRel);
        Some(id)
    }

    /// Adds a slot to the list of woken slots.
    pub(crate) fn list(&self, id: SlotId) {
        self.slots[id.index()].node.list(0);
    }

    /// Returns `true` if [`pop`](Self::pop) will return the slot.
    pub(crate) fn is_listed(&self, id: SlotId) -> bool {
        self.slots[id.index()].node.bits.load(Relaxed) & LISTED != 0
    }

    /// Returns `true` if the sink's waker has fired, and [`pop`](Self::pop) has not returned the
    /// slot since.
    pub(crate) fn has_fired(&self, id: SlotId) -> bool {
        self.slots[id.index()].node.bits.load(Acquire) & BY_SINK != 0
    }

    /// Fires the sink's waker without waking the task, which is running.
    pub(crate) fn fire(&self, id: SlotId) {
        self.slots[id.index()].node.list(BY_SINK);
    }

    /// Forgets that the sink's waker has fired, because the sink is polled now. Returns `false` if
    /// it had not fired. [`pop`](Self::pop) still returns the slot, but not as woken by its sink.
    pub(crate) fn take_fired(&self, id: SlotId) -> bool {
        let bits = &self.slots[id.index()].node.bits;
        // Only the owner clears it. AcqRel as in `pop`.
        self.has_fired(id) && bits.fetch_and(!BY_SINK, AcqRel) & BY_SINK != 0
    }

    /// Returns `true` if a slot is listed.
    pub(crate) fn any(&self) -> bool {
        self.woken != END || self.wakes.woken.load(Acquire) != END
    }

    /// Takes the list, unless an earlier one is not finished. Then that one comes first, and slots
    /// listed meanwhile wait for the next turn.
    pub(crate) fn take(&mut self) {
        if self.woken == END {
            self.woken = self.wakes.woken.swap(END, Acquire);
        }
    }

    /// Returns `true` if the list that was taken is finished.
    pub(crate) fn is_last(&self) -> bool {
        self.woken == END
    }

    /// The next slot of the list that was taken.
    pub(crate) fn pop(&mut self) -> Option<Woken> {
        let id = SlotId::from_raw(self.woken);
        let Some(Registered { node, .. }) = self.slots.get(id.index()) else {
            self.woken = END; // also if its waker was freed
            return None;
        };
        self.woken = node.next.load(Relaxed); // (2): before the bits are cleared
        let bits = node.bits.swap(0, AcqRel);
        Some(Woken { id, by_sink: bits & BY_SINK != 0 })
    }

    /// The task is running: it need not be woken until it sleeps.
    pub(crate) fn awake(&self) {
        drop(self.wakes.task.take());
    }

    /// The task is about to sleep. Wakes it, once, if something was listed or signalled before its
    /// waker was in place.
    pub(crate) fn sleep(&self, task: &Waker) {
        self.wakes.task.register(task);
        if self.any() || self.ended != END || self.signals() != 0 {
            self.wakes.task.wake();
        }
    }

    /// Frees the wakers of up to `slots` slots, once no slot is left. Returns `true` if all are
    /// freed.
    pub(crate) fn free_wakers(&mut self, slots: usize) -> bool {
        self.slots.truncate(self.slots.len().saturating_sub(slots));
        let all = self.slots.is_empty();
        if all {
            self.slots = Vec::new();
        }
        all
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        // Sinks and orders may outlive the demux, and keep wakers of ours. The task's waker must
        // not stay behind: task, future, sink, waker and task would form a cycle.
        self.awake();
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use alloc::task::Wake;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;

    use super::*;

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    fn id(raw: u32) -> SlotId {
        SlotId::from_raw(raw)
    }

    fn task() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        (Arc::clone(&count), Waker::from(count))
    }

    fn registered(slots: u32) -> Ready {
        let mut ready = Ready::new();
        ready.lower_orders();
        (0..slots).for_each(|slot| ready.register(id(slot)));
        ready
    }

    fn drain(ready: &mut Ready) -> Vec<Woken> {
        ready.take();
        core::iter::from_fn(|| ready.pop()).collect()
    }

    #[test]
    fn a_node_is_listed_once_however_often_it_is_woken() {
        let mut ready = registered(2);
        ready.list(id(1));
        ready.waker(id(1)).wake_by_ref();
        ready.waker(id(1)).wake_by_ref();
        assert!(ready.any() && ready.is_listed(id(1)) && !ready.is_listed(id(0)));
        assert_eq!(drain(&mut ready), [Woken { id: id(1), by_sink: true }]);
        assert!(!ready.any() && !ready.is_listed(id(1)));
    }

    #[test]
    fn the_end_of_a_lease_is_listed_apart_and_wakes_the_task() {
        let mut ready = registered(2);
        let (count, waker) = task();
        ready.sleep(&waker);
        ready.lease_waker(id(1)).wake();
        ready.lease_waker(id(1)).wake();
        ready.lease_waker(id(0)).wake();
        assert_eq!(count.0.load(SeqCst), 1);
        assert_eq!(ready.signals(), LEASES);
        assert!(
            drain(&mut ready).is_empty() && ready.has_ended() && !ready.signals() & ORDERS != 0
        );
        assert_eq!(ready.pop_ended(), Some(id(0)));
        ready.lease_waker(id(0)).wake(); // while the chain is taken: it comes after it
        assert_eq!((ready.pop_ended(), ready.pop_ended()), (Some(id(1)), Some(id(0))));
        assert!(ready.pop_ended().is_none() && !ready.has_ended());
    }

    #[test]
    fn a_wake_that_is_taken_back_is_not_reported() {
        let mut ready = registered(1);
        assert!(!ready.has_fired(id(0)) && !ready.take_fired(id(0)));
        ready.waker(id(0)).wake_by_ref();
        assert!(ready.has_fired(id(0)) && ready.take_fired(id(0)) && !ready.has_fired(id(0)));
        assert_eq!(drain(&mut ready), [Woken { id: id(0), by_sink: false }]);
        ready.fire(id(0));
        assert_eq!(drain(&mut ready), [Woken { id: id(0), by_sink: true }]);
    }

    #[test]
    fn what_is_woken_while_a_list_is_worked_off_waits_for_the_next() {
        let mut ready = registered(3);
        ready.waker(id(0)).wake_by_ref();
        ready.waker(id(1)).wake_by_ref();
        ready.take();
        let first = ready.pop().map(|woken| woken.id);
        assert_eq!(first, Some(id(1)));
        ready.waker(id(1)).wake_by_ref(); // it wakes itself
        ready.waker(id(2)).wake_by_ref();
        ready.take(); // the next turn goes on with the old list
        assert_eq!(ready.pop().map(|woken| woken.id), Some(id(0)));
        assert_eq!(ready.pop(), None);
        assert!(ready.any());
        assert_eq!(drain(&mut ready).len(), 2);
    }

    #[test]
    fn the_task_is_woken_only_while_it_sleeps() {
        let ready = registered(1);
        let (count, waker) = task();
        ready.waker(id(0)).wake_by_ref();
        assert_eq!(count.0.load(SeqCst), 0, "it has never slept");
        ready.sleep(&waker);
        assert_eq!(count.0.load(SeqCst), 1, "there was something to do already");
        ready.orders_waker().wake_by_ref();
        assert_eq!(count.0.load(SeqCst), 1, "one wake is enough");
        assert!(ready.signals() & ORDERS != 0);
    }

    #[test]
    fn the_task_is_woken_for_an_order_or_the_end_of_a_lease_that_came_before_it_slept() {
        let mut ready = registered(1);
        let (count, waker) = task();
        ready.orders_waker().wake_by_ref();
        ready.sleep(&waker);
        assert_eq!(count.0.load(SeqCst), 1);
        ready.lower_orders();
        ready.lease_waker(id(0)).wake();
        ready.sleep(&waker);
        assert_eq!(count.0.load(SeqCst), 2);
        assert_eq!(ready.pop_ended(), Some(id(0)));
        ready.sleep(&waker);
        assert_eq!(count.0.load(SeqCst), 2, "nothing is left");
    }

    #[test]
    fn wakers_that_outlive_the_owner_keep_no_task() {
        let ready = registered(1);
        let (count, waker) = task();
        let sink = ready.waker(id(0)).clone();
        let lease = ready.lease_waker(id(0));
        let orders = ready.orders_waker().clone();
        ready.sleep(&waker);
        drop(ready);
        sink.wake();
        lease.wake();
        orders.wake();
        assert_eq!(count.0.load(SeqCst), 0);
        drop(waker);
        assert_eq!(Arc::strong_count(&count), 1);
    }

    /// Each thread bumps a counter of the slot and wakes it. The owner drains, sleeping by the
    /// rules in between: if a wake were lost, it would sleep for ever with a counter it has not
    /// read.
    #[test]
    fn many_threads_wake_while_the_owner_drains() {
        const THREADS: usize = 4;
        const SLOTS: u32 = 8;
        const WAKES: usize = 20_000;

        struct Unpark(thread::Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }

        let mut ready = registered(SLOTS);
        let counters: Arc<[AtomicUsize; SLOTS as usize]> = Arc::default();
        let wakers = (0..SLOTS).map(|slot| ready.waker(id(slot)).clone()).collect::<Vec<_>>();
        let threads = (0..THREADS).map(|thread| {
            let counters = Arc::clone(&counters);
            let wakers = wakers.clone();
            thread::spawn(move || {
                for wake in 0..WAKES {
                    let slot = (wake * (thread + 1)) % SLOTS as usize;
                    counters[slot].fetch_add(1, Relaxed);
                    wakers[slot].wake_by_ref();
                }
            })
        });
        let threads = threads.collect::<Vec<_>>();

        let task = Waker::from(Arc::new(Unpark(thread::current())));
        let mut seen = [0; SLOTS as usize];
        while seen.iter().sum::<usize>() < THREADS * WAKES {
            ready.awake();
            for woken in drain(&mut ready) {
                let slot = woken.id.index();
                // Relaxed: the swap in `pop` has to do, as it has to for what a sink shares.
                seen[slot] = counters[slot].load(Relaxed);
            }
            if seen.iter().sum::<usize>() < THREADS * WAKES {
                ready.sleep(&task);
                thread::park();
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        drain(&mut ready);
        assert!(!ready.any());
    }
}
