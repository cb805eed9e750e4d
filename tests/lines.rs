//! The example `lines`, a server, from outside: over real sockets, with a thousand clients in a second
//! process, with clients who are rude, gone or asleep, and until `Ctrl-C`.
//!
//! Nothing here sleeps. Where a clock is read it is a watchdog, which can only fail a test, but for the
//! five seconds that the server gives to who is stuck.

#![cfg(unix)]

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::{StreamExt, stream};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

/// Nothing that is waited for takes nearly as long, unless it never comes.
const WATCHDOG: Duration = Duration::from_secs(30);
/// How long no process lives.
const LIFETIME: Duration = Duration::from_secs(100);

/// What the server lets wait for a subscription: lines in the outbox, and then in the queue.
const WAITING: usize = 64 + 256;
/// Bytes in a fat line. `WAITING` of them are more than what the sockets of a connection hold.
const FAT: usize = 30_000;

// ---- processes ----------------------------------------------------------------------------------

/// An example, built by `cargo test` into the folder beside the one that this test was built into.
fn example(name: &str) -> PathBuf {
    let test = env::current_exe().expect("the test has a path");
    let profile = test.ancestors().nth(2).expect("it is in <profile>/deps");
    let path = profile.join("examples").join(format!("{name}{}", env::consts::EXE_SUFFIX));
    let release = if profile.ends_with("release") { "--release " } else { "" };
    assert!(
        path.is_file(),
        "{} is missing: `cargo test` builds it; with `--test` or `--tests`, run \
         `cargo build {release}--example {name}` first",
        path.display()
    );
    path
}

/// A process, which is killed when it is dropped, or lives too long.
struct Process {
    child: Child,
    _watchdog: mpsc::Sender<()>,
}

