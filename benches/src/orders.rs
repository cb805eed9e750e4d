//! What do orders cost: none at all, a storm of them, and orders that never pause?

use std::cell::{Cell, RefCell};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures::executor::block_on;
use futures::{Sink, Stream, StreamExt, channel::mpsc, stream};
use hashbrown::HashMap;
use stream_demux::{Attach, DemuxStreamExt, IntoOrder, Order, Overflow};

use crate::measure::{Contender, Group, Run};
use crate::parts::{Clock, Count, Item, Numbers, Receiving, Tally};

const KEYS: u64 = 3;

/// An orders channel in which nothing happens, of three makes, against none.
#[must_use]
pub fn idle(items: u64) -> Group {
    Group::new(
        "orders/idle",
        [
            Contender::new("pending()", items, |items| {
                idle_beside(items, |first| (first.chain(stream::pending()), ()))
            }),
            Contender::new("flume", items, |items| {
                idle_beside(items, |first| {
                    let (order, orders) = flume::unbounded();
                    block_on(first.for_each(async |one| order.send(one).expect("open")));
                    (orders.into_stream(), order)
                })
            }),
            Contender::new("tokio", items, |items| {
                idle_beside(items, |first| {
                    let (order, orders) = tokio::sync::mpsc::channel(KEYS as usize);
                    block_on(first.for_each(async |one| order.send(one).await.expect("open")));
                    (Receiving(orders), order)
                })
            }),
            Contender::new("futures", items, |items| {
                idle_beside(items, |first| {
                    let (order, orders) = mpsc::unbounded();
                    block_on(first.for_each(async |one| order.unbounded_send(one).expect("open")));
                    (orders, order)
                })
            }),
        ],
    )
}

type First = stream::Iter<std::vec::IntoIter<(u64, Count)>>;

/// Routes beside orders of which only the first few are ever given.
fn idle_beside<O, S>(items: u64, orders: impl FnOnce(First) -> (O, S)) -> Run
where
    O: Stream<Item = (u64, Count)>,
{
    let (clock, tally) = (Clock::default(), Tally::default());
    let first = (0..KEYS).map(|key| (key, Count(tally.clone()))).collect::<Vec<_>>();
    let (orders, sender) = orders(stream::iter(first));
    let totals = block_on(Numbers::new(items, KEYS, &clock).demux_by(|item| item.key, orders));
    drop(sender);
    assert_eq!(totals.delivered, items);
    clock.run(items, tally.arrived(items))
}

/// So many orders at once: a key comes, another goes, among a thousand that stay.
#[must_use]
pub fn storm(orders: u64) -> Group {
    Group::new(
        "orders/storm",
        [
            Contender::new("bare map", orders, storm_on_map),
            Contender::new("demux", orders, storm_on_demux),
        ],
    )
}

/// How many keys a storm leaves attached.
const CALM: u64 = 1_000;

enum Change {
    Come(u64, Count),
    Go(u64),
}

impl IntoOrder for Change {
    type Key = u64;
    type Sink = Count;

    fn into_order(self) -> Order<u64, Count> {
        match self {
            Self::Come(key, sink) => (key, sink).into(),
            Self::Go(key) => Order::Detach(key),
        }
    }
}

/// The oldest goes, a new one comes. The clock runs from the first order to the last.
struct Storm {
    given: u64,
    orders: u64,
    tally: Tally,
    clock: Clock,
}

impl Storm {
    fn new(orders: u64, clock: &Clock) -> Self {
        Self { given: 0, orders, tally: Tally::default(), clock: clock.clone() }
    }
}

impl Iterator for Storm {
    type Item = Change;

    fn next(&mut self) -> Option<Change> {
        match self.given {
            0 => self.clock.start(),
            given if given == self.orders => {
                self.clock.stop();
                return None;
            }
            _ => {}
        }
        let (pair, which) = (self.given / 2, self.given % 2);
        self.given += 1;
        Some(match which {
            0 => Change::Come(pair + CALM, Count(self.tally.clone())),
            _ => Change::Go(pair),
        })
    }
}

