//! Items, sinks, streams and hooks that write to the tape what the demux does with them.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};

use futures::{Sink, Stream};
use sink_test::{Broken, Op, ScriptedSink, ScriptedStream};
use stream_demux::{Attach, Detached, Discarded, Hooks, IntoOrder, Order, Recipient};

use crate::event::{Event, Id, OrderKind, Outcome, Request, Tape, Terms};
use crate::lock;
use crate::script::Settings;
use crate::world::World;

/// The key of an attachment. It is not `Clone`, because keys need not be.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Key(pub u16);

pub struct Item {
    pub seq: u32,
    pub key: u16,
    pub tape: Tape,
    /// A reference that counts the items, so that none is lost silently.
    pub live: Arc<()>,
}

impl Clone for Item {
    fn clone(&self) -> Self {
        self.tape.push(Event::Clone(self.seq));
        let (tape, live) = (self.tape.clone(), Arc::clone(&self.live));
        Self { seq: self.seq, key: self.key, tape, live }
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.seq.fmt(f)
    }
}

/// A bounded channel that several sinks send to. As with a `PollSender`, `poll_ready` reserves a
/// place, and a sink keeps its position in the queue for one.
pub struct Pool {
    free: usize,
    reserved: Vec<Id>,
    waiting: VecDeque<(Id, Waker)>,
}

impl Pool {
    pub fn new(free: usize) -> Self {
        Self { free, reserved: Vec::new(), waiting: VecDeque::new() }
    }

    fn reserve(&mut self, id: Id, waker: &Waker) -> bool {
        if !self.reserved.contains(&id) {
            let place = self.waiting.iter().position(|(other, _)| *other == id);
            let place = place.unwrap_or_else(|| {
                self.waiting.push_back((id, waker.clone()));
                self.waiting.len() - 1
            });
            self.waiting[place].1.clone_from(waker);
            if self.free == 0 || place > 0 {
                return false;
            }
            self.waiting.pop_front();
            self.free -= 1;
            self.reserved.push(id);
        }
        true
    }

    /// Frees places. Returns the wakers of those that get them.
    #[must_use]
    pub fn release(&mut self, places: usize) -> Vec<Waker> {
        let first = self.waiting.drain(..places.min(self.waiting.len()));
        let (ids, wakers): (Vec<_>, Vec<_>) = first.unzip();
        self.free = (self.free + places - ids.len()).min(1_000_000);
        self.reserved.extend(ids);
        wakers
    }

    /// Forgets a sink, which used its place, or is dropped and frees it.
    fn leave(&mut self, id: Id, frees: bool) -> Vec<Waker> {
        let before = self.reserved.len();
        self.reserved.retain(|other| *other != id);
        self.waiting.retain(|(other, _)| *other != id);
        let places = before - self.reserved.len();
        if frees { self.release(places) } else { Vec::new() }
    }
}

pub struct WatchedSink {
    pub id: Id,
    pub sink: ScriptedSink<Item>,
    pub pool: Option<Arc<Mutex<Pool>>>,
    pub tape: Tape,
}

impl WatchedSink {
    pub fn poll(&mut self, op: Op, cx: &Context<'_>) -> Poll<Result<(), Broken>> {
        let (woken, start) = (Event::Woken(self.id), self.tape.len());
        let waker = self.tape.record(woken.clone(), cx.waker());
        let cx = &mut Context::from_waker(&waker);
        let sink = Pin::new(&mut self.sink);
        let mut answer = match op {
            Op::Ready => sink.poll_ready(cx),
            Op::Flush => sink.poll_flush(cx),
            Op::Send | Op::Close => sink.poll_close(cx),
        };
        if op == Op::Ready && matches!(answer, Poll::Ready(Ok(()))) {
            let has_place = |pool: &Arc<Mutex<Pool>>| lock(pool).reserve(self.id, &waker);
            answer = if self.pool.iter().all(has_place) { answer } else { Poll::Pending };
        }
        let outcome = match answer {
            Poll::Ready(Ok(())) => Outcome::Done,
            Poll::Ready(Err(_)) => Outcome::Failed,
            Poll::Pending if lock(&self.tape.0)[start..].contains(&woken) => Outcome::Yields,
            Poll::Pending => Outcome::Pending,
        };
        self.tape.push(Event::Polled(self.id, op, outcome));
        answer
    }

    fn leave_pool(&self, frees: bool) {
        let woken = self.pool.iter().flat_map(|pool| lock(pool).leave(self.id, frees));
        woken.for_each(Waker::wake);
    }
}

impl Sink<Item> for WatchedSink {
    type Error = Broken;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.poll(Op::Ready, cx)
    }

    fn start_send(mut self: Pin<&mut Self>, item: Item) -> Result<(), Broken> {
        let seq = item.seq;
        let answer = Pin::new(&mut self.sink).start_send(item);
        let outcome = if answer.is_ok() { Outcome::Done } else { Outcome::Failed };
        self.tape.push(Event::Send(self.id, seq, outcome));
        self.leave_pool(false);
        answer
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.poll(Op::Flush, cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.poll(Op::Close, cx)
    }
}

impl Drop for WatchedSink {
    fn drop(&mut self) {
        self.tape.push(Event::Drop(self.id));
        self.leave_pool(true);
    }
}

/// What an order attaches, as plain data.
pub struct Made {
    pub id: Id,
    pub terms: Terms,
    pub sink: WatchedSink,
}

