//! A server of jokes: each client that connects is sent a joke from a file, line by line as the
//! lines become available, and the connection is closed. A thousand concurrent clients do not need
//! a task each: they are attachments of one demux, with fresh keys and a `limit` of as many items
//! as the joke has lines.
//!
//! ```sh
//! cargo run --release --example jokes                # compares all sources, with a thousand clients
//! cargo run --release --example jokes -- serve       # then: nc 127.0.0.1 7001
//! cargo run --release --example jokes -- drive       # a thousand clients for that server
//! ```
//!
//! ```text
//! accept ─┬─▶ lines of its joke ─┐
//!         ├─▶ lines of its joke ─┼─▶ demux by client ─┬─▶ socket      all of it one task
//!         └─▶ lines of its joke ─┘         ▲          └─▶ socket
//!         └── attach, until all are sent ──┘
//! ```
//!
//! `--source` selects how the file is read: `blocking` (blocks the thread, and all tasks on it),
//! `spawn-blocking` (in a thread of tokio's pool), `tokio-fs` (with tokio's files, which use the
//! same pool), `cached` (from memory). `--with forward` serves from the same sources with a task
//! and a `forward` per connection. Jokes are separated by lines of dashes; a file that changes is
//! read again. The server does not read from its clients: the connection of a client that sends may
//! be reset.

use std::collections::HashSet;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::iter;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use futures::future;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use stream_demux::{Attach, DemuxStreamExt, Detached, Hooks, Lease, Order, Recipient};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::codec::{FramedRead, FramedWrite, LinesCodec, LinesCodecError};

/// How many connections may wait for `accept`: a thousand clients connect at once. The system may
/// allow fewer (on Linux, `net.core.somaxconn`).
const BACKLOG: u32 = 4_096;
/// How many jokes are read at the same time; no further client is accepted meanwhile.
const READERS: usize = 256;
/// How many lines a thread of the pool may read in advance.
const AHEAD: usize = 16;

// ---- the jokes ----------------------------------------------------------------------------------

/// Where a joke is in the file, how many lines it has, and the lines themselves, if cached.
struct Joke {
    offset: u64,
    count: usize,
    lines: Vec<Arc<str>>,
}

/// Finds the jokes in a file. An error names the file and the line.
fn index(path: &Path, is_cached: bool) -> Result<Vec<Joke>, String> {
    let at = |number: u32, what: &str| format!("{}:{number}: {what}", path.display());
    let file = fs::File::open(path);
    let file = file.map_err(|error| format!("cannot open {}: {error}", path.display()))?;
    let (mut reader, mut line, mut offset) = (BufReader::new(file), String::new(), 0);
    let (mut jokes, mut is_first, mut is_blank) = (Vec::new(), true, true);
    let mut joke = Joke { offset, count: 0, lines: Vec::new() };
    for number in 1.. {
        line.clear();
        let length = reader.read_line(&mut line).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => at(number, "not UTF-8"),
            _ => format!("cannot read {}: {error}", path.display()),
        })?;
        offset += length as u64;
        let text = line.trim_end_matches('\n').trim_end_matches('\r');
        let dashes = text.trim_end();
        if length > 0 && !(dashes.len() >= 3 && dashes.bytes().all(|byte| byte == b'-')) {
            is_blank &= text.trim().is_empty();
            joke.count += 1;
            joke.lines.extend(is_cached.then(|| text.into()));
            continue;
        }
        // An empty part before the first or after the last line of dashes is not a joke.
        if !is_blank {
            jokes.push(joke);
        } else if length > 0 && !is_first {
            return Err(at(number, "a joke without lines"));
        }
        if length == 0 {
            break;
        }
        (is_first, is_blank) = (false, true);
        joke = Joke { offset, count: 0, lines: Vec::new() };
    }
    if jokes.is_empty() {
        return Err(format!("{}: no joke in it", path.display()));
    }
    Ok(jokes)
}

