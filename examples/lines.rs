//! A publish/subscribe server: lines of text over TCP, many clients, one demux.
//!
//! `cargo run --release --example lines` listens on 127.0.0.1:7000; `-- --listen ADDRESS:PORT`
//! changes that. Talk to it with `nc 127.0.0.1 7000`: `sub KEY`, `unsub KEY`, `pub KEY TEXT`,
//! `help`, `quit`. A client receives `ok sub KEY` when it is subscribed, `KEY TEXT` for each line
//! of its keys, and `err …` for invalid lines. A client that reads too slowly loses its oldest
//! lines, and receives their number (`lost N`) before the next line; no other client waits for it.
//! A client that reads no line for a minute while lines wait for it is disconnected;
//! `--stall-timeout MILLISECONDS` changes that. `Ctrl-C` delivers what is queued, gives slow
//! clients five seconds to read it, and prints the totals.
//!
//! The memory that a client can use in the server is bounded. A client has at most 100
//! subscriptions, to keys of at most 256 bytes. At most 32 MiB of lines wait for it, and 256 MiB
//! for all clients together; beyond that, a client that has more than 256 KiB waiting loses new
//! lines. A line that is cut off by the end of the connection is answered with `err …` and not
//! published.
//!
//! ```text
//!        ┌─▶ lines ───▶ demux ─▶ subscription ─┐
//! obey ──┼─▶ orders ──────┤      (has a queue) ├─▶ outbox ─▶ write     one task per client
//!        └─▶ err … ───────│────────────────────┘                       obeys it and writes to it
//!            ticks ───────┘
//! ```

use std::collections::HashMap;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{Sink, SinkExt, Stream, StreamExt, future, stream};
use stream_demux::{
    Attach, DemuxStreamExt, Detached, Discarded, Hooks, Lease, Order, Overflow, Recipient,
};
use tokio::io::{AsyncWriteExt, BufWriter};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::bytes::BytesMut;
use tokio_util::codec::{Decoder, FramedRead, LinesCodec, LinesCodecError};
use tokio_util::sync::{CancellationToken, PollSendError, PollSender};

const LONGEST: usize = 64 * 1024; // bytes of a line from a client
const INBOX: usize = 256; // lines, or orders, that wait for the demux; then senders wait
const OUTBOX: usize = 64; // lines that wait for the socket of a client
const QUEUE: usize = 256; // lines of one key that wait for the outbox; then the oldest is lost
const LONGEST_KEY: usize = 256; // bytes
const SUBSCRIPTIONS: usize = 100; // per client; each takes about a KiB and has a queue
// Bytes of lines that may wait: for a client with long lines for several keys (a full queue and the
// outbox take 20 MiB), for all clients together, and for a client even if the limit of all is
// reached.
const WAITING: usize = 32 << 20;
const WAITING_IN_ALL: usize = 256 << 20;
const WAITING_AT_LEAST: usize = 256 << 10;
const PATIENCE: Duration = Duration::from_secs(5); // to write what is left before closing
const TICKS: u32 = 4; // per stall time-out

/// A published line: `KEY TEXT` and a line end. Clones share the text.
#[derive(Clone)]
struct Line {
    text: Arc<str>,
    key_len: usize,
}

impl Line {
    fn key(&self) -> &str {
        &self.text[..self.key_len]
    }

    /// Returns `true` if the server waits for this line: see `catch_up`.
    fn is_echo(&self) -> bool {
        self.text.starts_with(' ')
    }
}

/// The data that is written to a client: the number of lines it lost, if any, and the next line.
struct Outgoing {
    lost: u64,
    text: Arc<str>,
    /// A line counts as waiting until this is dropped.
    waits: Option<Waits>,
}

/// The sending end of an outbox, and the report of the client.
#[derive(Clone)]
struct Outbox {
    outgoing: mpsc::Sender<Outgoing>,
    report: Report,
}

