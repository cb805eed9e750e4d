//! A publish/subscribe server for lines of text. Run it, and talk to it with `nc 127.0.0.1 7000`:
//!
//! ```sh
//! cargo run --release --example lines -- --listen 127.0.0.1:7000
//! ```
//!
//! A client sends `sub KEY`, `unsub KEY`, `pub KEY TEXT` or `quit`, and receives `KEY TEXT` for each of
//! its keys. What it gets wrong is answered by `err …`. If it reads too slowly it loses its oldest
//! lines, is told how many (`lost N`), and delays nobody. `Ctrl-C` delivers what is queued and ends.
//!
//! One [`Demux`](stream_demux::Demux) serves all clients. A subscription is an attachment: its sink
//! puts lines into the outbox of its client, a channel that the client's writer empties into the
//! socket. A lease for each client ends all its subscriptions, a lease for each subscription that one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::RandomState;
use std::io::{self, ErrorKind::InvalidData};
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{Either, ready, select};
use futures::{Sink, SinkExt, StreamExt, stream};
use stream_demux::{
    Attach, DemuxStreamExt, Detached, Discarded, Hooks, Lease, Order, Overflow, Recipient,
};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::bytes::BytesMut;
use tokio_util::codec::{Decoder, FramedRead, FramedWrite, LinesCodec, LinesCodecError};
use tokio_util::sync::{PollSendError, PollSender};

/// The longest line that a client may send, in bytes.
const LONGEST: usize = 64 * 1024;
/// How many lines wait for a slow client: in its outbox, and then for each of its subscriptions.
const OUTBOX: usize = 64;
const BUFFER: usize = 256;
/// How long whoever is stuck may take at the end.
const PATIENCE: Duration = Duration::from_secs(5);
/// And then, until its socket is closed on it.
const GRACE: Duration = Duration::from_secs(1);

/// A published line, `KEY TEXT`, and where its key ends.
#[derive(Clone)]
struct Line {
    text: Arc<str>,
    key: usize,
}

impl Line {
    fn key(&self) -> &str {
        &self.text[..self.key]
    }
}

/// What a client is sent: a line, and how many it lost before that.
struct Sent {
    lost: u64,
    text: Arc<str>,
}

/// The sink of a subscription.
type Subscription = Pin<Box<dyn Sink<Line, Error = PollSendError<Sent>> + Send>>;

/// What all parts of the server share.
struct Server {
    publish: mpsc::Sender<Line>,
    orders: flume::Sender<Order<String, Subscription>>,
    /// Holds every subscription, until the end.
    everybody: Mutex<Lease>,
    /// How many lines each client lost and was not told of yet, by the number that tags it.
    lost: Mutex<HashMap<u64, Arc<AtomicU64>>>,
    evicted: AtomicU64,
}

type Closing = watch::Receiver<bool>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts what slow clients lose.
struct Account(Arc<Server>);

impl<E> Hooks<String, Line, E> for Account {
    fn discarded(&mut self, to: Recipient<'_, String>, _: Line, _: Discarded) {
        if let Some(lost) = lock(&self.0.lost).get(&to.tag) {
            lost.fetch_add(1, Relaxed);
        }
    }

    fn detached(&mut self, _: Recipient<'_, String>, why: Detached<E>) {
        self.0.evicted.fetch_add(u64::from(matches!(why, Detached::Evicted)), Relaxed);
    }
}

/// Lines, or what is wrong with them. Never fails over a bad line, so that the connection lives on.
struct Requests(LinesCodec);

impl Decoder for Requests {
    type Item = Result<String, &'static str>;
    type Error = io::Error;

    fn decode(&mut self, bytes: &mut BytesMut) -> io::Result<Option<Self::Item>> {
        match self.0.decode(bytes) {
            Ok(line) => Ok(line.map(Ok)),
            Err(LinesCodecError::MaxLineLengthExceeded) => Ok(Some(Err("line longer than 64 KiB"))),
            Err(LinesCodecError::Io(e)) if e.kind() == InvalidData => {
                Ok(Some(Err("line is not UTF-8")))
            }
            Err(LinesCodecError::Io(error)) => Err(error),
        }
    }
}

/// A connected client. Its subscriptions end with it.
struct Client {
    server: Arc<Server>,
    number: u64,
    outbox: mpsc::Sender<Sent>,
    lost: Arc<AtomicU64>,
    lease: Lease,
    subscriptions: HashMap<String, Lease>,
}

impl Client {
    /// Does what the client says, until it quits or is gone.
    async fn obey(mut self, socket: OwnedReadHalf) {
        let mut requests =
            FramedRead::new(socket, Requests(LinesCodec::new_with_max_length(LONGEST)));
        while let Some(Ok(request)) = requests.next().await {
            let done = match request.as_deref() {
                Ok("quit") => return std::mem::take(&mut self.lease).detach(),
                Ok(request) => self.execute(request).await,
                Err(wrong) => Err((*wrong).to_owned()),
            };
            let Err(wrong) = done else { continue };
            // If nobody writes any more, the next request will find the connection gone.
            let _ = self.outbox.send(Sent { lost: 0, text: format!("err {wrong}").into() }).await;
        }
    }

    async fn execute(&mut self, request: &str) -> Result<(), String> {
        let (verb, rest) = request.split_once(' ').unwrap_or((request, ""));
        let (key, text) =
            rest.split_once(' ').map_or((rest, None), |(key, text)| (key, Some(text)));
        match (verb, text) {
            ("sub" | "unsub" | "pub", _) if key.is_empty() => Err(format!("{verb}: missing key")),
            ("sub", None) => self.subscribe(key),
            ("unsub", None) => {
                let lease = self.subscriptions.remove(key).map(Lease::detach);
                lease.ok_or_else(|| format!("unsub: not subscribed to {key}"))
            }
            ("sub" | "unsub", Some(_)) => Err(format!("{verb}: a key has no spaces")),
            ("pub", Some(_)) => {
                let line = Line { text: rest.into(), key: key.len() };
                self.server.publish.send(line).await.map_err(|_| "pub: the server ends".to_owned())
            }
            ("pub", None) => Err("pub: missing text".to_owned()),
            _ => Err(format!("unknown verb {verb:?}: try sub, unsub, pub or quit")),
        }
    }

