//! Time: `Order::Tick`, `stall_timeout`, `idle_timeout` and `linger` (attachment rules and 6). A
//! tick is a unit of time; a time-out of `n` ticks takes between `n - 1` and `n` units. Without
//! ticks, nothing expires.

use crate::common::{Op, Rig, SinkHandle, Split, Terms, hooks};
use stream_demux::{Attach, Lease, Order};

impl Rig {
    /// Sends a tick, and runs until the task parks. Returns the calls of hooks.
    #[track_caller]
    fn tick(&mut self) -> Vec<String> {
        hooks(self.apply(Order::Tick))
    }

    /// Sends ticks that must have no effect.
    #[track_caller]
    fn ticks_without_effect(&mut self, ticks: u32) {
        for tick in 1..=ticks {
            assert_eq!(self.tick(), [""; 0], "tick {tick}");
        }
    }

    /// Sends a tick and polls once, for a demux that never parks.
    #[track_caller]
    fn tick_and_poll(&mut self) {
        self.orders.push(Order::Tick);
        self.poll();
    }
}

/// The state in which an attachment under key 1 is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stuck {
    Held,
    Queued,
    QueuedAndDetached,
    Flush,
    Close,
}

const STUCK: [Stuck; 5] =
    [Stuck::Held, Stuck::Queued, Stuck::QueuedAndDetached, Stuck::Flush, Stuck::Close];

impl Stuck {
    fn op(self) -> Op {
        match self {
            Self::Held | Self::Queued | Self::QueuedAndDetached => Op::Ready,
            Self::Flush => Op::Flush,
            Self::Close => Op::Close,
        }
    }

    fn buffer(self) -> usize {
        usize::from(matches!(self, Self::Queued | Self::QueuedAndDetached))
    }

    /// Brings the attachment into this state; the test makes the sink pending.
    fn create(self, rig: &Rig) {
        match self {
            Self::Held | Self::Queued | Self::Flush => rig.input.push(101),
            Self::QueuedAndDetached => {
                rig.input.push(101);
                // After the item was queued.
                let orders = rig.orders.clone();
                rig.input.action(move || orders.push(Order::Detach(1)));
            }
            Self::Close => rig.orders.push(Order::Detach(1)),
        }
    }

    /// Attaches a sink that is stuck in this state.
    #[track_caller]
    fn attach(self, rig: &mut Rig, terms: impl FnOnce(Terms) -> Terms) -> SinkHandle<u32> {
        let sink = rig.attach_on(1, "a", |attach| terms(attach.buffer(self.buffer())));
        sink.hold(self.op());
        self.create(rig);
        rig.lines();
        sink
    }
}

// Stalls.

#[test]
fn sink_that_is_stuck_is_evicted_at_the_nth_tick() {
    for stuck in STUCK {
        for n in 1..=4 {
            let mut rig = Rig::new();
            let a = stuck.attach(&mut rig, |attach| attach.stall_timeout(n));
            rig.ticks_without_effect(n - 1);
            let lines = rig.tick();
            assert_eq!(lines.last().unwrap(), "detached 1 Stalled", "{stuck:?}");
            assert!(a.is_dropped() && !a.is_closed() && rig.len() == 0, "{stuck:?}");
            rig.ticks_without_effect(3);
        }
    }
}

#[test]
fn sink_that_completes_something_in_every_unit_does_not_stall() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(30).stall_timeout(2));
    a.park();
    rig.send(100..130);
    for _ in 0..20 {
        rig.ticks_without_effect(1);
        a.allow(1);
        rig.sleep();
    }
    rig.log.take();
    assert_eq!(a.taken(), 20);
    rig.ticks_without_effect(1);
    assert_eq!(rig.tick().last().unwrap(), "detached 1 Stalled");
}

#[test]
fn sink_that_only_wakes_itself_stalls() {
    for stuck in STUCK {
        for turns in [1, 2, 3, 20, 40] {
            let mut rig = Rig::new();
            let a = rig.attach_on(1, "a", |attach| attach.buffer(stuck.buffer()).stall_timeout(3));
            a.stutter(stuck.op(), usize::MAX);
            stuck.create(&rig);
            (0..5).for_each(|_| rig.poll());
            for tick in 1..=3 {
                assert!(!a.is_dropped(), "{stuck:?}, {turns} turns per tick, before tick {tick}");
                rig.tick_and_poll();
                (1..turns).for_each(|_| rig.poll());
            }
            (0..3).for_each(|_| rig.poll());
            assert!(a.is_dropped(), "{stuck:?}, {turns} turns per tick");
            let lines = hooks(rig.lines());
            assert_eq!(lines.last().unwrap(), "detached 1 Stalled", "{stuck:?}");
        }
    }
}