/// The sink that is attached: puts lines into the outbox of a client.
type Subscription = Pin<Box<dyn Sink<Line, Error = PollSendError<Outgoing>> + Send>>;

/// State that all clients share.
struct Server {
    publish: flume::Sender<Line>,
    orders: flume::Sender<Order<String, Subscription>>,
    /// What the demux reports to each client, by the tag of its attachments.
    reports: Mutex<HashMap<u64, Report>>,
    /// Bytes of lines that wait for a client.
    waiting: Arc<AtomicUsize>,
    /// How many clients did not read in time.
    stuck: AtomicU64,
    closing: CancellationToken,
}

/// What the demux reports to a client. Clones share their state.
#[derive(Clone, Default)]
struct Report {
    /// Lost lines that have not yet been reported to the client.
    lost: Arc<AtomicU64>,
    /// Bytes of lines that wait for the client.
    waiting: Arc<AtomicUsize>,
    /// Cancelled when a subscription has stalled.
    stalled: CancellationToken,
}

/// The bytes of a line that waits for a client, where they are counted.
struct Waits {
    bytes: usize,
    counts: [Arc<AtomicUsize>; 2],
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.counts.iter().for_each(|count| _ = count.fetch_sub(self.bytes, Relaxed));
    }
}

/// Hooks that find the report of a client.
struct Reports(Arc<Server>);

impl Reports {
    fn with<T>(&self, to: Recipient<'_, String>, with: impl FnOnce(&Report) -> T) -> Option<T> {
        self.0.reports.lock().unwrap().get(&to.tag).map(with)
    }
}

impl<E> Hooks<String, Line, E> for Reports {
    /// Counts the bytes of a line, or refuses it.
    fn admit(&mut self, to: Recipient<'_, String>, line: &Line) -> bool {
        let (bytes, in_all) = (line.text.len(), &self.0.waiting);
        let most = match bytes + in_all.load(Relaxed) {
            ..=WAITING_IN_ALL => WAITING,
            _ => WAITING_AT_LEAST,
        };
        // Only this task adds, so nothing comes between the comparison and the sum.
        let admitted = self.with(to, |client| {
            let waiting = bytes + client.waiting.load(Relaxed);
            let admitted = waiting <= most || line.is_echo();
            client.waiting.fetch_add(if admitted { bytes } else { 0 }, Relaxed);
            admitted
        });
        let admitted = admitted.unwrap_or(false); // a disconnected client gets no line
        in_all.fetch_add(if admitted { bytes } else { 0 }, Relaxed);
        admitted
    }

    fn discarded(&mut self, to: Recipient<'_, String>, line: Line, why: Discarded) {
        let bytes = if why == Discarded::NotAdmitted { 0 } else { line.text.len() };
        self.0.waiting.fetch_sub(bytes, Relaxed);
        self.with(to, |client| {
            client.waiting.fetch_sub(bytes, Relaxed);
            let lost = matches!(why, Discarded::Overflowed | Discarded::NotAdmitted);
            client.lost.fetch_add(lost.into(), Relaxed);
        });
    }

    fn detached(&mut self, to: Recipient<'_, String>, why: Detached<E>) {
        if matches!(why, Detached::Stalled) {
            self.with(to, |client| client.stalled.cancel());
        }
    }
}

/// Lines, or the reasons why lines are invalid. These are items, because an error would end the
/// stream.
struct Requests(LinesCodec);

impl Decoder for Requests {
    type Item = Result<String, String>;
    type Error = io::Error;

    fn decode(&mut self, bytes: &mut BytesMut) -> io::Result<Option<Self::Item>> {
        Ok(request(self.0.decode(bytes)))
    }
    fn decode_eof(&mut self, bytes: &mut BytesMut) -> io::Result<Option<Self::Item>> {
        let cut_off = !bytes.contains(&b'\n');
        let request = request(self.0.decode_eof(bytes));
        if cut_off {
            let wrong = || Err("line without an end, when the connection ended".to_owned());
            return Ok(request.map(|line| line.and_then(|_| wrong())));
        }
        Ok(request)
    }
}