impl Process {
    /// Starts a program that may open as many files as it ever may.
    fn start(program: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let child = Command::new("sh")
            .args(["-c", r#"ulimit -S -n "$(ulimit -H -n)" && exec "$0" "$@""#])
            .arg(program)
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("`sh` starts");
        let pid = child.id();
        let (watchdog, called_off) = mpsc::channel::<()>();
        thread::spawn(move || {
            if called_off.recv_timeout(LIFETIME) == Err(mpsc::RecvTimeoutError::Timeout) {
                signal("KILL", pid);
            }
        });
        Self { child, _watchdog: watchdog }
    }

    /// Starts the example, which would show us a backtrace if it had one.
    fn lines(arguments: &[&str]) -> Self {
        Self::start(&example("lines"), arguments, &[("RUST_BACKTRACE", "1")])
    }

    /// What it says further until it ends, and how it ends.
    fn end(&mut self) -> Output {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        if let Some(mut pipe) = self.child.stdout.take() {
            pipe.read_to_end(&mut stdout).expect("its output can be read");
        }
        if let Some(mut pipe) = self.child.stderr.take() {
            pipe.read_to_end(&mut stderr).expect("its errors can be read");
        }
        Output { status: self.child.wait().expect("it ends"), stdout, stderr }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let output = self.end();
        if thread::panicking() {
            eprintln!("process {}, {}: {}", self.child.id(), output.status, text(&output.stdout));
            eprintln!("{}", text(&output.stderr));
        }
    }
}

fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
    assert!(status.expect("`kill` starts").success(), "`kill -{name} {pid}` fails");
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

// ---- the server ---------------------------------------------------------------------------------

struct Server {
    process: Process,
    address: String,
    /// Held open, so that the server can speak at the end.
    stdout: BufReader<std::process::ChildStdout>,
}

/// What the server said at its end.
struct Ended {
    stuck: u64,
    totals: BTreeMap<String, u64>,
}

impl Server {
    fn start() -> Self {
        let mut process = Process::lines(&["--listen", "127.0.0.1:0"]);
        let mut stdout = BufReader::new(process.child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("its output can be read");
        let address = line.trim_end().strip_prefix("listening on ");
        let address = address.unwrap_or_else(|| panic!("the server says {line:?}")).to_owned();
        Self { process, address, stdout }
    }

    fn client(&self) -> Client {
        Client::connect(&self.address)
    }

    /// `Ctrl-C`. Somebody must have been served before: only then is it known that the server listens
    /// to signals.
    fn interrupt(&self) {
        signal("INT", self.process.child.id());
    }

    /// Waits for the end that was asked for, and checks what must be true of any end.
    fn end(mut self) -> Ended {
        let mut said = String::new();
        self.stdout.read_to_string(&mut said).expect("its output can be read");
        let output = self.process.end();
        assert_eq!(text(&output.stderr), "");
        assert_eq!(output.status.code(), Some(0), "{}; it said {said}", output.status);

        let ended = Ended::parse(&said).unwrap_or_else(|| panic!("the server ends with {said:?}"));
        let [received, copies, unmatched, delivered, discarded, lost, queued, attached, detached] =
            ended.all();
        assert_eq!(
            received + copies,
            unmatched + delivered + discarded + lost + queued,
            "every line has one fate: {said}"
        );
        assert_eq!(queued, 0, "{said}");
        assert_eq!(attached, detached, "{said}");
        ended
    }
}

impl Ended {
    /// Reads `1 subscriptions were stuck; Totals { received: 1, … }`, and nothing but this one line.
    fn parse(said: &str) -> Option<Self> {
        let (stuck, totals) =
            said.strip_suffix(" }\n")?.split_once(" subscriptions were stuck; ")?;
        let counts = totals.strip_prefix("Totals { ")?.split(", ").map(|count| {
            let (name, count) = count.split_once(": ")?;
            Some((name.to_owned(), count.parse().ok()?))
        });
        Some(Self { stuck: stuck.parse().ok()?, totals: counts.collect::<Option<_>>()? })
    }

    fn count(&self, name: &str) -> u64 {
        *self.totals.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.totals))
    }

    fn all(&self) -> [u64; 9] {
        let names = "received copies unmatched delivered discarded lost queued attached detached";
        let counts = names.split(' ').map(|name| self.count(name)).collect::<Vec<_>>();
        counts.try_into().expect("there are nine names")
    }
}

// ---- a client -----------------------------------------------------------------------------------

/// A client, who is subscribed to a key of its own.
struct Client {
    socket: BufReader<TcpStream>,
    me: String,
}

impl Client {
    fn connect(address: &str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let socket = TcpStream::connect(address).expect("the server accepts");
        socket.set_read_timeout(Some(WATCHDOG)).expect("it is not zero");
        socket.set_write_timeout(Some(WATCHDOG)).expect("it is not zero");
        socket.set_nodelay(true).expect("it is TCP");
        let me = format!("me-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let mut client = Self { socket: BufReader::new(socket), me };
        client.say(&format!("sub {}", client.me));
        assert_eq!(client.heard(), [""; 0]);
        client
    }

    fn subscribed(address: &str, keys: &[&str]) -> Self {
        let mut client = Self::connect(address);
        for key in keys {
            client.say(&format!("sub {key}"));
        }
        assert_eq!(client.heard(), [""; 0]);
        client
    }

    fn say(&mut self, line: &str) {
        self.send(format!("{line}\n").as_bytes());
    }

    fn send(&mut self, bytes: &[u8]) {
        self.socket.get_mut().write_all(bytes).expect("the server reads");
    }

    /// The next line, or `None` if the server has closed the connection.
    fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        self.socket.read_line(&mut line).expect("the server has something to say");
        line.pop().map(|end| {
            assert_eq!(end, '\n', "half a line: {line:?}");
            line
        })
    }

    /// All that was sent to this client because of what it said so far, and because of what others said
    /// before they called this.
    ///
    /// Sends itself a line and waits for it, twice. When the first is back, all that was said before has
    /// been read; when the second is, a new turn of the demux has begun, so that what was begun before
    /// is done, and an `unsub` is in force.
    fn heard(&mut self) -> Vec<String> {
        let mut heard = Vec::new();
        for end in ["once", "twice"] {
            let end = format!("{} {end}", self.me);
            self.say(&format!("pub {end}"));
            loop {
                let line = self.hear().unwrap_or_else(|| panic!("closed; it heard {heard:?}"));
                if line == end {
                    break;
                }
                heard.push(line);
            }
        }
        heard
    }

    /// All lines until the server closes the connection.
    fn rest(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.hear()).collect()
    }

    /// Publishes many fat lines, numbered from 0, and waits until the server has read them.
    fn publish_fat(&mut self, key: &str, lines: usize) {
        (0..lines).for_each(|n| self.say(&format!("pub {}", fat(key, n))));
        assert_eq!(self.heard(), [""; 0]);
    }
}

fn fat(key: &str, n: usize) -> String {
    format!("{key} {n} {}", "x".repeat(FAT))
}

