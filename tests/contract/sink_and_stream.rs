//! Guarantee 10: the demux keeps the contracts of `Sink`, `Stream` and `Future`. Scripted sinks and
//! streams panic if they are misused; these tests create situations in which this is likely.

use crate::common::Answer::{Done, Failed, Pending};
use crate::common::panics::panic_message;
use crate::common::{
    Call, Op, Orders, Rig, SinkHandle, StreamHandle, Task, scripted_sink, scripted_stream,
};
use futures::future::FusedFuture;
use stream_demux::{Attach, Demux, DemuxStreamExt, Discarded, Hooks, Lease, Order, Overflow};

// All calls of a sink, from its first item to its drop.

#[test]
fn from_the_first_item_to_the_close_each_call_is_accounted_for() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    assert!(a.calls().is_empty());
    rig.send([101]);
    assert_eq!(a.take_calls(), [Call::Ready(Done), Call::Send(Done), Call::Flush(Done)]);
    rig.send([102, 103]);
    let two = [Call::Ready(Done), Call::Send(Done), Call::Ready(Done), Call::Send(Done)];
    assert_eq!(a.take_calls(), [&two[..], &[Call::Flush(Done)]].concat());
    rig.apply(Order::Detach(1));
    assert_eq!(a.take_calls(), [Call::Close(Done), Call::Drop]);
}

#[test]
fn a_sink_that_was_not_ready_is_polled_again_before_the_send() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    a.park();
    rig.send([101]);
    a.wake();
    rig.sleep();
    a.open();
    rig.sleep();
    assert_eq!(
        a.calls(),
        [
            Call::Ready(Pending),
            Call::Ready(Pending),
            Call::Ready(Done),
            Call::Send(Done),
            Call::Flush(Done)
        ]
    );
}

#[test]
fn each_item_of_a_queue_has_its_own_ready() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(3));
    a.park();
    rig.send([101, 102, 103, 104]);
    a.take_calls();
    a.allow(2);
    rig.sleep();
    assert_eq!(
        a.take_calls(),
        [
            Call::Ready(Done),
            Call::Send(Done),
            Call::Ready(Done),
            Call::Send(Done),
            Call::Ready(Pending),
            Call::Flush(Done)
        ]
    );
}

#[test]
fn a_readiness_is_used_at_once_though_another_member_waits() {
    let mut rig = Rig::with(Demux::multicast);
    let a = rig.attach(1, "a");
    let b = rig.attach_on(1, "b", |attach| attach.tag(1));
    b.park();
    rig.send([101]);
    let item = [Call::Ready(Done), Call::Send(Done), Call::Flush(Done)];
    assert_eq!(a.calls(), item);
    b.open();
    rig.sleep();
    rig.send([102]);
    assert_eq!(a.calls(), [item, item].concat());
    assert_eq!(b.calls(), [&[Call::Ready(Pending)], &item[..], &item].concat());
}

#[test]
fn a_member_that_has_its_copy_leaves_while_another_waits() {
    for evict in [false, true] {
        let mut rig = Rig::with(Demux::multicast);
        let mut lease = Lease::new();
        let a = rig.attach_on(1, "a", |attach| attach.leased(&mut lease).keep_existing());
        let b = rig.attach_on(1, "b", |attach| attach.tag(1));
        b.park();
        rig.send([101]);
        let item = [Call::Ready(Done), Call::Send(Done), Call::Flush(Done)];
        assert_eq!(a.take_calls(), item);
        if evict {
            drop(lease);
            rig.sleep();
            assert_eq!(a.take_calls(), [Call::Drop]);
        } else {
            lease.detach();
            rig.sleep();
            assert_eq!(a.take_calls(), [Call::Close(Done), Call::Drop]);
        }
    }
}

#[test]
fn nothing_follows_a_close_that_completed() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    rig.send([101]);
    let waker = a.waker().unwrap();
    rig.apply(Order::Detach(1));
    let calls = a.calls();
    assert_eq!(calls[3..], [Call::Close(Done), Call::Drop]);
    waker.wake();
    rig.send([102]);
    rig.apply(Order::Detach(1));
    rig.apply(Order::Evict(1));
    assert_eq!(a.calls(), calls);
}