fn request(line: Result<Option<String>, LinesCodecError>) -> Option<Result<String, String>> {
    let wrong = |error| match error {
        LinesCodecError::MaxLineLengthExceeded => "line longer than 64 KiB".to_owned(),
        LinesCodecError::Io(_) => "line not UTF-8".to_owned(), // decoding reads from nowhere
    };
    line.map_err(wrong).transpose()
}

const VERBS: &str = "sub KEY, unsub KEY, pub KEY TEXT, help, quit";

struct Client {
    server: Arc<Server>,
    id: u64,
    /// A lease for each key, and a future that completes when the subscription is gone.
    subscriptions: HashMap<String, (Lease, oneshot::Receiver<()>)>,
    report: Report,
    /// Holds all attachments of the client: when the client is dropped, they are evicted.
    lease: Lease,
    has_published: bool,
}

impl Client {
    /// Executes the client's requests until the connection ends. Returns an error if it breaks.
    async fn obey(&mut self, from: OwnedReadHalf, outbox: Outbox) -> io::Result<()> {
        let codec = LinesCodec::new_with_max_length(LONGEST);
        let mut requests = FramedRead::new(from, Requests(codec));
        while let Some(request) = requests.next().await {
            let answer = match request? {
                Ok(request) if request == "quit" => break,
                Ok(request) => self.serve(&request, &outbox).await,
                Err(wrong) => Err(wrong),
            };
            let text = match answer {
                Ok(None) => continue,
                Ok(Some(done)) => format!("ok {done}\n").into(),
                Err(wrong) => format!("err {wrong}\n").into(),
            };
            let _ = outbox.outgoing.send(Outgoing { lost: 0, text, waits: None }).await;
        }
        self.catch_up().await;
        self.subscriptions.drain().for_each(|(_, (lease, _))| lease.detach());
        Ok(())
    }

    /// Returns the answer, if there is one.
    async fn serve(&mut self, request: &str, outbox: &Outbox) -> Result<Option<String>, String> {
        let (verb, rest) = request.split_once(' ').unwrap_or((request, ""));
        let (key, text) = rest.split_once(' ').unwrap_or((rest, ""));
        let subscribed = self.subscriptions.contains_key(key);
        match verb {
            "sub" | "unsub" | "pub" if key.is_empty() => return Err("missing key".to_owned()),
            "sub" | "unsub" | "pub" if key.len() > LONGEST_KEY => {
                return Err(format!("key longer than {LONGEST_KEY} bytes"));
            }
            "sub" | "unsub" if !text.is_empty() => return Err(format!("key with a space: {rest}")),
            "sub" if subscribed => return Err(format!("already subscribed {key}")),
            "sub" if self.subscriptions.len() >= SUBSCRIPTIONS => {
                return Err(format!("more than {SUBSCRIPTIONS} subscriptions: {key}"));
            }
            "unsub" if !subscribed => return Err(format!("not subscribed {key}")),
            "pub" if text.is_empty() => return Err(format!("missing text for {key}")),
            "sub" => {
                self.subscribe(key, outbox.clone()).await;
                return Ok(Some(format!("sub {key}")));
            }
            "unsub" => self.unsubscribe(key).await,
            "pub" => self.publish(key, text).await,
            "help" => return Ok(Some(VERBS.to_owned())),
            _ => return Err(format!("unknown verb \"{verb:.20}\", not one of {VERBS}")),
        }
        Ok(None)
    }

