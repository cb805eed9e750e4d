//! The cost of orders: of an idle channel, of many orders, and of endless orders.

use std::cell::{Cell, RefCell};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use cpu_time::ThreadTime;
use futures::executor::block_on;
use futures::{Sink, Stream, StreamExt, channel::mpsc, stream};
use hashbrown::HashMap;
use stream_demux::{Attach, DemuxStreamExt, IntoOrder, Order, Overflow};

use crate::measure::{Contender, Group, Run};
use crate::parts::{Clock, Count, Item, Numbers, Tally};
use crate::readers::DEFAULT_BUDGET;
use crate::receiving::Receiving;

const KEYS: u64 = 3;

/// An idle orders channel of three kinds, compared with no channel.
#[must_use]
pub fn idle(items: u64) -> Group {
    Group::new(
        "orders/idle",
        [
            Contender::new("pending()", items, |items| {
                idle_beside(items, |first_orders| (first_orders.chain(stream::pending()), ()))
            }),
            Contender::new("flume", items, |items| {
                idle_beside(items, |first_orders| {
                    let (sender, orders) = flume::unbounded();
                    block_on(
                        first_orders.for_each(async |order| sender.send(order).expect("open")),
                    );
                    (orders.into_stream(), sender)
                })
            }),
            Contender::new("tokio", items, |items| {
                idle_beside(items, |first_orders| {
                    let (sender, orders) = tokio::sync::mpsc::channel(KEYS as usize);
                    block_on(
                        first_orders
                            .for_each(async |order| sender.send(order).await.expect("open")),
                    );
                    (Receiving(orders), sender)
                })
            }),
            Contender::new("futures", items, |items| {
                idle_beside(items, |first_orders| {
                    let (sender, orders) = mpsc::unbounded();
                    block_on(
                        first_orders
                            .for_each(async |order| sender.unbounded_send(order).expect("open")),
                    );
                    (orders, sender)
                })
            }),
        ],
    )
}

type FirstOrders = stream::Iter<std::vec::IntoIter<(u64, Count)>>;

/// Routes items with an orders stream that is idle after the first orders.
fn idle_beside<O, S>(items: u64, orders: impl FnOnce(FirstOrders) -> (O, S)) -> Run
where
    O: Stream<Item = (u64, Count)>,
{
    let (clock, tally) = (Clock::default(), Tally::default());
    let first_orders = (0..KEYS).map(|key| (key, Count(tally.clone()))).collect::<Vec<_>>();
    let (orders, sender) = orders(stream::iter(first_orders));
    let totals = block_on(Numbers::new(items, KEYS, &clock).demux_by(|item| item.key, orders));
    drop(sender);
    assert_eq!(totals.delivered, items);
    clock.run(items, tally.arrived(items))
}

/// Many orders at once: keys are attached and detached in turn, beside a thousand that stay.
#[must_use]
pub fn churn(orders: u64) -> Group {
    Group::new(
        "orders/churn",
        [
            Contender::new("bare map", orders, churn_on_map),
            Contender::new("demux", orders, churn_on_demux),
        ],
    )
}

/// The number of keys that stay attached.
const STAYING: u64 = 1_000;

enum Change {
    Attach(u64, Count),
    Detach(u64),
}

impl IntoOrder for Change {
    type Key = u64;
    type Sink = Count;

    fn into_order(self) -> Order<u64, Count> {
        match self {
            Self::Attach(key, sink) => (key, sink).into(),
            Self::Detach(key) => Order::Detach(key),
        }
    }
}

/// Attaches a new key and detaches the oldest, in turn. The clock runs from the first order to the
/// last.
struct Churn {
    sent: u64,
    orders: u64,
    tally: Tally,
    clock: Clock,
}

impl Churn {
    fn new(orders: u64, clock: &Clock) -> Self {
        Self { sent: 0, orders, tally: Tally::default(), clock: clock.clone() }
    }
}

impl Iterator for Churn {
    type Item = Change;

    fn next(&mut self) -> Option<Change> {
        match self.sent {
            0 => self.clock.start(),
            sent if sent == self.orders => {
                self.clock.stop();
                return None;
            }
            _ => {}
        }
        let (pair, step) = (self.sent / 2, self.sent % 2);
        self.sent += 1;
        Some(match step {
            0 => Change::Attach(pair + STAYING, Count(self.tally.clone())),
            _ => Change::Detach(pair),
        })
    }
}

fn attach_staying() -> impl Iterator<Item = Change> {
    let tally = Tally::default();
    (0..STAYING).map(move |key| Change::Attach(key, Count(tally.clone())))
}

fn churn_on_map(orders: u64) -> Run {
    let clock = Clock::default();
    let mut cx = Context::from_waker(Waker::noop());
    let (mut sinks, mut closed) = (HashMap::new(), 0);
    for change in attach_staying().chain(Churn::new(orders, &clock)) {
        match change {
            Change::Attach(key, sink) => {
                sinks.insert(key, sink);
            }
            Change::Detach(key) => {
                if let Some(mut sink) = sinks.remove(&key) {
                    closed += u64::from(close(&mut sink, &mut cx).is_ready());
                }
            }
        }
    }
    clock.run(orders, closed * 2)
}