#[derive(Clone, Copy, PartialEq)]
enum Source {
    Blocking,
    SpawnBlocking,
    TokioFs,
    Cached,
}

const SOURCES: [(&str, Source); 4] = [
    ("blocking", Source::Blocking),
    ("spawn-blocking", Source::SpawnBlocking),
    ("tokio-fs", Source::TokioFs),
    ("cached", Source::Cached),
];

type Lines = BoxStream<'static, io::Result<Arc<str>>>;

/// The current jokes of the file.
struct Shelf {
    path: Arc<Path>,
    source: Source,
    jokes: Arc<Vec<Joke>>,
    /// When the file was changed and how long it was, when it was indexed.
    stamp: Option<(SystemTime, u64)>,
    hasher: RandomState,
}

impl Shelf {
    fn new(path: &Path, source: Source) -> Result<Self, String> {
        let stamp = stamp(path);
        let jokes = Arc::new(index(path, source == Source::Cached)?);
        Ok(Self { path: path.into(), source, jokes, stamp, hasher: RandomState::new() })
    }

    /// Returns a joke and the number of its lines. The lines end with an error if one cannot be
    /// read.
    fn pick(&mut self, client: u64) -> (usize, Lines) {
        self.refresh();
        let dice = self.hasher.hash_one(client) % self.jokes.len() as u64;
        let nth = usize::try_from(dice).expect("less than there are jokes");
        let Joke { offset, count, .. } = self.jokes[nth];
        let (path, jokes) = (Arc::clone(&self.path), Arc::clone(&self.jokes));
        let lines = match self.source {
            Source::Blocking => stream::iter(read(path, offset)).boxed(),
            Source::SpawnBlocking => read_elsewhere(path, offset, count).boxed(),
            Source::TokioFs => read_async(path, offset).boxed(),
            Source::Cached => {
                stream::iter((0..count).map(move |n| Ok(Arc::clone(&jokes[nth].lines[n])))).boxed()
            }
        };
        // The joke had this many lines when it was indexed. The file may have changed since.
        let short = || io::Error::new(io::ErrorKind::UnexpectedEof, "the joke ends too early");
        let lines = lines.chain(stream::once(async move { Err(short()) })).take(count);
        let path = Arc::clone(&self.path);
        let complain = move |error: &_| eprintln!("jokes: cannot read {}: {error}", path.display());
        (count, lines.inspect_err(complain).boxed())
    }

    /// Reads the file again if it has changed; if it is invalid, keeps the old jokes. The check is
    /// quick and reading is rare, so neither needs a separate thread.
    fn refresh(&mut self) {
        let stamp = stamp(&self.path);
        if stamp != self.stamp {
            self.stamp = stamp;
            match index(&self.path, self.source == Source::Cached) {
                Ok(jokes) => self.jokes = Arc::new(jokes),
                Err(error) => eprintln!("jokes: still using the old jokes: {error}"),
            }
        }
    }
}

fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

/// The lines from there on; each read blocks the thread.
fn read(path: Arc<Path>, offset: u64) -> impl Iterator<Item = io::Result<Arc<str>>> {
    let open = move || {
        let mut file = fs::File::open(&path)?;
        file.seek(SeekFrom::Start(offset))?;
        Ok(BufReader::new(file))
    };
    let mut reader = None;
    iter::from_fn(move || match reader.get_or_insert_with(&open) {
        Ok(reader) => reader.lines().next().map(|line| line.map(Arc::from)),
        Err(_) => reader.take()?.err().map(Err),
    })
}

/// The same, in a thread of the pool for blocking work.
fn read_elsewhere(
    path: Arc<Path>,
    offset: u64,
    count: usize,
) -> impl Stream<Item = io::Result<Arc<str>>> {
    let (sender, mut receiver) = mpsc::channel(AHEAD);
    spawn_blocking(move || {
        // It ends early if the receiver is gone.
        read(path, offset).take(count).try_for_each(|line| sender.blocking_send(line))
    });
    stream::poll_fn(move |cx| receiver.poll_recv(cx))
}