#[test]
fn nothing_but_the_drop_follows_an_error() {
    for op in [Op::Ready, Op::Send, Op::Flush, Op::Close] {
        let mut rig = Rig::new();
        let a = rig.attach_on(1, "a", |attach| attach.buffer(1));
        a.fail(op);
        rig.send([101, 102]);
        rig.apply(Order::Detach(1));
        rig.send([103]);
        rig.input.end();
        assert!(rig.run().is_ready());
        let calls = a.calls();
        let failure = match op {
            Op::Ready => Call::Ready(Failed),
            Op::Send => Call::Send(Failed),
            Op::Flush => Call::Flush(Failed),
            Op::Close => Call::Close(Failed),
        };
        assert_eq!(calls[calls.len() - 2..], [failure, Call::Drop], "{op:?}");
    }
}

// A close that is pending.

#[test]
fn while_a_close_is_pending_only_the_close_is_polled() {
    let mut rig = Rig::new();
    let a = rig.attach_on(1, "a", |attach| attach.buffer(2));
    a.hold(Op::Close);
    rig.send([101]);
    rig.apply(Order::Detach(1));
    a.take_calls();
    rig.send([102, 201]);
    rig.apply(Order::Detach(1));
    assert!(a.calls().is_empty());
    a.wake();
    rig.sleep();
    assert_eq!(a.take_calls(), [Call::Close(Pending)]);
    a.release(Op::Close);
    rig.sleep();
    assert_eq!(a.take_calls(), [Call::Close(Done), Call::Drop]);
}

/// Attaches a leased sink whose close is pending after a pending flush whose waker has fired.
fn closing_after_a_pending_flush(rig: &mut Rig, lease: &mut Lease) -> SinkHandle<u32> {
    let a = rig.attach_on(1, "a", |attach| attach.leased(lease));
    a.hold(Op::Flush);
    a.hold(Op::Close);
    rig.send([101]);
    rig.apply(Order::Detach(1));
    assert!(a.is_waiting(Op::Flush) && a.is_waiting(Op::Close));
    a.release(Op::Flush);
    rig.sleep();
    assert_eq!(a.take_calls().last(), Some(&Call::Close(Pending)));
    a
}

#[test]
fn a_flush_that_was_pending_when_the_close_began_is_not_polled_again() {
    let mut rig = Rig::new();
    let mut lease = Lease::new();
    let a = closing_after_a_pending_flush(&mut rig, &mut lease);
    rig.send([201]);
    a.release(Op::Close);
    rig.sleep();
    assert_eq!(a.take_calls(), [Call::Close(Done), Call::Drop]);
    lease.disarm();
}

#[test]
fn a_lease_that_detaches_a_closing_sink_does_not_have_it_flushed() {
    let mut rig = Rig::new();
    let mut lease = Lease::new();
    let a = closing_after_a_pending_flush(&mut rig, &mut lease);
    lease.detach();
    rig.sleep();
    assert!(a.calls().is_empty());
    a.release(Op::Close);
    rig.sleep();
    assert_eq!(a.take_calls(), [Call::Close(Done), Call::Drop]);
}

#[test]
fn a_sink_that_closes_with_a_flush_due_in_a_busy_stream_is_not_flushed() {
    let mut rig = Rig::with(|demux| demux.flush_every(2).budget(8));
    let a = rig.attach(1, "a");
    let b = rig.attach(2, "b");
    a.hold(Op::Close);
    let orders = rig.orders.clone();
    rig.input.push(101);
    rig.input.action(move || orders.push(Order::Detach(1)));
    rig.input.extend((0..50).map(|n| 200 + n));
    rig.sleep();
    assert_eq!(a.calls()[2..], [Call::Close(Pending)]);
    assert_eq!(b.flushed(), 50);
}

#[test]
fn a_pending_flush_does_not_delay_items_or_close() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    a.hold(Op::Flush);
    rig.send([101]);
    rig.send([102]);
    rig.apply(Order::Detach(1));
    let item = [Call::Ready(Done), Call::Send(Done), Call::Flush(Pending)];
    assert_eq!(a.calls(), [&item[..], &item, &[Call::Close(Done), Call::Drop]].concat());
}

// Streams.

