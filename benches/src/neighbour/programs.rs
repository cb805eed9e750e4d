//! The programs: over sinks of this module, and over sockets.

use std::collections::HashMap;
use std::hint::{black_box, spin_loop};
use std::io::Read;
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::{Sink, SinkExt, StreamExt, stream};
use stream_demux::DemuxStreamExt;
use tokio::io::AsyncReadExt;
use tokio::sync::broadcast;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::coop::consume_budget;
use tokio::task::{spawn_blocking, yield_now};

use super::probe::{Input, Probe};
use super::{Contender, Neighbour, QUIET};
use crate::parts::Item;
use crate::readers::CAPACITY;
use crate::sockets::{self, LINE_LENGTH, Line};
use crate::tcp::programs::Program;
use crate::threads::Threads;

/// What a busy sink does with an item.
#[derive(Debug)]
pub(super) struct Outlet {
    works: bool,
    count: u64,
    probe: Arc<Probe>,
}

impl Outlet {
    /// `works` is `true` if it takes 20 µs for an item.
    pub(super) fn new(works: bool, probe: &Arc<Probe>) -> Self {
        Self { works, count: 0, probe: Arc::clone(probe) }
    }

    fn take(&mut self, item: Item) {
        black_box(item);
        self.count += 1;
        if self.works {
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(20) {
                spin_loop();
            }
        }
    }
}

impl Clone for Outlet {
    fn clone(&self) -> Self {
        Self::new(self.works, &self.probe)
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.probe.busy_arrived(self.count);
    }
}

/// The sink of a key. All are always ready.
#[derive(Debug)]
enum KeySink {
    Busy(Outlet),
    /// Keeps items until it is flushed.
    Quiet {
        kept: usize,
        reader: UnboundedSender<()>,
    },
}

