//! The cost of a line to one of many TCP clients over loopback.
//!
//! A second thread reads the sockets of all clients and checks each byte.

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
    /// A stream that is always ready.
    Saturated,
    /// A bounded tokio channel of this size, filled by a task on the same runtime.
    Channel(usize),
    /// The same, but the task is exempt from tokio's cooperative budget, which would make it yield
    /// after 128 lines.
    Unconstrained(usize),
}

/// How the lines are distributed to the clients.
#[derive(Debug, Clone, Copy)]
pub enum Keys {
    /// Each in turn.
    RoundRobin,
    /// A tenth of the clients receives almost half of the lines.
    Skewed,
}

/// The job of all contenders.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// The number of clients.
    pub clients: usize,
    /// Where the lines come from.
    pub feed: Feed,
    /// How the lines are distributed.
    pub keys: Keys,
}

/// Returns the contenders. The fast ones send `lines` lines, the others fewer.
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
    let contender =
        |name, lines, method| Contender::new(name, lines, move |lines| run(job, method, lines));
    let mut contenders = vec![
        contender("demux", lines, Method::Demux),
        contender("send().await", lines / 10, Method::Send),
        contender("forward, tokio", lines / 5, Method::ForwardTokio),
        contender("forward, futures", lines, Method::ForwardFutures),
        contender("broadcast", (lines / clients as u64).max(1_000), Method::Broadcast),
        contender("stream_router", lines / 10, Method::Router),
    ];
    // The bare loop keeps the last lines in its buffers until the input ends, which is acceptable
    // only for a saturated input.
    if matches!(job.feed, Feed::Saturated) {
        contenders.push(contender("bare loop", lines, Method::Bare));
    } else {
        // As many lines as for a saturated input, because a line costs about as much.
        contenders.push(contender(LINGER, 5 * lines, Method::Linger));
    }
    Group::new(format!("tcp/{clients} clients, {keys}, {feed}"), contenders)
}