/// The same, with tokio's files.
fn read_async(path: Arc<Path>, offset: u64) -> impl Stream<Item = io::Result<Arc<str>>> {
    let lines = async move {
        let mut file = tokio::fs::File::open(path).await?;
        file.seek(SeekFrom::Start(offset)).await?;
        Ok::<_, LinesCodecError>(FramedRead::new(file, LinesCodec::new()).map_ok(Arc::from))
    };
    stream::once(lines).try_flatten().map_err(|error| match error {
        LinesCodecError::Io(error) => error,
        LinesCodecError::MaxLineLengthExceeded => io::Error::other(error),
    })
}

// ---- the server ---------------------------------------------------------------------------------

/// The clients that connect.
fn accept(listener: TcpListener) -> impl Stream<Item = TcpStream> {
    stream::unfold(listener, |listener| async move {
        loop {
            match listener.accept().await {
                Ok((socket, _)) => return Some((socket, listener)),
                Err(error) => {
                    eprintln!("jokes: cannot accept a client: {error}");
                    sleep(Duration::from_millis(100)).await; // a client may disconnect by then
                }
            }
        }
    })
}

/// A line and its client.
struct Line {
    client: u64,
    text: Arc<str>,
}

impl AsRef<str> for Line {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

/// Counts of the clients by outcome.
#[derive(Default)]
struct Tally {
    served: u64,
    gone: u64,
    stuck: u64,
}

impl<V, E> Hooks<u64, V, E> for Tally {
    fn detached(&mut self, _: Recipient<'_, u64>, why: Detached<E>) {
        match why {
            Detached::Limited => self.served += 1,
            Detached::Evicted => self.stuck += 1,
            _ => self.gone += 1,
        }
    }
}

/// Serves all clients in one task. Accepts clients until `stop`; each has `patience` to read its
/// joke.
async fn serve_by_demux(
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
    mut shelf: Shelf,
    patience: Duration,
) -> Result<Tally, String> {
    let (orders, orders_in) = flume::unbounded();
    let (leases, mut expiring) = mpsc::unbounded_channel();
    let mut client = 0;
    let lines = accept(listener).take_until(Box::pin(stop)).map(move |socket| {
        client += 1;
        let (count, lines) = shelf.pick(client);
        let sink = FramedWrite::new(socket, LinesCodec::new());
        let mut lease = Lease::new();
        // The queue has room for the whole joke, so a client that does not read delays no other.
        let attach = Attach::new(client, sink).limit(count as u64).buffer(count).leased(&mut lease);
        let _ = orders.send(Order::from(attach)); // read for as long as the lines are
        let _ = leases.send((Instant::now() + patience, lease));
        let (client, orders) = (client, orders.clone());
        lines.scan((), move |(), line| {
            if line.is_err() {
                // Without its last line the client would not reach its limit.
                let _ = orders.send(Order::Detach(client));
            }
            future::ready(line.ok().map(|text| Line { client, text }))
        })
    });
    let mut tally = Tally::default();
    let serving = tokio::spawn(async move {
        let demux = lines
            .flatten_unordered(READERS)
            .demux_by(|line| line.client, orders_in.into_stream())
            .hooks(&mut tally);
        let demux = pin!(demux);
        // The patience is the same for all, so leases end in the order in which they were created.
        // The lease of a served client no longer holds an attachment.
        let evict = async {
            while let Some((due, lease)) = expiring.recv().await {
                sleep_until(due).await;
                drop(lease);
            }
            future::pending::<()>().await;
        };
        future::select(demux, pin!(evict)).await;
        tally
    });
    serving.await.map_err(|error| error.to_string())
}

/// The same with one task per client.
async fn serve_by_forward(
    listener: TcpListener,
    stop: impl Future<Output = ()>,
    mut shelf: Shelf,
    patience: Duration,
) -> Tally {
    let mut sockets = pin!(accept(listener).take_until(stop));
    let (mut clients, mut tally, mut client, mut is_open) =
        (JoinSet::new(), Tally::default(), 0, true);
    while is_open || !clients.is_empty() {
        tokio::select! {
            socket = sockets.next(), if is_open => match socket {
                Some(socket) => {
                    client += 1;
                    let (_, lines) = shelf.pick(client);
                    let sink = FramedWrite::new(socket, LinesCodec::new());
                    let lines = lines.map_err(LinesCodecError::Io);
                    clients.spawn(timeout(patience, lines.forward(sink)));
                }
                None => is_open = false,
            },
            Some(done) = clients.join_next() => match done {
                Ok(Ok(Ok(()))) => tally.served += 1,
                Ok(Err(_)) => tally.stuck += 1,
                _ => tally.gone += 1,
            },
        }
    }
    tally
}

async fn serve(options: &Options) -> Result<(), String> {
    let shelf = Shelf::new(&options.file, options.source.1)?;
    let room = rlimit::increase_nofile_limit(u64::MAX);
    let room = room.map_err(|error| format!("cannot raise the limit of open files: {error}"))?;
    let listen = || {
        let socket = if options.at.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(options.at)?;
        socket.listen(BACKLOG)
    };
    let listener = listen().map_err(|error| format!("cannot listen on {}: {error}", options.at))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    print(&format!(
        "listening on {address}\n{} jokes, {}, {}, up to {room} open files",
        shelf.jokes.len(),
        options.source.0,
        if options.with_forward { "forward" } else { "demux" },
    ))?;

    let until_stdin_ends = options.until_stdin_ends;
    let stdin = async move {
        if !until_stdin_ends {
            return future::pending().await;
        }
        let (ended, end) = oneshot::channel::<()>();
        // Not tokio's standard input: a runtime does not shut down while that is being read.
        thread::spawn(move || {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            drop(ended);
        });
        let _ = end.await;
    };
    let stop = async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            () = stdin => {}
        }
    };
    let tally = if options.with_forward {
        serve_by_forward(listener, stop, shelf, options.patience).await
    } else {
        serve_by_demux(listener, stop, shelf, options.patience).await?
    };
    let Tally { served, gone, stuck } = tally;
    print(&format!("{served} clients were served, {gone} had disconnected, {stuck} were stuck"))
}