impl Sink<Item> for KeySink {
    type Error = ();

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, item: Item) -> Result<(), ()> {
        match self.get_mut() {
            Self::Busy(outlet) => outlet.take(item),
            Self::Quiet { kept, .. } => *kept += 1,
        }
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        if let Self::Quiet { kept, reader } = self.get_mut() {
            for _ in 0..std::mem::take(kept) {
                reader.send(()).map_err(|_| ())?;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), ()>> {
        self.poll_flush(cx)
    }
}

/// Runs a program over sinks until the input ends.
pub(super) fn route(
    contender: Contender,
    input: Input<Item>,
    outlet: &Outlet,
    neighbour: Neighbour,
    probe: &Arc<Probe>,
    threads: Threads,
) {
    threads.runtime().block_on(async {
        let keys = QUIET + 1..=QUIET + neighbour.keys();
        let keys = keys.flat_map(|key| (0..neighbour.copies()).map(move |_| key));
        let outlets = keys.map(|key| (key, outlet.clone()));
        if contender == Contender::Broadcast {
            broadcast(input, outlets, probe).await;
            return;
        }
        let (sender, receiver) = unbounded_channel();
        let quiet = KeySink::Quiet { kept: 0, reader: sender };
        let sinks = outlets.map(|(key, outlet)| (key, KeySink::Busy(outlet)));
        let sinks = [(QUIET, quiet)].into_iter().chain(sinks).collect::<Vec<_>>();
        let reader = tokio::spawn(read(receiver, Arc::clone(probe)));
        let writer = match contender {
            Contender::Demux => tokio::spawn(demux(input, sinks, neighbour)),
            _ => tokio::spawn(send_each(input, sinks)),
        };
        writer.await.expect("the writer did not panic");
        reader.await.expect("the reader did not panic");
    });
}

async fn read(mut quiet: UnboundedReceiver<()>, probe: Arc<Probe>) {
    while quiet.recv().await.is_some() {
        probe.arrive();
    }
}

async fn demux(input: Input<Item>, sinks: Vec<(u64, KeySink)>, neighbour: Neighbour) {
    let demux = input.demux_by(|item| item.key, stream::iter(sinks));
    if neighbour.copies() > 1 {
        demux.multicast().await;
    } else {
        demux.await;
    }
}

/// The input is always ready, and so are the sinks. The loop lets other tasks run after as many
/// operations as a channel of tokio does.
async fn send_each(mut input: Input<Item>, sinks: Vec<(u64, KeySink)>) {
    let mut groups = HashMap::<u64, Vec<KeySink>>::new();
    for (key, sink) in sinks {
        groups.entry(key).or_default().push(sink);
    }
    while let Some(item) = input.next().await {
        for sink in groups.get_mut(&item.key).into_iter().flatten() {
            sink.send(item).await.expect("the reader is alive");
            consume_budget().await;
        }
    }
}

/// A broadcast channel drops items that a receiver is too slow for. To lose no item, the publisher
/// waits for the receivers before the channel is full.
async fn broadcast(
    mut input: Input<Item>,
    outlets: impl Iterator<Item = (u64, Outlet)>,
    probe: &Arc<Probe>,
) {
    let mut topics = HashMap::new();
    let mut subscribe = |key| {
        let (sender, _) = topics.entry(key).or_insert_with(|| (broadcast::channel(CAPACITY).0, 0));
        sender.subscribe()
    };
    let (quiet, probe) = (subscribe(QUIET), Arc::clone(probe));
    let mut readers = vec![tokio::spawn(read_topic(quiet, move |_| probe.arrive()))];
    for (key, mut outlet) in outlets {
        let busy = subscribe(key);
        readers.push(tokio::spawn(read_topic(busy, move |item| outlet.take(item))));
    }
    let publisher = tokio::spawn(async move {
        while let Some(item) = input.next().await {
            let (topic, sent) = topics.get_mut(&item.key).expect("each key is a topic");
            if *sent == CAPACITY {
                while !topic.is_empty() {
                    yield_now().await;
                }
                *sent = 0;
            }
            topic.send(item).expect("a task is subscribed");
            *sent += 1;
        }
    });
    publisher.await.expect("the publisher did not panic");
    for reader in join_all(readers).await {
        reader.expect("no reader panicked");
    }
}

async fn read_topic(mut topic: broadcast::Receiver<Item>, mut take: impl FnMut(Item)) {
    loop {
        match topic.recv().await {
            Ok(item) => take(item),
            Err(broadcast::error::RecvError::Closed) => return,
            Err(lagged) => panic!("{lagged}"),
        }
    }
}

/// Runs a program over sockets until the input ends.
pub(super) fn write_lines(
    program: Program,
    input: Input<Line>,
    clients: u64,
    probe: &Arc<Probe>,
    threads: Threads,
) {
    let (sockets, mut clients) = sockets::connect(clients as usize + 1);
    let quiet = read_quiet(clients.remove(QUIET as usize), probe);
    let busy = read_busy(clients, probe);
    threads.runtime().block_on(async {
        let sockets = sockets.into_iter().map(sockets::framed).collect();
        let writer = tokio::spawn(program.run(input, sockets));
        writer.await.expect("the writer did not panic");
        // A program with a task per client may still have lines to write.
        let join = move || [quiet, busy].map(|thread| thread.join().expect("the client read"));
        spawn_blocking(join).await.expect("the clients read");
    });
}

fn read_quiet(mut client: TcpStream, probe: &Arc<Probe>) -> JoinHandle<()> {
    let probe = Arc::clone(probe);
    thread::spawn(move || {
        let mut line = [0; LINE_LENGTH];
        while client.read_exact(&mut line).is_ok() {
            assert_eq!(line, Line::new(QUIET as usize).bytes(), "a line went to the wrong client");
            probe.arrive();
        }
    })
}

/// The clients that never pause read on one thread.
fn read_busy(clients: Vec<TcpStream>, probe: &Arc<Probe>) -> JoinHandle<()> {
    let probe = Arc::clone(probe);
    thread::spawn(move || {
        let bytes = Threads::One.runtime().block_on(async {
            let read = async |client| {
                let mut client = sockets::on_tokio(client);
                let (mut buffer, mut bytes) = (vec![0; 1 << 16], 0);
                loop {
                    match client.read(&mut buffer).await.expect("the socket is open") {
                        0 => return bytes,
                        read => bytes += read,
                    }
                }
            };
            join_all(clients.into_iter().map(read)).await.into_iter().sum::<usize>()
        });
        probe.busy_arrived((bytes / LINE_LENGTH) as u64);
    })
}
