//! Items, sinks, streams and hooks that write to the tape what the demux does with them.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};

use futures::{Sink, Stream};
use stream_demux::{Attach, Detached, Discarded, Hooks, IntoOrder, Order, Recipient};

use super::super::{Broken, Op, ScriptedSink, ScriptedStream, SinkHandle, lock};
use super::event::reasons::{FINISHED, IDLE, LIMITED, REFUSED, REPLACED, REQUESTED};
use super::event::{EndReason, Event, Id, OrderKind, Outcome, Tape};
use super::world::World;

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(pub(super) u8);

pub(super) struct Item {
    pub(super) seq: u32,
    pub(super) key: u8,
    pub(super) tape: Tape,
    /// A reference that counts the items, so that none is lost silently.
    pub(super) live: Arc<()>,
}

impl Clone for Item {
    fn clone(&self) -> Self {
        self.tape.push(Event::Clone(self.seq));
        let Self { seq, key, ref tape, ref live } = *self;
        Self { seq, key, tape: tape.clone(), live: Arc::clone(live) }
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.seq)
    }
}

pub(super) fn key_of(item: &Item) -> Key {
    Key(item.key)
}

pub(super) struct WatchedSink {
    pub(super) id: Id,
    pub(super) sink: ScriptedSink<Item>,
    pub(super) handle: SinkHandle<Item>,
    pub(super) tape: Tape,
}

impl WatchedSink {
    pub(super) fn outcome(&self, op: Op, answer: &Poll<Result<(), Broken>>) -> Outcome {
        match answer {
            Poll::Ready(Ok(())) => Outcome::Done,
            Poll::Ready(Err(_)) => Outcome::Failed,
            Poll::Pending if self.handle.is_waiting(op) => Outcome::Pending,
            Poll::Pending => Outcome::Yields,
        }
    }
}

impl Sink<Item> for WatchedSink {
    type Error = Broken;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.tape.push(Event::Ask(self.id, Op::Ready));
        let answer = Pin::new(&mut self.sink).poll_ready(cx);
        self.tape.push(Event::Ready(self.id, self.outcome(Op::Ready, &answer)));
        answer
    }

    fn start_send(mut self: Pin<&mut Self>, item: Item) -> Result<(), Broken> {
        let seq = item.seq;
        self.tape.push(Event::Ask(self.id, Op::Send));
        let answer = Pin::new(&mut self.sink).start_send(item);
        let outcome = if answer.is_ok() { Outcome::Done } else { Outcome::Failed };
        self.tape.push(Event::Send(self.id, seq, outcome));
        answer
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.tape.push(Event::Ask(self.id, Op::Flush));
        let answer = Pin::new(&mut self.sink).poll_flush(cx);
        self.tape.push(Event::Flush(self.id, self.outcome(Op::Flush, &answer)));
        answer
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.tape.push(Event::Ask(self.id, Op::Close));
        let answer = Pin::new(&mut self.sink).poll_close(cx);
        self.tape.push(Event::Close(self.id, self.outcome(Op::Close, &answer)));
        answer
    }
}

impl Drop for WatchedSink {
    fn drop(&mut self) {
        self.tape.push(Event::Drop(self.id));
    }
}

/// An order that was sent.
pub(super) struct SentOrder {
    pub(super) kind: OrderKind,
    pub(super) order: Order<Key, WatchedSink>,
}

impl IntoOrder for SentOrder {
    type Key = Key;
    type Sink = WatchedSink;
    fn into_order(self) -> Order<Key, WatchedSink> {
        self.order
    }
}

/// A function that makes an event of what a stream returned.
pub(super) type ToEvent<T> = Box<dyn FnMut(&Poll<Option<T>>) -> Event>;

pub(super) struct WatchedStream<T> {
    pub(super) stream: ScriptedStream<T>,
    /// The event that is recorded before the stream is polled, if any.
    pub(super) asks: Option<Event>,
    pub(super) event: ToEvent<T>,
    pub(super) tape: Tape,
}

impl<T> Stream for WatchedStream<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(asks) = &self.asks {
            self.tape.push(asks.clone());
        }
        let answer = Pin::new(&mut self.stream).poll_next(cx);
        let event = (self.event)(&answer);
        self.tape.push(event);
        answer
    }
}

