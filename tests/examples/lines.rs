//! `lines`, run as a server in a separate process and tested over real sockets.
//!
//! Guarantees 1, 2, 3, 7 and 9, and the documented behaviour of `multicast`,
//! `Overflow::DropOldest`, `Lease` and `stall_timeout`, as observed by clients. Nothing here
//! sleeps. Time limits are watchdogs, which can only fail a test.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::{WATCHDOG, Watchdog, example};

/// Number of lines that the server can hold for a client and a key: in its outbox and in the queue.
const ROOM: usize = 64 + 256;
/// Number of lines in flight at which a reading client loses none.
const WINDOW: usize = 100;

// The server

struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: String,
}

impl Server {
    fn start() -> Self {
        Self::start_with(WATCHDOG)
    }

    /// Starts the server on a free port. `stall_timeout` is its option of that name.
    fn start_with(stall_timeout: Duration) -> Self {
        let mut child = example("lines")
            .args(["--listen", "127.0.0.1:0"])
            .args(["--stall-timeout", &stall_timeout.as_millis().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("it was piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("the server printed nothing");
        let address = line.strip_prefix("listening on ").expect("the first line").trim().to_owned();
        Self { child, stdout, address }
    }

    /// Sends Ctrl-C. Returns what the server prints.
    fn interrupt(mut self) -> Report {
        let id = self.child.id();
        signal("INT", id);
        let _watchdog = Watchdog::over(&self.child);
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).expect("the totals are not UTF-8");
        let status = self.child.wait().expect("cannot wait for the server");
        assert!(status.success(), "the server exited with {status} after {text:?}");
        Report(text)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process has already exited, unless the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(name: &str, id: u32) {
    let status = Command::new("kill").args([format!("-{name}"), id.to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()), "cannot send {name} to {id}");
}

/// The totals that the server printed.
struct Report(String);

impl Report {
    fn get(&self, name: &str) -> u64 {
        let label = format!("{name}: ");
        let (_, rest) =
            self.0.split_once(&label).unwrap_or_else(|| panic!("no {name}: {}", self.0));
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..digits].parse().unwrap_or_else(|_| panic!("{name} is not a number: {}", self.0))
    }

    fn stuck(&self) -> u64 {
        let (count, _) = self
            .0
            .split_once(" clients were stuck")
            .expect("the number of stuck clients is missing");
        count.parse().expect("a number")
    }

    /// Asserts that every line has one fate and every subscription has ended.
    fn assert_adds_up(&self) -> &Self {
        let fates = ["unmatched", "delivered", "discarded", "lost"].map(|name| self.get(name));
        let lines = self.get("received") + self.get("copies");
        assert_eq!(lines, fates.iter().sum::<u64>(), "{}", self.0);
        assert_eq!(self.get("queued"), 0, "{}", self.0);
        assert_eq!(self.get("attached"), self.get("detached"), "{}", self.0);
        self
    }
}

// Clients

const VERBS: &str = "sub KEY, unsub KEY, pub KEY TEXT, help, quit";

struct Client {
    reader: BufReader<TcpStream>,
}

impl Client {
    fn connect(address: &str) -> Self {
        let socket = TcpStream::connect(address).expect("cannot connect");
        socket.set_read_timeout(Some(WATCHDOG)).expect("cannot set the time limit");
        socket.set_write_timeout(Some(WATCHDOG)).expect("cannot set the time limit");
        Self { reader: BufReader::new(socket) }
    }

    /// Connects and subscribes. Lines that are published after the return reach the client.
    fn subscribed(address: &str, keys: &[&str]) -> Self {
        let mut client = Self::connect(address);
        let requests: Vec<_> = keys.iter().map(|key| format!("sub {key}\n")).collect();
        let requests = requests.concat();
        client.send(requests.as_bytes());
        for key in keys {
            assert_eq!(client.receive(), format!("ok sub {key}"));
        }
        client
    }

    fn send_line(&mut self, line: &str) {
        self.send(format!("{line}\n").as_bytes());
    }

    fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).expect("the server does not read");
    }

    /// Returns the next line, or `None` if the server has closed the connection.
    fn next(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(line.strip_suffix('\n').expect("incomplete line").to_owned()),
            Err(error) => panic!("waited for a line: {error}"),
        }
    }