/// Says it briefly if fat lines are not those that were expected.
fn assert_fat(heard: &[String], key: &str, lines: usize) {
    let numbers = heard.iter().map(|line| &line[..line.len().min(20)]).collect::<Vec<_>>();
    assert_eq!(heard.len(), lines, "{numbers:?}");
    assert!(heard.iter().enumerate().all(|(n, line)| *line == fat(key, n)), "{numbers:?}");
}

// ---- a thousand clients -------------------------------------------------------------------------

const CLIENTS: usize = 1000;
const PUBLISHERS: usize = 4;
const ROUNDS: usize = 5;
/// How many fat lines are published for the client that does not read.
const FOR_SILENT: usize = 600;
/// Says to this test that it is the second process, and where the server is.
const SECOND_PROCESS: &str = "STREAM_DEMUX_LINES_SECOND_PROCESS";

/// Keys are `own-0` to `own-999`, the first is of the client that does not read, and `shared`. The
/// processes agree on when to go on by way of the server: under the keys `first` and `second`.
#[test]
fn a_thousand_clients_in_a_second_process_and_one_does_not_read() {
    if let Ok(address) = env::var(SECOND_PROCESS) {
        return second_process(&address);
    }
    check_descriptor_limit();
    let server = Server::start();
    let mut first = Client::subscribed(&server.address, &["first"]);
    let this = env::current_exe().expect("the test has a path");
    let name = "a_thousand_clients_in_a_second_process_and_one_does_not_read";
    let mut second = Process::start(
        &this,
        &["--exact", name, "--nocapture", "--test-threads=1"],
        &[(SECOND_PROCESS, &server.address)],
    );
    assert_eq!(first.hear().as_deref(), Some("first subscribed"));

    // They stay until the end: who leaves just then may be taken for stuck.
    let mut to_silent = server.client();
    let mut publishers = [(); PUBLISHERS].map(|()| server.client());
    thread::scope(|scope| {
        scope.spawn(|| to_silent.publish_fat("own-0", FOR_SILENT));
        for (publisher, client) in publishers.iter_mut().enumerate() {
            scope.spawn(move || {
                (0..ROUNDS).for_each(|round| client.send(&one_round(publisher, round)));
                assert_eq!(client.heard(), [""; 0]);
            });
        }
    });
    assert_eq!(
        first.hear().as_deref(),
        Some("first served"),
        "one who does not read delays nobody"
    );

    first.say("pub own-0 last");
    first.say("pub second read");
    let told = first.hear().unwrap_or_default();
    let lost = told.strip_prefix("first lost ").and_then(|lost| lost.parse::<u64>().ok());
    let output = second.end();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));

    server.interrupt();
    let ended = server.end();
    assert_eq!(ended.stuck, 0);
    assert_eq!(Some(ended.count("discarded")), lost, "what was lost was told");
    assert_eq!((ended.count("unmatched"), ended.count("lost")), (0, 0));
    let shared = (PUBLISHERS * ROUNDS) as u64;
    assert_eq!(ended.count("copies"), shared * (CLIENTS as u64 - 1));
}

fn check_descriptor_limit() {
    let output = Command::new("sh").args(["-c", "ulimit -H -n"]).output().expect("`sh` starts");
    let limit = text(&output.stdout).trim();
    assert!(
        limit == "unlimited" || limit.parse().is_ok_and(|limit: u64| limit >= 2500),
        "a thousand clients need a hard limit of 2500 open files, and it is {limit}: raise `ulimit -n`"
    );
}

/// One publisher's line for each client that reads, and one for all.
fn one_round(publisher: usize, round: usize) -> Vec<u8> {
    let mut lines = format!("pub shared {publisher} {round}\n").into_bytes();
    for client in 1..CLIENTS {
        writeln!(lines, "pub own-{client} {publisher} {round}").expect("a `Vec` takes all");
    }
    lines
}

fn second_process(address: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts").block_on(async {
        tokio::time::timeout(WATCHDOG, play_clients(address)).await.expect("this takes too long");
    });
}

