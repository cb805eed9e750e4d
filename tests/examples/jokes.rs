//! `jokes`: a server whose clients each get a text and are disconnected.

use std::io::Read;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use crate::{Scratch, WATCHDOG, Watchdog, complaint, example, printed, text};

/// More than a connection takes when the client does not read.
fn long_joke() -> String {
    let line = "and then he said: ".repeat(500);
    format!("{}\n", vec![line; 1_500].join("\n"))
}

struct Server {
    child: Child,
    address: String,
    _watchdog: Watchdog,
}

impl Server {
    fn start(file: &Scratch, more: &[&str]) -> Self {
        let mut child = example("jokes")
            .args(["serve", "--at", "127.0.0.1:0", "--until-stdin-ends", "--file", file.path()])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the example starts");
        let watchdog = Watchdog::over(&child);
        let mut byte = [0];
        let stdout = child.stdout.as_mut().expect("it was piped");
        let mut line = Vec::new();
        while byte != *b"\n" {
            stdout.read_exact(&mut byte).expect("the server printed nothing");
            line.extend(byte);
        }
        let address = text(&line).strip_prefix("listening on ").expect("the first line").trim();
        Self { address: address.to_owned(), child, _watchdog: watchdog }
    }

    fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(&self.address).expect("cannot connect");
        socket.set_read_timeout(Some(WATCHDOG)).expect("a time limit can be set");
        socket
    }

    /// Returns the text that a client receives.
    fn joke(&self) -> String {
        let mut joke = String::new();
        self.connect().read_to_string(&mut joke).expect("the connection was not closed");
        joke
    }

    /// Lets the server exit. Returns its last line and its error messages.
    fn finish(mut self) -> (String, String) {
        drop(self.child.stdin.take());
        let (mut report, mut complaints) = (String::new(), String::new());
        let (stdout, stderr) = (self.child.stdout.as_mut(), self.child.stderr.as_mut());
        stdout.expect("it was piped").read_to_string(&mut report).expect("UTF-8");
        stderr.expect("it was piped").read_to_string(&mut complaints).expect("UTF-8");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}: {complaints}");
        let last = report.lines().last().expect("it reports");
        (last.to_owned(), complaints)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const SOURCES: [&str; 4] = ["blocking", "spawn-blocking", "tokio-fs", "cached"];

#[test]
fn jokes_are_sent_to_a_thousand_concurrent_clients_from_all_sources() {
    let report = printed("jokes", &["--rounds", "1"]);
    let rows = report.lines().skip(3).collect::<Vec<_>>();
    assert_eq!(rows.len(), SOURCES.len(), "{report}");
    for (row, source) in rows.iter().zip(SOURCES) {
        let words = row.split_whitespace().collect::<Vec<_>>();
        assert_eq!((words.len(), words[0]), (3, source), "{report}");
        assert!(words[1..].iter().all(|time| time.parse::<f64>().is_ok()), "{report}");
    }
}

#[test]
fn jokes_are_sent_line_by_line_and_end_with_the_connection() {
    let jokes = ["one\n", "two\r\n\n  lines \n", "drei: äöü\n"];
    let file = Scratch::new("jokes", format!("{}---\n{}-----\n{}", jokes[0], jokes[1], jokes[2]));
    for source in SOURCES {
        for with in ["demux", "forward"] {
            let server = Server::start(&file, &["--source", source, "--with", with]);
            let (mut seen, mut count) = ([false; 3], 0);
            while seen != [true; 3] {
                let joke = server.joke();
                let which = jokes.iter().position(|known| known.replace('\r', "") == joke);
                seen[which.unwrap_or_else(|| panic!("{source}, {with}: {joke:?}"))] = true;
                count += 1;
                assert!(count < 1_000, "one of three jokes was never sent: {seen:?}");
            }
            let (report, complaints) = server.finish();
            let expected = format!("{count} clients were served, 0 had disconnected, 0 were stuck");
            assert_eq!((report, complaints), (expected, String::new()), "{source}, {with}");
        }
    }
}

#[test]
fn jokes_are_not_delayed_by_clients_that_never_read() {
    let joke = long_joke();
    let file = Scratch::new("long", &joke);
    for source in SOURCES {
        let server = Server::start(&file, &["--source", source]);
        let stuck = [server.connect(), server.connect()];
        assert!(server.joke() == joke, "{source}");
        assert!(server.joke() == joke, "{source}");
        drop(stuck); // closing them with unread lines resets the connections
        let (report, complaints) = server.finish();
        assert_eq!(report, "2 clients were served, 2 had disconnected, 0 were stuck", "{source}");
        assert_eq!(complaints, "", "{source}");
    }
}

#[test]
fn jokes_drops_a_client_that_does_not_read_in_time() {
    let file = Scratch::new("patience", long_joke());
    // Run both at the same time.
    let servers = ["demux", "forward"].map(|with| {
        let server = Server::start(&file, &["--patience", "1", "--with", with]);
        let mut stuck = server.connect();
        // The client has been accepted when it receives a byte. The server exits when it has no
        // client left.
        stuck.read_exact(&mut [0]).expect("the first byte");
        (with, server, stuck)
    });
    for (with, server, _stuck) in servers {
        let (report, _) = server.finish();
        assert_eq!(report, "0 clients were served, 0 had disconnected, 1 were stuck", "{with}");
    }
}

#[test]
fn jokes_are_read_again_when_the_file_has_changed() {
    for source in SOURCES {
        let file = Scratch::new("changing", "old\n");
        let server = Server::start(&file, &["--source", source]);
        assert_eq!(server.joke(), "old\n", "{source}");
        file.write("newer\nand longer\n");
        assert_eq!(server.joke(), "newer\nand longer\n", "{source}");
        if source == "cached" {
            // An invalid file is reported once, and the jokes do not change.
            file.write("");
            assert_eq!([server.joke(), server.joke()], ["newer\nand longer\n"; 2]);
        }
        let (_, complaints) = server.finish();
        let expected = match source {
            "cached" => {
                format!("jokes: still using the old jokes: {}: no joke in it\n", file.path())
            }
            _ => String::new(),
        };
        assert_eq!(complaints, expected, "{source}");
    }
}

#[test]
fn jokes_reports_missing_resources() {
    let file = Scratch::new("lack", "one\n");
    let server = Server::start(&file, &[]);
    let taken = complaint("jokes", &["serve", "--at", &server.address]);
    assert!(taken.starts_with(&format!("cannot listen on {}: ", server.address)), "{taken}");
    // The driver expects other jokes.
    let wrong = complaint("jokes", &["drive", "--at", &server.address, "--clients", "1"]);
    assert!(wrong.starts_with("a client received text that is not a joke of "), "{wrong}");
    let address = server.address.clone();
    drop(server);
    let refused = complaint("jokes", &["drive", "--at", &address]);
    assert!(refused.starts_with(&format!("cannot connect to {address}: ")), "{refused}");

    let shell = Command::new("sh")
        .args(["-c", "ulimit -n 100; exec \"$0\" \"$@\""])
        .arg(example("jokes").get_program())
        .output()
        .expect("`sh` is there");
    let (complaint, status) = (text(&shell.stderr), shell.status.code());
    let expected = "jokes: 1010 clients need 2084 open files, but the limit is 100: raise it";
    assert!(complaint.starts_with(expected) && status == Some(1), "{complaint}");
    assert_eq!(text(&shell.stdout), "");
}