    fn receive(&mut self) -> String {
        self.next().expect("the connection was closed")
    }

    fn rest(mut self) -> Vec<String> {
        std::iter::from_fn(|| self.next()).collect()
    }

    /// Shuts down the write direction.
    fn end(&self) {
        self.reader.get_ref().shutdown(Shutdown::Write).expect("the connection was closed");
    }
}

/// Parses the number at the end of a line with this key, or of `lost N`.
fn number(line: &str, key: &str) -> Option<usize> {
    let text = line.strip_prefix(key)?.strip_prefix(' ')?;
    text.split(' ').next()?.parse().ok()
}

/// Publishes long lines with numbers from 0 to a key whose subscriber does not read, until it must
/// have lost some, whatever the sizes of the kernel's buffers. Returns the number of lines.
///
/// Another client reads the lines and must receive all.
fn flood(address: &str, key: &str) -> usize {
    let padding = "x".repeat(60_000);
    let count = kernel_buffers() / padding.len() + ROOM + 2 * WINDOW;
    let mut reader = Client::subscribed(address, &[key]);
    let mut publisher = Client::connect(address);
    for n in 0..count {
        publisher.send_line(&format!("pub {key} {n} {padding}"));
        if n % WINDOW == WINDOW - 1 || n == count - 1 {
            for n in n - n % WINDOW..=n {
                assert_eq!(number(&reader.receive(), key), Some(n));
            }
        }
    }
    count
}

/// Returns the number of bytes that a connection can buffer if its other end does not read.
fn kernel_buffers() -> usize {
    let most = |path| {
        let limits = fs::read_to_string(path).ok()?;
        limits.split_whitespace().last()?.parse::<usize>().ok()
    };
    ["/proc/sys/net/ipv4/tcp_wmem", "/proc/sys/net/ipv4/tcp_rmem"]
        .map(|path| most(path).unwrap_or(8 << 20))
        .iter()
        .sum()
}

// Requests

#[test]
fn each_line_goes_to_the_subscribers_of_its_key() {
    let server = Server::start();
    let mut both = Client::subscribed(&server.address, &["tea", "coffee"]);
    let mut tea = Client::subscribed(&server.address, &["tea"]);
    let mut publisher = Client::connect(&server.address);
    publisher.send(b"pub tea is ready\npub milk is out\r\npub coffee  is  black \n");
    // The lines of one key arrive in order; those of two keys may arrive in any order.
    let mut lines = [both.receive(), both.receive()];
    lines.sort();
    assert_eq!(lines, ["coffee  is  black ", "tea is ready"]);
    assert_eq!(tea.receive(), "tea is ready");
    publisher.send_line("quit");
    assert_eq!(publisher.next(), None);
    let report = server.interrupt();
    report.assert_adds_up();
    assert_eq!([report.get("received"), report.get("copies")], [3, 1]);
    assert_eq!([report.get("unmatched"), report.get("delivered")], [1, 3]);
}

#[test]
fn invalid_line_is_answered_and_the_connection_stays_open() {
    let server = Server::start();
    let mut client = Client::subscribed(&server.address, &["tea"]);
    let longest = format!("pub tea {}", "x".repeat(64 * 1024 - 8));
    let mut bad = |line: &[u8], answer: &str| {
        // In one write: the line that follows an invalid one is not lost.
        client.send(&[line, b"\npub tea is ready\n"].concat());
        assert_eq!(
            client.receive(),
            format!("err {answer}"),
            "{:?}",
            String::from_utf8_lossy(line)
        );
        assert_eq!(client.receive(), "tea is ready");
    };
    for verb in ["brew", "", "SUB"] {
        let answer = format!("unknown verb \"{verb}\", not one of {VERBS}");
        bad(format!("{verb} tea").as_bytes(), &answer);
    }
    bad(b"sub", "missing key");
    bad(b"unsub ", "missing key");
    bad(b"pub", "missing key");
    bad(b"pub  text", "missing key");
    bad(b"pub tea", "missing text for tea");
    bad(b"sub green tea", "key with a space: green tea");
    bad(b"sub tea", "already subscribed tea");
    bad(b"unsub milk", "not subscribed milk");
    let long = "k".repeat(257);
    for verb in ["sub", "unsub", "pub"] {
        bad(format!("{verb} {long}").as_bytes(), "key longer than 256 bytes");
    }
    bad(b"pub tea \xff\xfe", "line not UTF-8");
    bad(format!("{longest}x").as_bytes(), "line longer than 64 KiB");
    bad("x".repeat(300_000).as_bytes(), "line longer than 64 KiB");

    client.send_line("help");
    assert_eq!(client.receive(), format!("ok {VERBS}"));
    client.send_line(&longest);
    assert_eq!(client.receive().len(), longest.len() - "pub ".len());
    client.send_line("quit");
    assert_eq!(client.next(), None);
    server.interrupt().assert_adds_up();
}