/// A woken sink that the demux has not yet polled is not stalled, whatever it has done before.
#[test]
fn sinks_that_wait_for_their_turn_do_not_stall() {
    for (budget, has_moved) in [(1, false), (2, false), (4, false), (16, false), (16, true)] {
        let stall_timeout = 1 + u32::from(has_moved);
        let mut rig =
            Rig::with(|demux| demux.budget(budget).stall_timeout(stall_timeout).buffer(3));
        let rig = &mut rig;
        let sinks = rig.attach_each(0..100);
        if has_moved {
            rig.ticks_without_effect(1);
            rig.send((0..100).map(|n| n * 100 + 99));
        }
        for sink in &sinks {
            sink.park();
        }
        rig.send((0..300).map(|n| n % 100 * 100 + n / 100));
        assert_eq!(rig.totals().queued, 300);
        if has_moved {
            rig.ticks_without_effect(1);
        }
        sinks.iter().for_each(SinkHandle::open);
        let mut turns = 0;
        while rig.totals().queued > 0 {
            rig.tick_and_poll();
            turns += 1;
        }
        assert!(turns >= 300 / budget, "the sinks did not wait for their turn: {turns} turns");
        rig.sleep();
        let delivered = 300 + if has_moved { 100 } else { 0 };
        assert_eq!((rig.len(), rig.totals().delivered), (100, delivered), "budget {budget}");
    }
}

#[test]
fn graceful_leave_has_a_deadline_for_every_reason() {
    // By a lease.
    let mut rig = Rig::with(|demux| demux.stall_timeout(2));
    let mut lease = Lease::new();
    rig.attach_on(1, "a", |attach| attach.buffer(1).leased(&mut lease)).park();
    rig.send([101]);
    lease.detach();
    rig.ticks_without_effect(1);
    assert_eq!(rig.tick(), ["discarded 101 of 1 Evicted", "detached 1 Stalled"]);
    // By its limit, or because it was refused or took no key.
    rig.attach(2, "kept");
    let terms: [fn(Terms) -> Terms; 3] =
        [|attach| attach.limit(1), |attach| attach.limit(0), Attach::keep_existing];
    for (terms, key) in terms.into_iter().zip([1, 1, 2]) {
        let a = rig.order(key, "a", |attach| terms(attach.tag(9)));
        a.hold(Op::Close);
        rig.send([100]);
        assert!(a.is_closing());
        rig.ticks_without_effect(1);
        assert_eq!(rig.tick(), [format!("detached {key}#9 Stalled")]);
    }
}

#[test]
fn end_has_a_deadline() {
    for close_only in [false, true] {
        let mut rig = Rig::with(|demux| demux.stall_timeout(3).buffer(1));
        let a = rig.attach(1, "a");
        rig.attach(2, "b");
        if close_only {
            a.hold(Op::Close);
        } else {
            a.park();
            rig.send([101]);
        }
        rig.input.end();
        assert_eq!(hooks(rig.lines()), ["detached 2 Finished"]);
        rig.ticks_without_effect(2);
        rig.orders.push(Order::Tick);
        assert_eq!(hooks(rig.last_lines()).last().unwrap(), "detached 1 Stalled");
    }
}

// Idle.

#[test]
fn attachment_without_an_item_is_detached_at_the_nth_tick() {
    for n in 1..=4 {
        let mut rig = Rig::new();
        rig.attach_on(1, "a", |attach| attach.idle_timeout(n));
        rig.ticks_without_effect(n - 1);
        assert_eq!(rig.apply(Order::Tick), ["a closed", "a dropped", "detached 1 Idle"]);
        assert_eq!(rig.send([101]), ["unmatched 101"]);
    }
}

#[test]
fn item_restarts_the_idle_count() {
    for n in 1..=3 {
        let mut rig = Rig::new();
        let a = rig.attach_on(1, "a", |attach| attach.idle_timeout(n));
        for item in 0..5 {
            rig.ticks_without_effect(n - 1);
            rig.send([100 + item]);
            rig.ticks_without_effect(1);
        }
        rig.ticks_without_effect(n - 1);
        assert_eq!(rig.tick(), ["detached 1 Idle"]);
        assert_eq!(a.taken(), 5);
    }
}

