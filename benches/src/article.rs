//! The benchmark of the article that this crate began with: three clients, cloned `String`
//! messages, `Vec` sinks, and four loops written by hand.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures::executor::block_on;
use futures::future::{self, Either, FutureExt};
use futures::{Sink, SinkExt, Stream, StreamExt, select, stream};
use hashbrown::HashMap;
use stream_demux::DemuxStreamExt;
use stream_partition::StreamPartitionExt;
use stream_router::StreamRouter;

use crate::measure::{Contender, Group, Run};
use crate::parts::Clock;
use crate::route::select_loop;

const CLIENTS: usize = 3;

/// Returns all contenders.
#[must_use]
pub fn group(messages: u64) -> Group {
    Group::new(
        "article",
        [
            Contender::new("bare loop", messages, bare),
            Contender::new("demux", messages, |messages| {
                run(messages, |input, orders| async {
                    input.demux_by(|message| message.to, orders).await;
                })
            }),
            Contender::new("select_biased!", messages, |messages| {
                run(messages, |input, orders| select_loop(input, orders, |message| message.to))
            }),
            Contender::new("select!", messages, |messages| run(messages, select_loop_fair)).loses(),
            Contender::new("select-all", messages, |messages| run(messages, select_all)).loses(),
            Contender::new("lossy", messages, |messages| run(messages, lossy)).loses(),
            Contender::new("stream_router", messages, router),
            Contender::new("stream-partition", messages, partition),
        ],
    )
}

#[derive(Debug, Clone)]
struct Message {
    to: usize,
    text: String,
}

fn text(to: usize) -> String {
    format!("message for {to}")
}

/// An input of cloned messages, to each client in turn.
struct Messages {
    templates: [Message; CLIENTS],
    next: usize,
    remaining: u64,
    clock: Clock,
}

impl Messages {
    fn new(messages: u64, clock: &Clock) -> Self {
        let templates = [0, 1, 2].map(|to| Message { to, text: text(to) });
        Self { templates, next: 0, remaining: messages, clock: clock.clone() }
    }
}

impl Stream for Messages {
    type Item = Message;

    #[inline]
    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Message>> {
        if self.remaining == 0 {
            self.clock.stop();
            return Poll::Ready(None);
        }
        self.remaining -= 1;
        let next = self.next;
        self.next = if next + 1 == CLIENTS { 0 } else { next + 1 };
        Poll::Ready(Some(self.templates[next].clone()))
    }
}

/// A client that keeps the messages it receives and, when it is dropped, counts the correct ones.
struct Client {
    id: usize,
    received: Vec<Message>,
    arrived: Rc<Cell<u64>>,
}

impl Drop for Client {
    fn drop(&mut self) {
        let text = text(self.id);
        let is_intact = |message: &&Message| message.to == self.id && message.text == text;
        let count = self.received.iter().filter(is_intact).count();
        self.arrived.set(self.arrived.get() + count as u64);
    }
}

impl Sink<Message> for Client {
    type Error = ();

    #[inline]
    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), ()> {
        self.received.push(message);
        Ok(())
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }
}

fn clients(arrived: &Rc<Cell<u64>>) -> impl Iterator<Item = (usize, Client)> {
    (0..CLIENTS).map(|id| (id, Client { id, received: Vec::new(), arrived: Rc::clone(arrived) }))
}