/// The contender that flushes at ticks.
pub const LINGER: &str = "demux, linger(1)";
/// The interval of its ticks.
const TICK: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy)]
enum Method {
    Demux,
    /// The demux with `linger(1)` and a tick each millisecond.
    Linger,
    /// One loop that sends each line and waits for its flush.
    Send,
    /// A tokio channel per client, and a task that forwards it.
    ForwardTokio,
    /// The same with channels of the futures crate, which do not yield to other tasks.
    ForwardFutures,
    /// A broadcast channel, and a task per client that forwards the client's lines.
    Broadcast,
    /// `stream_router`, which flushes each line.
    Router,
    /// One loop that appends each line to a buffer per client and writes a buffer when it is full.
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

/// The line that each client receives repeatedly.
static TEXTS: LazyLock<Vec<String>> = LazyLock::new(|| {
    (0..CLIENTS).map(|key| format!("{key:03} 0123456789abcdef0123456789abcdef")).collect()
});

type Client = FramedWrite<TcpStream, LinesCodec>;

fn run(job: Job, method: Method, lines: u64) -> Run {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is available");
    let address = listener.local_addr().expect("the listener is bound");
    let readers = thread::spawn(move || on_this_thread(read_all(listener, job.clients)));
    let elapsed = on_this_thread(async move {
        let clients = connect(address, job.clients).await;
        let start = Instant::now();
        // Spawned, so that it runs as an ordinary task.
        spawn_local(write_all(job, method, lines, clients))
            .await
            .expect("the writer did not panic");
        start.elapsed()
    });
    let arrived = readers.join().expect("the clients received the right lines");
    Run::new(elapsed, lines, arrived)
}

fn on_this_thread<F: Future>(future: F) -> F::Output {
    let runtime =
        runtime::Builder::new_current_thread().enable_all().build().expect("the runtime starts");
    LocalSet::new().block_on(&runtime, future)
}

async fn connect(address: SocketAddr, clients: usize) -> Vec<Client> {
    let mut connected = Vec::new();
    for key in 0..clients {
        let mut stream = TcpStream::connect(address).await.expect("a descriptor is available");
        stream.set_nodelay(true).expect("the socket is open");
        // The client's key, because connections may be accepted in another order.
        let key = u32::try_from(key).expect("there are at most 1,000 clients").to_be_bytes();
        stream.write_all(&key).await.expect("the client reads");
        connected.push(FramedWrite::new(stream, LinesCodec::new()));
    }
    connected
}

/// Accepts the clients and reads them to the end. Returns the number of lines they received.
async fn read_all(listener: TcpListener, clients: usize) -> u64 {
    listener.set_nonblocking(true).expect("the socket is open");
    let listener = tokio::net::TcpListener::from_std(listener).expect("the socket is open");
    let mut readers = Vec::new();
    for _ in 0..clients {
        let (stream, _) = listener.accept().await.expect("a descriptor is available");
        readers.push(spawn_local(read(stream)));
    }
    let mut lines = 0;
    for reader in readers {
        lines += reader.await.expect("no reader panicked");
    }
    lines
}

thread_local! {
    /// A buffer for all readers: it holds no data across an await.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; 1 << 16]);
}

async fn read(mut stream: TcpStream) -> u64 {
    let key = stream.read_u32().await.expect("a client sends its key first") as usize;
    let line = format!("{}\n", TEXTS[key]).into_bytes();
    let pattern = line.repeat(64);
    let mut total = 0;
    loop {
        stream.readable().await.expect("the socket is open");
        let read = SCRATCH.with_borrow_mut(|scratch| {
            let read = stream.try_read(scratch);
            if let Ok(read) = read {
                check(&scratch[..read], &line, &pattern, total);
            }
            read
        });
        match read {
            Ok(0) => break,
            Ok(read) => total += read,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("client {key}: {error}"),
        }
    }
    assert_eq!(total % line.len(), 0, "client {key}: the last line is incomplete");
    (total / line.len()) as u64
}

/// Panics if `received` does not continue the repeated line at this position.
fn check(mut received: &[u8], line: &[u8], pattern: &[u8], position: usize) {
    let mut at = position % line.len();
    while !received.is_empty() {
        let (chunk, rest) = received.split_at(received.len().min(pattern.len() - at));
        assert!(chunk == &pattern[at..at + chunk.len()], "a line went to the wrong client");
        (received, at) = (rest, 0);
    }
}

/// Creates the input and writes it to the clients.
async fn write_all(job: Job, method: Method, lines: u64, clients: Vec<Client>) {
    let lines = make_lines(job, lines);
    match job.feed {
        Feed::Saturated => write(method, stream::iter(lines), clients).await,
        Feed::Channel(size) => {
            let (sender, receiver) = mpsc::channel(size);
            spawn_local(produce(lines, sender));
            write(method, Receiving(receiver), clients).await;
        }
        Feed::Unconstrained(size) => {
            let (sender, receiver) = mpsc::channel(size);
            spawn_local(tokio::task::unconstrained(produce(lines, sender)));
            write(method, Receiving(receiver), clients).await;
        }
    }
}

async fn produce(lines: impl Iterator<Item = Line>, sender: mpsc::Sender<Line>) {
    for line in lines {
        sender.send(line).await.expect("the receiver is open");
    }
}

fn make_lines(job: Job, lines: u64) -> impl Iterator<Item = Line> {
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

async fn write(
    method: Method,
    lines: impl Stream<Item = Line> + Unpin + 'static,
    clients: Vec<Client>,
) {
    match method {
        Method::Demux => {
            let orders = stream::iter(clients.into_iter().enumerate());
            lines
                .demux_by(|line| line.key, orders)
                .on_error(|to, error| panic!("{to:?}: {error}"))
                .await;
        }
        Method::Linger => {
            let clients = clients.into_iter().enumerate().map(Order::from);
            lines
                .demux_by(|line| line.key, stream::iter(clients).chain(ticks()))
                .linger(1)
                .on_error(|to, error| panic!("{to:?}: {error}"))
                .await;
        }
        Method::Send => send_each(lines, clients).await,
        Method::ForwardTokio => {
            let channel = || {
                let (sender, receiver) = mpsc::channel(CHANNEL_CAPACITY);
                (PollSender::new(sender), Receiving(receiver))
            };
            forward_each(lines, clients, channel).await;
        }
        Method::ForwardFutures => forward_each(lines, clients, || channel(CHANNEL_CAPACITY)).await,
        Method::Broadcast => broadcast(lines, clients).await,
        Method::Router => {
            let mut router = StreamRouter::new();
            router.add_source(lines, |line: Line| future::ready((line, line.key)));
            for (key, client) in clients.into_iter().enumerate() {
                router.add_sink(client, key);
            }
            router.count().await;
        }
        Method::Bare => append_each(lines, clients).await,
    }
}

fn ticks<K, S>() -> impl Stream<Item = Order<K, S>> {
    let mut interval = interval(TICK);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    stream::poll_fn(move |cx| interval.poll_tick(cx).map(|_| Some(Order::Tick)))
}

async fn send_each(mut lines: impl Stream<Item = Line> + Unpin, mut clients: Vec<Client>) {
    while let Some(line) = lines.next().await {
        clients[line.key].send(line).await.expect("the client reads");
    }
}

/// The size at which a buffer is written, the same as that of `FramedWrite`.
const BUFFER_SIZE: usize = 8 * 1_024;

async fn append_each(mut lines: impl Stream<Item = Line> + Unpin, clients: Vec<Client>) {
    let mut clients = clients
        .into_iter()
        .map(|client| (client.into_inner(), Vec::with_capacity(2 * BUFFER_SIZE)))
        .collect::<Vec<_>>();
    while let Some(line) = lines.next().await {
        let (socket, buffer) = &mut clients[line.key];
        buffer.extend_from_slice(line.text.as_bytes());
        buffer.push(b'\n');
        if buffer.len() >= BUFFER_SIZE {
            socket.write_all(buffer).await.expect("the client reads");
            buffer.clear();
        }
    }
    for (mut socket, buffer) in clients {
        socket.write_all(&buffer).await.expect("the client reads");
        socket.shutdown().await.expect("the client reads");
    }
}

/// The capacity of the channel per client.
const CHANNEL_CAPACITY: usize = 64;

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
        assert!(senders[line.key].feed(line).await.is_ok(), "the receiver is closed");
    }
    drop(senders);
    for task in tasks {
        task.await.expect("no task panicked").expect("the client reads");
    }
}