/// Executes the command that is planned for the next hook, if there is one.
fn act_in_hook(world: &Weak<Mutex<World>>) {
    let Some(world) = world.upgrade() else { return };
    let action = lock(&world).in_hook.take();
    if let Some(cmd) = action {
        lock(&world).act(cmd);
    }
}

/// Returns the closure for `or_attach_with`.
pub(super) fn attach_on_demand(
    world: Weak<Mutex<World>>,
    tape: Tape,
    variety: u8,
) -> impl FnMut(&Item) -> Option<Attach<Key, WatchedSink>> {
    move |&Item { seq, key, .. }| {
        let made = lock(&*world.upgrade()?).make_on_demand(seq, key, variety);
        act_in_hook(&world);
        tape.push(Event::OnDemand(seq, made.as_ref().map(|(id, _)| *id)));
        made.map(|(_, attach)| attach)
    }
}

pub(super) struct Recorder {
    pub(super) tape: Tape,
    pub(super) world: Weak<Mutex<World>>,
    /// The divisor for `admit`. An item is refused if the divisor divides the sum of its number and
    /// the tag. With 0, none is.
    pub(super) refuses: u32,
    /// The divisor for `supersedes`. An item supersedes another if the divisor divides the sum of
    /// their numbers. With 0, none does.
    pub(super) supersedes: u32,
}

impl Recorder {
    pub(super) fn hear(&mut self, event: Event) {
        self.tape.push(event);
        act_in_hook(&self.world);
    }

    pub(super) fn name(&mut self, to: Recipient<'_, Key>) -> Id {
        let att = usize::try_from(to.tag).unwrap_or(usize::MAX);
        let named = self.world.upgrade().and_then(|world| lock(&world).keys.get(att).copied());
        if named.is_some_and(|key| key != to.key.0) {
            self.tape.push(Event::Misnamed(att, to.key.0));
        }
        att
    }
}

impl Hooks<Key, Item, Broken> for Recorder {
    fn admit(&mut self, to: Recipient<'_, Key>, item: &Item) -> bool {
        let att = self.name(to);
        let sum = item.seq + u32::try_from(att).unwrap_or(0);
        let admits = self.refuses == 0 || sum % self.refuses != 0;
        self.hear(Event::Admit(att, item.seq, admits));
        admits
    }

    fn attached(&mut self, to: Recipient<'_, Key>) {
        let att = self.name(to);
        self.hear(Event::Attached(att));
    }

    fn detached(&mut self, to: Recipient<'_, Key>, why: Detached<Broken>) {
        let att = self.name(to);
        let why = match why {
            Detached::Finished => EndReason::Left(FINISHED),
            Detached::Requested => EndReason::Left(REQUESTED),
            Detached::Replaced => EndReason::Left(REPLACED),
            Detached::Limited => EndReason::Left(LIMITED),
            Detached::Refused => EndReason::Left(REFUSED),
            Detached::Idle => EndReason::Left(IDLE),
            Detached::Evicted => EndReason::Evicted,
            Detached::Stalled => EndReason::Stalled,
            Detached::Overflowed => EndReason::Overflowed,
            Detached::Failed(Broken(op)) => EndReason::Failed(op),
            _ => EndReason::Unknown,
        };
        self.hear(Event::Detached(att, why));
    }

    fn key_attached(&mut self, key: &Key) {
        self.hear(Event::KeyAttached(key.0));
    }

    fn key_detached(&mut self, key: &Key) {
        self.hear(Event::KeyDetached(key.0));
    }

    fn supersedes(&mut self, to: Recipient<'_, Key>, waiting: &Item, new: &Item) -> bool {
        let att = self.name(to);
        let sum = waiting.seq + new.seq;
        let supersedes = self.supersedes != 0 && sum % self.supersedes == 0;
        self.hear(Event::Supersedes(att, waiting.seq, new.seq, supersedes));
        supersedes
    }

    fn unmatched(&mut self, item: Item) {
        self.hear(Event::Unmatched(item.seq));
    }

    fn discarded(&mut self, to: Recipient<'_, Key>, item: Item, why: Discarded) {
        let att = self.name(to);
        self.hear(Event::Discarded(att, item.seq, why));
    }

    fn blocked(&mut self, on: Recipient<'_, Key>) {
        let att = self.name(on);
        self.hear(Event::Blocked(att));
    }

    fn unblocked(&mut self, on: Recipient<'_, Key>) {
        let att = self.name(on);
        self.hear(Event::Unblocked(att));
    }
}