async fn play_clients(address: &str) {
    let mut second = AsyncClient::connect(address, &["second"]).await;
    let own = (0..CLIENTS).map(|n| format!("own-{n}")).collect::<Vec<_>>();
    let connecting = stream::iter(&own).map(|own| async {
        let own: &str = own;
        (AsyncClient::connect(address, &[own, "shared"]).await, own)
    });
    // A listener of tokio's has room for 128 that it has not accepted yet.
    let clients = connecting.buffered(100).collect::<Vec<_>>().await;
    let mut clients = clients.into_iter();
    let (silent, _) = clients.next().expect("there are a thousand");

    second.say("pub first subscribed").await;
    join_all(clients.map(|(client, own)| served(client, own))).await;
    second.say("pub first served").await;

    assert_eq!(second.hear().await.as_deref(), Some("second read"));
    let lost = read_at_last(silent).await;
    second.say(&format!("pub first lost {lost}")).await;
    second.quit().await;
}

/// Gets each line of each publisher once and in order, under both keys, and nothing else.
async fn served(mut client: AsyncClient, own: &str) {
    let mut rounds = BTreeMap::new();
    for _ in 0..2 * PUBLISHERS * ROUNDS {
        let line = client.hear().await.unwrap_or_else(|| panic!("{own} is closed"));
        let (from, round) = line.rsplit_once(' ').expect("`KEY PUBLISHER ROUND`");
        let next = rounds.entry(from.to_owned()).or_insert(0);
        assert_eq!(round, next.to_string(), "{own} hears {line:?}");
        *next += 1;
    }
    let publishers = 0..PUBLISHERS;
    let expected = publishers.flat_map(|p| [format!("{own} {p}"), format!("shared {p}")]);
    assert_eq!(rounds, expected.map(|from| (from, ROUNDS)).collect());
    client.quit().await;
}

/// Gets the lines that it did not read, in order, or is told how many of them are lost.
async fn read_at_last(mut client: AsyncClient) -> usize {
    let published = FOR_SILENT + 1 + PUBLISHERS * ROUNDS;
    let (mut received, mut lost, mut next, mut over) = (0, 0, 0, false);
    while received + lost < published {
        let line = client.hear().await.expect("there is more to come");
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["lost", count] => lost += count.parse::<usize>().expect("a number"),
            ["own-0", "last"] => {
                received += 1;
                over = true;
            }
            ["own-0", n, _] => {
                assert!(!over, "line {n} came after the last one");
                let n = n.parse::<usize>().expect("a number");
                assert!(n >= next, "line {n} came late: {next} was the next");
                (received, next) = (received + 1, n + 1);
            }
            ["shared", _, _] => received += 1,
            _ => panic!("who does not read hears {line:?}"),
        }
    }
    assert_eq!(received + lost, published);
    assert!(over, "the last line is the one that is never lost");
    assert!(lost > 0, "{published} lines were not enough");
    client.quit().await;
    lost
}

struct AsyncClient(tokio::io::BufReader<tokio::net::TcpStream>);

impl AsyncClient {
    /// Connects and subscribes, which is done when the server has found fault with the next request.
    async fn connect(address: &str, keys: &[&str]) -> Self {
        let socket = tokio::net::TcpStream::connect(address).await.expect("the server accepts");
        let mut client = Self(tokio::io::BufReader::with_capacity(1024, socket));
        for key in keys {
            client.say(&format!("sub {key}")).await;
        }
        client.say("pub").await;
        assert_eq!(client.hear().await.as_deref(), Some("err pub: missing key"));
        client
    }

    async fn say(&mut self, line: &str) {
        self.0.write_all(format!("{line}\n").as_bytes()).await.expect("the server reads");
    }

    async fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).await.expect("the server has something to say");
        line.pop().map(|_| line)
    }

    /// Quits, having heard everything.
    async fn quit(mut self) {
        self.say("quit").await;
        assert_eq!(self.hear().await, None);
    }
}

// ---- what clients get wrong ---------------------------------------------------------------------