/// A broadcast channel drops items that a receiver is too slow for. To lose no line, the writer
/// waits for all receivers before the channel is full.
async fn broadcast(mut lines: impl Stream<Item = Line> + Unpin, clients: Vec<Client>) {
    const CAPACITY: usize = 1_024;
    let (sender, _) = broadcast::channel::<Line>(CAPACITY);
    let mut tasks = Vec::new();
    for (key, mut client) in clients.into_iter().enumerate() {
        let mut receiver = sender.subscribe();
        tasks.push(spawn_local(async move {
            loop {
                match receiver.recv().await {
                    Ok(line) if line.key == key => {
                        client.feed(line).await.expect("the client reads")
                    }
                    Ok(_) => {}
                    Err(broadcast::error::RecvError::Closed) => break,
                    Err(lagged) => panic!("{lagged}"),
                }
                if receiver.is_empty() {
                    SinkExt::<Line>::flush(&mut client).await.expect("the client reads");
                }
            }
            SinkExt::<Line>::close(&mut client).await.expect("the client reads");
        }));
    }
    let mut sent = 0;
    while let Some(line) = lines.next().await {
        sender.send(line).expect("the tasks are subscribed");
        sent += 1;
        while sent == CAPACITY && !sender.is_empty() {
            tokio::task::yield_now().await;
        }
        sent %= CAPACITY;
    }
    drop(sender);
    for task in tasks {
        task.await.expect("no task panicked");
    }
}