#[test]
fn attachment_with_waiting_items_is_not_idle() {
    for stuck in [Stuck::Held, Stuck::Queued, Stuck::Flush] {
        let mut rig = Rig::new();
        let a = stuck.attach(&mut rig, |attach| attach.idle_timeout(1));
        rig.ticks_without_effect(5);
        a.release(stuck.op());
        rig.sleep();
        rig.log.take();
        rig.ticks_without_effect(1);
        assert_eq!(rig.tick(), ["detached 1 Idle"], "{stuck:?}");
    }
}

/// The wait began and ended between two ticks.
#[test]
fn unit_in_which_the_input_waited_does_not_count_for_idleness() {
    let mut rig = Rig::new();
    rig.attach_on(1, "a", |attach| attach.idle_timeout(2));
    let b = rig.attach(2, "b");
    for _ in 0..5 {
        b.park();
        rig.send([201]);
        b.open();
        rig.sleep();
        rig.log.take();
        rig.ticks_without_effect(1);
    }
    rig.ticks_without_effect(1);
    assert_eq!(rig.tick(), ["detached 1 Idle"]);
}

/// Only the one that the input waits for has something pending.
#[test]
fn time_outs_of_stuck_sinks_under_wait_add_up() {
    let mut rig = Rig::with(|demux| demux.stall_timeout(3)).with_silent_sinks();
    let sinks: Vec<_> = (1..=4).map(|key| rig.attach(key, key)).collect();
    sinks.iter().for_each(SinkHandle::park);
    rig.send([101, 201, 301, 401]);
    for key in 1..=4 {
        for tick in 1..=3 {
            let lines = rig.tick();
            let evicted = lines.contains(&format!("detached {key} Stalled"));
            assert_eq!(evicted, tick == 3, "{key}, tick {tick}: {lines:?}");
        }
    }
    assert_eq!(rig.len(), 0);
}

#[test]
fn default_stall_timeout_applies_without_a_setting_and_0_disables_it() {
    let mut rig = Rig::with(|demux| demux.stall_timeout(2).buffer(1));
    rig.attach(1, "a").park();
    for (key, ticks) in [(2, 0), (3, 4), (4, 1)] {
        rig.attach_on(key, "s", |attach| attach.stall_timeout(ticks)).park();
    }
    rig.send([101, 201, 301, 401]);
    let gone: Vec<_> =
        (0..8).map(|_| rig.tick().pop().unwrap_or_default().replace("detached ", "")).collect();
    assert_eq!(gone, ["4 Stalled", "1 Stalled", "", "3 Stalled", "", "", "", ""]);
}

#[test]
fn without_ticks_nothing_expires() {
    let mut rig = Rig::with(|demux| demux.stall_timeout(1).idle_timeout(1).linger(1).buffer(1));
    let stuck = rig.attach(1, "stuck");
    stuck.park();
    rig.attach(2, "idle");
    rig.attach(3, "c");
    rig.send([101]);
    for n in 0..1_000 {
        rig.send([300 + n % 100]);
        rig.poll();
        rig.apply(Order::Evict(50));
    }
    assert_eq!((rig.len(), rig.totals().detached), (3, 0));
}

// Ticks are merged.

#[test]
fn ticks_that_are_read_in_one_turn_count_as_one() {
    for ticks in [2, 5, 50] {
        let mut rig = Rig::new();
        rig.attach_on(1, "a", |attach| attach.idle_timeout(3));
        for _ in 0..2 {
            (0..ticks).for_each(|_| rig.orders.push(Order::Tick));
            assert_eq!(rig.lines(), [""; 0]);
        }
        assert_eq!(rig.tick(), ["detached 1 Idle"]);
    }
}

#[test]
fn ticks_that_are_read_during_a_sweep_count_as_one() {
    let mut rig = Rig::with(|demux| demux.budget(4)).with_silent_sinks();
    for key in 0..500 {
        rig.order(key, key, |attach| attach.idle_timeout(3));
    }
    rig.sleep();
    // The first sweep takes more than these ten turns.
    (0..10).for_each(|_| rig.tick_and_poll());
    rig.sleep();
    assert_eq!(rig.len(), 500, "two sweeps were made");
    assert_eq!(rig.tick().iter().filter(|line| line.ends_with("Idle")).count(), 500);
}