// ---- the clients --------------------------------------------------------------------------------

/// The jokes as they are sent: a client has to receive one of them.
type Expected = HashSet<Vec<u8>>;

fn expected(file: &Path) -> Result<Expected, String> {
    let wire = |joke: Joke| {
        joke.lines.iter().flat_map(|line| [line, "\n"].concat().into_bytes()).collect()
    };
    Ok(index(file, true)?.into_iter().map(wire).collect())
}

/// Opens all connections, then reads all jokes, and returns how long that took. Some more clients
/// connect before them and never read.
async fn drive(
    address: SocketAddr,
    expected: &Expected,
    options: &Options,
) -> Result<Duration, String> {
    let connect = || async {
        let socket = TcpStream::connect(address).await;
        socket.map_err(|error| format!("cannot connect to {address}: {error}"))
    };
    let _stuck = future::try_join_all((0..options.stuck).map(|_| connect())).await?;
    let start = Instant::now();
    let sockets = future::try_join_all((0..options.clients.get()).map(|_| connect())).await?;
    future::try_join_all(sockets.into_iter().map(|mut socket| async move {
        let mut joke = Vec::new();
        match timeout(options.patience, socket.read_to_end(&mut joke)).await {
            Ok(Ok(_)) if expected.contains(&joke) => Ok(()),
            Ok(Ok(0)) => Err("a client received nothing".to_owned()),
            Ok(Ok(_)) => {
                let joke = String::from_utf8_lossy(&joke);
                Err(format!(
                    "a client received text that is not a joke of {}: {joke:?}",
                    options.file.display()
                ))
            }
            Ok(Err(error)) => Err(format!("a client lost its connection: {error}")),
            Err(_) => Err(format!("a client waited for more than {:?}", options.patience)),
        }
    }))
    .await?;
    Ok(start.elapsed())
}

