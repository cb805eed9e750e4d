//! Lines to many TCP clients over loopback: what does a line cost?
//!
//! The clients are a second thread that reads all sockets and compares each byte with what it
//! expects.

use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use futures::channel::mpsc::channel;
use futures::{Sink, SinkExt, Stream, StreamExt, future, stream};
use stream_demux::{DemuxStreamExt, Order};
use stream_router::StreamRouter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::sync::{broadcast, mpsc};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::codec::{FramedWrite, LinesCodec};
use tokio_util::sync::PollSender;

use crate::measure::{Contender, Group, Run};
use crate::parts::{Dice, Receiving};

/// Where the lines come from.
#[derive(Debug, Clone, Copy)]
pub enum Feed {
    /// A stream that always has the next one.
    Saturated,
    /// A bounded tokio channel of this size, filled by a task on the same runtime.
    Channel(usize),
    /// The same, but the task is exempt from tokio's cooperative budget, which makes it yield each
    /// 128 lines.
    Unconstrained(usize),
}

/// Whom they go to.
#[derive(Debug, Clone, Copy)]
pub enum Keys {
    /// Each in turn.
    RoundRobin,
    /// A tenth of the clients gets almost half of the lines.
    Skewed,
}

/// A job.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// How many listen.
    pub clients: usize,
    /// Where the lines come from.
    pub feed: Feed,
    /// Whom they go to.
    pub keys: Keys,
}

/// Ours, and what one would use instead. So many lines for the quick ones, fewer for the others.
#[must_use]
pub fn group(job: Job, lines: u64) -> Group {
    let Job { clients, feed, keys } = job;
    let feed = match feed {
        Feed::Saturated => "saturated".to_owned(),
        Feed::Channel(size) => format!("fed by a channel of {size}"),
        Feed::Unconstrained(size) => format!("fed by an unconstrained task, channel of {size}"),
    };
    let keys = match keys {
        Keys::RoundRobin => "round-robin",
        Keys::Skewed => "skewed",
    };
    let way = |name, lines, way| Contender::new(name, lines, move |lines| run(job, way, lines));
    let mut contenders = vec![
        way("demux", lines, Way::Demux),
        way("send().await", lines / 10, Way::Send),
        way("forward, tokio", lines / 5, Way::ForwardTokio),
        way("forward, futures", lines, Way::ForwardFutures),
        way("broadcast", (lines / clients as u64).max(1_000), Way::Broadcast),
        way("stream_router", lines / 10, Way::Router),
    ];
    // Its last lines wait until the input ends, which only a saturated one is allowed to make them
    // do.
    if matches!(job.feed, Feed::Saturated) {
        contenders.push(way("bare loop", lines, Way::Bare));
    } else {
        // As many lines as a saturated input has, as each costs about as much.
        contenders.push(way(LINGER, 5 * lines, Way::Linger));
    }
    Group::new(format!("tcp/{clients} clients, {keys}, {feed}"), contenders)
}

/// The demux that flushes at a tick, if it is fed.
pub const LINGER: &str = "demux, linger(1)";
/// What it is told of time.
const TICK: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy)]
enum Way {
    Demux,
    /// The demux with `linger(1)` and a tick each millisecond.
    Linger,
    /// One loop, which sends each line and waits until it is flushed.
    Send,
    /// A task for each client, which forwards what it finds in a tokio channel of its own.
    ForwardTokio,
    /// The same with a channel of the futures crate, which does not yield to others.
    ForwardFutures,
    /// The same behind one channel for all: each takes what is for it.
    Broadcast,
    /// The crate, which also flushes each line.
    Router,
    /// One loop, which appends each line to a buffer for its client and writes that once it is
    /// full.
    Bare,
}

#[derive(Debug, Clone, Copy)]
struct Line {
    key: usize,
    text: &'static str,
}

impl AsRef<str> for Line {
    fn as_ref(&self) -> &str {
        self.text
    }
}

const CLIENTS: usize = 1_000;

/// What each client is sent, over and over.
static TEXTS: LazyLock<Vec<String>> = LazyLock::new(|| {
    (0..CLIENTS).map(|key| format!("{key:03} 0123456789abcdef0123456789abcdef")).collect()
});

type Client = FramedWrite<TcpStream, LinesCodec>;

fn run(job: Job, way: Way, lines: u64) -> Run {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    let readers = thread::spawn(move || on_this_thread(read_all(listener, job.clients)));
    let elapsed = on_this_thread(async move {
        let clients = connect(address, job.clients).await;
        let start = Instant::now();
        // A task like any other.
        spawn_local(write_all(job, way, lines, clients)).await.expect("no line is lost");
        start.elapsed()
    });
    let arrived = readers.join().expect("the clients got what they expected");
    Run { elapsed, sent: lines, arrived, allocations: 0 }
}

