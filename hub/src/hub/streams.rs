//! The streams that the demux of a hub reads: [`Items`] and [`Orders`].

use std::collections::VecDeque;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use stream_demux::Order;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::message::Message;
use super::panics::Panics;
use super::shared::{Command, Shared, Start, lock};
use super::sink::HubSink;
use crate::life::Phase;

/// What was published, and the input of the hub, if it has one: an item of each in turn.
///
/// Ends when the hub closes and everything that was published is read, or when the input ends.
pub(super) struct Items<K, V, St> {
    shared: Arc<Shared<K, V>>,
    /// Items that were taken from the list.
    batch: VecDeque<Message<K, V>>,
    input: Option<Pin<Box<St>>>,
    /// The input is polled before the list.
    input_first: bool,
    /// The list was empty when it was looked at last.
    has_waited: bool,
    /// An item waits for room in the inbox of a key that was removed: no further item was read.
    is_held_back: bool,
}

impl<K, V, St: Stream<Item = (K, V)>> Items<K, V, St> {
    pub(super) fn new(shared: Arc<Shared<K, V>>, input: Option<St>) -> Self {
        let input = input.map(Box::pin);
        Self {
            shared,
            batch: VecDeque::new(),
            input,
            input_first: true,
            has_waited: false,
            is_held_back: false,
        }
    }

    /// How many items were published and are not yet routed, apart from those in the list.
    pub(super) fn len(&self) -> usize {
        self.batch.len()
    }

    /// Reads everything that was published to a hub that is closed. No publisher waits for room.
    pub(super) fn take_published(&mut self) {
        self.shared.items.take(&mut self.batch);
    }

    /// The keys of the items that were read and are not routed.
    pub(super) fn unread_keys(&self) -> impl Iterator<Item = &K> {
        self.batch.iter().map(Message::key)
    }

    pub(super) fn is_held_back(&self) -> bool {
        self.is_held_back
    }

    /// Returns `true`, once, if no item was read because one waited for room, and none does any more.
    pub(super) fn can_go_on(&mut self) -> bool {
        let can = self.is_held_back && !self.shared.life.is_waiting();
        if can {
            self.is_held_back = false;
        }
        can
    }

    /// Returns `true`, once, if several items have come since the list was found empty.
    pub(super) fn has_several_after_wait(&mut self) -> bool {
        let has_several = self.has_waited && self.shared.items.len() > 1;
        if has_several {
            self.has_waited = false;
        }
        has_several
    }

    /// An item gives its room back when it leaves the batch, not when the batch is taken: an item
    /// that is published then waits for as many others as there is room for, and not for twice as
    /// many.
    fn poll_published(&mut self, cx: &mut Context<'_>) -> Poll<Option<Message<K, V>>> {
        if self.batch.is_empty() {
            let answer = self.shared.items.poll_take(&mut self.batch, cx);
            self.has_waited = answer.is_pending();
            if !ready!(answer) {
                return Poll::Ready(None);
            }
        }
        let message = self.batch.pop_front();
        if message.is_some() {
            self.shared.room.add_permits(1);
        }
        Poll::Ready(message)
    }

    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<Option<Message<K, V>>> {
        let Some(input) = &mut self.input else { return Poll::Pending };
        // Looked at before each item: what the input still has is not read when the hub closes.
        if self.shared.life.phase() == Phase::Open {
            if let Some((key, item)) = ready!(input.as_mut().poll_next(cx)) {
                return Poll::Ready(Some(Message::new(key, item)));
            }
            self.shared.close();
        }
        self.input = None;
        Poll::Pending
    }
}

impl<K, V, St> Stream for Items<K, V, St>
where
    K: Hash + Eq + Clone,
    V: Clone,
    St: Stream<Item = (K, V)>,
{
    type Item = Message<K, V>;

    #[inline]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Message<K, V>>> {
        if self.shared.life.is_waiting() {
            // The task goes on when nothing waits any more.
            self.is_held_back = true;
            return Poll::Pending;
        }
        self.is_held_back = false;
        let mut answer = self.poll_message(cx);
        if let Poll::Ready(Some(message)) = &mut answer {
            message.number = self.shared.life.item.load(Relaxed) + 1;
            self.shared.life.item.store(message.number, Relaxed);
            if let Some(history) = &self.shared.history {
                history.push(message.key(), message.item.clone());
            }
        }
        answer
    }
}