#[test]
fn the_input_is_not_polled_after_its_end() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    let b = rig.attach(2, "b");
    a.hold(Op::Close);
    b.hold(Op::Close);
    rig.input.end();
    rig.sleep();
    let polls = rig.input.polls();
    let waker = rig.task.waker();
    b.release(Op::Close);
    rig.sleep();
    rig.apply(Order::Detach(7));
    waker.wake_by_ref();
    rig.sleep();
    a.release(Op::Close);
    assert!(rig.run().is_ready());
    assert_eq!(rig.input.polls(), polls);
}

#[test]
fn the_orders_are_not_polled_after_their_end_though_their_waker_fires() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    let waker = rig.orders.waker().unwrap();
    rig.orders.end();
    rig.sleep();
    let polls = rig.orders.polls();
    waker.wake_by_ref();
    rig.send([101]);
    waker.wake();
    rig.sleep();
    assert_eq!((a.items(), rig.orders.polls()), (vec![101], polls));
}

#[test]
fn a_waker_of_the_ended_orders_that_fires_repeatedly_delays_no_item() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    let waker = rig.orders.waker().unwrap();
    rig.orders.end();
    for n in 0..300 {
        let waker = waker.clone();
        rig.input.action(move || waker.wake());
        rig.input.push(100 + n % 100);
    }
    rig.sleep();
    assert_eq!(a.taken(), 300);
}

// The future.

#[test]
fn a_poll_after_completion_panics_and_names_the_type() {
    for finish in [false, true] {
        let mut rig = Rig::new();
        rig.attach(1, "a");
        if finish {
            rig.orders.push(Order::Finish);
        } else {
            rig.input.end();
        }
        assert!(rig.run().is_ready());
        for _ in 0..2 {
            let message = panic_message(|| _ = rig.task.poll());
            assert!(message.contains("Demux"), "{message}");
            assert!(rig.task.get_ref().is_terminated());
        }
    }
}

#[test]
fn it_is_terminated_after_completion_and_not_before() {
    let mut rig = Rig::new();
    assert!(!rig.task.get_ref().is_terminated());
    let a = rig.attach(1, "a");
    a.hold(Op::Close);
    assert!(!rig.task.get_ref().is_terminated());
    rig.input.end();
    rig.sleep();
    assert!(!rig.task.get_ref().is_terminated());
    a.release(Op::Close);
    assert!(rig.run().is_ready());
    assert!(rig.task.get_ref().is_terminated());
}

#[test]
fn totals_can_be_read_after_completion() {
    let mut rig = Rig::new();
    rig.attach(1, "a");
    rig.input.extend([101, 201]);
    rig.input.end();
    let output = rig.run();
    assert_eq!(output, std::task::Poll::Ready(rig.totals()));
    assert_eq!((rig.totals().delivered, rig.totals().unmatched), (1, 1));
    assert!(rig.task.get_ref().is_empty() && rig.task.get_ref().blocked_on().is_none());
}

// Random events.

/// xorshift64*
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        u32::try_from(high % u64::from(sides)).unwrap()
    }

    /// An index below `len`.
    fn pick(&mut self, len: usize) -> usize {
        self.roll(u32::try_from(len).unwrap()) as usize
    }

    fn op(&mut self) -> Op {
        [Op::Ready, Op::Flush, Op::Close][self.pick(3)]
    }
}

/// Admits nine of ten items.
struct Selective;

impl<E> Hooks<u32, u32, E> for Selective {
    fn admit(&mut self, _: stream_demux::Recipient<'_, u32>, item: &u32) -> bool {
        item % 10 != 9
    }
    fn discarded(&mut self, _: stream_demux::Recipient<'_, u32>, item: u32, why: Discarded) {
        // Items that it would not admit may also be discarded before `admit` is called.
        assert!(why != Discarded::NotAdmitted || item % 10 == 9);
    }
}