/// Runs a contender that reads orders from a channel.
fn run<F, R>(messages: u64, program: F) -> Run
where
    F: FnOnce(Messages, flume::r#async::RecvStream<'static, (usize, Client)>) -> R,
    R: Future<Output = ()>,
{
    let (clock, arrived) = (Clock::default(), Rc::default());
    let (sender, orders) = flume::unbounded();
    for client in clients(&arrived) {
        sender.send(client).expect("the receiver is open");
    }
    let input = Messages::new(messages, &clock);
    clock.start();
    block_on(program(input, orders.into_stream()));
    drop(sender);
    clock.run(messages, arrived.get())
}

fn bare(messages: u64) -> Run {
    let (clock, arrived) = (Clock::default(), Rc::default());
    let mut sinks = clients(&arrived).collect::<HashMap<_, _>>();
    let mut input = Messages::new(messages, &clock);
    let mut cx = Context::from_waker(Waker::noop());
    clock.start();
    while let Poll::Ready(Some(message)) = Pin::new(&mut input).poll_next(&mut cx) {
        if let Some(sink) = sinks.get_mut(&message.to)
            && let Poll::Ready(Ok(())) = Pin::new(&mut *sink).poll_ready(&mut cx)
        {
            let _ = Pin::new(sink).start_send(message);
        }
    }
    drop(sinks);
    clock.run(messages, arrived.get())
}

/// `select!` picks either stream, so messages may be read before the orders that they depend on.
async fn select_loop_fair<O>(input: Messages, orders: O)
where
    O: Stream<Item = (usize, Client)> + Unpin,
{
    let mut sinks = HashMap::new();
    let (mut input, mut orders) = (input.fuse(), orders.fuse());
    loop {
        select! {
            order = orders.next() => if let Some((id, client)) = order {
                sinks.insert(id, client);
            },
            message = input.next() => match message {
                None => return,
                Some(message) => if let Some(client) = sinks.get_mut(&message.to) {
                    let _ = client.send(message).await;
                },
            },
        }
    }
}

async fn select_all<O>(input: Messages, orders: O)
where
    O: Stream<Item = (usize, Client)> + 'static,
{
    let mut sinks = HashMap::new();
    let ends = stream::once(future::ready(Either::Right(None)));
    let messages = input.map(|message| Either::Right(Some(message))).chain(ends);
    let mut all =
        stream::select_all([messages.boxed_local(), orders.map(Either::Left).boxed_local()]);
    while let Some(next) = all.next().await {
        match next {
            Either::Left((id, client)) => {
                sinks.insert(id, client);
            }
            Either::Right(None) => return,
            Either::Right(Some(message)) => {
                if let Some(client) = sinks.get_mut(&message.to) {
                    let _ = client.send(message).await;
                }
            }
        }
    }
}

/// A loop that checks for orders once in a hundred messages.
async fn lossy<O>(mut input: Messages, mut orders: O)
where
    O: Stream<Item = (usize, Client)> + Unpin,
{
    let mut sinks = HashMap::new();
    let mut until_orders = 100;
    while let Some(message) = input.next().await {
        until_orders -= 1;
        if until_orders == 0 {
            until_orders = 100;
            while let Some(Some((id, client))) = orders.next().now_or_never() {
                sinks.insert(id, client);
            }
        }
        if let Some(client) = sinks.get_mut(&message.to) {
            let _ = client.send(message).await;
        }
    }
}

/// `stream_router`. All clients are attached at the start, because it accepts none while it runs.
fn router(messages: u64) -> Run {
    let (clock, arrived) = (Clock::default(), Rc::default());
    let mut router = StreamRouter::new();
    router.add_source(Messages::new(messages, &clock), |message: Message| {
        let to = message.to;
        future::ready((message, to))
    });
    for (id, client) in clients(&arrived) {
        router.add_sink(client, id);
    }
    clock.start();
    block_on(router.count());
    clock.run(messages, arrived.get())
}

/// `stream-partition`. All clients are attached at the start.
fn partition(messages: u64) -> Run {
    let (clock, arrived) = (Clock::default(), Rc::default());
    let parts = Messages::new(messages, &clock).partition_by(|message| future::ready(message.to));
    let forward = |(id, client)| {
        let part = parts.lock().unwrap().get_partition(id);
        part.map(Ok).forward(client)
    };
    let forwards = clients(&arrived).map(forward).collect::<Vec<_>>();
    clock.start();
    let done = block_on(future::join_all(forwards));
    assert!(done.iter().all(Result::is_ok));
    clock.run(messages, arrived.get())
}