fn close(sink: &mut Count, cx: &mut Context<'_>) -> Poll<Result<(), ()>> {
    Sink::<Item>::poll_close(Pin::new(sink), cx)
}

fn churn_on_demux(orders: u64) -> Run {
    let clock = Clock::default();
    let changes = stream::iter(attach_staying().chain(Churn::new(orders, &clock)));
    let clock_of_orders = clock.clone();
    let input = stream::poll_fn(move |_| match clock_of_orders.is_stopped() {
        true => Poll::Ready(None),
        false => Poll::<Option<Item>>::Pending,
    });
    let totals = block_on(input.demux_by(|item| item.key, changes));
    assert_eq!(totals.attached, totals.detached);
    clock.run(orders, (totals.attached - STAYING) * 2)
}

/// Returns the most turns that a woken sink waits while the input is endless, with and without
/// endless orders. Counts the polls that begin after the wake, including the one that serves the
/// sink.
#[must_use]
pub fn turns_until_served() -> usize {
    let budgets = [4, 5, 7, 8, 16, 128, 1_000];
    let cases = budgets.into_iter().flat_map(|budget| {
        [(budget, false, false), (budget, false, true), (budget, true, false), (budget, true, true)]
    });
    let waits = cases.flat_map(|(budget, endless, by_order)| waits(budget, endless, by_order));
    waits.map(|wait| wait.turns).max().unwrap_or(0)
}

/// Returns how long a woken sink waits for its turn while orders come without end and nothing is
/// set, in nanoseconds of processor time.
#[must_use]
pub fn delays_beside_orders() -> Vec<f64> {
    let waits = (0..20).flat_map(|_| waits(DEFAULT_BUDGET, true, false));
    waits.map(|wait| wait.time.as_secs_f64() * 1e9).collect()
}

/// What a woken sink waits until it gets an item.
#[derive(Debug, Clone, Copy)]
struct Wait {
    turns: usize,
    time: Duration,
}

/// A sink that is ready once for each time that it is opened.
#[derive(Clone, Default)]
struct Gate(Rc<GateState>);

#[derive(Default)]
struct GateState {
    open: Cell<bool>,
    taken: Cell<u64>,
    waker: RefCell<Option<Waker>>,
}

impl Gate {
    fn open(&self) {
        self.0.open.set(true);
        if let Some(waker) = self.0.waker.take() {
            waker.wake();
        }
    }
}

impl Sink<Item> for Gate {
    type Error = ();

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), ()>> {
        if self.0.open.get() {
            return Poll::Ready(Ok(()));
        }
        self.0.waker.replace(Some(cx.waker().clone()));
        Poll::Pending
    }

    fn start_send(self: Pin<&mut Self>, _: Item) -> Result<(), ()> {
        self.0.taken.set(self.0.taken.get() + 1);
        self.0.open.set(false);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }
}

/// What the orders stream of [`waits`] does next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OrdersMode {
    Pending,
    Endless,
    /// Endless, and the next order opens the gate.
    OpenGate,
}

/// Returns the waits of many tries. The gate is opened between two turns or, with `by_order`, by an
/// order during a turn.
fn waits(budget: usize, endless: bool, by_order: bool) -> Vec<Wait> {
    let gate = Gate::default();
    let mode = Rc::new(Cell::new(OrdersMode::Pending));
    let orders_waker = Rc::new(RefCell::new(None::<Waker>));
    let attach = Attach::new(0, gate.clone()).buffer(1).overflow(Overflow::DropNewest);
    let orders = {
        let (gate, mode, orders_waker) = (gate.clone(), Rc::clone(&mode), Rc::clone(&orders_waker));
        let endless_orders = stream::poll_fn(move |cx| {
            match mode.get() {
                OrdersMode::Pending => {
                    orders_waker.replace(Some(cx.waker().clone()));
                    return Poll::Pending;
                }
                OrdersMode::Endless => {}
                OrdersMode::OpenGate => {
                    mode.set(OrdersMode::Endless);
                    gate.open();
                }
            }
            Poll::Ready(Some(Order::Detach(u64::MAX)))
        });
        stream::iter([attach.into()]).chain(endless_orders)
    };
    let input = stream::repeat(Item { key: 0, value: 0 });
    let mut demux = pin!(input.demux_by(|item| item.key, orders).budget(budget));
    let mut cx = Context::from_waker(Waker::noop());
    let mut turn = || assert!(demux.as_mut().poll(&mut cx).is_pending());

    let mut waits = Vec::new();
    for pause in 0..50 {
        mode.set(OrdersMode::Pending);
        (0..8).for_each(|_| turn());
        if endless {
            mode.set(OrdersMode::Endless);
            orders_waker.take().into_iter().for_each(Waker::wake);
        }
        (0..pause).for_each(|_| turn());
        let taken_before = gate.0.taken.get();
        if by_order && endless {
            mode.set(OrdersMode::OpenGate);
            turn();
        } else {
            gate.open();
        }
        let (mut turns, start) = (0, ThreadTime::now());
        while gate.0.taken.get() == taken_before {
            turn();
            turns += 1;
            assert!(turns < 1_000, "with a budget of {budget}, a woken sink is not served");
        }
        waits.push(Wait { turns, time: start.elapsed() });
    }
    waits
}