    async fn subscribe(&mut self, key: &str, outbox: Outbox) {
        let (alive, gone) = oneshot::channel();
        let Outbox { outgoing, report } = outbox;
        let in_all = Arc::clone(&self.server.waiting);
        let sink = PollSender::new(outgoing).with(move |Line { text, .. }: Line| {
            let _until_the_sink_is_dropped = &alive;
            let counts = [Arc::clone(&report.waiting), Arc::clone(&in_all)];
            let waits = Some(Waits { bytes: text.len(), counts });
            future::ready(Ok(Outgoing { lost: report.lost.swap(0, Relaxed), text, waits }))
        });
        let mut lease = Lease::new();
        let attach = Attach::new(key.to_owned(), Box::pin(sink) as Subscription).tag(self.id);
        let attach = attach.leased(&mut self.lease).leased(&mut lease);
        // This fails only while the server closes, and then the connection is closed as well.
        let _ = self.server.orders.send_async(attach.into()).await;
        self.subscriptions.insert(key.to_owned(), (lease, gone));
    }

    /// Ends only the subscription of this client: `Order::Detach` would end those of all clients.
    async fn unsubscribe(&mut self, key: &str) {
        self.catch_up().await;
        if let Some((lease, gone)) = self.subscriptions.remove(key) {
            lease.detach();
            // If this attachment still existed beside its successor, both would get the next line.
            let _ = gone.await;
        }
    }

    async fn publish(&mut self, key: &str, text: &str) {
        self.has_published = true;
        let line = Line { text: format!("{key} {text}\n").into(), key_len: key.len() };
        let _ = self.server.publish.send_async(line).await;
    }

    /// Waits until the lines that the client published are routed, because a lease does not wait
    /// for that. Without this, a client that subscribes, publishes and quits would not see its
    /// line.
    async fn catch_up(&mut self) {
        if self.has_published && !self.subscriptions.is_empty() {
            let key = format!(" {}", self.id); // contains a space, so clients cannot use it
            let (outgoing, mut echo) = mpsc::channel(1);
            let report = Report { lost: Arc::default(), ..self.report.clone() };
            self.subscribe(&key, Outbox { outgoing, report }).await;
            self.publish(&key, "").await;
            echo.recv().await;
            self.subscriptions.remove(&key);
            self.has_published = false;
        }
    }
}

/// Writes what is in the outbox, and flushes when the outbox is empty.
async fn write(to: OwnedWriteHalf, mut outbox: mpsc::Receiver<Outgoing>) -> io::Result<()> {
    let mut to = BufWriter::new(to);
    while let Some(Outgoing { lost, text, waits }) = outbox.recv().await {
        if lost > 0 {
            to.write_all(format!("lost {lost}\n").as_bytes()).await?;
        }
        to.write_all(text.as_bytes()).await?;
        drop(waits);
        if outbox.is_empty() {
            to.flush().await?;
        }
    }
    to.shutdown().await
}

/// Serves a client until its connection is closed.
async fn connect(socket: TcpStream, server: Arc<Server>, id: u64) {
    let _ = socket.set_nodelay(true); // `write` batches lines
    let (reader, writer) = socket.into_split();
    let (outgoing, lines) = mpsc::channel(OUTBOX);
    let report = Report::default();
    server.reports.lock().unwrap().insert(id, report.clone());
    let stalled = report.stalled.clone();
    let outbox = Outbox { outgoing, report: report.clone() };
    let closing = server.closing.clone();
    let (subscriptions, lease) = (HashMap::new(), Lease::new());
    let mut client = Client { server, id, subscriptions, report, lease, has_published: false };
    let mut writing = pin!(write(writer, lines));
    let orderly = tokio::select! {
        done = client.obey(reader, outbox) => done.is_ok(),
        _ = &mut writing => false,
        () = stalled.cancelled() => {
            client.server.stuck.fetch_add(1, Relaxed);
            false
        }
        () = closing.cancelled() => true,
    };
    // The outbox ends when the last subscription is gone; then the connection is closed.
    if orderly && timeout(PATIENCE, writing).await.is_err() {
        client.server.stuck.fetch_add(1, Relaxed);
    }
    client.server.reports.lock().unwrap().remove(&id);
}

