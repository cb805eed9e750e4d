//! `Demux::or_attach_with`: a closure may attach a sink for an item that matches no key.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::common::{
    Broken, Log, Op, Orders, Recorder, ScriptedStream, SinkHandle, StreamHandle, Task, Terms,
    scripted_sink, scripted_stream,
};
use futures::{Sink, Stream};
use stream_demux::{
    Attach, ByValue, Demux, DemuxStreamExt, Detached, Discarded, Hooks, Lease, OrAttach, Order,
    Recipient, Totals,
};

type Maker = Box<dyn FnMut(&u32) -> Option<Terms> + Send>;
type Split = Demux<
    ScriptedStream<u32>,
    OrAttach<ByValue<fn(&u32) -> u32>, Maker>,
    ScriptedStream<Orders>,
    Recorder,
>;

/// A demux and the handles of the sinks made on demand. Items are numbers; the key of item `n` is
/// `n / 100`.
struct Rig {
    task: Task<Split>,
    input: StreamHandle<u32>,
    orders: StreamHandle<Orders>,
    log: Log,
    made: Arc<Mutex<Vec<SinkHandle<u32>>>>,
}

impl Rig {
    /// Attaches a sink under the key of each unmatched item.
    fn new() -> Self {
        Self::making(|item, sink| Some(sink.attach(item / 100)))
    }

    fn making(maker: impl FnMut(u32, NewSink<'_>) -> Option<Terms> + Send + 'static) -> Self {
        Self::with(|demux| demux, maker)
    }

    fn with(
        settings: impl FnOnce(Split) -> Split,
        mut maker: impl FnMut(u32, NewSink<'_>) -> Option<Terms> + Send + 'static,
    ) -> Self {
        let (items, input) = scripted_stream("input");
        let (inbox, orders) = scripted_stream("orders");
        let (log, made) = (Log::new(), Arc::default());
        let attach: Maker = {
            let (log, made) = (log.clone(), Arc::clone(&made));
            Box::new(move |&item| {
                log.push(format!("calls {item}"));
                maker(item, NewSink { log: &log, made: &made })
            })
        };
        let key: fn(&u32) -> u32 = |n| n / 100;
        let demux = items
            .demux_by(key, inbox)
            .or_attach_with(attach)
            .hooks(Recorder::new(&log, |_, item| item % 100 != 99));
        log.keep_only(|line| {
            !line.starts_with("admit ") && !line.starts_with("key ") && !line.ends_with("flushed")
        });
        Self { task: Task::new(settings(demux)), input, orders, log, made }
    }

    #[track_caller]
    fn lines(&mut self) -> Vec<String> {
        assert!(self.task.run().is_pending());
        let all = self.totals();
        let fates = all.unmatched + all.delivered + all.discarded + all.lost + all.queued;
        assert_eq!(all.received + all.copies, fates, "{all:?}");
        self.log.take()
    }

    #[track_caller]
    fn send(&mut self, items: impl IntoIterator<Item = u32>) -> Vec<String> {
        self.input.extend(items);
        self.lines()
    }

    #[track_caller]
    fn apply(&mut self, order: impl Into<Orders>) -> Vec<String> {
        self.orders.push(order.into());
        self.lines()
    }

    /// Returns the `n`-th sink that was made, from 0.
    fn made(&self, n: usize) -> SinkHandle<u32> {
        self.made.lock().unwrap()[n].clone()
    }

    fn count_made(&self) -> usize {
        self.made.lock().unwrap().len()
    }

    fn totals(&self) -> Totals {
        self.task.get_ref().totals()
    }
}

/// The sink that is about to be made.
struct NewSink<'a> {
    log: &'a Log,
    made: &'a Mutex<Vec<SinkHandle<u32>>>,
}

impl NewSink<'_> {
    /// Creates a sink that is named by its number, from 0.
    fn attach(self, key: u32) -> Terms {
        self.attach_after(key, |_| ())
    }

    fn attach_after(self, key: u32, prepare: impl FnOnce(&SinkHandle<u32>)) -> Terms {
        let mut made = self.made.lock().unwrap();
        let (sink, handle) = scripted_sink(made.len());
        handle.log_to(self.log);
        prepare(&handle);
        made.push(handle);
        Attach::new(key, sink)
    }
}