/// Each is answered by one line; that the connection lives on is what `heard` finds.
#[test]
fn what_a_client_gets_wrong_is_answered_and_the_connection_lives_on() {
    let server = Server::start();
    let mut client = Client::subscribed(&server.address, &["taken"]);
    let wrong = [
        ("", r#"unknown verb "": try sub, unsub, pub or quit"#),
        ("hello", r#"unknown verb "hello": try sub, unsub, pub or quit"#),
        ("SUB key", r#"unknown verb "SUB": try sub, unsub, pub or quit"#),
        ("sub", "sub: missing key"),
        ("unsub", "unsub: missing key"),
        ("pub", "pub: missing key"),
        ("pub  text", "pub: missing key"),
        ("pub key", "pub: missing text"),
        ("sub two words", "sub: a key has no spaces"),
        ("unsub two words", "unsub: a key has no spaces"),
        ("sub taken", "sub: already subscribed to taken"),
        ("unsub free", "unsub: not subscribed to free"),
    ];
    for (line, answer) in wrong {
        client.say(line);
        assert_eq!(client.heard(), [format!("err {answer}")], "to {line:?}");
    }
    client.say("pub taken and still alive");
    assert_eq!(client.heard(), ["taken and still alive"]);
}

#[test]
fn a_line_may_have_64_kib_and_one_that_is_longer_is_answered_once() {
    let server = Server::start();
    let mut client = Client::subscribed(&server.address, &["key"]);
    let longest = format!("pub key {}", "x".repeat(64 * 1024 - "pub key ".len()));
    client.say(&longest);
    assert_eq!(client.heard(), [longest.strip_prefix("pub ").expect("it has one")]);

    for too_long in [64 * 1024 + 1, 1_000_000] {
        client.say(&"x".repeat(too_long));
        assert_eq!(client.heard(), ["err line longer than 64 KiB"], "{too_long} bytes");
    }
    // Also while it is still going on, and then what follows is one with it.
    client.send("x".repeat(70_000).as_bytes());
    assert_eq!(client.hear().as_deref(), Some("err line longer than 64 KiB"));
    client.say("sub still the same line");
    assert_eq!(client.heard(), [""; 0]);
}

#[test]
fn a_line_that_is_not_utf_8_is_answered_and_the_next_one_is_obeyed() {
    let server = Server::start();
    let mut client = Client::subscribed(&server.address, &["key"]);
    client.send(b"pub key \xff\xfe\npub key gr\xc3\xbc\xc3\x9fe\n");
    assert_eq!(client.hear().as_deref(), Some("err line is not UTF-8"));
    assert_eq!(client.heard(), ["key grüße"]);
}

// ---- subscriptions ------------------------------------------------------------------------------

#[test]
fn two_clients_of_a_key_both_get_its_lines_until_one_unsubscribes() {
    let server = Server::start();
    let mut publisher = server.client();
    let mut ann = Client::subscribed(&server.address, &["news", "rain"]);
    let mut bob = Client::subscribed(&server.address, &["news"]);

    publisher.send(b"pub news 1\npub rain 1\npub news two words\npub nobody 1\n");
    assert_eq!(publisher.heard(), [""; 0]);
    assert_eq!(only(&ann.heard(), "news"), ["news 1", "news two words"]);
    assert_eq!(bob.heard(), ["news 1", "news two words"]);

    ann.say("unsub news");
    assert_eq!(ann.heard(), [""; 0]);
    publisher.send(b"pub news 3\npub rain 3\n");
    assert_eq!(publisher.heard(), [""; 0]);
    assert_eq!(ann.heard(), ["rain 3"], "one key is over, for one client");
    assert_eq!(bob.heard(), ["news 3"]);

    ann.send(b"unsub news\nsub news\n");
    assert_eq!(ann.heard(), ["err unsub: not subscribed to news"]);
    publisher.say("pub news 4");
    assert_eq!(publisher.heard(), [""; 0]);
    assert_eq!(ann.heard(), ["news 4"], "one may come back");
    assert_eq!(bob.heard(), ["news 4"]);

    server.interrupt();
    let ended = server.end();
    assert_eq!((ended.stuck, ended.count("unmatched"), ended.count("copies")), (0, 1, 3));
    assert_eq!((ended.count("attached"), ended.count("discarded")), (7, 0));
}

/// The lines of a key: between keys there is no order.
fn only<'a>(lines: &'a [String], key: &str) -> Vec<&'a str> {
    let lines = lines.iter().map(String::as_str);
    lines.filter(|line| line.split(' ').next() == Some(key)).collect()
}

#[test]
fn who_quits_gets_what_is_queued_and_then_nothing() {
    let server = Server::start();
    let mut slow = Client::subscribed(&server.address, &["slow"]);
    let mut publisher = server.client();
    publisher.publish_fat("slow", WAITING);
    slow.say("quit");
    assert_fat(&slow.rest(), "slow", WAITING);
    publisher.say("pub slow too late");
    assert_eq!(publisher.heard(), [""; 0]);

    server.interrupt();
    let ended = server.end();
    assert_eq!((ended.count("unmatched"), ended.count("discarded")), (1, 0));
}

// ---- clients who vanish -------------------------------------------------------------------------

#[test]
fn a_client_whose_socket_is_closed_is_gone_and_the_others_go_on() {
    let server = Server::start();
    let mut gone = Client::subscribed(&server.address, &["gone", "both"]);
    let mut stays = Client::subscribed(&server.address, &["both"]);
    gone.socket.get_ref().shutdown(Shutdown::Write).expect("it is connected");
    assert_eq!(gone.hear(), None, "the server closes the other half");
    assert_eq!(stays.heard(), [""; 0]);

    stays.send(b"pub gone 1\npub both 1\npub gone 2\n");
    assert_eq!(stays.heard(), ["both 1"]);
    server.interrupt();
    let ended = server.end();
    assert_eq!((ended.stuck, ended.count("unmatched"), ended.count("copies")), (0, 2, 0));
}

/// When a reset arrives is not seen from outside: so lines are published for long enough.
#[test]
fn a_client_whose_connection_is_reset_is_gone_and_the_others_go_on() {
    const LINES: u64 = 2000;
    let server = Server::start();
    let gone = Client::subscribed(&server.address, &["gone"]);
    let mut stays = server.client();
    stays.say("pub gone unread");
    // What is there when a socket is closed, and was not read, makes it a reset.
    assert_ne!(gone.socket.get_ref().peek(&mut [0]).expect("a line is sent"), 0);
    drop(gone);
    for n in 0..LINES {
        stays.say(&format!("pub gone {n}"));
        assert_eq!(stays.heard(), [""; 0]);
    }

    server.interrupt();
    let ended = server.end();
    assert_eq!(ended.stuck, 0);
    assert!((1..=LINES).contains(&ended.count("unmatched")), "{:?}", ended.totals);
}

// ---- the end ------------------------------------------------------------------------------------

#[test]
fn an_interrupt_delivers_what_is_queued() {
    let server = Server::start();
    let mut slow = Client::subscribed(&server.address, &["slow"]);
    let mut publisher = Client::subscribed(&server.address, &["quick"]);
    publisher.publish_fat("slow", WAITING);
    publisher.say("pub quick 1");
    assert_eq!(publisher.heard(), ["quick 1"]);

    server.interrupt();
    assert_fat(&slow.rest(), "slow", WAITING);
    assert_eq!(publisher.rest(), [""; 0]);
    let ended = server.end();
    assert_eq!((ended.stuck, ended.count("discarded")), (0, 0));
    assert_eq!(ended.count("delivered"), ended.count("received"));
}

/// The one test that takes as long as the server's patience.
#[test]
fn an_interrupt_waits_five_seconds_for_a_client_that_never_reads() {
    let server = Server::start();
    // Two of its four keys have lines that it cannot be sent.
    let stuck = Client::subscribed(&server.address, &["fat", "thin", "idle"]);
    let mut others = server.client();
    others.publish_fat("fat", WAITING + 100);
    others.say("pub thin 1");
    assert_eq!(others.heard(), [""; 0]);

    let interrupted = Instant::now();
    server.interrupt();
    assert_eq!(others.rest(), [""; 0]);
    let ended = server.end();
    let took = interrupted.elapsed();
    drop(stuck);
    assert_eq!(ended.stuck, 2, "{:?}", ended.totals);
    assert!(ended.count("discarded") > 0, "{:?}", ended.totals);
    // Five for the subscription, one for the socket, and some for a machine with other things to do.
    assert!((5..10).contains(&took.as_secs()), "it took {took:?}");
}

// ---- the command line ---------------------------------------------------------------------------

#[test]
fn bad_arguments_are_answered_by_the_usage() {
    let bad: [&[&str]; 5] =
        [&["--listen"], &["--bogus"], &["127.0.0.1:0"], &["--listen", "127.0.0.1:0", "x"], &[""]];
    for arguments in bad {
        let output = Process::lines(arguments).end();
        assert_eq!(text(&output.stderr), "usage: lines [--listen ADDRESS:PORT]\n", "{arguments:?}");
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""), "{arguments:?}");
    }
}

#[test]
fn an_address_that_cannot_be_listened_on_is_named_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("some port is free");
    let taken = taken.local_addr().map(|address| (taken, address.to_string()));
    let (_taken, address) = taken.expect("it is bound");
    for address in [address.as_str(), "nonsense"] {
        let output = Process::lines(&["--listen", address]).end();
        let error = text(&output.stderr);
        assert!(error.starts_with(&format!("lines: cannot listen on {address}: ")), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{address}");
    }
}