// Flushes that linger.

fn lingering(ticks: u32) -> Rig {
    Rig::with(|demux: Split| demux.linger(ticks))
}

#[test]
fn sinks_are_flushed_at_the_nth_tick_after_the_input_ran_dry() {
    for sinks in [1, 5, 16, 17, 200] {
        for n in 1..=4 {
            let mut rig = lingering(n);
            let sinks = rig.attach_each(0..sinks);
            for round in 1..=3 {
                rig.send((0..).step_by(100).take(sinks.len()));
                for _ in 1..n {
                    rig.tick();
                    assert!(sinks.iter().all(|sink| sink.flush_asked() == round - 1));
                }
                rig.tick();
                assert!(sinks.iter().all(|sink| sink.flushed() == round), "linger {n}");
            }
        }
    }
}

#[test]
fn items_do_not_restart_the_linger() {
    let mut rig = lingering(3);
    let (a, b) = (rig.attach(1, "a"), rig.attach(2, "b"));
    rig.send([101]);
    rig.tick();
    rig.send([102]);
    rig.tick();
    rig.send([103, 201]);
    assert_eq!((a.flush_asked(), b.flush_asked()), (0, 0));
    rig.tick();
    assert_eq!((a.flushed(), b.flushed()), (3, 1), "there is one counter for all sinks");
    assert_eq!((a.count(Op::Flush), b.count(Op::Flush)), (1, 1));
}

#[test]
fn ticks_count_only_while_something_is_unflushed() {
    let mut rig = lingering(2);
    let a = rig.attach(1, "a");
    for flushes in 0..2 {
        rig.ticks_without_effect(5);
        rig.attach(2, "b").hold(Op::Close);
        rig.send([201]);
        rig.apply([Order::Evict(2), Order::Detach(2)].into_iter().nth(flushes).unwrap());
        rig.tick();
        rig.send([101]);
        rig.tick();
        assert_eq!(a.flush_asked(), flushes);
        rig.tick();
        assert_eq!(a.flushed(), flushes + 1);
    }
}

#[test]
fn due_flushes_do_not_wait_while_a_later_one_lingers() {
    let mut rig = Rig::with(|demux: Split| demux.linger(1).budget(1));
    let sinks = rig.attach_each(1..=5);
    rig.send((1..=5).map(|key| key * 100));
    rig.tick_and_poll();
    rig.send([101]);
    assert!(sinks.iter().all(|sink| sink.flushed() == 1));
}

#[test]
fn task_sleeps_while_flushes_linger() {
    let mut rig = lingering(2);
    let sinks = rig.attach_each(1..30);
    rig.send((1..30).map(|key| key * 100));
    let polls = rig.task.polls();
    for _ in 0..50 {
        rig.send([101]);
    }
    assert_eq!(rig.task.polls(), polls + 50, "each wake takes one turn");
    assert_eq!(sinks.iter().map(|sink| sink.count(Op::Flush)).sum::<usize>(), 0);
}

#[test]
fn nothing_lingers_while_the_input_is_blocked() {
    for sinks in [2, 30] {
        let mut rig = lingering(3);
        let all = rig.attach_each(1..=sinks);
        let last = all.last().unwrap();
        last.park();
        rig.send((1..=sinks).map(|key| key * 100));
        assert!(all.iter().rev().skip(1).all(|sink| sink.flushed() == 1), "{sinks} sinks");
        last.open();
        rig.sleep();
        assert_eq!(last.flush_asked(), 0, "a flush lingers again");
        rig.send([101]);
        assert_eq!(all[0].flush_asked(), 1);
        (0..3).for_each(|_| drop(rig.tick()));
        assert_eq!((all[0].flushed(), last.flushed()), (2, 1));
    }
}

#[test]
fn nothing_lingers_once_the_orders_have_ended() {
    for sinks in [3, 40] {
        let mut rig = lingering(2);
        let all = rig.attach_each(1..=sinks);
        rig.send((1..=sinks).map(|key| key * 100));
        assert!(all.iter().all(|sink| sink.flush_asked() == 0));
        rig.orders.end();
        rig.sleep();
        assert!(all.iter().all(|sink| sink.flushed() == 1), "sinks that lingered");
        rig.send((1..=sinks).map(|key| key * 100 + 1));
        assert!(all.iter().all(|sink| sink.flushed() == 2), "later items");
    }
}