#[test]
fn sink_is_attached_as_by_an_order_and_gets_the_item_it_was_made_for() {
    let mut rig = Rig::new();
    rig.log.keep_only(|line| !line.ends_with("flushed"));
    assert_eq!(
        rig.send([101, 102]),
        [
            "calls 101",
            "attached 1",
            "key 1 attached",
            "admit 101 to 1",
            "0 sent 101",
            "admit 102 to 1",
            "0 sent 102",
        ]
    );
    assert_eq!(rig.totals().unmatched, 0);
    assert!(rig.task.get_ref().contains_key(&1));
}

#[test]
fn item_without_a_sink_is_unmatched_and_the_closure_is_called_for_the_next() {
    let mut rig = Rig::making(|_, _| None);
    assert_eq!(rig.send([101, 101]), ["calls 101", "unmatched 101", "calls 101", "unmatched 101"]);
}

#[test]
fn closure_is_not_called_for_a_key_that_is_attached() {
    let mut rig = Rig::new();
    let (sink, a) = scripted_sink("a");
    rig.apply((1, sink));
    assert_eq!(rig.send([101, 102]), [""; 0]);
    assert_eq!(a.items(), [101, 102]);
}

/// The order was ready before the item.
#[test]
fn closure_is_not_called_for_a_key_whose_order_came_with_the_item() {
    let mut rig = Rig::new();
    let (sink, a) = scripted_sink("a");
    let orders = rig.orders.clone();
    rig.input.action(move || orders.push((1, sink).into()));
    assert_eq!(rig.send([101]), ["attached 1"]);
    assert_eq!(a.items(), [101]);
}

#[test]
fn sink_under_another_key_does_not_get_the_item() {
    let mut rig = Rig::making(|_, sink| Some(sink.attach(7)));
    assert_eq!(rig.send([101]), ["calls 101", "attached 7", "unmatched 101"]);
    assert_eq!(rig.send([701]), ["0 sent 701"]);
    // It replaces the previous sink, as with an order.
    rig.send([102]);
    rig.send([702]);
    assert_eq!((rig.made(0).items(), rig.made(1).items()), (vec![701], vec![702]));
    assert!(rig.made(0).is_closed());
}

#[test]
fn attachment_that_takes_no_key_leaves_the_item_unmatched() {
    let mut rig = Rig::making(|_, sink| Some(sink.attach(1).limit(0)));
    let lines = rig.send([101]);
    assert_eq!(
        lines,
        ["calls 101", "attached 1", "0 closed", "0 dropped", "detached 1 Limited", "unmatched 101"]
    );

    for detach in [false, true] {
        let mut rig = Rig::making(move |_, sink| {
            let mut lease = Lease::new();
            let attach = sink.attach(1).leased(&mut lease);
            if detach {
                lease.detach();
            }
            Some(attach)
        });
        let lines = rig.send([101]);
        let why = if detach { "Requested" } else { "Evicted" };
        assert_eq!(lines[..2], ["calls 101", "attached 1"]);
        assert!(lines.contains(&format!("detached 1 {why}")), "{lines:?}");
        assert!(lines.contains(&"unmatched 101".to_owned()), "{lines:?}");
        assert_eq!(rig.made(0).taken(), 0);
    }
}

#[test]
fn item_that_still_has_no_sink_goes_to_the_catch_all() {
    let mut rig = Rig::making(|item, sink| (item < 200).then(|| sink.attach(7)));
    let (sink, caught) = scripted_sink("catch-all");
    rig.apply(Attach::new(9, sink).catch_all());
    rig.send([101, 201, 701]);
    assert_eq!((caught.items(), rig.made(0).items()), (vec![101, 201], vec![701]));
    assert_eq!(rig.totals().unmatched, 0);
}

#[test]
fn catch_all_that_is_made_for_an_item_gets_it() {
    let mut rig = Rig::making(|_, sink| Some(sink.attach(9).catch_all()));
    rig.send([101]);
    assert_eq!(rig.made(0).items(), [101]);
    rig.send([201]);
    assert_eq!(
        (rig.count_made(), rig.made(1).items()),
        (2, vec![201]),
        "the closure is called before the catch-all gets the item"
    );
}

#[test]
fn limit_1_makes_a_sink_for_each_item() {
    let mut rig = Rig::making(|item, sink| Some(sink.attach(item / 100).limit(1)));
    rig.send([101, 102, 103]);
    for n in 0..3 {
        assert_eq!(rig.made(n as usize).items(), [101 + n]);
        assert!(rig.made(n as usize).is_closed());
    }
    assert_eq!(rig.totals().unmatched, 0);
}