/// Causes a random event. Sinks are lenient, because wakers of earlier sinks in the same slots are
/// fired, too.
fn step(
    dice: &mut Dice,
    input: &StreamHandle<u32>,
    orders: &StreamHandle<Orders>,
    sinks: &mut Vec<SinkHandle<u32>>,
    leases: &mut Vec<Lease>,
) {
    let key = dice.roll(4);
    let pick = |dice: &mut Dice, sinks: &[SinkHandle<u32>]| {
        let recent = sinks.len().min(12);
        (recent > 0).then(|| sinks[sinks.len() - 1 - dice.pick(recent)].clone())
    };
    match dice.roll(20) {
        0..3 => {
            let (sink, handle) = scripted_sink(sinks.len());
            handle.lenient();
            sinks.push(handle);
            let overflows =
                [Overflow::Wait, Overflow::DropNewest, Overflow::DropOldest, Overflow::Evict];
            let mut attach = Attach::new(key, sink)
                .tag(sinks.len() as u64)
                .buffer(dice.pick(3))
                .overflow(overflows[dice.pick(4)]);
            if dice.roll(4) == 0 {
                attach = attach.limit(u64::from(dice.roll(5)));
            }
            if dice.roll(8) == 0 {
                attach = attach.catch_all();
            }
            if dice.roll(8) == 0 {
                attach = attach.keep_existing();
            }
            if dice.roll(2) == 0 {
                if dice.roll(2) == 0 || leases.is_empty() {
                    leases.push(Lease::new());
                }
                let last = leases.len() - 1;
                attach = attach.leased(&mut leases[last]);
            }
            orders.push(attach.into());
        }
        3 => orders.push(Order::Detach(key)),
        4 => orders.push(Order::Evict(key)),
        5 if !leases.is_empty() => {
            let lease = leases.swap_remove(dice.pick(leases.len()));
            match dice.roll(3) {
                0 => drop(lease),
                1 => lease.detach(),
                _ => lease.disarm(),
            }
        }
        6 => orders.stutter(),
        7..12 => {
            let Some(sink) = pick(dice, sinks) else { return };
            let op = dice.op();
            match dice.roll(6) {
                0 => sink.hold(op),
                1 => sink.allow(1 + dice.pick(3)),
                2 => sink.release(op),
                3 => sink.stutter(op, 1 + dice.pick(2)),
                4 => drop(sink.wake()),
                _ if dice.roll(4) == 0 && op == Op::Ready => sink.fail(Op::Send),
                _ if dice.roll(3) == 0 => sink.fail(op),
                _ => sink.open(),
            }
        }
        12 => input.stutter(),
        _ => input.extend((0..=dice.roll(4)).map(|n| key * 100 + n * 7 % 30)),
    }
}

#[test]
fn random_events_breach_no_contract_and_everything_ends() {
    for seed in 1..=300_u64 {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (input_stream, input) = scripted_stream("input");
        let (orders_stream, orders) = scripted_stream("orders");
        let key: fn(&u32) -> u32 = |n| n / 100;
        let demux = input_stream.demux_by(key, orders_stream).hooks(Selective);
        let budget = [1, 2, 3, 5, 16, 128][dice.pick(6)];
        let demux = demux.budget(budget).flush_every(1 + dice.pick(30));
        let mut task = Task::new(if seed % 2 == 0 { demux.multicast() } else { demux });
        let (mut sinks, mut leases) = (Vec::new(), Vec::new());
        for _ in 0..250 {
            step(&mut dice, &input, &orders, &mut sinks, &mut leases);
            let polled = match dice.roll(3) {
                0 => task.poll(), // possibly spurious
                1 => task.turns(1),
                _ => task.run(),
            };
            assert!(polled.is_pending());
            let all = task.get_ref().totals();
            let fates = all.unmatched + all.delivered + all.discarded + all.lost + all.queued;
            assert_eq!(all.received + all.copies, fates, "seed {seed}");
        }
        if seed % 3 == 0 {
            orders.push(Order::Finish);
        } else {
            input.end();
        }
        assert!(sinks.iter().all(|sink| sink.breaches().is_empty()));
        for sink in &sinks {
            sink.open();
            sink.release(Op::Flush);
            sink.release(Op::Close);
        }
        assert!(task.run().is_ready(), "seed {seed}: the demux did not complete");
        let all = task.get_ref().totals();
        assert_eq!((all.queued, all.attached), (0, all.detached), "seed {seed}");
        for sink in &sinks {
            let calls = sink.calls();
            assert!(sink.is_dropped(), "seed {seed}");
            let closed = calls.iter().filter(|call| **call == Call::Close(Done)).count();
            assert_eq!(closed, usize::from(sink.is_closed()), "seed {seed}");
            // All its items were flushed, unless it failed.
            assert!(!sink.is_closed() || sink.flushed() == sink.taken(), "seed {seed}");
        }
    }
}
