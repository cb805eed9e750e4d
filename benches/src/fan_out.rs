//! The cost of a line to one of many TCP clients that share topics, published in bursts.
//!
//! The time is the processor time of the threads that run the program. The clock on the wall is
//! read as well, from the start of a burst until its last line has arrived.

use std::time::{Duration, Instant};

use cpu_time::ProcessTime;
use futures::{SinkExt, Stream, StreamExt, stream};
use stream_demux::DemuxStreamExt;
use tokio::io::AsyncWriteExt;
use tokio::sync::{broadcast, mpsc};
use tokio::time::sleep;

use crate::clients::Clients;
use crate::measure::{Contender, Group, Run};
use crate::receiving::Receiving;
use crate::sockets::{self, Client, Line};
use crate::threads::Threads;

/// The contender with a broadcast channel per topic, a task per client and a codec.
pub const BROADCAST: &str = "broadcast, codec";
/// The same with a buffer per client that is written at once.
pub const BUFFERS: &str = "broadcast, one write";
/// The contender that sends each line to each client, and waits for its flush.
pub const SEND: &str = "send().await";

const CLIENTS: usize = 1_000;
const TOPICS: usize = 50;
const MEMBERS: usize = CLIENTS / TOPICS;

/// The room of the channel that the program reads.
const ROOM: usize = 1_024;

/// The room of the channel of a topic: no receiver falls behind in a burst of up to so many lines
/// for each topic.
const TOPIC_ROOM: usize = 128;

/// The time between a burst and the next one.
const PAUSE: Duration = Duration::from_millis(1);

/// Returns the contenders, for bursts of `burst` lines, each of which goes to 20 clients.
///
/// # Panics
///
/// Panics if a burst has too many lines for a topic.
#[must_use]
pub fn group(threads: Threads, burst: u64, bursts: u64) -> Group {
    assert!(burst <= (TOPICS * TOPIC_ROOM) as u64, "receivers would fall behind");
    let contender = |name, bursts, program| {
        let copies = burst * bursts * MEMBERS as u64;
        Contender::new(name, copies, move |_| run(threads, burst, bursts, program))
    };
    Group::new(
        format!("fan_out/bursts of {burst}, {}", threads.name()),
        [
            contender("demux", bursts, Program::Demux),
            contender(BROADCAST, bursts, Program::Broadcast),
            contender(BUFFERS, bursts, Program::Buffers),
            contender(SEND, bursts.div_ceil(10), Program::Send),
        ],
    )
}

#[derive(Debug, Clone, Copy)]
enum Program {
    Demux,
    Broadcast,
    Buffers,
    Send,
}

fn run(threads: Threads, burst: u64, bursts: u64, program: Program) -> Run {
    let (sockets, clients) = sockets::connect(CLIENTS);
    let clients = clients.into_iter().enumerate().map(|(index, socket)| (index % TOPICS, socket));
    let copies = burst * MEMBERS as u64;
    let mut clients = Clients::start(clients.collect(), copies, bursts);
    let runtime = threads.runtime();
    let (run, clients) = runtime.block_on(async {
        let sockets = sockets.into_iter().map(sockets::framed).collect();
        let start = ProcessTime::now();
        let publisher = program.start(sockets);
        let producer = tokio::spawn(async move {
            let (mut processor, mut wall) = (Duration::ZERO, Duration::ZERO);
            for _ in 0..bursts {
                sleep(PAUSE).await;
                let start_on_wall = Instant::now();
                for number in 0..burst {
                    publisher.publish(Line::new(number as usize % TOPICS)).await;
                }
                let arrived = clients.burst_arrived().await;
                wall += arrived.at.duration_since(start_on_wall);
                processor = arrived.process.duration_since(start).saturating_sub(arrived.clients);
            }
            let copies = copies * bursts;
            (Run { wall: Some(wall), ..Run::new(processor, copies, copies) }, clients)
        });
        producer.await.expect("the producer did not panic")
    });
    // Closes the sockets that are still open.
    drop(runtime);
    clients.join();
    run
}

/// Where a line is published.
enum Publisher {
    /// In the channel that a single task reads.
    Channel(mpsc::Sender<Line>),
    /// In the channel of its topic. No other task is involved, and publishing never waits.
    Topics(Vec<broadcast::Sender<Line>>),
}

impl Publisher {
    async fn publish(&self, line: Line) {
        match self {
            Self::Channel(sender) => sender.send(line).await.expect("the receiver is open"),
            Self::Topics(topics) => {
                topics[line.key].send(line).expect("the tasks are subscribed");
            }
        }
    }
}

impl Program {
    /// Spawns the tasks that write the lines.
    fn start(self, clients: Vec<Client>) -> Publisher {
        let (sender, receiver) = mpsc::channel(ROOM);
        let lines = Receiving(receiver);
        match self {
            Self::Demux => drop(tokio::spawn(demux(lines, clients))),
            Self::Send => drop(tokio::spawn(send_each(lines, clients))),
            Self::Broadcast => return subscribe(clients, write_with_codec),
            Self::Buffers => return subscribe(clients, write_at_once),
        }
        Publisher::Channel(sender)
    }
}

async fn demux(lines: impl Stream<Item = Line>, clients: Vec<Client>) {
    let clients = clients.into_iter().enumerate().map(|(index, client)| (index % TOPICS, client));
    lines
        .demux_by(|line| line.key, stream::iter(clients))
        .multicast()
        .on_error(|to, error| panic!("{to:?}: {error}"))
        .await;
}

async fn send_each(mut lines: impl Stream<Item = Line> + Unpin, mut clients: Vec<Client>) {
    while let Some(line) = lines.next().await {
        for client in clients.iter_mut().skip(line.key).step_by(TOPICS) {
            client.send(line).await.expect("the client reads");
        }
    }
}

/// Creates a channel per topic, which a task per client reads.
fn subscribe<W>(
    clients: Vec<Client>,
    write: impl Fn(broadcast::Receiver<Line>, Client) -> W,
) -> Publisher
where
    W: Future<Output = ()> + Send + 'static,
{
    let topics = (0..TOPICS).map(|_| broadcast::Sender::new(TOPIC_ROOM)).collect::<Vec<_>>();
    for (index, client) in clients.into_iter().enumerate() {
        tokio::spawn(write(topics[index % TOPICS].subscribe(), client));
    }
    Publisher::Topics(topics)
}

/// Waits for a line. Returns `None` if the topic is closed.
async fn receive(receiver: &mut broadcast::Receiver<Line>) -> Option<Line> {
    match receiver.recv().await {
        Ok(line) => Some(line),
        Err(broadcast::error::RecvError::Closed) => None,
        Err(lagged) => panic!("{lagged}"),
    }
}

async fn write_with_codec(mut receiver: broadcast::Receiver<Line>, mut client: Client) {
    while let Some(first) = receive(&mut receiver).await {
        let mut next = Some(first);
        while let Some(line) = next {
            client.feed(line).await.expect("the client reads");
            next = receiver.try_recv().ok();
        }
        SinkExt::<Line>::flush(&mut client).await.expect("the client reads");
    }
}

async fn write_at_once(mut receiver: broadcast::Receiver<Line>, client: Client) {
    let (mut socket, mut buffer) = (client.into_inner(), Vec::new());
    while let Some(first) = receive(&mut receiver).await {
        let mut next = Some(first);
        while let Some(line) = next {
            buffer.extend_from_slice(line.bytes());
            next = receiver.try_recv().ok();
        }
        socket.write_all(&buffer).await.expect("the client reads");
        buffer.clear();
    }
}