#[test]
fn item_waits_for_a_sink_that_is_not_ready_under_its_policy() {
    for buffer in [0, 1] {
        let mut rig = Rig::making(move |item, sink| {
            Some(sink.attach_after(item / 100, SinkHandle::park).buffer(buffer))
        });
        let lines = rig.send([101, 102]);
        assert_eq!(lines, ["calls 101", "attached 1", "blocked 1"]);
        assert_eq!(rig.input.left(), 1 - buffer);
        rig.made(0).open();
        rig.lines();
        assert_eq!((rig.made(0).items(), rig.count_made()), (vec![101, 102], 1));
    }
}

#[test]
fn sink_that_yields_at_once_gets_the_item_too() {
    let mut rig = Rig::making(|item, sink| {
        Some(sink.attach_after(item / 100, |sink| sink.stutter(Op::Ready, 1)))
    });
    rig.send([101, 201, 102]);
    assert_eq!((rig.made(0).items(), rig.made(1).items()), (vec![101, 102], vec![201]));
}

#[test]
fn item_of_a_sink_that_fails_at_once_is_discarded_and_the_closure_is_called_for_the_next() {
    for op in [Op::Ready, Op::Send] {
        let mut rig = Rig::making(move |item, sink| {
            Some(sink.attach_after(item / 100, |sink| {
                if item == 101 {
                    sink.fail_quietly(op);
                }
            }))
        });
        rig.send([101, 102]);
        assert_eq!((rig.count_made(), rig.made(1).items()), (2, vec![102]), "{op:?}");
        let totals = rig.totals();
        assert_eq!((totals.discarded + totals.lost, totals.unmatched), (1, 0), "{op:?}");
    }
}

#[test]
fn sink_is_made_even_if_its_item_is_not_admitted() {
    let mut rig = Rig::new();
    assert_eq!(rig.send([199]), ["calls 199", "attached 1", "discarded 199 of 1 NotAdmitted"]);
    assert_eq!(rig.send([101]), ["0 sent 101"]);
}

#[test]
fn closure_is_called_again_when_the_sink_of_a_key_has_left() {
    type Leave = fn(&mut Rig);
    let ways: [Leave; 4] = [
        |rig| drop(rig.apply(Order::Detach(1))),
        |rig| drop(rig.apply(Order::Evict(1))),
        |rig| {
            rig.made(0).fail_quietly(Op::Flush);
            rig.send([150]);
        },
        |rig| drop(rig.apply(Order::Tick)),
    ];
    for (n, leave) in ways.into_iter().enumerate() {
        let idle = u32::from(n == 3);
        let mut rig =
            Rig::making(move |item, sink| Some(sink.attach(item / 100).idle_timeout(idle)));
        rig.send([101]);
        if n == 3 {
            rig.apply(Order::Tick); // this tick comes after an item
        }
        leave(&mut rig);
        assert!(rig.made(0).is_dropped(), "way {n}");
        rig.send([102]);
        assert_eq!((rig.count_made(), rig.made(1).items()), (2, vec![102]), "way {n}");
    }
}

#[test]
fn new_sink_receives_while_the_one_before_is_still_closing() {
    let mut rig = Rig::making(|item, sink| Some(sink.attach(item / 100).idle_timeout(1)));
    rig.send([101]);
    rig.made(0).hold(Op::Close);
    rig.apply(Order::Tick);
    rig.apply(Order::Tick);
    assert!(rig.made(0).is_closing());
    rig.send([102]);
    assert_eq!(rig.made(1).items(), [102]);
    assert_eq!((rig.task.get_ref().len(), rig.task.get_ref().draining()), (1, 1));
}

#[test]
fn closure_is_not_called_for_a_group_that_exists() {
    let mut rig = Rig::with(Demux::multicast, |item, sink| Some(sink.attach(item / 100)));
    rig.send([101]);
    let (sink, joined) = scripted_sink("joined");
    rig.apply((1, sink));
    rig.send([102]);
    assert_eq!((rig.made(0).items(), joined.items()), (vec![101, 102], vec![102]));
    assert_eq!(rig.count_made(), 1);
}

#[test]
fn closure_is_not_called_after_the_end() {
    for finish in [false, true] {
        let mut rig = Rig::new();
        rig.send([101]);
        rig.made(0).hold(Op::Close);
        if finish {
            rig.apply(Order::Finish);
            rig.input.extend([201, 301]);
        } else {
            rig.input.end();
        }
        let lines = rig.lines();
        assert!(!lines.iter().any(|line| line.starts_with("calls")), "{lines:?}");
        rig.made(0).release(Op::Close);
        assert!(rig.task.run().is_ready());
        assert_eq!(rig.count_made(), 1);
    }
}