/// The median time of several runs with this many clients at once.
async fn drive_rounds(
    address: SocketAddr,
    expected: &Expected,
    options: &Options,
) -> Result<Duration, String> {
    let mut times = Vec::new();
    for _ in 0..options.rounds.get() {
        times.push(drive(address, expected, options).await?);
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Raises the limit of open files to what the clients need, or reports that it is too low. A server
/// that is started afterwards needs twice as many files as it has clients: a connection for each,
/// and possibly an open file.
fn allow_files(options: &Options) -> Result<(), String> {
    let clients = options.clients.get().saturating_add(options.stuck) as u64;
    let needed = clients.saturating_mul(2).saturating_add(64);
    let limit = rlimit::increase_nofile_limit(needed);
    let limit = limit.map_err(|error| format!("cannot raise the limit of open files: {error}"))?;
    if limit < needed {
        return Err(format!(
            "{clients} clients need {needed} open files, but the limit is {limit}: \
             raise it (`ulimit -Hn {needed}`, as root), or have fewer `--clients`"
        ));
    }
    Ok(())
}

/// A server in a separate process, which ends when this process ends for any reason.
struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Server {
    fn start(source: &str, with: &str, options: &Options) -> Result<Self, String> {
        let failed = |error| format!("cannot start a server: {error}");
        let mut child = Command::new(std::env::current_exe().map_err(failed)?)
            .args(["serve", "--until-stdin-ends", "--at", "127.0.0.1:0", "--source", source])
            .args(["--with", with, "--file"])
            .arg(&options.file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut stdout = BufReader::new(child.stdout.take().expect("it was piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).map_err(failed)?;
        match line.strip_prefix("listening on ").and_then(|line| line.trim().parse().ok()) {
            Some(address) => Ok(Self { child, stdout, address }),
            None => Err(format!("the server for {source} did not start")), // and has printed the reason
        }
    }

    /// Stops the server. Returns an error if it has not served all clients.
    fn finish(mut self, options: &Options) -> Result<(), String> {
        drop(self.child.stdin.take());
        let mut report = String::new();
        let read = self.stdout.read_to_string(&mut report);
        let status = read.and_then(|_| self.child.wait());
        let status = status.map_err(|error| format!("cannot wait for the server: {error}"))?;
        let served = options.clients.get() * options.rounds.get();
        let last = report.lines().last().unwrap_or_default();
        let count = last.split(' ').next().and_then(|count| count.parse().ok());
        if !status.success() || count.is_none_or(|count: usize| count < served) {
            return Err(format!(
                "the server should have served {served} clients, but exited with {status}: {last}"
            ));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn compare(options: &Options) -> Result<(), String> {
    let expected = expected(&options.file)?;
    allow_files(options)?;
    let Options { clients, stuck, rounds, .. } = options;
    print(&format!(
        "{clients} clients at once, and {stuck} that never read; ms until all have their joke, median of {rounds}\n\n\
         source               demux    forward"
    ))?;
    for (source, _) in SOURCES {
        let mut line = format!("{source:16}");
        for with in WITH {
            let server = Server::start(source, with, options)?;
            let time = drive_rounds(server.address, &expected, options).await;
            let time = time.map_err(|error| format!("{source}, {with}: {error}"))?;
            server.finish(options).map_err(|error| format!("{source}, {with}: {error}"))?;
            let hundredths = time.as_micros() / 10;
            line = format!("{line} {:>7}.{:02}", hundredths / 100, hundredths % 100);
        }
        print(&line)?;
    }
    Ok(())
}

// ---- the command line ---------------------------------------------------------------------------

const WITH: [&str; 2] = ["demux", "forward"];
const USAGE: &str = "usage: jokes [compare | serve | drive] [options]

  compare            starts a server for each source, and compares them (default)
  serve              serves jokes until Ctrl-C
  drive              is a thousand clients of a server

  --file PATH        the jokes, separated by lines of dashes (examples/jokes.txt)
  --at ADDRESS:PORT  where the server is (127.0.0.1:7001); serve and drive
  --source SOURCE    blocking, spawn-blocking, tokio-fs or cached (cached); serve
  --with WHAT        demux, or forward: a task for each client (demux); serve
  --patience SECONDS for a client that does not read, or a server that does not send (30)
  --clients N        how many connect at once (1000); compare and drive
  --stuck N          how many more never read (10); compare and drive
  --rounds N         how often they come (5); compare and drive
  --until-stdin-ends serve until then, or Ctrl-C";

#[derive(Clone, Copy)]
enum Mode {
    Compare,
    Serve,
    Drive,
}

struct Options {
    mode: Mode,
    file: PathBuf,
    at: SocketAddr,
    source: (&'static str, Source),
    with_forward: bool,
    patience: Duration,
    clients: NonZeroUsize,
    stuck: usize,
    rounds: NonZeroUsize,
    until_stdin_ends: bool,
}

impl Options {
    /// Returns `None` if help was requested.
    fn from_arguments() -> Result<Option<Self>, lexopt::Error> {
        use lexopt::prelude::{Long, Value, ValueExt};
        let mut options = Self {
            mode: Mode::Compare,
            file: Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/jokes.txt"),
            at: SocketAddr::from(([127, 0, 0, 1], 7001)),
            source: SOURCES[3],
            with_forward: false,
            patience: Duration::from_secs(30),
            clients: const { NonZeroUsize::new(1_000).unwrap() },
            stuck: 10,
            rounds: const { NonZeroUsize::new(5).unwrap() },
            until_stdin_ends: false,
        };
        let mut arguments = lexopt::Parser::from_env();
        let mut is_first = true;
        while let Some(argument) = arguments.next()? {
            match argument {
                Value(mode) if is_first => {
                    options.mode = mode.parse_with(|mode| match mode {
                        "compare" => Ok(Mode::Compare),
                        "serve" => Ok(Mode::Serve),
                        "drive" => Ok(Mode::Drive),
                        _ => Err("neither compare nor serve nor drive"),
                    })?;
                }
                Long("file") => options.file = arguments.value()?.into(),
                Long("at") => options.at = arguments.value()?.parse()?,
                Long("source") => {
                    options.source = arguments.value()?.parse_with(|name| {
                        SOURCES.into_iter().find(|source| source.0 == name).ok_or("no such source")
                    })?;
                }
                Long("with") => {
                    options.with_forward = arguments.value()?.parse_with(|name| match name {
                        "demux" => Ok(false),
                        "forward" => Ok(true),
                        _ => Err("neither demux nor forward"),
                    })?;
                }
                Long("patience") => {
                    let seconds: u32 = arguments.value()?.parse()?;
                    options.patience = Duration::from_secs(seconds.into());
                }
                Long("clients") => options.clients = arguments.value()?.parse()?,
                Long("stuck") => options.stuck = arguments.value()?.parse()?,
                Long("rounds") => options.rounds = arguments.value()?.parse()?,
                Long("until-stdin-ends") => options.until_stdin_ends = true,
                Long("help") => return Ok(None),
                _ => return Err(argument.unexpected()),
            }
            is_first = false;
        }
        Ok(Some(options))
    }
}

fn print(text: &str) -> Result<(), String> {
    writeln!(io::stdout(), "{text}").map_err(|error| format!("cannot print: {error}"))
}

async fn run(options: Options) -> Result<(), String> {
    match options.mode {
        Mode::Compare => compare(&options).await,
        Mode::Serve => serve(&options).await,
        Mode::Drive => {
            let expected = expected(&options.file)?;
            allow_files(&options)?;
            let time = drive_rounds(options.at, &expected, &options).await?;
            print(&format!("{} clients had their joke within {time:.2?}", options.clients))
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::from_arguments() {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("jokes: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("jokes: {error}");
            ExitCode::FAILURE
        }
    }
}