    fn subscribe(&mut self, key: &str) -> Result<(), String> {
        let Entry::Vacant(entry) = self.subscriptions.entry(key.to_owned()) else {
            return Err(format!("sub: already subscribed to {key}"));
        };
        let lost = Arc::clone(&self.lost);
        let sink = PollSender::new(self.outbox.clone()).with(move |line: Line| {
            ready(Ok(Sent { lost: lost.swap(0, Relaxed), text: line.text }))
        });
        let attach = Attach::new(key.to_owned(), Box::pin(sink) as Subscription)
            .tag(self.number)
            .leased(&mut self.lease)
            .leased(entry.insert(Lease::new()))
            .leased(&mut lock(&self.server.everybody));
        self.server.orders.send(attach.into()).map_err(|_| "sub: the server ends".to_owned())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        lock(&self.server.lost).remove(&self.number);
        // The lease of the client speaks for them, gracefully if it quit.
        self.subscriptions.drain().for_each(|(_, lease)| lease.disarm());
    }
}

/// Serves one client, from when it connected until its socket is closed.
async fn serve(socket: TcpStream, server: Arc<Server>, number: u64, mut closing: Closing) {
    let (reading, writing) = socket.into_split();
    let (outbox, lines) = mpsc::channel(OUTBOX);
    let lost = Arc::new(AtomicU64::new(0));
    lock(&server.lost).insert(number, Arc::clone(&lost));
    let client =
        Client { server, number, outbox, lost, lease: Lease::new(), subscriptions: HashMap::new() };
    let mut writer = tokio::spawn(write(writing, lines));
    // Once this is over the client is dropped, so that the outbox ends, and then the writer.
    select(pin!(client.obey(reading)), pin!(closing.wait_for(|&closing| closing))).await;
    let _ = timeout(PATIENCE, &mut writer).await;
    writer.abort();
}

/// Writes what is in the outbox, flushing once for all that is there.
async fn write(
    socket: OwnedWriteHalf,
    mut outbox: mpsc::Receiver<Sent>,
) -> Result<(), LinesCodecError> {
    let mut lines = FramedWrite::new(socket, LinesCodec::new());
    let mut batch = Vec::with_capacity(OUTBOX);
    while outbox.recv_many(&mut batch, OUTBOX).await > 0 {
        for Sent { lost, text } in batch.drain(..) {
            if lost > 0 {
                SinkExt::<String>::feed(&mut lines, format!("lost {lost}")).await?;
            }
            lines.feed(text).await?;
        }
        SinkExt::<String>::flush(&mut lines).await?;
    }
    SinkExt::<String>::close(&mut lines).await
}

/// Accepts clients until `Ctrl-C`.
async fn accept(listener: &TcpListener, server: &Arc<Server>, closing: &Closing) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    let mut ctrl_c = pin!(tokio::signal::ctrl_c());
    for number in 1.. {
        let socket = match select(ctrl_c.as_mut(), pin!(listener.accept())).await {
            Either::Left(_) => break,
            Either::Right((Ok((socket, _)), _)) => socket,
            Either::Right((Err(error), _)) => {
                eprintln!("lines: cannot accept a client: {error}");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        clients.spawn(serve(socket, Arc::clone(server), number, closing.clone()));
        while clients.try_join_next().is_some() {}
    }
    clients
}

async fn run(listener: TcpListener) {
    println!("listening on {}", listener.local_addr().expect("a bound socket has an address"));
    let (publish, mut items) = mpsc::channel(1024);
    let (orders, orders_in) = flume::unbounded();
    let (everybody, lost, evicted) = Default::default();
    let server = Arc::new(Server { publish, orders, everybody, lost, evicted });
    let demux = tokio::spawn(
        stream::poll_fn(move |cx| items.poll_recv(cx))
            .demux_by_ref(Line::key, orders_in.into_stream())
            .multicast()
            .buffer(BUFFER)
            .overflow(Overflow::DropOldest)
            .with_hasher(RandomState::new())
            .hooks(Account(Arc::clone(&server))),
    );
    let (close, closing) = watch::channel(false);
    let clients = accept(&listener, &server, &closing).await;

    let _ = server.orders.send(Order::Finish);
    let gone = server.evicted.load(Relaxed);
    if timeout(PATIENCE, server.publish.closed()).await.is_err() {
        drop(std::mem::take(&mut *lock(&server.everybody)));
    }
    let totals = demux.await.expect("the demux does not panic");
    close.send_replace(true);
    let _ = timeout(GRACE, clients.join_all()).await;
    let stuck = server.evicted.load(Relaxed) - gone;
    println!("{stuck} subscriptions were stuck; {totals:?}");
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let address = match (arguments.next().as_deref(), arguments.next(), arguments.next()) {
        (None, ..) => "127.0.0.1:7000".to_owned(),
        (Some("--listen"), Some(address), None) => address,
        _ => {
            eprintln!("usage: lines [--listen ADDRESS:PORT]");
            return ExitCode::from(2);
        }
    };
    match TcpListener::bind(&address).await {
        Ok(listener) => {
            run(listener).await;
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("lines: cannot listen on {address}: {error}");
            ExitCode::FAILURE
        }
    }
}
