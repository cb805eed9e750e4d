//! The programs that write the lines.

use futures::channel::mpsc::channel;
use futures::{FutureExt, SinkExt, Stream, StreamExt, stream};
use stream_demux::DemuxStreamExt;
use tokio::io::AsyncWriteExt;
use tokio::sync::{broadcast, mpsc};
use tokio::task::yield_now;

use crate::sockets::{Client, Line};

#[derive(Debug, Clone, Copy)]
pub(crate) enum Program {
    /// A demux with nothing set.
    Demux,
    /// A loop that sends each line and waits for its flush.
    Send,
    /// A loop that takes all lines there are, feeds them, and flushes each client that got some.
    OneLoop,
    /// A tokio channel per client, and a task that takes all lines there are, and flushes once.
    ReceiveMany,
    /// A broadcast channel per topic, here one per client, and such a task.
    Broadcast,
    /// A channel of the futures crate per client, and a task that forwards it.
    Forward,
    /// A loop that appends each line to a buffer per client, and writes a buffer when it is full.
    Bare,
}

impl Program {
    pub(crate) async fn run<I>(self, lines: I, clients: Vec<Client>)
    where
        I: Stream<Item = Line> + Unpin + Send + 'static,
    {
        match self {
            Self::Demux => demux(lines, clients).await,
            Self::Send => send_each(lines, clients).await,
            Self::OneLoop => feed_batches(lines, clients).await,
            Self::ReceiveMany => receive_many(lines, clients).await,
            Self::Broadcast => broadcast(lines, clients).await,
            Self::Forward => forward(lines, clients).await,
            Self::Bare => append_each(lines, clients).await,
        }
    }
}

/// The capacity of a channel per client.
const CAPACITY: usize = 64;

async fn demux(lines: impl Stream<Item = Line>, clients: Vec<Client>) {
    let orders = stream::iter(clients.into_iter().enumerate());
    lines.demux_by(|line| line.key, orders).on_error(|to, error| panic!("{to:?}: {error}")).await;
}

async fn send_each(mut lines: impl Stream<Item = Line> + Unpin, mut clients: Vec<Client>) {
    while let Some(line) = lines.next().await {
        clients[line.key].send(line).await.expect("the client reads");
    }
}

async fn feed_batches(lines: impl Stream<Item = Line> + Unpin, mut clients: Vec<Client>) {
    let mut batches = lines.ready_chunks(1_024);
    let (mut unflushed, mut is_unflushed) = (Vec::new(), vec![false; clients.len()]);
    while let Some(batch) = batches.next().await {
        for line in batch {
            clients[line.key].feed(line).await.expect("the client reads");
            if !std::mem::replace(&mut is_unflushed[line.key], true) {
                unflushed.push(line.key);
            }
        }
        for key in unflushed.drain(..) {
            is_unflushed[key] = false;
            flush(&mut clients[key]).await;
        }
    }
}

async fn flush(client: &mut Client) {
    SinkExt::<Line>::flush(client).await.expect("the client reads");
}

async fn receive_many(mut lines: impl Stream<Item = Line> + Unpin, clients: Vec<Client>) {
    let mut senders = Vec::new();
    for mut client in clients {
        let (sender, mut receiver) = mpsc::channel(CAPACITY);
        senders.push(sender);
        tokio::spawn(async move {
            let mut batch = Vec::new();
            while receiver.recv_many(&mut batch, CAPACITY).await > 0 {
                for line in batch.drain(..) {
                    client.feed(line).await.expect("the client reads");
                }
                flush(&mut client).await;
            }
        });
    }
    while let Some(line) = lines.next().await {
        senders[line.key].send(line).await.expect("the receiver is open");
    }
}

/// A broadcast channel drops items that a receiver is too slow for. To lose no line, the loop waits
/// for the receiver before the channel is full.
async fn broadcast(mut lines: impl Stream<Item = Line> + Unpin, clients: Vec<Client>) {
    let mut topics = Vec::new();
    for client in clients {
        let (sender, receiver) = broadcast::channel(CAPACITY);
        topics.push((sender, 0));
        tokio::spawn(write_topic(receiver, client));
    }
    while let Some(line) = lines.next().await {
        let (sender, sent) = &mut topics[line.key];
        if *sent == CAPACITY {
            while !sender.is_empty() {
                yield_now().await;
            }
            *sent = 0;
        }
        sender.send(line).expect("the task is subscribed");
        *sent += 1;
    }
}

async fn write_topic(mut receiver: broadcast::Receiver<Line>, mut client: Client) {
    loop {
        let mut line = match receiver.recv().await {
            Ok(line) => Some(line),
            Err(broadcast::error::RecvError::Closed) => return,
            Err(lagged) => panic!("{lagged}"),
        };
        while let Some(ready) = line {
            client.feed(ready).await.expect("the client reads");
            line = receiver.try_recv().ok();
        }
        flush(&mut client).await;
    }
}

async fn forward(mut lines: impl Stream<Item = Line> + Unpin, clients: Vec<Client>) {
    let mut senders = Vec::new();
    for client in clients {
        let (sender, receiver) = channel(CAPACITY);
        senders.push(sender);
        tokio::spawn(receiver.map(Ok).forward(client));
    }
    while let Some(line) = lines.next().await {
        senders[line.key].feed(line).await.expect("the receiver is open");
    }
}

/// The size at which a buffer is written, the same as that of `FramedWrite`.
const BUFFER_SIZE: usize = 8 * 1_024;

async fn append_each(mut lines: impl Stream<Item = Line> + Unpin, clients: Vec<Client>) {
    let mut clients = clients
        .into_iter()
        .map(|client| (client.into_inner(), Vec::with_capacity(2 * BUFFER_SIZE)))
        .collect::<Vec<_>>();
    while let Some(Some(line)) = lines.next().now_or_never() {
        let (socket, buffer) = &mut clients[line.key];
        buffer.extend_from_slice(line.bytes());
        if buffer.len() >= BUFFER_SIZE {
            socket.write_all(buffer).await.expect("the client reads");
            buffer.clear();
        }
    }
    for (socket, buffer) in &mut clients {
        socket.write_all(buffer).await.expect("the client reads");
    }
    lines.next().await;
}