/// What an order attaches: as the reference gets it, and as the crate does.
pub enum Offer {
    Plain(Made),
    Crate(Attach<Key, WatchedSink>),
}

/// An order that was sent.
pub struct SentOrder {
    pub kind: OrderKind,
    pub offer: Option<Offer>,
}

impl IntoOrder for SentOrder {
    type Key = Key;
    type Sink = WatchedSink;
    fn into_order(self) -> Order<Key, WatchedSink> {
        match (self.kind, self.offer) {
            (_, Some(Offer::Crate(attach))) => attach.into(),
            (OrderKind::Detach(key), _) => Order::Detach(Key(key)),
            (OrderKind::Evict(key), _) => Order::Evict(Key(key)),
            (OrderKind::Tick, _) => Order::Tick,
            (OrderKind::Finish, _) => Order::Finish,
            (OrderKind::Abort, _) => crate::subject::abort(),
            (OrderKind::Attach(_), _) => unreachable!("this order is for the reference"),
        }
    }
}

pub struct WatchedStream<T> {
    pub stream: ScriptedStream<T>,
    /// The event that is recorded when the waker of the stream fires, if any.
    pub wakes: Option<Event>,
    /// Returns the event of what the stream returned.
    pub event: fn(&Poll<Option<T>>) -> Event,
    pub tape: Tape,
}

impl<T> Stream for WatchedStream<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let waker = match &self.wakes {
            Some(event) => self.tape.record(event.clone(), cx.waker()),
            None => cx.waker().clone(),
        };
        let answer = Pin::new(&mut self.stream).poll_next(&mut Context::from_waker(&waker));
        self.tape.push((self.event)(&answer));
        answer
    }
}

/// The hooks. The crate calls them through [`Hooks`], the reference directly.
#[derive(Default)]
pub struct Recorder {
    pub tape: Tape,
    pub world: Weak<Mutex<World>>,
    pub settings: Settings,
}

impl Recorder {
    /// Records a call, and executes the command that is planned for the next hook, if any.
    pub fn hear(&self, event: Event) {
        self.tape.push(event);
        let command = self.world.upgrade().and_then(|world| lock(&world).in_hook.take());
        if let (Some(world), Some(command)) = (self.world.upgrade(), command) {
            lock(&world).act(command);
        }
    }

    pub fn admits(&self, id: Id, item: &Item) -> bool {
        let sum = item.seq as usize + id;
        let admits = sum.checked_rem(self.settings.refuses as usize) != Some(0);
        self.hear(Event::Admit(id, item.seq, admits));
        admits
    }

    pub fn is_superseded(&self, id: Id, waiting: &Item, new: &Item) -> bool {
        let is = (waiting.seq + new.seq).checked_rem(self.settings.supersedes) == Some(0);
        self.hear(Event::Supersedes(id, waiting.seq, new.seq, is));
        is
    }

    /// Returns what the leases of an attachment have requested.
    pub fn request_of(&self, id: Id) -> Request {
        self.world.upgrade().map(|world| lock(&world).requests[id]).unwrap_or_default()
    }

    /// Makes what is attached for an item that matches no key.
    pub fn make_on_demand(&self, item: &Item) -> Option<Offer> {
        let world = self.world.upgrade()?;
        let made = lock(&world).make_on_demand(item.seq, item.key, self.settings.on_demand);
        let (id, offer) = made.unzip();
        self.hear(Event::OnDemand(item.seq, id));
        offer
    }

    /// Records a call that names an attachment.
    fn name(&self, to: &Recipient<'_, Key>) -> Id {
        let id = usize::try_from(to.tag).unwrap();
        let world = self.world.upgrade();
        assert!(world.is_none_or(|world| lock(&world).terms[id].key == to.key.0), "key of {id}");
        id
    }
}

impl Hooks<Key, Item, Broken> for Recorder {
    fn admit(&mut self, to: Recipient<'_, Key>, item: &Item) -> bool {
        self.admits(self.name(&to), item)
    }
    fn attached(&mut self, to: Recipient<'_, Key>) {
        self.hear(Event::Attached(self.name(&to)));
    }
    fn detached(&mut self, to: Recipient<'_, Key>, why: Detached<Broken>) {
        let why = if let Detached::Failed(Broken(op)) = why { op } else { why.as_str() };
        self.hear(Event::Detached(self.name(&to), why));
    }
    fn key_attached(&mut self, key: &Key) {
        self.hear(Event::KeyAttached(key.0));
    }
    fn key_detached(&mut self, key: &Key) {
        self.hear(Event::KeyDetached(key.0));
    }
    fn supersedes(&mut self, to: Recipient<'_, Key>, waiting: &Item, new: &Item) -> bool {
        self.is_superseded(self.name(&to), waiting, new)
    }
    fn unmatched(&mut self, item: Item) {
        self.hear(Event::Unmatched(item.seq));
    }
    fn discarded(&mut self, to: Recipient<'_, Key>, item: Item, why: Discarded) {
        self.hear(Event::Discarded(self.name(&to), item.seq, why.as_str()));
    }
    fn blocked(&mut self, on: Recipient<'_, Key>) {
        self.hear(Event::Blocked(self.name(&on)));
    }
    fn unblocked(&mut self, on: Recipient<'_, Key>) {
        self.hear(Event::Unblocked(self.name(&on)));
    }
}