#[test]
fn attachment_on_demand_costs_one_unit_of_the_budget() {
    for budget in [2, 10, 64] {
        let mut rig = Rig::with(
            move |demux| demux.budget(budget),
            |item, sink| Some(sink.attach(item / 100)),
        );
        rig.input.extend((1..=200).map(|key| key * 100));
        let mut turns = 0;
        let mut before = 0;
        while rig.input.left() > 0 {
            assert!(rig.task.poll().is_pending());
            let made = rig.count_made();
            assert!(made - before <= budget / 2, "{} in a turn of {budget}", made - before);
            before = made;
            turns += 1;
        }
        assert!(turns >= 400 / budget, "{turns} turns of {budget}");
        rig.lines();
        assert_eq!((rig.totals().delivered, rig.totals().unmatched), (200, 0));
    }
}

/// An item that was read with the last unit of the budget still gets its sink.
#[test]
fn budget_of_one_makes_progress() {
    let mut rig = Rig::with(|demux| demux.budget(1), |item, sink| Some(sink.attach(item / 100)));
    rig.send((1..=20).map(|key| key * 100));
    assert_eq!((rig.totals().delivered, rig.count_made()), (20, 20));
}

/// The closure may send orders, which are applied later, and drop leases.
#[test]
fn closure_may_send_orders() {
    let orders: Arc<Mutex<Option<StreamHandle<Orders>>>> = Arc::default();
    let mut rig = {
        let orders = Arc::clone(&orders);
        Rig::making(move |item, sink| {
            let orders = orders.lock().unwrap();
            orders.as_ref().unwrap().push(Order::Detach(item / 100));
            Some(sink.attach(item / 100))
        })
    };
    *orders.lock().unwrap() = Some(rig.orders.clone());
    let lines = rig.send([101]);
    assert_eq!(
        lines,
        ["calls 101", "attached 1", "0 sent 101", "0 closed", "0 dropped", "detached 1 Requested"]
    );
    rig.send([102, 103]);
    assert_eq!(rig.totals().delivered, 3);
    orders.lock().unwrap().take();
}

// Workers on demand, reaped when idle.

/// The shared state of the long test.
#[derive(Default)]
struct World {
    /// The number of remaining items, and the number of the next item.
    items: Cell<u64>,
    next: Cell<u64>,
    /// How many keys there are, and after how many items the next comes up.
    keys: u64,
    pace: u64,
    dice: Cell<u64>,
    ticks: Cell<u32>,
    orders: Cell<Option<Waker>>,
    /// Wakers of sinks that are not ready.
    waiting: RefCell<Vec<Waker>>,
    /// The last worker that was made for a key, and the last item that a worker of the key got.
    workers: RefCell<HashMap<u64, (u64, Option<u64>)>>,
    made: Cell<u64>,
    receiving: RefCell<HashMap<u64, u32>>,
    left: Cell<u64>,
}

impl World {
    fn roll(&self, bound: u64) -> u64 {
        let mut dice = self.dice.get();
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        self.dice.set(dice);
        (dice >> 20) % bound
    }

