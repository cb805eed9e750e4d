//! `Lease` (*Attachments*): it ends its attachments from any thread, and nothing after the demux
//! was dropped. If an attachment has several leases, eviction wins over detaching. What then
//! happens to items and sinks is in `endings`.

use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread;

use crate::common::panics::catch;
use crate::common::{Rig, SinkHandle, Terms, scripted_sink};
use futures::{StreamExt, sink, stream};
use stream_demux::{Attach, DemuxStreamExt, Lease};

impl Rig {
    /// Attaches sink `a` under key 1 with a lease and the settings that `terms` adds.
    #[track_caller]
    fn leased(&mut self, terms: impl FnOnce(Terms) -> Terms) -> (Lease, SinkHandle<u32>) {
        let mut lease = Lease::new();
        let handle = self.attach_on(1, "a", |attach| terms(attach.leased(&mut lease)));
        (lease, handle)
    }
}

// How a lease ends.

#[test]
fn disarming_a_lease_does_not_wake_the_task_and_keeps_the_attachment() {
    let mut rig = Rig::new();
    let (lease, a) = rig.leased(|attach| attach);
    lease.disarm();
    assert!(!rig.task.woken());
    rig.input.push(101);
    rig.lines();
    assert_eq!((a.items(), rig.len()), (vec![101], 1));
    rig.input.end();
    assert!(rig.run().is_ready());
    assert_eq!(rig.log.take().last().unwrap(), "detached 1 Finished");
}

// Before the order was applied.

#[test]
fn attach_that_is_never_yielded_does_not_affect_the_lease() {
    let mut rig = Rig::new();
    let mut lease = Lease::new();
    let (sink, a) = rig.sink("a");
    drop(Attach::new(1, sink).leased(&mut lease));
    assert!(a.is_dropped());
    let (sink, b) = rig.sink("b");
    rig.apply(Attach::new(1, sink).leased(&mut lease));
    drop(lease);
    assert_eq!(rig.lines(), ["b dropped", "detached 1 Evicted"]);
    assert!(b.is_dropped());
    assert_eq!((rig.totals().attached, rig.totals().detached), (1, 1));
}

// After the demux was dropped.

#[test]
fn lease_outlives_the_dropped_future() {
    for end in [drop as fn(Lease), Lease::detach, Lease::disarm] {
        let mut rig = Rig::new();
        let (lease, a) = rig.leased(|attach| attach);
        rig.task.drop_future();
        assert!(a.is_dropped());
        assert_eq!(rig.log.take(), ["a dropped"]);
        end(lease);
        assert!(!rig.task.woken() && rig.log.take().is_empty());
    }
}

// Threads. Leases that end while the demux runs are in the fuzz target `threads`.

#[test]
fn lease_is_dropped_on_another_thread_but_the_sink_and_the_hooks_are_not() {
    let mut rig = Rig::new();
    let (lease, a) = rig.leased(|attach| attach);
    thread::spawn(move || drop(lease)).join().unwrap();
    assert!(rig.task.woken());
    assert!(!a.is_dropped() && rig.log.take().is_empty());
    assert_eq!(rig.lines(), ["a dropped", "detached 1 Evicted"]);
}

// One lease for many.

#[test]
fn one_lease_for_many_ends_them_all_and_no_other() {
    for detach in [false, true] {
        let mut rig = Rig::new();
        let mut lease = Lease::new();
        for key in 0..10 {
            let (sink, _) = scripted_sink(key);
            rig.apply(Attach::new(key, sink).leased(&mut lease));
        }
        let (sink, other) = rig.sink("other");
        rig.apply((10, sink));
        if detach {
            lease.detach();
        } else {
            drop(lease);
        }
        let mut lines = rig.lines();
        lines.sort();
        let why = if detach { "Requested" } else { "Evicted" };
        assert_eq!(lines, (0..10).map(|key| format!("detached {key} {why}")).collect::<Vec<_>>());
        assert_eq!((rig.len(), other.is_dropped()), (1, false));
    }
}

#[test]
fn waker_of_a_task_that_panics_keeps_no_attachment_of_the_lease() {
    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("the waker");
        }
    }

    // Two demuxes in two tasks, with attachments of one lease.
    let mut lease = Lease::new();
    let mut attached = || {
        let orders = [1, 2].map(|key| Attach::new(key, sink::drain()).leased(&mut lease));
        let orders = stream::iter(orders).chain(stream::pending());
        Box::pin(stream::pending::<u32>().demux_by(|n| *n, orders))
    };
    let mut demuxes = [attached(), attached()];
    let panics = Waker::from(Arc::new(Panics));
    let wakes = [&panics, Waker::noop()];
    for (demux, waker) in demuxes.iter_mut().zip(wakes) {
        assert!(demux.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        assert_eq!(demux.len(), 2);
    }
    assert_eq!(catch(|| drop(lease)).message, "the waker");
    for demux in &mut demuxes {
        assert!(demux.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(demux.len(), 0);
    }
}

// Two leases for one.

/// Attaches sink `a` under key 1 with two leases. It is parked, and item 101 is queued.
fn leased_twice(rig: &mut Rig) -> (Lease, Lease, SinkHandle<u32>) {
    let (mut first, mut second) = (Lease::new(), Lease::new());
    let (sink, a) = rig.sink("a");
    a.park();
    rig.apply(Attach::new(1, sink).buffer(2).leased(&mut first).leased(&mut second));
    rig.input.push(101);
    rig.lines();
    (first, second, a)
}

#[test]
fn eviction_wins_over_detaching_whichever_came_first() {
    for evict_first in [false, true] {
        let mut rig = Rig::new();
        let (first, second, _a) = leased_twice(&mut rig);
        if evict_first {
            drop(first);
            second.detach();
        } else {
            first.detach();
            drop(second);
        }
        assert_eq!(rig.lines(), ["a dropped", "discarded 101 of 1 Evicted", "detached 1 Evicted"]);
    }
}

#[test]
fn detaching_wins_over_staying() {
    let mut rig = Rig::new();
    let (first, second, a) = leased_twice(&mut rig);
    first.detach();
    second.disarm();
    rig.lines();
    a.open();
    assert_eq!(rig.lines(), ["a sent 101", "a closed", "a dropped", "detached 1 Requested"]);
}

// Old consumers and their successors.

#[test]
fn late_clean_up_of_an_old_consumer_never_removes_its_successor() {
    for end in [drop as fn(Lease), Lease::detach] {
        let mut rig = Rig::new();
        let (lease, a) = rig.leased(|attach| attach);
        let (sink, b) = rig.sink("b");
        rig.apply((1, sink));
        assert!(a.is_dropped());
        end(lease);
        rig.input.push(101);
        assert_eq!(rig.lines(), ["b sent 101", "b flushed"]);
        assert!(!b.is_dropped());
        assert_eq!(rig.len(), 1);
    }
}