#[test]
fn unsub_ends_only_the_clients_subscription_to_that_key() {
    let server = Server::start();
    let mut leaving = Client::subscribed(&server.address, &["tea", "coffee"]);
    let mut stayer = Client::subscribed(&server.address, &["tea"]);
    leaving.send(b"pub tea one\nunsub tea\npub tea two\npub coffee three\nquit\n");
    assert_eq!(leaving.rest(), ["tea one", "coffee three"]);
    assert_eq!([stayer.receive(), stayer.receive()], ["tea one", "tea two"]);
    server.interrupt().assert_adds_up();
}

#[test]
fn line_that_the_end_of_the_connection_cuts_off_is_not_published() {
    let server = Server::start();
    let mut reader = Client::subscribed(&server.address, &["tea"]);
    for cut in ["pub tea for tw", "sub te", "quit"] {
        let mut ends = Client::connect(&server.address);
        ends.send(format!("pub tea is ready\n{cut}").as_bytes());
        ends.end();
        assert_eq!(ends.rest(), ["err line without an end, when the connection ended"], "{cut}");
    }
    let mut resets = Client::connect(&server.address);
    resets.send(b"pub tea is ready\npub tea for tw");
    for _ in 0..4 {
        assert_eq!(reader.receive(), "tea is ready");
    }
    // If it is closed with an unread answer, the connection is reset.
    resets.send(b"\n?\npub tea for tw");
    assert_eq!(reader.receive(), "tea for tw");
    resets.reader.get_ref().peek(&mut [0]).expect("the answer is missing");
    drop(resets);
    let report = server.interrupt();
    assert_eq!(report.assert_adds_up().get("received"), 5);
}

#[test]
fn client_with_a_hundred_subscriptions_cannot_add_another() {
    let server = Server::start();
    let keys = (0..100).map(|n| n.to_string()).collect::<Vec<_>>();
    let keys = keys.iter().map(String::as_str).collect::<Vec<_>>();
    let mut client = Client::subscribed(&server.address, &keys);
    client.send_line("sub more");
    assert_eq!(client.receive(), "err more than 100 subscriptions: more");
    client.send(b"unsub 7\nsub seven\npub seven is in\n");
    assert_eq!(client.receive(), "ok sub seven");
    assert_eq!(client.receive(), "seven is in");
    client.send_line("sub 7");
    assert_eq!(client.receive(), "err more than 100 subscriptions: 7");
    // The end of a connection takes another subscription for a moment.
    client.send_line("pub 99 is last\nquit");
    assert_eq!(client.rest(), ["99 is last"]);
    server.interrupt().assert_adds_up();
}

// Slow readers

/// A client subscribes to eight keys and does not read. More lines are published to each of them
/// than may wait for it.
#[test]
#[cfg(target_os = "linux")]
fn lines_that_wait_for_a_client_with_many_keys_are_bounded_in_bytes() {
    const KEYS: [&str; 8] = ["0", "1", "2", "3", "4", "5", "6", "7"];
    let server = Server::start();
    let padding = "x".repeat(60_000);
    let mut stuck = Client::subscribed(&server.address, &KEYS);
    let mut reader = Client::subscribed(&server.address, &["step"]);
    let mut publisher = Client::connect(&server.address);
    let each = ROOM + kernel_buffers() / padding.len();
    for n in 0..each {
        for key in KEYS {
            publisher.send_line(&format!("pub {key} {n} {padding}"));
        }
        publisher.send_line(&format!("pub step {n} {padding}"));
        assert_eq!(number(&reader.receive(), "step"), Some(n), "the reader lost a line");
    }
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id()));
    let status = status.expect("the server has exited");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its memory");
    let most = most.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") >> 10;
    assert!(most < 60, "{most} MiB for 150 MiB published");

    // The loss is reported with the next line of any key.
    publisher.send_line("pub 0 last");
    let (mut received, mut lost, mut bytes) = (0, 0, 0);
    while received + lost < each * KEYS.len() {
        let line = stuck.receive();
        bytes += line.len();
        match number(&line, "lost") {
            Some(gap) => lost += gap,
            None => received += 1,
        }
    }
    assert!(lost > 0, "no line was lost");
    assert!(bytes < (32 << 20) + kernel_buffers() + (1 << 20), "{bytes}");
    assert!(bytes > 30 << 20, "{bytes}");
    drop((stuck, reader, publisher));
    server.interrupt().assert_adds_up();
}