    fn wake_sinks(&self) {
        let waiting = self.waiting.take();
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// Items are pairs of key and number. The keys change over time: each is busy for a while and then
/// unused for long.
struct Busy(Rc<World>);

impl Stream for Busy {
    type Item = (u64, u64);

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<(u64, u64)>> {
        let world = &self.0;
        let n = world.next.get();
        if n == world.items.get() {
            return Poll::Ready(None);
        }
        world.next.set(n + 1);
        if world.roll(200) == 0 {
            world.ticks.set(world.ticks.get() + 1);
            if let Some(orders) = world.orders.take() {
                orders.wake();
            }
        }
        if world.roll(100) == 0 {
            world.wake_sinks();
        }
        let ahead = if n % world.pace == 0 { 29 } else { world.roll(30) };
        Poll::Ready(Some(((n / world.pace + ahead) % world.keys, n)))
    }
}

struct Ticks(Rc<World>);

impl Stream for Ticks {
    type Item = Order<u64, Worker>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.0.ticks.get().checked_sub(1) {
            None => {
                self.0.orders.set(Some(cx.waker().clone()));
                Poll::Pending
            }
            Some(left) => {
                self.0.ticks.set(left);
                Poll::Ready(Some(Order::Tick))
            }
        }
    }
}

struct Worker {
    key: u64,
    number: u64,
    world: Rc<World>,
}

impl Worker {
    /// Sometimes returns `Pending`, until the test wakes the sinks.
    fn may_wait(&self, cx: &Context<'_>) -> Poll<Result<(), Broken>> {
        if self.world.roll(50) == 0 {
            self.world.waiting.borrow_mut().push(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl Sink<(u64, u64)> for Worker {
    type Error = Broken;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.may_wait(cx)
    }
    fn start_send(self: Pin<&mut Self>, (key, n): (u64, u64)) -> Result<(), Broken> {
        let mut workers = self.world.workers.borrow_mut();
        let (number, last) = workers.get_mut(&key).unwrap();
        assert_eq!(
            (self.key, self.number),
            (key, *number),
            "the item is for another worker than that of {key}"
        );
        assert!(last.is_none_or(|last| last < n), "out of order: {n} after {last:?}");
        *last = Some(n);
        Ok(())
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.may_wait(cx)
    }
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.may_wait(cx)
    }
}

/// Checks that each key has at most one receiving attachment.
struct Census(Rc<World>);

impl Hooks<u64, (u64, u64), Broken> for Census {
    fn key_attached(&mut self, key: &u64) {
        let mut receiving = self.0.receiving.borrow_mut();
        let receivers = receiving.entry(*key).or_default();
        *receivers += 1;
        assert_eq!(*receivers, 1, "two attachments receive under {key}");
    }
    fn key_detached(&mut self, key: &u64) {
        let mut receiving = self.0.receiving.borrow_mut();
        let receivers = receiving.get_mut(key).unwrap();
        assert_eq!(*receivers, 1, "two attachments left {key}");
        *receivers -= 1;
    }
    fn detached(&mut self, to: Recipient<'_, u64>, why: Detached<Broken>) {
        assert!(matches!(why, Detached::Idle | Detached::Finished), "{} {why:?}", to.key);
        self.0.left.set(self.0.left.get() + u64::from(why == Detached::Idle));
    }
    fn unmatched(&mut self, item: (u64, u64)) {
        panic!("{item:?} is unmatched");
    }
    fn discarded(&mut self, to: Recipient<'_, u64>, item: (u64, u64), why: Discarded) {
        panic!("{item:?} of {} is discarded: {why}", to.key);
    }
}

/// Runs to the end: no item is lost or unmatched, and each goes to the only worker of its key.
fn play(items: u64, keys: u64, pace: u64, budget: usize) -> Rc<World> {
    let world = Rc::new(World { keys, pace, ..World::default() });
    world.items.set(items);
    world.dice.set(88_172_645_463_325_252);
    let make = {
        let world = Rc::clone(&world);
        move |&(key, _): &(u64, u64)| {
            let number = world.made.get();
            world.made.set(number + 1);
            let mut workers = world.workers.borrow_mut();
            workers.entry(key).or_insert((number, None)).0 = number;
            let worker = Worker { key, number, world: Rc::clone(&world) };
            Some(Attach::new(key, worker).idle_timeout(2).buffer(8))
        }
    };
    let demux = Busy(Rc::clone(&world))
        .demux_by(|&(key, _)| key, Ticks(Rc::clone(&world)))
        .or_attach_with(make)
        .hooks(Census(Rc::clone(&world)))
        .budget(budget);
    let mut task = Task::new(demux);
    let totals = loop {
        if let Poll::Ready(totals) = task.turns(1_000) {
            break totals;
        }
        world.wake_sinks();
    };
    assert_eq!((totals.delivered, totals.received), (items, items));
    assert_eq!((totals.attached, totals.detached), (world.made.get(), world.made.get()));
    world
}

#[test]
fn workers_that_are_made_on_demand_and_reaped_when_idle_lose_nothing() {
    let items = if cfg!(debug_assertions) { 50_000 } else { 1_000_000 };
    for budget in [3, 128] {
        let world = play(items, 700, 40, budget);
        let (left, keys) = (world.left.get(), world.workers.borrow().len() as u64);
        assert!(left > keys.min(items / 400), "too few keys were used again: {left} of {keys}");
    }
}

/// A million with optimisation: without, they would take too long.
#[test]
fn a_million_keys_come_and_go_and_some_come_back() {
    let keys: u64 = if cfg!(debug_assertions) { 20_000 } else { 1_000_000 };
    let world = play(2 * keys + keys / 5, keys, 2, 128);
    let (had_worker, reaped) = (world.workers.borrow().len() as u64, world.left.get());
    assert_eq!(had_worker, keys);
    assert!(world.made.get() > keys + keys / 20, "few come back");
    assert!(reaped > keys / 2, "only {reaped} were reaped before the end");
}