fn on_this_thread<F: Future>(future: F) -> F::Output {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, future)
}

async fn connect(address: SocketAddr, clients: usize) -> Vec<Client> {
    let mut connected = Vec::new();
    for key in 0..clients {
        let mut stream = TcpStream::connect(address).await.expect("descriptors are left");
        stream.set_nodelay(true).expect("a socket");
        // Who is who: connections are not accepted in order for certain.
        let key = u32::try_from(key).expect("few").to_be_bytes();
        stream.write_all(&key).await.expect("its reader is here");
        connected.push(FramedWrite::new(stream, LinesCodec::new()));
    }
    connected
}

/// Accepts the clients' ends and reads them to the end. How many lines they got.
async fn read_all(listener: TcpListener, clients: usize) -> u64 {
    listener.set_nonblocking(true).expect("a socket");
    let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
    let mut readers = Vec::new();
    for _ in 0..clients {
        let (stream, _) = listener.accept().await.expect("descriptors are left");
        readers.push(spawn_local(read(stream)));
    }
    let mut lines = 0;
    for reader in readers {
        lines += reader.await.expect("no reader panicked");
    }
    lines
}

thread_local! {
    /// One for all: nothing is kept in it over a pause.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; 1 << 16]);
}

async fn read(mut stream: TcpStream) -> u64 {
    let key = stream.read_u32().await.expect("a client says who it is") as usize;
    let line = format!("{}\n", TEXTS[key]).into_bytes();
    let pattern = line.repeat(64);
    let mut total = 0;
    loop {
        stream.readable().await.expect("a socket");
        let got = SCRATCH.with_borrow_mut(|scratch| {
            let got = stream.try_read(scratch);
            if let Ok(got) = got {
                check(&scratch[..got], &line, &pattern, total);
            }
            got
        });
        match got {
            Ok(0) => break,
            Ok(got) => total += got,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("client {key}: {error}"),
        }
    }
    assert_eq!(total % line.len(), 0, "client {key}: the last line is not whole");
    (total / line.len()) as u64
}

/// Is this what comes after so many bytes of the same line over and over?
fn check(mut got: &[u8], line: &[u8], pattern: &[u8], before: usize) {
    let mut at = before % line.len();
    while !got.is_empty() {
        let (now, later) = got.split_at(got.len().min(pattern.len() - at));
        assert!(now == &pattern[at..at + now.len()], "a line went to the wrong client");
        (got, at) = (later, 0);
    }
}

/// Makes the input and writes it to the clients.
async fn write_all(job: Job, way: Way, lines: u64, clients: Vec<Client>) {
    let lines = lines_of(job, lines);
    match job.feed {
        Feed::Saturated => write(way, stream::iter(lines), clients).await,
        Feed::Channel(size) => {
            let (sender, receiver) = mpsc::channel(size);
            spawn_local(produce(lines, sender));
            write(way, Receiving(receiver), clients).await;
        }
        Feed::Unconstrained(size) => {
            let (sender, receiver) = mpsc::channel(size);
            spawn_local(tokio::task::unconstrained(produce(lines, sender)));
            write(way, Receiving(receiver), clients).await;
        }
    }
}

async fn produce(lines: impl Iterator<Item = Line>, sender: mpsc::Sender<Line>) {
    for line in lines {
        sender.send(line).await.expect("its receiver is here");
    }
}

fn lines_of(job: Job, lines: u64) -> impl Iterator<Item = Line> {
    let mut dice = Dice::default();
    let clients = job.clients as u64;
    (0..lines).map(move |number| {
        let key = match job.keys {
            Keys::RoundRobin => number % clients,
            Keys::Skewed => {
                let (one, two, three) =
                    (dice.below(1 << 10), dice.below(1 << 10), dice.below(1 << 10));
                (one * two * three * clients) >> 30
            }
        };
        Line { key: key as usize, text: &TEXTS[key as usize] }
    })
}

