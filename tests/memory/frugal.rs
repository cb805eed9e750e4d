//! Sinks that only count, and streams that compute their items. They do not allocate, so every
//! allocation is one of the crate.

#![allow(unreachable_pub, reason = "nothing is reachable from outside a test binary")]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures::{Sink, Stream};
use stream_demux::{Demux, DemuxStreamExt, Order};

use model::counting::{Usage, allocations_during};
use sink_test::Task;

/// A sink that counts its items. Sinks that share a gate can be blocked together.
#[derive(Clone, Default)]
pub struct Counter(pub Rc<Gate>);

#[derive(Default)]
pub struct Gate {
    pub taken: Cell<u64>,
    pub flushed: Cell<u64>,
    pub shut: Cell<bool>,
    pub waiting: Cell<Option<Waker>>,
}

impl Gate {
    pub fn open(&self) {
        self.shut.set(false);
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
    }
}

impl<V> Sink<V> for Counter {
    type Error = ();

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), ()>> {
        if self.0.shut.get() {
            self.0.waiting.set(Some(cx.waker().clone()));
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
    fn start_send(self: Pin<&mut Self>, _: V) -> Result<(), ()> {
        self.0.taken.set(self.0.taken.get() + 1);
        Ok(())
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        self.0.flushed.set(self.0.flushed.get() + 1);
        Poll::Ready(Ok(()))
    }
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }
}

pub type Orders = Order<u64, Counter>;

/// State shared by a test and its streams.
#[derive(Default)]
pub struct Feed {
    /// Number of remaining items. Items are numbered from 0.
    pub items: Cell<u64>,
    pub next: Cell<u64>,
    pub input: Cell<Option<Waker>>,
    pub orders: RefCell<VecDeque<Orders>>,
    pub inbox: Cell<Option<Waker>>,
    /// Called with the number of each item before it is yielded.
    pub before: RefCell<Option<Before>>,
}

pub type Before = Box<dyn FnMut(u64, &Feed)>;

impl Feed {
    pub fn order(&self, order: impl Into<Orders>) {
        self.orders.borrow_mut().push_back(order.into());
        if let Some(waker) = self.inbox.take() {
            waker.wake();
        }
    }

    pub fn send(&self, items: u64) {
        self.items.set(self.items.get() + items);
        if let Some(waker) = self.input.take() {
            waker.wake();
        }
    }
}

pub struct Items(pub Rc<Feed>);

impl Stream for Items {
    type Item = u64;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<u64>> {
        let feed = &self.0;
        if feed.items.get() == 0 {
            feed.input.set(Some(cx.waker().clone()));
            return Poll::Pending;
        }
        let next = feed.next.get();
        feed.items.set(feed.items.get() - 1);
        feed.next.set(next + 1);
        if let Some(before) = &mut *feed.before.borrow_mut() {
            before(next, feed);
        }
        Poll::Ready(Some(next))
    }
}

pub struct Inbox(pub Rc<Feed>);

impl Stream for Inbox {
    type Item = Orders;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Orders>> {
        let order = self.0.orders.borrow_mut().pop_front();
        if order.is_none() {
            self.0.inbox.set(Some(cx.waker().clone()));
            return Poll::Pending;
        }
        Poll::Ready(order)
    }
}

pub type Split<F> = Demux<Items, stream_demux::ByValue<F>, Inbox>;

/// Creates a demux and its feed.
pub fn demux<F: FnMut(&u64) -> u64>(key: F) -> (Split<F>, Rc<Feed>) {
    let feed = Rc::new(Feed::default());
    feed.orders.borrow_mut().reserve(1_024);
    (Items(Rc::clone(&feed)).demux_by(key, Inbox(Rc::clone(&feed))).budget(1_000), feed)
}

/// Runs the task until it parks. Returns its allocations.
#[track_caller]
pub fn run<F: Future>(task: &mut Task<F>) -> Usage {
    let (pending, usage) = allocations_during(|| task.run_within(100_000).is_pending());
    assert!(pending);
    usage
}
