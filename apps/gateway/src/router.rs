//! The demux of the gateway, its input and its orders.

use std::hash::RandomState;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use futures::{FutureExt, Stream, stream};
use stream_demux::{Attach, DemuxStreamExt, Order, Overflow};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::{JoinHandle, unconstrained};
use tokio::time::{Instant, timeout_at};

use crate::board::Board;
use crate::budget::Budget;
use crate::config::Config;
use crate::hooks::GatewayHooks;
use crate::interest::Interruption;
use crate::message::{Key, Message};
use crate::outlet::Subscription;

/// Capacity of the channels to the demux, in messages and in orders.
const INBOX: usize = 256;
/// How many messages of a busy input are read before clients are flushed: enough that with a
/// thousand busy keys a few messages to a client share a system call. At 100,000 messages a second
/// that is 20 ms. A client that is sent more is flushed earlier ([`crate::outlet`]).
const FLUSH_EVERY: usize = 2048;

/// The sender of messages to the demux.
#[derive(Clone)]
pub struct Input(mpsc::Sender<Event>);

enum Event {
    Message(Message),
    End,
}

/// Why a message was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The input is blocked by a client.
    Blocked,
    /// The gateway is stopping.
    Ended,
}

impl Input {
    pub async fn send(&self, message: Message) -> Result<(), Refused> {
        self.0.send(Event::Message(message)).await.map_err(|_| Refused::Ended)
    }

    /// Sends a message, but waits only until the deadline.
    pub async fn offer(&self, message: Message, until: Instant) -> Result<(), Refused> {
        match self.0.try_send(Event::Message(message)) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(event)) => {
                let sending = Box::pin(timeout_at(until, self.0.send(event)));
                let sent = sending.await.map_err(|_| Refused::Blocked)?;
                sent.map_err(|_| Refused::Ended)
            }
            Err(TrySendError::Closed(_)) => Err(Refused::Ended),
        }
    }

    /// Closes the input; messages that are in it are still routed.
    pub async fn end(&self) {
        let _ = self.0.send(Event::End).await;
    }
}

pub type Orders = mpsc::Sender<Order<Key, Subscription>>;

/// Room for one order.
pub type Turn<'a> = mpsc::Permit<'a, Order<Key, Subscription>>;

/// Starts the demux in its own task. The task ends when the input has ended and everything is
/// delivered.
pub fn start(
    config: &Config,
    hooks: GatewayHooks,
    mut interruptions: mpsc::UnboundedReceiver<Interruption>,
    budget: Arc<Budget>,
) -> (Input, Orders, JoinHandle<()>) {
    let (input, events) = mpsc::channel(INBOX);
    let (orders, mut orders_in) = mpsc::channel::<Order<Key, Subscription>>(INBOX);
    let board = Arc::clone(&hooks.board);
    let mut demux = read(events, Arc::clone(&board), budget, !config.drops())
        .demux_by_ref(Message::key, stream::poll_fn(move |cx| orders_in.poll_recv(cx)))
        .multicast()
        .buffer(config.buffer as usize)
        .overflow(config.overflow.into())
        .flush_every(flush_every(config))
        .with_hasher(RandomState::new()) // keys are chosen by untrusted clients
        .hooks(hooks);
    let mut last = Instant::now();
    let routing = futures::future::poll_fn(move |cx| {
        while let Poll::Ready(Some(interruption)) = interruptions.poll_recv(cx) {
            demux.hooks_ref().tell(interruption);
        }
        // Beside other busy tasks, messages that wait for a flush would do so for many turns.
        let now = Instant::now();
        Pin::new(&mut demux).elapse(now - mem::replace(&mut last, now));
        let mut done = demux.poll_unpin(cx);
        if done.is_pending() {
            // Before flushing many clients, the demux may yield up to 64 times so that other tasks
            // can bring more messages. Polled twice, it needs half as many turns of the runtime,
            // which take long beside other busy tasks.
            done = demux.poll_unpin(cx);
        }
        board.set_totals(demux.totals());
        done.map(drop)
    });
    // Unconstrained, because the demux is polled twice in a poll of this task: with tokio's budget,
    // a client that has room could look full the second time. It also saves a turn for each 128
    // copies, which is a quarter of the processor time if a message goes to more clients than that.
    (Input(input), orders, tokio::spawn(unconstrained(routing)))
}

/// Unflushed messages are unacknowledged and count as waiting for the client: allow a small part of
/// the prefetch, and flush each message if a client's share is one.
fn flush_every(config: &Config) -> usize {
    match config.share() {
        1 => 1,
        _ => (usize::from(config.broker.prefetch.get()) / 4).clamp(1, FLUSH_EVERY),
    }
}

/// Reads the input. If the policy drops nothing, it waits for room in the budget.
fn read(
    mut events: mpsc::Receiver<Event>,
    board: Arc<Board>,
    budget: Arc<Budget>,
    waits: bool,
) -> impl Stream<Item = Message> + Unpin {
    let mut is_full = false;
    stream::poll_fn(move |cx| {
        loop {
            let has_room = !waits || budget.poll_room(cx).is_ready();
            if is_full == has_room {
                is_full = !has_room;
                board.blocked(is_full.then_some((None, None)));
            }
            if is_full {
                return Poll::Pending;
            }
            match futures::ready!(events.poll_recv(cx)) {
                Some(Event::Message(mut message)) => {
                    message.mark_routed(board.ticks.now());
                    if let Some(history) = &board.history {
                        history.keep(&mut message, &budget);
                    }
                    message.charge_to(&budget);
                    board.received(message.key());
                    return Poll::Ready(Some(message));
                }
                // No message is accepted after this; accepted ones are still in the channel.
                Some(Event::End) => events.close(),
                None => return Poll::Ready(None),
            }
        }
    })
}

/// Returns the order that attaches a subscription.
pub fn attach(subscription: Subscription) -> Attach<Key, Subscription> {
    let (key, tag) = (Key::clone(&subscription.terms.key), subscription.terms.id);
    let latest = subscription.terms.latest;
    let attach = Attach::new(key, subscription).tag(tag);
    if latest { attach.buffer(1).overflow(Overflow::Conflate) } else { attach }
}