#[test]
fn number_of_lost_lines_is_reported_at_the_gap() {
    let server = Server::start();
    let mut slow = Client::subscribed(&server.address, &["flood"]);
    let count = flood(&server.address, "flood");
    let (mut next, mut lost) = (0, 0);
    while next < count {
        let line = slow.receive();
        if let Some(gap) = number(&line, "lost") {
            (next, lost) = (next + gap, lost + gap);
        } else {
            assert_eq!(number(&line, "flood"), Some(next), "after {lost} lost");
            next += 1;
        }
    }
    assert!(lost > 0, "none of {count} lines was lost");
    slow.send_line("pub flood is over");
    assert_eq!(slow.receive(), "flood is over");
    drop(slow);
    let report = server.interrupt();
    assert_eq!(report.assert_adds_up().get("discarded"), lost as u64);
    assert_eq!(report.stuck(), 0);
}

#[test]
fn client_that_does_not_read_is_disconnected_and_others_stay() {
    let server = Server::start_with(Duration::from_millis(50));
    let mut reader = Client::subscribed(&server.address, &["tea"]);
    let mut stuck = Client::subscribed(&server.address, &["flood"]);
    let mut publisher = Client::connect(&server.address);
    let line = format!("pub flood {}", "x".repeat(60_000));
    for _ in 0..kernel_buffers() / line.len() + ROOM + WINDOW {
        publisher.send_line(&line);
    }
    // After the server has closed the connection, writes fail with a reset.
    let socket = stuck.reader.get_mut();
    let error = loop {
        if let Err(error) = socket.write_all(&b"?\n".repeat(1_000)) {
            break error.kind();
        }
    };
    assert!(matches!(error, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
    // Many ticks have passed without a waiting line for this client.
    publisher.send_line("pub tea is ready");
    assert_eq!(reader.receive(), "tea is ready");
    let report = server.interrupt();
    assert_eq!(report.assert_adds_up().stuck(), 1);
    assert!(report.get("discarded") > 0, "the queue was not discarded: {}", report.0);
}

// Ctrl-C

#[test]
fn interrupt_delivers_queued_lines_and_closes_every_connection() {
    let server = Server::start();
    let mut readers = [0, 1].map(|_| Client::subscribed(&server.address, &["tea"]));
    let mut publisher = Client::connect(&server.address);
    for n in 0..WINDOW {
        publisher.send_line(&format!("pub tea {n}"));
    }
    let last = format!("tea {}", WINDOW - 1);
    while readers[0].receive() != last {}
    let report = server.interrupt();
    assert_eq!(publisher.next(), None);
    let [one, other] = readers;
    assert_eq!(one.rest(), [""; 0]);
    assert_eq!(other.rest(), (0..WINDOW).map(|n| format!("tea {n}")).collect::<Vec<_>>());
    report.assert_adds_up();
    assert_eq!(
        [report.get("received"), report.get("delivered")],
        [WINDOW as u64, 2 * WINDOW as u64]
    );
    assert_eq!(report.stuck(), 0);
}

#[test]
fn interrupt_drops_a_stuck_client_and_counts_it() {
    let server = Server::start();
    let stuck = Client::subscribed(&server.address, &["flood"]);
    let count = flood(&server.address, "flood") as u64;
    let report = server.interrupt();
    assert_eq!(report.assert_adds_up().stuck(), 1);
    assert_eq!(report.get("received"), count);
    assert!(report.get("discarded") > 256, "the queue was not discarded: {}", report.0);
    drop(stuck);
}