fn calm() -> impl Iterator<Item = Change> {
    let tally = Tally::default();
    (0..CALM).map(move |key| Change::Come(key, Count(tally.clone())))
}

fn storm_on_map(orders: u64) -> Run {
    let clock = Clock::default();
    let mut cx = Context::from_waker(Waker::noop());
    let (mut sinks, mut closed) = (HashMap::new(), 0);
    for change in calm().chain(Storm::new(orders, &clock)) {
        match change {
            Change::Come(key, sink) => {
                sinks.insert(key, sink);
            }
            Change::Go(key) => {
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

fn storm_on_demux(orders: u64) -> Run {
    let clock = Clock::default();
    let changes = stream::iter(calm().chain(Storm::new(orders, &clock)));
    let over = clock.clone();
    let input = stream::poll_fn(move |_| match over.is_over() {
        true => Poll::Ready(None),
        false => Poll::<Option<Item>>::Pending,
    });
    let totals = block_on(input.demux_by(|item| item.key, changes));
    assert_eq!(totals.attached, totals.detached);
    clock.run(orders, (totals.attached - CALM) * 2)
}

/// How many turns, at worst, a sink waits that was woken and is ready, while orders and input (or
/// the input alone) never pause? Counted are the polls that begin after the wake, the one that
/// serves it included.
#[must_use]
pub fn turns_until_served() -> usize {
    let budgets = [4, 5, 7, 8, 16, 128, 1_000];
    let cases = budgets.into_iter().flat_map(|budget| {
        [(budget, false, false), (budget, false, true), (budget, true, false), (budget, true, true)]
    });
    cases.map(|(budget, storm, within)| served_after(budget, storm, within)).max().unwrap_or(0)
}

/// A sink that is ready when it is let.
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

/// What the orders of [`served_after`] do next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    Calm,
    Stormy,
    /// Stormy, and the gate opens at the next order.
    Opening,
}

/// The worst of many tries: the gate is opened between two turns, or `within` one by an order.
fn served_after(budget: usize, storm: bool, within: bool) -> usize {
    let gate = Gate::default();
    let mood = Rc::new(Cell::new(Mood::Calm));
    let bell = Rc::new(RefCell::new(None::<Waker>));
    let attach = Attach::new(0, gate.clone()).buffer(1).overflow(Overflow::DropNewest);
    let orders = {
        let (gate, mood, bell) = (gate.clone(), Rc::clone(&mood), Rc::clone(&bell));
        let stormy = stream::poll_fn(move |cx| {
            match mood.get() {
                Mood::Calm => {
                    bell.replace(Some(cx.waker().clone()));
                    return Poll::Pending;
                }
                Mood::Stormy => {}
                Mood::Opening => {
                    mood.set(Mood::Stormy);
                    gate.open();
                }
            }
            Poll::Ready(Some(Order::Detach(u64::MAX)))
        });
        stream::iter([attach.into()]).chain(stormy)
    };
    let input = stream::repeat(Item { key: 0, value: 0 });
    let mut demux = pin!(input.demux_by(|item| item.key, orders).budget(budget));
    let mut cx = Context::from_waker(Waker::noop());
    let mut turn = || assert!(demux.as_mut().poll(&mut cx).is_pending());

    let mut worst = 0;
    for pause in 0..50 {
        mood.set(Mood::Calm);
        (0..8).for_each(|_| turn());
        if storm {
            mood.set(Mood::Stormy);
            bell.take().into_iter().for_each(Waker::wake);
        }
        (0..pause).for_each(|_| turn());
        let before = gate.0.taken.get();
        if within && storm {
            mood.set(Mood::Opening);
            turn();
        } else {
            gate.open();
        }
        let mut turns = 0;
        while gate.0.taken.get() == before {
            turn();
            turns += 1;
            assert!(turns < 1_000, "with a budget of {budget} a woken sink is never served");
        }
        worst = worst.max(turns);
    }
    worst
}