async fn write(way: Way, lines: impl Stream<Item = Line> + Unpin + 'static, clients: Vec<Client>) {
    match way {
        Way::Demux => {
            let orders = stream::iter(clients.into_iter().enumerate());
            lines
                .demux_by(|line| line.key, orders)
                .on_error(|to, error| panic!("{to:?}: {error}"))
                .await;
        }
        Way::Linger => {
            let clients = clients.into_iter().enumerate().map(Order::from);
            lines
                .demux_by(|line| line.key, stream::iter(clients).chain(ticks()))
                .linger(1)
                .on_error(|to, error| panic!("{to:?}: {error}"))
                .await;
        }
        Way::Send => send_each(lines, clients).await,
        Way::ForwardTokio => {
            let channel = || {
                let (sender, receiver) = mpsc::channel(CHANNEL);
                (PollSender::new(sender), Receiving(receiver))
            };
            forward_each(lines, clients, channel).await;
        }
        Way::ForwardFutures => forward_each(lines, clients, || channel(CHANNEL)).await,
        Way::Broadcast => broadcast(lines, clients).await,
        Way::Router => {
            let mut router = StreamRouter::new();
            router.add_source(lines, |line: Line| future::ready((line, line.key)));
            for (key, client) in clients.into_iter().enumerate() {
                router.add_sink(client, key);
            }
            router.count().await;
        }
        Way::Bare => append_each(lines, clients).await,
    }
}

fn ticks<K, S>() -> impl Stream<Item = Order<K, S>> {
    let mut interval = interval(TICK);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    stream::poll_fn(move |cx| interval.poll_tick(cx).map(|_| Some(Order::Tick)))
}

async fn send_each(mut lines: impl Stream<Item = Line> + Unpin, mut clients: Vec<Client>) {
    while let Some(line) = lines.next().await {
        clients[line.key].send(line).await.expect("its reader is here");
    }
}

/// What `FramedWrite` gathers at most, too, before it writes.
const BUFFER: usize = 8 * 1_024;

async fn append_each(mut lines: impl Stream<Item = Line> + Unpin, clients: Vec<Client>) {
    let mut clients = clients
        .into_iter()
        .map(|client| (client.into_inner(), Vec::with_capacity(2 * BUFFER)))
        .collect::<Vec<_>>();
    while let Some(line) = lines.next().await {
        let (socket, buffer) = &mut clients[line.key];
        buffer.extend_from_slice(line.text.as_bytes());
        buffer.push(b'\n');
        if buffer.len() >= BUFFER {
            socket.write_all(buffer).await.expect("its reader is here");
            buffer.clear();
        }
    }
    for (mut socket, buffer) in clients {
        socket.write_all(&buffer).await.expect("its reader is here");
        socket.shutdown().await.expect("its reader is here");
    }
}

/// Items for each channel of those who forward.
const CHANNEL: usize = 64;

async fn forward_each<S, R>(
    mut lines: impl Stream<Item = Line> + Unpin,
    clients: Vec<Client>,
    channel: impl Fn() -> (S, R),
) where
    S: Sink<Line> + Unpin,
    R: Stream<Item = Line> + 'static,
{
    let (mut senders, mut tasks) = (Vec::new(), Vec::new());
    for client in clients {
        let (sender, receiver) = channel();
        senders.push(sender);
        tasks.push(spawn_local(receiver.map(Ok).forward(client)));
    }
    while let Some(line) = lines.next().await {
        assert!(senders[line.key].feed(line).await.is_ok(), "its receiver is gone");
    }
    drop(senders);
    for task in tasks {
        task.await.expect("no task panicked").expect("its reader is here");
    }
}

/// A broadcast channel drops what a receiver is too slow for. To lose nothing the writer lets them
/// all catch up before the channel is full.
async fn broadcast(mut lines: impl Stream<Item = Line> + Unpin, clients: Vec<Client>) {
    const ROOM: usize = 1_024;
    let (sender, _) = broadcast::channel::<Line>(ROOM);
    let mut tasks = Vec::new();
    for (key, mut client) in clients.into_iter().enumerate() {
        let mut receiver = sender.subscribe();
        tasks.push(spawn_local(async move {
            loop {
                match receiver.recv().await {
                    Ok(line) if line.key == key => {
                        client.feed(line).await.expect("its reader is here")
                    }
                    Ok(_) => {}
                    Err(broadcast::error::RecvError::Closed) => break,
                    Err(lagged) => panic!("{lagged}"),
                }
                if receiver.is_empty() {
                    SinkExt::<Line>::flush(&mut client).await.expect("its reader is here");
                }
            }
            SinkExt::<Line>::close(&mut client).await.expect("its reader is here");
        }));
    }
    let mut since = 0;
    while let Some(line) = lines.next().await {
        sender.send(line).expect("all are subscribed");
        since += 1;
        while since == ROOM && !sender.is_empty() {
            tokio::task::yield_now().await;
        }
        since %= ROOM;
    }
    drop(sender);
    for task in tasks {
        task.await.expect("no task panicked");
    }
}