/// An endless stream of ticks: the demux has no clock.
fn ticks<K, S>(every: Duration) -> impl Stream<Item = Order<K, S>> {
    let mut interval = interval(every);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    stream::poll_fn(move |cx| interval.poll_tick(cx).map(|_| Some(Order::Tick)))
}

/// Serves all clients that connect, until `Ctrl-C`.
async fn run(listener: TcpListener, stall_timeout: Duration) -> io::Result<()> {
    writeln!(io::stdout(), "listening on {}", listener.local_addr()?)?;
    let ((publish, lines), (orders, orders_in)) = (flume::bounded(INBOX), flume::bounded(INBOX));
    let (reports, waiting, stuck, closing) = Default::default();
    let server = Arc::new(Server { publish, orders, reports, waiting, stuck, closing });
    let orders_in = stream::select(orders_in.into_stream(), ticks(stall_timeout / TICKS));
    let demux = lines
        .into_stream()
        .demux_by_ref(Line::key, orders_in)
        .multicast()
        .buffer(QUEUE)
        .overflow(Overflow::DropOldest)
        .flush_every(16) // a line waits in its sink for a flush, or for the next line
        .with_hasher(std::hash::RandomState::new()) // the keys are untrusted
        .stall_timeout(TICKS + 1) // one more, because the first tick may come at once
        .hooks(Reports(Arc::clone(&server)));
    let demux = tokio::spawn(demux);
    let (mut clients, mut ctrl_c) = (JoinSet::new(), pin!(tokio::signal::ctrl_c()));
    for id in 0.. {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => drop(clients.spawn(connect(socket, Arc::clone(&server), id))),
                Err(error) => {
                    eprintln!("lines: cannot accept a client: {error}");
                    sleep(Duration::from_millis(100)).await; // a client may disconnect by then
                }
            },
            Some(_) = clients.join_next() => {} // a client has disconnected
            _ = &mut ctrl_c => break,
        }
    }
    drop(listener);
    let _ = server.orders.send_async(Order::Finish).await;
    server.closing.cancel();
    while clients.join_next().await.is_some() {}
    let totals = demux.await?;
    writeln!(io::stdout(), "{} clients were stuck; {totals:?}", server.stuck.load(Relaxed))
}

const USAGE: &str = "usage: lines [--listen ADDRESS:PORT] [--stall-timeout MILLISECONDS]

  --listen ADDRESS:PORT         where to listen (127.0.0.1:7000)
  --stall-timeout MILLISECONDS  how long a client may leave waiting lines unread (60000)";

struct Settings {
    address: String,
    stall_timeout: Duration,
}

impl Settings {
    /// Returns `None` if help was requested.
    fn from_arguments() -> Result<Option<Self>, lexopt::Error> {
        use lexopt::prelude::{Long, ValueExt};
        let mut settings =
            Self { address: "127.0.0.1:7000".to_owned(), stall_timeout: Duration::from_secs(60) };
        let mut arguments = lexopt::Parser::from_env();
        while let Some(argument) = arguments.next()? {
            match argument {
                Long("listen") => settings.address = arguments.value()?.string()?,
                Long("stall-timeout") => {
                    let milliseconds: NonZeroU32 = arguments.value()?.parse()?;
                    settings.stall_timeout = Duration::from_millis(milliseconds.get().into());
                }
                Long("help") => return Ok(None),
                _ => return Err(argument.unexpected()),
            }
        }
        Ok(Some(settings))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let Settings { address, stall_timeout } = match Settings::from_arguments() {
        Ok(Some(settings)) => settings,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("lines: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let done = match TcpListener::bind(&*address).await {
        Ok(listener) => run(listener, stall_timeout).await.map_err(|error| error.to_string()),
        Err(error) => Err(format!("cannot listen on {address}: {error}")),
    };
    let Err(wrong) = done else { return ExitCode::SUCCESS };
    eprintln!("lines: {wrong}");
    ExitCode::FAILURE
}
