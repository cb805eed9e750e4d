//! The demux of the gateway, and the ways into it.

use std::hash::RandomState;
use std::sync::Arc;
use std::task::Poll;

use futures::{FutureExt, Stream, stream};
use stream_demux::{Attach, DemuxStreamExt, Order, Overflow};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, unconstrained};
use tokio::time::{Instant, timeout_at};

use crate::board::Board;
use crate::budget::Budget;
use crate::config::Config;
use crate::hooks::Watch;
use crate::message::{Key, Message};
use crate::outlet::Subscription;

/// Messages, or orders, that wait for the demux: who brings more waits.
const INBOX: usize = 256;
/// How far a busy input is read on before a client sees what it was sent, in messages: so that with a
/// thousand busy keys a few messages to a client still share a system call. It takes 20 ms to read as
/// many, at 100,000 a second. A client that is sent more is flushed before ([`crate::outlet`]).
const FLUSH_EVERY: usize = 2048;

/// Where messages are put.
#[derive(Clone)]
pub struct Input(mpsc::Sender<Letter>);

enum Letter {
    Message(Message),
    End,
}

/// Why a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The input waits for a client.
    Blocked,
    /// The gateway stops.
    Ended,
}

impl Input {
    pub async fn send(&self, message: Message) -> Result<(), Refused> {
        self.0.send(Letter::Message(message)).await.map_err(|_| Refused::Ended)
    }

    /// The same, but waits no longer than this.
    pub async fn offer(&self, message: Message, until: Instant) -> Result<(), Refused> {
        timeout_at(until, self.send(message)).await.unwrap_or(Err(Refused::Blocked))
    }

    /// What is in it now is routed; no more is taken.
    pub async fn end(&self) {
        let _ = self.0.send(Letter::End).await;
    }
}

pub type Orders = mpsc::Sender<Order<Key, Subscription>>;

/// Starts the demux, in a task of its own; it runs until the input is ended, and all is delivered.
pub fn start(
    config: &Config,
    watch: Watch,
    budget: Arc<Budget>,
) -> (Input, Orders, JoinHandle<()>) {
    let (input, letters) = mpsc::channel(INBOX);
    let (orders, mut orders_in) = mpsc::channel::<Order<Key, Subscription>>(INBOX);
    let board = Arc::clone(&watch.board);
    let mut demux = read(letters, Arc::clone(&board), budget, !config.drops())
        .demux_by_ref(Message::key, stream::poll_fn(move |cx| orders_in.poll_recv(cx)))
        .multicast()
        .buffer(config.buffer as usize)
        .overflow(config.overflow.into())
        .flush_every(flush_every(config))
        .with_hasher(RandomState::new()) // strangers choose the keys
        .hooks(watch);
    let routing = futures::future::poll_fn(move |cx| {
        let mut done = demux.poll_unpin(cx);
        if done.is_pending() {
            // With many clients to flush, it lets other tasks run first, up to 16 times: they may feed
            // it. As long as some do, that is too long. If nothing came meanwhile, it flushes now.
            done = demux.poll_unpin(cx);
        }
        board.set_totals(demux.totals());
        done.map(drop)
    });
    // The demux has a budget of its own. Tokio's, 128 operations, would end half-way through a message
    // for more clients than that, and make the rest of them seem slow.
    (Input(input), orders, tokio::spawn(unconstrained(routing)))
}

/// What is not flushed is not acknowledged, and counts among what waits for a client: a small part of the
/// prefetch, and nothing if one message is all that may wait.
fn flush_every(config: &Config) -> usize {
    match config.share() {
        1 => 1,
        _ => (usize::from(config.broker.prefetch.get()) / 4).clamp(1, FLUSH_EVERY),
    }
}

/// If nothing is dropped, it waits for room in the budget.
fn read(
    mut letters: mpsc::Receiver<Letter>,
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
            match futures::ready!(letters.poll_recv(cx)) {
                Some(Letter::Message(mut message)) => {
                    if let Some(history) = &board.history {
                        history.keep(&mut message, &budget);
                    }
                    message.charge_to(&budget);
                    board.received(message.key());
                    return Poll::Ready(Some(message));
                }
                // Nobody is told "taken" after this; what was taken before is still in there.
                Some(Letter::End) => letters.close(),
                None => return Poll::Ready(None),
            }
        }
    })
}

/// An order to attach.
pub fn attach(subscription: Subscription) -> Attach<Key, Subscription> {
    let (key, tag) = (Key::clone(&subscription.terms.key), subscription.terms.id);
    let latest = subscription.terms.latest;
    let attach = Attach::new(key, subscription).tag(tag);
    if latest { attach.buffer(1).overflow(Overflow::Conflate) } else { attach }
}