impl<K, V, St: Stream<Item = (K, V)>> Items<K, V, St> {
    #[inline]
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Message<K, V>>> {
        if self.input.is_none() {
            return self.poll_published(cx);
        }
        self.input_first = !self.input_first;
        if self.input_first {
            if let Poll::Ready(message) = self.poll_input(cx) {
                return Poll::Ready(message);
            }
            return self.poll_published(cx);
        }
        match self.poll_published(cx) {
            Poll::Ready(Some(message)) => Poll::Ready(Some(message)),
            Poll::Ready(None) => {
                self.input = None;
                Poll::Ready(None)
            }
            Poll::Pending => match self.poll_input(cx) {
                // It has ended, so the list is closed.
                Poll::Pending if self.input.is_none() => self.poll_published(cx),
                answer => answer,
            },
        }
    }
}

impl<K, V, St> Unpin for Items<K, V, St> {}

/// Drops the items one by one: a second panic in one drop would abort the process.
impl<K, V, St> Drop for Items<K, V, St> {
    fn drop(&mut self) {
        let mut panics = Panics::default();
        for message in self.batch.drain(..) {
            panics.catch(|| drop(message));
        }
        panics.resume();
    }
}

/// The orders of the handles and, as soon as an attachment has a time-out, ticks. Never ends.
pub(super) struct Orders<K, V> {
    shared: Arc<Shared<K, V>>,
    batch: VecDeque<Command<K, V>>,
    ticker: Option<Interval>,
}

impl<K, V> Orders<K, V> {
    pub(super) fn new(shared: Arc<Shared<K, V>>) -> Self {
        Self { shared, batch: VecDeque::new(), ticker: None }
    }

    /// A sink is about to be attached: what its reader gets from elsewhere ends with the last item
    /// that was read.
    fn start(&self, start: &Start<K, V>)
    where
        K: Hash + Eq + Clone,
        V: Clone,
    {
        if let (Some(replay), Some(history)) = (&start.replay, &self.shared.history) {
            let mut items = history.last(&replay.key, replay.items);
            if replay.inbox.is_waited_for() && history.is_newest(&replay.key) {
                // The key was removed while its last item waited for room, and comes back. That item
                // was the last one that was read, and is going to enter the inbox behind these.
                drop(items.pop());
            }
            replay.inbox.put_some(items, replay.sink);
        }
        start.through.store(self.shared.life.item.load(Relaxed), Relaxed);
    }

    fn poll_command(&mut self, cx: &mut Context<'_>) -> Poll<Order<K, HubSink<V>>>
    where
        K: Hash + Eq + Clone,
        V: Clone,
    {
        loop {
            match self.batch.pop_front() {
                Some(Command::Order(order)) => return Poll::Ready(order),
                Some(Command::Start(start, order)) => {
                    self.start(&start);
                    return Poll::Ready(order);
                }
                Some(Command::Ask(question)) => {
                    lock(&self.shared.asked).push(question);
                    self.shared.is_asked.store(true, Relaxed);
                }
                None if ready!(self.shared.commands.poll_take(&mut self.batch, cx)) => {}
                None => return Poll::Pending,
            }
        }
    }
}

impl<K: Hash + Eq + Clone, V: Clone> Stream for Orders<K, V> {
    type Item = Order<K, HubSink<V>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Poll::Ready(order) = self.poll_command(cx) {
            return Poll::Ready(Some(order));
        }
        if self.ticker.is_none() && self.shared.life.needs_ticks.load(Relaxed) {
            let mut ticker = interval(self.shared.tick);
            ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
            self.ticker = Some(ticker);
        }
        match &mut self.ticker {
            Some(ticker) => ticker.poll_tick(cx).map(|_| Some(Order::Tick)),
            None => Poll::Pending,
        }
    }
}

impl<K, V> Unpin for Orders<K, V> {}

/// Drops the sinks one by one, as the items are.
impl<K, V> Drop for Orders<K, V> {
    fn drop(&mut self) {
        let mut panics = Panics::default();
        for command in self.batch.drain(..) {
            panics.catch(|| drop(command));
        }
        panics.resume();
    }
}
