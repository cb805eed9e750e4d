//! Guarantee 13, any task and any waker: the future may move to another task, or be polled with
//! another waker, between two polls. No wake-up is lost. The fuzz target `threads` wakes it from
//! other threads.
//!
//! A `Task` polls only when the waker of its last poll has fired. After a lost wake-up, the task
//! remains parked with work left, and the test fails.

use std::cell::Cell;
use std::convert::Infallible;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, RawWaker, RawWakerVTable, Waker};

use crate::common::panics::panic_message;
use crate::common::{Op, Rig, Task};
use futures::stream;
use stream_demux::{DemuxStreamExt, Order};

impl Rig {
    /// Polls the demux once with another waker, as another task would. The new task parks.
    #[track_caller]
    fn move_to_another_task(&mut self) {
        self.task.renew_waker();
        self.poll();
        assert!(!self.task.woken());
    }
}

// Another waker while the demux waits.

#[test]
fn while_it_waits_for_a_sink() {
    for op in [Op::Ready, Op::Flush, Op::Close] {
        let mut rig = Rig::new();
        let a = rig.attach(1, "a");
        a.hold(op);
        rig.send([101]);
        if op == Op::Close {
            rig.orders.push(Order::Detach(1));
            rig.sleep();
        }
        rig.move_to_another_task();
        rig.move_to_another_task();
        assert!(a.is_waiting(op));
        a.release(op);
        assert!(rig.task.woken(), "{op:?}");
        rig.sleep();
        assert_eq!((a.items(), a.flushed(), a.is_closed()), (vec![101], 1, op == Op::Close));
        assert_eq!(rig.task.stale_wakes(), 0, "{op:?}");
    }
}

// Late and spurious wakes.

#[test]
fn a_spurious_poll_loses_no_wake() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    let b = rig.attach(2, "b");
    a.hold(Op::Flush);
    rig.send([101]);
    b.park();
    rig.send([201]);
    for _ in 0..5 {
        rig.poll();
        assert!(!rig.task.woken());
    }
    a.release(Op::Flush);
    assert!(rig.task.woken());
    b.open();
    rig.sleep();
    assert_eq!((a.flushed(), b.flushed()), (1, 1));
    rig.input.push(102);
    assert!(rig.task.woken());
}

#[test]
fn a_stale_waker_of_a_reused_slot_does_not_hide_a_wake_of_its_sink() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    a.park();
    rig.send([101]);
    let stale = a.waker().unwrap();
    rig.orders.push(Order::Evict(1));
    rig.sleep();
    let b = rig.attach(2, "b");
    b.park();
    rig.send([201]);
    b.excuse();
    stale.wake_by_ref();
    rig.sleep();
    assert!(b.taken() == 0 && b.is_parked());
    stale.wake_by_ref(); // and before the task is polled
    b.open();
    assert!(rig.task.woken());
    rig.sleep();
    assert_eq!((b.items(), b.flushed()), (vec![201], 1));
    rig.move_to_another_task();
    stale.wake();
    rig.input.push(202);
    rig.sleep();
    assert_eq!(b.items(), [201, 202]);
}

// A waker that panics.

thread_local! {
    static FRAGILE: Cell<bool> = const { Cell::new(false) };
}

/// Returns a waker that does nothing, and panics if it is cloned while `FRAGILE` is set.
fn fragile_waker() -> Waker {
    static VTABLE: RawWakerVTable = RawWakerVTable::new(
        |data| {
            assert!(!FRAGILE.get(), "boom");
            RawWaker::new(data, &VTABLE)
        },
        |_| {},
        |_| {},
        |_| {},
    );
    // SAFETY: the waker has no data, so its functions cannot violate memory safety.
    unsafe { Waker::from_raw(RawWaker::new(ptr::null(), &VTABLE)) }
}

/// Polls with a fragile waker. Returns the message of the panic.
fn polled_by_a_fragile_waker<F: Future>(future: Pin<&mut F>) -> String {
    let waker = fragile_waker();
    FRAGILE.set(true);
    let poll = || future.poll(&mut Context::from_waker(&waker)).is_pending();
    let message = panic_message(poll);
    FRAGILE.set(false);
    message
}

/// A demux that could not clone its waker must not be polled again, because nothing would wake it.
#[test]
fn after_a_waker_whose_clone_panics_another_poll_panics() {
    for polled_before in [false, true] {
        // The input keeps no waker, so the panic occurs where the demux clones it.
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        let sink = futures::sink::unfold(count, |count, ()| async {
            count.fetch_add(1, SeqCst);
            Ok::<_, Infallible>(count)
        });
        let orders = stream::iter([(1, Box::pin(sink))]);
        let demux = stream::pending::<()>().demux_by(|()| 1, orders);
        let mut task = Task::new(demux);
        if polled_before {
            assert!(task.run().is_pending());
        }
        let mut future = task.into_inner();
        assert_eq!(polled_by_a_fragile_waker(future.as_mut()), "boom");
        let mut task = Task::new(future);
        for _ in 0..2 {
            let message = panic_message(|| task.poll().is_pending());
            assert!(message.contains("Demux") && message.contains("panic"), "{message}");
        }
        // The demux drops all that it holds.
        task.drop_future();
        assert_eq!((Arc::strong_count(&taken), task.wakers_kept()), (1, 0));
    }
}
